//! Security of connections to a cluster (A29, A82, A101), parsed from an `UpstreamTlsContext`.
//!
//! The config is validated even if the application does not use it. An unsupported field is ignored only if
//! that does not weaken security. Otherwise the cluster is rejected. Certificates come from the providers in
//! the bootstrap, referenced by instance name, and never from the control plane.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use evenkeel_proto::envoy::config::core::v3::TransportSocket;
use evenkeel_proto::envoy::config::core::v3::transport_socket::ConfigType;
use evenkeel_proto::envoy::extensions::transport_sockets::tls::v3::common_tls_context::{
    CertificateProviderInstance, ValidationContextType,
};
use evenkeel_proto::envoy::extensions::transport_sockets::tls::v3::subject_alt_name_matcher::SanType;
use evenkeel_proto::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, CommonTlsContext, SubjectAltNameMatcher, UpstreamTlsContext,
};
use evenkeel_proto::prost::Name as _;

use crate::FieldPath;
use crate::resource::reader::ResourceReader;
use crate::routing::text_matcher::{CaseSensitivity, TextMatcher};
use crate::text::quoted;

/// Maximum length of a server name in bytes (A101).
const MAX_SNI: usize = 255;

/// Security of connections to a cluster (A29).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecurityConfig {
    /// Roots that verify the server's certificate.
    pub roots: RootCertificates,
    /// Client certificate for servers that request one.
    pub identity: Option<CertificateSource>,
    /// Matchers for names in the server's certificate, of which one must match. If empty, every name is
    /// accepted.
    pub san_matchers: Vec<SanMatcher>,
    /// Server name to send (SNI), unless `auto_host_sni` provides one.
    pub sni: Option<String>,
    /// True if the endpoint's host name is sent as SNI, if it has one (A101).
    pub auto_host_sni: bool,
    /// True if the sent SNI, if any, replaces the matchers as an exact DNS name (A101).
    pub auto_sni_san_validation: bool,
}

/// Security of a cluster with its name, as [transport parameters](evenkeel_core::TransportParams) of its
/// subchannels. Values of different clusters are never equal, so that no cluster relies on verification for
/// another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSecurity {
    /// Name of the cluster.
    pub cluster: Arc<str>,
    /// Security of its connections.
    pub security: Arc<SecurityConfig>,
}

impl Hash for ClusterSecurity {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Equal values have equal names. The name alone distinguishes clusters well enough.
        self.cluster.hash(state);
    }
}

/// Roots that verify server certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootCertificates {
    /// Root certificates of the system (A82).
    System,
    /// Root certificates of a provider.
    Provider(CertificateSource),
}

/// Reference to a certificate of a provider.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CertificateSource {
    /// Instance name of a certificate provider in the bootstrap.
    pub instance: String,
    /// Certificate name for the provider, often empty.
    pub certificate: String,
}

/// Kind of a subject alternative name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SanKind {
    /// DNS name, possibly with a wildcard.
    Dns,
    /// URI, such as a SPIFFE id.
    Uri,
    /// E-mail address of the type `rfc822Name`.
    Email,
    /// IP address in canonical text form.
    Ip,
}

/// Matcher of a name in a server certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SanMatcher {
    /// Kind of name to match. `None` for any kind.
    kind: Option<SanKind>,
    text: TextMatcher,
}

impl SanMatcher {
    /// Creates a matcher for certificates that are valid for this DNS name, including wildcards.
    pub fn dns(name: &str) -> SanMatcher {
        SanMatcher {
            kind: Some(SanKind::Dns),
            text: TextMatcher::Exact(name.to_owned(), CaseSensitivity::Sensitive),
        }
    }

    /// Returns true if a name of a certificate matches. An exact DNS name also matches a wildcard that covers
    /// it.
    pub fn matches(&self, kind: SanKind, name: &str) -> bool {
        if name.is_empty() || self.kind.is_some_and(|only| only != kind) {
            return false;
        }
        match &self.text {
            TextMatcher::Exact(text, _) if kind == SanKind::Dns => is_dns_name_of(text, name),
            text => text.matches(name),
        }
    }
}

impl fmt::Display for SanMatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Some(kind) => write!(f, "{kind} {}", self.text),
            None => self.text.fmt(f),
        }
    }
}

impl fmt::Display for SanKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SanKind::Dns => "DNS",
            SanKind::Uri => "URI",
            SanKind::Email => "email",
            SanKind::Ip => "IP",
        })
    }
}

/// Returns true if a certificate for the DNS name `of` is valid for `host`. Case is ignored, and `*` covers
/// one label.
fn is_dns_name_of(host: &str, of: &str) -> bool {
    let (host, of) = (host.trim_end_matches('.'), of.trim_end_matches('.'));
    // `*.com` is no wildcard: it would cover a whole top-level domain.
    let wildcard = of.strip_prefix("*.").filter(|parent| parent.contains('.'));
    match (wildcard, host.split_once('.')) {
        (Some(parent), Some((label, rest))) if !label.is_empty() => rest.eq_ignore_ascii_case(parent),
        _ => host.eq_ignore_ascii_case(of),
    }
}

/// Parses a transport socket. Returns `None` if it is invalid.
pub(super) fn read(
    socket: &TransportSocket,
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> Option<SecurityConfig> {
    let path = path.field("typed_config");
    let Some(ConfigType::TypedConfig(any)) = &socket.config_type else {
        reader.problem(&path, format!("must be set: {}", UpstreamTlsContext::full_name()));
        return None;
    };
    let context: UpstreamTlsContext = reader.message(Some(any), &path)?;
    if context.sni.len() > MAX_SNI {
        let text = format!("has {} bytes; at most {MAX_SNI} are allowed", context.sni.len());
        reader.problem(&path.field("sni"), text);
    }
    let path = path.field("common_tls_context");
    let Some(common) = &context.common_tls_context else {
        reader.problem(&path, "must be set");
        return None;
    };
    let identity = identity(common, &path, reader);
    let (roots, san_matchers) = validation(common, &path, reader);
    Some(SecurityConfig {
        // Unwrapped after all parts are read, so that all errors are reported (VAL-X1).
        roots: roots?,
        identity,
        san_matchers,
        sni: Some(context.sni).filter(|sni| !sni.is_empty()),
        auto_host_sni: context.auto_host_sni,
        auto_sni_san_validation: context.auto_sni_san_validation,
    })
}

fn reject_fields<const N: usize>(
    path: &FieldPath<'_>,
    fields: [(&str, bool); N],
    reader: &mut ResourceReader<'_>,
) {
    for (field, _) in fields.into_iter().filter(|(_, set)| *set) {
        reader.problem(&path.field(field), "is not supported, and ignoring it would be less secure");
    }
}

fn identity(
    common: &CommonTlsContext,
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> Option<CertificateSource> {
    reject_fields(
        path,
        [
            ("tls_params", common.tls_params.is_some()),
            ("custom_handshaker", common.custom_handshaker.is_some()),
        ],
        reader,
    );
    if let Some(provider) = &common.tls_certificate_provider_instance {
        let path = path.field("tls_certificate_provider_instance");
        return source(&provider.instance_name, &provider.certificate_name, &path, reader);
    }
    if let Some(provider) = &common.tls_certificate_certificate_provider_instance {
        let path = path.field("tls_certificate_certificate_provider_instance");
        return source(&provider.instance_name, &provider.certificate_name, &path, reader);
    }
    for (field, set) in [
        ("tls_certificates", !common.tls_certificates.is_empty()),
        ("tls_certificate_sds_secret_configs", !common.tls_certificate_sds_secret_configs.is_empty()),
    ] {
        if set {
            let text = "is not supported; name a certificate provider in tls_certificate_provider_instance";
            reader.problem(&path.field(field), text);
        }
    }
    None
}

/// Returns the reference to a provider, which must be in the bootstrap.
fn source(
    instance: &str,
    certificate: &str,
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> Option<CertificateSource> {
    if !reader.parser.certificate_providers.contains(instance) {
        let text = format!("the bootstrap has no certificate provider {}", quoted(instance));
        reader.problem(&path.field("instance_name"), text);
        return None;
    }
    Some(CertificateSource { instance: instance.to_owned(), certificate: certificate.to_owned() })
}

/// Returns the roots and the accepted names.
fn validation(
    common: &CommonTlsContext,
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> (Option<RootCertificates>, Vec<SanMatcher>) {
    match &common.validation_context_type {
        Some(ValidationContextType::ValidationContext(context)) => {
            let path = path.field("validation_context");
            (roots(context, &path, None, reader), names(context, &path, reader))
        }
        Some(ValidationContextType::CombinedValidationContext(combined)) => {
            let path = path.field("combined_validation_context");
            let older_path = path.field("validation_context_certificate_provider_instance");
            let older = combined.validation_context_certificate_provider_instance.as_ref();
            let older = older.map(|provider| (provider, &older_path));
            let context = combined.default_validation_context.clone().unwrap_or_default();
            let path = path.field("default_validation_context");
            (roots(&context, &path, older, reader), names(&context, &path, reader))
        }
        Some(ValidationContextType::ValidationContextCertificateProviderInstance(provider)) => {
            let path = path.field("validation_context_certificate_provider_instance");
            let source = source(&provider.instance_name, &provider.certificate_name, &path, reader);
            (source.map(RootCertificates::Provider), Vec::new())
        }
        Some(ValidationContextType::ValidationContextSdsSecretConfig(_)) => {
            let path = path.field("validation_context_sds_secret_config");
            reader.problem(&path, "is not supported; use validation_context");
            (None, Vec::new())
        }
        None => {
            reader.problem(&path.field("validation_context"), "must be set");
            (None, Vec::new())
        }
    }
}

/// Returns the roots of a context, or of the older field that control planes use for old clients.
fn roots(
    context: &CertificateValidationContext,
    path: &FieldPath<'_>,
    older: Option<(&CertificateProviderInstance, &FieldPath<'_>)>,
    reader: &mut ResourceReader<'_>,
) -> Option<RootCertificates> {
    if let Some(provider) = &context.ca_certificate_provider_instance {
        let path = path.field("ca_certificate_provider_instance");
        let source = source(&provider.instance_name, &provider.certificate_name, &path, reader);
        source.map(RootCertificates::Provider)
    } else if context.system_root_certs.is_some() {
        Some(RootCertificates::System)
    } else if let Some((provider, path)) = older {
        let source = source(&provider.instance_name, &provider.certificate_name, path, reader);
        source.map(RootCertificates::Provider)
    } else {
        let text = "must be set, unless system_root_certs is";
        reader.problem(&path.field("ca_certificate_provider_instance"), text);
        None
    }
}

/// Returns the accepted names of a context.
fn names(
    context: &CertificateValidationContext,
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> Vec<SanMatcher> {
    let transparency = context.require_signed_certificate_timestamp == Some(true);
    reject_fields(
        path,
        [
            ("verify_certificate_spki", !context.verify_certificate_spki.is_empty()),
            ("verify_certificate_hash", !context.verify_certificate_hash.is_empty()),
            ("require_signed_certificate_timestamp", transparency),
            ("crl", context.crl.is_some()),
            ("custom_validator_config", context.custom_validator_config.is_some()),
        ],
        reader,
    );
    let ignored = [
        ("trusted_ca", context.trusted_ca.is_some()),
        ("allow_expired_certificate", context.allow_expired_certificate),
    ];
    reader.warn_fields(path, ignored, "is ignored");
    // As in Envoy, typed matchers replace untyped ones.
    if context.match_typed_subject_alt_names.is_empty() {
        let path = path.field("match_subject_alt_names");
        let all = context.match_subject_alt_names.iter().enumerate();
        all.filter_map(|(i, matcher)| {
            let text = reader.text_matcher(matcher, &path.index(i))?;
            Some(SanMatcher { kind: None, text })
        })
        .collect()
    } else {
        let path = path.field("match_typed_subject_alt_names");
        let all = context.match_typed_subject_alt_names.iter().enumerate();
        all.filter_map(|(i, matcher)| typed_name(matcher, &path.index(i), reader)).collect()
    }
}

fn typed_name(
    matcher: &SubjectAltNameMatcher,
    path: &FieldPath<'_>,
    reader: &mut ResourceReader<'_>,
) -> Option<SanMatcher> {
    let kind = match SanType::try_from(matcher.san_type) {
        Ok(SanType::Dns) => Some(SanKind::Dns),
        Ok(SanType::Uri) => Some(SanKind::Uri),
        Ok(SanType::Email) => Some(SanKind::Email),
        Ok(SanType::IpAddress) => Some(SanKind::Ip),
        Ok(SanType::Unspecified | SanType::OtherName) | Err(_) => {
            let text = format!("expected EMAIL, DNS, URI or IP_ADDRESS, found {}", matcher.san_type);
            reader.problem(&path.field("san_type"), text);
            None
        }
    };
    let text = matcher.matcher.clone().unwrap_or_default();
    let text = reader.text_matcher(&text, &path.field("matcher"))?;
    Some(SanMatcher { kind: Some(kind?), text })
}
