//! A process starts: when its first call is answered, and when every endpoint is connected.
//!
//! tonic-xds is measured beside it if its client program is there (`evenkeel bench calls` installs it). It prints its
//! figures when its only call that counts is answered, after a warm-up of no time, in which it may make one more.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use evenkeel::Variant;

use super::backends::PAYLOAD;
use super::bed::{Bed, FIRST, Shape, client, resources};
use super::{Args, VARIANTS, affordable, ms, now};
use crate::Error;
use crate::calls::peers::out_folder;
use crate::spread::Spread;
use crate::table::Table;

pub(super) fn table(args: &Args) -> Result<Table, Error> {
    let columns = ["client", "endpoints", "first answer, ms", "all connected, ms"];
    let mut table = Table::new("From the start of a process to its first answer", &columns).note(format!(
        "Median and quartiles of {} starts, in turn. The config is one cluster, weighted_round_robin.",
        args.starts
    ));
    let peer = out_folder().join("tonic-xds/client");
    if !peer.exists() {
        eprintln!("\ntonic-xds IS LEFT OUT: there is no {}\n", peer.display());
    }
    for &size in &args.sizes {
        let count = affordable(size, 1)?;
        let mut bed = Bed::new()?;
        bed.send(resources(Shape::OneCluster, &bed.endpoints(FIRST, count)?));
        let mut ours = [const { [const { Vec::new() }; 2] }; 2];
        let mut theirs = Vec::new();
        for _ in 0..args.starts {
            for ((_, variant), [first, all]) in VARIANTS.into_iter().zip(&mut ours) {
                let [answered, connected] = start(&bed, variant, count)?;
                first.push(answered);
                all.push(connected);
                bed.open(0)?;
            }
            if peer.exists() {
                theirs.push(start_peer(&bed, &peer)?);
                bed.open(0)?;
            }
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
    Ok(table)
}

fn start(bed: &Bed, variant: Variant, count: usize) -> Result<[f64; 2], Error> {
    let began = now();
    let (mut client, first) = client(bed.control().address(), variant, None)?;
    let [all] = client.numbers(&format!("connected {count}"))?;
    Ok([ms(began, first), ms(began, all)])
}

fn start_peer(bed: &Bed, client: &Path) -> Result<f64, Error> {
    let size = PAYLOAD.to_string();
    let mut command = Command::new(client);
    command.args(["--target", "xds:///bench", "--size", &size, "--messages", "0", "--concurrency", "1"]);
    command.args(["--warm-up", "0", "--calls", "1", "--threads", "2"]);
    command.env("GRPC_XDS_BOOTSTRAP_CONFIG", bed.control().bootstrap("bench"));
    let began = now();
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    // It waits for a line before the calls that count.
    writeln!(child.stdin.as_mut().ok_or("no stdin")?)?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("no stdout")?).lines();
    let figures = lines.find(|line| line.as_ref().map_or(true, |line| line.starts_with('{')));
    let answered = now();
    if figures.is_none() {
        let out = child.wait_with_output()?;
        return Err(format!("tonic-xds: {}", String::from_utf8_lossy(&out.stderr).trim()).into());
    }
    child.wait()?;
    Ok(ms(began, answered))
}
