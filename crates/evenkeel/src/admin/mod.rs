//! Admin server: a live status page, its data as JSON, and CSDS, on one port.
//!
//! It shows every channel and every xDS client of the process: the policies with their states, and for each
//! endpoint the expected and actual share of calls, outcomes, latencies and reported utilization. It is
//! read-only. It listens on loopback by default and rejects cross-origin requests of browsers.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! let admin = evenkeel::admin::AdminServer::builder().start().await?;
//! println!("look at http://{}/", admin.address());
//! # Ok(())
//! # }
//! ```
//!
//! | path | response |
//! |---|---|
//! | `/` | status page |
//! | `/api/state` | a [`AdminState`] as JSON |
//! | `/api/events` | each new [`AdminState`], as server-sent events |
//! | `/api/history` | a list of [`ChannelHistory`], one for each channel, as JSON |
//! | `/api/resources` | every resource of the xDS clients: the response of CSDS, in protobuf's JSON mapping |
//! | `/healthz` | `ok` while the process serves |
//! | `/ready` | `ok`, or 503 with one line for each channel that is in TRANSIENT_FAILURE or has calls and no config |
//! | `/metrics` | metrics in the text format of Prometheus (feature `prometheus`) |
//! | gRPC `ClientStatusDiscoveryService` | status of the xDS clients, as by [`Csds`](crate::csds::Csds) |
//!
//! The server has limits: 64 connections, 64 event streams, 4 concurrent scrapes, 30 s for a request head and
//! for a peer that does not read, 1 MiB for the `content-length` of a request. Responses are withheld from pages
//! of other origins (`Cross-Origin-Resource-Policy`), and requests of such pages are rejected (`Host`, `Origin`,
//! `Sec-Fetch-Site`).
//!
//! Calls are counted from the first start on. Counting reads the clock twice per call; without a start, no
//! clock is read.

mod health;
mod listener;
mod look;
mod page;
#[cfg(feature = "prometheus")]
mod scrape;
mod server;
mod state;
mod uneven;
mod verdict;
mod view;
mod watcher;
mod window;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval};

pub(crate) use look::register_channel;
pub use state::*;
use watcher::StateWatcher;

use crate::sync::lock;

/// Periodic samples of the process. Sampling stops when the last clone is dropped.
#[derive(Clone)]
pub struct AdminWatch {
    shared: Arc<AdminWatchInner>,
    latest: watch::Receiver<LatestState>,
}

struct AdminWatchInner {
    watcher: Arc<Mutex<StateWatcher>>,
    sampler: AbortHandle,
}

/// Latest sample, serialized for responses.
#[derive(Clone)]
struct LatestState {
    state: Bytes,
    history: Bytes,
    seen: Arc<AdminState>,
}

impl AdminWatch {
    /// Starts sampling at this interval, which is at least 10 ms. `title` names the process.
    pub async fn start(title: impl Into<String>, every: Duration) -> AdminWatch {
        crate::telemetry::traffic::enable();
        let watcher = Arc::new(Mutex::new(StateWatcher::new(title.into(), look::now())));
        let (sender, latest) = watch::channel(sample_once(&watcher).await);
        let every = every.max(Duration::from_millis(10));
        let sampler = tokio::spawn(sample_periodically(watcher.clone(), sender, every)).abort_handle();
        AdminWatch { shared: Arc::new(AdminWatchInner { watcher, sampler }), latest }
    }

    /// Returns the latest state.
    pub fn state(&self) -> Arc<AdminState> {
        self.latest.borrow().seen.clone()
    }

    /// Waits for the next sample and returns its state.
    pub async fn changed(&mut self) -> Arc<AdminState> {
        // Cannot fail: the sampler runs while `self` exists.
        let _ = self.latest.changed().await;
        self.latest.borrow_and_update().seen.clone()
    }

    /// Adds an application event, such as a deployment, to the event list.
    pub fn mark(&self, text: impl Into<String>) {
        lock(&self.shared.watcher).mark(look::now(), text.into());
    }
}

impl Drop for AdminWatchInner {
    fn drop(&mut self) {
        self.sampler.abort();
    }
}

impl fmt::Debug for AdminWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminWatch").finish_non_exhaustive()
    }
}

/// Running admin server. It stops when dropped.
#[derive(Debug)]
pub struct AdminServer {
    address: SocketAddr,
    watch: AdminWatch,
    /// Dropping the sender stops the server.
    _serving: watch::Sender<()>,
}

impl AdminServer {
    /// Returns a builder. [`AdminServerBuilder::start`] starts the server.
    pub fn builder() -> AdminServerBuilder {
        AdminServerBuilder {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            watch: None,
            names: Vec::new(),
            #[cfg(feature = "prometheus")]
            prometheus: None,
        }
    }

    /// Returns the listening address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the samples that the server shows.
    pub fn watch(&self) -> &AdminWatch {
        &self.watch
    }
}

/// Builder of an [`AdminServer`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `start`"]
pub struct AdminServerBuilder {
    listen: SocketAddr,
    watch: Option<AdminWatch>,
    names: Vec<String>,
    #[cfg(feature = "prometheus")]
    prometheus: Option<crate::PrometheusMetrics>,
}

impl AdminServerBuilder {
    /// Sets the listening address. The default is a free port of 127.0.0.1. The server has no authentication:
    /// every peer that can reach the address can read everything.
    pub fn listen(mut self, address: SocketAddr) -> AdminServerBuilder {
        self.listen = address;
        self
    }

    /// Sets the samples to show. The default is an [`AdminWatch`] with the program's name and an interval of
    /// one second.
    pub fn watch(mut self, watch: AdminWatch) -> AdminServerBuilder {
        self.watch = Some(watch);
        self
    }

    /// Allows a host name in requests, in addition to IP addresses and `localhost`. Other names are rejected
    /// as a defence against DNS rebinding.
    pub fn allow_host(mut self, name: impl Into<String>) -> AdminServerBuilder {
        self.names.push(name.into());
        self
    }

    /// Serves these metrics at `/metrics`.
    #[cfg(feature = "prometheus")]
    pub fn prometheus(mut self, metrics: &crate::PrometheusMetrics) -> AdminServerBuilder {
        self.prometheus = Some(metrics.clone());
        self
    }

    /// Binds the address and starts the server.
    ///
    /// # Errors
    ///
    /// Returns an error if the address cannot be bound.
    pub async fn start(self) -> io::Result<AdminServer> {
        let listener = TcpListener::bind(self.listen).await.map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("the admin server cannot listen on {}: {error}", self.listen),
            )
        })?;
        let address = listener.local_addr()?;
        let watch = match self.watch {
            Some(watch) => watch,
            None => AdminWatch::start(program_name(), Duration::from_secs(1)).await,
        };
        let (serving, mut ended) = watch::channel(());
        let event_streams = Arc::new(Semaphore::new(server::MAX_EVENT_STREAMS));
        let router_state =
            server::RouterState { latest: watch.latest.clone(), ended: ended.clone(), event_streams };
        #[cfg(feature = "prometheus")]
        let metrics = scrape::routes(self.prometheus);
        #[cfg(not(feature = "prometheus"))]
        let metrics = axum::Router::new();
        let router = server::router(router_state, metrics, self.names.into());
        let listener = listener::AdminListener::new(listener);
        let service = router.into_make_service_with_connect_info::<listener::RequestGauge>();
        let serve = axum::serve(listener, service).with_graceful_shutdown(async move {
            // An error, since the sender is only ever dropped.
            let _ = ended.changed().await;
        });
        tokio::spawn(async move {
            if let Err(error) = serve.await {
                tracing::error!(%error, "admin server stopped");
            }
        });
        Ok(AdminServer { address, watch, _serving: serving })
    }
}

async fn sample_periodically(
    watcher: Arc<Mutex<StateWatcher>>,
    sender: watch::Sender<LatestState>,
    every: Duration,
) {
    let mut ticks = interval(every);
    // A burst of late ticks would give samples without time in between.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is immediate, and `AdminWatch::start` has taken that sample.
    ticks.tick().await;
    loop {
        ticks.tick().await;
        sender.send_replace(sample_once(&watcher).await);
    }
}

async fn sample_once(watcher: &Mutex<StateWatcher>) -> LatestState {
    let seen = look::collect_sample().await;
    let (state, history) = {
        let mut watcher = lock(watcher);
        (watcher.handle_sample(seen, look::now()), watcher.histories())
    };
    // Cannot fail: all map keys are strings.
    let json = |text: Result<Vec<u8>, serde_json::Error>| text.map(Bytes::from).unwrap_or_default();
    LatestState {
        state: json(serde_json::to_vec(&state)),
        history: json(serde_json::to_vec(&history)),
        seen: Arc::new(state),
    }
}

fn program_name() -> String {
    let program = std::env::args_os().next();
    let name = program.as_deref().map(std::path::Path::new).and_then(std::path::Path::file_name);
    name.map_or_else(|| "evenkeel".to_owned(), |name| name.to_string_lossy().into_owned())
}
