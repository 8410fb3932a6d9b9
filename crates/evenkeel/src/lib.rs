//! A channel for tonic that balances as the control plane says.

#![forbid(unsafe_code)]

mod call;
mod channel;
mod clock;
mod connection;
mod credentials;
mod dns;
mod driver;
mod metrics;
mod retry;
mod service_config;
mod snapshot;
mod status;
mod target;
mod transport;
mod xds;

#[cfg(feature = "otel")]
pub use metrics::{Metric, MetricLabel, OtelMetrics, OtelMetricsBuilder};
