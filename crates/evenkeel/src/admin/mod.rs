//! A server for those who look inside a process: a live page, its data as JSON, and CSDS, on one port.
//!
//! It shows every channel and every xDS client of the process: the policies with their states, and for each endpoint the calls
//! that it should get and gets, how they end, how long they take and how busy it says it is. Nobody can change anything through
//! it. It is on loopback unless told otherwise, and refuses what other web pages ask through a browser.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! let admin = evenkeel::admin::AdminServer::builder().start().await?;
//! println!("look at http://{}/", admin.address());
//! # Ok(())
//! # }
//! ```
//!
//! | path | what |
//! |---|---|
//! | `/` | the page |
//! | `/api/state` | a [`AdminState`] as JSON |
//! | `/api/events` | the same, again and again, as server-sent events |
//! | `/api/history` | a list of [`ChannelHistory`], one for each channel, as JSON |
//! | gRPC `ClientStatusDiscoveryService` | what [`Csds`](crate::csds::Csds) tells |
//!
//! The server has limits: 64 connections, 64 event streams, 30 s for a request head and for a peer that does not read, 1 MiB
//! for a request. Browsers keep what it answers from pages of other origins (`Cross-Origin-Resource-Policy`), and requests that
//! such pages make are refused (`Host`, `Origin`, `Sec-Fetch-Site`).
//!
//! Calls are counted from the first start on, at the price of two looks at the clock for each call; before that nothing is.

mod listener;
mod look;
mod page;
mod server;
mod state;
mod view;
mod watcher;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval};

pub(crate) use look::register_channel;
pub use state::*;
use watcher::StateWatcher;

/// Looks at the process again and again, until its last clone is dropped.
#[derive(Clone)]
pub struct AdminWatch {
    shared: Arc<AdminWatchInner>,
    latest: watch::Receiver<LatestState>,
}

struct AdminWatchInner {
    watcher: Arc<Mutex<StateWatcher>>,
    sampler: AbortHandle,
}

/// The last look, ready to be sent.
#[derive(Clone)]
struct LatestState {
    state: Bytes,
    history: Bytes,
    seen: Arc<AdminState>,
}

impl AdminWatch {
    /// Begins to look, this often. `title` is what the process is called.
    pub async fn start(title: impl Into<String>, every: Duration) -> AdminWatch {
        crate::telemetry::traffic::enable();
        let watcher = Arc::new(Mutex::new(StateWatcher::new(title.into(), look::now())));
        let (sender, latest) = watch::channel(sample_once(&watcher).await);
        let every = every.max(Duration::from_millis(10));
        let sampler = tokio::spawn(sample_periodically(watcher.clone(), sender, every)).abort_handle();
        AdminWatch { shared: Arc::new(AdminWatchInner { watcher, sampler }), latest }
    }

    /// The last look.
    pub fn state(&self) -> Arc<AdminState> {
        self.latest.borrow().seen.clone()
    }

    /// The next look.
    pub async fn changed(&mut self) -> Arc<AdminState> {
        // It goes on for as long as this lives.
        let _ = self.latest.changed().await;
        self.latest.borrow_and_update().seen.clone()
    }

    /// Notes on the time line that something happened which only the application knows of.
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
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}

/// A running server. It ends when this is dropped.
#[derive(Debug)]
pub struct AdminServer {
    address: SocketAddr,
    watch: AdminWatch,
    /// Dropped: the server ends.
    _serving: watch::Sender<()>,
}

impl AdminServer {
    /// Settings; [`AdminServerBuilder::start`] starts it.
    pub fn builder() -> AdminServerBuilder {
        AdminServerBuilder {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            watch: None,
            names: Vec::new(),
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it shows.
    pub fn watch(&self) -> &AdminWatch {
        &self.watch
    }
}

/// Settings of an [`AdminServer`] server.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `start`"]
pub struct AdminServerBuilder {
    listen: SocketAddr,
    watch: Option<AdminWatch>,
    names: Vec<String>,
}

impl AdminServerBuilder {
    /// Where to listen; on a free port of 127.0.0.1 unless set. Whoever can reach it sees everything: what to let through is
    /// then your network's business.
    pub fn listen(mut self, address: SocketAddr) -> AdminServerBuilder {
        self.listen = address;
        self
    }

    /// What to show; unless set, a [`AdminWatch`] with the name of the program that looks every second.
    pub fn watch(mut self, watch: AdminWatch) -> AdminServerBuilder {
        self.watch = Some(watch);
        self
    }

    /// A name that browsers may know the server by, beside addresses and `localhost`. Other names are refused, since they may
    /// have been made to lead here.
    pub fn allow_host(mut self, name: impl Into<String>) -> AdminServerBuilder {
        self.names.push(name.into());
        self
    }

    /// Starts the server.
    ///
    /// # Errors
    ///
    /// The address cannot be listened on.
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
        let router = server::router(router_state, self.names.into());
        let listener = listener::AdminListener::new(listener);
        let service = router.into_make_service_with_connect_info::<listener::RequestGauge>();
        let serve = axum::serve(listener, service).with_graceful_shutdown(async move {
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
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
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
    // Neither can fail: all keys are text.
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

/// Nothing panics while it is held.
fn lock(watcher: &Mutex<StateWatcher>) -> std::sync::MutexGuard<'_, StateWatcher> {
    watcher.lock().unwrap_or_else(PoisonError::into_inner)
}
