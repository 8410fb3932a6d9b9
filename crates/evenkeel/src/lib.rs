//! gRPC channel for tonic with client-side load balancing, configured by xDS or a service config.
//!
//! A [`Channel`] replaces `tonic::transport::Channel` in any generated client. It resolves endpoints, routes calls and
//! balances them inside the process, without a proxy. An xDS control plane supplies the config. Without one, the target
//! is a DNS name or a list of addresses, and a gRPC service config selects the policy.
//!
//! ```no_run
//! # mod orders { pub struct OrdersClient; impl OrdersClient { pub fn new(_: evenkeel::Channel) -> OrdersClient { OrdersClient } } }
//! # use orders::OrdersClient;
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! // GRPC_XDS_BOOTSTRAP or GRPC_XDS_BOOTSTRAP_CONFIG supplies the bootstrap.
//! let client = OrdersClient::new(evenkeel::channel("xds:///orders")?);
//!
//! // No control plane: the builder selects the policy.
//! let channel = evenkeel::Channel::builder("dns:///orders.prod:50051")
//!     .policy(evenkeel::policy::round_robin())
//!     .build()?;
//! let client = OrdersClient::new(channel);
//! # Ok(())
//! # }
//! ```
//!
//! | item | purpose |
//! |---|---|
//! | [`Channel`], [`ChannelBuilder`] | create channels and pass them to generated clients |
//! | [`Credentials`] | TLS and mTLS, with automatic reload of certificate files |
//! | [`WaitForReady`] | makes an RPC wait for a usable endpoint instead of failing |
//! | [`CapturePeer`], [`PeerAddress`] | address of the backend that served an RPC |
//! | [`XdsClient`], [`csds`] | xDS client of the process, and its status as a CSDS service |
//! | [`Registry`] | load balancing policies, including custom ones |
//! | [`Connector`] | custom transports |
//! | `admin` | live status page of the process (feature `admin`) |
//!
//! In the source, an RPC passes through `channel/`, `call/` and `transport/`. Config passes through `resolver/` to the
//! driver in `channel/driver.rs`. The driver runs the policies of `evenkeel-core` and publishes the snapshots that RPCs
//! read.
//!
//! | feature | effect |
//! |---|---|
//! | `ring` (default), `aws-lc-rs` | TLS backend: `ring` if both are on, no TLS without either. To use `aws-lc-rs`, set `default-features = false` in every dependency on this crate |
//! | `otel` | OpenTelemetry metrics with gRPC's names |
//! | `h2` | the crate `h2` as an alternative HTTP/2 implementation: [`Http2Implementation`] |
//! | `admin` | a server with a live status page of the process, its data as JSON, and CSDS |
//! | `prometheus` | `/metrics` on the admin port: the metrics of `otel` in the text format of Prometheus |

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![cfg_attr(
    not(feature = "otel"),
    allow(clippy::zero_sized_map_values, reason = "meters are empty without metrics")
)]

#[cfg(feature = "admin")]
pub mod admin;
mod call;
mod channel;
mod clock;
mod credentials;
mod entropy;
mod load;
pub mod policy;
mod resolver;
mod sync;
mod telemetry;
mod text;
mod transport;

pub use call::{ResponseBody, ResponseFuture};
pub use channel::builder::{BuildError, ChannelBuilder};
pub use channel::{CapturePeer, Channel, PeerAddress, WaitForReady};
pub use credentials::{Credentials, CredentialsError, TlsCredentialsBuilder};
pub use evenkeel_core::{Address, Backoff, ConnectivityState, Description, EndpointRow, Registry};
pub use evenkeel_xds::XdsLimits;
pub use evenkeel_xds::ads::{ServerStats, XdsVariant};
pub use evenkeel_xds::bootstrap::{Bootstrap, BootstrapError, TargetError};
pub use evenkeel_xds::lb::LbPolicyConverters;
pub use resolver::service_config::ServiceConfigError;
pub use resolver::xds::{XdsClient, XdsClientBuilder, XdsError, csds};
#[cfg(feature = "prometheus")]
pub use telemetry::metrics::PrometheusMetrics;
#[cfg(feature = "otel")]
pub use telemetry::metrics::{Metric, MetricLabel, OtelMetrics, OtelMetricsBuilder};
pub use transport::http2::Http2Implementation;
pub use transport::{Connector, Io};

/// Types for writing a load-balancing policy and testing it on virtual time.
///
/// Implement [`Policy`](lb::Policy), register it in a [`Registry`], and pass that to [`ChannelBuilder::registry`]. Tests run
/// the policy in a [`Core`](lb::Core), without a socket or a clock.
pub mod lb {
    pub use evenkeel_core::{
        Address, CachedState, CallOutcome, CallTracker, CallTrackers, ChildPolicy, Code, ConfigError,
        ConfigFields, ConnectMode, ConnectivityState, Core, CoreBuilder, Cx, DescribeCx, Description,
        Endpoint, EndpointEntry, EndpointHealthStatus, EndpointList, EndpointRow, Endpoints, Instant,
        LbConfig, LbEffect, LbEvent, LbState, LbUpdate, LoadReport, Locality, PassResult, PickArgs,
        PickHeaders, PickResult, Picker, Policy, PolicyScope, Registry, RequestMetadata, Rng, RootPicker,
        Status, Subchannel, SubchannelId, SubchannelMap,
    };
}

/// Creates a channel with default settings: plaintext, and for xDS targets the bootstrap from the environment.
///
/// Shorthand for [`Channel::builder`] followed by [`ChannelBuilder::build`].
///
/// # Errors
///
/// Returns the errors of [`ChannelBuilder::build`].
pub fn channel(target: impl Into<String>) -> Result<Channel, BuildError> {
    Channel::builder(target).build()
}
