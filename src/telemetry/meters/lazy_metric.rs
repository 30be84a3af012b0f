//! What most limits never count on.

use std::sync::OnceLock;

use prometheus::core::{Metric, MetricVec, MetricVecBuilder};

/// A metric whose series is there from when it is first asked for.
pub(super) struct LazyMetric<M> {
    make: Box<dyn Fn() -> M + Send + Sync>,
    made: OnceLock<M>,
}

impl<M: Metric> LazyMetric<M> {
    pub(super) fn new<B: MetricVecBuilder<M = M> + 'static>(of: &MetricVec<B>, labels: &[&str]) -> Self {
        let of = of.clone();
        let labels: Vec<String> = labels.iter().map(|label| (*label).to_owned()).collect();
        Self { make: Box::new(move || of.with_label_values(&labels)), made: OnceLock::new() }
    }

    /// The same, whose series is there from the start where that is `expected`.
    pub(super) fn expected(self, expected: bool) -> Self {
        if expected {
            self.get();
        }
        self
    }

    /// It, if it was asked for.
    pub(super) fn made(&self) -> Option<&M> {
        self.made.get()
    }

    pub(super) fn get(&self) -> &M {
        self.made.get_or_init(&self.make)
    }
}

impl<M: std::fmt::Debug> std::fmt::Debug for LazyMetric<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("LazyMetric").field(&self.made).finish()
    }
}
