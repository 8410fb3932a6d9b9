//! Progress of a channel's name resolution, for the status of calls that wait for it.
//!
//! The side that resolves publishes the dependency that it waits for. A call whose deadline passes reads it. The request
//! path does neither.

use std::sync::{Arc, Mutex};

use evenkeel_core::Instant;

use crate::sync::lock;
use crate::text::{elapsed, quoted};

/// Progress of name resolution until the first result.
#[derive(Clone, Debug)]
pub(crate) enum ResolutionProgress {
    /// Addresses that are known without resolution.
    Fixed,
    /// Lookup of a DNS name that started at this time.
    Dns(Arc<str>, Instant),
    /// Config of a control plane.
    Xds(Arc<XdsProgress>),
}

/// Resource or DNS name that an xDS channel waits for. The client's thread writes it.
#[derive(Debug)]
pub(crate) struct XdsProgress {
    node: String,
    /// Time of the subscription.
    started: Instant,
    pending: Mutex<Option<PendingDependency>>,
}

#[derive(Debug)]
struct PendingDependency {
    /// Dependency and the state of its source, as in `listener "orders" from xDS server "a:443": no stream is open`.
    text: String,
    /// Start of the wait for this dependency.
    since: Instant,
    /// Dependency without the state of its source. `since` belongs to it.
    name: String,
}

impl ResolutionProgress {
    /// Returns what a call waits for at `now`, and for how long.
    pub(crate) fn describe(&self, now: Instant) -> String {
        match self {
            // The endpoints exist from the start, so the first pass ends this wait.
            ResolutionProgress::Fixed => "the channel has no picker yet".to_owned(),
            ResolutionProgress::Dns(host, since) => {
                format!("waiting for {} for the DNS lookup of {}", elapsed(*since, now), quoted(host))
            }
            ResolutionProgress::Xds(progress) => progress.describe(now),
        }
    }
}

impl XdsProgress {
    pub(crate) fn new(node: &str, now: Instant) -> XdsProgress {
        XdsProgress { node: node.to_owned(), started: now, pending: Mutex::default() }
    }

    /// Replaces the dependency that the channel waits for. `name` identifies it, and `text` adds the state of its source.
    pub(super) fn publish(&self, pending: Option<(String, String)>, now: Instant) {
        let mut shown = lock(&self.pending);
        *shown = pending.map(|(name, text)| {
            let since = match shown.take() {
                Some(last) if last.name == name => last.since,
                _ => now,
            };
            PendingDependency { text, since, name }
        });
    }

    fn describe(&self, now: Instant) -> String {
        let (text, since) = match &*lock(&self.pending) {
            Some(pending) => (pending.text.clone(), pending.since),
            // Between the subscription and the first pass of the client's thread, or before the channel's next pass.
            None => ("config from the xDS client".to_owned(), self.started),
        };
        format!("waiting for {} for {text} (xDS node id {})", elapsed(since, now), quoted(&self.node))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The wait counts from the first report of a dependency, also if the state of its source changes meanwhile.
    #[test]
    fn a_wait_counts_from_its_dependency() {
        let at = |millis| Instant::ORIGIN + Duration::from_millis(millis);
        let progress = Arc::new(XdsProgress::new("n", at(0)));
        let pending = |name: &str, state: &str| Some((name.to_owned(), format!("{name}: {state}")));
        let shown = ResolutionProgress::Xds(progress.clone());
        assert_eq!(
            shown.describe(at(500)),
            r#"waiting for 500ms for config from the xDS client (xDS node id "n")"#
        );
        progress.publish(pending("listener", "no stream is open"), at(1000));
        progress.publish(pending("listener", "the stream is open"), at(2000));
        assert_eq!(
            shown.describe(at(3500)),
            r#"waiting for 2.5s for listener: the stream is open (xDS node id "n")"#
        );
        progress.publish(pending("routes", "the stream is open"), at(3500));
        assert_eq!(
            shown.describe(at(3600)),
            r#"waiting for 100ms for routes: the stream is open (xDS node id "n")"#
        );
    }
}
