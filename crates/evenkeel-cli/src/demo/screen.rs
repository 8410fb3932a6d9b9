//! What a person sees while the demo runs: a picture that is drawn in place, or a few lines where nobody watches.

use evenkeel::Connectivity;
use evenkeel::admin::{EndpointState, State};

use super::acts::ACTS;
use super::fleet::Backend;
use super::report::percent;
use crate::table::{Cell, table};
use crate::ui::{Failure, Style, Terminal};

/// Draws in place.
pub(super) struct Screen<'t> {
    terminal: &'t Terminal,
    /// How many lines the last picture has.
    lines: usize,
}

/// Where the story is.
pub(super) struct Moment<'m> {
    pub(super) act: usize,
    /// How much of the act is over, 0 to 1.
    pub(super) over: f64,
    /// What happened last.
    pub(super) last: &'m str,
    pub(super) page: Option<&'m str>,
}

impl Screen<'_> {
    pub(super) fn new(terminal: &Terminal) -> Screen<'_> {
        Screen { terminal, lines: 0 }
    }

    /// Draws the picture over the last one.
    pub(super) fn draw(
        &mut self,
        moment: &Moment<'_>,
        state: &State,
        backends: &[Backend],
    ) -> Result<(), Failure> {
        let picture = picture(self.terminal, moment, state, backends);
        let mut text = self.back();
        for line in picture.lines() {
            text.push_str(line);
            text.push_str("\x1b[K\n");
        }
        text.push_str("\x1b[J");
        self.lines = picture.lines().count();
        self.terminal.print(text)
    }

    /// Takes the picture away.
    pub(super) fn clear(&mut self) -> Result<(), Failure> {
        let text = format!("{}\x1b[J", self.back());
        self.lines = 0;
        self.terminal.print(text)
    }

    fn back(&self) -> String {
        if self.lines == 0 { String::new() } else { format!("\r\x1b[{}A", self.lines) }
    }
}

const BAR: usize = 10;

fn picture(terminal: &Terminal, moment: &Moment<'_>, state: &State, backends: &[Backend]) -> String {
    let act = &ACTS[moment.act];
    let channel = state.channels.first();
    let number = format!("act {} of {}: {}", moment.act + 1, ACTS.len(), act.title);
    let mut lines = vec![
        format!("{}  {}", terminal.paint(Style::Title, number), bar(moment.over, BAR, '━', '─')),
        terminal.paint(Style::Faint, act.says).to_string(),
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
    lines.push(terminal.paint(Style::Faint, format!("last: {}", moment.last)).to_string());
    lines.extend(moment.page.map(|page| format!("page: {page}")));
    lines.join("\n")
}

fn rows(terminal: &Terminal, state: &State, backends: &[Backend]) -> String {
    let heads = ["backend", "can do", "state", "want", "got", "", "calls/s", "busy", "", "p99", "failed/s"];
    let head = |(i, head): (usize, &str)| {
        let cell = if matches!(i, 0 | 2 | 5 | 8) { Cell::new(head) } else { Cell::right(head) };
        cell.style(Style::Faint)
    };
    let mut rows: Vec<Vec<Cell>> = vec![heads.into_iter().enumerate().map(head).collect()];
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

fn row(name: &str, capacity: u32, endpoint: Option<&EndpointState>) -> Vec<Cell> {
    let head = [Cell::new(name), Cell::right(format!("{capacity}/s"))];
    let Some(endpoint) = endpoint else { return head.into_iter().chain([Cell::new("unknown")]).collect() };
    let (state, style) = match endpoint.state {
        Connectivity::Ready => ("ready", Style::Good),
        Connectivity::Connecting => ("connecting", Style::Warn),
        Connectivity::TransientFailure => ("down", Style::Bad),
        Connectivity::Idle => ("idle", Style::Faint),
    };
    let share =
        |share: Option<f64>| Cell::right(share.map_or_else(|| "-".to_owned(), |share| percent(share, 1)));
    // What a backend said last is old news once it is gone.
    let busy = endpoint.utilization.filter(|_| endpoint.state == Connectivity::Ready);
    let is_full = busy.is_some_and(|busy| busy >= 0.95);
    let busy_style = if is_full { Style::Bad } else { Style::Good };
    let mark = if is_full { "!" } else { "" };
    let traffic = &endpoint.traffic;
    let failures = match traffic.failures {
        none if none < 0.5 => Cell::right("0"),
        some => Cell::right(format!("{some:.0}")).style(Style::Bad),
    };
    head.into_iter()
        .chain([
            Cell::new(state).style(style),
            share(endpoint.want),
            share(endpoint.got),
            Cell::new(bar(endpoint.got.unwrap_or(0.0), BAR, '█', '·')),
            Cell::right(format!("{:.0}", traffic.rate)),
            Cell::right(busy.map_or_else(|| "-".to_owned(), |busy| percent(busy, 0))),
            Cell::new(format!("{}{mark}", bar(busy.unwrap_or(0.0), BAR, '█', '·'))).style(busy_style),
            Cell::right(millis(traffic.p99_ms)),
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
    use super::*;

    #[test]
    fn bars_are_as_long_as_they_should() {
        for (share, expected) in
            [(0.0, "...."), (0.5, "##.."), (1.0, "####"), (7.0, "####"), (f64::NAN, "....")]
        {
            assert_eq!(bar(share, 4, '#', '.'), expected);
        }
    }
}
