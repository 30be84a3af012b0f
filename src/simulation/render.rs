//! Reports as a table for people and as JSON for programs.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::simulation::report::LimitReport;
use crate::units::Nanos;

/// One column per limit, one line per number; lines that say nothing about any of the limits are left out.
pub fn table(reports: &[LimitReport]) -> String {
    let mut text = String::new();
    for report in reports {
        line(&mut text, format_args!("{} ({}): {}", report.name, report.algorithm, report.words));
    }
    text.push('\n');
    let lines: Vec<(String, Vec<Option<String>>)> =
        lines(reports).into_iter().filter(|(_, cells)| cells.iter().any(Option::is_some)).collect();
    let widest = |cells: &mut dyn Iterator<Item = &str>| cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
    let label_width = widest(&mut lines.iter().map(|(label, _)| label.as_str()));
    let widths: Vec<usize> = (0..reports.len())
        .map(|column| widest(&mut lines.iter().filter_map(|(_, cells)| cells.get(column)?.as_deref())))
        .collect();
    for (label, cells) in &lines {
        let mut row = format!("{label:label_width$}");
        for (cell, width) in cells.iter().zip(&widths) {
            let cell = cell.as_deref().unwrap_or("-");
            row.push_str(&format!("  {cell:>width$}"));
        }
        line(&mut text, format_args!("{}", row.trim_end()));
    }
    text
}

/// An object with a member `limits`, in the order of the reports. Times are whole nanoseconds (`_ns`), shares are
/// between 0 and 1, and what there is no number for is `null`.
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
                None if abuse.factor > 1.0 => "not denied".to_owned(),
                None => "never denied".to_owned(),
            })
        }),
        row("  admitted before", &|report| {
            report.abuse.map(|abuse| match abuse.throttled_after {
                Some(_) => abuse.admitted.to_string(),
                None => format!("at least {}", abuse.admitted),
            })
        }),
    ]
}

fn share(report: &LimitReport) -> Option<f64> {
    ratio(report.admitted, report.offered)
}

#[expect(clippy::cast_precision_loss, reason = "a report, never a decision")]
fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    if writeln!(text, "{line}").is_err() {
        text.push('\n');
    }
}
