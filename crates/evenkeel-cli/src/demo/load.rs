//! The client of the demo: calls at a steady pace, whatever becomes of them, and what became of them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use evenkeel::Channel;
use http::uri::PathAndQuery;
use tokio::task::AbortHandle;
use tokio::time::interval;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::backend::{BACKEND_METADATA, METHOD};
use super::fleet::BACKENDS;

/// Calls per second.
pub(super) const RATE: u32 = 600;
/// So many calls begin together.
const CALLS_PER_TICK: u32 = 3;

/// A call that is over.
#[derive(Clone, Debug)]
pub(super) struct FinishedCall {
    pub(super) began: Instant,
    pub(super) took: Duration,
    /// Which backend answered, if one did.
    pub(super) backend: Option<usize>,
    /// Why it failed, if it did.
    pub(super) failed: Option<Code>,
}

/// Calls that go on until this is dropped.
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

    /// The calls that ended since the last time.
    pub(super) fn take(&self) -> Vec<FinishedCall> {
        std::mem::take(&mut *self.ended.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for LoadGenerator {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn generate_calls(channel: Channel, ended: Arc<Mutex<Vec<FinishedCall>>>) {
    // Ticks that were missed are made up for: the load is the same on a slow machine.
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
                ended.lock().unwrap_or_else(PoisonError::into_inner).push(call);
            });
        }
    }
}

/// What a generated client does, without one: the demo's messages are empty.
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
