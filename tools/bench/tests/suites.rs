//! Every suite with small parameters. The output is checked, never the duration.

use std::path::Path;
use std::process::{Command, Output};

/// Runs the program from the root of the workspace, without valgrind, which has its own step in the gate.
fn bench(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel-bench"));
    command.args(arguments).env("PATH", "");
    command
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .output()
        .expect("the program runs")
}

/// Returns stdout and stderr of a run that must succeed.
fn printed(arguments: &[&str]) -> [String; 2] {
    let out = bench(arguments);
    let [stdout, stderr] = [out.stdout, out.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(out.status.success(), "{arguments:?}: {stderr}");
    [stdout, stderr]
}

/// Returns the cells of the first row with this name.
fn row(table: &str, first: &str) -> Vec<String> {
    let row = table.lines().map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()));
    let row = row.map(|cells| cells.map(str::to_owned).collect::<Vec<_>>());
    row.into_iter().find(|cells| cells.first().is_some_and(|cell| cell == first)).unwrap_or_default()
}

#[test]
fn allocations_are_counted_where_there_is_no_valgrind() {
    let [tables, complaints] = printed(&["counts", "--sizes", "2,3", "--calls", "100"]);
    assert!(complaints.contains("VALGRIND IS NOT INSTALLED"), "{complaints}");
    for client in ["hyper", "h2", "no-channel", "tonic", "tonic-balance", "evenkeel"] {
        let [_, instructions, ratio, allocations, _] = &row(&tables, client)[..] else {
            panic!("no row for {client} in\n{tables}");
        };
        assert_eq!([instructions, ratio], ["-", "-"]);
        let allocations: f64 = allocations.parse().expect("a number");
        assert!((1.0..500.0).contains(&allocations), "{client}: {allocations} allocations per call");
    }
    assert_eq!(tables.matches("least_request").count(), 4, "{tables}");
}

/// Allocations equal the committed ones: an additional allocation on the request path is detected on any
/// machine.
#[test]
fn allocations_equal_the_committed_counts() {
    let [_, complaints] = printed(&["counts", "--check"]);
    assert!(complaints.contains("INSTRUCTIONS ARE NOT JUDGED"), "{complaints}");
}

#[test]
fn lower_committed_counts_fail_the_check() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("counts.json");
    let counts = r#"{"built": {}, "allocations": {"call, 10 endpoints": 1.0}, "instructions": {}}"#;
    std::fs::write(&file, counts).expect("written");
    let out = bench(&["counts", "--check", "--file", &file.display().to_string()]);
    let complaints = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success());
    assert!(complaints.contains("allocations, call, 10 endpoints: 1 in the file, "), "{complaints}");
    assert!(complaints.contains("counts --accept"), "{complaints}");
}

/// Endpoints of every client use memory, and unconnected ones of evenkeel use less.
#[test]
fn memory_is_that_of_endpoints() {
    let [tables, _] = printed(&["memory", "--endpoints", "20"]);
    let heap = |client: &str| -> f64 {
        let row = row(&tables, client);
        row.get(1)
            .and_then(|cell| cell.parse().ok())
            .unwrap_or_else(|| panic!("no heap of {client}\n{tables}"))
    };
    for client in ["hyper", "h2", "tonic-balance", "evenkeel"] {
        assert!((1.0..1_000.0).contains(&heap(client)), "{tables}");
    }
    assert!(heap("evenkeel-idle") < heap("evenkeel"), "{tables}");
}

/// A client process follows updates in both variants and both shapes, and a starting process gets its first
/// response.
#[test]
fn updates_are_followed_by_a_client_process() {
    let arguments = ["config", "--sizes", "12", "--swaps", "2", "--changes", "3", "--starts", "1"];
    let [tables, _] = printed(&arguments);
    let (tables, bars) = tables.split_once("Thresholds").expect("there are bars");
    assert!(bars.contains("12 endpoints replaced, SotW"), "{bars}");
    let count = |line: &str| tables.lines().filter(|row| row.starts_with(line)).count();
    // Two call rates, and an idle period.
    assert_eq!([count("SotW "), count("delta ")], [3, 3], "{tables}");
    // In one cluster, in clusters of ten, and the latter in rotation.
    assert_eq!(count("12 "), 3, "{tables}");
    assert_eq!([count("evenkeel, SotW "), count("evenkeel, delta ")], [1, 1], "{tables}");
    // All twelve are in one resource, or ten.
    let received = |line: &str| -> f64 {
        let row =
            tables.lines().find(|row| row.starts_with("12 ") && row.split_whitespace().nth(1) == Some(line));
        let mut figures =
            row.into_iter().flat_map(str::split_whitespace).filter_map(|word| word.parse().ok());
        figures.nth(2).unwrap_or_default()
    };
    assert!(received("12") > received("10") && received("10") > 0.0, "{tables}");
}

/// fault 69: the soak command for a few seconds. Its criteria decide on success.
#[test]
fn a_short_soak_meets_its_criteria() {
    let arguments = ["soak", "--seconds", "6", "--rate", "200", "--backends", "4"];
    let [tables, _] = printed(&[&arguments[..], &["--kill-every", "2", "--restart-every", "3"]].concat());
    assert_eq!(row(&tables, "kill windows"), ["kill windows", "3"], "{tables}");
    let outside = "calls that failed outside";
    assert_eq!(row(&tables, outside), [outside, "0", "0"], "{tables}");
}
