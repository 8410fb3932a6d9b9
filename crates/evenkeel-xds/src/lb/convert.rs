//! Built-in converters, one per message. They write settings in camel case, and only fields that are set, so
//! that the policy's defaults apply to the others.

use evenkeel_proto::envoy::config::cluster::v3::LoadBalancingPolicy;
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
use evenkeel_proto::prost_types::{Duration, Struct, Value as ProtoValue};
use evenkeel_proto::udpa::r#type::v1::TypedStruct as UdpaTypedStruct;
use evenkeel_proto::xds::r#type::v3::TypedStruct;
use serde_json::{Map, Value, json};

use crate::lb::{ConversionContext, ConversionError, ConvertedPolicy, EdsWeights, LbPolicyConverters};
use crate::resource::message_name;

/// Ring sizes for fields that the control plane does not set (A42). The policy's own default maximum is
/// smaller.
const RING_SIZES: (u64, u64) = (1024, 8 << 20);

/// Largest integer up to which every integer is exact in a JSON number (2^53).
const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_992.0;

/// Maximum protobuf duration in seconds (10,000 years).
const MAX_SECONDS: u64 = 315_576_000_000;

type JsonSettings = Map<String, Value>;

pub(super) fn register_all(converters: &mut LbPolicyConverters) {
    register(converters, "ring_hash_experimental", |message: RingHash, cx| {
        match HashFunction::try_from(message.hash_function) {
            // RH-2: some control planes do not set the hash function.
            Ok(HashFunction::DefaultHash | HashFunction::XxHash) => {}
            other => {
                let found = other.map_or(message.hash_function.to_string(), |f| f.as_str_name().to_owned());
                return Err(cx.invalid("hash_function", format!("expected XX_HASH, found {found}")));
            }
        }
        let ignored = [
            ("use_hostname_for_hashing", message.use_hostname_for_hashing),
            ("hash_balance_factor", message.hash_balance_factor.is_some()),
            ("consistent_hashing_lb_config", message.consistent_hashing_lb_config.is_some()),
        ];
        warn_ignored(ignored, cx);
        Ok(ring_hash(message.minimum_ring_size, message.maximum_ring_size))
    });
    register(converters, "least_request_experimental", |message: LeastRequest, cx| {
        let ignored = [
            ("active_request_bias", message.active_request_bias.is_some()),
            ("slow_start_config", message.slow_start_config.is_some()),
            ("locality_lb_config", message.locality_lb_config.is_some()),
            ("enable_full_scan", message.enable_full_scan.is_some()),
            ("selection_method", message.selection_method != 0),
        ];
        warn_ignored(ignored, cx);
        Ok(least_request(message.choice_count))
    });
    register(converters, "pick_first", |message: PickFirst, _| {
        Ok(json!({"shuffleAddressList": message.shuffle_address_list}))
    });
    register(converters, "weighted_round_robin", weighted_round_robin);
    register(converters, "xds_wrr_locality_experimental", |message: WrrLocality, cx| {
        let list = message.endpoint_picking_policy.as_ref();
        Ok(json!({"childPolicy": cx.child("endpoint_picking_policy", list)?}))
    });
    register(converters, "random_subsetting_experimental", |message: RandomSubsetting, cx| {
        let mut settings = JsonSettings::new();
        put(&mut settings, "subsetSize", message.subset_size);
        let list: Option<&LoadBalancingPolicy> = message.child_policy.as_ref();
        put(&mut settings, "childPolicy", Some(cx.child("child_policy", list)?));
        Ok(Value::Object(settings))
    });
    converters.register(&RoundRobin::full_name(), |bytes, cx| {
        let policy = match cx.converters.eds_weights {
            EdsWeights::EnumAndMessage => "edf_weighted_round_robin",
            EdsWeights::Unused | EdsWeights::Enum => "round_robin",
        };
        cx.require(policy)?;
        let message: RoundRobin = cx.decode(bytes)?;
        let ignored = [
            ("slow_start_config", message.slow_start_config.is_some()),
            ("locality_lb_config", message.locality_lb_config.is_some()),
        ];
        warn_ignored(ignored, cx);
        Ok(ConvertedPolicy { policy: policy.to_owned(), settings: json!({}) })
    });
    converters.register(&TypedStruct::full_name(), |bytes, cx| {
        let TypedStruct { type_url, value } = cx.decode(bytes)?;
        typed_struct(&type_url, value, cx)
    });
    converters.register(&UdpaTypedStruct::full_name(), |bytes, cx| {
        let UdpaTypedStruct { type_url, value } = cx.decode(bytes)?;
        typed_struct(&type_url, value, cx)
    });
}

/// Registers a converter for a message that corresponds to one policy.
fn register<M: Name + Default + 'static>(
    converters: &mut LbPolicyConverters,
    policy: &'static str,
    settings: impl Fn(M, &mut ConversionContext<'_>) -> Result<Value, ConversionError> + Send + Sync + 'static,
) {
    converters.register(&M::full_name(), move |bytes, cx| {
        cx.require(policy)?;
        let message = cx.decode(bytes)?;
        Ok(ConvertedPolicy { policy: policy.to_owned(), settings: settings(message, cx)? })
    });
}

/// Returns the settings of `ring_hash_experimental`. Both sizes are always written (A42).
pub(super) fn ring_hash(minimum: Option<u64>, maximum: Option<u64>) -> Value {
    let (min, max) = RING_SIZES;
    json!({"minRingSize": minimum.unwrap_or(min), "maxRingSize": maximum.unwrap_or(max)})
}

/// Returns the settings of `least_request_experimental`.
pub(super) fn least_request(choice_count: Option<u32>) -> Value {
    let mut settings = JsonSettings::new();
    put(&mut settings, "choiceCount", choice_count);
    Value::Object(settings)
}

/// Returns the settings of `weighted_round_robin` (A58). Fields that are set to zero or false are written,
/// because they differ from unset fields.
fn weighted_round_robin(
    message: ClientSideWeightedRoundRobin,
    cx: &mut ConversionContext<'_>,
) -> Result<Value, ConversionError> {
    let mut settings = JsonSettings::new();
    put(&mut settings, "enableOobLoadReport", message.enable_oob_load_report);
    // The error is returned at the end, so that all invalid fields are reported (VAL-X1).
    let mut invalid = None;
    for (field, name, value) in [
        ("oob_reporting_period", "oobReportingPeriod", message.oob_reporting_period),
        ("blackout_period", "blackoutPeriod", message.blackout_period),
        ("weight_expiration_period", "weightExpirationPeriod", message.weight_expiration_period),
        ("weight_update_period", "weightUpdatePeriod", message.weight_update_period),
    ] {
        match value.as_ref().map(duration) {
            None => {}
            Some(Ok(text)) => {
                // The core rejects negative values of the other two fields.
                if matches!(field, "blackout_period" | "weight_update_period") && text.starts_with('-') {
                    cx.warn(field, "is negative: treated as 0");
                }
                put(&mut settings, name, Some(text));
            }
            Some(Err(problem)) => invalid = Some(cx.invalid(field, problem)),
        }
    }
    match message.error_utilization_penalty {
        Some(penalty) if !penalty.is_finite() => {
            let text = format!("expected a finite number, found {penalty}");
            invalid = Some(cx.invalid("error_utilization_penalty", text));
        }
        penalty => put(&mut settings, "errorUtilizationPenalty", penalty.map(f64::from)),
    }
    if !message.metric_names_for_computing_utilization.is_empty() {
        let names = message.metric_names_for_computing_utilization;
        put(&mut settings, "metricNamesForComputingUtilization", Some(names));
    }
    let ignored = [
        ("slow_start_config", message.slow_start_config.is_some()),
        ("oob_reporting_config", message.oob_reporting_config.is_some()),
    ];
    warn_ignored(ignored, cx);
    invalid.map_or(Ok(Value::Object(settings)), Err)
}

/// Converts a custom policy: the type is its name, and the settings are passed on unchanged.
fn typed_struct(
    type_url: &str,
    value: Option<Struct>,
    cx: &mut ConversionContext<'_>,
) -> Result<ConvertedPolicy, ConversionError> {
    let policy = message_name(type_url).to_owned();
    cx.require(&policy)?;
    match object(value.unwrap_or_default()) {
        Ok(settings) => Ok(ConvertedPolicy { policy, settings }),
        Err(number) => {
            Err(cx.invalid("value", format!("expected numbers that JSON can write, found {number}")))
        }
    }
}

/// Converts a struct to JSON. The protobuf decoder limits its depth to 100 messages. The error is a number
/// that JSON cannot represent.
fn object(fields: Struct) -> Result<Value, f64> {
    let fields = fields.fields.into_iter();
    let fields = fields.map(|(name, value)| json_value(value).map(|value| (name, value)));
    fields.collect::<Result<_, _>>().map(Value::Object)
}

fn json_value(value: ProtoValue) -> Result<Value, f64> {
    Ok(match value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        // Protobuf has only floats here. An integer stays an integer, as policies expect it.
        Some(Kind::NumberValue(n)) if n.fract() == 0.0 && n.abs() <= MAX_EXACT_INTEGER => {
            Value::from(n as i64)
        }
        Some(Kind::NumberValue(n)) => Value::Number(serde_json::Number::from_f64(n).ok_or(n)?),
        Some(Kind::StringValue(text)) => Value::String(text),
        Some(Kind::BoolValue(yes)) => Value::Bool(yes),
        Some(Kind::StructValue(fields)) => object(fields)?,
        Some(Kind::ListValue(list)) => {
            Value::Array(list.values.into_iter().map(json_value).collect::<Result<_, _>>()?)
        }
    })
}

/// Formats a duration as proto3 JSON. The policy decides about negative values.
fn duration(value: &Duration) -> Result<String, String> {
    let (seconds, nanos) = (value.seconds.unsigned_abs(), value.nanos.unsigned_abs());
    let signs = value.seconds.signum().saturating_mul(i64::from(value.nanos.signum()));
    if seconds > MAX_SECONDS || nanos > 999_999_999 || signs < 0 {
        return Err(format!(
            "expected at most {MAX_SECONDS} seconds and 999999999 nanos of the same sign, found {} and {}",
            value.seconds, value.nanos
        ));
    }
    let sign = if value.seconds < 0 || value.nanos < 0 { "-" } else { "" };
    Ok(match nanos {
        0 => format!("{sign}{seconds}s"),
        nanos => format!("{sign}{seconds}.{nanos:09}s"),
    })
}

fn put(settings: &mut JsonSettings, name: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        settings.insert(name.to_owned(), value.into());
    }
}

fn warn_ignored<const N: usize>(fields: [(&str, bool); N], cx: &mut ConversionContext<'_>) {
    for (field, _) in fields.into_iter().filter(|(_, set)| *set) {
        cx.warn(field, "is ignored");
    }
}
