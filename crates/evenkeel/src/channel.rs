//! The channel: what a generated client is given, and the way of a call through it.
//!
//! [`Outgoing::start`] and [`Outgoing::advance`] are that way: route, pick, send, and again where the call may be repeated. Everything it looks at is in the latest
//! snapshot; it waits for the driver only if there is nobody to send to.

use std::borrow::Cow;
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::{fmt, mem};

use evenkeel_core::{
    Address, CallOutcome, CallTrackers, Code, ConnectivityState, Description, PickArgs, PickResult,
    RequestMetadata, Status, SubchannelId,
};
use evenkeel_xds::routing::{ActiveFaults, SelectedRoute, XdsHttpFilter};
use http::uri::{Authority, PathAndQuery};
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use http_body::Body as _;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::coop;
use tokio::time::{Instant, sleep};
use tonic::body::Body;

use crate::builder::Builder;
use crate::call::{Attempt, Calls, Deadline, End, Failure, Fallen, Flight, Replay, ResponseBody, late};
use crate::connection::Turn;
use crate::entropy::Entropy;
use crate::http2::{Error, Request, RequestStream, ResponseStream};
use crate::metrics::{AttemptMeter, Metrics};
use crate::retry::{self, RetryPolicy, Throttle};
use crate::service_config::ServiceConfig;
use crate::snapshot::{Published, Snapshot, Way};
use crate::{status, timeout};

/// A channel to a service: any generated client takes it in the place of tonic's own.
///
/// It is cheap to clone, and clones share everything. It is made without waiting; connections are made when the first call
/// wants one, or by [`Channel::connect`]. When the last clone is dropped, calls that are under way finish and everything
/// else ends.
#[derive(Clone)]
pub struct Channel {
    pub(crate) inner: Arc<Inner>,
}

/// What the clones of a channel share.
pub(crate) struct Inner {
    pub(crate) target: Arc<str>,
    pub(crate) published: Arc<Published>,
    pub(crate) calls: Arc<Calls>,
    pub(crate) commands: mpsc::UnboundedSender<Command>,
    pub(crate) head: Head,
    pub(crate) service_config: Arc<ServiceConfig>,
    pub(crate) throttle: Option<Arc<Throttle>>,
    pub(crate) faults: Arc<ActiveFaults>,
    pub(crate) entropy: Entropy,
    pub(crate) metrics: Metrics,
}

/// What every request says beside what its caller says.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) authority: Authority,
    /// Said unless the caller says another.
    pub(crate) user_agent: [(HeaderName, HeaderValue); 1],
}

/// What calls and the application tell the driver.
#[derive(Debug)]
pub(crate) enum Command {
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

/// Put this into a request's extensions to be told who answered: the response has a [`Peer`] in its own.
///
/// ```
/// # fn example(response: tonic::Response<()>) {
/// let mut request = tonic::Request::new("message");
/// request.extensions_mut().insert(evenkeel::AskPeer);
/// // ... and when it is answered:
/// if let Some(evenkeel::Peer(address)) = response.extensions().get() {
///     println!("answered by {address}");
/// }
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskPeer;

/// The address of the server that answered, in the extensions of a response whose request had [`AskPeer`]. A call that fails
/// has none; where an endpoint was to blame, its status names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer(pub Address);

impl Channel {
    /// Settings for a channel to a target: `xds:///orders`, `dns:///orders.prod:50051`, `ipv4:10.0.0.1:50051,10.0.0.2:50051`,
    /// `unix:/run/orders.sock`. See [`Builder`].
    pub fn builder(target: impl Into<String>) -> Builder {
        Builder::new(target.into())
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
        let _ = self.inner.commands.send(Command::ExitIdle);
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
            let is_closed = matches!(self.inner.published.load().way, Way::Closed);
            if is_closed || connectivity.changed().await.is_err() {
                // As with calls: a caller that asks again at once must not starve other tasks.
                coop::consume_budget().await;
                return Err(closed(&self.inner.target));
            }
        }
    }

    /// The policies of the channel as they are at this moment, with their endpoints, weights and picks; `None` while it rests or
    /// nothing is known yet.
    pub async fn tree(&self) -> Option<Description> {
        let (answer, described) = oneshot::channel();
        self.inner.commands.send(Command::Describe(answer)).ok()?;
        described.await.ok().flatten()
    }

    /// Closes the channel: calls that begin from here on fail, as do those that have not found an endpoint yet, and this waits
    /// until those that were sent have finished.
    pub async fn close(self) {
        let mut changes = self.inner.published.subscribe();
        let _ = self.inner.commands.send(Command::Close);
        // Until calls can see it, more of them may begin.
        while !matches!(self.inner.published.load().way, Way::Closed) {
            if changes.changed().await.is_err() {
                break;
            }
        }
        self.inner.calls.finished().await;
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
        let mut future =
            ResponseFuture { call: Some(Outgoing::new(self.inner.clone(), request)), boxed: None };
        if let Some(call) = &mut future.call {
            call.start(&self.inner.published.load());
        }
        future
    }
}

/// A call that is not answered yet. Dropping it cancels the call.
///
/// Most calls are sent at once and answered well, and need no allocation for that. Whatever else happens to a call happens in
/// a box.
pub struct ResponseFuture {
    call: Option<Outgoing>,
    boxed: Option<Pin<Box<dyn Future<Output = Outcome> + Send>>>,
}

type Outcome = Result<http::Response<ResponseBody>, tonic::Status>;

impl Future for ResponseFuture {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let this = &mut *self;
        if let Some(Outgoing { stage, deadline, end, .. }) = &mut this.call
            && let Stage::Sent(flight) = stage
        {
            let head = ready!(flight.poll_head(cx, deadline));
            match flight.land(head, deadline, end) {
                Ok(response) => {
                    this.call = None;
                    return Poll::Ready(Ok(response));
                }
                Err(fallen) => *stage = Stage::Fallen(fallen),
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
struct Outgoing {
    channel: Arc<Inner>,
    stage: Stage,
    method: Method,
    path: PathAndQuery,
    headers: HeaderMap,
    /// Given to each attempt, and back if it can be repeated.
    body: Option<Replay>,
    wait_for_ready: bool,
    asks_peer: Option<AskPeer>,
    deadline: Deadline,
    /// Whether the headers say how much time is left.
    says_timeout: bool,
    /// Where the route leads, if there are routes.
    selected: Option<SelectedRoute>,
    end: End,
    /// The snapshot whose connection turned out to be gone: another one is needed.
    outdated: Option<u64>,
    refused: bool,
    /// Of the attempt that is about to be made.
    meter: Option<AttemptMeter>,
    /// The cluster that a pick failed in, for metrics (A89).
    backend_service: Cell<Option<Arc<str>>>,
}

/// How far a call is.
#[expect(clippy::large_enum_variant, reason = "the large one is the common one")]
enum Stage {
    /// It needs a route. Every call begins here.
    Route,
    /// Its route has filters.
    Faults,
    /// It needs an endpoint.
    PickResult,
    /// Its endpoint takes no more calls at the moment.
    Queue(Picked),
    /// An attempt is on its way.
    Sent(Flight),
    /// An attempt failed.
    Fallen(Box<Fallen>),
    /// It cannot go on.
    Failed(tonic::Status),
}

/// Where an attempt goes.
struct Picked {
    turn: Turn,
    trackers: CallTrackers,
    serial: u64,
}

/// What one look at the channel led to.
enum Look<T> {
    Found(T),
    Wait(&'static str),
    Fail(Status),
}

impl Outgoing {
    fn new(channel: Arc<Inner>, request: http::Request<Body>) -> Outgoing {
        let (request, body) = request.into_parts();
        let said = status::find(&request.headers, &timeout::NAME).and_then(timeout::parse);
        let path = request.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        let method = channel.service_config.method(path.path());
        let own = request.extensions.get::<WaitForReady>().map(|WaitForReady(wait)| *wait);
        let asks_peer = request.extensions.get().copied();
        let wait_for_ready = own.or(method.and_then(|method| method.wait_for_ready)).unwrap_or(false);
        let limit = said.into_iter().chain(method.and_then(|method| method.timeout)).min();
        let policy = method.and_then(|method| method.retry);
        let meter = channel.metrics.call(path.path());
        Outgoing {
            stage: Stage::Route,
            method: request.method,
            path,
            headers: request.headers,
            body: Some(Replay::new(body)),
            asks_peer,
            wait_for_ready,
            deadline: Deadline::at(limit.map(|limit| Instant::now() + limit)),
            says_timeout: said.is_some() && said == limit,
            selected: None,
            end: End::new(channel.calls.begin(), policy, channel.throttle.clone(), meter),
            outdated: None,
            refused: false,
            meter: None,
            backend_service: Cell::default(),
            channel,
        }
    }

    /// The way of most calls: everything that they need is in the snapshot. Goes as far as that is enough.
    fn start(&mut self, snapshot: &Snapshot) {
        match self.look_at_routes(snapshot) {
            Look::Found(selected) => self.follow(selected),
            Look::Wait(_) => return,
            Look::Fail(status) => {
                self.stage = Stage::Failed(status::to_tonic(&status));
                return;
            }
        }
        if self.has_filters() {
            self.stage = Stage::Faults;
            return;
        }
        self.meter = self.end.attempt();
        match self.look_for_endpoint(snapshot) {
            Look::Found(picked) => self.take_turn(picked),
            Look::Wait(_) => self.stage = Stage::PickResult,
            Look::Fail(status) => self.stage = Stage::Failed(self.unplaced(status::to_tonic(&status))),
        }
    }

    /// The way of the others. Notes how the call ended, too.
    async fn run(mut self) -> Outcome {
        let outcome = loop {
            if let Err(outcome) = self.advance().await {
                break outcome;
            }
        };
        match &outcome {
            Err(status) => self.end.over(status::code(status.code() as i32)),
            Ok(response) if response.body().is_end_stream() => {
                self.end.over(status::code_of(response.headers()).unwrap_or(Code::Unknown));
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
    async fn advance(&mut self) -> Result<(), Outcome> {
        match mem::replace(&mut self.stage, Stage::Route) {
            Stage::Route => {
                let selected = self.wait(Outgoing::look_at_routes).await.map_err(Err)?;
                self.follow(selected);
                self.stage = Stage::Faults;
            }
            Stage::Faults => {
                if let Some(response) = self.inject_faults().await.map_err(Err)? {
                    return Err(Ok(response));
                }
                self.stage = Stage::PickResult;
            }
            Stage::PickResult => {
                self.meter = self.meter.take().or_else(|| self.end.attempt());
                match self.wait(Outgoing::look_for_endpoint).await {
                    Ok(picked) => self.take_turn(picked),
                    Err(status) => return Err(Err(self.unplaced(status))),
                }
            }
            Stage::Queue(picked) => self.queue(picked).await.map_err(Err)?,
            Stage::Sent(mut flight) => {
                let head = poll_fn(|cx| flight.poll_head(cx, &mut self.deadline)).await;
                match flight.land(head, &mut self.deadline, &mut self.end) {
                    Ok(response) => return Err(Ok(response)),
                    Err(fallen) => self.stage = Stage::Fallen(fallen),
                }
            }
            Stage::Fallen(fallen) => {
                let body = self.again(fallen.body_back().await).await?;
                self.repeat(body);
            }
            Stage::Failed(status) => return Err(Err(status)),
        }
        Ok(())
    }

    /// Takes the call's route. It holds for all attempts (A31).
    fn follow(&mut self, selected: Option<SelectedRoute>) {
        let Some(selected) = selected else { return };
        if let Some(limit) = selected.timeout(None) {
            self.says_timeout &= !self.deadline.tighten(Instant::now() + limit);
        }
        if let Some(policy) = selected.retry() {
            self.end.retry_by(RetryPolicy::from(&**policy));
        }
        self.selected = Some(selected);
    }

    /// Notes that there is no endpoint for the attempt.
    fn unplaced(&mut self, status: tonic::Status) -> tonic::Status {
        if let Some(meter) = self.meter.take() {
            meter.unplaced(self.backend_service.take());
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
            self.says_timeout &= injected.delay.is_none();
            if let Some(delay) = injected.delay
                && self.deadline.race(sleep(delay)).await.is_none()
            {
                return Err(late("delayed by fault injection"));
            }
            match &injected.abort {
                Some(status) if status.code() == Code::Ok => return Ok(Some(empty_answer())),
                Some(status) => return Err(status::to_tonic(status)),
                None => {}
            }
        }
        Ok(None)
    }

    /// Sends the request, unless it has to wait for its turn.
    fn take_turn(&mut self, mut picked: Picked) {
        if picked.turn.is_now() { self.send(picked) } else { self.stage = Stage::Queue(picked) }
    }

    /// Waits while the peer takes no more calls at once.
    async fn queue(&mut self, mut picked: Picked) -> Result<(), tonic::Status> {
        // It has less time left by then than its headers say.
        self.says_timeout = false;
        match self.deadline.race(picked.turn.comes()).await {
            Some(true) => {
                self.send(picked);
                Ok(())
            }
            Some(false) => {
                picked.trackers.finish(&CallOutcome::Unsent);
                self.outdated = Some(picked.serial);
                self.stage = Stage::PickResult;
                Ok(())
            }
            None => {
                let Picked { turn, trackers, .. } = picked;
                let why = format!("endpoint {} takes no more calls at once", turn.link().address());
                Attempt::new(trackers, turn, self.meter.take()).finish(Code::DeadlineExceeded, None);
                Err(late(&why))
            }
        }
    }

    /// Sends the request where the pick says. A request that never left because its connection is gone needs another pick.
    fn send(&mut self, Picked { turn, trackers, serial }: Picked) {
        let body = self.body.take().unwrap_or_else(|| Replay::new(Body::empty()));
        match self.send_head(&turn, &trackers, body.is_empty()) {
            Ok(sent) => {
                if let Some(id) = trackers.to_wake() {
                    let _ = self.channel.commands.send(Command::Connect(id));
                }
                let meter = self.meter.take();
                if let Some(meter) = &meter {
                    meter.placed(|| trackers.backend_labels());
                }
                let attempt = Attempt::new(trackers, turn, meter);
                self.stage =
                    Stage::Sent(Flight::new(sent, body, attempt).asking_peer(self.asks_peer.is_some()));
            }
            Err(error) => {
                trackers.finish(&CallOutcome::Unsent);
                // The request is to blame; or else the connection is gone.
                if matches!(error, Error::Unsendable(_) | Error::HeaderListTooLarge { .. }) {
                    let status = tonic::Status::internal(format!("the request cannot be sent: {error}"));
                    self.stage = Stage::Failed(self.unplaced(status));
                    return;
                }
                self.outdated = Some(serial);
                self.repeat(body);
            }
        }
    }

    /// Makes the call what it was before an attempt.
    fn repeat(&mut self, body: Replay) {
        self.stage = Stage::PickResult;
        self.body = Some(body);
        self.says_timeout = false;
    }

    /// Whether the call is tried again after a failure, and when (A6): at once if the peer did nothing with it, for the first
    /// time; else as the retry policy says. `Err` is what the caller gets.
    async fn again(&mut self, failure: Failure) -> Result<Replay, Outcome> {
        let Failure { code, outcome, is_unprocessed, replay } = failure;
        let is_first_refusal = is_unprocessed && !mem::replace(&mut self.refused, is_unprocessed);
        let Some(body) = replay else {
            self.end.committed(code);
            return Err(outcome);
        };
        if is_first_refusal {
            self.end.refused();
            return Ok(body);
        }
        let pushback = outcome.as_ref().ok().and_then(|response| retry::Pushback::read(response.headers()));
        let Some(delay) = self.end.failed(code, pushback, self.channel.entropy.unit()) else {
            return Err(outcome);
        };
        match self.deadline.race(sleep(delay)).await {
            Some(()) => Ok(body),
            None => Err(Err(late("waiting to try again"))),
        }
    }

    /// Looks until there is something to go by.
    async fn wait<T>(&mut self, look: impl Fn(&Outgoing, &Snapshot) -> Look<T>) -> Result<T, tonic::Status> {
        let mut changes = None;
        loop {
            let looked = look(self, &self.channel.published.load());
            let why = match looked {
                Look::Found(found) => return Ok(found),
                Look::Fail(status) => return Err(status::to_tonic(&status)),
                Look::Wait(why) => why,
            };
            let Some(changes) = &mut changes else {
                // What is published between this look and the next is seen by the next.
                changes = Some(self.channel.published.subscribe());
                continue;
            };
            // Time passes: less is left than the application said.
            self.says_timeout = false;
            match self.deadline.race(changes.changed()).await {
                Some(Ok(())) => {}
                Some(Err(_)) => return Err(closed(&self.channel.target)),
                None => return Err(late(why)),
            }
        }
    }

    fn look_at_routes(&self, snapshot: &Snapshot) -> Look<Option<SelectedRoute>> {
        match &snapshot.way {
            Way::Open { selector: None, .. } => Look::Found(None),
            Way::Open { selector: Some(selector), .. } => {
                let headers = self.headers();
                match selector.select(&self.describe(&headers)) {
                    Ok(selected) => Look::Found(Some(selected)),
                    Err(status) => Look::Fail(status.for_call()),
                }
            }
            way => self.look_elsewhere(way),
        }
    }

    fn look_for_endpoint(&self, snapshot: &Snapshot) -> Look<Picked> {
        let Way::Open { picker, .. } = &snapshot.way else { return self.look_elsewhere(&snapshot.way) };
        if self.outdated == Some(snapshot.serial) {
            return Look::Wait("the connection that was chosen is gone");
        }
        let headers = self.headers();
        let call = self.describe(&headers);
        // A picker may be the application's own. If it panics, this call fails and the channel lives.
        let Ok(pick) = catch_unwind(AssertUnwindSafe(|| picker.pick(&call))) else {
            return Look::Fail(Status::new(
                Code::Internal,
                "the load balancing policy panicked while it picked",
            ));
        };
        match pick {
            PickResult::Complete(id, trackers) => {
                let Some(connection) = snapshot.connections.get(id) else {
                    trackers.finish(&CallOutcome::Unsent);
                    return Look::Wait("the connection that was chosen is gone");
                };
                Look::Found(Picked { turn: connection.turn(), trackers, serial: snapshot.serial })
            }
            PickResult::Queue { connect } => {
                if let Some(id) = connect {
                    let _ = self.channel.commands.send(Command::Connect(id));
                }
                Look::Wait("no endpoint is connected")
            }
            PickResult::Fail(status) | PickResult::Drop(status) => {
                self.backend_service.set(call.backend_service());
                Look::Fail(status)
            }
        }
    }

    /// What a call does that finds no config.
    fn look_elsewhere<T>(&self, way: &Way) -> Look<T> {
        match way {
            Way::Idle => {
                let _ = self.channel.commands.send(Command::Wake);
                Look::Wait("the channel has no config yet")
            }
            Way::Failed(status) if !self.wait_for_ready => Look::Fail(status.clone()),
            Way::Failed(_) => Look::Wait("the channel has no config"),
            Way::Closed => Look::Fail(Status::unavailable(closed_text(&self.channel.target))),
            Way::Waiting | Way::Open { .. } => Look::Wait("the channel has no config yet"),
        }
    }

    fn headers(&self) -> HeadersOf<'_> {
        HeadersOf(&self.headers)
    }

    /// The call as routes and pickers see it.
    fn describe<'a>(&'a self, headers: &'a HeadersOf<'a>) -> PickArgs<'a> {
        let mut call = PickArgs::new(self.path.path(), self.channel.entropy.next()).with_headers(headers);
        if let Some(selected) = &self.selected {
            call = call.with_cluster(selected.cluster().child()).with_hash(selected.hash());
        }
        if self.wait_for_ready { call.wait_for_ready() } else { call }
    }

    /// Sends the head of an attempt's request.
    fn send_head(
        &mut self,
        turn: &Turn,
        trackers: &CallTrackers,
        ends: bool,
    ) -> Result<(RequestStream, ResponseStream), Error> {
        if !self.says_timeout
            && let Some(left) = self.deadline.left()
        {
            self.headers.insert(&timeout::NAME, timeout::format(left));
        }
        if let Some(attempts) = self.end.previous_attempts() {
            self.headers.insert(&retry::PREVIOUS_ATTEMPTS, attempts);
        }
        let rewrite = self.selected.as_ref().is_some_and(SelectedRoute::auto_host_rewrite);
        let place = if rewrite { trackers.backend_labels() } else { None };
        let hostname = place.and_then(|place| place.hostname.as_deref());
        let hostname = hostname.filter(|name| Authority::try_from(*name).is_ok());
        let head = &self.channel.head;
        let mut of_pick = trackers.headers().peekable();
        let more = head.more(&self.headers);
        let more = if of_pick.peek().is_none() { Cow::Borrowed(more) } else { with_pick(more, of_pick) };
        turn.connection().sender().send(&Request {
            method: &self.method,
            is_https: turn.link().is_https(),
            authority: hostname.unwrap_or(head.authority.as_str()),
            path: self.path.as_str(),
            more: &more,
            headers: &self.headers,
            ends,
        })
    }
}

/// What a pick has to say, behind what every request says.
fn with_pick<'a>(
    more: &[(HeaderName, HeaderValue)],
    of_pick: impl Iterator<Item = (&'a str, &'a str)>,
) -> Cow<'static, [(HeaderName, HeaderValue)]> {
    // What a pick's headers may be is narrower than what HTTP takes.
    let of_pick = of_pick.filter_map(|(name, value)| Some((name.try_into().ok()?, value.try_into().ok()?)));
    Cow::Owned(more.iter().cloned().chain(of_pick).collect())
}

impl Head {
    pub(crate) fn new(authority: Authority, user_agent: HeaderValue) -> Head {
        Head { authority, user_agent: [(header::USER_AGENT, user_agent)] }
    }

    /// What a request says beside these headers.
    pub(crate) fn more(&self, headers: &HeaderMap) -> &[(HeaderName, HeaderValue)] {
        if status::find(headers, &header::USER_AGENT).is_some() { &[] } else { &self.user_agent }
    }
}

/// Request headers, as routes and policies look at them.
struct HeadersOf<'a>(&'a HeaderMap);

impl RequestMetadata for HeadersOf<'_> {
    fn value(&self, name: &str) -> Option<Cow<'_, str>> {
        let mut values = self.0.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
        let first = values.next()?;
        Some(values.fold(first, |all, value| Cow::Owned(format!("{all},{value}"))))
    }
}

/// The answer of a call that fault injection ends well.
fn empty_answer() -> http::Response<ResponseBody> {
    let mut response = http::Response::new(ResponseBody::empty());
    response.headers_mut().insert("grpc-status", HeaderValue::from_static("0"));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

fn closed(target: &str) -> tonic::Status {
    tonic::Status::unavailable(closed_text(target))
}

fn closed_text(target: &str) -> String {
    format!("the channel to {target:?} is closed")
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("target", &self.inner.target).finish_non_exhaustive()
    }
}
