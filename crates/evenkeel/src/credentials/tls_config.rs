//! TLS config of the next handshake. Files are reloaded when a handshake finds them due.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore};
use tokio::sync::Mutex;
use tokio::task;
use tokio::time::Instant;

use crate::credentials::pem::TlsSources;
use crate::credentials::reload::{RETRY_AFTER, ReloadedValue};
use crate::credentials::{CredentialsError, H2};

/// Source of TLS configs for handshakes, with the certificates loaded last.
pub(crate) struct TlsConfigSource {
    pub(super) sources: TlsSources,
    pub(super) refresh_every: Duration,
    server_name: Option<ServerName<'static>>,
    provider: Arc<CryptoProvider>,
    /// Certificates loaded last. The lock is held during a reload.
    pub(super) material: Arc<Mutex<TlsMaterial>>,
    /// Config built from `material`.
    config: ArcSwap<ClientConfig>,
}

impl TlsConfigSource {
    /// Reads all files and builds the first config.
    pub(super) fn new(
        sources: TlsSources,
        server_name: Option<ServerName<'static>>,
        refresh_every: Duration,
    ) -> Result<TlsConfigSource, CredentialsError> {
        let provider = provider()?;
        let material = TlsMaterial {
            roots: ReloadedValue::new(sources.read_roots()?),
            identity: ReloadedValue::new(sources.read_identity(&provider)?),
            read_at: Instant::now(),
        };
        let config = config(&provider, &material)?;
        Ok(TlsConfigSource {
            sources,
            refresh_every,
            server_name,
            provider,
            material: Arc::new(Mutex::new(material)),
            config: ArcSwap::new(config),
        })
    }

    /// Returns the name for SNI and certificate verification: the one of these credentials, or else the host's.
    pub(crate) fn server_name(&self, host: &str) -> Result<ServerName<'static>, CredentialsError> {
        match &self.server_name {
            Some(name) => Ok(name.clone()),
            None => parse_server_name(host),
        }
    }

    /// Returns the config for the next handshake. Reloads the files if they are due.
    ///
    /// A slow disk delays only the handshake that reloads. Concurrent handshakes use the last config.
    pub(crate) async fn config(self: &Arc<TlsConfigSource>) -> Arc<ClientConfig> {
        if self.sources.has_files()
            && let Ok(mut material) = self.material.clone().try_lock_owned()
            && material.read_at.elapsed() >= self.reload_interval(&material)
        {
            // The guard moves along: the reload continues under the lock if this handshake is cancelled.
            let source = self.clone();
            // Fails only if the runtime ends, and this handshake with it.
            let _ = task::spawn_blocking(move || source.reload(&mut material)).await;
        }
        self.config.load_full()
    }

    fn reload_interval(&self, material: &TlsMaterial) -> Duration {
        let broken = material.roots.last_error.is_some() || material.identity.last_error.is_some();
        if broken { self.refresh_every.min(RETRY_AFTER) } else { self.refresh_every }
    }

    /// Reloads roots and identity independently: an invalid CA file must not prevent the rotation of an identity.
    fn reload(&self, material: &mut TlsMaterial) {
        // Also before a reload that fails: `reload_interval` repeats it sooner.
        material.read_at = Instant::now();
        material.roots.replace(self.sources.read_roots());
        material.identity.replace(self.sources.read_identity(&self.provider));
        match config(&self.provider, material) {
            Ok(config) => self.config.store(config),
            Err(error) => {
                tracing::warn!(%error, "TLS config reload failed, the previous config stays in use");
            }
        }
    }
}

/// Certificates loaded last, and the time of the load.
pub(super) struct TlsMaterial {
    pub(super) roots: ReloadedValue<Arc<RootCertStore>>,
    pub(super) identity: ReloadedValue<Option<Arc<CertifiedKey>>>,
    read_at: Instant,
}

/// Builds the config of handshakes, which lacks only the server name.
fn config(
    provider: &Arc<CryptoProvider>,
    material: &TlsMaterial,
) -> Result<Arc<ClientConfig>, CredentialsError> {
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| CredentialsError::with_cause("failed to build the TLS config".to_owned(), error))?
        .with_root_certificates(material.roots.value.clone());
    let mut config = match &material.identity.value {
        Some(pair) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair.clone()))),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![H2.to_vec()];
    // Tickets are stored by server name, but valid only at the endpoint that issued them, one of many with that name.
    // Without tickets, each connection verifies both certificates.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Returns the cryptography provider of TLS: `ring` if that feature is on, else `aws-lc-rs`.
///
/// Cargo unifies features, so any crate of a program can turn `aws-lc-rs` on. That must not replace the default provider.
/// The process default of rustls is not used: it depends on the order in which the program's parts install it.
#[allow(clippy::unnecessary_wraps, reason = "fails in a build without either feature")]
pub(super) fn provider() -> Result<Arc<CryptoProvider>, CredentialsError> {
    #[cfg(feature = "ring")]
    return Ok(Arc::new(rustls::crypto::ring::default_provider()));
    #[cfg(all(feature = "aws-lc-rs", not(feature = "ring")))]
    return Ok(Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    #[cfg(not(any(feature = "ring", feature = "aws-lc-rs")))]
    return Err(CredentialsError::new(
        "evenkeel was built without TLS; enable its feature ring or aws-lc-rs",
    ));
}

/// Parses a host into the name that TLS uses: a DNS name, or an IP address with or without brackets.
pub(super) fn parse_server_name(host: &str) -> Result<ServerName<'static>, CredentialsError> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    ServerName::try_from(bare.to_owned()).map_err(|_| {
        CredentialsError::new(format!(
            "server name {host:?}: expected a DNS name or an IP address, without a port"
        ))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::process::Command;

    use testkit::Log;
    use tokio::time::advance;

    use super::*;
    use crate::Credentials;
    use crate::credentials::tests::certificates::{Authority, within};

    /// Any crate of a program can turn `aws-lc-rs` on, and cargo then builds evenkeel with both.
    #[cfg(feature = "ring")]
    #[test]
    fn ring_stays_the_provider_when_another_crate_turns_aws_lc_rs_on() {
        assert_eq!(format!("{:?}", provider().unwrap().key_provider), "Ring");
    }

    /// CA file in a temporary folder, and credentials that use it.
    struct RootsFile {
        dir: tempfile::TempDir,
        credentials: Credentials,
    }

    impl RootsFile {
        fn new(refresh_every: Duration) -> RootsFile {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("ca.pem");
            fs::write(&file, Authority::new("first").pem()).unwrap();
            let credentials = Credentials::tls().ca_file(file).refresh_every(refresh_every).build().unwrap();
            RootsFile { dir, credentials }
        }

        fn path(&self) -> PathBuf {
            self.dir.path().join("ca.pem")
        }

        fn write(&self, text: &str) {
            fs::write(self.path(), text).unwrap();
        }

        fn tls_config_source(&self) -> &Arc<TlsConfigSource> {
            self.credentials.tls_config_source().unwrap()
        }

        /// Returns the number of roots that the next handshake trusts.
        async fn trusted(&self) -> usize {
            self.tls_config_source().config().await;
            self.tls_config_source().material.try_lock().unwrap().roots.value.len()
        }
    }

    /// Fault 79: files are reloaded after the interval. Fault 80: a failed reload is repeated after one second.
    #[tokio::test(start_paused = true)]
    async fn files_are_read_again_when_it_is_time() {
        let [a, b, c] = ["a", "b", "c"].map(Authority::new);
        let secs = Duration::from_secs;
        let roots = RootsFile::new(secs(600));
        let two = [a.pem(), b.pem()].concat();
        let three = [a.pem(), b.pem(), c.pem()].concat();
        // Content of the file, seconds that pass, number of roots trusted afterwards.
        let steps = [
            (two.as_str(), 599, 1),
            (&two, 1, 2),
            ("garbage", 599, 2),
            ("", 1, 2),
            (&three, 0, 2),
            (&three, 1, 3),
            (a.pem(), 599, 3),
            (a.pem(), 1, 1),
        ];
        for (i, (text, seconds, expected)) in steps.into_iter().enumerate() {
            roots.write(text);
            advance(secs(seconds)).await;
            let before = roots.tls_config_source().config.load_full();
            assert_eq!(roots.trusted().await, expected, "step {i}");
            // The config of handshakes is replaced by each reload.
            assert_eq!(
                Arc::ptr_eq(&before, &*roots.tls_config_source().config.load()),
                !matches!(i, 1 | 3 | 5 | 7),
                "step {i}"
            );
        }
    }

    /// A slow disk delays one handshake, not all of them.
    #[tokio::test]
    async fn a_slow_read_delays_one_handshake() {
        let roots = RootsFile::new(Duration::ZERO);
        fs::remove_file(roots.path()).unwrap();
        // A read from a pipe blocks until the test writes to it.
        assert!(Command::new("mkfifo").arg(roots.path()).status().unwrap().success());
        let source = roots.tls_config_source().clone();
        let first = tokio::spawn(async move { source.config().await });
        while roots.tls_config_source().material.try_lock().is_ok() {
            tokio::task::yield_now().await;
        }
        let others = within(roots.tls_config_source().config()).await;
        assert!(!first.is_finished());
        let text = [Authority::new("a").pem(), Authority::new("b").pem()].concat();
        let path = roots.path();
        tokio::task::spawn_blocking(move || fs::write(path, text).unwrap()).await.unwrap();
        let config = within(first).await.unwrap();
        assert!(!Arc::ptr_eq(&others, &config));
    }

    /// Fault 80: an error is logged once, and again if it differs or a reload succeeded in between.
    #[test]
    fn what_is_broken_is_logged_once() {
        let roots = RootsFile::new(Duration::ZERO);
        let good = Authority::new("a");
        let log = Log::default();
        tracing::subscriber::with_default(log.clone(), || {
            let mut material = roots.tls_config_source().material.try_lock().unwrap();
            for text in ["", "", good.pem(), "", "", &good.pem()[..100], &good.pem()[..100], good.pem()] {
                roots.write(text);
                roots.tls_config_source().reload(&mut material);
            }
        });
        let said = log.lines();
        let reasons = ["has no certificate", "has no certificate", "a section has no -----END line"];
        assert_eq!(said.len(), reasons.len(), "{said:?}");
        for (line, reason) in said.iter().zip(reasons) {
            assert!(line.contains("ca.pem") && line.contains(reason), "{line}");
        }
    }
}
