//! Backend: a tonic server of the echo service that can be killed, drained, restarted and made to misbehave.
//!
//! It counts calls and connections. A call counts from its headers until its response is written or the call
//! is cancelled. A connection counts from accept to close. Counters survive restarts.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use evenkeel_proto::prost::Message;
use evenkeel_proto::xds::data::orca::v3::OrcaLoadReport;
use evenkeel_proto::xds::service::orca::v3::OrcaLoadReportRequest;
use http::uri::{Authority, Scheme};
use http_body::{Frame, SizeHint};
use tokio::sync::{Notify, watch};
use tokio_stream::wrappers::IntervalStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::body::Body;
use tonic::metadata::{KeyAndValueRef, MetadataMap, MetadataValue};
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status, Streaming};
use tower_service::Service;

use super::echo::echo_server::{Echo, EchoServer};
use super::echo::{EchoRequest, EchoResponse};
use super::host::{Both, Host, Served};
use super::orca::open_rca_service_server::{OpenRcaService, OpenRcaServiceServer};
use super::{Tls, wait_until};

/// Server on a real port. It is killed on drop.
pub struct Backend {
    host: Host,
    state: Arc<State>,
    max_concurrent_streams: Option<u32>,
    around: Option<Box<RouteWrapper>>,
}

/// Wrapper that a test puts around the echo service.
type RouteWrapper = dyn Fn(Routes) -> Routes + Send + Sync;

impl Backend {
    /// Starts a backend on a free port of 127.0.0.1. Its name is its address.
    pub async fn start() -> Backend {
        Backend::builder().start().await
    }

    /// Returns a builder for a backend with a name, an address, limits or TLS.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Returns the listening address. It is reserved for this backend, also while it is down.
    pub fn address(&self) -> SocketAddr {
        self.host.address()
    }

    /// Returns the name that responses contain.
    pub fn name(&self) -> &str {
        &self.state.name
    }

    /// Stops at once: connections are reset, active calls are lost, and new connections are refused.
    pub fn kill(&self) {
        self.host.kill();
    }

    /// Shuts down gracefully: stops accepting, sends GOAWAY and finishes active calls. Returns when the last
    /// connection has closed, or on a kill.
    pub async fn drain(&self) {
        self.host.drain().await;
    }

    /// Serves again at the same address after a kill or a drain. Counters and settings are unchanged.
    pub async fn restart(&self) {
        let server = Server::builder().max_concurrent_streams(self.max_concurrent_streams);
        let echo = EchoServer::new(EchoService { state: Arc::clone(&self.state) });
        let echo = Observed { inner: echo, state: Arc::clone(&self.state) };
        let started = if let Some(around) = &self.around {
            self.host.start(server, around(Routes::new(echo)).prepare()).await
        } else {
            let load = OpenRcaServiceServer::new(LoadService { state: Arc::clone(&self.state) });
            self.host.start(server, Both(echo, load)).await
        };
        if let Err(error) = started {
            panic!("backend {:?} cannot serve on {}: {error}", self.name(), self.address());
        }
    }

    /// Returns the number of calls received.
    pub fn calls(&self) -> usize {
        self.state.started.load(Ordering::SeqCst)
    }

    /// Returns the number of calls that ended: completed, failed, cancelled or killed.
    pub fn finished(&self) -> usize {
        self.state.finished.load(Ordering::SeqCst)
    }

    /// Returns the number of active calls.
    pub fn in_flight(&self) -> usize {
        // Read `finished` first: a call that ends in between must not make the difference negative.
        let finished = self.finished();
        self.calls() - finished
    }

    /// Returns the number of calls that [`pause`](Backend::pause) has held. Unlike active calls, they cannot end before
    /// [`resume`](Backend::resume).
    pub fn held(&self) -> usize {
        self.state.held.load(Ordering::SeqCst)
    }

    /// Returns the number of connections accepted.
    pub fn connections(&self) -> usize {
        self.host.accepted()
    }

    /// Returns the number of open connections.
    pub fn open_connections(&self) -> usize {
        self.host.open()
    }

    /// Returns the number of load report streams opened. They do not count as calls.
    pub fn load_streams(&self) -> usize {
        self.state.load_streams.load(Ordering::SeqCst)
    }

    /// Returns the number of open load report streams.
    pub fn open_load_streams(&self) -> usize {
        self.state.open_load_streams.load(Ordering::SeqCst)
    }

    /// Returns the report interval that the latest load report stream requested.
    pub fn load_interval(&self) -> Option<Duration> {
        self.state.knobs.borrow().load_interval
    }

    /// Waits until the counters satisfy the condition. Panics after 30 seconds.
    pub async fn wait_until(&self, condition: impl Fn(&Backend) -> bool) {
        let condition = || condition(self).then_some(());
        let counters = || {
            format!(
                "backend {:?}: {} calls, {} in flight, {} connections, {} open",
                self.name(),
                self.calls(),
                self.in_flight(),
                self.connections(),
                self.open_connections()
            )
        };
        wait_until(&self.state.changed, condition, counters).await;
    }

    /// Delays every call before any processing.
    pub fn set_delay(&self, delay: Duration) {
        self.state.knobs.send_modify(|knobs| knobs.delay = delay);
    }

    /// Makes every call fail with this code, or succeed again.
    pub fn fail_with(&self, code: Option<Code>) {
        self.state.knobs.send_modify(|knobs| knobs.fail_with = code);
    }

    /// Sets the load report in the trailers of every response (`endpoint-load-metrics-bin`) and in load
    /// report streams. Without one, such streams are UNIMPLEMENTED.
    pub fn set_load(&self, load: Option<OrcaLoadReport>) {
        let trailer = load.as_ref().map(Message::encode_to_vec);
        self.state.knobs.send_modify(|knobs| (knobs.load, knobs.trailer) = (load, trailer));
    }

    /// Sets raw bytes in place of the load report trailer.
    pub fn set_load_trailer(&self, bytes: Option<Vec<u8>>) {
        self.state.knobs.send_modify(|knobs| knobs.trailer = bytes);
    }

    /// Holds calls that arrive from here on, before any processing, until [`resume`](Backend::resume).
    pub fn pause(&self) {
        self.state.knobs.send_modify(|knobs| knobs.paused = true);
    }

    /// Releases the held calls.
    pub fn resume(&self) {
        self.state.knobs.send_modify(|knobs| knobs.paused = false);
    }
}

/// Builder of a [`Backend`].
#[derive(Default)]
pub struct Builder {
    name: Option<String>,
    at: Option<SocketAddr>,
    max_concurrent_streams: Option<u32>,
    tls: Option<Tls>,
    around: Option<Box<RouteWrapper>>,
}

impl Builder {
    /// Sets the name that responses contain.
    #[must_use]
    pub fn name(mut self, name: &str) -> Builder {
        self.name = Some(name.to_owned());
        self
    }

    /// Sets the listening address, such as 127.0.0.7:0.
    #[must_use]
    pub fn at(mut self, address: SocketAddr) -> Builder {
        self.at = Some(address);
        self
    }

    /// Sets the value of SETTINGS_MAX_CONCURRENT_STREAMS.
    #[must_use]
    pub fn max_concurrent_streams(mut self, limit: u32) -> Builder {
        self.max_concurrent_streams = Some(limit);
        self
    }

    /// Wraps the echo service, for example with further services behind a layer. `around` runs at each start.
    /// [`set_load`](Backend::set_load) then has no effect out of band, unless the wrapper adds the service.
    #[must_use]
    pub fn around(mut self, around: impl Fn(Routes) -> Routes + Send + Sync + 'static) -> Builder {
        self.around = Some(Box::new(around));
        self
    }

    /// Serves with TLS instead of plaintext.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Builder {
        self.tls = Some(tls);
        self
    }

    /// Starts the backend. Panics if it cannot.
    pub async fn start(self) -> Backend {
        let at = self.at.unwrap_or_else(|| SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let changed = Arc::new(Notify::new());
        let host = match Host::reserve(at, self.tls.as_ref(), Arc::clone(&changed)) {
            Ok(host) => host,
            Err(error) => panic!("no backend on {at}: {error}"),
        };
        let state = State {
            name: self.name.unwrap_or_else(|| host.address().to_string()),
            started: AtomicUsize::new(0),
            finished: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            load_streams: AtomicUsize::new(0),
            open_load_streams: AtomicUsize::new(0),
            changed,
            knobs: watch::Sender::new(BackendControls::default()),
        };
        let backend = Backend {
            host,
            state: Arc::new(state),
            max_concurrent_streams: self.max_concurrent_streams,
            around: self.around,
        };
        backend.restart().await;
        backend
    }
}

struct State {
    name: String,
    started: AtomicUsize,
    finished: AtomicUsize,
    held: AtomicUsize,
    load_streams: AtomicUsize,
    open_load_streams: AtomicUsize,
    changed: Arc<Notify>,
    knobs: watch::Sender<BackendControls>,
}

#[derive(Default)]
struct BackendControls {
    delay: Duration,
    fail_with: Option<Code>,
    load: Option<OrcaLoadReport>,
    trailer: Option<Vec<u8>>,
    load_interval: Option<Duration>,
    paused: bool,
}

/// Call from its headers to the end of its response.
struct Call(Arc<State>);

impl Call {
    fn new(state: &Arc<State>) -> Call {
        state.started.fetch_add(1, Ordering::SeqCst);
        state.changed.notify_waiters();
        Call(Arc::clone(state))
    }

    /// Applies pause, delay and failure before the service sees the call.
    async fn admit(&self) -> Result<(), Status> {
        let mut knobs = self.0.knobs.subscribe();
        if knobs.borrow_and_update().paused {
            self.0.held.fetch_add(1, Ordering::SeqCst);
            self.0.changed.notify_waiters();
        }
        // Cannot fail: the sender lives as long as the call.
        let _ = knobs.wait_for(|knobs| !knobs.paused).await;
        let delay = self.0.knobs.borrow().delay;
        sleep(delay).await;
        match self.0.knobs.borrow().fail_with {
            Some(code) => Err(Status::new(code, format!("backend {:?} was told to fail", self.0.name))),
            None => Ok(()),
        }
    }

    fn add_load(&self, trailers: &mut http::HeaderMap) {
        if let Some(bytes) = &self.0.knobs.borrow().trailer {
            let mut metadata = MetadataMap::new();
            metadata.insert_bin("endpoint-load-metrics-bin", MetadataValue::from_bytes(bytes));
            trailers.extend(metadata.into_headers());
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.finished.fetch_add(1, Ordering::SeqCst);
        self.0.changed.notify_waiters();
    }
}

/// Service wrapper that counts calls and applies the settings.
#[derive(Clone)]
struct Observed<S> {
    inner: S,
    state: Arc<State>,
}

impl<S: NamedService> NamedService for Observed<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: Served> Service<http::Request<Body>> for Observed<S> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let call = Call::new(&self.state);
        let mut inner = self.inner.clone();
        Box::pin(async move {
            // tonic does not pass the URI to the service.
            if let Some(scheme) = request.uri().scheme().cloned() {
                request.extensions_mut().insert(scheme);
            }
            if let Some(authority) = request.uri().authority().cloned() {
                request.extensions_mut().insert(authority);
            }
            let mut response = match call.admit().await {
                Ok(()) => inner.call(request).await?,
                Err(status) => status.into_http(),
            };
            // A trailers-only response has its status in the headers.
            if response.headers().contains_key("grpc-status") {
                call.add_load(response.headers_mut());
            }
            Ok(response.map(|body| Body::new(ResponseBody { body, call })))
        })
    }
}

/// Response body. The call is active until the body is dropped.
struct ResponseBody {
    body: Body,
    call: Call,
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &mut polled
            && let Some(trailers) = frame.trailers_mut()
        {
            self.call.add_load(trailers);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

struct EchoService {
    state: Arc<State>,
}

type EchoStream = Pin<Box<dyn Stream<Item = Result<EchoResponse, Status>> + Send>>;

#[tonic::async_trait]
impl Echo for EchoService {
    type ServerStreamStream = EchoStream;
    type BidiStream = EchoStream;

    async fn unary(&self, request: Request<EchoRequest>) -> Result<Response<EchoResponse>, Status> {
        let echo = self.echo(&request);
        Ok(Response::new(echo.answer(request.into_inner()).await?))
    }

    async fn server_stream(&self, request: Request<EchoRequest>) -> Result<Response<EchoStream>, Status> {
        let echo = self.echo(&request);
        let mut request = request.into_inner();
        if request.repeat == 0 {
            failure(&request)?;
        }
        let end = failure(&request).err().map(Err);
        let forever = std::mem::take(&mut request.forever);
        request.code = 0;
        let messages = tokio_stream::iter(0..request.repeat).then(move |_| {
            let (echo, request) = (echo.clone(), request.clone());
            async move { echo.answer(request).await }
        });
        let end: EchoStream =
            if forever { Box::pin(tokio_stream::pending()) } else { Box::pin(tokio_stream::iter(end)) };
        Ok(Response::new(Box::pin(messages.chain(end))))
    }

    async fn client_stream(
        &self,
        request: Request<Streaming<EchoRequest>>,
    ) -> Result<Response<EchoResponse>, Status> {
        let echo = self.echo(&request);
        let mut requests = request.into_inner();
        let mut payload = Vec::new();
        while let Some(request) = requests.message().await? {
            payload.extend(echo.clone().answer(request).await?.payload);
        }
        Ok(Response::new(EchoResponse { payload, ..echo.0 }))
    }

    async fn bidi(&self, request: Request<Streaming<EchoRequest>>) -> Result<Response<EchoStream>, Status> {
        let echo = self.echo(&request);
        let answers = request.into_inner().then(move |request| {
            let echo = echo.clone();
            async move { echo.answer(request?).await }
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

impl EchoService {
    fn echo<T>(&self, request: &Request<T>) -> Echoed {
        let headers = request.metadata().iter().map(|entry| match entry {
            KeyAndValueRef::Ascii(key, value) => (key.to_string(), value.as_encoded_bytes()),
            KeyAndValueRef::Binary(key, value) => (key.to_string(), value.as_encoded_bytes()),
        });
        let mut metadata: std::collections::BTreeMap<_, _> =
            headers.map(|(key, value)| (key, String::from_utf8_lossy(value).into_owned())).collect();
        if let Some(scheme) = request.extensions().get::<Scheme>() {
            metadata.insert(":scheme".to_owned(), scheme.to_string());
        }
        if let Some(authority) = request.extensions().get::<Authority>() {
            metadata.insert(":authority".to_owned(), authority.to_string());
        }
        if let Some(peer) = request.extensions().get::<SocketAddr>() {
            metadata.insert(":peer".to_owned(), peer.to_string());
        }
        Echoed(EchoResponse { payload: Vec::new(), backend: self.state.name.clone(), metadata })
    }
}

/// Response without its payload.
#[derive(Clone)]
struct Echoed(EchoResponse);

impl Echoed {
    async fn answer(self, request: EchoRequest) -> Result<EchoResponse, Status> {
        sleep(Duration::from_millis(request.delay_ms)).await;
        failure(&request)?;
        if request.forever {
            pending::<()>().await;
        }
        Ok(EchoResponse { payload: request.payload, ..self.0 })
    }
}

/// Sleeps. A zero duration returns at once, since a timer would wait for its next tick.
async fn sleep(duration: Duration) {
    if !duration.is_zero() {
        tokio::time::sleep(duration).await;
    }
}

fn failure(request: &EchoRequest) -> Result<(), Status> {
    match Code::from(request.code.cast_signed()) {
        Code::Ok => Ok(()),
        code => Err(Status::new(code, "the request asked for it")),
    }
}

struct LoadService {
    state: Arc<State>,
}

/// Counts a load report stream as open until dropped.
struct OpenLoadStream(Arc<State>);

impl OpenLoadStream {
    fn new(state: &Arc<State>) -> OpenLoadStream {
        state.open_load_streams.fetch_add(1, Ordering::SeqCst);
        state.changed.notify_waiters();
        OpenLoadStream(Arc::clone(state))
    }
}

impl Drop for OpenLoadStream {
    fn drop(&mut self) {
        self.0.open_load_streams.fetch_sub(1, Ordering::SeqCst);
        self.0.changed.notify_waiters();
    }
}

#[tonic::async_trait]
impl OpenRcaService for LoadService {
    type StreamCoreMetricsStream = Pin<Box<dyn Stream<Item = Result<OrcaLoadReport, Status>> + Send>>;

    async fn stream_core_metrics(
        &self,
        request: Request<OrcaLoadReportRequest>,
    ) -> Result<Response<Self::StreamCoreMetricsStream>, Status> {
        self.state.load_streams.fetch_add(1, Ordering::SeqCst);
        self.state.changed.notify_waiters();
        if self.state.knobs.borrow().load.is_none() {
            return Err(Status::unimplemented(format!("backend {:?} reports no load", self.state.name)));
        }
        let interval = request.into_inner().report_interval.unwrap_or_default();
        let interval = Duration::try_from(interval).unwrap_or_default().max(Duration::from_millis(1));
        self.state.knobs.send_modify(|knobs| knobs.load_interval = Some(interval));
        let open = OpenLoadStream::new(&self.state);
        let reports = IntervalStream::new(tokio::time::interval(interval))
            .map(move |_| Ok(open.0.knobs.borrow().load.clone().unwrap_or_default()));
        Ok(Response::new(Box::pin(reports)))
    }
}
