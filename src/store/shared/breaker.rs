//! The circuit breaker for a Redis server: it stops calls while the server does not answer, so that requests do not wait.
//!
//! Closed: requests call the server. Open: they do not, but a probe does now and then; each failed probe doubles
//! the pause. The breaker closes after enough timely probes in a row: [`PROBES`], and twice as many each time that it
//! opens within [`CALM`] of closing, so that it does not close and open in turns if Redis is as slow as the timeout.

use crate::units::Nanos;

/// A breaker. Pure: time and randomness are passed in.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Breaker {
    state: State,
    /// Failures since the last success.
    in_a_row: u32,
    /// The time of the last late call that counted as a failure.
    late_at: Option<Nanos>,
    /// The start of the current second, and its calls and failures so far.
    second: (Nanos, u32, u32),
    /// The number of good probes in a row that close it.
    probes: u32,
    closed_at: Option<Nanos>,
}

/// The state of a breaker. The least is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Requests call Redis.
    Closed,
    /// The last probes were good, but not enough of them yet.
    HalfOpen {
        /// The number of good probes.
        good: u32,
    },
    /// Requests do not call Redis; a probe follows after a pause.
    Open {
        /// The pause before the next probe.
        pause: Nanos,
    },
}

impl State {
    /// The state's name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open { .. } => "open",
            Self::HalfOpen { .. } => "half_open",
        }
    }
}

/// The health of Redis, as one call or probe shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// Redis answered within the time that requests wait.
    InTime,
    /// Redis did not answer in that time, but may answer later.
    Late,
    /// Redis did not answer, or refused.
    Failed,
}

/// The number of failures in a row that opens the breaker.
const IN_A_ROW: u32 = 5;
/// The fewest calls in a second that open the breaker if half of them fail.
const ENOUGH: u32 = 20;
/// The number of good probes that closes the breaker: the default, and the maximum after repeated opening.
const PROBES: u32 = 3;
const MAX_PROBES: u32 = 24;
/// A breaker that opens this soon after it closed was closed too early.
const CALM: Nanos = Nanos::from_secs(10);
/// The first and the longest pause before a probe, and the pause after a good probe.
const FIRST_PAUSE: Nanos = Nanos::new(250_000_000);
const MAX_PAUSE: Nanos = Nanos::SECOND;
const PROBE_PAUSE: Nanos = Nanos::new(100_000_000);

impl Breaker {
    /// A closed breaker.
    pub(super) const fn new() -> Self {
        Self {
            state: State::Closed,
            in_a_row: 0,
            late_at: None,
            second: (Nanos::ZERO, 0, 0),
            probes: PROBES,
            closed_at: None,
        }
    }

    /// The breaker's state.
    pub(super) const fn state(&self) -> State {
        self.state
    }

    /// Records the result of a call whose requests wait for `timeout`. Returns whether it opened the breaker.
    pub(super) fn record_call(&mut self, health: Health, timeout: Nanos, now: Nanos) -> bool {
        // calls that are late at the same time have one cause, so they count once
        if health == Health::Late && self.late_at.is_some_and(|at| now.saturating_sub(at) < timeout) {
            return false;
        }
        let half_failed = self.count(health, now);
        match health {
            Health::InTime => (self.in_a_row, self.late_at) = (0, None),
            Health::Late | Health::Failed => {
                self.in_a_row = self.in_a_row.saturating_add(1);
                self.late_at = (health == Health::Late).then_some(now);
            }
        }
        let opens = self.state == State::Closed && (self.in_a_row >= IN_A_ROW || half_failed);
        if opens {
            let too_early = self.closed_at.is_some_and(|at| now.saturating_sub(at) < CALM);
            self.probes = if too_early { self.probes.saturating_mul(2).min(MAX_PROBES) } else { PROBES };
            self.state = State::Open { pause: FIRST_PAUSE };
        }
        opens
    }

    /// Records the result of a probe. Returns whether it closed the breaker.
    pub(super) fn record_probe(&mut self, health: Health, now: Nanos) -> bool {
        let good = match self.state {
            State::Closed => return false,
            State::Open { .. } => 1,
            State::HalfOpen { good } => good.saturating_add(1),
        };
        self.state = match (self.state, health) {
            (_, Health::InTime) if good >= self.probes => {
                *self = Self { probes: self.probes, closed_at: Some(now), ..Self::new() };
                return true;
            }
            (_, Health::InTime) => State::HalfOpen { good },
            (State::Open { pause }, Health::Failed) => {
                State::Open { pause: pause.saturating_add(pause).min(MAX_PAUSE) }
            }
            (_, Health::Late | Health::Failed) => State::Open { pause: FIRST_PAUSE },
        };
        false
    }

    /// The pause before the next probe; `roll` of 2^32 spreads it by a fifth either way, so that gateways do not all
    /// probe at the same time. `None` if the breaker is closed.
    pub(super) fn pause(&self, roll: u32) -> Option<Nanos> {
        let pause = match self.state {
            State::Closed => return None,
            State::HalfOpen { .. } => PROBE_PAUSE,
            State::Open { pause } => pause,
        };
        let least = pause.get() / 5 * 4;
        let spread = u128::from(pause.get() / 5 * 2).saturating_mul(u128::from(roll)) >> u32::BITS;
        Some(Nanos::new(least.saturating_add(u64::try_from(spread).unwrap_or(u64::MAX))))
    }

    /// Counts a call. Returns whether it failed, as did half of the calls of this second, if these are enough.
    fn count(&mut self, health: Health, now: Nanos) -> bool {
        let (mut began, mut calls, mut failed) = self.second;
        if now.saturating_sub(began) >= Nanos::SECOND {
            (began, calls, failed) = (now, 0, 0);
        }
        let has_failed = health != Health::InTime;
        (calls, failed) = (calls.saturating_add(1), failed.saturating_add(u32::from(has_failed)));
        self.second = (began, calls, failed);
        has_failed && calls >= ENOUGH && failed >= calls.div_ceil(2)
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

    const TIMEOUT: Nanos = Nanos::new(10_000_000);

    fn ms(ms: u64) -> Nanos {
        Nanos::new(ms * 1_000_000)
    }

    /// The number of calls with this health, one every `every` milliseconds, until the breaker opens.
    fn calls_until_open(breaker: &mut Breaker, health: Health, from: Nanos, every: u64) -> Option<u64> {
        (1..1000).find(|call| breaker.record_call(health, TIMEOUT, from.saturating_add(ms(call * every))))
    }

    fn opened() -> Breaker {
        let mut breaker = Breaker::new();
        assert_eq!(calls_until_open(&mut breaker, Health::Failed, Nanos::ZERO, 0), Some(5), "the fifth in a row");
        breaker
    }

    #[test]
    fn failures_in_a_row_open_it_and_good_probes_close_it() {
        let mut breaker = opened();
        assert_eq!(breaker.state(), State::Open { pause: FIRST_PAUSE });
        assert_eq!([Health::InTime; 3].map(|health| breaker.record_probe(health, ms(9))), [false, false, true]);
        assert_eq!(breaker.state(), State::Closed);
    }

    #[test]
    fn calls_that_are_late_together_count_as_one() {
        assert_eq!(calls_until_open(&mut Breaker::new(), Health::Late, ms(5), 0), None);
        assert_eq!(calls_until_open(&mut Breaker::new(), Health::Late, ms(5), 10), Some(5));
        assert_eq!(calls_until_open(&mut Breaker::new(), Health::Late, ms(5), 1), Some(41), "over 40 ms");
    }

    #[test]
    fn half_of_the_calls_of_a_second_open_it() {
        for (failing, opens) in [(2, true), (3, false)] {
            let mut breaker = Breaker::new();
            let opened = (0..2000).find(|at| {
                let health = if at % failing == 0 { Health::Late } else { Health::InTime };
                breaker.record_call(health, TIMEOUT, ms(*at))
            });
            assert_eq!(opened.is_some(), opens, "{opened:?}");
        }
    }

    #[test]
    fn calls_that_are_late_together_do_not_outweigh_the_calls_in_time() {
        let mut breaker = Breaker::new();
        for second in 0..100 {
            let now = Nanos::from_secs(second);
            assert!((0..30).all(|_| !breaker.record_call(Health::Late, TIMEOUT, now)));
            assert!((0..20).all(|_| !breaker.record_call(Health::InTime, TIMEOUT, now)), "second {second}");
        }
    }

    #[test]
    fn a_call_in_time_does_not_open_it() {
        let mut breaker = Breaker::new();
        let failing = |at: u64| if at.is_multiple_of(2) { Health::Failed } else { Health::InTime };
        (0..19).for_each(|at| assert!(!breaker.record_call(failing(at), TIMEOUT, ms(at))));
        for later in [ms(19), Nanos::from_secs(3_600)] {
            assert!(!breaker.record_call(Health::InTime, TIMEOUT, later));
        }
    }

    #[test]
    fn failures_far_apart_do_not_open_it() {
        let mut breaker = Breaker::new();
        for second in 0..100 {
            let now = Nanos::from_secs(second);
            assert!(!breaker.record_call(Health::Failed, TIMEOUT, now));
            (0..3).for_each(|_| assert!(!breaker.record_call(Health::InTime, TIMEOUT, now)));
        }
    }

    #[test]
    fn one_that_opens_again_soon_takes_more_probes_to_close() {
        let (mut breaker, mut now) = (Breaker::new(), Nanos::ZERO);
        let mut probes_after = |pause: u64| {
            now = now.saturating_add(Nanos::from_secs(pause));
            calls_until_open(&mut breaker, Health::Failed, now, 0).unwrap();
            (1..100).find(|_| breaker.record_probe(Health::InTime, now)).unwrap()
        };
        assert_eq!([1, 1, 9, 2, 1, 10].map(&mut probes_after), [3, 6, 12, 24, 24, 3]);
        let mut breaker = opened();
        (0..100).for_each(|_| assert!(!breaker.record_probe(Health::Late, now)));
        assert_eq!(breaker.state(), State::Open { pause: FIRST_PAUSE }, "it answers, and too slowly");
    }

    #[test]
    fn pauses_double_up_to_a_second_and_are_spread() {
        let mut breaker = opened();
        let pauses = (0..4).map(|_| {
            let pause = breaker.pause(1 << 31).unwrap();
            breaker.record_probe(Health::Failed, ms(1));
            pause.get() / 1_000_000
        });
        assert_eq!(pauses.collect::<Vec<_>>(), [250, 500, 1000, 1000]);
        let (least, most) = (breaker.pause(0).unwrap(), breaker.pause(u32::MAX).unwrap());
        assert!(least == ms(800) && most > ms(1_199), "{least} {most}");
        breaker.record_probe(Health::InTime, ms(1));
        assert_eq!(breaker.pause(1 << 31), Some(PROBE_PAUSE));
        breaker.record_probe(Health::Failed, ms(1));
        assert_eq!(breaker.state(), State::Open { pause: FIRST_PAUSE });
    }
}
