//! A strict reader of Prometheus' text exposition format.

use std::collections::{BTreeMap, HashMap};

/// The metrics of one scrape.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// The samples by their names.
    samples: HashMap<String, Vec<Sample>>,
    /// The types by the metrics' names.
    pub types: BTreeMap<String, String>,
}

/// One sample.
#[derive(Clone, Debug)]
pub struct Sample {
    pub labels: BTreeMap<String, String>,
    pub value: f64,
}

impl Metrics {
    /// Reads a scrape; fails on anything but help, types and samples of announced metrics.
    #[track_caller]
    pub fn parse(text: &str) -> Self {
        let mut metrics = Self::default();
        let mut helped = None;
        assert!(text.ends_with('\n'));
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, words) = help.split_once(' ').unwrap();
                assert!(!words.is_empty(), "{line}");
                helped = Some(name.to_owned());
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap();
                assert_eq!(helped.as_deref(), Some(name), "{line}");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                let before = metrics.types.insert(name.to_owned(), kind.to_owned());
                assert_eq!(before, None, "{line}");
            } else {
                metrics.sample(line);
            }
        }
        metrics
    }

    fn sample(&mut self, line: &str) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let value = value.parse().unwrap_or_else(|_| panic!("no value: {line}"));
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, read_labels(labels.strip_suffix('}').unwrap())),
            None => (series, BTreeMap::new()),
        };
        let metric = ["_bucket", "_sum", "_count"].iter().find_map(|end| {
            let metric = name.strip_suffix(end)?;
            (self.types.get(metric).map(String::as_str) == Some("histogram")).then_some(metric)
        });
        assert!(self.types.contains_key(metric.unwrap_or(name)), "{line} was not announced");
        let samples = self.samples.entry(name.to_owned()).or_default();
        assert!(!samples.iter().any(|sample| sample.labels == labels), "{line} is there twice");
        samples.push(Sample { labels, value });
    }

    /// All samples of this name.
    pub fn all(&self, name: &str) -> &[Sample] {
        self.samples.get(name).map_or(&[], Vec::as_slice)
    }

    /// The names of all samples.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.samples.keys().map(String::as_str)
    }

    /// The value of the series with exactly these labels.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let wanted: BTreeMap<String, String> =
            labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.all(name).iter().find(|sample| sample.labels == wanted).map(|sample| sample.value)
    }
}

fn read_labels(mut text: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    while !text.is_empty() {
        let (name, rest) = text.split_once("=\"").unwrap();
        let mut value = String::new();
        let mut characters = rest.char_indices();
        let end = loop {
            match characters.next().unwrap() {
                (_, '\\') => value.push(characters.next().unwrap().1),
                (end, '"') => break end,
                (_, other) => value.push(other),
            }
        };
        labels.insert(name.to_owned(), value);
        let rest = rest.split_at(end + 1).1;
        text = rest.strip_prefix(',').unwrap_or(rest);
    }
    labels
}
