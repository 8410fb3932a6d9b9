//! Validation of a running control plane: subscribes as a client of the target would, until every resource
//! has a final status.
//!
//! A real channel requests the resources. Its connector refuses every connection, so no backend is contacted.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use evenkeel::{Address, Bootstrap, Channel, Connector, Io, Registry, XdsClient};
use evenkeel_proto::envoy::admin::v3::ClientResourceStatus;
use evenkeel_proto::envoy::service::status::v3::client_config::GenericXdsConfig;
use evenkeel_xds::resource::{ResourceParser, ResourceType};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use super::ignored::ignored_fields;
use super::{Finding, ValidateArgs, ValidationReport, count};
use crate::explain::known::LocalResources;
use crate::explain::walk::ClientSimulation;
use crate::ui::{self, CliError, TerminalOutput};

/// Interval between two polls of the resources' status.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum wait for the status of a failing call.
const REASON_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) async fn verdict(
    args: &ValidateArgs,
    target: &str,
    terminal: &TerminalOutput,
) -> Result<ValidationReport, CliError> {
    let bootstrap = bootstrap(args)?;
    let servers = bootstrap.servers.iter().map(|server| ui::safe(&server.uri)).collect::<Vec<_>>().join(", ");
    let client = XdsClient::builder(bootstrap.clone()).build();
    let channel = Channel::builder(target)
        .xds_client(client.clone())
        .connector(RefusingConnector)
        .build()
        .map_err(|error| CliError::usage(error.to_string()))?;
    channel.connect();
    let resources = wait_settled(&client, args.wait, &servers, terminal).await?;
    let Some(resources) = resources else {
        let why = reason(channel).await;
        let text = format!("no control plane responds ({servers}): {why}");
        return Err(CliError::unreachable(text));
    };
    let mut findings: Vec<_> = resources.iter().filter_map(finding).collect();
    findings.extend(target_findings(&bootstrap, target, &resources));
    Ok(ValidationReport { subject: target.to_owned(), findings, summary: Some(summary(&resources)) })
}

/// Builds the bootstrap from the arguments: control plane, credentials and node id.
fn bootstrap(args: &ValidateArgs) -> Result<Bootstrap, CliError> {
    let text = match (&args.bootstrap, &args.server) {
        (Some(file), _) => std::fs::read_to_string(file)
            .map_err(|error| CliError::usage(format!("{}: cannot be read: {error}", file.display())))?,
        (None, server) => {
            let kind = if args.tls { "tls" } else { "insecure" };
            json!({
                "xds_servers": [{ "server_uri": server, "channel_creds": [{ "type": kind }] }],
                "node": { "id": args.node },
            })
            .to_string()
        }
    };
    Bootstrap::from_json(&text).map_err(|error| CliError::usage(error.to_string()))
}

/// Returns the resources once none is pending, or on timeout. Returns `None` if no control plane responds.
async fn wait_settled(
    client: &XdsClient,
    wait: Duration,
    servers: &str,
    terminal: &TerminalOutput,
) -> Result<Option<Vec<GenericXdsConfig>>, CliError> {
    let began = Instant::now();
    let mut progress = terminal.progress();
    let mut last = None;
    loop {
        let status = client.status().await.map_err(|error| CliError::unreachable(error.to_string()))?;
        let resources = status.generic_xds_configs;
        let tally = client.server_stats();
        let in_use = || tally.iter().filter(|tally| tally.in_use);
        let is_answered = in_use().any(|tally| tally.connected);
        let is_failing = in_use().count() > 0 && in_use().all(|tally| tally.failures > 0);
        let open = resources
            .iter()
            .filter(|resource| resource_status(resource) == ClientResourceStatus::Requested)
            .count();
        let is_time_up = began.elapsed() >= wait;
        if !is_answered && (is_failing || is_time_up) {
            return Ok(None);
        }
        // A resource's dependencies are requested in the same step. The second identical poll covers policies
        // that request more.
        let is_settled = is_answered && open == 0 && last.as_ref() == Some(&resources);
        if is_settled || is_time_up {
            return Ok(Some(resources));
        }
        let done = resources.len() - open;
        progress.show(format_args!("querying {servers}: {done} of {} resources", resources.len()));
        last = Some(resources);
        sleep(POLL_INTERVAL).await;
    }
}

/// Returns the status message of a call on the channel.
async fn reason(channel: Channel) -> String {
    let mut client = tonic::client::Grpc::new(channel);
    let call = async {
        client.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
        let codec = tonic_prost::ProstCodec::<(), ()>::default();
        let path = http::uri::PathAndQuery::from_static("/");
        client.unary(tonic::Request::new(()), path, codec).await
    };
    match timeout(REASON_TIMEOUT, call).await {
        Ok(Err(status)) => status.message().to_owned(),
        Ok(Ok(_)) | Err(_) => "it does not respond".to_owned(),
    }
}

fn resource_status(resource: &GenericXdsConfig) -> ClientResourceStatus {
    ClientResourceStatus::try_from(resource.client_status).unwrap_or_default()
}

fn kind(resource: &GenericXdsConfig) -> String {
    let kind = ResourceType::from_type_url(&resource.type_url);
    kind.map_or_else(|| resource.type_url.clone(), |kind| kind.to_string())
}

/// Returns the error of a resource, if it has one.
fn finding(resource: &GenericXdsConfig) -> Option<Finding> {
    let details = resource.error_state.as_ref().map(|error| error.details.clone()).unwrap_or_default();
    let name = format!("{} {:?}", kind(resource), resource.name);
    // The client's error starts with the resource's name.
    let details = details.strip_prefix(&format!("{name}: ")).unwrap_or(&details);
    let text = match resource_status(resource) {
        ClientResourceStatus::Acked => return None,
        ClientResourceStatus::Nacked => format!("NACKed: {details}"),
        ClientResourceStatus::Requested => "was not sent in time".to_owned(),
        ClientResourceStatus::DoesNotExist
        | ClientResourceStatus::Timeout
        | ClientResourceStatus::ReceivedError => details.to_owned(),
        ClientResourceStatus::Unknown => "its state is unknown".to_owned(),
    };
    Some(Finding::error(text).resource(name))
}

/// Parses accepted resources as the client did. Reports ignored fields and, if all were accepted, reasons why
/// no call could succeed.
fn target_findings(bootstrap: &Bootstrap, target: &str, resources: &[GenericXdsConfig]) -> Vec<Finding> {
    // Cannot fail: the channel was built for this target.
    let Ok(named) = bootstrap.listener_name(target) else { return Vec::new() };
    let authority = named.listener.authority().and_then(|name| bootstrap.authorities.get(name));
    let servers = authority.map_or(&bootstrap.servers, |authority| &authority.servers);
    let Some(server) = servers.first() else { return Vec::new() };
    let mut parser = ResourceParser::new(Registry::standard());
    parser.certificate_providers = bootstrap.certificate_providers.keys().cloned().collect();
    let accepted =
        resources.iter().filter(|resource| resource_status(resource) == ClientResourceStatus::Acked);
    let accepted =
        accepted.filter_map(|one| Some((one.type_url.as_str(), one.name.as_str(), one.xds_config.as_ref()?)));
    let known = LocalResources::parse_as(accepted, &parser, server);
    let mut findings = Vec::new();
    for (kind, name, read) in known.iter() {
        let about = |finding: Finding| finding.resource(format!("{kind} {name:?}"));
        let Ok(parsed) = &read.read else { continue };
        findings.extend(parsed.warnings.iter().map(Finding::warning).map(about));
        for (path, reason) in ignored_fields(kind, &read.raw.value) {
            findings.push(about(Finding::warning(reason).path(path)));
        }
    }
    if resources.iter().any(|resource| resource_status(resource) != ClientResourceStatus::Acked) {
        return findings;
    }
    let node_id = &bootstrap.node.id;
    let mut walk = ClientSimulation::of_node(&known, named.listener.as_str(), &named.authority, node_id);
    let clusters = walk.config().map(|config| config.virtual_host.clusters.clone()).unwrap_or_default();
    match &walk.route {
        Err(status) => findings.push(Finding::error(format!("every call fails: {}", status.message()))),
        Ok(_) if clusters.is_empty() => {
            findings.push(Finding::error("every call fails: no route leads to a cluster"));
        }
        Ok(_) => {}
    }
    for cluster in clusters {
        if let Err(status) = walk.pick(("/", &()), &format!("cluster:{cluster}"), 0) {
            let finding = Finding::error(format!("every call fails: {}", status.message()));
            findings.push(finding.resource(format!("cluster {cluster:?}")));
        }
    }
    findings
}

fn summary(resources: &[GenericXdsConfig]) -> String {
    let counts = ResourceType::ALL.map(|kind| {
        let all = resources.iter().filter(|resource| resource.type_url == kind.type_url()).count();
        match kind {
            ResourceType::Endpoints => count(all, "set") + " of endpoints",
            _ => count(all, &kind.to_string()),
        }
    });
    format!("{} accepted", counts.join(", "))
}

/// Connector that refuses every connection, so that no backend is contacted.
struct RefusingConnector;

impl Connector for RefusingConnector {
    fn connect(&self, _: &Address) -> Pin<Box<dyn Future<Output = io::Result<Box<dyn Io>>> + Send + '_>> {
        Box::pin(async { Err(io::Error::new(io::ErrorKind::Unsupported, "backends are not called here")) })
    }
}
