//! Clients that are other programs. Each is a folder of `tools/bench/peers` with a script `install`, which
//! creates an executable `client` and a file `versions` below cargo's target folder.
//!
//! A peer that cannot be installed is skipped, and reported in the output and in the tables.

use std::env;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;
use tokio::process::Command;
use tokio::time::timeout;

use crate::Error;
use crate::calls::bench_clients::{BenchClient, Program, TONIC_XDS};

/// Maximum duration of a script. The first run builds all dependencies of the peer.
const LIMIT: Duration = Duration::from_secs(1_800);

/// Installed and missing peers.
#[derive(Default)]
pub(crate) struct Peers {
    installed: Vec<Peer>,
    /// Missing peers with the reasons.
    missing: Vec<(&'static str, String)>,
}

struct Peer {
    name: &'static str,
    client: PathBuf,
    versions: Vec<String>,
}

impl Peers {
    /// Installs the peers that these clients need.
    pub(crate) async fn install(clients: impl IntoIterator<Item = BenchClient>) -> Peers {
        let mut peers = Peers::default();
        for client in clients {
            let Program::Peer(name) = client.program else { continue };
            if peers.is_known(name) {
                continue;
            }
            eprintln!("installing {name}");
            match install(name).await {
                Ok(peer) => peers.installed.push(peer),
                Err(error) => {
                    eprintln!("\n{name} CANNOT BE INSTALLED AND IS LEFT OUT: {error}\n");
                    // A table has room for one line.
                    let first = error.to_string().lines().next().unwrap_or_default().to_owned();
                    peers.missing.push((name, first));
                }
            }
        }
        peers
    }

    fn is_known(&self, name: &str) -> bool {
        self.installed.iter().any(|peer| peer.name == name)
            || self.missing.iter().any(|(missing, _)| *missing == name)
    }

    /// Returns true if the client can run.
    pub(crate) fn have(&self, client: &BenchClient) -> bool {
        match client.program {
            Program::Own(_) => true,
            Program::Peer(name) => self.client(name).is_ok(),
        }
    }

    pub(crate) fn client(&self, name: &str) -> Result<&Path, Error> {
        let peer = self.installed.iter().find(|peer| peer.name == name);
        Ok(&peer.ok_or_else(|| format!("{name} is not installed"))?.client)
    }

    /// Returns the skipped clients with the reasons; empty if there are none.
    pub(crate) fn left_out(&self, clients: &[BenchClient]) -> String {
        let of_client = |client: &BenchClient| {
            let (_, why) =
                self.missing.iter().find(|(missing, _)| client.program == Program::Peer(missing))?;
            Some(format!("{} is left out: {why}.", client.name))
        };
        clients.iter().filter_map(of_client).collect::<Vec<_>>().join(" ")
    }

    /// Returns the packages of every installed peer.
    pub(crate) fn versions(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.installed.iter().map(|peer| (peer.name, peer.versions.join(", ")))
    }
}

/// Returns the bootstrap of a client. tonic-xds requires a scheme for plaintext; others do not support it.
pub(crate) fn bootstrap(program: Program, control: impl Display) -> String {
    let scheme = if program == TONIC_XDS.program { "http://" } else { "" };
    let bootstrap = json!({
        "xds_servers": [{
            "server_uri": format!("{scheme}{control}"),
            "channel_creds": [{"type": "insecure"}],
            "server_features": ["xds_v3"],
        }],
        "node": {"id": "bench"},
    });
    bootstrap.to_string()
}

async fn install(name: &'static str) -> Result<Peer, Error> {
    let out = out_folder().join(name);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name).join("install");
    let mut command = Command::new(&script);
    command.arg(&out).stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(LIMIT, command.output())
        .await
        .map_err(|_| format!("its install took more than {} s", LIMIT.as_secs()))?
        .map_err(|error| format!("{}: {error}", script.display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(if said.is_empty() {
            "its install failed without a message".into()
        } else {
            said.into()
        });
    }
    let versions = fs::read_to_string(out.join("versions"))
        .map_err(|error| format!("its install left no versions: {error}"))?;
    let versions = versions.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned);
    Ok(Peer { name, client: out.join("client"), versions: versions.collect() })
}

/// Returns the installation folder, below cargo's target folder, two levels above the running program.
pub(crate) fn out_folder() -> PathBuf {
    let here = env::current_exe().ok();
    let target = here.as_deref().and_then(|file| file.ancestors().nth(2));
    target.map_or_else(|| Path::new("target").to_owned(), Path::to_owned).join("bench")
}
