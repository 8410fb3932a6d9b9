//! Randomness of the core, seeded by the driver.
//!
//! [`Rng::fixed`] is for tests and simulations: every run is the same, and schedules start at phase 0.
//! [`Rng::from_entropy`] is for production, where clients must not pick in lockstep.

/// Small, fast, seedable generator (xoshiro256++). Not for cryptography.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
    fixed: bool,
}

impl Rng {
    /// Creates a reproducible generator: the same seed gives the same run, and schedules start at phase 0.
    pub fn fixed(seed: u64) -> Rng {
        Rng::new(seed, true)
    }

    /// Creates a generator for production. The caller takes the seed from the operating system's entropy.
    pub fn from_entropy(seed: u64) -> Rng {
        Rng::new(seed, false)
    }

    fn new(seed: u64, fixed: bool) -> Rng {
        let mut x = seed;
        let state = std::array::from_fn(|_| split_mix(&mut x));
        Rng { state, fixed }
    }

    /// Returns true if the generator was created by [`Rng::fixed`].
    pub fn is_fixed(&self) -> bool {
        self.fixed
    }

    /// Returns the next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let out = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        out
    }

    /// Returns a number in `0..bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        scale(self.next_u64(), bound)
    }

    /// Returns a number in the open interval (0, 1).
    pub fn unit(&mut self) -> f64 {
        unit(self.next_u64())
    }

    /// Returns the start of a schedule: random bits in production, `None` (phase 0) for a fixed generator.
    pub fn phase(&mut self) -> Option<u64> {
        (!self.fixed).then(|| self.next_u64())
    }
}

/// Performs one step of `SplitMix64`: every state gives a well-mixed number.
pub(crate) fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Maps 64 random bits to `0..bound` without a division; the bias is below `bound / 2^64`.
pub(crate) fn scale(bits: u64, bound: u64) -> u64 {
    ((u128::from(bits) * u128::from(bound)) >> 64) as u64
}

fn unit(bits: u64) -> f64 {
    ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}
