//! The published cases, by topic.

mod balancing;
mod failover;
mod limits;
mod load;
mod resources;
mod routing;
mod security;

use evenkeel_control::{Cluster, Endpoint};

use super::stage::Server;
use super::{Case, Lineup};

/// Creates a case from the async function of the same name.
macro_rules! case {
    ($module:ident :: $name:ident, $shows:literal) => {
        Case { name: stringify!($name), shows: $shows, story: |stage| Box::pin($module::$name(stage)) }
    };
}

/// Returns all cases, in the order of the tables.
pub fn all() -> Vec<Case> {
    vec![
        case!(balancing::ping_pong, "every server gets calls"),
        Case { name: "round_robin", ..case!(balancing::evenly, "calls are spread evenly") },
        case!(balancing::backends_restart, "restarted servers get calls as before"),
        case!(balancing::remove_instance_group, "a locality is removed without a failed call"),
        case!(balancing::change_backend_service, "the cluster is replaced without a failed call"),
        case!(balancing::affinity, "ring_hash selects one server by a header"),
        case!(
            balancing::custom_lb,
            "the control plane selects and configures a custom policy of the application"
        ),
        case!(failover::secondary_locality_gets_requests_on_primary_failure, "failover and failback"),
        case!(
            failover::secondary_locality_gets_no_requests_on_partial_primary_failure,
            "no premature failover"
        ),
        case!(routing::traffic_splitting, "20 : 80 over two clusters"),
        case!(routing::path_matching, "path, prefix, regular expression, case-insensitive"),
        case!(
            routing::header_matching,
            "exact, prefix, suffix, present, inverted, range, regular expression"
        ),
        case!(routing::api_listener, "the listener switches to other routes without a failed call"),
        case!(routing::retry, "retries by the route's retry policy"),
        case!(limits::circuit_breaking, "500 and 1,000 calls in flight, then 800"),
        case!(limits::timeout, "the route's timeout and the caller's deadline"),
        case!(limits::outlier_detection, "one failing server of five is ejected, then unejected"),
        case!(load::weights_by_call, "weighted_round_robin by per-call load reports"),
        case!(load::weights_out_of_band, "weighted_round_robin by out-of-band load reports"),
        case!(load::orca_per_rpc, "per-call load reports"),
        case!(load::orca_oob, "out-of-band load reports"),
        case!(security::mtls, "mTLS, with the SANs that the cluster accepts"),
        case!(security::tls, "TLS with the server's certificate"),
        case!(security::plaintext_fallback, "plaintext if the cluster has no security config"),
        case!(security::mtls_error, "no call to a server whose SAN the cluster does not accept"),
        case!(resources::csds, "the client reports its resources and their state"),
    ]
}

/// Returns the case of this name.
pub fn named(name: &str) -> Option<Case> {
    all().into_iter().find(|case| case.name == name)
}

/// Cases with one cluster and default routes.
const OF_ONE_CLUSTER: [&str; 7] = [
    "ping_pong",
    "round_robin",
    "backends_restart",
    "remove_instance_group",
    "outlier_detection",
    "weights_by_call",
    "weights_out_of_band",
];

/// Cases that stop servers.
const STOPS_SERVERS: [&str; 4] = [
    "backends_restart",
    "affinity",
    "secondary_locality_gets_requests_on_primary_failure",
    "secondary_locality_gets_no_requests_on_partial_primary_failure",
];

/// Cases that need TLS.
const SECURE: [&str; 4] = ["mtls", "tls", "plaintext_fallback", "mtls_error"];

/// Returns the reason why a case does not apply to a lineup: a feature that a peer lacks, by its
/// documentation or its response.
pub(super) fn does_not_fit(case: &str, lineup: &Lineup) -> Option<&'static str> {
    if SECURE.contains(&case) {
        if lineup.proxy.is_some() {
            return Some("Envoy has no certificate providers");
        }
        if case != "plaintext_fallback" && (lineup.server.peer != "evenkeel" || lineup.sidecar.is_some()) {
            return Some("the server does not support TLS from files");
        }
    }
    if lineup.proxy.is_some() && !OF_ONE_CLUSTER.contains(&case) {
        return Some(match case {
            case if case.starts_with("secondary_locality") => {
                "does not pass, so it is not run: Envoy leaves a locality for health checks or outlier detection, not for broken connections"
            }
            _ => "Envoy gets clusters and endpoints from the control plane, not routes",
        });
    }
    if lineup.sidecar.is_some() && STOPS_SERVERS.contains(&case) {
        return Some("the sidecar of a stopped server continues to run");
    }
    match (case, lineup.client.peer.as_str(), lineup.server.peer.as_str()) {
        ("orca_per_rpc" | "orca_oob", _, _) if lineup.interop_client.is_none() => Some(
            "only evenkeel has this client, which uses no control plane: see A, and the columns with other servers",
        ),
        ("custom_lb", "grpcio", _) => Some("grpcio does not support custom policies in Python"),
        ("weights_by_call" | "weights_out_of_band" | "orca_per_rpc" | "orca_oob", _, "grpcio") => {
            Some("Python's grpcio cannot report load")
        }
        ("weights_by_call", "grpc-js", _) => Some(
            "does not pass every time, so it is not run: grpc-js sends almost no calls to a server that has not reported yet",
        ),
        ("orca_oob", _, "grpc-js") => Some("grpc-js has no memory utilization in out-of-band reports"),
        _ => None,
    }
}

/// Returns a round_robin cluster of these servers.
fn round_robin<'a>(servers: impl IntoIterator<Item = &'a Server>) -> Cluster {
    Cluster::new().policy("round_robin").endpoints(endpoints(servers))
}

fn endpoints<'a>(servers: impl IntoIterator<Item = &'a Server>) -> Vec<Endpoint> {
    servers.into_iter().map(Server::endpoint).collect()
}
