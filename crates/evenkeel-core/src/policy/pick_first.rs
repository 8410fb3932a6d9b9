//! `pick_first`: one connection, to the first reachable address.
//!
//! Implements A61 (address list, Happy Eyeballs), A62 (shuffling, sticky TRANSIENT_FAILURE) and A113
//! (weighted shuffling). This module builds the address list: endpoints are optionally shuffled, then
//! flattened, and address families are interleaved. [`EndpointConnection`] connects.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::config::{ConfigError, ConfigFields};
use crate::endpoint::connection::{ConnectMode, EndpointConnection, EndpointConnectionState};
use crate::endpoint::weights::spread;
use crate::engine::describe::{DescribeCx, Description, EndpointRow};
use crate::policy::{CachedState, LbState, Policy};
use crate::{
    Address, ConnectivityState, Cx, Endpoint, EndpointHealthStatus, Endpoints, PickArgs, PickResult, Picker,
    Rng, Status, SubchannelId,
};

/// Implementation of the `pick_first` policy.
#[derive(Debug, Default)]
pub(crate) struct PickFirst {
    source: Option<(Endpoints, bool)>,
    addresses: Arc<[Address]>,
    connection: EndpointConnection,
    cached: CachedState<(EndpointConnectionState, Option<Status>)>,
    state: Option<EndpointConnectionState>,
    picks: Arc<AtomicU64>,
}

/// Settings of the `pick_first` policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PickFirstConfig {
    /// True to shuffle the endpoints by weight on every update.
    pub(crate) shuffle_address_list: bool,
}

impl Policy for PickFirst {
    type Config = PickFirstConfig;

    fn parse(fields: &ConfigFields<'_>) -> Result<PickFirstConfig, ConfigError> {
        Ok(PickFirstConfig { shuffle_address_list: fields.bool("shuffleAddressList")?.unwrap_or(false) })
    }

    fn reconcile(&mut self, config: &PickFirstConfig, endpoints: &Endpoints, cx: &mut Cx<'_>) -> LbState {
        let shuffle = config.shuffle_address_list;
        let is_current = |(source, was): &(Endpoints, bool)| source.is_same(endpoints) && *was == shuffle;
        if !self.source.as_ref().is_some_and(is_current) {
            // Shuffled once per update (PF-2): a new order in each run would restart the attempts.
            self.addresses = address_list(endpoints, shuffle, cx.rng());
            self.source = Some((endpoints.clone(), shuffle));
        }
        // After the first connection the policy goes IDLE on a disconnect and connects on the next pick.
        let connect_mode = if self.connection.was_ready() { ConnectMode::Lazy } else { ConnectMode::Eager };
        let state = self.connection.reconcile(&self.addresses, connect_mode, cx);
        let failing = state.connectivity == ConnectivityState::TransientFailure;
        // The text is part of the cached key, so a new error leads to a new picker.
        let failure = failing.then(|| self.failure(state, cx));
        self.state = Some(state);
        self.cached.get_or_build((state, failure), |(state, failure)| {
            match (state.connectivity, state.subchannel) {
                (ConnectivityState::Ready, Some(id)) => {
                    LbState::new(ConnectivityState::Ready, PickFirstPicker { id, picks: self.picks.clone() })
                }
                (ConnectivityState::Idle, Some(id)) => LbState::idle(id),
                (ConnectivityState::TransientFailure, _) => {
                    LbState::failing(failure.clone().unwrap_or_else(|| Status::unavailable("no addresses")))
                }
                _ => LbState::connecting(),
            }
        })
    }

    fn describe(&self, cx: &DescribeCx<'_>) -> Description {
        let mut description = Description::new();
        let chosen = self.state.and_then(|state| cx.subchannel(state.subchannel?));
        for address in self.addresses.iter() {
            let is_chosen = chosen.is_some_and(|subchannel| subchannel.address() == address);
            let state = self.state.map_or(ConnectivityState::Idle, |state| state.connectivity);
            let state = if is_chosen { state } else { ConnectivityState::Idle };
            let used = is_chosen && state == ConnectivityState::Ready;
            let error = chosen.filter(|_| is_chosen).and_then(|subchannel| subchannel.error());
            description.endpoint(EndpointRow {
                addresses: vec![address.to_string()],
                hostname: None,
                locality: None,
                state,
                weight: None,
                share: used.then_some(1.0),
                picks: if used { self.picks.load(Ordering::Relaxed) } else { 0 },
                unused: (!used)
                    .then(|| error.map_or("not chosen".to_owned(), |error| error.message().to_owned())),
            });
        }
        description
    }
}

impl PickFirst {
    fn failure(&self, state: EndpointConnectionState, cx: &Cx<'_>) -> Status {
        let last = state.subchannel.and_then(|id| cx.peek(id));
        match (last, last.and_then(|subchannel| subchannel.error())) {
            (Some(last), Some(error)) => {
                let count = self.addresses.len();
                let (address, message) = (last.address(), error.message());
                cx.unavailable(format!(
                    "connections to all {count} addresses failed; the last, {address}: {message}"
                ))
            }
            _ => cx.unavailable("no addresses to connect to"),
        }
    }
}

struct PickFirstPicker {
    id: SubchannelId,
    picks: Arc<AtomicU64>,
}

impl Picker for PickFirstPicker {
    fn pick(&self, _: &PickArgs<'_>) -> PickResult {
        self.picks.fetch_add(1, Ordering::Relaxed);
        PickResult::complete(self.id)
    }
}

/// Returns the addresses in connection order: endpoints shuffled, flattened, without duplicates, families
/// interleaved.
fn address_list(endpoints: &Endpoints, shuffle: bool, rng: &mut Rng) -> Arc<[Address]> {
    let mut endpoints: Vec<&Endpoint> =
        endpoints.iter().filter(|e| e.health() != EndpointHealthStatus::Draining).collect();
    if shuffle {
        shuffle_by_weight(&mut endpoints, rng);
    }
    let mut flat: Vec<Address> = Vec::new();
    let mut seen = HashSet::new();
    for address in endpoints.iter().flat_map(|endpoint| endpoint.addresses().iter()) {
        if seen.insert(address) {
            flat.push(address.clone());
        }
    }
    interleave(flat).into()
}

/// Shuffles in weighted random order (Efraimidis and Spirakis, A113): keys `u^(1/w)`, greatest first.
///
/// Compares `ln(u)/w` instead. It has the same order and does not lose precision near 1 for large weights.
fn shuffle_by_weight(endpoints: &mut Vec<&Endpoint>, rng: &mut Rng) {
    let weights = spread(endpoints);
    let mut keyed: Vec<_> = endpoints
        .iter()
        .zip(weights)
        .map(|(endpoint, weight)| (rng.unit().ln() / f64::from(weight), *endpoint))
        .collect();
    keyed.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    *endpoints = keyed.into_iter().map(|(_, endpoint)| endpoint).collect();
}

/// Interleaves the address families, starting with the family of the first address (RFC 8305, A61).
fn interleave(addresses: Vec<Address>) -> Vec<Address> {
    let mut families: Vec<(u8, Vec<Address>)> = Vec::new();
    for address in addresses {
        match families.iter_mut().find(|(family, _)| *family == address.family()) {
            Some((_, list)) => list.push(address),
            None => families.push((address.family(), vec![address])),
        }
    }
    let mut lists: Vec<_> = families.into_iter().map(|(_, list)| list.into_iter()).collect();
    let mut out = Vec::new();
    while !lists.is_empty() {
        lists.retain_mut(|list| match list.next() {
            Some(address) => {
                out.push(address);
                true
            }
            None => false,
        });
    }
    out
}
