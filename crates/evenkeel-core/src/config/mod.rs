//! Policy configs: parser for gRPC service config JSON.
//!
//! [`ConfigFields`] reads one JSON object by the rules of proto3 JSON: both spellings of a name, `null` is unset, numbers may be
//! strings, durations are `"1.5s"`. Every error contains the policy, the path of the field, the expected and the actual value.
//! Unknown fields are ignored (A24), with a warning.

pub mod cluster;
pub(crate) mod nearest;
pub mod proto3_json;
pub(crate) mod registry;

use std::any::Any;
use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::config::nearest::nearest_name;
use crate::config::registry::Registry;
use crate::policy::{AnyPolicy, ErasedPolicy, Policy};

/// Maximum depth of nested policies in a config. Real trees are far shallower, and the stack allows far more.
const MAX_DEPTH: usize = 64;

/// Parsed config of a policy: its name and its settings. Cheap to clone; the same allocation means that nothing
/// changed.
#[derive(Clone)]
pub struct LbConfig(Arc<LbConfigInner>);

struct LbConfigInner {
    name: Arc<str>,
    settings: PolicySettings,
    json: SettingsJson,
    build: PolicyFactory,
    warnings: Vec<String>,
}

/// Type-erased settings of a policy.
pub(crate) type PolicySettings = Box<dyn Any + Send + Sync>;

/// JSON form of the settings.
enum SettingsJson {
    /// JSON that the settings were parsed from.
    Read(Value),
    /// Settings were created in code; the policy converts them.
    Written(fn(&PolicySettings) -> Value),
}

pub(crate) type PolicyFactory = Arc<dyn Fn() -> Box<dyn AnyPolicy> + Send + Sync>;

impl LbConfig {
    /// Creates a config from settings, for a policy that builds the config of its child.
    pub fn new<P: Policy + Default>(name: impl Into<Arc<str>>, settings: P::Config) -> LbConfig {
        let build: PolicyFactory = Arc::new(|| Box::new(ErasedPolicy(P::default())));
        LbConfig(Arc::new(LbConfigInner {
            name: name.into(),
            settings: Box::new(settings),
            json: SettingsJson::Written(write::<P>),
            build,
            warnings: Vec::new(),
        }))
    }

    pub(crate) fn parsed(
        name: Arc<str>,
        settings: PolicySettings,
        json: Value,
        build: PolicyFactory,
        warnings: Vec<String>,
    ) -> LbConfig {
        LbConfig(Arc::new(LbConfigInner { name, settings, json: SettingsJson::Read(json), build, warnings }))
    }

    /// Returns the canonical name of the policy.
    pub fn policy(&self) -> &str {
        &self.0.name
    }

    /// Returns warnings of the parser about accepted values.
    pub fn warnings(&self) -> &[String] {
        &self.0.warnings
    }

    /// Returns true if both are the same allocation.
    pub fn is_same(&self, other: &LbConfig) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the config as an entry of a `loadBalancingConfig` list: `{"policy_name": {settings}}`. A parsed config is returned as
    /// it was written. The policy converts one that was created in code ([`Policy::to_json`]).
    ///
    /// ```
    /// use evenkeel_core::Registry;
    /// use serde_json::json;
    /// let config = Registry::standard().parse_json(r#"[{"pick_first": {"shuffleAddressList": true}}]"#)?;
    /// assert_eq!(config.to_json(), json!({"pick_first": {"shuffleAddressList": true}}));
    /// # Ok::<(), evenkeel_core::ConfigError>(())
    /// ```
    pub fn to_json(&self) -> Value {
        json!({ self.policy(): self.settings_to_json() })
    }

    /// Returns the settings without the name of the policy.
    pub(crate) fn settings_to_json(&self) -> Value {
        match &self.0.json {
            SettingsJson::Read(Value::Null) => json!({}),
            SettingsJson::Read(value) => value.clone(),
            SettingsJson::Written(write) => write(&self.0.settings),
        }
    }

    pub(crate) fn build(&self) -> Box<dyn AnyPolicy> {
        (self.0.build)()
    }

    /// Returns the settings, if they have this type.
    pub fn settings<C: 'static>(&self) -> Option<&C> {
        self.0.settings.downcast_ref()
    }
}

impl fmt::Debug for LbConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LbConfig({})", self.0.name)
    }
}

fn write<P: Policy>(settings: &PolicySettings) -> Value {
    let settings = settings.downcast_ref().expect("settings are written only by the policy that parsed them");
    P::to_json(settings)
}

/// Error in a config, with the path of the field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    policy: Option<Arc<str>>,
    path: String,
    problem: String,
}

impl ConfigError {
    /// Creates an error about the value at `path`.
    pub(crate) fn new(policy: Option<Arc<str>>, path: String, problem: impl Into<String>) -> ConfigError {
        ConfigError { policy, path, problem: problem.into() }
    }

    /// Returns the policy with the invalid settings, if it is known.
    pub fn policy(&self) -> Option<&str> {
        self.policy.as_deref()
    }

    /// Returns the path of the field, as in `loadBalancingConfig[0].ring_hash_experimental.minRingSize`.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(policy) = &self.policy {
            write!(f, "policy \"{policy}\": ")?;
        }
        write!(f, "{}: {}", self.path, self.problem)
    }
}

impl std::error::Error for ConfigError {}

/// JSON object of a policy's settings, with its path in the config.
pub struct ConfigFields<'a> {
    object: Cow<'a, Map<String, Value>>,
    path: String,
    policy: Arc<str>,
    registry: &'a Registry,
    depth: usize,
    notes: &'a ParseNotes,
    /// Index of the object in the notes; `None` for an empty object.
    object_index: Option<usize>,
}

/// Notes of the parser of a policy's settings: warnings, and the fields that were read.
#[derive(Default)]
pub(crate) struct ParseNotes {
    warnings: RefCell<Vec<String>>,
    objects: RefCell<Vec<FieldReads>>,
}

/// Fields of an object, and the names of fields that the policy read.
struct FieldReads {
    path: String,
    fields: Vec<String>,
    names: Vec<String>,
}

/// Maximum number of unknown fields of an object that are reported.
const MAX_UNKNOWN: usize = 8;

/// Maximum number of characters of an unknown field's name in a warning.
const MAX_FIELD_NAME: usize = 80;

impl ParseNotes {
    fn note(&self, path: &str, object: &Map<String, Value>) -> Option<usize> {
        if object.is_empty() {
            return None;
        }
        let mut objects = self.objects.borrow_mut();
        let fields = object.keys().cloned().collect();
        objects.push(FieldReads { path: path.to_owned(), fields, names: Vec::new() });
        Some(objects.len() - 1)
    }

    /// Records that the policy knows a field.
    fn read(&self, object_index: Option<usize>, name: &str) {
        let mut objects = self.objects.borrow_mut();
        if let Some(object) = object_index.and_then(|index| objects.get_mut(index))
            && !object.names.iter().any(|known| known == name)
        {
            object.names.push(name.to_owned());
        }
    }

    /// Returns the warnings, and one for each unknown field.
    pub(crate) fn into_warnings(self, policy: &str) -> Vec<String> {
        let mut warnings = self.warnings.into_inner();
        for FieldReads { path, fields, names } in self.objects.into_inner() {
            let is_known = |field: &str| names.iter().any(|name| proto3_json::is_name_of(field, name));
            let unknown: Vec<&String> = fields.iter().filter(|field| !is_known(field)).collect();
            for field in unknown.iter().take(MAX_UNKNOWN) {
                let shown: String = field.chars().take(MAX_FIELD_NAME).collect();
                let hint = match nearest_name(field, names.iter().map(String::as_str)) {
                    Some(nearest) => format!("did you mean {nearest:?}?"),
                    None if names.is_empty() => "there are no settings".to_owned(),
                    None => format!("expected one of {}", names.join(", ")),
                };
                warnings.push(format!("policy \"{policy}\": {path}: unknown field {shown:?}; {hint}"));
            }
            if let Some(more) = unknown.len().checked_sub(MAX_UNKNOWN).filter(|more| *more > 0) {
                warnings.push(format!("policy \"{policy}\": {path}: {more} more unknown fields"));
            }
        }
        warnings
    }
}

impl<'a> ConfigFields<'a> {
    pub(crate) fn of_policy(
        policy: Arc<str>,
        value: &'a Value,
        path: String,
        registry: &'a Registry,
        depth: usize,
        notes: &'a ParseNotes,
    ) -> Result<ConfigFields<'a>, ConfigError> {
        let object = match value {
            Value::Object(map) => Cow::Borrowed(map),
            Value::Null => Cow::Owned(Map::new()),
            other => return Err(ConfigError::new(Some(policy), path, expected("an object", other))),
        };
        let object_index = notes.note(&path, &object);
        Ok(ConfigFields { object, path, policy, registry, depth, notes, object_index })
    }

    /// Creates an error about the field `name` (in camel case).
    pub fn error(&self, name: &str, problem: impl Into<String>) -> ConfigError {
        ConfigError::new(Some(self.policy.clone()), format!("{}.{name}", self.path), problem)
    }

    /// Adds a warning about an accepted value.
    pub fn warn(&self, name: &str, text: &str) {
        let line = format!("policy \"{}\": {}.{name}: {text}", self.policy, self.path);
        self.notes.warnings.borrow_mut().push(line);
    }

    /// Declares fields, by their names in camel case, that the policy knows but does not read in this config. A
    /// field that is neither read nor declared is unknown, and the config has a warning about it.
    pub fn allow(&self, names: &[&str]) {
        for name in names {
            self.notes.read(self.object_index, name);
        }
    }

    /// Returns the raw value of a field, by its name in camel case. Also finds the snake-case spelling; `null` is unset.
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.notes.read(self.object_index, name);
        proto3_json::field(&self.object, name)
    }

    /// Reads a boolean; `None` if unset.
    pub fn bool(&self, name: &str) -> Result<Option<bool>, ConfigError> {
        self.read(name, "true or false", Value::as_bool)
    }

    /// Reads an integer from 0 to 2^32-1.
    pub fn u32(&self, name: &str) -> Result<Option<u32>, ConfigError> {
        let number = self.read(name, "a whole number from 0 to 4294967295", |value| {
            proto3_json::integer(value).and_then(|n| u32::try_from(n).ok())
        })?;
        Ok(number)
    }

    /// Reads an integer from 0 to 2^64-1.
    pub fn u64(&self, name: &str) -> Result<Option<u64>, ConfigError> {
        self.read(name, "a whole number, not negative", proto3_json::integer)
    }

    /// Reads a finite number.
    pub fn f64(&self, name: &str) -> Result<Option<f64>, ConfigError> {
        self.read(name, "a finite number", |value| {
            let number = match value {
                Value::String(text) => text.parse().ok(),
                other => other.as_f64(),
            };
            number.filter(|n| n.is_finite())
        })
    }

    /// Reads a string; `None` if unset.
    pub fn str(&self, name: &str) -> Result<Option<&str>, ConfigError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.error(name, expected("a string", other))),
        }
    }

    /// Reads a list of strings; empty if unset.
    pub fn strings(&self, name: &str) -> Result<Vec<String>, ConfigError> {
        let mut all = Vec::new();
        for (i, value) in self.array(name)?.iter().enumerate() {
            match value {
                Value::String(text) => all.push(text.clone()),
                other => return Err(self.error(&format!("{name}[{i}]"), expected("a string", other))),
            }
        }
        Ok(all)
    }

    /// Reads a non-negative duration.
    pub fn duration(&self, name: &str) -> Result<Option<Duration>, ConfigError> {
        match self.signed_duration(name)? {
            Some((wait, true)) if wait > Duration::ZERO => Err(self.error(name, "must not be negative")),
            other => Ok(other.map(|(wait, _)| wait)),
        }
    }

    /// Reads a duration; a negative one counts as zero (A58: blackout periods at or below zero are off).
    pub(crate) fn duration_or_zero(&self, name: &str) -> Result<Option<Duration>, ConfigError> {
        let signed = self.signed_duration(name)?;
        Ok(signed.map(|(wait, negative)| if negative { Duration::ZERO } else { wait }))
    }

    fn signed_duration(&self, name: &str) -> Result<Option<(Duration, bool)>, ConfigError> {
        self.read(name, "a duration such as \"10s\" or \"0.25s\"", |value| {
            value.as_str().and_then(proto3_json::signed_duration)
        })
    }

    /// Reads a nested object.
    pub fn object(&self, name: &str) -> Result<Option<ConfigFields<'_>>, ConfigError> {
        self.value(name).map(|value| self.nested(value, format!("{}.{name}", self.path))).transpose()
    }

    /// Reads a list of nested objects; empty if unset.
    pub fn objects(&self, name: &str) -> Result<Vec<ConfigFields<'_>>, ConfigError> {
        let nested = |(i, value)| self.nested(value, format!("{}.{name}[{i}]", self.path));
        self.array(name)?.iter().enumerate().map(nested).collect()
    }

    /// Reads a map from names to nested objects, in the order of the names; empty if unset.
    pub fn map(&self, name: &str) -> Result<Vec<(&str, ConfigFields<'_>)>, ConfigError> {
        match self.value(name) {
            None => Ok(Vec::new()),
            Some(Value::Object(map)) => {
                let nested = |(key, value)| {
                    let fields = self.nested(value, format!("{}.{name}[{key:?}]", self.path))?;
                    Ok((String::as_str(key), fields))
                };
                map.iter().map(nested).collect()
            }
            Some(other) => Err(self.error(name, expected("an object", other))),
        }
    }

    /// Reads the required config of a child policy: a list of candidates, of which the first registered one applies.
    pub fn child(&self, name: &str) -> Result<LbConfig, ConfigError> {
        match self.value(name) {
            None => Err(self.error(name, "is required: a list such as [{\"round_robin\": {}}]")),
            Some(value) => {
                let path = format!("{}.{name}", self.path);
                let config = self.registry.parse_at(value, path, self.depth + 1)?;
                self.notes.warnings.borrow_mut().extend_from_slice(config.warnings());
                Ok(config)
            }
        }
    }

    fn nested<'b>(&'b self, value: &'b Value, path: String) -> Result<ConfigFields<'b>, ConfigError> {
        let (policy, depth) = (self.policy.clone(), self.depth);
        ConfigFields::of_policy(policy, value, path, self.registry, depth, self.notes)
    }

    fn array(&self, name: &str) -> Result<&[Value], ConfigError> {
        match self.value(name) {
            None => Ok(&[]),
            Some(Value::Array(values)) => Ok(values),
            Some(other) => Err(self.error(name, expected("a list", other))),
        }
    }

    fn read<T>(
        &self,
        name: &str,
        what: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.value(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.error(name, expected(what, value)))
    }
}

impl fmt::Debug for ConfigFields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConfigFields({} at {})", self.policy, self.path)
    }
}

/// Returns an error if policies are nested too deep.
pub(crate) fn check_depth(path: &str, depth: usize) -> Result<(), ConfigError> {
    if depth <= MAX_DEPTH {
        return Ok(());
    }
    Err(ConfigError::new(None, path.to_owned(), format!("policies are nested more than {MAX_DEPTH} deep")))
}

/// Returns `expected X, found Y`, with long values truncated.
pub(crate) fn expected(what: &str, found: &Value) -> String {
    let text = found.to_string();
    let shown: String = text.chars().take(80).collect();
    let dots = if shown.len() < text.len() { "..." } else { "" };
    format!("expected {what}, found {shown}{dots}")
}

/// Creates a JSON object of the fields that have a value.
pub(crate) fn object<const N: usize>(fields: [(&str, Option<Value>); N]) -> Map<String, Value> {
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}
