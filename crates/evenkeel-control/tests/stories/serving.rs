//! Real channels and real backends: the served mesh determines where calls go.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use evenkeel::{Bootstrap, Channel, XdsClient};
use evenkeel_control::{
    ClientEventKind, Cluster, ControlPlane, Endpoint, LoadCounts, Mesh, ProtocolVariant, Service,
    TrafficFraction,
};
use evenkeel_proto::envoy::config::cluster::v3::Cluster as Cds;
use evenkeel_proto::envoy::config::endpoint::v3::ClusterLoadAssignment as Eds;
use evenkeel_proto::prost::Name;
use evenkeel_proto::prost_types::Any;
use testkit::net::Backend;
use testkit::net::echo::EchoRequest;
use testkit::net::echo::echo_client::EchoClient;

use crate::{LONG, soon};

/// Two backends behind `xds:///orders`, and a channel to them.
struct ServingFixture {
    control: ControlPlane,
    backends: [Backend; 2],
    channel: Channel,
}

impl ServingFixture {
    async fn start(variant: evenkeel::XdsVariant) -> ServingFixture {
        let control =
            ControlPlane::builder().lrs_interval(Duration::from_millis(50)).serve().await.expect("a port");
        let backends = [Backend::start().await, Backend::start().await];
        let bootstrap = Bootstrap::from_json(&control.bootstrap("node-7")).expect("a bootstrap");
        let client = XdsClient::builder(bootstrap).variant(variant).build();
        let channel = Channel::builder("xds:///orders").xds_client(client).build().expect("a channel");
        let fixture = ServingFixture { control, backends, channel };
        fixture.control.set_mesh(&fixture.mesh(1, 1));
        fixture
    }

    /// Mesh with the two backends at these weights.
    fn mesh(&self, first: u32, second: u32) -> Mesh {
        let [one, other] = self.backends.each_ref().map(Backend::address);
        let at = |address: SocketAddr, weight| Endpoint::at(address).weight(weight);
        let cluster = Cluster::new().endpoint(at(one, first)).endpoint(at(other, second)).lrs();
        Mesh::new().service("orders", Service::to("pay")).cluster("pay", cluster)
    }

    async fn call(&self) -> Result<String, tonic::Status> {
        let mut request = tonic::Request::new(EchoRequest::default());
        request.set_timeout(LONG);
        Ok(EchoClient::new(self.channel.clone()).unary(request).await?.into_inner().backend)
    }

    /// Number of calls that each backend received, of this number of calls.
    async fn shares(&self, calls: usize) -> BTreeMap<String, usize> {
        let mut shares = BTreeMap::new();
        for _ in 0..calls {
            *shares.entry(self.call().await.expect("a response")).or_default() += 1;
        }
        shares
    }

    /// Waits until calls are shared in this proportion.
    async fn until_shared(&self, first: usize, second: usize) {
        let expected: BTreeMap<_, _> =
            self.backends.iter().map(|backend| backend.name().to_owned()).zip([first, second]).collect();
        soon("the shares", async { while self.shares(first + second).await != expected {} }).await;
    }
}

/// Edited weights apply in both protocol variants, and the client record lists the ACKed versions.
async fn weights_are_edited(client_variant: evenkeel::XdsVariant, variant: ProtocolVariant) {
    let fixture = ServingFixture::start(client_variant).await;
    let mut events = fixture.control.events();
    fixture.until_shared(4, 4).await;
    soon("an ACK", fixture.control.wait_acked::<Eds>()).await;
    fixture.control.set_mesh(&fixture.mesh(3, 1));
    soon("an ACK", fixture.control.wait_acked::<Eds>()).await;
    fixture.until_shared(6, 2).await;
    let [client] = &fixture.control.clients()[..] else { panic!("one client") };
    assert_eq!((client.node_id.as_str(), client.variant), ("node-7", variant));
    assert!(client.user_agent.starts_with("evenkeel"), "{client:?}");
    let record = &client.types[&Eds::type_url()];
    assert_eq!((record.sent, record.acked, &record.nack), (Some(2), Some(2), &None));
    assert_eq!(record.subscribed.names, ["pay"]);
    let first = soon("an event", events.recv()).await.expect("an event");
    assert_eq!(first.node_id, "node-7");
    assert!(matches!(first.kind, ClientEventKind::Connected { .. }), "{first:?}");
}

#[tokio::test]
async fn weights_are_edited_in_the_state_of_the_world() {
    weights_are_edited(evenkeel::XdsVariant::StateOfTheWorld, ProtocolVariant::StateOfTheWorld).await;
}

#[tokio::test]
async fn weights_are_edited_in_delta() {
    weights_are_edited(evenkeel::XdsVariant::Delta, ProtocolVariant::Delta).await;
}

/// A rejected resource is recorded with the client's error message, while the last valid one is still used.
#[tokio::test]
async fn a_rejected_resource_changes_nothing() {
    let fixture = ServingFixture::start(evenkeel::XdsVariant::StateOfTheWorld).await;
    fixture.call().await.expect("a response");
    soon("an ACK", fixture.control.wait_acked::<Cds>()).await;
    let garbage = Any { type_url: Cds::type_url(), value: vec![0xff] };
    fixture.control.update(|resources| resources.set_any(&Cds::type_url(), "pay", garbage));
    let nack = soon("a NACK", fixture.control.wait_nacked::<Cds>()).await;
    assert_eq!(nack.version, 2);
    assert!(nack.error.contains("cannot be decoded"), "{}", nack.error);
    fixture.call().await.expect("a response");
    assert!(fixture.control.clients()[0].types[&Cds::type_url()].is_rejecting);
    fixture.control.set_mesh(&fixture.mesh(1, 1));
    soon("an ACK", fixture.control.wait_acked::<Cds>()).await;
    assert!(!fixture.control.clients()[0].types[&Cds::type_url()].is_rejecting);
}

/// LRS reports the calls of clients, and the counts add up.
#[tokio::test]
async fn load_adds_up() {
    let fixture = ServingFixture::start(evenkeel::XdsVariant::StateOfTheWorld).await;
    let issued = |cache: &evenkeel_control::SnapshotCache| {
        cache.load_stats().iter().map(|report| report.total.issued).sum::<u64>()
    };
    fixture.shares(20).await;
    soon("a report", fixture.control.wait_until(|cache| issued(cache) == 20)).await;
    fixture.shares(10).await;
    soon("a report", fixture.control.wait_until(|cache| issued(cache) == 30)).await;
    soon(
        "the finished calls",
        fixture.control.wait_until(|cache| {
            let [report] = &cache.load_stats()[..] else { panic!("one locality") };
            report.total == LoadCounts { issued: 30, succeeded: 30, failed: 0, in_progress: 0 }
        }),
    )
    .await;
    let [report] = &fixture.control.load_stats()[..] else { panic!("one locality") };
    assert_eq!((report.node_id.as_str(), report.cluster.as_str(), report.priority), ("node-7", "pay", 0));
    // Drops are reported too.
    let cluster = Cluster::new()
        .endpoint(Endpoint::at(fixture.backends[0].address()))
        .drop_calls("shed", TrafficFraction::ALL)
        .lrs();
    let mesh = Mesh::new().service("orders", Service::to("pay")).cluster("pay", cluster);
    fixture.control.set_mesh(&mesh);
    soon("drops", async { while fixture.call().await.is_ok() {} }).await;
    soon("a report", fixture.control.wait_until(|cache| !cache.drop_stats().is_empty())).await;
    let [drops] = &fixture.control.drop_stats()[..] else { panic!("one category") };
    assert_eq!((drops.category.as_deref(), drops.total), (Some("shed"), 1));
}

/// After a restart on the same address the client reconnects, and the control plane serves its resources.
#[tokio::test]
async fn clients_survive_a_restart() {
    let ServingFixture { control, backends, channel } =
        ServingFixture::start(evenkeel::XdsVariant::StateOfTheWorld).await;
    let fixture = |control| ServingFixture { control, backends, channel };
    let (address, cache) = (control.address(), control.cache().clone());
    let fixture = fixture(control);
    fixture.call().await.expect("a response");
    soon("an ACK", fixture.control.wait_acked::<Eds>()).await;
    let ServingFixture { control, backends, channel } = fixture;
    drop(control);
    soon("no clients", cache.wait_until(|cache| cache.clients().is_empty())).await;
    // A closing connection may hold the port for a moment.
    let control = soon("the port", async {
        loop {
            if let Ok(control) = ControlPlane::builder().listen(address).cache(cache.clone()).serve().await {
                return control;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let fixture = ServingFixture { control, backends, channel };
    fixture.control.set_mesh(&fixture.mesh(1, 3));
    soon("an ACK", fixture.control.wait_acked::<Eds>()).await;
    fixture.until_shared(2, 6).await;
}
