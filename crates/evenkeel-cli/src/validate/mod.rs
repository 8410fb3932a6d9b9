//! `evenkeel validate`: finds what clients would reject, in files or from a running control plane.
//!
//! It uses the client's own bootstrap parser and resource parser. An error is a rejected resource or config,
//! or calls that would fail. A warning is an ignored field or a questionable setting. Only errors change the
//! exit code.

mod bootstrap;
mod ignored;
mod locate;
mod mesh;
mod server;

pub(crate) use self::mesh::summary as mesh_summary;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use crate::input;
use crate::ui::{self, CliError, CliExit, TerminalOutput, TextStyle};

/// Report the errors that clients would reject a mesh, a bootstrap or a control plane's resources for.
///
/// Files are meshes (YAML) or bootstraps (JSON), and their kind is detected. With --server or --bootstrap, the
/// command requests the resources of --target from the control plane, as a client would. It sends no call to any
/// backend.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ValidateArgs {
    /// Paths of meshes and bootstraps, or - for standard input.
    #[arg(required_unless_present_any = ["server", "bootstrap", "target"], conflicts_with_all = ["server", "bootstrap"])]
    files: Vec<PathBuf>,
    /// Kind of the files, instead of detecting it.
    #[arg(long, conflicts_with_all = ["server", "bootstrap"])]
    kind: Option<FileKind>,
    /// Address of the control plane.
    #[arg(long, value_name = "HOST:PORT", requires = "target", conflicts_with = "bootstrap")]
    server: Option<String>,
    /// Path of a bootstrap, whose control planes are used.
    #[arg(long, value_name = "FILE", requires = "target")]
    bootstrap: Option<PathBuf>,
    /// Target whose resources are requested, such as xds:///orders.
    #[arg(long, conflicts_with = "files")]
    target: Option<String>,
    /// Node id of the requests.
    #[arg(long, value_name = "ID", default_value = "evenkeel-validate", conflicts_with_all = ["bootstrap", "files"])]
    node: String,
    /// Connect to the control plane by TLS, with the system's roots.
    #[arg(long, conflicts_with_all = ["bootstrap", "files"])]
    tls: bool,
    /// Maximum wait for the resources, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = seconds, conflicts_with = "files")]
    wait: Duration,
    /// Print one JSON value instead of text.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  evenkeel validate mesh.yaml
  evenkeel validate bootstrap.json
  echo \"$GRPC_XDS_BOOTSTRAP_CONFIG\" | evenkeel validate -
  evenkeel validate --server 127.0.0.1:18000 --target xds:///orders
  evenkeel validate --bootstrap \"$GRPC_XDS_BOOTSTRAP\" --target xds:///orders

Exit codes: 0 no errors, 1 errors found,
2 a file or the arguments are invalid, 3 no control plane responds";

/// Kind of an input file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum FileKind {
    Mesh,
    Bootstrap,
}

pub(crate) async fn run(args: ValidateArgs, terminal: &TerminalOutput) -> Result<CliExit, CliError> {
    if args.target.is_some() && args.server.is_none() && args.bootstrap.is_none() {
        let text = "--target requires a control plane: --server HOST:PORT, or --bootstrap FILE";
        return Err(CliError::usage(text));
    }
    if args.files.iter().filter(|file| input::is_stdin(file)).count() > 1 {
        return Err(CliError::usage("standard input can be read only once: expected one -"));
    }
    let verdicts = if let Some(target) = &args.target {
        vec![server::verdict(&args, target, terminal).await?]
    } else {
        args.files.iter().map(|file| of_file(file, args.kind)).collect::<Result<_, _>>()?
    };
    if args.json {
        terminal.print_json(format_args!("{:#}", json!(verdicts)))?;
    } else {
        for verdict in &verdicts {
            terminal.print(verdict.text(terminal))?;
        }
    }
    let is_bad = verdicts.iter().any(|verdict| verdict.errors() > 0);
    Ok(if is_bad { CliExit::Findings } else { CliExit::Success })
}

fn of_file(file: &Path, kind: Option<FileKind>) -> Result<ValidationReport, CliError> {
    let text = input::read(file)?;
    Ok(match kind.unwrap_or_else(|| FileKind::of(&text)) {
        FileKind::Mesh => mesh::verdict(file, &text),
        FileKind::Bootstrap => bootstrap::verdict(file, &text),
    })
}

impl FileKind {
    /// Detects the kind of a file. A mesh may be JSON too, since JSON is YAML; a bootstrap is always JSON.
    fn of(text: &str) -> FileKind {
        let is_object = text.trim_start().starts_with('{');
        let is_mesh = ["services", "clusters"].iter().any(|key| text.contains(&format!("\"{key}\"")));
        if is_object && (text.contains("\"xds_servers\"") || !is_mesh) {
            FileKind::Bootstrap
        } else {
            FileKind::Mesh
        }
    }
}

/// Result of validating one file or target.
#[derive(Debug, Serialize)]
pub(crate) struct ValidationReport {
    /// File name or target.
    pub(crate) subject: String,
    pub(crate) findings: Vec<Finding>,
    /// Short summary of the contents; `None` if they could not be parsed.
    pub(crate) summary: Option<String>,
}

/// Error or warning about a file or target.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Finding {
    pub(crate) severity: Severity,
    /// Line and column in the file, 1-based.
    pub(crate) place: Option<(u64, u64)>,
    /// Resource that the finding concerns.
    pub(crate) resource: Option<String>,
    /// Path of the field.
    pub(crate) path: String,
    pub(crate) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// A client would reject it, or calls would fail.
    Error,
    /// A client would ignore it, or it is questionable.
    Warning,
}

impl ValidationReport {
    fn errors(&self) -> usize {
        self.findings.iter().filter(|finding| finding.severity == Severity::Error).count()
    }

    /// Renders one line per finding and a summary line.
    fn text(&self, terminal: &TerminalOutput) -> String {
        let mut lines = Vec::new();
        let subject = ui::safe(&self.subject);
        for finding in &self.findings {
            let place = finding.place.map(|(line, column)| format!(":{line}:{column}")).unwrap_or_default();
            let severity = match finding.severity {
                Severity::Error => terminal.paint(TextStyle::Bad, "error"),
                Severity::Warning => terminal.paint(TextStyle::Warn, "warning"),
            };
            lines.push(format!("{subject}{place}: {severity}: {}\n", ui::safe(&finding.to_string())));
        }
        let (errors, warnings) = (self.errors(), self.findings.len() - self.errors());
        let of_warnings =
            if warnings > 0 { format!("; {}", count(warnings, "warning")) } else { String::new() };
        let last = match (errors, &self.summary) {
            (0, Some(summary)) => {
                format!("{}: {}{of_warnings}", terminal.paint(TextStyle::Good, "fine"), ui::safe(summary))
            }
            (0, None) => terminal.paint(TextStyle::Good, "fine").to_string(),
            _ => format!("{}{of_warnings}", terminal.paint(TextStyle::Bad, count(errors, "error"))),
        };
        lines.push(format!("{subject}: {last}\n"));
        lines.concat()
    }
}

impl Finding {
    pub(crate) fn error(text: impl Into<String>) -> Finding {
        Finding {
            severity: Severity::Error,
            place: None,
            resource: None,
            path: String::new(),
            text: text.into(),
        }
    }

    pub(crate) fn warning(text: impl Into<String>) -> Finding {
        Finding { severity: Severity::Warning, ..Finding::error(text) }
    }

    pub(crate) fn at(self, place: Option<(u64, u64)>) -> Finding {
        Finding { place, ..self }
    }

    pub(crate) fn path(self, path: impl Into<String>) -> Finding {
        Finding { path: path.into(), ..self }
    }

    pub(crate) fn resource(self, resource: impl Into<String>) -> Finding {
        Finding { resource: Some(resource.into()), ..self }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(resource) = &self.resource {
            write!(f, "{resource}: ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.text)
    }
}

/// Formats a count with its noun: `1 cluster`, `2 clusters`.
pub(crate) fn count(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Parses a duration of at least a tenth of a second.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("expected a number of seconds, found {text:?}"))?;
    if !(0.1..=3600.0).contains(&seconds) {
        return Err(format!("expected 0.1 to 3600 seconds, found {text}"));
    }
    Ok(Duration::from_secs_f64(seconds))
}
