//! The load of one server: what it measures itself, and what the application says about it.
//!
//! Requests, errors and CPU are measured over the same windows of time, so that a client who divides one by the other
//! gets what a request costs. A window ends with the first call, or the first report out of band, that finds it long
//! enough; no task and no timer runs for it. What is to be sent is made when a window ends or the application says
//! something, and calls only take it along.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use evenkeel_proto::xds::data::orca::v3::OrcaLoadReport;
use http::HeaderValue;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::Code;

use crate::cpu::{CpuMeter, KernelCounters};
use crate::layer::LoadLayer;
use crate::service::LoadService;
use crate::values::{MetricValues, ValueRange};

/// How long a window lasts at least.
const WINDOW: Duration = Duration::from_secs(1);

/// The load of a server, which its clients balance by.
///
/// Requests per second, errors per second and the CPU's utilisation are measured. What the application sets beats what
/// is measured, and stays until it is cleared; everything begins unset. [`ServerLoad::layer`] sends it with the end of
/// every call, [`ServerLoad::service`] to those who ask for it out of band. Values outside of their range are not taken,
/// and the answer is `false`.
///
/// ```no_run
/// # async fn serve(orders: evenkeel_orca::LoadService) -> Result<(), Box<dyn std::error::Error>> {
/// let load = evenkeel_orca::ServerLoad::new();
/// load.set_memory_utilization(0.4);
/// tonic::transport::Server::builder()
///     .layer(load.layer())
///     .add_service(load.service())
/// #   .add_service(orders)
///     .serve("0.0.0.0:50051".parse()?)
///     .await?;
/// # Ok(())
/// # }
/// ```
///
/// Clones are the same. A request counts when it ends, however it does; one that the client gave up is no error.
#[derive(Clone, Debug)]
pub struct ServerLoad(Arc<ServerLoadInner>);

/// Settings of a [`ServerLoad`].
pub struct ServerLoadBuilder {
    cpu: Option<Box<dyn CpuMeter>>,
    window: Duration,
    is_error: Box<dyn Fn(Code) -> bool + Send + Sync>,
}

pub(crate) struct ServerLoadInner {
    requests: AtomicU64,
    errors: AtomicU64,
    is_error: Box<dyn Fn(Code) -> bool + Send + Sync>,
    /// From when on the window may end, as nanoseconds after `began`.
    ends_at: AtomicU64,
    began: Instant,
    window: Duration,
    gauge: Mutex<MeasuredWindow>,
    /// For those who change it.
    state: Mutex<MetricSources>,
    current: ArcSwap<PublishedMetrics>,
}

/// Where the last window ended.
struct MeasuredWindow {
    at: Instant,
    requests: u64,
    errors: u64,
    cpu: Option<Box<dyn CpuMeter>>,
}

#[derive(Default)]
struct MetricSources {
    set: MetricValues,
    measured: MetricValues,
}

/// What is sent.
#[derive(Default)]
struct PublishedMetrics {
    values: MetricValues,
    /// The same as it stands in trailers.
    trailer: Option<HeaderValue>,
}

impl Default for ServerLoad {
    fn default() -> ServerLoad {
        ServerLoad::new()
    }
}

impl ServerLoad {
    /// Measures requests, errors and this machine's CPU ([`KernelCounters`]).
    pub fn new() -> ServerLoad {
        ServerLoad::builder().build()
    }

    /// For other settings.
    pub fn builder() -> ServerLoadBuilder {
        ServerLoadBuilder {
            cpu: Some(Box::new(KernelCounters::new())),
            window: WINDOW,
            is_error: Box::new(is_server_error),
        }
    }

    /// Measures the server's calls, and sends its load with their ends.
    pub fn layer(&self) -> LoadLayer {
        LoadLayer::with(self.clone())
    }

    /// Sends the server's load out of band to those who ask for it.
    pub fn service(&self) -> LoadService {
        LoadService::new(self.clone())
    }

    /// What would be sent now out of band.
    pub fn report(&self) -> OrcaLoadReport {
        self.0.current.load().values.clone().into_report()
    }

    /// The share of the CPU that is used, from 0 on; above 1 is beyond a soft limit.
    pub fn set_cpu_utilization(&self, value: f64) -> bool {
        self.change(|set| ValueRange::NonNegative.set(&mut set.cpu, value))
    }

    /// Back to what is measured.
    pub fn clear_cpu_utilization(&self) {
        self.change(|set| set.cpu = None);
    }

    /// The share of the memory that is used, from 0 to 1.
    pub fn set_memory_utilization(&self, value: f64) -> bool {
        self.change(|set| ValueRange::Fraction.set(&mut set.memory, value))
    }

    /// Not reported any more.
    pub fn clear_memory_utilization(&self) {
        self.change(|set| set.memory = None);
    }

    /// The application's own view of its utilisation, from 0 on; clients prefer it to the CPU's.
    pub fn set_application_utilization(&self, value: f64) -> bool {
        self.change(|set| ValueRange::NonNegative.set(&mut set.application, value))
    }

    /// Not reported any more.
    pub fn clear_application_utilization(&self) {
        self.change(|set| set.application = None);
    }

    /// Requests per second, from 0 on.
    pub fn set_qps(&self, value: f64) -> bool {
        self.change(|set| ValueRange::NonNegative.set(&mut set.requests, value))
    }

    /// Back to what is measured.
    pub fn clear_qps(&self) {
        self.change(|set| set.requests = None);
    }

    /// Errors per second, from 0 on.
    pub fn set_eps(&self, value: f64) -> bool {
        self.change(|set| ValueRange::NonNegative.set(&mut set.errors, value))
    }

    /// Back to what is measured.
    pub fn clear_eps(&self) {
        self.change(|set| set.errors = None);
    }

    /// How far something that has a name is used, from 0 to 1.
    pub fn set_utilization(&self, name: &str, value: f64) -> bool {
        self.change(|set| ValueRange::Fraction.insert(&mut set.utilization, name, value))
    }

    /// Replaces all that [`ServerLoad::set_utilization`] set. Answers whether all were taken.
    pub fn set_all_utilization<N: Into<String>>(&self, values: impl IntoIterator<Item = (N, f64)>) -> bool {
        self.change(|set| ValueRange::Fraction.replace_all(&mut set.utilization, values))
    }

    /// Not reported any more.
    pub fn clear_utilization(&self, name: &str) {
        self.change(|set| set.utilization.remove(name));
    }

    /// Something that has a name and a meaning of the application's own: any number.
    pub fn set_named_metric(&self, name: &str, value: f64) -> bool {
        self.change(|set| ValueRange::Finite.insert(&mut set.named, name, value))
    }

    /// Replaces all that [`ServerLoad::set_named_metric`] set. Answers whether all were taken.
    pub fn set_all_named_metrics<N: Into<String>>(&self, values: impl IntoIterator<Item = (N, f64)>) -> bool {
        self.change(|set| ValueRange::Finite.replace_all(&mut set.named, values))
    }

    /// Not reported any more.
    pub fn clear_named_metric(&self, name: &str) {
        self.change(|set| set.named.remove(name));
    }

    pub(crate) fn shared(&self) -> &Arc<ServerLoadInner> {
        &self.0
    }

    fn change<T>(&self, change: impl FnOnce(&mut MetricValues) -> T) -> T {
        let mut state = lock(&self.0.state);
        let answer = change(&mut state.set);
        self.0.publish(&state);
        answer
    }
}

impl ServerLoadBuilder {
    /// Takes the CPU's utilisation from there.
    #[must_use]
    pub fn cpu(mut self, meter: impl CpuMeter) -> ServerLoadBuilder {
        self.cpu = Some(Box::new(meter));
        self
    }

    /// Does not measure the CPU's utilisation.
    #[must_use]
    pub fn without_cpu(mut self) -> ServerLoadBuilder {
        self.cpu = None;
        self
    }

    /// How long it is measured at least before the result is reported; 1 s unless set.
    #[must_use]
    pub fn window(mut self, window: Duration) -> ServerLoadBuilder {
        self.window = window;
        self
    }

    /// Which ends count as errors. Unless set these are the server's own: UNKNOWN, DEADLINE_EXCEEDED,
    /// RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS.
    #[must_use]
    pub fn errors(mut self, is_error: impl Fn(Code) -> bool + Send + Sync + 'static) -> ServerLoadBuilder {
        self.is_error = Box::new(is_error);
        self
    }

    /// Begins to measure.
    pub fn build(mut self) -> ServerLoad {
        let began = Instant::now();
        if let Some(cpu) = &mut self.cpu {
            cpu.utilization(Duration::ZERO);
        }
        ServerLoad(Arc::new(ServerLoadInner {
            requests: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            is_error: self.is_error,
            ends_at: AtomicU64::new(nanos(self.window)),
            began,
            window: self.window,
            gauge: Mutex::new(MeasuredWindow { at: began, requests: 0, errors: 0, cpu: self.cpu }),
            state: Mutex::default(),
            current: ArcSwap::default(),
        }))
    }
}

/// Ends that say something about this server, and not about the request alone.
fn is_server_error(code: Code) -> bool {
    matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    )
}

impl ServerLoadInner {
    /// A request ended: with a code, or unfinished.
    pub(crate) fn record_call(self: &Arc<ServerLoadInner>, code: Option<Code>) {
        if code.is_some_and(|code| (self.is_error)(code)) {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.measure_if_due();
    }

    /// The trailer of a call that recorded nothing.
    pub(crate) fn trailer(&self) -> Option<HeaderValue> {
        self.current.load().trailer.clone()
    }

    /// The trailer of a call that recorded this.
    pub(crate) fn trailer_with(&self, call: MetricValues) -> Option<HeaderValue> {
        if call.is_empty() {
            return self.trailer();
        }
        let mut trailer = call.merge(&self.current.load().values).into_trailer()?;
        // It does not come again: HTTP/2 need not remember it, and forget for it what does.
        trailer.set_sensitive(true);
        Some(trailer)
    }

    /// Ends the window if it is long enough. That reads files, so it happens aside; whoever wants to may wait for it.
    pub(crate) fn measure_if_due(self: &Arc<ServerLoadInner>) -> Option<JoinHandle<()>> {
        let now = nanos(self.began.elapsed());
        let ends_at = self.ends_at.load(Ordering::Relaxed);
        if now < ends_at {
            return None;
        }
        let next = now.saturating_add(nanos(self.window));
        // Of those who see the end of a window, one measures.
        self.ends_at.compare_exchange(ends_at, next, Ordering::Relaxed, Ordering::Relaxed).ok()?;
        let shared = self.clone();
        let measure = move || shared.measure(Instant::now());
        if let Ok(runtime) = Handle::try_current() {
            return Some(runtime.spawn_blocking(measure));
        }
        measure();
        None
    }

    fn measure(&self, now: Instant) {
        let mut gauge = lock(&self.gauge);
        let elapsed = now.saturating_duration_since(gauge.at);
        let seconds = elapsed.as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        let errors = self.errors.load(Ordering::Relaxed);
        let requests = self.requests.load(Ordering::Relaxed);
        let measured = MetricValues {
            cpu: gauge
                .cpu
                .as_mut()
                .and_then(|cpu| cpu.utilization(elapsed))
                .filter(|cpu| ValueRange::NonNegative.contains(*cpu)),
            requests: Some(requests.wrapping_sub(gauge.requests) as f64 / seconds),
            errors: Some(errors.wrapping_sub(gauge.errors) as f64 / seconds),
            ..MetricValues::default()
        };
        (gauge.at, gauge.requests, gauge.errors) = (now, requests, errors);
        drop(gauge);
        let mut state = lock(&self.state);
        state.measured = measured;
        self.publish(&state);
    }

    fn publish(&self, state: &MetricSources) {
        let values = state.set.clone().merge(&state.measured);
        let trailer = values.clone().into_trailer();
        self.current.store(Arc::new(PublishedMetrics { values, trailer }));
    }
}

fn nanos(duration: Duration) -> u64 {
    // Once per call, so not by way of 128 bits.
    duration.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(duration.subsec_nanos()))
}

/// Locks, also after a panic of somebody who had the lock: every change under it is whole or leaves the old.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for ServerLoadInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerLoad").field("current", &self.current.load().values).finish_non_exhaustive()
    }
}

impl fmt::Debug for ServerLoadBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServerLoadBuilder { cpu, window, .. } = self;
        f.debug_struct("Builder").field("cpu", &cpu.is_some()).field("window", window).finish_non_exhaustive()
    }
}
