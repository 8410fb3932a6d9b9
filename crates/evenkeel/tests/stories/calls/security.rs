//! TLS and mTLS with credentials of the builder.

use std::net::SocketAddr;
use std::path::Path;

use evenkeel::{Credentials, TlsCredentialsBuilder};
use testkit::net::certs::{Ca, Cert};
use testkit::net::echo::echo_client::EchoClient;
use testkit::net::{Backend, Tls as ServerTls};
use tonic::{Code, Status};

use super::{connected, policy, request, to, within};

fn serving(cert: &Cert, clients: Option<&Ca>) -> ServerTls {
    ServerTls { certificate: cert.pem.clone(), key: cert.key_pem.clone(), client_ca: clients.map(Ca::pem) }
}

/// Makes a call over a channel with these credentials. Returns the `:authority` that the backend saw.
async fn call(backend: &Backend, credentials: TlsCredentialsBuilder) -> Result<String, Status> {
    let channel = to([backend]).credentials(credentials.build().unwrap()).build().unwrap();
    let answer = within(EchoClient::new(channel).unary(request("secret"))).await?.into_inner();
    assert_eq!(answer.payload, b"secret");
    Ok(answer.metadata[":authority"].clone())
}

/// Server and client authentication. A failed handshake is reported with the address, the expected name and
/// the reason, and no call reaches the server.
#[tokio::test]
async fn both_sides_are_authenticated() {
    let (ca, clients, others) = (Ca::new("servers"), Ca::new("clients"), Ca::new("others"));
    let cert = ca.issue(&["orders.prod", "127.0.0.1"]);
    let open = Backend::builder().tls(serving(&cert, None)).start().await;
    let closed = Backend::builder().tls(serving(&cert, Some(&clients))).start().await;
    let (member, stranger) = (clients.issue_client(&["shop"]), others.issue_client(&["shop"]));
    let trusting = || Credentials::tls().ca_pem(ca.pem());

    // The target is an IP address that the certificate covers.
    assert_eq!(call(&open, trusting()).await.unwrap(), open.address().to_string());
    call(&open, trusting().server_name("orders.prod")).await.unwrap();
    let shows = |cert: &Cert| trusting().identity_pem(&cert.pem, &cert.key_pem);
    call(&closed, shows(&member)).await.unwrap();
    let calls = (open.calls(), closed.calls());

    let refused = [
        (&open, Credentials::tls().ca_pem(others.pem()), "127.0.0.1", "it is not signed by a trusted CA"),
        (&open, trusting().server_name("billing.prod"), "billing.prod", "certificate not valid for name"),
    ];
    for (backend, credentials, name, why) in refused {
        let status = call(backend, credentials).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        let text =
            format!("TLS handshake with {} as {name:?}: invalid peer certificate: ", backend.address());
        assert!(status.message().contains(&text) && status.message().contains(why), "{status}");
    }
    for (credentials, why) in [(trusting(), "certificate required"), (shows(&stranger), "unknown ca")] {
        let status = call(&closed, credentials).await.unwrap_err();
        let text = status.message();
        let address = closed.address().to_string();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(
            text.contains(&address) && text.contains("the server refused") && text.contains(why),
            "{text}"
        );
    }
    // Plaintext to a TLS server, and TLS to a plaintext server.
    let channel = to([&open]).build().unwrap();
    let status = within(EchoClient::new(channel).unary(request(""))).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    let plain = Backend::start().await;
    let status = call(&plain, trusting()).await.unwrap_err();
    assert!(status.message().contains("the server does not support TLS"), "{status}");
    assert_eq!((open.calls(), closed.calls(), plain.calls()), (calls.0, calls.1, 0), "no call got through");
}

/// fault 60: a backend returns at the same address with another identity. It gets no calls, the others
/// continue, and the tree shows the failure. A configured authority decides the expected name.
#[tokio::test]
async fn a_backend_with_another_identity() {
    let ca = Ca::new("servers");
    let ours = serving(&ca.issue(&["orders.prod"]), None);
    let other = serving(&ca.issue(&["billing.prod"]), None);
    let first = Backend::builder().tls(ours.clone()).start().await;
    let second = Backend::builder().tls(ours).start().await;
    let channel = to([&first, &second])
        .authority("orders.prod")
        .credentials(Credentials::tls().ca_pem(ca.pem()).build().unwrap())
        .service_config(policy("round_robin"))
        .build()
        .unwrap();
    connected(&channel, 2).await;
    let address: SocketAddr = second.address();
    drop(second);
    let impostor = Backend::builder().at(address).tls(other).start().await;
    // It is dialled and not trusted.
    impostor.wait_until(|impostor| impostor.connections() >= 3).await;
    connected(&channel, 1).await;
    let mut client = EchoClient::new(channel.clone());
    for _ in 0..50 {
        let answer = within(client.unary(request("secret"))).await.unwrap().into_inner();
        assert_eq!(
            (answer.backend.as_str(), answer.metadata[":authority"].as_str()),
            (first.name(), "orders.prod")
        );
    }
    first.kill();
    let status = within(async {
        loop {
            match client.unary(request("secret")).await {
                Err(status) if status.message().contains("TLS handshake") => return status,
                _ => tokio::task::yield_now().await,
            }
        }
    })
    .await;
    let text = format!("TLS handshake with {address} as \"orders.prod\": invalid peer certificate: ");
    assert!(status.message().contains(&text), "{status}");
    assert_eq!(impostor.calls(), 0);
}

/// Certificates and keys are read from files.
#[tokio::test]
async fn certificates_are_read_from_files() {
    let (ca, clients) = (Ca::new("servers"), Ca::new("clients"));
    let backend = Backend::builder().tls(serving(&ca.issue(&["127.0.0.1"]), Some(&clients))).start().await;
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let file = folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        file
    };
    let member = clients.issue_client(&["shop"]);
    let (cert, key) = (write("cert.pem", &member.pem), write("key.pem", &member.key_pem));
    let credentials = Credentials::tls().ca_file(write("ca.pem", &ca.pem())).identity_files(cert, key);
    call(&backend, credentials).await.unwrap();
    let missing = Credentials::tls().ca_file(Path::new("/nowhere/ca.pem")).build().unwrap_err();
    assert!(missing.to_string().contains("/nowhere/ca.pem"), "{missing}");
}
