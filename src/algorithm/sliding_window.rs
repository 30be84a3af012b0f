//! `sliding_window`: the counter of this window plus that of the previous one, weighted by the part of it that the sliding
//! window still covers (Cloudflare, "How we built rate limiting capable of scaling to millions of domains", 2017).
//!
//! Windows are counted from the clock's epoch. With e the time since the current one began, a request is denied iff
//! prev·(window − e)/window + cur + cost > limit, multiplied out, so nothing is rounded. A denied request may fit later
//! in this window, as the weight of prev falls, or in the next one, when cur has become prev.
//!
//! State: 24 bytes.

use serde::{Deserialize, Serialize};

use crate::algorithm::shared::number;
use crate::algorithm::{
    Algorithm, Arguments, ChargeBatching, Core, Decision, Evictability, Headroom, InvalidParameter, Parameter,
    ParameterKind, Policy, SharedForm, StateFields, Value,
};
use crate::units::{ClockOffset, Cost, Nanos};

/// The parameters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindow {
    limit: u64,
    window: Nanos,
}

/// The tokens admitted in a window and in the one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowCounts {
    /// The window's number.
    pub window: u64,
    /// The tokens admitted in that window.
    pub current: u64,
    /// The tokens admitted in the window before it.
    pub previous: u64,
}

impl SlidingWindow {
    /// The counts at `now`; counts of a later window stay as they are.
    fn at(&self, state: Option<&WindowCounts>, now: Nanos) -> WindowCounts {
        let window = now.get().checked_div(self.window.get()).unwrap_or(0);
        match state {
            Some(state) if window <= state.window => *state,
            Some(state) if window == state.window.saturating_add(1) => {
                WindowCounts { window, current: 0, previous: state.current }
            }
            _ => WindowCounts { window, current: 0, previous: 0 },
        }
    }

    fn length(&self) -> u128 {
        self.window.get().into()
    }

    /// The time at which the window with this number begins; it may be later than any [`Nanos`].
    fn beginning(&self, window: u64) -> u128 {
        u128::from(window).saturating_mul(self.length())
    }

    /// The part of the window before that of `counts` which the sliding window covers at `now`, in nanoseconds.
    fn covered(&self, counts: WindowCounts, now: Nanos) -> u128 {
        self.length().saturating_sub(u128::from(now.get()).saturating_sub(self.beginning(counts.window)))
    }

    /// The time from which on none of the counts matters; it may be later than any [`Nanos`].
    fn forgotten(&self, counts: &WindowCounts) -> u128 {
        let windows = if counts.current > 0 { 2 } else { 1 };
        self.beginning(counts.window.saturating_add(windows))
    }

    /// The tokens that count at `now`, rounded up.
    fn used(&self, counts: WindowCounts, now: Nanos) -> u64 {
        let weighted = u128::from(counts.previous).saturating_mul(self.covered(counts, now)).div_ceil(self.length());
        counts.current.saturating_add(u64::try_from(weighted).unwrap_or(u64::MAX))
    }

    /// The time until a request of `cost`, at most the limit, is admitted; zero if it is now.
    fn wait(&self, counts: WindowCounts, cost: Cost, now: Nanos) -> Nanos {
        let length = self.length();
        // the largest part of a window with `count` tokens that may be covered if those are to count for at most `room`
        let part = |room: u64, count: u64| u128::from(room).saturating_mul(length).checked_div(count.into());
        let left_for_previous = self.limit.checked_sub(cost).and_then(|room| room.checked_sub(counts.current));
        let windows_end = self.beginning(counts.window).saturating_add(length);
        let admitted_at = match left_for_previous {
            Some(room) => match part(room, counts.previous) {
                Some(part) if part < self.covered(counts, now) => windows_end.saturating_sub(part),
                _ => return Nanos::ZERO,
            },
            None => {
                let part = part(self.limit.saturating_sub(cost), counts.current).unwrap_or(0);
                windows_end.saturating_add(length).saturating_sub(part)
            }
        };
        Nanos::saturating_from(admitted_at.saturating_sub(now.get().into()))
    }
}

impl Algorithm for SlidingWindow {
    const NAME: &'static str = "sliding_window";
    const PARAMETERS: &'static [Parameter] =
        &[Parameter::tokens("limit"), Parameter::required("window", ParameterKind::Duration).at_least(1)];

    type Core = Self;

    fn from_arguments(arguments: &Arguments) -> Result<Self, InvalidParameter> {
        let limit = arguments.required_whole("limit")?;
        Ok(Self { limit, window: arguments.duration("window")? })
    }

    fn arguments(rule: &Self) -> Arguments {
        [("limit", Value::Whole(rule.limit)), ("window", Value::Duration(rule.window))].into()
    }

    fn describe(rule: &Self) -> String {
        format!("{} in any {}, the older part of it estimated", rule.limit, rule.window)
    }
}

impl Core for SlidingWindow {
    type State = WindowCounts;

    fn decide_charge(&self, state: Option<WindowCounts>, cost: Cost, now: Nanos) -> (Decision, Option<WindowCounts>) {
        if cost > self.limit {
            return (Decision::never(self.limit), state);
        }
        let counts = self.at(state.as_ref(), now);
        match self.wait(counts, cost, now) {
            Nanos::ZERO => {
                let current = counts.current.saturating_add(cost);
                (Decision::ADMIT, Some(WindowCounts { current, ..counts }))
            }
            wait => (Decision::later(wait), state),
        }
    }

    /// Takes the cost off the window in which it was counted, if that window still matters.
    fn refund(&self, state: WindowCounts, cost: Cost, full_at: Nanos, _now: Nanos) -> Option<WindowCounts> {
        let mut counts = state;
        let forgotten = |window: u64| Nanos::saturating_from(self.beginning(window.saturating_add(2)));
        if full_at == forgotten(counts.window) {
            counts.current = counts.current.saturating_sub(cost);
        } else if counts.window.checked_sub(1).map(forgotten) == Some(full_at) {
            counts.previous = counts.previous.saturating_sub(cost);
        }
        (counts.current > 0 || counts.previous > 0).then_some(counts)
    }

    fn counted(&self, state: &WindowCounts, now: Nanos) -> Option<Cost> {
        Some(self.used(self.at(Some(state), now), now))
    }

    /// A debt is forgiven when the window after the next one begins.
    fn debit_charge(&self, state: Option<WindowCounts>, cost: Cost, now: Nanos) -> Option<WindowCounts> {
        let counts = self.at(state.as_ref(), now);
        Some(WindowCounts { current: counts.current.saturating_add(cost), ..counts })
    }

    fn headroom(&self, state: Option<&WindowCounts>, now: Nanos) -> Headroom {
        let counts = self.at(state, now);
        let remaining = self.limit.saturating_sub(self.used(counts, now));
        let until_more = self.wait(counts, remaining.saturating_add(1).min(self.limit), now);
        let until_full = self.wait(counts, self.limit, now);
        Headroom { remaining: Some(remaining), until_more, until_full }
    }

    fn evictability(&self, state: &WindowCounts) -> Evictability {
        Evictability::Fresh(Nanos::saturating_from(self.forgotten(state)))
    }

    /// The tokens that count under the old window, rounded up, count as admitted in the current new one; if that is shorter,
    /// in the last one that would not be forgotten earlier.
    fn migrate_state(&self, old: &Self, state: WindowCounts, now: Nanos) -> Option<WindowCounts> {
        if self.window == old.window {
            return Some(state);
        }
        let current = old.used(old.at(Some(&state), now), now);
        let counts = WindowCounts { current, ..self.at(None, now) };
        let window = match old.window > self.window {
            true => u64::try_from(old.forgotten(&state).div_ceil(self.length())).unwrap_or(u64::MAX).saturating_sub(2),
            false => 0,
        };
        (current > 0).then_some(WindowCounts { window: counts.window.max(window), ..counts })
    }

    /// The counts stay under the longer window.
    fn keeps_old_parameters(&self, old: &Self, state: &WindowCounts, _cost: Cost, now: Nanos) -> bool {
        old.window > self.window && old.used(old.at(Some(state), now), now) > 0
    }

    /// The later window, each of its two counts being the larger one of both states.
    fn merge(&self, one: WindowCounts, other: WindowCounts) -> WindowCounts {
        let (first, last) = if one.window <= other.window { (one, other) } else { (other, one) };
        let (current, previous) = match last.window.saturating_sub(first.window) {
            0 => (first.current, first.previous),
            1 => (0, first.current),
            _ => (0, 0),
        };
        WindowCounts { window: last.window, current: last.current.max(current), previous: last.previous.max(previous) }
    }

    /// If windows begin at other times on the other clock, the counts move to the first window that begins no earlier.
    fn shift(&self, state: WindowCounts, by: ClockOffset) -> WindowCounts {
        let beginning = i128::try_from(self.beginning(state.window)).unwrap_or(i128::MAX);
        let shifted = u128::try_from(beginning.saturating_add(by.get().into())).unwrap_or(0);
        let window = u64::try_from(shifted.div_ceil(self.length())).unwrap_or(u64::MAX);
        WindowCounts { window, ..state }
    }

    /// Windows begin at multiples of their length on the wall clock, so counts move between gateways without a change.
    fn own_offset(&self, wall: ClockOffset) -> ClockOffset {
        wall.beyond_whole(self.window)
    }

    fn largest_cost(&self) -> Option<Cost> {
        Some(self.limit)
    }

    fn policy(&self) -> Policy {
        Policy { quota: self.limit, window: Some(self.window) }
    }

    const SCRIPT: &'static str = include_str!("sliding_window.lua");

    fn shared_form(&self, _slot_lifetime: Nanos) -> Result<SharedForm, String> {
        Ok(SharedForm::new(format!("w {} {}", self.limit, self.window.get()), ChargeBatching::AddUp))
    }

    fn read_shared(&self, words: &mut StateFields<'_>) -> Option<WindowCounts> {
        Some(WindowCounts { window: number(words)?, current: number(words)?, previous: number(words)? })
    }

    fn repair_state(&self, counts: &WindowCounts) -> Option<String> {
        Some(format!("{} {} {}", counts.window, counts.current, counts.previous))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(nanos: u64) -> Nanos {
        Nanos::new(nanos)
    }

    const fn rule(limit: u64, window: u64) -> SlidingWindow {
        SlidingWindow { limit, window: at(window) }
    }

    const fn counts(window: u64, current: u64, previous: u64) -> Option<WindowCounts> {
        Some(WindowCounts { window, current, previous })
    }

    #[test]
    fn the_last_window_counts_as_far_as_it_is_covered() {
        let rule = rule(10, 100);
        let state = counts(1, 8, 0);
        // 8 · 75/100 = 6
        let (decision, after) = rule.decide(state, 4, at(225));
        assert_eq!((decision, after), (Decision::ADMIT, counts(2, 4, 8)));
        // 8 · (100 − e)/100 + 4 + 1 ≤ 10 from e = 37.5 on
        assert_eq!(rule.decide(after, 1, at(225)), (Decision::later(at(13)), after));
        let headroom = rule.headroom(after.as_ref(), at(225));
        assert_eq!((headroom.remaining, headroom.until_more, headroom.until_full), (Some(0), at(13), at(175)));
    }

    #[test]
    fn the_retry_time_may_lie_in_a_later_window() {
        let rule = rule(10, 100);
        // in the next window 8 · (100 − e)/100 + 5 ≤ 10 from e = 37.5 on
        assert_eq!(rule.decide(counts(2, 8, 0), 5, at(250)).0, Decision::later(at(88)));
        // nothing of this window may count any more
        assert_eq!(rule.decide(counts(2, 8, 0), 10, at(250)).0, Decision::later(at(150)));
        assert_eq!(rule.decide(counts(2, 8, 0), 11, at(250)).0, Decision::never(10));
    }

    #[test]
    fn a_refund_meets_the_window_it_was_charged_in_or_none() {
        let rule = rule(10, 100);
        let state = counts(2, 4, 8);
        assert_eq!(rule.refund(state.unwrap(), 3, at(400), at(250)), counts(2, 1, 8));
        assert_eq!(rule.refund(state.unwrap(), 3, at(300), at(250)), counts(2, 4, 5));
        assert_eq!(rule.refund(state.unwrap(), 3, at(200), at(250)), state);
        assert_eq!(rule.refund(counts(2, 4, 0).unwrap(), 4, at(400), at(250)), None);
    }

    #[test]
    fn counted_tokens_stay_used_in_another_window() {
        let (old, new) = (rule(10, 100), rule(10, 70));
        // 3 + 7 · 75/100, rounded up; forgotten at 420, not before 400
        assert_eq!(new.migrate_state(&old, counts(2, 3, 7).unwrap(), at(225)), counts(4, 9, 0));
        assert!(new.keeps_old_parameters(&old, &counts(2, 3, 7).unwrap(), 1, at(225)));
        assert!(!new.keeps_old_parameters(&old, &counts(2, 3, 7).unwrap(), 1, at(400)), "nothing counts any more");
        assert_eq!(rule(10, 1000).migrate_state(&old, counts(2, 3, 7).unwrap(), at(225)), counts(0, 9, 0));
        assert_eq!(new.migrate_state(&old, counts(2, 3, 7).unwrap(), at(400)), None);
        assert_eq!(rule(5, 100).migrate_state(&old, counts(2, 3, 7).unwrap(), at(225)), counts(2, 3, 7));
    }

    #[test]
    fn a_clock_that_steps_back_finds_the_last_window_covered() {
        let rule = rule(10, 100);
        assert_eq!(rule.decide(counts(2, 1, 8), 1, at(50)).0, Decision::ADMIT);
        // 8 · (100 − e)/100 + 3 ≤ 10 from e = 12.5 on
        assert_eq!(rule.decide(counts(2, 1, 8), 2, at(50)).0, Decision::later(at(163)));
    }

    #[test]
    fn the_largest_numbers_there_are_do_not_wrap() {
        let rule = rule(u64::MAX, u64::MAX);
        let (_, state) = rule.decide(None, u64::MAX, at(7));
        assert_eq!(rule.decide(state, 1, at(7)).0, Decision::later(at(u64::MAX - 6)));
        assert_eq!(rule.decide(counts(0, u64::MAX, u64::MAX), u64::MAX, at(7)).0, Decision::later(Nanos::MAX));
    }
}
