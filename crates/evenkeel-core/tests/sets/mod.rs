//! Weight sets shared by the tests and the bench of the scheduler.

/// Random number generator with a fixed seed, so that every run has the same sets.
pub(crate) struct Lcg(pub(crate) u64);

impl Lcg {
    /// Returns a number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Varied small integers, with a mean of about 50.
pub(crate) fn mix(n: u32) -> Vec<u32> {
    let mut random = Lcg(7);
    (0..n).map(|_| 1 + random.below(100) as u32).collect()
}

/// Three machine sizes, 1:2:4.
pub(crate) fn tri(n: u32) -> Vec<u32> {
    (0..n).map(|i| 1 << (i % 3)).collect()
}

/// The first endpoint has one half of the total weight, the others share the rest.
pub(crate) fn half(n: u32) -> Vec<u32> {
    (0..n).map(|i| if i == 0 { (n - 1).max(1) } else { 1 }).collect()
}

/// A heavy tail: the weight of the i-th endpoint is 1/i of the first.
pub(crate) fn skew(n: u32) -> Vec<u32> {
    (1..=n).map(|i| (10 * n / i).max(1)).collect()
}

/// Name of a set and the function that generates it.
pub(crate) type Set = (&'static str, fn(u32) -> Vec<u32>);

/// All weight sets, for tests over each of them.
pub(crate) const SETS: [Set; 4] = [("mix", mix), ("tri", tri), ("half", half), ("skew", skew)];
