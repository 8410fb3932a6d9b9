//! Reader of JSON objects that reports every error with its field path, for the bootstrap and the service config.

use std::time::Duration;

use evenkeel_core::proto3_json;
use serde_json::{Map, Value};

use crate::text::quoted;
use crate::{FieldPath, ValidationErrors};

/// JSON object with its field path.
///
/// ```
/// use evenkeel_xds::json::{JsonObject, JsonRules};
/// use evenkeel_xds::{FieldPath, ValidationErrors};
/// let value = serde_json::json!({"timeout": "1 s"});
/// let mut problems = ValidationErrors::new();
/// let object = JsonObject::of(&value, FieldPath::root(), JsonRules::Proto3, &mut problems).expect("it is an object");
/// assert_eq!(object.duration("timeout", &mut problems), None);
/// assert_eq!(problems.to_string(), r#"timeout: expected a duration above zero such as "1.5s", found "1 s""#);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct JsonObject<'a> {
    map: &'a Map<String, Value>,
    path: FieldPath<'a>,
    rules: JsonRules,
}

/// Rules by which an object's fields are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonRules {
    /// gRPC's bootstrap: `null` and an empty string count as a missing field.
    Bootstrap,
    /// Proto3 JSON: names in camel case or snake case, and `null` counts as a missing field.
    Proto3,
}

impl<'a> JsonObject<'a> {
    /// Reads `value` as an object. Reports an error if it is not one.
    pub fn of(
        value: &'a Value,
        path: FieldPath<'a>,
        rules: JsonRules,
        problems: &mut ValidationErrors,
    ) -> Option<JsonObject<'a>> {
        let map = value.as_object();
        if map.is_none() {
            problems.add(&path, expected("an object", value));
        }
        map.map(|map| JsonObject { map, path, rules })
    }

    /// Returns the JSON of the object.
    pub fn map(&self) -> &'a Map<String, Value> {
        self.map
    }

    /// Returns the path of the object.
    pub fn path(&self) -> &FieldPath<'a> {
        &self.path
    }

    /// Returns the path of a field.
    pub fn field<'b>(&'b self, name: &'b str) -> FieldPath<'b> {
        self.path.field(name)
    }

    /// Returns a field, if it is present.
    pub fn value(&self, name: &str) -> Option<&'a Value> {
        match self.rules {
            JsonRules::Bootstrap => self.map.get(name).filter(|value| !value.is_null() && *value != ""),
            JsonRules::Proto3 => proto3_json::field(self.map, name),
        }
    }

    /// Returns true if the field is present, of whatever type.
    pub fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    /// Reads an optional field. `what` describes the expected value.
    pub fn read<T>(
        &self,
        name: &str,
        what: &str,
        problems: &mut ValidationErrors,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.value(name)?;
        let read = read(value);
        if read.is_none() {
            problems.add(&self.field(name), expected(what, value));
        }
        read
    }

    /// Reads a required field. `what` describes the expected value.
    pub fn required<T>(
        &self,
        name: &str,
        what: &str,
        problems: &mut ValidationErrors,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Option<T> {
        if !self.has(name) {
            problems.add(&self.field(name), format!("is required: {what}"));
        }
        self.read(name, what, problems, read)
    }

    /// Reads an optional string.
    pub fn text(&self, name: &str, problems: &mut ValidationErrors) -> Option<&'a str> {
        self.read(name, "a string", problems, Value::as_str)
    }

    /// Reads an optional list.
    pub fn list(&self, name: &str, problems: &mut ValidationErrors) -> Option<&'a [Value]> {
        self.read(name, "a list", problems, |value| value.as_array().map(Vec::as_slice))
    }

    /// Reads an optional nested object.
    pub fn object<'b>(&'b self, name: &'b str, problems: &mut ValidationErrors) -> Option<JsonObject<'b>> {
        JsonObject::of(self.value(name)?, self.field(name), self.rules, problems)
    }

    /// Reads a duration above zero in proto3 JSON.
    pub fn duration(&self, name: &str, problems: &mut ValidationErrors) -> Option<Duration> {
        self.read(name, DURATION, problems, duration)
    }

    /// Reads a required duration above zero in proto3 JSON.
    pub fn required_duration(&self, name: &str, problems: &mut ValidationErrors) -> Option<Duration> {
        self.required(name, DURATION, problems, duration)
    }
}

/// Description of a duration, for errors.
const DURATION: &str = "a duration above zero such as \"1.5s\"";

fn duration(value: &Value) -> Option<Duration> {
    value.as_str().and_then(proto3_json::duration).filter(|wait| !wait.is_zero())
}

/// Returns `expected X, found Y`. Strings are quoted and truncated; of lists and objects only the type is named.
pub fn expected(what: &str, found: &Value) -> String {
    let found = match found {
        Value::String(text) => quoted(text),
        Value::Array(list) if list.is_empty() => "an empty list".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        other => other.to_string(),
    };
    format!("expected {what}, found {found}")
}
