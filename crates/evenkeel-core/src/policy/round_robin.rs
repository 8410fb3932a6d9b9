//! `round_robin`: every endpoint in turn (A61 for endpoints with several addresses).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::config::{ConfigError, Fields};
use crate::conn::Eagerness;
use crate::describe::{Description, Look};
use crate::policy::{LbState, Policy, Shown};
use crate::{Call, Connectivity, Cx, Endpoints, Fleet, Pick, Picker, Status, SubchannelId};

/// The policy.
#[derive(Debug, Default)]
pub struct RoundRobin {
    fleet: Fleet<()>,
    shown: Shown<Seen>,
}

#[derive(Debug, PartialEq)]
struct Seen {
    connectivity: Connectivity,
    ready: Vec<SubchannelId>,
    failure: Option<Status>,
}

impl Policy for RoundRobin {
    type Config = ();

    fn parse(_: &Fields<'_>) -> Result<(), ConfigError> {
        Ok(())
    }

    fn reconcile(&mut self, (): &(), endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        self.fleet.reconcile(endpoints, Eagerness::Eager, cx);
        let connectivity = self.fleet.connectivity();
        let seen = Seen {
            connectivity,
            ready: self.fleet.ready().map(|(_, id)| id).collect(),
            failure: (connectivity == Connectivity::TransientFailure).then(|| self.fleet.failure(cx)),
        };
        self.shown.show(seen, |seen| match &seen.failure {
            Some(failure) => LbState::failing(failure.clone()),
            None if seen.ready.is_empty() => LbState::connecting(),
            None => {
                let start = cx.rng().phase().unwrap_or(0) as usize;
                LbState::new(connectivity, RoundRobinPicker::new(&seen.ready, start))
            }
        })
    }

    fn describe(&self, look: &Look<'_>) -> Description {
        let mut description = Description::new();
        self.fleet.describe(&mut description, look, |_, _, _| {});
        description
    }
}

struct RoundRobinPicker {
    ready: Arc<[SubchannelId]>,
    next: AtomicUsize,
}

impl RoundRobinPicker {
    fn new(ready: &[SubchannelId], start: usize) -> RoundRobinPicker {
        RoundRobinPicker { ready: ready.into(), next: AtomicUsize::new(start % ready.len()) }
    }
}

impl Picker for RoundRobinPicker {
    fn pick(&self, _: &Call<'_>) -> Pick {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        Pick::to(self.ready[n % self.ready.len()])
    }
}
