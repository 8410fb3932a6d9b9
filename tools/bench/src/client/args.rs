//! Arguments of a client process. Peers in other languages accept the same.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use bytes::Bytes;

use crate::Error;
use crate::client::drive::{Load, Span};
use crate::client::echo::Ask;

/// What a client process calls, and for how long.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ClientArgs {
    /// What is called: an `xds:///` target, or addresses with commas between them.
    #[arg(long)]
    pub(crate) target: String,
    /// Bytes of the payload, each way.
    #[arg(long)]
    size: usize,
    /// Server streaming of so many messages; 0 for unary calls.
    #[arg(long)]
    messages: u32,
    /// So many calls at a time.
    #[arg(long)]
    concurrency: NonZeroUsize,
    /// Calls before any are measured, in milliseconds.
    #[arg(long)]
    warm_up: u64,
    /// How long is measured, in milliseconds.
    #[arg(long, required_unless_present = "calls")]
    span: Option<u64>,
    /// Measure so many calls instead.
    #[arg(long, conflicts_with = "span")]
    calls: Option<u64>,
    /// Threads that calls are made on; with one, everything of the client runs on it.
    #[arg(long)]
    threads: NonZeroUsize,
}

impl ClientArgs {
    pub(crate) fn ask(&self) -> Ask {
        Ask { payload: Bytes::from(vec![b'k'; self.size]), messages: NonZeroU32::new(self.messages) }
    }

    pub(crate) fn load(&self) -> Load {
        let time = Span::Time(Duration::from_millis(self.span.unwrap_or(0)));
        Load {
            concurrency: self.concurrency.get(),
            warm_up: Duration::from_millis(self.warm_up),
            span: self.calls.map_or(time, Span::Calls),
        }
    }

    /// Returns the runtime of the Rust clients.
    pub(crate) fn runtime(&self) -> Result<tokio::runtime::Runtime, Error> {
        let mut builder = match self.threads.get() {
            1 => tokio::runtime::Builder::new_current_thread(),
            _ => tokio::runtime::Builder::new_multi_thread(),
        };
        if self.threads.get() > 1 {
            builder.worker_threads(self.threads.get());
        }
        Ok(builder.enable_all().build()?)
    }
}
