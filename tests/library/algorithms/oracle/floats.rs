//! The three definitions in doubles.
#![expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "as the definitions do: costs and times as doubles, `long` truncating towards zero"
)]

use super::{Oracle, Verdict};
use crate::algorithms::limit::Limit;

/// `exponential`.
pub(super) struct Exponential {
    limit: f64,
    period: f64,
    strict: bool,
    /// The rate and the time of its calculation.
    last: Option<(f64, u64)>,
}

impl Exponential {
    pub(super) fn new(limit: &Limit) -> Self {
        Self {
            limit: limit.decimal("limit").expect("a limit"),
            period: limit.duration("period").expect("a period") as f64,
            strict: limit.is("policy", "strict"),
            last: None,
        }
    }

    fn rate(&self, cost: u64, now: u64) -> (f64, f64) {
        let cost = cost as f64;
        let Some((rate, last)) = self.last else { return (cost, 0.0) };
        let x = (now - last) as f64 / self.period;
        let share = if x == 0.0 { 1.0 } else { -(-x).exp_m1() / x };
        (cost.max(share * cost + (-x).exp() * rate), x)
    }
}

impl Oracle for Exponential {
    fn verdict(&self, cost: u64, now: u64) -> Verdict {
        if cost as f64 > self.limit {
            return Verdict::Never;
        }
        let (rate, x) = self.rate(cost, now);
        if x > 0.0 && (rate - self.limit).abs() <= 1e-10 * self.limit {
            Verdict::Imprecise
        } else if rate > self.limit {
            Verdict::Later
        } else {
            Verdict::ADMIT
        }
    }

    fn settle(&mut self, cost: u64, now: u64, admitted: bool) {
        if admitted || self.strict {
            self.last = Some((self.rate(cost, now).0, now));
        }
    }

    fn slack(&self) -> u64 {
        1_000
    }
}

/// The common part of Guava's two limiters: it counts whole microseconds, and each request is paid for by the next caller.
pub(super) struct Guava {
    stable: f64,
    max: f64,
    cool: f64,
    /// The threshold and slope of the trapezoid; only `smooth_warming_up` has one.
    warm: Option<(f64, f64)>,
    max_wait: i64,
    stored: f64,
    /// The time at which the next request may pass; `None` before the first request.
    next: Option<i64>,
}

impl Guava {
    pub(super) fn bursty(limit: &Limit) -> Self {
        let rate = per_second(limit);
        let stable = 1e6 / rate;
        let max_burst = limit.duration("max_burst").unwrap_or(1_000_000_000) as f64 / 1e9;
        let max_wait = micros(limit.max_wait());
        Self { stable, max: max_burst * rate, cool: stable, warm: None, max_wait, stored: 0.0, next: None }
    }

    pub(super) fn warming_up(limit: &Limit) -> Self {
        let stable = 1e6 / per_second(limit);
        let warm_up = micros(limit.duration("warm_up").expect("a warm_up")) as f64;
        let cold = stable * limit.decimal("cold_factor").unwrap_or(3.0);
        let threshold = 0.5 * warm_up / stable;
        let max = threshold + 2.0 * warm_up / (stable + cold);
        let slope = (cold - stable) / (max - threshold);
        let (warm, max_wait) = (Some((threshold, slope)), micros(limit.max_wait()));
        Self { stable, max, cool: warm_up / max, warm, max_wait, stored: max, next: None }
    }

    /// The price of `permits` stored permits in microseconds.
    fn price(&self, stored: f64, permits: f64) -> i64 {
        let Some((threshold, slope)) = self.warm else { return 0 };
        let above = stored - threshold;
        let (mut price, mut permits) = (0, permits);
        if above > 0.0 {
            let taken = above.min(permits);
            let long = |permits: f64| self.stable + permits * slope;
            price = (taken * (long(above) + long(above - taken)) / 2.0) as i64;
            permits -= taken;
        }
        price + (self.stable * permits) as i64
    }

    /// The stored permits and the next free time at `now`.
    fn resync(&self, now: i64) -> (f64, i64) {
        match self.next {
            None => (self.stored, now),
            Some(next) if now > next => (self.max.min(self.stored + (now - next) as f64 / self.cool), now),
            Some(next) => (self.stored, next),
        }
    }
}

impl Oracle for Guava {
    fn verdict(&self, _cost: u64, now: u64) -> Verdict {
        let now = micros(now);
        if self.next.is_some_and(|next| next.saturating_sub(self.max_wait) > now) {
            return Verdict::Later;
        }
        let wait = (self.resync(now).1 - now).max(0);
        Verdict::Admit { wait: u64::try_from(wait).unwrap_or(0).saturating_mul(1000) }
    }

    fn settle(&mut self, cost: u64, now: u64, admitted: bool) {
        if admitted {
            let (stored, next) = self.resync(micros(now));
            let taken = stored.min(cost as f64);
            let fresh = ((cost as f64 - taken) * self.stable) as i64;
            self.next = Some(next.saturating_add(self.price(stored, taken).saturating_add(fresh)));
            self.stored = stored - taken;
        }
    }

    fn slack(&self) -> u64 {
        999
    }
}

fn micros(nanos: u64) -> i64 {
    i64::try_from(nanos / 1000).expect("below 2^63")
}

fn per_second(limit: &Limit) -> f64 {
    let (tokens, period) = limit.rate("rate").expect("a rate");
    tokens as f64 * 1e9 / period as f64
}
