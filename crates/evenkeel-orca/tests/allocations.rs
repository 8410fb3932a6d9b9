//! Memory that parsing a load report allocates, and that the layer adds to a call, counted by the allocator.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use evenkeel_orca::{CallLoad, OrcaLoadReport, ParsedReport, ServerLoad, TRAILER, read_trailers};
use evenkeel_proto::prost::Message as _;
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use testkit::Counting;
use tonic::metadata::{MetadataMap, MetadataValue};
use tower_layer::Layer as _;
use tower_service::Service;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Parsing a report of numbers allocates nothing. A report with a name takes two allocations: the name, and the
/// list's first entry.
#[test]
fn a_report_of_numbers_is_read_without_memory() {
    let numbers = OrcaLoadReport {
        cpu_utilization: 0.5,
        mem_utilization: 0.25,
        application_utilization: 0.75,
        rps_fractional: 1_000.0,
        eps: 1.0,
        ..OrcaLoadReport::default()
    };
    let mut one_name = numbers.clone();
    one_name.named_metrics.insert("queue".to_owned(), 3.0);
    for (report, expected) in [(None, 0), (Some(numbers), 0), (Some(one_name), 2)] {
        let trailers = trailers(report.as_ref());
        assert_eq!(in_full(read_trailers(&trailers)), report);
        let (allocations, _) = Counting::during(|| read_trailers(&trailers));
        assert_eq!(allocations.count, expected, "{report:?}");
    }
}

/// The layer adds no allocation to a call, because calls share the trailer. A handler that requests its recorder
/// takes one. A recorded cost takes four more: the cost's name, the map's node, and the call's own report in bytes
/// and in base64.
#[test]
fn the_layer_adds_no_allocation_to_a_call() {
    let load = ServerLoad::builder().without_cpu().window(NEVER).build();
    load.set_cpu_utilization(0.5);
    load.set_qps(1_000.0);
    let (bare, none) = second_call(Echo { cost: None });
    assert_eq!(none, None);

    let (allocations, report) = second_call(load.layer().layer(Echo { cost: None }));
    assert_eq!((allocations - bare, report), (0, Some(load.report())));

    // The handler requests its recorder, and records an invalid cost.
    let (allocations, report) = second_call(load.layer().layer(Echo { cost: Some(f64::NAN) }));
    assert_eq!((allocations - bare, report), (1, Some(load.report())));

    let (allocations, report) = second_call(load.layer().layer(Echo { cost: Some(17.0) }));
    let mut expected = load.report();
    expected.request_cost.insert("rows".to_owned(), 17.0);
    assert_eq!((allocations - bare, report), (5, Some(expected)));
}

/// Longer than any test, so no call ends a window.
const NEVER: Duration = Duration::from_secs(3_600);

/// Returns the allocations of a service's second call, and the report in its trailers.
fn second_call<S, B>(mut service: S) -> (u64, Option<OrcaLoadReport>)
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible>,
    B: Body<Data = Bytes, Error = Infallible>,
{
    let mut call = || {
        let (allocations, trailers) = Counting::during(|| answer(service.call(Request::new(()))));
        (allocations.count, in_full(read_trailers(&trailers)))
    };
    call();
    call()
}

/// Decodes the parsed report as the original message.
fn in_full(reading: ParsedReport) -> Option<OrcaLoadReport> {
    assert_eq!(reading.ignored, None);
    reading.report.map(|report| OrcaLoadReport::decode(&*report.encode_to_vec()).expect("the same message"))
}

/// Returns the trailers of a response that is ready at once.
fn answer<B: Body<Data = Bytes, Error = Infallible>>(
    future: impl Future<Output = Result<Response<B>, Infallible>>,
) -> HeaderMap {
    let mut cx = Context::from_waker(Waker::noop());
    let Poll::Ready(Ok(response)) = pin!(future).poll(&mut cx) else { panic!("no response") };
    let Poll::Ready(Some(Ok(frame))) = pin!(response.into_body()).poll_frame(&mut cx) else {
        panic!("no frame")
    };
    frame.into_trailers().expect("trailers")
}

/// Responds with trailers only, after an optional recorded cost.
struct Echo {
    cost: Option<f64>,
}

impl Service<Request<()>> for Echo {
    type Response = Response<Trailers>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Trailers>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        if let Some(cost) = self.cost {
            let load = CallLoad::current().expect("behind the layer");
            load.record_request_cost("rows", cost);
        }
        ready(Ok(Response::new(Trailers)))
    }
}

struct Trailers;

impl Body for Trailers {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(Some(Ok(Frame::trailers(trailers(None)))))
    }
}

fn trailers(report: Option<&OrcaLoadReport>) -> HeaderMap {
    let mut trailers = MetadataMap::new();
    trailers.insert("grpc-status", MetadataValue::from_static("0"));
    if let Some(report) = report {
        trailers.insert_bin(TRAILER, MetadataValue::from_bytes(&report.encode_to_vec()));
    }
    trailers.into_headers()
}
