//! The processes that suites start beside the one that measures. Nobody else starts them.

use crate::{Error, counts};

#[derive(clap::Subcommand)]
pub(crate) enum Worker {
    #[command(hide = true)]
    CountsWorker(counts::Worker),
}

impl Worker {
    pub(crate) fn run(&self) -> Result<(), Error> {
        match self {
            Worker::CountsWorker(worker) => counts::work(worker),
        }
    }
}
