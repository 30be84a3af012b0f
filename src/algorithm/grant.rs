//! Grants: tokens that an operator gives to a key.

use super::{Rule, State};
use crate::units::{Cost, Nanos};

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
            state = self.refund(state?, left, full_at, now);
            match next_step(left, before.remaining, self.headroom(state.as_ref(), now).remaining) {
                GrantStep::Done => break,
                GrantStep::Left(still) => left = still,
            }
        }
        state
    }
}
