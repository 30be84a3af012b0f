//! Splits a stream of bytes into lines with one buffer.

use std::io::{self, ErrorKind, Read};
use std::ops::Range;

use memchr::memchr;

/// The longest line that is parsed.
pub const MAX_LINE: usize = 1 << 20;

/// How many bytes are read at once: few enough to stay in the processor's cache.
const CHUNK: usize = 64 << 10;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The lines of a text, without line ends; empty lines are left out.
#[derive(Debug)]
pub struct Lines<R> {
    from: R,
    buffer: Vec<u8>,
    /// The bytes of the buffer that no line includes yet.
    filled: Range<usize>,
    line: Range<usize>,
    number: u64,
    is_cut: bool,
    /// Whether the next call of `advance` returns the same line.
    again: bool,
}

impl<R: Read> Lines<R> {
    /// A reader before the first line.
    pub fn new(from: R) -> Self {
        Self { from, buffer: Vec::new(), filled: 0..0, line: 0..0, number: 0, is_cut: false, again: false }
    }

    /// Goes to the next line; `false` at the end.
    pub fn advance(&mut self) -> io::Result<bool> {
        if std::mem::take(&mut self.again) {
            return Ok(true);
        }
        while self.next_raw()? {
            self.number = self.number.saturating_add(1);
            if self.number == 1 && self.line().starts_with(BYTE_ORDER_MARK) {
                self.line.start += BYTE_ORDER_MARK.len();
            }
            if self.line().ends_with(b"\r") {
                self.line.end -= 1;
            }
            if !self.line.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes the next call of `advance` return the same line.
    pub const fn repeat_line(&mut self) {
        self.again = true;
    }

    /// The line.
    pub fn line(&self) -> &[u8] {
        self.buffer.get(self.line.clone()).unwrap_or_default()
    }

    /// The number of the line, from 1.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Whether the line is longer than [`MAX_LINE`]. Only its beginning is kept then.
    pub const fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Goes past the next line end, or to the end of the text; `false` if no bytes are left.
    fn next_raw(&mut self) -> io::Result<bool> {
        self.is_cut = false;
        let mut searched = 0;
        loop {
            let unread = self.buffer.get(self.filled.clone()).unwrap_or_default();
            if let Some(at) = memchr(b'\n', unread.get(searched..).unwrap_or_default()) {
                let end = self.filled.start + searched + at;
                self.line = self.filled.start..end;
                self.filled.start = end + 1;
                return Ok(true);
            }
            searched = unread.len();
            if searched > MAX_LINE {
                return self.cut();
            }
            if self.fill()? == 0 {
                self.line = self.filled.clone();
                self.filled.start = self.filled.end;
                return Ok(!self.line.is_empty());
            }
        }
    }

    /// Keeps the beginning of a line that is too long, and skips the rest.
    fn cut(&mut self) -> io::Result<bool> {
        const KEPT: usize = 256;
        self.is_cut = true;
        self.buffer.copy_within(self.filled.start..self.filled.start + KEPT, 0);
        self.line = 0..KEPT;
        loop {
            self.filled = KEPT..KEPT;
            let read = self.fill()?;
            let rest = self.buffer.get(KEPT..KEPT + read).unwrap_or_default();
            match memchr(b'\n', rest) {
                Some(at) => {
                    self.filled.start = KEPT + at + 1;
                    return Ok(true);
                }
                None if read == 0 => return Ok(true),
                None => {}
            }
        }
    }

    /// Reads more bytes behind the unread ones. First moves those to the start of the buffer, unless a cut line is there.
    fn fill(&mut self) -> io::Result<usize> {
        if self.filled.start > 0 && !self.is_cut {
            self.buffer.copy_within(self.filled.clone(), 0);
            self.filled = 0..self.filled.len();
        }
        if self.buffer.len() < self.filled.end + CHUNK {
            self.buffer.resize(self.filled.end + CHUNK, 0);
        }
        loop {
            let room = self.buffer.get_mut(self.filled.end..).unwrap_or_default();
            match self.from.read(room) {
                Ok(read) => {
                    self.filled.end += read;
                    return Ok(read);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
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
        let mut lines = Lines::new(Drops(text, drop));
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

    #[test]
    fn a_line_can_come_again() {
        let mut lines = Lines::new(b"one\ntwo\n".as_slice());
        assert!(lines.advance().unwrap());
        lines.repeat_line();
        assert!(lines.advance().unwrap());
        assert_eq!((lines.line(), lines.number()), (&b"one"[..], 1));
        assert!(lines.advance().unwrap());
        assert_eq!(lines.line(), b"two");
        assert!(!lines.advance().unwrap());
    }
}
