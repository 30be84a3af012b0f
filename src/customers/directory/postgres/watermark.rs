//! The watermark of a database: up to which time its changes are known.

use std::collections::HashMap;

use crate::files;
use crate::units::Nanos;

/// How far reads of changes go back before the newest known change: an earlier transaction may commit after a later one.
const OVERLAP: Nanos = Nanos::from_secs(60);
/// The same in microseconds.
const OVERLAP_MICROS: i64 = 60_000_000;
/// The number of rows from which on a read forgets old rows before it ends.
const MANY: usize = 1 << 16;

/// The known changes. Their times are in microseconds since 1970, by the clock of the program that writes the rows.
#[derive(Debug, Default)]
pub(super) struct Watermark {
    /// The time of change of the newest row.
    newest: Option<i64>,
    /// When that row was found, by the clock of this process.
    found_at: Nanos,
    /// All changes up to this time count as known: transactions that could add one have had [`OVERLAP`] to commit.
    complete: Option<i64>,
    /// The hashes of the rows that the last read gave, with their times of change.
    given: HashMap<u128, i64>,
}

/// One read of rows.
#[derive(Debug)]
pub(super) struct ReadPass<'w> {
    mark: &'w mut Watermark,
    began: Nanos,
    newest: Option<i64>,
    given: HashMap<u128, i64>,
    /// The number of rows from which on old ones are forgotten.
    many: usize,
}

impl Watermark {
    /// The time after which the next read asks for changes; `None` if no time is known.
    pub(super) fn since(&self) -> Option<i64> {
        since(self.newest?, self.complete)
    }

    /// Starts a read of the changes after [`Self::since`].
    pub(super) fn begin_read(&mut self, began: Nanos) -> ReadPass<'_> {
        ReadPass { newest: self.newest, mark: self, began, given: HashMap::new(), many: MANY }
    }
}

impl ReadPass<'_> {
    /// Notes a row that was changed at `changed`. Returns true if the last read did not give the same row.
    pub(super) fn record_row(&mut self, changed: Option<i64>, row: &str) -> bool {
        let Some(changed) = changed else { return true };
        self.newest = self.newest.max(Some(changed));
        let hash = files::hash(row.as_bytes());
        self.given.insert(hash, changed);
        if self.given.len() > self.many {
            self.forget();
            self.many = self.given.len().saturating_mul(2).max(MANY);
        }
        !self.mark.given.contains_key(&hash)
    }

    /// Ends the read: all rows have arrived by `now`.
    pub(super) fn end(mut self, now: Nanos) {
        if self.newest > self.mark.newest {
            self.mark.found_at = now;
        } else if self.began.saturating_sub(self.mark.found_at) >= OVERLAP {
            self.mark.complete = self.newest;
        }
        self.forget();
        (self.mark.newest, self.mark.given) = (self.newest, self.given);
    }

    /// Forgets the rows that the next read does not ask for.
    fn forget(&mut self) {
        let since = self.newest.and_then(|newest| since(newest, self.mark.complete));
        self.given.retain(|_, changed| Some(*changed) > since);
    }
}

fn since(newest: i64, complete: Option<i64>) -> Option<i64> {
    Some(newest.saturating_sub(OVERLAP_MICROS)).max(complete)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = OVERLAP_MICROS;

    /// A read that starts at `second` and takes one second. Returns the new rows.
    fn look<'r>(mark: &mut Watermark, second: u64, rows: &[(i64, &'r str)]) -> Vec<&'r str> {
        let since = mark.since();
        let mut look = mark.begin_read(Nanos::from_secs(second));
        let asked = rows.iter().filter(|(changed, _)| Some(*changed) > since);
        let new = asked.filter(|(changed, row)| look.record_row(Some(*changed), row)).map(|(_, row)| *row).collect();
        look.end(Nanos::from_secs(second + 1));
        new
    }

    #[test]
    fn a_row_is_new_once_however_often_it_is_given() {
        let mut mark = Watermark::default();
        let rows = [(MINUTE, "a"), (3 * MINUTE, "b"), (3 * MINUTE + 1, "c")];
        assert_eq!(look(&mut mark, 10, &rows), ["a", "b", "c"]);
        assert_eq!(mark.since(), Some(2 * MINUTE + 1));
        assert!(look(&mut mark, 11, &rows).is_empty());
        // the row is changed, and then changed back
        assert_eq!(look(&mut mark, 12, &[(3 * MINUTE + 2, "C")]), ["C"]);
        assert_eq!(look(&mut mark, 13, &[(3 * MINUTE + 3, "c")]), ["c"]);
    }

    #[test]
    fn a_transaction_that_ends_late_is_found() {
        let mut mark = Watermark::default();
        look(&mut mark, 10, &[(5 * MINUTE, "quick")]);
        let rows = [(4 * MINUTE + 1, "slow"), (5 * MINUTE, "quick")];
        assert_eq!(look(&mut mark, 70, &rows), ["slow"]);
    }

    #[test]
    fn rows_of_one_moment_are_asked_for_no_longer_than_others_may_come_late() {
        let mut mark = Watermark::default();
        let rows = [(MINUTE, "a"), (MINUTE, "b")];
        assert_eq!(look(&mut mark, 10, &rows).len(), 2);
        for second in [11, 70] {
            assert!(look(&mut mark, second, &rows).is_empty());
            assert_eq!(mark.since(), Some(0), "{second}");
        }
        look(&mut mark, 71, &rows);
        assert_eq!(mark.since(), Some(MINUTE));
        // the same holds when there is a newer change
        assert_eq!(look(&mut mark, 72, &[(MINUTE, "a"), (MINUTE + 5, "c")]), ["c"]);
        assert_eq!(mark.since(), Some(MINUTE));
    }

    #[test]
    fn of_many_rows_only_those_are_kept_that_may_come_again() {
        let mut mark = Watermark::default();
        let mut all = mark.begin_read(Nanos::ZERO);
        for second in 0..200_000_i64 {
            assert!(all.record_row(Some(second * 1_000_000), &second.to_string()));
            assert!(all.given.len() <= MANY + 1);
        }
        all.end(Nanos::from_secs(9));
        assert_eq!(mark.given.len(), 60);
    }
}
