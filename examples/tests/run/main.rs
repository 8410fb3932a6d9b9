//! Runs every example to completion, and checks its output against the claims of its head comment.
//!
//! Deterministic shares are compared exactly, random ones within statistical bounds. The tests do not depend
//! on the speed of the machine: each example may take two minutes.

mod listed;

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::process::Command;

/// Maximum duration of an example. Only a hanging one reaches it.
const LIMIT: Duration = Duration::from_secs(120);

/// Output lines of a program that exited with success.
struct Printed(Vec<String>);

async fn run(program: &str) -> Printed {
    let output = Command::new(program).kill_on_drop(true).output();
    let output =
        tokio::time::timeout(LIMIT, output).await.expect("it ends by itself").expect("it can be run");
    let text = String::from_utf8(output.stdout).expect("it prints text");
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && complaints.is_empty(), "{}\n{complaints}\n{text}", output.status);
    println!("{text}");
    Printed(text.lines().map(str::to_owned).collect())
}

impl Printed {
    /// Returns the rest of the only line with this prefix.
    fn after(&self, label: &str) -> &str {
        let mut found = self.0.iter().filter_map(|line| line.strip_prefix(label));
        let rest =
            found.next().unwrap_or_else(|| panic!("no line begins with {label:?}:\n{}", self.0.join("\n")));
        assert_eq!(found.next(), None, "more than one line begins with {label:?}");
        rest.trim()
    }

    fn tally(&self, label: &str) -> Tally {
        Tally::read(self.after(label))
    }
}

/// Parsed form of `a 30 (75 %), b 10 (25 %); failed 0`.
#[derive(Debug)]
struct Tally {
    answered: BTreeMap<String, usize>,
    failed: usize,
}

impl Tally {
    fn read(text: &str) -> Tally {
        let (answered, rest) = text.split_once("; failed ").expect("a tally tells what failed");
        let failed =
            rest.split(';').next().and_then(|failed| failed.parse().ok()).expect("a number of calls");
        let answered = answered.split(", ").filter_map(|server| {
            let (name, rest) = server.split_once(' ')?;
            Some((name.to_owned(), rest.split_once(' ')?.0.parse().ok()?))
        });
        Tally { answered: answered.collect(), failed }
    }

    /// Asserts the number of calls per server, without failures.
    #[track_caller]
    fn is<const N: usize>(&self, answered: [(&str, usize); N]) {
        let expected: BTreeMap<_, _> =
            answered.into_iter().map(|(name, calls)| (name.to_owned(), calls)).collect();
        assert_eq!((&self.answered, self.failed), (&expected, 0));
    }

    /// Asserts that exactly these servers served calls, without failures.
    #[track_caller]
    fn by<const N: usize>(&self, servers: [&str; N]) {
        assert!(self.answered.keys().eq(servers) && self.failed == 0, "{self:?}");
    }

    /// Asserts that only servers with this name prefix served calls, without failures.
    #[track_caller]
    fn only(&self, prefix: &str) {
        let fits = !self.answered.is_empty() && self.answered.keys().all(|name| name.starts_with(prefix));
        assert!(fits && self.failed == 0, "{self:?}");
    }

    /// Returns the share of a server in percent.
    fn percent(&self, server: &str) -> f64 {
        let all = self.answered.values().sum::<usize>() + self.failed;
        *self.answered.get(server).unwrap_or(&0) as f64 / all as f64 * 100.0
    }
}

#[track_caller]
fn near(value: f64, expected: f64, by: f64) {
    assert!((value - expected).abs() <= by, "{value} is not within {by} of {expected}");
}

#[tokio::test]
async fn call_by_xds() {
    let printed = run(env!("CARGO_BIN_EXE_call_by_xds")).await;
    assert!(printed.after("xds:///orders: response from").starts_with("old-"));
    printed.tally("before the deployment:").only("old-");
    let after = printed.tally("after the deployment:");
    after.only("new-");
    assert_eq!(after.answered.values().sum::<usize>(), 21);
}

#[tokio::test]
async fn call_without_xds() {
    let printed = run(env!("CARGO_BIN_EXE_call_without_xds")).await;
    printed.tally("a DNS name:").is([("a", 30)]);
    printed.tally("a list, in turn:").is([("a", 10), ("b", 10), ("c", 10)]);
    printed.tally("one of them fails:").by(["a", "c"]);
    let first = printed.tally("without service config:");
    assert!(first.answered.values().eq([&30]), "one server for everything: {first:?}");
}

#[tokio::test]
async fn canary() {
    let printed = run(env!("CARGO_BIN_EXE_canary")).await;
    // The tolerances are six standard deviations.
    near(printed.tally("v2 for 10 %:").percent("v2"), 10.0, 5.7);
    near(printed.tally("v2 for 50 %:").percent("v2"), 50.0, 9.5);
    // Routes apply shortly after the ACK, so a few calls may still use the old ones.
    near(printed.tally("v2 called off:").percent("v2"), 0.0, 2.0);
    let asking: Vec<_> =
        printed.0.iter().filter_map(|line| line.strip_prefix("with x-canary: please: ")).collect();
    assert_eq!(asking, ["v2 100 (100 %); failed 0"; 2]);
}

#[tokio::test]
async fn drain() {
    let printed = run(env!("CARGO_BIN_EXE_drain")).await;
    printed.tally("three servers:").by(["a", "b", "c"]);
    assert_eq!(printed.tally("while a is drained:").failed, 0);
    // The last response of a server may be counted after its shutdown.
    let without_a = printed.tally("without a:");
    assert!(without_a.failed == 0 && without_a.percent("a") < 10.0, "{without_a:?}");
    assert_eq!(printed.tally("while b stops:").failed, 0);
    let without_b = printed.tally("without b:");
    assert!(without_b.failed == 0 && without_b.percent("c") > 90.0, "{without_b:?}");
    printed.tally("those under way last:").by(["c"]);
}

#[tokio::test]
async fn failover() {
    let printed = run(env!("CARGO_BIN_EXE_failover")).await;
    printed.tally("all is well:").is([("eu-1", 20), ("eu-2", 20)]);
    printed.tally("eu is down:").only("us-");
    let returns = printed.tally("eu returns:");
    assert_eq!(returns.failed, 0);
    assert!(returns.answered.keys().any(|name| name.starts_with("eu-")), "{returns:?}");
    printed.tally("and from then on:").only("eu-");
}

#[tokio::test]
async fn fleet() {
    let printed = run(env!("CARGO_BIN_EXE_fleet")).await;
    // One table per policy, with the calls of three acts on its last line.
    let calls: Vec<_> = printed.0.iter().filter(|line| line.trim_start().starts_with("calls")).collect();
    assert_eq!(calls.len(), 8);
    let at = printed.0.iter().position(|line| line.starts_with("weighted_round_robin")).expect("it is shown");
    let weighted =
        printed.0[at..].iter().find(|line| line.trim_start().starts_with("calls")).expect("its last line");
    assert_eq!(weighted.matches("0.0% failed").count(), 3, "{weighted}");
}

#[tokio::test]
async fn look_inside() {
    let printed = run(env!("CARGO_BIN_EXE_look_inside")).await;
    assert!(printed.after("the page:").starts_with("http://127.0.0.1:"));
    assert_eq!(printed.after("xds:///orders is"), "Ready");
    for (name, weight) in [("a", 1.0), ("b", 2.0), ("c", 3.0)] {
        let row = printed.after(&format!("  {name:<8} Ready, weight {weight},"));
        let number = |label: &str| -> f64 {
            let rest = row.split_once(label).expect("it is there").1;
            rest.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
        };
        near(number("want "), weight / 6.0 * 100.0, 0.1);
        near(number("got "), weight / 6.0 * 100.0, 5.0);
        assert!(row.ends_with(", 0 failed"), "{row}");
    }
    for kind in ["Listener", "RouteConfiguration", "Cluster", "ClusterLoadAssignment"] {
        assert!(printed.after(&format!("  {kind:<22} orders ")).starts_with("ACKED"));
    }
}

#[tokio::test]
async fn mesh_tls() {
    let printed = run(env!("CARGO_BIN_EXE_mesh_tls")).await;
    assert_eq!(printed.after("over mTLS: response from"), "server");
    assert_eq!(printed.after("the server saw a client certificate:"), "true");
    let refused = printed.after("another identity:");
    let (expected, found) = ("ns/shop/sa/payments", "ns/shop/sa/orders");
    assert!(refused.starts_with("Unavailable:") && refused.contains(expected), "{refused}");
    assert!(refused.contains(found), "{refused}");
}

#[tokio::test]
async fn metrics() {
    let printed = run(env!("CARGO_BIN_EXE_metrics")).await;
    let calls = printed.tally("calls:");
    assert_eq!((calls.answered.get("good"), calls.failed), (Some(&50), 50));
    let value = |name: &str, label: &str| {
        let mut series =
            printed.0.iter().filter(|line| line.starts_with(&format!("{name} {{")) && line.contains(label));
        let line = series.next().unwrap_or_else(|| panic!("no series of {name} with {label}"));
        line.split_once("} = ").expect("a value").1.to_owned()
    };
    assert_eq!(value("grpc.client.attempt.started", "grpc.method=shop.Orders/Get"), "100");
    for status in ["OK", "UNAVAILABLE"] {
        let label = format!("grpc.status={status}");
        assert!(value("grpc.client.call.duration", &label).starts_with("50 values"), "{status}");
    }
    assert_eq!(value("grpc.subchannel.open_connections", "grpc.security_level=none"), "2");
    assert!(printed.0.iter().any(|line| line.starts_with("yes grpc.client.attempt.started ")));
}

#[tokio::test]
async fn outliers() {
    let printed = run(env!("CARGO_BIN_EXE_outliers")).await;
    printed.tally("all is well:").by(["a", "b", "bad", "c"]);
    assert!(printed.tally("until it is ejected:").failed > 0);
    let aside = printed.tally("ejected:");
    // Calls that were active at the ejection may be counted here.
    assert!(aside.answered.keys().eq(["a", "b", "c"]) && aside.failed <= 3, "{aside:?}");
    printed.tally("after unejection:").by(["a", "b", "bad", "c"]);
}

#[tokio::test]
async fn own_policy() {
    let printed = run(env!("CARGO_BIN_EXE_own_policy")).await;
    near(printed.tally("80 % to the favourite:").percent("a"), 80.0, 7.6);
    printed.tally("without the policy:").is([("a", 100), ("b", 100), ("c", 100)]);
    near(printed.tally("20 % to the favourite:").percent("a"), 20.0, 10.0);
    let nack = printed.after("120 %?");
    assert!(
        nack.contains("example.Favourite") && nack.contains("percent: expected 0 to 100, found 120"),
        "{nack}"
    );
    near(printed.tally("still 20 %:").percent("a"), 20.0, 7.6);
}

#[tokio::test]
async fn report_load() {
    let printed = run(env!("CARGO_BIN_EXE_report_load")).await;
    let seconds: Vec<_> = (1..=6).map(|second| printed.tally(&format!("second {second}:"))).collect();
    assert!(seconds.iter().all(|tally| tally.failed == 0), "{seconds:?}");
    for (name, share) in [("small", 1.0), ("medium", 2.0), ("large", 4.0)] {
        near(seconds[5].percent(name), share / 7.0 * 100.0, 8.0);
    }
}

#[tokio::test]
async fn retries() {
    let printed = run(env!("CARGO_BIN_EXE_retries")).await;
    let as_it_is = printed.tally("as it is:");
    assert_eq!((as_it_is.answered.len(), as_it_is.failed), (2, 20));
    printed.tally("with retries:").by(["fine", "good"]);
    let late = printed.after("with a limit of 200 ms:");
    let ms: u64 = late.split_whitespace().nth(1).and_then(|ms| ms.parse().ok()).expect("a number");
    assert!(ms >= 190 && late.contains("deadline"), "{late}");
}

#[tokio::test]
async fn sticky_users() {
    let printed = run(env!("CARGO_BIN_EXE_sticky_users")).await;
    assert_eq!(printed.after("200 users, two calls each:"), "0 met another server");
    let numbers = |label: &str| -> Vec<usize> {
        printed.after(label).split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    let down = numbers("d is down:");
    assert!(down[0] == down[1] && down[0] > 0, "{down:?}");
    assert_eq!(printed.after("d is back:"), "all users are where they were");
    let off = numbers("d is off the list:");
    assert!(off[0] >= off[1] && off[0] < 120, "{off:?}");
    assert_eq!(numbers("d is on it again:"), [0]);
}

#[tokio::test]
async fn test_a_client() {
    let printed = run(env!("CARGO_BIN_EXE_test_a_client")).await;
    let checks: Vec<_> = printed.0.iter().filter(|line| !line.starts_with(' ')).collect();
    assert_eq!(checks.len(), 8);
    assert!(checks.iter().all(|line| line.starts_with("ok ")), "{checks:?}");
}

#[tokio::test]
async fn tls() {
    let printed = run(env!("CARGO_BIN_EXE_tls")).await;
    assert_eq!(printed.after("before the rotation the server saw the first certificate:"), "true");
    assert_eq!(printed.after("after the rotation it saw the second one:"), "true");
    assert!(printed.after("without a certificate:").contains("the server refused"));
}

#[tokio::test]
async fn weights() {
    let printed = run(env!("CARGO_BIN_EXE_weights")).await;
    let order = printed.after("in this order:");
    assert_eq!(
        [order.matches('a').count(), order.matches('b').count(), order.matches('c').count()],
        [2, 4, 6]
    );
    printed.tally("weights 1 2 3:").is([("a", 10), ("b", 20), ("c", 30)]);
    printed.tally("weights 8 1 1:").is([("a", 48), ("b", 6), ("c", 6)]);
}
