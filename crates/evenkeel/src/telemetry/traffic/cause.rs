//! Cause and text of a failed call, as the request path passes them to the statistics.

use http::HeaderMap;

/// Step at which a call or an attempt failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "admin", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "admin", serde(rename_all = "snake_case"))]
#[cfg_attr(not(feature = "admin"), expect(unreachable_pub, reason = "public with the feature admin"))]
#[non_exhaustive]
pub enum FailureCause {
    /// The server sent the status.
    Server,
    /// The connection or the response stream failed.
    Connection,
    /// The deadline passed before the server had completed its response.
    Deadline,
    /// The channel had no config.
    NoConfig,
    /// No route matched the call, or its route has no cluster.
    NoRoute,
    /// No endpoint was connected.
    NoEndpoint,
    /// A drop category or the circuit breaker of the cluster dropped the call.
    Dropped,
    /// Fault injection aborted or delayed the call.
    FaultInjection,
    /// Another cause in the process, such as an error of the request body.
    #[default]
    #[cfg_attr(feature = "admin", serde(other))]
    Local,
}

#[cfg(feature = "admin")]
impl FailureCause {
    /// Returns a short description, such as `returned by the server`.
    pub fn description(self) -> &'static str {
        match self {
            FailureCause::Server => "returned by the server",
            FailureCause::Connection => "connection failed",
            FailureCause::Deadline => "no response before the deadline",
            FailureCause::NoConfig => "no config",
            FailureCause::NoRoute => "no route",
            FailureCause::NoEndpoint => "no endpoint connected",
            FailureCause::Dropped => "dropped",
            FailureCause::FaultInjection => "fault injection",
            FailureCause::Local => "in this process",
        }
    }

    /// Number of causes, for tables of counters.
    pub(crate) const COUNT: usize = FailureCause::ALL.len();

    /// All causes in the order of their discriminants.
    pub(crate) const ALL: [FailureCause; 9] = [
        FailureCause::Server,
        FailureCause::Connection,
        FailureCause::Deadline,
        FailureCause::NoConfig,
        FailureCause::NoRoute,
        FailureCause::NoEndpoint,
        FailureCause::Dropped,
        FailureCause::FaultInjection,
        FailureCause::Local,
    ];
}

/// End of a call or an attempt beside its code, read only if it failed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FailureText<'a> {
    /// Message of a status.
    #[cfg_attr(not(feature = "admin"), expect(dead_code, reason = "only statistics read it"))]
    Message(&'a str),
    /// Headers or trailers of the server, with `grpc-message`.
    Trailers(&'a HeaderMap),
}

/// Cause and text of an end, read only if it is a failure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailureInfo<'a> {
    pub(crate) cause: FailureCause,
    pub(crate) text: FailureText<'a>,
}

impl<'a> FailureInfo<'a> {
    /// Creates the information of a status from this process.
    pub(crate) fn local(cause: FailureCause, message: &'a str) -> FailureInfo<'a> {
        FailureInfo { cause, text: FailureText::Message(message) }
    }

    /// Creates the information of a status that the server sent.
    pub(crate) fn of_server(trailers: &'a HeaderMap) -> FailureInfo<'a> {
        FailureInfo { cause: FailureCause::Server, text: FailureText::Trailers(trailers) }
    }
}
