//! Memory of a client whose endpoints change continuously. It is a program of its own, since its allocator counts.

use std::collections::VecDeque;

use evenkeel_proto::envoy::config::endpoint::v3::{ClusterLoadAssignment, LocalityLbEndpoints};
use evenkeel_proto::envoy::service::discovery::v3::DiscoveryResponse;
use evenkeel_proto::prost::{self, Message as _};
use evenkeel_proto::prost_types::Any;
use evenkeel_xds::ads::XdsVariant;
use evenkeel_xds::resource::ResourceType;
use testkit::resources::{any, cluster, endpoint, listener_with_rds, load_assignment, route_config};
use testkit::{Counting, XdsSim};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const ENDPOINTS: usize = 10_000;

/// One percent of the endpoints.
const REPLACED: usize = ENDPOINTS / 100;

/// One update per second for ten minutes.
const UPDATES: usize = 600;

/// Updates after which all that belongs to removed endpoints is dropped: that is done in parts.
const WARM_UP: usize = 60;

/// Response with one resource.
fn response(kind: ResourceType, version: usize, resource: Any) -> Vec<u8> {
    let response = DiscoveryResponse {
        version_info: version.to_string(),
        resources: vec![resource],
        type_url: kind.type_url().to_owned(),
        nonce: version.to_string(),
        ..DiscoveryResponse::default()
    };
    response.encode_to_vec()
}

/// The resource with the endpoints, which changes like a window that moves over addresses.
struct EndpointWindow {
    /// The resource without its locality.
    assignment: ClusterLoadAssignment,
    /// The locality without its endpoints.
    locality: LocalityLbEndpoints,
    /// Encoded once, not in each of the responses.
    endpoints: VecDeque<Vec<u8>>,
    /// First address after the window.
    end: usize,
    version: usize,
}

impl EndpointWindow {
    fn new() -> EndpointWindow {
        let mut assignment = load_assignment("pay", &[]);
        let locality = assignment.endpoints.remove(0);
        let mut window =
            EndpointWindow { assignment, locality, endpoints: VecDeque::new(), end: 0, version: 0 };
        window.change(0, ENDPOINTS);
        window
    }

    /// Removes the first `removed` endpoints and adds `added` at the end.
    fn change(&mut self, removed: usize, added: usize) {
        let address = |i: usize| endpoint(&format!("10.{}.{}.{}", i >> 16, i >> 8 & 255, i & 255), 80);
        self.endpoints.drain(..removed);
        self.endpoints.extend((self.end..self.end + added).map(|i| address(i).encode_to_vec()));
        self.end += added;
        self.version += 1;
    }

    fn response(&self) -> Vec<u8> {
        // Both fields have the number 2. A field of bytes is encoded like one of a message.
        let mut locality = self.locality.encode_to_vec();
        for endpoint in &self.endpoints {
            prost::encoding::bytes::encode(2, endpoint, &mut locality);
        }
        let mut resource = any(&self.assignment);
        prost::encoding::bytes::encode(2, &locality, &mut resource.value);
        response(ResourceType::Endpoints, self.version, resource)
    }
}

/// fault 29: one percent of 10,000 endpoints is replaced each second, for ten minutes. Each update dials the added
/// endpoints and no others. It allocates at most a twentieth as often as the first update. Memory stays within 5 %.
#[test]
fn replacing_one_percent_costs_one_percent() {
    let mut client = XdsSim::new("orders", XdsVariant::StateOfTheWorld);
    client.receive(&response(ResourceType::Listener, 0, any(&listener_with_rds("orders", "orders"))));
    client.receive(&response(ResourceType::RouteConfig, 0, any(&route_config("orders", "pay"))));
    client.receive(&response(ResourceType::Cluster, 0, any(&cluster("pay"))));
    let mut window = EndpointWindow::new();
    let message = window.response();
    let (first, connected) = Counting::during(|| client.receive(&message));
    assert_eq!(connected, Some(ENDPOINTS));

    // Twice the endpoints, and back. A hash table that is more than half full doubles at some random later update. A
    // table that has held twice as many does not, so any growth from here on is a leak.
    window.change(0, ENDPOINTS);
    assert_eq!(client.receive(&window.response()), Some(ENDPOINTS));
    window.change(ENDPOINTS, 0);
    assert_eq!(client.receive(&window.response()), Some(0));

    let (mut most, mut grown) = (0, 0);
    for update in 1..=UPDATES {
        window.change(REPLACED, REPLACED);
        let message = window.response();
        let (allocated, connected) = Counting::during(|| client.receive(&message));
        assert_eq!(connected, Some(REPLACED), "update {update} dials what it added");
        assert_eq!(client.core().subchannel_count(), ENDPOINTS, "update {update} closes what it removed");
        if update > WARM_UP {
            most = most.max(allocated.count);
            grown += allocated.net_bytes;
            assert!(grown.abs() <= first.net_bytes / 20, "update {update}: {grown} bytes more than before");
        }
    }
    println!(
        "fault 29: the first update takes {} allocations and holds {} bytes, a later one at most {most}; grown by {grown}",
        first.count, first.net_bytes
    );
    assert!(most <= first.count / 20, "{most} allocations of an update, {} of the first", first.count);
    assert!(client.picker().is_some());
}
