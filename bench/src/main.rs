//! `evenkeel bench`: what calls, picks, endpoints and updates cost, evenkeel's and its peers' in one run.
//!
//! A suite is a module with a function that measures and comes to tables. Whatever is measured as a process is this program
//! again, started with a hidden argument. Ratios of one run are the result: machines differ and are noisy.

mod common;
mod counts;
mod picks;
mod spread;
mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::common::allocator::Totals;
use crate::table::Table;

#[global_allocator]
static ALLOCATOR: Totals = Totals;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// What calls, picks, endpoints and updates cost: evenkeel and its peers in one run.
#[derive(Parser)]
#[command(name = "evenkeel bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Counts(counts::Args),
    #[command(hide = true)]
    CountsWorker(counts::Worker),
    Picks(picks::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let tables: Result<Vec<Table>, Error> = match cli.command {
        Command::Counts(args) => counts::run(&args),
        Command::CountsWorker(worker) => counts::work(&worker).map(|()| Vec::new()),
        Command::Picks(args) => picks::run(&args),
    };
    match tables {
        Ok(tables) => {
            for table in tables {
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
