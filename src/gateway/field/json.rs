//! Parses JSON piece by piece, and keeps only the fields that are looked for.

use smallvec::{SmallVec, smallvec};

use crate::ruleset::request_field::FieldPath;

/// A parser of JSON documents, one after the other. It takes the same memory however long they are.
#[derive(Clone, Debug, Default)]
pub(super) struct Json {
    state: State,
    /// How many objects and arrays are open, at most [`DEEPEST`].
    depth: usize,
    /// A bit for each open object or array: whether it is an object.
    objects: u128,
    /// The name or the text that is being read, if it is needed.
    text: TextBuffer,
    number: Number,
    mode: ParseMode,
    /// The search for each field.
    pub(super) searches: SmallVec<[Search; 2]>,
}

/// The rules that documents have to follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ParseMode {
    /// There may be several documents; of a repeated name the last one counts, and texts are not kept.
    #[default]
    Lenient,
    /// There is one object. A name on the way to a field must not be repeated. Names that differ only in case count as the
    /// same, as for some parsers, but only the exact name leads to a readable field.
    Strict,
}

/// The progress of the search for one field.
#[derive(Clone, Debug, Default)]
pub(super) struct Search {
    /// The number of open objects, from the outermost on, that are on the path.
    on_path: usize,
    /// Whether the name before the current value is the next one of the path.
    name_matches: bool,
    /// A bit for each open object on the path: whether it had the next name of the path already.
    seen: u32,
    /// The value of the field in this document, and in earlier ones.
    pub(super) found: Option<FoundValue>,
    pub(super) earlier: Option<FoundValue>,
    /// Whether a name on the path is repeated.
    pub(super) is_twice: bool,
}

/// The value of a field.
#[derive(Clone, Debug)]
pub(super) enum FoundValue {
    Number(Number),
    /// A text, if texts are kept.
    Text(Vec<u8>),
    Other,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Before a value; at the first item of a list, the end of the list may come instead.
    #[default]
    Value,
    FirstItem,
    /// Before the name of a member; at the first name of an object, the end of the object may come instead.
    Name,
    FirstName,
    Colon,
    AfterValue,
    Text(Text),
    Number,
    /// In `true`, `false` or `null`, with this rest to come.
    Word(&'static [u8]),
    /// The text is not JSON.
    Broken,
}

/// The state within a text, which may be a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Text {
    is_name: bool,
    is_kept: bool,
    escape: Escape,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    None,
    /// After a backslash.
    Begun,
    /// After so many digits of `\uXXXX`, and the number that they make up so far.
    Digits(u8, u32),
}

/// A text as far as it was read.
#[derive(Clone, Debug, Default)]
struct TextBuffer {
    bytes: Vec<u8>,
    /// The maximum number of bytes.
    longest: usize,
    /// The first half of a surrogate pair.
    high: Option<u32>,
    /// Whether it is too long, or holds half a surrogate pair.
    is_spoilt: bool,
}

/// The text of a number.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Number {
    bytes: [u8; MAX_NUMBER_LENGTH],
    length: usize,
}

const DEEPEST: usize = 128;
/// Longer numbers are not read.
const MAX_NUMBER_LENGTH: usize = 32;

impl Json {
    pub(super) fn new(mode: ParseMode, fields: usize, longest_text: usize) -> Self {
        let text = TextBuffer { longest: longest_text, ..TextBuffer::default() };
        Self { mode, text, searches: smallvec![Search::default(); fields], ..Self::default() }
    }

    /// Whether the text so far is not JSON.
    pub(super) fn is_broken(&self) -> bool {
        self.state == State::Broken
    }

    /// Whether a document is complete.
    pub(super) fn is_whole(&self) -> bool {
        self.state == State::AfterValue && self.depth == 0
    }

    /// Begins another document.
    pub(super) fn begin_document(&mut self) {
        for search in &mut self.searches {
            let earlier = search.found.take().or(search.earlier.take());
            *search = Search { earlier, ..Search::default() };
        }
        (self.state, self.depth) = (State::default(), 0);
    }

    /// Reads the next bytes; `fields` are the same in each call.
    pub(super) fn feed<F: AsRef<FieldPath>>(&mut self, fields: &[F], mut bytes: &[u8]) {
        let mut state = self.state;
        while let Some((byte, rest)) = bytes.split_first() {
            (state, bytes) = match state {
                State::Broken => break,
                State::Text(text) if text.escape == Escape::None => self.take_plain(text, fields, bytes),
                State::Text(text) => (self.take_escape(text, *byte), rest),
                State::Word([next, left @ ..]) if next == byte => match left {
                    [] => (State::AfterValue, rest),
                    left => (State::Word(left), rest),
                },
                State::Word(_) => (State::Broken, rest),
                State::Number if byte.is_ascii_digit() || b"+-.eE".contains(byte) => {
                    self.number.push(*byte);
                    (State::Number, rest)
                }
                State::Number => {
                    let number = self.number;
                    let found = || {
                        if number.length > MAX_NUMBER_LENGTH { FoundValue::Other } else { FoundValue::Number(number) }
                    };
                    self.store_value(fields, found);
                    (State::AfterValue, bytes)
                }
                state if matches!(byte, b' ' | b'\t' | b'\r' | b'\n') => (state, rest),
                state => (self.take_between(state, fields, *byte), rest),
            };
        }
        self.state = state;
    }

    /// Reads a byte between values and names that is not white space.
    fn take_between<F: AsRef<FieldPath>>(&mut self, state: State, fields: &[F], byte: u8) -> State {
        match (state, byte) {
            (State::FirstItem, b']') | (State::FirstName, b'}') => self.close(byte),
            (State::AfterValue, b']' | b'}') if self.depth > 0 => self.close(byte),
            (State::AfterValue, b',') if self.depth > 0 => match self.in_object() {
                true => State::Name,
                false => State::Value,
            },
            (State::AfterValue, _) if self.depth == 0 && self.mode == ParseMode::Lenient => {
                self.begin_document();
                self.begin_value(fields, byte)
            }
            (State::Name | State::FirstName, b'"') => {
                let is_kept = self.searches.iter().any(|search| search.on_path == self.depth);
                self.begin_text(true, is_kept)
            }
            (State::Colon, b':') => State::Value,
            (State::Value | State::FirstItem, _) => self.begin_value(fields, byte),
            _ => State::Broken,
        }
    }

    fn begin_value<F: AsRef<FieldPath>>(&mut self, fields: &[F], byte: u8) -> State {
        let in_object = self.in_object();
        for (search, field) in self.searches.iter_mut().zip(fields) {
            // a list is not on the path, so neither are its items
            search.name_matches = match self.depth {
                0 => true,
                depth => search.name_matches && in_object && depth == search.on_path,
            };
            if search.name_matches && self.depth > 0 {
                search.found = None;
            }
            let leads_on = self.depth < field.as_ref().0.len();
            // on the way to a field, `null` is an object that lacks it; as the whole document it is no object
            let may_lack_it = byte == b'{' || (byte == b'n' && self.depth > 0);
            if search.name_matches && leads_on && self.mode == ParseMode::Strict && !may_lack_it {
                search.found = Some(FoundValue::Other);
            }
        }
        match byte {
            b'{' | b'[' => self.open(fields, byte == b'{'),
            b'"' => {
                let is_kept = self.mode == ParseMode::Strict && self.is_searched(fields);
                if !is_kept {
                    self.store_value(fields, || FoundValue::Other);
                }
                self.begin_text(false, is_kept)
            }
            b't' => self.begin_word(fields, b"rue"),
            b'f' => self.begin_word(fields, b"alse"),
            // `null` counts as a missing value
            b'n' => State::Word(b"ull"),
            b'-' | b'0'..=b'9' => {
                self.number = Number::default();
                self.number.push(byte);
                State::Number
            }
            _ => State::Broken,
        }
    }

    fn begin_text(&mut self, is_name: bool, is_kept: bool) -> State {
        self.text.bytes.clear();
        (self.text.high, self.text.is_spoilt) = (None, false);
        State::Text(Text { is_name, is_kept, escape: Escape::None })
    }

    fn begin_word<F: AsRef<FieldPath>>(&mut self, fields: &[F], rest: &'static [u8]) -> State {
        self.store_value(fields, || FoundValue::Other);
        State::Word(rest)
    }

    fn open<F: AsRef<FieldPath>>(&mut self, fields: &[F], object: bool) -> State {
        self.store_value(fields, || FoundValue::Other);
        if self.depth >= DEEPEST {
            return State::Broken;
        }
        let bit = 1_u128 << self.depth;
        for (search, field) in self.searches.iter_mut().zip(fields) {
            if search.name_matches && object && self.depth < field.as_ref().0.len() && self.depth == search.on_path {
                search.seen &= !place(search.on_path);
                search.on_path = search.on_path.saturating_add(1);
            }
        }
        self.depth = self.depth.saturating_add(1);
        if object {
            self.objects |= bit;
            State::FirstName
        } else {
            self.objects &= !bit;
            State::FirstItem
        }
    }

    fn close(&mut self, byte: u8) -> State {
        if self.in_object() != (byte == b'}') {
            return State::Broken;
        }
        self.depth = self.depth.saturating_sub(1);
        for search in &mut self.searches {
            search.on_path = search.on_path.min(self.depth);
        }
        State::AfterValue
    }

    fn in_object(&self) -> bool {
        self.depth.checked_sub(1).is_some_and(|innermost| self.objects >> innermost & 1 == 1)
    }

    /// Whether the current value is one that is looked for.
    fn is_searched<F: AsRef<FieldPath>>(&self, fields: &[F]) -> bool {
        let mut all = self.searches.iter().zip(fields);
        all.any(|(search, field)| search.name_matches && self.depth == field.as_ref().0.len())
    }

    /// Stores the value that `value` makes for each field whose value is the current one.
    fn store_value<F: AsRef<FieldPath>>(&mut self, fields: &[F], value: impl Fn() -> FoundValue) {
        for (search, field) in self.searches.iter_mut().zip(fields) {
            if search.name_matches && self.depth == field.as_ref().0.len() {
                search.found = Some(value());
            }
        }
    }

    /// Reads the bytes of a text that stand for themselves, and the byte that ends them. Returns the rest of `bytes`, too.
    fn take_plain<'b, F: AsRef<FieldPath>>(&mut self, text: Text, fields: &[F], bytes: &'b [u8]) -> (State, &'b [u8]) {
        let length = match text.is_kept {
            true => plain_length(bytes),
            // a text that is not kept is skipped, whatever it holds
            false => memchr::memchr2(b'"', b'\\', bytes).unwrap_or(bytes.len()),
        };
        let (plain, rest) = bytes.split_at_checked(length).unwrap_or((bytes, &[]));
        if text.is_kept && !plain.is_empty() {
            self.text.push(plain);
        }
        match rest.split_first() {
            None => (State::Text(text), rest),
            Some((b'"', rest)) => (self.end_text(text, fields), rest),
            Some((b'\\', rest)) => (State::Text(Text { escape: Escape::Begun, ..text }), rest),
            // a control character
            Some((_, rest)) => (State::Broken, rest),
        }
    }

    fn end_text<F: AsRef<FieldPath>>(&mut self, text: Text, fields: &[F]) -> State {
        if text.is_name {
            self.end_name(fields, text.is_kept);
            return State::Colon;
        }
        if text.is_kept {
            let kept = std::mem::take(&mut self.text);
            self.store_value(fields, || kept.whole().map_or(FoundValue::Other, |text| FoundValue::Text(text.to_vec())));
            self.text = kept;
        }
        State::AfterValue
    }

    /// Reads a byte after a backslash.
    fn take_escape(&mut self, text: Text, byte: u8) -> State {
        let escape = match (text.escape, byte) {
            (Escape::None | Escape::Begun, b'u') => Escape::Digits(0, 0),
            (Escape::None | Escape::Begun, byte) => {
                let Some(meant) = unescaped(byte) else { return State::Broken };
                if text.is_kept {
                    self.text.push(&[meant]);
                }
                Escape::None
            }
            (Escape::Digits(read, number), byte) => {
                let Some(digit) = char::from(byte).to_digit(16) else { return State::Broken };
                let number = number << 4 | digit;
                if read == 3 {
                    if text.is_kept {
                        self.text.push_code(number);
                    }
                    Escape::None
                } else {
                    Escape::Digits(read.saturating_add(1), number)
                }
            }
        };
        State::Text(Text { escape, ..text })
    }

    fn end_name<F: AsRef<FieldPath>>(&mut self, fields: &[F], is_kept: bool) {
        let name = if is_kept { self.text.whole() } else { None };
        let Some(above) = self.depth.checked_sub(1) else { return };
        for (search, field) in self.searches.iter_mut().zip(fields) {
            let next = field.as_ref().0.get(above).filter(|_| search.on_path == self.depth);
            let (Some(name), Some(next)) = (name, next) else {
                search.name_matches = false;
                continue;
            };
            search.name_matches = name == next.as_bytes();
            if self.mode == ParseMode::Strict && (search.name_matches || is_variant(name, next)) {
                search.is_twice |= search.seen & place(above) != 0;
                search.seen |= place(above);
                if !search.name_matches {
                    search.found = Some(FoundValue::Other);
                }
            }
        }
    }
}

/// The bit of the object at this position from the outermost one.
fn place(position: usize) -> u32 {
    1_u32.checked_shl(u32::try_from(position).unwrap_or(u32::MAX)).unwrap_or(0)
}

/// Whether two names differ in case only.
fn is_variant(name: &[u8], of: &str) -> bool {
    // `ſ` and the kelvin sign are letters in another case, too
    fn folded(text: &str) -> impl Iterator<Item = char> {
        text.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase)
    }
    let is_plain = name.is_ascii() && of.is_ascii();
    match str::from_utf8(name) {
        _ if is_plain => name.eq_ignore_ascii_case(of.as_bytes()),
        Ok(name) => folded(name).eq(folded(of)),
        Err(_) => false,
    }
}

/// The number of bytes at the beginning that are content of a text as they stand.
fn plain_length(bytes: &[u8]) -> usize {
    let is_plain = |byte: &u8| *byte >= 0x20 && *byte != b'"' && *byte != b'\\';
    bytes.iter().position(|byte| !is_plain(byte)).unwrap_or(bytes.len())
}

const fn unescaped(byte: u8) -> Option<u8> {
    Some(match byte {
        b'"' | b'\\' | b'/' => byte,
        b'b' => 0x08,
        b'f' => 0x0c,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        _ => return None,
    })
}

// === impl TextBuffer ===

impl TextBuffer {
    fn push(&mut self, bytes: &[u8]) {
        self.is_spoilt |= self.high.take().is_some() || bytes.len() > self.longest.saturating_sub(self.bytes.len());
        if !self.is_spoilt {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// Adds the code of a `\uXXXX` escape: a character, or half a surrogate pair.
    fn push_code(&mut self, code: u32) {
        let code = match (self.high.take(), code) {
            (Some(high), 0xdc00..=0xdfff) => 0x10000 + ((high - 0xd800) << 10) + (code - 0xdc00),
            (None, 0xd800..=0xdbff) => {
                self.high = Some(code);
                return;
            }
            (None, code) => code,
            (Some(_), _) => u32::MAX,
        };
        match char::from_u32(code) {
            Some(character) => self.push(character.encode_utf8(&mut [0; 4]).as_bytes()),
            None => self.is_spoilt = true,
        }
    }

    fn whole(&self) -> Option<&[u8]> {
        (!self.is_spoilt && self.high.is_none()).then_some(&*self.bytes)
    }
}

// === impl Number ===

impl Number {
    fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.length) {
            *place = byte;
        }
        self.length = self.length.saturating_add(1);
    }

    /// The number as it is written.
    pub(super) fn text(&self) -> &str {
        self.bytes.get(..self.length).and_then(|bytes| str::from_utf8(bytes).ok()).unwrap_or_default()
    }
}
