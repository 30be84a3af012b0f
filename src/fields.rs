//! Header fields as HTTP/1.1 sends them, with the positions of their names and values.

use http::{HeaderMap, HeaderName, HeaderValue};

/// A list of header fields, in their order.
///
/// The text of all lines (`name: value\r\n`) is in one buffer, so that a head is sent as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    text: Vec<u8>,
    lines: Vec<FieldSpan>,
    /// The marks of all names. Most lookups are for an absent name; the marks show that without a search in the lines.
    marks: NameFilter,
}

/// The positions of one field in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FieldSpan {
    start: usize,
    /// The length of its name.
    name: usize,
    /// The start of the next line.
    end: usize,
}

/// One field of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'f> {
    /// Its name, as it was received.
    pub name: &'f [u8],
    /// Its value, without white space around it.
    pub value: &'f [u8],
    line: &'f [u8],
}

/// A set of names with false positives: a Bloom filter of one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NameFilter(u64);

/// The text between a name and its value, and the end of a line.
const COLON: &[u8] = b": ";
const END: &[u8] = b"\r\n";

/// Hop-by-hop fields (RFC 9110, section 7.6.1), and the fields that frame a message, since each connection frames messages
/// in its own way.
const HOP_BY_HOP: [&str; 10] = [
    "connection", "content-length", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
    "te", "trailer", "transfer-encoding", "upgrade",
];
const HOP_BY_HOP_MARKS: NameFilter = NameFilter::of_all(&HOP_BY_HOP);

// === impl NameFilter ===

impl NameFilter {
    /// The mark of one name, in any case.
    const fn of(name: &[u8]) -> Self {
        match name {
            [] => Self(1),
            [one] => Self(2 << (*one & 31)),
            [first, .., last] => {
                let (first, last) = ((*first & 31) as usize, (*last & 31) as usize);
                Self(1 << ((first + 7 * last + 11 * name.len()) % 64))
            }
        }
    }

    const fn of_all(names: &[&str]) -> Self {
        let (mut marks, mut position) = (0, 0);
        while position < names.len() {
            marks |= Self::of(names[position].as_bytes()).0;
            position += 1;
        }
        Self(marks)
    }

    const fn may_hold(self, name: Self) -> bool {
        self.0 & name.0 != 0
    }
}

// === impl Fields ===

impl Fields {
    /// An empty list, with room for this many lines and bytes.
    pub fn with_capacity(lines: usize, bytes: usize) -> Self {
        Self { text: Vec::with_capacity(bytes), lines: Vec::with_capacity(lines), marks: NameFilter::default() }
    }

    /// Removes all fields and keeps the memory.
    pub fn clear(&mut self) {
        self.text.clear();
        self.lines.clear();
        self.marks = NameFilter::default();
    }

    /// The number of fields.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether there are no fields.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Adds a field behind the others. The caller guarantees that neither the name nor the value holds a line break.
    pub fn push(&mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let value = value.as_ref();
        self.push_with(name, value.len(), |text| text.extend_from_slice(value));
    }

    /// Adds a field whose value `write` appends to the text, about `length` bytes. The condition of `push` applies.
    pub fn push_with(&mut self, name: impl AsRef<[u8]>, length: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let name = name.as_ref();
        let start = self.text.len();
        self.text.reserve(name.len().saturating_add(length).saturating_add(COLON.len() + END.len()));
        self.text.extend_from_slice(name);
        self.text.extend_from_slice(COLON);
        write(&mut self.text);
        self.text.extend_from_slice(END);
        self.add_line(start, name);
    }

    /// Adds a field whose value is a number.
    pub fn push_number(&mut self, name: &str, value: u64) {
        self.push(name, itoa::Buffer::new().format(value));
    }

    /// Adds a field of another list.
    pub fn push_field(&mut self, field: Field<'_>) {
        let start = self.text.len();
        self.text.extend_from_slice(field.line);
        self.add_line(start, field.name);
    }

    /// Adds a field from its received `line`, which includes the line break. The condition of `push` applies.
    pub fn push_line(&mut self, name: &[u8], value: &[u8], line: &[u8]) {
        let behind = line.get(name.len()..).and_then(|behind| behind.strip_prefix(COLON)?.strip_suffix(END));
        match behind.is_some_and(|behind| behind.len() == value.len()) {
            true => self.push_field(Field { name, value, line }),
            false => self.push(name, value),
        }
    }

    /// Records the line that reaches from `start` to the end of the text.
    fn add_line(&mut self, start: usize, name: &[u8]) {
        self.marks.0 |= NameFilter::of(name).0;
        self.lines.push(FieldSpan { start, name: name.len(), end: self.text.len() });
    }

    /// All fields, in their order.
    pub fn iter(&self) -> impl Iterator<Item = Field<'_>> {
        self.lines.iter().filter_map(|line| self.field(*line))
    }

    /// The names of all fields, in their order.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.lines.iter().filter_map(|line| self.text.get(line.start..line.start.saturating_add(line.name)))
    }

    fn field(&self, FieldSpan { start, name, end }: FieldSpan) -> Option<Field<'_>> {
        let line = self.text.get(start..end)?;
        let (name, rest) = line.split_at_checked(name)?;
        Some(Field { name, value: rest.strip_prefix(COLON)?.strip_suffix(END)?, line })
    }

    /// The values of all fields with this name, in any case.
    pub fn get_all(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        let may_be_there = self.marks.may_hold(NameFilter::of(name.as_bytes()));
        let lines = if may_be_there { self.lines.as_slice() } else { &[] };
        let alike = lines.iter().filter(move |line| line.name == name.len()).filter_map(|line| self.field(*line));
        alike.filter(move |field| field.has_name(name)).map(|field| field.value)
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

    /// The fields to forward: hop-by-hop fields, fields that the `Connection` field names, and fields that frame the message
    /// are left out.
    pub fn end_to_end(&self) -> impl Iterator<Item = Field<'_>> {
        let nominates = self.contains("connection");
        self.iter().filter(move |field| !(is_hop_by_hop(field.name) || nominates && self.nominates(field.name)))
    }

    /// Removes the fields with names for which `is_removed` holds; it also gets the whole list as it was.
    pub fn remove(&mut self, is_removed: impl Fn(&Self, &[u8]) -> bool) {
        if self.names().any(|name| is_removed(self, name)) {
            let kept = Self::with_capacity(self.lines.len(), self.text.len());
            let before = std::mem::replace(self, kept);
            before.iter().filter(|field| !is_removed(&before, field.name)).for_each(|field| self.push_field(field));
        }
    }

    /// Removes the fields that the `Connection` field names, except those that have a meaning on every connection.
    pub fn remove_nominated(&mut self) {
        if self.contains("connection") {
            self.remove(|fields, name| {
                !is_hop_by_hop(name) && !name.eq_ignore_ascii_case(b"expect") && fields.nominates(name)
            });
        }
    }

    /// Whether the `Connection` field names this field.
    fn nominates(&self, name: &[u8]) -> bool {
        self.elements("connection").any(|nominated| nominated.eq_ignore_ascii_case(name))
    }

    /// The lines as they are sent, without the empty one that ends a head.
    pub fn as_bytes(&self) -> &[u8] {
        &self.text
    }

    /// The same fields in the type of the `http` crate, for libraries.
    pub fn to_map(&self) -> HeaderMap {
        let mut map = HeaderMap::with_capacity(self.len());
        for field in self.iter() {
            if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(field.name), HeaderValue::from_bytes(field.value)) {
                map.append(name, value);
            }
        }
        map
    }
}

impl Field<'_> {
    /// Whether the field has this name, in any case.
    pub fn has_name(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name.as_bytes())
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

/// Whether a field with this name concerns one connection only.
pub fn is_hop_by_hop(name: &[u8]) -> bool {
    HOP_BY_HOP_MARKS.may_hold(NameFilter::of(name))
        && HOP_BY_HOP.iter().any(|hop| name.eq_ignore_ascii_case(hop.as_bytes()))
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
        let names: Vec<_> = fields.end_to_end().map(|field| (field.name, field.value)).collect();
        assert_eq!(names, [(&b"X-End"[..], &b"2"[..])]);
        let mut received = fields.clone();
        received.remove_nominated();
        assert_eq!((received.len(), received.get("x-hop"), received.get("x-end")), (4, None, Some(&b"2"[..])));
        let mut upgraded = Fields::default();
        upgraded.push("Connection", "Upgrade");
        upgraded.push("Upgrade", "websocket");
        let before = upgraded.clone();
        upgraded.remove_nominated();
        assert_eq!(upgraded, before);
    }

    #[test]
    fn lines_are_taken_as_they_stand_or_put_in_order() {
        let mut fields = Fields::default();
        fields.push_line(b"A", b"1", b"A: 1\r\n");
        fields.push_line(b"B", b"2 3", b"B:   2 3 \r\n");
        fields.push_line(b"C", b"12", b"C:12\t\r\n");
        fields.push_line(b"D", b"", b"D:\r\n");
        fields.push_line(b"E", b"1", b"E:  1\n");
        fields.push_line(b"F", b"1", b"F: 1 \n");
        assert_eq!(fields.as_bytes(), b"A: 1\r\nB: 2 3\r\nC: 12\r\nD: \r\nE: 1\r\nF: 1\r\n");
        let mut others = Fields::default();
        fields.iter().for_each(|field| others.push_field(field));
        assert_eq!(others, fields);
        assert_eq!(others.get("c"), Some(&b"12"[..]));
    }
}
