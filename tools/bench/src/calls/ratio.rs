//! Ratios of one run with the spread of its rounds, and medians.

use std::fmt;

/// Minimum, median and maximum of a ratio over the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    pub(crate) low: f64,
    pub(crate) middle: f64,
    pub(crate) high: f64,
}

impl Ratio {
    /// Computes the ratios per round, since noise of a round affects both values. Returns `None` if no round
    /// has both.
    pub(crate) fn of_rounds(pairs: impl Iterator<Item = (f64, f64)>) -> Option<Ratio> {
        let ratios: Vec<f64> =
            pairs.filter(|(_, base)| *base > 0.0).map(|(value, base)| value / base).collect();
        let low = ratios.iter().copied().reduce(f64::min)?;
        let high = ratios.iter().copied().reduce(f64::max)?;
        Some(Ratio { low, middle: median(ratios)?, high })
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} ({:.2}..{:.2})", self.middle, self.low, self.high)
    }
}

/// Returns the median; `None` for an empty list.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    Some(f64::midpoint(values[last / 2], values[last.div_ceil(2)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_between() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn ratios_are_of_the_same_round() {
        let ratio = Ratio::of_rounds([(1.0, 2.0), (30.0, 20.0), (8.0, 10.0)].into_iter());
        assert_eq!(ratio, Some(Ratio { low: 0.5, middle: 0.8, high: 1.5 }));
        assert_eq!(ratio.map(|ratio| ratio.to_string()).as_deref(), Some("0.80 (0.50..1.50)"));
    }

    #[test]
    fn what_took_nothing_has_no_ratio() {
        assert_eq!(Ratio::of_rounds([(1.0, 0.0)].into_iter()), None);
    }
}
