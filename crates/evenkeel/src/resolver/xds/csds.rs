//! Client Status Discovery Service for debugging tools (CSDS: A40, A71).
//!
//! [`Csds`] is a service for a tonic server of the application, which controls access to it. Each response contains
//! the state of the xDS clients at that time. The clients' own threads compute it, so calls of a channel never wait
//! for it.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use evenkeel_proto::envoy::service::status::v3::{ClientStatusRequest, ClientStatusResponse};
use http_body::Body as HttpBody;
use tonic::body::Body;
use tonic::codegen::tokio_stream::Stream;
use tonic::codegen::{BoxFuture, Service, StdError};
use tonic::server::{Grpc, NamedService, StreamingService, UnaryService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::XdsClient;
use crate::call::status;

/// `envoy.service.status.v3.ClientStatusDiscoveryService`. Cheap to clone.
///
/// ```no_run
/// # async fn show() -> Result<(), Box<dyn std::error::Error>> {
/// let address = "127.0.0.1:9901".parse()?;
/// tonic::transport::Server::builder().serve(address, evenkeel::csds::Csds::new()).await?;
/// # Ok(())
/// # }
/// ```
///
/// Use `add_service` to add it beside other services.
///
/// Tools such as grpcdebug know the service; it needs no reflection.
#[derive(Clone, Debug, Default)]
pub struct Csds {
    /// `None` for all clients of the process.
    clients: Option<Arc<[XdsClient]>>,
}

impl Csds {
    /// Returns a service for every xDS client of the process that exists at the time of a request.
    pub fn new() -> Csds {
        Csds::default()
    }

    /// Returns a service for these clients only. It keeps them alive.
    pub fn of(clients: impl IntoIterator<Item = XdsClient>) -> Csds {
        Csds { clients: Some(clients.into_iter().collect()) }
    }

    /// Returns the response to a request.
    pub(crate) async fn handle_request(
        self,
        request: ClientStatusRequest,
    ) -> Result<ClientStatusResponse, Status> {
        let clients = match &self.clients {
            Some(clients) => clients.to_vec(),
            None => XdsClient::all(),
        };
        let mut all = ClientStatusResponse::default();
        for client in clients {
            // A client that is shutting down has no status.
            if let Some(response) = client.client_status(request.clone()).await {
                all.config.extend(response.map_err(|status| status::to_tonic(&status))?.config);
            }
        }
        Ok(all)
    }
}

impl NamedService for Csds {
    const NAME: &'static str = "envoy.service.status.v3.ClientStatusDiscoveryService";
}

impl<B> Service<http::Request<B>> for Csds
where
    B: HttpBody + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let csds = self.clone();
        Box::pin(async move {
            let mut grpc = Grpc::new(ProstCodec::<ClientStatusResponse, ClientStatusRequest>::default());
            let method =
                request.uri().path().strip_prefix('/').and_then(|path| path.strip_prefix(Csds::NAME));
            Ok(match method {
                Some("/FetchClientStatus") => grpc.unary(CsdsMethods(csds), request).await,
                Some("/StreamClientStatus") => grpc.streaming(CsdsMethods(csds), request).await,
                _ => Status::unimplemented("CSDS has FetchClientStatus and StreamClientStatus").into_http(),
            })
        })
    }
}

/// Unary and streaming methods of the service.
struct CsdsMethods(Csds);

impl UnaryService<ClientStatusRequest> for CsdsMethods {
    type Response = ClientStatusResponse;
    type Future = BoxFuture<Response<ClientStatusResponse>, Status>;

    fn call(&mut self, request: Request<ClientStatusRequest>) -> Self::Future {
        let csds = self.0.clone();
        Box::pin(async move { csds.handle_request(request.into_inner()).await.map(Response::new) })
    }
}

impl StreamingService<ClientStatusRequest> for CsdsMethods {
    type Response = ClientStatusResponse;
    type ResponseStream = CsdsResponses;
    type Future = std::future::Ready<Result<Response<CsdsResponses>, Status>>;

    fn call(&mut self, request: Request<Streaming<ClientStatusRequest>>) -> Self::Future {
        let responses =
            CsdsResponses { csds: self.0.clone(), requests: request.into_inner(), in_flight: None };
        std::future::ready(Ok(Response::new(responses)))
    }
}

/// Stream with one response for each request.
struct CsdsResponses {
    csds: Csds,
    requests: Streaming<ClientStatusRequest>,
    in_flight: Option<BoxFuture<ClientStatusResponse, Status>>,
}

impl Stream for CsdsResponses {
    type Item = Result<ClientStatusResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(response) = &mut self.in_flight {
                let response = ready!(response.as_mut().poll(cx));
                self.in_flight = None;
                return Poll::Ready(Some(response));
            }
            match ready!(Pin::new(&mut self.requests).poll_next(cx)) {
                Some(Ok(request)) => {
                    self.in_flight = Some(Box::pin(self.csds.clone().handle_request(request)));
                }
                Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                None => return Poll::Ready(None),
            }
        }
    }
}
