//! `smooth_bursty` and `smooth_warming_up`: Guava's SmoothRateLimiter.
//!
//! A limiter of reservations: a request is granted the time `next`, at which all earlier ones are paid for, and moves
//! it on by its own price, so that the next caller pays for this one and any cost is admitted. Time that nobody used
//! is stored as permits; what those cost is all that the two differ in (their [`Shape`]).
//!
//! With stable = 10⁶/rate, all in whole microseconds, at us = ⌊now/1000⌋:
//!
//! - resync: if us > next: stored = min(max, stored + (us − next)/cool), next = us;
//! - a request of cost c is denied iff next − `max_wait` > us, which is checked before the resync. Admitted, it waits
//!   max(0, next − us), takes s = min(c, stored), and next += price(stored, s) + ⌊(c − s)·stable⌋.
//!
//! In doubles, and truncated, as Guava does it: a price is up to 1 µs too low (2 µs when warming up), which matters
//! towards 10⁶ permits/s; above that a permit would cost nothing, so such rates are refused. Sums saturate where a
//! `long` would wrap: such a key waits for good.
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
    Algorithm, Arguments, Charges, Core, Decision, Headroom, Idle, InvalidParameter, Kind, LONGEST_DEBT, MAX_WAIT,
    Parameter, Policy, SharedForm, Value, Words,
};
use crate::units::{ClockOffset, Cost, Nanos, Rate};

mod bursty;
mod warming_up;

pub use bursty::Bursty;
pub use warming_up::WarmingUp;

/// Stored permits cost nothing: bursts up to what was stored.
pub type SmoothBursty = Smooth<Bursty>;
/// Stored permits mean that nothing was asked for in a while, and cost more: a cold start.
pub type SmoothWarmingUp = Smooth<WarmingUp>;

/// What becomes of time that nobody used.
pub trait Shape: Clone + PartialEq + Debug + Send + Sync + Sized + 'static {
    /// The name in the configuration.
    const NAME: &'static str;
    /// What can be set.
    const PARAMETERS: &'static [Parameter];

    /// The shape, checked, for a limit of `rate`.
    fn build(arguments: &Arguments, rate: Rate) -> Result<Self, InvalidParameter>;

    /// What [`Shape::build`] made it of, without the rate.
    fn arguments(&self) -> Arguments;

    /// The most permits that are stored.
    fn most(&self) -> f64;

    /// The permits stored for a key never seen before.
    fn fresh(&self) -> f64;

    /// The microseconds in which one permit is stored.
    fn cool(&self) -> f64;

    /// Which of two numbers of stored permits admits less.
    fn stricter(&self, one: f64, other: f64) -> f64;

    /// The microseconds that `taken` of `stored` permits cost.
    fn price(&self, stored: f64, taken: f64) -> u64;

    /// How to take a charge back so that no more is admitted than if it had not been made.
    fn undo(&self, refund: &Refund) -> Undo;

    /// What may become of a key from `full` on, when all permits are stored again.
    fn idle(full: Nanos) -> Idle;

    /// The numbers for the headers.
    fn policy(&self, rate: Rate) -> Policy;

    /// The limit in plain words.
    fn describe(&self, rate: Rate) -> String;

    /// The letter by which the script in Redis knows the shape, the stored permits from which on they cost more, and how
    /// many microseconds more for each one above that.
    fn shared_form(&self) -> (char, f64, f64);
}

/// What is known about a charge to take back.
#[derive(Clone, Copy, Debug)]
pub struct Refund {
    /// How much to take back.
    pub cost: f64,
    /// The permits stored in the state.
    pub stored: f64,
    /// Whether nothing was charged since.
    pub latest: bool,
    /// How long, in microseconds, the charge's own reservation still lasts; below zero since when it is over.
    pub left: f64,
}

/// How to take a charge back.
#[derive(Clone, Copy, Debug)]
pub struct Undo {
    /// The permits stored then.
    pub stored: f64,
    /// By how many microseconds `next` comes earlier.
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

/// What is reserved and what is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reserved {
    /// The microsecond from which on nothing is reserved.
    pub next: u64,
    /// The permits stored.
    pub stored: f64,
}

/// The rate: a price in whole microseconds is nothing at a higher one.
const RATE: Parameter = Parameter::required("rate", Kind::Rate).at_most(1_000_000).advice("for more use `gcra`");

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
    /// How many microseconds ahead a debt may reserve.
    fn furthest(&self) -> u64 {
        let window = micros(self.policy().window.unwrap_or_default()).saturating_mul(2);
        self.max_wait.saturating_add(window).saturating_add(micros(LONGEST_DEBT))
    }

    /// With `cost` reserved.
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

/// The rest follows from these.
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

    fn reserves(&self) -> bool {
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

    /// Exact for the latest charge, if it took only stored permits or none; else at most a few microseconds or, when
    /// warming up, some warmth short of that. What waits for good because a sum saturated, waits on.
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
        // what turns into stored permits at the next resync makes up for fractions that prices had cut off
        let next = if next < us { next.saturating_add(2).min(us).min(state.next) } else { next };
        Some(Reserved { next, stored: undo.stored })
    }

    /// Reserved like an admitted request, but no further ahead than a wait is allowed to be, the time of two quotas and
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

    fn idle(&self, state: &Reserved) -> Idle {
        let missing = (self.shape.most() - state.stored).max(0.0) * self.shape.cool();
        // rounding may lose a little of what each step stores
        let full = (missing * (1.0 + 1e-12)).ceil() as u64;
        S::idle(nanos(state.next.saturating_add(full).saturating_add(1)))
    }

    /// Guava's setRate: what was gained until now at the old rate is stored, the stored share stays, `next` stays.
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

    /// The later reservation, and of what both would have stored by then the permits that admit less.
    fn merge(&self, one: Reserved, other: Reserved) -> Reserved {
        let next = one.next.max(other.next);
        let stored = |state: Reserved| self.synced(Some(state), next).stored;
        Reserved { next, stored: self.shape.stricter(stored(one), stored(other)) }
    }

    /// To the microsecond, rounded up.
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
        Ok(SharedForm::new(parameters, Charges::OneByOne))
    }

    fn read_shared(&self, words: &mut Words<'_>) -> Option<Reserved> {
        Some(Reserved { next: number(words)?, stored: number(words)? })
    }
}

#[cfg(test)]
mod tests;
