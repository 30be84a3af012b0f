//! Bans: after repeated denials by a limit, all requests of the key are denied for a time.

use crate::units::Nanos;

/// The conditions of a ban, and its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BanRule {
    /// The number of denials that ban a key, at least 1.
    pub after: u32,
    /// The time, from the first of these denials on, in which they have to occur.
    pub within: Nanos,
    /// The length of the ban, from the last of these denials on.
    pub lasts: Nanos,
}

/// The state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BanState {
    /// The key was denied, but not often enough for a ban.
    Counting {
        /// The time of the first denial.
        since: Nanos,
        /// The number of denials.
        denials: u32,
    },
    /// The key is banned.
    Banned {
        /// The first instant after the ban.
        until: Nanos,
    },
}

/// The ban of a key that a request is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ban {
    /// The position of the charge.
    pub position: usize,
    /// The time that is left of the ban.
    pub left: Nanos,
}

impl BanRule {
    /// The state of a key after a denial at `now`. Denials during a ban are not counted, so that the ban ends however often
    /// the client retries meanwhile.
    pub fn after_denial(&self, state: Option<BanState>, now: Nanos) -> BanState {
        let (since, denials) = match state {
            Some(banned @ BanState::Banned { until }) if now < until => return banned,
            Some(BanState::Counting { since, denials }) if now < since.saturating_add(self.within) => {
                (since, denials.saturating_add(1))
            }
            Some(_) | None => (now, 1),
        };
        match denials < self.after {
            true => BanState::Counting { since, denials },
            false => BanState::Banned { until: now.saturating_add(self.lasts) },
        }
    }

    /// The rule in plain words.
    pub fn describe(self) -> String {
        format!("a key for {} after {} denials in {}", self.lasts, self.after, self.within)
    }
}

impl BanState {
    /// The time that is left of the ban at `now`; `None` if there is no ban.
    pub fn left(self, now: Nanos) -> Option<Nanos> {
        match self {
            Self::Banned { until } if now < until => Some(until.saturating_sub(now)),
            Self::Banned { .. } | Self::Counting { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: BanRule = BanRule { after: 3, within: Nanos::new(10), lasts: Nanos::new(100) };

    fn at(time: u64) -> Nanos {
        Nanos::new(time)
    }

    /// How long a key is banned right after denials at these times.
    fn left_after(times: &[u64]) -> Option<Nanos> {
        let denied = |state, time: &u64| Some(RULE.after_denial(state, at(*time)));
        times.iter().fold(None, denied).and_then(|state: BanState| state.left(at(*times.last().unwrap())))
    }

    #[test]
    fn so_many_denials_in_the_time_from_the_first_on_ban_and_no_fewer() {
        assert_eq!(left_after(&[0, 5]), None);
        assert_eq!(left_after(&[0, 5, 9]), Some(at(100)));
        assert_eq!(left_after(&[0, 5, 10]), None, "the third begins anew");
        assert_eq!(left_after(&[0, 5, 10, 11, 12]), Some(at(100)));
        assert_eq!(BanRule { after: 1, ..RULE }.after_denial(None, at(7)), BanState::Banned { until: at(107) });
    }

    #[test]
    fn a_ban_ends_to_the_nanosecond_and_what_is_denied_meanwhile_does_not_count() {
        let banned = BanState::Banned { until: at(100) };
        assert_eq!(RULE.after_denial(Some(banned), at(99)), banned);
        assert_eq!([0, 99, 100].map(|now| banned.left(at(now))), [Some(at(100)), Some(at(1)), None]);
        assert_eq!(RULE.after_denial(Some(banned), at(100)), BanState::Counting { since: at(100), denials: 1 });
        let last = BanRule { lasts: Nanos::MAX, after: 1, ..RULE }.after_denial(None, at(5));
        assert_eq!(last, BanState::Banned { until: Nanos::MAX });
    }
}
