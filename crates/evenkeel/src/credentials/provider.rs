//! Certificate providers: named certificate files of the bootstrap, which clusters refer to (A29).
//!
//! A process has one provider per name and set of files, shared by all channels and clusters, so that each file is read
//! once. A handshake reloads the files if they are due; there is no task. Roots and identity are reloaded independently,
//! and the last valid value of each stays in use (fault 80). While there is none, handshakes fail with the cause.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex as StdMutex, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use evenkeel_xds::bootstrap::{Bootstrap, CertificateFiles, CertificateProvider};
use rustls::RootCertStore;
use rustls::sign::CertifiedKey;
use tokio::sync::Mutex;
use tokio::task;
use tokio::time::Instant;

use crate::credentials::CredentialsError;
use crate::credentials::pem::{IdentitySource, PemSource, TlsSources};
use crate::credentials::reload::{RETRY_AFTER, ReloadedValue};
use crate::credentials::tls_config::provider;
use crate::sync::lock;

/// Every provider of the process that is in use.
static ALL: StdMutex<Vec<Weak<FileWatcherProvider>>> = StdMutex::new(Vec::new());

/// Certificate providers of a bootstrap, by name.
pub(crate) struct CertificateProviders(BTreeMap<String, Arc<FileWatcherProvider>>);

impl CertificateProviders {
    /// Creates the providers of a bootstrap without reading their files.
    pub(crate) fn from_bootstrap(bootstrap: &Bootstrap) -> CertificateProviders {
        let mut all = lock(&ALL);
        let mut by_name = BTreeMap::new();
        for (name, known) in &bootstrap.certificate_providers {
            // An unsupported kind has no provider. Handshakes of its clusters fail with that cause.
            if let CertificateProvider::FileWatcher(files) = known {
                by_name.insert(name.clone(), shared(name, files, &mut all));
            }
        }
        CertificateProviders(by_name)
    }

    pub(super) fn named(&self, name: &str) -> Result<&Arc<FileWatcherProvider>, CredentialsError> {
        self.0.get(name).ok_or_else(|| {
            CredentialsError::new(format!(
                "the bootstrap has no certificate provider {name:?} that is supported"
            ))
        })
    }
}

/// Returns the process's provider with this name and these files.
fn shared(
    name: &str,
    files: &CertificateFiles,
    all: &mut Vec<Weak<FileWatcherProvider>>,
) -> Arc<FileWatcherProvider> {
    let same = |provider: &Arc<FileWatcherProvider>| provider.name == name && provider.files == *files;
    if let Some(provider) = all.iter().filter_map(Weak::upgrade).find(same) {
        return provider;
    }
    let provider = Arc::new(FileWatcherProvider::new(name, files));
    all.retain(|provider| provider.strong_count() > 0);
    all.push(Arc::downgrade(&provider));
    provider
}

/// Provider that reads certificates from files.
pub(super) struct FileWatcherProvider {
    name: String,
    files: CertificateFiles,
    sources: TlsSources,
    /// The lock is held during a reload.
    readings: Arc<Mutex<CertificateReadings>>,
    /// Certificates for handshakes; empty before the first load.
    known: ArcSwapOption<ProviderCertificates>,
}

/// Certificates loaded last, and the time of the load.
struct CertificateReadings {
    roots: ReloadedValue<Option<Arc<RootCertStore>>>,
    identity: ReloadedValue<Option<Arc<CertifiedKey>>>,
    at: Option<Instant>,
}

/// Last valid roots and identity, or the error if there are none.
struct ProviderCertificates {
    roots: Result<Arc<RootCertStore>, String>,
    identity: Result<Arc<CertifiedKey>, String>,
}

impl FileWatcherProvider {
    fn new(name: &str, files: &CertificateFiles) -> FileWatcherProvider {
        let file = |path: &String| PemSource::File(path.into());
        let identity = files.identity.as_ref();
        let sources = TlsSources {
            roots: files.ca_certificate_file.iter().map(file).collect(),
            identity: identity.map(|pair| IdentitySource {
                chain: file(&pair.certificate_file),
                key: file(&pair.private_key_file),
            }),
        };
        let readings = CertificateReadings {
            roots: ReloadedValue::new(None),
            identity: ReloadedValue::new(None),
            at: None,
        };
        FileWatcherProvider {
            name: name.to_owned(),
            files: files.clone(),
            sources,
            readings: Arc::new(Mutex::new(readings)),
            known: ArcSwapOption::empty(),
        }
    }

    /// Returns the roots that server certificates are verified against.
    pub(super) async fn roots(
        self: &Arc<FileWatcherProvider>,
    ) -> Result<Arc<RootCertStore>, CredentialsError> {
        let known = self.known().await;
        self.certificate(known.as_ref().map(|known| &known.roots))
    }

    /// Returns the client certificate and its key.
    pub(super) async fn identity(
        self: &Arc<FileWatcherProvider>,
    ) -> Result<Arc<CertifiedKey>, CredentialsError> {
        let known = self.known().await;
        self.certificate(known.as_ref().map(|known| &known.identity))
    }

    fn certificate<T: Clone>(&self, known: Option<&Result<T, String>>) -> Result<T, CredentialsError> {
        let why = match known {
            Some(Ok(value)) => return Ok(value.clone()),
            Some(Err(why)) => why,
            None => "was not read, the runtime is shutting down",
        };
        Err(CredentialsError::new(format!("certificate provider {:?}: {why}", self.name)))
    }

    /// Returns the certificates for the next handshake. Reloads the files if they are due.
    ///
    /// A slow disk delays the handshake that reloads, and all handshakes until the first load has finished.
    async fn known(self: &Arc<FileWatcherProvider>) -> Option<Arc<ProviderCertificates>> {
        let readings = self.readings.clone();
        let mut readings = match readings.try_lock_owned() {
            Ok(readings) => readings,
            Err(_) => match self.known.load_full() {
                Some(known) => return Some(known),
                // Nothing is loaded yet: wait for the handshake that loads. Its time in `at` prevents a second load.
                None => self.readings.clone().lock_owned().await,
            },
        };
        if readings.at.is_none_or(|at| at.elapsed() >= self.reload_interval(&readings)) {
            // The guard moves along: the reload continues under the lock if this handshake is cancelled.
            let provider = self.clone();
            // Fails only if the runtime ends, and this handshake with it.
            let _ = task::spawn_blocking(move || provider.reload(&mut readings)).await;
        }
        self.known.load_full()
    }

    fn reload_interval(&self, readings: &CertificateReadings) -> Duration {
        let every = self.files.refresh_interval;
        let broken = readings.roots.last_error.is_some() || readings.identity.last_error.is_some();
        if broken { every.min(RETRY_AFTER) } else { every }
    }

    fn reload(&self, readings: &mut CertificateReadings) {
        readings.at = Some(Instant::now());
        if self.files.ca_certificate_file.is_some() {
            readings.roots.replace(self.sources.read_roots().map(Some));
        }
        if self.files.identity.is_some() {
            let read = provider().and_then(|provider| self.sources.read_identity(&provider));
            readings.identity.replace(read);
        }
        self.known.store(Some(Arc::new(ProviderCertificates {
            roots: readings.roots.known("ca_certificate_file"),
            identity: readings.identity.known("certificate_file and private_key_file"),
        })));
    }
}

impl<T: Clone> ReloadedValue<Option<T>> {
    /// Returns the last valid value. `field` is the bootstrap's field for its files.
    fn known(&self, field: &str) -> Result<T, String> {
        match (&self.value, &self.last_error) {
            (Some(value), _) => Ok(value.clone()),
            (None, Some(last_error)) => Err(last_error.clone()),
            (None, None) => Err(format!("the bootstrap does not set its {field}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use evenkeel_xds::bootstrap::IdentityFiles;
    use testkit::Log;
    use tokio::time::advance;

    use super::*;
    use crate::credentials::tests::certificates::{Authority, within};

    fn files(folder: &Path) -> CertificateFiles {
        let at = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        let identity = IdentityFiles { certificate_file: at("tls.crt"), private_key_file: at("tls.key") };
        CertificateFiles {
            ca_certificate_file: Some(at("ca.pem")),
            identity: Some(identity),
            refresh_interval: Duration::from_secs(600),
        }
    }

    fn bootstrap(providers: &[(&str, &CertificateFiles)]) -> Bootstrap {
        let text = r#"{"xds_servers": [{"server_uri": "a:1", "channel_creds": [{"type": "insecure"}]}]}"#;
        let mut bootstrap = Bootstrap::from_json(text).unwrap();
        bootstrap.certificate_providers = providers
            .iter()
            .map(|(name, files)| ((*name).to_owned(), CertificateProvider::FileWatcher((*files).clone())))
            .collect();
        bootstrap
    }

    /// There is one provider per name and files while it is in use.
    #[test]
    fn providers_are_shared() {
        let folder = tempfile::tempdir().unwrap();
        let (same, other) = (files(folder.path()), files(&folder.path().join("other")));
        let [one, two] =
            [(); 2].map(|()| CertificateProviders::from_bootstrap(&bootstrap(&[("a", &same), ("b", &same)])));
        let three = CertificateProviders::from_bootstrap(&bootstrap(&[("a", &other)]));
        let named = |providers: &CertificateProviders, name: &str| providers.named(name).unwrap().clone();
        assert!(Arc::ptr_eq(&named(&one, "a"), &named(&two, "a")));
        assert!(!Arc::ptr_eq(&named(&one, "a"), &named(&one, "b")), "errors show the name");
        assert!(!Arc::ptr_eq(&named(&one, "a"), &named(&three, "a")));
        let error = one.named("c").err().expect("there is none").to_string();
        assert_eq!(error, r#"the bootstrap has no certificate provider "c" that is supported"#);
        let weak = Arc::downgrade(&named(&one, "a"));
        drop((one, two));
        assert!(weak.upgrade().is_none());
    }

    /// faults 79 and 80: files are reloaded when due, and the last valid roots and identity are kept independently. A file
    /// that was never valid is read again after one second.
    #[tokio::test(start_paused = true)]
    async fn files_are_read_when_it_is_time() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let [a, b] = ["a", "b"].map(Authority::new);
        let [first, second] = [(); 2].map(|()| a.leaf(&["me"]));
        let provider = Arc::new(FileWatcherProvider::new("own", &files(folder.path())));
        let roots = || async { provider.roots().await.map(|roots| roots.len()).map_err(|e| e.to_string()) };
        let shown = || async {
            provider.identity().await.map(|pair| pair.cert[0].clone()).map_err(|e| e.to_string())
        };
        let secs = Duration::from_secs;

        let error = roots().await.unwrap_err();
        assert!(error.starts_with(r#"certificate provider "own": CA file "#), "{error}");
        write("ca.pem", a.pem());
        assert!(roots().await.is_err(), "a second has not passed");
        advance(secs(1)).await;
        assert_eq!(roots().await, Ok(1), "the identity is missing still");
        let error = shown().await.unwrap_err();
        assert!(error.contains("client certificate file"), "{error}");
        write("tls.crt", first.chain_pem());
        write("tls.key", first.key_pem());
        advance(secs(1)).await;
        assert_eq!(shown().await, Ok(first.der()));

        write("ca.pem", &[a.pem(), b.pem()].concat());
        write("tls.crt", second.chain_pem());
        advance(secs(599)).await;
        assert_eq!((roots().await, shown().await), (Ok(1), Ok(first.der())));
        advance(secs(1)).await;
        assert_eq!((roots().await, shown().await), (Ok(2), Ok(first.der())), "the key does not fit");
        write("tls.key", second.key_pem());
        write("ca.pem", "garbage");
        advance(secs(1)).await;
        assert_eq!((roots().await, shown().await), (Ok(2), Ok(second.der())));
    }

    /// Concurrent handshakes share one load, and all wait for the first one.
    #[tokio::test]
    async fn concurrent_handshakes_share_one_load() {
        let folder = tempfile::tempdir().unwrap();
        let ca = Authority::new("a");
        let fifo = folder.path().join("ca.pem");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let only_ca = CertificateFiles { identity: None, ..files(folder.path()) };
        let provider = Arc::new(FileWatcherProvider::new("own", &only_ca));
        let asking: Vec<_> = (0..8)
            .map(|_| {
                let provider = provider.clone();
                tokio::spawn(async move { provider.roots().await.map(|roots| roots.len()) })
            })
            .collect();
        // A read from a pipe blocks until the test writes, and only one reader gets the data.
        let text = ca.pem().to_owned();
        within(task::spawn_blocking(move || fs::write(fifo, text).unwrap())).await.unwrap();
        for asked in asking {
            assert_eq!(within(asked).await.unwrap().unwrap(), 1);
        }
        let error = provider.identity().await.unwrap_err().to_string();
        assert_eq!(
            error,
            r#"certificate provider "own": the bootstrap does not set its certificate_file and private_key_file"#
        );
    }

    /// fault 80: a repeated error is logged once.
    #[test]
    fn what_is_broken_is_logged_once() {
        let folder = tempfile::tempdir().unwrap();
        let provider =
            FileWatcherProvider::new("own", &CertificateFiles { identity: None, ..files(folder.path()) });
        let log = Log::default();
        tracing::subscriber::with_default(log.clone(), || {
            let mut readings = provider.readings.try_lock().unwrap();
            for _ in 0..3 {
                provider.reload(&mut readings);
            }
        });
        let said = log.lines();
        assert!(matches!(&said[..], [line] if line.contains("ca.pem")), "{said:?}");
    }
}
