//! How far the changes of a database are known.

use std::collections::HashMap;

use crate::files;
use crate::units::Nanos;

/// How much further back than the newest change changes are asked for: a transaction that began before another may end after it.
const OVERLAP: Nanos = Nanos::from_secs(60);
/// The same in microseconds.
const OVERLAP_MICROS: i64 = 60_000_000;
/// From how many rows on those that are too old are forgotten while rows still come.
const MANY: usize = 1 << 16;

/// What is known of changes, whose moments are in microseconds since 1970 by the clock of whoever writes the rows.
#[derive(Debug, Default)]
pub(super) struct Watermark {
    /// When the newest row was changed.
    newest: Option<i64>,
    /// When that row was found, by the clock of this process.
    found_at: Nanos,
    /// All that was changed up to this moment is known, whichever transaction ends later.
    complete: Option<i64>,
    /// The rows that the last look gave, by their hashes, with when they were changed.
    given: HashMap<u128, i64>,
}

/// One look at rows.
#[derive(Debug)]
pub(super) struct Look<'w> {
    mark: &'w mut Watermark,
    began: Nanos,
    newest: Option<i64>,
    given: HashMap<u128, i64>,
    /// From how many rows on the old ones are forgotten.
    many: usize,
}

impl Watermark {
    /// After which moment changes are asked for; `None` where no moment is known.
    pub(super) fn since(&self) -> Option<i64> {
        since(self.newest?, self.complete)
    }

    /// Begins a look at all that changed after [`Self::since`].
    pub(super) fn look(&mut self, began: Nanos) -> Look<'_> {
        Look { newest: self.newest, mark: self, began, given: HashMap::new(), many: MANY }
    }
}

impl Look<'_> {
    /// A row came, which was changed then. Whether the last look did not give it as it is.
    pub(super) fn gave(&mut self, changed: Option<i64>, row: &str) -> bool {
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

    /// All rows have come by `now`.
    pub(super) fn end(mut self, now: Nanos) {
        if self.newest > self.mark.newest {
            self.mark.found_at = now;
        } else if self.began.saturating_sub(self.mark.found_at) >= OVERLAP {
            self.mark.complete = self.newest;
        }
        self.forget();
        (self.mark.newest, self.mark.given) = (self.newest, self.given);
    }

    /// Forgets the rows that the next look does not ask for.
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

    /// A look that begins at this second; it takes one. Which of the rows are new.
    fn look<'r>(mark: &mut Watermark, second: u64, rows: &[(i64, &'r str)]) -> Vec<&'r str> {
        let since = mark.since();
        let mut look = mark.look(Nanos::from_secs(second));
        let asked = rows.iter().filter(|(changed, _)| Some(*changed) > since);
        let new = asked.filter(|(changed, row)| look.gave(Some(*changed), row)).map(|(_, row)| *row).collect();
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
        // it was changed there and back
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
        // nor are they when there is something newer
        assert_eq!(look(&mut mark, 72, &[(MINUTE, "a"), (MINUTE + 5, "c")]), ["c"]);
        assert_eq!(mark.since(), Some(MINUTE));
    }

    #[test]
    fn of_many_rows_only_those_are_kept_that_may_come_again() {
        let mut mark = Watermark::default();
        let mut all = mark.look(Nanos::ZERO);
        for second in 0..200_000_i64 {
            assert!(all.gave(Some(second * 1_000_000), &second.to_string()));
            assert!(all.given.len() <= MANY + 1);
        }
        all.end(Nanos::from_secs(9));
        assert_eq!(mark.given.len(), 60);
    }
}
