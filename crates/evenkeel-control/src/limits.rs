//! Limits on the memory, streams and connections that clients can take up.
//!
//! Clients are not trusted: a control plane without authentication serves every process that reaches its port. Each limit
//! is far above the needs of gRPC and Envoy clients.

/// Limits of a control plane on its clients.
///
/// A request beyond a limit ends its stream with RESOURCE_EXHAUSTED and a message that names the limit. Other streams are
/// served as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientLimits {
    /// Maximum size of one request in bytes: 4 MiB, as in gRPC servers.
    pub request_bytes: usize,
    /// Maximum number of resource names that one stream can subscribe to, all types together: 100,000. The names in
    /// `initial_resource_versions` are counted apart, with the same maximum.
    pub names: usize,
    /// Maximum length of one resource name in bytes: 4 KiB.
    pub name_bytes: usize,
    /// Maximum length of all resource names of one stream in bytes: 8 MiB. The names in `initial_resource_versions` are
    /// counted apart, with the same maximum.
    pub total_name_bytes: usize,
    /// Maximum number of open streams, of discovery and of load reports together: 20,000.
    pub streams: usize,
    /// Maximum number of connections to a [`ControlPlane`](crate::ControlPlane): 20,000. Further ones are closed at once.
    pub connections: usize,
    /// Maximum number of concurrent streams of one connection to a [`ControlPlane`](crate::ControlPlane): 100. Clients
    /// learn it from SETTINGS and wait.
    pub streams_per_connection: u32,
}

impl Default for ClientLimits {
    fn default() -> ClientLimits {
        ClientLimits {
            request_bytes: 4 << 20,
            names: 100_000,
            name_bytes: 4 << 10,
            total_name_bytes: 8 << 20,
            streams: 20_000,
            connections: 20_000,
            streams_per_connection: 100,
        }
    }
}

/// Maximum number of resource types that one stream can subscribe to.
pub(crate) const MAX_TYPES: usize = 64;

/// Maximum length of a type URL in bytes.
pub(crate) const MAX_TYPE_URL_BYTES: usize = 256;

/// Maximum length of a node id, and of a user agent with its version, in bytes.
pub(crate) const MAX_NODE_TEXT_BYTES: usize = 1 << 10;

/// Maximum length of a NACK's error message in bytes. Longer ones are cut, not rejected: a client that lists many
/// problems is not an attacker.
pub(crate) const MAX_NACK_BYTES: usize = 4 << 10;

/// A request exceeded a limit. The text becomes the status message of the stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LimitExceeded(pub(crate) String);

impl LimitExceeded {
    /// Creates the message "`subject` has at most `maximum` `unit`".
    pub(crate) fn new(subject: &str, maximum: usize, unit: &str) -> LimitExceeded {
        LimitExceeded(format!("{subject} has at most {maximum} {unit}"))
    }
}

/// Returns an error if `length` is above `maximum` bytes.
pub(crate) fn check_length(subject: &str, length: usize, maximum: usize) -> Result<(), LimitExceeded> {
    if length > maximum { Err(LimitExceeded::new(subject, maximum, "bytes")) } else { Ok(()) }
}

/// Returns the longest prefix of a text with at most `maximum` bytes, and an ellipsis if the text was cut.
pub(crate) fn truncate(text: &str, maximum: usize) -> String {
    if text.len() <= maximum {
        return text.to_owned();
    }
    // A cut inside a character would panic in `split_at`.
    let mut end = maximum;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}...", text.split_at(end).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(truncate("short", 5), "short");
        assert_eq!(truncate("shorter", 5), "short...");
        assert_eq!(truncate("aéé", 4), "aé...");
        assert_eq!(truncate("é", 0), "...");
    }
}
