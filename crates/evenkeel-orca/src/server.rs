//! Load of one server: values that it measures, and values that the application sets.
//!
//! Requests, errors and CPU are measured over the same window, so that dividing one by another gives the cost of a
//! request. The first call or out-of-band report after the end of a window starts the measurement. No background task
//! and no timer runs for it. The trailer is encoded when a window ends or the application sets a value. A call only
//! clones it.

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

/// Default minimum length of a measurement window.
const WINDOW: Duration = Duration::from_secs(1);

/// Load of a server, used by its clients for load balancing.
///
/// Requests per second, errors per second and CPU utilization are measured. A value set by the application overrides
/// the measured one until it is cleared. All values are unset at first.
///
/// [`ServerLoad::layer`] sends the load in the trailers of each call. [`ServerLoad::service`] sends it out of band on
/// request. A method that sets a value returns `false` if the value is out of range, and does not store it.
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
/// Clones share one load. A request is counted when it ends, with any status. A call that the client cancels is not
/// counted as an error.
#[derive(Clone, Debug)]
pub struct ServerLoad(Arc<ServerLoadInner>);

/// Settings of a [`ServerLoad`], such as its CPU meter and its window.
pub struct ServerLoadBuilder {
    cpu: Option<Box<dyn CpuMeter>>,
    window: Duration,
    is_error: Box<dyn Fn(Code) -> bool + Send + Sync>,
}

pub(crate) struct ServerLoadInner {
    requests: AtomicU64,
    errors: AtomicU64,
    is_error: Box<dyn Fn(Code) -> bool + Send + Sync>,
    /// Earliest end of the window, in nanoseconds after `began`.
    ends_at: AtomicU64,
    began: Instant,
    window: Duration,
    gauge: Mutex<MeasuredWindow>,
    /// Locked by writers only. Calls read `current`.
    state: Mutex<MetricSources>,
    current: ArcSwap<PublishedMetrics>,
}

/// Counters at the end of the last window, with the CPU meter.
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

/// Metrics to send, replaced as a whole on each change.
#[derive(Default)]
struct PublishedMetrics {
    values: MetricValues,
    /// Encoded form for trailers, or `None` if there is nothing to report.
    trailer: Option<HeaderValue>,
}

impl Default for ServerLoad {
    fn default() -> ServerLoad {
        ServerLoad::new()
    }
}

impl ServerLoad {
    /// Creates a load that measures requests, errors and the machine's CPU ([`KernelCounters`]).
    pub fn new() -> ServerLoad {
        ServerLoad::builder().build()
    }

    /// Returns a builder for other settings.
    pub fn builder() -> ServerLoadBuilder {
        ServerLoadBuilder {
            cpu: Some(Box::new(KernelCounters::new())),
            window: WINDOW,
            is_error: Box::new(is_server_error),
        }
    }

    /// Returns a layer that measures the server's calls and adds its load to their trailers.
    pub fn layer(&self) -> LoadLayer {
        LoadLayer::with(self.clone())
    }

    /// Returns a service that sends the server's load out of band.
    pub fn service(&self) -> LoadService {
        LoadService::new(self.clone())
    }

    /// Returns the report that the out-of-band service would send.
    pub fn report(&self) -> OrcaLoadReport {
        self.0.current.load().values.clone().into_report()
    }

    /// Sets the CPU utilization, at least 0. It may exceed 1 above a soft limit.
    pub fn set_cpu_utilization(&self, value: f64) -> bool {
        self.change(|set| ValueRange::NonNegative.set(&mut set.cpu, value))
    }

    /// Clears the CPU utilization, so that the measured one is reported.
    pub fn clear_cpu_utilization(&self) {
        self.change(|set| set.cpu = None);
    }

    /// Sets the memory utilization, from 0 to 1.
    pub fn set_memory_utilization(&self, value: f64) -> bool {
        self.change(|set| ValueRange::Fraction.set(&mut set.memory, value))
    }

    /// Clears the memory utilization. It is not measured, so it is no longer reported.
    pub fn clear_memory_utilization(&self) {
        self.change(|set| set.memory = None);
    }

    /// Sets the application's own utilization, at least 0. Clients prefer it to the CPU utilization.
    pub fn set_application_utilization(&self, value: f64) -> bool {
        self.change(|set| ValueRange::NonNegative.set(&mut set.application, value))
    }

    /// Clears the application's utilization. It is not measured, so it is no longer reported.
    pub fn clear_application_utilization(&self) {
        self.change(|set| set.application = None);
    }

    /// Sets the requests per second, at least 0.
    pub fn set_qps(&self, value: f64) -> bool {
        self.change(|set| ValueRange::NonNegative.set(&mut set.requests, value))
    }

    /// Clears the requests per second, so that the measured rate is reported.
    pub fn clear_qps(&self) {
        self.change(|set| set.requests = None);
    }

    /// Sets the errors per second, at least 0.
    pub fn set_eps(&self, value: f64) -> bool {
        self.change(|set| ValueRange::NonNegative.set(&mut set.errors, value))
    }

    /// Clears the errors per second, so that the measured rate is reported.
    pub fn clear_eps(&self) {
        self.change(|set| set.errors = None);
    }

    /// Sets the utilization of a named resource, from 0 to 1.
    pub fn set_utilization(&self, name: &str, value: f64) -> bool {
        self.change(|set| ValueRange::Fraction.insert(&mut set.utilization, name, value))
    }

    /// Replaces all utilizations set by [`ServerLoad::set_utilization`]. Returns true if all values are in range.
    /// Values out of range are dropped.
    pub fn set_all_utilization<N: Into<String>>(&self, values: impl IntoIterator<Item = (N, f64)>) -> bool {
        self.change(|set| ValueRange::Fraction.replace_all(&mut set.utilization, values))
    }

    /// Removes the utilization of a named resource from the report.
    pub fn clear_utilization(&self, name: &str) {
        self.change(|set| set.utilization.remove(name));
    }

    /// Sets a named metric with an application-defined meaning. Any finite number is valid.
    pub fn set_named_metric(&self, name: &str, value: f64) -> bool {
        self.change(|set| ValueRange::Finite.insert(&mut set.named, name, value))
    }

    /// Replaces all metrics set by [`ServerLoad::set_named_metric`]. Returns true if all values are in range. Values
    /// out of range are dropped.
    pub fn set_all_named_metrics<N: Into<String>>(&self, values: impl IntoIterator<Item = (N, f64)>) -> bool {
        self.change(|set| ValueRange::Finite.replace_all(&mut set.named, values))
    }

    /// Removes a named metric from the report.
    pub fn clear_named_metric(&self, name: &str) {
        self.change(|set| set.named.remove(name));
    }

    pub(crate) fn shared(&self) -> &Arc<ServerLoadInner> {
        &self.0
    }

    fn change<T>(&self, change: impl FnOnce(&mut MetricValues) -> T) -> T {
        let mut state = lock(&self.0.state);
        let answer = change(&mut state.set);
        // Under the lock, so that concurrent changes are published in their order.
        self.0.publish(&state);
        answer
    }
}

impl ServerLoadBuilder {
    /// Measures the CPU utilization with this meter.
    #[must_use]
    pub fn cpu(mut self, meter: impl CpuMeter) -> ServerLoadBuilder {
        self.cpu = Some(Box::new(meter));
        self
    }

    /// Disables the measurement of the CPU utilization.
    #[must_use]
    pub fn without_cpu(mut self) -> ServerLoadBuilder {
        self.cpu = None;
        self
    }

    /// Sets the minimum length of a measurement window; the default is 1 s.
    #[must_use]
    pub fn window(mut self, window: Duration) -> ServerLoadBuilder {
        self.window = window;
        self
    }

    /// Sets the predicate that decides which status codes count as errors.
    ///
    /// By default these are the codes that a server causes: UNKNOWN, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED,
    /// UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS.
    #[must_use]
    pub fn errors(mut self, is_error: impl Fn(Code) -> bool + Send + Sync + 'static) -> ServerLoadBuilder {
        self.is_error = Box::new(is_error);
        self
    }

    /// Starts the first measurement window.
    pub fn build(mut self) -> ServerLoad {
        let began = Instant::now();
        if let Some(cpu) = &mut self.cpu {
            // The first sample of a meter is only the baseline for the next one.
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

/// Returns true for status codes that are caused by the server and not by the request alone.
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
    /// Counts a finished request. `code` is `None` if it ended without a status.
    pub(crate) fn record_call(self: &Arc<ServerLoadInner>, code: Option<Code>) {
        if code.is_some_and(|code| (self.is_error)(code)) {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.measure_if_due();
    }

    /// Returns the trailer for a call that recorded nothing.
    pub(crate) fn trailer(&self) -> Option<HeaderValue> {
        self.current.load().trailer.clone()
    }

    /// Returns the trailer for a call that recorded these values.
    pub(crate) fn trailer_with(&self, call: MetricValues) -> Option<HeaderValue> {
        if call.is_empty() {
            return self.trailer();
        }
        let mut trailer = call.merge(&self.current.load().values).into_trailer()?;
        // The value is unique to the call. Sensitive values stay out of HPACK's dynamic table and evict nothing from
        // it.
        trailer.set_sensitive(true);
        Some(trailer)
    }

    /// Ends the window if its minimum length has passed. Measuring reads files, so it runs on the blocking pool. The
    /// caller may await the returned handle.
    pub(crate) fn measure_if_due(self: &Arc<ServerLoadInner>) -> Option<JoinHandle<()>> {
        let now = nanos(self.began.elapsed());
        let ends_at = self.ends_at.load(Ordering::Relaxed);
        if now < ends_at {
            return None;
        }
        let next = now.saturating_add(nanos(self.window));
        // Several calls may observe the end of a window. The one that advances `ends_at` measures.
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
        // The two locks are never held together.
        drop(gauge);
        let mut state = lock(&self.state);
        state.measured = measured;
        self.publish(&state);
    }

    fn publish(&self, state: &MetricSources) {
        // Values that the application set take precedence over measured ones.
        let values = state.set.clone().merge(&state.measured);
        let trailer = values.clone().into_trailer();
        self.current.store(Arc::new(PublishedMetrics { values, trailer }));
    }
}

fn nanos(duration: Duration) -> u64 {
    // This runs once per call, so it avoids the 128-bit arithmetic of `as_nanos`.
    duration.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(duration.subsec_nanos()))
}

/// Locks, and ignores poisoning: a panic under the lock leaves the previous value or a complete one.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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
        f.debug_struct("ServerLoadBuilder")
            .field("cpu", &cpu.is_some())
            .field("window", window)
            .finish_non_exhaustive()
    }
}
