//! Language of the library crates: comments and type names use the terms of gRPC, and the number of exceptions only falls.
//!
//! `language.json` has a limit per crate and count. A count above its limit fails the test, and so does a limit above its
//! count. This command lowers the limits to the counts and never raises one:
//!
//! ```sh
//! EVENKEEL_UPDATE_LANGUAGE=1 cargo test -p testkit --test language
//! ```

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::{env, fs};

use common::{SourceFile, defined_ids, requirement_ids, root, source_files};

/// Command that lowers the limits to the counts.
const UPDATE: &str = "EVENKEEL_UPDATE_LANGUAGE=1 cargo test -p testkit --test language";

/// First words that a sentence of a comment avoids.
const OPENINGS: &[&str] = &["What", "Who", "Whom", "Whose", "Whether", "How", "Those", "Where", "Why"];

/// Persons, which code does not have.
const PERSONS: &[&str] = &["nobody", "somebody", "anybody", "whoever", "who", "whom"];

/// Verbs of speech. Functions return, components send and log.
const SPEECH: &[&str] = &[
    "say",
    "says",
    "said",
    "saying",
    "tell",
    "tells",
    "told",
    "telling",
    "answer",
    "answers",
    "answered",
    "answering",
];

/// Single words that are type names in gRPC, xDS, HTTP/2 or Rust libraries.
const FIELD_WORDS: &str = "Address Attempt Authority Backoff Bootstrap Cds Channel Cli Cluster Code Connection Connector \
    Credentials Csds Cx Endpoint Endpoints Error Instant Io Listener Locality Mesh Metric Nack Picker \
    Policy Priority Reason Registry Resolver Resource Rng Route Server Service Severity Status \
    Subchannel";

/// Limits or counts: crate, name of the count, number.
type CountTable = BTreeMap<String, BTreeMap<String, usize>>;

/// One place that breaks a rule, as often as `hits`.
struct Finding {
    rule: &'static str,
    hits: usize,
    place: String,
}

/// No count is above its limit, and no limit is above its count.
#[test]
fn counts_equal_their_limits() {
    let findings = library_findings();
    let counts: CountTable = findings.iter().map(|(name, findings)| (name.clone(), sums(findings))).collect();
    let file = root().join("testkit/tests/language.json");
    let text = fs::read_to_string(&file).expect("the limits are committed");
    let mut limits: CountTable =
        serde_json::from_str(&text).expect("language.json maps crates to counts to numbers");
    if env::var_os("EVENKEEL_UPDATE_LANGUAGE").is_some() {
        limits = lowered(&limits, &counts);
        let text = serde_json::to_string_pretty(&limits).expect("names and numbers become JSON") + "\n";
        fs::write(&file, text).expect("language.json can be written");
    }
    let mut faults = Vec::new();
    for (name, rule, count, limit) in differences(&limits, &counts) {
        faults.push(if count > limit {
            let mut found: Vec<_> = findings[&name].iter().filter(|found| found.rule == rule).collect();
            found.sort_by_key(|found| std::cmp::Reverse(found.hits));
            let places: Vec<_> = found.iter().take(20).map(|found| format!("\n  {}", found.place)).collect();
            format!(
                "{name}: {rule}: {count}, limit {limit}. Reword at least {} of:{}",
                count - limit,
                places.concat()
            )
        } else {
            format!("{name}: {rule}: {count}, limit {limit}. Lower it: {UPDATE}")
        });
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn comments_split_into_sentences() {
    let source = "/// One `a; b` here. Two: three\n/// goes on.\n///\n/// - Item\n/// ```\n/// Not prose.\n/// ```\nfn f() {} // no\n    // Four.";
    let expected = ["1 One `a; b` here.", "1 Two:", "1 three goes on.", "4 Item", "9 Four."];
    let found: Vec<_> =
        sentences(&file(source)).iter().map(|(line, text)| format!("{line} {text}")).collect();
    assert_eq!(found, expected);
}

#[test]
fn rules_count_each_exception() {
    for (source, expected) in [
        ("/// What it holds. Whatever it holds: what else?", "openings 1"),
        ("/// Wakes whoever waits, or nobody who `who` asks.", "persons 3"),
        ("// The server answers, and tells why.", "speech 2"),
        ("/// The policy.", "short_docs 1"),
        ("/// The policy\n/// of the cluster.\n// Short.", ""),
        ("pub(crate) struct Seen;\nenum Channel {}\nstruct SeenState;\n    type Item;", "one_word_names 1"),
        ("/// The rule WRR-6 and its successor WRR-99.", "undefined_ids 1"),
        ("#[cfg(test)]\nmod tests {\n    /// What?\n}\n/// Why this one counts.", "openings 1"),
    ] {
        let defined = BTreeSet::from(["WRR-6".to_owned()]);
        let sums = sums(&file_findings(&file(source), &defined));
        let found: Vec<_> = sums.iter().map(|(rule, count)| format!("{rule} {count}")).collect();
        assert_eq!(found.join(" "), expected, "{source}");
    }
}

#[test]
fn limits_only_fall() {
    let table = |persons, speech| {
        let counts = [("persons", persons), ("speech", speech)].map(|(rule, count)| (rule.to_owned(), count));
        CountTable::from([("core".to_owned(), BTreeMap::from(counts))])
    };
    assert_eq!(lowered(&table(3, 3), &table(2, 4)), table(2, 3));
    assert_eq!(lowered(&table(3, 3), &CountTable::new()), CountTable::new());
    assert_eq!(lowered(&CountTable::new(), &table(1, 1)), CountTable::new());
    assert_eq!(differences(&table(3, 3), &table(3, 3)), []);
    let fallen_and_risen =
        [("core".to_owned(), "persons".to_owned(), 2, 3), ("core".to_owned(), "speech".to_owned(), 4, 3)];
    assert_eq!(differences(&table(3, 3), &table(2, 4)), fallen_and_risen);
    assert_eq!(differences(&CountTable::new(), &table(0, 1)).len(), 1);
}

/// Limits reduced to the counts. A limit never rises, and a limit of zero is left out.
fn lowered(limits: &CountTable, counts: &CountTable) -> CountTable {
    let mut limits = limits.clone();
    for (name, limits) in &mut limits {
        for (rule, limit) in &mut *limits {
            *limit = (*limit).min(number(counts, name, rule));
        }
        limits.retain(|_, limit| *limit > 0);
    }
    limits.retain(|_, limits| !limits.is_empty());
    limits
}

/// Crate, rule, count and limit wherever count and limit differ.
fn differences(limits: &CountTable, counts: &CountTable) -> Vec<(String, String, usize, usize)> {
    let tables = limits.iter().chain(counts);
    let keys: BTreeSet<_> =
        tables.flat_map(|(name, rules)| rules.keys().map(move |rule| (name, rule))).collect();
    keys.into_iter()
        .map(|(name, rule)| {
            (name.clone(), rule.clone(), number(counts, name, rule), number(limits, name, rule))
        })
        .filter(|(_, _, count, limit)| count != limit)
        .collect()
}

fn number(table: &CountTable, name: &str, rule: &str) -> usize {
    table.get(name).and_then(|rules| rules.get(rule)).copied().unwrap_or_default()
}

fn sums(findings: &[Finding]) -> BTreeMap<String, usize> {
    let mut sums = BTreeMap::new();
    for found in findings {
        *sums.entry(found.rule.to_owned()).or_default() += found.hits;
    }
    sums
}

/// Findings per library crate. Generated code and tests are left out.
fn library_findings() -> BTreeMap<String, Vec<Finding>> {
    let defined: BTreeSet<_> = defined_ids().into_iter().map(|(id, _)| id).collect();
    let mut findings = BTreeMap::<String, Vec<_>>::new();
    let mut types = BTreeMap::<String, Vec<_>>::new();
    for file in source_files("crates", &["rs"]) {
        let mut parts = file.path.iter().skip(1).map(|part| part.to_string_lossy().into_owned());
        let name = parts.next().expect("a source is in a crate");
        let is_library =
            parts.next().as_deref() == Some("src") && !parts.any(|part| part.starts_with("generated"));
        if !is_library || file.is_test() {
            continue;
        }
        for (line, type_name) in type_names(&file) {
            let place = format!("{}:{line}: {type_name}", file.path.display());
            types.entry(type_name.to_owned()).or_default().push((name.clone(), place));
        }
        findings.entry(name).or_default().extend(file_findings(&file, &defined));
    }
    for (name, place) in types.into_values().filter(|places| places.len() > 1).flatten() {
        findings.entry(name).or_default().push(Finding { rule: "shared_names", hits: 1, place });
    }
    findings
}

/// Findings that need no other file.
fn file_findings(file: &SourceFile, defined: &BTreeSet<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |rule, hits, line: usize, text: &str| {
        if hits > 0 {
            findings.push(Finding { rule, hits, place: format!("{}:{line}: {text}", file.path.display()) });
        }
    };
    for (line, text) in sentences(file) {
        let prose: String = text.split('`').step_by(2).collect::<Vec<_>>().join("X");
        let words: Vec<_> =
            prose.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
        let count =
            |list: &[&str]| words.iter().filter(|word| list.contains(&word.to_lowercase().as_str())).count();
        add("openings", words.first().is_some_and(|word| OPENINGS.contains(word)).into(), line, &text);
        add("persons", count(PERSONS), line, &text);
        add("speech", count(SPEECH), line, &text);
        add(
            "undefined_ids",
            requirement_ids(&text).iter().filter(|id| !defined.contains(*id)).count(),
            line,
            &text,
        );
    }
    for (line, text) in short_docs(file) {
        add("short_docs", 1, line, &text);
    }
    for (line, name) in type_names(file) {
        let is_one_word = name.matches(char::is_uppercase).count() == 1;
        add(
            "one_word_names",
            (is_one_word && !FIELD_WORDS.split(' ').any(|word| word == name)).into(),
            line,
            name,
        );
    }
    findings
}

/// Sentences of the comments outside test modules, with the line of their first word. A colon or semicolon ends one too.
fn sentences(file: &SourceFile) -> Vec<(usize, String)> {
    let mut sentences = Vec::new();
    let mut open: Option<(usize, String)> = None;
    let mut is_fenced = false;
    for (number, line, in_test_module) in file.lines() {
        let body = comment(line).filter(|_| !in_test_module);
        let is_fence = body.is_some_and(|body| body.starts_with("```"));
        is_fenced = body.is_some() && is_fenced != is_fence;
        let body = body.filter(|_| !is_fenced && !is_fence).unwrap_or_default();
        if body.is_empty() || body.starts_with(['-', '*', '#', '|']) {
            sentences.extend(open.take());
        }
        for word in body.trim_start_matches(['-', '*', '#', '|', ' ']).split_whitespace() {
            let (_, text) = open.get_or_insert_with(|| (number, String::new()));
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(word);
            let is_in_code = text.matches('`').count() % 2 == 1;
            if word.ends_with(['.', ':', ';']) && !is_in_code {
                sentences.extend(open.take());
            }
        }
    }
    sentences.extend(open);
    sentences
}

/// Doc comments of three words or fewer, outside test modules.
fn short_docs(file: &SourceFile) -> Vec<(usize, String)> {
    let mut docs = Vec::<(usize, String)>::new();
    let mut last = 0;
    for (number, line, in_test_module) in file.lines() {
        let code = line.trim_start();
        let Some(body) = code.strip_prefix("///").or_else(|| code.strip_prefix("//!")) else { continue };
        if in_test_module {
            continue;
        }
        match docs.last_mut() {
            Some((_, text)) if last + 1 == number => text.push_str(body),
            _ => docs.push((number, body.to_owned())),
        }
        last = number;
    }
    docs.retain(|(_, text)| text.split_whitespace().count() <= 3);
    docs
}

/// Names of the types that a file defines outside test modules. Associated types, which are indented, are left out.
fn type_names(file: &SourceFile) -> Vec<(usize, &str)> {
    let lines = file.lines().filter(|(.., in_test_module)| !in_test_module);
    lines.filter_map(|(number, line, _)| Some((number, type_name(line)?))).collect()
}

fn type_name(line: &str) -> Option<&str> {
    let mut code = line.trim_start();
    if let Some(rest) = code.strip_prefix("pub") {
        code = rest
            .strip_prefix('(')
            .and_then(|rest| rest.split_once(')'))
            .map_or(rest, |(_, rest)| rest)
            .trim_start();
    }
    let (keyword, rest) = code.split_once(' ')?;
    let is_type = matches!(keyword, "struct" | "enum" | "trait" | "union")
        || keyword == "type" && !line.starts_with(' ');
    let name = rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()?;
    (is_type && name.starts_with(char::is_uppercase)).then_some(name)
}

/// Text of a line that is a comment as a whole.
fn comment(line: &str) -> Option<&str> {
    let comment = line.trim_start().strip_prefix("//")?;
    Some(comment.trim_start_matches(['/', '!']).trim())
}

fn file(text: &str) -> SourceFile {
    SourceFile { path: "lib.rs".into(), text: text.to_owned() }
}
