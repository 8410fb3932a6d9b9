//! Observability: OpenTelemetry metrics ([`metrics`]), and call statistics for the admin page ([`traffic`]).
//!
//! Both are optional. Without their features the types are empty, so the request path needs no `cfg`.

pub(crate) mod metrics;
pub(crate) mod traffic;
