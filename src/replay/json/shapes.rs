//! The shapes of JSON lines: what stands between their values.
//!
//! A server writes lines of few shapes. What stands between the values of a line is kept when it is seen for the first
//! time, as a path through a tree; later lines are compared with it, and only their values are looked at. Many values are
//! those of an earlier line: these are compared together with what stands in front of them.

mod learn;

use std::borrow::Cow;

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

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value<'l> {
    /// A string that is printable ASCII as it stands in the line.
    Plain(&'l [u8]),
    /// Any other string.
    Text(Cow<'l, str>),
    /// What has no quotes.
    Word(Word),
    /// There is none: the line ends.
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

impl Default for Shapes {
    fn default() -> Self {
        Self { pieces: vec![Piece::default()], bytes: 0 }
    }
}

impl Shapes {
    /// Whether the line is JSON of a shape that is known. The values that tell something are shown to `each`, also of a line
    /// that turns out later to be none.
    pub(super) fn walk<'l>(&mut self, line: &'l [u8], mut each: impl FnMut(&[(u8, Slot)], Value<'l>)) -> bool {
        let (mut last, mut rest) = (0, line);
        loop {
            let Some(first) = self.first_behind(last) else { return false };
            let taken = self.pieces.get_mut(first).and_then(|piece| piece.take(rest));
            let Some((id, value, behind)) =
                taken.map(|(value, behind)| (first, value, behind)).or_else(|| self.take_other(last, rest))
            else {
                return false;
            };
            match (value, self.pieces.get(id)) {
                (Value::End, _) => return true,
                (value, Some(piece)) if !piece.slots.is_empty() => each(&piece.slots, value),
                _ => {}
            }
            (last, rest) = (id, behind);
        }
    }

    /// The piece that came behind the piece `last` the last time.
    fn first_behind(&self, last: usize) -> Option<usize> {
        self.pieces.get(last)?.next.first().copied()
    }

    /// Another piece that may come behind the piece `last`, if `text` begins with it, its value and what stands behind that.
    #[inline(never)] // most lines are like the one before
    fn take_other<'l>(&mut self, last: usize, text: &'l [u8]) -> Option<(usize, Value<'l>, &'l [u8])> {
        for position in 1..self.pieces.get(last)?.next.len() {
            let piece = *self.pieces.get(last)?.next.get(position)?;
            if let Some((value, behind)) = self.pieces.get_mut(piece)?.take(text) {
                self.pieces.get_mut(last)?.next.swap(0, position);
                return Some((piece, value, behind));
            }
        }
        None
    }
}

impl Piece {
    /// The value and what stands behind it, if `text` begins with this piece.
    fn take<'l>(&mut self, text: &'l [u8]) -> Option<(Value<'l>, &'l [u8])> {
        if let Some((seen, behind)) = self.seen.take(text) {
            let value = match self.kind {
                Kind::Text => Value::Plain(seen.get(self.text.len()..)?),
                Kind::Word | Kind::End => Value::Word(self.seen.word),
            };
            return Some((value, behind));
        }
        let inside = text.strip_prefix(&*self.text)?;
        let (value, length) = match self.kind {
            Kind::End => return inside.is_empty().then_some((Value::End, inside)),
            Kind::Word => Word::read(inside).map(|(word, length)| (Value::Word(word), length))?,
            Kind::Text => match plain_length(inside) {
                Some(length) => (Value::Plain(inside.get(..length)?), length),
                None => self.odd_text(text, inside)?,
            },
        };
        match value {
            Value::Plain(_) => self.seen.keep(text.get(..=self.text.len() + length)?, Word::Nothing),
            Value::Word(word) => self.seen.keep(text.get(..=self.text.len() + length)?, word),
            Value::Text(_) | Value::End => {}
        }
        Some((value, inside.get(length..)?))
    }

    /// A string that is not plain, and how long it is as it stands `inside` its quotes.
    #[inline(never)] // hardly any is
    fn odd_text<'l>(&self, text: &'l [u8], inside: &'l [u8]) -> Option<(Value<'l>, usize)> {
        let (length, is_escaped) = string(inside)?;
        let raw = inside.get(..length)?;
        if raw.iter().any(|byte| *byte < b' ') {
            return None;
        }
        if !is_escaped {
            return Some((Value::Text(String::from_utf8_lossy(raw)), length));
        }
        let quoted = text.get(self.text.len().checked_sub(1)?..)?.get(..length + 2)?;
        let value = match self.slots.is_empty() {
            true => serde_json::from_slice::<IgnoredAny>(quoted).ok().map(|_| String::new()),
            false => serde_json::from_slice::<String>(quoted).ok(),
        };
        Some((Value::Text(Cow::Owned(value?)), length))
    }
}

impl Seen {
    /// What was seen and what stands behind it, if `text` begins with that.
    fn take<'l>(&mut self, text: &'l [u8]) -> Option<(&'l [u8], &'l [u8])> {
        if self.bytes.is_empty() || !text.starts_with(&self.bytes) {
            return None;
        }
        self.hits = self.hits.wrapping_add(1);
        text.split_at_checked(self.bytes.len() - 1)
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
    /// The word at the beginning of `text` and its length. `None` if it is no JSON.
    fn read(text: &[u8]) -> Option<(Self, usize)> {
        Self::read_short(text).or_else(|| {
            let length = text.iter().position(|byte| is_behind_word(*byte))?;
            Some((Self::read_any(text.get(..length)?)?, length))
        })
    }

    /// The same of a number like `12` or `0.125`, so short that it is exact as the quotient of two floats.
    #[expect(clippy::cast_precision_loss, reason = "of at most 15 digits")]
    fn read_short(text: &[u8]) -> Option<(Self, usize)> {
        const POWERS: [f64; 15] = [1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14];
        if matches!(text, [b'0', b'0'..=b'9', ..] | [b'.', ..]) {
            return None;
        }
        let (mut digits, mut point) = (0_u64, None);
        for (at, byte) in text.iter().enumerate().take(POWERS.len() + 1) {
            match byte {
                b'0'..=b'9' => digits = digits * 10 + u64::from(byte - b'0'),
                b'.' if point.is_none() => point = Some(at + 1),
                _ if at == 0 || point == Some(at) || !is_behind_word(*byte) => return None,
                _ => {
                    let word = match point {
                        None => Self::Whole(digits),
                        Some(point) => Self::Float(digits as f64 / POWERS.get(at - point)?),
                    };
                    return Some((word, at));
                }
            }
        }
        None
    }

    #[inline(never)] // most are short
    fn read_any(word: &[u8]) -> Option<Self> {
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
}

fn is_behind_word(byte: u8) -> bool {
    matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n')
}

/// The length of a string of printable ASCII without escapes, whose first quote stands in front of `text`.
///
/// Eight bytes at a time: taking something away from each sets the highest bit of those that are too small, and perhaps
/// of some behind them, so that the first of these bits is right.
fn plain_length(text: &[u8]) -> Option<usize> {
    const fn eight(byte: u8) -> u64 {
        u64::from_ne_bytes([byte; 8])
    }
    let (eights, rest) = text.as_chunks();
    let mut at = 0;
    for bytes in eights {
        let bytes = u64::from_le_bytes(*bytes);
        let is_control = bytes.wrapping_sub(eight(b' '));
        let is_quote = (bytes ^ eight(b'"')).wrapping_sub(eight(1));
        let is_backslash = (bytes ^ eight(b'\\')).wrapping_sub(eight(1));
        let stops = (bytes | is_control | is_quote | is_backslash) & eight(0x80);
        if stops != 0 {
            at += stops.trailing_zeros() as usize / 8;
            return (text.get(at) == Some(&b'"')).then_some(at);
        }
        at += 8;
    }
    let is_plain = |byte: &&u8| matches!(byte, b' '..=0x7f) && !matches!(byte, b'"' | b'\\');
    at += rest.iter().take_while(is_plain).count();
    (text.get(at) == Some(&b'"')).then_some(at)
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
            let text = format!("{number},");
            let (word, length) = Word::read(text.as_bytes()).unzip();
            let read = match word {
                Some(Word::Whole(whole)) => whole.to_string().parse().ok(),
                Some(Word::Negative(whole)) => whole.to_string().parse().ok(),
                Some(Word::Float(float)) => Some(float),
                Some(Word::Nothing) | None => None,
            };
            prop_assert_eq!(read, expected);
            prop_assert!(length.is_none_or(|length| length == number.len()));
        }

        #[test]
        fn a_string_is_plain_up_to_its_quote(text in prop_oneof![
            "[ -~]{0,40}",
            "[a-z/]{0,20}[\u{0}-\u{ff}][a-z/]{0,20}\"[a-z\u{0}-\u{ff}]{0,20}",
        ]) {
            let before = text.split('"').next().unwrap();
            let is_plain = |c: char| matches!(c, ' '..='\u{7f}') && c != '\\';
            let expected = (before.len() < text.len() && before.chars().all(is_plain)).then_some(before.len());
            prop_assert_eq!(plain_length(text.as_bytes()), expected);
        }
    }
}
