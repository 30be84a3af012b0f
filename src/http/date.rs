//! The `Date` field for responses without one (RFC 9110, section 6.6.1).

use std::cell::RefCell;

use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;

use crate::units::Nanos;

thread_local! {
    /// The last second that was formatted, and its text.
    static LAST: RefCell<(u64, String)> = const { RefCell::new((u64::MAX, String::new())) };
}

/// Calls `write` with the date of the wall clock's time `wall`. The text is formatted once per second; `write` is not
/// called if the time is too late for a date.
pub(super) fn with_date(wall: Nanos, write: impl FnOnce(&str)) {
    let second = wall.get() / Nanos::SECOND.get();
    LAST.with_borrow_mut(|(last, text)| {
        if *last != second {
            let at = i64::try_from(second).ok().and_then(|second| Timestamp::from_second(second).ok());
            *text = at.and_then(|at| DateTimePrinter::new().timestamp_to_rfc9110_string(&at).ok()).unwrap_or_default();
            *last = second;
        }
        if !text.is_empty() {
            write(text);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_has_the_form_of_http_and_follows_the_clock() {
        let at = |wall: Nanos| {
            let mut date = String::new();
            with_date(wall, |text| date.push_str(text));
            date
        };
        assert_eq!(at(Nanos::from_secs(784_111_777)), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(at(Nanos::new(784_111_778_999_999_999)), "Sun, 06 Nov 1994 08:49:38 GMT");
        assert_eq!(at(Nanos::new(u64::MAX)).len(), 29);
    }
}
