//! Worker processes that the suites start.

use crate::{Error, config, counts, memory, soak};

#[derive(clap::Subcommand)]
pub(crate) enum Worker {
    #[command(name = "config-worker", hide = true)]
    Config(config::Worker),
    #[command(name = "counts-worker", hide = true)]
    Counts(counts::Worker),
    #[command(name = "memory-worker", hide = true)]
    Memory(memory::Worker),
    #[command(name = "soak-worker", hide = true)]
    Soak(soak::Worker),
}

impl Worker {
    pub(crate) fn run(&self) -> Result<(), Error> {
        match self {
            Worker::Config(worker) => config::work(worker),
            Worker::Counts(worker) => counts::work(worker),
            Worker::Memory(worker) => memory::work(worker),
            Worker::Soak(worker) => soak::work(worker),
        }
    }
}
