//! Dormant policies: without picks there is no timer.
//!
//! Policies that take turns compute weights and slots ahead of picks, by a timer. Without picks nothing is used up, and no call
//! sees the result. A dormant policy therefore sets no such timer, and shows a picker whose picks ask for a pass
//! ([`CallTrackers::wake`]). In that pass the policy finds that its order was used, and sets its timers again. The picker in use
//! otherwise is not involved: its picks cost the same.
//!
//! [`CallTrackers::wake`]: crate::Trackers::wake

use std::sync::Arc;

use crate::policy::LbState;
use crate::{ConnectivityState, PickArgs, PickResult, Picker};

/// State that a dormant policy shows, with the state that it stands for.
#[derive(Debug, Default)]
pub(super) struct DormantState {
    cached: Option<(LbState, LbState)>,
}

impl DormantState {
    /// Returns the state itself, or one whose picker wakes a dormant policy. The same state leads to the same picker.
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

/// Picker of a dormant policy. Each pick asks for a pass: the request of a pick may never be sent, so one is not enough.
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
