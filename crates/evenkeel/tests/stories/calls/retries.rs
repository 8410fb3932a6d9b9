//! Retries by service config (A6).

use std::pin::pin;

use testkit::net::frames::{Frame, Peer, block, code, flag, kind};
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use super::server::{Server, Step};
use super::{Client, request, within};

/// Four attempts, for two status codes.
const CONFIG: &str = r#"{"methodConfig": [{"name": [{}], "retryPolicy": {
    "maxAttempts": 4, "initialBackoff": "0.001s", "maxBackoff": "0.01s", "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"]
}}]}"#;

fn client(server: &Server, config: &str) -> Client {
    Client::new(crate::builder(server.target()).service_config(config).build().unwrap())
}

fn failing(code: Code) -> Step {
    failing_after(0, code)
}

fn failing_after(after: usize, code: Code) -> Step {
    Step::Fail { after, status: Status::new(code, "not now") }
}

/// Returns a failure with a server pushback.
fn pushing_back(text: &'static str) -> Step {
    let mut status = Status::unavailable("not now");
    status.metadata_mut().insert("grpc-retry-pushback-ms", MetadataValue::from_static(text));
    Step::Fail { after: 0, status }
}

/// Returns the `grpc-previous-rpc-attempts` header of each attempt.
fn attempts(server: &Server) -> Vec<String> {
    let said = |name| {
        move |headers: &tonic::metadata::MetadataMap| match headers.get(name) {
            Some(value) => value.to_str().unwrap().to_owned(),
            None => "-".to_owned(),
        }
    };
    server.seen().iter().map(said("grpc-previous-rpc-attempts")).collect()
}

/// Status codes, attempt limit and server pushback decide. The caller gets the last response.
#[tokio::test]
async fn retried_as_the_policy_configures() {
    use Code::{Internal, InvalidArgument, Ok as Fine, ResourceExhausted, Unavailable};
    let cases: Vec<(Vec<Step>, Code, &[&str])> = vec![
        (vec![], Fine, &["-"]),
        (vec![failing(Unavailable), failing(ResourceExhausted)], Fine, &["-", "1", "2"]),
        (vec![failing(Unavailable); 9], Unavailable, &["-", "1", "2", "3"]),
        (vec![failing(InvalidArgument); 9], InvalidArgument, &["-"]),
        (vec![failing(Unavailable), failing(Internal)], Internal, &["-", "1"]),
        (vec![pushing_back("0"), pushing_back("15")], Fine, &["-", "1", "2"]),
        (vec![pushing_back("-1"); 9], Unavailable, &["-"]),
        (vec![failing(Unavailable), pushing_back("later"), Step::Echo], Unavailable, &["-", "1"]),
        (vec![pushing_back("0"); 9], Unavailable, &["-", "1", "2", "3"]),
    ];
    for (i, (steps, code, expected)) in cases.into_iter().enumerate() {
        let server = Server::start(move |call| steps.get(call).cloned().unwrap_or(Step::Echo)).await;
        let answer = within(client(&server, CONFIG).unary(request("again"))).await;
        match answer {
            Ok(answer) => assert_eq!((Fine, answer.into_inner().payload), (code, b"again".to_vec()), "{i}"),
            Err(status) => assert_eq!((status.code(), status.message()), (code, "not now"), "{i}"),
        }
        assert_eq!(attempts(&server), expected, "{i}");
    }
}

/// Without a retry policy there is no retry.
#[tokio::test]
async fn not_unless_asked() {
    let server = Server::start(|_| failing(Code::Unavailable)).await;
    let status = within(client(&server, "{}").unary(request(""))).await.unwrap_err();
    assert_eq!((status.code(), server.seen().len()), (Code::Unavailable, 1));
}

/// Retry throttling stops retries for the whole channel.
#[tokio::test]
async fn bad_days_are_not_made_worse() {
    let server = Server::start(|_| failing(Code::Unavailable)).await;
    let throttled = CONFIG.replacen('{', r#"{"retryThrottling": {"maxTokens": 4, "tokenRatio": 0.1},"#, 1);
    let client = client(&server, &throttled);
    // Tokens drop from 4 to 3 (above half: retry), then 2 (not above half), 1 and 0.
    for seen in [2, 3, 4, 5] {
        within(client.clone().unary(request(""))).await.unwrap_err();
        assert_eq!(server.seen().len(), seen);
    }
}

/// Response headers commit a call: a later failure is not retried.
#[tokio::test]
async fn headers_commit_a_call() {
    let server = Server::start(|_| Step::HeadersThenFail(Status::unavailable("after all"))).await;
    let mut client = client(&server, CONFIG);
    let mut answers = within(client.server_stream(request(""))).await.unwrap().into_inner();
    let status = within(answers.next()).await.unwrap().unwrap_err();
    assert_eq!((status.message(), server.seen().len()), ("after all", 1));
}

/// A retry replays the messages sent so far and continues with later ones.
#[tokio::test]
async fn streams_are_sent_again() {
    let server = Server::start(|call| match call {
        0 => failing_after(2, Code::Unavailable),
        1 => failing_after(3, Code::Unavailable),
        2 => failing(Code::ResourceExhausted),
        _ => Step::Echo,
    })
    .await;
    let mut client = client(&server, CONFIG);
    let requests = tokio_stream::iter(["a", "b", "c", "d"].map(request));
    let answer = within(client.client_stream(requests)).await.unwrap().into_inner();
    assert_eq!(answer.payload, b"abcd");
    assert_eq!(attempts(&server), ["-", "1", "2", "3"]);

    // The stream continues after the replay.
    let server = Server::start(|call| match call {
        0 => failing_after(2, Code::Unavailable),
        _ => Step::Echo,
    })
    .await;
    let mut client = self::client(&server, CONFIG);
    let (sender, requests) = mpsc::channel(8);
    for text in ["a", "b"] {
        sender.send(request(text)).await.unwrap();
    }
    let mut answers = within(client.bidi(ReceiverStream::new(requests))).await.unwrap().into_inner();
    assert_eq!(attempts(&server), ["-", "1"]);
    sender.send(request("c")).await.unwrap();
    drop(sender);
    let mut payloads = Vec::new();
    while let Some(answer) = within(answers.next()).await {
        payloads.extend(answer.unwrap().payload);
    }
    assert_eq!(payloads, b"abc");
}

/// A server that fails early resets the stream after its response. The response decides: the call is retried,
/// whichever is read first.
#[tokio::test]
async fn early_failures_are_tried_again() {
    let peer = Peer::bind().await;
    let target = format!("ipv4:{}", peer.address());
    let channel = crate::builder(target).service_config(CONFIG).build().unwrap();
    channel.connect();
    let mut conn = within(peer.accept()).await;
    within(conn.handshake()).await.unwrap();
    within(channel.ready()).await.unwrap();
    let mut client = Client::new(channel);
    let mut call = pin!(client.client_stream(tokio_stream::pending()));
    for attempt in 0..4 {
        let stream = {
            let headers = async {
                loop {
                    let frame = conn.next_frame().await.unwrap();
                    if frame.kind == kind::HEADERS {
                        return frame.stream;
                    }
                }
            };
            tokio::select! {
                stream = within(headers) => stream,
                answer = &mut call => panic!("attempt {attempt} was the last: {answer:?}"),
            }
        };
        // Poll the call only after both frames have arrived.
        let fields = [(":status", "200"), ("content-type", "application/grpc"), ("grpc-status", "14")];
        let flags = flag::END_HEADERS | flag::END_STREAM;
        conn.send(Frame::new(kind::HEADERS, flags, stream, block(&fields))).await.unwrap();
        conn.reset(stream, code::NO_ERROR).await.unwrap();
        within(conn.ping()).await.unwrap();
    }
    assert_eq!(within(call).await.unwrap_err().code(), Code::Unavailable);
}

/// A request that exceeds the replay buffer is not retried.
#[tokio::test]
async fn large_requests_are_sent_once() {
    let server = Server::start(|_| failing_after(5, Code::Unavailable)).await;
    let mut client = client(&server, CONFIG);
    let requests = tokio_stream::iter((0..5).map(|_| request(vec![0; 100 << 10])));
    let status = within(client.client_stream(requests)).await.unwrap_err();
    assert_eq!((status.message(), attempts(&server)), ("not now", vec!["-".to_owned()]));
}
