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

use super::backend::{BACKEND, METHOD};
use super::fleet::BACKENDS;

/// Calls per second.
pub(super) const RATE: u32 = 600;
/// So many calls begin together.
const TOGETHER: u32 = 3;

/// A call that is over.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    pub(super) began: Instant,
    pub(super) took: Duration,
    /// Which backend answered, if one did.
    pub(super) backend: Option<usize>,
    /// Why it failed, if it did.
    pub(super) failed: Option<Code>,
}

/// Calls that go on until this is dropped.
pub(super) struct Load {
    ended: Arc<Mutex<Vec<Ended>>>,
    calling: AbortHandle,
}

impl Load {
    pub(super) fn start(channel: Channel) -> Load {
        let ended = Arc::<Mutex<Vec<Ended>>>::default();
        let calling = tokio::spawn(call_steadily(channel, ended.clone())).abort_handle();
        Load { ended, calling }
    }

    /// The calls that ended since the last time.
    pub(super) fn take(&self) -> Vec<Ended> {
        std::mem::take(&mut *self.ended.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.calling.abort();
    }
}

async fn call_steadily(channel: Channel, ended: Arc<Mutex<Vec<Ended>>>) {
    // Ticks that were missed are made up for: the load is the same on a slow machine.
    let mut ticks = interval(Duration::from_secs(1) * TOGETHER / RATE);
    loop {
        ticks.tick().await;
        for _ in 0..TOGETHER {
            let (channel, ended) = (channel.clone(), ended.clone());
            tokio::spawn(async move {
                let began = Instant::now();
                let answer = call(channel).await;
                let metadata = match &answer {
                    Ok(metadata) => metadata,
                    Err(status) => status.metadata(),
                };
                let call = Ended {
                    began,
                    took: began.elapsed(),
                    backend: backend(metadata),
                    failed: answer.as_ref().err().map(Status::code),
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
    let name = metadata.get(BACKEND)?.to_str().ok()?;
    BACKENDS.iter().position(|(known, _)| *known == name)
}
