//! TLS according to the security config of a cluster (A29, A82, A101).
//!
//! Each handshake builds its TLS config from the cluster's resource and the current certificates of the bootstrap's
//! providers. This is cheap compared to the handshake. A missing certificate is an error, and no other kind of connection
//! is opened instead.

use std::net::Ipv4Addr;
use std::sync::Arc;

use evenkeel_core::TransportParams;
use evenkeel_xds::resource::{
    CertificateSource, ClusterSecurity, RootCertificates, SanMatcher, SecurityConfig,
};
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore};
use tokio::task;

use crate::credentials::pem::system_roots;
use crate::credentials::provider::CertificateProviders;
use crate::credentials::tls_config::provider;
use crate::credentials::verifier::SanVerifier;
use crate::credentials::{CredentialsError, H2};

/// TLS settings for connections to an endpoint of a cluster.
pub(crate) struct ClusterTls {
    means: TransportParams,
    providers: Arc<CertificateProviders>,
}

impl ClusterTls {
    /// Creates the settings from the `TransportParams` of a subchannel.
    pub(crate) fn new(means: TransportParams, providers: Arc<CertificateProviders>) -> ClusterTls {
        ClusterTls { means, providers }
    }

    /// Returns the name of the cluster, for error messages.
    pub(crate) fn cluster(&self) -> &str {
        self.means.get::<ClusterSecurity>().map_or("", |of| &of.cluster)
    }

    /// Returns the config and the server name for the next handshake. The error names the missing part.
    pub(crate) async fn handshake(
        &self,
    ) -> Result<(Arc<ClientConfig>, ServerName<'static>), CredentialsError> {
        let Some(ClusterSecurity { cluster, security }) = self.means.get() else {
            return Err(CredentialsError::new("the cluster's security config is unsupported"));
        };
        let made = self.made_for(security).await;
        made.map_err(|error| CredentialsError::with_cause(format!("cluster {cluster:?}"), error))
    }

    async fn made_for(
        &self,
        security: &Arc<SecurityConfig>,
    ) -> Result<(Arc<ClientConfig>, ServerName<'static>), CredentialsError> {
        let roots = self.roots(&security.roots).await?;
        let identity = match &security.identity {
            Some(source) => Some(self.identity(source).await?),
            None => None,
        };
        let sni = self.sni(security);
        let name = match sni {
            Some(sni) => server_name(sni)?,
            // A placeholder: SNI is disabled, and the verifier ignores the name.
            None => ServerName::from(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        };
        let mut config = config(security, sni, roots, identity)?;
        config.enable_sni = sni.is_some();
        Ok((Arc::new(config), name))
    }

    async fn roots(&self, roots: &RootCertificates) -> Result<Arc<RootCertStore>, CredentialsError> {
        match roots {
            RootCertificates::Provider(source) => self.providers.named(&source.instance)?.roots().await,
            RootCertificates::System => task::spawn_blocking(system_roots)
                .await
                .unwrap_or_else(|_| Err(CredentialsError::new("system roots: the runtime is shutting down"))),
        }
    }

    async fn identity(&self, source: &CertificateSource) -> Result<Arc<CertifiedKey>, CredentialsError> {
        self.providers.named(&source.instance)?.identity().await
    }

    /// Returns the server name to send (A101): the endpoint's if `auto_host_sni` is set, else the cluster's.
    fn sni<'a>(&'a self, security: &'a SecurityConfig) -> Option<&'a str> {
        let host_name = self.means.host_name().filter(|_| security.auto_host_sni);
        host_name.map(|name| without_port(name)).or(security.sni.as_deref())
    }
}

fn config(
    security: &Arc<SecurityConfig>,
    sni: Option<&str>,
    roots: Arc<RootCertStore>,
    identity: Option<Arc<CertifiedKey>>,
) -> Result<ClientConfig, CredentialsError> {
    let provider = provider()?;
    let verifier = SanVerifier {
        roots,
        security: security.clone(),
        only: sni.filter(|_| security.auto_sni_san_validation).map(SanMatcher::dns),
        algorithms: provider.signature_verification_algorithms,
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| CredentialsError::with_cause("failed to build the TLS config".to_owned(), error))?
        // rustls calls every custom verifier dangerous. This one checks the chain and the SANs (A29).
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match identity {
        Some(pair) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair))),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![H2.to_vec()];
    // A resumed session skips the verifier, and a ticket belongs to one endpoint of the cluster.
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn server_name(sni: &str) -> Result<ServerName<'static>, CredentialsError> {
    ServerName::try_from(sni.to_owned())
        .map_err(|_| CredentialsError::new(format!("server name {sni:?} (SNI): expected a DNS name")))
}

/// Strips the port of a host name: `:authority` may have one, SNI may not (A101).
fn without_port(name: &str) -> &str {
    match name.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') && port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_are_sent_without_their_port() {
        for (name, sent) in
            [("pay", "pay"), ("pay.example:443", "pay.example"), ("[::1]:443", "[::1]:443"), ("::1", "::1")]
        {
            assert_eq!(without_port(name), sent);
        }
    }
}
