//! Checks of a whole mesh: references exist, weights are within their limits, addresses are unique.
//!
//! It collects all errors instead of stopping at the first. The form of single values is checked in `read`.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::cluster::{Cluster, Endpoint, EndpointHost, Locality, MeshClusterMembers};
use super::errors::{MeshError, MeshErrors, MeshPath, quoted};
use super::messages::locality_weight;
use super::policy::closest_match;
use super::service::{HeaderCondition, PathMatch, Route, RouteHashSource, RouteRetry};
use super::yaml::YamlNode;
use super::{Mesh, Service};

/// Maximum depth of nested clusters, as in gRPC (A37).
const MAX_DEPTH: usize = 16;

/// Checks a mesh. If its YAML is given, errors contain positions.
pub(super) fn mesh(mesh: &Mesh, yaml: Option<&YamlNode>) -> Result<(), MeshErrors> {
    let mut check = MeshChecker { mesh, yaml, errors: Vec::new() };
    let root = MeshPath::Root;
    let at = root.key("services");
    for (name, service) in &mesh.services {
        check.service(service, &at.key(name));
    }
    let at = root.key("clusters");
    for (name, cluster) in &mesh.clusters {
        check.cluster(name, cluster, &at.key(name));
    }
    if check.errors.is_empty() { Ok(()) } else { Err(MeshErrors::new(check.errors)) }
}

struct MeshChecker<'a> {
    mesh: &'a Mesh,
    yaml: Option<&'a YamlNode>,
    errors: Vec<MeshError>,
}

impl MeshChecker<'_> {
    fn push_error(&mut self, at: &MeshPath<'_>, text: impl Into<String>) {
        let position = self.yaml.and_then(|yaml| yaml.position_of(at));
        self.errors.push(MeshError::new(position, at.to_string(), text.into()));
    }

    fn service(&mut self, service: &Service, at: &MeshPath<'_>) {
        if service.is_plain {
            for route in &service.routes {
                self.route(route, "cluster", at);
            }
            return;
        }
        let at = at.key("routes");
        if service.routes.is_empty() {
            self.push_error(&at, "expected at least one route");
        }
        for (i, route) in service.routes.iter().enumerate() {
            self.route(route, "to", &at.index(i));
        }
        let all = service.routes.iter().position(Route::matches_all);
        if let Some(all) = all.filter(|all| all + 1 < service.routes.len()) {
            let text = format!("is unreachable: {} matches every call", at.index(all));
            self.push_error(&at.index(all + 1), text);
        }
    }

    fn route(&mut self, route: &Route, to: &str, at: &MeshPath<'_>) {
        match &route.path {
            Some(PathMatch::Exact(path)) if !path.starts_with('/') => {
                let text = format!("expected /package.Service/Method, found {}", quoted(path));
                self.push_error(&at.key("path"), text);
            }
            Some(PathMatch::Prefix(prefix)) if !prefix.is_empty() && !prefix.starts_with('/') => {
                let text = format!("expected /package.Service/, found {}", quoted(prefix));
                self.push_error(&at.key("prefix"), text);
            }
            Some(PathMatch::Regex(_)) if route.ignore_case => {
                self.push_error(
                    &at.key("ignore_case"),
                    "expected no ignore_case beside regex; write (?i) in it",
                );
            }
            _ => {}
        }
        for (name, header) in &route.headers {
            let at = at.key("headers");
            let at = at.key(name);
            self.header_name(name, &at);
            if let HeaderCondition::Range { from, below } = header.test
                && from >= below
            {
                self.push_error(
                    &at.key("range"),
                    format!("expected below to be more than from ({from}), found {below}"),
                );
            }
        }
        if route.is_split {
            let at = at.key("weights");
            let sum: u64 = route.to.iter().map(|(_, weight)| u64::from(*weight)).sum();
            if !(1..=u64::from(u32::MAX)).contains(&sum) {
                self.push_error(&at, format!("expected weights that add up to 1 to 4294967295, found {sum}"));
            }
            for (cluster, _) in &route.to {
                self.reference(cluster, &at.key(cluster));
            }
        } else {
            for (cluster, _) in &route.to {
                self.reference(cluster, &at.key(to));
            }
        }
        if let Some(retry) = &route.retry {
            self.retry(retry, &at.key("retry"));
        }
        for (i, hash) in route.hash.iter().enumerate() {
            if let RouteHashSource::Header { name, .. } = &hash.by {
                let at = at.key("hash");
                let at = at.index(i);
                self.header_name(name, &at.key("header"));
            }
        }
    }

    fn header_name(&mut self, name: &str, at: &MeshPath<'_>) {
        let is_letter = |byte: u8| {
            byte.is_ascii_graphic() && !byte.is_ascii_uppercase() && !b"\"(),/:;<=>?@[\\]{}".contains(&byte)
        };
        if name.is_empty() || !name.bytes().all(is_letter) {
            self.push_error(
                at,
                format!("expected the name of a header in lower case, found {}", quoted(name)),
            );
        } else if name.ends_with("-bin") {
            // gRPC does not match binary headers (A28).
            self.push_error(
                at,
                format!("expected a header of text, found {}, which is binary", quoted(name)),
            );
        }
    }

    fn retry(&mut self, retry: &RouteRetry, at: &MeshPath<'_>) {
        if retry.on.is_empty() {
            self.push_error(&at.key("on"), "expected at least one status");
        }
        if let Some(attempts) = retry.attempts.filter(|attempts| !(2..=5).contains(attempts)) {
            let text = format!("expected 2 to 5, the first attempt included, found {attempts}");
            self.push_error(&at.key("attempts"), text);
        }
        let Some((base, max)) = retry.backoff else { return };
        let at = at.key("backoff");
        if base.is_zero() {
            self.push_error(&at.key("base"), "expected more than 0s");
        }
        if max.is_some_and(|max| max < base) {
            self.push_error(&at.key("max"), "expected at least base");
        }
    }

    fn reference(&mut self, cluster: &str, at: &MeshPath<'_>) {
        // A cluster that could not be read has its own errors.
        let is_written =
            || self.yaml.is_some_and(|yaml| yaml.has(&MeshPath::Root.key("clusters").key(cluster)));
        if self.mesh.clusters.contains_key(cluster) || is_written() {
            return;
        }
        let text = format!("unknown cluster {}", quoted(cluster));
        match closest_match(cluster, self.mesh.clusters()) {
            Some(nearest) => self.push_error(at, format!("{text}; did you mean {nearest}?")),
            None => self.push_error(at, text),
        }
    }

    fn cluster(&mut self, name: &str, cluster: &Cluster, at: &MeshPath<'_>) {
        if let Some(policy) = &cluster.policy {
            let mut problems = Vec::new();
            policy.message(&at.key("policy"), &mut |at, text| {
                let position = self.yaml.and_then(|yaml| yaml.position_of(at));
                problems.push(MeshError::new(position, at.to_string(), text));
            });
            self.errors.extend(problems);
        }
        if let Some(settings) = &cluster.outlier_detection {
            let at = at.key("outlier_detection");
            let (base, max) = (settings.base_ejection_time, settings.max_ejection_time);
            if let (Some(base), Some(max)) = (base, max)
                && max < base
            {
                self.push_error(&at.key("max_ejection_time"), "expected at least base_ejection_time");
            }
            if settings.interval.is_some_and(|interval| interval.is_zero()) {
                self.push_error(&at.key("interval"), "expected more than 0s");
            }
        }
        match &cluster.members {
            MeshClusterMembers::Endpoints(endpoints) => self.endpoints(cluster, endpoints, at),
            MeshClusterMembers::Dns { .. } => self.check_endpoints_only_keys(cluster, "a dns cluster", at),
            MeshClusterMembers::Clusters(clusters) => {
                self.check_endpoints_only_keys(cluster, "an aggregate cluster", at);
                self.aggregate(name, cluster, clusters, at);
            }
        }
    }

    fn check_endpoints_only_keys(&mut self, cluster: &Cluster, kind: &str, at: &MeshPath<'_>) {
        let set = [("localities", !cluster.localities.is_empty()), ("drops", !cluster.drops.is_empty())];
        for (key, _) in set.into_iter().filter(|(_, is_set)| *is_set) {
            self.push_error(
                &at.key(key),
                format!("expected only in a cluster with endpoints, found in {kind}"),
            );
        }
    }

    fn aggregate(&mut self, name: &str, cluster: &Cluster, members: &[String], at: &MeshPath<'_>) {
        let set = [
            ("policy", cluster.policy.is_some()),
            ("circuit_breaking", cluster.max_requests.is_some()),
            ("outlier_detection", cluster.outlier_detection.is_some()),
            ("lrs", cluster.lrs),
        ];
        for (key, _) in set.into_iter().filter(|(_, is_set)| *is_set) {
            self.push_error(&at.key(key), "expected in the member clusters, found in an aggregate cluster");
        }
        let at = at.key("aggregate");
        if members.is_empty() {
            self.push_error(&at, "expected at least one cluster");
        }
        let mut seen = BTreeSet::new();
        for (i, member) in members.iter().enumerate() {
            self.reference(member, &at.index(i));
            if !seen.insert(member) {
                self.push_error(&at.index(i), format!("the cluster {} occurs twice", quoted(member)));
            }
            if self.reaches(member, name, MAX_DEPTH) {
                self.push_error(
                    &at.index(i),
                    format!("forms a cycle through {}, or is nested too deep", quoted(name)),
                );
            }
        }
    }

    /// Returns true if a cluster contains another, or nests deeper than clients accept.
    fn reaches(&self, from: &str, to: &str, depth: usize) -> bool {
        // Breadth first, each name once: the cost is bounded by the size of the mesh.
        let (mut seen, mut level) = (BTreeSet::new(), vec![from]);
        for _ in 0..depth {
            if level.contains(&to) {
                return true;
            }
            let members = level.iter().filter_map(|name| match &self.mesh.clusters.get(*name)?.members {
                MeshClusterMembers::Clusters(members) => Some(members),
                _ => None,
            });
            level = members.flatten().map(String::as_str).filter(|member| seen.insert(*member)).collect();
            if level.is_empty() {
                return false;
            }
        }
        true
    }

    fn endpoints(&mut self, cluster: &Cluster, endpoints: &[Endpoint], at: &MeshPath<'_>) {
        let endpoints_at = at.key("endpoints");
        let (mut addresses, mut hosts) = (HashMap::new(), HashMap::new());
        let mut groups = BTreeMap::<(u32, &Locality), Vec<&Endpoint>>::new();
        for (i, endpoint) in endpoints.iter().enumerate() {
            let at = endpoints_at.index(i);
            if endpoint.weight == Some(0) {
                self.push_error(&at.key("weight"), "expected 1 to 4294967295, found 0");
            }
            if let Some(host) = &endpoint.host
                && let Some(first) = hosts.insert((&host.name, host.port), i)
            {
                let (first, EndpointHost { name, port }) = (endpoints_at.index(first).to_string(), host);
                self.push_error(&at, format!("the address {name}:{port} occurs twice, first in {first}"));
            }
            if endpoint.addresses.is_empty() && endpoint.host.is_none() {
                self.push_error(&at.key("addresses"), "expected at least one address");
            }
            for address in &endpoint.addresses {
                if let Some(first) = addresses.insert(*address, i) {
                    let first = endpoints_at.index(first).to_string();
                    self.push_error(&at, format!("the address {address} occurs twice, first in {first}"));
                }
            }
            groups.entry((cluster.priority_of(endpoint), &endpoint.locality)).or_default().push(endpoint);
        }
        for (locality, settings) in &cluster.localities {
            let at = at.key("localities");
            let name = locality.to_string();
            if settings.weight == Some(0) {
                let at = at.key(&name);
                self.push_error(&at.key("weight"), "expected 1 to 4294967295, found 0");
            }
            if !endpoints.iter().any(|endpoint| endpoint.locality == *locality) {
                self.push_error(&at.key(&name), "no endpoint is in this locality");
            }
        }
        self.check_weight_sums(cluster, &groups, &endpoints_at);
    }

    /// Checks the sums of weights in each locality and each priority, which must fit into 32 bits, and that priorities
    /// have no gap (A27).
    fn check_weight_sums(
        &mut self,
        cluster: &Cluster,
        groups: &BTreeMap<(u32, &Locality), Vec<&Endpoint>>,
        at: &MeshPath<'_>,
    ) {
        let mut priorities = BTreeMap::<u32, u64>::new();
        for ((priority, locality), endpoints) in groups {
            let sum: u64 = endpoints.iter().map(|endpoint| u64::from(endpoint.weight.unwrap_or(1))).sum();
            if sum > u64::from(u32::MAX) {
                let text = format!("the weights of a locality add up to at most 4294967295, found {sum}");
                self.push_error(at, text);
            }
            *priorities.entry(*priority).or_default() +=
                locality_weight(cluster, locality, endpoints.iter().copied());
        }
        if let Some((priority, sum)) = priorities.iter().find(|(_, sum)| **sum > u64::from(u32::MAX)) {
            let text = format!(
                "the weights of the localities in priority {priority} add up to at most 4294967295, found {sum}"
            );
            self.push_error(at, text);
        }
        if let Some((missing, found)) =
            (0..).zip(priorities.keys()).find(|(expected, found)| expected != *found)
        {
            self.push_error(at, format!("there is a priority {found} but no priority {missing}"));
        }
    }
}
