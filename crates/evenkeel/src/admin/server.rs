//! The server: the page, its data, and CSDS, on one port.
//!
//! A page of somebody else's could have a browser ask us for what it may not see: by a name of its own that leads here, or from
//! its own origin. Both are refused.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State as Extracted};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, get, on_service};
use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, ORIGIN, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::uri::Authority;
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use tokio::sync::{mpsc, watch};
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;

use super::Latest;
use super::page::{FILES, POLICY};
use crate::xds::csds::Csds;

/// The names under which we may be asked, beside addresses and `localhost`.
pub(super) type Names = Arc<[String]>;

const JSON: &str = "application/json";

/// What requests are answered from.
#[derive(Clone)]
pub(super) struct Served {
    pub(super) latest: watch::Receiver<Latest>,
    /// Its sender is gone: the server ends.
    pub(super) ended: watch::Receiver<()>,
}

pub(super) fn router(served: Served, names: Names) -> Router {
    let page = FILES.iter().fold(Router::new(), |router, file| {
        router.route(file.path, get(async || typed(file.kind, file.body)))
    });
    page.route("/api/state", get(state))
        .route("/api/history", get(history))
        .route("/api/events", get(events))
        .with_state(served)
        .route(
            "/envoy.service.status.v3.ClientStatusDiscoveryService/{method}",
            on_service(MethodFilter::POST, Csds::new()),
        )
        .layer(middleware::map_response(harden))
        .layer(middleware::from_fn_with_state(names, refuse_strangers))
}

fn typed(kind: &'static str, body: impl IntoResponse) -> Response {
    ([(CONTENT_TYPE, HeaderValue::from_static(kind))], body).into_response()
}

async fn state(Extracted(served): Extracted<Served>) -> Response {
    typed(JSON, served.latest.borrow().state.clone())
}

async fn history(Extracted(served): Extracted<Served>) -> Response {
    typed(JSON, served.latest.borrow().history.clone())
}

/// Every state from now on, the present one first. Who reads slowly gets the latest, not all of them.
async fn events(Extracted(Served { mut latest, mut ended }): Extracted<Served>) -> Response {
    let (sender, events) = mpsc::channel::<Result<Bytes, std::io::Error>>(1);
    latest.mark_changed();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                () = sender.closed() => return,
                _ = ended.changed() => return,
                changed = latest.changed() => if changed.is_err() { return },
            }
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
    response
}

async fn refuse_strangers(Extracted(names): Extracted<Names>, request: Request, next: Next) -> Response {
    match stranger(request.uri(), request.headers(), &names) {
        None => next.run(request).await,
        Some(why) => (StatusCode::FORBIDDEN, format!("{why}\n")).into_response(),
    }
}

/// What is wrong with where a request comes from, if anything is.
fn stranger(uri: &Uri, headers: &HeaderMap, names: &[String]) -> Option<String> {
    let host = match (uri.authority(), headers.get(HOST)) {
        (Some(authority), _) => authority.clone(),
        (None, Some(host)) => match Authority::try_from(host.as_bytes()) {
            Ok(host) => host,
            Err(_) => return Some("the Host header is not a host".to_owned()),
        },
        (None, None) => return Some("a Host header is needed".to_owned()),
    };
    if !is_ours(host.host(), names) {
        return Some(format!(
            "host {:?} is not known here: use an address or localhost, or allow the name where the admin server is built",
            host.host()
        ));
    }
    let origin = headers.get(ORIGIN)?;
    let of_origin = origin.to_str().ok().and_then(|origin| origin.parse::<Uri>().ok());
    let is_same = of_origin.as_ref().and_then(Uri::authority).is_some_and(|origin| *origin == host);
    (!is_same).then(|| "pages of other origins may not look in here".to_owned())
}

/// A name that somebody made to lead here is none of these; an address is what it says.
fn is_ours(host: &str, names: &[String]) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    bare.parse::<IpAddr>().is_ok()
        || host.eq_ignore_ascii_case("localhost")
        || names.iter().any(|name| name.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_those_who_know_us_by_address_or_name_get_in() {
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
            let refused = stranger(&Uri::from_static("/"), &headers, &names);
            assert_eq!(refused.is_none(), expected, "{host:?} {origin:?}: {refused:?}");
        }
        let by_authority = |uri: &'static str| stranger(&Uri::from_static(uri), &HeaderMap::new(), &names);
        assert_eq!(by_authority("http://127.0.0.1:1/"), None);
        assert!(by_authority("http://evil.example/").is_some());
    }
}
