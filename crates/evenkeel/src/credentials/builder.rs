//! Builder of TLS credentials: roots, identity, server name and reload interval.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::credentials::pem::{IdentitySource, PemSource, TlsSources};
use crate::credentials::tls_config::{TlsConfigSource, parse_server_name};
use crate::credentials::{Credentials, CredentialsError};

/// How often files are read again unless the user says otherwise; the same as for control planes (A65).
const REFRESH_EVERY: Duration = Duration::from_secs(600);

/// TLS credentials that are being described; [`TlsCredentialsBuilder::build`] reads what they name.
#[derive(Clone, Debug)]
#[must_use = "it is a description; `build` makes credentials of it"]
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

    /// Trusts the certificates in this PEM text instead of the system's roots. May be called several times, also beside
    /// [`TlsCredentialsBuilder::ca_file`]: all of them are trusted.
    pub fn ca_pem(mut self, pem: impl AsRef<[u8]>) -> TlsCredentialsBuilder {
        self.roots.push(PemSource::pem(pem));
        self
    }

    /// As [`TlsCredentialsBuilder::ca_pem`], from a file that is read again every now and then ([`TlsCredentialsBuilder::refresh_every`]).
    pub fn ca_file(mut self, file: impl Into<PathBuf>) -> TlsCredentialsBuilder {
        self.roots.push(PemSource::File(file.into()));
        self
    }

    /// Shows servers that ask for it this certificate (mTLS): PEM texts of the certificate, followed by those between it
    /// and the root if there are any, and of its private key. The last identity that is given counts.
    pub fn identity_pem(
        mut self,
        cert_chain: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
    ) -> TlsCredentialsBuilder {
        self.identity = Some(IdentitySource { chain: PemSource::pem(cert_chain), key: PemSource::pem(key) });
        self
    }

    /// As [`TlsCredentialsBuilder::identity_pem`], from files that are read again every now and then ([`TlsCredentialsBuilder::refresh_every`]).
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

    /// The name that certificates must be valid for, and that servers are told (SNI), in place of the target's. A DNS name
    /// or an IP address.
    pub fn server_name(mut self, name: impl Into<String>) -> TlsCredentialsBuilder {
        self.server_name = Some(name.into());
        self
    }

    /// How old what was read from files may be when a connection starts; 600 s if not given. Zero reads them for every
    /// connection.
    ///
    /// Links are followed each time, so swapping one works as well as writing files. What cannot be used (a half-written
    /// file, a key of another certificate) leaves the last good roots or pair in force and is logged once. Connections that
    /// exist are left alone.
    pub fn refresh_every(mut self, interval: Duration) -> TlsCredentialsBuilder {
        self.refresh_every = interval;
        self
    }

    /// Reads everything once. The error names the file or the PEM text that cannot be used.
    ///
    /// Reads files (the system's roots once per process), so it blocks for some milliseconds.
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
                "CA PEM: is not proper PEM: a section has no -----END line; is the file whole?",
            ),
            (
                Credentials::tls().ca_pem(ca.pem().replacen(
                    "BEGIN CERTIFICATE-----",
                    "BEGIN CERTIFICATE",
                    1,
                )),
                "CA PEM: is not proper PEM: a -----BEGIN line is broken",
            ),
            (
                Credentials::tls().ca_pem(not_der.replace("aGVsbG8=", "?")),
                "CA PEM: is not proper PEM: a section has broken base64",
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
