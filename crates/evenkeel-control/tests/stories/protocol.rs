//! The xDS protocol, message by message, with a client that sends exactly the given requests.
//!
//! To show that a response is *not* sent, the tests check the next one: responses of a stream arrive in
//! order.

use evenkeel_control::{
    ClientRequest, Cluster, ControlPlane, Endpoint, FaultModes, Mesh, ProtocolVariant, ResourceSet, Service,
    SnapshotCache,
};
use evenkeel_proto::envoy::config::cluster::v3::Cluster as Cds;
use evenkeel_proto::envoy::config::core::v3::Node;
use evenkeel_proto::envoy::config::endpoint::v3::ClusterLoadAssignment as Eds;
use evenkeel_proto::envoy::config::listener::v3::Listener as Lds;
use evenkeel_proto::envoy::config::route::v3::RouteConfiguration as Rds;
use evenkeel_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use evenkeel_proto::google::rpc;
use evenkeel_proto::prost::{Message, Name};
use testkit::net::raw_stream::{DELTA, DeltaStream, LRS, SOTW, SotwStream};
use testkit::resources;

use crate::soon;

fn node() -> Node {
    Node { id: "n".to_owned(), user_agent_name: "raw".to_owned(), ..Node::default() }
}

/// Request for these names, with the nonce of a response.
fn sotw_request<M: Name>(names: &[&str], nonce: &str) -> DiscoveryRequest {
    DiscoveryRequest {
        node: Some(node()),
        type_url: M::type_url(),
        resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
        response_nonce: nonce.to_owned(),
        ..DiscoveryRequest::default()
    }
}

fn nack_request(request: DiscoveryRequest, error: &str) -> DiscoveryRequest {
    let error = rpc::Status { code: 3, message: error.to_owned(), ..rpc::Status::default() };
    DiscoveryRequest { error_detail: Some(error), ..request }
}

/// Type, version and names of a response.
fn response_parts(response: &DiscoveryResponse) -> (String, String, Vec<String>) {
    let name = |any: &evenkeel_proto::prost_types::Any| match any.type_url.as_str() {
        url if url == Eds::type_url() => Eds::decode(&*any.value).expect("a message").cluster_name,
        url if url == Cds::type_url() => Cds::decode(&*any.value).expect("a message").name,
        url if url == Rds::type_url() => Rds::decode(&*any.value).expect("a message").name,
        _ => Lds::decode(&*any.value).expect("a message").name,
    };
    let kind = response.type_url.rsplit('.').next().unwrap_or_default().to_owned();
    (kind, response.version_info.clone(), response.resources.iter().map(name).collect())
}

fn expect(response: &DiscoveryResponse, kind: &str, version: &str, names: &[&str]) {
    let (found, at, held) = response_parts(response);
    assert_eq!((found.as_str(), at.as_str()), (kind, version));
    assert_eq!(held, names);
}

fn cluster(port: u16) -> Cluster {
    Cluster::new().endpoint(Endpoint::at(([127, 0, 0, 1], port).into()))
}

fn mesh() -> Mesh {
    let mesh = Mesh::new().cluster("a", cluster(1)).cluster("b", cluster(2));
    mesh.service("one", Service::to("a")).service("two", Service::to("b"))
}

async fn serve() -> ControlPlane {
    let control = ControlPlane::builder().serve().await.expect("a free port");
    control.set_mesh(&mesh());
    control
}

/// All clusters are sent in one response, endpoints only if they changed.
#[tokio::test]
async fn state_of_the_world() {
    let control = serve().await;
    let mut client = SotwStream::open(control.address(), SOTW).await.unwrap();
    client.send(sotw_request::<Cds>(&["a", "b"], ""));
    let response = client.next().await;
    expect(&response, "Cluster", "1", &["a", "b"]);
    client.send(sotw_request::<Cds>(&["a", "b"], &response.nonce));
    client.send(sotw_request::<Eds>(&["a", "b"], ""));
    let response = client.next().await;
    expect(&response, "ClusterLoadAssignment", "1", &["a", "b"]);
    client.send(sotw_request::<Eds>(&["a", "b"], &response.nonce));
    soon("an ACK", control.wait_acked::<Eds>()).await;
    // The endpoints of `a` did not change, so only `b` is sent. Clusters did not change at all.
    control.set_mesh(&mesh().cluster("b", cluster(3)));
    let response = client.next().await;
    expect(&response, "ClusterLoadAssignment", "2", &["b"]);
    client.send(sotw_request::<Eds>(&["a", "b"], &response.nonce));
    assert_eq!(control.version::<Cds>(), 1);
    // One cluster changes and both are sent.
    control.update(|resources| resources.set(Cds { lb_policy: 1, ..resources::cluster("b") }));
    let response = client.next().await;
    expect(&response, "Cluster", "2", &["a", "b"]);
    client.send(sotw_request::<Cds>(&["a", "b"], &response.nonce));
    // One cluster is removed and the response has the other.
    control.update(|resources| resources.remove::<Cds>("a"));
    let response = client.next().await;
    expect(&response, "Cluster", "3", &["b"]);
}

/// A request without names subscribes to all listeners. A later one with names subscribes only to these. An
/// empty list then unsubscribes from all.
#[tokio::test]
async fn wildcards() {
    let control = serve().await;
    let mut client = SotwStream::open(control.address(), SOTW).await.unwrap();
    client.send(sotw_request::<Lds>(&[], ""));
    let response = client.next().await;
    expect(&response, "Listener", "1", &["one", "two"]);
    client.send(sotw_request::<Lds>(&[], &response.nonce));
    soon("an ACK", control.wait_acked::<Lds>()).await;
    assert!(control.clients()[0].types[&Lds::type_url()].subscribed.wildcard);
    control.set_mesh(&mesh().service("three", Service::to("a")));
    let response = client.next().await;
    expect(&response, "Listener", "2", &["one", "three", "two"]);
    client.send(sotw_request::<Lds>(&["two"], &response.nonce));
    let response = client.next().await;
    expect(&response, "Listener", "2", &["two"]);
    client.send(sotw_request::<Lds>(&["*", "missing"], &response.nonce));
    let response = client.next().await;
    expect(&response, "Listener", "2", &["one", "three", "two"]);
    client.send(sotw_request::<Lds>(&[], &response.nonce));
    control.set_mesh(&mesh());
    client.send(sotw_request::<Rds>(&["one"], ""));
    expect(&client.next().await, "RouteConfiguration", "3", &["one"]);
}

/// A wildcard without resources gets an empty response. A missing listener gets one too. Missing endpoints
/// are sent once they exist.
#[tokio::test]
async fn missing_resources() {
    let control = ControlPlane::builder().serve().await.unwrap();
    let mut client = SotwStream::open(control.address(), SOTW).await.unwrap();
    client.send(sotw_request::<Cds>(&[], ""));
    expect(&client.next().await, "Cluster", "0", &[]);
    client.send(sotw_request::<Eds>(&["a"], ""));
    client.send(sotw_request::<Lds>(&["one"], ""));
    expect(&client.next().await, "Listener", "0", &[]);
    control.set_mesh(&mesh());
    expect(&client.next().await, "ClusterLoadAssignment", "1", &["a"]);
}

/// One response per type is in flight, followed by the latest version. A request with an older nonce is
/// ignored.
#[tokio::test]
async fn the_latest_wins() {
    let control = serve().await;
    let mut client = SotwStream::open(control.address(), SOTW).await.unwrap();
    client.send(sotw_request::<Eds>(&["a"], ""));
    let first = client.next().await;
    for port in 10..20 {
        control.set_mesh(&mesh().cluster("a", cluster(port)));
    }
    client.send(sotw_request::<Eds>(&["a"], &first.nonce));
    let second = client.next().await;
    expect(&second, "ClusterLoadAssignment", "11", &["a"]);
    control.set_mesh(&mesh());
    // A stale nonce is neither an ACK nor a subscription.
    client.send(sotw_request::<Eds>(&["a", "b"], &first.nonce));
    client.send(sotw_request::<Lds>(&["one"], ""));
    expect(&client.next().await, "Listener", "1", &["one"]);
    client.send(sotw_request::<Eds>(&["a"], &second.nonce));
    expect(&client.next().await, "ClusterLoadAssignment", "12", &["a"]);
}

/// A NACK is recorded, and the rejected resource is not sent again until it changes.
#[tokio::test]
async fn rejections() {
    let control = serve().await;
    let mut client = SotwStream::open(control.address(), SOTW).await.unwrap();
    client.send(sotw_request::<Eds>(&["a"], ""));
    let response = client.next().await;
    client.send(nack_request(sotw_request::<Eds>(&["a"], &response.nonce), "bad port"));
    let nack = soon("a NACK", control.wait_nacked::<Eds>()).await;
    assert_eq!((nack.version, nack.error.as_str()), (1, "bad port"));
    let record = &control.clients()[0];
    assert_eq!((record.node_id.as_str(), record.user_agent.as_str()), ("n", "raw"));
    assert_eq!(record.variant, ProtocolVariant::StateOfTheWorld);
    assert!(record.peer.is_some());
    let record = &record.types[&Eds::type_url()];
    assert_eq!((record.sent, record.acked, record.is_rejecting), (Some(1), None, true));
    client.send(sotw_request::<Lds>(&["one"], ""));
    expect(&client.next().await, "Listener", "1", &["one"]);
    control.set_mesh(&mesh().cluster("a", cluster(7)));
    let response = client.next().await;
    expect(&response, "ClusterLoadAssignment", "2", &["a"]);
    client.send(sotw_request::<Eds>(&["a"], &response.nonce));
    soon("an ACK", control.wait_acked::<Eds>()).await;
    let record = &control.clients()[0].types[&Eds::type_url()];
    assert_eq!((record.acked, record.is_rejecting), (Some(2), false));
    assert_eq!(record.nack.as_ref().map(|nack| nack.version), Some(1));
}

fn delta_request<M: Name>(subscribe: &[&str], unsubscribe: &[&str], nonce: &str) -> DeltaDiscoveryRequest {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    DeltaDiscoveryRequest {
        node: Some(node()),
        type_url: M::type_url(),
        resource_names_subscribe: owned(subscribe),
        resource_names_unsubscribe: owned(unsubscribe),
        response_nonce: nonce.to_owned(),
        ..DeltaDiscoveryRequest::default()
    }
}

fn expect_delta(response: &DeltaDiscoveryResponse, kind: &str, names: &[&str], removed: &[&str]) {
    assert_eq!(response.type_url.rsplit('.').next(), Some(kind));
    let held: Vec<_> = response.resources.iter().map(|resource| resource.name.as_str()).collect();
    assert_eq!(held, names);
    assert_eq!(response.removed_resources, removed);
    for resource in &response.resources {
        assert!(!resource.version.is_empty() && resource.resource.is_some(), "{resource:?}");
    }
}

/// Delta: changed, removed and missing resources are sent.
#[tokio::test]
async fn deltas() {
    let control = serve().await;
    let mut client = DeltaStream::open(control.address(), DELTA).await.unwrap();
    client.send(delta_request::<Cds>(&["a", "missing"], &[], ""));
    let response = client.next().await;
    expect_delta(&response, "Cluster", &["a"], &["missing"]);
    client.send(delta_request::<Cds>(&["b"], &[], &response.nonce));
    let response = client.next().await;
    expect_delta(&response, "Cluster", &["b"], &[]);
    client.send(delta_request::<Cds>(&[], &[], &response.nonce));
    soon("an ACK", control.wait_acked::<Cds>()).await;
    control.update(|resources| resources.remove::<Cds>("a"));
    let response = client.next().await;
    expect_delta(&response, "Cluster", &[], &["a"]);
    client.send(delta_request::<Cds>(&[], &["b"], &response.nonce));
    // The client has unsubscribed.
    soon(
        "the request",
        control.wait_until(|cache| {
            cache.clients()[0].types[&Cds::type_url()].subscribed.names == ["a", "missing"]
        }),
    )
    .await;
    control.update(|resources| resources.set(Cds { lb_policy: 1, ..resources::cluster("b") }));
    // A new subscription gets the resource again.
    client.send(delta_request::<Cds>(&["a", "b"], &[], ""));
    let response = client.next().await;
    expect_delta(&response, "Cluster", &["b"], &["a"]);
}

/// Delta: a wildcard subscription gets all resources, additions and removals.
#[tokio::test]
async fn deltas_of_a_wildcard() {
    let control = serve().await;
    let mut client = DeltaStream::open(control.address(), DELTA).await.unwrap();
    client.send(delta_request::<Cds>(&[], &[], ""));
    let response = client.next().await;
    expect_delta(&response, "Cluster", &["a", "b"], &[]);
    client.send(delta_request::<Cds>(&["a"], &[], &response.nonce));
    let response = client.next().await;
    expect_delta(&response, "Cluster", &["a"], &[]);
    control.update(|resources| {
        resources.remove::<Cds>("b");
        resources.set(resources::cluster("c"));
    });
    client.send(delta_request::<Cds>(&[], &["a"], &response.nonce));
    let response = client.next().await;
    assert_eq!(response.removed_resources, ["b"]);
    client.send(delta_request::<Cds>(&[], &["*"], &response.nonce));
    client.send(delta_request::<Lds>(&["*"], &[], ""));
    let mut response = client.next().await;
    // The removal of a name under a wildcard may be a response of its own.
    while response.type_url == Cds::type_url() {
        response = client.next().await;
    }
    expect_delta(&response, "Listener", &["one", "two"], &[]);
}

/// After a restart of the control plane, a client that sends its initial versions gets only the differences.
#[tokio::test]
async fn a_restart_sends_nothing_twice() {
    let control = serve().await;
    let mut client = DeltaStream::open(control.address(), DELTA).await.unwrap();
    client.send(delta_request::<Eds>(&["a", "b"], &[], ""));
    let response = client.next().await;
    expect_delta(&response, "ClusterLoadAssignment", &["a", "b"], &[]);
    let versions =
        response.resources.iter().map(|resource| (resource.name.clone(), resource.version.clone()));
    let mut again = delta_request::<Eds>(&["a", "b"], &[], "");
    again.initial_resource_versions = versions.collect();
    drop(control);
    assert!(client.message().await.is_err(), "it is dropped with all connections");

    let control = serve().await;
    let mut client = DeltaStream::open(control.address(), DELTA).await.unwrap();
    client.send(again.clone());
    client.send(delta_request::<Lds>(&["one"], &[], ""));
    expect_delta(&client.next().await, "Listener", &["one"], &[]);
    soon("no difference to send", control.wait_acked::<Eds>()).await;

    control.set_mesh(&mesh().cluster("b", cluster(9)));
    let mut client = DeltaStream::open(control.address(), DELTA).await.unwrap();
    client.send(again);
    expect_delta(&client.next().await, "ClusterLoadAssignment", &["b"], &[]);
}

/// Resources are sent before the resources that refer to them, as the make-before-break order of xDS
/// requires.
#[tokio::test]
async fn clusters_come_before_routes() {
    let control = ControlPlane::builder().serve().await.unwrap();
    let mut client = SotwStream::open(control.address(), SOTW).await.unwrap();
    client.send(sotw_request::<Rds>(&["one"], ""));
    client.send(sotw_request::<Eds>(&["a"], ""));
    client.send(sotw_request::<Lds>(&["one"], ""));
    let response = client.next().await;
    client.send(sotw_request::<Lds>(&["one"], &response.nonce));
    client.send(sotw_request::<Cds>(&["a"], ""));
    let response = client.next().await;
    client.send(sotw_request::<Cds>(&["a"], &response.nonce));
    soon("the ACKs", control.wait_acked::<Cds>()).await;
    soon("the ACKs", control.wait_acked::<Lds>()).await;
    control.set_mesh(&mesh());
    let mut order = Vec::new();
    for _ in 0..4 {
        order.push(response_parts(&client.next().await).0);
    }
    assert_eq!(order, ["Cluster", "ClusterLoadAssignment", "Listener", "RouteConfiguration"]);
}

/// Envoy may request clusters and endpoints on streams of their own.
#[tokio::test]
async fn one_type_per_stream() {
    let control = serve().await;
    let path = "/envoy.service.endpoint.v3.EndpointDiscoveryService/StreamEndpoints";
    let mut client = SotwStream::open(control.address(), path).await.unwrap();
    client.send(DiscoveryRequest { type_url: String::new(), ..sotw_request::<Eds>(&["a"], "") });
    expect(&client.next().await, "ClusterLoadAssignment", "1", &["a"]);
    let other = SotwStream::open(
        control.address(),
        "/envoy.service.runtime.v3.RuntimeDiscoveryService/StreamRuntime",
    )
    .await;
    assert_eq!(other.err().map(|status| status.code()), Some(tonic::Code::Unimplemented));
}

/// Clients that do not read delay no other client, and at most one response per type is queued for them.
#[tokio::test]
async fn a_slow_reader() {
    let control = serve().await;
    // Larger than any flow-control window, so that it stays in the server.
    let many = (0..40_000).map(|i| Endpoint::at(([10, 1, (i / 250) as u8, (i % 250) as u8], 1).into()));
    control.set_mesh(&mesh().cluster("a", Cluster::new().endpoints(many)));
    let slow = SotwStream::open(control.address(), SOTW).await.unwrap();
    slow.send(sotw_request::<Eds>(&["a"], ""));
    soon(
        "the request",
        control.wait_until(|cache| {
            cache
                .clients()
                .iter()
                .any(|client| client.types.get(&Eds::type_url()).is_some_and(|eds| eds.sent.is_some()))
        }),
    )
    .await;
    let mut quick = SotwStream::open(control.address(), SOTW).await.unwrap();
    quick.send(sotw_request::<Eds>(&["a"], ""));
    for version in 2..20 {
        let response = quick.next().await;
        assert_eq!(response.version_info, version.to_string());
        control.set_mesh(&mesh().cluster("a", cluster(version)));
        quick.send(sotw_request::<Eds>(&["a"], &response.nonce));
    }
    let sent: Vec<_> = control.clients().iter().map(|client| client.types[&Eds::type_url()].sent).collect();
    assert_eq!(sent[0], Some(2));
    // The slow client reads: the response sent to it is complete, and the next one has the latest version.
    let mut slow = slow;
    let response = slow.next().await;
    let assignment = Eds::decode(&*response.resources[0].value).unwrap();
    assert_eq!(assignment.endpoints[0].lb_endpoints.len(), 40_000);
    slow.send(sotw_request::<Eds>(&["a"], &response.nonce));
    assert_eq!(slow.next().await.version_info, control.version::<Eds>().to_string());
}

/// Fault modes of the control plane, for tests of clients.
#[tokio::test]
async fn fault_modes() {
    let control = serve().await;
    control.set_fault_modes(FaultModes { silent: true, one_stream: true, refuse_lrs: true });
    let mut client = SotwStream::open(control.address(), SOTW).await.unwrap();
    client.send(sotw_request::<Eds>(&["a"], ""));
    soon(
        "the request",
        control.wait_until(|cache| cache.clients().iter().any(|client| !client.types.is_empty())),
    )
    .await;
    let second = SotwStream::open(control.address(), SOTW).await.err().expect("a refusal");
    assert_eq!(second.code(), tonic::Code::Unavailable);
    let lrs = SotwStream::open(control.address(), LRS).await;
    assert_eq!(lrs.err().map(|status| status.code()), Some(tonic::Code::Unimplemented));
    assert_eq!(control.lrs_streams(), 1);
    assert_eq!(control.clients()[0].types[&Eds::type_url()].sent, None);
    control.set_fault_modes(FaultModes::default());
    expect(&client.next().await, "ClusterLoadAssignment", "1", &["a"]);
    control.close_streams();
    assert!(matches!(client.message().await, Ok(None)), "OK");
    soon("no clients", control.wait_until(|cache| cache.clients().is_empty())).await;
    assert_eq!(control.streams(), 2);
    let mut client = SotwStream::open(control.address(), SOTW).await.unwrap();
    client.send(sotw_request::<Eds>(&["a"], ""));
    expect(&client.next().await, "ClusterLoadAssignment", "1", &["a"]);
}

/// Requests are recorded as received, once `record_requests` was called.
#[tokio::test]
async fn recorded_requests() {
    let control = serve().await;
    let mut client = SotwStream::open(control.address(), SOTW).await.unwrap();
    client.send(sotw_request::<Eds>(&["a"], ""));
    let response = client.next().await;
    assert_eq!(control.client_requests(), []);
    control.record_requests();
    let ack = sotw_request::<Eds>(&["a"], &response.nonce);
    client.send(ack.clone());
    soon("the ACK", control.wait_acked::<Eds>()).await;
    assert_eq!(control.client_requests(), [ClientRequest::Discovery(ack)]);
}

/// A client that subscribes to too many types gets RESOURCE_EXHAUSTED.
#[tokio::test]
async fn too_many_types() {
    let control = serve().await;
    let mut client = SotwStream::open(control.address(), SOTW).await.unwrap();
    for i in 0..65 {
        client.send(DiscoveryRequest { type_url: format!("type {i}"), ..sotw_request::<Eds>(&["a"], "") });
    }
    let end = client.message().await.expect_err("an end");
    assert_eq!(
        (end.code(), end.message()),
        (tonic::Code::ResourceExhausted, "a stream has at most 64 types")
    );
}

/// A version increases with each change, and only with a change.
#[test]
fn versions_count_changes() {
    let cache = SnapshotCache::new();
    assert_eq!(cache.version::<Cds>(), 0);
    cache.set_mesh(&mesh());
    cache.set_mesh(&mesh());
    assert_eq!((cache.version::<Cds>(), cache.version::<Eds>()), (1, 1));
    cache.update(|resources| {
        resources.set(resources::cluster("x"));
        resources.set(resources::cluster("y"));
    });
    assert_eq!((cache.version::<Cds>(), cache.version::<Eds>()), (2, 1));
    cache.set(ResourceSet::new());
    assert_eq!((cache.version::<Cds>(), cache.version::<Eds>()), (3, 2));
}

/// A connection that does not complete the HTTP/2 preface is closed after a timeout.
#[tokio::test(start_paused = true)]
async fn a_silent_connection_is_closed() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let control = ControlPlane::builder().serve().await.unwrap();
    let mut silent = tokio::net::TcpStream::connect(control.address()).await.unwrap();
    silent.write_all(b"PRI * HTTP/2.0").await.unwrap();
    // The server may send its SETTINGS first.
    let mut received = Vec::new();
    soon("the end", silent.read_to_end(&mut received)).await.ok();
}
