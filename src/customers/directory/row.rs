//! One row of a directory as it is read, field by field.

use std::sync::Arc;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

use super::credential::digest_of;
use super::fault::{Fault, MAX_NAME};
use crate::ruleset::PlanId;
use crate::ruleset::groups::{COLUMNS, MAX_LEVELS};
use crate::units::Nanos;

/// A byte that never occurs in UTF-8.
const SEPARATOR: u8 = 0xff;
/// The maximum number of [`columns`].
pub(super) const MAX_COLUMNS: usize = COLUMNS.len() + MAX_LEVELS;

/// The kind of the rows of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RowKind {
    /// One credential per row.
    Credentials,
    /// One group per row.
    Groups,
}

impl RowKind {
    /// Whether a file of this kind may have the column.
    pub(super) fn takes(self, column: &str) -> bool {
        match self {
            Self::Credentials => !matches!(column, "level" | "group"),
            Self::Groups => !matches!(column, "credential" | "customer" | "valid_until"),
        }
    }

    /// Whether a file of this kind must have the column.
    pub(super) fn requires(self, column: &str) -> bool {
        match self {
            Self::Credentials => matches!(column, "credential" | "customer" | "plan"),
            Self::Groups => matches!(column, "level" | "group"),
        }
    }
}

/// The meaning of a text's rows, of which those with faults are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowSet {
    /// All rows of the directory.
    All,
    /// All rows, in parts with an empty line between them: a row replaces the rows of its credential in earlier parts.
    Log,
    /// Only the changed rows.
    Changed,
}

/// The fields of a row; empty if not given.
#[derive(Clone, Copy, Default)]
pub(super) struct Row<'t> {
    /// The line on which the row begins, from 1.
    pub(super) line: u64,
    pub(super) credential: &'t str,
    pub(super) customer: &'t str,
    pub(super) level: &'t str,
    pub(super) group: &'t str,
    pub(super) plan: &'t str,
    pub(super) overrides: &'t str,
    pub(super) time_zone: &'t str,
    pub(super) valid_until: &'t str,
    pub(super) suspended: &'t str,
    /// The names of the row's groups, at the positions of their levels.
    pub(super) groups: [&'t str; MAX_LEVELS],
}

impl<'t> Row<'t> {
    /// A row of these fields, in the order of [`columns`].
    pub(super) fn new(line: u64, fields: [&'t str; MAX_COLUMNS]) -> Self {
        let [credential, customer, level, group, plan, overrides, time_zone, valid_until, suspended, groups @ ..] =
            fields;
        Self { line, credential, customer, level, group, plan, overrides, time_zone, valid_until, suspended, groups }
    }

    /// The fields, in the order of [`columns`].
    pub(super) fn fields(&self) -> impl Iterator<Item = &'t str> {
        let Self { credential, customer, level, group, plan, overrides, time_zone, valid_until, suspended, .. } = *self;
        let own = [credential, customer, level, group, plan, overrides, time_zone, valid_until, suspended];
        own.into_iter().chain(self.groups)
    }

    /// A key that only rows with the same terms share; `inherited` is the plan of rows that name none.
    pub(super) fn terms_key(&self, inherited: Option<PlanId>) -> Vec<u8> {
        let inherited = inherited.filter(|_| self.plan.is_empty()).map_or(usize::MAX, |PlanId(plan)| plan);
        let inherited = inherited.to_ne_bytes();
        let own = [self.level, self.plan, self.time_zone, self.suspended, self.overrides].map(str::as_bytes);
        [&inherited[..], &own.join(&SEPARATOR)].concat()
    }

    /// A key that only rows with the same groups share.
    pub(super) fn groups_key(&self) -> Vec<u8> {
        self.groups.map(str::as_bytes).join(&SEPARATOR)
    }

    /// Sets the group of the level `name`; false if there is no such level.
    pub(super) fn set_group(&mut self, levels: &[Arc<str>], name: &str, group: &'t str) -> bool {
        let position = levels.iter().position(|level| **level == *name);
        let place = position.and_then(|position| self.groups.get_mut(position));
        place.map(|place| *place = group).is_some()
    }

    /// The SHA-256 of the credential.
    pub(super) fn digest(&self) -> Result<[u8; 32], Fault> {
        match self.credential {
            "" => Err(Fault::EmptyField("credential")),
            credential => digest_of(credential.as_bytes()).ok_or(Fault::BadHash),
        }
    }

    /// The customer's name.
    pub(super) fn name(&self) -> Result<&'t str, Fault> {
        match self.customer {
            "" => Err(Fault::EmptyField("customer")),
            name if is_name(name) => Ok(name),
            _ => Err(Fault::BadName),
        }
    }

    /// Whether the customer is suspended.
    pub(super) fn suspended(&self) -> Result<bool, Fault> {
        match self.suspended {
            "" | "false" => Ok(false),
            "true" => Ok(true),
            _ => Err(Fault::BadSuspended),
        }
    }

    /// The time when the credential expires.
    pub(super) fn valid_until(&self, zone: Option<&TimeZone>) -> Result<Option<Nanos>, Fault> {
        Ok(self.end(zone)?.map(|end| match u64::try_from(end.as_nanosecond()) {
            Ok(nanos) => Nanos::new(nanos),
            Err(_) if end < Timestamp::UNIX_EPOCH => Nanos::ZERO,
            Err(_) => Nanos::MAX,
        }))
    }

    /// The same as a timestamp, in whole microseconds as databases keep it; a date stands for the end of that day in `zone`,
    /// or in UTC without a zone.
    pub(super) fn end(&self, zone: Option<&TimeZone>) -> Result<Option<Timestamp>, Fault> {
        const DATE: usize = "2027-12-31".len();
        let end = match self.valid_until {
            "" => return Ok(None),
            date if date.len() == DATE => end_of(date.parse().map_err(|_| Fault::BadValidUntil)?, zone),
            time => Some(time.parse().map_err(|_| Fault::BadValidUntil)?),
        };
        Ok(end.and_then(|end: Timestamp| Timestamp::from_microsecond(end.as_microsecond()).ok()))
    }
}

/// The names of all columns: those of every file, and then the levels of groups.
pub(super) fn columns(levels: &[impl AsRef<str>]) -> impl Iterator<Item = &str> {
    COLUMNS.into_iter().chain(levels.iter().map(AsRef::as_ref))
}

/// The end of a day; `None` for the last representable day.
fn end_of(day: Date, zone: Option<&TimeZone>) -> Option<Timestamp> {
    let next = day.checked_add(1.day()).ok()?;
    zone.unwrap_or(&TimeZone::UTC).to_timestamp(next.at(0, 0, 0, 0)).ok()
}

/// Whether the text is a valid name of a customer or group.
pub(in crate::customers) fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= MAX_NAME && !text.contains(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid_until(text: &str, zone: Option<&str>) -> Result<Option<u64>, Fault> {
        let zone = zone.map(|name| TimeZone::get(name).unwrap());
        let row = Row { valid_until: text, ..Row::default() };
        row.valid_until(zone.as_ref()).map(|end| end.map(|end| end.get() / 1_000_000_000))
    }

    #[test]
    fn a_date_ends_with_its_day_where_the_customer_is() {
        assert_eq!(valid_until("2024-12-31", None), Ok(Some(1_735_689_600)));
        assert_eq!(valid_until("2024-12-31", Some("Europe/Berlin")), Ok(Some(1_735_689_600 - 3_600)));
        // the clocks were set forward that night
        assert_eq!(valid_until("2024-03-31", Some("Europe/Berlin")), Ok(Some(1_711_922_400)));
        assert_eq!(valid_until("9999-12-31", None), Ok(None));
        assert_eq!(valid_until("1969-01-01", None), Ok(Some(0)));
    }

    #[test]
    fn a_time_is_what_it_says_wherever_the_customer_is() {
        for text in ["2024-12-31T23:00:00Z", "2025-01-01T00:00:00+01:00"] {
            assert_eq!(valid_until(text, Some("Asia/Tokyo")), Ok(Some(1_735_686_000)));
        }
        assert_eq!(valid_until("", None), Ok(None));
        for bad in ["tomorrow", "2024-02-30", "2024-12-31T23:00:00", "1735686000", "24-12-31T0", "31.12.2024"] {
            assert_eq!(valid_until(bad, None), Err(Fault::BadValidUntil), "{bad}");
        }
    }
}
