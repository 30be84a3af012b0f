//! Bans: a key that a limit denies again and again is denied altogether for a while.

use crate::units::Nanos;

/// When a key is banned, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BanRule {
    /// After so many denials, at least 1,
    pub after: u32,
    /// in this time from the first of them on.
    pub within: Nanos,
    /// For so long from the last of them on.
    pub lasts: Nanos,
}

/// What is known of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BanState {
    /// It was denied this many times since then.
    Counting {
        /// The first denial.
        since: Nanos,
        /// How many there were.
        denials: u32,
    },
    /// Requests are denied until then.
    Banned {
        /// The first instant that is free.
        until: Nanos,
    },
}

impl BanRule {
    /// The state of a key that is denied at `now`. What is denied because of a ban is not counted, so that a ban ends however
    /// often the key comes back meanwhile.
    pub fn denied(&self, state: Option<BanState>, now: Nanos) -> BanState {
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

    /// In words.
    pub fn describe(self) -> String {
        format!("a key for {} after {} denials in {}", self.lasts, self.after, self.within)
    }
}

impl BanState {
    /// For how long the key is still banned at `now`; `None` if it is not.
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
        let denied = |state, time: &u64| Some(RULE.denied(state, at(*time)));
        times.iter().fold(None, denied).and_then(|state: BanState| state.left(at(*times.last().unwrap())))
    }

    #[test]
    fn so_many_denials_in_the_time_from_the_first_on_ban_and_no_fewer() {
        assert_eq!(left_after(&[0, 5]), None);
        assert_eq!(left_after(&[0, 5, 9]), Some(at(100)));
        assert_eq!(left_after(&[0, 5, 10]), None, "the third begins anew");
        assert_eq!(left_after(&[0, 5, 10, 11, 12]), Some(at(100)));
        assert_eq!(BanRule { after: 1, ..RULE }.denied(None, at(7)), BanState::Banned { until: at(107) });
    }

    #[test]
    fn a_ban_ends_to_the_nanosecond_and_what_is_denied_meanwhile_does_not_count() {
        let banned = BanState::Banned { until: at(100) };
        assert_eq!(RULE.denied(Some(banned), at(99)), banned);
        assert_eq!([0, 99, 100].map(|now| banned.left(at(now))), [Some(at(100)), Some(at(1)), None]);
        assert_eq!(RULE.denied(Some(banned), at(100)), BanState::Counting { since: at(100), denials: 1 });
        let last = BanRule { lasts: Nanos::MAX, after: 1, ..RULE }.denied(None, at(5));
        assert_eq!(last, BanState::Banned { until: Nanos::MAX });
    }
}
