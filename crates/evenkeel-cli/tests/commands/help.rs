//! Help texts, usage errors, shell completions and manual pages.

use std::collections::BTreeSet;

use crate::common::{TempFolder, evenkeel};

const COMMANDS: [&str; 8] = ["demo", "serve", "explain", "validate", "inspect", "doctor", "bench", "man"];

/// Each command has a help text with examples, in lines that fit a terminal, without styles in a pipe.
#[test]
fn every_command_helps_with_examples() {
    let all = evenkeel(["--help"]).ends_with(0).stdout;
    assert!(all.contains("Exit codes: 0 fine, 1 something was found"), "{all}");
    for command in COMMANDS {
        assert!(all.lines().any(|line| line.trim_start().starts_with(command)), "{command} in {all}");
        let help = evenkeel([command, "--help"]).ends_with(0).stdout;
        let example = format!("  evenkeel {command} ");
        assert!(help.contains("Examples:") && help.contains(&example), "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
        assert!(!help.contains('\x1b'), "{help:?}");
    }
    assert!(!all.contains("demo-backend"), "internal commands are hidden");
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = evenkeel(["completions", shell]).ends_with(0).stdout;
        assert!(COMMANDS.iter().all(|command| script.contains(command)), "{shell}");
    }
}

/// Every page has its sections, flags and examples. No line is a roff request by accident.
#[test]
fn every_command_has_a_manual_page() {
    let folder = TempFolder::new();
    let out = folder.path("share/man1");
    evenkeel(["man", "--out", out.to_str().expect("UTF-8")]).ends_with(0);
    let names = std::fs::read_dir(&out)
        .expect("the folder is created")
        .map(|file| file.expect("a file").file_name().into_string().expect("UTF-8"));
    let expected = COMMANDS.iter().map(|command| format!("evenkeel-{command}.1"));
    let expected = expected.chain(["evenkeel.1", "evenkeel-completions.1"].map(str::to_owned));
    assert_eq!(names.collect::<BTreeSet<_>>(), expected.collect());
    for command in COMMANDS {
        let page = std::fs::read_to_string(out.join(format!("evenkeel-{command}.1"))).expect("a page");
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES"] {
            assert!(page.contains(&format!("\n.SH {section}\n")), "{section} in {page}");
        }
        let requests = page.lines().filter(|line| line.starts_with('.'));
        let known = ["ie", "el", "TH", "SH", "TP", "PP", "RS", "RE", "IP", "nf", "fi", "br"];
        for request in requests {
            let name = request.trim_start_matches('.').split_whitespace().next().unwrap_or_default();
            assert!(known.contains(&name), "{request:?} in {page}");
        }
        assert_eq!(evenkeel(["man", command]).ends_with(0).stdout, page);
    }
    let serve = evenkeel(["man", "serve"]).ends_with(0).stdout;
    for text in ["evenkeel\\-serve", "\\-\\-bootstrap\\-file", "\n.SH \"EXIT STATUS\"\n"] {
        assert!(serve.contains(text), "{text} in {serve}");
    }
    let refused = evenkeel(["man", "serv"]).ends_with(2).stderr;
    assert!(refused.contains("unknown command \"serv\": expected one of demo, serve"), "{refused}");
    let file = folder.file("taken", "");
    let refused = evenkeel(["man", "--out", &file]).ends_with(2).stderr;
    assert!(refused.contains("taken: cannot be written"), "{refused}");
}

/// Invalid arguments print the usage and exit with 2.
#[test]
fn wrong_usage_ends_with_2() {
    for args in [&["frobnicate"][..], &["serve"], &["explain", "--nonsense"], &["inspect"], &["doctor"], &[]]
    {
        let told = evenkeel(args).ends_with(2).stderr;
        assert!(told.contains("Usage: evenkeel"), "{args:?}: {told}");
    }
}
