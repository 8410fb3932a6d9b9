//! `/metrics` for scrapes by Prometheus.

use std::sync::Arc;

use axum::Router;
use axum::extract::State as Extracted;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::PrometheusMetrics;

/// Maximum number of concurrent scrapes. Each holds a copy of all series, which can have several megabytes.
const MAX_SCRAPES: usize = 4;

/// State of the route: the metrics, and one permit per response that is not yet sent.
#[derive(Clone)]
struct ScrapeState {
    metrics: PrometheusMetrics,
    scrapes: Arc<Semaphore>,
}

/// Returns the route `/metrics`. Without metrics it responds with 404 and the remedy.
pub(super) fn routes(metrics: Option<PrometheusMetrics>) -> Router {
    let Some(metrics) = metrics else {
        let text =
            "no metrics: pass a PrometheusMetrics to the builders of the admin server and of the channels\n";
        return Router::new().route("/metrics", get(async move || (StatusCode::NOT_FOUND, text)));
    };
    let state = ScrapeState { metrics, scrapes: Arc::new(Semaphore::new(MAX_SCRAPES)) };
    Router::new().route("/metrics", get(scrape)).with_state(state)
}

/// Responds with the text format 0.0.4, whatever the request accepts: every version of Prometheus reads it.
async fn scrape(Extracted(ScrapeState { metrics, scrapes }): Extracted<ScrapeState>) -> Response {
    let Ok(permit) = scrapes.try_acquire_owned() else {
        let text = format!("at most {MAX_SCRAPES} concurrent scrapes are served\n");
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    };
    // Thousands of series take milliseconds to encode, which would delay the calls of the thread.
    let Ok(text) = tokio::task::spawn_blocking(move || metrics.encode()).await else {
        return (StatusCode::INTERNAL_SERVER_ERROR, "the metrics cannot be collected\n").into_response();
    };
    let kind = HeaderValue::from_static(PrometheusMetrics::CONTENT_TYPE);
    let body = Bytes::from_owner(ScrapeText { text, _permit: permit });
    ([(CONTENT_TYPE, kind)], body).into_response()
}

/// Body of a response. The scrape ends when it is dropped.
struct ScrapeText {
    text: String,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for ScrapeText {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_orca::IgnoredReason;

    use super::*;
    use crate::telemetry::metrics::ChannelMetrics;

    /// A scraper that does not read its response occupies one of four places.
    #[tokio::test]
    async fn concurrent_scrapes_are_limited() {
        let (metrics, scrapes) = (PrometheusMetrics::new(), Arc::new(Semaphore::new(MAX_SCRAPES)));
        // Without a series the response has no body, and holds nothing.
        ChannelMetrics::from(metrics.metrics()).load_ignored(IgnoredReason::Repeated);
        let state = ScrapeState { metrics, scrapes };
        let mut unread = Vec::new();
        for _ in 0..MAX_SCRAPES {
            unread.push(scrape(Extracted(state.clone())).await);
            assert_eq!(unread[unread.len() - 1].status(), 200);
        }
        assert_eq!(scrape(Extracted(state.clone())).await.status(), 503);
        unread.pop();
        assert_eq!(scrape(Extracted(state)).await.status(), 200);
    }
}
