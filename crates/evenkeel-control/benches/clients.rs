//! Cost of a client for the control plane: heap, time and CPU, with a thousand clients and 10,000 endpoints.
//!
//! `cargo bench -p evenkeel-control`. The control plane runs on a thread of its own, whose allocations and
//! CPU time are counted. The clients run on another thread, each with its own connection over loopback. Each
//! client subscribes to all clusters and endpoints in the state-of-the-world variant. It ACKs every response
//! and reads only its type and nonce, so that most of the time is spent in the server and the kernel. Two
//! shapes are measured. With one cluster, all endpoints are one resource, which is sent whole after any
//! change. The other shape has a hundred clusters with a hundred endpoints each.
//!
//! *heap*: growth of the live bytes of the server's thread, without the served resources. *total*: time from
//! the change until the last client has ACKed. *cpu*: CPU time of the server's thread (Linux). *bytes*:
//! response bytes per client. Ratios are relative to the first line, the same clients with a mesh of one
//! endpoint.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Buf as _;
use evenkeel_control::{Cluster, ControlPlane, Endpoint, Mesh, SnapshotCache};
use evenkeel_proto::envoy::config::cluster::v3::Cluster as Cds;
use evenkeel_proto::envoy::config::core::v3::Node;
use evenkeel_proto::envoy::config::endpoint::v3::ClusterLoadAssignment as Eds;
use evenkeel_proto::envoy::service::discovery::v3::DiscoveryRequest;
use evenkeel_proto::prost::encoding::{self, DecodeContext};
use evenkeel_proto::prost::{DecodeError, Name};
use testkit::Counting;
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::ProstCodec;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

type Error = Box<dyn std::error::Error + Send + Sync>;

const CLIENTS: usize = 1_000;
const ENDPOINTS: usize = 10_000;

fn main() -> Result<(), Error> {
    println!("{CLIENTS} clients");
    println!(
        "                      heap              total               cpu       bytes   (per client; total: of all clients)"
    );
    let mut first = None;
    for (name, clusters, endpoints) in
        [("1 endpoint", 1, 1), ("1 cluster of 10,000", 1, ENDPOINTS), ("100 clusters of 100", 100, ENDPOINTS)]
    {
        let server = BenchServer::start()?;
        server.cache.set_mesh(&mesh(clusters, endpoints, 1, 1));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let clients = BenchClients::default();
        println!("{name}");
        let mut expected = 0;
        for (step, all, one) in [("connect", 1, 1), ("change all", 2, 2), ("change one", 2, 3)] {
            let (end, phase) = server.phase()?;
            let before = clients.bytes.load(Ordering::Relaxed);
            let began = Instant::now();
            if step == "connect" {
                for _ in 0..CLIENTS {
                    runtime.block_on(clients.join(&server.address, clusters))?;
                }
            } else {
                server.cache.set_mesh(&mesh(clusters, endpoints, all, one));
            }
            // In state of the world a change of one endpoint resends one resource.
            expected += CLIENTS * if step == "change one" { 1 } else { clusters };
            runtime.block_on(clients.wait_all_sent(&server.cache, expected as u64));
            let took = began.elapsed();
            let _ = end.send(());
            let cost = phase.recv()?;
            let row = CostRow {
                heap: cost.heap as f64 / CLIENTS as f64,
                took,
                cpu: cost.cpu.as_secs_f64() * 1e6 / CLIENTS as f64,
                bytes: (clients.bytes.load(Ordering::Relaxed) - before) as f64 / CLIENTS as f64,
            };
            let base = first.get_or_insert(row);
            row.print(step, base);
        }
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct CostRow {
    heap: f64,
    took: Duration,
    cpu: f64,
    bytes: f64,
}

impl CostRow {
    fn print(&self, step: &str, base: &CostRow) {
        let took = self.took.as_secs_f64() * 1e3;
        println!(
            "  {step:12} {:9.0} B {took:8.0} ms {:5.1}x {:7.0} us {:5.1}x {:9.0} B",
            self.heap,
            self.took.as_secs_f64() / base.took.as_secs_f64(),
            self.cpu,
            self.cpu / base.cpu,
            self.bytes
        );
    }
}

/// Mesh with these endpoints spread over the clusters. All endpoints have one weight except the first.
fn mesh(clusters: usize, endpoints: usize, all: u32, one: u32) -> Mesh {
    let per_cluster = endpoints / clusters;
    (0..clusters).fold(Mesh::new(), |mesh, i| {
        let endpoints = (0..per_cluster).map(|j| {
            let number = i * per_cluster + j;
            let address = ([10, 0, (number / 250) as u8, (number % 250) as u8], 50_051).into();
            Endpoint::at(address).weight(if number == 0 { one } else { all })
        });
        mesh.cluster(&format!("cluster-{i}"), Cluster::new().endpoints(endpoints))
    })
}

/// Control plane on a thread of its own, whose cost is counted during a phase.
struct BenchServer {
    cache: SnapshotCache,
    address: String,
    phases: mpsc::Sender<(oneshot::Receiver<()>, mpsc::Sender<ServerCost>)>,
}

struct ServerCost {
    heap: i64,
    cpu: Duration,
}

impl BenchServer {
    fn start() -> Result<BenchServer, Error> {
        let (started, is_started) = mpsc::channel();
        let (phases, requested) = mpsc::channel::<(oneshot::Receiver<()>, mpsc::Sender<ServerCost>)>();
        thread::spawn(move || -> Result<(), Error> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let control = runtime.block_on(ControlPlane::builder().serve())?;
            started.send((control.cache().clone(), control.address().to_string()))?;
            for (end, cost) in requested {
                let before = cpu();
                let (allocated, _) = Counting::during(|| runtime.block_on(end));
                cost.send(ServerCost { heap: allocated.net_bytes, cpu: cpu().saturating_sub(before) })?;
            }
            Ok(())
        });
        let (cache, address) = is_started.recv()?;
        Ok(BenchServer { cache, address, phases })
    }

    fn phase(&self) -> Result<(oneshot::Sender<()>, mpsc::Receiver<ServerCost>), Error> {
        let (end, ends) = oneshot::channel();
        let (cost, costs) = mpsc::channel();
        self.phases.send((ends, cost)).map_err(|_| "the server's thread ended")?;
        Ok((end, costs))
    }
}

/// CPU time of this thread; zero if the system does not report it.
fn cpu() -> Duration {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = stat.split_whitespace().next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or_default())
}

#[derive(Default)]
struct BenchClients {
    /// Number of EDS resources that clients received.
    received: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
    changed: Arc<tokio::sync::Notify>,
}

impl BenchClients {
    /// Connects a client that subscribes to all resources and ACKs every response.
    async fn join(&self, address: &str, clusters: usize) -> Result<(), Error> {
        let channel = tonic::transport::Endpoint::new(format!("http://{address}"))?.connect().await?;
        let mut client = tonic::client::Grpc::new(channel);
        client.ready().await?;
        let (requests, stream) = unbounded_channel();
        let discovery_request = |type_url: String, names: Vec<String>| DiscoveryRequest {
            node: Some(Node { id: "bench".to_owned(), ..Node::default() }),
            type_url,
            resource_names: names,
            ..DiscoveryRequest::default()
        };
        let names: Vec<_> = (0..clusters).map(|i| format!("cluster-{i}")).collect();
        requests.send(discovery_request(Cds::type_url(), Vec::new()))?;
        requests.send(discovery_request(Eds::type_url(), names.clone()))?;
        let path = http::uri::PathAndQuery::from_static(
            "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources",
        );
        let request = tonic::Request::new(UnboundedReceiverStream::new(stream));
        let mut responses = client.streaming(request, path, SummaryDecoder).await?.into_inner();
        let (received, bytes, changed) =
            (Arc::clone(&self.received), Arc::clone(&self.bytes), Arc::clone(&self.changed));
        tokio::spawn(async move {
            while let Ok(Some(summary)) = responses.message().await {
                bytes.fetch_add(summary.bytes as u64, Ordering::Relaxed);
                let is_eds = summary.type_url == Eds::type_url();
                let names = if is_eds { names.clone() } else { Vec::new() };
                let ack = DiscoveryRequest {
                    response_nonce: summary.nonce,
                    ..discovery_request(summary.type_url, names)
                };
                if requests.send(ack).is_err() {
                    return;
                }
                if is_eds {
                    received.fetch_add(summary.resources, Ordering::Relaxed);
                    changed.notify_one();
                }
            }
        });
        Ok(())
    }

    /// Waits until this number of resources was received and all are ACKed.
    async fn wait_all_sent(&self, cache: &SnapshotCache, expected: u64) {
        while self.received.load(Ordering::Relaxed) < expected {
            self.changed.notified().await;
        }
        cache.wait_acked::<Eds>().await;
    }
}

/// Fields of a response that a client reads, and its size.
struct ResponseSummary {
    type_url: String,
    nonce: String,
    resources: u64,
    bytes: usize,
}

/// Decoder that reads the type and the nonce of a response and skips the rest.
#[derive(Clone, Copy, Default)]
struct SummaryDecoder;

impl Codec for SummaryDecoder {
    type Encode = DiscoveryRequest;
    type Decode = ResponseSummary;
    type Encoder = <ProstCodec<DiscoveryRequest, DiscoveryRequest> as Codec>::Encoder;
    type Decoder = SummaryDecoder;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<DiscoveryRequest, DiscoveryRequest>::default().encoder()
    }

    fn decoder(&mut self) -> SummaryDecoder {
        SummaryDecoder
    }
}

impl Decoder for SummaryDecoder {
    type Item = ResponseSummary;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<ResponseSummary>, Status> {
        decode_summary(from).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}

fn decode_summary(from: &mut DecodeBuf<'_>) -> Result<ResponseSummary, DecodeError> {
    let bytes = from.remaining();
    let mut summary = ResponseSummary { type_url: String::new(), nonce: String::new(), resources: 0, bytes };
    while from.has_remaining() {
        let (tag, wire_type) = encoding::decode_key(from)?;
        let context = DecodeContext::default();
        match tag {
            4 => encoding::string::merge(wire_type, &mut summary.type_url, from, context)?,
            5 => encoding::string::merge(wire_type, &mut summary.nonce, from, context)?,
            _ => {
                summary.resources += u64::from(tag == 2);
                encoding::skip_field(wire_type, tag, from, context)?;
            }
        }
    }
    Ok(summary)
}
