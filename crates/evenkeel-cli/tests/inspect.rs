//! `evenkeel inspect` against real clients, and against peers that answer anything else.

mod common;

use std::net::SocketAddr;
use std::time::Duration;

use common::{PATIENCE, Running, evenkeel, first_line};
use evenkeel::{Bootstrap, Channel, XdsClient};
use evenkeel_proto::envoy::config::core::v3::HealthStatus;
use evenkeel_proto::envoy::config::listener::v3::Listener;
use evenkeel_proto::envoy::config::route::v3::RouteConfiguration;
use evenkeel_proto::prost_types::Any;
use serde_json::{Value, json};
use testkit::net::{Backend, ControlPlane};
use testkit::resources;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

/// A process with one channel to `xds:///orders` that answers CSDS.
struct Process {
    control: ControlPlane,
    backend: Backend,
    client: XdsClient,
    _channel: Channel,
    address: SocketAddr,
}

impl Process {
    /// With a service that works.
    async fn start() -> Process {
        let control = ControlPlane::start().await;
        let backend = Backend::start().await;
        control.serve("orders", "pay", &[backend.address()]);
        let process = Process::with(control, backend).await;
        timeout(PATIENCE, process._channel.ready()).await.expect("in time").expect("a channel");
        process
    }

    async fn with(control: ControlPlane, backend: Backend) -> Process {
        let bootstrap = Bootstrap::from_json(&control.bootstrap("node-7")).expect("a bootstrap");
        let client = XdsClient::builder(bootstrap).build();
        let channel =
            Channel::builder("xds:///orders").xds_client(client.clone()).build().expect("a channel");
        channel.connect();
        let address = serve_csds(client.clone()).await;
        Process { control, backend, client, _channel: channel, address }
    }

    /// Waits until some resource of the client is as the test wants it.
    async fn wait_status(&self, wanted: &str) {
        let found = async {
            loop {
                let status = self.client.status().await.expect("the client lives");
                let mut states =
                    status.generic_xds_configs.iter().map(|one| one.client_status().as_str_name());
                if states.any(|state| state == wanted) {
                    return;
                }
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("nothing is {wanted}"));
    }
}

async fn serve_csds(client: XdsClient) -> SocketAddr {
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).expect("a port");
    let address = incoming.local_addr().expect("an address");
    let service = evenkeel::csds::Csds::of([client]);
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
    address
}

/// A server that says this to whoever connects and asks something, and then closes.
async fn peer_that_says(bytes: Vec<u8>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let bytes = bytes.clone();
            tokio::spawn(async move {
                let _ = stream.read(&mut [0; 1024]).await;
                let _ = stream.write_all(&bytes).await;
            });
        }
    });
    address
}

/// The command blocks: it runs beside the servers of the test.
async fn inspect(args: Vec<String>) -> common::Outcome {
    let run = move || evenkeel(["inspect".to_owned()].into_iter().chain(args));
    tokio::task::spawn_blocking(run).await.expect("it runs")
}

async fn inspect_at(address: SocketAddr) -> common::Outcome {
    inspect(vec![address.to_string()]).await
}

/// Ages and ports differ from run to run.
fn masked(text: &str, addresses: &[(SocketAddr, &str)]) -> String {
    let mut text = text.to_owned();
    for (address, name) in addresses {
        text = text.replace(&address.to_string(), name);
    }
    let lines = text.lines().map(|line| {
        let mut words: Vec<_> = line.split(' ').collect();
        while let Some(i) = words.windows(3).position(|three| three[2].starts_with("ago") && three[1] == "s")
        {
            words.splice(i..i + 2, ["just"]);
            words[i + 1] = if words[i + 1] == "ago:" { "now:" } else { "now" };
        }
        words.join(" ")
    });
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

/// CSDS-3, CSDS-7: every resource of a client, below the one that leads to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_works() {
    let process = Process::start().await;
    let outcome = inspect_at(process.address).await.ends_with(0);
    let shown = masked(&outcome.stdout, &[(process.backend.address(), "BACKEND")]);
    println!("{shown}");
    assert_eq!(shown, "");
}
