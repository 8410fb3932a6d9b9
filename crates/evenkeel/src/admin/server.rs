//! HTTP routes of the admin server: the page, its data and CSDS, on one port.
//!
//! A page of another origin could make a browser send requests here: by DNS rebinding, or from its own
//! origin. Both are rejected.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State as Extracted};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, get, on_service};
use bytes::Bytes;
use evenkeel_proto::descriptors;
use evenkeel_proto::envoy::service::status::v3::ClientStatusRequest;
use http::header::{
    CACHE_CONTROL, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderName, ORIGIN,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use tokio::sync::{Semaphore, mpsc, watch};
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;

use super::LatestState;
use super::health::unready_channels;
use super::listener::{ActiveRequest, RequestGauge};
use super::page::{FILES, POLICY};
use crate::resolver::xds::csds::Csds;

/// Host names allowed in requests, in addition to IP addresses and `localhost`.
pub(super) type AllowedHosts = Arc<[String]>;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// Response header that keeps other origins from embedding responses as images or scripts.
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// Request header in which a browser states the relation of the requesting page to this server.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// State shared by the request handlers.
#[derive(Clone)]
pub(super) struct RouterState {
    pub(super) latest: watch::Receiver<LatestState>,
    /// Closed when the server stops.
    pub(super) ended: watch::Receiver<()>,
    /// One permit per open event stream.
    pub(super) event_streams: Arc<Semaphore>,
}

/// Maximum number of open event streams. Each holds a copy of the state.
pub(super) const MAX_EVENT_STREAMS: usize = 64;

/// Maximum `content-length` of a request. Requests of the page have no body, and those of CSDS are small.
const MAX_REQUEST_BYTES: u64 = 1 << 20;

/// Returns all routes: those of the page, and `metrics`.
pub(super) fn router(router_state: RouterState, metrics: Router, names: AllowedHosts) -> Router {
    let page = FILES.iter().fold(Router::new(), |router, file| {
        router.route(file.path, get(async || typed(file.kind, file.body)))
    });
    page.route("/api/state", get(state))
        .route("/api/history", get(history))
        .route("/api/events", get(events))
        .route("/api/resources", get(resources))
        .route("/healthz", get(async || typed(TEXT, "ok\n")))
        .route("/ready", get(ready))
        .with_state(router_state)
        .merge(metrics)
        .route(
            "/envoy.service.status.v3.ClientStatusDiscoveryService/{method}",
            on_service(MethodFilter::POST, Csds::new()),
        )
        // The last layer is the outermost: a request is counted first, then checked. Rejections are hardened too.
        .layer(middleware::from_fn_with_state(names, reject_foreign_requests))
        .layer(middleware::map_response(harden))
        .layer(middleware::from_fn(count_request))
}

fn typed(kind: &'static str, body: impl IntoResponse) -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static(kind))], body).into_response()
}

async fn state(Extracted(router_state): Extracted<RouterState>) -> Response {
    typed(JSON, router_state.latest.borrow().state.clone())
}

async fn history(Extracted(router_state): Extracted<RouterState>) -> Response {
    typed(JSON, router_state.latest.borrow().history.clone())
}

/// Returns the resources of all xDS clients: the response of CSDS in protobuf's JSON mapping.
async fn resources() -> Response {
    match Csds::new().handle_request(ClientStatusRequest::default()).await {
        Ok(status) => {
            let json = descriptors::message_json(&status, &descriptors::pool());
            typed(JSON, Bytes::from(json.to_string()))
        }
        Err(status) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{}\n", status.message())).into_response(),
    }
}

/// Responds with 200 if every channel can serve calls, else with 503 and one line per channel that cannot.
async fn ready(Extracted(router_state): Extracted<RouterState>) -> Response {
    let seen = router_state.latest.borrow().seen.clone();
    let unready = unready_channels(&seen);
    if unready.is_empty() {
        return typed(TEXT, "ok\n");
    }
    (StatusCode::SERVICE_UNAVAILABLE, typed(TEXT, unready)).into_response()
}

/// Streams every state, starting with the current one. A slow reader skips states and gets the latest.
async fn events(
    Extracted(RouterState { mut latest, mut ended, event_streams }): Extracted<RouterState>,
) -> Response {
    let Ok(permit) = event_streams.try_acquire_owned() else {
        let text = format!("at most {MAX_EVENT_STREAMS} concurrent event streams are served\n");
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    };
    let (sender, events) = mpsc::channel::<Result<Bytes, std::io::Error>>(1);
    // So that the current state is sent at once.
    latest.mark_changed();
    tokio::spawn(async move {
        let _permit = permit;
        loop {
            tokio::select! {
                // The permit must return without waiting for the next state.
                () = sender.closed() => return,
                _ = ended.changed() => return,
                changed = latest.changed() => if changed.is_err() { return },
            }
            // The block ends the borrow: the sampler cannot publish while the value is borrowed.
            let event = {
                let state = &latest.borrow_and_update().state;
                let mut event = Vec::with_capacity(state.len() + 8);
                event.extend_from_slice(b"data: ");
                event.extend_from_slice(state);
                event.extend_from_slice(b"\n\n");
                Bytes::from(event)
            };
            if sender.send(Ok(event)).await.is_err() {
                return;
            }
        }
    });
    typed("text/event-stream", Body::from_stream(ReceiverStream::new(events)))
}

async fn harden(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    response
}

/// Counts a request as active on its connection until the response has ended.
async fn count_request(
    ConnectInfo(gauge): ConnectInfo<RequestGauge>,
    request: Request,
    next: Next,
) -> Response {
    let active = gauge.start();
    next.run(request).await.map(|body| Body::new(CountedBody { body, _active: active }))
}

/// Response body whose request counts as active until the body is dropped.
struct CountedBody {
    body: Body,
    _active: ActiveRequest,
}

impl http_body::Body for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

async fn reject_foreign_requests(
    Extracted(names): Extracted<AllowedHosts>,
    request: Request,
    next: Next,
) -> Response {
    // A body without `content-length`, chunked or in HTTP/2, passes this check.
    let length = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if length.is_some_and(|length: u64| length > MAX_REQUEST_BYTES) {
        let text = format!("a request has at most {MAX_REQUEST_BYTES} bytes\n");
        return (StatusCode::PAYLOAD_TOO_LARGE, text).into_response();
    }
    match rejection_reason(request.uri(), request.headers(), &names) {
        None => next.run(request).await,
        Some(why) => (StatusCode::FORBIDDEN, format!("{why}\n")).into_response(),
    }
}

/// Returns the reason to reject a request by its host or origin, if there is one.
fn rejection_reason(uri: &Uri, headers: &HeaderMap, names: &[String]) -> Option<String> {
    let host = match (uri.authority(), headers.get(HOST)) {
        (Some(authority), _) => authority.clone(),
        (None, Some(host)) => match Authority::try_from(host.as_bytes()) {
            Ok(host) => host,
            Err(_) => return Some("the Host header is malformed".to_owned()),
        },
        (None, None) => return Some("the Host header is missing".to_owned()),
    };
    if !is_allowed_host(host.host(), names) {
        return Some(format!(
            "unknown host {:?}: use an address or localhost, or allow the name in the builder of the admin server",
            host.host()
        ));
    }
    // Requests for images and scripts have no `Origin`. Browsers set `Sec-Fetch-Site` on them, and pages
    // cannot change it.
    let site = headers.get(FETCH_SITE).map(HeaderValue::as_bytes);
    if site.is_some_and(|site| matches!(site, b"cross-site" | b"same-site")) {
        return Some("cross-site requests are rejected: enter the address in the browser".to_owned());
    }
    let origin = headers.get(ORIGIN)?;
    let of_origin = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
    let is_same = of_origin.as_ref().and_then(Uri::authority).is_some_and(|origin| *origin == host);
    (!is_same).then(|| "cross-origin requests are rejected".to_owned())
}

/// Returns true for an allowed host. An IP address is always allowed: DNS rebinding needs a name.
fn is_allowed_host(host: &str, names: &[String]) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    bare.parse::<IpAddr>().is_ok()
        || host.eq_ignore_ascii_case("localhost")
        || names.iter().any(|name| name.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_hosts_are_served() {
        let names = ["box.example".to_owned()];
        let cases = [
            (Some("127.0.0.1:9901"), None, true),
            (Some("localhost:9901"), None, true),
            (Some("LOCALHOST"), None, true),
            (Some("[::1]:9901"), None, true),
            (Some("192.0.2.7:9901"), None, true),
            (Some("box.example:80"), None, true),
            (Some("evil.example:9901"), None, false),
            (Some("127.0.0.1.evil.example"), None, false),
            (Some("a b"), None, false),
            (None, None, false),
            (Some("127.0.0.1:9901"), Some("http://127.0.0.1:9901"), true),
            (Some("127.0.0.1:9901"), Some("http://127.0.0.1:9902"), false),
            (Some("127.0.0.1:9901"), Some("http://evil.example"), false),
            (Some("127.0.0.1:9901"), Some("null"), false),
            (Some("127.0.0.1:9901"), Some("http://localhost:9901"), false),
        ];
        for (host, origin, expected) in cases {
            let mut headers = HeaderMap::new();
            let value = |text: &str| HeaderValue::from_str(text).expect("a header");
            headers.extend(host.map(|host| (HOST, value(host))));
            headers.extend(origin.map(|origin| (ORIGIN, value(origin))));
            let refused = rejection_reason(&Uri::from_static("/"), &headers, &names);
            assert_eq!(refused.is_none(), expected, "{host:?} {origin:?}: {refused:?}");
        }
        let by_authority =
            |uri: &'static str| rejection_reason(&Uri::from_static(uri), &HeaderMap::new(), &names);
        assert_eq!(by_authority("http://127.0.0.1:1/"), None);
        assert!(by_authority("http://evil.example/").is_some());
    }
}
