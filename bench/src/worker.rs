//! The processes that suites start beside the one that measures. Nobody else starts them.

use crate::{Error, config, counts, memory};

#[derive(clap::Subcommand)]
pub(crate) enum Worker {
    #[command(hide = true)]
    ConfigWorker(config::Worker),
    #[command(hide = true)]
    CountsWorker(counts::Worker),
    #[command(hide = true)]
    MemoryWorker(memory::Worker),
}

impl Worker {
    pub(crate) fn run(&self) -> Result<(), Error> {
        match self {
            Worker::ConfigWorker(worker) => config::work(worker),
            Worker::CountsWorker(worker) => counts::work(worker),
            Worker::MemoryWorker(worker) => memory::work(worker),
        }
    }
}
