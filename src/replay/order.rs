//! Requests in the order in which they came.
//!
//! A line is written when its request ends: where it tells how long that took, the request began so much earlier, and lines
//! are held back until no other can have begun before them. A request that began before one that was shown already comes
//! at the time of that one.

use super::held::Held;
use super::reading::{Line, Spot};
use super::record::Record;
use crate::units::Nanos;

/// What there is to say of the lines that were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disorder {
    /// How many came at the time of the one before, because their own time was earlier.
    pub late: u64,
    /// By how much at most.
    pub by: Nanos,
}

impl Disorder {
    /// One more, which was this much too late.
    pub(super) fn add(&mut self, by: Nanos) {
        self.late += 1;
        self.by = self.by.max(by);
    }

    /// Those and these.
    pub(super) fn and(self, other: Self) -> Self {
        Self { late: self.late + other.late, by: self.by.max(other.by) }
    }
}

/// Puts requests in order.
pub(super) struct Order {
    times_are_starts: bool,
    reorder: Nanos,
    /// The latest time of a line.
    logged: Nanos,
    held: Held,
    shown: Shown,
}

/// Requests that were shown.
#[derive(Default)]
struct Shown {
    /// The time of the last one.
    last: Nanos,
    disorder: Disorder,
}

impl Order {
    /// Before the first line. Lines are held back for `reorder` at most.
    pub(super) fn new(times_are_starts: bool, reorder: Nanos) -> Self {
        Self { times_are_starts, reorder, logged: Nanos::ZERO, held: Held::default(), shown: Shown::default() }
    }

    /// How far the lines were out of order.
    pub(super) const fn disorder(&self) -> Disorder {
        self.shown.disorder
    }

    /// Takes what a line tells, and shows to `each` what no line to come can have begun before.
    pub(super) fn take<E>(
        &mut self,
        spot: Spot,
        record: &Record<'_>,
        each: &mut impl FnMut(Line<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let took = record.took.filter(|_| !self.times_are_starts);
        if took.is_none() && self.held.is_empty() {
            return self.shown.show(spot, record.logged, record, each);
        }
        self.logged = self.logged.max(record.logged);
        self.held.push(record.logged.saturating_sub(took.unwrap_or_default()), spot, record);
        while let Some(began) = self.held.first_began()
            && (began.saturating_add(self.reorder) <= self.logged || self.held.is_too_full())
        {
            self.show_first(began, each)?;
        }
        Ok(())
    }

    /// No line is to come: shows all that is held back.
    pub(super) fn finish<E>(&mut self, each: &mut impl FnMut(Line<'_>) -> Result<(), E>) -> Result<(), E> {
        while let Some(began) = self.held.first_began() {
            self.show_first(began, each)?;
        }
        Ok(())
    }

    /// Shows the first request, which `began` at this time, and lets go of it.
    fn show_first<E>(&mut self, began: Nanos, each: &mut impl FnMut(Line<'_>) -> Result<(), E>) -> Result<(), E> {
        // looked at where it stands: it is large
        let shown = match &self.held.first() {
            Some((spot, record)) => self.shown.show(*spot, began, record, each),
            None => Ok(()),
        };
        self.held.pop();
        shown
    }
}

impl Shown {
    fn show<E>(
        &mut self,
        spot: Spot,
        began: Nanos,
        record: &Record<'_>,
        each: &mut impl FnMut(Line<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if began < self.last {
            self.disorder.add(self.last.saturating_sub(began));
        }
        self.last = self.last.max(began);
        each(Line::Request { spot, at: self.last, record })
    }
}
