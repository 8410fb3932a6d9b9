//! Tower layer that tracks a server's calls and adds the load to their trailers.
//!
//! It adds the report to trailers and to Trailers-Only responses. [`ServerCallGuard`] ensures that each call is
//! counted once. Measuring and encoding are left to [`ServerLoad`].

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http_body::{Frame, SizeHint};
use pin_project_lite::pin_project;
use tonic::Code;
use tower_layer::Layer;
use tower_service::Service;

use crate::server::ServerLoad;
use crate::service;
use crate::watch::ServerCallGuard;

/// Measures a server's calls and sends its load in the trailer [`endpoint-load-metrics-bin`](crate::TRAILER) of each.
///
/// That includes failed calls and streams. A handler adds values for its call with [`CallLoad`](crate::CallLoad).
///
/// A server needs no more than this line:
///
/// ```no_run
/// # async fn serve(orders: evenkeel_orca::LoadService) -> Result<(), Box<dyn std::error::Error>> {
/// tonic::transport::Server::builder()
///     .layer(evenkeel_orca::LoadLayer::new())
///     .add_service(orders)
///     .serve("0.0.0.0:50051".parse()?)
///     .await?;
/// # Ok(())
/// # }
/// ```
///
/// A trailer that the application has already set is kept. Streams of the out-of-band service are not counted as
/// calls.
#[derive(Clone, Debug, Default)]
pub struct LoadLayer(ServerLoad);

impl LoadLayer {
    /// Creates a layer that measures requests, errors and the machine's CPU. To report other values, create a
    /// [`ServerLoad`] and use [`ServerLoad::layer`].
    pub fn new() -> LoadLayer {
        LoadLayer::default()
    }

    pub(crate) fn with(load: ServerLoad) -> LoadLayer {
        LoadLayer(load)
    }
}

impl<S> Layer<S> for LoadLayer {
    type Service = ReportingService<S>;

    fn layer(&self, inner: S) -> ReportingService<S> {
        ReportingService { inner, load: self.0.clone() }
    }
}

/// Service wrapped by a [`LoadLayer`].
#[derive(Clone, Debug)]
pub struct ReportingService<S> {
    inner: S,
    load: ServerLoad,
}

impl<S, In, Out> Service<http::Request<In>> for ReportingService<S>
where
    S: Service<http::Request<In>, Response = http::Response<Out>>,
{
    type Response = http::Response<ReportingBody<Out>>;
    type Error = S::Error;
    type Future = ReportingFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<In>) -> Self::Future {
        // Out-of-band streams are no load of the application.
        let counts = request.uri().path() != service::METHOD;
        let mut guard = if counts {
            ServerCallGuard::new(self.load.shared().clone())
        } else {
            ServerCallGuard::default()
        };
        let inner = guard.enter(|| self.inner.call(request));
        ReportingFuture { inner, guard }
    }
}

pin_project! {
    /// Response future of a [`ReportingService`].
    pub struct ReportingFuture<F> {
        #[pin]
        inner: F,
        guard: ServerCallGuard,
    }
}

impl<F, Out, E> Future for ReportingFuture<F>
where
    F: Future<Output = Result<http::Response<Out>, E>>,
{
    type Output = Result<http::Response<ReportingBody<Out>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let mut response = match ready!(this.guard.enter(|| this.inner.poll(cx))) {
            Ok(response) => response,
            Err(error) => {
                this.guard.finish(Some(Code::Unknown));
                return Poll::Ready(Err(error));
            }
        };
        // A status in the headers ends the call: this is a Trailers-Only response.
        if response.headers().keys().any(|name| *name == tonic::Status::GRPC_STATUS) {
            this.guard.finish_with_trailers(response.headers_mut());
        }
        // The call ends with its body, which takes over the guard.
        let guard = mem::take(this.guard);
        Poll::Ready(Ok(response.map(|inner| ReportingBody { inner, guard })))
    }
}

pin_project! {
    /// Response body of a [`ReportingService`], which adds the report to its trailers.
    pub struct ReportingBody<B> {
        #[pin]
        inner: B,
        guard: ServerCallGuard,
    }
}

impl<B: http_body::Body> http_body::Body for ReportingBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let mut frame = ready!(this.inner.poll_frame(cx));
        match &mut frame {
            Some(Ok(frame)) => {
                if let Some(trailers) = frame.trailers_mut() {
                    this.guard.finish_with_trailers(trailers);
                }
            }
            Some(Err(_)) => this.guard.finish(Some(Code::Unknown)),
            None => this.guard.finish(None),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<B: Default> Default for ReportingBody<B> {
    fn default() -> ReportingBody<B> {
        ReportingBody { inner: B::default(), guard: ServerCallGuard::default() }
    }
}
