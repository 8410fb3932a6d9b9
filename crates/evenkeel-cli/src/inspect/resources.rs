//! Resources of an xDS client, from CSDS (A40): listeners, routes, clusters, endpoints.
//!
//! A resource is shown once, below the first resource that refers to it. Unreferenced resources and unknown
//! types are roots.

use std::collections::HashMap;
use std::time::SystemTime;

use evenkeel_proto::envoy::admin::v3::ClientResourceStatus;
use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::config::cluster::v3::cluster::ClusterDiscoveryType;
use evenkeel_proto::envoy::config::core::v3::Node;
use evenkeel_proto::envoy::config::core::v3::node::UserAgentVersionType;
use evenkeel_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
use evenkeel_proto::envoy::config::listener::v3::Listener;
use evenkeel_proto::envoy::config::route::v3::RouteConfiguration;
use evenkeel_proto::envoy::extensions::clusters::aggregate::v3::ClusterConfig;
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::HttpConnectionManager;
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use evenkeel_proto::envoy::service::status::v3::client_config::GenericXdsConfig;
use evenkeel_proto::envoy::service::status::v3::ClientConfig;
use evenkeel_proto::prost::{Message, Name};
use evenkeel_proto::prost_types::Any;
use evenkeel_xds::resource::ResourceType;

use super::draw::TreeNode;
use super::words;
use crate::ui::TextStyle;

/// Maximum depth of nested aggregate clusters (A37). Deeper ones become roots.
const MAX_DEPTH: usize = 16;

/// Returns true if a resource is NACKED or missing.
pub(super) fn is_bad(resource: &GenericXdsConfig) -> bool {
    use ClientResourceStatus::{DoesNotExist, Nacked, ReceivedError, Timeout};
    matches!(status(resource), Ok(Nacked | DoesNotExist | ReceivedError | Timeout))
}

fn status(resource: &GenericXdsConfig) -> Result<ClientResourceStatus, i32> {
    ClientResourceStatus::try_from(resource.client_status).map_err(|_| resource.client_status)
}

/// Returns the tree of an xDS client.
pub(super) fn client(client: &ClientConfig, now: SystemTime) -> TreeNode {
    let scope = if client.client_scope.is_empty() { "xDS client" } else { &client.client_scope };
    let mut top = TreeNode::styled(TextStyle::Title, scope);
    if let Some(node) = &client.node {
        top = top.with(TextStyle::Faint, self::node(node));
    }
    let resources = &client.generic_xds_configs;
    let mut places = HashMap::new();
    for (i, resource) in resources.iter().enumerate() {
        if let Some(kind) = ResourceType::from_type_url(&resource.type_url) {
            places.entry((kind, resource.name.as_str())).or_insert(i);
        }
    }
    let mut walk = ResourceTreeBuilder { resources, places, shown: vec![false; resources.len()], now };
    // Referring types first, so that referred resources are shown below them.
    for kind in ResourceType::ALL {
        for (i, resource) in resources.iter().enumerate() {
            if ResourceType::from_type_url(&resource.type_url) == Some(kind) {
                walk.show(&mut top, i, 0);
            }
        }
    }
    for i in 0..resources.len() {
        walk.show(&mut top, i, 0);
    }
    if resources.is_empty() {
        top.push(TreeNode::styled(TextStyle::Faint, "no subscriptions"));
    }
    top
}

fn node(node: &Node) -> String {
    let version = match &node.user_agent_version_type {
        Some(UserAgentVersionType::UserAgentVersion(version)) => version.as_str(),
        _ => "",
    };
    let id = if node.id.is_empty() { "without an id" } else { &node.id };
    match (node.user_agent_name.as_str(), version) {
        ("", _) => format!("node {id}"),
        (name, "") => format!("node {id}, {name}"),
        (name, version) => format!("node {id}, {name} {version}"),
    }
}

struct ResourceTreeBuilder<'a> {
    resources: &'a [GenericXdsConfig],
    places: HashMap<(ResourceType, &'a str), usize>,
    shown: Vec<bool>,
    now: SystemTime,
}

impl ResourceTreeBuilder<'_> {
    /// Shows a resource and those it refers to, unless it has been shown.
    fn show(&mut self, above: &mut TreeNode, i: usize, depth: usize) {
        if std::mem::replace(&mut self.shown[i], true) {
            return;
        }
        let resource = &self.resources[i];
        let kind = ResourceType::from_type_url(&resource.type_url);
        let mut branch = self.head(resource, kind);
        if let Some(trouble) = self.error_node(resource) {
            branch.push(trouble);
        }
        if let (Some(kind), Some(any)) = (kind, &resource.xds_config)
            && let Err(problem) = self.contents(&mut branch, kind, any, depth)
        {
            branch.push(TreeNode::styled(TextStyle::Bad, problem));
        }
        above.push(branch);
    }

    /// Like [`ResourceTreeBuilder::show`], by name, if the client has the resource.
    fn show_named(&mut self, above: &mut TreeNode, kind: ResourceType, name: &str, depth: usize) {
        if depth < MAX_DEPTH
            && let Some(i) = self.places.get(&(kind, name))
        {
            self.show(above, *i, depth);
        }
    }

    fn head(&self, resource: &GenericXdsConfig, kind: Option<ResourceType>) -> TreeNode {
        let kind = match kind {
            Some(ResourceType::Listener) => "listener",
            Some(ResourceType::RouteConfig) => "routes",
            Some(ResourceType::Cluster) => "cluster",
            Some(ResourceType::Endpoints) => "endpoints",
            None => words::message_of(&resource.type_url),
        };
        let (style, state) = match status(resource) {
            Ok(ClientResourceStatus::Acked) => (TextStyle::Good, "ACKED".to_owned()),
            Ok(ClientResourceStatus::Requested | ClientResourceStatus::Unknown)
                if resource.xds_config.is_some() =>
            {
                (TextStyle::Good, "in use".to_owned())
            }
            Ok(ClientResourceStatus::Requested) => (TextStyle::Warn, "REQUESTED: no response yet".to_owned()),
            Ok(status) if is_bad(resource) => (TextStyle::Bad, status.as_str_name().to_owned()),
            Ok(status) => (TextStyle::Warn, status.as_str_name().to_owned()),
            Err(number) => (TextStyle::Warn, format!("unknown state {number}")),
        };
        let branch = TreeNode::new(kind).with(TextStyle::Title, &resource.name).with(style, state);
        let version = &resource.version_info;
        let version = (!version.is_empty()).then(|| format!("version {version}"));
        let known = [version, words::ago(resource.last_updated.as_ref(), self.now)];
        let known: Vec<_> = known.into_iter().flatten().collect();
        let known = if known.is_empty() { String::new() } else { format!("({})", known.join(", ")) };
        branch.with(TextStyle::Faint, known)
    }

    /// Returns the node of a resource's latest error, with all details.
    fn error_node(&self, resource: &GenericXdsConfig) -> Option<TreeNode> {
        let error = resource.error_state.as_ref()?;
        let when = words::ago(error.last_update_attempt.as_ref(), self.now);
        let when = when.map(|when| format!(", {when}")).unwrap_or_default();
        // An absent resource has an error too, and is not rejected.
        let what = match status(resource) {
            Ok(ClientResourceStatus::Nacked) if !error.version_info.is_empty() => {
                format!("NACKED version {}", error.version_info)
            }
            Ok(status) => status.as_str_name().to_owned(),
            Err(number) => format!("error in state {number}"),
        };
        let serving = match (resource.xds_config.is_some(), resource.version_info.as_str()) {
            (true, "") => "still serving the one before".to_owned(),
            (true, version) => format!("still serving version {version}"),
            (false, "") => "nothing to serve".to_owned(),
            // CSDS responses may omit the contents of a resource.
            (false, version) => format!("the last good version is {version}"),
        };
        let mut branch = TreeNode::styled(TextStyle::Bad, format!("{what}{when}: {serving}"));
        for line in error.details.lines().filter(|line| !line.is_empty()) {
            branch.push(TreeNode::new(line));
        }
        Some(branch)
    }

    fn contents(
        &mut self,
        branch: &mut TreeNode,
        kind: ResourceType,
        any: &Any,
        depth: usize,
    ) -> Result<(), String> {
        match kind {
            ResourceType::Listener => {
                let listener: Listener = decoded(any)?;
                self.listener(branch, &listener, depth)
            }
            ResourceType::RouteConfig => {
                self.routes(branch, &decoded(any)?, depth);
                Ok(())
            }
            ResourceType::Cluster => {
                let cluster: Cluster = decoded(any)?;
                self.cluster(branch, &cluster, depth)
            }
            ResourceType::Endpoints => {
                endpoints(branch, &decoded(any)?);
                Ok(())
            }
        }
    }

    fn listener(&mut self, branch: &mut TreeNode, listener: &Listener, depth: usize) -> Result<(), String> {
        let api = listener.api_listener.as_ref().and_then(|api| api.api_listener.as_ref());
        let Some(api) = api else {
            // Istio's client listeners have an address too, so the address is shown only without an API
            // listener.
            if let Some(address) = &listener.address {
                branch.push(TreeNode::new(format!("a server on {}", words::address(address))));
            }
            return Ok(());
        };
        let manager: HttpConnectionManager = decoded(api)?;
        let filters: Vec<_> = manager.http_filters.iter().map(|filter| filter.name.as_str()).collect();
        // The router filter alone is not worth a line.
        if filters.len() > 1 {
            branch.push(TreeNode::new(format!("filters {}", filters.join(", "))));
        }
        match &manager.route_specifier {
            Some(RouteSpecifier::Rds(rds)) => {
                self.show_named(branch, ResourceType::RouteConfig, &rds.route_config_name, depth + 1);
            }
            Some(RouteSpecifier::RouteConfig(routes)) => {
                let mut inline = TreeNode::new("routes").with(TextStyle::Faint, "within the listener");
                self.routes(&mut inline, routes, depth);
                branch.push(inline);
            }
            Some(RouteSpecifier::ScopedRoutes(_)) => branch.push(TreeNode::new("scoped routes")),
            None => {}
        }
        Ok(())
    }

    fn routes(&mut self, branch: &mut TreeNode, routes: &RouteConfiguration, depth: usize) {
        for host in &routes.virtual_hosts {
            let mut shown = TreeNode::new(format!("for {}", host.domains.join(", ")));
            for route in &host.routes {
                shown.push(TreeNode::new(words::route(route)));
            }
            branch.push(shown);
        }
        for route in routes.virtual_hosts.iter().flat_map(|host| &host.routes) {
            for cluster in words::clusters_of(route) {
                self.show_named(branch, ResourceType::Cluster, cluster, depth + 1);
            }
        }
    }

    fn cluster(&mut self, branch: &mut TreeNode, cluster: &Cluster, depth: usize) -> Result<(), String> {
        let head = std::mem::take(branch);
        *branch = head.with(None, words::cluster(cluster));
        if let Some(ClusterDiscoveryType::ClusterType(custom)) = &cluster.cluster_discovery_type
            && let Some(config) = &custom.typed_config
            && words::message_of(&config.type_url) == ClusterConfig::full_name()
        {
            let members: ClusterConfig = decoded(config)?;
            for member in &members.clusters {
                self.show_named(branch, ResourceType::Cluster, member, depth + 1);
            }
        }
        if let Some(eds) = &cluster.eds_cluster_config {
            let name = if eds.service_name.is_empty() { &cluster.name } else { &eds.service_name };
            self.show_named(branch, ResourceType::Endpoints, name, depth + 1);
        }
        if let Some(assignment) = &cluster.load_assignment {
            endpoints(branch, assignment);
        }
        Ok(())
    }
}

fn decoded<M: Message + Name + Default>(any: &Any) -> Result<M, String> {
    if words::message_of(&any.type_url) != M::full_name() {
        return Err(format!("expected {}, found {}", M::full_name(), words::message_of(&any.type_url)));
    }
    M::decode(&*any.value).map_err(|error| format!("cannot be decoded: {error}"))
}

fn endpoints(branch: &mut TreeNode, assignment: &ClusterLoadAssignment) {
    for locality in &assignment.endpoints {
        let mut shown = TreeNode::new(words::locality(locality));
        for endpoint in &locality.lb_endpoints {
            let style = if words::is_usable(endpoint) { TextStyle::Good } else { TextStyle::Warn };
            let health = words::health(endpoint).unwrap_or_default();
            shown.push(TreeNode::new(words::endpoint(endpoint)).with(style, health));
        }
        branch.push(shown);
    }
    let count: usize = assignment.endpoints.iter().map(|locality| locality.lb_endpoints.len()).sum();
    if count == 0 {
        branch.push(TreeNode::styled(TextStyle::Warn, "no endpoints"));
    }
    for drop in assignment.policy.iter().flat_map(|policy| &policy.drop_overloads) {
        branch.push(TreeNode::new(words::drops(&drop.category, drop.drop_percentage)));
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_proto::envoy::admin::v3::UpdateFailureState;
    use evenkeel_proto::envoy::config::cluster::v3::cluster::CustomClusterType;
    use evenkeel_proto::envoy::config::listener::v3::ApiListener;
    use evenkeel_proto::prost_types::Timestamp;

    use super::super::draw;
    use super::*;
    use crate::ui::{ColorMode, TerminalOutput};

    fn shown(resources: Vec<GenericXdsConfig>) -> String {
        let config = ClientConfig { generic_xds_configs: resources, ..ClientConfig::default() };
        draw::text(&[client(&config, SystemTime::now())], &TerminalOutput::new(ColorMode::Never), None)
    }

    fn resource<M: Name>(name: &str, message: &M) -> GenericXdsConfig {
        let any = Any { type_url: M::type_url(), value: message.encode_to_vec() };
        GenericXdsConfig {
            type_url: M::type_url(),
            name: name.to_owned(),
            xds_config: Some(any),
            client_status: ClientResourceStatus::Acked.into(),
            ..GenericXdsConfig::default()
        }
    }

    fn aggregate(name: &str, member: &str) -> GenericXdsConfig {
        let config = ClusterConfig { clusters: vec![member.to_owned()] };
        let config = Any { type_url: ClusterConfig::type_url(), value: config.encode_to_vec() };
        let kind = CustomClusterType { name: "aggregate".to_owned(), typed_config: Some(config) };
        let kind = Some(ClusterDiscoveryType::ClusterType(kind));
        resource(name, &Cluster { name: name.to_owned(), cluster_discovery_type: kind, ..Cluster::default() })
    }

    /// Cyclic and very deep aggregate clusters are shown once each.
    #[test]
    fn circles_and_chains_end() {
        let circle = shown(vec![aggregate("a", "b"), aggregate("b", "a")]);
        assert_eq!(circle.lines().count(), 3, "{circle}");
        let chain = (0..10_000).map(|i| aggregate(&format!("c{i}"), &format!("c{}", i + 1)));
        let chain = shown(chain.collect());
        assert_eq!(chain.lines().count(), 10_001);
        assert!(chain.lines().all(|line| line.chars().count() < 200));
    }

    /// A listener with an API listener is not shown as a server, even if it has an address (Istio).
    #[test]
    fn listeners_of_clients_are_no_servers() {
        let manager = HttpConnectionManager::default();
        let any = Any { type_url: HttpConnectionManager::type_url(), value: manager.encode_to_vec() };
        let server = Listener {
            name: "l".to_owned(),
            address: Some(testkit::resources::address("0.0.0.0", 80)),
            ..Listener::default()
        };
        let client =
            Listener { api_listener: Some(ApiListener { api_listener: Some(any) }), ..server.clone() };
        assert!(shown(vec![resource("l", &server)]).contains("a server on 0.0.0.0:80"));
        assert!(!shown(vec![resource("l", &client)]).contains("a server on"));
    }

    /// Unknown and malformed resources are reported.
    #[test]
    fn unknown_and_malformed_resources_are_reported() {
        let unknown = GenericXdsConfig {
            type_url: "type.googleapis.com/acme.v1.Thing".to_owned(),
            name: "thing".to_owned(),
            client_status: 99,
            last_updated: Some(Timestamp { seconds: i64::MAX, nanos: -1 }),
            ..GenericXdsConfig::default()
        };
        let mut garbled = resource("garbled", &Listener::default());
        garbled.xds_config = Some(Any { type_url: Listener::type_url(), value: vec![0xff; 9] });
        let mut swapped = resource("swapped", &Listener::default());
        swapped.xds_config = Some(Any { type_url: Cluster::type_url(), value: Vec::new() });
        let mut failed = resource("failed", &Cluster::default());
        failed.client_status = ClientResourceStatus::ReceivedError.into();
        failed.error_state = Some(UpdateFailureState {
            details: "first line\nsecond line".to_owned(),
            ..UpdateFailureState::default()
        });
        let shown = shown(vec![unknown, garbled, swapped, failed]);
        for line in [
            "acme.v1.Thing thing unknown state 99",
            "└─ cannot be decoded: ",
            "└─ expected envoy.config.listener.v3.Listener, found envoy.config.cluster.v3.Cluster",
            "RECEIVED_ERROR: still serving the one before",
            "├─ first line\n",
            "└─ second line\n",
        ] {
            assert!(shown.contains(line), "{line} in:\n{shown}");
        }
    }
}
