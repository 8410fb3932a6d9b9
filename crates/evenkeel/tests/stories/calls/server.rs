//! Scripted server. [`Backend`](testkit::net::Backend) echoes; this server can also fail mid-stream, send
//! first, push back and compress.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use testkit::net::echo::echo_server::{Echo, EchoServer};
use testkit::net::echo::{EchoRequest, EchoResponse};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::codec::CompressionEncoding;
use tonic::metadata::{KeyAndValueRef, MetadataMap};
use tonic::{Request, Response, Status, Streaming};

/// Scripted behaviour for one call.
#[derive(Clone)]
pub(super) enum Step {
    /// Echoes all payloads, and the headers with the prefix `x-`.
    Echo,
    /// Reads `after` messages, then fails with a trailers-only response.
    Fail { after: usize, status: Status },
    /// Sends headers, then fails.
    HeadersThenFail(Status),
    /// Sends this number of messages without reading the request.
    Speak(usize),
}

/// Scripted server on the test's runtime.
pub(super) struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<MetadataMap>>>,
    task: AbortHandle,
}

impl Server {
    /// Serves on a free port. `script` selects the behaviour by call number, from 0.
    pub(super) async fn start(script: impl Fn(usize) -> Step + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::default();
        let service = service(Arc::clone(&seen), script);
        let served = tonic::transport::Server::builder()
            .serve_with_incoming(service, TcpListenerStream::new(listener));
        let task = tokio::spawn(served).abort_handle();
        Server { address, seen, task }
    }

    pub(super) fn target(&self) -> String {
        format!("ipv4:{}", self.address)
    }

    /// Returns the headers of all calls so far.
    pub(super) fn seen(&self) -> Vec<MetadataMap> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns the service, for use in another server.
pub(super) fn service(
    seen: Arc<Mutex<Vec<MetadataMap>>>,
    script: impl Fn(usize) -> Step + Send + Sync + 'static,
) -> EchoServer<impl Echo> {
    EchoServer::new(Scripted { seen, script })
        .accept_compressed(CompressionEncoding::Gzip)
        .send_compressed(CompressionEncoding::Gzip)
}

struct Scripted<F> {
    seen: Arc<Mutex<Vec<MetadataMap>>>,
    script: F,
}

type EchoStream = Pin<Box<dyn Stream<Item = Result<EchoResponse, Status>> + Send>>;

impl<F: Fn(usize) -> Step> Scripted<F> {
    fn step<T>(&self, request: &Request<T>) -> Step {
        let mut seen = self.seen.lock().unwrap();
        seen.push(request.metadata().clone());
        (self.script)(seen.len() - 1)
    }
}

#[tonic::async_trait]
impl<F: Fn(usize) -> Step + Send + Sync + 'static> Echo for Scripted<F> {
    type ServerStreamStream = EchoStream;
    type BidiStream = EchoStream;

    async fn unary(&self, request: Request<EchoRequest>) -> Result<Response<EchoResponse>, Status> {
        match self.step(&request) {
            Step::Fail { status, .. } | Step::HeadersThenFail(status) => Err(status),
            Step::Echo | Step::Speak(_) => {
                let metadata = own(request.metadata());
                let mut response = Response::new(answer(request.into_inner()));
                *response.metadata_mut() = metadata;
                Ok(response)
            }
        }
    }

    async fn server_stream(&self, request: Request<EchoRequest>) -> Result<Response<EchoStream>, Status> {
        answers(self.step(&request), tokio_stream::once(Ok(request.into_inner())))
    }

    async fn client_stream(
        &self,
        request: Request<Streaming<EchoRequest>>,
    ) -> Result<Response<EchoResponse>, Status> {
        let step = self.step(&request);
        let mut requests = request.into_inner();
        if let Step::Fail { after, status } = step {
            return Err(fail(requests, after, status).await);
        }
        let mut payload = Vec::new();
        while let Some(request) = requests.message().await? {
            payload.extend(request.payload);
        }
        Ok(Response::new(EchoResponse { payload, ..EchoResponse::default() }))
    }

    async fn bidi(&self, request: Request<Streaming<EchoRequest>>) -> Result<Response<EchoStream>, Status> {
        match self.step(&request) {
            Step::Fail { after, status } => Err(fail(request.into_inner(), after, status).await),
            step => answers(step, request.into_inner()),
        }
    }
}

async fn fail(mut requests: Streaming<EchoRequest>, after: usize, status: Status) -> Status {
    for _ in 0..after {
        let _ = requests.message().await;
    }
    status
}

fn answers(
    step: Step,
    requests: impl Stream<Item = Result<EchoRequest, Status>> + Send + 'static,
) -> Result<Response<EchoStream>, Status> {
    Ok(Response::new(match step {
        Step::Echo => Box::pin(requests.map(|request| request.map(answer))),
        Step::Fail { status, .. } => return Err(status),
        Step::HeadersThenFail(status) => Box::pin(tokio_stream::once(Err(status))),
        Step::Speak(count) => {
            let spoken = (0..count).map(|i| Ok(answer(super::request(i.to_string()))));
            Box::pin(tokio_stream::iter(spoken.collect::<Vec<_>>()))
        }
    }))
}

fn answer(request: EchoRequest) -> EchoResponse {
    EchoResponse { payload: request.payload, ..EchoResponse::default() }
}

/// Returns the test's own headers.
fn own(metadata: &MetadataMap) -> MetadataMap {
    let mut own = MetadataMap::new();
    for entry in metadata.iter() {
        match entry {
            KeyAndValueRef::Ascii(key, value) if key.as_str().starts_with("x-") => {
                own.append(key.clone(), value.clone());
            }
            KeyAndValueRef::Binary(key, value) if key.as_str().starts_with("x-") => {
                own.append_bin(key.clone(), value.clone());
            }
            _ => {}
        }
    }
    own
}
