//! Backend process of the demo: a tonic server with limited capacity that reports its utilization (ORCA).
//!
//! The capacity is simulated, since all backends share one machine. Workers spend 20 ms on each call, one
//! call at a time. A call that would queue for more than 500 ms is rejected. Server, transport and load
//! reports are real.

use std::convert::Infallible;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use evenkeel_orca::ServerLoad;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::ui::{CliError, CliExit};

/// Path of the demo service's only method.
pub(super) const METHOD: &str = "/evenkeel.demo.Work/Do";
/// Response metadata key that carries the name of the backend.
pub(super) const BACKEND_METADATA: &str = "backend";

/// Time that a worker spends on one call.
const CALL_DURATION: Duration = Duration::from_millis(20);
/// Maximum time a call may wait for a worker. Calls above it are rejected.
const MAX_QUEUE_DELAY: Duration = Duration::from_millis(500);
/// Interval between two updates of the reported utilization.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// Run one backend process of the demo.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoBackendArgs {
    /// Name that the backend returns with each response.
    #[arg(long)]
    name: String,
    /// Capacity in calls per second.
    #[arg(long)]
    capacity: u32,
    /// Address to listen on.
    #[arg(long)]
    listen: SocketAddr,
}

/// Serves until standard input closes. That happens when the parent process exits for any reason, so no
/// backend outlives the demo. The first line on standard output is the listening address.
pub(crate) async fn run(args: DemoBackendArgs) -> Result<CliExit, CliError> {
    let refused =
        |error| CliError::usage(format!("backend {}: cannot listen on {}: {error}", args.name, args.listen));
    let listener = TcpListener::bind(args.listen).await.map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    let name = MetadataValue::try_from(args.name.as_str())
        .map_err(|_| CliError::usage(format!("backend {:?}: expected a name in ASCII", args.name)))?;
    let workers = Arc::new(Mutex::new(WorkerPool::new(args.capacity)));
    // The CPU is shared by all backends, so its utilization does not describe this one.
    let load = ServerLoad::builder().without_cpu().build();
    tokio::spawn(report_utilization(load.clone(), workers.clone()));
    let server = tonic::transport::Server::builder()
        .layer(load.layer())
        .serve_with_incoming(WorkService { name, workers }, TcpListenerStream::new(listener));
    let _ = writeln!(std::io::stdout(), "{address}");
    let mut input = tokio::io::stdin();
    let mut ignored = [0; 64];
    tokio::select! {
        ended = server => ended.map_err(|error| CliError::usage(format!("backend {}: {error}", args.name)))?,
        () = async { while input.read(&mut ignored).await.is_ok_and(|read| read > 0) {} } => {}
    }
    Ok(CliExit::Success)
}

async fn report_utilization(load: ServerLoad, workers: Arc<Mutex<WorkerPool>>) {
    let mut ticks = interval(REPORT_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut window = UtilizationWindow::default();
    loop {
        let now = ticks.tick().await;
        let done = lock(&workers).done(now);
        if let Some(utilization) = window.utilization(now, done) {
            load.set_application_utilization(utilization);
        }
    }
}

/// Utilization of the workers over a sliding window of one second.
#[derive(Default)]
struct UtilizationWindow {
    /// Sample times, each with the cumulative work per worker at that time.
    samples: std::collections::VecDeque<(Instant, Duration)>,
}

impl UtilizationWindow {
    fn utilization(&mut self, now: Instant, done: Duration) -> Option<f64> {
        self.samples.push_back((now, done));
        while self.samples.len() > 2 && now - self.samples[1].0 >= Duration::from_secs(1) {
            self.samples.pop_front();
        }
        let (then, before) = self.samples[0];
        let passed = now - then;
        (passed > Duration::ZERO).then(|| (done.saturating_sub(before)).as_secs_f64() / passed.as_secs_f64())
    }
}

/// Simulated workers, each with the time at which it becomes free.
#[derive(Debug)]
struct WorkerPool {
    free_at: Vec<Option<Instant>>,
    /// Total work assigned so far.
    assigned: Duration,
}

impl WorkerPool {
    fn new(capacity: u32) -> WorkerPool {
        let workers = (f64::from(capacity) * CALL_DURATION.as_secs_f64()).round().max(1.0) as usize;
        WorkerPool { free_at: vec![None; workers], assigned: Duration::ZERO }
    }

    /// Assigns a call to the worker that becomes free first. Returns the completion time, or `None` if the
    /// call would wait longer than [`MAX_QUEUE_DELAY`].
    fn assign(&mut self, now: Instant) -> Option<Instant> {
        let first = self.free_at.iter_mut().min_by_key(|free_at| free_at.unwrap_or(now).max(now))?;
        let begins = first.unwrap_or(now).max(now);
        if begins - now > MAX_QUEUE_DELAY {
            return None;
        }
        let ends = begins + CALL_DURATION;
        *first = Some(ends);
        self.assigned += CALL_DURATION;
        Some(ends)
    }

    /// Returns the work completed by `now`, averaged over the workers.
    fn done(&self, now: Instant) -> Duration {
        let ahead: Duration =
            self.free_at.iter().flatten().map(|free_at| free_at.saturating_duration_since(now)).sum();
        self.assigned.saturating_sub(ahead) / self.free_at.len() as u32
    }
}

/// Service whose calls complete after the simulated processing time.
#[derive(Clone)]
struct WorkService {
    name: MetadataValue<Ascii>,
    workers: Arc<Mutex<WorkerPool>>,
}

impl NamedService for WorkService {
    const NAME: &'static str = "evenkeel.demo.Work";
}

impl Service<http::Request<Body>> for WorkService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let work = self.clone();
        Box::pin(async move {
            if request.uri().path() != METHOD {
                return Ok(Status::unimplemented(format!("unknown method; expected {METHOD}")).into_http());
            }
            Ok(Grpc::new(ProstCodec::<(), ()>::default()).unary(work, request).await)
        })
    }
}

impl UnaryService<()> for WorkService {
    type Response = ();
    type Future = BoxFuture<Response<()>, Status>;

    fn call(&mut self, _: Request<()>) -> Self::Future {
        let ends = lock(&self.workers).assign(Instant::now());
        let name = self.name.clone();
        Box::pin(async move {
            let Some(ends) = ends else {
                let mut status = Status::resource_exhausted("the queue of calls is full");
                status.metadata_mut().insert(BACKEND_METADATA, name);
                return Err(status);
            };
            sleep_until(ends).await;
            let mut response = Response::new(());
            response.metadata_mut().insert(BACKEND_METADATA, name);
            Ok(response)
        })
    }
}

/// Locks a mutex and ignores poisoning. Code under these locks does not panic.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evenly spaced calls to backends of several capacities: completed calls, rejected calls and the
    /// reported utilization.
    #[test]
    fn a_backend_does_what_it_can() {
        let start = Instant::now();
        for (capacity, per_second, refused, busiest) in
            [(100, 90, false, 0.9), (100, 120, true, 1.0), (400, 120, false, 0.3), (800, 120, false, 0.15)]
        {
            let mut workers = WorkerPool::new(capacity);
            let mut window = UtilizationWindow::default();
            let (mut sent_away, mut utilization, mut longest) = (0, 0.0, Duration::ZERO);
            for call in 0..per_second * 6 {
                let now = start + Duration::from_secs(1) * call / per_second;
                match workers.assign(now) {
                    Some(ends) => longest = longest.max(ends - now),
                    None => sent_away += 1,
                }
                if call % 12 == 0 {
                    utilization = window.utilization(now, workers.done(now)).unwrap_or(utilization);
                }
            }
            assert_eq!(sent_away > 0, refused, "{capacity} at {per_second}: {sent_away} sent away");
            assert!((utilization - busiest).abs() < 0.03, "{capacity} at {per_second}: {utilization}");
            assert!(longest <= MAX_QUEUE_DELAY + CALL_DURATION, "{longest:?}");
        }
    }
}
