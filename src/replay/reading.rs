//! Merges the lines of several logs by time and shows their requests in order.

use super::common::CommonReader;
use super::fields::{FieldTree, Mapping, WantedFields};
use super::json::JsonReader;
use super::record::{LogLine, LogPosition, Record, Unreadable};
use super::reorder::{ReorderBuffer, ReorderStats};
use super::source::Log;
use super::spread::SecondBuffer;
use crate::units::Nanos;

/// How lines are read and put in order.
#[derive(Clone, Debug)]
pub struct Options {
    /// Additional places of fields in JSON lines.
    pub mappings: Vec<Mapping>,
    /// The fields that the rules ask about.
    pub wanted: WantedFields,
    /// Whether the times of lines are those at which requests began.
    pub times_are_starts: bool,
    /// The longest time for which a line is held back.
    pub reorder: Nanos,
}

/// Several logs.
pub struct MergedLogs {
    logs: Vec<Log>,
    reader: LineReader,
    times_are_starts: bool,
    queue: Queue,
}

/// Holds lines back until their requests can be shown in order.
struct Queue {
    spread: SecondBuffer,
    reorder: ReorderBuffer,
}

/// Turns lines into records.
pub struct LineReader {
    common: CommonReader,
    json: JsonReader,
    wanted: WantedFields,
}

// === impl MergedLogs ===

impl MergedLogs {
    /// A reader before the first line of each log.
    pub fn new(logs: Vec<Log>, options: Options) -> Self {
        Self {
            logs,
            reader: LineReader::new(&options.mappings, options.wanted),
            times_are_starts: options.times_are_starts,
            queue: Queue { spread: SecondBuffer::default(), reorder: ReorderBuffer::new(options.reorder) },
        }
    }

    /// The names of the logs.
    pub fn names(&self) -> Vec<String> {
        self.logs.iter().map(|log| log.name().to_owned()).collect()
    }

    /// How far the lines were out of order.
    pub fn disorder(&self) -> ReorderStats {
        self.queue.reorder.disorder().and(self.queue.spread.disorder())
    }

    /// Passes every line to `each`, until `each` or a log fails.
    pub fn run(&mut self, mut each: impl FnMut(LogLine<'_>) -> Result<(), String>) -> Result<(), String> {
        let mut heads = Vec::new();
        for log in 0..self.logs.len() {
            heads.extend(self.read(log, &mut each)?);
        }
        // of lines with the same time, those of the log that was read last come first
        let mut last = 0;
        let key = |(spot, record): &(LogPosition, Record), last| (record.ended(), spot.log != last, spot.log);
        while let Some(at) = (0..heads.len()).min_by_key(|at| key(&heads[*at], last)) {
            let (spot, record) = heads.swap_remove(at);
            last = spot.log;
            self.queue.take(spot, record, &mut each)?;
            heads.extend(self.read(last, &mut each)?);
        }
        self.queue.release(false, &mut each)?;
        self.queue.reorder.finish(&mut each)
    }

    /// Reads a log up to the end of its next line that can be used; `None` at the end of the log.
    fn read(
        &mut self,
        log: usize,
        each: &mut impl FnMut(LogLine<'_>) -> Result<(), String>,
    ) -> Result<Option<(LogPosition, Record)>, String> {
        let Some(source) = self.logs.get_mut(log) else { return Ok(None) };
        while source.advance()? {
            let lines = source.lines();
            let spot = LogPosition { log, line: lines.number() };
            match self.reader.read(lines.line(), lines.is_cut()) {
                Err(why) => each(LogLine::Unreadable { spot, why })?,
                Ok(mut record) => {
                    record.is_start |= self.times_are_starts;
                    return Ok(Some((spot, record)));
                }
            }
        }
        Ok(None)
    }
}

impl Queue {
    /// Takes the record of a line, and passes on the requests whose order is final.
    fn take<E>(
        &mut self,
        spot: LogPosition,
        mut record: Record,
        each: &mut impl FnMut(LogLine<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let is_over = self.spread.is_over(record.logged);
        if is_over || self.spread.is_full() {
            self.release(!is_over, each)?;
        }
        match self.spread.should_buffer(&record) {
            true => self.spread.push(spot, record),
            false => {
                SecondBuffer::place(spot, &mut record);
                self.reorder.take(spot, record, each)?;
            }
        }
        Ok(())
    }

    /// Releases the lines that `spread` holds back. `goes_on` says that their second is not over, but there are too many.
    fn release<E>(&mut self, goes_on: bool, each: &mut impl FnMut(LogLine<'_>) -> Result<(), E>) -> Result<(), E> {
        let reorder = &mut self.reorder;
        self.spread.release(goes_on, |spot, record| reorder.take(spot, record, each))
    }
}

// === impl LineReader ===

impl LineReader {
    /// A reader for the `wanted` fields. In JSON lines it looks at the paths of `mappings` too.
    pub fn new(mappings: &[Mapping], wanted: WantedFields) -> Self {
        Self { common: CommonReader::default(), json: JsonReader::new(FieldTree::root(mappings, &wanted)), wanted }
    }

    /// The record of a line. `is_cut` says that only the beginning of the line is here, which is an error.
    pub fn read(&mut self, line: &[u8], is_cut: bool) -> Result<Record, Unreadable> {
        match line.trim_ascii_start() {
            _ if is_cut => Err(Unreadable::TooLong),
            object @ [b'{', ..] => self.json.read(object),
            line => self.common.read(line, &self.wanted),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::replay::source;

    fn read(texts: &[&str], reorder: u64) -> (Vec<(u64, usize, u64)>, ReorderStats, usize) {
        read_times(texts, reorder, false)
    }

    fn read_times(
        texts: &[&str],
        reorder: u64,
        times_are_starts: bool,
    ) -> (Vec<(u64, usize, u64)>, ReorderStats, usize) {
        let name = format!("tollgate-reading-{}-{}-{times_are_starts}", std::process::id(), texts.len());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let paths: Vec<PathBuf> = (0..texts.len()).map(|log| folder.join(format!("{log}-{reorder}"))).collect();
        for (path, text) in paths.iter().zip(texts) {
            std::fs::write(path, text).unwrap();
        }
        let (logs, _) = source::open(&paths, std::io::empty()).unwrap();
        let options = Options {
            mappings: Vec::new(),
            wanted: WantedFields::default(),
            times_are_starts,
            reorder: Nanos::from_secs(reorder),
        };
        let mut reading = MergedLogs::new(logs, options);
        let (mut shown, mut unreadable) = (Vec::new(), 0);
        reading
            .run(|line| {
                match line {
                    LogLine::Request { spot, at, .. } => shown.push((at.get() / 1_000_000_000, spot.log, spot.line)),
                    LogLine::Unreadable { .. } => unreadable += 1,
                }
                Ok(())
            })
            .unwrap();
        std::fs::remove_dir_all(folder).unwrap();
        (shown, reading.disorder(), unreadable)
    }

    fn lines(lines: &[(u64, u64)]) -> String {
        let line = |(time, took): &(u64, u64)| match took {
            0 => format!("{{\"time\":{time}}}\n"),
            took => format!("{{\"time\":{time},\"duration\":{took}}}\n"),
        };
        lines.iter().map(line).collect()
    }

    #[test]
    fn logs_are_merged_by_time_whatever_order_they_are_named_in() {
        let (later, earlier) = (lines(&[(7, 0), (9, 0)]), format!("what\n{}x\n", lines(&[(1, 0), (8, 0), (10, 0)])));
        let (shown, disorder, unreadable) = read(&[&later, &earlier, ""], 60);
        assert_eq!(shown, [(1, 1, 2), (7, 0, 1), (8, 1, 3), (9, 0, 2), (10, 1, 4)]);
        assert_eq!((disorder, unreadable), (ReorderStats::default(), 2));
    }

    #[test]
    fn a_request_that_is_out_of_order_comes_at_the_latest_time_seen() {
        let (shown, disorder, _) = read(&[&lines(&[(5, 0), (3, 0), (4, 0), (6, 0)])], 60);
        assert_eq!(shown, [(5, 0, 1), (5, 0, 2), (5, 0, 3), (6, 0, 4)]);
        assert_eq!(disorder, ReorderStats { late: 2, by: Nanos::from_secs(2) });
    }

    #[test]
    fn requests_come_when_they_began_and_not_when_they_ended() {
        let ended = lines(&[(10, 1), (20, 19), (21, 0), (100, 5), (120, 0), (200, 150)]);
        let (shown, disorder, _) = read(&[&ended], 60);
        assert_eq!(shown, [(1, 0, 2), (9, 0, 1), (21, 0, 3), (50, 0, 6), (95, 0, 4), (120, 0, 5)]);
        assert_eq!(disorder, ReorderStats::default());
        let (shown, disorder, _) = read(&[&ended], 15);
        assert_eq!(shown, [(1, 0, 2), (9, 0, 1), (21, 0, 3), (95, 0, 4), (95, 0, 6), (120, 0, 5)]);
        assert_eq!(disorder, ReorderStats { late: 1, by: Nanos::from_secs(45) });
    }

    #[test]
    fn requests_whose_beginning_is_told_come_then_although_their_lines_follow_their_ends() {
        let started = lines(&[(38, 1), (40, 0), (36, 5), (39, 3)]);
        let (shown, disorder, _) = read_times(&[&started], 60, true);
        assert_eq!(shown, [(36, 0, 3), (38, 0, 1), (39, 0, 4), (40, 0, 2)]);
        assert_eq!(disorder, ReorderStats::default());
        // the log that is merged first is the one whose line was written first
        let (shown, disorder, _) = read_times(&[&lines(&[(10, 90), (99, 2)]), &lines(&[(50, 1), (98, 1)])], 95, true);
        assert_eq!(shown, [(10, 0, 1), (50, 1, 1), (98, 1, 2), (99, 0, 2)]);
        assert_eq!(disorder, ReorderStats::default());
    }

    #[test]
    fn charges_of_programs_wait_for_requests_that_began_before_them() {
        let charges = "{\"time\":50,\"charges\":\"[]\"}\n";
        let (shown, disorder, _) = read(&[&format!("{charges}{}", lines(&[(51, 50)]))], 60);
        assert_eq!(shown, [(1, 0, 2), (50, 0, 1)]);
        assert_eq!(disorder, ReorderStats::default());
    }
}
