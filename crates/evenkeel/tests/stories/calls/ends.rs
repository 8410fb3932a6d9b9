//! Calls and channels that end early: dropped, cancelled, or without their runtime. No resource leaks.

use std::fs;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use evenkeel::{Channel, WaitForReady};
use testkit::net::Backend;
use testkit::net::echo::echo_client::EchoClient;
use testkit::net::frames::Peer;
use testkit::net::proxy::Proxy;
use tokio::runtime::{Builder, Handle};
use tokio::task::JoinSet;
use tokio_stream::StreamExt as _;
use tonic::Code;

use super::{client, connected, endless, panicked, request, to, until, within};

/// Dropping a call before its response, or a response before its end, cancels the call at the server.
#[tokio::test]
async fn servers_hear_of_cancelled_calls() {
    let backend = Backend::start().await;
    let mut client = client(&backend);
    for kind in 0..3 {
        let mut client = client.clone();
        let call = tokio::spawn(async move {
            match kind {
                0 => drop(client.unary(endless(0)).await),
                1 => drop(client.client_stream(tokio_stream::pending()).await),
                _ => {
                    let mut answers = client.bidi(tokio_stream::pending()).await.unwrap().into_inner();
                    let _ = answers.next().await;
                }
            }
        });
        backend.wait_until(|backend| backend.in_flight() == 1).await;
        call.abort();
        backend.wait_until(|backend| backend.in_flight() == 0).await;
    }
    let mut answers = within(client.server_stream(endless(3))).await.unwrap().into_inner();
    within(answers.next()).await.unwrap().unwrap();
    assert_eq!(backend.in_flight(), 1);
    drop(answers);
    backend.wait_until(|backend| backend.in_flight() == 0).await;
    within(client.unary(request("all is well"))).await.unwrap();
    assert_eq!(backend.connections(), 1, "a cancelled call costs no connection");
}

/// Returns the policy's number of outstanding calls.
async fn outstanding(channel: &Channel) -> u64 {
    let tree = channel.tree().await.unwrap();
    let counts = tree.details["outstanding"].as_object().unwrap();
    counts.values().map(|count| count.as_u64().unwrap()).sum()
}

/// A client drops half of its active calls, unary and streaming. No stream and no counter leaks, the other
/// half completes, and the channel closes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_of_the_calls_are_dropped() {
    const CALLS: usize = 1000;
    let start = || Backend::builder().max_concurrent_streams(CALLS as u32).start();
    let backends = [start().await, start().await];
    let in_flight = || backends.iter().map(Backend::in_flight).sum::<usize>();
    let channel = to(&backends).service_config(super::policy("least_request_experimental")).build().unwrap();
    connected(&channel, 2).await;
    for round in 0..2 {
        for backend in &backends {
            backend.pause();
        }
        let mut calls: Vec<_> = (0..CALLS)
            .map(|i| {
                let mut client = EchoClient::new(channel.clone());
                tokio::spawn(async move {
                    if (i + round) % 4 < 2 {
                        client.unary(request("kept")).await.unwrap();
                    } else {
                        let answers =
                            client.server_stream(super::EchoRequest { repeat: 3, ..request("kept") });
                        assert_eq!(answers.await.unwrap().into_inner().collect::<Vec<_>>().await.len(), 3);
                    }
                })
            })
            .collect();
        until(|| in_flight() == CALLS).await;
        assert_eq!(outstanding(&channel).await, CALLS as u64);
        let kept = calls.split_off(CALLS / 2);
        for dropped in &calls {
            dropped.abort();
        }
        // The server may receive a reset before the call's counter has fallen. A joined task is dropped as a whole.
        for dropped in calls {
            assert!(within(dropped).await.unwrap_err().is_cancelled());
        }
        until(|| in_flight() == CALLS / 2).await;
        assert_eq!(outstanding(&channel).await, (CALLS / 2) as u64);
        for backend in &backends {
            backend.resume();
        }
        for call in kept {
            within(call).await.unwrap();
        }
        until(|| in_flight() == 0).await;
        assert_eq!(outstanding(&channel).await, 0);
    }
    within(channel.close()).await;
    for backend in &backends {
        assert_eq!(backend.connections(), 1);
        backend.wait_until(|backend| backend.open_connections() == 0).await;
    }
}

/// Any number of late responses to cancelled calls leaves the connection and its calls intact.
#[tokio::test]
async fn late_responses_do_no_harm() {
    // More than h2's default limit for a misbehaving peer.
    const GIVEN_UP: usize = 1500;
    let peer = Peer::bind().await;
    let channel = crate::builder(format!("ipv4:{}", peer.address())).build().unwrap();
    channel.connect();
    let mut conn = within(peer.accept()).await;
    within(conn.handshake()).await.unwrap();
    let call = || {
        let mut client = EchoClient::new(channel.clone());
        tokio::spawn(async move { client.unary(request("")).await })
    };
    let kept = call();
    let first = within(conn.next_request()).await.unwrap().stream;
    let mut given_up = Vec::new();
    for _ in 0..GIVEN_UP {
        let call = call();
        given_up.push(within(conn.next_request()).await.unwrap().stream);
        call.abort();
    }
    for stream in given_up {
        conn.respond(stream, b"", 0).await.unwrap();
    }
    conn.respond(first, b"", 0).await.unwrap();
    within(kept).await.unwrap().unwrap();
    let next = call();
    let stream = within(conn.next_request()).await.unwrap().stream;
    conn.respond(stream, b"", 0).await.unwrap();
    within(next).await.unwrap().unwrap();
}

/// Random numbers with a fixed seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Polls a future for some time and drops it.
async fn for_a_while(work: impl Future, dice: &mut Dice) {
    let mut work = pin!(work);
    for _ in 0..dice.below(12) {
        tokio::select! {
            biased;
            _ = &mut work => return,
            () = tokio::task::yield_now() => {}
        }
        if dice.below(4) == 0 {
            tokio::time::sleep(Duration::from_micros(dice.below(1500))).await;
        }
    }
}

/// fault 71: channels are dropped at any time, during calls and while connecting: to a backend, a silent peer
/// and a closed port. Nothing panics, and no task, connection or call leaks.
#[tokio::test]
async fn channels_are_dropped_at_any_moment() {
    const DROPS: usize = 3000;
    panicked::note();
    let backend = Backend::start().await;
    let (silent, nobody) = (Proxy::to(backend.address()).await, Proxy::to(backend.address()).await);
    silent.accept_only(true);
    nobody.refuse(true).await;
    let places = [backend.address(), backend.address(), silent.address(), nobody.address()];
    let tasks = Handle::current().metrics().num_alive_tasks();
    let mut dice = Dice(71);
    for _ in 0..DROPS {
        let place = places[dice.below(places.len() as u64) as usize];
        let config = super::policy(["pick_first", "round_robin"][dice.below(2) as usize]);
        let channel = crate::builder(format!("ipv4:{place}")).service_config(config).build().unwrap();
        let mut client = EchoClient::new(channel.clone());
        let kind = dice.below(5);
        let call = async move {
            match kind {
                0 => drop(client.unary(request("")).await),
                1 => drop(client.unary(endless(0)).await),
                2 => drop(client.client_stream(tokio_stream::pending()).await),
                3 => {
                    if let Ok(answers) = client.server_stream(endless(2)).await {
                        let _ = answers.into_inner().collect::<Vec<_>>().await;
                    }
                }
                _ => drop(tokio::time::timeout(Duration::from_millis(1), client.unary(endless(0))).await),
            }
        };
        // The channel is dropped before, with or after its call.
        match dice.below(3) {
            0 => {
                drop(channel);
                for_a_while(call, &mut dice).await;
            }
            1 => for_a_while(async { tokio::join!(call, channel.close()) }, &mut dice).await,
            _ => {
                for_a_while(call, &mut dice).await;
                drop(channel);
            }
        }
    }
    backend.wait_until(|backend| backend.in_flight() == 0 && backend.open_connections() == 0).await;
    all_gone(tasks, &places).await;
    assert_eq!(panicked::in_ours(), Vec::<String>::new());
}

/// Waits until the runtime has as many tasks as before, and no socket to these addresses is left.
async fn all_gone(tasks_before: usize, addresses: &[SocketAddr]) {
    let mut last = (0, 0);
    let gone = async {
        loop {
            last = (Handle::current().metrics().num_alive_tasks(), sockets_to(addresses));
            if last.0 <= tasks_before && last.1 == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let gone = tokio::time::timeout(super::LONG, gone).await;
    assert!(gone.is_ok(), "{} tasks, of which {tasks_before} were there before; {} sockets", last.0, last.1);
}

/// Returns the number of this process's sockets to these addresses.
fn sockets_to(addresses: &[SocketAddr]) -> usize {
    let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let ends: Vec<_> = addresses.iter().map(|address| format!("0100007F:{:04X}", address.port())).collect();
    // Columns: number, local, remote, state, queues, timer, retransmits, user, timeout, inode. A socket
    // without an inode is closed by its process.
    let leads = |line: &&str| {
        let columns: Vec<_> = line.split_whitespace().collect();
        columns.get(2).is_some_and(|remote| ends.iter().any(|end| end == remote))
            && columns.get(9) != Some(&"0")
    };
    table.lines().skip(1).filter(leads).count()
}

/// fault 70: a thousand channels are created, used once and dropped, concurrently and in sequence. Tasks and
/// sockets return to their previous numbers.
#[tokio::test]
async fn a_thousand_channels() {
    let backend = Backend::start().await;
    let place = [backend.address()];
    let tasks = Handle::current().metrics().num_alive_tasks();
    for _ in 0..10 {
        let mut calls = JoinSet::new();
        for i in 0..100 {
            let mut client = client(&backend);
            calls.spawn(async move {
                if i % 2 == 0 {
                    client.unary(request("once")).await.map(drop)
                } else {
                    client.client_stream(tokio_stream::once(request("once"))).await.map(drop)
                }
            });
        }
        for answer in within(calls.join_all()).await {
            answer.unwrap();
        }
    }
    println!("1,000 channels: {} calls, {} connections", backend.calls(), backend.connections());
    assert_eq!((backend.calls(), backend.connections()), (1000, 1000));
    backend.wait_until(|backend| backend.open_connections() == 0).await;
    all_gone(tasks, &place).await;
}

/// fault 72: the runtime of a channel ends, and its handle is used in another runtime. Active and later calls
/// fail with UNAVAILABLE, without a hang or a panic.
#[tokio::test]
async fn a_channel_whose_runtime_is_gone() {
    static ENDS: AtomicUsize = AtomicUsize::new(0);
    panicked::note();
    let backend = Backend::start().await;
    let dead = Backend::start().await;
    dead.kill();
    for round in 0..20 {
        let home = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (channel, waiting) = {
            let _entered = home.enter();
            (to([&backend]).build().unwrap(), to([&dead]).build().unwrap())
        };
        let mut calls = JoinSet::new();
        if round > 0 {
            let mut client = EchoClient::new(channel.clone());
            within(client.unary(request("from elsewhere"))).await.unwrap();
            for i in 0..10 {
                let mut client = client.clone();
                calls.spawn(async move {
                    match i % 3 {
                        0 => client.unary(endless(0)).await.map(drop),
                        1 => client.client_stream(tokio_stream::pending()).await.map(drop),
                        _ => {
                            let mut answers = client.server_stream(endless(1)).await?.into_inner();
                            while answers.message().await?.is_some() {}
                            Ok(())
                        }
                    }
                });
            }
            backend.wait_until(|backend| backend.in_flight() == 10).await;
            let mut patient = tonic::Request::new(request(""));
            patient.extensions_mut().insert(WaitForReady(true));
            let mut client = EchoClient::new(waiting.clone());
            calls.spawn(async move { client.unary(patient).await.map(drop) });
        }
        tokio::task::spawn_blocking(move || {
            drop(home);
            ENDS.fetch_add(1, Ordering::SeqCst);
        });
        while let Some(answer) = within(calls.join_next()).await {
            let status = answer.unwrap().unwrap_err();
            assert_eq!(status.code(), Code::Unavailable, "{status}");
        }
        until(|| ENDS.load(Ordering::SeqCst) > round).await;
        for channel in [channel, waiting] {
            let status = within(EchoClient::new(channel.clone()).unary(request(""))).await.unwrap_err();
            assert_eq!(status.code(), Code::Unavailable, "{status}");
            assert!(status.message().contains("is closed"), "{status}");
            assert!(within(channel.ready()).await.is_err());
            assert!(within(channel.tree()).await.is_none());
            within(channel.close()).await;
        }
        backend.wait_until(|backend| backend.in_flight() == 0).await;
    }
    assert_eq!(panicked::in_ours(), Vec::<String>::new());
}
