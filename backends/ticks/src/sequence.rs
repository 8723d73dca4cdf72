//! Numbers that look random and that a seed decides.

/// splitmix64 (Steele, Lea & Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
#[derive(Clone, Debug)]
pub(crate) struct Sequence(u64);

impl Sequence {
    /// The sequence of one part of a simulation: parts of one seed are unrelated.
    pub(crate) fn new(seed: u64, part: u64) -> Self {
        let mut parts = Self(seed);
        let first = parts.next_u64();
        Self(first ^ part.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Evenly from -1 up to, and without, 1.
    pub(crate) fn next_signed(&mut self) -> f64 {
        let unit = (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        2.0 * unit - 1.0
    }
}
