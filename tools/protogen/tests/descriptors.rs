//! Protobuf JSON through the embedded descriptors.

use evenkeel_proto::envoy::config::endpoint::v3::ClusterLoadAssignment;
use evenkeel_proto::prost::{Message, Name};
use prost_reflect::{DynamicMessage, ReflectMessage};

/// A message converts to protobuf JSON and back, with `Any` values expanded by type.
#[test]
fn json_opens_any_values() {
    let pool = evenkeel_proto::descriptors::pool();
    let json = serde_json::json!({
        "typeUrl": "t",
        "resources": [{
            "@type": ClusterLoadAssignment::type_url(),
            "clusterName": "orders",
            "endpoints": [{ "priority": 1, "loadBalancingWeight": 3 }],
        }],
    });
    let response =
        pool.get_message_by_name("envoy.service.discovery.v3.DiscoveryResponse").expect("is embedded");
    let message = DynamicMessage::deserialize(response, json.clone()).expect("valid JSON");
    let response: evenkeel_proto::envoy::service::discovery::v3::DiscoveryResponse =
        message.transcode_to().expect("the same message");
    let eds = ClusterLoadAssignment::decode(&*response.resources[0].value).expect("an assignment");
    assert_eq!((eds.cluster_name.as_str(), eds.endpoints[0].priority), ("orders", 1));
    let mut again = DynamicMessage::new(message.descriptor());
    again.transcode_from(&response).expect("the same message");
    assert_eq!(serde_json::to_value(&again).expect("JSON"), json);
}

/// Every used service has a descriptor, for server reflection.
#[test]
fn services_are_described() {
    let pool = evenkeel_proto::descriptors::pool();
    let mut services: Vec<_> = pool.services().map(|service| service.full_name().to_owned()).collect();
    services.sort();
    assert_eq!(
        services,
        [
            "envoy.service.discovery.v3.AggregatedDiscoveryService",
            "envoy.service.load_stats.v3.LoadReportingService",
            "envoy.service.status.v3.ClientStatusDiscoveryService",
            "xds.service.orca.v3.OpenRcaService",
        ]
    );
}
