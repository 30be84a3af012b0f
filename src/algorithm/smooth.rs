//! `smooth_bursty` and `smooth_warming_up`: Guava's SmoothRateLimiter.
//!
//! The limiter reserves time: a request gets the time `next`, at which all earlier ones are paid for, and moves `next` on
//! by its own price, so that the next caller pays for this request and any cost is admitted. Unused time is stored as
//! permits; the two algorithms differ only in the price of stored permits.
//!
//! With stable = 10⁶/rate, all in whole microseconds, at us = ⌊now/1000⌋:
//!
//! - resync: if us > next: stored = min(max, stored + (us − next)/cool), next = us;
//! - a request of cost c is denied iff next − `max_wait` > us, which is checked before the resync. Admitted, it waits
//!   max(0, next − us), takes s = min(c, stored), and next += price(stored, s) + ⌊(c − s)·stable⌋.
//!
//! In doubles, and truncated, as in Guava: a price is up to 1 µs too low (2 µs when warming up), which matters for rates
//! near 10⁶ permits/s; above that a permit would cost nothing, so such rates are refused. Sums saturate where a `long`
//! would wrap: such a key waits forever.
//!
//! State: 16 bytes.
#![expect(
    clippy::float_arithmetic,
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "defined in doubles; conversions to integers truncate and saturate, as the rule wants"
)]

use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

use crate::algorithm::shared::number;
use crate::algorithm::{
    Arguments, ChargeBatching, Core, Decision, Evictability, Headroom, MAX_DEBT, MAX_WAIT, Parameter, ParameterKind,
    Policy, SharedForm, StateFields, Value,
};
use crate::units::{ClockOffset, Cost, Nanos, Rate};

mod bursty;
mod warming_up;

pub use bursty::SmoothBursty;
pub use warming_up::SmoothWarmingUp;

/// The parameters, and what follows from them, in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Smooth {
    rate: Rate,
    /// The longest wait, in whole microseconds.
    max_wait: u64,
    /// The time of one permit at the rate.
    stable: f64,
    /// The most permits that are stored.
    max_stored: f64,
    /// The time in which one permit is stored.
    cool: f64,
    /// The number of stored permits above which they cost more.
    threshold: f64,
    /// The time that each permit above it adds to the price.
    slope: f64,
    shape: Shape,
}

/// The treatment of unused time.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    /// Up to `max_burst` of it is stored.
    Bursty { max_burst: Nanos },
    /// The full rate is reached after `warm_up` of use, from a rate of rate/`cold_factor`.
    WarmingUp { warm_up: Nanos, cold_factor: f64 },
}

/// The reserved time and the stored permits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reserved {
    /// The microsecond until which time is reserved.
    pub next: u64,
    /// The permits stored.
    pub stored: f64,
}

/// The rate. At a higher one, the price of a permit in whole microseconds would be 0.
const RATE: Parameter =
    Parameter::required("rate", ParameterKind::Rate).at_most(1_000_000).advice("for more use `gcra`");

/// Microseconds per permit at `rate`.
fn stable(rate: Rate) -> f64 {
    1e6 / rate.per_second()
}

const fn micros(time: Nanos) -> u64 {
    time.get() / 1000
}

fn nanos(micros: u64) -> Nanos {
    Nanos::saturating_from(u128::from(micros).saturating_mul(1000))
}

impl Smooth {
    /// The most microseconds ahead that a debt may reserve.
    fn furthest(&self) -> u64 {
        let window = micros(self.policy().window.unwrap_or_default()).saturating_mul(2);
        self.max_wait.saturating_add(window).saturating_add(micros(MAX_DEBT))
    }

    /// The price of one permit at `permits` permits above the threshold.
    fn price_at(&self, permits: f64) -> f64 {
        self.stable + permits * self.slope
    }

    /// The price of `taken` of `stored` permits, in microseconds.
    fn price(&self, stored: f64, taken: f64) -> u64 {
        if let Shape::Bursty { .. } = self.shape {
            return 0;
        }
        let above = stored - self.threshold;
        if above <= 0.0 {
            return (self.stable * taken) as u64;
        }
        let cold = above.min(taken);
        let area = cold * (self.price_at(above) + self.price_at(above - cold)) / 2.0;
        (area as u64).saturating_add((self.stable * (taken - cold)) as u64)
    }

    /// The state with `cost` reserved.
    fn charged(&self, Reserved { next, stored }: Reserved, cost: Cost) -> Reserved {
        let cost = cost as f64;
        let taken = cost.min(stored);
        let fresh = ((cost - taken) * self.stable) as u64;
        let price = self.price(stored, taken).saturating_add(fresh);
        Reserved { next: next.saturating_add(price), stored: stored - taken }
    }

    /// Guava's setRate: permits gained until now at the old rate are stored, the stored share stays, `next` stays. Rounds also
    /// where the rate stays, as Guava does.
    pub fn set_rate(&self, old: &Self, state: Reserved, now: Nanos) -> Reserved {
        let Reserved { next, stored } = old.synced(Some(state), micros(now));
        let stored = match old.max_stored {
            0.0 => 0.0,
            max_stored => stored * self.max_stored / max_stored,
        };
        Reserved { next, stored }
    }

    fn synced(&self, state: Option<Reserved>, us: u64) -> Reserved {
        match (state, self.shape) {
            (None, Shape::Bursty { .. }) => Reserved { next: us, stored: 0.0 },
            (None, Shape::WarmingUp { .. }) => Reserved { next: us, stored: self.max_stored },
            (Some(Reserved { next, stored }), _) if us > next => {
                let gained = us.saturating_sub(next) as f64 / self.cool;
                Reserved { next: us, stored: self.max_stored.min(stored + gained) }
            }
            (Some(state), _) => state,
        }
    }

    /// The permits stored after a refund of `cost`, and the microseconds by which `next` comes earlier, such that no more is
    /// admitted than without the charge. The charge's own reservation ends after `left` microseconds; it has ended if that is
    /// negative.
    fn undo(&self, stored: f64, cost: f64, latest: bool, left: f64) -> (f64, u64) {
        let (lowest, max_taken) = (cost * self.stable, cost.min(self.max_stored));
        match self.shape {
            // A stored permit is worth the time of one permit, so everything comes back as time. Without the charge, the time
            // since then would have stored permits only up to the most; time beyond that is not refunded.
            Shape::Bursty { .. } if latest => (stored, lowest as u64),
            Shape::Bursty { .. } => (stored, lowest.min(left + max_taken * self.stable) as u64),
            // All permits come back as stored ones, which makes the key colder if anything. For the last charge, if all its
            // permits had been stored, time comes back at the price that they had; otherwise at the lowest price, less the
            // time that may have passed unused without the charge. That time began with the charge's reservation, which at
            // the highest price began earlier by the surcharge.
            Shape::WarmingUp { .. } => {
                let after = self.max_stored.min(stored + cost);
                let surcharge = self.price(self.max_stored, max_taken) as f64 - max_taken * self.stable;
                let earlier = match latest {
                    true if stored > 0.0 => self.price(after, cost),
                    true => lowest as u64,
                    false => lowest.min(left - surcharge) as u64,
                };
                (after, earlier)
            }
        }
    }

    fn arguments(&self) -> Arguments {
        let mut arguments: Arguments = match self.shape {
            Shape::Bursty { max_burst } => [("max_burst", Value::Duration(max_burst))].into(),
            Shape::WarmingUp { warm_up, cold_factor } => {
                [("warm_up", Value::Duration(warm_up)), ("cold_factor", Value::Decimal(cold_factor))].into()
            }
        };
        arguments.set("rate", Value::Rate(self.rate));
        arguments.set(MAX_WAIT, Value::Duration(nanos(self.max_wait)));
        arguments
    }

    fn describe(&self) -> String {
        let unused = match self.shape {
            Shape::Bursty { max_burst: Nanos::ZERO } => "unused time is not saved".to_owned(),
            Shape::Bursty { max_burst } => format!("up to {max_burst} of unused time is saved for a burst"),
            Shape::WarmingUp { warm_up, cold_factor } => {
                format!("a cold start is {cold_factor} times slower and warm after {warm_up}")
            }
        };
        let (rate, every) = (self.rate, self.rate.time_for(1));
        format!("{rate}, the next one after {every}; {unused}; each request is paid for by the next")
    }
}

/// No field is NaN: each is finite, and divided only by what is above zero.
impl Eq for Smooth {}

/// All other fields follow from these.
impl Hash for Smooth {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.rate, self.max_wait, self.max_stored.to_bits(), self.cool.to_bits()).hash(state);
    }
}

impl Core for Smooth {
    type State = Reserved;

    fn can_delay(&self) -> bool {
        true
    }

    fn decide_charge(&self, state: Option<Reserved>, cost: Cost, now: Nanos) -> (Decision, Option<Reserved>) {
        let us = micros(now);
        let admitted_from = state.map_or(0, |state| state.next.saturating_sub(self.max_wait));
        if admitted_from > us {
            return (Decision::later(nanos(admitted_from).saturating_sub(now)), state);
        }
        let synced = self.synced(state, us);
        let wait = nanos(synced.next.saturating_sub(us));
        (Decision::Admit { wait }, Some(self.charged(synced, cost)))
    }

    /// Exact for the last charge, if it took only stored permits or none; otherwise the refund is a few microseconds too
    /// small or, when warming up, leaves the key somewhat colder. A key that waits forever because a sum saturated stays so.
    fn refund(&self, state: Reserved, cost: Cost, full_at: Nanos, now: Nanos) -> Option<Reserved> {
        if state.next == u64::MAX {
            return Some(state);
        }
        let us = micros(now);
        let (latest, left) = (micros(full_at) == state.next, micros(full_at) as f64 - us as f64);
        let (stored, earlier) = self.undo(state.stored, cost as f64, latest, left);
        let next = state.next.saturating_sub(earlier);
        // time before `us` becomes stored permits at the next resync; 2 µs less make up for fractions that prices cut off
        let next = if next < us { next.saturating_add(2).min(us).min(state.next) } else { next };
        Some(Reserved { next, stored })
    }

    /// Reserves time like an admitted request, but no further ahead than the longest wait plus the time of two quotas plus
    /// the longest debt.
    fn debit_charge(&self, state: Option<Reserved>, cost: Cost, now: Nanos) -> Option<Reserved> {
        let us = micros(now);
        let synced = self.synced(state, us);
        let charged = self.charged(synced, cost);
        let last = synced.next.max(us.saturating_add(self.furthest()));
        Some(Reserved { next: charged.next.min(last), ..charged })
    }

    fn headroom(&self, state: Option<&Reserved>, now: Nanos) -> Headroom {
        let reserved = state.map(|state| state.next).filter(|next| *next > micros(now));
        let until = reserved.map_or(Nanos::ZERO, |next| nanos(next).saturating_sub(now));
        Headroom { remaining: reserved.map(|_| 0), until_more: until, until_full: until }
    }

    fn evictability(&self, state: &Reserved) -> Evictability {
        let missing = (self.max_stored - state.stored).max(0.0) * self.cool;
        // rounding may lose a little of the time that each step stores
        let full = (missing * (1.0 + 1e-12)).ceil() as u64;
        let full = nanos(state.next.saturating_add(full).saturating_add(1));
        match self.shape {
            // a fresh key has no stored permits: evicting a full one can only admit less
            Shape::Bursty { .. } => Evictability::Safe(full),
            // a key that has cooled down is the same as a fresh one
            Shape::WarmingUp { .. } => Evictability::Fresh(full),
        }
    }

    /// [`Smooth::set_rate`], except that nothing is rounded where the rate stays.
    fn migrate_state(&self, old: &Self, state: Reserved, now: Nanos) -> Option<Reserved> {
        Some(if self.rate == old.rate && self.shape == old.shape { state } else { self.set_rate(old, state, now) })
    }

    /// The later reservation, and the number of permits stored by then, of the two states, that admits less.
    fn merge(&self, one: Reserved, other: Reserved) -> Reserved {
        let next = one.next.max(other.next);
        let [one, other] = [one, other].map(|state| self.synced(Some(state), next).stored);
        let stored = match self.shape {
            Shape::Bursty { .. } => one.min(other),
            // the more permits are stored, the colder the key is, and the more each permit costs
            Shape::WarmingUp { .. } => one.max(other),
        };
        Reserved { next, stored }
    }

    /// Exact to the microsecond, rounded up.
    fn shift(&self, state: Reserved, by: ClockOffset) -> Reserved {
        let distance = by.get().unsigned_abs();
        let next = match by.get() < 0 {
            true => state.next.saturating_sub(distance / 1000),
            false => state.next.saturating_add(distance.div_ceil(1000)),
        };
        Reserved { next, ..state }
    }

    fn largest_cost(&self) -> Option<Cost> {
        None
    }

    fn policy(&self) -> Policy {
        match self.shape {
            Shape::Bursty { .. } => {
                let quota = (self.max_stored as u64).max(1);
                Policy { quota, window: Some(self.rate.time_for(quota)) }
            }
            Shape::WarmingUp { .. } => Policy { quota: self.rate.tokens(), window: Some(self.rate.period()) },
        }
    }

    const SCRIPT: &'static str = include_str!("smooth.lua");

    fn shared_form(&self, _slot_lifetime: Nanos) -> Result<SharedForm, String> {
        let Self { rate, max_wait, stable, max_stored, cool, threshold, slope, shape } = self;
        let letter = if let Shape::Bursty { .. } = shape { 'b' } else { 'w' };
        let (tokens, period, ahead) = (rate.tokens(), rate.period().get(), self.furthest());
        let parameters = format!(
            "m {letter} {tokens} {period} {max_wait} {ahead} {stable:e} {max_stored:e} {cool:e} {threshold:e} {slope:e}"
        );
        Ok(SharedForm::new(parameters, ChargeBatching::OneByOne))
    }

    fn read_shared(&self, words: &mut StateFields<'_>) -> Option<Reserved> {
        Some(Reserved { next: number(words)?, stored: number(words)? })
    }
}

#[cfg(test)]
mod tests;
