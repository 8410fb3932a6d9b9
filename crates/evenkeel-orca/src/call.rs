//! What a handler says about the load of one call.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::values::{MetricValues, ValueRange};
use crate::watch::current_load;

/// Records what one call costs, or what the server's load was while it ran. It is sent with the end of the call, also if
/// the call fails; on the call it beats what was recorded for the server ([`ServerLoad`](crate::ServerLoad)).
///
/// A handler behind a [`LoadLayer`](crate::LoadLayer) asks for it where its call is handled; the stream that it answers with, and tasks of
/// its own, are given a clone. Clones record for the same call, until it ends. Values outside of their range are not recorded, and
/// the answer is `false`; of several the last one counts.
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
    /// That of the call that is handled here: by an interceptor, or an async handler at any depth until it answers. `None`
    /// outside of that, as in a task that a handler has spawned, and if the server has no [`LoadLayer`](crate::LoadLayer).
    pub fn current() -> Option<CallLoad> {
        current_load()
    }

    /// What the call used of something that has a name, in whatever unit: any number.
    pub fn record_request_cost(&self, name: &str, value: f64) -> bool {
        ValueRange::Finite.insert(&mut self.values().cost, name, value)
    }

    /// How far something that has a name is used, from 0 to 1.
    pub fn record_utilization(&self, name: &str, value: f64) -> bool {
        ValueRange::Fraction.insert(&mut self.values().utilization, name, value)
    }

    /// Something that has a name and a meaning of the application's own: any number.
    pub fn record_named_metric(&self, name: &str, value: f64) -> bool {
        ValueRange::Finite.insert(&mut self.values().named, name, value)
    }

    /// The share of the CPU that is used, from 0 on; above 1 is beyond a soft limit.
    pub fn record_cpu_utilization(&self, value: f64) -> bool {
        ValueRange::NonNegative.set(&mut self.values().cpu, value)
    }

    /// The share of the memory that is used, from 0 to 1.
    pub fn record_memory_utilization(&self, value: f64) -> bool {
        ValueRange::Fraction.set(&mut self.values().memory, value)
    }

    /// The application's own view of its utilisation, from 0 on; clients prefer it to the CPU's.
    pub fn record_application_utilization(&self, value: f64) -> bool {
        ValueRange::NonNegative.set(&mut self.values().application, value)
    }

    /// Requests per second, from 0 on.
    pub fn record_qps(&self, value: f64) -> bool {
        ValueRange::NonNegative.set(&mut self.values().requests, value)
    }

    /// Errors per second, from 0 on.
    pub fn record_eps(&self, value: f64) -> bool {
        ValueRange::NonNegative.set(&mut self.values().errors, value)
    }

    /// What was recorded; it is over then.
    pub(crate) fn take(&self) -> MetricValues {
        mem::take(&mut self.values())
    }

    fn values(&self) -> MutexGuard<'_, MetricValues> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
