//! [`ChannelBuilder`]: the settings of a channel, their validation, and the start of its driver.
//!
//! Every invalid setting is reported by [`ChannelBuilder::build`], never by a call. Counters that the gRFCs define
//! per process (A32, A33) are statics here, shared by all channels. The work itself is left to the driver.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use evenkeel_core::{Backoff, CallCounters, Endpoint, Endpoints, Registry};
use evenkeel_xds::bootstrap::Bootstrap;
use evenkeel_xds::routing::ActiveFaults;
use evenkeel_xds::target::{ChannelTarget, TargetKind};
use http::HeaderValue;
use http::uri::Authority;
use tokio::sync::mpsc;

use crate::call::InFlightCalls;
use crate::call::retry::RetryThrottle;
use crate::channel::driver::{ChannelDriver, DriverConfig};
use crate::channel::snapshot::SnapshotPublisher;
use crate::channel::{Channel, ChannelInner, DefaultHeaders};
use crate::credentials::{CertificateProviders, Credentials};
use crate::entropy::{self, Entropy};
use crate::policy::PolicyConfig;
use crate::resolver::ResolverConfig;
use crate::resolver::service_config::ServiceConfig;
use crate::resolver::xds::XdsClient;
use crate::telemetry::metrics::ChannelMetrics;
use crate::text::quoted;
use crate::transport::connection::Http2Config;
use crate::transport::http2::Http2Implementation;
use crate::transport::keepalive::KeepaliveParams;
use crate::transport::{Connector, SocketConnector, TcpKeepaliveParams};

/// Calls in flight per cluster, over all channels of the process (A32).
static COUNTERS: LazyLock<Arc<CallCounters>> = LazyLock::new(Arc::default);

/// Injected faults, over all channels of the process (A33).
static FAULTS: LazyLock<Arc<ActiveFaults>> = LazyLock::new(Arc::default);

/// Default idle timeout: time without calls after which a channel enters IDLE (A62).
const IDLE_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Largest flow-control window that HTTP/2 allows (RFC 9113, section 6.9.1).
const MAX_WINDOW: u32 = (1 << 31) - 1;

/// Settings of a channel, created by [`Channel::builder`].
///
/// ```no_run
/// use std::time::Duration;
/// use evenkeel::{Channel, Credentials, policy};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let channel = Channel::builder("dns:///orders.prod:50051")
///     .credentials(Credentials::tls().build()?)
///     .policy(policy::round_robin())
///     .keepalive(Duration::from_secs(60), Duration::from_secs(20))
///     .build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a builder does nothing until `build`"]
pub struct ChannelBuilder {
    target: String,
    service_config: Option<String>,
    policy: Option<PolicyConfig>,
    xds: XdsSource,
    registry: Option<Registry>,
    /// `None` for the default, which depends on the target and the bootstrap.
    credentials: Option<Credentials>,
    connector: Option<Arc<dyn Connector>>,
    tcp_keepalive: TcpKeepaliveParams,
    authority: Option<String>,
    user_agent: Option<String>,
    timeout: Option<Duration>,
    concurrency_limit: Option<usize>,
    http2: Http2Config,
    keepalive_without_calls: bool,
    backoff: Backoff,
    attempt_delay: Duration,
    idle_timeout: Option<Duration>,
    seed: Option<u64>,
    metrics: ChannelMetrics,
}

/// Source of the xDS client.
#[derive(Clone)]
enum XdsSource {
    Environment,
    File(PathBuf),
    Bootstrap(Box<Bootstrap>),
    Client(XdsClient),
}

impl ChannelBuilder {
    pub(crate) fn new(target: String) -> ChannelBuilder {
        ChannelBuilder {
            target,
            service_config: None,
            policy: None,
            xds: XdsSource::Environment,
            registry: None,
            credentials: None,
            connector: None,
            tcp_keepalive: TcpKeepaliveParams::default(),
            authority: None,
            user_agent: None,
            timeout: None,
            concurrency_limit: None,
            http2: Http2Config::default(),
            keepalive_without_calls: false,
            backoff: Backoff::default(),
            attempt_delay: Duration::from_millis(250),
            idle_timeout: Some(IDLE_TIMEOUT),
            seed: None,
            metrics: ChannelMetrics::default(),
        }
    }

    /// gRPC's service config as JSON: load balancing policy, timeouts, retries. Without it, the policy is
    /// `pick_first`, as in other gRPC implementations.
    ///
    /// Setting it for an xDS target is an error: there, routes and clusters of the control plane define all of this.
    pub fn service_config(mut self, json: impl Into<String>) -> ChannelBuilder {
        self.service_config = Some(json.into());
        self
    }

    /// Load-balancing policy, in place of one in the [service config](ChannelBuilder::service_config); `pick_first`
    /// unless set. See [`policy`](crate::policy) for all policies and their settings.
    ///
    /// Setting it for an xDS target is an error: there, clusters of the control plane define their policies. So is
    /// setting it beside a service config that names a policy.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), evenkeel::BuildError> {
    /// use evenkeel::{Channel, policy};
    ///
    /// let channel = Channel::builder("dns:///orders.prod:50051")
    ///     .policy(policy::least_request().choice_count(3))
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn policy(mut self, policy: impl Into<PolicyConfig>) -> ChannelBuilder {
        self.policy = Some(policy.into());
        self
    }

    /// Bootstrap for xDS targets, in place of the one in the environment. Channels with equal bootstraps share one
    /// xDS client.
    pub fn bootstrap(mut self, bootstrap: Bootstrap) -> ChannelBuilder {
        self.xds = XdsSource::Bootstrap(Box::new(bootstrap));
        self
    }

    /// Path of the bootstrap file for xDS targets, in place of the one that the environment names.
    pub fn bootstrap_file(mut self, file: impl Into<PathBuf>) -> ChannelBuilder {
        self.xds = XdsSource::File(file.into());
        self
    }

    /// xDS client for xDS targets, in place of the shared one. Use it for a private client or one with other
    /// settings.
    pub fn xds_client(mut self, client: XdsClient) -> ChannelBuilder {
        self.xds = XdsSource::Client(client);
        self
    }

    /// Load balancing policies that configs may name, including the application's own. An xDS target then uses an xDS
    /// client of its own, unless [`ChannelBuilder::xds_client`] sets one.
    pub fn registry(mut self, registry: Registry) -> ChannelBuilder {
        self.registry = Some(registry);
        self
    }

    /// Credentials for connections to endpoints. The default is plaintext, or [`Credentials::xds`] with a plaintext
    /// fallback if the target is an `xds:` one and its bootstrap has `certificate_providers`.
    ///
    /// TLS settings of clusters apply only with [`Credentials::xds`]. With plaintext credentials, the channel logs a
    /// warning for each cluster that has some.
    pub fn credentials(mut self, credentials: Credentials) -> ChannelBuilder {
        self.credentials = Some(credentials);
        self
    }

    /// Opens connections with this connector in place of the operating system's sockets.
    pub fn connector(mut self, connector: impl Connector) -> ChannelBuilder {
        self.connector = Some(Arc::new(connector));
        self
    }

    /// `:authority` of calls; taken from the target unless set. With TLS, it is also the name that certificates must
    /// be valid for. With a control plane, it also selects the virtual host.
    pub fn authority(mut self, authority: impl Into<String>) -> ChannelBuilder {
        self.authority = Some(authority.into());
        self
    }

    /// Prefix of the `user-agent` header, placed before the library's own name.
    pub fn user_agent(mut self, name: impl Into<String>) -> ChannelBuilder {
        self.user_agent = Some(name.into());
        self
    }

    /// Maximum duration of every call, from its start to the end of its response; none unless set. It covers the
    /// time that a call waits, its retries and its whole response, so it also ends long streams.
    ///
    /// A deadline of the request (`Request::set_timeout`), of the service config or of the route may end a call
    /// earlier: the shortest applies.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), evenkeel::BuildError> {
    /// use std::time::Duration;
    ///
    /// let channel =
    ///     evenkeel::Channel::builder("dns:///orders.prod:50051").timeout(Duration::from_secs(5)).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> ChannelBuilder {
        self.timeout = Some(timeout);
        self
    }

    /// Maximum number of calls that the channel and its clones run at the same time; none unless set. A call runs
    /// from its start to the end of its response, or until it is dropped.
    ///
    /// Further calls wait in their order, until their deadline. They count as calls in flight in statistics and for
    /// [`ChannelBuilder::idle_timeout`].
    pub fn concurrency_limit(mut self, maximum: usize) -> ChannelBuilder {
        self.concurrency_limit = Some(maximum);
        self
    }

    /// Maximum time for a connection attempt, up to receipt of the peer's HTTP/2 SETTINGS; 20 s unless set. An
    /// attempt may take longer where its back-off is longer.
    pub fn connect_timeout(mut self, timeout: Duration) -> ChannelBuilder {
        self.backoff.min_connect_timeout = timeout;
        self
    }

    /// Back-off between connection attempts to an endpoint; gRPC's unless set: 1 s, times 1.6, at most 120 s.
    pub fn backoff(mut self, backoff: Backoff) -> ChannelBuilder {
        self.backoff = backoff;
        self
    }

    /// Connection attempt delay between the addresses of one endpoint (Happy Eyeballs, A61): 250 ms unless set,
    /// clamped to 100 ms..2 s.
    pub fn attempt_delay(mut self, delay: Duration) -> ChannelBuilder {
        self.attempt_delay = delay;
        self
    }

    /// Sends a keepalive ping after `time` without data from the peer, and closes the connection if no data follows
    /// within `timeout` (A8). Off unless set. Servers may reject pings more frequent than one in 5 minutes.
    pub fn keepalive(mut self, time: Duration, timeout: Duration) -> ChannelBuilder {
        self.http2.keepalive = Some(KeepaliveParams { time, timeout, without_calls: false });
        self
    }

    /// Sets whether [`ChannelBuilder::keepalive`] also sends pings while no calls are in flight; false unless set.
    pub fn keepalive_without_calls(mut self, also: bool) -> ChannelBuilder {
        self.keepalive_without_calls = also;
        self
    }

    /// Sends TCP keepalive probes on idle connections to endpoints, after this time without data. Off unless set. The
    /// operating system sends them, so they also reach peers that reject HTTP/2 pings; they detect a peer that has
    /// vanished, but not one that hangs. See [`ChannelBuilder::keepalive`].
    ///
    /// Whole seconds apply. It is an error together with [`ChannelBuilder::connector`], whose sockets are not the
    /// channel's.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), evenkeel::BuildError> {
    /// use std::time::Duration;
    ///
    /// let channel = evenkeel::Channel::builder("dns:///orders.prod:50051")
    ///     .tcp_keepalive(Duration::from_secs(60))
    ///     .tcp_keepalive_interval(Duration::from_secs(10))
    ///     .tcp_keepalive_retries(3)
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn tcp_keepalive(mut self, time: impl Into<Option<Duration>>) -> ChannelBuilder {
        self.tcp_keepalive.time = time.into();
        self
    }

    /// Time between two TCP keepalive probes; the operating system's unless set. Turns probes on, like
    /// [`ChannelBuilder::tcp_keepalive`].
    pub fn tcp_keepalive_interval(mut self, interval: impl Into<Option<Duration>>) -> ChannelBuilder {
        self.tcp_keepalive.interval = interval.into();
        self
    }

    /// Number of unanswered TCP keepalive probes after which a connection is closed; the operating system's unless
    /// set. Turns probes on, like [`ChannelBuilder::tcp_keepalive`].
    pub fn tcp_keepalive_retries(mut self, retries: impl Into<Option<u32>>) -> ChannelBuilder {
        self.tcp_keepalive.retries = retries.into();
        self
    }

    /// HTTP/2 implementation of this channel's connections. Streams to a control plane have their own setting:
    /// [`XdsClientBuilder::http2`](crate::XdsClientBuilder::http2).
    ///
    /// ```
    /// # #[cfg(feature = "h2")]
    /// # fn example() -> Result<(), evenkeel::BuildError> {
    /// use evenkeel::{Channel, Http2Implementation};
    ///
    /// let channel = Channel::builder("dns:///orders.prod:50051").http2(Http2Implementation::H2).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn http2(mut self, implementation: Http2Implementation) -> ChannelBuilder {
        self.http2.implementation = implementation;
        self
    }

    /// Flow-control window of a stream: maximum number of unread bytes of one call; 2 MiB unless set.
    pub fn stream_window(mut self, bytes: u32) -> ChannelBuilder {
        self.http2.settings.stream_window = bytes;
        self
    }

    /// Flow-control window of a connection: maximum number of bytes in flight from an endpoint on all calls; 5 MiB
    /// unless set.
    ///
    /// The window is returned on receipt, so calls that are not read do not block the others. Memory is bounded by
    /// [`ChannelBuilder::stream_window`].
    pub fn connection_window(mut self, bytes: u32) -> ChannelBuilder {
        self.http2.settings.connection_window = bytes;
        self
    }

    /// Maximum size of an HTTP/2 frame that endpoints may send: 16,384 (unless set) to 16,777,215 bytes.
    pub fn max_frame_size(mut self, bytes: u32) -> ChannelBuilder {
        self.http2.settings.max_frame_size = bytes;
        self
    }

    /// Maximum size of the headers or trailers that an endpoint may send; 16 KiB unless set.
    pub fn max_header_list_size(mut self, bytes: u32) -> ChannelBuilder {
        self.http2.settings.max_header_list_size = bytes;
        self
    }

    /// Time without calls after which the channel closes its connections and enters IDLE (A62). 30 minutes unless
    /// set; `None` disables it.
    pub fn idle_timeout(mut self, timeout: impl Into<Option<Duration>>) -> ChannelBuilder {
        self.idle_timeout = timeout.into();
        self
    }

    /// Records the channel's metrics with these instruments.
    #[cfg(feature = "otel")]
    pub fn metrics(mut self, metrics: &crate::OtelMetrics) -> ChannelBuilder {
        self.metrics = metrics.into();
        self
    }

    /// Derives every random choice from this seed and starts weighted schedules at their beginning, for tests.
    pub fn seed(mut self, seed: u64) -> ChannelBuilder {
        self.seed = Some(seed);
        self
    }

    /// Builds the channel and starts its driver. The channel connects on its first call, or by [`Channel::connect`].
    ///
    /// # Errors
    ///
    /// Returns an error if the target, the authority, the bootstrap, the service config or an HTTP/2 setting is
    /// invalid. Also fails outside of a tokio runtime, which the channel's tasks need.
    pub fn build(mut self) -> Result<Channel, BuildError> {
        let runtime = tokio::runtime::Handle::try_current()
            .map_err(|_| BuildError::new("a channel must be built within a tokio runtime, found none"))?;
        let target = ChannelTarget::parse(&self.target).map_err(BuildError::from_error)?;
        self.check_http2()?;
        if self.timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(BuildError::new("timeout: expected a duration above zero"));
        }
        if self.concurrency_limit == Some(0) {
            return Err(BuildError::new("concurrency_limit: expected at least 1, found 0"));
        }
        let connector = self.socket_connector()?;
        let service_config = self.read_service_config(&target)?;
        let source = self.source(&target, &service_config)?;
        let authority = match &self.authority {
            Some(given) => Authority::try_from(given.as_str())
                .map_err(|error| BuildError::new(format!("authority {given:?}: {error}")))?,
            None => default_authority(&target)?,
        };
        let bootstrap = match &source {
            ResolverConfig::Xds { client, .. } => Some(client.bootstrap()),
            _ => None,
        };
        let credentials = self.credentials.take().unwrap_or_else(|| match bootstrap {
            Some(bootstrap) if !bootstrap.certificate_providers.is_empty() => {
                Credentials::xds(Credentials::insecure())
            }
            _ => Credentials::insecure(),
        });
        let providers = bootstrap
            .filter(|_| credentials.is_per_cluster())
            .map(|bootstrap| Arc::new(CertificateProviders::from_bootstrap(bootstrap)));
        let default_headers = DefaultHeaders::new(authority.clone(), self.user_agent_header()?);
        let target_uri: Arc<str> = self.target.into();
        let metrics = self.metrics.for_target(target_uri.clone());
        let settings = DriverConfig {
            target: target_uri.clone(),
            credentials,
            providers,
            source,
            connector,
            default_headers: default_headers.clone(),
            metrics: metrics.clone(),
            host: if self.authority.is_some() { authority.host().into() } else { target.host().into() },
            http2: self.http2,
            backoff: self.backoff,
            attempt_delay: self.attempt_delay,
            idle_timeout: self.idle_timeout,
            counters: COUNTERS.clone(),
            seed: self.seed,
        };
        let (commands, received) = mpsc::unbounded_channel();
        let published = Arc::new(SnapshotPublisher::new());
        let calls = Arc::new(InFlightCalls::new(self.concurrency_limit));
        // The driver holds no `ChannelInner`: it ends when the last channel drops the sender of commands.
        runtime.spawn(ChannelDriver::new(settings, published.clone(), calls.clone(), received).run());
        let throttle = service_config.throttling().map(|settings| Arc::new(RetryThrottle::new(settings)));
        let inner = ChannelInner {
            target: target_uri,
            published,
            calls,
            commands,
            default_headers,
            service_config: Arc::new(service_config),
            throttle,
            timeout: self.timeout,
            faults: FAULTS.clone(),
            metrics,
            entropy: self.seed.map_or(Entropy::System, |seed| Entropy::Seeded(seed.into())),
        };
        let inner = Arc::new(inner);
        #[cfg(feature = "admin")]
        crate::admin::register_channel(&inner);
        Ok(Channel { inner })
    }

    fn check_http2(&mut self) -> Result<(), BuildError> {
        if let Some(keepalive) = &mut self.http2.keepalive {
            keepalive.without_calls = self.keepalive_without_calls;
            if keepalive.time.is_zero() || keepalive.timeout.is_zero() {
                return Err(BuildError::new("keepalive: expected a time and a timeout above zero"));
            }
        }
        let size = self.http2.settings.max_frame_size;
        if !(16_384..=16_777_215).contains(&size) {
            return Err(BuildError::new(format!("max_frame_size {size}: expected 16384 to 16777215")));
        }
        if self.http2.settings.stream_window > MAX_WINDOW
            || self.http2.settings.connection_window > MAX_WINDOW
        {
            return Err(BuildError::new(format!("HTTP/2 windows: expected at most {MAX_WINDOW} bytes")));
        }
        Ok(())
    }

    /// Returns the application's connector, or else the one for sockets.
    fn socket_connector(&mut self) -> Result<Arc<dyn Connector>, BuildError> {
        let keepalive = self.tcp_keepalive.socket_option().map_err(BuildError::new)?;
        match self.connector.take() {
            Some(_) if keepalive.is_some() => Err(BuildError::new(
                "tcp_keepalive: is not supported with a connector of the application, which opens the sockets",
            )),
            Some(connector) => Ok(connector),
            None => Ok(Arc::new(SocketConnector::with_keepalive(keepalive))),
        }
    }

    fn read_service_config(&self, target: &ChannelTarget) -> Result<ServiceConfig, BuildError> {
        let is_xds = matches!(target.kind(), TargetKind::Xds { .. });
        if is_xds && self.service_config.is_some() {
            return Err(BuildError::new(format!(
                "target {:?}: a service config is not supported with a control plane; its routes and clusters apply",
                self.target
            )));
        }
        if is_xds && self.policy.is_some() {
            return Err(BuildError::new(format!(
                "target {:?}: a policy is not supported with a control plane; its clusters define their policies",
                self.target
            )));
        }
        let registry = self.registry.clone().unwrap_or_else(Registry::standard);
        let json = self.service_config.as_deref().unwrap_or("{}");
        let policy = match &self.policy {
            None => None,
            Some(policy) => {
                let list =
                    policy.to_list().map_err(|problem| BuildError::new(format!("policy: {problem}")))?;
                let parsed = registry.parse(&list);
                Some(parsed.map_err(|error| BuildError::new(format!("policy: {error}")))?)
            }
        };
        let config = ServiceConfig::parse(json, policy, &registry).map_err(BuildError::from_error)?;
        for warning in config.warnings() {
            tracing::warn!("service config: {warning}");
        }
        Ok(config)
    }

    fn source(
        &mut self,
        target: &ChannelTarget,
        service_config: &ServiceConfig,
    ) -> Result<ResolverConfig, BuildError> {
        Ok(match target.kind() {
            TargetKind::Xds { .. } => {
                let channel_id = self.seed.unwrap_or_else(entropy::fresh);
                let client = self.client()?;
                // Report an invalid target or xDS authority from `build`, not from the first call.
                client.check(&self.target).map_err(BuildError::from_error)?;
                ResolverConfig::Xds {
                    client,
                    target: self.target.as_str().into(),
                    authority: self.authority.as_deref().map(Into::into),
                    channel_id,
                }
            }
            TargetKind::Dns { host, port } => ResolverConfig::Dns {
                host: host.as_str().into(),
                port: *port,
                config: service_config.policy().clone(),
            },
            TargetKind::Fixed(addresses) => ResolverConfig::Fixed {
                endpoints: Endpoints::list(addresses.iter().cloned().map(Endpoint::at)),
                config: service_config.policy().clone(),
            },
        })
    }

    fn client(&mut self) -> Result<XdsClient, BuildError> {
        let bootstrap = match &self.xds {
            XdsSource::Client(client) => return Ok(client.clone()),
            XdsSource::Bootstrap(bootstrap) => (**bootstrap).clone(),
            XdsSource::File(file) => {
                let text = std::fs::read_to_string(file)
                    .map_err(|error| BuildError::new(format!("bootstrap {}: {error}", file.display())))?;
                Bootstrap::from_json(&text)
                    .map_err(|error| BuildError::new(format!("{}: {error}", file.display())))?
            }
            XdsSource::Environment => {
                Bootstrap::load(|name| std::env::var(name).ok(), |file| std::fs::read_to_string(file))
                    .map_err(BuildError::from_error)?
            }
        };
        Ok(match self.registry.take() {
            Some(registry) => XdsClient::builder(bootstrap).registry(registry).build(),
            None => XdsClient::shared(bootstrap),
        })
    }

    fn user_agent_header(&self) -> Result<HeaderValue, BuildError> {
        const OURS: &str = concat!("evenkeel/", env!("CARGO_PKG_VERSION"));
        let Some(given) = &self.user_agent else { return Ok(HeaderValue::from_static(OURS)) };
        HeaderValue::try_from(format!("{given} {OURS}"))
            .map_err(|_| BuildError::new(format!("user agent {given:?}: expected visible ASCII characters")))
    }
}

/// Returns the `:authority` that a target implies. An xDS name may be invalid as one.
fn default_authority(target: &ChannelTarget) -> Result<Authority, BuildError> {
    let authority = target.authority();
    Authority::try_from(authority).map_err(|_| {
        BuildError::new(format!(
            "authority {}: expected host or host:port, found the path of the target; set an authority for the channel",
            quoted(authority)
        ))
    })
}

impl fmt::Debug for ChannelBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelBuilder").field("target", &self.target).finish_non_exhaustive()
    }
}

/// Error of [`ChannelBuilder::build`]: an invalid setting or bootstrap. The author of the settings can fix it.
#[derive(Debug)]
pub struct BuildError {
    text: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl BuildError {
    fn new(text: impl Into<String>) -> BuildError {
        BuildError { text: text.into(), source: None }
    }

    fn from_error(error: impl std::error::Error + Send + Sync + 'static) -> BuildError {
        BuildError { text: error.to_string(), source: Some(Box::new(error)) }
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| &**source as _)
    }
}
