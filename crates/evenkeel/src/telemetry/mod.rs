//! Observability: OpenTelemetry metrics, and call statistics for the admin page.

pub(crate) mod metrics;
pub(crate) mod traffic;
