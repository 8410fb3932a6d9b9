//! What a suite comes to, and what had to be reached beside what was.

use crate::table::Table;

/// What a suite comes to.
#[derive(Default)]
pub(crate) struct Measured {
    pub(crate) tables: Vec<Table>,
    /// What had to be reached.
    pub(crate) bars: Vec<Reach>,
    /// The peers that are not this program.
    pub(crate) versions: Vec<(&'static str, String)>,
}

impl Measured {
    pub(crate) fn tables(tables: Vec<Table>) -> Measured {
        Measured { tables, ..Measured::default() }
    }
}

/// Where a figure has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bar {
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
            Bar::AtMost(bar) => format!("at most {bar}"),
            Bar::AtLeast(bar) => format!("at least {bar}"),
        }
    }
}

/// A figure that has to be somewhere.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reach {
    what: String,
    bar: Bar,
    /// The figure, and how it is shown. `None` if this run did not measure it.
    measured: Option<(f64, String)>,
}

impl Reach {
    pub(crate) fn new(what: impl Into<String>, bar: Bar, measured: Option<(f64, String)>) -> Reach {
        Reach { what: what.into(), bar, measured }
    }

    /// With a figure that is shown with two digits.
    pub(crate) fn figure(what: impl Into<String>, bar: Bar, measured: Option<f64>) -> Reach {
        Reach::new(what, bar, measured.map(|value| (value, format!("{value:.2}"))))
    }

    fn row(&self) -> Vec<String> {
        let (measured, reached) = match &self.measured {
            Some((value, shown)) => (shown.clone(), if self.bar.is_reached(*value) { "yes" } else { "no" }),
            None => ("-".to_owned(), "-"),
        };
        vec![self.what.clone(), self.bar.words(), measured, reached.to_owned()]
    }
}

/// What a run did not measure is `-`.
pub(crate) fn table(bars: &[Reach]) -> Table {
    let mut table = Table::new("what had to be reached", &["figure", "to reach", "measured", "reached"]).note(
        "evenkeel through xDS with weighted_round_robin and a load report with every answer, unary calls of 16 B, 64 at a \
         time, 10 backends, unless said otherwise. Ratios of time are medians of the rounds, with the least and the greatest.",
    );
    for bar in bars {
        table.row(bar.row());
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_reached_or_not_or_unknown() {
        let last = |bar, value: Option<f64>| Reach::figure("", bar, value).row().pop();
        assert_eq!(last(Bar::AtMost(0.9), Some(0.9)).as_deref(), Some("yes"));
        assert_eq!(last(Bar::AtMost(0.9), Some(0.91)).as_deref(), Some("no"));
        assert_eq!(last(Bar::AtLeast(1.5), Some(1.4)).as_deref(), Some("no"));
        assert_eq!(last(Bar::AtLeast(1.5), Some(1.6)).as_deref(), Some("yes"));
        assert_eq!(last(Bar::AtLeast(1.5), None).as_deref(), Some("-"));
    }
}
