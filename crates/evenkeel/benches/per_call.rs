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

#[path = "common/allocator.rs"]
mod allocator;
#[path = "common/backend.rs"]
mod backend;
#[path = "common/generated.rs"]
mod generated;
#[path = "common/no_channel.rs"]
mod no_channel;
#[path = "common/ours.rs"]
mod ours;
#[path = "common/process.rs"]
mod process;
#[path = "common/raw.rs"]
mod raw;
#[path = "common/wire.rs"]
mod wire;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http_body::Body as HttpBody;
use tonic::body::Body;
use tonic::client::GrpcService;
use tonic::transport::{Channel, Endpoint};

use crate::allocator::Totals;
use crate::generated::EchoClient;
use crate::no_channel::NoChannel;
use crate::process::{Server, parse, runtime};
use crate::raw::{H2, Hyper};

type Error = Box<dyn std::error::Error + Send + Sync>;

#[global_allocator]
static ALLOCATOR: Totals = Totals;

/// The first is what the others are compared with.
const CLIENTS: [&str; 6] = ["hyper", "h2", "no-channel", "tonic", "tonic-balance", "evenkeel"];
const BACKENDS: usize = 10;
const CONCURRENCY: usize = 64;
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
    let callgrind = Command::new("valgrind").arg("--version").output().is_ok_and(|out| out.status.success());
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

/// Where a call is spent: by the crate whose source it is, and by the function of the binary that it is in.
fn profile(client: &str) -> Result<(), Error> {
    let bed = Bed::new()?;
    let [few, many] = CALLS.map(|calls| bed.run(client, calls, true).and_then(|_| bed.by_place()));
    let (few, many) = (few?, many?);
    let spent = many.iter().map(|(place, count)| {
        (place.as_str(), (count - few.get(place).unwrap_or(&0.0)) / (CALLS[1] - CALLS[0]) as f64)
    });
    let spent: Vec<_> = spent.collect();
    print_top(&format!("{client}: by the crate of the source"), 15, &spent, |(file, _)| crate_of(file));
    println!();
    print_top(&format!("{client}: by function"), 40, &spent, |(_, function)| function.to_owned());
    Ok(())
}

fn print_top(title: &str, n: usize, spent: &[(&str, f64)], group: impl Fn((&str, &str)) -> String) {
    let mut groups: HashMap<String, f64> = HashMap::new();
    for (place, spent) in spent {
        // `file:function [object]`, and a function's name has colons of its own.
        let place = place.split(" [").next().unwrap_or_default();
        *groups.entry(group(place.split_once(':').unwrap_or(("", place)))).or_default() += spent;
    }
    let all: f64 = groups.values().sum();
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by(|a, b| b.1.total_cmp(&a.1));
    println!("{title}, of {all:.0} instructions per call");
    for (group, spent) in groups.iter().take(n) {
        println!("{spent:>8.0} {:>5.1} %  {group}", 100.0 * spent / all);
    }
}

/// The registry's folder, or the standard library's or the workspace's.
fn crate_of(file: &str) -> String {
    let parts: Vec<&str> = file.split('/').collect();
    let after = |name: &str| Some(parts[parts.iter().position(|part| *part == name)? + 1..].to_vec());
    match (after("src").filter(|_| file.contains("/registry/")), after("library"), after("crates")) {
        (Some(parts), ..) if parts.len() > 1 => parts[1].to_owned(),
        (_, Some(parts), _) | (_, _, Some(parts)) if !parts.is_empty() => parts[0].to_owned(),
        _ if file.contains("malloc") => "libc malloc".to_owned(),
        _ if file.contains("sysdeps") || file.contains("string") => "libc memcpy and the like".to_owned(),
        _ => "other".to_owned(),
    }
}

/// The processes that clients call, and a place for callgrind's files.
struct Bed {
    backends: Server,
    directory: tempfile::TempDir,
}

/// What a number of calls cost; `instructions` is 0 when nobody counts them.
#[derive(Clone, Copy)]
struct Cost {
    instructions: f64,
    allocations: f64,
    held: f64,
}

impl Bed {
    fn new() -> Result<Self, Error> {
        let backends = Server::start(&["serve".to_owned(), BACKENDS.to_string()])?;
        Ok(Self { backends, directory: tempfile::tempdir()? })
    }

    fn per_call(&self, client: &str, callgrind: bool) -> Result<Cost, Error> {
        let [few, many] = CALLS.map(|calls| self.run(client, calls, callgrind));
        let (few, many) = (few?, many?);
        let calls = (CALLS[1] - CALLS[0]) as f64;
        Ok(Cost {
            instructions: (many.instructions - few.instructions) / calls,
            allocations: (many.allocations - few.allocations) / calls,
            held: (many.held - few.held) / calls,
        })
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
        let program = std::env::current_exe()?;
        let mut command = if callgrind {
            let mut valgrind = Command::new("valgrind");
            valgrind.arg("-q").arg("--tool=callgrind");
            valgrind.arg(format!("--callgrind-out-file={}", self.counts().display())).arg(program);
            valgrind
        } else {
            Command::new(program)
        };
        let out = command.args(["client", client, &calls.to_string()]).args(addresses).output()?;
        if !out.status.success() {
            return Err(String::from_utf8_lossy(&out.stderr).trim().into());
        }
        let printed = String::from_utf8(out.stdout)?;
        let (allocations, held) = printed.trim().split_once(' ').ok_or("the client printed no totals")?;
        let instructions = if callgrind { self.instructions()? } else { 0.0 };
        Ok(Cost { instructions, allocations: allocations.parse()?, held: held.parse()? })
    }

    fn counts(&self) -> PathBuf {
        self.directory.path().join("callgrind.out")
    }

    fn instructions(&self) -> Result<f64, Error> {
        let counts = std::fs::read_to_string(self.counts())?;
        let total = counts.lines().find_map(|line| line.strip_prefix("totals: "));
        Ok(total.ok_or("callgrind wrote no totals")?.trim().parse()?)
    }

    /// The instructions of the last run by file and function, as callgrind's own tool reads them.
    fn by_place(&self) -> Result<HashMap<String, f64>, Error> {
        let out = Command::new("callgrind_annotate")
            .args(["--threshold=100", "--show-percs=no", "--auto=no"])
            .arg(self.counts())
            .output()?;
        let mut places = HashMap::new();
        for line in String::from_utf8(out.stdout)?.lines() {
            let Some((count, name)) = line.trim().split_once("  ") else { continue };
            if let Ok(count) = count.replace(',', "").parse::<f64>() {
                *places.entry(name.to_owned()).or_default() += count;
            }
        }
        places.retain(|name, _| !name.starts_with("PROGRAM TOTALS"));
        if places.is_empty() { Err("callgrind_annotate printed nothing".into()) } else { Ok(places) }
    }
}

fn serve(backends: &str) -> Result<(), Error> {
    let addresses = vec![SocketAddr::from(([127, 0, 0, 1], 0)); backends.parse()?];
    runtime()?.block_on(backend::serve(addresses))
}

fn control(backends: &[&str]) -> Result<(), Error> {
    let backends = parse(backends)?;
    runtime()?.block_on(async {
        println!("{}", ours::control_plane(&backends).await?);
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

/// What makes a call and waits for its answer.
trait Client: Clone + Send + 'static {
    fn call(&mut self) -> impl Future<Output = Result<(), Error>> + Send;
}

impl<T> Client for EchoClient<T>
where
    T: GrpcService<Body> + Clone + Send + 'static,
    T::Future: Send,
    T::Error: Into<Error>,
    T::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
    <T::ResponseBody as HttpBody>::Error: Into<Error> + Send,
{
    async fn call(&mut self) -> Result<(), Error> {
        EchoClient::call(self).await
    }
}

impl Client for RoundRobin<Hyper> {
    async fn call(&mut self) -> Result<(), Error> {
        self.next().call().await
    }
}

impl Client for RoundRobin<H2> {
    async fn call(&mut self) -> Result<(), Error> {
        self.next().call().await
    }
}

/// Every task has senders of its own, made once, and takes its turns with the others.
#[derive(Clone)]
struct RoundRobin<C> {
    connections: Vec<C>,
    turn: Arc<AtomicUsize>,
}

impl<C> RoundRobin<C> {
    fn new(connections: Vec<C>) -> Self {
        Self { connections, turn: Arc::default() }
    }

    fn next(&mut self) -> &mut C {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.connections.len();
        &mut self.connections[turn]
    }
}

async fn drive(client: impl Client, calls: usize) -> Result<(), Error> {
    rounds(&client, WARM_UP).await?;
    rounds(&client, calls).await
}

async fn rounds(client: &impl Client, calls: usize) -> Result<(), Error> {
    let started = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..CONCURRENCY {
        let (mut client, started) = (client.clone(), started.clone());
        tasks.spawn(async move {
            while started.fetch_add(1, Ordering::Relaxed) < calls {
                client.call().await?;
            }
            Ok::<_, Error>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}
