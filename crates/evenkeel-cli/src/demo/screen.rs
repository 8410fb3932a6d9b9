//! Live display of the demo on a terminal. Without a terminal the demo prints lines instead.

use evenkeel::ConnectivityState;
use evenkeel::admin::{AdminState, EndpointInfo};

use super::acts::ACTS;
use super::fleet::DemoBackend;
use super::report::percent;
use crate::table::{TableCell, keep_columns, table};
use crate::ui::{self, CliError, TerminalOutput, TextStyle};

/// Display on the alternate screen of the terminal, which has no lines that could wrap or scroll. It returns to the normal
/// screen on drop.
pub(super) struct DemoScreen<'t> {
    terminal: &'t TerminalOutput,
    is_open: bool,
}

/// Progress of the demo, as one frame shows it.
pub(super) struct ScreenFrame<'m> {
    pub(super) act: usize,
    /// Elapsed fraction of the act, 0 to 1.
    pub(super) progress: f64,
    /// Log line of the latest event.
    pub(super) last: &'m str,
    pub(super) page: Option<&'m str>,
    /// Path of the mesh file.
    pub(super) mesh: &'m str,
}

/// Switches to the alternate screen and hides the cursor; [`LEAVE`] reverts both.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

impl DemoScreen<'_> {
    pub(super) fn new(terminal: &TerminalOutput) -> DemoScreen<'_> {
        DemoScreen { terminal, is_open: false }
    }

    /// Draws a frame over the previous one.
    pub(super) fn draw(
        &mut self,
        frame: &ScreenFrame<'_>,
        state: &AdminState,
        backends: &[DemoBackend],
    ) -> Result<(), CliError> {
        let size = ui::size();
        let mut text = if self.is_open { String::new() } else { ENTER.to_owned() };
        text.push_str("\x1b[H");
        // A line feed on the last row would scroll the screen.
        for line in render(self.terminal, frame, state, backends, size.columns).iter().take(size.rows - 1) {
            text.extend([&*ui::cut(line, size.columns), "\x1b[K\r\n"]);
        }
        text.push_str("\x1b[J");
        self.is_open = true;
        self.terminal.print_raw(text)
    }

    /// Returns to the normal screen.
    pub(super) fn close(&mut self) -> Result<(), CliError> {
        if std::mem::take(&mut self.is_open) { self.terminal.print_raw(LEAVE) } else { Ok(()) }
    }
}

impl Drop for DemoScreen<'_> {
    fn drop(&mut self) {
        // Fails if standard output is closed.
        let _ = self.close();
    }
}

/// Length of a bar in characters.
const BAR: usize = 5;

/// Number of columns that a whole table needs.
pub(super) const WIDE: usize = 80;

/// Renders the lines of a frame. Terminals of at least 50 columns show each line in full, except for long paths.
fn render(
    terminal: &TerminalOutput,
    frame: &ScreenFrame<'_>,
    state: &AdminState,
    backends: &[DemoBackend],
    columns: usize,
) -> Vec<String> {
    let act = &ACTS[frame.act];
    let wrapped = |style: Option<TextStyle>, text: &str| -> Vec<String> {
        let lines = ui::wrapped(text, columns - 1).into_iter();
        lines
            .map(|line| style.map_or(line.clone(), |style| terminal.paint(style, line).to_string()))
            .collect()
    };
    let number = format!("act {} of {}: {}", frame.act + 1, ACTS.len(), act.title);
    let mut lines = wrapped(Some(TextStyle::Title), &number);
    let bar = bar(frame.progress, 2 * BAR, '━', '─');
    match lines.last_mut() {
        Some(last) if number.chars().count() + 2 + 2 * BAR < columns => last.extend(["  ", &*bar]),
        _ => lines.push(bar),
    }
    lines.extend(wrapped(Some(TextStyle::Faint), act.caption));
    lines.push(String::new());
    lines.extend(rows(terminal, state, backends, columns).lines().map(str::to_owned));
    lines.push(String::new());
    if let Some(channel) = state.channels.first() {
        let traffic = &channel.traffic;
        let text = format!(
            "all calls: {:.0}/s, {:.0}/s failed, p50 {}, p99 {}",
            traffic.rate,
            traffic.failures,
            millis(traffic.p50_ms),
            millis(traffic.p99_ms)
        );
        lines.extend(wrapped(None, &text));
    }
    lines.extend(wrapped(Some(TextStyle::Faint), &format!("last: {}", ui::safe(frame.last))));
    lines.extend(frame.page.map(|page| format!("page: {page}")));
    lines.push(format!("mesh: {}", ui::safe(frame.mesh)));
    lines
}

/// Renders the table of backends. Narrow terminals show the columns that every act is about.
fn rows(terminal: &TerminalOutput, state: &AdminState, backends: &[DemoBackend], columns: usize) -> String {
    let heads = ["backend", "max/s", "state", "want", "got", "calls/s", "busy", "", "p99", "fail/s"];
    let head = |(i, head): (usize, &str)| {
        let cell = if matches!(i, 0 | 2 | 7) { TableCell::new(head) } else { TableCell::right(head) };
        cell.style(TextStyle::Faint)
    };
    let mut rows: Vec<Vec<TableCell>> = vec![heads.into_iter().enumerate().map(head).collect()];
    for backend in backends {
        let address = backend.address.to_string();
        let mut endpoints = state.channels.iter().flat_map(|channel| &channel.endpoints);
        let endpoint = endpoints.find(|endpoint| endpoint.address == address);
        rows.push(row(backend.name, backend.capacity, endpoint));
    }
    if columns < WIDE {
        keep_columns(&mut rows, &[0, 2, 3, 4, 5, 9]);
    }
    table(&rows, terminal)
}

fn millis(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0} ms"))
}

fn row(name: &str, capacity: u32, endpoint: Option<&EndpointInfo>) -> Vec<TableCell> {
    let head = [TableCell::new(name), TableCell::right(capacity.to_string())];
    let Some(endpoint) = endpoint else { return head.into_iter().chain([TableCell::new("-")]).collect() };
    let (state, style) = match endpoint.state {
        ConnectivityState::Ready => ("ready", TextStyle::Good),
        ConnectivityState::Connecting => ("trying", TextStyle::Warn),
        ConnectivityState::TransientFailure => ("down", TextStyle::Bad),
        ConnectivityState::Idle => ("idle", TextStyle::Faint),
    };
    let share = |share: Option<f64>| {
        TableCell::right(share.map_or_else(|| "-".to_owned(), |share| format!("{:.1}%", share * 100.0)))
    };
    // The last report is stale once the endpoint is not READY.
    let busy = endpoint.utilization.filter(|_| endpoint.state == ConnectivityState::Ready);
    let is_full = busy.is_some_and(|busy| busy >= 0.95);
    let busy_style = if is_full { TextStyle::Bad } else { TextStyle::Good };
    let mark = if is_full { "!" } else { "" };
    let traffic = &endpoint.traffic;
    let failures = match traffic.failures {
        none if none < 0.5 => TableCell::right("0"),
        some => TableCell::right(format!("{some:.0}")).style(TextStyle::Bad),
    };
    head.into_iter()
        .chain([
            TableCell::new(state).style(style),
            share(endpoint.want),
            share(endpoint.got),
            TableCell::right(format!("{:.0}", traffic.rate)),
            TableCell::right(busy.map_or_else(|| "-".to_owned(), |busy| percent(busy, 0))),
            TableCell::new(format!("{}{mark}", bar(busy.unwrap_or(0.0), BAR, '█', '·'))).style(busy_style),
            TableCell::right(millis(traffic.p99_ms)),
            failures,
        ])
        .collect()
}

fn bar(share: f64, width: usize, full: char, empty: char) -> String {
    let filled = ((share * width as f64).round() as usize).min(width);
    (0..width).map(|i| if i < filled { full } else { empty }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::acts::DemoEvent;
    use super::super::fleet::BACKENDS;
    use super::*;
    use crate::ui::ColorMode;

    /// The widest frame fits 24 rows of 80 columns, and of 50 columns.
    #[test]
    fn the_picture_fits_a_small_terminal() {
        let traffic = json!({ "started": 1, "succeeded": 1, "failed": 1, "in_flight": 1, "rate": 600.4, "failures": 120.4,
                              "p50_ms": 1070.4, "p99_ms": 1070.4 });
        let endpoints: Vec<_> = (0..BACKENDS.len())
            .map(|i| {
                json!({ "address": format!("127.0.0.1:{}", 1000 + i), "name": null, "cluster": null, "priority": null, "locality": null,
                        "state": (["READY", "CONNECTING", "TRANSIENT_FAILURE", "IDLE"][i % 4]), "unused": null, "weight": null,
                        "want": 1.0, "got": 1.0, "utilization": 1.0, "traffic": traffic })
            })
            .collect();
        let state: AdminState = serde_json::from_value(json!({
            "title": "", "version": "", "pid": 1, "since": 0, "at": 0, "xds": [], "events": [], "hints": [],
            "channels": [{ "id": 1, "target": "", "state": "READY", "traffic": traffic, "endpoints": endpoints, "tree": null }],
        }))
        .expect("a state");
        let backends = DemoBackend::stopped_all();
        for (act, told) in ACTS.iter().enumerate() {
            let edits = told.events.iter().filter_map(|(_, event)| match event {
                DemoEvent::Mesh(plan) => Some(plan.summary()),
                _ => None,
            });
            for last in edits.chain(["large started again".to_owned()]) {
                let page = Some("http://127.0.0.1:65535/");
                let mesh = "/tmp/evenkeel-demo-BwuJqX/mesh.yaml";
                let frame = ScreenFrame { act, progress: 1.0, last: &last, page, mesh };
                for columns in [80, 50] {
                    let terminal = TerminalOutput::new(ColorMode::Never);
                    let lines = render(&terminal, &frame, &state, &backends, columns);
                    let picture = lines.join("\n");
                    assert!(lines.iter().all(|line| line.chars().count() < columns), "{columns}:\n{picture}");
                    assert!(lines.len() < 24, "{picture}");
                    assert!(BACKENDS.iter().all(|(name, _)| picture.contains(name)), "{picture}");
                    assert!(picture.contains(mesh) && picture.contains("fail/s"), "{picture}");
                    assert_eq!(picture.contains("busy"), columns == 80, "{picture}");
                }
            }
        }
    }

    #[test]
    fn bars_are_as_long_as_they_should() {
        for (share, expected) in
            [(0.0, "...."), (0.5, "##.."), (1.0, "####"), (7.0, "####"), (f64::NAN, "....")]
        {
            assert_eq!(bar(share, 4, '#', '.'), expected);
        }
    }
}
