//! Client processes, and their cost per call.
//!
//! Backends run in a process of their own, behind as many loopback addresses as endpoints. A client has one
//! thread (a `current_thread` runtime). Callgrind runs threads sequentially anyway, and with workers it would
//! also count work stealing and wake-ups, which depend on timing. The connection tasks of hyper and tonic run
//! on that thread too. Backends are fast relative to a client under callgrind, so responses arrive in
//! batches: the figures are those of a busy client, not of a single call.
//!
//! | client | implementation |
//! |---|---|
//! | `hyper` | hyper's `SendRequest`, an atomic round robin over the connections |
//! | `h2` | h2's `SendRequest`, likewise |
//! | `no-channel` | generated client alone, with responses from memory |
//! | `tonic` | generated client over a tonic channel to one backend |
//! | `tonic-balance` | generated client over `Channel::balance_list` |
//! | `evenkeel` | generated client over our channel: xDS, weighted_round_robin |

use std::net::SocketAddr;

use evenkeel_proto::envoy::extensions::load_balancing_policies::client_side_weighted_round_robin::v3::ClientSideWeightedRoundRobin;
use tonic::transport::{Channel, Endpoint};

use super::marks::{Sections, mark};
use crate::Error;
use crate::common::allocator::Totals;
use crate::common::generated::EchoClient;
use crate::common::no_channel::NoChannel;
use crate::common::process::{WorkerProcess, exactly, printed_numbers, runtime, until_stdin_ends};
use crate::common::profile::{Places, is_valgrind_installed};
use crate::common::raw_h2::H2;
use crate::common::raw_hyper::Hyper;
use crate::common::rounds::{Client, RoundRobin, rounds};
use crate::common::{backend, ours};

/// Client names. The first is the baseline.
pub(super) const CLIENTS: [&str; 6] = ["hyper", "h2", "no-channel", "tonic", "tonic-balance", "evenkeel"];

/// Minimum number of calls before the counted ones. Every connection gets some.
const WARM_UP: usize = 1_000;

/// Backends that clients call, and a folder for callgrind's files.
pub(super) struct CountHarness {
    backends: WorkerProcess,
    sections: Option<Sections>,
}

/// Cost of one call.
pub(super) struct Cost {
    /// `None` if valgrind is missing.
    pub(super) instructions: Option<f64>,
    pub(super) allocations: f64,
    pub(super) held: f64,
}

/// Number of endpoints by use.
#[derive(Clone, Copy)]
pub(super) struct Endpoints {
    /// Endpoints that are connected and called.
    pub(super) called: u16,
    /// Endpoints in an unused priority, which only evenkeel knows.
    pub(super) standing_by: u16,
}

impl From<u16> for Endpoints {
    fn from(called: u16) -> Endpoints {
        Endpoints { called, standing_by: 0 }
    }
}

impl CountHarness {
    /// Starts the backends. Instructions are counted if valgrind is installed.
    pub(super) fn new() -> Result<Self, Error> {
        let backends = WorkerProcess::start(["counts-worker", "serve"])?;
        let sections = is_valgrind_installed().then(Sections::new).transpose()?;
        Ok(Self { backends, sections })
    }

    pub(super) fn per_call(&self, client: &str, endpoints: Endpoints, calls: u32) -> Result<Cost, Error> {
        let [allocations, held] = self.run(client, endpoints, calls)?;
        let each = |total: f64| total / f64::from(calls);
        let instructions = match &self.sections {
            // The first section is everything before the first mark.
            Some(sections) => Some(*sections.instructions()?.get(1).ok_or("callgrind reported no marks")?),
            None => None,
        };
        Ok(Cost { instructions: instructions.map(each), allocations: each(allocations), held: each(held) })
    }

    /// Returns the instructions of all calls by file and function.
    pub(super) fn places(&self, client: &str, endpoints: Endpoints, calls: u32) -> Result<Places, Error> {
        let sections = self.sections.as_ref().ok_or("a profile requires valgrind: install it")?;
        self.run(client, endpoints, calls)?;
        sections.by_place(1)
    }

    /// Runs a client to completion. Returns the number of allocations of the counted calls, and the growth of
    /// bytes in use.
    fn run(&self, client: &str, endpoints: Endpoints, calls: u32) -> Result<[f64; 2], Error> {
        let Endpoints { called, standing_by } = endpoints;
        let backends = self.backends.port()?;
        // Dropped at the end of this function.
        let control;
        let port = if client == "evenkeel" {
            let numbers = [backends, called, standing_by].map(|number| number.to_string());
            control = WorkerProcess::start(
                ["counts-worker", "control"].into_iter().chain(numbers.each_ref().map(String::as_str)),
            )?;
            control.port()?
        } else {
            backends
        };
        let mut command = Sections::command_or_plain(self.sections.as_ref())?;
        let numbers = [u32::from(port), called.into(), calls].map(|number| number.to_string());
        let name = format!("client {client}");
        exactly(
            printed_numbers(command.args(["counts-worker", "client", client]).args(numbers), &name)?,
            &name,
        )
    }
}

pub(super) fn serve() -> Result<(), Error> {
    runtime()?.block_on(backend::serve(vec![SocketAddr::from(([0, 0, 0, 0], 0))], Vec::new()))
}

pub(super) fn control(port: u16, endpoints: u16, standing_by: u16) -> Result<(), Error> {
    runtime()?.block_on(async {
        let all = addresses(port, endpoints + standing_by);
        let (backends, standing_by) = all.split_at(endpoints.into());
        let config = ClientSideWeightedRoundRobin::default();
        println!("{}", ours::control_plane(backends, standing_by, config).await?);
        until_stdin_ends().await
    })
}

/// Runs one client process. `evenkeel` gets the control plane's port, the others that of the backends.
pub(super) fn client(client: &str, port: u16, endpoints: u16, calls: u32) -> Result<(), Error> {
    let addresses = addresses(port, endpoints);
    let first = *addresses.first().ok_or("no endpoints")?;
    let endpoint = |address| Endpoint::from_shared(format!("http://{address}"));
    let drive = Drive { warm_up: WARM_UP.max(4 * usize::from(endpoints)), calls: calls as usize };
    runtime()?.block_on(async {
        match client {
            "hyper" => {
                let mut connections = Vec::new();
                for address in addresses {
                    connections.push(Hyper::connect(address).await?);
                }
                drive.run(RoundRobin::new(connections)).await
            }
            "h2" => {
                let mut connections = Vec::new();
                for address in addresses {
                    connections.push(H2::connect(address).await?);
                }
                drive.run(RoundRobin::new(connections)).await
            }
            "no-channel" => drive.run(EchoClient::new(NoChannel)).await,
            "tonic" => drive.run(EchoClient::new(endpoint(first)?.connect().await?)).await,
            "tonic-balance" => {
                let endpoints: Result<Vec<_>, _> = addresses.into_iter().map(endpoint).collect();
                drive.run(EchoClient::new(Channel::balance_list(endpoints?.into_iter()))).await
            }
            "evenkeel" => {
                let control = SocketAddr::from(([127, 0, 0, 1], port));
                drive.run(EchoClient::new(ours::channel(control).await?)).await
            }
            other => Err(format!("unknown client {other:?}").into()),
        }
    })
}

impl Client for Hyper {
    async fn call(&mut self) -> Result<(), Error> {
        Hyper::call(self).await
    }
}

struct Drive {
    warm_up: usize,
    calls: usize,
}

impl Drive {
    /// Makes the calls and prints the allocations of the counted ones.
    async fn run(&self, client: impl Client) -> Result<(), Error> {
        rounds(&client, self.warm_up).await?;
        mark();
        let before = Totals::now();
        rounds(&client, self.calls).await?;
        let after = Totals::now();
        mark();
        println!("{} {}", after.0 - before.0, after.1 - before.1);
        Ok(())
    }
}

/// Returns the loopback addresses of the endpoints. The backend listens on all of them.
pub(crate) fn addresses(port: u16, endpoints: u16) -> Vec<SocketAddr> {
    let address = |i: u16| {
        let [high, low] = i.to_be_bytes();
        SocketAddr::from(([127, 1, high, low], port))
    };
    (0..endpoints).map(address).collect()
}
