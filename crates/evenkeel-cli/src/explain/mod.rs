//! `evenkeel explain`: routing and balancing of one call, computed from a mesh file alone.
//!
//! No connection is made. The components are those of a real channel: resource parser, xDS resolver, routes
//! and policies. Every endpoint counts as connected. Results that depend on run time (load, failures, DNS)
//! are marked as such.

mod answer;
pub(crate) mod known;
mod text;
mod tree;
pub(crate) mod walk;

use std::path::PathBuf;

use evenkeel_control::Mesh;
use evenkeel_xds::bootstrap::Bootstrap;
use serde_json::json;

use self::answer::{CallHeaders, ExplainRequest, Explanation};
use self::known::LocalResources;
use crate::input;
use crate::ui::{CliError, CliExit, TerminalOutput};

/// Show the routing and balancing of a call, from a mesh file alone.
///
/// Computes the result of a client for one call: the route that matches, the clusters that the call may be routed to,
/// and each endpoint's share of the calls. No connection is made. Every healthy endpoint counts as connected.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExplainArgs {
    /// Path of the mesh file, or - for standard input.
    mesh: PathBuf,
    /// Target of the client's channel, such as xds:///orders. Optional if the mesh has one service.
    #[arg(long)]
    target: Option<String>,
    /// Method of the call, such as /shop.Orders/Get.
    #[arg(long, default_value = "/")]
    path: String,
    /// Header of the call, as name:value. May be repeated.
    #[arg(long = "header", value_name = "NAME:VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
    /// Also print the four configs from a cluster to its localities (A52).
    #[arg(long)]
    stages: bool,
    /// Print one JSON value instead of text.
    #[arg(long, conflicts_with = "stages")]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  evenkeel explain mesh.yaml --target xds:///orders
  evenkeel explain mesh.yaml --target xds:///orders --path /shop.Orders/Get --header x-user:ann
  kubectl get configmap evenkeel-mesh -o jsonpath='{.data.mesh\\.yaml}' | evenkeel explain -
  evenkeel explain mesh.yaml --json | jq '.clusters[].tree'

Exit codes: 0 the call reaches an endpoint, 1 it fails, or some such calls fail,
2 the mesh or the arguments are invalid";

// All commands share one signature; this one awaits nothing.
#[allow(clippy::unused_async)]
pub(crate) async fn run(args: ExplainArgs, terminal: &TerminalOutput) -> Result<CliExit, CliError> {
    let mesh = input::mesh(&args.mesh)?;
    let question = question(&args, &mesh)?;
    let answer = Explanation::new(&question, &LocalResources::of_mesh(&mesh));
    if args.json {
        let mut json = json!(answer);
        json["headers"] = json!(answer::header_map(&question.headers));
        terminal.print_json(format_args!("{json:#}"))?;
    } else {
        terminal.print(text::text(&answer, args.stages, terminal))?;
    }
    Ok(if answer.is_failing() { CliExit::Findings } else { CliExit::Success })
}

/// Builds the call to explain from the arguments.
fn question(args: &ExplainArgs, mesh: &Mesh) -> Result<ExplainRequest, CliError> {
    let services: Vec<&str> = mesh.services().collect();
    let target = match (&args.target, services.as_slice()) {
        (Some(target), _) => target.clone(),
        (None, [only]) => format!("xds:///{only}"),
        (None, several) => {
            let text = format!("--target is required: the mesh has the services {}", several.join(", "));
            return Err(CliError::usage(text));
        }
    };
    let named = local_bootstrap().listener_name(&target).map_err(|error| {
        CliError::usage(format!("{error}; expected one such as xds:///{}", services.join(" or xds:///")))
    })?;
    let listener = named.listener.as_str().to_owned();
    if !services.contains(&listener.as_str()) {
        let text = format!(
            "target {target:?}: the mesh has no service {listener:?}; it has {}",
            services.join(", ")
        );
        return Err(CliError::usage(text));
    }
    let headers = CallHeaders(args.headers.clone());
    Ok(ExplainRequest { target, listener, authority: named.authority, path: args.path.clone(), headers })
}

/// Bootstrap of a client whose only control plane serves the mesh.
pub(crate) fn local_bootstrap() -> Bootstrap {
    let text =
        r#"{"xds_servers": [{"server_uri": "localhost:18000", "channel_creds": [{"type": "insecure"}]}]}"#;
    Bootstrap::from_json(text).expect("the text above is a bootstrap")
}

/// Parses `name:value`. The name becomes lower case, as HTTP/2 requires.
fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("expected NAME:VALUE, found no colon")?;
    let name = http::HeaderName::try_from(name.trim())
        .map_err(|_| format!("{name:?} is not a valid header name"))?;
    let value = value.trim();
    http::HeaderValue::try_from(value).map_err(|_| format!("{value:?} is not a valid header value"))?;
    Ok((name.as_str().to_owned(), value.to_owned()))
}
