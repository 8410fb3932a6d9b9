//! Cost of a call: evenkeel and its peers over the same backends and the same control plane.
//!
//! A client is a process of its own for every scenario and round. A round runs every client once, and each
//! round starts with another client, so that other load of the machine affects all of them. The results are
//! ratios per round, with their spread.

mod backends;
pub(crate) mod bench_clients;
mod clients;
mod control;
mod harness;
pub(crate) mod peers;
mod ratio;
mod raw;
mod results;
mod scenario;
mod shares;
mod thresholds;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::time::Duration;

use crate::Error;
use crate::calls::backends::ServerKind;
use crate::calls::bench_clients::BenchClient;
use crate::calls::harness::{CallHarness, Span, Task};
use crate::calls::peers::Peers;
use crate::calls::results::Results;
use crate::calls::scenario::{Payload, Scenario, chosen};
use crate::client::args::ClientArgs;
use crate::common::allocator::Totals;
use crate::common::process::runtime;
use crate::table::Table;
use crate::thresholds::Measured;

/// Compare calls of evenkeel and its peers in one run.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Names of the clients to run, in every scenario. The default depends on the scenario.
    #[arg(long, value_delimiter = ',', value_parser = BenchClient::parse, value_name = "NAMES")]
    clients: Vec<BenchClient>,
    /// Kinds of payload to send.
    #[arg(long, value_delimiter = ',')]
    payload: Vec<Payload>,
    /// Numbers of concurrent calls.
    #[arg(long, value_delimiter = ',', value_parser = at_least_one, value_name = "NUMBERS")]
    concurrency: Vec<usize>,
    /// Numbers of backends to call.
    #[arg(long, value_delimiter = ',', value_parser = at_least_one, value_name = "NUMBERS")]
    backends: Vec<usize>,
    /// Kinds of servers that the backends are.
    #[arg(long, value_delimiter = ',')]
    servers: Vec<ServerKind>,
    /// Combine every payload with every number of concurrent calls, of backends and with every kind of server, unless they are given.
    #[arg(long)]
    full: bool,
    /// Number of rounds. Every client runs once per round.
    #[arg(long, default_value = "5", value_parser = at_least_one)]
    rounds: usize,
    /// Measured duration of each run, in seconds.
    #[arg(long, default_value = "1", value_parser = seconds)]
    seconds: Duration,
    /// Number of threads of a client. With 1, all of it runs on one thread, as a channel does in a current_thread
    /// runtime.
    #[arg(long, default_value = "1")]
    threads: NonZeroUsize,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse::<NonZeroUsize>().map(NonZeroUsize::get).map_err(|_| "expected a number from 1 on".to_owned())
}

/// Parses a duration in seconds. The minimum is a millisecond.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds
        .filter(|seconds| *seconds >= Duration::from_millis(1) && *seconds <= Duration::from_secs(3_600))
        .ok_or_else(|| "expected seconds from 0.001 to 3600".to_owned())
}

/// Worker processes of the comparison.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum Process {
    /// Serves this number of backends.
    #[command(hide = true)]
    Backends { servers: ServerKind, backends: usize },
    /// Serves a control plane over these backends.
    #[command(hide = true)]
    Control { backends: Vec<SocketAddr> },
    /// Runs one client process.
    #[command(hide = true)]
    Client {
        kind: clients::Kind,
        #[command(flatten)]
        args: ClientArgs,
    },
}

impl Process {
    pub(crate) fn run(self) -> Result<(), Error> {
        match self {
            Process::Backends { servers, backends } => backends::run(backends, servers),
            Process::Control { backends } => control::run(&backends),
            Process::Client { kind, args } => {
                // Clients of other programs do not count allocations either.
                Totals::stop();
                clients::run(kind, &args)
            }
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<Measured, Error> {
    let chosen = chosen(args);
    let clients = chosen.iter().flat_map(|(_, clients)| clients.iter().copied());
    let peers = runtime()?.block_on(Peers::install(clients));
    let mut harnesses = BTreeMap::new();
    let mut results = Vec::new();
    for (scenario, clients) in &chosen {
        let harness = match harnesses.entry((scenario.servers, scenario.backends)) {
            std::collections::btree_map::Entry::Occupied(harness) => harness.into_mut(),
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert(CallHarness::start(scenario.servers, scenario.backends)?)
            }
        };
        results.push(rounds(*scenario, clients, args, &peers, harness));
    }
    let shares = shares::measure(&chosen, args, &peers)?;
    let mut tables: Vec<Table> = results.iter().map(Results::table).collect();
    tables.extend(shares.table());
    Ok(Measured {
        thresholds: thresholds::thresholds(&results, &shares),
        tables,
        versions: peers.versions().collect(),
    })
}

/// Runs every client of a scenario in every round.
fn rounds(
    scenario: Scenario,
    clients: &[BenchClient],
    args: &Args,
    peers: &Peers,
    harness: &mut CallHarness,
) -> Results {
    let mut results = Results::new(scenario, clients, args.threads.get(), peers.left_out(clients));
    let clients: Vec<BenchClient> = clients.iter().filter(|client| peers.have(client)).copied().collect();
    let task = Task {
        payload: scenario.payload,
        concurrency: scenario.concurrency,
        warm_up: warm_up(args.seconds),
        span: Span::Time(args.seconds),
        threads: args.threads.get(),
    };
    for round in 0..args.rounds {
        eprintln!("{scenario}: round {} of {}", round + 1, args.rounds);
        for turn in 0..clients.len() {
            let client = clients[(round + turn) % clients.len()];
            match harness.run(&client, task, peers) {
                Ok((figures, _)) => results.add(round, client, figures),
                Err(error) => {
                    eprintln!("\n{error}\n");
                    results.fail(client, &error);
                }
            }
        }
    }
    results
}

/// Returns the warm-up time. It is long enough to establish every connection and to warm the caches.
fn warm_up(span: Duration) -> Duration {
    span.mul_f64(0.3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_bounded() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        for wrong in ["", "0", "-1", "inf", "1e9", "fast"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        assert!(at_least_one("0").is_err() && at_least_one("7") == Ok(7));
    }
}
