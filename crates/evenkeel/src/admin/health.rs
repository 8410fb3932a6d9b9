//! Health of the process for probes and load balancers: `/healthz` and `/ready`.

use std::fmt::Write as _;

use evenkeel_core::ConnectivityState;

use super::state::{AdminState, ChannelInfo};
use crate::text::quoted;

/// Returns one line for each channel that cannot serve calls; an empty text if all can.
pub(super) fn unready_channels(state: &AdminState) -> String {
    let mut lines = String::new();
    for channel in &state.channels {
        let Some(problem) = unready_problem(channel) else { continue };
        // Cannot fail, here and below: the target is a `String`.
        let _ = write!(lines, "channel {}: {problem}", quoted(&channel.target));
        if let Some(reason) = &channel.waiting {
            let _ = write!(lines, ": {}", reason.replace(char::is_control, " "));
        }
        lines.push('\n');
    }
    lines
}

/// Returns the reason why calls of a channel fail or wait. An IDLE channel has none: the next call wakes it.
fn unready_problem(channel: &ChannelInfo) -> Option<String> {
    match channel.state {
        ConnectivityState::TransientFailure => Some("TRANSIENT_FAILURE".to_owned()),
        ConnectivityState::Connecting if channel.tree.is_none() => match channel.traffic.in_flight {
            // Calls with a deadline may all end between two samples.
            0 if channel.traffic.failures > 0.0 => Some("no config yet, calls fail".to_owned()),
            0 => None,
            1 => Some("no config yet, 1 call waits".to_owned()),
            calls => Some(format!("no config yet, {calls} calls wait")),
        },
        ConnectivityState::Connecting | ConnectivityState::Ready | ConnectivityState::Idle => None,
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_core::Description;
    use serde_json::json;

    use super::super::state::TrafficStats;
    use super::*;

    #[test]
    fn channels_without_calls_or_with_a_config_are_ready() {
        use ConnectivityState::{Connecting, Idle, Ready, TransientFailure};
        let lines = |state, has_config: bool, in_flight, failures, waiting: Option<&str>| {
            let traffic = TrafficStats { in_flight, failures, ..TrafficStats::default() };
            let tree = has_config.then(Description::new);
            let channel = json!({
                "id": 1, "target": "xds:///orders\n", "state": state, "traffic": traffic, "endpoints": [],
                "tree": tree, "waiting": waiting,
            });
            let state = json!({
                "title": "", "version": "", "pid": 1, "since": 0, "at": 0, "channels": [channel], "xds": [],
                "events": [], "hints": [],
            });
            unready_channels(&serde_json::from_value(state).expect("a state"))
        };
        for (state, has_config, in_flight, failures) in [
            (Idle, false, 0, 0.0),
            (Idle, false, 1, 1.0),
            (Ready, true, 9, 1.0),
            (Connecting, false, 0, 0.0),
            (Connecting, true, 3, 0.0),
        ] {
            assert_eq!(lines(state, has_config, in_flight, failures, None), "", "{state:?} {in_flight}");
        }
        let line = |text: &str| format!("channel \"xds:///orders\\n\": {text}\n");
        assert_eq!(lines(TransientFailure, true, 0, 0.0, None), line("TRANSIENT_FAILURE"));
        assert_eq!(lines(TransientFailure, false, 2, 0.0, None), line("TRANSIENT_FAILURE"));
        assert_eq!(lines(Connecting, false, 1, 0.0, None), line("no config yet, 1 call waits"));
        assert_eq!(lines(Connecting, false, 3, 0.5, None), line("no config yet, 3 calls wait"));
        let waiting = lines(Connecting, false, 0, 0.5, Some("waiting for\nlistener \"a\""));
        assert_eq!(waiting, line("no config yet, calls fail: waiting for listener \"a\""));
    }
}
