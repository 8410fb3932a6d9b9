//! Callers that retry at once: calls that fail without waiting yield to the runtime.
//!
//! All tests run on one thread. A caller that never yields starves the driver, its timers and every other
//! task. A tokio timeout would never fire, so the bounds are call counts or the clock of the standard
//! library.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use evenkeel::{Backoff, Channel};
use testkit::net::Backend;
use testkit::net::echo::echo_client::EchoClient;
use tonic::body::Body;
use tonic::metadata::MetadataValue;
use tonic::{Request, Status};
use tower_service::Service as _;

use super::{Client, LONG, panics, policy, request, to, within};

/// Maximum number of failed calls before another task has run. tokio's budget is 128 operations.
const MAX_CALLS: usize = 1000;

/// Calls until one succeeds, without a pause between calls.
pub(crate) async fn insist<T>(mut call: impl AsyncFnMut() -> Result<T, Status>) {
    let began = Instant::now();
    while call().await.is_err() {
        assert!(began.elapsed() < LONG, "the channel does not reconnect");
    }
}

/// Asserts that calls fail, and that another task of the same thread runs within [`MAX_CALLS`] calls.
pub(crate) async fn fails_and_yields<T>(failure: &str, mut call: impl AsyncFnMut() -> Result<T, Status>) {
    let has_run = Arc::new(AtomicBool::new(false));
    let other = has_run.clone();
    let other = tokio::spawn(async move { other.store(true, Ordering::SeqCst) });
    let mut calls = 0;
    while !has_run.load(Ordering::SeqCst) {
        assert!(call().await.is_err(), "{failure}: the call succeeds");
        calls += 1;
        assert!(calls <= MAX_CALLS, "{failure}: {calls} calls failed and no other task has run");
    }
    other.await.unwrap();
}

/// Returns a request for a tower service. The body is an empty message.
fn raw_request() -> http::Request<Body> {
    let body = http_body_util::Full::new(bytes::Bytes::from_static(&[0; 5]));
    http::Request::post("http://localhost/evenkeel.test.Echo/Unary").body(Body::new(body)).unwrap()
}

async fn raw_call(channel: &mut Channel) -> Result<(), Status> {
    poll_fn(|cx| channel.poll_ready(cx)).await?;
    channel.call(raw_request()).await.map(drop)
}

/// The backend is down and its caller retries in a loop. The channel reconnects when the backend returns, for
/// each kind of call, also under a retry policy.
#[tokio::test]
async fn a_caller_that_retries_at_once_reconnects() {
    const RETRIES: &str = r#"{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 3,
        "initialBackoff": "0.001s", "maxBackoff": "0.001s", "backoffMultiplier": 1,
        "retryableStatusCodes": ["UNAVAILABLE"]}}]}"#;
    let backend = Arc::new(Backend::start().await);
    for config in [policy("pick_first"), policy("round_robin"), RETRIES.to_owned()] {
        let channel = to([&*backend]).service_config(config).build().unwrap();
        let (client, raw) = (Client::new(channel.clone()), channel);
        for kind in 0..5 {
            backend.kill();
            let restarting = backend.clone();
            let restarted = tokio::spawn(async move { restarting.restart().await });
            let call = async || {
                let mut client = client.clone();
                match kind {
                    0 => client.unary(request("")).await.map(drop),
                    1 => client.server_stream(request("")).await.map(drop),
                    2 => client.client_stream(tokio_stream::once(request(""))).await.map(drop),
                    3 => client.bidi(tokio_stream::once(request(""))).await.map(drop),
                    _ => raw_call(&mut raw.clone()).await,
                }
            };
            insist(call).await;
            within(restarted).await.unwrap();
        }
    }
}

/// Each immediate failure consumes budget: no endpoint, a failing or dropping pick, an invalid request, a
/// closed channel.
#[tokio::test]
async fn failures_that_do_not_wait_yield() {
    let backend = Backend::start().await;
    let (channel, wrongs) = panics::channel(&backend);
    let mut client = EchoClient::new(channel.clone());
    within(client.unary(request(""))).await.unwrap();
    for (failure, code) in [("a failed pick", 5), ("a drop", 7)] {
        wrongs.fail_picks(code);
        fails_and_yields(failure, async || client.unary(request("")).await).await;
        fails_and_yields(failure, async || client.server_stream(request("")).await).await;
    }
    wrongs.fail_picks(0);

    fails_and_yields("an invalid header", async || {
        let mut invalid = Request::new(request(""));
        invalid.metadata_mut().insert("connection", MetadataValue::from_static("close"));
        client.unary(invalid).await
    })
    .await;

    backend.kill();
    let down = to([&backend]).build().unwrap();
    let mut client = EchoClient::new(down.clone());
    within(client.unary(request(""))).await.unwrap_err();
    fails_and_yields("no endpoint", async || client.unary(request("")).await).await;
    fails_and_yields("no endpoint, by tower", async || raw_call(&mut down.clone()).await).await;

    within(channel.clone().close()).await;
    let mut client = EchoClient::new(channel.clone());
    fails_and_yields("a closed channel", async || client.unary(request("")).await).await;
    fails_and_yields("a closed channel, asked to be ready", async || channel.ready().await).await;
}

/// An unresolvable name fails calls until the next attempt of the resolver.
#[tokio::test]
async fn a_name_that_cannot_be_resolved_yields() {
    // The first call waits for the resolver. Its next attempt is far in the future.
    let wait = Backoff { initial: LONG, max: LONG, ..Backoff::default() };
    let unresolved = crate::builder("dns:///absent.invalid:1234").backoff(wait).build().unwrap();
    let mut client = EchoClient::new(unresolved);
    let status = within(client.unary(request(""))).await.unwrap_err();
    assert!(status.message().contains("\"absent.invalid\": cannot be resolved"), "{status}");
    fails_and_yields("a name that cannot be resolved", async || client.unary(request("")).await).await;
}
