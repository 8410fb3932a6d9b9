//! The task of one connection: connects, performs the handshakes and runs the connection until its end.

use std::future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::{Status, SubchannelId};
use tokio::sync::mpsc;
use tokio::time;

use crate::channel::driver::DriverConfig;
use crate::channel::driver::connection_events::ConnectionEvent;
use crate::clock;
use crate::credentials::{ClusterTls, Credentials};
use crate::telemetry::metrics::SecurityLevel;
use crate::transport::connect_queue::ConnectRequest;
use crate::transport::connection::{self, Http2Config};
use crate::transport::{self, Connector};

/// Inputs of a connection attempt, and a guard that reports its outcome exactly once.
pub(super) struct ConnectAttempt {
    /// TLS settings of the cluster, in place of the credentials.
    pub(super) cluster: Option<ClusterTls>,
    credentials: Credentials,
    connector: Arc<dyn Connector>,
    host: Arc<str>,
    http2: Http2Config,
    id: SubchannelId,
    reporter: mpsc::UnboundedSender<ConnectionEvent>,
    has_reported: bool,
}

impl ConnectAttempt {
    pub(super) fn new(
        settings: &DriverConfig,
        id: SubchannelId,
        reporter: &mpsc::UnboundedSender<ConnectionEvent>,
    ) -> ConnectAttempt {
        ConnectAttempt {
            cluster: None,
            credentials: settings.credentials.clone(),
            connector: settings.connector.clone(),
            host: settings.host.clone(),
            http2: settings.http2.clone(),
            id,
            reporter: reporter.clone(),
            has_reported: false,
        }
    }

    fn report(&mut self, report: ConnectionEvent) {
        self.has_reported = true;
        // Fails if the channel has entered IDLE or has closed. Dropping the event then drops its connection.
        let _ = self.reporter.send(report);
    }
}

impl Drop for ConnectAttempt {
    /// Reports a failure if the attempt has not reported. The connector may be the application's own and may panic.
    fn drop(&mut self) {
        if !self.has_reported {
            // A cancelled attempt reports as well; the core ignores it.
            let status = Status::new(evenkeel_core::Code::Internal, "the connector panicked");
            self.report(ConnectionEvent::Failed(self.id, status, Duration::ZERO));
        }
    }
}

/// Runs a connection from the attempt until its end.
pub(super) async fn run_connect_attempt(
    ConnectRequest { id, address, deadline }: ConnectRequest,
    mut connecting: ConnectAttempt,
) {
    // Polls share the threads with calls. The time spent in them paces the next attempts.
    let mut spent = Duration::ZERO;
    let attempt = async {
        let ConnectAttempt { cluster, credentials, connector, host, http2, .. } = &connecting;
        let (io, level) = if let Some(cluster) = cluster {
            let io = transport::connect_by_cluster(&**connector, &address, cluster).await?;
            (io, SecurityLevel::PrivacyAndIntegrity)
        } else {
            let io = transport::connect(&**connector, &address, credentials, host).await?;
            (io, credentials.level())
        };
        connection::handshake(io, (address.clone(), level), http2).await
    };
    // The block ends the borrow of `connecting`, which reports the result.
    let result = {
        let mut attempt = pin!(time::timeout_at(clock::sleep_until(deadline), attempt));
        future::poll_fn(|cx| {
            let began = time::Instant::now();
            let polled = attempt.as_mut().poll(cx);
            spent += began.elapsed();
            polled
        })
        .await
    };
    match result {
        Ok(Ok((connection, task))) => {
            connecting.report(ConnectionEvent::Connected(id, Arc::new(connection), spent));
            task.run(|disconnect| connecting.report(ConnectionEvent::Lost(id, disconnect))).await;
        }
        Ok(Err(status)) => connecting.report(ConnectionEvent::Failed(id, status, spent)),
        Err(_) => {
            let status = Status::unavailable(format!("connecting to {address}: timed out"));
            connecting.report(ConnectionEvent::Failed(id, status, spent));
        }
    }
}
