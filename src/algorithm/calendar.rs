//! Days, weeks and months in the calendar of a time zone.
//!
//! They begin at midnight, or at the first instant of the date where a change of the clocks skips or repeats midnight. So a
//! day has 23 or 25 hours where the clocks change, and each instant is in exactly one day.

use std::hash::{Hash, Hasher};

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::units::Nanos;

/// A unit of the calendar, used as a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// From midnight to midnight.
    Day,
    /// From Monday to Monday (ISO 8601).
    Week,
    /// From the first of a month to the first of the next one.
    Month,
}

/// A unit in a time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    /// The unit.
    pub unit: Unit,
    /// The time zone whose midnight counts.
    pub zone: TimeZone,
    /// Whether each customer's own time zone counts instead; `zone` is then for customers without one.
    pub of_customer: bool,
}

// === impl Calendar ===

/// Zones without a name, which are rare, have the same hash.
impl Hash for Calendar {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.unit, self.zone.iana_name()).hash(state);
    }
}

impl Calendar {
    /// The end of the day, week or month of `now`; always after `now`. [`Nanos::MAX`] if it is too far away to express.
    pub fn end(&self, now: Nanos) -> Nanos {
        self.end_or_overflow(now).unwrap_or(Nanos::MAX)
    }

    /// The first beginning of a unit after `now`. It can be the beginning of the unit of `now`: where the clocks go back
    /// over midnight, a date comes a second time.
    fn end_or_overflow(&self, now: Nanos) -> Option<Nanos> {
        let now = Timestamp::from_nanosecond(i128::from(now.get())).ok()?;
        let mut first_day = self.unit.first_day(self.zone.to_datetime(now).date())?;
        loop {
            let begins = self.begins(first_day)?;
            if begins > now {
                return u64::try_from(begins.as_nanosecond()).ok().map(Nanos::new);
            }
            first_day = self.unit.next(first_day)?;
        }
    }

    /// The first instant of a date: midnight, the earlier one where the clocks go back over it, or the end of the gap
    /// where they go forward at it.
    fn begins(&self, date: Date) -> Option<Timestamp> {
        self.zone.to_timestamp(date.at(0, 0, 0, 0)).ok()
    }
}

// === impl Unit ===

impl Unit {
    /// All units.
    pub const ALL: [Self; 3] = [Self::Day, Self::Week, Self::Month];

    /// The name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
        }
    }

    /// The length of the unit without changes of the clocks; for a month, the length of the longest one.
    pub const fn usual_length(self) -> Nanos {
        const DAY: u64 = 86_400;
        Nanos::from_secs(match self {
            Self::Day => DAY,
            Self::Week => DAY.saturating_mul(7),
            Self::Month => DAY.saturating_mul(31),
        })
    }

    fn first_day(self, date: Date) -> Option<Date> {
        match self {
            Self::Day => Some(date),
            Self::Week => {
                let since_monday = i64::from(date.weekday().to_monday_zero_offset());
                date.checked_sub(jiff::Span::new().try_days(since_monday).ok()?).ok()
            }
            Self::Month => Some(date.first_of_month()),
        }
    }

    fn next(self, first_day: Date) -> Option<Date> {
        let span = jiff::Span::new();
        let length = match self {
            Self::Day => span.try_days(1),
            Self::Week => span.try_weeks(1),
            Self::Month => span.try_months(1),
        };
        first_day.checked_add(length.ok()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(time: &str) -> Nanos {
        Nanos::new(u64::try_from(time.parse::<Timestamp>().unwrap().as_nanosecond()).unwrap())
    }

    fn end(unit: Unit, zone: &str, now: &str) -> Nanos {
        Calendar { unit, zone: TimeZone::get(zone).unwrap(), of_customer: false }.end(at(now))
    }

    #[test]
    fn a_day_is_as_long_as_the_clocks_make_it() {
        let berlin = |now| end(Unit::Day, "Europe/Berlin", now);
        // 23 hours
        assert_eq!(berlin("2024-03-30T23:00:00Z"), at("2024-03-31T22:00:00Z"));
        assert_eq!(berlin("2024-03-31T21:59:59.999999999Z"), at("2024-03-31T22:00:00Z"));
        assert_eq!(berlin("2024-03-31T22:00:00Z"), at("2024-04-01T22:00:00Z"));
        // 25 hours
        assert_eq!(berlin("2024-10-26T22:00:00Z"), at("2024-10-27T23:00:00Z"));
    }

    #[test]
    fn weeks_begin_on_monday_and_months_on_the_first() {
        assert_eq!(end(Unit::Week, "UTC", "2024-12-29T23:59:59Z"), at("2024-12-30T00:00:00Z"));
        assert_eq!(end(Unit::Week, "UTC", "2024-12-30T00:00:00Z"), at("2025-01-06T00:00:00Z"));
        assert_eq!(end(Unit::Month, "Asia/Tokyo", "2024-02-29T14:59:59Z"), at("2024-02-29T15:00:00Z"));
        assert_eq!(end(Unit::Month, "Asia/Tokyo", "2024-02-29T15:00:00Z"), at("2024-03-31T15:00:00Z"));
        assert_eq!(end(Unit::Month, "UTC", "1970-01-01T00:00:00Z"), at("1970-02-01T00:00:00Z"));
    }

    #[test]
    fn a_date_that_comes_twice_begins_once() {
        // a minute after midnight the clocks went back an hour, into the day before
        let newfoundland = |now| end(Unit::Day, "America/St_Johns", now);
        let midnight = "2006-10-29T02:30:00Z";
        assert_eq!(newfoundland("2006-10-29T02:29:59Z"), at(midnight));
        for now in [midnight, "2006-10-29T02:31:00Z", "2006-10-29T03:29:00Z", "2006-10-29T03:30:00Z"] {
            assert_eq!(newfoundland(now), at("2006-10-30T03:30:00Z"));
        }
    }

    #[test]
    fn midnight_can_be_missing_and_so_can_a_day() {
        assert_eq!(end(Unit::Day, "Asia/Beirut", "2022-03-26T12:00:00Z"), at("2022-03-26T22:00:00Z"));
        assert_eq!(end(Unit::Day, "Asia/Beirut", "2022-03-26T22:00:00Z"), at("2022-03-27T21:00:00Z"));
        assert_eq!(end(Unit::Day, "Pacific/Apia", "2011-12-30T09:59:59Z"), at("2011-12-30T10:00:00Z"));
        assert_eq!(end(Unit::Day, "Pacific/Apia", "2011-12-30T10:00:00Z"), at("2011-12-31T10:00:00Z"));
    }

    #[test]
    fn the_end_of_time_is_no_end() {
        let calendar = Calendar { unit: Unit::Month, zone: TimeZone::UTC, of_customer: false };
        assert_eq!(calendar.end(Nanos::MAX), Nanos::MAX);
    }
}
