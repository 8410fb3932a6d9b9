//! Memory of the client process per endpoint: live heap bytes, for several clients in one run. Nothing is
//! timed.
//!
//! Every client is a process of its own. It connects to all endpoints (one listener behind as many loopback
//! addresses, in another process) and calls each of them at least once. The figure is the growth of its heap
//! since before the first connection, divided by the endpoints. *Resident* is the growth of the resident set.
//! It is smaller, since parts of the buffers are never written, and rounded to pages. The kernel's socket
//! memory is equal for all and not counted.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use evenkeel::{Bootstrap, Channel};
use evenkeel_control::{Cluster, ControlPlane, Endpoint as MeshEndpoint, Mesh, Service};
use tonic::transport::{Channel as TonicChannel, Endpoint};

use crate::Error;
use crate::common::allocator::Totals;
use crate::common::generated::EchoClient;
use crate::common::ours;
use crate::common::process::{WorkerProcess, exactly, printed_numbers, runtime, until_stdin_ends};
use crate::common::raw_h2::H2;
use crate::common::raw_hyper::Hyper;
use crate::counts::addresses;
use crate::table::Table;
use crate::thresholds::{Measured, Threshold, ThresholdResult};

/// Maximum time to connect.
const LIMIT: Duration = Duration::from_secs(60);

/// Measure live heap per endpoint, connected and idle.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of endpoints to connect.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u16).range(1..))]
    endpoints: u16,
}

/// Worker processes of the suite.
#[derive(clap::Args)]
pub(crate) struct Worker {
    #[command(subcommand)]
    work: Work,
}

#[derive(clap::Subcommand)]
enum Work {
    /// Serves a control plane with this policy over the backends at this port.
    Control { policy: String, port: u16, endpoints: u16 },
    /// Runs a client of the backends at this port, or of the control plane at this port.
    Client { client: Client, port: u16, endpoints: u16 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Client {
    Hyper,
    H2,
    TonicBalance,
    Evenkeel,
    EvenkeelIdle,
}

impl Client {
    const ALL: [Client; 5] =
        [Client::Hyper, Client::H2, Client::TonicBalance, Client::Evenkeel, Client::EvenkeelIdle];

    fn name(self) -> &'static str {
        match self {
            Client::Hyper => "hyper",
            Client::H2 => "h2",
            Client::TonicBalance => "tonic-balance",
            Client::Evenkeel => "evenkeel",
            Client::EvenkeelIdle => "evenkeel-idle",
        }
    }

    /// Returns the policy of the control plane, if there is one.
    fn policy(self) -> Option<&'static str> {
        match self {
            Client::Hyper | Client::H2 | Client::TonicBalance => None,
            Client::Evenkeel => Some("weighted_round_robin"),
            // ring_hash connects to an endpoint only when a call needs it.
            Client::EvenkeelIdle => Some("ring_hash"),
        }
    }
}

pub(crate) fn work(worker: &Worker) -> Result<(), Error> {
    match &worker.work {
        Work::Control { policy, port, endpoints } => control(policy, *port, *endpoints),
        Work::Client { client, port, endpoints } => run_client(*client, *port, *endpoints),
    }
}

pub(crate) fn run(args: &Args) -> Result<Measured, Error> {
    let columns = ["client", "heap, KiB", "resident, KiB", "allocations so far"];
    let mut table = Table::new("Memory of the client per endpoint", &columns).note(format!(
        "{} endpoints, connected and called. evenkeel-idle: endpoints of ring_hash, one of them connected.",
        args.endpoints
    ));
    let backends = WorkerProcess::start(["counts-worker", "serve"])?;
    let mut thresholds = Vec::new();
    for client in Client::ALL {
        let each = |total: i64| total as f64 / f64::from(args.endpoints);
        let Cost { held, resident, allocations } = measure(client, backends.port()?, args.endpoints)?;
        let heap = each(held) / 1024.0;
        if client == Client::Evenkeel {
            thresholds.push(ThresholdResult::figure(
                "heap of a connected endpoint, KiB",
                Threshold::AtMost(31.0),
                Some(heap),
            ));
        }
        table.row(vec![
            client.name().to_owned(),
            format!("{heap:.2}"),
            format!("{:.2}", each(resident)),
            format!("{:.1}", each(allocations)),
        ]);
    }
    Ok(Measured { thresholds, ..Measured::tables(vec![table]) })
}

/// Cost of all endpoints together: live bytes, resident KiB and number of allocations.
struct Cost {
    held: i64,
    resident: i64,
    allocations: i64,
}

impl Cost {
    fn now() -> Cost {
        let (allocations, held) = Totals::now();
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        Cost { held, resident: resident(&status), allocations: allocations.cast_signed() }
    }
}

/// Returns the resident set in KiB; 0 if unknown.
fn resident(status: &str) -> i64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0)
}

fn measure(client: Client, backends: u16, endpoints: u16) -> Result<Cost, Error> {
    // Dropped at the end of this function.
    let control;
    let numbers = [backends, endpoints].map(|number| number.to_string());
    let at = match client.policy() {
        Some(policy) => {
            let arguments = ["memory-worker", "control", policy, &numbers[0], &numbers[1]];
            control = WorkerProcess::start(arguments)?;
            control.port()?
        }
        None => backends,
    };
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["memory-worker", "client", client.name(), &at.to_string(), &numbers[1]]);
    let [held, resident, allocations] =
        exactly(printed_numbers(&mut command, client.name())?, client.name())?;
    Ok(Cost { held, resident, allocations })
}

fn control(policy: &str, port: u16, endpoints: u16) -> Result<(), Error> {
    runtime()?.block_on(async {
        let endpoints = addresses(port, endpoints).into_iter().map(MeshEndpoint::at);
        let cluster = Cluster::new().endpoints(endpoints).policy(policy);
        let mesh = Mesh::new().service("bench", Service::to("backends")).cluster("backends", cluster);
        mesh.check()?;
        let control = ControlPlane::builder().serve().await?;
        control.cache().set_mesh(&mesh);
        println!("{}", control.address());
        until_stdin_ends().await
    })
}

fn run_client(client: Client, port: u16, endpoints: u16) -> Result<(), Error> {
    runtime()?.block_on(async {
        let before = Cost::now();
        // Must live until it is counted.
        let _connected = connect(client, port, endpoints).await?;
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

/// Connects to all endpoints and calls them.
async fn connect(client: Client, port: u16, endpoints: u16) -> Result<Box<dyn Send>, Error> {
    let control = SocketAddr::from(([127, 0, 0, 1], port));
    match client {
        Client::Hyper => {
            let mut connections = Vec::new();
            for address in addresses(port, endpoints) {
                let mut connection = Hyper::connect(address).await?;
                connection.call().await?;
                connections.push(connection);
            }
            Ok(Box::new(connections))
        }
        Client::H2 => {
            let mut connections = Vec::new();
            for address in addresses(port, endpoints) {
                let mut connection = H2::connect(address).await?;
                connection.call().await?;
                connections.push(connection);
            }
            Ok(Box::new(connections))
        }
        Client::TonicBalance => balance(port, endpoints).await,
        Client::Evenkeel => {
            let mut channel = EchoClient::new(ours::channel(control).await?);
            for _ in 0..endpoints {
                channel.call().await?;
            }
            Ok(Box::new(channel))
        }
        Client::EvenkeelIdle => {
            let bootstrap = format!(
                r#"{{"xds_servers": [{{"server_uri": "{control}", "channel_creds": [{{"type": "insecure"}}]}}]}}"#
            );
            let channel =
                Channel::builder("xds:///bench").bootstrap(Bootstrap::from_json(&bootstrap)?).build()?;
            let mut client = EchoClient::new(channel.clone());
            // The first response implies a complete config.
            client.call().await?;
            Ok(Box::new(client))
        }
    }
}

/// Connects tonic's balance channel. It does not expose its connections and picks two endpoints at random.
/// Calls therefore continue until there are as many sockets as endpoints, and then several per endpoint.
async fn balance(port: u16, endpoints: u16) -> Result<Box<dyn Send>, Error> {
    let before = open_files()?;
    let all = addresses(port, endpoints).into_iter();
    let all: Vec<_> =
        all.map(|address| Endpoint::from_shared(format!("http://{address}"))).collect::<Result<_, _>>()?;
    let mut client = EchoClient::new(TonicChannel::balance_list(all.into_iter()));
    let began = Instant::now();
    client.call().await?;
    while open_files()? < before + usize::from(endpoints) {
        if began.elapsed() > LIMIT {
            return Err(format!("not connected to {endpoints} endpoints after {} s", LIMIT.as_secs()).into());
        }
        client.call().await?;
    }
    for _ in 0..8 * u32::from(endpoints) {
        client.call().await?;
    }
    Ok(Box::new(client))
}

fn open_files() -> Result<usize, Error> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_from_the_status() {
        assert_eq!(resident("VmSize:\t  100 kB\nVmRSS:\t    4321 kB\n"), 4_321);
        assert_eq!(resident(""), 0);
    }

    #[test]
    fn clients_are_started_by_their_names() {
        for client in Client::ALL {
            assert_eq!(<Client as clap::ValueEnum>::from_str(client.name(), false), Ok(client));
        }
    }
}
