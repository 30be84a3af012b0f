//! Splits a text into lines, and keeps only one of them.

use std::io::{self, BufRead, Read as _};

/// The longest line that is kept whole, in bytes.
pub const MAX_LINE: usize = 1 << 20;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The lines of a text, without line ends; empty lines are left out.
#[derive(Debug)]
pub struct Lines<R> {
    from: R,
    line: Vec<u8>,
    number: u64,
    is_cut: bool,
}

impl<R: BufRead> Lines<R> {
    /// A reader before the first line.
    pub const fn new(from: R) -> Self {
        Self { from, line: Vec::new(), number: 0, is_cut: false }
    }

    /// Goes to the next line; `false` at the end.
    pub fn advance(&mut self) -> io::Result<bool> {
        while self.read_line()? {
            self.number = self.number.saturating_add(1);
            if self.number == 1 && self.line.starts_with(BYTE_ORDER_MARK) {
                self.line.drain(..BYTE_ORDER_MARK.len());
            }
            if !self.line.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The line.
    pub fn line(&self) -> &[u8] {
        &self.line
    }

    /// The number of the line, from 1.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Whether the line is longer than [`MAX_LINE`]. Only its beginning is kept then.
    pub const fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Reads up to the next line end, or to the end of the text; `false` if no bytes are left.
    fn read_line(&mut self) -> io::Result<bool> {
        const KEPT: usize = 256;
        const MAX_READ: u64 = MAX_LINE as u64 + 2;
        self.line.clear();
        let read = self.from.by_ref().take(MAX_READ).read_until(b'\n', &mut self.line)?;
        let is_ended = self.line.pop_if(|last| *last == b'\n').is_some();
        self.line.pop_if(|last| *last == b'\r');
        self.is_cut = self.line.len() > MAX_LINE;
        if self.is_cut {
            self.line.truncate(KEPT);
            if !is_ended {
                self.from.skip_until(b'\n')?;
            }
        }
        Ok(read > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Read};

    use super::*;

    /// Gives a few bytes at a time.
    struct Drops<'t>(&'t [u8], usize);

    impl Read for Drops<'_> {
        fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
            let few = self.1.min(self.0.len());
            let read = self.0.take(few as u64).read(room)?;
            self.0 = &self.0[read..];
            Ok(read)
        }
    }

    fn lines(text: &[u8], drop: usize) -> Vec<(u64, String, bool)> {
        let mut lines = Lines::new(BufReader::new(Drops(text, drop)));
        let mut all = Vec::new();
        while lines.advance().unwrap() {
            all.push((lines.number(), String::from_utf8_lossy(lines.line()).into_owned(), lines.is_cut()));
        }
        all
    }

    #[test]
    fn lines_are_the_same_however_they_come() {
        let text = b"\xef\xbb\xbfone\r\n\n\r\ntwo\nlast";
        let expected = [(1, "one"), (4, "two"), (5, "last")].map(|(number, line)| (number, line.to_owned(), false));
        for drop in [1, 2, 3, 7, 100] {
            assert_eq!(lines(text, drop), expected, "{drop} bytes at a time");
        }
        assert!(lines(b"", 1).is_empty());
        assert!(lines(b"\n\n", 1).is_empty());
    }

    #[test]
    fn of_a_line_that_is_too_long_only_the_beginning_is_kept() {
        let text = [b"a\n".as_slice(), &vec![b'x'; 3 * MAX_LINE], b"\nb\n"].concat();
        let all = lines(&text, 100_000);
        assert_eq!(
            all.iter().map(|(number, line, cut)| (*number, line.len(), *cut)).collect::<Vec<_>>(),
            [(1, 1, false), (2, 256, true), (3, 1, false)]
        );
        assert_eq!(lines(&vec![b'x'; 3 * MAX_LINE], 100_000).len(), 1);
    }
}
