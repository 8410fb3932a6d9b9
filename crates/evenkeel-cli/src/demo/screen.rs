//! Live display of the demo on a terminal. Without a terminal the demo prints lines instead.

use evenkeel::ConnectivityState;
use evenkeel::admin::{AdminState, EndpointInfo};

use super::acts::ACTS;
use super::fleet::DemoBackend;
use super::report::percent;
use crate::table::{TableCell, table};
use crate::ui::{self, CliError, TerminalOutput, TextStyle};

/// Display that redraws in place.
pub(super) struct DemoScreen<'t> {
    terminal: &'t TerminalOutput,
    /// Number of lines of the previous frame.
    lines: usize,
}

/// Progress of the demo, as one frame shows it.
pub(super) struct ScreenFrame<'m> {
    pub(super) act: usize,
    /// Elapsed fraction of the act, 0 to 1.
    pub(super) progress: f64,
    /// Log line of the latest event.
    pub(super) last: &'m str,
    pub(super) page: Option<&'m str>,
}

impl DemoScreen<'_> {
    pub(super) fn new(terminal: &TerminalOutput) -> DemoScreen<'_> {
        DemoScreen { terminal, lines: 0 }
    }

    /// Draws a frame over the previous one.
    pub(super) fn draw(
        &mut self,
        frame: &ScreenFrame<'_>,
        state: &AdminState,
        backends: &[DemoBackend],
    ) -> Result<(), CliError> {
        let picture = render(self.terminal, frame, state, backends);
        let mut text = self.back();
        for line in picture.lines() {
            text.push_str(line);
            text.push_str("\x1b[K\n");
        }
        text.push_str("\x1b[J");
        self.lines = picture.lines().count();
        self.terminal.print_raw(text)
    }

    /// Erases the previous frame.
    pub(super) fn clear(&mut self) -> Result<(), CliError> {
        let text = format!("{}\x1b[J", self.back());
        self.lines = 0;
        self.terminal.print_raw(text)
    }

    fn back(&self) -> String {
        if self.lines == 0 { String::new() } else { format!("\r\x1b[{}A", self.lines) }
    }
}

/// Length of a bar in characters. Rows must fit 80 columns: a wrapped line would break the cursor arithmetic
/// of redrawing in place.
const BAR: usize = 5;

fn render(
    terminal: &TerminalOutput,
    frame: &ScreenFrame<'_>,
    state: &AdminState,
    backends: &[DemoBackend],
) -> String {
    let act = &ACTS[frame.act];
    let channel = state.channels.first();
    let number = format!("act {} of {}: {}", frame.act + 1, ACTS.len(), act.title);
    let mut lines = vec![
        format!("{}  {}", terminal.paint(TextStyle::Title, number), bar(frame.progress, 2 * BAR, '━', '─')),
        terminal.paint(TextStyle::Faint, act.caption).to_string(),
        String::new(),
        rows(terminal, state, backends),
    ];
    if let Some(channel) = channel {
        let traffic = &channel.traffic;
        lines.push(format!(
            "all calls: {:.0}/s, {:.0}/s failed, p50 {}, p99 {}",
            traffic.rate,
            traffic.failures,
            millis(traffic.p50_ms),
            millis(traffic.p99_ms)
        ));
    }
    lines.push(terminal.paint(TextStyle::Faint, format!("last: {}", ui::safe(frame.last))).to_string());
    lines.extend(frame.page.map(|page| format!("page: {page}")));
    lines.join("\n")
}

fn rows(terminal: &TerminalOutput, state: &AdminState, backends: &[DemoBackend]) -> String {
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

    /// The widest frame fits a terminal of 80 columns and 24 rows.
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
                let frame = ScreenFrame { act, progress: 1.0, last: &last, page };
                let picture = render(&TerminalOutput::new(ColorMode::Never), &frame, &state, &backends);
                assert!(picture.lines().all(|line| line.chars().count() < 80), "{picture}");
                assert!(picture.lines().count() < 24, "{picture}");
                assert!(BACKENDS.iter().all(|(name, _)| picture.contains(name)), "{picture}");
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
