//! What ends a command that goes on by itself.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::ui::CliError;

/// Ctrl-C, or whoever ends the process otherwise. Nothing is missed from the moment that this is made.
pub(crate) struct ShutdownSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl ShutdownSignals {
    pub(crate) fn new() -> Result<ShutdownSignals, CliError> {
        let on =
            |kind| signal(kind).map_err(|error| CliError::usage(format!("no signals can be had: {error}")));
        Ok(ShutdownSignals {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
        })
    }

    /// Waits for one of them.
    pub(crate) async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
