//! The acts of the demo: their timed events, and the mesh file after each edit.

use std::fmt::Write as _;

use super::fleet::{BACKENDS, DemoBackend};

/// One act of the demo. The time of an event is a fraction of the act's duration.
pub(super) struct DemoAct {
    pub(super) title: &'static str,
    /// Text that directs the viewer to the effect of the act.
    pub(super) caption: &'static str,
    pub(super) events: &'static [(f64, DemoEvent)],
}

/// Timed event of an act. The `usize` is an index into [`BACKENDS`].
#[derive(Clone, Copy, Debug)]
pub(super) enum DemoEvent {
    /// Writes another version of the mesh file.
    Mesh(MeshEdit),
    /// Kills a backend process with SIGKILL.
    Kill(usize),
    /// Restarts a killed backend at its address.
    Return(usize),
}

/// Content of the mesh file.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeshEdit {
    /// Description of the change for the event log.
    edit: &'static str,
    policy: &'static str,
    weights: Option<[u32; BACKENDS.len()]>,
    priorities: Option<[u32; BACKENDS.len()]>,
}

impl MeshEdit {
    /// Returns the line of the event log for this edit.
    pub(super) fn summary(&self) -> String {
        format!("mesh.yaml edited: {}", self.edit)
    }
}

const LARGE: usize = 3;
const HUGE: usize = 4;

/// Short blackout and update periods: an act is shorter than the defaults of 10 s and 1 s (A58) allow.
const BY_LOAD: &str = "{weighted_round_robin: {blackoutPeriod: 0.5s, weightUpdatePeriod: 0.2s}}";

const ROUND_ROBIN: MeshEdit =
    MeshEdit { edit: "policy: round_robin", policy: "round_robin", weights: None, priorities: None };
const BY_WEIGHT: MeshEdit = MeshEdit {
    edit: "policy: edf_weighted_round_robin, weights 1 1 2 4 8",
    policy: "edf_weighted_round_robin",
    weights: Some([1, 1, 2, 4, 8]),
    priorities: None,
};
const LOAD: MeshEdit = MeshEdit {
    edit: "policy: weighted_round_robin, no weights",
    policy: BY_LOAD,
    weights: None,
    priorities: None,
};
const SPARE: MeshEdit =
    MeshEdit { edit: "huge first, the others in reserve", priorities: Some([1, 1, 1, 1, 0]), ..LOAD };
const EDITED: MeshEdit = MeshEdit { edit: "weights 1 1 2 4 4", weights: Some([1, 1, 2, 4, 4]), ..BY_WEIGHT };

pub(super) const ACTS: [DemoAct; 6] = [
    DemoAct {
        title: "round robin",
        caption: "every backend gets the same share, the small ones are overloaded",
        events: &[(0.0, DemoEvent::Mesh(ROUND_ROBIN))],
    },
    DemoAct {
        title: "weights from the control plane",
        caption: "one edit of the mesh file: shares follow the capacity",
        events: &[(0.0, DemoEvent::Mesh(BY_WEIGHT))],
    },
    DemoAct {
        title: "weights from reported load",
        caption: "the file has no weights any more: backends report their utilization",
        events: &[(0.0, DemoEvent::Mesh(LOAD))],
    },
    DemoAct {
        title: "a backend dies and returns",
        caption: "large is killed: the others share its calls until it is back",
        events: &[(0.25, DemoEvent::Kill(LARGE)), (0.65, DemoEvent::Return(LARGE))],
    },
    DemoAct {
        title: "a priority fails over",
        caption: "huge alone has the first priority; when it is killed, the other four take over",
        events: &[
            (0.0, DemoEvent::Mesh(SPARE)),
            (0.4, DemoEvent::Kill(HUGE)),
            (0.7, DemoEvent::Return(HUGE)),
        ],
    },
    DemoAct {
        title: "weights edited live",
        caption: "weights again, and half-way huge gets half of its weight",
        events: &[(0.0, DemoEvent::Mesh(BY_WEIGHT)), (0.5, DemoEvent::Mesh(EDITED))],
    },
];

/// Renders the mesh file: the template `mesh.yaml` with its placeholders replaced.
pub(super) fn mesh(plan: &MeshEdit, backends: &[DemoBackend]) -> String {
    let mut text = include_str!("mesh.yaml").replace("$policy", plan.policy);
    for (i, backend) in backends.iter().enumerate() {
        let mut endpoint = format!("{{name: {}, address: \"{}\"", backend.name, backend.address);
        if let Some(weights) = plan.weights {
            // Writing to a `String` cannot fail.
            let _ = write!(endpoint, ", weight: {}", weights[i]);
        }
        if let Some(priorities) = plan.priorities {
            let _ = write!(endpoint, ", priority: {}", priorities[i]);
        }
        endpoint.push('}');
        text = text.replace(&format!("${}", backend.name), &endpoint);
    }
    text
}

#[cfg(test)]
mod tests {
    use evenkeel_control::Mesh;

    use super::*;

    /// Every edit renders to a valid mesh, the demo starts with one, and the events of each act are in order.
    #[test]
    fn every_plan_is_a_mesh() {
        let backends = DemoBackend::stopped_all();
        for event in ACTS.iter().flat_map(|act| act.events) {
            if let (_, DemoEvent::Mesh(plan)) = event {
                let text = mesh(plan, &backends);
                assert!(!text.contains('$'), "a blank is left:\n{text}");
                Mesh::from_yaml(&text).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
            }
        }
        assert!(matches!(ACTS[0].events[0], (_, DemoEvent::Mesh(_))));
        let in_order = |act: &DemoAct| act.events.is_sorted_by(|one, other| one.0 < other.0);
        assert!(ACTS.iter().all(in_order));
    }
}
