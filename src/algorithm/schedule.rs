//! Virtual scheduling (ITU-T I.371, ATM Forum TM 4.0): the arithmetic of `gcra`, `token_bucket`, `leaky_bucket` and
//! `leaky_queue`.
//!
//! The state is one time, the theoretical arrival time (TAT): when the bucket will be full again. With T = 1/rate, a
//! request of cost c at `now` would move it to TAT' = max(TAT, now) + c·T. The request is denied iff TAT' − now is above
//! a tolerance; otherwise it waits for the time by which TAT' − now is above a second, lower tolerance. The number of
//! tokens in the bucket is burst − (TAT − now)/T.
//!
//! Exact: times are counted in units of 1 ns / numerator of the rate, in which every quantity of the rule is whole.
//! State: 12 bytes.

use crate::algorithm::shared::number;
use crate::algorithm::{
    ChargeBatching, Core, Decision, Evictability, Headroom, InvalidParameter, MAX_DEBT, Policy, SharedForm, StateFields,
};
use crate::units::{ClockOffset, Cost, FineTime, Nanos, Rate, scale_ceil};

/// The parameters, and what follows from them, in units of 1 ns / numerator of the rate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
    /// The rate at which tokens come back.
    pub(super) rate: Rate,
    /// The most tokens there can be.
    pub(super) burst: u64,
    /// How far TAT' may lie ahead of `now` for a request to be admitted.
    tolerance: u128,
    /// The same for a request to be admitted without a wait; at most `tolerance`.
    immediate: u128,
    /// The time in which the whole burst is refilled.
    window: Nanos,
    /// [`Delay::after`]
    pub(super) delay_after: Option<u64>,
}

/// The rule by which admitted requests wait for their turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// A request waits until at most `after` + 1 tokens are missing from the burst.
    pub after: u64,
    /// The longest wait.
    pub max_wait: Nanos,
}

/// A burst is too large for its rate to be counted exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge {
    /// The largest burst at this rate.
    pub max_burst: u64,
    /// The rate.
    pub rate: Rate,
}

/// Times later than this many nanoseconds since the epoch (the year 2116) need not be exact.
pub const HORIZON: u64 = 1 << 62;

const SECOND: u128 = 1_000_000_000;

impl Schedule {
    /// `burst` tokens at once, refilled at `rate`.
    ///
    /// Errors: a burst that takes longer to refill than can be counted (2⁹⁵ units of 1 ns / numerator of the rate:
    /// about 10¹² years at `1/s`).
    pub fn new(rate: Rate, burst: u64, delay: Option<Delay>) -> Result<Self, TooLarge> {
        let tokens_long = |tokens: u64| u128::from(tokens).saturating_mul(u128::from(rate.period().get()));
        let fine = |time: u64| u128::from(time).saturating_mul(u128::from(rate.tokens()));
        let countable = (1_u128 << FineTime::BITS).saturating_sub(1).saturating_sub(fine(HORIZON));
        let whole_burst = tokens_long(burst);
        if whole_burst > countable {
            let max_burst = countable.checked_div(u128::from(rate.period().get())).unwrap_or(0);
            return Err(TooLarge { max_burst: u64::try_from(max_burst).unwrap_or(u64::MAX), rate });
        }
        let (immediate, tolerance) = match delay {
            None => (whole_burst, whole_burst),
            Some(Delay { after, max_wait }) => {
                let immediate = whole_burst.min(tokens_long(after.saturating_add(1)));
                (immediate, whole_burst.min(immediate.saturating_add(fine(max_wait.get()))))
            }
        };
        Ok(Self {
            rate,
            burst,
            tolerance,
            immediate,
            window: rate.time_for(burst),
            delay_after: delay.map(|delay| delay.after),
        })
    }

    /// The longest wait that makes a difference.
    pub fn max_wait(&self) -> Nanos {
        self.nanos_ceil(self.tolerance.saturating_sub(self.immediate))
    }

    /// How many tokens' worth of requests can be waiting at once, in words. Where the longest wait is shorter than the time for
    /// a token, one request waits for the rest of a token.
    pub fn describe_queue(&self) -> String {
        let wait = self.tolerance.saturating_sub(self.immediate);
        match self.whole_tokens(wait) {
            0 if wait == 0 => "none waits".to_owned(),
            0 | 1 => "one waits for its turn".to_owned(),
            queue => format!("up to {queue} wait for their turn"),
        }
    }

    fn fine(&self, time: Nanos) -> u128 {
        u128::from(time.get()).saturating_mul(u128::from(self.rate.tokens()))
    }

    fn cost(&self, cost: Cost) -> u128 {
        u128::from(cost).saturating_mul(u128::from(self.rate.period().get()))
    }

    fn nanos_ceil(&self, fine: u128) -> Nanos {
        let tokens = self.rate.tokens();
        match u64::try_from(fine) {
            // a division costs more than all else here, and most rates are one token in some time
            Ok(fine) if tokens == 1 || fine == 0 => Nanos::new(fine),
            Ok(fine) => Nanos::new(fine.div_ceil(tokens)),
            Err(_) => Nanos::saturating_from(fine.div_ceil(u128::from(tokens))),
        }
    }

    fn whole_tokens(&self, fine: u128) -> u64 {
        let period = self.rate.period().get();
        match u64::try_from(fine) {
            Ok(fine) => fine.checked_div(period).unwrap_or(0),
            Err(_) => {
                fine.checked_div(u128::from(period)).map_or(0, |tokens| u64::try_from(tokens).unwrap_or(u64::MAX))
            }
        }
    }

    /// How far a debt can put the TAT ahead: two bursts and the longest debt.
    fn furthest(&self) -> u128 {
        self.cost(self.burst).saturating_mul(2).saturating_add(self.fine(MAX_DEBT))
    }

    /// How far the state's TAT lies ahead of `now`.
    fn ahead(&self, state: Option<&FineTime>, now: Nanos) -> u128 {
        state.map_or(0, |tat| tat.get().saturating_sub(self.fine(now)))
    }

    fn state_ahead(&self, ahead: u128, now: Nanos) -> Option<FineTime> {
        (ahead > 0).then(|| FineTime::saturating_from(self.fine(now).saturating_add(ahead)))
    }
}

impl Core for Schedule {
    type State = FineTime;

    fn can_delay(&self) -> bool {
        self.immediate < self.cost(self.burst)
    }

    fn decide_charge(&self, state: Option<FineTime>, cost: Cost, now: Nanos) -> (Decision, Option<FineTime>) {
        let cost = self.cost(cost);
        if cost > self.tolerance {
            return (Decision::never(self.whole_tokens(self.tolerance)), state);
        }
        let ahead = self.ahead(state.as_ref(), now).saturating_add(cost);
        if ahead > self.tolerance {
            return (Decision::later(self.nanos_ceil(ahead.saturating_sub(self.tolerance))), state);
        }
        let wait = self.nanos_ceil(ahead.saturating_sub(self.immediate));
        (Decision::Admit { wait }, self.state_ahead(ahead, now))
    }

    fn refund(&self, state: FineTime, cost: Cost, full_at: Nanos, now: Nanos) -> Option<FineTime> {
        let now_fine = self.fine(now);
        let back = recoverable(self.cost(cost), state.get(), self.fine(full_at), self.rate.tokens().into(), now_fine);
        self.state_ahead(self.ahead(Some(&state), now).saturating_sub(back), now)
    }

    /// TAT' = max(TAT, now) + c·T, at most as far ahead as a debt can put it: two bursts and the longest debt.
    fn debit_charge(&self, state: Option<FineTime>, cost: Cost, now: Nanos) -> Option<FineTime> {
        let ahead = self.ahead(state.as_ref(), now);
        self.state_ahead(ahead.saturating_add(self.cost(cost)).min(self.furthest().max(ahead)), now)
    }

    fn headroom(&self, state: Option<&FineTime>, now: Nanos) -> Headroom {
        let ahead = self.ahead(state, now);
        let room = self.immediate.saturating_sub(ahead);
        let remaining = self.whole_tokens(room);
        let until_more = match ahead {
            0 => Nanos::ZERO,
            _ => {
                let next = self.cost(remaining.saturating_add(1)).min(self.immediate);
                self.nanos_ceil(ahead.saturating_add(next).saturating_sub(self.immediate))
            }
        };
        Headroom { remaining: Some(remaining), until_more, until_full: self.nanos_ceil(ahead) }
    }

    fn evictability(&self, state: &FineTime) -> Evictability {
        Evictability::Fresh(self.nanos_ceil(state.get()))
    }

    /// TAT' = now + (TAT − now)·τ'/τ with τ = burst·T: the used share of the burst stays used. Tokens owed beyond the burst,
    /// and all tokens where only the rate changes, stay the same number, as far as a debt can reach.
    fn migrate_state(&self, old: &Self, state: FineTime, now: Nanos) -> Option<FineTime> {
        if self.rate == old.rate && self.burst == old.burst {
            return Some(state);
        }
        let ahead = old.ahead(Some(&state), now);
        let used = ahead.min(old.cost(old.burst));
        let share = scale_ceil(used, self.cost(self.burst), old.cost(old.burst));
        let owed = scale_ceil(ahead.saturating_sub(used), self.cost(1), old.cost(1));
        self.state_ahead(share.saturating_add(owed).min(self.furthest()), now)
    }

    /// The later TAT.
    fn merge(&self, one: FineTime, other: FineTime) -> FineTime {
        if one.get() > other.get() { one } else { other }
    }

    fn shift(&self, state: FineTime, by: ClockOffset) -> FineTime {
        state.shifted(by, self.rate.tokens())
    }

    fn largest_cost(&self) -> Option<Cost> {
        Some(self.whole_tokens(self.tolerance))
    }

    fn policy(&self) -> Policy {
        Policy { quota: self.burst, window: Some(self.window) }
    }

    const SCRIPT: &'static str = include_str!("schedule.lua");

    fn shared_form(&self, _slot_lifetime: Nanos) -> Result<SharedForm, String> {
        let Self { rate, burst, tolerance, .. } = self;
        let parameters = format!("s {} {} {burst} {tolerance}", rate.tokens(), rate.period().get());
        Ok(SharedForm::new(parameters, ChargeBatching::AddUp))
    }

    /// Seconds, nanoseconds, and the rest of a nanosecond in units of 1 ns / numerator of the rate.
    fn read_shared(&self, words: &mut StateFields<'_>) -> Option<FineTime> {
        let (seconds, nanos, rest): (u128, u128, u128) = (number(words)?, number(words)?, number(words)?);
        let nanos = seconds.checked_mul(SECOND)?.checked_add(nanos)?;
        Some(FineTime::saturating_from(nanos.checked_mul(self.rate.tokens().into())?.checked_add(rest)?))
    }

    fn charged_since(&self, tat: &FineTime, cost: Cost) -> Option<Nanos> {
        Some(self.nanos_ceil(tat.get().saturating_sub(self.cost(cost))))
    }

    fn repair_state(&self, tat: &FineTime) -> Option<String> {
        let tokens = self.rate.tokens().into();
        let (nanos, rest) = (tat.get().checked_div(tokens)?, tat.get().checked_rem(tokens)?);
        Some(format!("{} {} {rest}", nanos.checked_div(SECOND)?, nanos.checked_rem(SECOND)?))
    }
}

/// The part of a charge of `cost` that can be refunded to a schedule whose TAT is now `tat`, if its TAT right after the
/// charge, rounded up to the next ns (`tick` of the units of all these numbers), was `full_at`.
///
/// Without the charge the bucket would have been full that much earlier, and tokens that come to a full bucket are lost.
/// So only the rest of the time until that TAT can be refunded, and no more than the charge. The result is exact to the
/// refill of one nanosecond.
pub fn recoverable(cost: u128, tat: u128, full_at: u128, tick: u128, now: u128) -> u128 {
    let foreseen = match tat <= full_at {
        true => tat,
        false => full_at.saturating_sub(tick.saturating_sub(1)),
    };
    cost.min(foreseen.saturating_sub(now))
}

// === impl TooLarge ===

impl TooLarge {
    /// The error, for the parameter that the burst came from.
    pub fn invalid(self, parameter: &'static str) -> InvalidParameter {
        let Self { max_burst, rate } = self;
        InvalidParameter::new(
            parameter,
            format!("is more than can be counted exactly at {rate}; write at most {max_burst}"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(nanos: u64) -> Nanos {
        Nanos::new(nanos)
    }

    /// 3 tokens every 10 ns, 3 at once.
    fn uneven() -> Schedule {
        Schedule::new(Rate::new(3, at(10)).unwrap(), 3, None).unwrap()
    }

    #[test]
    fn parts_of_a_nanosecond_are_kept() {
        let schedule = uneven();
        let (_, state) = schedule.decide(None, 3, at(100));
        assert_eq!(schedule.decide(state, 1, at(100)).0, Decision::later(at(4)));
        let (decision, state) = schedule.decide(state, 1, at(104));
        assert_eq!(decision, Decision::ADMIT);
        // the token came after a third of the fourth nanosecond, and the other two thirds count on
        assert_eq!(schedule.decide(state, 1, at(104)).0, Decision::later(at(3)));
        assert_eq!(schedule.decide(state, 4, at(104)).0, Decision::never(3));
    }

    #[test]
    fn a_refund_gives_back_what_time_has_not() {
        let schedule = uneven();
        let (_, first) = schedule.decide(None, 3, at(100));
        let full_at = at(110);
        assert_eq!(schedule.evictability(&first.unwrap()), Evictability::Fresh(full_at));
        assert_eq!(schedule.refund(first.unwrap(), 3, full_at, at(100)), None);
        // without the first three tokens, the next two would have found a full bucket: at 109 less than 1 ns of time is left
        let (_, second) = schedule.decide(first, 2, at(109));
        let without = schedule.decide(None, 2, at(109)).1.unwrap().get();
        assert_eq!(schedule.refund(second.unwrap(), 3, full_at, at(109)).unwrap().get() - without, 3 - 1);
        // and at 110 nothing
        assert_eq!(schedule.refund(second.unwrap(), 3, full_at, at(110)), second);
    }

    #[test]
    fn a_changed_rate_keeps_the_tokens_and_a_changed_burst_the_share() {
        let slow = Schedule::new(Rate::new(1, at(10)).unwrap(), 4, None).unwrap();
        let fast = Schedule::new(Rate::new(1, at(5)).unwrap(), 4, None).unwrap();
        let wide = Schedule::new(Rate::new(1, at(5)).unwrap(), 8, None).unwrap();
        let (_, state) = slow.decide(None, 3, at(1000));
        let remaining =
            |schedule: &Schedule, state: Option<FineTime>| schedule.headroom(state.as_ref(), at(1000)).remaining;
        assert_eq!(remaining(&fast, fast.migrate_state(&slow, state.unwrap(), at(1000))), Some(1));
        assert_eq!(remaining(&wide, wide.migrate_state(&slow, state.unwrap(), at(1000))), Some(2));
        assert_eq!(slow.migrate_state(&slow, state.unwrap(), at(5000)), state);
        assert_eq!(fast.migrate_state(&slow, state.unwrap(), at(5000)), None);
    }

    #[test]
    fn a_larger_burst_does_not_multiply_a_debt() {
        let narrow = Schedule::new(Rate::new(1, at(10)).unwrap(), 4, None).unwrap();
        let wide = Schedule::new(Rate::new(1, at(5)).unwrap(), 400, None).unwrap();
        let until_full =
            |schedule: &Schedule, state: Option<FineTime>| schedule.headroom(state.as_ref(), at(1000)).until_full.get();
        // the whole burst is used, and 96 tokens more are owed
        let owing = narrow.debit(None, 100, at(1000));
        let carried = wide.migrate_state(&narrow, owing.unwrap(), at(1000));
        assert_eq!(until_full(&wide, carried), (400 + 96) * 5);
        assert_eq!(until_full(&narrow, narrow.migrate_state(&wide, carried.unwrap(), at(1000))), 100 * 10);
        // a debt of the longest time at a low rate is no longer one at a higher rate
        let slow = Schedule::new(Rate::new(1, at(10_000_000_000)).unwrap(), 4, None).unwrap();
        let longest = slow.migrate_state(&wide, wide.debit(None, u64::MAX, at(1000)).unwrap(), at(1000));
        assert_eq!(longest, slow.debit(None, u64::MAX, at(1000)));
    }

    #[test]
    fn the_largest_burst_is_said_and_works() {
        let yearly = Rate::new(1, Nanos::from_secs(365 * 86_400)).unwrap();
        let TooLarge { max_burst, .. } = Schedule::new(yearly, 1 << 63, None).unwrap_err();
        let schedule = Schedule::new(yearly, max_burst, None).unwrap();
        let now = at(HORIZON);
        let (decision, state) = schedule.decide(None, max_burst, now);
        assert_eq!(decision, Decision::ADMIT);
        assert_eq!(schedule.decide(state, 1, now).0, Decision::later(Nanos::from_secs(365 * 86_400)));
        assert!(Schedule::new(yearly, max_burst + 1, None).is_err());
        assert!(Schedule::new(Rate::new(2_000_000_000, Nanos::SECOND).unwrap(), 1 << 63, None).is_ok());
    }

    #[test]
    fn a_clock_that_steps_back_lends_nothing() {
        let schedule = uneven();
        let (_, state) = schedule.decide(None, 3, at(100));
        assert_eq!(schedule.decide(state, 1, at(50)).0, Decision::later(at(54)));
        assert_eq!(schedule.decide(state, 0, at(50)), (Decision::ADMIT, state));
    }
}
