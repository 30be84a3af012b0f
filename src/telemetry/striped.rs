//! The metrics that every request counts on, in stripes: see [`crate::stripes`].

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use prometheus::core::{Atomic, Desc, Describer, GenericCounter, GenericCounterVec, GenericGauge};
use prometheus::core::{GenericGaugeVec, Metric, MetricVec, MetricVecBuilder};
use prometheus::{HistogramOpts, proto};

use crate::stripes::{self, Striped};

/// A counter that every request may count on.
pub(super) type HotCounter = GenericCounter<StripedU64>;
/// Counters that every request may count on.
pub(super) type HotCounterVec = GenericCounterVec<StripedU64>;
/// A gauge that every request moves.
pub(super) type HotGauge = GenericGauge<StripedI64>;
/// Gauges that every request moves.
pub(super) type HotGaugeVec = GenericGaugeVec<StripedI64>;
/// Histograms that every request may be observed in.
pub(super) type HotHistogramVec = MetricVec<HotHistogramBuilder>;

/// The number of a counter.
#[derive(Debug)]
pub(super) struct StripedU64(Striped<AtomicU64>);

/// The number of a gauge.
#[derive(Debug)]
pub(super) struct StripedI64(Striped<AtomicI64>);

/// A number is the sum of its stripes, each of which wraps.
macro_rules! striped_atomic {
    ($striped:ident, $number:ty) => {
        impl Atomic for $striped {
            type T = $number;

            fn new(value: $number) -> Self {
                let striped = Self(Striped::default());
                striped.inc_by(value);
                striped
            }

            /// Loses numbers if other threads write at the same time.
            fn set(&self, value: $number) {
                self.0.iter().for_each(|stripe| stripe.store(0, Ordering::Relaxed));
                self.inc_by(value);
            }

            fn get(&self) -> $number {
                self.0.iter().fold(0, |sum: $number, stripe| sum.wrapping_add(stripe.load(Ordering::Relaxed)))
            }

            fn inc_by(&self, delta: $number) {
                if let Some(stripe) = self.0.mine() {
                    stripe.fetch_add(delta, Ordering::Relaxed);
                }
            }

            fn dec_by(&self, delta: $number) {
                self.inc_by(delta.wrapping_neg());
            }
        }
    };
}

striped_atomic!(StripedU64, u64);
striped_atomic!(StripedI64, i64);

/// A histogram that every request may be observed in.
#[derive(Clone, Debug)]
pub(super) struct HotHistogram(Arc<Buckets>);

#[derive(Debug)]
struct Buckets {
    labels: Vec<proto::LabelPair>,
    /// The bounds, which all histograms of a family share: an observation finds them in the cache.
    upper_bounds: Arc<[f64]>,
    /// Each stripe holds the sum of the observed values and then the buckets.
    stripes: Vec<Box<[CacheLine]>>,
}

/// A cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct CacheLine([AtomicU64; 8]);

// === impl HotHistogram ===

impl HotHistogram {
    fn new(upper_bounds: Arc<[f64]>, labels: Vec<proto::LabelPair>) -> Self {
        // beside the buckets with bounds, a stripe has the sum and a bucket for values above all bounds
        let lines = upper_bounds.len().saturating_add(2).div_ceil(8);
        let stripe = |_| (0..lines).map(|_| CacheLine::default()).collect();
        let stripes = (0..stripes::count()).map(stripe).collect();
        Self(Arc::new(Buckets { labels, upper_bounds, stripes }))
    }

    /// Adds an observation.
    pub(super) fn observe(&self, value: f64) {
        let Some(mine) = self.0.stripes.get(stripes::current()) else { return };
        let bucket = self.0.upper_bounds.iter().position(|bound| value <= *bound);
        let bucket = bucket.unwrap_or(self.0.upper_bounds.len());
        if let Some(count) = number(mine, bucket.saturating_add(1)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(sum) = number(mine, 0) {
            let add = |sum| Some((f64::from_bits(sum) + value).to_bits());
            let _always_set = sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        }
    }
}

impl Buckets {
    /// The numbers at `position` in all stripes.
    fn of_all(&self, position: usize) -> impl Iterator<Item = u64> {
        self.stripes.iter().filter_map(move |stripe| Some(number(stripe, position)?.load(Ordering::Relaxed)))
    }
}

/// The number at this position of a stripe.
fn number(stripe: &[CacheLine], position: usize) -> Option<&AtomicU64> {
    let CacheLine(numbers) = stripe.get(position / 8)?;
    numbers.get(position % 8)
}

impl Metric for HotHistogram {
    fn metric(&self) -> proto::Metric {
        let of = &self.0;
        let (mut count, mut buckets) = (0_u64, Vec::with_capacity(of.upper_bounds.len()));
        for position in 1..=of.upper_bounds.len().saturating_add(1) {
            count = of.of_all(position).fold(count, u64::wrapping_add);
            if let Some(bound) = of.upper_bounds.get(position.saturating_sub(1)) {
                let mut bucket = proto::Bucket::default();
                bucket.set_cumulative_count(count);
                bucket.set_upper_bound(*bound);
                buckets.push(bucket);
            }
        }
        let mut histogram = proto::Histogram::default();
        histogram.set_sample_sum(of.of_all(0).map(f64::from_bits).sum());
        histogram.set_sample_count(count);
        histogram.set_bucket(buckets);
        let mut metric = proto::Metric::default();
        metric.set_label(of.labels.clone());
        metric.set_histogram(histogram);
        metric
    }
}

/// Makes the histograms of a vector.
#[derive(Clone, Debug)]
pub(super) struct HotHistogramBuilder {
    upper_bounds: Arc<[f64]>,
}

impl MetricVecBuilder for HotHistogramBuilder {
    type M = HotHistogram;
    type P = HistogramOpts;

    fn build<V: AsRef<str>>(&self, opts: &HistogramOpts, values: &[V]) -> Result<HotHistogram, prometheus::Error> {
        let desc: Desc = opts.describe()?;
        let pair = |(name, value): (&String, &V)| {
            let mut pair = proto::LabelPair::default();
            pair.set_name(name.clone());
            pair.set_value(value.as_ref().to_owned());
            pair
        };
        let mut labels: Vec<_> = desc.variable_labels.iter().zip(values).map(pair).collect();
        labels.sort();
        Ok(HotHistogram::new(Arc::clone(&self.upper_bounds), labels))
    }
}

/// Histograms with these labels.
pub(super) fn histograms(opts: HistogramOpts, labels: &[&str]) -> Result<HotHistogramVec, prometheus::Error> {
    let labels = labels.iter().map(|label| (*label).to_owned()).collect();
    let builder = HotHistogramBuilder { upper_bounds: opts.buckets.as_slice().into() };
    MetricVec::create(proto::MetricType::HISTOGRAM, builder, opts.variable_labels(labels))
}

#[cfg(test)]
mod tests {
    use prometheus::core::Collector;

    use super::*;

    #[test]
    fn the_stripes_of_all_threads_are_one_number() {
        let counter = HotCounter::new("a", "b").unwrap();
        let gauge = HotGauge::new("a", "b").unwrap();
        let histograms = histograms(HistogramOpts::new("h", "help").buckets(vec![1.0, 2.0]), &["z", "a"]).unwrap();
        std::thread::scope(|scope| {
            for worker in 0..5_u32 {
                let (counter, gauge, histograms) = (&counter, &gauge, &histograms);
                scope.spawn(move || {
                    stripes::enter(worker as usize);
                    counter.inc_by(3);
                    gauge.dec();
                    histograms.with_label_values(&["1", "2"]).observe(f64::from(worker));
                });
            }
        });
        assert_eq!((counter.get(), gauge.get()), (15, -5));
        let families = histograms.collect();
        let metric = &families[0].get_metric()[0];
        let labels: Vec<_> = metric.get_label().iter().map(|label| (label.name(), label.value())).collect();
        assert_eq!(labels, [("a", "2"), ("z", "1")]);
        let histogram = metric.get_histogram();
        let buckets: Vec<_> = histogram.get_bucket().iter().map(|bucket| bucket.cumulative_count()).collect();
        assert_eq!(buckets, [2, 3]);
        assert_eq!((histogram.get_sample_count(), histogram.get_sample_sum()), (5, 10.0));
        gauge.set(7);
        assert_eq!(gauge.get(), 7);
    }
}
