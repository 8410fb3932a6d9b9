//! Counts of failed calls by status code and cause, with the text of a recent one.
//!
//! Only failures reach this module. A flood of them increments atomics: at most ten texts per second are stored,
//! and no call waits for the lock of the text.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_core::Code;

use super::cause::{FailureCause, FailureInfo, FailureText};
use crate::sync::lock;

/// Number of status codes of gRPC.
const CODES: usize = 17;

/// Minimum time between two stored texts, in milliseconds.
const TEXT_INTERVAL_MS: u64 = 100;

/// Maximum length of a stored text in bytes.
const MAX_TEXT: usize = 256;

/// Counters of failures, which only increase.
#[derive(Debug)]
pub(super) struct FailureStats {
    counts: [[AtomicU64; FailureCause::COUNT]; CODES],
    /// Wall-clock time of the stored text, in milliseconds.
    stored_at: AtomicU64,
    last: Mutex<Option<LastFailure>>,
}

impl Default for FailureStats {
    fn default() -> FailureStats {
        FailureStats {
            counts: [const { [const { AtomicU64::new(0) }; FailureCause::COUNT] }; CODES],
            stored_at: AtomicU64::new(0),
            last: Mutex::new(None),
        }
    }
}

/// A recent failure with its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LastFailure {
    /// Time in milliseconds since the Unix epoch.
    pub(crate) at: u64,
    pub(crate) code: Code,
    pub(crate) cause: FailureCause,
    pub(crate) text: String,
}

/// Number of failures with one code and one cause.
pub(crate) type FailureCounts = Vec<((Code, FailureCause), u64)>;

impl FailureStats {
    /// Counts a failure at this wall-clock time.
    pub(super) fn record(&self, code: Code, failure: FailureInfo<'_>, now: u64) {
        self.counts[code as usize][failure.cause as usize].fetch_add(1, Ordering::Relaxed);
        let stored_at = self.stored_at.load(Ordering::Relaxed);
        // A clock that was set back must not silence texts for longer than the interval.
        if now.abs_diff(stored_at) < TEXT_INTERVAL_MS
            || self.stored_at.compare_exchange(stored_at, now, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return;
        }
        let text = match failure.text {
            FailureText::Message(message) => truncated(message),
            FailureText::Trailers(trailers) => match tonic::Status::from_header_map(trailers) {
                Some(status) => truncated(status.message()),
                None => "the response has no grpc-status".to_owned(),
            },
        };
        // Only a sample of the admin watcher can hold the lock.
        if let Ok(mut last) = self.last.try_lock() {
            *last = Some(LastFailure { at: now, code, cause: failure.cause, text });
        }
    }

    /// Returns the counts that are not zero.
    pub(super) fn counts(&self) -> FailureCounts {
        let codes = (0..).zip(&self.counts).flat_map(|(number, causes)| {
            let code = Code::from_number(number).unwrap_or(Code::Unknown);
            causes
                .iter()
                .zip(FailureCause::ALL)
                .map(move |(count, cause)| ((code, cause), count.load(Ordering::Relaxed)))
        });
        codes.filter(|(_, count)| *count > 0).collect()
    }

    pub(super) fn last(&self) -> Option<LastFailure> {
        lock(&self.last).clone()
    }
}

fn truncated(text: &str) -> String {
    if text.len() <= MAX_TEXT {
        return text.to_owned();
    }
    let end = (0..=MAX_TEXT - '…'.len_utf8()).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    format!("{}…", &text[..end])
}

/// Returns the wall-clock time in milliseconds since the Unix epoch.
pub(super) fn wall_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_at_the_index_of_their_number() {
        for (index, cause) in FailureCause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, index);
        }
    }

    #[test]
    fn failures_are_counted_by_code_and_cause() {
        let stats = FailureStats::default();
        let local = |cause| FailureInfo::local(cause, "why");
        stats.record(Code::Unavailable, local(FailureCause::NoRoute), 1000);
        stats.record(Code::Unavailable, local(FailureCause::NoRoute), 1000);
        stats.record(Code::Internal, local(FailureCause::Connection), 1000);
        let expected = [
            ((Code::Internal, FailureCause::Connection), 1),
            ((Code::Unavailable, FailureCause::NoRoute), 2),
        ];
        assert_eq!(stats.counts(), expected);
    }

    /// A flood of failures stores one text per interval, and a clock that is set back does not stop that.
    #[test]
    fn texts_are_stored_at_intervals() {
        let stats = FailureStats::default();
        let texts = [(1000, "a", "a"), (1050, "b", "a"), (1100, "c", "c"), (500, "d", "d")];
        for (now, text, expected) in texts {
            stats.record(Code::Unknown, FailureInfo::local(FailureCause::Local, text), now);
            assert_eq!(stats.last().expect("a text").text, expected, "at {now}");
        }
    }

    #[test]
    fn texts_of_servers_are_decoded_and_truncated() {
        let stats = FailureStats::default();
        let trailers = |message: &str| {
            let value = |text: &str| http::HeaderValue::from_str(text).expect("a header value");
            http::HeaderMap::from_iter([
                (http::HeaderName::from_static("grpc-status"), value("8")),
                (http::HeaderName::from_static("grpc-message"), value(message)),
            ])
        };
        let found = |at, headers: &http::HeaderMap| {
            stats.record(Code::ResourceExhausted, FailureInfo::of_server(headers), at);
            stats.last().expect("a text").text
        };
        assert_eq!(found(1000, &trailers("the%20quota of %C3%A4")), "the quota of ä");
        let long = found(2000, &trailers(&"%C3%A4".repeat(500)));
        assert!(long.len() <= MAX_TEXT && long.ends_with("ä…"), "{long}");
        assert_eq!(found(3000, &http::HeaderMap::new()), "the response has no grpc-status");
    }
}
