//! Arguments of a client process. Peers in other languages accept the same.

use std::num::{NonZeroU32, NonZeroUsize};
use std::time::Duration;

use bytes::Bytes;

use crate::Error;
use crate::client::drive::{Load, Span};
use crate::client::echo::Ask;

/// Target, duration and concurrency of the calls of a client process.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ClientArgs {
    /// Target of the calls: an `xds:///` target, or a comma-separated list of addresses.
    #[arg(long)]
    pub(crate) target: String,
    /// Size of the payload in bytes, in each direction.
    #[arg(long)]
    size: usize,
    /// Number of messages of a server stream, or 0 for unary calls.
    #[arg(long)]
    messages: u32,
    /// Number of concurrent calls.
    #[arg(long)]
    concurrency: NonZeroUsize,
    /// Duration of the warm-up, in milliseconds.
    #[arg(long)]
    warm_up: u64,
    /// Duration of the measurement, in milliseconds.
    #[arg(long, required_unless_present = "calls")]
    span: Option<u64>,
    /// Number of calls to measure, instead of a duration.
    #[arg(long, conflicts_with = "span")]
    calls: Option<u64>,
    /// Number of threads for calls. With 1, everything of the client runs on one thread.
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
