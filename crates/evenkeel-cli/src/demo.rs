//! `evenkeel demo`.

use crate::ui::{Exit, Failure, Terminal};

/// Show it: five backends, a control plane, a client and a page, on this machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) async fn run(_args: Args, _terminal: &Terminal) -> Result<Exit, Failure> {
    Ok(Exit::Fine)
}
