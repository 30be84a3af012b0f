//! Times as logs write them.

use crate::units::Nanos;

const SECOND: u64 = Nanos::SECOND.get();

/// A time as a line tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogTime {
    pub(super) time: Nanos,
    /// Whether it is written without a fraction of the second.
    pub(super) is_whole_second: bool,
}

/// `10/Oct/2000:13:55:36 -0700`, as in common log format.
pub(super) fn common(text: &[u8]) -> Option<LogTime> {
    let [d1, d2, b'/', m1, m2, m3, b'/', y1, y2, y3, y4, b':', clock @ .., b' ', sign, z1, z2, z3, z4] = text else {
        return None;
    };
    let month = match [*m1, *m2, *m3] {
        [b'J', b'a', b'n'] => 1,
        [b'F', b'e', b'b'] => 2,
        [b'M', b'a', b'r'] => 3,
        [b'A', b'p', b'r'] => 4,
        [b'M', b'a', b'y'] => 5,
        [b'J', b'u', b'n'] => 6,
        [b'J', b'u', b'l'] => 7,
        [b'A', b'u', b'g'] => 8,
        [b'S', b'e', b'p'] => 9,
        [b'O', b'c', b't'] => 10,
        [b'N', b'o', b'v'] => 11,
        [b'D', b'e', b'c'] => 12,
        _ => return None,
    };
    let days = days(digits(&[*y1, *y2, *y3, *y4])?, month, digits(&[*d1, *d2])?)?;
    let zone = zone(*sign, digits(&[*z1, *z2])?, digits(&[*z3, *z4])?)?;
    let time = put_together(days * 86_400 + clock_seconds(clock)?, zone, 0)?;
    Some(LogTime { time, is_whole_second: true })
}

/// Reads RFC 3339, to the nanosecond: `2000-10-10T13:55:36.123Z`, `2000-10-10 13:55:36-07:00`. Remembers the last second,
/// as many lines have the same.
#[derive(Debug, Default)]
pub(super) struct Rfc3339 {
    /// The date and the time of day.
    text: Vec<u8>,
    /// Since 1970, where the clock shows that.
    second: i64,
}

impl Rfc3339 {
    /// The time that `text` is.
    pub(super) fn read(&mut self, text: &[u8]) -> Option<LogTime> {
        let (second, rest) = text.split_at_checked("2000-10-10T13:55:36".len())?;
        if second != self.text.as_slice() {
            self.second = date_and_clock(second)?;
            second.clone_into(&mut self.text);
        }
        within_second(self.second, rest)
    }
}

fn date_and_clock(text: &[u8]) -> Option<i64> {
    let [y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2, b'T' | b't' | b' ', clock @ ..] = text else { return None };
    let days = days(digits(&[*y1, *y2, *y3, *y4])?, digits(&[*m1, *m2])?, digits(&[*d1, *d2])?)?;
    Some(days * 86_400 + clock_seconds(clock)?)
}

/// What follows the second in RFC 3339: `.123Z`, `-07:00`.
fn within_second(second: i64, text: &[u8]) -> Option<LogTime> {
    let is_whole_second = !matches!(text, [b'.' | b',', ..]);
    let (fraction, rest) = match text {
        [b'.' | b',', rest @ ..] => {
            let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let (digits, rest) = rest.split_at_checked(length)?;
            (fraction(digits)?, rest)
        }
        rest => (0, rest),
    };
    let zone = match rest {
        [b'Z' | b'z'] => 0,
        [sign, h1, h2, b':', m1, m2] | [sign, h1, h2, m1, m2] => {
            zone(*sign, digits(&[*h1, *h2])?, digits(&[*m1, *m2])?)?
        }
        _ => return None,
    };
    put_together(second, zone, fraction).map(|time| LogTime { time, is_whole_second })
}

/// A number since 1970: of seconds, or, as its size tells, of milliseconds, microseconds or nanoseconds.
pub(super) fn number(text: &[u8]) -> Option<LogTime> {
    let length = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (whole, rest) = text.split_at_checked(length)?;
    let whole = std::str::from_utf8(whole).ok()?.parse().ok()?;
    let unit = unit_of(whole);
    let part = match rest {
        [] => 0,
        [b'.', digits @ ..] => fraction(digits)? / (SECOND / unit),
        _ => return None,
    };
    let time = Nanos::new(whole.checked_mul(unit)?.checked_add(part)?);
    Some(LogTime { time, is_whole_second: unit == SECOND && rest.is_empty() })
}

/// The same of a number that is a float.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "checked")]
pub(super) fn float(value: f64) -> Option<LogTime> {
    (value.is_finite() && (0.0..1.8e19).contains(&value)).then(|| {
        let nanos = value * unit_of(value as u64) as f64;
        LogTime { time: Nanos::new(nanos.round() as u64), is_whole_second: false }
    })
}

/// Seconds that a number of seconds stands for; `None` where it is negative or no number.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
pub(super) fn seconds(value: f64) -> Option<Nanos> {
    (0.0..1e9).contains(&value).then(|| Nanos::new((value * 1e9).round() as u64))
}

/// How many nanoseconds a number of this size counts in: years from 1973 to 5138 in each unit.
const fn unit_of(number: u64) -> u64 {
    match number {
        0..100_000_000_000 => SECOND,
        100_000_000_000..100_000_000_000_000 => 1_000_000,
        100_000_000_000_000..100_000_000_000_000_000 => 1_000,
        _ => 1,
    }
}

fn put_together(seconds: i64, zone: i64, fraction: u64) -> Option<Nanos> {
    let seconds = u64::try_from(seconds - zone).ok()?;
    Some(Nanos::new(seconds.checked_mul(SECOND)?.checked_add(fraction)?))
}

/// Seconds east of UTC.
fn zone(sign: u8, hours: i64, minutes: i64) -> Option<i64> {
    let east = hours * 3600 + minutes * 60;
    match sign {
        _ if hours > 23 || minutes > 59 => None,
        b'+' => Some(east),
        b'-' => Some(-east),
        _ => None,
    }
}

/// `13:55:36`; a leap second counts as the second after it.
fn clock_seconds(text: &[u8]) -> Option<i64> {
    let [h1, h2, b':', m1, m2, b':', s1, s2] = text else { return None };
    let (hours, minutes, seconds) = (digits(&[*h1, *h2])?, digits(&[*m1, *m2])?, digits(&[*s1, *s2])?);
    (hours < 24 && minutes < 60 && seconds <= 60).then_some(hours * 3600 + minutes * 60 + seconds)
}

fn digits(text: &[u8]) -> Option<i64> {
    text.iter().try_fold(0, |number, digit| digit.is_ascii_digit().then(|| number * 10 + i64::from(digit - b'0')))
}

/// What digits behind a decimal point are worth, in billionths; those after the ninth do not count.
fn fraction(text: &[u8]) -> Option<u64> {
    const WORTH: [u64; 10] = [1_000_000_000, 100_000_000, 10_000_000, 1_000_000, 100_000, 10_000, 1_000, 100, 10, 1];
    let (counted, rest) = text.split_at_checked(text.len().min(9))?;
    let counted = u64::try_from(digits(counted)?).ok()?;
    let is_fraction = !text.is_empty() && rest.iter().all(u8::is_ascii_digit);
    is_fraction.then_some(counted * WORTH.get(text.len().min(9))?)
}

/// Days since 1970-01-01 in the Gregorian calendar; `None` for a day that no month has.
///
/// Counted in years that begin in March, so that a leap day is the last of its year.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let longest = match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=longest).contains(&day) {
        return None;
    }
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let before = year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    const EPOCH: i64 = 719_468;
    Some(before + (month * 153 + 2) / 5 + day - 1 - EPOCH)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rfc3339(text: &[u8]) -> Option<LogTime> {
        Rfc3339::default().read(text)
    }

    const fn stamp(nanos: u64, is_whole_second: bool) -> Option<LogTime> {
        Some(LogTime { time: Nanos::new(nanos), is_whole_second })
    }

    #[test]
    fn times_of_logs_are_read() {
        let second = stamp(971_211_336 * SECOND, true);
        assert_eq!(common(b"10/Oct/2000:13:55:36 -0700"), second);
        assert_eq!(rfc3339(b"2000-10-10T13:55:36-07:00"), second);
        assert_eq!(rfc3339(b"2000-10-10T20:55:36Z"), second);
        assert_eq!(rfc3339(b"2000-10-10 22:55:36+0200"), second);
        assert_eq!(number(b"971211336"), second);
        let exact = stamp(971_211_336 * SECOND, false);
        for text in ["971211336000", "971211336000000", "971211336000000000", "971211336.0"] {
            assert_eq!(number(text.as_bytes()), exact, "{text}");
        }
        assert_eq!(rfc3339(b"2000-10-10T20:55:36.000Z"), exact);
        let half = stamp(971_211_336_500_000_000, false);
        assert_eq!(rfc3339(b"2000-10-10T20:55:36.5Z"), half);
        assert_eq!(rfc3339(b"2000-10-10T20:55:36.5000000009Z"), half);
        assert_eq!((number(b"971211336.5"), number(b"971211336500"), float(971_211_336.5)), (half, half, half));
        assert_eq!(number(b"971211336500.25"), stamp(971_211_336_500_250_000, false));
        assert_eq!(seconds(0.25), Some(Nanos::new(250_000_000)));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in ["", "30/Feb/2000:13:55:36 -0700", "10/Okt/2000:13:55:36 -0700", "10/Oct/2000:24:00:00 +0000", "-"]
        {
            assert_eq!(common(text.as_bytes()), None, "{text}");
        }
        for text in [
            "2001-02-29T00:00:00Z",
            "2001-13-01T00:00:00Z",
            "2001-01-01T00:00:00",
            "2001-01-01T00:00:00.Z",
            "1969-12-31T23:59:59Z",
            "2001-01-01",
            "9999-01-01T00:00:00Z",
        ] {
            assert_eq!(rfc3339(text.as_bytes()), None, "{text}");
        }
        for text in ["", "-5", "5.", "5.x", "99999999999999999999", "1e9"] {
            assert_eq!(number(text.as_bytes()), None, "{text}");
        }
        assert_eq!((float(-1.0), float(f64::NAN), seconds(-0.5)), (None, None, None));
    }

    proptest! {
        #[test]
        fn days_are_those_of_the_calendar(second in 0_i64..17_000_000_000) {
            let time = jiff::Timestamp::from_second(second).unwrap();
            let expected = stamp(second.unsigned_abs() * SECOND, true);
            prop_assert_eq!(rfc3339(time.to_string().as_bytes()), expected);
            let zone = jiff::tz::TimeZone::get("America/St_Johns").unwrap();
            let text = time.to_zoned(zone).strftime("%d/%b/%Y:%H:%M:%S %z").to_string();
            prop_assert_eq!(common(text.as_bytes()), expected, "{}", text);
        }
    }
}
