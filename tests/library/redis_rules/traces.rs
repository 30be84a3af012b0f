//! The recorded traces of `tests/fixtures/traces`, in Redis: every row has the same decision as in memory and in the
//! record.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use serde_json::Value as Json;
use tollgate::algorithm::{Decision, Denial, MAX_WAIT};
use tollgate::charge::Enforcement;
use tollgate::store::redis::{Bucket, Call, CallArgument, SharedRule};
use tollgate::store::redis::{Clock, Encoded, encode};
use tollgate::units::{LimitKey, Nanos};

use crate::algorithms::limit::{Limit, named};
use crate::redis_link::server::Server;
use crate::redis_rules::compare;
use crate::redis_rules::model::{Model, Part};
use crate::redis_rules::script::{Scripted, read};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/traces")
}

fn limit(json: &Json) -> Limit {
    let mut limit = Limit::new(named(json["algorithm"].as_str().unwrap()).unwrap());
    for (name, value) in json.as_object().unwrap() {
        limit = match (name.as_str(), value) {
            ("algorithm" | "key", _) => limit,
            ("over_limit", over) => limit.with(MAX_WAIT, over["delay"][MAX_WAIT].as_str().unwrap()),
            (name, Json::String(text)) => limit.with(name, text),
            (name, value) => limit.with(name, value),
        };
    }
    limit
}

/// One row, and the limit at that time.
struct Row {
    line: String,
    at: Nanos,
    key: String,
    cost: u64,
    allowed: bool,
    shared: SharedRule,
}

impl Row {
    fn bucket(&self) -> Bucket<'_> {
        Bucket {
            limit: &self.key,
            rule: &self.shared,
            key: LimitKey(0),
            tag: LimitKey(1),
            cost: self.cost,
            enforcement: Enforcement::DEFAULT,
            call_argument: if self.shared.rule().holds_slots() {
                CallArgument::Slot(&self.line)
            } else {
                CallArgument::Nothing
            },
        }
    }
}

fn rows(case: &Json) -> Option<Vec<Row>> {
    let mut limit = limit(&case["limit"]);
    let mut shared = SharedRule::new(limit.build().unwrap(), Nanos::from_secs(3600)).ok()?;
    let id = case["id"].as_str().unwrap();
    let text = fs::read_to_string(folder().join(case["file"].as_str().unwrap())).unwrap();
    let mut lines = text.lines();
    let columns: Vec<&str> = lines.next().unwrap().split(',').collect();
    let mut rows = Vec::new();
    for line in lines {
        let row: HashMap<&str, &str> = columns.iter().copied().zip(line.split(',')).collect();
        if let Some(rate) = row.get("set_rate").filter(|rate| !rate.is_empty()) {
            limit = limit.with("rate", rate);
            shared = SharedRule::new(limit.build().unwrap(), Nanos::from_secs(3600)).unwrap();
        }
        rows.push(Row {
            line: line.to_owned(),
            at: Nanos::new(row["t_ns"].parse().unwrap()),
            key: format!("{id}-{}", row["key"]),
            cost: row["cost"].parse().unwrap(),
            allowed: row["allowed"] == "1",
            shared: shared.clone(),
        });
    }
    Some(rows)
}

#[test]
fn recorded_traces_are_decided_the_same() {
    let server = Server::start();
    let mut redis = Scripted::new(server.connect());
    let cases: Json = serde_json::from_str(&fs::read_to_string(folder().join("cases.json")).unwrap()).unwrap();
    let (mut seen, mut different) = (0_u64, Vec::new());
    for case in cases["cases"].as_array().unwrap() {
        let Some(rows) = rows(case) else { continue };
        let calls: Vec<Encoded> =
            rows.iter().map(|row| encode(Call::Charge, Clock::Given(row.at), "t", &[row.bucket()]).unwrap()).collect();
        let mut model = Model::default();
        for (row, reply) in rows.iter().zip(redis.call_all(&calls)) {
            seen += 1;
            let rule = row.shared.rule().clone();
            let part = Part { key: row.key.clone(), rule, cost: row.cost, enforcement: Enforcement::DEFAULT };
            let (_, expected) = model.charge(&[part], row.at);
            let found = read(&reply, &[row.bucket()]).unwrap().charged(&[row.bucket()]).0;
            let same = compare::charged(&[row.shared.rule()], &expected, &found);
            let recorded = match found[0].decision {
                Decision::Admit { .. } => row.allowed,
                Decision::Deny(Denial::Busy | Denial::Later { .. } | Denial::Never { .. }) => !row.allowed,
            };
            if same.is_err() || !recorded {
                different.push(format!("{}: {}: {same:?}", case["id"], row.line));
            }
        }
    }
    assert!(
        different.is_empty(),
        "{} of {seen}:\n{}",
        different.len(),
        different[..different.len().min(20)].join("\n")
    );
    assert!(seen > 10_000, "only {seen} rows");
}
