//! What is said to operators and callers when something is wrong.
//!
//! Every text names the resource, the server and the node, so that one line tells where to look (A57, A88). Text that
//! came over the wire is escaped and cut.

use std::fmt::Write as _;
use std::time::Duration;

use evenkeel_core::{Code, Status};

use crate::bootstrap::ServerConfig;
use crate::resource::ResourceType;
use crate::text::{quoted_long, truncated};

/// A status as another side gave it.
pub(super) fn cause(status: &Status) -> String {
    format!("{:?}: {}", status.code(), quoted_long(status.message()))
}

/// A resource of a server.
pub(super) struct ResourceContext<'a> {
    pub(super) kind: ResourceType,
    pub(super) name: &'a str,
    pub(super) server: &'a ServerConfig,
    pub(super) node: &'a str,
    /// The most that is said about one resource.
    pub(super) bytes: usize,
}

impl ResourceContext<'_> {
    pub(super) fn invalid(&self, why: &str) -> Status {
        let why = truncated(why, self.bytes);
        let text = self.text(&format!("what xDS server {:?} sent cannot be used: {why}", self.server.uri));
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

    /// The server did not send it in time, which most often means that there is none.
    pub(super) fn not_sent(&self, within: Duration) -> Status {
        let uri = &self.server.uri;
        let text = format!("does not exist: xDS server {uri:?} did not send it within {within:?}");
        Status::new(Code::NotFound, self.text(&text))
    }

    /// The server did not answer in time, although it would say if there were none.
    pub(super) fn no_response(&self, within: Duration) -> Status {
        let text = format!("no response from xDS server {:?} within {within:?}", self.server.uri);
        Status::unavailable(self.text(&text))
    }

    /// The server said why it does not send it. Its code is told but not taken over (A88).
    pub(super) fn reported(&self, code: i32, message: &str) -> Status {
        let code = code_name(code);
        let text = format!("xDS server {:?} reports {code}: {}", self.server.uri, quoted_long(message));
        Status::unavailable(self.text(&text))
    }

    pub(super) fn deletion_ignored(&self) -> String {
        self.text(&format!("xDS server {:?} removed it; it stays in use", self.server.uri))
    }

    pub(super) fn deletion_ended(&self) -> String {
        self.text(&format!("its removal by xDS server {:?} is over", self.server.uri))
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
    const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    let name = usize::try_from(code).ok().and_then(|code| NAMES.get(code));
    name.map_or_else(|| format!("the unknown code {code}"), |name| (*name).to_owned())
}

/// What a NACK says: every resource that cannot be used, by name or else by index, in at most `bytes` bytes. A long text
/// is cut so that each resource gets its share.
pub(super) fn nack(problems: &[(String, String)], bytes: usize) -> String {
    // Room for the note about those that are left out.
    let room = bytes.saturating_sub(32);
    let share = room.checked_div(problems.len()).unwrap_or(room).max(64);
    let mut text = String::new();
    for (i, (label, why)) in problems.iter().enumerate() {
        let between = if i == 0 { "" } else { "; " };
        let one = format!("{between}{label}: {why}");
        // What others left over of their shares may be used.
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
