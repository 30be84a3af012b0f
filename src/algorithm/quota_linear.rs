//! `quota_linear`: T. Finch's hybrid of a quota and a linear refill: all at once while the quota lasts, then smooth.
//!
//! With r = limit/window, a key begins bursty with a balance of limit: its first request starts a window, and each
//! request takes its cost. When the quota is spent (and the limit is above 1) the key becomes smooth: the balance falls to
//! −r·(time left in the window), so that nothing passes before the window ends, and grows at the rate r. A smooth key
//! admits a request iff the balance covers its cost. After a bursty window, or when the balance has grown to the limit,
//! the next request finds the key bursty and fresh. A cost c counts as c requests of cost 1 at once, admitted all or none.
//!
//! A smooth balance is kept as the time when it will have grown to the limit: start + 2·window − 1/r when the quota is
//! spent, and 1/r later for each token admitted since. Exact: that time is counted in units of 1 ns / the denominator of
//! window/limit in lowest terms, in which every quantity is whole.
//!
//! State: 20 bytes.

use serde::{Deserialize, Serialize};

use crate::algorithm::schedule::{HORIZON, recoverable};
use crate::algorithm::shared::{number, time};
use crate::algorithm::{
    Algorithm, Arguments, ChargeBatching, Core, Decision, Evictability, Headroom, InvalidParameter, MAX_DEBT,
    Parameter, ParameterKind, Policy, SharedForm, StateFields, Value,
};
use crate::units::{ClockOffset, Cost, Nanos, Packed, greatest_common_divisor, scale_ceil};

/// The parameters, and what follows from them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QuotaLinear {
    limit: u64,
    window: Nanos,
    /// The number of units in one nanosecond.
    tick: u128,
    /// The number of units in which one token is refilled.
    token: u128,
}

/// The state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Quota {
    /// The key is in a window that started at `start`, with `left` tokens of the quota.
    Bursty {
        /// When the window started.
        start: Packed<Nanos>,
        /// The tokens that are left; 0 only under a limit of 1, or as seen by parameters with a limit below the used tokens.
        left: Packed<u64>,
    },
    /// The quota of the window that started at `start` is spent, and nothing was admitted since.
    Spent {
        /// When the window started.
        start: Packed<Nanos>,
    },
    /// The key is smooth.
    Smooth {
        /// When the balance will have grown to the limit, in the units of the limit.
        full: Packed<u128>,
    },
}

impl Default for Quota {
    fn default() -> Self {
        Self::Spent { start: Packed::default() }
    }
}

/// A [`Quota`] at some time.
#[derive(Clone, Copy, Debug)]
enum QuotaPhase {
    /// A request would start a window.
    Fresh,
    Bursty {
        start: Nanos,
        left: u64,
    },
    /// The balance reaches the limit in `missing` units; more than 0.
    Smooth {
        missing: u128,
    },
}

impl QuotaLinear {
    fn fine(&self, time: Nanos) -> u128 {
        u128::from(time.get()).saturating_mul(self.tick)
    }

    fn cost(&self, cost: Cost) -> u128 {
        u128::from(cost).saturating_mul(self.token)
    }

    fn nanos_ceil(&self, fine: u128) -> Nanos {
        Nanos::saturating_from(fine.div_ceil(self.tick))
    }

    /// The time at which the balance reaches the limit, if the quota of the window from `start` on is spent and nothing was
    /// admitted since.
    fn full_after(&self, start: Nanos) -> u128 {
        let two_windows = self.fine(self.window).saturating_mul(2);
        self.fine(start).saturating_add(two_windows).saturating_sub(self.token)
    }

    fn standing(&self, state: Option<&Quota>, now: Nanos) -> QuotaPhase {
        let full = match state {
            None => return QuotaPhase::Fresh,
            Some(Quota::Bursty { start, left }) => {
                let (start, left) = (start.get(), left.get());
                let over = now.saturating_sub(start) >= self.window;
                return if over { QuotaPhase::Fresh } else { QuotaPhase::Bursty { start, left } };
            }
            Some(Quota::Spent { start }) => self.full_after(start.get()),
            Some(Quota::Smooth { full }) => full.get(),
        };
        match full.saturating_sub(self.fine(now)) {
            0 => QuotaPhase::Fresh,
            missing => QuotaPhase::Smooth { missing },
        }
    }

    /// The state with `left` tokens of the quota of a window.
    fn bursty(&self, start: Nanos, left: u64) -> Quota {
        let start = Packed::new(start);
        match left {
            0 if self.limit > 1 => Quota::Spent { start },
            _ => Quota::Bursty { start, left: Packed::new(left) },
        }
    }

    /// The start of the window that contains `now`, and the tokens that are left of its quota; `None` where there is none.
    fn window_at(&self, state: &Quota, now: Nanos) -> Option<(Nanos, u64)> {
        let (start, left) = match state {
            Quota::Bursty { start, left } => (start.get(), left.get()),
            Quota::Spent { start } => (start.get(), 0),
            Quota::Smooth { .. } => return None,
        };
        (now.saturating_sub(start) < self.window).then_some((start, left))
    }

    /// The most that a smooth balance can lack.
    fn furthest(&self) -> u128 {
        self.fine(self.window).saturating_mul(2).saturating_add(self.fine(MAX_DEBT))
    }

    fn smooth(&self, missing: u128, now: Nanos) -> Option<Quota> {
        (missing > 0).then(|| Quota::Smooth { full: Packed::new(self.fine(now).saturating_add(missing)) })
    }

    /// The time until a request of `cost`, at most the limit, is admitted; zero if it is now.
    fn wait(&self, standing: QuotaPhase, cost: Cost, now: Nanos) -> Nanos {
        match standing {
            QuotaPhase::Bursty { start, left } if cost > left => {
                self.window.saturating_sub(now.saturating_sub(start)).saturating_add(start.saturating_sub(now))
            }
            QuotaPhase::Fresh | QuotaPhase::Bursty { .. } => Nanos::ZERO,
            QuotaPhase::Smooth { missing } => {
                let max_missing = self.cost(self.limit).saturating_sub(self.cost(cost));
                self.nanos_ceil(missing.saturating_sub(max_missing))
            }
        }
    }
}

impl Algorithm for QuotaLinear {
    const NAME: &'static str = "quota_linear";
    const PARAMETERS: &'static [Parameter] =
        &[Parameter::tokens("limit"), Parameter::required("window", ParameterKind::Duration).at_least(1)];

    type Core = Self;

    fn from_arguments(arguments: &Arguments) -> Result<Self, InvalidParameter> {
        let limit = arguments.required_whole("limit")?;
        let window = arguments.duration("window")?;
        let divisor = greatest_common_divisor(limit.into(), window.get().into());
        let reduced = |number: u64| u128::from(number).checked_div(divisor).unwrap_or(0);
        let (tick, token) = (reduced(limit), reduced(window.get()));
        let last = u128::from(window.get()).saturating_mul(2).saturating_add(HORIZON.into());
        if last.checked_mul(tick).is_none() {
            let problem = format!("is more than can be counted exactly over {window}; lower one of them");
            return Err(InvalidParameter::new("limit", problem));
        }
        Ok(Self { limit, window, tick, token })
    }

    fn arguments(rule: &Self) -> Arguments {
        [("limit", Value::Whole(rule.limit)), ("window", Value::Duration(rule.window))].into()
    }

    fn describe(rule: &Self) -> String {
        let Self { limit, window, .. } = rule;
        if *limit == 1 {
            return format!("1 in {window} from the first request on, then all anew");
        }
        format!(
            "{limit} in {window} from the first request on; once they are spent, one every {} from the end of that \
             window until the quota is whole",
            rule.nanos_ceil(rule.token)
        )
    }
}

impl Core for QuotaLinear {
    type State = Quota;

    fn decide_charge(&self, state: Option<Quota>, cost: Cost, now: Nanos) -> (Decision, Option<Quota>) {
        if cost > self.limit {
            return (Decision::never(self.limit), state);
        }
        let standing = self.standing(state.as_ref(), now);
        let wait = self.wait(standing, cost, now);
        if wait > Nanos::ZERO {
            return (Decision::later(wait), state);
        }
        let after = match standing {
            QuotaPhase::Fresh => Some(self.bursty(now, self.limit.saturating_sub(cost))),
            QuotaPhase::Bursty { start, left } => Some(self.bursty(start, left.saturating_sub(cost))),
            QuotaPhase::Smooth { missing } => self.smooth(missing.saturating_add(self.cost(cost)), now),
        };
        (Decision::ADMIT, after)
    }

    /// In the window of the charge, and until another request is admitted after that window, the charge is undone. Later,
    /// only the part comes back that the balance has not refilled by itself.
    fn refund(&self, state: Quota, cost: Cost, full_at: Nanos, now: Nanos) -> Option<Quota> {
        match state {
            Quota::Bursty { start, left } => {
                let left = if full_at == start.get().saturating_add(self.window) {
                    left.get().saturating_add(cost)
                } else {
                    left.get()
                };
                (left < self.limit).then(|| self.bursty(start.get(), left))
            }
            Quota::Spent { start } => {
                let end = start.get().saturating_add(self.window);
                if full_at != end && full_at != self.nanos_ceil(self.full_after(start.get())) {
                    return Some(state);
                }
                (now < end && cost < self.limit).then(|| self.bursty(start.get(), cost))
            }
            Quota::Smooth { full } => {
                let (full, now_fine) = (full.get(), self.fine(now));
                let back = recoverable(self.cost(cost), full, self.fine(full_at), self.tick, now_fine);
                self.smooth(full.saturating_sub(now_fine).saturating_sub(back), now)
            }
        }
    }

    /// A debt beyond the quota of a window or a smooth balance is refilled at the rate after the window. Under a limit of 1,
    /// whose keys are never smooth, it is forgiven when the window ends.
    fn debit_charge(&self, state: Option<Quota>, cost: Cost, now: Nanos) -> Option<Quota> {
        let (start, left, missing) = match self.standing(state.as_ref(), now) {
            QuotaPhase::Fresh => (now, self.limit, 0),
            QuotaPhase::Bursty { start, left } => (start, left, 0),
            QuotaPhase::Smooth { missing } => (now, 0, missing),
        };
        let owed = self.cost(cost.saturating_sub(left));
        if missing == 0 && (owed == 0 || self.limit == 1) {
            return Some(self.bursty(start, left.saturating_sub(cost)));
        }
        let before = match missing {
            0 => self.full_after(start).saturating_sub(self.fine(now)),
            missing => missing,
        };
        self.smooth(before.saturating_add(owed).min(self.furthest().max(before)), now)
    }

    fn headroom(&self, state: Option<&Quota>, now: Nanos) -> Headroom {
        let standing = self.standing(state, now);
        let remaining = match standing {
            QuotaPhase::Fresh => self.limit,
            QuotaPhase::Bursty { left, .. } => left,
            QuotaPhase::Smooth { missing } => {
                let balance = self.cost(self.limit).saturating_sub(missing);
                balance.checked_div(self.token).and_then(|tokens| u64::try_from(tokens).ok()).unwrap_or(0)
            }
        };
        let until_more = self.wait(standing, remaining.saturating_add(1).min(self.limit), now);
        let until_full = self.wait(standing, self.limit, now);
        Headroom { remaining: Some(remaining), until_more, until_full }
    }

    fn evictability(&self, state: &Quota) -> Evictability {
        Evictability::Fresh(match state {
            Quota::Bursty { start, .. } => start.get().saturating_add(self.window),
            Quota::Spent { start } => self.nanos_ceil(self.full_after(start.get())),
            Quota::Smooth { full } => self.nanos_ceil(full.get()),
        })
    }

    /// The used tokens of a quota stay used until their window ends, or until a window of the new length with the same start
    /// ends, if that is later; a new limit above them leaves the difference. A window of which the new limit admits nothing
    /// keeps its end, and what follows it: a fresh key, or a smooth one if the old quota is spent. The used share of a smooth
    /// balance stays used, and tokens owed beyond it stay the same number, as far as a debt can reach; under a limit of 1,
    /// whose keys are never smooth, it becomes a spent window that ends when the balance has a token.
    fn migrate_state(&self, old: &Self, state: Quota, now: Nanos) -> Option<Quota> {
        if self == old {
            return Some(state);
        }
        let (start, left) = match (old.standing(Some(&state), now), state) {
            (QuotaPhase::Fresh, _) => return None,
            (_, Quota::Bursty { start, left }) => (start.get(), left.get()),
            (_, Quota::Spent { start }) => (start.get(), 0),
            (QuotaPhase::Smooth { missing }, Quota::Smooth { .. }) if self.limit > 1 => {
                let used = missing.min(old.cost(old.limit));
                let share = scale_ceil(used, self.cost(self.limit), old.cost(old.limit));
                let owed = scale_ceil(missing.saturating_sub(used), self.token, old.token);
                return self.smooth(share.saturating_add(owed).min(self.furthest()), now);
            }
            (smooth, Quota::Smooth { .. }) => {
                let left = old.wait(smooth, 1, now);
                let start = now.saturating_add(left).saturating_sub(self.window);
                return (left > Nanos::ZERO).then(|| self.bursty(start, 0));
            }
        };
        let used = old.limit.saturating_sub(left);
        // a window that starts later than now was carried: its true start is not known, and its end is right
        let length = if start > now || used >= self.limit { old.window } else { old.window.max(self.window) };
        let start = start.saturating_add(length).saturating_sub(self.window);
        let left = self.limit.saturating_sub(used);
        Some(match state {
            Quota::Bursty { .. } => Quota::Bursty { start: Packed::new(start), left: Packed::new(left) },
            _ => self.bursty(start, left),
        })
    }

    /// A window stays whose used tokens reach this limit, which could not count more of them; and a longer window as long as
    /// its own quota covers the cost: it is not put into debt. A spent quota stays until a request is admitted after its
    /// window.
    fn keeps_old_parameters(&self, old: &Self, state: &Quota, cost: Cost, now: Nanos) -> bool {
        let is_over_limit = |left: u64| old.limit.saturating_sub(left) >= self.limit;
        match old.window_at(state, now) {
            Some((_, left)) => is_over_limit(left) || (old.window > self.window && cost <= left),
            None => cost == 0 && matches!(state, Quota::Spent { .. }) && is_over_limit(0),
        }
    }

    /// Of two successive windows the later one; of two that overlap, the smaller rest of the quota until both are over. A
    /// smooth balance and a window become a smooth balance that admits no more than the window until that is over.
    fn merge(&self, one: Quota, other: Quota) -> Quota {
        use Quota::{Bursty, Smooth, Spent};
        let full = |state: Quota| match state {
            Bursty { start, left } => self
                .fine(start.get().saturating_add(self.window))
                .saturating_add(self.cost(self.limit.saturating_sub(left.get()))),
            Spent { start } => self.full_after(start.get()),
            Smooth { full } => full.get(),
        };
        match (one, other) {
            (Bursty { start: first, left: one_left }, Bursty { start: last, left: other_left }) => {
                let (first, last) = (first.get(), last.get());
                let over = first.max(last).saturating_sub(first.min(last)) >= self.window;
                match (over, first > last) {
                    (true, true) => one,
                    (true, false) => other,
                    (false, _) => self.bursty(first.max(last), one_left.get().min(other_left.get())),
                }
            }
            (Spent { .. } | Smooth { .. }, Bursty { .. }) | (Smooth { .. }, Spent { .. })
                if full(one) >= full(other) =>
            {
                one
            }
            (Bursty { .. }, Spent { .. } | Smooth { .. }) | (Spent { .. }, Smooth { .. })
                if full(one) <= full(other) =>
            {
                other
            }
            (Spent { .. }, Spent { .. }) | (Smooth { .. }, Smooth { .. }) => {
                if full(one) > full(other) {
                    one
                } else {
                    other
                }
            }
            _ => Smooth { full: Packed::new(full(one).max(full(other))) },
        }
    }

    fn shift(&self, state: Quota, by: ClockOffset) -> Quota {
        let shifted = |start: Packed<Nanos>| Packed::new(start.get().shifted(by));
        match state {
            Quota::Bursty { start, left } => Quota::Bursty { start: shifted(start), left },
            Quota::Spent { start } => Quota::Spent { start: shifted(start) },
            Quota::Smooth { full } => {
                let distance = u128::from(by.get().unsigned_abs()).saturating_mul(self.tick);
                Quota::Smooth {
                    full: Packed::new(match by.get() < 0 {
                        true => full.get().saturating_sub(distance),
                        false => full.get().saturating_add(distance),
                    }),
                }
            }
        }
    }

    fn largest_cost(&self) -> Option<Cost> {
        Some(self.limit)
    }

    fn policy(&self) -> Policy {
        Policy { quota: self.limit, window: Some(self.window) }
    }

    const SCRIPT: &'static str = include_str!("quota_linear.lua");

    fn shared_form(&self, _slot_lifetime: Nanos) -> Result<SharedForm, String> {
        let Self { limit, window, tick, token } = self;
        Ok(SharedForm::new(format!("q {limit} {} {tick} {token}", window.get()), ChargeBatching::Together))
    }

    fn read_shared(&self, words: &mut StateFields<'_>) -> Option<Quota> {
        Some(match words.next()? {
            "b" => Quota::Bursty { start: Packed::new(time(words)?), left: Packed::new(number(words)?) },
            "s" => Quota::Spent { start: Packed::new(time(words)?) },
            "m" => Quota::Smooth { full: Packed::new(number(words)?) },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests;
