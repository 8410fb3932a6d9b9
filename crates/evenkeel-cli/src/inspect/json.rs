//! Responses of a process as JSON: CSDS in protobuf's JSON mapping, the state as the admin server formats it.

use evenkeel_proto::descriptors::{message_json, pool};
use serde_json::json;

use super::ask::{InspectData, InspectTarget};

/// Returns both responses as one JSON text.
pub(super) fn of(peer: &InspectTarget, answers: &InspectData) -> String {
    let csds = answers.csds.as_ref().map(|csds| message_json(csds, &pool()));
    let state = answers.state.as_ref().map(|state| serde_json::to_value(state).unwrap_or_default());
    let all = json!({ "peer": peer.to_string(), "csds": csds, "state": state });
    format!("{all:#}")
}
