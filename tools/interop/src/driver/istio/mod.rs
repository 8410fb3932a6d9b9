//! Cases with istiod as the control plane, configured by a folder of files.
//!
//! An [`IstioStage`] is the counterpart of [`Stage`](super::Stage): it writes Istio's own resources instead of xDS
//! resources, and clients identify themselves as proxyless gRPC clients (`GENERATOR: grpc`). A case fails if istiod
//! logs a NACK.

mod cases;
mod config;
mod relay;

use std::fs;
use std::path::PathBuf;
use std::pin::Pin;

use serde_json::{Value, json};
use tempfile::TempDir;

use self::config::{HOST, PORT};
use self::relay::SocketRelay;
use super::certificates::Certificates;
use super::process::Process;
use super::{CASE_LIMIT, Calls, Client, Failure, Program, Result, Server};

pub use cases::istio_cases;

/// Text by which istiod logs a NACK.
const NACK: &str = "ACK ERROR";

/// Programs of a run with istiod.
#[derive(Clone, Debug)]
pub struct IstioLineup {
    /// Program that makes the calls.
    pub client: Program,
    /// Program that serves the calls.
    pub server: Program,
    /// Control plane of the client.
    pub istiod: Program,
}

/// Function of a case. It borrows the stage, which is checked for NACKs afterwards.
type IstioStory = for<'s> fn(&'s mut IstioStage) -> Pin<Box<dyn Future<Output = Result> + Send + 's>>;

/// One case with istiod.
#[derive(Clone, Copy)]
pub struct IstioCase {
    /// Name of the case.
    pub name: &'static str,
    /// Published feature that the case checks.
    pub shows: &'static str,
    story: IstioStory,
}

impl IstioCase {
    /// Runs the case. All processes that it started have ended afterwards.
    ///
    /// # Errors
    ///
    /// Returns an error if the feature does not behave as published, or if the client rejected a resource.
    pub async fn run(&self, lineup: &IstioLineup) -> Result {
        let mut stage = IstioStage::open(lineup.clone())?;
        match tokio::time::timeout(CASE_LIMIT, (self.story)(&mut stage)).await {
            Ok(done) => done?,
            Err(_) => {
                return Err(Failure::new(format!("{} did not end in {} s", self.name, CASE_LIMIT.as_secs())));
            }
        }
        stage.check_nacks()
    }
}

/// istiod with its configuration, and the servers and clients of a case.
pub(super) struct IstioStage {
    lineup: IstioLineup,
    folder: TempDir,
    /// istiod process and its port, once it has a configuration.
    istiod: Option<(Process, u16)>,
    nacks: Vec<String>,
    certificates: Option<Certificates>,
    relay: Option<SocketRelay>,
}

impl IstioStage {
    fn open(lineup: IstioLineup) -> Result<IstioStage> {
        let folder = tempfile::tempdir()
            .and_then(|folder| fs::create_dir(folder.path().join("config")).map(|()| folder))
            .map_err(|error| Failure::new(format!("no folder for istiod: {error}")))?;
        Ok(IstioStage { lineup, folder, istiod: None, nacks: Vec::new(), certificates: None, relay: None })
    }

    /// Starts istiod. Port 0 selects a free one.
    async fn start(&mut self, port: u16) -> Result {
        let flags = [format!("--config={}", self.file("config").display()), format!("--port={port}")];
        let mut process = Process::start(&self.lineup.istiod, &flags, &[])?;
        let port = process.port().await?;
        self.istiod = Some((process, port));
        Ok(())
    }

    fn port(&self) -> Result<u16> {
        let port = self.istiod.as_ref().map(|(_, port)| *port);
        port.ok_or_else(|| Failure::new("istiod has no configuration yet"))
    }

    /// Starts a server for each name.
    async fn servers<const N: usize>(&self, names: [&str; N]) -> Result<[Server; N]> {
        self.servers_with(names.map(|name| (name, Vec::new()))).await
    }

    /// Starts servers with additional flags.
    async fn servers_with<const N: usize>(&self, servers: [(&str, Vec<String>); N]) -> Result<[Server; N]> {
        let mut started = Vec::new();
        for (name, flags) in servers {
            started.push(Server::start(&self.lineup.server, name, flags).await?);
        }
        started.try_into().map_err(|_| Failure::new("a server is missing"))
    }

    /// Generates certificates. Clients started afterwards find them by their bootstrap.
    fn certificates(&mut self) -> Result<&Certificates> {
        let made = Certificates::new()?;
        Ok(self.certificates.insert(made))
    }

    /// Inserts a unix socket between clients and istiod, as Istio's agent does.
    fn relay(&mut self) -> Result {
        self.relay = Some(SocketRelay::start(self.file("XDS"), self.port()?)?);
        Ok(())
    }

    /// Replaces istiod's whole configuration. The first one also starts istiod, so that no client sees it
    /// without a configuration.
    async fn set(&mut self, documents: &[Value]) -> Result {
        let text: Vec<_> = documents.iter().map(ToString::to_string).collect();
        let (file, partial) = (self.file("config/mesh.yaml"), self.file("mesh.partial"));
        // istiod reads a file as soon as it changes, so a complete file is renamed into place.
        fs::write(&partial, text.join("\n---\n"))
            .and_then(|()| fs::rename(&partial, &file))
            .map_err(|error| Failure::new(format!("{}: {error}", file.display())))?;
        if self.istiod.is_none() {
            self.start(0).await?;
        }
        Ok(())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Kills istiod. Its port stays reserved for the restart.
    async fn stop(&mut self) -> Result {
        self.collect_nacks();
        match &mut self.istiod {
            Some((process, _)) => process.kill().await,
            None => Ok(()),
        }
    }

    /// Starts istiod again on the same port.
    async fn resume(&mut self) -> Result {
        let port = self.port()?;
        self.start(port).await
    }

    /// Starts a client of the service.
    async fn client(&self, calls: Calls) -> Result<Client> {
        let target = format!("xds:///{HOST}:{PORT}");
        Client::start(&self.lineup.client, &target, calls, &self.bootstrap()?, None).await
    }

    /// Returns the bootstrap, with the node as Istio's agent describes it.
    fn bootstrap(&self) -> Result<String> {
        let uri = match &self.relay {
            Some(relay) => relay.uri(),
            None => format!("127.0.0.1:{}", self.port()?),
        };
        let mut bootstrap = json!({
            "xds_servers": [{
                "server_uri": uri,
                "channel_creds": [{"type": "insecure"}],
                "server_features": ["xds_v3"],
            }],
            "node": {
                // Not an endpoint's address: istiod would use that endpoint's locality for the client.
                "id": "sidecar~127.0.0.2~client.shop~shop.svc.cluster.local",
                "metadata": {
                    "GENERATOR": "grpc",
                    "NAMESPACE": "shop",
                    "CLUSTER_ID": "evenkeel",
                    "INSTANCE_IPS": "127.0.0.2",
                    "ISTIO_VERSION": "1.31.0",
                    "LABELS": {"app": "client"},
                },
                "locality": {"region": "eu", "zone": "eu-1"},
            },
            "server_listener_resource_name_template": "xds.istio.io/grpc/lds/inbound/%s",
        });
        if let Some(certificates) = &self.certificates {
            bootstrap["certificate_providers"] = certificates.providers_as("default");
        }
        Ok(bootstrap.to_string())
    }

    fn collect_nacks(&mut self) {
        if let Some((process, _)) = &mut self.istiod {
            self.nacks.extend(process.lines_with(NACK));
        }
    }

    fn check_nacks(&mut self) -> Result {
        self.collect_nacks();
        if self.nacks.is_empty() {
            return Ok(());
        }
        Err(Failure::new(format!("the client rejected resources: {}", self.nacks.join("\n    "))))
    }
}
