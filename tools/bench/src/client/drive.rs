//! Concurrent calls, and their cost for the calling process.
//!
//! The process warms up, prints `ready` and waits for a line, so that the driver can read the backends'
//! counters first. Then it measures, and prints its figures as one line of JSON. Calls are counted at their
//! end, and processor time is read at the same two times. Warm-up, start and exit are not counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinSet;

use crate::Error;
use crate::client::echo::Ask;
use crate::client::histogram::Histogram;

/// Client that makes a call and waits for its response.
pub(crate) trait Client: Clone + Send + 'static {
    fn call(&mut self, ask: &Ask) -> impl Future<Output = Result<(), Error>> + Send;
}

/// Concurrency and duration of the calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) concurrency: usize,
    pub(crate) warm_up: Duration,
    pub(crate) span: Span,
}

/// End of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Span {
    Time(Duration),
    Calls(u64),
}

/// Warms up, waits for a line on stdin, measures, and prints the figures.
pub(crate) async fn measure(client: impl Client, ask: Ask, load: Load) -> Result<(), Error> {
    let caller = Caller { client, ask: Arc::new(ask), concurrency: load.concurrency };
    caller.run(Span::Time(load.warm_up)).await?;
    println!("ready");
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
    let figures = caller.run(load.span).await?;
    println!("{}", figures.json());
    Ok(())
}

struct Caller<C> {
    client: C,
    ask: Arc<Ask>,
    concurrency: usize,
}

impl<C: Client> Caller<C> {
    /// Makes calls for a span. The first failure ends it.
    async fn run(&self, span: Span) -> Result<Figures, Error> {
        let shared = Arc::new(Shared::new(span));
        let mut tasks = JoinSet::new();
        for _ in 0..self.concurrency {
            tasks.spawn(calls(self.client.clone(), self.ask.clone(), shared.clone()));
        }
        let before = DriveSnapshot::now(&shared)?;
        let mut after = None;
        if let Span::Time(time) = span {
            tokio::time::sleep(time).await;
            after = Some(DriveSnapshot::now(&shared)?);
            shared.is_over.store(true, Ordering::Relaxed);
        }
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        let after = after.map_or_else(|| DriveSnapshot::now(&shared), Ok)?;
        Ok(Figures::between(&before, &after, &shared.latencies))
    }
}

/// State that the tasks of one span share.
struct Shared {
    /// Number of calls still to start; `None` if the time is limited instead.
    to_start: Option<AtomicU64>,
    is_over: AtomicBool,
    ended: AtomicU64,
    latencies: Histogram,
}

impl Shared {
    fn new(span: Span) -> Shared {
        let to_start = match span {
            Span::Time(_) => None,
            Span::Calls(calls) => Some(AtomicU64::new(calls)),
        };
        Shared {
            to_start,
            is_over: AtomicBool::new(false),
            ended: AtomicU64::new(0),
            latencies: Histogram::new(),
        }
    }

    /// Returns true if another call should start.
    fn next(&self) -> bool {
        match &self.to_start {
            None => !self.is_over.load(Ordering::Relaxed),
            Some(left) => {
                left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
            }
        }
    }
}

/// Makes sequential calls until the span ends.
async fn calls(mut client: impl Client, ask: Arc<Ask>, shared: Arc<Shared>) -> Result<(), Error> {
    let mut began = Instant::now();
    while shared.next() {
        client.call(&ask).await?;
        let ended = Instant::now();
        shared.latencies.record(ended.duration_since(began).as_nanos() as u64);
        shared.ended.fetch_add(1, Ordering::Relaxed);
        began = ended;
    }
    Ok(())
}

struct DriveSnapshot {
    at: Instant,
    cpu: Duration,
    ended: u64,
}

impl DriveSnapshot {
    fn now(shared: &Shared) -> Result<DriveSnapshot, Error> {
        Ok(DriveSnapshot {
            at: Instant::now(),
            cpu: cpu_time()?,
            ended: shared.ended.load(Ordering::Relaxed),
        })
    }
}

/// Returns the user and system time of all threads of this process so far.
fn cpu_time() -> Result<Duration, Error> {
    Ok(clock_gettime(ClockId::ProcessCPUTime).try_into()?)
}

/// Measured figures. Times are in seconds.
#[derive(Clone, Debug, PartialEq)]
struct Figures {
    calls: u64,
    elapsed: f64,
    cpu: f64,
    p50: f64,
    p99: f64,
    p999: f64,
}

impl Figures {
    fn between(before: &DriveSnapshot, after: &DriveSnapshot, latencies: &Histogram) -> Figures {
        let quantile = |part| latencies.quantile(part).map_or(0.0, |nanos| nanos as f64 / 1e9);
        Figures {
            calls: after.ended - before.ended,
            elapsed: after.at.duration_since(before.at).as_secs_f64(),
            cpu: (after.cpu.saturating_sub(before.cpu)).as_secs_f64(),
            p50: quantile(0.5),
            p99: quantile(0.99),
            p999: quantile(0.999),
        }
    }

    fn json(&self) -> String {
        let Figures { calls, elapsed, cpu, p50, p99, p999 } = self;
        format!(
            r#"{{"calls": {calls}, "elapsed": {elapsed}, "cpu": {cpu}, "p50": {p50}, "p99": {p99}, "p999": {p999}}}"#
        )
    }
}
