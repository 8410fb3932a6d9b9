//! Stories about load reports, one module per part. Each test names the requirement ids that it covers.

#![expect(clippy::float_cmp, reason = "what was recorded is to come out bit by bit")]

#[path = "../../../../tools/fuzz/src/reports.rs"]
pub mod reports;

mod out_of_band;
mod reading;
mod recording;
mod trailers;
mod windows;

use std::sync::Arc;

use evenkeel_orca::{CallLoad, OrcaLoadReport, ParsedReport, ServerLoad, read_trailers};
use evenkeel_proto::prost::Message as _;
use testkit::net::Backend;
use testkit::net::echo::echo_client::EchoClient;
use tonic::service::{InterceptorLayer, Routes};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

/// Action of a handler with the recorder of its request.
type Handler = Arc<dyn Fn(CallLoad) -> Result<(), Status> + Send + Sync>;

fn record_nothing() -> Handler {
    Arc::new(|_| Ok(()))
}

fn handler(act: impl Fn(CallLoad) -> Result<(), Status> + Send + Sync + 'static) -> Handler {
    Arc::new(act)
}

/// Starts a server with the layer, the out-of-band service, and a handler that records.
async fn server(load: &ServerLoad, handler: Handler) -> Backend {
    let load = load.clone();
    let around = move |routes: Routes| {
        let handler = handler.clone();
        let record = InterceptorLayer::new(move |request: Request<()>| {
            handler(CallLoad::current().expect("behind the layer"))?;
            Ok(request)
        });
        let routes = routes.prepare().into_axum_router().layer(record);
        Routes::from(routes.layer(load.layer())).add_service(load.service())
    };
    Backend::builder().around(around).start().await
}

fn client(backend: &Backend) -> EchoClient<Channel> {
    EchoClient::new(channel(backend))
}

fn channel(backend: &Backend) -> Channel {
    Endpoint::new(format!("http://{}", backend.address())).expect("an address").connect_lazy()
}

/// Returns the report in the trailers of a call.
fn report(trailers: impl Into<tonic::metadata::MetadataMap>) -> Option<OrcaLoadReport> {
    let ParsedReport { report, ignored } = read_trailers(&trailers.into().into_headers());
    assert_eq!(ignored, None);
    report.map(|report| OrcaLoadReport::decode(&*report.encode_to_vec()).expect("the same message"))
}
