//! tonic server that echoes unary calls, like generated code, with and without the load report layer.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use evenkeel_orca::{CallLoad, LoadLayer};
use http_body::Body as HttpBody;
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

use super::generated::{EchoRequest, EchoResponse};
use crate::Error;

/// Serves while it is polled.
pub(crate) async fn serve(
    listener: TcpListener,
    layer: Option<LoadLayer>,
    handler: Handler,
) -> Result<(), Error> {
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let echo = EchoServer { handler: Arc::new(handler) };
    match layer {
        None => Server::builder().add_service(echo).serve_with_incoming(incoming).await?,
        Some(layer) => {
            Server::builder().layer(layer).add_service(echo).serve_with_incoming(incoming).await?;
        }
    }
    Ok(())
}

/// Recording of a handler beside its response.
pub(crate) enum Handler {
    RecordsNothing,
    /// Records one request cost, with another value for each call.
    RecordsCost(AtomicU32),
}

impl Handler {
    fn answer(&self, request: Request<EchoRequest>) -> Response<EchoResponse> {
        if let Handler::RecordsCost(next) = self
            && let Some(load) = CallLoad::current()
        {
            load.record_request_cost("rows", f64::from(next.fetch_add(1, Ordering::Relaxed)));
        }
        Response::new(EchoResponse { payload: request.into_inner().payload })
    }
}

#[derive(Clone)]
struct EchoServer {
    handler: Arc<Handler>,
}

type BoxFuture<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

impl NamedService for EchoServer {
    const NAME: &'static str = "bench.Echo";
}

impl<B> Service<http::Request<B>> for EchoServer
where
    B: HttpBody + Send + 'static,
    B::Error: Into<Error> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let unary = Unary(self.handler.clone());
        Box::pin(async move {
            let codec = ProstCodec::<EchoResponse, EchoRequest>::default();
            Ok(Grpc::new(codec).unary(unary, request).await)
        })
    }
}

struct Unary(Arc<Handler>);

impl UnaryService<EchoRequest> for Unary {
    type Response = EchoResponse;
    type Future = BoxFuture<Response<EchoResponse>, Status>;

    fn call(&mut self, request: Request<EchoRequest>) -> Self::Future {
        let handler = self.0.clone();
        Box::pin(async move { Ok(handler.answer(request)) })
    }
}
