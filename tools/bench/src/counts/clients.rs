//! The clients of a call: processes that make calls, and what each call costs them.
//!
//! Backends run in a process of their own, behind as many loopback addresses as there are to be endpoints. A client
//! has one thread (a `current_thread` runtime): callgrind runs threads one at a time anyway, and with workers the looking for
//! work and the waking of each other, which depend on the moment, would be counted too. It is the same for all: hyper's
//! and tonic's connection tasks run on that thread as well. Backends are fast beside a client under callgrind, so answers
//! always wait to be read and come in batches: these are the figures of a busy client, not of a single call.
//!
//! | client | what it is |
//! |---|---|
//! | `hyper` | hyper's `SendRequest`, an atomic round robin over the connections |
//! | `h2` | h2's `SendRequest`, likewise |
//! | `no-channel` | generated client alone: what it calls answers from memory |
//! | `tonic` | generated client over a tonic channel to one backend |
//! | `tonic-balance` | generated client over `Channel::balance_list` |
//! | `evenkeel` | generated client over our channel: xDS, weighted_round_robin |

use std::net::SocketAddr;
use std::process::Command;

use evenkeel_proto::envoy::extensions::load_balancing_policies::client_side_weighted_round_robin::v3::ClientSideWeightedRoundRobin;
use tonic::transport::{Channel, Endpoint};

use super::marks::{Sections, mark};
use crate::Error;
use crate::common::allocator::Totals;
use crate::common::generated::EchoClient;
use crate::common::no_channel::NoChannel;
use crate::common::process::{Server, parse, runtime, until_stdin_ends};
use crate::common::profile::{Places, is_valgrind_installed};
use crate::common::raw_h2::H2;
use crate::common::raw_hyper::Hyper;
use crate::common::rounds::{Client, RoundRobin, rounds};
use crate::common::{backend, ours};

/// The first is what the others are compared with.
pub(super) const CLIENTS: [&str; 6] = ["hyper", "h2", "no-channel", "tonic", "tonic-balance", "evenkeel"];

/// At least so many calls come before those that count, and some on every connection.
const WARM_UP: usize = 1_000;

/// The backends that clients call, and a place for callgrind's files.
pub(super) struct Harness {
    backends: Server,
    sections: Option<Sections>,
}

/// What one call costs.
pub(super) struct Cost {
    /// Unknown without valgrind.
    pub(super) instructions: Option<f64>,
    pub(super) allocations: f64,
    pub(super) held: f64,
}

/// How many endpoints there are.
#[derive(Clone, Copy)]
pub(super) struct Endpoints {
    /// Those that are connected and called.
    pub(super) called: u16,
    /// Those that only evenkeel knows of, in a priority that is not used.
    pub(super) standing_by: u16,
}

impl From<u16> for Endpoints {
    fn from(called: u16) -> Endpoints {
        Endpoints { called, standing_by: 0 }
    }
}

impl Harness {
    /// Instructions are counted if valgrind is there.
    pub(super) fn new() -> Result<Self, Error> {
        let backends = Server::start(&["counts-worker".to_owned(), "serve".to_owned()])?;
        let sections = is_valgrind_installed().then(Sections::new).transpose()?;
        Ok(Self { backends, sections })
    }

    pub(super) fn per_call(&self, client: &str, endpoints: Endpoints, calls: u32) -> Result<Cost, Error> {
        let [allocations, held] = self.run(client, endpoints, calls)?;
        let each = |total: f64| total / f64::from(calls);
        let instructions = match &self.sections {
            // The first section is all that comes before.
            Some(sections) => Some(*sections.instructions()?.get(1).ok_or("callgrind saw no marks")?),
            None => None,
        };
        Ok(Cost { instructions: instructions.map(each), allocations: each(allocations), held: each(held) })
    }

    /// Where the instructions of all calls are spent.
    pub(super) fn places(&self, client: &str, endpoints: Endpoints, calls: u32) -> Result<Places, Error> {
        let sections = self.sections.as_ref().ok_or("a profile needs valgrind: install it")?;
        self.run(client, endpoints, calls)?;
        sections.by_place(1)
    }

    /// Runs a client to its end: how often it asked for memory for the calls that count, and what more of it is held.
    fn run(&self, client: &str, endpoints: Endpoints, calls: u32) -> Result<[f64; 2], Error> {
        let Endpoints { called, standing_by } = endpoints;
        let backends = port(&self.backends)?;
        // Ends with this function.
        let control;
        let port = if client == "evenkeel" {
            let numbers = [backends, called, standing_by].map(|number| number.to_string());
            control =
                Server::start(&[&["counts-worker".to_owned(), "control".to_owned()], &numbers[..]].concat())?;
            self::port(&control)?
        } else {
            backends
        };
        let mut command = match &self.sections {
            Some(sections) => sections.command()?,
            None => Command::new(std::env::current_exe()?),
        };
        let numbers = [u32::from(port), called.into(), calls].map(|number| number.to_string());
        let out = command.args(["counts-worker", "client", client]).args(numbers).output()?;
        let stderr = String::from_utf8_lossy(&out.stderr);
        if !out.status.success() {
            return Err(format!("client {client}: {}", stderr.trim()).into());
        }
        let printed = String::from_utf8(out.stdout)?;
        let totals = printed.trim().split_once(' ');
        let (allocations, held) = totals.ok_or_else(|| format!("client {client} printed no totals"))?;
        Ok([allocations.parse()?, held.parse()?])
    }
}

fn port(server: &Server) -> Result<u16, Error> {
    let address = server.addresses.first().ok_or("a server printed no address")?;
    Ok(parse(&[address])?.first().ok_or("a server printed no address")?.port())
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

/// One client process. `evenkeel` is given the control plane's port, the others that of the backends.
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
    /// Makes the calls and prints what those that count asked of the allocator.
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

/// The backend listens on every loopback address; each is an endpoint.
pub(crate) fn addresses(port: u16, endpoints: u16) -> Vec<SocketAddr> {
    let address = |i: u16| {
        let [high, low] = i.to_be_bytes();
        SocketAddr::from(([127, 1, high, low], port))
    };
    (0..endpoints).map(address).collect()
}
