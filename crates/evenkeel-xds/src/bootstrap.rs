//! The bootstrap: which control planes there are, who we are, and how names are made.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_proto::envoy::config::core::v3::Node;
use serde_json::Value;

/// A bootstrap that can be used.
#[derive(Clone, Debug, PartialEq)]
pub struct Bootstrap {
    /// The control planes for names without an authority of their own, in order of preference; at least one.
    pub servers: Vec<Arc<ServerConfig>>,
    /// Who we are, as control planes are told.
    pub node: Node,
    /// Authorities by name (A47).
    pub authorities: BTreeMap<String, Authority>,
    /// Certificate providers by instance name (A29).
    pub certificate_providers: BTreeMap<String, CertificateProvider>,
    /// How targets without an authority become listener names; `%s` unless set.
    pub client_default_listener_resource_name_template: String,
    /// How servers make their listener names (A36).
    pub server_listener_resource_name_template: Option<String>,
}

/// A control plane. Two that are equal share one channel and one stream (A47).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerConfig {
    /// Where it is, as gRPC writes targets.
    pub uri: Arc<str>,
    /// How to talk to it.
    pub credentials: ChannelCredentials,
    /// What is special about it.
    pub features: ServerFeatures,
}

/// How to talk to a control plane.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ChannelCredentials {
    /// In the clear.
    Insecure,
    /// TLS with Google's roots and the machine's identity (A27).
    GoogleDefault,
    /// TLS, perhaps with a certificate of our own (A65).
    Tls {
        /// The file of roots; the system's if there is none.
        ca_certificate_file: Option<String>,
        /// The files of our certificate and its key.
        identity: Option<(String, String)>,
        /// How often the files are read again.
        refresh_interval: Duration,
    },
}

/// What is special about a control plane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerFeatures {
    /// A resource that it deletes is kept (A53).
    pub ignore_resource_deletion: bool,
    /// It may choose the authority of calls (A81).
    pub trusted_xds_server: bool,
    /// A resource that it spoils or deletes is dropped (A88).
    pub fail_on_data_errors: bool,
    /// A resource that it does not send in time is unavailable, not absent (A88).
    pub resource_timer_is_transient_error: bool,
}

/// An authority for names (A47).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// The control planes for its names, in order of preference; those of the bootstrap if it has none of its own.
    pub servers: Vec<Arc<ServerConfig>>,
    /// How targets of this authority become listener names.
    pub client_listener_resource_name_template: String,
}

/// Where certificates come from (A29).
#[derive(Clone, Debug, PartialEq)]
pub struct CertificateProvider {
    /// The kind of provider, such as `file_watcher`.
    pub plugin_name: String,
    /// Its settings.
    pub config: Value,
}
