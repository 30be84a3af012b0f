//! The syntax of HAProxy's configuration: sections of lines of words.

use crate::config::import::SyntaxError;
use crate::config::problem::Mark;

/// The words that begin a section.
const SECTIONS: [&str; 14] = [
    "global", "defaults", "frontend", "backend", "listen", "userlist", "peers", "resolvers", "mailers", "cache",
    "program", "http-errors", "ring", "fcgi-app",
];

/// A line of a section.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) mark: Mark,
    pub(super) words: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Section {
    /// The line that begins it.
    pub(super) head: Line,
    pub(super) lines: Vec<Line>,
    /// The lines of its `defaults`.
    pub(super) defaults: Vec<Line>,
}

impl Line {
    pub(super) fn word(&self, at: usize) -> &str {
        self.words.get(at).map_or("", String::as_str)
    }

    /// The word that follows `name`.
    pub(super) fn option(&self, name: &str) -> Option<&str> {
        let at = self.words.iter().position(|word| word == name)?;
        self.words.get(at.saturating_add(1)).map(String::as_str)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.words.iter().any(|word| word == name)
    }

    /// The words from `from` on that are not `known`. Skips the values of the words in `with_value`.
    pub(super) fn others(&self, from: usize, known: &[&str], with_value: &[&str]) -> Vec<&str> {
        let mut others = Vec::new();
        let mut words = self.words.iter().skip(from).map(String::as_str);
        while let Some(word) = words.next() {
            if !known.contains(&word) {
                others.push(word);
            }
            if with_value.contains(&word) {
                words.next();
            }
        }
        others
    }

    /// The line's name in notes: its first word, or the first two where the first is too general.
    pub(super) fn name(&self) -> String {
        const GENERAL: [&str; 8] = [
            "http-check", "http-request", "http-response", "tcp-request", "tcp-response", "option", "stats", "timeout",
        ];
        if GENERAL.contains(&self.word(0)) {
            format!("{} {}", self.word(0), self.word(1))
        } else {
            self.word(0).to_owned()
        }
    }
}

impl Section {
    pub(super) fn kind(&self) -> &str {
        self.head.word(0)
    }

    pub(super) fn name(&self) -> &str {
        self.head.word(1)
    }

    /// Whether it takes requests.
    pub(super) fn is_frontend(&self) -> bool {
        matches!(self.kind(), "frontend" | "listen")
    }

    /// Whether it names servers or backends.
    pub(super) fn leads(&self) -> bool {
        ["server", "use_backend", "default_backend"].iter().any(|name| self.last(name).is_some())
    }

    /// Its own lines that begin with this word.
    pub(super) fn all(&self, word: &str) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(move |line| line.word(0) == word)
    }

    pub(super) fn has(&self, word: &str) -> bool {
        self.all(word).next().is_some()
    }

    /// The last line with this name, among its own or else those of its `defaults`.
    pub(super) fn last(&self, name: &str) -> Option<&Line> {
        self.lines
            .iter()
            .rfind(|line| line.name() == name)
            .or_else(|| self.defaults.iter().rfind(|line| line.name() == name))
    }
}

/// Whether a text is a configuration of HAProxy.
pub(in crate::config::import) fn is_of_this_format(text: &str) -> bool {
    let first = text.lines().find(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'));
    first.and_then(|line| line.split_whitespace().next()).is_some_and(|word| SECTIONS.contains(&word))
}

/// Parses all sections of a file.
pub(super) fn parse(text: &str) -> Result<Vec<Section>, SyntaxError> {
    let mut sections: Vec<Section> = Vec::new();
    for (number, text) in text.lines().enumerate() {
        let column = text.chars().take_while(|c| c.is_whitespace()).count().saturating_add(1);
        let mark = Mark { line: number.saturating_add(1), column, ..Mark::START };
        let line = Line { mark, words: words(text).ok_or((mark, "has no quote at its end"))? };
        match sections.last_mut() {
            _ if line.words.is_empty() => {}
            _ if SECTIONS.contains(&line.word(0)) => {
                let last = |name: Option<&str>| {
                    sections.iter().rfind(|of| of.kind() == "defaults" && name.is_none_or(|name| of.name() == name))
                };
                let defaults = last(line.option("from")).or_else(|| last(None)).map(|of| of.lines.clone());
                sections.push(Section { head: line, lines: Vec::new(), defaults: defaults.unwrap_or_default() });
            }
            Some(section) => section.lines.push(line),
            None => return Err((mark, "stands in no section")),
        }
    }
    Ok(sections)
}

/// The words of a line; `None` where a quote is not closed.
fn words(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        match (c, quote) {
            ('\\', None | Some('"')) => word.get_or_insert_default().extend(characters.next()),
            (c, Some(open)) if c == open => quote = None,
            (c, Some(_)) => word.get_or_insert_default().push(c),
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            ('#', None) => break,
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, None) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}
