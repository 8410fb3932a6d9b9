//! How do I call a mesh that requires mTLS?
//!
//! The cluster says what its connections need: the CA, a client certificate and the server's identity. The
//! bootstrap says where the certificate files are (`certificate_providers`). Istio in STRICT mode configures
//! its clients in the same way. Check the last line: a server with another identity gets no call.

use std::path::Path;

use evenkeel::{Bootstrap, Channel};
use evenkeel_control::{Cluster, ControlPlane, Endpoint, Mesh, Service};
use evenkeel_proto::envoy::config::cluster::v3::Cluster as ClusterResource;
use evenkeel_proto::envoy::config::core::v3::TransportSocket;
use evenkeel_proto::envoy::config::core::v3::transport_socket::ConfigType;
use evenkeel_proto::envoy::extensions::transport_sockets::tls::v3::common_tls_context::ValidationContextType;
use evenkeel_proto::envoy::extensions::transport_sockets::tls::v3::{
    CertificateProviderPluginInstance, CertificateValidationContext, CommonTlsContext, UpstreamTlsContext,
};
use evenkeel_proto::envoy::r#type::matcher::v3::StringMatcher;
use evenkeel_proto::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use evenkeel_proto::prost::{Message, Name};
use evenkeel_proto::prost_types::Any;
use examples::shop::GetRequest;
use examples::shop::orders_client::OrdersClient;
use examples::{Backend, Outcome, Tls};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use serde_json::{Value, json};

/// Identity of the servers, and of the client.
const ORDERS: &str = "spiffe://cluster.local/ns/shop/sa/orders";
const WEB: &str = "spiffe://cluster.local/ns/shop/sa/web";

#[tokio::main]
async fn main() -> Outcome {
    // Certificates of the mesh. In production an agent writes the client's files, and replaces them.
    let folder = tempfile::tempdir()?;
    let ca = mesh_ca()?;
    let ((server_pem, server_key), (client_pem, client_key)) = (issue(&ca, ORDERS)?, issue(&ca, WEB)?);
    std::fs::write(folder.path().join("root-cert.pem"), ca.pem())?;
    std::fs::write(folder.path().join("cert-chain.pem"), client_pem)?;
    std::fs::write(folder.path().join("key.pem"), client_key)?;

    // A server that accepts only clients with a certificate of this CA.
    let tls = Tls { certificate: server_pem, key: server_key, clients: ca.pem() };
    let server = Backend::start_at("server", "127.0.0.1:0".parse()?, Some(tls)).await?;

    let control = ControlPlane::builder().serve().await?;
    let cluster = Cluster::new().endpoint(Endpoint::at(server.address()));
    control.set_mesh(&Mesh::new().service("orders", Service::to("orders")).cluster("orders", cluster));
    require_mtls(&control, ORDERS);

    let bootstrap = Bootstrap::from_json(&bootstrap(&control, folder.path())?)?;
    // No credentials: the bootstrap has certificate providers, so the TLS settings of clusters apply. The default is
    // `Credentials::xds(Credentials::insecure())`, where the argument is for clusters without TLS settings.
    let channel = Channel::builder("xds:///orders").bootstrap(bootstrap).build()?;
    let mut orders = OrdersClient::new(channel);
    let order = orders.get(GetRequest::default()).await?.into_inner();
    println!("over mTLS: response from {}", order.backend);
    println!("the server saw a client certificate: {}", server.caller().is_some());

    // The control plane names another identity. The channel opens a connection for the changed settings, and
    // the server's certificate does not match.
    require_mtls(&control, "spiffe://cluster.local/ns/shop/sa/payments");
    control.wait_acked::<ClusterResource>().await;
    let status = loop {
        if let Err(status) = orders.get(GetRequest::default()).await {
            break status;
        }
    };
    println!("another identity: {:?}: {}", status.code(), status.message());
    Ok(())
}

/// Returns the control plane's bootstrap with a certificate provider, as Istio's agent writes it.
fn bootstrap(control: &ControlPlane, certificates: &Path) -> Result<String, serde_json::Error> {
    let mut bootstrap: Value = serde_json::from_str(&control.bootstrap("mesh-tls"))?;
    bootstrap["certificate_providers"] = json!({
        "default": {
            "plugin_name": "file_watcher",
            "config": {
                "certificate_file": certificates.join("cert-chain.pem"),
                "private_key_file": certificates.join("key.pem"),
                "ca_certificate_file": certificates.join("root-cert.pem"),
                "refresh_interval": "900s",
            },
        },
    });
    Ok(bootstrap.to_string())
}

/// Adds TLS settings to the cluster: roots and client certificate of the provider `default`, and the only
/// identity that servers may have.
fn require_mtls(control: &ControlPlane, identity: &str) {
    let provider = CertificateProviderPluginInstance {
        instance_name: "default".to_owned(),
        ..CertificateProviderPluginInstance::default()
    };
    let identity =
        StringMatcher { match_pattern: Some(MatchPattern::Exact(identity.to_owned())), ignore_case: false };
    let validation = CertificateValidationContext {
        ca_certificate_provider_instance: Some(provider.clone()),
        match_subject_alt_names: vec![identity],
        ..CertificateValidationContext::default()
    };
    let common = CommonTlsContext {
        tls_certificate_provider_instance: Some(provider),
        validation_context_type: Some(ValidationContextType::ValidationContext(validation)),
        ..CommonTlsContext::default()
    };
    let context = UpstreamTlsContext { common_tls_context: Some(common), ..UpstreamTlsContext::default() };
    let config = Any { type_url: UpstreamTlsContext::type_url(), value: context.encode_to_vec() };
    control.update(|resources| {
        if let Some(mut cluster) = resources.get::<ClusterResource>("orders") {
            cluster.transport_socket = Some(TransportSocket {
                name: "envoy.transport_sockets.tls".to_owned(),
                config_type: Some(ConfigType::TypedConfig(config)),
            });
            resources.set(cluster);
        }
    });
}

fn mesh_ca() -> Result<CertifiedIssuer<'static, KeyPair>, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate()?)
}

/// Issues a certificate with a SPIFFE id in place of a DNS name. Returns it and its key as PEM texts.
fn issue(ca: &CertifiedIssuer<'_, KeyPair>, id: &str) -> Result<(String, String), rcgen::Error> {
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(id.try_into()?)];
    let key = KeyPair::generate()?;
    Ok((params.signed_by(&key, ca)?.pem(), key.serialize_pem()))
}
