//! `evenkeel serve`.

use crate::ui::{Exit, Failure, Terminal};

/// Serve a mesh file to xDS clients.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) async fn run(_args: Args, _terminal: &Terminal) -> Result<Exit, Failure> {
    Ok(Exit::Fine)
}
