//! Invalid meshes: all errors are reported at once, each with its position and the expected value.

use std::fmt::Write as _;
use std::fs;

use evenkeel_control::{Cluster, Endpoint, Mesh, RetryOn, Route, RouteRetry, Service};

/// Checks the errors of an invalid mesh, line by line.
#[track_caller]
fn check_errors(yaml: &str, expected: &[&str]) {
    let found = Mesh::from_yaml(yaml).map(|_| ()).expect_err(yaml).to_string();
    assert_eq!(found.lines().collect::<Vec<_>>(), expected, "in\n{yaml}");
}

#[test]
fn not_yaml() {
    check_errors("services: [", &["1:11: unclosed bracket '['"]);
    check_errors("services:\n  a:\n  a:\n", &["3:3: the key \"a\" occurs twice"]);
    check_errors("a: &a\n  b: *a\n", &["2:6: an alias of an enclosing node"]);
    check_errors("---\nservices: {}\n---\nservices: {}\n", &["3:1: expected one document, found several"]);
}

#[test]
fn not_a_mesh() {
    check_errors("", &["1:1: expected a mapping with services, clusters, found nothing"]);
    check_errors("- a", &["1:1: expected a mapping with services, clusters, found a list"]);
    check_errors("service: {}", &["1:1: service: unknown key \"service\"; did you mean services?"]);
    check_errors("x: {}", &["1:1: x: unknown key \"x\"; expected one of services, clusters"]);
    check_errors("services: 3", &["1:11: services: expected a mapping, found 3"]);
    check_errors("services: {'': }", &["1:12: services[\"\"]: expected a name, found an empty one"]);
}

#[test]
fn clusters() {
    check_errors(
        "
clusters:
  orders:
    endpoint: []
    endpoints:
      - foo
      - {address: 1.2.3.4:2, weight: -1}
      - {address: 1.2.3.4:3, wight: 1}
      - {weight: 1}
      - {address: 1.2.3.4:0}
      - {address: 1.2.3.4:5, health: ok, locality: a/b/c/d, priority: high}
",
        &[
            "4:5: clusters.orders.endpoint: unknown key \"endpoint\"; did you mean endpoints?",
            "6:9: clusters.orders.endpoints[0]: expected IP:PORT or HOST:PORT, found \"foo\"",
            "7:38: clusters.orders.endpoints[1].weight: expected 1 to 4294967295, found -1",
            "8:30: clusters.orders.endpoints[2].wight: unknown key \"wight\"; did you mean weight?",
            "9:9: clusters.orders.endpoints[3]: expected one of address, addresses",
            "10:19: clusters.orders.endpoints[4].address: expected IP:PORT or HOST:PORT, found \"1.2.3.4:0\"",
            "11:38: clusters.orders.endpoints[5].health: expected one of unknown, healthy, unhealthy, draining, timeout, degraded, found \"ok\"",
            "11:52: clusters.orders.endpoints[5].locality: expected zone, region/zone or region/zone/sub_zone",
            "11:71: clusters.orders.endpoints[5].priority: expected 0 (the highest) or a number after it, found \"high\"",
        ],
    );
    check_errors(
        "
clusters:
  a:
    endpoints:
      - {address: 1.2.3.4:1, weight: 0}
      - 1.2.3.4:1
      - {address: 1.2.3.4:2, priority: 2}
      - {address: 1.2.3.4:3, weight: 4294967295}
    localities: {nowhere: {weight: 0}}
  b: {dns: 'a:b', drops: {shed: 101%}}
  c: {}
  d: {dns: 'a:1', endpoints: []}
  e: {endpoints: [], circuit_breaking: {}, lrs: yes, outlier_detection: {interval: 3, max_ejection_percent: 1.5%}}
",
        &[
            "5:7: clusters.a.endpoints: the weights of a locality add up to at most 4294967295, found 4294967296",
            "5:7: clusters.a.endpoints: the weights of the localities in priority 0 add up to at most 4294967295, found 4294967296",
            "5:7: clusters.a.endpoints: there is a priority 2 but no priority 1",
            "5:38: clusters.a.endpoints[0].weight: expected 1 to 4294967295, found 0",
            "6:9: clusters.a.endpoints[1]: the address 1.2.3.4:1 occurs twice, first in clusters.a.endpoints[0]",
            "9:27: clusters.a.localities.nowhere: no endpoint is in this locality",
            "9:36: clusters.a.localities.nowhere.weight: expected 1 to 4294967295, found 0",
            "10:12: clusters.b.dns: expected HOST:PORT, found \"a:b\"",
            "10:33: clusters.b.drops.shed: expected 0% to 100%, with a percent sign, found \"101%\"",
            "11:6: clusters.c: expected one of endpoints, dns, aggregate",
            "12:12: clusters.d.dns: expected only one of endpoints, dns, aggregate, found dns beside endpoints",
            "13:40: clusters.e.circuit_breaking: expected max_requests",
            "13:49: clusters.e.lrs: expected true or false, found \"yes\"",
            "13:84: clusters.e.outlier_detection.interval: expected a duration such as 2s or 250ms, found 3",
            "13:109: clusters.e.outlier_detection.max_ejection_percent: expected a whole number of percent, found \"1.5%\"",
        ],
    );
    check_errors(
        "
clusters:
  a:
    endpoints:
      - {address: 1.2.3.4:1, weight: 0}
      - 1.2.3.4:1
      - {address: 1.2.3.4:2, priority: 2}
      - {address: 1.2.3.4:3, weight: 4294967295}
    localities: {nowhere: {weight: 0}}
  b: {dns: 'a:1', drops: {shed: 1%}}
  c: {endpoints: [], outlier_detection: {interval: 0s, base_ejection_time: 10s, max_ejection_time: 1s}}
",
        &[
            "5:7: clusters.a.endpoints: the weights of a locality add up to at most 4294967295, found 4294967296",
            "5:7: clusters.a.endpoints: the weights of the localities in priority 0 add up to at most 4294967295, found 4294967296",
            "5:7: clusters.a.endpoints: there is a priority 2 but no priority 1",
            "5:38: clusters.a.endpoints[0].weight: expected 1 to 4294967295, found 0",
            "6:9: clusters.a.endpoints[1]: the address 1.2.3.4:1 occurs twice, first in clusters.a.endpoints[0]",
            "9:27: clusters.a.localities.nowhere: no endpoint is in this locality",
            "9:36: clusters.a.localities.nowhere.weight: expected 1 to 4294967295, found 0",
            "10:26: clusters.b.drops: expected only in a cluster with endpoints, found in a dns cluster",
            "11:52: clusters.c.outlier_detection.interval: expected more than 0s",
            "11:100: clusters.c.outlier_detection.max_ejection_time: expected at least base_ejection_time",
        ],
    );
}

#[test]
fn clusters_of_clusters() {
    check_errors(
        "
clusters:
  a: {aggregate: [b, c, c, order], policy: round_robin}
  b: {aggregate: [a]}
  c: {aggregate: []}
  orders: {endpoints: []}
",
        &[
            "3:19: clusters.a.aggregate[0]: forms a cycle through \"a\", or is nested too deep",
            "3:25: clusters.a.aggregate[2]: the cluster \"c\" occurs twice",
            "3:28: clusters.a.aggregate[3]: unknown cluster \"order\"; did you mean orders?",
            "3:44: clusters.a.policy: expected in the member clusters, found in an aggregate cluster",
            "4:19: clusters.b.aggregate[0]: forms a cycle through \"b\", or is nested too deep",
            "5:18: clusters.c.aggregate: expected at least one cluster",
        ],
    );
}

#[test]
fn policies() {
    check_errors(
        "
clusters:
  a: {endpoints: [], policy: {ring_hash: {min_ring_size: 0, foo: 1}}}
  b: {endpoints: [], policy: [{weighted_round_robin: {blackout_perod: 1s, weightUpdatePeriod: 3}}]}
  c: {endpoints: [], policy: {a: {}, b: {}}}
  d: {endpoints: [], policy: []}
  e: {endpoints: [], policy: {wrr_locality: {}}}
  f: {endpoints: [], policy: {my_policy: 3}}
  g: {endpoints: [], policy: {edf_weighted_round_robin: {a: 1}}}
  h: {endpoints: [], policy: {ring_hash: {min_ring_size: 9, max_ring_size: 8}}}
",
        &[
            "3:58: clusters.a.policy.ring_hash.min_ring_size: expected 1 to 8388608, found 0",
            "3:66: clusters.a.policy.ring_hash.foo: unknown setting \"foo\"; expected one of min_ring_size, max_ring_size",
            "4:71: clusters.b.policy[0].weighted_round_robin.blackout_perod: unknown setting \"blackout_perod\"; did you mean blackout_period?",
            "4:95: clusters.b.policy[0].weighted_round_robin.weightUpdatePeriod: expected a duration such as 2s or 250ms, found 3",
            "5:30: clusters.c.policy: expected the name of a policy, or a mapping from one name to its settings, found a mapping of several names",
            "6:30: clusters.d.policy: expected at least one policy, found an empty list",
            "7:45: clusters.e.policy.wrr_locality: expected child_policy",
            "8:42: clusters.f.policy.my_policy: expected a mapping of settings, found 3",
            "9:30: clusters.g.policy: expected no settings for edf_weighted_round_robin",
            "10:76: clusters.h.policy.ring_hash.max_ring_size: expected at least min_ring_size (9), found 8",
        ],
    );
}

/// Errors of form and errors of reference are reported together. An error that may only follow from a value that could not
/// be read is not reported.
#[test]
fn errors_of_every_kind_at_once() {
    check_errors(
        "
services:
  a: {cluster: nowhere}
  b: {cluster: broken, timeouts: 1s}
  c: {cluster: text}
  d: {cluster: broken}
clusters:
  broken:
    polcy: x
    policy: round_robbin
    endpoints: [{address: 10.0.0.1:1, priority: 1}, {address: 10.0.0.2:x, priority: 0}]
  text: 3
  duplicate: {endpoints: [10.0.0.1:1, 10.0.0.1:1]}
",
        &[
            "3:16: services.a.cluster: unknown cluster \"nowhere\"",
            "4:24: services.b.timeouts: unknown key \"timeouts\"; did you mean timeout?",
            "9:5: clusters.broken.polcy: unknown key \"polcy\"; did you mean policy?",
            "10:13: clusters.broken.policy: unknown policy \"round_robbin\"; did you mean round_robin? (a custom policy with this name must be in a list)",
            "11:63: clusters.broken.endpoints[1].address: expected IP:PORT or HOST:PORT, found \"10.0.0.2:x\"",
            "12:9: clusters.text: expected a mapping with endpoints, dns, aggregate, policy, localities, drops, circuit_breaking, outlier_detection, lrs, found 3",
            "13:39: clusters.duplicate.endpoints[1]: the address 10.0.0.1:1 occurs twice, first in clusters.duplicate.endpoints[0]",
        ],
    );
    // With an unknown section, every reference to it would be unknown.
    check_errors(
        "services: {a: {}}\ncluster: {a: {endpoints: []}}\n",
        &["2:1: cluster: unknown key \"cluster\"; did you mean clusters?"],
    );
}

/// A name that nearly is one of gRPC's is a typing error, unless it is in a list or its owner is part of it.
#[test]
fn names_of_policies() {
    let hint = "? (a custom policy with this name must be in a list)";
    check_errors(
        "
clusters:
  a:
    endpoints: []
    policy: round_robbin
  b: {endpoints: [], policy: {WEIGHTED_ROUND_ROBIN: {}}}
  c: {endpoints: [], policy: least-requests}
  d: {endpoints: [], policy: {wrr_locality: {child_policy: {ring_hsh: {}}}}}
",
        &[
            &format!(
                "5:13: clusters.a.policy: unknown policy \"round_robbin\"; did you mean round_robin{hint}"
            ),
            &format!(
                "6:30: clusters.b.policy: unknown policy \"WEIGHTED_ROUND_ROBIN\"; did you mean weighted_round_robin{hint}"
            ),
            &format!(
                "7:30: clusters.c.policy: unknown policy \"least-requests\"; did you mean least_request{hint}"
            ),
            &format!(
                "8:60: clusters.d.policy.wrr_locality.child_policy: unknown policy \"ring_hsh\"; did you mean ring_hash{hint}"
            ),
        ],
    );
    for policy in ["my_round_robin", "acme.round_robin", "[{round_robbin: {}}]", "least_request_experimental"]
    {
        let yaml = format!("clusters: {{a: {{endpoints: [], policy: {policy}}}}}\n");
        Mesh::from_yaml(&yaml).unwrap_or_else(|errors| panic!("{policy}: {errors}"));
    }
}

#[test]
fn services() {
    check_errors(
        "
services:
  a: {routes: [{to: x, path: 3, prefix: /a}], timeout: 1s}
  b: {cluster: x, weights: {x: 1}}
  c: {routes: [{headers: {x-a: {}, x-b: {range: {from: 1}}, x-c: {regex: a, ignore_case: true}, x-d: 1}}]}
  d: {cluster: x, retry: {attempts: 2, backoff: {max: 1s}}, hash: [x, {channel_id: false}]}
  e: {weights: {x: 95%}}
  f: {routes: [{to: x, fraction: 10}], timeouts: 1s}
clusters:
  x: {endpoints: []}
",
        &[
            "3:30: services.a.routes[0].path: expected a string, found 3; write \"3\" in quotes",
            "3:41: services.a.routes[0].prefix: expected only one of path, prefix, regex, found prefix beside path",
            "3:56: services.a.timeout: expected in each of the routes, found timeout beside them",
            "4:28: services.b.weights: expected only one of routes, cluster, weights, found weights beside cluster",
            "5:16: services.c.routes[0]: expected one of to, weights",
            "5:32: services.c.routes[0].headers.x-a: expected one of exact, prefix, suffix, contains, regex, range, present",
            "5:49: services.c.routes[0].headers.x-b.range: expected both from and below",
            "5:66: services.c.routes[0].headers.x-c.ignore_case: expected no ignore_case beside regex",
            "5:102: services.c.routes[0].headers.x-d: expected a string, found 1; write \"1\" in quotes",
            "6:26: services.d.retry: expected on: a list of cancelled, deadline-exceeded, internal, resource-exhausted, unavailable",
            "6:49: services.d.retry.backoff: expected base: a duration such as 25ms",
            "6:68: services.d.hash[0]: expected channel_id, or a mapping with header or channel_id, found \"x\"",
            "6:84: services.d.hash[1].channel_id: expected true, found false",
            "7:20: services.e.weights.x: expected 0 to 4294967295, found \"95%\"",
            "8:34: services.f.routes[0].fraction: expected 0% to 100%, with a percent sign, found 10",
            "8:40: services.f.timeouts: unknown key \"timeouts\"; did you mean timeout?",
        ],
    );
    check_errors(
        "
services:
  orders.eu:
  a: {routes: [{to: x}, {path: /a/b, to: x}]}
  b: {routes: []}
  c: {routes: [{path: a/b, to: X, headers: {X-A: a, x-bin: b, x-r: {range: {from: 3, below: 3}}}}, {prefix: a, to: xx}]}
  d: {weights: {x: 0}}
  e: {cluster: x, retry: {on: [], attempts: 6, backoff: {base: 0s}}}
  f: {cluster: x, retry: {on: [internal], attempts: 1, backoff: {base: 2s, max: 1s}}, hash: [{header: 'x y'}]}
clusters:
  x: {endpoints: []}
",
        &[
            "3:12: services[\"orders.eu\"].cluster: unknown cluster \"orders.eu\"",
            "4:25: services.a.routes[1]: is unreachable: services.a.routes[0] matches every call",
            "5:15: services.b.routes: expected at least one route",
            "6:23: services.c.routes[0].path: expected /package.Service/Method, found \"a/b\"",
            "6:32: services.c.routes[0].to: unknown cluster \"X\"; did you mean x?",
            "6:50: services.c.routes[0].headers.X-A: expected the name of a header in lower case, found \"X-A\"",
            "6:60: services.c.routes[0].headers.x-bin: expected a header of text, found \"x-bin\", which is binary",
            "6:76: services.c.routes[0].headers.x-r.range: expected below to be more than from (3), found 3",
            "6:109: services.c.routes[1].prefix: expected /package.Service/, found \"a\"",
            "6:116: services.c.routes[1].to: unknown cluster \"xx\"; did you mean x?",
            "7:16: services.d.weights: expected weights that add up to 1 to 4294967295, found 0",
            "8:31: services.e.retry.on: expected at least one status",
            "8:45: services.e.retry.attempts: expected 2 to 5, the first attempt included, found 6",
            "8:64: services.e.retry.backoff.base: expected more than 0s",
            "9:53: services.f.retry.attempts: expected 2 to 5, the first attempt included, found 1",
            "9:81: services.f.retry.backoff.max: expected at least base",
            "9:103: services.f.hash[0].header: expected the name of a header in lower case, found \"x y\"",
        ],
    );
}

/// A mesh made in code is validated like one in a file, without line numbers.
#[test]
fn in_code() {
    let at = "10.0.0.1:1".parse().unwrap();
    let retry = RouteRetry::on([RetryOn::Internal]).attempts(9);
    let mesh = Mesh::new()
        .service("orders", Service::new().route(Route::to("pay").retry(retry)))
        .cluster("orders", Cluster::new().endpoint(Endpoint::at(at).weight(0)).policy("ring_hash"));
    let errors = mesh.check().expect_err("several errors").to_string();
    let expected = [
        "services.orders.routes[0].to: unknown cluster \"pay\"",
        "services.orders.routes[0].retry.attempts: expected 2 to 5, the first attempt included, found 9",
        "clusters.orders.endpoints[0].weight: expected 1 to 4294967295, found 0",
    ];
    assert_eq!(errors.lines().collect::<Vec<_>>(), expected);
}

/// Errors of a file name the file, and they serialise to JSON for programs.
#[test]
fn in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mesh.yaml");
    fs::write(&path, "clusters:\n  a: {endpoint: []}\n").unwrap();
    let errors = Mesh::load(&path).expect_err("an unknown key");
    let first = errors.iter().next().unwrap();
    assert_eq!((first.line, first.column, first.path.as_str()), (Some(2), Some(6), "clusters.a"));
    assert!(errors.to_string().starts_with(&format!("{}:2:6: clusters.a: ", path.display())), "{errors}");
    let json = serde_json::to_value(&errors).unwrap();
    assert_eq!(json[1]["path"], "clusters.a.endpoint");
    assert_eq!(json[1]["column"], 7);
    let missing = Mesh::load(&folder.path().join("other.yaml")).expect_err("no file").to_string();
    assert!(missing.contains("other.yaml: cannot be read: "), "{missing}");
    fs::write(&path, [b'a', 0xff]).unwrap();
    let binary = Mesh::load(&path).expect_err("not text").to_string();
    assert!(binary.ends_with("mesh.yaml: expected UTF-8, found another byte after 1 bytes"), "{binary}");
}

/// Hostile input leads to a short error in bounded time.
#[test]
fn hostile() {
    let mut bomb = "a: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for i in 1..12 {
        let items = format!("*a{},", i - 1).repeat(9);
        let _ = writeln!(bomb, "b{i}: &a{i} [{items}]");
    }
    let huge = format!("# {}", "x".repeat(33 << 20));
    let deep_list = format!("clusters: {}", "[".repeat(100_000));
    let deep_map = format!("clusters: {}", "{a: ".repeat(100_000));
    let mut deep_block = String::new();
    for i in 0..500 {
        let _ = writeln!(deep_block, "{}a:", " ".repeat(i));
    }
    let many = format!("services: [{}]", "a,".repeat(1_100_000));
    for text in [
        bomb,
        huge,
        deep_list,
        deep_map,
        deep_block,
        many,
        "\u{0}".to_owned(),
        "services: {? [a] : b}".to_owned(),
    ] {
        let errors = Mesh::from_yaml(&text).expect_err("an error");
        assert!(errors.to_string().len() < 400, "{errors}");
    }
}

/// Host names have a port and are DNS names. An IP address with a typing error is not one.
#[test]
fn host_names() {
    check_errors(
        "
clusters:
  a:
    endpoints:
      - localhost:50051
      - Orders_1.shop.svc.:50051
      - localhost
      - localhost:0
      - 256.0.0.1:80
      - http://orders:80
      - -:70000
      - a..b:80
      - {addresses: ['orders:80']}
",
        &[
            "7:9: clusters.a.endpoints[2]: expected IP:PORT or HOST:PORT, found \"localhost\"",
            "8:9: clusters.a.endpoints[3]: expected IP:PORT or HOST:PORT, found \"localhost:0\"",
            "9:9: clusters.a.endpoints[4]: expected IP:PORT or HOST:PORT, found \"256.0.0.1:80\"",
            "10:9: clusters.a.endpoints[5]: expected IP:PORT or HOST:PORT, found \"http://orders:80\"",
            "11:9: clusters.a.endpoints[6]: expected IP:PORT or HOST:PORT, found \"-:70000\"",
            "12:9: clusters.a.endpoints[7]: expected IP:PORT or HOST:PORT, found \"a..b:80\"",
            "13:22: clusters.a.endpoints[8].addresses[0]: expected IP:PORT (only address can be a host name), found \"orders:80\"",
        ],
    );
    check_errors(
        "clusters: {a: {endpoints: ['b:1', 'b:2', 'b:1']}}",
        &["1:42: clusters.a.endpoints[2]: the address b:1 occurs twice, first in clusters.a.endpoints[0]"],
    );
}
