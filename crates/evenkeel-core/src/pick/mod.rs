//! Pickers, as the request path uses them.
//!
//! A [`Picker`] is an immutable snapshot that any number of threads may use concurrently. A completed
//! [`PickResult`] may carry [`CallTrackers`]. Each tracker receives the outcome of the call exactly once,
//! also when the call is dropped.

pub mod hash;

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use crate::rng;
use crate::{Code, Instant, LoadReport, Status, SubchannelId};

/// Chooses a subchannel for a call. Picks never block and have no side effects other than counting.
pub trait Picker: Send + Sync {
    /// Picks a subchannel for the call.
    fn pick(&self, call: &PickArgs<'_>) -> PickResult;
}

/// Arguments of a pick: the properties of a call that pickers may use.
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
    /// Creates the arguments for a call of the method at `path` (`/package.Service/Method`). `entropy` seeds
    /// every random choice made for the call.
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

    /// Sets the request headers.
    #[must_use]
    pub fn with_headers(self, headers: &'a dyn RequestMetadata) -> PickArgs<'a> {
        PickArgs { headers, ..self }
    }

    /// Sets the cluster that the route chose.
    #[must_use]
    pub fn with_cluster(self, cluster: &'a str) -> PickArgs<'a> {
        PickArgs { cluster: Some(cluster), ..self }
    }

    /// Sets the request hash computed by the route's hash policies.
    #[must_use]
    pub fn with_hash(self, hash: u64) -> PickArgs<'a> {
        PickArgs { hash: Some(hash), ..self }
    }

    /// Marks the call as wait-for-ready: it is queued where others fail.
    #[must_use]
    pub fn wait_for_ready(self) -> PickArgs<'a> {
        PickArgs { wait_for_ready: true, ..self }
    }

    /// Returns the path of the method.
    pub fn path(&self) -> &'a str {
        self.path
    }

    /// Returns the value of a request header; several values are joined by commas.
    pub fn header(&self, name: &str) -> Option<Cow<'a, str>> {
        self.headers.value(name)
    }

    /// Returns the cluster that the route chose; `None` without routing.
    pub fn cluster(&self) -> Option<&'a str> {
        self.cluster
    }

    /// Returns the request hash, if the route has hash policies.
    pub fn hash(&self) -> Option<u64> {
        self.hash
    }

    /// Returns true if the call is wait-for-ready.
    pub fn is_wait_for_ready(&self) -> bool {
        self.wait_for_ready
    }

    /// Returns the backend service of the last pick without a subchannel. It is the label
    /// `grpc.lb.backend_service` of an attempt that failed or is queued (A89). A completed pick has it in
    /// [`CallTrackers::backend_labels`].
    pub fn backend_service(&self) -> Option<Arc<str>> {
        // A `Cell` lends no reference, so the value is taken out and put back.
        let name = self.backend_service.take();
        self.backend_service.set(name.clone());
        name
    }

    /// Records the backend service of a pick without a subchannel.
    pub fn note_backend_service(&self, name: &Arc<str>) {
        self.backend_service.set(Some(name.clone()));
    }

    /// Returns 64 random bits, different on each call.
    pub fn random(&self) -> u64 {
        let mut state = self.entropy.get();
        let bits = rng::split_mix(&mut state);
        self.entropy.set(state);
        bits
    }

    /// Returns a random number in `0..bound`; 0 if `bound` is 0.
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

/// Request headers in the form that pickers read.
pub trait RequestMetadata {
    /// Returns the value of the header; several values are joined by commas, `None` if absent. `name` is
    /// lower case.
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

/// Result of a pick.
#[derive(Debug)]
pub enum PickResult {
    /// Send the call on this subchannel. The trackers receive its outcome. They may also request a connection
    /// of another, idle subchannel ([`CallTrackers::to_wake`]).
    Complete(SubchannelId, CallTrackers),
    /// Queue the call until the next picker. If a subchannel is given, request its connection.
    Queue {
        /// Idle subchannel to connect.
        connect: Option<SubchannelId>,
    },
    /// Fail the call; a wait-for-ready call is queued until the next picker instead.
    Fail(Status),
    /// Fail the call, even if it is wait-for-ready.
    Drop(Status),
}

impl PickResult {
    /// Creates a completed pick without trackers.
    pub fn complete(id: SubchannelId) -> PickResult {
        PickResult::Complete(id, CallTrackers::none())
    }

    /// Queues the call until the next picker.
    pub const QUEUE: PickResult = PickResult::Queue { connect: None };
}

/// Receiver of a call's outcome.
pub trait CallTracker: Send + Sync {
    /// Receives the outcome of a call, exactly once per call.
    fn finished(&self, end: &CallOutcome<'_>);

    /// Returns true if the tracker uses load reports. They are parsed only if a tracker of the call does.
    fn needs_load_report(&self) -> bool {
        false
    }

    /// Returns the labels of the chosen backend, if the tracker has them.
    fn backend_labels(&self) -> Option<&BackendLabels> {
        None
    }
}

/// Labels of the backend that a call is sent to, for metrics and headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendLabels {
    /// Name of the cluster: the label `grpc.lb.backend_service` (A89).
    pub backend_service: Arc<str>,
    /// Locality of the endpoint: the label `grpc.lb.locality` (A78). Empty if unknown, as the label is.
    pub locality: Arc<str>,
    /// Host name of the endpoint; not empty. Replaces `:authority` if the call's route has
    /// `auto_host_rewrite` (A81). It is present whether or not the control plane is trusted;
    /// `auto_host_rewrite` is accepted only from a trusted one.
    pub hostname: Option<Arc<str>>,
}

/// Outcome of a call.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum CallOutcome<'a> {
    /// The call ended with a status, from the peer or local (a deadline, a disconnect).
    Finished {
        /// Status code of the call.
        code: Code,
        /// Time of the end.
        at: Instant,
        /// Load report from the trailers, if any.
        load: Option<&'a LoadReport>,
    },
    /// The caller dropped the call.
    Cancelled,
    /// The pick was not used, and nothing of the call was sent.
    Unsent,
}

/// Number of trackers stored inline: one each for the cluster, outlier detection and the endpoint's load.
const INLINE: usize = 3;

/// Trackers of one call. Dropping them reports [`CallOutcome::Cancelled`].
#[derive(Default)]
pub struct CallTrackers {
    inline: [Option<Arc<dyn CallTracker>>; INLINE],
    more: Vec<Arc<dyn CallTracker>>,
    wake: Option<SubchannelId>,
    headers: Option<PickHeaders>,
}

impl CallTrackers {
    /// Creates an empty set of trackers.
    pub fn none() -> CallTrackers {
        CallTrackers::default()
    }

    /// Creates a set with a single tracker.
    pub fn one(tracker: Arc<dyn CallTracker>) -> CallTrackers {
        let mut trackers = CallTrackers::none();
        trackers.inline[0] = Some(tracker);
        trackers
    }

    /// Adds a tracker; trackers are notified in the order of addition.
    pub fn push(&mut self, tracker: Arc<dyn CallTracker>) {
        match self.inline.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => *slot = Some(tracker),
            None => self.more.push(tracker),
        }
    }

    /// Makes the driver send [`LbEvent::Connect`](crate::LbEvent::Connect) for a subchannel, besides this
    /// call. An idle subchannel connects, for later calls (A76). The policies that hold a ready one run
    /// again.
    pub fn wake(&mut self, id: SubchannelId) {
        self.wake = Some(id);
    }

    /// Returns the subchannel for [`LbEvent::Connect`](crate::LbEvent::Connect), which may differ from the
    /// call's.
    pub fn to_wake(&self) -> Option<SubchannelId> {
        self.wake
    }

    /// Appends headers to the request. Each attempt of a call gets the headers of its own pick.
    pub fn add_headers(&mut self, headers: &PickHeaders) {
        self.headers = Some(match self.headers.take() {
            None => headers.clone(),
            Some(first) => PickHeaders(first.0.iter().chain(&*headers.0).cloned().collect()),
        });
    }

    /// Returns the headers that policies add to the request, as names and values.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().flat_map(PickHeaders::iter)
    }

    /// Returns true if any tracker uses load reports.
    pub fn needs_load_report(&self) -> bool {
        self.inline.iter().flatten().chain(&self.more).any(|tracker| tracker.needs_load_report())
    }

    /// Returns the labels of the chosen backend, if a tracker has them.
    pub fn backend_labels(&self) -> Option<&BackendLabels> {
        self.inline.iter().flatten().chain(&self.more).find_map(|tracker| tracker.backend_labels())
    }

    /// Returns true if there are no trackers.
    pub fn is_empty(&self) -> bool {
        // `more` has items only while `inline` is full.
        self.inline.iter().all(Option::is_none)
    }

    /// Reports the outcome of the call to all trackers.
    pub fn finish(mut self, end: &CallOutcome<'_>) {
        // Dropping `self` afterwards notifies no tracker again, since `notify_all` takes them.
        self.notify_all(end);
    }

    /// Notifies all trackers. An application's tracker may panic: the others are still notified, then the
    /// panic resumes.
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

/// Request headers that a policy adds to its calls; built once and shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PickHeaders(Arc<[(Box<str>, Box<str>)]>);

impl PickHeaders {
    /// Creates headers from names and values. A name consists of lower-case letters, digits, `_`, `-` and
    /// `.`, and does not start with `grpc-`. A value is printable ASCII, in base64 if the name ends with
    /// `-bin`. The error names the invalid header.
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

    /// Returns names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }
}

/// Picker at the root of the policy tree. Applies the rules that hold for every policy.
#[derive(Clone)]
pub struct RootPicker(Arc<dyn Picker>);

impl RootPicker {
    pub(crate) fn new(picker: Arc<dyn Picker>) -> RootPicker {
        RootPicker(picker)
    }

    /// Picks a subchannel for the call. Reserved status codes become `INTERNAL` (A54). A wait-for-ready call
    /// is queued where others fail.
    pub fn pick(&self, call: &PickArgs<'_>) -> PickResult {
        match self.0.pick(call) {
            // `Drop` below is not queued: it fails wait-for-ready calls too (LBX-10).
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
