//! Results of a suite, and thresholds with the measured values.

use crate::table::Table;

/// Results of a suite.
#[derive(Default)]
pub(crate) struct Measured {
    pub(crate) tables: Vec<Table>,
    /// Thresholds with their measured values.
    pub(crate) thresholds: Vec<ThresholdResult>,
    /// Versions of the peers that are other programs.
    pub(crate) versions: Vec<(&'static str, String)>,
}

impl Measured {
    pub(crate) fn tables(tables: Vec<Table>) -> Measured {
        Measured { tables, ..Measured::default() }
    }
}

/// Bound of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Threshold {
    AtMost(f64),
    AtLeast(f64),
}

impl Threshold {
    fn is_reached(self, value: f64) -> bool {
        match self {
            Threshold::AtMost(threshold) => value <= threshold,
            Threshold::AtLeast(threshold) => value >= threshold,
        }
    }

    fn describe(self) -> String {
        match self {
            Threshold::AtMost(threshold) => format!("at most {threshold}"),
            Threshold::AtLeast(threshold) => format!("at least {threshold}"),
        }
    }
}

/// Threshold with its measured value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ThresholdResult {
    what: String,
    threshold: Threshold,
    /// Figure and its text. `None` if this run did not measure it.
    measured: Option<(f64, String)>,
}

impl ThresholdResult {
    pub(crate) fn new(
        what: impl Into<String>,
        threshold: Threshold,
        measured: Option<(f64, String)>,
    ) -> ThresholdResult {
        ThresholdResult { what: what.into(), threshold, measured }
    }

    /// Creates a result whose figure is shown with two digits.
    pub(crate) fn figure(
        what: impl Into<String>,
        threshold: Threshold,
        measured: Option<f64>,
    ) -> ThresholdResult {
        ThresholdResult::new(what, threshold, measured.map(|value| (value, format!("{value:.2}"))))
    }

    fn row(&self) -> Vec<String> {
        let (measured, reached) = match &self.measured {
            Some((value, shown)) => {
                (shown.clone(), if self.threshold.is_reached(*value) { "yes" } else { "no" })
            }
            None => ("-".to_owned(), "-"),
        };
        vec![self.what.clone(), self.threshold.describe(), measured, reached.to_owned()]
    }
}

/// Returns the table of thresholds. Unmeasured figures are `-`.
pub(crate) fn table(thresholds: &[ThresholdResult]) -> Table {
    let mut table = Table::new("Thresholds", &["figure", "to reach", "measured", "reached"]).note(
        "evenkeel through xDS with weighted_round_robin and a load report with every response, unary calls of 16 B, 64 at a \
         time, 10 backends, unless stated otherwise. Ratios of time are medians of the rounds, with minimum and maximum.",
    );
    for threshold in thresholds {
        table.row(threshold.row());
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_reached_or_not_or_unknown() {
        let last = |threshold, value: Option<f64>| ThresholdResult::figure("", threshold, value).row().pop();
        assert_eq!(last(Threshold::AtMost(0.9), Some(0.9)).as_deref(), Some("yes"));
        assert_eq!(last(Threshold::AtMost(0.9), Some(0.91)).as_deref(), Some("no"));
        assert_eq!(last(Threshold::AtLeast(1.5), Some(1.4)).as_deref(), Some("no"));
        assert_eq!(last(Threshold::AtLeast(1.5), Some(1.6)).as_deref(), Some("yes"));
        assert_eq!(last(Threshold::AtLeast(1.5), None).as_deref(), Some("-"));
    }
}
