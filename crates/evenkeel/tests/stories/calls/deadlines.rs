//! Deadlines: they are sent to the server, and they apply wherever a call waits. The application's half of
//! RT-1.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use evenkeel::{ConnectivityState, WaitForReady};
use testkit::net::Backend;
use testkit::net::echo::EchoRequest;
use testkit::net::proxy::Proxy;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status};

use super::server::{Server, Step};
use super::{becomes, client, endless, request, to, within};

const SHORT: Duration = Duration::from_millis(50);

fn timed<T>(message: T, timeout: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    request
}

fn is_late(status: &Status, waiting_for: &str) {
    let text = format!("deadline exceeded: {waiting_for}");
    assert_eq!((status.code(), status.message()), (Code::DeadlineExceeded, text.as_str()));
}

/// Checks the status of a call that exceeded its deadline while no endpoint was connected.
fn waits_for_connection(status: &Status, detail: &str) {
    assert_eq!(status.code(), Code::DeadlineExceeded);
    let text = status.message();
    assert!(
        text.starts_with("deadline exceeded: no endpoint is connected") && text.contains(detail),
        "{text}"
    );
}

/// Parses a `grpc-timeout` value.
fn told(text: &str) -> Duration {
    let (number, unit) = text.split_at(text.len() - 1);
    let number = number.parse().unwrap();
    match unit {
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        unit => panic!("{unit}"),
    }
}

/// `grpc-timeout` carries the remaining time, never more. It is absent without a deadline. Time spent waiting
/// for an endpoint is subtracted.
#[tokio::test]
async fn the_deadline_is_sent_to_servers() {
    const ALL: Duration = Duration::from_secs(40);
    let backend = Backend::start().await;
    let channel = to([&backend]).build().unwrap();
    let mut client = super::Client::new(channel.clone());
    let answer = client.unary(request("")).await.unwrap().into_inner();
    assert_eq!(answer.metadata.get("grpc-timeout"), None);
    for timeout in [ALL, 1000 * ALL] {
        let answer = client.unary(timed(request(""), timeout)).await.unwrap().into_inner();
        let told = told(&answer.metadata["grpc-timeout"]);
        assert!((timeout / 2..=timeout).contains(&told), "{told:?} of {timeout:?}");
    }
    backend.kill();
    becomes(&channel, ConnectivityState::Idle).await;
    let mut call = timed(request(""), ALL);
    call.extensions_mut().insert(WaitForReady(true));
    let mut waiting = client.clone();
    let waiting = tokio::spawn(async move { waiting.unary(call).await });
    tokio::time::sleep(4 * SHORT).await;
    backend.restart().await;
    let answer = within(waiting).await.unwrap().unwrap().into_inner();
    let told = told(&answer.metadata["grpc-timeout"]);
    assert!(told + 2 * SHORT <= ALL, "{told:?} after waiting");
}

/// RT-1: the timeout of the channel, of the request and of the service config apply together. The shortest one is
/// sent to the server.
#[tokio::test]
async fn the_shortest_timeout_is_sent() {
    const SECOND: Duration = Duration::from_secs(1);
    let backend = Backend::start().await;
    let with_method = |timeout: u32| {
        format!(
            r#"{{"methodConfig": [{{"name": [{{"service": "evenkeel.test.Echo"}}], "timeout": "{timeout}s"}}]}}"#
        )
    };
    // Timeouts in seconds: of the channel, of the request, of the service config, and the expected one.
    for (of_channel, of_request, of_method, expected) in [
        (40, None, None, 40),
        (40, Some(400), None, 40),
        (400, Some(40), None, 40),
        (4000, None, Some(40), 40),
        (40, None, Some(400), 40),
        (4000, Some(400), Some(40), 40),
        (4000, Some(40), Some(400), 40),
    ] {
        let mut builder = to([&backend]).timeout(of_channel * SECOND);
        if let Some(timeout) = of_method {
            builder = builder.service_config(with_method(timeout));
        }
        let mut call = Request::new(request(""));
        if let Some(timeout) = of_request {
            call.set_timeout(timeout * SECOND);
        }
        let answer = super::Client::new(builder.build().unwrap()).unary(call).await.unwrap().into_inner();
        let told = told(&answer.metadata["grpc-timeout"]);
        let expected = expected * SECOND;
        assert!((expected / 2..=expected).contains(&told), "{told:?} of {expected:?}");
    }
}

/// RT-1: the timeout of the channel ends calls, also one whose response has begun.
#[tokio::test]
async fn the_channels_timeout_ends_calls() {
    let backend = Backend::start().await;
    let mut client = super::Client::new(to([&backend]).timeout(4 * SHORT).build().unwrap());
    let status = within(client.unary(endless(0))).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    // The response may begin in time, but it cannot end.
    let status = match within(client.server_stream(endless(1))).await {
        Err(status) => status,
        Ok(stream) => {
            let last = within(stream.into_inner().filter_map(Result::err).next()).await;
            last.expect("the stream never ends by itself")
        }
    };
    assert_eq!(status.code(), Code::DeadlineExceeded);
}

/// RT-1: a call exceeds its deadline without an endpoint, before the response, and in the middle of the
/// response. The status names the wait, and the server's call is cancelled.
#[tokio::test]
async fn calls_are_late_wherever_they_wait() {
    let backend = Backend::start().await;
    let address = backend.address();
    let mut client = client(&backend);
    let not_answered = format!("endpoint {address} has not sent response headers");
    let not_finished = format!("endpoint {address} has not completed its response");

    // A peer that accepts and stays silent is not READY. A refusing peer does not fail wait-for-ready calls.
    let silent = Proxy::to(address).await;
    silent.accept_only(true);
    let mut waiting =
        super::Client::new(crate::builder(format!("ipv4:{}", silent.address())).build().unwrap());
    let status = within(waiting.unary(timed(request(""), SHORT))).await.unwrap_err();
    let connecting = format!("1 connection attempt in progress, to {} for ", silent.address());
    waits_for_connection(&status, &connecting);
    silent.refuse(true).await;
    silent.close_all();
    let mut patient = timed(request(""), SHORT);
    patient.extensions_mut().insert(WaitForReady(true));
    let status = within(waiting.unary(patient)).await.unwrap_err();
    // Between two attempts, or during one: both show the error.
    waits_for_connection(&status, "last error: ");

    // tonic's server enforces the deadline as well. The first call connects.
    within(client.unary(request(""))).await.unwrap();
    for _ in 0..20 {
        let status = within(client.unary(timed(endless(0), SHORT / 10))).await.unwrap_err();
        is_late(&status, &not_answered);
    }
    let status = within(client.unary(timed(endless(0), Duration::ZERO))).await.unwrap_err();
    is_late(&status, &not_answered);
    let (_sender, requests) = mpsc::channel::<EchoRequest>(1);
    let status = within(client.client_stream(timed(ReceiverStream::new(requests), SHORT))).await.unwrap_err();
    is_late(&status, &not_answered);

    let mut answers = within(client.server_stream(timed(endless(2), 10 * SHORT))).await.unwrap().into_inner();
    for _ in 0..2 {
        within(answers.next()).await.unwrap().unwrap();
    }
    is_late(&within(answers.next()).await.unwrap().unwrap_err(), &not_finished);

    backend.wait_until(|backend| backend.in_flight() == 0).await;
}

/// Neither a server that sends continuously nor an application that reads late extends the deadline. Buffered
/// messages are not read to the end.
#[tokio::test]
async fn a_busy_response_exceeds_its_deadline() {
    let backend = Backend::start().await;
    let mut client = client(&backend);
    within(client.unary(request(""))).await.unwrap();
    for reads_late in [false, true] {
        let talk = EchoRequest { repeat: u32::MAX, ..request(vec![0; 20_000]) };
        let call = timed(talk, 6 * SHORT);
        let mut answers = within(client.server_stream(call)).await.unwrap().into_inner();
        if reads_late {
            tokio::time::sleep(7 * SHORT).await;
        }
        let mut read = 0;
        let status = loop {
            match within(answers.next()).await.expect("the server talks on") {
                Ok(_) => read += 1,
                Err(status) => break status,
            }
        };
        is_late(&status, &format!("endpoint {} has not completed its response", backend.address()));
        assert!(!reads_late || read < 10, "{read} messages after the deadline");
        backend.wait_until(|backend| backend.in_flight() == 0).await;
    }
}

/// A server that enforces the deadline may cancel first. The call still ends as DEADLINE_EXCEEDED.
#[tokio::test]
async fn a_cancelled_call_may_be_a_late_one() {
    let server =
        Server::start(|_| Step::Fail { after: 0, status: Status::cancelled("Timeout expired") }).await;
    let channel = crate::builder(server.target()).build().unwrap();
    within(channel.ready()).await.unwrap();
    let mut client = super::Client::new(channel);
    let mut same = client.clone();
    let mut call = pin!(same.unary(timed(request(""), SHORT)));
    assert!(poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await.is_pending());
    tokio::time::sleep(2 * SHORT).await;
    let address = server.target().replace("ipv4:", "");
    is_late(&call.await.unwrap_err(), &format!("endpoint {address} has not sent response headers"));
    let in_time = client.unary(timed(request(""), super::LONG)).await.unwrap_err();
    assert_eq!((in_time.code(), in_time.message()), (Code::Cancelled, "Timeout expired"));
}

/// RT-1: the shorter of the application's deadline and the service config's timeout applies.
#[tokio::test]
async fn the_shorter_deadline_counts() {
    let backend = Backend::start().await;
    let config = r#"{"methodConfig": [
        {"name": [{"service": "evenkeel.test.Echo", "method": "Unary"}], "timeout": "0.05s"},
        {"name": [{"service": "evenkeel.test.Echo"}], "timeout": "3600s"}
    ]}"#;
    let channel = to([&backend]).service_config(config).build().unwrap();
    within(channel.ready()).await.unwrap();
    let mut client = super::Client::new(channel);
    let not_answered = format!("endpoint {} has not sent response headers", backend.address());
    let status = within(client.unary(endless(0))).await.unwrap_err();
    is_late(&status, &not_answered);
    let status = within(client.unary(timed(endless(0), Duration::from_secs(3600)))).await.unwrap_err();
    is_late(&status, &not_answered);
    let status =
        within(client.client_stream(timed(tokio_stream::once(endless(0)), SHORT))).await.unwrap_err();
    is_late(&status, &not_answered);
    let answer = client.client_stream(tokio_stream::once(request("in time"))).await.unwrap().into_inner();
    assert!(answer.metadata.contains_key("grpc-timeout"), "the timeout of the config");
}
