//! `evenkeel bench`: what calls, picks, endpoints and updates cost, evenkeel's and its peers' in one run.
//!
//! A suite is a module with a function that measures and comes to tables. Whatever is measured as a process is this program
//! again, started with a hidden argument. Ratios of one run are the result: machines differ and are noisy.

mod calls;
mod client;
mod common;
mod report;
mod table;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::table::Table;

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
    Calls(calls::Args),
    Report(report::Args),
    #[command(flatten)]
    Process(calls::Process),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if cfg!(debug_assertions) && !matches!(cli.command, Command::Process(_)) {
        eprintln!(
            "\nTHIS IS A BUILD WITHOUT OPTIMISATION: ITS FIGURES MEAN NOTHING. Build it with --release.\n"
        );
    }
    match run(cli.command) {
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

fn run(command: Command) -> Result<Vec<Table>, Error> {
    match command {
        Command::Calls(args) => {
            let measured = calls::run(&args)?;
            Ok(measured.tables.into_iter().chain([measured.bars]).collect())
        }
        Command::Report(args) => report::run(&args).map(|()| Vec::new()),
        Command::Process(process) => process.run().map(|()| Vec::new()),
    }
}
