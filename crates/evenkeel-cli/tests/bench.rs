//! `evenkeel bench`, with a script in place of the benchmark program.
#![cfg(unix)]

mod common;

use std::fs::{Permissions, copy, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard};

use testkit::lock;

use crate::common::{TempFolder, command};

/// Prints its directory and its arguments, and exits with 7.
const SCRIPT: &str = "#!/bin/sh\necho \"$(basename \"$(dirname \"$0\")\"): $*\"\nexit 7\n";

/// Serializes the tests. A file that is open for writing cannot be executed (ETXTBSY), and a process forked
/// by another test would inherit the descriptor for a moment.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    lock(&ALONE)
}

fn program(folder: &TempFolder) {
    let path = folder.file("evenkeel-bench", SCRIPT);
    set_permissions(path, Permissions::from_mode(0o755)).expect("a program");
}

/// Copies the command into an own folder, so that a benchmark program built by cargo is not beside it.
fn evenkeel_in(folder: &TempFolder) -> Command {
    let own = folder.path("evenkeel");
    copy(env!("CARGO_BIN_EXE_evenkeel"), &own).expect("a copy of the command");
    Command::new(own)
}

fn name(folder: &TempFolder) -> String {
    let path = folder.path("");
    path.file_name().expect("a name").to_str().expect("UTF-8").to_owned()
}

fn run(mut command: Command, path: &Path) -> (Option<i32>, String, String) {
    // The script needs the system's programs.
    let path = format!("{}:/usr/bin:/bin", path.display());
    let output = command.env("PATH", path).output().expect("the command starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8").trim().to_owned();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Arguments and the exit code pass through, including flags that the command itself has.
#[test]
fn everything_is_handed_on_to_the_program_beside_it() {
    let _alone = alone();
    let (here, elsewhere) = (TempFolder::new(), TempFolder::new());
    program(&here);
    program(&elsewhere);
    let mut evenkeel = evenkeel_in(&here);
    evenkeel.args(["bench", "calls", "--rounds", "2", "--color", "never", "--help"]);
    let expected = format!("{}: calls --rounds 2 --color never --help", name(&here));
    assert_eq!(run(evenkeel, &elsewhere.path("")), (Some(7), expected, String::new()));
}

#[test]
fn otherwise_it_is_looked_for_on_the_path() {
    let _alone = alone();
    let (here, elsewhere) = (TempFolder::new(), TempFolder::new());
    program(&elsewhere);
    let mut evenkeel = evenkeel_in(&here);
    evenkeel.arg("bench");
    let expected = format!("{}:", name(&elsewhere));
    assert_eq!(run(evenkeel, &elsewhere.path("")), (Some(7), expected, String::new()));
}

#[test]
fn a_missing_program_is_reported_with_the_build_command() {
    let _alone = alone();
    let (here, elsewhere) = (TempFolder::new(), TempFolder::new());
    let mut evenkeel = evenkeel_in(&here);
    evenkeel.args(["bench", "calls"]);
    let (code, stdout, stderr) = run(evenkeel, &elsewhere.path(""));
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    assert!(stderr.contains("cargo build --release --locked -p evenkeel-bench"), "{stderr}");
}

/// A program that cannot be executed is reported differently from a missing one.
#[test]
fn a_program_that_does_not_run_is_reported() {
    let _alone = alone();
    let (here, elsewhere) = (TempFolder::new(), TempFolder::new());
    here.file("evenkeel-bench", "no program");
    let mut evenkeel = evenkeel_in(&here);
    evenkeel.args(["bench", "calls"]);
    let (code, _, stderr) = run(evenkeel, &elsewhere.path(""));
    assert_eq!(code, Some(2));
    assert!(stderr.contains("evenkeel-bench does not run:"), "{stderr}");
    // The command's own help needs no benchmark program.
    assert!(command(["bench", "--help"]).status().expect("it starts").success());
}
