//! What had to be reached by calls, beside what was.

use crate::calls::bed::Figures;
use crate::calls::ratio::Ratio;
use crate::calls::results::Results;
use crate::calls::scenario::{BASE, ONE_BACKEND, Scenario};
use crate::calls::shares::Shares;
use crate::calls::subjects::{EVENKEEL, EVENKEEL_EDF, GRPC_GO, HYPER, Subject, TONIC, TONIC_BALANCE};
use crate::table::Table;

/// Where a figure has to be.
#[derive(Clone, Copy)]
enum Bar {
    AtMost(f64),
    AtLeast(f64),
}

impl Bar {
    fn is_reached(self, value: f64) -> bool {
        match self {
            Bar::AtMost(bar) => value <= bar,
            Bar::AtLeast(bar) => value >= bar,
        }
    }

    fn words(self) -> String {
        match self {
            Bar::AtMost(bar) => format!("at most {bar:.2}"),
            Bar::AtLeast(bar) => format!("at least {bar:.2}"),
        }
    }
}

/// A ratio of evenkeel to another client.
struct Beside {
    what: &'static str,
    scenario: Scenario,
    base: Subject,
    figure: fn(&Figures) -> f64,
    bar: Bar,
}

const BARS: [Beside; 5] = [
    Beside {
        what: "CPU per call beside hyper",
        scenario: BASE,
        base: HYPER,
        figure: Figures::cpu_per_call,
        bar: Bar::AtMost(0.90),
    },
    Beside {
        what: "CPU per call beside tonic's balance_list",
        scenario: BASE,
        base: TONIC_BALANCE,
        figure: Figures::cpu_per_call,
        bar: Bar::AtMost(0.72),
    },
    Beside {
        what: "calls per second beside tonic's balance_list",
        scenario: BASE,
        base: TONIC_BALANCE,
        figure: Figures::throughput,
        bar: Bar::AtLeast(1.3),
    },
    Beside {
        what: "CPU per call beside tonic's channel, one backend each",
        scenario: ONE_BACKEND,
        base: TONIC,
        figure: Figures::cpu_per_call,
        bar: Bar::AtMost(0.90),
    },
    Beside {
        what: "calls per second of CPU beside grpc-go",
        scenario: BASE,
        base: GRPC_GO,
        figure: calls_per_cpu,
        bar: Bar::AtLeast(1.5),
    },
];

fn calls_per_cpu(figures: &Figures) -> f64 {
    if figures.cpu > 0.0 { figures.calls / figures.cpu } else { 0.0 }
}

/// What a run did not measure is `-`.
pub(crate) fn table(results: &[Results], shares: &Shares) -> Table {
    let note = format!(
        "evenkeel through xDS with weighted_round_robin and a load report with every answer; {BASE} unless said otherwise. A \
         ratio is the median of the rounds, with the least and the greatest."
    );
    let mut table =
        Table::new("what calls had to reach", &["figure", "to reach", "measured", "reached"]).note(note);
    for Beside { what, scenario, base, figure, bar } in BARS {
        let results = results.iter().find(|results| results.scenario == scenario);
        let ratio = results.and_then(|results| results.ratio(EVENKEEL, base, figure));
        table.row(row(what, bar, ratio.map(|ratio: Ratio| (ratio.middle, ratio.to_string()))));
    }
    let error = shares.error_of(EVENKEEL_EDF).map(|error| (error * 100.0, format!("{:.3}", error * 100.0)));
    table.row(row("largest error of a share, weights 1 to 10, in %", Bar::AtMost(0.1), error));
    table
}

fn row(what: &str, bar: Bar, measured: Option<(f64, String)>) -> Vec<String> {
    let (measured, reached) = match measured {
        Some((value, shown)) => (shown, if bar.is_reached(value) { "yes" } else { "no" }),
        None => ("-".to_owned(), "-"),
    };
    vec![what.to_owned(), bar.words(), measured, reached.to_owned()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_reached_or_not_or_unknown() {
        let last = |bar, value: Option<f64>| row("", bar, value.map(|value| (value, String::new()))).pop();
        assert_eq!(last(Bar::AtMost(0.9), Some(0.9)).as_deref(), Some("yes"));
        assert_eq!(last(Bar::AtMost(0.9), Some(0.91)).as_deref(), Some("no"));
        assert_eq!(last(Bar::AtLeast(1.5), Some(1.4)).as_deref(), Some("no"));
        assert_eq!(last(Bar::AtLeast(1.5), Some(1.6)).as_deref(), Some("yes"));
        assert_eq!(last(Bar::AtLeast(1.5), None).as_deref(), Some("-"));
    }
}
