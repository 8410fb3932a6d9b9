//! Certificate authorities and certificates for tests.

use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::time::timeout;

use crate::credentials::tls_config::provider;

/// Certificate authority with its key.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Authority {
        Authority::with(name, |_| {})
    }

    pub(crate) fn with(name: &str, change: impl FnOnce(&mut CertificateParams)) -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        change(&mut params);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let pem = issuer.pem();
        Authority { issuer, pem }
    }

    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// Returns an intermediate authority that this one signed.
    pub(crate) fn below(&self, name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::signed_by(params, KeyPair::generate().unwrap(), &self.issuer).unwrap();
        let pem = issuer.pem();
        Authority { issuer, pem }
    }

    /// Returns a certificate for these DNS names and IP addresses.
    pub(crate) fn leaf(&self, names: &[&str]) -> Leaf {
        self.sign(names, |_| {})
    }

    pub(crate) fn expired(&self, names: &[&str]) -> Leaf {
        self.sign(names, |params| {
            params.not_before = rcgen::date_time_ymd(2019, 1, 1);
            params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        })
    }

    pub(crate) fn of_tomorrow(&self, names: &[&str]) -> Leaf {
        self.sign(names, |params| params.not_before = rcgen::date_time_ymd(3000, 1, 1))
    }

    pub(crate) fn for_clients(&self, names: &[&str]) -> Leaf {
        self.sign(names, |params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth])
    }

    pub(crate) fn sign(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Leaf {
        let names = names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let mut params = CertificateParams::new(names).unwrap();
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Leaf { chain: certificate.pem(), key: key.serialize_pem() }
    }
}

/// End-entity certificate with its key.
pub(crate) struct Leaf {
    chain: String,
    key: String,
}

impl Leaf {
    pub(crate) fn chain_pem(&self) -> &str {
        &self.chain
    }

    pub(crate) fn key_pem(&self) -> &str {
        &self.key
    }

    pub(crate) fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.chain.as_bytes()).unwrap()
    }

    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap()
    }
}

/// Returns the crypto provider of test servers: the same as that of the clients, for every feature.
pub(crate) fn cryptography() -> Arc<CryptoProvider> {
    provider().unwrap()
}

/// Runs a step of a test with a generous timeout.
pub(crate) async fn within<T>(step: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(30), step).await.expect("it takes too long")
}
