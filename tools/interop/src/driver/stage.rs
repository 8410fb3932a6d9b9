//! Environment of a case: its servers, control plane and clients.

use std::net::{Ipv4Addr, SocketAddr};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use evenkeel_control::{ControlPlane, Endpoint, Mesh, ResourceSet};
use evenkeel_proto::envoy::config::cluster::v3::Cluster as ClusterResource;
use evenkeel_proto::envoy::extensions::load_balancing_policies::round_robin::v3::RoundRobin;
use evenkeel_proto::prost::{Message, Name as _};
use serde_json::{Value, json};

use super::certificates::Certificates;
use super::client::{Calls, Client};
use super::envoy::Envoy;
use super::process::Process;
use super::{Failure, Lineup, Program, Result};

/// Service that clients call.
pub(super) const SERVICE: &str = "orders";

/// Only cluster of a mesh, and the only one that Envoy routes to.
pub(super) const CLUSTER: &str = "a";

/// Environment of one case.
pub struct Stage {
    lineup: Lineup,
    certificates: Option<Certificates>,
    control: Control,
}

enum Control {
    Own(ControlPlane),
    Peer { process: Box<Process>, port: u16, version: u32 },
}

impl Stage {
    /// Starts the control plane.
    pub(super) async fn open(lineup: Lineup) -> Result<Stage> {
        let control = match &lineup.control {
            None => {
                let plane = ControlPlane::builder().serve().await;
                Control::Own(plane.map_err(|error| Failure::new(format!("evenkeel-control: {error}")))?)
            }
            Some(program) => {
                let mut process = Process::start(program, &[], &[])?;
                let port = process.port().await?;
                Control::Peer { process: Box::new(process), port, version: 0 }
            }
        };
        Ok(Stage { lineup, certificates: None, control })
    }

    /// Returns the programs of the run.
    pub fn lineup(&self) -> &Lineup {
        &self.lineup
    }

    /// Generates certificates. Clients started afterwards find them by their bootstrap.
    pub fn certificates(&mut self) -> Result<&Certificates> {
        let made = Certificates::new()?;
        Ok(self.certificates.insert(made))
    }

    /// Starts a server for each name.
    pub async fn servers<const N: usize>(&self, names: [&str; N]) -> Result<[Server; N]> {
        self.servers_with(names.map(|name| (name, Vec::new()))).await
    }

    /// Starts servers with additional flags.
    pub async fn servers_with<const N: usize>(
        &self,
        servers: [(&str, Vec<String>); N],
    ) -> Result<[Server; N]> {
        let mut started = Vec::new();
        for (name, flags) in servers {
            started.push(Server::spawn(&self.lineup.server, name, flags, 0)?);
        }
        for server in &mut started {
            server.port = server.process.port().await?;
            if let Some(program) = &self.lineup.sidecar {
                let upstream = [("UPSTREAM_PORT", server.port.to_string())];
                server.sidecar = Some(Envoy::start(program, "sidecar.yaml", &upstream).await?);
            }
        }
        started.try_into().map_err(|_| Failure::new("a server is missing"))
    }

    /// Sets the mesh of the control plane.
    pub async fn set(&mut self, mesh: &Mesh) -> Result {
        mesh.check().map_err(|errors| Failure::new(format!("the mesh of the case is invalid: {errors}")))?;
        self.set_resources(mesh.resources()).await
    }

    /// Sets the resources of the control plane.
    pub async fn set_resources(&mut self, mut resources: ResourceSet) -> Result {
        if self.lineup.proxy.is_some() {
            as_envoy_takes_them(&mut resources);
        }
        match &mut self.control {
            Control::Own(plane) => plane.set(resources),
            Control::Peer { process, version, .. } => {
                *version += 1;
                process.write(&as_line(*version, &resources)).await?;
                process.line(&format!("version {version}")).await?;
            }
        }
        Ok(())
    }

    /// Starts a client of the service. Only ours must not lose a call during a config change: grpc-go, for
    /// example, applies routes before it has the clusters that they name.
    pub async fn client(&self, calls: Calls) -> Result<Client> {
        let calls =
            if self.lineup.client_peer().starts_with("evenkeel") { calls } else { calls.some_may_fail() };
        let (client, bootstrap) = (&self.lineup.client, self.bootstrap());
        let Some(proxy) = &self.lineup.proxy else {
            return Client::start(client, &format!("xds:///{SERVICE}"), calls, &bootstrap, None).await;
        };
        let values = [
            ("NODE_ID", "interop-envoy".to_owned()),
            ("CLUSTER", CLUSTER.to_owned()),
            ("API_TYPE", if proxy.delta { "DELTA_GRPC" } else { "GRPC" }.to_owned()),
            ("XDS_HOST", Ipv4Addr::LOCALHOST.to_string()),
            ("XDS_PORT", self.control_port().to_string()),
        ];
        let envoy = Envoy::start(&proxy.program, "client.yaml", &values).await?;
        let target = format!("dns:///127.0.0.1:{}", envoy.port());
        Client::start(client, &target, calls, &bootstrap, Some(envoy)).await
    }

    fn control_port(&self) -> u16 {
        match &self.control {
            Control::Own(plane) => plane.address().port(),
            Control::Peer { port, .. } => *port,
        }
    }

    /// Returns the bootstrap of clients.
    pub fn bootstrap(&self) -> String {
        let mut bootstrap = json!({
            "xds_servers": [{
                "server_uri": format!("127.0.0.1:{}", self.control_port()),
                "channel_creds": [{"type": "insecure"}],
                "server_features": ["xds_v3"],
            }],
            "node": {"id": "interop-client", "locality": {"region": "eu", "zone": "eu-1"}},
        });
        if let Some(certificates) = &self.certificates {
            bootstrap["certificate_providers"] = certificates.providers();
        }
        bootstrap.to_string()
    }
}

/// Envoy supports `WrrLocality` only with weights from load reports. gRPC's `WrrLocality` with `RoundRobin`
/// is Envoy's default policy.
fn as_envoy_takes_them(resources: &mut ResourceSet) {
    let names: Vec<_> = resources.iter().map(|(_, name, _)| name.to_owned()).collect();
    for name in names {
        let Some(mut cluster) = resources.get::<ClusterResource>(&name) else { continue };
        let policy = cluster.load_balancing_policy.as_ref().map(Message::encode_to_vec).unwrap_or_default();
        let name = RoundRobin::full_name();
        if policy.windows(name.len()).any(|part| part == name.as_bytes()) {
            cluster.load_balancing_policy = None;
            resources.set(cluster);
        }
    }
}

/// Returns a configuration in the line format of control plane programs.
fn as_line(version: u32, resources: &ResourceSet) -> String {
    let each: Vec<Value> = resources
        .iter()
        .map(|(type_url, name, any)| {
            json!({"type_url": type_url, "name": name, "value": STANDARD.encode(&any.value)})
        })
        .collect();
    json!({"version": version.to_string(), "resources": each}).to_string()
}

/// Server that can be stopped and restarted.
pub struct Server {
    name: String,
    program: Program,
    flags: Vec<String>,
    process: Process,
    port: u16,
    sidecar: Option<Envoy>,
}

impl Server {
    /// Starts a server and waits until it listens.
    pub(super) async fn start(program: &Program, name: &str, flags: Vec<String>) -> Result<Server> {
        let mut server = Server::spawn(program, name, flags, 0)?;
        server.port = server.process.port().await?;
        Ok(server)
    }

    fn spawn(program: &Program, name: &str, flags: Vec<String>, port: u16) -> Result<Server> {
        let process = Server::process(program, name, &flags, port)?;
        Ok(Server { name: name.to_owned(), program: program.clone(), flags, process, port, sidecar: None })
    }

    fn process(program: &Program, name: &str, flags: &[String], port: u16) -> Result<Process> {
        let mut all = vec![
            format!("--port={port}"),
            format!("--host_name_override={name}"),
            format!("--server_id={name}"),
        ];
        all.extend_from_slice(flags);
        Process::start(program, &all, &[])
    }

    /// Returns the server's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the address for calls: that of the sidecar if there is one.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.sidecar.as_ref().map_or(self.port, Envoy::port)).into()
    }

    /// Returns the server as an endpoint of a mesh.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::at(self.address())
    }

    /// Kills it: connections break, and new ones are refused.
    pub async fn stop(&mut self) -> Result {
        self.process.kill().await
    }

    /// Restarts it at the same address.
    pub async fn resume(&mut self) -> Result {
        self.process = Server::process(&self.program, &self.name, &self.flags, self.port)?;
        self.process.port().await.map(|_| ())
    }
}
