//! `exponential`: a measured rate with exponential decay (Exim's `ratelimit`, as described by T. Finch).
//!
//! With x = interval/period since the kept state, α = e^−x and g = (1 − α)/x (1 at x = 0), a request of cost c would
//! measure rate' = max(c, g·c + α·rate) tokens per period; the first request of a fresh key measures c. A request is
//! denied iff rate' > limit. `leaky` keeps rate' and the time of admitted requests only; `strict` also those of denied
//! ones, so that a client that does not slow down stays denied.
//!
//! The published wait period·ln(rate/limit) is too short, because the retry's own cost counts: the wait is the first
//! whole nanosecond at which the rule above admits. Both are computed in doubles. Where rate' is so near the limit (1
//! part in 10¹¹) that rounding could decide, that wait decides instead, so that no request is admitted before it or
//! denied after it. The wait is right to 1 µs for periods up to 30 years; an interval counts in whole nanoseconds up to
//! 104 days, and is rounded to 1 part in 10¹⁶ beyond.
//!
//! State: 24 bytes.
#![expect(
    clippy::float_arithmetic,
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "defined in doubles; conversions to integers truncate and saturate"
)]

use serde::{Deserialize, Serialize};

use std::hash::{Hash, Hasher};

use crate::algorithm::shared::{number, time};
use crate::algorithm::{
    Algorithm, Arguments, ChargeBatching, Core, Decision, Evictability, Headroom, InvalidParameter, Parameter,
    ParameterKind, Policy, SharedForm, StateFields, Value,
};
use crate::units::{ClockOffset, Cost, Nanos};

/// The parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Exponential {
    /// Tokens per period; from 1 to 2⁵².
    limit: f64,
    period: Nanos,
    strict: bool,
}

/// The measurement at the last request that counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RateEstimate {
    /// Tokens per period.
    pub rate: f64,
    /// The time of the request.
    pub last: Nanos,
    /// The amount that each token of that request's cost added to the rate; zero after a partial refund, a debit up to the
    /// bound, a migration or a merge.
    pub share: f64,
}

/// The distance from the limit, as a part of it, within which rounding could decide. The error of a rate is below 10⁻¹³.
const NEAR: f64 = 1e-11;

/// The largest limit, 2⁵²: doubles count single tokens up to twice this number.
const MAX_LIMIT: u64 = 1 << 52;

/// The highest rate that debits can cause, 2⁶³.
const MAX_OWED: f64 = 9_223_372_036_854_775_808.0;

/// A number below 1 by more than any rounding error.
const ALMOST_ONE: f64 = 1.0 - 1e-9;

const LEAKY: &str = "leaky";
const STRICT: &str = "strict";

/// The limit is at least 1, so it is not NaN.
impl Eq for Exponential {}

impl Hash for Exponential {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.limit.to_bits(), self.period, self.strict).hash(state);
    }
}

impl Exponential {
    /// The largest whole cost within the limit.
    const fn whole_limit(&self) -> Cost {
        self.limit as u64
    }

    fn periods(&self, interval: u64) -> f64 {
        interval as f64 / self.period.get() as f64
    }

    /// g·cost + α·rate after `interval` nanoseconds. It falls with time.
    fn rate_after(&self, rate: f64, interval: u64, cost: Cost) -> f64 {
        let x = self.periods(interval);
        share(x) * cost as f64 + (-x).exp() * rate
    }

    /// The rate at `now`, zero for a fresh key.
    pub(super) fn measured_rate(&self, state: Option<&RateEstimate>, now: Nanos) -> f64 {
        state.map_or(0.0, |state| self.rate_after(state.rate, now.saturating_sub(state.last).get(), 0))
    }

    /// The first whole nanosecond after a `rate` was measured at which `cost` measures at most `limit`.
    fn interval_until(&self, rate: f64, cost: Cost, limit: f64) -> u64 {
        let fits = |interval| self.rate_after(rate, interval, cost) <= limit;
        if fits(0) {
            return 0;
        }
        let near = self.solve(rate, cost as f64, limit) * self.period.get() as f64;
        first_from(near as u64, fits)
    }

    /// The approximate x with g·cost + α·rate = limit. Newton's method from the left, which cannot overshoot because the
    /// curve is convex and falling.
    fn solve(&self, rate: f64, cost: f64, limit: f64) -> f64 {
        let mut x = (rate / limit).ln().max(0.0);
        for _ in 0..20 {
            let (decay, share) = ((-x).exp(), share(x));
            let excess = share * cost + decay * rate - limit;
            let falling = if x < 1e-4 { 0.5 } else { (share - decay) / x };
            let step = excess / (falling * cost + decay * rate);
            x += step.max(0.0);
            if step <= x * 1e-15 {
                break;
            }
        }
        x
    }

    fn fits(&self, state: Option<&RateEstimate>, cost: Cost, now: Nanos) -> bool {
        if cost > self.whole_limit() {
            return false;
        }
        let Some(RateEstimate { rate, last, .. }) = state else { return true };
        let interval = now.saturating_sub(*last).get();
        let room = self.limit - self.rate_after(*rate, interval, cost);
        match room.abs() > NEAR * self.limit {
            true => room > 0.0,
            false => interval >= self.interval_until(*rate, cost, self.limit),
        }
    }

    /// The state after a request at `now`.
    fn measured(&self, state: Option<&RateEstimate>, cost: Cost, now: Nanos) -> RateEstimate {
        let Some(RateEstimate { rate, last, .. }) = state else {
            return RateEstimate { rate: cost as f64, last: now, share: 1.0 };
        };
        let interval = now.saturating_sub(*last).get();
        let decayed = self.rate_after(*rate, interval, 0);
        RateEstimate {
            rate: self.rate_after(*rate, interval, cost).max(cost as f64),
            last: now.max(*last),
            // g, or (cost − α·rate)/cost where the cost alone is the rate
            share: share(self.periods(interval)).max(1.0 - decayed / cost as f64),
        }
    }

    /// The time from which on `cost` is admitted.
    fn admitted_at(&self, state: &RateEstimate, cost: Cost) -> Nanos {
        state.last.saturating_add(Nanos::new(self.interval_until(state.rate, cost, self.limit)))
    }

    fn full_at(&self, state: &RateEstimate) -> Nanos {
        self.admitted_at(state, self.whole_limit())
    }
}

/// (1 − e^−x)/x, 1 at x = 0.
fn share(x: f64) -> f64 {
    if x > 0.0 { -(-x).exp_m1() / x } else { 1.0 }
}

/// The smallest number, at least 1, for which `holds` is true, where it is true for all larger numbers too. The search
/// takes few steps if `near` is close to it. The largest `u64` if there is none.
fn first_from(near: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let near = near.max(1);
    let mut step = 1_u64;
    let (mut without, mut with) = (near, near);
    if holds(near) {
        while without > 0 && holds(without) {
            (with, without) = (without, without.saturating_sub(step));
            step = step.saturating_mul(4);
        }
    } else {
        while !holds(with) {
            if with == u64::MAX {
                return with;
            }
            (without, with) = (with, with.saturating_add(step));
            step = step.saturating_mul(4);
        }
    }
    while with.saturating_sub(without) > 1 {
        let middle = without.midpoint(with);
        if holds(middle) { with = middle } else { without = middle }
    }
    with
}

impl Algorithm for Exponential {
    const NAME: &'static str = "exponential";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::required("limit", ParameterKind::Decimal)
            .at_least(1)
            .at_most(MAX_LIMIT)
            .advice("for a lower rate take a longer `period`, to admit everything `unlimited`"),
        Parameter::required("period", ParameterKind::Duration).at_least(1),
        Parameter::optional("policy", ParameterKind::Choice(&[LEAKY, STRICT])),
    ];

    type Core = Self;

    fn from_arguments(arguments: &Arguments) -> Result<Self, InvalidParameter> {
        let limit = arguments.decimal("limit").ok_or_else(|| InvalidParameter::missing("limit"))?;
        let strict = arguments.choice("policy") == Some(STRICT);
        Ok(Self { limit, period: arguments.duration("period")?, strict })
    }

    fn arguments(rule: &Self) -> Arguments {
        let policy = Value::Choice(if rule.strict { STRICT } else { LEAKY });
        [("limit", Value::Decimal(rule.limit)), ("period", Value::Duration(rule.period)), ("policy", policy)].into()
    }

    fn describe(rule: &Self) -> String {
        let denied = if rule.strict { "what is denied counts too" } else { "what is denied does not count" };
        format!("{} per {}, as a measured rate that decays with time; {denied}", rule.limit, rule.period)
    }
}

impl Core for Exponential {
    type State = RateEstimate;

    fn decide_charge(&self, state: Option<RateEstimate>, cost: Cost, now: Nanos) -> (Decision, Option<RateEstimate>) {
        let admitted = self.fits(state.as_ref(), cost, now);
        let kept = match admitted || self.strict {
            true => Some(self.measured(state.as_ref(), cost, now)),
            false => state,
        };
        let decision = match &kept {
            _ if admitted => Decision::ADMIT,
            Some(kept) if cost <= self.whole_limit() => {
                Decision::later(self.admitted_at(kept, cost).saturating_sub(now))
            }
            _ => Decision::never(self.whole_limit()),
        };
        (decision, kept)
    }

    fn denials_count(&self) -> bool {
        self.strict
    }

    /// Subtracts the part of the rate that the charge added, if nothing was measured since; the time of the request stays. A
    /// rate that includes later measurements cannot be split any more, and stays as it is.
    fn refund(&self, state: RateEstimate, cost: Cost, full_at: Nanos, _now: Nanos) -> Option<RateEstimate> {
        if full_at != self.full_at(&state) {
            return Some(state);
        }
        let rate = state.rate - state.share * cost as f64;
        (rate > 0.0).then_some(RateEstimate { rate, share: 0.0, ..state })
    }

    /// Measures like an admitted request, up to 2⁶³ tokens per period: a debt is gone within 44 periods.
    fn debit_charge(&self, state: Option<RateEstimate>, cost: Cost, now: Nanos) -> Option<RateEstimate> {
        let decayed = self.measured_rate(state.as_ref(), now);
        let max_rate = MAX_OWED.max(decayed);
        let measured = self.measured(state.as_ref(), cost, now);
        Some(match measured.rate > max_rate {
            true => RateEstimate { rate: max_rate, share: 0.0, ..measured },
            false => measured,
        })
    }

    fn headroom(&self, state: Option<&RateEstimate>, now: Nanos) -> Headroom {
        let whole = self.whole_limit();
        let Some(measured) = state else {
            return Headroom { remaining: Some(whole), until_more: Nanos::ZERO, until_full: Nanos::ZERO };
        };
        let x = self.periods(now.saturating_sub(measured.last).get());
        let near = ((self.limit - self.measured_rate(state, now)) / share(x)).clamp(0.0, self.limit) as u64;
        let remaining = first_from(near.saturating_add(1), |cost| !self.fits(state, cost, now)).saturating_sub(1);
        let until = |cost| self.admitted_at(measured, cost).saturating_sub(now);
        Headroom {
            remaining: Some(remaining),
            until_more: if remaining < whole { until(remaining.saturating_add(1)) } else { Nanos::ZERO },
            until_full: until(whole),
        }
    }

    /// The key is the same as a fresh one when any request would measure only its own cost.
    fn evictability(&self, state: &RateEstimate) -> Evictability {
        let interval = Nanos::new(self.interval_until(state.rate, 1, ALMOST_ONE));
        Evictability::Fresh(state.last.saturating_add(interval))
    }

    /// The rate keeps its share of the limit, and its age keeps its number of periods.
    fn migrate_state(&self, old: &Self, state: RateEstimate, now: Nanos) -> Option<RateEstimate> {
        if self.limit == old.limit && self.period == old.period {
            return Some(state);
        }
        let interval = old.periods(now.saturating_sub(state.last).get()) * self.period.get() as f64;
        Some(RateEstimate {
            rate: state.rate * self.limit / old.limit,
            last: now.max(state.last).saturating_sub(Nanos::new(interval as u64)),
            share: 0.0,
        })
    }

    /// The higher of the two rates at the later of the two times: a shorter interval since the last request measures more.
    fn merge(&self, one: RateEstimate, other: RateEstimate) -> RateEstimate {
        if one == other {
            return one;
        }
        let last = one.last.max(other.last);
        let rate_of = |state: RateEstimate| match last.saturating_sub(state.last).get() {
            0 => state.rate,
            interval => self.rate_after(state.rate, interval, 0) * (1.0 + NEAR),
        };
        RateEstimate { rate: rate_of(one).max(rate_of(other)), last, share: 0.0 }
    }

    fn shift(&self, state: RateEstimate, by: ClockOffset) -> RateEstimate {
        RateEstimate { last: state.last.shifted(by), ..state }
    }

    fn largest_cost(&self) -> Option<Cost> {
        Some(self.whole_limit())
    }

    fn policy(&self) -> Policy {
        Policy { quota: self.whole_limit(), window: Some(self.period) }
    }

    const SCRIPT: &'static str = include_str!("exponential.lua");

    fn shared_form(&self, _slot_lifetime: Nanos) -> Result<SharedForm, String> {
        let policy = if self.strict { 's' } else { 'l' };
        Ok(SharedForm::new(format!("x {policy} {:e} {}", self.limit, self.period.get()), ChargeBatching::OneByOne))
    }

    fn read_shared(&self, words: &mut StateFields<'_>) -> Option<RateEstimate> {
        Some(RateEstimate { rate: number(words)?, last: time(words)?, share: number(words)? })
    }
}

#[cfg(test)]
mod tests;
