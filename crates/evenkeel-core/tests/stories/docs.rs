//! Checks of the examples in the guides.

use evenkeel_core::Registry;
use serde_json::Value;

const POLICIES: &str = include_str!("../../../../docs/policies.md");

fn examples() -> impl Iterator<Item = &'static str> {
    POLICIES.split("```json\n").skip(1).filter_map(|rest| rest.split("```").next())
}

#[test]
fn every_example_parses() {
    for example in examples() {
        let config: Value = serde_json::from_str(example).expect("an example is JSON");
        let parsed =
            Registry::standard().parse(&config).unwrap_or_else(|error| panic!("{error} in {example}"));
        assert!(parsed.warnings().is_empty(), "{:?}", parsed.warnings());
    }
}

#[test]
fn every_policy_has_a_section_and_an_example() {
    for name in Registry::standard().names() {
        assert!(POLICIES.contains(&format!("`{name}`")), "{name} is not in docs/policies.md");
    }
    let headings = POLICIES.lines().filter(|line| line.starts_with("### ")).count();
    assert_eq!(headings, examples().count());
}
