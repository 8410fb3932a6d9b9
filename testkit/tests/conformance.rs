//! Requirement ids: each one that the sources name is defined in `docs/conformance`, once, and has a test.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{defined_ids, requirement_ids, source_files};

/// Ids that may be without a test, each with the reason.
const WITHOUT_TEST: &[(&str, &str)] = &[];

/// Every id in a comment has a row in `docs/conformance`, and every row has a test that names its id.
#[test]
fn ids_are_defined_and_tested() {
    let defined: BTreeSet<_> = defined_ids().into_iter().map(|(id, _)| id).collect();
    assert!(!defined.is_empty(), "docs/conformance defines ids");
    let mut faults = Vec::new();
    let mut tested = BTreeSet::new();
    let files = ["crates", "examples", "testkit", "tools"].map(|dir| source_files(dir, &["rs", "go", "js"]));
    for file in files.iter().flatten() {
        let is_test_file = file.is_test();
        for (number, line, in_test_module) in file.lines() {
            for id in requirement_ids(comment(line)) {
                if !defined.contains(&id) {
                    faults.push(format!("{}:{number}: {id} is not in docs/conformance", file.path.display()));
                } else if is_test_file || in_test_module {
                    tested.insert(id);
                }
            }
        }
    }
    let untested: Vec<_> = defined.difference(&tested).map(String::as_str).collect();
    println!("{} of {} ids are named by tests; without a test: {untested:?}", tested.len(), defined.len());
    let allowed = |id: &str| WITHOUT_TEST.iter().any(|(allowed, _)| *allowed == id);
    faults.extend(untested.iter().filter(|id| !allowed(id)).map(|id| format!("{id}: no test names it")));
    let stale = WITHOUT_TEST.iter().filter(|(id, _)| !untested.contains(id));
    faults.extend(stale.map(|(id, _)| format!("{id}: has a test or no row; remove it from WITHOUT_TEST")));
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// No id has two rows, on one page or on two.
#[test]
fn ids_are_defined_once() {
    let mut pages = BTreeMap::<_, Vec<_>>::new();
    for (id, page) in defined_ids() {
        pages.entry(id).or_default().push(page);
    }
    pages.retain(|_, pages| pages.len() > 1);
    assert!(pages.is_empty(), "defined more than once: {pages:?}");
}

#[test]
fn ids_are_found_in_prose() {
    for (text, expected) in [
        ("WRR-6, VAL-C3: the weight.", "WRR-6 VAL-C3"),
        ("(FB-2). As in CDS-5/CDS-6", "FB-2 CDS-5 CDS-6"),
        ("EDF-1..3 and VAL-E1..=2, RH-4..RH-5", "EDF-1 EDF-2 EDF-3 VAL-E1 VAL-E2 RH-4 RH-5"),
        ("faults 17 and 37, ADS-2", "ADS-2 fault 17 fault 37"),
        ("Fault 79, its interval; fault 80. 3 times", "fault 79 fault 80"),
        ("CDS-1, fault 10, fault 31: while", "CDS-1 fault 10 fault 31"),
        ("(fault 16: once), faults 1, 3..5 and 9", "fault 16 fault 1 fault 3 fault 4 fault 5 fault 9"),
        (
            "UTF-8, CVE-2026-33186, RUSTSEC-2024-0332, FNV-1a, default 2, a fault in 3 parts, wrr-6, VAL-3c",
            "",
        ),
    ] {
        assert_eq!(requirement_ids(text).join(" "), expected, "{text}");
    }
}

/// Text of the comment in a line, or an empty text.
fn comment(line: &str) -> &str {
    match line.trim_start().strip_prefix("//") {
        Some(comment) => comment,
        None => line.split_once(" // ").map_or("", |(_, comment)| comment),
    }
}
