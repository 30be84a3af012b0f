//! The syntax of nginx's configuration: directives of words, which end with `;` or have a block of directives.

use std::sync::LazyLock;

use regex::Regex;

use crate::config::import::SyntaxError;
use crate::config::problem::Mark;

/// The deepest nesting of blocks.
const MAX_DEPTH: usize = 16;

/// A sign, a comment or space, or a word, which may begin with a part in quotes. A backslash takes the character behind it.
const TOKENS: &str = r#"(?xs)
    (?<sign> [;{}] ) | \#[^\n]* | \s+ | (?<word>
        (?: "(?<double> (?: \\. | [^"\\] )* )" | '(?<single> (?: \\. | [^'\\] )* )'
          | (?<first> \\.? | \$\{[^\s;{}]*\}? | [^\s;{}"'\#\\] ) )
        (?<rest> (?: \\.? | \$\{[^\s;{}]*\}? | [^\s;{}\\] )* )
    )"#;

static TOKEN: LazyLock<Regex> = LazyLock::new(|| Regex::new(TOKENS).expect("the expression is valid"));

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

    pub(super) fn has(&self, name: &str) -> bool {
        self.all(name).next().is_some()
    }
}

enum Token {
    Word(String),
    /// `;`, `{` or `}`.
    Sign(char),
}

/// Parses all directives of a file whose first line has this number.
pub(super) fn parse(text: &str, first_line: usize) -> Result<Vec<Directive>, SyntaxError> {
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
            Token::Sign('{') if open.len() == MAX_DEPTH => return Err((mark, "is deeper than blocks may be")),
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

fn tokens(text: &str, mut mark: Mark) -> Result<Vec<(Mark, Token)>, SyntaxError> {
    let (mut found, mut end) = (Vec::new(), 0);
    for token in TOKEN.captures_iter(text) {
        let whole = token.get_match();
        if whole.start() > end {
            break;
        }
        end = whole.end();
        if let Some(sign) = token.name("sign") {
            found.extend(sign.as_str().chars().map(|sign| (mark, Token::Sign(sign))));
        } else if token.name("word").is_some() {
            let parts = ["double", "single", "first", "rest"].into_iter().filter_map(|name| token.name(name));
            found.push((mark, Token::Word(unescaped(parts.flat_map(|part| part.as_str().chars())))));
        }
        mark = behind(mark, whole.as_str());
    }
    if end < text.len() { Err((mark, "has no quote at its end")) } else { Ok(found) }
}

/// Removes the backslashes in front of special characters.
fn unescaped(characters: impl Iterator<Item = char>) -> String {
    let (mut text, mut characters) = (String::new(), characters.peekable());
    while let Some(c) = characters.next() {
        let special = characters.next_if(|next| c == '\\' && r#""'\ ;{}"#.contains(*next));
        text.push(special.unwrap_or(c));
    }
    text
}

/// The position behind a text that begins at `mark`.
fn behind(mark: Mark, text: &str) -> Mark {
    let lines = text.matches('\n').count();
    let column = text.rsplit('\n').next().unwrap_or_default().chars().count();
    let first = if lines == 0 { mark.column } else { 1 };
    Mark { line: mark.line.saturating_add(lines), column: first.saturating_add(column), ..mark }
}
