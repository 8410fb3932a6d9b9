//! gRPC's service config: load balancing policy, timeouts and retries, set by the application instead of a control
//! plane.
//!
//! The format is the JSON that gRPC documents (service_config.md, A6, A24). An error lists every problem with its
//! field path, the expected and the actual value. Unknown fields are ignored, as gRPC specifies. They are in
//! [`ServiceConfig::warnings`], as are known but unsupported fields. Such a field is an error where ignoring it would
//! change the behaviour of calls. Channel and calls apply the parsed config.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::{Code, LbConfig, Registry, nearest_name, proto3_json};
use evenkeel_xds::json::{JsonObject, JsonRules, expected};
use evenkeel_xds::{FieldPath, ValidationErrors};
use serde_json::{Value, json};

use crate::call::retry::{CodeSet, MAX_ATTEMPTS, RetryPolicy, RetryThrottlingConfig};
use crate::text::quoted;

/// Known fields of the objects of a service config, also those that are not supported (service_config.proto).
const CONFIG_FIELDS: [&str; 5] =
    ["loadBalancingConfig", "loadBalancingPolicy", "methodConfig", "retryThrottling", "healthCheckConfig"];
const METHOD_FIELDS: [&str; 7] = [
    "name",
    "timeout",
    "waitForReady",
    "retryPolicy",
    "hedgingPolicy",
    "maxRequestMessageBytes",
    "maxResponseMessageBytes",
];
const NAME_FIELDS: [&str; 2] = ["service", "method"];
const RETRY_FIELDS: [&str; 5] =
    ["maxAttempts", "initialBackoff", "maxBackoff", "backoffMultiplier", "retryableStatusCodes"];
const THROTTLING_FIELDS: [&str; 2] = ["maxTokens", "tokenRatio"];

/// Maximum number of unknown fields of an object that are reported.
const MAX_UNKNOWN: usize = 8;

/// A valid service config.
#[derive(Clone, Debug)]
pub(crate) struct ServiceConfig {
    policy: LbConfig,
    /// Keyed by `/service/method`, by `/service/` for all methods of a service, and by the empty string as the
    /// default.
    methods: HashMap<Box<str>, Arc<MethodConfig>>,
    throttling: Option<RetryThrottlingConfig>,
    warnings: Vec<String>,
}

/// Settings for the calls of a method.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MethodConfig {
    /// Maximum duration of a call, above zero. The application's deadline applies if it is earlier.
    pub(crate) timeout: Option<Duration>,
    /// Default of `wait_for_ready`, which the application can override per call.
    pub(crate) wait_for_ready: Option<bool>,
    /// Retry policy; `None` if only transparent retries are made.
    pub(crate) retry: Option<RetryPolicy>,
}

impl ServiceConfig {
    /// Parses a service config. `registry` contains the policies that it may name. If `policy` is set, it applies and
    /// the config must not name one.
    pub(crate) fn parse(
        json: &str,
        policy: Option<LbConfig>,
        registry: &Registry,
    ) -> Result<ServiceConfig, ServiceConfigError> {
        let mut notes = ServiceConfigParser::default();
        let config = match serde_json::from_str(json) {
            Ok(value) => notes.service_config(&value, policy, registry),
            Err(error) => {
                notes.problems.add(&FieldPath::root(), format!("cannot be read as JSON: {error}"));
                None
            }
        };
        config.ok_or(ServiceConfigError(notes.problems))
    }

    /// Returns the load balancing policy.
    pub(crate) fn policy(&self) -> &LbConfig {
        &self.policy
    }

    /// Returns the settings for a call by its path, `/package.Service/Method`. An entry for the method comes before
    /// one for its service, and that before the default. Allocates nothing.
    pub(crate) fn method(&self, path: &str) -> Option<&Arc<MethodConfig>> {
        if self.methods.is_empty() {
            return None;
        }
        let service = path.rfind('/').and_then(|slash| path.get(..=slash)).unwrap_or_default();
        [path, service, ""].into_iter().find_map(|name| self.methods.get(name))
    }

    /// Returns the retry throttling settings, if any. They apply to all calls of a channel together.
    pub(crate) fn throttling(&self) -> Option<RetryThrottlingConfig> {
        self.throttling
    }

    /// Returns warnings for the author of the config about fields that have no effect.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

/// An invalid service config. Its author can fix it: the text lists every problem with its field path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceConfigError(ValidationErrors);

impl fmt::Display for ServiceConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "service config: {}", self.0)
    }
}

impl std::error::Error for ServiceConfigError {}

/// Parser that collects problems and warnings. Each method parses one part and records its problems. It returns
/// `None` if the part is missing or invalid.
#[derive(Default)]
struct ServiceConfigParser {
    problems: ValidationErrors,
    warnings: Vec<String>,
}

impl ServiceConfigParser {
    fn service_config(
        &mut self,
        value: &Value,
        policy: Option<LbConfig>,
        registry: &Registry,
    ) -> Option<ServiceConfig> {
        let config = self.object(value, FieldPath::root())?;
        self.warn_of_unknown_fields(&config, &CONFIG_FIELDS);
        let policy = match policy {
            Some(policy) => {
                for field in ["loadBalancingConfig", "loadBalancingPolicy"] {
                    if config.has(field) {
                        let problem = format!(
                            "is set beside the policy {:?} of the channel; expected one of them",
                            policy.policy()
                        );
                        self.problems.add(&config.field(field), problem);
                    }
                }
                Some(policy)
            }
            None => self.policy(&config, registry),
        };
        let methods = self.methods(&config);
        let throttling = self.throttling(&config);
        if config.value("healthCheckConfig").is_some() {
            let text =
                "health checks by the client (A17) are not supported; an endpoint is healthy once connected";
            self.warn(&config.field("healthCheckConfig"), text);
        }
        let policy = policy.filter(|_| self.problems.is_empty())?;
        self.warnings.extend_from_slice(policy.warnings());
        Some(ServiceConfig { policy, methods, throttling, warnings: std::mem::take(&mut self.warnings) })
    }

    /// Parses `loadBalancingConfig`, or else the older `loadBalancingPolicy`. The default is `pick_first`.
    fn policy(&mut self, config: &JsonObject<'_>, registry: &Registry) -> Option<LbConfig> {
        if let Some(list) = config.value("loadBalancingConfig") {
            // The error contains the field path already.
            let policy = registry.parse(list);
            return policy.map_err(|error| self.problems.add(&FieldPath::root(), error.to_string())).ok();
        }
        let field = "loadBalancingPolicy";
        let name = match config.value(field) {
            None => "pick_first",
            Some(_) => config.read(field, "the name of a policy", &mut self.problems, Value::as_str)?,
        };
        // gRPC accepts upper case: `ROUND_ROBIN` is `round_robin`.
        let lower = name.to_ascii_lowercase();
        let Some(known) = [name, &lower].into_iter().find(|name| registry.contains(name)) else {
            let hint = nearest_name(name, registry.names());
            let hint = hint.map_or_else(String::new, |nearest| format!("; did you mean {nearest:?}?"));
            let problem = format!("expected the name of a registered policy, found {}{hint}", quoted(name));
            self.problems.add(&config.field(field), problem);
            return None;
        };
        let policy = registry.parse(&json!([{ known: {} }]));
        let policy = policy.map_err(|error| {
            let problem = format!("{known} needs settings; use loadBalancingConfig instead ({error})");
            self.problems.add(&config.field(field), problem);
        });
        policy.ok()
    }

    fn methods(&mut self, config: &JsonObject<'_>) -> HashMap<Box<str>, Arc<MethodConfig>> {
        // Each entry carries the path of its name, for the error about duplicates.
        let mut methods: HashMap<Box<str>, (String, Arc<MethodConfig>)> = HashMap::new();
        let list = config.list("methodConfig", &mut self.problems);
        let path = config.field("methodConfig");
        for (i, value) in list.into_iter().flatten().enumerate() {
            let path = path.index(i);
            let Some(object) = self.object(value, path) else { continue };
            self.warn_of_unknown_fields(&object, &METHOD_FIELDS);
            let method = Arc::new(self.method(&object));
            for (place, name) in self.names(&object) {
                if let Some((other, _)) = methods.get(&name) {
                    let problem = format!("expected a unique name, found that of {other}");
                    self.problems.add(&FieldPath::root().field(&place), problem);
                } else {
                    methods.insert(name, (place, method.clone()));
                }
            }
        }
        methods.into_iter().map(|(name, (_, method))| (name, method)).collect()
    }

    /// Returns the keys of an entry's `name` list, each with its field path.
    fn names(&mut self, entry: &JsonObject<'_>) -> Vec<(String, Box<str>)> {
        let list = entry.list("name", &mut self.problems);
        let path = entry.field("name");
        if entry.value("name").is_none() || list.is_some_and(<[Value]>::is_empty) {
            self.warn(&path, "is empty, so the entry has no effect");
        }
        let mut names = Vec::new();
        for (i, value) in list.into_iter().flatten().enumerate() {
            let path = path.index(i);
            let Some(name) = self.object(value, path) else { continue };
            self.warn_of_unknown_fields(&name, &NAME_FIELDS);
            let mut text = |field| name.text(field, &mut self.problems).unwrap_or_default();
            let name: Box<str> = match (text("service"), text("method")) {
                ("", "") => "".into(),
                ("", method) => {
                    let problem = format!("is required beside method {}", quoted(method));
                    self.problems.add(&path.field("service"), problem);
                    continue;
                }
                (service, method) => format!("/{service}/{method}").into(),
            };
            names.push((path.to_string(), name));
        }
        names
    }

    fn method(&mut self, entry: &JsonObject<'_>) -> MethodConfig {
        if entry.value("hedgingPolicy").is_some() {
            let problem = "hedging is not supported; expected retryPolicy or nothing";
            self.problems.add(&entry.field("hedgingPolicy"), problem);
        }
        let limits = [
            ("maxRequestMessageBytes", "max_encoding_message_size"),
            ("maxResponseMessageBytes", "max_decoding_message_size"),
        ];
        for (field, method) in limits {
            if entry.value(field).is_some() {
                let text = format!("is not applied; call {method} of the generated client instead");
                self.warn(&entry.field(field), &text);
            }
        }
        MethodConfig {
            timeout: entry.duration("timeout", &mut self.problems),
            wait_for_ready: entry.read("waitForReady", "true or false", &mut self.problems, Value::as_bool),
            retry: self.retry_policy(entry),
        }
    }

    fn retry_policy(&mut self, entry: &JsonObject<'_>) -> Option<RetryPolicy> {
        let policy = entry.object("retryPolicy", &mut self.problems)?;
        self.warn_of_unknown_fields(&policy, &RETRY_FIELDS);
        let problems = &mut self.problems;
        let attempts = policy.required("maxAttempts", "a whole number of 2 or more", problems, |value| {
            value.as_u64().filter(|attempts| *attempts >= 2)
        });
        let initial_backoff = policy.required_duration("initialBackoff", problems);
        let max_backoff = policy.required_duration("maxBackoff", problems);
        let multiplier = policy.required("backoffMultiplier", "a number above 0", problems, above_zero);
        let codes = self.codes(&policy);
        Some(RetryPolicy {
            // At most MAX_ATTEMPTS, so the cast cannot truncate.
            max_attempts: attempts?.min(u64::from(MAX_ATTEMPTS)) as u32,
            initial_backoff: initial_backoff?,
            max_backoff: max_backoff?,
            multiplier: multiplier?,
            codes: codes?,
        })
    }

    fn codes(&mut self, policy: &JsonObject<'_>) -> Option<CodeSet> {
        let field = "retryableStatusCodes";
        let what = "a list of at least one status code";
        let list = policy.required(field, what, &mut self.problems, |value| {
            value.as_array().filter(|list| !list.is_empty())
        })?;
        let path = policy.field(field);
        let codes = list.iter().enumerate().map(|(i, value)| {
            let code = code(value);
            if code.is_none() {
                let problem = expected("a status code such as \"UNAVAILABLE\" or 14, but not OK", value);
                self.problems.add(&path.index(i), problem);
            }
            code
        });
        // Collect into a `Vec` first, so that every invalid code is reported.
        codes.collect::<Vec<_>>().into_iter().collect()
    }

    fn throttling(&mut self, config: &JsonObject<'_>) -> Option<RetryThrottlingConfig> {
        let throttling = config.object("retryThrottling", &mut self.problems)?;
        self.warn_of_unknown_fields(&throttling, &THROTTLING_FIELDS);
        let problems = &mut self.problems;
        let max_tokens = throttling.required("maxTokens", "a number from 0.001 to 1000", problems, |value| {
            above_zero(value).filter(|tokens| *tokens <= 1000.0).and_then(thousandths)
        });
        let token_ratio = throttling.required("tokenRatio", "a number of 0.001 or more", problems, |value| {
            above_zero(value).and_then(thousandths)
        });
        Some(RetryThrottlingConfig { max_tokens: max_tokens?, token_ratio: token_ratio? })
    }

    fn object<'a>(&mut self, value: &'a Value, path: FieldPath<'a>) -> Option<JsonObject<'a>> {
        JsonObject::of(value, path, JsonRules::Proto3, &mut self.problems)
    }

    fn warn_of_unknown_fields(&mut self, object: &JsonObject<'_>, known: &[&'static str]) {
        let is_unknown = |field: &&String| !known.iter().any(|name| proto3_json::is_name_of(field, name));
        for field in object.map().keys().filter(is_unknown).take(MAX_UNKNOWN) {
            let hint = match nearest_name(field, known.iter().copied()) {
                Some(nearest) => format!("did you mean {nearest:?}?"),
                None => format!("expected one of {}", known.join(", ")),
            };
            let text = format!("unknown field {}; {hint}", quoted(field));
            let path = object.path().to_string();
            self.warnings.push(if path.is_empty() { text } else { format!("{path}: {text}") });
        }
    }

    fn warn(&mut self, path: &FieldPath<'_>, text: &str) {
        self.warnings.push(format!("{path}: {text}"));
    }
}

fn above_zero(value: &Value) -> Option<f64> {
    value.as_f64().filter(|number| *number > 0.0)
}

/// Converts a positive number to thousandths and ignores further decimals (A6). Returns `None` if the result is zero.
fn thousandths(number: f64) -> Option<u32> {
    // Computed from the digits: 0.57 times 1000 is slightly less than 570.
    let text = number.to_string();
    let (whole, decimals) = text.split_once('.').unwrap_or((&text, ""));
    let digits: String = whole.chars().chain(decimals.chars().chain("000".chars()).take(3)).collect();
    // Larger values saturate; they exceed the token limit anyway.
    Some(digits.parse().unwrap_or(u32::MAX)).filter(|thousandths| *thousandths > 0)
}

/// Parses a status code by its name, in any case, or its number. OK is rejected, since it is no failure.
fn code(value: &Value) -> Option<Code> {
    let code = match value {
        Value::String(name) => Code::from_name(name),
        number => number.as_i64().and_then(|number| Code::from_number(number.try_into().ok()?)),
    };
    code.filter(|code| *code != Code::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expected format of a duration.
    const DURATION: &str = "a duration above zero such as \"1.5s\"";

    fn read(config: &Value) -> Result<ServiceConfig, String> {
        let config = ServiceConfig::parse(&config.to_string(), None, &Registry::standard());
        config.map_err(|error| error.to_string())
    }

    /// Returns a config with this retry policy for all calls.
    fn with_retries(policy: &Value) -> Value {
        json!({"methodConfig": [{"name": [{}], "retryPolicy": policy}]})
    }

    fn retry_policy() -> Value {
        json!({
            "maxAttempts": 4,
            "initialBackoff": "0.1s",
            "maxBackoff": "1s",
            "backoffMultiplier": 2,
            "retryableStatusCodes": ["UNAVAILABLE"],
        })
    }

    /// Returns `object` with one field replaced or, for null, removed.
    fn but(mut object: Value, field: &str, value: Value) -> Value {
        let map = object.as_object_mut().unwrap();
        if value.is_null() {
            map.remove(field);
        } else {
            map.insert(field.to_owned(), value);
        }
        object
    }

    #[test]
    fn policies_are_chosen() {
        for (config, policy) in [
            (json!({}), json!({"pick_first": {}})),
            (json!({"loadBalancingConfig": null, "loadBalancingPolicy": null}), json!({"pick_first": {}})),
            (json!({"loadBalancingPolicy": "round_robin"}), json!({"round_robin": {}})),
            (json!({"loadBalancingPolicy": "ROUND_ROBIN"}), json!({"round_robin": {}})),
            (json!({"loadBalancingPolicy": "Round_Robin"}), json!({"round_robin": {}})),
            (
                json!({"loadBalancingConfig": [{"newest": {}}, {"round_robin": {}}, {"pick_first": {}}]}),
                json!({"round_robin": {}}),
            ),
            (
                json!({"loadBalancingPolicy": "pick_first", "loadBalancingConfig": [{"round_robin": {}}]}),
                json!({"round_robin": {}}),
            ),
            (
                json!({"load_balancing_config": [{"pick_first": {"shuffleAddressList": true}}]}),
                json!({"pick_first": {"shuffleAddressList": true}}),
            ),
        ] {
            assert_eq!(read(&config).map(|config| config.policy().to_json()), Ok(policy), "{config}");
        }
    }

    #[test]
    fn policies_of_users_may_have_capitals() {
        let mut registry = Registry::standard();
        registry.alias("Mine", "round_robin");
        let config = ServiceConfig::parse(r#"{"loadBalancingPolicy": "Mine"}"#, None, &registry).unwrap();
        assert_eq!(config.policy().policy(), "round_robin");
    }

    #[test]
    fn invalid_policies_are_rejected_with_a_reason() {
        for (config, problem) in [
            (
                json!({"loadBalancingPolicy": "fastest"}),
                "loadBalancingPolicy: expected the name of a registered policy, found \"fastest\"",
            ),
            (
                json!({"loadBalancingPolicy": 1}),
                "loadBalancingPolicy: expected the name of a policy, found 1",
            ),
            (
                json!({"loadBalancingPolicy": "weighted_target_experimental", "loadBalancingConfig": {}}),
                "loadBalancingConfig: expected a list of policies, found {}",
            ),
            (
                json!({"loadBalancingConfig": [{"fastest": {}}]}),
                "loadBalancingConfig: no policy of the list is supported: \"fastest\"; register it or name a supported one",
            ),
            (
                json!({"loadBalancingConfig": [{"pick_first": {"shuffleAddressList": 1}}]}),
                "policy \"pick_first\": loadBalancingConfig[0].pick_first.shuffleAddressList: expected true or false, found 1",
            ),
        ] {
            assert_eq!(read(&config).err(), Some(format!("service config: {problem}")), "{config}");
        }
        let error = read(&json!({"loadBalancingPolicy": "outlier_detection_experimental"})).unwrap_err();
        let start = "service config: loadBalancingPolicy: outlier_detection_experimental needs settings; \
                     use loadBalancingConfig instead (";
        assert!(error.starts_with(start), "{error}");
    }

    /// RT-1: the timeout of a method.
    #[test]
    fn methods_are_found_by_name_then_by_service_then_by_default() {
        let config = json!({"methodConfig": [
            {"name": [{}], "timeout": "1s"},
            {"name": [{"service": "shop.Orders"}, {"service": "shop.Stock", "method": ""}], "timeout": "2s"},
            {"name": [{"service": "shop.Orders", "method": "Place"}], "timeout": "3.5s", "waitForReady": true},
            {"name": [{"service": "shop.Orders", "method": "List"}], "waitForReady": false},
        ]});
        let config = read(&config).unwrap();
        for (path, timeout, wait_for_ready) in [
            ("/shop.Orders/Place", Some(3500), Some(true)),
            ("/shop.Orders/List", None, Some(false)),
            ("/shop.Orders/Cancel", Some(2000), None),
            ("/shop.Orders/", Some(2000), None),
            ("/shop.Stock/Count", Some(2000), None),
            ("/shop.Order/Place", Some(1000), None),
            ("/Place", Some(1000), None),
            ("shop.Orders/Place", Some(1000), None),
            ("", Some(1000), None),
            ("/", Some(1000), None),
            ("/shop.Orders/Pl\u{e4}ce", Some(2000), None),
        ] {
            let method = config.method(path).unwrap();
            let timeout = timeout.map(Duration::from_millis);
            assert_eq!((method.timeout, method.wait_for_ready), (timeout, wait_for_ready), "{path}");
        }
        assert_eq!(config.warnings(), [""; 0]);

        let config =
            json!({"methodConfig": [{"name": [{"service": "a.B", "method": "C"}], "timeout": "1s"}]});
        let config = read(&config).unwrap();
        assert!(config.method("/a.B/C").is_some());
        for path in ["/a.B/D", "/a.B/", "/a.C/C", "", "/"] {
            assert_eq!(config.method(path), None, "{path}");
        }
    }

    #[test]
    fn retry_policies_are_read() {
        let policy = |policy: &Value| {
            let config = read(&with_retries(policy)).unwrap();
            config.method("/a.B/C").unwrap().retry.unwrap()
        };
        assert_eq!(
            policy(&retry_policy()),
            RetryPolicy {
                max_attempts: 4,
                initial_backoff: Duration::from_millis(100),
                max_backoff: Duration::from_secs(1),
                multiplier: 2.0,
                codes: [Code::Unavailable].into_iter().collect(),
            }
        );
        for (given, attempts) in [(json!(2), 2), (json!(5), 5), (json!(6), 5), (json!(u64::MAX), 5)] {
            assert_eq!(policy(&but(retry_policy(), "maxAttempts", given)).max_attempts, attempts);
        }
        let multiplier = policy(&but(retry_policy(), "backoffMultiplier", json!(0.25))).multiplier;
        assert!((multiplier - 0.25).abs() < f64::EPSILON);
        let given = json!(["unavailable", "Data_Loss", 1, 16, "CANCELLED"]);
        let codes = policy(&but(retry_policy(), "retryableStatusCodes", given)).codes;
        let expected = [Code::Unavailable, Code::DataLoss, Code::Cancelled, Code::Unauthenticated];
        assert_eq!(codes, expected.into_iter().collect());
        let every = json!((1..=16).collect::<Vec<_>>());
        let codes = policy(&but(retry_policy(), "retryableStatusCodes", every)).codes;
        let names = json!([
            "CANCELLED",
            "UNKNOWN",
            "INVALID_ARGUMENT",
            "DEADLINE_EXCEEDED",
            "NOT_FOUND",
            "ALREADY_EXISTS",
            "PERMISSION_DENIED",
            "RESOURCE_EXHAUSTED",
            "FAILED_PRECONDITION",
            "ABORTED",
            "OUT_OF_RANGE",
            "UNIMPLEMENTED",
            "INTERNAL",
            "UNAVAILABLE",
            "DATA_LOSS",
            "UNAUTHENTICATED"
        ]);
        assert_eq!(policy(&but(retry_policy(), "retryableStatusCodes", names)).codes, codes);
    }

    #[test]
    fn invalid_retry_policies_are_rejected_with_a_reason() {
        let attempts = "a whole number of 2 or more";
        let list = "a list of at least one status code";
        let one = "a status code such as \"UNAVAILABLE\" or 14, but not OK";
        for (field, value, problem) in [
            ("maxAttempts", json!(1), format!(": expected {attempts}, found 1")),
            ("maxAttempts", json!(-1), format!(": expected {attempts}, found -1")),
            ("maxAttempts", json!(2.5), format!(": expected {attempts}, found 2.5")),
            ("maxAttempts", json!("4"), format!(": expected {attempts}, found \"4\"")),
            ("maxAttempts", Value::Null, format!(": is required: {attempts}")),
            ("initialBackoff", json!("0s"), format!(": expected {DURATION}, found \"0s\"")),
            ("initialBackoff", json!("-1s"), format!(": expected {DURATION}, found \"-1s\"")),
            ("initialBackoff", json!("1m"), format!(": expected {DURATION}, found \"1m\"")),
            ("initialBackoff", json!("s"), format!(": expected {DURATION}, found \"s\"")),
            ("initialBackoff", json!("1"), format!(": expected {DURATION}, found \"1\"")),
            ("initialBackoff", json!("\u{e9}s"), format!(": expected {DURATION}, found \"\u{e9}s\"")),
            (
                "initialBackoff",
                json!("315576000001s"),
                format!(": expected {DURATION}, found \"315576000001s\""),
            ),
            ("maxBackoff", json!(1), format!(": expected {DURATION}, found 1")),
            ("maxBackoff", Value::Null, format!(": is required: {DURATION}")),
            ("backoffMultiplier", json!(0), ": expected a number above 0, found 0".to_owned()),
            ("backoffMultiplier", json!(-1.5), ": expected a number above 0, found -1.5".to_owned()),
            ("backoffMultiplier", json!("2"), ": expected a number above 0, found \"2\"".to_owned()),
            ("retryableStatusCodes", json!([]), format!(": expected {list}, found an empty list")),
            ("retryableStatusCodes", json!({}), format!(": expected {list}, found an object")),
            ("retryableStatusCodes", Value::Null, format!(": is required: {list}")),
            ("retryableStatusCodes", json!(["OK"]), format!("[0]: expected {one}, found \"OK\"")),
            ("retryableStatusCodes", json!([14, 0]), format!("[1]: expected {one}, found 0")),
            ("retryableStatusCodes", json!([17]), format!("[0]: expected {one}, found 17")),
            ("retryableStatusCodes", json!(["GONE"]), format!("[0]: expected {one}, found \"GONE\"")),
            ("retryableStatusCodes", json!([["OK"]]), format!("[0]: expected {one}, found a list")),
        ] {
            let error = read(&with_retries(&but(retry_policy(), field, value.clone()))).err();
            let expected = format!("service config: methodConfig[0].retryPolicy.{field}{problem}");
            assert_eq!(error, Some(expected), "{field} {value}");
        }
        let two = read(&with_retries(&but(retry_policy(), "retryableStatusCodes", json!([0, 14, 17]))))
            .unwrap_err();
        assert!(
            two.contains("Codes[0]: ") && two.contains("Codes[2]: ") && !two.contains("Codes[1]: "),
            "{two}"
        );
        let error = "service config: methodConfig[0].retryPolicy: expected an object, found true";
        assert_eq!(read(&with_retries(&json!(true))).err().as_deref(), Some(error));
    }

    #[test]
    fn invalid_method_configs_are_rejected_with_a_reason() {
        let name = json!([{"service": "a.B"}]);
        for (methods, problem) in [
            (json!({}), "methodConfig: expected a list, found an object"),
            (json!([1]), "methodConfig[0]: expected an object, found 1"),
            (json!([{"name": {}}]), "methodConfig[0].name: expected a list, found an object"),
            (json!([{"name": ["a"]}]), "methodConfig[0].name[0]: expected an object, found \"a\""),
            (
                json!([{"name": [{"service": 1}]}]),
                "methodConfig[0].name[0].service: expected a string, found 1",
            ),
            (
                json!([{"name": [{}, {"method": "C"}]}]),
                "methodConfig[0].name[1].service: is required beside method \"C\"",
            ),
            (
                json!([{"name": name}, {"name": [{"service": "c"}, {"service": "a.B", "method": null}]}]),
                "methodConfig[1].name[1]: expected a unique name, found that of methodConfig[0].name[0]",
            ),
            (
                json!([{"name": [{}, {"service": ""}]}]),
                "methodConfig[0].name[1]: expected a unique name, found that of methodConfig[0].name[0]",
            ),
            (
                json!([{"name": name, "timeout": "0s"}]),
                "methodConfig[0].timeout: expected a duration above zero such as \"1.5s\", found \"0s\"",
            ),
            (
                json!([{"name": name, "waitForReady": "yes"}]),
                "methodConfig[0].waitForReady: expected true or false, found \"yes\"",
            ),
            (
                json!([{"name": name, "hedgingPolicy": {"maxAttempts": 2}}]),
                "methodConfig[0].hedgingPolicy: hedging is not supported; expected retryPolicy or nothing",
            ),
        ] {
            let error = read(&json!({"methodConfig": methods})).err();
            assert_eq!(error, Some(format!("service config: {problem}")), "{methods}");
        }
    }

    #[test]
    fn throttling_is_read() {
        let throttling = |max: Value, ratio: Value| {
            let config = json!({"retryThrottling": {"maxTokens": max, "tokenRatio": ratio}});
            read(&config).map(|config| config.throttling())
        };
        assert_eq!(read(&json!({})).unwrap().throttling(), None);
        for (max, ratio, max_tokens, token_ratio) in [
            (json!(10), json!(0.1), 10_000, 100),
            (json!(1000), json!(0.5466), 1_000_000, 546),
            (json!(0.001), json!(0.57), 1, 570),
            (json!(10.5), json!(0.0019), 10_500, 1),
            (json!(1), json!(4.35), 1_000, 4_350),
            (json!(1), json!(2), 1_000, 2_000),
            (json!(1), json!(1e300), 1_000, u32::MAX),
        ] {
            let expected = RetryThrottlingConfig { max_tokens, token_ratio };
            assert_eq!(throttling(max.clone(), ratio.clone()), Ok(Some(expected)), "{max} {ratio}");
        }
        let (tokens, least) = ("a number from 0.001 to 1000", "a number of 0.001 or more");
        for (max, ratio, problem) in [
            (json!(0), json!(1), format!("maxTokens: expected {tokens}, found 0")),
            (json!(-1), json!(1), format!("maxTokens: expected {tokens}, found -1")),
            (json!(1000.0001), json!(1), format!("maxTokens: expected {tokens}, found 1000.0001")),
            (json!(0.0001), json!(1), format!("maxTokens: expected {tokens}, found 0.0001")),
            (Value::Null, json!(1), format!("maxTokens: is required: {tokens}")),
            (json!(1), json!(0), format!("tokenRatio: expected {least}, found 0")),
            (json!(1), json!(0.0009), format!("tokenRatio: expected {least}, found 0.0009")),
            (json!(1), json!(1e-300), format!("tokenRatio: expected {least}, found 1e-300")),
            (json!(1), json!("1"), format!("tokenRatio: expected {least}, found \"1\"")),
            (json!(1), Value::Null, format!("tokenRatio: is required: {least}")),
        ] {
            let error = throttling(max, ratio).err();
            assert_eq!(error, Some(format!("service config: retryThrottling.{problem}")));
        }
    }

    #[test]
    fn ignored_fields_are_warned_about() {
        let config = json!({
            "healthCheckConfig": {"serviceName": "a"},
            "methodConfig": [
                {"name": [{}], "maxRequestMessageBytes": 10, "max_response_message_bytes": 20},
                {"timeout": "1s"},
                {"name": []},
            ],
        });
        let config = read(&config).unwrap();
        assert_eq!(
            config.warnings(),
            [
                "methodConfig[0].maxRequestMessageBytes: is not applied; \
                 call max_encoding_message_size of the generated client instead",
                "methodConfig[0].maxResponseMessageBytes: is not applied; \
                 call max_decoding_message_size of the generated client instead",
                "methodConfig[1].name: is empty, so the entry has no effect",
                "methodConfig[2].name: is empty, so the entry has no effect",
                "healthCheckConfig: health checks by the client (A17) are not supported; \
                 an endpoint is healthy once connected",
            ]
        );
    }

    #[test]
    fn unknown_fields_are_warned_about_with_the_nearest_known_one() {
        let config = json!({
            "loadBalancingConfg": [{"round_robin": {}}],
            "someday": {"maxAttempts": "x"},
            "methodConfig": [{
                "name": [{"service": "a", "mehtod": "b"}],
                "time_out": "1s",
                "wait_for_ready": true,
                "retryPolicy": {
                    "maxAttempts": 2, "initialBackoff": "1s", "maxBackof": "9s", "maxBackoff": "9s",
                    "backoffMultiplier": 2, "retryableStatusCodes": [14],
                },
            }],
            "retryThrottling": {"maxTokens": 1, "tokenRatio": 1, "ratio": 1},
        });
        assert_eq!(
            read(&config).unwrap().warnings(),
            [
                "unknown field \"loadBalancingConfg\"; did you mean \"loadBalancingConfig\"?",
                "unknown field \"someday\"; expected one of loadBalancingConfig, loadBalancingPolicy, methodConfig, \
                 retryThrottling, healthCheckConfig",
                "methodConfig[0]: unknown field \"time_out\"; did you mean \"timeout\"?",
                "methodConfig[0].retryPolicy: unknown field \"maxBackof\"; did you mean \"maxBackoff\"?",
                "methodConfig[0].name[0]: unknown field \"mehtod\"; did you mean \"method\"?",
                "retryThrottling: unknown field \"ratio\"; expected one of maxTokens, tokenRatio",
            ]
        );
        let config = json!({"loadBalancingConfig": [{"ring_hash_experimental": {"min_ringsize": 7}}]});
        assert_eq!(
            read(&config).unwrap().warnings(),
            [
                "policy \"ring_hash_experimental\": loadBalancingConfig[0].ring_hash_experimental: unknown field \
              \"min_ringsize\"; did you mean \"minRingSize\"?"
            ]
        );
        // Their number and length are bounded.
        let many: Value = (0..100).map(|i| (format!("{i}{}", "x".repeat(1000)), json!(1))).collect();
        let config = read(&many).unwrap();
        assert_eq!(config.warnings().len(), 8);
        assert!(config.warnings().iter().all(|warning| warning.len() < 300));
    }

    #[test]
    fn every_problem_is_listed() {
        let config = json!({
            "loadBalancingPolicy": "fastest",
            "methodConfig": [{"name": [{}], "timeout": 1, "retryPolicy": {"maxAttempts": 1}}],
            "retryThrottling": [],
        });
        assert_eq!(
            read(&config).err().unwrap().split("; ").collect::<Vec<_>>(),
            [
                "service config: loadBalancingPolicy: expected the name of a registered policy, found \"fastest\"",
                "methodConfig[0].timeout: expected a duration above zero such as \"1.5s\", found 1",
                "methodConfig[0].retryPolicy.maxAttempts: expected a whole number of 2 or more, found 1",
                "methodConfig[0].retryPolicy.initialBackoff: is required: a duration above zero such as \"1.5s\"",
                "methodConfig[0].retryPolicy.maxBackoff: is required: a duration above zero such as \"1.5s\"",
                "methodConfig[0].retryPolicy.backoffMultiplier: is required: a number above 0",
                "methodConfig[0].retryPolicy.retryableStatusCodes: is required: a list of at least one status code",
                "retryThrottling: expected an object, found an empty list",
            ]
        );
    }

    #[test]
    fn invalid_json_is_rejected_with_its_position() {
        for (text, problem) in [
            ("", "cannot be read as JSON: EOF while parsing a value at line 1 column 0"),
            ("{", "cannot be read as JSON: EOF while parsing an object at line 1 column 1"),
            ("[]", "expected an object, found an empty list"),
            ("null", "expected an object, found null"),
        ] {
            let error = ServiceConfig::parse(text, None, &Registry::standard()).unwrap_err();
            assert_eq!(error.to_string(), format!("service config: {problem}"));
        }
        let deep = "[".repeat(100_000);
        let error = ServiceConfig::parse(&deep, None, &Registry::standard()).unwrap_err().to_string();
        assert!(error.starts_with("service config: cannot be read as JSON: recursion limit"), "{error}");
    }
}
