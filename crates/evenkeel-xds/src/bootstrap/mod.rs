//! Bootstrap config: control planes, node, authorities and name templates (A27).
//!
//! The bootstrap is JSON written by the operator of the process. An error therefore lists every problem with its field
//! path, the expected and the actual value. Unknown fields are ignored, as A27 requires. Known but unsupported fields
//! are listed in [`Bootstrap::warnings`]. This module reads neither files nor the environment; the caller passes in
//! both.

mod json;
mod target;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use evenkeel_core::Address;
use evenkeel_proto::envoy::config::core::v3::node::UserAgentVersionType;
use evenkeel_proto::envoy::config::core::v3::{Locality, Node};
use serde_json::Value;

use crate::json::{JsonObject, JsonRules};
use crate::resource::name::encode_authority;
use crate::target::{ChannelTarget, TargetKind};
use crate::text::{listed, quoted, short};
use crate::{FieldPath, ValidationErrors};

use json::{report_duplicate_keys, to_struct};
pub use target::{TargetError, XdsTarget};

/// Environment variable with the path of the bootstrap file.
pub const BOOTSTRAP_FILE_ENV: &str = "GRPC_XDS_BOOTSTRAP";

/// Environment variable with the bootstrap as JSON.
pub const BOOTSTRAP_CONFIG_ENV: &str = "GRPC_XDS_BOOTSTRAP_CONFIG";

/// Maximum size of a bootstrap in bytes.
const MAX_BYTES: usize = 1 << 20;

/// Maximum number of control planes in one list. Each authority may copy the bootstrap's list, so it must be short.
const MAX_SERVERS: usize = 64;

/// Default interval at which certificate files are read again (A65).
const REFRESH_INTERVAL: Duration = Duration::from_secs(600);

/// Supported credential types, as listed in errors.
const CREDENTIALS: &str = "insecure or tls";

/// Accepted forms of `server_uri`, as listed in errors.
const SERVER_ADDRESS: &str = "the address of a control plane: HOST:PORT, dns:///HOST:PORT or unix:/path";

/// Bootstrap config, parsed and validated (A27).
#[derive(Clone, Debug, PartialEq)]
pub struct Bootstrap {
    /// Control planes for names without an authority of their own, in order of preference. There is at least one.
    pub servers: Vec<Arc<ServerConfig>>,
    /// Node that identifies this client to control planes.
    pub node: Node,
    /// Authorities by name (A47).
    pub authorities: BTreeMap<String, AuthorityConfig>,
    /// Certificate providers by instance name (A29). Instances of unsupported plugins are omitted, so resources that
    /// reference them are rejected.
    pub certificate_providers: BTreeMap<String, CertificateProvider>,
    /// Template of listener names for targets without an authority. The default is `%s`.
    pub client_default_listener_resource_name_template: String,
    /// Template of listener names for servers (A36).
    pub server_listener_resource_name_template: Option<String>,
    /// Unsupported fields of the JSON and ignored prefixes, as messages for [`Bootstrap::warnings`]. Empty for a
    /// bootstrap that was built in code.
    pub ignored: Vec<String>,
}

/// Config of a control plane. Equal configs share one channel and one stream (A47).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerConfig {
    /// Target of the control plane, in gRPC's target syntax.
    pub uri: Arc<str>,
    /// Channel credentials for the control plane.
    pub credentials: ChannelCredentials,
    /// Server features that the bootstrap lists.
    pub features: ServerFeatures,
}

impl ServerConfig {
    /// Creates a config with insecure credentials and without server features.
    pub fn insecure(uri: &str) -> ServerConfig {
        ServerConfig {
            uri: uri.into(),
            credentials: ChannelCredentials::Insecure,
            features: ServerFeatures::default(),
        }
    }

    /// Returns the parsed target. Cannot fail if the bootstrap was parsed from JSON.
    pub fn target(&self) -> Result<ChannelTarget, TargetError> {
        ChannelTarget::parse_server_uri(&self.uri)
    }
}

/// Channel credentials for a control plane.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ChannelCredentials {
    /// Plaintext connection, without TLS.
    Insecure,
    /// TLS, optionally with a client certificate. Without a CA file the system's root certificates apply (A65).
    Tls(CertificateFiles),
}

/// Certificate files. They are read periodically, because they may be replaced while the process runs (A29, A65).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CertificateFiles {
    /// File with the root certificates.
    pub ca_certificate_file: Option<String>,
    /// Files of the client's own certificate.
    pub identity: Option<IdentityFiles>,
    /// Interval at which the files are read again; never zero.
    pub refresh_interval: Duration,
}

/// Files of a certificate and its private key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IdentityFiles {
    /// File with the certificate or its chain.
    pub certificate_file: String,
    /// File with the private key.
    pub private_key_file: String,
}

/// Server features of the bootstrap.
#[expect(clippy::struct_excessive_bools, reason = "independent switches of the bootstrap")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerFeatures {
    /// True if resources stay in use after the server deletes them (A53).
    pub ignore_resource_deletion: bool,
    /// True if the server may override the authority of calls (A81).
    pub trusted_xds_server: bool,
    /// True if a resource is dropped after the server sends an invalid version or deletes it (A88).
    pub fail_on_data_errors: bool,
    /// True if a resource that the server does not send in time is unavailable rather than absent (A88).
    pub resource_timer_is_transient_error: bool,
}

/// Config of an authority for resource names (A47).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthorityConfig {
    /// Control planes for its names, in order of preference. The bootstrap's servers if it lists none of its own.
    pub servers: Vec<Arc<ServerConfig>>,
    /// Template of listener names for targets of this authority.
    pub client_listener_resource_name_template: String,
}

/// Source of certificates (A29).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CertificateProvider {
    /// `file_watcher`: certificate files, of which at least one is given.
    FileWatcher(CertificateFiles),
}

impl Bootstrap {
    /// Loads the bootstrap of the process: the file that [`BOOTSTRAP_FILE_ENV`] names, or else the JSON in
    /// [`BOOTSTRAP_CONFIG_ENV`]. An empty variable counts as unset.
    ///
    /// ```no_run
    /// use evenkeel_xds::bootstrap::Bootstrap;
    /// let bootstrap = Bootstrap::load(|name| std::env::var(name).ok(), |file| std::fs::read_to_string(file))?;
    /// # Ok::<(), evenkeel_xds::bootstrap::BootstrapError>(())
    /// ```
    pub fn load(
        variable: impl Fn(&str) -> Option<String>,
        read: impl Fn(&str) -> io::Result<String>,
    ) -> Result<Bootstrap, BootstrapError> {
        let variable = |name| variable(name).filter(|value| !value.is_empty());
        if let Some(file) = variable(BOOTSTRAP_FILE_ENV) {
            let source = BootstrapSource::File(file.clone());
            // An unreadable file is an error. The JSON variable is no fallback for it (BS-1).
            return match read(&file) {
                Ok(text) => read_text(&text, source),
                Err(error) => Err(BootstrapError { source, kind: BootstrapErrorKind::Unreadable(error) }),
            };
        }
        match variable(BOOTSTRAP_CONFIG_ENV) {
            Some(text) => read_text(&text, BootstrapSource::Variable),
            None => Err(BootstrapError { source: BootstrapSource::Text, kind: BootstrapErrorKind::Unset }),
        }
    }

    /// Parses a bootstrap from JSON.
    ///
    /// ```
    /// use evenkeel_xds::bootstrap::Bootstrap;
    /// let text = r#"{"xds_servers": [{"server_uri": "localhost:18000", "channel_creds": [{"type": "none"}]}]}"#;
    /// let error = Bootstrap::from_json(text).unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "bootstrap: xds_servers[0].channel_creds: expected insecure or tls, found \"none\"",
    /// );
    /// ```
    pub fn from_json(text: &str) -> Result<Bootstrap, BootstrapError> {
        read_text(text, BootstrapSource::Text)
    }

    /// Returns warnings for the operator: insecure credentials to remote servers, and unsupported fields.
    pub fn warnings(&self) -> Vec<String> {
        let of_authorities = self.authorities.values().flat_map(|authority| &authority.servers);
        let mut exposed: Vec<_> = self
            .servers
            .iter()
            .chain(of_authorities)
            .filter(|server| server.credentials == ChannelCredentials::Insecure && !is_local(server))
            .map(|server| &server.uri)
            .collect();
        exposed.sort();
        exposed.dedup();
        let exposed = exposed.into_iter().map(|uri| {
            let uri = quoted(uri);
            format!("xds server {uri}: insecure credentials to another machine; an on-path attacker can redirect all calls")
        });
        exposed.chain(self.ignored.iter().cloned()).collect()
    }
}

/// Error of a missing or invalid bootstrap. The operator of the process can fix it.
#[derive(Debug)]
pub struct BootstrapError {
    source: BootstrapSource,
    kind: BootstrapErrorKind,
}

/// Origin of the JSON text.
#[derive(Debug)]
enum BootstrapSource {
    Text,
    File(String),
    Variable,
}

#[derive(Debug)]
enum BootstrapErrorKind {
    Unset,
    Unreadable(io::Error),
    Invalid(ValidationErrors),
}

impl BootstrapError {
    /// Returns true if no bootstrap is configured, so that a program can run without one.
    pub fn is_unset(&self) -> bool {
        matches!(self.kind, BootstrapErrorKind::Unset)
    }
}

impl fmt::Display for BootstrapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bootstrap: ")?;
        match &self.source {
            BootstrapSource::Text => {}
            BootstrapSource::File(file) => write!(f, "file {} ({BOOTSTRAP_FILE_ENV}): ", quoted(file))?,
            BootstrapSource::Variable => write!(f, "{BOOTSTRAP_CONFIG_ENV}: ")?,
        }
        match &self.kind {
            BootstrapErrorKind::Unset => {
                write!(
                    f,
                    "set {BOOTSTRAP_FILE_ENV} to the name of a file, or {BOOTSTRAP_CONFIG_ENV} to the JSON itself"
                )
            }
            BootstrapErrorKind::Unreadable(error) => write!(f, "cannot be read: {error}"),
            BootstrapErrorKind::Invalid(problems) => problems.fmt(f),
        }
    }
}

impl std::error::Error for BootstrapError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            BootstrapErrorKind::Unset => None,
            BootstrapErrorKind::Unreadable(error) => Some(error),
            BootstrapErrorKind::Invalid(problems) => Some(problems),
        }
    }
}

fn read_text(text: &str, source: BootstrapSource) -> Result<Bootstrap, BootstrapError> {
    let root = FieldPath::root();
    let invalid = |problem| ValidationErrors::one(&root, problem);
    let bootstrap = if text.len() > MAX_BYTES {
        Err(invalid(format!("has {} bytes; at most {MAX_BYTES} are allowed", text.len())))
    } else {
        serde_json::from_str(text)
            .map_err(|error| invalid(format!("cannot be read as JSON: {error}")))
            .and_then(|value| {
                let mut reader = BootstrapReader::default();
                report_duplicate_keys(text, &mut reader.problems);
                let bootstrap = reader.bootstrap(&value);
                bootstrap.ok_or(reader.problems)
            })
    };
    bootstrap.map_err(|problems| BootstrapError { source, kind: BootstrapErrorKind::Invalid(problems) })
}

/// Reader that collects errors and unsupported fields. Each method reads one part and returns `None` if it is missing
/// or invalid.
#[derive(Default)]
struct BootstrapReader {
    problems: ValidationErrors,
    ignored: Vec<String>,
}

impl BootstrapReader {
    fn bootstrap(&mut self, value: &Value) -> Option<Bootstrap> {
        let root = FieldPath::root();
        let bootstrap = self.object(value, root)?;
        let what = "a list with at least one control plane";
        let servers = self.required_list(&bootstrap, "xds_servers", what);
        let servers = self.servers(servers, &root.field("xds_servers"));
        let node = bootstrap.object("node", &mut self.problems);
        let node = self.node(node.as_ref());
        let authorities = self.authorities(&bootstrap, &servers);
        let certificate_providers = self.certificate_providers(&bootstrap);
        let template = "client_default_listener_resource_name_template";
        let template = bootstrap.text(template, &mut self.problems).unwrap_or("%s");
        let of_servers = "server_listener_resource_name_template";
        let of_servers = bootstrap.text(of_servers, &mut self.problems);
        self.problems.is_empty().then(|| Bootstrap {
            servers,
            node,
            authorities,
            certificate_providers,
            client_default_listener_resource_name_template: template.to_owned(),
            server_listener_resource_name_template: of_servers.map(str::to_owned),
            ignored: std::mem::take(&mut self.ignored),
        })
    }

    fn servers(&mut self, servers: &[Value], path: &FieldPath<'_>) -> Vec<Arc<ServerConfig>> {
        if servers.len() > MAX_SERVERS {
            self.problems
                .add(path, format!("has {} entries; at most {MAX_SERVERS} are allowed", servers.len()));
            return Vec::new();
        }
        let servers = servers.iter().enumerate();
        servers.filter_map(|(i, server)| self.server(server, &path.index(i)).map(Arc::new)).collect()
    }

    fn server(&mut self, value: &Value, path: &FieldPath<'_>) -> Option<ServerConfig> {
        let server = self.object(value, *path)?;
        let uri = self.server_uri(&server);
        let credentials = self.credentials(&server);
        if let (Some((_, Some(scheme))), Some(credentials)) = (uri, &credentials) {
            let connection = match credentials {
                ChannelCredentials::Insecure => "channel_creds are insecure, so the connection is plaintext",
                ChannelCredentials::Tls(_) => "channel_creds are tls, so the connection uses TLS",
            };
            self.ignore(&path.field("server_uri"), &format!("{scheme}:// has no effect; {connection}"));
        }
        let features = server.list("server_features", &mut self.problems).unwrap_or_default();
        // Entries of other JSON types are ignored (BS-3).
        let has = |feature: &str| features.iter().any(|value| value.as_str() == Some(feature));
        if server.list("call_creds", &mut self.problems).is_some_and(|list| !list.is_empty()) {
            self.ignore(&path.field("call_creds"), "call credentials (A97) are not supported and not sent");
        }
        Some(ServerConfig {
            uri: uri?.0.into(),
            credentials: credentials?,
            features: ServerFeatures {
                ignore_resource_deletion: has("ignore_resource_deletion"),
                trusted_xds_server: has("trusted_xds_server"),
                fail_on_data_errors: has("fail_on_data_errors"),
                resource_timer_is_transient_error: has("resource_timer_is_transient_error"),
            },
        })
    }

    /// Returns the target of a control plane and the scheme of its URL. The prefixes `http://` and `https://` are
    /// stripped: the credentials decide on TLS.
    fn server_uri<'a>(&mut self, server: &JsonObject<'a>) -> Option<(&'a str, Option<&'static str>)> {
        let uri = self.required_text(server, "server_uri")?;
        let path = server.field("server_uri");
        // Resolving an xDS target requires a control plane, so this server would depend on itself.
        if is_xds_target(uri) {
            let text = format!("{} is an xDS target itself; expected {SERVER_ADDRESS}", quoted(uri));
            self.problems.add(&path, text);
            return None;
        }
        let (scheme, address) = split_url(uri);
        let problem = match ChannelTarget::parse_server_uri(address) {
            Ok(target) => match (scheme, target.kind()) {
                (None, _) | (Some("https"), TargetKind::Dns { .. }) => None,
                // A URL without a port means 80, a gRPC target without one 443.
                (Some(_), TargetKind::Dns { port, .. }) if address.ends_with(&format!(":{port}")) => None,
                _ => Some(format!("has no port; expected {SERVER_ADDRESS}")),
            },
            Err(error) => Some(error.problem().to_owned()),
        };
        if let Some(problem) = problem {
            self.problems.add(&path, format!("{}: {problem}", quoted(uri)));
            return None;
        }
        Some((address, scheme))
    }

    /// Returns the first credentials of a supported type (A27).
    fn credentials(&mut self, server: &JsonObject<'_>) -> Option<ChannelCredentials> {
        let path = server.field("channel_creds");
        let what = format!("a list with {CREDENTIALS}");
        let list = self.required_list(server, "channel_creds", &what);
        let mut entries = Vec::new();
        for (i, value) in list.iter().enumerate() {
            if let Some(entry) = self.object(value, path.index(i))
                && let Some(kind) = self.required_text(&entry, "type")
            {
                entries.push((kind, entry));
            }
        }
        // The first supported entry is used, after the whole list was validated (BS-2).
        for (kind, entry) in &entries {
            match *kind {
                "insecure" => return Some(ChannelCredentials::Insecure),
                "tls" => {
                    let config = entry.object("config", &mut self.problems);
                    return self.files(config.as_ref()).map(ChannelCredentials::Tls);
                }
                _ => {}
            }
        }
        if !entries.is_empty() && entries.len() == list.len() {
            let found = listed(entries.iter().map(|(kind, _)| *kind));
            let is_google = entries.iter().any(|(kind, _)| *kind == "google_default");
            let reason =
                if is_google { "; google_default needs access tokens, which are not supported" } else { "" };
            self.problems.add(&path, format!("expected {CREDENTIALS}, found {found}{reason}"));
        }
        None
    }

    /// Reads the certificate files, all of which are optional (A65).
    fn files(&mut self, config: Option<&JsonObject<'_>>) -> Option<CertificateFiles> {
        let Some(config) = config else {
            let refresh_interval = REFRESH_INTERVAL;
            return Some(CertificateFiles { ca_certificate_file: None, identity: None, refresh_interval });
        };
        let problems = &mut self.problems;
        let mut text = |name| config.text(name, problems).map(str::to_owned);
        let (ca, certificate, key) =
            (text("ca_certificate_file"), text("certificate_file"), text("private_key_file"));
        let identity = match (certificate, key) {
            (Some(certificate_file), Some(private_key_file)) => {
                Some(IdentityFiles { certificate_file, private_key_file })
            }
            (None, None) => None,
            (certificate, _) => {
                let [given, missing] = match certificate {
                    Some(_) => ["certificate_file", "private_key_file"],
                    None => ["private_key_file", "certificate_file"],
                };
                // A field of an invalid type has been reported already.
                if !config.has(missing) {
                    problems.add(&config.field(missing), format!("is required beside {given}"));
                }
                return None;
            }
        };
        let refresh_interval = config.duration("refresh_interval", problems);
        if config.has("spiffe_trust_bundle_map_file") {
            let path = config.field("spiffe_trust_bundle_map_file");
            self.ignore(&path, "SPIFFE bundle maps (A87) are not supported; only the CA file is used");
        }
        Some(CertificateFiles {
            ca_certificate_file: ca,
            identity,
            refresh_interval: refresh_interval.unwrap_or(REFRESH_INTERVAL),
        })
    }

    fn certificate_providers(&mut self, bootstrap: &JsonObject<'_>) -> BTreeMap<String, CertificateProvider> {
        let mut all = BTreeMap::new();
        let Some(providers) = bootstrap.object("certificate_providers", &mut self.problems) else {
            return all;
        };
        for (name, value) in providers.map() {
            let path = providers.path().key(short(name));
            let Some(provider) = self.object(value, path) else { continue };
            let Some(plugin) = self.required_text(&provider, "plugin_name") else { continue };
            let config = provider.object("config", &mut self.problems);
            if plugin != "file_watcher" {
                let text =
                    format!("expected file_watcher, found {}; resources cannot use it", quoted(plugin));
                self.ignore(&path.field("plugin_name"), &text);
                continue;
            }
            let Some(files) = self.files(config.as_ref()) else { continue };
            let given = |name| config.as_ref().is_some_and(|config| config.has(name));
            if !given("ca_certificate_file") && !given("certificate_file") {
                let text =
                    "expected ca_certificate_file, or certificate_file and private_key_file, or all three";
                self.problems.add(&path.field("config"), text);
            }
            all.insert(name.clone(), CertificateProvider::FileWatcher(files));
        }
        all
    }

    fn authorities(
        &mut self,
        bootstrap: &JsonObject<'_>,
        servers: &[Arc<ServerConfig>],
    ) -> BTreeMap<String, AuthorityConfig> {
        let mut all = BTreeMap::new();
        let Some(authorities) = bootstrap.object("authorities", &mut self.problems) else { return all };
        for (name, value) in authorities.map() {
            let path = authorities.path().key(short(name));
            let Some(authority) = self.object(value, path) else { continue };
            let own = authority.list("xds_servers", &mut self.problems).unwrap_or_default();
            let own = self.servers(own, &path.field("xds_servers"));
            let prefix = format!("xdstp://{}/", encode_authority(name));
            let field = "client_listener_resource_name_template";
            let template = authority.text(field, &mut self.problems);
            if let Some(template) = template.filter(|template| !template.starts_with(&prefix)) {
                let text = format!("expected {} first, found {}", quoted(&prefix), quoted(template));
                self.problems.add(&path.field(field), text);
            }
            if authority.value("fallback_on_reachability_only") == Some(&Value::Bool(true)) {
                let path = path.field("fallback_on_reachability_only");
                self.ignore(
                    &path,
                    "is not supported (A95): cached resources are not requested from the next server",
                );
            }
            let template = template
                .map_or_else(|| format!("{prefix}envoy.config.listener.v3.Listener/%s"), str::to_owned);
            let servers = if own.is_empty() { servers.to_vec() } else { own };
            all.insert(
                name.clone(),
                AuthorityConfig { servers, client_listener_resource_name_template: template },
            );
        }
        all
    }

    /// Builds the node. The bootstrap cannot override the user agent and the client features (A27).
    fn node(&mut self, node: Option<&JsonObject<'_>>) -> Node {
        let mut all = Node {
            user_agent_name: "evenkeel".to_owned(),
            user_agent_version_type: Some(UserAgentVersionType::UserAgentVersion(
                env!("CARGO_PKG_VERSION").to_owned(),
            )),
            client_features: vec![
                "envoy.lb.does_not_support_overprovisioning".to_owned(),
                "xds.config.resource-in-sotw".to_owned(),
            ],
            ..Node::default()
        };
        let Some(node) = node else { return all };
        let problems = &mut self.problems;
        let mut text =
            |object: &JsonObject<'_>, name| object.text(name, problems).unwrap_or_default().to_owned();
        all.id = text(node, "id");
        all.cluster = text(node, "cluster");
        all.metadata = node.object("metadata", &mut self.problems).map(|metadata| to_struct(metadata.map()));
        if let Some(locality) = node.object("locality", &mut self.problems) {
            let mut text = |name| locality.text(name, &mut self.problems).map(str::to_owned);
            // Protobuf's JSON format allows both spellings.
            let sub_zone = text("sub_zone").or_else(|| text("subZone")).unwrap_or_default();
            let [region, zone] = ["region", "zone"].map(|name| text(name).unwrap_or_default());
            let locality = Locality { region, zone, sub_zone };
            all.locality = Some(locality).filter(|locality| *locality != Locality::default());
        }
        all
    }

    fn object<'a>(&mut self, value: &'a Value, path: FieldPath<'a>) -> Option<JsonObject<'a>> {
        JsonObject::of(value, path, JsonRules::Bootstrap, &mut self.problems)
    }

    /// Reads a string. Reports an error if the field is missing.
    fn required_text<'a>(&mut self, object: &JsonObject<'a>, name: &str) -> Option<&'a str> {
        if !object.has(name) {
            self.problems.add(&object.field(name), "is required: a string that is not empty");
        }
        object.text(name, &mut self.problems)
    }

    /// Reads a list. Reports an error if the field is missing or the list is empty; the result is then empty.
    fn required_list<'a>(&mut self, object: &JsonObject<'a>, name: &str, what: &str) -> &'a [Value] {
        let list = object.list(name, &mut self.problems);
        if !object.has(name) || list.is_some_and(<[Value]>::is_empty) {
            self.problems.add(&object.field(name), format!("is required: {what}"));
        }
        list.unwrap_or_default()
    }

    fn ignore(&mut self, path: &FieldPath<'_>, text: &str) {
        self.ignored.push(format!("{path}: {text}"));
    }
}

/// Returns true if the target has the scheme `xds`. As in gRPC, `xds:18000` has it too; `dns:///xds:18000` names a
/// host.
fn is_xds_target(uri: &str) -> bool {
    uri.split_once(':').is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("xds"))
}

/// Splits `http://HOST:PORT` or `https://HOST:PORT/` into its scheme in lower case and the rest. Any other text has
/// no such scheme.
fn split_url(uri: &str) -> (Option<&'static str>, &str) {
    let split = uri.split_once("://").and_then(|(scheme, rest)| {
        let known = ["http", "https"].into_iter().find(|known| known.eq_ignore_ascii_case(scheme))?;
        Some((Some(known), rest.strip_suffix('/').unwrap_or(rest)))
    });
    split.unwrap_or((None, uri))
}

/// Returns true if the target of a server shows that the connection stays on this machine.
fn is_local(server: &ServerConfig) -> bool {
    let is_loopback = |ip: IpAddr| ip.to_canonical().is_loopback();
    match server.target().as_ref().map(ChannelTarget::kind) {
        Ok(TargetKind::Fixed(addresses)) => addresses.iter().all(|address| match address {
            Address::Ip(address) => is_loopback(address.ip()),
            Address::Unix(_) => true,
            _ => false,
        }),
        Ok(TargetKind::Dns { host, .. }) => {
            let host = host.to_ascii_lowercase();
            host == "localhost" || host.ends_with(".localhost") || host.parse().is_ok_and(is_loopback)
        }
        Ok(TargetKind::Xds { .. }) | Err(_) => false,
    }
}
