//! `ban` of a limit: the number of denials after which the gateway denies all requests of a key, and for how long.

use crate::config::over_limit::lets_pass;
use crate::config::read::{Field, Section};
use crate::config::scalar::{self, InvalidValue, invalid};
use crate::config::settings::BAN;
use crate::ruleset::ban::BanRule;
use crate::units::Nanos;

/// Reads `ban`.
pub(super) fn read(field: &Field<'_>) -> Option<BanRule> {
    let section = field.section(&BAN)?;
    let after = section.must("after", |field| field.read(after));
    let lasts = section.required("for", "a length of time, like `1h`").and_then(|field| field.duration());
    let (after, within) = after?;
    Some(BanRule { after, within, lasts: lasts? })
}

fn after(text: &str) -> Result<(u32, Nanos), InvalidValue> {
    let mut words = text.split_whitespace();
    let (Some(number), Some("denials" | "denial"), Some("in"), Some(time), None) =
        (words.next(), words.next(), words.next(), words.next(), words.next())
    else {
        return Err(invalid("is not written as denials in a time"));
    };
    let number = u32::try_from(scalar::whole(number)?).ok().filter(|number| (1..=1_000_000).contains(number));
    let within = scalar::duration(time)?;
    match (number, within) {
        (None, _) => Err(invalid("is not from 1 to 1000000 denials")),
        (_, Nanos::ZERO) => Err(invalid("has no time in which to count")),
        (Some(number), within) => Ok((number, within)),
    }
}

/// Refuses a ban of a limit that never denies.
pub(super) fn check(limit: &Section<'_>, shadow: bool) -> Option<()> {
    let Some(field) = limit.get("ban") else { return Some(()) };
    match shadow || lets_pass(limit) {
        false => Some(()),
        true => {
            let message = "counts denials, and the limit denies nobody";
            let hint = if shadow { "leave out `shadow`" } else { "leave out what `over_limit` says" };
            field.fail(field.key_error(message).hint(hint.to_owned()))
        }
    }
}
