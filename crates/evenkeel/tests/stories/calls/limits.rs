//! The concurrency limit of a channel: further calls wait in their order, and every end of a call frees its slot.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use testkit::net::Backend;
use testkit::net::echo::EchoRequest;
use tokio_stream::StreamExt as _;
use tonic::{Code, Request};

use super::{Client, endless, request, to, within};

/// Polls a call once, and panics if it has ended.
async fn assert_pending<T>(mut call: Pin<&mut impl Future<Output = T>>) {
    let polled = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_pending())).await;
    assert!(polled, "the call has ended");
}

/// Returns a client whose channel runs this number of calls.
fn limited(backend: &Backend, maximum: usize) -> Client {
    Client::new(to([backend]).concurrency_limit(maximum).build().unwrap())
}

/// Calls beyond the limit wait, over all clones of the channel. They run in their order as soon as others end.
#[tokio::test]
async fn further_calls_wait_in_their_order() {
    let backend = Backend::start().await;
    let mut clients: [Client; 4] = {
        let client = limited(&backend, 2);
        [client.clone(), client.clone(), client.clone(), client]
    };
    let [first, second, third, fourth] = &mut clients;
    let mut first = Some(within(first.server_stream(endless(1))).await.unwrap());
    let second = within(second.server_stream(endless(1))).await.unwrap();
    assert_eq!(backend.in_flight(), 2);

    let mut third = pin!(third.server_stream(endless(1)));
    let mut fourth = Box::pin(fourth.unary(request("fourth")));
    assert_pending(third.as_mut()).await;
    assert_pending(fourth.as_mut()).await;
    drop(first.take());
    let third = within(third).await.unwrap();
    assert_pending(fourth.as_mut()).await;
    backend.wait_until(|backend| backend.in_flight() == 2).await;
    drop((second, third));
    let answer = within(fourth).await.unwrap().into_inner();
    assert_eq!(answer.payload, b"fourth");
}

/// A call that waits for a slot honours its deadline, and one that is dropped leaves no trace.
#[tokio::test]
async fn waiting_calls_end_by_deadline_and_by_drop() {
    let backend = Backend::start().await;
    let client = limited(&backend, 1);
    let mut other = client.clone();
    let held = within(client.clone().server_stream(endless(1))).await.unwrap();
    let mut late = Request::new(request(""));
    late.set_timeout(Duration::from_millis(20));
    let status = within(other.unary(late)).await.unwrap_err();
    let text = "deadline exceeded: the channel has reached its concurrency limit of 1";
    assert_eq!((status.code(), status.message()), (Code::DeadlineExceeded, text));

    let mut dropped = Box::pin(other.unary(request("")));
    assert_pending(dropped.as_mut()).await;
    drop(dropped);
    let mut waiting = client.clone();
    let mut waiting = pin!(waiting.unary(request("")));
    assert_pending(waiting.as_mut()).await;
    drop(held);
    within(waiting).await.unwrap();
    // The next call finds the slot free.
    within(other.unary(request(""))).await.unwrap();
}

/// A slot is free after every kind of end: an error, a response whose stream is kept, and a cancelled call.
#[tokio::test]
async fn every_end_frees_the_slot() {
    let backend = Backend::start().await;
    let mut client = limited(&backend, 1);
    for _ in 0..3 {
        let refused = EchoRequest { code: Code::NotFound as u32, ..request("") };
        let status = within(client.unary(refused)).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound);
        let talk = EchoRequest { repeat: 2, ..request("") };
        let mut kept = within(client.server_stream(talk)).await.unwrap().into_inner();
        while within(kept.next()).await.is_some() {}
        let mut cancelled = Box::pin(client.unary(endless(0)));
        assert_pending(cancelled.as_mut()).await;
        drop(cancelled);
        within(client.unary(request(""))).await.unwrap();
        drop(kept);
    }
    // A call without an endpoint.
    backend.kill();
    let status = within(async {
        loop {
            if let Err(status) = client.unary(request("")).await {
                return status;
            }
        }
    })
    .await;
    assert_eq!(status.code(), Code::Unavailable);
    backend.restart().await;
    within(async { while client.unary(request("")).await.is_err() {} }).await;
}

/// Calls that wait for a slot fail when the channel closes. The running call finishes.
#[tokio::test]
async fn waiting_calls_fail_when_the_channel_closes() {
    let backend = Backend::start().await;
    let channel = to([&backend]).concurrency_limit(1).build().unwrap();
    let mut client = Client::new(channel.clone());
    let held = within(client.clone().server_stream(endless(1))).await.unwrap();
    let mut waiting = pin!(client.unary(request("")));
    assert_pending(waiting.as_mut()).await;
    let closing = tokio::spawn(channel.close());
    let status = within(waiting).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("is closed"), "{status}");
    assert!(!closing.is_finished());
    drop(held);
    within(closing).await.unwrap();
}
