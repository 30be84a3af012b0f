//! Grants: tokens that an operator gives to a key.

use super::{Headroom, Policy, Rule, State};
use crate::units::{Cost, Nanos, scale_ceil};

/// The most charges that one grant refunds, where an algorithm refunds them one by one.
const MOST_CHARGES: usize = 1_000;

/// The next step of a grant after a refund.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantStep {
    /// The grant is finished.
    Done,
    /// This many tokens are still to be given, from earlier charges.
    Left(Cost),
}

/// The next step after a refund of `left` tokens, where the key had `before` tokens before it and has `after` now.
pub fn next_step(left: Cost, before: Option<Cost>, after: Option<Cost>) -> GrantStep {
    let gained = before.zip(after).map_or(0, |(before, after)| after.saturating_sub(before));
    match left.saturating_sub(gained) {
        // the refund had no effect that can be measured, and another one would have none either
        _ if gained == 0 => GrantStep::Done,
        0 => GrantStep::Done,
        left => GrantStep::Left(left),
    }
}

impl Rule {
    /// Refunds up to `tokens` of the last charges, by the algorithm's own rule for refunds: as if the last charges had
    /// been for less. Tokens that time has refilled are not given again, and no key gets more than a fresh one has.
    /// Nothing changes where a rule cannot refund its charges.
    pub fn grant(&self, state: Option<State>, tokens: Cost, now: Nanos) -> Option<State> {
        let (mut state, mut left) = (state, tokens);
        for _ in 0..MOST_CHARGES {
            let before = self.headroom(state.as_ref(), now);
            let full_at = now.saturating_add(before.until_full);
            state = self.refund(state?, self.grantable(left, &before), full_at, now);
            match next_step(left, before.remaining, self.headroom(state.as_ref(), now).remaining) {
                GrantStep::Done => break,
                GrantStep::Left(still) => left = still,
            }
        }
        state
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
