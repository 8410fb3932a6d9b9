//! Settings of a channel.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use evenkeel_core::{Backoff, CallCounters, Endpoint, Endpoints, Registry};
use evenkeel_xds::bootstrap::Bootstrap;
use evenkeel_xds::routing::ActiveFaults;
use http::HeaderValue;
use http::uri::{Authority, Scheme};
use tokio::sync::mpsc;

use crate::call::Calls;
use crate::channel::{Channel, Head, Inner};
use crate::connection::{Http2, Keepalive};
use crate::credentials::Credentials;
use crate::driver::{Driver, Settings, Source};
use crate::entropy::{self, Entropy};
use crate::retry::Throttle;
use crate::service_config::ServiceConfig;
use crate::snapshot::Published;
use crate::target::{Kind, Target};
use crate::transport::{Connector, Sockets};
use crate::xds::XdsClient;

/// Calls in flight per cluster, over all channels of the process (A32).
static COUNTERS: LazyLock<Arc<CallCounters>> = LazyLock::new(Arc::default);

/// Injected faults, over all channels of the process (A33).
static FAULTS: LazyLock<Arc<ActiveFaults>> = LazyLock::new(Arc::default);

/// How long a channel without calls keeps its connections (A62).
const IDLE_TIMEOUT: Duration = Duration::from_secs(30 * 60);

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
pub struct Builder {
    target: String,
    service_config: Option<String>,
    xds: XdsSource,
    registry: Registry,
    credentials: Credentials,
    connector: Arc<dyn Connector>,
    authority: Option<String>,
    user_agent: Option<String>,
    http2: Http2,
    keepalive_without_calls: bool,
    backoff: Backoff,
    attempt_delay: Duration,
    idle_timeout: Option<Duration>,
    seed: Option<u64>,
}

/// Where the xDS client comes from.
#[derive(Clone)]
enum XdsSource {
    Environment,
    File(PathBuf),
    Bootstrap(Box<Bootstrap>),
    Client(XdsClient),
}
