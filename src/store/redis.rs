//! States in Redis: the rules of [`crate::algorithm`] as one Lua script, its arguments and its replies.
//!
//! One call of [`SCRIPT`] charges all buckets of a request or none, on Redis's clock. The script decides and keeps the
//! states; it replies with the states it found, from which [`reply`] computes waits, retry times and headroom by the
//! same Rust code that decides in memory. So this code exists once, and Redis, which all gateways share, does little
//! work.
//!
//! Each family of rules brings its part of the script ([`Core::SCRIPT`](crate::algorithm::Core::SCRIPT)); the common
//! parts are in `lua/`. Its numbers are exact (`lua/naturals.lua`), except where the rule itself uses doubles.

use std::sync::LazyLock;

use crate::algorithm::{AlgorithmName, ChargeBatching, Rule, SharedForm, StorageKind};
use crate::units::Nanos;

pub mod codec;
pub mod reply;

pub use codec::{Bucket, Call, CallArgument, Clock, Encoded, Refused, encode, key_name};
pub use reply::{AllSeen, BadReply, Field, KeyState, ScriptReply};

/// The script; EVALSHA takes its SHA-1.
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
    /// The problem and the remedy, to be read after the algorithm's name.
    pub problem: String,
}

impl SharedRule {
    /// `rule` in the form that the script takes. A slot of `concurrency` lapses `lifetime` after it was taken or renewed.
    ///
    /// Errors: a rule that has no shared form.
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

    /// The parameters that the script takes, and keeps beside the states.
    pub fn parameters(&self) -> &str {
        &self.form.parameters
    }

    /// Whether charges add up, so that tokens can be taken in any portions, and no request waits for its tokens.
    pub fn adds_up(&self) -> bool {
        self.form.charges == ChargeBatching::AddUp && !self.rule.can_delay() && !self.rule.denials_count()
    }

    /// Whether each request needs a charge of its own: several charges are neither one of their sum, nor one slot each.
    pub(super) fn is_charged_one_by_one(&self) -> bool {
        self.form.charges == ChargeBatching::OneByOne
    }

    /// Whether it keeps a log, which stays in Redis.
    pub fn is_log(&self) -> bool {
        self.form.kept == StorageKind::Log
    }

    /// Whether it counts in windows, so that tokens taken in one window are of no use in the next.
    pub fn is_window(&self) -> bool {
        self.form.kept == StorageKind::Window
    }
}
