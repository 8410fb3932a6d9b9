//! Scenarios: payloads, concurrency and backends, and their combinations.

use std::fmt;

use crate::calls::Args;
use crate::calls::backends::ServerKind;
use crate::calls::bench_clients::{ALL, BenchClient, MAIN, TONIC};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Payload {
    /// Unary calls with 16 bytes each way.
    #[value(name = "unary-16")]
    Unary16,
    /// Unary calls with 64 KiB each way.
    #[value(name = "unary-64k")]
    Unary64K,
    /// Server streaming: one message there, 100 back, of 16 bytes each.
    #[value(name = "stream")]
    Stream,
}

impl Payload {
    pub(crate) const ALL: [Payload; 3] = [Payload::Unary16, Payload::Unary64K, Payload::Stream];

    /// Returns the size of a message in bytes.
    pub(crate) fn size(self) -> usize {
        match self {
            Payload::Unary16 | Payload::Stream => 16,
            Payload::Unary64K => 64 * 1024,
        }
    }

    /// Returns the number of messages of a stream; 0 for a unary call.
    pub(crate) fn messages(self) -> u32 {
        match self {
            Payload::Unary16 | Payload::Unary64K => 0,
            Payload::Stream => 100,
        }
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Payload::Unary16 => "unary, 16 B",
            Payload::Unary64K => "unary, 64 KiB",
            Payload::Stream => "server streaming, 100 messages of 16 B",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scenario {
    pub(crate) payload: Payload,
    pub(crate) concurrency: usize,
    pub(crate) backends: usize,
    pub(crate) servers: ServerKind,
}

/// Scenario in which all clients are compared. The others with these servers differ from it in one parameter.
pub(crate) const BASE: Scenario =
    Scenario { payload: Payload::Unary16, concurrency: 64, backends: 10, servers: ServerKind::Batching };

/// The same with ordinary servers.
pub(crate) const TONIC_SERVERS: Scenario = Scenario { servers: ServerKind::Tonic, ..BASE };

/// Scenario that compares evenkeel with a channel to one backend.
pub(crate) const ONE_BACKEND: Scenario = Scenario { backends: 1, ..BASE };

const CONCURRENCY: [usize; 4] = [1, 16, 64, 256];
const BACKENDS: [usize; 3] = [1, 10, 100];
const SERVERS: [ServerKind; 2] = [ServerKind::Tonic, ServerKind::Batching];

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scenario { payload, concurrency, backends, servers } = self;
        let plural = if *backends == 1 { "" } else { "s" };
        write!(f, "{payload}, {concurrency} at a time, {backends} {servers} server{plural}")
    }
}

/// Returns the requested scenarios, each with its clients.
pub(crate) fn chosen(args: &Args) -> Vec<(Scenario, Vec<BenchClient>)> {
    let is_grid =
        !(args.payload.is_empty() && args.concurrency.is_empty() && args.backends.is_empty()) || args.full;
    let scenarios = if is_grid { grid(args) } else { one_at_a_time(args) };
    let clients = |scenario: Scenario| {
        if !args.clients.is_empty() {
            args.clients.clone()
        } else if is_grid || scenario == BASE || scenario == TONIC_SERVERS {
            ALL.to_vec()
        } else {
            // A client of one backend is not comparable with clients of many.
            MAIN.into_iter().filter(|client| *client != TONIC || scenario.backends == 1).collect()
        }
    };
    scenarios.into_iter().map(|scenario| (scenario, clients(scenario))).collect()
}

/// Returns all combinations of the parameters.
fn grid(args: &Args) -> Vec<Scenario> {
    fn values<T: Copy>(given: &[T], full: bool, all: &[T], base: T) -> Vec<T> {
        match given {
            [] if full => all.to_vec(),
            [] => vec![base],
            given => given.to_vec(),
        }
    }
    let mut scenarios = Vec::new();
    for payload in values(&args.payload, args.full, &Payload::ALL, BASE.payload) {
        for &backends in &values(&args.backends, args.full, &BACKENDS, BASE.backends) {
            for &concurrency in &values(&args.concurrency, args.full, &CONCURRENCY, BASE.concurrency) {
                for &servers in &values(&args.servers, args.full, &SERVERS, BASE.servers) {
                    scenarios.push(Scenario { payload, concurrency, backends, servers });
                }
            }
        }
    }
    scenarios
}

/// Returns the scenarios of each kind of server that differ in at most one parameter from its first.
fn one_at_a_time(args: &Args) -> Vec<Scenario> {
    let first = [TONIC_SERVERS, BASE].into_iter();
    let first = first.filter(|base| args.servers.is_empty() || args.servers.contains(&base.servers));
    let of = |base: Scenario| {
        let payloads = Payload::ALL.map(|payload| Scenario { payload, ..base });
        let concurrencies = CONCURRENCY.map(|concurrency| Scenario { concurrency, ..base });
        let backends = BACKENDS.map(|backends| Scenario { backends, ..base });
        let others = payloads.into_iter().chain(concurrencies).chain(backends);
        std::iter::once(base).chain(others.filter(move |scenario| *scenario != base))
    };
    first.flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::calls::bench_clients::HYPER;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn asked(line: &str) -> Vec<(Scenario, Vec<BenchClient>)> {
        chosen(&Cli::parse_from(std::iter::once("calls").chain(line.split_whitespace())).args)
    }

    #[test]
    fn by_default_one_thing_is_varied_at_a_time() {
        let asked = asked("");
        assert_eq!(asked.len(), 16);
        for (base, asked) in [TONIC_SERVERS, BASE].into_iter().zip(asked.chunks(8)) {
            assert_eq!(asked[0], (base, ALL.to_vec()));
            for (scenario, clients) in &asked[1..] {
                let same = [
                    scenario.payload == BASE.payload,
                    scenario.concurrency == BASE.concurrency,
                    scenario.backends == BASE.backends,
                ];
                assert_eq!(same.into_iter().filter(|same| *same).count(), 2, "{scenario}");
                assert_eq!(clients.contains(&TONIC), scenario.backends == 1, "{scenario}");
            }
        }
        assert!(asked.iter().any(|(scenario, _)| *scenario == ONE_BACKEND));
        let tonic: Vec<Scenario> =
            super::tests::asked("--servers tonic").into_iter().map(|(s, _)| s).collect();
        assert_eq!(tonic.len(), 8);
        assert!(tonic.iter().all(|scenario| scenario.servers == ServerKind::Tonic));
    }

    #[test]
    fn full_is_everything_with_everything() {
        let asked = asked("--full");
        assert_eq!(asked.len(), 3 * 4 * 3 * 2);
        assert!(asked.iter().all(|(_, clients)| clients.len() == ALL.len()));
    }

    #[test]
    fn what_is_given_is_measured_and_nothing_else() {
        let asked = asked("--payload stream,unary-64k --backends 3 --clients hyper");
        let scenario = |payload| Scenario { payload, backends: 3, ..BASE };
        let expected = [Payload::Stream, Payload::Unary64K].map(|payload| (scenario(payload), vec![HYPER]));
        assert_eq!(asked, expected);
    }
}
