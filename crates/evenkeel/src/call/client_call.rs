//! The path of a call, from top to bottom: route, filters, pick, send, receive, finish.
//!
//! ```text
//!           ┌─────────▶ AwaitSnapshot ◀───────┐
//!           ▼                                 ▼
//!  new ─▶ Route ─▶ ApplyFilters ──────────▶ Pick ─▶ (send) ─▶ Receive ─▶ response
//!   │       ▲       ▲        │             ▲  ▲ │      ▲          │
//!   └▶ AwaitSlot    └ Delay ◀┘             │  │ └▶ AwaitStream    ▼
//!                                          │  └──────────── RecoverBody
//!                                          └──── Backoff ◀────────┘
//!  any of them ─▶ Finish ─▶ status, or a response without a body
//! ```
//!
//! [`CallState`] has one variant for each box. A call starts in `AwaitSlot` only if it exceeds the concurrency limit.
//! `Route`, `ApplyFilters` and `Pick` need only the latest snapshot: [`ClientCall::advance`] runs them without a waker,
//! first inside `Channel::call`. The common call is sent there and allocates nothing for it. The states that wait run in [`ClientCall::wait`], in a box. [`ResponseFuture::poll`] polls
//! both kinds, receives the response head and returns the result.
//!
//! Files of the path, in order:
//!
//! | step | files |
//! |---|---|
//! | start | `channel/mod.rs` (`Channel::call`), `call/timeout.rs`, `call/deadline.rs`, `call/in_flight.rs` |
//! | route | `channel/snapshot.rs`, `ConfigSelector` in `evenkeel-xds/src/routing` |
//! | pick | `evenkeel-core/src/pick`, the policy's picker |
//! | send | `transport/connection.rs` (stream quota), `transport/http2/mod.rs`, `call/request.rs` (body) |
//! | send, HTTP/2 | `evenkeel-http2/src`: `stream.rs`, `state/send.rs`, `hpack/encoder.rs`, `write_buffer.rs`, `driver.rs` |
//! | receive | `evenkeel-http2/src`: `driver.rs`, `reader.rs`, `state/recv.rs`, `stream.rs`; `call/attempt.rs`, `call/status.rs` |
//! | retry | `call/attempt.rs` (`FailedAttempt`), `call/retry.rs` |
//! | finish | `call/response.rs` (body and trailers), `call/observer.rs` |

use std::borrow::Cow;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{fmt, mem};

use evenkeel_core::{CallOutcome, CallTrackers, Code, PickArgs, PickResult, RequestMetadata};
use evenkeel_xds::routing::{InjectedFault, SelectedRoute, XdsHttpFilter};
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use http_body::Body as _;
use tokio::task::coop;
use tokio::time::{Instant, sleep};
use tonic::body::Body;

use crate::call::attempt::{Attempt, AttemptOutcome, FailedAttempt};
use crate::call::deadline::{CallDeadline, deadline_exceeded};
use crate::call::observer::{AttemptObserver, CallObserver};
use crate::call::request::RequestBuffer;
use crate::call::response::ResponseBody;
use crate::call::retry::{self, RetryPolicy};
use crate::call::{status, timeout};
use crate::channel::snapshot::{ChannelSnapshot, ChannelState};
use crate::channel::{CapturePeer, ChannelCommand, ChannelInner, WaitForReady, closed_status};
use crate::clock;
use crate::telemetry::metrics::AttemptMeter;
use crate::telemetry::traffic::{FailureCause, FailureInfo};
use crate::transport::connection::StreamPermit;
use crate::transport::http2::{Error, HttpRecvStream, HttpSendStream, RequestHeaders};

/// Response of a call, not yet received. Dropping it cancels the call.
pub struct ResponseFuture {
    /// `None` while `wait` holds the call, and after the result was returned.
    call: Option<ClientCall>,
    wait: Option<Pin<Box<dyn Future<Output = ClientCall> + Send>>>,
}

type CallResult = Result<http::Response<ResponseBody>, tonic::Status>;

impl ResponseFuture {
    /// Starts a call and advances it as far as the latest snapshot allows. Most calls are sent here.
    pub(crate) fn start(channel: &Arc<ChannelInner>, request: http::Request<Body>) -> ResponseFuture {
        let mut future = ResponseFuture { call: Some(ClientCall::new(channel.clone(), request)), wait: None };
        if let Some(call) = &mut future.call {
            call.advance();
        }
        future
    }
}

impl Future for ResponseFuture {
    type Output = CallResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CallResult> {
        let this = &mut *self;
        loop {
            if let Some(wait) = &mut this.wait {
                this.call = Some(ready!(wait.as_mut().poll(cx)));
                this.wait = None;
            }
            let Some(call) = &mut this.call else {
                return Poll::Ready(Err(tonic::Status::internal(
                    "the response future was polled after completion",
                )));
            };
            match &mut call.state {
                CallState::Receive(attempt) => {
                    let head = ready!(attempt.poll_head(cx, &mut call.deadline));
                    call.state = match attempt.handle_head(head, &mut call.deadline, &mut call.observer) {
                        // The response has a body, which reports the end of the call.
                        Ok(response) if !response.body().is_end_stream() => {
                            // The body has taken the observers and the deadline, so this drop reports nothing.
                            this.call = None;
                            return Poll::Ready(Ok(response));
                        }
                        Ok(response) => CallState::Finish(Ok(response)),
                        Err(failure) => CallState::RecoverBody(failure),
                    };
                }
                CallState::Finish(_) => {
                    ready!(call.poll_finish(cx));
                    if let Some(ClientCall { state: CallState::Finish(result), .. }) = this.call.take() {
                        return Poll::Ready(result);
                    }
                }
                // The loop polls the box at once, which registers the waker.
                _ => this.wait = this.call.take().map(|call| Box::pin(call.wait()) as _),
            }
        }
    }
}

impl fmt::Debug for ResponseFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseFuture")
    }
}

/// Call whose response head has not been received.
struct ClientCall {
    channel: Arc<ChannelInner>,
    state: CallState,
    method: Method,
    path: PathAndQuery,
    headers: HeaderMap,
    /// Request body. An attempt takes it, and returns it if it can be sent again.
    body: Option<RequestBuffer>,
    wait_for_ready: bool,
    captures_peer: Option<CapturePeer>,
    deadline: CallDeadline,
    /// True while `grpc-timeout` in `headers` equals the time that remains. A call that waited writes it again.
    header_is_current: bool,
    /// Route of the call, `None` if the channel has no routes.
    selected: Option<SelectedRoute>,
    observer: CallObserver,
    /// Serial of the snapshot whose connection turned out to be closed. The next pick needs another snapshot.
    stale_serial: Option<u64>,
    /// True once the peer refused an attempt. Only the first refusal is retried transparently.
    refused: bool,
    /// Meter of the next attempt, `None` unless an attempt was begun and not sent.
    meter: Option<AttemptMeter>,
    /// Cause of the failure, if the call has failed.
    cause: FailureCause,
}

/// Next step of a call.
enum CallState {
    /// Wait for a slot among the running calls of the channel, if their number is limited. The maximum is in the
    /// status of a call whose deadline expires.
    AwaitSlot(usize),
    /// Select the route of the call.
    Route,
    /// Apply the route's HTTP filters, from this index on.
    ApplyFilters(usize),
    /// Pick a connection for an attempt.
    Pick,
    /// Wait for a snapshot that allows the next step.
    AwaitSnapshot(SnapshotWait),
    /// Wait as long as the fault at this index of the filters requires (A33).
    Delay(usize, InjectedFault),
    /// Wait until the peer allows another concurrent stream.
    AwaitStream(PickedConnection),
    /// Receive the response head of the attempt.
    Receive(Attempt),
    /// Recover the request body of the failed attempt.
    RecoverBody(Box<FailedAttempt>),
    /// Wait before the next attempt.
    Backoff(Duration),
    /// Return the result.
    Finish(CallResult),
}

/// Connection that the picker selected for an attempt.
struct PickedConnection {
    permit: StreamPermit,
    trackers: CallTrackers,
    /// Serial of the snapshot that was used.
    serial: u64,
}

/// Wait for a snapshot other than the one that was used.
#[derive(Clone, Copy)]
struct SnapshotWait {
    /// Serial of the snapshot that was used.
    serial: u64,
    /// True if the pick is next, false if the route is.
    is_routed: bool,
}

impl ClientCall {
    fn new(channel: Arc<ChannelInner>, request: http::Request<Body>) -> ClientCall {
        let (request, body) = request.into_parts();
        let header_timeout = status::find(&request.headers, &timeout::NAME).and_then(timeout::parse);
        let path = request.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        let method = channel.service_config.method(path.path());
        let per_call = request.extensions.get::<WaitForReady>().map(|WaitForReady(wait)| *wait);
        let captures_peer = request.extensions.get().copied();
        let wait_for_ready = per_call.or(method.and_then(|method| method.wait_for_ready)).unwrap_or(false);
        let method_timeout = method.and_then(|method| method.timeout);
        let limit = [header_timeout, method_timeout, channel.timeout].into_iter().flatten().min();
        let policy = method.and_then(|method| method.retry);
        let meter = channel.metrics.call(path.path());
        let observer = CallObserver::new(channel.calls.start(), policy, channel.throttle.clone(), meter);
        ClientCall {
            state: observer.awaited_limit().map_or(CallState::Route, CallState::AwaitSlot),
            method: request.method,
            path,
            headers: request.headers,
            body: Some(RequestBuffer::new(body)),
            captures_peer,
            wait_for_ready,
            deadline: CallDeadline::at(limit.map(|limit| Instant::now() + limit)),
            header_is_current: header_timeout.is_some() && header_timeout == limit,
            selected: None,
            observer,
            stale_serial: None,
            refused: false,
            meter: None,
            cause: FailureCause::default(),
            channel,
        }
    }

    /// Runs the steps that wait for nothing, all with the same snapshot.
    fn advance(&mut self) {
        let snapshot = self.channel.published.load();
        loop {
            self.state = match self.state {
                CallState::Route => self.route(&snapshot),
                CallState::ApplyFilters(first) => self.apply_filters(&snapshot, first),
                CallState::Pick => self.pick(&snapshot),
                _ => return,
            };
        }
    }

    /// Selects the route. It applies to all attempts of the call (A31).
    fn route(&mut self, snapshot: &ChannelSnapshot) -> CallState {
        let ChannelState::Active { selector, .. } = &snapshot.state else {
            return self.await_config(snapshot, false);
        };
        let Some(selector) = selector else { return self.pick(snapshot) };
        let headers = MetadataView(&self.headers);
        let selected = match selector.select(&self.describe(&headers)) {
            Ok(selected) => selected,
            // Codes that are reserved for servers become INTERNAL (A54).
            Err(status) => {
                self.cause = FailureCause::NoRoute;
                return self.fail(status::to_tonic(&status.for_call()));
            }
        };
        if let Some(limit) = selected.timeout(None) {
            self.header_is_current &= !self.deadline.tighten(Instant::now() + limit);
        }
        if let Some(policy) = selected.retry() {
            self.observer.replace_retry_policy(RetryPolicy::from(&**policy));
        }
        self.selected = Some(selected);
        self.apply_filters(snapshot, 0)
    }

    /// Injects the faults that the control plane configured (A33), from this filter on.
    fn apply_filters(&mut self, snapshot: &ChannelSnapshot, first: usize) -> CallState {
        let filters = self.selected.as_ref().map_or(&[][..], SelectedRoute::filters);
        let headers = MetadataView(&self.headers);
        let fault = filters.iter().enumerate().skip(first).find_map(|(index, instance)| {
            let XdsHttpFilter::Fault(fault) = &instance.filter else { return None };
            Some((index, fault.decide(&self.describe(&headers), &self.channel.faults)?))
        });
        match fault {
            Some((index, fault)) if fault.delay.is_some() => CallState::Delay(index, fault),
            Some((index, fault)) => self.inject_abort(index, &fault),
            None => self.pick(snapshot),
        }
    }

    /// Ends the call if the fault aborts it, else continues with the next filter.
    fn inject_abort(&mut self, index: usize, fault: &InjectedFault) -> CallState {
        match &fault.abort {
            Some(status) if status.code() == Code::Ok => CallState::Finish(Ok(empty_response())),
            Some(status) => {
                self.cause = FailureCause::FaultInjection;
                self.fail(status::to_tonic(status))
            }
            None => CallState::ApplyFilters(index + 1),
        }
    }

    /// Picks a connection for an attempt.
    fn pick(&mut self, snapshot: &ChannelSnapshot) -> CallState {
        // A call that waits picks again, but its attempt starts once.
        if self.meter.is_none() {
            self.meter = self.observer.start_attempt();
        }
        let ChannelState::Active { picker, .. } = &snapshot.state else {
            return self.await_config(snapshot, true);
        };
        let serial = snapshot.serial;
        let wait = || CallState::AwaitSnapshot(SnapshotWait { serial, is_routed: true });
        // The same picker could select the same closed connection again, and the call would spin.
        if self.stale_serial == Some(serial) {
            return wait();
        }
        let headers = MetadataView(&self.headers);
        let call = self.describe(&headers);
        // The picker may be the application's own. If it panics, only this call fails.
        let Ok(pick) = catch_unwind(AssertUnwindSafe(|| picker.pick(&call))) else {
            return self.fail(tonic::Status::internal("the load balancing policy panicked in pick"));
        };
        match pick {
            PickResult::Complete(id, trackers) => {
                let Some(connection) = snapshot.connections.get(id) else {
                    // Explicit, because dropped trackers would report a cancelled call.
                    trackers.finish(&CallOutcome::Unsent);
                    return wait();
                };
                let mut permit = connection.permit();
                let is_acquired = permit.try_acquire();
                let picked = PickedConnection { permit, trackers, serial };
                if is_acquired { self.send(picked) } else { CallState::AwaitStream(picked) }
            }
            PickResult::Queue { connect } => {
                if let Some(id) = connect {
                    // Fails if the driver has ended. The call then finds the closed state.
                    let _ = self.channel.commands.send(ChannelCommand::Connect(id));
                }
                wait()
            }
            PickResult::Fail(ref status) | PickResult::Drop(ref status) => {
                let backend_service = call.backend_service();
                self.cause = match pick {
                    PickResult::Drop(_) => FailureCause::Dropped,
                    _ => FailureCause::NoEndpoint,
                };
                self.fail_pick(status::to_tonic(status), backend_service)
            }
        }
    }

    /// Sends the request headers on the picked connection. The body follows while the call is polled.
    fn send(&mut self, PickedConnection { permit, trackers, serial }: PickedConnection) -> CallState {
        let body = self.body.take().unwrap_or_else(|| RequestBuffer::new(Body::empty()));
        match self.send_headers(&permit, &trackers, body.is_empty()) {
            Ok(sent) => {
                if let Some(id) = trackers.to_wake() {
                    let _ = self.channel.commands.send(ChannelCommand::Connect(id));
                }
                let meter = self.meter.take();
                if let Some(meter) = &meter {
                    meter.record_picked(|| trackers.backend_labels());
                }
                let observer = AttemptObserver::new(trackers, permit, meter);
                CallState::Receive(Attempt::new(sent, body, observer, self.captures_peer.is_some()))
            }
            // The request itself is at fault, so another pick would not help.
            Err(error @ (Error::InvalidHeader(_) | Error::HeaderListTooLarge { .. })) => {
                trackers.finish(&CallOutcome::Unsent);
                self.fail(tonic::Status::internal(format!("the request cannot be sent: {error}")))
            }
            // The connection is closed and the request was never sent, so it needs another pick.
            Err(_) => {
                trackers.finish(&CallOutcome::Unsent);
                self.stale_serial = Some(serial);
                self.pick_again(body)
            }
        }
    }

    /// Sends the request headers of an attempt.
    fn send_headers(
        &mut self,
        permit: &StreamPermit,
        trackers: &CallTrackers,
        end_stream: bool,
    ) -> Result<(HttpSendStream, HttpRecvStream), Error> {
        // The peer measures from the receipt, so a call that waited may send only the time that is left.
        if !self.header_is_current
            && let Some(left) = self.deadline.remaining()
        {
            self.headers.insert(&timeout::NAME, timeout::format(left));
        }
        if let Some(attempts) = self.observer.previous_attempts() {
            self.headers.insert(&retry::PREVIOUS_ATTEMPTS, attempts);
        }
        let rewrite = self.selected.as_ref().is_some_and(SelectedRoute::auto_host_rewrite);
        let labels = if rewrite { trackers.backend_labels() } else { None };
        let hostname = labels.and_then(|labels| labels.hostname.as_deref());
        // The name comes from the control plane, and may not be valid as an authority.
        let hostname = hostname.filter(|name| Authority::try_from(*name).is_ok());
        let defaults = &self.channel.default_headers;
        let mut pick_headers = trackers.headers().peekable();
        let extra_headers = defaults.extra_headers(&self.headers);
        let extra_headers = if pick_headers.peek().is_none() {
            Cow::Borrowed(extra_headers)
        } else {
            with_pick_headers(extra_headers, pick_headers)
        };
        permit.connection().sender().send(&RequestHeaders {
            method: &self.method,
            is_https: permit.transport_state().is_https(),
            authority: hostname.unwrap_or(defaults.authority.as_str()),
            path: self.path.as_str(),
            extra_headers: &extra_headers,
            headers: &self.headers,
            end_stream,
        })
    }

    /// Decides if the call is retried after a failed attempt, and when (A6). The first attempt that the peer did not
    /// process is retried at once. Any other retry follows the retry policy.
    fn retry(&mut self, attempt_outcome: AttemptOutcome) -> CallState {
        let AttemptOutcome { code, cause, outcome, is_unprocessed, buffer } = attempt_outcome;
        self.cause = cause;
        let is_first_refusal = is_unprocessed && !mem::replace(&mut self.refused, is_unprocessed);
        // The body cannot be sent again, so the call is committed (A6).
        let Some(body) = buffer else {
            self.observer.commit(code);
            return CallState::Finish(outcome);
        };
        if is_first_refusal {
            self.observer.record_transparent_retry();
            return self.pick_again(body);
        }
        let pushback =
            outcome.as_ref().ok().and_then(|response| retry::RetryPushback::read(response.headers()));
        let Some(delay) = self.observer.next_retry_delay(code, pushback, self.channel.entropy.unit()) else {
            return CallState::Finish(outcome);
        };
        self.body = Some(body);
        CallState::Backoff(delay)
    }

    /// Returns to the pick with a request body that can be sent again.
    fn pick_again(&mut self, body: RequestBuffer) -> CallState {
        self.body = Some(body);
        self.header_is_current = false;
        CallState::Pick
    }

    /// Ends the call with a status before an attempt was sent.
    fn fail(&mut self, status: tonic::Status) -> CallState {
        self.fail_pick(status, None)
    }

    /// Ends the call with the status of a pick in this cluster (A89).
    fn fail_pick(&mut self, status: tonic::Status, backend_service: Option<Arc<str>>) -> CallState {
        // An attempt that was begun must end, although it was never sent.
        if let Some(meter) = self.meter.take() {
            meter.record_unpicked(backend_service);
            meter.finish(status::code(status.code() as i32));
        }
        CallState::Finish(Err(status))
    }

    /// Reports the end of the call. Ready when the caller may have the result.
    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let CallState::Finish(result) = &self.state {
            // Only the first report counts, so this may be polled again.
            match result {
                Ok(response) => {
                    let code = status::code_of(response.headers()).unwrap_or(Code::Unknown);
                    self.observer.finish(code, FailureInfo::of_server(response.headers()));
                }
                Err(status) => {
                    let failure = FailureInfo::local(self.cause, status.message());
                    self.observer.finish(status::code(status.code() as i32), failure);
                }
            }
        }
        // A call may end on its first poll: no endpoint, a drop, circuit breaking, an invalid request, a closed channel. A
        // caller that retries at once would never yield, and neither the driver nor a timer would run on its thread.
        pin!(coop::consume_budget()).poll(cx)
    }

    /// Runs the states that wait, and the steps between them.
    async fn wait(mut self) -> ClientCall {
        loop {
            // A placeholder during the await: every arm sets the state.
            self.state = match mem::replace(&mut self.state, CallState::Pick) {
                CallState::AwaitSlot(maximum) => self.await_slot(maximum).await,
                CallState::AwaitSnapshot(wait) => self.await_snapshot(wait).await,
                CallState::Delay(index, fault) => self.delay(index, fault).await,
                CallState::AwaitStream(picked) => self.await_stream(picked).await,
                CallState::RecoverBody(failure) => self.retry(failure.recover_body().await),
                CallState::Backoff(delay) => self.back_off(delay).await,
                state => {
                    self.state = state;
                    return self;
                }
            };
            self.advance();
        }
    }

    /// Waits for a slot among the running calls of the channel.
    async fn await_slot(&mut self, maximum: usize) -> CallState {
        self.header_is_current = false;
        match self.deadline.race(self.observer.acquire_slot()).await {
            Some(()) => CallState::Route,
            None => self.fail(deadline_exceeded(&format!(
                "the channel has reached its concurrency limit of {maximum}"
            ))),
        }
    }

    /// Waits for config or connections, until the call has left [`CallState::AwaitSnapshot`].
    async fn await_snapshot(&mut self, mut wait: SnapshotWait) -> CallState {
        // One subscription for all snapshots of this wait: the driver counts it as a waiting call.
        let mut changes = self.channel.published.subscribe();
        loop {
            // A snapshot that was published before the subscription does not notify it.
            if self.channel.published.load().serial == wait.serial {
                self.header_is_current = false;
                match self.deadline.race(changes.changed()).await {
                    Some(Ok(())) => {}
                    Some(Err(_)) => return self.fail(closed_status(&self.channel.target)),
                    None => {
                        self.cause = match self.channel.published.load().state {
                            ChannelState::Active { .. } => FailureCause::NoEndpoint,
                            _ => FailureCause::NoConfig,
                        };
                        let reason = self.channel.published.wait_reason(clock::now());
                        return self.fail(deadline_exceeded(&reason));
                    }
                }
            }
            self.state = if wait.is_routed { CallState::Pick } else { CallState::Route };
            self.advance();
            match mem::replace(&mut self.state, CallState::Pick) {
                CallState::AwaitSnapshot(next) => wait = next,
                state => return state,
            }
        }
    }

    /// Delays the call by a fault (A33).
    async fn delay(&mut self, index: usize, fault: InjectedFault) -> CallState {
        self.header_is_current = false;
        let Some(()) = self.deadline.race(sleep(fault.delay.unwrap_or_default())).await else {
            self.cause = FailureCause::FaultInjection;
            return self.fail(deadline_exceeded("delayed by fault injection"));
        };
        self.inject_abort(index, &fault)
    }

    /// Waits until the peer allows another concurrent stream, and sends the request.
    async fn await_stream(&mut self, mut picked: PickedConnection) -> CallState {
        self.header_is_current = false;
        match self.deadline.race(picked.permit.acquire()).await {
            Some(true) => self.send(picked),
            Some(false) => {
                picked.trackers.finish(&CallOutcome::Unsent);
                self.stale_serial = Some(picked.serial);
                CallState::Pick
            }
            None => {
                let PickedConnection { permit, trackers, .. } = picked;
                let reason = format!(
                    "endpoint {} has reached its maximum of concurrent streams",
                    permit.transport_state().address()
                );
                // Reported as an attempt at this endpoint, which kept the call waiting until its deadline.
                self.cause = FailureCause::Deadline;
                AttemptObserver::new(trackers, permit, self.meter.take())
                    .finish(Code::DeadlineExceeded, FailureInfo::local(self.cause, &reason));
                self.fail(deadline_exceeded(&reason))
            }
        }
    }

    /// Waits before the next attempt.
    async fn back_off(&mut self, delay: Duration) -> CallState {
        self.header_is_current = false;
        match self.deadline.race(sleep(delay)).await {
            Some(()) => CallState::Pick,
            None => self.fail(deadline_exceeded("waiting to retry")),
        }
    }

    /// Waits for a config, or fails the call if none is to be expected.
    fn await_config(&mut self, snapshot: &ChannelSnapshot, is_routed: bool) -> CallState {
        match &snapshot.state {
            ChannelState::Idle => drop(self.channel.commands.send(ChannelCommand::Wake)),
            ChannelState::Failed(status) if !self.wait_for_ready => {
                self.cause = FailureCause::NoConfig;
                return self.fail(status::to_tonic(status));
            }
            ChannelState::Closed => return self.fail(closed_status(&self.channel.target)),
            ChannelState::Failed(_) | ChannelState::Resolving(_) | ChannelState::Active { .. } => {}
        }
        CallState::AwaitSnapshot(SnapshotWait { serial: snapshot.serial, is_routed })
    }

    /// Returns the properties of the call that routes and pickers use.
    fn describe<'a>(&'a self, headers: &'a MetadataView<'a>) -> PickArgs<'a> {
        let mut call = PickArgs::new(self.path.path(), self.channel.entropy.next()).with_headers(headers);
        if let Some(selected) = &self.selected {
            call = call.with_cluster(selected.cluster().child()).with_hash(selected.hash());
        }
        if self.wait_for_ready { call.wait_for_ready() } else { call }
    }
}

/// Appends the headers of a pick to the channel's own.
fn with_pick_headers<'a>(
    extra_headers: &[(HeaderName, HeaderValue)],
    pick_headers: impl Iterator<Item = (&'a str, &'a str)>,
) -> Cow<'static, [(HeaderName, HeaderValue)]> {
    // The core accepts only headers that are valid in HTTP, so none is skipped.
    let pick_headers =
        pick_headers.filter_map(|(name, value)| Some((name.try_into().ok()?, value.try_into().ok()?)));
    Cow::Owned(extra_headers.iter().cloned().chain(pick_headers).collect())
}

/// Request headers as routes and policies read them: repeated values are joined with commas.
struct MetadataView<'a>(&'a HeaderMap);

impl RequestMetadata for MetadataView<'_> {
    fn value(&self, name: &str) -> Option<Cow<'_, str>> {
        let mut values = self.0.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
        let first = values.next()?;
        Some(values.fold(first, |all, value| Cow::Owned(format!("{all},{value}"))))
    }
}

/// Returns the response of a call that fault injection ends with OK.
fn empty_response() -> http::Response<ResponseBody> {
    let mut response = http::Response::new(ResponseBody::empty());
    response.headers_mut().insert("grpc-status", HeaderValue::from_static("0"));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}
