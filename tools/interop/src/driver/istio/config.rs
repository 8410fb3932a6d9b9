//! Istio resources of the cases.

use serde_json::{Value, json};

use crate::driver::Server;
use crate::driver::certificates::SERVER;

/// Host of the service that clients call.
pub(super) const HOST: &str = "orders.mesh.test";

/// Port of every service. Endpoints have ports of their own.
pub(super) const PORT: u16 = 7070;

/// Returns a service of the mesh with these endpoints.
pub(super) fn service_entry(host: &str, endpoints: impl IntoIterator<Item = Value>) -> Value {
    let endpoints: Vec<_> = endpoints.into_iter().collect();
    let spec = json!({
        "hosts": [host],
        "location": "MESH_INTERNAL",
        "resolution": "STATIC",
        "ports": [{"number": PORT, "name": "grpc", "protocol": "GRPC"}],
        "endpoints": endpoints,
        "subjectAltNames": [SERVER],
    });
    resource("networking.istio.io/v1", "ServiceEntry", host, &spec)
}

/// Returns an endpoint with the server's name as label `version`.
pub(super) fn endpoint(server: &Server) -> Value {
    json!({
        "address": "127.0.0.1",
        "ports": {"grpc": server.address().port()},
        "labels": {"version": server.name()},
    })
}

/// Returns an endpoint with a weight.
pub(super) fn weighted_endpoint(server: &Server, weight: u32) -> Value {
    let mut endpoint = endpoint(server);
    endpoint["weight"] = weight.into();
    endpoint
}

/// Returns an endpoint in a locality.
pub(super) fn placed_endpoint(server: &Server, locality: &str) -> Value {
    let mut endpoint = endpoint(server);
    endpoint["locality"] = locality.into();
    endpoint
}

/// Returns the routes of the service, in order.
pub(super) fn virtual_service(routes: impl IntoIterator<Item = Value>) -> Value {
    let routes: Vec<_> = routes.into_iter().collect();
    let spec = json!({"hosts": [HOST], "http": routes});
    resource("networking.istio.io/v1", "VirtualService", HOST, &spec)
}

/// Returns a route to one subset.
pub(super) fn route(subset: &str) -> Value {
    json!({"route": [destination(subset)]})
}

/// Returns a route to one subset for calls that match.
pub(super) fn route_matching(subset: &str, conditions: &Value) -> Value {
    json!({"match": [conditions], "route": [destination(subset)]})
}

/// Returns a route to several subsets by weight.
pub(super) fn split(subsets: &[(&str, u32)]) -> Value {
    let weighted = subsets.iter().map(|(subset, weight)| {
        let mut destination = destination(subset);
        destination["weight"] = (*weight).into();
        destination
    });
    json!({"route": weighted.collect::<Vec<_>>()})
}

/// Returns a route with a further field of Istio's `HTTPRoute`.
pub(super) fn with(mut route: Value, name: &str, setting: Value) -> Value {
    route[name] = setting;
    route
}

fn destination(subset: &str) -> Value {
    match subset {
        "" => json!({"destination": {"host": HOST, "port": {"number": PORT}}}),
        subset => json!({"destination": {"host": HOST, "subset": subset, "port": {"number": PORT}}}),
    }
}

/// Returns the traffic policy of the service, and its subsets by the label `version`.
pub(super) fn destination_rule(policy: &Value, subsets: &[&str]) -> Value {
    let subsets = subsets.iter().map(|subset| json!({"name": subset, "labels": {"version": subset}}));
    let mut spec = json!({"host": HOST, "subsets": subsets.collect::<Vec<_>>()});
    // Istio rejects an empty policy.
    if policy.as_object().is_some_and(|fields| !fields.is_empty()) {
        spec["trafficPolicy"] = policy.clone();
    }
    resource("networking.istio.io/v1", "DestinationRule", HOST, &spec)
}

/// Returns mTLS for every server of the namespace.
pub(super) fn strict_authentication() -> Value {
    let spec = json!({"mtls": {"mode": "STRICT"}});
    resource("security.istio.io/v1", "PeerAuthentication", "default", &spec)
}

/// Returns a resource in the namespace of the client.
pub(super) fn resource(version: &str, kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name.replace('.', "-"), "namespace": "shop"},
        "spec": spec,
    })
}
