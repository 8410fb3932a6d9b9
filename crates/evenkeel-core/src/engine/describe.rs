//! The policy tree as data: what `inspect`, `explain` and the page show.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::engine::tree::PolicyTree;
use crate::{ConnectivityState, Endpoint, Instant, Subchannel, SubchannelId};

/// A policy and everything below it, at one moment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Description {
    /// The policy's name.
    pub policy: String,
    /// The state that it reports to its parent.
    pub state: Option<ConnectivityState>,
    /// What is particular to the policy, as name and value.
    pub details: Map<String, Value>,
    /// The endpoints that it balances over itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<EndpointRow>,
    /// The policies below it, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<(String, Description)>,
    /// What the operator should know.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// One endpoint as a policy uses it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EndpointRow {
    /// Its addresses.
    pub addresses: Vec<String>,
    /// What its control plane calls it, if it does.
    pub hostname: Option<String>,
    /// Its locality, if known.
    pub locality: Option<String>,
    /// The state of its connection as the policy counts it.
    pub state: ConnectivityState,
    /// The weight in force, if the policy weighs.
    pub weight: Option<f64>,
    /// The share of calls that it is meant to get among its peers, if that is fixed.
    pub share: Option<f64>,
    /// How many calls it was picked for.
    pub picks: u64,
    /// Why it gets no calls, if it gets none.
    pub unused: Option<String>,
}

impl EndpointRow {
    /// A row for an endpoint in this state, with nothing said about weights and picks.
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
    /// An empty description, to be filled by a policy; name, state and warnings are added by the core.
    pub fn new() -> Description {
        Description::default()
    }

    /// Adds a detail.
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

    /// Adds an endpoint.
    pub fn endpoint(&mut self, row: EndpointRow) {
        self.endpoints.push(row);
    }

    /// All picks of this policy: those of its endpoints and of the policies below.
    pub fn picks(&self) -> u64 {
        let own: u64 = self.endpoints.iter().map(|row| row.picks).sum();
        own + self.children.iter().map(|(_, child)| child.picks()).sum::<u64>()
    }
}

/// What a policy may look at while it describes itself.
#[derive(Debug)]
pub struct DescribeCx<'a> {
    pub(crate) tree: &'a PolicyTree,
}

impl DescribeCx<'_> {
    /// The subchannel with this id, if it exists.
    pub fn subchannel(&self, id: SubchannelId) -> Option<&Subchannel> {
        self.tree.subchannels.get(id)
    }

    /// The time of the last pass.
    pub fn now(&self) -> Instant {
        self.tree.now
    }
}
