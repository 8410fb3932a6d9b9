//! Endpoints that fail, drain, hang and recover, under `round_robin` over a fixed list.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel::{Address, Backoff, Channel, ChannelBuilder, Connector, Io, WaitForReady};
use testkit::lock;
use testkit::net::Backend;
use testkit::net::echo::EchoRequest;
use testkit::net::echo::echo_client::EchoClient;
use testkit::net::frames::{Answer, serve};
use testkit::net::proxy::Proxy;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Request, Status};

use crate::load::Load;

/// Maximum wait. Only a failing test reaches it.
const LONG: Duration = Duration::from_secs(30);

const ROUND_ROBIN: &str = r#"{"loadBalancingConfig": [{"round_robin": {}}]}"#;

async fn backends(count: usize) -> Vec<Backend> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(Backend::start().await);
    }
    all
}

fn target(addresses: impl IntoIterator<Item = SocketAddr>) -> String {
    let addresses: Vec<String> = addresses.into_iter().map(|address| address.to_string()).collect();
    format!("ipv4:{}", addresses.join(","))
}

/// Returns a builder for `round_robin` over these addresses, with a short backoff.
fn over(addresses: impl IntoIterator<Item = SocketAddr>) -> ChannelBuilder {
    crate::builder(target(addresses)).service_config(ROUND_ROBIN).backoff(short_backoff())
}

/// Backoff of 50 ms, 100 ms, 200 ms and so on. The connect timeout of 20 s is unchanged.
fn short_backoff() -> Backoff {
    Backoff { initial: Duration::from_millis(50), multiplier: 2.0, jitter: 0.0, ..Backoff::default() }
}

fn request(payload: &str) -> EchoRequest {
    EchoRequest { payload: payload.as_bytes().to_vec(), ..EchoRequest::default() }
}

async fn unary(channel: &Channel) -> Result<String, Status> {
    let mut request = Request::new(request("one"));
    request.set_timeout(LONG);
    Ok(EchoClient::new(channel.clone()).unary(request).await?.into_inner().backend)
}

/// Polls a condition that has no notification.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let waited = timeout(LONG, async {
        while !condition() {
            sleep(Duration::from_millis(2)).await;
        }
    });
    assert!(waited.await.is_ok(), "waited in vain: {what}");
}

/// fault 40: one of ten endpoints is killed under load: only its calls fail, with its address, and later
/// calls succeed. Then another is killed that holds the calls of all callers: exactly these fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_endpoint_fails_what_was_on_it_and_nothing_else() {
    const CALLERS: usize = 32;
    let backends = backends(10).await;
    let channel = over(backends.iter().map(Backend::address)).build().unwrap();
    let load = Load::start(&channel, CALLERS);
    for backend in &backends {
        backend.wait_until(|backend| backend.calls() >= 10).await;
    }

    let victim = &backends[3];
    let in_flight = victim.in_flight();
    victim.kill();
    load.further(0).await;
    let at_the_kill = load.failed();
    load.further(10).await;
    assert_eq!(load.failed(), at_the_kill, "nothing fails after those that were on it");
    println!(
        "fault 40: {at_the_kill} failed with one of ten killed under {CALLERS} callers; it had {in_flight} in flight; 0 later"
    );

    let paused = &backends[7];
    paused.pause();
    paused.wait_until(|backend| backend.in_flight() == CALLERS).await;
    paused.kill();
    load.further(10).await;
    assert_eq!(load.failed(), at_the_kill + CALLERS, "all callers had a call on it, and each lost one");

    let counts = load.stop().await;
    println!("fault 40: {} calls at {} per second, slowest {:?}", counts.ok, counts.rate, counts.slowest);
    for (i, status) in counts.failed.iter().enumerate() {
        let gone = if i < at_the_kill { victim } else { paused };
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(status.message().contains(&gone.address().to_string()), "{status} names {}", gone.address());
    }
}

/// PF-10, fault 41, fault 42: a killed endpoint gets no calls and is dialled at the backoff steps. After a
/// restart the next step connects, and it gets its share of calls and not more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_endpoint_is_tried_at_back_off_steps_and_used_when_it_returns() {
    let backends = backends(10).await;
    let dials = RecordingConnector::default();
    let jittered = Backoff { jitter: 0.2, ..short_backoff() };
    let channel = over(backends.iter().map(Backend::address))
        .backoff(jittered)
        .connector(dials.clone())
        .build()
        .unwrap();
    let load = Load::start(&channel, 16);
    for backend in &backends {
        backend.wait_until(|backend| backend.calls() >= 5).await;
    }

    let victim = &backends[0];
    victim.kill();
    load.further(0).await;
    let (failed, calls) = (load.failed(), victim.calls());
    until("five attempts failed", || dials.failed(victim.address()) >= 5).await;
    load.further(0).await;
    assert_eq!(load.failed(), failed, "nothing fails while it is down");
    assert_eq!(victim.calls(), calls, "no call is sent there");
    let attempts = dials.to(victim.address());
    let waits =
        attempts.windows(2).skip(1).map(|pair| pair[1].at.duration_since(pair[0].at)).collect::<Vec<_>>();
    println!("fault 41: attempts while down at distances of {waits:?}");
    for (i, wait) in waits.iter().enumerate() {
        let nominal = Duration::from_millis(50 << i);
        assert!(
            *wait >= nominal.mul_f64(0.8),
            "attempt {i} waits for at least 80 % of {nominal:?}, not {wait:?}"
        );
    }

    victim.restart().await;
    let (returned, total) = (Instant::now(), load.ok());
    victim.wait_until(|backend| backend.calls() > calls).await;
    let after: Vec<RecordedConnect> =
        dials.to(victim.address()).into_iter().filter(|dial| dial.at >= returned).collect();
    assert!(
        after.len() <= 1 && after.iter().all(|dial| dial.outcome == Some(true)),
        "the next attempt finds it: {after:?}"
    );
    println!("fault 42: used {:?} after its return, with {} attempt(s)", returned.elapsed(), after.len());

    load.further(20).await;
    let (its, all) = (victim.calls() - calls, load.ok() - total);
    assert!(its as u64 <= all / 5, "{its} of {all} calls are more than its share of a tenth");
    let counts = load.stop().await;
    assert_eq!(counts.failed.len(), failed);
}

/// fault 43, fault 47: an endpoint drains (GOAWAY) under load: no call fails, its streams complete, and new
/// calls go to other endpoints. Then all endpoints restart in sequence.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drains_and_rolling_restarts_fail_nothing() {
    let backends = backends(4).await;
    let channel = over(backends.iter().map(Backend::address)).build().unwrap();
    channel.ready().await.unwrap();
    let load = Load::start(&channel, 32);
    for backend in &backends {
        backend.wait_until(|backend| backend.calls() >= 10).await;
    }

    let victim = &backends[1];
    let mut streams = Vec::new();
    let mut has_victim = false;
    // The load takes part in the round robin, so the order of endpoints is not predictable.
    while streams.len() < 16 || !has_victim {
        let (sender, requests) = mpsc::unbounded_channel();
        sender.send(request("begin")).unwrap();
        let mut client = EchoClient::new(channel.clone());
        let mut answers = client.bidi(UnboundedReceiverStream::new(requests)).await.unwrap().into_inner();
        let backend = answers.message().await.unwrap().unwrap().backend;
        has_victim |= backend == victim.name();
        streams.push((backend, sender, answers));
    }
    let (on_it, elsewhere): (Vec<_>, Vec<_>) =
        streams.into_iter().partition(|(backend, ..)| backend == victim.name());

    let drain = victim.drain();
    tokio::pin!(drain);
    assert!(timeout(Duration::from_millis(50), &mut drain).await.is_err(), "it waits for its streams");
    load.further(0).await;
    let calls = victim.calls();
    load.further(10).await;
    assert_eq!(victim.calls(), calls, "a draining endpoint is sent nothing");
    for (backend, sender, mut answers) in on_it.into_iter().chain(elsewhere) {
        for text in ["still", "here"] {
            sender.send(request(text)).unwrap();
            assert_eq!(answers.message().await.unwrap().unwrap().payload, text.as_bytes(), "on {backend}");
        }
        drop(sender);
        assert!(answers.message().await.unwrap().is_none());
    }
    timeout(LONG, drain).await.expect("its streams are over");
    assert_eq!(load.failed(), 0);
    victim.restart().await;
    victim.wait_until(|backend| backend.calls() > calls).await;

    for backend in &backends {
        timeout(LONG, backend.drain()).await.expect("calls end");
        load.further(0).await;
        let calls = backend.calls();
        backend.restart().await;
        backend.wait_until(|backend| backend.calls() > calls).await;
    }
    let counts = load.stop().await;
    println!(
        "faults 43, 47: {} calls at {} per second over five drains, 0 failed, slowest {:?}",
        counts.ok, counts.rate, counts.slowest
    );
    counts.expect_none_failed();
}

/// fault 46: with all endpoints down, calls fail at once with the address and the reason. Wait-for-ready
/// calls complete when an endpoint returns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_all_down_calls_fail_at_once_or_wait() {
    let backends = backends(3).await;
    let channel = over(backends.iter().map(Backend::address)).build().unwrap();
    unary(&channel).await.unwrap();
    for backend in &backends {
        backend.kill();
    }
    // A call sent before the disconnect is noticed may fail with another reason.
    let refused = async {
        loop {
            if let Err(status) = unary(&channel).await
                && status.message().contains("refused")
            {
                return status;
            }
        }
    };
    let status = timeout(LONG, refused).await.expect("attempts to connect are refused");
    println!("fault 46: {status}");
    assert_eq!(status.code(), Code::Unavailable);
    assert!(
        backends.iter().any(|backend| status.message().contains(&backend.address().to_string())),
        "{status}"
    );

    let mut took = Vec::new();
    for _ in 0..300 {
        let begun = Instant::now();
        unary(&channel).await.unwrap_err();
        took.push(begun.elapsed());
    }
    took.sort();
    println!("fault 46: calls fail after {:?} (p50), {:?} (p99)", took[150], took[296]);

    let mut waiting = JoinSet::new();
    for _ in 0..20 {
        let mut client = EchoClient::new(channel.clone());
        let mut request = Request::new(request("patient"));
        request.extensions_mut().insert(WaitForReady(true));
        waiting.spawn(async move { client.unary(request).await });
    }
    unary(&channel).await.unwrap_err();
    assert!(waiting.try_join_next().is_none(), "they wait");
    backends[2].restart().await;
    let returned = Instant::now();
    let all = async {
        while let Some(answer) = waiting.join_next().await {
            assert_eq!(answer.unwrap().unwrap().into_inner().backend, backends[2].name());
        }
    };
    timeout(LONG, all).await.expect("all are answered");
    println!("fault 46: 20 waiting calls answered {:?} after an endpoint returned", returned.elapsed());
}

/// PF-15, fault 48: black hole: keepalive detects it, active calls fail with the reason, later calls use
/// other endpoints. The endpoint is used again when the network recovers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole_is_found_by_keepalive() {
    let backends = backends(3).await;
    let proxy = Proxy::to(backends[0].address()).await;
    let addresses = [proxy.address(), backends[1].address(), backends[2].address()];
    let channel = over(addresses)
        .keepalive(Duration::from_millis(300), Duration::from_secs(2))
        .connect_timeout(Duration::from_millis(500))
        .build()
        .unwrap();
    let load = Load::start(&channel, 8);
    for backend in &backends {
        backend.wait_until(|backend| backend.calls() >= 5).await;
    }

    proxy.black_hole(true);
    let begun = Instant::now();
    until("the first call on it fails", || load.failed() > 0).await;
    println!("fault 48: found after {:?}, with a time of 300 ms and a timeout of 2 s", begun.elapsed());
    load.further(0).await;
    let (failed, calls) = (load.failed(), backends[0].calls());
    load.further(20).await;
    assert_eq!(load.failed(), failed, "nothing is sent there any more");
    assert!(failed <= 8, "each caller had one call there at most, and {failed} failed");
    assert_eq!(backends[0].calls(), calls);

    proxy.black_hole(false);
    backends[0].wait_until(|backend| backend.calls() > calls).await;
    let counts = load.stop().await;
    assert_eq!(counts.failed.len(), failed);
    for status in counts.failed {
        assert_eq!(status.code(), Code::Unavailable);
        let text = format!("connection to {}: no ACK of a keepalive PING within 2s", proxy.address());
        assert_eq!(status.message(), text);
    }
}

/// fault 49: three of ten addresses never respond to a SYN: another endpoint serves the first call at once,
/// and no call fails. An address that accepts and stays silent runs into the connect timeout, then into
/// backoff.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unresponsive_endpoints_delay_no_call() {
    let backends = backends(10).await;
    let silent = Proxy::to(backends[9].address()).await;
    silent.accept_only(true);
    let mut addresses: Vec<SocketAddr> = backends.iter().map(Backend::address).collect();
    addresses[9] = silent.address();
    let dials = RecordingConnector::default();
    for address in &addresses[..3] {
        dials.hang(*address);
    }
    let channel =
        over(addresses).connector(dials.clone()).connect_timeout(Duration::from_millis(300)).build().unwrap();
    let begun = Instant::now();
    unary(&channel).await.unwrap();
    println!("fault 49: first call with 3 of 10 addresses unanswered after {:?}", begun.elapsed());

    let load = Load::start(&channel, 16);
    let mute = silent.address();
    until("the silent one is tried again", || dials.to(mute).len() > 1).await;
    load.further(5).await;
    for backend in &backends[3..9] {
        backend.wait_until(|backend| backend.calls() >= 5).await;
    }
    let quiet = backends[..3].iter().chain(&backends[9..]).map(Backend::calls).sum::<usize>();
    assert_eq!(quiet, 0);

    silent.accept_only(false);
    backends[9].wait_until(|backend| backend.calls() > 0).await;
    load.stop().await.expect_none_failed();
}

/// A peer that accepts TCP and does not speak HTTP/2 never becomes READY. The status names the pending step.
#[tokio::test]
async fn a_port_that_is_open_is_not_yet_an_endpoint() {
    let backend = Backend::start().await;
    let silent = Proxy::to(backend.address()).await;
    silent.accept_only(true);
    let channel = over([silent.address()]).connect_timeout(Duration::from_millis(200)).build().unwrap();
    let status = unary(&channel).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    let text = format!("connecting to {}: timed out", silent.address());
    assert!(status.message().contains(&text), "{status}");
}

/// PF-3, PF-4, fault 49: Happy Eyeballs: if an address does not respond, the next one is tried after a delay
/// while earlier attempts continue. The first connection wins, and the other attempts are cancelled.
#[tokio::test]
async fn the_next_address_is_tried_after_a_delay() {
    let backend = Backend::start().await;
    let dead: [SocketAddr; 2] = ["127.0.0.2:9", "127.0.0.3:9"].map(|address| address.parse().unwrap());
    let dials = RecordingConnector::default();
    for address in dead {
        dials.hang(address);
    }
    let delay = Duration::from_millis(120);
    let list = [dead[0], dead[1], backend.address()];
    let channel = crate::builder(target(list)).connector(dials.clone()).attempt_delay(delay).build().unwrap();
    unary(&channel).await.unwrap();

    let all = dials.all();
    assert_eq!(all.iter().map(|dial| dial.to).collect::<Vec<_>>(), list, "in order, each once");
    for pair in all.windows(2) {
        assert!(pair[1].at - pair[0].at >= delay, "each attempt but the last has {delay:?} to itself");
    }
    until("the others are given up", || dials.all().iter().all(|dial| dial.over_at.is_some())).await;
    let won_at = dials.all()[2].over_at;
    for dial in &dials.all()[..2] {
        assert!(
            dial.outcome.is_none() && dial.over_at >= won_at,
            "{dial:?} went on until there was a winner"
        );
    }
    assert_eq!(backend.connections(), 1);
}

/// fault 53: endpoints connect slowly, one after the other. Calls use the READY ones, and none waits for a
/// CONNECTING one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_waits_for_a_connecting_endpoint() {
    let served = serve(|_| Answer::Ok(Vec::new().into()));
    let addresses: Vec<SocketAddr> = (0..40).map(|i| served.address(i)).collect();
    let dials = RecordingConnector::default();
    for (i, address) in addresses.iter().enumerate() {
        dials.delay(*address, Duration::from_millis(20 * i as u64));
    }
    let channel = over(addresses.iter().copied()).connector(dials.clone()).build().unwrap();
    let load = Load::start(&channel, 16);
    until("all serve", || served.calls_by_address().len() == addresses.len()).await;
    load.further(1).await;
    let counts = load.stop().await;
    println!(
        "fault 53: {} calls while 40 endpoints connected over 0.8 s, slowest {:?}",
        counts.ok, counts.slowest
    );
    counts.expect_none_failed();
    assert!(served.connections_by_address().values().all(|connections| *connections == 1));
}

/// fault 54: an endpoint with one concurrent stream gets one call at a time. Others are queued, and a
/// cancelled call does not consume a stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_wait_for_a_stream() {
    let backend = Backend::builder().max_concurrent_streams(1).start().await;
    let channel = over([backend.address()]).build().unwrap();
    let mut calls = JoinSet::new();
    for _ in 0..100 {
        let channel = channel.clone();
        calls.spawn(async move { unary(&channel).await });
    }
    while let Some(call) = calls.join_next().await {
        call.unwrap().unwrap();
        assert!(backend.in_flight() <= 1);
    }
    assert_eq!((backend.calls(), backend.connections()), (100, 1));

    backend.pause();
    let busy = tokio::spawn({
        let channel = channel.clone();
        async move { unary(&channel).await }
    });
    backend.wait_until(|backend| backend.in_flight() == 1).await;
    for _ in 0..10 {
        let mut request = Request::new(request("short"));
        request.set_timeout(Duration::from_millis(20));
        let status = EchoClient::new(channel.clone()).unary(request).await.unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    }
    backend.resume();
    busy.await.unwrap().unwrap();
    unary(&channel).await.unwrap();
    assert_eq!(backend.calls(), 102, "those that gave up never came to the endpoint");
}

/// fault 73: a process without free descriptors: calls fail with the reason, calls on existing connections
/// continue, and all recovers with free descriptors. This test starts the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_descriptors_calls_fail_with_the_reason_and_recover() {
    let served = serve(|_| Answer::Ok(Vec::new().into()));
    let addresses: Vec<SocketAddr> = (0..100).map(|i| served.address(i)).collect();
    let output = tokio::task::spawn_blocking(move || {
        Command::new("sh")
            .args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""])
            .arg(std::env::current_exe().unwrap())
            .args(["backends::in_a_process_with_64_descriptors", "--exact", "--nocapture"])
            .env("STORY_TARGET", target(addresses))
            .output()
            .unwrap()
    });
    let output = timeout(2 * LONG, output).await.expect("the process ends").unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"));
    println!("{}", said.lines().filter(|line| line.starts_with("fault 73")).collect::<Vec<_>>().join("\n"));
    let connected = served.connections_by_address().len();
    assert!((20..64).contains(&connected), "{connected} of 100 endpoints had room in 64 descriptors");
}

/// Child process of the test above. Without its environment variable it does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_process_with_64_descriptors() {
    let Ok(target) = std::env::var("STORY_TARGET") else { return };
    let everything =
        || -> Vec<std::fs::File> { std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect() };
    let channel =
        crate::builder(target).service_config(ROUND_ROBIN).backoff(short_backoff()).build().unwrap();

    let hoard = everything();
    println!("fault 73: {} descriptors are taken", hoard.len());
    let status = unary(&channel).await.unwrap_err();
    println!("fault 73: {status}");
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().to_lowercase().contains("too many open files"), "{status}");

    drop(hoard);
    let freed = Instant::now();
    let mut patient = Request::new(request("patient"));
    patient.extensions_mut().insert(WaitForReady(true));
    timeout(LONG, EchoClient::new(channel.clone()).unary(patient)).await.expect("it recovers").unwrap();
    println!("fault 73: recovered {:?} after descriptors were free", freed.elapsed());

    // Most endpoints cannot connect, which does not affect the connected ones.
    let load = Load::start(&channel, 8);
    load.further(50).await;
    let hoard = everything();
    load.further(50).await;
    drop(hoard);
    load.stop().await.expect_none_failed();
}

/// Connector that records attempts and can delay them.
#[derive(Clone, Default)]
struct RecordingConnector(Arc<Mutex<RecordedConnects>>);

#[derive(Default)]
struct RecordedConnects {
    dials: Vec<RecordedConnect>,
    hanging: HashSet<SocketAddr>,
    delays: Vec<(SocketAddr, Duration)>,
}

/// Connection attempt with its times and result.
#[derive(Clone, Copy, Debug)]
struct RecordedConnect {
    to: SocketAddr,
    at: Instant,
    over_at: Option<Instant>,
    /// True if it connected; `None` if it is in progress or was cancelled.
    outcome: Option<bool>,
}

impl RecordingConnector {
    fn state(&self) -> std::sync::MutexGuard<'_, RecordedConnects> {
        lock(&self.0)
    }

    /// Makes attempts to this address hang.
    fn hang(&self, address: SocketAddr) {
        self.state().hanging.insert(address);
    }

    fn delay(&self, address: SocketAddr, delay: Duration) {
        self.state().delays.push((address, delay));
    }

    fn all(&self) -> Vec<RecordedConnect> {
        self.state().dials.clone()
    }

    fn to(&self, address: SocketAddr) -> Vec<RecordedConnect> {
        self.all().into_iter().filter(|dial| dial.to == address).collect()
    }

    fn failed(&self, address: SocketAddr) -> usize {
        self.to(address).iter().filter(|dial| dial.outcome == Some(false)).count()
    }
}

impl Connector for RecordingConnector {
    fn connect(
        &self,
        address: &Address,
    ) -> Pin<Box<dyn Future<Output = io::Result<Box<dyn Io>>> + Send + '_>> {
        let Address::Ip(to) = *address else { panic!("{address} is not an IP address") };
        let mut state = self.state();
        // The attempt counts from here, even if its future is never polled.
        let dialling = ConnectGuard { dials: self.clone(), index: state.dials.len(), outcome: None };
        state.dials.push(RecordedConnect { to, at: Instant::now(), over_at: None, outcome: None });
        let hangs = state.hanging.contains(&to);
        let delay = state.delays.iter().find(|(address, _)| *address == to).map(|(_, delay)| *delay);
        Box::pin(async move {
            if hangs {
                std::future::pending::<()>().await;
            }
            sleep(delay.unwrap_or_default()).await;
            let stream = TcpStream::connect(to).await;
            dialling.ended(stream.is_ok());
            Ok(Box::new(stream?) as Box<dyn Io>)
        })
    }
}

/// Records the end of an attempt, including a cancelled one.
struct ConnectGuard {
    dials: RecordingConnector,
    index: usize,
    outcome: Option<bool>,
}

impl ConnectGuard {
    fn ended(mut self, well: bool) {
        self.outcome = Some(well);
    }
}

impl Drop for ConnectGuard {
    fn drop(&mut self) {
        let mut state = self.dials.state();
        let dial = &mut state.dials[self.index];
        dial.over_at = Some(Instant::now());
        dial.outcome = self.outcome;
    }
}
