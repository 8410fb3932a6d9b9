//! Instructions (callgrind, user space) and allocations of calls, picks and updates. Nothing is timed, so
//! that a busy machine yields the same figures and a regression is distinguishable from noise.
//!
//! A process marks the start and the end of the counted section, which excludes one-time costs. Only
//! [`check`](guard::check) fails a run: by the counts of the test build in `tools/bench/counts.json`.

mod clients;
mod guard;
mod marks;
mod picks;
mod updates;

use std::path::PathBuf;

pub(crate) use self::clients::addresses;
use self::clients::{CLIENTS, Cost, CountHarness, Endpoints};
use crate::Error;
use crate::common::profile::{Places, is_valgrind_installed, print_profile};
use crate::common::rounds::CONCURRENCY;
use crate::table::Table;
use crate::thresholds::{Measured, Threshold, ThresholdResult};

/// Count instructions and allocations of calls, picks and updates, independent of the clock.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Numbers of endpoints between which the growth is measured.
    #[arg(long, value_delimiter = ',', num_args = 1, default_value = "10,1000")]
    sizes: Vec<u16>,
    /// Number of counted calls of each client.
    #[arg(long, default_value_t = 4_000, value_parser = clap::value_parser!(u32).range(1..))]
    calls: u32,
    /// Print the profile of a client's instructions instead. It is grouped by crate too if the build has line tables.
    #[arg(long, value_name = "CLIENT", value_parser = CLIENTS)]
    profile: Option<String>,
    /// Compare with the committed counts instead, and fail if a count is higher.
    #[arg(long, conflicts_with = "profile")]
    check: bool,
    /// Write the counts to the file instead, to accept them.
    #[arg(long, conflicts_with_all = ["profile", "check"])]
    accept: bool,
    /// Path of the committed counts.
    #[arg(long, default_value = "tools/bench/counts.json")]
    file: PathBuf,
}

impl Args {
    /// Returns true for the modes that use the committed counts.
    pub(crate) fn is_check(&self) -> bool {
        self.check || self.accept
    }
}

/// Worker processes of the suite.
#[derive(clap::Args)]
pub(crate) struct Worker {
    #[command(subcommand)]
    work: Work,
}

#[derive(clap::Subcommand)]
enum Work {
    /// Serves backends: one listener behind every loopback address.
    Serve,
    /// Serves a control plane over `endpoints` endpoints at this port, with `standing_by` more in a second priority.
    Control { port: u16, endpoints: u16, standing_by: u16 },
    /// Runs a client of the endpoints at this port, or of the control plane at this port.
    Client { client: String, port: u16, endpoints: u16, calls: u32 },
    /// Makes picks of all policies, alone and below the whole tree.
    Picks { picks: u64, sizes: Vec<usize> },
    /// Replaces one endpoint repeatedly, among each of these numbers of endpoints.
    Updates { updates: u32, sizes: Vec<usize> },
}

pub(crate) fn work(worker: &Worker) -> Result<(), Error> {
    match &worker.work {
        Work::Serve => clients::serve(),
        Work::Control { port, endpoints, standing_by } => clients::control(*port, *endpoints, *standing_by),
        Work::Client { client, port, endpoints, calls } => clients::client(client, *port, *endpoints, *calls),
        Work::Picks { picks, sizes } => picks::work(*picks, sizes),
        Work::Updates { updates, sizes } => updates::work(*updates, sizes),
    }
}

pub(crate) fn run(args: &Args) -> Result<Measured, Error> {
    if let Some(client) = &args.profile {
        return profile(client, args).map(|()| Measured::default());
    }
    if args.check {
        return guard::check(&args.file).map(|table| Measured::tables(vec![table]));
    }
    if args.accept {
        return guard::accept(&args.file).map(|()| Measured::default());
    }
    if !is_valgrind_installed() {
        eprintln!("\nVALGRIND IS NOT INSTALLED: INSTRUCTIONS ARE NOT COUNTED, only allocations\n");
    }
    let harness = CountHarness::new()?;
    let (calls, mut thresholds) = calls(&harness, args)?;
    let (growth, threshold) = growth(&harness, args)?;
    thresholds.extend(threshold);
    let (updates, threshold) = updates::table()?;
    thresholds.extend(threshold);
    Ok(Measured { thresholds, ..Measured::tables(vec![calls, growth, picks::table(&args.sizes)?, updates]) })
}

/// Formats a figure that may be unknown.
fn cell(figure: Option<f64>, digits: usize) -> String {
    figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.digits$}"))
}

fn calls(harness: &CountHarness, args: &Args) -> Result<(Table, Vec<ThresholdResult>), Error> {
    let endpoints = args.sizes.first().copied().unwrap_or(10);
    let columns = ["client", "instructions", "to hyper", "allocations", "held, B"];
    let mut table = Table::new("A unary call, counted", &columns).note(format!(
        "16 bytes each way, {endpoints} backends (tonic: one), {CONCURRENCY} calls at a time, one thread, {} calls. \
         Instructions of the client process in user space; held: growth of its heap.",
        args.calls
    ));
    let mut first = None;
    let mut thresholds = Vec::new();
    for client in CLIENTS {
        let Cost { instructions, allocations, held } =
            harness.per_call(client, endpoints.into(), args.calls)?;
        first = first.or(instructions);
        let ratio = instructions.zip(first).map(|(this, first)| this / first);
        if client == "evenkeel" {
            thresholds.push(ThresholdResult::figure(
                "instructions of a call beside hyper",
                Threshold::AtMost(0.8),
                ratio,
            ));
            thresholds.push(ThresholdResult::figure(
                "allocations of a call",
                Threshold::AtMost(20.0),
                Some(allocations),
            ));
        }
        let figures =
            [cell(instructions, 0), cell(ratio, 3), cell(Some(allocations), 2), cell(Some(held), 2)];
        table.row([client.to_owned()].into_iter().chain(figures).collect());
    }
    Ok((table, thresholds))
}

/// Measures the growth of a call's cost with the number of endpoints: with a constant number of connections,
/// and with a connection to each. In the latter case fewer responses arrive together, which costs hyper more
/// than us. Growth beyond hyper's is ours.
fn growth(harness: &CountHarness, args: &Args) -> Result<(Table, Option<ThresholdResult>), Error> {
    let columns = ["endpoints", "connections", "hyper", "evenkeel", "growth, %", "allocations"];
    let mut table = Table::new("A unary call by the number of endpoints, counted", &columns).note(
        "Instructions of a call. If there are fewer connections than endpoints, the others are in a second, inactive priority. \
         Growth: of evenkeel's instructions, since the first row.",
    );
    let few = args.sizes.first().copied().unwrap_or(10);
    let mut first = None;
    let mut threshold = None;
    for &endpoints in &args.sizes {
        let standing_by = Endpoints { called: few, standing_by: endpoints.saturating_sub(few) };
        let all = Endpoints::from(endpoints);
        for endpoints in if endpoints > few { vec![standing_by, all] } else { vec![all] } {
            let hyper = harness.per_call("hyper", endpoints.called.into(), args.calls)?;
            let ours = harness.per_call("evenkeel", endpoints, args.calls)?;
            first = first.or(ours.instructions);
            let growth = ours
                .instructions
                .zip(first)
                .map(|(instructions, first)| 100.0 * (instructions / first - 1.0));
            let Endpoints { called, standing_by } = endpoints;
            let total = u32::from(called) + u32::from(standing_by);
            if standing_by > 0 {
                let what = format!(
                    "growth of a call's instructions, {few} to {total} endpoints, {called} connections, %"
                );
                threshold = Some(ThresholdResult::figure(what, Threshold::AtMost(3.0), growth));
            }
            let figures = [cell(hyper.instructions, 0), cell(ours.instructions, 0), cell(growth, 1)];
            let names = [total.to_string(), called.to_string()].into_iter();
            table.row(names.chain(figures).chain([cell(Some(ours.allocations), 2)]).collect());
        }
    }
    Ok((table, threshold))
}

fn profile(client: &str, args: &Args) -> Result<(), Error> {
    let harness = CountHarness::new()?;
    let endpoints = args.sizes.first().copied().unwrap_or(10);
    let places = harness.places(client, endpoints.into(), args.calls)?;
    print_profile(client, &Places::new(), &places, args.calls as usize);
    Ok(())
}
