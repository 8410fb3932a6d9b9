//! `evenkeel validate`.

use crate::ui::{Exit, Failure, Terminal};

/// Say what clients would reject of a mesh, a bootstrap or a running control plane, and why.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) async fn run(_args: Args, _terminal: &Terminal) -> Result<Exit, Failure> {
    Ok(Exit::Fine)
}
