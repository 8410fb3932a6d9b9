//! Recorded values and the reports that contain them.

use std::collections::BTreeMap;

use evenkeel_orca::{CallLoad, OrcaLoadReport, ServerLoad, TRAILER};
use testkit::net::echo::EchoRequest;

use super::{client, handler, record_nothing, report, server};

/// Returns a load without measurements, so that reports contain only recorded values.
fn unmeasured() -> ServerLoad {
    ServerLoad::builder().without_cpu().window(std::time::Duration::MAX).build()
}

const NOT_NUMBERS: [f64; 3] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];

/// ORCA-3: a value outside the range of its metric is ignored, and the previous value stays.
#[tokio::test]
async fn values_outside_of_their_range_are_ignored() {
    type Set = fn(&ServerLoad, f64) -> bool;
    type Get = fn(&OrcaLoadReport) -> f64;
    let amounts: [(Set, Get); 4] = [
        (|load, value| load.set_cpu_utilization(value), |report| report.cpu_utilization),
        (|load, value| load.set_application_utilization(value), |report| report.application_utilization),
        (|load, value| load.set_qps(value), |report| report.rps_fractional),
        (|load, value| load.set_eps(value), |report| report.eps),
    ];
    let shares: [(Set, Get); 2] = [
        (|load, value| load.set_memory_utilization(value), |report| report.mem_utilization),
        (|load, value| load.set_utilization("disk", value), |report| report.utilization["disk"]),
    ];
    let numbers: [(Set, Get); 1] =
        [(|load, value| load.set_named_metric("queue", value), |report| report.named_metrics["queue"])];
    let check = |(set, get): (Set, Get), good: &[f64], bad: &[f64]| {
        let load = unmeasured();
        for value in good {
            assert!(set(&load, *value), "{value}");
            assert_eq!(get(&load.report()).to_bits(), value.to_bits());
        }
        let last = get(&load.report());
        for value in bad.iter().chain(&NOT_NUMBERS) {
            assert!(!set(&load, *value), "{value}");
            assert_eq!(get(&load.report()).to_bits(), last.to_bits());
        }
    };
    for metric in amounts {
        check(metric, &[0.0, 0.5, 1.0, 1.5, f64::MAX], &[-1.0, -f64::MIN_POSITIVE]);
    }
    for metric in shares {
        check(metric, &[0.0, 0.5, 1.0], &[-0.1, 1.000_001, 2.0]);
    }
    for metric in numbers {
        check(metric, &[0.0, -5.0, 1e300], &[]);
    }
}

/// ORCA-3: the ranges also apply to values of a call.
#[tokio::test]
async fn values_of_a_call_have_the_same_ranges() {
    let record = |load: CallLoad| {
        for bad in NOT_NUMBERS.into_iter().chain([-1.0]) {
            assert!(!load.record_cpu_utilization(bad));
            assert!(!load.record_application_utilization(bad));
            assert!(!load.record_qps(bad) && !load.record_eps(bad));
            assert!(!load.record_memory_utilization(bad) && !load.record_utilization("disk", bad));
        }
        assert!(!load.record_memory_utilization(1.1) && !load.record_utilization("disk", 1.1));
        for bad in NOT_NUMBERS {
            assert!(!load.record_request_cost("rows", bad) && !load.record_named_metric("queue", bad));
        }
        Ok(())
    };
    let backend = server(&unmeasured(), handler(record)).await;
    let answer = client(&backend).unary(EchoRequest::default()).await.unwrap();
    assert_eq!(report(answer.metadata().clone()), None, "nothing was recorded");
}

/// ORCA-4: initially every value is unset. The last of several values counts until it is cleared.
#[tokio::test]
async fn what_is_set_stays_until_it_is_cleared() {
    let load = unmeasured();
    assert_eq!(load.report(), OrcaLoadReport::default());
    for value in [0.25, 0.5] {
        assert!(load.set_cpu_utilization(value) && load.set_memory_utilization(value));
        assert!(load.set_application_utilization(value) && load.set_qps(value) && load.set_eps(value));
        assert!(load.set_utilization("disk", value) && load.set_named_metric("queue", value));
    }
    assert!(load.set_utilization("net", 1.0) && load.set_named_metric("heat", 1.0));
    let map = |entries: &[(&str, f64)]| -> BTreeMap<String, f64> {
        entries.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    };
    let all = OrcaLoadReport {
        cpu_utilization: 0.5,
        mem_utilization: 0.5,
        application_utilization: 0.5,
        rps_fractional: 0.5,
        eps: 0.5,
        utilization: map(&[("disk", 0.5), ("net", 1.0)]),
        named_metrics: map(&[("heat", 1.0), ("queue", 0.5)]),
        ..OrcaLoadReport::default()
    };
    assert_eq!(load.report(), all);
    assert_eq!(load.clone().report(), all, "clones are the same");

    load.clear_utilization("disk");
    load.clear_named_metric("heat");
    assert_eq!(load.report().utilization, map(&[("net", 1.0)]));
    assert_eq!(load.report().named_metrics, map(&[("queue", 0.5)]));
    assert!(!load.set_all_utilization([("a", 0.1), ("b", 7.0)]), "one of them is no share");
    assert!(load.set_all_named_metrics([("c", 7.0)]));
    assert_eq!(load.report().utilization, map(&[("a", 0.1)]));
    assert_eq!(load.report().named_metrics, map(&[("c", 7.0)]));

    load.clear_cpu_utilization();
    load.clear_memory_utilization();
    load.clear_application_utilization();
    load.clear_qps();
    load.clear_eps();
    load.clear_utilization("a");
    load.clear_named_metric("c");
    load.clear_named_metric("never there");
    assert_eq!(load.report(), OrcaLoadReport::default());
}

/// ORCA-4: a call's own values take precedence over the server's, zero included. The last of several counts. Calls do
/// not see each other's values.
#[tokio::test]
async fn values_of_a_call_take_precedence() {
    let load = unmeasured();
    load.set_cpu_utilization(0.5);
    load.set_application_utilization(0.7);
    load.set_qps(100.0);
    load.set_eps(3.0);
    load.set_memory_utilization(0.3);
    load.set_utilization("disk", 0.9);
    load.set_utilization("net", 0.1);
    load.set_named_metric("queue", 1.0);
    let record = |load: CallLoad| {
        load.record_cpu_utilization(0.6);
        load.record_cpu_utilization(0.8);
        load.record_eps(0.0);
        load.record_application_utilization(0.1);
        load.record_memory_utilization(0.2);
        load.record_qps(7.0);
        load.record_utilization("disk", 0.2);
        load.record_named_metric("heat", -2.0);
        load.record_request_cost("rows", 17.0);
        Ok(())
    };
    let backend = server(&load, handler(record)).await;
    let answer = client(&backend).unary(EchoRequest::default()).await.unwrap();
    let report_of_call = report(answer.metadata().clone()).expect("a report");
    assert_eq!(report_of_call.cpu_utilization, 0.8);
    assert_eq!((report_of_call.rps_fractional, report_of_call.eps), (7.0, 0.0));
    assert_eq!((report_of_call.application_utilization, report_of_call.mem_utilization), (0.1, 0.2));
    let entries = |map: &BTreeMap<String, f64>| format!("{map:?}");
    assert_eq!(entries(&report_of_call.utilization), r#"{"disk": 0.2, "net": 0.1}"#);
    assert_eq!(entries(&report_of_call.named_metrics), r#"{"heat": -2.0, "queue": 1.0}"#);
    assert_eq!(entries(&report_of_call.request_cost), r#"{"rows": 17.0}"#);

    assert_eq!(load.report().cpu_utilization, 0.5, "the server's are as they were");
    let other = server(&load, record_nothing()).await;
    let answer = client(&other).unary(EchoRequest::default()).await.unwrap();
    assert_eq!(report(answer.metadata().clone()), Some(load.report()));
}

/// Calls that run interleaved on one thread have their own recorders, at any depth. A task that the handler spawns
/// has none.
#[tokio::test]
async fn each_call_has_its_own_recorder() {
    use http::{Request, Response};
    use tower_layer::Layer as _;
    use tower_service::Service;

    #[derive(Clone)]
    struct Handler;

    impl Service<Request<u32>> for Handler {
        type Response = Response<tonic::body::Body>;
        type Error = std::convert::Infallible;
        type Future =
            std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, std::convert::Infallible>> + Send>>;

        fn poll_ready(
            &mut self,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), std::convert::Infallible>> {
            std::task::Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<u32>) -> Self::Future {
            let number = *request.body();
            CallLoad::current().expect("behind the layer").record_request_cost("sync", f64::from(number));
            Box::pin(async move {
                for turn in 0..number % 5 {
                    tokio::task::yield_now().await;
                    CallLoad::current()
                        .expect("behind the layer")
                        .record_named_metric("turn", f64::from(turn));
                }
                if number % 7 == 6 {
                    // The server calls another server in the same process.
                    let other = unmeasured().layer().layer(Handler).call(Request::new(number - 1)).await?;
                    assert_eq!(cost(&other), Some(f64::from(number - 1)));
                }
                assert!(tokio::spawn(async { CallLoad::current().is_none() }).await.expect("a task"));
                CallLoad::current()
                    .expect("behind the layer")
                    .record_request_cost("async", f64::from(number));
                Ok(tonic::Status::ok("").into_http())
            })
        }
    }

    fn cost(answer: &Response<impl Sized>) -> Option<f64> {
        // Values that do not repeat are not added to the HPACK table.
        assert!(answer.headers()[TRAILER].is_sensitive());
        let report = evenkeel_orca::read_trailers(answer.headers()).report?;
        let [a, b] = &report.request_cost[..] else { return None };
        (a.value == b.value).then_some(a.value)
    }

    let load = unmeasured();
    let calls = (0..50).map(|number| {
        let mut service = load.layer().layer(Handler);
        async move { (number, service.call(Request::new(number)).await.expect("a response")) }
    });
    // All calls run in one task, so that each is suspended inside another.
    let mut calls: Vec<_> = calls.map(Box::pin).collect();
    let mut costs = Vec::new();
    std::future::poll_fn(|cx| {
        calls.retain_mut(|call| match call.as_mut().poll(cx) {
            std::task::Poll::Ready((number, answer)) => {
                costs.push((number, cost(&answer)));
                false
            }
            std::task::Poll::Pending => true,
        });
        if calls.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    costs.sort_by_key(|(number, _)| *number);
    let expected: Vec<_> = (0..50).map(|number| (number, Some(f64::from(number)))).collect();
    assert_eq!(costs, expected);
    assert!(CallLoad::current().is_none(), "there is no call here");
}
