//! The channel: what a generated client is given. Its calls are in [`call`](crate::call).

pub(crate) mod builder;
pub(crate) mod driver;
pub(crate) mod id_map;
pub(crate) mod pass_pacer;
pub(crate) mod snapshot;

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

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

/// A channel to a service: any generated client takes it in the place of tonic's own.
///
/// It is cheap to clone, and clones share everything. It is made without waiting; connections are made when the first call
/// wants one, or by [`Channel::connect`]. When the last clone is dropped, calls that are under way finish and everything
/// else ends.
#[derive(Clone)]
pub struct Channel {
    pub(crate) inner: Arc<ChannelInner>,
}

/// What the clones of a channel share.
pub(crate) struct ChannelInner {
    pub(crate) target: Arc<str>,
    pub(crate) published: Arc<SnapshotPublisher>,
    pub(crate) calls: Arc<InFlightCalls>,
    pub(crate) commands: mpsc::UnboundedSender<ChannelCommand>,
    pub(crate) default_headers: DefaultHeaders,
    pub(crate) service_config: Arc<ServiceConfig>,
    pub(crate) throttle: Option<Arc<RetryThrottle>>,
    pub(crate) faults: Arc<ActiveFaults>,
    pub(crate) entropy: Entropy,
    pub(crate) metrics: ChannelMetrics,
}

/// What every request says beside what its caller says.
#[derive(Clone, Debug)]
pub(crate) struct DefaultHeaders {
    pub(crate) authority: Authority,
    /// Said unless the caller says another.
    pub(crate) user_agent: [(HeaderName, HeaderValue); 1],
}

/// What calls and the application tell the driver.
#[derive(Debug)]
pub(crate) enum ChannelCommand {
    /// A call came upon a channel at rest.
    Wake,
    /// A call waits for this subchannel.
    Connect(SubchannelId),
    /// The application wants connections.
    ExitIdle,
    /// The application wants to see the tree.
    Describe(oneshot::Sender<Option<Description>>),
    /// No further calls.
    Close,
}

/// Put this into a request's extensions to have it wait where others fail: while no endpoint can be reached, or nothing is known
/// of the service yet. Its deadline still holds, and calls that the control plane wants dropped are dropped.
///
/// ```
/// let mut request = tonic::Request::new("message");
/// request.extensions_mut().insert(evenkeel::WaitForReady(true));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitForReady(pub bool);

/// Put this into a request's extensions to be told who answered: the response has a [`PeerAddress`] in its own.
///
/// ```
/// # fn example(response: tonic::Response<()>) {
/// let mut request = tonic::Request::new("message");
/// request.extensions_mut().insert(evenkeel::CapturePeer);
/// // ... and when it is answered:
/// if let Some(evenkeel::PeerAddress(address)) = response.extensions().get() {
///     println!("answered by {address}");
/// }
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturePeer;

/// The address of the server that answered, in the extensions of a response whose request had [`CapturePeer`]. A call that fails
/// has none; where an endpoint was to blame, its status names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAddress(pub Address);

impl Channel {
    /// Settings for a channel to a target: `xds:///orders`, `dns:///orders.prod:50051`, `ipv4:10.0.0.1:50051,10.0.0.2:50051`,
    /// `unix:/run/orders.sock`. See [`ChannelBuilder`].
    pub fn builder(target: impl Into<String>) -> ChannelBuilder {
        ChannelBuilder::new(target.into())
    }

    /// How well the channel is connected at the moment.
    pub fn connectivity(&self) -> ConnectivityState {
        *self.inner.published.connectivity().borrow()
    }

    /// Follows how well the channel is connected. States that last shorter than a look at them may be skipped.
    pub fn watch_connectivity(&self) -> watch::Receiver<ConnectivityState> {
        self.inner.published.connectivity().subscribe()
    }

    /// Starts connecting, as the first call would.
    pub fn connect(&self) {
        let _ = self.inner.commands.send(ChannelCommand::ExitIdle);
    }

    /// Connects, and waits until calls can be sent. Give it a time limit if it should have one; why it takes long is in
    /// [`Channel::tree`].
    ///
    /// # Errors
    ///
    /// `UNAVAILABLE` if the channel is closed.
    pub async fn ready(&self) -> Result<(), tonic::Status> {
        let mut connectivity = self.watch_connectivity();
        self.connect();
        loop {
            if *connectivity.borrow_and_update() == ConnectivityState::Ready {
                return Ok(());
            }
            let is_closed = matches!(self.inner.published.load().state, ChannelState::Closed);
            if is_closed || connectivity.changed().await.is_err() {
                // As with calls: a caller that asks again at once must not starve other tasks.
                coop::consume_budget().await;
                return Err(closed_status(&self.inner.target));
            }
        }
    }

    /// The policies of the channel as they are at this moment, with their endpoints, weights and picks; `None` while it rests or
    /// nothing is known yet.
    pub async fn tree(&self) -> Option<Description> {
        let (answer, described) = oneshot::channel();
        self.inner.commands.send(ChannelCommand::Describe(answer)).ok()?;
        described.await.ok().flatten()
    }

    /// Closes the channel: calls that begin from here on fail, as do those that have not found an endpoint yet, and this waits
    /// until those that were sent have finished.
    pub async fn close(self) {
        let mut changes = self.inner.published.subscribe();
        let _ = self.inner.commands.send(ChannelCommand::Close);
        // Until calls can see it, more of them may begin.
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

    /// What a request says beside these headers.
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
