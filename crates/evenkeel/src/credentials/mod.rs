//! Credentials: the client's identity, and the certificates that servers must present.
//!
//! [`Credentials`] are built once and shared by all connections. Files are reloaded, so that certificates rotate while
//! connections stay open: each handshake loads the current config ([`TlsConfigSource::config`]). Only a handshake reads
//! the clock. Credentials have no task, so none can leak.
//!
//! Security never falls back to less. A file that cannot be read on the first load is an error. If a reload fails, the
//! last valid certificates stay in use. The transport performs the handshake.
//!
//! [`Credentials`] apply to a whole channel. [`cluster`] applies the security config of one cluster.
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

/// ALPN protocol id of HTTP/2, which gRPC requires.
pub(crate) const H2: &[u8] = b"h2";

/// Security of connections: plaintext, TLS or mTLS. Cheap to clone; clones share the loaded certificates.
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
    /// Source of TLS configs; `None` for plaintext.
    tls: Option<Arc<TlsConfigSource>>,
    /// True if the security config of a cluster takes precedence over `tls`.
    per_cluster: bool,
}

impl Credentials {
    /// Returns credentials for plaintext, without authentication. For loopback, tests, and networks that are secured by
    /// other means.
    pub fn insecure() -> Credentials {
        Credentials { tls: None, per_cluster: false }
    }

    /// Returns credentials for `xds:` targets, with the security config of each cluster
    /// ([A29](https://github.com/grpc/proposal/blob/master/A29-xds-tls-security.md)). `fallback` applies to clusters
    /// without a security config and to other targets.
    ///
    /// A cluster with a security config uses TLS with the certificates of the bootstrap's `certificate_providers`.
    /// Errors never select `fallback`: without the required certificates, no connection is opened. When the security
    /// config of a cluster changes, new connections replace its connections. Calls in flight finish on the old ones.
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

    /// Returns a builder for TLS. By default, the system's roots are trusted and no client certificate is presented.
    pub fn tls() -> TlsCredentialsBuilder {
        TlsCredentialsBuilder::new()
    }

    /// Builds the credentials that the bootstrap sets for a control plane (A27, A65). A missing file is an error; the
    /// caller may retry on its next connection attempt.
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
            other => Err(CredentialsError::new(format!(
                "credentials of an xds server of this kind are not supported: {other:?}; expected insecure or tls"
            ))),
        }
    }

    /// Returns true if the security config of a cluster takes precedence.
    pub(crate) fn is_per_cluster(&self) -> bool {
        self.per_cluster
    }

    /// Returns the security level of connections without a cluster's security config.
    pub(crate) fn level(&self) -> SecurityLevel {
        match self.tls {
            Some(_) => SecurityLevel::PrivacyAndIntegrity,
            None => SecurityLevel::None,
        }
    }

    /// Returns the source of TLS configs, `None` for plaintext.
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
