//! Log events of a channel at INFO and WARN: the first config, failures of name resolution and their end, and changes of
//! connectivity. Each change is logged once, and the end of a failure has its duration.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::{ConnectivityState, Instant, Status};

/// State that decides which changes of a channel are logged.
pub(super) struct ChannelLog {
    /// Target of the channel.
    channel: Arc<str>,
    has_config: bool,
    /// Start and latest error of a failure of name resolution.
    resolution_failure: Option<(Instant, Status)>,
    /// Time at which the channel entered TRANSIENT_FAILURE.
    failing_since: Option<Instant>,
}

impl ChannelLog {
    pub(super) fn new(channel: Arc<str>) -> ChannelLog {
        ChannelLog { channel, has_config: false, resolution_failure: None, failing_since: None }
    }

    /// Logs the first config, and the end of a failure.
    pub(super) fn handle_resolved(&mut self, now: Instant) {
        let channel = &*self.channel;
        if let Some((since, _)) = self.resolution_failure.take() {
            tracing::info!(channel, after = ?rounded(now.since(since)), "name resolution recovered");
        }
        if !std::mem::replace(&mut self.has_config, true) {
            tracing::info!(channel, "first config in use");
        }
    }

    /// Logs a failure of name resolution, unless it was the latest one already.
    pub(super) fn handle_resolution_failure(&mut self, status: &Status, now: Instant) {
        let since = match &self.resolution_failure {
            Some((_, last)) if last == status => return,
            Some((since, _)) => *since,
            None => now,
        };
        tracing::warn!(channel = &*self.channel, error = status.message(), "name resolution failed");
        self.resolution_failure = Some((since, status.clone()));
    }

    /// Logs a change of connectivity.
    pub(super) fn handle_connectivity(
        &mut self,
        before: ConnectivityState,
        state: ConnectivityState,
        now: Instant,
    ) {
        let channel = &*self.channel;
        let failing_since = match state {
            ConnectivityState::TransientFailure => {
                self.failing_since.get_or_insert(now);
                None
            }
            ConnectivityState::Ready => self.failing_since.take(),
            ConnectivityState::Idle | ConnectivityState::Connecting => None,
        };
        if let Some(since) = failing_since {
            let after = rounded(now.since(since));
            tracing::info!(channel, ?state, ?before, ?after, "channel recovered");
        } else {
            tracing::info!(channel, ?state, ?before, "channel connectivity changed");
        }
    }
}

/// Returns a duration without the digits below milliseconds.
fn rounded(duration: Duration) -> Duration {
    Duration::from_millis(duration.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use testkit::Log;

    use super::*;

    /// A channel that starts, loses its resolver and its endpoints, and recovers: one line for each change.
    #[test]
    fn each_change_is_logged_once() {
        let log = Log::default();
        let at = |seconds| Instant::ORIGIN + Duration::from_secs(seconds);
        let refused = Status::unavailable("refused");
        tracing::subscriber::with_default(log.clone(), || {
            let mut channel = ChannelLog::new("xds:///orders".into());
            channel.handle_resolution_failure(&refused, at(1));
            channel.handle_resolution_failure(&refused, at(2));
            channel.handle_resolution_failure(&Status::unavailable("reset"), at(3));
            channel.handle_resolved(at(4));
            channel.handle_resolved(at(5));
            let (idle, connecting) = (ConnectivityState::Idle, ConnectivityState::Connecting);
            let (failure, ready) = (ConnectivityState::TransientFailure, ConnectivityState::Ready);
            for (seconds, before, state) in [
                (6, idle, connecting),
                (7, connecting, ready),
                (8, ready, failure),
                (9, failure, connecting),
                (10, connecting, failure),
                (12, failure, ready),
                (13, ready, idle),
            ] {
                channel.handle_connectivity(before, state, at(seconds));
            }
        });
        let changed = |state: &str, before: &str| {
            format!(
                r#"INFO channel connectivity changed channel="xds:///orders" state={state} before={before}"#
            )
        };
        let channel = r#"channel="xds:///orders""#;
        assert_eq!(
            log.lines(),
            [
                format!(r#"WARN name resolution failed {channel} error="refused""#),
                format!(r#"WARN name resolution failed {channel} error="reset""#),
                format!("INFO name resolution recovered {channel} after=3s"),
                format!("INFO first config in use {channel}"),
                changed("Connecting", "Idle"),
                changed("Ready", "Connecting"),
                changed("TransientFailure", "Ready"),
                changed("Connecting", "TransientFailure"),
                changed("TransientFailure", "Connecting"),
                format!("INFO channel recovered {channel} state=Ready before=TransientFailure after=4s"),
                changed("Idle", "Ready"),
            ]
        );
    }
}
