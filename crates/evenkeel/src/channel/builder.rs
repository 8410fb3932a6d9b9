//! Settings of a channel.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use evenkeel_core::{Backoff, CallCounters, Endpoint, Endpoints, Registry};
use evenkeel_xds::bootstrap::Bootstrap;
use evenkeel_xds::routing::ActiveFaults;
use http::HeaderValue;
use http::uri::Authority;
use tokio::sync::mpsc;

use crate::call::InFlightCalls;
use crate::call::retry::RetryThrottle;
use crate::channel::driver::{ChannelDriver, DriverConfig, ResolverConfig};
use crate::channel::snapshot::SnapshotPublisher;
use crate::channel::{Channel, ChannelInner, DefaultHeaders};
use crate::credentials::{CertificateProviders, Credentials};
use crate::entropy::{self, Entropy};
use crate::resolver::service_config::ServiceConfig;
use crate::resolver::target::{ChannelTarget, TargetKind};
use crate::resolver::xds::XdsClient;
use crate::telemetry::metrics::ChannelMetrics;
use crate::transport::connection::{Http2Config, KeepaliveParams};
use crate::transport::http2::Http2Implementation;
use crate::transport::{Connector, SocketConnector};

/// Calls in flight per cluster, over all channels of the process (A32).
static COUNTERS: LazyLock<Arc<CallCounters>> = LazyLock::new(Arc::default);

/// Injected faults, over all channels of the process (A33).
static FAULTS: LazyLock<Arc<ActiveFaults>> = LazyLock::new(Arc::default);

/// How long a channel without calls keeps its connections (A62).
const IDLE_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// The largest window that HTTP/2 knows.
const MAX_WINDOW: u32 = (1 << 31) - 1;

/// Settings of a channel, made by [`Channel::builder`].
///
/// ```no_run
/// use std::time::Duration;
/// use evenkeel::{Channel, Credentials};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let channel = Channel::builder("dns:///orders.prod:50051")
///     .credentials(Credentials::tls().build()?)
///     .service_config(r#"{"loadBalancingConfig": [{"round_robin": {}}]}"#)
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
    xds: XdsSource,
    registry: Option<Registry>,
    credentials: Credentials,
    connector: Arc<dyn Connector>,
    authority: Option<String>,
    user_agent: Option<String>,
    http2: Http2Config,
    keepalive_without_calls: bool,
    backoff: Backoff,
    attempt_delay: Duration,
    idle_timeout: Option<Duration>,
    seed: Option<u64>,
    metrics: ChannelMetrics,
}

/// Where the xDS client comes from.
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
            xds: XdsSource::Environment,
            registry: None,
            credentials: Credentials::insecure(),
            connector: Arc::new(SocketConnector),
            authority: None,
            user_agent: None,
            http2: Http2Config::default(),
            keepalive_without_calls: false,
            backoff: Backoff::default(),
            attempt_delay: Duration::from_millis(250),
            idle_timeout: Some(IDLE_TIMEOUT),
            seed: None,
            metrics: ChannelMetrics::default(),
        }
    }

    /// gRPC's service config, as JSON: the policy that balances, timeouts, retries. For targets without a control plane; with
    /// one, its routes and clusters say all that, and this is an error. Without it the policy is `pick_first`, as gRPC has it.
    pub fn service_config(mut self, json: impl Into<String>) -> ChannelBuilder {
        self.service_config = Some(json.into());
        self
    }

    /// The bootstrap of xDS targets, instead of the one in the environment. Channels with equal bootstraps share one xDS client.
    pub fn bootstrap(mut self, bootstrap: Bootstrap) -> ChannelBuilder {
        self.xds = XdsSource::Bootstrap(Box::new(bootstrap));
        self
    }

    /// The file of the bootstrap of xDS targets, instead of the one that the environment names.
    pub fn bootstrap_file(mut self, file: impl Into<PathBuf>) -> ChannelBuilder {
        self.xds = XdsSource::File(file.into());
        self
    }

    /// The xDS client for xDS targets: one that this channel has for itself, or that has settings of its own.
    pub fn xds_client(mut self, client: XdsClient) -> ChannelBuilder {
        self.xds = XdsSource::Client(client);
        self
    }

    /// The policies that configs may name, with those of the application. An xDS target then has an xDS client of its own,
    /// unless [`ChannelBuilder::xds_client`] gives it one.
    pub fn registry(mut self, registry: Registry) -> ChannelBuilder {
        self.registry = Some(registry);
        self
    }

    /// How endpoints are talked to; in the clear unless set. What a control plane says about the security of its clusters
    /// counts with [`Credentials::xds`] only.
    pub fn credentials(mut self, credentials: Credentials) -> ChannelBuilder {
        self.credentials = credentials;
        self
    }

    /// Opens connections in another way than by the sockets of the operating system.
    pub fn connector(mut self, connector: impl Connector) -> ChannelBuilder {
        self.connector = Arc::new(connector);
        self
    }

    /// The `:authority` of calls, and with TLS the name that certificates must be valid for; what the target says unless set.
    /// With a control plane it also chooses the virtual host.
    pub fn authority(mut self, authority: impl Into<String>) -> ChannelBuilder {
        self.authority = Some(authority.into());
        self
    }

    /// Stands before our own name in the `user-agent` header.
    pub fn user_agent(mut self, name: impl Into<String>) -> ChannelBuilder {
        self.user_agent = Some(name.into());
        self
    }

    /// How long an attempt to connect may take, up to the peer's HTTP/2 settings; 20 s unless set. Later attempts may take as
    /// long as their back-off.
    pub fn connect_timeout(mut self, timeout: Duration) -> ChannelBuilder {
        self.backoff.min_connect_timeout = timeout;
        self
    }

    /// How long to wait between attempts to connect to an endpoint; gRPC's unless set: 1 s, times 1.6, at most 120 s.
    pub fn backoff(mut self, backoff: Backoff) -> ChannelBuilder {
        self.backoff = backoff;
        self
    }

    /// The delay between attempts to connect to several addresses of one endpoint (Happy Eyeballs, A61): 250 ms unless set, held
    /// to 100 ms..2 s.
    pub fn attempt_delay(mut self, delay: Duration) -> ChannelBuilder {
        self.attempt_delay = delay;
        self
    }

    /// Asks a peer that was silent for `time` whether it is there, and gives it up after `timeout` (A8). Off unless set;
    /// servers may object to pings more often than every 5 minutes.
    pub fn keepalive(mut self, time: Duration, timeout: Duration) -> ChannelBuilder {
        self.http2.keepalive = Some(KeepaliveParams { time, timeout, without_calls: false });
        self
    }

    /// Whether [`ChannelBuilder::keepalive`] also asks while there are no calls; it does not unless set.
    pub fn keepalive_without_calls(mut self, also: bool) -> ChannelBuilder {
        self.keepalive_without_calls = also;
        self
    }

    /// The HTTP/2 implementation of this channel's connections; the default unless set. Streams to a control plane have their
    /// own: see [`XdsClientBuilder::http2`](crate::XdsClientBuilder::http2).
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

    /// How many bytes an endpoint may send on one call before they are read; 2 MiB unless set.
    pub fn stream_window(mut self, bytes: u32) -> ChannelBuilder {
        self.http2.settings.stream_window = bytes;
        self
    }

    /// Maximum number of bytes in flight from an endpoint on all calls of a connection; 5 MiB unless set. They are returned on
    /// receipt, so that calls that are not read do not stop the others. Memory is bounded by [`ChannelBuilder::stream_window`].
    pub fn connection_window(mut self, bytes: u32) -> ChannelBuilder {
        self.http2.settings.connection_window = bytes;
        self
    }

    /// The largest HTTP/2 frame that endpoints may send: 16,384 (unless set) to 16,777,215 bytes.
    pub fn max_frame_size(mut self, bytes: u32) -> ChannelBuilder {
        self.http2.settings.max_frame_size = bytes;
        self
    }

    /// The most bytes of headers or trailers that an endpoint may send; 16 KiB unless set.
    pub fn max_header_list_size(mut self, bytes: u32) -> ChannelBuilder {
        self.http2.settings.max_header_list_size = bytes;
        self
    }

    /// How long a channel without calls keeps its connections; 30 minutes unless set (A62), `None` for ever.
    pub fn idle_timeout(mut self, timeout: impl Into<Option<Duration>>) -> ChannelBuilder {
        self.idle_timeout = timeout.into();
        self
    }

    /// Records what happens with these instruments.
    #[cfg(feature = "otel")]
    pub fn metrics(mut self, metrics: &crate::OtelMetrics) -> ChannelBuilder {
        self.metrics = metrics.into();
        self
    }

    /// Makes every random choice from this seed, and starts weighted orders at their beginning: for tests.
    pub fn seed(mut self, seed: u64) -> ChannelBuilder {
        self.seed = Some(seed);
        self
    }

    /// The channel. It connects when the first call comes, or by [`Channel::connect`].
    ///
    /// # Errors
    ///
    /// Whatever is wrong with the settings is said here, not by the first call: the target, the bootstrap, the service config.
    /// So is a call from outside of a tokio runtime, which the channel's tasks need.
    pub fn build(mut self) -> Result<Channel, BuildError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| {
            BuildError::new("a channel is made within a tokio runtime, and there is none here")
        })?;
        let target = ChannelTarget::parse(&self.target).map_err(BuildError::from_error)?;
        self.check_http2()?;
        let service_config = self.read_service_config(&target)?;
        let source = self.source(&target, &service_config)?;
        let authority = match &self.authority {
            Some(given) => Authority::try_from(given.as_str())
                .map_err(|error| BuildError::new(format!("authority {given:?}: {error}")))?,
            None => target.authority().map_err(BuildError::from_error)?,
        };
        let providers = match &source {
            ResolverConfig::Xds { client, .. } if self.credentials.is_per_cluster() => {
                Some(Arc::new(CertificateProviders::from_bootstrap(client.bootstrap())))
            }
            _ => None,
        };
        let default_headers = DefaultHeaders::new(authority.clone(), self.user_agent_header()?);
        let metrics = self.metrics.for_target(self.target.as_str().into());
        let settings = DriverConfig {
            source,
            credentials: self.credentials,
            providers,
            connector: self.connector,
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
        let calls = Arc::<InFlightCalls>::default();
        runtime.spawn(ChannelDriver::new(settings, published.clone(), calls.clone(), received).run());
        let throttle = service_config.throttling().map(|settings| Arc::new(RetryThrottle::new(settings)));
        let inner = ChannelInner {
            target: self.target.into(),
            published,
            calls,
            commands,
            default_headers,
            service_config: Arc::new(service_config),
            throttle,
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

    fn read_service_config(&self, target: &ChannelTarget) -> Result<ServiceConfig, BuildError> {
        if let (TargetKind::Xds { .. }, Some(_)) = (target.kind(), &self.service_config) {
            return Err(BuildError::new(format!(
                "target {:?}: with a control plane there is no service config; its routes and clusters say what holds",
                self.target
            )));
        }
        let registry = self.registry.clone().unwrap_or_else(Registry::standard);
        let json = self.service_config.as_deref().unwrap_or("{}");
        let config = ServiceConfig::parse(json, &registry).map_err(BuildError::from_error)?;
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
                // What is wrong with the target or its authority is said now.
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

impl fmt::Debug for ChannelBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("target", &self.target).finish_non_exhaustive()
    }
}

/// Why there is no channel. Whoever wrote the settings, or the bootstrap, can fix it.
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
