//! What can be wrong with a directory.

use std::sync::Arc;

use crate::ruleset::overrides::InvalidOverride;

/// How many faults are kept; further ones are only counted.
const MOST_FAULTS: usize = 1_000;

/// The longest name of a customer, in bytes.
pub(super) const MAX_NAME: usize = 256;

/// One thing that is wrong with a directory. Never holds a credential.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// There is no header line.
    #[error("the file is empty")]
    Empty,
    /// A column is missing.
    #[error("the column `{0}` is missing")]
    MissingColumn(&'static str),
    /// A column is there twice.
    #[error("the column `{0}` is there twice")]
    RepeatedColumn(String),
    /// The column at this position (from 1) has another name than those known. A file without a header line begins with
    /// a credential, so the name is not told.
    #[error("the column {0} has an unknown name")]
    UnknownColumn(usize),
    /// A line has more or fewer fields than the header.
    #[error("the line has {found} fields and the header {expected}")]
    FieldCount {
        /// How many the line has.
        found: usize,
        /// How many the header has.
        expected: usize,
    },
    /// A field holds a line break.
    #[error("a field goes on over the end of the line")]
    LineBreak,
    /// A field is empty.
    #[error("the {0} is empty")]
    EmptyField(&'static str),
    /// A field is not in UTF-8.
    #[error("the {0} is not in UTF-8")]
    NotText(&'static str),
    /// A customer's name is too long or holds control characters.
    #[error("the customer's name is longer than {MAX_NAME} bytes or holds control characters")]
    BadName,
    /// The credential begins like a hash and is none.
    #[error("the credential begins with `sha256:` and goes on with something else than 64 hexadecimal digits")]
    BadHash,
    /// There is no such plan.
    #[error("plan: {0}")]
    Plan(InvalidOverride),
    /// There is no such time zone.
    #[error("time_zone: {0}")]
    TimeZone(InvalidOverride),
    /// The overrides are not understood.
    #[error("overrides: {0}")]
    Overrides(InvalidOverride),
    /// The time from when on the credential is not valid any more is no time.
    #[error("`valid_until` is neither a date like `2027-12-31` nor a time like `2027-12-31T18:00:00Z`")]
    BadValidUntil,
    /// Whether the customer is suspended is not said.
    #[error("`suspended` is neither `true` nor `false`")]
    BadSuspended,
    /// The credential is in the file already.
    #[error("the credential is that of line {0} again")]
    RepeatedCredential(u64),
    /// Another row of the customer says something else about it.
    #[error("the customer has another {what} on line {line}")]
    Disagrees {
        /// About what.
        what: &'static str,
        /// Where.
        line: u64,
    },
    /// The groups are those of a level that there is not.
    #[error("`groups` names a level that is none of `customers.groups.levels`")]
    UnknownLevel,
    /// A group's own level is none.
    #[error("`level` is none of `customers.groups.levels`")]
    BadLevel,
    /// A group's name is too long or holds control characters.
    #[error("the name of the {0} is longer than {MAX_NAME} bytes or holds control characters")]
    BadGroupName(Arc<str>),
    /// The file of groups does not list the group.
    #[error("the {level} {name:?} is not in the file of groups")]
    UnknownGroup {
        /// Its level.
        level: Arc<str>,
        /// What it is called here.
        name: Box<str>,
    },
    /// A group belongs to itself, to one within it or to another of its level.
    #[error(
        "a group of the level {level} cannot belong to one of the level {of}: levels go from the outermost to the innermost"
    )]
    NotOuter {
        /// The level of the group.
        level: Arc<str>,
        /// That of the one it is to belong to.
        of: Arc<str>,
    },
    /// Two of the groups named do not belong together.
    #[error("the {inner} {name:?} belongs to another {outer}")]
    Elsewhere {
        /// The level of the group within the other.
        inner: Arc<str>,
        /// The name of that group.
        name: Box<str>,
        /// The level of the other.
        outer: Arc<str>,
    },
    /// The group is in the file already.
    #[error("the group is that of line {0} again")]
    RepeatedGroup(u64),
    /// The text is no such list in YAML.
    #[error("what stands here is no list of `{{{0}}}` in YAML")]
    MalformedYaml(&'static str),
}

/// Everything that is wrong with a directory: at least one line number (from 1) and what is wrong there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// In the order of the lines.
    pub faults: Vec<(u64, Fault)>,
    /// How many there are beyond those kept.
    pub more: usize,
}

impl Faults {
    pub(super) fn add(&mut self, line: u64, fault: Fault) {
        match self.is_full() {
            false => self.faults.push((line, fault)),
            true => self.more = self.more.saturating_add(1),
        }
    }

    /// Whether further faults are only counted.
    pub(super) const fn is_full(&self) -> bool {
        self.faults.len() >= MOST_FAULTS
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.faults.is_empty()
    }

    /// What is wrong, each thing once, whichever lines it is about.
    pub(super) fn reasons(&self) -> String {
        let mut reasons: Vec<String> = self.faults.iter().map(|(_, fault)| fault.to_string()).collect();
        reasons.dedup();
        reasons.join("; ")
    }

    pub(super) fn sort(&mut self) {
        self.faults.sort_by_key(|(line, _)| *line);
    }
}
