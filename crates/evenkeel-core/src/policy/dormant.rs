//! Dormant policies: no timers without picks.
//!
//! Policies with a weighted schedule compute weights and slots ahead of picks, on a timer. Without picks no
//! slot is consumed, and no call sees the result. A dormant policy therefore sets no such timer. Its picker
//! requests a pass with each pick ([`CallTrackers::wake`](crate::CallTrackers::wake)). In that pass the policy sees that its schedule
//! was used, and sets its timers again. The picker of an active policy is not wrapped, so its picks cost the
//! same.

use std::sync::Arc;

use crate::policy::LbState;
use crate::{ConnectivityState, PickArgs, PickResult, Picker};

/// State of a dormant policy, cached with the state that it wraps.
#[derive(Debug, Default)]
pub(super) struct DormantState {
    cached: Option<(LbState, LbState)>,
}

impl DormantState {
    /// Returns `state`, or a state whose picker wakes the policy if it is dormant. Equal states give the same
    /// picker.
    pub(super) fn get_or_build(&mut self, state: LbState, is_dormant: bool) -> LbState {
        if !is_dormant || state.connectivity != ConnectivityState::Ready {
            self.cached = None;
            return state;
        }
        if let Some((_, dormant)) = self.cached.as_ref().filter(|(of, _)| of.is_same(&state)) {
            return dormant.clone();
        }
        let dormant = LbState::new(state.connectivity, DormantPicker(state.picker.clone()));
        self.cached.insert((state, dormant)).1.clone()
    }
}

/// Picker of a dormant policy.
///
/// Each pick requests a pass. One request would not be enough, since the call of the pick may never be sent.
struct DormantPicker(Arc<dyn Picker>);

impl Picker for DormantPicker {
    fn pick(&self, call: &PickArgs<'_>) -> PickResult {
        let mut pick = self.0.pick(call);
        if let PickResult::Complete(id, trackers) = &mut pick {
            trackers.wake(*id);
        }
        pick
    }
}
