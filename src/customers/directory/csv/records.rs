//! A text in CSV, cut into records.
//!
//! Most lines have no quotes, and are cut at their commas as they stand; the others and the first are read by a parser
//! of CSV. Records, their fields and what happens to quotes are the same either way: spaces around fields do not count,
//! blank lines are skipped, `\r` ends a line as `\n` and `\r\n` do.

use csv_core::{ReadRecordResult, Reader};
use memchr::{memchr_iter, memchr3};

/// Cuts a text into records, one after the other.
pub(super) struct Records<'t> {
    text: &'t [u8],
    next: Place,
    parser: Reader,
    /// What the parser made of a record's fields, one behind the other; as long as any record was.
    parsed: Vec<u8>,
    ends: Vec<usize>,
}

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// How many bytes of the text come before it.
    pub(super) at: usize,
    /// Its line, from 1.
    pub(super) line: u64,
}

/// One record.
#[derive(Clone, Copy)]
pub(super) struct Record<'r> {
    pub(super) place: Place,
    fields: &'r [u8],
    /// Where in `fields` each of them ends.
    ends: &'r [usize],
    /// How many bytes come between two of them.
    gap: usize,
}

impl<'t> Records<'t> {
    pub(super) fn of(text: &'t str) -> Self {
        let next = Place { at: 0, line: 1 };
        Self { text: text.as_bytes(), next, parser: Reader::new(), parsed: Vec::new(), ends: Vec::new() }
    }

    /// Goes on from a place where a record begins; not the first.
    pub(super) fn go_to(&mut self, place: Place) {
        self.next = place;
        // it may be at the end of the text
        self.parser.reset();
        // it takes a byte order mark off the first that it reads
        self.parser.read_record(b"\n", &mut [0], &mut [0]);
    }

    /// The next record; `None` at the end.
    pub(super) fn next(&mut self) -> Option<Record<'_>> {
        let start = self.next;
        self.skip_blank_lines();
        let place = self.next;
        let rest = self.text.get(place.at..).filter(|rest| !rest.is_empty())?;
        let end = memchr3(b'\r', b'\n', b'"', rest);
        if start.at == 0 {
            // from the beginning, where the byte order mark is
            self.next = start;
            return self.parse(place);
        }
        if end.is_some_and(|end| rest.get(end) == Some(&b'"')) {
            return self.parse(place);
        }
        let line = rest.get(..end.unwrap_or(rest.len()))?;
        self.ends.clear();
        self.ends.extend(memchr_iter(b',', line).chain([line.len()]));
        self.next.at = place.at.saturating_add(line.len());
        Some(Record { place, fields: line, ends: &self.ends, gap: 1 })
    }

    fn skip_blank_lines(&mut self) {
        while let Some(byte @ (b'\r' | b'\n')) = self.text.get(self.next.at) {
            self.next.line = self.next.line.saturating_add(u64::from(*byte == b'\n'));
            self.next.at = self.next.at.saturating_add(1);
        }
    }

    /// Lets the parser read the record that is at `place`.
    fn parse(&mut self, place: Place) -> Option<Record<'_>> {
        let mut input = self.text.get(self.next.at..)?;
        let (mut written, mut fields) = (0_usize, 0_usize);
        loop {
            let (output, ends) = (self.parsed.get_mut(written..)?, self.ends.get_mut(fields..)?);
            let (result, read, more, more_fields) = self.parser.read_record(input, output, ends);
            let (read, left) = input.split_at_checked(read)?;
            input = left;
            let lines = u64::try_from(memchr_iter(b'\n', read).count()).unwrap_or(u64::MAX);
            self.next.line = self.next.line.saturating_add(lines);
            self.next.at = self.next.at.saturating_add(read.len());
            written = written.saturating_add(more);
            fields = fields.saturating_add(more_fields);
            match result {
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull => self.parsed.resize(twice(written), 0),
                ReadRecordResult::OutputEndsFull => self.ends.resize(twice(fields), 0),
                ReadRecordResult::Record => break,
                ReadRecordResult::End => return None,
            }
        }
        Some(Record { place, fields: self.parsed.get(..written)?, ends: self.ends.get(..fields)?, gap: 0 })
    }
}

fn twice(size: usize) -> usize {
    size.saturating_mul(2).max(64)
}

impl<'r> Record<'r> {
    /// How many fields there are.
    pub(super) const fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is a line break inside of a field, which only quotes can make.
    pub(super) fn has_line_break(&self) -> bool {
        self.gap == 0 && self.iter().any(|field| field.contains(&b'\n'))
    }

    /// The fields, without the spaces around them.
    pub(super) fn iter(&self) -> impl Iterator<Item = &'r [u8]> {
        (0..self.len()).filter_map(|position| self.field(position))
    }

    /// The field at this position, without the spaces around it.
    pub(super) fn field(&self, position: usize) -> Option<&'r [u8]> {
        let begin = match position.checked_sub(1) {
            Some(before) => self.ends.get(before)?.saturating_add(self.gap),
            None => 0,
        };
        self.fields.get(begin..*self.ends.get(position)?).map(<[u8]>::trim_ascii)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Line by line what is in the records, by this or by the library for CSV.
    type Lines = Vec<Vec<Vec<u8>>>;

    fn fields(record: Record<'_>) -> Vec<Vec<u8>> {
        record.iter().map(<[u8]>::to_vec).collect()
    }

    fn cut(text: &str) -> (Lines, Vec<Place>) {
        let mut records = Records::of(text);
        let (mut lines, mut places) = (Vec::new(), Vec::new());
        while let Some(record) = records.next() {
            places.push(record.place);
            lines.push(fields(record));
        }
        (lines, places)
    }

    fn by_the_library(text: &str) -> Lines {
        let mut reader = csv::ReaderBuilder::new();
        let reader = reader.flexible(true).has_headers(false).trim(csv::Trim::All).from_reader(text.as_bytes());
        let record = |record: csv::ByteRecord| record.iter().map(<[u8]>::to_vec).collect();
        reader.into_byte_records().map(|read| record(read.unwrap())).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn records_are_those_of_csv_and_can_be_gone_back_to(text in "[ab,\"\r\n \t\u{feff}é]{0,40}") {
            let (lines, places) = cut(&text);
            prop_assert_eq!(&lines, &by_the_library(&text));
            let mut records = Records::of(&text);
            while records.next().is_some() {}
            for (line, place) in lines.iter().zip(&places).skip(1).rev() {
                let line_number = text.as_bytes()[..place.at].iter().filter(|byte| **byte == b'\n').count() + 1;
                prop_assert_eq!(place.line, u64::try_from(line_number).unwrap());
                records.go_to(*place);
                let again = records.next().map(fields);
                prop_assert_eq!(again.as_ref(), Some(line));
            }
        }
    }

    #[test]
    fn blank_lines_count_and_are_no_records() {
        let (lines, places) = cut("\n\nx,y\r\n\r\n\"a\nb\",c\n \n,");
        let text = |line: &[Vec<u8>]| line.join(&b"|"[..]);
        assert_eq!(lines.iter().map(|line| text(line)).collect::<Vec<_>>(), [&b"x|y"[..], b"a\nb|c", b"", b"|"]);
        assert_eq!(places.iter().map(|place| place.line).collect::<Vec<_>>(), [3, 5, 7, 8]);
    }
}
