//! TLS of a control plane's port: certificates of server and clients, rotation of their files, hostile clients.

use std::fs;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

use evenkeel::{Bootstrap, Channel, XdsClient};
use evenkeel_control::{
    ClientLimits, Cluster, ControlPlane, ControlPlaneBuilder, Endpoint, Mesh, ServerTls, Service,
};
use evenkeel_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::net::certs::{Ca, Cert};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc::unbounded_channel;

/// Maximum time of every wait; only a failure reaches it.
const MAX_WAIT: Duration = Duration::from_secs(60);

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(MAX_WAIT, future).await.unwrap_or_else(|_| panic!("timed out waiting for {what}"))
}

/// Files of a control plane with a certificate for 127.0.0.1.
struct TlsFolder {
    folder: TempDir,
    ca: Ca,
}

impl TlsFolder {
    fn new() -> TlsFolder {
        let written = TlsFolder { folder: tempfile::tempdir().expect("a folder"), ca: Ca::new("mesh") };
        written.write_server(&written.ca);
        written
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).into_os_string().into_string().expect("UTF-8")
    }

    fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.folder.path().join(name), text).expect("the file can be written");
        self.path(name)
    }

    /// Replaces the certificate of the server by one of this CA, and the CA in the bootstrap.
    fn write_server(&self, ca: &Ca) {
        let Cert { pem, key_pem } = ca.issue(&["127.0.0.1"]);
        self.write("tls.crt", &pem);
        self.write("tls.key", &key_pem);
        self.write("ca.crt", &ca.pem());
    }

    fn tls(&self) -> ServerTls {
        let tls = ServerTls::load(self.path("tls.crt"), self.path("tls.key")).expect("valid files");
        tls.bootstrap_ca(&self.path("ca.crt"))
    }
}

async fn serve(builder: ControlPlaneBuilder) -> ControlPlane {
    let control = builder.serve().await.expect("a free port");
    let orders = Cluster::new().endpoint(Endpoint::at(([127, 0, 0, 1], 1).into()));
    control.set_mesh(&Mesh::new().service("orders", Service::to("orders")).cluster("orders", orders));
    control
}

/// Creates a client, and waits until it has ACKed the endpoints.
async fn is_served(control: &ControlPlane, bootstrap: &str) -> Channel {
    let client = XdsClient::builder(Bootstrap::from_json(bootstrap).expect("a bootstrap")).build();
    let channel = Channel::builder("xds:///orders").xds_client(client).build().expect("a channel");
    channel.connect();
    soon("a client", control.wait_acked::<ClusterLoadAssignment>()).await;
    channel
}

async fn is_closed(stream: &mut TcpStream) {
    let end = async { while matches!(stream.read(&mut [0; 256]).await, Ok(read) if read > 0) {} };
    soon("the end of the connection", end).await;
}

/// The bootstrap names TLS and the CA file, which is enough for a client.
#[tokio::test]
async fn the_bootstrap_is_enough_for_a_client() {
    let files = TlsFolder::new();
    let control = serve(ControlPlane::builder().tls(files.tls())).await;
    let bootstrap = control.bootstrap("n");
    let json: Value = serde_json::from_str(&bootstrap).unwrap();
    let creds = json!([{ "type": "tls", "config": { "ca_certificate_file": files.path("ca.crt") } }]);
    assert_eq!(json["xds_servers"][0]["channel_creds"], creds);
    is_served(&control, &bootstrap).await;
}

/// With a client CA, a client needs a certificate of it.
#[tokio::test]
async fn clients_need_a_certificate_of_the_ca() {
    let (files, clients) = (TlsFolder::new(), Ca::new("clients"));
    let tls = files.tls().client_ca(files.write("clients.crt", &clients.pem())).unwrap();
    let control = serve(ControlPlane::builder().tls(tls)).await;
    let with = |name: &str, cert: &Cert| {
        let mut json: Value = serde_json::from_str(&control.bootstrap("n")).unwrap();
        let config = &mut json["xds_servers"][0]["channel_creds"][0]["config"];
        config["certificate_file"] = files.write(&format!("{name}.crt"), &cert.pem).into();
        config["private_key_file"] = files.write(&format!("{name}.key"), &cert.key_pem).into();
        json.to_string()
    };
    for bootstrap in [control.bootstrap("n"), with("other", &Ca::new("other").issue_client(&["orders"]))] {
        let client = XdsClient::builder(Bootstrap::from_json(&bootstrap).unwrap()).build();
        let channel = Channel::builder("xds:///orders").xds_client(client).build().unwrap();
        let mut echo = testkit::net::echo::echo_client::EchoClient::new(channel);
        let mut request = tonic::Request::new(testkit::net::echo::EchoRequest::default());
        request.set_timeout(Duration::from_secs(20));
        let status = soon("a refusal", echo.unary(request)).await.expect_err("no config");
        assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
        assert_eq!(control.streams(), 0);
    }
    is_served(&control, &with("orders", &clients.issue_client(&["orders"]))).await;
}

/// Rotated files apply to the connections from then on. An invalid version is reported once and changes nothing.
#[tokio::test]
async fn files_are_rotated_without_a_restart() {
    let files = TlsFolder::new();
    let (reload, mut reloads) = unbounded_channel();
    let tls = files.tls().on_reload(move |result| {
        let _ = reload.send(result.map_err(ToString::to_string));
    });
    let control = serve(ControlPlane::builder().tls(tls)).await;
    let bootstrap = control.bootstrap("n");
    let first = is_served(&control, &bootstrap).await;

    files.write("tls.crt", "no certificate");
    let error = format!(
        "certificate file {:?}: has no certificate (-----BEGIN CERTIFICATE-----)",
        files.path("tls.crt")
    );
    assert_eq!(soon("a reload", reloads.recv()).await, Some(Err(error)));
    drop(first);
    soon("the end of the client", control.wait_until(|cache| cache.clients().is_empty())).await;
    let second = is_served(&control, &bootstrap).await;

    // The clients trust the next CA only.
    files.write_server(&Ca::new("next"));
    assert_eq!(soon("a reload", reloads.recv()).await, Some(Ok(())));
    drop(second);
    soon("the end of the client", control.wait_until(|cache| cache.clients().is_empty())).await;
    is_served(&control, &bootstrap).await;
    assert!(reloads.is_empty(), "each version is reported once");
}

/// Files that cannot be used are rejected before the port is open, with their names.
#[test]
fn files_that_cannot_be_used_are_named() {
    let files = TlsFolder::new();
    let other = files.write("other.key", &Ca::new("other").issue(&["a"]).key_pem);
    let (certificate, key) = (files.path("tls.crt"), files.path("tls.key"));
    let load = |certificate: &str, key: &str| ServerTls::load(certificate, key).unwrap_err().to_string();
    assert_eq!(
        load(&certificate, &other),
        format!(
            "key file {other:?}: the private key does not belong to the first certificate of the certificate file {certificate:?}"
        )
    );
    assert_eq!(
        load(&certificate, &certificate),
        format!("key file {certificate:?}: has no private key (PKCS#8, PKCS#1 or SEC1, and not encrypted)")
    );
    let garbage = files.write("garbage.crt", "-----BEGIN NOTHING");
    assert_eq!(
        load(&garbage, &key),
        format!("certificate file {garbage:?}: is not valid PEM: a -----BEGIN line is malformed")
    );
    let missing = Path::new("there-is-no-such-file");
    let error = load("there-is-no-such-file", &key);
    assert!(error.starts_with("certificate file \"there-is-no-such-file\": cannot be read: "), "{error}");
    let error = files.tls().client_ca(missing).unwrap_err().to_string();
    assert!(error.starts_with("client CA file \"there-is-no-such-file\": cannot be read: "), "{error}");
}

/// Clients that send nothing, garbage, or plaintext HTTP/2 keep no other client waiting. Each takes up one connection of
/// the limit until it is closed.
#[tokio::test]
async fn hostile_clients_delay_no_other() {
    let files = TlsFolder::new();
    let mut limits = ClientLimits::default();
    limits.connections = 3;
    let control = serve(ControlPlane::builder().client_limits(limits).tls(files.tls())).await;
    let mut silent = Vec::new();
    for _ in 0..2 {
        silent.push(TcpStream::connect(control.address()).await.unwrap());
    }
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[0xff; 4096]] {
        let mut garbage = TcpStream::connect(control.address()).await.unwrap();
        // Fails if the server has already closed it.
        let _ = garbage.write_all(bytes).await;
        is_closed(&mut garbage).await;
    }
    let _client = is_served(&control, &control.bootstrap("n")).await;
    let mut above = TcpStream::connect(control.address()).await.unwrap();
    is_closed(&mut above).await;
}

/// A connection without a handshake is closed after a timeout.
#[tokio::test(start_paused = true)]
async fn a_missing_handshake_ends_the_connection() {
    let files = TlsFolder::new();
    let control = serve(ControlPlane::builder().tls(files.tls())).await;
    let mut silent = TcpStream::connect(control.address()).await.unwrap();
    is_closed(&mut silent).await;
}
