//! Signals that end a long-running command.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::ui::CliError;

/// SIGINT and SIGTERM. Signals are recorded from construction on, so none is lost before the first wait.
pub(crate) struct ShutdownSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl ShutdownSignals {
    pub(crate) fn new() -> Result<ShutdownSignals, CliError> {
        let on = |kind| {
            signal(kind).map_err(|error| CliError::usage(format!("cannot install signal handlers: {error}")))
        };
        Ok(ShutdownSignals {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
        })
    }

    /// Waits for one of the signals.
    pub(crate) async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
