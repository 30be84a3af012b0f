//! Bytes, taken apart.

/// What is left of an input.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    /// The next byte; 0 at the end.
    pub(crate) fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().map_or((0, self.0), |(first, rest)| (*first, rest));
        self.0 = rest;
        first
    }

    /// Up to the next line feed.
    pub(crate) fn line(&mut self) -> &'a [u8] {
        let end = self.0.iter().position(|byte| *byte == b'\n').unwrap_or(self.0.len());
        let (line, rest) = self.0.split_at(end);
        self.0 = rest.get(1..).unwrap_or_default();
        line
    }

    /// The same, if it is text.
    pub(crate) fn text(&mut self) -> &'a str {
        str::from_utf8(self.line()).unwrap_or_default()
    }

    /// One of these.
    pub(crate) fn one_of<'t, T>(&mut self, all: &'t [T]) -> &'t T {
        &all[usize::from(self.byte()) % all.len()]
    }
}

/// A number that hangs on all bytes.
pub(crate) fn mixed(data: &[u8]) -> usize {
    data.iter().fold(7, |hash: usize, byte| hash.wrapping_mul(31).wrapping_add(usize::from(*byte)))
}
