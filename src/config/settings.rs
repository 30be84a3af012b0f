//! Every setting of the file, described once: its name, its kind, its range, its default and its purpose.
//!
//! Readers take the names, the ranges and most defaults from here. [`schema`] makes the JSON Schema for editors out of it,
//! and [`reference`] the page docs/configuration.md. A test compares each default with the result of a file that leaves the
//! setting out.

use std::ops::RangeInclusive;

use crate::units::Nanos;

/// Declares tables of settings, each with its name in the JSON Schema. A line says the name of a setting, its kind,
/// `required` or the default if it has one, `nonempty` for a mapping that must not be empty, and what it is for. rustfmt leaves text in braces as it is.
///
/// ```text
/// tables! {
///     NODE "node" {
///         address: Text("a host and a port"), required, "Where it is.";
///         weight: Whole(1, 1_000), default "1", "How many requests it gets for one of the others.";
///         zone: Text("a name"), "Its zone.";
///     }
/// }
/// ```
macro_rules! tables {
    ($($(#[$doc:meta])* $table:ident $table_name:literal {
        $($name:ident: $kind:expr, $($property:ident $($default:literal)?,)* $about:literal;)*
    })*) => {$(
        $(#[$doc])*
        pub(in crate::config) static $table: $crate::config::settings::Table = $crate::config::settings::Table {
            name: $table_name,
            settings: &[$(
                $crate::config::settings::Setting::optional(stringify!($name), $kind, $about)
                    $(.$property($($default)?))*
            ),*],
        };
    )*};
}
pub(super) use tables;

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

/// Words of choices that have been renamed, each with its current word. Readers accept them for one release.
pub(super) const FORMER_WORDS: [(&str, &str); 2] = [("share", "divide"), ("share", "shared_bucket")];

/// The settings of one mapping.
#[derive(Debug)]
pub(super) struct Table {
    /// The name in the JSON Schema, which is unique.
    pub(super) name: &'static str,
    pub(super) settings: &'static [Setting],
}

/// One setting.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) presence: Presence,
    /// Whether the value must not be empty, if it is a mapping.
    pub(super) nonempty: bool,
    /// One sentence for the reference.
    pub(super) about: &'static str,
}

/// Whether a setting may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Required,
    /// Optional; leaving it out has the same effect as this value.
    Default(&'static str),
    /// Optional; leaving it out has an effect that no value has.
    Optional,
}

/// The kind of values that a setting takes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// `true` or `false`.
    Flag,
    /// A whole number in this range, ends included.
    Whole(u64, u64),
    /// A size in bytes, like `8KiB`, in this range, ends included.
    Size(u64, u64),
    /// A length of time, like `250ms`, in this range, ends included.
    Duration(Nanos, Nanos),
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Text, with its description for the reference.
    Text(&'static str),
    /// A list. It may be empty only if that is its default.
    List(&'static Self),
    /// A list, each of whose values stands there once.
    Set(&'static Self),
    /// A mapping of settings.
    Section(&'static Table),
    /// A mapping of the settings of this table, without these names.
    Defaults(&'static Table, &'static [&'static str]),
    /// A mapping from the names of things of this sort to values.
    Named(&'static str, &'static Self),
    /// A value of any of these kinds.
    OneOf(&'static [Self]),
    /// The settings of a limit: those of every limit and the parameters of its algorithm.
    Limit,
    /// The parameters of the limit's algorithm, for a plan, a window or a candidate, and the settings of this table.
    Parameters(&'static Table),
}

impl Table {
    pub(super) fn names(&self) -> Vec<&'static str> {
        self.settings.iter().map(|setting| setting.name).collect()
    }

    /// The settings of the table for which `defaults:` may give a default: all but those in `without`.
    pub(super) fn defaults(&self, without: &'static [&'static str]) -> impl Iterator<Item = &'static Setting> {
        self.settings.iter().filter(|setting| !without.contains(&setting.name))
    }

    pub(super) fn find(&self, name: &str) -> Option<&'static Setting> {
        self.settings.iter().find(|setting| setting.name == name)
    }
}

impl Setting {
    pub(super) const fn optional(name: &'static str, kind: Kind, about: &'static str) -> Self {
        Self { name, kind, presence: Presence::Optional, nonempty: false, about }
    }

    pub(super) const fn required(self) -> Self {
        Self { presence: Presence::Required, ..self }
    }

    const fn default(self, default: &'static str) -> Self {
        Self { presence: Presence::Default(default), ..self }
    }

    const fn nonempty(self) -> Self {
        Self { nonempty: true, ..self }
    }

    /// The text of the default, if there is one.
    pub(super) const fn default_text(&self) -> Option<&'static str> {
        match self.presence {
            Presence::Default(default) => Some(default),
            Presence::Required | Presence::Optional => None,
        }
    }
}

impl Kind {
    /// A length of time above zero.
    const POSITIVE: Self = Self::Duration(Nanos::new(1), Nanos::MAX);
    /// A length of time, zero included.
    const DURATION: Self = Self::Duration(Nanos::ZERO, Nanos::MAX);

    /// The range of a whole number.
    pub(super) fn whole_range(&self) -> Option<RangeInclusive<u64>> {
        match self {
            Self::Whole(min, max) => Some(*min..=*max),
            Self::OneOf(kinds) => kinds.iter().find_map(Self::whole_range),
            _ => None,
        }
    }

    /// The range of a size.
    pub(super) fn size_range(&self) -> Option<RangeInclusive<u64>> {
        match self {
            Self::Size(min, max) => Some(*min..=*max),
            _ => None,
        }
    }

    /// The range of a length of time.
    pub(super) fn duration_range(&self) -> Option<RangeInclusive<Nanos>> {
        match self {
            Self::Duration(min, max) => Some(*min..=*max),
            _ => None,
        }
    }

    /// The words of a choice.
    pub(super) fn words(&self) -> Option<&'static [&'static str]> {
        match self {
            Self::Choice(words) => Some(words),
            Self::OneOf(kinds) => kinds.iter().find_map(Self::words),
            _ => None,
        }
    }

    /// The kind of each value in a list, or in a mapping from names to values.
    pub(super) const fn inner(&self) -> Option<&'static Self> {
        match self {
            Self::List(kind) | Self::Set(kind) | Self::Named(_, kind) => Some(kind),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
