//! Who we are to servers, and whom we take servers to be.
//!
//! [`Credentials`] are built once and shared by all connections. What stands in files is read again as time passes, so that
//! certificates rotate while connections live: each handshake asks for the configuration of that moment
//! ([`TlsConfigSource::config`]). Only a handshake looks at the clock; there is no task behind credentials and so none to leak.
//!
//! Nothing here falls back to less: what cannot be read the first time is an error, and what cannot be read again leaves
//! the last good one in force. The handshake itself is the transport's.
//!
//! What a channel says of itself is here; what clusters say for their connections is in [`cluster`].
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | [`Credentials`] of a channel or of a connection to a control plane |
//! | `builder.rs` | builder of TLS credentials |
//! | `tls_config.rs` | TLS config of the next handshake, with reloaded files |
//! | `reload.rs` | last valid value of a file that is reloaded |
//! | `pem.rs` | certificates and keys from PEM text, files and the system |
//! | `error.rs` | [`CredentialsError`] |
//! | `cluster.rs` | TLS according to a cluster's security config |
//! | `provider.rs` | certificate providers of the bootstrap |
//! | `verifier.rs` | verification of a server's certificate by its SANs |
//! | `san.rs` | subject alternative names of a certificate |

mod builder;
mod cluster;
mod error;
mod pem;
mod provider;
mod reload;
mod san;
mod tls_config;
mod verifier;

#[cfg(test)]
pub(crate) mod tests;

use std::fmt;
use std::sync::Arc;

use evenkeel_xds::bootstrap::ChannelCredentials;

pub use self::builder::TlsCredentialsBuilder;
pub(crate) use self::cluster::ClusterTls;
pub use self::error::CredentialsError;
pub(crate) use self::provider::CertificateProviders;
use self::tls_config::TlsConfigSource;
use crate::telemetry::metrics::SecurityLevel;

/// The only protocol that gRPC runs over (ALPN).
pub(crate) const H2: &[u8] = b"h2";

/// How connections are secured. Cheap to clone; clones share what they read from files.
///
/// ```no_run
/// use evenkeel::Credentials;
///
/// let system = Credentials::tls().build()?;
/// let mutual = Credentials::tls()
///     .ca_file("/etc/certs/ca.pem")
///     .identity_files("/etc/certs/tls.crt", "/etc/certs/tls.key")
///     .build()?;
/// # Ok::<(), evenkeel::CredentialsError>(())
/// ```
#[derive(Clone)]
pub struct Credentials {
    /// `None`: in the clear.
    tls: Option<Arc<TlsConfigSource>>,
    /// Whether what a cluster says comes before that.
    per_cluster: bool,
}

impl Credentials {
    /// In the clear: nobody is who they say they are. For loopback, tests, and networks that secure themselves.
    pub fn insecure() -> Credentials {
        Credentials { tls: None, per_cluster: false }
    }

    /// For `xds:` targets: as the control plane says for each cluster (A29). Endpoints of a cluster of which it says nothing
    /// are talked to by `fallback`, and so are all endpoints of other targets.
    ///
    /// A cluster that is to be secured is secured, with the certificates of the bootstrap's `certificate_providers`, or
    /// cannot be reached: `fallback` is never used because something went wrong. When a cluster's security changes,
    /// its connections are made anew; calls that are under way finish where they are.
    ///
    /// ```
    /// use evenkeel::{Channel, Credentials};
    ///
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let channel = Channel::builder("xds:///orders")
    ///     .credentials(Credentials::xds(Credentials::insecure()))
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn xds(fallback: Credentials) -> Credentials {
        Credentials { per_cluster: true, ..fallback }
    }

    /// TLS: trusts the roots of the system and has no certificate of its own, unless told otherwise.
    pub fn tls() -> TlsCredentialsBuilder {
        TlsCredentialsBuilder::new()
    }

    /// What the bootstrap says about a control plane (A27, A65). Files that are not there yet are an error like any other;
    /// the caller may try again when it connects again.
    pub(crate) fn for_xds_server(credentials: &ChannelCredentials) -> Result<Credentials, CredentialsError> {
        match credentials {
            ChannelCredentials::Insecure => Ok(Credentials::insecure()),
            ChannelCredentials::Tls(files) => {
                let mut tls = Credentials::tls().refresh_every(files.refresh_interval);
                if let Some(file) = &files.ca_certificate_file {
                    tls = tls.ca_file(file);
                }
                if let Some(pair) = &files.identity {
                    tls = tls.identity_files(&pair.certificate_file, &pair.private_key_file);
                }
                tls.build()
            }
            ChannelCredentials::GoogleDefault => Err(CredentialsError::new(
                "google_default credentials of an xds server are not supported: they need access tokens; expected \
                 insecure or tls",
            )),
            other => Err(CredentialsError::new(format!(
                "credentials of an xds server of this kind are not supported: {other:?}; expected insecure or tls"
            ))),
        }
    }

    /// Whether clusters have a say.
    pub(crate) fn is_per_cluster(&self) -> bool {
        self.per_cluster
    }

    /// How connections are protected where no cluster says otherwise.
    pub(crate) fn level(&self) -> SecurityLevel {
        match self.tls {
            Some(_) => SecurityLevel::PrivacyAndIntegrity,
            None => SecurityLevel::None,
        }
    }

    /// What handshakes are made from; `None` if there are none, since connections are in the clear.
    pub(crate) fn tls_config_source(&self) -> Option<&Arc<TlsConfigSource>> {
        self.tls.as_ref()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.per_cluster {
            f.write_str("by cluster, else ")?;
        }
        match &self.tls {
            None => f.write_str("Insecure"),
            Some(source) => source.sources.fmt(f),
        }
    }
}
