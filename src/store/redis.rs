//! States in Redis: the rules of [`crate::algorithm`] as one Lua script, and what is said to it and by it.
//!
//! One call of [`SCRIPT`] charges all buckets of a request or none, on Redis's clock. The script decides and keeps the
//! states; it answers with the states it found, from which [`answer`] works out waits, retry times and headroom by the
//! same Rust code that decides in memory. So these exist once, and Redis, which all nodes share, does the least.
//!
//! Each family of rules brings its part of the script ([`Core::SCRIPT`](crate::algorithm::Core::SCRIPT)); what they have in
//! common stands in `lua/`. Its numbers are exact (`lua/naturals.lua`), except where the rule itself is in doubles.

use std::sync::LazyLock;

use crate::algorithm::{AlgorithmName, Charges, KeptAs, Rule, SharedForm};
use crate::units::Nanos;

pub mod answer;
pub mod codec;

pub use answer::{AllSeen, BadReply, ChargeReply, Field, KeyState};
pub use codec::{Bucket, Call, CallArgument, Clock, Encoded, Refused, encode, key_name};

/// The script. Its SHA-1 is what EVALSHA takes.
pub static SCRIPT: LazyLock<String> = LazyLock::new(|| {
    let mut families: Vec<&str> = Vec::new();
    for family in AlgorithmName::ALL.iter().map(|algorithm| algorithm.script()) {
        if !families.contains(&family) {
            families.push(family);
        }
    }
    let before = concat!(include_str!("redis/lua/naturals.lua"), include_str!("redis/lua/time.lua"));
    [before, &families.concat(), include_str!("redis/lua/driver.lua")].concat()
});

/// A rule that can be kept in Redis.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedRule {
    rule: Rule,
    form: SharedForm,
}

/// A rule cannot be kept in Redis.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{algorithm}` {problem}")]
pub struct NotShareable {
    /// The algorithm.
    pub algorithm: &'static str,
    /// What is wrong with it and what would be right, to be read after the algorithm's name.
    pub problem: String,
}

impl SharedRule {
    /// `rule` as the script takes it. A slot of `concurrency` lapses `lifetime` after it was taken or renewed.
    ///
    /// Errors: a rule of which there is no shared form.
    pub fn new(rule: Rule, lifetime: Nanos) -> Result<Self, NotShareable> {
        match rule.shared_form(lifetime) {
            Ok(form) => Ok(Self { rule, form }),
            Err(problem) => Err(NotShareable { algorithm: rule.name().as_str(), problem }),
        }
    }

    /// The rule.
    pub const fn rule(&self) -> &Rule {
        &self.rule
    }

    /// What the script takes, and keeps beside the states.
    pub fn parameters(&self) -> &str {
        &self.form.parameters
    }

    /// Whether it makes no difference in what portions tokens are taken, and nobody waits for them.
    pub fn adds_up(&self) -> bool {
        self.form.charges == Charges::AddUp && !self.rule.reserves() && !self.rule.denials_count()
    }

    /// Whether many charges are not the same as one of their sum, or one slot each.
    pub(super) fn is_charged_one_by_one(&self) -> bool {
        self.form.charges == Charges::OneByOne
    }

    /// Whether it keeps a log, which stays in Redis.
    pub fn is_log(&self) -> bool {
        self.form.kept == KeptAs::Log
    }

    /// Whether it counts in windows, so that what is taken in one is of no use in the next.
    pub fn is_window(&self) -> bool {
        self.form.kept == KeptAs::Window
    }
}
