//! A client as tonic's generator writes it, over any channel.

use bytes::Bytes;
use evenkeel_proto::prost;
use http::uri::PathAndQuery;
use http_body::Body as HttpBody;
use tonic::body::Body;
use tonic::client::{Grpc, GrpcService};
use tonic::{GrpcMethod, Request};
use tonic_prost::ProstCodec;

use crate::Error;

#[derive(Clone)]
pub(crate) struct EchoClient<T> {
    inner: Grpc<T>,
}

#[derive(Clone, PartialEq, prost::Message)]
#[prost(prost_path = "::evenkeel_proto::prost")]
struct EchoRequest {
    #[prost(bytes = "vec", tag = "1")]
    payload: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
#[prost(prost_path = "::evenkeel_proto::prost")]
struct EchoResponse {
    #[prost(bytes = "vec", tag = "1")]
    payload: Vec<u8>,
}

impl<T> EchoClient<T>
where
    T: GrpcService<Body>,
    T::Error: Into<Error>,
    T::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
    <T::ResponseBody as HttpBody>::Error: Into<Error> + Send,
{
    pub(crate) fn new(channel: T) -> Self {
        Self { inner: Grpc::new(channel) }
    }

    pub(crate) async fn call(&mut self) -> Result<(), Error> {
        self.inner.ready().await.map_err(Into::into)?;
        let mut request = Request::new(EchoRequest { payload: b"0123456789abcdef".to_vec() });
        request.extensions_mut().insert(GrpcMethod::new("bench.Echo", "Unary"));
        let codec = ProstCodec::<EchoRequest, EchoResponse>::default();
        let path = PathAndQuery::from_static("/bench.Echo/Unary");
        let response = self.inner.unary(request, path, codec).await?;
        if response.get_ref().payload == b"0123456789abcdef" {
            Ok(())
        } else {
            Err("the answer is not the message".into())
        }
    }
}
