//! `cargo run -p interop -- matrix`: the published cases with every peer that can be installed here.
//! `cargo run -p interop -- istio`: cases of Istio's features with istiod.

use std::fs;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::{Parser, Subcommand};
use interop::driver;
use interop::istio::{IstioReport, with_section};
use interop::matrix::{Matrix, MatrixFilter};
use interop::peers::{self, NoPeer};

/// Exit code if no case failed, and a peer with an available toolchain could not be installed.
const NOT_INSTALLED: u8 = 4;

/// Interoperability tests of evenkeel with other gRPC implementations.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Job,
}

#[derive(Subcommand)]
enum Job {
    /// Run the published xDS cases with evenkeel and its peers, and write docs/interop.md.
    Matrix {
        /// Run only lineups whose description contains this text, such as "grpc-go client". May be repeated.
        #[arg(long)]
        only: Vec<String>,
        /// Run only this case. May be repeated.
        #[arg(long)]
        case: Vec<String>,
        /// Number of cases that run at a time.
        #[arg(long, default_value_t = 3)]
        jobs: usize,
        /// Do not write the document.
        #[arg(long)]
        check: bool,
        /// Start no case or installation after this number of seconds, and report the omitted ones. Only with
        /// --check.
        #[arg(long, requires = "check", value_name = "SECONDS")]
        within: Option<u64>,
        /// Do not build our own programs. They are expected beside this one.
        #[arg(long)]
        built: bool,
    },
    /// Run the cases with istiod, and write their section of docs/interop.md.
    Istio {
        /// Run only this case. May be repeated.
        #[arg(long)]
        case: Vec<String>,
        /// Number of cases that run at a time.
        #[arg(long, default_value_t = 2)]
        jobs: usize,
        /// Do not write the document.
        #[arg(long)]
        check: bool,
        /// Do not build our own programs. They are expected beside this one.
        #[arg(long)]
        built: bool,
    },
    /// List the names of the cases.
    List,
}

#[tokio::main]
async fn main() -> ExitCode {
    match Arguments::parse().command {
        Job::Matrix { only, case, jobs, check, within, built } => {
            if let Some(name) = case.iter().find(|name| driver::named(name).is_none()) {
                eprintln!("interop: unknown case {name:?}; `interop list` shows all");
                return ExitCode::from(2);
            }
            if !built && !build_own() {
                eprintln!("interop: our own programs could not be built");
                return ExitCode::FAILURE;
            }
            let within = within.map(Duration::from_secs);
            matrix(MatrixFilter { only, cases: case, jobs, within }, check).await
        }
        Job::Istio { case, jobs, check, built } => {
            if let Some(name) =
                case.iter().find(|name| driver::istio_cases().iter().all(|case| case.name != **name))
            {
                eprintln!("interop: unknown istiod case {name:?}; `interop list` shows all");
                return ExitCode::from(2);
            }
            if !built && !build_own() {
                eprintln!("interop: our own programs could not be built");
                return ExitCode::FAILURE;
            }
            istio(&case, jobs, check).await
        }
        Job::List => {
            for case in driver::all() {
                println!("{}: {}", case.name, case.shows);
            }
            for case in driver::istio_cases() {
                println!("{} (istio): {}", case.name, case.shows);
            }
            ExitCode::SUCCESS
        }
    }
}

async fn matrix(wishes: MatrixFilter, check: bool) -> ExitCode {
    let in_part = !wishes.only.is_empty() || !wishes.cases.is_empty();
    let matrix = Matrix::run(&wishes, |line| println!("{line}")).await;
    let (passed, failed, does_not_fit) = matrix.counts();
    println!("{passed} passed, {failed} failed, {does_not_fit} do not fit, in {} s", matrix.took.as_secs());
    if matrix.not_run() > 0 {
        eprintln!("interop: {} cases were not run: no time left", matrix.not_run());
    }
    for (name, why) in &matrix.absent {
        eprintln!("interop: {name} was not run: {}", why.words());
    }
    if !check && !in_part {
        let file = peers::root().join("docs/interop.md");
        if !matrix.is_complete() {
            eprintln!("interop: docs/interop.md is unchanged, since not every peer was run");
        } else if let Err(error) =
            fs::write(&file, matrix.document(&fs::read_to_string(&file).unwrap_or_default()))
        {
            eprintln!("interop: docs/interop.md could not be written: {error}");
            return ExitCode::FAILURE;
        }
    }
    match (failed > 0 || matrix.is_wrong(), matrix.is_broken()) {
        (true, _) => ExitCode::FAILURE,
        (false, true) => ExitCode::from(NOT_INSTALLED),
        (false, false) => ExitCode::SUCCESS,
    }
}

async fn istio(cases: &[String], jobs: usize, check: bool) -> ExitCode {
    let report = match IstioReport::run(cases, jobs, |line| println!("{line}")).await {
        Ok(report) => report,
        Err(why @ NoPeer::Absent(_)) => {
            println!("SKIPPED istiod: {}", why.words());
            return ExitCode::SUCCESS;
        }
        Err(why) => {
            eprintln!("interop: istiod could not be built: {}", why.words());
            return ExitCode::from(NOT_INSTALLED);
        }
    };
    let (passed, failed) = report.counts();
    println!("{passed} passed, {failed} failed");
    if !check && cases.is_empty() {
        let file = peers::root().join("docs/interop.md");
        let written = fs::read_to_string(&file)
            .and_then(|last| fs::write(&file, with_section(&last, &report.section())));
        if let Err(error) = written {
            eprintln!("interop: docs/interop.md could not be written: {error}");
            return ExitCode::FAILURE;
        }
    }
    if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Builds the other programs of the package. `cargo run` builds this one only, and expects them beside it.
fn build_own() -> bool {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--package", "interop", "--bins"]).current_dir(peers::root());
    command.status().is_ok_and(|status| status.success())
}
