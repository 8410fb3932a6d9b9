//! Conversion of the control plane's policies to policies of the core (A52).

use evenkeel_core::policy::RoundRobin as CorePolicy;
use evenkeel_core::{ConfigError, Registry};
use evenkeel_proto::envoy::config::cluster::v3::LoadBalancingPolicy;
use evenkeel_proto::envoy::config::cluster::v3::load_balancing_policy::Policy;
use evenkeel_proto::envoy::config::core::v3::{RuntimeDouble, TypedExtensionConfig};
use evenkeel_proto::envoy::extensions::load_balancing_policies::client_side_weighted_round_robin::v3::ClientSideWeightedRoundRobin;
use evenkeel_proto::envoy::extensions::load_balancing_policies::common::v3::{
    ConsistentHashingLbConfig, LocalityLbConfig, OrcaOobReportingConfig, SlowStartConfig,
};
use evenkeel_proto::envoy::extensions::load_balancing_policies::least_request::v3::LeastRequest;
use evenkeel_proto::envoy::extensions::load_balancing_policies::least_request::v3::least_request::SelectionMethod;
use evenkeel_proto::envoy::extensions::load_balancing_policies::pick_first::v3::PickFirst;
use evenkeel_proto::envoy::extensions::load_balancing_policies::random_subsetting::v3::RandomSubsetting;
use evenkeel_proto::envoy::extensions::load_balancing_policies::ring_hash::v3::RingHash;
use evenkeel_proto::envoy::extensions::load_balancing_policies::ring_hash::v3::ring_hash::HashFunction;
use evenkeel_proto::envoy::extensions::load_balancing_policies::round_robin::v3::RoundRobin;
use evenkeel_proto::envoy::extensions::load_balancing_policies::wrr_locality::v3::WrrLocality;
use evenkeel_proto::prost::Message as _;
use evenkeel_proto::prost_types::value::Kind;
use evenkeel_proto::prost_types::{Any, Duration, ListValue, Struct, Value as ProtoValue};
use evenkeel_proto::udpa::r#type::v1::TypedStruct as UdpaTypedStruct;
use evenkeel_proto::xds::r#type::v3::TypedStruct;
use evenkeel_xds::lb::{ConversionError, ConvertedPolicy, EdsWeights, LbPolicyConverters};
use serde_json::{Value, json};
use testkit::resources::any;

pub(crate) fn list(entries: impl IntoIterator<Item = Any>) -> LoadBalancingPolicy {
    let entry = |any| Policy {
        typed_extension_config: Some(TypedExtensionConfig { name: "e".to_owned(), typed_config: Some(any) }),
    };
    LoadBalancingPolicy { policies: entries.into_iter().map(entry).collect() }
}

fn wrr_locality(entries: impl IntoIterator<Item = Any>) -> Any {
    any(&WrrLocality { endpoint_picking_policy: Some(list(entries)) })
}

pub(crate) fn round_robin() -> Any {
    any(&RoundRobin::default())
}

pub(crate) fn custom(name: &str, settings: &[(&str, ProtoValue)]) -> Any {
    let fields = settings.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let type_url = format!("type.googleapis.com/{name}");
    any(&TypedStruct { type_url, value: Some(Struct { fields }) })
}

fn unknown(name: &str) -> Any {
    Any { type_url: format!("type.googleapis.com/{name}"), value: vec![0xff; 3] }
}

fn registry() -> Registry {
    let mut registry = Registry::standard();
    registry.register::<CorePolicy>("myorg.Custom");
    registry
}

/// Returns the policy that the core parses from the config.
fn parsed(config: &Value, registry: &Registry) -> Result<String, ConfigError> {
    registry.parse(config).map(|config| config.policy().to_owned())
}

fn convert(policies: &LoadBalancingPolicy) -> Result<(Value, Vec<String>), String> {
    LbPolicyConverters::standard().convert(policies, &registry()).map_err(|problems| problems.to_string())
}

fn check(entries: impl IntoIterator<Item = Any>, expected: &Value) {
    let (config, warnings) = convert(&list(entries)).expect("it converts");
    assert_eq!((&config, warnings), (expected, vec![]));
    parsed(&config, &registry()).expect("the core parses it");
}

fn check_warnings(entry: &Any, expected: &[&str]) {
    let (_, warnings) = convert(&list([entry.clone()])).expect("it converts");
    let text = |field: &&str| format!("policies[0].typed_extension_config.typed_config.{field}: is ignored");
    assert_eq!(warnings, expected.iter().map(text).collect::<Vec<_>>());
}

fn refused(entries: impl IntoIterator<Item = Any>) -> String {
    convert(&list(entries)).expect_err("it does not convert")
}

/// REG-1: the first supported entry is used. Unsupported entries before it and all entries after it are not
/// validated.
#[test]
fn the_first_supported_entry_counts() {
    let rr = json!([{"round_robin": {}}]);
    check([round_robin(), any(&PickFirst::default())], &rr);
    check([unknown("a.Maglev"), unknown("b.Random"), round_robin()], &rr);
    check([custom("myorg.Other", &[]), round_robin()], &rr);
    check([custom("myorg.Custom", &[]), round_robin()], &json!([{"myorg.Custom": {}}]));
    // Later entries are not validated.
    check([round_robin(), wrr_locality([])], &rr);
}

/// REG-1: an entry without a config is skipped with a warning.
#[test]
fn an_entry_without_a_config_is_passed_over() {
    let mut policies = list([round_robin()]);
    policies.policies.insert(0, Policy::default());
    policies.policies.insert(
        1,
        Policy {
            typed_extension_config: Some(TypedExtensionConfig {
                name: "bare".to_owned(),
                typed_config: None,
            }),
        },
    );
    let (config, warnings) = convert(&policies).unwrap();
    assert_eq!(config, json!([{"round_robin": {}}]));
    let told =
        |i| format!("policies[{i}].typed_extension_config: has no typed_config, so the entry is skipped");
    assert_eq!(warnings, [told(0), told(1)]);
    policies.policies.pop();
    assert_eq!(convert(&policies).unwrap_err(), r#"no policy of the list is supported: "", "bare""#);
}

/// REG-2: a supported but invalid entry is an error, not skipped.
#[test]
fn a_supported_entry_must_be_valid() {
    let murmur = any(&RingHash { hash_function: HashFunction::MurmurHash2.into(), ..RingHash::default() });
    let at = "policies[0].typed_extension_config.typed_config";
    assert_eq!(
        refused([murmur, round_robin()]),
        format!("{at}.hash_function: expected XX_HASH, found MURMUR_HASH_2")
    );
    assert_eq!(
        refused([any(&WrrLocality::default()), round_robin()]),
        format!("{at}.endpoint_picking_policy: must be set: a list of policies")
    );
    assert_eq!(
        refused([wrr_locality([unknown("a.Maglev")]), round_robin()]),
        format!(r#"{at}.endpoint_picking_policy: no policy of the list is supported: "a.Maglev""#)
    );
    let garbage = Any { value: vec![0xff; 3], ..round_robin() };
    assert!(
        refused([garbage, any(&PickFirst::default())]).starts_with(&format!("{at}: cannot be decoded: "))
    );
    let infinite = custom("myorg.Custom", &[("a", ProtoValue::from(f64::INFINITY))]);
    assert_eq!(
        refused([infinite, round_robin()]),
        format!("{at}.value: expected numbers that JSON can write, found inf")
    );
}

/// REG-3, fault 35: without a supported entry, the error names the policies of the list.
#[test]
fn nothing_supported() {
    assert_eq!(refused([]), "the list of policies is empty");
    assert_eq!(
        refused([unknown("a.Maglev"), custom("my\norg.Other", &[]), unknown("")]),
        r#"no policy of the list is supported: "a.Maglev", "my\norg.Other", """#
    );
    let many = refused((0..1000).map(|i| unknown(&format!("{i}{}", "x".repeat(1000)))));
    assert!(many.len() < 3000 && many.ends_with(" and 984 more"), "{many}");
}

/// REG-1, fault 35: a policy that is not registered is skipped without validation, even with a converter for its
/// message. Without weighted_round_robin, the next entry is used.
#[test]
fn unregistered_policies_are_not_supported() {
    let entries = [wrr_locality([any(&ClientSideWeightedRoundRobin::default()), round_robin()])];
    let mut registry = registry();
    let config = |registry: &Registry| {
        LbPolicyConverters::standard().convert(&list(entries.clone()), registry).unwrap().0
    };
    let tree = |child: &str| json!([{"xds_wrr_locality_experimental": {"childPolicy": [{child: {}}]}}]);
    assert_eq!(config(&registry), tree("weighted_round_robin"));
    registry.remove("weighted_round_robin");
    assert_eq!(config(&registry), tree("round_robin"));

    for (policy, wrong) in [
        ("ring_hash_experimental", any(&RingHash { hash_function: 2, ..RingHash::default() })),
        ("xds_wrr_locality_experimental", any(&WrrLocality::default())),
        ("random_subsetting_experimental", any(&RandomSubsetting::default())),
    ] {
        registry.remove(policy);
        let (config, _) =
            LbPolicyConverters::standard().convert(&list([wrong, round_robin()]), &registry).unwrap();
        assert_eq!(config, json!([{"round_robin": {}}]), "{policy}");
    }
}

fn nested(lists: usize) -> LoadBalancingPolicy {
    (1..lists).fold(list([round_robin()]), |inner, _| {
        list([any(&WrrLocality { endpoint_picking_policy: Some(inner) })])
    })
}

/// REG-4, fault 35: sixteen nested lists convert, seventeen do not.
#[test]
fn at_most_sixteen_lists_nest() {
    let registry = registry();
    let (config, _) = convert(&nested(16)).unwrap();
    assert_eq!(config.to_string().matches("childPolicy").count(), 15);
    assert_eq!(parsed(&config, &registry).unwrap(), "xds_wrr_locality_experimental");
    for lists in [17, 40] {
        let problem = convert(&nested(lists)).unwrap_err();
        let path = "policies[0].typed_extension_config.typed_config.endpoint_picking_policy";
        assert_eq!(
            problem,
            format!("{}: lists of policies are nested more than 16 deep", vec![path; 16].join("."))
        );
    }
}

/// REG-5: a `TypedStruct` is a custom policy whose settings are passed on unchanged.
#[test]
fn a_struct_is_a_custom_policy() {
    let value = |kind| ProtoValue { kind: Some(kind) };
    let inner = Struct { fields: [("deep".to_owned(), ProtoValue::from(true))].into() };
    let values = vec![ProtoValue::from(1.0), ProtoValue::from("x"), ProtoValue { kind: None }];
    let settings = [
        ("choiceCount", ProtoValue::from(2.0)),
        ("minus", ProtoValue::from(-3.0)),
        ("zero", ProtoValue::from(-0.0)),
        ("half", ProtoValue::from(0.5)),
        ("large", ProtoValue::from(1e300)),
        ("text", ProtoValue::from("2")),
        ("nothing", value(Kind::NullValue(0))),
        ("list", value(Kind::ListValue(ListValue { values }))),
        ("object", value(Kind::StructValue(inner))),
    ];
    let expected = json!([{"myorg.Custom": {
        "choiceCount": 2, "minus": -3, "zero": 0, "half": 0.5, "large": 1e300, "text": "2", "nothing": null,
        "list": [1, "x", null], "object": {"deep": true},
    }}]);
    check([custom("myorg.Custom", &settings)], &expected);
    let fields = settings.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let older =
        UdpaTypedStruct { type_url: "some.host/a/b/myorg.Custom".to_owned(), value: Some(Struct { fields }) };
    check([any(&older)], &expected);
    let bare = UdpaTypedStruct { type_url: "myorg.Custom".to_owned(), value: None };
    check([any(&bare), round_robin()], &json!([{"myorg.Custom": {}}]));
    // A built-in policy may be configured by a `TypedStruct` too.
    check([custom("round_robin", &[])], &json!([{"round_robin": {}}]));
}

/// REG-1, REG-5: only the part after the last slash of a type URL counts.
#[test]
fn type_urls_match_after_the_last_slash() {
    for prefix in ["", "/", "type.googleapis.com/", "a/b/"] {
        let name = "envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin";
        let entry = Any { type_url: format!("{prefix}{name}"), value: Vec::new() };
        check([entry], &json!([{"round_robin": {}}]));
    }
}

/// REG-9, REG-5: programs add and remove policies and converters.
#[test]
fn users_add_converters() {
    let mut converters = LbPolicyConverters::standard();
    let mut registry = Registry::standard();
    registry.register::<CorePolicy>("myorg.Nearest");
    converters.register("type.googleapis.com/myorg.NearestConfig", |bytes, conversion| {
        conversion.require("myorg.Nearest")?;
        let message: WrrLocality = conversion.decode(bytes)?;
        let child = conversion.child("endpoint_picking_policy", message.endpoint_picking_policy.as_ref())?;
        conversion.warn("zone", "is a guess");
        Ok(ConvertedPolicy { policy: "myorg.Nearest".to_owned(), settings: json!({"childPolicy": child}) })
    });
    let mut entry = wrr_locality([round_robin()]);
    entry.type_url = "type.googleapis.com/myorg.NearestConfig".to_owned();
    let (config, warnings) = converters.convert(&list([entry.clone()]), &registry).unwrap();
    assert_eq!(config, json!([{"myorg.Nearest": {"childPolicy": [{"round_robin": {}}]}}]));
    assert_eq!(warnings, ["policies[0].typed_extension_config.typed_config.zone: is a guess"]);
    assert_eq!(parsed(&config, &registry).unwrap(), "myorg.Nearest");

    let both = list([entry, round_robin()]);
    registry.remove("myorg.Nearest");
    assert_eq!(converters.convert(&both, &registry).unwrap().0, json!([{"round_robin": {}}]));
    let both = list([round_robin(), any(&PickFirst::default())]);
    converters.remove("envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin");
    assert_eq!(
        converters.convert(&both, &registry).unwrap().0,
        json!([{"pick_first": {"shuffleAddressList": false}}])
    );
    assert!(LbPolicyConverters::empty().convert(&both, &registry).is_err());
    assert_eq!(LbPolicyConverters::empty().messages().count(), 0);
}

/// REG-2, VAL-X1: a converter may report several errors. A reported error rejects the entry, whatever the converter
/// returns.
#[test]
fn a_converter_reports_all_errors() {
    let mut converters = LbPolicyConverters::empty();
    converters.register("myorg.Two", |_, conversion| {
        let _ = conversion.invalid("a", "is bad");
        Err(conversion.invalid("b", "is worse"))
    });
    converters.register("myorg.Sloppy", |_, conversion| {
        let _ = conversion.invalid("a", "is bad");
        Ok(ConvertedPolicy { policy: "round_robin".to_owned(), settings: json!({}) })
    });
    converters.register("myorg.Absent", |_, _| Err(ConversionError::Unsupported("myorg.Late".to_owned())));
    converters.register("myorg.Careless", |_, _| {
        Ok(ConvertedPolicy { policy: "myorg.Missing".to_owned(), settings: json!({}) })
    });
    converters.register("myorg.Silent", |_, _| Err(ConversionError::Invalid));
    let told = |name: &str| converters.convert(&list([unknown(name)]), &registry()).unwrap_err().to_string();
    let at = "policies[0].typed_extension_config.typed_config";
    assert_eq!(told("myorg.Silent"), format!("{at}: its converter rejected it without a reason"));
    assert_eq!(told("myorg.Two"), format!("{at}.a: is bad; {at}.b: is worse"));
    assert_eq!(told("myorg.Sloppy"), format!("{at}.a: is bad"));
    assert_eq!(told("myorg.Absent"), r#"no policy of the list is supported: "myorg.Late""#);
    assert_eq!(told("myorg.Careless"), r#"no policy of the list is supported: "myorg.Missing""#);
}

/// RH-2, REG-10: the hash function must be XX_HASH or unset, and both ring sizes are always written.
#[test]
fn ring_hash() {
    let ring_hash = |function, min, max| {
        any(&RingHash {
            hash_function: function,
            minimum_ring_size: min,
            maximum_ring_size: max,
            ..RingHash::default()
        })
    };
    for (function, min, max, expected) in [
        (0, None, None, (1024, 8_388_608)),
        (1, None, None, (1024, 8_388_608)),
        (1, Some(7), None, (7, 8_388_608)),
        (0, None, Some(2048), (1024, 2048)),
        (1, Some(1), Some(1), (1, 1)),
    ] {
        let expected =
            json!([{"ring_hash_experimental": {"minRingSize": expected.0, "maxRingSize": expected.1}}]);
        check([ring_hash(function, min, max)], &expected);
    }
    assert!(
        refused([ring_hash(2, None, None)]).ends_with("hash_function: expected XX_HASH, found MURMUR_HASH_2")
    );
    assert!(refused([ring_hash(3, None, None)]).ends_with("hash_function: expected XX_HASH, found 3"));
    let all = RingHash {
        use_hostname_for_hashing: true,
        hash_balance_factor: Some(120),
        consistent_hashing_lb_config: Some(ConsistentHashingLbConfig::default()),
        ..RingHash::default()
    };
    check_warnings(
        &any(&all),
        &["use_hostname_for_hashing", "hash_balance_factor", "consistent_hashing_lb_config"],
    );
}

/// LR-2: only the choice count is converted.
#[test]
fn least_request() {
    check([any(&LeastRequest::default())], &json!([{"least_request_experimental": {}}]));
    let entry = LeastRequest { choice_count: Some(5), ..LeastRequest::default() };
    check([any(&entry)], &json!([{"least_request_experimental": {"choiceCount": 5}}]));
    let all = LeastRequest {
        active_request_bias: Some(RuntimeDouble::default()),
        slow_start_config: Some(SlowStartConfig::default()),
        locality_lb_config: Some(LocalityLbConfig::default()),
        enable_full_scan: Some(false),
        selection_method: SelectionMethod::FullScan.into(),
        ..LeastRequest::default()
    };
    check_warnings(
        &any(&all),
        &[
            "active_request_bias",
            "slow_start_config",
            "locality_lb_config",
            "enable_full_scan",
            "selection_method",
        ],
    );
}

/// PF-1: `shuffle_address_list` is converted.
#[test]
fn pick_first() {
    for shuffle_address_list in [false, true] {
        let expected = json!([{"pick_first": {"shuffleAddressList": shuffle_address_list}}]);
        check([any(&PickFirst { shuffle_address_list })], &expected);
    }
}

/// REG-1: the message `RoundRobin` means round_robin, unless EDS weights are enabled for messages.
#[test]
fn round_robin_message() {
    let policy = |eds_weights| {
        let converters = LbPolicyConverters::standard().with_eds_weights(eds_weights);
        converters.convert(&list([round_robin()]), &registry()).unwrap().0
    };
    assert_eq!(policy(EdsWeights::Unused), json!([{"round_robin": {}}]));
    assert_eq!(policy(EdsWeights::Enum), json!([{"round_robin": {}}]));
    assert_eq!(policy(EdsWeights::EnumAndMessage), json!([{"edf_weighted_round_robin": {}}]));
    let all = RoundRobin {
        slow_start_config: Some(SlowStartConfig::default()),
        locality_lb_config: Some(LocalityLbConfig::default()),
    };
    check_warnings(&any(&all), &["slow_start_config", "locality_lb_config"]);
}

/// RS-8: the child policy is converted too.
#[test]
fn random_subsetting() {
    let entry =
        RandomSubsetting { subset_size: Some(7), child_policy: Some(list([unknown("a.B"), round_robin()])) };
    let expected =
        json!([{"random_subsetting_experimental": {"subsetSize": 7, "childPolicy": [{"round_robin": {}}]}}]);
    check([any(&entry)], &expected);
    let at = "policies[0].typed_extension_config.typed_config";
    let bare = RandomSubsetting { subset_size: Some(7), child_policy: None };
    assert_eq!(refused([any(&bare)]), format!("{at}.child_policy: must be set: a list of policies"));
    // Errors of the core's parser are not detected by the converter.
    for subset_size in [None, Some(0)] {
        let entry = RandomSubsetting { subset_size, ..entry.clone() };
        let (config, _) = convert(&list([any(&entry)])).unwrap();
        let problem = parsed(&config, &registry()).unwrap_err();
        assert_eq!(problem.path(), "loadBalancingConfig[0].random_subsetting_experimental.subsetSize");
    }
}

/// WRR-19: set fields are passed on, zero and false included, and unset fields are not.
#[test]
fn weighted_round_robin() {
    let duration = |seconds, nanos| Some(Duration { seconds, nanos });
    let wrr = |settings: Value| json!([{"weighted_round_robin": settings}]);
    check([any(&ClientSideWeightedRoundRobin::default())], &wrr(json!({})));
    let zeros = ClientSideWeightedRoundRobin {
        enable_oob_load_report: Some(false),
        oob_reporting_period: duration(0, 0),
        blackout_period: duration(0, 0),
        weight_expiration_period: duration(0, 0),
        weight_update_period: duration(0, 0),
        error_utilization_penalty: Some(0.0),
        ..ClientSideWeightedRoundRobin::default()
    };
    let expected = json!({
        "enableOobLoadReport": false, "oobReportingPeriod": "0s", "blackoutPeriod": "0s",
        "weightExpirationPeriod": "0s", "weightUpdatePeriod": "0s", "errorUtilizationPenalty": 0.0,
    });
    check([any(&zeros)], &wrr(expected));
    let full = ClientSideWeightedRoundRobin {
        enable_oob_load_report: Some(true),
        oob_reporting_period: duration(1, 500_000_000),
        blackout_period: duration(-1, -1),
        weight_expiration_period: duration(315_576_000_000, 999_999_999),
        weight_update_period: duration(0, 1),
        error_utilization_penalty: Some(1.5),
        metric_names_for_computing_utilization: vec![
            "mem_utilization".to_owned(),
            "named_metrics.q".to_owned(),
        ],
        ..ClientSideWeightedRoundRobin::default()
    };
    let expected = json!({
        "enableOobLoadReport": true, "oobReportingPeriod": "1.500000000s", "blackoutPeriod": "-1.000000001s",
        "weightExpirationPeriod": "315576000000.999999999s", "weightUpdatePeriod": "0.000000001s",
        "errorUtilizationPenalty": 1.5,
        "metricNamesForComputingUtilization": ["mem_utilization", "named_metrics.q"],
    });
    let (config, warnings) = convert(&list([any(&full)])).expect("it converts");
    assert_eq!(config, wrr(expected));
    let negative =
        "policies[0].typed_extension_config.typed_config.blackout_period: is negative: treated as 0";
    assert_eq!(warnings, [negative]);
    parsed(&config, &registry()).expect("the core parses it");
    let negative = ClientSideWeightedRoundRobin {
        blackout_period: duration(0, -1),
        weight_update_period: duration(-3, 0),
        ..ClientSideWeightedRoundRobin::default()
    };
    let (_, warnings) = convert(&list([any(&negative)])).expect("it converts");
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    let ignored = ClientSideWeightedRoundRobin {
        slow_start_config: Some(SlowStartConfig::default()),
        oob_reporting_config: Some(OrcaOobReportingConfig::default()),
        ..ClientSideWeightedRoundRobin::default()
    };
    check_warnings(&any(&ignored), &["slow_start_config", "oob_reporting_config"]);
    let wrong = ClientSideWeightedRoundRobin {
        blackout_period: duration(1, -1),
        weight_update_period: duration(315_576_000_001, 0),
        weight_expiration_period: duration(0, 1_000_000_000),
        oob_reporting_period: duration(i64::MIN, i32::MIN),
        error_utilization_penalty: Some(f32::NAN),
        ..ClientSideWeightedRoundRobin::default()
    };
    let problems = refused([any(&wrong)]);
    let limits = "expected at most 315576000000 seconds and 999999999 nanos of the same sign, found";
    let at = "policies[0].typed_extension_config.typed_config";
    let expected = [
        format!("{at}.oob_reporting_period: {limits} -9223372036854775808 and -2147483648"),
        format!("{at}.blackout_period: {limits} 1 and -1"),
        format!("{at}.weight_expiration_period: {limits} 0 and 1000000000"),
        format!("{at}.weight_update_period: {limits} 315576000001 and 0"),
        format!("{at}.error_utilization_penalty: expected a finite number, found NaN"),
    ];
    assert_eq!(problems, expected.join("; "));
}

/// fault 39: nesting beyond the recursion limit is rejected.
#[test]
fn deep_nesting_is_refused() {
    // Lists in lists, from the innermost: a `Value` whose field 6 is a `ListValue` whose field 1 is a `Value`.
    let wrap = |tag: u8, inner: &[u8]| {
        let mut out = vec![tag];
        evenkeel_proto::prost::encoding::encode_varint(inner.len() as u64, &mut out);
        out.extend_from_slice(inner);
        out
    };
    let deep = |levels: usize| {
        let value = (0..levels).fold(Vec::new(), |inner, _| wrap(0x32, &wrap(0x0a, &inner)));
        let entry = [wrap(0x0a, b"a"), wrap(0x12, &value)].concat();
        let fields = wrap(0x0a, &entry);
        let mut typed = TypedStruct { type_url: "t/myorg.Custom".to_owned(), value: None }.encode_to_vec();
        typed.extend(wrap(0x12, &fields));
        Any { value: typed, ..any(&TypedStruct::default()) }
    };
    let (config, _) = convert(&list([deep(20)])).unwrap();
    assert_eq!(
        config.to_string(),
        format!(r#"[{{"myorg.Custom":{{"a":{}null{}}}}}]"#, "[".repeat(20), "]".repeat(20))
    );
    for levels in [100, 10_000] {
        let problem = refused([deep(levels), round_robin()]);
        assert!(problem.contains("cannot be decoded") && problem.contains("recursion"), "{problem}");
    }
}
