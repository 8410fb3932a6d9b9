//! Trailers of calls to a real server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_orca::{CallLoad, OrcaLoadReport, ServerLoad, TRAILER};
use testkit::net::echo::EchoRequest;
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use super::{client, handler, record_nothing, report, server};

/// Returns a load with one value and no measurements.
fn half_busy() -> ServerLoad {
    let load = ServerLoad::builder().without_cpu().window(Duration::MAX).build();
    load.set_cpu_utilization(0.5);
    load
}

fn half() -> OrcaLoadReport {
    OrcaLoadReport { cpu_utilization: 0.5, ..OrcaLoadReport::default() }
}

/// ORCA-1, ORCA-5: calls of every kind end with a report in their trailers.
#[tokio::test]
async fn every_kind_of_call_ends_with_a_report() {
    let backend = server(&half_busy(), record_nothing()).await;
    let mut client = client(&backend);

    let answer = client.unary(EchoRequest::default()).await.unwrap();
    assert_eq!(answer.metadata().get_all_bin(TRAILER).iter().count(), 1);
    assert_eq!(report(answer.metadata().clone()), Some(half()));

    let requests = tokio_stream::iter([EchoRequest::default(), EchoRequest::default()]);
    let answer = client.client_stream(requests).await.unwrap();
    assert_eq!(report(answer.metadata().clone()), Some(half()));

    let request = EchoRequest { repeat: 3, ..EchoRequest::default() };
    let answer = client.server_stream(request).await.unwrap();
    assert!(!answer.metadata().contains_key(TRAILER), "the head of a stream is not its end");
    let mut messages = answer.into_inner();
    let mut count = 0;
    while messages.message().await.unwrap().is_some() {
        count += 1;
    }
    assert_eq!(count, 3);
    assert_eq!(report(messages.trailers().await.unwrap().unwrap()), Some(half()));

    let mut messages = client.bidi(tokio_stream::iter([EchoRequest::default()])).await.unwrap().into_inner();
    while messages.message().await.unwrap().is_some() {}
    assert_eq!(report(messages.trailers().await.unwrap().unwrap()), Some(half()));
}

/// ORCA-5: failed calls report too: at once, in the middle of a stream, and when a handler or a layer rejects them.
#[tokio::test]
async fn calls_that_fail_report_too() {
    let backend = server(&half_busy(), record_nothing()).await;
    let mut client = client(&backend);
    let fail = EchoRequest { code: Code::Aborted as u32, ..EchoRequest::default() };
    let status = client.unary(fail.clone()).await.unwrap_err();
    assert_eq!((status.code(), report(status.metadata().clone())), (Code::Aborted, Some(half())));

    let fail_later = EchoRequest { repeat: 2, ..fail };
    let mut messages = client.server_stream(fail_later).await.unwrap().into_inner();
    let status = loop {
        match messages.message().await {
            Ok(message) => assert!(message.is_some()),
            Err(status) => break status,
        }
    };
    assert_eq!((status.code(), report(status.metadata().clone())), (Code::Aborted, Some(half())));

    let refuse = handler(|load| {
        load.record_request_cost("check", 1.0);
        Err(Status::permission_denied("not you"))
    });
    let backend = server(&half_busy(), refuse).await;
    let status = super::client(&backend).unary(EchoRequest::default()).await.unwrap_err();
    let report = report(status.metadata().clone()).expect("a report");
    assert_eq!((status.code(), report.cpu_utilization), (Code::PermissionDenied, 0.5));
    assert_eq!(report.request_cost["check"], 1.0);
}

/// ORCA-5: without a recorded value no report is sent. A recorded zero is a value.
#[tokio::test]
async fn nothing_recorded_is_nothing_sent() {
    let load = half_busy();
    load.clear_cpu_utilization();
    let backend = server(&load, record_nothing()).await;
    let mut client = client(&backend);
    let metadata = |answer: tonic::Response<_>| -> MetadataMap { answer.metadata().clone() };
    let answer = metadata(client.unary(EchoRequest::default()).await.unwrap());
    assert!(!answer.contains_key(TRAILER));
    load.set_eps(0.0);
    let answer = metadata(client.unary(EchoRequest::default()).await.unwrap());
    assert_eq!(report(answer), Some(OrcaLoadReport::default()));
}

/// A streaming handler may record until its stream ends.
#[tokio::test]
async fn a_stream_records_until_it_ends() {
    let kept: Arc<Mutex<Option<CallLoad>>> = Arc::default();
    let keep = handler({
        let kept = kept.clone();
        move |load| {
            *kept.lock().unwrap() = Some(load);
            Ok(())
        }
    });
    let backend = server(&half_busy(), keep).await;
    let (requests, outgoing) = tokio::sync::mpsc::channel(1);
    let outgoing = tokio_stream::wrappers::ReceiverStream::new(outgoing);
    let mut messages = client(&backend).bidi(outgoing).await.unwrap().into_inner();
    requests.send(EchoRequest::default()).await.unwrap();
    assert!(messages.message().await.unwrap().is_some());
    let load = kept.lock().unwrap().take().expect("the call began");
    load.record_request_cost("rows", 5.0);
    drop(requests);
    assert!(messages.message().await.unwrap().is_none());
    let report = report(messages.trailers().await.unwrap().unwrap()).expect("a report");
    assert_eq!(report.request_cost["rows"], 5.0);
    // Recording after the end of the call has no effect and causes no panic.
    load.record_request_cost("rows", 6.0);
}

/// A report that the application sets itself is not replaced: two reports would be ignored (ORCA-1).
#[tokio::test]
async fn the_applications_own_report_is_kept() {
    let load = half_busy();
    let backend = server(&load, record_nothing()).await;
    // The backend adds it to the trailers below the layer.
    backend.set_load(Some(OrcaLoadReport { cpu_utilization: 0.9, ..OrcaLoadReport::default() }));
    let mut client = client(&backend);
    let answer = client.unary(EchoRequest::default()).await.unwrap();
    assert_eq!(report(answer.metadata().clone()).map(|report| report.cpu_utilization), Some(0.9));
    let fail = EchoRequest { code: Code::Internal as u32, ..EchoRequest::default() };
    let status = client.unary(fail).await.unwrap_err();
    assert_eq!(report(status.metadata().clone()).map(|report| report.cpu_utilization), Some(0.9));
}
