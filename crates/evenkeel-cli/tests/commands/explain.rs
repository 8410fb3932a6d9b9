//! `evenkeel explain` on meshes: text, exit code and JSON.

use serde_json::{Value, json};

use crate::common::{CommandOutput, TempFolder, evenkeel, evenkeel_with_input, first_line};

/// Routes by path, header, fraction and weight; two localities, two priorities, drops, limits; an unhealthy
/// endpoint.
const SHOP: &str = "\
services:
  orders:
    routes:
      - path: /shop.Orders/Export
        to: batch
      - prefix: /shop.Orders/
        headers: {x-canary: \"yes\"}
        to: orders-v2
      - prefix: /shop.Orders/
        fraction: 20%
        to: orders-v2
      - prefix: /shop.Orders/
        weights: {orders: 3, orders-v2: 1}
        timeout: 5s
        retry: {on: [unavailable], attempts: 3, backoff: {base: 25ms, max: 250ms}}
  carts:
    hash: [{header: x-user}]
  everything:
    cluster: both
clusters:
  batch:
    dns: batch.example:443
  orders:
    localities:
      eu/eu-1a: {weight: 3}
      eu/eu-1b: {weight: 1}
      us/us-1a: {priority: 1}
    endpoints:
      - {address: 10.0.0.1:50051, locality: eu/eu-1a}
      - {address: 10.0.0.2:50051, locality: eu/eu-1a, weight: 3}
      - {address: 10.0.0.9:50051, locality: eu/eu-1a, health: unhealthy}
      - {address: 10.0.1.1:50051, locality: eu/eu-1b}
      - {address: 10.1.0.1:50051, locality: us/us-1a}
    drops: {shed: 2%}
    circuit_breaking: {max_requests: 100}
    outlier_detection: {interval: 5s}
  orders-v2:
    policy: weighted_round_robin
    endpoints: [10.0.2.1:50051, {address: 10.0.2.2:50051, weight: 4}]
  carts:
    policy: ring_hash
    endpoints: [10.0.3.1:50051, 10.0.3.2:50051, 10.0.3.3:50051]
  both:
    aggregate: [orders-v2, batch]
";

fn explain(mesh: &str, args: &[&str]) -> CommandOutput {
    let folder = TempFolder::new();
    let file = folder.file("mesh.yaml", mesh);
    evenkeel(["explain", &file].iter().chain(args))
}

fn explain_json(mesh: &str, args: &[&str], code: i32) -> Value {
    let args: Vec<_> = args.iter().copied().chain(["--json"]).collect();
    explain(mesh, &args).ends_with(code).json()
}

/// Returns the share of each endpoint of a cluster.
fn shares(cluster: &Value) -> Vec<(String, f64)> {
    let rows = cluster["endpoints"].as_array().expect("a list").iter();
    let share = |row: &Value| {
        (row["addresses"][0].as_str().expect("a text").to_owned(), row["share"].as_f64().expect("a number"))
    };
    rows.map(share).collect()
}

#[track_caller]
fn assert_shares(cluster: &Value, expected: &[(&str, f64)]) {
    let found = shares(cluster);
    let is_same = found.len() == expected.len()
        && found.iter().zip(expected).all(|((a, x), (b, y))| a == b && (x - y).abs() < 1e-9);
    assert!(is_same, "expected {expected:?}, found {found:?}");
}

/// The complete text: unmatched routes with the reason, the share of the others, the policy tree with the
/// share of every endpoint, and the notes.
#[test]
fn a_call_is_followed_from_its_route_to_the_shares_of_its_endpoints() {
    let outcome = explain(SHOP, &["--target", "xds:///orders", "--path", "/shop.Orders/Get"]).ends_with(0);
    let expected = "\
Calls to /shop.Orders/Get of xds:///orders go 60 % to orders, 40 % to
orders-v2.

Routes of virtual host \"orders\"
  · 1. path exact \"/shop.Orders/Export\" -> cluster \"batch\"
       does not match: the path
  · 2. path prefix \"/shop.Orders/\" and header \"x-canary\" exact \"yes\" -> cluster
       \"orders-v2\"
       does not match: header \"x-canary\" exact \"yes\"
  → 3. path prefix \"/shop.Orders/\" and 200000 in a million -> cluster
       \"orders-v2\"
       matches 20 % of such calls
       no timeout except the caller's
  → 4. path prefix \"/shop.Orders/\" -> cluster \"orders\" (3), cluster \"orders-v2\"
       (1)
       matches 80 % of such calls
       orders 75 %, orders-v2 25 %
       timeout 5 s
       up to 3 attempts on Unavailable, back-off 25 ms to 250 ms

Cluster orders, 60 % of the calls
  cds_experimental
  └ xds_cluster_resolver_experimental
    └ priority_experimental
      ├ orders/priority-0  outlier_detection_experimental             100 %
      │ └ xds_cluster_impl_experimental
      │   └ xds_wrr_locality_experimental
      │     └ weighted_target_experimental
      │       ├ eu/eu-1a  edf_weighted_round_robin                   73.5 %
      │       │ ├ 10.0.0.1:50051                           weight 1  18.4 %  ██
      │       │ └ 10.0.0.2:50051                           weight 3  55.1 %  ██████
      │       └ eu/eu-1b  edf_weighted_round_robin                   24.5 %
      │         └ 10.0.1.1:50051                           weight 1  24.5 %  ██
      └ orders/priority-1  inactive
        └ 10.1.0.1:50051
  * endpoints from EDS resource \"orders\"
  * 2 % of the calls are dropped (category \"shed\")
  * at most 100 calls at a time from one client
  * failing endpoints are ejected for a while (outlier detection)
  * excluded: 10.0.0.9:50051 (unhealthy)

Cluster orders-v2, 40 % of the calls
  cds_experimental
  └ xds_cluster_resolver_experimental
    └ priority_experimental
      └ orders-v2/priority-0  xds_cluster_impl_experimental    100 %
        └ xds_wrr_locality_experimental
          └ weighted_target_experimental
            └ (no locality)  weighted_round_robin              100 %
              ├ 10.0.2.1:50051                                  20 %  ██
              └ 10.0.2.2:50051                                  80 %  ████████
  * endpoints from EDS resource \"orders-v2\"
  * weights are learned from load reports at run time; until then the EDS
    weights apply, as shown

--stages shows the four configs that lead here, --json everything.
";
    assert_eq!(outcome.stdout, expected);
    assert_eq!(outcome.stderr, "");
}

#[test]
fn a_header_changes_the_route() {
    let args = ["--target", "xds:///orders", "--path", "/shop.Orders/Get", "--header", "X-Canary: yes"];
    let answer = explain_json(SHOP, &args, 0);
    assert_eq!(answer["headers"], json!({ "x-canary": "yes" }));
    let misses: Vec<_> =
        answer["routes"].as_array().expect("routes").iter().map(|route| &route["misses"]).collect();
    assert_eq!(misses, [&json!("the path"), &json!(null)]);
    let clusters = answer["clusters"].as_array().expect("clusters");
    assert_eq!(
        (clusters.len(), &clusters[0]["name"], &clusters[0]["share"]),
        (1, &json!("orders-v2"), &json!(1.0))
    );
}

/// Shares multiply from priority to locality to endpoint. Dropped calls are excluded.
#[test]
fn the_json_has_exact_shares() {
    let answer = explain_json(SHOP, &["--target", "xds:///orders", "--path", "/shop.Orders/Get"], 0);
    let orders = &answer["clusters"][0];
    assert_eq!(orders["name"], "orders");
    assert!((orders["share"].as_f64().expect("a number") - 0.6).abs() < 1e-9);
    assert_eq!(orders["dropped"], json!(0.02));
    let expected = [
        ("10.0.0.1:50051", 0.98 * 0.75 * 0.25),
        ("10.0.0.2:50051", 0.98 * 0.75 * 0.75),
        ("10.0.1.1:50051", 0.98 * 0.25),
        ("10.1.0.1:50051", 0.0),
    ];
    assert_shares(orders, &expected);
    assert_eq!(orders["leaves"][0]["left_out"], json!([{ "address": "10.0.0.9:50051", "why": "unhealthy" }]));
    let forward = &answer["routes"][3]["forward"];
    assert_eq!(forward["timeout"], json!(5.0));
    let retry =
        json!({ "max_attempts": 3, "on": ["Unavailable"], "first_backoff": 0.025, "longest_backoff": 0.25 });
    assert_eq!(forward["retry"], retry);
}

/// The hash selects one endpoint of the ring: the same for the same header. Each endpoint owns a part of the
/// ring.
#[test]
fn a_hash_leads_to_one_endpoint() {
    let go = |user: &str| {
        let header = format!("x-user:{user}");
        let answer = explain_json(SHOP, &["--target", "xds:///carts", "--header", &header], 0);
        let hash = answer["routes"][0]["forward"]["hash"].clone();
        (hash, answer["clusters"][0]["this_call"].clone(), answer)
    };
    let (hash, endpoint, answer) = go("ann");
    // The request hash is XXH64 of "ann".
    assert_eq!(hash, "0b41beba40346ebe");
    assert_eq!(go("ann").1, endpoint);
    let all: std::collections::BTreeSet<_> =
        (0..20).map(|i| go(&i.to_string()).1.as_str().expect("an address").to_owned()).collect();
    assert_eq!(all.into_iter().collect::<Vec<_>>(), ["10.0.3.1:50051", "10.0.3.2:50051", "10.0.3.3:50051"]);
    let sum: f64 = shares(&answer["clusters"][0]).iter().map(|(_, share)| share).sum();
    assert!((sum - 1.0).abs() < 1e-6, "{sum}");

    let text = explain(SHOP, &["--target", "xds:///carts", "--header", "x-user:ann"]).ends_with(0).stdout;
    let endpoint = endpoint.as_str().expect("an address");
    let first = format!("Calls to xds:///carts go to cluster carts: by its hash this one to\n{endpoint}.\n");
    assert!(text.starts_with(&first), "{text}");
}

/// Without the header the hash is random, so no endpoint is named.
#[test]
fn a_call_without_a_hash_goes_anywhere() {
    let answer = explain_json(SHOP, &["--target", "xds:///carts"], 0);
    assert_eq!(answer["clusters"][0]["this_call"], json!(null));
    assert_eq!(answer["routes"][0]["forward"]["hash"], json!(null));
    let by_channel = SHOP.replace("hash: [{header: x-user}]", "hash: [channel_id]");
    let answer = explain_json(&by_channel, &["--target", "xds:///carts"], 0);
    assert_eq!(answer["clusters"][0]["this_call"], json!(null));
    assert_eq!(answer["routes"][0]["forward"]["hash_by_channel"], json!(true));
}

/// An aggregate cluster lists its leaves in order. A DNS name is shown unresolved, with a note.
#[test]
fn aggregates_and_dns_are_shown() {
    let text = explain(SHOP, &["--target", "xds:///everything"]).ends_with(0).stdout;
    let (_, cluster) = text.split_once("Cluster both").expect("the cluster");
    let expected = "
  cds_experimental
  └ xds_cluster_resolver_experimental
    └ priority_experimental
      ├ orders-v2/priority-0  xds_cluster_impl_experimental    100 %
      │ └ xds_wrr_locality_experimental
      │   └ weighted_target_experimental
      │     └ (no locality)  weighted_round_robin              100 %
      │       ├ 10.0.2.1:50051                                  20 %  ██
      │       └ 10.0.2.2:50051                                  80 %  ████████
      └ batch/priority-0  inactive
        └ batch.example:443
  * aggregate of orders-v2, batch: the first usable one gets all calls
  * orders-v2: endpoints from EDS resource \"orders-v2\"
  * batch: endpoints are all addresses of DNS name \"batch.example:443\", which
    is not resolved here: one endpoint for all of them
  * weights are learned from load reports at run time; until then the EDS
    weights apply, as shown

--stages shows the four configs that lead here, --json everything.
";
    assert_eq!(cluster, expected);
}

/// The four configs of A52's worked example, each derived from the previous one.
#[test]
fn the_stages_are_the_four_configs() {
    let mesh = "\
services: {orders: {}}
clusters:
  orders:
    policy: round_robin
    localities: {a: {weight: 1}, b: {weight: 2}}
    endpoints: [{address: 10.0.0.1:1, locality: a}, {address: 10.0.0.2:1, locality: b}]
";
    let answer = explain_json(mesh, &[], 0);
    let policy = json!([{ "xds_wrr_locality_experimental": { "childPolicy": [{ "round_robin": {} }] } }]);
    let stages = answer["clusters"][0]["leaves"][0]["stages"].as_array().expect("stages").clone();
    let names: Vec<_> = stages.iter().map(|stage| stage["name"].as_str().expect("a name")).collect();
    let expected = [
        "lb_policy_config",
        "xds_cluster_resolver_experimental",
        "priority_experimental",
        "weighted_target_experimental",
    ];
    assert_eq!(names, expected);
    assert_eq!(stages[0]["config"], policy);
    assert_eq!(stages[1]["config"]["xdsLbPolicy"], policy);
    let priority = &stages[2]["config"]["children"]["orders/priority-0"]["config"][0];
    assert_eq!(priority["xds_cluster_impl_experimental"]["childPolicy"], policy);
    let weights = |zone: &str| {
        let name = format!("{{region=\"\", zone=\"{zone}\", sub_zone=\"\"}}");
        stages[3]["config"]["targets"][name]["weight"].clone()
    };
    assert_eq!((weights("a"), weights("b")), (json!(1), json!(2)));

    let text = explain(mesh, &["--stages"]).ends_with(0).stdout;
    for (i, name) in names.iter().enumerate() {
        assert!(text.contains(&format!("\nCluster orders, config {} of 4: {name}\n", i + 1)), "{text}");
    }
}

/// A call that matches no route fails, and the exit code is 1.
#[test]
fn a_call_without_a_route_is_a_finding() {
    let outcome = explain(SHOP, &["--target", "xds:///orders"]).ends_with(1);
    assert!(
        outcome.stdout.starts_with("Calls to xds:///orders find no route and fail.\n"),
        "{}",
        outcome.stdout
    );
    assert!(outcome.stdout.ends_with("  --path sets the method of the call.\n"), "{}", outcome.stdout);
    let outcome = explain(SHOP, &["--target", "xds:///orders", "--path", "shop"]).ends_with(1);
    let expected = "Calls to shop of xds:///orders fail: the path \"shop\" does not start with \"/\"\n";
    assert_eq!(outcome.stdout, expected);
}

/// An unknown policy invalidates its cluster only. Calls to it fail with the reason.
#[test]
fn a_cluster_that_clients_reject_is_a_finding() {
    let mesh = "\
services: {orders: {}}
clusters: {orders: {policy: {myorg.Fastest: {}}, endpoints: [10.0.0.1:1]}}
";
    let answer = explain_json(mesh, &[], 1);
    let failure = answer["clusters"][0]["failure"].as_str().expect("a reason").to_owned();
    assert!(failure.contains("cluster \"orders\"") && failure.contains("myorg.Fastest"), "{failure}");
    let text = explain(mesh, &[]).ends_with(1).stdout;
    assert!(text.starts_with("Calls to xds:///orders go to cluster orders: they fail, "), "{text}");
}

/// Decisions at run time are reported without a constant share.
#[test]
fn shares_that_are_not_fixed_are_not_made_up() {
    let mesh = |policy: &str| {
        format!(
            "services: {{a: {{}}}}\nclusters: {{a: {{policy: {policy}, endpoints: [10.0.0.1:1, 10.0.0.2:1]}}}}\n"
        )
    };
    let answer = explain_json(&mesh("least_request"), &[], 0);
    let rows = answer["clusters"][0]["endpoints"].as_array().expect("rows").clone();
    assert_eq!((rows.len(), &rows[0]["share"]), (2, &json!(null)));
    let text = explain(&mesh("least_request"), &[]).ends_with(0).stdout;
    assert!(text.contains("10.0.0.1:1") && text.contains("by load\n"), "{text}");
    assert!(text.contains("* of 2 random endpoints, the one with the fewest calls"), "{text}");

    let answer = explain_json(&mesh("pick_first"), &[], 0);
    assert_shares_of_one(&answer["clusters"][0]);
}

/// Asserts that one of two addresses gets all calls.
#[track_caller]
fn assert_shares_of_one(cluster: &Value) {
    let rows = cluster["endpoints"].as_array().expect("rows");
    let taken: Vec<_> = rows.iter().filter(|row| row["share"] == json!(1.0)).collect();
    assert_eq!((rows.len(), taken.len()), (2, 1), "{rows:?}");
}

#[test]
fn wrong_use_ends_with_2() {
    let missing = evenkeel(["explain", "there-is-no-such-file.yaml"]).ends_with(2);
    assert!(
        missing.stderr.starts_with("error: there-is-no-such-file.yaml: cannot be read"),
        "{}",
        missing.stderr
    );
    for (args, why) in [
        (&[][..], "--target is required: the mesh has the services carts, everything, orders"),
        (
            &["--target", "xds:///nothing"],
            "the mesh has no service \"nothing\"; it has carts, everything, orders",
        ),
        (&["--target", "dns:///orders"], "target \"dns:///orders\""),
        (&["--target", "xds:///orders", "--header", "x-user"], "expected NAME:VALUE, found no colon"),
        (&["--target", "xds:///orders", "--header", "x user:a"], "is not a valid header name"),
        (&["--target", "xds:///orders", "--json", "--stages"], "cannot be used with"),
        (&["--target", "xds:///orders", "--no-such-flag"], "--no-such-flag"),
    ] {
        let outcome = explain(SHOP, args).ends_with(2);
        assert!(outcome.stderr.contains(why), "{args:?}: {}", outcome.stderr);
        assert_eq!(outcome.stdout, "");
    }
    let outcome = explain("services:\n  orders: {cluster: pay}\n", &[]).ends_with(2);
    assert!(outcome.stderr.contains("mesh.yaml:2:"), "{}", outcome.stderr);
}

/// A reader that closes the pipe after one line causes no error.
#[test]
fn a_closed_pipe_ends_it_quietly() {
    let folder = TempFolder::new();
    // More than the buffer of a pipe.
    let many: Vec<_> = (0..4000).map(|i| format!("10.0.{}.{}:50051", i / 250, i % 250)).collect();
    let mesh = format!("services: {{a: {{}}}}\nclusters: {{a: {{endpoints: [{}]}}}}\n", many.join(", "));
    let file = folder.file("mesh.yaml", &mesh);
    let (line, code, stderr) = first_line(["explain", &file]);
    assert_eq!(line, "Calls to xds:///a go to cluster a: 4000 endpoints by edf_weighted_round_robin.\n");
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
}

/// Output is styled on a terminal only, unless requested.
#[test]
fn a_pipe_gets_no_colours() {
    let plain = explain(SHOP, &["--target", "xds:///carts"]).stdout;
    assert!(!plain.contains('\x1b'), "{plain:?}");
    let painted = explain(SHOP, &["--target", "xds:///carts", "--color", "always"]).stdout;
    assert!(painted.contains("\x1b[1m"), "{painted:?}");
}

#[test]
fn help_has_examples() {
    let help = evenkeel(["explain", "--help"]).ends_with(0).stdout;
    assert!(help.contains("Examples:\n  evenkeel explain mesh.yaml --target xds:///orders\n"), "{help}");
}

/// The path `-` is standard input, and errors name it.
#[test]
fn standard_input_is_a_mesh() {
    let explained = evenkeel_with_input(["explain", "-", "--target", "xds:///carts"], SHOP).ends_with(0);
    assert_eq!(explained.stdout, explain(SHOP, &["--target", "xds:///carts"]).stdout);
    let invalid =
        evenkeel_with_input(["explain", "-"], "services:\n  orders: {cluster: nowhere}\n").ends_with(2);
    let expected = "error: <stdin>:2:21: services.orders.cluster: unknown cluster \"nowhere\"\n";
    assert_eq!(invalid.stderr, expected);
}
