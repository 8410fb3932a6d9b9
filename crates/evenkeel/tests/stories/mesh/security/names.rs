//! Server identity: SAN matchers, SNI and the system's roots.

use std::env;
use std::process::Command;

use evenkeel_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
use evenkeel_proto::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use evenkeel_proto::envoy::extensions::transport_sockets::tls::v3::certificate_validation_context::SystemRootCerts;
use evenkeel_proto::envoy::extensions::transport_sockets::tls::v3::subject_alt_name_matcher::SanType;
use evenkeel_proto::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, SubjectAltNameMatcher, UpstreamTlsContext,
};
use evenkeel_proto::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use evenkeel_proto::envoy::r#type::matcher::v3::{RegexMatcher, StringMatcher};
use testkit::net::certs;
use testkit::net::control::ResourceSetExt as _;
use testkit::resources;
use tonic::Code;

use super::super::until;
use super::front::{Front, FrontConnection};
use super::{Folder, Parts, call, pay, provider, secured, service, serving, with_validation};

fn text(pattern: MatchPattern) -> StringMatcher {
    StringMatcher { match_pattern: Some(pattern), ignore_case: false }
}

fn exact(name: &str) -> StringMatcher {
    text(MatchPattern::Exact(name.to_owned()))
}

/// Returns a TLS context with the servers' CA and these SAN matchers.
fn accepting(names: &[StringMatcher]) -> UpstreamTlsContext {
    let validation = CertificateValidationContext {
        ca_certificate_provider_instance: Some(provider("roots")),
        match_subject_alt_names: names.to_vec(),
        ..CertificateValidationContext::default()
    };
    with_validation(validation, Some("me"))
}

/// The same with a typed SAN matcher.
fn accepting_only(kind: SanType, name: StringMatcher) -> UpstreamTlsContext {
    let typed = SubjectAltNameMatcher { san_type: kind.into(), matcher: Some(name), oid: String::new() };
    let validation = CertificateValidationContext {
        ca_certificate_provider_instance: Some(provider("roots")),
        match_typed_subject_alt_names: vec![typed],
        ..CertificateValidationContext::default()
    };
    with_validation(validation, Some("me"))
}

/// RT-4: one SAN that satisfies one matcher is enough, of any type. Without matchers every name is accepted.
/// The error has the expected and the actual names.
#[tokio::test]
async fn names_that_are_accepted_and_not() {
    let parts = Parts::new().await;
    let uri = "spiffe://prod/ns/shop/sa/pay";
    let named = ["*.pay.internal", uri, "pay@shop.example", "10.0.0.1", "2001:DB8:0::01"];
    let named = parts.front(&parts.servers.issue(&named)).await;
    let nameless = parts.front(&parts.servers.issue(&[])).await;
    let regex = |regex: &str| {
        let regex = RegexMatcher { regex: regex.to_owned(), ..RegexMatcher::default() };
        text(MatchPattern::SafeRegex(regex))
    };
    let rows: Vec<(&Front, UpstreamTlsContext, Option<&str>)> = vec![
        (&named, accepting(&[]), None),
        (&nameless, accepting(&[]), None),
        (&named, accepting(&[exact("a.pay.internal")]), None),
        (&named, accepting(&[exact(uri)]), None),
        (&named, accepting(&[exact("pay@shop.example")]), None),
        (&named, accepting(&[exact("10.0.0.1")]), None),
        (&named, accepting(&[exact("2001:db8::1")]), None),
        (&named, accepting(&[text(MatchPattern::Prefix("spiffe://prod/".to_owned()))]), None),
        (&named, accepting(&[regex("spiffe://[a-z]+/ns/shop/.*")]), None),
        (&named, accepting(&[exact("nobody"), exact(uri)]), None),
        (&named, accepting_only(SanType::Uri, exact(uri)), None),
        (&named, accepting_only(SanType::Email, exact("pay@shop.example")), None),
        (&named, accepting_only(SanType::IpAddress, exact("10.0.0.1")), None),
        (&named, accepting_only(SanType::Dns, exact("A.PAY.internal")), None),
        (&named, accepting_only(SanType::Dns, exact(uri)), Some("accepts DNS exact")),
        (&named, accepting_only(SanType::Uri, exact("a.pay.internal")), Some("accepts URI exact")),
        (&named, accepting(&[exact("a.b.pay.internal")]), Some(r#"accepts exact "a.b.pay.internal""#)),
        (&named, accepting(&[exact("spiffe://test/ns/shop/sa/pay")]), Some("accepts exact \"spiffe://test/")),
        (
            &named,
            accepting(&[exact("10.0.0.2"), exact("nobody")]),
            Some(r#"exact "10.0.0.2", exact "nobody""#),
        ),
        (&named, accepting(&[regex("ns/shop")]), Some(r#"accepts regex "ns/shop""#)),
        (&nameless, accepting(&[exact("nobody")]), Some("the certificate has no SAN; the cluster accepts")),
    ];
    for (front, context, refused) in &rows {
        let (_control, channel) = service(pay(context), &[front.address()], &parts.folder).await;
        let before = front.seen().len();
        match (call(&channel).await, refused) {
            (Ok(_), None) => {}
            (Err(status), Some(why)) => {
                assert_eq!(status.code(), Code::Unavailable);
                let at = format!("TLS handshake with {} of cluster \"pay\"", front.address());
                let text = status.message();
                assert!(text.contains(&at) && text.contains(why), "{why}: {text}");
                let listed = r#"the certificate is for DNS "*.pay.internal", URI "spiffe"#;
                assert_eq!(text.contains(listed), front.address() == named.address(), "{text}");
            }
            (outcome, _) => panic!("expected {refused:?}, found {outcome:?}"),
        }
        // The front records a rejected handshake after the client has reported it.
        until("the front has seen the handshake", || async { front.seen().len() > before }).await;
        let came = front.seen().split_off(before);
        assert!(came.iter().all(|came| (*came == FrontConnection::NotIn) == refused.is_some()), "{came:?}");
    }
    assert!(parts.backend.calls() > 0);
}

/// A101: the SNI is the endpoint's hostname if enabled, else the cluster's name, else absent. If enabled, the
/// certificate must match the SNI instead of the matchers.
#[tokio::test]
async fn the_name_that_is_sent() {
    let parts = Parts::new().await;
    let front = parts.front(&parts.servers.issue(&["a.internal", "localhost"])).await;
    let hosted = |host: &str| {
        let mut assignment: ClusterLoadAssignment =
            resources::load_assignment("pay", &[&front.address().to_string()]);
        let endpoint = &mut assignment.endpoints[0].lb_endpoints[0];
        let Some(HostIdentifier::Endpoint(endpoint)) = &mut endpoint.host_identifier else { unreachable!() };
        endpoint.hostname = host.to_owned();
        assignment
    };
    let context = |sni: &str, auto_host_sni, auto_sni_san_validation| UpstreamTlsContext {
        sni: sni.to_owned(),
        auto_host_sni,
        auto_sni_san_validation,
        ..accepting(&[exact("a.internal")])
    };
    let rows = [
        ("", context("", false, false), Ok(None)),
        ("", context("b.internal", false, false), Ok(Some("b.internal"))),
        ("c.internal", context("b.internal", false, false), Ok(Some("b.internal"))),
        ("c.internal:443", context("b.internal", true, false), Ok(Some("c.internal"))),
        ("", context("b.internal", true, false), Ok(Some("b.internal"))),
        ("a.internal:443", context("", true, true), Ok(Some("a.internal"))),
        // The matchers would accept it.
        ("c.internal", context("", true, true), Err(r#"accepts DNS exact "c.internal""#)),
        ("", context("b.internal", true, true), Err(r#"accepts DNS exact "b.internal""#)),
        ("", context("", true, true), Ok(None)),
        (
            "not a name",
            context("", true, true),
            Err(r#"server name "not a name" (SNI): expected a DNS name"#),
        ),
    ];
    for (host, context, expected) in rows {
        let (_control, channel) = serving(&parts.folder, |held| {
            held.serve("orders", "pay", &[]);
            held.set(pay(&context));
            held.set(hosted(host));
        })
        .await;
        match (call(&channel).await, expected) {
            (Ok(_), Ok(sent)) => {
                let Some(FrontConnection::Tls { sni, .. }) = front.seen().pop() else {
                    panic!("{:?}", front.seen())
                };
                assert_eq!(sni.as_deref(), sent, "{host}");
            }
            (Err(status), Err(why)) => assert!(status.message().contains(why), "{why}: {status}"),
            (outcome, expected) => panic!("{host}: expected {expected:?}, found {outcome:?}"),
        }
    }
    // DNS name of a LOGICAL_DNS cluster.
    let dns = resources::dns_cluster("pay", "localhost", front.address().port());
    let (_control, channel) = service(secured(dns, &context("", true, true)), &[], &parts.folder).await;
    call(&channel).await.unwrap();
    let Some(FrontConnection::Tls { sni, .. }) = front.seen().pop() else { panic!("{:?}", front.seen()) };
    assert_eq!(sni.as_deref(), Some("localhost"));
}

/// A82: system roots depend on the environment of a process. Each row therefore runs this test in a child
/// process, with the address of the server.
#[tokio::test]
async fn the_systems_roots() {
    const NAME: &str = "mesh::security::names::the_systems_roots";
    const SERVER: &str = "EVENKEEL_TEST_SERVER";
    if let Ok(server) = env::var(SERVER) {
        let validation = CertificateValidationContext {
            system_root_certs: Some(SystemRootCerts {}),
            match_subject_alt_names: vec![exact("orders")],
            ..CertificateValidationContext::default()
        };
        let (cluster, folder) = (pay(&with_validation(validation, None)), Folder::new());
        let (_control, channel) = service(cluster, &[server.parse().unwrap()], &folder).await;
        println!("outcome: {:?}", call(&channel).await.map(drop));
        return;
    }
    let parts = Parts::new().await;
    let front =
        Front::start(&parts.backend, certs::server_config(&parts.servers.issue(&["orders"]), None)).await;
    let rows = [
        (parts.servers.pem(), "outcome: Ok(())"),
        (parts.clients.pem(), "it is not signed by a trusted CA"),
        (String::new(), "cluster \\\"pay\\\": system roots: no certificate was found"),
    ];
    for (pem, expected) in rows {
        parts.folder.write("roots.pem", &pem);
        let mut child = Command::new(env::current_exe().unwrap());
        child.args([NAME, "--exact", "--nocapture"]).env_remove("SSL_CERT_DIR");
        child.env("SSL_CERT_FILE", parts.folder.at("roots.pem")).env(SERVER, front.address().to_string());
        let output = tokio::task::spawn_blocking(move || child.output().unwrap()).await.unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains(expected), "expected {expected:?}: {said}");
    }
}
