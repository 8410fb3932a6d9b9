//! Cases of transport security by xDS (A29).

use evenkeel_control::{Mesh, ResourceSet, Service};
use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::config::core::v3::TransportSocket;
use evenkeel_proto::envoy::config::core::v3::transport_socket::ConfigType;
use evenkeel_proto::envoy::extensions::transport_sockets::tls::v3::common_tls_context::ValidationContextType;
use evenkeel_proto::envoy::extensions::transport_sockets::tls::v3::{
    CertificateProviderPluginInstance, CertificateValidationContext, CommonTlsContext, UpstreamTlsContext,
};
use evenkeel_proto::envoy::r#type::matcher::v3::StringMatcher;
use evenkeel_proto::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use evenkeel_proto::prost::{Message as _, Name as _};
use evenkeel_proto::prost_types::Any;

use super::round_robin;
use crate::driver::certificates::{PROVIDER, SERVER};
use crate::driver::stage::{CLUSTER, SERVICE};
use crate::driver::{Calls, Result, Server, Stage};

/// Returns resources with these servers, with TLS if a context is given.
fn resources(servers: &[Server], security: Option<UpstreamTlsContext>) -> ResourceSet {
    let mesh = Mesh::new().service(SERVICE, Service::to(CLUSTER)).cluster(CLUSTER, round_robin(servers));
    let mut resources = mesh.resources();
    if let (Some(context), Some(mut cluster)) = (security, resources.get::<Cluster>(CLUSTER)) {
        let context = Any { type_url: UpstreamTlsContext::type_url(), value: context.encode_to_vec() };
        cluster.transport_socket = Some(TransportSocket {
            name: "envoy.transport_sockets.tls".to_owned(),
            config_type: Some(ConfigType::TypedConfig(context)),
        });
        resources.set(cluster);
    }
    resources
}

/// Returns a TLS context that accepts the known server, with or without a client certificate.
fn security(own_certificate: bool) -> UpstreamTlsContext {
    let provider = || CertificateProviderPluginInstance {
        instance_name: PROVIDER.to_owned(),
        ..CertificateProviderPluginInstance::default()
    };
    let name = StringMatcher {
        match_pattern: Some(MatchPattern::Exact(SERVER.to_owned())),
        ..StringMatcher::default()
    };
    let validation = CertificateValidationContext {
        ca_certificate_provider_instance: Some(provider()),
        match_subject_alt_names: vec![name],
        ..CertificateValidationContext::default()
    };
    let common = CommonTlsContext {
        tls_certificate_provider_instance: own_certificate.then(provider),
        validation_context_type: Some(ValidationContextType::ValidationContext(validation)),
        ..CommonTlsContext::default()
    };
    UpstreamTlsContext { common_tls_context: Some(common), ..UpstreamTlsContext::default() }
}

pub(super) async fn mtls(stage: Stage) -> Result {
    secured(stage, true).await
}

pub(super) async fn tls(stage: Stage) -> Result {
    secured(stage, false).await
}

async fn secured(mut stage: Stage, mutual: bool) -> Result {
    let flags = stage.certificates()?.of_server(mutual);
    let servers = stage.servers_with([("s1", flags.clone()), ("s2", flags)]).await?;
    stage.set_resources(resources(&servers, Some(security(mutual)))).await?;
    let mut client = stage.client(Calls::unary().secure()).await?;
    client.until(40, "calls at both", |stats| stats.only(&["s1", "s2"])).await?;
    Ok(())
}

/// The cluster has no transport socket, so the client uses its fallback credentials.
pub(super) async fn plaintext_fallback(mut stage: Stage) -> Result {
    stage.certificates()?;
    let servers = stage.servers(["s1", "s2"]).await?;
    stage.set_resources(resources(&servers, None)).await?;
    let mut client = stage.client(Calls::unary().secure()).await?;
    client.until(40, "calls at both", |stats| stats.only(&["s1", "s2"])).await?;
    Ok(())
}

/// Neither a server with an unexpected identity nor one that requires client certificates is called, and
/// never in plaintext. First no server is reachable, then a valid one beside them.
pub(super) async fn mtls_error(mut stage: Stage) -> Result {
    let certificates = stage.certificates()?;
    let (right, wants, stranger) =
        (certificates.of_server(false), certificates.of_server(true), certificates.of_stranger());
    let wrong = stage.servers_with([("stranger", stranger), ("wants", wants)]).await?;
    let plain = stage.servers(["plain"]).await?;
    let right = stage.servers_with([("right", right)]).await?;
    let wrong: Vec<_> = wrong.into_iter().chain(plain).collect();
    stage.set_resources(resources(&wrong, Some(security(false)))).await?;
    let mut client = stage.client(Calls::unary().secure()).await?;
    client.until(50, "no call that succeeds", |stats| stats.by_peer.is_empty() && stats.failures > 0).await?;
    let all: Vec<_> = wrong.into_iter().chain(right).collect();
    stage.set_resources(resources(&all, Some(security(false)))).await?;
    client.until(50, "calls at the right one only", |stats| stats.only(&["right"])).await?;
    Ok(())
}
