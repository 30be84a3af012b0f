//! Values for things that come each with every plan.

use std::sync::OnceLock;

use crate::ruleset::PlanId;

/// Values for things that come each with every plan, made when they are first asked for.
#[derive(Debug)]
pub(super) struct Grid<T> {
    /// The number of plans, and one for no plan.
    plans: usize,
    rows: Vec<OnceLock<Row<T>>>,
}

/// The last value is that for no plan.
type Row<T> = Box<[OnceLock<T>]>;

impl<T> Grid<T> {
    pub(super) fn new(rows: usize, plans: usize) -> Self {
        Self { plans, rows: (0..rows).map(|_| OnceLock::new()).collect() }
    }

    /// How many values there may be.
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

    /// The values that were made, each with its row and the position of its plan; none comes behind the last plan.
    pub(super) fn made(&self) -> impl Iterator<Item = (usize, usize, &T)> {
        let rows = self.rows.iter().enumerate().filter_map(|(number, row)| Some((number, row.get()?)));
        rows.flat_map(|(number, row)| {
            row.iter().enumerate().filter_map(move |(plan, value)| Some((number, plan, value.get()?)))
        })
    }
}
