//! Grants: tokens that an operator gives to a key.

use super::{Headroom, Policy, Rule, State};
use crate::units::{Cost, Nanos, scale_ceil};

/// The most charges that one grant refunds, where an algorithm refunds them one by one.
const MAX_CHARGES: usize = 1_000;

/// The tokens of `left` that a grant still has to give after a refund, where charges of `before` tokens counted before it and
/// of `after` tokens count now. `None` if the grant is finished: a refund without an effect is the last one.
pub fn still_left(left: Cost, before: Option<Cost>, after: Option<Cost>) -> Option<Cost> {
    let refunded = before?.saturating_sub(after?);
    left.checked_sub(refunded).filter(|still| *still > 0 && refunded > 0)
}

impl Rule {
    /// Refunds up to `tokens` of the last charges, by the algorithm's own rule for refunds: as if the last charges had
    /// been for less. Tokens that time has refilled are not given again, and no key gets more than a fresh one has.
    /// Nothing changes where a rule cannot refund its charges.
    pub fn grant(&self, state: Option<State>, tokens: Cost, now: Nanos) -> Option<State> {
        let (mut state, mut left) = (state?, tokens);
        for _ in 0..MAX_CHARGES {
            let (headroom, before) = (self.headroom(Some(&state), now), self.counted(&state, now));
            let full_at = now.saturating_add(headroom.until_full);
            state = self.refund(state, self.grantable(left, &headroom), full_at, now)?;
            match still_left(left, before, self.counted(&state, now)) {
                Some(still) => left = still,
                None => break,
            }
        }
        Some(state)
    }

    /// The part of `tokens` that a grant can refund of the last charge of a key with this headroom. Of `smooth_bursty` that is
    /// what is reserved: a larger refund would be stored as permits, although nobody has used them.
    pub fn grantable(&self, tokens: Cost, headroom: &Headroom) -> Cost {
        let (Self::SmoothBursty(_), Policy { quota, window: Some(window) }) = (self, self.policy()) else {
            return tokens;
        };
        let reserved = scale_ceil(headroom.until_full.get().into(), quota.into(), window.get().into());
        tokens.min(Cost::try_from(reserved).unwrap_or(Cost::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{AlgorithmName, Value};
    use crate::units::Rate;

    const HOUR: Nanos = Nanos::from_secs(3600);

    #[test]
    fn a_grant_to_a_key_in_debt_gives_back_what_was_asked_for() {
        use AlgorithmName::{Cycle, Gcra, SlidingCounters, SlidingLog, SlidingWindow};
        let hourly = Value::Rate(Rate::new(1, HOUR).unwrap());
        let in_an_hour = [("limit", Value::Whole(10)), ("window", Value::Duration(HOUR))];
        for (algorithm, arguments) in [
            (Gcra, [("rate", hourly), ("burst", Value::Whole(10))]),
            (Cycle, [("limit", Value::Whole(10)), ("period", Value::Duration(HOUR))]),
            (SlidingWindow, in_an_hour.clone()),
            (SlidingCounters, in_an_hour.clone()),
            (SlidingLog, in_an_hour),
        ] {
            let rule = algorithm.build(&arguments.into()).unwrap();
            let (first, now) = (Nanos::from_secs(1000), Nanos::from_secs(1001));
            let owing = rule.debit(rule.debit(None, 9, first), 6, now);
            let granted = rule.grant(owing, 8, now);
            assert_eq!(rule.headroom(granted.as_ref(), now).remaining, Some(3), "{}", algorithm.as_str());
        }
    }

    #[test]
    fn a_grant_reaches_the_denied_requests_of_a_log() {
        let arguments =
            [("limit", Value::Whole(3)), ("window", Value::Duration(HOUR)), ("count_denied", Value::Flag(true))];
        let rule = AlgorithmName::SlidingLog.build(&arguments.into()).unwrap();
        let state = (0..9).fold(None, |state, at| rule.decide(state, 1, Nanos::new(at)).1);
        assert_eq!(rule.grant(state, 100, Nanos::new(9)), None);
    }

    #[test]
    fn a_grant_to_a_smooth_limit_gives_back_what_is_reserved_and_stores_nothing() {
        let arguments = [
            ("rate", Value::Rate(Rate::new(1, Nanos::SECOND).unwrap())),
            ("max_burst", Value::Duration(Nanos::from_secs(60))),
        ];
        let rule = AlgorithmName::SmoothBursty.build(&arguments.into()).unwrap();
        let now = Nanos::from_secs(1_000);
        for used in [1, 10] {
            let state = rule.decide(None, used, now).1;
            let mut state = rule.grant(rule.grant(state, 1000, now), 1000, now);
            let passing = (0..100).filter(|_| {
                let (decision, after) = rule.decide(state.take(), 1, now);
                state = after;
                decision.is_admitted()
            });
            assert_eq!(passing.count(), 1, "after {used}: the next caller pays for this one");
        }
    }
}
