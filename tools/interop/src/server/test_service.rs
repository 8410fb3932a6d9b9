//! `grpc.testing.TestService`: the calls of the cases. Every response has the server's name in the header
//! `hostname`. A call that fails before a response has no such header, as in other servers.

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Code, Request, Response, Status, Streaming};

use super::behavior;
use super::load::{Load, report_call};
use crate::proto::testing::test_service_server::TestService;
use crate::proto::testing::{
    EchoStatus, Empty, Payload, PayloadType, ResponseParameters, SimpleRequest, SimpleResponse,
    StreamingInputCallRequest, StreamingInputCallResponse, StreamingOutputCallRequest,
    StreamingOutputCallResponse,
};

/// Maximum payload size on request.
const MAX_PAYLOAD: i32 = 64 << 20;

/// State of the test service.
pub(super) struct TestServiceState {
    pub(super) server_id: String,
    pub(super) host: Host,
    pub(super) load: Load,
}

/// Name of the server, as text and as a header value.
#[derive(Clone, Debug)]
pub(super) struct Host {
    name: String,
    header: MetadataValue<Ascii>,
}

impl Host {
    /// Returns `None` if the name is not a valid header value.
    pub(super) fn new(name: String) -> Option<Host> {
        let header = name.parse().ok().filter(|_| !name.is_empty())?;
        Some(Host { name, header })
    }
}

type Answers = Pin<Box<dyn Stream<Item = Result<StreamingOutputCallResponse, Status>> + Send>>;
type Sender = mpsc::Sender<Result<StreamingOutputCallResponse, Status>>;

impl TestServiceState {
    fn answer<T>(&self, message: T) -> Response<T> {
        let mut response = Response::new(message);
        response.metadata_mut().insert("hostname", self.host.header.clone());
        response
    }
}

#[tonic::async_trait]
impl TestService for TestServiceState {
    async fn empty_call(&self, request: Request<Empty>) -> Result<Response<Empty>, Status> {
        behavior::obey(request.metadata(), &self.host.name).await?;
        Ok(self.answer(Empty {}))
    }

    async fn unary_call(&self, request: Request<SimpleRequest>) -> Result<Response<SimpleResponse>, Status> {
        behavior::obey(request.metadata(), &self.host.name).await?;
        let request = request.into_inner();
        echo(request.response_status)?;
        let payload = payload(request.response_type, request.response_size)?;
        if let Some(report) = &request.orca_per_query_report {
            report_call(report)?;
        }
        Ok(self.answer(SimpleResponse {
            payload: Some(payload).filter(|payload| !payload.body.is_empty()),
            server_id: self.server_id.clone(),
            hostname: self.host.name.clone(),
        }))
    }

    type StreamingOutputCallStream = Answers;

    async fn streaming_output_call(
        &self,
        request: Request<StreamingOutputCallRequest>,
    ) -> Result<Response<Answers>, Status> {
        let peer = peer(request.remote_addr());
        let request = request.into_inner();
        echo(request.response_status.clone())?;
        Ok(self.answer(streamed(async move |to| send(&request, &peer, &to).await)))
    }

    async fn streaming_input_call(
        &self,
        request: Request<Streaming<StreamingInputCallRequest>>,
    ) -> Result<Response<StreamingInputCallResponse>, Status> {
        let mut requests = request.into_inner();
        let mut sum = 0_usize;
        while let Some(request) = requests.message().await? {
            sum += request.payload.map_or(0, |payload| payload.body.len());
        }
        let aggregated_payload_size = i32::try_from(sum).unwrap_or(i32::MAX);
        Ok(self.answer(StreamingInputCallResponse { aggregated_payload_size }))
    }

    type FullDuplexCallStream = Answers;

    async fn full_duplex_call(
        &self,
        request: Request<Streaming<StreamingOutputCallRequest>>,
    ) -> Result<Response<Answers>, Status> {
        let peer = peer(request.remote_addr());
        let (load, requests) = (self.load.clone(), request.into_inner());
        Ok(self.answer(streamed(async move |to| converse(requests, &load, &peer, &to).await)))
    }
}

/// Responds to each request of a stream. A request that sets the out-of-band report keeps it until the stream
/// ends. The report is set before the response, which confirms it.
async fn converse(
    mut requests: Streaming<StreamingOutputCallRequest>,
    load: &Load,
    peer: &str,
    to: &Sender,
) -> Result<(), Status> {
    let mut turn = None;
    while let Some(request) = requests.message().await? {
        echo(request.response_status.clone())?;
        if let Some(report) = &request.orca_oob_report {
            if turn.is_none() {
                turn = Some(load.turn().await);
            }
            if let Some(turn) = &turn {
                turn.report(report)?;
            }
        }
        send(&request, peer, to).await?;
    }
    Ok(())
}

/// Sends the requested responses, each after its interval.
async fn send(request: &StreamingOutputCallRequest, peer: &str, to: &Sender) -> Result<(), Status> {
    for ResponseParameters { size, interval_us, fill_peer_socket_address } in &request.response_parameters {
        // A negative interval counts as zero.
        sleep(Duration::from_micros(u64::try_from(*interval_us).unwrap_or_default())).await;
        let fill = fill_peer_socket_address.as_ref().is_some_and(|fill| fill.value);
        let answer = StreamingOutputCallResponse {
            payload: Some(payload(request.response_type, *size)?),
            peer_socket_address: if fill { peer.to_owned() } else { String::new() },
        };
        // A send error means that the caller has gone. The task is then dropped as a whole.
        let _ = to.send(Ok(answer)).await;
    }
    Ok(())
}

/// Returns the responses of some work. The work is dropped if the caller cancels.
fn streamed<W, F>(work: W) -> Answers
where
    W: FnOnce(Sender) -> F + Send + 'static,
    F: Future<Output = Result<(), Status>> + Send + 'static,
{
    let (to, answers) = mpsc::channel(1);
    tokio::spawn(async move {
        let end = tokio::select! {
            end = work(to.clone()) => end,
            () = to.closed() => Ok(()),
        };
        if let Err(status) = end {
            let _ = to.send(Err(status)).await;
        }
    });
    Box::pin(ReceiverStream::new(answers))
}

/// Fails with the status of the request, if it has one.
fn echo(status: Option<EchoStatus>) -> Result<(), Status> {
    match status {
        Some(EchoStatus { code, message }) if code != 0 => Err(Status::new(Code::from(code), message)),
        _ => Ok(()),
    }
}

fn payload(kind: i32, size: i32) -> Result<Payload, Status> {
    if PayloadType::try_from(kind).is_err() {
        return Err(Status::invalid_argument(format!(
            "response_type: expected 0 (COMPRESSABLE), found {kind}"
        )));
    }
    let length = usize::try_from(size).ok().filter(|_| size <= MAX_PAYLOAD);
    let problem = || Status::invalid_argument(format!("size: expected 0 to {MAX_PAYLOAD}, found {size}"));
    Ok(Payload { r#type: kind, body: vec![0; length.ok_or_else(problem)?] })
}

/// Returns the caller's address as text.
fn peer(address: Option<SocketAddr>) -> String {
    address.map_or_else(String::new, |address| address.to_string())
}
