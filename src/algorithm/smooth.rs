//! `smooth_bursty` and `smooth_warming_up`: Guava's SmoothRateLimiter.
//!
//! The limiter reserves time: a request gets the time `next`, at which all earlier ones are paid for, and moves `next` on
//! by its own price, so that the next caller pays for this request and any cost is admitted. Unused time is stored as
//! permits; the two algorithms differ only in the price of stored permits (their [`Shape`]).
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

use std::fmt::Debug;
use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

use crate::algorithm::shared::number;
use crate::algorithm::{
    Algorithm, Arguments, ChargeBatching, Core, Decision, Evictability, Headroom, InvalidParameter, LONGEST_DEBT,
    MAX_WAIT, Parameter, ParameterKind, Policy, SharedForm, StateFields, Value,
};
use crate::units::{ClockOffset, Cost, Nanos, Rate};

mod bursty;
mod warming_up;

pub use bursty::Bursty;
pub use warming_up::WarmingUp;

/// Stored permits cost nothing: bursts up to the number of stored permits.
pub type SmoothBursty = Smooth<Bursty>;
/// Stored permits mean that there were no requests for a while, and cost more: a cold start.
pub type SmoothWarmingUp = Smooth<WarmingUp>;

/// The treatment of unused time.
pub trait Shape: Clone + PartialEq + Debug + Send + Sync + Sized + 'static {
    /// The name in the configuration.
    const NAME: &'static str;
    /// The settings, for the configuration and its error messages.
    const PARAMETERS: &'static [Parameter];

    /// Checks the arguments, and builds the shape for a limit of `rate`.
    fn build(arguments: &Arguments, rate: Rate) -> Result<Self, InvalidParameter>;

    /// Arguments from which [`Shape::build`] makes this shape again, without the rate.
    fn arguments(&self) -> Arguments;

    /// The most permits that are stored.
    fn most(&self) -> f64;

    /// The permits stored for a key never seen before.
    fn fresh(&self) -> f64;

    /// The microseconds in which one permit is stored.
    fn cool(&self) -> f64;

    /// The one of two numbers of stored permits that admits less.
    fn stricter(&self, one: f64, other: f64) -> f64;

    /// The price of `taken` of `stored` permits, in microseconds.
    fn price(&self, stored: f64, taken: f64) -> u64;

    /// The changes that refund a charge, such that no more is admitted than without the charge.
    fn undo(&self, refund: &Refund) -> Undo;

    /// When the state can be evicted, if all permits are stored again from `full` on.
    fn evictability(full: Nanos) -> Evictability;

    /// The numbers for the headers.
    fn policy(&self, rate: Rate) -> Policy;

    /// The limit in plain words.
    fn describe(&self, rate: Rate) -> String;

    /// The letter of the shape in the script for Redis, the number of stored permits above which they cost more, and the
    /// microseconds that each one above it adds to the price.
    fn shared_form(&self) -> (char, f64, f64);
}

/// The facts about a charge to refund.
#[derive(Clone, Copy, Debug)]
pub struct Refund {
    /// The cost to refund.
    pub cost: f64,
    /// The permits stored in the state.
    pub stored: f64,
    /// Whether it was the last charge.
    pub latest: bool,
    /// The microseconds until the charge's own reservation ends; negative if it has ended.
    pub left: f64,
}

/// The changes that refund a charge.
#[derive(Clone, Copy, Debug)]
pub struct Undo {
    /// The permits stored after the refund.
    pub stored: f64,
    /// The microseconds by which `next` comes earlier.
    pub earlier: u64,
}

/// The parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Smooth<S> {
    rate: Rate,
    /// Microseconds per permit.
    stable: f64,
    /// The longest wait, in whole microseconds.
    max_wait: u64,
    shape: S,
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

impl<S: Shape> Smooth<S> {
    /// The most microseconds ahead that a debt may reserve.
    fn furthest(&self) -> u64 {
        let window = micros(self.policy().window.unwrap_or_default()).saturating_mul(2);
        self.max_wait.saturating_add(window).saturating_add(micros(LONGEST_DEBT))
    }

    /// The state with `cost` reserved.
    fn charged(&self, Reserved { next, stored }: Reserved, cost: Cost) -> Reserved {
        let cost = cost as f64;
        let taken = cost.min(stored);
        let fresh = ((cost - taken) * self.stable) as u64;
        let price = self.shape.price(stored, taken).saturating_add(fresh);
        Reserved { next: next.saturating_add(price), stored: stored - taken }
    }

    fn synced(&self, state: Option<Reserved>, us: u64) -> Reserved {
        match state {
            None => Reserved { next: us, stored: self.shape.fresh() },
            Some(Reserved { next, stored }) if us > next => {
                let gained = us.saturating_sub(next) as f64 / self.shape.cool();
                Reserved { next: us, stored: self.shape.most().min(stored + gained) }
            }
            Some(state) => state,
        }
    }
}

/// All other fields follow from these.
impl<S: Shape> Hash for Smooth<S> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.rate, self.max_wait, self.shape.most().to_bits(), self.shape.cool().to_bits()).hash(state);
    }
}

impl<S: Shape> Algorithm for Smooth<S> {
    const NAME: &'static str = S::NAME;
    const PARAMETERS: &'static [Parameter] = S::PARAMETERS;

    type Core = Self;

    fn from_arguments(arguments: &Arguments) -> Result<Self, InvalidParameter> {
        let rate = arguments.rate("rate")?;
        let stable = stable(rate);
        Ok(Self { rate, stable, max_wait: micros(arguments.max_wait()), shape: S::build(arguments, rate)? })
    }

    fn arguments(rule: &Self) -> Arguments {
        let mut arguments = rule.shape.arguments();
        arguments.set("rate", Value::Rate(rule.rate));
        arguments.set(MAX_WAIT, Value::Duration(nanos(rule.max_wait)));
        arguments
    }

    fn describe(rule: &Self) -> String {
        rule.shape.describe(rule.rate)
    }
}

impl<S: Shape> Core for Smooth<S> {
    type State = Reserved;

    fn can_delay(&self) -> bool {
        true
    }

    fn decide(&self, state: Option<Reserved>, cost: Cost, now: Nanos) -> (Decision, Option<Reserved>) {
        if cost == 0 {
            return (Decision::ADMIT, state);
        }
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
        let undo = self.shape.undo(&Refund {
            cost: cost as f64,
            stored: state.stored,
            latest: micros(full_at) == state.next,
            left: micros(full_at) as f64 - us as f64,
        });
        let next = state.next.saturating_sub(undo.earlier);
        // time before `us` becomes stored permits at the next resync; 2 µs less make up for fractions that prices cut off
        let next = if next < us { next.saturating_add(2).min(us).min(state.next) } else { next };
        Some(Reserved { next, stored: undo.stored })
    }

    /// Reserves time like an admitted request, but no further ahead than the longest wait plus the time of two quotas plus
    /// the longest debt.
    fn debit(&self, state: Option<Reserved>, cost: Cost, now: Nanos) -> Option<Reserved> {
        if cost == 0 {
            return state;
        }
        let us = micros(now);
        let synced = self.synced(state, us);
        let charged = self.charged(synced, cost);
        let last = synced.next.max(us.saturating_add(self.furthest()));
        Some(Reserved { next: charged.next.min(last), ..charged })
    }

    fn headroom(&self, state: Option<&Reserved>, now: Nanos) -> Headroom {
        let reserved = state.map(|state| state.next).filter(|next| *next > micros(now));
        let until = reserved.map_or(Nanos::ZERO, |next| nanos(next).saturating_sub(now));
        Headroom { remaining: reserved.map(|_| 0), until_more: until, until_full: until, measured_rate: None }
    }

    fn evictability(&self, state: &Reserved) -> Evictability {
        let missing = (self.shape.most() - state.stored).max(0.0) * self.shape.cool();
        // rounding may lose a little of the time that each step stores
        let full = (missing * (1.0 + 1e-12)).ceil() as u64;
        S::evictability(nanos(state.next.saturating_add(full).saturating_add(1)))
    }

    /// Guava's setRate: permits gained until now at the old rate are stored, the stored share stays, `next` stays.
    fn migrate_state(&self, old: &Self, state: Reserved, now: Nanos) -> Option<Reserved> {
        if self.rate == old.rate && self.shape == old.shape {
            return Some(state);
        }
        let Reserved { next, stored } = old.synced(Some(state), micros(now));
        let stored = match old.shape.most() {
            0.0 => 0.0,
            most => stored * self.shape.most() / most,
        };
        Some(Reserved { next, stored })
    }

    /// The later reservation, and the number of permits stored by then, of the two states, that admits less.
    fn merge(&self, one: Reserved, other: Reserved) -> Reserved {
        let next = one.next.max(other.next);
        let stored = |state: Reserved| self.synced(Some(state), next).stored;
        Reserved { next, stored: self.shape.stricter(stored(one), stored(other)) }
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
        self.shape.policy(self.rate)
    }

    const SCRIPT: &'static str = include_str!("smooth.lua");

    fn shared_form(&self, _slot_lifetime: Nanos) -> Result<SharedForm, String> {
        let Self { rate, stable, max_wait, shape } = self;
        let (letter, threshold, slope) = shape.shared_form();
        let parameters = format!(
            "m {letter} {} {} {max_wait} {} {stable:e} {:e} {:e} {threshold:e} {slope:e}",
            rate.tokens(),
            rate.period().get(),
            self.furthest(),
            shape.most(),
            shape.cool(),
        );
        Ok(SharedForm::new(parameters, ChargeBatching::OneByOne))
    }

    fn read_shared(&self, words: &mut StateFields<'_>) -> Option<Reserved> {
        Some(Reserved { next: number(words)?, stored: number(words)? })
    }
}

#[cfg(test)]
mod tests;
