//! How do I use TLS with client certificates, and survive their rotation?
//!
//! The channel gets file names and reads the files again for new connections. After the files are replaced,
//! the client presents its new certificate, and trusts a server with a certificate of another CA, without a
//! restart.

use std::time::Duration;

use evenkeel::{Channel, Credentials};
use examples::shop::GetRequest;
use examples::shop::orders_client::OrdersClient;
use examples::{Backend, Outcome, Tls};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};

#[tokio::main]
async fn main() -> Outcome {
    let folder = tempfile::tempdir()?;
    let [ca, certificate, key] = ["ca.pem", "client.pem", "client.key"].map(|name| folder.path().join(name));
    let first = Authority::new()?;
    let client = first.issue(ExtendedKeyUsagePurpose::ClientAuth)?;
    std::fs::write(&ca, first.0.pem())?;
    std::fs::write(&certificate, &client.pem)?;
    std::fs::write(&key, &client.key)?;

    let server = Backend::start_at("server", "127.0.0.1:0".parse()?, Some(first.server()?)).await?;
    let address = server.address();
    // Files are reloaded when a connection starts and their content is older than this; the default is 10
    // minutes.
    let credentials = Credentials::tls()
        .ca_file(&ca)
        .identity_files(&certificate, &key)
        .server_name("orders.example")
        .refresh_every(Duration::ZERO)
        .build()?;
    let channel = Channel::builder(format!("ipv4:{address}")).credentials(credentials).build()?;
    let mut orders = OrdersClient::new(channel);
    orders.get(GetRequest::default()).await?;
    println!(
        "before the rotation the server saw the first certificate: {}",
        server.caller() == Some(client.der)
    );

    // Rotation: another CA and another certificate in the same files. The replacement server trusts only
    // these.
    let second = Authority::new()?;
    let client = second.issue(ExtendedKeyUsagePurpose::ClientAuth)?;
    std::fs::write(&ca, format!("{}{}", first.0.pem(), second.0.pem()))?;
    std::fs::write(&certificate, &client.pem)?;
    std::fs::write(&key, &client.key)?;
    server.drain().await;
    let server = Backend::start_at("server", address, Some(second.server()?)).await?;
    orders.get(GetRequest::default()).await?;
    println!("after the rotation it saw the second one: {}", server.caller() == Some(client.der));

    // Without a client certificate the handshake fails, and the status has the reason.
    let stranger = Credentials::tls().ca_file(&ca).server_name("orders.example").build()?;
    let channel = Channel::builder(format!("ipv4:{address}")).credentials(stranger).build()?;
    if let Err(status) = OrdersClient::new(channel).get(GetRequest::default()).await {
        println!("without a certificate: {}", status.message());
    }
    Ok(())
}

/// Certificate authority of the example.
struct Authority(CertifiedIssuer<'static, KeyPair>);

struct Issued {
    pem: String,
    key: String,
    der: Vec<u8>,
}

impl Authority {
    fn new() -> Result<Authority, rcgen::Error> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Ok(Authority(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    fn issue(&self, purpose: ExtendedKeyUsagePurpose) -> Result<Issued, rcgen::Error> {
        let mut params = CertificateParams::new(vec!["orders.example".to_owned()])?;
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate()?;
        let signed = params.signed_by(&key, &self.0)?;
        Ok(Issued { pem: signed.pem(), der: signed.der().to_vec(), key: key.serialize_pem() })
    }

    fn server(&self) -> Result<Tls, rcgen::Error> {
        let Issued { pem, key, .. } = self.issue(ExtendedKeyUsagePurpose::ServerAuth)?;
        Ok(Tls { certificate: pem, key, clients: self.0.pem() })
    }
}
