//! Description of the policy tree, for `inspect`, `explain` and the admin page.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::engine::tree::PolicyTree;
use crate::{ConnectivityState, Endpoint, Instant, Subchannel, SubchannelId};

/// Snapshot of a policy and its descendants.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Description {
    /// Registered name of the policy.
    pub policy: String,
    /// Connectivity state that the policy returned to its parent.
    pub state: Option<ConnectivityState>,
    /// Details that are specific to the policy, by name.
    pub details: Map<String, Value>,
    /// Endpoints that the policy itself balances over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<EndpointRow>,
    /// Child policies, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<(String, Description)>,
    /// Warnings for the operator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Endpoint of a policy.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EndpointRow {
    /// Addresses of the endpoint.
    pub addresses: Vec<String>,
    /// Hostname from the control plane, if set.
    pub hostname: Option<String>,
    /// Locality of the endpoint, if known.
    pub locality: Option<String>,
    /// Connectivity state as seen by the policy, including ejection.
    pub state: ConnectivityState,
    /// Current weight, if the policy uses weights.
    pub weight: Option<f64>,
    /// Intended share of the policy's calls, if it is fixed.
    pub share: Option<f64>,
    /// Number of picks of the endpoint.
    pub picks: u64,
    /// Reason why the endpoint receives no calls, if it receives none.
    pub unused: Option<String>,
}

impl EndpointRow {
    /// Creates a row for an endpoint, without weights and picks.
    pub fn new(endpoint: &Endpoint, state: ConnectivityState) -> EndpointRow {
        EndpointRow {
            addresses: endpoint.addresses().iter().map(ToString::to_string).collect(),
            hostname: endpoint.hostname().map(str::to_owned),
            locality: endpoint.locality().map(ToString::to_string),
            state,
            weight: None,
            share: None,
            picks: 0,
            unused: None,
        }
    }
}

impl Description {
    /// Creates an empty description. The policy adds details; the core adds name, state and warnings.
    pub fn new() -> Description {
        Description::default()
    }

    /// Adds a detail by name.
    #[must_use]
    pub fn detail(mut self, name: &str, value: impl Into<Value>) -> Description {
        self.details.insert(name.to_owned(), value.into());
        self
    }

    /// Adds a child policy, if it has run.
    #[must_use]
    pub fn child(mut self, name: impl Into<String>, child: Option<Description>) -> Description {
        self.children.extend(child.map(|child| (name.into(), child)));
        self
    }

    /// Adds a row for an endpoint.
    pub fn endpoint(&mut self, row: EndpointRow) {
        self.endpoints.push(row);
    }

    /// Returns the number of picks of the policy's endpoints and of its descendants.
    pub fn picks(&self) -> u64 {
        let own: u64 = self.endpoints.iter().map(|row| row.picks).sum();
        own + self.children.iter().map(|(_, child)| child.picks()).sum::<u64>()
    }
}

/// Context of a policy that describes itself.
#[derive(Debug)]
pub struct DescribeCx<'a> {
    pub(crate) tree: &'a PolicyTree,
}

impl DescribeCx<'_> {
    /// Returns the subchannel with this id, if it exists.
    pub fn subchannel(&self, id: SubchannelId) -> Option<&Subchannel> {
        self.tree.subchannels.get(id)
    }

    /// Returns the time of the last pass.
    pub fn now(&self) -> Instant {
        self.tree.now
    }
}
