//! `adaptive_concurrency`: a number of slots that follows the upstream's latency under load, for cases where no fixed
//! number is right. A gradient controller after Netflix's concurrency-limits (`Gradient2Limit`) and Envoy's adaptive
//! concurrency filter.
//!
//! Admission is that of `concurrency` with a moving limit, except that a request of any cost up to `max` is admitted while
//! nothing else is in flight: otherwise a cost above the limit would starve. The limit starts at `min` and moves when a
//! request ends:
//!
//! - latency is a moving average of measured requests, over about as many as are in flight (10 to 1000);
//! - gradient = base·tolerance/latency, from ½ to 1. With `target` the base is the target and the tolerance 1; without,
//!   the base is the best latency and the tolerance 1.25;
//! - one round of requests moves the limit a quarter of the way to limit·gradient + √limit, so each request moves it
//!   by its share of a round, cost/limit; always within `min` and `max`;
//! - it moves only if at least half of it was in flight: latency far below the limit says nothing about the limit;
//! - requests without a measurement (see [`Completion::measured`]) only give their slots back.
//!
//! The best latency is measured again every minute, so that a queue that never drains does not count as normal: for two
//! rounds of requests (at least 20) only half the limit is admitted, and the average over the second round, which runs
//! at half the load from its start, is the best latency until the next measurement. A lower average between two
//! measurements replaces it at once. With a limit below about 16, √limit outweighs the tolerance, and a queue of that
//! length can count as normal.
//!
//! State: 28 bytes.
#![expect(
    clippy::float_arithmetic,
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a controller in doubles; conversions to integers truncate and saturate"
)]

use serde::{Deserialize, Serialize};

use crate::algorithm::{
    Algorithm, Arguments, Completion, Core, Decision, Evictability, Headroom, InvalidParameter, Parameter,
    ParameterKind, Policy, SharedForm, Value,
};
use crate::units::{ClockOffset, Cost, Nanos};

/// The parameters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AdaptiveConcurrency {
    min: u32,
    max: u32,
    target: Option<Nanos>,
}

/// The requests in flight, and what the controller has learned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[repr(Rust, packed(4))]
pub struct ControllerState {
    limit: f64,
    in_flight: u32,
    /// The number of measured requests until the best latency is known; 0 if it is known.
    measuring: u32,
    /// The time of the next measurement, in seconds.
    due: u32,
    /// The best latency in nanoseconds; 0 until it was measured for the first time.
    best: f32,
    /// The average latency in nanoseconds; 0 before the first request.
    latency: f32,
}

/// The largest number of slots.
const MAX_SLOTS: u64 = 4_294_967_295;
/// The factor by which latency may be above the best and still counts as good.
const TOLERANCE: f64 = 1.25;
/// The smallest gradient, which bounds the decrease of the limit in one round.
const MIN_GRADIENT: f64 = 0.5;
/// The part of the way that one round moves the limit.
const GAIN: f64 = 0.25;
/// The seconds between two measurements of the best latency.
const REMEASURE: u32 = 60;
/// The fewest requests that make up a round.
const ROUND: f64 = 10.0;
/// The most requests that latency is averaged over.
const AVERAGED: f64 = 1000.0;

fn seconds(now: Nanos) -> u32 {
    let seconds = now.get().checked_div(Nanos::SECOND.get());
    seconds.and_then(|seconds| u32::try_from(seconds).ok()).unwrap_or(u32::MAX)
}

impl AdaptiveConcurrency {
    fn fresh(&self) -> ControllerState {
        let limit = self.min.into();
        ControllerState { limit, in_flight: 0, measuring: self.rounds(limit), due: 0, best: 0.0, latency: 0.0 }
    }

    /// The number of requests in a measurement of the best latency; 0 where `target` is set.
    fn rounds(&self, limit: f64) -> u32 {
        match self.target {
            Some(_) => 0,
            None => (2.0 * limit.max(ROUND)) as u32,
        }
    }

    /// The number of slots now.
    fn slots(&self, state: &ControllerState) -> u32 {
        let slots = if state.measuring > 0 { state.limit / 2.0 } else { state.limit };
        (slots as u32).max(self.min)
    }

    /// The latency up to which the limit grows, in nanoseconds.
    fn good(&self, state: &ControllerState) -> f64 {
        match self.target {
            Some(target) => target.get() as f64,
            None => f64::from(state.best) * TOLERANCE,
        }
    }

    /// The limit after a request of `cost`, by the current latency.
    fn moved(&self, state: &ControllerState, cost: Cost) -> f64 {
        let limit = state.limit;
        let gradient = (self.good(state) / f64::from(state.latency)).clamp(MIN_GRADIENT, 1.0);
        let part_of_round = (cost as f64 / limit).min(1.0);
        let step = limit * gradient + limit.sqrt() - limit;
        (limit + GAIN * part_of_round * step).clamp(self.min.into(), self.max.into())
    }

    /// The state; `None` if nothing is in flight and nothing was learned.
    fn kept(&self, state: ControllerState) -> Option<ControllerState> {
        (state != self.fresh()).then_some(state)
    }
}

impl ControllerState {
    fn less(self, cost: Cost) -> Self {
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        Self { in_flight: self.in_flight.saturating_sub(cost), ..self }
    }
}

impl Algorithm for AdaptiveConcurrency {
    const NAME: &'static str = "adaptive_concurrency";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::required("min", ParameterKind::Whole).at_least(1).at_most(MAX_SLOTS),
        Parameter::required("max", ParameterKind::Whole).at_least(1).at_most(MAX_SLOTS),
        Parameter::optional("target", ParameterKind::Duration)
            .at_least(1)
            .advice("leave it out to aim at the best latency"),
    ];

    type Core = Self;

    fn from_arguments(arguments: &Arguments) -> Result<Self, InvalidParameter> {
        let target = match arguments.has("target") {
            true => Some(arguments.duration("target")?),
            false => None,
        };
        let (min, max) = (arguments.required_whole("min")?, arguments.required_whole("max")?);
        if min > max {
            return Err(InvalidParameter::new(
                "min",
                format!("of {min} is above `max`, {max}; lower it or raise `max`"),
            ));
        }
        let in_flight = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        Ok(Self { min: in_flight(min), max: in_flight(max), target })
    }

    fn arguments(rule: &Self) -> Arguments {
        let mut arguments: Arguments =
            [("min", Value::Whole(rule.min.into())), ("max", Value::Whole(rule.max.into()))].into();
        if let Some(target) = rule.target {
            arguments.set("target", Value::Duration(target));
        }
        arguments
    }

    fn describe(rule: &Self) -> String {
        let aim = match rule.target {
            Some(target) => format!("as many as keep latency at {target}"),
            None => "fewer as latency rises above the best".to_owned(),
        };
        format!("from {} to {} in flight at once, {aim}", rule.min, rule.max)
    }
}

impl Core for AdaptiveConcurrency {
    const HOLDS_SLOTS: bool = true;
    type State = ControllerState;

    fn decide_charge(&self, state: Option<Self::State>, cost: Cost, _now: Nanos) -> (Decision, Option<Self::State>) {
        let Some(cost) = u32::try_from(cost).ok().filter(|cost| *cost <= self.max) else {
            return (Decision::never(self.max.into()), state);
        };
        let learned = state.unwrap_or_else(|| self.fresh());
        let alone = learned.in_flight == 0;
        match learned.in_flight.checked_add(cost) {
            Some(in_flight) if alone || in_flight <= self.slots(&learned) => {
                (Decision::ADMIT, Some(ControllerState { in_flight, ..learned }))
            }
            _ => (Decision::BUSY, state),
        }
    }

    fn refund(&self, state: ControllerState, cost: Cost, _full_at: Nanos, _now: Nanos) -> Option<ControllerState> {
        self.kept(state.less(cost))
    }

    fn complete(&self, state: ControllerState, cost: Cost, end: Completion, now: Nanos) -> Option<ControllerState> {
        let mut next = state.less(cost);
        if !end.measured || cost == 0 {
            return self.kept(next);
        }
        let sample = end.latency.get().max(1) as f32;
        let half_measured = state.measuring > 0 && state.measuring == self.rounds(state.limit) / 2;
        let first_of_round = state.latency == 0.0 || half_measured;
        next.latency = match first_of_round {
            true => sample,
            false => state.latency + (sample - state.latency) / { state.limit }.clamp(ROUND, AVERAGED) as f32,
        };
        if state.measuring > 0 {
            next.measuring = state.measuring.saturating_sub(1);
            if next.measuring == 0 {
                next.best = next.latency;
                next.due = seconds(now).saturating_add(REMEASURE);
            }
            return Some(next);
        }
        if self.target.is_none() {
            next.best = next.best.min(next.latency);
        }
        if f64::from(state.in_flight) * 2.0 >= state.limit {
            next.limit = self.moved(&next, cost);
        }
        if seconds(now) >= next.due {
            next.measuring = self.rounds(next.limit);
        }
        Some(next)
    }

    fn hold(&self, state: Option<ControllerState>, cost: Cost) -> Option<ControllerState> {
        let learned = state.unwrap_or_else(|| self.fresh());
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        self.kept(ControllerState { in_flight: learned.in_flight.saturating_add(cost), ..learned })
    }

    fn debit_charge(&self, state: Option<ControllerState>, _cost: Cost, _now: Nanos) -> Option<ControllerState> {
        state
    }

    fn headroom(&self, state: Option<&ControllerState>, _now: Nanos) -> Headroom {
        let remaining = match state {
            Some(state) if state.in_flight > 0 => self.slots(state).saturating_sub(state.in_flight),
            _ => self.max,
        };
        Headroom { remaining: Some(remaining.into()), until_more: Nanos::ZERO, until_full: Nanos::ZERO }
    }

    /// A fresh key starts at `min`, so the state can be evicted whenever nothing is in flight.
    fn evictability(&self, state: &ControllerState) -> Evictability {
        match state.in_flight {
            0 => Evictability::Safe(Nanos::ZERO),
            _ => Evictability::Held,
        }
    }

    /// The number in flight stays; the learned limit is clamped to the new bounds.
    fn migrate_state(&self, old: &Self, state: ControllerState, _now: Nanos) -> Option<ControllerState> {
        if self == old {
            return Some(state);
        }
        let limit = { state.limit }.clamp(self.min.into(), self.max.into());
        let measuring = match self.target {
            None if state.best == 0.0 || state.measuring > 0 => self.rounds(limit),
            _ => 0,
        };
        Some(ControllerState { limit, measuring, ..state })
    }

    /// The lower limit, the larger number in flight and the higher latency; a measurement that runs in either one goes on.
    fn merge(&self, one: ControllerState, other: ControllerState) -> ControllerState {
        let best = match (one.best, other.best) {
            (0.0, best) | (best, 0.0) => best,
            (one, other) => one.min(other),
        };
        ControllerState {
            limit: { one.limit }.min(other.limit),
            in_flight: one.in_flight.max(other.in_flight),
            measuring: one.measuring.max(other.measuring),
            due: one.due.min(other.due),
            best,
            latency: one.latency.max(other.latency),
        }
    }

    fn shift(&self, state: ControllerState, by: ClockOffset) -> ControllerState {
        ControllerState { due: seconds(Nanos::from_secs(state.due.into()).shifted(by)), ..state }
    }

    fn largest_cost(&self) -> Option<Cost> {
        Some(self.max.into())
    }

    fn policy(&self) -> Policy {
        Policy { quota: self.max.into(), window: None }
    }

    fn shared_form(&self, _slot_lifetime: Nanos) -> Result<SharedForm, String> {
        Err("follows the latency that a gateway measures, which gateways do not share; use it with `mode: sticky`, or \
             `concurrency` with `mode: shared`"
            .to_owned())
    }
}

#[cfg(test)]
mod tests;
