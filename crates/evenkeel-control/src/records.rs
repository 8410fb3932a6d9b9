//! Records of connected clients: subscriptions, versions, ACKs and NACKs.
//!
//! They are copies for logs, tests and tools; changing one has no effect.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::SystemTime;

use evenkeel_proto::envoy::config::core::v3::Node;
use evenkeel_proto::envoy::config::core::v3::node::UserAgentVersionType;
use evenkeel_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use evenkeel_proto::envoy::service::load_stats::v3::LoadStatsRequest;

use crate::snapshot::ProtocolVariant;

/// State of a client with an open discovery stream.
///
/// Texts are as the client sent them, with control characters: escape them before a log or a terminal shows them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ClientRecord {
    /// Number of the stream, counted from 1 in the order of opening.
    pub stream: u64,
    /// Id of the client's node; empty until its first request.
    pub node_id: String,
    /// User agent with version, such as `evenkeel 0.1.0`.
    pub user_agent: String,
    /// Address of the client, if the server knows it.
    pub peer: Option<SocketAddr>,
    /// Protocol variant of the stream.
    pub variant: ProtocolVariant,
    /// Time at which the stream was opened.
    pub connected_at: SystemTime,
    /// Subscriptions and ACK state, by type URL.
    pub types: BTreeMap<String, TypeRecord>,
}

/// Subscription and ACK state of a client for one resource type.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TypeRecord {
    /// Names that the client subscribes to.
    pub subscribed: SubscribedNames,
    /// Version of the type in the last response; `None` before the first.
    pub sent: Option<u64>,
    /// Version of the type that the client last ACKed.
    pub acked: Option<u64>,
    /// Last NACK. The client may have ACKed other versions since.
    pub nack: Option<Nack>,
    /// True while the client's last response to this type is a NACK.
    pub is_rejecting: bool,
}

/// Names of one type that a client subscribes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscribedNames {
    /// True if the client subscribes to all resources of the type.
    pub wildcard: bool,
    /// Names that are subscribed explicitly, in alphabetical order.
    pub names: Vec<String>,
}

/// Rejection of a response by a client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Nack {
    /// Version of the type that was rejected.
    pub version: u64,
    /// Error message of the client.
    pub error: String,
    /// Time at which the NACK was received.
    pub at: SystemTime,
}

/// Returns the user agent of a node with its version.
pub(crate) fn user_agent(node: &Node) -> String {
    match &node.user_agent_version_type {
        Some(UserAgentVersionType::UserAgentVersion(version)) => {
            format!("{} {version}", node.user_agent_name)
        }
        Some(UserAgentVersionType::UserAgentBuildVersion(_)) | None => node.user_agent_name.clone(),
    }
}

/// Request of a client as it was received, for tests of clients.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ClientRequest {
    /// Request of a state-of-the-world stream.
    Discovery(DiscoveryRequest),
    /// Request of a delta stream.
    DeltaDiscovery(DeltaDiscoveryRequest),
    /// Request of a load reporting stream.
    LoadStats(LoadStatsRequest),
}

impl From<DiscoveryRequest> for ClientRequest {
    fn from(request: DiscoveryRequest) -> ClientRequest {
        ClientRequest::Discovery(request)
    }
}

impl From<DeltaDiscoveryRequest> for ClientRequest {
    fn from(request: DeltaDiscoveryRequest) -> ClientRequest {
        ClientRequest::DeltaDiscovery(request)
    }
}

impl From<LoadStatsRequest> for ClientRequest {
    fn from(request: LoadStatsRequest) -> ClientRequest {
        ClientRequest::LoadStats(request)
    }
}

/// Event of a client's stream, for logs.
///
/// Texts are as the client sent them, with control characters: escape them before a log or a terminal shows them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ClientEvent {
    /// Number of the client's stream.
    pub stream: u64,
    /// Id of the client's node.
    pub node_id: String,
    /// Kind of the event.
    pub kind: ClientEventKind,
}

/// Kind of a [`ClientEvent`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ClientEventKind {
    /// The client opened a stream and sent its node.
    Connected {
        /// User agent with version.
        user_agent: String,
        /// Address of the client, if the server knows it.
        peer: Option<SocketAddr>,
        /// Protocol variant of the stream.
        variant: ProtocolVariant,
    },
    /// The client ACKed a version of a type.
    Acked {
        /// Type URL of the resources.
        type_url: String,
        /// Version that was ACKed.
        version: u64,
    },
    /// The client NACKed a version of a type.
    Nacked {
        /// Type URL of the resources.
        type_url: String,
        /// Version and error of the rejection.
        nack: Nack,
    },
    /// The stream of the client ended.
    Disconnected,
}
