//! The shapes of JSON lines: what stands between their values.
//!
//! A server writes lines of few shapes. What stands between the values of a line is kept when it is seen for the first
//! time, as a path through a tree; later lines are compared with it, and only their values are looked at. Many values are
//! those of an earlier line: these are compared together with what stands in front of them, as many at once as hardly ever
//! change.

mod learn;
mod runs;

use std::borrow::Cow;
use std::rc::Rc;

use memchr::memchr2;
use serde::de::IgnoredAny;
use serde_json::Number;

use self::runs::Run;
use crate::replay::fields::Slot;

/// When there are more pieces, or more bytes in them, everything is learnt anew.
const MOST_PIECES: usize = 1 << 14;
const MOST_BYTES: usize = 4 << 20;

/// All shapes that were learnt.
#[derive(Debug)]
pub(super) struct Shapes {
    /// The first one stands in front of every line, and is nothing.
    pieces: Vec<Piece>,
    bytes: usize,
}

/// What a value tells, each with the rank of its place.
type Slots = Rc<[(u8, Slot)]>;

/// What stands in front of a value, and that value; or what stands behind the last one.
#[derive(Debug, Default)]
struct Piece {
    text: Box<[u8]>,
    kind: Kind,
    slots: Slots,
    /// What may come behind it, what did so last first.
    next: Vec<usize>,
    /// Values from this one on as they were in an earlier line.
    run: Run,
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
}

/// How a line goes on.
enum Step {
    /// With values as they were in an earlier line, of which the first is that of this piece.
    Run(usize),
    /// With one value.
    Value,
    /// Not at all.
    End,
}

/// Where a line was gone through to: the piece of the last value, and what stands behind that value.
#[derive(Clone, Copy)]
struct Reached<'l> {
    last: usize,
    rest: &'l [u8],
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
    pub(super) fn walk<'l>(&mut self, line: &'l [u8], mut each: impl FnMut(&[(u8, Slot)], &Value<'l>)) -> bool {
        self.try_walk(line, &mut each).is_some()
    }

    fn try_walk<'l>(&mut self, line: &'l [u8], each: &mut impl FnMut(&[(u8, Slot)], &Value<'l>)) -> Option<()> {
        let mut reached = Reached { last: 0, rest: line };
        // the piece with which a run began that ends here
        let mut run_before = None;
        loop {
            let likely = *self.pieces.get(reached.last)?.next.first()?;
            let step = match self.pieces.get_mut(likely)?.take(likely, &mut reached, each) {
                Some(step) => step,
                None => self.take_another(&mut reached, each)?,
            };
            run_before = match (step, run_before) {
                (Step::Run(id), Some(before)) if self.join(before, id) => Some(before),
                (Step::Run(id), _) => Some(id),
                (Step::Value, _) => None,
                (Step::End, _) => return Some(()),
            };
        }
    }

    /// Goes on with a piece that is not the likely one.
    #[inline(never)] // mostly it is the same
    fn take_another<'l>(
        &mut self,
        reached: &mut Reached<'l>,
        each: &mut impl FnMut(&[(u8, Slot)], &Value<'l>),
    ) -> Option<Step> {
        let before = reached.last;
        for position in 1..self.pieces.get(before)?.next.len() {
            let id = *self.pieces.get(before)?.next.get(position)?;
            if let Some(step) = self.pieces.get_mut(id)?.take(id, reached, each) {
                self.pieces.get_mut(before)?.next.swap(0, position);
                return Some(step);
            }
        }
        None
    }
}

impl Piece {
    /// Goes on with this piece, whose position is `id`, and shows what it tells, if the line does.
    #[inline]
    fn take<'l>(
        &mut self,
        id: usize,
        reached: &mut Reached<'l>,
        each: &mut impl FnMut(&[(u8, Slot)], &Value<'l>),
    ) -> Option<Step> {
        let text = reached.rest;
        if let Some(behind) = self.run.behind(text) {
            for (slots, value) in self.run.told() {
                each(slots, &value.within(text)?);
            }
            *reached = Reached { last: self.run.last(), rest: behind };
            return Some(Step::Run(id));
        }
        let inside = text.strip_prefix(&*self.text)?;
        let (value, length) = match self.kind {
            Kind::Text => match plain_length(inside) {
                Some(length) => (Value::Plain(inside.get(..length)?), length),
                None => self.odd_text(text, inside)?,
            },
            Kind::Word => Word::read(inside).map(|(word, length)| (Value::Word(word), length))?,
            Kind::End => return inside.is_empty().then_some(Step::End),
        };
        if self.run.misses() {
            let bytes = text.get(..=self.text.len() + length)?;
            self.run.keep(id, &self.slots, bytes, self.text.len(), &value);
        }
        if !self.slots.is_empty() {
            each(&self.slots, &value);
        }
        *reached = Reached { last: id, rest: inside.get(length..)? };
        Some(Step::Value)
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
