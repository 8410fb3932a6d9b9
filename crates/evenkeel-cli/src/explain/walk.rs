//! Channel without sockets: resolves local resources and balances over endpoints that all connect at once.
//!
//! Resolver, core and picker are those of a real channel, at a fixed time.

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_core::{
    Address, CallOutcome, Code, Core, Description, Instant, LbEffect, LbEvent, PickArgs, PickResult,
    RequestMetadata, Rng, RootPicker, Status,
};
use evenkeel_xds::ads::ChangedResources;
use evenkeel_xds::dependency_manager::XdsConfig;
use evenkeel_xds::resolver::{XdsResolver, XdsResolverUpdate};
use evenkeel_xds::routing::ConfigSelector;

use super::known::LocalResources;

/// Maximum number of rounds until the resolver and the core are stable: far more than any policy tree needs.
const TRIES: u32 = 64;

/// Maximum number of picks until one is not dropped. It suffices even if only one call in a thousand passes.
const PICKS: u64 = 20_000;

/// Channel in its stable state.
pub(crate) struct ClientSimulation {
    follower: XdsResolver,
    core: Core,
    picker: Option<RootPicker>,
    /// Routes of the calls, or the status they fail with.
    pub(crate) route: Result<Arc<ConfigSelector>, Status>,
    /// DNS names that the channel would resolve.
    pub(crate) hosts: BTreeSet<Arc<str>>,
}

impl ClientSimulation {
    /// Resolves a listener for calls to an authority.
    pub(crate) fn new(known: &LocalResources, listener: &str, authority: &str) -> ClientSimulation {
        ClientSimulation::of_node(known, listener, authority, "explain")
    }

    /// Like [`ClientSimulation::new`], with a node id, which status messages contain.
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

    /// Resolves the resources. Returns true if the result has a new config or a new DNS name.
    fn follow(&mut self, known: &LocalResources) -> bool {
        let dynamic: Vec<_> = self.core.subscribed_clusters().cloned().collect();
        let followed = self.follower.update(&ChangedResources::Anything, &dynamic, known);
        let mut is_news = followed.update.is_some();
        for host in followed.watches.into_iter().flat_map(|watches| watches.hosts) {
            if self.hosts.insert(host.clone()) {
                // The name replaces its addresses: LOGICAL_DNS has one endpoint for all of them (A37).
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

    /// Reconciles until stable. Every requested connection becomes READY at once.
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

    /// Returns the resolved config, if the routes are known.
    pub(crate) fn config(&self) -> Option<&Arc<XdsConfig>> {
        self.follower.config()
    }

    /// Returns the policy tree.
    pub(crate) fn tree(&self) -> Option<Description> {
        self.core.describe()
    }

    /// Picks for a call with this hash at a child of the tree's root. Returns the address, the status if
    /// every call fails, or `None` if calls are queued.
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
                // Drops are random, so the next pick may pass.
                PickResult::Drop(status) => dropped = Some(status),
            }
        }
        dropped.map_or(Ok(None), Err)
    }
}
