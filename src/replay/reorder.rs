//! Puts requests in the order in which they began.
//!
//! A server writes a line when its request ends. Where lines tell when their requests began, or how long these took, the
//! buffer holds each line back until no later line can have begun before it. In such logs it holds back the other lines
//! too. A request that began before one that was already shown comes at the time of that one.

use std::collections::BTreeMap;

use super::record::{LogLine, LogPosition, Record};
use crate::units::Nanos;

/// The most lines that are held back, and the most bytes of memory that they may take.
pub(super) const MAX_LINES: usize = 1 << 18;
pub(super) const MAX_BYTES: usize = 256 << 20;

/// How far the lines of a log were out of order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReorderStats {
    /// The number of requests that were moved to the time of the request before, because their own time was earlier.
    pub late: u64,
    /// The largest step back.
    pub by: Nanos,
}

impl ReorderStats {
    /// Counts a request whose time was `by` too early.
    pub(super) fn add(&mut self, by: Nanos) {
        self.late += 1;
        self.by = self.by.max(by);
    }

    /// The sum of both.
    pub(super) fn and(self, other: Self) -> Self {
        Self { late: self.late + other.late, by: self.by.max(other.by) }
    }
}

/// Holds lines back for at most a window of time, and shows their requests in order.
pub(super) struct ReorderBuffer {
    window: Nanos,
    /// Whether lines tell when their requests began.
    tells_starts: bool,
    /// The latest end of a request.
    ended: Nanos,
    /// The lines held back, by when their requests began and then by the order of the lines.
    lines: BTreeMap<(Nanos, u64), (LogPosition, Record)>,
    /// How many lines were ever held back.
    pushed: u64,
    /// The memory that the lines take.
    bytes: usize,
    /// The time of the last request that was shown.
    last: Nanos,
    disorder: ReorderStats,
}

impl ReorderBuffer {
    /// An empty buffer that holds lines back for `window` at most.
    pub(super) fn new(window: Nanos) -> Self {
        let (ended, last, disorder) = (Nanos::ZERO, Nanos::ZERO, ReorderStats::default());
        Self { window, tells_starts: false, ended, lines: BTreeMap::new(), pushed: 0, bytes: 0, last, disorder }
    }

    /// How far the lines were out of order.
    pub(super) const fn disorder(&self) -> ReorderStats {
        self.disorder
    }

    /// Takes a line, and shows to `each` the requests that no later line can precede.
    pub(super) fn take<E>(
        &mut self,
        spot: LogPosition,
        record: Record,
        each: &mut impl FnMut(LogLine<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        // a line of charges tells no duration, but the requests in the log of the same gateway do
        self.tells_starts |= record.is_start || record.took.is_some() || record.charges.is_some();
        let began = record.began();
        if !self.tells_starts {
            return self.emit(spot, began, &record, each);
        }
        self.ended = self.ended.max(record.ended());
        self.bytes = self.bytes.saturating_add(record.memory());
        self.pushed += 1;
        self.lines.insert((began, self.pushed), (spot, record));
        while let Some(((began, _), _)) = self.lines.first_key_value()
            && (began.saturating_add(self.window) <= self.ended || self.is_too_full())
        {
            self.show_first(each)?;
        }
        Ok(())
    }

    /// Shows all lines that are still held back, after the last line of the logs.
    pub(super) fn finish<E>(&mut self, each: &mut impl FnMut(LogLine<'_>) -> Result<(), E>) -> Result<(), E> {
        while !self.lines.is_empty() {
            self.show_first(each)?;
        }
        Ok(())
    }

    fn is_too_full(&self) -> bool {
        self.lines.len() > MAX_LINES || self.bytes > MAX_BYTES
    }

    fn show_first<E>(&mut self, each: &mut impl FnMut(LogLine<'_>) -> Result<(), E>) -> Result<(), E> {
        let Some(((began, _), (spot, record))) = self.lines.pop_first() else { return Ok(()) };
        self.bytes = self.bytes.saturating_sub(record.memory());
        self.emit(spot, began, &record, each)
    }

    fn emit<E>(
        &mut self,
        spot: LogPosition,
        began: Nanos,
        record: &Record,
        each: &mut impl FnMut(LogLine<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if began < self.last {
            self.disorder.add(self.last.saturating_sub(began));
        }
        self.last = self.last.max(began);
        each(LogLine::Request { spot, at: self.last, record })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    /// A line of a request that began at `began` and took `took`.
    fn line(began: Nanos, took: Nanos) -> Record {
        Record {
            logged: began.saturating_add(took),
            took: Some(took),
            client: Some(b"192.0.2.1".to_vec()),
            ..Record::default()
        }
    }

    fn count(shown: &mut usize) -> Result<(), ()> {
        *shown += 1;
        Ok(())
    }

    #[test]
    fn memory_is_freed_when_lines_are_shown() {
        let mut buffer = ReorderBuffer::new(Nanos::SECOND);
        let mut shown = 0;
        for number in 0..20_000 {
            let record = line(Nanos::new(number * MS), Nanos::new(MS));
            let mut each = |_: LogLine<'_>| count(&mut shown);
            buffer.take(LogPosition { log: 0, line: number }, record, &mut each).unwrap();
            assert!(buffer.lines.len() <= 1000);
        }
        assert_eq!(buffer.bytes, buffer.lines.values().map(|(_, record)| record.memory()).sum::<usize>());
        buffer.finish(&mut |_| count(&mut shown)).unwrap();
        assert_eq!((shown, buffer.lines.len(), buffer.bytes), (20_000, 0, 0));
    }

    #[test]
    fn lines_and_memory_are_bounded_whatever_the_window() {
        let mut buffer = ReorderBuffer::new(Nanos::MAX);
        let mut shown = 0;
        let mut each = |_: LogLine<'_>| count(&mut shown);
        for number in 0..MAX_LINES as u64 + 10 {
            buffer
                .take(LogPosition { log: 0, line: number }, line(Nanos::new(number), Nanos::SECOND), &mut each)
                .unwrap();
        }
        buffer.finish(&mut each).unwrap();
        let large = Record { headers: vec![(0, String::new()); 200_000], ..line(Nanos::SECOND, Nanos::SECOND) };
        let fit = MAX_BYTES / large.memory();
        for number in 0..fit as u64 + 5 {
            buffer.take(LogPosition { log: 0, line: number }, large.clone(), &mut each).unwrap();
            assert!(buffer.bytes <= MAX_BYTES);
        }
        assert_eq!(buffer.lines.len(), fit);
        assert_eq!(shown, MAX_LINES + 15);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn requests_are_shown_in_order_of_their_beginning(
            // few times, so that some are the same
            requests in prop::collection::vec((0..40_u64, 0..40_u64), 1..300),
        ) {
            let requests = requests.into_iter().map(|(began, took)| (Nanos::new(began * MS), Nanos::new(took * MS)));
            let mut requests: Vec<(Nanos, Nanos)> = requests.collect();
            requests.sort_by_key(|(began, took)| began.saturating_add(*took));
            let mut buffer = ReorderBuffer::new(Nanos::SECOND);
            let mut shown = Vec::new();
            let mut each = |line: LogLine<'_>| {
                let LogLine::Request { spot, at, record } = line else { return Err(()) };
                shown.push((at, spot.line, record.clone()));
                Ok(())
            };
            for ((began, took), number) in requests.iter().zip(0..) {
                buffer.take(LogPosition { log: 1, line: number }, line(*began, *took), &mut each).unwrap();
            }
            buffer.finish(&mut each).unwrap();
            prop_assert_eq!(buffer.disorder(), ReorderStats::default());
            let mut expected: Vec<_> =
                requests.iter().zip(0..).map(|((began, took), number)| (*began, number, line(*began, *took))).collect();
            expected.sort_by_key(|(began, ..)| *began);
            prop_assert_eq!(shown, expected);
        }
    }
}
