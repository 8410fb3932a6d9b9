//! Streams of out-of-band load reports ([A51](https://github.com/grpc/proposal/blob/master/A51-custom-backend-metrics.md)),
//! one per connection of a watched subchannel.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_core::SubchannelId;
use rustc_hash::FxHashMap;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::channel::DefaultHeaders;
use crate::channel::driver::DriverConfig;
use crate::channel::driver::connection_events::ConnectionEvent;
use crate::load::oob::{self, LoadStreamConfig};
use crate::telemetry::metrics::ChannelMetrics;
use crate::transport::connection::Connection;

/// Subchannels with out-of-band load reports, and their intervals. Dropping it ends the streams.
pub(super) struct LoadWatches {
    default_headers: DefaultHeaders,
    metrics: ChannelMetrics,
    reporter: mpsc::UnboundedSender<ConnectionEvent>,
    all: FxHashMap<SubchannelId, LoadWatch>,
}

struct LoadWatch {
    every: Duration,
    stream: Option<AbortHandle>,
}

impl LoadWatches {
    pub(super) fn new(
        settings: &DriverConfig,
        reporter: mpsc::UnboundedSender<ConnectionEvent>,
    ) -> LoadWatches {
        let (default_headers, metrics) = (settings.default_headers.clone(), settings.metrics.clone());
        LoadWatches { default_headers, metrics, reporter, all: FxHashMap::default() }
    }

    /// Sets the report interval for this connection and its successors; `None` ends the reports. The stream is
    /// restarted, the connection is kept (ORCA-8).
    pub(super) fn watch(
        &mut self,
        id: SubchannelId,
        every: Option<Duration>,
        connection: Option<&Arc<Connection>>,
    ) {
        // Dropping the entry ends its stream.
        self.all.remove(&id);
        let Some(every) = every else { return };
        self.all.insert(id, LoadWatch { every, stream: None });
        if let Some(connection) = connection {
            self.connected(id, connection);
        }
    }

    pub(super) fn connected(&mut self, id: SubchannelId, connection: &Arc<Connection>) {
        let Some(watch) = self.all.get_mut(&id) else { return };
        let reporter = self.reporter.clone();
        let report = move |load| {
            // Fails if the channel has entered IDLE, which also aborts this task.
            let _ = reporter.send(ConnectionEvent::Load(id, load));
        };
        let stream_config = LoadStreamConfig {
            default_headers: self.default_headers.clone(),
            metrics: self.metrics.clone(),
            every: watch.every,
        };
        let stream = oob::watch(connection.clone(), stream_config, report);
        // The stream of the previous connection may still run.
        watch.end();
        watch.stream = Some(tokio::spawn(stream).abort_handle());
    }

    /// Ends the stream of a connection that takes no more calls (ORCA-10).
    pub(super) fn lost(&mut self, id: SubchannelId) {
        if let Some(watch) = self.all.get_mut(&id) {
            watch.end();
        }
    }
}

impl LoadWatch {
    fn end(&mut self) {
        if let Some(stream) = self.stream.take() {
            stream.abort();
        }
    }
}

impl Drop for LoadWatch {
    fn drop(&mut self) {
        self.end();
    }
}
