//! Reads one number out of a JSON body or an event stream as it passes, without keeping it.
//!
//! A path of names leads to the number: `usage.total_tokens`. Of several documents or events the last one that has the
//! field counts, and of a name that is there twice the last. What cannot be read as JSON has no fields from there on.

use crate::ruleset::cost::{ReportedCost, tokens};

/// Looks for a field in what is fed to it. Takes the same memory however long that is.
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
    /// A reader of JSON documents, one after the other.
    pub fn of_json() -> Self {
        Self { json: Json::default(), line: None, after_return: false }
    }

    /// A reader of the JSON documents that are the data of events (`text/event-stream`).
    pub fn of_events() -> Self {
        Self { line: Some(Line::Name(0)), ..Self::of_json() }
    }

    /// The next bytes; `path` is the same every time.
    pub fn feed(&mut self, path: &[String], bytes: &[u8]) {
        for byte in bytes {
            match self.line {
                None => self.json.take(path, *byte),
                Some(line) => self.line = Some(self.take_of_line(line, path, *byte)),
            }
        }
    }

    /// What the field said, as far as was read.
    pub fn told(&self) -> ReportedCost {
        self.json.found.or(self.json.earlier).unwrap_or(ReportedCost::Nothing)
    }

    fn take_of_line(&mut self, line: Line, path: &[String], byte: u8) -> Line {
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
                Line::BeforeData | Line::Data => self.json.take(path, b'\n'),
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
                self.json.take(path, byte);
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
    /// How many of the open ones, from the outermost on, are objects on the path.
    on_path: usize,
    /// Whether the name before the current value is the next one of the path.
    hit: bool,
    name: Name,
    number: Number,
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

/// A name as far as it was read, compared with the one that is looked for.
#[derive(Clone, Copy, Debug, Default)]
struct Name {
    /// Whether all of it is as wanted so far.
    matches: bool,
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
        *self = Self { earlier: self.found.or(self.earlier), ..Self::default() };
    }

    fn take(&mut self, path: &[String], byte: u8) {
        self.state = match self.state {
            State::Broken => State::Broken,
            State::Text(text) => self.take_of_text(text, path, byte),
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
                self.tell(path, self.number.told());
                self.take_between(State::AfterValue, path, byte)
            }
            state => self.take_between(state, path, byte),
        };
    }

    /// Takes a byte between values and names.
    fn take_between(&mut self, state: State, path: &[String], byte: u8) -> State {
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
                self.begin_value(path, byte)
            }
            (State::Name | State::FirstName, b'"') => {
                self.name = Name { matches: self.depth == self.on_path, length: 0, high: None };
                State::Text(Text { is_name: true, escape: Escape::None })
            }
            (State::Colon, b':') => State::Value,
            (State::Value | State::FirstItem, _) => self.begin_value(path, byte),
            _ => State::Broken,
        }
    }

    fn begin_value(&mut self, path: &[String], byte: u8) -> State {
        // a list is not on the path, so neither are its items
        self.hit = match self.depth {
            0 => true,
            depth => self.hit && self.in_object() && depth == self.on_path,
        };
        if self.hit && self.depth > 0 {
            self.found = None;
        }
        match byte {
            b'{' | b'[' => self.open(path, byte == b'{'),
            b'"' => {
                self.tell(path, ReportedCost::Wrong);
                State::Text(Text { is_name: false, escape: Escape::None })
            }
            b't' => self.begin_word(path, b"rue"),
            b'f' => self.begin_word(path, b"alse"),
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

    fn begin_word(&mut self, path: &[String], rest: &'static [u8]) -> State {
        self.tell(path, ReportedCost::Wrong);
        State::Word(rest)
    }

    fn open(&mut self, path: &[String], object: bool) -> State {
        self.tell(path, ReportedCost::Wrong);
        if self.depth >= DEEPEST {
            return State::Broken;
        }
        let bit = 1_u128 << self.depth;
        if self.hit && object && self.depth < path.len() && self.depth == self.on_path {
            self.on_path = self.on_path.saturating_add(1);
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
        self.on_path = self.on_path.min(self.depth);
        State::AfterValue
    }

    fn in_object(&self) -> bool {
        self.depth.checked_sub(1).is_some_and(|innermost| self.objects >> innermost & 1 == 1)
    }

    /// The current value says this, if it is the one looked for.
    fn tell(&mut self, path: &[String], told: ReportedCost) {
        if self.hit && self.depth == path.len() {
            self.found = Some(told);
        }
    }

    fn take_of_text(&mut self, text: Text, path: &[String], byte: u8) -> State {
        let wanted =
            self.depth.checked_sub(1).and_then(|depth| path.get(depth)).map_or(&[][..], |name| name.as_bytes());
        let name = &mut self.name;
        let escape = match (text.escape, byte) {
            (Escape::None, b'"') => {
                if text.is_name {
                    self.hit = name.matches && name.high.is_none() && name.length == wanted.len();
                    return State::Colon;
                }
                return State::AfterValue;
            }
            (Escape::None, b'\\') => Escape::Begun,
            (Escape::None, 0..0x20) => return State::Broken,
            (Escape::None, byte) => {
                name.push(wanted, byte);
                Escape::None
            }
            (Escape::Begun, b'u') => Escape::Digits(0, 0),
            (Escape::Begun, byte) => {
                let Some(meant) = unescaped(byte) else { return State::Broken };
                name.push(wanted, meant);
                Escape::None
            }
            (Escape::Digits(read, number), byte) => {
                let Some(digit) = char::from(byte).to_digit(16) else { return State::Broken };
                let number = number << 4 | digit;
                if read == 3 {
                    name.push_code(wanted, number);
                    Escape::None
                } else {
                    Escape::Digits(read.saturating_add(1), number)
                }
            }
        };
        State::Text(Text { escape, ..text })
    }
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

// === impl Name ===

impl Name {
    fn push(&mut self, wanted: &[u8], byte: u8) {
        self.matches &= self.high.take().is_none() && wanted.get(self.length) == Some(&byte);
        self.length = self.length.saturating_add(1);
    }

    /// A number of four digits: a character, or half of one.
    fn push_code(&mut self, wanted: &[u8], code: u32) {
        let code = match (self.high.take(), code) {
            (Some(high), 0xdc00..=0xdfff) => 0x10000 + ((high - 0xd800) << 10) + (code - 0xdc00),
            (None, 0xd800..=0xdbff) => {
                self.high = Some(code);
                return;
            }
            (None, code) => code,
            (Some(_), _) => {
                self.matches = false;
                return;
            }
        };
        let Some(character) = char::from_u32(code) else {
            self.matches = false;
            return;
        };
        for byte in character.encode_utf8(&mut [0; 4]).bytes() {
            self.push(wanted, byte);
        }
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

    fn told(&self) -> ReportedCost {
        let text = self.bytes.get(..self.length).and_then(|bytes| std::str::from_utf8(bytes).ok());
        text.and_then(tokens).map_or(ReportedCost::Wrong, ReportedCost::Cost)
    }
}

#[cfg(test)]
mod tests;
