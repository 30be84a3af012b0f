//! Rules that several gateways share in Redis: the parameters that the script there takes, and its form of states.
//!
//! Beside the file of a [`Core`](super::Core) is a Lua file with its part of the script: a block for the letter with which
//! its parameters begin, which mirrors the Rust code name by name, in exact whole numbers.

use std::str::FromStr;

use crate::units::Nanos;

/// A rule in the script's form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedForm {
    /// The parameters as text, which the script also keeps beside the states.
    pub parameters: String,
    /// How several charges can be combined.
    pub charges: ChargeBatching,
    /// The kind of data that the script keeps.
    pub kept: StorageKind,
}

/// How several charges of a key can be combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeBatching {
    /// Tokens can be taken in any portions with the same result.
    AddUp,
    /// Several charges at one time are the same as one of their sum.
    Together,
    /// Each charge has to be decided by itself.
    OneByOne,
}

/// The kind of data that the script keeps of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageKind {
    /// A state.
    State,
    /// A state of one window: tokens taken in it are of no use in the next one.
    Window,
    /// A log, which stays in Redis.
    Log,
}

/// The words of a state in the script's form.
pub type StateFields<'a> = std::str::Split<'a, char>;

/// The next word as a number.
pub fn number<T: FromStr>(words: &mut StateFields<'_>) -> Option<T> {
    words.next()?.parse().ok()
}

/// The next word as a time.
pub fn time(words: &mut StateFields<'_>) -> Option<Nanos> {
    number(words).map(Nanos::new)
}

impl SharedForm {
    /// The form of a rule of which the script keeps states.
    pub const fn new(parameters: String, charges: ChargeBatching) -> Self {
        Self { parameters, charges, kept: StorageKind::State }
    }
}
