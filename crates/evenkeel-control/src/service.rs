//! gRPC services over HTTP: dispatch of methods, and the tasks that run streams.
//!
//! Response bodies are shared bytes: a client that reads slowly holds references, not copies, and delays no other
//! client. Of each type, at most one response is pending. A response is made when the transport has taken the previous
//! ones, so a client that ACKs without reading cannot fill a queue. Changes in the meantime are sent once, in their
//! latest form.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
use evenkeel_proto::envoy::config::listener::v3::Listener;
use evenkeel_proto::envoy::config::route::v3::RouteConfiguration;
use evenkeel_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use evenkeel_proto::envoy::service::load_stats::v3::{LoadStatsRequest, LoadStatsResponse};
use evenkeel_proto::prost::{Message, Name};
use http_body::Frame;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tonic::body::Body;
use tonic::codec::{Codec, Streaming};
use tonic::server::NamedService;
use tonic::transport::server::TcpConnectInfo;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

use crate::limits::{LimitExceeded, MAX_NODE_TEXT_BYTES, check_length};
use crate::records::ClientRequest;
use crate::snapshot::ProtocolVariant;
use crate::snapshot_cache::{ClientStream, SnapshotCache, StreamSlot};
use crate::stream::WatchRequest;

/// gRPC services of a [`SnapshotCache`], for a tonic server. Other methods return UNIMPLEMENTED.
#[derive(Clone)]
pub struct DiscoveryService {
    cache: SnapshotCache,
}

/// Method of a call.
enum ServiceMethod {
    /// Discovery: of the given type, or ADS, where each request has its type.
    Discovery(ProtocolVariant, Option<String>),
    LoadStats,
}

impl ServiceMethod {
    fn of(path: &str) -> Option<ServiceMethod> {
        use ProtocolVariant::{Delta, StateOfTheWorld};
        Some(match path {
            "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources" => {
                ServiceMethod::Discovery(StateOfTheWorld, None)
            }
            "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources" => {
                ServiceMethod::Discovery(Delta, None)
            }
            "/envoy.service.listener.v3.ListenerDiscoveryService/StreamListeners" => {
                ServiceMethod::Discovery(StateOfTheWorld, Some(Listener::type_url()))
            }
            "/envoy.service.listener.v3.ListenerDiscoveryService/DeltaListeners" => {
                ServiceMethod::Discovery(Delta, Some(Listener::type_url()))
            }
            "/envoy.service.route.v3.RouteDiscoveryService/StreamRoutes" => {
                ServiceMethod::Discovery(StateOfTheWorld, Some(RouteConfiguration::type_url()))
            }
            "/envoy.service.route.v3.RouteDiscoveryService/DeltaRoutes" => {
                ServiceMethod::Discovery(Delta, Some(RouteConfiguration::type_url()))
            }
            "/envoy.service.cluster.v3.ClusterDiscoveryService/StreamClusters" => {
                ServiceMethod::Discovery(StateOfTheWorld, Some(Cluster::type_url()))
            }
            "/envoy.service.cluster.v3.ClusterDiscoveryService/DeltaClusters" => {
                ServiceMethod::Discovery(Delta, Some(Cluster::type_url()))
            }
            "/envoy.service.endpoint.v3.EndpointDiscoveryService/StreamEndpoints" => {
                ServiceMethod::Discovery(StateOfTheWorld, Some(ClusterLoadAssignment::type_url()))
            }
            "/envoy.service.endpoint.v3.EndpointDiscoveryService/DeltaEndpoints" => {
                ServiceMethod::Discovery(Delta, Some(ClusterLoadAssignment::type_url()))
            }
            "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats" => ServiceMethod::LoadStats,
            _ => return None,
        })
    }
}

impl DiscoveryService {
    pub(crate) fn new(cache: SnapshotCache) -> DiscoveryService {
        DiscoveryService { cache }
    }

    fn handle_request(&self, request: http::Request<Body>) -> Result<http::Response<Body>, Status> {
        let path = request.uri().path();
        let Some(call) = ServiceMethod::of(path) else {
            return Err(Status::unimplemented(format!("unknown method {path:?}")));
        };
        let peer = request.extensions().get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
        let limits = self.cache.client_limits();
        let Some(slot) = self.cache.open_slot() else {
            let LimitExceeded(text) =
                LimitExceeded::new("this control plane", limits.streams, "open streams");
            return Err(Status::resource_exhausted(text));
        };
        let (sender, body) = responses(slot);
        let max_bytes = limits.request_bytes;
        match call {
            ServiceMethod::Discovery(ProtocolVariant::StateOfTheWorld, fixed_type) => {
                let client_stream = self.open(ProtocolVariant::StateOfTheWorld, peer)?;
                let requests = requests::<DiscoveryRequest>(request, max_bytes);
                tokio::spawn(discovery(self.cache.clone(), client_stream, fixed_type, requests, sender));
            }
            ServiceMethod::Discovery(ProtocolVariant::Delta, fixed_type) => {
                let client_stream = self.open(ProtocolVariant::Delta, peer)?;
                let requests = requests::<DeltaDiscoveryRequest>(request, max_bytes);
                tokio::spawn(discovery(self.cache.clone(), client_stream, fixed_type, requests, sender));
            }
            ServiceMethod::LoadStats => {
                if !self.cache.open_lrs() {
                    return Err(Status::unimplemented("this control plane does not accept load reports"));
                }
                tokio::spawn(load_stats(self.cache.clone(), requests(request, max_bytes), sender));
            }
        }
        let mut response = http::Response::new(Body::new(body));
        response
            .headers_mut()
            .insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/grpc"));
        Ok(response)
    }

    fn open(&self, variant: ProtocolVariant, peer: Option<SocketAddr>) -> Result<ClientStream, Status> {
        let client_stream = self.cache.open(variant, peer);
        client_stream.ok_or_else(|| Status::unavailable("this control plane accepts only one stream"))
    }
}

impl Service<http::Request<Body>> for DiscoveryService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        ready(Ok(self.handle_request(request).unwrap_or_else(Status::into_http)))
    }
}

impl NamedService for DiscoveryService {
    /// Name under which a tonic router registers the service. The service also handles the other services' methods.
    const NAME: &'static str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
}

fn requests<M: Message + Default + 'static>(request: http::Request<Body>, max_bytes: usize) -> Streaming<M> {
    let decoder = ProstCodec::<M, M>::default().decoder();
    Streaming::new_request(decoder, request.into_body(), None, Some(max_bytes))
}

/// Returns the status of a stream after a request could not be read.
fn request_error(status: Status, cache: &SnapshotCache) -> Status {
    if status.code() == Code::OutOfRange {
        // The decoder uses this code only for a request beyond its limit.
        let LimitExceeded(text) =
            LimitExceeded::new("a request", cache.client_limits().request_bytes, "bytes");
        return Status::resource_exhausted(text);
    }
    status
}

/// Runs a discovery stream until the client or the control plane ends it.
async fn discovery<M: Clone + Into<ClientRequest> + Into<WatchRequest>>(
    cache: SnapshotCache,
    client_stream: ClientStream,
    fixed_type: Option<String>,
    mut requests: Streaming<M>,
    sender: ResponseSender,
) {
    let mut state_changes = cache.state_changes();
    loop {
        let state = state_changes.borrow_and_update().clone();
        if state.closed_up_to >= client_stream.number {
            return;
        }
        // Read once, so that sending and waiting agree.
        let has_capacity = sender.has_capacity();
        if has_capacity && !state.fault_modes.silent {
            // Built when the body can take them: a slow client gets the latest snapshot, not a queue.
            sender.send(client_stream.responses(&state.snapshot));
        }
        tokio::select! {
            changed = state_changes.changed() => if changed.is_err() { return },
            () = sender.closed() => return,
            () = sender.wait_for_capacity(), if !has_capacity => {}
            // `message` keeps its buffer in the stream, so another branch loses no bytes.
            request = requests.message() => {
                let request = match request {
                    Ok(Some(request)) => request,
                    Ok(None) => return,
                    Err(status) => return sender.finish(request_error(status, &cache)),
                };
                cache.record_request(&request);
                let mut request: WatchRequest = request.into();
                if let Some(fixed_type) = &fixed_type {
                    request.type_url.clone_from(fixed_type);
                }
                if let Err(LimitExceeded(text)) = client_stream.handle(request) {
                    return sender.finish(Status::resource_exhausted(text));
                }
            }
        }
    }
}

/// Runs a load reporting stream: requests reports on all clusters, again when the interval changes, and stores them.
async fn load_stats(cache: SnapshotCache, mut requests: Streaming<LoadStatsRequest>, sender: ResponseSender) {
    let mut state_changes = cache.state_changes();
    let mut node_id = None;
    let mut request = None;
    loop {
        let interval = state_changes.borrow_and_update().lrs_interval;
        let has_capacity = sender.has_capacity();
        if has_capacity && node_id.is_some() && request != Some(interval) {
            request = Some(interval);
            let response = LoadStatsResponse {
                send_all_clusters: true,
                load_reporting_interval: interval.try_into().ok(),
                ..LoadStatsResponse::default()
            };
            sender.send(vec![vec![frame(&response)]]);
        }
        tokio::select! {
            changed = state_changes.changed() => if changed.is_err() { return },
            () = sender.closed() => return,
            () = sender.wait_for_capacity(), if !has_capacity => {}
            request = requests.message() => {
                let request = match request {
                    Ok(Some(request)) => request,
                    Ok(None) => return,
                    Err(status) => return sender.finish(request_error(status, &cache)),
                };
                cache.record_request(&request);
                let node_id = node_id.get_or_insert_with(|| request.node.unwrap_or_default().id);
                let reported = check_length("a node id", node_id.len(), MAX_NODE_TEXT_BYTES)
                    .and_then(|()| cache.report_load(node_id, request.cluster_stats));
                if let Err(LimitExceeded(text)) = reported {
                    return sender.finish(Status::resource_exhausted(text));
                }
            }
        }
    }
}

fn frame(message: &impl Message) -> Bytes {
    let mut frame = BytesMut::with_capacity(5 + message.encoded_len());
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.encoded_len()).unwrap_or(u32::MAX));
    frame.put_slice(&message.encode_to_vec());
    frame.freeze()
}

/// Responses, each in the pieces of its gRPC frame.
type ResponseBatch = Vec<Vec<Bytes>>;

/// Sending end of a stream's response body.
struct ResponseSender {
    /// Capacity for one batch, while the transport sends the previous one.
    batches: Sender<ResponseBatch>,
    status: Arc<OnceLock<Status>>,
}

impl ResponseSender {
    /// Returns true if a batch can be sent without waiting.
    fn has_capacity(&self) -> bool {
        self.batches.capacity() > 0
    }

    /// Waits until the transport has taken a batch.
    async fn wait_for_capacity(&self) {
        // A dropped body is detected by `closed`.
        let _ = self.batches.reserve().await;
    }

    async fn closed(&self) {
        self.batches.closed().await;
    }

    /// Sends a batch, unless it is empty. The caller has checked the capacity.
    fn send(&self, batch: ResponseBatch) {
        if !batch.is_empty() {
            // A dropped body is detected by `closed`.
            let _ = self.batches.try_send(batch);
        }
    }

    /// Ends the stream with a status, once the client has read all batches.
    ///
    /// Returns at once: a client that does not read retains only its batches.
    fn finish(&self, status: Status) {
        let _ = self.status.set(status);
    }
}

fn responses(slot: StreamSlot) -> (ResponseSender, DiscoveryResponseBody) {
    let (batches, receiver) = channel(1);
    let status = Arc::new(OnceLock::new());
    let body = DiscoveryResponseBody {
        batches: receiver,
        status: Arc::clone(&status),
        pieces: VecDeque::new(),
        ended: false,
        _slot: slot,
    };
    (ResponseSender { batches, status }, body)
}

/// Response body of a stream: batches, then the status as trailers.
struct DiscoveryResponseBody {
    batches: Receiver<ResponseBatch>,
    /// Final status; OK if it is unset when the batches end.
    status: Arc<OnceLock<Status>>,
    pieces: VecDeque<Bytes>,
    ended: bool,
    _slot: StreamSlot,
}

impl http_body::Body for DiscoveryResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            if let Some(batch) = std::task::ready!(self.batches.poll_recv(cx)) {
                self.pieces.extend(batch.into_iter().flatten());
                continue;
            }
            self.ended = true;
            let status = self.status.get().cloned().unwrap_or_else(|| Status::new(Code::Ok, ""));
            let trailers = status.into_http::<()>().into_parts().0.headers;
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
    }
}
