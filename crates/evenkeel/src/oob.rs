//! Load that a backend reports out of band (A51): one stream on the connection that its calls use.
//!
//! The stream goes on while somebody listens and the connection takes calls; the driver starts it, and stops it by dropping its
//! task. A backend that does not know the service is asked once per connection, and one that takes a single call at a time
//! not at all: the stream would take its place. Any other end is followed by another attempt: at once if a message came,
//! but a second after the last attempt at the soonest; otherwise after a back-off that grows.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use evenkeel_core::{Backoff, LoadReport, Rng};
use evenkeel_orca::{METHOD, read};
use evenkeel_proto::prost_types;
use evenkeel_proto::xds::service::orca::v3::OrcaLoadReportRequest;
use http::uri::PathAndQuery;
use tokio::time::{Instant, sleep_until};
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::call::{Attempt, Deadline, End, Flight, Replay, ResponseBody};
use crate::channel::Head;
use crate::connection::Connection;
use crate::metrics::Metrics;
use crate::{entropy, http2, load};

/// What a stream needs beside its connection.
#[derive(Clone)]
pub(crate) struct Asking {
    pub(crate) head: Head,
    pub(crate) metrics: Metrics,
    /// How often reports are wanted.
    pub(crate) every: Duration,
}

/// Asks the backend at the other end for reports, and hands on each that comes. It ends only if the backend has none to
/// give.
pub(crate) async fn watch(connection: Arc<Connection>, asking: Asking, report: impl Fn(LoadReport)) {
    let link = connection.shared();
    let address = link.address();
    if !link.may_report_load() {
        return;
    }
    if !link.takes_two_calls() {
        link.reports_no_load();
        tracing::error!(%address, "the backend takes one call at a time; it is not asked for load out of band");
        return;
    }
    let backoff = Backoff::default();
    let mut rng = Rng::from_entropy(entropy::fresh());
    let mut attempts = 0;
    let mut client = Grpc::new(Direct { connection: connection.clone(), head: asking.head.clone() });
    loop {
        let began = Instant::now();
        let (has_reported, error) = listen(&mut client, &asking, &report).await;
        if error.code() == Code::Unimplemented {
            link.reports_no_load();
            tracing::error!(%address, "the backend reports no load out of band; it is not asked again on this connection");
            return;
        }
        tracing::debug!(%address, %error, "out-of-band load reports ended");
        if has_reported {
            // A51 wants the next attempt at once. A backend that ends each stream after a report would never rest.
            attempts = 0;
            sleep_until(began + backoff.initial).await;
        } else {
            sleep_until(Instant::now() + backoff.wait(attempts, &mut rng)).await;
            attempts = attempts.saturating_add(1);
        }
    }
}

/// Hands on reports until the stream ends; answers whether there were messages, and why it ended.
async fn listen(client: &mut Grpc<Direct>, asking: &Asking, report: impl Fn(LoadReport)) -> (bool, Status) {
    let every = prost_types::Duration::try_from(asking.every).ok();
    let request = OrcaLoadReportRequest { report_interval: every, ..OrcaLoadReportRequest::default() };
    let method = PathAndQuery::from_static(METHOD);
    let mut reports = match client.server_streaming(Request::new(request), method, Reports).await {
        Ok(answer) => answer.into_inner(),
        Err(status) => return (false, status),
    };
    let mut has_reported = false;
    loop {
        match reports.message().await {
            Ok(Some(bytes)) => {
                has_reported = true;
                if let Some(load) = load::usable(read(&bytes), |why| asking.metrics.load_ignored(why)) {
                    report(load);
                }
            }
            Ok(None) => return (has_reported, Status::unavailable("the backend ended the stream")),
            Err(status) => return (has_reported, status),
        }
    }
}

/// Reports as they are on the wire: they are parsed as those on calls are.
#[derive(Debug, Default)]
struct Reports;

impl Codec for Reports {
    type Encode = OrcaLoadReportRequest;
    type Decode = Bytes;
    type Encoder = <ProstCodec<OrcaLoadReportRequest, OrcaLoadReportRequest> as Codec>::Encoder;
    type Decoder = Reports;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<OrcaLoadReportRequest, OrcaLoadReportRequest>::default().encoder()
    }

    fn decoder(&mut self) -> Reports {
        Reports
    }
}

impl Decoder for Reports {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// Sends requests on one connection, whatever balancing says.
struct Direct {
    connection: Arc<Connection>,
    head: Head,
}

impl tower_service::Service<http::Request<Body>> for Direct {
    type Response = http::Response<ResponseBody>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let (request, body) = request.into_parts();
        let (connection, head) = (self.connection.clone(), self.head.clone());
        Box::pin(async move {
            let mut turn = connection.turn();
            turn.comes().await;
            let sent = connection.sender().send(&http2::Request {
                method: &request.method,
                is_https: connection.shared().is_https(),
                authority: head.authority.as_str(),
                path: request.uri.path(),
                more: head.more(&request.headers),
                headers: &request.headers,
                ends: false,
            });
            let sent = sent.map_err(|error| Status::unavailable(error.to_string()))?;
            let attempt = Attempt::untold(turn);
            let mut flight = Flight::new(sent, Replay::new(body), attempt);
            let mut deadline = Deadline::default();
            let head = poll_fn(|cx| flight.poll_head(cx, &mut deadline)).await;
            match flight.land(head, &mut deadline, &mut End::untold()) {
                Ok(response) => Ok(response),
                Err(fallen) => fallen.body_back().await.outcome,
            }
        })
    }
}
