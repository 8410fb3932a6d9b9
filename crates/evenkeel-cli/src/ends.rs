//! What ends a command that goes on by itself.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::ui::Failure;

/// Ctrl-C, or whoever ends the process otherwise. Nothing is missed from the moment that this is made.
pub(crate) struct Ends {
    interrupt: Signal,
    terminate: Signal,
}

impl Ends {
    pub(crate) fn new() -> Result<Ends, Failure> {
        let on =
            |kind| signal(kind).map_err(|error| Failure::usage(format!("no signals can be had: {error}")));
        Ok(Ends { interrupt: on(SignalKind::interrupt())?, terminate: on(SignalKind::terminate())? })
    }

    /// Waits for one of them.
    pub(crate) async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
