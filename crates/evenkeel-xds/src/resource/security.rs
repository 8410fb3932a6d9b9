//! How connections to a cluster are secured (A29, A82, A101): what an `UpstreamTlsContext` becomes.
//!
//! It is checked whether or not the application uses it. A field that we do not support is ignored only where that
//! makes nothing less secure; otherwise the cluster is refused. Certificates come from the providers of the bootstrap,
//! by name, and never from the control plane.

use std::collections::BTreeSet;

use evenkeel_proto::envoy::config::core::v3::TransportSocket;
use evenkeel_proto::envoy::config::core::v3::transport_socket::ConfigType;
use evenkeel_proto::envoy::extensions::transport_sockets::tls::v3::common_tls_context::{
    CertificateProviderInstance, ValidationContextType,
};
use evenkeel_proto::envoy::extensions::transport_sockets::tls::v3::subject_alt_name_matcher::SanType;
use evenkeel_proto::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, CommonTlsContext, SubjectAltNameMatcher, UpstreamTlsContext,
};
use evenkeel_proto::envoy::r#type::matcher::v3::StringMatcher;
use evenkeel_proto::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use evenkeel_proto::prost::{Message as _, Name as _};
use regex::{Regex, RegexBuilder};

use crate::resource::fields::note;
use crate::resource::{Parser, message_of};
use crate::text::{line, quoted};
use crate::{Path, Problems};

/// How long a server name may be (A101).
const MAX_SNI: usize = 255;

/// How connections to a cluster are secured (A29).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Security {
    /// What the server's certificate is checked against.
    pub roots: Roots,
    /// Our own certificate, for servers that ask for one.
    pub identity: Option<CertificateSource>,
    /// Of these, one must match a name in the server's certificate; if there are none, every name will do.
    pub san_matchers: Vec<SanMatcher>,
    /// The server name to send, unless there is a better one.
    pub sni: Option<String>,
    /// Whether the endpoint's host name, if it has one, is the server name to send (A101).
    pub auto_host_sni: bool,
    /// Whether the server name that was sent, if any, takes the place of the matchers, as an exact DNS name (A101).
    pub auto_sni_san_validation: bool,
}

/// What certificates of servers are checked against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Roots {
    /// The roots of the system (A82).
    System,
    /// Those of a provider.
    Provider(CertificateSource),
}

/// Where a certificate comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CertificateSource {
    /// The name of a certificate provider of the bootstrap.
    pub instance: String,
    /// What the provider is to be asked for; often empty.
    pub certificate: String,
}

/// A kind of name that a certificate may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SanKind {
    /// A DNS name.
    Dns,
    /// A URI, such as a SPIFFE id.
    Uri,
    /// An e-mail address.
    Email,
    /// An IP address, in canonical text.
    Ip,
}

/// A name that a server's certificate may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SanMatcher {
    /// The only kind of name that it matches, if it is limited to one.
    kind: Option<SanKind>,
    text: Text,
}

impl SanMatcher {
    /// Whether a name of a certificate matches. An exact DNS name also matches a certificate for its wildcard.
    pub fn matches(&self, kind: SanKind, name: &str) -> bool {
        if name.is_empty() || self.kind.is_some_and(|only| only != kind) {
            return false;
        }
        match &self.text {
            Text::Exact { text, .. } if kind == SanKind::Dns => is_dns_name_of(text, name),
            text => text.matches(name),
        }
    }
}

/// Whether a certificate for the DNS name `of` is good for `host`. Case does not matter, and a star stands for one label.
fn is_dns_name_of(host: &str, of: &str) -> bool {
    let (host, of) = (host.trim_end_matches('.'), of.trim_end_matches('.'));
    let wildcard = of.strip_prefix("*.").filter(|parent| parent.contains('.'));
    match (wildcard, host.split_once('.')) {
        (Some(parent), Some((label, rest))) if !label.is_empty() => rest.eq_ignore_ascii_case(parent),
        _ => host.eq_ignore_ascii_case(of),
    }
}

/// Why a pattern cannot be compiled, without the pattern.
fn reason(error: &regex::Error) -> String {
    match error {
        regex::Error::CompiledTooBig(limit) => format!("it would take more than {limit} bytes"),
        other => {
            let text = other.to_string();
            let last = text.lines().last().unwrap_or_default();
            line(last.trim_start_matches("error: "))
        }
    }
}

#[derive(Clone, Debug)]
enum Text {
    Exact { text: String, ignore_case: bool },
    Prefix { text: String, ignore_case: bool },
    Suffix { text: String, ignore_case: bool },
    Contains { text: String, ignore_case: bool },
    Regex(Regex),
}

impl Text {
    fn parse(
        matcher: &StringMatcher,
        regex_bytes: usize,
        path: &Path<'_>,
        problems: &mut Problems,
    ) -> Option<Text> {
        let ignore_case = matcher.ignore_case;
        let mut part = |field: &str, text: &str| {
            if text.is_empty() {
                problems.add(&path.field(field), "must not be empty");
            }
            let text = if ignore_case { text.to_ascii_lowercase() } else { text.to_owned() };
            (!text.is_empty()).then_some(text)
        };
        match &matcher.match_pattern {
            Some(MatchPattern::Exact(text)) => Some(Text::Exact { text: text.clone(), ignore_case }),
            Some(MatchPattern::Prefix(text)) => {
                part("prefix", text).map(|text| Text::Prefix { text, ignore_case })
            }
            Some(MatchPattern::Suffix(text)) => {
                part("suffix", text).map(|text| Text::Suffix { text, ignore_case })
            }
            Some(MatchPattern::Contains(text)) => {
                part("contains", text).map(|text| Text::Contains { text, ignore_case })
            }
            Some(MatchPattern::SafeRegex(regex)) => {
                let compile = |pattern: &str| RegexBuilder::new(pattern).size_limit(regex_bytes).build();
                // Alone first: a pattern with a stray parenthesis must not become a good one by what is put around it.
                let whole = || compile(&format!(r"\A(?:{})\z", regex.regex));
                match compile(&regex.regex).and_then(|_| whole()) {
                    Ok(regex) => Some(Text::Regex(regex)),
                    Err(error) => {
                        let path = path.field("safe_regex");
                        let text = format!("{} cannot be compiled: {}", quoted(&regex.regex), reason(&error));
                        problems.add(&path.field("regex"), text);
                        None
                    }
                }
            }
            Some(MatchPattern::Custom(_)) => {
                problems.add(&path.field("custom"), "is not supported");
                None
            }
            None => {
                problems.add(path, "must have a match_pattern");
                None
            }
        }
    }

    fn matches(&self, name: &str) -> bool {
        let folded = |ignore_case: bool| {
            if ignore_case { name.to_ascii_lowercase() } else { name.to_owned() }
        };
        match self {
            Text::Exact { text, ignore_case: true } => name.eq_ignore_ascii_case(text),
            Text::Exact { text, ignore_case: false } => name == text,
            Text::Prefix { text, ignore_case } => folded(*ignore_case).starts_with(text),
            Text::Suffix { text, ignore_case } => folded(*ignore_case).ends_with(text),
            Text::Contains { text, ignore_case } => folded(*ignore_case).contains(text),
            Text::Regex(regex) => regex.is_match(name),
        }
    }

    fn parts(&self) -> (u8, &str, bool) {
        match self {
            Text::Exact { text, ignore_case } => (0, text, *ignore_case),
            Text::Prefix { text, ignore_case } => (1, text, *ignore_case),
            Text::Suffix { text, ignore_case } => (2, text, *ignore_case),
            Text::Contains { text, ignore_case } => (3, text, *ignore_case),
            Text::Regex(regex) => (4, regex.as_str(), false),
        }
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Text) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for Text {}

/// Reads a transport socket; `None` if there is something wrong with it.
pub(super) fn parse(
    socket: &TransportSocket,
    parser: &Parser,
    path: &Path<'_>,
    problems: &mut Problems,
    warnings: &mut Vec<String>,
) -> Option<Security> {
    let path = path.field("typed_config");
    let Some(ConfigType::TypedConfig(any)) = &socket.config_type else {
        problems.add(&path, format!("must be set: {}", UpstreamTlsContext::full_name()));
        return None;
    };
    if message_of(&any.type_url) != UpstreamTlsContext::full_name() {
        let text =
            format!("expected {}, found type {}", UpstreamTlsContext::full_name(), quoted(&any.type_url));
        problems.add(&path, text);
        return None;
    }
    let context = match UpstreamTlsContext::decode(&*any.value) {
        Ok(context) => context,
        Err(error) => {
            problems.add(&path, format!("cannot be decoded: {error}"));
            return None;
        }
    };
    if context.sni.len() > MAX_SNI {
        let text = format!("has {} bytes; at most {MAX_SNI} are allowed", context.sni.len());
        problems.add(&path.field("sni"), text);
    }
    let path = path.field("common_tls_context");
    let Some(common) = &context.common_tls_context else {
        problems.add(&path, "must be set");
        return None;
    };
    let providers = &parser.certificate_providers;
    let mut reading = Reading { providers, regex_bytes: parser.limits.regex_bytes, problems, warnings };
    let identity = reading.identity(common, &path);
    let (roots, san_matchers) = reading.validation(common, &path);
    Some(Security {
        roots: roots?,
        identity,
        san_matchers,
        sni: Some(context.sni).filter(|sni| !sni.is_empty()),
        auto_host_sni: context.auto_host_sni,
        auto_sni_san_validation: context.auto_sni_san_validation,
    })
}

struct Reading<'a> {
    providers: &'a BTreeSet<String>,
    regex_bytes: usize,
    problems: &'a mut Problems,
    warnings: &'a mut Vec<String>,
}

impl Reading<'_> {
    fn refuse<const N: usize>(&mut self, path: &Path<'_>, fields: [(&str, bool); N]) {
        for (field, _) in fields.into_iter().filter(|(_, set)| *set) {
            self.problems.add(&path.field(field), "is not supported, and ignoring it would be less secure");
        }
    }

    fn identity(&mut self, common: &CommonTlsContext, path: &Path<'_>) -> Option<CertificateSource> {
        self.refuse(
            path,
            [
                ("tls_params", common.tls_params.is_some()),
                ("custom_handshaker", common.custom_handshaker.is_some()),
            ],
        );
        if let Some(provider) = &common.tls_certificate_provider_instance {
            let path = path.field("tls_certificate_provider_instance");
            return self.provider(&provider.instance_name, &provider.certificate_name, &path);
        }
        if let Some(provider) = &common.tls_certificate_certificate_provider_instance {
            let path = path.field("tls_certificate_certificate_provider_instance");
            return self.provider(&provider.instance_name, &provider.certificate_name, &path);
        }
        for (field, set) in [
            ("tls_certificates", !common.tls_certificates.is_empty()),
            ("tls_certificate_sds_secret_configs", !common.tls_certificate_sds_secret_configs.is_empty()),
        ] {
            if set {
                let text =
                    "is not supported; name a certificate provider in tls_certificate_provider_instance";
                self.problems.add(&path.field(field), text);
            }
        }
        None
    }

    /// A provider of the bootstrap.
    fn provider(&mut self, instance: &str, certificate: &str, path: &Path<'_>) -> Option<CertificateSource> {
        if !self.providers.contains(instance) {
            let text = format!("the bootstrap has no certificate provider {}", quoted(instance));
            self.problems.add(&path.field("instance_name"), text);
            return None;
        }
        Some(CertificateSource { instance: instance.to_owned(), certificate: certificate.to_owned() })
    }

    /// The roots, and the names that are accepted.
    fn validation(&mut self, common: &CommonTlsContext, path: &Path<'_>) -> (Option<Roots>, Vec<SanMatcher>) {
        match &common.validation_context_type {
            Some(ValidationContextType::ValidationContext(context)) => {
                let path = path.field("validation_context");
                (self.roots(context, &path, None), self.names(context, &path))
            }
            Some(ValidationContextType::CombinedValidationContext(combined)) => {
                let path = path.field("combined_validation_context");
                let older_path = path.field("validation_context_certificate_provider_instance");
                let older = combined.validation_context_certificate_provider_instance.as_ref();
                let older = older.map(|provider| (provider, &older_path));
                let context = combined.default_validation_context.clone().unwrap_or_default();
                let path = path.field("default_validation_context");
                (self.roots(&context, &path, older), self.names(&context, &path))
            }
            Some(ValidationContextType::ValidationContextCertificateProviderInstance(provider)) => {
                let path = path.field("validation_context_certificate_provider_instance");
                let source = self.provider(&provider.instance_name, &provider.certificate_name, &path);
                (source.map(Roots::Provider), Vec::new())
            }
            Some(ValidationContextType::ValidationContextSdsSecretConfig(_)) => {
                let path = path.field("validation_context_sds_secret_config");
                self.problems.add(&path, "is not supported; use validation_context");
                (None, Vec::new())
            }
            None => {
                self.problems.add(&path.field("validation_context"), "must be set");
                (None, Vec::new())
            }
        }
    }

    /// The roots of a context, or of the older field beside it, which control planes with old clients use.
    fn roots(
        &mut self,
        context: &CertificateValidationContext,
        path: &Path<'_>,
        older: Option<(&CertificateProviderInstance, &Path<'_>)>,
    ) -> Option<Roots> {
        if let Some(provider) = &context.ca_certificate_provider_instance {
            let path = path.field("ca_certificate_provider_instance");
            let source = self.provider(&provider.instance_name, &provider.certificate_name, &path);
            source.map(Roots::Provider)
        } else if context.system_root_certs.is_some() {
            Some(Roots::System)
        } else if let Some((provider, path)) = older {
            let source = self.provider(&provider.instance_name, &provider.certificate_name, path);
            source.map(Roots::Provider)
        } else {
            let text = "must be set, unless system_root_certs is";
            self.problems.add(&path.field("ca_certificate_provider_instance"), text);
            None
        }
    }

    /// The names that a context accepts.
    fn names(&mut self, context: &CertificateValidationContext, path: &Path<'_>) -> Vec<SanMatcher> {
        let transparency = context.require_signed_certificate_timestamp == Some(true);
        self.refuse(
            path,
            [
                ("verify_certificate_spki", !context.verify_certificate_spki.is_empty()),
                ("verify_certificate_hash", !context.verify_certificate_hash.is_empty()),
                ("require_signed_certificate_timestamp", transparency),
                ("crl", context.crl.is_some()),
                ("custom_validator_config", context.custom_validator_config.is_some()),
            ],
        );
        for (field, set) in [
            ("trusted_ca", context.trusted_ca.is_some()),
            ("allow_expired_certificate", context.allow_expired_certificate),
        ] {
            if set {
                note(&path.field(field), "is ignored", self.warnings);
            }
        }
        // As in Envoy, matchers with a type take the place of those without.
        if context.match_typed_subject_alt_names.is_empty() {
            let path = path.field("match_subject_alt_names");
            let all = context.match_subject_alt_names.iter().enumerate();
            all.filter_map(|(i, matcher)| {
                let text = Text::parse(matcher, self.regex_bytes, &path.index(i), self.problems)?;
                Some(SanMatcher { kind: None, text })
            })
            .collect()
        } else {
            let path = path.field("match_typed_subject_alt_names");
            let all = context.match_typed_subject_alt_names.iter().enumerate();
            all.filter_map(|(i, matcher)| self.typed_name(matcher, &path.index(i))).collect()
        }
    }

    fn typed_name(&mut self, matcher: &SubjectAltNameMatcher, path: &Path<'_>) -> Option<SanMatcher> {
        let kind = match SanType::try_from(matcher.san_type) {
            Ok(SanType::Dns) => Some(SanKind::Dns),
            Ok(SanType::Uri) => Some(SanKind::Uri),
            Ok(SanType::Email) => Some(SanKind::Email),
            Ok(SanType::IpAddress) => Some(SanKind::Ip),
            Ok(SanType::Unspecified | SanType::OtherName) | Err(_) => {
                let text = format!("expected EMAIL, DNS, URI or IP_ADDRESS, found {}", matcher.san_type);
                self.problems.add(&path.field("san_type"), text);
                None
            }
        };
        let text = matcher.matcher.clone().unwrap_or_default();
        let text = Text::parse(&text, self.regex_bytes, &path.field("matcher"), self.problems)?;
        Some(SanMatcher { kind: Some(kind?), text })
    }
}
