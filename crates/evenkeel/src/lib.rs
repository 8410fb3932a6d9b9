//! A channel for tonic that balances as the control plane says.

#![forbid(unsafe_code)]

mod builder;
mod call;
mod channel;
mod clock;
mod connection;
mod credentials;
mod dns;
mod driver;
mod entropy;
mod metrics;
mod oob;
mod retry;
mod service_config;
mod snapshot;
mod status;
mod target;
mod text;
mod timeout;
mod transport;
mod xds;

pub use builder::{BuildError, Builder};
pub use call::ResponseBody;
pub use channel::{Channel, WaitForReady};
pub use credentials::{Credentials, CredentialsError, Tls};
pub use evenkeel_core::{Address, Backoff, Connectivity, Description, EndpointRow, Registry};
pub use evenkeel_xds::Limits;
pub use evenkeel_xds::bootstrap::{Bootstrap, BootstrapError};
pub use evenkeel_xds::client::Variant;
pub use evenkeel_xds::lb::Converters;
pub use service_config::ServiceConfigError;
pub use target::TargetError;
pub use transport::{Connector, Io};
pub use xds::{XdsClient, XdsClientBuilder, XdsError, csds};
