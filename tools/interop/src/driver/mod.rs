//! The published xDS cases, for any client, server and control plane.
//!
//! A [`Lineup`] says which programs play. A [`Case`] is a story told once: it starts servers, gives the control plane a
//! mesh, starts a client, and asks the client's statistics service what became of its calls. It knows programs only by the
//! flags, services and lines of text that all of them share, so a peer's client is judged as ours is.
//!
//! A case waits for conditions, never for time; what is given up on after [`PATIENCE`] is a [`Failure`] that says what was
//! expected and what the client last told.

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

/// Only a failure waits this long.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How often something is looked at that is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A case that takes this long has failed.
const CASE_LIMIT: Duration = Duration::from_secs(120);

/// A program that takes the driver's flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Whose it is, such as `grpc-go`.
    pub peer: String,
    /// The file to run.
    pub path: PathBuf,
    /// Flags that it is always given.
    pub flags: Vec<String>,
}

impl Program {
    /// The program of a peer.
    pub fn new(peer: &str, path: impl Into<PathBuf>) -> Program {
        Program { peer: peer.to_owned(), path: path.into(), flags: Vec::new() }
    }

    /// The same under another name, with a flag.
    #[must_use]
    pub fn with_flag(&self, name: &str, flag: &str) -> Program {
        let mut program = self.clone();
        name.clone_into(&mut program.peer);
        program.flags.push(flag.to_owned());
        program
    }
}

/// Who plays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineup {
    /// Makes the calls.
    pub client: Program,
    /// Answers them.
    pub server: Program,
    /// Configures the client; `evenkeel-control` in this process if there is none.
    pub control: Option<Program>,
    /// Runs the cases of gRPC's other interop client, where a case wants it.
    pub interop_client: Option<Program>,
    /// Makes the client's calls: the client calls it, and it is the one that the control plane configures.
    pub proxy: Option<Proxy>,
    /// Stands before each server.
    pub sidecar: Option<Program>,
}

/// An Envoy that the control plane configures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// Envoy.
    pub program: Program,
    /// Whether it speaks the delta variant of ADS.
    pub delta: bool,
}

impl Lineup {
    /// Who balances.
    pub fn client_peer(&self) -> &str {
        match &self.proxy {
            Some(Proxy { delta: false, .. }) => "Envoy",
            Some(Proxy { delta: true, .. }) => "Envoy (delta)",
            None => &self.client.peer,
        }
    }

    /// Who answers.
    pub fn server_peer(&self) -> String {
        match &self.sidecar {
            Some(_) => format!("Envoy before {}", self.server.peer),
            None => self.server.peer.clone(),
        }
    }

    /// Whose control plane it is.
    pub fn control_peer(&self) -> &str {
        self.control.as_ref().map_or("evenkeel-control", |program| &program.peer)
    }
}

impl fmt::Display for Lineup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} client, {} server, {}", self.client_peer(), self.server_peer(), self.control_peer())
    }
}

/// Why a case did not pass.
#[derive(Debug)]
pub struct Failure(String);

impl Failure {
    /// With these words.
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

/// What a step of a case gives.
pub type Result<T = ()> = std::result::Result<T, Failure>;

/// Fails unless something holds.
pub(crate) fn ensure(holds: bool, words: impl FnOnce() -> String) -> Result {
    if holds { Ok(()) } else { Err(Failure(words())) }
}

/// What a case does.
type Story = fn(Stage) -> Pin<Box<dyn Future<Output = Result> + Send>>;

/// A story to be told with any lineup.
#[derive(Clone, Copy)]
pub struct Case {
    /// As the published descriptions name it.
    pub name: &'static str,
    /// What it shows, for tables.
    pub shows: &'static str,
    story: Story,
}

impl Case {
    /// Runs it. Every process that it started has ended afterwards.
    pub async fn run(&self, lineup: &Lineup) -> Result {
        let stage = Stage::open(lineup.clone()).await?;
        match tokio::time::timeout(CASE_LIMIT, (self.story)(stage)).await {
            Ok(done) => done,
            Err(_) => Err(Failure(format!("{} did not end in {} s", self.name, CASE_LIMIT.as_secs()))),
        }
    }

    /// Why it says nothing about this lineup, if so.
    pub fn does_not_fit(&self, lineup: &Lineup) -> Option<&'static str> {
        cases::does_not_fit(self.name, lineup)
    }
}
