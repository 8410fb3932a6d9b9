//! Runs every case with every available lineup, and writes the results as a table.
//!
//! Several cases run at a time, since they wait more than they compute. Lineups with a missing peer, and
//! cases that do not apply to a lineup, are reported with the reason. All others must pass.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::driver::{self, Case, Lineup, Proxy};
use crate::istio;
use crate::peers::{self, NoPeer, PEERS, Peer};

/// Texts of the document around the table.
const INTRODUCTION: &str = include_str!("../docs/introduction.md");
const DIFFERENCES: &str = include_str!("../docs/differences.md");
const PSM: &str = include_str!("../docs/psm.md");

/// Selection of lineups and cases, and limits of the run.
#[derive(Clone, Debug, Default)]
pub struct MatrixFilter {
    /// Lineups whose description contains one of these; all if empty.
    pub only: Vec<String>,
    /// Names of the cases; all if empty.
    pub cases: Vec<String>,
    /// Number of concurrent cases.
    pub jobs: usize,
    /// Time after which nothing is started, including installations.
    pub within: Option<Duration>,
}

/// Result of a case with a lineup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The case passed with this lineup.
    Passed,
    /// The case failed, with the reason.
    Failed(String),
    /// The case does not apply to this lineup.
    DoesNotFit(String),
    /// The time limit was reached before.
    NotRun,
}

/// Results of a run.
pub struct Matrix {
    /// Lineups, each with the result of every case.
    pub columns: Vec<(Lineup, Vec<Outcome>)>,
    /// Cases of the run, in order.
    pub cases: Vec<Case>,
    /// Peers that took part.
    pub peers: Vec<Peer>,
    /// Peers that did not run, with the reasons.
    pub absent: Vec<(String, NoPeer)>,
    /// Duration of the cases, without installations.
    pub took: Duration,
}

impl Matrix {
    /// Installs the peers and runs the selected cases. `tell` receives a line for each finished step.
    pub async fn run(wishes: &MatrixFilter, tell: impl Fn(String)) -> Matrix {
        let end = wishes.within.map(|time| Instant::now() + time);
        let (peers, absent) = install(end, &tell).await;
        let lineups = lineups(&peers).into_iter().filter(|lineup| wished(&wishes.only, &lineup.to_string()));
        let cases = driver::all()
            .into_iter()
            .filter(|case| wishes.cases.is_empty() || wished(&wishes.cases, case.name));
        let (lineups, cases): (Vec<_>, Vec<_>) = (lineups.collect(), cases.collect());
        let begin = Instant::now();
        let outcomes = run_all(&lineups, &cases, wishes.jobs.max(1), end, &tell).await;
        let columns = lineups.into_iter().zip(outcomes).collect();
        Matrix { columns, cases, peers, absent, took: begin.elapsed() }
    }

    /// Returns true if the installation of a peer failed although its toolchain exists.
    pub fn is_broken(&self) -> bool {
        self.absent.iter().any(|(_, why)| matches!(why, NoPeer::Broken(_)))
    }

    /// Returns true if a peer's programs failed their own tests.
    pub fn is_wrong(&self) -> bool {
        self.absent.iter().any(|(_, why)| matches!(why, NoPeer::Wrong(_)))
    }

    /// Returns true if no peer is missing.
    pub fn is_complete(&self) -> bool {
        self.absent.is_empty()
    }

    /// Returns the number of cases that were not started in time.
    pub fn not_run(&self) -> usize {
        let outcomes = self.columns.iter().flat_map(|(_, outcomes)| outcomes);
        outcomes.filter(|outcome| **outcome == Outcome::NotRun).count()
    }

    /// Returns the number of cases that passed, failed, and did not apply.
    pub fn counts(&self) -> (usize, usize, usize) {
        let mut counts = (0, 0, 0);
        for outcome in self.columns.iter().flat_map(|(_, outcomes)| outcomes) {
            match outcome {
                Outcome::Passed => counts.0 += 1,
                Outcome::Failed(_) => counts.1 += 1,
                Outcome::DoesNotFit(_) => counts.2 += 1,
                Outcome::NotRun => {}
            }
        }
        counts
    }

    /// Returns the document: versions, results and differences. `last` is the document that it replaces,
    /// whose section about Istio is kept.
    pub fn document(&self, last: &str) -> String {
        let mut text = INTRODUCTION.to_owned();
        self.write_table(&mut text);
        text.push_str("\nThe versions:\n\n");
        let _ = writeln!(text, "- evenkeel {}", env!("CARGO_PKG_VERSION"));
        for peer in &self.peers {
            let _ = writeln!(text, "- {}: {}", peer.name, peer.versions.join(", "));
        }
        text.push('\n');
        text.push_str(DIFFERENCES);
        text.push('\n');
        text.push_str(PSM);
        match istio::section_in(last) {
            Some(section) => istio::with_section(&text, section),
            None => text,
        }
    }

    fn write_table(&self, text: &mut String) {
        let letters: Vec<_> = ('A'..='Z').take(self.columns.len()).map(String::from).collect();
        text.push_str("| | client | server | control plane |\n|---|---|---|---|\n");
        for (letter, (lineup, _)) in letters.iter().zip(&self.columns) {
            let (client, server, control) =
                (lineup.client_peer(), lineup.server_peer(), lineup.control_peer());
            let _ = writeln!(text, "| {letter} | {client} | {server} | {control} |");
        }
        let _ = writeln!(text, "\n| case | {} |", letters.join(" | "));
        let _ = writeln!(text, "|---|{}", "---|".repeat(letters.len()));
        let mut notes = Vec::new();
        for (row, case) in self.cases.iter().enumerate() {
            let cells = self.columns.iter().map(|(_, outcomes)| match &outcomes[row] {
                Outcome::Passed => "yes".to_owned(),
                Outcome::Failed(_) => "**no**".to_owned(),
                Outcome::NotRun => "not run".to_owned(),
                Outcome::DoesNotFit(why) => {
                    let known = notes.iter().position(|note| note == why);
                    let number = known.unwrap_or_else(|| {
                        notes.push(why.clone());
                        notes.len() - 1
                    });
                    (number + 1).to_string()
                }
            });
            let cells: Vec<_> = cells.collect();
            let _ = writeln!(text, "| `{}`: {} | {} |", case.name, case.shows, cells.join(" | "));
        }
        text.push('\n');
        for (i, note) in notes.iter().enumerate() {
            let _ = writeln!(text, "{}. {note}", i + 1);
        }
    }
}

fn wished(wishes: &[String], name: &str) -> bool {
    wishes.is_empty() || wishes.iter().any(|wish| name.contains(wish.as_str()))
}

async fn install(end: Option<Instant>, tell: impl Fn(String)) -> (Vec<Peer>, Vec<(String, NoPeer)>) {
    let (mut peers, mut absent) = (Vec::new(), Vec::new());
    for (folder, name) in PEERS {
        match Peer::install(folder, name, end).await {
            Ok(peer) => {
                tell(format!("{name}: {}", peer.versions.join(", ")));
                peers.push(peer);
            }
            Err(why) => {
                let what = match &why {
                    NoPeer::Absent(_) => "SKIPPED",
                    NoPeer::Broken(_) => "FAILED to install",
                    NoPeer::Wrong(_) => "FAILED tests of",
                };
                tell(format!("{what} {name}: {}", why.words()));
                absent.push((name.to_owned(), why));
            }
        }
    }
    (peers, absent)
}

/// Returns the lineups: our client with every server and control plane, our server and control plane with
/// every client.
fn lineups(peers: &[Peer]) -> Vec<Lineup> {
    let of = |name: &str| peers.iter().find(|peer| peer.name == name);
    let own = Lineup {
        client: peers::own("xds_interop_client"),
        server: peers::own("xds_interop_server"),
        control: None,
        interop_client: Some(peers::own("interop_client")),
        proxy: None,
        sidecar: None,
    };
    // The cases of the other interop client use neither a control plane nor another client.
    let without = Lineup { interop_client: None, ..own.clone() };
    let delta =
        Lineup { client: own.client.with_flag("evenkeel (delta)", "--delta=true"), ..without.clone() };
    let mut all = vec![own.clone(), delta.clone()];
    let go = of("grpc-go").map(|peer| peer.program_as("control", "go-control-plane"));
    let java = of("java-control-plane").map(|peer| peer.program("control"));
    for control in go.into_iter().chain(java) {
        all.push(Lineup { control: Some(control.clone()), ..without.clone() });
        all.push(Lineup { control: Some(control), ..delta.clone() });
    }
    let languages = ["grpc-go", "grpcio", "grpc-js"].into_iter().filter_map(of);
    all.extend(languages.clone().map(|peer| Lineup { server: peer.program("server"), ..own.clone() }));
    all.extend(languages.map(|peer| Lineup { client: peer.program("client"), ..without.clone() }));
    if let Some(envoy) = of("Envoy").map(|peer| peer.program("envoy")) {
        for delta in [false, true] {
            all.push(Lineup { proxy: Some(Proxy { program: envoy.clone(), delta }), ..without.clone() });
        }
        all.push(Lineup { sidecar: Some(envoy), ..own });
    }
    all
}

/// Returns the results of all cases, by lineup.
async fn run_all(
    lineups: &[Lineup],
    cases: &[Case],
    jobs: usize,
    end: Option<Instant>,
    tell: impl Fn(String),
) -> Vec<Vec<Outcome>> {
    let places = Arc::new(Semaphore::new(jobs));
    let mut running = JoinSet::new();
    // Case by case: with a time limit, every lineup still runs some.
    for (row, case) in cases.iter().copied().enumerate() {
        for (column, lineup) in lineups.iter().enumerate() {
            let (lineup, places) = (lineup.clone(), places.clone());
            running.spawn(async move {
                let _place = places.acquire_owned().await;
                let begin = Instant::now();
                let outcome = match case.does_not_fit(&lineup) {
                    Some(why) => Outcome::DoesNotFit(why.to_owned()),
                    None if end.is_some_and(|end| begin > end) => Outcome::NotRun,
                    None => match case.run(&lineup).await {
                        Ok(()) => Outcome::Passed,
                        Err(failure) => Outcome::Failed(failure.to_string()),
                    },
                };
                (column, row, outcome, begin.elapsed())
            });
        }
    }
    let mut outcomes = vec![vec![Outcome::Failed("it panicked".to_owned()); cases.len()]; lineups.len()];
    while let Some(ended) = running.join_next().await {
        let Ok((column, row, outcome, took)) = ended else { continue };
        let what = format!("{}: {}", lineups[column], cases[row].name);
        match &outcome {
            Outcome::Passed => tell(format!("passed  {what} ({:.1} s)", took.as_secs_f64())),
            Outcome::Failed(why) => tell(format!("FAILED  {what}: {why}")),
            Outcome::DoesNotFit(why) => tell(format!("skipped {what}: {why}")),
            Outcome::NotRun => tell(format!("SKIPPED {what}: no time left")),
        }
        outcomes[column][row] = outcome;
    }
    outcomes
}
