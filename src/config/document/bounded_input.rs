//! The text as the parser reads it, with a bound on how far the parser may look ahead.

use std::cell::Cell;

use saphyr_parser::{Input, StrInput};

/// The largest number of characters that begin or separate values within one pair of brackets. The parser looks ahead to the
/// closing bracket, which takes memory for each such character.
const MAX_AHEAD: usize = 100_000;

/// Counts the characters that the parser has read since its last event.
#[derive(Default)]
pub(super) struct LookAhead(Cell<usize>);

impl LookAhead {
    /// Resets the count: the parser has returned an event.
    pub(super) fn begin_again(&self) {
        self.0.set(0);
    }

    /// Whether the parser has looked further ahead than it may; the input then ends for the parser.
    pub(super) fn is_too_far(&self) -> bool {
        self.0.get() > MAX_AHEAD
    }

    /// Counts `c`, which the parser has passed; returns whether the parser has now looked too far ahead.
    fn pass(&self, c: char) -> bool {
        if !matches!(c, ',' | ':' | '-' | '?' | '*' | '&' | '!' | '[' | ']' | '{' | '}') {
            return false;
        }
        self.0.set(self.0.get().saturating_add(1));
        self.is_too_far()
    }
}

/// The number of characters for which the parser allocates at once. It does so for every value, and most values are short.
const ROOM: usize = 16;

/// A text that ends at the point where the parser looks too far ahead.
pub(super) struct BoundedInput<'t> {
    text: StrInput<'t>,
    ahead: &'t LookAhead,
}

impl<'t> BoundedInput<'t> {
    pub(super) fn new(text: &'t str, ahead: &'t LookAhead) -> Self {
        Self { text: StrInput::new(text), ahead }
    }
}

impl Input for BoundedInput<'_> {
    fn lookahead(&mut self, count: usize) {
        self.text.lookahead(count);
    }

    fn buflen(&self) -> usize {
        self.text.buflen()
    }

    fn bufmaxlen(&self) -> usize {
        ROOM
    }

    fn raw_read_ch(&mut self) -> char {
        self.text.raw_read_ch()
    }

    fn raw_read_non_breakz_ch(&mut self) -> Option<char> {
        self.text.raw_read_non_breakz_ch()
    }

    fn skip(&mut self) {
        if self.ahead.pass(self.text.raw_read_ch()) {
            self.text = StrInput::new("");
        }
    }

    fn skip_n(&mut self, count: usize) {
        (0..count).for_each(|_| self.skip());
    }

    fn peek(&self) -> char {
        self.text.peek()
    }

    fn peek_nth(&self, n: usize) -> char {
        self.text.peek_nth(n)
    }

    fn peek_opt(&self) -> Option<char> {
        self.text.peek_opt()
    }

    fn next_is_blank_or_breakz(&self) -> bool {
        self.text.next_is_blank_or_breakz()
    }

    fn skip_while_blank(&mut self) -> usize {
        self.text.skip_while_blank()
    }
}
