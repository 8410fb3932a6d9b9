//! Client process: an xDS channel, calls on it, and a command interface.
//!
//! Its first line on stdout is the time of the first response. Then each line on stdin is a command, with one
//! line on stdout as result. Times are nanoseconds of the monotonic clock.
//!
//! | command | result |
//! |---|---|
//! | `connected COUNT` | time at which this number of endpoints of the watched generation were connected |
//! | `watch GENERATION` | `watching`: from here on, endpoints of this generation are the new ones |
//! | `swapped` | time of the first response from a new endpoint, and time at which the channel was READY again, 0 if it always was |
//! | `since` | number of calls sent to old endpoints after the update was in force, and number of failed calls |
//! | `call COUNT` | makes this number of sequential calls: number of failures |
//! | `cpu` | processor time of all threads, including the kernel's |
//! | `windows` | per half second since the first call: number of calls, median and 99th percentile of latency in microseconds |
//! | `weighed` | number of schedules that weighted_round_robin has computed without weights |
//! | `switches` | number of voluntary context switches of the process |

use std::io::BufRead as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use evenkeel::{Bootstrap, Channel, ConnectivityState, Description, XdsClient, XdsVariant};
use testkit::lock;
use testkit::net::echo::EchoRequest;
use testkit::net::echo::echo_client::EchoClient;
use tokio::sync::{Notify, mpsc};

use super::harness::{FIRST, LIMIT, generation};
use super::{nanos, now};
use crate::Error;
use crate::common::allocator::Totals;

/// Length of a window of latencies: half a second.
pub(super) const WINDOW_NANOS: u64 = 500_000_000;

/// Number of concurrent calls at maximum rate.
const CONCURRENCY: usize = 4;

#[derive(clap::Args)]
pub(crate) struct Args {
    control: SocketAddr,
    #[arg(long)]
    delta: bool,
    /// Milliseconds between calls, or 0 for calls at the maximum rate. The default is a single call.
    #[arg(long)]
    every: Option<u64>,
    /// Number of worker threads of the runtime.
    #[arg(long, default_value_t = 2)]
    workers: usize,
    /// Number of channels. Calls go through the first one.
    #[arg(long, default_value_t = 1)]
    channels: usize,
}

pub(super) fn run(args: &Args) -> Result<(), Error> {
    Totals::stop();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(args.workers).enable_all().build()?;
    runtime.block_on(serve(args))
}

async fn serve(args: &Args) -> Result<(), Error> {
    let xds_client = xds_client(args)?;
    let channel = channel(&xds_client)?;
    let first = EchoClient::new(channel.clone()).unary(EchoRequest::default()).await.map(|_| now());
    let first = first?;
    println!("{first}");
    // Keep the channels open without calls.
    let mut silent = Vec::new();
    for _ in 1..args.channels {
        let channel = self::channel(&xds_client)?;
        EchoClient::new(channel.clone()).unary(EchoRequest::default()).await?;
        silent.push(channel);
    }
    let latencies = Mutex::new(LatencyWindows::new(first));
    let shared = Arc::new(Shared { channel, seen: Mutex::default(), changed: Notify::new(), latencies });
    match args.every {
        None => {}
        Some(0) => {
            for _ in 0..CONCURRENCY {
                tokio::spawn(calls_without_end(shared.clone()));
            }
        }
        Some(every) => drop(tokio::spawn(calls_each(shared.clone(), Duration::from_millis(every)))),
    }
    let mut commands = commands();
    while let Some(command) = commands.recv().await {
        println!("{}", shared.answer(&command?).await?);
    }
    Ok(())
}

fn xds_client(args: &Args) -> Result<XdsClient, Error> {
    let bootstrap = format!(
        r#"{{"xds_servers": [{{"server_uri": "{}", "channel_creds": [{{"type": "insecure"}}]}}], "node": {{"id": "bench"}}}}"#,
        args.control
    );
    let variant = if args.delta { XdsVariant::Delta } else { XdsVariant::StateOfTheWorld };
    Ok(XdsClient::builder(Bootstrap::from_json(&bootstrap)?).variant(variant).build())
}

fn channel(xds_client: &XdsClient) -> Result<Channel, Error> {
    Ok(Channel::builder("xds:///bench").xds_client(xds_client.clone()).build()?)
}

/// Returns the lines of stdin, read on a thread of their own that ends with it.
fn commands() -> mpsc::UnboundedReceiver<std::io::Result<String>> {
    let (sender, commands) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    commands
}

struct Shared {
    channel: Channel,
    seen: Mutex<CallRecord>,
    changed: Notify,
    latencies: Mutex<LatencyWindows>,
}

/// Latencies of calls by the half second in which they ended.
struct LatencyWindows {
    start: u64,
    /// Latencies in microseconds, by window.
    windows: Vec<Vec<u32>>,
}

impl LatencyWindows {
    fn new(start: u64) -> LatencyWindows {
        LatencyWindows { start, windows: Vec::new() }
    }

    fn record(&mut self, began: u64, ended: u64) {
        let window = (ended.saturating_sub(self.start) / WINDOW_NANOS) as usize;
        if self.windows.len() <= window {
            self.windows.resize_with(window + 1, || Vec::with_capacity(1 << 14));
        }
        let micros = ended.saturating_sub(began) / 1_000;
        self.windows[window].push(u32::try_from(micros).unwrap_or(u32::MAX));
    }

    /// Returns number, median and 99th percentile of each window, in sequence.
    fn summary(&self) -> Vec<u64> {
        let of_window = |window: &Vec<u32>| {
            let mut sorted = window.clone();
            sorted.sort_unstable();
            let rank = |percent: usize| sorted.get(sorted.len() * percent / 100).copied().unwrap_or(0);
            [sorted.len() as u64, u64::from(rank(50)), u64::from(rank(99))]
        };
        self.windows.iter().flat_map(of_window).collect()
    }
}

/// Results of the calls since `watch`.
struct CallRecord {
    generation: u8,
    /// Time at which the channel was READY again.
    ready: Option<u64>,
    /// Time of the first response from a new endpoint.
    first: Option<u64>,
    late: u32,
    failed: u32,
}

impl Default for CallRecord {
    fn default() -> CallRecord {
        CallRecord { generation: FIRST, ready: None, first: None, late: 0, failed: 0 }
    }
}

impl CallRecord {
    /// Records a call that ended at an endpoint of this generation.
    fn add(&mut self, began: u64, ended: u64, generation: u8) {
        if generation == self.generation {
            self.first.get_or_insert(ended);
        } else if self.ready.or(self.first).is_some_and(|in_force| began > in_force) {
            self.late += 1;
        }
    }
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, CallRecord> {
        // Poisoning is ignored: no code panics while holding the lock.
        lock(&self.seen)
    }

    async fn answer(self: &Arc<Self>, command: &str) -> Result<String, Error> {
        let words: Vec<&str> = command.split(' ').collect();
        match words[..] {
            ["connected", count] => Ok(self.connected(count.parse()?).await?.to_string()),
            ["watch", generation] => {
                self.watch(generation.parse()?);
                Ok("watching".to_owned())
            }
            ["swapped"] => {
                let [first, ready] = tokio::time::timeout(LIMIT, self.swapped())
                    .await
                    .map_err(|_| "no call went to a new endpoint")?;
                Ok(format!("{first} {ready}"))
            }
            ["since"] => {
                let seen = self.seen();
                Ok(format!("{} {}", seen.late, seen.failed))
            }
            ["call", count] => {
                let before = self.seen().failed;
                for _ in 0..count.parse::<u32>()? {
                    self.call().await;
                }
                Ok((self.seen().failed - before).to_string())
            }
            ["cpu"] => {
                let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
                Ok(nanos(time).to_string())
            }
            ["windows"] => {
                let latencies = lock(&self.latencies);
                let numbers: Vec<String> = latencies.summary().iter().map(u64::to_string).collect();
                Ok(format!("{} {}", latencies.start, numbers.join(" ")))
            }
            ["weighed"] => Ok(self.channel.tree().await.map_or(0, |tree| weighed(&tree)).to_string()),
            ["switches"] => Ok(switches()?.to_string()),
            _ => Err(format!("unknown command {command:?}").into()),
        }
    }

    async fn connected(&self, count: usize) -> Result<u64, Error> {
        let generation = self.seen().generation;
        let limit = now() + LIMIT.as_nanos() as u64;
        loop {
            let ready = self.channel.tree().await.map_or(0, |tree| ready(&tree, generation));
            let now = now();
            if ready >= count {
                return Ok(now);
            }
            if now > limit {
                return Err(format!("only {ready} of {count} endpoints are connected").into());
            }
            // Reading the tree costs the channel time, so it is polled slowly.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn watch(self: &Arc<Self>, generation: u8) {
        *self.seen() = CallRecord { generation, ..CallRecord::default() };
        let mut connectivity = self.channel.watch_connectivity();
        connectivity.mark_unchanged();
        let shared = self.clone();
        tokio::spawn(async move {
            // CONNECTING may be too short to be observed.
            while connectivity.changed().await.is_ok() {
                if *connectivity.borrow() == ConnectivityState::Ready {
                    let mut seen = shared.seen();
                    if seen.generation == generation {
                        seen.ready = Some(now());
                    }
                    return;
                }
            }
        });
    }

    async fn swapped(&self) -> [u64; 2] {
        loop {
            {
                let seen = self.seen();
                if let Some(first) = seen.first {
                    return [first, seen.ready.unwrap_or(0)];
                }
            }
            self.changed.notified().await;
        }
    }

    async fn call(&self) {
        let began = now();
        let answer = EchoClient::new(self.channel.clone()).unary(EchoRequest::default()).await;
        let backend = answer.ok().and_then(|answer| answer.into_inner().backend.parse::<IpAddr>().ok());
        let ended = now();
        lock(&self.latencies).record(began, ended);
        match backend.and_then(generation) {
            Some(generation) => self.seen().add(began, ended, generation),
            None => self.seen().failed += 1,
        }
        self.changed.notify_one();
    }
}

async fn calls_without_end(shared: Arc<Shared>) {
    loop {
        shared.call().await;
    }
}

/// Starts calls at a fixed interval, independent of earlier responses.
async fn calls_each(shared: Arc<Shared>, every: Duration) {
    let mut turns = tokio::time::interval(every);
    loop {
        turns.tick().await;
        let shared = shared.clone();
        tokio::spawn(async move { shared.call().await });
    }
}

/// Returns the number of READY endpoints of a generation.
fn ready(tree: &Description, wanted: u8) -> usize {
    let is_wanted = |address: &String| {
        address.parse().ok().and_then(|address: SocketAddr| generation(address.ip())) == Some(wanted)
    };
    let own = tree
        .endpoints
        .iter()
        .filter(|row| row.state == ConnectivityState::Ready && row.addresses.iter().any(is_wanted))
        .count();
    own + tree.children.iter().map(|(_, child)| ready(child, wanted)).sum::<usize>()
}

/// Returns the number of schedules computed without weights, in all policies of a tree.
fn weighed(tree: &Description) -> u64 {
    let own = tree.details.get("rr_fallback").and_then(serde_json::Value::as_u64).unwrap_or(0);
    own + tree.children.iter().map(|(_, child)| weighed(child)).sum::<u64>()
}

/// Returns the number of voluntary context switches of all threads so far.
fn switches() -> Result<u64, Error> {
    let mut sum = 0;
    for thread in std::fs::read_dir("/proc/self/task")? {
        // A thread may end between the two reads.
        let status = std::fs::read_to_string(thread?.path().join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        sum += line.map_or(Ok(0), |count| count.trim().parse::<u64>())?;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_summed_up_by_half_second() {
        let mut windows = LatencyWindows::new(1_000);
        for call in 0..100 {
            windows.record(1_000, 1_000 + call * 1_000_000);
        }
        windows.record(1_000, 1_000 + 2 * WINDOW_NANOS);
        assert_eq!(windows.summary(), [100, 50_000, 99_000, 0, 0, 0, 1, 1_000_000, 1_000_000]);
    }

    #[test]
    fn calls_that_begin_when_new_endpoints_are_in_force_and_go_to_old_ones_are_late() {
        let mut seen = CallRecord { generation: 2, ..CallRecord::default() };
        seen.add(10, 20, 1);
        assert_eq!((seen.first, seen.late), (None, 0));
        seen.add(30, 40, 2);
        seen.add(35, 45, 1);
        assert_eq!((seen.first, seen.late), (Some(40), 0));
        seen.add(41, 50, 1);
        assert_eq!(seen.late, 1);
        seen.ready = Some(33);
        seen.add(34, 60, 1);
        seen.add(34, 60, 2);
        assert_eq!((seen.first, seen.late), (Some(40), 2));
    }
}
