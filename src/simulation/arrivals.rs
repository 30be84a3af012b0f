//! Generated traffic: one key, cost 1, a mean rate and a shape.
//!
//! The same parameters give the same traffic on every machine: the code uses integers only, and a generator (ChaCha with
//! 8 rounds) whose output its definition fixes. Only the shape `poisson` draws random numbers.

use std::num::NonZeroU64;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::simulation::trace::TraceError;
use crate::simulation::{Arrival, KeyNumber, Traffic};
use crate::units::{Nanos, Rate};

/// How arrivals are spread over time. Whatever the shape, the mean is the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Evenly: the n-th (from 0) after n/rate, rounded down.
    Uniform,
    /// Independent gaps, exponentially distributed, to 2⁻³² of the mean gap; the first arrival is one gap after 0.
    Poisson {
        /// The generator's seed.
        seed: u64,
    },
    /// `size` requests at one instant, the first such burst at 0, and one burst every `size`/rate.
    Burst {
        /// How many come at once.
        size: NonZeroU64,
    },
    /// Evenly for `on`, from 0 on, then nothing for `off`, and again. While it is on, the rate is higher by
    /// (on + off)/on.
    OnOff {
        /// The length of the busy phase, longer than nothing.
        on: Nanos,
        /// The length of the silence after it.
        off: Nanos,
    },
}

/// Requests at a mean rate for some time.
#[derive(Debug)]
pub struct Arrivals {
    rate: Rate,
    until: Nanos,
    shape: Shape,
    count: u64,
    random: ChaCha8Rng,
    poisson: FinePoint,
}

/// A point in time: whole nanoseconds, and a rest in units of 1 ns / (2³² · numerator of the rate).
#[derive(Clone, Copy, Debug, Default)]
struct FinePoint {
    nanos: u64,
    rest: u128,
}

// === impl Arrivals ===

impl Arrivals {
    /// All arrivals before `until`. `None` if the busy phase of `shape` has no length.
    pub fn new(rate: Rate, until: Nanos, shape: Shape) -> Option<Self> {
        let seed = match shape {
            Shape::OnOff { on: Nanos::ZERO, .. } => return None,
            Shape::Poisson { seed } => seed,
            _ => 0,
        };
        let random = ChaCha8Rng::seed_from_u64(seed);
        Some(Self { rate, until, shape, count: 0, random, poisson: FinePoint::default() })
    }

    /// n/rate, rounded down.
    fn evenly(&self, n: u64) -> Nanos {
        let scaled = u128::from(n) * u128::from(self.rate.period().get());
        Nanos::saturating_from(scaled / u128::from(self.rate.tokens()))
    }

    fn at(&mut self, n: u64) -> Nanos {
        match self.shape {
            Shape::Uniform => self.evenly(n),
            Shape::Poisson { .. } => {
                let gap = exponential(|| self.random.next_u64());
                self.poisson.advance(gap, self.rate);
                Nanos::new(self.poisson.nanos)
            }
            Shape::Burst { size } => self.evenly(n - n % size),
            Shape::OnOff { on, off } => {
                let (on, cycle) = (u128::from(on.get()), u128::from(on.get()) + u128::from(off.get()));
                // within the busy phases alone, joined together, arrivals are even at the higher rate
                let busy = u128::from(self.evenly(n).get()) * on / cycle;
                Nanos::saturating_from(busy / on * cycle + busy % on)
            }
        }
    }
}

impl Traffic for Arrivals {
    fn next_arrival(&mut self) -> Result<Option<Arrival>, TraceError> {
        let at = self.at(self.count);
        if at >= self.until {
            return Ok(None);
        }
        self.count += 1;
        Ok(Some(Arrival { at, key: KeyNumber(0), cost: 1, set_rate: None }))
    }

    fn key(&self, _key: KeyNumber) -> &[u8] {
        b"a"
    }

    fn line(&self) -> u64 {
        self.count
    }
}

// === impl FinePoint ===

impl FinePoint {
    /// Moves on by `gap`/2³² mean gaps of `rate`, exactly; stays at the largest time once it is there.
    fn advance(&mut self, gap: u64, rate: Rate) {
        let per_nano = u128::from(rate.tokens()) << 32;
        let total = u128::from(gap) * u128::from(rate.period().get()) + self.rest;
        let nanos = u64::try_from(total / per_nano).unwrap_or(u64::MAX);
        *self = Self { nanos: self.nanos.saturating_add(nanos), rest: total % per_nano };
    }
}

/// A number from the exponential distribution of mean 1, in units of 2⁻³².
///
/// Von Neumann's method (1951), which compares uniform numbers and needs no logarithm, so that the result does not depend
/// on a machine's floating point: draw until a number exceeds the one before it. If that took an even count, the result
/// is the first number drawn plus the count of failures so far; otherwise it is one more failure.
fn exponential(mut uniform: impl FnMut() -> u64) -> u64 {
    let mut failures = 0_u64;
    loop {
        let first = uniform();
        let (mut last, mut drawn) = (first, 1_u32);
        loop {
            let next = uniform();
            drawn += 1;
            if next > last {
                break;
            }
            last = next;
        }
        if drawn.is_multiple_of(2) {
            return (failures << 32) + (first >> 32);
        }
        failures += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(rate: (u64, Nanos), until: Nanos, shape: Shape) -> Vec<u64> {
        let rate = Rate::new(rate.0, rate.1).expect("a rate");
        let mut arrivals = Arrivals::new(rate, until, shape).expect("a shape");
        std::iter::from_fn(|| arrivals.next_arrival().expect("no file to fail")).map(|row| row.at.get()).collect()
    }

    #[test]
    fn uniform_arrivals_lie_at_the_multiples_rounded_down() {
        let third = (3, Nanos::SECOND);
        assert_eq!(
            times(third, Nanos::new(1_333_333_334), Shape::Uniform),
            [0, 333_333_333, 666_666_666, 1_000_000_000, 1_333_333_333]
        );
        assert_eq!(times(third, Nanos::SECOND, Shape::Uniform).len(), 3);
        assert!(times(third, Nanos::ZERO, Shape::Uniform).is_empty());
    }

    #[test]
    fn bursts_come_at_one_instant_and_keep_the_mean() {
        let size = NonZeroU64::new(3).expect("not zero");
        let times = times((2, Nanos::SECOND), Nanos::from_secs(3), Shape::Burst { size });
        assert_eq!(times, [0, 0, 0, 1_500_000_000, 1_500_000_000, 1_500_000_000]);
    }

    #[test]
    fn on_off_is_silent_between_its_phases_and_keeps_the_mean() {
        let shape = Shape::OnOff { on: Nanos::SECOND, off: Nanos::from_secs(3) };
        let times = times((1, Nanos::SECOND), Nanos::from_secs(8), shape);
        let quarter = 250_000_000;
        assert_eq!(times, [0, 1, 2, 3, 16, 17, 18, 19].map(|quarters| quarters * quarter));
        assert_eq!(
            Arrivals::new(
                Rate::new(1, Nanos::SECOND).expect("a rate"),
                Nanos::SECOND,
                Shape::OnOff { on: Nanos::ZERO, off: Nanos::SECOND }
            )
            .map(|_| ()),
            None
        );
    }

    #[test]
    fn poisson_arrivals_are_fixed_by_the_seed_on_every_machine() {
        let arrivals = |seed| times((20, Nanos::SECOND), Nanos::from_secs(60), Shape::Poisson { seed });
        assert_eq!(arrivals(1), arrivals(1));
        assert_ne!(arrivals(1), arrivals(2));
        assert_eq!(arrivals(1).first_chunk::<4>(), Some(&[60_966_229, 96_496_740, 151_469_716, 247_087_462]));
    }

    #[test]
    fn gaps_of_poisson_arrivals_are_exponentially_distributed() {
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let unit = f64::from(2_u32.pow(16)).powi(2);
        #[expect(clippy::cast_precision_loss, reason = "a statistic")]
        let gaps: Vec<f64> = (0..200_000).map(|_| exponential(|| random.next_u64()) as f64 / unit).collect();
        let count = 200_000.0;
        let mean = gaps.iter().sum::<f64>() / count;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / count;
        assert!((mean - 1.0).abs() < 0.01, "mean {mean}");
        assert!((variance - 1.0).abs() < 0.02, "variance {variance}");
        for point in [0.1_f64, 0.5, 1.0, 2.0, 4.0] {
            let above = (0_u32..).zip(gaps.iter().filter(|gap| **gap > point)).count();
            #[expect(clippy::cast_precision_loss, reason = "a statistic")]
            let share = above as f64 / count;
            assert!((share - (-point).exp()).abs() < 0.005, "share above {point}: {share}");
        }
    }

    #[test]
    fn extreme_rates_neither_overflow_nor_stall() {
        assert_eq!(times((1, Nanos::from_secs(365 * 86_400)), Nanos::from_secs(86_400), Shape::Uniform), [0]);
        let dense = times((2_000_000_000, Nanos::SECOND), Nanos::new(5), Shape::Uniform);
        assert_eq!(dense, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]);
        let dense = times((2_000_000_000, Nanos::SECOND), Nanos::new(100_000), Shape::Poisson { seed: 3 });
        assert!((199_000..201_000).contains(&dense.len()), "{}", dense.len());
        assert!(times((1, Nanos::MAX), Nanos::MAX, Shape::Poisson { seed: 3 }).len() < 20);
    }
}
