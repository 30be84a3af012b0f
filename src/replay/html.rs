//! Reports as one self-contained HTML page: tables, and a picture of each limit over time.

use std::io;

use super::play::{Player, RulesetRun};
use super::render::{CHAPTER, Section, sections};
use super::report::CompleteReport;
use super::when;
use crate::algorithm::Rule;
use crate::ruleset::limit::Limit;
use crate::simulation::plot::{self, Column, PlotError};

const STYLE: &str = "body{font:14px/1.45 sans-serif;margin:2em auto;max-width:75em;padding:0 1em;color:#222}\
                     table{border-collapse:collapse;margin:1em 0}th,td{padding:.25em .8em;border-bottom:1px solid #ddd;\
                     text-align:right;white-space:pre}th:first-child,td:first-child{text-align:left}\
                     th{background:#f5f5f5}svg{max-width:100%;height:auto}";

/// The report as an HTML page. Errors: a picture cannot be drawn.
pub fn page<W: io::Write>(played: &CompleteReport, player: &Player<W>) -> Result<String, PlotError> {
    let mut page = String::from("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
    page.push_str(&format!("<title>tollgate replay</title><style>{STYLE}</style></head><body>\n"));
    page.push_str(&format!("<h1>{}</h1>\n", escaped(&played.rules.config)));
    sections(played).iter().for_each(|section| push_section(&mut page, section));
    pictures(&mut page, player)?;
    page.push_str("</body></html>\n");
    Ok(page)
}

fn push_section(page: &mut String, Section { title, header, rows, lines, .. }: &Section) {
    match title.strip_prefix(CHAPTER) {
        Some(chapter) => page.push_str(&format!("<h2>{}</h2>\n", escaped(chapter))),
        None if title.is_empty() => {}
        None => page.push_str(&format!("<h3>{}</h3>\n", escaped(title))),
    }
    let row = |cells: &[String], tag: &str| -> String {
        let cells: String = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
        format!("<tr>{cells}</tr>\n")
    };
    if !rows.is_empty() {
        let header = if header.is_empty() { String::new() } else { row(header, "th") };
        let rows: String = rows.iter().map(|cells| row(cells, "td")).collect();
        page.push_str(&format!("<table>{header}{rows}</table>\n"));
    }
    lines.iter().for_each(|line| page.push_str(&format!("<p>{}</p>\n", escaped(line))));
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
            page.push_str(&format!("<h3>{name} over time, from {begins} on</h3>\n{}\n", plot::svg(&columns)?));
        }
    }
    Ok(())
}

fn column(side: &RulesetRun, position: usize) -> Option<Column> {
    let limit: &Limit = side.replayer.rules().ruleset.limits.get(position)?;
    let tally = side.tally.limits.get(position)?;
    let series = tally.series.clone().filter(|_| tally.plans.iter().any(|count| count.offered > 0))?;
    let words = limit.rules.iter().map(Rule::describe).collect::<Vec<_>>().join("; ");
    let title = format!("{} ({}) in {}", limit.name, limit.algorithm.as_str(), side.name);
    Some(Column { title, words, rate: None, series })
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
