//! The headroom of a key in the numbers that customers and operators see.

use crate::algorithm::{Headroom, Policy};
use crate::charge::{Charge, ChargeSource};
use crate::units::Nanos;

/// The headroom of a key.
pub(super) struct ShownHeadroom {
    /// The largest cost that would be admitted at once; `None` if there is no such number.
    pub remaining: Option<u64>,
    /// The time until more tokens are available; 0 if none are missing, `None` if it is unknown.
    pub more_in_seconds: Option<f64>,
    /// The time until all tokens are available again; `None` if it is unknown, or if requests in flight have to end first.
    pub full_in_seconds: Option<f64>,
}

impl ShownHeadroom {
    /// The `headroom` that the charge `asked` has left under a limit with this policy.
    pub(super) fn of(headroom: Headroom, asked: &Charge, policy: Policy) -> Self {
        // while Redis is unavailable, nobody may know what is used
        let known = (asked.taken_from != ChargeSource::FailedOpen).then_some(headroom);
        let full_in = known.and_then(|headroom| headroom.full_in(policy.above(asked.floor)));
        Self {
            remaining: headroom.remaining,
            more_in_seconds: known.map(|headroom| headroom.until_more.as_secs_f64()),
            full_in_seconds: full_in.map(Nanos::as_secs_f64),
        }
    }
}
