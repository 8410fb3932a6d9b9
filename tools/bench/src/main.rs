//! `evenkeel bench`: cost of calls, picks, endpoints and updates, for evenkeel and its peers in one run.
//!
//! A suite is a module with a function that measures and returns tables. Measured processes are this program
//! again, started with a hidden argument. The results are ratios within one run, since machines differ and
//! are noisy.

mod calls;
mod client;
mod common;
mod config;
mod counts;
mod memory;
mod picks;
mod report;
mod soak;
mod spread;
mod table;
mod thresholds;
mod worker;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::common::allocator::Totals;
use crate::thresholds::Measured;

#[global_allocator]
static ALLOCATOR: Totals = Totals;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Measure the cost of calls, picks, endpoints and updates, for evenkeel and its peers in one run.
#[derive(Parser)]
#[command(name = "evenkeel bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Calls(calls::Args),
    Config(config::Args),
    Counts(counts::Args),
    Memory(memory::Args),
    Picks(picks::Args),
    Report(report::Args),
    Soak(soak::Args),
    #[command(flatten)]
    Process(calls::Process),
    #[command(flatten)]
    Worker(worker::Worker),
}

impl Command {
    /// Returns true if the command prints figures that need an optimized build. Processes of a suite do not,
    /// and committed counts belong to an unoptimized build.
    fn has_figures(&self) -> bool {
        match self {
            // The criteria of a soak hold in any build.
            Command::Process(_) | Command::Soak(_) | Command::Worker(_) => false,
            Command::Counts(args) => !args.is_check(),
            Command::Calls(_)
            | Command::Config(_)
            | Command::Memory(_)
            | Command::Picks(_)
            | Command::Report(_) => true,
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if cfg!(debug_assertions) && cli.command.has_figures() {
        eprintln!(
            "\nTHIS IS A BUILD WITHOUT OPTIMISATION: ITS FIGURES ARE INVALID. Build it with --release.\n"
        );
    }
    match run(cli.command) {
        Ok(Measured { tables, thresholds, .. }) => {
            let thresholds = (!thresholds.is_empty()).then(|| thresholds::table(&thresholds));
            for table in tables.into_iter().chain(thresholds) {
                println!("{}", table.text());
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("evenkeel bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<Measured, Error> {
    match command {
        Command::Calls(args) => calls::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Counts(args) => counts::run(&args),
        Command::Memory(args) => memory::run(&args),
        Command::Picks(args) => picks::run(&args),
        Command::Report(args) => report::run(&args).map(|()| Measured::default()),
        Command::Soak(args) => soak::run(&args),
        Command::Process(process) => process.run().map(|()| Measured::default()),
        Command::Worker(worker) => worker.run().map(|()| Measured::default()),
    }
}
