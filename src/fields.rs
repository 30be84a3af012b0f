//! Header fields in the form in which HTTP/1.1 sends them, with the places of their names and values.

use http::{HeaderMap, HeaderName, HeaderValue};

/// A list of header fields, in their order.
///
/// The text of all lines (`name: value\r\n`) stands in one buffer, so that a head leaves as it is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    text: Vec<u8>,
    lines: Vec<Line>,
}

/// The places of one field in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    start: usize,
    name: usize,
    value: usize,
}

/// What stands between a name and its value, and behind a value.
const COLON: &[u8] = b": ";
const END: &[u8] = b"\r\n";

/// Fields that concern one connection only (RFC 9110, section 7.6.1), and those that frame a message, which each connection
/// does in its own way.
const HOP_BY_HOP: [&str; 10] = [
    "connection",
    "content-length",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

impl Fields {
    /// No fields, with room for so many and so many bytes.
    pub fn with_capacity(lines: usize, bytes: usize) -> Self {
        Self { text: Vec::with_capacity(bytes), lines: Vec::with_capacity(lines) }
    }

    /// Removes all fields and keeps the memory.
    pub fn clear(&mut self) {
        self.text.clear();
        self.lines.clear();
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Adds a field behind the others. The caller vouches for the name and the value: neither holds a line's end.
    pub fn push(&mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let (name, value) = (name.as_ref(), value.as_ref());
        let start = self.text.len();
        self.text.reserve(name.len() + value.len() + COLON.len() + END.len());
        for part in [name, COLON, value, END] {
            self.text.extend_from_slice(part);
        }
        self.lines.push(Line { start, name: name.len(), value: value.len() });
    }

    /// Adds a field whose value `write` appends to the text, under the same condition.
    pub fn push_with(&mut self, name: &str, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.text.len();
        self.text.extend_from_slice(name.as_bytes());
        self.text.extend_from_slice(COLON);
        let value = self.text.len();
        write(&mut self.text);
        self.lines.push(Line { start, name: name.len(), value: self.text.len().saturating_sub(value) });
        self.text.extend_from_slice(END);
    }

    /// Adds a field whose value is a number.
    pub fn push_number(&mut self, name: &str, value: u64) {
        self.push(name, itoa::Buffer::new().format(value));
    }

    /// All fields, in their order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.lines.iter().map(|line| {
            let (_, rest) = self.text.split_at_checked(line.start).unwrap_or_default();
            let (name, rest) = rest.split_at_checked(line.name).unwrap_or_default();
            let (_, rest) = rest.split_at_checked(COLON.len()).unwrap_or_default();
            (name, rest.get(..line.value).unwrap_or_default())
        })
    }

    /// The values of all fields with this name, in any case.
    pub fn get_all(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        let is_meant = move |found: &[u8]| found.eq_ignore_ascii_case(name.as_bytes());
        self.iter().filter(move |(found, _)| is_meant(found)).map(|(_, value)| value)
    }

    /// The value of the first field with this name.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.get_all(name).next()
    }

    /// Whether there is a field with this name.
    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Whether a list in the fields with this name holds `element`, in any case.
    pub fn lists(&self, name: &str, element: &str) -> bool {
        self.elements(name).any(|found| found.eq_ignore_ascii_case(element.as_bytes()))
    }

    /// The elements of the lists in the fields with this name.
    pub fn elements(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.get_all(name).flat_map(|value| value.split(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
    }

    /// The fields for the other end: those that concern this connection only, or that its `Connection` field names, are left
    /// out, and so are those that frame the message.
    pub fn end_to_end(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let nominates = self.contains("connection");
        self.iter().filter(move |(name, _)| {
            let is_nominated = || self.elements("connection").any(|nominated| nominated.eq_ignore_ascii_case(name));
            !is_hop_by_hop(name) && (!nominates || !is_nominated())
        })
    }

    /// The lines as they are sent, without the empty one that ends a head.
    pub fn as_bytes(&self) -> &[u8] {
        &self.text
    }

    /// The same fields for libraries.
    pub fn to_map(&self) -> HeaderMap {
        let mut map = HeaderMap::with_capacity(self.len());
        for (name, value) in self.iter() {
            if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
                map.append(name, value);
            }
        }
        map
    }
}

impl From<&HeaderMap> for Fields {
    fn from(map: &HeaderMap) -> Self {
        let mut fields = Self::default();
        for (name, value) in map {
            fields.push(name, value);
        }
        fields
    }
}

fn is_hop_by_hop(name: &[u8]) -> bool {
    HOP_BY_HOP.iter().any(|hop| name.eq_ignore_ascii_case(hop.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(all: &[(&str, &str)]) -> Fields {
        let mut fields = Fields::default();
        all.iter().for_each(|(name, value)| fields.push(name, value));
        fields
    }

    #[test]
    fn fields_are_found_in_any_case_and_sent_as_they_came() {
        let fields = fields(&[("Host", "a"), ("X-A", "1"), ("x-a", ""), ("Via", "1.1 b, 1.0 c")]);
        assert_eq!(fields.get_all("x-a").collect::<Vec<_>>(), [&b"1"[..], b""]);
        assert_eq!(fields.as_bytes(), b"Host: a\r\nX-A: 1\r\nx-a: \r\nVia: 1.1 b, 1.0 c\r\n");
        assert!(fields.lists("via", "1.0 C") && !fields.lists("via", "1.0"));
        assert_eq!((fields.get("host"), fields.get("hos"), fields.len()), (Some(&b"a"[..]), None, 4));
        assert_eq!(Fields::from(&fields.to_map()).get_all("X-a").count(), 2);
    }

    #[test]
    fn fields_of_one_connection_stay_on_it() {
        let fields = fields(&[
            ("Connection", "close, X-Hop"),
            ("Keep-Alive", "timeout=5"),
            ("x-hop", "1"),
            ("Content-Length", "3"),
            ("X-End", "2"),
        ]);
        assert_eq!(fields.end_to_end().collect::<Vec<_>>(), [(&b"X-End"[..], &b"2"[..])]);
    }
}
