//! Rules that several gateways share in Redis: what the script there takes of a rule, and how it writes states.
//!
//! Beside the file of a [`Core`](super::Core) stands its part of the script: a block that begins with the letter that its
//! parameters begin with, and mirrors the Rust name by name, in exact whole numbers.

use std::str::FromStr;

use crate::units::Nanos;

/// A rule as the script takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedForm {
    /// What the script takes, and keeps beside the states.
    pub parameters: String,
    /// How several charges go together.
    pub charges: Charges,
    /// What is kept.
    pub kept: KeptAs,
}

/// How several charges go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charges {
    /// It makes no difference in what portions tokens are taken.
    AddUp,
    /// Several are the same as one of their sum.
    Together,
    /// Each is decided by itself.
    OneByOne,
}

/// What is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptAs {
    /// A state.
    State,
    /// A state of one window, so that what is taken in it is of no use in the next.
    Window,
    /// A log, which stays in Redis.
    Log,
}

/// The words of a state.
pub type Words<'a> = std::str::Split<'a, char>;

/// The next word as a number.
pub fn number<T: FromStr>(words: &mut Words<'_>) -> Option<T> {
    words.next()?.parse().ok()
}

/// The next word as a time.
pub fn time(words: &mut Words<'_>) -> Option<Nanos> {
    number(words).map(Nanos::new)
}

impl SharedForm {
    /// A rule of which states are kept.
    pub const fn new(parameters: String, charges: Charges) -> Self {
        Self { parameters, charges, kept: KeptAs::State }
    }
}
