//! Steps of an xDS target: control plane, resources, endpoints.
//!
//! From the ADS stream on, the steps observe one real client and channel. The client's CSDS view shows their
//! progress.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use evenkeel::{Bootstrap, Channel, ConnectivityState, Credentials, Description, Registry, XdsClient};
use evenkeel_proto::envoy::admin::v3::ClientResourceStatus;
use evenkeel_proto::envoy::config::core::v3::{HealthStatus, Node};
use evenkeel_proto::envoy::config::endpoint::v3::{ClusterLoadAssignment, LbEndpoint};
use evenkeel_proto::envoy::service::status::v3::client_config::GenericXdsConfig;
use evenkeel_proto::prost::Message as _;
use evenkeel_proto::prost_types::value::Kind as ValueKind;
use evenkeel_xds::bootstrap::{ServerConfig, XdsTarget};
use evenkeel_xds::resource::{Resource, ResourceParser, ResourceType, RouteConfig, RouteSource, VirtualHost};
use tokio::time::{Instant, sleep};

use super::certificates::{self, CertificateReport};
use super::place::TargetAddress;
use super::reach::{self, PeerProtocol, PeerRole};
use super::report::{Diagnosis, DoctorReport};
use super::{DoctorArgs, EarlyExit, bootstrap, causes, endpoint_credentials, names};
use crate::ui::{self, CliExit, TerminalOutput};

/// Interval between two polls of the client's state.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Minimum age of a stream without a response that counts as open: a server may have nothing to send yet.
const OPEN_AFTER: Duration = Duration::from_millis(500);

/// Maximum number of endpoints probed when none is usable.
const MAX_PROBES: usize = 5;

pub(super) async fn run_checks(args: &DoctorArgs, report: &mut DoctorReport<'_>) -> Result<(), EarlyExit> {
    let (bootstrap, named) = match first_step(args, report)? {
        Ok(read) => read,
        Err(diagnosis) => return Err(report.stop(&diagnosis)?),
    };
    let servers = match named.listener.authority().and_then(|name| bootstrap.authorities.get(name)) {
        Some(authority) => authority.servers.clone(),
        None => bootstrap.servers.clone(),
    };
    let server = control_plane(&servers, args.wait, report).await?;
    let credentials = match endpoint_credentials(args) {
        Ok(credentials) => credentials,
        Err(diagnosis) => return Err(report.stop(&diagnosis)?),
    };
    let secured = credentials.is_some();
    // The cluster's security applies (A29), also without certificate providers: it may use the system's roots (A82).
    let credentials = Credentials::xds(credentials.unwrap_or_else(Credentials::insecure));
    let certificate_problems = certificates(&bootstrap, report)?;
    let client = XdsClient::builder(bootstrap.clone()).build();
    let channel = Channel::builder(&args.target)
        .xds_client(client.clone())
        .connect_timeout(args.wait)
        .credentials(credentials);
    let channel = match channel.build() {
        Ok(channel) => channel,
        Err(error) => return Err(report.stop(&unusable(error.to_string()))?),
    };
    channel.connect();
    let mut parser = ResourceParser::new(Registry::standard());
    parser.certificate_providers = bootstrap.certificate_providers.keys().cloned().collect();
    let session = DoctorSession {
        terminal: report.terminal,
        client,
        channel,
        server,
        parser,
        wait: args.wait,
        secured,
        certificate_problems,
    };
    match session.run_checks(&named, report).await? {
        Ok(()) => Ok(()),
        Err(diagnosis) => Err(report.stop(&diagnosis)?),
    }
}

/// Checks the files of certificate providers and returns the problems. A problem is not fatal: clusters may
/// not need the files.
fn certificates(bootstrap: &Bootstrap, report: &mut DoctorReport<'_>) -> Result<Vec<String>, EarlyExit> {
    let CertificateReport { usable, problems } =
        certificates::check(&bootstrap.certificate_providers, SystemTime::now());
    if !usable.is_empty() {
        report.passed("certs", &usable.join("; "))?;
    }
    for problem in &problems {
        report.warn(problem)?;
    }
    Ok(problems)
}

/// Reads the bootstrap and resolves the target against it.
fn first_step(
    args: &DoctorArgs,
    report: &mut DoctorReport<'_>,
) -> Result<Result<(Bootstrap, XdsTarget), Diagnosis>, EarlyExit> {
    let (bootstrap, origin) = match bootstrap::read(args.bootstrap.as_deref()) {
        Ok(read) => read,
        Err(diagnosis) => return Ok(Err(diagnosis)),
    };
    let named = match bootstrap.listener_name(&args.target) {
        Ok(named) => named,
        Err(error) => return Ok(Err(unusable(error.to_string()))),
    };
    report.passed("bootstrap", &format!("{origin}, node {:?}", bootstrap.node.id))?;
    for warning in bootstrap.warnings() {
        report.warn(&warning)?;
    }
    Ok(Ok((bootstrap, named)))
}

fn unusable(found: String) -> Diagnosis {
    Diagnosis::new("target", CliExit::Usage, found)
        .expected("a target of the bootstrap: xds:///name, or xds://AUTHORITY/name of an authority in it")
        .likely("a mistake in the target, or an authority that is not in the bootstrap")
        .next("correct the target, or add the authority to authorities of the bootstrap")
}

/// Connects to the first reachable control plane of the fallback list (A71).
async fn control_plane(
    servers: &[Arc<ServerConfig>],
    wait: Duration,
    report: &mut DoctorReport<'_>,
) -> Result<Arc<ServerConfig>, EarlyExit> {
    let mut last = None;
    for (i, server) in servers.iter().enumerate() {
        let reached = match bootstrap::credentials(server) {
            Err(diagnosis) => Err(diagnosis),
            Ok(credentials) => {
                let address = TargetAddress::parse(&server.uri);
                reach::connection_checks(
                    &server.uri,
                    &address,
                    credentials,
                    PeerRole::ControlPlane,
                    wait,
                    report,
                )
                .await?
            }
        };
        match reached {
            Ok(()) => return Ok(server.clone()),
            Err(diagnosis) if i + 1 < servers.len() => {
                report.failed(&diagnosis)?;
                report.warn(&format!(
                    "{} cannot be used; the next control plane is {}",
                    server.uri,
                    servers[i + 1].uri
                ))?;
            }
            Err(diagnosis) => last = Some(diagnosis),
        }
    }
    // Unreachable: a bootstrap has at least one control plane.
    let diagnosis = last.unwrap_or_else(|| unusable("no control plane for this authority".to_owned()));
    Err(report.stop(&diagnosis)?)
}

/// Client and channel under observation.
struct DoctorSession<'a> {
    terminal: &'a TerminalOutput,
    client: XdsClient,
    channel: Channel,
    server: Arc<ServerConfig>,
    parser: ResourceParser,
    wait: Duration,
    /// True if endpoints of clusters without their own security use TLS.
    secured: bool,
    /// Problems with the files of certificate providers.
    certificate_problems: Vec<String>,
}

type StepResult<T> = Result<Result<T, Diagnosis>, EarlyExit>;

/// Unwraps the result of a step, or returns its diagnosis from the enclosing function.
macro_rules! found {
    ($step:expr) => {
        match $step {
            Ok(found) => found,
            Err(diagnosis) => return Ok(Err(diagnosis)),
        }
    };
}

impl DoctorSession<'_> {
    async fn run_checks(&self, named: &XdsTarget, report: &mut DoctorReport<'_>) -> StepResult<()> {
        found!(self.stream(report).await?);
        let listener = BTreeSet::from([named.listener.as_str().to_owned()]);
        let listener = match self.resources(ResourceType::Listener, &listener).await {
            Ok(listener) => listener,
            Err(diagnosis) => {
                return Ok(Err(self.with_served_names(diagnosis, named.listener.as_str()).await));
            }
        };
        report.passed("LDS", &described(&listener))?;
        let routes = found!(self.routes(&listener, report).await?);
        let host = found!(virtual_host(&routes, &named.authority));
        let clusters: BTreeSet<_> = host.clusters.iter().map(ToString::to_string).collect();
        if clusters.is_empty() {
            report.skipped("CDS", "no route names a cluster; calls select it")?;
            return Ok(Ok(()));
        }
        let clusters = found!(self.resources(ResourceType::Cluster, &clusters).await);
        let is_secured = clusters.iter().any(|one| self.is_secured(one));
        let how = if is_secured { "; secured by the cluster's transport_socket" } else { "" };
        report.passed("CDS", &format!("{}{how}", described(&clusters)))?;
        if is_secured && self.client.bootstrap().certificate_providers.is_empty() {
            report.warn(
                "the cluster's TLS applies here, but not to a channel with default credentials: the bootstrap has no \
                 certificate_providers; set Credentials::xds",
            )?;
        }
        found!(self.endpoints(report).await?);
        self.connect(is_secured, report).await
    }

    /// Waits until the ADS stream is open.
    async fn stream(&self, report: &mut DoctorReport<'_>) -> StepResult<()> {
        let began = Instant::now();
        let opened = async {
            let mut open_since = None;
            loop {
                let tally = self.client.server_stats();
                if tally.iter().any(|tally| !tally.valid.is_empty() || !tally.invalid.is_empty()) {
                    return Ok("open");
                }
                if let Some(diagnosis) = self.stream_failure().await {
                    return Err(diagnosis);
                }
                if tally.iter().any(|tally| tally.connected) {
                    open_since.get_or_insert_with(Instant::now);
                }
                if open_since.is_some_and(|since| since.elapsed() >= OPEN_AFTER) {
                    return Ok("open, no response so far");
                }
                if began.elapsed() >= self.wait {
                    return Err(causes::no_stream("the stream does not open"));
                }
                sleep(POLL_INTERVAL).await;
            }
        };
        let found = found!(self.terminal.progress().during("opening the ADS stream", opened).await);
        report.passed("ADS", found)?;
        Ok(Ok(()))
    }

    /// Returns the diagnosis of a failed stream to the reachable server, unless a stream is connected.
    async fn stream_failure(&self) -> Option<Diagnosis> {
        let tally = self.client.server_stats();
        let is_connected = tally.iter().any(|tally| tally.connected);
        // An unreachable server before it in the list fails too, while the stream to this one is being opened.
        let failed = tally.iter().any(|tally| tally.failures > 0 && tally.server == self.server);
        if is_connected || !failed {
            return None;
        }
        let found = reach::failure_of(&self.channel).await;
        Some(causes::no_stream(&found.unwrap_or_else(|| "the stream ended".to_owned())))
    }

    /// Waits for these resources, and for all others of their type that the client subscribes to.
    async fn resources(
        &self,
        kind: ResourceType,
        names: &BTreeSet<String>,
    ) -> Result<Vec<GenericXdsConfig>, Diagnosis> {
        let what = format!("waiting for {kind}");
        let waited = async {
            let end = Instant::now() + self.wait;
            loop {
                let known = self.client_resources(kind).await;
                let is_there = |name: &String| known.iter().any(|one| one.name == *name);
                let is_open = known.iter().any(is_requested) || !names.iter().all(is_there);
                if let Some(bad) = known.iter().find(|one| !is_requested(one) && !is_good(one)) {
                    return Err(self.rejection(kind, bad));
                }
                if !is_open {
                    return Ok(known);
                }
                if let Some(diagnosis) = self.stream_failure().await {
                    return Err(diagnosis);
                }
                if Instant::now() >= end {
                    let silent = known.iter().find(|one| is_requested(one)).map(|one| one.name.clone());
                    return Err(self.no_response(kind, &silent.unwrap_or_default()));
                }
                sleep(POLL_INTERVAL).await;
            }
        };
        self.terminal.progress().during(&what, waited).await
    }

    /// Adds the names of other listeners that the control plane serves, if it lists them.
    async fn with_served_names(&self, mut diagnosis: Diagnosis, wanted: &str) -> Diagnosis {
        let node = &self.client.bootstrap().node;
        let is_refused = diagnosis.found.contains("only listeners of clients are supported");
        let names::ServedListeners { names, are_envoys } =
            names::nearest_listeners(wanted, &self.server, node).await;
        if is_refused || are_envoys {
            diagnosis = causes::envoy_listeners(diagnosis, is_grpc_node(node));
        }
        if !names.is_empty() && !names.iter().any(|name| name == wanted) {
            let _ = write!(diagnosis.found, "\nlisteners that it has: {}", ui::safe(&names.join(", ")));
        }
        diagnosis
    }

    async fn client_resources(&self, kind: ResourceType) -> Vec<GenericXdsConfig> {
        let status = self.client.status().await.unwrap_or_default();
        let of_kind = |one: &GenericXdsConfig| ResourceType::from_type_url(&one.type_url) == Some(kind);
        status.generic_xds_configs.into_iter().filter(of_kind).collect()
    }

    async fn routes(
        &self,
        listener: &[GenericXdsConfig],
        report: &mut DoctorReport<'_>,
    ) -> StepResult<Arc<RouteConfig>> {
        let Some(Resource::Listener(listener)) =
            listener.first().and_then(|one| self.parsed(ResourceType::Listener, one))
        else {
            return Ok(Err(unreadable(ResourceType::Listener)));
        };
        let name = match &listener.routes {
            RouteSource::Inline(routes) => {
                report.skipped("RDS", "the routes are in the listener")?;
                return Ok(Ok(routes.clone()));
            }
            RouteSource::Rds(name) => BTreeSet::from([name.clone()]),
        };
        let routes = found!(self.resources(ResourceType::RouteConfig, &name).await);
        match routes.first().and_then(|one| self.parsed(ResourceType::RouteConfig, one)) {
            Some(Resource::RouteConfig(config)) => {
                report.passed("RDS", &described(&routes))?;
                Ok(Ok(config))
            }
            _ => Ok(Err(unreadable(ResourceType::RouteConfig))),
        }
    }

    /// Parses a resource as the client does.
    fn parsed(&self, kind: ResourceType, resource: &GenericXdsConfig) -> Option<Resource> {
        let any = resource.xds_config.as_ref()?;
        self.parser.parse(kind, any, &self.server).ok().map(|parsed| parsed.resource)
    }

    async fn endpoints(&self, report: &mut DoctorReport<'_>) -> StepResult<()> {
        let assignments = found!(self.resources(ResourceType::Endpoints, &BTreeSet::new()).await);
        if assignments.is_empty() {
            report.skipped("EDS", "the clusters do not use EDS")?;
            return Ok(Ok(()));
        }
        let mut found = Vec::new();
        for one in &assignments {
            let message =
                one.xds_config.as_ref().and_then(|any| ClusterLoadAssignment::decode(&*any.value).ok());
            let Some(message) = message else { return Ok(Err(unreadable(ResourceType::Endpoints))) };
            let all = message.endpoints.iter().flat_map(|locality| &locality.lb_endpoints);
            let health: Vec<_> = all.map(LbEndpoint::health_status).collect();
            let usable = health
                .iter()
                .filter(|health| matches!(health, HealthStatus::Unknown | HealthStatus::Healthy));
            let usable = usable.count();
            if usable == 0 {
                return Ok(Err(no_endpoints(&one.name, &health)));
            }
            found.push(format!("{}: {usable} of {} endpoints usable", one.name, health.len()));
        }
        report.passed("EDS", &found.join(", "))?;
        Ok(Ok(()))
    }

    /// Returns true if the cluster configures transport security (A29).
    fn is_secured(&self, cluster: &GenericXdsConfig) -> bool {
        let parsed = self.parsed(ResourceType::Cluster, cluster);
        matches!(parsed, Some(Resource::Cluster(cluster)) if cluster.security.is_some())
    }

    async fn connect(&self, is_secured: bool, report: &mut DoctorReport<'_>) -> StepResult<()> {
        let state = self
            .terminal
            .progress()
            .during("connecting", reach::wait_settled(&self.channel, self.wait))
            .await;
        let tree = self.channel.tree().await;
        let rows = tree.as_ref().map(rows).unwrap_or_default();
        match state {
            Some(ConnectivityState::Ready) => {
                let ready = rows.iter().filter(|row| row.state == ConnectivityState::Ready).count();
                report.passed("connect", &format!("{ready} of {} endpoints connected", rows.len()))?;
                for row in rows.iter().filter(|row| row.state == ConnectivityState::TransientFailure) {
                    let why = row.why.clone().unwrap_or_else(|| "it cannot be reached".to_owned());
                    report.warn(&format!("{}: {why}", row.address))?;
                }
                Ok(Ok(()))
            }
            None if self.channel.connectivity() == ConnectivityState::Idle => {
                report.skipped("connect", "the policy connects with the first call")?;
                Ok(Ok(()))
            }
            _ => Ok(Err(self.unconnected(&rows, is_secured).await)),
        }
    }

    /// Diagnoses a channel without a usable endpoint: probes some of the endpoints.
    async fn unconnected(&self, rows: &[EndpointStatus], is_secured: bool) -> Diagnosis {
        let mut found = reach::failure_of(&self.channel)
            .await
            .unwrap_or_else(|| format!("no connection within {:?}", self.wait));
        let addresses = rows.iter().filter_map(|row| row.address.parse::<SocketAddr>().ok());
        let mut protocol = Vec::new();
        for address in addresses.take(MAX_PROBES) {
            let spoken = reach::probe_protocol(address).await;
            let _ = write!(found, "\n{address} {}", protocol_text(&spoken));
            protocol.push(spoken);
        }
        let (likely, next) = diagnosis(&protocol, self.secured || is_secured);
        let diagnosis = Diagnosis::new("connect", CliExit::Findings, found)
            .expected("a connection to at least one endpoint");
        if is_secured && !self.certificate_problems.is_empty() {
            let problems = self.certificate_problems.join("; ");
            return diagnosis
                .likely(format!(
                    "the cluster requires TLS, and the certificates for it cannot be used: {problems}"
                ))
                .next("correct the files that certificate_providers of the bootstrap names");
        }
        diagnosis.likely(likely).next(next)
    }

    /// Diagnoses a resource that was received and cannot be used.
    fn rejection(&self, kind: ResourceType, resource: &GenericXdsConfig) -> Diagnosis {
        let name = &resource.name;
        let details = resource.error_state.as_ref().map(|error| error.details.clone()).unwrap_or_default();
        let uri = &ui::safe(&self.server.uri);
        let (likely, next) = match resource.client_status() {
            ClientResourceStatus::Nacked => (
                "the control plane sent an invalid resource, the client rejected it with a NACK".to_owned(),
                format!("correct the {kind} at the control plane; its log has the same text"),
            ),
            ClientResourceStatus::DoesNotExist => missing(kind, name, uri),
            ClientResourceStatus::ReceivedError => (
                "the control plane reports an error for it".to_owned(),
                "ask the operator of the control plane".to_owned(),
            ),
            _ => (
                format!("the control plane does not respond for this {kind}"),
                "look into its log".to_owned(),
            ),
        };
        Diagnosis::new(step_of(kind), CliExit::Findings, details)
            .expected(format!("{kind} {name:?} from {uri}"))
            .likely(likely)
            .next(next)
    }

    fn no_response(&self, kind: ResourceType, name: &str) -> Diagnosis {
        let uri = ui::safe(&self.server.uri);
        Diagnosis::new(
            step_of(kind),
            CliExit::Findings,
            format!("no response for {kind} {name:?} within {:?}", self.wait),
        )
        .expected(format!("{kind} {name:?} from {uri}"))
        .likely(format!(
            "the control plane has no {kind} of this name for this node (many do not respond then), or hangs"
        ))
        .next("check the name and node.id; look into the control plane's log")
    }
}

/// Returns true if the node's metadata requests gRPC listeners from Istio.
fn is_grpc_node(node: &Node) -> bool {
    let generator = node.metadata.as_ref().and_then(|metadata| metadata.fields.get("GENERATOR"));
    matches!(generator.and_then(|value| value.kind.as_ref()), Some(ValueKind::StringValue(kind)) if kind == "grpc")
}

fn missing(kind: ResourceType, name: &str, uri: &str) -> (String, String) {
    match kind {
        ResourceType::Listener => (
            format!("{uri} has no listener {name:?} for this node: the target is misspelt, or lacks its port, or is not served to node.id"),
            "compare the name with what the control plane serves: gRPC asks for the target's name as it is written, port included".to_owned(),
        ),
        ResourceType::RouteConfig => (
            "the listener names routes that the control plane does not have".to_owned(),
            "correct the control plane's listener or routes".to_owned(),
        ),
        ResourceType::Cluster => (
            "a route names a cluster that the control plane does not have".to_owned(),
            format!("add cluster {name:?} to the control plane, or correct the route"),
        ),
        ResourceType::Endpoints => (
            "the cluster names endpoints that the control plane does not have".to_owned(),
            format!("add endpoints {name:?} to the control plane, or correct the cluster's service name"),
        ),
    }
}

fn step_of(kind: ResourceType) -> &'static str {
    match kind {
        ResourceType::Listener => "LDS",
        ResourceType::RouteConfig => "RDS",
        ResourceType::Cluster => "CDS",
        ResourceType::Endpoints => "EDS",
    }
}

fn is_requested(resource: &GenericXdsConfig) -> bool {
    resource.client_status() == ClientResourceStatus::Requested
}

fn is_good(resource: &GenericXdsConfig) -> bool {
    resource.client_status() == ClientResourceStatus::Acked
}

fn described(resources: &[GenericXdsConfig]) -> String {
    let one = |one: &GenericXdsConfig| match one.version_info.as_str() {
        "" => one.name.clone(),
        version => format!("{} version {version}", one.name),
    };
    resources.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn unreadable(kind: ResourceType) -> Diagnosis {
    Diagnosis::new(step_of(kind), CliExit::Findings, "the client accepted it, and it cannot be parsed again")
        .expected(kind.to_string())
        .likely("it changed in the meantime")
        .next("try again")
}

fn virtual_host(routes: &RouteConfig, authority: &str) -> Result<Arc<VirtualHost>, Diagnosis> {
    if let Some(host) = routes.virtual_host(authority) {
        return Ok(host.clone());
    }
    let domains: Vec<_> = routes.virtual_hosts.iter().flat_map(|host| host.domains.iter().cloned()).collect();
    let domains = if domains.is_empty() { "no domains".to_owned() } else { ui::safe(&domains.join(", ")) };
    Err(Diagnosis::new("RDS", CliExit::Findings, format!("virtual hosts for {domains}"))
        .expected(format!("a virtual host for {authority:?}, the authority of calls to this target"))
        .likely("the routes are for other names: domains must hold the target's name as it is written, port included")
        .next(format!("add {authority:?} or \"*\" to the domains of a virtual host")))
}

fn no_endpoints(name: &str, health: &[HealthStatus]) -> Diagnosis {
    let name = &ui::safe(name);
    let expected = format!("at least one endpoint of {name:?} that is healthy");
    if health.is_empty() {
        return Diagnosis::new("EDS", CliExit::Findings, format!("{name}: no endpoints"))
            .expected(expected)
            .likely("no instance of the service runs, or its readiness check fails")
            .next("start the service; with Kubernetes: kubectl get endpointslices");
    }
    let states: BTreeSet<_> = health.iter().map(HealthStatus::as_str_name).collect();
    let states = states.into_iter().collect::<Vec<_>>().join(", ");
    Diagnosis::new("EDS", CliExit::Findings, format!("{name}: {} endpoints, all {states}", health.len()))
        .expected(expected)
        .likely("the control plane's health checks fail for every instance")
        .next("check the instances, and the health checks of the control plane")
}

/// State of an endpoint in the policy tree.
struct EndpointStatus {
    address: String,
    state: ConnectivityState,
    why: Option<String>,
}

fn rows(tree: &Description) -> Vec<EndpointStatus> {
    let own = tree.endpoints.iter().flat_map(|row| {
        let (state, why) = (row.state, row.unused.clone());
        row.addresses.iter().map(move |address| EndpointStatus {
            address: address.clone(),
            state,
            why: why.clone(),
        })
    });
    own.chain(tree.children.iter().flat_map(|(_, child)| rows(child))).collect()
}

fn protocol_text(protocol: &PeerProtocol) -> String {
    match protocol {
        PeerProtocol::Http2 => "accepts plaintext HTTP/2".to_owned(),
        PeerProtocol::Http1(line) => format!("responds with {line:?}"),
        PeerProtocol::Tls => "requires TLS".to_owned(),
        PeerProtocol::Other(bytes) => format!("responds with {bytes:?}"),
        PeerProtocol::Closed => "closes connections without a response".to_owned(),
        PeerProtocol::Silent => "accepts connections and sends nothing".to_owned(),
        PeerProtocol::Unreachable(kind) => format!("does not accept connections: {kind}"),
    }
}

/// Returns the likely cause and the next action for the probed protocols.
fn diagnosis(protocol: &[PeerProtocol], secured: bool) -> (&'static str, &'static str) {
    let all = |wanted: fn(&PeerProtocol) -> bool| !protocol.is_empty() && protocol.iter().all(wanted);
    let some = |wanted: fn(&PeerProtocol) -> bool| protocol.iter().any(wanted);
    if all(|one| matches!(one, PeerProtocol::Unreachable(std::io::ErrorKind::ConnectionRefused))) {
        (
            "no process listens there: the instances are not running, or listen on another port or address",
            "start them, or correct the ports at the control plane",
        )
    } else if all(|one| matches!(one, PeerProtocol::Unreachable(_))) {
        (
            "the instances cannot be reached from here: a firewall or network policy, or addresses of another network",
            "try from where the clients run",
        )
    } else if secured && some(|one| matches!(one, PeerProtocol::Tls)) {
        (
            "the TLS handshake with the endpoints fails: names, roots or certificates do not match",
            "compare the certificates of the endpoints with what the cluster's transport_socket and the bootstrap name",
        )
    } else if some(|one| matches!(one, PeerProtocol::Tls)) {
        (
            "the endpoints require TLS, the client uses plaintext",
            "use TLS credentials for the channel (here: --tls, or --ca FILE, with --cert FILE --key FILE for mTLS)",
        )
    } else if secured && some(|one| matches!(one, PeerProtocol::Http2)) {
        (
            "the client uses TLS, the endpoints are plaintext",
            "use a channel without TLS, or have the endpoints serve TLS",
        )
    } else if some(|one| {
        matches!(
            one,
            PeerProtocol::Http1(_) | PeerProtocol::Other(_) | PeerProtocol::Closed | PeerProtocol::Silent
        )
    }) {
        (
            "the port is not a gRPC port: its protocol is not HTTP/2",
            "give the control plane the gRPC port of the service",
        )
    } else {
        (
            "the endpoints respond, but the balancing policy has no usable one",
            "evenkeel inspect on the client shows its policy; look for ejected or subset endpoints",
        )
    }
}
