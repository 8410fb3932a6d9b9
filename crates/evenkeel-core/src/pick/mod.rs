//! The request path's view of balancing: a call asks a picker, and what it was told is told the outcome.
//!
//! A [`Picker`] is an immutable snapshot that any number of threads may ask at once. A [`PickResult`] that names a
//! subchannel may carry [`CallTrackers`]; each is told exactly once how the call ended, also when the call is dropped.

pub mod hash;

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use crate::rng;
use crate::{Code, Instant, LoadReport, Status, SubchannelId};

/// Chooses an endpoint for a call, without waiting and without side effects other than counting.
pub trait Picker: Send + Sync {
    /// Where this call should go.
    fn pick(&self, call: &PickArgs<'_>) -> PickResult;
}

/// What a picker knows about a call.
pub struct PickArgs<'a> {
    path: &'a str,
    headers: &'a dyn RequestMetadata,
    cluster: Option<&'a str>,
    hash: Option<u64>,
    wait_for_ready: bool,
    entropy: Cell<u64>,
    backend_service: Cell<Option<Arc<str>>>,
}

impl<'a> PickArgs<'a> {
    /// A call to the method at `path` (`/package.Service/Method`). `entropy` feeds every random choice made for it.
    pub fn new(path: &'a str, entropy: u64) -> PickArgs<'a> {
        let entropy = Cell::new(entropy);
        PickArgs {
            path,
            headers: &(),
            cluster: None,
            hash: None,
            wait_for_ready: false,
            entropy,
            backend_service: Cell::default(),
        }
    }

    /// Gives the request headers.
    #[must_use]
    pub fn with_headers(self, headers: &'a dyn RequestMetadata) -> PickArgs<'a> {
        PickArgs { headers, ..self }
    }

    /// Gives the name of the cluster child that routing chose.
    #[must_use]
    pub fn with_cluster(self, cluster: &'a str) -> PickArgs<'a> {
        PickArgs { cluster: Some(cluster), ..self }
    }

    /// Gives the request hash that the route's hash policies computed.
    #[must_use]
    pub fn with_hash(self, hash: u64) -> PickArgs<'a> {
        PickArgs { hash: Some(hash), ..self }
    }

    /// Marks the call as wait-for-ready: it queues where others fail.
    #[must_use]
    pub fn wait_for_ready(self) -> PickArgs<'a> {
        PickArgs { wait_for_ready: true, ..self }
    }

    /// The path of the method.
    pub fn path(&self) -> &'a str {
        self.path
    }

    /// The value of a request header; several values joined by commas.
    pub fn header(&self, name: &str) -> Option<Cow<'a, str>> {
        self.headers.value(name)
    }

    /// The cluster child that routing chose, if routing took place.
    pub fn cluster(&self) -> Option<&'a str> {
        self.cluster
    }

    /// The request hash, if the route has hash policies.
    pub fn hash(&self) -> Option<u64> {
        self.hash
    }

    /// Whether the call waits where others fail.
    pub fn is_wait_for_ready(&self) -> bool {
        self.wait_for_ready
    }

    /// The backend service that the last pick which gave no subchannel came to, for the label
    /// `grpc.lb.backend_service` of an attempt that failed or waits (A89). A pick that gave one says it in
    /// [`CallTrackers::backend_labels`].
    pub fn backend_service(&self) -> Option<Arc<str>> {
        let name = self.backend_service.take();
        self.backend_service.set(name.clone());
        name
    }

    /// Says which backend service a pick that gives no subchannel came to.
    pub fn note_backend_service(&self, name: &Arc<str>) {
        self.backend_service.set(Some(name.clone()));
    }

    /// 64 random bits; each time others.
    pub fn random(&self) -> u64 {
        let mut state = self.entropy.get();
        let bits = rng::split_mix(&mut state);
        self.entropy.set(state);
        bits
    }

    /// A random number in `0..bound`; 0 when `bound` is 0.
    pub fn random_below(&self, bound: u64) -> u64 {
        rng::scale(self.random(), bound)
    }
}

impl fmt::Debug for PickArgs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PickArgs")
            .field("path", &self.path)
            .field("cluster", &self.cluster)
            .finish_non_exhaustive()
    }
}

/// Request headers, as a picker may look at them.
pub trait RequestMetadata {
    /// The value of the header; several values joined by commas, `None` if absent. `name` is lower case.
    fn value(&self, name: &str) -> Option<Cow<'_, str>>;
}

impl RequestMetadata for () {
    fn value(&self, _: &str) -> Option<Cow<'_, str>> {
        None
    }
}

impl<const N: usize> RequestMetadata for [(&str, &str); N] {
    fn value(&self, name: &str) -> Option<Cow<'_, str>> {
        let mut values = self.iter().filter(|(key, _)| *key == name).map(|(_, value)| *value);
        let first = values.next()?;
        let joined = values.fold(Cow::Borrowed(first), |all, value| Cow::Owned(format!("{all},{value}")));
        Some(joined)
    }
}

/// What a picker answers.
#[derive(Debug)]
pub enum PickResult {
    /// Send it on this subchannel's connection; the trackers are told how it ended. They may also ask for an idle
    /// subchannel to be connected beside it ([`CallTrackers::to_wake`]).
    Complete(SubchannelId, CallTrackers),
    /// Wait for the next picker. If a subchannel is named, it should be asked to connect.
    Queue {
        /// An idle subchannel to wake.
        connect: Option<SubchannelId>,
    },
    /// Fail the call, unless it is wait-for-ready: then it waits for the next picker.
    Fail(Status),
    /// Fail the call in any case.
    Drop(Status),
}

impl PickResult {
    /// A pick with nobody to tell.
    pub fn complete(id: SubchannelId) -> PickResult {
        PickResult::Complete(id, CallTrackers::none())
    }

    /// Wait for the next picker.
    pub const QUEUE: PickResult = PickResult::Queue { connect: None };
}

/// Somebody who wants to know how a call ended.
pub trait CallTracker: Send + Sync {
    /// Told exactly once per call.
    fn finished(&self, end: &CallOutcome<'_>);

    /// Whether it reads load reports; if nobody does, they are not parsed.
    fn needs_load_report(&self) -> bool {
        false
    }

    /// The place that the call goes to, if this one knows it.
    fn backend_labels(&self) -> Option<&BackendLabels> {
        None
    }
}

/// The place that a call goes to, in the words of metrics and headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendLabels {
    /// The name of the cluster: the label `grpc.lb.backend_service` (A89).
    pub backend_service: Arc<str>,
    /// The locality of the chosen endpoint: the label `grpc.lb.locality` (A78). Empty if it is not known, as the label is.
    pub locality: Arc<str>,
    /// The host name of the chosen endpoint, not empty. It replaces `:authority` if the call's route has
    /// `auto_host_rewrite` (A81), and only then: here it is known whether or not the control plane may choose authorities,
    /// and that setting is kept only from one that may.
    pub hostname: Option<Arc<str>>,
}

/// How a call ended.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum CallOutcome<'a> {
    /// With a status, from the peer or from the client's own side (a deadline, a broken connection).
    Finished {
        /// The status code.
        code: Code,
        /// When.
        at: Instant,
        /// The load report that came with it.
        load: Option<&'a LoadReport>,
    },
    /// The caller went away.
    Cancelled,
    /// Nothing of it was sent: the pick was not used.
    Unsent,
}

/// How many trackers fit without an allocation: one each for the cluster, outlier detection and the endpoint's load.
const INLINE: usize = 3;

/// The trackers of one call. Dropping them means that the caller went away ([`CallOutcome::Cancelled`]).
#[derive(Default)]
pub struct CallTrackers {
    inline: [Option<Arc<dyn CallTracker>>; INLINE],
    more: Vec<Arc<dyn CallTracker>>,
    wake: Option<SubchannelId>,
    headers: Option<PickHeaders>,
}

impl CallTrackers {
    /// Nobody.
    pub fn none() -> CallTrackers {
        CallTrackers::default()
    }

    /// One tracker.
    pub fn one(tracker: Arc<dyn CallTracker>) -> CallTrackers {
        let mut trackers = CallTrackers::none();
        trackers.inline[0] = Some(tracker);
        trackers
    }

    /// Adds a tracker; it is told after those that are there.
    pub fn push(&mut self, tracker: Arc<dyn CallTracker>) {
        match self.inline.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => *slot = Some(tracker),
            None => self.more.push(tracker),
        }
    }

    /// Has the driver hand a subchannel to [`LbEvent::Connect`](crate::LbEvent::Connect) beside this call: an idle one is connected,
    /// for calls to come (A76); the policies that hold a ready one look again.
    pub fn wake(&mut self, id: SubchannelId) {
        self.wake = Some(id);
    }

    /// The subchannel for [`LbEvent::Connect`](crate::LbEvent::Connect), although this call may go elsewhere.
    pub fn to_wake(&self) -> Option<SubchannelId> {
        self.wake
    }

    /// Adds headers to the request, after those that are there. Each attempt of a call has those of its own pick.
    pub fn add_headers(&mut self, headers: &PickHeaders) {
        self.headers = Some(match self.headers.take() {
            None => headers.clone(),
            Some(first) => PickHeaders(first.0.iter().chain(&*headers.0).cloned().collect()),
        });
    }

    /// The headers that the policies add to the request, as names and values.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().flat_map(PickHeaders::iter)
    }

    /// Whether anybody reads load reports.
    pub fn needs_load_report(&self) -> bool {
        self.inline.iter().flatten().chain(&self.more).any(|tracker| tracker.needs_load_report())
    }

    /// The place that the call goes to, if anybody knows it.
    pub fn backend_labels(&self) -> Option<&BackendLabels> {
        self.inline.iter().flatten().chain(&self.more).find_map(|tracker| tracker.backend_labels())
    }

    /// Whether there is nobody to tell.
    pub fn is_empty(&self) -> bool {
        self.inline.iter().all(Option::is_none)
    }

    /// Tells everybody how the call ended.
    pub fn finish(mut self, end: &CallOutcome<'_>) {
        self.notify_all(end);
    }

    /// One may be the application's own. If it panics, the others are told all the same, and the panic goes on after.
    fn notify_all(&mut self, end: &CallOutcome<'_>) {
        let mut panicked = None;
        let mut notify = |tracker: Arc<dyn CallTracker>| {
            let result = catch_unwind(AssertUnwindSafe(|| tracker.finished(end)));
            panicked = panicked.take().or(result.err());
        };
        self.inline.iter_mut().filter_map(Option::take).for_each(&mut notify);
        self.more.drain(..).for_each(&mut notify);
        if let Some(panic) = panicked {
            resume_unwind(panic);
        }
    }
}

impl Drop for CallTrackers {
    fn drop(&mut self) {
        if !self.is_empty() {
            self.notify_all(&CallOutcome::Cancelled);
        }
    }
}

impl fmt::Debug for CallTrackers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} trackers", self.inline.iter().flatten().count() + self.more.len())
    }
}

/// Request headers that a policy adds to the calls which it places; made once, shared by all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PickHeaders(Arc<[(Box<str>, Box<str>)]>);

impl PickHeaders {
    /// Headers of these names and values. A name has lower-case letters, digits, `_`, `-` and `.`, and is not one of
    /// gRPC's own (`grpc-...`); a value is printable ASCII, in base64 if the name ends with `-bin`. The error says what is
    /// wrong with which.
    pub fn new<'a>(headers: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<PickHeaders, String> {
        let checked = headers.into_iter().map(|(name, value)| {
            let in_name = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.');
            if name.is_empty() || name.starts_with("grpc-") || !name.bytes().all(in_name) {
                return Err(format!(
                    "{name:?} cannot be a header of a pick: expected lower-case letters, digits, '_', '-' and '.', and \
                     no name that starts with \"grpc-\""
                ));
            }
            if !value.bytes().all(|b| matches!(b, b' '..=b'~')) {
                return Err(format!("header {name:?} of a pick: expected printable ASCII, found {value:?}"));
            }
            Ok((name.into(), value.into()))
        });
        Ok(PickHeaders(checked.collect::<Result<_, _>>()?))
    }

    /// Names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }
}

/// The picker at the root of the tree, as the request path uses it: it applies the rules that hold for every policy.
#[derive(Clone)]
pub struct RootPicker(Arc<dyn Picker>);

impl RootPicker {
    pub(crate) fn new(picker: Arc<dyn Picker>) -> RootPicker {
        RootPicker(picker)
    }

    /// Where this call should go. Reserved status codes become `INTERNAL` (A54); a wait-for-ready call queues
    /// where others fail.
    pub fn pick(&self, call: &PickArgs<'_>) -> PickResult {
        match self.0.pick(call) {
            PickResult::Fail(_) if call.is_wait_for_ready() => PickResult::QUEUE,
            PickResult::Fail(status) => PickResult::Fail(status.for_call()),
            PickResult::Drop(status) => PickResult::Drop(status.for_call()),
            pick => pick,
        }
    }
}

impl fmt::Debug for RootPicker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RootPicker")
    }
}
