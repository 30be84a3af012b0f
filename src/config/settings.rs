//! Every setting of the file, described once: its name, what it takes, its range, its default and what it is for.
//!
//! Readers take the names and ranges from here. [`schema`] makes the JSON Schema for editors of it, [`reference`] the page
//! docs/configuration.md. A test holds each default against what a reader makes of a file that leaves the setting out.

use std::ops::RangeInclusive;

use crate::units::Nanos;

mod callers;
mod gateway;
mod limits;
pub(super) mod reference;
pub(super) mod schema;
mod state;
mod upstreams;

pub(super) use callers::*;
pub(super) use gateway::*;
pub(super) use limits::*;
pub(super) use state::*;
pub(super) use upstreams::*;

/// The settings of one mapping.
#[derive(Debug)]
pub(super) struct Table {
    /// What the JSON Schema calls it: unique.
    pub(super) name: &'static str,
    pub(super) settings: &'static [Setting],
}

/// One setting.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) presence: Presence,
    /// One sentence for the reference.
    pub(super) about: &'static str,
}

/// Whether a setting has to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Required,
    /// It may be left out, which says the same as this.
    Default(&'static str),
    /// It may be left out, which says what no value says.
    Optional,
}

/// What a setting takes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// `true` or `false`.
    Flag,
    /// A whole number from the first to the second.
    Whole(u64, u64),
    /// A size in bytes, like `8KiB`, from the first to the second.
    Size(u64, u64),
    /// A length of time, like `250ms`, from the first to the second.
    Duration(Nanos, Nanos),
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Text; the reference says which.
    Text(&'static str),
    /// A list.
    List(&'static Self),
    /// A mapping of settings.
    Section(&'static Table),
    /// A mapping of settings of that table, but for these.
    Defaults(&'static Table, &'static [&'static str]),
    /// A mapping from names to values.
    Named(&'static str, &'static Self),
    /// A value of any of these kinds.
    OneOf(&'static [Self]),
    /// The settings of a limit: those of every limit and the parameters of its algorithm.
    Limit,
    /// The parameters of the limit's algorithm, for one plan, or for a candidate with these settings beside them.
    Parameters(&'static [Setting]),
}

impl Table {
    pub(super) fn names(&self) -> Vec<&'static str> {
        self.settings.iter().map(|setting| setting.name).collect()
    }

    /// Those that may have a default of the file, where `without` may not.
    pub(super) fn defaults(&self, without: &'static [&'static str]) -> impl Iterator<Item = &'static Setting> {
        self.settings.iter().filter(|setting| !without.contains(&setting.name))
    }

    pub(super) fn find(&self, name: &str) -> Option<&'static Setting> {
        self.settings.iter().find(|setting| setting.name == name)
    }
}

impl Setting {
    pub(super) const fn required(name: &'static str, kind: Kind, about: &'static str) -> Self {
        Self { name, kind, presence: Presence::Required, about }
    }

    const fn default(name: &'static str, kind: Kind, default: &'static str, about: &'static str) -> Self {
        Self { name, kind, presence: Presence::Default(default), about }
    }

    pub(super) const fn optional(name: &'static str, kind: Kind, about: &'static str) -> Self {
        Self { name, kind, presence: Presence::Optional, about }
    }
}

impl Kind {
    /// A length of time above zero.
    const POSITIVE: Self = Self::Duration(Nanos::new(1), Nanos::MAX);
    /// A length of time, zero included.
    const DURATION: Self = Self::Duration(Nanos::ZERO, Nanos::MAX);

    /// The range of the number that the value may be.
    pub(super) fn whole_range(&self) -> Option<RangeInclusive<u64>> {
        match self {
            Self::Whole(least, most) => Some(*least..=*most),
            Self::OneOf(kinds) => kinds.iter().find_map(Self::whole_range),
            _ => None,
        }
    }

    /// The range of the size that the value may be.
    pub(super) fn size_range(&self) -> Option<RangeInclusive<u64>> {
        match self {
            Self::Size(least, most) => Some(*least..=*most),
            _ => None,
        }
    }

    /// The range of the length of time that the value may be.
    pub(super) fn duration_range(&self) -> Option<RangeInclusive<Nanos>> {
        match self {
            Self::Duration(least, most) => Some(*least..=*most),
            _ => None,
        }
    }

    /// The words that the value may be.
    pub(super) fn words(&self) -> Option<&'static [&'static str]> {
        match self {
            Self::Choice(words) => Some(words),
            Self::OneOf(kinds) => kinds.iter().find_map(Self::words),
            _ => None,
        }
    }

    /// What each value of a list or a mapping by names is.
    pub(super) const fn inner(&self) -> Option<&'static Self> {
        match self {
            Self::List(kind) | Self::Named(_, kind) => Some(kind),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
