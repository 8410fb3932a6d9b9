//! The client against a model, under generated events in any order (faults 17 and 37).
//!
//! After any events, each server has the client's subscription, and the client always waits for an event. A resource
//! is the last valid version that its server sent, and every subscription has a result. `PROPTEST_CASES=100000` runs
//! many.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use evenkeel_core::Instant;
use evenkeel_xds::ads::{DELETION_GRACE, SubscriberId, XdsVariant};
use evenkeel_xds::resource::ResourceType::{self, Cluster, Endpoints};
use proptest::prelude::*;

use crate::script::{ClientScript, MarkParser, bootstrap, reply};

const KINDS: [ResourceType; 2] = [Cluster, Endpoints];
const NAMES: [&str; 3] = ["a", "b", "c"];
const SUBSCRIBERS: usize = 2;

/// Duration beyond every timeout of the client.
const LONG: Duration = Duration::from_secs(200);

type Name = (ResourceType, String);

#[derive(Clone, Debug)]
enum ModelStep {
    /// A subscriber subscribes to these of the six names.
    Want(usize, u8),
    Leave(usize),
    Accept(usize),
    Refuse(usize),
    End(usize),
    /// A response with the names of the server's subscription. Two bits per name select: omitted, valid, valid with
    /// other content, invalid.
    Send(usize, ResourceType, u8),
    Write(usize),
    Process(usize),
    Wait(u64),
}

fn steps(servers: usize) -> impl Strategy<Value = Vec<ModelStep>> {
    let server = 0..servers;
    let step = prop_oneof![
        5 => (0..SUBSCRIBERS, 0..64u8).prop_map(|(who, what)| ModelStep::Want(who, what)),
        1 => (0..SUBSCRIBERS).prop_map(ModelStep::Leave),
        4 => server.clone().prop_map(ModelStep::Accept),
        1 => server.clone().prop_map(ModelStep::Refuse),
        1 => server.clone().prop_map(ModelStep::End),
        6 => (server.clone(), prop_oneof![Just(Cluster), Just(Endpoints)], 0..64u8)
            .prop_map(|(server, kind, what)| ModelStep::Send(server, kind, what)),
        6 => server.prop_map(ModelStep::Write),
        4 => (0..SUBSCRIBERS).prop_map(ModelStep::Process),
        2 => prop_oneof![Just(1u64), Just(1_500), Just(14_000), Just(16_000), Just(130_000)].prop_map(ModelStep::Wait),
    ];
    proptest::collection::vec(step, 1..60)
}

/// Client whose writes and changes are held back until a step completes them.
struct ModelRun {
    world: ClientScript,
    servers: Vec<&'static str>,
    subscribers: Vec<Option<SubscriberId>>,
    wants: Vec<BTreeSet<Name>>,
    /// Last valid content of each subscribed resource, or of one unsubscribed in flight. Only with one server.
    good: BTreeMap<Name, String>,
    /// End of the grace period of each deleted resource that is in use.
    held: BTreeMap<Name, Instant>,
}

impl ModelRun {
    fn new(variant: XdsVariant, servers: usize) -> ModelRun {
        let servers = ["one", "two"][..servers].to_vec();
        let mut world = ClientScript::with(bootstrap(&servers), MarkParser, variant);
        world.holds_writes = true;
        world.holds_changes = true;
        let subscribers = vec![None; SUBSCRIBERS];
        let wants = vec![BTreeSet::new(); SUBSCRIBERS];
        ModelRun { world, servers, subscribers, wants, good: BTreeMap::new(), held: BTreeMap::new() }
    }

    fn wanted(&self) -> BTreeSet<Name> {
        self.wants.iter().flatten().cloned().collect()
    }

    fn step(&mut self, step: &ModelStep) {
        let world = &mut self.world;
        match *step {
            ModelStep::Want(who, what) => {
                let id = *self.subscribers[who].get_or_insert_with(|| world.client.add_subscriber());
                let all = KINDS.iter().flat_map(|kind| NAMES.iter().map(|name| (*kind, *name)));
                let names: Vec<_> =
                    all.enumerate().filter(|(i, _)| what & (1 << i) != 0).map(|(_, name)| name).collect();
                self.wants[who] = names.iter().map(|(kind, name)| (*kind, (*name).to_owned())).collect();
                world.wants(id, &names);
            }
            ModelStep::Leave(who) => {
                if let Some(id) = self.subscribers[who].take() {
                    self.wants[who].clear();
                    world.leaves(id);
                }
            }
            ModelStep::Accept(i) => {
                let server = self.servers[i];
                if world.streams().contains(&server) && !world.is_open(server) {
                    world.accepts(server);
                }
            }
            ModelStep::Refuse(i) => {
                let server = self.servers[i];
                if world.streams().contains(&server) && !world.is_open(server) {
                    world.refuses(server);
                }
            }
            ModelStep::End(i) => {
                if world.is_open(self.servers[i]) {
                    world.ends(self.servers[i], "gone");
                }
            }
            ModelStep::Send(i, kind, what) => self.send(self.servers[i], kind, what),
            ModelStep::Write(i) => {
                if world.is_writing(self.servers[i]) {
                    world.write(self.servers[i]);
                }
            }
            ModelStep::Process(who) => {
                if let Some(id) = self.subscribers[who].filter(|id| world.unprocessed().contains(id)) {
                    world.process(id);
                }
            }
            ModelStep::Wait(millis) => world.passes(Duration::from_millis(millis)),
        }
    }

    /// Sends any subset of the subscribed resources, by the rules of the variant.
    fn send(&mut self, server: &str, kind: ResourceType, what: u8) {
        if !self.world.reads(server) || !self.world.is_open(server) {
            return;
        }
        let told = self.world.told(server);
        let mut items = Vec::new();
        let mut left_out = Vec::new();
        for (i, name) in NAMES.iter().enumerate() {
            if !told.contains(&(kind, (*name).to_owned())) {
                continue;
            }
            match what >> (2 * i) & 3 {
                0 => left_out.push(*name),
                1 => items.push(format!("{name}=1")),
                2 => items.push(format!("{name}=2")),
                _ => items.push(format!("{name}=bad")),
            }
        }
        let removes = match self.world.variant {
            XdsVariant::StateOfTheWorld => kind == Cluster,
            XdsVariant::Delta => what & 1 == 0,
        };
        let held = self.held();
        for item in &items {
            let (name, content) = item.split_once('=').expect("name=content");
            let name = (kind, name.to_owned());
            self.held.remove(&name);
            if content != "bad" && held.contains(&name) {
                self.good.insert(name, content.to_owned());
            }
        }
        if removes {
            // A name whose unsubscription is in flight is not deleted by a response without it, since it may be
            // subscribed again.
            let stays = self.world.will_be_told(server);
            for name in left_out.iter().map(|name| (kind, (*name).to_owned())) {
                let is_deleted = self.world.variant == XdsVariant::Delta || stays.contains(&name);
                if is_deleted && self.good.contains_key(&name) {
                    self.held.entry(name).or_insert(self.world.now + DELETION_GRACE);
                }
            }
        }
        let texts: Vec<&str> = items.iter().map(String::as_str).collect();
        let left_out = if removes { left_out } else { Vec::new() };
        self.world.sends(server, reply(kind, "v", &texts).removing(&left_out));
    }

    /// Returns the subscribed names, and those that a server may believe to be subscribed. The client keeps their
    /// resources.
    fn held(&self) -> BTreeSet<Name> {
        let mut held = self.wanted();
        for server in &self.servers {
            held.extend(self.world.told(server));
            held.extend(self.world.will_be_told(server));
        }
        held
    }

    fn check(&mut self) {
        let wanted = self.wanted();
        // Without subscriptions there is no deadline and no stream. Otherwise there always is one.
        let streams = self.world.streams();
        let waits = self.world.client.next_deadline().is_some();
        let moves = streams.iter().any(|server| {
            !self.world.is_open(server) || self.world.reads(server) || !self.world.unprocessed().is_empty()
        });
        assert_eq!(wanted.is_empty(), !waits && streams.is_empty(), "{streams:?}");
        assert!(wanted.is_empty() || waits || moves, "the client waits for no event");
        if self.servers.len() == 1 {
            let held = self.held();
            let connected = self.world.is_open("one");
            let now = self.world.now;
            let is_expired = |name: &Name| self.held.get(name).is_some_and(|until| *until <= now);
            self.good.retain(|name, _| {
                held.contains(name) && (connected || wanted.contains(name)) && !is_expired(name)
            });
            self.held.retain(|name, _| self.good.contains_key(name));
            for (kind, name) in &wanted {
                let seen = self.world.sees(*kind, name);
                let seen = seen.split(" ~").next().unwrap_or_default();
                match self.good.get(&(*kind, name.clone())) {
                    Some(good) => assert_eq!(seen, good, "{kind} {name}"),
                    None => assert!(seen.is_empty() || seen.starts_with('!'), "{kind} {name}: {seen}"),
                }
            }
        }
    }

    /// Completes everything that is held back, with servers that accept every stream, and checks the result.
    fn settle(&mut self) {
        self.world.holds_writes = false;
        self.world.holds_changes = false;
        for round in 0.. {
            assert!(round < 100, "it does not settle");
            for server in self.servers.clone() {
                if self.world.is_writing(server) {
                    self.world.write(server);
                }
            }
            for id in self.world.unprocessed() {
                self.world.process(id);
            }
            let closed = self
                .servers
                .iter()
                .find(|server| self.world.streams().contains(*server) && !self.world.is_open(server));
            match closed {
                Some(server) => self.world.accepts(server),
                None if self.world.client.next_deadline().is_none_or(|at| at > self.world.now + LONG) => {
                    break;
                }
                None => {
                    let at: Instant = self.world.client.next_deadline().expect("a deadline");
                    self.world.passes(at.since(self.world.now));
                }
            }
        }
        let wanted = self.wanted();
        for server in self.world.streams() {
            assert_eq!(self.world.told(server), wanted, "subscription of {server}");
            assert!(self.world.reads(server), "{server} is not read from");
        }
        assert_eq!(self.world.streams().is_empty(), wanted.is_empty());
        for (kind, name) in &wanted {
            assert_ne!(self.world.sees(*kind, name), "", "{kind} {name} has neither a resource nor an error");
        }
    }
}

fn run(variant: XdsVariant, servers: usize, steps: &[ModelStep]) {
    let mut run = ModelRun::new(variant, servers);
    for step in steps {
        run.step(step);
        run.check();
    }
    run.settle();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Faults 17 and 37, ADS-2, ADS-3, ADS-9: one server, state of the world.
    #[test]
    fn one_server_state_of_the_world(steps in steps(1)) {
        run(XdsVariant::StateOfTheWorld, 1, &steps);
    }

    /// Faults 17 and 37, ADS-12: one server, delta.
    #[test]
    fn one_server_delta(steps in steps(1)) {
        run(XdsVariant::Delta, 1, &steps);
    }

    /// Faults 12 and 37, FB-2, FB-3: a server and its fallback, state of the world.
    #[test]
    fn two_servers_state_of_the_world(steps in steps(2)) {
        run(XdsVariant::StateOfTheWorld, 2, &steps);
    }

    /// Faults 12 and 37, FB-2, FB-3: a server and its fallback, delta.
    #[test]
    fn two_servers_delta(steps in steps(2)) {
        run(XdsVariant::Delta, 2, &steps);
    }
}
