//! `evenkeel inspect`.

use crate::ui::{Exit, Failure, Terminal};

/// Show what a running xDS client knows, and how it balances.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) async fn run(_args: Args, _terminal: &Terminal) -> Result<Exit, Failure> {
    Ok(Exit::Fine)
}
