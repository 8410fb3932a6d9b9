//! Simulation: one client that drives a `Core`, and backends that process calls sequentially.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use evenkeel::lb::{
    Address, CallOutcome, CallTrackers, Code, Core, Description, Endpoint, Endpoints, Instant, LbEffect,
    LbEvent, LbUpdate, LoadReport, PickArgs, PickResult, Registry, Rng, RootPicker, Status, SubchannelId,
};
use serde_json::Value;

/// Calls per second that the client sends.
pub(crate) const RATE: u64 = 600;
/// Maximum queueing time of a call. Above it the call fails.
const DEADLINE: Duration = Duration::from_millis(500);
/// Virtual time before the first act, in which load reports take effect.
const WARM_UP: Duration = Duration::from_secs(15);
/// Virtual time of an act before the measurement, in which the policy reacts.
const SETTLE: Duration = Duration::from_secs(15);
/// Measured virtual time of each act.
const MEASURED: Duration = Duration::from_secs(10);
/// Number of users, for hashing policies.
const USERS: u64 = 5_000;

/// Policy and the fault that it faces.
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    pub(crate) says: &'static str,
    pub(crate) policy: Value,
    pub(crate) fault: Fault,
    /// True if the control plane sets the capacities as weights.
    pub(crate) weighted: bool,
}

/// Fault of the second act.
pub(crate) enum Fault {
    /// A backend's process ends, and its port refuses connections.
    Dies(&'static str),
    /// A backend fails every call.
    Errs(&'static str),
    /// All backends of a zone end.
    ZoneDies(&'static str),
}

/// Figures of one act.
pub(crate) struct Act {
    pub(crate) name: &'static str,
    pub(crate) rows: BTreeMap<&'static str, Row>,
    pub(crate) calls: u64,
    pub(crate) failed: u64,
    pub(crate) p99: Duration,
}

/// Expected and actual share of one backend.
#[derive(Default)]
pub(crate) struct Row {
    pub(crate) want: Option<f64>,
    pub(crate) got: f64,
    pub(crate) utilization: f64,
    pub(crate) unused: Option<String>,
}

/// All backends of the simulation.
pub(crate) struct Fleet(pub(crate) Vec<Backend>);

/// Backend: a queue and a server of fixed speed.
pub(crate) struct Backend {
    pub(crate) name: &'static str,
    pub(crate) zone: &'static str,
    /// Capacity in calls per second.
    pub(crate) capacity: u32,
    up: bool,
    erring: bool,
    busy_until: Instant,
    /// Served calls and busy time of the current second and of the previous one.
    window: Window,
}

#[derive(Default)]
struct Window {
    began: Instant,
    calls: f64,
    errors: f64,
    busy: f64,
    last: (f64, f64, f64),
}

impl Fleet {
    /// Five backends; the largest has eight times the capacity of the smallest.
    pub(crate) fn unequal() -> Fleet {
        let backend = |name, zone, capacity| Backend {
            name,
            zone,
            capacity,
            up: true,
            erring: false,
            busy_until: Instant::ORIGIN,
            window: Window::default(),
        };
        Fleet(vec![
            backend("small-1", "zone-a", 100),
            backend("small-2", "zone-b", 100),
            backend("medium", "zone-b", 200),
            backend("large", "zone-b", 400),
            backend("huge", "zone-a", 800),
        ])
    }

    fn by_name(&mut self, name: &str) -> Option<&mut Backend> {
        self.0.iter_mut().find(|backend| backend.name == name)
    }

    fn endpoints(&self, weighted: bool) -> Endpoints {
        let weight = |backend: &Backend| if weighted { backend.capacity } else { 1 };
        let endpoint = |backend: &Backend| Endpoint::at(backend.name).with_weight(weight(backend));
        let zone = |zone| Endpoints::list(self.0.iter().filter(|b| b.zone == zone).map(endpoint));
        Endpoints::groups([("zone-a", zone("zone-a")), ("zone-b", zone("zone-b"))])
    }
}

impl Backend {
    /// Queues a call and returns its completion time. A call beyond the deadline is not started.
    fn serve(&mut self, now: Instant) -> Instant {
        self.window.roll(now);
        if self.busy_until.since(now) >= DEADLINE {
            return now + DEADLINE;
        }
        let cost = Duration::from_secs_f64(1.0 / f64::from(self.capacity));
        self.busy_until = self.busy_until.max(now) + cost;
        self.window.calls += 1.0;
        self.window.errors += f64::from(u8::from(self.erring));
        self.window.busy += cost.as_secs_f64();
        self.busy_until
    }

    /// Returns the per-call load report: rates and utilization of the last full second.
    fn report(&mut self, now: Instant) -> LoadReport {
        self.window.roll(now);
        let (calls, errors, busy) = self.window.last;
        LoadReport {
            cpu_utilization: busy.max(0.01),
            requests_per_second: calls,
            errors_per_second: errors,
            ..LoadReport::default()
        }
    }
}

impl Window {
    fn roll(&mut self, now: Instant) {
        let length = now.since(self.began).as_secs_f64();
        if length >= 1.0 {
            self.last = (self.calls / length, self.errors / length, self.busy / length);
            *self = Window { began: now, last: self.last, ..Window::default() };
        }
    }
}

/// Runs a scene: steady state, fault and recovery.
pub(crate) fn play(scene: &Scene) -> Result<Vec<Act>, Box<dyn std::error::Error>> {
    let config = Registry::standard().parse(&scene.policy)?;
    let mut client = Client::new(LbUpdate::new(config, Fleet::unequal().endpoints(scene.weighted)));
    client.run(WARM_UP);
    let steady = client.act("steady");
    client.set_fault(&scene.fault, true);
    client.run(SETTLE);
    let broken = client.act("fault");
    client.set_fault(&scene.fault, false);
    client.run(SETTLE);
    let mended = client.act("mended");
    Ok(vec![steady, broken, mended])
}

struct Client {
    core: Core,
    picker: Option<RootPicker>,
    wake_at: Option<Instant>,
    fleet: Fleet,
    now: Instant,
    rng: Rng,
    dialled: BTreeMap<SubchannelId, Address>,
    in_flight: BinaryHeap<Reverse<Pending>>,
    calls: u64,
    tally: Tally,
}

#[derive(Default)]
struct Tally {
    served: BTreeMap<&'static str, u64>,
    busy: BTreeMap<&'static str, f64>,
    calls: u64,
    failed: u64,
    latencies: Vec<Duration>,
}

/// Active call, ordered by completion time.
struct Pending {
    done: Instant,
    number: u64,
    started: Instant,
    backend: &'static str,
    trackers: CallTrackers,
}

impl Client {
    fn new(update: LbUpdate) -> Client {
        let mut core = Core::builder(Rng::fixed(1)).build();
        core.update(update);
        let mut client = Client {
            core,
            picker: None,
            wake_at: None,
            fleet: Fleet::unequal(),
            now: Instant::ORIGIN,
            rng: Rng::fixed(2),
            dialled: BTreeMap::new(),
            in_flight: BinaryHeap::new(),
            calls: 0,
            tally: Tally::default(),
        };
        client.pass();
        client
    }

    /// Advances virtual time, with evenly spaced calls.
    fn run(&mut self, length: Duration) {
        let end = self.now + length;
        let gap = Duration::from_secs(1) / RATE as u32;
        while self.now < end {
            self.now += gap;
            while self.in_flight.peek().is_some_and(|Reverse(call)| call.done <= self.now) {
                if let Some(Reverse(call)) = self.in_flight.pop() {
                    self.finish(call);
                }
            }
            if self.wake_at.is_some_and(|at| at <= self.now) {
                self.pass();
            }
            self.call();
        }
    }

    /// Runs and measures an act.
    fn act(&mut self, name: &'static str) -> Act {
        self.tally = Tally::default();
        self.run(MEASURED);
        let mut tally = std::mem::take(&mut self.tally);
        tally.latencies.sort_unstable();
        let p99 = tally.latencies.get(tally.latencies.len() * 99 / 100).copied().unwrap_or_default();
        let mut rows: BTreeMap<&'static str, Row> = BTreeMap::new();
        for backend in &self.fleet.0 {
            let served = tally.served.get(backend.name).copied().unwrap_or(0) as f64;
            let busy = tally.busy.get(backend.name).copied().unwrap_or(0.0);
            let row = rows.entry(backend.name).or_default();
            row.got = served / tally.calls.max(1) as f64;
            row.utilization = busy / MEASURED.as_secs_f64();
            row.unused = Some("not among the endpoints in use".to_owned());
        }
        if let Some(tree) = self.core.describe() {
            fill(&mut rows, &tree);
        }
        Act { name, rows, calls: tally.calls, failed: tally.failed, p99 }
    }

    /// Makes one call of a random user.
    fn call(&mut self) {
        self.calls += 1;
        self.tally.calls += 1;
        let user = self.rng.below(USERS);
        let hash = user.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let call = PickArgs::new("/shop.Orders/Get", self.rng.next_u64()).with_hash(hash);
        let picked = self.picker.as_ref().map_or(PickResult::QUEUE, |picker| picker.pick(&call));
        let (id, trackers) = match picked {
            PickResult::Complete(id, trackers) => (id, trackers),
            PickResult::Queue { connect } => {
                // A channel would queue the call. Here it is dropped, and a later call takes its place.
                if let Some(id) = connect {
                    self.core.handle(LbEvent::Connect(id), self.now);
                    self.pass();
                }
                return;
            }
            PickResult::Fail(_) | PickResult::Drop(_) => {
                self.tally.failed += 1;
                return;
            }
        };
        let Some(backend) = self.dialled.get(&id).and_then(|a| self.fleet.by_name(&a.to_string())) else {
            return;
        };
        let done = backend.serve(self.now).min(self.now + DEADLINE);
        *self.tally.served.entry(backend.name).or_default() += 1;
        *self.tally.busy.entry(backend.name).or_default() += 1.0 / f64::from(backend.capacity);
        let call = Pending { done, number: self.calls, started: self.now, backend: backend.name, trackers };
        self.in_flight.push(Reverse(call));
    }

    fn finish(&mut self, call: Pending) {
        let latency = call.done.since(call.started);
        let Some(backend) = self.fleet.by_name(call.backend) else { return };
        let code = match () {
            () if !backend.up => Code::Unavailable,
            () if latency >= DEADLINE => Code::DeadlineExceeded,
            () if backend.erring => Code::Internal,
            () => Code::Ok,
        };
        let report = (code != Code::Unavailable).then(|| backend.report(call.done));
        call.trackers.finish(&CallOutcome::Finished { code, at: call.done, load: report.as_ref() });
        self.tally.failed += u64::from(code != Code::Ok);
        self.tally.latencies.push(latency);
    }

    /// Runs passes of the core and performs their effects.
    fn pass(&mut self) {
        loop {
            let pass = self.core.reconcile(self.now);
            self.wake_at = pass.wake_at;
            self.picker = pass.picker.or(self.picker.take());
            let mut answered = false;
            for effect in pass.effects {
                match effect {
                    LbEffect::Connect { id, address, .. } => {
                        let up = self.fleet.by_name(&address.to_string()).is_some_and(|backend| backend.up);
                        self.dialled.insert(id, address);
                        let refused = || Status::unavailable("connection refused");
                        let event =
                            if up { LbEvent::Connected(id) } else { LbEvent::ConnectFailed(id, refused()) };
                        answered |= self.core.handle(event, self.now);
                    }
                    LbEffect::Close { id } => {
                        self.dialled.remove(&id);
                    }
                    _ => {}
                }
            }
            if !answered {
                return;
            }
        }
    }

    fn set_fault(&mut self, fault: &Fault, on: bool) {
        for backend in &mut self.fleet.0 {
            match fault {
                Fault::Dies(name) if backend.name == *name => backend.up = !on,
                Fault::ZoneDies(zone) if backend.zone == *zone => backend.up = !on,
                Fault::Errs(name) if backend.name == *name => backend.erring = on,
                _ => {}
            }
        }
        let is_down = |(id, address): (&SubchannelId, &Address)| {
            let down = self.fleet.0.iter().any(|backend| !backend.up && backend.name == address.to_string());
            down.then_some(*id)
        };
        let lost: Vec<SubchannelId> = self.dialled.iter().filter_map(is_down).collect();
        for id in lost {
            self.core.handle(LbEvent::Disconnected(id, Status::unavailable("connection reset")), self.now);
        }
        self.pass();
    }
}

/// Copies the policies' view of each endpoint: its share, and the reason if unused. Children that a policy
/// did not choose get nothing.
fn fill(rows: &mut BTreeMap<&'static str, Row>, tree: &Description) {
    let chosen = tree.details.get("chosen").and_then(Value::as_str);
    for endpoint in &tree.endpoints {
        let name = endpoint.addresses.first().map_or("", String::as_str);
        if let Some(row) = rows.iter_mut().find(|(backend, _)| **backend == name).map(|(_, row)| row) {
            row.want = endpoint.share;
            row.unused.clone_from(&endpoint.unused);
        }
    }
    for (_, child) in tree.children.iter().filter(|(name, _)| chosen.is_none_or(|chosen| chosen == name)) {
        fill(rows, child);
    }
}

impl PartialEq for Pending {
    fn eq(&self, other: &Pending) -> bool {
        (self.done, self.number) == (other.done, other.number)
    }
}

impl Eq for Pending {}

impl PartialOrd for Pending {
    fn partial_cmp(&self, other: &Pending) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Pending {
    fn cmp(&self, other: &Pending) -> std::cmp::Ordering {
        (self.done, self.number).cmp(&(other.done, other.number))
    }
}
