//! A set of endpoints with a connection each: what round robin, weighted round robin, least request and ring hash
//! have in common.
//!
//! A fleet keeps its members across updates by the identity of their endpoints (the unordered set of addresses, A61),
//! drops duplicates, and adds to each whatever the policy wants to remember about it.

use crate::collections::diff::{PerEndpoint, apply_diff};
use crate::endpoint::connection::{ConnectMode, EndpointConnection, EndpointConnectionState};
use crate::engine::cx::PolicyRun;
use crate::engine::describe::{DescribeCx, Description, EndpointRow};
use crate::engine::revision::CompactRevision;
use crate::{
    ConnectivityState, Cx, Endpoint, EndpointHealthStatus, Endpoints, Status, Subchannel, SubchannelId,
};

/// So many connections are begun in one run. The others follow in runs of their own, right after it: where thousands of endpoints
/// come, calls wait for the first that answers and not for all to be begun.
const MAX_CONNECTS_PER_RUN: usize = 256;

/// Endpoints with a connection each, and with something of the policy's own.
#[derive(Debug)]
pub struct EndpointList<T> {
    entries: Vec<EndpointEntry<T>>,
    source: Option<Endpoints>,
    /// Run of the policy that last reconciled the list.
    last_run: Option<PolicyRun>,
}

/// One endpoint of a fleet.
#[derive(Debug)]
pub struct EndpointEntry<T> {
    /// The endpoint as last given.
    pub endpoint: Endpoint,
    /// What the policy remembers about it, for as long as the endpoint stays.
    pub data: T,
    connection: EndpointConnection,
    state: EndpointConnectionState,
    ejected: bool,
    /// Revision at which `state` was last computed.
    verified_at: CompactRevision,
    /// True if the last run reused `state`.
    is_unchanged: bool,
    /// Nobody had begun to connect to it when it was last looked up, and it has its turn later.
    is_deferred: bool,
}

impl<T> Default for EndpointList<T> {
    fn default() -> EndpointList<T> {
        EndpointList { entries: Vec::new(), source: None, last_run: None }
    }
}

impl<T: Default + Send + 'static> EndpointList<T> {
    /// Takes in the endpoints, connects as asked, and brings every member's state up to date. Answers whether the
    /// endpoints are others than before. What is remembered about members that have gone may be dropped later.
    pub fn reconcile(&mut self, endpoints: &Endpoints, connect_mode: ConnectMode, cx: &mut Cx<'_>) -> bool {
        let changed = self.source.as_ref().is_none_or(|source| !source.is_same(endpoints));
        if changed {
            cx.discard(apply_diff(&mut self.entries, endpoints));
            self.source = Some(endpoints.clone());
        }
        let follows = cx.follows(self.last_run.as_ref());
        let (mut started, mut is_deferred) = (0, false);
        for member in &mut self.entries {
            let only_subchannel = member.connection.only_subchannel().filter(|_| follows);
            member.is_unchanged = only_subchannel.is_some_and(|id| cx.keep_unchanged(id, member.verified_at));
            if member.is_unchanged {
                continue;
            }
            // One that has its turn later is looked up once, not in each of the runs until then.
            if connect_mode == ConnectMode::Eager
                && (member.is_deferred && started == MAX_CONNECTS_PER_RUN || member.is_unstarted(cx))
            {
                member.is_deferred = started == MAX_CONNECTS_PER_RUN;
                if member.is_deferred {
                    is_deferred = true;
                    continue;
                }
                started += 1;
            }
            member.is_deferred = false;
            member.reconcile(connect_mode, cx);
            member.verified_at = cx.revision().compact();
        }
        if is_deferred {
            cx.wake_at(cx.now());
        }
        self.last_run = cx.run();
        changed
    }
}

impl<T> EndpointList<T> {
    /// The members, in the order of the endpoints.
    pub fn entries(&self) -> &[EndpointEntry<T>] {
        &self.entries
    }

    /// The members, to change what the policy remembers.
    pub fn entries_mut(&mut self) -> &mut [EndpointEntry<T>] {
        &mut self.entries
    }

    /// Members that can be called, with their subchannels.
    pub fn ready(&self) -> impl Iterator<Item = (&EndpointEntry<T>, SubchannelId)> {
        self.entries.iter().filter_map(|member| Some((member, member.ready()?)))
    }

    /// The state of a policy that spreads calls over all that are ready: READY if any is, else CONNECTING if any
    /// tries or will, else TRANSIENT_FAILURE (A48). A member that failed counts as failed until it is ready.
    pub fn connectivity(&self) -> ConnectivityState {
        let mut sum = ConnectivityState::TransientFailure;
        for member in &self.entries {
            match member.state.connectivity {
                ConnectivityState::Ready => return ConnectivityState::Ready,
                ConnectivityState::Connecting | ConnectivityState::Idle => {
                    sum = ConnectivityState::Connecting;
                }
                ConnectivityState::TransientFailure => {}
            }
        }
        sum
    }

    /// Why calls fail when nothing is ready: the message of the endpoint that failed last.
    pub fn failure(&self, cx: &Cx<'_>) -> Status {
        let order = |member: &&EndpointEntry<T>| {
            let subchannel = member.state.subchannel.and_then(|id| cx.peek(id));
            subchannel.map(Subchannel::failure_order)
        };
        match self.entries.iter().max_by_key(order) {
            None => cx.unavailable("no endpoints"),
            Some(member) => member.failure(cx),
        }
    }

    /// Adds a row per endpoint to a description; `fill` completes what the policy knows.
    pub fn describe(
        &self,
        description: &mut Description,
        cx: &DescribeCx<'_>,
        mut fill: impl FnMut(usize, &EndpointEntry<T>, &mut EndpointRow),
    ) {
        for (i, member) in self.entries.iter().enumerate() {
            let mut row = EndpointRow::new(&member.endpoint, member.state.connectivity);
            row.unused = member.unused(cx);
            fill(i, member, &mut row);
            description.endpoint(row);
        }
    }
}

impl<T: Default> PerEndpoint for EndpointEntry<T> {
    fn new(endpoint: &Endpoint) -> EndpointEntry<T> {
        let state = EndpointConnectionState { connectivity: ConnectivityState::Idle, subchannel: None };
        EndpointEntry {
            endpoint: endpoint.clone(),
            data: T::default(),
            connection: EndpointConnection::default(),
            state,
            ejected: false,
            verified_at: CompactRevision::default(),
            is_unchanged: false,
            is_deferred: false,
        }
    }

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn update(&mut self, endpoint: &Endpoint) {
        self.endpoint = endpoint.clone();
    }

    fn accepts(endpoint: &Endpoint) -> bool {
        endpoint.health() != EndpointHealthStatus::Draining
    }
}

impl<T> EndpointEntry<T> {
    fn reconcile(&mut self, connect_mode: ConnectMode, cx: &mut Cx<'_>) {
        self.state = self.connection.reconcile(self.endpoint.addresses(), connect_mode, cx);
        // A61: ejection is seen through the health of the connection; the connection itself is kept.
        self.ejected = self.endpoint.addresses().iter().any(|address| cx.scope().is_ejected(address));
        if self.ejected && self.state.connectivity == ConnectivityState::Ready {
            self.state.connectivity = ConnectivityState::TransientFailure;
        }
    }

    /// Whether nobody has begun to connect to it: neither this fleet nor, as when a policy follows another, somebody else.
    fn is_unstarted(&self, cx: &Cx<'_>) -> bool {
        self.connection.is_new() && self.endpoint.addresses().iter().all(|address| cx.find(address).is_none())
    }

    /// Whether nothing can have happened to its connection since the policy's last run.
    pub(crate) fn is_unchanged(&self) -> bool {
        self.is_unchanged
    }

    /// How it is connected, ejection included.
    pub fn connectivity(&self) -> ConnectivityState {
        self.state.connectivity
    }

    /// Ready: the subchannel to use. Idle: the one to wake. Failed: the one that failed last.
    pub fn subchannel(&self) -> Option<SubchannelId> {
        self.state.subchannel
    }

    /// The subchannel to use, if it can be called.
    pub fn ready(&self) -> Option<SubchannelId> {
        self.state.subchannel.filter(|_| self.state.connectivity == ConnectivityState::Ready)
    }

    /// Why calls to it fail: its own message.
    pub fn failure(&self, cx: &Cx<'_>) -> Status {
        let name = self.endpoint.addresses().first().map(ToString::to_string).unwrap_or_default();
        if self.ejected {
            return cx.unavailable(format!("{name}: ejected by outlier detection"));
        }
        let error =
            self.state.subchannel.and_then(|id| cx.peek(id)).and_then(|subchannel| subchannel.error());
        match error {
            Some(error) => cx.unavailable(format!("{name}: {}", error.message())),
            None => cx.unavailable(format!("{name}: not connected")),
        }
    }

    fn unused(&self, cx: &DescribeCx<'_>) -> Option<String> {
        let subchannel = self.state.subchannel.and_then(|id| cx.subchannel(id));
        let error = subchannel.and_then(|s| s.error()).map_or("no attempt finished yet", Status::message);
        match self.state.connectivity {
            ConnectivityState::Ready => None,
            ConnectivityState::TransientFailure if self.ejected => {
                Some("ejected by outlier detection".to_owned())
            }
            ConnectivityState::TransientFailure => Some(match subchannel.and_then(Subchannel::retry_at) {
                Some(at) => format!("{error}; next attempt in {:.1?}", at.since(cx.now())),
                None => format!("{error}; trying again"),
            }),
            ConnectivityState::Connecting => Some("connecting".to_owned()),
            ConnectivityState::Idle => Some("idle".to_owned()),
        }
    }
}
