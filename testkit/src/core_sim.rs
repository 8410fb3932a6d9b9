//! A core, its virtual clock and its scripted backends.

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

/// A virtual world around one core.
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

/// Seconds.
pub fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The subchannels that a pass had connected.
pub fn dialled(pass: &PassResult) -> Vec<SubchannelId> {
    let dialled = |effect: &LbEffect| match effect {
        LbEffect::Connect { id, .. } => Some(*id),
        _ => None,
    };
    pass.effects.iter().filter_map(dialled).collect()
}

/// A list of endpoints with one address each.
pub fn endpoints<const N: usize>(addresses: [&str; N]) -> Endpoints {
    Endpoints::list(addresses.map(Endpoint::at))
}

/// A list of endpoints with one address and a weight each.
pub fn weighted<const N: usize>(addresses: [(&str, u32); N]) -> Endpoints {
    Endpoints::list(addresses.map(|(address, weight)| Endpoint::at(address).with_weight(weight)))
}

impl CoreSim {
    /// A world whose core has this `loadBalancingConfig` and these endpoints, after its first pass. Nothing answers
    /// until the story says so.
    ///
    /// # Panics
    /// Panics if the config does not parse.
    pub fn new(config: &Value, endpoints: Endpoints) -> CoreSim {
        CoreSim::with(Core::builder(Rng::fixed(1)).build(), Registry::standard(), config, endpoints)
    }

    /// The same with a core that measures.
    ///
    /// # Panics
    /// Panics if the config does not parse.
    pub fn measuring(config: &Value, endpoints: Endpoints) -> CoreSim {
        let core = Core::builder(Rng::fixed(1)).measure(true).build();
        CoreSim::with(core, Registry::standard(), config, endpoints)
    }

    /// The same with a core and a registry of the test's own.
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

    /// Every backend answers at once, from now on and for those that are being dialled.
    #[must_use]
    pub fn all_up(mut self) -> CoreSim {
        self.all_up = true;
        self.answer_pending();
        self
    }

    /// Gives the core other endpoints.
    pub fn endpoints(&mut self, endpoints: Endpoints) {
        self.endpoints = endpoints;
        self.send_update();
    }

    /// Gives the core another config.
    ///
    /// # Panics
    /// Panics if the config does not parse.
    pub fn config(&mut self, config: &Value) {
        self.config = self.registry.parse(config).expect("the story's config parses");
        self.send_update();
    }

    /// Gives the core another config and other endpoints at once.
    ///
    /// # Panics
    /// Panics if the config does not parse.
    pub fn update(&mut self, config: &Value, endpoints: Endpoints) {
        self.config = self.registry.parse(config).expect("the story's config parses");
        self.endpoints = endpoints;
        self.send_update();
    }

    /// Gives the core another resolution note.
    pub fn note(&mut self, note: &str) {
        self.note = Some(note.to_owned());
        self.send_update();
    }

    /// Gives the core other clusters.
    pub fn clusters(&mut self, clusters: &ClusterMap) {
        self.clusters = Some(Arc::new(clusters.clone()));
        self.send_update();
    }

    /// Gives the core a whole update as it is. Later steps that change a part start from what the world was given
    /// before, not from this.
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

    /// The backend at this address answers from now on; an attempt under way succeeds.
    pub fn up(&mut self, address: &str) {
        self.down.remove(&address.into());
        self.up.insert(address.into());
        self.answer_pending();
    }

    /// The backend at this address refuses from now on; its connection is lost, an attempt under way fails.
    pub fn down(&mut self, address: &str) {
        self.up.remove(&address.into());
        self.down.insert(address.into());
        if self.state_of(address) == Some(ConnectivityState::Ready) {
            self.lose(address);
        }
        self.answer_pending();
    }

    /// The attempt at this address succeeds.
    ///
    /// # Panics
    /// Panics if there is no subchannel for it.
    pub fn ready(&mut self, address: &str) {
        let id = self.id(address);
        self.handle(LbEvent::Connected(id));
    }

    /// The attempt at this address fails with "ADDRESS refused".
    ///
    /// # Panics
    /// Panics if there is no subchannel for it.
    pub fn fail(&mut self, address: &str) {
        let id = self.id(address);
        self.handle(LbEvent::ConnectFailed(id, Status::unavailable(format!("{address} refused"))));
    }

    /// The connection to this address is lost.
    ///
    /// # Panics
    /// Panics if there is no subchannel for it.
    pub fn lose(&mut self, address: &str) {
        let id = self.id(address);
        self.handle(LbEvent::Disconnected(id, Status::unavailable(format!("{address} went away"))));
    }

    /// An out-of-band load report comes from this address.
    ///
    /// # Panics
    /// Panics if there is no subchannel for it.
    pub fn load(&mut self, address: &str, report: LoadReport) {
        let id = self.id(address);
        self.handle(LbEvent::Load(id, report));
    }

    /// Any event; then a pass. Answers whether the core took it as news.
    pub fn handle(&mut self, event: LbEvent) -> bool {
        let news = self.core.handle(event, self.now);
        self.settle();
        news
    }

    /// Lets virtual time go by, with a pass at every moment that the core asked for.
    pub fn advance(&mut self, by: Duration) {
        let end = self.now + by;
        while let Some(at) = self.wake_at.filter(|at| *at <= end) {
            self.now = at.max(self.now);
            self.settle();
        }
        self.now = end;
        self.settle();
    }

    /// Lets virtual time jump without passes in between, as if the process had been asleep.
    pub fn sleep_through(&mut self, by: Duration) {
        self.now += by;
        self.settle();
    }

    /// Sets the clock, backwards too, and runs a pass.
    pub fn set_clock(&mut self, now: Instant) {
        self.now = now;
        self.settle();
    }

    /// The virtual time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// When the core wants its next pass.
    pub fn wake_at(&self) -> Option<Instant> {
        self.wake_at
    }

    /// The state that the core reports.
    pub fn state(&self) -> ConnectivityState {
        self.connectivity
    }

    /// The state of the subchannel at this address, if there is one.
    pub fn state_of(&self, address: &str) -> Option<ConnectivityState> {
        self.core.subchannel(self.find(address)?).map(evenkeel_core::Subchannel::connectivity)
    }

    /// The addresses dialled since this was last asked.
    pub fn dialled(&mut self) -> Vec<String> {
        std::mem::take(&mut self.dialled)
    }

    /// The addresses closed since this was last asked.
    pub fn closed(&mut self) -> Vec<String> {
        std::mem::take(&mut self.closed)
    }

    /// How often fresh addresses were asked for since this was last asked.
    pub fn reresolutions(&mut self) -> usize {
        std::mem::take(&mut self.reresolutions)
    }

    /// The warnings since this was last asked.
    pub fn warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// What was measured since this was last asked; nothing unless the core was built to measure ([`CoreSim::measuring`]).
    pub fn measurements(&mut self) -> Vec<Measurement> {
        std::mem::take(&mut self.measurements)
    }

    /// Where the subchannel at this address stands, in the words of metrics.
    ///
    /// # Panics
    /// Panics if there is no subchannel for it.
    pub fn labels(&self, address: &str) -> LbLabels {
        self.core.labels(self.id(address))
    }

    /// How many pickers were published since this was last asked.
    pub fn published(&mut self) -> usize {
        std::mem::take(&mut self.published)
    }

    /// The out-of-band load watches in force, by address.
    pub fn watches(&self) -> &BTreeMap<String, Duration> {
        &self.watches
    }

    /// Starts, changes and ends of load watches since this was last asked.
    pub fn watch_log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.watch_log)
    }

    /// How many subchannels the core keeps.
    pub fn subchannel_count(&self) -> usize {
        self.core.subchannel_count()
    }

    /// The tree as data.
    ///
    /// # Panics
    /// Panics if the core has no tree, which it has after its first update.
    pub fn describe(&self) -> Description {
        self.core.describe().expect("the world gave the core a config")
    }

    /// The core.
    pub fn core(&mut self) -> &mut Core {
        &mut self.core
    }

    /// The picker in force.
    ///
    /// # Panics
    /// Panics if none was published, which the first pass does.
    pub fn picker(&self) -> RootPicker {
        self.picker.clone().expect("the first pass publishes a picker")
    }

    /// One pick of a plain call.
    pub fn pick(&mut self) -> Picked {
        self.pick_with(|call| call)
    }

    /// One pick of a call that the test completes. A queued call's wish to connect is passed on at once.
    pub fn pick_with(&mut self, complete: impl for<'a> FnOnce(PickArgs<'a>) -> PickArgs<'a>) -> Picked {
        let entropy = self.entropy();
        self.pick_call(&complete(PickArgs::new("/test.Service/Method", entropy)))
    }

    /// One pick of a call that waits where others fail.
    pub fn pick_waiting(&mut self) -> Picked {
        let entropy = self.entropy();
        self.pick_call(&PickArgs::new("/test.Service/Method", entropy).wait_for_ready())
    }

    /// Fresh entropy for a call of the test's own.
    pub fn entropy(&mut self) -> u64 {
        self.rng.next_u64()
    }

    /// One pick of this call.
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

    /// The outcomes of `n` plain calls, each finished with OK before the next: addresses, `queue`, `fail`, `drop`.
    pub fn picks(&mut self, n: usize) -> Vec<String> {
        (0..n).map(|_| self.pick().finish_ok()).collect()
    }

    /// The picks of `n` calls as one string, for one-letter addresses.
    pub fn letters(&mut self, n: usize) -> String {
        self.picks(n).concat()
    }

    /// How often each outcome came in `n` plain calls, each finished with OK before the next.
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

    /// The subchannel at this address, if the core has dialled it.
    pub fn find(&self, address: &str) -> Option<SubchannelId> {
        let address = Address::from(address);
        self.known
            .iter()
            .find(|(id, a)| **a == address && self.core.subchannel(**id).is_some())
            .map(|(id, _)| *id)
    }

    /// Passes until nothing is left to do now; then checks that a pass in which everybody looks again changes nothing.
    fn settle(&mut self) {
        while self.pass() || self.wake_at.is_some_and(|at| at <= self.now) {}
        let again = self.core.reconcile_all(self.now);
        assert_eq!(again.effects, [], "a second pass asked for something");
        assert!(again.picker.is_none(), "a second pass changed the picker");
        assert_eq!(again.connectivity, self.connectivity, "a second pass changed the state");
        assert_eq!(again.wake_at, self.wake_at, "a second pass changed the next wake-up");
    }

    /// One pass, its effects carried out. Answers whether a backend answered, so that another pass is due.
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

/// What a call was told. Dropping it is what dropping the call would be.
#[derive(Debug)]
pub enum Picked {
    /// To send it to this address.
    To {
        /// The address.
        address: String,
        /// The subchannel.
        id: SubchannelId,
        /// Those who want to know how it ended.
        trackers: CallTrackers,
        /// When it was picked.
        now: Instant,
    },
    /// To wait.
    Queued,
    /// To fail, unless it waits for ready.
    Failed(Status),
    /// To fail in any case.
    Dropped(Status),
}

impl Picked {
    /// The outcome in one word: the address, `queue`, `fail` or `drop`.
    pub fn outcome(&self) -> String {
        match self {
            Picked::To { address, .. } => address.clone(),
            Picked::Queued => "queue".to_owned(),
            Picked::Failed(_) => "fail".to_owned(),
            Picked::Dropped(_) => "drop".to_owned(),
        }
    }

    /// The status, if it failed or was dropped.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Picked::Failed(status) | Picked::Dropped(status) => Some(status),
            Picked::To { .. } | Picked::Queued => None,
        }
    }

    /// Finishes the call with OK and answers its outcome.
    pub fn finish_ok(self) -> String {
        self.finish(Code::Ok, None)
    }

    /// Finishes the call with a code and perhaps a load report, and answers its outcome.
    pub fn finish(self, code: Code, load: Option<&LoadReport>) -> String {
        let outcome = self.outcome();
        if let Picked::To { trackers, now, .. } = self {
            trackers.finish(&CallOutcome::Finished { code, at: now, load });
        }
        outcome
    }

    /// Ends the call before anything of it was sent.
    pub fn unsent(self) {
        if let Picked::To { trackers, .. } = self {
            trackers.finish(&CallOutcome::Unsent);
        }
    }
}
