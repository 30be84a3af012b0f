//! Values for each combination of a row (a limit, or a limit of a route) and a plan.

use std::sync::OnceLock;

use prometheus::core::{Metric, MetricVec, MetricVecBuilder};

use crate::ruleset::PlanId;

/// Values for each combination of a row and a plan, made when they are first asked for.
#[derive(Debug)]
pub(super) struct Grid<T> {
    /// The number of plans, plus one for no plan.
    plans: usize,
    rows: Vec<OnceLock<Row<T>>>,
}

/// The last value is the value for no plan.
type Row<T> = Box<[OnceLock<T>]>;

impl<T> Grid<T> {
    pub(super) fn new(rows: usize, plans: usize) -> Self {
        Self { plans, rows: (0..rows).map(|_| OnceLock::new()).collect() }
    }

    /// The most values that there may be.
    pub(super) fn len(&self) -> usize {
        self.rows.len().saturating_mul(self.plans)
    }

    pub(super) fn get(&self, row: usize, plan: Option<PlanId>, make: impl FnOnce() -> T) -> Option<&T> {
        let row = self.rows.get(row)?.get_or_init(|| (0..self.plans).map(|_| OnceLock::new()).collect());
        let value = match plan {
            Some(plan) => row.get(plan.0)?,
            None => row.last()?,
        };
        Some(value.get_or_init(make))
    }

    /// The values that were made, each with its row and its plan.
    pub(super) fn made(&self) -> impl Iterator<Item = (usize, Option<PlanId>, &T)> {
        let rows = self.rows.iter().enumerate().filter_map(|(number, row)| Some((number, row.get()?)));
        rows.flat_map(|(number, row)| {
            let plans = (0..row.len().saturating_sub(1)).map(|plan| Some(PlanId(plan))).chain([None]);
            plans.zip(row).filter_map(move |(plan, value)| Some((number, plan, value.get()?)))
        })
    }
}

/// A metric whose series is created when it is first asked for.
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

    /// The same metric, with its series created at once if it is `expected`.
    pub(super) fn expected(self, expected: bool) -> Self {
        if expected {
            self.get();
        }
        self
    }

    /// The metric, if its series was created.
    pub(super) fn made(&self) -> Option<&M> {
        self.made.get()
    }

    pub(super) fn get(&self) -> &M {
        self.made.get_or_init(&self.make)
    }
}
