//! Out-of-band load reports (A51): one server-streaming RPC on the connection that carries the backend's calls.
//!
//! The driver runs the stream while a policy needs reports and the connection accepts calls, and aborts its task
//! otherwise. After UNIMPLEMENTED, no further stream is opened on the same connection. If the backend allows only one
//! concurrent stream, none is opened, because it would block all calls.
//!
//! After any other end the stream is retried with exponential backoff. If a message was received, the backoff is reset
//! and counts from the start of the stream, so a long stream is retried at once.

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

use crate::call::{Attempt, AttemptObserver, CallDeadline, CallObserver, RequestBuffer, ResponseBody};
use crate::channel::DefaultHeaders;
use crate::telemetry::metrics::ChannelMetrics;
use crate::transport::connection::Connection;
use crate::transport::http2;
use crate::{entropy, load};

/// Settings of a load report stream.
#[derive(Clone)]
pub(crate) struct LoadStreamConfig {
    pub(crate) default_headers: DefaultHeaders,
    pub(crate) metrics: ChannelMetrics,
    /// Report interval that the stream requests from the backend.
    pub(crate) every: Duration,
}

/// Requests load reports from the backend and passes each usable one to `report`. Completes only if the backend does
/// not support out-of-band reports; otherwise it runs until dropped.
pub(crate) async fn watch(
    connection: Arc<Connection>,
    config: LoadStreamConfig,
    report: impl Fn(LoadReport),
) {
    let transport = connection.transport_state();
    let address = transport.address();
    if !transport.supports_load_reports() {
        return;
    }
    if !transport.allows_two_streams() {
        transport.disable_load_reports();
        tracing::error!(%address, "out-of-band load reports disabled: the backend allows one concurrent stream");
        return;
    }
    let backoff = Backoff::default();
    let mut rng = Rng::from_entropy(entropy::fresh());
    let mut attempts = 0;
    let mut client = Grpc::new(ConnectionService {
        connection: connection.clone(),
        default_headers: config.default_headers.clone(),
    });
    loop {
        let began = Instant::now();
        let (has_reported, error) = read_reports(&mut client, &config, &report).await;
        if error.code() == Code::Unimplemented {
            transport.disable_load_reports();
            tracing::error!(%address, "out-of-band load reports disabled for this connection: the backend returned UNIMPLEMENTED");
            return;
        }
        tracing::debug!(%address, %error, "out-of-band load report stream ended");
        if has_reported {
            // A51 retries at once. Without a minimum interval, a backend that ends each stream after one report would
            // cause a busy loop.
            attempts = 0;
            sleep_until(began + backoff.initial).await;
        } else {
            sleep_until(Instant::now() + backoff.wait(attempts, &mut rng)).await;
            attempts = attempts.saturating_add(1);
        }
    }
}

/// Passes reports to `report` until the stream ends. Returns true if any message was received, and the final status.
async fn read_reports(
    client: &mut Grpc<ConnectionService>,
    config: &LoadStreamConfig,
    report: impl Fn(LoadReport),
) -> (bool, Status) {
    // A duration that protobuf cannot represent leaves the interval to the backend.
    let every = prost_types::Duration::try_from(config.every).ok();
    let request = OrcaLoadReportRequest { report_interval: every, ..OrcaLoadReportRequest::default() };
    let method = PathAndQuery::from_static(METHOD);
    let mut reports = match client.server_streaming(Request::new(request), method, OrcaReportCodec).await {
        Ok(answer) => answer.into_inner(),
        Err(status) => return (false, status),
    };
    let mut has_reported = false;
    loop {
        match reports.message().await {
            Ok(Some(bytes)) => {
                has_reported = true;
                if let Some(load) = load::usable(read(&bytes), |why| config.metrics.load_ignored(why)) {
                    report(load);
                }
            }
            Ok(None) => return (has_reported, Status::unavailable("the backend ended the stream")),
            Err(status) => return (has_reported, status),
        }
    }
}

/// Codec that yields reports undecoded, so that they pass through the same parser as per-RPC reports.
#[derive(Debug, Default)]
struct OrcaReportCodec;

impl Codec for OrcaReportCodec {
    type Encode = OrcaLoadReportRequest;
    type Decode = Bytes;
    type Encoder = <ProstCodec<OrcaLoadReportRequest, OrcaLoadReportRequest> as Codec>::Encoder;
    type Decoder = OrcaReportCodec;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<OrcaLoadReportRequest, OrcaLoadReportRequest>::default().encoder()
    }

    fn decoder(&mut self) -> OrcaReportCodec {
        OrcaReportCodec
    }
}

impl Decoder for OrcaReportCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// Sends requests on one connection, without a pick. The attempts are not measured or counted as calls.
struct ConnectionService {
    connection: Arc<Connection>,
    default_headers: DefaultHeaders,
}

impl tower_service::Service<http::Request<Body>> for ConnectionService {
    type Response = http::Response<ResponseBody>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let (request, body) = request.into_parts();
        let (connection, head) = (self.connection.clone(), self.default_headers.clone());
        Box::pin(async move {
            let mut permit = connection.permit();
            // If the connection accepts no more calls, `send` below returns the reason.
            permit.acquire().await;
            let sent = connection.sender().send(&http2::RequestHeaders {
                method: &request.method,
                is_https: connection.transport_state().is_https(),
                authority: head.authority.as_str(),
                path: request.uri.path(),
                extra_headers: head.extra_headers(&request.headers),
                headers: &request.headers,
                end_stream: false,
            });
            let sent = sent.map_err(|error| Status::unavailable(error.to_string()))?;
            let observer = AttemptObserver::unobserved(permit);
            let mut attempt = Attempt::new(sent, RequestBuffer::new(body), observer, false);
            let mut deadline = CallDeadline::default();
            let head = poll_fn(|cx| attempt.poll_head(cx, &mut deadline)).await;
            match attempt.handle_head(head, &mut deadline, &mut CallObserver::unobserved()) {
                Ok(response) => Ok(response),
                Err(failure) => failure.recover_body().await.outcome,
            }
        })
    }
}
