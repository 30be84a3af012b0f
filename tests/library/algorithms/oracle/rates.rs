//! The four algorithms with a rate and a burst. Times are counted in 1 ns / tokens of the rate and tokens in 1 / period, so
//! all numbers are whole.

use super::{Oracle, Verdict};
use crate::algorithms::limit::Limit;

/// A rate of `tokens` every `period` nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Rate {
    tokens: i128,
    period: i128,
}

impl Rate {
    fn of(limit: &Limit) -> Self {
        let (tokens, period) = limit.rate("rate").expect("a rate");
        Self { tokens: tokens.into(), period: period.into() }
    }

    /// A time as a count of 1 ns / tokens.
    fn fine(self, nanos: u64) -> i128 {
        i128::from(nanos) * self.tokens
    }

    /// The time of this many tokens.
    fn long(self, tokens: u64) -> i128 {
        i128::from(tokens) * self.period
    }

    fn nanos_ceil(self, fine: i128) -> u64 {
        let nanos = (fine.max(0) + self.tokens - 1) / self.tokens;
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }
}

/// `gcra`, by its bound: after no request may more tokens have passed than burst and rate allow. (The theoretical arrival
/// time is that of the request after which most tokens have passed.)
pub(super) struct Gcra {
    rate: Rate,
    burst: u64,
    delay_after: Option<u64>,
    max_wait: u64,
    admitted: Vec<(u64, u64)>,
}

impl Gcra {
    pub(super) fn new(limit: &Limit) -> Self {
        Self {
            rate: Rate::of(limit),
            burst: limit.whole("burst").expect("a burst"),
            delay_after: limit.whole("delay_after"),
            max_wait: limit.max_wait(),
            admitted: Vec::new(),
        }
    }

    /// The wait of a request that brings the used time to `ahead`; `None` if it is denied.
    fn wait_for(&self, ahead: i128) -> Option<u64> {
        let free = self.delay_after.map_or(ahead, |n| self.rate.long(n.saturating_add(1)));
        let wait = (ahead - free).max(0);
        let passes = ahead <= self.rate.long(self.burst) && wait <= self.rate.fine(self.max_wait);
        passes.then(|| self.rate.nanos_ceil(wait))
    }
}

impl Oracle for Gcra {
    fn verdict(&self, cost: u64, now: u64) -> Verdict {
        if cost > self.burst || self.wait_for(self.rate.long(cost)).is_none() {
            return Verdict::Never;
        }
        let mut since = 0;
        let mut backlog = 0;
        for (at, cost) in self.admitted.iter().rev() {
            since += self.rate.long(*cost);
            backlog = backlog.max(since + self.rate.fine(*at) - self.rate.fine(now));
        }
        match self.wait_for(backlog + self.rate.long(cost)) {
            Some(wait) => Verdict::Admit { wait },
            None => Verdict::Later,
        }
    }

    fn settle(&mut self, cost: u64, now: u64, admitted: bool) {
        if admitted {
            self.admitted.push((now, cost));
        }
    }
}

/// `token_bucket`: starts full, fills at the rate, a request takes its cost.
pub(super) struct TokenBucket {
    rate: Rate,
    burst: u64,
    admitted: Vec<(u64, u64)>,
}

impl TokenBucket {
    pub(super) fn new(limit: &Limit) -> Self {
        Self { rate: Rate::of(limit), burst: limit.whole("burst").expect("a burst"), admitted: Vec::new() }
    }
}

impl Oracle for TokenBucket {
    fn verdict(&self, cost: u64, now: u64) -> Verdict {
        if cost > self.burst {
            return Verdict::Never;
        }
        let full = self.rate.long(self.burst);
        let (mut tokens, mut last) = (full, 0);
        for (at, cost) in self.admitted.iter().chain(&[(now, 0)]) {
            tokens = full.min(tokens + self.rate.fine(at - last)) - self.rate.long(*cost);
            last = *at;
        }
        if tokens >= self.rate.long(cost) { Verdict::ADMIT } else { Verdict::Later }
    }

    fn settle(&mut self, cost: u64, now: u64, admitted: bool) {
        if admitted {
            self.admitted.push((now, cost));
        }
    }
}

/// `leaky_bucket`: the level drains at the rate, a request adds its cost and must not overflow.
pub(super) struct LeakyBucket {
    rate: Rate,
    capacity: u64,
    admitted: Vec<(u64, u64)>,
}

impl LeakyBucket {
    pub(super) fn new(limit: &Limit) -> Self {
        let capacity = limit.whole("capacity").expect("a capacity");
        Self { rate: Rate::of(limit), capacity, admitted: Vec::new() }
    }
}

impl Oracle for LeakyBucket {
    fn verdict(&self, cost: u64, now: u64) -> Verdict {
        if cost > self.capacity {
            return Verdict::Never;
        }
        let (mut level, mut last) = (0, 0);
        for (at, cost) in self.admitted.iter().chain(&[(now, cost)]) {
            level = (level - self.rate.fine(at - last)).max(0) + self.rate.long(*cost);
            last = *at;
        }
        if level > self.rate.long(self.capacity) { Verdict::Later } else { Verdict::ADMIT }
    }

    fn settle(&mut self, cost: u64, now: u64, admitted: bool) {
        if admitted {
            self.admitted.push((now, cost));
        }
    }
}

/// `leaky_queue`: tokens depart one by one, 1/r apart; a request leaves with its last token.
pub(super) struct LeakyQueue {
    rate: Rate,
    capacity: u64,
    max_wait: u64,
    last_departure: Option<i128>,
}

impl LeakyQueue {
    pub(super) fn new(limit: &Limit) -> Self {
        let capacity = limit.whole("capacity").expect("a capacity");
        Self { rate: Rate::of(limit), capacity, max_wait: limit.max_wait(), last_departure: None }
    }

    fn departure(&self, last: Option<i128>, cost: u64, now: u64) -> i128 {
        let next = last.map_or(0, |last| last + self.rate.period);
        next.max(self.rate.fine(now)) + self.rate.long(cost - 1)
    }

    fn passes(&self, wait: i128) -> bool {
        wait <= self.rate.long(self.capacity) && wait <= self.rate.fine(self.max_wait)
    }
}

impl Oracle for LeakyQueue {
    fn verdict(&self, cost: u64, now: u64) -> Verdict {
        let alone = self.departure(None, cost, 0);
        let wait = self.departure(self.last_departure, cost, now) - self.rate.fine(now);
        if cost > self.capacity.saturating_add(1) || !self.passes(alone) {
            Verdict::Never
        } else if self.passes(wait) {
            Verdict::Admit { wait: self.rate.nanos_ceil(wait) }
        } else {
            Verdict::Later
        }
    }

    fn settle(&mut self, cost: u64, now: u64, admitted: bool) {
        if admitted {
            self.last_departure = Some(self.departure(self.last_departure, cost, now));
        }
    }
}
