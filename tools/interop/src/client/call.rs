//! One call, from its request to its trailers.
//!
//! tonic's generated clients merge response headers and trailers into one map. Drivers distinguish them, so
//! calls are made as streams of one message, which is identical on the wire.

use evenkeel::{Address, CapturePeer, Channel, PeerAddress};
use http::uri::PathAndQuery;
use prost::Message;
use tonic::client::Grpc;
use tonic::metadata::MetadataMap;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use super::plan::{Kind, Planned};
use crate::proto::testing::{Empty, Payload, SimpleRequest, SimpleResponse};

/// Payload sizes of a UnaryCall.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sizes {
    pub(crate) request: usize,
    pub(crate) response: i32,
}

/// Response of one call.
pub(crate) struct CallResponse {
    /// Host name from the response, if the server sent one.
    pub(crate) peer: Option<String>,
    /// Address of the server.
    pub(crate) address: Option<Address>,
    pub(crate) initial: MetadataMap,
    pub(crate) trailing: MetadataMap,
}

/// Makes one planned call.
pub(crate) async fn call(channel: &Channel, planned: &Planned, sizes: Sizes) -> Result<CallResponse, Status> {
    match planned.kind {
        Kind::Empty => {
            let path = PathAndQuery::from_static("/grpc.testing.TestService/EmptyCall");
            let (answer, Empty {}) = exchange(channel, planned, path, Empty {}).await?;
            Ok(answer)
        }
        Kind::Unary => {
            let path = PathAndQuery::from_static("/grpc.testing.TestService/UnaryCall");
            let (mut answer, response) = exchange(channel, planned, path, simple_request(sizes)).await?;
            let SimpleResponse { hostname, .. } = response;
            answer.peer = answer.peer.or(Some(hostname).filter(|name| !name.is_empty()));
            Ok(answer)
        }
    }
}

fn simple_request(sizes: Sizes) -> SimpleRequest {
    let payload = (sizes.request > 0).then(|| Payload { body: vec![0; sizes.request], ..Payload::default() });
    SimpleRequest { payload, response_size: sizes.response, fill_server_id: true, ..SimpleRequest::default() }
}

async fn exchange<Q, A>(
    channel: &Channel,
    planned: &Planned,
    path: PathAndQuery,
    message: Q,
) -> Result<(CallResponse, A), Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let mut request = Request::new(message);
    request.extensions_mut().insert(CapturePeer);
    *request.metadata_mut() = planned.metadata.clone();
    if let Some(timeout) = planned.timeout {
        request.set_timeout(timeout);
    }
    let mut grpc = Grpc::new(channel.clone()).max_decoding_message_size(usize::MAX);
    let codec = ProstCodec::<Q, A>::default();
    let (initial, mut body, extensions) = grpc.server_streaming(request, path, codec).await?.into_parts();
    let message = body.message().await?;
    let trailing = body.trailers().await?.unwrap_or_default();
    let message = message.ok_or_else(|| Status::internal("the server returned OK without a message"))?;
    let peer = initial.get("hostname").and_then(|name| name.to_str().ok()).map(str::to_owned);
    let peer = peer.filter(|name| !name.is_empty());
    let address = extensions.get().map(|PeerAddress(address)| address.clone());
    Ok((CallResponse { peer, address, initial, trailing }, message))
}
