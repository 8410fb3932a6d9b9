//! `weighted_round_robin`: picks ready endpoints in proportion to weights derived from their load reports.
//!
//! Implements A58, with A114 for the metrics, A61 for endpoints with several addresses, and A78 for
//! measurements. An endpoint's weight is its request rate divided by its utilization: the rate that it could
//! serve at full utilization. The policy computes weights once per update period, and when the ready
//! endpoints or the config change. A weight in its blackout or expiration period is unusable; such an
//! endpoint gets the mean of the other weights. With fewer than two usable weights the policy uses the EDS
//! weights, which is round robin if there are none.
//!
//! Without picks between two updates the policy is dormant. Its only timer is then the end of the next
//! blackout or weight, and the first pick triggers an update. Reports arrive with finished calls or, if
//! configured, out of band; never both.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::config::{ConfigError, ConfigFields};
use crate::endpoint::connection::ConnectMode;
use crate::engine::describe::{DescribeCx, Description};
use crate::policy::dormant::DormantState;
use crate::policy::edf_weighted_round_robin::eds_weight;
use crate::policy::weighted_scheduler::{
    SchedulePosition, ScheduledPicker, SchedulerInputs, SchedulerSlot, WeightedScheduler,
};
use crate::policy::{CachedState, LbState, Policy};
use crate::schedule::{ScheduleRule, scale};
use crate::{
    CallOutcome, CallTracker, CallTrackers, ConnectivityState, Cx, EndpointEntry, EndpointList, Endpoints,
    Instant, LoadReport, Measurement, PickArgs, PickResult, Picker, PolicyScope, SubchannelId, WeightUpdate,
};

/// Number of update times per period that all policies share. The first update is moved forward to one of
/// them.
const PHASES: u64 = 20;

/// Implementation of the `weighted_round_robin` policy.
#[derive(Debug, Default)]
pub(crate) struct WeightedRoundRobin {
    list: EndpointList<WrrEndpointData>,
    scheduler: WeightedScheduler,
    cached: CachedState<(SchedulerInputs, u64)>,
    config: Option<WeightedRoundRobinConfig>,
    formula: Arc<WeightFormula>,
    weight_table: WeightTable,
    /// Time of the next weight update; set only if there are at least two ready endpoints.
    update_at: Option<Instant>,
    /// Reference time of periodic updates; all of them are whole periods away from it.
    phase: Option<Instant>,
    /// Schedule position at the last update. An equal position at the next update means that there were no
    /// picks.
    weighed_at: Option<SchedulePosition>,
    is_dormant: bool,
    dormant: DormantState,
    counts: WeightCounts,
}

/// Settings of the `weighted_round_robin` policy.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightedRoundRobinConfig {
    /// True to use out-of-band reports instead of per-call reports.
    pub enable_oob_load_report: bool,
    /// Interval of out-of-band reports that is requested from the endpoint.
    pub oob_reporting_period: Duration,
    /// Minimum time that an endpoint must have reported before its weight is used; zero disables the
    /// blackout.
    pub blackout_period: Duration,
    /// Maximum age of the last report before the weight expires.
    pub weight_expiration_period: Duration,
    /// Time between weight updates; at least 100 ms.
    pub weight_update_period: Duration,
    /// Factor by which the error rate raises the utilization. Not negative.
    pub error_utilization_penalty: f64,
    /// Names of the metrics whose maximum is the utilization (A114). If none of them is reported, the
    /// application utilization is used, else the CPU utilization.
    pub metric_names_for_computing_utilization: Vec<String>,
    /// Maximum ratio of a weight to the mean weight; at least 1, `None` for no limit.
    pub weight_cap_ratio: Option<f64>,
}

impl Default for WeightedRoundRobinConfig {
    /// Returns the defaults of A58: per-call reports, 10 s blackout, 3 min expiration, one update per second,
    /// penalty 1.
    fn default() -> WeightedRoundRobinConfig {
        WeightedRoundRobinConfig {
            enable_oob_load_report: false,
            oob_reporting_period: Duration::from_secs(10),
            blackout_period: Duration::from_secs(10),
            weight_expiration_period: Duration::from_secs(180),
            weight_update_period: Duration::from_secs(1),
            error_utilization_penalty: 1.0,
            metric_names_for_computing_utilization: Vec::new(),
            weight_cap_ratio: None,
        }
    }
}

impl Policy for WeightedRoundRobin {
    type Config = WeightedRoundRobinConfig;

    fn parse(fields: &ConfigFields<'_>) -> Result<WeightedRoundRobinConfig, ConfigError> {
        WeightedRoundRobinConfig::parse(fields)
    }

    fn reconcile(
        &mut self,
        config: &WeightedRoundRobinConfig,
        endpoints: &Endpoints,
        cx: &mut Cx<'_>,
    ) -> LbState {
        let endpoints_changed = self.list.reconcile(endpoints, ConnectMode::Eager, cx);
        let config_changed = self.adopt(config);
        // Trackers of per-call reports stay valid while the config is unchanged, so unchanged endpoints are
        // skipped.
        let is_settled = !config_changed && !config.enable_oob_load_report;
        let mut restarted = false;
        for member in
            self.list.entries_mut().iter_mut().filter(|member| !(is_settled && member.is_unchanged()))
        {
            restarted |= note_connection(member, cx);
            read_load(member, config, &self.formula, cx);
        }
        if restarted && self.is_dormant {
            // A connection that is lost and restored between two passes leaves the ready endpoints equal but
            // restarts a blackout. The timer of a dormant policy does not know of it, so the next periodic
            // time is used.
            let at = cx.now() + Duration::from_nanos(1);
            self.update_at = self.phase.map(|phase| first_in_phase(phase, config.update_period(), at));
        }
        let position = self.scheduler.position();
        let is_used = position != self.weighed_at;
        let wakes = self.is_dormant && is_used;
        if wakes {
            self.update_at = None;
        }
        let is_due = wakes || self.update_at.is_some_and(|at| at <= cx.now());
        if is_due {
            self.is_dormant = !is_used;
        }
        let has_changed = endpoints_changed || config_changed || !self.scheduler.covers_ready(&self.list);
        let updates_weights = has_changed || is_due;
        if updates_weights {
            // The pick that ends the dormancy must see the weights of the last periodic update, as if the
            // timer had been running.
            let at = if wakes && !has_changed { self.last_update(config, cx.now()) } else { cx.now() };
            self.update_weights(config, at, cx);
        }
        let WeightTable { weights, rule, .. } = &self.weight_table;
        self.scheduler.reconcile(&mut self.list, weights, *rule, self.is_dormant, cx);
        // The picks that woke the policy also count for its next update. If no others follow, it is dormant
        // after that one.
        if updates_weights && !wakes {
            // Picks made during the update count as made after it. A schedule created by this update has
            // none.
            let after = self.scheduler.position();
            let same = position.zip(after).is_some_and(|(before, after)| before.is_in_order_of(after));
            self.weighed_at = if same { position } else { after };
        }
        self.update_at = self.next_update(config.update_period(), updates_weights, cx.now());
        if let Some(at) = self.update_at {
            cx.wake_at(at);
        }
        let state =
            self.scheduler.get_or_build(&self.list, &mut self.cached, self.formula.number, cx, |order| {
                let mut trackers = Vec::with_capacity(self.list.entries().len());
                trackers.extend(self.list.ready().filter_map(|(member, _)| member.data.tracker.clone()));
                LbState::new(ConnectivityState::Ready, WrrPicker { order, trackers: trackers.into() })
            });
        self.dormant.get_or_build(state, self.is_dormant)
    }

    fn describe(&self, cx: &DescribeCx<'_>) -> Description {
        let mut description = Description::new()
            .detail(
                "weights_from",
                if self.weight_table.rule == ScheduleRule::Eligible { "load" } else { "EDS" },
            )
            .detail("rr_fallback", self.counts.fallbacks)
            .detail("endpoint_weight_not_yet_usable", self.counts.not_yet_usable)
            .detail("endpoint_weight_stale", self.counts.stale);
        if let Some(config) = &self.config {
            description = config.describe(description);
        }
        self.scheduler.describe(&self.list, &mut description, cx, |member, row| {
            row.weight = member.data.status.map(|status| status.usable().unwrap_or(0.0));
        });
        description
    }
}

impl WeightedRoundRobin {
    /// Applies the config. Returns true if it changed.
    fn adopt(&mut self, config: &WeightedRoundRobinConfig) -> bool {
        if self.config.as_ref() == Some(config) {
            return false;
        }
        let old = self.config.replace(config.clone());
        if old.as_ref().is_none_or(|old| !old.has_same_formula(config)) {
            // Calls in flight hold trackers of the old formula. Their reports must not be used, since the
            // metrics or the source of reports may have changed.
            self.formula.is_retired.store(true, Ordering::Relaxed);
            self.formula = Arc::new(WeightFormula::new(config, self.formula.number + 1));
        }
        if old.is_none_or(|old| old.update_period() != config.update_period()) {
            (self.update_at, self.phase) = (None, None);
        }
        true
    }

    /// Computes the weight of every ready endpoint as of `now`. The schedule changes only if its integer
    /// weights do.
    fn update_weights(&mut self, config: &WeightedRoundRobinConfig, now: Instant, cx: &mut Cx<'_>) {
        let mut known = Vec::with_capacity(self.list.entries().len());
        let mut changes_at: Option<Instant> = None;
        for member in self.list.entries_mut() {
            member.data.status = member.ready().map(|_| member.data.weight().look_up(config, now));
            known.extend(member.data.status);
            if self.is_dormant && member.data.status.is_some() {
                let next = member.data.weight().changes_at(config, now);
                changes_at = changes_at.into_iter().chain(next).min();
            }
        }
        // A58: with fewer than two usable weights, none is used.
        let are_usable = known.iter().filter(|status| status.usable().is_some()).nth(1).is_some();
        let scaled = if are_usable { scale(&capped(&known, config.weight_cap_ratio)) } else { None };
        if known.len() > 1 {
            let counts = WeightCounts::of(&known, scaled.is_none());
            self.counts.add(&counts);
            cx.measure(|scope| Measurement::WeightUpdate(counts.measurement(&known, scope)));
        }
        self.weight_table = match scaled {
            Some(weights) => WeightTable { weights, rule: ScheduleRule::Eligible, changes_at },
            // Without usable reports picks follow the EDS weights (WRR-20).
            None => WeightTable {
                weights: self.list.ready().map(|(member, _)| eds_weight(&member.endpoint)).collect(),
                rule: ScheduleRule::Literal,
                changes_at,
            },
        };
    }

    /// Returns the time of the last periodic update up to `now`, as if updates had continued.
    fn last_update(&self, config: &WeightedRoundRobinConfig, now: Instant) -> Instant {
        let period = config.update_period();
        let Some(phase) = self.phase.filter(|phase| *phase <= now) else { return now };
        let since = now.since(phase).as_nanos() % period.as_nanos().max(1);
        Instant::from_nanos(now.as_nanos() - u64::try_from(since).unwrap_or(0))
    }

    /// Returns the time of the next update. Updates keep their phase; after a pause the missed ones are
    /// skipped.
    ///
    /// A dormant policy updates when time alone changes a weight, also in phase. The result is the same
    /// schedule that running timers would have produced.
    fn next_update(&mut self, period: Duration, was_weighed: bool, now: Instant) -> Option<Instant> {
        // One endpoint needs neither a timer nor a schedule (WRR-16).
        if self.list.ready().nth(1).is_none() {
            self.phase = None;
            return None;
        }
        if self.is_dormant {
            let changes_at = self.weight_table.changes_at.filter(|_| was_weighed);
            let in_phase = |at| self.phase.map_or(at, |phase| first_in_phase(phase, period, at));
            return if was_weighed { changes_at.map(in_phase) } else { self.update_at };
        }
        // A late update keeps its phase within one period; after a longer pause the phase restarts.
        let next = match (self.update_at, self.phase) {
            (Some(at), _) if at > now => at,
            (Some(at), _) if at + period > now => at + period,
            (None, Some(phase)) => first_in_phase(phase, period, now + Duration::from_nanos(1)),
            _ => in_step(now + period, period),
        };
        self.phase = Some(next);
        Some(next)
    }
}

/// Returns the first time from `at` on that is a whole number of periods after `phase`.
fn first_in_phase(phase: Instant, period: Duration, at: Instant) -> Instant {
    let nanos = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX).max(1);
    let periods = at.as_nanos().saturating_sub(phase.as_nanos()).div_ceil(nanos);
    Instant::from_nanos(phase.as_nanos().saturating_add(periods.saturating_mul(nanos)))
}

/// Rounds a time down to one of the period's shared update times. They are few, so that a thousand clusters
/// whose endpoints connect one after the other are updated in a few passes and not in a thousand.
fn in_step(moment: Instant, period: Duration) -> Instant {
    let apart = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX) / PHASES;
    Instant::from_nanos(moment.as_nanos() / apart.max(1) * apart.max(1))
}

impl WeightedRoundRobinConfig {
    fn parse(fields: &ConfigFields<'_>) -> Result<WeightedRoundRobinConfig, ConfigError> {
        let or = WeightedRoundRobinConfig::default();
        let config = WeightedRoundRobinConfig {
            enable_oob_load_report: fields.bool("enableOobLoadReport")?.unwrap_or(or.enable_oob_load_report),
            oob_reporting_period: fields.duration("oobReportingPeriod")?.unwrap_or(or.oob_reporting_period),
            blackout_period: fields.duration_or_zero("blackoutPeriod")?.unwrap_or(or.blackout_period),
            weight_expiration_period: fields
                .duration("weightExpirationPeriod")?
                .unwrap_or(or.weight_expiration_period),
            weight_update_period: fields
                .duration_or_zero("weightUpdatePeriod")?
                .unwrap_or(or.weight_update_period),
            error_utilization_penalty: fields
                .f64("errorUtilizationPenalty")?
                .unwrap_or(or.error_utilization_penalty),
            metric_names_for_computing_utilization: metric_names(fields)?,
            weight_cap_ratio: fields.f64("weightCapRatio")?,
        };
        if config.error_utilization_penalty < 0.0 {
            return Err(fields.error("errorUtilizationPenalty", "must not be negative"));
        }
        if config.weight_cap_ratio.is_some_and(|ratio| ratio < 1.0) {
            return Err(fields.error("weightCapRatio", "must be at least 1: it bounds weights by their mean"));
        }
        Ok(config)
    }

    fn update_period(&self) -> Duration {
        self.weight_update_period.max(SHORTEST_UPDATE_PERIOD)
    }

    /// Returns true if both configs derive the same weight from a report.
    fn has_same_formula(&self, other: &WeightedRoundRobinConfig) -> bool {
        let how = |config: &WeightedRoundRobinConfig| {
            (config.enable_oob_load_report, config.error_utilization_penalty)
        };
        // The periods are left out: they apply at the lookup and not to a report.
        how(self) == how(other)
            && self.metric_names_for_computing_utilization == other.metric_names_for_computing_utilization
    }

    fn describe(&self, description: Description) -> Description {
        let text = |period: Duration| format!("{period:?}");
        let mut description = description
            .detail("enableOobLoadReport", self.enable_oob_load_report)
            .detail("blackoutPeriod", text(self.blackout_period))
            .detail("weightExpirationPeriod", text(self.weight_expiration_period))
            .detail("weightUpdatePeriod", text(self.update_period()))
            .detail("errorUtilizationPenalty", self.error_utilization_penalty);
        if self.enable_oob_load_report {
            description = description.detail("oobReportingPeriod", text(self.oob_reporting_period));
        }
        if !self.metric_names_for_computing_utilization.is_empty() {
            let names = self.metric_names_for_computing_utilization.clone();
            description = description.detail("metricNamesForComputingUtilization", names);
        }
        match self.weight_cap_ratio {
            Some(ratio) => description.detail("weightCapRatio", ratio),
            None => description,
        }
    }
}

fn metric_names(fields: &ConfigFields<'_>) -> Result<Vec<String>, ConfigError> {
    let field = "metricNamesForComputingUtilization";
    let mut names = fields.strings(field)?;
    names.retain(|name| {
        let known = match name.split_once('.') {
            Some((map, _)) => ["named_metrics", "utilization"].contains(&map),
            None => {
                ["application_utilization", "cpu_utilization", "mem_utilization"].contains(&name.as_str())
            }
        };
        if !known {
            fields.warn(field, &format!("{name:?} is not a supported metric, it is ignored"));
        }
        known
    });
    Ok(names)
}

/// Restarts the blackout if the endpoint has become ready on another connection (A58). Returns true if it
/// has.
fn note_connection(member: &mut EndpointEntry<WrrEndpointData>, cx: &Cx<'_>) -> bool {
    // The id survives a reconnect between two runs; the number of disconnects reveals it (WRR-7).
    let connection = member.ready().and_then(|id| Some((id, cx.peek(id)?.disconnects())));
    let is_new = connection.is_some() && connection != member.data.connection;
    if is_new {
        member.data.weight().restart_blackout();
    }
    member.data.connection = connection;
    is_new
}

/// Installs the endpoint's source of reports: a per-call tracker or an out-of-band watch.
fn read_load(
    member: &mut EndpointEntry<WrrEndpointData>,
    config: &WeightedRoundRobinConfig,
    formula: &Arc<WeightFormula>,
    cx: &mut Cx<'_>,
) {
    let (id, is_ready) = (member.subchannel(), member.ready().is_some());
    let own = &mut member.data;
    if !config.enable_oob_load_report {
        own.reports = None;
        // Only ready endpoints get calls, so only they need a tracker.
        if is_ready && own.tracker.as_ref().is_none_or(|tracker| !Arc::ptr_eq(&tracker.formula, formula)) {
            let weight = own.weight().clone();
            own.tracker = Some(Arc::new(WrrLoadTracker { formula: formula.clone(), weight }));
        }
        return;
    }
    own.tracker = None;
    // An ejected endpoint is still connected and continues to report.
    let Some(subchannel) = id.and_then(|id| cx.peek(id)).filter(|subchannel| subchannel.is_ready()) else {
        own.reports = None;
        return;
    };
    let (id, now) = (subchannel.id(), (subchannel.id(), subchannel.loads()));
    // The report that is present when the watch starts may predate it and was meant for another policy.
    let is_news = own.reports.replace(now).is_some_and(|before| before.0 == id && before != now);
    if let Some((at, report)) = subchannel.load().filter(|_| is_news) {
        own.weight().update(formula.weight(report), at);
    }
    cx.watch_load(id, config.oob_reporting_period);
}

/// State of an endpoint, kept while it stays in the list.
#[derive(Debug, Default)]
struct WrrEndpointData {
    slot: SchedulerSlot,
    /// Weight of the endpoint; `None` before it is READY for the first time.
    weight: Option<Arc<EndpointWeight>>,
    /// Reader of per-call reports; `None` while reports are out of band.
    tracker: Option<Arc<WrrLoadTracker>>,
    /// Connection of the last READY state: the subchannel and its number of earlier disconnects.
    connection: Option<(SubchannelId, u32)>,
    /// Subchannel of the last out-of-band report, and the number of its reports.
    reports: Option<(SubchannelId, u32)>,
    /// Result of the last update; `None` if the endpoint was not ready.
    status: Option<WeightStatus>,
}

impl WrrEndpointData {
    fn weight(&mut self) -> &Arc<EndpointWeight> {
        self.weight.get_or_insert_default()
    }
}

impl AsRef<SchedulerSlot> for WrrEndpointData {
    fn as_ref(&self) -> &SchedulerSlot {
        &self.slot
    }
}

impl AsMut<SchedulerSlot> for WrrEndpointData {
    fn as_mut(&mut self) -> &mut SchedulerSlot {
        &mut self.slot
    }
}

/// Integer weights and rule of the schedule.
#[derive(Debug)]
struct WeightTable {
    weights: Vec<u32>,
    rule: ScheduleRule,
    /// End of the next blackout or weight if no report arrives before. Computed by a dormant policy only.
    changes_at: Option<Instant>,
}

impl Default for WeightTable {
    fn default() -> WeightTable {
        WeightTable { weights: Vec::new(), rule: ScheduleRule::Literal, changes_at: None }
    }
}

/// Counts for A78, of one update or in total.
#[derive(Debug, Default)]
struct WeightCounts {
    /// Number of updates with fewer than two usable weights.
    fallbacks: u64,
    /// Number of endpoints in their blackout period, summed over updates.
    not_yet_usable: u64,
    /// Number of endpoints with an expired weight, summed over updates.
    stale: u64,
}

impl WeightCounts {
    /// Returns the counts of one update.
    fn of(known: &[WeightStatus], is_fallback: bool) -> WeightCounts {
        let count = |status| known.iter().filter(|known| **known == status).count() as u64;
        WeightCounts {
            fallbacks: u64::from(is_fallback),
            not_yet_usable: count(WeightStatus::NotYetUsable),
            stale: count(WeightStatus::Stale),
        }
    }

    fn add(&mut self, more: &WeightCounts) {
        self.fallbacks += more.fallbacks;
        self.not_yet_usable += more.not_yet_usable;
        self.stale += more.stale;
    }

    fn measurement(&self, known: &[WeightStatus], scope: &PolicyScope) -> WeightUpdate {
        WeightUpdate {
            labels: scope.labels(),
            rr_fallback: self.fallbacks > 0,
            not_yet_usable: self.not_yet_usable,
            stale: self.stale,
            weights: known.iter().map(|status| status.usable().unwrap_or(0.0)).collect(),
        }
    }
}

/// Usability of an endpoint's weight.
#[derive(Clone, Copy, Debug, PartialEq)]
enum WeightStatus {
    /// No report received, or the blackout has not ended.
    NotYetUsable,
    /// Weight expired since no report arrived in time.
    Stale,
    Usable(f64),
}

impl WeightStatus {
    fn usable(self) -> Option<f64> {
        match self {
            WeightStatus::Usable(weight) => Some(weight),
            WeightStatus::NotYetUsable | WeightStatus::Stale => None,
        }
    }
}

/// Returns the usable weights, each limited to `ratio` times their mean.
fn capped(known: &[WeightStatus], ratio: Option<f64>) -> Vec<Option<f64>> {
    let weights = || known.iter().map(|status| status.usable());
    let Some(ratio) = ratio else { return weights().collect() };
    // Normalised by the largest weight, since the sum of the weights themselves could overflow to infinity.
    let largest = weights().flatten().fold(f64::MIN_POSITIVE, f64::max);
    let parts = weights().flatten().map(|weight| weight / largest).sum::<f64>();
    let cap = ratio * (parts / weights().flatten().count() as f64) * largest;
    weights().map(|weight| weight.map(|weight| weight.min(cap))).collect()
}

/// Weight of an endpoint from its reports, written from any thread.
///
/// The three fields are not updated atomically as a group. An update between two writes may combine the
/// weight of one report with the times of another. The next update sees all of them.
#[derive(Debug)]
struct EndpointWeight {
    /// Bits of a positive `f64`; 0 before the first report.
    value: AtomicU64,
    /// Time of the last report, in nanoseconds.
    last_updated: AtomicU64,
    /// Time of the first report since the blackout restarted, in nanoseconds; `NEVER` before it.
    non_empty_since: AtomicU64,
}

const NEVER: u64 = u64::MAX;

impl Default for EndpointWeight {
    fn default() -> EndpointWeight {
        EndpointWeight {
            value: AtomicU64::new(0),
            last_updated: AtomicU64::new(0),
            non_empty_since: AtomicU64::new(NEVER),
        }
    }
}

impl EndpointWeight {
    /// Stores the weight of a report, if it has one.
    fn update(&self, weight: Option<f64>, at: Instant) {
        let Some(weight) = weight else { return };
        // Fails if the blackout has already begun, which is intended.
        let _ =
            self.non_empty_since.compare_exchange(NEVER, at.as_nanos(), Ordering::Relaxed, Ordering::Relaxed);
        // Reports of concurrent calls may arrive out of order.
        self.last_updated.fetch_max(at.as_nanos(), Ordering::Relaxed);
        self.value.store(weight.to_bits(), Ordering::Relaxed);
    }

    fn restart_blackout(&self) {
        self.non_empty_since.store(NEVER, Ordering::Relaxed);
    }

    /// Returns the weight if it is past its blackout and not expired. An expired weight restarts its blackout
    /// (A58).
    fn look_up(&self, config: &WeightedRoundRobinConfig, now: Instant) -> WeightStatus {
        let value = self.value.load(Ordering::Relaxed);
        if value == 0 {
            return WeightStatus::NotYetUsable;
        }
        let last_updated = Instant::from_nanos(self.last_updated.load(Ordering::Relaxed));
        if now.since(last_updated) >= config.weight_expiration_period {
            self.restart_blackout();
            return WeightStatus::Stale;
        }
        // `NEVER` is after any time, and `since` then returns zero.
        let non_empty_since = Instant::from_nanos(self.non_empty_since.load(Ordering::Relaxed));
        if now.since(non_empty_since) < config.blackout_period {
            return WeightStatus::NotYetUsable;
        }
        WeightStatus::Usable(f64::from_bits(value))
    }

    /// Returns the first time after `now` at which `look_up` returns another result without any report.
    fn changes_at(&self, config: &WeightedRoundRobinConfig, now: Instant) -> Option<Instant> {
        if self.value.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let expires_at =
            Instant::from_nanos(self.last_updated.load(Ordering::Relaxed)) + config.weight_expiration_period;
        let since = self.non_empty_since.load(Ordering::Relaxed);
        let usable_at = Instant::from_nanos(since) + config.blackout_period;
        // A blackout that has not begun ends only after a report.
        let times = [expires_at, if since == NEVER { expires_at } else { usable_at }];
        times.into_iter().filter(|at| *at > now).min()
    }
}

/// Conversion of load reports to weights.
#[derive(Debug, Default)]
struct WeightFormula {
    number: u64,
    penalty: f64,
    metric_names: Vec<String>,
    /// True once the config has replaced this formula; reports of older calls are then ignored.
    is_retired: AtomicBool,
}

impl WeightFormula {
    fn new(config: &WeightedRoundRobinConfig, number: u64) -> WeightFormula {
        WeightFormula {
            number,
            penalty: config.error_utilization_penalty,
            metric_names: config.metric_names_for_computing_utilization.clone(),
            is_retired: AtomicBool::new(false),
        }
    }

    /// Returns the weight, finite and above 0. A report without load or with invalid values gives `None`.
    fn weight(&self, report: &LoadReport) -> Option<f64> {
        let (rate, utilization) = (report.requests_per_second, self.utilization(report)?);
        // A58: the error rate is used only if there is a penalty. Without one, even an invalid error rate is
        // accepted.
        let errors = if self.penalty > 0.0 { report.errors_per_second } else { 0.0 };
        if rate.is_nan() || rate <= 0.0 || errors.is_nan() || errors < 0.0 {
            return None;
        }
        let weight = rate / (utilization + errors / rate * self.penalty);
        // Infinite inputs result in an infinite or zero weight, or NaN, and end here (WRR-4).
        Some(weight).filter(|weight| weight.is_finite() && *weight > 0.0)
    }

    fn utilization(&self, report: &LoadReport) -> Option<f64> {
        let is_load = |value: &f64| *value > 0.0;
        let named = self.metric_names.iter().filter_map(|name| report.metric(name)).filter(is_load);
        let fallback = [report.application_utilization, report.cpu_utilization];
        named.reduce(f64::max).or_else(|| fallback.into_iter().find(is_load))
    }
}

/// Tracker that reads the load reports of an endpoint's calls.
#[derive(Debug)]
struct WrrLoadTracker {
    formula: Arc<WeightFormula>,
    weight: Arc<EndpointWeight>,
}

impl CallTracker for WrrLoadTracker {
    fn finished(&self, end: &CallOutcome<'_>) {
        if let CallOutcome::Finished { at, load: Some(report), .. } = end
            // Relaxed is enough: a report that races with the change of the config may count either way.
            && !self.formula.is_retired.load(Ordering::Relaxed)
        {
            self.weight.update(self.formula.weight(report), *at);
        }
    }

    fn needs_load_report(&self) -> bool {
        true
    }
}

struct WrrPicker {
    order: Arc<ScheduledPicker>,
    /// Trackers by schedule index; empty while reports are out of band.
    trackers: Box<[Arc<WrrLoadTracker>]>,
}

impl Picker for WrrPicker {
    fn pick(&self, _: &PickArgs<'_>) -> PickResult {
        let (index, id) = self.order.next();
        match self.trackers.get(index) {
            Some(tracker) => PickResult::Complete(id, CallTrackers::one(tracker.clone())),
            None => PickResult::complete(id),
        }
    }
}

/// Minimum update period (A58).
const SHORTEST_UPDATE_PERIOD: Duration = Duration::from_millis(100);
