//! Certificates generated in the test, and the matching TLS server config.
//!
//! Everything is PEM text. The crypto provider is ring, passed explicitly: a test must neither install nor
//! depend on a process-wide provider.

use std::net::IpAddr;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType, date_time_ymd,
};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

/// Certificate authority with its key.
pub struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    /// Creates a CA with its own key. Two CAs of the same name do not trust each other.
    pub fn new(name: &str) -> Self {
        let mut params = named(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Self(CertifiedIssuer::self_signed(params, key()).expect("ring signs with a key it has made"))
    }

    /// Returns the CA's own certificate.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Issues a server certificate for these names: IP addresses, URIs (with `://`, as in SPIFFE), e-mail
    /// addresses (with `@`) and DNS names. Without names it has no SAN.
    pub fn issue(&self, names: &[&str]) -> Cert {
        self.sign(&params(names, ExtendedKeyUsagePurpose::ServerAuth))
    }

    /// Issues a client certificate for these names. It is not valid for servers.
    pub fn issue_client(&self, names: &[&str]) -> Cert {
        self.sign(&params(names, ExtendedKeyUsagePurpose::ClientAuth))
    }

    /// Issues a server certificate that expired years ago.
    pub fn issue_expired(&self, names: &[&str]) -> Cert {
        let mut params = params(names, ExtendedKeyUsagePurpose::ServerAuth);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2020, 2, 1);
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> Cert {
        let key = key();
        let signed = params.signed_by(&key, &self.0).expect("ring signs with a key it has made");
        Cert { pem: signed.pem(), key_pem: key.serialize_pem() }
    }
}

/// Certificate and its private key.
#[derive(Clone)]
pub struct Cert {
    /// Certificate as PEM text.
    pub pem: String,
    /// Private key in PKCS #8.
    pub key_pem: String,
}

/// Returns the config of an HTTP/2-only server with this certificate. With `client_ca`, a PEM text of CAs,
/// clients must present a certificate of one of them.
pub fn server_config(cert: &Cert, client_ca: Option<&str>) -> ServerConfig {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("ring has the default versions");
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(pem)), provider());
            builder.with_client_cert_verifier(verifier.build().expect("there is a client authority"))
        }
    };
    let mut config = builder
        .with_single_cert(chain(&cert.pem), private_key(&cert.key_pem))
        .expect("the key belongs to the certificate");
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

/// Returns the ring provider.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Returns the CAs of a PEM text.
pub fn roots(pem: &str) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    for authority in chain(pem) {
        roots.add(authority).expect("an authority's certificate");
    }
    roots
}

/// Returns the certificates of a PEM text, in order.
pub fn chain(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).map(|cert| cert.expect("a PEM text")).collect()
}

/// Returns the private key of a PEM text.
pub fn private_key(pem: &str) -> PrivateKeyDer<'static> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).expect("a PEM text with a key")
}

fn key() -> KeyPair {
    KeyPair::generate().expect("the system has randomness")
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn params(names: &[&str], usage: ExtendedKeyUsagePurpose) -> CertificateParams {
    let mut params = named(names.first().unwrap_or(&"nameless"));
    params.subject_alt_names = names.iter().map(|name| san(name)).collect();
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![usage];
    params
}

fn san(name: &str) -> SanType {
    if let Ok(address) = name.parse::<IpAddr>() {
        return SanType::IpAddress(address);
    }
    let text = name.try_into().expect("names in certificates are ASCII");
    if name.contains("://") {
        SanType::URI(text)
    } else if name.contains('@') {
        SanType::Rfc822Name(text)
    } else {
        SanType::DnsName(text)
    }
}
