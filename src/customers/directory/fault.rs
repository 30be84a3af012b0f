//! The faults of a directory.

use std::sync::Arc;

use crate::ruleset::overrides::InvalidOverride;

/// The maximum number of faults that are kept; further ones are only counted.
const MAX_FAULTS: usize = 1_000;

/// The maximum length of a name, in bytes.
pub(super) const MAX_NAME: usize = 256;

/// A fault of a directory. Never contains a credential.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// There is no header line.
    #[error("the file is empty")]
    Empty,
    /// A column is missing.
    #[error("the column `{0}` is missing")]
    MissingColumn(&'static str),
    /// A column appears twice.
    #[error("the column `{0}` is there twice")]
    RepeatedColumn(String),
    /// The column at this position (from 1) has an unknown name. The message does not contain the name: a file without a
    /// header line begins with a credential.
    #[error("the column {0} has an unknown name")]
    UnknownColumn(usize),
    /// A line has more or fewer fields than the header.
    #[error("the line has {found} fields and the header {expected}")]
    FieldCount {
        /// The number of fields in the line.
        found: usize,
        /// The number of fields in the header.
        expected: usize,
    },
    /// A line begins with `#` and is neither a header nor a row.
    #[error("the line begins with `#`")]
    Comment,
    /// A field holds a line break.
    #[error("a field goes on over the end of the line")]
    LineBreak,
    /// A field is empty.
    #[error("the {0} is empty")]
    EmptyField(&'static str),
    /// A customer's name is too long or holds control characters.
    #[error("the customer's name is longer than {MAX_NAME} bytes or holds control characters")]
    BadName,
    /// The credential begins with `sha256:`, but no valid hash follows.
    #[error("the credential begins with `sha256:` and goes on with something else than 64 hexadecimal digits")]
    BadHash,
    /// The plan does not exist.
    #[error("plan: {0}")]
    Plan(InvalidOverride),
    /// The time zone does not exist.
    #[error("time_zone: {0}")]
    TimeZone(InvalidOverride),
    /// The overrides are invalid.
    #[error("overrides: {0}")]
    Overrides(InvalidOverride),
    /// The expiry of the credential is neither a date nor a time.
    #[error("`valid_until` is neither a date like `2027-12-31` nor a time like `2027-12-31T18:00:00Z`")]
    BadValidUntil,
    /// The `suspended` field is neither true nor false.
    #[error("`suspended` is neither `true` nor `false`")]
    BadSuspended,
    /// An earlier line has the same credential.
    #[error("the credential is that of line {0} again")]
    RepeatedCredential(u64),
    /// Another row of the same customer has other terms.
    #[error("the customer has another {what} on line {line}")]
    Disagrees {
        /// The field with another value.
        what: &'static str,
        /// The line of the other row.
        line: u64,
    },
    /// The rows of a customer get different plans, at least one of them from its groups.
    #[error("the customer has another plan than on line {line}, because a row without a plan has that of its groups")]
    GroupsDisagree {
        /// The line of the other row.
        line: u64,
    },
    /// `groups` names a level that does not exist.
    #[error("`groups` names a level that is none of `customers.groups.levels`")]
    UnknownLevel,
    /// The level of a group does not exist.
    #[error("`level` is none of `customers.groups.levels`")]
    BadLevel,
    /// A group's name is too long or holds control characters.
    #[error("the name of the {0} is longer than {MAX_NAME} bytes or holds control characters")]
    BadGroupName(Arc<str>),
    /// The file of groups does not list the group.
    #[error("the {level} {name:?} is not in the file of groups")]
    UnknownGroup {
        /// The level of the group.
        level: Arc<str>,
        /// The name of the group.
        name: Box<str>,
    },
    /// A group would belong to itself, to a group within it, or to another group of its own level.
    #[error(
        "a group of the level {level} cannot belong to one of the level {of}: levels go from the outermost to the innermost"
    )]
    NotOuter {
        /// The level of the group.
        level: Arc<str>,
        /// The level of the group that it would belong to.
        of: Arc<str>,
    },
    /// Two of a row's groups do not belong together.
    #[error("the {inner} {name:?} belongs to another {outer}")]
    Elsewhere {
        /// The level of the inner group.
        inner: Arc<str>,
        /// The name of the inner group.
        name: Box<str>,
        /// The level of the outer group.
        outer: Arc<str>,
    },
    /// An earlier line has the same group.
    #[error("the group is that of line {0} again")]
    RepeatedGroup(u64),
    /// The text is no YAML list of such mappings.
    #[error("what stands here is no list of `{{{0}}}` in YAML")]
    MalformedYaml(&'static str),
}

/// The faults of a directory: at least one, each with its line number (from 1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The faults, in the order of the lines.
    pub faults: Vec<(u64, Fault)>,
    /// The number of further faults.
    pub more: usize,
}

impl Faults {
    pub(super) fn add(&mut self, line: u64, fault: Fault) {
        match self.is_full() {
            false => self.faults.push((line, fault)),
            true => self.more = self.more.saturating_add(1),
        }
    }

    /// The value that was read on a line; `None` if it has a fault, which is added.
    pub(super) fn keep<T>(&mut self, line: u64, read: Result<T, Fault>) -> Option<T> {
        read.map_err(|fault| self.add(line, fault)).ok()
    }

    /// Whether further faults are only counted.
    pub(super) const fn is_full(&self) -> bool {
        self.faults.len() >= MAX_FAULTS
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.faults.is_empty()
    }

    /// The messages of the faults, without their lines and without consecutive repeats.
    pub(super) fn reasons(&self) -> String {
        let mut reasons: Vec<String> = self.faults.iter().map(|(_, fault)| fault.to_string()).collect();
        reasons.dedup();
        reasons.join("; ")
    }

    pub(super) fn sort(&mut self) {
        self.faults.sort_by_key(|(line, _)| *line);
    }

    /// All faults in the order of their lines, as an error if there are any.
    pub(super) fn into_result(mut self) -> Result<(), Self> {
        self.sort();
        if self.is_empty() { Ok(()) } else { Err(self) }
    }
}
