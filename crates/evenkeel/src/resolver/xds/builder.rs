//! Settings of an xDS client, and the start of its thread.

use std::fmt;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use evenkeel_core::load::LoadStore;
use evenkeel_core::{Registry, Rng};
use evenkeel_xds::XdsLimits;
use evenkeel_xds::ads::{AdsClient, DELETION_GRACE, XdsVariant};
use evenkeel_xds::bootstrap::Bootstrap;
use evenkeel_xds::lb::LbPolicyConverters;
use evenkeel_xds::lrs::LrsClient;
use evenkeel_xds::resource::ResourceParser;
use tokio::runtime;
use tokio::sync::mpsc;

use super::server_connection::XdsDialer;
use super::worker::{WorkerCommand, XdsWorker};
use super::{WorkerStatus, XdsClient, XdsClientInner, clients};
use crate::entropy;
use crate::transport::connection::Http2Config;
use crate::transport::http2::Http2Implementation;
use crate::transport::keepalive::KeepaliveParams;
use crate::transport::{Connector, SocketConnector};

/// Keepalive of connections to control planes (as in C-core, Java and Go).
const KEEPALIVE: KeepaliveParams = KeepaliveParams {
    time: Duration::from_secs(5 * 60),
    timeout: Duration::from_secs(20),
    without_calls: true,
};

/// Settings of an xDS client, created by [`XdsClient::builder`].
#[must_use = "a builder does nothing until `build`"]
pub struct XdsClientBuilder {
    bootstrap: Bootstrap,
    registry: Registry,
    converters: LbPolicyConverters,
    limits: XdsLimits,
    variant: XdsVariant,
    keepalive: KeepaliveParams,
    deletion_grace: Duration,
    http2: Http2Implementation,
    connector: Arc<dyn Connector>,
}

impl XdsClientBuilder {
    pub(super) fn new(bootstrap: Bootstrap) -> XdsClientBuilder {
        XdsClientBuilder {
            bootstrap,
            registry: Registry::standard(),
            converters: LbPolicyConverters::standard(),
            limits: XdsLimits::default(),
            variant: XdsVariant::StateOfTheWorld,
            keepalive: KEEPALIVE,
            deletion_grace: DELETION_GRACE,
            http2: Http2Implementation::default(),
            connector: Arc::new(SocketConnector::default()),
        }
    }

    /// Load balancing policies that clusters may use; the built-in ones unless set.
    pub fn registry(mut self, registry: Registry) -> XdsClientBuilder {
        self.registry = registry;
        self
    }

    /// Converters from the control plane's policies to those of the registry; the built-in ones unless set.
    pub fn converters(mut self, converters: LbPolicyConverters) -> XdsClientBuilder {
        self.converters = converters;
        self
    }

    /// Limits on the resources that a control plane may send.
    pub fn limits(mut self, limits: XdsLimits) -> XdsClientBuilder {
        self.limits = limits;
        self
    }

    /// Variant of the transport protocol; state of the world unless set.
    pub fn variant(mut self, variant: XdsVariant) -> XdsClientBuilder {
        self.variant = variant;
        self
    }

    /// Sends a keepalive ping after `time` without data from a control plane, and closes the connection if no data
    /// follows within `timeout`. 5 minutes and 20 seconds unless set.
    pub fn keepalive(mut self, time: Duration, timeout: Duration) -> XdsClientBuilder {
        self.keepalive = KeepaliveParams { time, timeout, ..self.keepalive };
        self
    }

    /// Grace period of a deleted cluster, route configuration or endpoint resource that another resource still names.
    /// 1 second by default; zero disables it.
    ///
    /// Control planes such as istiod delete a cluster before they move the routes away from it, and calls must not fail
    /// meanwhile. When the period ends, calls to the cluster fail with `UNAVAILABLE` (A53). Deleted listeners, and
    /// resources of servers with the feature `fail_on_data_errors`, have no such period.
    pub fn deletion_grace(mut self, grace: Duration) -> XdsClientBuilder {
        self.deletion_grace = grace;
        self
    }

    /// HTTP/2 implementation of streams to control planes; see [`Http2Implementation`].
    pub fn http2(mut self, implementation: Http2Implementation) -> XdsClientBuilder {
        self.http2 = implementation;
        self
    }

    /// Opens the byte streams to control planes. It is called on the client's own thread.
    pub fn connector(mut self, connector: impl Connector) -> XdsClientBuilder {
        self.connector = Arc::new(connector);
        self
    }

    /// Starts a client that shares nothing with others, even if their bootstraps are equal.
    pub fn build(self) -> XdsClient {
        self.start(false, &mut clients())
    }

    pub(super) fn start(self, is_shared: bool, clients: &mut Vec<Weak<XdsClientInner>>) -> XdsClient {
        for warning in self.bootstrap.warnings() {
            tracing::warn!(node = self.bootstrap.node.id, "bootstrap: {warning}");
        }
        let (commands, received) = mpsc::unbounded_channel();
        let bootstrap = Arc::new(self.bootstrap.clone());
        let load = Arc::<LoadStore>::default();
        let worker_status = Arc::<WorkerStatus>::default();
        if let Err(error) = self.spawn(bootstrap.clone(), load.clone(), worker_status.clone(), received) {
            // The client is returned without a worker. Its calls and subscriptions then fail with
            // `XdsErrorKind::Gone`.
            tracing::error!(%error, "failed to spawn the xDS client thread");
        }
        let next_key = AtomicU64::new(0);
        let shared =
            Arc::new(XdsClientInner { bootstrap, commands, load, worker_status, is_shared, next_key });
        clients.retain(|client| client.strong_count() > 0);
        clients.push(Arc::downgrade(&shared));
        XdsClient { shared }
    }

    /// Starts the thread. It ends when the last sender of commands is dropped.
    fn spawn(
        self,
        bootstrap: Arc<Bootstrap>,
        load: Arc<LoadStore>,
        worker_status: Arc<WorkerStatus>,
        commands: mpsc::UnboundedReceiver<WorkerCommand>,
    ) -> io::Result<()> {
        // Built here and not on the thread, so that a failure is returned.
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let rng = || Rng::from_entropy(entropy::fresh());
        let response_bytes = self.limits.response_bytes;
        let parser = ResourceParser {
            registry: self.registry,
            converters: self.converters,
            limits: self.limits,
            certificate_providers: bootstrap.certificate_providers.keys().cloned().collect(),
        };
        let reporter = LrsClient::new(bootstrap.node.clone(), load, rng());
        let client = AdsClient::new(bootstrap.clone(), parser, self.variant, rng())
            .with_deletion_grace(self.deletion_grace);
        let http2 = Http2Config {
            implementation: self.http2,
            keepalive: Some(self.keepalive),
            ..Http2Config::default()
        };
        let dialer = XdsDialer::new(self.connector, http2);
        let worker = move || {
            runtime.block_on(
                XdsWorker::new(bootstrap, client, reporter, worker_status, dialer, response_bytes)
                    .run(commands),
            );
            // A slow DNS lookup must not delay the end of the thread.
            runtime.shutdown_background();
        };
        thread::Builder::new().name("evenkeel-xds".to_owned()).spawn(worker).map(drop)
    }
}

impl fmt::Debug for XdsClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XdsClientBuilder").field("bootstrap", &self.bootstrap).finish_non_exhaustive()
    }
}
