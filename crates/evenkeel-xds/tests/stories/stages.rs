//! The example of the custom policies' proposal (A52), from the cluster resource to the config of the localities.
//! Each of its four stages is compared as a whole.
//!
//! The proposal prints field names in snake case, with its own names for the priority and the localities. This
//! implementation writes camel case, with names by its own rules. [`printed`] converts only these.

use evenkeel_core::Registry;
use evenkeel_core::cluster::{Cluster, LbConfigStages, stages};
use evenkeel_core::policy::LeastRequest;
use evenkeel_proto::envoy::config::cluster::v3::load_balancing_policy::Policy;
use evenkeel_proto::envoy::config::cluster::v3::{Cluster as ClusterMessage, LoadBalancingPolicy};
use evenkeel_proto::envoy::config::core::v3::TypedExtensionConfig;
use evenkeel_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
use evenkeel_proto::envoy::extensions::load_balancing_policies::round_robin::v3::RoundRobin as RoundRobinMessage;
use evenkeel_proto::envoy::extensions::load_balancing_policies::wrr_locality::v3::WrrLocality;
use evenkeel_proto::prost_types::{Any, Struct, Value as ProtoValue, value::Kind};
use evenkeel_proto::xds::r#type::v3::TypedStruct;
use evenkeel_xds::bootstrap::ServerConfig;
use evenkeel_xds::resource::{ClusterKind, Resource, ResourceParser, ResourceType};
use serde_json::{Value, json};
use testkit::resources::{any, cluster, locality};

const CUSTOM: &str = "myorg.MyCustomLeastRequestPolicy";

/// Returns the four stages of the proposal as valid JSON. Omissions (`…`) and missing brackets around a child policy
/// are filled in.
fn printed(picked: &Value) -> [Value; 4] {
    let wrr_locality = json!([{ "xds_wrr_locality_experimental": { "child_policy": [picked] } }]);
    let target = |weight: u32| json!({ "weight": weight, "child_policy": [picked] });
    let one = wrr_locality.clone();
    let two = json!({
        "discovery_mechanisms": [{ "cluster": "ClusterName", "type": "EDS" }],
        "xds_lb_policy": wrr_locality,
    });
    let three = json!({
        "children": {
            "priority-1": {
                "config": [{
                    "xds_cluster_impl_experimental": { "cluster": "ClusterName", "child_policy": wrr_locality },
                }],
                "ignore_reresolution_requests": false,
            },
        },
        "priorities": ["priority-1"],
    });
    let four = json!({ "targets": { "Locality A": target(1), "Locality B": target(2) } });
    [one, two, three, four].map(|stage| in_our_words(&stage))
}

/// Converts field names to camel case, and names of priority and localities to ours.
fn in_our_words(value: &Value) -> Value {
    let word = |text: &str| match text {
        "child_policy" => "childPolicy".to_owned(),
        "discovery_mechanisms" => "discoveryMechanisms".to_owned(),
        "xds_lb_policy" => "xdsLbPolicy".to_owned(),
        "ignore_reresolution_requests" => "ignoreReresolutionRequests".to_owned(),
        "priority-1" => "ClusterName/priority-0".to_owned(),
        "Locality A" => r#"{region="", zone="A", sub_zone=""}"#.to_owned(),
        "Locality B" => r#"{region="", zone="B", sub_zone=""}"#.to_owned(),
        other => other.to_owned(),
    };
    match value {
        Value::Object(fields) => fields.iter().map(|(key, value)| (word(key), in_our_words(value))).collect(),
        Value::Array(values) => values.iter().map(in_our_words).collect(),
        Value::String(text) => word(text).into(),
        other => other.clone(),
    }
}

/// Returns the cluster of the example.
fn example() -> ClusterMessage {
    let choice = ProtoValue { kind: Some(Kind::NumberValue(2.0)) };
    let custom = TypedStruct {
        type_url: format!("type.googleapis.com/{CUSTOM}"),
        value: Some(Struct { fields: [("choiceCount".to_owned(), choice)].into() }),
    };
    let endpoint_picking_policy = policies(&[
        ("<<backend-id>>-1", any(&custom)),
        ("<<backend-id>>-2", any(&RoundRobinMessage::default())),
    ]);
    let wrr_locality = WrrLocality { endpoint_picking_policy: Some(endpoint_picking_policy) };
    ClusterMessage {
        load_balancing_policy: Some(policies(&[("<<backend-id>>-0", any(&wrr_locality))])),
        ..cluster("ClusterName")
    }
}

fn policies(configs: &[(&str, Any)]) -> LoadBalancingPolicy {
    let policy = |(name, config): &(&str, Any)| Policy {
        typed_extension_config: Some(TypedExtensionConfig {
            name: (*name).to_owned(),
            typed_config: Some(config.clone()),
        }),
    };
    LoadBalancingPolicy { policies: configs.iter().map(policy).collect() }
}

/// Parses the example and runs it through the policies.
fn run(registry: Registry) -> LbConfigStages {
    let parser = ResourceParser::new(registry);
    let server = ServerConfig::insecure("control:443");
    let parse = |kind, message: &Any| parser.parse(kind, message, &server).expect("it is valid").resource;
    let Resource::Cluster(cluster) = parse(ResourceType::Cluster, &any(&example())) else {
        panic!("a cluster")
    };
    let ClusterKind::Leaf(cluster) = &cluster.kind else { panic!("a leaf") };
    let Cluster::Leaf(leaf) = &**cluster else { panic!("a leaf") };
    let assignment = ClusterLoadAssignment {
        cluster_name: "ClusterName".to_owned(),
        endpoints: vec![locality("A", 1, 0, &["10.0.0.1:80"]), locality("B", 2, 0, &["10.0.0.2:80"])],
        ..ClusterLoadAssignment::default()
    };
    let Resource::Endpoints(set) = parse(ResourceType::Endpoints, &any(&assignment)) else {
        panic!("endpoints")
    };
    stages(leaf, &set)
}

fn in_order(stages: LbConfigStages) -> [Value; 4] {
    let LbConfigStages { lb_policy_config, cluster_resolver, priority, weighted_target, .. } = stages;
    [lb_policy_config, cluster_resolver, priority, weighted_target.expect("localities are split by weight")]
}

/// REG-8: the custom policy is chosen, and every stage is as in the proposal.
#[test]
fn every_stage_of_the_example_is_as_printed() {
    let mut registry = Registry::standard();
    registry.register::<LeastRequest>(CUSTOM);
    assert_eq!(in_order(run(registry)), printed(&json!({ CUSTOM: { "choiceCount": 2 } })));
}

/// REG-8: if the custom policy is not registered, round_robin takes its place in every stage.
#[test]
fn without_the_custom_policy_the_next_one_is_chosen() {
    assert_eq!(in_order(run(Registry::standard())), printed(&json!({ "round_robin": {} })));
}
