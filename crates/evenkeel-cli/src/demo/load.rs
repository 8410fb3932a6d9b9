//! Load generator of the demo: an open-loop client that records the outcome of each call.

use std::time::{Duration, Instant};

use evenkeel::Channel;
use http::uri::PathAndQuery;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;
use tokio::time::interval;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::backend::{BACKEND_METADATA, METHOD};
use super::fleet::BACKENDS;

/// Number of calls per second.
pub(super) const RATE: u32 = 600;
/// Deadline of a call. Backends reject a call that would take longer, so it only ends calls that hang.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
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
    finished: UnboundedReceiver<FinishedCall>,
    task: AbortHandle,
}

impl LoadGenerator {
    pub(super) fn start(channel: Channel) -> LoadGenerator {
        let (sender, finished) = unbounded_channel();
        let task = tokio::spawn(generate_calls(channel, sender)).abort_handle();
        LoadGenerator { finished, task }
    }

    /// Discards the outcomes of all later calls. The load continues.
    pub(super) fn stop_recording(&mut self) {
        self.finished.close();
    }

    /// Stops the load, waits for calls in flight, and returns all calls.
    pub(super) async fn finish(&mut self) -> Vec<FinishedCall> {
        self.task.abort();
        let mut calls = Vec::new();
        // Ends when the last call in flight has dropped its sender.
        while let Some(call) = self.finished.recv().await {
            calls.push(call);
        }
        calls
    }
}

impl Drop for LoadGenerator {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn generate_calls(channel: Channel, finished: UnboundedSender<FinishedCall>) {
    // Missed ticks fire in a burst (tokio's default), so the average rate holds on a slow machine.
    let mut ticks = interval(Duration::from_secs(1) * CALLS_PER_TICK / RATE);
    loop {
        ticks.tick().await;
        for _ in 0..CALLS_PER_TICK {
            let (channel, finished) = (channel.clone(), finished.clone());
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
                // Fails if the outcomes are not recorded.
                let _ = finished.send(call);
            });
        }
    }
}

/// Makes a unary call without generated code. The demo's messages are empty.
async fn call(channel: Channel) -> Result<MetadataMap, Status> {
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await?;
    let method = PathAndQuery::from_static(METHOD);
    let mut request = Request::new(());
    request.set_timeout(CALL_TIMEOUT);
    let response = client.unary(request, method, ProstCodec::<(), ()>::default()).await?;
    Ok(response.into_parts().0)
}

fn backend(metadata: &MetadataMap) -> Option<usize> {
    let name = metadata.get(BACKEND_METADATA)?.to_str().ok()?;
    BACKENDS.iter().position(|(known, _)| *known == name)
}
