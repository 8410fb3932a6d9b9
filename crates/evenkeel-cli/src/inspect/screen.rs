//! `--watch`: repeats the report, in place on a terminal, appended in a pipe.

use std::time::SystemTime;

use tokio::time::sleep;

use super::ask::InspectData;
use super::{InspectArgs, fetch, findings, page, process};
use crate::ends::ShutdownSignals;
use crate::ui::{self, CliError, CliExit, TerminalOutput, TerminalSize, TextStyle};

/// Switches to the alternate screen and hides the cursor; [`LEAVE`] reverts both.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Moves the cursor home. Lines are cleared as they are overwritten, which avoids flicker.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_REST: &str = "\x1b[J";

/// Repeats the report until a signal arrives. If the process stops responding, the report shows that and
/// polling continues.
pub(super) async fn watch(
    args: &InspectArgs,
    first: InspectData,
    terminal: &TerminalOutput,
) -> Result<CliExit, CliError> {
    let mut ends = ShutdownSignals::new()?;
    if !terminal.is_interactive {
        return tokio::select! {
            () = ends.wait() => Ok(CliExit::Success),
            failure = pipe(args, first, terminal) => Err(failure),
        };
    }
    terminal.print_raw(ENTER)?;
    let ended = tokio::select! {
        () = ends.wait() => Ok(CliExit::Success),
        failure = screen(args, first, terminal) => Err(failure),
    };
    terminal.print_raw(LEAVE)?;
    ended
}

async fn pipe(args: &InspectArgs, first: InspectData, terminal: &TerminalOutput) -> CliError {
    let mut block = page(args, &first, SystemTime::now(), terminal, None);
    loop {
        if let Err(failure) = terminal.print(format!("{block}\n")) {
            return failure;
        }
        sleep(args.interval).await;
        block = match fetch(args).await {
            Ok(answers) => page(args, &answers, SystemTime::now(), terminal, None),
            Err(failure) => format!("{}\n", failure.text),
        };
    }
}

async fn screen(args: &InspectArgs, first: InspectData, terminal: &TerminalOutput) -> CliError {
    let mut answers = first;
    let mut trouble: Option<String> = None;
    loop {
        let size = ui::size();
        let text = page(args, &answers, SystemTime::now(), terminal, Some(size.columns));
        let head = match &trouble {
            Some(trouble) => {
                let trouble = trouble.lines().next().unwrap_or_default();
                terminal.paint(TextStyle::Bad, format!("last seen state: {}", ui::safe(trouble))).to_string()
            }
            None => match answers.state.as_ref().and_then(|state| state.verdict.as_ref()) {
                Some(verdict) => terminal
                    .paint(process::level_style(verdict.level), ui::safe(&verdict.headline))
                    .to_string(),
                None if findings(&answers) => terminal.paint(TextStyle::Bad, "problems found").to_string(),
                None => terminal.paint(TextStyle::Good, "no problem").to_string(),
            },
        };
        let foot =
            terminal.paint(TextStyle::Faint, format!("every {:?}, Ctrl-C ends", args.interval)).to_string();
        if let Err(failure) = terminal.print_raw(frame(&text, &head, &foot, size)) {
            return failure;
        }
        sleep(args.interval).await;
        match fetch(args).await {
            Ok(found) => (answers, trouble) = (found, None),
            Err(failure) => trouble = Some(failure.text),
        }
    }
}

/// Renders one screen: as many lines of the page as fit, and a status line.
fn frame(page: &str, head: &str, foot: &str, size: TerminalSize) -> String {
    let room = size.rows.saturating_sub(1).max(1);
    let lines: Vec<_> = page.lines().collect();
    let mut out = HOME.to_owned();
    for line in lines.iter().take(room) {
        out.extend([&*ui::cut(line, size.columns), CLEAR_LINE, "\r\n"]);
    }
    let hidden = lines.len().saturating_sub(room);
    let more = if hidden > 0 { format!("  {hidden} more lines") } else { String::new() };
    out.push_str(CLEAR_REST);
    out.push_str(&ui::cut(&format!("{head}  {foot}{more}"), size.columns));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_are_too_long_say_so() {
        let frame = frame("one\ntwo\nthree\n", "fine", "foot", TerminalSize { rows: 3, columns: 20 });
        assert_eq!(frame, "\x1b[Hone\x1b[K\r\ntwo\x1b[K\r\n\x1b[Jfine  foot  1 more l");
    }
}
