//! A server for those who look inside a process: a live page, its data as JSON, and CSDS, on one port.
//!
//! It shows every channel and every xDS client of the process: the policies with their states, and for each endpoint the calls
//! that it should get and gets, how they end, how long they take and how busy it says it is. Nobody can change anything through
//! it. It is on loopback unless told otherwise, and refuses what other web pages ask through a browser.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! let admin = evenkeel::admin::Admin::builder().start().await?;
//! println!("look at http://{}/", admin.address());
//! # Ok(())
//! # }
//! ```
//!
//! | path | what |
//! |---|---|
//! | `/` | the page |
//! | `/api/state` | a [`State`] as JSON |
//! | `/api/events` | the same, again and again, as server-sent events |
//! | `/api/history` | a list of [`History`], one for each channel, as JSON |
//! | gRPC `ClientStatusDiscoveryService` | what [`Csds`](crate::csds::Csds) tells |
//!
//! Calls are counted from the first start on, at the price of two looks at the clock for each call; before that nothing is.

mod look;
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
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval};

pub(crate) use look::made;
pub use state::*;
use watcher::Watcher;

/// A running server. It ends when this is dropped.
pub struct Admin {
    address: SocketAddr,
    watcher: Arc<Mutex<Watcher>>,
    latest: watch::Receiver<Latest>,
    looking: AbortHandle,
    /// Dropped: the server ends.
    _serving: oneshot::Sender<()>,
}

/// The last look, ready to be sent.
#[derive(Clone)]
pub(crate) struct Latest {
    state: Bytes,
    history: Bytes,
    seen: Arc<State>,
}

impl Admin {
    /// Settings; [`Builder::start`] starts it.
    pub fn builder() -> Builder {
        Builder {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            title: None,
            names: Vec::new(),
            every: Duration::from_secs(1),
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Notes on the time line that something happened which only the application knows of.
    pub fn mark(&self, text: impl Into<String>) {
        lock(&self.watcher).mark(look::now(), text.into());
    }

    /// The last look.
    pub fn state(&self) -> Arc<State> {
        self.latest.borrow().seen.clone()
    }

    /// The next look.
    pub async fn changed(&mut self) -> Arc<State> {
        // It goes on for as long as this lives.
        let _ = self.latest.changed().await;
        self.state()
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.looking.abort();
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Settings of an [`Admin`] server.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `start`"]
pub struct Builder {
    listen: SocketAddr,
    title: Option<String>,
    names: Vec<String>,
    every: Duration,
}

impl Builder {
    /// Where to listen; on a free port of 127.0.0.1 unless set. Whoever can reach it sees everything: what to let through is
    /// then your network's business.
    pub fn listen(mut self, address: SocketAddr) -> Builder {
        self.listen = address;
        self
    }

    /// What the process calls itself; the name of its program unless set.
    pub fn title(mut self, title: impl Into<String>) -> Builder {
        self.title = Some(title.into());
        self
    }

    /// A name that browsers may know the server by, beside addresses and `localhost`. Other names are refused, since they may
    /// have been made to lead here.
    pub fn allow_host(mut self, name: impl Into<String>) -> Builder {
        self.names.push(name.into());
        self
    }

    /// How often to look; every second unless set.
    pub fn every(mut self, period: Duration) -> Builder {
        self.every = period.max(Duration::from_millis(10));
        self
    }

    /// Starts the server.
    ///
    /// # Errors
    ///
    /// The address cannot be listened on.
    pub async fn start(self) -> io::Result<Admin> {
        let listener = TcpListener::bind(self.listen).await.map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("the admin server cannot listen on {}: {error}", self.listen),
            )
        })?;
        let address = listener.local_addr()?;
        crate::traffic::watch();
        let watcher = Arc::new(Mutex::new(Watcher::new(self.title.unwrap_or_else(program), look::now())));
        let (sender, latest) = watch::channel(look_once(&watcher).await);
        let looking = tokio::spawn(look_again(watcher.clone(), sender, self.every)).abort_handle();
        let router = server::router(latest.clone(), self.names.into());
        let (serving, ended) = oneshot::channel::<()>();
        let server = axum::serve(listener, router).with_graceful_shutdown(async {
            let _ = ended.await;
        });
        tokio::spawn(async move {
            if let Err(error) = server.await {
                tracing::error!(%error, "the admin server ended");
            }
        });
        Ok(Admin { address, watcher, latest, looking, _serving: serving })
    }
}

async fn look_again(watcher: Arc<Mutex<Watcher>>, sender: watch::Sender<Latest>, every: Duration) {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        sender.send_replace(look_once(&watcher).await);
    }
}

async fn look_once(watcher: &Mutex<Watcher>) -> Latest {
    let seen = look::around().await;
    let (state, history) = {
        let mut watcher = lock(watcher);
        (watcher.take_in(seen, look::now()), watcher.histories())
    };
    // Neither can fail: all keys are text.
    let json = |text: Result<Vec<u8>, serde_json::Error>| text.map(Bytes::from).unwrap_or_default();
    Latest {
        state: json(serde_json::to_vec(&state)),
        history: json(serde_json::to_vec(&history)),
        seen: Arc::new(state),
    }
}

fn program() -> String {
    let program = std::env::args_os().next();
    let name = program.as_deref().map(std::path::Path::new).and_then(std::path::Path::file_name);
    name.map_or_else(|| "evenkeel".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Nothing panics while it is held.
fn lock(watcher: &Mutex<Watcher>) -> std::sync::MutexGuard<'_, Watcher> {
    watcher.lock().unwrap_or_else(PoisonError::into_inner)
}
