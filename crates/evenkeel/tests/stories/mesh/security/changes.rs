//! Security changes under load: of clusters, and of certificate files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::config::cluster::v3::cluster::LbPolicy;
use evenkeel_proto::envoy::config::route::v3::RouteConfiguration;
use testkit::net::certs::{Ca, Cert};
use testkit::net::control::ResourceSetExt as _;
use testkit::net::echo::EchoRequest;
use testkit::net::echo::echo_client::EchoClient;
use testkit::resources;
use tokio_stream::StreamExt as _;

use super::super::until;
use super::front::{Front, FrontConnection};
use super::{Folder, Parts, call, der, mutual, pay, secured, service, serving, tls};
use crate::load::Load;

fn is_tls(came: &FrontConnection) -> bool {
    matches!(came, FrontConnection::Tls { .. })
}

/// fault 82, RT-4: a cluster changes from plaintext to mTLS and back. Connections are replaced each time, and
/// no call fails. Other changes of the cluster keep the connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_becomes_secure_and_insecure() {
    let parts = Parts::new().await;
    let front = parts.front(&parts.servers.issue(&["orders"])).await;
    let (control, channel) = service(resources::cluster("pay"), &[front.address()], &parts.folder).await;
    let load = Load::start(&channel, 8);
    load.further(6).await;
    assert_eq!(front.seen(), [FrontConnection::Plain]);

    control.set(pay(&mutual()));
    let came = front.one_inside("there is TLS only", is_tls).await;
    assert_eq!(came, FrontConnection::Tls { sni: None, client: Some(der(&parts.me)) });
    load.further(6).await;
    let mut other = pay(&mutual());
    other.lb_policy = LbPolicy::LeastRequest.into();
    control.set(other);
    control.wait_acked::<Cluster>().await;
    load.further(6).await;
    assert_eq!(front.seen().len(), 2, "the same security");

    control.set(pay(&tls("roots", Some("me"))));
    until("it is connected anew", || async { front.seen().len() == 3 }).await;
    front.one_inside("there is one", is_tls).await;
    control.set(resources::cluster("pay"));
    front.one_inside("there is plain only", |came| *came == FrontConnection::Plain).await;
    load.further(6).await;
    let counts = load.stop().await;
    println!("{} ok, slowest {:?}", counts.ok, counts.slowest);
    counts.expect_none_failed();
    assert_eq!(front.seen().len(), 4);
}

/// The same address in a plaintext cluster and an mTLS cluster: each call uses the security of its own
/// cluster.
#[tokio::test]
async fn an_address_in_two_clusters() {
    let parts = Parts::new().await;
    let front = parts.front(&parts.servers.issue(&["orders"])).await;
    let (_control, channel) = serving(&parts.folder, |held| {
        held.serve("orders", "open", &[front.address()]);
        held.set(secured(resources::cluster("safe"), &mutual()));
        held.set_endpoints("safe", &[front.address()]);
        let routes =
            vec![resources::route("/evenkeel.test.Echo/Unary", "safe"), resources::route("", "open")];
        held.set(RouteConfiguration {
            virtual_hosts: vec![resources::virtual_host("*", routes)],
            ..resources::route_config("orders", "open")
        });
    })
    .await;
    let mut client = EchoClient::new(channel.clone());
    for _ in 0..3 {
        let safe = client.unary(EchoRequest::default()).await.unwrap().into_inner();
        assert_eq!(safe.metadata[":scheme"], "https");
        let asked = EchoRequest { repeat: 1, ..EchoRequest::default() };
        let mut stream = client.server_stream(asked).await.unwrap().into_inner();
        assert_eq!(stream.next().await.unwrap().unwrap().metadata[":scheme"], "http");
    }
    assert_eq!(front.seen().len(), 2);
}

/// Each leaf of an aggregate cluster has its own security.
#[tokio::test]
async fn the_leaves_of_an_aggregate() {
    let parts = Parts::new().await;
    let stranger = parts.front(&parts.clients.issue(&["orders"])).await;
    let spare = parts.front(&parts.servers.issue(&["orders"])).await;
    let (_control, channel) = serving(&parts.folder, |held| {
        held.serve("orders", "all", &[]);
        held.set(resources::aggregate_cluster("all", &["main", "spare"]));
        held.set(secured(resources::cluster("main"), &mutual()));
        held.set_endpoints("main", &[stranger.address()]);
        held.set(resources::cluster("spare"));
        held.set_endpoints("spare", &[spare.address()]);
    })
    .await;
    call(&channel).await.unwrap();
    assert_eq!(
        (stranger.seen().first(), spare.seen()),
        (Some(&FrontConnection::NotIn), vec![FrontConnection::Plain])
    );
    assert!(!stranger.seen().contains(&FrontConnection::Plain));
}

/// Folder as Kubernetes mounts secrets: files link into a folder that a symlink names, and the symlink is
/// swapped.
struct Mounted<'f>(&'f Folder);

impl Mounted<'_> {
    fn publish(&self, version: usize, ca: &str, cert: &Cert) {
        let Mounted(folder) = self;
        let at = folder.at(&format!("..{version}"));
        fs::create_dir(&at).expect("a folder");
        for (name, text) in [("ca.pem", ca), ("tls.crt", &cert.pem), ("tls.key", &cert.key_pem)] {
            fs::write(at.join(name), text).expect("a file");
            if version == 0 {
                symlink(Path::new("..data").join(name), folder.at(name)).expect("a link");
            }
        }
        symlink(&at, folder.at("..data_tmp")).expect("a link");
        fs::rename(folder.at("..data_tmp"), folder.at("..data")).expect("it is swapped");
    }
}

/// faults 79 and 80: the client certificate rotates under load. Existing connections stay. Each new one uses
/// the latest complete certificate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_certificate_rotates() {
    let mut parts = Parts::new().await;
    parts.folder = Folder::new();
    let cert = parts.servers.issue(&["orders"]);
    let [first, second, third] = [(); 3].map(|()| parts.clients.issue_client(&["shop"]));
    let mounted = Mounted(&parts.folder);
    mounted.publish(0, &parts.servers.pem(), &first);
    let fronts = [parts.front(&cert).await];
    let (control, channel) = service(pay(&mutual()), &[fronts[0].address()], &parts.folder).await;
    let load = Load::start(&channel, 8);
    load.further(6).await;

    let half = Cert { pem: third.pem[..third.pem.len() / 2].to_owned(), ..third.clone() };
    let mixed = Cert { pem: third.pem.clone(), key_pem: second.key_pem.clone() };
    let steps = [
        ("swapped", second.clone(), &second),
        ("half a certificate", half, &second),
        ("the key of another", mixed, &second),
        ("whole again", third.clone(), &third),
    ];
    let mut fronts = Vec::from(fronts);
    for (i, (what, publish, expected)) in steps.iter().enumerate() {
        mounted.publish(i + 1, &parts.servers.pem(), publish);
        fs::remove_dir_all(parts.folder.at(&format!("..{i}"))).unwrap();
        fronts.push(parts.front(&cert).await);
        let addresses: Vec<_> = fronts.iter().map(Front::address).collect();
        control.set_endpoints("pay", &addresses);
        let came = fronts[i + 1].one_inside(what, is_tls).await;
        assert_eq!(came, FrontConnection::Tls { sni: None, client: Some(der(expected)) }, "{what}");
        load.further(3).await;
    }
    for name in ["tls.crt", "tls.key", "ca.pem"] {
        fs::remove_file(parts.folder.at(name)).unwrap();
    }
    fronts.push(parts.front(&cert).await);
    let addresses: Vec<_> = fronts.iter().map(Front::address).collect();
    control.set_endpoints("pay", &addresses);
    let came = fronts[steps.len() + 1].one_inside("no files", is_tls).await;
    assert_eq!(came, FrontConnection::Tls { sni: None, client: Some(der(&third)) });
    load.further(3).await;
    load.stop().await.expect_none_failed();
    let expected = FrontConnection::Tls { sni: None, client: Some(der(&first)) };
    assert_eq!(fronts[0].seen(), [expected], "the first connection stays");
    assert!(fronts.iter().all(|front| front.seen().len() == 1));
}

/// fault 83: the servers' CA is replaced, with an overlap in which both are trusted. No call fails.
/// Afterwards the old CA is not trusted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_authority_rotates() {
    let parts = Parts::new().await;
    let successor = Ca::new("successor");
    let old = [parts.front(&parts.servers.issue(&["orders"])).await];
    let new = [parts.front(&successor.issue(&["orders"])).await];
    let [a, b] = [old[0].address(), new[0].address()];
    let (control, channel) = service(pay(&mutual()), &[a], &parts.folder).await;
    let load = Load::start(&channel, 8);
    load.further(6).await;

    parts.folder.write("ca.pem", &[parts.servers.pem(), successor.pem()].concat());
    control.set_endpoints("pay", &[a, b]);
    new[0].one_inside("the new one is trusted", is_tls).await;
    load.further(3).await;
    parts.folder.write("ca.pem", &successor.pem());
    control.set_endpoints("pay", &[b]);
    until("the old connection is closed", || async { old[0].inside().is_empty() }).await;
    control.set_endpoints("pay", &[a, b]);
    until("the old one is not let in again", || async {
        old[0].seen().last() == Some(&FrontConnection::NotIn)
    })
    .await;
    load.further(6).await;
    load.stop().await.expect_none_failed();
    assert_eq!((old[0].seen().len() > 1, new[0].seen().len()), (true, 1));
}
