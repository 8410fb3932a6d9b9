//! `ring_hash_experimental`: sends calls with the same hash to the same endpoint.
//!
//! Implements A42, with A61 for endpoints, A76 for the request header and endpoint keys, and A113 for
//! weights. Every endpoint has entries on a ring of 64-bit hashes, in proportion to its weight. A call goes
//! to the first entry at or after its own hash. The ring depends on keys, weights and sizes alone, so all
//! clients build the same ring, and it is kept while these are unchanged.
//!
//! Connections are lazy: an endpoint connects when a call hashes to it. While the policy fails, it also
//! connects one endpoint after the other without calls, so that it can recover below `priority_experimental`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;

use crate::config::{ConfigError, ConfigFields};
use crate::endpoint::connection::ConnectMode;
use crate::endpoint::list::{EndpointEntry, EndpointList};
use crate::endpoint::weights::spread;
use crate::engine::describe::{DescribeCx, Description};
use crate::pick::hash;
use crate::policy::{CachedState, LbState, Policy};
use crate::{
    CallTrackers, Code, ConnectivityState, Cx, Endpoint, Endpoints, HASH_KEY, PickArgs, PickResult, Picker,
    Status, SubchannelId,
};

/// Maximum ring size that a config may set, as in Envoy.
const MAX_SIZE: u64 = 8 * 1024 * 1024;

/// Default cap of the ring size (A42). Keeps a control plane from exhausting the client's memory with large
/// rings.
const DEFAULT_CAP: u64 = 4096;

/// Implementation of the `ring_hash_experimental` policy.
#[derive(Debug)]
pub struct RingHash {
    cap: u64,
    list: EndpointList<Arc<PickCounter>>,
    plan: RingPlan,
    ring: Arc<HashRing>,
    warnings: Vec<String>,
    header: Option<Arc<str>>,
    cached: CachedState<RingPicker>,
}

/// Settings of the `ring_hash_experimental` policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingHashConfig {
    /// Minimum number of ring entries; 1024 by default, limited by the policy's cap.
    pub min_ring_size: u64,
    /// Maximum number of ring entries; 4096 by default, limited by the policy's cap.
    pub max_ring_size: u64,
    /// Name of the request header to hash, in lower case. If unset, the hash of the route is used.
    pub request_hash_header: Option<Arc<str>>,
}

impl Default for RingHashConfig {
    fn default() -> RingHashConfig {
        RingHashConfig { min_ring_size: 1024, max_ring_size: 4096, request_hash_header: None }
    }
}

impl Default for RingHash {
    fn default() -> RingHash {
        RingHash::with_cap(DEFAULT_CAP)
    }
}

impl RingHash {
    /// Creates a policy whose rings have at most `cap` entries, whatever its config sets. `cap` is clamped to
    /// 1..=8388608.
    ///
    /// ```
    /// use evenkeel_core::{Registry, policy::RingHash};
    /// let mut registry = Registry::standard();
    /// registry.register_with("ring_hash_experimental", || RingHash::with_cap(65_536));
    /// ```
    pub fn with_cap(cap: u64) -> RingHash {
        RingHash {
            cap: cap.clamp(1, MAX_SIZE),
            list: EndpointList::default(),
            plan: RingPlan::default(),
            ring: Arc::default(),
            warnings: Vec::new(),
            header: None,
            cached: CachedState::default(),
        }
    }
}

impl Policy for RingHash {
    type Config = RingHashConfig;

    fn parse(fields: &ConfigFields<'_>) -> Result<RingHashConfig, ConfigError> {
        let size = |name: &str, default: u64| match fields.u64(name)?.unwrap_or(default) {
            size @ 1..=MAX_SIZE => Ok(size),
            size => Err(fields.error(name, format!("must be from 1 to {MAX_SIZE}, found {size}"))),
        };
        let default = RingHashConfig::default();
        let min = size("minRingSize", default.min_ring_size)?;
        let max = size("maxRingSize", default.max_ring_size)?;
        if min > max {
            let problem = format!("must be at least minRingSize, which is {min}, found {max}");
            return Err(fields.error("maxRingSize", problem));
        }
        // gRPC supports XX_HASH only. A config that relies on another of Envoy's hash functions must be
        // rejected.
        if let Some(name) =
            fields.str("hashFunction")?.filter(|name| !["XX_HASH", "DEFAULT_HASH"].contains(name))
        {
            return Err(fields.error("hashFunction", format!("must be XX_HASH, found {name:?}")));
        }
        let request_hash_header = match fields.str("requestHashHeader")? {
            None | Some("") => None,
            Some(name) => {
                let name = header_name(name).map_err(|problem| fields.error("requestHashHeader", problem))?;
                Some(name)
            }
        };
        Ok(RingHashConfig { min_ring_size: min, max_ring_size: max, request_hash_header })
    }

    fn reconcile(&mut self, config: &RingHashConfig, endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        let changed = self.list.reconcile(endpoints, ConnectMode::OnCall, cx);
        // The local cap lowers both sizes (RH-1).
        let sizes = (config.min_ring_size.clamp(1, self.cap), config.max_ring_size.clamp(1, self.cap));
        if changed || sizes != self.plan.sizes {
            self.arrange(RingPlan::new(sizes, self.list.entries()));
        }
        if let Some(id) = self.next_to_connect(cx) {
            cx.connect(id);
            // `connect` moves the chosen endpoint to CONNECTING; a second pass over the list makes the picker
            // see that state.
            self.list.reconcile(endpoints, ConnectMode::OnCall, cx);
        }
        for warning in &self.warnings {
            cx.warn(warning.clone());
        }
        self.header.clone_from(&config.request_hash_header);
        let picker = self.picker(cx);
        self.cached.get_or_build(picker, |picker| LbState::new(picker.connectivity, picker.clone()))
    }

    fn describe(&self, cx: &DescribeCx<'_>) -> Description {
        let (min, max) = self.plan.sizes;
        let mut description = Description::new()
            .detail("minRingSize", min)
            .detail("maxRingSize", max)
            .detail("ringSize", self.ring.entries.len())
            .detail("requestHashHeader", self.header.as_deref());
        let arcs = self.ring.arcs();
        self.list.describe(&mut description, cx, |i, member, row| {
            row.weight = self.plan.keys.get(i).map(|(_, weight)| f64::from(*weight) / f64::from(1u32 << 31));
            row.share = arcs.get(i).copied();
            row.picks = member.data.0.load(Ordering::Relaxed);
            if !self.ring.has(i) {
                row.unused = Some("it has no entry on the ring".to_owned());
            }
        });
        description
    }
}

impl RingHash {
    /// Rebuilds the ring if the plan changed.
    fn arrange(&mut self, plan: RingPlan) {
        if plan == self.plan {
            return;
        }
        self.ring = Arc::new(HashRing::new(&plan));
        self.warnings.clear();
        let left_out = (0..plan.keys.len()).filter(|i| !self.ring.has(*i)).count();
        if left_out > 0 {
            let (count, size) = (plan.keys.len(), self.ring.entries.len());
            let cap = self.cap;
            self.warnings.push(format!(
                "{left_out} of {count} endpoints have no entry on a ring of {size} and get no calls: raise maxRingSize \
                 or the local cap of {cap}"
            ));
        }
        if let Some(key) = plan.shared_key() {
            self.warnings
                .push(format!("several endpoints have the hash key {key:?}: the first gets all their calls"));
        }
        self.plan = plan;
    }

    /// Returns the endpoints with at least one ring entry.
    fn on_ring(&self) -> impl Iterator<Item = &EndpointEntry<Arc<PickCounter>>> {
        let members = self.list.entries().iter().enumerate();
        members.filter(|(i, _)| self.ring.has(*i)).map(|(_, member)| member)
    }

    fn connectivity(&self) -> ConnectivityState {
        aggregate(self.on_ring().map(EndpointEntry::connectivity))
    }

    /// Returns the subchannel to connect without a call, if any.
    ///
    /// A61: while failing or connecting, exactly one endpoint should be connecting. The choice is random, so
    /// that clients do not all choose the same endpoint. While IDLE, an endpoint connects only if the
    /// application requests it.
    fn next_to_connect(&self, cx: &mut Cx<'_>) -> Option<SubchannelId> {
        let wanted = match self.connectivity() {
            ConnectivityState::TransientFailure | ConnectivityState::Connecting => true,
            ConnectivityState::Idle => cx.exit_idle(),
            ConnectivityState::Ready => false,
        };
        if !wanted || self.on_ring().any(|member| member.connectivity() == ConnectivityState::Connecting) {
            return None;
        }
        let idle = || self.on_ring().filter(|member| member.connectivity() == ConnectivityState::Idle);
        let count = idle().count();
        if count == 0 {
            return None;
        }
        let at = cx.rng().phase().unwrap_or(0) % count as u64;
        idle().nth(at as usize)?.subchannel()
    }

    fn picker(&self, cx: &Cx<'_>) -> RingPicker {
        let members = self.list.entries();
        let failed = |member: &EndpointEntry<_>| member.connectivity() == ConnectivityState::TransientFailure;
        // A pick reads these only if every endpoint has failed. Building them otherwise would waste time and
        // change the picker.
        let failures = if members.is_empty() {
            [cx.unavailable("no endpoints")].into()
        } else if self.on_ring().all(failed) {
            members.iter().map(|member| member.failure(cx)).collect()
        } else {
            [].into()
        };
        RingPicker {
            connectivity: self.connectivity(),
            ring: self.ring.clone(),
            places: members.iter().map(RingEndpoint::of).collect(),
            is_connecting: self
                .on_ring()
                .any(|member| member.connectivity() == ConnectivityState::Connecting),
            failures,
            header: self.header.clone(),
        }
    }
}

/// Aggregates the endpoint states (A42). One failed endpoint alone does not mean failure while others can be
/// tried. Two are enough for `priority_experimental` to fail over.
fn aggregate(states: impl Iterator<Item = ConnectivityState>) -> ConnectivityState {
    let (mut all, mut failed, mut connecting, mut idle) = (0, 0, 0, 0);
    for state in states {
        all += 1;
        match state {
            ConnectivityState::Ready => return ConnectivityState::Ready,
            ConnectivityState::TransientFailure => failed += 1,
            ConnectivityState::Connecting => connecting += 1,
            ConnectivityState::Idle => idle += 1,
        }
    }
    if failed >= 2 {
        ConnectivityState::TransientFailure
    } else if connecting > 0 || (failed == 1 && all > 1) {
        ConnectivityState::Connecting
    } else if idle > 0 {
        ConnectivityState::Idle
    } else {
        ConnectivityState::TransientFailure
    }
}

/// Picker over the ring and the states of its endpoints. Equal pickers pick alike, so an equal one is not
/// replaced.
#[derive(Clone, Debug, PartialEq)]
struct RingPicker {
    connectivity: ConnectivityState,
    ring: Arc<HashRing>,
    /// Endpoints by list index.
    places: Arc<[RingEndpoint]>,
    is_connecting: bool,
    /// Failure by list index if all endpoints have failed; a single one if there are no endpoints; else
    /// empty.
    failures: Arc<[Status]>,
    header: Option<Arc<str>>,
}

/// State of an endpoint in a picker.
#[derive(Debug)]
struct RingEndpoint {
    state: RingEndpointState,
    picks: Arc<PickCounter>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RingEndpointState {
    Ready(SubchannelId),
    Idle(SubchannelId),
    Connecting,
    Failed,
}

/// Number of picks of an endpoint, aligned to a cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct PickCounter(AtomicU64);

impl RingEndpoint {
    fn of(member: &EndpointEntry<Arc<PickCounter>>) -> RingEndpoint {
        let state = match (member.connectivity(), member.subchannel()) {
            (ConnectivityState::Ready, Some(id)) => RingEndpointState::Ready(id),
            (ConnectivityState::Idle, Some(id)) => RingEndpointState::Idle(id),
            (ConnectivityState::Connecting, _) => RingEndpointState::Connecting,
            _ => RingEndpointState::Failed,
        };
        RingEndpoint { state, picks: member.data.clone() }
    }
}

impl PartialEq for RingEndpoint {
    fn eq(&self, other: &RingEndpoint) -> bool {
        self.state == other.state && Arc::ptr_eq(&self.picks, &other.picks)
    }
}

impl Picker for RingPicker {
    fn pick(&self, call: &PickArgs<'_>) -> PickResult {
        let Some((hash, origin)) = self.request_hash(call) else {
            let problem = "ring_hash: the call has no request hash; give its route a hash policy, or set requestHashHeader";
            return PickResult::Fail(Status::new(Code::Internal, problem));
        };
        let first = self.ring.find(hash);
        let member = self.ring.entries.get(first).map_or(0, |entry| entry.member as usize);
        // Without endpoints the ring is empty, and the single failure is at index 0.
        match (self.failures.get(member), origin) {
            (Some(failure), _) => PickResult::Fail(failure.clone()),
            (None, HashOrigin::Request) => self.pick_at(first),
            (None, HashOrigin::Random) => self.pick_any(first),
        }
    }
}

/// Origin of a request hash.
enum HashOrigin {
    /// Derived from the call, so it selects an endpoint.
    Request,
    /// Drawn because the header is missing, so any endpoint is suitable (A76).
    Random,
}

impl RingPicker {
    fn request_hash(&self, call: &PickArgs<'_>) -> Option<(u64, HashOrigin)> {
        let Some(name) = &self.header else { return call.hash().map(|hash| (hash, HashOrigin::Request)) };
        match call.header(name).filter(|value| !value.is_empty()) {
            Some(value) => Some((hash::of_bytes(value.as_bytes()), HashOrigin::Request)),
            None => Some((call.random(), HashOrigin::Random)),
        }
    }

    /// Picks the first endpoint from `first` on that has not failed (A61).
    fn pick_at(&self, first: usize) -> PickResult {
        for place in self.walk(first) {
            match place.state {
                RingEndpointState::Ready(id) => return place.pick(id, None),
                RingEndpointState::Idle(id) => return PickResult::Queue { connect: Some(id) },
                RingEndpointState::Connecting => return PickResult::QUEUE,
                RingEndpointState::Failed => {}
            }
        }
        // Not reached: if all endpoints on the ring have failed, `failures` applies.
        PickResult::QUEUE
    }

    /// Picks the first READY endpoint from `first` on (A76). Also connects the first IDLE endpoint that it
    /// passes, unless one is connecting.
    fn pick_any(&self, first: usize) -> PickResult {
        let mut wake = None;
        for place in self.walk(first) {
            match place.state {
                RingEndpointState::Ready(id) => return place.pick(id, wake),
                RingEndpointState::Idle(id) if !self.is_connecting => wake = wake.or(Some(id)),
                RingEndpointState::Idle(_) | RingEndpointState::Connecting | RingEndpointState::Failed => {}
            }
            // No endpoint is READY, so walking the rest of the ring cannot change the result.
            if self.connectivity != ConnectivityState::Ready && (self.is_connecting || wake.is_some()) {
                break;
            }
        }
        PickResult::Queue { connect: wake }
    }

    /// Iterates once around the ring. Endpoints with several entries are visited several times, which is
    /// cheap. A ring whose endpoints have all failed is not walked.
    fn walk(&self, first: usize) -> impl Iterator<Item = &RingEndpoint> {
        let (before, from) = self.ring.entries.split_at(first.min(self.ring.entries.len()));
        from.iter().chain(before).filter_map(|entry| self.places.get(entry.member as usize))
    }
}

impl RingEndpoint {
    fn pick(&self, id: SubchannelId, wake: Option<SubchannelId>) -> PickResult {
        self.picks.0.fetch_add(1, Ordering::Relaxed);
        let mut trackers = CallTrackers::none();
        if let Some(idle) = wake {
            trackers.wake(idle);
        }
        PickResult::Complete(id, trackers)
    }
}

/// Inputs of a ring: minimum and maximum size, key and weight of each endpoint.
#[derive(Debug, Default, PartialEq, Eq)]
struct RingPlan {
    sizes: (u64, u64),
    keys: Vec<(String, u32)>,
}

impl RingPlan {
    fn new<T>(sizes: (u64, u64), members: &[EndpointEntry<T>]) -> RingPlan {
        let endpoints: Vec<&Endpoint> = members.iter().map(|member| &member.endpoint).collect();
        let keys = endpoints.iter().map(|endpoint| hash_key(endpoint)).zip(spread(&endpoints)).collect();
        RingPlan { sizes, keys }
    }

    /// Returns the endpoint indices in an order that is the same for every client.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.keys.len()).collect();
        order.sort_by_key(|i| (&self.keys[*i].0, *i));
        order
    }

    fn shared_key(&self) -> Option<&str> {
        let order = self.order();
        let mut pairs = order.windows(2).map(|pair| (&self.keys[pair[0]].0, &self.keys[pair[1]].0));
        pairs.find(|(a, b)| a == b).map(|(key, _)| key.as_str())
    }

    /// Returns the number of entries of each endpoint, assigned in `order`.
    ///
    /// With m as the smallest normalised weight, the nominal ring size is ⌈m·min⌉/m, at most `max`. The
    /// lightest endpoint then has a whole number of entries. An endpoint gets entries while the ring holds
    /// fewer than the nominal number for it and its predecessors. In integers: for the sum W of all weights
    /// and the sum P up to an endpoint, `up·P/down` is nominal.
    fn shares(&self, order: &[usize]) -> Vec<u32> {
        let (min, max) = (u128::from(self.sizes.0), u128::from(self.sizes.1));
        let weight = |i: usize| u128::from(self.keys[i].1);
        let total: u128 = order.iter().map(|i| weight(*i)).sum();
        let least = order.iter().map(|i| weight(*i)).min().unwrap_or(1).max(1);
        let of_least = (least * min).div_ceil(total.max(1));
        // Compares the nominal size of_least/least·total with `max`, without a division.
        let (up, down) = if of_least * total > max * least { (max, total.max(1)) } else { (of_least, least) };
        let mut shares = vec![0; self.keys.len()];
        let (mut sum, mut given) = (0, 0);
        for i in order {
            sum += weight(*i);
            let nominal = (up * sum).div_ceil(down);
            shares[*i] = (nominal - given) as u32;
            given = nominal;
        }
        shares
    }
}

/// Returns the hash key of an endpoint: its `hash_key` metadata (A76), else its first address (A61).
fn hash_key(endpoint: &Endpoint) -> String {
    match endpoint.metadata(HASH_KEY) {
        Some(Value::String(key)) if !key.is_empty() => key.clone(),
        _ => endpoint.addresses().first().map(ToString::to_string).unwrap_or_default(),
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct HashRing {
    /// Entries sorted by hash.
    entries: Box<[RingEntry]>,
    /// Number of entries of each endpoint.
    shares: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RingEntry {
    hash: u64,
    member: u32,
}

impl HashRing {
    fn new(plan: &RingPlan) -> HashRing {
        let shares = plan.shares(&plan.order());
        let mut entries = Vec::with_capacity(shares.iter().map(|n| *n as usize).sum());
        for (member, ((key, _), share)) in plan.keys.iter().zip(&shares).enumerate() {
            entries.extend((0..*share).map(|n| RingEntry {
                hash: hash::of_bytes(format!("{key}_{n}").as_bytes()),
                member: member as u32,
            }));
        }
        entries.sort_unstable();
        HashRing { entries: entries.into(), shares }
    }

    /// Returns the index of the first entry at or after a hash, wrapping around at the end.
    fn find(&self, hash: u64) -> usize {
        let at = self.entries.partition_point(|entry| entry.hash < hash);
        if at == self.entries.len() { 0 } else { at }
    }

    fn has(&self, member: usize) -> bool {
        self.shares.get(member).is_some_and(|share| *share > 0)
    }

    /// Returns each endpoint's share of the hash space.
    fn arcs(&self) -> Vec<f64> {
        let mut arcs = vec![0.0; self.shares.len()];
        let mut before = self.entries.last().map_or(0, |entry| entry.hash);
        for entry in &self.entries {
            let arc = entry.hash.wrapping_sub(before) as f64 / 2f64.powi(64);
            // A single entry covers the whole ring, but its distance from itself is 0.
            arcs[entry.member as usize] += if self.entries.len() == 1 { 1.0 } else { arc };
            before = entry.hash;
        }
        arcs
    }
}

/// Returns the header name in lower case, or an error if gRPC does not allow it.
fn header_name(name: &str) -> Result<Arc<str>, String> {
    let lower = name.to_ascii_lowercase();
    let allowed = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
    if !lower.bytes().all(allowed) {
        return Err(format!("expected a header name of letters, digits, '-', '_' and '.', found {name:?}"));
    }
    if hash::is_binary(&lower) {
        return Err(format!("a binary header cannot be hashed, found {name:?}"));
    }
    Ok(lower.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::engine::cx::PolicyScope;
    use crate::engine::tree::PolicyTree;
    use crate::subchannel::Backoff;
    use crate::{Locality, Rng};

    fn plan(sizes: (u64, u64), members: impl IntoIterator<Item = (impl ToString, u32)>) -> RingPlan {
        RingPlan { sizes, keys: members.into_iter().map(|(key, weight)| (key.to_string(), weight)).collect() }
    }

    fn shares(sizes: (u64, u64), weights: &[u32]) -> Vec<u32> {
        HashRing::new(&plan(sizes, weights.iter().copied().enumerate())).shares
    }

    /// RH-4
    #[test]
    fn entries_follow_weights() {
        let check = |sizes, weights: &[u32], expected: &[u32]| {
            assert_eq!(shares(sizes, weights), expected, "{sizes:?} {weights:?}");
        };
        check((6, 4096), &[3, 3, 4], &[2, 2, 3]);
        check((1024, 4096), &[1, 1, 1], &[342, 342, 342]);
        check((1024, 4096), &[7], &[1024]);
        check((1, 4096), &[1, 2, 4], &[1, 2, 4]);
        check((1, 8), &[1, 100], &[1, 7]);
        check((4, 4), &[1, 1, 2], &[1, 1, 2]);
        // The greatest size cuts through: some get nothing.
        check((1, 2), &[1, 1, 1, 1, 1], &[1, 0, 1, 0, 0]);
        // RH-6: the product of raw weights in A42's example.
        check((17, 4096), &[6, 3, 6, 2], &[6, 3, 6, 2]);
        check((1, 4096), &[], &[]);
    }

    /// RH-6: A42's example, normalised by A113: 3/5 of 2/3 and 1/3, 2/5 of 3/4 and 1/4.
    #[test]
    fn locality_and_endpoint_weights_multiply() {
        let at = |name: &str, weight, (zone, locality_weight): (&str, u32)| {
            let locality = Locality { zone: zone.to_owned(), ..Locality::default() };
            Endpoint::at(name).with_weight(weight).with_locality(locality.into(), locality_weight)
        };
        let (one, two) = (("one", 3), ("two", 2));
        let list = Endpoints::list([at("a", 2, one), at("b", 1, one), at("c", 3, two), at("d", 1, two)]);
        let mut policy = RingHash::default();
        run(&mut policy, &list, &mut tree());
        for (share, expected) in policy.ring.shares.iter().zip([412, 206, 309, 103]) {
            // UQ1.31 rounds down, which may cost or give an entry.
            assert!(share.abs_diff(expected) <= 1, "{:?}", policy.ring.shares);
        }
    }

    /// RH-9
    #[test]
    fn states_by_rule() {
        let state = |letter| match letter {
            'R' => ConnectivityState::Ready,
            'F' => ConnectivityState::TransientFailure,
            'C' => ConnectivityState::Connecting,
            _ => ConnectivityState::Idle,
        };
        let table = [
            ("", 'F'),
            ("I", 'I'),
            ("II", 'I'),
            ("C", 'C'),
            ("IC", 'C'),
            ("F", 'F'),
            ("FI", 'C'),
            ("FC", 'C'),
            ("FFI", 'F'),
            ("FFC", 'F'),
            ("FFCI", 'F'),
            ("FFR", 'R'),
            ("R", 'R'),
            ("RICF", 'R'),
        ];
        for (states, expected) in table {
            for rotation in 0..states.len().max(1) {
                let rotated = states.chars().cycle().skip(rotation).take(states.len());
                assert_eq!(aggregate(rotated.map(state)), state(expected), "{states}");
            }
        }
    }

    fn tree() -> PolicyTree {
        PolicyTree::new(
            Rng::fixed(1),
            Backoff::default(),
            std::time::Duration::ZERO,
            Arc::default(),
            Arc::default(),
        )
    }

    /// One run of the policy as the root of a tree.
    fn run(policy: &mut RingHash, endpoints: &Endpoints, tree: &mut PolicyTree) -> LbState {
        let config = RingHashConfig::default();
        let node = tree.request_child(None, None);
        let before = tree.begin(node, PolicyScope::default());
        let mut cx = Cx { tree, node: Some(node), scope: PolicyScope::default(), children_reusable: false };
        let state = policy.reconcile(&config, endpoints, &mut cx);
        tree.end(node, &before);
        state
    }

    /// RH-16
    #[test]
    fn the_ring_stays_while_keys_weights_and_sizes_do() {
        let (mut policy, mut tree) = (RingHash::default(), tree());
        let list = || Endpoints::list(["a", "b"].map(Endpoint::at));
        let idle = run(&mut policy, &list(), &mut tree);
        let ring = policy.ring.clone();

        // A state change: another picker, the same ring.
        let id = policy.list.entries()[0].subchannel().unwrap();
        tree.connect(id, None);
        tree.change(id, |subchannel| subchannel.connected(crate::Instant::ORIGIN));
        let ready = run(&mut policy, &list(), &mut tree);
        assert_eq!(
            (idle.connectivity, ready.connectivity),
            (ConnectivityState::Idle, ConnectivityState::Ready)
        );
        assert!(Arc::ptr_eq(&ring, &policy.ring));

        let keyed =
            |key| Endpoints::list([Endpoint::at("a"), Endpoint::at("b").with_metadata(HASH_KEY, key)]);
        let others = [
            Endpoints::list(["a", "b", "c"].map(Endpoint::at)),
            Endpoints::list([Endpoint::at("a"), Endpoint::at("b").with_weight(2)]),
            keyed("x"),
        ];
        for other in others {
            let before = policy.ring.clone();
            run(&mut policy, &other, &mut tree);
            assert!(!Arc::ptr_eq(&before, &policy.ring), "{other:?}");
        }
        // A key that equals the address changes nothing.
        run(&mut policy, &list(), &mut tree);
        let before = policy.ring.clone();
        run(&mut policy, &keyed("b"), &mut tree);
        assert!(Arc::ptr_eq(&before, &policy.ring));
    }

    /// RH-3
    #[test]
    fn shares_of_the_hash_space_sum_to_one() {
        for n in [1, 2, 10] {
            let ring = HashRing::new(&plan((1024, 4096), (0..n).map(|i| (i, 1))));
            let arcs = ring.arcs();
            assert!((arcs.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            assert!(arcs.iter().all(|arc| (arc * f64::from(n) - 1.0).abs() < 0.25), "{arcs:?}");
        }
    }

    proptest! {
        /// RH-5: the lookup is the entry with the least hash at or above, else the least of all.
        #[test]
        fn lookup_is_the_naive_one(
            weights in prop::collection::vec(1u32..20, 1..8),
            min in 1u64..64,
            hashes in prop::collection::vec(any::<u64>(), 20),
        ) {
            let ring = HashRing::new(&plan((min, 4096), weights.into_iter().enumerate()));
            let exact = ring.entries.iter().flat_map(|e| [e.hash.wrapping_sub(1), e.hash, e.hash.wrapping_add(1)]);
            for hash in hashes.into_iter().chain(exact).chain([0, u64::MAX]) {
                let above = ring.entries.iter().filter(|entry| entry.hash >= hash).min();
                let naive = above.or(ring.entries.iter().min());
                prop_assert_eq!(Some(&ring.entries[ring.find(hash)]), naive);
            }
        }

        /// RH-4: the ring has the requested size, unless a whole number of entries for the lightest endpoint needs
        /// more.
        #[test]
        fn sizes_hold(
            weights in prop::collection::vec(1u32..1000, 1..20),
            min in 1u64..2000,
            more in 0u64..2000,
        ) {
            let shares = shares((min, min + more), &weights);
            let size: u64 = shares.iter().map(|n| u64::from(*n)).sum();
            prop_assert!((min..=min + more).contains(&size), "{} of {}..={}", size, min, min + more);
            let total: u32 = weights.iter().sum();
            for (share, weight) in shares.iter().zip(&weights) {
                let nominal = size as f64 * f64::from(*weight) / f64::from(total);
                prop_assert!((f64::from(*share) - nominal).abs() < 2.0, "{} for {}", share, nominal);
            }
        }

        /// RH-16: a key moves only if its endpoint was removed, or onto an entry that is new because the rest of the ring
        /// has grown. If no other endpoint gains entries, only the keys of the removed endpoint move.
        #[test]
        fn removing_an_endpoint_moves_only_its_keys(
            n in 2usize..12,
            gone in any::<prop::sample::Index>(),
            min in 1u64..200,
            hashes in prop::collection::vec(any::<u64>(), 200),
        ) {
            let gone = gone.index(n);
            let full = HashRing::new(&plan((min, 4096), (0..n).map(|i| (i, 1))));
            let rest: Vec<usize> = (0..n).filter(|i| *i != gone).collect();
            let less = HashRing::new(&plan((min, 4096), rest.iter().map(|i| (*i, 1))));
            let grown: Vec<u64> = rest.iter().zip(&less.shares).flat_map(|(i, share)| {
                (full.shares[*i]..*share).map(move |n| hash::of_bytes(format!("{i}_{n}").as_bytes()))
            }).collect();
            prop_assert!(min > (n - 1) as u64 || grown.is_empty());
            for hash in hashes {
                let before = full.entries[full.find(hash)].member as usize;
                let entry = less.entries[less.find(hash)];
                let after = rest[entry.member as usize];
                prop_assert!(before == after || before == gone || grown.contains(&entry.hash));
            }
        }

        /// RH-3: the order of the endpoints does not matter.
        #[test]
        fn clients_agree_whatever_the_order(
            members in prop::collection::btree_map("[a-z]{1,3}", 1u32..9, 1..8).prop_map(Vec::from_iter),
            turn in any::<prop::sample::Index>(),
        ) {
            let mut turned = members.clone();
            turned.rotate_left(turn.index(members.len()));
            let on_ring = |members: &[(String, u32)]| -> Vec<(u64, String)> {
                let ring = HashRing::new(&plan((64, 128), members.iter().cloned()));
                ring.entries.iter().map(|e| (e.hash, members[e.member as usize].0.clone())).collect()
            };
            prop_assert_eq!(on_ring(&members), on_ring(&turned));
        }
    }
}
