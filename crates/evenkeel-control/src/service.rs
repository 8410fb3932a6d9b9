//! The gRPC services over HTTP: which call is which, and the tasks that run streams.
//!
//! Responses are bodies of shared bytes, so a client that reads slowly holds references, not copies, and holds up
//! nobody: of each type it is owed one response at most.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::pin::Pin;
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
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tonic::body::Body;
use tonic::codec::{Codec, Streaming};
use tonic::server::NamedService;
use tonic::transport::server::TcpConnectInfo;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

use crate::plane::{Plane, Served};
use crate::stream::{Asked, TooMuch};
use crate::world::Variant;

/// The services of a [`Plane`], for a tonic server. Calls of others are UNIMPLEMENTED.
#[derive(Clone)]
pub struct DiscoveryService {
    plane: Plane,
}

/// What a call is for.
enum Call {
    /// Discovery, of one type unless requests say which.
    Discovery(Variant, Option<String>),
    LoadReports,
}

impl Call {
    fn of(path: &str) -> Option<Call> {
        use Variant::{Delta, StateOfTheWorld};
        Some(match path {
            "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources" => {
                Call::Discovery(StateOfTheWorld, None)
            }
            "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources" => {
                Call::Discovery(Delta, None)
            }
            "/envoy.service.listener.v3.ListenerDiscoveryService/StreamListeners" => {
                Call::Discovery(StateOfTheWorld, Some(Listener::type_url()))
            }
            "/envoy.service.listener.v3.ListenerDiscoveryService/DeltaListeners" => {
                Call::Discovery(Delta, Some(Listener::type_url()))
            }
            "/envoy.service.route.v3.RouteDiscoveryService/StreamRoutes" => {
                Call::Discovery(StateOfTheWorld, Some(RouteConfiguration::type_url()))
            }
            "/envoy.service.route.v3.RouteDiscoveryService/DeltaRoutes" => {
                Call::Discovery(Delta, Some(RouteConfiguration::type_url()))
            }
            "/envoy.service.cluster.v3.ClusterDiscoveryService/StreamClusters" => {
                Call::Discovery(StateOfTheWorld, Some(Cluster::type_url()))
            }
            "/envoy.service.cluster.v3.ClusterDiscoveryService/DeltaClusters" => {
                Call::Discovery(Delta, Some(Cluster::type_url()))
            }
            "/envoy.service.endpoint.v3.EndpointDiscoveryService/StreamEndpoints" => {
                Call::Discovery(StateOfTheWorld, Some(ClusterLoadAssignment::type_url()))
            }
            "/envoy.service.endpoint.v3.EndpointDiscoveryService/DeltaEndpoints" => {
                Call::Discovery(Delta, Some(ClusterLoadAssignment::type_url()))
            }
            "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats" => Call::LoadReports,
            _ => return None,
        })
    }
}

impl DiscoveryService {
    pub(crate) fn new(plane: Plane) -> DiscoveryService {
        DiscoveryService { plane }
    }

    fn answer(&self, request: http::Request<Body>) -> Result<http::Response<Body>, Status> {
        let path = request.uri().path();
        let Some(call) = Call::of(path) else {
            return Err(Status::unimplemented(format!("no method {path:?} here")));
        };
        let peer = request.extensions().get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
        let (owed, body) = responses();
        match call {
            Call::Discovery(Variant::StateOfTheWorld, of_type) => {
                let served = self.open(Variant::StateOfTheWorld, peer)?;
                let requests = requests::<DiscoveryRequest>(request);
                tokio::spawn(discovery(self.plane.clone(), served, of_type, requests, owed));
            }
            Call::Discovery(Variant::Delta, of_type) => {
                let served = self.open(Variant::Delta, peer)?;
                let requests = requests::<DeltaDiscoveryRequest>(request);
                tokio::spawn(discovery(self.plane.clone(), served, of_type, requests, owed));
            }
            Call::LoadReports => {
                if self.plane.scene().quirks.refuse_lrs {
                    return Err(Status::unimplemented("this control plane takes no load reports"));
                }
                tokio::spawn(load_reports(self.plane.clone(), requests(request), owed));
            }
        }
        let mut response = http::Response::new(Body::new(body));
        response
            .headers_mut()
            .insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/grpc"));
        Ok(response)
    }

    fn open(&self, variant: Variant, peer: Option<SocketAddr>) -> Result<Served, Status> {
        let served = self.plane.open(variant, peer);
        served.ok_or_else(|| Status::unavailable("this control plane serves one stream only"))
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
        ready(Ok(self.answer(request).unwrap_or_else(Status::into_http)))
    }
}

impl NamedService for DiscoveryService {
    /// The one that counts. It answers the others too, where the server asks it.
    const NAME: &'static str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
}

fn requests<M: Message + Default + 'static>(request: http::Request<Body>) -> Streaming<M> {
    let decoder = ProstCodec::<M, M>::default().decoder();
    Streaming::new_request(decoder, request.into_body(), None, None)
}

/// Runs a stream of discovery until the client or the plane ends it.
async fn discovery<M: Into<Asked>>(
    plane: Plane,
    served: Served,
    of_type: Option<String>,
    mut requests: Streaming<M>,
    owed: Owed,
) {
    let mut scenes = plane.scenes();
    drop(plane);
    loop {
        let scene = scenes.borrow_and_update().clone();
        if scene.closed >= served.number {
            return;
        }
        if !scene.quirks.silent {
            for response in served.responses(&scene.world) {
                owed.send(response);
            }
        }
        tokio::select! {
            changed = scenes.changed() => if changed.is_err() { return },
            () = owed.messages.closed() => return,
            request = requests.message() => {
                let Ok(Some(request)) = request else { return };
                let mut asked: Asked = request.into();
                if let Some(of_type) = &of_type {
                    asked.type_url.clone_from(of_type);
                }
                if let Err(TooMuch(text)) = served.handle(asked) {
                    return owed.end(Status::resource_exhausted(text));
                }
            }
        }
    }
}

/// Asks for reports on all clusters, again when the interval is another, and takes them in.
async fn load_reports(plane: Plane, mut requests: Streaming<LoadStatsRequest>, owed: Owed) {
    let mut scenes = plane.scenes();
    let mut node_id = None;
    let mut asked = None;
    loop {
        let interval = scenes.borrow_and_update().lrs_interval;
        if node_id.is_some() && asked != Some(interval) {
            asked = Some(interval);
            let response = LoadStatsResponse {
                send_all_clusters: true,
                load_reporting_interval: interval.try_into().ok(),
                ..LoadStatsResponse::default()
            };
            owed.send(vec![frame(&response)]);
        }
        tokio::select! {
            changed = scenes.changed() => if changed.is_err() { return },
            () = owed.messages.closed() => return,
            request = requests.message() => {
                let Ok(Some(request)) = request else { return };
                let node_id = node_id.get_or_insert_with(|| request.node.unwrap_or_default().id);
                plane.report_load(node_id, request.cluster_stats);
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

/// What a stream has yet to send.
struct Owed {
    messages: UnboundedSender<Result<Vec<Bytes>, Status>>,
}

impl Owed {
    /// A reader that is gone is noticed elsewhere.
    fn send(&self, pieces: Vec<Bytes>) {
        let _ = self.messages.send(Ok(pieces));
    }

    fn end(&self, status: Status) {
        let _ = self.messages.send(Err(status));
    }
}

fn responses() -> (Owed, Responses) {
    let (messages, receiver) = unbounded_channel();
    (Owed { messages }, Responses { messages: receiver, pieces: VecDeque::new(), ended: false })
}

/// The body of a stream's response.
struct Responses {
    messages: UnboundedReceiver<Result<Vec<Bytes>, Status>>,
    pieces: VecDeque<Bytes>,
    ended: bool,
}

impl http_body::Body for Responses {
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
            let status = match std::task::ready!(self.messages.poll_recv(cx)) {
                Some(Ok(pieces)) => {
                    self.pieces.extend(pieces);
                    continue;
                }
                Some(Err(status)) => status,
                None => Status::new(Code::Ok, ""),
            };
            self.ended = true;
            let trailers = status.into_http::<()>().into_parts().0.headers;
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
    }
}
