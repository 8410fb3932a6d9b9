//! Connections to control planes: name resolution, credentials, and one connection per server.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{self, Arc};
use std::time::Duration;

use evenkeel_core::{Address, Status};
use evenkeel_xds::bootstrap::{ChannelCredentials, ServerConfig};
use evenkeel_xds::target::{ChannelTarget, TargetKind};
use http::{HeaderMap, HeaderValue, Method, header};
use tokio::sync::{Mutex, mpsc};
use tokio::task::{self, JoinSet};
use tokio::time::{Instant, sleep};

use super::lock;
use super::stream_task::transport_error;
use crate::credentials::Credentials;
use crate::resolver::dns;
use crate::transport::connection::{self, Connection, Http2Config};
use crate::transport::http2::{HttpRecvStream, HttpSendStream, RequestHeaders};
use crate::transport::{self, Connector};

/// Delay between connection attempts to the addresses of a server (Happy Eyeballs, RFC 8305).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Minimum time between two lookups of a control plane's name.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(5);

const USER_AGENT: &str = concat!("evenkeel/", env!("CARGO_PKG_VERSION"));

/// Connection shared by the streams to one server.
pub(super) struct ServerConnection {
    server: Arc<ServerConfig>,
    /// Held while connecting: the other streams wait for the outcome.
    state: Mutex<ServerConnectionState>,
}

#[derive(Default)]
struct ServerConnectionState {
    credentials: Option<Credentials>,
    connection: Option<Arc<Connection>>,
}

/// An open stream, before its response headers.
pub(super) struct OpenedStream {
    pub(super) connection: Arc<Connection>,
    pub(super) send: HttpSendStream,
    pub(super) response: HttpRecvStream,
}

impl ServerConnection {
    pub(super) fn new(server: Arc<ServerConfig>) -> ServerConnection {
        ServerConnection { server, state: Mutex::default() }
    }

    pub(super) async fn open(
        &self,
        dialer: &Arc<XdsDialer>,
        method: &'static str,
    ) -> Result<OpenedStream, Status> {
        let target = self.server.target().map_err(|error| Status::unavailable(error.to_string()))?;
        let connection = self.connection(dialer, &target).await?;
        let (send, response) = connection
            .sender()
            .send(&RequestHeaders {
                method: &Method::POST,
                is_https: self.server.credentials != ChannelCredentials::Insecure,
                authority: target.authority(),
                path: method,
                extra_headers: &[],
                headers: &HeaderMap::from_iter([
                    (header::CONTENT_TYPE, HeaderValue::from_static("application/grpc")),
                    (header::TE, HeaderValue::from_static("trailers")),
                    (header::USER_AGENT, HeaderValue::from_static(USER_AGENT)),
                ]),
                end_stream: false,
            })
            .map_err(|error| transport_error(&connection, &error))?;
        Ok(OpenedStream { connection, send, response })
    }

    /// Returns the open connection, or opens one. Concurrent streams wait for the same attempt.
    async fn connection(
        &self,
        dialer: &Arc<XdsDialer>,
        target: &ChannelTarget,
    ) -> Result<Arc<Connection>, Status> {
        let mut state = self.state.lock().await;
        if let Some(connection) = &state.connection
            && connection.transport_state().disconnected().is_none()
        {
            return Ok(connection.clone());
        }
        // Before the attempt: the lost connection must close also if no other can be opened.
        state.connection = None;
        let credentials = match &state.credentials {
            Some(credentials) => credentials.clone(),
            // A failed read is not kept, so the next attempt reads the files again.
            None => state.credentials.insert(self.credentials().await?).clone(),
        };
        let addresses = match target.kind() {
            TargetKind::Fixed(addresses) => addresses.clone(),
            TargetKind::Dns { host, port } => dialer.resolve(host, *port).await?,
            TargetKind::Xds { .. } => {
                return Err(Status::unavailable("an xDS target cannot be the address of a control plane"));
            }
        };
        let connection = Arc::new(dial(dialer, addresses, &credentials, target.host()).await?);
        state.connection = Some(connection.clone());
        Ok(connection)
    }

    /// Reads the credentials' files on a blocking thread.
    async fn credentials(&self) -> Result<Credentials, Status> {
        let server = self.server.clone();
        let read = task::spawn_blocking(move || Credentials::for_xds_server(&server.credentials)).await;
        match read {
            Ok(Ok(credentials)) => Ok(credentials),
            Ok(Err(error)) => Err(Status::unavailable(error.to_string())),
            Err(_) => Err(Status::unavailable("credentials not loaded: the xDS client is shutting down")),
        }
    }
}

/// Opens connections to control planes.
pub(super) struct XdsDialer {
    connector: Arc<dyn Connector>,
    http2: Http2Config,
    /// Lookups of control planes by host and port.
    resolved: sync::Mutex<BTreeMap<(String, u16), NameLookup>>,
    /// Held by every task, so that the end of all of them can be awaited.
    alive: Option<mpsc::Sender<Infallible>>,
}

/// Addresses of a name, and the time at which they were resolved.
#[derive(Clone)]
struct NameLookup {
    at: Instant,
    addresses: Vec<Address>,
}

impl XdsDialer {
    pub(super) fn new(connector: Arc<dyn Connector>, http2: Http2Config) -> XdsDialer {
        XdsDialer { connector, http2, resolved: sync::Mutex::default(), alive: None }
    }

    /// Returns the dialer with a sender that every task holds.
    pub(super) fn with_alive(self, alive: mpsc::Sender<Infallible>) -> XdsDialer {
        XdsDialer { alive: Some(alive), ..self }
    }

    /// Returns the addresses of a control plane, from a lookup that is at most [`LOOKUP_INTERVAL`] old.
    ///
    /// While a control plane is down, a connection is attempted once per second. A lookup with each attempt would
    /// move the load of all clients to the DNS server.
    async fn resolve(&self, host: &str, port: u16) -> Result<Vec<Address>, Status> {
        let key = (host.to_owned(), port);
        // Cloned, so that the lock is not held across the lookup.
        let known = lock(&self.resolved).get(&key).cloned();
        if let Some(NameLookup { at, addresses }) = known
            && at.elapsed() < LOOKUP_INTERVAL
        {
            return Ok(addresses);
        }
        let addresses: Vec<Address> = dns::resolve(host, port).await?.into_iter().map(Address::Ip).collect();
        lock(&self.resolved).insert(key, NameLookup { at: Instant::now(), addresses: addresses.clone() });
        Ok(addresses)
    }
}

/// Connects to the first address that accepts. Attempts start [`ATTEMPT_DELAY`] apart.
async fn dial(
    dialer: &Arc<XdsDialer>,
    addresses: Vec<Address>,
    credentials: &Credentials,
    host: &str,
) -> Result<Connection, Status> {
    let mut addresses = addresses.into_iter();
    let mut attempts = JoinSet::new();
    let mut failures = Vec::new();
    loop {
        if let Some(address) = addresses.next() {
            attempts.spawn(attempt(dialer.clone(), address, credentials.clone(), host.to_owned()));
        } else if attempts.is_empty() {
            return Err(Status::unavailable(failures.join("; ")));
        }
        // A failed attempt starts the next one at once, without the delay.
        tokio::select! {
            Some(ended) = attempts.join_next() => match ended {
                Ok(Ok((connection, task))) => {
                    let alive = dialer.alive.clone();
                    tokio::spawn(async move {
                        task.run(|disconnect| tracing::debug!(status = %disconnect.status, "xDS connection closed")).await;
                        // Held until the connection has closed: `StreamSet::closed` waits for it.
                        drop(alive);
                    });
                    // Dropping `attempts` aborts the other attempts.
                    return Ok(connection);
                }
                Ok(Err(status)) => failures.push(status.message().to_owned()),
                Err(error) => failures.push(error.to_string()),
            },
            () = sleep(ATTEMPT_DELAY), if addresses.len() > 0 => {}
        }
    }
}

async fn attempt(
    dialer: Arc<XdsDialer>,
    address: Address,
    credentials: Credentials,
    host: String,
) -> Result<(Connection, connection::ConnectionTask), Status> {
    let io = transport::connect(&*dialer.connector, &address, &credentials, &host).await?;
    let peer = (address, credentials.level());
    connection::handshake(io, peer, &dialer.http2).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::SocketConnector;

    /// Consecutive attempts share a lookup.
    #[tokio::test(start_paused = true)]
    async fn names_are_looked_up_at_most_every_five_seconds() {
        let dialer = XdsDialer::new(Arc::new(SocketConnector::default()), Http2Config::default());
        let found = dialer.resolve("localhost", 80).await.unwrap();
        let marked = vec![Address::Ip(([10, 0, 0, 1], 80).into())];
        let lookup = NameLookup { at: Instant::now(), addresses: marked.clone() };
        lock(&dialer.resolved).insert(("localhost".to_owned(), 80), lookup);
        for _ in 0..4 {
            assert_eq!(dialer.resolve("localhost", 80).await.unwrap(), marked);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_ne!(dialer.resolve("localhost", 81).await.unwrap(), marked, "another port is another name");
        tokio::time::advance(LOOKUP_INTERVAL).await;
        assert_eq!(dialer.resolve("localhost", 80).await.unwrap(), found);
    }
}
