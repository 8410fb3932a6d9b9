//! Transport security per cluster (A29), over real TLS.

mod changes;
mod front;
mod names;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use evenkeel::{Channel, ChannelBuilder, Credentials};
use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::config::core::v3::TransportSocket;
use evenkeel_proto::envoy::config::core::v3::transport_socket::ConfigType;
use evenkeel_proto::envoy::extensions::transport_sockets::tls::v3::common_tls_context::ValidationContextType;
use evenkeel_proto::envoy::extensions::transport_sockets::tls::v3::{
    CertificateProviderPluginInstance, CertificateValidationContext, CommonTlsContext, UpstreamTlsContext,
    certificate_validation_context::SystemRootCerts,
};
use serde_json::{Value, json};
use testkit::net::certs::{self, Ca, Cert};
use testkit::net::control::{ResourceSet, ResourceSetExt as _};
use testkit::net::echo::echo_client::EchoClient;
use testkit::net::{Backend, ControlPlane, Tls};
use testkit::resources::{self, any};
use tonic::{Code, Status};

use self::front::{Front, FrontConnection};
use super::{call, channel_by, policies, request};

/// Folder of the bootstrap's certificate providers: `own` has all files, `roots` only the CA, `me` only the
/// client certificate.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().expect("a folder"))
    }

    /// Creates a folder with a CA and a client certificate.
    fn with(ca: &Ca, own: &Cert) -> Folder {
        let folder = Folder::new();
        folder.write("ca.pem", &ca.pem());
        folder.write("tls.crt", &own.pem);
        folder.write("tls.key", &own.key_pem);
        folder
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn at(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.at(name), text).expect("a file");
    }

    /// Returns the bootstrap of a node that reloads these files for every connection.
    fn bootstrap(&self, control: &ControlPlane) -> String {
        let mut bootstrap: Value = serde_json::from_str(&control.bootstrap("node-7")).expect("JSON");
        let files = |names: &[(&str, &str)]| {
            let mut config = json!({ "refresh_interval": "0.000000001s" });
            for (field, name) in names {
                config[field] = self.at(name).to_str().expect("a path that is text").into();
            }
            json!({ "plugin_name": "file_watcher", "config": config })
        };
        let (ca, own) = (
            ("ca_certificate_file", "ca.pem"),
            [("certificate_file", "tls.crt"), ("private_key_file", "tls.key")],
        );
        bootstrap["certificate_providers"] =
            json!({ "own": files(&[ca, own[0], own[1]]), "roots": files(&[ca]), "me": files(&own) });
        bootstrap.to_string()
    }
}

fn provider(instance: &str) -> CertificateProviderPluginInstance {
    let instance_name = instance.to_owned();
    CertificateProviderPluginInstance { instance_name, ..CertificateProviderPluginInstance::default() }
}

/// Returns a TLS context: roots of one provider, and optionally a client certificate of another.
fn tls(roots: &str, identity: Option<&str>) -> UpstreamTlsContext {
    let validation = CertificateValidationContext {
        ca_certificate_provider_instance: Some(provider(roots)),
        ..CertificateValidationContext::default()
    };
    with_validation(validation, identity)
}

fn with_validation(validation: CertificateValidationContext, identity: Option<&str>) -> UpstreamTlsContext {
    let common = CommonTlsContext {
        tls_certificate_provider_instance: identity.map(provider),
        validation_context_type: Some(ValidationContextType::ValidationContext(validation)),
        ..CommonTlsContext::default()
    };
    UpstreamTlsContext { common_tls_context: Some(common), ..UpstreamTlsContext::default() }
}

fn mutual() -> UpstreamTlsContext {
    tls("own", Some("own"))
}

/// Returns the cluster with this TLS context.
fn secured(cluster: Cluster, context: &UpstreamTlsContext) -> Cluster {
    let socket = TransportSocket {
        name: "envoy.transport_sockets.tls".to_owned(),
        config_type: Some(ConfigType::TypedConfig(any(context))),
    };
    Cluster { transport_socket: Some(socket), ..cluster }
}

fn pay(context: &UpstreamTlsContext) -> Cluster {
    secured(resources::cluster("pay"), context)
}

/// Returns a builder for a channel with xDS credentials and a plaintext fallback.
fn by_cluster(control: &ControlPlane, folder: &Folder) -> ChannelBuilder {
    channel_by(&folder.bootstrap(control)).credentials(Credentials::xds(Credentials::insecure()))
}

/// Starts a service `orders` with this cluster, and creates a channel to it.
async fn service(cluster: Cluster, endpoints: &[SocketAddr], folder: &Folder) -> (ControlPlane, Channel) {
    serving(folder, |held| {
        held.serve("orders", &cluster.name, endpoints);
        held.set(cluster);
    })
    .await
}

/// Starts a service `orders` with these resources, and creates a channel to it.
async fn serving(folder: &Folder, describe: impl FnOnce(&mut ResourceSet)) -> (ControlPlane, Channel) {
    let control = ControlPlane::start().await;
    control.update(describe);
    let channel = by_cluster(&control, folder).build().expect("a channel");
    (control, channel)
}

/// Makes a call and returns the scheme that the backend saw.
async fn scheme(channel: &Channel) -> Result<String, Status> {
    let answer = EchoClient::new(channel.clone()).unary(request()).await?.into_inner();
    Ok(answer.metadata[":scheme"].clone())
}

/// CAs of servers and clients, a client certificate, and a backend.
struct Parts {
    servers: Ca,
    clients: Ca,
    me: Cert,
    folder: Folder,
    backend: Backend,
}

impl Parts {
    async fn new() -> Parts {
        let (servers, clients) = (Ca::new("servers"), Ca::new("clients"));
        let me = clients.issue_client(&["spiffe://prod/ns/shop/sa/shop"]);
        let folder = Folder::with(&servers, &me);
        Parts { servers, clients, me, folder, backend: Backend::start().await }
    }

    /// Starts a front with this certificate that requires client certificates of our CA.
    async fn front(&self, cert: &Cert) -> Front {
        Front::start(&self.backend, certs::server_config(cert, Some(&self.clients.pem()))).await
    }
}

fn der(cert: &Cert) -> Vec<u8> {
    certs::chain(&cert.pem)[0].to_vec()
}

/// RT-4: the fallback credentials, plaintext or TLS, apply to clusters without a transport socket and to
/// targets without a control plane.
#[tokio::test]
async fn without_a_security_config_the_fallback_applies() {
    let Parts { servers, folder, backend, .. } = Parts::new().await;
    let plain = resources::cluster("pay");
    let (_control, channel) = service(plain.clone(), &[backend.address()], &folder).await;
    assert_eq!(scheme(&channel).await.unwrap(), "http");

    let cert = servers.issue(&["orders"]);
    let serving = Tls { certificate: cert.pem, key: cert.key_pem, client_ca: None };
    let closed = Backend::builder().tls(serving).start().await;
    let fallback = Credentials::tls().ca_pem(servers.pem()).build().unwrap();
    let (control, _) = service(plain, &[closed.address()], &folder).await;
    let channel = channel_by(&folder.bootstrap(&control)).credentials(Credentials::xds(fallback));
    assert_eq!(scheme(&channel.build().unwrap()).await.unwrap(), "https");

    let channel = Channel::builder(format!("ipv4:{}", backend.address()))
        .credentials(Credentials::xds(Credentials::insecure()))
        .build()
        .unwrap();
    assert_eq!(scheme(&channel).await.unwrap(), "http");
}

/// A29: mTLS with the bootstrap's providers. No SNI is sent unless the cluster sets it.
#[tokio::test]
async fn both_sides_are_authenticated() {
    let parts = Parts::new().await;
    let front = parts.front(&parts.servers.issue(&["whatever.internal"])).await;
    for (context, expected) in [
        (mutual(), Ok(der(&parts.me))),
        (tls("roots", Some("me")), Ok(der(&parts.me))),
        (tls("roots", None), Err("the server refused: certificate required")),
    ] {
        let (_control, channel) = service(pay(&context), &[front.address()], &parts.folder).await;
        match expected {
            Ok(client) => {
                assert_eq!(scheme(&channel).await.unwrap(), "https");
                assert_eq!(
                    front.seen().pop(),
                    Some(FrontConnection::Tls { sni: None, client: Some(client) })
                );
            }
            Err(why) => {
                let status = call(&channel).await.unwrap_err();
                assert_eq!(status.code(), Code::Unavailable);
                assert!(status.message().contains(why), "{status}");
            }
        }
    }
    assert!(!front.seen().contains(&FrontConnection::Plain));
}

/// A29: a channel without credentials of its own applies the TLS settings of clusters if the bootstrap has certificate
/// providers. Without them, connections are plaintext, and the tree warns of it, as the log does.
#[tokio::test]
async fn the_bootstrap_decides_without_credentials() {
    let parts = Parts::new().await;
    let front = parts.front(&parts.servers.issue(&["orders"])).await;
    let (control, _) = service(pay(&mutual()), &[front.address()], &parts.folder).await;
    let channel = channel_by(&parts.folder.bootstrap(&control)).build().unwrap();
    assert_eq!(scheme(&channel).await.unwrap(), "https");
    assert!(warnings(&channel).await.is_empty());

    // The system's roots need no provider.
    let roots = CertificateValidationContext {
        system_root_certs: Some(SystemRootCerts {}),
        ..CertificateValidationContext::default()
    };
    control.set(pay(&with_validation(roots, None)));
    let channel = channel_by(&control.bootstrap("node-7")).build().unwrap();
    assert_eq!(scheme(&channel).await.unwrap(), "http");
    let warnings = warnings(&channel).await;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with(r#"cluster "pay": connections are not encrypted: "#), "{warnings:?}");
    assert!(warnings[0].contains("certificate_providers"), "{warnings:?}");
}

/// Returns the warnings of all policies of a channel.
async fn warnings(channel: &Channel) -> Vec<String> {
    let tree = channel.tree().await.expect("a tree");
    policies(&tree).into_iter().flat_map(|policy| policy.warnings.clone()).collect()
}

/// A29: with other credentials the cluster's security is ignored, and its changes do not close connections.
#[tokio::test]
async fn other_credentials_go_their_own_way() {
    let parts = Parts::new().await;
    let front = parts.front(&parts.servers.issue(&["orders"])).await;
    let (control, _) = service(pay(&mutual()), &[front.address()], &parts.folder).await;
    let channel = channel_by(&parts.folder.bootstrap(&control)).credentials(Credentials::insecure());
    let channel = channel.build().unwrap();
    assert_eq!(scheme(&channel).await.unwrap(), "http");
    assert_eq!(warnings(&channel).await.len(), 1);
    for context in [tls("roots", None), mutual()] {
        control.set(pay(&context));
        control.wait_acked::<Cluster>().await;
        call(&channel).await.unwrap();
    }
    assert_eq!(front.seen(), [FrontConnection::Plain]);
}

/// fault 81, RT-4: without certificates no connection is made, neither in plaintext nor by the fallback. The
/// status names the cluster, the provider and the file. Calls succeed once the file exists.
#[tokio::test]
async fn without_certificates_there_is_no_connection() {
    let mut parts = Parts::new().await;
    let front = parts.front(&parts.servers.issue(&["orders"])).await;
    parts.folder = Folder::new();
    let fallback = || {
        let tls =
            Credentials::tls().ca_pem(parts.servers.pem()).identity_pem(&parts.me.pem, &parts.me.key_pem);
        [Credentials::insecure(), tls.build().unwrap()].map(Credentials::xds)
    };
    let write_ca = |text: &str| parts.folder.write("ca.pem", text);
    let mut steps: [(&dyn Fn(), UpstreamTlsContext, &str, &str); 5] = [
        (&|| {}, mutual(), "own", r#"CA file "DIR/ca.pem": cannot be read: No such file or directory"#),
        (&|| write_ca("garbage"), mutual(), "own", r#"CA file "DIR/ca.pem": has no certificate"#),
        (
            &|| write_ca(&parts.servers.pem()),
            mutual(),
            "own",
            r#"client certificate file "DIR/tls.crt": cannot be read: No such file or directory"#,
        ),
        (&|| {}, tls("me", None), "me", "the bootstrap does not set its ca_certificate_file"),
        (&|| {}, tls("roots", Some("roots")), "roots", "the bootstrap does not set its certificate_file and"),
    ];
    for (change, context, provider, why) in &mut steps {
        change();
        for credentials in fallback() {
            let (control, _) = service(pay(context), &[front.address()], &parts.folder).await;
            let channel = channel_by(&parts.folder.bootstrap(&control)).credentials(credentials);
            let status = call(&channel.build().unwrap()).await.unwrap_err();
            assert_eq!(status.code(), Code::Unavailable);
            let folder = parts.folder.path().to_str().unwrap();
            let expected = format!("cluster \"pay\": certificate provider {provider:?}: {why}");
            assert!(status.message().replace(folder, "DIR").contains(&expected), "{expected}: {status}");
        }
    }
    assert_eq!(front.seen(), []);

    let (_control, channel) = service(pay(&mutual()), &[front.address()], &parts.folder).await;
    call(&channel).await.unwrap_err();
    parts.folder.write("tls.crt", &parts.me.pem);
    parts.folder.write("tls.key", &parts.me.key_pem);
    let request = super::patient(request());
    EchoClient::new(channel.clone()).unary(request).await.unwrap();
    assert_eq!(front.seen(), [FrontConnection::Tls { sni: None, client: Some(der(&parts.me)) }]);
}
