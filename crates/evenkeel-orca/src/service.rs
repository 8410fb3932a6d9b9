//! The service that reports load out of band: `xds.service.orca.v3.OpenRcaService`.

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

/// The path of the one method that load is reported by out of band.
pub const METHOD: &str = "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics";

/// Reports come no more often than this, unless set (A51).
const MIN_INTERVAL: Duration = Duration::from_secs(30);

/// No timer goes beyond this, and nobody waits for it.
const MAX_INTERVAL: Duration = Duration::from_secs(365 * 24 * 3600);

/// Sends a server's load to those who ask for it: at once, and then as often as they ask, but no more often than the
/// minimum. Each report is the whole load, whether or not it changed. Costs of requests belong to calls and are not part
/// of it, so a request's `request_cost_names` has no effect.
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

    /// Reports come no more often than this, 30 s unless set; who does not say how often gets them so. A millisecond is
    /// the least.
    #[must_use]
    pub fn min_interval(mut self, min: Duration) -> LoadService {
        self.min_interval = min.max(Duration::from_millis(1));
        self
    }

    fn reports(&self, request: &OrcaLoadReportRequest) -> ReportStream {
        // What is missing or no duration, as a negative one, counts as zero.
        let asked = request.report_interval.and_then(|interval| Duration::try_from(interval).ok());
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

/// The reports of one stream.
struct ReportStream {
    load: ServerLoad,
    ticks: Interval,
    /// Waits for what is measured now.
    measuring: Option<JoinHandle<()>>,
}

impl Stream for ReportStream {
    type Item = Result<OrcaLoadReport, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.measuring.is_none() {
            ready!(self.ticks.poll_tick(cx));
            self.measuring = self.load.shared().measure_if_due();
        }
        if let Some(measuring) = &mut self.measuring {
            // If it failed, what is known is reported.
            let _ = ready!(Pin::new(measuring).poll(cx));
            self.measuring = None;
        }
        Poll::Ready(Some(Ok(self.load.report())))
    }
}
