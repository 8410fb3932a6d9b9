//! Builder of TLS credentials: roots, identity, server name and reload interval.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::credentials::pem::{IdentitySource, PemSource, TlsSources};
use crate::credentials::tls_config::{TlsConfigSource, parse_server_name};
use crate::credentials::{Credentials, CredentialsError};

/// Default interval between reloads of files, as for control planes (A65).
const REFRESH_EVERY: Duration = Duration::from_secs(600);

/// Builder of TLS credentials. [`TlsCredentialsBuilder::build`] reads the files.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct TlsCredentialsBuilder {
    roots: Vec<PemSource>,
    identity: Option<IdentitySource>,
    server_name: Option<String>,
    refresh_every: Duration,
}

impl TlsCredentialsBuilder {
    pub(super) fn new() -> TlsCredentialsBuilder {
        TlsCredentialsBuilder {
            roots: Vec::new(),
            identity: None,
            server_name: None,
            refresh_every: REFRESH_EVERY,
        }
    }

    /// Trusts the certificates in this PEM text instead of the system's roots. Repeated calls add certificates, as do
    /// those of [`TlsCredentialsBuilder::ca_file`].
    pub fn ca_pem(mut self, pem: impl AsRef<[u8]>) -> TlsCredentialsBuilder {
        self.roots.push(PemSource::pem(pem));
        self
    }

    /// Same as [`TlsCredentialsBuilder::ca_pem`], from a file that is [reloaded](TlsCredentialsBuilder::refresh_every).
    pub fn ca_file(mut self, file: impl Into<PathBuf>) -> TlsCredentialsBuilder {
        self.roots.push(PemSource::File(file.into()));
        self
    }

    /// Presents this certificate to servers that request one (mTLS). `cert_chain` is the PEM text of the certificate,
    /// followed by its intermediates; `key` is the PEM text of the private key. The last identity set is used.
    pub fn identity_pem(
        mut self,
        cert_chain: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
    ) -> TlsCredentialsBuilder {
        self.identity = Some(IdentitySource { chain: PemSource::pem(cert_chain), key: PemSource::pem(key) });
        self
    }

    /// Same as [`TlsCredentialsBuilder::identity_pem`], from files that are
    /// [reloaded](TlsCredentialsBuilder::refresh_every).
    pub fn identity_files(
        mut self,
        cert_chain: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> TlsCredentialsBuilder {
        self.identity = Some(IdentitySource {
            chain: PemSource::File(cert_chain.into()),
            key: PemSource::File(key.into()),
        });
        self
    }

    /// Sets the name that certificates must be valid for, also sent as SNI, in place of the target's. It is a DNS name or
    /// an IP address.
    pub fn server_name(mut self, name: impl Into<String>) -> TlsCredentialsBuilder {
        self.server_name = Some(name.into());
        self
    }

    /// Sets the maximum age of loaded files at the start of a connection; 600 s by default. Zero reloads them for every
    /// connection.
    ///
    /// Each reload follows symbolic links, so a swapped link has the same effect as a written file. If a reload fails,
    /// for example because of a half-written file, the last valid roots or key pair stay in use. The error is logged
    /// once. Open connections are not affected.
    pub fn refresh_every(mut self, interval: Duration) -> TlsCredentialsBuilder {
        self.refresh_every = interval;
        self
    }

    /// Reads all files and builds the credentials. It blocks for some milliseconds; the system's roots are read once per
    /// process.
    ///
    /// # Errors
    ///
    /// Returns an error with the name of the file or PEM text that cannot be used.
    pub fn build(self) -> Result<Credentials, CredentialsError> {
        let server_name = self.server_name.as_deref().map(parse_server_name).transpose()?;
        let sources = TlsSources { roots: self.roots, identity: self.identity };
        let source = TlsConfigSource::new(sources, server_name, self.refresh_every)?;
        Ok(Credentials { per_cluster: false, tls: Some(Arc::new(source)) })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::credentials::tests::certificates::Authority;
    use crate::credentials::tests::error_of;

    #[test]
    fn what_cannot_be_used_is_named() {
        let ca = Authority::new("ca");
        let [a, b] = [(); 2].map(|()| ca.leaf(&["me"]));
        let (a_pem, a_key) = (a.chain_pem(), a.key_pem());
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let file = dir.path().join(name);
            fs::write(&file, text).unwrap();
            file
        };
        let missing = dir.path().join("missing");
        let (empty, key_file, chain_file) = (file("empty", ""), file("key", a_key), file("chain", a_pem));
        let not_der = "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n";
        let not_a_key = "-----BEGIN PRIVATE KEY-----\naGVsbG8=\n-----END PRIVATE KEY-----\n";
        let encrypted = a_key.replace("PRIVATE", "ENCRYPTED PRIVATE");
        let good_then_bad = [ca.pem(), not_der].concat();
        let tls = || Credentials::tls().ca_pem(ca.pem());
        let rows = [
            (Credentials::tls().ca_pem(""), "CA PEM: has no certificate (-----BEGIN CERTIFICATE-----)"),
            (Credentials::tls().ca_pem(a_key), "CA PEM: has no certificate (-----BEGIN CERTIFICATE-----)"),
            (tls().ca_pem("garbage"), "CA PEM: has no certificate (-----BEGIN CERTIFICATE-----)"),
            (
                Credentials::tls().ca_pem(&ca.pem()[..100]),
                "CA PEM: is not valid PEM: a section has no -----END line; the file may be truncated",
            ),
            (
                Credentials::tls().ca_pem(ca.pem().replacen(
                    "BEGIN CERTIFICATE-----",
                    "BEGIN CERTIFICATE",
                    1,
                )),
                "CA PEM: is not valid PEM: a -----BEGIN line is malformed",
            ),
            (
                Credentials::tls().ca_pem(not_der.replace("aGVsbG8=", "?")),
                "CA PEM: is not valid PEM: a section has invalid base64",
            ),
            (
                Credentials::tls().ca_pem(&good_then_bad),
                "CA PEM: certificate 2 cannot be used: invalid peer certificate: BadEncoding",
            ),
            (
                Credentials::tls().ca_file(&missing),
                r#"CA file "DIR/missing": cannot be read: No such file or directory (os error 2)"#,
            ),
            (tls().ca_file(dir.path()), r#"CA file "DIR": cannot be read: Is a directory (os error 21)"#),
            (
                tls().ca_file(&empty),
                r#"CA file "DIR/empty": has no certificate (-----BEGIN CERTIFICATE-----)"#,
            ),
            (
                tls().identity_pem(a_key, a_key),
                "client certificate PEM: has no certificate (-----BEGIN CERTIFICATE-----)",
            ),
            (
                tls().identity_pem(not_der, a_key),
                "client certificate PEM: certificate 1 cannot be used: invalid peer certificate: BadEncoding",
            ),
            (
                tls().identity_pem(a_pem, a_pem),
                "client key PEM: has no private key (PKCS#8, PKCS#1 or SEC1, and not encrypted)",
            ),
            (
                tls().identity_pem(a_pem, encrypted),
                "client key PEM: has no private key (PKCS#8, PKCS#1 or SEC1, and not encrypted)",
            ),
            (tls().identity_pem(a_pem, not_a_key), "client key PEM: the private key cannot be used: "),
            (
                tls().identity_pem(a_pem, b.key_pem()),
                "client key PEM: the private key does not belong to the first certificate of the client certificate PEM",
            ),
            (
                tls().identity_pem([b.chain_pem(), a_pem].concat(), a_key),
                "client key PEM: the private key does not belong to the first certificate of the client certificate PEM",
            ),
            (
                tls().identity_files(&missing, &key_file),
                r#"client certificate file "DIR/missing": cannot be read: No such file or directory (os error 2)"#,
            ),
            (
                tls().identity_files(&chain_file, &empty),
                r#"client key file "DIR/empty": has no private key (PKCS#8, PKCS#1 or SEC1, and not encrypted)"#,
            ),
            (
                tls().server_name("orders:443"),
                "server name \"orders:443\": expected a DNS name or an IP address, without a port",
            ),
        ];
        let at = dir.path().display().to_string();
        for (tls, expected) in rows {
            let error = error_of(tls.build()).replace(&at, "DIR");
            assert!(error.starts_with(expected), "expected {expected}\nfound    {error}");
        }
    }

    /// Keys must not end up in logs.
    #[test]
    fn what_is_shown_has_no_pem_text() {
        let ca = Authority::new("ca");
        let leaf = ca.leaf(&["me"]);
        let tls =
            Credentials::tls().ca_file("/ca").ca_pem(ca.pem()).identity_pem(leaf.chain_pem(), leaf.key_pem());
        let shown = format!("{tls:?}");
        assert!(shown.contains("/ca") && !shown.contains("-----") && !shown.contains("45, 45"), "{shown}");
    }
}
