//! Median and interquartile range of the figures of many rounds.

use std::fmt;

/// Quartiles of some figures, shown as the median with the other two in brackets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) low: f64,
    pub(crate) median: f64,
    pub(crate) high: f64,
}

impl Spread {
    /// Returns `None` for an empty list.
    pub(crate) fn of(mut figures: Vec<f64>) -> Option<Spread> {
        figures.sort_by(f64::total_cmp);
        let last = figures.len().checked_sub(1)?;
        // With few figures, rather too wide than too narrow.
        let [low, median, high] = [last / 4, last / 2, (3 * last).div_ceil(4)].map(|i| figures[i]);
        Some(Spread { low, median, high })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Spread { low, median, high } = self;
        let digits = f.precision().unwrap_or(1);
        write!(f, "{median:.digits$} ({low:.digits$}-{high:.digits$})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_half_of_the_figures_is_shown() {
        let figures = vec![9.0, 1.0, 2.0, 3.0, 100.0];
        let spread = Spread::of(figures).expect("there are figures");
        assert_eq!(spread, Spread { low: 2.0, median: 3.0, high: 9.0 });
        assert_eq!(format!("{spread:.2}"), "3.00 (2.00-9.00)");
        let few = Spread::of(vec![3.0, 1.0, 2.0]);
        assert_eq!(few, Some(Spread { low: 1.0, median: 2.0, high: 3.0 }));
        assert_eq!(Spread::of(Vec::new()), None);
    }
}
