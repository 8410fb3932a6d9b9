//! Per-call recorder: a handler records the cost of its call here.
//!
//! The recorder is shared by reference count between the handler, its tasks and the layer. The layer takes the values
//! when the call ends and merges them over the values of the server.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::server::lock;
use crate::values::{MetricValues, ValueRange};
use crate::watch::current_load;

/// Records the cost of one call, or the server's load as that call observed it.
///
/// The report is sent in the trailers of the call, also if the call fails. On that call, a value recorded here
/// overrides the one of the server ([`ServerLoad`](crate::ServerLoad)).
///
/// A handler behind a [`LoadLayer`](crate::LoadLayer) gets the recorder from [`CallLoad::current`]. It passes a clone
/// to its response stream and to tasks that it spawns. Clones record for the same call, until the call ends. A method
/// that records a value returns `false` if the value is out of range, and does not record it. The last valid value
/// wins.
///
/// ```
/// use evenkeel_orca::CallLoad;
/// # struct Order;
/// # async fn find(_: &tonic::Request<Order>) -> Order { Order }
///
/// async fn get(request: tonic::Request<Order>) -> Result<tonic::Response<Order>, tonic::Status> {
///     if let Some(load) = CallLoad::current() {
///         load.record_request_cost("rows", 17.0);
///     }
///     Ok(tonic::Response::new(find(&request).await))
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct CallLoad(Arc<Mutex<MetricValues>>);

impl CallLoad {
    /// Returns the recorder of the current call, or `None` if there is none.
    ///
    /// A call is current in an interceptor, and in an async handler at any depth until it returns. It is not current
    /// in a task that the handler spawned, nor in a server without a [`LoadLayer`](crate::LoadLayer).
    pub fn current() -> Option<CallLoad> {
        current_load()
    }

    /// Records a named cost of the call, in any unit. Any finite number is valid.
    pub fn record_request_cost(&self, name: &str, value: f64) -> bool {
        ValueRange::Finite.insert(&mut self.values().cost, name, value)
    }

    /// Records the utilization of a named resource, from 0 to 1.
    pub fn record_utilization(&self, name: &str, value: f64) -> bool {
        ValueRange::Fraction.insert(&mut self.values().utilization, name, value)
    }

    /// Records a named metric with an application-defined meaning. Any finite number is valid.
    pub fn record_named_metric(&self, name: &str, value: f64) -> bool {
        ValueRange::Finite.insert(&mut self.values().named, name, value)
    }

    /// Records the CPU utilization, at least 0. It may exceed 1 above a soft limit.
    pub fn record_cpu_utilization(&self, value: f64) -> bool {
        ValueRange::NonNegative.set(&mut self.values().cpu, value)
    }

    /// Records the memory utilization, from 0 to 1.
    pub fn record_memory_utilization(&self, value: f64) -> bool {
        ValueRange::Fraction.set(&mut self.values().memory, value)
    }

    /// Records the application's own utilization, at least 0. Clients prefer it to the CPU utilization.
    pub fn record_application_utilization(&self, value: f64) -> bool {
        ValueRange::NonNegative.set(&mut self.values().application, value)
    }

    /// Records the requests per second of the server, at least 0.
    pub fn record_qps(&self, value: f64) -> bool {
        ValueRange::NonNegative.set(&mut self.values().requests, value)
    }

    /// Records the errors per second of the server, at least 0.
    pub fn record_eps(&self, value: f64) -> bool {
        ValueRange::NonNegative.set(&mut self.values().errors, value)
    }

    /// Takes the recorded values and leaves the recorder empty.
    pub(crate) fn take(&self) -> MetricValues {
        mem::take(&mut self.values())
    }

    fn values(&self) -> MutexGuard<'_, MetricValues> {
        lock(&self.0)
    }
}
