//! What a unary call costs the client process: instructions and allocations, for several clients in one run.
//!
//! `cargo bench -p evenkeel --bench per_call`. It counts and reads no clock, so that a busy machine gives the same figures.
//! Every client makes calls with 16 bytes each way, 64 at a time, over 10 backends on loopback (`tonic` over one). Backends
//! run in a process of their own. A client runs twice, under callgrind, with different numbers of calls after the same
//! warm-up; the difference of the two counts, divided by the calls between, is a call's. So whatever happens once cancels out.
//! User-space instructions of all threads count, those of the kernel do not. *held* is what the heap grew by; a client
//! that leaks shows there.
//!
//! A client has one thread (a `current_thread` runtime): callgrind runs threads one at a time anyway, and with workers the
//! looking for work and the waking of each other, which depend on the moment, would be counted too. It is the same for all:
//! hyper's and tonic's connection tasks run on that thread as well. Backends are fast beside a client under callgrind, so
//! answers always wait to be read and come in batches: these are the figures of a busy client, not of a single call.
//!
//! | client | what it is |
//! |---|---|
//! | `hyper` | hyper's `SendRequest`, an atomic round robin over 10 connections |
//! | `h2` | h2's `SendRequest`, likewise |
//! | `no-channel` | generated client alone: what it calls answers from memory |
//! | `tonic` | generated client over a tonic channel to one backend |
//! | `tonic-balance` | generated client over `Channel::balance_list` |
//! | `evenkeel` | generated client over our channel: xDS, weighted_round_robin |
//!
//! Without valgrind only allocations are counted. `-- --profile hyper` prints where a call's instructions are spent; with
//! `CARGO_PROFILE_BENCH_DEBUG=line-tables-only` before it also by the crate that they come from, however they are inlined.
//! `-- client hyper 1000 127.0.0.1:1 127.0.0.1:2` is one client, `-- serve 10` the backends, for other tools.

#[path = "../../../bench/src/common/allocator.rs"]
mod allocator;
#[path = "../../../bench/src/common/backend.rs"]
mod backend;
#[path = "../../../bench/src/common/callgrind.rs"]
mod callgrind;
#[path = "../../../bench/src/common/generated.rs"]
mod generated;
#[path = "../../../bench/src/common/no_channel.rs"]
mod no_channel;
#[path = "../../../bench/src/common/ours.rs"]
mod ours;
#[path = "../../../bench/src/common/process.rs"]
mod process;
#[path = "../../../bench/src/common/raw.rs"]
mod raw;
#[path = "../../../bench/src/common/raw_h2.rs"]
mod raw_h2;
#[path = "../../../bench/src/common/raw_hyper.rs"]
mod raw_hyper;
#[path = "../../../bench/src/common/rounds.rs"]
mod rounds;
#[path = "../../../bench/src/common/wire.rs"]
mod wire;

use std::net::SocketAddr;
use std::process::{Command, ExitCode};

use evenkeel_proto::envoy::extensions::load_balancing_policies::client_side_weighted_round_robin::v3::ClientSideWeightedRoundRobin;
use tonic::transport::{Channel, Endpoint};

use crate::allocator::Totals;
use crate::callgrind::{Callgrind, Cost, print_profile};
use crate::generated::EchoClient;
use crate::no_channel::NoChannel;
use crate::process::{Server, parse, runtime};
use crate::raw_h2::H2;
use crate::raw_hyper::Hyper;
use crate::rounds::{CONCURRENCY, Client, RoundRobin, rounds};

type Error = Box<dyn std::error::Error + Send + Sync>;

#[global_allocator]
static ALLOCATOR: Totals = Totals;

/// The first is what the others are compared with.
const CLIENTS: [&str; 6] = ["hyper", "h2", "no-channel", "tonic", "tonic-balance", "evenkeel"];
const BACKENDS: usize = 10;
const WARM_UP: usize = 1_000;
const CALLS: [usize; 2] = [2_000, 6_000];

fn main() -> ExitCode {
    // Cargo adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        [] => compare(),
        ["--profile", client] => profile(client),
        ["serve", backends] => serve(backends),
        ["control", ref backends @ ..] => control(backends),
        ["client", client, calls, ref addresses @ ..] => run_client(client, calls, addresses),
        _ => Err(format!("unknown arguments {arguments:?}; the bench's head says what there is").into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The table.
fn compare() -> Result<(), Error> {
    let callgrind = Callgrind::is_installed();
    if !callgrind {
        eprintln!("\nVALGRIND IS NOT INSTALLED: INSTRUCTIONS ARE NOT COUNTED, only allocations\n");
    }
    println!("per unary call of 16 bytes, {BACKENDS} backends, {CONCURRENCY} calls at a time");
    println!("{:14} {:>12} {:>8} {:>12} {:>8}", "client", "instructions", "ratio", "allocations", "held, B");
    let bed = Bed::new()?;
    let mut first = None;
    for client in CLIENTS {
        match bed.per_call(client, callgrind) {
            Ok(Cost { instructions, allocations, held }) => {
                let first = *first.get_or_insert(instructions);
                let (instructions, ratio) = if callgrind {
                    (format!("{instructions:.0}"), format!("{:.2}", instructions / first))
                } else {
                    ("-".to_owned(), "-".to_owned())
                };
                println!("{client:14} {instructions:>12} {ratio:>8} {allocations:>12.2} {held:>8.2}");
            }
            Err(error) => println!("{client:14} {error}"),
        }
    }
    Ok(())
}

fn profile(client: &str) -> Result<(), Error> {
    let bed = Bed::new()?;
    let [few, many] = CALLS.map(|calls| bed.run(client, calls, true).and_then(|_| bed.callgrind.by_place()));
    print_profile(client, &few?, &many?, CALLS[1] - CALLS[0]);
    Ok(())
}

/// The processes that clients call, and a place for callgrind's files.
struct Bed {
    backends: Server,
    callgrind: Callgrind,
}

impl Bed {
    fn new() -> Result<Self, Error> {
        let backends = Server::start(&["serve".to_owned(), BACKENDS.to_string()])?;
        Ok(Self { backends, callgrind: Callgrind::new()? })
    }

    fn per_call(&self, client: &str, callgrind: bool) -> Result<Cost, Error> {
        let [few, many] = CALLS.map(|calls| self.run(client, calls, callgrind));
        Ok(Cost::of_each(few?, many?, CALLS[1] - CALLS[0]))
    }

    /// What a client process costs as a whole.
    fn run(&self, client: &str, calls: usize, callgrind: bool) -> Result<Cost, Error> {
        // Ends with this function.
        let control;
        let addresses = if client == "evenkeel" {
            let mut arguments = vec!["control".to_owned()];
            arguments.extend(self.backends.addresses.iter().cloned());
            control = Server::start(&arguments)?;
            &control.addresses
        } else {
            &self.backends.addresses
        };
        let mut command =
            if callgrind { self.callgrind.command()? } else { Command::new(std::env::current_exe()?) };
        let out = command.args(["client", client, &calls.to_string()]).args(addresses).output()?;
        if !out.status.success() {
            return Err(String::from_utf8_lossy(&out.stderr).trim().into());
        }
        let printed = String::from_utf8(out.stdout)?;
        let (allocations, held) = printed.trim().split_once(' ').ok_or("the client printed no totals")?;
        let instructions = if callgrind { self.callgrind.instructions()? } else { 0.0 };
        Ok(Cost { instructions, allocations: allocations.parse()?, held: held.parse()? })
    }
}

fn serve(backends: &str) -> Result<(), Error> {
    let addresses = vec![SocketAddr::from(([127, 0, 0, 1], 0)); backends.parse()?];
    runtime()?.block_on(backend::serve(addresses, Vec::new()))
}

fn control(backends: &[&str]) -> Result<(), Error> {
    let backends = parse(backends)?;
    runtime()?.block_on(async {
        println!("{}", ours::control_plane(&backends, ClientSideWeightedRoundRobin::default()).await?);
        process::until_stdin_ends().await
    })
}

/// One client process. `evenkeel` is given the control plane's address, the others those of the backends.
fn run_client(client: &str, calls: &str, addresses: &[&str]) -> Result<(), Error> {
    let calls = calls.parse()?;
    let addresses = parse(addresses)?;
    let first = *addresses.first().ok_or("no address")?;
    let endpoint = |address| Endpoint::from_shared(format!("http://{address}"));
    runtime()?.block_on(async {
        match client {
            "hyper" => {
                let mut connections = Vec::new();
                for address in addresses {
                    connections.push(Hyper::connect(address).await?);
                }
                drive(RoundRobin::new(connections), calls).await
            }
            "h2" => {
                let mut connections = Vec::new();
                for address in addresses {
                    connections.push(H2::connect(address).await?);
                }
                drive(RoundRobin::new(connections), calls).await
            }
            "no-channel" => drive(EchoClient::new(NoChannel), calls).await,
            "tonic" => drive(EchoClient::new(endpoint(first)?.connect().await?), calls).await,
            "tonic-balance" => {
                let endpoints: Result<Vec<_>, _> = addresses.into_iter().map(endpoint).collect();
                drive(EchoClient::new(Channel::balance_list(endpoints?.into_iter())), calls).await
            }
            "evenkeel" => drive(EchoClient::new(ours::channel(first).await?), calls).await,
            other => Err(format!("unknown client {other:?}").into()),
        }
    })?;
    let (count, held) = Totals::now();
    println!("{count} {held}");
    Ok(())
}

impl Client for Hyper {
    async fn call(&mut self) -> Result<(), Error> {
        Hyper::call(self).await
    }
}

async fn drive(client: impl Client, calls: usize) -> Result<(), Error> {
    rounds(&client, WARM_UP).await?;
    rounds(&client, calls).await
}
