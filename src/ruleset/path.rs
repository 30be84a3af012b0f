//! Path patterns: `/v1/orders/*/lines`, `/v1/orders/**`.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

/// A pattern for a canonical path in its [`matched_form`].
///
/// `*` and `{name}` stand for exactly one segment, `**` (only at the end) for any number of segments, none included. A final
/// slash is a segment of its own: `/a/` and `/a` are two paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    segments: Vec<Segment>,
    rest: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    /// This segment.
    Literal(String),
    /// Any segment that is not empty.
    Any,
}

impl Default for PathPattern {
    fn default() -> Self {
        Self::everything()
    }
}

impl PathPattern {
    /// The pattern that matches every path.
    pub const fn everything() -> Self {
        Self { segments: Vec::new(), rest: true }
    }

    /// Parses a pattern.
    ///
    /// Errors, in words for the configuration: no leading slash, `**` anywhere but at the end, `*` as a part of a segment,
    /// an invalid or repeated name, and text that no canonical path holds (`//`, dot segments, `?`, `#`, white space).
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(path) = text.strip_prefix('/') else {
            return Err("must begin with `/`".to_owned());
        };
        if let Some(bad) = path.chars().find(|c| matches!(c, '?' | '#' | '\\') || c.is_whitespace() || c.is_control()) {
            return Err(format!("must not hold {bad:?}: only the path is matched"));
        }
        let mut pieces: Vec<&str> = path.split('/').collect();
        let rest = pieces.last() == Some(&"**");
        if rest {
            pieces.pop();
        }
        let last = pieces.len().saturating_sub(1);
        let mut segments = Vec::with_capacity(pieces.len());
        for (position, piece) in pieces.iter().enumerate() {
            segments.push(match *piece {
                "*" => Segment::Any,
                "**" => return Err("may hold `**` only as its last segment".to_owned()),
                piece if piece.starts_with('{') || piece.ends_with('}') => {
                    check_name(piece, &pieces[..position])?;
                    Segment::Any
                }
                "." | ".." => {
                    return Err("must not hold `.` or `..`: paths are matched after they are resolved".to_owned());
                }
                "" if rest || position < last => {
                    return Err("must not hold an empty segment (`//`): requests never do".to_owned());
                }
                piece if piece.contains('*') => {
                    return Err(format!("may use `*` only for a whole segment, not within `{piece}`"));
                }
                piece => Segment::Literal(spelt_as_requested(piece)?),
            });
        }
        Ok(Self { segments, rest })
    }

    /// The pattern for paths in lower case.
    pub fn in_lower_case(mut self) -> Self {
        for segment in &mut self.segments {
            if let Segment::Literal(literal) = segment {
                literal.make_ascii_lowercase();
            }
        }
        self
    }

    /// Whether the path `path` matches, a canonical one in its [`matched_form`].
    pub fn matches(&self, path: &str) -> bool {
        if self.rest && self.segments.is_empty() {
            return true;
        }
        let mut pieces = path.strip_prefix('/').unwrap_or(path).split('/');
        for segment in &self.segments {
            match (segment, pieces.next()) {
                (Segment::Literal(literal), Some(piece)) if literal == piece => {}
                (Segment::Any, Some(piece)) if !piece.is_empty() => {}
                _ => return false,
            }
        }
        self.rest || pieces.next().is_none()
    }

    /// Whether a matching path can begin with the segments of `prefix`, which has no final slash.
    pub fn can_begin_with(&self, prefix: &str, ignores_case: bool) -> bool {
        let is_bare = without_parameters(prefix).is_none();
        is_bare
            && prefix.split('/').skip(1).enumerate().all(|(position, piece)| match self.segments.get(position) {
                Some(Segment::Literal(literal)) => is_same(literal, &plain_signs(piece), ignores_case),
                Some(Segment::Any) => true,
                None => self.rest,
            })
    }

    /// Its segments, without the `**` at its end.
    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Whether it ends with `**`.
    pub(super) const fn ends_with_rest(&self) -> bool {
        self.rest
    }

    /// Whether a matching path can have the first segment of the canonical path `path`.
    pub(super) fn may_match_first_segment(&self, path: &str) -> bool {
        let first = path.strip_prefix('/').unwrap_or(path).split('/').next();
        match self.segments.first() {
            Some(Segment::Literal(literal)) => Some(literal.as_str()) == first,
            _ => true,
        }
    }

    /// More specific patterns come first: segment by segment a literal before `*` before the end or `**`.
    pub(super) fn by_specificity(&self, other: &Self) -> Ordering {
        let rank = |pattern: &Self, position: usize| match pattern.segments.get(position) {
            Some(Segment::Literal(_)) => 0,
            Some(Segment::Any) => 1,
            None if !pattern.rest => 2,
            None => 3,
        };
        let longest = self.segments.len().max(other.segments.len());
        (0..=longest)
            .map(|position| rank(self, position).cmp(&rank(other, position)))
            .find(|order| order.is_ne())
            .unwrap_or(Ordering::Equal)
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for segment in &self.segments {
            match segment {
                Segment::Literal(literal) => write!(f, "/{}", literal.replace('*', "%2A"))?,
                Segment::Any => f.write_str("/*")?,
            }
        }
        if self.rest { f.write_str("/**") } else { Ok(()) }
    }
}

/// Checks the named segment `piece`, which comes after the segments `others`. Errors: the problem in words.
fn check_name(piece: &str, others: &[&str]) -> Result<(), String> {
    let name = name_of(piece).filter(|name| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        !name.is_empty() && name.bytes().all(is_part)
    });
    match name {
        Some(_) if others.contains(&piece) => Err(format!("names two segments `{piece}`")),
        Some(_) => Ok(()),
        None => Err(format!("must name a segment in letters, digits and `_`, like `{{tenant}}`, not `{piece}`")),
    }
}

fn name_of(piece: &str) -> Option<&str> {
    piece.strip_prefix('{')?.strip_suffix('}')
}

/// Whether the path pattern `pattern` names a segment `name`.
pub fn names_segment(pattern: &str, name: &str) -> bool {
    pattern.split('/').any(|piece| name_of(piece) == Some(name))
}

/// The segment of the canonical path `path` to which `pattern`, which it matches, gives the name `name`.
pub fn named_segment<'p>(pattern: &str, path: &'p str, name: &str) -> Option<&'p str> {
    pattern.split('/').zip(path.split('/')).find(|(piece, _)| name_of(piece) == Some(name)).map(|(_, segment)| segment)
}

/// A literal segment, if a request can match it: paths of requests are canonical, and match without path parameters.
fn spelt_as_requested(segment: &str) -> Result<String, String> {
    if name_length(segment) < segment.len() {
        return Err(format!("must not hold `;`: paths are matched without their parameters, as in `{segment}`"));
    }
    match canonical_spelling(&format!("/{segment}")) {
        Ok(path) if path.strip_prefix('/') == Some(segment) => Ok(plain_signs(segment).into_owned()),
        Ok(path) => {
            Err(format!("is never requested like this; write `{}` for `{segment}`", path.trim_start_matches('/')))
        }
        Err(problem) => Err(format!("can never be requested: {problem}")),
    }
}

/// The length of a canonical segment up to its path parameters. Some servers look for parameters before they decode the
/// path (Tomcat, Spring), others afterwards (Shiro): an encoded semicolon begins parameters too.
fn name_length(segment: &str) -> usize {
    let is_semicolon =
        |at: &usize| segment.get(*at..).is_some_and(|rest| rest.starts_with(';') || rest.starts_with("%3B"));
    memchr::memchr2_iter(b';', b'%', segment.as_bytes()).find(is_semicolon).unwrap_or(segment.len())
}

/// The canonical path `path` without its path parameters, as many servers see it (`/a;x=1/b` is `/a/b`); `None` if it has
/// no parameters.
pub fn without_parameters(path: &str) -> Option<String> {
    if name_length(path) == path.len() {
        return None;
    }
    let names = path.split('/').map(|segment| segment.get(..name_length(segment)).unwrap_or_default());
    Some(names.collect::<Vec<_>>().join("/"))
}

/// The form of the canonical path `path` that is matched and counted: without path parameters, and with `+` and `*` in
/// one spelling; `None` if it is `path` itself.
pub fn matched_form(path: &str) -> Option<String> {
    let bare = without_parameters(path);
    match plain_signs(bare.as_deref().unwrap_or(path)) {
        Cow::Owned(plain) => Some(plain),
        Cow::Borrowed(_) => bare,
    }
}

/// Whether the canonical path `path` has path parameters.
pub fn has_parameters(path: &str) -> bool {
    name_length(path) < path.len()
}

/// The text of a canonical path with `+` and `*` unencoded: many servers do not distinguish the two spellings.
pub fn plain_signs(text: &str) -> Cow<'_, str> {
    match text.contains('%') && (text.contains("%2B") || text.contains("%2A")) {
        true => Cow::Owned(text.replace("%2B", "+").replace("%2A", "*")),
        false => Cow::Borrowed(text),
    }
}

/// The rest of the canonical path `path` after `prefix`, if it begins with these segments, whatever their parameters and
/// the spelling of `+` and `*`.
pub(super) fn strip_path_prefix<'p>(path: &'p str, prefix: &str, ignores_case: bool) -> Option<&'p str> {
    let mut rest = path;
    for expected in prefix.split('/').skip(1) {
        let segment = rest.strip_prefix('/')?;
        let (segment, behind) = segment.split_at(segment.find('/').unwrap_or(segment.len()));
        let name = plain_signs(segment.get(..name_length(segment))?);
        if !is_same(&name, &plain_signs(expected), ignores_case) {
            return None;
        }
        rest = behind;
    }
    Some(rest)
}

/// Whether two segments are the same, perhaps but for the case of ASCII letters.
fn is_same(one: &str, other: &str, ignores_case: bool) -> bool {
    one == other || ignores_case && one.eq_ignore_ascii_case(other)
}

/// The canonical form of a path as people write it, with any character of Unicode.
///
/// Errors: as [`canonical`].
pub fn canonical_spelling(path: &str) -> Result<String, &'static str> {
    let encoded: String = percent_encoding::utf8_percent_encode(path, percent_encoding::CONTROLS).collect();
    canonical(&encoded).map(Cow::into_owned)
}

/// The one spelling of a path: one leading slash, no empty or dot segments, no needless percent-encoding.
///
/// Errors, in words: a path that leads above the root, a percent-encoding that is malformed or stands for a separator or a
/// control character, or a path that leads elsewhere without its path parameters (`/a/..;x/b`).
pub fn canonical(raw: &str) -> Result<Cow<'_, str>, &'static str> {
    if plain_length(raw.as_bytes()) == raw.len() && !raw.is_empty() {
        return Ok(Cow::Borrowed(raw));
    }
    let decoded = decode(raw)?;
    let mut segments: Vec<&str> = Vec::new();
    let mut pieces = decoded.split('/').skip(1).peekable();
    let mut directory = true;
    while let Some(piece) = pieces.next() {
        let last = pieces.peek().is_none();
        let (name, parameters) = piece.split_at(name_length(piece));
        if !parameters.is_empty() && (matches!(name, "." | "..") || name.is_empty() && !last) {
            return Err("the path would lead elsewhere without its path parameters");
        }
        directory = matches!(piece, "" | "." | "..");
        match piece {
            "" | "." => {}
            ".." if segments.pop().is_none() => {
                return Err("the path leads above the root");
            }
            ".." => {}
            piece => segments.push(piece),
        }
        directory &= last;
    }
    let mut path = String::with_capacity(decoded.len());
    for segment in &segments {
        path.push('/');
        path.push_str(segment);
    }
    if directory || segments.is_empty() {
        path.push('/');
    }
    Ok(Cow::Owned(path))
}

/// The length of the prefix of `raw` that is canonical at first sight, as most paths are: it has plain bytes only, no
/// segment of it begins with a dot, and only its last segment may be empty.
pub fn plain_length(raw: &[u8]) -> usize {
    let kind = |byte: &u8| KINDS[usize::from(*byte)];
    let mut length = 0;
    // segment by segment, each with the slash before it
    while let Some([b'/', segment @ ..]) = raw.get(length..) {
        length += 1;
        if segment.first().is_none_or(|first| kind(first) != PLAIN) {
            break;
        }
        length += segment.iter().position(|byte| kind(byte) == 0).unwrap_or(segment.len());
    }
    length
}

/// Bytes that have no special meaning anywhere in a segment: letters, digits and three signs (RFC 3986, section 2.3).
const PLAIN: u8 = 1;
/// The dot, which has no special meaning either unless it begins a segment.
const DOT: u8 = 2;

/// The kind of each byte; 0 for all others. A table, because every byte of every path is looked up.
const KINDS: [u8; 256] = {
    let mut kinds = [0; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        kinds[byte as usize] = match byte {
            b'.' => DOT,
            b'-' | b'_' | b'~' => PLAIN,
            _ if byte.is_ascii_alphanumeric() => PLAIN,
            _ => 0,
        };
        byte += 1;
    }
    kinds
};

/// Decodes the characters that need no encoding within a segment (RFC 3986, sections 3.3 and 6.2.2), and writes all other
/// encodings with upper case digits. `;`, `+` and `*` are left as they are, encoded or not, since some servers distinguish
/// the two spellings; see [`matched_form`].
fn decode(raw: &str) -> Result<String, &'static str> {
    const BAD: &str = "the path holds a malformed or forbidden percent-encoding";
    let mut decoded = String::with_capacity(raw.len());
    let mut pieces = raw.split('%');
    push_encoded(&mut decoded, pieces.next().unwrap_or_default());
    for piece in pieces {
        let (digits, rest) = piece.split_at_checked(2).ok_or(BAD)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(BAD);
        }
        match u8::from_str_radix(digits, 16).map_err(|_| BAD)? {
            b'/' | b'\\' | 0..=0x1f | 0x7f => return Err(BAD),
            byte if byte.is_ascii_alphanumeric() || b"-._~:@!$&'(),=".contains(&byte) => decoded.push(char::from(byte)),
            byte => push_triplet(&mut decoded, byte),
        }
        push_encoded(&mut decoded, rest);
    }
    Ok(decoded)
}

/// Appends `text`, which has no percent signs, and encodes the characters that a path must not hold unencoded.
fn push_encoded(to: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '"' | '<' | '>' | '[' | ']' | '^' | '`' | '{' | '|' | '}' => {
                push_triplet(to, u8::try_from(c).unwrap_or(b'?'))
            }
            c => to.push(c),
        }
    }
}

fn push_triplet(to: &mut String, byte: u8) {
    to.push_str(&format!("%{byte:02X}"));
}

#[cfg(test)]
mod tests;
