//! A control plane: a real ADS server, in both variants, and a sink of load reports.
//!
//! It holds resources and sends them to whoever subscribes, as the xDS protocol says: at once what exists, later what
//! changes. What a stream is sent follows from what is held and what that stream was told, so a change that comes while
//! nobody listens is sent when somebody does. Resources, versions, knobs and records outlive a kill.

mod streams;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_proto::envoy::config::cluster::v3::Cluster;
use evenkeel_proto::envoy::config::endpoint::v3::{ClusterLoadAssignment, ClusterStats};
use evenkeel_proto::envoy::config::listener::v3::Listener;
use evenkeel_proto::envoy::config::route::v3::RouteConfiguration;
use evenkeel_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use evenkeel_proto::prost::Name;
use evenkeel_proto::prost_types::Any;
use serde_json::json;
use tokio::sync::Notify;
use tonic::transport::Server;

use super::discovery::aggregated_discovery_service_server::AggregatedDiscoveryServiceServer;
use super::host::{Both, Host};
use super::load_stats::load_reporting_service_server::LoadReportingServiceServer;
use super::{Tls, wait_until};
use crate::resources;

/// A kind of resource that is sent on its own.
pub trait Resource: Name {
    /// What clients subscribe to.
    fn resource_name(&self) -> &str;
}

impl Resource for Listener {
    fn resource_name(&self) -> &str {
        &self.name
    }
}

impl Resource for RouteConfiguration {
    fn resource_name(&self) -> &str {
        &self.name
    }
}

impl Resource for Cluster {
    fn resource_name(&self) -> &str {
        &self.name
    }
}

impl Resource for ClusterLoadAssignment {
    fn resource_name(&self) -> &str {
        &self.cluster_name
    }
}

/// A real ADS server on a real port. It dies when dropped.
pub struct ControlPlane {
    host: Host,
    shared: Arc<Shared>,
}

impl ControlPlane {
    /// A control plane without resources, on a free port of 127.0.0.1.
    pub async fn start() -> ControlPlane {
        ControlPlane::start_on(None).await
    }

    /// The same with TLS.
    pub async fn start_with_tls(tls: Tls) -> ControlPlane {
        ControlPlane::start_on(Some(tls)).await
    }

    async fn start_on(tls: Option<Tls>) -> ControlPlane {
        let changed = Arc::new(Notify::new());
        let shared = Arc::new(Shared { state: Mutex::new(State::new()), changed: Arc::clone(&changed) });
        let host = match Host::reserve(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), tls.as_ref(), changed) {
            Ok(host) => host,
            Err(error) => panic!("no control plane: {error}"),
        };
        let control = ControlPlane { host, shared };
        control.restart().await;
        control
    }

    /// Where it listens. It stays the same over restarts, and nobody else gets it.
    pub fn address(&self) -> SocketAddr {
        self.host.address()
    }

    /// A bootstrap with this server, without TLS.
    pub fn bootstrap(&self, node_id: &str) -> String {
        json!({
            "xds_servers": [{
                "server_uri": self.address().to_string(),
                "channel_creds": [{ "type": "insecure" }],
                "server_features": ["xds_v3"],
            }],
            "node": { "id": node_id },
        })
        .to_string()
    }

    /// Dies at once: connections are reset, and who dials is refused.
    pub fn kill(&self) {
        self.host.kill();
    }

    /// Serves again on the same address.
    pub async fn restart(&self) {
        let streams = streams::Streams { shared: Arc::clone(&self.shared) };
        let ads = AggregatedDiscoveryServiceServer::new(streams.clone());
        let lrs = LoadReportingServiceServer::new(streams);
        if let Err(error) = self.host.start(Server::builder(), Both(ads, lrs)).await {
            panic!("the control plane cannot serve on {}: {error}", self.address());
        }
    }

    /// Holds this resource, new or in place of the one with its name.
    pub fn set(&self, resource: impl Resource) {
        self.update(|resources| resources.set(resource));
    }

    /// Holds these bytes under this name, whatever they are: what cannot be decoded, or is of another type.
    pub fn set_raw<T: Resource>(&self, name: &str, resource: Any) {
        self.update(|resources| resources.set_raw::<T>(name, resource));
    }

    /// Holds endpoints of a cluster, all in one locality.
    pub fn set_endpoints(&self, cluster: &str, addresses: &[SocketAddr]) {
        self.update(|resources| resources.set_endpoints(cluster, addresses));
    }

    /// Holds this resource no longer.
    pub fn remove<T: Resource>(&self, name: &str) {
        self.update(|resources| resources.remove::<T>(name));
    }

    /// Holds all that `service` needs; see [`Resources::serve`].
    pub fn serve(&self, service: &str, cluster: &str, addresses: &[SocketAddr]) {
        self.update(|resources| resources.serve(service, cluster, addresses));
    }

    /// Changes several resources before anything is sent.
    pub fn update(&self, change: impl FnOnce(&mut Resources)) {
        self.change(|state| {
            state.resources.touched.clear();
            change(&mut state.resources);
        });
    }

    /// Reads and answers nothing, or does so again. What was held back is sent then.
    pub fn silent(&self, silent: bool) {
        self.change(|state| state.silent = silent);
    }

    /// From here on refuses ADS streams while one is open, as Istio's agent does.
    pub fn only_one_stream(&self) {
        self.change(|state| state.only_one_stream = true);
    }

    /// Ends all open ADS streams with status OK. Clients may open others.
    pub fn close_streams(&self) {
        self.change(|state| state.closed = state.streams);
    }

    /// How often clients are to report load. One second unless set.
    pub fn lrs_interval(&self, interval: Duration) {
        self.change(|state| state.lrs_interval = interval);
    }

    /// From here on answers load reporting streams with UNIMPLEMENTED.
    pub fn lrs_unimplemented(&self) {
        self.change(|state| state.lrs_unimplemented = true);
    }

    /// Connections that were accepted.
    pub fn connections(&self) -> usize {
        self.host.accepted()
    }

    /// Connections that are open.
    pub fn open_connections(&self) -> usize {
        self.host.open()
    }

    /// ADS streams that were opened, of both variants, refused ones too.
    pub fn streams(&self) -> usize {
        self.shared.lock().streams
    }

    /// ADS streams that are open.
    pub fn open_streams(&self) -> usize {
        self.shared.lock().open_streams
    }

    /// Everything that clients said in the state-of-the-world variant.
    pub fn requests(&self) -> Vec<DiscoveryRequest> {
        self.shared.lock().requests.clone()
    }

    /// Everything that clients said in the delta variant.
    pub fn delta_requests(&self) -> Vec<DeltaDiscoveryRequest> {
        self.shared.lock().delta_requests.clone()
    }

    /// What open streams are subscribed to, of this type.
    pub fn subscribed<T: Resource>(&self) -> BTreeSet<String> {
        let state = self.shared.lock();
        let of_type = state.subscribed.iter().filter(|((_, type_url), _)| *type_url == T::type_url());
        of_type.flat_map(|(_, names)| names.iter().cloned()).collect()
    }

    /// The version of this type: how often it changed.
    pub fn version<T: Resource>(&self) -> u64 {
        self.shared.lock().resources.kind(&T::type_url()).version
    }

    /// The latest version of this type that a client accepted; 0 if none.
    pub fn acked<T: Resource>(&self) -> u64 {
        self.shared.lock().acked.get(&T::type_url()).copied().unwrap_or_default()
    }

    /// What clients rejected: type URL and error.
    pub fn nacks(&self) -> Vec<(String, String)> {
        self.shared.lock().nacks.clone()
    }

    /// Load reporting streams that were opened, refused ones too.
    pub fn lrs_streams(&self) -> usize {
        self.shared.lock().lrs_streams
    }

    /// What clients reported, in the order in which it came.
    pub fn load_reports(&self) -> Vec<ClusterStats> {
        self.shared.lock().load_reports.clone()
    }

    /// Waits until a client has accepted the version that this type has now. Somebody must subscribe to what
    /// changed last, or it is never sent.
    pub async fn wait_acked<T: Resource>(&self) {
        let version = self.version::<T>();
        self.wait_until(|control| control.acked::<T>() >= version).await;
    }

    /// Waits until something is as the test wants it. Panics if that takes longer than anything takes.
    pub async fn wait_until(&self, condition: impl Fn(&ControlPlane) -> bool) {
        let records = || {
            let state = self.shared.lock();
            format!(
                "control plane: {} streams, {} open; subscribed: {:?}; acked: {:?}; nacks: {:?}",
                state.streams, state.open_streams, state.subscribed, state.acked, state.nacks
            )
        };
        wait_until(&self.shared.changed, || condition(self).then_some(()), records).await;
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.shared.lock());
        self.shared.changed.notify_waiters();
    }
}

/// What a control plane holds. Every type has a version that goes up with each update that touches it.
#[derive(Default)]
pub struct Resources {
    kinds: BTreeMap<String, Kind>,
    /// The types that this update has touched.
    touched: BTreeSet<String>,
}

impl Resources {
    /// Holds this resource, new or in place of the one with its name.
    // By value: callers make what they set.
    #[allow(clippy::needless_pass_by_value)]
    pub fn set<T: Resource>(&mut self, resource: T) {
        self.set_raw::<T>(resource.resource_name(), resources::any(&resource));
    }

    /// Holds these bytes under this name, whatever they are.
    pub fn set_raw<T: Resource>(&mut self, name: &str, resource: Any) {
        let kind = self.touch::<T>();
        kind.held.insert(name.to_owned(), Held { version: kind.version, resource });
    }

    /// Holds endpoints of a cluster, all in one locality.
    pub fn set_endpoints(&mut self, cluster: &str, addresses: &[SocketAddr]) {
        let addresses: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
        let addresses: Vec<_> = addresses.iter().map(String::as_str).collect();
        self.set(resources::load_assignment(cluster, &addresses));
    }

    /// Holds this resource no longer.
    pub fn remove<T: Resource>(&mut self, name: &str) {
        self.touch::<T>().held.remove(name);
    }

    /// Holds a listener `service`, its routes under the same name, a `cluster` that all calls go to, and its endpoints.
    pub fn serve(&mut self, service: &str, cluster: &str, addresses: &[SocketAddr]) {
        self.set(resources::listener_with_rds(service, service));
        self.set(resources::route_config(service, cluster));
        self.set(resources::cluster(cluster));
        self.set_endpoints(cluster, addresses);
    }

    fn touch<T: Resource>(&mut self) -> &mut Kind {
        let kind = self.kinds.entry(T::type_url()).or_default();
        if self.touched.insert(T::type_url()) {
            kind.version += 1;
        }
        kind
    }

    fn kind(&self, type_url: &str) -> &Kind {
        const NONE: &Kind = &Kind { version: 0, held: BTreeMap::new() };
        self.kinds.get(type_url).unwrap_or(NONE)
    }
}

/// The resources of one type by name.
#[derive(Default)]
struct Kind {
    version: u64,
    held: BTreeMap<String, Held>,
}

struct Held {
    /// That of its type when it was set.
    version: u64,
    resource: Any,
}

struct Shared {
    state: Mutex<State>,
    changed: Arc<Notify>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A test that panics in a closure is reported by itself.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct State {
    resources: Resources,

    silent: bool,
    only_one_stream: bool,
    /// Streams up to this number are to end.
    closed: usize,
    lrs_interval: Duration,
    lrs_unimplemented: bool,

    streams: usize,
    open_streams: usize,
    /// By stream and type.
    subscribed: BTreeMap<(usize, String), BTreeSet<String>>,
    requests: Vec<DiscoveryRequest>,
    delta_requests: Vec<DeltaDiscoveryRequest>,
    acked: BTreeMap<String, u64>,
    nacks: Vec<(String, String)>,
    lrs_streams: usize,
    load_reports: Vec<ClusterStats>,
}

impl State {
    fn new() -> State {
        State {
            resources: Resources::default(),
            silent: false,
            only_one_stream: false,
            closed: 0,
            lrs_interval: Duration::from_secs(1),
            lrs_unimplemented: false,
            streams: 0,
            open_streams: 0,
            subscribed: BTreeMap::new(),
            requests: Vec::new(),
            delta_requests: Vec::new(),
            acked: BTreeMap::new(),
            nacks: Vec::new(),
            lrs_streams: 0,
            load_reports: Vec::new(),
        }
    }
}
