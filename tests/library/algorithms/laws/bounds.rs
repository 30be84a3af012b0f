//! The most that each algorithm admits in any interval.

use tollgate::algorithm::{Decision, Rule};

use crate::algorithms::limit::Limit;
use crate::algorithms::walk::{Admitted, Law, Step, Walk};

pub(super) const WHAT: &str = "no more is admitted than the bound in any time";

pub(super) fn watch(limit: &Limit, rule: &Rule) -> Option<Box<dyn Law>> {
    Some(if rule.holds_slots() { Box::new(InFlight::new(limit)) } else { Box::new(InAnyTime) })
}

/// The number of requests in flight never exceeds `most`, and none is denied below `least`.
struct InFlight {
    least: u128,
    most: u128,
}

impl InFlight {
    fn new(limit: &Limit) -> Self {
        let whole = |name| limit.whole(name).or(limit.whole("limit")).expect("a limit").into();
        Self { least: whole("min"), most: whole("max") }
    }
}

impl Law for InFlight {
    fn after(&mut self, walk: &Walk<'_>, step: Step, decision: Option<Decision>) -> Result<(), String> {
        let running: u128 = walk.running.iter().map(|cost| u128::from(*cost)).sum();
        if running > self.most {
            return Err(format!("{running} in flight"));
        }
        match (step, decision) {
            (Step::Ask { cost, .. }, Some(Decision::Deny(_))) if running + u128::from(cost) <= self.least => {
                Err(format!("{decision:?}, with {running} in flight"))
            }
            _ => Ok(()),
        }
    }
}

/// Sums over all intervals between two admitted requests, on a clock that stands still where the walk's clock steps back.
struct InAnyTime;

impl Law for InAnyTime {
    fn end(&mut self, walk: &Walk<'_>) -> Result<(), String> {
        let mut now = 0;
        let mut admitted = walk.admitted.clone();
        for request in &mut admitted {
            now = now.max(request.at);
            request.at = now;
        }
        let bound = arrivals(walk.limit);
        within(&admitted, "arrive", |first, last, most| bound(first.at, last.at, most))?;
        if let Some(bound) = departures(walk.limit) {
            if walk.admitted.iter().zip(&admitted).any(|(seen, request)| seen.at != request.at) {
                return Ok(());
            }
            for request in &mut admitted {
                request.at = request.at.saturating_add(request.wait);
            }
            within(&admitted, "depart", |first, last, most| bound(first.at, last.at, most))?;
        }
        if let Some(gap) = walk.limit.duration("min_gap") {
            let apart = admitted.windows(2).all(|pair| pair[1].at - pair[0].at >= gap);
            return if apart { Ok(()) } else { Err(format!("two admitted less than {gap} ns apart")) };
        }
        Ok(())
    }
}

pub(super) fn within(
    admitted: &[Admitted],
    what: &str,
    bound: impl Fn(&Admitted, &Admitted, u64) -> f64,
) -> Result<(), String> {
    for (index, first) in admitted.iter().enumerate() {
        let (mut sum, mut most) = (0_u128, 0);
        for last in &admitted[index..] {
            sum += u128::from(last.cost);
            most = most.max(last.cost);
            let bound = bound(first, last, most);
            if as_float(sum) > bound * (1.0 + 1e-12) {
                return Err(format!("{sum} {what} between {} and {}, at most {bound} may", first.at, last.at));
            }
        }
    }
    Ok(())
}

/// A bound on the tokens admitted between two times, both included; the third argument is the largest cost in that
/// interval.
pub(super) type Bound = Box<dyn Fn(u64, u64, u64) -> f64>;

#[expect(clippy::cast_precision_loss, reason = "far below 2^53 or compared with room for it")]
const fn as_float(number: u128) -> f64 {
    number as f64
}

fn whole(limit: &Limit, name: &str) -> f64 {
    as_float(limit.whole(name).expect("a whole number").into())
}

fn float(nanos: u64) -> f64 {
    as_float(nanos.into())
}

/// The rate in tokens per nanosecond.
fn rate(limit: &Limit) -> f64 {
    let (tokens, period) = limit.rate("rate").expect("a rate");
    float(tokens) / float(period)
}

/// The bound on admitted tokens by their times of arrival.
pub(super) fn arrivals(limit: &Limit) -> Bound {
    let per = |name| limit.duration(name).expect("a duration");
    let steady = |burst: f64, rate: f64| -> Bound { Box::new(move |from, to, _| burst + rate * float(to - from)) };
    match limit.algorithm.as_str() {
        // B + r·w
        "token_bucket" | "gcra" => steady(whole(limit, "burst"), rate(limit)),
        "leaky_bucket" => steady(whole(limit, "capacity"), rate(limit)),
        "leaky_queue" => steady(whole(limit, "capacity") + 1.0, rate(limit)),
        // L for each window that the interval touches: 2·L in any interval shorter than a window
        "fixed_window" | "quota_reset" => {
            let (most, window) = (whole(limit, "limit"), shortest_window(limit));
            Box::new(move |from, to, _| most * float((to - from).div_ceil(window) + 1))
        }
        // 2·L + r·w: a quota, and a smooth rate once it is spent
        "quota_linear" => steady(2.0 * whole(limit, "limit"), whole(limit, "limit") / float(per("window"))),
        // L in any window
        "sliding_log" => {
            let (most, window) = (whole(limit, "limit"), per("window"));
            Box::new(move |from, to, _| most * float((to - from) / window + 1))
        }
        // L + r·w
        "sliding_window" => steady(whole(limit, "limit"), whole(limit, "limit") / float(per("window"))),
        // L in any interval of slots − 1 slots
        "sliding_counters" => {
            let (most, window, slots) = (whole(limit, "limit"), per("window"), limit.whole("slots").unwrap_or(60));
            let slot = move |at: u64| u128::from(at) * u128::from(slots) / u128::from(window);
            Box::new(move |from, to, _| most * as_float((slot(to) - slot(from)) / u128::from(slots) + 1))
        }
        // L + (L + c/2)·w/period, c the largest cost
        "exponential" => {
            let (most, period) = (limit.decimal("limit").expect("a limit"), float(per("period")));
            Box::new(move |from, to, cost| most + (most + float(cost) / 2.0) * float(to - from) / period + 1e-6)
        }
        // the burst, L for each cycle that begins in the interval, plus the tokens lent from the cycles of the longest wait
        "cycle" => {
            let (most, period, wait) = (whole(limit, "limit"), per("period"), limit.max_wait());
            let burst = limit.whole("burst").map_or(most, float);
            let lent = if wait > 0 { (wait - 1) / period + 1 } else { 0 };
            Box::new(move |from, to, _| burst + most * (float((to - from).div_ceil(period)) + float(lent)))
        }
        // the stored permits, the rate's share of the interval and of the longest wait, and one request that the next
        // caller pays for
        "smooth_bursty" | "smooth_warming_up" => {
            let (rate, wait, stored) = (rate(limit), float(limit.max_wait()), stored(limit));
            Box::new(move |from, to, cost| stored + float(cost) + rate * (float(to - from) + wait + MICROS_LOST) + 1.0)
        }
        other => panic!("`{other}` has no bound here"),
    }
}

/// The bound on admitted tokens by their times of departure, for algorithms that delay requests.
fn departures(limit: &Limit) -> Option<Bound> {
    match limit.algorithm.as_str() {
        // (n + 1) + r·w, or the largest cost in place of n + 1, because a request departs with its last token; plus a
        // nanosecond for the rounding of the wait
        "gcra" => {
            let (free, rate) = (limit.whole("delay_after")?, rate(limit));
            let free = float(free.saturating_add(1)).min(whole(limit, "burst"));
            Some(Box::new(move |from, to, cost| free.max(float(cost)) + rate * float(to - from + 1)))
        }
        // One token at a time: 1 + r·w; a request with a cost above 1 departs with its last token
        "leaky_queue" => {
            let rate = rate(limit);
            Some(Box::new(move |from, to, cost| float(cost) + rate * float(to - from + 1)))
        }
        "smooth_bursty" | "smooth_warming_up" => {
            let (rate, stored) = (rate(limit), stored(limit));
            Some(Box::new(move |from, to, cost| stored + float(cost) + rate * (float(to - from) + MICROS_LOST) + 1.0))
        }
        _ => None,
    }
}

/// The microseconds that rounding loses on a whole walk, two for every request.
const MICROS_LOST: f64 = 120_000.0;

/// The permits that one of Guava's limiters gives without a wait after a pause.
fn stored(limit: &Limit) -> f64 {
    match limit.algorithm.as_str() {
        "smooth_bursty" => float(limit.duration("max_burst").unwrap_or(1_000_000_000)) * rate(limit),
        _ => 0.0,
    }
}

/// The shortest possible window: a calendar day has 23 hours when the clocks change.
fn shortest_window(limit: &Limit) -> u64 {
    const HOUR: u64 = 3_600_000_000_000;
    if !limit.is("align", "calendar") {
        return limit.duration("window").expect("a window");
    }
    match limit.word("window") {
        Some("day" | "1d") => 23 * HOUR,
        Some("week" | "7d") => (7 * 24 - 1) * HOUR,
        _ => (28 * 24 - 1) * HOUR,
    }
}
