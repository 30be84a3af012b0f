//! Trials of changed limits on a log, over the admin port: another process decides, and the gateway does not change.

use std::io::Write;
use std::process::Command;
use std::thread;

use serde_json::{Value, json};

use crate::admin_api::{self, BEARER, HOST, post};
use crate::openapi::misfits;
use crate::support::{Client, Gateway, Origin, Response, wait_until};

/// A gateway with a log of five requests of ann, two of bob and one of eve; the limit admits two a day, and one for eve.
pub fn started(origin: &Origin) -> Gateway {
    let config = format!(
        "{}customers:
  identify: [{{ header: x-api-key }}]
  directory: {{ file: customers.csv }}
plans: [few, more]
limits:
  daily: {{ key: customer, algorithm: quota_reset, window: 1d, plans: {{ few: {{ limit: 1 }}, more: {{ limit: 2 }} }} }}
  all: {{ key: all, algorithm: gcra, rate: 1000/s, burst: 1000 }}
routes: [{{ name: all, upstream: origin, limits: [daily, all] }}]
",
        origin.upstream()
    );
    let customers = "credential,customer,plan\nk-ann,ann,more\nk-bob,bob,more\nk-eve,eve,few\n";
    let gateway = admin_api::started(&config, &[("customers.csv", customers), ("access.log.1", &log())]);
    let text = std::fs::read_to_string(gateway.folder.path().join("tollgate.yaml")).unwrap();
    let logs = "token_file: admin.token, audit_log: audit.log, replay_logs: [access.log.1, pipe.log, absent.log]";
    gateway.folder.write("tollgate.yaml", text.replacen("token_file: admin.token", logs, 1));
    assert_eq!(gateway.reload().status, 200);
    gateway
}

fn log() -> String {
    let callers = ["ann", "bob", "ann", "ann", "eve", "bob", "ann", "ann"];
    let line = |(second, caller): (usize, &str)| {
        format!("192.0.2.1 - {caller} [10/Oct/2000:13:00:{second:02} +0000] \"GET / HTTP/1.1\" 200 1\n")
    };
    callers.into_iter().enumerate().map(line).collect()
}

fn tried(gateway: &Gateway, log: &str, set: &Value) -> Response {
    post(gateway, "/v1/replay", &[HOST, BEARER], &json!({ "log": log, "set": set }))
}

#[track_caller]
fn refused(response: &Response, status: u16, says: &str) {
    let error = response.json()["error"].as_str().unwrap_or_default().to_owned();
    assert!(response.status == status && error.contains(says), "{status} {says}: {response:?}");
}

#[test]
fn a_change_of_a_limit_is_tried_on_a_log_and_nothing_changes() {
    let origin = Origin::start();
    let gateway = started(&origin);
    let get = |path: &str| Client::connect(gateway.admin).round_trip("GET", path, &[HOST]).json();
    let before = get("/v1/status");
    assert_eq!(before["replay_logs"], json!(["access.log.1", "pipe.log", "absent.log"]));
    let limits = get("/v1/limits");
    assert_eq!(
        limits["limits"][0]["settings"],
        json!({ "window": "1d", "plans.few.limit": "1", "plans.more.limit": "2" })
    );
    assert_eq!(limits["limits"][1]["settings"], json!({ "rate": "1000/s", "burst": "1000" }));

    let response = tried(&gateway, "access.log.1", &json!({ "limits.daily.plans.more.limit": "1" }));
    assert_eq!(response.status, 200, "{response:?}");
    let report = response.json();
    assert_eq!((&report["rules"]["offered"], &report["rules"]["denied"]), (&8.into(), &5.into()));
    assert_eq!((&report["against"]["offered"], &report["against"]["denied"]), (&8.into(), &3.into()));
    assert_eq!(report["rules"]["limits"][0]["denied_keys"], 2);
    assert_eq!(report["against"]["limits"][0]["denied_keys"], 1);
    let difference = &report["comparison"];
    assert_eq!((&difference["only_first"], &difference["only_second"]), (&2.into(), &0.into()));
    let mut more: Vec<&str> = difference["denied_only_here"]["top"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|one| one["who"].as_str())
        .collect();
    more.sort_unstable();
    assert_eq!(more, ["ann", "bob"]);
    let answers = json!([
        ["/v1/status", "GET", 200, before],
        ["/v1/limits", "GET", 200, limits],
        ["/v1/replay", "POST", 200, report]
    ]);
    assert_eq!(misfits(&answers), "", "the answers are as they are described");
    // several settings together
    let set = json!({ "limits.daily.plans.more.limit": "9", "limits.all.rate": "1/d", "limits.all.burst": "1" });
    assert_eq!(tried(&gateway, "access.log.1", &set).json()["rules"]["denied"], 7);

    let after = get("/v1/status");
    assert_eq!((&after["config_hash"], &after["limits"]), (&before["config_hash"], &before["limits"]));
    assert!(!gateway.folder.path().join("audit.log").exists(), "a trial is no change");
}

#[test]
fn trials_that_cannot_run_are_refused_with_a_reason() {
    let origin = Origin::start();
    let gateway = started(&origin);
    let set = json!({ "limits.daily.plans.more.limit": "1" });
    let question = json!({ "log": "access.log.1", "set": set });
    refused(&post(&gateway, "/v1/replay", &[HOST], &question), 401, "need the token");
    let wrong = ("authorization", "Bearer canary-token-012345678X");
    refused(&post(&gateway, "/v1/replay", &[HOST, wrong], &question), 401, "need the token");
    for log in ["access.log", "../access.log.1", "./access.log.1", "customers.csv", "/etc/passwd", "-", ""] {
        refused(&tried(&gateway, log, &set), 404, "only access.log.1, pipe.log, absent.log");
    }
    refused(&tried(&gateway, "absent.log", &set), 422, "absent.log");
    for (path, value, says) in [
        ("limits.daily.plans.more.limit", "many", "limits.daily.plans.more.limit"),
        ("limits.daly.limit", "1", "did you mean `daily`?"),
        ("limits.daily.limt", "1", "did you mean `limit`?"),
        ("limits.daily.plans.mor.limit", "1", "did you mean `more`?"),
        ("limits.daily.plans.more.limit.x", "1", "set `limits.daily.plans.more.limit`"),
        ("limits.daily.plans.more.limit", "", "expected a setting of a limit"),
        ("limits.", "1", "expected a setting of a limit"),
        ("customers.directory.file", "/etc/passwd", "expected a setting of a limit"),
        ("upstreams.origin.nodes", "[]", "expected a setting of a limit"),
        ("limits.daily.plans.more.limit", "1\0", "`set` has a zero byte"),
        // Linux passes no longer arguments to a program
        ("limits.daily.plans.more.limit", "1".repeat(128 << 10).as_str(), "a value in `set` is too long"),
    ] {
        let response = tried(&gateway, "access.log.1", &json!({ path: value }));
        refused(&response, 422, says);
        assert!(!response.text().contains("--set:"), "an option of the command line: {response:?}");
    }
    refused(&tried(&gateway, "access.log.1", &json!({})), 400, "no setting");
    refused(&post(&gateway, "/v1/replay", &[HOST, BEARER], &json!({ "log": "access.log.1" })), 400, "set");
    // the token is in no answer and no log line
    assert!(!gateway.process.stderr().contains("canary-token"));

    let text = std::fs::read_to_string(gateway.folder.path().join("tollgate.yaml")).unwrap();
    gateway.folder.write("tollgate.yaml", text.replace("replay_logs: [access.log.1, pipe.log, absent.log]", ""));
    assert_eq!(gateway.reload().status, 200);
    refused(&tried(&gateway, "access.log.1", &set), 409, "replay_logs: [access.log.1]");
}

#[test]
fn one_trial_runs_at_a_time_behind_everything_else() {
    let origin = Origin::start();
    let gateway = started(&origin);
    let set = json!({ "limits.daily.plans.more.limit": "1" });
    let pipe = gateway.folder.path().join("pipe.log");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    thread::scope(|scope| {
        let first = scope.spawn(|| tried(&gateway, "pipe.log", &set));
        // opening blocks until the replay reads
        let mut pipe = std::fs::OpenOptions::new().write(true).open(&pipe).unwrap();
        let tasks = || std::fs::read_dir(format!("/proc/{}/task", gateway.process.id())).unwrap();
        let children = || tasks().filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok());
        let child: String = children().collect();
        wait_until("the replay to let others go first", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.trim())).unwrap();
            stat.rsplit_once(')').unwrap().1.split_whitespace().nth(16) == Some("19")
        });
        refused(&tried(&gateway, "access.log.1", &set), 409, "another replay is running");
        pipe.write_all(log().as_bytes()).unwrap();
        drop(pipe);
        let response = first.join().unwrap();
        assert_eq!((response.status, &response.json()["lines"]), (200, &8.into()), "{response:?}");
    });
    assert_eq!(tried(&gateway, "access.log.1", &set).status, 200);
}
