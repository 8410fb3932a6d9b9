//! `evenkeel inspect`: resources and balancing state of a running xDS client.
//!
//! It sends two requests to one address: CSDS, which xDS clients in all languages support, and `/api/state`
//! of evenkeel's admin server. Either response is enough. Responses are untrusted: their size is limited, and
//! control characters are escaped before printing.

mod ask;
mod draw;
mod json;
mod process;
mod resources;
mod screen;
mod words;

use std::time::{Duration, SystemTime};

use self::ask::{InspectData, InspectTarget};
use crate::ui::{self, CliError, CliExit, TerminalOutput};

const EXAMPLES: &str = "\
Examples:
  evenkeel inspect 127.0.0.1:9901              once
  evenkeel inspect 127.0.0.1:9901 --watch      repeatedly, until Ctrl-C
  evenkeel inspect orders-7:9901 --json | jq '.csds.config[].genericXdsConfigs[].name'

The address is the admin port of an evenkeel process, or any gRPC server with the CSDS service
(in Go `admin.Register`, in Java `AdminInterface.getStandardServices`, in C++ `AddAdminServices`).

Exit codes: 0 fine, 1 something is NACKED, missing or in TRANSIENT_FAILURE, 2 invalid usage, 3 no response";

/// Show the resources and the balancing state of a running xDS client.
///
/// Works with every xDS client that serves CSDS: evenkeel, and gRPC in C++, Go and Java. For evenkeel it also shows
/// channels, policies, weights and shares.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InspectArgs {
    /// Address of the process's admin server or CSDS service.
    #[arg(value_name = "HOST:PORT")]
    peer: InspectTarget,
    /// Repeat the report until Ctrl-C.
    #[arg(long, conflicts_with = "json")]
    watch: bool,
    /// Print everything as JSON: `csds` in protobuf's JSON mapping, `state` as the admin server formats it.
    #[arg(long)]
    json: bool,
    /// Interval between two reports, such as 500ms or 2s.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = ui::duration, requires = "watch")]
    interval: Duration,
}

pub(crate) async fn run(args: InspectArgs, terminal: &TerminalOutput) -> Result<CliExit, CliError> {
    let answers =
        terminal.progress().during(&format!("querying {}", args.peer), ask::fetch(&args.peer)).await?;
    if args.watch {
        return screen::watch(&args.peer, args.interval, answers, terminal).await;
    }
    if args.json {
        terminal.print_json(json::of(&args.peer, &answers))?;
    } else {
        let width = terminal.is_interactive.then(|| ui::size().columns);
        terminal.print(page(&args.peer, &answers, SystemTime::now(), terminal, width))?;
    }
    Ok(if findings(&answers) { CliExit::Findings } else { CliExit::Success })
}

/// Returns true if a resource is NACKED or missing, or a channel is in TRANSIENT_FAILURE.
fn findings(answers: &InspectData) -> bool {
    let clients = answers.csds.iter().flat_map(|csds| &csds.config);
    clients.flat_map(|client| &client.generic_xds_configs).any(resources::is_bad)
        || answers.state.as_ref().is_some_and(process::is_bad)
}

/// Renders the report as text. Lines wrap at `width` where possible.
fn page(
    peer: &InspectTarget,
    answers: &InspectData,
    now: SystemTime,
    terminal: &TerminalOutput,
    width: Option<usize>,
) -> String {
    let mut page = String::new();
    if let Some(state) = &answers.state {
        page.push_str(&process::text(state, terminal, width));
    }
    if let Some(csds) = &answers.csds {
        for client in resources::clients(csds, now) {
            if !page.is_empty() {
                page.push('\n');
            }
            page.push_str(&draw::text(&[client], terminal, width));
        }
    }
    if page.is_empty() {
        page = format!("{peer} has no xDS client: no channel with an xds: target is in use\n");
    }
    page
}
