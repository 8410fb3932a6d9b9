//! Cost of parsing a resource, per endpoint and per route, and its growth with the number of items.
//!
//! `cargo bench -p evenkeel-xds --bench parse`. Sizes alternate in every round because machines are noisy,
//! and the best round of each counts. The ratio compares the cost per item with that of the smallest size. A
//! large resource exceeds the CPU caches, so a ratio of two or three is due to memory. A ratio that grows
//! with the size is a defect.
//!
//! `-- --times T N` parses N endpoints T times without measuring, for tools that count instructions. The
//! difference of two counts is the cost of one parse. `-- --times T N istio` does the same with the metadata
//! that Istio adds to endpoints.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a benchmark reads the clock and ends its own process"
)]

use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use evenkeel_core::Registry;
use evenkeel_proto::envoy::config::core::v3::Metadata;
use evenkeel_proto::prost_types::value::Kind;
use evenkeel_proto::prost_types::{Any, Struct, Value};
use evenkeel_xds::bootstrap::ServerConfig;
use evenkeel_xds::resource::{RejectedResource, ResourceParser, ResourceType};
use testkit::resources;

const ROUNDS: usize = 7;
/// Approximate number of items per round. Small resources are parsed repeatedly to reach it.
const ITEMS: usize = 20_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some([_, times, n, ..]) =
        arguments.iter().position(|a| a == "--times").and_then(|at| arguments.get(at..))
    {
        let has_metadata = arguments.iter().any(|argument| argument == "istio");
        return read(times.parse().unwrap_or(1), n.parse().unwrap_or(1), has_metadata);
    }
    let plain = [100, 1_000, 10_000, 100_000].map(|n| (n, endpoints(n, false)));
    let of_istio = [100, 1_000, 10_000, 100_000].map(|n| (n, endpoints(n, true)));
    let routes = [20, 200, 2_000, 20_000].map(|n| (n, routes(n)));
    for (what, kind, sizes) in [
        ("endpoint", ResourceType::Endpoints, &plain),
        ("of Istio", ResourceType::Endpoints, &of_istio),
        ("route", ResourceType::RouteConfig, &routes),
    ] {
        if let Err(rejected) = measure(what, kind, sizes) {
            eprintln!("nothing to measure, a {kind} is refused: {rejected}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn read(times: usize, n: usize, has_metadata: bool) -> ExitCode {
    let (parser, server) =
        (ResourceParser::new(Registry::standard()), ServerConfig::insecure("localhost:18000"));
    let any = endpoints(n, has_metadata);
    for _ in 0..times {
        if let Err(rejected) = black_box(parser.parse(ResourceType::Endpoints, &any, &server)) {
            eprintln!("refused: {rejected}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn measure(what: &str, kind: ResourceType, sizes: &[(usize, Any)]) -> Result<(), RejectedResource> {
    let parser = ResourceParser::new(Registry::standard());
    let server = ServerConfig::insecure("localhost:18000");
    let mut best = vec![Duration::MAX; sizes.len()];
    for _ in 0..ROUNDS {
        for ((n, any), best) in sizes.iter().zip(&mut best) {
            let times = (ITEMS / n).max(1);
            let start = Instant::now();
            for _ in 0..times {
                black_box(parser.parse(kind, any, &server)?);
            }
            *best = (*best).min(start.elapsed() / times as u32);
        }
    }
    println!("{what:>10} {:>12} {:>14} {:>8}", "whole, us", "each, ns", "ratio");
    let each = |(n, _): &(usize, Any), best: &Duration| best.as_secs_f64() * 1e9 / *n as f64;
    let smallest = each(&sizes[0], &best[0]);
    for (size, best) in sizes.iter().zip(&best) {
        let (whole, each) = (best.as_secs_f64() * 1e6, each(size, best));
        println!("{:>10} {whole:>12.1} {each:>14.1} {:>8.2}", size.0, each / smallest);
    }
    Ok(())
}

/// Returns endpoints in localities of a hundred, optionally with the metadata of Istio.
fn endpoints(n: usize, has_metadata: bool) -> Any {
    let addresses: Vec<_> =
        (0..n).map(|i| format!("10.{}.{}.{}:8080", i >> 16, (i >> 8) & 0xff, i & 0xff)).collect();
    let mut load = resources::load_assignment("orders", &[]);
    load.endpoints = addresses
        .chunks(100)
        .enumerate()
        .map(|(i, addresses)| {
            let addresses: Vec<_> = addresses.iter().map(String::as_str).collect();
            resources::locality(&format!("zone-{i}"), 1, 0, &addresses)
        })
        .collect();
    if has_metadata {
        let text = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
        let workload = ("workload".to_owned(), text("ratings-v1;shop;ratings;v1;Kubernetes"));
        let istio = ("istio".to_owned(), Struct { fields: [workload].into() });
        let tls_mode = ("tlsMode".to_owned(), text("istio"));
        let tls = ("envoy.transport_socket_match".to_owned(), Struct { fields: [tls_mode].into() });
        let metadata = Metadata { filter_metadata: [istio, tls].into(), ..Metadata::default() };
        for endpoint in load.endpoints.iter_mut().flat_map(|locality| &mut locality.lb_endpoints) {
            endpoint.metadata = Some(metadata.clone());
        }
    }
    resources::any(&load)
}

/// Returns routes in virtual hosts of twenty.
fn routes(n: usize) -> Any {
    let mut config = resources::route_config("routes", "orders");
    config.virtual_hosts = (0..n / 20)
        .map(|host| {
            let routes =
                (0..20).map(|i| resources::route(&format!("/shop.Service{i}/"), &format!("cluster-{i}")));
            resources::virtual_host(&format!("host-{host}.example.com"), routes.collect())
        })
        .collect();
    resources::any(&config)
}
