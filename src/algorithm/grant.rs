//! Giving tokens to a key that somebody thinks should have more.

use super::{Rule, State};
use crate::units::{Cost, Nanos};

/// So many charges are taken back at most, where an algorithm takes them back one by one.
const MOST_CHARGES: usize = 1_000;

/// How a grant goes on after tokens were taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It is over.
    Done,
    /// So many are still to be given, of earlier charges.
    Left(Cost),
}

/// What follows when `left` tokens were to be taken back of a key that had so many `before` and has so many `after`.
pub fn next(left: Cost, before: Option<Cost>, after: Option<Cost>) -> Next {
    let gained = before.zip(after).map_or(0, |(before, after)| after.saturating_sub(before));
    match left.saturating_sub(gained) {
        // nothing came of it, or nobody can tell what: more of the same would do the same
        _ if gained == 0 => Next::Done,
        0 => Next::Done,
        left => Next::Left(left),
    }
}

impl Rule {
    /// Takes back up to `tokens` of what was charged last, by the algorithm's own rule for refunds: as if the last
    /// charges had been for less. What time has made good is not given again, and no key has more than a fresh one.
    /// Nothing changes where a rule cannot take back what was charged.
    pub fn grant(&self, state: Option<State>, tokens: Cost, now: Nanos) -> Option<State> {
        let (mut state, mut left) = (state, tokens);
        for _ in 0..MOST_CHARGES {
            let before = self.headroom(state.as_ref(), now);
            let full_at = now.saturating_add(before.until_full);
            state = self.refund(state?, left, full_at, now);
            match next(left, before.remaining, self.headroom(state.as_ref(), now).remaining) {
                Next::Done => break,
                Next::Left(still) => left = still,
            }
        }
        state
    }
}
