//! Algorithms that count in windows.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use super::{Oracle, Verdict};
use crate::algorithms::limit::Limit;

/// The admitted costs and their times.
type Requests = Vec<(u64, u64)>;

fn sum(requests: &[(u64, u64)], counts: impl Fn(u64) -> bool) -> u128 {
    requests.iter().filter(|(at, _)| counts(*at)).map(|(_, cost)| u128::from(*cost)).sum()
}

fn admit_or_later(passes: bool) -> Verdict {
    if passes { Verdict::ADMIT } else { Verdict::Later }
}

/// `fixed_window`: the sum of requests admitted in the same window, or on the same day, in the same week or month.
pub(super) struct FixedWindow {
    limit: u64,
    window: u64,
    calendar: Option<(String, TimeZone)>,
    admitted: Requests,
}

impl FixedWindow {
    pub(super) fn new(limit: &Limit) -> Self {
        let zone = limit.word("timezone").unwrap_or("UTC");
        let zone = TimeZone::get(zone).expect("a time zone");
        Self {
            limit: limit.whole("limit").expect("a limit"),
            window: limit.duration("window").unwrap_or(0),
            calendar: limit
                .is("align", "calendar")
                .then(|| (limit.word("window").unwrap_or_default().to_owned(), zone)),
            admitted: Vec::new(),
        }
    }

    /// The number of the window of a time.
    fn number(&self, at: u64) -> u64 {
        let Some((unit, zone)) = &self.calendar else { return at / self.window };
        // If the clocks go back from just after midnight, the new day has begun nevertheless.
        let date = zoned_date(zone, at).max(zoned_date(zone, at.saturating_sub(10_800_000_000_000)));
        let day = date.duration_since(Date::new(1969, 12, 29).expect("a Monday")).as_hours() / 24;
        let months = i64::from(date.year()) * 12 + i64::from(date.month());
        let number = match unit.as_str() {
            "day" | "1d" => day,
            "week" | "7d" => day / 7,
            "month" => months,
            other => panic!("no calendar has a {other}"),
        };
        u64::try_from(number).expect("after 1969")
    }
}

fn zoned_date(zone: &TimeZone, at: u64) -> Date {
    let timestamp = Timestamp::from_nanosecond(i128::from(at)).expect("before the year 9999");
    zone.to_datetime(timestamp).date()
}

impl Oracle for FixedWindow {
    fn verdict(&self, cost: u64, now: u64) -> Verdict {
        if cost > self.limit {
            return Verdict::Never;
        }
        let this = self.number(now);
        // Only the latest requests can share a window; the conversion to the calendar is slow.
        let recent = self.admitted.iter().rev().take_while(|(at, _)| self.number(*at) == this);
        let used: u128 = recent.map(|(_, cost)| u128::from(*cost)).sum();
        admit_or_later(used + u128::from(cost) <= u128::from(self.limit))
    }

    fn settle(&mut self, cost: u64, now: u64, admitted: bool) {
        if admitted {
            self.admitted.push((now, cost));
        }
    }
}

/// `quota_reset`: an admitted request starts a window if none is open.
pub(super) struct QuotaReset {
    limit: u64,
    window: u64,
    admitted: Requests,
}

impl QuotaReset {
    pub(super) fn new(limit: &Limit) -> Self {
        let (window, limit) = (limit.duration("window").expect("a window"), limit.whole("limit").expect("a limit"));
        Self { limit, window, admitted: Vec::new() }
    }
}

impl Oracle for QuotaReset {
    fn verdict(&self, cost: u64, now: u64) -> Verdict {
        if cost > self.limit {
            return Verdict::Never;
        }
        let mut start = None;
        for (at, _) in &self.admitted {
            if start.is_none_or(|start| at - start >= self.window) {
                start = Some(*at);
            }
        }
        let used = match start {
            Some(start) if now - start < self.window => sum(&self.admitted, |at| at >= start),
            _ => 0,
        };
        admit_or_later(used + u128::from(cost) <= u128::from(self.limit))
    }

    fn settle(&mut self, cost: u64, now: u64, admitted: bool) {
        if admitted {
            self.admitted.push((now, cost));
        }
    }
}

/// `sliding_log`.
pub(super) struct SlidingLog {
    limit: u64,
    window: u64,
    count_denied: bool,
    min_gap: u64,
    logged: Requests,
}

impl SlidingLog {
    pub(super) fn new(limit: &Limit) -> Self {
        Self {
            limit: limit.whole("limit").expect("a limit"),
            window: limit.duration("window").expect("a window"),
            count_denied: limit.is("count_denied", "true"),
            min_gap: limit.duration("min_gap").unwrap_or(0),
            logged: Vec::new(),
        }
    }
}

impl Oracle for SlidingLog {
    fn verdict(&self, cost: u64, now: u64) -> Verdict {
        if cost > self.limit {
            return Verdict::Never;
        }
        let used = sum(&self.logged, |at| now - at < self.window);
        let apart = self.logged.last().is_none_or(|(at, _)| now - at >= self.min_gap);
        admit_or_later(apart && used + u128::from(cost) <= u128::from(self.limit))
    }

    fn settle(&mut self, cost: u64, now: u64, admitted: bool) {
        if admitted || self.count_denied {
            self.logged.push((now, cost));
        }
    }
}

/// `sliding_window`: the previous window counts by the fraction of it that a window ending now would cover.
pub(super) struct SlidingWindow {
    limit: u64,
    window: u64,
    admitted: Requests,
}

impl SlidingWindow {
    pub(super) fn new(limit: &Limit) -> Self {
        let (window, limit) = (limit.duration("window").expect("a window"), limit.whole("limit").expect("a limit"));
        Self { limit, window, admitted: Vec::new() }
    }
}

impl Oracle for SlidingWindow {
    fn verdict(&self, cost: u64, now: u64) -> Verdict {
        if cost > self.limit {
            return Verdict::Never;
        }
        let (this, whole) = (now / self.window, u128::from(self.window));
        let current = sum(&self.admitted, |at| at / self.window == this);
        let previous = sum(&self.admitted, |at| at / self.window + 1 == this);
        let left = whole - u128::from(now - this * self.window);
        let Some(room) = u128::from(self.limit).checked_sub(current + u128::from(cost)) else { return Verdict::Later };
        admit_or_later(previous * left <= room * whole)
    }

    fn settle(&mut self, cost: u64, now: u64, admitted: bool) {
        if admitted {
            self.admitted.push((now, cost));
        }
    }
}

/// `sliding_counters`: the sum of the current slot and the slots − 1 before it.
pub(super) struct SlidingCounters {
    limit: u64,
    window: u64,
    slots: u64,
    admitted: Requests,
}

impl SlidingCounters {
    pub(super) fn new(limit: &Limit) -> Self {
        let slots = limit.whole("slots").unwrap_or(60);
        let (window, limit) = (limit.duration("window").expect("a window"), limit.whole("limit").expect("a limit"));
        Self { limit, window, slots, admitted: Vec::new() }
    }

    fn slot(&self, at: u64) -> u128 {
        u128::from(at) * u128::from(self.slots) / u128::from(self.window)
    }
}

impl Oracle for SlidingCounters {
    fn verdict(&self, cost: u64, now: u64) -> Verdict {
        if cost > self.limit {
            return Verdict::Never;
        }
        let used = sum(&self.admitted, |at| self.slot(now) - self.slot(at) < u128::from(self.slots));
        admit_or_later(used + u128::from(cost) <= u128::from(self.limit))
    }

    fn settle(&mut self, cost: u64, now: u64, admitted: bool) {
        if admitted {
            self.admitted.push((now, cost));
        }
    }
}

/// `quota_linear`: the balance is counted in 1 / `one`, so that the rate is a whole number per nanosecond. A cost of c
/// counts like c requests at once.
pub(super) struct QuotaLinear {
    limit: i128,
    window: i128,
    one: i128,
    rate: i128,
    balance: Balance,
}

#[derive(Clone, Copy, PartialEq)]
enum Balance {
    Fresh,
    Bursty { balance: i128, start: i128 },
    Smooth { balance: i128, last: i128 },
}

impl QuotaLinear {
    pub(super) fn new(limit: &Limit) -> Self {
        let (window, limit) = (limit.duration("window").expect("a window"), limit.whole("limit").expect("a limit"));
        let (mut divisor, mut rest) = (limit, window);
        while rest > 0 {
            (divisor, rest) = (rest, divisor % rest);
        }
        let (one, rate) = ((window / divisor).into(), (limit / divisor).into());
        Self { limit: limit.into(), window: window.into(), one, rate, balance: Balance::Fresh }
    }

    /// The balance after an admitted request of `cost`; `None` if it is denied.
    fn after(&self, cost: u64, now: u64) -> Option<Balance> {
        let (one, quota, now) = (self.one, self.limit * self.one, i128::from(now));
        let cost = i128::from(cost) * one;
        // A window whose whole quota is spent by its first request is smooth, unless the limit is 1.
        let reset = match quota - cost {
            0 if self.limit > 1 => Balance::Smooth { balance: one - quota, last: now },
            balance => Balance::Bursty { balance, start: now },
        };
        let (balance, last) = match self.balance {
            Balance::Fresh => return Some(reset),
            Balance::Bursty { start, .. } if start + self.window <= now => return Some(reset),
            Balance::Bursty { balance, start } if balance == cost && cost > 0 => {
                let rest = start + self.window - now;
                return Some(Balance::Smooth { balance: one - rest * self.rate, last: now });
            }
            Balance::Bursty { balance, start } => {
                return (balance >= cost).then_some(Balance::Bursty { balance: balance - cost, start });
            }
            Balance::Smooth { balance, last } => (balance + (now - last) * self.rate, now),
        };
        if balance >= quota {
            return Some(reset);
        }
        (balance >= cost).then_some(Balance::Smooth { balance: balance - cost, last })
    }
}

impl Oracle for QuotaLinear {
    fn verdict(&self, cost: u64, now: u64) -> Verdict {
        if i128::from(cost) > self.limit {
            return Verdict::Never;
        }
        admit_or_later(self.after(cost, now).is_some())
    }

    fn settle(&mut self, cost: u64, now: u64, admitted: bool) {
        if admitted {
            self.balance = self.after(cost, now).unwrap_or(self.balance);
        }
    }
}

/// `cycle`: permits that come at the start of every cycle, counted from the first request, and that can be lent.
pub(super) struct Cycle {
    limit: i128,
    burst: i128,
    period: i128,
    max_wait: i128,
    /// The first request, and the cycle and permits of the latest admitted one.
    first: Option<i128>,
    cycle: i128,
    permits: i128,
}

/// Longer than any time in a limit.
const FOREVER: i128 = 1 << 96;

impl Cycle {
    pub(super) fn new(limit: &Limit) -> Self {
        let permits = limit.whole("limit").expect("a limit");
        let burst = limit.whole("burst").unwrap_or(permits).into();
        let period = limit.duration("period").expect("a period").into();
        Self {
            limit: permits.into(),
            burst,
            period,
            max_wait: limit.max_wait().into(),
            first: None,
            cycle: 0,
            permits: burst,
        }
    }

    /// The cycle at `now`, and the permits in it.
    fn at(&self, now: i128) -> (i128, i128) {
        let cycle = (now - self.first.unwrap_or(now)) / self.period;
        (cycle, self.burst.min(self.permits + (cycle - self.cycle) * self.limit))
    }

    fn wait(&self, cost: i128, now: i128) -> i128 {
        let (cycle, permits) = self.at(now);
        if permits >= cost {
            return 0;
        }
        let next = self.first.unwrap_or(now) + (cycle + 1) * self.period;
        let missing = cost - permits - self.limit;
        let more = if missing > 0 { (missing + self.limit - 1) / self.limit } else { 0 };
        next - now + more.saturating_mul(self.period).min(FOREVER)
    }
}

impl Oracle for Cycle {
    fn verdict(&self, cost: u64, now: u64) -> Verdict {
        let wait = self.wait(cost.into(), now.into());
        if wait <= self.max_wait {
            Verdict::Admit { wait: u64::try_from(wait).unwrap_or(u64::MAX) }
        } else if self.retry_after(cost, now).is_some() {
            Verdict::Later
        } else {
            Verdict::Never
        }
    }

    fn settle(&mut self, cost: u64, now: u64, admitted: bool) {
        // a denial changes nothing, except that the first request of a key starts its window even if it is denied
        self.first = self.first.or(Some(now.into()));
        if admitted {
            let (cycle, permits) = self.at(now.into());
            (self.cycle, self.permits) = (cycle, permits - i128::from(cost));
        }
    }

    /// Within a cycle the wait shrinks with every nanosecond, and at the start of the next one it may grow again. All cycles of a
    /// key that owes nothing are alike: what is not admitted at the end of one never is.
    fn retry_after(&self, cost: u64, now: u64) -> Option<u64> {
        let (cost, now) = (i128::from(cost), i128::from(now));
        let full = Self { first: Some(0), cycle: 0, permits: self.burst, ..*self };
        if full.wait(cost, self.period - 1) > self.max_wait {
            return None;
        }
        let (first, (mut number, _)) = (self.first.unwrap_or(now), self.at(now));
        let mut start = now;
        while start - now < u64::MAX.into() {
            let too_long = (self.wait(cost, start) - self.max_wait).max(0);
            if start + too_long < first + (number + 1) * self.period {
                return Some(u64::try_from(start + too_long - now).unwrap_or(u64::MAX));
            }
            // With a debt of many cycles, skip to the first cycle in which the wait is short enough.
            number += (too_long / self.period - 2).max(1);
            start = first + number * self.period;
        }
        Some(u64::MAX)
    }
}
