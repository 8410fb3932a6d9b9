//! Deadlines: they reach the server, and they are kept whatever a call waits for. The application's half of RT-1.

use std::time::Duration;

use evenkeel::WaitForReady;
use testkit::net::Backend;
use testkit::net::echo::EchoRequest;
use testkit::net::proxy::Proxy;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status};

use super::{client, endless, request, to, within};

const SHORT: Duration = Duration::from_millis(50);

fn timed<T>(message: T, timeout: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    request
}

fn is_late(status: &Status, waiting_for: &str) {
    let text = format!("the deadline passed: {waiting_for}");
    assert_eq!((status.code(), status.message()), (Code::DeadlineExceeded, text.as_str()));
}

/// The server is told how much time is left, never more than there is; without a deadline it is told nothing.
#[tokio::test]
async fn servers_are_told() {
    let backend = Backend::start().await;
    let mut client = client(&backend);
    let answer = client.unary(request("")).await.unwrap().into_inner();
    assert_eq!(answer.metadata.get("grpc-timeout"), None);
    // A unit finer than the seconds that were asked for: some of them have passed.
    for (timeout, unit) in [(Duration::from_secs(40), "u"), (Duration::from_secs(40_000), "m")] {
        let answer = client.unary(timed(request(""), timeout)).await.unwrap().into_inner();
        let told = &answer.metadata["grpc-timeout"];
        let left = told.strip_suffix(unit).unwrap_or_else(|| panic!("{told}")).parse::<u128>().unwrap();
        let all = if unit == "u" { timeout.as_micros() } else { timeout.as_millis() };
        assert!((all - all / 2..=all).contains(&left), "{told} of {timeout:?}");
    }
}

/// RT-1: a call is late where it is: before there is an endpoint, before the answer, in the middle of the answer. The text
/// says what it waited for, and the server is let go.
#[tokio::test]
async fn calls_are_late_wherever_they_wait() {
    let backend = Backend::start().await;
    let address = backend.address();
    let mut client = client(&backend);
    let not_answered = format!("endpoint {address} has not answered");
    let not_finished = format!("endpoint {address} has not finished its answer");

    // A peer that accepts and says nothing is no endpoint yet; one that refuses is not for those who wait.
    let silent = Proxy::to(address).await;
    silent.accept_only(true);
    let mut waiting =
        super::Client::new(evenkeel::Channel::builder(format!("ipv4:{}", silent.address())).build().unwrap());
    let status = within(waiting.unary(timed(request(""), SHORT))).await.unwrap_err();
    is_late(&status, "no endpoint is connected");
    silent.refuse(true).await;
    silent.close_all();
    let mut patient = timed(request(""), SHORT);
    patient.extensions_mut().insert(WaitForReady(true));
    let status = within(waiting.unary(patient)).await.unwrap_err();
    is_late(&status, "no endpoint is connected");

    // A tonic server keeps the deadline as well and says CANCELLED, at the same moment: it is one deadline.
    for _ in 0..20 {
        let status = within(client.unary(timed(endless(0), SHORT / 10))).await.unwrap_err();
        is_late(&status, &not_answered);
    }
    let status = within(client.unary(timed(endless(0), Duration::ZERO))).await.unwrap_err();
    is_late(&status, &not_answered);
    let (_sender, requests) = mpsc::channel::<EchoRequest>(1);
    let status = within(client.client_stream(timed(ReceiverStream::new(requests), SHORT))).await.unwrap_err();
    is_late(&status, &not_answered);

    let answers = within(client.server_stream(timed(endless(2), 4 * SHORT))).await.unwrap().into_inner();
    let answers: Vec<_> = within(answers.collect()).await;
    let [Ok(_), Ok(_), Err(status)] = &answers[..] else { panic!("{answers:?}") };
    is_late(status, &not_finished);

    backend.wait_until(|backend| backend.in_flight() == 0).await;
}

/// A server that never stops talking does not keep a call beyond its deadline.
#[tokio::test]
async fn a_busy_answer_is_late_too() {
    let backend = Backend::start().await;
    let talk = EchoRequest { repeat: u32::MAX, ..request("and another thing") };
    let mut answers = client(&backend).server_stream(timed(talk, 2 * SHORT)).await.unwrap().into_inner();
    let status = within(async {
        loop {
            match answers.next().await {
                Some(Ok(_)) => {}
                Some(Err(status)) => return status,
                None => panic!("the server stopped talking"),
            }
        }
    });
    is_late(&status.await, &format!("endpoint {} has not finished its answer", backend.address()));
    backend.wait_until(|backend| backend.in_flight() == 0).await;
}

/// RT-1: the shorter of the application's deadline and the service config's counts.
#[tokio::test]
async fn the_shorter_deadline_counts() {
    let backend = Backend::start().await;
    let config = r#"{"methodConfig": [
        {"name": [{"service": "evenkeel.test.Echo", "method": "Unary"}], "timeout": "0.05s"},
        {"name": [{"service": "evenkeel.test.Echo"}], "timeout": "3600s"}
    ]}"#;
    let mut client = super::Client::new(to([&backend]).service_config(config).build().unwrap());
    let not_answered = format!("endpoint {} has not answered", backend.address());
    let status = within(client.unary(endless(0))).await.unwrap_err();
    is_late(&status, &not_answered);
    let status = within(client.unary(timed(endless(0), Duration::from_secs(3600)))).await.unwrap_err();
    is_late(&status, &not_answered);
    let status =
        within(client.client_stream(timed(tokio_stream::once(endless(0)), SHORT))).await.unwrap_err();
    is_late(&status, &not_answered);
    let answer = client.client_stream(tokio_stream::once(request("in time"))).await.unwrap().into_inner();
    assert!(answer.metadata.contains_key("grpc-timeout"), "the config's, told to the server");
}
