//! A sliding window with the times of its charges: the arithmetic of `sliding_log` and `sliding_counters`.
//!
//! A charge at x counts at t while t − x < window; a request is denied iff the sum of the charges that count + cost >
//! limit. For `sliding_counters` x is the beginning of the slot, rounded up to a nanosecond: slot s = ⌊t·slots/window⌋
//! leaves the sum when slot s + slots begins, which is a window after ⌈s·window/slots⌉.
//!
//! The log keeps its sum, so a decision looks only at the charges that have left the window since the last one, and a
//! denial also at the charges that have to leave before the request fits. A denied request that counts is logged with its
//! cost, at most the limit; the charges older than the newest ones that fill the limit are joined into one, so that a log
//! never has more charges than the limit has tokens.
//!
//! State: 40 bytes, and 8 for each time with a cost of 1 in the window, 16 with another; up to four times of that may be
//! reserved.
//! Exact until the year 2262; all later times count as the last one.

use crate::algorithm::{
    ChargeBatching, Core, Decision, Evictability, Headroom, Policy, SharedForm, StorageKind, bytes_of,
};
use crate::units::{ClockOffset, Cost, Nanos, greatest_common_divisor};

pub mod log;

use log::{Front, Log};

/// The most charges that a log in Redis may have: a denial may read all of them, while Redis serves no other client.
const MAX_SHARED_LOG: u64 = 10_000;

/// The parameters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sliding {
    /// The most that is admitted in a window; at most [`Sliding::MAX_LIMIT`].
    pub(super) limit: u64,
    /// The time during which a charge counts.
    pub(super) window: Nanos,
    /// The slots to which times are rounded.
    pub(super) grain: Grain,
    /// The number of slots in a window; 0 where times are exact.
    pub(super) slots: u64,
    /// Whether denied requests are logged too.
    pub(super) count_denied: bool,
    /// The shortest time between two requests in the log; at most the window.
    pub(super) min_gap: Nanos,
}

/// Slots of `length`/`per` nanoseconds, in lowest terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Grain {
    length: u64,
    per: u64,
}

impl Sliding {
    /// The largest limit that can be logged.
    pub const MAX_LIMIT: u64 = Log::MAX_COST;

    fn is_gone(&self, at: u64, now: u64) -> bool {
        now.checked_sub(at).is_some_and(|age| age >= self.window.get())
    }

    fn gone(&self, log: &Log, now: u64) -> Front {
        log.front(|at| self.is_gone(at, now))
    }

    /// The time at which a charge at `at` leaves the window; it may be later than any [`Nanos`].
    fn leaves(&self, at: u64) -> u128 {
        u128::from(at).saturating_add(u128::from(self.window.get()))
    }

    /// The time until a request of `cost`, at most the limit, is admitted; zero if it is now.
    fn wait(&self, log: &Log, gone: Front, cost: Cost, now: u64) -> Nanos {
        let counting = u128::from(log.total().saturating_sub(gone.cost()));
        let mut excess = counting.saturating_add(cost.into()).saturating_sub(self.limit.into());
        let mut charges = log.iter_after(gone);
        let mut admitted_at = self.gap_over(log);
        while excess > 0
            && let Some((at, cost)) = charges.next()
        {
            excess = excess.saturating_sub(cost.into());
            admitted_at = admitted_at.max(self.leaves(at));
        }
        Nanos::saturating_from(admitted_at.saturating_sub(now.into()))
    }

    /// Logs a charge that may not fit, without more charges in the log than the limit has tokens.
    fn log_beyond(&self, log: &mut Log, cost: Cost, now: u64) {
        log.push(self.grain.beginning(now), cost.min(self.limit));
        log.fold(self.limit);
    }

    /// The time from which on the gap to the last charge is long enough for another one.
    fn gap_over(&self, log: &Log) -> u128 {
        match (self.min_gap, log.newest()) {
            (Nanos::ZERO, _) | (_, None) => 0,
            (gap, Some(newest)) => u128::from(newest).saturating_add(gap.get().into()),
        }
    }
}

/// `now` as the log keeps it: at most [`Log::LAST`].
const fn known(now: Nanos) -> u64 {
    if now.get() < Log::LAST { now.get() } else { Log::LAST }
}

impl Core for Sliding {
    type State = Log;

    fn denials_count(&self) -> bool {
        self.count_denied
    }

    fn decide_charge(&self, state: Option<Log>, cost: Cost, now: Nanos) -> (Decision, Option<Log>) {
        let now = known(now);
        let mut log = state.unwrap_or_default();
        let gone = self.gone(&log, now);
        let fits = cost <= self.limit;
        let wait = self.wait(&log, gone, cost.min(self.limit), now);
        if fits && wait == Nanos::ZERO {
            log.forget(gone);
            log.push(self.grain.beginning(now), cost);
            return (Decision::ADMIT, Some(log));
        }
        if !self.count_denied {
            let decision = if fits { Decision::later(wait) } else { Decision::never(self.limit) };
            return (decision, Some(log).filter(|log| !log.is_empty()));
        }
        log.forget(gone);
        self.log_beyond(&mut log, cost, now);
        let decision = match fits {
            true => Decision::later(self.wait(&log, Front::default(), cost, now)),
            false => Decision::never(self.limit),
        };
        (decision, Some(log))
    }

    /// Takes the cost off the charge in the log.
    fn refund(&self, state: Log, cost: Cost, full_at: Nanos, _now: Nanos) -> Option<Log> {
        let mut log = state;
        log.take_back(cost, |at| Nanos::saturating_from(self.leaves(at)) == full_at);
        Some(log).filter(|log| !log.is_empty())
    }

    fn counted(&self, state: &Log, now: Nanos) -> Option<Cost> {
        Some(state.total().saturating_sub(self.gone(state, known(now)).cost()))
    }

    /// Logs at most the limit: a higher cost would make no difference, as it leaves the window at the same time.
    fn debit_charge(&self, state: Option<Log>, cost: Cost, now: Nanos) -> Option<Log> {
        let now = known(now);
        let mut log = state.unwrap_or_default();
        log.forget(self.gone(&log, now));
        self.log_beyond(&mut log, cost, now);
        Some(log)
    }

    fn headroom(&self, state: Option<&Log>, now: Nanos) -> Headroom {
        let now = known(now);
        let fresh = Log::default();
        let log = state.unwrap_or(&fresh);
        let gone = self.gone(log, now);
        let counting = log.total().saturating_sub(gone.cost());
        let remaining = match self.gap_over(log) > now.into() {
            true => 0,
            false => self.limit.saturating_sub(counting),
        };
        let full_at = log.newest().map_or(0, |newest| self.leaves(newest));
        let until_full = Nanos::saturating_from(full_at.saturating_sub(now.into()));
        let until_more = match until_full {
            Nanos::ZERO => Nanos::ZERO,
            _ => self.wait(log, gone, remaining.saturating_add(1).min(self.limit), now),
        };
        Headroom { remaining: Some(remaining), until_more, until_full }
    }

    fn evictability(&self, state: &Log) -> Evictability {
        Evictability::Fresh(state.newest().map_or(Nanos::ZERO, |newest| Nanos::saturating_from(self.leaves(newest))))
    }

    /// The log stays, and the new window decides which charges count. Charges that had left the old window stay dropped.
    fn migrate_state(&self, _old: &Self, state: Log, _now: Nanos) -> Option<Log> {
        Some(state)
    }

    /// All charges of both, each once: of two charges at the same time the larger one counts.
    fn merge(&self, one: Log, other: Log) -> Log {
        let mut log = Log::default();
        let (mut ones, mut others) = (one.iter().peekable(), other.iter().peekable());
        while let Some((at, cost)) = match (ones.peek().copied(), others.peek().copied()) {
            (Some(one), Some(other)) if one.0 == other.0 => Some((one.0, one.1.max(other.1))),
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        } {
            log.push(at, cost);
            ones.next_if(|charge| charge.0 == at);
            others.next_if(|charge| charge.0 == at);
        }
        log.fold(self.limit);
        log
    }

    fn shift(&self, state: Log, by: ClockOffset) -> Log {
        let mut log = Log::default();
        for (at, cost) in state.iter() {
            log.push(known(Nanos::new(at).shifted(by)), cost);
        }
        log
    }

    fn largest_cost(&self) -> Option<Cost> {
        Some(self.limit)
    }

    /// Charges have at least one token and are at least a slot apart: there can be as many as tokens, with one word each, or
    /// as many as slots, with two words each.
    fn largest_state(&self) -> u64 {
        let Grain { length, per } = self.grain;
        let slots = u128::from(self.window.get()).saturating_mul(per.into()).checked_div(length.into()).unwrap_or(0);
        let words = self.limit.min(u64::try_from(slots.saturating_mul(2)).unwrap_or(u64::MAX));
        bytes_of::<Log>().saturating_add(words.saturating_mul(bytes_of::<u64>()))
    }

    fn policy(&self) -> Policy {
        Policy { quota: self.limit, window: Some(self.window) }
    }

    const SCRIPT: &'static str = include_str!("sliding.lua");

    fn shared_form(&self, _slot_lifetime: Nanos) -> Result<SharedForm, String> {
        let Self { limit, window, grain: Grain { length, per }, count_denied, min_gap, .. } = self;
        let slots = u128::from(window.get()).saturating_mul((*per).into()).checked_div((*length).into());
        let charges = slots.unwrap_or(u128::MAX).min((*limit).into());
        if charges > MAX_SHARED_LOG.into() {
            return Err(format!(
                "may remember up to {charges} charges of a key, which is too much to be shared; use `sliding_window`, or \
                 `sliding_counters` with at most {MAX_SHARED_LOG} `slots`",
            ));
        }
        let (window, count_denied, gap) = (window.get(), u8::from(*count_denied), min_gap.get());
        let parameters = format!("l {limit} {window} {length} {per} {count_denied} {gap}");
        let charges = if gap == 0 { ChargeBatching::AddUp } else { ChargeBatching::Together };
        Ok(SharedForm { kept: StorageKind::Log, ..SharedForm::new(parameters, charges) })
    }
}

// === impl Grain ===

impl Grain {
    /// Exact times.
    pub(super) const NANOSECOND: Self = Self { length: 1, per: 1 };

    /// The slots of a window that has `slots` of them, at least 1.
    pub(super) fn new(window: u64, slots: u64) -> Self {
        let divisor = u64::try_from(greatest_common_divisor(window.into(), slots.into())).unwrap_or(1);
        let reduced = |number: u64| number.checked_div(divisor).unwrap_or(number);
        Self { length: reduced(window), per: reduced(slots) }
    }

    /// The first nanosecond of the slot of `now`.
    fn beginning(self, now: u64) -> u64 {
        if self.per == 1 {
            return now.saturating_sub(now.checked_rem(self.length).unwrap_or(0));
        }
        let (length, per) = (u128::from(self.length), u128::from(self.per));
        let slot = u128::from(now).saturating_mul(per).checked_div(length).unwrap_or(0);
        u64::try_from(slot.saturating_mul(length).div_ceil(per)).unwrap_or(now)
    }
}
