//! Reports as a table for people and as JSON for programs.

use serde_json::{Value, json};
use unicode_width::UnicodeWidthChar;

use crate::simulation::report::LimitReport;
use crate::units::Nanos;

/// One column per limit, one line per number; a line without a number for any of the limits is left out.
pub fn table(reports: &[LimitReport]) -> String {
    let mut text = String::new();
    for report in reports {
        text.push_str(&format!("{} ({}): {}\n", report.name, report.algorithm, report.words));
    }
    text.push('\n');
    let lines = lines(reports).into_iter().filter(|(_, cells)| cells.iter().any(Option::is_some));
    let row = |(label, cells): (String, Vec<Option<String>>)| {
        std::iter::once(label).chain(cells.into_iter().map(|cell| cell.unwrap_or_else(|| "-".to_owned()))).collect()
    };
    text.push_str(&columns(&lines.map(row).collect::<Vec<Vec<String>>>(), 1));
    text
}

/// Lines with aligned columns: the first `names` columns to the left, the others to the right.
pub fn columns(rows: &[Vec<String>], names: usize) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| width_of(cell)).max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            let space = " ".repeat(width.saturating_sub(width_of(cell)));
            if column < names { format!("{cell}{space}") } else { format!("{space}{cell}") }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// The number of columns that a terminal takes for `text`.
pub fn width_of(text: &str) -> usize {
    text.chars().filter_map(UnicodeWidthChar::width).sum()
}

/// An object with a member `limits`, in the order of the reports. Times are whole nanoseconds (`_ns`), shares are
/// between 0 and 1, and a missing number is `null`.
pub fn json(reports: &[LimitReport]) -> Value {
    json!({ "limits": reports.iter().map(object).collect::<Vec<_>>() })
}

fn object(report: &LimitReport) -> Value {
    json!({
        "limit": report.name,
        "algorithm": report.algorithm,
        "words": report.words,
        "keys": report.keys,
        "offered": report.offered,
        "offered_tokens": report.offered_tokens,
        "admitted": report.admitted,
        "admitted_tokens": report.admitted_tokens,
        "share_admitted": share(report),
        "denied": report.denied,
        "denied_for_good": report.never,
        "delayed": report.delayed,
        "most_waiting": report.most_waiting,
        "wait_p50_ns": report.waits.p50.get(),
        "wait_p99_ns": report.waits.p99.get(),
        "wait_max_ns": report.waits.max.get(),
        "latency_p50_ns": report.latency.map(|latency| latency.p50.get()),
        "latency_p99_ns": report.latency.map(|latency| latency.p99.get()),
        "latency_max_ns": report.latency.map(|latency| latency.max.get()),
        "longest_gap_ns": report.longest_gap.map(Nanos::get),
        "worst_window": report.worst_window.map(|worst| json!({
            "window_ns": worst.window.get(),
            "tokens": worst.tokens,
            "allowed": worst.allowed,
        })),
        "abuse": report.abuse.map(|abuse| json!({
            "factor": abuse.factor,
            "admitted": abuse.admitted,
            "throttled_after_ns": abuse.throttled_after.map(Nanos::get),
        })),
    })
}

fn lines(reports: &[LimitReport]) -> Vec<(String, Vec<Option<String>>)> {
    let row = |label: &str, cell: &dyn Fn(&LimitReport) -> Option<String>| {
        (label.to_owned(), reports.iter().map(cell).collect::<Vec<_>>())
    };
    let tokens_differ = reports.iter().any(|report| report.offered_tokens != report.offered);
    let any_delayed = reports.iter().any(|report| report.delayed > 0);
    let wait = |wait: Nanos| any_delayed.then(|| wait.to_string());
    let abuse_factor = reports.iter().find_map(|report| report.abuse).map_or(0.0, |abuse| abuse.factor);
    vec![
        row("limit", &|report| Some(report.name.clone())),
        row("offered", &|report| Some(report.offered.to_string())),
        row("  tokens", &|report| tokens_differ.then(|| report.offered_tokens.to_string())),
        row("  keys", &|report| (report.keys > 1).then(|| report.keys.to_string())),
        row("admitted", &|report| Some(report.admitted.to_string())),
        row("  tokens", &|report| tokens_differ.then(|| report.admitted_tokens.to_string())),
        row("  share", &|report| share(report).map(|share| format!("{:.2} %", share * 100.0))),
        row("denied", &|report| Some(report.denied.to_string())),
        row("  for good", &|report| (report.never > 0).then(|| report.never.to_string())),
        row("delayed", &|report| Some(report.delayed.to_string())),
        row("  most at once", &|report| any_delayed.then(|| report.most_waiting.to_string())),
        row("  wait, p50", &|report| wait(report.waits.p50)),
        row("  wait, p99", &|report| wait(report.waits.p99)),
        row("  wait, longest", &|report| wait(report.waits.max)),
        row("latency of the upstream, p50", &|report| report.latency.map(|latency| latency.p50.to_string())),
        row("  p99", &|report| report.latency.map(|latency| latency.p99.to_string())),
        row("  longest", &|report| report.latency.map(|latency| latency.max.to_string())),
        row("longest gap between admissions", &|report| report.longest_gap.map(|gap| gap.to_string())),
        row("most tokens in any window", &|report| report.worst_window.map(|worst| worst.tokens.to_string())),
        row("  window", &|report| report.worst_window.map(|worst| worst.window.to_string())),
        row("  quota of the window", &|report| report.worst_window?.allowed.map(|allowed| allowed.to_string())),
        row("  of that quota", &|report| {
            let worst = report.worst_window?;
            Some(format!("{:.0} %", ratio(worst.tokens, worst.allowed?)? * 100.0))
        }),
        row(&format!("abuser at {abuse_factor} times the rate"), &|report| {
            report.abuse.map(|abuse| match abuse.throttled_after {
                Some(after) => format!("denied after {after}"),
                None if abuse.admitted.is_none() => "cannot be simulated".to_owned(),
                None if abuse.factor > 1.0 => "not denied".to_owned(),
                None => "never denied".to_owned(),
            })
        }),
        row("  admitted before", &|report| {
            let abuse = report.abuse?;
            abuse.admitted.map(|admitted| match abuse.throttled_after {
                Some(_) => admitted.to_string(),
                None => format!("at least {admitted}"),
            })
        }),
    ]
}

fn share(report: &LimitReport) -> Option<f64> {
    ratio(report.admitted, report.offered)
}

/// The share of a part in the whole, 0 to 1; `None` if the whole is nothing.
#[expect(clippy::cast_precision_loss, reason = "a report, never a decision")]
pub fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
