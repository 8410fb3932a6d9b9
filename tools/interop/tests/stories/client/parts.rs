//! Helpers of the client tests: servers that record calls, and the program as a process.

use std::net::SocketAddr;
use std::pin::Pin;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel_control::{ControlPlane, Mesh, SnapshotCache};
use interop::proto::testing::client_configure_request::Metadata;
use interop::proto::testing::load_balancer_stats_service_client::LoadBalancerStatsServiceClient;
use interop::proto::testing::test_service_server::{TestService, TestServiceServer};
use interop::proto::testing::xds_update_client_configure_service_client::XdsUpdateClientConfigureServiceClient;
use interop::proto::testing::{
    ClientConfigureRequest, Empty, LoadBalancerAccumulatedStatsRequest, LoadBalancerAccumulatedStatsResponse,
    LoadBalancerStatsRequest, LoadBalancerStatsResponse, SimpleRequest, SimpleResponse,
    StreamingInputCallRequest, StreamingInputCallResponse, StreamingOutputCallRequest,
    StreamingOutputCallResponse,
};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status, Streaming};

use crate::programs::terminate;

/// Awaits a future, and panics after 30 seconds.
pub(crate) async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), work).await.expect("it takes too long")
}

pub(crate) fn entry(kind: i32, key: &str, value: &str) -> Metadata {
    Metadata { r#type: kind, key: key.to_owned(), value: value.to_owned() }
}

/// Test server that implements the part of `rpc-behavior` that the tests need.
pub(crate) struct Backend {
    pub(crate) address: SocketAddr,
    calls: watch::Receiver<Vec<ReceivedCall>>,
}

/// Call as a server received it.
#[derive(Clone)]
pub(crate) struct ReceivedCall {
    pub(crate) method: &'static str,
    metadata: MetadataMap,
    pub(crate) peer: Option<SocketAddr>,
}

impl Backend {
    pub(crate) async fn start(name: &'static str) -> Backend {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, calls) = watch::channel(Vec::new());
        let service = TestServiceServer::new(Answering { name, calls: sender });
        tokio::spawn(
            Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener)),
        );
        Backend { address, calls }
    }

    /// Returns the flag for a target without a control plane.
    pub(crate) fn target(&self) -> String {
        format!("--server=ipv4:{}", self.address)
    }

    /// Returns the first call from here on.
    pub(crate) async fn next_call(&self) -> ReceivedCall {
        self.call_until(|_| true).await
    }

    /// Returns the first call from here on that satisfies the condition.
    pub(crate) async fn call_until(&self, is_so: impl Fn(&ReceivedCall) -> bool) -> ReceivedCall {
        let mut calls = self.calls.clone();
        let from = calls.borrow().len();
        let calls = within(calls.wait_for(|calls| calls[from..].iter().any(&is_so))).await.unwrap();
        calls[from..].iter().find(|seen| is_so(seen)).cloned().unwrap()
    }
}

impl ReceivedCall {
    pub(crate) fn values(&self, key: &str) -> Vec<String> {
        self.metadata.get_all(key).iter().map(|value| value.to_str().unwrap().to_owned()).collect()
    }

    /// Returns the call's `grpc-timeout` in seconds.
    pub(crate) fn timeout(&self) -> Option<f64> {
        let text = self.metadata.get("grpc-timeout")?.to_str().unwrap();
        let (number, unit) = text.split_at(text.len() - 1);
        let seconds = match unit {
            "H" => 3600.0,
            "M" => 60.0,
            "S" => 1.0,
            "m" => 1e-3,
            "u" => 1e-6,
            "n" => 1e-9,
            _ => panic!("no unit: {text}"),
        };
        Some(number.parse::<f64>().unwrap() * seconds)
    }
}

struct Answering {
    name: &'static str,
    calls: watch::Sender<Vec<ReceivedCall>>,
}

impl Answering {
    async fn see<Q, A>(
        &self,
        method: &'static str,
        request: &Request<Q>,
        answer: A,
    ) -> Result<Response<A>, Status> {
        let (metadata, peer) = (request.metadata().clone(), request.remote_addr());
        let behavior = metadata.get("rpc-behavior").map(|value| value.to_str().unwrap().to_owned());
        self.calls.send_modify(|calls| calls.push(ReceivedCall { method, metadata, peer }));
        match behavior.as_deref() {
            Some("keep-open") => std::future::pending().await,
            Some(behavior) if behavior.starts_with("error-code-") => {
                let code: i32 = behavior["error-code-".len()..].parse().unwrap();
                Err(Status::new(code.into(), "as asked"))
            }
            _ => {
                let mut response = Response::new(answer);
                response.metadata_mut().insert("hostname", self.name.parse().unwrap());
                Ok(response)
            }
        }
    }
}

type Messages = Pin<Box<dyn Stream<Item = Result<StreamingOutputCallResponse, Status>> + Send>>;

#[tonic::async_trait]
impl TestService for Answering {
    type StreamingOutputCallStream = Messages;
    type FullDuplexCallStream = Messages;

    async fn empty_call(&self, request: Request<Empty>) -> Result<Response<Empty>, Status> {
        self.see("EmptyCall", &request, Empty {}).await
    }

    async fn unary_call(&self, request: Request<SimpleRequest>) -> Result<Response<SimpleResponse>, Status> {
        self.see("UnaryCall", &request, SimpleResponse::default()).await
    }

    async fn streaming_output_call(
        &self,
        _: Request<StreamingOutputCallRequest>,
    ) -> Result<Response<Messages>, Status> {
        Err(Status::unimplemented("no story needs it"))
    }

    async fn streaming_input_call(
        &self,
        _: Request<Streaming<StreamingInputCallRequest>>,
    ) -> Result<Response<StreamingInputCallResponse>, Status> {
        Err(Status::unimplemented("no story needs it"))
    }

    async fn full_duplex_call(
        &self,
        _: Request<Streaming<StreamingOutputCallRequest>>,
    ) -> Result<Response<Messages>, Status> {
        Err(Status::unimplemented("no story needs it"))
    }
}

/// Control plane that closes every connection until it is opened.
pub(crate) struct Gated {
    pub(crate) address: SocketAddr,
    open: Arc<AtomicBool>,
}

impl Gated {
    pub(crate) async fn start(mesh: &Mesh) -> Gated {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let open = Arc::<AtomicBool>::default();
        let plane = SnapshotCache::new();
        plane.set_mesh(mesh);
        let is_open = open.clone();
        let incoming = TcpListenerStream::new(listener).filter(move |_| is_open.load(Ordering::Relaxed));
        tokio::spawn(Server::builder().add_service(plane.service()).serve_with_incoming(incoming));
        Gated { address, open }
    }

    pub(crate) fn open(&self) {
        self.open.store(true, Ordering::Relaxed);
    }
}

/// Returns a bootstrap with these control planes, in order of preference.
pub(crate) fn bootstrap(servers: &[SocketAddr]) -> String {
    let server = |address: &SocketAddr| {
        json!({
            "server_uri": address.to_string(),
            "channel_creds": [{ "type": "insecure" }],
            "server_features": ["xds_v3"],
        })
    };
    let servers: Vec<_> = servers.iter().map(server).collect();
    json!({ "node": { "id": "interop" }, "xds_servers": servers }).to_string()
}

/// Running client program. It is killed on drop.
pub(crate) struct Program {
    child: Child,
    stdout: BufReader<ChildStdout>,
    port: u16,
}

/// Exit code and output of a program.
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Program {
    /// Starts the program and waits until it listens.
    pub(crate) async fn start(flags: &[&str], control: Option<&ControlPlane>) -> Program {
        let bootstrap = control.map(|control| control.bootstrap("interop"));
        Program::started(command(flags, bootstrap.as_deref())).await
    }

    /// The same, with this bootstrap.
    pub(crate) async fn with_bootstrap(flags: &[&str], bootstrap: &str) -> Program {
        Program::started(command(flags, Some(bootstrap))).await
    }

    async fn started(mut command: Command) -> Program {
        let mut child = command.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        within(stdout.read_line(&mut line)).await.unwrap();
        let port = line.trim().strip_prefix("listening on ").and_then(|port| port.parse().ok());
        Program { child, stdout, port: port.unwrap_or_else(|| panic!("it said {line:?}")) }
    }

    /// Runs the program to completion.
    pub(crate) async fn run(flags: &[&str]) -> Ended {
        let output = within(command(flags, None).output()).await.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ended { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    pub(crate) fn channel(&self) -> Channel {
        Channel::from_shared(format!("http://127.0.0.1:{}", self.port)).unwrap().connect_lazy()
    }

    pub(crate) async fn stats(
        &self,
        num_rpcs: i32,
        timeout_sec: i32,
        keys: &[&str],
    ) -> LoadBalancerStatsResponse {
        let metadata_keys = keys.iter().map(|key| (*key).to_owned()).collect();
        let request = LoadBalancerStatsRequest { num_rpcs, timeout_sec, metadata_keys };
        let mut client = LoadBalancerStatsServiceClient::new(self.channel());
        within(client.get_client_stats(request)).await.unwrap().into_inner()
    }

    /// Returns the first block of calls that satisfies the condition.
    pub(crate) async fn stats_until(
        &self,
        num_rpcs: i32,
        is_so: impl Fn(&LoadBalancerStatsResponse) -> bool,
    ) -> LoadBalancerStatsResponse {
        within(async {
            loop {
                let told = self.stats(num_rpcs, 30, &[]).await;
                if is_so(&told) {
                    return told;
                }
            }
        })
        .await
    }

    pub(crate) async fn accumulated(&self) -> LoadBalancerAccumulatedStatsResponse {
        let mut client = LoadBalancerStatsServiceClient::new(self.channel());
        let request = LoadBalancerAccumulatedStatsRequest {};
        within(client.get_client_accumulated_stats(request)).await.unwrap().into_inner()
    }

    pub(crate) async fn configure(
        &self,
        types: &[i32],
        metadata: &[Metadata],
        timeout_sec: i32,
    ) -> Result<(), Status> {
        let request =
            ClientConfigureRequest { types: types.to_vec(), metadata: metadata.to_vec(), timeout_sec };
        let mut client = XdsUpdateClientConfigureServiceClient::new(self.channel());
        within(client.configure(request)).await.map(drop)
    }

    /// Sends SIGTERM and waits for the exit.
    pub(crate) async fn terminate(self) -> Ended {
        terminate(&self.child).await;
        self.end().await
    }

    /// Waits for the exit.
    pub(crate) async fn end(mut self) -> Ended {
        let mut ended = Ended { code: None, stdout: String::new(), stderr: String::new() };
        let mut stderr = self.child.stderr.take().unwrap();
        let read = async {
            tokio::try_join!(
                self.stdout.read_to_string(&mut ended.stdout),
                stderr.read_to_string(&mut ended.stderr)
            )
        };
        within(read).await.unwrap();
        ended.code = within(self.child.wait()).await.unwrap().code();
        ended
    }
}

fn command(flags: &[&str], bootstrap: Option<&str>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xds_interop_client"));
    command.arg("--stats_port=0").args(flags).stdin(Stdio::null());
    command.env_remove("GRPC_XDS_BOOTSTRAP").env_remove("GRPC_XDS_BOOTSTRAP_CONFIG");
    if let Some(bootstrap) = bootstrap {
        command.env("GRPC_XDS_BOOTSTRAP_CONFIG", bootstrap);
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}
