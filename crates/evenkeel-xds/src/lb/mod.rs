//! Conversion of the control plane's load-balancing policies to policies of the core (A52).
//!
//! A cluster names its policy in a list of messages, of which the first supported one is used, or with an
//! older enum. Both become a `loadBalancingConfig` list with one entry, which the core's registry parses. A
//! message is supported if it has a converter and its policy is registered. Users can add converters and
//! policies.

mod convert;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use evenkeel_core::{LbConfig, Registry};
use evenkeel_proto::envoy::config::cluster::v3::cluster::ring_hash_lb_config::HashFunction;
use evenkeel_proto::envoy::config::cluster::v3::cluster::{
    LbConfig as LegacyConfig, LbPolicy, RingHashLbConfig,
};
use evenkeel_proto::envoy::config::cluster::v3::load_balancing_policy::Policy as Entry;
use evenkeel_proto::envoy::config::cluster::v3::{Cluster, LoadBalancingPolicy};
use evenkeel_proto::prost;
use serde_json::{Value, json};

use crate::resource::findings::ParseDiagnostics;
use crate::resource::message_name;
use crate::text::{listed, single_line};
use crate::{FieldPath, ValidationErrors};

/// Maximum nesting of policy lists (A52).
const MAX_DEPTH: usize = 16;

/// Converters from messages of the control plane to policies of the registry, by message name.
///
/// ```
/// use evenkeel_core::Registry;
/// use evenkeel_proto::envoy::config::cluster::v3::LoadBalancingPolicy;
/// use evenkeel_proto::envoy::config::cluster::v3::load_balancing_policy::Policy;
/// use evenkeel_proto::envoy::config::core::v3::TypedExtensionConfig;
/// use evenkeel_proto::prost_types::Any;
/// use evenkeel_xds::lb::{ConvertedPolicy, LbPolicyConverters};
/// use serde_json::json;
///
/// let mut converters = LbPolicyConverters::standard();
/// converters.register("myorg.Nearest", |_, conversion| {
///     conversion.require("round_robin")?;
///     Ok(ConvertedPolicy { policy: "round_robin".to_owned(), settings: json!({}) })
/// });
/// let any = Any { type_url: "type.googleapis.com/myorg.Nearest".to_owned(), value: Vec::new() };
/// let config = TypedExtensionConfig { name: String::new(), typed_config: Some(any) };
/// let list = LoadBalancingPolicy { policies: vec![Policy { typed_extension_config: Some(config) }] };
/// let (config, _) = converters.convert(&list, &Registry::standard())?;
/// assert_eq!(config, json!([{"round_robin": {}}]));
/// # Ok::<(), evenkeel_xds::ValidationErrors>(())
/// ```
#[derive(Clone)]
pub struct LbPolicyConverters {
    by_message: BTreeMap<Arc<str>, Arc<LbPolicyConverter>>,
    eds_weights: EdsWeights,
}

type LbPolicyConverter =
    dyn Fn(&[u8], &mut ConversionContext<'_>) -> Result<ConvertedPolicy, ConversionError> + Send + Sync;

/// Forms of round robin that use the endpoint weights of EDS, through `edf_weighted_round_robin`. Without
/// differing weights this has no effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EdsWeights {
    /// No form uses the weights. Round robin is always `round_robin`, as in other gRPC implementations.
    Unused,
    /// The enum `ROUND_ROBIN` of a cluster uses the weights, as in Envoy.
    #[default]
    Enum,
    /// The enum and the message `RoundRobin` use the weights.
    EnumAndMessage,
}

/// Policy of the registry with its settings.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvertedPolicy {
    /// Name of the policy in the registry.
    pub policy: String,
    /// Settings of the policy, a JSON object.
    pub settings: Value,
}

/// Reason why an entry was not converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConversionError {
    /// The named policy or message is not supported. The entry is skipped and the next one is tried.
    Unsupported(String),
    /// The entry is invalid, as reported with [`ConversionContext::invalid`]. The cluster is rejected.
    Invalid,
}

impl LbPolicyConverters {
    /// Returns all built-in converters.
    pub fn standard() -> LbPolicyConverters {
        let mut converters = LbPolicyConverters::empty();
        convert::register_all(&mut converters);
        converters
    }

    /// Returns an empty set. Without converters only the enum of a cluster is supported.
    pub fn empty() -> LbPolicyConverters {
        LbPolicyConverters { by_message: BTreeMap::new(), eds_weights: EdsWeights::default() }
    }

    /// Registers a converter for a message, given by its full name. It replaces an earlier converter for the
    /// same message. Its first argument is the encoded message.
    pub fn register(
        &mut self,
        message: &str,
        convert: impl Fn(&[u8], &mut ConversionContext<'_>) -> Result<ConvertedPolicy, ConversionError>
        + Send
        + Sync
        + 'static,
    ) {
        self.by_message.insert(message_name(message).into(), Arc::new(convert));
    }

    /// Removes the converter for a message. Entries with this message are skipped.
    pub fn remove(&mut self, message: &str) {
        self.by_message.remove(message_name(message));
    }

    /// Sets the forms of round robin that use EDS weights.
    #[must_use]
    pub fn with_eds_weights(mut self, eds_weights: EdsWeights) -> LbPolicyConverters {
        self.eds_weights = eds_weights;
        self
    }

    /// Returns the names of the messages with a converter, in alphabetical order.
    pub fn messages(&self) -> impl Iterator<Item = &str> {
        self.by_message.keys().map(|message| &**message)
    }

    /// Converts a list of policies to a `loadBalancingConfig` list with one entry, and returns it with
    /// warnings for the operator. The registry has yet to parse the result.
    pub fn convert(
        &self,
        list: &LoadBalancingPolicy,
        registry: &Registry,
    ) -> Result<(Value, Vec<String>), ValidationErrors> {
        let mut diagnostics = ParseDiagnostics::default();
        let converted = self.context(registry, &FieldPath::root(), &mut diagnostics).list(list);
        match converted {
            Ok(config) => diagnostics.warnings().map(|warnings| (config, warnings)),
            Err(_) => Err(diagnostics.problems),
        }
    }

    fn context<'a>(
        &'a self,
        registry: &'a Registry,
        path: &'a FieldPath<'a>,
        diagnostics: &'a mut ParseDiagnostics,
    ) -> ConversionContext<'a> {
        ConversionContext { converters: self, registry, path, depth: 0, diagnostics }
    }

    /// Returns the policy of a cluster: from `load_balancing_policy` if it is set, else from the older
    /// fields. The older fields are ignored otherwise.
    pub(crate) fn cluster_policy(
        &self,
        cluster: &Cluster,
        registry: &Registry,
        diagnostics: &mut ParseDiagnostics,
    ) -> Option<LbConfig> {
        let root = FieldPath::root();
        let (path, config) = if let Some(list) = &cluster.load_balancing_policy {
            let path = root.field("load_balancing_policy");
            (path, self.context(registry, &path, diagnostics).list(list).ok()?)
        } else {
            (root.field("lb_policy"), self.policy_of_enum(cluster, diagnostics)?)
        };
        match registry.parse(&config) {
            Ok(config) => {
                for warning in config.warnings() {
                    diagnostics.warn(&path, single_line(warning));
                }
                Some(config)
            }
            Err(error) => {
                diagnostics.problem(&path, single_line(&error.to_string()));
                None
            }
        }
    }

    /// Returns the config for the older fields `lb_policy` and `lb_config`.
    fn policy_of_enum(&self, cluster: &Cluster, diagnostics: &mut ParseDiagnostics) -> Option<Value> {
        let root = FieldPath::root();
        let endpoint_policy = match LbPolicy::try_from(cluster.lb_policy) {
            Ok(LbPolicy::RoundRobin) => {
                if let Some(LegacyConfig::RoundRobinLbConfig(config)) = &cluster.lb_config
                    && config.slow_start_config.is_some()
                {
                    diagnostics.warn(&root.field("round_robin_lb_config.slow_start_config"), "is ignored");
                }
                match self.eds_weights {
                    EdsWeights::Unused => json!({"round_robin": {}}),
                    EdsWeights::Enum | EdsWeights::EnumAndMessage => json!({"edf_weighted_round_robin": {}}),
                }
            }
            Ok(LbPolicy::LeastRequest) => {
                let mut choice_count = None;
                if let Some(LegacyConfig::LeastRequestLbConfig(config)) = &cluster.lb_config {
                    choice_count = config.choice_count;
                    let path = root.field("least_request_lb_config");
                    if config.active_request_bias.is_some() {
                        diagnostics.warn(&path.field("active_request_bias"), "is ignored");
                    }
                    if config.slow_start_config.is_some() {
                        diagnostics.warn(&path.field("slow_start_config"), "is ignored");
                    }
                }
                json!({"least_request_experimental": convert::least_request(choice_count)})
            }
            Ok(LbPolicy::RingHash) => {
                let config = match cluster.lb_config {
                    Some(LegacyConfig::RingHashLbConfig(config)) => config,
                    _ => RingHashLbConfig::default(),
                };
                if config.hash_function != HashFunction::XxHash as i32 {
                    let text = format!("expected XX_HASH (0), found {}", config.hash_function);
                    diagnostics.problem(&root.field("ring_hash_lb_config.hash_function"), text);
                    return None;
                }
                let settings = convert::ring_hash(config.minimum_ring_size, config.maximum_ring_size);
                // No `xds_wrr_locality_experimental` above it: the ring itself uses locality and endpoint
                // weights (A42).
                return Some(json!([{"ring_hash_experimental": settings}]));
            }
            Ok(LbPolicy::LoadBalancingPolicyConfig) => {
                let text = "must be set: lb_policy is LOAD_BALANCING_POLICY_CONFIG";
                diagnostics.problem(&root.field("load_balancing_policy"), text);
                return None;
            }
            other => {
                let found =
                    other.map_or(cluster.lb_policy.to_string(), |known| known.as_str_name().to_owned());
                let text = format!("expected ROUND_ROBIN, LEAST_REQUEST or RING_HASH, found {found}");
                diagnostics.problem(&root.field("lb_policy"), text);
                return None;
            }
        };
        Some(json!([{"xds_wrr_locality_experimental": {"childPolicy": [endpoint_policy]}}]))
    }
}

impl fmt::Debug for LbPolicyConverters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.messages()).finish()
    }
}

/// Context of one conversion: field path, child conversion, errors and warnings.
pub struct ConversionContext<'a> {
    converters: &'a LbPolicyConverters,
    registry: &'a Registry,
    path: &'a FieldPath<'a>,
    depth: usize,
    diagnostics: &'a mut ParseDiagnostics,
}

impl ConversionContext<'_> {
    /// Returns [`ConversionError::Unsupported`] unless the policy is registered. Converters call it first,
    /// because the message of an unsupported policy must not be validated.
    pub fn require(&self, policy: &str) -> Result<(), ConversionError> {
        if self.registry.contains(policy) {
            return Ok(());
        }
        Err(ConversionError::Unsupported(policy.to_owned()))
    }

    /// Decodes the message and reports an error if it is malformed.
    pub fn decode<M: prost::Message + Default>(&mut self, bytes: &[u8]) -> Result<M, ConversionError> {
        M::decode(bytes).map_err(|error| {
            self.diagnostics.problem(self.path, format!("cannot be decoded: {error}"));
            ConversionError::Invalid
        })
    }

    /// Converts the list of policies in a field of the message, for a child policy. The list is required.
    pub fn child(
        &mut self,
        field: &str,
        list: Option<&LoadBalancingPolicy>,
    ) -> Result<Value, ConversionError> {
        let Some(list) = list else {
            return Err(self.invalid(field, "must be set: a list of policies"));
        };
        let path = self.path.field(field);
        self.at(&path, self.depth.saturating_add(1)).list(list)
    }

    /// Reports an invalid field of the message. A converter may report several fields before it returns the
    /// error.
    pub fn invalid(&mut self, field: &str, text: impl Into<String>) -> ConversionError {
        self.diagnostics.problem(&self.path.field(field), text);
        ConversionError::Invalid
    }

    /// Logs a warning about a field of an accepted message.
    pub fn warn(&mut self, field: &str, text: &str) {
        self.diagnostics.warn(&self.path.field(field), text);
    }

    fn at<'b>(&'b mut self, path: &'b FieldPath<'b>, depth: usize) -> ConversionContext<'b> {
        ConversionContext {
            converters: self.converters,
            registry: self.registry,
            path,
            depth,
            diagnostics: self.diagnostics,
        }
    }

    /// Converts a list to a list with one entry, the first supported one. Later entries are not tried if that
    /// one is invalid (A52).
    fn list(&mut self, list: &LoadBalancingPolicy) -> Result<Value, ConversionError> {
        // 16 nested lists are accepted, the seventeenth is rejected (REG-4).
        if self.depth >= MAX_DEPTH {
            self.diagnostics
                .problem(self.path, format!("lists of policies are nested more than {MAX_DEPTH} deep"));
            return Err(ConversionError::Invalid);
        }
        let mut seen = Vec::new();
        for (i, entry) in list.policies.iter().enumerate() {
            match self.entry(i, entry) {
                Ok(ConvertedPolicy { policy, settings }) => {
                    let entry = serde_json::Map::from_iter([(policy, settings)]);
                    return Ok(Value::Array(vec![Value::Object(entry)]));
                }
                Err(ConversionError::Unsupported(name)) => seen.push(name),
                Err(ConversionError::Invalid) => return Err(ConversionError::Invalid),
            }
        }
        let text = if seen.is_empty() {
            "the list of policies is empty".to_owned()
        } else {
            format!("no policy of the list is supported: {}", listed(seen.iter().map(String::as_str)))
        };
        self.diagnostics.problem(self.path, text);
        Err(ConversionError::Invalid)
    }

    fn entry(&mut self, i: usize, entry: &Entry) -> Result<ConvertedPolicy, ConversionError> {
        let path = self.path.field("policies");
        let path = path.index(i);
        let path = path.field("typed_extension_config");
        let extension = entry.typed_extension_config.as_ref();
        let Some(any) = extension.and_then(|extension| extension.typed_config.as_ref()) else {
            self.diagnostics.warn(&path, "has no typed_config, so the entry is skipped");
            let name = extension.map_or("", |extension| &extension.name);
            return Err(ConversionError::Unsupported(name.to_owned()));
        };
        let path = path.field("typed_config");
        let message = message_name(&any.type_url);
        let Some(convert) = self.converters.by_message.get(message) else {
            return Err(ConversionError::Unsupported(message.to_owned()));
        };
        let converted = convert(&any.value, &mut self.at(&path, self.depth));
        // The NACK needs a reason, even if the converter reports none.
        if converted == Err(ConversionError::Invalid) && self.diagnostics.problems.is_empty() {
            self.diagnostics.problem(&path, "its converter rejected it without a reason");
        }
        let converted = converted?;
        // A converter may return another policy than the one it required.
        self.require(&converted.policy)?;
        Ok(converted)
    }
}

impl fmt::Debug for ConversionContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Conversion(at {})", self.path)
    }
}
