//! gRPC statuses and their codes, as far as load balancing needs them.

use std::fmt;
use std::sync::Arc;

/// Status code of gRPC.
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
    /// Returns true if a control plane or a policy may fail a call with this code (A54).
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

/// Status code with a message. Cheap to clone, since a failing picker returns the same one for every call.
#[derive(Clone, PartialEq, Eq)]
pub struct Status {
    code: Code,
    message: Arc<str>,
}

impl Status {
    /// Creates a status with this code and message.
    pub fn new(code: Code, message: impl Into<Arc<str>>) -> Status {
        Status { code, message: message.into() }
    }

    /// Creates a status with the code `UNAVAILABLE`.
    pub fn unavailable(message: impl Into<Arc<str>>) -> Status {
        Status::new(Code::Unavailable, message)
    }

    /// Returns the status code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Returns the status message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Converts the status for use on a call. Codes that are reserved for servers become `INTERNAL`, with the
    /// original code in the message (A54).
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
