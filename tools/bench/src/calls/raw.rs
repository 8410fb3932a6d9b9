//! Clients without a channel: the senders of hyper and h2, a connection to each backend, and an atomic round
//! robin.

use std::future::poll_fn;
use std::net::SocketAddr;

use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, Uri};
use http_body_util::{BodyExt as _, Full};

use crate::Error;
use crate::client::drive::Client;
use crate::client::echo::{Ask, EchoResponse, STREAM, UNARY};
use crate::common::raw::{check_trailers, request};
use crate::common::rounds::RoundRobin;
use crate::common::{raw_h2, raw_hyper};

/// Request of an [`Ask`], prepared once.
#[derive(Clone)]
struct Prepared {
    uri: Uri,
    /// gRPC message with its prefix.
    message: Bytes,
    /// Number of bytes of a valid response.
    expected: usize,
}

impl Prepared {
    fn new(address: SocketAddr, ask: &Ask) -> Result<Prepared, Error> {
        let answer = frame(&EchoResponse { payload: ask.payload.clone() });
        let path = if ask.messages.is_some() { STREAM } else { UNARY };
        Ok(Prepared {
            uri: format!("http://{address}{path}").parse()?,
            message: frame(&ask.request()),
            expected: answer.len() * ask.answers() as usize,
        })
    }

    /// Copies the message, since every call has its own bytes.
    fn message(&self) -> Bytes {
        Bytes::copy_from_slice(&self.message)
    }

    fn check(&self, received: usize, trailers: Option<&HeaderMap>) -> Result<(), Error> {
        check_trailers(trailers)?;
        let expected = self.expected;
        if received == expected {
            Ok(())
        } else {
            Err(format!("expected {expected} bytes of messages, found {received}").into())
        }
    }
}

/// Frames a message for gRPC: uncompressed flag, length, message.
pub(crate) fn frame(message: &impl prost::Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(5 + length);
    frame.put_u8(0);
    // Messages of a benchmark are far below 4 GiB.
    frame.put_u32(length as u32);
    // Cannot fail: the buffer has the capacity.
    let _ = message.encode(&mut frame);
    frame.freeze()
}

/// hyper's sender of one connection.
#[derive(Clone)]
pub(crate) struct Hyper {
    sender: hyper::client::conn::http2::SendRequest<Full<Bytes>>,
    prepared: Prepared,
}

impl Hyper {
    pub(crate) async fn connect(address: SocketAddr, ask: &Ask) -> Result<Self, Error> {
        let sender = raw_hyper::connect(address).await?;
        Ok(Self { sender, prepared: Prepared::new(address, ask)? })
    }
}

impl Client for Hyper {
    async fn call(&mut self, ask: &Ask) -> Result<(), Error> {
        let request = request(&self.prepared.uri, Full::new(self.prepared.message()))?;
        let mut body = self.sender.send_request(request).await?.into_body();
        if ask.messages.is_none() {
            // Decoding a message needs the whole body.
            let body = body.collect().await?;
            let trailers = body.trailers().cloned();
            return self.prepared.check(body.to_bytes().len(), trailers.as_ref());
        }
        let (mut received, mut trailers) = (0, None);
        while let Some(frame) = body.frame().await {
            match frame?.into_data() {
                Ok(data) => received += data.len(),
                Err(frame) => trailers = frame.into_trailers().ok(),
            }
        }
        self.prepared.check(received, trailers.as_ref())
    }
}

/// h2's sender of one connection.
#[derive(Clone)]
pub(crate) struct H2 {
    sender: h2::client::SendRequest<Bytes>,
    prepared: Prepared,
}

impl H2 {
    pub(crate) async fn connect(address: SocketAddr, ask: &Ask) -> Result<Self, Error> {
        let sender = raw_h2::connect(address).await?;
        Ok(Self { sender, prepared: Prepared::new(address, ask)? })
    }
}

impl Client for H2 {
    async fn call(&mut self, _: &Ask) -> Result<(), Error> {
        poll_fn(|cx| self.sender.poll_ready(cx)).await?;
        let (response, mut stream) = self.sender.send_request(request(&self.prepared.uri, ())?, false)?;
        stream.send_data(self.prepared.message(), true)?;
        let mut body = response.await?.into_body();
        let mut received = 0;
        while let Some(data) = body.data().await {
            let data = data?;
            body.flow_control().release_capacity(data.len())?;
            received += data.len();
        }
        let trailers = body.trailers().await?;
        self.prepared.check(received, trailers.as_ref())
    }
}

impl<C: Client + Sync> Client for RoundRobin<C> {
    async fn call(&mut self, ask: &Ask) -> Result<(), Error> {
        self.next()?.call(ask).await
    }
}
