//! Invariants about things that the crates must not have.
//!
//! A statement about something absent goes stale silently: nothing breaks when a change adds the dependency,
//! the clock or the global. Each such statement about the workspace is a test here, over `cargo metadata`,
//! the manifests and the sources. A failing test here needs a decision, not a patch. To change the invariant,
//! change the table and ARCHITECTURE.md together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, iter};

use serde_json::Value;

/// Allowed dependencies between the crates of the workspace. Every crate is listed.
const ALLOWED_DEPENDENCIES: &[(&str, &[&str])] = &[
    ("evenkeel-core", &[]),
    ("evenkeel-proto", &[]),
    ("evenkeel-orca", &["evenkeel-proto"]),
    ("evenkeel-control", &["evenkeel-proto"]),
    ("evenkeel-http2", &[]),
    ("evenkeel-xds", &["evenkeel-core", "evenkeel-proto"]),
    ("evenkeel", &["evenkeel-core", "evenkeel-http2", "evenkeel-orca", "evenkeel-proto", "evenkeel-xds"]),
    (
        "evenkeel-cli",
        &["evenkeel", "evenkeel-control", "evenkeel-core", "evenkeel-orca", "evenkeel-proto", "evenkeel-xds"],
    ),
    ("examples", &["evenkeel", "evenkeel-control", "evenkeel-core", "evenkeel-orca", "evenkeel-proto"]),
    ("protogen", &[]),
    ("interop", &["evenkeel", "evenkeel-control", "evenkeel-core", "evenkeel-orca", "evenkeel-proto"]),
    (
        "evenkeel-bench",
        &[
            "evenkeel",
            "evenkeel-control",
            "evenkeel-core",
            "evenkeel-orca",
            "evenkeel-proto",
            "evenkeel-xds",
            "testkit",
        ],
    ),
    ("testkit", &["evenkeel-control", "evenkeel-core", "evenkeel-proto", "evenkeel-xds"]),
];

/// Third-party crates that the core may use. There are few because all other crates depend on the core.
const CORE_DEPENDENCIES: &[&str] = &["serde", "serde_json", "xxhash-rust"];

/// Crates that make decisions and perform no I/O.
const SANS_IO: &[&str] = &["evenkeel-core", "evenkeel-xds"];

/// Paths that their `clippy.toml` must ban. The lists there are longer; these are one example of each kind.
const BANNED: &[&str] =
    &["std::time::Instant::now", "std::net::TcpStream", "std::thread::spawn", "std::thread::sleep"];

/// Categories of crates.io in use. crates.io drops others without an error.
const CATEGORIES: &[&str] = &[
    "algorithms",
    "asynchronous",
    "command-line-utilities",
    "development-tools",
    "development-tools::testing",
    "encoding",
    "network-programming",
    "parser-implementations",
    "web-programming::http-client",
];

/// Dependencies between the crates of the workspace are those of the table. Dev-dependencies are free, and so
/// is the bench, which is not shipped. No shipped code depends on the testkit.
#[test]
fn dependencies_point_down() {
    let workspace = Workspace::load();
    let mut faults = Vec::new();
    for package in &workspace.packages {
        let Some((_, allowed)) = ALLOWED_DEPENDENCIES.iter().find(|(name, _)| *name == package.name) else {
            faults.push(format!(
                "{}: not in the table; decide which crates it may depend on and add it to ALLOWED_DEPENDENCIES",
                package.name
            ));
            continue;
        };
        for used in package.shipped.iter().filter(|name| workspace.has(name)) {
            if allowed.contains(&used.as_str()) {
                continue;
            }
            faults.push(match used.as_str() {
                "testkit" => format!("{}: testkit may only be a dev-dependency", package.name),
                used => format!("{}: may not depend on {used}", package.name),
            });
        }
    }
    assert_none(&faults);
}

/// A plain `cargo build` or `cargo test` does not build `tools/`. No crate depends on a tool, not even for
/// its tests.
#[test]
fn default_build_excludes_the_tools() {
    let workspace = Workspace::load();
    let (tools, others): (Vec<_>, Vec<_>) =
        workspace.packages.iter().partition(|package| package.dir.starts_with(workspace.root.join("tools")));
    assert!(!tools.is_empty(), "tools/ has members of the workspace");
    let mut faults = Vec::new();
    for tool in &tools {
        if tool.is_default {
            faults.push(format!("{}: a tool is not a default member", tool.name));
        }
        for package in others.iter().filter(|package| package.dependencies.contains(&tool.name)) {
            faults.push(format!("{}: may not depend on the tool {}", package.name, tool.name));
        }
    }
    for package in others.iter().filter(|package| !package.is_default) {
        faults.push(format!("{}: `cargo test` does not build it; add it to default-members", package.name));
    }
    assert_none(&faults);
}

/// The core depends on three small third-party crates. Features and build scripts count too.
#[test]
fn core_has_few_dependencies() {
    let workspace = Workspace::load();
    let core = workspace.package("evenkeel-core").expect("the core is a member");
    let others = core.shipped.iter().filter(|name| !workspace.has(name));
    let faults: Vec<_> = others
        .filter(|name| !CORE_DEPENDENCIES.contains(&name.as_str()))
        .map(|name| format!("evenkeel-core: depends on {name}; what would we write instead?"))
        .collect();
    assert_none(&faults);
}

/// Edition, MSRV and licence are set once, in the workspace manifest, and inherited by every crate.
#[test]
fn package_fields_are_inherited() {
    let workspace = Workspace::load();
    let mut faults = Vec::new();
    for field in ["edition", "rust-version", "license"] {
        let mut values = BTreeMap::<_, Vec<_>>::new();
        for package in &workspace.packages {
            let inherited = section(&package.manifest, "[package]")
                .any(|line| without_spaces(line) == format!("{field}.workspace=true"));
            if !inherited {
                faults.push(format!("{}: write `{field}.workspace = true`", package.name));
            }
            values.entry(package.facts[field].clone()).or_default().push(&package.name);
        }
        if values.len() != 1 || values.contains_key(&None) {
            faults.push(format!("{field}: not the same everywhere: {values:?}"));
        }
    }
    assert_none(&faults);
}

/// The manifest of every published crate has the fields that crates.io and docs.rs show. The crate has a README
/// of its own, and the licences as links, which cargo packages as files.
#[test]
fn published_crates_are_complete() {
    let workspace = Workspace::load();
    let published: Vec<_> = workspace.published().collect();
    assert!(!published.is_empty(), "crates/ has members of the workspace");
    let mut faults = Vec::new();
    for package in &published {
        for field in ["description", "repository", "license"] {
            if package.facts[field].as_ref().is_none_or(String::is_empty) {
                faults.push(format!("{}: no {field} in the manifest", package.name));
            }
        }
        for (field, maximum) in [("keywords", 5), ("categories", 5)] {
            let number = package.metadata[field].as_array().map_or(0, Vec::len);
            if !(1..=maximum).contains(&number) {
                faults.push(format!("{}: {number} {field}; expected 1 to {maximum}", package.name));
            }
        }
        let categories = package.metadata["categories"].as_array().into_iter().flatten();
        for category in categories.map(text).filter(|category| !CATEGORIES.contains(category)) {
            faults.push(format!(
                "{}: unknown category {category:?}; see crates.io/category_slugs",
                package.name
            ));
        }
        if package.facts["readme"].as_deref() != Some("README.md") {
            faults.push(format!("{}: write `readme = \"README.md\"`", package.name));
        }
        let readme = fs::read_to_string(package.dir.join("README.md")).unwrap_or_default();
        if !readme.starts_with(&format!("# {}\n", package.name)) {
            faults.push(format!("{}: README.md does not start with the name of the crate", package.name));
        }
        if !package.facts["repository"].as_ref().is_some_and(|url| readme.contains(&format!("]({url})"))) {
            faults.push(format!("{}: README.md has no link to the repository", package.name));
        }
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
            let link = fs::read_link(package.dir.join(licence)).unwrap_or_default();
            if link != Path::new("../..").join(licence) {
                faults.push(format!("{}: run `ln -s ../../{licence} {licence}` in its folder", package.name));
            }
        }
        let docs = &package.metadata["metadata"]["docs"]["rs"];
        if docs["all-features"] != true || docs["rustdoc-args"] != serde_json::json!(["--cfg", "docsrs"]) {
            faults.push(format!("{}: [package.metadata.docs.rs] lacks all-features or docsrs", package.name));
        }
        let has_features =
            package.metadata["features"].as_object().is_some_and(|features| !features.is_empty());
        let lib = fs::read_to_string(package.dir.join("src/lib.rs")).unwrap_or_default();
        if has_features && !lib.contains("#![cfg_attr(docsrs, feature(doc_cfg))]") {
            faults.push(format!("{}: docs.rs would not mark items that need a feature", package.name));
        }
    }
    let binaries: Vec<_> = published.iter().flat_map(|package| package.binaries()).collect();
    if binaries != ["evenkeel"] {
        faults.push(format!("`cargo install` installs {binaries:?}, expected only evenkeel"));
    }
    assert_none(&faults);
}

/// Every crate inherits the lints of the workspace. Cargo does not require it, so a new crate easily lacks
/// them.
#[test]
fn every_crate_inherits_the_lints() {
    let workspace = Workspace::load();
    let faults: Vec<_> = workspace
        .packages
        .iter()
        .filter(|package| {
            !section(&package.manifest, "[lints]").any(|line| without_spaces(line) == "workspace=true")
        })
        .map(|package| format!("{}: write `[lints]` and `workspace = true`", package.name))
        .collect();
    assert_none(&faults);
}

/// In the crates without a clock, sockets or threads, their own `clippy.toml` makes clippy reject these.
#[test]
fn sans_io_crates_ban_io() {
    let workspace = Workspace::load();
    let mut faults = Vec::new();
    for package in SANS_IO.iter().filter_map(|name| workspace.package(name)) {
        let settings = fs::read_to_string(package.dir.join("clippy.toml")).unwrap_or_default();
        for path in BANNED {
            let entry = format!("{{path=\"{path}\",");
            if !settings.lines().any(|line| without_spaces(line).starts_with(&entry)) {
                faults.push(format!("{}: clippy.toml does not ban {path}", package.name));
            }
        }
    }
    assert_none(&faults);
}

/// A crate's own `clippy.toml` replaces that of the workspace, so it must repeat the common settings.
#[test]
fn own_clippy_settings_repeat_the_common_ones() {
    let workspace = Workspace::load();
    let common = fs::read_to_string(workspace.root.join("clippy.toml")).expect("the workspace has one");
    let mut faults = Vec::new();
    for package in &workspace.packages {
        let Ok(own) = fs::read_to_string(package.dir.join("clippy.toml")) else { continue };
        for setting in common.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if !own.lines().any(|line| line == setting) {
                faults.push(format!("{}: clippy.toml lacks `{setting}`", package.name));
            }
        }
    }
    assert_none(&faults);
}

/// The core has no global and no `unsafe`. Its sources have no `static` item, which also excludes `static
/// mut`, a `OnceLock` in a static and `thread_local!`.
#[test]
fn core_has_no_global_and_no_unsafe() {
    let workspace = Workspace::load();
    let core = workspace.package("evenkeel-core").expect("the core is a member");
    let sources = rust_files(&core.dir.join("src"));
    assert!(!sources.is_empty(), "the core has sources");
    let mut faults = Vec::new();
    for source in sources {
        let text = fs::read_to_string(&source).expect("a listed source can be read");
        for (line, word) in forbidden_words(&text) {
            faults.push(format!("{}:{line}: `{word}`", source.display()));
        }
    }
    assert_none(&faults);
}

/// The search for globals finds items. It ignores lifetimes, comments, strings and longer names.
#[test]
fn search_for_globals_reads_code_only() {
    let found = [
        "static A: u8 = 0;",
        "pub(crate) static mut A: u8 = 0;",
        "static CELL: OnceLock<u8> = OnceLock::new();",
        "thread_local! {\n}",
        "let c = '\"'; unsafe { f() } // \"",
        "let s = r#\"a \" b\"#; static A: u8 = 0;",
        "/* /* */ */ static A: u8 = 0;",
        "fn f<'a>(x: &'a str) {} static A: u8 = 0; fn g<'a>() {}",
    ];
    for text in found {
        assert_eq!(forbidden_words(text).len(), 1, "{text}");
    }
    let passed = [
        "fn f(x: &'static str) -> Box<dyn Policy + 'static> {}",
        "const A: u8 = 0; // static A",
        "/// A static list, never unsafe.\nstruct List;",
        "#![forbid(unsafe_code)]",
        "let s = \"a \\\" static list\"; let s = r#\"an \" unsafe one\"#;",
        "let c = '\\''; let s = \"static\";",
        "let static_list = is_static();",
        "/* unsafe /* static */ static */",
    ];
    for text in passed {
        assert_eq!(forbidden_words(text), [], "{text}");
    }
}

/// Crates of the workspace, from `cargo metadata`.
struct Workspace {
    root: PathBuf,
    packages: Vec<Package>,
}

struct Package {
    name: String,
    dir: PathBuf,
    /// Manifest as written, before inheritance.
    manifest: String,
    /// Fields whose value cargo resolves, by their name in a manifest.
    facts: BTreeMap<&'static str, Option<String>>,
    /// The package in the output of `cargo metadata`.
    metadata: Value,
    /// Normal and build dependencies, optional ones too, by their real names.
    shipped: Vec<String>,
    /// Shipped dependencies and dev-dependencies.
    dependencies: Vec<String>,
    /// True if cargo builds the crate without `-p` or `--workspace`.
    is_default: bool,
}

impl Workspace {
    fn load() -> Self {
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--no-deps", "--offline", "--format-version", "1", "--manifest-path"])
            // The manifest of the workspace: for a member's manifest, cargo lists only that member as
            // default.
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml"))
            .output()
            .expect("cargo runs, since it runs this test");
        assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
        let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
        let packages = metadata["packages"].as_array().expect("metadata lists packages");
        Self {
            root: PathBuf::from(text(&metadata["workspace_root"])),
            packages: packages.iter().map(|package| Package::read(package, &metadata)).collect(),
        }
    }

    fn package(&self, name: &str) -> Option<&Package> {
        self.packages.iter().find(|package| package.name == name)
    }

    /// Crates that are published.
    fn published(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| package.dir.starts_with(self.root.join("crates")))
    }

    fn has(&self, name: &str) -> bool {
        self.package(name).is_some()
    }
}

impl Package {
    fn read(metadata: &Value, workspace: &Value) -> Self {
        let manifest = PathBuf::from(text(&metadata["manifest_path"]));
        let defaults =
            workspace["workspace_default_members"].as_array().expect("metadata lists default members");
        let fact = |key: &str| metadata[key].as_str().map(str::to_owned);
        let dependencies = metadata["dependencies"].as_array().expect("a package lists dependencies");
        Self {
            name: text(&metadata["name"]).to_owned(),
            dir: manifest.parent().expect("a manifest is in a folder").to_owned(),
            manifest: fs::read_to_string(&manifest).expect("cargo has just read it"),
            facts: BTreeMap::from([
                ("edition", fact("edition")),
                ("rust-version", fact("rust_version")),
                ("license", fact("license")),
                ("description", fact("description")),
                ("repository", fact("repository")),
                ("readme", fact("readme")),
            ]),
            shipped: dependencies
                .iter()
                .filter(|dependency| dependency["kind"] != "dev")
                .map(|dependency| text(&dependency["name"]).to_owned())
                .collect(),
            dependencies: dependencies
                .iter()
                .map(|dependency| text(&dependency["name"]).to_owned())
                .collect(),
            is_default: defaults.contains(&metadata["id"]),
            metadata: metadata.clone(),
        }
    }

    /// Names of the programs that `cargo install` installs.
    fn binaries(&self) -> Vec<&str> {
        let targets = self.metadata["targets"].as_array().expect("a package lists targets");
        let is_binary =
            |target: &&Value| target["kind"].as_array().is_some_and(|kinds| kinds.contains(&"bin".into()));
        targets.iter().filter(is_binary).map(|target| text(&target["name"])).collect()
    }
}

fn text(value: &Value) -> &str {
    value.as_str().expect("cargo's metadata has text here")
}

/// Lines below a heading of a manifest, up to the next heading.
fn section<'a>(manifest: &'a str, heading: &'a str) -> impl Iterator<Item = &'a str> {
    let below = manifest.lines().skip_while(move |line| line.trim() != heading).skip(1);
    below.take_while(|line| !line.starts_with('['))
}

fn without_spaces(line: &str) -> String {
    line.split_whitespace().collect()
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.expect("a source folder can be listed").path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Words that define a global or need a proof, with their lines.
fn forbidden_words(source: &str) -> Vec<(usize, String)> {
    let code = code_only(source);
    let mut found = Vec::new();
    for (index, line) in code.lines().enumerate() {
        // `'static` is a lifetime, so the quote is part of the word.
        let words = line.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '\''));
        let forbidden = words.filter(|word| ["static", "thread_local", "unsafe"].contains(word));
        found.extend(forbidden.map(|word| (index + 1, word.to_owned())));
    }
    found
}

/// Source without comments and without the content of strings and characters. Line numbers are kept.
fn code_only(source: &str) -> String {
    let chars: Vec<char> = source.chars().chain(iter::repeat_n('\0', 3)).collect();
    let end = chars.len() - 3;
    let mut code = String::new();
    let mut at = 0;
    while at < end {
        let from = at;
        match (chars[at], chars[at + 1]) {
            ('/', '/') => at += chars[at..end].iter().take_while(|c| **c != '\n').count(),
            ('/', '*') => {
                let mut depth = 0;
                while at < end {
                    match (chars[at], chars[at + 1]) {
                        ('/', '*') => depth += 1,
                        ('*', '/') => depth -= 1,
                        _ => {
                            at += 1;
                            continue;
                        }
                    }
                    at += 2;
                    if depth == 0 {
                        break;
                    }
                }
            }
            ('"', _) => {
                at += 1;
                while at < end && chars[at] != '"' {
                    at += if chars[at] == '\\' { 2 } else { 1 };
                }
                at += 1;
            }
            ('r', '"' | '#') => {
                let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
                at += 1 + hashes;
                // `r#match` is an identifier.
                if chars[at] == '"' {
                    let close: Vec<char> = iter::once('"').chain(iter::repeat_n('#', hashes)).collect();
                    at += 1;
                    while at < end && !chars[at..].starts_with(&close) {
                        at += 1;
                    }
                    at += close.len();
                }
            }
            ('\'', '\\') => {
                at += 3;
                while at < end && chars[at] != '\'' {
                    at += 1;
                }
                at += 1;
            }
            ('\'', _) if chars[at + 2] == '\'' => at += 3,
            (c, _) => {
                code.push(c);
                at += 1;
                continue;
            }
        }
        // Skipped text separates words and keeps its line breaks.
        code.push(' ');
        code.extend(chars[from..at.min(end)].iter().filter(|c| **c == '\n'));
    }
    code
}

fn assert_none(faults: &[String]) {
    assert!(faults.is_empty(), "\n  {}\n", faults.join("\n  "));
}
