//! The line of text that a problem is about, without anything that may be a secret.

use std::ops::Range;

use saphyr_parser::{Event, Parser};

use super::bounded_input::{BoundedInput, LookAhead};
use crate::config::problem::{Mark, Problem};
use crate::config::words::{may_be_secret, shown};

/// A text from which problems show lines.
pub struct ExcerptSource {
    lines: Vec<String>,
    scalars: Vec<Scalar>,
    /// The line in which the parser stopped.
    end_line: usize,
}

/// A name or a value of the text; lines count from 1, columns in characters from 0.
struct Scalar {
    start: (usize, usize),
    end: (usize, usize),
    text: String,
}

/// A line of a text and the part of it that a problem is about.
#[derive(Debug, PartialEq, Eq)]
pub struct Excerpt {
    /// The line. It holds only the value that the problem quotes; `…` stands for the other values.
    pub line: String,
    /// The part, as a range of bytes of `line`.
    pub marked: Range<usize>,
}

impl ExcerptSource {
    /// Finds the positions of the names and values of `text`, as far as it is valid YAML.
    pub fn new(text: &str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let (mut scalars, mut end_line) = (Vec::new(), usize::MAX);
        let ahead = LookAhead::default();
        for event in Parser::new(BoundedInput::new(text, &ahead)) {
            let (event, span) = match event {
                Ok(read) if !ahead.is_too_far() => read,
                _ => {
                    end_line = scalars.last().map_or(0, |last: &Scalar| last.end.0);
                    break;
                }
            };
            ahead.begin_again();
            if let Event::Scalar(text, ..) = event {
                let [start, end] = [span.start, span.end].map(|marker| (marker.line(), marker.col()));
                scalars.push(Scalar { start, end, text: text.into_owned() });
            }
        }
        Self { lines, scalars, end_line }
    }

    /// The line of `problem`, whose place is in this text.
    pub fn excerpt(&self, problem: &Problem) -> Option<Excerpt> {
        let Mark { line: number, column, .. } = problem.place.mark?;
        let line: Vec<char> = self.lines.get(number.checked_sub(1)?)?.chars().collect();
        let mut excerpt = Builder { column: column.saturating_sub(1), at: 0, line: String::new(), marked: None };
        let found = problem.found.as_ref().filter(|found| found.starts_with('`'));
        let first = self.scalars.partition_point(|scalar| scalar.end.0 < number);
        for scalar in self.scalars.iter().skip(first).take_while(|scalar| scalar.start.0 <= number) {
            let start = if scalar.start.0 < number { 0 } else { scalar.start.1 };
            let end = if scalar.end.0 > number { line.len() } else { scalar.end.1 };
            excerpt.push_plain(line.get(excerpt.at..start)?);
            let is_name = line.get(end..)?.iter().find(|c| !c.is_whitespace()) == Some(&':');
            let is_quoted = || found.is_some_and(|found| *found == shown(&scalar.text));
            let is_shown = match is_name {
                true => !may_be_secret(&scalar.text),
                false => start == excerpt.column && is_quoted(),
            };
            excerpt.push(line.get(start..end)?, is_shown);
        }
        let rest = line.get(excerpt.at..)?;
        // a comment may hold anything, and so may text behind the point where the parser stopped
        let is_known = |c: &&char| **c != '#' && (number < self.end_line || !c.is_alphanumeric());
        let (plain, hidden) = rest.split_at(rest.iter().take_while(is_known).count());
        excerpt.push_plain(plain);
        if number >= self.end_line {
            excerpt.push(hidden, false);
        }
        let Builder { line, marked, .. } = excerpt;
        let line = line.trim_end().to_owned();
        let marked = marked.unwrap_or(line.len()..line.len());
        let marked = marked.start.min(line.len())..marked.end.min(line.len());
        (!line.trim().is_empty()).then_some(Excerpt { line, marked })
    }
}

/// A line under construction.
struct Builder {
    /// The position of the problem, in characters of the text's line.
    column: usize,
    /// The number of characters taken from the text's line so far.
    at: usize,
    line: String,
    marked: Option<Range<usize>>,
}

impl Builder {
    /// Takes the text between names and values.
    fn push_plain(&mut self, part: &[char]) {
        part.chunks(1).for_each(|c| self.push(c, true));
    }

    /// Takes a part of the text's line. The whole part is marked if the problem is in it.
    fn push(&mut self, part: &[char], is_shown: bool) {
        let (from, end) = (self.line.len(), self.at.saturating_add(part.len()));
        match is_shown {
            true => self.line.extend(part),
            false if part.is_empty() => {}
            false => self.line.push('…'),
        }
        if (self.at..end).contains(&self.column) {
            self.marked = Some(from..self.line.len());
        }
        self.at = end;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::problem::Place;

    /// The line of a problem at this position, followed by the marked part.
    #[track_caller]
    fn excerpt(text: &str, line: usize, column: usize, found: Option<&str>) -> String {
        let place = Place { file: Arc::from("t"), mark: Some(Mark { text: 0, line, column }), path: String::new() };
        let problem = Problem { found: found.map(str::to_owned), ..Problem::error(place, "is wrong") };
        let Some(Excerpt { line, marked }) = ExcerptSource::new(text).excerpt(&problem) else { return String::new() };
        format!("{line}|{}", line.get(marked).unwrap())
    }

    #[test]
    fn a_line_shows_its_names_and_the_value_that_the_problem_quotes() {
        let text = "limits:\n  a: { rate: fast, burst: 3 } # why\n  b: \"x\"\n  ä: 1\n";
        assert_eq!(excerpt(text, 2, 14, Some("`fast`")), "  a: { rate: fast, burst: … }|fast");
        assert_eq!(excerpt(text, 2, 14, Some("text of 4 characters (not shown)")), "  a: { rate: …, burst: … }|…");
        assert_eq!(excerpt(text, 2, 20, None), "  a: { rate: …, burst: … }|burst");
        assert_eq!(excerpt(text, 2, 6, Some("a mapping")), "  a: { rate: …, burst: … }|{");
        assert_eq!(excerpt(text, 3, 6, Some("`x`")), "  b: \"x\"|\"x\"");
        assert_eq!(excerpt(text, 4, 6, Some("`1`")), "  ä: 1|1");
        assert_eq!((excerpt(text, 1, 30, None), excerpt(text, 9, 1, None)), ("limits:|".to_owned(), String::new()));
    }

    #[test]
    fn a_line_hides_what_the_parser_does_not_know() {
        let text = "a: |\n  secret\nb: [1, 2\nc: \"secret\n# secret\n";
        assert_eq!(excerpt(text, 2, 3, None), "  …|…");
        for line in 3..=5 {
            assert!(!excerpt(text, line, 1, None).contains("secret"), "{line}");
        }
        assert_eq!(excerpt("a:\n  b: @secret\n", 2, 6, None), "  b: @…|@");
        assert_eq!(excerpt("sk_live_51HxTq9Zk3aBcDeF: 1\n", 1, 1, None), "…: …|…");
    }
}
