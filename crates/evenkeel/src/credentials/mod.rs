//! Who we are to servers, and whom we take servers to be.
//!
//! [`Credentials`] are built once and shared by all connections. What stands in files is read again as time passes, so that
//! certificates rotate while connections live: each handshake asks for the configuration of that moment
//! ([`TlsConfigSource::config`]). Only a handshake looks at the clock; there is no task behind credentials and so none to leak.
//!
//! Nothing here falls back to less: what cannot be read the first time is an error, and what cannot be read again leaves
//! the last good one in force. The handshake itself is the transport's.
//!
//! What a channel says of itself is here; what clusters say for their connections is in [`cluster`].

mod cluster;
mod provider;
mod san;
mod verifier;

use std::error::Error;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use evenkeel_xds::bootstrap::ChannelCredentials;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, InconsistentKeys, RootCertStore};
use tokio::sync::Mutex;
use tokio::task;
use tokio::time::Instant;

pub(crate) use self::cluster::ClusterTls;
pub(crate) use self::provider::CertificateProviders;
use crate::telemetry::metrics::SecurityLevel;

/// How often files are read again unless the user says otherwise; the same as for control planes (A65).
const REFRESH_EVERY: Duration = Duration::from_secs(600);

/// When files are read again that could not be used: a pair that was caught half written is whole a moment later.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The only protocol that gRPC runs over (ALPN).
pub(crate) const H2: &[u8] = b"h2";

/// How connections are secured. Cheap to clone; clones share what they read from files.
///
/// ```no_run
/// use evenkeel::Credentials;
///
/// let system = Credentials::tls().build()?;
/// let mutual = Credentials::tls()
///     .ca_file("/etc/certs/ca.pem")
///     .identity_files("/etc/certs/tls.crt", "/etc/certs/tls.key")
///     .build()?;
/// # Ok::<(), evenkeel::CredentialsError>(())
/// ```
#[derive(Clone)]
pub struct Credentials {
    /// `None`: in the clear.
    tls: Option<Arc<TlsConfigSource>>,
    /// Whether what a cluster says comes before that.
    per_cluster: bool,
}

impl Credentials {
    /// In the clear: nobody is who they say they are. For loopback, tests, and networks that secure themselves.
    pub fn insecure() -> Credentials {
        Credentials { tls: None, per_cluster: false }
    }

    /// For `xds:` targets: as the control plane says for each cluster (A29). Endpoints of a cluster of which it says nothing
    /// are talked to by `fallback`, and so are all endpoints of other targets.
    ///
    /// A cluster that is to be secured is secured, with the certificates of the bootstrap's `certificate_providers`, or
    /// cannot be reached: `fallback` is never used because something went wrong. When a cluster's security changes,
    /// its connections are made anew; calls that are under way finish where they are.
    ///
    /// ```
    /// use evenkeel::{Channel, Credentials};
    ///
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let channel = Channel::builder("xds:///orders")
    ///     .credentials(Credentials::xds(Credentials::insecure()))
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn xds(fallback: Credentials) -> Credentials {
        Credentials { per_cluster: true, ..fallback }
    }

    /// TLS: trusts the roots of the system and has no certificate of its own, unless told otherwise.
    pub fn tls() -> TlsCredentialsBuilder {
        TlsCredentialsBuilder {
            roots: Vec::new(),
            identity: None,
            server_name: None,
            refresh_every: REFRESH_EVERY,
        }
    }

    /// What the bootstrap says about a control plane (A27, A65). Files that are not there yet are an error like any other;
    /// the caller may try again when it connects again.
    pub(crate) fn for_xds_server(credentials: &ChannelCredentials) -> Result<Credentials, CredentialsError> {
        match credentials {
            ChannelCredentials::Insecure => Ok(Credentials::insecure()),
            ChannelCredentials::Tls(files) => {
                let mut tls = Credentials::tls().refresh_every(files.refresh_interval);
                if let Some(file) = &files.ca_certificate_file {
                    tls = tls.ca_file(file);
                }
                if let Some(pair) = &files.identity {
                    tls = tls.identity_files(&pair.certificate_file, &pair.private_key_file);
                }
                tls.build()
            }
            ChannelCredentials::GoogleDefault => Err(CredentialsError::new(
                "google_default credentials of an xds server are not supported: they need access tokens; expected \
                 insecure or tls",
            )),
            other => Err(CredentialsError::new(format!(
                "credentials of an xds server of this kind are not supported: {other:?}; expected insecure or tls"
            ))),
        }
    }

    /// Whether clusters have a say.
    pub(crate) fn is_per_cluster(&self) -> bool {
        self.per_cluster
    }

    /// How connections are protected where no cluster says otherwise.
    pub(crate) fn level(&self) -> SecurityLevel {
        match self.tls {
            Some(_) => SecurityLevel::PrivacyAndIntegrity,
            None => SecurityLevel::None,
        }
    }

    /// What handshakes are made from; `None` if there are none, since connections are in the clear.
    pub(crate) fn tls_config_source(&self) -> Option<&Arc<TlsConfigSource>> {
        self.tls.as_ref()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.per_cluster {
            f.write_str("by cluster, else ")?;
        }
        match &self.tls {
            None => f.write_str("Insecure"),
            Some(source) => source.sources.fmt(f),
        }
    }
}

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
        let provider = provider()?;
        let material = TlsMaterial {
            roots: ReloadedValue::new(sources.read_roots()?),
            identity: ReloadedValue::new(sources.read_identity(&provider)?),
            read_at: Instant::now(),
        };
        let config = config(&provider, &material)?;
        Ok(Credentials {
            per_cluster: false,
            tls: Some(Arc::new(TlsConfigSource {
                sources,
                refresh_every: self.refresh_every,
                server_name,
                provider,
                material: Arc::new(Mutex::new(material)),
                config: ArcSwap::new(config),
            })),
        })
    }
}

/// Credentials that cannot be used. The text names the file or PEM text and what is wrong with it; whoever runs the process
/// can fix it.
#[derive(Debug)]
pub struct CredentialsError {
    what: String,
    cause: Option<Box<dyn Error + Send + Sync>>,
}

impl CredentialsError {
    fn new(what: impl Into<String>) -> CredentialsError {
        CredentialsError { what: what.into(), cause: None }
    }

    fn with_cause(what: String, cause: impl Into<Box<dyn Error + Send + Sync>>) -> CredentialsError {
        CredentialsError { what, cause: Some(cause.into()) }
    }
}

impl fmt::Display for CredentialsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            Some(cause) => write!(f, "{}: {cause}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl Error for CredentialsError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_deref().map(|cause| cause as &(dyn Error + 'static))
    }
}

/// TLS credentials in use.
pub(crate) struct TlsConfigSource {
    sources: TlsSources,
    refresh_every: Duration,
    server_name: Option<ServerName<'static>>,
    provider: Arc<CryptoProvider>,
    /// What was read last. Held while files are read.
    material: Arc<Mutex<TlsMaterial>>,
    /// Made of the parts.
    config: ArcSwap<ClientConfig>,
}

impl TlsConfigSource {
    /// The name that a server is checked against and told: the one of these credentials, or else the host's.
    pub(crate) fn server_name(&self, host: &str) -> Result<ServerName<'static>, CredentialsError> {
        match &self.server_name {
            Some(name) => Ok(name.clone()),
            None => parse_server_name(host),
        }
    }

    /// What the handshake that starts next uses. Reads the files again if it is time to.
    ///
    /// A disk that hangs holds up the one handshake that reads; the others go on with what is known.
    pub(crate) async fn config(self: &Arc<TlsConfigSource>) -> Arc<ClientConfig> {
        if self.sources.has_files()
            && let Ok(mut material) = self.material.clone().try_lock_owned()
            && material.read_at.elapsed() >= self.reload_interval(&material)
        {
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

    /// Roots and identity stand for themselves: a broken CA file must not keep an identity in use until it expires.
    fn reload(&self, material: &mut TlsMaterial) {
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

/// What was read, and when.
struct TlsMaterial {
    roots: ReloadedValue<Arc<RootCertStore>>,
    identity: ReloadedValue<Option<Arc<CertifiedKey>>>,
    read_at: Instant,
}

/// The last good value of something that is read again and again.
struct ReloadedValue<T> {
    value: T,
    /// Why the last reading gave nothing, as it was logged.
    last_error: Option<String>,
}

impl<T> ReloadedValue<T> {
    fn new(value: T) -> ReloadedValue<T> {
        ReloadedValue { value, last_error: None }
    }

    fn replace(&mut self, read: Result<T, CredentialsError>) {
        let last_error = match read {
            Ok(value) => {
                self.value = value;
                None
            }
            Err(error) => Some(error.to_string()),
        };
        if let Some(last_error) = &last_error
            && self.last_error.as_ref() != Some(last_error)
        {
            tracing::warn!(
                error = last_error,
                "certificate reload failed, previously loaded certificates stay in use"
            );
        }
        self.last_error = last_error;
    }
}

/// Where certificates come from.
#[derive(Debug)]
struct TlsSources {
    /// The system's, if empty.
    roots: Vec<PemSource>,
    identity: Option<IdentitySource>,
}

#[derive(Clone, Debug)]
struct IdentitySource {
    chain: PemSource,
    key: PemSource,
}

#[derive(Clone)]
enum PemSource {
    Pem(Vec<u8>),
    File(PathBuf),
}

impl TlsSources {
    fn has_files(&self) -> bool {
        let pair = self.identity.iter().flat_map(|pair| [&pair.chain, &pair.key]);
        self.roots.iter().chain(pair).any(|source| matches!(source, PemSource::File(_)))
    }

    fn read_roots(&self) -> Result<Arc<RootCertStore>, CredentialsError> {
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

    fn read_identity(
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
            // A key that cannot tell its public half is taken at its word; the server will see.
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
    fn pem(pem: impl AsRef<[u8]>) -> PemSource {
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

/// Never the text: it may be a key.
impl fmt::Debug for PemSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PemSource::Pem(_) => f.write_str("PEM"),
            PemSource::File(file) => file.fmt(f),
        }
    }
}

/// The parser's own words show the text, which may be that of a key.
fn pem_error(name: &str, error: &pem::Error) -> CredentialsError {
    let problem = match error {
        pem::Error::MissingSectionEnd { .. } => "a section has no -----END line; is the file whole?",
        pem::Error::IllegalSectionStart { .. } => "a -----BEGIN line is broken",
        pem::Error::Base64Decode(_) => "a section has broken base64",
        _ => "it cannot be read",
    };
    CredentialsError::new(format!("{name}: is not proper PEM: {problem}"))
}

/// The system's roots, loaded once for the process, since there are many. A failure is not kept: the roots may be installed
/// later.
fn system_roots() -> Result<Arc<RootCertStore>, CredentialsError> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    if let Some(roots) = ROOTS.get() {
        return Ok(roots.clone());
    }
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let count = found.certs.len();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let what = match count {
            0 => "system roots: no certificate was found".to_owned(),
            count => format!("system roots: none of {count} certificates can be used"),
        };
        let advice = "install the system's CA certificates, or give a CA";
        return Err(match found.errors.into_iter().next() {
            Some(error) => CredentialsError::with_cause(format!("{what}; {advice}"), error),
            None => CredentialsError::new(format!("{what}; {advice}")),
        });
    }
    Ok(ROOTS.get_or_init(|| Arc::new(roots)).clone())
}

/// Everything about a handshake except the name of the server.
fn config(
    provider: &Arc<CryptoProvider>,
    material: &TlsMaterial,
) -> Result<Arc<ClientConfig>, CredentialsError> {
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| CredentialsError::with_cause("TLS cannot be set up".to_owned(), error))?
        .with_root_certificates(material.roots.value.clone());
    let mut config = match &material.identity.value {
        Some(pair) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair.clone()))),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![H2.to_vec()];
    // Tickets are kept by name, but good only at the endpoint that gave them, one of many with that name. Without them each
    // connection proves both certificates anew.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Returns the cryptography provider of TLS: `ring` if that feature is on, else `aws-lc-rs`.
///
/// Cargo unifies features, so any crate of a program can turn `aws-lc-rs` on. That must not replace the default provider.
/// The process default of rustls is not used: it depends on the order in which the program's parts install it.
#[allow(clippy::unnecessary_wraps, reason = "fails in a build without either feature")]
fn provider() -> Result<Arc<CryptoProvider>, CredentialsError> {
    #[cfg(feature = "ring")]
    return Ok(Arc::new(rustls::crypto::ring::default_provider()));
    #[cfg(all(feature = "aws-lc-rs", not(feature = "ring")))]
    return Ok(Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    #[cfg(not(any(feature = "ring", feature = "aws-lc-rs")))]
    return Err(CredentialsError::new(
        "evenkeel was built without TLS; turn on its feature ring or aws-lc-rs",
    ));
}

/// A host as TLS names it: a DNS name or an IP address, which may stand in the brackets of a URI.
fn parse_server_name(host: &str) -> Result<ServerName<'static>, CredentialsError> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    ServerName::try_from(bare.to_owned()).map_err(|_| {
        CredentialsError::new(format!(
            "server name {host:?}: expected a DNS name or an IP address, without a port"
        ))
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::process::Command;

    use evenkeel_xds::bootstrap::{CertificateFiles, IdentityFiles};
    use rcgen::{
        BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    };
    use testkit::Log;
    use tokio::time::{advance, timeout};

    use super::*;

    /// A CA.
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

        /// An authority that this one vouches for, as its own certificate.
        pub(crate) fn below(&self, name: &str) -> Authority {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.distinguished_name.push(DnType::CommonName, name);
            let issuer =
                CertifiedIssuer::signed_by(params, KeyPair::generate().unwrap(), &self.issuer).unwrap();
            let pem = issuer.pem();
            Authority { issuer, pem }
        }

        /// A certificate for these DNS names and IP addresses.
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

    /// A certificate of its own key.
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

    /// What servers in tests use: the same as their clients, whichever feature is on.
    pub(crate) fn cryptography() -> Arc<CryptoProvider> {
        provider().unwrap()
    }

    /// No step takes so long unless something is broken.
    pub(crate) async fn within<T>(step: impl Future<Output = T>) -> T {
        timeout(Duration::from_secs(30), step).await.expect("it takes too long")
    }

    fn error_of(outcome: Result<Credentials, CredentialsError>) -> String {
        outcome.map_or_else(|error| error.to_string(), |_| "nothing went wrong".to_owned())
    }

    /// Any crate of a program can turn `aws-lc-rs` on, and cargo then builds evenkeel with both.
    #[cfg(feature = "ring")]
    #[test]
    fn ring_stays_the_provider_when_another_crate_turns_aws_lc_rs_on() {
        assert_eq!(format!("{:?}", cryptography().key_provider), "Ring");
    }

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

    #[test]
    fn credentials_of_control_planes() {
        let ca = Authority::new("ca");
        let leaf = ca.leaf(&["me"]);
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let file = dir.path().join(name);
            fs::write(&file, text).unwrap();
            file.to_str().unwrap().to_owned()
        };
        let files = CertificateFiles {
            ca_certificate_file: Some(file("ca", ca.pem())),
            identity: Some(IdentityFiles {
                certificate_file: file("chain", leaf.chain_pem()),
                private_key_file: file("key", leaf.key_pem()),
            }),
            refresh_interval: Duration::from_secs(7),
        };
        let of = Credentials::for_xds_server;
        assert!(of(&ChannelCredentials::Insecure).unwrap().tls_config_source().is_none());
        let error = error_of(of(&ChannelCredentials::GoogleDefault));
        assert!(
            error.starts_with("google_default credentials of an xds server are not supported"),
            "{error}"
        );

        let both = of(&ChannelCredentials::Tls(files.clone())).unwrap();
        let source = both.tls_config_source().unwrap();
        assert_eq!(source.refresh_every, Duration::from_secs(7));
        let material = source.material.try_lock().unwrap();
        assert_eq!(material.roots.value.len(), 1);
        assert_eq!(material.identity.value.as_ref().unwrap().cert, [leaf.der()]);

        let only_ca =
            of(&ChannelCredentials::Tls(CertificateFiles { identity: None, ..files.clone() })).unwrap();
        assert!(only_ca.tls_config_source().unwrap().material.try_lock().unwrap().identity.value.is_none());

        let gone = CertificateFiles { ca_certificate_file: Some("/no/such/ca".to_owned()), ..files };
        let error = error_of(of(&ChannelCredentials::Tls(gone)));
        assert!(error.starts_with("CA file \"/no/such/ca\": cannot be read"), "{error}");
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

    /// A file of roots that stands in a folder of its own.
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

        /// How many roots the next handshake trusts.
        async fn trusted(&self) -> usize {
            self.tls_config_source().config().await;
            self.tls_config_source().material.try_lock().unwrap().roots.value.len()
        }
    }

    /// Fault 79, its interval; fault 80, that what is broken is looked at again soon.
    #[tokio::test(start_paused = true)]
    async fn files_are_read_again_when_it_is_time() {
        let [a, b, c] = ["a", "b", "c"].map(Authority::new);
        let secs = Duration::from_secs;
        let roots = RootsFile::new(secs(600));
        let two = [a.pem(), b.pem()].concat();
        let three = [a.pem(), b.pem(), c.pem()].concat();
        // What is written, the seconds that pass, the roots that are trusted then.
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
            // What handshakes use changes with it.
            assert_eq!(
                Arc::ptr_eq(&before, &*roots.tls_config_source().config.load()),
                !matches!(i, 1 | 3 | 5 | 7),
                "step {i}"
            );
        }
    }

    /// A disk that hangs holds up one handshake, not all of them.
    #[tokio::test]
    async fn a_reading_that_hangs_holds_up_nobody_else() {
        let roots = RootsFile::new(Duration::ZERO);
        fs::remove_file(roots.path()).unwrap();
        // Reading from a pipe waits for somebody to write.
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

    /// Fault 80: it is said once, and again when it is something else or has been good in between.
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
