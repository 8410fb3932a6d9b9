//! Conversion of statuses: from the core's type to tonic's, and from HTTP/2 errors to gRPC codes.

use evenkeel_core::{Code, Status};
use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::transport::http2::{Error, Reason};

/// Converts a status of the core to tonic's type.
pub(crate) fn to_tonic(status: &Status) -> tonic::Status {
    tonic::Status::new(tonic::Code::from(status.code() as i32), status.message())
}

/// Name of the trailer with the status code of a call.
static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// Returns the first value of a header. Responses have few headers, so a linear search is cheaper than hashing the name.
pub(crate) fn find<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h HeaderValue> {
    let [value] = find_each(headers, [name]);
    value
}

/// Returns the first value of each of these headers.
fn find_each<'h, const N: usize>(
    headers: &'h HeaderMap,
    names: [&HeaderName; N],
) -> [Option<&'h HeaderValue>; N] {
    let mut values = [None; N];
    for (found, value) in headers {
        for (name, slot) in names.iter().zip(&mut values) {
            if found == *name {
                slot.get_or_insert(value);
            }
        }
    }
    values
}

/// Returns the status code in these headers or trailers.
pub(crate) fn code_of(headers: &HeaderMap) -> Option<Code> {
    find(headers, &GRPC_STATUS).map(code_in)
}

fn code_in(value: &HeaderValue) -> Code {
    match value.as_bytes() {
        // The common case needs no parsing.
        b"0" => Code::Ok,
        text => std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).map_or(Code::Unknown, code),
    }
}

/// Returns the code of this number; UNKNOWN if there is none.
pub(crate) fn code(number: i32) -> Code {
    Code::from_number(number).unwrap_or(Code::Unknown)
}

/// Returns the code of a response without a gRPC status, from its HTTP status (gRPC's table).
pub(crate) fn code_of_http(status: http::StatusCode) -> Code {
    Code::from_http_status(status.as_u16())
}

/// Returns the code in response headers, if they contain one. `Err` is the status of a response that is not gRPC, such as
/// an error page of a proxy. A response with a gRPC status counts as gRPC in any case.
pub(crate) fn read_head(answer: &http::response::Parts) -> Result<Option<Code>, String> {
    let [kind, code] = find_each(&answer.headers, [&header::CONTENT_TYPE, &GRPC_STATUS]);
    let is_grpc = kind.is_none_or(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    if answer.status == http::StatusCode::OK && is_grpc || code.is_some() {
        return Ok(code.map(code_in));
    }
    let status = answer.status;
    let Some(kind) = kind else { return Err(format!("HTTP status {status}")) };
    let kind: String = String::from_utf8_lossy(kind.as_bytes()).chars().take(100).collect();
    Err(format!("HTTP status {status} and content type {kind:?}"))
}

/// Returns the code of a broken stream (gRPC over HTTP/2, "Errors").
pub(crate) fn code_of_error(error: &Error) -> Code {
    let (Error::Reset(reason) | Error::StreamError(reason)) = error else { return Code::Unavailable };
    match *reason {
        Reason::REFUSED_STREAM => Code::Unavailable,
        Reason::CANCEL => Code::Cancelled,
        Reason::ENHANCE_YOUR_CALM => Code::ResourceExhausted,
        Reason::INADEQUATE_SECURITY => Code::PermissionDenied,
        _ => Code::Internal,
    }
}

/// Returns true if the peer provably did not process the stream: REFUSED_STREAM, or GOAWAY with a lower stream id (RFC
/// 9113, 8.7).
pub(crate) fn is_unprocessed(error: &Error) -> bool {
    matches!(error, Error::Reset(Reason::REFUSED_STREAM) | Error::GoAway(..))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every code converts to the other type and back. A number that is no code becomes UNKNOWN.
    #[test]
    fn codes_are_the_same_numbers() {
        for number in 0..=16 {
            let core = code(number);
            assert_eq!(core as i32, number);
            assert_eq!(to_tonic(&Status::new(core, "why")).code() as i32, number);
        }
        assert_eq!(code(17), Code::Unknown);
        let sent = |value: &'static str| {
            code_of(&HeaderMap::from_iter([(
                http::HeaderName::from_static("grpc-status"),
                value.parse().unwrap(),
            )]))
        };
        assert_eq!(
            [sent("14"), sent("no"), sent("-1")],
            [Code::Unavailable, Code::Unknown, Code::Unknown].map(Some)
        );
        assert_eq!(code_of(&HeaderMap::new()), None);
    }

    /// Reset codes map to the status codes of gRPC's table.
    #[test]
    fn resets_have_codes() {
        let table = [
            (Reason::NO_ERROR, Code::Internal),
            (Reason::PROTOCOL_ERROR, Code::Internal),
            (Reason::REFUSED_STREAM, Code::Unavailable),
            (Reason::CANCEL, Code::Cancelled),
            (Reason::ENHANCE_YOUR_CALM, Code::ResourceExhausted),
            (Reason::INADEQUATE_SECURITY, Code::PermissionDenied),
        ];
        for (reason, code) in table {
            assert_eq!(code_of_error(&Error::Reset(reason)), code, "{reason:?}");
        }
        assert!(!is_unprocessed(&Error::StreamError(Reason::REFUSED_STREAM)), "only the peer can refuse");
        assert_eq!(code_of_http(http::StatusCode::BAD_GATEWAY), Code::Unavailable);
        assert_eq!(code_of_http(http::StatusCode::OK), Code::Unknown);
    }
}
