//! Reports as one self-contained HTML page: tables, and a picture of each limit over time.

use std::fmt::Write as _;
use std::io;

use super::notes::counted;
use super::play::{Player, RulesetRun};
use super::render::{exactness, numbers};
use super::report::{CompleteReport, Difference, ReplayReport};
use super::top::DeniedKey;
use super::when;
use crate::ruleset::limit::Limit;
use crate::simulation::plot::{self, Column, PlotError};

const STYLE: &str = "body{font:14px/1.45 sans-serif;margin:2em auto;max-width:75em;padding:0 1em;color:#222}\
                     table{border-collapse:collapse;margin:1em 0}th,td{padding:.25em .8em;border-bottom:1px solid #ddd;\
                     text-align:right;white-space:nowrap}th:first-child,td:first-child{text-align:left}\
                     th{background:#f5f5f5}.over{color:#d62728}svg{max-width:100%;height:auto}";

/// The report as an HTML page. Errors: a picture cannot be drawn.
pub fn page<W: io::Write>(played: &CompleteReport, player: &Player<W>) -> Result<String, PlotError> {
    let mut page = String::from("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    push(&mut page, format_args!("<title>tollgate replay</title><style>{STYLE}</style></head><body>\n"));
    push(&mut page, format_args!("<h1>{}</h1>\n", escaped(&played.logs.join(", "))));
    if let (Some(from), Some(to)) = (played.from, played.to) {
        let (lines, from, to) = (counted(played.lines, "line"), when::second(from), when::second(to));
        push(&mut page, format_args!("<p>{lines}, {from} to {to}; {} unreadable</p>\n", played.unreadable));
    }
    for report in std::iter::once(&played.rules).chain(&played.against) {
        push(&mut page, format_args!("<h2>{}</h2>\n", escaped(&report.config)));
        of_report(&mut page, report);
    }
    if let (Some(difference), Some(against)) = (&played.comparison, &played.against) {
        of_difference(&mut page, difference, &played.rules.config, &against.config);
    }
    pictures(&mut page, player)?;
    if !played.notes.is_empty() {
        let notes: String = played.notes.iter().map(|note| format!("<li>{}</li>\n", escaped(note))).collect();
        push(&mut page, format_args!("<h2>Notes</h2>\n<ul>{notes}</ul>\n"));
    }
    page.push_str("</body></html>\n");
    Ok(page)
}

fn of_report(page: &mut String, report: &ReplayReport) {
    let count = |(word, count): (&&str, &u64)| vec![(*word).to_owned(), count.to_string()];
    let mut rows: Vec<Vec<String>> = vec![vec!["requests".to_owned(), report.all.offered.to_string()]];
    rows.extend(report.decisions.iter().map(count));
    let refused = report.refused.iter();
    rows.extend(refused.map(|(cause, count)| vec![format!("refused: {cause}"), count.to_string()]));
    table(page, &["", "requests"], &rows);
    let limits = report.limits.iter().flat_map(|limit| limit.plans.iter().map(move |plan| (limit, plan)));
    let rows: Vec<Vec<String>> = limits
        .map(|(limit, plan)| {
            let name = plan.plan.as_deref().unwrap_or("-");
            let names = [&limit.limit, name, limit.over_limit, &plan.words];
            numbers(names.map(str::to_owned).to_vec(), &plan.line)
        })
        .collect();
    table(
        page,
        &["limit", "plan", "over it", "in words", "offered", "denied", "share", "first", "last", "worst minute"],
        &rows,
    );
    let routes = report.routes.iter().filter(|route| route.line.offered > 0);
    let rows: Vec<Vec<String>> = routes.map(|route| numbers(vec![route.route.clone()], &route.line)).collect();
    table(page, &["route", "offered", "denied", "share", "first", "last", "worst minute"], &rows);
    for limit in report.limits.iter().filter(|limit| !limit.top.is_empty()) {
        let (name, exactness) = (escaped(&limit.limit), exactness(limit));
        push(page, format_args!("<h3>Over {name} most often ({exactness})</h3>\n"));
        top(page, &limit.top);
    }
}

fn of_difference(page: &mut String, difference: &Difference, first: &str, second: &str) {
    push(page, format_args!("<h2>{} against {}, request by request</h2>\n", escaped(first), escaped(second)));
    let (only_first, only_second) = (format!("only by {first}"), format!("only by {second}"));
    let routes = difference.routes.iter().map(|route| (route.route.as_str(), route.cells));
    let rows: Vec<Vec<String>> = std::iter::once(("all", difference.cells))
        .chain(routes)
        .map(|(name, cells)| {
            let counts = [cells.all(), cells.both, cells.only_first, cells.only_second, cells.neither];
            std::iter::once(name.to_owned()).chain(counts.map(|count| count.to_string())).collect()
        })
        .collect();
    table(page, &["", "requests", "denied by both", &only_first, &only_second, "by neither"], &rows);
    for (config, side) in [(first, &difference.denied_only_here), (second, &difference.denied_only_there)] {
        if !side.top.is_empty() {
            push(page, format_args!("<h3>Denied only by {}</h3>\n", escaped(config)));
            top(page, &side.top);
        }
    }
}

fn top(page: &mut String, denied: &[DeniedKey]) {
    let row = |denied: &DeniedKey| {
        let count = match denied.error {
            0 => denied.denied.to_string(),
            error => format!("{} to {}", denied.denied - error, denied.denied),
        };
        vec![denied.who.clone(), count, when::second(denied.first), when::second(denied.last)]
    };
    table(page, &["who", "denied", "first", "last"], &denied.iter().map(row).collect::<Vec<_>>());
}

fn table(page: &mut String, heading: &[&str], rows: &[Vec<String>]) {
    if rows.is_empty() {
        return;
    }
    let cells = |cells: &mut dyn Iterator<Item = &str>, tag: &str| -> String {
        cells.map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect()
    };
    push(page, format_args!("<table><tr>{}</tr>\n", cells(&mut heading.iter().copied(), "th")));
    for row in rows {
        push(page, format_args!("<tr>{}</tr>\n", cells(&mut row.iter().map(String::as_str), "td")));
    }
    page.push_str("</table>\n");
}

/// Draws each limit that had requests, over time, and beside it the limit of the same name among the other rules.
fn pictures<W: io::Write>(page: &mut String, player: &Player<W>) -> Result<(), PlotError> {
    let begins = when::second(player.side.tally.begins());
    for (position, limit) in player.side.replayer.rules().ruleset.limits.iter().enumerate() {
        let other = player.against.as_ref().and_then(|(side, _)| {
            let limits = &side.replayer.rules().ruleset.limits;
            column(side, limits.iter().position(|other| other.name == limit.name)?)
        });
        let columns: Vec<Column> = column(&player.side, position).into_iter().chain(other).collect();
        if !columns.is_empty() {
            let name = escaped(&limit.name);
            push(page, format_args!("<h3>{name} over time, from {begins} on</h3>\n{}\n", plot::svg(&columns)?));
        }
    }
    Ok(())
}

fn column(side: &RulesetRun, position: usize) -> Option<Column> {
    let limit: &Limit = side.replayer.rules().ruleset.limits.get(position)?;
    let tally = side.tally.limits.get(position)?;
    let series = tally.series.clone().filter(|_| tally.plans.iter().any(|count| count.offered > 0))?;
    let words = match limit.rules.as_slice() {
        [only] => only.describe(),
        rules => format!("{} sets of parameters", rules.len()),
    };
    let title = format!("{} ({}) in {}", limit.name, limit.algorithm.as_str(), side.name);
    Some(Column { title, words, rate: None, series })
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn push(page: &mut String, text: std::fmt::Arguments<'_>) {
    // writing to a string cannot fail
    if page.write_fmt(text).is_err() {
        page.push('\n');
    }
}
