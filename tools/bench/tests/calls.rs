//! The call comparison with small parameters: real processes, and no check of timed figures.

use std::process::Command;

fn bench(args: &[&str]) -> (Option<i32>, String, String) {
    run(Command::new(env!("CARGO_BIN_EXE_evenkeel-bench")).args(args))
}

fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let output = command.output().expect("it starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Returns the cells of the row with this name, in the table with this title.
#[track_caller]
fn row<'a>(text: &'a str, title: &str, name: &str) -> Vec<&'a str> {
    let table = text.lines().skip_while(|line| *line != title).take_while(|line| !line.is_empty());
    let row =
        table.map(|line| line.split_whitespace().collect::<Vec<_>>()).find(|row| row.first() == Some(&name));
    row.unwrap_or_else(|| panic!("no row {name:?} below {title:?} in:\n{text}"))
}

/// Clients that are part of this program.
const OWN: [&str; 9] = [
    "hyper",
    "h2",
    "tonic",
    "tonic-balance",
    "evenkeel-round_robin",
    "evenkeel-edf",
    "evenkeel-weighted_round_robin",
    "evenkeel-ring_hash",
    "evenkeel-least_request",
];

#[test]
fn clients_are_compared_in_one_run() {
    let (code, stdout, stderr) = bench(&[
        "calls",
        "--clients",
        &OWN.join(","),
        "--payload",
        "unary-16,stream",
        "--concurrency",
        "4",
        "--backends",
        "2",
        "--servers",
        "tonic,batching",
        "--rounds",
        "1",
        "--seconds",
        "0.05",
    ]);
    assert_eq!(code, Some(0), "{stderr}");
    let titles = ["unary, 16 B", "server streaming, 100 messages of 16 B"].into_iter().flat_map(|payload| {
        ["tonic", "batching"].map(|servers| format!("{payload}, 4 at a time, 2 {servers} servers"))
    });
    for title in titles {
        let hyper = row(&stdout, &title, "hyper");
        assert_eq!(hyper[7..], ["1.00", "(1.00..1.00)", "1.00", "(1.00..1.00)"], "{stdout}");
        for client in OWN {
            for (i, cell) in row(&stdout, &title, client)[1..6].iter().enumerate() {
                let figure = cell.parse::<f64>();
                assert!(figure.is_ok_and(|figure| figure > 0.0), "{client}, cell {i}:\n{stdout}\n{stderr}");
            }
        }
    }
    // Every endpoint gets its share of 20,020 calls. Two calls more or less for the weight 1 are 0.5 %.
    let share = row(&stdout, "share of calls by weight", "evenkeel-edf");
    let error: f64 = share[1].parse().expect("a figure");
    assert!(error < 1.0, "{stdout}");
    assert!(stdout.contains("Thresholds"), "{stdout}");
}

/// A peer that cannot be installed is a row with a reason, and the others are measured.
#[test]
fn clients_that_cannot_run_are_listed_with_the_reason() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel-bench"));
    command.args(["calls", "--clients", "h2,tonic-xds", "--backends", "1", "--concurrency", "1"]);
    command.args(["--rounds", "1", "--seconds", "0.05", "--threads", "2"]);
    // No tool is found that could build it.
    let (code, stdout, stderr) = run(command.env("PATH", ""));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("tonic-xds CANNOT BE INSTALLED AND IS LEFT OUT: "), "{stderr}");
    let title = "unary, 16 B, 1 at a time, 1 batching server";
    assert_eq!(row(&stdout, title, "tonic-xds")[1..], ["-"; 8], "{stdout}");
    let h2 = row(&stdout, title, "h2");
    assert!(h2[1].parse::<f64>().is_ok(), "{stdout}");
    assert_eq!(h2[7..], ["-", "-"], "without hyper there is no ratio:\n{stdout}");
    assert!(stdout.contains("Clients have 2 threads. tonic-xds is left out: "), "{stdout}");
}

/// The document has the prose, the machine, and the tables of the requested suites.
#[test]
fn a_report_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("performance.md");
    let file = file.to_str().expect("UTF-8");
    let tiny =
        ["--clients", "hyper", "--concurrency", "1", "--backends", "1", "--rounds", "1", "--seconds", "0.05"];
    let args: Vec<&str> = ["report", "--write", file, "--suites", "calls"].into_iter().chain(tiny).collect();
    let (code, stdout, stderr) = bench(&args);
    assert_eq!((code, stdout.as_str()), (Some(0), ""), "{stderr}");
    let text = std::fs::read_to_string(file).expect("a document");
    let headings: Vec<&str> = text.lines().filter(|line| line.starts_with("## ")).collect();
    assert_eq!(headings[..3], ["## The machine", "## Goals", "## Calls"], "{text}");
    assert!(text.starts_with("# Performance\n") && text.contains("\n| hyper | "), "{text}");
    assert!(text.contains("| libraries | h2 "), "{text}");
}

#[test]
fn invalid_arguments_are_reported() {
    for (args, why) in [
        (&["calls", "--clients", "netscape"][..], "expected one of hyper, h2, tonic"),
        (&["calls", "--seconds", "0"], "expected seconds from 0.001"),
        (&["calls", "--concurrency", "0"], "expected a number from 1 on"),
        (&["calls", "--payload", "huge"], "unary-64k"),
        (&["calls", "--servers", "envoy"], "batching"),
    ] {
        let (code, _, stderr) = bench(args);
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains(why), "{stderr}");
    }
    let (code, stdout, _) = bench(&["help"]);
    assert_eq!(code, Some(0));
    assert!(
        stdout.contains("\n  calls") && !stdout.contains("\n  control"),
        "processes are not shown:\n{stdout}"
    );
}
