//! The decisions of other limiters: every row of the recorded traces in `tests/fixtures/traces` (its README describes their
//! format).

use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use serde_json::Value as Json;
use tollgate::algorithm::{Decision, Denial, MAX_WAIT, Rule, State};
use tollgate::units::Nanos;

use crate::algorithms::limit::{Limit, named};

macro_rules! agrees {
    ($($test:ident $oracle:literal,)*) => {
        $(#[test]
        fn $test() {
            agree($oracle);
        })*

        #[test]
        fn every_recorded_case_is_run() {
            let run = [$($oracle,)*];
            for case in recorded() {
                let oracle = case["oracle"].as_str();
                assert!(oracle.is_some_and(|oracle| run.contains(&oracle)), "{case} is not run");
            }
        }
    };
}

agrees! {
    bucket4j_decided_the_same "bucket4j",
    exim_decided_the_same "exim",
    go_x_time_rate_decided_the_same "go_x_time_rate",
    governor_decided_the_same "governor",
    guava_decided_the_same "guava",
    limits_decided_the_same "limits",
    nginx_decided_the_same "nginx",
    pyrate_limiter_decided_the_same "pyrate_limiter",
    rate_limiter_flexible_decided_the_same "rate_limiter_flexible",
    redis_cell_decided_the_same "redis_cell",
    redis_cell_core_decided_the_same "redis_cell_core",
    reference_decided_the_same "reference",
    resilience4j_decided_the_same "resilience4j",
    sentinel_decided_the_same "sentinel",
    upstash_decided_the_same "upstash",
}

/// One recorded case.
struct Case {
    id: String,
    limit: Limit,
    file: String,
    rows: u64,
    admitted: u64,
    wait_tolerance: u64,
    retry_tolerance: u64,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/traces")
}

fn recorded() -> Vec<Json> {
    let text = fs::read_to_string(folder().join("cases.json")).expect("cases.json");
    let file: Json = serde_json::from_str(&text).expect("JSON");
    file["cases"].as_array().expect("cases").clone()
}

fn case(json: &Json) -> Case {
    let text = |name: &str| json[name].as_str().expect("a text").to_owned();
    let number = |name: &str| json[name].as_u64().expect("a number");
    Case {
        id: text("id"),
        limit: limit(&json["limit"]),
        file: text("file"),
        rows: number("rows"),
        admitted: number("admitted"),
        wait_tolerance: number("wait_tolerance_ns"),
        retry_tolerance: number("retry_tolerance_ns"),
    }
}

fn limit(json: &Json) -> Limit {
    let mut limit = Limit::new(named(json["algorithm"].as_str().expect("a name")).expect("an algorithm"));
    for (name, value) in json.as_object().expect("a limit") {
        limit = match (name.as_str(), value) {
            ("algorithm" | "key", _) => limit,
            ("over_limit", over) => limit.with(MAX_WAIT, over["delay"][MAX_WAIT].as_str().expect("a max_wait")),
            (name, Json::String(text)) => limit.with(name, text),
            (name, value) => limit.with(name, value),
        };
    }
    limit
}

/// Replays all recorded cases of another limiter; panics with all rows that differ.
fn agree(oracle: &str) {
    let cases: Vec<Case> = recorded().iter().filter(|case| case["oracle"] == oracle).map(case).collect();
    let mut rows = 0;
    let mut different = Vec::new();
    for case in &cases {
        let mut replay = Replay::new(case);
        let text = fs::read_to_string(folder().join(&case.file)).expect("a trace");
        let mut lines = text.lines();
        let columns: Vec<&str> = lines.next().expect("a header").split(',').collect();
        for line in lines {
            let row: HashMap<&str, &str> = columns.iter().copied().zip(line.split(',')).collect();
            if let Err(why) = replay.row(&row) {
                different.push(format!("{}: `{line}`: {why}", case.id));
            }
        }
        assert_eq!((replay.rows, replay.admitted), (case.rows, case.admitted), "rows and admitted of {}", case.id);
        rows += replay.rows;
    }
    // Written past the test harness, which would swallow it.
    let line = format!("{oracle}: {} cases, {rows} rows, {} different\n", cases.len(), different.len());
    drop(std::io::stderr().write_all(line.as_bytes()));
    let shown = different.len().min(20);
    assert!(different.is_empty(), "{} rows are different:\n{}", different.len(), different[..shown].join("\n"));
    assert!(!cases.is_empty(), "no cases of {oracle}");
}

/// A case during its replay.
struct Replay<'a> {
    case: &'a Case,
    rule: Rule,
    states: HashMap<String, State>,
    /// For each key, the costs that were denied since its last change, and the times at which they should pass.
    due: HashMap<String, Vec<(u64, Option<u64>)>>,
    rows: u64,
    admitted: u64,
}

impl<'a> Replay<'a> {
    fn new(case: &'a Case) -> Self {
        let rule = case.limit.build().unwrap_or_else(|invalid| panic!("{}: {invalid}", case.id));
        Self { case, rule, states: HashMap::new(), due: HashMap::new(), rows: 0, admitted: 0 }
    }

    fn row(&mut self, row: &HashMap<&str, &str>) -> Result<(), String> {
        let number = |name: &str| row[name].parse::<u64>().expect("a number");
        let (at, cost, key) = (number("t_ns"), number("cost"), row["key"]);
        if let Some(rate) = row.get("set_rate").filter(|rate| !rate.is_empty()) {
            self.set_rate(rate, at);
        }
        let (decision, state) = self.rule.decide(self.states.remove(key), cost, Nanos::new(at));
        if let Some(state) = state {
            self.states.insert(key.to_owned(), state);
        }
        self.rows += 1;
        let allowed = row["allowed"] == "1";
        self.admitted += u64::from(allowed);
        let promised = self.promised(key, cost, at, allowed, decision);
        let near = |name, ours: Nanos, tolerance| {
            let theirs = number(name);
            let off = ours.get().abs_diff(theirs);
            if off <= tolerance { Ok(()) } else { Err(format!("{name} is {} and not {theirs}", ours.get())) }
        };
        match (allowed, decision) {
            (true, Decision::Admit { wait }) => near("wait_ns", wait, self.case.wait_tolerance)?,
            (false, Decision::Deny(denial)) => match (row["retry_after_ns"], denial) {
                ("never", Denial::Never { .. }) | ("", _) => {}
                (_, Denial::Busy) => return Err("busy, and nothing is held".to_owned()),
                ("never", Denial::Later { .. }) => return Err(format!("{denial:?}, and no wait helps")),
                (_, Denial::Never { .. }) => return Err(format!("{denial:?}, and there is a retry time")),
                (_, Denial::Later { retry_after }) => near("retry_after_ns", retry_after, self.case.retry_tolerance)?,
            },
            _ => return Err(format!("{decision:?}")),
        }
        promised
    }

    /// Moves every key to the new rate just before the row.
    fn set_rate(&mut self, rate: &str, at: u64) {
        let changed = self.case.limit.clone().with("rate", rate).build().expect("a rate that fits");
        let states = std::mem::take(&mut self.states);
        self.states = states
            .into_iter()
            .filter_map(|(key, state)| Some((key, changed.set_rate(&self.rule, state, Nanos::new(at))?)))
            .collect();
        self.rule = changed;
        self.due.clear();
    }

    /// Checks that earlier denials gave the time at which the recorded limiter admits the same cost.
    fn promised(&mut self, key: &str, cost: u64, at: u64, allowed: bool, ours: Decision) -> Result<(), String> {
        let due = self.due.entry(key.to_owned()).or_default();
        let broken = due.iter().find(|(denied, passes)| {
            let off = passes.map_or(u64::MAX, |passes| passes.abs_diff(at));
            let early = passes.is_none_or(|passes| at < passes);
            *denied == cost && early == allowed && off > self.case.retry_tolerance
        });
        let broken = broken.copied();
        if (allowed && cost > 0) || (!allowed && self.rule.denials_count()) {
            due.clear();
        }
        match ours {
            Decision::Deny(Denial::Later { retry_after }) => due.push((cost, Some(at + retry_after.get()))),
            Decision::Deny(Denial::Never { .. }) => due.push((cost, None)),
            Decision::Deny(Denial::Busy) | Decision::Admit { .. } => {}
        }
        match broken {
            Some((_, passes)) => Err(format!("an earlier denial said that it passes at {passes:?}")),
            None => Ok(()),
        }
    }
}
