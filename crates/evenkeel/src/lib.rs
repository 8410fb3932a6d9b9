//! A channel for tonic that balances as the control plane says.
//!
//! Any generated client takes a [`Channel`] in the place of tonic's own. It finds endpoints, routes calls and spreads them
//! as an xDS control plane says, in the process, without a proxy; without a control plane it does the same for a DNS name
//! or a list of addresses, by a service config.
//!
//! ```no_run
//! # mod orders { pub struct OrdersClient; impl OrdersClient { pub fn new(_: evenkeel::Channel) -> OrdersClient { OrdersClient } } }
//! # use orders::OrdersClient;
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! // The bootstrap is the one that gRPC's own variables name.
//! let client = OrdersClient::new(evenkeel::channel("xds:///orders")?);
//!
//! // No control plane: the same policies, by gRPC's service config.
//! let channel = evenkeel::Channel::builder("dns:///orders.prod:50051")
//!     .service_config(r#"{"loadBalancingConfig": [{"round_robin": {}}]}"#)
//!     .build()?;
//! let client = OrdersClient::new(channel);
//! # Ok(())
//! # }
//! ```
//!
//! | where | what |
//! |---|---|
//! | [`Channel`], [`ChannelBuilder`] | what applications use |
//! | [`Credentials`] | TLS and mTLS, with files that are read again when they change |
//! | [`WaitForReady`] | a call that waits where others fail |
//! | [`CapturePeer`], [`PeerAddress`] | who answered |
//! | [`XdsClient`], [`csds`] | the xDS client of the process, and its status as a service |
//! | [`Registry`] | policies, those of the application included |
//! | [`Connector`] | other ways to open connections |
//! | `admin` | a live page of the process, with the feature of that name |
//!
//! The parts, for those who read the source: a call goes through `channel.rs`, `snapshot.rs`, `call.rs`, `connection.rs`; a
//! config comes through `xds/` or `dns.rs` to `driver.rs`, which runs the policies of `evenkeel-core` and publishes what
//! calls see.
//!
//! | feature | what it adds |
//! |---|---|
//! | `ring` (default), `aws-lc-rs` | the cryptography of TLS: `ring` if both are on, no TLS without either. To use `aws-lc-rs`, set `default-features = false` in every dependency on this crate |
//! | `otel` | OpenTelemetry metrics with gRPC's names |
//! | `h2` | the crate `h2` as another HTTP/2 implementation: [`Http2Implementation`] |
//! | `admin` | a server with a live page of what the process does, its data as JSON, and CSDS |

#![forbid(unsafe_code)]
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
mod resolver;
mod telemetry;
mod text;
mod transport;

pub use call::ResponseBody;
pub use channel::builder::{BuildError, ChannelBuilder};
pub use channel::{CapturePeer, Channel, PeerAddress, ResponseFuture, WaitForReady};
pub use credentials::{Credentials, CredentialsError, TlsCredentialsBuilder};
pub use evenkeel_core::{Address, Backoff, ConnectivityState, Description, EndpointRow, Registry};
pub use evenkeel_xds::XdsLimits;
pub use evenkeel_xds::ads::{ServerStats, XdsVariant};
pub use evenkeel_xds::bootstrap::{Bootstrap, BootstrapError};
pub use evenkeel_xds::lb::LbPolicyConverters;
pub use resolver::service_config::ServiceConfigError;
pub use resolver::target::TargetError;
pub use resolver::xds::{XdsClient, XdsClientBuilder, XdsError, csds};
#[cfg(feature = "otel")]
pub use telemetry::metrics::{Metric, MetricLabel, OtelMetrics, OtelMetricsBuilder};
pub use transport::http2::Http2Implementation;
pub use transport::{Connector, Io};

/// A channel with default settings: plain text, and for xDS targets the bootstrap of the environment.
///
/// It is the short form of [`Channel::builder`] and [`ChannelBuilder::build`].
///
/// # Errors
///
/// Those of [`ChannelBuilder::build`].
pub fn channel(target: impl Into<String>) -> Result<Channel, BuildError> {
    Channel::builder(target).build()
}
