//! The tokens of a lease, by the calls that took them. A refund names the charge that it is of by a time, and a log keeps
//! the charges of different times apart.

use std::collections::VecDeque;

use crate::units::{Cost, Nanos};

/// The tokens of a lease, the oldest first. The newest grant stays when its tokens are spent, until it lapses.
#[derive(Default)]
pub(super) struct Grants(VecDeque<Grant>);

/// The tokens of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    /// The tokens that are left.
    pub(super) left: Cost,
    /// When the key was going to be full after the call, on Redis's clock.
    pub(super) full_at: Nanos,
}

impl Grants {
    /// The tokens that are left.
    pub(super) fn balance(&self) -> Cost {
        self.0.iter().fold(0, |sum: Cost, grant| sum.saturating_add(grant.left))
    }

    pub(super) fn push(&mut self, grant: Grant) {
        if grant.left > 0 {
            self.0.push_back(grant);
        }
    }

    /// Spends `cost`, the oldest tokens first. Returns whether there were as many.
    pub(super) fn spend(&mut self, cost: Cost) -> bool {
        if self.balance() < cost {
            return false;
        }
        let mut owed = cost;
        while let Some(oldest) = self.0.front_mut() {
            let taken = oldest.left.min(owed);
            (oldest.left, owed) = (oldest.left.saturating_sub(taken), owed.saturating_sub(taken));
            if oldest.left > 0 || self.0.len() == 1 {
                break;
            }
            self.0.pop_front();
        }
        true
    }

    /// Puts spent tokens back. Returns whether there is a grant that they belong to.
    pub(super) fn put_back(&mut self, cost: Cost) -> bool {
        self.0.back_mut().map(|newest| newest.left = newest.left.saturating_add(cost)).is_some()
    }

    /// Takes out the newest tokens, all but `kept`.
    pub(super) fn take_beyond(&mut self, kept: Cost) -> Vec<Grant> {
        let (mut spare, mut taken) = (self.balance().saturating_sub(kept), Vec::new());
        while spare > 0
            && let Some(newest) = self.0.back_mut()
        {
            let left = newest.left.min(spare);
            taken.push(Grant { left, ..*newest });
            (newest.left, spare) = (newest.left.saturating_sub(left), spare.saturating_sub(left));
            if newest.left == 0 {
                self.0.pop_back();
            }
        }
        taken
    }

    /// Drops all tokens. Returns how many these are.
    pub(super) fn lapse(&mut self) -> Cost {
        std::mem::take(self).balance()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn grant(left: Cost, second: u64) -> Grant {
        Grant { left, full_at: Nanos::from_secs(second) }
    }

    #[test]
    fn the_oldest_tokens_are_spent_and_the_newest_taken_out() {
        let mut grants = Grants::default();
        [grant(5, 1), grant(0, 2), grant(7, 3)].into_iter().for_each(|grant| grants.push(grant));
        assert!(!grants.spend(13) && grants.spend(3));
        assert_eq!(grants.take_beyond(1), [grant(7, 3), grant(1, 1)]);
        assert!(grants.spend(1) && grants.balance() == 0 && grants.take_beyond(0).is_empty());
        assert!(grants.put_back(1), "to the grant that is spent");
        assert_eq!((grants.lapse(), grants.put_back(1)), (1, false));
    }
}
