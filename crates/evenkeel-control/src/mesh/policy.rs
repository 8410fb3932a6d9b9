//! Converts load balancing policies, by name or in gRPC's JSON, to xDS messages (A52).
//!
//! A policy with a published message is sent as that message, so that every gRPC language understands it. Any other,
//! custom policies included, is sent as a `TypedStruct` with its JSON.
//!
//! A list is sent unchanged. A single policy is placed as gRPC places it for the older enum: policies that pick an
//! endpoint within a locality become the child of `wrr_locality`, which picks the locality by weight.

use evenkeel_proto::envoy::config::cluster::v3::LoadBalancingPolicy;
use evenkeel_proto::envoy::config::cluster::v3::load_balancing_policy::Policy as Entry;
use evenkeel_proto::envoy::config::core::v3::TypedExtensionConfig;
use evenkeel_proto::envoy::extensions::load_balancing_policies::client_side_weighted_round_robin::v3::ClientSideWeightedRoundRobin;
use evenkeel_proto::envoy::extensions::load_balancing_policies::least_request::v3::LeastRequest;
use evenkeel_proto::envoy::extensions::load_balancing_policies::pick_first::v3::PickFirst;
use evenkeel_proto::envoy::extensions::load_balancing_policies::random_subsetting::v3::RandomSubsetting;
use evenkeel_proto::envoy::extensions::load_balancing_policies::ring_hash::v3::RingHash;
use evenkeel_proto::envoy::extensions::load_balancing_policies::ring_hash::v3::ring_hash::HashFunction;
use evenkeel_proto::envoy::extensions::load_balancing_policies::round_robin::v3::RoundRobin;
use evenkeel_proto::envoy::extensions::load_balancing_policies::wrr_locality::v3::WrrLocality;
use evenkeel_proto::prost::Name;
use evenkeel_proto::prost_types::value::Kind;
use evenkeel_proto::prost_types::{Any, Duration, ListValue, Struct, Value as ProtoValue};
use evenkeel_proto::xds::r#type::v3::TypedStruct;
use serde_json::{Map, Value, json};

use super::errors::{MeshPath, quoted};
use super::values::{duration_message, parse_duration};

/// Default policy. It honours the weights of the endpoints, as Envoy's ROUND_ROBIN does.
const DEFAULT_POLICY: &str = "edf_weighted_round_robin";

/// Maximum depth of nested policy lists (A52).
const MAX_DEPTH: usize = 16;

/// Load balancing policy of a cluster.
///
/// ```
/// use evenkeel_control::ClusterPolicy;
/// use serde_json::json;
///
/// let by_name = ClusterPolicy::from("weighted_round_robin");
/// let with_settings = ClusterPolicy::with("ring_hash", json!({"min_ring_size": 2048}));
/// let own_with_a_fallback = ClusterPolicy::list([("my_policy", json!({"level": 3})), ("round_robin", json!({}))]);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterPolicy {
    /// A string, an object with one key, or a list of such objects.
    json: Value,
}

impl From<&str> for ClusterPolicy {
    fn from(name: &str) -> ClusterPolicy {
        ClusterPolicy { json: json!(name) }
    }
}

impl ClusterPolicy {
    /// Creates a policy with settings.
    pub fn with(name: &str, settings: Value) -> ClusterPolicy {
        ClusterPolicy { json: entry(name, settings) }
    }

    /// Creates a list of policies. A client uses the first that it supports. The list is sent unchanged.
    pub fn list<'a>(entries: impl IntoIterator<Item = (&'a str, Value)>) -> ClusterPolicy {
        ClusterPolicy { json: entries.into_iter().map(|(name, settings)| entry(name, settings)).collect() }
    }

    pub(super) fn from_json(json: Value) -> ClusterPolicy {
        ClusterPolicy { json }
    }

    /// Returns the message for the cluster resource; `None` for the default policy. Errors go to `problems`.
    pub(super) fn message(&self, at: &MeshPath<'_>, problems: ErrorSink<'_>) -> Option<LoadBalancingPolicy> {
        let mut conversion = PolicyConverter { problems, depth: 0 };
        let (name, settings) = match &self.json {
            Value::Array(_) => return Some(conversion.list(&self.json, at)),
            json => conversion.entry(json, at)?,
        };
        if name == DEFAULT_POLICY {
            // Control planes select this policy by ROUND_ROBIN, the default of `lb_policy`, which has no settings.
            if settings.as_object().is_none_or(|settings| !settings.is_empty()) {
                (conversion.problems)(at, format!("expected no settings for {DEFAULT_POLICY}"));
            }
            return None;
        }
        conversion.check_spelling(name, at);
        let typed = conversion.typed(name, &settings, &at.key(name));
        let list = policy_list(vec![typed]);
        // These policies pick inside one locality, so another one divides the calls among localities (A52).
        let needs_wrr_locality = matches!(
            KnownPolicy::of(name),
            Some(KnownPolicy::RoundRobin | KnownPolicy::WeightedRoundRobin | KnownPolicy::LeastRequest)
        );
        if !needs_wrr_locality {
            return Some(list);
        }
        Some(policy_list(vec![extension(&WrrLocality { endpoint_picking_policy: Some(list) })]))
    }
}

/// Callback that receives each error with its path.
pub(super) type ErrorSink<'a> = &'a mut dyn FnMut(&MeshPath<'_>, String);

fn entry(name: &str, settings: Value) -> Value {
    Value::Object(Map::from_iter([(name.to_owned(), settings)]))
}

/// Names of gRPC's policies that a mesh can select.
const POLICY_NAMES: [&str; 8] = [
    DEFAULT_POLICY,
    "least_request",
    "pick_first",
    "random_subsetting",
    "ring_hash",
    "round_robin",
    "weighted_round_robin",
    "wrr_locality",
];

/// Policies that have messages of their own.
#[derive(Clone, Copy)]
enum KnownPolicy {
    LeastRequest,
    PickFirst,
    RandomSubsetting,
    RingHash,
    RoundRobin,
    WeightedRoundRobin,
    WrrLocality,
}

impl KnownPolicy {
    fn of(name: &str) -> Option<KnownPolicy> {
        Some(match name.strip_suffix("_experimental").unwrap_or(name) {
            "least_request" => KnownPolicy::LeastRequest,
            "pick_first" => KnownPolicy::PickFirst,
            "random_subsetting" => KnownPolicy::RandomSubsetting,
            "ring_hash" => KnownPolicy::RingHash,
            "round_robin" => KnownPolicy::RoundRobin,
            "weighted_round_robin" => KnownPolicy::WeightedRoundRobin,
            "wrr_locality" | "xds_wrr_locality" => KnownPolicy::WrrLocality,
            _ => return None,
        })
    }
}

struct PolicyConverter<'a> {
    problems: ErrorSink<'a>,
    depth: usize,
}

impl PolicyConverter<'_> {
    /// Converts a list of policies. A single policy is accepted in place of a list.
    fn list(&mut self, json: &Value, at: &MeshPath<'_>) -> LoadBalancingPolicy {
        if self.depth >= MAX_DEPTH {
            (self.problems)(at, format!("expected at most {MAX_DEPTH} lists of policies within each other"));
            return LoadBalancingPolicy::default();
        }
        self.depth += 1;
        let mut policies = Vec::new();
        match json {
            Value::Array(entries) => {
                if entries.is_empty() {
                    (self.problems)(at, "expected at least one policy, found an empty list".to_owned());
                }
                for (i, json) in entries.iter().enumerate() {
                    policies.extend(self.policy(json, &at.index(i)));
                }
            }
            json => {
                let entry = self.entry(json, at);
                policies.extend(entry.map(|(name, settings)| {
                    self.check_spelling(name, at);
                    self.typed(name, &settings, &at.key(name))
                }));
            }
        }
        self.depth -= 1;
        policy_list(policies)
    }

    fn policy(&mut self, json: &Value, at: &MeshPath<'_>) -> Option<Any> {
        let (name, settings) = self.entry(json, at)?;
        Some(self.typed(name, &settings, &at.key(name)))
    }

    /// Splits an entry into name and settings. A name alone has empty settings.
    fn entry<'j>(&mut self, json: &'j Value, at: &MeshPath<'_>) -> Option<(&'j str, Value)> {
        let entry = match json {
            Value::String(name) => Some((name.as_str(), json!({}))),
            Value::Object(object) if object.len() == 1 => object.iter().next().map(|(name, settings)| {
                let settings = if settings.is_null() { json!({}) } else { settings.clone() };
                (name.as_str(), settings)
            }),
            _ => None,
        };
        match entry {
            Some((name, settings)) if settings.is_object() && !name.is_empty() => Some((name, settings)),
            Some((name, settings)) if !name.is_empty() => {
                let found = describe(&settings);
                (self.problems)(&at.key(name), format!("expected a mapping of settings, found {found}"));
                None
            }
            _ => {
                let text = "expected the name of a policy, or a mapping from one name to its settings";
                (self.problems)(at, format!("{text}, found {}", describe(json)));
                None
            }
        }
    }

    /// Reports a single policy whose name nearly is one of gRPC's. A client would reject the whole cluster. Lists are for
    /// custom policies, and are not checked.
    fn check_spelling(&mut self, name: &str, at: &MeshPath<'_>) {
        // More differences are as likely in the name of a custom policy, such as `my_round_robin`.
        const MOST_DIFFERENCES: usize = 2;
        let names = POLICY_NAMES.iter().copied();
        // A dot separates the name of a custom policy from its owner.
        if name.contains('.') || names.clone().any(|known| known == name) || KnownPolicy::of(name).is_some() {
            return;
        }
        let found = name.to_lowercase().replace('-', "_");
        if let Some(nearest) = closest_match(&found, names)
            && distance(&found, nearest) <= MOST_DIFFERENCES
        {
            let text = format!(
                "unknown policy {}; did you mean {nearest}? (a custom policy with this name must be in a list)",
                quoted(name)
            );
            (self.problems)(at, text);
        }
    }

    fn typed(&mut self, name: &str, settings: &Value, at: &MeshPath<'_>) -> Any {
        let Some(known) = KnownPolicy::of(name) else { return typed_struct(name, settings) };
        let mut fields = PolicyFields::new(settings, at);
        let any = match known {
            KnownPolicy::RoundRobin => extension(&RoundRobin::default()),
            KnownPolicy::PickFirst => extension(&PickFirst {
                shuffle_address_list: fields.boolean(self, "shuffle_address_list").unwrap_or_default(),
            }),
            KnownPolicy::LeastRequest => extension(&LeastRequest {
                choice_count: fields.integer(self, "choice_count", 2, 100),
                ..LeastRequest::default()
            }),
            KnownPolicy::RingHash => {
                // A ring has at most 8 Mi entries (A42).
                let (min, max) = (
                    fields.integer(self, "min_ring_size", 1, 8 << 20),
                    fields.integer(self, "max_ring_size", 1, 8 << 20),
                );
                if let (Some(min), Some(max)) = (min, max)
                    && min > max
                {
                    let text = format!("expected at least min_ring_size ({min}), found {max}");
                    (self.problems)(&at.key("max_ring_size"), text);
                }
                extension(&RingHash {
                    hash_function: HashFunction::XxHash.into(),
                    minimum_ring_size: min.map(u64::from),
                    maximum_ring_size: max.map(u64::from),
                    ..RingHash::default()
                })
            }
            KnownPolicy::WeightedRoundRobin => extension(&ClientSideWeightedRoundRobin {
                enable_oob_load_report: fields.boolean(self, "enable_oob_load_report"),
                oob_reporting_period: fields.duration(self, "oob_reporting_period"),
                blackout_period: fields.duration(self, "blackout_period"),
                weight_expiration_period: fields.duration(self, "weight_expiration_period"),
                weight_update_period: fields.duration(self, "weight_update_period"),
                error_utilization_penalty: fields.non_negative(self, "error_utilization_penalty"),
                metric_names_for_computing_utilization: fields
                    .strings(self, "metric_names_for_computing_utilization"),
                ..ClientSideWeightedRoundRobin::default()
            }),
            KnownPolicy::WrrLocality => {
                extension(&WrrLocality { endpoint_picking_policy: fields.child(self, "child_policy") })
            }
            KnownPolicy::RandomSubsetting => {
                let subset_size = fields.integer(self, "subset_size", 1, u32::MAX);
                if subset_size.is_none() && fields.is_missing("subset_size") {
                    (self.problems)(at, "expected subset_size".to_owned());
                }
                let child_policy = fields.child(self, "child_policy");
                extension(&RandomSubsetting { subset_size, child_policy })
            }
        };
        fields.finish(self);
        any
    }
}

/// Settings of one policy. Keys may be in snake case or, as in gRPC's JSON, in camel case.
struct PolicyFields<'a> {
    at: &'a MeshPath<'a>,
    entries: Vec<(String, &'a str, &'a Value)>,
    known: Vec<&'static str>,
}

impl<'a> PolicyFields<'a> {
    fn new(settings: &'a Value, at: &'a MeshPath<'a>) -> PolicyFields<'a> {
        let entries = settings.as_object().into_iter().flatten();
        let entries = entries.map(|(key, value)| (snake_case(key), key.as_str(), value)).collect();
        PolicyFields { at, entries, known: Vec::new() }
    }

    fn get(&mut self, name: &'static str) -> Option<(MeshPath<'a>, &'a Value)> {
        self.known.push(name);
        let (_, key, value) = self.entries.iter().find(|(known, ..)| known == name)?;
        Some((self.at.key(key), value))
    }

    fn is_missing(&self, name: &str) -> bool {
        !self.entries.iter().any(|(known, ..)| known == name)
    }

    fn read<T>(
        &mut self,
        conversion: &mut PolicyConverter<'_>,
        name: &'static str,
        expected: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Option<T> {
        let (at, value) = self.get(name)?;
        let result = read(value);
        if result.is_none() {
            (conversion.problems)(&at, format!("expected {expected}, found {}", describe(value)));
        }
        result
    }

    fn boolean(&mut self, conversion: &mut PolicyConverter<'_>, name: &'static str) -> Option<bool> {
        self.read(conversion, name, "true or false", Value::as_bool)
    }

    fn integer(
        &mut self,
        conversion: &mut PolicyConverter<'_>,
        name: &'static str,
        least: u32,
        most: u32,
    ) -> Option<u32> {
        self.read(conversion, name, &format!("{least} to {most}"), |value| {
            let number = u32::try_from(value.as_u64()?).ok()?;
            (least..=most).contains(&number).then_some(number)
        })
    }

    fn non_negative(&mut self, conversion: &mut PolicyConverter<'_>, name: &'static str) -> Option<f32> {
        self.read(conversion, name, "a number from 0", |value| {
            let number = value.as_f64()? as f32;
            (number >= 0.0 && number.is_finite()).then_some(number)
        })
    }

    fn duration(&mut self, conversion: &mut PolicyConverter<'_>, name: &'static str) -> Option<Duration> {
        self.read(conversion, name, "a duration such as 2s or 250ms", |value| {
            parse_duration(value.as_str()?).map(duration_message)
        })
    }

    fn strings(&mut self, conversion: &mut PolicyConverter<'_>, name: &'static str) -> Vec<String> {
        let texts = self.read(conversion, name, "a list of strings", |value| {
            value.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect()
        });
        texts.unwrap_or_default()
    }

    fn child(
        &mut self,
        conversion: &mut PolicyConverter<'_>,
        name: &'static str,
    ) -> Option<LoadBalancingPolicy> {
        let Some((at, value)) = self.get(name) else {
            (conversion.problems)(self.at, format!("expected {name}"));
            return None;
        };
        Some(conversion.list(value, &at))
    }

    fn finish(self, conversion: &mut PolicyConverter<'_>) {
        for (name, key, _) in &self.entries {
            if !self.known.contains(&name.as_str()) {
                let text = unknown_name_message("setting", key, &self.known);
                (conversion.problems)(&self.at.key(key), text);
            }
        }
    }
}

/// Returns the error message for an unknown name, with the closest known one or all of them.
pub(super) fn unknown_name_message(kind: &str, found: &str, known: &[&str]) -> String {
    let text = format!("unknown {kind} {}", quoted(found));
    match closest_match(found, known.iter().copied()) {
        Some(nearest) => format!("{text}; did you mean {nearest}?"),
        None if known.is_empty() => format!("{text}; there are none"),
        None => format!("{text}; expected one of {}", known.join(", ")),
    }
}

/// Returns the known name that was most likely meant, if one is close.
pub(super) fn closest_match<'a>(found: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    /// Maximum length of names that are compared: longer ones are not typing errors, and the cost is quadratic.
    const LONGEST: usize = 64;
    let far = (found.chars().count() / 3).max(1);
    if found.len() > LONGEST {
        return None;
    }
    let near = known.filter(|name| name.len() <= LONGEST);
    let near = near.map(|name| (distance(found, name), name)).filter(|(distance, _)| *distance <= far);
    near.min_by_key(|(distance, _)| *distance).map(|(_, name)| name)
}

/// Returns the edit distance: the number of letters to insert, delete or replace.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, letter) in one.chars().enumerate() {
        // Distance of the prefixes without the letters that are compared.
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, against) in other.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *against);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
}

fn snake_case(key: &str) -> String {
    let mut snake = String::with_capacity(key.len() + 4);
    for letter in key.chars() {
        if letter.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

fn describe(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(entries) if entries.len() > 1 => "a mapping of several names".to_owned(),
        Value::Object(_) => "a mapping".to_owned(),
        Value::String(text) => quoted(text),
        other => other.to_string(),
    }
}

fn policy_list(policies: Vec<Any>) -> LoadBalancingPolicy {
    let policies = policies.into_iter().map(|any| {
        let name = any.type_url.rsplit('/').next().unwrap_or_default().to_owned();
        let config = TypedExtensionConfig { name, typed_config: Some(any) };
        Entry { typed_extension_config: Some(config) }
    });
    LoadBalancingPolicy { policies: policies.collect() }
}

fn extension<M: Name>(message: &M) -> Any {
    Any { type_url: M::type_url(), value: message.encode_to_vec() }
}

fn typed_struct(name: &str, settings: &Value) -> Any {
    let fields = settings.as_object().into_iter().flatten();
    let fields = fields.map(|(key, value)| (key.clone(), proto_value(value))).collect();
    extension(&TypedStruct {
        type_url: format!("type.googleapis.com/{name}"),
        value: Some(Struct { fields }),
    })
}

fn proto_value(value: &Value) -> ProtoValue {
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(value) => Kind::BoolValue(*value),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Value::String(text) => Kind::StringValue(text.clone()),
        Value::Array(items) => Kind::ListValue(ListValue { values: items.iter().map(proto_value).collect() }),
        Value::Object(entries) => {
            let fields = entries.iter().map(|(key, value)| (key.clone(), proto_value(value)));
            Kind::StructValue(Struct { fields: fields.collect() })
        }
    };
    ProtoValue { kind: Some(kind) }
}
