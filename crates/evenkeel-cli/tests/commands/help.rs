//! Help texts, usage errors and shell completions.

use crate::common::evenkeel;

const COMMANDS: [&str; 7] = ["demo", "serve", "explain", "validate", "inspect", "doctor", "bench"];

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

/// Invalid arguments print the usage and exit with 2.
#[test]
fn wrong_usage_ends_with_2() {
    for args in [&["frobnicate"][..], &["serve"], &["explain", "--nonsense"], &["inspect"], &["doctor"], &[]]
    {
        let told = evenkeel(args).ends_with(2).stderr;
        assert!(told.contains("Usage: evenkeel"), "{args:?}: {told}");
    }
}
