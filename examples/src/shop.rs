//! The service `shop.Orders` with one method, as tonic would generate it from
//!
//! ```proto
//! service Orders {
//!   rpc Get(google.protobuf.StringValue) returns (google.protobuf.StringValue);
//! }
//! ```
//!
//! It is written by hand, so that the examples need no `protoc`. Real services use `tonic-prost-build`.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use evenkeel::Channel;
use http::uri::PathAndQuery;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service};
use tonic::server::{NamedService, UnaryService};
use tonic::{IntoRequest, Request, Response, Status};
use tonic_prost::ProstCodec;

/// Path of the only method.
pub const GET: &str = "/shop.Orders/Get";

/// Client as tonic would generate it. tonic's are generic over the channel; this one is not.
#[derive(Clone, Debug)]
pub struct OrdersClient {
    grpc: tonic::client::Grpc<Channel>,
}

impl OrdersClient {
    /// Creates a client on this channel.
    pub fn new(channel: Channel) -> OrdersClient {
        OrdersClient { grpc: tonic::client::Grpc::new(channel) }
    }

    /// Requests an order. The response is the name of the serving backend.
    pub async fn get(&mut self, order: impl IntoRequest<String>) -> Result<Response<String>, Status> {
        self.grpc.ready().await?;
        let codec = ProstCodec::<String, String>::default();
        self.grpc.unary(order.into_request(), PathAndQuery::from_static(GET), codec).await
    }
}

/// Service trait as tonic would generate it.
#[tonic::async_trait]
pub trait Orders: Send + Sync + 'static {
    /// Looks up an order.
    async fn get(&self, order: Request<String>) -> Result<Response<String>, Status>;
}

/// Server as tonic would generate it.
#[derive(Debug)]
pub struct OrdersServer<S> {
    orders: Arc<S>,
}

impl<S> OrdersServer<S> {
    /// Creates a server for this implementation.
    pub fn new(orders: S) -> OrdersServer<S> {
        OrdersServer { orders: Arc::new(orders) }
    }
}

impl<S> Clone for OrdersServer<S> {
    fn clone(&self) -> OrdersServer<S> {
        OrdersServer { orders: self.orders.clone() }
    }
}

impl<S> NamedService for OrdersServer<S> {
    const NAME: &'static str = "shop.Orders";
}

impl<S: Orders> Service<http::Request<Body>> for OrdersServer<S> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let server = self.clone();
        Box::pin(async move {
            if request.uri().path() != GET {
                return Ok(Status::unimplemented(format!("unknown method; expected {GET}")).into_http());
            }
            let codec = ProstCodec::<String, String>::default();
            Ok(tonic::server::Grpc::new(codec).unary(server, request).await)
        })
    }
}

impl<S: Orders> UnaryService<String> for OrdersServer<S> {
    type Response = String;
    type Future = BoxFuture<Response<String>, Status>;

    fn call(&mut self, order: Request<String>) -> Self::Future {
        let orders = self.orders.clone();
        Box::pin(async move { orders.get(order).await })
    }
}
