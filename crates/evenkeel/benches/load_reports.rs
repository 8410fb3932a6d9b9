//! Cost of load reports: in a tonic server with the layer that measures and sends them, and in a channel that
//! parses them.
//!
//! Run with `cargo bench -p evenkeel --bench load_reports`; `-- --quick` takes less than a minute. Calls are
//! unary, with 16 bytes each way, 64 at a time, over loopback. The process under test has one thread for its
//! calls. Its peer is another process.
//!
//! Instructions and allocations are counted as in `per_call`: two runs with different numbers of calls, and
//! the difference divided. In these runs the server's values are set and its window never ends, so that the
//! counts do not depend on time.
//!
//! Throughput is timed in short rounds that alternate over all rows, so that other load of the machine
//! affects them alike. The table prints the median of the ratios to the first row. Processes are restarted
//! several times, since memory layout varies between them: *from - to* is the range of the medians. Windows
//! have their defaults. *CPU* is the processor time per call, including the kernel's, as a ratio. *busy* is
//! the fraction of the time in which the process under test used its CPU. If it is not near 1, the peer was
//! the bottleneck, and throughput means little. *again* is the first row measured a second time: its distance
//! from 1 is the error of the figures.
//!
//! | server | variant |
//! |---|---|
//! | `without` | a tonic server |
//! | `layer` | with `LoadLayer` |
//! | `recorded` | with `LoadLayer`, and the handler records a request cost: every call has a report of its own |
//!
//! Clients are one channel, weighted_round_robin over 4 backends. It parses per-call reports (`awaited`,
//! `read`, `read-own`), or expects out-of-band reports and ignores per-call ones. Backends do not implement
//! out-of-band reports, and the blackout period is so long that weights are never used: all pick in the same
//! order.
//!
//! | client | parsed? | reports of the backends |
//! |---|---|---|
//! | `silent` | no | no reports |
//! | `awaited` | yes | no reports |
//! | `unread`, `read` | no, yes | the same report with each call: CPU and requests per second |
//! | `unread-own`, `read-own` | no, yes | one with a request cost of the call's own |
//!
//! `-- --profile layer` prints the instructions of a call by function, as in `per_call`. The processes are
//! `-- server layer counted`, `-- serve own 4`, `-- control calls 127.0.0.1:1` and `-- client 127.0.0.1:2`. A
//! client makes as many calls as the next line of its stdin contains.

#[path = "../../../tools/bench/src/common/allocator.rs"]
mod allocator;
#[path = "../../../tools/bench/src/common/backend.rs"]
mod backend;
#[path = "../../../tools/bench/src/common/callgrind.rs"]
mod callgrind;
#[path = "../../../tools/bench/src/common/generated.rs"]
mod generated;
#[path = "../../../tools/bench/src/common/ours.rs"]
mod ours;
#[allow(dead_code, reason = "this bench uses a part of it")]
#[path = "../../../tools/bench/src/common/process.rs"]
mod process;
#[path = "../../../tools/bench/src/common/profile.rs"]
mod profile;
#[path = "../../../tools/bench/src/common/raw.rs"]
mod raw;
#[path = "../../../tools/bench/src/common/raw_h2.rs"]
mod raw_h2;
#[path = "../../../tools/bench/src/common/rounds.rs"]
mod rounds;
#[path = "../../../tools/bench/src/common/tonic_server.rs"]
mod tonic_server;
#[path = "../../../tools/bench/src/common/wire.rs"]
mod wire;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::net::SocketAddr;
use std::process::{Command, ExitCode};
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use evenkeel_orca::{OrcaLoadReport, ServerLoad, TRAILER};
use evenkeel_proto::envoy::extensions::load_balancing_policies::client_side_weighted_round_robin::v3::ClientSideWeightedRoundRobin;
use evenkeel_proto::prost::Message as _;
use evenkeel_proto::prost_types;
use http::HeaderValue;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tonic::metadata::{MetadataMap, MetadataValue};

use crate::allocator::Totals;
use crate::callgrind::{Callgrind, Cost};
use crate::generated::EchoClient;
use crate::process::{WorkerProcess, exactly, parse_numbers, runtime, until_stdin_ends};
use crate::profile::{is_valgrind_installed, print_profile};
use crate::raw_h2::H2;
use crate::rounds::{CONCURRENCY, RoundRobin, rounds};
use crate::tonic_server::Handler;

type Error = Box<dyn std::error::Error + Send + Sync>;

#[global_allocator]
static ALLOCATOR: Totals = Totals;

/// Server variants. The first is the baseline.
const SERVERS: [&str; 3] = ["without", "layer", "recorded"];
/// Client variants with the reports that backends send and the mode of the channel. The first is the
/// baseline.
const CLIENTS: [(&str, &str, &str); 6] = [
    ("silent", "none", "oob"),
    ("awaited", "none", "calls"),
    ("unread", "same", "oob"),
    ("read", "same", "calls"),
    ("unread-own", "own", "oob"),
    ("read-own", "own", "calls"),
];
/// Few backends, so that each has several concurrent calls and costs less than the client.
const BACKENDS: usize = 4;
/// Number of connections to a server.
const CONNECTIONS: usize = 4;
/// Longer than any run.
const NEVER: Duration = Duration::from_secs(3_600);

/// Amount of work per measurement.
struct Scale {
    warm_up: usize,
    counted: [usize; 2],
    /// Number of process restarts, rounds per restart, and calls per round.
    times: usize,
    turns: usize,
    calls: usize,
}

const FULL: Scale = Scale { warm_up: 1_000, counted: [2_000, 6_000], times: 6, turns: 40, calls: 2_000 };
const QUICK: Scale = Scale { warm_up: 300, counted: [300, 900], times: 2, turns: 10, calls: 1_000 };

fn main() -> ExitCode {
    // Cargo adds the argument `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        [] => compare(&FULL),
        ["--quick"] => compare(&QUICK),
        ["--profile", name] => profile(name),
        ["server", variant, window] => serve(variant, window),
        ["serve", reports, backends] => backends_with(reports, backends),
        ["control", mode, ref backends @ ..] => control(mode, backends),
        ["client", control] => client(control),
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

fn compare(scale: &Scale) -> Result<(), Error> {
    if !is_valgrind_installed() {
        eprintln!("\nVALGRIND IS NOT INSTALLED: INSTRUCTIONS ARE NOT COUNTED, only allocations\n");
    }
    println!(
        "per unary call of 16 bytes, {CONCURRENCY} at a time; {} times {} turns of {} calls for throughput",
        scale.times, scale.turns, scale.calls
    );
    let servers: Vec<BenchClient<'_>> = SERVERS.map(BenchClient::Server).into();
    let table = measure("server", &servers, scale)?;
    println!("{}\n", table.compare("the layer", "layer", "without"));
    let fleet = BackendFleet::start()?;
    let clients: Vec<BenchClient<'_>> =
        CLIENTS.iter().map(|(name, ..)| BenchClient::Client(name, &fleet)).collect();
    let table = measure("client", &clients, scale)?;
    println!("{}", table.compare("reading", "read", "unread"));
    println!("{}", table.compare("reading those of calls' own", "read-own", "unread-own"));
    Ok(())
}

fn profile(name: &str) -> Result<(), Error> {
    let fleet = BackendFleet::start()?;
    let subject = match SERVERS.iter().find(|server| **server == name) {
        Some(server) => BenchClient::Server(server),
        None => BenchClient::Client(name, &fleet),
    };
    let callgrind = Callgrind::new()?;
    let [few, many] = FULL
        .counted
        .map(|calls| subject.counted(&FULL, calls, Some(&callgrind)).and_then(|_| callgrind.by_place()));
    print_profile(name, &few?, &many?, FULL.counted[1] - FULL.counted[0]);
    Ok(())
}

/// Kind of process under test.
#[derive(Clone, Copy)]
enum BenchClient<'a> {
    Server(&'a str),
    Client(&'a str, &'a BackendFleet),
}

impl BenchClient<'_> {
    fn name(&self) -> &str {
        match self {
            BenchClient::Server(name) | BenchClient::Client(name, _) => name,
        }
    }

    /// Starts the process under test and waits until it is ready for calls.
    fn start(&self, mut command: Command, window: &str) -> Result<Running, Error> {
        match self {
            BenchClient::Server(variant) => {
                let process = WorkerProcess::run(command.args(["server", variant, window]))?;
                let runtime = runtime()?;
                let connections = runtime.block_on(connect(&process, variant))?;
                Ok(Running { process, calls: Calls::Ours(runtime, connections) })
            }
            BenchClient::Client(name, fleet) => {
                let control = fleet.controls.get(name).ok_or_else(|| format!("unknown variant {name:?}"))?;
                let process = WorkerProcess::run(command.arg("client").args(&control.addresses))?;
                Ok(Running { process, calls: Calls::Theirs })
            }
        }
    }

    /// Measures the total cost of a process for this number of calls.
    fn counted(&self, scale: &Scale, calls: usize, callgrind: Option<&Callgrind>) -> Result<Cost, Error> {
        let command = match callgrind {
            Some(callgrind) => callgrind.command()?,
            None => Command::new(std::env::current_exe()?),
        };
        let mut running = self.start(command, "counted")?;
        running.turn(scale.warm_up)?;
        running.turn(calls)?;
        let [allocations, held] = running.end()?;
        let instructions = callgrind.map_or(Ok(0.0), Callgrind::instructions)?;
        Ok(Cost { instructions, allocations, held })
    }
}

/// Running process under test.
struct Running {
    process: WorkerProcess,
    calls: Calls,
}

/// Origin of the calls.
enum Calls {
    Ours(Runtime, RoundRobin<H2>),
    Theirs,
}

impl Running {
    /// Makes this number of calls and times them.
    fn turn(&mut self, calls: usize) -> Result<Timed, Error> {
        let id = self.process.child.id();
        let (cpu, began) = (cpu_time(id), Instant::now());
        match &self.calls {
            Calls::Ours(runtime, connections) => runtime.block_on(rounds(connections, calls))?,
            Calls::Theirs => {
                let done = self.process.ask(&calls.to_string())?;
                if done != "done" {
                    return Err(format!("expected \"done\", found {done:?}").into());
                }
            }
        }
        let elapsed = began.elapsed().as_secs_f64();
        Ok(Timed { elapsed, cpu: cpu_time(id).zip(cpu).map(|(after, before)| after - before) })
    }

    /// Ends the process. Returns the number of allocations and the bytes still allocated.
    fn end(self) -> Result<[f64; 2], Error> {
        // Callgrind has written its counts when the process has ended.
        exactly(parse_numbers(&self.process.finish()?)?, "totals")
    }
}

/// Elapsed time and processor time, in seconds.
#[derive(Clone, Copy)]
struct Timed {
    elapsed: f64,
    /// Processor time; `None` if unsupported by the system.
    cpu: Option<f64>,
}

/// Returns the processor time of a process's threads so far (Linux).
fn cpu_time(process: u32) -> Option<f64> {
    let of_thread = |thread: fs::DirEntry| {
        let nanos = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        nanos.split(' ').next()?.parse::<f64>().ok()
    };
    let threads = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    threads.map(|thread| of_thread(thread.ok()?)).sum::<Option<f64>>().map(|nanos| nanos / 1e9)
}

/// Opens connections to a server, and checks that it reports load as its variant should.
async fn connect(server: &WorkerProcess, variant: &str) -> Result<RoundRobin<H2>, Error> {
    let address = server.addresses.first().ok_or("no address")?.parse()?;
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut connection = H2::connect(address).await?;
        let trailers = connection.exchange().await?.ok_or("an answer without trailers")?;
        let report = evenkeel_orca::read_trailers(&trailers).report;
        let costs = report.as_ref().map(|report| report.request_cost.len());
        if costs != [None, Some(0), Some(1)][place(&SERVERS, variant)?] {
            return Err(format!("server {variant:?} reports {report:?}").into());
        }
        connections.push(connection);
    }
    Ok(RoundRobin::new(connections))
}

fn place(names: &[&str], name: &str) -> Result<usize, Error> {
    names.iter().position(|known| *known == name).ok_or_else(|| format!("unknown variant {name:?}").into())
}

/// Backends with and without reports, and control planes that select the mode of the channels.
struct BackendFleet {
    controls: HashMap<&'static str, WorkerProcess>,
    _backends: Vec<WorkerProcess>,
}

impl BackendFleet {
    fn start() -> Result<BackendFleet, Error> {
        let mut backends = HashMap::new();
        let mut controls = HashMap::new();
        for (name, reports, mode) in CLIENTS {
            if !backends.contains_key(reports) {
                let arguments = ["serve".to_owned(), reports.to_owned(), BACKENDS.to_string()];
                backends.insert(reports, WorkerProcess::start(&arguments)?);
            }
            let mut arguments = vec!["control".to_owned(), mode.to_owned()];
            arguments.extend(backends[reports].addresses.iter().cloned());
            controls.insert(name, WorkerProcess::start(&arguments)?);
        }
        Ok(BackendFleet { controls, _backends: backends.into_values().collect() })
    }
}

/// Measures every process under test and prints one row for each.
fn measure(title: &str, subjects: &[BenchClient<'_>], scale: &Scale) -> Result<Table, Error> {
    let callgrind = if is_valgrind_installed() { Some(Callgrind::new()?) } else { None };
    let mut rows: Vec<Row> = Vec::new();
    let again = subjects.first().map(|first| ("again", *first));
    let named: Vec<_> = subjects.iter().map(|subject| (subject.name(), *subject)).chain(again).collect();
    for (name, subject) in &named {
        let [few, many] = scale.counted.map(|calls| subject.counted(scale, calls, callgrind.as_ref()));
        let cost = Cost::of_each(few?, many?, scale.counted[1] - scale.counted[0]);
        rows.push(Row { name: (*name).to_owned(), cost, times: Vec::new() });
    }
    for _ in 0..scale.times {
        let mut all = Vec::new();
        for (_, subject) in &named {
            let mut running = subject.start(Command::new(std::env::current_exe()?), "timed")?;
            running.turn(scale.warm_up)?;
            all.push(running);
        }
        for row in &mut rows {
            row.times.push(Vec::new());
        }
        for turn in 0..scale.turns {
            // Every other round runs in reverse order, which cancels linear drift.
            let mut order: Vec<usize> = (0..all.len()).collect();
            if turn % 2 == 1 {
                order.reverse();
            }
            for place in order {
                let timed = all[place].turn(scale.calls)?;
                rows[place].times.last_mut().ok_or("no time")?.push(timed);
            }
        }
    }
    let table = Table { rows, has_instructions: callgrind.is_some() };
    table.print(title);
    Ok(table)
}

struct Table {
    rows: Vec<Row>,
    has_instructions: bool,
}

struct Row {
    name: String,
    cost: Cost,
    /// Rounds of each process restart.
    times: Vec<Vec<Timed>>,
}

impl Table {
    fn print(&self, title: &str) {
        println!(
            "{title:12} {:>12} {:>7} {:>11} {:>7} {:>10} {:>15} {:>7} {:>6}",
            "instructions", "ratio", "allocations", "held, B", "throughput", "from - to", "CPU", "busy"
        );
        for row in &self.rows {
            let Some(first) = self.rows.first() else { return };
            let BaselineComparison { instructions, throughput: [low, middle, high], cpu } =
                row.against(first);
            let busy = row.times.iter().flatten().filter_map(|turn| Some(turn.cpu? / turn.elapsed));
            let busy = median(busy.collect());
            println!(
                "{:12} {:>12} {:>7} {:>11.2} {:>7.2} {middle:>10.3} {:>15} {:>7} {:>6}",
                row.name,
                self.counted(format!("{:.0}", row.cost.instructions)),
                self.counted(format!("{instructions:.3}")),
                row.cost.allocations,
                row.cost.held,
                format!("{low:.3} - {high:.3}"),
                cpu.map_or("-".to_owned(), |cpu| format!("{cpu:.3}")),
                busy.map_or("-".to_owned(), |busy| format!("{busy:.2}")),
            );
        }
    }

    fn counted(&self, instructions: String) -> String {
        if self.has_instructions { instructions } else { "-".to_owned() }
    }

    /// Returns a sentence that compares one row with another.
    fn compare(&self, what: &str, name: &str, base: &str) -> String {
        let row = |name: &str| self.rows.iter().find(|row| row.name == name);
        let (Some(row), Some(base)) = (row(name), row(base)) else { return String::new() };
        let BaselineComparison { instructions, throughput: [low, middle, high], cpu } = row.against(base);
        let instructions = self.counted(format!(
            "{:+.0} instructions ({:+.1} %)",
            row.cost.instructions - base.cost.instructions,
            100.0 * (instructions - 1.0)
        ));
        let cpu = cpu.map_or("-".to_owned(), |cpu| format!("{:+.1} %", 100.0 * (cpu - 1.0)));
        format!(
            "{what} ({name} beside {}): {instructions}, {:+.2} allocations, throughput {middle:.3} ({low:.3} - {high:.3}), CPU {cpu}",
            base.name,
            row.cost.allocations - base.cost.allocations
        )
    }
}

/// Ratios of a row to its baseline. Throughput is the minimum, the median and the maximum over the restarts.
struct BaselineComparison {
    instructions: f64,
    throughput: [f64; 3],
    cpu: Option<f64>,
}

impl Row {
    fn against(&self, base: &Row) -> BaselineComparison {
        let times = self.times.iter().zip(&base.times);
        let throughput: Vec<Vec<f64>> = times
            .map(|(turns, base)| {
                turns.iter().zip(base).map(|(turn, base)| base.elapsed / turn.elapsed).collect()
            })
            .collect();
        let cpu = self.times.iter().flatten().zip(base.times.iter().flatten());
        let cpu = cpu.filter_map(|(turn, base)| Some(turn.cpu? / base.cpu?)).collect();
        let each: Vec<f64> = throughput.iter().cloned().filter_map(median).collect();
        BaselineComparison {
            instructions: self.cost.instructions / base.cost.instructions,
            throughput: [
                each.iter().copied().fold(f64::NAN, f64::min),
                median(throughput.concat()).unwrap_or(f64::NAN),
                each.iter().copied().fold(f64::NAN, f64::max),
            ],
            cpu: median(cpu),
        }
    }
}

/// Returns the median; `None` for an empty list.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    Some(f64::midpoint(values[last / 2], values[last.div_ceil(2)]))
}

/// Runs a server under test. Set values take precedence over measured ones, so that the report exists from
/// the first call on.
fn serve(variant: &str, window: &str) -> Result<(), Error> {
    let builder = match window {
        // The CPU is read once per window. Also, valgrind does not support rustix's access to the kernel's
        // clock.
        "counted" => ServerLoad::builder().window(NEVER).without_cpu(),
        _ => ServerLoad::builder(),
    };
    runtime()?.block_on(async {
        let load = builder.build();
        load.set_cpu_utilization(0.5);
        load.set_qps(1_000.0);
        let (layer, handler) = match place(&SERVERS, variant)? {
            0 => (None, Handler::RecordsNothing),
            1 => (Some(load.layer()), Handler::RecordsNothing),
            _ => (Some(load.layer()), Handler::RecordsCost(AtomicU32::new(0))),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        tokio::select! {
            done = tonic_server::serve(listener, layer, handler) => done,
            done = until_stdin_ends() => done,
        }
    })?;
    let (count, held) = Totals::now();
    println!("{count} {held}");
    Ok(())
}

fn backends_with(reports: &str, backends: &str) -> Result<(), Error> {
    // Allocations of the peer are not reported.
    Totals::stop();
    let of_server =
        OrcaLoadReport { cpu_utilization: 0.5, rps_fractional: 1_000.0, ..OrcaLoadReport::default() };
    let reports = match reports {
        "none" => Vec::new(),
        "same" => vec![of_server],
        // More values than fit the HPACK dynamic table, so that each is sent in full.
        _ => (0..1_000)
            .map(|rows| OrcaLoadReport {
                request_cost: BTreeMap::from([("rows".to_owned(), f64::from(rows))]),
                ..of_server.clone()
            })
            .collect(),
    };
    let reports = reports.iter().map(value).collect::<Option<_>>().ok_or("no value of a trailer")?;
    let addresses = vec![SocketAddr::from(([127, 0, 0, 1], 0)); backends.parse()?];
    runtime()?.block_on(backend::serve(addresses, reports))
}

/// Encodes the trailer's value.
fn value(report: &OrcaLoadReport) -> Option<HeaderValue> {
    let mut trailers = MetadataMap::new();
    trailers.insert_bin(TRAILER, MetadataValue::from_bytes(&report.encode_to_vec()));
    trailers.into_headers().remove(TRAILER)
}

fn control(mode: &str, backends: &[&str]) -> Result<(), Error> {
    let config = ClientSideWeightedRoundRobin {
        enable_oob_load_report: Some(mode == "oob"),
        blackout_period: Some(prost_types::Duration::try_from(NEVER)?),
        ..ClientSideWeightedRoundRobin::default()
    };
    let backends = backends.iter().map(|address| address.parse()).collect::<Result<Vec<_>, _>>()?;
    runtime()?.block_on(async {
        println!("{}", ours::control_plane(&backends, &[], config).await?);
        until_stdin_ends().await
    })
}

/// Runs a client under test.
fn client(control: &str) -> Result<(), Error> {
    let control = control.parse()?;
    runtime()?.block_on(async {
        let client = EchoClient::new(ours::channel(control).await?);
        println!("ready");
        loop {
            let line = tokio::task::spawn_blocking(|| std::io::stdin().lines().next()).await?;
            let Some(calls) = line else { return Ok::<_, Error>(()) };
            rounds(&client, calls?.parse()?).await?;
            println!("done");
        }
    })?;
    let (count, held) = Totals::now();
    println!("{count} {held}");
    Ok(())
}
