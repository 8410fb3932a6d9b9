//! `outlier_detection_experimental`: ejects endpoints whose calls fail more often than those of their peers.
//!
//! Implements A50, and A61 for endpoints with several addresses. Finished calls are counted per endpoint.
//! Once per interval a *sweep* takes the counts, ejects outliers, and unejects endpoints whose ejection time
//! has passed:
//!
//! ```text
//!              outlier, enforced, below the limit            a sweep at or after its end
//!   in service ──────────────────────────────────▶ ejected ──────────────────────────────▶ in service
//!   multiplier - 1 per sweep                       multiplier + 1 per ejection
//! ```
//!
//! Child policies see an ejected endpoint as TRANSIENT_FAILURE, while its connection is kept. `pick_first` as
//! a direct child ignores ejections. A late sweep counts as one sweep, however many intervals have passed.
//! Without an algorithm nothing is counted, and the child's picker is returned unchanged.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::collections::diff::{PerEndpoint, apply_diff};
use crate::config::proto3_json::duration_to_json;
use crate::config::{ConfigError, ConfigFields, LbConfig, object};
use crate::engine::by_subchannel::{BySubchannel, KnownSubchannels, SubchannelRow};
use crate::engine::child::ChildPolicy;
use crate::engine::describe::{DescribeCx, Description};
use crate::engine::revision::Revision;
use crate::policy::{LbState, Policy};
use crate::{
    Address, CallOutcome, CallTracker, Code, Cx, DetectionMethod, Endpoint, Endpoints, Instant, Measurement,
    OutlierCounts, PickArgs, PickResult, Picker, Rng, UnenforcedReason,
};

/// Registered name of the policy; also used by the policies that create it as a child.
pub(crate) const NAME: &str = "outlier_detection_experimental";

/// Minimum time between sweeps. An interval of 0 is valid (A50) but would sweep in a busy loop.
const MIN_INTERVAL: Duration = Duration::from_millis(1);

/// Implementation of the `outlier_detection_experimental` policy.
#[derive(Debug, Default)]
pub(crate) struct OutlierDetection {
    child: ChildPolicy,
    settings: Option<OutlierSettings>,
    hosts: Vec<OutlierHost>,
    source: Option<Endpoints>,
    /// Start of the current interval; `None` while nothing is counted.
    began: Option<Instant>,
    /// Addresses of all ejected endpoints. The allocation is kept while the set is unchanged.
    ejected: Option<Arc<HashSet<Address>>>,
    stats: EjectionStats,
    counters: BySubchannel<CallResultCounter>,
    cached: Option<CachedOutlierState>,
}

/// Settings of the `outlier_detection_experimental` policy.
#[derive(Clone, Debug)]
pub struct OutlierDetectionConfig {
    /// Thresholds and ejection times.
    pub settings: OutlierSettings,
    /// Config of the child policy.
    pub child_policy: LbConfig,
}

/// Thresholds and durations of ejections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutlierSettings {
    /// Time between sweeps; at least one millisecond.
    pub interval: Duration,
    /// Duration of the first ejection; the n-th consecutive ejection lasts n times as long.
    pub base_ejection_time: Duration,
    /// Maximum duration of an ejection; at least `base_ejection_time`.
    pub max_ejection_time: Duration,
    /// Maximum percentage of ejected endpoints; one endpoint may always be ejected.
    pub max_ejection_percent: u32,
    /// Success-rate algorithm: ejects endpoints whose success rate is far below the mean. `None` disables it.
    pub success_rate_ejection: Option<SuccessRateEjection>,
    /// Failure-percentage algorithm: ejects endpoints above a fixed failure percentage. `None` disables it.
    pub failure_percentage_ejection: Option<FailurePercentageEjection>,
}

impl Default for OutlierSettings {
    /// Returns the defaults of A50 with both algorithms disabled, so that nothing is ever ejected.
    fn default() -> OutlierSettings {
        OutlierSettings {
            interval: Duration::from_secs(10),
            base_ejection_time: Duration::from_secs(30),
            max_ejection_time: Duration::from_secs(300),
            max_ejection_percent: 10,
            success_rate_ejection: None,
            failure_percentage_ejection: None,
        }
    }
}

impl OutlierSettings {
    pub(crate) fn parse(fields: &ConfigFields<'_>) -> Result<OutlierSettings, ConfigError> {
        let unset = OutlierSettings::default();
        let interval = fields.duration("interval")?.unwrap_or(unset.interval);
        if interval < MIN_INTERVAL {
            fields.warn("interval", &format!("is shorter than {MIN_INTERVAL:?} and is raised to it"));
        }
        let success_rate = fields.object("successRateEjection")?;
        let failure_percentage = fields.object("failurePercentageEjection")?;
        Ok(OutlierSettings {
            interval,
            base_ejection_time: fields.duration("baseEjectionTime")?.unwrap_or(unset.base_ejection_time),
            max_ejection_time: fields.duration("maxEjectionTime")?.unwrap_or(unset.max_ejection_time),
            max_ejection_percent: percent(fields, "maxEjectionPercent")?
                .unwrap_or(unset.max_ejection_percent),
            success_rate_ejection: success_rate.as_ref().map(SuccessRateEjection::parse).transpose()?,
            failure_percentage_ejection: failure_percentage
                .as_ref()
                .map(FailurePercentageEjection::parse)
                .transpose()?,
        })
    }

    /// Returns the settings in the form that [`OutlierSettings::parse`] reads, without defaults.
    pub(crate) fn to_json(&self) -> Map<String, Value> {
        let unset = OutlierSettings::default();
        let duration = |is: Duration, unset| (is != unset).then(|| Value::from(duration_to_json(is)));
        let fields = [
            ("interval", duration(self.interval, unset.interval)),
            ("baseEjectionTime", duration(self.base_ejection_time, unset.base_ejection_time)),
            ("maxEjectionTime", duration(self.max_ejection_time, unset.max_ejection_time)),
            ("maxEjectionPercent", number(self.max_ejection_percent, unset.max_ejection_percent)),
            ("successRateEjection", self.success_rate_ejection.as_ref().map(SuccessRateEjection::to_json)),
            (
                "failurePercentageEjection",
                self.failure_percentage_ejection.as_ref().map(FailurePercentageEjection::to_json),
            ),
        ];
        object(fields)
    }

    fn counts(&self) -> bool {
        self.success_rate_ejection.is_some() || self.failure_percentage_ejection.is_some()
    }

    /// Returns the ejection time of an endpoint with this ejection multiplier.
    fn ejection_time(&self, multiplier: u32) -> Duration {
        let longest = self.max_ejection_time.max(self.base_ejection_time);
        self.base_ejection_time.saturating_mul(multiplier).min(longest)
    }
}

/// Settings of the success-rate algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuccessRateEjection {
    /// Outlier threshold: distance below the mean in thousandths of a standard deviation.
    pub stdev_factor: u32,
    /// Percentage of detected outliers to eject.
    pub enforcement_percentage: u32,
    /// Minimum number of endpoints with enough calls; below it the algorithm does not run.
    pub minimum_hosts: u32,
    /// Minimum number of finished calls per interval; an endpoint with fewer calls is skipped.
    pub request_volume: u32,
}

impl Default for SuccessRateEjection {
    fn default() -> SuccessRateEjection {
        SuccessRateEjection {
            stdev_factor: 1900,
            enforcement_percentage: 100,
            minimum_hosts: 5,
            request_volume: 100,
        }
    }
}

/// Settings of the failure-percentage algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailurePercentageEjection {
    /// Failure percentage above which an endpoint is an outlier.
    pub threshold: u32,
    /// Percentage of detected outliers to eject.
    pub enforcement_percentage: u32,
    /// Minimum number of endpoints with enough calls; below it the algorithm does not run.
    pub minimum_hosts: u32,
    /// Minimum number of finished calls per interval; an endpoint with fewer calls is skipped.
    pub request_volume: u32,
}

impl Default for FailurePercentageEjection {
    fn default() -> FailurePercentageEjection {
        FailurePercentageEjection {
            threshold: 85,
            enforcement_percentage: 100,
            minimum_hosts: 5,
            request_volume: 50,
        }
    }
}

impl Policy for OutlierDetection {
    type Config = OutlierDetectionConfig;

    fn parse(fields: &ConfigFields<'_>) -> Result<OutlierDetectionConfig, ConfigError> {
        let settings = OutlierSettings::parse(fields)?;
        Ok(OutlierDetectionConfig { settings, child_policy: fields.child("childPolicy")? })
    }

    fn to_json(config: &OutlierDetectionConfig) -> Value {
        let mut json = config.settings.to_json();
        json.insert("childPolicy".to_owned(), json!([config.child_policy.to_json()]));
        json.into()
    }

    fn reconcile(
        &mut self,
        config: &OutlierDetectionConfig,
        endpoints: &Endpoints,
        cx: &mut Cx<'_>,
    ) -> LbState {
        let settings = &config.settings;
        self.settings = Some(settings.clone());
        let others = self.source.as_ref().is_none_or(|source| !source.is_same(endpoints));
        if others {
            self.replace(endpoints);
        }
        if settings.counts() {
            self.count_on(settings, cx);
        } else {
            self.stop();
        }
        let scope = match &self.ejected {
            Some(ejected) => cx.scope().clone().with_ejected(ejected.clone()),
            None => cx.scope().clone(),
        };
        let child = self.child.reconcile_in(scope, &config.child_policy, endpoints, cx);
        self.get_or_build(child, others, cx)
    }

    fn describe(&self, cx: &DescribeCx<'_>) -> Description {
        let mut description = Description::new();
        if let Some(settings) = &self.settings {
            description = describe_settings(description, settings)
                .detail("ejected", self.hosts.iter().filter(|host| host.ejected_at.is_some()).count())
                .detail("ejections", self.stats.describe());
            let hosts = self.hosts.iter().map(|host| host.describe(settings, cx.now()));
            description = description.detail("endpoints", hosts.collect::<Vec<_>>());
        }
        description.child("childPolicy", self.child.describe(cx))
    }
}

impl OutlierDetection {
    /// Replaces the endpoints. Endpoints with the same set of addresses keep their counts and ejections.
    fn replace(&mut self, endpoints: &Endpoints) {
        for mut removed in apply_diff(&mut self.hosts, endpoints) {
            self.counters.remove(&mut removed.known);
        }
        self.source = Some(endpoints.clone());
        self.list_ejected();
    }

    /// Runs a sweep if the interval has elapsed. A changed interval is measured from the start of the current
    /// one (A50).
    fn count_on(&mut self, settings: &OutlierSettings, cx: &mut Cx<'_>) {
        let now = cx.now();
        let interval = settings.interval.max(MIN_INTERVAL);
        let began = match self.began {
            None => {
                // Counters may hold calls from before counting was disabled.
                for host in &mut self.hosts {
                    host.counter.take();
                    host.last = CallResultCounts::default();
                }
                now
            }
            Some(began) if began + interval <= now => {
                let mut stats = EjectionStats::default();
                let hosts = &mut self.hosts;
                EjectionSweep { settings, now, hosts, stats: &mut stats, rng: cx.rng(), ejected: 0 }.run();
                self.list_ejected();
                self.stats.add(&stats);
                stats.measure(cx);
                // A late sweep starts the next interval; missed intervals are skipped.
                now
            }
            Some(began) => began,
        };
        self.began = Some(began);
        cx.wake_at(began + interval);
    }

    fn stop(&mut self) {
        if self.began.take().is_some() {
            for host in &mut self.hosts {
                host.ejected_at = None;
                host.multiplier = 0;
            }
            self.list_ejected();
        }
    }

    fn list_ejected(&mut self) {
        let ejected = self.hosts.iter().filter(|host| host.ejected_at.is_some());
        let addresses: HashSet<Address> =
            ejected.flat_map(|host| host.endpoint.addresses().iter().cloned()).collect();
        let addresses = (!addresses.is_empty()).then_some(addresses);
        // The allocation stays if the set is equal: policies compare scopes by its identity.
        if self.ejected.as_deref() != addresses.as_ref() {
            self.ejected = addresses.map(Arc::new);
        }
    }

    fn get_or_build(&mut self, child: LbState, others: bool, cx: &Cx<'_>) -> LbState {
        // Without an algorithm calls are not counted (OD-13), so the child's picker is used directly.
        if self.began.is_none() {
            self.cached = None;
            return child;
        }
        let last = self.cached.as_ref().filter(|cached| cached.child.is_same(&child));
        if let Some(cached) = last.filter(|_| !others) {
            return cached.state.clone();
        }
        let verified_at = self.cached.as_ref().map(|cached| cached.verified_at);
        // A new picker of the child may use subchannels that were created since.
        let is_current = verified_at.is_some_and(|verified_at| cx.has_same_subchannels(verified_at));
        let changed = (others || !is_current) && self.count_by_subchannel(cx);
        let verified_at = cx.revision();
        if let Some(cached) = self.cached.as_mut().filter(|cached| !changed && cached.child.is_same(&child)) {
            cached.verified_at = verified_at;
            return cached.state.clone();
        }
        let picker = CountingPicker { child: child.picker.clone(), counters: self.counters.clone() };
        let state = LbState::new(child.connectivity, picker);
        self.cached = Some(CachedOutlierState { child, verified_at, state: state.clone() });
        state
    }

    /// Maps every connected subchannel to its endpoint's counter. Returns true if the map changed. An address
    /// shared by two endpoints counts for the first.
    fn count_by_subchannel(&mut self, cx: &Cx<'_>) -> bool {
        let Some(endpoints) = &self.source else { return false };
        let rows = self.hosts.iter_mut().map(|OutlierHost { endpoint, counter, known, .. }| SubchannelRow {
            endpoint,
            value: counter,
            known,
        });
        self.counters.refresh(rows, endpoints, cx)
    }
}

impl SuccessRateEjection {
    fn parse(fields: &ConfigFields<'_>) -> Result<SuccessRateEjection, ConfigError> {
        let unset = SuccessRateEjection::default();
        Ok(SuccessRateEjection {
            stdev_factor: fields.u32("stdevFactor")?.unwrap_or(unset.stdev_factor),
            enforcement_percentage: percent(fields, "enforcementPercentage")?
                .unwrap_or(unset.enforcement_percentage),
            minimum_hosts: fields.u32("minimumHosts")?.unwrap_or(unset.minimum_hosts),
            request_volume: fields.u32("requestVolume")?.unwrap_or(unset.request_volume),
        })
    }

    fn to_json(&self) -> Value {
        let unset = SuccessRateEjection::default();
        let fields = [
            ("stdevFactor", number(self.stdev_factor, unset.stdev_factor)),
            ("enforcementPercentage", number(self.enforcement_percentage, unset.enforcement_percentage)),
            ("minimumHosts", number(self.minimum_hosts, unset.minimum_hosts)),
            ("requestVolume", number(self.request_volume, unset.request_volume)),
        ];
        object(fields).into()
    }
}

impl FailurePercentageEjection {
    fn parse(fields: &ConfigFields<'_>) -> Result<FailurePercentageEjection, ConfigError> {
        let unset = FailurePercentageEjection::default();
        Ok(FailurePercentageEjection {
            threshold: percent(fields, "threshold")?.unwrap_or(unset.threshold),
            enforcement_percentage: percent(fields, "enforcementPercentage")?
                .unwrap_or(unset.enforcement_percentage),
            minimum_hosts: fields.u32("minimumHosts")?.unwrap_or(unset.minimum_hosts),
            request_volume: fields.u32("requestVolume")?.unwrap_or(unset.request_volume),
        })
    }

    fn to_json(&self) -> Value {
        let unset = FailurePercentageEjection::default();
        let fields = [
            ("threshold", number(self.threshold, unset.threshold)),
            ("enforcementPercentage", number(self.enforcement_percentage, unset.enforcement_percentage)),
            ("minimumHosts", number(self.minimum_hosts, unset.minimum_hosts)),
            ("requestVolume", number(self.request_volume, unset.request_volume)),
        ];
        object(fields).into()
    }
}

/// Returns the number as JSON, or `None` if it equals the default.
fn number(is: u32, unset: u32) -> Option<Value> {
    (is != unset).then(|| is.into())
}

fn percent(fields: &ConfigFields<'_>, name: &str) -> Result<Option<u32>, ConfigError> {
    match fields.u32(name)? {
        Some(number) if number > 100 => {
            Err(fields.error(name, format!("expected a percentage from 0 to 100, found {number}")))
        }
        other => Ok(other),
    }
}

/// State of one endpoint, identified by its addresses and not by its attributes.
#[derive(Debug)]
struct OutlierHost {
    endpoint: Endpoint,
    known: KnownSubchannels,
    counter: Arc<CallResultCounter>,
    /// Counts that the last sweep took from the counter.
    last: CallResultCounts,
    ejected_at: Option<Instant>,
    multiplier: u32,
}

impl PerEndpoint for OutlierHost {
    fn new(endpoint: &Endpoint) -> OutlierHost {
        OutlierHost {
            endpoint: endpoint.clone(),
            known: KnownSubchannels::default(),
            counter: Arc::default(),
            last: CallResultCounts::default(),
            ejected_at: None,
            multiplier: 0,
        }
    }

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn update(&mut self, endpoint: &Endpoint) {
        self.endpoint = endpoint.clone();
    }
}

impl OutlierHost {
    fn describe(&self, settings: &OutlierSettings, now: Instant) -> Value {
        let addresses: Vec<_> = self.endpoint.addresses().iter().map(ToString::to_string).collect();
        let left = self.ejected_at.map(|at| (at + settings.ejection_time(self.multiplier)).since(now));
        json!({
            "addresses": addresses,
            "ejectedForAnother": left.map(|left| format!("{left:?}")),
            "multiplier": self.multiplier,
            "lastSuccesses": self.last.successes,
            "lastFailures": self.last.failures,
        })
    }
}

/// Results of the calls to one endpoint since the last sweep.
///
/// Holds A50's active bucket; [`OutlierHost::last`] is the inactive one. Each counter is swapped with zero
/// atomically, so a call that finishes during a sweep is counted once, in one of the two intervals.
#[derive(Debug, Default)]
#[repr(align(64))]
struct CallResultCounter {
    successes: AtomicU64,
    failures: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default)]
struct CallResultCounts {
    successes: u64,
    failures: u64,
}

impl CallResultCounter {
    fn take(&self) -> CallResultCounts {
        CallResultCounts {
            successes: self.successes.swap(0, Ordering::Relaxed),
            failures: self.failures.swap(0, Ordering::Relaxed),
        }
    }
}

impl CallTracker for CallResultCounter {
    fn finished(&self, end: &CallOutcome<'_>) {
        match end {
            CallOutcome::Finished { code: Code::Ok, .. } => self.successes.fetch_add(1, Ordering::Relaxed),
            // A cancelled call has the status CANCELLED, which is not OK (A50 counts it as a failure).
            CallOutcome::Finished { .. } | CallOutcome::Cancelled => {
                self.failures.fetch_add(1, Ordering::Relaxed)
            }
            CallOutcome::Unsent => return,
        };
    }
}

impl CallResultCounts {
    /// Returns the number of finished calls, or `None` if it is zero or below the minimum.
    fn volume(self, at_least: u32) -> Option<f64> {
        let all = self.successes + self.failures;
        (all >= u64::from(at_least.max(1))).then_some(all as f64)
    }

    fn success_rate(self, at_least: u32) -> Option<f64> {
        Some(self.successes as f64 / self.volume(at_least)?)
    }

    fn failure_percentage(self, at_least: u32) -> Option<f64> {
        Some(100.0 * self.failures as f64 / self.volume(at_least)?)
    }
}

/// Sweep over all endpoints, in list order.
struct EjectionSweep<'a> {
    settings: &'a OutlierSettings,
    now: Instant,
    hosts: &'a mut [OutlierHost],
    stats: &'a mut EjectionStats,
    rng: &'a mut Rng,
    /// Number of ejected endpoints.
    ejected: usize,
}

impl EjectionSweep<'_> {
    fn run(mut self) {
        for host in self.hosts.iter_mut() {
            host.last = host.counter.take();
            self.ejected += usize::from(host.ejected_at.is_some());
        }
        if let Some(rule) = &self.settings.success_rate_ejection {
            self.check_success_rates(rule);
        }
        if let Some(rule) = &self.settings.failure_percentage_ejection {
            self.check_failure_percentages(rule);
        }
        for host in self.hosts.iter_mut() {
            match host.ejected_at {
                // OD-9: the multiplier shrinks by 1 per interval without ejection.
                None => host.multiplier = host.multiplier.saturating_sub(1),
                // A50 requires "after" the ejection time, which holds for every sweep on a real clock. In
                // virtual time a sweep can run exactly at its end; a strict comparison would extend the
                // ejection by a whole interval.
                Some(at) if at + self.settings.ejection_time(host.multiplier) <= self.now => {
                    // The multiplier stays, so that the next ejection lasts longer.
                    host.ejected_at = None;
                }
                Some(_) => {}
            }
        }
    }

    fn check_success_rates(&mut self, rule: &SuccessRateEjection) {
        let rate = |(i, host): (usize, &OutlierHost)| Some((i, host.last.success_rate(rule.request_volume)?));
        let rates: Vec<_> = self.hosts.iter().enumerate().filter_map(rate).collect();
        if rates.len() < rule.minimum_hosts as usize {
            return;
        }
        let lowest = lowest_usual(&rates, f64::from(rule.stdev_factor) / 1000.0);
        for (i, _) in rates.iter().filter(|(_, rate)| *rate < lowest) {
            self.eject(*i, DetectionMethod::SuccessRate, rule.enforcement_percentage);
        }
    }

    fn check_failure_percentages(&mut self, rule: &FailurePercentageEjection) {
        let failed =
            |(i, host): (usize, &OutlierHost)| Some((i, host.last.failure_percentage(rule.request_volume)?));
        let failed: Vec<_> = self.hosts.iter().enumerate().filter_map(failed).collect();
        if failed.len() < rule.minimum_hosts as usize {
            return;
        }
        // Above the threshold, not at it (OD-6).
        for (i, _) in failed.iter().filter(|(_, percent)| *percent > f64::from(rule.threshold)) {
            self.eject(*i, DetectionMethod::FailurePercentage, rule.enforcement_percentage);
        }
    }

    /// Ejects an outlier, unless the maximum is reached or the enforcement percentage spares it. An endpoint
    /// that is already ejected can be ejected again by calls that started before, which increases its
    /// multiplier (A50).
    fn eject(&mut self, i: usize, method: DetectionMethod, enforcement_percentage: u32) {
        let stats = self.stats.of(method);
        let limit = self.settings.max_ejection_percent as usize * self.hosts.len();
        // At least one endpoint may be ejected, whatever the percentage (OD-7).
        if self.ejected > 0 && self.ejected * 100 >= limit {
            stats.overflow += 1;
        } else if self.rng.below(100) >= u64::from(enforcement_percentage) {
            stats.not_enforced += 1;
        } else {
            stats.enforced += 1;
            let host = &mut self.hosts[i];
            // An endpoint that is ejected again is counted once.
            self.ejected += usize::from(host.ejected_at.replace(self.now).is_none());
            host.multiplier = host.multiplier.saturating_add(1);
        }
    }
}

/// Returns the outlier threshold: `factor` standard deviations below the mean success rate.
fn lowest_usual(rates: &[(usize, f64)], factor: f64) -> f64 {
    let count = rates.len().max(1) as f64;
    // Summing differences from the first rate makes the mean of equal rates exact. Otherwise rounding could
    // put all of them below the threshold.
    let base = rates.first().map_or(0.0, |(_, rate)| *rate);
    let mean = base + rates.iter().map(|(_, rate)| rate - base).sum::<f64>() / count;
    let variance = rates.iter().map(|(_, rate)| (rate - mean).powi(2)).sum::<f64>() / count;
    mean - factor * variance.sqrt()
}

/// Number of detected outliers by outcome (A91), for one sweep or in total.
#[derive(Debug, Default)]
struct EjectionStats {
    success_rate: MethodStats,
    failure_percentage: MethodStats,
}

#[derive(Debug, Default)]
struct MethodStats {
    enforced: u64,
    /// Number spared by the enforcement percentage.
    not_enforced: u64,
    /// Number spared because the maximum ejection percentage was reached.
    overflow: u64,
}

impl MethodStats {
    fn add(&mut self, more: &MethodStats) {
        self.enforced += more.enforced;
        self.not_enforced += more.not_enforced;
        self.overflow += more.overflow;
    }

    fn measure(&self, method: DetectionMethod, cx: &mut Cx<'_>) {
        let outcomes = [
            (None, self.enforced),
            (Some(UnenforcedReason::EnforcementPercentage), self.not_enforced),
            (Some(UnenforcedReason::MaxEjectionOverflow), self.overflow),
        ];
        for (unenforced, count) in outcomes.into_iter().filter(|(_, count)| *count > 0) {
            cx.measure(|scope| {
                let backend_service = scope.backend_service().cloned();
                Measurement::OutlierCounts(OutlierCounts { backend_service, method, unenforced, count })
            });
        }
    }
}

impl EjectionStats {
    fn of(&mut self, method: DetectionMethod) -> &mut MethodStats {
        match method {
            DetectionMethod::SuccessRate => &mut self.success_rate,
            DetectionMethod::FailurePercentage => &mut self.failure_percentage,
        }
    }

    fn add(&mut self, more: &EjectionStats) {
        self.success_rate.add(&more.success_rate);
        self.failure_percentage.add(&more.failure_percentage);
    }

    fn measure(&self, cx: &mut Cx<'_>) {
        self.success_rate.measure(DetectionMethod::SuccessRate, cx);
        self.failure_percentage.measure(DetectionMethod::FailurePercentage, cx);
    }

    fn describe(&self) -> Value {
        let describe = |stats: &MethodStats| {
            json!({
                "enforced": stats.enforced,
                "unenforced": {
                    "enforcement_percentage": stats.not_enforced,
                    "max_ejection_overflow": stats.overflow,
                },
            })
        };
        json!({
            "success_rate": describe(&self.success_rate),
            "failure_percentage": describe(&self.failure_percentage),
        })
    }
}

fn describe_settings(description: Description, settings: &OutlierSettings) -> Description {
    let success_rate = settings.success_rate_ejection.as_ref().map(|rule| {
        json!({
            "stdevFactor": rule.stdev_factor,
            "enforcementPercentage": rule.enforcement_percentage,
            "minimumHosts": rule.minimum_hosts,
            "requestVolume": rule.request_volume,
        })
    });
    let failure_percentage = settings.failure_percentage_ejection.as_ref().map(|rule| {
        json!({
            "threshold": rule.threshold,
            "enforcementPercentage": rule.enforcement_percentage,
            "minimumHosts": rule.minimum_hosts,
            "requestVolume": rule.request_volume,
        })
    });
    description
        .detail("interval", format!("{:?}", settings.interval))
        .detail("baseEjectionTime", format!("{:?}", settings.base_ejection_time))
        .detail(
            "maxEjectionTime",
            format!("{:?}", settings.max_ejection_time.max(settings.base_ejection_time)),
        )
        .detail("maxEjectionPercent", settings.max_ejection_percent)
        .detail("successRateEjection", success_rate)
        .detail("failurePercentageEjection", failure_percentage)
}

/// Last returned state, with the inputs that it was built from.
#[derive(Debug)]
struct CachedOutlierState {
    child: LbState,
    /// Revision at which subchannels were last looked up by address.
    verified_at: Revision,
    state: LbState,
}

struct CountingPicker {
    child: Arc<dyn Picker>,
    counters: BySubchannel<CallResultCounter>,
}

impl Picker for CountingPicker {
    fn pick(&self, call: &PickArgs<'_>) -> PickResult {
        let mut pick = self.child.pick(call);
        if let PickResult::Complete(id, trackers) = &mut pick
            && let Some(counter) = self.counters.get(*id)
        {
            trackers.push(counter.clone());
        }
        pick
    }
}
