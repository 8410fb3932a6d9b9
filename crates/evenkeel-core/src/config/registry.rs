//! Registry of policies by name.
//!
//! A registry is a value: a channel is built with one, and users register policies of their own.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::config::nearest::nearest_name;
use crate::config::{
    ConfigError, ConfigFields, LbConfig, ParseNotes, PolicyFactory, PolicySettings, check_depth, expected,
};
use crate::policy::{self, ErasedPolicy, Policy};

/// Maximum number of names in an error.
const NAMES_SHOWN: usize = 16;

/// Maximum number of characters of a name in an error.
const NAME_SHOWN: usize = 120;

/// Registered policies, by the names that configs use.
///
/// ```
/// use evenkeel_core::Registry;
/// let config = Registry::standard().parse_json(r#"[{"round_robin": {}}]"#)?;
/// assert_eq!(config.policy(), "round_robin");
/// # Ok::<(), evenkeel_core::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct Registry {
    entries: BTreeMap<Arc<str>, RegistryEntry>,
}

#[derive(Clone)]
struct RegistryEntry {
    name: Arc<str>,
    parse: fn(&ConfigFields<'_>) -> Result<PolicySettings, ConfigError>,
    build: PolicyFactory,
}

impl Registry {
    /// Creates a registry without any policy.
    pub fn empty() -> Registry {
        Registry { entries: BTreeMap::new() }
    }

    /// Creates a registry with all policies of this crate, by their gRPC names.
    pub fn standard() -> Registry {
        let mut registry = Registry::empty();
        policy::register_all(&mut registry);
        registry
    }

    /// Registers a policy. Replaces a policy of the same name.
    pub fn register<P: Policy + Default>(&mut self, name: &str) {
        self.register_with(name, P::default);
    }

    /// Registers a policy whose instances `make` creates, for policies with data of the application.
    pub fn register_with<P: Policy>(&mut self, name: &str, make: impl Fn() -> P + Send + Sync + 'static) {
        let name: Arc<str> = name.into();
        let build: PolicyFactory = Arc::new(move || Box::new(ErasedPolicy(make())));
        let entry = RegistryEntry { name: name.clone(), parse: parse_settings::<P>, build };
        self.entries.insert(name, entry);
    }

    /// Adds `alias` as another name of a registered policy. Does nothing if the policy is not registered.
    pub fn alias(&mut self, alias: &str, name: &str) {
        if let Some(entry) = self.entries.get(name).cloned() {
            self.entries.insert(alias.into(), entry);
        }
    }

    /// Removes a policy or an alias by name.
    pub fn remove(&mut self, name: &str) {
        self.entries.remove(name);
    }

    /// Returns true if the name is registered.
    pub fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// Returns the registered names in alphabetical order, including aliases.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(|name| &**name)
    }

    /// Parses a `loadBalancingConfig` list: the first entry with a registered name applies, and must be valid (A24).
    pub fn parse(&self, config: &Value) -> Result<LbConfig, ConfigError> {
        self.parse_at(config, "loadBalancingConfig".to_owned(), 0)
    }

    /// Parses a `loadBalancingConfig` list from text.
    pub fn parse_json(&self, json: &str) -> Result<LbConfig, ConfigError> {
        self.parse(&text(json, "loadBalancingConfig")?)
    }

    /// Parses a service config: its `loadBalancingConfig`, else the older `loadBalancingPolicy` name, else
    /// `pick_first`.
    pub fn parse_service_config(&self, json: &str) -> Result<LbConfig, ConfigError> {
        let at = |name: &str| format!("serviceConfig.{name}");
        let config = text(json, "serviceConfig")?;
        let Value::Object(fields) = &config else {
            return Err(ConfigError::new(None, "serviceConfig".to_owned(), expected("an object", &config)));
        };
        let field =
            |camel: &str, snake: &str| fields.get(camel).or(fields.get(snake)).filter(|v| !v.is_null());
        if let Some(list) = field("loadBalancingConfig", "load_balancing_config") {
            return self.parse_at(list, at("loadBalancingConfig"), 0);
        }
        let name = match field("loadBalancingPolicy", "load_balancing_policy") {
            None => "pick_first".to_owned(),
            Some(Value::String(name)) => name.to_ascii_lowercase(),
            Some(other) => {
                return Err(ConfigError::new(
                    None,
                    at("loadBalancingPolicy"),
                    expected("a policy name", other),
                ));
            }
        };
        let list = Value::from(vec![serde_json::json!({ name: {} })]);
        self.parse_at(&list, at("loadBalancingPolicy"), 0)
    }

    pub(crate) fn parse_at(
        &self,
        config: &Value,
        path: String,
        depth: usize,
    ) -> Result<LbConfig, ConfigError> {
        check_depth(&path, depth)?;
        let Value::Array(candidates) = config else {
            return Err(ConfigError::new(None, path, expected("a list of policies", config)));
        };
        let mut unknown = Vec::new();
        for (i, candidate) in candidates.iter().enumerate() {
            let one = candidate
                .as_object()
                .filter(|object| object.len() == 1)
                .and_then(|object| object.iter().next());
            let Some((name, settings)) = one else {
                let what = "an object with one policy name";
                return Err(ConfigError::new(None, format!("{path}[{i}]"), expected(what, candidate)));
            };
            let Some(entry) = self.entries.get(name.as_str()) else {
                unknown.push(name.as_str());
                continue;
            };
            let notes = ParseNotes::default();
            let path = format!("{path}[{i}].{name}");
            let fields = ConfigFields::of_policy(entry.name.clone(), settings, path, self, depth, &notes)?;
            let parsed = (entry.parse)(&fields)?;
            drop(fields);
            return Ok(LbConfig::parsed(
                entry.name.clone(),
                parsed,
                settings.clone(),
                entry.build.clone(),
                notes.into_warnings(&entry.name),
            ));
        }
        let problem = if unknown.is_empty() {
            "the list of policies is empty".to_owned()
        } else {
            let hint =
                match unknown.iter().take(NAMES_SHOWN).find_map(|name| nearest_name(name, self.names())) {
                    Some(nearest) => format!("did you mean {nearest:?}?"),
                    None => "register it or name a supported one".to_owned(),
                };
            format!("no policy of the list is supported: {}; {hint}", listed(&unknown))
        };
        Err(ConfigError::new(None, path, problem))
    }
}

impl Default for Registry {
    fn default() -> Registry {
        Registry::standard()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

/// Formats names from a config: escaped, truncated, and limited in number.
fn listed(names: &[&str]) -> String {
    let quoted = |name: &&str| match name.char_indices().nth(NAME_SHOWN) {
        Some((end, _)) => format!("{:?}...", name.split_at(end).0),
        None => format!("{name:?}"),
    };
    let shown = names.iter().take(NAMES_SHOWN).map(quoted).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMES_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn parse_settings<P: Policy>(fields: &ConfigFields<'_>) -> Result<PolicySettings, ConfigError> {
    Ok(Box::new(P::parse(fields)?))
}

fn text(json: &str, path: &str) -> Result<Value, ConfigError> {
    serde_json::from_str(json).map_err(|e| ConfigError::new(None, path.to_owned(), format!("not JSON: {e}")))
}
