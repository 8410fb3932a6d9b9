//! Start of a process: time to the first response, and until every endpoint is connected.
//!
//! tonic-xds is measured too if its client program is installed (by `evenkeel bench calls`). It prints its
//! figures after its only counted call. Its warm-up has zero duration, in which it may make one more call.

use std::path::Path;
use std::process::Command;

use evenkeel::XdsVariant;

use super::backends::PAYLOAD;
use super::harness::{ConfigHarness, FIRST, Shape, client, resources};
use super::{Args, VARIANTS, affordable, ms, now};
use crate::Error;
use crate::calls::bench_clients::TONIC_XDS;
use crate::calls::peers::{bootstrap, out_folder};
use crate::common::process::WorkerProcess;
use crate::spread::Spread;
use crate::table::Table;
use crate::thresholds::{Threshold, ThresholdResult};

pub(super) fn table(args: &Args) -> Result<(Table, Vec<ThresholdResult>), Error> {
    let columns = ["client", "endpoints", "first answer, ms", "all connected, ms"];
    let mut table = Table::new("From the start of a process to its first answer", &columns).note(format!(
        "Median and quartiles of {} starts, interleaved. The config is one cluster, weighted_round_robin.",
        args.starts
    ));
    let peer = out_folder().join("tonic-xds/client");
    if !peer.exists() {
        eprintln!("\ntonic-xds IS LEFT OUT: there is no {}\n", peer.display());
    }
    let mut thresholds = Vec::new();
    for &size in &args.sizes {
        let count = affordable(size, 1)?;
        let mut harness = ConfigHarness::new()?;
        harness.send(resources(Shape::OneCluster, &harness.endpoints(FIRST, count)?));
        let mut ours = [const { [const { Vec::new() }; 2] }; 2];
        let mut theirs = Vec::new();
        for _ in 0..args.starts {
            for ((_, variant), [first, all]) in VARIANTS.into_iter().zip(&mut ours) {
                let [answered, connected] = start(&harness, variant, count)?;
                first.push(answered);
                all.push(connected);
                harness.open(0)?;
            }
            if peer.exists() {
                match start_peer(&harness, &peer) {
                    Ok(answered) => theirs.push(answered),
                    Err(error) => eprintln!("\na start FAILED AND IS LEFT OUT: {error}\n"),
                }
                harness.open(0)?;
            }
        }
        let median = |figures: &[f64]| Spread::of(figures.to_vec()).map(|spread| spread.median);
        if Some(&size) == args.sizes.last() {
            let slower = ours.iter().filter_map(|[first, _]| median(first)).reduce(f64::max);
            let ratio = slower.zip(median(&theirs)).map(|(ours, theirs)| ours / theirs);
            let what = format!("a process starts, {count} endpoints: its first answer beside tonic-xds");
            thresholds.push(ThresholdResult::figure(what, Threshold::AtMost(1.0), ratio));
        }
        let show = |figures: Vec<f64>| {
            Spread::of(figures).map_or_else(|| "-".to_owned(), |spread| format!("{spread:.1}"))
        };
        for ((variant, _), figures) in VARIANTS.into_iter().zip(ours) {
            let [first, all] = figures.map(show);
            table.row(vec![format!("evenkeel, {variant}"), count.to_string(), first, all]);
        }
        if peer.exists() {
            table.row(vec!["tonic-xds".to_owned(), count.to_string(), show(theirs)]);
        }
    }
    Ok((table, thresholds))
}

fn start(harness: &ConfigHarness, variant: XdsVariant, count: usize) -> Result<[f64; 2], Error> {
    let began = now();
    let (mut client, first) = client(harness.control().address(), variant, None)?;
    let [all] = client.numbers(&format!("connected {count}"))?;
    Ok([ms(began, first), ms(began, all)])
}

fn start_peer(harness: &ConfigHarness, client: &Path) -> Result<f64, Error> {
    let size = PAYLOAD.to_string();
    let mut command = Command::new(client);
    command.args(["--target", "xds:///bench", "--size", &size, "--messages", "0", "--concurrency", "1"]);
    command.args(["--warm-up", "0", "--calls", "1", "--threads", "2"]);
    let bootstrap = bootstrap(TONIC_XDS.program, harness.control().address());
    command.env_remove("GRPC_XDS_BOOTSTRAP").env("GRPC_XDS_BOOTSTRAP_CONFIG", bootstrap);
    let began = now();
    // It prints a line when it is ready, and waits for one before the calls that count.
    let mut client = WorkerProcess::run(&mut command).map_err(|error| format!("tonic-xds: {error}"))?;
    client.ask("go").map_err(|error| format!("tonic-xds: {error}"))?;
    let answered = now();
    client.finish()?;
    Ok(ms(began, answered))
}
