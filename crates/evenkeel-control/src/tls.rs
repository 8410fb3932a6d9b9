//! TLS of a control plane's port, with files that are read again while it serves.
//!
//! The files are read once per second and their bytes compared. A version that is invalid is reported once, and the last
//! valid one stays in use. Handshakes only load the current config: no file is read for a connection.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Interval between reads of the files.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum size of a file: far above a bundle of all public CAs.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Callback for the result of each reload.
type OnReload = dyn Fn(Result<(), &ServerTlsError>) + Send + Sync;

/// Certificate, private key and client CA of a control plane, in PEM files.
///
/// ```no_run
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use evenkeel_control::{ControlPlane, ServerTls};
///
/// let tls = ServerTls::load("tls.crt", "tls.key")?.client_ca("clients.crt")?;
/// let control = ControlPlane::builder().tls(tls).serve().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ServerTls {
    files: TlsFiles,
    bytes: TlsFileBytes,
    config: Arc<ServerConfig>,
    bootstrap_ca: Option<String>,
    on_reload: Option<Box<OnReload>>,
}

impl ServerTls {
    /// Reads a certificate chain, leaf first, and its private key.
    pub fn load(
        certificate: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Result<ServerTls, ServerTlsError> {
        let files = TlsFiles { certificate: certificate.into(), key: key.into(), client_ca: None };
        ServerTls::read(files)
    }

    /// Requires certificates of clients, issued by one of the CAs in a file (mTLS).
    pub fn client_ca(self, file: impl Into<PathBuf>) -> Result<ServerTls, ServerTlsError> {
        let files = TlsFiles { client_ca: Some(file.into()), ..self.files };
        let read = ServerTls::read(files)?;
        Ok(ServerTls { bootstrap_ca: self.bootstrap_ca, on_reload: self.on_reload, ..read })
    }

    /// Sets the path of the CA file on clients, for bootstraps. Unless set, clients use the CAs of their system.
    #[must_use]
    pub fn bootstrap_ca(mut self, path: &str) -> ServerTls {
        self.bootstrap_ca = Some(path.to_owned());
        self
    }

    /// Calls a function after each reload: with an error if the last version stays in use. An event of `tracing` is
    /// emitted as well.
    #[must_use]
    pub fn on_reload(
        mut self,
        report: impl Fn(Result<(), &ServerTlsError>) + Send + Sync + 'static,
    ) -> ServerTls {
        self.on_reload = Some(Box::new(report));
        self
    }

    fn read(files: TlsFiles) -> Result<ServerTls, ServerTlsError> {
        let bytes = files.read()?;
        let config = files.config(&bytes)?;
        Ok(ServerTls { files, bytes, config, bootstrap_ca: None, on_reload: None })
    }

    /// Returns the credentials of clients, as in `channel_creds` of a bootstrap.
    pub(crate) fn channel_creds(&self) -> serde_json::Value {
        match &self.bootstrap_ca {
            None => serde_json::json!({ "type": "tls" }),
            Some(ca) => serde_json::json!({ "type": "tls", "config": { "ca_certificate_file": ca } }),
        }
    }

    /// Starts to reload the files, until the control plane is dropped. Returns the configs of handshakes.
    pub(crate) fn serve(self, shutdown: watch::Receiver<()>) -> TlsHandshakes {
        let (configs, current) = watch::channel(Arc::clone(&self.config));
        tokio::spawn(self.reload(configs, shutdown));
        TlsHandshakes { configs: current }
    }

    async fn reload(self, configs: watch::Sender<Arc<ServerConfig>>, mut shutdown: watch::Receiver<()>) {
        let (mut applied, mut last) = (Ok(self.bytes), None);
        loop {
            tokio::select! {
                () = tokio::time::sleep(RELOAD_INTERVAL) => {}
                _ = shutdown.changed() => return,
            }
            let files = self.files.clone();
            let Ok(read) = tokio::task::spawn_blocking(move || files.read()).await else { continue };
            // A certificate is often written before its key. Bytes that two reads return are complete.
            let is_stable = last.as_ref() == Some(&read);
            if !is_stable || read == applied {
                last = Some(read);
                continue;
            }
            // Stored for invalid files too, so that their error is reported once.
            applied.clone_from(&read);
            let config = read.and_then(|bytes| self.files.config(&bytes));
            match &config {
                Ok(config) => {
                    configs.send_replace(Arc::clone(config));
                    tracing::info!("certificates of the control plane's port were reloaded");
                }
                Err(error) => {
                    tracing::warn!(%error, "certificate reload failed, previously loaded certificates stay in use");
                }
            }
            if let Some(report) = &self.on_reload {
                report(config.as_ref().map(|_| ()));
            }
        }
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").field("files", &self.files).finish_non_exhaustive()
    }
}

/// Error of a file with certificates or a key. `Display` names the file and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTlsError(String);

impl fmt::Display for ServerTlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ServerTlsError {}

/// Handshakes of connections, with the last valid config.
#[derive(Clone)]
pub(crate) struct TlsHandshakes {
    configs: watch::Receiver<Arc<ServerConfig>>,
}

impl TlsHandshakes {
    /// Performs a handshake. The caller limits its time.
    pub(crate) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let config = self.configs.borrow().clone();
        TlsAcceptor::from(config).accept(stream).await
    }
}

#[derive(Clone, Debug)]
struct TlsFiles {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
}

/// Contents of the files.
#[derive(Clone, PartialEq, Eq)]
struct TlsFileBytes {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl TlsFiles {
    fn read(&self) -> Result<TlsFileBytes, ServerTlsError> {
        Ok(TlsFileBytes {
            certificate: read_file(&self.certificate_name(), &self.certificate)?,
            key: read_file(&self.key_name(), &self.key)?,
            client_ca: self.client_ca.as_ref().map(|file| read_file(&ca_name(file), file)).transpose()?,
        })
    }

    fn config(&self, bytes: &TlsFileBytes) -> Result<Arc<ServerConfig>, ServerTlsError> {
        let provider = Arc::new(ring::default_provider());
        let (certificate_name, key_name) = (self.certificate_name(), self.key_name());
        let chain = certificates(&certificate_name, &bytes.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&bytes.key).map_err(|error| match error {
            pem::Error::NoItemsFound => ServerTlsError(format!(
                "{key_name}: has no private key (PKCS#8, PKCS#1 or SEC1, and not encrypted)"
            )),
            error => invalid_pem(&key_name, &error),
        })?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| ServerTlsError(format!("the TLS config cannot be built: {error}")))?;
        let builder = match self.client_ca.as_ref().zip(bytes.client_ca.as_ref()) {
            None => builder.with_no_client_auth(),
            Some((file, bytes)) => {
                let name = ca_name(file);
                let mut roots = RootCertStore::empty();
                for (i, certificate) in certificates(&name, bytes)?.into_iter().enumerate() {
                    roots.add(certificate).map_err(|error| {
                        ServerTlsError(format!("{name}: certificate {} cannot be used: {error}", i + 1))
                    })?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = verifier
                    .build()
                    .map_err(|error| ServerTlsError(format!("{name}: cannot be used: {error}")))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => ServerTlsError(format!(
                "{key_name}: the private key does not belong to the first certificate of the {certificate_name}"
            )),
            error => ServerTlsError(format!("{certificate_name}: cannot be used with the {key_name}: {error}")),
        })?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }

    fn certificate_name(&self) -> String {
        format!("certificate file {:?}", self.certificate.display().to_string())
    }

    fn key_name(&self) -> String {
        format!("key file {:?}", self.key.display().to_string())
    }
}

fn ca_name(file: &Path) -> String {
    format!("client CA file {:?}", file.display().to_string())
}

fn read_file(name: &str, file: &Path) -> Result<Vec<u8>, ServerTlsError> {
    let mut bytes = Vec::new();
    let read = File::open(file).and_then(|file| file.take(MAX_FILE_BYTES).read_to_end(&mut bytes));
    match read {
        Ok(_) => Ok(bytes),
        Err(error) => Err(ServerTlsError(format!("{name}: cannot be read: {error}"))),
    }
}

fn certificates(name: &str, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, ServerTlsError> {
    let certificates = CertificateDer::pem_slice_iter(bytes)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| invalid_pem(name, &error))?;
    if certificates.is_empty() {
        return Err(ServerTlsError(format!("{name}: has no certificate (-----BEGIN CERTIFICATE-----)")));
    }
    Ok(certificates)
}

/// The parser's own text contains bytes of the file, so it is replaced.
fn invalid_pem(name: &str, error: &pem::Error) -> ServerTlsError {
    let problem = match error {
        pem::Error::MissingSectionEnd { .. } => "a section has no -----END line; the file may be truncated",
        pem::Error::IllegalSectionStart { .. } => "a -----BEGIN line is malformed",
        pem::Error::Base64Decode(_) => "a section has invalid base64",
        _ => "it is malformed",
    };
    ServerTlsError(format!("{name}: is not valid PEM: {problem}"))
}
