//! Connecting to real servers: TLS, client certificates, rotation, errors, unix sockets.

use std::env;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::{Address, Code, Status};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion, version};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::credentials::tests::certificates::{Authority, Leaf, cryptography, within};
use crate::credentials::{Credentials, H2};
use crate::{CredentialsError, TlsCredentialsBuilder};

const GREETING: &[u8] = b"hello";

/// Settings of a TLS test server. It sends a greeting on every accepted connection, then echoes.
struct Plan<'a> {
    leaf: Leaf,
    /// Clients must present a certificate of this authority.
    clients: Option<&'a Authority>,
    alpn: &'a [&'a [u8]],
    version: &'static SupportedProtocolVersion,
}

impl<'a> Plan<'a> {
    fn new(leaf: Leaf) -> Plan<'a> {
        Plan { leaf, clients: None, alpn: &[H2], version: &version::TLS13 }
    }

    async fn serve(self) -> Server {
        let provider = cryptography();
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = builder.with_protocol_versions(&[self.version]).unwrap();
        let builder = match self.clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let mut config = builder.with_single_cert(vec![self.leaf.der()], self.leaf.key()).unwrap();
        config.alpn_protocols = self.alpn.iter().map(|name| name.to_vec()).collect();
        let acceptor = TlsAcceptor::from(Arc::new(config));

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, seen) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (acceptor, tell) = (acceptor.clone(), tell.clone());
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(socket).await else {
                        let _ = tell.send(None);
                        return;
                    };
                    let connection = stream.get_ref().1;
                    let client = connection.peer_certificates().map(|chain| chain[0].clone());
                    let name = connection.server_name().map(str::to_owned);
                    let _ = tell.send(Some(Seen { client, name }));
                    let _ = stream.write_all(GREETING).await;
                    let (mut from, mut to) = tokio::io::split(stream);
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        Server { address, seen }
    }
}

struct Server {
    address: SocketAddr,
    /// One entry for each connection; `None` if the handshake failed.
    seen: mpsc::UnboundedReceiver<Option<Seen>>,
}

/// Client identity and server name seen by a server.
struct Seen {
    client: Option<CertificateDer<'static>>,
    name: Option<String>,
}

impl Server {
    async fn seen(&mut self) -> Option<Seen> {
        within(self.seen.recv()).await.expect("the server runs")
    }
}

async fn open(to: impl Into<Address>, credentials: &Credentials, host: &str) -> Result<Box<dyn Io>, String> {
    let stream = within(connect(&SocketConnector::default(), &to.into(), credentials, host)).await;
    stream.map_err(|error| error.to_string())
}

/// Returns a stream after the server's greeting, or the error.
async fn greeted(
    to: impl Into<Address>,
    credentials: &Credentials,
    host: &str,
) -> Result<Box<dyn Io>, String> {
    let mut stream = open(to, credentials, host).await?;
    let mut greeting = [0; GREETING.len()];
    within(stream.read_exact(&mut greeting)).await.map_err(|error| describe_io_error(&error))?;
    assert_eq!(greeting, GREETING);
    Ok(stream)
}

fn error_of<T>(outcome: Result<T, String>) -> String {
    outcome.err().unwrap_or_else(|| "nothing went wrong".to_owned())
}

fn trusting(authority: &Authority) -> TlsCredentialsBuilder {
    Credentials::tls().ca_pem(authority.pem())
}

fn built(tls: TlsCredentialsBuilder) -> Credentials {
    tls.build().unwrap()
}

#[tokio::test]
async fn servers_that_prove_their_name_are_accepted() {
    let [ours, other] = ["ours", "other"].map(Authority::new);
    let names = ["orders", "*.orders.internal", "127.0.0.1", "::1"];
    let both = || trusting(&other).ca_pem(ours.pem());
    let in_one = [other.pem(), ours.pem()].concat();
    // Host, credentials, and the server name that the server receives (SNI).
    let rows: &[(&str, TlsCredentialsBuilder, Option<&str>)] = &[
        ("orders", trusting(&ours), Some("orders")),
        ("orders", both(), Some("orders")),
        ("orders", Credentials::tls().ca_pem(&in_one), Some("orders")),
        ("a.orders.internal", trusting(&ours), Some("a.orders.internal")),
        ("127.0.0.1", trusting(&ours), None),
        ("::1", trusting(&ours), None),
        ("[::1]", trusting(&ours), None),
        ("pay", trusting(&ours).server_name("orders"), Some("orders")),
        ("not a host", trusting(&ours).server_name("127.0.0.1"), None),
    ];
    for version in [&version::TLS13, &version::TLS12] {
        let mut server = Plan { version, ..Plan::new(ours.leaf(&names)) }.serve().await;
        for (host, tls, told) in rows {
            let credentials = built(tls.clone());
            greeted(server.address, &credentials, host).await.unwrap();
            let seen = server.seen().await.expect("accepted");
            assert_eq!(seen.name.as_deref(), *told, "{host}");
            assert_eq!(seen.client, None, "{host}");
        }
    }
}

/// Fault 84: names and dates of certificates.
#[tokio::test]
async fn servers_that_do_not_are_refused_with_the_reason() {
    let [ours, other] = ["ours", "other"].map(Authority::new);
    let orders = || ours.leaf(&["orders"]);
    let many = (0..500).map(|i| format!("{i}.of-many-names.internal")).collect::<Vec<_>>();
    let many = many.iter().map(String::as_str).collect::<Vec<_>>();
    let no_h2: &[&[u8]] = &[b"http/1.1"];
    let rows = [
        (Plan::new(ours.expired(&["orders"])), "orders", "invalid peer certificate: certificate expired"),
        (Plan::new(ours.of_tomorrow(&["orders"])), "orders", "certificate not valid yet"),
        (
            Plan::new(orders()),
            "pay",
            "certificate not valid for name \"pay\"; certificate is only valid for ",
        ),
        (Plan::new(orders()), "127.0.0.1", "certificate not valid for name \"127.0.0.1\""),
        (Plan::new(ours.leaf(&[])), "orders", "is not valid for any names"),
        (Plan::new(ours.leaf(&many)), "orders", "..."),
        (Plan::new(other.leaf(&["orders"])), "orders", "it is not signed by a trusted CA (UnknownIssuer)"),
        (Plan::new(ours.for_clients(&["orders"])), "orders", "does not allow extended key usage"),
        (Plan { alpn: &[], ..Plan::new(orders()) }, "orders", "did not select \"h2\" (ALPN)"),
        (Plan { alpn: no_h2, ..Plan::new(orders()) }, "orders", "rejected \"h2\" (ALPN)"),
        (Plan::new(orders()), "orders:443", "expected a DNS name or an IP address, without a port"),
        (Plan::new(orders()), "", "expected a DNS name or an IP address"),
    ];
    let credentials = built(trusting(&ours));
    for (plan, host, reason) in rows {
        let server = plan.serve().await;
        let error = error_of(open(server.address, &credentials, host).await);
        let start = format!("TLS handshake with {} as {host:?}: ", server.address);
        assert!(error.starts_with(&start) && error.contains(reason), "expected {reason:?}: {error}");
        assert!(error.len() < 700, "a server decides how long our messages are: {error}");
    }
}

#[tokio::test]
async fn servers_that_ask_for_a_certificate_get_ours() {
    let [ours, theirs, other] = ["ours", "theirs", "other"].map(Authority::new);
    let (good, stranger, old) = (theirs.leaf(&["me"]), other.leaf(&["me"]), theirs.expired(&["me"]));
    let with = |leaf: &Leaf| trusting(&ours).identity_pem(leaf.chain_pem(), leaf.key_pem());
    let rows = [
        (with(&good), Ok(good.der())),
        (with(&stranger).identity_pem(good.chain_pem(), good.key_pem()), Ok(good.der())),
        (trusting(&ours), Err("certificate required")),
        (with(&stranger), Err("unknown ca")),
        (with(&old), Err("certificate expired")),
    ];
    for version in [&version::TLS13, &version::TLS12] {
        let plan = Plan { version, clients: Some(&theirs), ..Plan::new(ours.leaf(&["orders"])) };
        let mut server = plan.serve().await;
        for (tls, expected) in &rows {
            let outcome = greeted(server.address, &built(tls.clone()), "orders").await;
            let seen = server.seen().await;
            match expected {
                Ok(certificate) => {
                    outcome.unwrap();
                    assert_eq!(seen.expect("accepted").client.as_ref(), Some(certificate));
                }
                Err(reason) => {
                    let error = error_of(outcome);
                    assert!(error.contains("the server refused: "), "{error}");
                    assert!(error.ends_with(reason), "expected {reason:?}: {error}");
                    assert!(seen.is_none());
                }
            }
        }
    }
}

/// Fault 81: TLS credentials lead to TLS or an error, and no part of a call is sent in plaintext.
#[tokio::test]
async fn tls_never_becomes_plaintext() {
    let ours = Authority::new("ours");
    let settings: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    let rows = [
        (settings, "the server does not support TLS"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the server does not support TLS"),
        (b"", "the server closed the connection"),
    ];
    for (answer, reason) in rows {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            // Read the whole first message, so that closing does not reset the connection.
            let mut header = [0; 5];
            socket.read_exact(&mut header).await.unwrap();
            let mut hello = vec![0; usize::from(u16::from_be_bytes([header[3], header[4]]))];
            socket.read_exact(&mut hello).await.unwrap();
            socket.write_all(answer).await.unwrap();
            socket.shutdown().await.unwrap();
            let mut rest = Vec::new();
            let _ = socket.read_to_end(&mut rest).await;
            (header[0], rest)
        });
        let error = error_of(open(address, &built(trusting(&ours)), "orders").await);
        let expected = format!("TLS handshake with {address} as \"orders\": {reason}");
        assert!(error.starts_with(&expected), "expected {expected:?}: {error}");
        let (kind, rest) = within(server).await.unwrap();
        assert_eq!(kind, 22, "a handshake record");
        assert!(rest.is_empty() || rest[0] == 21, "an alert record at most: {rest:?}");
    }
}

#[tokio::test]
async fn plaintext_never_becomes_tls() {
    let ours = Authority::new("ours");
    let mut server = Plan::new(ours.leaf(&["orders"])).serve().await;
    let mut stream = open(server.address, &Credentials::insecure(), "orders").await.unwrap();
    within(stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")).await.unwrap();
    let mut answer = Vec::new();
    let _ = within(stream.read_to_end(&mut answer)).await;
    assert!(answer.is_empty() || answer[0] == 21, "an alert record at most: {answer:?}");
    assert!(server.seen().await.is_none());
}

/// Faults 79 and 80.
#[tokio::test]
async fn rotated_identities_are_used_for_the_next_connection() {
    let [ours, theirs] = ["ours", "theirs"].map(Authority::new);
    let [a, b, c] = [(); 3].map(|()| theirs.leaf(&["me"]));
    let plan = Plan { clients: Some(&theirs), ..Plan::new(ours.leaf(&["orders"])) };
    let mut server = plan.serve().await;
    let dir = tempfile::tempdir().unwrap();
    let [chain, key] = ["tls.crt", "tls.key"].map(|name| dir.path().join(name));
    let write = |file: &Path, text: &str| fs::write(file, text).unwrap();
    write(&chain, a.chain_pem());
    write(&key, a.key_pem());
    let tls = trusting(&ours).identity_files(&chain, &key).refresh_every(Duration::ZERO);
    let credentials = built(tls);

    let mut first = greeted(server.address, &credentials, "orders").await.unwrap();
    assert_eq!(server.seen().await.unwrap().client, Some(a.der()));
    let half = &c.chain_pem()[..c.chain_pem().len() / 2];
    let steps: &[(&str, &dyn Fn(), &Leaf)] = &[
        ("nothing", &|| {}, &a),
        ("a certificate without its key", &|| write(&chain, b.chain_pem()), &a),
        ("and its key", &|| write(&key, b.key_pem()), &b),
        ("garbage", &|| write(&chain, "garbage"), &b),
        ("half a file", &|| write(&chain, half), &b),
        ("no file", &|| fs::remove_file(&key).unwrap(), &b),
        ("a key without its certificate", &|| write(&key, c.key_pem()), &b),
        ("and its certificate", &|| write(&chain, c.chain_pem()), &c),
    ];
    for (step, write, expected) in steps {
        write();
        greeted(server.address, &credentials.clone(), "orders").await.unwrap();
        assert_eq!(server.seen().await.unwrap().client, Some(expected.der()), "{step}");
    }
    within(first.write_all(b"still here")).await.unwrap();
    let mut echo = [0; 10];
    within(first.read_exact(&mut echo)).await.unwrap();
    assert_eq!(&echo, b"still here");
}

/// Fault 79, as Kubernetes mounts secrets: files link into a folder that a link names, and that link is swapped.
#[tokio::test]
async fn swapped_links_are_followed() {
    let [ours, theirs] = ["ours", "theirs"].map(Authority::new);
    let leaves = [(); 3].map(|()| theirs.leaf(&["me"]));
    let plan = Plan { clients: Some(&theirs), ..Plan::new(ours.leaf(&["orders"])) };
    let mut server = plan.serve().await;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let publish = |version: &str, leaf: &Leaf| {
        fs::create_dir(at(version)).unwrap();
        fs::write(at(version).join("tls.crt"), leaf.chain_pem()).unwrap();
        fs::write(at(version).join("tls.key"), leaf.key_pem()).unwrap();
        symlink(version, at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
    };
    for name in ["tls.crt", "tls.key"] {
        symlink(Path::new("..data").join(name), at(name)).unwrap();
    }
    publish("..0", &leaves[0]);
    let tls = trusting(&ours).identity_files(at("tls.crt"), at("tls.key"));
    let credentials = built(tls.refresh_every(Duration::ZERO));
    for (i, leaf) in leaves.iter().enumerate() {
        if i > 0 {
            publish(&format!("..{i}"), leaf);
            fs::remove_dir_all(at(&format!("..{}", i - 1))).unwrap();
        }
        greeted(server.address, &credentials, "orders").await.unwrap();
        assert_eq!(server.seen().await.unwrap().client, Some(leaf.der()), "version {i}");
    }
}

/// Faults 80 and 83.
#[tokio::test]
async fn rotated_roots_count_for_the_next_connection() {
    let [old, new, theirs] = ["old", "new", "theirs"].map(Authority::new);
    let [a, b] = [(); 2].map(|()| theirs.leaf(&["me"]));
    let plan =
        |authority: &Authority| Plan { clients: Some(&theirs), ..Plan::new(authority.leaf(&["orders"])) };
    let mut servers = [plan(&old).serve().await, plan(&new).serve().await];
    let dir = tempfile::tempdir().unwrap();
    let [ca, chain, key] = ["ca.pem", "tls.crt", "tls.key"].map(|name| dir.path().join(name));
    fs::write(&ca, old.pem()).unwrap();
    fs::write(&chain, a.chain_pem()).unwrap();
    fs::write(&key, a.key_pem()).unwrap();
    let tls = Credentials::tls().ca_file(&ca).identity_files(&chain, &key);
    let credentials = built(tls.refresh_every(Duration::ZERO));

    let both = [old.pem(), new.pem()].concat();
    // Connects to both servers at each step. Our certificate rotates while the roots are invalid.
    let steps: &[(&str, &str, &Leaf, [bool; 2])] = &[
        ("old", old.pem(), &a, [true, false]),
        ("both", &both, &a, [true, true]),
        ("garbage", "garbage", &a, [true, true]),
        ("garbage, and another identity", "garbage", &b, [true, true]),
        ("new", new.pem(), &b, [false, true]),
    ];
    for (step, roots, leaf, trusted) in steps {
        fs::write(&ca, roots).unwrap();
        fs::write(&chain, leaf.chain_pem()).unwrap();
        fs::write(&key, leaf.key_pem()).unwrap();
        for (server, trusted) in servers.iter_mut().zip(trusted) {
            let outcome = greeted(server.address, &credentials, "orders").await;
            let seen = server.seen().await;
            if *trusted {
                outcome.unwrap();
                assert_eq!(seen.unwrap().client, Some(leaf.der()), "{step}");
            } else {
                let error = error_of(outcome);
                assert!(error.contains("not signed by a trusted CA"), "{step}: {error}");
            }
        }
    }
}

/// The system roots depend on the environment of a process. So each row runs this test in a child process, with
/// the address of a server to connect to.
#[test]
fn the_systems_roots_are_trusted_by_default() {
    const NAME: &str = "transport::tests::the_systems_roots_are_trusted_by_default";
    const SERVER: &str = "EVENKEEL_TEST_SERVER";
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    if let Ok(server) = env::var(SERVER) {
        let outcome = Credentials::tls().build().map_err(|error: CredentialsError| error.to_string());
        let server = server.parse::<SocketAddr>().unwrap();
        let outcome = outcome.and_then(|tls| runtime.block_on(greeted(server, &tls, "orders")).map(drop));
        println!("outcome: {outcome:?}");
        return;
    }
    let [ours, other] = ["ours", "other"].map(Authority::new);
    let server = runtime.block_on(Plan::new(ours.leaf(&["orders"])).serve());
    let dir = tempfile::tempdir().unwrap();
    let rows = [
        ("ours", ours.pem(), "outcome: Ok(())"),
        ("other", other.pem(), "not signed by a trusted CA"),
        ("none", "", "system roots: no certificate was found; install"),
    ];
    for (name, pem, expected) in rows {
        let file = dir.path().join(name);
        fs::write(&file, pem).unwrap();
        let child = Command::new(env::current_exe().unwrap())
            .args([NAME, "--exact", "--nocapture"])
            .env("SSL_CERT_FILE", &file)
            .env_remove("SSL_CERT_DIR")
            .env(SERVER, server.address.to_string())
            .output()
            .unwrap();
        let read_error = String::from_utf8_lossy(&child.stdout);
        assert!(read_error.contains(expected), "{name}: expected {expected:?}: {read_error}");
    }
}

/// Connector that always fails with this error.
struct Failing(io::Error);

impl Connector for Failing {
    fn connect(&self, _: &Address) -> Pin<Box<dyn Future<Output = io::Result<Box<dyn Io>>> + Send + '_>> {
        let error = match self.0.raw_os_error() {
            Some(number) => io::Error::from_raw_os_error(number),
            None => io::Error::new(self.0.kind(), self.0.to_string()),
        };
        Box::pin(async { Err(error) })
    }
}

/// Fault 73: text of system errors.
#[tokio::test]
async fn system_errors_are_kept() {
    let rows = [
        (io::Error::from_raw_os_error(24), "too many open files (os error 24)"),
        (io::Error::from_raw_os_error(13), "permission denied (os error 13)"),
        (io::Error::new(io::ErrorKind::UnexpectedEof, "the proxy hung up"), "the proxy hung up"),
        (io::Error::other("HTTP proxy said 407\r\nX: y"), "HTTP proxy said 407\\r\\nX: y"),
    ];
    for (error, text) in rows {
        let address = Address::from("10.0.0.1:50051");
        let outcome = connect(&Failing(error), &address, &Credentials::insecure(), "orders").await;
        let status = Status::from(outcome.err().expect("it fails"));
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(status.message(), format!("connecting to 10.0.0.1:50051: {text}"));
    }
}

#[tokio::test]
async fn unconnectable_addresses_are_reported() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let gone = gone.to_string();
    let rows = [
        (gone.as_str(), "connection refused (os error "),
        ("unix:/no/such/socket", "no such file or directory (os error 2)"),
        #[cfg(target_os = "linux")]
        ("unix:\0evenkeel-no-such-socket", "connection refused (os error 111)"),
        ("backend-1", "unsupported address backend-1; expected an IP address or a unix socket"),
    ];
    for (address, reason) in rows {
        let error = error_of(open(address, &Credentials::insecure(), "orders").await);
        let expected = format!("connecting to {}: {reason}", address.replace('\0', "\\u{0}"));
        assert!(error.starts_with(&expected), "expected {expected:?}: {error}");
    }
}

#[tokio::test]
async fn sockets_carry_bytes_both_ways() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket").to_str().unwrap().to_owned();
    let names = [
        path,
        #[cfg(target_os = "linux")]
        format!("\0evenkeel-{}", std::process::id()),
    ];
    for name in names {
        let listener = UnixListener::bind(&name).unwrap();
        let address = Address::Unix(name.as_str().into());
        let server = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            socket.write_all(GREETING).await.unwrap();
            let mut got = [0; 4];
            socket.read_exact(&mut got).await.unwrap();
            assert_eq!(&got, b"ping");
        };
        let client = async {
            let mut stream = greeted(address, &Credentials::insecure(), "localhost").await.unwrap();
            stream.write_all(b"ping").await.unwrap();
        };
        within(async { tokio::join!(server, client) }).await;
    }
}

/// TLS runs over every stream that a connector returns.
#[tokio::test]
async fn other_connectors_carry_tls_as_well() {
    struct Tunnel(SocketAddr);
    impl Connector for Tunnel {
        fn connect(
            &self,
            address: &Address,
        ) -> Pin<Box<dyn Future<Output = io::Result<Box<dyn Io>>> + Send + '_>> {
            assert_eq!(*address, Address::from("backend-1"));
            Box::pin(async { SocketConnector::default().connect(&Address::Ip(self.0)).await })
        }
    }
    let ours = Authority::new("ours");
    let mut server = Plan::new(ours.leaf(&["orders"])).serve().await;
    let tunnel = Tunnel(server.address);
    let credentials = built(trusting(&ours));
    within(connect(&tunnel, &"backend-1".into(), &credentials, "orders")).await.unwrap();
    assert_eq!(server.seen().await.unwrap().name.as_deref(), Some("orders"));
}
