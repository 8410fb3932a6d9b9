//! Transport security of a cluster: supported, ignored and rejected fields.

use std::collections::HashSet;

use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::config::core::v3::transport_socket::ConfigType;
use evenkeel_proto::envoy::config::core::v3::{DataSource, TransportSocket, TypedExtensionConfig};
use evenkeel_proto::envoy::extensions::transport_sockets::tls::v3::certificate_validation_context::SystemRootCerts;
use evenkeel_proto::envoy::extensions::transport_sockets::tls::v3::common_tls_context::{
    CertificateProviderInstance, CombinedCertificateValidationContext, ValidationContextType,
};
use evenkeel_proto::envoy::extensions::transport_sockets::tls::v3::subject_alt_name_matcher::SanType;
use evenkeel_proto::envoy::extensions::transport_sockets::tls::v3::{
    CertificateProviderPluginInstance, CertificateValidationContext, CommonTlsContext, SdsSecretConfig,
    SubjectAltNameMatcher, TlsCertificate, TlsParameters, UpstreamTlsContext,
};
use evenkeel_proto::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use evenkeel_proto::envoy::r#type::matcher::v3::{RegexMatcher, StringMatcher};
use evenkeel_proto::prost_types::Any;
use evenkeel_proto::xds::core::v3::TypedExtensionConfig as XdsExtension;
use evenkeel_xds::resource::{
    CertificateSource, ClusterSecurity, RootCertificates, SanKind, SanMatcher, SecurityConfig,
};
use testkit::resources::any;

use super::{accepted, changed, parse, parse_with, parser, refused};

const AT: &str = "transport_socket.typed_config";
const NO_PATTERN: &str = "expected exact, prefix, suffix, contains or safe_regex, found none of these";
const COMMON: &str = "transport_socket.typed_config.common_tls_context";

fn provider(instance: &str, certificate: &str) -> CertificateProviderPluginInstance {
    let (instance_name, certificate_name) = (instance.to_owned(), certificate.to_owned());
    CertificateProviderPluginInstance { instance_name, certificate_name }
}

fn older(instance: &str, certificate: &str) -> CertificateProviderInstance {
    let (instance_name, certificate_name) = (instance.to_owned(), certificate.to_owned());
    CertificateProviderInstance { instance_name, certificate_name }
}

fn source(instance: &str, certificate: &str) -> CertificateSource {
    CertificateSource { instance: instance.to_owned(), certificate: certificate.to_owned() }
}

fn validation() -> CertificateValidationContext {
    CertificateValidationContext {
        ca_certificate_provider_instance: Some(provider("roots", "ca")),
        ..CertificateValidationContext::default()
    }
}

fn common(validation: CertificateValidationContext) -> CommonTlsContext {
    CommonTlsContext {
        validation_context_type: Some(ValidationContextType::ValidationContext(validation)),
        ..CommonTlsContext::default()
    }
}

/// Returns a TLS context with nothing but root certificates.
pub(super) fn context() -> UpstreamTlsContext {
    UpstreamTlsContext { common_tls_context: Some(common(validation())), ..UpstreamTlsContext::default() }
}

fn socket(typed_config: Option<Any>) -> Cluster {
    let socket = TransportSocket {
        name: "envoy.transport_sockets.tls".to_owned(),
        config_type: typed_config.map(ConfigType::TypedConfig),
    };
    changed(|message| message.transport_socket = Some(socket))
}

pub(super) fn secured(context: &UpstreamTlsContext) -> Cluster {
    socket(Some(any(context)))
}

fn with_common(common: CommonTlsContext) -> Cluster {
    secured(&UpstreamTlsContext { common_tls_context: Some(common), ..UpstreamTlsContext::default() })
}

fn with_validation(validation: CertificateValidationContext) -> Cluster {
    with_common(common(validation))
}

fn combined(combined: CombinedCertificateValidationContext) -> Cluster {
    let kind = ValidationContextType::CombinedValidationContext(combined);
    with_common(CommonTlsContext { validation_context_type: Some(kind), ..CommonTlsContext::default() })
}

fn security(message: &Cluster) -> SecurityConfig {
    let known = accepted(message);
    SecurityConfig::clone(known.security.as_ref().expect("a cluster that is secured"))
}

fn plain(roots: RootCertificates) -> SecurityConfig {
    SecurityConfig {
        roots,
        identity: None,
        san_matchers: Vec::new(),
        sni: None,
        auto_host_sni: false,
        auto_sni_san_validation: false,
    }
}

/// A29: connections with different security configs, or of clusters with different names, are not shared. An equal
/// config keeps its connections.
#[test]
fn security_tells_connections_apart() {
    let means = |message: &Cluster| super::leaf(&accepted(message)).transport.clone();
    let plain = changed(|_| {});
    let secure = secured(&context());
    let named = |name: &str| Cluster { name: name.to_owned(), ..secure.clone() };
    let other = secured(&UpstreamTlsContext { sni: "pay.example".to_owned(), ..context() });
    let by_host = secured(&UpstreamTlsContext { auto_host_sni: true, ..context() });
    assert_eq!(means(&plain), None);
    let first = means(&secure).expect("a cluster that is secured");
    let of = first.get::<ClusterSecurity>().expect("the security of a cluster");
    assert_eq!((&*of.cluster, &*of.security), (secure.name.as_str(), &security(&secure)));
    assert_eq!(means(&Cluster { lb_policy: 0, ..secure.clone() }), Some(first.clone()));
    let mut distinct = HashSet::from([first.clone()]);
    for other in [named("another"), other, by_host] {
        assert_ne!(means(&other), Some(first.clone()));
        assert!(distinct.insert(means(&other).expect("a cluster that is secured")));
    }
    assert!(distinct.contains(&means(&secure).expect("a cluster that is secured")));
}

#[test]
fn matchers_are_shown_as_they_were_meant() {
    assert_eq!(SanMatcher::dns("pay.example").to_string(), r#"DNS exact "pay.example""#);
    assert!(SanMatcher::dns("a.pay.example").matches(SanKind::Dns, "*.PAY.example"));
    assert!(!SanMatcher::dns("pay.example").matches(SanKind::Uri, "pay.example"));
}

/// VAL-C5: certificates come from providers of the bootstrap, and roots optionally from the system. The deprecated
/// fields work too.
#[test]
fn where_certificates_come_from() {
    let given = plain(RootCertificates::Provider(source("roots", "ca")));
    let system = CertificateValidationContext {
        system_root_certs: Some(SystemRootCerts {}),
        ..CertificateValidationContext::default()
    };
    let both = CertificateValidationContext { system_root_certs: Some(SystemRootCerts {}), ..validation() };
    let instance = ValidationContextType::ValidationContextCertificateProviderInstance(older("roots", "ca"));
    let combine = |context: Option<CertificateValidationContext>, older| {
        combined(CombinedCertificateValidationContext {
            default_validation_context: context,
            validation_context_sds_secret_config: None,
            validation_context_certificate_provider_instance: older,
        })
    };
    for (message, expected) in [
        (secured(&context()), given.clone()),
        (with_validation(system.clone()), plain(RootCertificates::System)),
        (with_validation(both), given.clone()),
        (combine(Some(validation()), None), given.clone()),
        (combine(Some(validation()), Some(older("own", ""))), given.clone()),
        (combine(None, Some(older("roots", "ca"))), given.clone()),
        (combine(Some(system), Some(older("roots", "ca"))), plain(RootCertificates::System)),
        (
            with_common(CommonTlsContext {
                validation_context_type: Some(instance),
                ..CommonTlsContext::default()
            }),
            given.clone(),
        ),
        (
            with_common(CommonTlsContext {
                tls_certificate_provider_instance: Some(provider("own", "me")),
                // With a provider, other certificates are ignored.
                tls_certificates: vec![TlsCertificate::default()],
                ..common(validation())
            }),
            SecurityConfig { identity: Some(source("own", "me")), ..given.clone() },
        ),
        (
            with_common(CommonTlsContext {
                tls_certificate_certificate_provider_instance: Some(older("own", "")),
                ..common(validation())
            }),
            SecurityConfig { identity: Some(source("own", "")), ..given.clone() },
        ),
        (
            secured(&UpstreamTlsContext {
                sni: "a".repeat(255),
                auto_host_sni: true,
                auto_sni_san_validation: true,
                allow_renegotiation: true,
                max_session_keys: Some(0),
                ..context()
            }),
            SecurityConfig {
                sni: Some("a".repeat(255)),
                auto_host_sni: true,
                auto_sni_san_validation: true,
                ..given.clone()
            },
        ),
        (
            with_common(CommonTlsContext { alpn_protocols: vec!["h2".to_owned()], ..common(validation()) }),
            given,
        ),
    ] {
        assert_eq!(security(&message), expected);
    }
}

/// VAL-C5, VAL-C7: other transport sockets and incomplete contexts are rejected.
#[test]
fn contexts_that_are_refused() {
    let tls = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
    let raw = "t/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer";
    let sds = ValidationContextType::ValidationContextSdsSecretConfig(SdsSecretConfig::default());
    let validated = |kind| CommonTlsContext { validation_context_type: kind, ..CommonTlsContext::default() };
    let unset = "ca_certificate_provider_instance: must be set, unless system_root_certs is";
    for (message, problem) in [
        (socket(None), format!("{AT}: must be set: {tls}")),
        (
            socket(Some(Any { type_url: raw.to_owned(), value: vec![] })),
            format!("{AT}: expected {tls}, found type {raw:?}"),
        ),
        (secured(&UpstreamTlsContext::default()), format!("{COMMON}: must be set")),
        (
            secured(&UpstreamTlsContext { sni: "a".repeat(256), ..context() }),
            format!("{AT}.sni: has 256 bytes; at most 255 are allowed"),
        ),
        (with_common(validated(None)), format!("{COMMON}.validation_context: must be set")),
        (
            with_common(validated(Some(sds))),
            format!(
                "{COMMON}.validation_context_sds_secret_config: is not supported; use validation_context"
            ),
        ),
        (
            with_validation(CertificateValidationContext::default()),
            format!("{COMMON}.validation_context.{unset}"),
        ),
        (
            combined(CombinedCertificateValidationContext::default()),
            format!("{COMMON}.combined_validation_context.default_validation_context.{unset}"),
        ),
    ] {
        assert_eq!(refused(&message), problem);
    }
    let undecodable = Any { value: vec![0xff; 3], ..any(&context()) };
    assert!(refused(&socket(Some(undecodable))).starts_with(&format!("{AT}: cannot be decoded: ")));
}

/// VAL-C5: only certificate providers of the bootstrap are accepted.
#[test]
fn certificates_that_are_refused() {
    let other = CertificateValidationContext {
        ca_certificate_provider_instance: Some(provider("other", "")),
        ..validation()
    };
    let older_roots = CombinedCertificateValidationContext {
        validation_context_certificate_provider_instance: Some(older("other", "")),
        ..CombinedCertificateValidationContext::default()
    };
    let identity = CommonTlsContext {
        tls_certificate_provider_instance: Some(provider("other", "")),
        ..common(validation())
    };
    for (message, field) in [
        (with_validation(other), "validation_context.ca_certificate_provider_instance"),
        (
            combined(older_roots),
            "combined_validation_context.validation_context_certificate_provider_instance",
        ),
        (with_common(identity), "tls_certificate_provider_instance"),
    ] {
        let problem = "instance_name: the bootstrap has no certificate provider \"other\"";
        assert_eq!(refused(&message), format!("{COMMON}.{field}.{problem}"));
    }
    let mut without = parser();
    without.certificate_providers.clear();
    assert!(parse_with(&secured(&context()), &without).is_err());

    let inline =
        CommonTlsContext { tls_certificates: vec![TlsCertificate::default()], ..common(validation()) };
    let secrets = vec![SdsSecretConfig::default()];
    let sds = CommonTlsContext { tls_certificate_sds_secret_configs: secrets, ..common(validation()) };
    for (common, field) in [(inline, "tls_certificates"), (sds, "tls_certificate_sds_secret_configs")] {
        let problem = "is not supported; name a certificate provider in tls_certificate_provider_instance";
        assert_eq!(refused(&with_common(common)), format!("{COMMON}.{field}: {problem}"));
    }
}

type Change = fn(&mut CertificateValidationContext);

/// VAL-C5: a field whose omission would weaken security is rejected.
#[test]
fn fields_that_are_refused() {
    let less = "is not supported, and ignoring it would be less secure";
    let params = CommonTlsContext { tls_params: Some(TlsParameters::default()), ..common(validation()) };
    let handshaker = Some(TypedExtensionConfig::default());
    let handshaker = CommonTlsContext { custom_handshaker: handshaker, ..common(validation()) };
    for (common, field) in [(params, "tls_params"), (handshaker, "custom_handshaker")] {
        assert_eq!(refused(&with_common(common)), format!("{COMMON}.{field}: {less}"));
    }
    let changes: [(&str, Change); 5] = [
        ("verify_certificate_spki", |context| context.verify_certificate_spki.push(String::new())),
        ("verify_certificate_hash", |context| context.verify_certificate_hash.push(String::new())),
        ("require_signed_certificate_timestamp", |context| {
            context.require_signed_certificate_timestamp = Some(true);
        }),
        ("crl", |context| context.crl = Some(DataSource::default())),
        ("custom_validator_config", |context| {
            context.custom_validator_config = Some(TypedExtensionConfig::default());
        }),
    ];
    for (field, change) in changes {
        let mut context = validation();
        change(&mut context);
        assert_eq!(
            refused(&with_validation(context)),
            format!("{COMMON}.validation_context.{field}: {less}")
        );
    }
}

/// VAL-C5: fields that A29 ignores produce a warning if they may matter.
#[test]
fn what_is_ignored() {
    let message = with_validation(CertificateValidationContext {
        trusted_ca: Some(DataSource::default()),
        allow_expired_certificate: true,
        require_signed_certificate_timestamp: Some(false),
        ..validation()
    });
    let (known, warnings) = parse(&message).unwrap();
    let told = ["trusted_ca", "allow_expired_certificate"]
        .map(|field| format!("{COMMON}.validation_context.{field}: is ignored"));
    assert_eq!(warnings, told);
    assert!(known.security.is_some());
}

fn pattern(pattern: MatchPattern) -> StringMatcher {
    StringMatcher { match_pattern: Some(pattern), ignore_case: false }
}

fn regex(regex: &str) -> MatchPattern {
    MatchPattern::SafeRegex(RegexMatcher { regex: regex.to_owned(), engine_type: None })
}

fn with_names(names: Vec<StringMatcher>) -> Cluster {
    with_validation(CertificateValidationContext { match_subject_alt_names: names, ..validation() })
}

fn matcher(matcher: StringMatcher) -> SanMatcher {
    security(&with_names(vec![matcher])).san_matchers.remove(0)
}

/// VAL-C5: names match by every kind of string matcher, case-sensitive or not.
#[test]
fn names_of_certificates() {
    use MatchPattern::{Contains, Exact, Prefix, Suffix};
    let text = str::to_owned;
    for (pattern, good, bad) in [
        (Exact(text("Ab")), &["Ab"][..], &["ab", "Abc", "xAb"][..]),
        (Prefix(text("Ab")), &["Ab", "Abc"], &["ab", "xAb"]),
        (Suffix(text("Ab")), &["Ab", "xAb"], &["ab", "Abc"]),
        (Contains(text("Ab")), &["Ab", "xAbc"], &["ab", "A b"]),
        (regex("A|Ab"), &["A", "Ab"], &["a", "AbA", "xA", "A\n"]),
        (regex("(?i)ab"), &["Ab", "aB"], &["abc"]),
    ] {
        let matcher = matcher(self::pattern(pattern.clone()));
        for kind in [SanKind::Uri, SanKind::Email, SanKind::Ip] {
            assert!(good.iter().all(|name| matcher.matches(kind, name)), "{pattern:?}");
            assert!(!bad.iter().any(|name| matcher.matches(kind, name)), "{pattern:?}");
        }
    }
    for (pattern, good) in [
        (Exact(text("aB")), "Ab"),
        (Prefix(text("aB")), "Abc"),
        (Suffix(text("aB")), "xAb"),
        (Contains(text("aB")), "xAbc"),
    ] {
        let folded = StringMatcher { match_pattern: Some(pattern.clone()), ignore_case: true };
        assert!(matcher(folded).matches(SanKind::Uri, good), "{pattern:?}");
    }
    let folded = StringMatcher { match_pattern: Some(regex("aB")), ignore_case: true };
    let (known, warnings) = parse(&with_names(vec![folded])).unwrap();
    let told = "match_subject_alt_names[0].ignore_case: is ignored: it does not apply to safe_regex";
    assert_eq!(warnings, [format!("{COMMON}.validation_context.{told}")]);
    let matcher_of_pattern = &known.security.as_ref().unwrap().san_matchers[0];
    assert!(
        !matcher_of_pattern.matches(SanKind::Uri, "Ab") && matcher_of_pattern.matches(SanKind::Uri, "aB")
    );
    let empty = matcher(pattern(Exact(String::new())));
    assert!(!empty.matches(SanKind::Uri, "") && !empty.matches(SanKind::Dns, ""));
}

/// VAL-C5: an exact name also matches the wildcard certificate for it, among DNS names only.
#[test]
fn wildcard_certificates() {
    let exact = matcher(pattern(MatchPattern::Exact("API.example.com".to_owned())));
    for (name, expected) in [
        ("api.example.com", true),
        ("*.example.com", true),
        ("*.EXAMPLE.com.", true),
        ("*.api.example.com", false),
        ("*.com", false),
        ("*", false),
        ("*example.com", false),
        ("a*.example.com", false),
        ("example.com", false),
        ("*.other.com", false),
    ] {
        assert_eq!(exact.matches(SanKind::Dns, name), expected, "{name}");
    }
    assert!(!exact.matches(SanKind::Uri, "*.example.com"));
    let short = matcher(pattern(MatchPattern::Exact("example.com".to_owned())));
    assert!(!short.matches(SanKind::Dns, "*.com"), "not for everybody under a top-level domain");
    let deep = matcher(pattern(MatchPattern::Exact("x.api.example.com".to_owned())));
    assert!(!deep.matches(SanKind::Dns, "*.example.com"));
    let suffix = matcher(pattern(MatchPattern::Suffix("example.com".to_owned())));
    assert!(suffix.matches(SanKind::Dns, "*.example.com") && !suffix.matches(SanKind::Dns, "EXAMPLE.com"));
}

/// VAL-C5, fault 38: a name matcher that cannot match, or is too large, is rejected.
#[test]
fn names_that_cannot_be_matched() {
    let at = format!("{COMMON}.validation_context.match_subject_alt_names[1]");
    let custom = MatchPattern::Custom(XdsExtension::default());
    for (matcher, problem) in [
        (StringMatcher::default(), &*format!(": {NO_PATTERN}")),
        (pattern(MatchPattern::Prefix(String::new())), ".prefix: must not be empty"),
        (pattern(MatchPattern::Suffix(String::new())), ".suffix: must not be empty"),
        (pattern(MatchPattern::Contains(String::new())), ".contains: must not be empty"),
        (pattern(custom), ".custom: is not supported"),
    ] {
        let good = pattern(MatchPattern::Exact("a".to_owned()));
        assert_eq!(refused(&with_names(vec![good, matcher])), format!("{at}{problem}"));
    }
    let deep = "(".repeat(100_000);
    let cases = [
        ("(", "is not a valid regular expression: \"unclosed group\""),
        ("a)|(b", "is not a valid regular expression: \"unopened group\""),
        ("(?x)a #", "is not a valid regular expression: \"unclosed group\""),
        (
            "((a{100}){100}){100}",
            "takes more than 10485760 bytes when compiled; at most that many are allowed",
        ),
    ];
    let at = format!("{COMMON}.validation_context.match_subject_alt_names[0].safe_regex.regex");
    for (bad, reason) in cases {
        let problem = refused(&with_names(vec![pattern(regex(bad))]));
        assert_eq!(problem, format!("{at}: {bad:?} {reason}"));
    }
    let problem = refused(&with_names(vec![pattern(regex(&deep))]));
    assert!(problem.contains(" is not a valid regular expression: ") && problem.len() < 500, "{problem}");
}

/// fault 38: the regular expressions of one cluster share a size limit.
#[test]
fn patterns_of_names_share_a_limit() {
    let mut parser = parser();
    parser.limits.regex_bytes = 64 << 10;
    let bombs = (0..1_000).map(|i| pattern(regex(&format!("x{i}(a{{100}}){{100}}")))).collect();
    let problems = parse_with(&with_names(bombs), &parser).unwrap_err();
    let together = "the regular expressions of one resource exceed 1048576 bytes in total when compiled";
    assert!(problems.contains(together), "{problems}");
}

/// VAL-C5: typed name matchers replace the untyped ones, and match names of their type only.
#[test]
fn names_of_one_type() {
    let typed = |san_type: i32| SubjectAltNameMatcher {
        san_type,
        matcher: Some(pattern(MatchPattern::Exact("a".to_owned()))),
        oid: String::new(),
    };
    let with = |all: Vec<SubjectAltNameMatcher>| {
        with_validation(CertificateValidationContext {
            match_typed_subject_alt_names: all,
            match_subject_alt_names: vec![pattern(MatchPattern::Exact("b".to_owned()))],
            ..validation()
        })
    };
    let kinds = [SanKind::Dns, SanKind::Uri, SanKind::Email, SanKind::Ip];
    let names = ["DNS", "URI", "email", "IP"];
    for ((san_type, expected), name) in
        [SanType::Dns, SanType::Uri, SanType::Email, SanType::IpAddress].into_iter().zip(kinds).zip(names)
    {
        let matchers = security(&with(vec![typed(san_type.into())])).san_matchers;
        assert_eq!(matchers.len(), 1);
        assert_eq!(matchers[0].to_string(), format!("{name} exact \"a\""));
        for kind in kinds {
            assert_eq!(matchers[0].matches(kind, "a"), kind == expected);
        }
    }
    let untyped = matcher(pattern(MatchPattern::Suffix(".b".to_owned())));
    assert_eq!(untyped.to_string(), r#"suffix ".b""#);
    let at = format!("{COMMON}.validation_context.match_typed_subject_alt_names[0]");
    for san_type in [0, 5, 9] {
        let problem = format!("{at}.san_type: expected EMAIL, DNS, URI or IP_ADDRESS, found {san_type}");
        assert_eq!(refused(&with(vec![typed(san_type)])), problem);
    }
    let bare = SubjectAltNameMatcher { matcher: None, ..typed(1) };
    assert_eq!(refused(&with(vec![bare])), format!("{at}.matcher: {NO_PATTERN}"));
}

/// Configs are equal if all their fields are equal, including patterns.
#[test]
fn securities_are_compared() {
    let names = |pattern: &str| security(&with_names(vec![self::pattern(regex(pattern))]));
    assert_eq!(names("a+"), names("a+"));
    assert_ne!(names("a+"), names("b+"));
    let contains = |ignore_case| {
        let match_pattern = Some(MatchPattern::Contains("a".to_owned()));
        security(&with_names(vec![StringMatcher { match_pattern, ignore_case }]))
    };
    assert_eq!(contains(true), contains(true));
    assert_ne!(contains(true), contains(false));
    assert_ne!(contains(true), names("(?i:a)"));
}
