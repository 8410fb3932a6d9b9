//! Errors of a stream or a connection, and the error codes of RFC 9113.

use std::fmt;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderName;

/// Maximum number of characters of a GOAWAY frame's debug data in the error message.
const MAX_DEBUG_DATA: usize = 200;

/// Error code of RFC 9113, section 7. Codes that the RFC does not define are kept as they are.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reason(u32);

macro_rules! reasons {
    ($($name:ident = $number:literal, $doc:literal;)*) => {
        impl Reason {
            $(#[doc = $doc] pub const $name: Reason = Reason($number);)*

            fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

reasons! {
    NO_ERROR = 0, "Graceful shutdown.";
    PROTOCOL_ERROR = 1, "Unspecific protocol error.";
    INTERNAL_ERROR = 2, "Unexpected internal error.";
    FLOW_CONTROL_ERROR = 3, "Violation of the flow-control window.";
    SETTINGS_TIMEOUT = 4, "No acknowledgement of SETTINGS in time.";
    STREAM_CLOSED = 5, "Frame received after the stream was half-closed.";
    FRAME_SIZE_ERROR = 6, "Frame with an invalid size.";
    REFUSED_STREAM = 7, "Stream refused before any processing.";
    CANCEL = 8, "Stream no longer needed.";
    COMPRESSION_ERROR = 9, "Header compression context cannot be maintained.";
    CONNECT_ERROR = 10, "Connection of a CONNECT request reset or closed.";
    ENHANCE_YOUR_CALM = 11, "Peer generates excessive load.";
    INADEQUATE_SECURITY = 12, "Transport security below the minimum requirements.";
    HTTP_1_1_REQUIRED = 13, "HTTP/1.1 required.";
}

impl From<u32> for Reason {
    fn from(number: u32) -> Reason {
        Reason(number)
    }
}

impl From<Reason> for u32 {
    fn from(reason: Reason) -> u32 {
        reason.0
    }
}

/// Prints the name from the RFC, or the number in hexadecimal.
impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{:#x}", self.0),
        }
    }
}

/// Reason why a stream or a connection ended before it was complete.
#[derive(Clone, Debug)]
pub enum Error {
    /// The peer sent RST_STREAM with this code.
    Reset(Reason),
    /// Stream error: the peer violated the protocol or a limit on this stream, and the client reset it.
    StreamError(Reason),
    /// The peer sent GOAWAY with this code and debug data. As the error of a stream: the peer did not process it, so it
    /// can be retried.
    GoAway(Reason, Bytes),
    /// Connection error: the peer violated the protocol or a limit, and the client closed the connection.
    ConnectionError(Reason),
    /// The peer closed the byte stream.
    Closed,
    /// Reading or writing the byte stream failed.
    Io(Arc<io::Error>),
    /// The request has this header field, which HTTP/2 does not allow. Nothing was sent.
    InvalidHeader(HeaderName),
    /// The request's header list is larger than the peer's SETTINGS_MAX_HEADER_LIST_SIZE. Nothing was sent.
    HeaderListTooLarge {
        /// Size of the header list, as SETTINGS_MAX_HEADER_LIST_SIZE counts it.
        size: usize,
        /// Maximum size that the peer accepts.
        limit: usize,
    },
    /// The connection accepts no more requests: its stream ids are used up, or its driver was dropped.
    Exhausted,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Reset(reason) => write!(f, "RST_STREAM {reason:?}"),
            Error::GoAway(reason, debug_data) if debug_data.is_empty() => write!(f, "GOAWAY {reason:?}"),
            Error::GoAway(reason, debug_data) => {
                let debug_data: String =
                    debug_data.escape_ascii().map(char::from).take(MAX_DEBUG_DATA).collect();
                write!(f, "GOAWAY {reason:?}, \"{debug_data}\"")
            }
            Error::StreamError(reason) | Error::ConnectionError(reason) => {
                write!(f, "the peer violated HTTP/2 or a limit ({reason:?})")
            }
            Error::Closed => f.write_str("closed by the peer"),
            Error::Io(error) => error.fmt(f),
            Error::InvalidHeader(name) => write!(f, "HTTP/2 does not allow header {name:?}"),
            Error::HeaderListTooLarge { size, limit } => {
                write!(
                    f,
                    "header list of {size} bytes violates the maximum size of {limit} bytes set by the server"
                )
            }
            Error::Exhausted => f.write_str("the connection accepts no more streams"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Error {
        Error::Io(Arc::new(error))
    }
}
