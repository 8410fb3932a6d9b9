//! Requests that wait for room in the write buffer.
//!
//! They are not encoded yet: an encoded header block has changed the header table, and must be sent. So a call that is
//! cancelled while it waits costs the connection nothing.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue, Method};

use crate::stream::Request;

/// Waiting requests by the ids of their streams, which is the order in which streams must be opened.
pub(crate) type WaitingRequests = BTreeMap<u32, Box<WaitingRequest>>;

/// Copy of a [`Request`].
#[derive(Debug)]
pub(crate) struct WaitingRequest {
    method: Method,
    is_https: bool,
    authority: Box<str>,
    path: Box<str>,
    headers: HeaderMap,
    more: Box<[(HeaderName, HeaderValue)]>,
    ends: bool,
}

impl WaitingRequest {
    pub(crate) fn new(request: &Request<'_>) -> WaitingRequest {
        WaitingRequest {
            method: request.method.clone(),
            is_https: request.is_https,
            authority: request.authority.into(),
            path: request.path.into(),
            headers: request.headers.clone(),
            more: request.more.into(),
            ends: request.ends,
        }
    }

    pub(crate) fn as_request(&self) -> Request<'_> {
        Request {
            method: &self.method,
            is_https: self.is_https,
            authority: &self.authority,
            path: &self.path,
            headers: &self.headers,
            more: &self.more,
            ends: self.ends,
        }
    }
}
