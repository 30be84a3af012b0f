//! The reference of the file, docs/configuration.md, in Markdown.

use std::fmt::Write as _;

use indexmap::IndexMap;

use super::{FILE, Kind, Presence, Setting, Table};
use crate::algorithm::{self, AlgorithmName, Parameter};
use crate::config::words;
use crate::units::Nanos;

const INTRODUCTION: &str = "# Configuration reference

Every setting, its values, its default and what it is for. `tollgate schema` prints the same as a JSON Schema, with which
editors complete and check a file; `tollgate schema --markdown` prints this page. A required setting has no default. `${NAME}`
in a value stands for an environment variable, which has to be set; `$${` stands for `${`.

Lengths of time are written like `250ms`, `30s`, `15m`, `6h` or `1d`, sizes like `8KiB` or `1MiB`, rates like `100/s` or
`5000/h`. An unknown name is an error, and `tollgate check` says which one was probably meant.
";

/// Writes the page.
pub(in crate::config) fn reference() -> String {
    let mut sections = Sections::default();
    sections.add(None, &FILE);
    let mut page = Page { text: INTRODUCTION.to_owned() };
    for Section { table, places } in sections.0.into_values() {
        page.section(table, &places);
    }
    page.parameters();
    page.text
}

/// A table of settings, and the places where such a section stands.
struct Section {
    table: &'static Table,
    places: Vec<String>,
}

/// The sections by name, each behind the first one that it stands in.
#[derive(Default)]
struct Sections(IndexMap<&'static str, Section>);

impl Sections {
    /// Adds a section, which stands at `place`, with the sections in it.
    fn add(&mut self, place: Option<String>, table: &'static Table) {
        let is_new = !self.0.contains_key(table.name);
        let section = self.0.entry(table.name).or_insert_with(|| Section { table, places: Vec::new() });
        section.places.extend(place);
        for Setting { name, kind, .. } in table.settings.iter().filter(|_| is_new) {
            let place = match table.name {
                "file" => format!("`{name}`"),
                above => format!("`{name}` of [`{above}`](#{above})"),
            };
            self.add_all_of(&place, kind);
        }
    }

    fn add_all_of(&mut self, place: &str, kind: &'static Kind) {
        match kind {
            Kind::Section(table) => self.add(Some(place.to_owned()), table),
            Kind::List(kind) | Kind::Set(kind) => self.add_all_of(&format!("the list {place}"), kind),
            Kind::Named(_, kind) => self.add_all_of(&format!("{place}, under each name"), kind),
            Kind::OneOf(kinds) => kinds.iter().for_each(|kind| self.add_all_of(place, kind)),
            Kind::Limit => self.add(Some(place.to_owned()), &super::LIMIT),
            _ => {}
        }
    }
}

struct Page {
    text: String,
}

impl Page {
    fn section(&mut self, table: &Table, places: &[String]) {
        let name = table.name;
        let place = match places {
            [] => "The whole file.".to_owned(),
            places => format!("Stands in {}.", places.join("; in ")),
        };
        self.line(format_args!("\n## {name}\n\n{place}\n\n| setting | value | default | |\n|---|---|---|---|"));
        for setting in table.settings {
            self.row(setting);
        }
    }

    fn row(&mut self, Setting { name, kind, presence, about, .. }: &Setting) {
        let default = match presence {
            Presence::Required => "required".to_owned(),
            Presence::Default(default) => format!("`{default}`"),
            Presence::Optional => String::new(),
        };
        self.line(format_args!("| `{name}` | {} | {default} | {about} |", written(kind)));
    }

    /// Writes the parameters of each algorithm.
    fn parameters(&mut self) {
        self.line(format_args!(
            "\n## Parameters of algorithms\n\nThey stand in the limit, and under its `plans`. \
             [algorithms.md](algorithms.md) says what they mean.\n\n| algorithm | parameters |\n|---|---|"
        ));
        for name in AlgorithmName::ALL {
            let parameters: Vec<String> = name.parameters().iter().map(parameter).collect();
            self.line(format_args!("| `{}` | {} |", name.as_str(), parameters.join("; ")));
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // writing to a string never fails
        let _written = writeln!(self.text, "{line}");
    }
}

/// Describes the values of this kind.
pub(in crate::config) fn written(kind: &Kind) -> String {
    match kind {
        Kind::Flag => "`true` or `false`".to_owned(),
        Kind::Whole(0, u64::MAX) => "a whole number".to_owned(),
        Kind::Whole(min, u64::MAX) => format!("a whole number, at least {min}"),
        Kind::Whole(min, max) => format!("a whole number, {min} to {max}"),
        Kind::Size(min, u64::MAX) => format!("a size, at least {}", size(*min)),
        Kind::Size(min, max) => format!("a size, {} to {}", size(*min), size(*max)),
        Kind::Duration(min, Nanos::MAX) if *min <= Nanos::new(1) => "a length of time".to_owned(),
        Kind::Duration(min, Nanos::MAX) => format!("a length of time, at least {min}"),
        Kind::Duration(min, max) => format!("a length of time, {min} to {max}"),
        Kind::Choice(choices) => words::alternatives(choices.iter().copied()),
        Kind::Text(what) => (*what).to_owned(),
        Kind::List(kind) | Kind::Set(kind) => format!("a list of: {}", written(kind)),
        Kind::Section(table) => format!("[`{0}`](#{0})", table.name),
        Kind::Defaults(table, without) => {
            format!("settings of [`{0}`](#{0}), but for {1}", table.name, words::all_of(without.iter().copied()))
        }
        Kind::Named(what, kind) => format!("by the name of each {what}: {}", written(kind)),
        Kind::OneOf(kinds) => kinds.iter().map(written).collect::<Vec<_>>().join("; or "),
        Kind::Limit => "[`limit`](#limit)".to_owned(),
        Kind::Parameters(_) => "parameters of the algorithm".to_owned(),
    }
}

/// A number of bytes in the largest unit that divides it.
fn size(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.into_iter().find(|(_, shift)| bytes.trailing_zeros() >= *shift && bytes > 0);
    unit.map_or_else(|| format!("{bytes}B"), |(unit, shift)| format!("{}{unit}", bytes >> shift))
}

fn parameter(parameter: &Parameter) -> String {
    let what = match parameter.kind {
        algorithm::ParameterKind::Rate => "a rate".to_owned(),
        algorithm::ParameterKind::Duration => "a length of time".to_owned(),
        algorithm::ParameterKind::DurationOr(words) => {
            format!("a length of time, or {}", words::alternatives(words.iter().copied()))
        }
        algorithm::ParameterKind::Whole => "a whole number".to_owned(),
        algorithm::ParameterKind::Decimal => "a number".to_owned(),
        algorithm::ParameterKind::Flag => "`true` or `false`".to_owned(),
        algorithm::ParameterKind::Choice(words) => words::alternatives(words.iter().copied()),
        algorithm::ParameterKind::TimeZone => "a time zone, like `Europe/Berlin`, or `customer`".to_owned(),
    };
    let needed = if parameter.required { "" } else { ", optional" };
    format!("`{}` ({what}{needed})", parameter.name)
}
