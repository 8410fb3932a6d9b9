//! The story: what happens in each act, and the mesh file at each point of it.

use std::fmt::Write as _;

use super::fleet::{BACKENDS, Backend};

/// One act. Scenes begin at shares of its time.
pub(super) struct Act {
    pub(super) title: &'static str,
    /// What to look at.
    pub(super) says: &'static str,
    pub(super) scenes: &'static [(f64, Scene)],
}

/// Something that happens.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scene {
    /// The mesh file is edited.
    Mesh(Plan),
    /// A backend is killed.
    Kill(usize),
    /// It comes back.
    Return(usize),
}

/// What the mesh file says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// What was changed.
    edit: &'static str,
    policy: &'static str,
    weights: Option<[u32; BACKENDS.len()]>,
    priorities: Option<[u32; BACKENDS.len()]>,
}

impl Plan {
    /// What was done, for the time line.
    pub(super) fn says(&self) -> String {
        format!("mesh.yaml edited: {}", self.edit)
    }
}

const LARGE: usize = 3;
const HUGE: usize = 4;

/// Reports count after half a second, and weights follow them five times a second: a demo has no time for the defaults.
const BY_LOAD: &str = "{weighted_round_robin: {blackoutPeriod: 0.5s, weightUpdatePeriod: 0.2s}}";

const ROUND_ROBIN: Plan =
    Plan { edit: "policy: round_robin", policy: "round_robin", weights: None, priorities: None };
const BY_WEIGHT: Plan = Plan {
    edit: "policy: edf_weighted_round_robin, weights 1 1 2 4 8",
    policy: "edf_weighted_round_robin",
    weights: Some([1, 1, 2, 4, 8]),
    priorities: None,
};
const LOAD: Plan = Plan {
    edit: "policy: weighted_round_robin, no weights",
    policy: BY_LOAD,
    weights: None,
    priorities: None,
};
const SPARE: Plan =
    Plan { edit: "huge first, the others in reserve", priorities: Some([1, 1, 1, 1, 0]), ..LOAD };
const EDITED: Plan = Plan { edit: "weights 1 1 2 4 4", weights: Some([1, 1, 2, 4, 4]), ..BY_WEIGHT };

pub(super) const ACTS: [Act; 6] = [
    Act {
        title: "round robin",
        says: "each backend gets the same, and the small ones drown",
        scenes: &[(0.0, Scene::Mesh(ROUND_ROBIN))],
    },
    Act {
        title: "weights from the control plane",
        says: "one edit of the mesh file, and each gets what it can do",
        scenes: &[(0.0, Scene::Mesh(BY_WEIGHT))],
    },
    Act {
        title: "weights from reported load",
        says: "the file has no weights any more: backends say how busy they are",
        scenes: &[(0.0, Scene::Mesh(LOAD))],
    },
    Act {
        title: "a backend dies and returns",
        says: "large is killed: the others share its calls until it is back",
        scenes: &[(0.25, Scene::Kill(LARGE)), (0.65, Scene::Return(LARGE))],
    },
    Act {
        title: "a priority fails over",
        says: "huge alone is first; when it is killed the other four step in",
        scenes: &[(0.0, Scene::Mesh(SPARE)), (0.4, Scene::Kill(HUGE)), (0.7, Scene::Return(HUGE))],
    },
    Act {
        title: "weights edited live",
        says: "weights again, and half-way huge gets half of its weight",
        scenes: &[(0.0, Scene::Mesh(BY_WEIGHT)), (0.5, Scene::Mesh(EDITED))],
    },
];

/// The mesh file for a plan: the shipped one with its blanks filled in.
pub(super) fn mesh(plan: &Plan, backends: &[Backend]) -> String {
    let mut text = include_str!("mesh.yaml").replace("$policy", plan.policy);
    for (i, backend) in backends.iter().enumerate() {
        let mut endpoint = format!("{{name: {}, address: \"{}\"", backend.name, backend.address);
        if let Some(weights) = plan.weights {
            // A `String` takes everything.
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

    /// Whatever the story writes into the file is a mesh, and no act begins without one.
    #[test]
    fn every_plan_is_a_mesh() {
        let backends = Backend::all_gone();
        for scene in ACTS.iter().flat_map(|act| act.scenes) {
            if let (_, Scene::Mesh(plan)) = scene {
                let text = mesh(plan, &backends);
                assert!(!text.contains('$'), "a blank is left:\n{text}");
                Mesh::from_yaml(&text).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
            }
        }
        assert!(matches!(ACTS[0].scenes[0], (_, Scene::Mesh(_))));
        let in_order = |act: &Act| act.scenes.is_sorted_by(|one, other| one.0 < other.0);
        assert!(ACTS.iter().all(in_order));
    }
}
