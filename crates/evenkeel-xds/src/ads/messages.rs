//! Status messages, NACK texts and log lines.
//!
//! Every text names the resource, the server and the node (A57, A88). Text that came over the wire is escaped and
//! truncated.

use std::fmt::Write as _;
use std::time::Duration;

use evenkeel_core::{Code, Status};

use crate::bootstrap::ServerConfig;
use crate::resource::ResourceType;
use crate::text::{quoted_long, truncated};

/// Formats the status of a peer.
pub(super) fn cause(status: &Status) -> String {
    format!("{:?}: {}", status.code(), quoted_long(status.message()))
}

/// Resource, server and node that a message refers to.
pub(super) struct ResourceContext<'a> {
    pub(super) kind: ResourceType,
    pub(super) name: &'a str,
    pub(super) server: &'a ServerConfig,
    pub(super) node: &'a str,
    /// Maximum length in bytes of the error text of one resource.
    pub(super) bytes: usize,
}

impl ResourceContext<'_> {
    pub(super) fn invalid(&self, why: &str) -> Status {
        let why = truncated(why, self.bytes);
        let text = self.text(&format!("invalid resource from xDS server {:?}: {why}", self.server.uri));
        Status::unavailable(text)
    }

    pub(super) fn removed(&self) -> Status {
        let text = format!("does not exist: xDS server {:?} removed it", self.server.uri);
        Status::new(Code::NotFound, self.text(&text))
    }

    /// Status of a deleted resource during its grace period.
    pub(super) fn removed_and_held(&self, grace: Duration) -> Status {
        let uri = &self.server.uri;
        let text = format!("xDS server {uri:?} removed it; it stays in use for at most {grace:?}");
        Status::new(Code::NotFound, self.text(&text))
    }

    /// Log line for a deleted resource that is still referenced when its grace period ends.
    pub(super) fn grace_expired(&self, grace: Duration) -> String {
        let uri = &self.server.uri;
        self.text(&format!(
            "xDS server {uri:?} removed it {grace:?} ago and it is still referenced; calls fail"
        ))
    }

    /// Status for a resource timer that expired. Without A88 this means that the resource does not exist.
    pub(super) fn not_sent(&self, within: Duration) -> Status {
        let uri = &self.server.uri;
        let text = format!("does not exist: xDS server {uri:?} did not send it within {within:?}");
        Status::new(Code::NotFound, self.text(&text))
    }

    /// Status for a resource timer that expired, from a server that would report a missing resource (A88).
    pub(super) fn no_response(&self, within: Duration) -> Status {
        let text = format!("no response from xDS server {:?} within {within:?}", self.server.uri);
        Status::unavailable(self.text(&text))
    }

    /// Status for an error that the server reported. The message contains its code; the status does not adopt it (A88).
    pub(super) fn reported(&self, code: i32, message: &str) -> Status {
        let code = code_name(code);
        let text = format!("xDS server {:?} reports {code}: {}", self.server.uri, quoted_long(message));
        Status::unavailable(self.text(&text))
    }

    pub(super) fn deletion_ignored(&self) -> String {
        self.text(&format!("xDS server {:?} removed it; it stays in use", self.server.uri))
    }

    pub(super) fn deletion_ended(&self) -> String {
        self.text(&format!("its ignored removal by xDS server {:?} ended", self.server.uri))
    }

    pub(super) fn warning(&self, warning: &str) -> String {
        self.text(truncated(warning, self.bytes))
    }

    fn text(&self, what: &str) -> String {
        format!("{} {}: {what}{}", self.kind, quoted_long(self.name), node_suffix(self.node))
    }
}

pub(super) fn node_suffix(node: &str) -> String {
    format!(" (xDS node id {})", quoted_long(node))
}

fn code_name(code: i32) -> String {
    Code::from_number(code).map_or_else(|| format!("the unknown code {code}"), |code| code.name().to_owned())
}

/// Returns the error text of a NACK: every rejected resource, by name or else by index, in at most `bytes` bytes. Long
/// texts are truncated so that each resource gets its share.
pub(super) fn nack(problems: &[(String, String)], bytes: usize) -> String {
    // Reserve space for the number of omitted resources.
    let room = bytes.saturating_sub(32);
    let share = room.checked_div(problems.len()).unwrap_or(room).max(64);
    let mut text = String::new();
    for (i, (label, why)) in problems.iter().enumerate() {
        let between = if i == 0 { "" } else { "; " };
        let one = format!("{between}{label}: {why}");
        // Space that earlier resources did not use is available.
        let fair = share.max(i.saturating_add(1).saturating_mul(share).saturating_sub(text.len()));
        let one = truncated(&one, fair);
        if text.len().saturating_add(one.len()) > room {
            let _ = write!(text, "; and {} more", problems.len().saturating_sub(i));
            break;
        }
        text.push_str(one);
    }
    truncated(&text, bytes).to_owned()
}
