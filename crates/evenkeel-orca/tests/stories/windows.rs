//! Measurements of a server: the layer around a service, on virtual time.

use std::convert::Infallible;
use std::future::{Ready, pending, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use evenkeel_orca::{OrcaLoadReport, ServerLoad};
use http::{Request, Response};
use http_body::Body as _;
use tokio::time::advance;
use tonic::body::Body;
use tonic::{Code, Status};
use tower_layer::Layer as _;
use tower_service::Service;

/// Responds with the code of the header `code`, trailers-only.
#[derive(Clone)]
struct Answers;

impl Service<Request<()>> for Answers {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        let code = request.headers().get("code").map_or(Code::Ok, |code| Code::from_bytes(code.as_bytes()));
        ready(Ok(Status::new(code, "").into_http()))
    }
}

async fn call(load: &ServerLoad, code: Code) {
    let request = Request::builder().header("code", code as i32).body(()).expect("a request");
    let answer = load.layer().layer(Answers).call(request).await.unwrap();
    assert!(answer.into_body().is_end_stream());
}

/// Returns the report after a window. A call ends the window, and the measurement runs asynchronously.
async fn after(load: &ServerLoad, window: Duration) -> OrcaLoadReport {
    let before = load.report();
    advance(window).await;
    call(load, Code::Ok).await;
    // tokio's clock is paused here, so only a failing test reaches this limit.
    let waiting = std::time::Instant::now();
    while waiting.elapsed() < Duration::from_secs(30) {
        let report = load.report();
        if report != before {
            return report;
        }
        tokio::task::yield_now().await;
    }
    panic!("nothing was measured: {before:?}");
}

/// Returns a CPU meter by which each request takes 1 ms of one CPU.
fn a_millisecond_each(requests: &Arc<AtomicU64>) -> impl FnMut(Duration) -> Option<f64> + Send + use<> {
    let requests = requests.clone();
    let mut before = None;
    move |elapsed| {
        let now = requests.load(Ordering::SeqCst);
        let last = before.replace(now)?;
        Some((now - last) as f64 * 0.001 / elapsed.as_secs_f64())
    }
}

/// Requests, errors and CPU are measured over the same window, per second. A window lasts until the next call.
#[tokio::test(start_paused = true)]
async fn requests_errors_and_cpu_of_the_same_window() {
    let requests = Arc::new(AtomicU64::new(0));
    let load = ServerLoad::builder().cpu(a_millisecond_each(&requests)).build();
    for code in [Code::Ok, Code::NotFound, Code::Internal, Code::Unavailable].repeat(50) {
        call(&load, code).await;
        requests.fetch_add(1, Ordering::SeqCst);
    }
    assert_eq!(load.report(), OrcaLoadReport::default(), "the window is not over");
    let report = after(&load, Duration::from_secs(2)).await;
    assert_eq!((report.rps_fractional, report.eps), (100.5, 50.0));
    assert!((report.cpu_utilization - 0.1).abs() < 1e-9, "{report:?}");

    let report = after(&load, Duration::from_secs(10)).await;
    assert_eq!((report.rps_fractional, report.eps, report.cpu_utilization), (0.1, 0.0, 0.0));
}

/// Values that the application sets take precedence over measured ones, until they are cleared.
#[tokio::test(start_paused = true)]
async fn set_values_take_precedence() {
    let load = ServerLoad::builder().cpu(|_| Some(0.25)).build();
    let report = after(&load, Duration::from_secs(1)).await;
    assert_eq!((report.cpu_utilization, report.rps_fractional), (0.25, 1.0));
    load.set_cpu_utilization(0.75);
    load.set_qps(7.0);
    assert_eq!((load.report().cpu_utilization, load.report().rps_fractional), (0.75, 7.0));
    call(&load, Code::Internal).await;
    let report = after(&load, Duration::from_secs(1)).await;
    assert_eq!((report.cpu_utilization, report.rps_fractional, report.eps), (0.75, 7.0, 1.0));
    load.clear_cpu_utilization();
    load.clear_qps();
    assert_eq!((load.report().cpu_utilization, load.report().rps_fractional), (0.25, 2.0));
}

/// A meter that returns nothing or an invalid value leaves the CPU unset, and the rest is reported.
#[tokio::test(start_paused = true)]
async fn a_meter_without_a_value_reports_nothing() {
    for says in [None, Some(f64::NAN), Some(-1.0), Some(f64::INFINITY)] {
        let load = ServerLoad::builder().cpu(move |_| says).build();
        let report = after(&load, Duration::from_secs(1)).await;
        assert_eq!((report.cpu_utilization, report.rps_fractional), (0.0, 1.0));
    }
    let load = ServerLoad::builder().cpu(|elapsed: Duration| -> Option<f64> {
        assert!(elapsed.is_zero(), "a meter that panics");
        None
    });
    let load = load.build();
    advance(Duration::from_secs(1)).await;
    call(&load, Code::Ok).await;
    tokio::task::spawn_blocking(|| ()).await.unwrap();
    call(&load, Code::Ok).await;
}

/// The length of a window and the codes that count as errors are configurable.
#[tokio::test(start_paused = true)]
async fn windows_and_errors_can_be_chosen() {
    let load = ServerLoad::builder()
        .without_cpu()
        .window(Duration::from_millis(100))
        .errors(|code| code == Code::NotFound)
        .build();
    for code in [Code::NotFound, Code::Internal, Code::Ok] {
        call(&load, code).await;
    }
    let report = after(&load, Duration::from_millis(100)).await;
    assert!((report.rps_fractional - 40.0).abs() < 1e-9 && (report.eps - 10.0).abs() < 1e-9, "{report:?}");
    assert_eq!(report.cpu_utilization, 0.0);
}

/// A call that the client cancels counts as a request and not as an error. A handler that panics counts as both.
#[tokio::test(start_paused = true)]
async fn calls_that_do_not_end() {
    #[derive(Clone)]
    struct Odd(bool);
    impl Service<Request<()>> for Odd {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = std::pin::Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;
        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }
        fn call(&mut self, _: Request<()>) -> Self::Future {
            let panics = self.0;
            Box::pin(async move {
                assert!(!panics, "a handler that panics");
                pending().await
            })
        }
    }
    let load = ServerLoad::builder().without_cpu().build();
    let given_up = load.layer().layer(Odd(false)).call(Request::new(()));
    assert!(tokio::time::timeout(Duration::from_millis(1), given_up).await.is_err());
    let panics = load.layer().layer(Odd(true)).call(Request::new(()));
    assert!(tokio::spawn(panics).await.is_err());
    let report = after(&load, Duration::from_secs(1)).await;
    assert!(report.rps_fractional > 2.9 && report.rps_fractional <= 3.0, "{report:?}");
    assert!(report.eps > 0.9 && report.eps <= 1.0, "{report:?}");
}

/// A stream of load reports does not count as a request.
#[tokio::test(start_paused = true)]
async fn streams_of_reports_are_no_requests() {
    let load = ServerLoad::builder().without_cpu().build();
    let method = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics";
    let answer = load.layer().layer(Answers).call(Request::post(method).body(()).unwrap()).await.unwrap();
    assert!(answer.into_body().is_end_stream());
    assert_eq!(after(&load, Duration::from_secs(1)).await.rps_fractional, 1.0);
}

/// By default the CPU of this machine is measured.
#[tokio::test]
async fn the_cpu_of_this_machine() {
    let load = ServerLoad::builder().window(Duration::from_millis(50)).build();
    let busy = async {
        while load.report().cpu_utilization == 0.0 {
            call(&load, Code::Ok).await;
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), busy).await.expect("the CPU is not idle");
    assert!(load.report().cpu_utilization.is_finite() && load.report().rps_fractional > 0.0);
}
