//! `evenkeel explain`.

use crate::ui::{Exit, Failure, Terminal};

/// Say where a call would go, and why.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) async fn run(_args: Args, _terminal: &Terminal) -> Result<Exit, Failure> {
    Ok(Exit::Fine)
}
