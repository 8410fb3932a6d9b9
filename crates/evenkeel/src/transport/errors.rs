//! Error texts for connections that cannot be opened or fail.
//!
//! A text states the cause on one line. Parts that a server controls are escaped and truncated.

use std::fmt;
use std::io;

use evenkeel_core::{Address, Status};
use rustls::{AlertDescription, CertificateError, OtherError};

/// Error of opening a byte stream.
#[derive(Debug)]
pub(crate) struct ConnectError {
    pub(super) address: Address,
    /// Expected identity of the server, if the TLS handshake was started.
    pub(super) server: Option<String>,
    pub(super) cause: String,
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The name of an abstract unix socket contains a zero byte.
        let address = sanitize(&self.address.to_string());
        match &self.server {
            None => write!(f, "connecting to {address}: {}", self.cause),
            Some(server) => write!(f, "TLS handshake with {address} {server}: {}", self.cause),
        }
    }
}

impl std::error::Error for ConnectError {}

impl From<ConnectError> for Status {
    fn from(error: ConnectError) -> Status {
        Status::unavailable(error.to_string())
    }
}

/// Returns a message for an error of a byte stream: the system's text, or an explanation for TLS errors.
pub(crate) fn describe_io_error(error: &io::Error) -> String {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(tls) => sanitize(&describe_tls_error(tls)),
        None if error.kind() == io::ErrorKind::UnexpectedEof => "the server closed the connection".to_owned(),
        None => plain_message(error),
    }
}

pub(super) fn plain_message(error: &io::Error) -> String {
    sanitize(&uncapitalised(&error.to_string()))
}

fn describe_tls_error(error: &rustls::Error) -> String {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "invalid peer certificate: it is not signed by a trusted CA (UnknownIssuer)".to_owned()
        }
        rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(why))) => {
            format!("invalid peer certificate: {why}")
        }
        rustls::Error::InvalidMessage(_) => format!("the server does not support TLS ({error})"),
        rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
            "the server rejected \"h2\" (ALPN), which gRPC requires".to_owned()
        }
        rustls::Error::AlertReceived(alert) => {
            format!("the server refused: {}", split_camel_case(&format!("{alert:?}")))
        }
        error => error.to_string(),
    }
}

/// Converts `CertificateRequired` to `certificate required`.
fn split_camel_case(name: &str) -> String {
    let mut words = String::new();
    let mut after_lower = false;
    for c in name.chars() {
        if c.is_uppercase() && after_lower {
            words.push(' ');
        }
        after_lower = c.is_lowercase();
        words.extend(c.to_lowercase());
    }
    words
}

/// Converts `Connection refused` to the lower case of our messages; keeps `EOF`.
fn uncapitalised(text: &str) -> String {
    let mut rest = text.chars();
    match rest.next() {
        Some(first) if rest.clone().next().is_some_and(char::is_lowercase) => {
            first.to_lowercase().chain(rest).collect()
        }
        _ => text.to_owned(),
    }
}

/// Escapes control characters and truncates text that a server may control, such as names in its certificate.
pub(super) fn sanitize(text: &str) -> String {
    const MAX_CHARS: usize = 512;
    let mut line = String::new();
    for (i, c) in text.chars().enumerate() {
        if i == MAX_CHARS {
            line.push_str("...");
            break;
        }
        // Line separators and direction marks can make a log viewer display other text.
        let is_mark = matches!(
            c,
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        );
        if c.is_control() || is_mark { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_servers_stays_on_one_line_and_in_its_direction() {
        assert_eq!(sanitize("a\r\n\x1b\u{9b}\u{202e}\u{2028}é"), "a\\r\\n\\u{1b}\\u{9b}\\u{202e}\\u{2028}é");
    }
}
