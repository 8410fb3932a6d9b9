//! The channel that generated clients use. Its calls are in [`call`](crate::call).

pub(crate) mod builder;
pub(crate) mod driver;
pub(crate) mod pass_pacer;
pub(crate) mod snapshot;

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use evenkeel_core::{Address, ConnectivityState, Description, SubchannelId};
use evenkeel_xds::routing::ActiveFaults;
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::coop;
use tonic::body::Body;

use crate::call::retry::RetryThrottle;
use crate::call::{InFlightCalls, ResponseBody, ResponseFuture, status};
use crate::channel::builder::ChannelBuilder;
use crate::channel::snapshot::{ChannelState, SnapshotPublisher};
use crate::entropy::Entropy;
use crate::resolver::service_config::ServiceConfig;
use crate::telemetry::metrics::ChannelMetrics;

/// Channel to a service. It replaces `tonic::transport::Channel` in any generated client.
///
/// Clones are cheap and share all state. Building a channel does not block: it connects on the first call, or by
/// [`Channel::connect`]. When the last clone is dropped, calls in flight finish and all other activity ends.
#[derive(Clone)]
pub struct Channel {
    pub(crate) inner: Arc<ChannelInner>,
}

/// State that the clones of a channel share.
pub(crate) struct ChannelInner {
    pub(crate) target: Arc<str>,
    pub(crate) published: Arc<SnapshotPublisher>,
    pub(crate) calls: Arc<InFlightCalls>,
    pub(crate) commands: mpsc::UnboundedSender<ChannelCommand>,
    pub(crate) default_headers: DefaultHeaders,
    pub(crate) service_config: Arc<ServiceConfig>,
    pub(crate) throttle: Option<Arc<RetryThrottle>>,
    /// Maximum duration of every call.
    pub(crate) timeout: Option<Duration>,
    pub(crate) faults: Arc<ActiveFaults>,
    pub(crate) entropy: Entropy,
    pub(crate) metrics: ChannelMetrics,
}

/// Headers that the channel adds to every request.
#[derive(Clone, Debug)]
pub(crate) struct DefaultHeaders {
    pub(crate) authority: Authority,
    /// Sent unless the request has its own `user-agent`.
    pub(crate) user_agent: [(HeaderName, HeaderValue); 1],
}

/// Commands to the driver from calls and the application.
#[derive(Debug)]
pub(crate) enum ChannelCommand {
    /// A call found the channel IDLE.
    Wake,
    /// A queued call needs this subchannel.
    Connect(SubchannelId),
    /// The application requests connections.
    ExitIdle,
    /// The application requests a description of the policies.
    Describe(oneshot::Sender<Option<Description>>),
    /// The channel is closing and accepts no further calls.
    Close,
}

/// Request extension that makes an RPC wait instead of failing while no endpoint is reachable or name resolution has failed.
/// The deadline still applies, and so do drops that the control plane configured.
///
/// ```
/// let mut request = tonic::Request::new("message");
/// request.extensions_mut().insert(evenkeel::WaitForReady(true));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitForReady(pub bool);

/// Request extension that adds a [`PeerAddress`] to the extensions of the response.
///
/// ```
/// # fn example(response: tonic::Response<()>) {
/// let mut request = tonic::Request::new("message");
/// request.extensions_mut().insert(evenkeel::CapturePeer);
/// // ... and when the response has arrived:
/// if let Some(evenkeel::PeerAddress(address)) = response.extensions().get() {
///     println!("served by {address}");
/// }
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturePeer;

/// Address of the server, in the extensions of a response whose request had [`CapturePeer`]. A failed call has none; if an
/// endpoint caused the failure, the status message names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAddress(pub Address);

impl Channel {
    /// Returns a builder for a channel to a target: `xds:///orders`, `dns:///orders.prod:50051`, `ipv4:10.0.0.1:50051,10.0.0.2:50051`,
    /// `unix:/run/orders.sock`. See [`ChannelBuilder`].
    pub fn builder(target: impl Into<String>) -> ChannelBuilder {
        ChannelBuilder::new(target.into())
    }

    /// Returns the current connectivity state.
    pub fn connectivity(&self) -> ConnectivityState {
        *self.inner.published.connectivity().borrow()
    }

    /// Returns a receiver of connectivity states. Short-lived states may be skipped.
    pub fn watch_connectivity(&self) -> watch::Receiver<ConnectivityState> {
        self.inner.published.connectivity().subscribe()
    }

    /// Starts to connect, as the first call would.
    pub fn connect(&self) {
        let _ = self.inner.commands.send(ChannelCommand::ExitIdle);
    }

    /// Connects, and waits until the channel is READY. It has no time limit of its own. [`Channel::tree`] contains the
    /// reason if it takes long.
    ///
    /// # Errors
    ///
    /// Returns `UNAVAILABLE` if the channel is closed.
    pub async fn ready(&self) -> Result<(), tonic::Status> {
        let mut connectivity = self.watch_connectivity();
        self.connect();
        loop {
            // Marked as seen before the checks, so that a change during them ends the wait below.
            if *connectivity.borrow_and_update() == ConnectivityState::Ready {
                return Ok(());
            }
            let is_closed = matches!(self.inner.published.load().state, ChannelState::Closed);
            if is_closed || connectivity.changed().await.is_err() {
                // As with calls, a caller that retries at once must not starve other tasks.
                coop::consume_budget().await;
                return Err(closed_status(&self.inner.target));
            }
        }
    }

    /// Returns the current policy tree with endpoints, weights and picks; `None` while the channel is IDLE or has no config
    /// yet.
    pub async fn tree(&self) -> Option<Description> {
        let (answer, described) = oneshot::channel();
        self.inner.commands.send(ChannelCommand::Describe(answer)).ok()?;
        described.await.ok().flatten()
    }

    /// Closes the channel and waits until all sent calls have finished. New calls fail, and so do calls that wait for an
    /// endpoint.
    pub async fn close(self) {
        // Subscribed before the command, so that the closed snapshot is not missed.
        let mut changes = self.inner.published.subscribe();
        // Fails if the driver has ended, which has published the closed state.
        let _ = self.inner.commands.send(ChannelCommand::Close);
        // More calls may start until they see the closed state.
        while !matches!(self.inner.published.load().state, ChannelState::Closed) {
            if changes.changed().await.is_err() {
                break;
            }
        }
        self.inner.calls.wait_finished().await;
    }
}

impl tower_service::Service<http::Request<Body>> for Channel {
    type Response = http::Response<ResponseBody>;
    type Error = tonic::Status;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), tonic::Status>> {
        // Calls wait in their futures, for a connection or a stream: readiness differs between endpoints.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> ResponseFuture {
        ResponseFuture::start(&self.inner, request)
    }
}

impl DefaultHeaders {
    pub(crate) fn new(authority: Authority, user_agent: HeaderValue) -> DefaultHeaders {
        DefaultHeaders { authority, user_agent: [(header::USER_AGENT, user_agent)] }
    }

    /// Returns the headers to add to a request with these headers.
    pub(crate) fn extra_headers(&self, headers: &HeaderMap) -> &[(HeaderName, HeaderValue)] {
        if status::find(headers, &header::USER_AGENT).is_some() { &[] } else { &self.user_agent }
    }
}

pub(crate) fn closed_status(target: &str) -> tonic::Status {
    tonic::Status::unavailable(format!("the channel to {target:?} is closed"))
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("target", &self.inner.target).finish_non_exhaustive()
    }
}
