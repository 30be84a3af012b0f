//! Whether Redis is asked: not while it does not answer, so that requests stop paying for it.
//!
//! Closed: it is asked. Open: it is not, but probed now and then by a task of its own; each failed probe doubles the
//! pause. After [`PROBES`] good probes in a row it is closed again.

use crate::units::Nanos;

/// A breaker. Pure: time and chance are handed in.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Breaker {
    state: State,
    /// Failures since the last success.
    in_a_row: u32,
    /// Calls and failures since this second began.
    second: (Nanos, u32, u32),
}

/// What a breaker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Redis is asked.
    Closed,
    /// It is left alone, and probed after a pause.
    Open {
        /// How long.
        pause: Nanos,
    },
    /// The last probes were good, so many of them.
    HalfOpen {
        /// How many.
        good: u32,
    },
}

impl State {
    /// A word for metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open { .. } => "open",
            Self::HalfOpen { .. } => "half_open",
        }
    }
}

/// So many failures in a row open it.
const IN_A_ROW: u32 = 5;
/// So many calls in a second open it when half of them fail.
const ENOUGH: u32 = 20;
/// So many good probes close it.
const PROBES: u32 = 3;
/// The first pause and the longest.
const FIRST_PAUSE: Nanos = Nanos::new(250_000_000);
const LONGEST_PAUSE: Nanos = Nanos::SECOND;

impl Breaker {
    /// Closed.
    pub(super) const fn new() -> Self {
        Self { state: State::Closed, in_a_row: 0, second: (Nanos::ZERO, 0, 0) }
    }

    /// What it is.
    pub(super) const fn state(&self) -> State {
        self.state
    }

    /// A call was answered.
    pub(super) fn succeeded(&mut self, now: Nanos) {
        self.in_a_row = 0;
        self.count(now, 0);
    }

    /// A call failed, or was not answered in time. Whether this opened the breaker.
    pub(super) fn failed(&mut self, now: Nanos) -> bool {
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.count(now, 1);
        let (_, calls, failures) = self.second;
        let often = calls >= ENOUGH && failures >= calls.div_ceil(2);
        let opens = self.state == State::Closed && (self.in_a_row >= IN_A_ROW || often);
        if opens {
            self.state = State::Open { pause: FIRST_PAUSE };
        }
        opens
    }

    /// A probe ended. Whether this closed the breaker.
    pub(super) fn probed(&mut self, good: bool) -> bool {
        self.state = match (self.state, good) {
            (State::Closed, _) => return false,
            (State::Open { .. }, true) => State::HalfOpen { good: 1 },
            (State::HalfOpen { good }, true) if good.saturating_add(1) >= PROBES => {
                *self = Self::new();
                return true;
            }
            (State::HalfOpen { good }, true) => State::HalfOpen { good: good.saturating_add(1) },
            (State::Open { pause }, false) => State::Open { pause: pause.saturating_add(pause).min(LONGEST_PAUSE) },
            (State::HalfOpen { .. }, false) => State::Open { pause: FIRST_PAUSE },
        };
        false
    }

    /// How long to wait before the next probe; `roll` of 2^32 spreads it by a fifth either way, so that nodes do not all
    /// probe at once. `None` where it is closed.
    pub(super) fn pause(&self, roll: u32) -> Option<Nanos> {
        match self.state {
            State::Closed => None,
            State::HalfOpen { .. } => Some(Nanos::ZERO),
            State::Open { pause } => {
                let least = pause.get() / 5 * 4;
                let spread = u128::from(pause.get() / 5 * 2).saturating_mul(u128::from(roll)) >> u32::BITS;
                Some(Nanos::new(least.saturating_add(u64::try_from(spread).unwrap_or(u64::MAX))))
            }
        }
    }

    fn count(&mut self, now: Nanos, failures: u32) {
        let (began, calls, failed) = self.second;
        self.second = match now.saturating_sub(began) < Nanos::SECOND {
            true => (began, calls.saturating_add(1), failed.saturating_add(failures)),
            false => (now, 1, failures),
        };
    }
}

impl Default for Breaker {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened() -> Breaker {
        let mut breaker = Breaker::new();
        let opens = (0..10).position(|_| breaker.failed(Nanos::ZERO));
        assert_eq!(opens, Some(4), "the fifth in a row");
        breaker
    }

    #[test]
    fn failures_in_a_row_open_it_and_good_probes_close_it() {
        let mut breaker = opened();
        assert_eq!(breaker.state(), State::Open { pause: FIRST_PAUSE });
        assert_eq!([true, true, true].map(|good| breaker.probed(good)), [false, false, true]);
        assert_eq!(breaker, Breaker::new());
    }

    #[test]
    fn half_of_many_calls_open_it() {
        let mut breaker = Breaker::new();
        let outcomes = (0..40).map(|call| match call % 2 {
            0 => {
                breaker.succeeded(Nanos::SECOND);
                false
            }
            _ => breaker.failed(Nanos::SECOND),
        });
        assert_eq!(outcomes.collect::<Vec<_>>().iter().position(|opened| *opened), Some(19));
    }

    #[test]
    fn failures_far_apart_do_not_open_it() {
        let mut breaker = Breaker::new();
        for second in 0..100 {
            let now = Nanos::from_secs(second);
            assert!(!breaker.failed(now));
            (0..3).for_each(|_| breaker.succeeded(now));
        }
    }

    #[test]
    fn pauses_double_up_to_a_second_and_are_spread() {
        let mut breaker = opened();
        let pauses = (0..4).map(|_| {
            let pause = breaker.pause(1 << 31).unwrap();
            breaker.probed(false);
            pause.get() / 1_000_000
        });
        assert_eq!(pauses.collect::<Vec<_>>(), [250, 500, 1000, 1000]);
        let (least, most) = (breaker.pause(0).unwrap(), breaker.pause(u32::MAX).unwrap());
        assert!(least == Nanos::new(800_000_000) && most > Nanos::new(1_199_000_000), "{least} {most}");
        breaker.probed(true);
        assert_eq!(breaker.pause(0), Some(Nanos::ZERO));
        breaker.probed(false);
        assert_eq!(breaker.state(), State::Open { pause: FIRST_PAUSE });
    }
}
