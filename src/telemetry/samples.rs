//! Metrics whose values are kept elsewhere, and are read when they are scraped.

use std::collections::BTreeMap;

use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};

use super::names::{self, Name};
use super::offenders::Offender;

/// The samples of one scrape, by the names of their metrics.
#[derive(Debug, Default)]
pub struct Samples(BTreeMap<&'static str, Series>);

/// The series of a metric, by the names and values of their labels.
#[derive(Debug)]
struct Series {
    help: &'static str,
    values: BTreeMap<Vec<(&'static str, String)>, f64>,
}

impl Samples {
    /// Adds the sample of the series with these values of its labels. A metric whose name ends in `_total` is a counter,
    /// another one a gauge.
    pub fn push(&mut self, name: &'static Name, labels: &[&str], value: f64) {
        let mut named: Vec<_> = name.labels.iter().copied().zip(labels.iter().map(|&text| text.to_owned())).collect();
        named.sort_unstable();
        let new = || Series { help: name.help, values: BTreeMap::new() };
        self.0.entry(name.name).or_insert_with(new).values.insert(named, value);
    }

    /// Adds the sample of a number, or of a condition: 1 if it holds.
    #[expect(clippy::cast_precision_loss, reason = "a report")]
    pub fn push_count(&mut self, name: &'static Name, labels: &[&str], count: impl TryInto<u64>) {
        self.push(name, labels, count.try_into().unwrap_or(u64::MAX) as f64);
    }

    /// Adds the keys that were denied most. Keys that are masked alike share a series, which has their sum.
    pub fn push_top_denied<'o>(&mut self, offenders: impl Iterator<Item = &'o Offender>) {
        let mut sums: BTreeMap<_, (u64, u64)> = BTreeMap::new();
        for Offender { subject, denied, error } in offenders {
            let sum = sums.entry((subject.limit.as_str(), subject.line())).or_default();
            *sum = (sum.0.saturating_add(*denied), sum.1.saturating_add(*error));
        }
        for ((limit, key), (denied, error)) in sums {
            self.push_count(&names::LIMIT_TOP_DENIED_REQUESTS, &[limit, &key], denied);
            self.push_count(&names::LIMIT_TOP_DENIED_ERROR_REQUESTS, &[limit, &key], error);
        }
    }

    /// The samples and the `registered` metrics, sorted by name as these are. A metric without labels always has its one
    /// series.
    pub(super) fn and(mut self, registered: Vec<MetricFamily>) -> Vec<MetricFamily> {
        let is_registered = |name: &str| registered.binary_search_by(|family| family.name().cmp(name)).is_ok();
        for name in names::ALL.iter().filter(|name| name.labels.is_empty()) {
            if !self.0.contains_key(name.name) && !is_registered(name.name) {
                self.push_count(name, &[], 0_u64);
            }
        }
        let mut families: Vec<_> = self.0.into_iter().map(|(name, series)| series.family(name)).collect();
        families.extend(registered);
        families.sort_by(|one, other| one.name().cmp(other.name()));
        families
    }
}

impl Series {
    fn family(self, name: &str) -> MetricFamily {
        let is_counter = name.ends_with("_total");
        let metric = |(labels, value): (Vec<(&str, String)>, f64)| {
            let mut metric = Metric::from_label(labels.into_iter().map(pair).collect());
            if is_counter {
                let mut counter = Counter::default();
                counter.set_value(value);
                metric.set_counter(counter);
            } else {
                let mut gauge = Gauge::default();
                gauge.set_value(value);
                metric.set_gauge(gauge);
            }
            metric
        };
        let mut family = MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(self.help.to_owned());
        family.set_field_type(if is_counter { MetricType::COUNTER } else { MetricType::GAUGE });
        family.set_metric(self.values.into_iter().map(metric).collect());
        family
    }
}

fn pair((label, value): (&str, String)) -> LabelPair {
    let mut pair = LabelPair::default();
    pair.set_name(label.to_owned());
    pair.set_value(value);
    pair
}
