//! Reports as a table for people, as CSV, and as JSON.

use std::io;

use super::notes::counted;
use super::report::{CompleteReport, Difference, LimitReport, ReplayReport, RequestCounts};
use super::tally::Minute;
use super::top::DeniedKey;
use super::when;
use crate::simulation::render::columns;
use crate::units::Nanos;

/// The report as a table for people.
pub fn table(played: &CompleteReport) -> String {
    let mut text = heading(played);
    for (number, report) in std::iter::once(&played.rules).chain(&played.against).enumerate() {
        if played.against.is_some() {
            text.push_str(&format!("\n== {}{}\n", if number > 0 { "against " } else { "" }, report.config));
        }
        text.push_str(&of_report(report));
    }
    if let (Some(difference), Some(against)) = (&played.comparison, &played.against) {
        text.push_str(&of_difference(difference, &played.rules.config, &against.config));
    }
    if !played.notes.is_empty() {
        text.push_str("\nnotes\n");
        text.extend(played.notes.iter().map(|note| format!("  {note}\n")));
    }
    text
}

/// The report as JSON for programs: times in RFC 3339, shares between 0 and 1.
pub fn json(played: &CompleteReport) -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(played)
}

/// Writes the report as CSV: a row for each limit and plan, and for each route.
pub fn csv(played: &CompleteReport, output: impl io::Write) -> io::Result<()> {
    let mut rows = csv::Writer::from_writer(output);
    rows.write_record([
        "config",
        "route",
        "limit",
        "plan",
        "over_limit",
        "offered",
        "denied",
        "share",
        "first_denied",
        "last_denied",
        "worst_minute",
        "worst_minute_denied",
    ])?;
    for report in std::iter::once(&played.rules).chain(&played.against) {
        for limit in &report.limits {
            for plan in &limit.plans {
                let name = plan.plan.as_deref().unwrap_or_default();
                rows.write_record(row([&report.config, "", &limit.limit, name, limit.over_limit], &plan.line))?;
            }
        }
        for route in &report.routes {
            rows.write_record(row([&report.config, &route.route, "", "", ""], &route.line))?;
        }
    }
    rows.flush()
}

fn row(names: [&str; 5], line: &RequestCounts) -> Vec<String> {
    let time = |time: Option<Nanos>| time.map(when::utc).unwrap_or_default();
    let mut row: Vec<String> = names.map(str::to_owned).to_vec();
    row.extend([
        line.offered.to_string(),
        line.denied.to_string(),
        line.share.map(|share| share.to_string()).unwrap_or_default(),
        time(line.first_denied),
        time(line.last_denied),
        time(line.worst_minute.map(|minute| minute.begins)),
        line.worst_minute.map(|minute| minute.denied.to_string()).unwrap_or_default(),
    ]);
    row
}

fn heading(played: &CompleteReport) -> String {
    let mut text = format!("{}: {}", played.logs.join(", "), counted(played.lines, "line"));
    if let (Some(from), Some(to)) = (played.from, played.to) {
        text.push_str(&format!(", {} to {}", when::second(from), when::second(to)));
    }
    text.push('\n');
    if played.unreadable > 0 {
        text.push_str(&format!("{} unreadable, the first of them:\n", counted(played.unreadable, "line")));
        text.extend(played.unreadable_first.iter().map(|line| format!("  {line}\n")));
    }
    if played.answered_429 > 0 {
        text.push_str(&format!("{} answered with 429 in the log\n", counted(played.answered_429, "line")));
    }
    text
}

fn of_report(report: &ReplayReport) -> String {
    let mut text = String::from("\n");
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
    text.push_str(&columns(&rows, 1));
    let mut rows = Vec::new();
    for limit in &report.limits {
        for plan in &limit.plans {
            let name = plan.plan.clone().unwrap_or_else(|| "-".to_owned());
            rows.push(numbers(vec![limit.limit.clone(), name, limit.over_limit.to_owned()], &plan.line));
        }
    }
    text.push_str(&headed(&["limit", "plan", "over it"], rows));
    let used = report.routes.iter().filter(|route| route.line.offered > 0);
    text.push_str(&headed(&["route"], used.map(|route| numbers(vec![route.route.clone()], &route.line)).collect()));
    for limit in report.limits.iter().filter(|limit| !limit.top.is_empty()) {
        text.push_str(&format!("\nover {} most often ({}):\n", limit.limit, exactness(limit)));
        text.push_str(&of_top(&limit.top));
    }
    text
}

/// How exact the counts of a limit's keys are.
pub(super) fn exactness(limit: &LimitReport) -> String {
    match limit.denied_keys {
        Some(keys) => format!("{}, counted exactly", counted(u64::try_from(keys).unwrap_or(u64::MAX), "key")),
        None => "of very many keys; counts are at most too high by what is said".to_owned(),
    }
}

fn of_top(top: &[DeniedKey]) -> String {
    let rows: Vec<Vec<String>> = top
        .iter()
        .map(|denied| {
            let error = if denied.error > 0 { format!("(-{})", denied.error) } else { String::new() };
            let (first, last) = (when::second(denied.first), when::second(denied.last));
            vec![format!("  {}", denied.who), denied.denied.to_string(), format!("{first} to {last}"), error]
        })
        .collect();
    columns(&rows, 1)
}

fn of_difference(difference: &Difference, first: &str, second: &str) -> String {
    let mut text = format!("\n== {first} against {second}, request by request\n\n");
    let mut rows = vec![
        ["", "requests", "denied by both", "denied only by", "denied only by", "by neither"]
            .map(str::to_owned)
            .to_vec(),
        ["", "", "", first, second, ""].map(str::to_owned).to_vec(),
    ];
    let routes = difference.routes.iter().map(|route| (route.route.as_str(), route.cells));
    for (name, cells) in std::iter::once(("all", difference.cells)).chain(routes) {
        let counts = [cells.all(), cells.both, cells.only_first, cells.only_second, cells.neither];
        rows.push(std::iter::once(name.to_owned()).chain(counts.map(|count| count.to_string())).collect());
    }
    text.push_str(&columns(&rows, 1));
    if difference.refused_differently > 0 {
        let count = counted(difference.refused_differently, "request");
        text.push_str(&format!("{count} refused before any limit by one, and not or for another cause by the other\n"));
    }
    for (config, side) in [(first, &difference.denied_only_here), (second, &difference.denied_only_there)] {
        if side.top.is_empty() {
            continue;
        }
        let worst = side.worst_minute.map(|minute| format!("; worst minute {}", worst(minute))).unwrap_or_default();
        text.push_str(&format!("\ndenied only by {config}{worst}\n"));
        text.push_str(&of_top(&side.top));
        text.extend(side.examples.iter().map(|example| format!("  {example}\n")));
    }
    text
}

const NUMBERS: [&str; 6] = ["offered", "denied", "share", "first", "last", "worst minute"];

/// A row of a table: `names`, and then the [`NUMBERS`] of a line.
pub(super) fn numbers(mut names: Vec<String>, line: &RequestCounts) -> Vec<String> {
    let time = |time: Option<Nanos>| time.map_or_else(|| "-".to_owned(), when::second);
    names.extend([
        line.offered.to_string(),
        line.denied.to_string(),
        percent(line.denied, line.offered),
        time(line.first_denied),
        time(line.last_denied),
        line.worst_minute.map_or_else(|| "-".to_owned(), worst),
    ]);
    names
}

fn headed(names: &[&str], rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let heading: Vec<String> = names.iter().chain(&NUMBERS).map(|name| (*name).to_owned()).collect();
    let all: Vec<Vec<String>> = std::iter::once(heading).chain(rows).collect();
    format!("\n{}", columns(&all, names.len()))
}

fn worst(minute: Minute) -> String {
    format!("{} ({} denied)", when::second(minute.begins), minute.denied)
}

#[expect(clippy::cast_precision_loss, reason = "a report, never a decision")]
pub(super) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.2} %", part as f64 * 100.0 / whole as f64) }
}
