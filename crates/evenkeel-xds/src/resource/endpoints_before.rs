//! What was read of a `ClusterLoadAssignment` before, for the version that comes after it.
//!
//! Most often one endpoint of thousands has changed. Endpoints whose bytes are the same are the same endpoints: they are
//! not decoded and not checked again, and keep their allocation, by which everybody who comes after knows that nothing
//! changed.

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_core::cluster::EndpointSet;
use evenkeel_core::{Endpoint, Endpoints, Locality};
use evenkeel_proto::envoy::config::core::v3::HealthStatus;
use evenkeel_proto::envoy::config::endpoint::v3::LocalityLbEndpoints;
use evenkeel_proto::prost::Message as _;

use crate::resource::endpoints::{ENDPOINTS_FIELD, LOCALITIES_FIELD, health};
use crate::resource::wire;

/// The number of `LbEndpoint.health_status`.
const HEALTH_STATUS_FIELD: u32 = 2;

/// How far ahead to look for where two lists agree again.
const MAX_LOOKAHEAD: usize = 8;

/// A resource that was accepted: its localities that have a weight.
#[derive(Default)]
pub(super) struct PreviousEndpoints<'a> {
    localities: Vec<PreviousLocality<'a>>,
}

/// A locality as it was.
struct PreviousLocality<'a> {
    /// Without endpoints.
    message: LocalityLbEndpoints,
    /// Every endpoint that may be called: as it came, and what it became.
    endpoints: Vec<(&'a [u8], &'a Endpoint)>,
}

impl<'a> PreviousEndpoints<'a> {
    /// The resource that was read from these bytes; nothing of it if that cannot be so.
    pub(super) fn new(bytes: &'a [u8], set: &'a EndpointSet) -> PreviousEndpoints<'a> {
        PreviousEndpoints::read(bytes, set).unwrap_or_default()
    }

    fn read(bytes: &'a [u8], set: &'a EndpointSet) -> Option<PreviousEndpoints<'a>> {
        let mut lists: Vec<_> = set.priorities.iter().map(Endpoints::iter).collect();
        let mut localities = Vec::new();
        for bytes in wire::split_field(bytes, LOCALITIES_FIELD)?.0 {
            let (all, beside) = wire::split_field(bytes, ENDPOINTS_FIELD)?;
            let message = LocalityLbEndpoints::decode(&*beside).ok()?;
            if message.load_balancing_weight.is_none_or(|weight| weight == 0) {
                continue;
            }
            let list = lists.get_mut(message.priority as usize)?;
            let callable = all.into_iter().filter(|endpoint| is_callable(endpoint));
            let endpoints = callable.map(|bytes| Some((bytes, list.next()?))).collect::<Option<_>>()?;
            localities.push(PreviousLocality { message, endpoints });
        }
        lists.iter_mut().all(|list| list.next().is_none()).then_some(PreviousEndpoints { localities })
    }

    /// What each of these endpoints of a locality, without which it is `message`, was read as, where it was read.
    pub(super) fn find(&self, message: &LocalityLbEndpoints, all: &[&[u8]]) -> Vec<Option<&'a Endpoint>> {
        let known = self.localities.iter().find(|known| known.message == *message);
        let Some(PreviousLocality { endpoints, .. }) = known else { return vec![None; all.len()] };
        let mut old = &endpoints[..];
        let mut found = Vec::with_capacity(all.len());
        let mut missed = 0_usize;
        for bytes in all {
            let at = old.iter().take(MAX_LOOKAHEAD).position(|(known, _)| known == bytes);
            let (of_these, rest) = old.split_at(at.map_or(0, |at| at.saturating_add(1)));
            found.push(of_these.last().map(|(_, endpoint)| *endpoint));
            old = rest;
            missed = if at.is_some() { 0 } else { missed.saturating_add(1) };
            if missed > MAX_LOOKAHEAD {
                // They do not stand in the same order.
                let mut by_bytes: HashMap<&[u8], &Endpoint> = old.iter().copied().collect();
                let rest: Vec<_> = all.iter().skip(found.len()).map(|bytes| by_bytes.remove(bytes)).collect();
                found.extend(rest);
                break;
            }
        }
        found
    }

    /// The locality as it was, if it is in one of these.
    pub(super) fn locality(&self, locality: &Locality) -> Option<&'a Arc<Locality>> {
        let mut all = self.localities.iter().filter_map(|known| known.endpoints.first()?.1.locality());
        all.find(|known| ***known == *locality)
    }
}

fn is_callable(endpoint: &[u8]) -> bool {
    let status = wire::last_number(endpoint, HEALTH_STATUS_FIELD);
    health(status.map_or(HealthStatus::Unknown as i32, |status| status as i32)).is_some()
}
