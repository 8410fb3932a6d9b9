//! Test control plane: responses, recorded requests and shutdown.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::config::cluster::v3::cluster::LbPolicy;
use evenkeel_proto::envoy::config::core::v3::Node;
use evenkeel_proto::envoy::config::endpoint::v3::{ClusterLoadAssignment, ClusterStats};
use evenkeel_proto::envoy::config::listener::v3::Listener;
use evenkeel_proto::envoy::config::route::v3::RouteConfiguration;
use evenkeel_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use evenkeel_proto::envoy::service::load_stats::v3::LoadStatsRequest;
use evenkeel_proto::google::rpc;
use evenkeel_proto::prost::Name;
use evenkeel_proto::prost_types::Any;
use testkit::net::ControlPlane;
use testkit::net::control::NamedResource;
use testkit::net::raw_stream::{DELTA, DeltaStream, LRS, LrsStream, SOTW, SotwStream};
use testkit::resources;
use tonic::Code;

fn subscribe<T: Name>(names: &[&str]) -> DiscoveryRequest {
    DiscoveryRequest {
        type_url: T::type_url(),
        resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
        ..DiscoveryRequest::default()
    }
}

fn ack<T: Name>(response: &DiscoveryResponse, names: &[&str]) -> DiscoveryRequest {
    DiscoveryRequest {
        version_info: response.version_info.clone(),
        response_nonce: response.nonce.clone(),
        ..subscribe::<T>(names)
    }
}

fn names<T: NamedResource + Default>(response: &DiscoveryResponse) -> Vec<String> {
    assert_eq!(response.type_url, T::type_url());
    let resources = response.resources.iter();
    let decoded = resources.map(|any| any.to_msg::<T>().expect("a resource of the type"));
    decoded.map(|resource| resource.resource_name().to_owned()).collect()
}

/// Returns the version of this type that the only client last ACKed.
fn acked<T: NamedResource>(control: &ControlPlane) -> Option<u64> {
    let [client] = &control.cache().clients()[..] else { panic!("one client") };
    client.types[&T::type_url()].acked
}

/// Returns a cluster that differs from `resources::cluster`.
fn changed_cluster(name: &str) -> Cluster {
    Cluster { lb_policy: LbPolicy::RingHash.into(), ..resources::cluster(name) }
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

#[tokio::test]
async fn existing_resources_are_sent_at_once_and_changes_later() {
    let control = ControlPlane::start().await;
    control.serve("orders", "pay", &[address("10.0.0.1:80")]);
    let mut stream = SotwStream::open(control.address(), SOTW).await.unwrap();

    stream.send(subscribe::<Listener>(&["orders"]));
    let first = stream.next().await;
    assert_eq!((names::<Listener>(&first), &*first.version_info), (vec!["orders".to_owned()], "1"));
    stream.send(ack::<Listener>(&first, &["orders"]));
    stream.send(subscribe::<RouteConfiguration>(&["orders"]));
    assert_eq!(names::<RouteConfiguration>(&stream.next().await), ["orders"]);
    stream.send(subscribe::<ClusterLoadAssignment>(&["pay", "missing"]));
    let endpoints = stream.next().await;
    assert_eq!(names::<ClusterLoadAssignment>(&endpoints), ["pay"]);
    stream.send(ack::<ClusterLoadAssignment>(&endpoints, &["pay", "missing"]));
    control.wait_acked::<ClusterLoadAssignment>().await;

    // A change of an unsubscribed resource is not sent. The next response has the change after it.
    control.set_endpoints("other", &[]);
    control.set_endpoints("missing", &[address("10.0.0.2:80")]);
    let endpoints = stream.next().await;
    assert_eq!(
        (names::<ClusterLoadAssignment>(&endpoints), &*endpoints.version_info),
        (vec!["missing".to_owned()], "3")
    );
    assert_eq!(acked::<ClusterLoadAssignment>(&control), Some(1));
    stream.send(ack::<ClusterLoadAssignment>(&endpoints, &["missing"]));
    control.wait_acked::<ClusterLoadAssignment>().await;
    assert_eq!(acked::<ClusterLoadAssignment>(&control), Some(3));
    assert_eq!(control.subscribed::<ClusterLoadAssignment>(), ["missing".to_owned()].into());
    assert_eq!(acked::<Listener>(&control), Some(1));
    assert_eq!(control.requests().len(), 6);
    assert_eq!((control.streams(), control.open_streams(), control.nacks()), (1, 1, vec![]));

    drop(stream);
    control.wait_until(|control| control.open_streams() == 0).await;
    assert!(control.subscribed::<Listener>().is_empty());
}

/// Responses for listeners and clusters contain all subscribed resources. A resource that is missing in the
/// response does not exist.
#[tokio::test]
async fn listener_and_cluster_responses_contain_all_subscribed_resources() {
    contains_all(resources::cluster).await;
    contains_all(|name| resources::listener_with_rds(name, "routes")).await;
}

async fn contains_all<T: NamedResource + Default>(resource: impl Fn(&str) -> T) {
    let control = ControlPlane::start().await;
    control.update(|resources| {
        resources.set(resource("a"));
        resources.set(resource("b"));
        resources.set(resource("unwanted"));
    });
    assert_eq!(control.version::<T>(), 1);
    let mut stream = SotwStream::open(control.address(), SOTW).await.expect("a stream");
    let wanted = ["a", "b", "c"];
    stream.send(subscribe::<T>(&wanted));
    let response = stream.next().await;
    assert_eq!(names::<T>(&response), ["a", "b"]);
    stream.send(ack::<T>(&response, &wanted));

    control.set(resource("c"));
    let response = stream.next().await;
    assert_eq!(names::<T>(&response), ["a", "b", "c"]);
    stream.send(ack::<T>(&response, &wanted));
    control.remove::<T>("a");
    let response = stream.next().await;
    assert_eq!(names::<T>(&response), ["b", "c"]);

    // Fewer names need no response. More names do, also if the new resource does not exist.
    stream.send(ack::<T>(&response, &["b"]));
    stream.send(ack::<T>(&response, &["b", "nothing"]));
    assert_eq!(names::<T>(&stream.next().await), ["b"]);
}

#[tokio::test]
async fn a_rejection_is_recorded_and_accepts_nothing() {
    let control = ControlPlane::start().await;
    control.set(resources::cluster("pay"));
    let mut stream = SotwStream::open(control.address(), SOTW).await.unwrap();
    stream.send(subscribe::<Cluster>(&["pay"]));
    let good = stream.next().await;
    stream.send(ack::<Cluster>(&good, &["pay"]));

    let garbage = Any { type_url: Cluster::type_url(), value: vec![0xff] };
    control.set_raw::<Cluster>("pay", garbage.clone());
    let bad = stream.next().await;
    assert_eq!(bad.resources, [garbage]);
    let error =
        rpc::Status { code: 3, message: "cluster \"pay\": cut short".to_owned(), ..rpc::Status::default() };
    let kept = DiscoveryRequest { version_info: good.version_info, ..ack::<Cluster>(&bad, &["pay"]) };
    stream.send(DiscoveryRequest { error_detail: Some(error), ..kept.clone() });
    // A later request of the type still has the version in use.
    stream.send(DiscoveryRequest { resource_names: vec!["pay".to_owned(), "more".to_owned()], ..kept });
    control.wait_until(|control| control.subscribed::<Cluster>().len() == 2).await;
    assert_eq!(control.nacks(), [(Cluster::type_url(), "cluster \"pay\": cut short".to_owned())]);
    assert_eq!((acked::<Cluster>(&control), control.version::<Cluster>()), (Some(1), 2));
}

#[tokio::test]
async fn an_update_of_several_types_is_sent_with_clusters_before_routes() {
    let control = ControlPlane::start().await;
    let mut stream = SotwStream::open(control.address(), SOTW).await.unwrap();
    stream.send(subscribe::<RouteConfiguration>(&["orders"]));
    stream.send(subscribe::<ClusterLoadAssignment>(&["pay"]));
    control.wait_until(|control| control.requests().len() == 2).await;
    control.serve("orders", "pay", &[address("10.0.0.1:80")]);
    assert_eq!(names::<ClusterLoadAssignment>(&stream.next().await), ["pay"]);
    assert_eq!(names::<RouteConfiguration>(&stream.next().await), ["orders"]);
}

/// A request that was sent before the last response was read is not a reply to it.
#[tokio::test]
async fn an_outdated_request_changes_nothing() {
    let control = ControlPlane::start().await;
    control.set_endpoints("a", &[]);
    control.set_endpoints("outdated", &[]);
    let mut stream = SotwStream::open(control.address(), SOTW).await.unwrap();
    stream.send(subscribe::<ClusterLoadAssignment>(&["a"]));
    let first = stream.next().await;
    stream.send(ack::<ClusterLoadAssignment>(&first, &["a"]));
    control.set_endpoints("a", &[address("10.0.0.1:80")]);
    let response = stream.next().await;
    stream.send(ack::<ClusterLoadAssignment>(&first, &["outdated"]));
    stream.send(ack::<ClusterLoadAssignment>(&response, &["a", "b"]));
    control.wait_until(|control| control.subscribed::<ClusterLoadAssignment>().len() == 2).await;
    control.set_endpoints("b", &[]);
    assert_eq!(names::<ClusterLoadAssignment>(&stream.next().await), ["b"]);
}

#[tokio::test]
async fn the_delta_variant_sends_changes_and_removals() {
    let control = ControlPlane::start().await;
    control.update(|resources| {
        resources.set(resources::cluster("a"));
        resources.set(resources::cluster("b"));
    });
    let mut stream = DeltaStream::open(control.address(), DELTA).await.unwrap();
    let subscribe = |names: &[&str]| DeltaDiscoveryRequest {
        type_url: Cluster::type_url(),
        resource_names_subscribe: names.iter().map(|name| (*name).to_owned()).collect(),
        ..DeltaDiscoveryRequest::default()
    };
    let summary = |response: &DeltaDiscoveryResponse| {
        let names: Vec<_> = response.resources.iter().map(|resource| resource.name.clone()).collect();
        (names, response.removed_resources.clone())
    };
    let ack = |response: &DeltaDiscoveryResponse, names: &[&str]| DeltaDiscoveryRequest {
        response_nonce: response.nonce.clone(),
        ..subscribe(names)
    };

    // The version of a resource is the same on every stream.
    let mut earlier = DeltaStream::open(control.address(), DELTA).await.unwrap();
    earlier.send(subscribe(&["a"]));
    let version = earlier.next().await.resources.remove(0).version;
    drop(earlier);
    control.wait_until(|control| control.open_streams() == 1).await;

    // Known resources are not sent again, and missing ones are reported as removed.
    let known = BTreeMap::from([("a".to_owned(), version)]);
    stream.send(DeltaDiscoveryRequest { initial_resource_versions: known, ..subscribe(&["a", "b", "c"]) });
    let response = stream.next().await;
    assert_eq!(summary(&response), (vec!["b".to_owned()], vec!["c".to_owned()]));
    stream.send(ack(&response, &[]));
    control.wait_acked::<Cluster>().await;

    control.set(resources::cluster("c"));
    let response = stream.next().await;
    assert_eq!(summary(&response), (vec!["c".to_owned()], vec![]));
    stream.send(ack(&response, &[]));
    control.remove::<Cluster>("b");
    let response = stream.next().await;
    assert_eq!(summary(&response), (vec![], vec!["b".to_owned()]));
    assert_eq!((acked::<Cluster>(&control), control.delta_requests().len()), (Some(2), 4));
    stream.send(ack(&response, &["a"]));
    assert_eq!(summary(&stream.next().await), (vec!["a".to_owned()], vec![]));
    assert_eq!((acked::<Cluster>(&control), control.delta_requests().len()), (Some(3), 5));
}

#[tokio::test]
async fn a_restarted_control_plane_keeps_its_resources() {
    let control = ControlPlane::start().await;
    control.set(resources::cluster("pay"));
    let mut stream = SotwStream::open(control.address(), SOTW).await.unwrap();
    stream.send(subscribe::<Cluster>(&["pay"]));
    stream.next().await;

    control.kill();
    stream.message().await.expect_err("the connection is reset");
    assert_eq!((control.open_streams(), control.open_connections()), (0, 0));
    assert!(SotwStream::open(control.address(), SOTW).await.is_err());
    control.set(changed_cluster("pay"));

    control.restart().await;
    let mut stream = SotwStream::open(control.address(), SOTW).await.unwrap();
    stream.send(subscribe::<Cluster>(&["pay"]));
    assert_eq!(stream.next().await.version_info, "2");
    assert_eq!((control.streams(), control.connections()), (2, 2));
}

#[tokio::test]
async fn streams_can_be_muted_closed_and_refused() {
    let control = ControlPlane::start().await;
    control.set(resources::cluster("pay"));
    control.only_one_stream();
    control.silent(true);
    let mut stream = SotwStream::open(control.address(), SOTW).await.unwrap();
    stream.send(subscribe::<Cluster>(&["pay"]));
    control.wait_until(|control| control.requests().len() == 1).await;
    control.set(changed_cluster("pay"));
    control.silent(false);
    assert_eq!(stream.next().await.version_info, "2");

    let refused = SotwStream::open(control.address(), SOTW).await.err().expect("a second stream is refused");
    assert_eq!(refused.code(), Code::Unavailable);
    assert_eq!((control.streams(), control.open_streams()), (2, 1));

    control.close_streams();
    assert_eq!(stream.message().await.expect("the status is OK"), None);
    control.wait_until(|control| control.open_streams() == 0).await;
    let mut stream = SotwStream::open(control.address(), SOTW).await.expect("the first is gone");
    stream.send(subscribe::<Cluster>(&["pay"]));
    stream.next().await;
}

#[tokio::test]
async fn load_reports_are_kept_and_their_interval_can_be_set() {
    let control = ControlPlane::start().await;
    control.cache().set_lrs_interval(Duration::from_millis(10));
    let mut stream = LrsStream::open(control.address(), LRS).await.unwrap();
    let node = Some(Node { id: "me".to_owned(), ..Node::default() });
    stream.send(LoadStatsRequest { node, ..LoadStatsRequest::default() });
    let asked = stream.next().await;
    assert!(asked.send_all_clusters);
    assert_eq!(asked.load_reporting_interval.unwrap().nanos, 10_000_000);
    control.cache().set_lrs_interval(Duration::from_secs(5));
    assert_eq!(stream.next().await.load_reporting_interval.unwrap().seconds, 5);

    let stats = ClusterStats { cluster_name: "pay".to_owned(), ..ClusterStats::default() };
    stream.send(LoadStatsRequest { cluster_stats: vec![stats.clone()], ..LoadStatsRequest::default() });
    control.wait_until(|control| !control.load_reports().is_empty()).await;
    assert_eq!(control.load_reports(), [stats]);

    control.lrs_unimplemented();
    let refused = LrsStream::open(control.address(), LRS).await.err().expect("no more");
    assert_eq!((refused.code(), control.lrs_streams()), (Code::Unimplemented, 2));
}

#[tokio::test]
async fn the_bootstrap_names_this_server_and_the_node() {
    let control = ControlPlane::start().await;
    let bootstrap: serde_json::Value = serde_json::from_str(&control.bootstrap("me")).unwrap();
    assert_eq!(bootstrap["node"]["id"], "me");
    assert_eq!(bootstrap["xds_servers"][0]["server_uri"], control.address().to_string());
    assert_eq!(bootstrap["xds_servers"][0]["channel_creds"][0]["type"], "insecure");
}
