//! Reports as a table for people, as CSV, and as JSON.

use std::io;

use super::notes::counted;
use super::report::{CompleteReport, Difference, LimitReport, ReplayReport};
use super::tally::{DenialCounts, Minute};
use super::top::DeniedKey;
use super::when;
use crate::simulation::render::columns;
use crate::simulation::rows::io_error;
use crate::units::Nanos;

/// A section of a report for people.
#[derive(Default)]
pub(super) struct Section {
    /// The title; empty for a table that belongs to the section before. That of a chapter begins with [`CHAPTER`].
    pub(super) title: String,
    /// The names of the columns; empty if these need none.
    pub(super) header: Vec<String>,
    /// The rows of the table.
    pub(super) rows: Vec<Vec<String>>,
    /// How many columns hold names. They stand in front of those with numbers.
    names: usize,
    /// The lines below the table.
    pub(super) lines: Vec<String>,
}

/// How the title of a chapter begins.
pub(super) const CHAPTER: &str = "== ";

/// The report as a table for people.
pub fn table(played: &CompleteReport) -> String {
    let mut text = String::new();
    for Section { title, header, rows, names, lines } in sections(played) {
        if !text.is_empty() {
            text.push('\n');
        }
        if !title.is_empty() {
            text.push_str(&format!("{title}\n"));
        }
        let header = (!header.is_empty()).then_some(header);
        text.push_str(&columns(&header.into_iter().chain(rows).collect::<Vec<_>>(), names));
        text.extend(lines.iter().map(|line| format!("{line}\n")));
    }
    text
}

/// The report in sections.
pub(super) fn sections(played: &CompleteReport) -> Vec<Section> {
    let mut sections = vec![heading(played)];
    match &played.against {
        None => sections.extend(of_report(&played.rules)),
        Some(against) => {
            for (report, word) in [(&played.rules, ""), (against, "against ")] {
                sections.push(Section { title: format!("{CHAPTER}{word}{}", report.config), ..Section::default() });
                sections.extend(of_report(report));
            }
            let difference = played.comparison.iter();
            sections.extend(difference.flat_map(|of| of_difference(of, &played.rules.config, &against.config)));
        }
    }
    if !played.notes.is_empty() {
        let lines = played.notes.iter().map(|note| format!("  {note}")).collect();
        sections.push(Section { title: "notes".to_owned(), lines, ..Section::default() });
    }
    sections
}

/// The report as JSON for programs: times in RFC 3339, shares between 0 and 1.
pub fn json(played: &CompleteReport) -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(played)
}

/// Writes the report as CSV: a row for each limit and plan, and for each route.
pub fn csv(played: &CompleteReport, output: impl io::Write) -> io::Result<()> {
    let mut rows = csv::Writer::from_writer(output);
    rows.write_record([
        "config", "route", "limit", "plan", "over_limit", "offered", "denied", "share", "first_denied", "last_denied",
        "worst_minute", "worst_minute_denied",
    ])
    .map_err(io_error)?;
    for report in std::iter::once(&played.rules).chain(&played.against) {
        for limit in &report.limits {
            for plan in &limit.plans {
                let name = plan.plan.as_deref().unwrap_or_default();
                let names = [&report.config, "", &limit.limit, name, limit.over_limit];
                rows.write_record(row(names, &plan.line)).map_err(io_error)?;
            }
        }
        for route in &report.routes {
            let names = [&report.config, &route.route, "", "", ""];
            rows.write_record(row(names, &route.counts)).map_err(io_error)?;
        }
    }
    rows.flush()
}

fn row(names: [&str; 5], count: &DenialCounts) -> Vec<String> {
    let time = |time: Option<Nanos>| time.map(when::utc).unwrap_or_default();
    let mut row: Vec<String> = names.map(str::to_owned).to_vec();
    row.extend([
        count.offered.to_string(),
        count.denied.to_string(),
        count.share().map(|share| share.to_string()).unwrap_or_default(),
        time(count.first),
        time(count.last),
        time(count.worst().map(|minute| minute.begins)),
        count.worst().map(|minute| minute.denied.to_string()).unwrap_or_default(),
    ]);
    row
}

fn heading(played: &CompleteReport) -> Section {
    let mut title = format!("{}: {}", played.logs.join(", "), counted(played.lines, "line"));
    if let (Some(from), Some(to)) = (played.from, played.to) {
        title.push_str(&format!(", {} to {}", when::second(from), when::second(to)));
    }
    let mut lines = Vec::new();
    if played.unreadable > 0 {
        lines.push(format!("{} unreadable, the first of them:", counted(played.unreadable, "line")));
        lines.extend(played.unreadable_first.iter().map(|line| format!("  {line}")));
    }
    if played.answered_429 > 0 {
        lines.push(format!("{} answered with 429 in the log", counted(played.answered_429, "line")));
    }
    Section { title, lines, ..Section::default() }
}

fn of_report(report: &ReplayReport) -> Vec<Section> {
    let mut rows = vec![vec!["requests".to_owned(), report.all.offered.to_string(), String::new()]];
    let mut words: Vec<(&str, u64)> = report.decisions.iter().map(|(word, count)| (*word, *count)).collect();
    if !report.decisions.contains_key("denied") {
        words.push(("denied", 0));
    }
    for (word, count) in words {
        rows.push(vec![format!("  {word}"), count.to_string(), percent(count, report.all.offered)]);
    }
    let refused: u64 = report.refused.values().sum();
    if refused > 0 {
        rows.push(vec!["refused before any limit".to_owned(), refused.to_string(), String::new()]);
        let causes = report.refused.iter();
        rows.extend(causes.map(|(cause, count)| vec![format!("  {cause}"), count.to_string(), String::new()]));
    }
    let mut sections = vec![Section { rows, names: 1, ..Section::default() }];
    let limits = report.limits.iter().flat_map(|limit| limit.plans.iter().map(move |plan| (limit, plan)));
    let limits = limits.map(|(limit, plan)| {
        let names = [&limit.limit, plan.plan.as_deref().unwrap_or("-"), limit.over_limit];
        numbers(&names, &plan.line)
    });
    sections.extend(counts(&["limit", "plan", "over it"], limits.collect()));
    let routes = report.routes.iter().filter(|route| route.counts.offered > 0);
    sections.extend(counts(&["route"], routes.map(|route| numbers(&[&route.route], &route.counts)).collect()));
    let denying = report.limits.iter().filter(|limit| !limit.top.is_empty());
    sections.extend(denying.map(|limit| Section {
        title: format!("over {} most often ({}):", limit.limit, exactness(limit)),
        rows: of_top(&limit.top),
        names: 1,
        ..Section::default()
    }));
    sections
}

/// How exact the counts of a limit's keys are.
fn exactness(limit: &LimitReport) -> String {
    match limit.denied_keys {
        Some(keys) => format!("{}, counted exactly", counted(u64::try_from(keys).unwrap_or(u64::MAX), "key")),
        None => "of very many keys; counts are at most too high by what is said".to_owned(),
    }
}

fn of_top(top: &[DeniedKey]) -> Vec<Vec<String>> {
    let row = |denied: &DeniedKey| {
        let error = if denied.error > 0 { format!("(-{})", denied.error) } else { String::new() };
        let (first, last) = (when::second(denied.first), when::second(denied.last));
        vec![format!("  {}", denied.who), denied.denied.to_string(), format!("{first} to {last}"), error]
    };
    top.iter().map(row).collect()
}

fn of_difference(difference: &Difference, first: &str, second: &str) -> Vec<Section> {
    let title = format!("{CHAPTER}{first} against {second}, request by request");
    let header = ["", "requests", "denied by both", "denied only by", "denied only by", "by neither"];
    let mut rows = vec![["", "", "", first, second, ""].map(str::to_owned).to_vec()];
    let routes = difference.routes.iter().map(|route| (route.route.as_str(), route.counts));
    for (name, cells) in std::iter::once(("all", difference.cells)).chain(routes) {
        let counts = [cells.all(), cells.both, cells.only_first, cells.only_second, cells.neither];
        rows.push(std::iter::once(name.to_owned()).chain(counts.map(|count| count.to_string())).collect());
    }
    let mut lines = Vec::new();
    if difference.refused_differently > 0 {
        let count = counted(difference.refused_differently, "request");
        lines.push(format!("{count} refused before any limit by one, and not or for another cause by the other"));
    }
    let header = header.map(str::to_owned).to_vec();
    let mut sections =
        vec![Section { title, ..Section::default() }, Section { header, rows, names: 1, lines, ..Section::default() }];
    for (config, side) in [(first, &difference.denied_only_here), (second, &difference.denied_only_there)] {
        if side.top.is_empty() {
            continue;
        }
        let worst = side.worst_minute.map(|minute| format!("; worst minute {}", worst(minute))).unwrap_or_default();
        sections.push(Section {
            title: format!("denied only by {config}{worst}"),
            rows: of_top(&side.top),
            names: 1,
            lines: side.examples.iter().map(|example| format!("  {example}")).collect(),
            ..Section::default()
        });
    }
    sections
}

const NUMBERS: [&str; 6] = ["offered", "denied", "share", "first", "last", "worst minute"];

/// A row of a table: `names`, and then the [`NUMBERS`] of a count.
fn numbers(names: &[&str], count: &DenialCounts) -> Vec<String> {
    let time = |time: Option<Nanos>| time.map_or_else(|| "-".to_owned(), when::second);
    let numbers = [
        count.offered.to_string(),
        count.denied.to_string(),
        percent(count.denied, count.offered),
        time(count.first),
        time(count.last),
        count.worst().map_or_else(|| "-".to_owned(), worst),
    ];
    names.iter().map(|name| (*name).to_owned()).chain(numbers).collect()
}

/// A table of counts, if it has rows.
fn counts(names: &[&str], rows: Vec<Vec<String>>) -> Option<Section> {
    let header = names.iter().chain(&NUMBERS).map(|name| (*name).to_owned()).collect();
    (!rows.is_empty()).then(|| Section { header, rows, names: names.len(), ..Section::default() })
}

fn worst(minute: Minute) -> String {
    format!("{} ({} denied)", when::second(minute.begins), minute.denied)
}

#[expect(clippy::cast_precision_loss, reason = "a report, never a decision")]
fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.2} %", part as f64 * 100.0 / whole as f64) }
}
