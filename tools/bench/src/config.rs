//! Cost and latency of a config update, by the number of endpoints.
//!
//! Backends and the client are processes of their own. The control plane is this process, so that its
//! timestamps are known here, and the client's processor time is its own. Endpoints are loopback addresses
//! behind one listener; the second octet is the generation of the update. All processes read the same clock.
//! The number of endpoints is limited by the open files; tables show the actual number.

mod backends;
mod client;
mod cold;
mod harness;
mod idle;
mod idle_cost;
mod one;
mod relay;
mod storm;
mod swap;

use clap::ValueEnum as _;
use evenkeel::XdsVariant;

pub(crate) use self::harness::{Shape, resources};
use crate::Error;
use crate::thresholds::Measured;

/// Measure latency and cost of config updates: all endpoints replaced, one replaced, a process that starts.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Names of the tables to measure. The default is all of them.
    #[arg(long, value_delimiter = ',')]
    parts: Vec<Part>,
    /// Numbers of endpoints, one row each.
    #[arg(long, value_delimiter = ',', default_value = "10,100,1000,10000")]
    sizes: Vec<usize>,
    /// Number of replacements of all endpoints, per row.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    swaps: u32,
    /// Number of replacements of one endpoint, per row.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=200))]
    changes: u32,
    /// Number of channels without calls whose processor time is measured.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    channels: u32,
    /// Number of process starts, per row.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    starts: u32,
}

/// A table, in the order of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// All endpoints are replaced under load.
    Swap,
    /// All endpoints are replaced without calls.
    Idle,
    /// One endpoint is replaced.
    One,
    /// Start of a process.
    Cold,
    /// Calls on one worker thread while all endpoints are replaced, and at start-up.
    Storm,
    /// Processor time of channels without calls.
    IdleCost,
}

/// Worker processes of the suite.
#[derive(clap::Args)]
pub(crate) struct Worker {
    #[command(subcommand)]
    work: Work,
}

#[derive(clap::Subcommand)]
enum Work {
    /// Serves backends on every loopback address.
    Serve,
    /// Runs a client of the control plane at this port.
    Client(client::Args),
}

pub(crate) fn work(worker: &Worker) -> Result<(), Error> {
    match &worker.work {
        Work::Serve => backends::run(),
        Work::Client(args) => client::run(args),
    }
}

pub(crate) fn run(args: &Args) -> Result<Measured, Error> {
    let mut measured = Measured::default();
    for part in Part::value_variants() {
        if !args.parts.is_empty() && !args.parts.contains(part) {
            continue;
        }
        let (table, thresholds) = match part {
            Part::Swap => swap::table(args)?,
            Part::Idle => (idle::table(args)?, Vec::new()),
            Part::One => one::table(args)?,
            Part::Cold => cold::table(args)?,
            Part::Storm => {
                let (windows, summary, thresholds) = storm::tables(args)?;
                measured.tables.push(windows);
                (summary, thresholds)
            }
            Part::IdleCost => idle_cost::table(args)?,
        };
        measured.tables.push(table);
        measured.thresholds.extend(thresholds);
    }
    Ok(measured)
}

const VARIANTS: [(&str, XdsVariant); 2] =
    [("SotW", XdsVariant::StateOfTheWorld), ("delta", XdsVariant::Delta)];

/// Number of open files besides connections, with a reserve.
const OTHER_FILES: usize = 400;

/// Returns the number of endpoints, limited by the open files if each temporarily needs this number of
/// connections.
fn affordable(endpoints: usize, connections: usize) -> Result<usize, Error> {
    let limits = std::fs::read_to_string("/proc/self/limits")
        .map_err(|error| format!("the limit of open files: /proc/self/limits: {error}"))?;
    Ok(endpoints.min(open_files(&limits)?.saturating_sub(OTHER_FILES) / connections))
}

fn open_files(limits: &str) -> Result<usize, Error> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    match line.and_then(|line| line.split_whitespace().next()) {
        Some("unlimited") => Ok(usize::MAX),
        Some(soft) => Ok(soft.parse()?),
        None => Err("/proc/self/limits has no limit of open files".into()),
    }
}

/// Returns the monotonic clock in nanoseconds, which is the same in all processes.
fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    nanos(time)
}

fn nanos(time: rustix::time::Timespec) -> u64 {
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

fn ms(from: u64, to: u64) -> f64 {
    to.saturating_sub(from) as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_of_open_files_counts() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max processes             100                  100                  processes\n\
                      Max open files            1024                 524288               files\n";
        assert_eq!(open_files(limits).ok(), Some(1_024));
        assert_eq!(open_files("Max open files  unlimited unlimited files").ok(), Some(usize::MAX));
        assert!(open_files("Max processes 1 2").is_err());
        assert!(open_files("Max open files many").is_err());
    }
}
