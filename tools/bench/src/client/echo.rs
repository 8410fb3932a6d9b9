//! Client like tonic's generated code, over any channel. It omits costs that no channel influences: a
//! `GrpcMethod` in the extensions (3 allocations), and `Vec` for `bytes` fields, the default (2).

use std::num::NonZeroU32;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http_body::Body as HttpBody;
use tonic::Request;
use tonic::body::Body;
use tonic::client::{Grpc, GrpcService};
use tonic_prost::ProstCodec;

use crate::Error;
use crate::client::drive::Client;

pub(crate) const UNARY: &str = "/bench.Echo/Unary";
pub(crate) const STREAM: &str = "/bench.Echo/Stream";

/// One call: the payload, and the number of responses.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) payload: Bytes,
    /// Number of streamed messages; `None` for a unary call.
    pub(crate) messages: Option<NonZeroU32>,
}

impl Ask {
    pub(crate) fn request(&self) -> EchoRequest {
        EchoRequest { payload: self.payload.clone(), messages: self.messages.map_or(0, NonZeroU32::get) }
    }

    /// Returns the number of messages of a valid response.
    pub(crate) fn answers(&self) -> u32 {
        self.messages.map_or(1, NonZeroU32::get)
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct EchoRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) payload: Bytes,
    #[prost(uint32, tag = "2")]
    pub(crate) messages: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct EchoResponse {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) payload: Bytes,
}

#[derive(Clone)]
pub(crate) struct EchoClient<T> {
    inner: Grpc<T>,
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

    async fn unary(&mut self, ask: &Ask) -> Result<(), Error> {
        self.inner.ready().await.map_err(Into::into)?;
        let codec = ProstCodec::<EchoRequest, EchoResponse>::default();
        let path = PathAndQuery::from_static(UNARY);
        let response = self.inner.unary(Request::new(ask.request()), path, codec).await?;
        check(ask, 1, response.get_ref().payload.len())
    }

    async fn stream(&mut self, ask: &Ask) -> Result<(), Error> {
        self.inner.ready().await.map_err(Into::into)?;
        let codec = ProstCodec::<EchoRequest, EchoResponse>::default();
        let path = PathAndQuery::from_static(STREAM);
        let response = self.inner.server_streaming(Request::new(ask.request()), path, codec).await?;
        let mut stream = response.into_inner();
        let (mut messages, mut bytes) = (0, 0);
        while let Some(message) = stream.message().await? {
            messages += 1;
            bytes += message.payload.len();
        }
        check(ask, messages, bytes)
    }
}

impl<T> Client for EchoClient<T>
where
    T: GrpcService<Body> + Clone + Send + 'static,
    T::Future: Send,
    T::Error: Into<Error>,
    T::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
    <T::ResponseBody as HttpBody>::Error: Into<Error> + Send,
{
    async fn call(&mut self, ask: &Ask) -> Result<(), Error> {
        match ask.messages {
            None => self.unary(ask).await,
            Some(_) => self.stream(ask).await,
        }
    }
}

/// Checks the length of a response. Comparing the bytes would count as work of the client.
fn check(ask: &Ask, messages: u32, bytes: usize) -> Result<(), Error> {
    let expected = (ask.answers(), ask.answers() as usize * ask.payload.len());
    if (messages, bytes) == expected {
        return Ok(());
    }
    let (all, length) = expected;
    Err(format!("expected {all} messages with {length} bytes in all, found {messages} with {bytes}").into())
}
