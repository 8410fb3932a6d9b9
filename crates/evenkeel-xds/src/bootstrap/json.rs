//! JSON reader with errors that name the field. `null` and an empty string count as a missing field, as everywhere in
//! gRPC's bootstrap.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use evenkeel_proto::prost_types::value::Kind;
use evenkeel_proto::prost_types::{self, ListValue, Struct};
use serde_json::{Map, Value};

use crate::text::{quoted, short};
use crate::{FieldPath, ValidationErrors};

/// JSON object with its field path.
pub(super) struct BootstrapObject<'a> {
    pub(super) map: &'a Map<String, Value>,
    pub(super) path: FieldPath<'a>,
}

impl<'a> BootstrapObject<'a> {
    /// Reads `value` as an object. Reports an error if it is not one.
    pub(super) fn of(
        value: &'a Value,
        path: &FieldPath<'a>,
        problems: &mut ValidationErrors,
    ) -> Option<BootstrapObject<'a>> {
        let map = value.as_object();
        if map.is_none() {
            problems.add(path, expected("an object", value));
        }
        map.map(|map| BootstrapObject { map, path: *path })
    }

    /// Returns true if the field is present, of whatever type.
    pub(super) fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    pub(super) fn is_true(&self, name: &str) -> bool {
        self.value(name) == Some(&Value::Bool(true))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.map.iter()
    }

    pub(super) fn text(&self, name: &str, problems: &mut ValidationErrors) -> Option<&'a str> {
        self.read(name, "a string", problems, Value::as_str)
    }

    /// Reads a string. Reports an error if the field is missing.
    pub(super) fn required_text(&self, name: &str, problems: &mut ValidationErrors) -> Option<&'a str> {
        if !self.has(name) {
            problems.add(&self.path.field(name), "is required: a string that is not empty");
        }
        self.text(name, problems)
    }

    pub(super) fn list(&self, name: &str, problems: &mut ValidationErrors) -> Option<&'a [Value]> {
        self.read(name, "a list", problems, |value| value.as_array().map(Vec::as_slice))
    }

    /// Reads a list. Reports an error if the field is missing or the list is empty; the result is then empty.
    pub(super) fn required_list(
        &self,
        name: &str,
        what: &str,
        problems: &mut ValidationErrors,
    ) -> &'a [Value] {
        let list = self.list(name, problems);
        if !self.has(name) || list.is_some_and(<[Value]>::is_empty) {
            problems.add(&self.path.field(name), format!("is required: {what}"));
        }
        list.unwrap_or_default()
    }

    pub(super) fn object<'b>(
        &'b self,
        name: &'b str,
        problems: &mut ValidationErrors,
    ) -> Option<BootstrapObject<'b>> {
        let map = self.read(name, "an object", problems, Value::as_object);
        map.map(|map| BootstrapObject { map, path: self.path.field(name) })
    }

    /// Reads a duration above zero in protobuf's JSON format.
    pub(super) fn duration(&self, name: &str, problems: &mut ValidationErrors) -> Option<Duration> {
        self.read(name, "a duration above zero such as \"600s\" or \"0.5s\"", problems, |value| {
            value.as_str().and_then(duration).filter(|wait| *wait > Duration::ZERO)
        })
    }

    fn value(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null() && *value != "")
    }

    fn read<T>(
        &self,
        name: &str,
        what: &str,
        problems: &mut ValidationErrors,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.value(name)?;
        let read = read(value);
        if read.is_none() {
            problems.add(&self.path.field(name), expected(what, value));
        }
        read
    }
}

fn expected(what: &str, found: &Value) -> String {
    let found = match found {
        Value::String(text) => quoted(text),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        other => other.to_string(),
    };
    format!("expected {what}, found {found}")
}

/// Parses seconds with at most nine decimals and the suffix `s`. Negative durations are invalid.
fn duration(text: &str) -> Option<Duration> {
    let number = text.strip_suffix('s')?;
    let (seconds, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let all_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !all_digits(seconds) || !all_digits(decimals) || decimals.len() > 9 {
        return None;
    }
    // The maximum of `google.protobuf.Duration`: about 10,000 years.
    let seconds = seconds.parse().ok().filter(|seconds| *seconds <= 315_576_000_000)?;
    let nanos = format!("{decimals:0<9}").parse().ok()?;
    Some(Duration::new(seconds, nanos))
}

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
                        problems.add(&root.field(path.trim_start_matches('.')), "stands twice in its object");
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
