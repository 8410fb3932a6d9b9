//! `evenkeel bench`, with a small program in the place of the one that measures.
#![cfg(unix)]

mod common;

use std::fs::{Permissions, copy, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::common::{TempFolder, command};

/// Says what it was given and where it stands, and ends with 7.
const SCRIPT: &str = "#!/bin/sh\necho \"$(basename \"$(dirname \"$0\")\"): $*\"\nexit 7\n";

/// A program cannot be run while a file of it is open for writing, which a process that another test starts meanwhile would
/// inherit for a moment.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn program(folder: &TempFolder) {
    let path = folder.file("evenkeel-bench", SCRIPT);
    set_permissions(path, Permissions::from_mode(0o755)).expect("a program");
}

/// The command in a folder of its own: what cargo built stands beside the other one.
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

/// Arguments go there and the exit code comes back, also of flags that the command itself has.
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
fn who_does_not_have_it_is_told_how_to_build_it() {
    let _alone = alone();
    let (here, elsewhere) = (TempFolder::new(), TempFolder::new());
    let mut evenkeel = evenkeel_in(&here);
    evenkeel.args(["bench", "calls"]);
    let (code, stdout, stderr) = run(evenkeel, &elsewhere.path(""));
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    assert!(stderr.contains("cargo build --release --locked -p evenkeel-bench"), "{stderr}");
}

/// A program that cannot be run is not taken for one that is missing.
#[test]
fn what_does_not_run_says_so() {
    let _alone = alone();
    let (here, elsewhere) = (TempFolder::new(), TempFolder::new());
    here.file("evenkeel-bench", "no program");
    let mut evenkeel = evenkeel_in(&here);
    evenkeel.args(["bench", "calls"]);
    let (code, _, stderr) = run(evenkeel, &elsewhere.path(""));
    assert_eq!(code, Some(2));
    assert!(stderr.contains("evenkeel-bench does not run:"), "{stderr}");
    // Its own help needs no program.
    assert!(command(["bench", "--help"]).status().expect("it starts").success());
}
