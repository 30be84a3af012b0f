//! The syntax of nginx's configuration: directives of words, which end with `;` or have a block of directives.

use crate::config::problem::Mark;

/// The deepest nesting of blocks.
const DEEPEST: usize = 16;

/// A directive of nginx.
#[derive(Debug)]
pub(super) struct Directive {
    pub(super) mark: Mark,
    /// The name, followed by the arguments.
    pub(super) words: Vec<String>,
    pub(super) block: Option<Vec<Self>>,
}

impl Directive {
    pub(super) fn name(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    /// The words that follow the name.
    pub(super) fn arguments(&self) -> &[String] {
        self.words.get(1..).unwrap_or_default()
    }

    /// The first word behind the name; empty if there is none.
    pub(super) fn argument(&self) -> &str {
        self.arguments().first().map_or("", String::as_str)
    }

    /// The value of the argument that begins with `name`, like `rate=`.
    pub(super) fn option(&self, name: &str) -> Option<&str> {
        self.arguments().iter().find_map(|word| word.strip_prefix(name))
    }

    pub(super) fn block(&self) -> &[Self] {
        self.block.as_deref().unwrap_or_default()
    }

    /// The directives of its block that have this name.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &Self> {
        self.block().iter().filter(move |one| one.name() == name)
    }
}

enum Token {
    Word(String),
    /// `;`, `{` or `}`.
    Sign(char),
}

/// Parses all directives of a file whose first line has this number. `Err` holds an error and its position.
pub(super) fn parse(text: &str, first_line: usize) -> Result<Vec<Directive>, (Mark, &'static str)> {
    let tokens = tokens(text, Mark { line: first_line, ..Mark::START })?;
    let mut open: Vec<(Directive, Vec<Directive>)> = Vec::new();
    let (mut done, mut words, mut begins) = (Vec::new(), Vec::new(), Mark::START);
    for (mark, token) in tokens {
        match token {
            Token::Word(word) => {
                begins = if words.is_empty() { mark } else { begins };
                words.push(word);
            }
            Token::Sign(';') if words.is_empty() => return Err((mark, "ends a directive that has no name")),
            Token::Sign(';') => done.push(Directive { mark: begins, words: std::mem::take(&mut words), block: None }),
            Token::Sign('{') if words.is_empty() => return Err((mark, "begins a block that has no name")),
            Token::Sign('{') if open.len() == DEEPEST => return Err((mark, "is deeper than blocks may be")),
            Token::Sign('{') => {
                let directive = Directive { mark: begins, words: std::mem::take(&mut words), block: None };
                open.push((directive, std::mem::take(&mut done)));
            }
            Token::Sign(_) if !words.is_empty() => return Err((begins, "has no `;` at its end")),
            Token::Sign(_) => {
                let Some((directive, outer)) = open.pop() else { return Err((mark, "ends no block")) };
                let block = std::mem::replace(&mut done, outer);
                done.push(Directive { block: Some(block), ..directive });
            }
        }
    }
    match (open.pop(), words.is_empty()) {
        (_, false) => Err((begins, "has no `;` at its end")),
        (Some((directive, _)), _) => Err((directive.mark, "has no `}` at its end")),
        (None, true) => Ok(done),
    }
}

fn tokens(text: &str, mut mark: Mark) -> Result<Vec<(Mark, Token)>, (Mark, &'static str)> {
    let mut found = Vec::new();
    let mut characters = text.chars().peekable();
    let mut word: Option<(Mark, String)> = None;
    let mut quote: Option<char> = None;
    let mut in_variable = false;
    while let Some(c) = characters.next() {
        let at = mark;
        mark = match c {
            '\n' => Mark { line: mark.line.saturating_add(1), column: 1, ..mark },
            _ => Mark { column: mark.column.saturating_add(1), ..mark },
        };
        match c {
            '\\' if characters.peek().is_some() => {
                mark.column = mark.column.saturating_add(1);
                let (_, kept) = word.get_or_insert_with(|| (at, String::new()));
                match characters.next() {
                    Some(quoted @ ('"' | '\'' | '\\' | ' ' | ';' | '{' | '}')) => kept.push(quoted),
                    other => kept.extend(['\\'].into_iter().chain(other)),
                }
            }
            c if quote == Some(c) => quote = None,
            '"' | '\'' if word.is_none() => {
                quote = Some(c);
                word = Some((at, String::new()));
            }
            c if quote.is_some() => word.get_or_insert_with(|| (at, String::new())).1.push(c),
            '{' if word.as_ref().is_some_and(|(_, word)| word.ends_with('$')) => {
                in_variable = true;
                word.get_or_insert_with(|| (at, String::new())).1.push(c);
            }
            '}' if in_variable => {
                in_variable = false;
                word.get_or_insert_with(|| (at, String::new())).1.push(c);
            }
            ';' | '{' | '}' => {
                found.extend(word.take().map(|(at, word)| (at, Token::Word(word))));
                found.push((at, Token::Sign(c)));
            }
            '#' if word.is_none() => {
                while characters.next_if(|c| *c != '\n').is_some() {
                    mark.column = mark.column.saturating_add(1);
                }
            }
            c if c.is_whitespace() => found.extend(word.take().map(|(at, word)| (at, Token::Word(word)))),
            c => word.get_or_insert_with(|| (at, String::new())).1.push(c),
        }
    }
    if let (Some(_), Some((at, _))) = (quote, &word) {
        return Err((*at, "has no quote at its end"));
    }
    found.extend(word.map(|(at, word)| (at, Token::Word(word))));
    Ok(found)
}
