//! Certificates and private keys from PEM text, files and the system.

use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, RootCertStore};

use crate::credentials::CredentialsError;

/// Sources of the certificates and of the private key.
#[derive(Debug)]
pub(super) struct TlsSources {
    /// Sources of the roots; the system's roots if empty.
    pub(super) roots: Vec<PemSource>,
    pub(super) identity: Option<IdentitySource>,
}

#[derive(Clone, Debug)]
pub(super) struct IdentitySource {
    pub(super) chain: PemSource,
    pub(super) key: PemSource,
}

#[derive(Clone)]
pub(super) enum PemSource {
    Pem(Vec<u8>),
    File(PathBuf),
}

impl TlsSources {
    pub(super) fn has_files(&self) -> bool {
        let pair = self.identity.iter().flat_map(|pair| [&pair.chain, &pair.key]);
        self.roots.iter().chain(pair).any(|source| matches!(source, PemSource::File(_)))
    }

    pub(super) fn read_roots(&self) -> Result<Arc<RootCertStore>, CredentialsError> {
        if self.roots.is_empty() {
            return system_roots();
        }
        let mut roots = RootCertStore::empty();
        for source in &self.roots {
            let name = source.name("CA");
            for (i, certificate) in source.certificates(&name)?.into_iter().enumerate() {
                roots.add(certificate).map_err(|error| {
                    CredentialsError::with_cause(
                        format!("{name}: certificate {} cannot be used", i + 1),
                        error,
                    )
                })?;
            }
        }
        Ok(Arc::new(roots))
    }

    pub(super) fn read_identity(
        &self,
        provider: &CryptoProvider,
    ) -> Result<Option<Arc<CertifiedKey>>, CredentialsError> {
        let Some(IdentitySource { chain, key }) = &self.identity else { return Ok(None) };
        let (chain_name, key_name) = (chain.name("client certificate"), key.name("client key"));
        let certificates = chain.certificates(&chain_name)?;
        let key = key.private_key(&key_name)?;
        let key = provider.key_provider.load_private_key(key).map_err(|error| {
            CredentialsError::with_cause(format!("{key_name}: the private key cannot be used"), error)
        })?;
        let pair = CertifiedKey::new(certificates, key);
        match pair.keys_match() {
            // The public half of some keys is unknown. They are accepted, and the server detects a mismatch.
            Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {
                Ok(Some(Arc::new(pair)))
            }
            Err(rustls::Error::InconsistentKeys(_)) => Err(CredentialsError::new(format!(
                "{key_name}: the private key does not belong to the first certificate of the {chain_name}"
            ))),
            Err(error) => Err(CredentialsError::with_cause(
                format!("{chain_name}: certificate 1 cannot be used"),
                error,
            )),
        }
    }
}

impl PemSource {
    pub(super) fn pem(pem: impl AsRef<[u8]>) -> PemSource {
        PemSource::Pem(pem.as_ref().to_vec())
    }

    fn name(&self, part: &str) -> String {
        match self {
            PemSource::Pem(_) => format!("{part} PEM"),
            PemSource::File(file) => format!("{part} file {:?}", file.display().to_string()),
        }
    }

    fn certificates(&self, name: &str) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
        let pem = self.read(name)?;
        let certificates = CertificateDer::pem_slice_iter(&pem)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| pem_error(name, &error))?;
        if certificates.is_empty() {
            return Err(CredentialsError::new(format!(
                "{name}: has no certificate (-----BEGIN CERTIFICATE-----)"
            )));
        }
        Ok(certificates)
    }

    fn private_key(&self, name: &str) -> Result<PrivateKeyDer<'static>, CredentialsError> {
        PrivateKeyDer::from_pem_slice(&self.read(name)?).map_err(|error| match error {
            pem::Error::NoItemsFound => CredentialsError::new(format!(
                "{name}: has no private key (PKCS#8, PKCS#1 or SEC1, and not encrypted)"
            )),
            error => pem_error(name, &error),
        })
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, CredentialsError> {
        match self {
            PemSource::Pem(pem) => Ok(pem.clone()),
            PemSource::File(file) => fs::read(file)
                .map_err(|error| CredentialsError::with_cause(format!("{name}: cannot be read"), error)),
        }
    }
}

/// Omits the PEM text, which may contain a key.
impl fmt::Debug for PemSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PemSource::Pem(_) => f.write_str("PEM"),
            PemSource::File(file) => file.fmt(f),
        }
    }
}

/// Returns an error without the parser's message, which would contain the text and possibly a key.
fn pem_error(name: &str, error: &pem::Error) -> CredentialsError {
    let problem = match error {
        pem::Error::MissingSectionEnd { .. } => "a section has no -----END line; the file may be truncated",
        pem::Error::IllegalSectionStart { .. } => "a -----BEGIN line is malformed",
        pem::Error::Base64Decode(_) => "a section has invalid base64",
        _ => "it is malformed",
    };
    CredentialsError::new(format!("{name}: is not valid PEM: {problem}"))
}

/// Returns the system's roots, loaded once per process because there are many. A failure is not cached: the roots may
/// be installed later.
pub(super) fn system_roots() -> Result<Arc<RootCertStore>, CredentialsError> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    if let Some(roots) = ROOTS.get() {
        return Ok(roots.clone());
    }
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let count = found.certs.len();
    // System stores may contain certificates that rustls cannot parse. One of them must not disable TLS.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let what = match count {
            0 => "system roots: no certificate was found".to_owned(),
            count => format!("system roots: none of {count} certificates can be used"),
        };
        let advice = "install the system's CA certificates, or configure a CA";
        return Err(match found.errors.into_iter().next() {
            Some(error) => CredentialsError::with_cause(format!("{what}; {advice}"), error),
            None => CredentialsError::new(format!("{what}; {advice}")),
        });
    }
    // Two threads may load at the same time, and the first result is kept.
    Ok(ROOTS.get_or_init(|| Arc::new(roots)).clone())
}
