//! The `evenkeel` command and its subcommands.
//!
//! Each subcommand is a module with its arguments and a `run` function. Terminal output and exit codes are in
//! [`ui`]. Logic that is useful beyond the command belongs in the libraries.

#![forbid(unsafe_code)]

mod bench;
mod demo;
mod doctor;
mod ends;
mod explain;
mod input;
mod inspect;
mod man;
mod serve;
mod table;
mod ui;
mod validate;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::ui::{CliError, CliExit, TerminalOutput};

/// xDS load balancing for gRPC: demo, control plane, and tools to inspect and debug it.
#[derive(Parser)]
#[command(name = "evenkeel", version, propagate_version = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
    /// Use of colours. NO_COLOR counts as `never`.
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    color: ui::ColorMode,
}

const EXAMPLES: &str = "\
Examples:
  evenkeel demo                              five backends, a control plane, a client and a page
  evenkeel serve mesh.yaml                   a control plane for your laptop
  evenkeel explain mesh.yaml --target xds:///orders
  evenkeel validate mesh.yaml                errors that clients would reject it for
  evenkeel inspect 127.0.0.1:9901            state of a running client
  evenkeel doctor xds:///orders              diagnosis of the first failure
  evenkeel bench calls                       cost of a call, compared with its peers

Exit codes: 0 fine, 1 something was found, 2 invalid usage or input, 3 could not connect";

#[derive(Subcommand)]
enum CliCommand {
    Demo(demo::DemoArgs),
    Serve(serve::ServeArgs),
    Explain(explain::ExplainArgs),
    Validate(validate::ValidateArgs),
    Inspect(inspect::InspectArgs),
    Doctor(doctor::DoctorArgs),
    Bench(bench::BenchArgs),
    #[command(hide = true)]
    DemoBackend(demo::backend::DemoBackendArgs),
    /// Print completions for a shell.
    ///
    /// For example: evenkeel completions bash > /etc/bash_completion.d/evenkeel
    Completions {
        /// Name of the shell.
        shell: clap_complete::Shell,
    },
    Man(man::ManArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let terminal = TerminalOutput::new(cli.color);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            terminal.print_error(&CliError::usage(format!("cannot start the runtime: {error}")));
            return CliExit::Usage.into();
        }
    };
    let outcome = runtime.block_on(run(cli.command, &terminal));
    // Do not wait for tasks that still run.
    runtime.shutdown_background();
    match outcome {
        Ok(exit) => exit,
        Err(failure) => {
            terminal.print_error(&failure);
            failure.exit.into()
        }
    }
}

async fn run(command: CliCommand, terminal: &TerminalOutput) -> Result<ExitCode, CliError> {
    let exit = match command {
        CliCommand::Demo(args) => demo::run(args, terminal).await?,
        CliCommand::Serve(args) => serve::run(args, terminal).await?,
        CliCommand::Explain(args) => explain::run(args, terminal).await?,
        CliCommand::Validate(args) => validate::run(args, terminal).await?,
        CliCommand::Inspect(args) => inspect::run(args, terminal).await?,
        CliCommand::Doctor(args) => doctor::run(args, terminal).await?,
        CliCommand::DemoBackend(args) => demo::backend::run(args).await?,
        // A separate program with its own exit codes.
        CliCommand::Bench(args) => return bench::run(args),
        CliCommand::Completions { shell } => {
            terminal.print_raw(completions(shell))?;
            CliExit::Success
        }
        CliCommand::Man(args) => man::run(&args, Cli::command(), terminal)?,
    };
    Ok(exit.into())
}

/// Returns the completion script of a shell. `clap_complete` panics if a write fails, so it writes to memory.
fn completions(shell: clap_complete::Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "evenkeel", &mut script);
    String::from_utf8(script).expect("the names of commands and flags are UTF-8")
}
