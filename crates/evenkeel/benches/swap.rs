//! How fast a channel follows when all of its endpoints are replaced, while hardly anybody calls.
//!
//! `cargo bench -p evenkeel --bench swap`. Endpoints are addresses of loopback that one process answers on; the control plane and
//! the client are another. The client makes 20 calls per second. One update replaces every endpoint. What counts is the
//! ratio of two times of one run: until the control plane has the ACK, and until the channel is READY by a new endpoint, so
//! that a call goes there; and that no call that began later went to an old endpoint. How long it takes until there is a
//! call, and until it is answered, is printed too: with 50 ms between calls it is chance, so the update comes at another
//! moment between two calls each time. The median ratio is the result.
//!
//! Then the client falls silent, all endpoints are replaced once more and the old ones go away, and 1,000 calls are made: how
//! many failed is printed.
//!
//! There are as many endpoints as the limit of open files allows two sets of, 10,000 at most.

#[path = "../../../bench/src/common/process.rs"]
mod process;

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenkeel::{Bootstrap, Channel, Connectivity, Description};
use evenkeel_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
use testkit::net::ControlPlane;
use testkit::net::echo::EchoRequest;
use testkit::net::echo::echo_client::EchoClient;
use testkit::net::frames::{Answer, serve};

use crate::process::{Server, parse, runtime};

type Error = Box<dyn std::error::Error + Send + Sync>;

const MOST: usize = 10_000;
const BETWEEN_CALLS: Duration = Duration::from_millis(50);
const SWAPS: u32 = 9;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let done = if arguments.first().is_some_and(|mode| mode == "serve") {
        runtime().and_then(|runtime| runtime.block_on(backends()))
    } else {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.map_err(Error::from).and_then(|runtime| runtime.block_on(swap()))
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Answers every call with the address that it came to.
async fn backends() -> Result<(), Error> {
    let served = serve(|call| {
        let address = call.local.to_string();
        // EchoResponse.backend, by hand.
        let mut answer = vec![0x12, u8::try_from(address.len()).unwrap_or(0)];
        answer.extend_from_slice(address.as_bytes());
        Answer::Ok(Bytes::from(answer))
    });
    println!("{}", served.address(0));
    process::until_stdin_ends().await
}

async fn swap() -> Result<(), Error> {
    let count = MOST.min((open_files()?.saturating_sub(1_000)) / 2);
    // Two processes, so that the first set can go away with the first.
    let [old, new] = [Server::start(&["serve".to_owned()])?, Server::start(&["serve".to_owned()])?];
    let [first, second, third] =
        [endpoints(&old, 0, count)?, endpoints(&old, count, count)?, endpoints(&new, 0, count)?];
    let control = ControlPlane::start().await;
    control.serve("bench", "backends", &first);
    let bootstrap = Bootstrap::from_json(&control.bootstrap("bench"))?;
    let channel = Channel::builder("xds:///bench").bootstrap(bootstrap).build()?;
    channel.ready().await?;
    connected(&channel, &first).await;
    println!("{count} endpoints connected");

    let calls = tokio::spawn(calls(EchoClient::new(channel.clone())));
    let mut ratios = Vec::new();
    for turn in 0..SWAPS {
        let endpoints = if turn % 2 == 0 { &second } else { &first };
        let Swapped { acked, ready, answered, all, late } =
            swap_once(&control, &channel, endpoints, turn).await?;
        let ratio = ready.as_secs_f64() / acked.as_secs_f64();
        ratios.push(ratio);
        println!(
            "ACK after {acked:.1?}; READY again after {ready:.1?}, {ratio:.1} times that; a call answered by a new \
             endpoint after {answered:.1?}; calls to old ones after READY: {late}; all connected after {all:.1?}"
        );
        // Old connections end.
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    calls.abort();
    ratios.sort_by(f64::total_cmp);
    println!("median {:.1} times the ACK; calls that failed: {}", ratios[ratios.len() / 2], failed());

    control.set_endpoints("backends", &third);
    control.wait_acked::<ClusterLoadAssignment>().await;
    drop(old);
    // The spell: nobody calls.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut client = EchoClient::new(channel.clone());
    let mut lost = 0;
    for _ in 0..1_000 {
        lost += u32::from(client.unary(EchoRequest::default()).await.is_err());
    }
    println!(
        "after an idle spell in which all endpoints were replaced and died: {lost} of 1000 calls failed"
    );
    Ok(())
}

/// How one swap went: when the control plane had the ACK, when the channel was READY by new endpoints, when the first call was
/// answered by one, when all were connected, and how many calls that began when it was READY went to old endpoints.
struct Swapped {
    acked: Duration,
    ready: Duration,
    answered: Duration,
    all: Duration,
    late: usize,
}

async fn swap_once(
    control: &ControlPlane,
    channel: &Channel,
    endpoints: &[SocketAddr],
    turn: u32,
) -> Result<Swapped, Error> {
    let replaced: HashSet<IpAddr> = endpoints.iter().map(SocketAddr::ip).collect();
    let is_new = |call: &&Made| replaced.contains(&call.to);
    // Each time at another moment between two calls.
    let before = made()?.len();
    while made()?.len() == before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(BETWEEN_CALLS * turn / SWAPS).await;
    let before = made()?.len();
    let mut connectivity = channel.watch_connectivity();
    connectivity.mark_unchanged();
    let began = Instant::now();
    // On a thread of its own: tasks of this runtime wait for each other.
    let ready = std::thread::spawn(move || {
        let waits = runtime()?.block_on(async {
            // CONNECTING may be too short to be seen.
            while connectivity.changed().await.is_ok() && *connectivity.borrow() != Connectivity::Ready {}
            began.elapsed()
        });
        Ok::<_, Error>(waits)
    });
    control.set_endpoints("backends", endpoints);
    control.wait_acked::<ClusterLoadAssignment>().await;
    let acked = began.elapsed();
    // Not before: it would disturb.
    while !made()?[before..].iter().any(|call| is_new(&call)) {
        tokio::time::sleep(BETWEEN_CALLS).await;
    }
    connected(channel, endpoints).await;
    let all = began.elapsed();
    let calls = made()?.split_off(before);
    let first = calls.iter().find(is_new).ok_or("no call came to a new endpoint")?;
    let answered = first.ended.duration_since(began);
    let ready = ready.join().map_err(|_| "the watch panicked")??;
    let late = calls.iter().filter(|call| call.began > began + ready && !is_new(call)).count();
    Ok(Swapped { acked, ready, answered, all, late })
}

/// A call that was answered.
#[derive(Clone)]
struct Made {
    began: Instant,
    ended: Instant,
    to: IpAddr,
}

static CALLS: std::sync::Mutex<Vec<Made>> = std::sync::Mutex::new(Vec::new());
static FAILED: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

fn made() -> Result<Vec<Made>, Error> {
    Ok(CALLS.lock().map_err(|_| "a call panicked")?.clone())
}

fn failed() -> u32 {
    FAILED.load(std::sync::atomic::Ordering::Relaxed)
}

/// 20 calls per second, whether or not those before are answered.
async fn calls(client: EchoClient<Channel>) {
    let mut turns = tokio::time::interval(BETWEEN_CALLS);
    loop {
        turns.tick().await;
        tokio::spawn(call(client.clone()));
    }
}

async fn call(mut client: EchoClient<Channel>) {
    let began = Instant::now();
    let to = match client.unary(EchoRequest::default()).await {
        Ok(answer) => answer.into_inner().backend.parse().ok(),
        Err(_) => None,
    };
    let Some(to) = to else {
        FAILED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        return;
    };
    if let Ok(mut calls) = CALLS.lock() {
        calls.push(Made { began, ended: Instant::now(), to });
    }
}

/// Addresses 127.0.0.1 and on, from the first to be left out.
fn endpoints(server: &Server, skip: usize, count: usize) -> Result<Vec<SocketAddr>, Error> {
    let first = parse(&[server.addresses.first().ok_or("no address")?])?[0];
    let address = |n: usize| {
        let n = u32::try_from(n + 1).unwrap_or(1);
        SocketAddr::from((std::net::Ipv4Addr::from(0x7f00_0000 + n), first.port()))
    };
    Ok((skip..skip + count).map(address).collect())
}

/// Waits until the channel has these endpoints, and every one is connected.
async fn connected(channel: &Channel, endpoints: &[SocketAddr]) {
    let one = endpoints.first().map(ToString::to_string).unwrap_or_default();
    // A look at the tree is work for the channel.
    while channel.tree().await.is_none_or(|tree| !(has(&tree, &one) && is_connected(&tree))) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn has(tree: &Description, address: &String) -> bool {
    tree.endpoints.iter().any(|row| row.addresses.contains(address))
        || tree.children.iter().any(|(_, child)| has(child, address))
}

fn is_connected(tree: &Description) -> bool {
    tree.endpoints.iter().all(|row| row.state == Connectivity::Ready)
        && tree.children.iter().all(|(_, child)| is_connected(child))
}

/// How many files the process may have open.
fn open_files() -> Result<usize, Error> {
    let limits = std::fs::read_to_string("/proc/self/limits")?;
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))
        .ok_or("no limit of open files")?;
    let soft = line.split_whitespace().next().ok_or("no limit of open files")?;
    Ok(soft.parse().unwrap_or(1 << 20))
}
