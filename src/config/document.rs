//! Text to a tree of nodes that know their positions. No module outside of this one parses YAML.
//!
//! One pass over the parser's events builds the tree, so that there is only one reading of the text. Size, depth and growth
//! by aliases are bounded; nothing here is recursive.

use std::rc::Rc;

use saphyr_parser::{Marker, Parser, ScanError};

use crate::config::findings::Findings;
use crate::config::problem::Mark;
use crate::config::problem::Problem;

mod bounded_input;
mod builder;
mod excerpt;

use bounded_input::{BoundedInput, LookAhead};
use builder::Builder;
pub use excerpt::{Excerpt, ExcerptSource};

/// The longest text that is read: enough for ten thousand routes. Customers stand in their directory, not in this text.
pub const MAX_BYTES: usize = 8 << 20;

/// The deepest nesting; a configuration needs less than ten levels.
pub(super) const MAX_DEPTH: usize = 32;

const TOO_DEEP: &str = "values are nested more than 32 levels deep";

/// The largest number of values in a document. A value that aliases repeat counts each time.
const MAX_NODES: usize = 400_000;

/// The largest number of bytes in all values together. A value that aliases repeat counts each time.
const MAX_TEXT: usize = MAX_BYTES;

/// A value and the position where it begins.
#[derive(Debug)]
pub(super) struct YamlNode {
    pub(super) mark: Mark,
    pub(super) content: Content,
}

/// The content of a node.
#[derive(Debug)]
pub(super) enum Content {
    /// A single value; `plain` if it has no quotes.
    Scalar { text: String, plain: bool },
    /// A list.
    Sequence(Vec<Rc<YamlNode>>),
    /// Names and values, in the order of the text, each name once.
    Mapping(Vec<Entry>),
}

/// A name in a mapping and its value.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) key_mark: Mark,
    pub(super) value: Rc<YamlNode>,
}

/// Parses `text`, whose marks have this `number`. Problems go to `findings`. Returns the tree if the readers can continue,
/// even if there are problems.
pub(super) fn parse(text: &str, number: usize, findings: &Findings) -> Option<Rc<YamlNode>> {
    let start = Mark { text: number, ..Mark::START };
    if text.len() > MAX_BYTES {
        let message = format!("the file is larger than {} KiB", MAX_BYTES >> 10);
        findings.add(
            Problem::error(findings.place(start, ""), message)
                .found(format!("{} KiB", text.len().div_ceil(1024)))
                .hint("customers belong in the file that `customers.directory` names, which may be larger"),
        );
        return None;
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if let Some(problem) = unreadable_character(text, start, findings) {
        findings.add(problem);
        return None;
    }
    let mut builder = Builder::new(findings);
    let ahead = LookAhead::default();
    for event in Parser::new(BoundedInput::new(text, &ahead)) {
        match event {
            _ if ahead.is_too_far() => {
                let place = builder.place_of_next(start);
                findings.add(
                    Problem::error(place, "a list or mapping in brackets is too long")
                        .hint("write it in lines instead, `- ` before each item or `name: ` before each value"),
                );
                return None;
            }
            Ok((event, span)) => {
                ahead.begin_again();
                builder.take(event, mark(span.start, number))?;
            }
            Err(error) => {
                findings.add(syntax_problem(text, number, &error, findings));
                return None;
            }
        }
    }
    if builder.root.is_none() {
        let expected = match number {
            0 => "`listeners`, `upstreams`, `limits` and `routes`",
            _ => "sections, like `limits`",
        };
        findings.add(Problem::error(findings.place(start, ""), "the file is empty").expected(expected));
    }
    builder.root
}

/// The path of `key` below `path`.
pub(super) fn join(path: &str, key: &str) -> String {
    let simple = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "_-/:*".contains(c));
    let shown = match (simple, key.char_indices().nth(64)) {
        (true, None) => key.to_owned(),
        (_, None) => format!("{key:?}"),
        (_, Some((end, _))) => format!("{:?}…", key.get(..end).unwrap_or_default()),
    };
    if path.is_empty() { shown } else { format!("{path}.{shown}") }
}

/// The path of the item at `position` (from 0) below `path`.
pub(super) fn item(path: &str, position: usize) -> String {
    format!("{path}[{position}]")
}

fn mark(marker: Marker, text: usize) -> Mark {
    Mark { text, line: marker.line().max(1), column: marker.col().saturating_add(1) }
}

/// Finds the first character at which the parser would stop, or that editors do not show.
fn unreadable_character(text: &str, start: Mark, findings: &Findings) -> Option<Problem> {
    let is_bad = |position: usize, c: char| match c {
        '\n' | '\t' => false,
        '\r' => text.as_bytes().get(position.saturating_add(1)) != Some(&b'\n'),
        c => c.is_control() || c == '\u{feff}',
    };
    let (position, bad) = text.char_indices().find(|(position, c)| is_bad(*position, *c))?;
    let before = text.get(..position).unwrap_or_default();
    let column = before.chars().rev().take_while(|c| *c != '\n').count().saturating_add(1);
    let mark = Mark { line: before.matches('\n').count().saturating_add(1), column, ..start };
    let message = format!("holds the invisible character U+{:04X}", u32::from(bad));
    Some(
        Problem::error(findings.place(mark, ""), message).expected("text; in quotes, `\\u` stands for such characters"),
    )
}

/// The parser's own message, or a clearer one for the messages that are hard to understand.
fn syntax_problem(text: &str, number: usize, error: &ScanError, findings: &Findings) -> Problem {
    let mark = mark(*error.marker(), number);
    let line = text.lines().nth(mark.line.saturating_sub(1)).unwrap_or_default();
    let indented_by_tab = line.chars().take_while(|c| c.is_whitespace()).position(|c| c == '\t');
    if let Some(position) = indented_by_tab {
        let mark = Mark { column: position.saturating_add(1), ..mark };
        return Problem::error(findings.place(mark, ""), "a tab is used for indentation")
            .expected("spaces; YAML allows no tabs there");
    }
    let message = match error.info() {
        "recursion limit exceeded" => TOO_DEEP.to_owned(),
        "while parsing node, found unknown anchor" => {
            "`*` begins an alias, and there is no anchor of that name".to_owned()
        }
        other if other.starts_with("unexpected character") => "is not valid YAML: no value begins like this".to_owned(),
        other => format!("is not valid YAML: {other}"),
    };
    let before = mark.column.checked_sub(2).and_then(|position| line.chars().nth(position));
    let hint = match (before, line.chars().nth(mark.column.saturating_sub(1))) {
        (Some('$'), Some('{')) => Some("within `{ }` or `[ ]`, a variable has to be in quotes, like `\"${NAME}\"`"),
        (_, Some(at)) if "*&!%@`|>".contains(at) => {
            Some("text that begins with a special character has to be in quotes, like `\"*.example.com\"`")
        }
        _ => None,
    };
    Problem::error(findings.place(mark, ""), message).hint(hint.map(str::to_owned))
}
