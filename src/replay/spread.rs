//! Requests whose timestamps are whole seconds, spread over their seconds.
//!
//! Such a timestamp tells the second of a request, not when within it the request came. The requests of one log and one
//! second are placed at even distances over that second, in the order of their lines: an evenly paced client stays evenly
//! paced. For that the lines of a second are held back until the next one begins. Lines of that second with exact
//! timestamps are held back with them and keep their times.

use super::held::packed::Packed;
use super::held::{MOST_BYTES, MOST_LINES};
use super::order::Disorder;
use super::reading::Spot;
use super::record::Record;
use crate::units::Nanos;

const SECOND: u64 = Nanos::SECOND.get();

/// A packed text that is larger is not kept for its room.
const LARGEST_KEPT: usize = 4 << 20;

/// The lines of one second.
#[derive(Default)]
pub(super) struct Spread {
    /// When the second begins.
    second: Nanos,
    /// Where in it the lines are placed that are held back: not at 0 if there were too many lines before them.
    from: u64,
    told: Packed,
    lines: Vec<Held>,
    /// How many lines each log has whose timestamps are whole seconds.
    counts: Vec<u64>,
    disorder: Disorder,
}

/// A line that is held back.
#[derive(Clone, Copy)]
struct Held {
    /// What it tells stands here.
    told: usize,
    /// Its log, where its timestamp is a whole second.
    spread_with: Option<usize>,
    /// When it was logged, or is taken to have been.
    at: Nanos,
}

impl Spread {
    pub(super) const fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Lines that came after a later second had begun, and are spread over that one.
    pub(super) const fn disorder(&self) -> Disorder {
        self.disorder
    }

    /// Whether lines are held back whose second is over at this time.
    pub(super) fn is_over(&self, logged: Nanos) -> bool {
        !self.is_empty() && logged >= self.second.saturating_add(Nanos::SECOND)
    }

    /// Whether as many lines are held back as may be.
    pub(super) const fn is_full(&self) -> bool {
        self.lines.len() >= MOST_LINES || self.told.bytes() >= MOST_BYTES
    }

    /// Whether a line is to be held back until its second is over.
    pub(super) fn holds(&self, record: &Record<'_>) -> bool {
        match record.within_second {
            // those that tell their duration are put in order by the time at which they began
            Some(_) => self.is_empty() || record.logged >= self.second || record.took.is_none(),
            None => !self.is_empty(),
        }
    }

    /// Holds back a line.
    pub(super) fn push(&mut self, spot: Spot, record: &Record<'_>) {
        if self.is_empty() && self.second != record.logged {
            let begins = record.logged.get() - record.logged.get() % SECOND;
            (self.second, self.from) = (Nanos::new(begins), 0);
        }
        let spread_with = record.within_second.map(|_| spot.log);
        let mut at = record.logged;
        if let Some(log) = spread_with {
            if at < self.second {
                self.disorder.add(self.second.saturating_sub(at));
                at = self.second;
            }
            if self.counts.len() <= log {
                self.counts.resize(log + 1, 0);
            }
            self.counts[log] += 1;
        }
        let told = self.told.push(Nanos::ZERO, spot, record);
        self.lines.push(Held { told, spread_with, at });
    }

    /// Lets go of all lines, in order, each with its place in the second. If the second goes on, because there were too
    /// many lines, they get the first half of what is left of it.
    pub(super) fn release<E>(
        &mut self,
        goes_on: bool,
        mut each: impl FnMut(Spot, &Record<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let left = SECOND - self.from;
        let room = if goes_on { left / 2 } else { left };
        let mut places = vec![0; self.counts.len()];
        for line in &mut self.lines {
            let Some(log) = line.spread_with else { continue };
            let within = self.from + room * places[log] / self.counts[log];
            places[log] += 1;
            line.at = self.second.saturating_add(Nanos::new(within));
        }
        self.lines.sort_by_key(|line| line.at);
        let lines = std::mem::take(&mut self.lines);
        for line in &lines {
            if let Some((spot, mut record)) = self.told.at(line.told, Nanos::ZERO) {
                record.logged = line.at;
                record.within_second = line.spread_with.map(|_| line.at.saturating_sub(self.second));
                each(spot, &record)?;
            }
        }
        self.lines = lines;
        self.lines.clear();
        self.counts.clear();
        self.from = if goes_on { self.from + room } else { 0 };
        if self.told.bytes() > LARGEST_KEPT {
            self.told = Packed::default()
        } else {
            self.told.clear()
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    const S: u64 = 1_700_000_000 * SECOND;

    fn push(spread: &mut Spread, log: usize, line: u64, logged: u64, is_whole: bool) {
        let record = Record {
            logged: Nanos::new(logged),
            within_second: is_whole.then_some(Nanos::ZERO),
            client: Some(Cow::Borrowed(b"192.0.2.1")),
            ..Record::default()
        };
        assert!(spread.holds(&record));
        spread.push(Spot { log, line }, &record);
    }

    /// Log, line, time since `S`, and how far into its second each line is placed.
    fn release(spread: &mut Spread, goes_on: bool) -> Vec<(usize, u64, u64, Option<u64>)> {
        let mut shown = Vec::new();
        let each = |spot: Spot, record: &Record<'_>| {
            let within = record.within_second.map(Nanos::get);
            shown.push((spot.log, spot.line, record.logged.get() - S, within));
            Ok::<(), ()>(())
        };
        spread.release(goes_on, each).unwrap();
        shown
    }

    #[test]
    fn lines_of_each_log_are_spread_and_exact_ones_stay() {
        let mut spread = Spread::default();
        for line in 1..5 {
            push(&mut spread, 0, line, S, true);
        }
        push(&mut spread, 1, 1, S, true);
        push(&mut spread, 1, 2, S, true);
        push(&mut spread, 2, 1, S + 300_000_000, false);
        assert!(!spread.is_over(Nanos::new(S + SECOND - 1)) && spread.is_over(Nanos::new(S + SECOND)));
        let quarter = SECOND / 4;
        assert_eq!(
            release(&mut spread, false),
            [
                (0, 1, 0, Some(0)),
                (1, 1, 0, Some(0)),
                (0, 2, quarter, Some(quarter)),
                (2, 1, 300_000_000, None),
                (0, 3, 2 * quarter, Some(2 * quarter)),
                (1, 2, 2 * quarter, Some(2 * quarter)),
                (0, 4, 3 * quarter, Some(3 * quarter)),
            ]
        );
        assert!(spread.is_empty());
    }

    #[test]
    fn a_late_line_is_counted_and_spread_over_the_second_that_is_read() {
        let mut spread = Spread::default();
        push(&mut spread, 0, 1, S, true);
        push(&mut spread, 0, 2, S - 3 * SECOND, true);
        assert_eq!(release(&mut spread, false), [(0, 1, 0, Some(0)), (0, 2, SECOND / 2, Some(SECOND / 2))]);
        assert_eq!(spread.disorder(), Disorder { late: 1, by: Nanos::from_secs(3) });
    }

    #[test]
    fn a_second_with_too_many_lines_is_spread_in_parts() {
        let mut spread = Spread::default();
        for line in 0..2 * MOST_LINES as u64 {
            push(&mut spread, 0, line, S, true);
            if spread.is_full() {
                let shown = release(&mut spread, true);
                let first = line + 1 - MOST_LINES as u64;
                let begins = if first == 0 { 0 } else { SECOND / 2 };
                assert_eq!(shown[0], (0, first, begins, Some(begins)));
                assert!(shown.is_sorted_by_key(|line| line.2) && shown.len() == MOST_LINES);
            }
        }
        push(&mut spread, 0, 0, S, true);
        assert_eq!(release(&mut spread, false), [(0, 0, 750_000_000, Some(750_000_000))]);
        push(&mut spread, 0, 0, S + SECOND, true);
        assert_eq!(release(&mut spread, false), [(0, 0, SECOND, Some(0))]);
    }
}
