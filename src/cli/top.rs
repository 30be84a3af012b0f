//! `tollgate top`: what a running gateway does now, in the terminal.

use std::error::Error;
use std::io::Write;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use crate::cli::remote::{Remote, RemoteArgs};
use crate::cli::{Format, print};
use crate::simulation::render::columns;

/// The arguments of `tollgate top`.
#[derive(Args, Clone, Debug)]
pub struct TopArgs {
    /// Print once and exit
    #[arg(long)]
    pub once: bool,
    /// The number of seconds between updates
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub every: u64,
    /// The number of limits to show, and of the keys that are denied most
    #[arg(long, value_name = "NUMBER", default_value_t = 15)]
    pub rows: usize,
    /// The output format; `json` prints one line for each update
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: Format,
    /// The gateway
    #[command(flatten)]
    pub remote: RemoteArgs,
}

/// Moves the cursor to the upper left corner and clears the terminal.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Shows the state of a gateway, once or repeatedly.
pub fn execute(args: &TopArgs, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let remote = Remote::new(&args.remote, None);
    loop {
        let look = look(&remote)?;
        let shown = match args.format {
            Format::Json => format!("{look}\n"),
            Format::Text if args.once => text(&look, remote.admin(), args.rows),
            Format::Text => format!("{CLEAR}{}", text(&look, remote.admin(), args.rows)),
        };
        print(out, &shown)?;
        if args.once {
            return Ok(());
        }
        std::thread::park_timeout(Duration::from_secs(args.every));
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

fn text(look: &Value, admin: &str, rows: usize) -> String {
    let rate = |row: &Value, name: &str| row["rates"]["moment"][name].as_f64().unwrap_or_default();
    let items = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let routes = items(&look["routes"]);
    let of_all = |name: &str| routes.iter().map(|route| rate(route, name)).sum::<f64>();
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
    let shown = limits.iter().take(rows).map(|limit| {
        let (passed, over) = (passed(limit), over(limit));
        let share = percent(over, passed + over);
        let [passed, over, unknown] =
            [passed, over, rate(limit, "unknown_per_second")].map(|each_second| format!("{each_second:.1}"));
        [word(&limit["name"]), passed, over, share, unknown, limit["keys"].to_string()]
    });
    lines.push(table(["limit", "admitted/s", "over/s", "share", "unknown/s", "keys"], shown));
    let top = &look["offenders"];
    let time = top["until_seconds"].as_f64().unwrap_or_default() - top["from_seconds"].as_f64().unwrap_or_default();
    lines.push(format!("{} denied in the last {time:.0} s", top["denied"]));
    let shown = items(&top["offenders"]).into_iter().take(rows).map(|one| {
        let error = one["error"].as_u64().unwrap_or_default();
        let exact = if error == 0 { "exact".to_owned() } else { format!("-{error}") };
        [key(&one["key"]), one["denied"].to_string(), exact, word(&one["limit"])]
    });
    lines.push(table(["key", "denied", "error", "limit"], shown));
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

/// Rows below a heading for each column.
fn table<const N: usize>(heads: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let rows: Vec<Vec<String>> = std::iter::once(heads.map(str::to_owned)).chain(rows).map(Vec::from).collect();
    columns(&rows, 1)
}
