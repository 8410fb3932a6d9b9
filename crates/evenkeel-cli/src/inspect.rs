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

use evenkeel::admin::VerdictLevel;

use self::ask::{InspectData, InspectTarget};
use crate::ui::{self, CliError, CliExit, TerminalOutput};

const EXAMPLES: &str = "\
Examples:
  evenkeel inspect 127.0.0.1:9901              once
  evenkeel inspect 127.0.0.1:9901 --watch      repeatedly, until Ctrl-C
  evenkeel inspect 127.0.0.1:9901 --channel orders --only failing
  evenkeel inspect orders-7:9901 --json | jq '.csds.config[].genericXdsConfigs[].name'

The address is the admin port of an evenkeel process, or any gRPC server with the CSDS service
(in Go `admin.Register`, in Java `AdminInterface.getStandardServices`, in C++ `AddAdminServices`).

Exit codes: 0 good or idle, 1 the verdict is a warning or bad, or a resource is NACKED or missing, 2 invalid usage,
3 no response";

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
    /// Only the channels with this target, or with this name after the last slash: `orders` for `xds:///orders`.
    #[arg(long, value_name = "NAME")]
    channel: Option<String>,
    /// Only what fails: channels with problems, and in them endpoints that are down or failed in the last minute.
    #[arg(long, value_name = "WHAT")]
    only: Option<ReportSelection>,
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

/// Part of the report that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ReportSelection {
    /// Channels, endpoints and resources with problems.
    Failing,
}

pub(crate) async fn run(args: InspectArgs, terminal: &TerminalOutput) -> Result<CliExit, CliError> {
    let answers = terminal.progress().during(&format!("querying {}", args.peer), fetch(&args)).await?;
    if args.watch {
        return screen::watch(&args, answers, terminal).await;
    }
    let exit = if findings(&answers) { CliExit::Findings } else { CliExit::Success };
    if args.json {
        terminal.print_json(json::of(&args.peer, &answers))?;
    } else {
        let width = terminal.is_interactive.then(|| ui::size().columns);
        terminal.print(page(&args, &answers, SystemTime::now(), terminal, width))?;
    }
    Ok(exit)
}

/// Queries the process and keeps the selected part of its responses.
async fn fetch(args: &InspectArgs) -> Result<InspectData, CliError> {
    let mut answers = ask::fetch(&args.peer).await?;
    if let Some(name) = &args.channel {
        select_channel(&mut answers, name)?;
    }
    // Processes without a verdict are judged here.
    if let Some(state) = &mut answers.state
        && (state.verdict.is_none() || args.channel.is_some())
    {
        state.judge();
    }
    if args.only == Some(ReportSelection::Failing) {
        if let Some(state) = &mut answers.state {
            process::retain_failing(state);
        }
        let clients = answers.csds.iter_mut().flat_map(|csds| &mut csds.config);
        clients.for_each(|client| client.generic_xds_configs.retain(resources::is_bad));
    }
    Ok(answers)
}

/// Removes all other channels, and the xDS clients without resources of the channel.
fn select_channel(answers: &mut InspectData, name: &str) -> Result<(), CliError> {
    let is_named = |target: &str| target == name || target.rsplit('/').next() == Some(name);
    let is_own = |scope: &str| scope.split(',').any(is_named);
    let known: Vec<_> = match (&answers.state, &answers.csds) {
        (Some(state), _) => state.channels.iter().map(|channel| channel.target.clone()).collect(),
        (None, Some(csds)) => {
            csds.config.iter().flat_map(|client| client.client_scope.split(',')).map(str::to_owned).collect()
        }
        (None, None) => Vec::new(),
    };
    if !known.iter().any(|target| is_named(target)) {
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(CliError::usage(format!(
            "no channel {name:?} in the process; its channels: {}",
            ui::safe(&known)
        )));
    }
    if let Some(state) = &mut answers.state {
        state.channels.retain(|channel| is_named(&channel.target));
        state.xds.retain(|client| is_own(&client.scope));
    }
    if let Some(csds) = &mut answers.csds {
        csds.config.retain(|client| is_own(&client.client_scope));
    }
    Ok(())
}

/// Returns true if the verdict is a warning or bad, or a resource is NACKED or missing.
fn findings(answers: &InspectData) -> bool {
    let clients = answers.csds.iter().flat_map(|csds| &csds.config);
    let verdict = answers.state.as_ref().and_then(|state| state.verdict.as_ref());
    clients.flat_map(|client| &client.generic_xds_configs).any(resources::is_bad)
        || verdict.is_some_and(|verdict| verdict.level >= VerdictLevel::Warn)
}

/// Renders the report as text. Lines wrap at `width` where possible.
fn page(
    args: &InspectArgs,
    answers: &InspectData,
    now: SystemTime,
    terminal: &TerminalOutput,
    width: Option<usize>,
) -> String {
    let mut page = String::new();
    let is_selective = args.only.is_some();
    if let Some(state) = &answers.state {
        let without_channels = if is_selective { "nothing fails\n" } else { "no channels\n" };
        page.push_str(&process::text(state, without_channels, now, terminal, width));
    }
    if let Some(csds) = &answers.csds {
        let shown = csds.config.iter().filter(|one| !is_selective || !one.generic_xds_configs.is_empty());
        for client in shown.map(|one| resources::client(one, now)) {
            if !page.is_empty() {
                page.push('\n');
            }
            page.push_str(&draw::text(&[client], terminal, width));
        }
    }
    if page.is_empty() && is_selective {
        page.push_str("nothing fails\n");
    } else if page.is_empty() {
        let peer = &args.peer;
        page = format!("{peer} has no xDS client: no channel with an xds: target is in use\n");
    }
    page
}
