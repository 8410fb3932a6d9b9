//! The way of a call: route, pick, send, and again where the call may be repeated.
//!
//! [`ClientCall::start`] and [`ClientCall::advance`] are that way. Everything it looks at is in the latest
//! snapshot; it waits for the driver only if there is nobody to send to.

use std::borrow::Cow;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::{fmt, mem};

use evenkeel_core::{CallOutcome, CallTrackers, Code, PickArgs, PickResult, RequestMetadata, Status};
use evenkeel_xds::routing::{SelectedRoute, XdsHttpFilter};
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
use crate::channel::{
    CapturePeer, ChannelCommand, ChannelInner, WaitForReady, closed_message, closed_status,
};
use crate::telemetry::metrics::AttemptMeter;
use crate::transport::connection::StreamPermit;
use crate::transport::http2::{Error, HttpRecvStream, HttpSendStream, RequestHeaders};

/// A call that is not answered yet. Dropping it cancels the call.
///
/// Most calls are sent at once and answered well, and need no allocation for that. Whatever else happens to a call happens in
/// a box.
pub struct ResponseFuture {
    call: Option<ClientCall>,
    boxed: Option<Pin<Box<dyn Future<Output = CallResult> + Send>>>,
}

type CallResult = Result<http::Response<ResponseBody>, tonic::Status>;

impl ResponseFuture {
    pub(crate) fn start(channel: &Arc<ChannelInner>, request: http::Request<Body>) -> ResponseFuture {
        let mut future =
            ResponseFuture { call: Some(ClientCall::new(channel.clone(), request)), boxed: None };
        if let Some(call) = &mut future.call {
            call.start(&channel.published.load());
        }
        future
    }
}

impl Future for ResponseFuture {
    type Output = CallResult;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CallResult> {
        let this = &mut *self;
        if let Some(ClientCall { state, deadline, observer, .. }) = &mut this.call
            && let CallState::Sent(attempt) = state
        {
            let head = ready!(attempt.poll_head(cx, deadline));
            match attempt.handle_head(head, deadline, observer) {
                Ok(response) => {
                    this.call = None;
                    return Poll::Ready(Ok(response));
                }
                Err(failure) => *state = CallState::FailedAttempt(failure),
            }
        }
        if let Some(call) = this.call.take() {
            this.boxed = Some(Box::pin(call.run()));
        }
        let Some(call) = &mut this.boxed else {
            return Poll::Ready(Err(tonic::Status::internal("a call was asked for its answer twice")));
        };
        let outcome = ready!(call.as_mut().poll(cx));
        this.boxed = None;
        Poll::Ready(outcome)
    }
}

impl fmt::Debug for ResponseFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseFuture")
    }
}

/// A call on its way out.
struct ClientCall {
    channel: Arc<ChannelInner>,
    state: CallState,
    method: Method,
    path: PathAndQuery,
    headers: HeaderMap,
    /// Given to each attempt, and back if it can be repeated.
    body: Option<RequestBuffer>,
    wait_for_ready: bool,
    captures_peer: Option<CapturePeer>,
    deadline: CallDeadline,
    /// Whether the headers say how much time is left.
    header_is_current: bool,
    /// Where the route leads, if there are routes.
    selected: Option<SelectedRoute>,
    observer: CallObserver,
    /// The snapshot whose connection turned out to be gone: another one is needed.
    stale_serial: Option<u64>,
    refused: bool,
    /// Of the attempt that is about to be made.
    meter: Option<AttemptMeter>,
    /// The cluster that a pick failed in, for metrics (A89).
    backend_service: Cell<Option<Arc<str>>>,
}

/// How far a call is.
#[expect(clippy::large_enum_variant, reason = "the large one is the common one")]
enum CallState {
    /// It needs a route. Every call begins here.
    Route,
    /// Its route has filters.
    Faults,
    /// It needs an endpoint.
    Picking,
    /// Its endpoint takes no more calls at the moment.
    Queue(PickedConnection),
    /// An attempt is on its way.
    Sent(Attempt),
    /// An attempt failed.
    FailedAttempt(Box<FailedAttempt>),
    /// It cannot go on.
    Failed(tonic::Status),
}

/// Where an attempt goes.
struct PickedConnection {
    permit: StreamPermit,
    trackers: CallTrackers,
    serial: u64,
}

/// What one look at the channel led to.
enum SelectionResult<T> {
    Found(T),
    Wait(&'static str),
    Fail(Status),
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
        let limit = header_timeout.into_iter().chain(method.and_then(|method| method.timeout)).min();
        let policy = method.and_then(|method| method.retry);
        let meter = channel.metrics.call(path.path());
        ClientCall {
            state: CallState::Route,
            method: request.method,
            path,
            headers: request.headers,
            body: Some(RequestBuffer::new(body)),
            captures_peer,
            wait_for_ready,
            deadline: CallDeadline::at(limit.map(|limit| Instant::now() + limit)),
            header_is_current: header_timeout.is_some() && header_timeout == limit,
            selected: None,
            observer: CallObserver::new(channel.calls.start(), policy, channel.throttle.clone(), meter),
            stale_serial: None,
            refused: false,
            meter: None,
            backend_service: Cell::default(),
            channel,
        }
    }

    /// The way of most calls: everything that they need is in the snapshot. Goes as far as that is enough.
    fn start(&mut self, snapshot: &ChannelSnapshot) {
        match self.select_route(snapshot) {
            SelectionResult::Found(selected) => self.apply_route(selected),
            SelectionResult::Wait(_) => return,
            SelectionResult::Fail(status) => {
                self.state = CallState::Failed(status::to_tonic(&status));
                return;
            }
        }
        if self.has_filters() {
            self.state = CallState::Faults;
            return;
        }
        self.meter = self.observer.start_attempt();
        match self.pick_connection(snapshot) {
            SelectionResult::Found(picked) => self.acquire_stream(picked),
            SelectionResult::Wait(_) => self.state = CallState::Picking,
            SelectionResult::Fail(status) => {
                self.state = CallState::Failed(self.record_unpicked(status::to_tonic(&status)));
            }
        }
    }

    /// The way of the others. Notes how the call ended, too.
    async fn run(mut self) -> CallResult {
        let outcome = loop {
            if let Err(outcome) = self.advance().await {
                break outcome;
            }
        };
        match &outcome {
            Err(status) => self.observer.finish(status::code(status.code() as i32)),
            Ok(response) if response.body().is_end_stream() => {
                self.observer.finish(status::code_of(response.headers()).unwrap_or(Code::Unknown));
            }
            // The end of an answer that goes on is the business of its body.
            Ok(_) => return outcome,
        }
        // A call may end here on its first poll: no endpoint, a drop, circuit breaking, an invalid request, a closed channel. A
        // caller that retries at once would then never yield, and on its thread neither the channel's driver nor any timer would run.
        coop::consume_budget().await;
        outcome
    }

    /// Goes one stage further. `Err` is the end of the call, good or bad.
    async fn advance(&mut self) -> Result<(), CallResult> {
        match mem::replace(&mut self.state, CallState::Route) {
            CallState::Route => {
                let selected = self.wait_for(ClientCall::select_route).await.map_err(Err)?;
                self.apply_route(selected);
                self.state = CallState::Faults;
            }
            CallState::Faults => {
                if let Some(response) = self.inject_faults().await.map_err(Err)? {
                    return Err(Ok(response));
                }
                self.state = CallState::Picking;
            }
            CallState::Picking => {
                self.meter = self.meter.take().or_else(|| self.observer.start_attempt());
                match self.wait_for(ClientCall::pick_connection).await {
                    Ok(picked) => self.acquire_stream(picked),
                    Err(status) => return Err(Err(self.record_unpicked(status))),
                }
            }
            CallState::Queue(picked) => self.wait_for_stream(picked).await.map_err(Err)?,
            CallState::Sent(mut attempt) => {
                let head = poll_fn(|cx| attempt.poll_head(cx, &mut self.deadline)).await;
                match attempt.handle_head(head, &mut self.deadline, &mut self.observer) {
                    Ok(response) => return Err(Ok(response)),
                    Err(failure) => self.state = CallState::FailedAttempt(failure),
                }
            }
            CallState::FailedAttempt(failure) => {
                let body = self.wait_for_retry(failure.recover_body().await).await?;
                self.restart(body);
            }
            CallState::Failed(status) => return Err(Err(status)),
        }
        Ok(())
    }

    /// Takes the call's route. It holds for all attempts (A31).
    fn apply_route(&mut self, selected: Option<SelectedRoute>) {
        let Some(selected) = selected else { return };
        if let Some(limit) = selected.timeout(None) {
            self.header_is_current &= !self.deadline.tighten(Instant::now() + limit);
        }
        if let Some(policy) = selected.retry() {
            self.observer.replace_retry_policy(RetryPolicy::from(&**policy));
        }
        self.selected = Some(selected);
    }

    /// Notes that there is no endpoint for the attempt.
    fn record_unpicked(&mut self, status: tonic::Status) -> tonic::Status {
        if let Some(meter) = self.meter.take() {
            meter.record_unpicked(self.backend_service.take());
            meter.finish(status::code(status.code() as i32));
        }
        status
    }

    fn has_filters(&self) -> bool {
        self.selected.as_ref().is_some_and(|selected| !selected.filters().is_empty())
    }

    /// Waits and fails as the control plane's faults say (A33). Answers with what ends the call early.
    async fn inject_faults(&mut self) -> Result<Option<http::Response<ResponseBody>>, tonic::Status> {
        let Some(selected) = &self.selected else { return Ok(None) };
        for index in 0..selected.filters().len() {
            let Some(selected) = &self.selected else { break };
            let Some(XdsHttpFilter::Fault(fault)) =
                selected.filters().get(index).map(|instance| &instance.filter)
            else {
                continue;
            };
            let injected = {
                let headers = self.headers();
                fault.decide(&self.describe(&headers), &self.channel.faults)
            };
            let Some(injected) = injected else { continue };
            self.header_is_current &= injected.delay.is_none();
            if let Some(delay) = injected.delay
                && self.deadline.race(sleep(delay)).await.is_none()
            {
                return Err(deadline_exceeded("delayed by fault injection"));
            }
            match &injected.abort {
                Some(status) if status.code() == Code::Ok => return Ok(Some(empty_response())),
                Some(status) => return Err(status::to_tonic(status)),
                None => {}
            }
        }
        Ok(None)
    }

    /// Sends the request, unless it has to wait for its turn.
    fn acquire_stream(&mut self, mut picked: PickedConnection) {
        if picked.permit.try_acquire() { self.send(picked) } else { self.state = CallState::Queue(picked) }
    }

    /// Waits while the peer takes no more calls at once.
    async fn wait_for_stream(&mut self, mut picked: PickedConnection) -> Result<(), tonic::Status> {
        // It has less time left by then than its headers say.
        self.header_is_current = false;
        match self.deadline.race(picked.permit.acquire()).await {
            Some(true) => {
                self.send(picked);
                Ok(())
            }
            Some(false) => {
                picked.trackers.finish(&CallOutcome::Unsent);
                self.stale_serial = Some(picked.serial);
                self.state = CallState::Picking;
                Ok(())
            }
            None => {
                let PickedConnection { permit, trackers, .. } = picked;
                let why =
                    format!("endpoint {} takes no more calls at once", permit.transport_state().address());
                AttemptObserver::new(trackers, permit, self.meter.take())
                    .finish(Code::DeadlineExceeded, None);
                Err(deadline_exceeded(&why))
            }
        }
    }

    /// Sends the request where the pick says. A request that never left because its connection is gone needs another pick.
    fn send(&mut self, PickedConnection { permit, trackers, serial }: PickedConnection) {
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
                self.state = CallState::Sent(
                    Attempt::new(sent, body, observer).capture_peer(self.captures_peer.is_some()),
                );
            }
            Err(error) => {
                trackers.finish(&CallOutcome::Unsent);
                // The request is to blame; or else the connection is gone.
                if matches!(error, Error::InvalidHeader(_) | Error::HeaderListTooLarge { .. }) {
                    let status = tonic::Status::internal(format!("the request cannot be sent: {error}"));
                    self.state = CallState::Failed(self.record_unpicked(status));
                    return;
                }
                self.stale_serial = Some(serial);
                self.restart(body);
            }
        }
    }

    /// Makes the call what it was before an attempt.
    fn restart(&mut self, body: RequestBuffer) {
        self.state = CallState::Picking;
        self.body = Some(body);
        self.header_is_current = false;
    }

    /// Whether the call is tried again after a failure, and when (A6): at once if the peer did nothing with it, for the first
    /// time; else as the retry policy says. `Err` is what the caller gets.
    async fn wait_for_retry(&mut self, attempt_outcome: AttemptOutcome) -> Result<RequestBuffer, CallResult> {
        let AttemptOutcome { code, outcome, is_unprocessed, buffer } = attempt_outcome;
        let is_first_refusal = is_unprocessed && !mem::replace(&mut self.refused, is_unprocessed);
        let Some(body) = buffer else {
            self.observer.commit(code);
            return Err(outcome);
        };
        if is_first_refusal {
            self.observer.record_transparent_retry();
            return Ok(body);
        }
        let pushback =
            outcome.as_ref().ok().and_then(|response| retry::RetryPushback::read(response.headers()));
        let Some(delay) = self.observer.next_retry_delay(code, pushback, self.channel.entropy.unit()) else {
            return Err(outcome);
        };
        match self.deadline.race(sleep(delay)).await {
            Some(()) => Ok(body),
            None => Err(Err(deadline_exceeded("waiting to try again"))),
        }
    }

    /// Looks until there is something to go by.
    async fn wait_for<T>(
        &mut self,
        select: impl Fn(&ClientCall, &ChannelSnapshot) -> SelectionResult<T>,
    ) -> Result<T, tonic::Status> {
        let mut changes = None;
        loop {
            let result = select(self, &self.channel.published.load());
            let why = match result {
                SelectionResult::Found(found) => return Ok(found),
                SelectionResult::Fail(status) => return Err(status::to_tonic(&status)),
                SelectionResult::Wait(why) => why,
            };
            let Some(changes) = &mut changes else {
                // What is published between this look and the next is seen by the next.
                changes = Some(self.channel.published.subscribe());
                continue;
            };
            // Time passes: less is left than the application said.
            self.header_is_current = false;
            match self.deadline.race(changes.changed()).await {
                Some(Ok(())) => {}
                Some(Err(_)) => return Err(closed_status(&self.channel.target)),
                None => return Err(deadline_exceeded(why)),
            }
        }
    }

    fn select_route(&self, snapshot: &ChannelSnapshot) -> SelectionResult<Option<SelectedRoute>> {
        match &snapshot.state {
            ChannelState::Active { selector: None, .. } => SelectionResult::Found(None),
            ChannelState::Active { selector: Some(selector), .. } => {
                let headers = self.headers();
                match selector.select(&self.describe(&headers)) {
                    Ok(selected) => SelectionResult::Found(Some(selected)),
                    Err(status) => SelectionResult::Fail(status.for_call()),
                }
            }
            state => self.inactive_result(state),
        }
    }

    fn pick_connection(&self, snapshot: &ChannelSnapshot) -> SelectionResult<PickedConnection> {
        let ChannelState::Active { picker, .. } = &snapshot.state else {
            return self.inactive_result(&snapshot.state);
        };
        if self.stale_serial == Some(snapshot.serial) {
            return SelectionResult::Wait("the connection that was chosen is gone");
        }
        let headers = self.headers();
        let call = self.describe(&headers);
        // A picker may be the application's own. If it panics, this call fails and the channel lives.
        let Ok(pick) = catch_unwind(AssertUnwindSafe(|| picker.pick(&call))) else {
            return SelectionResult::Fail(Status::new(
                Code::Internal,
                "the load balancing policy panicked while it picked",
            ));
        };
        match pick {
            PickResult::Complete(id, trackers) => {
                let Some(connection) = snapshot.connections.get(id) else {
                    trackers.finish(&CallOutcome::Unsent);
                    return SelectionResult::Wait("the connection that was chosen is gone");
                };
                SelectionResult::Found(PickedConnection {
                    permit: connection.permit(),
                    trackers,
                    serial: snapshot.serial,
                })
            }
            PickResult::Queue { connect } => {
                if let Some(id) = connect {
                    let _ = self.channel.commands.send(ChannelCommand::Connect(id));
                }
                SelectionResult::Wait("no endpoint is connected")
            }
            PickResult::Fail(status) | PickResult::Drop(status) => {
                self.backend_service.set(call.backend_service());
                SelectionResult::Fail(status)
            }
        }
    }

    /// What a call does that finds no config.
    fn inactive_result<T>(&self, state: &ChannelState) -> SelectionResult<T> {
        match state {
            ChannelState::Idle => {
                let _ = self.channel.commands.send(ChannelCommand::Wake);
                SelectionResult::Wait("the channel has no config yet")
            }
            ChannelState::Failed(status) if !self.wait_for_ready => SelectionResult::Fail(status.clone()),
            ChannelState::Failed(_) => SelectionResult::Wait("the channel has no config"),
            ChannelState::Closed => {
                SelectionResult::Fail(Status::unavailable(closed_message(&self.channel.target)))
            }
            ChannelState::Resolving | ChannelState::Active { .. } => {
                SelectionResult::Wait("the channel has no config yet")
            }
        }
    }

    fn headers(&self) -> MetadataView<'_> {
        MetadataView(&self.headers)
    }

    /// The call as routes and pickers see it.
    fn describe<'a>(&'a self, headers: &'a MetadataView<'a>) -> PickArgs<'a> {
        let mut call = PickArgs::new(self.path.path(), self.channel.entropy.next()).with_headers(headers);
        if let Some(selected) = &self.selected {
            call = call.with_cluster(selected.cluster().child()).with_hash(selected.hash());
        }
        if self.wait_for_ready { call.wait_for_ready() } else { call }
    }

    /// Sends the head of an attempt's request.
    fn send_headers(
        &mut self,
        permit: &StreamPermit,
        trackers: &CallTrackers,
        end_stream: bool,
    ) -> Result<(HttpSendStream, HttpRecvStream), Error> {
        if !self.header_is_current
            && let Some(left) = self.deadline.remaining()
        {
            self.headers.insert(&timeout::NAME, timeout::format(left));
        }
        if let Some(attempts) = self.observer.previous_attempts() {
            self.headers.insert(&retry::PREVIOUS_ATTEMPTS, attempts);
        }
        let rewrite = self.selected.as_ref().is_some_and(SelectedRoute::auto_host_rewrite);
        let place = if rewrite { trackers.backend_labels() } else { None };
        let hostname = place.and_then(|place| place.hostname.as_deref());
        let hostname = hostname.filter(|name| Authority::try_from(*name).is_ok());
        let head = &self.channel.default_headers;
        let mut pick_headers = trackers.headers().peekable();
        let extra_headers = head.extra_headers(&self.headers);
        let extra_headers = if pick_headers.peek().is_none() {
            Cow::Borrowed(extra_headers)
        } else {
            with_pick_headers(extra_headers, pick_headers)
        };
        permit.connection().sender().send(&RequestHeaders {
            method: &self.method,
            is_https: permit.transport_state().is_https(),
            authority: hostname.unwrap_or(head.authority.as_str()),
            path: self.path.as_str(),
            extra_headers: &extra_headers,
            headers: &self.headers,
            end_stream,
        })
    }
}

/// What a pick has to say, behind what every request says.
fn with_pick_headers<'a>(
    extra_headers: &[(HeaderName, HeaderValue)],
    pick_headers: impl Iterator<Item = (&'a str, &'a str)>,
) -> Cow<'static, [(HeaderName, HeaderValue)]> {
    // What a pick's headers may be is narrower than what HTTP takes.
    let pick_headers =
        pick_headers.filter_map(|(name, value)| Some((name.try_into().ok()?, value.try_into().ok()?)));
    Cow::Owned(extra_headers.iter().cloned().chain(pick_headers).collect())
}

/// Request headers, as routes and policies look at them.
struct MetadataView<'a>(&'a HeaderMap);

impl RequestMetadata for MetadataView<'_> {
    fn value(&self, name: &str) -> Option<Cow<'_, str>> {
        let mut values = self.0.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
        let first = values.next()?;
        Some(values.fold(first, |all, value| Cow::Owned(format!("{all},{value}"))))
    }
}

/// The answer of a call that fault injection ends well.
fn empty_response() -> http::Response<ResponseBody> {
    let mut response = http::Response::new(ResponseBody::empty());
    response.headers_mut().insert("grpc-status", HeaderValue::from_static("0"));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}
