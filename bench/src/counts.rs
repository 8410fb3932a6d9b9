//! What calls and picks cost, counted: user-space instructions by callgrind, and allocations. Nothing is timed, so that a busy
//! machine gives the same figures, and a change that loses them can be told from noise.
//!
//! A process marks where counting begins and ends, and callgrind writes what lies between; what happens once is left out.
//! Only [`check`](guard::check) judges: by the counts of the build that tests use, which are in `bench/counts.json`.

mod clients;
mod guard;
mod marks;
mod picks;

use std::path::PathBuf;

pub(crate) use self::clients::addresses;
use self::clients::{Bed, CLIENTS, Cost};
use crate::Error;
use crate::common::profile::{Places, is_valgrind_installed, print_profile};
use crate::common::rounds::CONCURRENCY;
use crate::table::Table;

/// Instructions and allocations of calls and picks, which do not depend on the clock.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Numbers of endpoints between which growth is measured.
    #[arg(long, value_delimiter = ',', num_args = 1, default_value = "10,1000")]
    sizes: Vec<u16>,
    /// Calls that are counted, of each client.
    #[arg(long, default_value_t = 4_000, value_parser = clap::value_parser!(u32).range(1..))]
    calls: u32,
    /// Print where a client's instructions are spent instead; by the crate of the source too if the build has line tables.
    #[arg(long, value_name = "CLIENT", value_parser = CLIENTS)]
    profile: Option<String>,
    /// Compare with the committed counts instead, and fail if there are more.
    #[arg(long, conflicts_with = "profile")]
    check: bool,
    /// Write the counts to the file instead: they are as they should be.
    #[arg(long, conflicts_with_all = ["profile", "check"])]
    accept: bool,
    /// The file of committed counts.
    #[arg(long, default_value = "bench/counts.json")]
    file: PathBuf,
}

impl Args {
    /// Whether it is about the committed counts.
    pub(crate) fn is_check(&self) -> bool {
        self.check || self.accept
    }
}

/// The processes that are counted or called.
#[derive(clap::Args)]
pub(crate) struct Worker {
    #[command(subcommand)]
    work: Work,
}

#[derive(clap::Subcommand)]
enum Work {
    /// Backends: one listener behind every loopback address.
    Serve,
    /// A control plane over so many endpoints at this port.
    Control { port: u16, endpoints: u16 },
    /// A client of the endpoints at this port, or of the control plane at that port.
    Client { client: String, port: u16, endpoints: u16, calls: u32 },
    /// Picks of all policies, alone and below the whole tree.
    Picks { picks: u64, sizes: Vec<usize> },
}

pub(crate) fn work(worker: &Worker) -> Result<(), Error> {
    match &worker.work {
        Work::Serve => clients::serve(),
        Work::Control { port, endpoints } => clients::control(*port, *endpoints),
        Work::Client { client, port, endpoints, calls } => clients::client(client, *port, *endpoints, *calls),
        Work::Picks { picks, sizes } => picks::work(*picks, sizes),
    }
}

pub(crate) fn run(args: &Args) -> Result<Vec<Table>, Error> {
    if let Some(client) = &args.profile {
        return profile(client, args).map(|()| Vec::new());
    }
    if args.check {
        return guard::check(&args.file).map(|table| vec![table]);
    }
    if args.accept {
        return guard::accept(&args.file).map(|()| Vec::new());
    }
    if !is_valgrind_installed() {
        eprintln!("\nVALGRIND IS NOT INSTALLED: INSTRUCTIONS ARE NOT COUNTED, only allocations\n");
    }
    let bed = Bed::new()?;
    Ok(vec![calls(&bed, args)?, growth(&bed, args)?, picks::table(&args.sizes)?])
}

/// A figure that may be unknown.
fn cell(figure: Option<f64>, digits: usize) -> String {
    figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.digits$}"))
}

fn calls(bed: &Bed, args: &Args) -> Result<Table, Error> {
    let endpoints = args.sizes.first().copied().unwrap_or(10);
    let columns = ["client", "instructions", "to hyper", "allocations", "held, B"];
    let mut table = Table::new("A unary call, counted", &columns).note(format!(
        "16 bytes each way, {endpoints} backends (tonic: one), {CONCURRENCY} calls at a time, one thread, {} calls. \
         Instructions of the client process in user space; held: by how much its heap grew.",
        args.calls
    ));
    let mut first = None;
    for client in CLIENTS {
        let Cost { instructions, allocations, held } = bed.per_call(client, endpoints, args.calls)?;
        first = first.or(instructions);
        let ratio = instructions.zip(first).map(|(this, first)| this / first);
        let figures =
            [cell(instructions, 0), cell(ratio, 3), cell(Some(allocations), 2), cell(Some(held), 2)];
        table.row([client.to_owned()].into_iter().chain(figures).collect());
    }
    Ok(table)
}

/// Whether a call costs more when there are more endpoints. With more connections fewer answers come at once, which costs
/// hyper as much as us: the growth of the ratio is ours.
fn growth(bed: &Bed, args: &Args) -> Result<Table, Error> {
    let columns = ["endpoints", "hyper", "evenkeel", "evenkeel / hyper", "growth, %", "allocations"];
    let mut table = Table::new("A unary call by the number of endpoints, counted", &columns)
        .note("Instructions per call. Both clients hold a connection to every endpoint.");
    let mut first = None;
    for &endpoints in &args.sizes {
        let hyper = bed.per_call("hyper", endpoints, args.calls)?;
        let ours = bed.per_call("evenkeel", endpoints, args.calls)?;
        let ratio = ours.instructions.zip(hyper.instructions).map(|(ours, hyper)| ours / hyper);
        first = first.or(ratio);
        let growth = ratio.zip(first).map(|(ratio, first)| 100.0 * (ratio / first - 1.0));
        let figures =
            [cell(hyper.instructions, 0), cell(ours.instructions, 0), cell(ratio, 3), cell(growth, 1)];
        let names = [endpoints.to_string()].into_iter();
        table.row(names.chain(figures).chain([cell(Some(ours.allocations), 2)]).collect());
    }
    Ok(table)
}

fn profile(client: &str, args: &Args) -> Result<(), Error> {
    let bed = Bed::new()?;
    let endpoints = args.sizes.first().copied().unwrap_or(10);
    let places = bed.places(client, endpoints, args.calls)?;
    print_profile(client, &Places::new(), &places, args.calls as usize);
    Ok(())
}
