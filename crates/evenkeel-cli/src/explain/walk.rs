//! A channel without sockets: it follows what is known and balances over endpoints that all answer at once.
//!
//! Everything here is what a real channel runs, on a time that stands still.

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_core::{
    Address, CallOutcome, Code, Core, Description, Instant, LbEffect, LbEvent, PickArgs, PickResult,
    RequestMetadata, Rng, RootPicker, Status,
};
use evenkeel_xds::dependency_manager::XdsConfig;
use evenkeel_xds::resolver::{XdsResolver, XdsResolverUpdate};
use evenkeel_xds::routing::ConfigSelector;

use super::known::LocalResources;

/// How often things are tried that should come to rest at once: far more than any tree needs.
const TRIES: u32 = 64;

/// How many calls are tried until one is not dropped: of a share that one in a thousand passes, one does for certain.
const PICKS: u64 = 20_000;

/// A channel that has come as far as it can.
pub(crate) struct ClientSimulation {
    follower: XdsResolver,
    core: Core,
    picker: Option<RootPicker>,
    /// How calls are routed, or why they fail.
    pub(crate) route: Result<Arc<ConfigSelector>, Status>,
    /// The DNS names that it would look up.
    pub(crate) hosts: BTreeSet<Arc<str>>,
}

impl ClientSimulation {
    /// Follows a listener for calls to an authority.
    pub(crate) fn new(known: &LocalResources, listener: &str, authority: &str) -> ClientSimulation {
        ClientSimulation::of_node(known, listener, authority, "explain")
    }

    /// As [`ClientSimulation::new`], for a client with this node id, which failures name.
    pub(crate) fn of_node(
        known: &LocalResources,
        listener: &str,
        authority: &str,
        node_id: &str,
    ) -> ClientSimulation {
        let follower = XdsResolver::new(listener, authority, node_id, 1, Arc::new(|| ()));
        let mut walk = ClientSimulation {
            follower,
            core: Core::builder(Rng::fixed(1)).build(),
            picker: None,
            route: Err(Status::unavailable("nothing is known")),
            hosts: BTreeSet::new(),
        };
        for _ in 0..TRIES {
            if !walk.follow(known) {
                break;
            }
        }
        walk.core.handle(LbEvent::ExitIdle, Instant::ORIGIN);
        walk.run_to_stable();
        walk
    }

    /// Looks at what is known, and says whether that led on: to another config, or to a name.
    fn follow(&mut self, known: &LocalResources) -> bool {
        let dynamic: Vec<_> = self.core.subscribed_clusters().cloned().collect();
        let followed = self.follower.resolve(&dynamic, known);
        let mut is_news = followed.update.is_some();
        for host in followed.hosts {
            if self.hosts.insert(host.clone()) {
                // The name stands for its addresses: one endpoint, however many they are (A37).
                self.follower.handle_resolved(&host, Ok(vec![Address::Name(host.clone())]));
                is_news = true;
            }
        }
        if let Some(XdsResolverUpdate { update, route }) = followed.update {
            self.core.update(update);
            self.route = route;
            self.run_to_stable();
        }
        is_news
    }

    /// Every connection that is asked for is there at once.
    fn run_to_stable(&mut self) {
        loop {
            let pass = self.core.reconcile(Instant::ORIGIN);
            self.picker = pass.picker.or(self.picker.take());
            let mut is_still = true;
            for effect in pass.effects {
                if let LbEffect::Connect { id, .. } = effect {
                    self.core.handle(LbEvent::Connected(id), Instant::ORIGIN);
                    is_still = false;
                }
            }
            if is_still {
                return;
            }
        }
    }

    /// The config in force, if the routes could be had.
    pub(crate) fn config(&self) -> Option<&Arc<XdsConfig>> {
        self.follower.config()
    }

    /// The tree of policies.
    pub(crate) fn tree(&self) -> Option<Description> {
        self.core.describe()
    }

    /// Where a call with this hash goes, which is to this child of the tree's root; why such calls fail if all of them do.
    /// `None` if they wait.
    pub(crate) fn pick(
        &mut self,
        (path, headers): (&str, &dyn RequestMetadata),
        child: &str,
        hash: u64,
    ) -> Result<Option<Address>, Status> {
        let mut waits = 0;
        let mut dropped = None;
        for entropy in 0..PICKS {
            let Some(picker) = &self.picker else { return Ok(None) };
            let call = PickArgs::new(path, entropy).with_headers(headers).with_cluster(child).with_hash(hash);
            match picker.pick(&call) {
                PickResult::Complete(id, trackers) => {
                    trackers.finish(&CallOutcome::Finished {
                        code: Code::Ok,
                        at: Instant::ORIGIN,
                        load: None,
                    });
                    return Ok(self.core.subchannel(id).map(|subchannel| subchannel.address().clone()));
                }
                PickResult::Queue { .. } if waits == TRIES => return Ok(None),
                PickResult::Queue { connect } => {
                    waits += 1;
                    if let Some(id) = connect {
                        self.core.handle(LbEvent::Connect(id), Instant::ORIGIN);
                    }
                    self.run_to_stable();
                }
                PickResult::Fail(status) => return Err(status),
                // Chance may spare the next one.
                PickResult::Drop(status) => dropped = Some(status),
            }
        }
        dropped.map_or(Ok(None), Err)
    }
}
