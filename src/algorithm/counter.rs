//! A counter that starts again with each window: the arithmetic of `fixed_window` and `quota_reset`.
//!
//! The state is the end of the window that was last charged, and the tokens charged in it. A request is denied iff
//! used + cost > limit; a window is over at its end. A request from before the window of the state (a clock that
//! stepped back) is counted in the state's window.
//!
//! State: 16 bytes.

use serde::{Deserialize, Serialize};

use crate::algorithm::calendar::Calendar;
use crate::algorithm::shared::{number, time};
use crate::algorithm::{
    ChargeBatching, Core, Decision, Evictability, Headroom, Policy, SharedForm, StateFields, StorageKind,
};
use crate::units::{ClockOffset, Cost, Nanos};

/// The parameters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Counter {
    /// The most that is admitted in a window, at least 1.
    pub limit: u64,
    /// When windows begin and end.
    pub window: Window,
}

/// When windows begin and end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Window {
    /// A request that finds no open window begins one of this length.
    FromFirst(Nanos),
    /// Windows follow each other from the clock's epoch on, each of this length.
    FromEpoch(Nanos),
    /// Windows are days, weeks or months.
    Calendar(Calendar),
}

/// The window last charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowUsage {
    /// Its end; [`Nanos::MAX`] if it is too far away to express.
    pub ends: Nanos,
    /// The tokens charged in it.
    pub used: u64,
}

impl Core for Counter {
    type State = WindowUsage;

    fn decide_charge(&self, state: Option<WindowUsage>, cost: Cost, now: Nanos) -> (Decision, Option<WindowUsage>) {
        if cost > self.limit {
            return (Decision::never(self.limit), state);
        }
        let Some(current) = state.filter(|state| state.is_open(now)) else {
            return (Decision::ADMIT, Some(WindowUsage { ends: self.window.end(now), used: cost }));
        };
        match current.used.checked_add(cost).filter(|used| *used <= self.limit) {
            Some(used) => (Decision::ADMIT, Some(WindowUsage { used, ..current })),
            None => (Decision::later(current.left(now)), state),
        }
    }

    /// A charge in a window that is over is not refunded to the next one.
    fn refund(&self, state: WindowUsage, cost: Cost, full_at: Nanos, _now: Nanos) -> Option<WindowUsage> {
        if !self.window.contains_end(state.ends, full_at) {
            return Some(state);
        }
        let used = state.used.saturating_sub(cost);
        (used > 0).then_some(WindowUsage { used, ..state })
    }

    /// A debt is forgiven when the window ends.
    fn debit_charge(&self, state: Option<WindowUsage>, cost: Cost, now: Nanos) -> Option<WindowUsage> {
        Some(match state.filter(|state| state.is_open(now)) {
            Some(current) => WindowUsage { used: current.used.saturating_add(cost), ..current },
            None => WindowUsage { ends: self.window.end(now), used: cost },
        })
    }

    fn headroom(&self, state: Option<&WindowUsage>, now: Nanos) -> Headroom {
        let current = state.filter(|state| state.is_open(now));
        let remaining = self.limit.saturating_sub(current.map_or(0, |state| state.used));
        let left = current.map_or(Nanos::ZERO, |state| state.left(now));
        Headroom { remaining: Some(remaining), until_more: left, until_full: left }
    }

    fn evictability(&self, state: &WindowUsage) -> Evictability {
        Evictability::Fresh(state.ends)
    }

    /// The tokens used in the current window stay used until it ends, or until a window of the new length with the same
    /// beginning ends, if that is later.
    fn migrate_state(&self, old: &Self, state: WindowUsage, now: Nanos) -> Option<WindowUsage> {
        state.is_open(now).then(|| WindowUsage { ends: self.carried_end(old, state.ends, now), ..state })
    }

    /// A window stays under the parameters that give it its end.
    fn keeps_old_parameters(&self, old: &Self, state: &WindowUsage, _cost: Cost, now: Nanos) -> bool {
        let keeps_end = || self.carried_end(old, state.ends, now) == state.ends;
        self.window != old.window && state.is_open(now) && keeps_end()
    }

    /// Of two successive windows the later one; of two that overlap, the higher usage until both are over.
    fn merge(&self, one: WindowUsage, other: WindowUsage) -> WindowUsage {
        let (first, last) = if one.ends <= other.ends { (one, other) } else { (other, one) };
        let is_over = match &self.window {
            Window::FromFirst(length) => first.ends <= last.ends.saturating_sub(*length),
            Window::FromEpoch(_) | Window::Calendar(_) => first.ends < last.ends,
        };
        if is_over { last } else { WindowUsage { used: first.used.max(last.used), ..last } }
    }

    fn shift(&self, state: WindowUsage, by: ClockOffset) -> WindowUsage {
        let ends = if state.ends == Nanos::MAX { state.ends } else { state.ends.shifted(by) };
        WindowUsage { ends, ..state }
    }

    /// Windows that are counted from the epoch begin at multiples of their length on the wall clock (at full hours, for
    /// example), but never move by more than a window: a step of the clock ends at most one window early.
    fn own_offset(&self, wall: ClockOffset) -> ClockOffset {
        match &self.window {
            Window::FromFirst(_) => ClockOffset::ZERO,
            Window::FromEpoch(length) => wall.beyond_whole(*length),
            Window::Calendar(_) => wall,
        }
    }

    /// A window further ahead than the next one comes from a clock that has been set back since: its used tokens count in
    /// the current window instead, so that no client waits until the other window comes.
    fn after_step_back(&self, state: WindowUsage, now: Nanos) -> WindowUsage {
        let Window::Calendar(calendar) = &self.window else { return state };
        let furthest = calendar.unit.usual_length().get().saturating_mul(2);
        match state.ends.saturating_sub(now).get() > furthest && state.ends != Nanos::MAX {
            true => WindowUsage { ends: self.window.end(now), ..state },
            false => state,
        }
    }

    fn largest_cost(&self) -> Option<Cost> {
        Some(self.limit)
    }

    fn policy(&self) -> Policy {
        Policy { quota: self.limit, window: Some(self.window.usual_length()) }
    }

    const SCRIPT: &'static str = include_str!("counter.lua");

    fn shared_form(&self, _slot_lifetime: Nanos) -> Result<SharedForm, String> {
        let limit = self.limit;
        let parameters = match &self.window {
            Window::FromFirst(length) => format!("c f {limit} {}", length.get()),
            Window::FromEpoch(length) => format!("c e {limit} {}", length.get()),
            Window::Calendar(Calendar { unit, zone, .. }) => {
                let name = zone.iana_name().ok_or("needs a `timezone` with a name to be shared")?;
                format!("c c {limit} {}/{name}", unit.as_str())
            }
        };
        Ok(SharedForm { kept: StorageKind::Window, ..SharedForm::new(parameters, ChargeBatching::AddUp) })
    }

    fn read_shared(&self, words: &mut StateFields<'_>) -> Option<WindowUsage> {
        Some(WindowUsage { ends: time(words)?, used: number(words)? })
    }

    fn repair_state(&self, state: &WindowUsage) -> Option<String> {
        Some(format!("{} {}", state.ends.get(), state.used))
    }

    fn calendar(&self) -> Option<&Calendar> {
        match &self.window {
            Window::Calendar(calendar) => Some(calendar),
            Window::FromFirst(_) | Window::FromEpoch(_) => None,
        }
    }
}

impl Counter {
    /// The end under these parameters of a window of `old` that ends at `ends`. It is as long as a window of these from its
    /// beginning on, but ends no later than their own window at `now`, and no earlier than before.
    fn carried_end(&self, old: &Self, ends: Nanos, now: Nanos) -> Nanos {
        if self.window == old.window {
            return ends;
        }
        let begins = ends.saturating_sub(old.window.usual_length());
        ends.max(self.window.end(now).min(begins.saturating_add(self.window.usual_length())))
    }
}

// === impl Window ===

impl Window {
    /// The end of the window that contains `now`, or that a request at `now` begins.
    fn end(&self, now: Nanos) -> Nanos {
        match self {
            Self::FromFirst(length) => now.saturating_add(*length),
            Self::FromEpoch(length) => {
                let into = now.get().checked_rem(length.get()).unwrap_or(0);
                now.saturating_sub(Nanos::new(into)).saturating_add(*length)
            }
            Self::Calendar(calendar) => calendar.end(now),
        }
    }

    /// Whether `full_at` is in the window that ends at `ends`, or at its end: then a charge after which the key was going to
    /// be full at `full_at` was made in that window. It differs from `ends` where the window was carried or the wall clock
    /// was set.
    fn contains_end(&self, ends: Nanos, full_at: Nanos) -> bool {
        match self {
            Self::FromFirst(length) | Self::FromEpoch(length) => {
                full_at <= ends && ends.saturating_sub(*length) < full_at
            }
            Self::Calendar(calendar) => full_at == ends || calendar.end(full_at.saturating_sub(Nanos::new(1))) == ends,
        }
    }

    /// The windows in words, to be read after the number of tokens in one.
    pub fn description(&self) -> String {
        match self {
            Self::FromFirst(length) => format!("in {length} from the first request on, then all anew"),
            Self::FromEpoch(length) => format!("in each {length}, counted from the epoch"),
            Self::Calendar(Calendar { unit, zone, of_customer }) => {
                let name = zone.iana_name().unwrap_or("a zone without a name");
                match of_customer {
                    true => {
                        format!("in each calendar {} (the customer's time zone, {name} without one)", unit.as_str())
                    }
                    false => format!("in each calendar {} ({name})", unit.as_str()),
                }
            }
        }
    }

    /// The length of a window; of calendar units, the longest usual one.
    pub fn usual_length(&self) -> Nanos {
        match self {
            Self::FromFirst(length) | Self::FromEpoch(length) => *length,
            Self::Calendar(calendar) => calendar.unit.usual_length(),
        }
    }
}

// === impl WindowUsage ===

impl WindowUsage {
    /// Whether the window is not over yet.
    fn is_open(&self, now: Nanos) -> bool {
        now < self.ends || self.ends == Nanos::MAX
    }

    /// The time until the window is over.
    fn left(&self, now: Nanos) -> Nanos {
        match self.ends {
            Nanos::MAX => Nanos::MAX,
            ends => ends.saturating_sub(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(nanos: u64) -> Nanos {
        Nanos::new(nanos)
    }

    const fn from_first(limit: u64, length: u64) -> Counter {
        Counter { limit, window: Window::FromFirst(at(length)) }
    }

    const fn from_epoch(limit: u64, length: u64) -> Counter {
        Counter { limit, window: Window::FromEpoch(at(length)) }
    }

    #[test]
    fn a_refund_meets_the_window_it_was_charged_in_or_none() {
        let counter = from_epoch(5, 100);
        let (_, first) = counter.decide(None, 2, at(199));
        assert_eq!(counter.refund(first.unwrap(), 1, at(200), at(199)), Some(WindowUsage { ends: at(200), used: 1 }));
        assert_eq!(counter.refund(first.unwrap(), 2, at(200), at(250)), None);
        let (_, second) = counter.decide(first, 3, at(200));
        assert_eq!(counter.refund(second.unwrap(), 2, at(200), at(210)), second);
    }

    #[test]
    fn a_clock_that_steps_back_stays_in_the_window() {
        let counter = from_epoch(2, 100);
        let (_, state) = counter.decide(None, 1, at(250));
        let (decision, state) = counter.decide(state, 1, at(120));
        assert_eq!(decision, Decision::ADMIT);
        assert_eq!(counter.decide(state, 1, at(120)), (Decision::later(at(180)), state));
    }

    #[test]
    fn used_tokens_stay_used_in_the_new_window() {
        let state = WindowUsage { ends: at(200), used: 4 };
        let carry = |old: &Counter, new: &Counter, now| new.migrate_state(old, state, at(now));
        let ends = |ends| Some(WindowUsage { ends: at(ends), used: 4 });
        assert_eq!(carry(&from_epoch(5, 100), &from_epoch(2, 100), 150), ends(200));
        assert_eq!(carry(&from_epoch(5, 100), &from_epoch(5, 1000), 150), ends(1000));
        assert_eq!(carry(&from_epoch(5, 100), &from_epoch(5, 10), 150), ends(200));
        assert_eq!(carry(&from_epoch(5, 100), &from_epoch(5, 10), 200), None);
        // begun at 100; the windows of 130 end at 260
        assert_eq!(carry(&from_epoch(5, 100), &from_epoch(5, 130), 150), ends(230));
        assert_eq!(carry(&from_first(5, 100), &from_first(5, 300), 150), ends(400));
        assert_eq!(carry(&from_first(5, 100), &from_first(5, 10), 150), ends(200));
        assert_eq!(carry(&from_first(5, 100), &from_epoch(5, 140), 150), ends(240));
    }

    #[test]
    fn a_window_stays_under_the_parameters_that_give_it_its_end() {
        let state = WindowUsage { ends: at(200), used: 4 };
        let stays = |old: &Counter, new: &Counter, now| new.keeps_old_parameters(old, &state, 1, at(now));
        assert!(stays(&from_first(5, 100), &from_first(9, 10), 150));
        assert!(stays(&from_epoch(5, 100), &from_epoch(9, 10), 199));
        assert!(!stays(&from_first(5, 100), &from_first(9, 10), 200), "the window is over");
        assert!(!stays(&from_first(5, 100), &from_first(9, 300), 150));
        assert!(!stays(&from_first(5, 100), &from_first(9, 100), 150));
    }

    #[test]
    fn a_refund_finds_its_window_after_that_was_carried_or_the_clock_was_set_back() {
        let back = Some(WindowUsage { ends: at(400), used: 3 });
        for (rule, full_at, refunded) in [
            (from_first(5, 300), 200, true),
            (from_first(5, 300), 101, true),
            (from_first(5, 300), 100, false),
            (from_epoch(5, 200), 395, true),
            (from_epoch(5, 200), 200, false),
            (from_epoch(5, 200), 401, false),
        ] {
            let state = WindowUsage { ends: at(400), used: 4 };
            let after = rule.refund(state, 1, at(full_at), at(150));
            assert_eq!(after, if refunded { back } else { Some(state) }, "{full_at}");
        }
    }

    #[test]
    fn windows_of_centuries_end_when_time_does() {
        let counter = from_first(1, u64::MAX);
        let (_, state) = counter.decide(None, 1, at(5));
        assert_eq!(counter.decide(state, 1, Nanos::MAX).0, Decision::later(Nanos::MAX));
        let counter = from_epoch(u64::MAX, u64::MAX / 2);
        let (_, state) = counter.decide(None, u64::MAX, at(5));
        assert_eq!(counter.decide(state, 1, at(6)).0, Decision::later(at(u64::MAX / 2 - 6)));
    }
}
