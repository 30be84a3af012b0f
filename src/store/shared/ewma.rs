//! The rate at which requests ask for the tokens of a key.

use crate::units::{Cost, Nanos};

/// An exponentially weighted mean in tokens per second, with a time constant of [`MEMORY`]. An estimate: it decides how
/// many tokens a gateway leases, never whether a request passes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct EwmaRate {
    per_second: f64,
    at: Nanos,
}

/// The time constant: older requests count for little.
const MEMORY: Nanos = Nanos::new(200_000_000);

impl EwmaRate {
    /// Records that a request asks for `cost` tokens at `now`.
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    pub(super) fn add(&mut self, cost: Cost, now: Nanos) {
        self.per_second = self.at(now) + cost as f64 / MEMORY.as_secs_f64();
        self.at = self.at.max(now);
    }

    /// The number of tokens that requests ask for in `time` at the current rate, rounded up.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates, and is never negative")]
    pub(super) fn within(&self, time: Nanos, now: Nanos) -> Cost {
        (self.at(now) * time.as_secs_f64()).ceil() as u64
    }

    fn at(&self, now: Nanos) -> f64 {
        let since = now.saturating_sub(self.at).as_secs_f64();
        self.per_second * (-since / MEMORY.as_secs_f64()).exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_pace_is_found_and_forgotten() {
        let mut pace = EwmaRate::default();
        let ms = |ms: u64| Nanos::new(ms * 1_000_000);
        (0..2000).for_each(|at| pace.add(1, ms(at)));
        let found = pace.within(Nanos::SECOND, ms(2000));
        assert!((990..=1010).contains(&found), "{found}");
        assert_eq!(pace.within(Nanos::SECOND, ms(9000)), 1, "rounded up from next to nothing");
        assert_eq!(EwmaRate::default().within(Nanos::SECOND, ms(1)), 0);
    }
}
