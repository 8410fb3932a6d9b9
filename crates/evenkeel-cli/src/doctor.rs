//! `evenkeel doctor`.

use crate::ui::{Exit, Failure, Terminal};

/// Walk from the bootstrap to a connected endpoint, and stop at what is wrong.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) async fn run(_args: Args, _terminal: &Terminal) -> Result<Exit, Failure> {
    Ok(Exit::Fine)
}
