//! Certificates for the secure cases, generated for each: a CA, its server and client, and a server with
//! another identity.

use std::fs;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Failure, Result};

/// Name of the certificate provider in bootstraps.
pub(super) const PROVIDER: &str = "certificates";

/// SPIFFE id of the server that clusters accept.
pub(super) const SERVER: &str = "spiffe://interop/server";

/// SPIFFE id of the server that clusters reject.
const STRANGER: &str = "spiffe://interop/stranger";

/// Folder of certificate files, removed on drop.
pub struct Certificates(TempDir);

impl Certificates {
    /// Generates the certificates and writes the files.
    pub(super) fn new() -> Result<Certificates> {
        let failed = |error: &dyn std::fmt::Display| Failure::new(format!("no certificates: {error}"));
        let certificates = Certificates(tempfile::tempdir().map_err(|error| failed(&error))?);
        certificates.write().map_err(|error| failed(&*error))?;
        Ok(certificates)
    }

    fn write(&self) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let mut params = named("authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        fs::write(self.file("ca.pem"), authority.pem())?;
        let purposes = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        for (file, name) in
            [("server", SERVER), ("stranger", STRANGER), ("client", "spiffe://interop/client")]
        {
            let mut params = named(file);
            params.subject_alt_names = vec![SanType::URI(name.try_into()?)];
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = purposes.to_vec();
            let key = KeyPair::generate()?;
            fs::write(self.file(&format!("{file}.pem")), params.signed_by(&key, &authority)?.pem())?;
            fs::write(self.file(&format!("{file}.key")), key.serialize_pem())?;
        }
        Ok(())
    }

    fn file(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// Returns the flags of the accepted server, with or without required client certificates.
    pub fn of_server(&self, wants_clients: bool) -> Vec<String> {
        let mut flags = self.of("server");
        if wants_clients {
            flags.push(format!("--tls_client_ca_file={}", self.file("ca.pem")));
        }
        flags
    }

    /// Returns the flags of the rejected server.
    pub fn of_stranger(&self) -> Vec<String> {
        self.of("stranger")
    }

    fn of(&self, name: &str) -> Vec<String> {
        vec![
            format!("--tls_certificate_file={}", self.file(&format!("{name}.pem"))),
            format!("--tls_private_key_file={}", self.file(&format!("{name}.key"))),
        ]
    }

    /// Returns the certificate providers of a client's bootstrap.
    pub(super) fn providers(&self) -> Value {
        self.providers_as(PROVIDER)
    }

    /// Returns the certificate providers of a client's bootstrap, with this name.
    pub(super) fn providers_as(&self, name: &str) -> Value {
        let files = json!({
            "certificate_file": self.file("client.pem"),
            "private_key_file": self.file("client.key"),
            "ca_certificate_file": self.file("ca.pem"),
            "refresh_interval": "600s",
        });
        json!({name: {"plugin_name": "file_watcher", "config": files}})
    }
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}
