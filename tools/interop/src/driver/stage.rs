//! Where a case plays: the servers that it started, the control plane, and clients of them.

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

/// The service that clients call.
pub(super) const SERVICE: &str = "orders";

/// The cluster of a mesh that has only one, and the only one that Envoy sends calls to.
pub(super) const CLUSTER: &str = "a";

/// The world of one case.
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

    /// Who plays.
    pub fn lineup(&self) -> &Lineup {
        &self.lineup
    }

    /// Makes certificates, which clients find by their bootstrap from now on.
    pub fn certificates(&mut self) -> Result<&Certificates> {
        let made = Certificates::new()?;
        Ok(self.certificates.insert(made))
    }

    /// Starts a server for each name.
    pub async fn servers<const N: usize>(&self, names: [&str; N]) -> Result<[Server; N]> {
        self.servers_with(names.map(|name| (name, Vec::new()))).await
    }

    /// Starts servers with flags beyond the usual.
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

    /// Gives the control plane a mesh.
    pub async fn set(&mut self, mesh: &Mesh) -> Result {
        mesh.check().map_err(|errors| Failure::new(format!("the case's own mesh is wrong: {errors}")))?;
        self.set_resources(mesh.resources()).await
    }

    /// Gives the control plane resources.
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

    /// Starts a client of the service. Only ours is held to lose no call in the moment that a config changes: grpc-go, for
    /// one, takes new routes into use before it has the clusters that they name.
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

    /// How clients find the control plane.
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

/// Envoy takes `WrrLocality` with weights from load reports only; what gRPC calls `WrrLocality` with `RoundRobin` is what Envoy
/// does where nothing is said.
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

/// A configuration as control plane programs read it.
fn as_line(version: u32, resources: &ResourceSet) -> String {
    let each: Vec<Value> = resources
        .iter()
        .map(|(type_url, name, any)| {
            json!({"type_url": type_url, "name": name, "value": STANDARD.encode(&any.value)})
        })
        .collect();
    json!({"version": version.to_string(), "resources": each}).to_string()
}

/// A server that can be stopped and come back.
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

    /// What it calls itself.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is called: at its sidecar if it has one.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.sidecar.as_ref().map_or(self.port, Envoy::port)).into()
    }

    /// What a mesh says of it.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::at(self.address())
    }

    /// Kills it: connections break, and new ones are refused.
    pub async fn stop(&mut self) -> Result {
        self.process.kill().await
    }

    /// Starts it again where it was.
    pub async fn resume(&mut self) -> Result {
        self.process = Server::process(&self.program, &self.name, &self.flags, self.port)?;
        self.process.port().await.map(|_| ())
    }
}
