//! Load that a backend reports out of band (A51): one stream on the connection that its calls use.
//!
//! The stream goes on while somebody listens and the connection takes calls; the driver starts it, and stops it by dropping its
//! task. A backend that does not know the service is asked once per connection. Any other end is followed by another
//! attempt, after a back-off that a report resets.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use evenkeel_core::{Backoff, LoadReport, Rng, Trackers};
use evenkeel_proto::prost_types;
use evenkeel_proto::xds::service::orca::v3::OrcaLoadReportRequest;
use evenkeel_xds::load_report;
use http::uri::PathAndQuery;
use tokio::time::sleep;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::call::{Attempt, Deadline, End, Flight, Replay, ResponseBody};
use crate::channel::Head;
use crate::connection::Connection;
use crate::entropy;

const METHOD: &str = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics";

/// Asks the backend at the other end for reports, and hands on each that comes. It ends only if the backend has none to
/// give.
pub(crate) async fn watch(
    connection: Arc<Connection>,
    head: Head,
    every: Duration,
    report: impl Fn(LoadReport),
) {
    let backoff = Backoff::default();
    let mut rng = Rng::from_entropy(entropy::fresh());
    let mut attempts = 0;
    let mut client = Grpc::new(Direct { connection: connection.clone(), head });
    loop {
        let error = listen(&mut client, every, &mut attempts, &report).await;
        let address = connection.shared().address();
        if error.code() == Code::Unimplemented {
            tracing::error!(%address, "the backend reports no load out of band; it is not asked again on this connection");
            return;
        }
        tracing::debug!(%address, %error, "out-of-band load reports ended");
        sleep(backoff.wait(attempts, &mut rng)).await;
        attempts = attempts.saturating_add(1);
    }
}

/// Hands on reports until the stream ends; answers why it did.
async fn listen(
    client: &mut Grpc<Direct>,
    every: Duration,
    attempts: &mut u32,
    report: impl Fn(LoadReport),
) -> Status {
    let every = prost_types::Duration::try_from(every).ok();
    let request = OrcaLoadReportRequest { report_interval: every, ..OrcaLoadReportRequest::default() };
    let method = PathAndQuery::from_static(METHOD);
    let mut reports = match client.server_streaming(Request::new(request), method, Reports).await {
        Ok(answer) => answer.into_inner(),
        Err(status) => return status,
    };
    loop {
        match reports.message().await {
            Ok(Some(bytes)) => match load_report::parse(&bytes) {
                Ok(load) => {
                    *attempts = 0;
                    report(load);
                }
                Err(error) => tracing::debug!(%error, "a load report is ignored"),
            },
            Ok(None) => return Status::unavailable("the backend ended the stream"),
            Err(status) => return status,
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

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        self.head.complete(&mut request);
        let (parts, body) = request.into_parts();
        let request = http::Request::from_parts(parts, ());
        let connection = self.connection.clone();
        Box::pin(async move {
            let mut turn = connection.turn();
            turn.comes().await;
            let sent = connection.sender().send_request(request, false);
            let sent = sent.map_err(|error| Status::unavailable(error.to_string()))?;
            let attempt = Attempt::new(Trackers::none(), turn, None);
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
