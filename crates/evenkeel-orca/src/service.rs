//! Out-of-band load reporting: the service `xds.service.orca.v3.OpenRcaService` (A51).
//!
//! Each stream has its own interval timer. The measurement is shared with the layer of the same [`ServerLoad`].

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use evenkeel_proto::xds::data::orca::v3::OrcaLoadReport;
use evenkeel_proto::xds::service::orca::v3::OrcaLoadReportRequest;
use tokio::task::JoinHandle;
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_stream::Stream;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, ServerStreamingService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

use crate::server::ServerLoad;

/// Path of the method that streams out-of-band reports.
pub const METHOD: &str = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics";

/// Default minimum interval between two reports (A51).
const MIN_INTERVAL: Duration = Duration::from_secs(30);

/// Maximum interval between two reports. It keeps the timer within its range.
const MAX_INTERVAL: Duration = Duration::from_secs(365 * 24 * 3600);

/// Streams a server's load to clients that request it out of band.
///
/// The first report is sent at once, the next ones at the requested interval, but at least the minimum interval
/// apart. Each report contains the whole load, changed or not. Request costs belong to calls, so `request_cost_names`
/// of a request has no effect.
///
/// Add it to the server beside your own services ([`ServerLoad::service`]).
#[derive(Clone, Debug)]
pub struct LoadService {
    load: ServerLoad,
    min_interval: Duration,
}

impl LoadService {
    pub(crate) fn new(load: ServerLoad) -> LoadService {
        LoadService { load, min_interval: MIN_INTERVAL }
    }

    /// Sets the minimum interval between two reports. The default is 30 s, and the smallest interval is 1 ms. It also
    /// applies to requests without an interval.
    #[must_use]
    pub fn min_interval(mut self, min: Duration) -> LoadService {
        self.min_interval = min.max(Duration::from_millis(1));
        self
    }

    fn reports(&self, request: &OrcaLoadReportRequest) -> ReportStream {
        // A missing, negative or out-of-range interval counts as zero, so the minimum applies.
        let asked = request.report_interval.and_then(|interval| Duration::try_from(interval).ok());
        // The first tick is due at once (ORCA-6).
        let mut ticks = interval(asked.unwrap_or_default().max(self.min_interval).min(MAX_INTERVAL));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ReportStream { load: self.load.clone(), ticks, measuring: None }
    }
}

impl NamedService for LoadService {
    const NAME: &'static str = "xds.service.orca.v3.OpenRcaService";
}

impl<B> Service<http::Request<B>> for LoadService
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn Error + Send + Sync>> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            if request.uri().path() != METHOD {
                return Ok(Status::unimplemented("the service has one method, StreamCoreMetrics").into_http());
            }
            let mut grpc = Grpc::new(ProstCodec::<OrcaLoadReport, OrcaLoadReportRequest>::default());
            Ok(grpc.server_streaming(StreamCoreMetrics(service), request).await)
        })
    }
}

struct StreamCoreMetrics(LoadService);

impl ServerStreamingService<OrcaLoadReportRequest> for StreamCoreMetrics {
    type Response = OrcaLoadReport;
    type ResponseStream = ReportStream;
    type Future = std::future::Ready<Result<Response<ReportStream>, Status>>;

    fn call(&mut self, request: Request<OrcaLoadReportRequest>) -> Self::Future {
        std::future::ready(Ok(Response::new(self.0.reports(request.get_ref()))))
    }
}

/// Stream of reports for one client.
struct ReportStream {
    load: ServerLoad,
    ticks: Interval,
    /// Pending measurement that the next report waits for.
    measuring: Option<JoinHandle<()>>,
}

impl Stream for ReportStream {
    type Item = Result<OrcaLoadReport, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // A measurement in progress belongs to a tick that has passed.
        if self.measuring.is_none() {
            ready!(self.ticks.poll_tick(cx));
            self.measuring = self.load.shared().measure_if_due();
        }
        if let Some(measuring) = &mut self.measuring {
            // If the measurement task failed, the previous values are reported.
            let _ = ready!(Pin::new(measuring).poll(cx));
            self.measuring = None;
        }
        Poll::Ready(Some(Ok(self.load.report())))
    }
}
