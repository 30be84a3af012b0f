//! Times in text form.

use jiff::Timestamp;
use serde::Serializer;

use crate::units::Nanos;

/// The time in UTC, in the format of RFC 3339.
pub(super) fn utc(time: Nanos) -> String {
    Timestamp::from_nanosecond(time.get().into()).map_or_else(|_| time.to_string(), |time| time.to_string())
}

/// As [`utc`], rounded down to the second.
pub(super) fn second(time: Nanos) -> String {
    utc(Nanos::new(time.get() - time.get() % Nanos::SECOND.get()))
}

/// As [`utc`].
pub(super) fn serialize<S: Serializer>(time: &Nanos, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&utc(*time))
}

/// As [`utc`], or nothing.
pub(super) fn serialize_if<S: Serializer>(time: &Option<Nanos>, serializer: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => serialize(time, serializer),
        None => serializer.serialize_none(),
    }
}
