//! Scripted control plane, and the driver between it and a client.
//!
//! A story scripts the servers ([`ClientScript::accepts`], [`ClientScript::sends`], [`ClientScript::ends`],
//! ...) and the subscriptions. It reads the client's requests ([`ClientScript::requests`]) and the state that
//! subscribers see ([`ClientScript::sees`]). All of it is text:
//!
//! ```text
//! "a=1"                              the resource a with the content 1; content that starts with "bad" is rejected
//! "cluster [a b] v1 n1 as me"        a request for a and b, with version, nonce and node
//! "cluster [a] v1 n2 !text"          a NACK
//! "cluster +a b -c {d:1} n1"         the same in the delta variant, with known versions
//! "1", "1 ~text", "!Code: text", ""  a resource, one with an ambient error, none, nothing known yet
//! ```
//!
//! Requests are written at once and subscribers process changes at once, unless the story delays them. The
//! driver checks its contract: one request in flight, one message read at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::cluster::EndpointSet;
use evenkeel_core::{Instant, Rng, Status};
use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::config::core::v3::Node;
use evenkeel_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
use evenkeel_proto::envoy::config::listener::v3::Listener;
use evenkeel_proto::envoy::config::route::v3::route::Action;
use evenkeel_proto::envoy::config::route::v3::route_action::ClusterSpecifier;
use evenkeel_proto::envoy::config::route::v3::{RouteAction, RouteConfiguration};
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::HttpConnectionManager;
use evenkeel_proto::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use evenkeel_proto::envoy::service::discovery::v3::{
    DeltaDiscoveryResponse, DiscoveryResponse, Resource as Wrapper, ResourceError, ResourceName,
};
use evenkeel_proto::google::rpc;
use evenkeel_proto::prost::Message;
use evenkeel_proto::prost_types::Any;
use evenkeel_xds::bootstrap::{AuthorityConfig, Bootstrap, ServerConfig, ServerFeatures};
use evenkeel_xds::ads::{AdsClient, AdsEffect, AdsEvent, ParseResource, AdsRequest, AdsStreamId, SubscriberId, XdsVariant};
use evenkeel_xds::resource::{ParsedResource, RejectedResource, Resource, ResourceType};
use evenkeel_xds::{FieldPath, ValidationErrors};
use testkit::resources;

/// Client with its driver and its control planes.
pub(crate) struct ClientScript {
    pub(crate) client: AdsClient,
    pub(crate) now: Instant,
    pub(crate) variant: XdsVariant,
    /// True if requests stay in flight until [`ClientScript::write`].
    pub(crate) holds_writes: bool,
    /// True if subscribers process changes only in [`ClientScript::process`].
    pub(crate) holds_changes: bool,
    links: BTreeMap<String, ScriptStream>,
    requests: BTreeMap<String, Vec<String>>,
    opened: Vec<String>,
    log: Vec<String>,
    changed: BTreeSet<SubscriberId>,
    unprocessed: BTreeSet<SubscriberId>,
    nonces: u64,
}

/// State of a stream in the driver.
#[derive(Debug)]
struct ScriptStream {
    stream: AdsStreamId,
    open: bool,
    reads: bool,
    in_flight: Option<Box<AdsRequest>>,
    /// Subscription as the server knows it.
    told: BTreeSet<(ResourceType, String)>,
}

/// Returns the config of a server.
pub(crate) fn server(uri: &str, features: ServerFeatures) -> Arc<ServerConfig> {
    Arc::new(ServerConfig { features, ..ServerConfig::insecure(uri) })
}

/// Returns a bootstrap with these servers, for the node "me".
pub(crate) fn bootstrap(servers: &[&str]) -> Bootstrap {
    Bootstrap {
        servers: servers.iter().map(|uri| server(uri, ServerFeatures::default())).collect(),
        node: Node { id: "me".to_owned(), ..Node::default() },
        authorities: BTreeMap::new(),
        certificate_providers: BTreeMap::new(),
        client_default_listener_resource_name_template: "%s".to_owned(),
        server_listener_resource_name_template: None,
        ignored: Vec::new(),
    }
}

/// Returns a bootstrap with one server that has these features.
pub(crate) fn bootstrap_with(features: ServerFeatures) -> Bootstrap {
    Bootstrap { servers: vec![server("one", features)], ..bootstrap(&[]) }
}

/// Returns an authority with its own servers.
pub(crate) fn authority(servers: &[&str]) -> AuthorityConfig {
    AuthorityConfig {
        servers: servers.iter().map(|uri| server(uri, ServerFeatures::default())).collect(),
        client_listener_resource_name_template: String::new(),
    }
}

/// Returns a resource from `name=content`.
pub(crate) fn resource(kind: ResourceType, text: &str) -> Any {
    let (name, content) = text.split_once('=').expect("name=content");
    match kind {
        ResourceType::Listener => resources::any(&resources::listener_with_rds(name, content)),
        ResourceType::RouteConfig => resources::any(&resources::route_config(name, content)),
        ResourceType::Cluster => {
            let mut cluster = resources::cluster(name);
            if let Some(eds) = &mut cluster.eds_cluster_config {
                content.clone_into(&mut eds.service_name);
            }
            resources::any(&cluster)
        }
        ResourceType::Endpoints => {
            let mut assignment = resources::load_assignment(name, &["10.0.0.1:80"]);
            for group in &mut assignment.endpoints {
                content.clone_into(&mut group.locality.get_or_insert_default().zone);
            }
            resources::any(&assignment)
        }
    }
}

/// Parser for the output of [`resource`]. For every type, it stores the content as the note of an endpoint
/// set.
#[derive(Debug)]
pub(crate) struct MarkParser;

impl ParseResource for MarkParser {
    fn parse(
        &self,
        kind: ResourceType,
        any: &Any,
        _: &ServerConfig,
    ) -> Result<ParsedResource, RejectedResource> {
        fn read<M: Message + Default>(any: &Any) -> Result<M, RejectedResource> {
            M::decode(&*any.value).map_err(|_| RejectedResource {
                name: None,
                problems: ValidationErrors::one(&FieldPath::root(), "cannot be decoded"),
            })
        }
        let (name, content) = match kind {
            ResourceType::Listener => {
                let listener: Listener = read(any)?;
                let manager = listener.api_listener.and_then(|api| api.api_listener).unwrap_or_default();
                let manager: HttpConnectionManager = read(&manager)?;
                match manager.route_specifier {
                    Some(RouteSpecifier::Rds(rds)) => (listener.name, rds.route_config_name),
                    other => (listener.name, format!("{other:?}")),
                }
            }
            ResourceType::RouteConfig => {
                let routes: RouteConfiguration = read(any)?;
                let route = routes.virtual_hosts.into_iter().flat_map(|host| host.routes).next();
                match route.and_then(|route| route.action) {
                    Some(Action::Route(RouteAction {
                        cluster_specifier: Some(ClusterSpecifier::Cluster(cluster)),
                        ..
                    })) => (routes.name, cluster),
                    other => (routes.name, format!("{other:?}")),
                }
            }
            ResourceType::Cluster => {
                let cluster: Cluster = read(any)?;
                (cluster.name, cluster.eds_cluster_config.unwrap_or_default().service_name)
            }
            ResourceType::Endpoints => {
                let assignment: ClusterLoadAssignment = read(any)?;
                let zone = assignment.endpoints.into_iter().next().and_then(|group| group.locality);
                (assignment.cluster_name, zone.unwrap_or_default().zone)
            }
        };
        if content.starts_with("bad") {
            let problems =
                ValidationErrors::one(&FieldPath::root().field("content"), format!("is {content}"));
            return Err(RejectedResource { name: Some(name), problems });
        }
        let odd = content.split_whitespace().filter(|word| word.starts_with("odd"));
        let warnings = odd.map(|word| format!("content: {word} is ignored")).collect();
        let note = Some(content.as_str().into());
        let resource = Resource::Endpoints(Arc::new(EndpointSet { note, ..EndpointSet::default() }));
        Ok(ParsedResource { name, resource, warnings })
    }
}

/// Builder of a response of either variant.
#[derive(Debug)]
pub(crate) struct ScriptResponse {
    type_url: String,
    version: String,
    items: Vec<(String, Any)>,
    removed: Vec<String>,
    errors: Vec<ResourceError>,
}

/// Returns a response with resources, each as `name=content`.
pub(crate) fn reply(kind: ResourceType, version: &str, items: &[&str]) -> ScriptResponse {
    let named = |text: &&str| (text.split('=').next().unwrap_or(text).to_owned(), resource(kind, text));
    ScriptResponse {
        type_url: kind.type_url().to_owned(),
        version: version.to_owned(),
        items: items.iter().map(named).collect(),
        removed: Vec::new(),
        errors: Vec::new(),
    }
}

impl ScriptResponse {
    /// Adds an arbitrary resource.
    pub(crate) fn with(mut self, name: &str, any: Any) -> ScriptResponse {
        self.items.push((name.to_owned(), any));
        self
    }

    /// Puts every resource into a wrapper with this name.
    pub(crate) fn wrapped_as(mut self, name: &str) -> ScriptResponse {
        for (_, any) in &mut self.items {
            let wrapper =
                Wrapper { name: name.to_owned(), resource: Some(any.clone()), ..Wrapper::default() };
            *any = resources::any(&wrapper);
        }
        self
    }

    /// Removes resources. Only the delta variant encodes it.
    pub(crate) fn removing(mut self, names: &[&str]) -> ScriptResponse {
        self.removed = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    /// Adds the error of a resource (TP3).
    pub(crate) fn error(mut self, name: &str, code: i32, message: &str) -> ScriptResponse {
        self.errors.push(ResourceError {
            resource_name: Some(ResourceName { name: name.to_owned() }),
            error_detail: Some(rpc::Status { code, message: message.to_owned(), details: Vec::new() }),
        });
        self
    }

    /// Sets a type URL that differs from that of the resources.
    pub(crate) fn of_type(mut self, type_url: &str) -> ScriptResponse {
        type_url.clone_into(&mut self.type_url);
        self
    }

    fn encode(self, variant: XdsVariant, nonce: String) -> Vec<u8> {
        let ScriptResponse { type_url, version, items, removed, errors } = self;
        match variant {
            XdsVariant::StateOfTheWorld => DiscoveryResponse {
                version_info: version,
                resources: items.into_iter().map(|(_, any)| any).collect(),
                type_url,
                nonce,
                resource_errors: errors,
                ..DiscoveryResponse::default()
            }
            .encode_to_vec(),
            XdsVariant::Delta => {
                let wrap = |(name, any): (String, Any)| Wrapper {
                    name,
                    version: version.clone(),
                    resource: Some(any),
                    ..Wrapper::default()
                };
                DeltaDiscoveryResponse {
                    system_version_info: version.clone(),
                    resources: items.into_iter().map(wrap).collect(),
                    type_url,
                    removed_resources: removed,
                    nonce,
                    resource_errors: errors,
                    ..DeltaDiscoveryResponse::default()
                }
                .encode_to_vec()
            }
        }
    }
}

/// Events of the script.
impl ClientScript {
    /// Creates a state-of-the-world client with [`MarkParser`].
    pub(crate) fn new(bootstrap: Bootstrap) -> ClientScript {
        ClientScript::with(bootstrap, MarkParser, XdsVariant::StateOfTheWorld)
    }

    /// Creates a client of the delta variant.
    pub(crate) fn delta(bootstrap: Bootstrap) -> ClientScript {
        ClientScript::with(bootstrap, MarkParser, XdsVariant::Delta)
    }

    /// Creates a client of these servers with this random seed.
    pub(crate) fn seeded(seed: u64, servers: &[&str]) -> ClientScript {
        let mut world = ClientScript::new(bootstrap(servers));
        let rng = Rng::fixed(seed);
        world.client =
            AdsClient::new(Arc::new(bootstrap(servers)), MarkParser, XdsVariant::StateOfTheWorld, rng);
        world
    }

    /// Creates a client with any parser and variant.
    pub(crate) fn with(
        bootstrap: Bootstrap,
        parser: impl ParseResource + Send + Sync + 'static,
        variant: XdsVariant,
    ) -> ClientScript {
        ClientScript {
            client: AdsClient::new(Arc::new(bootstrap), parser, variant, Rng::fixed(1)),
            now: Instant::ORIGIN,
            variant,
            holds_writes: false,
            holds_changes: false,
            links: BTreeMap::new(),
            requests: BTreeMap::new(),
            opened: Vec::new(),
            log: Vec::new(),
            changed: BTreeSet::new(),
            unprocessed: BTreeSet::new(),
            nonces: 0,
        }
    }

    /// Sets the grace period of deleted resources.
    pub(crate) fn deletion_grace(mut self, grace: Duration) -> ClientScript {
        self.client = self.client.with_deletion_grace(grace);
        self
    }

    /// Adds a subscriber to these resources.
    pub(crate) fn channel(&mut self, names: &[(ResourceType, &str)]) -> SubscriberId {
        let id = self.client.add_subscriber();
        self.wants(id, names);
        id
    }

    pub(crate) fn wants(&mut self, id: SubscriberId, names: &[(ResourceType, &str)]) {
        let names = names.iter().map(|(kind, name)| (*kind, (*name).to_owned())).collect();
        self.client.watch(id, names, self.now);
        self.run();
    }

    pub(crate) fn leaves(&mut self, id: SubscriberId) {
        self.client.remove_subscriber(id, self.now);
        self.unprocessed.remove(&id);
        self.changed.remove(&id);
        self.run();
    }

    /// Accepts the stream on this server.
    pub(crate) fn accepts(&mut self, server: &str) {
        let link = self.links.get_mut(server).expect("the client dials this server");
        assert!(!link.open, "{server} has accepted already");
        link.open = true;
        let stream = link.stream;
        self.client.handle(AdsEvent::Opened { stream }, self.now);
        self.run();
    }

    /// Refuses the connection of the client.
    pub(crate) fn refuses(&mut self, server: &str) {
        assert!(!self.link(server).open, "{server} has accepted");
        self.ends(server, "connection refused");
    }

    /// Ends the stream with UNAVAILABLE.
    pub(crate) fn ends(&mut self, server: &str, message: &str) {
        let stream = self.links.remove(server).expect("a stream").stream;
        self.client.handle(AdsEvent::Closed { stream, status: Status::unavailable(message) }, self.now);
        self.run();
    }

    /// Sends a response and returns its nonce.
    pub(crate) fn sends(&mut self, server: &str, reply: ScriptResponse) -> String {
        self.nonces += 1;
        let nonce = format!("n{}", self.nonces);
        let bytes = reply.encode(self.variant, nonce.clone());
        self.sends_bytes(server, &bytes);
        nonce
    }

    /// Sends arbitrary bytes on the stream.
    pub(crate) fn sends_bytes(&mut self, server: &str, bytes: &[u8]) {
        let link = self.links.get_mut(server).expect("a stream");
        assert!(link.reads, "the client does not read from {server}");
        link.reads = false;
        let stream = link.stream;
        self.client.handle(AdsEvent::Message { stream, bytes }, self.now);
        self.run();
    }

    /// Reports a protocol error of the driver for the server's message.
    pub(crate) fn refuses_response(&mut self, server: &str, why: &str) {
        let stream = self.links.get(server).expect("a stream").stream;
        self.client.handle(AdsEvent::ProtocolError { stream, why }, self.now);
        self.run();
    }

    /// Completes the write of the request in flight.
    pub(crate) fn write(&mut self, server: &str) {
        let link = self.links.get_mut(server).expect("a stream");
        let request = link.in_flight.take().unwrap_or_else(|| panic!("nothing is under way to {server}"));
        link.hear(&request);
        let stream = link.stream;
        self.client.handle(AdsEvent::Written { stream }, self.now);
        self.run();
    }

    /// Marks the changes of a subscriber as processed.
    pub(crate) fn process(&mut self, id: SubscriberId) {
        assert!(self.unprocessed.remove(&id), "nothing changed for {id:?}");
        self.client.processed(id);
        self.run();
    }

    /// Advances the time and handles every deadline on the way.
    pub(crate) fn passes(&mut self, wait: Duration) {
        let until = self.now + wait;
        while let Some(at) = self.client.next_deadline().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.client.handle_time(self.now);
            self.run();
            let next = self.client.next_deadline();
            assert!(next.is_none_or(|next| next > self.now), "a deadline stays after it was handled");
        }
        self.now = until;
    }

    /// Advances the time by `wait` less one nanosecond.
    pub(crate) fn nearly_passes(&mut self, wait: Duration) {
        self.passes(wait.saturating_sub(Duration::from_nanos(1)));
    }

    /// Advances the time until the client dials this server again.
    pub(crate) fn redials(&mut self, server: &str) {
        while !self.links.contains_key(server) {
            let at = self.client.next_deadline().expect("another attempt");
            self.passes(at.since(self.now));
        }
    }

    /// Performs the effects that the client returns.
    fn run(&mut self) {
        loop {
            while let Some(effect) = self.client.poll_effect() {
                self.carry_out(effect);
            }
            let ready = self.links.iter().find(|(_, link)| link.in_flight.is_some() && !self.holds_writes);
            if let Some((server, _)) = ready {
                let server = server.clone();
                self.write(&server);
                continue;
            }
            let Some((id, _)) = self.client.poll_changed() else { return };
            self.changed.insert(id);
            self.unprocessed.insert(id);
            if !self.holds_changes {
                self.process(id);
            }
        }
    }

    fn carry_out(&mut self, effect: AdsEffect) {
        match effect {
            AdsEffect::Open { stream, server, variant } => {
                assert_eq!(variant, self.variant);
                let uri = server.uri.as_ref().to_owned();
                let link = ScriptStream {
                    stream,
                    open: false,
                    reads: false,
                    in_flight: None,
                    told: BTreeSet::new(),
                };
                assert!(self.links.insert(uri.clone(), link).is_none(), "two streams to {uri}");
                self.opened.push(uri);
            }
            AdsEffect::Send { stream, request } => {
                let (uri, link) = self.link_of(stream);
                assert!(link.open && link.in_flight.is_none(), "{link:?}");
                let (uri, text) = (uri.clone(), show(&request));
                link.in_flight = Some(request);
                self.requests.entry(uri).or_default().push(text);
            }
            AdsEffect::Read { stream } => {
                let (_, link) = self.link_of(stream);
                assert!(link.open && !link.reads, "{link:?}");
                link.reads = true;
            }
            AdsEffect::Close { stream } => {
                let uri = self.link_of(stream).0.clone();
                self.links.remove(&uri);
                self.log.push(format!("closes {uri}"));
            }
            AdsEffect::Warn(text) => self.log.push(format!("warning: {text}")),
            AdsEffect::Info(text) => self.log.push(format!("info: {text}")),
        }
    }

    fn link_of(&mut self, stream: AdsStreamId) -> (&String, &mut ScriptStream) {
        self.links.iter_mut().find(|(_, link)| link.stream == stream).expect("a stream that is known")
    }

    fn link(&self, server: &str) -> &ScriptStream {
        self.links.get(server).unwrap_or_else(|| panic!("no stream to {server}"))
    }
}

/// Queries about the client.
impl ClientScript {
    /// Takes the requests that a server received.
    pub(crate) fn requests(&mut self, server: &str) -> Vec<String> {
        self.requests.remove(server).unwrap_or_default()
    }

    /// Takes the names of the dialled servers.
    pub(crate) fn dialled(&mut self) -> Vec<String> {
        std::mem::take(&mut self.opened)
    }

    /// Takes warnings, notes and closed streams.
    pub(crate) fn log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }

    /// Takes the subscribers with changes.
    pub(crate) fn changed(&mut self) -> Vec<SubscriberId> {
        std::mem::take(&mut self.changed).into_iter().collect()
    }

    /// Returns the servers with a stream, open or opening.
    pub(crate) fn streams(&self) -> Vec<&str> {
        self.links.keys().map(String::as_str).collect()
    }

    /// Returns true if a stream to this server is open.
    pub(crate) fn is_open(&self, server: &str) -> bool {
        self.links.get(server).is_some_and(|link| link.open)
    }

    /// Returns true if the client reads from this server.
    pub(crate) fn reads(&self, server: &str) -> bool {
        self.links.get(server).is_some_and(|link| link.reads)
    }

    /// Returns true if a request to this server is in flight.
    pub(crate) fn is_writing(&self, server: &str) -> bool {
        self.links.get(server).is_some_and(|link| link.in_flight.is_some())
    }

    /// Returns the subscription as a server knows it.
    pub(crate) fn told(&self, server: &str) -> BTreeSet<(ResourceType, String)> {
        self.links.get(server).map(|link| link.told.clone()).unwrap_or_default()
    }

    /// Returns the subscription after the request in flight.
    pub(crate) fn will_be_told(&self, server: &str) -> BTreeSet<(ResourceType, String)> {
        let Some(link) = self.links.get(server) else { return BTreeSet::new() };
        let mut copy = ScriptStream { in_flight: None, told: link.told.clone(), ..*link };
        if let Some(request) = &link.in_flight {
            copy.hear(request);
        }
        copy.told
    }

    /// Returns the subscribers with unprocessed changes.
    pub(crate) fn unprocessed(&self) -> Vec<SubscriberId> {
        self.unprocessed.iter().copied().collect()
    }

    /// Returns the id of the stream to a server, for events that a correct driver would not send.
    pub(crate) fn stream(&self, server: &str) -> AdsStreamId {
        self.link(server).stream
    }

    /// Returns the state of a resource as text.
    pub(crate) fn sees(&self, kind: ResourceType, name: &str) -> String {
        let seen = self.client.resource_state(kind, name);
        let value = match seen.value {
            None => String::new(),
            Some(Ok(Resource::Endpoints(set))) => set.note.as_deref().unwrap_or_default().to_owned(),
            Some(Ok(other)) => format!("{other:?}"),
            Some(Err(status)) => format!("!{status}"),
        };
        seen.ambient.map_or(value.clone(), |ambient| format!("{value} ~{ambient}"))
    }
}

impl ScriptStream {
    /// Records a request that the server received.
    fn hear(&mut self, request: &AdsRequest) {
        match request {
            AdsRequest::Sotw(request) => {
                let kind = ResourceType::from_type_url(&request.type_url).expect("a known type");
                self.told.retain(|(told, _)| *told != kind);
                self.told.extend(request.resource_names.iter().map(|name| (kind, name.clone())));
            }
            AdsRequest::Delta(request) => {
                let kind = ResourceType::from_type_url(&request.type_url).expect("a known type");
                for name in &request.resource_names_unsubscribe {
                    assert!(self.told.remove(&(kind, name.clone())), "{name} was not subscribed");
                }
                for name in &request.resource_names_subscribe {
                    assert!(self.told.insert((kind, name.clone())), "{name} is subscribed twice");
                }
            }
        }
    }
}

fn show(request: &AdsRequest) -> String {
    let list = |names: &[String]| names.join(" ");
    let mut text;
    let (node, nonce, error) = match request {
        AdsRequest::Sotw(request) => {
            text = format!("{} [{}]", short(&request.type_url), list(&request.resource_names));
            if !request.version_info.is_empty() {
                let _ = write!(text, " v{}", request.version_info);
            }
            (&request.node, &request.response_nonce, &request.error_detail)
        }
        AdsRequest::Delta(request) => {
            text = short(&request.type_url);
            for (sign, names) in
                [('+', &request.resource_names_subscribe), ('-', &request.resource_names_unsubscribe)]
            {
                if !names.is_empty() {
                    let _ = write!(text, " {sign}{}", list(names));
                }
            }
            let known: BTreeMap<_, _> = request.initial_resource_versions.iter().collect();
            if !known.is_empty() {
                let known: Vec<String> = known.iter().map(|(name, v)| format!("{name}:{v}")).collect();
                let _ = write!(text, " {{{}}}", known.join(" "));
            }
            (&request.node, &request.response_nonce, &request.error_detail)
        }
    };
    if !nonce.is_empty() {
        let _ = write!(text, " {nonce}");
    }
    if let Some(node) = node {
        let _ = write!(text, " as {}", node.id);
    }
    if let Some(error) = error {
        assert_eq!(error.code, 3, "a NACK is INVALID_ARGUMENT");
        let _ = write!(text, " !{}", error.message);
    }
    text
}

fn short(type_url: &str) -> String {
    ResourceType::from_type_url(type_url).expect("a known type").to_string()
}
