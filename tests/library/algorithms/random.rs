//! Pseudo-random numbers that are the same in every run.

/// SplitMix64: every seed is a good seed.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub(crate) const fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub(crate) const fn from(&mut self, low: u64, high: u64) -> u64 {
        match (high - low).checked_add(1) {
            Some(width) => low + self.any() % width,
            None => self.any(),
        }
    }

    /// True once in `times` times.
    pub(crate) const fn once_in(&mut self, times: u64) -> bool {
        self.any().is_multiple_of(times)
    }

    /// One of these.
    pub(crate) fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        let index = self.from(0, choices.len() as u64 - 1);
        choices[usize::try_from(index).expect("an index")]
    }
}
