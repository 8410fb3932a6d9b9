//! Instructions and allocations of an update: one endpoint of ten is replaced, and there are more or fewer clusters beside
//! theirs.
//!
//! What is counted is what a client does from the control plane's message to the new picker: it reads the message and accepts
//! it, finds out what changed for its channel, and runs the passes in which the new endpoint is connected. Sockets, threads and
//! clocks have no part in it, so that the counts are the same each time. One process makes all updates, so that valgrind
//! starts once.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_core::{Core, Instant, LbEvent, Registry, Rng, RootPicker};
use evenkeel_proto::envoy::service::discovery::v3::{DeltaDiscoveryResponse, Resource};
use evenkeel_xds::ads::{
    AdsClient, AdsEffect, AdsEvent, AdsStreamId, ChangedResources, SubscriberId, XdsVariant,
};
use evenkeel_xds::bootstrap::Bootstrap;
use evenkeel_xds::resolver::{EndpointsOnlyUpdate, XdsResolver, XdsResolverUpdate};
use evenkeel_xds::resource::{ResourceParser, ResourceType};
use prost::Message as _;
use testkit::dialled;

use super::cell;
use super::marks::{self, mark};
use crate::Error;
use crate::common::allocator::Totals;
use crate::config::{Shape, resources};
use crate::table::Table;
use crate::thresholds::{Threshold, ThresholdResult};

/// So many are counted of each size.
const UPDATES: u32 = 50;

/// The numbers of endpoints of the table.
const SIZES: [usize; 4] = [10, 100, 1_000, 10_000];

/// What an update may cost beside one of the fewest endpoints and still count as the same.
const FLAT: Threshold = Threshold::AtMost(1.1);

const BOOTSTRAP: &str = r#"{"xds_servers": [{"server_uri": "control:1", "channel_creds": [{"type": "insecure"}]}], "node": {"id": "bench"}}"#;

/// What one update costs among so many endpoints.
pub(super) struct Counted {
    pub(super) endpoints: usize,
    /// Unknown without valgrind.
    pub(super) instructions: Option<f64>,
    pub(super) allocations: f64,
}

pub(super) fn table() -> Result<(Table, Option<ThresholdResult>), Error> {
    let columns = ["endpoints", "instructions", "beside the fewest", "allocations"];
    let mut table = Table::new("One endpoint replaced, counted", &columns).note(format!(
        "From the control plane's message (delta) to the new picker, of {UPDATES} updates. All are in clusters of ten, the same ten \
         take turns. Sockets and threads have no part in it.",
    ));
    let (mut first, mut threshold) = (None, None);
    for Counted { endpoints, instructions, allocations } in counted(&SIZES)? {
        first = first.or(instructions);
        let ratio = instructions.zip(first).map(|(this, first)| this / first);
        table.row(vec![
            endpoints.to_string(),
            cell(instructions, 0),
            cell(ratio, 3),
            cell(Some(allocations), 1),
        ]);
        let what = format!(
            "one of {endpoints} endpoints in clusters of ten replaced, delta, beside the fewest: instructions"
        );
        threshold = Some(ThresholdResult::figure(what, FLAT, ratio));
    }
    Ok((table, threshold))
}

/// An update among each number of endpoints, counted by a process of its own.
pub(super) fn counted(sizes: &[usize]) -> Result<Vec<Counted>, Error> {
    let (allocations, sections) = marks::count("updates", UPDATES.into(), sizes)?;
    // Every section of updates follows one of preparing them.
    let of_updates = sections.map(|all| all.into_iter().skip(1).step_by(2).collect::<Vec<_>>());
    let found = of_updates.as_ref().map_or(allocations.len(), Vec::len).min(allocations.len());
    if found != sizes.len() {
        return Err(format!("expected counts of {} sizes of updates, found {found}", sizes.len()).into());
    }
    let each = |sum: &f64| sum / f64::from(UPDATES);
    let counted = |(i, (&endpoints, allocations)): (usize, (&usize, &f64))| Counted {
        endpoints,
        instructions: of_updates.as_ref().and_then(|all| all.get(i)).map(each),
        allocations: each(allocations),
    };
    Ok(sizes.iter().zip(&allocations).enumerate().map(counted).collect())
}

/// The process: prints the allocations of the updates among each number of endpoints, and marks where they begin and end.
pub(super) fn work(updates: u32, sizes: &[usize]) -> Result<(), Error> {
    for &size in sizes {
        let mut world = UpdateHarness::new()?;
        let mut endpoints: Vec<SocketAddr> = (0..size).map(|i| endpoint(1, i)).collect();
        world.take_all(&endpoints)?;
        endpoints.truncate(10);
        // Some come before it is counted, until tables and lists have grown to their size.
        let mut messages = Vec::new();
        for update in 0..updates + WARM_UP {
            let i = update as usize % endpoints.len();
            endpoints[i] = endpoint(2 + (update as usize / 250) as u8, i * 256 + update as usize % 250);
            messages.push(world.message(ResourceType::Endpoints, &endpoints)?);
        }
        let (warm_up, counted) = messages.split_at(WARM_UP as usize);
        warm_up.iter().try_for_each(|message| world.take(message))?;
        mark();
        let (before, _) = Totals::now();
        let result = counted.iter().try_for_each(|message| world.take(message));
        let (after, _) = Totals::now();
        mark();
        result?;
        println!("{}", after - before);
    }
    Ok(())
}

const WARM_UP: u32 = 20;

fn endpoint(generation: u8, i: usize) -> SocketAddr {
    let [high, low] = (i as u16).to_be_bytes();
    SocketAddr::from(([10, generation, high, low], 80))
}

/// A client of a control plane and one channel of it, with everything that happens to them.
struct UpdateHarness {
    client: AdsClient,
    channel: SubscriberId,
    stream: Option<AdsStreamId>,
    resolver: XdsResolver,
    wanted: BTreeSet<(ResourceType, String)>,
    core: Core,
    picker: Option<RootPicker>,
    sent: u64,
}

impl UpdateHarness {
    fn new() -> Result<UpdateHarness, Error> {
        let bootstrap = Arc::new(Bootstrap::from_json(BOOTSTRAP)?);
        let parser = ResourceParser::new(Registry::standard());
        let mut client = AdsClient::new(bootstrap, parser, XdsVariant::Delta, Rng::fixed(1));
        let channel = client.add_subscriber();
        let mut world = UpdateHarness {
            client,
            channel,
            stream: None,
            resolver: XdsResolver::new("bench", "bench", "bench", 7, Arc::new(|| ())),
            wanted: BTreeSet::new(),
            core: Core::builder(Rng::fixed(1)).build(),
            picker: None,
            sent: 0,
        };
        world.follow();
        world.settle();
        Ok(world)
    }

    /// Takes in all resources for these endpoints.
    fn take_all(&mut self, endpoints: &[SocketAddr]) -> Result<(), Error> {
        for kind in ResourceType::ALL {
            let message = self.message(kind, endpoints)?;
            if let Some(step) = self.receive(&message)? {
                self.apply(step);
            }
        }
        let connected = self.core.subchannel_count();
        if connected == endpoints.len() { Ok(()) } else { Err(format!("{connected} were connected").into()) }
    }

    /// Takes in an update, which must change something.
    fn take(&mut self, message: &[u8]) -> Result<(), Error> {
        let step = self.receive(message)?.ok_or("an update changed nothing")?;
        self.apply(step);
        Ok(())
    }

    /// The resources of one type for these endpoints, as a control plane sends them.
    fn message(&mut self, kind: ResourceType, endpoints: &[SocketAddr]) -> Result<Vec<u8>, Error> {
        self.sent += 1;
        let all = resources(Shape::ClustersOfTen { routed: endpoints.len() }, endpoints);
        let resources = all.iter().filter(|(type_url, ..)| *type_url == kind.type_url());
        let resource = |(_, name, any): (_, &str, &_)| Resource {
            name: name.to_owned(),
            version: self.sent.to_string(),
            resource: Some(Clone::clone(any)),
            ..Resource::default()
        };
        let response = DeltaDiscoveryResponse {
            resources: resources.map(resource).collect(),
            type_url: kind.type_url().to_owned(),
            nonce: self.sent.to_string(),
            ..DeltaDiscoveryResponse::default()
        };
        if response.resources.is_empty() {
            Err(format!("no {kind}").into())
        } else {
            Ok(response.encode_to_vec())
        }
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<Option<XdsResolverUpdate>, Error> {
        let stream = self.stream.ok_or("there is no stream")?;
        self.client.handle(AdsEvent::Message { stream, bytes }, Instant::ORIGIN);
        Ok(self.settle())
    }

    /// Carries out what the client asks for, until there is nothing more.
    fn settle(&mut self) -> Option<XdsResolverUpdate> {
        let mut last = None;
        loop {
            while let Some(effect) = self.client.poll_effect() {
                match effect {
                    AdsEffect::Open { stream, .. } => {
                        self.stream = Some(stream);
                        self.client.handle(AdsEvent::Opened { stream }, Instant::ORIGIN);
                    }
                    AdsEffect::Send { stream, .. } => {
                        self.client.handle(AdsEvent::Written { stream }, Instant::ORIGIN);
                    }
                    AdsEffect::Read { .. }
                    | AdsEffect::Close { .. }
                    | AdsEffect::Warn(_)
                    | AdsEffect::Info(_) => {}
                }
            }
            let Some((id, changed)) = self.client.poll_changed() else { return last };
            let step = match &changed {
                ChangedResources::Endpoints(names) => {
                    match self.resolver.resolve_endpoints(names, &self.client) {
                        EndpointsOnlyUpdate::Applied(step) => step,
                        EndpointsOnlyUpdate::NeedsFullUpdate => self.follow(),
                    }
                }
                ChangedResources::Anything => self.follow(),
            };
            last = step.or(last);
            self.client.processed(id);
        }
    }

    fn follow(&mut self) -> Option<XdsResolverUpdate> {
        let mut last = None;
        loop {
            let followed = self.resolver.resolve([], &self.client);
            last = followed.update.or(last);
            if followed.wanted == self.wanted {
                return last;
            }
            self.client.watch(self.channel, followed.wanted.clone(), Instant::ORIGIN);
            self.wanted = followed.wanted;
        }
    }

    /// Runs passes until all that is dialled is connected.
    fn apply(&mut self, step: XdsResolverUpdate) {
        let now = Instant::ORIGIN;
        self.core.update(step.update);
        loop {
            let pass = self.core.reconcile(now);
            let dialled = dialled(&pass);
            self.picker = pass.picker.or(self.picker.take());
            if dialled.is_empty() && pass.wake_at.is_none_or(|at| at > now) {
                return;
            }
            for id in dialled {
                self.core.handle(LbEvent::Connected(id), now);
            }
        }
    }
}
