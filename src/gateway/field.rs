//! Reads numbers out of a JSON body or an event stream in one pass, without keeping it.
//!
//! A path of names leads to each number: `usage.total_tokens`. Of several documents or events the last one that has the
//! field counts, and of a name that is there twice the last. What cannot be read as JSON has no fields from there on.

use smallvec::{SmallVec, smallvec};

use crate::ruleset::cost::{FieldPart, ReportedCost, tokens};

/// Looks for fields in what is fed to it. Takes the same memory however long that is.
#[derive(Clone, Debug)]
pub struct FieldReader {
    json: Json,
    /// In an event stream, where in a line it is.
    line: Option<Line>,
    /// Whether the last byte was a carriage return: a line feed after it ends no other line.
    after_return: bool,
}

/// Where in a line of an event stream it is.
#[derive(Clone, Copy, Debug)]
enum Line {
    /// After so many bytes of [`DATA`].
    Name(usize),
    /// Before the first byte of data, where one space may stand.
    BeforeData,
    /// In data.
    Data,
    /// In something else.
    Other,
}

const DATA: &[u8] = b"data:";

impl FieldReader {
    /// A reader of JSON documents, one after the other, that looks for so many fields.
    pub fn of_json(fields: usize) -> Self {
        let json = Json { searches: smallvec![Search::default(); fields], ..Json::default() };
        Self { json, line: None, after_return: false }
    }

    /// A reader of the JSON documents that are the data of events (`text/event-stream`).
    pub fn of_events(fields: usize) -> Self {
        Self { line: Some(Line::Name(0)), ..Self::of_json(fields) }
    }

    /// The next bytes; `fields` are the same every time.
    pub fn feed(&mut self, fields: &[FieldPart], bytes: &[u8]) {
        for byte in bytes {
            match self.line {
                None => self.json.take(fields, *byte),
                Some(line) => self.line = Some(self.take_of_line(line, fields, *byte)),
            }
        }
    }

    /// What each field said, as far as was read.
    pub fn told(&self) -> impl Iterator<Item = ReportedCost> {
        self.json.searches.iter().map(|search| search.found.or(search.earlier).unwrap_or(ReportedCost::Nothing))
    }

    fn take_of_line(&mut self, line: Line, fields: &[FieldPart], byte: u8) -> Line {
        let feeds = byte == b'\n';
        if feeds && std::mem::take(&mut self.after_return) {
            return line;
        }
        self.after_return = byte == b'\r';
        if feeds || self.after_return {
            match line {
                // an empty line ends an event
                Line::Name(0) => self.json.begin_anew(),
                // several lines of data are one text
                Line::BeforeData | Line::Data => self.json.take(fields, b'\n'),
                Line::Name(_) | Line::Other => {}
            }
            return Line::Name(0);
        }
        match line {
            Line::Name(read) if DATA.get(read) == Some(&byte) => match read.saturating_add(1) {
                read if read == DATA.len() => Line::BeforeData,
                read => Line::Name(read),
            },
            Line::BeforeData if byte == b' ' => Line::Data,
            Line::BeforeData | Line::Data => {
                self.json.take(fields, byte);
                Line::Data
            }
            Line::Name(_) | Line::Other => Line::Other,
        }
    }
}

/// JSON documents, a byte at a time.
#[derive(Clone, Debug, Default)]
struct Json {
    state: State,
    /// How many objects and arrays are open, at most [`DEEPEST`].
    depth: usize,
    /// A bit for each that is open: whether it is an object.
    objects: u128,
    name: Name,
    number: Number,
    /// One for each field.
    searches: SmallVec<[Search; 2]>,
}

/// How far one field is found.
#[derive(Clone, Copy, Debug, Default)]
struct Search {
    /// How many of the open objects and arrays, from the outermost on, are objects on the path.
    on_path: usize,
    /// Whether the current name, as far as it was read, is the next one of the path.
    matches: bool,
    /// Whether the name before the current value is the next one of the path.
    hit: bool,
    /// What the field says in this document, and in those before it.
    found: Option<ReportedCost>,
    earlier: Option<ReportedCost>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Before a value; of a list that has just begun, its end may come instead.
    #[default]
    Value,
    FirstItem,
    /// Before the name of a member; of an object that has just begun, its end may come instead.
    Name,
    FirstName,
    Colon,
    AfterValue,
    Text(Text),
    Number,
    /// In `true`, `false` or `null`, with this left of it.
    Word(&'static [u8]),
    /// This is no JSON.
    Broken,
}

/// In a text, which may be a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Text {
    is_name: bool,
    escape: Escape,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    None,
    /// After a backslash.
    Begun,
    /// After so many digits of `\uXXXX`, which make up this number.
    Digits(u8, u32),
}

/// A name as far as it was read.
#[derive(Clone, Copy, Debug, Default)]
struct Name {
    /// How many bytes were read.
    length: usize,
    /// The first half of a character of two.
    high: Option<u32>,
}

/// The text of a number.
#[derive(Clone, Copy, Debug, Default)]
struct Number {
    bytes: [u8; LONGEST_NUMBER],
    length: usize,
}

const DEEPEST: usize = 128;
/// Longer numbers are not read.
const LONGEST_NUMBER: usize = 32;

impl Json {
    /// Another document follows.
    fn begin_anew(&mut self) {
        let mut searches = std::mem::take(&mut self.searches);
        for search in &mut searches {
            *search = Search { earlier: search.found.or(search.earlier), ..Search::default() };
        }
        *self = Self { searches, ..Self::default() };
    }

    fn take(&mut self, fields: &[FieldPart], byte: u8) {
        self.state = match self.state {
            State::Broken => State::Broken,
            State::Text(text) => self.take_of_text(text, fields, byte),
            State::Word([next, rest @ ..]) if *next == byte => match rest {
                [] => State::AfterValue,
                rest => State::Word(rest),
            },
            State::Word(_) => State::Broken,
            State::Number if byte.is_ascii_digit() || b"+-.eE".contains(&byte) => {
                self.number.push(byte);
                State::Number
            }
            State::Number => {
                self.tell(fields, self.number.told());
                self.take_between(State::AfterValue, fields, byte)
            }
            state => self.take_between(state, fields, byte),
        };
    }

    /// Takes a byte between values and names.
    fn take_between(&mut self, state: State, fields: &[FieldPart], byte: u8) -> State {
        match (state, byte) {
            (state, b' ' | b'\t' | b'\r' | b'\n') => state,
            (State::FirstItem, b']') | (State::FirstName, b'}') => self.close(byte),
            (State::AfterValue, b']' | b'}') if self.depth > 0 => self.close(byte),
            (State::AfterValue, b',') if self.depth > 0 => match self.in_object() {
                true => State::Name,
                false => State::Value,
            },
            (State::AfterValue, _) if self.depth == 0 => {
                self.begin_anew();
                self.begin_value(fields, byte)
            }
            (State::Name | State::FirstName, b'"') => {
                self.name = Name::default();
                for search in &mut self.searches {
                    search.matches = search.on_path == self.depth;
                }
                State::Text(Text { is_name: true, escape: Escape::None })
            }
            (State::Colon, b':') => State::Value,
            (State::Value | State::FirstItem, _) => self.begin_value(fields, byte),
            _ => State::Broken,
        }
    }

    fn begin_value(&mut self, fields: &[FieldPart], byte: u8) -> State {
        let in_object = self.in_object();
        for search in &mut self.searches {
            // a list is not on the path, so neither are its items
            search.hit = match self.depth {
                0 => true,
                depth => search.hit && in_object && depth == search.on_path,
            };
            if search.hit && self.depth > 0 {
                search.found = None;
            }
        }
        match byte {
            b'{' | b'[' => self.open(fields, byte == b'{'),
            b'"' => {
                self.tell(fields, ReportedCost::Wrong);
                State::Text(Text { is_name: false, escape: Escape::None })
            }
            b't' => self.begin_word(fields, b"rue"),
            b'f' => self.begin_word(fields, b"alse"),
            // as if it were not there
            b'n' => State::Word(b"ull"),
            b'-' | b'0'..=b'9' => {
                self.number = Number::default();
                self.number.push(byte);
                State::Number
            }
            _ => State::Broken,
        }
    }

    fn begin_word(&mut self, fields: &[FieldPart], rest: &'static [u8]) -> State {
        self.tell(fields, ReportedCost::Wrong);
        State::Word(rest)
    }

    fn open(&mut self, fields: &[FieldPart], object: bool) -> State {
        self.tell(fields, ReportedCost::Wrong);
        if self.depth >= DEEPEST {
            return State::Broken;
        }
        let bit = 1_u128 << self.depth;
        for (search, field) in self.searches.iter_mut().zip(fields) {
            if search.hit && object && self.depth < field.path.len() && self.depth == search.on_path {
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

    /// The current value says this, where it is one looked for.
    fn tell(&mut self, fields: &[FieldPart], told: ReportedCost) {
        for (search, field) in self.searches.iter_mut().zip(fields) {
            if search.hit && self.depth == field.path.len() {
                search.found = Some(told);
            }
        }
    }

    fn take_of_text(&mut self, text: Text, fields: &[FieldPart], byte: u8) -> State {
        let escape = match (text.escape, byte) {
            (Escape::None, b'"') if text.is_name => {
                self.end_name(fields);
                return State::Colon;
            }
            (Escape::None, b'"') => return State::AfterValue,
            (Escape::None, b'\\') => Escape::Begun,
            (Escape::None, 0..0x20) => return State::Broken,
            (Escape::None, byte) => {
                if text.is_name {
                    self.push_to_name(fields, byte);
                }
                Escape::None
            }
            (Escape::Begun, b'u') => Escape::Digits(0, 0),
            (Escape::Begun, byte) => {
                let Some(meant) = unescaped(byte) else { return State::Broken };
                if text.is_name {
                    self.push_to_name(fields, meant);
                }
                Escape::None
            }
            (Escape::Digits(read, number), byte) => {
                let Some(digit) = char::from(byte).to_digit(16) else { return State::Broken };
                let number = number << 4 | digit;
                if read == 3 {
                    if text.is_name {
                        self.push_code_to_name(fields, number);
                    }
                    Escape::None
                } else {
                    Escape::Digits(read.saturating_add(1), number)
                }
            }
        };
        State::Text(Text { escape, ..text })
    }

    fn push_to_name(&mut self, fields: &[FieldPart], byte: u8) {
        let is_character = self.name.high.take().is_none();
        for (search, field) in self.searches.iter_mut().zip(fields) {
            search.matches &= is_character && wanted(field, self.depth).get(self.name.length) == Some(&byte);
        }
        self.name.length = self.name.length.saturating_add(1);
    }

    /// A number of four digits: a character, or half of one.
    fn push_code_to_name(&mut self, fields: &[FieldPart], code: u32) {
        let code = match (self.name.high.take(), code) {
            (Some(high), 0xdc00..=0xdfff) => 0x10000 + ((high - 0xd800) << 10) + (code - 0xdc00),
            (None, 0xd800..=0xdbff) => {
                self.name.high = Some(code);
                return;
            }
            (None, code) => code,
            (Some(_), _) => return self.mismatch(),
        };
        let Some(character) = char::from_u32(code) else { return self.mismatch() };
        for byte in character.encode_utf8(&mut [0; 4]).bytes() {
            self.push_to_name(fields, byte);
        }
    }

    /// The current name is none that is looked for.
    fn mismatch(&mut self) {
        self.searches.iter_mut().for_each(|search| search.matches = false);
    }

    fn end_name(&mut self, fields: &[FieldPart]) {
        for (search, field) in self.searches.iter_mut().zip(fields) {
            let is_whole = self.name.high.is_none() && self.name.length == wanted(field, self.depth).len();
            search.hit = search.matches && is_whole;
        }
    }
}

/// The name that leads on to `field` in an object of this depth.
fn wanted(field: &FieldPart, depth: usize) -> &[u8] {
    depth.checked_sub(1).and_then(|depth| field.path.get(depth)).map_or(&[], |name| name.as_bytes())
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

// === impl Number ===

impl Number {
    fn push(&mut self, byte: u8) {
        if let Some(place) = self.bytes.get_mut(self.length) {
            *place = byte;
        }
        self.length = self.length.saturating_add(1);
    }

    fn told(&self) -> ReportedCost {
        let text = self.bytes.get(..self.length).and_then(|bytes| std::str::from_utf8(bytes).ok());
        text.and_then(tokens).map_or(ReportedCost::Wrong, ReportedCost::Cost)
    }
}

#[cfg(test)]
mod tests;
