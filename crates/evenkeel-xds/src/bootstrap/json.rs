//! JSON of the bootstrap: conversion to a protobuf struct, and duplicate keys.

use std::collections::BTreeSet;
use std::fmt;

use evenkeel_proto::prost_types::value::Kind;
use evenkeel_proto::prost_types::{self, ListValue, Struct};
use serde_json::{Map, Value};

use crate::text::short;
use crate::{FieldPath, ValidationErrors};

/// Converts JSON to a protobuf struct. The recursion is bounded by the depth limit of `serde_json`.
pub(super) fn to_struct(map: &Map<String, Value>) -> Struct {
    Struct { fields: map.iter().map(|(key, value)| (key.clone(), to_value(value))).collect() }
}

fn to_value(value: &Value) -> prost_types::Value {
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(bool) => Kind::BoolValue(*bool),
        // Protobuf's JSON format stores every number as a double.
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Value::String(text) => Kind::StringValue(text.clone()),
        Value::Array(list) => Kind::ListValue(ListValue { values: list.iter().map(to_value).collect() }),
        Value::Object(map) => Kind::StructValue(to_struct(map)),
    };
    prost_types::Value { kind: Some(kind) }
}

/// Maximum number of duplicate keys that are reported.
const MAX_DUPLICATES: usize = 8;

/// Reports keys that occur twice in one object. `text` must be valid JSON. `serde_json` keeps only the last value, so
/// an earlier one would be ignored without notice.
pub(super) fn report_duplicate_keys(text: &str, problems: &mut ValidationErrors) {
    let mut open: Vec<OpenContainer> = Vec::new();
    let mut found = 0;
    let mut at = 0;
    let bytes = text.as_bytes();
    while let Some(byte) = bytes.get(at).filter(|_| found < MAX_DUPLICATES) {
        let from = at;
        at = at.saturating_add(1);
        match byte {
            b'{' => open.push(OpenContainer::Object { seen: BTreeSet::new(), key: String::new() }),
            b'[' => open.push(OpenContainer::List(0)),
            b'}' | b']' => {
                open.pop();
            }
            b',' => {
                if let Some(OpenContainer::List(index)) = open.last_mut() {
                    *index = index.saturating_add(1);
                }
            }
            b'"' => {
                while let Some(byte) = bytes.get(at).filter(|byte| **byte != b'"') {
                    // A backslash escapes the next character, possibly a quote, so both are skipped.
                    at = at.saturating_add(if *byte == b'\\' { 2 } else { 1 });
                }
                at = at.saturating_add(1);
                let is_key = bytes.iter().skip(at).find(|byte| !byte.is_ascii_whitespace()) == Some(&b':');
                let string = text.get(from..at).filter(|_| is_key);
                // Decode the key, because two spellings of one key are duplicates.
                let string = string.and_then(|string| serde_json::from_str::<String>(string).ok());
                if let Some(string) = string
                    && let Some(OpenContainer::Object { seen, key }) = open.last_mut()
                {
                    key.clone_from(&string);
                    if !seen.insert(string) {
                        found = found.saturating_add(1);
                        let path: String = open.iter().map(OpenContainer::to_string).collect();
                        let root = FieldPath::root();
                        problems.add(&root.field(path.trim_start_matches('.')), "occurs twice in its object");
                    }
                }
            }
            _ => {}
        }
    }
}

/// Container that encloses the current position, with the index or key reached in it.
enum OpenContainer {
    List(usize),
    Object { seen: BTreeSet<String>, key: String },
}

impl fmt::Display for OpenContainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenContainer::List(index) => write!(f, "[{index}]"),
            OpenContainer::Object { key, .. }
                if key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') =>
            {
                write!(f, ".{}", short(key))
            }
            OpenContainer::Object { key, .. } => write!(f, "[{:?}]", short(key)),
        }
    }
}
