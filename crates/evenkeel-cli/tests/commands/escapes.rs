//! Files with control characters in names: no command writes them to a terminal unescaped.

use crate::common::{CommandOutput, TempFolder, evenkeel};

/// Escaped as in quoted YAML and JSON strings: clears the screen, starts a line, changes the text direction.
const NAME: &str = r"a\u001b[2J\nforged: line\r\u009b31m\u202e\u2028";

fn meshes() -> Vec<(&'static str, String)> {
    vec![
        (
            "names",
            format!(
                "services: {{\"{NAME}\": {{cluster: \"{NAME}\"}}}}\nclusters: {{\"{NAME}\": {{endpoints: [10.0.0.1:1]}}}}\n"
            ),
        ),
        (
            "localities",
            format!(
                "services: {{a: {{}}}}\nclusters: {{a: {{localities: [{{zone: \"{NAME}\", endpoints: [10.0.0.1:1]}}]}}}}\n"
            ),
        ),
        (
            "policy",
            format!(
                "services: {{a: {{}}}}\nclusters: {{a: {{policy: \"{NAME}\", endpoints: [10.0.0.1:1]}}}}\n"
            ),
        ),
        (
            "custom policy",
            format!(
                "services: {{a: {{}}}}\nclusters: {{a: {{policy: {{\"{NAME}\": {{}}}}, endpoints: [10.0.0.1:1]}}}}\n"
            ),
        ),
        (
            "unknown key",
            format!("services: {{a: {{\"{NAME}\": 1}}}}\nclusters: {{a: {{endpoints: [10.0.0.1:1]}}}}\n"),
        ),
        ("unknown cluster", format!("services: {{a: {{cluster: \"{NAME}\"}}}}\n")),
        ("raw bytes", "services: {a\u{1b}[2J: {\u{9b}: \u{202e}}}\n\u{1b}forged: line\n".to_owned()),
        ("no YAML", "services: [\u{1b}[2J\rforged: line\u{202e}\n".to_owned()),
    ]
}

fn bootstraps() -> Vec<(&'static str, String)> {
    let of = |uri: &str, creds: &str, node: &str| {
        format!(
            r#"{{"xds_servers": [{{"server_uri": "{uri}", "channel_creds": [{{"type": "{creds}"}}]}}], "node": {{"id": "{node}"}}, "{NAME}": 1}}"#
        )
    };
    vec![
        ("credentials", of("127.0.0.1:1", NAME, "n")),
        ("server", of(NAME, "insecure", "n")),
        ("node", of("127.0.0.1:1", "insecure", NAME)),
        ("no JSON", "{\"xds_servers\u{1b}[2J\": \u{9b}\rforged: line\u{202e}".to_owned()),
    ]
}

#[track_caller]
fn check(about: &str, outcome: &CommandOutput) {
    for text in [&outcome.stdout, &outcome.stderr] {
        let is_hazard = |c: char| {
            (c.is_control() && c != '\n')
                || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        };
        assert!(!text.chars().any(is_hazard), "{about}: {text:?}");
        assert!(!text.lines().any(|line| line.trim_start().starts_with("forged")), "{about}:\n{text}");
    }
}

#[test]
fn texts_of_files_reach_no_terminal_raw() {
    let folder = TempFolder::new();
    for (about, text) in meshes() {
        let file = folder.file("mesh.yaml", &text);
        for args in [vec!["validate", &file], vec!["explain", &file], vec!["explain", &file, "--stages"]] {
            check(&format!("{args:?} {about}"), &evenkeel(args));
        }
        for args in [vec!["validate", &file, "--json"], vec!["explain", &file, "--json"]] {
            let outcome = evenkeel(args);
            check(&format!("JSON {about}"), &outcome);
            if !outcome.stdout.is_empty() {
                outcome.json();
            }
        }
    }
    for (about, text) in bootstraps() {
        let file = folder.file("bootstrap.json", &text);
        for args in [
            vec!["validate", &file, "--kind", "bootstrap"],
            vec!["doctor", "xds:///a", "--bootstrap", &file, "--wait", "500ms"],
            vec!["doctor", "xds:///a", "--bootstrap", &file, "--wait", "500ms", "--json"],
            vec!["validate", "--bootstrap", &file, "--target", "xds:///a", "--wait", "0.5"],
        ] {
            check(&format!("{args:?} {about}"), &evenkeel(args));
        }
    }
}
