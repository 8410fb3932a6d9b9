//! Lifecycle of a channel: IDLE, CONNECTING, READY, closed.

use std::time::Duration;

use evenkeel::ConnectivityState::{self, Connecting, Idle, Ready, TransientFailure};
use testkit::net::Backend;
use testkit::net::echo::echo_client::EchoClient;
use tokio_stream::StreamExt as _;
use tonic::Code;

use super::{becomes, connected, endless, policy, request, to, within};

/// PF-8: a channel is IDLE until a call, `connect` or `ready`, and its state can be watched. Under pick_first
/// a lost connection is re-established by the next call.
#[tokio::test]
async fn states_follow_the_connection() {
    let backend = Backend::start().await;
    let channel = to([&backend]).build().unwrap();
    assert_eq!((channel.connectivity(), backend.connections()), (Idle, 0));
    assert!(channel.tree().await.is_none());
    within(channel.ready()).await.unwrap();
    assert_eq!((channel.connectivity(), backend.connections()), (Ready, 1));
    // A READY channel has nothing to do.
    within(channel.ready()).await.unwrap();
    channel.connect();
    EchoClient::new(channel.clone()).unary(request("")).await.unwrap();
    assert_eq!(backend.connections(), 1);

    backend.drain().await;
    becomes(&channel, Idle).await;
    backend.restart().await;
    assert_eq!(backend.connections(), 1, "no call was made");
    within(EchoClient::new(channel.clone()).unary(request(""))).await.unwrap();
    assert_eq!((channel.connectivity(), backend.connections()), (Ready, 2));

    backend.kill();
    becomes(&channel, Idle).await;
    channel.connect();
    becomes(&channel, TransientFailure).await;
    backend.restart().await;
    // After a failure it reconnects when the backoff expires, without a call.
    becomes(&channel, Ready).await;
    let mut states = channel.watch_connectivity();
    assert_eq!(*states.borrow_and_update(), Ready);
    within(channel.close()).await;
    within(states.changed()).await.unwrap();
    assert_eq!(*states.borrow(), Idle);
}

/// A watcher observes CONNECTING.
#[tokio::test]
async fn connecting_can_be_watched() {
    let backend = Backend::start().await;
    let proxy = testkit::net::proxy::Proxy::to(backend.address()).await;
    proxy.accept_only(true);
    let channel = crate::builder(format!("ipv4:{}", proxy.address())).build().unwrap();
    channel.connect();
    becomes(&channel, Connecting).await;
    proxy.accept_only(false);
    becomes(&channel, Ready).await;
}

/// The tree shows the policies and endpoints with their states and picks, also as JSON.
#[tokio::test]
async fn the_tree_is_shown() {
    let backends = [Backend::start().await, Backend::start().await];
    let channel = to(&backends).service_config(policy("round_robin")).build().unwrap();
    connected(&channel, 2).await;
    let mut client = EchoClient::new(channel.clone());
    for _ in 0..6 {
        client.unary(request("")).await.unwrap();
    }
    let tree = serde_json::to_value(channel.tree().await.unwrap()).unwrap();
    assert_eq!((&tree["policy"], &tree["state"]), (&"round_robin".into(), &"READY".into()));
    for (row, backend) in backends.iter().enumerate() {
        let row = &tree["endpoints"][row];
        assert_eq!(row["addresses"], serde_json::json!([backend.address().to_string()]));
        assert_eq!((&row["state"], &row["picks"]), (&"READY".into(), &3.into()));
    }
    backends[0].kill();
    within(async {
        while channel.tree().await.unwrap().endpoints[0].state == ConnectivityState::Ready {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// `close` lets sent calls finish, and fails queued and later ones.
#[tokio::test]
async fn closing_lets_calls_finish() {
    for round in 0..20 {
        let backend = Backend::start().await;
        let channel = to([&backend]).build().unwrap();
        let mut client = EchoClient::new(channel.clone());
        if round % 2 == 0 {
            within(client.unary(request(""))).await.unwrap();
        }
        backend.pause();
        let mut sent = client.clone();
        let sent = tokio::spawn(async move { sent.unary(request("sent")).await });
        backend.wait_until(|backend| backend.in_flight() == 1).await;
        let closing = tokio::spawn(channel.clone().close());
        let closed = format!("the channel to \"ipv4:{}\" is closed", backend.address());
        becomes(&channel, Idle).await;
        assert!(!closing.is_finished(), "a call is under way");
        let status = within(client.unary(request("late"))).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::Unavailable, closed.as_str()));
        backend.resume();
        assert_eq!(within(sent).await.unwrap().unwrap().into_inner().payload, b"sent");
        within(closing).await.unwrap();
        assert_eq!(within(channel.ready()).await.unwrap_err().message(), closed);
        assert!(within(channel.tree()).await.is_none());
        backend.wait_until(|backend| backend.open_connections() == 0).await;
        within(channel.close()).await;
    }
}

/// After `close` has returned no call succeeds, not even a concurrent one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_is_closed() {
    let backend = Backend::start().await;
    for _ in 0..50 {
        let channel = to([&backend]).build().unwrap();
        let mut client = EchoClient::new(channel.clone());
        within(client.unary(request(""))).await.unwrap();
        within(channel.close()).await;
        let status = within(client.unary(request("late"))).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
    }
}

/// `close` fails a call that waits for an endpoint, also with wait-for-ready.
#[tokio::test]
async fn closing_ends_waiting() {
    let backend = Backend::start().await;
    backend.kill();
    let channel = to([&backend]).build().unwrap();
    let mut client = EchoClient::new(channel.clone());
    let mut call = tonic::Request::new(request(""));
    call.extensions_mut().insert(evenkeel::WaitForReady(true));
    let waiting = tokio::spawn(async move { client.unary(call).await });
    becomes(&channel, TransientFailure).await;
    within(channel.close()).await;
    assert_eq!(within(waiting).await.unwrap().unwrap_err().code(), Code::Unavailable);
}

/// PF-16, fault 18: a channel without calls becomes IDLE and closes its connections. The next call reconnects
/// and succeeds, every time. An active stream keeps it READY.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_without_calls_enters_idle() {
    const SPELL: Duration = Duration::from_millis(20);
    for name in ["pick_first", "round_robin"] {
        let backends = [Backend::start().await, Backend::start().await];
        let channel = to(&backends).service_config(policy(name)).idle_timeout(SPELL).build().unwrap();
        let mut client = EchoClient::new(channel.clone());
        for _ in 0..20 {
            within(client.unary(request("woken"))).await.unwrap();
            becomes(&channel, Idle).await;
            assert!(channel.tree().await.is_none());
            for backend in &backends {
                backend.wait_until(|backend| backend.open_connections() == 0).await;
            }
        }
        // A call at the moment of the IDLE transition succeeds too.
        for _ in 0..20 {
            becomes(&channel, Idle).await;
            within(client.unary(request("woken"))).await.unwrap();
            within(client.unary(request("and again"))).await.unwrap();
        }

        let mut answers = within(client.server_stream(endless(1))).await.unwrap().into_inner();
        within(answers.next()).await.unwrap().unwrap();
        let idle = tokio::time::timeout(10 * SPELL, becomes(&channel, Idle)).await;
        assert!(idle.is_err(), "{name}: it enters IDLE while a response is in progress");
        assert_eq!(backends.iter().map(Backend::in_flight).sum::<usize>(), 1);
        drop(answers);
        becomes(&channel, Idle).await;
    }
}
