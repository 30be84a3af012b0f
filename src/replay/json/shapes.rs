//! The shapes of JSON lines: what stands between their values.
//!
//! A server writes lines of few shapes. What stands between the values of a line is kept when it is seen for the first
//! time, as a path through a tree; later lines are compared with it, and only their values are looked at. Many values are
//! those of an earlier line: these are compared together with what stands in front of them.

mod learn;

use std::ops::Range;

use memchr::memchr2;
use serde::de::IgnoredAny;
use serde_json::Number;

use crate::replay::fields::Slot;

/// When there are more pieces, or more bytes in them, everything is learnt anew.
const MOST_PIECES: usize = 1 << 14;
const MOST_BYTES: usize = 4 << 20;

/// The longest value that is kept to be compared with, together with what stands in front of it.
const LONGEST_SEEN: usize = 256;

/// All shapes that were learnt.
#[derive(Debug)]
pub(super) struct Shapes {
    /// The first one stands in front of every line, and is nothing.
    pieces: Vec<Piece>,
    bytes: usize,
}

/// What stands in front of a value, and that value; or what stands behind the last one.
#[derive(Debug, Default)]
struct Piece {
    text: Box<[u8]>,
    kind: Kind,
    /// What the value tells.
    slots: Box<[(u8, Slot)]>,
    /// What may come behind it, what did so last first.
    next: Vec<usize>,
    seen: Seen,
}

/// An earlier value.
#[derive(Debug, Default)]
struct Seen {
    /// The text in front of it, the value and the byte behind it; nothing if there is none to compare with.
    bytes: Vec<u8>,
    /// What the value tells, if it has no quotes.
    word: Word,
    /// How often the value was the same, and how often another.
    hits: u64,
    misses: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    /// A string, between quotes that are part of the pieces beside it.
    Text,
    /// A number, `true`, `false` or `null`.
    Word,
    /// Nothing: the line ends.
    #[default]
    End,
}

/// A value without quotes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Word {
    /// `true`, `false` or `null`.
    #[default]
    Nothing,
    Whole(u64),
    Negative(i64),
    Float(f64),
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Raw {
    /// Where a string stands that holds no escapes, without its quotes.
    Plain(Range<usize>),
    /// Where a string stands that holds escapes, with its quotes.
    Escaped(Range<usize>),
    /// What has no quotes.
    Word(Word),
}

/// A step from one piece to the next.
struct Step {
    piece: usize,
    /// The value; nothing at the end of the line.
    value: Option<Raw>,
    /// Where the value ends.
    end: usize,
}

impl Default for Shapes {
    fn default() -> Self {
        Self { pieces: vec![Piece::default()], bytes: 0 }
    }
}

impl Shapes {
    /// Whether the line is JSON of a shape that is known. The values that tell something are shown to `each`, also of a line
    /// that turns out later to be none; where `each` refuses one, it is none.
    pub(super) fn walk(&mut self, line: &[u8], mut each: impl FnMut(&[(u8, Slot)], Raw) -> bool) -> bool {
        let has_control = has_control(line);
        let (mut last, mut at) = (0, 0);
        loop {
            let Some(step) = self.first_step(line, last, at).or_else(|| self.other_step(line, last, at)) else {
                return false;
            };
            let Some(value) = step.value else { return true };
            if has_control
                && let Raw::Plain(place) | Raw::Escaped(place) = &value
                && line.get(place.clone()).is_none_or(self::has_control)
            {
                return false;
            }
            let Some(piece) = self.pieces.get(step.piece) else { return false };
            if !piece.slots.is_empty() && !each(&piece.slots, value) {
                return false;
            }
            (last, at) = (step.piece, step.end);
        }
    }

    /// The step from the piece `last` to that which came behind it the last time.
    fn first_step(&mut self, line: &[u8], last: usize, at: usize) -> Option<Step> {
        let piece = *self.pieces.get(last)?.next.first()?;
        let (value, end) = self.pieces.get_mut(piece)?.value(line, at)?;
        Some(Step { piece, value, end })
    }

    /// The step from the piece `last` to another one that may come behind it.
    #[inline(never)] // most lines are like the one before
    fn other_step(&mut self, line: &[u8], last: usize, at: usize) -> Option<Step> {
        for position in 1..self.pieces.get(last)?.next.len() {
            let next = &mut self.pieces.get_mut(last)?.next;
            let piece = *next.get(position)?;
            if let Some((value, end)) = self.pieces.get_mut(piece)?.value(line, at) {
                self.pieces.get_mut(last)?.next.swap(0, position);
                return Some(Step { piece, value, end });
            }
        }
        None
    }
}

impl Piece {
    /// The value and where it ends, if this is what stands in the line from `at` on. At the end of the line there is none.
    fn value(&mut self, line: &[u8], at: usize) -> Option<(Option<Raw>, usize)> {
        if let Some(length) = self.seen.length(line.get(at..)?) {
            let value = match self.kind {
                Kind::Text => Raw::Plain(at + self.text.len()..at + length),
                Kind::Word | Kind::End => Raw::Word(self.seen.word),
            };
            return Some((Some(value), at + length));
        }
        let (value, end) = self.new_value(line, at)?;
        match value {
            Some(Raw::Plain(_)) => self.seen.keep(line.get(at..=end)?, Word::Nothing),
            Some(Raw::Word(word)) => self.seen.keep(line.get(at..=end)?, word),
            Some(Raw::Escaped(_)) | None => {}
        }
        Some((value, end))
    }

    fn new_value(&self, line: &[u8], at: usize) -> Option<(Option<Raw>, usize)> {
        let rest = line.get(at..)?.strip_prefix(&*self.text)?;
        let start = at + self.text.len();
        let (value, length) = match self.kind {
            Kind::End if rest.is_empty() => (None, 0),
            Kind::End => return None,
            Kind::Word => {
                let length = rest.iter().position(|byte| is_behind_word(*byte))?;
                (Some(Raw::Word(Word::read(rest.get(..length)?)?)), length)
            }
            Kind::Text => {
                let (length, is_escaped) = string(rest)?;
                let value = match is_escaped {
                    false => Raw::Plain(start..start + length),
                    true => {
                        let quoted = start.checked_sub(1)?..start + length + 1;
                        serde_json::from_slice::<IgnoredAny>(line.get(quoted.clone())?).ok()?;
                        Raw::Escaped(quoted)
                    }
                };
                (Some(value), length)
            }
        };
        Some((value, start + length))
    }
}

impl Seen {
    /// How much of `rest` the text and the value are, if they are what was seen.
    fn length(&mut self, rest: &[u8]) -> Option<usize> {
        if self.bytes.is_empty() || !rest.starts_with(&self.bytes) {
            return None;
        }
        self.hits = self.hits.wrapping_add(1);
        Some(self.bytes.len() - 1)
    }

    /// Keeps what is there now; or nothing, where that was hardly ever worth it.
    fn keep(&mut self, bytes: &[u8], word: Word) {
        const TRIES: u64 = 64;
        self.misses = self.misses.wrapping_add(1);
        self.bytes.clear();
        if bytes.len() <= LONGEST_SEEN && (self.misses < TRIES || self.misses < self.hits) {
            self.bytes.extend_from_slice(bytes);
            self.word = word;
        }
    }
}

impl Word {
    /// `None` if it is no JSON.
    fn read(word: &[u8]) -> Option<Self> {
        if let Some(short) = Self::short(word) {
            return Some(short);
        }
        if !word.first().is_some_and(|first| first.is_ascii_alphanumeric() || *first == b'-') {
            return None;
        }
        let Ok(number) = serde_json::from_slice::<Number>(word) else {
            // or a number that is too large
            return serde_json::from_slice::<IgnoredAny>(word).ok().map(|_| Self::Nothing);
        };
        let whole = number.as_u64().map(Self::Whole).or_else(|| number.as_i64().map(Self::Negative));
        whole.or_else(|| number.as_f64().map(Self::Float))
    }

    /// The same of a number like `12` or `0.125`, so short that it is exact as the quotient of two floats.
    #[expect(clippy::cast_precision_loss, reason = "of at most 15 digits")]
    fn short(word: &[u8]) -> Option<Self> {
        const POWERS: [f64; 15] = [1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14];
        if word.len() > 15 || matches!(word, [b'0', b'0'..=b'9', ..] | [b'.', ..] | [.., b'.'] | []) {
            return None;
        }
        let (mut digits, mut point) = (0_u64, None);
        for (at, byte) in word.iter().enumerate() {
            match byte {
                b'0'..=b'9' => digits = digits * 10 + u64::from(byte - b'0'),
                b'.' if point.is_none() => point = Some(at),
                _ => return None,
            }
        }
        match point {
            None => Some(Self::Whole(digits)),
            Some(point) => Some(Self::Float(digits as f64 / POWERS.get(word.len() - 1 - point)?)),
        }
    }
}

/// Whether there are bytes that may stand between the values of a line, but not in them.
fn has_control(text: &[u8]) -> bool {
    text.iter().fold(false, |has, byte| has | (*byte < b' '))
}

fn is_behind_word(byte: u8) -> bool {
    matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n')
}

/// The length of a string, whose first quote stands in front of `text`, and whether it holds escapes.
fn string(text: &[u8]) -> Option<(usize, bool)> {
    let (mut from, mut is_escaped) = (0, false);
    loop {
        let at = from + memchr2(b'"', b'\\', text.get(from..)?)?;
        match text.get(at)? {
            b'"' => return Some((at, is_escaped)),
            _ => (from, is_escaped) = (at + 2, true),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn short_numbers_are_read_as_any_other(
            number in prop_oneof!["-?[0-9]{1,9}(\\.[0-9]{0,8})?(e[+-]?[0-9]{1,2})?", "[0-9.]{0,17}"],
        ) {
            let expected = serde_json::from_str::<f64>(&number).ok();
            let read = match Word::read(number.as_bytes()) {
                Some(Word::Whole(whole)) => whole.to_string().parse().ok(),
                Some(Word::Negative(whole)) => whole.to_string().parse().ok(),
                Some(Word::Float(float)) => Some(float),
                Some(Word::Nothing) | None => None,
            };
            prop_assert_eq!(read, expected);
        }
    }
}
