//! Fault injection: delays and aborts that the control plane configures (A33).
//!
//! [`FaultConfig::decide`] samples once per call. The result holds the delay before the call is sent and the
//! status that it then fails with. It counts as an active fault until it is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use evenkeel_core::{Code, PickArgs, Status};

use crate::routing::matcher::MILLION;

/// Faults to inject and their fractions.
#[derive(Clone, Debug)]
pub struct FaultConfig {
    pub(crate) delay: Option<(DelaySpec, FaultFraction)>,
    pub(crate) abort: Option<(AbortSpec, FaultFraction)>,
    pub(crate) max_active: Option<u32>,
}

#[derive(Clone, Debug)]
pub(crate) enum DelaySpec {
    Fixed(Duration),
    /// The delay of the call's headers.
    Header,
}

#[derive(Clone, Debug)]
pub(crate) enum AbortSpec {
    Fixed(Status),
    /// The status of the call's headers.
    Header,
}

/// Fraction of calls in millionths, and the size of the control plane's unit in millionths. Headers use that
/// unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FaultFraction {
    pub(crate) per_million: u32,
    pub(crate) unit: u32,
}

/// Number of active faults of the process. All channels share one value (A33).
#[derive(Debug, Default)]
pub struct ActiveFaults(AtomicU32);

/// Faults injected into one call. It counts as active until it is dropped. The caller drops it after the
/// delay if there is no abort, and otherwise after the call has failed.
#[derive(Debug)]
pub struct InjectedFault {
    /// Delay before the call is sent.
    pub delay: Option<Duration>,
    /// Status that ends the call after the delay, without sending it. The control plane chooses the status,
    /// so every code is possible. `OK` ends the call as if the server had sent trailers at once.
    pub abort: Option<Status>,
    _active: ActiveFaultGuard,
}

impl FaultConfig {
    /// Returns the maximum number of active faults in the process, if there is one.
    pub fn max_active(&self) -> Option<u32> {
        self.max_active
    }

    /// Returns the faults to inject into this call, if any. `active` is the counter of the whole process.
    pub fn decide(&self, call: &PickArgs<'_>, active: &Arc<ActiveFaults>) -> Option<InjectedFault> {
        // A33: delay and abort are sampled independently.
        let delay = self.delay.as_ref().and_then(|(delay, share)| delay.sample(*share, call));
        let abort = self.abort.as_ref().and_then(|(abort, share)| abort.sample(*share, call));
        if delay.is_none() && abort.is_none() {
            return None;
        }
        // Only a call with a fault counts as active.
        Some(InjectedFault { delay, abort, _active: active.start(self.max_active)? })
    }
}

impl DelaySpec {
    fn sample(&self, share: FaultFraction, call: &PickArgs<'_>) -> Option<Duration> {
        let (delay, share) = match self {
            DelaySpec::Fixed(delay) => (*delay, share),
            DelaySpec::Header => {
                let millis = number(call, "x-envoy-fault-delay-request")?;
                (
                    Duration::from_millis(millis.into()),
                    share.capped_by_header(call, "x-envoy-fault-delay-request-percentage"),
                )
            }
        };
        (!delay.is_zero() && share.is_sampled(call)).then_some(delay)
    }
}

impl AbortSpec {
    fn sample(&self, share: FaultFraction, call: &PickArgs<'_>) -> Option<Status> {
        match self {
            AbortSpec::Fixed(status) => share.is_sampled(call).then(|| status.clone()),
            AbortSpec::Header => {
                let http = number(call, "x-envoy-fault-abort-request").and_then(code_from_http);
                let code = http
                    .or_else(|| number(call, "x-envoy-fault-abort-grpc-request").and_then(code_from_grpc))?;
                let share = share.capped_by_header(call, "x-envoy-fault-abort-request-percentage");
                share.is_sampled(call).then(|| AbortSpec::status(code))
            }
        }
    }

    /// Returns the status of a call that is aborted with this code.
    pub(crate) fn status(code: Code) -> Status {
        Status::new(code, "aborted by fault injection")
    }
}

impl FaultFraction {
    /// Returns the fraction of a header, with the control plane's fraction as its maximum.
    fn capped_by_header(self, call: &PickArgs<'_>, header: &str) -> FaultFraction {
        let asked = number(call, header).map(|numerator| numerator.saturating_mul(self.unit));
        // The header can lower the fraction of the config and not raise it (RT-3).
        FaultFraction { per_million: asked.unwrap_or(u32::MAX).min(self.per_million), ..self }
    }

    fn is_sampled(self, call: &PickArgs<'_>) -> bool {
        call.random_below(MILLION) < u64::from(self.per_million)
    }
}

/// Returns the number in a header. The last of several values is used. An invalid number counts as absent.
fn number(call: &PickArgs<'_>, header: &str) -> Option<u32> {
    call.header(header)?.rsplit(',').next()?.trim().parse().ok()
}

impl ActiveFaults {
    /// Starts a fault, unless `max` faults are active.
    fn start(self: &Arc<ActiveFaults>, max: Option<u32>) -> Option<ActiveFaultGuard> {
        let more = |count: u32| count.checked_add(1).filter(|count| max.is_none_or(|max| *count <= max));
        // Relaxed is enough: the counter guards no other memory.
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(ActiveFaultGuard(self.clone()))
    }

    /// Returns the number of active faults.
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Guard that counts one active fault.
#[derive(Debug)]
struct ActiveFaultGuard(Arc<ActiveFaults>);

impl Drop for ActiveFaultGuard {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns the gRPC code with this number.
pub(crate) fn code_from_grpc(number: u32) -> Option<Code> {
    Code::from_number(number.try_into().ok()?)
}

/// Returns the gRPC code for an HTTP status. Statuses without a specific code, including 200, are UNKNOWN
/// (A33).
pub(crate) fn code_from_http(status: u32) -> Option<Code> {
    let status = u16::try_from(status).ok().filter(|status| (200..=599).contains(status));
    status.map(Code::from_http_status)
}
