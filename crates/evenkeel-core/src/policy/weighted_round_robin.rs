//! `weighted_round_robin`: every ready endpoint in turn, as often as the load that it reports says (A58; A114 for the
//! metrics that count; A61 for endpoints with several addresses; A78 for what is counted).
//!
//! An endpoint's weight is its rate of calls per utilisation: what it could serve if it were fully used. Weights are
//! looked up once per update period and whenever the ready endpoints or the config change; in between the order
//! stays. A weight that is too young (blackout) or too old (expiration) counts as unknown, and an endpoint
//! without a weight gets the mean of the others. Without picks between two look-ups the policy is dormant: its only timer is
//! the end of the next blackout or weight, and the first pick leads to a look-up at once. While fewer than two weights are known, endpoints take turns by the
//! weights of the control plane, which is round robin where it gave none.
//!
//! Reports come with finished calls, or out of band if the config says so; never both.

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

/// At how many moments of an update period policies look up weights: their first update comes by a part of it sooner.
const PHASES: u64 = 20;

/// The policy.
#[derive(Debug, Default)]
pub struct WeightedRoundRobin {
    list: EndpointList<WrrEndpointData>,
    scheduler: WeightedScheduler,
    cached: CachedState<(SchedulerInputs, u64)>,
    config: Option<WeightedRoundRobinConfig>,
    formula: Arc<WeightFormula>,
    weight_table: WeightTable,
    /// When weights are looked up next; only while there are two to compare.
    update_at: Option<Instant>,
    /// A moment at which weights are looked up while calls are picked; the others are whole periods away.
    phase: Option<Instant>,
    /// Position in the order at the last look-up. The same at the next one means that no call was picked.
    weighed_at: Option<SchedulePosition>,
    is_dormant: bool,
    dormant: DormantState,
    counts: WeightCounts,
}

/// Settings of `weighted_round_robin`.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightedRoundRobinConfig {
    /// Whether reports come out of band instead of with calls.
    pub enable_oob_load_report: bool,
    /// How often out-of-band reports are asked for.
    pub oob_reporting_period: Duration,
    /// How long an endpoint must have reported before its weight is used; zero for at once.
    pub blackout_period: Duration,
    /// How long after its last report an endpoint's weight is used.
    pub weight_expiration_period: Duration,
    /// How often weights are looked up; less than 100 ms counts as 100 ms.
    pub weight_update_period: Duration,
    /// By how much a call that fails adds to the utilisation. Not negative.
    pub error_utilization_penalty: f64,
    /// The metrics of which the greatest is the utilisation (A114); if none is reported, the application's own, else
    /// that of the CPU.
    pub metric_names_for_computing_utilization: Vec<String>,
    /// Weights above this many times their mean count as that much; unset for no bound. At least 1.
    pub weight_cap_ratio: Option<f64>,
}

impl Default for WeightedRoundRobinConfig {
    /// What A58 says: per-call reports, 10 s blackout, 3 min expiration, an update per second, penalty 1.
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
        // What comes with calls is read by whoever reads it already.
        let is_settled = !config_changed && !config.enable_oob_load_report;
        let mut restarted = false;
        for member in
            self.list.entries_mut().iter_mut().filter(|member| !(is_settled && member.is_unchanged()))
        {
            restarted |= note_connection(member, cx);
            read_load(member, config, &self.formula, cx);
        }
        if restarted && self.is_dormant {
            // A connection that came and went between two passes may leave the ready endpoints as they were.
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
            // The pick that ends a silence finds the weights of the last update in it, had there been any.
            let at = if wakes && !has_changed { self.last_update(config, cx.now()) } else { cx.now() };
            self.update_weights(config, at, cx);
        }
        let WeightTable { weights, rule, .. } = &self.weight_table;
        self.scheduler.reconcile(&mut self.list, weights, *rule, self.is_dormant, cx);
        // The picks that wake the policy are used at its next update too: without more of them it is dormant after that one.
        if updates_weights && !wakes {
            // Picks that came during the look-up count as after it. Of an order that begins here there are none.
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
    /// Takes in the config. Answers whether it is another than before.
    fn adopt(&mut self, config: &WeightedRoundRobinConfig) -> bool {
        if self.config.as_ref() == Some(config) {
            return false;
        }
        let old = self.config.replace(config.clone());
        if old.as_ref().is_none_or(|old| !old.has_same_formula(config)) {
            // Calls under way report by rules that are no longer in force, perhaps out of band by now.
            self.formula.is_retired.store(true, Ordering::Relaxed);
            self.formula = Arc::new(WeightFormula::new(config, self.formula.number + 1));
        }
        if old.is_none_or(|old| old.update_period() != config.update_period()) {
            (self.update_at, self.phase) = (None, None);
        }
        true
    }

    /// Looks up every ready endpoint's weight as of `now`. Changes the order only if the integers come out different.
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
        // A58: fewer than two are as good as none.
        let are_usable = known.iter().filter(|status| status.usable().is_some()).nth(1).is_some();
        let scaled = if are_usable { scale(&capped(&known, config.weight_cap_ratio)) } else { None };
        if known.len() > 1 {
            let counts = WeightCounts::of(&known, scaled.is_none());
            self.counts.add(&counts);
            cx.measure(|scope| Measurement::WeightUpdate(counts.measurement(&known, scope)));
        }
        self.weight_table = match scaled {
            Some(weights) => WeightTable { weights, rule: ScheduleRule::Eligible, changes_at },
            None => WeightTable {
                weights: self.list.ready().map(|(member, _)| eds_weight(&member.endpoint)).collect(),
                rule: ScheduleRule::Literal,
                changes_at,
            },
        };
    }

    /// Returns the moment of the last update up to `now`, if updates had gone on in their phase.
    fn last_update(&self, config: &WeightedRoundRobinConfig, now: Instant) -> Instant {
        let period = config.update_period();
        let Some(phase) = self.phase.filter(|phase| *phase <= now) else { return now };
        let since = now.since(phase).as_nanos() % period.as_nanos().max(1);
        Instant::from_nanos(now.as_nanos() - u64::try_from(since).unwrap_or(0))
    }

    /// Updates keep their phase; after a pause there is one, and those that were missed are skipped. A dormant policy
    /// updates when time alone changes a weight, in phase too: timers would have led to the same order.
    fn next_update(&mut self, period: Duration, was_weighed: bool, now: Instant) -> Option<Instant> {
        if self.list.ready().nth(1).is_none() {
            self.phase = None;
            return None;
        }
        if self.is_dormant {
            let changes_at = self.weight_table.changes_at.filter(|_| was_weighed);
            let in_phase = |at| self.phase.map_or(at, |phase| first_in_phase(phase, period, at));
            return if was_weighed { changes_at.map(in_phase) } else { self.update_at };
        }
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

/// Returns the first moment from `at` on that is a number of whole periods after `phase`.
fn first_in_phase(phase: Instant, period: Duration, at: Instant) -> Instant {
    let nanos = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX).max(1);
    let periods = at.as_nanos().saturating_sub(phase.as_nanos()).div_ceil(nanos);
    Instant::from_nanos(phase.as_nanos().saturating_add(periods.saturating_mul(nanos)))
}

/// The last of a period's phases up to a moment. There are few, so that a thousand clusters whose endpoints came up one after
/// the other are updated in a few passes and not in a thousand.
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

    /// Whether reports are read the same way under both.
    fn has_same_formula(&self, other: &WeightedRoundRobinConfig) -> bool {
        let how = |config: &WeightedRoundRobinConfig| {
            (config.enable_oob_load_report, config.error_utilization_penalty)
        };
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
            fields.warn(field, &format!("{name:?} is not a metric that counts, it is ignored"));
        }
        known
    });
    Ok(names)
}

/// A58: an endpoint that becomes ready starts its blackout over.
/// Returns true if the blackout was restarted.
fn note_connection(member: &mut EndpointEntry<WrrEndpointData>, cx: &Cx<'_>) -> bool {
    let connection = member.ready().and_then(|id| Some((id, cx.peek(id)?.disconnects())));
    let is_new = connection.is_some() && connection != member.data.connection;
    if is_new {
        member.data.weight().restart_blackout();
    }
    member.data.connection = connection;
    is_new
}

/// Sees to it that the endpoint's reports are read, one way or the other.
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
        // Only who is called reports.
        if is_ready && own.tracker.as_ref().is_none_or(|tracker| !Arc::ptr_eq(&tracker.formula, formula)) {
            let weight = own.weight().clone();
            own.tracker = Some(Arc::new(WrrLoadTracker { formula: formula.clone(), weight }));
        }
        return;
    }
    own.tracker = None;
    // An ejected endpoint is still connected and goes on reporting.
    let Some(subchannel) = id.and_then(|id| cx.peek(id)).filter(|subchannel| subchannel.is_ready()) else {
        own.reports = None;
        return;
    };
    let (id, now) = (subchannel.id(), (subchannel.id(), subchannel.loads()));
    // Reports from before the watch were for somebody else.
    let is_news = own.reports.replace(now).is_some_and(|before| before.0 == id && before != now);
    if let Some((at, report)) = subchannel.load().filter(|_| is_news) {
        own.weight().update(formula.weight(report), at);
    }
    cx.watch_load(id, config.oob_reporting_period);
}

/// What the policy remembers about an endpoint for as long as it stays in the list.
#[derive(Debug, Default)]
struct WrrEndpointData {
    slot: SchedulerSlot,
    /// Unset until it is ready for the first time.
    weight: Option<Arc<EndpointWeight>>,
    /// Reads the reports that come with calls; `None` while they come out of band.
    tracker: Option<Arc<WrrLoadTracker>>,
    /// The connection it was ready on: the subchannel, and how often that had been lost before.
    connection: Option<(SubchannelId, u32)>,
    /// Out-of-band reports seen so far, and from which subchannel.
    reports: Option<(SubchannelId, u32)>,
    /// What came of the last look-up, if it was ready then.
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

/// What the order is made from.
#[derive(Debug)]
struct WeightTable {
    weights: Vec<u32>,
    rule: ScheduleRule,
    /// When the next blackout or weight ends, if nothing is reported before. Computed by a dormant policy only.
    changes_at: Option<Instant>,
}

impl Default for WeightTable {
    fn default() -> WeightTable {
        WeightTable { weights: Vec::new(), rule: ScheduleRule::Literal, changes_at: None }
    }
}

/// What A78 counts, of one update or of all since the policy exists.
#[derive(Debug, Default)]
struct WeightCounts {
    /// Updates with fewer than two usable weights.
    fallbacks: u64,
    /// Endpoints, summed over updates, that had not reported for long enough.
    not_yet_usable: u64,
    /// Endpoints, summed over updates, that had stopped reporting.
    stale: u64,
}

impl WeightCounts {
    /// The counts of one update.
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

/// What a look-up says about an endpoint's weight.
#[derive(Clone, Copy, Debug, PartialEq)]
enum WeightStatus {
    /// Nothing reported yet, or not for long enough.
    NotYetUsable,
    /// Nothing reported for too long.
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

/// The usable weights, none of them above `ratio` times their mean.
fn capped(known: &[WeightStatus], ratio: Option<f64>) -> Vec<Option<f64>> {
    let weights = || known.iter().map(|status| status.usable());
    let Some(ratio) = ratio else { return weights().collect() };
    // Parts of the largest: their sum is finite where that of the weights is not.
    let largest = weights().flatten().fold(f64::MIN_POSITIVE, f64::max);
    let parts = weights().flatten().map(|weight| weight / largest).sum::<f64>();
    let cap = ratio * (parts / weights().flatten().count() as f64) * largest;
    weights().map(|weight| weight.map(|weight| weight.min(cap))).collect()
}

/// An endpoint's weight as its reports say it, written from any thread.
///
/// The three fields are not one transaction. A look-up between two of the writes sees a fresh weight with stamps that
/// are one report older, or the other way round; the next one sees all.
#[derive(Debug)]
struct EndpointWeight {
    /// The bits of a number above 0, or 0 before the first report.
    value: AtomicU64,
    /// When the last report came, in nanoseconds.
    last_updated: AtomicU64,
    /// When the first report came that counts towards the blackout, in nanoseconds, or `NEVER`.
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
    /// Takes in a weight, if the report had one.
    fn update(&self, weight: Option<f64>, at: Instant) {
        let Some(weight) = weight else { return };
        // An error means that the blackout runs already.
        let _ =
            self.non_empty_since.compare_exchange(NEVER, at.as_nanos(), Ordering::Relaxed, Ordering::Relaxed);
        self.last_updated.fetch_max(at.as_nanos(), Ordering::Relaxed);
        self.value.store(weight.to_bits(), Ordering::Relaxed);
    }

    fn restart_blackout(&self) {
        self.non_empty_since.store(NEVER, Ordering::Relaxed);
    }

    /// A58: enforces expiration and blackout; what has expired starts its blackout over.
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
        let non_empty_since = Instant::from_nanos(self.non_empty_since.load(Ordering::Relaxed));
        if now.since(non_empty_since) < config.blackout_period {
            return WeightStatus::NotYetUsable;
        }
        WeightStatus::Usable(f64::from_bits(value))
    }

    /// Returns the time after `now` at which a look-up has another result although nothing was reported in between.
    fn changes_at(&self, config: &WeightedRoundRobinConfig, now: Instant) -> Option<Instant> {
        if self.value.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let expires_at =
            Instant::from_nanos(self.last_updated.load(Ordering::Relaxed)) + config.weight_expiration_period;
        let since = self.non_empty_since.load(Ordering::Relaxed);
        let usable_at = Instant::from_nanos(since) + config.blackout_period;
        // A blackout that has not begun ends with nothing but a report.
        let times = [expires_at, if since == NEVER { expires_at } else { usable_at }];
        times.into_iter().filter(|at| *at > now).min()
    }
}

/// How a report becomes a weight.
#[derive(Debug, Default)]
struct WeightFormula {
    number: u64,
    penalty: f64,
    metric_names: Vec<String>,
    /// Another one is in force: calls under way are not to be read any more.
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

    /// Finite and above 0, or `None`: a report without load, or one that makes no sense, changes nothing.
    fn weight(&self, report: &LoadReport) -> Option<f64> {
        let (rate, utilization) = (report.requests_per_second, self.utilization(report)?);
        // A58: errors count only if there is a penalty, whatever they are otherwise.
        let errors = if self.penalty > 0.0 { report.errors_per_second } else { 0.0 };
        if rate.is_nan() || rate <= 0.0 || errors.is_nan() || errors < 0.0 {
            return None;
        }
        let weight = rate / (utilization + errors / rate * self.penalty);
        Some(weight).filter(|weight| weight.is_finite() && *weight > 0.0)
    }

    fn utilization(&self, report: &LoadReport) -> Option<f64> {
        let is_load = |value: &f64| *value > 0.0;
        let named = self.metric_names.iter().filter_map(|name| report.metric(name)).filter(is_load);
        let fallback = [report.application_utilization, report.cpu_utilization];
        named.reduce(f64::max).or_else(|| fallback.into_iter().find(is_load))
    }
}

/// Reads the reports of an endpoint's calls.
#[derive(Debug)]
struct WrrLoadTracker {
    formula: Arc<WeightFormula>,
    weight: Arc<EndpointWeight>,
}

impl CallTracker for WrrLoadTracker {
    fn finished(&self, end: &CallOutcome<'_>) {
        if let CallOutcome::Finished { at, load: Some(report), .. } = end
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
    /// By index in the order; empty while reports come out of band.
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

/// A58: shorter update periods count as this.
const SHORTEST_UPDATE_PERIOD: Duration = Duration::from_millis(100);
