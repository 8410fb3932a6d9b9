//! What is known about clients, for those who look.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::SystemTime;

use evenkeel_proto::envoy::config::core::v3::Node;
use evenkeel_proto::envoy::config::core::v3::node::UserAgentVersionType;

use crate::snapshot::ProtocolVariant;

/// A client with an open stream.
///
/// Texts are as the client sent them, with control characters: escape them before a log or a terminal shows them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ClientRecord {
    /// Counts the streams that were opened, so it is in their order.
    pub stream: u64,
    /// The id of its node; empty until it said so.
    pub node_id: String,
    /// Its user agent with version, such as `evenkeel 0.1.0`.
    pub user_agent: String,
    /// Where it is, unless the server does not know.
    pub peer: Option<SocketAddr>,
    /// What it speaks.
    pub variant: ProtocolVariant,
    /// Since when.
    pub connected_at: SystemTime,
    /// What it asked for and answered, by type URL.
    pub types: BTreeMap<String, TypeRecord>,
}

/// What a client asked for and answered, of one type.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TypeRecord {
    /// What it wants.
    pub subscribed: SubscribedNames,
    /// The version of the type in the last response.
    pub sent: Option<u64>,
    /// The version that it last accepted.
    pub acked: Option<u64>,
    /// What it last rejected; it may have accepted others since.
    pub nack: Option<Nack>,
    /// Whether its last answer was a rejection.
    pub is_rejecting: bool,
}

/// What a client wants of one type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscribedNames {
    /// All there is.
    pub wildcard: bool,
    /// These in any case, in alphabetical order.
    pub names: Vec<String>,
}

/// A rejection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Nack {
    /// The version of the type that was rejected.
    pub version: u64,
    /// What the client said.
    pub error: String,
    /// When.
    pub at: SystemTime,
}

/// The user agent of a node with its version.
pub(crate) fn user_agent(node: &Node) -> String {
    match &node.user_agent_version_type {
        Some(UserAgentVersionType::UserAgentVersion(version)) => {
            format!("{} {version}", node.user_agent_name)
        }
        Some(UserAgentVersionType::UserAgentBuildVersion(_)) | None => node.user_agent_name.clone(),
    }
}

/// Something that happened, for logs.
///
/// Texts are as the client sent them, with control characters: escape them before a log or a terminal shows them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ClientEvent {
    /// The number of the stream.
    pub stream: u64,
    /// The id of the client's node.
    pub node_id: String,
    /// What it did.
    pub kind: ClientEventKind,
}

/// What a client did.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ClientEventKind {
    /// It opened a stream and said who it is.
    Connected {
        /// Its user agent with version.
        user_agent: String,
        /// Where it is.
        peer: Option<SocketAddr>,
        /// What it speaks.
        variant: ProtocolVariant,
    },
    /// It accepted a version of a type.
    Acked {
        /// The type.
        type_url: String,
        /// The version.
        version: u64,
    },
    /// It rejected a version of a type.
    Nacked {
        /// The type.
        type_url: String,
        /// What it said.
        nack: Nack,
    },
    /// Its stream ended.
    Disconnected,
}
