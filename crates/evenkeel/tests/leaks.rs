//! Descriptors, tasks and threads before and after faults. The binary has a single test, so that it counts
//! only its own.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests")]

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use evenkeel::{Backoff, Bootstrap, Channel, ChannelBuilder, XdsClient};
use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
use testkit::net::echo::EchoRequest;
use testkit::net::echo::echo_client::EchoClient;
use testkit::net::frames::{Answer, Frame, Peer, kind, serve, setting};
use testkit::net::proxy::Proxy;
use testkit::net::soak::{KillWindow, ProcessUsage, SoakLoad};
use testkit::net::{Backend, ControlPlane};
use testkit::resources;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Request, Status};

/// Maximum wait. Only a failing test reaches it.
const LONG: Duration = Duration::from_secs(30);

type FaultRun = Pin<Box<dyn Future<Output = ()>>>;

/// Fault with its name.
type NamedFault = (&'static str, fn() -> FaultRun);

/// Faults, each from the start of its servers to their shutdown.
const FAULTS: [NamedFault; 17] = [
    ("none", || Box::pin(no_fault())),
    ("backends are killed and return", || Box::pin(killed_backends())),
    ("backends drain and return", || Box::pin(drained_backends())),
    ("connections are refused", || Box::pin(refused_connections())),
    ("connections are accepted and never answered", || Box::pin(unanswered_connections())),
    ("connections fail in the middle of calls", || Box::pin(broken_connections())),
    ("connections go silent under calls", || Box::pin(black_hole())),
    ("servers answer with resets, GOAWAY and silence", || Box::pin(hostile_answers())),
    ("peers send GOAWAY and stop reading", || Box::pin(unread_goaways())),
    ("callers drop calls and streams", || Box::pin(dropped_calls())),
    ("channels are dropped while they connect", || Box::pin(dropped_channels())),
    ("a channel goes idle and wakes", || Box::pin(idle_channel())),
    ("the control plane restarts", || Box::pin(restarted_control_plane())),
    ("the control plane never answers", || Box::pin(silent_control_plane())),
    ("the control plane sends invalid resources", || Box::pin(invalid_resources())),
    ("the control plane is to be found by xDS", || Box::pin(nested_control_plane())),
    ("a short soak", || Box::pin(short_soak())),
];

/// After each fault, the number of descriptors, tasks and threads returns to its previous value.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_leave_nothing_behind() {
    // Warm up: resources that the process opens once and keeps.
    no_fault().await;
    let mut before = usage_at_rest().await;
    for (name, fault) in FAULTS {
        let begun = Instant::now();
        assert!(timeout(2 * LONG, fault()).await.is_ok(), "{name}: does not end");
        match before.wait_until_restored().await {
            // The first count may be too high, because a socket closes shortly after its task.
            Ok(after) => before = after,
            Err(after) => panic!("{name}: {before:?} before, {after:?} after"),
        }
        println!("{name}: {before:?}, {:?}", begun.elapsed());
    }
}

/// Waits until no task and no xDS client is left, and returns the usage. Channels shut down asynchronously
/// after the drop.
async fn usage_at_rest() -> ProcessUsage {
    let begun = Instant::now();
    loop {
        let usage = ProcessUsage::now().unwrap();
        if usage.tasks == 0 && usage.xds_threads == 0 {
            return usage;
        }
        assert!(begun.elapsed() < LONG, "without a fault there is left: {usage:?}");
        sleep(Duration::from_millis(5)).await;
    }
}

async fn backends(count: usize) -> Vec<Backend> {
    let mut started = Vec::new();
    for _ in 0..count {
        started.push(Backend::start().await);
    }
    started
}

fn addresses(backends: &[Backend]) -> Vec<SocketAddr> {
    backends.iter().map(Backend::address).collect()
}

/// Returns a builder for a channel over these addresses with a short backoff.
fn over(addresses: impl IntoIterator<Item = SocketAddr>) -> ChannelBuilder {
    let addresses: Vec<_> = addresses.into_iter().map(|address| address.to_string()).collect();
    Channel::builder(format!("ipv4:{}", addresses.join(",")))
        .service_config(r#"{"loadBalancingConfig": [{"round_robin": {}}]}"#)
        .backoff(short_backoff())
}

/// Returns a builder for a channel to the service `orders` of a control plane.
fn mesh(control: &ControlPlane) -> ChannelBuilder {
    Channel::builder("xds:///orders")
        .bootstrap(Bootstrap::from_json(&control.bootstrap("node-7")).unwrap())
        .backoff(short_backoff())
}

fn short_backoff() -> Backoff {
    let wait = Duration::from_millis(20);
    Backoff { initial: wait, max: wait, ..Backoff::default() }
}

fn load(channel: &Channel, callers: usize) -> SoakLoad {
    let channel = channel.clone();
    SoakLoad::start(callers, Duration::from_millis(2), move || call(channel.clone(), LONG))
}

async fn call(channel: Channel, deadline: Duration) -> Result<(), Status> {
    let mut request = Request::new(EchoRequest { payload: b"hello".to_vec(), ..EchoRequest::default() });
    request.set_timeout(deadline);
    EchoClient::new(channel).unary(request).await.map(drop)
}

/// Waits until a call succeeds.
async fn until_answered(channel: &Channel) {
    let begun = Instant::now();
    while call(channel.clone(), LONG).await.is_err() {
        assert!(begun.elapsed() < LONG, "calls fail for too long");
        sleep(Duration::from_millis(2)).await;
    }
}

async fn no_fault() {
    let backends = backends(2).await;
    let control = ControlPlane::start().await;
    control.serve("orders", "pay", &addresses(&backends));
    for channel in [over(addresses(&backends)).build().unwrap(), mesh(&control).build().unwrap()] {
        for _ in 0..10 {
            call(channel.clone(), LONG).await.unwrap();
        }
    }
}

async fn killed_backends() {
    let backends = backends(3).await;
    let channel = over(addresses(&backends)).build().unwrap();
    let load = load(&channel, 16);
    assert!(load.further(3).await);
    for backend in &backends {
        backend.kill();
        assert!(load.further(3).await);
        let calls = backend.calls();
        backend.restart().await;
        backend.wait_until(|backend| backend.calls() > calls).await;
    }
    assert!(load.stop().await.ok > 0);
}

async fn drained_backends() {
    let backends = backends(3).await;
    let channel = over(addresses(&backends)).build().unwrap();
    let load = load(&channel, 16);
    assert!(load.further(3).await);
    for backend in &backends {
        timeout(LONG, backend.drain()).await.expect("calls end");
        let calls = backend.calls();
        backend.restart().await;
        backend.wait_until(|backend| backend.calls() > calls).await;
    }
    let outcome = load.stop().await;
    assert!(outcome.failed.is_empty(), "{:?}", outcome.failed);
}

async fn refused_connections() {
    let backend = Backend::start().await;
    backend.kill();
    let channel = over([backend.address()]).build().unwrap();
    for _ in 0..20 {
        let status = call(channel.clone(), LONG).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
    }
}

async fn unanswered_connections() {
    let backend = Backend::start().await;
    let proxy = Proxy::to(backend.address()).await;
    proxy.accept_only(true);
    // The connect timeout must exceed the wait, so that only the drop of the channel can end the attempt.
    let channel = over([proxy.address()]).connect_timeout(10 * LONG).build().unwrap();
    let status = call(channel.clone(), Duration::from_millis(50)).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    let begun = Instant::now();
    while proxy.open_connections() == 0 {
        assert!(begun.elapsed() < LONG, "no attempt arrives");
        sleep(Duration::from_millis(2)).await;
    }
    // The attempt is in progress when the channel is dropped.
    drop(channel);
    while proxy.open_connections() > 0 {
        assert!(begun.elapsed() < LONG, "the attempt continues without its channel");
        sleep(Duration::from_millis(2)).await;
    }
}

async fn broken_connections() {
    let backend = Backend::start().await;
    let proxy = Proxy::to(backend.address()).await;
    let channel = over([proxy.address()]).build().unwrap();
    let breaks: [fn(&Proxy); 3] = [Proxy::reset_all, Proxy::close_all, Proxy::half_close_all];
    for cut in breaks {
        until_answered(&channel).await;
        backend.pause();
        let calls: Vec<_> = (0..8).map(|_| tokio::spawn(call(channel.clone(), LONG))).collect();
        backend.wait_until(|backend| backend.in_flight() == calls.len()).await;
        cut(&proxy);
        for call in calls {
            assert_eq!(call.await.unwrap().unwrap_err().code(), Code::Unavailable);
        }
        backend.resume();
    }
    // Corrupted HTTP/2 bytes, and a connection that closes within its first frames.
    until_answered(&channel).await;
    for offset in [3, 12, 30] {
        proxy.flip_byte_at(offset);
        proxy.close_all();
        let _ = call(channel.clone(), Duration::from_millis(100)).await;
        proxy.flip_byte_at(None);
        proxy.cut_after(offset);
        proxy.close_all();
        let _ = call(channel.clone(), Duration::from_millis(100)).await;
        proxy.cut_after(None);
        proxy.close_all();
        until_answered(&channel).await;
    }
}

async fn black_hole() {
    let backend = Backend::start().await;
    let proxy = Proxy::to(backend.address()).await;
    let channel = over([proxy.address()]).build().unwrap();
    until_answered(&channel).await;
    proxy.black_hole(true);
    let calls: Vec<_> =
        (0..8).map(|_| tokio::spawn(call(channel.clone(), Duration::from_millis(100)))).collect();
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap_err().code(), Code::DeadlineExceeded);
    }
    // The peer is still silent when the channel is dropped.
    drop(channel);
}

async fn hostile_answers() {
    let served = serve(|call| match call.index % 6 {
        0 => Answer::Ok(Vec::new().into()),
        1 => Answer::Reset(2),
        2 => Answer::Refuse,
        3 => Answer::Silent,
        4 => {
            let answer = Box::new(Answer::Ok(Vec::new().into()));
            Answer::GoAwayThen { last_stream: call.stream, code: 0, answer }
        }
        _ => Answer::HangUp,
    });
    let channel = over((0..4).map(|i| served.address(i))).build().unwrap();
    let (mut ok, mut failed) = (0, 0);
    for _ in 0..20 {
        let calls: Vec<_> =
            (0..8).map(|_| tokio::spawn(call(channel.clone(), Duration::from_millis(50)))).collect();
        for call in calls {
            match call.await.unwrap() {
                Ok(()) => ok += 1,
                Err(_) => failed += 1,
            }
        }
    }
    assert!(ok > 10 && failed > 10, "{ok} calls succeeded, {failed} failed");
}

/// Each peer sends GOAWAY during a call, stops reading and never closes. The channel must close its end while
/// the peers' ends are open: the close of a peer would hide a leak.
async fn unread_goaways() {
    const PEERS: usize = 8;
    const WINDOW: u32 = u32::MAX >> 1;
    let before = ProcessUsage::now().unwrap();
    let peer = Peer::bind().await;
    let channel = over([peer.address()]).build().unwrap();
    let (mut calls, mut unread) = (Vec::new(), Vec::new());
    channel.connect();
    for _ in 0..PEERS {
        // A channel that reconnects has processed the GOAWAY and filled the socket buffer.
        let mut conn = timeout(LONG, peer.accept()).await.expect("the channel connects again");
        conn.settings(&[(setting::INITIAL_WINDOW_SIZE, WINDOW)]).await.unwrap();
        let mut client = EchoClient::new(channel.clone());
        // More than the socket buffers hold.
        let request = EchoRequest { payload: vec![0; 16 << 20], ..EchoRequest::default() };
        calls.push(tokio::spawn(async move { client.unary(request).await.map(drop) }));
        while timeout(LONG, conn.next_frame()).await.unwrap().unwrap().kind != kind::HEADERS {}
        let update = (WINDOW - 65_535).to_be_bytes().to_vec();
        conn.send(Frame::new(kind::WINDOW_UPDATE, 0, 0, update)).await.unwrap();
        conn.go_away(1, 0, b"").await.unwrap();
        unread.push(conn);
    }
    for call in calls {
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled(), "the peer does not respond");
    }
    drop(channel);
    // The listener and the peers' ends stay open.
    let expected = ProcessUsage { descriptors: before.descriptors + 1 + PEERS, ..before };
    if let Err(usage) = expected.wait_until_restored().await {
        panic!("{expected:?} expected with {PEERS} peers that do not read, {usage:?} found");
    }
}

async fn dropped_calls() {
    let backends = backends(2).await;
    let channel = over(addresses(&backends)).build().unwrap();
    let mut client = EchoClient::new(channel.clone());
    for _ in 0..50 {
        let (sender, requests) = mpsc::unbounded_channel();
        sender.send(EchoRequest::default()).unwrap();
        let mut answers = client.bidi(UnboundedReceiverStream::new(requests)).await.unwrap().into_inner();
        answers.message().await.unwrap().unwrap();
        // Drop the halves in sequence, or both at once.
        drop(answers);
        drop(sender);
    }
    backends.iter().for_each(Backend::pause);
    let calls: Vec<_> = (0..50).map(|_| tokio::spawn(call(channel.clone(), LONG))).collect();
    let in_flight = || backends.iter().map(Backend::in_flight).sum::<usize>();
    let begun = Instant::now();
    while in_flight() < calls.len() {
        assert!(begun.elapsed() < LONG, "{} calls arrived", in_flight());
        sleep(Duration::from_millis(2)).await;
    }
    for call in &calls {
        call.abort();
    }
    while in_flight() > 0 {
        assert!(begun.elapsed() < LONG, "{} calls go on", in_flight());
        sleep(Duration::from_millis(2)).await;
    }
    backends.iter().for_each(Backend::resume);
    until_answered(&channel).await;
}

async fn dropped_channels() {
    let backends = backends(4).await;
    let control = ControlPlane::start().await;
    control.serve("orders", "pay", &addresses(&backends));
    for turn in 0..50 {
        let channels = [over(addresses(&backends)).build().unwrap(), mesh(&control).build().unwrap()];
        for channel in channels {
            channel.connect();
            let caller = tokio::spawn(call(channel.clone(), LONG));
            match turn % 3 {
                0 => tokio::task::yield_now().await,
                1 => drop(channel),
                _ => channel.close().await,
            }
            caller.abort();
        }
    }
}

async fn idle_channel() {
    let backends = backends(2).await;
    let control = ControlPlane::start().await;
    control.serve("orders", "pay", &addresses(&backends));
    let channel = mesh(&control).idle_timeout(Duration::from_millis(50)).build().unwrap();
    for _ in 0..3 {
        call(channel.clone(), LONG).await.unwrap();
        for backend in &backends {
            backend.wait_until(|backend| backend.open_connections() == 0).await;
        }
        control.wait_until(|control| control.open_streams() == 0).await;
    }
}

async fn restarted_control_plane() {
    let backends = backends(2).await;
    let control = ControlPlane::start().await;
    control.serve("orders", "pay", &addresses(&backends));
    let channel = mesh(&control).build().unwrap();
    let load = load(&channel, 8);
    for streams in 1..=3 {
        control.wait_until(|control| control.streams() >= streams && control.open_streams() == 1).await;
        assert!(load.further(5).await);
        control.kill();
        assert!(load.further(5).await);
        control.restart().await;
    }
    let outcome = load.stop().await;
    assert!(outcome.failed.is_empty() && outcome.ok > 0, "{:?}", outcome.failed);
}

async fn silent_control_plane() {
    let control = ControlPlane::start().await;
    control.silent(true);
    let channel = mesh(&control).build().unwrap();
    let status = call(channel.clone(), Duration::from_millis(50)).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    control.wait_until(|control| control.open_streams() == 1).await;
}

async fn invalid_resources() {
    let backends = backends(2).await;
    let control = ControlPlane::start().await;
    control.serve("orders", "pay", &addresses(&backends));
    let channel = mesh(&control).build().unwrap();
    call(channel.clone(), LONG).await.unwrap();
    let garbage = || prost_any(vec![0xff; 100]);
    control.set_raw::<Cluster>("pay", garbage());
    control.wait_until(|control| !control.nacks().is_empty()).await;
    let nacks = control.nacks().len();
    control.set_raw::<ClusterLoadAssignment>("pay", garbage());
    control.wait_until(|control| control.nacks().len() > nacks).await;
    call(channel.clone(), LONG).await.unwrap();
}

/// Returns a resource that cannot be decoded. The type under which it is set distinguishes clusters from
/// endpoints.
fn prost_any(value: Vec<u8>) -> evenkeel_proto::prost_types::Any {
    evenkeel_proto::prost_types::Any { value, ..resources::any(&Cluster::default()) }
}

async fn nested_control_plane() {
    let bootstrap =
        r#"{"xds_servers": [{"server_uri": "localhost:1", "channel_creds": [{"type": "insecure"}]}]}"#;
    let mut bootstrap = Bootstrap::from_json(bootstrap).unwrap();
    // The parser rejects such a server, but a program can set one.
    Arc::make_mut(&mut bootstrap.servers[0]).uri = "xds:///control".into();
    for _ in 0..50 {
        let client = XdsClient::builder(bootstrap.clone()).build();
        let error = Channel::builder("xds:///orders").xds_client(client.clone()).build().unwrap_err();
        assert!(error.to_string().contains("xds:///control"), "{error}");
        client.status().await.unwrap();
    }
}

/// fault 69, for a few seconds: an EDS edit per round, a killed backend every fifth, a control plane restart
/// every tenth. No call fails outside the windows with a killed backend. `evenkeel bench soak` is the long
/// form.
async fn short_soak() {
    const ROUNDS: usize = 60;
    let backends = Arc::new(backends(6).await);
    let control = ControlPlane::start().await;
    control.serve("orders", "pay", &addresses(&backends));
    let channel = mesh(&control).build().unwrap();
    until_answered(&channel).await;
    let load = load(&channel, 16);
    let mut windows = Vec::new();
    for round in 0..ROUNDS {
        let left_out = round % backends.len();
        let mut endpoints = addresses(&backends);
        endpoints.remove(left_out);
        control.set_endpoints("pay", &endpoints);
        if round % 5 == 2 {
            let victim = &backends[(left_out + 1) % backends.len()];
            let begun = Instant::now();
            victim.kill();
            assert!(load.further(0).await, "the load stands still");
            windows.push(KillWindow { begun, ended: Instant::now() });
            victim.restart().await;
        }
        if round % 10 == 7 {
            let streams = control.streams();
            control.kill();
            control.restart().await;
            control.wait_until(|control| control.streams() > streams).await;
        }
        assert!(load.further(2).await, "the load stands still");
    }
    let outcome = load.stop().await;
    let outside = outcome.failed_outside(&windows);
    println!(
        "fault 69: {} calls, {} failed in {} windows, {} outside",
        outcome.ok,
        outcome.failed.len(),
        windows.len(),
        outside.len()
    );
    assert!(outcome.ok as usize > ROUNDS * 16, "{} calls", outcome.ok);
    assert_eq!(windows.len(), ROUNDS / 5);
    assert!(outside.is_empty(), "{outside:?}");
    for call in &outcome.failed {
        assert_eq!(call.status.code(), Code::Unavailable, "{call:?}");
    }
}
