//! Simulated environment of a core: virtual clock and scripted backends.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::cluster::ClusterMap;
use evenkeel_core::{
    Address, CallOutcome, CallTrackers, Code, ConnectivityState, Core, Description, Endpoint, Endpoints,
    Instant, LbConfig, LbEffect, LbEvent, LbLabels, LbUpdate, LoadReport, Measurement, PassResult, PickArgs,
    PickResult, Registry, Rng, RootPicker, Status, SubchannelId,
};
use serde_json::Value;

/// Simulated environment around one core.
pub struct CoreSim {
    core: Core,
    registry: Registry,
    now: Instant,
    picker: Option<RootPicker>,
    connectivity: ConnectivityState,
    wake_at: Option<Instant>,
    config: LbConfig,
    endpoints: Endpoints,
    note: Option<String>,
    clusters: Option<Arc<ClusterMap>>,
    rng: Rng,
    up: HashSet<Address>,
    down: HashSet<Address>,
    all_up: bool,
    known: HashMap<SubchannelId, Address>,
    dialled: Vec<String>,
    closed: Vec<String>,
    watches: BTreeMap<String, Duration>,
    watch_log: Vec<String>,
    warnings: Vec<String>,
    measurements: Vec<Measurement>,
    reresolutions: usize,
    published: usize,
}

/// Returns a duration in seconds.
pub fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Returns the subchannels that a pass connects.
pub fn dialled(pass: &PassResult) -> Vec<SubchannelId> {
    let dialled = |effect: &LbEffect| match effect {
        LbEffect::Connect { id, .. } => Some(*id),
        _ => None,
    };
    pass.effects.iter().filter_map(dialled).collect()
}

/// Returns endpoints with one address each.
pub fn endpoints<const N: usize>(addresses: [&str; N]) -> Endpoints {
    Endpoints::list(addresses.map(Endpoint::at))
}

/// Returns endpoints with one address and a weight each.
pub fn weighted<const N: usize>(addresses: [(&str, u32); N]) -> Endpoints {
    Endpoints::list(addresses.map(|(address, weight)| Endpoint::at(address).with_weight(weight)))
}

impl CoreSim {
    /// Creates a core with this `loadBalancingConfig` and these endpoints, and runs the first pass. No
    /// backend responds until the test scripts it.
    ///
    /// # Panics
    /// Panics if the config does not parse.
    pub fn new(config: &Value, endpoints: Endpoints) -> CoreSim {
        CoreSim::with(Core::builder(Rng::fixed(1)).build(), Registry::standard(), config, endpoints)
    }

    /// Like [`CoreSim::new`], with a core that emits measurements.
    ///
    /// # Panics
    /// Panics if the config does not parse.
    pub fn measuring(config: &Value, endpoints: Endpoints) -> CoreSim {
        let core = Core::builder(Rng::fixed(1)).measure(true).build();
        CoreSim::with(core, Registry::standard(), config, endpoints)
    }

    /// Like [`CoreSim::new`], with the given core and registry.
    ///
    /// # Panics
    /// Panics if the config does not parse.
    pub fn with(core: Core, registry: Registry, config: &Value, endpoints: Endpoints) -> CoreSim {
        let config = registry.parse(config).expect("the story's config parses");
        let mut world = CoreSim {
            core,
            registry,
            now: Instant::ORIGIN,
            picker: None,
            connectivity: ConnectivityState::Idle,
            wake_at: None,
            config,
            endpoints,
            note: None,
            clusters: None,
            rng: Rng::fixed(2),
            up: HashSet::new(),
            down: HashSet::new(),
            all_up: false,
            known: HashMap::new(),
            dialled: Vec::new(),
            closed: Vec::new(),
            watches: BTreeMap::new(),
            watch_log: Vec::new(),
            warnings: Vec::new(),
            measurements: Vec::new(),
            reresolutions: 0,
            published: 0,
        };
        world.send_update();
        world
    }

    /// Makes every backend accept connections at once, including attempts in progress.
    #[must_use]
    pub fn all_up(mut self) -> CoreSim {
        self.all_up = true;
        self.answer_pending();
        self
    }

    /// Sends an update with other endpoints.
    pub fn endpoints(&mut self, endpoints: Endpoints) {
        self.endpoints = endpoints;
        self.send_update();
    }

    /// Sends an update with another config.
    ///
    /// # Panics
    /// Panics if the config does not parse.
    pub fn config(&mut self, config: &Value) {
        self.config = self.registry.parse(config).expect("the story's config parses");
        self.send_update();
    }

    /// Sends an update with another config and other endpoints.
    ///
    /// # Panics
    /// Panics if the config does not parse.
    pub fn update(&mut self, config: &Value, endpoints: Endpoints) {
        self.config = self.registry.parse(config).expect("the story's config parses");
        self.endpoints = endpoints;
        self.send_update();
    }

    /// Sends an update with another resolution note.
    pub fn note(&mut self, note: &str) {
        self.note = Some(note.to_owned());
        self.send_update();
    }

    /// Sends an update with other clusters.
    pub fn clusters(&mut self, clusters: &ClusterMap) {
        self.clusters = Some(Arc::new(clusters.clone()));
        self.send_update();
    }

    /// Passes a complete update to the core. Later partial changes start from the previous values, not from
    /// this update.
    pub fn take(&mut self, update: LbUpdate) {
        self.core.update(update);
        self.settle();
    }

    fn send_update(&mut self) {
        let update = LbUpdate::new(self.config.clone(), self.endpoints.clone());
        let update = match &self.clusters {
            Some(clusters) => update.with_clusters(clusters.clone()),
            None => update,
        };
        let update = match &self.note {
            Some(note) => update.with_note(note.as_str()),
            None => update,
        };
        self.core.update(update);
        self.settle();
    }

    /// Makes the backend at this address accept connections. An attempt in progress succeeds.
    pub fn up(&mut self, address: &str) {
        self.down.remove(&address.into());
        self.up.insert(address.into());
        self.answer_pending();
    }

    /// Makes the backend at this address refuse connections. Its connection is lost, and an attempt in
    /// progress fails.
    pub fn down(&mut self, address: &str) {
        self.up.remove(&address.into());
        self.down.insert(address.into());
        if self.state_of(address) == Some(ConnectivityState::Ready) {
            self.lose(address);
        }
        self.answer_pending();
    }

    /// Completes the connection attempt to this address.
    ///
    /// # Panics
    /// Panics if there is no subchannel for it.
    pub fn ready(&mut self, address: &str) {
        let id = self.id(address);
        self.handle(LbEvent::Connected(id));
    }

    /// Fails the connection attempt to this address with "ADDRESS refused".
    ///
    /// # Panics
    /// Panics if there is no subchannel for it.
    pub fn fail(&mut self, address: &str) {
        let id = self.id(address);
        self.handle(LbEvent::ConnectFailed(id, Status::unavailable(format!("{address} refused"))));
    }

    /// Closes the connection to this address.
    ///
    /// # Panics
    /// Panics if there is no subchannel for it.
    pub fn lose(&mut self, address: &str) {
        let id = self.id(address);
        self.handle(LbEvent::Disconnected(id, Status::unavailable(format!("{address} went away"))));
    }

    /// Delivers an out-of-band load report from this address.
    ///
    /// # Panics
    /// Panics if there is no subchannel for it.
    pub fn load(&mut self, address: &str, report: LoadReport) {
        let id = self.id(address);
        self.handle(LbEvent::Load(id, report));
    }

    /// Handles an event and runs a pass. Returns true if the core's state changed.
    pub fn handle(&mut self, event: LbEvent) -> bool {
        let news = self.core.handle(event, self.now);
        self.settle();
        news
    }

    /// Advances virtual time, with a pass at each wake-up time of the core.
    pub fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(at) = self.wake_at.filter(|at| *at <= end) {
            self.now = at.max(self.now);
            self.settle();
        }
        self.now = end;
        self.settle();
    }

    /// Advances virtual time in one step, as if the process had been suspended.
    pub fn sleep_through(&mut self, by: Duration) {
        self.now += by;
        self.settle();
    }

    /// Sets the clock, also backwards, and runs a pass.
    pub fn set_clock(&mut self, now: Instant) {
        self.now = now;
        self.settle();
    }

    /// Returns the virtual time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Returns the time of the next pass that the core requested.
    pub fn wake_at(&self) -> Option<Instant> {
        self.wake_at
    }

    /// Returns the connectivity state of the core.
    pub fn state(&self) -> ConnectivityState {
        self.connectivity
    }

    /// Returns the state of the subchannel at this address, if there is one.
    pub fn state_of(&self, address: &str) -> Option<ConnectivityState> {
        self.core.subchannel(self.find(address)?).map(evenkeel_core::Subchannel::connectivity)
    }

    /// Returns the addresses dialled since the previous call.
    pub fn dialled(&mut self) -> Vec<String> {
        std::mem::take(&mut self.dialled)
    }

    /// Returns the addresses closed since the previous call.
    pub fn closed(&mut self) -> Vec<String> {
        std::mem::take(&mut self.closed)
    }

    /// Returns the number of re-resolution requests since the previous call.
    pub fn reresolutions(&mut self) -> usize {
        std::mem::take(&mut self.reresolutions)
    }

    /// Returns the warnings since the previous call.
    pub fn warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// Returns the measurements since the previous call. Only a measuring core emits them
    /// ([`CoreSim::measuring`]).
    pub fn measurements(&mut self) -> Vec<Measurement> {
        std::mem::take(&mut self.measurements)
    }

    /// Returns the metric labels of the subchannel at this address.
    ///
    /// # Panics
    /// Panics if there is no subchannel for it.
    pub fn labels(&self, address: &str) -> LbLabels {
        self.core.labels(self.id(address))
    }

    /// Returns the number of pickers published since the previous call.
    pub fn published(&mut self) -> usize {
        std::mem::take(&mut self.published)
    }

    /// Returns the active out-of-band load watches, by address.
    pub fn watches(&self) -> &BTreeMap<String, Duration> {
        &self.watches
    }

    /// Returns the starts, changes and ends of load watches since the previous call.
    pub fn watch_log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.watch_log)
    }

    /// Returns the number of subchannels.
    pub fn subchannel_count(&self) -> usize {
        self.core.subchannel_count()
    }

    /// Returns the policy tree.
    ///
    /// # Panics
    /// Panics if the core has no tree, which it has after its first update.
    pub fn describe(&self) -> Description {
        self.core.describe().expect("the world gave the core a config")
    }

    /// Returns the core under test.
    pub fn core(&mut self) -> &mut Core {
        &mut self.core
    }

    /// Returns the current picker.
    ///
    /// # Panics
    /// Panics if none was published, which the first pass does.
    pub fn picker(&self) -> RootPicker {
        self.picker.clone().expect("the first pass publishes a picker")
    }

    /// Picks for a call without attributes.
    pub fn pick(&mut self) -> Picked {
        self.pick_with(|call| call)
    }

    /// Picks for a call that `complete` fills in. A connect request of a queued call is delivered at once.
    pub fn pick_with(&mut self, complete: impl for<'a> FnOnce(PickArgs<'a>) -> PickArgs<'a>) -> Picked {
        let entropy = self.entropy();
        self.pick_call(&complete(PickArgs::new("/test.Service/Method", entropy)))
    }

    /// Picks for a wait-for-ready call.
    pub fn pick_waiting(&mut self) -> Picked {
        let entropy = self.entropy();
        self.pick_call(&PickArgs::new("/test.Service/Method", entropy).wait_for_ready())
    }

    /// Returns random bits for a call.
    pub fn entropy(&mut self) -> u64 {
        self.rng.next_u64()
    }

    /// Picks for this call.
    pub fn pick_call(&mut self, call: &PickArgs<'_>) -> Picked {
        match self.picker().pick(call) {
            PickResult::Complete(id, trackers) => {
                let address = self.known.get(&id).map_or_else(|| format!("{id:?}"), ToString::to_string);
                if let Some(id) = trackers.to_wake() {
                    self.handle(LbEvent::Connect(id));
                }
                Picked::To { address, id, trackers, now: self.now }
            }
            PickResult::Queue { connect } => {
                if let Some(id) = connect {
                    self.handle(LbEvent::Connect(id));
                }
                Picked::Queued
            }
            PickResult::Fail(status) => Picked::Failed(status),
            PickResult::Drop(status) => Picked::Dropped(status),
        }
    }

    /// Returns the outcomes of `n` sequential calls, each finished with OK: an address, `queue`, `fail` or
    /// `drop`.
    pub fn picks(&mut self, n: usize) -> Vec<String> {
        (0..n).map(|_| self.pick().finish_ok()).collect()
    }

    /// Returns the outcomes of `n` calls as one string, for one-letter addresses.
    pub fn letters(&mut self, n: usize) -> String {
        self.picks(n).concat()
    }

    /// Returns the number of each outcome in `n` sequential calls, each finished with OK.
    pub fn shares(&mut self, n: usize) -> BTreeMap<String, usize> {
        let mut shares = BTreeMap::new();
        for outcome in self.picks(n) {
            *shares.entry(outcome).or_default() += 1;
        }
        shares
    }

    fn id(&self, address: &str) -> SubchannelId {
        self.find(address).unwrap_or_else(|| panic!("there is no subchannel for {address}"))
    }

    /// Returns the subchannel at this address, if the core has dialled it.
    pub fn find(&self, address: &str) -> Option<SubchannelId> {
        let address = Address::from(address);
        self.known
            .iter()
            .find(|(id, a)| **a == address && self.core.subchannel(**id).is_some())
            .map(|(id, _)| *id)
    }

    /// Runs passes until the core is stable. Then asserts that a pass over all policies changes nothing.
    fn settle(&mut self) {
        while self.pass() || self.wake_at.is_some_and(|at| at <= self.now) {}
        let again = self.core.reconcile_all(self.now);
        assert_eq!(again.effects, [], "a second pass asked for something");
        assert!(again.picker.is_none(), "a second pass changed the picker");
        assert_eq!(again.connectivity, self.connectivity, "a second pass changed the state");
        assert_eq!(again.wake_at, self.wake_at, "a second pass changed the next wake-up");
    }

    /// Runs a pass and performs its effects. Returns true if a backend responded, so that another pass is
    /// due.
    fn pass(&mut self) -> bool {
        let pass = self.core.reconcile(self.now);
        if let Some(picker) = pass.picker {
            self.picker = Some(picker);
            self.published += 1;
        }
        self.connectivity = pass.connectivity;
        self.wake_at = pass.wake_at;
        let mut dialled = Vec::new();
        for effect in pass.effects {
            match effect {
                LbEffect::Connect { id, address, .. } => {
                    self.dialled.push(address.to_string());
                    self.known.insert(id, address);
                    dialled.push(id);
                }
                LbEffect::Close { id } => {
                    let address =
                        self.known.remove(&id).map_or_else(String::new, |address| address.to_string());
                    self.watches.remove(&address);
                    self.closed.push(address);
                }
                LbEffect::WatchLoad { id, every } => {
                    let address = self.core.subchannel(id).map(|subchannel| subchannel.address().to_string());
                    self.watch(address.unwrap_or_default(), every);
                }
                LbEffect::Reresolve => self.reresolutions += 1,
                LbEffect::Warn(text) => self.warnings.push(text),
                LbEffect::Measure(measurement) => self.measurements.push(*measurement),
                other => panic!("the world does not know {other:?}"),
            }
        }
        dialled.into_iter().filter(|id| self.answer(*id)).count() > 0
    }

    fn watch(&mut self, address: String, every: Option<Duration>) {
        self.watch_log.push(match every {
            Some(every) => format!("{address} every {every:?}"),
            None => format!("{address} stop"),
        });
        match every {
            Some(every) => self.watches.insert(address, every),
            None => self.watches.remove(&address),
        };
    }

    fn answer(&mut self, id: SubchannelId) -> bool {
        let Some(address) = self.known.get(&id) else { return false };
        if self.down.contains(address) {
            let error = Status::unavailable(format!("{address} refused"));
            self.core.handle(LbEvent::ConnectFailed(id, error), self.now)
        } else if self.all_up || self.up.contains(address) {
            self.core.handle(LbEvent::Connected(id), self.now)
        } else {
            false
        }
    }

    fn answer_pending(&mut self) {
        let mut ids: Vec<SubchannelId> = self.known.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.answer(id);
        }
        self.settle();
    }
}

/// Result of a pick. Dropping it drops the call.
#[derive(Debug)]
pub enum Picked {
    /// The call is sent to this address.
    To {
        /// Address of the endpoint.
        address: String,
        /// Id of the subchannel.
        id: SubchannelId,
        /// Trackers of the call's outcome.
        trackers: CallTrackers,
        /// Time of the pick.
        now: Instant,
    },
    /// The call is queued.
    Queued,
    /// The call fails, unless it is wait-for-ready.
    Failed(Status),
    /// The call fails in any case.
    Dropped(Status),
}

impl Picked {
    /// Returns the outcome as one word: the address, `queue`, `fail` or `drop`.
    pub fn outcome(&self) -> String {
        match self {
            Picked::To { address, .. } => address.clone(),
            Picked::Queued => "queue".to_owned(),
            Picked::Failed(_) => "fail".to_owned(),
            Picked::Dropped(_) => "drop".to_owned(),
        }
    }

    /// Returns the status, if the call failed or was dropped.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Picked::Failed(status) | Picked::Dropped(status) => Some(status),
            Picked::To { .. } | Picked::Queued => None,
        }
    }

    /// Finishes the call with OK and returns its outcome.
    pub fn finish_ok(self) -> String {
        self.finish(Code::Ok, None)
    }

    /// Finishes the call with a code and an optional load report, and returns its outcome.
    pub fn finish(self, code: Code, load: Option<&LoadReport>) -> String {
        let outcome = self.outcome();
        if let Picked::To { trackers, now, .. } = self {
            trackers.finish(&CallOutcome::Finished { code, at: now, load });
        }
        outcome
    }

    /// Ends the call before any of it was sent.
    pub fn unsent(self) {
        if let Picked::To { trackers, .. } = self {
            trackers.finish(&CallOutcome::Unsent);
        }
    }
}
