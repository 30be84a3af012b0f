//! Shapes are learnt from lines that are known to be JSON.

use super::{Kind, MOST_BYTES, MOST_PIECES, Piece, Shapes, is_behind_word, string};
use crate::replay::fields::Place;

/// A list or an object that is open.
#[derive(Clone, Copy)]
struct Open<'p> {
    /// The place of what is in it; of an object, above that.
    place: Option<&'p Place>,
    is_object: bool,
}

impl Shapes {
    /// Learns the shape of a line that is JSON, whose fields are at the places below `root`.
    pub(crate) fn learn(&mut self, line: &[u8], root: &Place) {
        if self.pieces.len() > MOST_PIECES || self.bytes > MOST_BYTES {
            *self = Self::default();
        }
        let mut last = 0;
        for_each_value(line, root, |text, kind, place| last = self.behind(last, text, kind, place));
    }

    /// The piece like this that comes behind the piece `last`.
    fn behind(&mut self, last: usize, text: &[u8], kind: Kind, place: Option<&Place>) -> usize {
        let is_it = |id: &usize| self.pieces.get(*id).is_some_and(|piece| piece.kind == kind && *piece.text == *text);
        if let Some(known) = self.pieces.get(last).and_then(|piece| piece.next.iter().copied().find(is_it)) {
            return known;
        }
        let id = self.pieces.len();
        if let Some(last) = self.pieces.get_mut(last) {
            last.next.push(id);
        }
        let slots = place.map(|place| place.slots.as_slice().into()).unwrap_or_default();
        self.pieces.push(Piece { text: text.into(), kind, slots, ..Piece::default() });
        self.bytes = self.bytes.saturating_add(text.len());
        id
    }
}

/// Shows what stands in front of each value, the kind of the value and its place; and at last what stands at the end.
fn for_each_value<'p>(line: &[u8], root: &'p Place, mut each: impl FnMut(&[u8], Kind, Option<&'p Place>)) {
    let mut open: Vec<Open<'p>> = Vec::new();
    let (mut place, mut is_name) = (Some(root), false);
    let (mut shown, mut at) = (0, 0);
    while let Some(byte) = line.get(at) {
        let rest = line.get(at..).unwrap_or_default();
        match byte {
            b'{' | b'[' => {
                is_name = *byte == b'{';
                open.push(Open { place, is_object: is_name });
            }
            b'}' | b']' => drop(open.pop()),
            b',' => {
                let inner = open.last();
                place = inner.and_then(|inner| inner.place);
                is_name = inner.is_some_and(|inner| inner.is_object);
            }
            b':' => is_name = false,
            b'"' => {
                let inside = rest.get(1..).unwrap_or_default();
                let length = string(inside).map_or(inside.len(), |(length, _)| length);
                if is_name {
                    let name = rest.get(..length + 2).and_then(|name| serde_json::from_slice::<String>(name).ok());
                    let object = open.last().and_then(|inner| inner.place);
                    place = object.zip(name).and_then(|(object, name)| object.below(&name));
                } else {
                    each(line.get(shown..=at).unwrap_or_default(), Kind::Text, place);
                    shown = at + 1 + length;
                }
                at += 1 + length;
            }
            byte if is_behind_word(*byte) => {}
            _ => {
                each(line.get(shown..at).unwrap_or_default(), Kind::Word, place);
                let length = rest.iter().position(|byte| is_behind_word(*byte)).unwrap_or(rest.len());
                shown = at + length;
                // the byte behind it is looked at next
                at = shown - 1;
            }
        }
        at += 1;
    }
    each(line.get(shown..).unwrap_or_default(), Kind::End, None);
}
