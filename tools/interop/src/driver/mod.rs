//! The published xDS cases, for any client, server and control plane.
//!
//! A [`Lineup`] selects the programs. A [`Case`] starts servers, configures the control plane, starts a
//! client, and checks the client's statistics. It uses only the flags, services and output lines that all
//! programs share, so every peer's client is checked in the same way.
//!
//! A case waits for conditions, never for time. A wait fails after [`PATIENCE`] with a [`Failure`] that has
//! the expectation and the client's last statistics.

mod cases;
mod certificates;
mod client;
mod envoy;
mod istio;
mod process;
mod stage;

use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

pub use cases::{all, named};
pub use client::{Calls, Client, Stats};
pub use istio::{IstioCase, IstioLineup, istio_cases};
pub use process::Process;
pub use stage::{Server, Stage};

/// Maximum wait. Only a failing case reaches it.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Polling interval of waits.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Maximum duration of a case.
const CASE_LIMIT: Duration = Duration::from_secs(120);

/// Program that accepts the driver's flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Name of the peer, such as `grpc-go`.
    pub peer: String,
    /// Path of the executable.
    pub path: PathBuf,
    /// Flags of every invocation.
    pub flags: Vec<String>,
}

impl Program {
    /// Creates the program of a peer.
    pub fn new(peer: &str, path: impl Into<PathBuf>) -> Program {
        Program { peer: peer.to_owned(), path: path.into(), flags: Vec::new() }
    }

    /// Returns the program under another name, with an additional flag.
    #[must_use]
    pub fn with_flag(&self, name: &str, flag: &str) -> Program {
        let mut program = self.clone();
        name.clone_into(&mut program.peer);
        program.flags.push(flag.to_owned());
        program
    }
}

/// Programs of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineup {
    /// Program that makes the calls.
    pub client: Program,
    /// Program that serves the calls.
    pub server: Program,
    /// Configures the client; `None` for `evenkeel-control` in this process.
    pub control: Option<Program>,
    /// gRPC's other interop client, for the cases that need it.
    pub interop_client: Option<Program>,
    /// Envoy that makes the client's calls. The client calls it, and the control plane configures it.
    pub proxy: Option<Proxy>,
    /// Envoy in front of each server.
    pub sidecar: Option<Program>,
}

/// Envoy that the control plane configures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// Envoy executable with its flags.
    pub program: Program,
    /// True for the delta variant of ADS.
    pub delta: bool,
}

impl Lineup {
    /// Returns the name of the balancing peer.
    pub fn client_peer(&self) -> &str {
        match &self.proxy {
            Some(Proxy { delta: false, .. }) => "Envoy",
            Some(Proxy { delta: true, .. }) => "Envoy (delta)",
            None => &self.client.peer,
        }
    }

    /// Returns the name of the serving peer.
    pub fn server_peer(&self) -> String {
        match &self.sidecar {
            Some(_) => format!("Envoy before {}", self.server.peer),
            None => self.server.peer.clone(),
        }
    }

    /// Returns the name of the control plane's peer.
    pub fn control_peer(&self) -> &str {
        self.control.as_ref().map_or("evenkeel-control", |program| &program.peer)
    }
}

impl fmt::Display for Lineup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} client, {} server, {}", self.client_peer(), self.server_peer(), self.control_peer())
    }
}

/// Reason why a case failed.
#[derive(Debug)]
pub struct Failure(String);

impl Failure {
    /// Creates a failure with this text.
    pub fn new(words: impl Into<String>) -> Failure {
        Failure(words.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

impl From<tonic::Status> for Failure {
    fn from(status: tonic::Status) -> Failure {
        Failure(format!("a service of a program failed: {:?}: {}", status.code(), status.message()))
    }
}

/// Result of a step of a case.
pub type Result<T = ()> = std::result::Result<T, Failure>;

/// Fails with this text unless the condition holds.
pub(crate) fn ensure(holds: bool, words: impl FnOnce() -> String) -> Result {
    if holds { Ok(()) } else { Err(Failure(words())) }
}

/// Function of a case.
type Story = fn(Stage) -> Pin<Box<dyn Future<Output = Result> + Send>>;

/// Case that runs with any lineup.
#[derive(Clone, Copy)]
pub struct Case {
    /// Name in the published description.
    pub name: &'static str,
    /// Behaviour that the case shows, for tables.
    pub shows: &'static str,
    story: Story,
}

impl Case {
    /// Runs the case. All processes that it started have ended afterwards.
    pub async fn run(&self, lineup: &Lineup) -> Result {
        let stage = Stage::open(lineup.clone()).await?;
        match tokio::time::timeout(CASE_LIMIT, (self.story)(stage)).await {
            Ok(done) => done,
            Err(_) => Err(Failure(format!("{} did not end in {} s", self.name, CASE_LIMIT.as_secs()))),
        }
    }

    /// Returns the reason why the case does not apply to this lineup, if there is one.
    pub fn does_not_fit(&self, lineup: &Lineup) -> Option<&'static str> {
        cases::does_not_fit(self.name, lineup)
    }
}
