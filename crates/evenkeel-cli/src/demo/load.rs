//! Load generator of the demo: an open-loop client that records the outcome of each call.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use evenkeel::Channel;
use http::uri::PathAndQuery;
use tokio::task::AbortHandle;
use tokio::time::interval;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::backend::lock;
use super::backend::{BACKEND_METADATA, METHOD};
use super::fleet::BACKENDS;

/// Number of calls per second.
pub(super) const RATE: u32 = 600;
/// Number of calls started per timer tick.
const CALLS_PER_TICK: u32 = 3;

/// Outcome of a finished call.
#[derive(Clone, Debug)]
pub(super) struct FinishedCall {
    pub(super) began: Instant,
    pub(super) took: Duration,
    /// Index of the backend that served the call, if one did.
    pub(super) backend: Option<usize>,
    /// Status code of a failed call.
    pub(super) failed: Option<Code>,
}

/// Open-loop load generator. It stops when dropped.
pub(super) struct LoadGenerator {
    ended: Arc<Mutex<Vec<FinishedCall>>>,
    task: AbortHandle,
}

impl LoadGenerator {
    pub(super) fn start(channel: Channel) -> LoadGenerator {
        let ended = Arc::<Mutex<Vec<FinishedCall>>>::default();
        let task = tokio::spawn(generate_calls(channel, ended.clone())).abort_handle();
        LoadGenerator { ended, task }
    }

    /// Returns the calls that finished since the previous `take`.
    pub(super) fn take(&self) -> Vec<FinishedCall> {
        std::mem::take(&mut *lock(&self.ended))
    }
}

impl Drop for LoadGenerator {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn generate_calls(channel: Channel, ended: Arc<Mutex<Vec<FinishedCall>>>) {
    // Missed ticks fire in a burst (tokio's default), so the average rate holds on a slow machine.
    let mut ticks = interval(Duration::from_secs(1) * CALLS_PER_TICK / RATE);
    loop {
        ticks.tick().await;
        for _ in 0..CALLS_PER_TICK {
            let (channel, ended) = (channel.clone(), ended.clone());
            tokio::spawn(async move {
                let began = Instant::now();
                let result = call(channel).await;
                let metadata = match &result {
                    Ok(metadata) => metadata,
                    Err(status) => status.metadata(),
                };
                let call = FinishedCall {
                    began,
                    took: began.elapsed(),
                    backend: backend(metadata),
                    failed: result.as_ref().err().map(Status::code),
                };
                lock(&ended).push(call);
            });
        }
    }
}

/// Makes a unary call without generated code. The demo's messages are empty.
async fn call(channel: Channel) -> Result<MetadataMap, Status> {
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await?;
    let method = PathAndQuery::from_static(METHOD);
    let response = client.unary(Request::new(()), method, ProstCodec::<(), ()>::default()).await?;
    Ok(response.into_parts().0)
}

fn backend(metadata: &MetadataMap) -> Option<usize> {
    let name = metadata.get(BACKEND_METADATA)?.to_str().ok()?;
    BACKENDS.iter().position(|(known, _)| *known == name)
}
