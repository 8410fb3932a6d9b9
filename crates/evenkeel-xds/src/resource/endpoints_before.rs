//! Previous version of a `ClusterLoadAssignment`, for incremental parsing.
//!
//! An update usually changes one endpoint of thousands. Endpoints with equal bytes are neither decoded nor
//! validated again. They keep their allocation, and its identity is the change signal for all later stages.

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_core::cluster::EndpointSet;
use evenkeel_core::{Endpoint, Endpoints, Locality};
use evenkeel_proto::envoy::config::core::v3::HealthStatus;
use evenkeel_proto::envoy::config::endpoint::v3::LocalityLbEndpoints;
use evenkeel_proto::prost::Message as _;

use crate::resource::endpoints::{ENDPOINTS_FIELD, LOCALITIES_FIELD, health};
use crate::resource::wire;

/// Field number of `LbEndpoint.health_status`.
const HEALTH_STATUS_FIELD: u32 = 2;

/// Maximum number of old endpoints that are compared with a new one before it counts as changed.
const MAX_LOOKAHEAD: usize = 8;

/// Localities with a weight of an accepted resource.
#[derive(Default)]
pub(super) struct PreviousEndpoints<'a> {
    localities: Vec<PreviousLocality<'a>>,
}

/// Locality of the previous version.
struct PreviousLocality<'a> {
    /// The message without its endpoints.
    message: LocalityLbEndpoints,
    /// Usable endpoints, as received and as parsed.
    endpoints: Vec<(&'a [u8], &'a Endpoint)>,
}

impl<'a> PreviousEndpoints<'a> {
    /// Creates the previous version from its bytes and its parsed form. It is empty if the two do not match.
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
            // Accepted priorities have no gap, so the number is the index.
            let list = lists.get_mut(message.priority as usize)?;
            let callable = all.into_iter().filter(|endpoint| is_callable(endpoint));
            let endpoints = callable.map(|bytes| Some((bytes, list.next()?))).collect::<Option<_>>()?;
            localities.push(PreviousLocality { message, endpoints });
        }
        // Endpoints that are left over mean that bytes and set do not match.
        lists.iter_mut().all(|list| list.next().is_none()).then_some(PreviousEndpoints { localities })
    }

    /// Returns the previous form of each endpoint of a locality, if there is one. `message` is the locality
    /// without endpoints.
    pub(super) fn find(&self, message: &LocalityLbEndpoints, all: &[&[u8]]) -> Vec<Option<&'a Endpoint>> {
        // The weight is part of the comparison: an endpoint stores the weight of its locality.
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
                // The order differs, so find the others by their bytes.
                // Each old endpoint is used once. A duplicate is parsed, and its address is rejected.
                let mut by_bytes: HashMap<&[u8], &Endpoint> = old.iter().copied().collect();
                let rest: Vec<_> = all.iter().skip(found.len()).map(|bytes| by_bytes.remove(bytes)).collect();
                found.extend(rest);
                break;
            }
        }
        found
    }

    /// Returns the allocation of a locality, if an endpoint of the previous version is in it.
    pub(super) fn locality(&self, locality: &Locality) -> Option<&'a Arc<Locality>> {
        let mut all = self.localities.iter().filter_map(|known| known.endpoints.first()?.1.locality());
        all.find(|known| ***known == *locality)
    }
}

fn is_callable(endpoint: &[u8]) -> bool {
    let status = wire::last_number(endpoint, HEALTH_STATUS_FIELD);
    health(status.map_or(HealthStatus::Unknown as i32, |status| status as i32)).is_some()
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "a test may panic")]
mod tests {
    use evenkeel_core::Registry;
    use evenkeel_proto::envoy::config::endpoint::v3::{ClusterLoadAssignment, LbEndpoint};
    use proptest::prelude::*;
    use testkit::resources::{any, endpoint, locality};

    use super::*;
    use crate::bootstrap::ServerConfig;
    use crate::resource::{ParsedResource, Resource, ResourceParser, ResourceType};

    /// Parses `message` alone, or as the successor of an accepted version.
    fn parse(
        message: &ClusterLoadAssignment,
        before: Option<(&ClusterLoadAssignment, &Arc<EndpointSet>)>,
    ) -> Result<Arc<EndpointSet>, String> {
        let from = ServerConfig::insecure("xds.example:443");
        let before = before.map(|(before, set)| (any(before), Resource::Endpoints(set.clone())));
        let before = before.as_ref().map(|(any, resource)| (any, resource));
        let parser = ResourceParser::new(Registry::empty());
        match parser.parse_incremental(before, ResourceType::Endpoints, &any(message), &from) {
            Ok(ParsedResource { resource: Resource::Endpoints(set), .. }) => Ok(set),
            Ok(other) => panic!("not endpoints: {other:?}"),
            Err(rejected) => Err(rejected.problems.to_string()),
        }
    }

    fn accepted(message: &ClusterLoadAssignment) -> Arc<EndpointSet> {
        parse(message, None).expect("a good resource")
    }

    fn refused(message: &ClusterLoadAssignment) -> String {
        parse(message, None).expect_err("a bad resource")
    }

    fn assignment(endpoints: Vec<LocalityLbEndpoints>) -> ClusterLoadAssignment {
        ClusterLoadAssignment { cluster_name: "c".to_owned(), endpoints, ..ClusterLoadAssignment::default() }
    }

    /// Returns a resource with one locality and these endpoints.
    fn with(endpoints: Vec<LbEndpoint>) -> ClusterLoadAssignment {
        assignment(vec![LocalityLbEndpoints { lb_endpoints: endpoints, ..locality("a", 1, 0, &[]) }])
    }

    fn weighing(weight: u32, port: u16) -> LbEndpoint {
        LbEndpoint { load_balancing_weight: Some(weight), ..endpoint("10.0.0.1", port) }
    }

    fn being(status: HealthStatus, port: u16) -> LbEndpoint {
        LbEndpoint { health_status: status.into(), ..endpoint("10.0.0.1", port) }
    }

    /// Returns the endpoints of each priority as text.
    fn shown(set: &EndpointSet) -> Vec<Vec<String>> {
        let endpoint = |endpoint: &Endpoint| {
            let weight = endpoint.weight().map(|weight| format!(" x{weight}")).unwrap_or_default();
            let locality = endpoint.locality().map_or("", |locality| &locality.zone);
            let share = endpoint.locality_weight().unwrap_or(0);
            format!("{:?}{weight} in {locality} x{share}", endpoint.addresses())
        };
        set.priorities.iter().map(|priority| priority.iter().map(endpoint).collect()).collect()
    }

    /// Returns true for each endpoint of `set` that shares its allocation with one of `before`.
    fn kept(set: &EndpointSet, before: &EndpointSet) -> Vec<bool> {
        let old: Vec<&Endpoint> = before.priorities.iter().flat_map(Endpoints::iter).collect();
        let new = set.priorities.iter().flat_map(Endpoints::iter);
        new.map(|endpoint| old.iter().any(|old| old.is_same(endpoint))).collect()
    }

    /// Identity is the change signal: unchanged endpoints are not parsed again.
    #[test]
    fn endpoints_that_did_not_change_stay_the_same() {
        let zone_b = locality("b", 1, 1, &["10.0.0.4:80", "10.0.0.5:80"]);
        let first = |addresses: &[&str]| assignment(vec![locality("a", 1, 0, addresses), zone_b.clone()]);
        let mut before = first(&["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]);
        before.endpoints[0].lb_endpoints.insert(1, being(HealthStatus::Draining, 7));
        let set = accepted(&before);
        let cases: [(&[&str], &[bool]); 6] = [
            (&["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"], &[true, true, true]),
            (&["10.0.0.1:80", "10.0.0.9:80", "10.0.0.3:80"], &[true, false, true]),
            (&["10.0.0.1:80", "10.0.0.3:80"], &[true, true]),
            (&["10.0.0.9:80", "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"], &[false, true, true, true]),
            (&[], &[]),
            (&["10.0.0.9:80"], &[false]),
        ];
        for (addresses, expected) in cases {
            let message = first(addresses);
            let new = parse(&message, Some((&before, &set))).expect("a good resource");
            assert_eq!(shown(&new), shown(&accepted(&message)));
            assert_eq!(kept(&new, &set), [expected, &[true, true]].concat(), "{addresses:?}");
        }
        let mut heavier = before.clone();
        heavier.endpoints[0].load_balancing_weight = Some(2);
        let new = parse(&heavier, Some((&before, &set))).expect("a good resource");
        assert_eq!(shown(&new), shown(&accepted(&heavier)));
        assert_eq!(
            kept(&new, &set),
            [false, false, false, true, true],
            "they say which weight their locality has"
        );
        assert!(Arc::ptr_eq(locality_of(&new, 0), locality_of(&set, 0)));
    }

    fn locality_of(set: &EndpointSet, priority: usize) -> &Arc<Locality> {
        let first = set.priorities[priority].iter().next().expect("an endpoint");
        first.locality().expect("its locality")
    }

    /// A27: duplicate addresses are found among unchanged and changed endpoints.
    #[test]
    fn what_was_read_before_counts() {
        let before = with((1..=40).map(|port| endpoint("10.0.0.1", port)).collect());
        let set = accepted(&before);
        for (at, with_new) in [(0, 0), (39, 0), (20, 30)] {
            let mut message = before.clone();
            let endpoints = &mut message.endpoints[0].lb_endpoints;
            endpoints.extend((0..with_new).map(|port| endpoint("10.0.0.2", 1 + port)));
            endpoints.insert(at, weighing(3, 17));
            let problem = parse(&message, Some((&before, &set))).expect_err("a bad resource");
            assert_eq!(problem, refused(&message), "the problem is named as if nothing had been read");
        }
        let mut twice = before.clone();
        twice.endpoints[0].lb_endpoints.push(endpoint("10.0.0.1", 5));
        assert_eq!(parse(&twice, Some((&before, &set))).expect_err("a bad resource"), refused(&twice));
    }

    /// VAL-E6: weights of unchanged endpoints count towards the limit of their locality.
    #[test]
    fn unchanged_weights_count_towards_the_limit() {
        let before = with(vec![weighing(u32::MAX - 5, 80), weighing(5, 81)]);
        let set = accepted(&before);
        for position in 0..=2 {
            let mut message = before.clone();
            message.endpoints[0].lb_endpoints.insert(position, weighing(1, 82));
            let problem = parse(&message, Some((&before, &set))).expect_err("the sum is too large");
            assert!(problem.contains("add up to more than 4294967295"), "{problem}");
            assert_eq!(problem, refused(&message), "the problem is the same without the version before");
        }
    }

    /// Priority of a locality, with the port, health and weight of each endpoint.
    type LocalitySpec = (u32, Vec<(u16, i32, u32)>);

    proptest! {
        /// Incremental parsing has the same result as parsing a version alone.
        #[test]
        fn versions_read_the_same(
            versions in prop::collection::vec(
                prop::collection::vec((0..3u32, prop::collection::vec((1..60u16, 0..4i32, 0..3u32), 0..30)), 0..4),
                2..4,
            ),
        ) {
            let message = |version: &[LocalitySpec]| {
                let locality = |(i, (priority, ports)): (usize, &LocalitySpec)| {
                    let one = |(port, health, weight): &(u16, i32, u32)| LbEndpoint {
                        health_status: *health,
                        load_balancing_weight: Some(*weight).filter(|weight| *weight > 0),
                        ..endpoint(&format!("10.0.{i}.1"), *port)
                    };
                    let lb_endpoints = ports.iter().map(one).collect();
                    LocalityLbEndpoints { lb_endpoints, ..locality(&format!("z{i}"), 1, *priority, &[]) }
                };
                assignment(version.iter().enumerate().map(locality).collect())
            };
            let mut before: Option<(ClusterLoadAssignment, Arc<EndpointSet>)> = None;
            for version in &versions {
                let message = message(version);
                let alone = parse(&message, None);
                let after = parse(&message, before.as_ref().map(|(before, set)| (before, set)));
                prop_assert_eq!(after.as_ref().map(|set| shown(set)), alone.as_ref().map(|set| shown(set)));
                if let Ok(set) = after {
                    before = Some((message, set));
                }
            }
        }
    }
}
