//! Units that keep the numbers on an axis short.

use crate::units::Nanos;

/// A unit of time: its length in nanoseconds and its name.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Unit {
    pub(super) nanos: f64,
    pub(super) name: &'static str,
}

const UNITS: [Unit; 7] = [
    Unit { nanos: 1.0, name: "ns" },
    Unit { nanos: 1e3, name: "us" },
    Unit { nanos: 1e6, name: "ms" },
    Unit { nanos: 1e9, name: "s" },
    Unit { nanos: 6e10, name: "min" },
    Unit { nanos: 3.6e12, name: "h" },
    Unit { nanos: 8.64e13, name: "d" },
];

impl Unit {
    /// The unit in which `longest` is a number of at least 3, so that an axis has whole numbers on it: `2.5 s` is shown
    /// in ms, `90 s` in s, `5 min` in min.
    pub(super) fn for_time(longest: Nanos) -> Self {
        let fits = |unit: &&Self| nanos(longest) >= 3.0 * unit.nanos;
        *UNITS.iter().rev().find(fits).unwrap_or(&UNITS[0])
    }

    /// The shortest unit, from a second on, for which `highest` (a number per second) is at least 1 per unit.
    pub(super) fn for_rate(highest: f64) -> Self {
        let fits = |unit: &&Self| highest * unit.nanos / UNITS[3].nanos >= 1.0;
        *UNITS[3..].iter().find(fits).unwrap_or(&UNITS[6])
    }

    /// A time in this unit.
    pub(super) fn of(self, time: Nanos) -> f64 {
        nanos(time) / self.nanos
    }

    /// A number per second as a number per this unit.
    pub(super) fn per(self, per_second: f64) -> f64 {
        per_second * self.nanos / UNITS[3].nanos
    }
}

#[expect(clippy::cast_precision_loss, reason = "for a picture")]
const fn nanos(time: Nanos) -> f64 {
    time.get() as f64
}

/// A number on an axis, without needless digits.
pub(super) fn label(value: f64) -> String {
    let (value, suffix) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{value:.3}");
    format!("{}{suffix}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_keep_the_numbers_short() {
        assert_eq!(Unit::for_time(Nanos::from_secs(60)).name, "s");
        assert_eq!(Unit::for_time(Nanos::from_secs(600)).name, "min");
        assert_eq!(Unit::for_time(Nanos::new(250_000_000)).name, "ms");
        assert_eq!(Unit::for_time(Nanos::ZERO).name, "ns");
        assert_eq!(Unit::for_rate(20.0).name, "s");
        assert_eq!(Unit::for_rate(0.5).name, "min");
        assert_eq!(Unit::for_rate(0.0).name, "d");
        assert!((Unit::for_rate(0.5).per(0.5) - 30.0).abs() < 1e-9);
    }

    #[test]
    fn labels_have_no_needless_digits() {
        assert_eq!(
            [0.0, 0.25, 20.0, 9_500.0, 25_000.0, 1.5e6, 2e9].map(label),
            ["0", "0.25", "20", "9500", "25k", "1.5M", "2G"]
        );
    }
}
