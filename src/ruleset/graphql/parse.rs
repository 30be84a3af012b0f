//! The part of GraphQL's syntax on which costs depend: operations, fragments, fields and their arguments.

/// The deepest nesting of braces, brackets and parentheses.
const DEEPEST: usize = 64;

/// A document that a request may execute.
pub(super) struct Document<'t> {
    pub(super) operations: Vec<Selections<'t>>,
    /// The fragments with their names.
    pub(super) fragments: Vec<(&'t str, Selections<'t>)>,
}

pub(super) type Selections<'t> = Vec<Selection<'t>>;

pub(super) enum Selection<'t> {
    Field {
        /// The arguments with their values, where the values are whole numbers that are not negative.
        arguments: Vec<(&'t str, Option<u64>)>,
        selections: Selections<'t>,
    },
    Inline(Selections<'t>),
    Spread(&'t str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'t> {
    Punctuator(u8),
    Spread,
    Name(&'t str),
    Int(&'t str),
    Float,
    Text,
}

struct Parser<'t> {
    rest: &'t str,
    next: Option<Token<'t>>,
    depth: usize,
}

impl<'t> Document<'t> {
    /// Parses a whole document of operations and fragments; `None` where the text is none.
    pub(super) fn parse(text: &'t str) -> Option<Self> {
        let mut parser = Parser { rest: text.strip_prefix('\u{feff}').unwrap_or(text), next: None, depth: 0 };
        parser.advance()?;
        let mut document = Self { operations: Vec::new(), fragments: Vec::new() };
        while let Some(token) = parser.next {
            match token {
                Token::Name("fragment") => {
                    parser.advance()?;
                    let name = parser.name().filter(|name| *name != "on")?;
                    parser.word("on")?;
                    parser.name()?;
                    parser.directives()?;
                    if document.fragments.iter().any(|(known, _)| *known == name) {
                        return None;
                    }
                    document.fragments.push((name, parser.selections()?));
                }
                Token::Name("query" | "mutation" | "subscription") => {
                    parser.advance()?;
                    if let Some(Token::Name(_)) = parser.next {
                        parser.advance()?;
                    }
                    parser.variables()?;
                    parser.directives()?;
                    document.operations.push(parser.selections()?);
                }
                _ => document.operations.push(parser.selections()?),
            }
        }
        (!document.operations.is_empty()).then_some(document)
    }
}

impl<'t> Parser<'t> {
    fn advance(&mut self) -> Option<()> {
        let (token, rest) = token(self.rest)?;
        (self.next, self.rest) = (token, rest);
        Some(())
    }

    fn is(&self, punctuator: u8) -> bool {
        self.next == Some(Token::Punctuator(punctuator))
    }

    /// Skips this punctuator if it is next, and tells whether it was.
    fn consume_if(&mut self, punctuator: u8) -> Option<bool> {
        let is = self.is(punctuator);
        if is {
            self.advance()?;
        }
        Some(is)
    }

    fn expect(&mut self, punctuator: u8) -> Option<()> {
        self.consume_if(punctuator)?.then_some(())
    }

    fn name(&mut self) -> Option<&'t str> {
        let Some(Token::Name(name)) = self.next else { return None };
        self.advance()?;
        Some(name)
    }

    fn word(&mut self, word: &str) -> Option<()> {
        self.name().filter(|name| *name == word).map(|_| ())
    }

    /// Calls `inner` one level deeper.
    fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        self.depth = self.depth.checked_add(1).filter(|depth| *depth <= DEEPEST)?;
        let read = inner(self)?;
        self.depth = self.depth.saturating_sub(1);
        Some(read)
    }

    /// Parses `{ ... }`, which must not be empty.
    fn selections(&mut self) -> Option<Selections<'t>> {
        self.nested(|parser| {
            parser.expect(b'{')?;
            let mut selections = vec![parser.selection()?];
            while !parser.consume_if(b'}')? {
                selections.push(parser.selection()?);
            }
            Some(selections)
        })
    }

    fn selection(&mut self) -> Option<Selection<'t>> {
        if self.next != Some(Token::Spread) {
            return self.field();
        }
        self.advance()?;
        match self.next {
            Some(Token::Name(name)) if name != "on" => {
                self.advance()?;
                self.directives()?;
                Some(Selection::Spread(name))
            }
            condition => {
                if condition == Some(Token::Name("on")) {
                    self.advance()?;
                    self.name()?;
                }
                self.directives()?;
                Some(Selection::Inline(self.selections()?))
            }
        }
    }

    fn field(&mut self) -> Option<Selection<'t>> {
        self.name()?;
        // the name before the colon was an alias
        if self.consume_if(b':')? {
            self.name()?;
        }
        let arguments = self.arguments()?;
        self.directives()?;
        let selections = if self.is(b'{') { self.selections()? } else { Vec::new() };
        Some(Selection::Field { arguments, selections })
    }

    /// Parses `(name: value ...)`, if present.
    fn arguments(&mut self) -> Option<Vec<(&'t str, Option<u64>)>> {
        let mut arguments = Vec::new();
        if self.consume_if(b'(')? {
            loop {
                let name = self.name()?;
                self.expect(b':')?;
                arguments.push((name, self.value()?));
                if self.consume_if(b')')? {
                    break;
                }
            }
        }
        Some(arguments)
    }

    fn directives(&mut self) -> Option<()> {
        while self.consume_if(b'@')? {
            self.name()?;
            self.arguments()?;
        }
        Some(())
    }

    /// Parses `($name: [Type!]! = value ...)`, if present.
    fn variables(&mut self) -> Option<()> {
        if !self.consume_if(b'(')? {
            return Some(());
        }
        loop {
            self.expect(b'$')?;
            self.name()?;
            self.expect(b':')?;
            self.variable_type()?;
            if self.consume_if(b'=')? {
                self.value()?;
            }
            self.directives()?;
            if self.consume_if(b')')? {
                return Some(());
            }
        }
    }

    fn variable_type(&mut self) -> Option<()> {
        match self.consume_if(b'[')? {
            true => {
                self.nested(Self::variable_type)?;
                self.expect(b']')?;
            }
            false => drop(self.name()?),
        }
        self.consume_if(b'!').map(|_| ())
    }

    /// Parses a value: `None` where it is invalid, else its number, if it is a whole number that is not negative.
    fn value(&mut self) -> Option<Option<u64>> {
        let token = self.next?;
        self.advance()?;
        match token {
            Token::Int(number) if number.starts_with('-') => {}
            // a number that is too large for its type counts as the largest
            Token::Int(digits) => return Some(Some(digits.parse().unwrap_or(u64::MAX))),
            Token::Float | Token::Text | Token::Name(_) => {}
            Token::Punctuator(b'$') => drop(self.name()?),
            Token::Punctuator(b'[') => self.nested(|parser| {
                while !parser.consume_if(b']')? {
                    parser.value()?;
                }
                Some(())
            })?,
            Token::Punctuator(b'{') => self.nested(|parser| {
                while !parser.consume_if(b'}')? {
                    parser.name()?;
                    parser.expect(b':')?;
                    parser.value()?;
                }
                Some(())
            })?,
            Token::Punctuator(_) | Token::Spread => return None,
        }
        Some(None)
    }
}

/// The next token of `text` (none at its end) and the rest after it; `None` where no token begins.
fn token(text: &str) -> Option<(Option<Token<'_>>, &str)> {
    let mut text = text.trim_start_matches([' ', '\t', '\n', '\r', ',']);
    while let Some(comment) = text.strip_prefix('#') {
        let behind = comment.trim_start_matches(|c| !matches!(c, '\n' | '\r'));
        text = behind.trim_start_matches([' ', '\t', '\n', '\r', ',']);
    }
    let Some(first) = text.bytes().next() else { return Some((None, text)) };
    let length = |is_part: fn(char) -> bool| text.find(|c| !is_part(c)).unwrap_or(text.len());
    let (token, rest) = match first {
        b'!' | b'$' | b'&' | b'(' | b')' | b':' | b'=' | b'@' | b'[' | b']' | b'{' | b'|' | b'}' => {
            (Token::Punctuator(first), text.get(1..)?)
        }
        b'.' => (Token::Spread, text.strip_prefix("...")?),
        b'"' => (Token::Text, behind_text(text)?),
        b'_' | b'a'..=b'z' | b'A'..=b'Z' => {
            let (name, rest) = text.split_at_checked(length(|c| c == '_' || c.is_ascii_alphanumeric()))?;
            (Token::Name(name), rest)
        }
        b'-' | b'0'..=b'9' => number(text)?,
        _ => return None,
    };
    Some((Some(token), rest))
}

fn number(text: &str) -> Option<(Token<'_>, &str)> {
    let digits = |text: &str| text.len().saturating_sub(text.trim_start_matches(|c: char| c.is_ascii_digit()).len());
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    let whole = digits(unsigned);
    let (integer, mut rest) = unsigned.split_at_checked(whole)?;
    if integer.is_empty() || (integer.len() > 1 && integer.starts_with('0')) {
        return None;
    }
    let mut is_float = false;
    if let Some(fraction) = rest.strip_prefix('.') {
        rest = fraction.get(Some(digits(fraction)).filter(|count| *count > 0)?..)?;
        is_float = true;
    }
    if let Some(exponent) = rest.strip_prefix(['e', 'E']) {
        let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        rest = exponent.get(Some(digits(exponent)).filter(|count| *count > 0)?..)?;
        is_float = true;
    }
    // a name or another number must not follow without a separator
    if rest.starts_with(|c: char| c == '.' || c == '_' || c.is_ascii_alphanumeric()) {
        return None;
    }
    let written = text.strip_suffix(rest)?;
    Some((if is_float { Token::Float } else { Token::Int(written) }, rest))
}

/// The rest after the string, perhaps a block string, that `text` begins with.
fn behind_text(text: &str) -> Option<&str> {
    if let Some(mut block) = text.strip_prefix("\"\"\"") {
        loop {
            let (before, behind) = block.split_once("\"\"\"")?;
            match before.ends_with('\\') {
                true => block = behind,
                false => return Some(behind),
            }
        }
    }
    let mut escaped = false;
    for (position, c) in text.char_indices().skip(1) {
        match c {
            '\n' | '\r' => return None,
            '"' if !escaped => return text.get(position.checked_add(1)?..),
            _ => escaped = c == '\\' && !escaped,
        }
    }
    None
}
