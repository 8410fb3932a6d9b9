//! Consistency of the examples: folders, programs, the table in the README, and the guides.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use evenkeel::Bootstrap;
use evenkeel_control::Mesh;

/// Each example has a folder, a program, a row in the table and a test.
#[test]
fn every_example_is_listed_and_tested() {
    let here = root().join("examples");
    let folders: BTreeSet<_> = fs::read_dir(&here)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("main.rs").is_file())
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    let manifest = read(&here.join("Cargo.toml"));
    let programs =
        manifest.lines().filter_map(|line| line.strip_prefix("path = \"")?.strip_suffix("/main.rs\""));
    assert_eq!(programs.map(str::to_owned).collect::<BTreeSet<_>>(), folders, "Cargo.toml");
    let table = read(&here.join("README.md"));
    let rows: Vec<_> = table.lines().filter_map(|line| line.strip_prefix("| [")?.split_once("](")).collect();
    assert_eq!(
        rows.iter().map(|(name, _)| (*name).to_owned()).collect::<BTreeSet<_>>(),
        folders,
        "README.md"
    );
    let tests = include_str!("main.rs");
    for (name, rest) in rows {
        assert!(tests.contains(&format!("\nasync fn {name}()")), "{name}: no test runs it");
        // The first line of the program equals the question in the table.
        let question = rest.split('|').nth(1).unwrap().trim().trim_end_matches(" On virtual time");
        let head = read(&here.join(name).join("main.rs"));
        assert_eq!(head.lines().next(), Some(&*format!("//! {question}")), "{name}");
    }
}

/// Programs that the guides run exist.
#[test]
fn programs_of_the_guides_are_there() {
    for (page, text) in pages() {
        for name in text.split("--bin ").skip(1) {
            let name: String = name.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            assert!(root().join("examples").join(&name).join("main.rs").is_file(), "{page:?}: --bin {name}");
        }
    }
}

/// Links of the guides are valid.
#[test]
fn links_of_the_guides_lead_somewhere() {
    for (page, text) in pages() {
        for link in text.split("](").skip(1) {
            let link = link.split([')', '#']).next().unwrap();
            // An anchor of the page itself.
            if link.is_empty() {
                continue;
            }
            let path = page.parent().unwrap().join(link);
            assert!(link.starts_with("https://") || path.exists(), "{page:?}: {link}");
        }
    }
}

/// Meshes and bootstraps in the guides are valid. (Their Rust code is compiled as doctests of this crate.)
#[test]
fn files_in_the_guides_are_valid() {
    let mut seen = [0; 2];
    for (page, text) in pages() {
        for mesh in blocks(&text, "yaml") {
            Mesh::from_yaml(mesh).unwrap_or_else(|errors| panic!("{page:?}: {errors}"));
            seen[0] += 1;
        }
        for bootstrap in blocks(&text, "json") {
            Bootstrap::from_json(bootstrap).unwrap_or_else(|error| panic!("{page:?}: {error}"));
            seen[1] += 1;
        }
    }
    assert!(seen.iter().all(|count| *count > 1), "{seen:?}");
}

/// Status texts on the troubleshooting page are texts of the sources. `...` stands for any value.
#[test]
fn texts_of_the_troubleshooting_page_are_in_the_sources() {
    let mut sources = String::new();
    for name in ["evenkeel", "evenkeel-core", "evenkeel-http2", "evenkeel-xds"] {
        collect(&root().join("crates").join(name).join("src"), &mut sources);
    }
    let (mut checked, mut missing) = (0, Vec::new());
    for row in read(&root().join("docs/troubleshooting.md")).lines() {
        let Some(cell) = row.strip_prefix("| `").and_then(|rest| rest.split(" | ").next()) else { continue };
        for text in cell.split('`').step_by(2) {
            for part in
                text.split("...").map(|part| part.trim_matches([' ', ':'])).filter(|part| !part.is_empty())
            {
                checked += 1;
                if !sources.contains(part) {
                    missing.push(part.to_owned());
                }
            }
        }
    }
    assert!(checked > 40 && missing.is_empty(), "of {checked} texts no status has {missing:#?}");
}

/// Versions on the compatibility page are those of the workspace's manifest.
#[test]
fn versions_of_the_compatibility_page_are_required() {
    let manifest = read(&root().join("Cargo.toml"));
    let page = read(&root().join("docs/compatibility.md"));
    let rows =
        page.split("## ").find(|section| section.starts_with("Versions")).expect("a table of versions");
    let mut checked = 0;
    for row in rows.lines().filter_map(|line| line.strip_prefix("| `")) {
        let (name, version) = row.split_once("` | ").expect("a name and a version");
        let version = version.split(' ').next().unwrap_or_default();
        let required = [format!("{name} = \"{version}\""), format!("{name} = {{ version = \"{version}\"")];
        assert!(
            manifest.lines().any(|line| required.iter().any(|required| line.starts_with(required))),
            "Cargo.toml does not require {name} {version}"
        );
        checked += 1;
    }
    assert_eq!(checked, 9);
}

/// Appends the Rust files below a folder, with strings of several lines joined.
fn collect(folder: &Path, sources: &mut String) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let mut lines = read(&path);
            lines = lines.split("\\\n").map(str::trim_start).collect();
            sources.push_str(&lines.replace("\\\"", "\""));
        }
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the examples stand in the workspace")
}

/// Pages in `docs` with the same rules as the guides.
const USER_PAGES: [&str; 7] = [
    "compatibility.md",
    "do-i-need-this.md",
    "glossary.md",
    "istio-and-kubernetes.md",
    "migrating.md",
    "production-checklist.md",
    "troubleshooting.md",
];

/// Returns the guides, the other pages for users and the README of the examples.
fn pages() -> Vec<(PathBuf, String)> {
    let guides = fs::read_dir(root().join("docs/guides")).expect("there are guides");
    let guides = guides.map(|entry| entry.expect("they can be listed").path());
    let users = USER_PAGES.map(|name| root().join("docs").join(name));
    let pages: Vec<_> = guides.chain(users).chain([root().join("examples/README.md")]).collect();
    assert!(pages.len() > 5);
    pages.into_iter().map(|page| (page.clone(), read(&page))).collect()
}

fn blocks<'a>(text: &'a str, language: &str) -> Vec<&'a str> {
    let open = format!("```{language}\n");
    text.split(&*open).skip(1).map(|rest| rest.split("```").next().unwrap_or(rest)).collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
