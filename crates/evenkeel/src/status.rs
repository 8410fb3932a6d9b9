//! Statuses: from the core's to tonic's, and from what HTTP/2 says to what gRPC says.

use evenkeel_core::{Code, Status};
use h2::Reason;
use http::{HeaderMap, HeaderValue};

/// The status of a call, in tonic's type.
pub(crate) fn to_tonic(status: &Status) -> tonic::Status {
    tonic::Status::new(tonic::Code::from(status.code() as i32), status.message())
}

/// The first value of a header. Answers have few, and a look at each is cheaper than the hash of a name.
pub(crate) fn find<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h HeaderValue> {
    headers.iter().find(|(found, _)| found.as_str() == name).map(|(_, value)| value)
}

/// The code that a peer sent.
pub(crate) fn code_of(headers: &HeaderMap) -> Option<Code> {
    let value = find(headers, "grpc-status")?;
    Some(
        std::str::from_utf8(value.as_bytes())
            .ok()
            .and_then(|text| text.parse().ok())
            .map_or(Code::Unknown, code),
    )
}

/// The code of this number; what is no code is unknown.
pub(crate) fn code(number: i32) -> Code {
    match number {
        0 => Code::Ok,
        1 => Code::Cancelled,
        3 => Code::InvalidArgument,
        4 => Code::DeadlineExceeded,
        5 => Code::NotFound,
        6 => Code::AlreadyExists,
        7 => Code::PermissionDenied,
        8 => Code::ResourceExhausted,
        9 => Code::FailedPrecondition,
        10 => Code::Aborted,
        11 => Code::OutOfRange,
        12 => Code::Unimplemented,
        13 => Code::Internal,
        14 => Code::Unavailable,
        15 => Code::DataLoss,
        16 => Code::Unauthenticated,
        _ => Code::Unknown,
    }
}

/// The code of an answer without a gRPC status, by its HTTP status (gRPC's table).
pub(crate) fn code_of_http(status: http::StatusCode) -> Code {
    match status.as_u16() {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502..=504 => Code::Unavailable,
        _ => Code::Unknown,
    }
}

/// What an answer is that is none of gRPC's, such as a proxy's page of an error. One that says a gRPC status is taken by its
/// word.
pub(crate) fn not_grpc(answer: &http::response::Parts) -> Option<String> {
    let kind = find(&answer.headers, "content-type");
    let is_grpc = kind.is_none_or(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    if answer.status == http::StatusCode::OK && is_grpc || find(&answer.headers, "grpc-status").is_some() {
        return None;
    }
    let status = answer.status;
    let Some(kind) = kind else { return Some(format!("HTTP status {status}")) };
    let kind: String = String::from_utf8_lossy(kind.as_bytes()).chars().take(100).collect();
    Some(format!("HTTP status {status} and content type {kind:?}"))
}

/// What a stream that was cut short means for its call (gRPC over HTTP/2, "Errors").
pub(crate) fn code_of_error(error: &h2::Error) -> Code {
    if error.is_io() || error.is_go_away() {
        return Code::Unavailable;
    }
    match error.reason() {
        Some(Reason::REFUSED_STREAM) => Code::Unavailable,
        Some(Reason::CANCEL) => Code::Cancelled,
        Some(Reason::ENHANCE_YOUR_CALM) => Code::ResourceExhausted,
        Some(Reason::INADEQUATE_SECURITY) => Code::PermissionDenied,
        _ => Code::Internal,
    }
}

/// Whether the peer promised that it did nothing with the stream: it refused it, or said goodbye before it (RFC 9113, 8.7).
pub(crate) fn is_unprocessed(error: &h2::Error) -> bool {
    let refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
    error.is_remote() && (refused || error.is_go_away())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every code survives the way from one type to the other, and what is no code is unknown.
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

    /// Resets mean what gRPC's table says.
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
            assert_eq!(code_of_error(&h2::Error::from(reason)), code, "{reason:?}");
        }
        assert!(!is_unprocessed(&h2::Error::from(Reason::REFUSED_STREAM)), "only the peer can refuse");
        assert_eq!(code_of_http(http::StatusCode::BAD_GATEWAY), Code::Unavailable);
        assert_eq!(code_of_http(http::StatusCode::OK), Code::Unknown);
    }
}
