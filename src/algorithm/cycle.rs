//! `cycle`: each period brings `limit` new permits, of which up to `burst` are kept, and later ones may be reserved
//! (Resilience4j's AtomicRateLimiter, where `burst` is `limit`; a Bucket4j bandwidth that refills intervally).
//!
//! Cycles are counted from the key's first request. Permits p start at `burst`; after k new cycles p = min(burst, p +
//! k·limit). A request of cost c waits 0 if p ≥ c, else until the next cycle and ⌈(c − p − limit)/limit⌉ periods more.
//! It is admitted iff it waits at most `max_wait`; then p −= c, also below 0, so a cost above the burst is admitted
//! where `max_wait` allows it.
//!
//! The state is the start of the current cycle, the permits taken (burst − p), and how many of those were taken before this
//! cycle began. A first request that is denied starts the cycles too: its retry time counts from that start. Exact: all
//! numbers are whole nanoseconds and tokens. State: 24 bytes.

use serde::{Deserialize, Serialize};

use crate::algorithm::shared::{number, time};
use crate::algorithm::{
    Algorithm, Arguments, ChargeBatching, Core, Decision, Evictability, Headroom, InvalidParameter, MAX_DEBT, MAX_WAIT,
    Parameter, ParameterKind, Policy, SharedForm, StateFields, Value,
};
use crate::units::{ClockOffset, Cost, Nanos, scale_ceil};

/// The parameters, and what follows from them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cycle {
    limit: u64,
    period: Nanos,
    burst: u64,
    max_wait: Nanos,
    /// The most permits that can ever be taken at once: the burst, and those of the cycles that can be reserved.
    max_cost: Cost,
}

/// The state of a key in its cycles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CycleState {
    /// The start of the cycle that was current at the last admitted request.
    pub start: Nanos,
    /// The permits taken then, including those reserved from later cycles.
    pub used: u64,
    /// The permits among them that were taken before that cycle began.
    pub lent: u64,
}

impl Cycle {
    /// `limit` tokens every `period`, at most `burst` of them at once, and no wait longer than `max_wait`.
    ///
    /// Errors: a `max_wait` over too many cycles to count their permits.
    fn new(limit: u64, period: Nanos, burst: u64, max_wait: Nanos) -> Result<Self, InvalidParameter> {
        let cycles_ahead = max_wait.get().saturating_sub(1).checked_div(period.get()).unwrap_or(u64::MAX);
        let reserved = match max_wait {
            Nanos::ZERO => Some(0),
            _ => cycles_ahead.saturating_add(1).checked_mul(limit),
        };
        let Some(max_cost) = reserved.and_then(|reserved| reserved.checked_add(burst)) else {
            return Err(InvalidParameter::new(
                "limit",
                format!(
                    "of {limit} every {period} is too large to be reserved for a `max_wait` of {max_wait}; lower one"
                ),
            ));
        };
        Ok(Self { limit, period, burst, max_wait, max_cost })
    }

    /// The most permits that a debt can take: those that can be reserved, those of one cycle, and the longest debt.
    fn max_owed(&self) -> Cost {
        let cycles = MAX_DEBT.get().checked_div(self.period.get()).unwrap_or(0).saturating_add(1);
        self.max_cost.saturating_add(cycles.saturating_mul(self.limit))
    }

    fn periods(&self, count: u64) -> u128 {
        u128::from(count).saturating_mul(u128::from(self.period.get()))
    }

    /// The state in the cycle of `now`. A `now` before the state's cycle changes nothing.
    fn at(&self, state: CycleState, now: Nanos) -> CycleState {
        let elapsed = now.saturating_sub(state.start).get();
        let (Some(cycles), Some(rest)) =
            (elapsed.checked_div(self.period.get()), elapsed.checked_rem(self.period.get()))
        else {
            return state;
        };
        match cycles {
            0 => state,
            _ => {
                let used = state.used.saturating_sub(cycles.saturating_mul(self.limit));
                CycleState { start: now.saturating_sub(Nanos::new(rest)), used, lent: used }
            }
        }
    }

    /// The number of the cycle that brings the last permit, if `used` permits are taken: 0 is the current one.
    fn cycle_of(&self, used: u128) -> u64 {
        let cycles = used.saturating_sub(self.burst.into()).div_ceil(u128::from(self.limit));
        u64::try_from(cycles).unwrap_or(u64::MAX)
    }

    /// The time from `now` to the start of the cycle that comes `count` cycles after the state's; zero for the state's own.
    fn until(&self, state: CycleState, count: u64, now: Nanos) -> Nanos {
        match count {
            0 => Nanos::ZERO,
            _ => {
                let start = self.periods(count).saturating_add(u128::from(state.start.get()));
                Nanos::saturating_from(start.saturating_sub(u128::from(now.get())))
            }
        }
    }

    /// The first time from `now` on at which `cost`, which is denied at `now` and may be admitted some day, is admitted.
    ///
    /// While earlier permits are still owed, each new cycle brings the last permit one cycle nearer, so the time of that
    /// permit does not change. When none are owed, it is always the same number of cycles ahead, and a request has to come
    /// late enough in its cycle.
    fn admitted_at(&self, state: CycleState, cost: Cost) -> Nanos {
        let max_wait = u128::from(self.max_wait.get());
        let granted_in = |used: u128| self.periods(self.cycle_of(used));
        let start = u128::from(state.start.get());
        let owed = start.saturating_add(granted_in(u128::from(state.used).saturating_add(u128::from(cost))));
        let clear = start.saturating_add(self.periods(state.used.div_ceil(self.limit)));
        Nanos::saturating_from(match owed.saturating_sub(max_wait) {
            at if at < clear => at,
            _ => clear.saturating_add(granted_in(cost.into()).saturating_sub(max_wait)),
        })
    }
}

impl CycleState {
    const fn fresh(now: Nanos) -> Self {
        Self { start: now, used: 0, lent: 0 }
    }
}

impl Algorithm for Cycle {
    const NAME: &'static str = "cycle";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::tokens("limit"),
        Parameter::required("period", ParameterKind::Duration).at_least(1),
        Parameter::optional("burst", ParameterKind::Whole).at_least(1),
    ];

    type Core = Self;

    fn from_arguments(arguments: &Arguments) -> Result<Self, InvalidParameter> {
        let limit = arguments.required_whole("limit")?;
        let burst = arguments.whole("burst").unwrap_or(limit);
        Self::new(limit, arguments.duration("period")?, burst, arguments.max_wait())
    }

    fn arguments(rule: &Self) -> Arguments {
        let mut arguments = Arguments::from([
            ("limit", Value::Whole(rule.limit)),
            ("period", Value::Duration(rule.period)),
            (MAX_WAIT, Value::Duration(rule.max_wait)),
        ]);
        // a burst that nobody has set follows the limit, also under an override
        if rule.burst != rule.limit {
            arguments.set("burst", Value::Whole(rule.burst));
        }
        arguments
    }

    fn describe(rule: &Self) -> String {
        let wait = match rule.max_wait {
            Nanos::ZERO => String::new(),
            max_wait => format!("; later cycles can be reserved up to {max_wait} ahead"),
        };
        let Self { limit, period, burst, .. } = rule;
        let at_once = if burst == limit { String::new() } else { format!("{burst} at once, then ") };
        format!("{at_once}{limit} every {period}, counted from the first request{wait}")
    }
}

impl Core for Cycle {
    type State = CycleState;

    fn can_delay(&self) -> bool {
        true
    }

    fn decide_charge(&self, state: Option<CycleState>, cost: Cost, now: Nanos) -> (Decision, Option<CycleState>) {
        let kept = state.unwrap_or(CycleState::fresh(now));
        if cost > self.max_cost {
            return (Decision::never(self.max_cost), Some(kept));
        }
        let current = self.at(kept, now);
        let used = u128::from(current.used).saturating_add(u128::from(cost));
        let wait = self.until(current, self.cycle_of(used), now);
        match u64::try_from(used) {
            Ok(used) if wait <= self.max_wait => (Decision::Admit { wait }, Some(CycleState { used, ..current })),
            _ => (Decision::later(self.admitted_at(current, cost).saturating_sub(now)), Some(kept)),
        }
    }

    /// Refunds the permits that new cycles have certainly not made up for yet. These are all permits of a charge that
    /// reaches further than the permits lent before this cycle, since it was made in this one. Of an older charge,
    /// `full_at` tells only the number of cycles until the key is full, and a large cost may come back in part. The
    /// cycles keep their start.
    fn refund(&self, state: CycleState, cost: Cost, full_at: Nanos, now: Nanos) -> Option<CycleState> {
        let current = self.at(state, now);
        let left = u128::from(full_at.saturating_sub(current.start).get()).div_ceil(u128::from(self.period.get()));
        let cycles_left = u64::try_from(left).unwrap_or(u64::MAX);
        let unforgiven = match cycles_left {
            0 => 0,
            cycles if cycles > current.lent.div_ceil(self.limit) => cost,
            cycles => cycles.saturating_sub(1).saturating_mul(self.limit).saturating_add(1),
        };
        Some(CycleState { used: current.used.saturating_sub(cost.min(unforgiven)), ..current })
    }

    fn counted(&self, state: &CycleState, now: Nanos) -> Option<Cost> {
        Some(self.at(*state, now).used)
    }

    /// Takes permits of later cycles: those that can be reserved, plus as many as come in one cycle and the longest debt.
    fn debit_charge(&self, state: Option<CycleState>, cost: Cost, now: Nanos) -> Option<CycleState> {
        let current = self.at(state.unwrap_or(CycleState::fresh(now)), now);
        let max_used = self.max_owed().max(current.used);
        Some(CycleState { used: current.used.saturating_add(cost).min(max_used), ..current })
    }

    fn headroom(&self, state: Option<&CycleState>, now: Nanos) -> Headroom {
        let current = state.map_or(CycleState::fresh(now), |state| self.at(*state, now));
        let more = match current.used {
            0 => 0,
            used => self.cycle_of(u128::from(used).saturating_add(1)).max(1),
        };
        Headroom {
            remaining: Some(self.burst.saturating_sub(current.used)),
            until_more: self.until(current, more, now),
            until_full: self.until(current, current.used.div_ceil(self.limit), now),
        }
    }

    /// The cycles of a fresh key begin later than those of a key that owes nothing: evicting that key can only admit less.
    fn evictability(&self, state: &CycleState) -> Evictability {
        Evictability::Safe(state.start.saturating_add(self.until(*state, state.used.div_ceil(self.limit), state.start)))
    }

    /// The used share of the burst stays used, and the elapsed share of the cycle stays elapsed. Permits of later cycles stay
    /// the same number, as far as a debt can reach.
    fn migrate_state(&self, old: &Self, state: CycleState, now: Nanos) -> Option<CycleState> {
        if (self.limit, self.period, self.burst) == (old.limit, old.period, old.burst) {
            return Some(state);
        }
        let current = old.at(state, now);
        let passed = u128::from(now.saturating_sub(current.start).get())
            .saturating_mul(u128::from(self.period.get()))
            .checked_div(u128::from(old.period.get()))
            .unwrap_or(0);
        let scaled = |permits: u64| {
            let share = scale_ceil(permits.min(old.burst).into(), self.burst.into(), old.burst.into());
            let owed = permits.saturating_sub(old.burst);
            u64::try_from(share).unwrap_or(u64::MAX).saturating_add(owed).min(self.max_owed())
        };
        Some(CycleState {
            start: now.max(current.start).saturating_sub(Nanos::saturating_from(passed)),
            used: scaled(current.used),
            lent: scaled(current.lent),
        })
    }

    /// Each migration may round the used permits up: the state stays where none are taken.
    fn keeps_old_parameters(&self, _old: &Self, _state: &CycleState, cost: Cost, _now: Nanos) -> bool {
        cost == 0
    }

    /// The later cycle, with the larger number of permits taken by then. Where cycles begin at different times, all of them
    /// may have been taken before that cycle.
    fn merge(&self, one: CycleState, other: CycleState) -> CycleState {
        let start = one.start.max(other.start);
        let (one, other) = (self.at(one, start), self.at(other, start));
        let used = one.used.max(other.used);
        let lent = if one.start == other.start { one.lent.max(other.lent) } else { used };
        CycleState { start, used, lent }
    }

    fn shift(&self, state: CycleState, by: ClockOffset) -> CycleState {
        CycleState { start: state.start.shifted(by), ..state }
    }

    fn largest_cost(&self) -> Option<Cost> {
        Some(self.max_cost)
    }

    fn policy(&self) -> Policy {
        let window = Nanos::saturating_from(self.periods(self.burst.div_ceil(self.limit)));
        Policy { quota: self.burst, window: Some(window) }
    }

    const SCRIPT: &'static str = include_str!("cycle.lua");

    fn shared_form(&self, _slot_lifetime: Nanos) -> Result<SharedForm, String> {
        let Self { limit, period, burst, max_wait, max_cost } = self;
        let parameters = format!("y {limit} {} {burst} {} {max_cost}", period.get(), max_wait.get());
        Ok(SharedForm::new(parameters, ChargeBatching::Together))
    }

    fn read_shared(&self, words: &mut StateFields<'_>) -> Option<CycleState> {
        Some(CycleState { start: time(words)?, used: number(words)?, lent: number(words)? })
    }
}

#[cfg(test)]
mod tests;
