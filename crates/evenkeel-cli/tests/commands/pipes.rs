//! Output to a pipe without a reader, as in `evenkeel completions bash | head -3`.

use std::net::TcpListener;

use crate::common::{TempFolder, without_reader};

/// Every command ends without an error message, and with the exit code 0.
#[test]
fn every_command_ends_quietly_without_a_reader() {
    let folder = TempFolder::new();
    let mesh = folder.file("mesh.yaml", "services: {a: {}}\nclusters: {a: {endpoints: [\"10.0.0.1:1\"]}}\n");
    // The connection is refused after the listener is closed.
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let target = format!("ipv4:{}", closed.expect("a free port"));
    let commands: &[&[&str]] = &[
        &["--help"],
        &["--version"],
        &["help", "explain"],
        &["serve", "--help"],
        &["completions", "bash"],
        &["completions", "zsh"],
        &["completions", "fish"],
        &["completions", "elvish"],
        &["completions", "powershell"],
        &["man"],
        &["man", "serve"],
        &["explain", &mesh],
        &["explain", &mesh, "--json"],
        &["validate", &mesh],
        &["validate", &mesh, "--json"],
        &["doctor", &target],
        &["doctor", &target, "--json"],
        &["serve", &mesh, "--listen", "127.0.0.1:0"],
        &["serve", &mesh, "--listen", "127.0.0.1:0", "--json"],
        &["demo"],
    ];
    for args in commands {
        assert_eq!(without_reader(*args), (Some(0), String::new()), "{args:?}");
    }
}
