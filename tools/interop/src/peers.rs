//! Peers of the interop tests: installation and versions.
//!
//! A peer is a folder of `tools/interop/peers` with a script `install`. The script fetches the peer's
//! libraries from their registry and builds programs that accept the driver's flags. A peer that cannot be
//! installed is reported.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::process::Command;
use tokio::time::timeout;

use crate::driver::Program;

/// Peers: folder and name.
pub const PEERS: [(&str, &str); 5] = [
    ("go", "grpc-go"),
    ("python", "grpcio"),
    ("node", "grpc-js"),
    ("java", "java-control-plane"),
    ("envoy", "Envoy"),
];

/// Maximum duration of a script.
const SCRIPT_LIMIT: Duration = Duration::from_secs(600);

/// Maximum time to build istiod, which takes far longer than all other peers together.
const ISTIOD_LIMIT: Duration = Duration::from_secs(7_200);

/// Exit code of `install` for a missing toolchain.
const NO_TOOLCHAIN: i32 = 3;

/// Peer with installed programs.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Name of the peer.
    pub name: String,
    /// Installed packages with versions.
    pub versions: Vec<String>,
    folder: PathBuf,
}

/// Reason why a peer cannot run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoPeer {
    /// Its toolchain is missing on this machine.
    Absent(String),
    /// The installation of its programs failed.
    Broken(String),
    /// Its programs failed their own tests.
    Wrong(String),
}

impl NoPeer {
    /// Returns the description of the problem.
    pub fn words(&self) -> &str {
        match self {
            NoPeer::Absent(words) | NoPeer::Broken(words) | NoPeer::Wrong(words) => words,
        }
    }
}

impl Peer {
    /// Installs a peer unless it is installed, and runs the tests of its own programs, if any.
    pub async fn install(folder: &str, name: &str, end: Option<Instant>) -> Result<Peer, NoPeer> {
        let out = out_folder().join(folder);
        let scripts = peers_folder().join(folder);
        run(&scripts.join("install"), &out, end, SCRIPT_LIMIT).await?;
        if scripts.join("test").exists() {
            run(&scripts.join("test"), &out, None, SCRIPT_LIMIT)
                .await
                .map_err(|why| NoPeer::Wrong(why.words().to_owned()))?;
        }
        Peer::installed(name, out)
    }

    /// Builds istiod. It is not one of [`PEERS`], since a build without a cache takes many minutes.
    pub async fn install_istiod() -> Result<Peer, NoPeer> {
        let out = out_folder().join("istio");
        run(&peers_folder().join("istio/install"), &out, None, ISTIOD_LIMIT).await?;
        Peer::installed("istiod", out)
    }

    fn installed(name: &str, out: PathBuf) -> Result<Peer, NoPeer> {
        let versions = fs::read_to_string(out.join("versions"))
            .map_err(|error| NoPeer::Broken(format!("install left no versions: {error}")))?;
        let versions = versions.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned);
        Ok(Peer { name: name.to_owned(), versions: versions.collect(), folder: out })
    }

    /// Returns one of its programs: `client`, `server` or `control`.
    pub fn program(&self, kind: &str) -> Program {
        Program::new(&self.name, self.folder.join(kind))
    }

    /// Returns one of its programs under another name, for folders with several peers.
    pub fn program_as(&self, kind: &str, name: &str) -> Program {
        Program::new(name, self.folder.join(kind))
    }
}

/// Runs a script of a peer. Its output is part of the error.
async fn run(script: &Path, out: &Path, end: Option<Instant>, script_limit: Duration) -> Result<(), NoPeer> {
    let left = end.map(|end| end.saturating_duration_since(Instant::now()));
    let limit = left.map_or(script_limit, |left| left.min(script_limit));
    let mut command = Command::new(script);
    command.arg(out).stdin(Stdio::null()).kill_on_drop(true);
    let failed = |words: String| NoPeer::Broken(format!("{}: {words}", script.display()));
    let output = match timeout(limit, command.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(failed(error.to_string())),
        Err(_) if limit < script_limit => {
            return Err(NoPeer::Absent("no time left to install it".to_owned()));
        }
        Err(_) => return Err(failed(format!("took more than {} s", script_limit.as_secs()))),
    };
    let words =
        [&output.stdout[..], &output.stderr[..]].map(|text| String::from_utf8_lossy(text).trim().to_owned());
    match output.status.code() {
        Some(0) => Ok(()),
        Some(NO_TOOLCHAIN) => Err(NoPeer::Absent(words.concat())),
        _ => Err(failed(words.join("\n"))),
    }
}

/// Returns one of our own programs, beside the running one.
pub fn own(program: &str) -> Program {
    let here = env::current_exe().ok();
    let folder = here.as_deref().and_then(Path::parent).unwrap_or(Path::new("."));
    Program::new("evenkeel", folder.join(program))
}

/// Returns the folder with the scripts and sources of the peers.
pub fn peers_folder() -> PathBuf {
    root().join("tools/interop/peers")
}

/// Returns the root of the repository.
pub fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().nth(2).unwrap_or(package).to_owned()
}

/// Returns the installation folder, below cargo's target folder, two levels above the running program.
fn out_folder() -> PathBuf {
    let here = env::current_exe().ok();
    let target = here.as_deref().and_then(|file| file.ancestors().nth(2));
    target.map_or_else(|| root().join("target"), Path::to_owned).join("interop")
}
