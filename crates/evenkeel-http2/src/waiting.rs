//! Requests that wait for room in the write buffer.
//!
//! They are not encoded yet: encoding a header block changes the dynamic table, so an encoded block must be sent. A
//! call that is cancelled while it waits costs the connection nothing.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue, Method};

use crate::stream::RequestHeaders;

/// Queued requests by stream id, because streams must be opened in the order of their ids.
pub(crate) type PendingRequests = BTreeMap<u32, Box<PendingRequest>>;

/// Owned copy of a [`RequestHeaders`].
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
