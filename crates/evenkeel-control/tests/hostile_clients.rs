//! Clients that try to exhaust memory, streams or connections. A limit stops each of them, and other clients
//! are served as before.
//!
//! The control plane runs on a thread of its own, and the allocator counts the live bytes of that thread.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use evenkeel_control::{ClientLimits, Cluster, ControlPlane, Endpoint, Mesh, SnapshotCache};
use evenkeel_proto::envoy::config::cluster::v3::Cluster as Cds;
use evenkeel_proto::envoy::config::core::v3::Node;
use evenkeel_proto::envoy::config::endpoint::v3::cluster_stats::DroppedRequests;
use evenkeel_proto::envoy::config::endpoint::v3::{
    ClusterLoadAssignment as Eds, ClusterStats, UpstreamLocalityStats,
};
use evenkeel_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use evenkeel_proto::envoy::service::load_stats::v3::LoadStatsRequest;
use evenkeel_proto::google::rpc;
use evenkeel_proto::prost::{Message, Name};
use testkit::Counting;
use testkit::net::raw_stream::{DELTA, DeltaStream, LRS, LrsStream, RawStream, SOTW, SotwStream};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tonic::Code;
use tonic::transport::Endpoint as Address;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Maximum time of every wait; only a failure reaches it.
const MAX_WAIT: Duration = Duration::from_secs(60);

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(MAX_WAIT, future).await.unwrap_or_else(|_| panic!("timed out waiting for {what}"))
}

/// Control plane on a thread of its own, whose live bytes are counted.
struct CountedControlPlane {
    cache: SnapshotCache,
    address: SocketAddr,
    end: oneshot::Sender<()>,
    thread: std::thread::JoinHandle<i64>,
}

impl CountedControlPlane {
    async fn start(limits: ClientLimits) -> CountedControlPlane {
        let (started, is_started) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime");
            let builder = ControlPlane::builder().client_limits(limits);
            let control = runtime.block_on(builder.serve()).expect("a free port");
            let _ = started.send((control.cache().clone(), control.address()));
            let (allocated, _) = Counting::during(|| runtime.block_on(ended));
            allocated.net_bytes
        });
        let (cache, address) = is_started.await.expect("it starts");
        cache.set_mesh(&Mesh::new().cluster("a", cluster(1)));
        CountedControlPlane { cache, address, end, thread }
    }

    /// Returns the growth of the live memory of the control plane's thread, in bytes.
    fn allocated_bytes(self) -> i64 {
        let _ = self.end.send(());
        self.thread.join().expect("no panic")
    }

    /// Waits until a stream has subscribed to a name.
    async fn subscribed<M: Name>(&self, name: &str) {
        let has = |cache: &SnapshotCache| {
            cache.clients().iter().any(|client| {
                let of_type = client.types.get(&M::type_url());
                of_type.is_some_and(|record| record.subscribed.names.iter().any(|known| known == name))
            })
        };
        soon("the subscription", self.cache.wait_until(has)).await;
    }

    /// Asserts that another client is served.
    async fn serves_others(&self) {
        let mut other = SotwStream::open(self.address, SOTW).await.expect("a stream");
        other.send(sotw_request::<Cds>(&["a".to_owned()]));
        let response = other.message().await.expect("an open stream");
        assert_eq!(response.expect("a response").resources.len(), 1);
    }
}

/// Reads to the end of a stream, and returns its status.
async fn status_of<Q: Message + 'static, R: Message + Default + 'static>(
    stream: &mut RawStream<Q, R>,
) -> (Code, String) {
    let status = stream.status().await;
    (status.code(), status.message().to_owned())
}

fn sotw_request<M: Name>(names: &[String]) -> DiscoveryRequest {
    DiscoveryRequest {
        type_url: M::type_url(),
        resource_names: names.to_vec(),
        ..DiscoveryRequest::default()
    }
}

fn delta_request<M: Name>(subscribe: &[&str], unsubscribe: &[&str], nonce: &str) -> DeltaDiscoveryRequest {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    DeltaDiscoveryRequest {
        type_url: M::type_url(),
        resource_names_subscribe: owned(subscribe),
        resource_names_unsubscribe: owned(unsubscribe),
        response_nonce: nonce.to_owned(),
        ..DeltaDiscoveryRequest::default()
    }
}

/// Resource names of 100 bytes each.
fn names(from: usize, count: usize) -> Vec<String> {
    (from..from + count).map(|i| format!("{i:0100}")).collect()
}

fn versions(names: Vec<String>) -> BTreeMap<String, String> {
    names.into_iter().map(|name| (name, "1".to_owned())).collect()
}

fn cluster(port: u16) -> Cluster {
    Cluster::new().endpoint(Endpoint::at(([127, 0, 0, 1], port).into()))
}

fn exhausted(text: &str) -> (Code, String) {
    (Code::ResourceExhausted, text.to_owned())
}

/// A client that lists initial resource versions in request after request is stopped. The control plane does
/// not retain them.
#[tokio::test]
async fn initial_versions_are_limited() {
    let control = CountedControlPlane::start(ClientLimits::default()).await;
    let mut client = DeltaStream::open(control.address, DELTA).await.expect("a stream");
    // 137 MB in total.
    for i in 0..137 {
        let mut request = delta_request::<Cds>(if i == 0 { &["*"] } else { &[] }, &[], "");
        request.initial_resource_versions = versions(names(i * 10_000, 10_000));
        client.send(request);
        tokio::task::yield_now().await;
    }
    assert_eq!(
        status_of(&mut client).await,
        exhausted("a stream has at most 8388608 bytes of resource names")
    );
    control.serves_others().await;
    let held = control.allocated_bytes();
    assert!(held < 2 << 20, "{held} bytes are retained");
}

/// The memory of a stream within the limits is proportional to the bytes of its resource names.
#[tokio::test]
async fn memory_per_stream_is_bounded() {
    let control = CountedControlPlane::start(ClientLimits::default()).await;
    let client = DeltaStream::open(control.address, DELTA).await.expect("a stream");
    for i in 0..8 {
        let mut request = delta_request::<Cds>(&["*"], &[], "");
        request.resource_names_subscribe.extend(names(i * 10_000, 10_000));
        request.initial_resource_versions = versions(names(i * 10_000, 10_000));
        client.send(request);
    }
    client.send(delta_request::<Cds>(&["last"], &[], ""));
    control.subscribed::<Cds>("last").await;
    let held = control.allocated_bytes();
    let maximum = 8 * ClientLimits::default().total_name_bytes.cast_signed() as i64;
    assert!(held < maximum, "{held} bytes are retained, {maximum} are allowed");
}

/// Names that are subscribed and unsubscribed again retain no memory.
#[tokio::test]
async fn ended_subscriptions_retain_no_memory() {
    let control = CountedControlPlane::start(ClientLimits::default()).await;
    let client = DeltaStream::open(control.address, DELTA).await.expect("a stream");
    for i in 0..100 {
        let subscribe = names(i * 1_000, 1_000);
        let mut request = delta_request::<Eds>(&[], &[], "");
        request.resource_names_subscribe.clone_from(&subscribe);
        client.send(request);
        let mut request = delta_request::<Eds>(&[], &[], "");
        request.resource_names_unsubscribe = subscribe;
        client.send(request);
        tokio::task::yield_now().await;
    }
    let state_of_the_world = SotwStream::open(control.address, SOTW).await.expect("a stream");
    for i in 0..100 {
        state_of_the_world.send(sotw_request::<Eds>(&names(i * 1_000, 1_000)));
    }
    state_of_the_world.send(sotw_request::<Eds>(&["b".to_owned()]));
    control.subscribed::<Eds>("b").await;
    client.send(delta_request::<Eds>(&["last"], &[], ""));
    control.subscribed::<Eds>("last").await;
    let held = control.allocated_bytes();
    assert!(held < 2 << 20, "{held} bytes are retained");
}

/// If a client ACKs responses that it has not read, by guessing their nonces, the control plane queues at
/// most two batches.
#[tokio::test]
async fn guessed_nonces_do_not_fill_the_queue() {
    let control = CountedControlPlane::start(ClientLimits::default()).await;
    // Six clusters with about 130 KB of endpoints each. Each request subscribes to five of them, so that the
    // responses differ.
    let mesh = (0..6).fold(Mesh::new(), |mesh, i| {
        let many = (0..5_000).map(|j| Endpoint::at(([10, i, (j / 250) as u8, (j % 250) as u8], 1).into()));
        mesh.cluster(&format!("c{i}"), Cluster::new().endpoints(many))
    });
    control.cache.set_mesh(&mesh);
    let client = DeltaStream::open(control.address, DELTA).await.expect("a stream");
    let all = ["c0", "c1", "c2", "c3", "c4", "c5"];
    for i in 0..300_usize {
        let but_one: Vec<_> = all.into_iter().filter(|name| *name != all[i % 6]).collect();
        client.send(delta_request::<Eds>(&but_one, &[], &i.to_string()));
        tokio::task::yield_now().await;
    }
    client.send(delta_request::<Eds>(&["last"], &[], ""));
    control.subscribed::<Eds>("last").await;
    let held = control.allocated_bytes();
    assert!(held < 16 << 20, "{held} bytes are retained");
    drop(client);
}

/// A stream that exceeds a limit ends with a status that names the limit. Other streams are not affected.
#[tokio::test]
async fn limits_are_named() {
    let mut limits = ClientLimits::default();
    limits.names = 10;
    limits.name_bytes = 50;
    limits.request_bytes = 10_000;
    let control = CountedControlPlane::start(limits).await;
    let name = |length: usize| "n".repeat(length);
    let few: Vec<_> = (0..11).map(|i| i.to_string()).collect();
    let node = |id: &str, user_agent: &str| {
        let node = Node { id: id.into(), user_agent_name: user_agent.into(), ..Node::default() };
        DiscoveryRequest { node: Some(node), ..sotw_request::<Cds>(&[]) }
    };
    for (request, text) in [
        (sotw_request::<Cds>(&few), "a stream has at most 10 resource names"),
        (sotw_request::<Cds>(&[name(51)]), "a resource name has at most 50 bytes"),
        (sotw_request::<Cds>(&[name(10_001)]), "a request has at most 10000 bytes"),
        (node(&name(1_025), ""), "a node id has at most 1024 bytes"),
        (node("", &name(1_025)), "a user agent has at most 1024 bytes"),
        (
            DiscoveryRequest { type_url: name(257), ..sotw_request::<Cds>(&[]) },
            "a type URL has at most 256 bytes",
        ),
    ] {
        let mut client = SotwStream::open(control.address, SOTW).await.expect("a stream");
        client.send(request);
        assert_eq!(status_of(&mut client).await, exhausted(text));
    }
    for (request, text) in [
        (delta_request::<Cds>(&[&name(51)], &[], ""), "a resource name has at most 50 bytes"),
        (delta_request::<Cds>(&[], &[&name(51)], ""), "a resource name has at most 50 bytes"),
        (
            DeltaDiscoveryRequest {
                initial_resource_versions: versions(few.clone()),
                ..delta_request::<Cds>(&["*"], &[], "")
            },
            "a stream has at most 10 resource names",
        ),
    ] {
        let mut client = DeltaStream::open(control.address, DELTA).await.expect("a stream");
        client.send(request);
        assert_eq!(status_of(&mut client).await, exhausted(text));
    }
    control.serves_others().await;
}

/// The error message of a NACK is truncated before it is stored.
#[tokio::test]
async fn nack_errors_are_truncated() {
    let control = CountedControlPlane::start(ClientLimits::default()).await;
    let mut client = SotwStream::open(control.address, SOTW).await.expect("a stream");
    let requested = ["a".to_owned()];
    client.send(sotw_request::<Eds>(&requested));
    let response = client.message().await.expect("open").expect("a response");
    let error = rpc::Status { code: 3, message: "x".repeat(1 << 20), ..rpc::Status::default() };
    client.send(DiscoveryRequest {
        response_nonce: response.nonce,
        error_detail: Some(error),
        ..sotw_request::<Eds>(&requested)
    });
    let nack = soon("a NACK", control.cache.wait_nacked::<Eds>()).await;
    assert_eq!(nack.error.len(), 4_096 + 3);
}

/// Counts in load reports saturate at the maximum. Names in load reports have a maximum length.
#[tokio::test]
async fn load_reports_saturate() {
    let control = CountedControlPlane::start(ClientLimits::default()).await;
    let mut client = LrsStream::open(control.address, LRS).await.expect("a stream");
    let report = |cluster: &str| LoadStatsRequest {
        node: Some(Node { id: "n".to_owned(), ..Node::default() }),
        cluster_stats: vec![ClusterStats {
            cluster_name: cluster.to_owned(),
            upstream_locality_stats: vec![UpstreamLocalityStats {
                total_issued_requests: u64::MAX,
                ..UpstreamLocalityStats::default()
            }],
            dropped_requests: vec![
                DroppedRequests { category: "x".to_owned(), dropped_count: u64::MAX },
                DroppedRequests { category: "y".to_owned(), dropped_count: u64::MAX },
            ],
            total_dropped_requests: u64::MAX,
            ..ClusterStats::default()
        }],
    };
    client.send(report("c"));
    client.send(report("c"));
    client.send(report("done"));
    let is_done = |cache: &SnapshotCache| cache.load_stats().iter().any(|report| report.cluster == "done");
    soon("the reports", control.cache.wait_until(is_done)).await;
    let reports = control.cache.load_stats();
    assert!(reports.iter().all(|report| report.total.issued == u64::MAX), "{reports:?}");
    assert!(control.cache.drop_stats().iter().all(|report| report.total == u64::MAX));
    client.send(report(&"c".repeat(5_000)));
    assert_eq!(status_of(&mut client).await, exhausted("a cluster name has at most 4096 bytes"));
    control.serves_others().await;
}

/// The number of streams and connections is limited. Open ones continue to be served.
#[tokio::test]
async fn streams_and_connections_are_limited() {
    let mut limits = ClientLimits::default();
    limits.streams = 3;
    limits.connections = 2;
    let control = CountedControlPlane::start(limits).await;
    let address = Address::new(format!("http://{}", control.address)).expect("an address");
    let channel = soon("a connection", address.connect()).await.expect("a connection");
    let mut open = Vec::new();
    for _ in 0..2 {
        open.push(SotwStream::open_on(channel.clone(), SOTW).await.expect("a stream"));
    }
    let load = LrsStream::open_on(channel.clone(), LRS).await.expect("a stream");
    let refused = SotwStream::open_on(channel.clone(), SOTW).await.err().expect("a refusal");
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::ResourceExhausted, "this control plane has at most 3 open streams")
    );
    open[0].send(sotw_request::<Cds>(&["a".to_owned()]));
    let response = open[0].message().await.expect("an open stream");
    assert_eq!(response.expect("a response").resources.len(), 1);
    // A stream that ended makes room for another one.
    drop(load);
    soon("a free stream", async {
        while let Err(status) = SotwStream::open_on(channel.clone(), SOTW).await {
            assert_eq!(status.code(), Code::ResourceExhausted);
            tokio::task::yield_now().await;
        }
    })
    .await;

    let _second = TcpStream::connect(control.address).await.expect("a connection");
    let mut third = TcpStream::connect(control.address).await.expect("a connection");
    let read = soon("the end of the third connection", third.read(&mut [0; 64])).await;
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    open[0].send(sotw_request::<Eds>(&["a".to_owned()]));
    let response = open[0].message().await.expect("an open stream");
    assert_eq!(response.expect("a response").resources.len(), 1);
}
