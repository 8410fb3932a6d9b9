//! Fault injection: the decision for one call.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::{Code, PickArgs};
use evenkeel_proto::envoy::extensions::filters::common::fault::v3::FaultDelay;
use evenkeel_proto::envoy::extensions::filters::common::fault::v3::fault_delay::{
    FaultDelaySecifier, HeaderDelay,
};
use evenkeel_proto::envoy::extensions::filters::http::fault::v3::fault_abort::{ErrorType, HeaderAbort};
use evenkeel_proto::envoy::extensions::filters::http::fault::v3::{FaultAbort, HttpFault};
use evenkeel_proto::envoy::r#type::v3::FractionalPercent;
use evenkeel_xds::routing::{ActiveFaults, FaultConfig, XdsHttpFilter};
use testkit::resources::{any, filter, route};

use super::{Sent, quiet, select, selector_with};
use crate::route::{routes, seconds};

const HUNDRED: i32 = 0;
const MILLION: i32 = 2;

fn parsed(config: &HttpFault) -> Arc<FaultConfig> {
    let selector = selector_with(routes([route("/", "c")]), vec![filter("f", any(config))], None, &quiet());
    match &select(&selector, &[]).filters()[0].filter {
        XdsHttpFilter::Fault(config) => config.clone(),
        other => panic!("{other:?}"),
    }
}

fn share(numerator: u32, denominator: i32) -> FractionalPercent {
    FractionalPercent { numerator, denominator }
}

fn abort(kind: ErrorType, percentage: impl Into<Option<FractionalPercent>>) -> HttpFault {
    HttpFault {
        abort: Some(FaultAbort { percentage: percentage.into(), error_type: Some(kind) }),
        ..HttpFault::default()
    }
}

fn delay(kind: FaultDelaySecifier, percentage: impl Into<Option<FractionalPercent>>) -> HttpFault {
    HttpFault {
        delay: Some(FaultDelay { percentage: percentage.into(), fault_delay_secifier: Some(kind) }),
        ..HttpFault::default()
    }
}

/// Returns the delay in milliseconds and the code of a call's fault, if it has one.
fn decide(
    config: &FaultConfig,
    headers: &[(&str, &str)],
    entropy: u64,
) -> Option<(Option<u128>, Option<Code>)> {
    let (headers, active) = (Sent(headers), Arc::new(ActiveFaults::default()));
    let injected = config.decide(&PickArgs::new("/s/m", entropy).with_headers(&headers), &active)?;
    Some((injected.delay.map(|delay| delay.as_millis()), injected.abort.map(|status| status.code())))
}

/// Returns the number of calls with a fault, of a hundred thousand.
fn hits(config: &FaultConfig, headers: &[(&str, &str)]) -> usize {
    (0..100_000).filter(|entropy| decide(config, headers, *entropy).is_some()).count()
}

/// RT-3: HTTP statuses become gRPC codes, 200 becomes UNKNOWN, and the gRPC code OK stays OK.
#[test]
fn codes() {
    let code = |kind| decide(&parsed(&abort(kind, share(100, HUNDRED))), &[], 0).and_then(|(_, code)| code);
    for (http, expected) in [
        (200, Code::Unknown),
        (302, Code::Unknown),
        (400, Code::Internal),
        (401, Code::Unauthenticated),
        (403, Code::PermissionDenied),
        (404, Code::Unimplemented),
        (418, Code::Unknown),
        (429, Code::Unavailable),
        (500, Code::Unknown),
        (502, Code::Unavailable),
        (503, Code::Unavailable),
        (504, Code::Unavailable),
        (599, Code::Unknown),
    ] {
        assert_eq!(code(ErrorType::HttpStatus(http)), Some(expected), "{http}");
    }
    for number in 0..=16 {
        assert_eq!(code(ErrorType::GrpcStatus(number)).map(|code| code as u32), Some(number));
    }
    let ok = parsed(&abort(ErrorType::GrpcStatus(0), share(100, HUNDRED)));
    let injected = ok.decide(&PickArgs::new("/s/m", 0), &Arc::default()).expect("a fault");
    assert_eq!(injected.abort.map(|status| status.to_string()).unwrap(), "Ok: aborted by fault injection");
}

/// RT-3: faults hit the configured fraction of calls, in each denominator. Delay and abort are drawn independently.
#[test]
fn shares() {
    let config = HttpFault {
        delay: delay(FaultDelaySecifier::FixedDelay(seconds(3)), share(200_000, MILLION)).delay,
        ..abort(ErrorType::GrpcStatus(14), share(5, HUNDRED))
    };
    let config = parsed(&config);
    let mut counts = [0i64; 4];
    for entropy in 0..100_000 {
        match decide(&config, &[], entropy) {
            None => counts[0] += 1,
            Some((Some(3_000), None)) => counts[1] += 1,
            Some((None, Some(Code::Unavailable))) => counts[2] += 1,
            Some((Some(3_000), Some(Code::Unavailable))) => counts[3] += 1,
            other => panic!("{other:?}"),
        }
    }
    for (found, expected) in counts.iter().zip([76_000, 19_000, 4_000, 1_000]) {
        assert!((found - expected).abs() < 500, "{counts:?}");
    }
    let hit = |percentage: Option<_>| hits(&parsed(&abort(ErrorType::GrpcStatus(1), percentage)), &[]);
    assert_eq!((hit(None), hit(Some(share(0, HUNDRED))), hit(Some(share(200, HUNDRED)))), (0, 0, 100_000));
    let zero = parsed(&delay(FaultDelaySecifier::FixedDelay(seconds(0)), share(100, HUNDRED)));
    assert_eq!(hits(&zero, &[]), 0, "a delay of nothing is none");
    assert_eq!(hits(&parsed(&HttpFault::default()), &[]), 0);
}

/// RT-3: headers of a call set its abort, if the config allows it.
#[test]
fn headers_ask_for_aborts() {
    let config = parsed(&abort(ErrorType::HeaderAbort(HeaderAbort {}), share(100, HUNDRED)));
    let check = |headers: &[(&str, &str)], expected: Option<Code>| {
        assert_eq!(decide(&config, headers, 0).and_then(|(_, code)| code), expected, "{headers:?}");
    };
    let (http, grpc) = ("x-envoy-fault-abort-request", "x-envoy-fault-abort-grpc-request");
    check(&[], None);
    check(&[(http, "503")], Some(Code::Unavailable));
    check(&[(grpc, "5")], Some(Code::NotFound));
    check(&[(grpc, "0")], Some(Code::Ok));
    check(&[(grpc, "5"), (http, "404")], Some(Code::Unimplemented));
    // Invalid values count as absent. The last of several values counts.
    check(&[(grpc, "5"), (http, "many")], Some(Code::NotFound));
    check(&[(grpc, "5"), (http, "99")], Some(Code::NotFound));
    check(&[(grpc, "17")], None);
    check(&[(grpc, "-1")], None);
    check(&[(grpc, "")], None);
    check(&[(grpc, "5"), (grpc, " 6 ")], Some(Code::AlreadyExists));
    // Without HeaderAbort, headers do nothing.
    let fixed = parsed(&abort(ErrorType::GrpcStatus(1), share(100, HUNDRED)));
    assert_eq!(decide(&fixed, &[(grpc, "5")], 0), Some((None, Some(Code::Cancelled))));
}

/// RT-3: headers of a call set its delay, if the config allows it.
#[test]
fn headers_ask_for_delays() {
    let config = parsed(&delay(FaultDelaySecifier::HeaderDelay(HeaderDelay {}), share(100, HUNDRED)));
    let ms = |value: &str| {
        decide(&config, &[("x-envoy-fault-delay-request", value)], 0).and_then(|(delay, _)| delay)
    };
    assert_eq!((ms("53"), ms("0"), ms("5.3"), ms("-1"), ms("")), (Some(53), None, None, None, None));
    assert_eq!(ms("4294967295"), Some(4_294_967_295));
    assert_eq!(decide(&config, &[], 0), None);
}

/// RT-3: a header may lower the fraction of calls, in the unit of the config, but never raise it.
#[test]
fn headers_lower_the_share() {
    let check = |name: &str, config: HttpFault, ask: (&str, &str)| {
        let config = parsed(&config);
        for (value, expected) in
            [("5", 5_000), ("0", 0), ("30", 20_000), ("4294967295", 20_000), ("x", 20_000), ("-1", 20_000)]
        {
            let found = hits(&config, &[ask, (name, value)]);
            assert!(found.abs_diff(expected) < 500, "{name} {value}: {found}");
        }
    };
    check(
        "x-envoy-fault-abort-request-percentage",
        abort(ErrorType::HeaderAbort(HeaderAbort {}), share(20, HUNDRED)),
        ("x-envoy-fault-abort-grpc-request", "14"),
    );
    check(
        "x-envoy-fault-delay-request-percentage",
        delay(FaultDelaySecifier::HeaderDelay(HeaderDelay {}), share(20, HUNDRED)),
        ("x-envoy-fault-delay-request", "10"),
    );
    let fine = parsed(&abort(ErrorType::HeaderAbort(HeaderAbort {}), share(500_000, MILLION)));
    let ask =
        [("x-envoy-fault-abort-grpc-request", "14"), ("x-envoy-fault-abort-request-percentage", "100000")];
    assert!(hits(&fine, &ask).abs_diff(10_000) < 500, "the header counts in millionths as the config does");
}

/// RT-3: the number of active faults is limited per process, over all configs.
#[test]
fn active_faults_are_counted() {
    let config = |max| {
        parsed(&HttpFault {
            max_active_faults: max,
            ..delay(FaultDelaySecifier::FixedDelay(seconds(1)), share(100, HUNDRED))
        })
    };
    let (two, three, any_number, none) = (config(Some(2)), config(Some(3)), config(None), config(Some(0)));
    let active = Arc::new(ActiveFaults::default());
    let call = PickArgs::new("/s/m", 0);
    let first = two.decide(&call, &active).expect("one");
    assert_eq!(first.delay, Some(Duration::from_secs(1)));
    let second = any_number.decide(&call, &active).expect("two");
    assert!(two.decide(&call, &active).is_none());
    assert!(none.decide(&call, &active).is_none());
    let third = three.decide(&call, &active).expect("three");
    assert_eq!(active.count(), 3);
    drop((first, second));
    let again = two.decide(&call, &active).expect("two again");
    drop((third, again));
    assert_eq!(active.count(), 0);
    assert!(none.decide(&call, &active).is_none());
    // A call without a fault does not count as active.
    let spared = parsed(&abort(ErrorType::GrpcStatus(1), share(0, HUNDRED)));
    assert!(spared.decide(&call, &active).is_none());
    assert_eq!(active.count(), 0);
}
