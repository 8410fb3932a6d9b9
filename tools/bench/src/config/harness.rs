//! Environment of update measurements: a control plane here, backends and a client as processes, and their
//! command pipes.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use evenkeel::XdsVariant;
use evenkeel_control::{
    Cluster, ClusterPolicy, ControlPlane, Endpoint, Mesh, NamedResource, ResourceSet, Route, Service,
};
use evenkeel_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::now;
use crate::Error;
use crate::common::process::WorkerProcess;

/// Maximum wait for any step.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// Generation of the initial endpoints.
pub(super) const FIRST: u8 = 1;

/// Endpoints per cluster in the shape with many clusters.
pub(super) const TEN: usize = 10;

/// Distribution of endpoints over resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// All endpoints are in one cluster.
    OneCluster,
    /// Ten endpoints per cluster. The clusters of the first `routed` endpoints have a route each. Clients do
    /// not request the others.
    ClustersOfTen { routed: usize },
}

pub(super) struct ConfigHarness {
    runtime: Runtime,
    control: ControlPlane,
    backends: WorkerProcess,
    port: u16,
}

impl ConfigHarness {
    pub(super) fn new() -> Result<ConfigHarness, Error> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let control = runtime.block_on(ControlPlane::builder().serve())?;
        let (backends, port) = backends()?;
        Ok(ConfigHarness { runtime, control, backends, port })
    }

    /// Starts other backends and stops the previous ones, which keep running during `change`.
    pub(super) fn replace_backends(
        &mut self,
        change: impl FnOnce(&mut ConfigHarness) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let (next, port) = backends()?;
        let old = std::mem::replace(&mut self.backends, next);
        self.port = port;
        change(self)?;
        drop(old);
        Ok(())
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(super) fn control(&self) -> &ControlPlane {
        &self.control
    }

    /// Returns endpoints of a generation.
    pub(super) fn endpoints(&self, generation: u8, count: usize) -> Result<Vec<SocketAddr>, Error> {
        (0..count).map(|i| self.endpoint(generation, i)).collect()
    }

    pub(super) fn endpoint(&self, generation: u8, i: usize) -> Result<SocketAddr, Error> {
        let most = usize::from(u16::MAX);
        let i = u16::try_from(i).map_err(|_| format!("expected at most {most} endpoints, found {i}"))?;
        let [high, low] = i.to_be_bytes();
        Ok(SocketAddr::from(([127, generation, high, low], self.port)))
    }

    /// Sends these resources, and returns the time.
    pub(super) fn send(&self, resources: ResourceSet) -> u64 {
        let began = now();
        self.control.cache().set(resources);
        began
    }

    /// Waits for the ACK of the endpoints, and returns the time.
    pub(super) fn acked(&self) -> Result<u64, Error> {
        self.acked_all::<ClusterLoadAssignment>()
    }

    /// Waits for the ACKs of all requested resources of a type, and returns the time.
    pub(super) fn acked_all<M: NamedResource>(&self) -> Result<u64, Error> {
        let acked = self.control.cache().wait_acked::<M>();
        self.runtime
            .block_on(async { timeout(LIMIT, acked).await })
            .map_err(|_| format!("the client did not accept its {} in time", M::NAME))?;
        Ok(now())
    }

    /// Waits until a connection to this endpoint was accepted.
    pub(super) fn accepted(&mut self, endpoint: SocketAddr) -> Result<(), Error> {
        self.backends.ask(&format!("until {}", endpoint.ip())).map(drop)
    }

    /// Waits until the backends have accepted this number of connections in total.
    pub(super) fn accepted_in_all(&mut self, connections: u64) -> Result<(), Error> {
        self.backends.ask(&format!("accepted {connections}")).map(drop)
    }

    /// Returns the number of connections that the backends have accepted so far.
    pub(super) fn accepted_so_far(&mut self) -> Result<u64, Error> {
        let [accepted] = self.backends.numbers("accepted")?;
        Ok(accepted)
    }

    /// Waits until at most this number of connections is open.
    pub(super) fn open(&mut self, connections: usize) -> Result<(), Error> {
        self.backends.ask(&format!("open {connections}")).map(drop)
    }
}

/// Starts a client of this control plane or of its relay. Also returns the time of the first response.
pub(super) fn client(
    control: SocketAddr,
    variant: XdsVariant,
    every: Option<u64>,
) -> Result<(WorkerProcess, u64), Error> {
    client_with(control, variant, every, &[])
}

/// The same with further arguments.
pub(super) fn client_with(
    control: SocketAddr,
    variant: XdsVariant,
    every: Option<u64>,
    more: &[&str],
) -> Result<(WorkerProcess, u64), Error> {
    let control = control.to_string();
    let mut arguments = vec!["config-worker", "client", &control];
    if variant == XdsVariant::Delta {
        arguments.push("--delta");
    }
    let every = every.map(|every| format!("--every={every}"));
    arguments.extend(every.as_deref());
    arguments.extend(more);
    let client = WorkerProcess::start(&arguments)?;
    let first = client.addresses.first().ok_or("the client printed no time")?.parse()?;
    Ok((client, first))
}

fn backends() -> Result<(WorkerProcess, u16), Error> {
    let backends = WorkerProcess::start(["config-worker", "serve"])?;
    let port = backends.port()?;
    Ok((backends, port))
}

/// Returns the generation of an endpoint; `None` if the address is not one of a harness.
pub(super) fn generation(address: IpAddr) -> Option<u8> {
    match address {
        IpAddr::V4(address) if address.octets()[0] == 127 => Some(address.octets()[1]),
        _ => None,
    }
}

/// Returns the resources of `xds:///bench` with these endpoints and weighted_round_robin.
pub(crate) fn resources(shape: Shape, endpoints: &[SocketAddr]) -> ResourceSet {
    resources_with(shape, endpoints, &"weighted_round_robin".into())
}

/// The same with another policy.
pub(super) fn resources_with(shape: Shape, endpoints: &[SocketAddr], policy: &ClusterPolicy) -> ResourceSet {
    let cluster = |endpoints: &[SocketAddr]| {
        let endpoints = endpoints.iter().map(|&address| Endpoint::at(address));
        Cluster::new().endpoints(endpoints).policy(policy.clone())
    };
    let mesh = match shape {
        Shape::OneCluster => {
            Mesh::new().service("bench", Service::to("backends")).cluster("backends", cluster(endpoints))
        }
        Shape::ClustersOfTen { routed } => {
            let (mut mesh, mut service) = (Mesh::new(), Service::new());
            for (i, endpoints) in endpoints.chunks(TEN).enumerate() {
                let name = format!("backends-{i}");
                mesh = mesh.cluster(&name, cluster(endpoints));
                if i * TEN < routed {
                    service = service.route(Route::to(&name).prefix(&format!("/{name}/")));
                }
            }
            mesh.service("bench", service.route(Route::to("backends-0")))
        }
    };
    mesh.resources()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_spread_over_clusters() {
        let endpoints: Vec<SocketAddr> = (0..25).map(|i| SocketAddr::from(([127, 1, 0, i], 80))).collect();
        let count = |shape| {
            let resources = resources(shape, &endpoints);
            let assignments = resources.iter().filter(|(kind, ..)| kind.ends_with("ClusterLoadAssignment"));
            assignments.count()
        };
        assert_eq!(count(Shape::OneCluster), 1);
        assert_eq!(count(Shape::ClustersOfTen { routed: 25 }), 3);
        assert_eq!(count(Shape::ClustersOfTen { routed: 10 }), 3);
    }

    #[test]
    fn the_second_number_of_an_address_is_its_generation() {
        assert_eq!(generation(IpAddr::from([127, 9, 0, 1])), Some(9));
        assert_eq!(generation(IpAddr::from([10, 9, 0, 1])), None);
    }
}
