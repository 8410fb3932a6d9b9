//! Bidirectional stream to a control plane, controlled message by message.

use std::net::SocketAddr;

use evenkeel_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use evenkeel_proto::envoy::service::load_stats::v3::{LoadStatsRequest, LoadStatsResponse};
use prost::Message;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::timeout;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::codec::Streaming;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use super::LONG;

/// Method of a state-of-the-world ADS stream.
pub const SOTW: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";

/// Method of a delta ADS stream.
pub const DELTA: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";

/// Method of a load reporting stream.
pub const LRS: &str = "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats";

/// Stream that sends the requests of a test as they are, and reads a response only when the test does.
pub struct RawStream<Q, R> {
    requests: UnboundedSender<Q>,
    responses: Streaming<R>,
}

/// State-of-the-world ADS stream.
pub type SotwStream = RawStream<DiscoveryRequest, DiscoveryResponse>;

/// Delta ADS stream.
pub type DeltaStream = RawStream<DeltaDiscoveryRequest, DeltaDiscoveryResponse>;

/// Load reporting stream.
pub type LrsStream = RawStream<LoadStatsRequest, LoadStatsResponse>;

impl<Q, R> RawStream<Q, R>
where
    Q: Message + 'static,
    R: Message + Default + 'static,
{
    /// Connects and opens a stream of this method. Returns the status of a server that rejects it, or UNAVAILABLE if the
    /// connection fails.
    pub async fn open(server: SocketAddr, method: &'static str) -> Result<RawStream<Q, R>, Status> {
        let endpoint = Endpoint::from_shared(format!("http://{server}")).expect("an address is a valid URI");
        RawStream::open_on(endpoint.connect_lazy(), method).await
    }

    /// Opens a stream of this method on a channel.
    pub async fn open_on(channel: Channel, method: &'static str) -> Result<RawStream<Q, R>, Status> {
        let mut grpc = tonic::client::Grpc::new(channel);
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let (requests, stream) = unbounded_channel();
        let request = Request::new(UnboundedReceiverStream::new(stream));
        let response =
            grpc.streaming(request, PathAndQuery::from_static(method), ProstCodec::<Q, R>::default());
        let responses =
            timeout(LONG, response).await.expect("the server opens the stream in time")?.into_inner();
        Ok(RawStream { requests, responses })
    }

    /// Sends a request. It is dropped if the stream has ended.
    pub fn send(&self, request: Q) {
        let _ = self.requests.send(request);
    }

    /// Returns the next response. Panics if the stream ends.
    pub async fn next(&mut self) -> R {
        self.message().await.expect("the stream is open").expect("the stream sends a response")
    }

    /// Returns the next response, `None` after status OK, or the error status of the stream.
    pub async fn message(&mut self) -> Result<Option<R>, Status> {
        timeout(LONG, self.responses.message()).await.expect("the stream sends a response in time")
    }

    /// Reads the remaining responses and returns the status of the stream.
    pub async fn status(&mut self) -> Status {
        loop {
            match self.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return Status::ok(""),
                Err(status) => return status,
            }
        }
    }
}
