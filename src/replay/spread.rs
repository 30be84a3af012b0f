//! Requests whose timestamps are whole seconds, spread over their seconds.
//!
//! Such a timestamp tells the second of a request, not when within it the request came. The requests of one log and one
//! second are placed at even distances over that second, in the order of their lines: an evenly paced client stays evenly
//! paced. For that the lines of a second are held back until the next one begins. Lines of that second with exact
//! timestamps are held back with them and keep their times.

use super::record::{LogPosition, Record};
use super::reorder::{MAX_BYTES, MAX_LINES, ReorderStats};
use crate::units::Nanos;

const SECOND: u64 = Nanos::SECOND.get();

/// The golden section of a second: its multiples fill a second evenly.
const GOLDEN: u64 = 618_033_989;

/// The lines of one second.
#[derive(Default)]
pub(super) struct SecondBuffer {
    /// When the second begins.
    second: Nanos,
    /// How far into the second the next lines are placed: more than 0 after lines were released because of their number.
    from: u64,
    lines: Vec<(LogPosition, Record)>,
    /// The memory that the lines take.
    bytes: usize,
    /// How many lines of each log have timestamps in whole seconds.
    counts: Vec<u64>,
    disorder: ReorderStats,
}

impl SecondBuffer {
    pub(super) const fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Counts the lines that were moved to a later second.
    pub(super) const fn disorder(&self) -> ReorderStats {
        self.disorder
    }

    /// Whether lines are held back whose second is over at this time.
    pub(super) fn is_over(&self, logged: Nanos) -> bool {
        !self.is_empty() && logged >= self.second.saturating_add(Nanos::SECOND)
    }

    /// Whether the number or the memory of the lines held back is at its maximum.
    pub(super) const fn is_full(&self) -> bool {
        self.lines.len() >= MAX_LINES || self.bytes >= MAX_BYTES
    }

    /// Whether a line is to be held back until its second is over.
    pub(super) fn should_buffer(&self, record: &Record) -> bool {
        match record.within_second {
            // the reorder buffer puts lines in order that tell when their requests began
            Some(_) => self.is_empty() || record.logged >= self.second || !(record.is_start || record.took.is_some()),
            None => !self.is_empty(),
        }
    }

    /// Places a line that is not held back in its second: not where others of that second are.
    pub(super) fn place(spot: LogPosition, record: &mut Record) {
        if let Some(within_second) = &mut record.within_second {
            *within_second = Nanos::new(spot.line.wrapping_mul(GOLDEN) % SECOND);
            record.logged = record.logged.saturating_add(*within_second);
        }
    }

    /// Holds back a line. One that came after a later second had begun is moved to that second.
    pub(super) fn push(&mut self, spot: LogPosition, mut record: Record) {
        if self.is_empty() && self.second != record.logged {
            let begins = record.logged.get() - record.logged.get() % SECOND;
            (self.second, self.from) = (Nanos::new(begins), 0);
        }
        if record.within_second.is_some() {
            if record.logged < self.second {
                self.disorder.add(self.second.saturating_sub(record.logged));
                (record.logged, record.is_moved) = (self.second, true);
            }
            if self.counts.len() <= spot.log {
                self.counts.resize(spot.log + 1, 0);
            }
            self.counts[spot.log] += 1;
        }
        self.bytes = self.bytes.saturating_add(record.memory());
        self.lines.push((spot, record));
    }

    /// Releases all lines in order, each with its place in the second. If the second goes on because there were too many
    /// lines, they share the first half of what is left of it.
    pub(super) fn release<E>(
        &mut self,
        goes_on: bool,
        mut each: impl FnMut(LogPosition, Record) -> Result<(), E>,
    ) -> Result<(), E> {
        let left = SECOND - self.from;
        let room = if goes_on { left / 2 } else { left };
        let mut places = vec![0; self.counts.len()];
        for (spot, record) in &mut self.lines {
            let Some(within_second) = &mut record.within_second else { continue };
            *within_second = Nanos::new(self.from + room * places[spot.log] / self.counts[spot.log]);
            places[spot.log] += 1;
            record.logged = self.second.saturating_add(*within_second);
        }
        self.lines.sort_by_key(|(_, record)| record.logged);
        self.counts.clear();
        self.bytes = 0;
        self.from = if goes_on { self.from + room } else { 0 };
        self.lines.drain(..).try_for_each(|(spot, record)| each(spot, record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_700_000_000 * SECOND;

    fn push(spread: &mut SecondBuffer, log: usize, line: u64, logged: u64, is_whole: bool) {
        let record = Record {
            logged: Nanos::new(logged),
            within_second: is_whole.then_some(Nanos::ZERO),
            client: Some(b"192.0.2.1".to_vec()),
            ..Record::default()
        };
        assert!(spread.should_buffer(&record));
        spread.push(LogPosition { log, line }, record);
    }

    /// Log, line, time since `S`, and how far into its second each line is placed.
    fn release(spread: &mut SecondBuffer, goes_on: bool) -> Vec<(usize, u64, u64, Option<u64>)> {
        let mut shown = Vec::new();
        let each = |spot: LogPosition, record: Record| {
            let within = record.within_second.map(Nanos::get);
            shown.push((spot.log, spot.line, record.logged.get() - S, within));
            Ok::<(), ()>(())
        };
        spread.release(goes_on, each).unwrap();
        shown
    }

    #[test]
    fn lines_of_each_log_are_spread_and_exact_ones_stay() {
        let mut spread = SecondBuffer::default();
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
        let mut spread = SecondBuffer::default();
        push(&mut spread, 0, 1, S, true);
        push(&mut spread, 0, 2, S - 3 * SECOND, true);
        assert_eq!(release(&mut spread, false), [(0, 1, 0, Some(0)), (0, 2, SECOND / 2, Some(SECOND / 2))]);
        assert_eq!(spread.disorder(), ReorderStats { late: 1, by: Nanos::from_secs(3) });
    }

    #[test]
    fn a_second_with_too_many_lines_is_spread_in_parts() {
        let mut spread = SecondBuffer::default();
        for line in 0..2 * MAX_LINES as u64 {
            push(&mut spread, 0, line, S, true);
            if spread.is_full() {
                let shown = release(&mut spread, true);
                let first = line + 1 - MAX_LINES as u64;
                let begins = if first == 0 { 0 } else { SECOND / 2 };
                assert_eq!(shown[0], (0, first, begins, Some(begins)));
                assert!(shown.is_sorted_by_key(|line| line.2) && shown.len() == MAX_LINES);
            }
        }
        push(&mut spread, 0, 0, S, true);
        assert_eq!(release(&mut spread, false), [(0, 0, 750_000_000, Some(750_000_000))]);
        push(&mut spread, 0, 0, S + SECOND, true);
        assert_eq!(release(&mut spread, false), [(0, 0, SECOND, Some(0))]);
    }
}
