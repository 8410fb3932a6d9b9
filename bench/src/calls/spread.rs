//! Ratios of one run with their spread, and medians.

use std::fmt;

/// The least, the median and the greatest of a ratio that every round gives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) low: f64,
    pub(crate) middle: f64,
    pub(crate) high: f64,
}

impl Spread {
    /// Ratios round by round: a round's noise hits both. `None` where no round has both.
    pub(crate) fn of_ratios(pairs: impl Iterator<Item = (f64, f64)>) -> Option<Spread> {
        let ratios: Vec<f64> =
            pairs.filter(|(_, base)| *base > 0.0).map(|(value, base)| value / base).collect();
        let low = ratios.iter().copied().reduce(f64::min)?;
        let high = ratios.iter().copied().reduce(f64::max)?;
        Some(Spread { low, middle: median(ratios)?, high })
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} ({:.2}..{:.2})", self.middle, self.low, self.high)
    }
}

/// `None` if there is nothing.
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
        let spread = Spread::of_ratios([(1.0, 2.0), (30.0, 20.0), (8.0, 10.0)].into_iter());
        assert_eq!(spread, Some(Spread { low: 0.5, middle: 0.8, high: 1.5 }));
        assert_eq!(spread.map(|spread| spread.to_string()).as_deref(), Some("0.80 (0.50..1.50)"));
    }

    #[test]
    fn what_took_nothing_has_no_ratio() {
        assert_eq!(Spread::of_ratios([(1.0, 0.0)].into_iter()), None);
    }
}
