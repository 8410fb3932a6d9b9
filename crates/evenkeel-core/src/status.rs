//! gRPC statuses, as far as balancing needs them.

use std::fmt;
use std::sync::Arc;

/// A gRPC status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[expect(missing_docs, reason = "the codes are gRPC's own and documented there")]
pub enum Code {
    Ok = 0,
    Cancelled = 1,
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    AlreadyExists = 6,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Aborted = 10,
    OutOfRange = 11,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    DataLoss = 15,
    Unauthenticated = 16,
}

impl Code {
    /// Whether a control plane or a policy may put this code on a call (A54).
    pub fn is_allowed_from_control_plane(self) -> bool {
        use Code::{
            Aborted, AlreadyExists, DataLoss, FailedPrecondition, InvalidArgument, NotFound, Ok, OutOfRange,
        };
        !matches!(
            self,
            Ok | InvalidArgument
                | NotFound
                | AlreadyExists
                | FailedPrecondition
                | Aborted
                | OutOfRange
                | DataLoss
        )
    }
}

/// A code and a message; cheap to clone, since a failing picker hands out the same one to every call.
#[derive(Clone, PartialEq, Eq)]
pub struct Status {
    code: Code,
    message: Arc<str>,
}

impl Status {
    /// A status with this code and message.
    pub fn new(code: Code, message: impl Into<Arc<str>>) -> Status {
        Status { code, message: message.into() }
    }

    /// An `UNAVAILABLE` status.
    pub fn unavailable(message: impl Into<Arc<str>>) -> Status {
        Status::new(Code::Unavailable, message)
    }

    /// The code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The status as a call may see it: codes that only a server may send become `INTERNAL`, with the original in
    /// the text (A54).
    #[must_use]
    pub fn for_call(self) -> Status {
        if self.code.is_allowed_from_control_plane() {
            return self;
        }
        let Status { code, message } = self;
        Status::new(Code::Internal, format!("load balancing gave the reserved status {code:?}: {message}"))
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.code, self.message)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
