//! Client like tonic's generated code, over any channel. It omits costs that no channel influences: a
//! `GrpcMethod` in the extensions (3 allocations), and `Vec` for `bytes` fields, the default (2).

use bytes::Bytes;
use evenkeel_proto::prost;
use http::uri::PathAndQuery;
use http_body::Body as HttpBody;
use tonic::Request;
use tonic::body::Body;
use tonic::client::{Grpc, GrpcService};
use tonic_prost::ProstCodec;

use super::wire::{PATH, PAYLOAD};
use crate::Error;

#[derive(Clone)]
pub(crate) struct EchoClient<T> {
    inner: Grpc<T>,
}

#[derive(Clone, PartialEq, prost::Message)]
#[prost(prost_path = "::evenkeel_proto::prost")]
pub(crate) struct EchoRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) payload: Bytes,
}

#[derive(Clone, PartialEq, prost::Message)]
#[prost(prost_path = "::evenkeel_proto::prost")]
pub(crate) struct EchoResponse {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) payload: Bytes,
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
        let request = Request::new(EchoRequest { payload: Bytes::from_static(PAYLOAD) });
        let codec = ProstCodec::<EchoRequest, EchoResponse>::default();
        let path = PathAndQuery::from_static(PATH);
        let response = self.inner.unary(request, path, codec).await?;
        if response.get_ref().payload == PAYLOAD {
            Ok(())
        } else {
            Err("the response is not the request message".into())
        }
    }
}
