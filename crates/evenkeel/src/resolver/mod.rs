//! Name resolution: target URIs, DNS, service configs, and the xDS client as a resolver.

pub(crate) mod dns;
pub(crate) mod service_config;
pub(crate) mod target;
pub(crate) mod xds;
