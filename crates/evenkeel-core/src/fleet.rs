//! A set of endpoints with a connection each: what round robin, weighted round robin, least request and ring hash
//! have in common.
//!
//! A fleet keeps its members across updates by the identity of their endpoints (the unordered set of addresses, A61),
//! drops duplicates, and adds to each whatever the policy wants to remember about it.

use crate::carry::{Kept, carry_over};
use crate::conn::{Conn, ConnState, Eagerness};
use crate::describe::{Description, EndpointRow, Look};
use crate::{Connectivity, Cx, Endpoint, Endpoints, Health, Scope, Status, Subchannel, SubchannelId};

/// So many connections are begun in one run. The others follow in runs of their own, right after it: where thousands of endpoints
/// come, calls wait for the first that answers and not for all to be begun.
const AT_ONCE: usize = 256;

/// Endpoints with a connection each, and with something of the policy's own.
#[derive(Debug)]
pub struct Fleet<T> {
    members: Vec<Member<T>>,
    source: Option<Endpoints>,
    /// The number of the policy's last run, and the scope of it.
    last: Option<(u64, Scope)>,
}

/// One endpoint of a fleet.
#[derive(Debug)]
pub struct Member<T> {
    /// The endpoint as last given.
    pub endpoint: Endpoint,
    /// What the policy remembers about it, for as long as the endpoint stays.
    pub own: T,
    conn: Conn,
    state: ConnState,
    ejected: bool,
    /// How many changes of subchannels there were when it was last looked at.
    seen: u32,
    is_unchanged: bool,
    /// Nobody had begun to connect to it when it was last looked up, and it has its turn later.
    waits: bool,
}

impl<T> Default for Fleet<T> {
    fn default() -> Fleet<T> {
        Fleet { members: Vec::new(), source: None, last: None }
    }
}

impl<T: Default + Send + 'static> Fleet<T> {
    /// Takes in the endpoints, connects as asked, and brings every member's state up to date. Answers whether the
    /// endpoints are others than before. What is remembered about members that have gone may be dropped later.
    pub fn reconcile(&mut self, endpoints: &Endpoints, eagerness: Eagerness, cx: &mut Cx<'_>) -> bool {
        let changed = self.source.as_ref().is_none_or(|source| !source.is_same(endpoints));
        if changed {
            cx.discard(carry_over(&mut self.members, endpoints));
            self.source = Some(endpoints.clone());
        }
        let runs = cx.runs();
        let previous = runs.map(|(_, previous)| previous);
        let follows =
            self.last.as_ref().is_some_and(|(run, scope)| Some(*run) == previous && scope == cx.scope());
        let (mut begun, mut waits) = (0, false);
        for member in &mut self.members {
            let sole = member.conn.sole().filter(|_| follows);
            member.is_unchanged = sole.is_some_and(|id| cx.keep_unchanged(id, member.seen));
            if member.is_unchanged {
                continue;
            }
            // One that has its turn later is looked up once, not in each of the runs until then.
            if eagerness == Eagerness::Eager
                && (member.waits && begun == AT_ONCE || member.is_to_be_begun(cx))
            {
                member.waits = begun == AT_ONCE;
                if member.waits {
                    waits = true;
                    continue;
                }
                begun += 1;
            }
            member.waits = false;
            member.reconcile(eagerness, cx);
            member.seen = cx.changes();
        }
        if waits {
            cx.wake_at(cx.now());
        }
        self.last = runs.map(|(run, _)| (run, cx.scope().clone()));
        changed
    }
}

impl<T> Fleet<T> {
    /// The members, in the order of the endpoints.
    pub fn members(&self) -> &[Member<T>] {
        &self.members
    }

    /// The members, to change what the policy remembers.
    pub fn members_mut(&mut self) -> &mut [Member<T>] {
        &mut self.members
    }

    /// Members that can be called, with their subchannels.
    pub fn ready(&self) -> impl Iterator<Item = (&Member<T>, SubchannelId)> {
        self.members.iter().filter_map(|member| Some((member, member.ready()?)))
    }

    /// The state of a policy that spreads calls over all that are ready: READY if any is, else CONNECTING if any
    /// tries or will, else TRANSIENT_FAILURE (A48). A member that failed counts as failed until it is ready.
    pub fn connectivity(&self) -> Connectivity {
        let mut sum = Connectivity::TransientFailure;
        for member in &self.members {
            match member.state.connectivity {
                Connectivity::Ready => return Connectivity::Ready,
                Connectivity::Connecting | Connectivity::Idle => sum = Connectivity::Connecting,
                Connectivity::TransientFailure => {}
            }
        }
        sum
    }

    /// Why calls fail when nothing is ready: the message of the endpoint that failed last.
    pub fn failure(&self, cx: &Cx<'_>) -> Status {
        let order = |member: &&Member<T>| {
            let subchannel = member.state.subchannel.and_then(|id| cx.look(id));
            subchannel.map(Subchannel::failure_order)
        };
        match self.members.iter().max_by_key(order) {
            None => cx.unavailable("no endpoints"),
            Some(member) => member.failure(cx),
        }
    }

    /// Adds a row per endpoint to a description; `fill` completes what the policy knows.
    pub fn describe(
        &self,
        description: &mut Description,
        look: &Look<'_>,
        mut fill: impl FnMut(usize, &Member<T>, &mut EndpointRow),
    ) {
        for (i, member) in self.members.iter().enumerate() {
            let mut row = EndpointRow::new(&member.endpoint, member.state.connectivity);
            row.unused = member.unused(look);
            fill(i, member, &mut row);
            description.endpoint(row);
        }
    }
}

impl<T: Default> Kept for Member<T> {
    fn new(endpoint: &Endpoint) -> Member<T> {
        let state = ConnState { connectivity: Connectivity::Idle, subchannel: None };
        Member {
            endpoint: endpoint.clone(),
            own: T::default(),
            conn: Conn::default(),
            state,
            ejected: false,
            seen: 0,
            is_unchanged: false,
            waits: false,
        }
    }

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn renew(&mut self, endpoint: &Endpoint) {
        self.endpoint = endpoint.clone();
    }

    fn is_for(endpoint: &Endpoint) -> bool {
        endpoint.health() != Health::Draining
    }
}

impl<T> Member<T> {
    fn reconcile(&mut self, eagerness: Eagerness, cx: &mut Cx<'_>) {
        self.state = self.conn.reconcile(self.endpoint.addresses(), eagerness, cx);
        // A61: ejection is seen through the health of the connection; the connection itself is kept.
        self.ejected = self.endpoint.addresses().iter().any(|address| cx.scope().is_ejected(address));
        if self.ejected && self.state.connectivity == Connectivity::Ready {
            self.state.connectivity = Connectivity::TransientFailure;
        }
    }

    /// Whether nobody has begun to connect to it: neither this fleet nor, as when a policy follows another, somebody else.
    fn is_to_be_begun(&self, cx: &Cx<'_>) -> bool {
        self.conn.is_new() && self.endpoint.addresses().iter().all(|address| cx.find(address).is_none())
    }

    /// Whether nothing can have happened to its connection since the policy's last run.
    pub(crate) fn is_unchanged(&self) -> bool {
        self.is_unchanged
    }

    /// How it is connected, ejection included.
    pub fn connectivity(&self) -> Connectivity {
        self.state.connectivity
    }

    /// Ready: the subchannel to use. Idle: the one to wake. Failed: the one that failed last.
    pub fn subchannel(&self) -> Option<SubchannelId> {
        self.state.subchannel
    }

    /// The subchannel to use, if it can be called.
    pub fn ready(&self) -> Option<SubchannelId> {
        self.state.subchannel.filter(|_| self.state.connectivity == Connectivity::Ready)
    }

    /// Why calls to it fail: its own message.
    pub fn failure(&self, cx: &Cx<'_>) -> Status {
        let name = self.endpoint.addresses().first().map(ToString::to_string).unwrap_or_default();
        if self.ejected {
            return cx.unavailable(format!("{name}: ejected by outlier detection"));
        }
        let error =
            self.state.subchannel.and_then(|id| cx.look(id)).and_then(|subchannel| subchannel.error());
        match error {
            Some(error) => cx.unavailable(format!("{name}: {}", error.message())),
            None => cx.unavailable(format!("{name}: not connected")),
        }
    }

    fn unused(&self, look: &Look<'_>) -> Option<String> {
        let subchannel = self.state.subchannel.and_then(|id| look.subchannel(id));
        let error = subchannel.and_then(|s| s.error()).map_or("no attempt finished yet", Status::message);
        match self.state.connectivity {
            Connectivity::Ready => None,
            Connectivity::TransientFailure if self.ejected => Some("ejected by outlier detection".to_owned()),
            Connectivity::TransientFailure => Some(match subchannel.and_then(Subchannel::retry_at) {
                Some(at) => format!("{error}; next attempt in {:.1?}", at.since(look.now())),
                None => format!("{error}; trying again"),
            }),
            Connectivity::Connecting => Some("connecting".to_owned()),
            Connectivity::Idle => Some("idle".to_owned()),
        }
    }
}
