//! Program `xds_interop_server` as drivers and clients use it, over real sockets.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::programs::{Server, channel, end_of, soon};
use evenkeel_proto::envoy::service::status::v3::ClientStatusRequest;
use interop::proto::channelz as wire;
use interop::proto::channelz::channelz_client::ChannelzClient;
use interop::proto::csds::client_status_discovery_service_client::ClientStatusDiscoveryServiceClient;
use interop::proto::health::health_check_response::ServingStatus;
use interop::proto::health::health_client::HealthClient;
use interop::proto::health::{HealthCheckRequest, HealthCheckResponse};
use interop::proto::testing::hook_service_client::HookServiceClient;
use interop::proto::testing::test_service_client::TestServiceClient;
use interop::proto::testing::xds_update_health_service_client::XdsUpdateHealthServiceClient;
use interop::proto::testing::{
    BoolValue, EchoStatus, Empty, HookRequest, Payload, ResponseParameters, SetReturnStatusRequest,
    SimpleRequest, StreamingInputCallRequest, StreamingOutputCallRequest,
};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

const PROGRAM: &str = env!("CARGO_BIN_EXE_xds_interop_server");

/// Returns a request with these behaviours, each in its own header.
fn asking<T>(message: T, behaviors: &[&str]) -> Request<T> {
    let mut request = Request::new(message);
    for behavior in behaviors {
        request.metadata_mut().append("rpc-behavior", behavior.parse().expect("a header's value"));
    }
    request
}

fn host<T>(response: &Response<T>) -> &str {
    response.metadata().get("hostname").and_then(|name| name.to_str().ok()).expect("the name of the server")
}

fn code<T>(outcome: &Result<T, Status>) -> Code {
    outcome.as_ref().map_or_else(Status::code, |_| Code::Ok)
}

fn part(size: i32) -> ResponseParameters {
    ResponseParameters { size, ..ResponseParameters::default() }
}

fn asking_for(parts: &[i32]) -> StreamingOutputCallRequest {
    let response_parameters = parts.iter().copied().map(part).collect();
    StreamingOutputCallRequest { response_parameters, ..StreamingOutputCallRequest::default() }
}

fn failing(code: i32, message: &str) -> EchoStatus {
    EchoStatus { code, message: message.to_owned() }
}

#[tokio::test]
async fn a_response_has_the_name_of_the_server() {
    // Flags of other servers are ignored.
    let server =
        Server::start(&["--server_id=red", "--host_name_override=a-1", "--enable_csm_observability=true"]);
    let server = server.await;
    let mut client = TestServiceClient::new(server.channel());
    let empty = soon(client.empty_call(Empty {})).await.unwrap();
    assert_eq!(host(&empty), "a-1");
    let request = SimpleRequest { response_size: 7, fill_server_id: true, ..SimpleRequest::default() };
    let unary = soon(client.unary_call(request)).await.unwrap();
    assert_eq!(host(&unary), "a-1");
    let unary = unary.into_inner();
    assert_eq!((unary.server_id.as_str(), unary.hostname.as_str()), ("red", "a-1"));
    assert_eq!(unary.payload, Some(Payload { r#type: 0, body: vec![0; 7] }));
    assert_eq!(server.end().await, Some(0));

    let server = Server::start(&["--maintenance_port=0"]).await;
    let unary =
        soon(TestServiceClient::new(server.channel()).unary_call(SimpleRequest::default())).await.unwrap();
    assert!(!host(&unary).is_empty());
    assert_eq!((unary.get_ref().hostname.as_str(), &unary.get_ref().payload), (host(&unary), &None));
}

#[tokio::test]
async fn both_calls_behave_as_they_are_asked() {
    let server = Server::start(&["--host_name_override=here"]).await;
    let client = TestServiceClient::new(server.channel());
    let both = async |behaviors: &[&str]| {
        let mut client = client.clone();
        let empty = soon(client.empty_call(asking(Empty {}, behaviors))).await;
        let unary = soon(client.unary_call(asking(SimpleRequest::default(), behaviors))).await;
        assert_eq!(code(&empty), code(&unary), "{behaviors:?}");
        unary.map(drop)
    };
    assert_eq!(code(&both(&["error-code-9"]).await), Code::FailedPrecondition);
    assert_eq!(code(&both(&["sleep-0, error-code-9"]).await), Code::FailedPrecondition);
    assert_eq!(code(&both(&["sleep-0", "error-code-9"]).await), Code::FailedPrecondition);
    assert_eq!(code(&both(&["hostname=there error-code-9"]).await), Code::Ok);
    assert_eq!(code(&both(&["hostname=here error-code-9"]).await), Code::FailedPrecondition);
    assert_eq!(code(&both(&["succeed-on-retry-attempt-0,error-code-9"]).await), Code::Ok);
    assert_eq!(code(&both(&["succeed-on-retry-attempt-1,error-code-9"]).await), Code::FailedPrecondition);
    let told = both(&["sleep-long"]).await.unwrap_err();
    assert_eq!(told.code(), Code::InvalidArgument);
    assert!(told.message().contains("expected sleep-SECONDS"), "{told}");
}

#[tokio::test]
async fn calls_that_stay_open_hold_up_neither_others_nor_the_end() {
    let server = Server::start(&[]).await;
    let client = TestServiceClient::new(server.channel());
    let mut open = Vec::new();
    // More streams than HTTP/2 servers often allow on one connection.
    for behavior in ["keep-open", "sleep-3600"].repeat(150) {
        let (mut empty, mut unary) = (client.clone(), client.clone());
        open.push(tokio::spawn(
            async move { empty.empty_call(asking(Empty {}, &[behavior])).await.map(drop) },
        ));
        let request = asking(SimpleRequest::default(), &[behavior]);
        open.push(tokio::spawn(async move { unary.unary_call(request).await.map(drop) }));
    }
    // Served on the same connection, while the others are open.
    for _ in 0..10 {
        soon(client.clone().empty_call(Empty {})).await.unwrap();
    }
    assert!(open.iter().all(|call| !call.is_finished()));
    assert_eq!(server.end().await, Some(0));
    for call in open {
        assert_ne!(code(&soon(call).await.unwrap()), Code::Ok);
    }
}

#[tokio::test]
async fn a_request_sets_the_status_of_its_call() {
    let server = Server::start(&[]).await;
    let mut client = TestServiceClient::new(server.channel());
    let request =
        SimpleRequest { response_status: Some(failing(10, "test \u{263a}")), ..SimpleRequest::default() };
    let status = soon(client.unary_call(request)).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Aborted, "test \u{263a}"));
    for size in [-1, i32::MAX] {
        let request = SimpleRequest { response_size: size, ..SimpleRequest::default() };
        let status = soon(client.unary_call(request)).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    }
    let request = SimpleRequest { response_type: 1, ..SimpleRequest::default() };
    assert_eq!(code(&soon(client.unary_call(request)).await), Code::InvalidArgument);
}

#[tokio::test]
async fn streams_send_the_requested_responses() {
    let server = Server::start(&["--host_name_override=here"]).await;
    let mut client = TestServiceClient::new(server.channel());

    let mut request = asking_for(&[3, 0]);
    let filled = ResponseParameters { fill_peer_socket_address: Some(BoolValue { value: true }), ..part(5) };
    request.response_parameters.push(ResponseParameters { interval_us: 1000, ..filled });
    let response = soon(client.streaming_output_call(request)).await.unwrap();
    assert_eq!(host(&response), "here");
    let mut answers = response.into_inner();
    let mut sizes = Vec::new();
    let mut peers = Vec::new();
    while let Some(answer) = soon(answers.message()).await.unwrap() {
        sizes.push(answer.payload.unwrap().body.len());
        peers.push(answer.peer_socket_address);
    }
    assert_eq!(sizes, [3, 0, 5]);
    assert_eq!(peers[..2], ["", ""]);
    assert!(peers[2].starts_with("127.0.0.1:"), "{peers:?}");

    let bodies = [27_182, 8, 1_828, 45_904].map(|size| Payload { r#type: 0, body: vec![0; size] });
    let requests = bodies.map(|payload| StreamingInputCallRequest { payload: Some(payload) });
    let response = soon(client.streaming_input_call(tokio_stream::iter(requests))).await.unwrap();
    assert_eq!(host(&response), "here");
    assert_eq!(response.into_inner().aggregated_payload_size, 74_922);
}

#[tokio::test]
async fn a_conversation_goes_request_by_request() {
    let server = Server::start(&["--host_name_override=here"]).await;
    let mut client = TestServiceClient::new(server.channel());
    let (requests, received) = mpsc::channel(1);
    let response = soon(client.full_duplex_call(ReceiverStream::new(received))).await.unwrap();
    assert_eq!(host(&response), "here");
    let mut answers = response.into_inner();
    for size in [31_415, 9] {
        requests.send(asking_for(&[size])).await.unwrap();
        let answer = soon(answers.message()).await.unwrap().expect("an answer");
        assert_eq!(answer.payload.unwrap().body.len(), size as usize);
    }
    let last = StreamingOutputCallRequest { response_status: Some(failing(2, "enough")), ..asking_for(&[1]) };
    requests.send(last).await.unwrap();
    let status = soon(answers.message()).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unknown, "enough"));

    let none = soon(client.full_duplex_call(tokio_stream::empty())).await.unwrap();
    assert_eq!(soon(none.into_inner().message()).await.unwrap(), None);
}

#[tokio::test]
async fn its_health_is_set_by_a_driver() {
    let server = Server::start(&[]).await;
    let mut health = HealthClient::new(server.channel());
    let mut update = XdsUpdateHealthServiceClient::new(server.channel());
    let asked = |service: &str| HealthCheckRequest { service: service.to_owned() };
    let answer = |status: ServingStatus| HealthCheckResponse { status: status.into() };
    let services = ["", "grpc.testing.TestService", "grpc.testing.XdsUpdateHealthService"];

    let mut watches = Vec::new();
    for service in services {
        let checked = soon(health.check(asked(service))).await.unwrap().into_inner();
        assert_eq!(checked, answer(ServingStatus::Serving), "{service}");
        watches.push(soon(health.watch(asked(service))).await.unwrap().into_inner());
    }
    assert_eq!(code(&soon(health.check(asked("other"))).await), Code::NotFound);
    let mut unknown = soon(health.watch(asked("other"))).await.unwrap().into_inner();
    assert_eq!(soon(unknown.message()).await.unwrap(), Some(answer(ServingStatus::ServiceUnknown)));

    for watch in &mut watches {
        assert_eq!(soon(watch.message()).await.unwrap(), Some(answer(ServingStatus::Serving)));
    }
    soon(update.set_not_serving(Empty {})).await.unwrap();
    for (service, watch) in services.into_iter().zip(&mut watches) {
        assert_eq!(soon(watch.message()).await.unwrap(), Some(answer(ServingStatus::NotServing)));
        let checked = soon(health.check(asked(service))).await.unwrap().into_inner();
        assert_eq!(checked, answer(ServingStatus::NotServing), "{service}");
    }
    // Setting the current status sends no update: the next message has another status.
    soon(update.set_not_serving(Empty {})).await.unwrap();
    soon(update.set_serving(Empty {})).await.unwrap();
    for watch in &mut watches {
        assert_eq!(soon(watch.message()).await.unwrap(), Some(answer(ServingStatus::Serving)));
    }
}

/// Calls `Hook` in a task.
fn hook(channel: &Channel) -> tokio::task::JoinHandle<Result<(), Status>> {
    let mut client = HookServiceClient::new(channel.clone());
    tokio::spawn(async move { client.hook(Empty {}).await.map(drop) })
}

#[tokio::test]
async fn a_hook_waits_for_its_status() {
    let server = Server::start(&[]).await;
    let channel = server.channel();
    let mut client = HookServiceClient::new(channel.clone());
    let waiting = [hook(&channel), hook(&channel)];
    let status = SetReturnStatusRequest { grpc_code_to_return: 7, grpc_status_description: "no".to_owned() };
    soon(client.set_return_status(status)).await.unwrap();
    for call in waiting.into_iter().chain([hook(&channel)]) {
        let status = soon(call).await.unwrap().unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::PermissionDenied, "no"));
    }
    soon(client.clear_return_status(Empty {})).await.unwrap();
    let waiting = hook(&channel);
    soon(client.set_return_status(SetReturnStatusRequest::default())).await.unwrap();
    soon(waiting).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_hook_server_is_started_completed_and_stopped() {
    const START: i32 = 1;
    const STOP: i32 = 2;
    const RETURN: i32 = 3;
    let mut server = Server::start(&[]).await;
    let update = XdsUpdateHealthServiceClient::new(server.channel());
    let told = async |command: i32, grpc_code_to_return: i32, server_port: i32| {
        let grpc_status_description = "as told".to_owned();
        let request = HookRequest { command, grpc_code_to_return, grpc_status_description, server_port };
        code(&soon(update.clone().send_hook_request(request)).await)
    };
    assert_eq!(told(0, 0, 0).await, Code::InvalidArgument);
    assert_eq!(told(99, 0, 0).await, Code::InvalidArgument);
    assert_eq!(told(START, 0, -1).await, Code::InvalidArgument);
    assert_eq!(told(START, 0, 65_536).await, Code::InvalidArgument);
    assert_eq!(told(START, 0, server.port.into()).await, Code::Unavailable);
    assert_eq!(told(STOP, 0, 0).await, Code::Unavailable);
    assert_eq!(told(RETURN, 0, 0).await, Code::Unavailable);

    assert_eq!(told(START, 0, 0).await, Code::Ok);
    let port = server.logs("hook server listening on ").await;
    assert_eq!(told(START, 0, 0).await, Code::AlreadyExists);
    let hooks = channel(port);
    // One call that waits and one that arrives later.
    let waiting = hook(&hooks);
    assert_eq!(told(RETURN, 5, 0).await, Code::Ok);
    let status = soon(waiting).await.unwrap().unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::NotFound, "as told"));
    assert_eq!(told(RETURN, 0, 0).await, Code::Ok);
    assert_eq!(told(RETURN, 6, 0).await, Code::Ok);
    assert_eq!(code(&soon(hook(&hooks)).await.unwrap()), Code::Ok);
    assert_eq!(code(&soon(hook(&hooks)).await.unwrap()), Code::AlreadyExists);

    let waiting = hook(&hooks);
    assert_eq!(told(STOP, 0, 0).await, Code::Ok);
    assert_ne!(code(&soon(waiting).await.unwrap()), Code::Ok);
    assert_eq!(told(STOP, 0, 0).await, Code::Unavailable);
    assert_eq!(told(START, 0, 0).await, Code::Ok);
    assert_eq!(server.end().await, Some(0));
}

#[tokio::test]
async fn the_status_of_xds_is_served() {
    let server = Server::start(&[]).await;
    let mut client = ClientStatusDiscoveryServiceClient::new(server.channel());
    let answer = soon(client.fetch_client_status(ClientStatusRequest::default())).await.unwrap();
    assert_eq!(answer.into_inner().config, []);
}

/// Requests of psm-interop's driver: the server of a port, and the socket that is the other end of a
/// client's.
#[tokio::test]
async fn reports_its_port_and_its_connections() {
    let server = Server::start(&[]).await;
    let mut channelz = ChannelzClient::new(server.channel());
    let servers = soon(channelz.get_servers(wire::GetServersRequest::default())).await.unwrap().into_inner();
    assert_eq!((servers.server.len(), servers.end), (1, true));
    let found = &servers.server[0];
    let server_id = found.r#ref.as_ref().unwrap().server_id;
    let again = soon(channelz.get_server(wire::GetServerRequest { server_id })).await.unwrap().into_inner();
    assert_eq!(again.server.as_ref(), Some(found));
    let listener = socket(&mut channelz, found.listen_socket[0].socket_id).await.unwrap();
    assert_eq!((address(listener.local).unwrap().port(), listener.remote), (server.port, None));

    let mut stream = soon(TcpStream::connect((Ipv4Addr::LOCALHOST, server.port))).await.unwrap();
    let (client, other) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
    // The server sends first, so it has accepted the connection by then.
    soon(stream.read_u8()).await.unwrap();
    let mut seen = Vec::new();
    loop {
        let start_socket_id =
            seen.last().map_or(0, |last: &wire::Socket| last.r#ref.as_ref().unwrap().socket_id + 1);
        let request = wire::GetServerSocketsRequest { server_id, start_socket_id, max_results: 1 };
        let page = soon(channelz.get_server_sockets(request)).await.unwrap().into_inner();
        assert_eq!(page.socket_ref.len(), 1);
        seen.push(socket(&mut channelz, page.socket_ref[0].socket_id).await.unwrap());
        if page.end {
            break;
        }
    }
    assert_eq!(seen.len(), 2, "the driver's and the client's: {seen:?}");
    let of_client = seen.iter().find(|socket| address(socket.remote.clone()) == Some(client));
    let of_client = of_client.unwrap_or_else(|| panic!("{client}: {seen:?}"));
    assert_eq!(address(of_client.local.clone()), Some(other));

    drop(stream);
    let id = of_client.r#ref.as_ref().unwrap().socket_id;
    let gone = async { while socket(&mut channelz, id).await.is_ok() {} };
    soon(gone).await;
    let unknown = wire::GetServerSocketsRequest { server_id: id, ..wire::GetServerSocketsRequest::default() };
    assert_eq!(code(&soon(channelz.get_server_sockets(unknown)).await), Code::NotFound);
    let unknown = wire::GetServerRequest { server_id: id };
    assert_eq!(code(&soon(channelz.get_server(unknown)).await), Code::NotFound);
}

async fn socket(channelz: &mut ChannelzClient<Channel>, socket_id: i64) -> Result<wire::Socket, Status> {
    let answer = soon(channelz.get_socket(wire::GetSocketRequest { socket_id, summary: false })).await?;
    Ok(answer.into_inner().socket.expect("the requested socket"))
}

fn address(address: Option<wire::Address>) -> Option<SocketAddr> {
    let wire::address::Address::TcpipAddress(address) = address?.address?;
    let port = address.port.try_into().expect("a port");
    match <[u8; 4]>::try_from(address.ip_address.as_slice()) {
        Ok(ip) => Some((ip, port).into()),
        Err(_) => {
            Some((<[u8; 16]>::try_from(address.ip_address.as_slice()).expect("an IP address"), port).into())
        }
    }
}

#[tokio::test]
async fn listens_on_the_configured_kinds_of_addresses() {
    let answers = async |server: &Server, ip: std::net::IpAddr| {
        // A rejected peer may still complete the TCP handshake.
        let Ok(mut stream) = soon(TcpStream::connect((ip, server.port))).await else { return false };
        soon(stream.read_u8()).await.is_ok()
    };
    let has_v6 = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await.is_ok();
    let (v4, v6) = (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
    let mut kinds = vec![("", true, has_v6), ("ipv4", true, false)];
    if has_v6 {
        kinds.extend([("ipv6", false, true), ("IPV4_IPV6", true, true)]);
    }
    for (kind, on_v4, on_v6) in kinds {
        let server = Server::start(&[&format!("--address_type={kind}")]).await;
        assert_eq!(answers(&server, v4).await, on_v4, "{kind:?}, IPv4");
        assert_eq!(answers(&server, v6).await, on_v6, "{kind:?}, IPv6");
    }
}

#[tokio::test]
async fn invalid_requests_are_rejected_at_once() {
    let server = Server::start(&[]).await;
    let taken = format!("--port={}", server.port);
    for (flags, exit, words) in [
        (
            &["--secure_mode=true", "--port=0"],
            2,
            "flag --secure_mode: evenkeel has no server that xDS configures (A36)",
        ),
        (&["--port=high", "--secure_mode=false"], 2, "flag --port: expected a number"),
        (
            &["--address_type=ipv5", "--port=0"],
            2,
            "flag --address_type: expected ipv4, ipv6 or ipv4_ipv6, found \"ipv5\"",
        ),
        (&["--load_qps=-1", "--port=0"], 2, "flag --load_qps: expected a number from 0 on, found \"-1\""),
        (&["--host_name_override=a\nb", "--port=0"], 2, "host name \"a\\nb\": expected a valid header value"),
        (&[taken.as_str(), "--server_id=b"], 1, "cannot listen on port"),
    ] {
        let (code, stdout, stderr) = end_of(PROGRAM, flags).await;
        assert_eq!((code, stdout.as_str()), (Some(exit), ""), "{stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains(words), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}
