//! What a connected endpoint costs the client process in memory: live heap bytes, for several clients in one run.
//!
//! `cargo bench -p evenkeel --bench per_endpoint`. Every client is a process of its own that connects to 1,000 endpoints
//! (one listener behind as many loopback addresses, in another process) and makes one call of 16 bytes on each. What its heap
//! holds beyond what it held before the first connection, divided by the endpoints, is printed; nothing is timed. *resident* is
//! by how much the process's memory grew as the system sees it (Linux): less, since a part of the buffers is never
//! written to, and rounded to pages. The kernel's memory of sockets is the same for all and not counted.
//!
//! `hyper`: hyper's `SendRequest`; `h2`: h2's, with the windows that hyper asks for; `evenkeel`: our channel, xDS, weighted_round_robin, with
//! all that it knows of an endpoint.

#[path = "../../../bench/src/common/allocator.rs"]
mod allocator;
#[path = "../../../bench/src/common/backend.rs"]
mod backend;
#[path = "../../../bench/src/common/generated.rs"]
mod generated;
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
#[path = "../../../bench/src/common/wire.rs"]
mod wire;

use std::net::SocketAddr;
use std::process::{Command, ExitCode};

use evenkeel_proto::envoy::extensions::load_balancing_policies::client_side_weighted_round_robin::v3::ClientSideWeightedRoundRobin;

use crate::allocator::Totals;
use crate::generated::EchoClient;
use crate::process::{Server, parse, runtime};
use crate::raw_h2::H2;
use crate::raw_hyper::Hyper;

type Error = Box<dyn std::error::Error + Send + Sync>;

#[global_allocator]
static ALLOCATOR: Totals = Totals;

const CLIENTS: [&str; 3] = ["hyper", "h2", "evenkeel"];
const ENDPOINTS: u16 = 1_000;

fn main() -> ExitCode {
    // Cargo adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        [] => compare(),
        ["serve"] => serve(),
        ["control", backend] => control(backend),
        ["client", client, address] => run_client(client, address),
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

fn compare() -> Result<(), Error> {
    println!("heap of the client per endpoint, {ENDPOINTS} endpoints connected, one call each");
    println!("{:14} {:>10} {:>14} {:>20}", "client", "heap, KiB", "resident, KiB", "allocations so far");
    let backend = Server::start(&["serve".to_owned()])?;
    for client in CLIENTS {
        match measure(client, &backend.addresses[0]) {
            Ok(Cost { held, resident, allocations }) => {
                let [held, resident, allocations] =
                    [held, resident, allocations].map(|total| total as f64 / f64::from(ENDPOINTS));
                let held = held / 1024.0;
                println!("{client:14} {held:>10.1} {resident:>14.1} {allocations:>20.1}");
            }
            Err(error) => println!("{client:14} {error}"),
        }
    }
    Ok(())
}

/// What all connections together take: live bytes, resident KiB, and how often memory was asked for.
struct Cost {
    held: i64,
    resident: i64,
    allocations: i64,
}

impl Cost {
    fn now() -> Self {
        let (allocations, held) = Totals::now();
        Self { held, resident: resident(), allocations: allocations.cast_signed() }
    }
}

/// 0 where the system does not say.
fn resident() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0)
}

fn measure(client: &str, backend: &str) -> Result<Cost, Error> {
    // Ends with this function.
    let control;
    let address = if client == "evenkeel" {
        control = Server::start(&["control".to_owned(), backend.to_owned()])?;
        &control.addresses[0]
    } else {
        backend
    };
    let out = Command::new(std::env::current_exe()?).args(["client", client, address]).output()?;
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).trim().into());
    }
    let printed = String::from_utf8(out.stdout)?;
    let totals: Vec<i64> = printed.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let [held, resident, allocations] = totals[..] else { return Err("the client printed no totals".into()) };
    Ok(Cost { held, resident, allocations })
}

fn serve() -> Result<(), Error> {
    runtime()?.block_on(backend::serve(vec![SocketAddr::from(([0, 0, 0, 0], 0))], Vec::new()))
}

fn control(backend: &str) -> Result<(), Error> {
    let backends: Vec<_> = endpoints(parse(&[backend])?[0]).collect();
    runtime()?.block_on(async {
        println!("{}", ours::control_plane(&backends, ClientSideWeightedRoundRobin::default()).await?);
        process::until_stdin_ends().await
    })
}

/// One client process. `evenkeel` is given the control plane's address, the others the backend's.
fn run_client(client: &str, address: &str) -> Result<(), Error> {
    let address = parse(&[address])?[0];
    runtime()?.block_on(async {
        let before = Cost::now();
        // Held until it is counted.
        let _connected: Box<dyn Send> = match client {
            "hyper" => {
                let mut connections = Vec::new();
                for endpoint in endpoints(address) {
                    let mut connection = Hyper::connect(endpoint).await?;
                    connection.call().await?;
                    connections.push(connection);
                }
                Box::new(connections)
            }
            "h2" => {
                let mut connections = Vec::new();
                for endpoint in endpoints(address) {
                    let mut connection = H2::connect(endpoint).await?;
                    connection.call().await?;
                    connections.push(connection);
                }
                Box::new(connections)
            }
            "evenkeel" => {
                let mut channel = EchoClient::new(ours::channel(address).await?);
                for _ in 0..ENDPOINTS {
                    channel.call().await?;
                }
                Box::new(channel)
            }
            other => return Err(format!("unknown client {other:?}").into()),
        };
        let after = Cost::now();
        println!(
            "{} {} {}",
            after.held - before.held,
            after.resident - before.resident,
            after.allocations - before.allocations
        );
        Ok(())
    })
}

/// The backend listens on every loopback address; each is an endpoint.
fn endpoints(backend: SocketAddr) -> impl Iterator<Item = SocketAddr> {
    (0..ENDPOINTS).map(move |i| {
        let [high, low] = i.to_be_bytes();
        SocketAddr::from(([127, 0, high + 1, low], backend.port()))
    })
}
