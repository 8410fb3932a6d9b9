//! Fault injection: delays and failures that the control plane wants, as a decision (A33).
//!
//! [`FaultConfig::decide`] draws once per call. What comes out says how long to wait before anything is sent, and what the
//! call fails with after that; it counts as an active fault until it is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use evenkeel_core::{Code, PickArgs, Status};

use crate::routing::matcher::MILLION;

/// Which faults to put in.
#[derive(Clone, Debug)]
pub struct FaultConfig {
    pub(crate) delay: Option<(DelaySpec, FaultFraction)>,
    pub(crate) abort: Option<(AbortSpec, FaultFraction)>,
    pub(crate) max_active: Option<u32>,
}

#[derive(Clone, Debug)]
pub(crate) enum DelaySpec {
    Fixed(Duration),
    /// As the call's headers say.
    Header,
}

#[derive(Clone, Debug)]
pub(crate) enum AbortSpec {
    Fixed(Status),
    /// As the call's headers say.
    Header,
}

/// How many of the calls, in a million, and how many millionths the control plane's unit is: a header counts in that
/// unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FaultFraction {
    pub(crate) per_million: u32,
    pub(crate) unit: u32,
}

/// Faults that are going on, in the whole process: hand the same value to every channel (A33).
#[derive(Debug, Default)]
pub struct ActiveFaults(AtomicU32);

/// The faults put into one call. It counts as active until it is dropped: drop it when the delay is over and there is no
/// abort, or when the call was failed.
#[derive(Debug)]
pub struct InjectedFault {
    /// Wait this long before anything is sent.
    pub delay: Option<Duration>,
    /// Then end the call with this status, sending nothing. The status is the operator's own choice, so any code may
    /// stand here, and `OK` ends the call as if its trailers had come at once.
    pub abort: Option<Status>,
    _active: ActiveFaultGuard,
}

impl FaultConfig {
    /// How many faults may be active in the process when this one is put in; any number if it is not said.
    pub fn max_active(&self) -> Option<u32> {
        self.max_active
    }

    /// The faults to put into this call, if any. `active` is the count of the whole process.
    pub fn decide(&self, call: &PickArgs<'_>, active: &Arc<ActiveFaults>) -> Option<InjectedFault> {
        // A33: each is drawn by itself.
        let delay = self.delay.as_ref().and_then(|(delay, share)| delay.sample(*share, call));
        let abort = self.abort.as_ref().and_then(|(abort, share)| abort.sample(*share, call));
        if delay.is_none() && abort.is_none() {
            return None;
        }
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

    /// What a call that is failed with this code says.
    pub(crate) fn status(code: Code) -> Status {
        Status::new(code, "ended by fault injection")
    }
}

impl FaultFraction {
    /// The share that a header asks for; the control plane's is the most it may be.
    fn capped_by_header(self, call: &PickArgs<'_>, header: &str) -> FaultFraction {
        let asked = number(call, header).map(|numerator| numerator.saturating_mul(self.unit));
        FaultFraction { per_million: asked.unwrap_or(u32::MAX).min(self.per_million), ..self }
    }

    fn is_sampled(self, call: &PickArgs<'_>) -> bool {
        call.random_below(MILLION) < u64::from(self.per_million)
    }
}

/// The number in a header; what is no number counts as absent. Of several values the last one counts.
fn number(call: &PickArgs<'_>, header: &str) -> Option<u32> {
    call.header(header)?.rsplit(',').next()?.trim().parse().ok()
}

impl ActiveFaults {
    /// Begins a fault, unless there are `max` already.
    fn start(self: &Arc<ActiveFaults>, max: Option<u32>) -> Option<ActiveFaultGuard> {
        let more = |count: u32| count.checked_add(1).filter(|count| max.is_none_or(|max| *count <= max));
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(ActiveFaultGuard(self.clone()))
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One fault that is going on.
#[derive(Debug)]
struct ActiveFaultGuard(Arc<ActiveFaults>);

impl Drop for ActiveFaultGuard {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The gRPC code of this number.
pub(crate) fn code_from_grpc(number: u32) -> Option<Code> {
    Code::from_number(number.try_into().ok()?)
}

/// The gRPC code that stands for an HTTP status without one; 200 is among those that say nothing (A33).
pub(crate) fn code_from_http(status: u32) -> Option<Code> {
    let status = u16::try_from(status).ok().filter(|status| (200..=599).contains(status));
    status.map(Code::from_http_status)
}
