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
    /// Every code at the index of its number, with its name in the gRPC specification.
    const NAMES: [(Code, &str); 17] = [
        (Code::Ok, "OK"),
        (Code::Cancelled, "CANCELLED"),
        (Code::Unknown, "UNKNOWN"),
        (Code::InvalidArgument, "INVALID_ARGUMENT"),
        (Code::DeadlineExceeded, "DEADLINE_EXCEEDED"),
        (Code::NotFound, "NOT_FOUND"),
        (Code::AlreadyExists, "ALREADY_EXISTS"),
        (Code::PermissionDenied, "PERMISSION_DENIED"),
        (Code::ResourceExhausted, "RESOURCE_EXHAUSTED"),
        (Code::FailedPrecondition, "FAILED_PRECONDITION"),
        (Code::Aborted, "ABORTED"),
        (Code::OutOfRange, "OUT_OF_RANGE"),
        (Code::Unimplemented, "UNIMPLEMENTED"),
        (Code::Internal, "INTERNAL"),
        (Code::Unavailable, "UNAVAILABLE"),
        (Code::DataLoss, "DATA_LOSS"),
        (Code::Unauthenticated, "UNAUTHENTICATED"),
    ];

    /// Returns the code with this number.
    pub fn from_number(number: i32) -> Option<Code> {
        let index = usize::try_from(number).ok()?;
        Code::NAMES.get(index).map(|(code, _)| *code)
    }

    /// Returns the code with this name, such as `UNAVAILABLE`, in upper or lower case.
    pub fn from_name(name: &str) -> Option<Code> {
        let mut names = Code::NAMES.iter();
        names.find(|(_, known)| known.eq_ignore_ascii_case(name)).map(|(code, _)| *code)
    }

    /// Returns the code of a response that has this HTTP status and no gRPC status.
    pub fn from_http_status(status: u16) -> Code {
        match status {
            400 => Code::Internal,
            401 => Code::Unauthenticated,
            403 => Code::PermissionDenied,
            404 => Code::Unimplemented,
            429 | 502..=504 => Code::Unavailable,
            _ => Code::Unknown,
        }
    }

    /// Returns the name of the code in the gRPC specification, such as `UNAVAILABLE`.
    pub fn name(self) -> &'static str {
        Code::NAMES[self as usize].1
    }

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
        Status::new(
            Code::Internal,
            format!("the load balancing policy returned the reserved status {code:?}: {message}"),
        )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_a_name_and_a_number() {
        for (number, (code, name)) in (0..).zip(Code::NAMES) {
            assert_eq!((code as i32, code.name()), (number, name));
            assert_eq!((Code::from_number(number), Code::from_name(name)), (Some(code), Some(code)));
        }
        assert_eq!(Code::from_name("data_loss"), Some(Code::DataLoss));
        assert_eq!(
            (Code::from_number(-1), Code::from_number(17), Code::from_name("DATA LOSS")),
            (None, None, None)
        );
    }
}
