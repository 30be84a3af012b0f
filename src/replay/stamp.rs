//! The time formats of logs.

use jiff::Timestamp;
use jiff::fmt::strtime;

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
    let time = strtime::parse("%d/%b/%Y:%H:%M:%S %z", text).and_then(|time| time.to_timestamp());
    Some(LogTime { time: nanos(time.ok()?)?, is_whole_second: true })
}

/// RFC 3339, to the nanosecond: `2000-10-10T13:55:36.123Z`, `2000-10-10 13:55:36-07:00`.
pub(super) fn rfc3339(text: &[u8]) -> Option<LogTime> {
    let text = str::from_utf8(text).ok()?;
    let is_digit = |c: char| c.is_ascii_digit();
    // digits after the ninth of a fraction do not count
    let time: Result<Timestamp, _> = match text.split_once(['.', ',']) {
        Some((second, rest)) if rest.chars().take_while(|c| is_digit(*c)).count() > 9 => {
            let (fraction, rest) = rest.split_at_checked(9)?;
            format!("{second}.{fraction}{}", rest.trim_start_matches(is_digit)).parse()
        }
        _ => text.parse(),
    };
    Some(LogTime { time: nanos(time.ok()?)?, is_whole_second: !text.contains(['.', ',']) })
}

fn nanos(time: Timestamp) -> Option<Nanos> {
    u64::try_from(time.as_nanosecond()).ok().map(Nanos::new)
}

/// A number since 1970 in seconds, milliseconds, microseconds or nanoseconds; the size of the number tells the unit.
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

/// The same for a float.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "checked")]
pub(super) fn float(value: f64) -> Option<LogTime> {
    (value.is_finite() && (0.0..1.8e19).contains(&value)).then(|| {
        let nanos = value * unit_of(value as u64) as f64;
        LogTime { time: Nanos::new(nanos.round() as u64), is_whole_second: false }
    })
}

/// A number of `unit`s as a duration; `None` if it is negative, not a number, or a billion seconds or more.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "checked")]
pub(super) fn duration(value: f64, unit: Nanos) -> Option<Nanos> {
    let nanos = value * unit.get() as f64;
    (0.0..1e18).contains(&nanos).then(|| Nanos::new(nanos.round() as u64))
}

/// The unit of a number of this size, in nanoseconds. Each unit covers the years from 1973 to 5138.
const fn unit_of(number: u64) -> u64 {
    match number {
        0..100_000_000_000 => SECOND,
        100_000_000_000..100_000_000_000_000 => 1_000_000,
        100_000_000_000_000..100_000_000_000_000_000 => 1_000,
        _ => 1,
    }
}

/// The value of the digits behind a decimal point, in billionths; digits after the ninth do not count.
fn fraction(text: &[u8]) -> Option<u64> {
    let is_fraction = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let billionths = text.iter().chain([&b'0'; 9]).take(9);
    is_fraction.then(|| billionths.fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
        assert_eq!(duration(0.25, Nanos::SECOND), Some(Nanos::new(250_000_000)));
    }

    #[test]
    fn a_text_that_is_no_time_is_refused() {
        for text in ["", "30/Feb/2000:13:55:36 -0700", "10/Okt/2000:13:55:36 -0700", "10/Oct/2000:24:00:00 +0000", "-"]
        {
            assert_eq!(common(text.as_bytes()), None, "{text}");
        }
        for text in [
            "2001-02-29T00:00:00Z", "2001-13-01T00:00:00Z", "2001-01-01T00:00:00", "2001-01-01T00:00:00.Z",
            "1969-12-31T23:59:59Z", "2001-01-01", "9999-01-01T00:00:00Z",
        ] {
            assert_eq!(rfc3339(text.as_bytes()), None, "{text}");
        }
        for text in ["", "-5", "5.", "5.x", "99999999999999999999", "1e9"] {
            assert_eq!(number(text.as_bytes()), None, "{text}");
        }
        assert_eq!((float(-1.0), float(f64::NAN), duration(-0.5, Nanos::SECOND)), (None, None, None));
    }

    proptest! {
        #[test]
        fn days_are_those_of_the_calendar(second in 0_i64..17_000_000_000) {
            let time = Timestamp::from_second(second).unwrap();
            let expected = stamp(second.unsigned_abs() * SECOND, true);
            prop_assert_eq!(rfc3339(time.to_string().as_bytes()), expected);
            let zone = jiff::tz::TimeZone::get("America/St_Johns").unwrap();
            let text = time.to_zoned(zone).strftime("%d/%b/%Y:%H:%M:%S %z").to_string();
            prop_assert_eq!(common(text.as_bytes()), expected, "{}", text);
        }
    }
}
