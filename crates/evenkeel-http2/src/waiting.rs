//! Requests that wait for room in the write buffer.
//!
//! They are not encoded yet: an encoded header block has changed the header table, and must be sent. So a call that is
//! cancelled while it waits costs the connection nothing.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue, Method};

use crate::stream::RequestHeaders;

/// Waiting requests by the ids of their streams, which is the order in which streams must be opened.
pub(crate) type PendingRequests = BTreeMap<u32, Box<PendingRequest>>;

/// Copy of a [`RequestHeaders`].
#[derive(Debug)]
pub(crate) struct PendingRequest {
    method: Method,
    is_https: bool,
    authority: Box<str>,
    path: Box<str>,
    headers: HeaderMap,
    extra_headers: Box<[(HeaderName, HeaderValue)]>,
    end_stream: bool,
}

impl PendingRequest {
    pub(crate) fn new(request: &RequestHeaders<'_>) -> PendingRequest {
        PendingRequest {
            method: request.method.clone(),
            is_https: request.is_https,
            authority: request.authority.into(),
            path: request.path.into(),
            headers: request.headers.clone(),
            extra_headers: request.extra_headers.into(),
            end_stream: request.end_stream,
        }
    }

    pub(crate) fn as_request(&self) -> RequestHeaders<'_> {
        RequestHeaders {
            method: &self.method,
            is_https: self.is_https,
            authority: &self.authority,
            path: &self.path,
            headers: &self.headers,
            extra_headers: &self.extra_headers,
            end_stream: self.end_stream,
        }
    }
}
