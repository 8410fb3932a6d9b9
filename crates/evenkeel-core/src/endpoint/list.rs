//! Endpoint list: a connection per endpoint, for the policies that connect to every endpoint.
//!
//! The list retains its entries across updates by the identity of the endpoint (the unordered set of addresses, A61), drops
//! duplicates, and stores data of the policy with each entry.

use crate::collections::diff::{PerEndpoint, apply_diff};
use crate::endpoint::connection::{ConnectMode, EndpointConnection, EndpointConnectionState};
use crate::engine::cx::PolicyRun;
use crate::engine::describe::{DescribeCx, Description, EndpointRow};
use crate::engine::revision::CompactRevision;
use crate::{
    ConnectivityState, Cx, Endpoint, EndpointHealthStatus, Endpoints, Status, Subchannel, SubchannelId,
};

/// Maximum number of connections that one run starts. Further runs follow at once and start the others. With thousands of new
/// endpoints, queued calls then wait only for the first connection.
const MAX_CONNECTS_PER_RUN: usize = 256;

/// Endpoints with a connection each, and with data of the policy.
#[derive(Debug)]
pub struct EndpointList<T> {
    entries: Vec<EndpointEntry<T>>,
    source: Option<Endpoints>,
    /// Run of the policy that last reconciled the list.
    last_run: Option<PolicyRun>,
}

/// Entry of an [`EndpointList`].
#[derive(Debug)]
pub struct EndpointEntry<T> {
    /// Endpoint as of the last update.
    pub endpoint: Endpoint,
    /// Data of the policy, retained while the endpoint is in the list.
    pub data: T,
    connection: EndpointConnection,
    state: EndpointConnectionState,
    ejected: bool,
    /// Revision at which `state` was last computed.
    verified_at: CompactRevision,
    /// True if the last run reused `state`.
    is_unchanged: bool,
    /// True if a later run starts the connection, since the maximum per run was reached.
    is_deferred: bool,
}

impl<T> Default for EndpointList<T> {
    fn default() -> EndpointList<T> {
        EndpointList { entries: Vec::new(), source: None, last_run: None }
    }
}

impl<T: Default + Send + 'static> EndpointList<T> {
    /// Replaces the endpoints, connects according to `connect_mode`, and updates the state of every entry. Returns true if the
    /// endpoints changed. The data of removed entries may be dropped later.
    pub fn reconcile(&mut self, endpoints: &Endpoints, connect_mode: ConnectMode, cx: &mut Cx<'_>) -> bool {
        let changed = self.source.as_ref().is_none_or(|source| !source.is_same(endpoints));
        if changed {
            cx.discard(apply_diff(&mut self.entries, endpoints));
            self.source = Some(endpoints.clone());
        }
        let follows = cx.follows(self.last_run.as_ref());
        let (mut started, mut is_deferred) = (0, false);
        for member in &mut self.entries {
            // A connection that depends on several subchannels or on a timer has none and always runs.
            let only_subchannel = member.connection.only_subchannel().filter(|_| follows);
            // This also holds the subchannel; a skipped entry would otherwise lose its connection.
            member.is_unchanged = only_subchannel.is_some_and(|id| cx.keep_unchanged(id, member.verified_at));
            if member.is_unchanged {
                continue;
            }
            // A deferred entry is looked up once, and not in each of the runs until it is started.
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
            // Read after the run of the connection: changes that it caused itself do not outdate it.
            member.verified_at = cx.revision().compact();
        }
        if is_deferred {
            // Due at once: the next pass starts the deferred connections.
            cx.wake_at(cx.now());
        }
        self.last_run = cx.run();
        changed
    }
}

impl<T> EndpointList<T> {
    /// Returns the entries, in the order of the endpoints.
    pub fn entries(&self) -> &[EndpointEntry<T>] {
        &self.entries
    }

    /// Returns the entries, to modify the data of the policy.
    pub fn entries_mut(&mut self) -> &mut [EndpointEntry<T>] {
        &mut self.entries
    }

    /// Returns the ready entries with their subchannels.
    pub fn ready(&self) -> impl Iterator<Item = (&EndpointEntry<T>, SubchannelId)> {
        self.entries.iter().filter_map(|member| Some((member, member.ready()?)))
    }

    /// Returns the connectivity of a policy that picks among all ready endpoints: READY if any is ready, else CONNECTING if any
    /// is connecting or idle, else TRANSIENT_FAILURE (A48). A failed endpoint counts as failed until it is ready.
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

    /// Returns the status for calls while no endpoint is ready: the error of the endpoint that failed last.
    pub fn failure(&self, cx: &Cx<'_>) -> Status {
        let order = |member: &&EndpointEntry<T>| {
            let subchannel = member.state.subchannel.and_then(|id| cx.peek(id));
            subchannel.map(Subchannel::failure_order)
        };
        // `None` is the minimum, so an endpoint without an attempt is chosen only if none has failed.
        match self.entries.iter().max_by_key(order) {
            None => cx.unavailable("no endpoints"),
            Some(member) => member.failure(cx),
        }
    }

    /// Adds a row per endpoint to a description. `fill` adds the data of the policy.
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
        // Draining endpoints are for existing sessions only (A55), and no policy here has sessions.
        endpoint.health() != EndpointHealthStatus::Draining
    }
}

impl<T> EndpointEntry<T> {
    fn reconcile(&mut self, connect_mode: ConnectMode, cx: &mut Cx<'_>) {
        self.state = self.connection.reconcile(self.endpoint.addresses(), connect_mode, cx);
        // A61: an ejected endpoint is reported as failed; its connection is retained.
        self.ejected = self.endpoint.addresses().iter().any(|address| cx.scope().is_ejected(address));
        // Only READY is replaced. An ejected endpoint that is not connected reports its own state.
        if self.ejected && self.state.connectivity == ConnectivityState::Ready {
            self.state.connectivity = ConnectivityState::TransientFailure;
        }
    }

    /// Returns true if no policy has started to connect to the endpoint, for example the predecessor of this policy.
    fn is_unstarted(&self, cx: &Cx<'_>) -> bool {
        self.connection.is_new() && self.endpoint.addresses().iter().all(|address| cx.find(address).is_none())
    }

    /// Returns true if the connection did not change since the last run of the policy.
    pub(crate) fn is_unchanged(&self) -> bool {
        self.is_unchanged
    }

    /// Returns the connectivity state, including ejection.
    pub fn connectivity(&self) -> ConnectivityState {
        self.state.connectivity
    }

    /// Returns the subchannel to use if READY, to wake if IDLE, or that failed last if TRANSIENT_FAILURE.
    pub fn subchannel(&self) -> Option<SubchannelId> {
        self.state.subchannel
    }

    /// Returns the subchannel to use, if the endpoint is ready.
    pub fn ready(&self) -> Option<SubchannelId> {
        self.state.subchannel.filter(|_| self.state.connectivity == ConnectivityState::Ready)
    }

    /// Returns the status for calls to this endpoint while it is not ready.
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
                None => format!("{error}; retrying"),
            }),
            ConnectivityState::Connecting => Some("connecting".to_owned()),
            ConnectivityState::Idle => Some("idle".to_owned()),
        }
    }
}
