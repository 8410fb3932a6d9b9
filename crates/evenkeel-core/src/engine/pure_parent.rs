//! Policies that the engine may skip when no child's state changed.
//!
//! The list is closed: a policy outside this crate runs whenever a policy below it ran. No wrong hint from a policy author can
//! therefore leave an outdated picker in use.

use std::any::Any;

use crate::engine::child::ChildPolicy;
use crate::policy::{
    Cds, ClusterImpl, ClusterResolver, Policy, Priority, RandomSubsetting, WeightedTarget, WrrLocality,
};

/// A policy whose state depends on nothing but its inputs, its dependencies and the states of its children.
///
/// An implementation reads no subchannel that it does not hold, and it observes time only through
/// [`Cx::wake_at`](crate::Cx::wake_at).
pub(crate) trait PureParent: Policy {
    /// Visits every child, including those that only wait for their removal.
    fn each_child(&mut self, visit: &mut dyn FnMut(&mut ChildPolicy));
}

/// Visits the children of a policy that is a [`PureParent`]; visits none of any other policy.
///
/// The check is by type, so that it does not depend on how the config was made. The compiler resolves it per policy type.
#[inline]
pub(crate) fn each_child<P: Policy>(policy: &mut P, visit: &mut dyn FnMut(&mut ChildPolicy)) {
    let policy: &mut dyn Any = policy;
    let _ = visit_as::<Cds>(policy, visit)
        || visit_as::<ClusterImpl>(policy, visit)
        || visit_as::<ClusterResolver>(policy, visit)
        || visit_as::<Priority>(policy, visit)
        || visit_as::<RandomSubsetting>(policy, visit)
        || visit_as::<WeightedTarget>(policy, visit)
        || visit_as::<WrrLocality>(policy, visit);
    #[cfg(test)]
    visit_as::<tests::CountingParent>(policy, visit);
}

#[inline]
fn visit_as<P: PureParent>(policy: &mut dyn Any, visit: &mut dyn FnMut(&mut ChildPolicy)) -> bool {
    policy.downcast_mut::<P>().map(|policy| policy.each_child(visit)).is_some()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::{
        ConfigError, ConfigFields, ConnectivityState, Core, Cx, DescribeCx, Description, Endpoint, Endpoints,
        Instant, LbConfig, LbEffect, LbEvent, LbState, LbUpdate, PickArgs, Registry, Rng, Status,
    };

    /// Wraps a policy and counts its own runs.
    #[derive(Default)]
    pub(super) struct CountingParent {
        child: ChildPolicy,
        runs: usize,
    }

    impl Policy for CountingParent {
        type Config = LbConfig;

        fn parse(fields: &ConfigFields<'_>) -> Result<LbConfig, ConfigError> {
            fields.child("childPolicy")
        }

        fn reconcile(&mut self, config: &LbConfig, endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
            self.runs += 1;
            self.child.reconcile(config, endpoints, cx)
        }

        fn describe(&self, cx: &DescribeCx<'_>) -> Description {
            Description::new().detail("runs", self.runs).child("child", self.child.describe(cx))
        }
    }

    impl PureParent for CountingParent {
        fn each_child(&mut self, visit: &mut dyn FnMut(&mut ChildPolicy)) {
            visit(&mut self.child);
        }
    }

    /// A pure parent does not run in passes that change the state of none of its children.
    #[test]
    fn a_pure_parent_runs_only_when_the_state_of_a_child_changes() {
        let mut registry = Registry::standard();
        registry.register::<CountingParent>("counting");
        let config = json!([{ "counting": { "childPolicy": [{"weighted_round_robin": {}}] }}]);
        let config = registry.parse(&config).expect("the config parses");
        let mut core = Core::builder(Rng::fixed(1)).build();
        let mut now = Instant::ORIGIN;
        core.update(LbUpdate::new(config, Endpoints::list(["a", "b"].map(Endpoint::at))));
        let mut ids = Vec::new();
        for effect in core.reconcile(now).effects {
            let LbEffect::Connect { id, .. } = effect else { continue };
            core.handle(LbEvent::Connected(id), now);
            ids.push(id);
        }
        let pass = core.reconcile(now);
        assert_eq!(pass.connectivity, ConnectivityState::Ready);
        let picker = pass.picker.expect("there is something to pick from");
        let counts = |core: &Core| {
            let tree = core.describe().expect("it ran");
            let count =
                |details: &serde_json::Map<_, Value>, name: &str| details[name].as_u64().expect("a count");
            (count(&tree.details, "runs"), count(&tree.children[0].1.details, "rr_fallback"))
        };
        for _ in 0..3 {
            let (runs, updates) = counts(&core);
            // Weights are looked up while calls are picked.
            drop(picker.pick(&PickArgs::new("/test.Service/Method", 0)));
            now += Duration::from_secs(1);
            assert!(core.reconcile(now).picker.is_none());
            assert_eq!(counts(&core), (runs, updates + 1));
        }
        let (runs, _) = counts(&core);
        core.handle(LbEvent::Disconnected(ids[0], Status::unavailable("gone")), now);
        assert!(core.reconcile(now).picker.is_some());
        assert_eq!(counts(&core).0, runs + 1);
    }
}
