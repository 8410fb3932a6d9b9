//! `evenkeel man`: manual pages, generated from the definitions of the arguments.
//!
//! The help texts end with examples and exit codes. On a page these are sections of their own.

use std::path::PathBuf;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::ui::{CliError, CliExit, TerminalOutput};

/// Print manual pages.
///
/// Pages are in the format of man(1), in section 1. Packages install them with --out.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ManArgs {
    /// Name of the command. The default is the page of evenkeel itself.
    #[arg(conflicts_with = "out")]
    command: Option<String>,
    /// Write the pages of all commands to this directory, which is created if it is missing.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  evenkeel man serve | man -l -
  evenkeel man --out /usr/local/share/man/man1";

pub(crate) fn run(args: &ManArgs, root: Command, terminal: &TerminalOutput) -> Result<CliExit, CliError> {
    let pages = pages(root);
    if let Some(folder) = &args.out {
        let failed = |error| CliError::usage(format!("{}: cannot be written: {error}", folder.display()));
        std::fs::create_dir_all(folder).map_err(failed)?;
        for (name, page) in &pages {
            std::fs::write(folder.join(format!("{name}.1")), page).map_err(failed)?;
        }
        return Ok(CliExit::Success);
    }
    let wanted = args.command.as_ref().map_or("evenkeel".to_owned(), |command| format!("evenkeel-{command}"));
    let Some((_, page)) = pages.iter().find(|(name, _)| *name == wanted) else {
        let commands: Vec<_> = pages.iter().filter_map(|(name, _)| name.strip_prefix("evenkeel-")).collect();
        let command = args.command.as_deref().unwrap_or_default();
        let text = format!("unknown command {command:?}: expected one of {}", commands.join(", "));
        return Err(CliError::usage(text));
    };
    terminal.print_raw(page)?;
    Ok(CliExit::Success)
}

/// Returns the name and the text of each page: evenkeel itself, then its commands.
fn pages(root: Command) -> Vec<(String, String)> {
    let mut root = root.disable_help_subcommand(true);
    root.build();
    let commands = root.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let all = std::iter::once(root.clone()).chain(commands.collect::<Vec<_>>());
    all.map(|command| {
        let name = command.get_display_name().unwrap_or("evenkeel").to_owned();
        (name, page(command))
    })
    .collect()
}

fn page(command: Command) -> String {
    let after_help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let has_commands = command.get_subcommands().any(|command| !command.is_hide_set());
    let version = command.get_version().unwrap_or_default();
    let source = format!("evenkeel {version}");
    let man = Man::new(command).source(source).manual("evenkeel manual");
    let mut text = Vec::new();
    let written = man
        .render_title(&mut text)
        .and_then(|()| man.render_name_section(&mut text))
        .and_then(|()| man.render_synopsis_section(&mut text))
        .and_then(|()| man.render_description_section(&mut text))
        .and_then(|()| man.render_options_section(&mut text))
        .and_then(|()| if has_commands { man.render_subcommands_section(&mut text) } else { Ok(()) })
        .and_then(|()| ending(&after_help).to_writer(&mut text));
    written.expect("a write to memory cannot fail");
    String::from_utf8(text).expect("help texts are UTF-8")
}

/// Renders the paragraphs at the end of a help text.
fn ending(after_help: &str) -> Roff {
    let mut roff = Roff::new();
    for paragraph in after_help.split("\n\n") {
        if let Some(examples) = paragraph.strip_prefix("Examples:\n") {
            roff.control("SH", ["EXAMPLES"]);
            roff.control("nf", []);
            for line in examples.lines() {
                roff.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
            }
            roff.control("fi", []);
        } else if let Some(codes) = paragraph.strip_prefix("Exit codes: ") {
            roff.control("SH", ["EXIT STATUS"]);
            roff.text([roman(codes.replace('\n', " "))]);
        } else if !paragraph.is_empty() {
            roff.control("SH", ["NOTES"]);
            roff.text([roman(paragraph.replace('\n', " "))]);
        }
    }
    roff
}
