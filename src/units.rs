//! The basic quantities: times, rates, costs, keys.
//!
//! All arithmetic here is checked or saturating; constructors refuse invalid quantities.

use std::cmp::Ordering;
use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

mod prefixes;

pub use prefixes::Prefixes;

/// Nanoseconds: a point in time (since the clock's epoch, the Unix epoch in production) or a length of time.
///
/// Range: 584 years. Arithmetic saturates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Nanos(u64);

/// The lengths of the units of time in nanoseconds, and their names in the configuration; the longest first.
pub const TIME_UNITS: [(u64, &str); 7] = [
    (86_400_000_000_000, "d"),
    (3_600_000_000_000, "h"),
    (60_000_000_000, "m"),
    (1_000_000_000, "s"),
    (1_000_000, "ms"),
    (1_000, "us"),
    (1, "ns"),
];

impl Nanos {
    /// No time at all; as a point, the clock's epoch.
    pub const ZERO: Self = Self(0);
    /// The largest time; stands for "too far away to express".
    pub const MAX: Self = Self(u64::MAX);
    /// One second.
    pub const SECOND: Self = Self(1_000_000_000);

    /// This many nanoseconds.
    pub const fn new(nanos: u64) -> Self {
        Self(nanos)
    }

    /// This many whole seconds, saturating.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(Self::SECOND.0))
    }

    /// The number of nanoseconds.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// From a wider count, saturating.
    pub fn saturating_from(nanos: u128) -> Self {
        Self(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// The sum, saturating.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference, zero where `other` is later.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// This time doubled `times` times, saturating. For pauses between retries.
    #[must_use]
    pub fn doubled(self, times: u32) -> Self {
        Self(self.0.saturating_mul(1_u64.checked_shl(times).unwrap_or(u64::MAX)))
    }

    /// The same moment on a clock that is ahead by `by`, saturating.
    #[must_use]
    pub const fn shifted(self, by: ClockOffset) -> Self {
        Self(self.0.saturating_add_signed(by.0))
    }

    /// Whole seconds, rounded up.
    pub const fn secs_ceil(self) -> u64 {
        self.0.div_ceil(Self::SECOND.0)
    }

    /// The exact time in the configuration's syntax: a whole number of the largest unit that leaves no remainder
    /// (`333333333ns`).
    pub fn to_exact_string(self) -> String {
        let exact = TIME_UNITS.iter().find(|(unit, _)| self.0.checked_rem(*unit) == Some(0) && self.0 > 0);
        exact.map_or("0s".to_owned(), |(unit, name)| format!("{}{name}", self.0.checked_div(*unit).unwrap_or(0)))
    }

    /// Seconds as a float, for metrics and pictures only.
    #[expect(clippy::cast_precision_loss, reason = "a report, never a decision")]
    pub const fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// As the standard library's type.
    pub const fn to_duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }
}

impl From<Duration> for Nanos {
    fn from(duration: Duration) -> Self {
        Self::saturating_from(duration.as_nanos())
    }
}

impl fmt::Display for Nanos {
    /// As the configuration writes it: in the largest unit that leaves no remainder (`250ms`), or, where that takes too many
    /// digits, in the largest unit that fits with up to three decimals (`333.333ms`).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let exact = TIME_UNITS.iter().find(|(unit, _)| self.0.checked_rem(*unit) == Some(0));
        match exact {
            Some((unit, name)) if self.0 < unit.saturating_mul(10_000) => {
                write!(f, "{}{name}", self.0.checked_div(*unit).unwrap_or(0))
            }
            _ => {
                let (unit, name) = TIME_UNITS.iter().find(|(unit, _)| self.0 >= *unit).unwrap_or(&(1, "ns"));
                let whole = self.0.checked_div(*unit).unwrap_or(0);
                let thousandths = u128::from(self.0.checked_rem(*unit).unwrap_or(0))
                    .saturating_mul(1000)
                    .checked_div(u128::from(*unit))
                    .unwrap_or(0);
                match thousandths {
                    0 => write!(f, "{whole}{name}"),
                    _ => {
                        let decimals = format!("{thousandths:03}");
                        write!(f, "{whole}.{}{name}", decimals.trim_end_matches('0'))
                    }
                }
            }
        }
    }
}

/// How far one clock is ahead of another, in nanoseconds; behind if negative. Arithmetic saturates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockOffset(i64);

impl ClockOffset {
    /// Both clocks show the same time.
    pub const ZERO: Self = Self(0);

    /// This many nanoseconds ahead.
    pub const fn new(nanos: i64) -> Self {
        Self(nanos)
    }

    /// How far a clock that shows `this` is ahead of one that shows `other`.
    pub fn between(this: Nanos, other: Nanos) -> Self {
        let ahead = i128::from(this.0).saturating_sub(i128::from(other.0));
        Self(i64::try_from(ahead.clamp(i64::MIN.into(), i64::MAX.into())).unwrap_or_default())
    }

    /// The number of nanoseconds.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// Seconds as a float, for reports only.
    #[expect(clippy::cast_precision_loss, reason = "a report, never a decision")]
    pub const fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// How far the other clock is ahead of this one.
    #[must_use]
    pub const fn reversed(self) -> Self {
        Self(self.0.saturating_neg())
    }

    /// This offset minus `other`, saturating.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The remainder of this offset after whole periods, with the same sign.
    #[must_use]
    pub fn beyond_whole(self, period: Nanos) -> Self {
        let rest = i128::from(self.0).checked_rem(i128::from(period.0)).unwrap_or(0);
        Self(i64::try_from(rest).unwrap_or_default())
    }
}

/// Tokens per time as an exact ratio: `tokens` every `period` nanoseconds.
///
/// Kept as it was written (`10/s` is 10 per 10⁹ ns, `2.5/s` is 25 per 10¹⁰ ns) unless the numerator is above
/// [`Rate::MAX_TOKENS`], when it is reduced. Nothing is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    tokens: NonZeroU64,
    period: NonZeroU64,
}

impl Rate {
    /// The largest numerator. Up to it, a time in units of 1 ns / numerator fits the states that algorithms keep.
    pub const MAX_TOKENS: u64 = 1 << 33;

    /// `tokens` every `period`; `None` if either is zero or the reduced numerator is above [`Rate::MAX_TOKENS`].
    pub fn new(tokens: u64, period: Nanos) -> Option<Self> {
        let (mut tokens, mut period) = (NonZeroU64::new(tokens)?, NonZeroU64::new(period.get())?);
        if tokens.get() > Self::MAX_TOKENS {
            let divisor = greatest_common_divisor(tokens.get().into(), period.get().into());
            tokens = NonZeroU64::new(tokens.get().checked_div(u64::try_from(divisor).ok()?)?)?;
            period = NonZeroU64::new(period.get().checked_div(u64::try_from(divisor).ok()?)?)?;
        }
        (tokens.get() <= Self::MAX_TOKENS).then_some(Self { tokens, period })
    }

    /// The order of this rate and `other`: the slower rate is less.
    pub fn compare(self, other: Self) -> Ordering {
        let product = |one: NonZeroU64, two: NonZeroU64| u128::from(one.get()).saturating_mul(u128::from(two.get()));
        product(self.tokens, other.period).cmp(&product(other.tokens, self.period))
    }

    /// Tokens per [`Rate::period`].
    pub const fn tokens(self) -> u64 {
        self.tokens.get()
    }

    /// The time in which [`Rate::tokens`] come.
    pub const fn period(self) -> Nanos {
        Nanos(self.period.get())
    }

    /// The same rate over the shortest period that is also a multiple of `period`. If its numerator would be above
    /// [`Rate::MAX_TOKENS`], or the period too long, the period is a part of that, as long as fits; `None` if no part of it is
    /// found.
    pub fn over_multiple_of(self, period: Nanos) -> Option<Self> {
        const PARTS: u128 = 1 << 16;
        let common = greatest_common_divisor(self.tokens.get().into(), self.period.get().into());
        let tokens = u128::from(self.tokens.get()).checked_div(common)?;
        let shortest = u128::from(self.period.get()).checked_div(common)?;
        let factor = u128::from(period.get()).checked_div(greatest_common_divisor(shortest, period.get().into()))?;
        let most = u128::from(Self::MAX_TOKENS).checked_div(tokens)?.min(u128::from(u64::MAX).checked_div(shortest)?);
        let fewest_parts = factor.checked_next_multiple_of(most)?.checked_div(most)?;
        let mut parts = fewest_parts..fewest_parts.saturating_add(PARTS);
        let parts = parts.find(|parts| factor.checked_rem(*parts) == Some(0))?;
        let factor = factor.checked_div(parts)?;
        let tokens = u64::try_from(tokens.checked_mul(factor)?).ok().and_then(NonZeroU64::new)?;
        let period = u64::try_from(shortest.checked_mul(factor)?).ok().and_then(NonZeroU64::new)?;
        Some(Self { tokens, period })
    }

    /// Tokens per second as a float, for metrics, pictures and the algorithms that are defined in doubles.
    #[expect(clippy::cast_precision_loss, reason = "exact below 2^53, as the algorithms in doubles define it")]
    pub fn per_second(self) -> f64 {
        self.tokens.get() as f64 * 1e9 / self.period.get() as f64
    }

    /// The interval between tokens in words: `one every 100ms`. Where rounding it to nanoseconds would distort a rate, the
    /// words have as many tokens as are exact: `5 every 1ns`.
    pub fn describe_interval(self) -> String {
        const SHORT: Nanos = Nanos(1000);
        let interval = self.time_for(1);
        let is_exact = u128::from(interval.0).checked_mul(self.tokens.get().into()) == Some(self.period.get().into());
        if is_exact || interval > SHORT {
            return format!("one every {interval}");
        }
        let divisor = greatest_common_divisor(self.tokens.get().into(), self.period.get().into());
        let reduced = |number: NonZeroU64| u128::from(number.get()).checked_div(divisor).unwrap_or_default();
        format!("{} every {}", reduced(self.tokens), Nanos::saturating_from(reduced(self.period)))
    }

    /// The time in which `tokens` come at this rate, rounded up to the next nanosecond.
    pub fn time_for(self, tokens: u64) -> Nanos {
        let scaled = u128::from(tokens).saturating_mul(u128::from(self.period.get()));
        Nanos::saturating_from(scaled.div_ceil(u128::from(self.tokens.get())))
    }
}

impl fmt::Display for Rate {
    /// In the configuration's syntax, without rounding.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let period = self.period().to_exact_string();
        write!(
            f,
            "{}/{}",
            self.tokens,
            period.strip_prefix('1').filter(|unit| !unit.starts_with(|c: char| c.is_ascii_digit())).unwrap_or(&period)
        )
    }
}

/// The largest number that divides both; the other one where one is zero.
pub fn greatest_common_divisor(a: u128, b: u128) -> u128 {
    let (mut a, mut b) = (a, b);
    while let Some(rest) = a.checked_rem(b) {
        (a, b) = (b, rest);
    }
    a
}

/// `amount · numerator / denominator`, rounded up; exact wherever the reduced product fits 128 bits, and rounded up a
/// little more where it does not. A denominator of zero gives the largest number.
pub fn scale_ceil(amount: u128, numerator: u128, denominator: u128) -> u128 {
    let divisor = greatest_common_divisor(numerator, denominator).max(1);
    let (Some(numerator), Some(denominator)) = (numerator.checked_div(divisor), denominator.checked_div(divisor))
    else {
        return u128::MAX;
    };
    if denominator == 0 {
        return u128::MAX;
    }
    match amount.checked_mul(numerator) {
        Some(product) => product.div_ceil(denominator),
        None => amount.div_ceil(denominator).saturating_mul(numerator),
    }
}

/// The tokens a request takes. Zero is legal: such a request is always admitted and changes nothing.
pub type Cost = u64;

/// The key of a bucket: a keyed 128-bit hash of the key's parts (see `ruleset::key`). States in memory are found by its
/// lower half, the fingerprint.
///
/// Aligned like a `u64`: a value aligned to 16 bytes, as a `u128` is, takes the slow path of the allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(Rust, packed(8))]
pub struct LimitKey(pub u128);

impl LimitKey {
    /// The number of bits of a fingerprint that decide which gateway owns the key.
    const PARTITION_BITS: u32 = 16;

    /// The lower half, by which states in memory are found: two keys with the same one share a bucket. Of ten million keys
    /// any two do so with a probability of 3 in a million.
    #[expect(clippy::cast_possible_truncation, reason = "the half is cut out")]
    pub const fn fingerprint(self) -> u64 {
        self.0 as u64
    }

    /// A key with this fingerprint; the upper half is zero.
    pub const fn of_fingerprint(fingerprint: u64) -> Self {
        Self(fingerprint as u128)
    }

    /// The upper bits of the fingerprint, which decide which gateway owns the key where gateways divide keys among
    /// themselves.
    pub const fn hash_partition(self) -> u32 {
        (self.fingerprint() >> (u64::BITS - Self::PARTITION_BITS)) as u32
    }

    /// This key in the partition of `other`, so that both have one owner. Keys of one partition differ in the other 48 bits
    /// of their fingerprints: of 100,000 keys of one customer any two share a bucket with a probability of 2 in 100,000.
    #[must_use]
    pub const fn in_partition_of(self, other: Self) -> Self {
        const REST: u128 = (u64::MAX >> LimitKey::PARTITION_BITS) as u128;
        const PARTITION: u128 = u64::MAX as u128 & !REST;
        Self((self.0 & !PARTITION) | (other.0 & PARTITION))
    }
}

/// A number of up to 96 bits in 12 bytes: a point in time in units of 1 ns / numerator of a rate.
///
/// Exists so that three cells of a table, each of a key's fingerprint and such a state, fit one line of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FineTime([u32; 3]);

impl FineTime {
    /// The number of bits.
    pub const BITS: u32 = 96;

    /// The number.
    pub fn get(self) -> u128 {
        let [high, middle, low] = self.0;
        u128::from(high) << 64 | u128::from(middle) << 32 | u128::from(low)
    }

    /// The same moment on a clock that is ahead by `by`, saturating; a nanosecond has `units` of these units.
    #[must_use]
    pub fn shifted(self, by: ClockOffset, units: u64) -> Self {
        let distance = u128::from(by.0.unsigned_abs()).saturating_mul(units.into());
        Self::saturating_from(match by.0 < 0 {
            true => self.get().saturating_sub(distance),
            false => self.get().saturating_add(distance),
        })
    }

    /// This number, saturating at 2⁹⁶ − 1. Algorithms refuse parameters with which a state could reach that.
    #[expect(clippy::cast_possible_truncation, reason = "the words are cut out of a number of at most 96 bits")]
    pub fn saturating_from(count: u128) -> Self {
        let count = count.min((1 << Self::BITS) - 1);
        Self([(count >> 64) as u32, (count >> 32) as u32, count as u32])
    }
}

/// A value aligned to 4 bytes.
///
/// Exists so that a state of 20 bytes does not take 24: a cell of a table stores it after a number of 4 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(Rust, packed(4))]
pub struct Packed<T>(T);

impl<T: Copy> Packed<T> {
    /// `value`, packed.
    pub const fn new(value: T) -> Self {
        Self(value)
    }

    /// The value.
    pub const fn get(self) -> T {
        self.0
    }
}

impl<T: Copy + Serialize> Serialize for Packed<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.get().serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Packed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_too_short_for_nanoseconds_has_several_tokens() {
        let interval = |tokens, period| Rate::new(tokens, period).unwrap().describe_interval();
        assert_eq!(interval(5_000_000_000, Nanos::SECOND), "5 every 1ns");
        assert_eq!(interval(3_333_333_333, Nanos::SECOND), "3333333333 every 1s");
        assert_eq!(interval(600_000_000, Nanos::SECOND), "3 every 5ns");
        assert_eq!(interval(500_000_000, Nanos::SECOND), "one every 2ns");
        assert_eq!(interval(3, Nanos::SECOND), "one every 333.333ms");
    }

    #[test]
    fn times_are_shown_as_they_are_written() {
        let shown = |nanos| Nanos::new(nanos).to_string();
        assert_eq!(shown(0), "0s");
        assert_eq!(shown(250_000_000), "250ms");
        assert_eq!(shown(90_000_000_000), "90s");
        assert_eq!(shown(86_400_000_000_000), "1d");
        assert_eq!(shown(1_500_000_000), "1500ms");
        assert_eq!(shown(333_333_334), "333.333ms");
        assert_eq!(Nanos::new(333_333_334).to_exact_string(), "333333334ns");
        assert_eq!(Nanos::ZERO.to_exact_string(), "0s");
    }

    #[test]
    fn rates_stay_exact_ratios() {
        assert_eq!(Rate::new(7, Nanos::from_secs(13)).map(|rate| rate.to_string()).as_deref(), Some("7/13s"));
        assert_eq!(
            Rate::new(2_000_000_000, Nanos::SECOND).map(|rate| rate.to_string()).as_deref(),
            Some("2000000000/s")
        );
        assert_eq!(
            Rate::new(1, Nanos::new(333_333_333)).map(|rate| rate.to_string()).as_deref(),
            Some("1/333333333ns")
        );
        assert_eq!(Rate::new(1 << 62, Nanos::new(1 << 40)).map(Rate::tokens), Some(1 << 22));
        assert_eq!(Rate::new(0, Nanos::SECOND), None);
        assert_eq!(Rate::new((1 << 33) + 1, Nanos::SECOND), None);
    }

    #[test]
    fn a_rate_can_be_said_over_a_period_in_common() {
        let rate = |tokens, nanos| Rate::new(tokens, Nanos::new(nanos)).unwrap();
        assert_eq!(rate(10, 1000).over_multiple_of(Nanos::new(400)), Some(rate(4, 400)));
        assert_eq!(rate(3, 1000).over_multiple_of(Nanos::new(400)), Some(rate(6, 2000)));
        assert_eq!(rate(3, 1000).over_multiple_of(Nanos::ZERO), None);
        // only a ninth of the period fits
        let ninth = ((1 << 33) + 1) / 9;
        assert_eq!(rate(3, 1000).over_multiple_of(Nanos::new((1 << 33) + 1)), Some(rate(3 * ninth, 1000 * ninth)));
        assert_eq!(rate(1, 1 << 40).over_multiple_of(Nanos::MAX), None);
    }

    #[test]
    fn a_fine_time_keeps_96_bits_and_saturates() {
        for count in [0, 1, u128::from(u64::MAX), (1 << 96) - 1] {
            assert_eq!(FineTime::saturating_from(count).get(), count);
        }
        assert_eq!(FineTime::saturating_from(u128::MAX).get(), (1 << 96) - 1);
    }
}
