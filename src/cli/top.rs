//! `tollgate top`: what a running gateway does now, in the terminal.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use clap::Args;
use rustix::termios::tcgetwinsize;
use serde_json::{Value, json};
use unicode_width::UnicodeWidthChar;

use crate::cli::remote::{Remote, RemoteArgs};
use crate::cli::{Format, print};
use crate::simulation::render::{columns, width_of};

/// The arguments of `tollgate top`.
#[derive(Args, Clone, Debug)]
pub struct TopArgs {
    /// Print once and exit
    #[arg(long)]
    pub once: bool,
    /// The number of seconds between updates
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub every: u64,
    /// The number of limits to show, and of the keys that are denied most; a terminal may have room for fewer
    #[arg(long, value_name = "NUMBER", default_value_t = 15)]
    pub rows: usize,
    /// The output format; `json` prints one line for each update
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: Format,
    /// The gateway
    #[command(flatten)]
    pub remote: RemoteArgs,
}

/// The columns that the first cell of a row has at least.
const MIN_WIDTH: usize = 12;

/// The lines that are neither above the tables nor rows of them: their heads, an empty one, the sum of denials, and the line
/// of the cursor.
const BESIDE_ROWS: usize = 5;

/// Moves the cursor to the upper left corner and clears the terminal.
const CLEAR: &str = "\x1b[H\x1b[J";

/// The room for a picture.
#[derive(Clone, Copy)]
struct Screen {
    lines: usize,
    columns: usize,
}

/// Shows the state of a gateway, once or repeatedly.
pub fn execute(args: &TopArgs, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let remote = Remote::new(&args.remote, None);
    loop {
        let look = look(&remote)?;
        let screen = Screen::of_terminal();
        let shown = match args.format {
            Format::Json => format!("{look}\n"),
            Format::Text if args.once => text(&look, remote.admin(), args.rows, Screen { lines: usize::MAX, ..screen }),
            Format::Text => format!("{CLEAR}{}", text(&look, remote.admin(), args.rows, screen)),
        };
        print(out, &shown)?;
        if args.once {
            return Ok(());
        }
        std::thread::park_timeout(Duration::from_secs(args.every));
    }
}

impl Screen {
    const BOUNDLESS: Self = Self { lines: usize::MAX, columns: usize::MAX };

    /// The terminal that standard output is; boundless if it is none.
    fn of_terminal() -> Self {
        match tcgetwinsize(std::io::stdout()) {
            Ok(size) if size.ws_row > 0 && size.ws_col > 0 => {
                Self { lines: size.ws_row.into(), columns: size.ws_col.into() }
            }
            _ => Self::BOUNDLESS,
        }
    }
}

/// The data to show, from the admin port.
fn look(remote: &Remote) -> Result<Value, String> {
    Ok(json!({
        "status": remote.get("/v1/status")?,
        "limits": remote.get("/v1/limits")?["limits"],
        "routes": remote.get("/v1/routes")?["routes"],
        "offenders": remote.get("/v1/offenders")?,
    }))
}

fn text(look: &Value, admin: &str, rows: usize, screen: Screen) -> String {
    let rate = |row: &Value, name: &str| row["rates"]["moment"][name].as_f64().unwrap_or_default();
    let items = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let routes = items(&look["routes"]);
    // without routes, `sum` would be -0.0
    let of_all = |name: &str| routes.iter().fold(0.0, |sum, route| sum + rate(route, name));
    let (requests, denied) = (of_all("requests_per_second"), of_all("denied_per_second"));
    let status = &look["status"];
    let mut lines = vec![
        format!(
            "tollgate {} at {admin}: {requests:.1} requests/s, {denied:.1} denied/s ({}), {:.1} failed/s",
            word(&status["version"]),
            percent(denied, requests),
            of_all("failed_per_second"),
        ),
        state(status),
        String::new(),
    ];
    let mut limits = items(&look["limits"]);
    let over = |limit: &Value| rate(limit, "over_per_second");
    let passed = |limit: &Value| rate(limit, "admitted_per_second") + rate(limit, "delayed_per_second");
    limits.sort_by(|a, b| over(b).total_cmp(&over(a)).then(passed(b).total_cmp(&passed(a))));
    let mut offenders = items(&look["offenders"]["offenders"]);
    let headings: usize = lines.iter().map(|line| width_of(line).div_ceil(screen.columns).max(1)).sum();
    let (of_limits, of_offenders) = shares(
        screen.lines.saturating_sub(headings.saturating_add(BESIDE_ROWS)),
        (limits.len().min(rows), offenders.len().min(rows)),
    );
    limits.truncate(of_limits);
    offenders.truncate(of_offenders);
    let shown = limits.iter().map(|limit| {
        let (passed, over) = (passed(limit), over(limit));
        let share = percent(over, passed + over);
        let [passed, over, unknown] =
            [passed, over, rate(limit, "unknown_per_second")].map(|each_second| format!("{each_second:.1}"));
        [word(&limit["name"]), passed, over, share, unknown, limit["keys"].to_string()]
    });
    lines.push(table(["limit", "admitted/s", "over/s", "share", "unknown/s", "keys"], shown, screen.columns));
    let top = &look["offenders"];
    let time = top["until_seconds"].as_f64().unwrap_or_default() - top["from_seconds"].as_f64().unwrap_or_default();
    lines.push(format!("{} denied in the last {time:.0} s", top["denied"]));
    let shown = offenders.iter().map(|one| {
        let error = one["error"].as_u64().unwrap_or_default();
        let exact = if error == 0 { "exact".to_owned() } else { format!("-{error}") };
        [key(&one["key"]), one["denied"].to_string(), exact, word(&one["limit"])]
    });
    lines.push(table(["key", "denied", "error", "limit"], shown, screen.columns));
    lines.join("\n")
}

/// A line about the configuration, the store and the upstreams.
fn state(status: &Value) -> String {
    let attempt = &status["reload"]["last_attempt"];
    let config: String = word(&status["config_hash"]).chars().take(8).collect();
    let mut words = vec![match attempt["result"].as_str() {
        Some("refused") => format!("configuration {config}; a new one was refused"),
        _ => format!("configuration {config}"),
    }];
    match status["store"]["breaker"].as_str() {
        Some("closed") => words.push("Redis answers".to_owned()),
        Some(_) => words.push("Redis is unavailable".to_owned()),
        None => {}
    }
    let nodes: Vec<bool> = status["upstreams"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|upstream| upstream["nodes"].as_array().into_iter().flatten())
        .map(|node| node["healthy"] == true && node["ejected"] != true)
        .collect();
    let healthy = nodes.iter().filter(|healthy| **healthy).count();
    words.push(format!("{healthy} of {} nodes healthy", nodes.len()));
    words.push(format!("up {:.0} s", status["uptime_seconds"].as_f64().unwrap_or_default()));
    words.join(", ")
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The values of a key in one line. Clients choose some of them, so control characters are replaced.
fn key(parts: &Value) -> String {
    let parts = parts.as_array().cloned().unwrap_or_default();
    if parts.is_empty() {
        return "all".to_owned();
    }
    let value = |part: &Value| match part["value"].as_str() {
        Some(value) => value.chars().map(|each| if each.is_control() { '?' } else { each }).collect(),
        None => format!("no {}", word(&part["part"])),
    };
    parts.iter().map(value).collect::<Vec<String>>().join(", ")
}

fn percent(part: f64, all: f64) -> String {
    if all > 0.0 { format!("{:.0} %", 100.0 * part / all) } else { "0 %".to_owned() }
}

/// The numbers of rows that two tables show of `room` rows: each has at least half of them, and what the other one leaves.
fn shares(room: usize, (first, second): (usize, usize)) -> (usize, usize) {
    let first = first.min((room / 2).max(room.saturating_sub(second)));
    (first, second.min(room.saturating_sub(first)))
}

/// Rows below a heading for each column, in `width` columns of the terminal: the first cells get the room that the others leave.
fn table<const N: usize>(heads: [&str; N], rows: impl Iterator<Item = [String; N]>, width: usize) -> String {
    let mut rows: Vec<Vec<String>> = std::iter::once(heads.map(str::to_owned)).chain(rows).map(Vec::from).collect();
    // two spaces are between columns
    let widest = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| width_of(cell) + 2).max();
    let others: usize = (1..N).filter_map(widest).sum();
    let first = width.saturating_sub(others).max(MIN_WIDTH);
    rows.iter_mut().filter_map(|row| row.first_mut()).for_each(|cell| *cell = cut(cell, first));
    columns(&rows, 1).lines().map(|line| cut(line, width) + "\n").collect()
}

/// The text, or as much of its beginning as leaves one of `width` columns for an ellipsis.
fn cut(text: &str, width: usize) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    let mut left = width.saturating_sub(1);
    let fits = |each: &char| {
        let rest = left.checked_sub(each.width().unwrap_or_default());
        left = rest.unwrap_or(left);
        rest.is_some()
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A gateway with these numbers of limits and of denied keys, whose values clients have made long.
    fn look(limits: usize, offenders: usize) -> Value {
        let limits = (0..limits).map(|number| json!({ "name": format!("limit-{number}"), "keys": number }));
        let key = json!([{ "part": "header x-user", "value": "界".repeat(99) }, { "part": "path", "value": "x".repeat(200) }]);
        let offenders = (0..offenders).map(|_| json!({ "key": key, "limit": "guard", "denied": 7 }));
        let (limits, offenders) = (limits.collect::<Vec<_>>(), offenders.collect::<Vec<_>>());
        json!({ "status": {}, "limits": limits, "offenders": { "denied": 7, "offenders": offenders } })
    }

    fn rows(text: &str) -> [usize; 2] {
        ["limit-", "界"].map(|start| text.lines().filter(|line| line.starts_with(start)).count())
    }

    #[test]
    fn the_picture_fits_the_terminal() {
        let screen = Screen { lines: 24, columns: 80 };
        for (limits, offenders, shown) in [(30, 30, [7, 8]), (2, 30, [2, 13]), (30, 0, [15, 0]), (1, 1, [1, 1])] {
            let text = text(&look(limits, offenders), "http://127.0.0.1:9090", 15, screen);
            let lines: usize = text.lines().map(|line| width_of(line).div_ceil(80).max(1)).sum();
            assert!(lines < 24 && rows(&text) == shown, "{lines} {:?}\n{text}", rows(&text));
            assert!(text.lines().skip(2).all(|line| width_of(line) <= 80), "{text}");
            assert_eq!(text.contains("…       7  exact  guard"), offenders > 0, "{text}");
        }
        let tiny = text(&look(30, 30), "http://127.0.0.1:9090", 15, Screen { lines: 3, columns: 30 });
        assert!(rows(&tiny) == [0, 0] && tiny.lines().skip(2).all(|line| width_of(line) <= 30), "{tiny}");
        assert_eq!(rows(&text(&look(30, 30), "http://127.0.0.1:9090", 15, Screen::BOUNDLESS)), [15, 15]);
    }

    #[test]
    fn a_cut_text_takes_no_more_columns_than_there_are() {
        for (text, width, shown) in
            [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("界界界", 6, "界界界"), ("界界界", 4, "界…"), ("ab", 0, "…")]
        {
            assert_eq!(cut(text, width), shown);
        }
    }
}
