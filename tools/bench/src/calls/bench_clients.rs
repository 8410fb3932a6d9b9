//! Clients of the comparison: names, programs and targets.

use crate::calls::clients::Kind;

/// Client of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BenchClient {
    pub(crate) name: &'static str,
    pub(crate) program: Program,
    pub(crate) target: Target,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    /// Client that is part of this program.
    Own(Kind),
    /// Client in a folder of `tools/bench/peers`.
    Peer(&'static str),
}

/// Target of the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    AllBackends,
    FirstBackend,
    /// Name that the control plane serves.
    Xds(&'static str),
}

const fn bench_client(name: &'static str, program: Program, target: Target) -> BenchClient {
    BenchClient { name, program, target }
}

const fn ours(name: &'static str, policy: &'static str) -> BenchClient {
    bench_client(name, Program::Own(Kind::Evenkeel), Target::Xds(policy))
}

pub(crate) const HYPER: BenchClient = bench_client("hyper", Program::Own(Kind::Hyper), Target::AllBackends);
pub(crate) const H2: BenchClient = bench_client("h2", Program::Own(Kind::H2), Target::AllBackends);
pub(crate) const TONIC: BenchClient = bench_client("tonic", Program::Own(Kind::Tonic), Target::FirstBackend);
pub(crate) const TONIC_BALANCE: BenchClient =
    bench_client("tonic-balance", Program::Own(Kind::TonicBalance), Target::AllBackends);
pub(crate) const TONIC_XDS: BenchClient =
    bench_client("tonic-xds", Program::Peer("tonic-xds"), Target::Xds("round_robin"));
pub(crate) const EVENKEEL: BenchClient = ours("evenkeel-weighted_round_robin", "weighted_round_robin");
pub(crate) const EVENKEEL_EDF: BenchClient = ours("evenkeel-edf", "edf");
pub(crate) const GRPC_GO: BenchClient =
    bench_client("grpc-go", Program::Peer("go"), Target::Xds("weighted_round_robin"));

pub(crate) const ALL: [BenchClient; 11] = [
    HYPER,
    H2,
    TONIC,
    TONIC_BALANCE,
    TONIC_XDS,
    ours("evenkeel-round_robin", "round_robin"),
    EVENKEEL_EDF,
    EVENKEEL,
    ours("evenkeel-ring_hash", "ring_hash"),
    ours("evenkeel-least_request", "least_request"),
    GRPC_GO,
];

/// Clients of the scenarios that do not compare all.
pub(crate) const MAIN: [BenchClient; 7] = [HYPER, H2, TONIC, TONIC_BALANCE, TONIC_XDS, EVENKEEL, GRPC_GO];

impl BenchClient {
    /// Parses the name of the command line.
    pub(crate) fn parse(name: &str) -> Result<BenchClient, String> {
        ALL.into_iter().find(|client| client.name == name).ok_or_else(|| {
            let names: Vec<&str> = ALL.iter().map(|client| client.name).collect();
            format!("expected one of {}", names.join(", "))
        })
    }

    /// Returns the client with another name of the control plane as target.
    pub(crate) fn with_target(self, name: &'static str) -> BenchClient {
        BenchClient { target: Target::Xds(name), ..self }
    }
}
