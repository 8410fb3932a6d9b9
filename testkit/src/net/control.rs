//! Control plane of tests: a [`SnapshotCache`] on a port that survives kills.
//!
//! `evenkeel-control` implements ADS and LRS. This module serves its cache on a thread of its own, with TLS if needed,
//! and counts connections. Resources, versions, fault modes and the record of requests outlive a kill. A response of a
//! type is sent after the client has ACKed or NACKed the previous one. Resources with the same bytes are not sent again.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_control::{ClientRequest, FaultModes, SnapshotCache};
pub use evenkeel_control::{NamedResource, ResourceSet};
use evenkeel_proto::envoy::config::endpoint::v3::ClusterStats;
use evenkeel_proto::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use evenkeel_proto::prost_types::Any;
use serde_json::json;
use tokio::sync::Notify;
use tonic::transport::Server;

use super::host::Host;
use super::{LONG, Tls};
use crate::resources;

/// ADS and LRS server on a port of 127.0.0.1. Dropping it kills it.
pub struct ControlPlane {
    host: Host,
    /// Notified when connections open and close.
    connections_changed: Arc<Notify>,
    cache: SnapshotCache,
}

impl ControlPlane {
    /// Starts a control plane without resources on a free port. Clients report load every second.
    pub async fn start() -> ControlPlane {
        ControlPlane::start_on(None).await
    }

    /// Starts a control plane with TLS.
    pub async fn start_with_tls(tls: Tls) -> ControlPlane {
        ControlPlane::start_on(Some(tls)).await
    }

    async fn start_on(tls: Option<Tls>) -> ControlPlane {
        let connections_changed = Arc::new(Notify::new());
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let host = match Host::reserve(address, tls.as_ref(), Arc::clone(&connections_changed)) {
            Ok(host) => host,
            Err(error) => panic!("no control plane: {error}"),
        };
        let cache = SnapshotCache::new();
        cache.record_requests();
        cache.set_lrs_interval(Duration::from_secs(1));
        let control = ControlPlane { host, connections_changed, cache };
        control.restart().await;
        control
    }

    /// Returns the cache, with the clients, their versions and all settings.
    pub fn cache(&self) -> &SnapshotCache {
        &self.cache
    }

    /// Returns the address of the server. It is reserved until the control plane is dropped.
    pub fn address(&self) -> SocketAddr {
        self.host.address()
    }

    /// Returns a bootstrap with this server, without TLS.
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

    /// Kills the server: open connections are reset, and further ones are refused.
    pub fn kill(&self) {
        self.host.kill();
    }

    /// Serves again on the same address.
    pub async fn restart(&self) {
        if let Err(error) = self.host.start(Server::builder(), self.cache.service()).await {
            panic!("the control plane cannot serve on {}: {error}", self.address());
        }
    }

    /// Inserts a resource, or replaces the one with its type and name.
    pub fn set(&self, resource: impl NamedResource) {
        self.update(|resources| resources.set(resource));
    }

    /// Inserts these bytes under this name. They may be malformed, or of another type.
    pub fn set_raw<T: NamedResource>(&self, name: &str, resource: Any) {
        self.update(|resources| resources.set_any(&T::type_url(), name, resource));
    }

    /// Sets the endpoints of a cluster, all in one locality.
    pub fn set_endpoints(&self, cluster: &str, addresses: &[SocketAddr]) {
        self.update(|resources| resources.set_endpoints(cluster, addresses));
    }

    /// Removes a resource, if it is there.
    pub fn remove<T: NamedResource>(&self, name: &str) {
        self.update(|resources| resources.remove::<T>(name));
    }

    /// Sets all resources of a service; see [`ResourceSetExt::serve`].
    pub fn serve(&self, service: &str, cluster: &str, addresses: &[SocketAddr]) {
        self.update(|resources| resources.serve(service, cluster, addresses));
    }

    /// Changes several resources atomically.
    pub fn update(&self, change: impl FnOnce(&mut ResourceSet)) {
        self.cache.update(change);
    }

    /// Sets [`FaultModes::silent`].
    pub fn silent(&self, silent: bool) {
        self.cache.set_fault_modes(FaultModes { silent, ..self.cache.fault_modes() });
    }

    /// Sets [`FaultModes::one_stream`].
    pub fn only_one_stream(&self) {
        self.cache.set_fault_modes(FaultModes { one_stream: true, ..self.cache.fault_modes() });
    }

    /// Sets [`FaultModes::refuse_lrs`].
    pub fn lrs_unimplemented(&self) {
        self.cache.set_fault_modes(FaultModes { refuse_lrs: true, ..self.cache.fault_modes() });
    }

    /// Ends all open ADS streams with OK. Clients may open others.
    pub fn close_streams(&self) {
        self.cache.close_streams();
    }

    /// Returns the number of connections accepted so far.
    pub fn connections(&self) -> usize {
        self.host.accepted()
    }

    /// Returns the number of open connections.
    pub fn open_connections(&self) -> usize {
        self.host.open()
    }

    /// Returns the number of ADS streams opened so far, rejected ones included.
    pub fn streams(&self) -> u64 {
        self.cache.streams()
    }

    /// Returns the number of open ADS streams.
    pub fn open_streams(&self) -> usize {
        self.cache.clients().len()
    }

    /// Returns the number of load reporting streams opened so far, rejected ones included.
    pub fn lrs_streams(&self) -> u64 {
        self.cache.lrs_streams()
    }

    /// Returns all requests of state-of-the-world streams.
    pub fn requests(&self) -> Vec<DiscoveryRequest> {
        self.recorded(|request| match request {
            ClientRequest::Discovery(request) => Some(request),
            _ => None,
        })
    }

    /// Returns all requests of delta streams.
    pub fn delta_requests(&self) -> Vec<DeltaDiscoveryRequest> {
        self.recorded(|request| match request {
            ClientRequest::DeltaDiscovery(request) => Some(request),
            _ => None,
        })
    }

    /// Returns the type URL and the error of all NACKs.
    pub fn nacks(&self) -> Vec<(String, String)> {
        self.recorded(|request| {
            let (type_url, error) = match request {
                ClientRequest::Discovery(request) => (request.type_url, request.error_detail),
                ClientRequest::DeltaDiscovery(request) => (request.type_url, request.error_detail),
                _ => return None,
            };
            Some((type_url, error?.message))
        })
    }

    /// Returns all load reports in the order of arrival.
    pub fn load_reports(&self) -> Vec<ClusterStats> {
        let reports = self.recorded(|request| match request {
            ClientRequest::LoadStats(request) => Some(request.cluster_stats),
            _ => None,
        });
        reports.into_iter().flatten().collect()
    }

    fn recorded<T>(&self, select: impl FnMut(ClientRequest) -> Option<T>) -> Vec<T> {
        self.cache.client_requests().into_iter().filter_map(select).collect()
    }

    /// Returns the names of this type that open streams subscribe to.
    pub fn subscribed<T: NamedResource>(&self) -> BTreeSet<String> {
        let mut clients = self.cache.clients();
        let types = clients.iter_mut().filter_map(|client| client.types.remove(&T::type_url()));
        types.flat_map(|record| record.subscribed.names).collect()
    }

    /// Returns the version of this type: the number of its changes.
    pub fn version<T: NamedResource>(&self) -> u64 {
        self.cache.version::<T>()
    }

    /// Waits until every client that subscribes to this type has ACKed its current resources.
    pub async fn wait_acked<T: NamedResource>(&self) {
        self.bounded(self.cache.wait_acked::<T>()).await;
    }

    /// Waits until `condition` returns true. It is evaluated again after every change of the cache or a connection.
    pub async fn wait_until(&self, condition: impl Fn(&ControlPlane) -> bool) {
        let mut cache_changes = self.cache.changes();
        let condition_met = async {
            loop {
                cache_changes.mark_unchanged();
                let connections_changed = self.connections_changed.notified();
                tokio::pin!(connections_changed);
                // Enabled before the condition is evaluated, so that no change is missed.
                connections_changed.as_mut().enable();
                if condition(self) {
                    return;
                }
                tokio::select! {
                    _ = cache_changes.changed() => {}
                    () = connections_changed => {}
                }
            }
        };
        self.bounded(condition_met).await;
    }

    /// Waits for a condition. Panics with the state of the control plane if that takes too long.
    async fn bounded(&self, condition_met: impl Future<Output = ()>) {
        if tokio::time::timeout(LONG, condition_met).await.is_err() {
            let (streams, clients, nacks) = (self.streams(), self.cache.clients(), self.nacks());
            panic!("waited in vain; control plane: {streams} streams; open: {clients:?}; NACKs: {nacks:?}");
        }
    }
}

/// Conveniences of tests for a [`ResourceSet`].
pub trait ResourceSetExt {
    /// Sets the endpoints of a cluster, all in one locality.
    fn set_endpoints(&mut self, cluster: &str, addresses: &[SocketAddr]);

    /// Sets a listener `service`, its routes under the same name, a `cluster` for all calls, and its endpoints.
    fn serve(&mut self, service: &str, cluster: &str, addresses: &[SocketAddr]);
}

impl ResourceSetExt for ResourceSet {
    fn set_endpoints(&mut self, cluster: &str, addresses: &[SocketAddr]) {
        let addresses: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
        let addresses: Vec<_> = addresses.iter().map(String::as_str).collect();
        self.set(resources::load_assignment(cluster, &addresses));
    }

    fn serve(&mut self, service: &str, cluster: &str, addresses: &[SocketAddr]) {
        self.set(resources::listener_with_rds(service, service));
        self.set(resources::route_config(service, cluster));
        self.set(resources::cluster(cluster));
        self.set_endpoints(cluster, addresses);
    }
}
