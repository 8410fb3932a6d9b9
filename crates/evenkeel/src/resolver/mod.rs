//! Name resolution: target URIs, DNS, service configs, and the xDS client as a resolver.
//!
//! A resolver produces endpoints, a load balancing config and, with xDS, routes. The channel's driver applies them.

pub(crate) mod dns;
pub(crate) mod service_config;
pub(crate) mod target;
pub(crate) mod xds;
