//! `evenkeel bench`: runs the separate program `evenkeel-bench` with the same arguments.
//!
//! The benchmarked peers are not dependencies of the installed command, so the suite is a program of its own.
//! It is looked up beside this executable, then in `PATH`. Its output and its exit code pass through.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::ui::{CliError, CliExit};

/// Run benchmarks of calls, picks, endpoints and updates, for evenkeel and its peers.
///
/// Passes all arguments to the program evenkeel-bench, which is looked up beside this one and in PATH. Build it from
/// evenkeel's sources with: cargo build --release --locked -p evenkeel-bench
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// Name of a suite, and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "SUITE")]
    arguments: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  evenkeel bench help                        list of the suites
  evenkeel bench calls                       calls of evenkeel and its peers, side by side
  evenkeel bench calls --help                options of a suite";

/// Executable name, without the platform's suffix.
const PROGRAM: &str = "evenkeel-bench";

pub(crate) fn run(args: BenchArgs) -> Result<ExitCode, CliError> {
    let program = find().ok_or_else(|| {
        CliError::usage(format!(
            "{PROGRAM} is neither beside this program nor on the path: build it with \
             `cargo build --release --locked -p {PROGRAM}` and put it there"
        ))
    })?;
    let status = Command::new(&program)
        .args(args.arguments)
        .status()
        .map_err(|error| CliError::usage(format!("{} does not run: {error}", program.display())))?;
    // A child that a signal terminated has no exit code.
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(CliExit::Findings.into(), ExitCode::from))
}

/// Returns the path of the program. The directory of this executable is searched first: both come from the
/// same build.
fn find() -> Option<PathBuf> {
    let beside = env::current_exe().ok().and_then(|own| Some(own.parent()?.to_owned()));
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = beside.into_iter().chain(env::split_paths(&path).collect::<Vec<_>>());
    let name = format!("{PROGRAM}{}", env::consts::EXE_SUFFIX);
    folders.map(|folder| folder.join(&name)).find(|program| program.is_file())
}
