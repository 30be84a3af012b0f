//! Logs with timestamps of whole seconds, and limits that cannot be replayed from a log.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::process::Output;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use crate::support::Folder;

const SECOND: u64 = 1_000_000_000;
/// 2023-11-14T22:13:20Z
const START: u64 = 1_700_000_000;

/// A request: its time in nanoseconds since the start of the log, and the last byte of its client 192.0.2.`from`.
type Request = (u64, u8);

fn folder(limit: &str) -> Folder {
    let folder = Folder::new();
    let config = |limit: &str| {
        format!(
            "listeners: [{{ address: \"127.0.0.1:1\" }}]
upstreams: {{ origin: {{ nodes: [\"127.0.0.1:2\"] }} }}
limits: {{ guard: {{ key: client_address, {limit} }} }}
routes: [{{ name: all, upstream: origin, limits: [guard] }}]
"
        )
    };
    folder.write("tollgate.yaml", config(limit));
    folder.write("loose.yaml", config("algorithm: gcra, rate: 1000/s, burst: 1000"));
    folder
}

fn combined(requests: &[Request]) -> String {
    requests.iter().fold(String::new(), |mut log, (at, from)| {
        let second = jiff::Timestamp::from_second((START + at / SECOND).try_into().unwrap()).unwrap();
        let time = second.strftime("%d/%b/%Y:%H:%M:%S +0000");
        writeln!(log, "192.0.2.{from} - - [{time}] \"GET / HTTP/1.1\" 200 1 \"-\" \"test/1\"").unwrap();
        log
    })
}

/// JSON lines with nginx's `$time_iso8601`, or with fractions of seconds.
fn json_lines(requests: &[Request], with_fraction: bool) -> String {
    requests.iter().fold(String::new(), |mut log, (at, from)| {
        let at = if with_fraction { *at } else { at - at % SECOND };
        let time = jiff::Timestamp::from_nanosecond(i128::from(START * SECOND + at)).unwrap();
        let time = if with_fraction { format!("{time:.6}") } else { format!("{time:.0}") };
        writeln!(log, "{{\"time\":\"{time}\",\"client\":\"192.0.2.{from}\",\"method\":\"GET\",\"path\":\"/\"}}")
            .unwrap();
        log
    })
}

/// A request every `pace` nanoseconds for this number of seconds, from 192.0.2.`from`; the first one at `phase`.
fn paced(seconds: u64, pace: u64, phase: u64, from: u8) -> Vec<Request> {
    (0..).map(|number| phase + number * pace).take_while(|at| *at < seconds * SECOND).map(|at| (at, from)).collect()
}

fn replay(folder: &Folder, flags: &[&str]) -> (Output, Value) {
    let output = folder.replay(&[&["--config", "tollgate.yaml", "--format", "json"], flags, &["access.log"]].concat());
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    (output, report)
}

fn has_note(report: &Value, text: &str) -> bool {
    report["notes"].as_array().unwrap().iter().any(|note| note.as_str().unwrap().contains(text))
}

const NOTE: &str = "have timestamps in whole seconds";

#[test]
fn an_evenly_paced_client_under_its_limit_is_not_denied() {
    let folder = folder("algorithm: gcra, rate: 4/s, burst: 1");
    let mut requests = paced(60, SECOND / 4, 0, 1);
    for from in 2..10 {
        requests.extend(paced(60, SECOND / 4, u64::from(from) * 11_000_000, from));
    }
    requests.sort_unstable();
    for log in [combined(&requests), json_lines(&requests, false)] {
        folder.write("access.log", &log);
        let (output, report) = replay(&folder, &["--fail-if-denied", "0%"]);
        assert_eq!((&report["rules"]["offered"], &report["rules"]["denied"]), (&json!(2160), &json!(0)));
        assert_eq!((output.status.code(), &report["whole_second_timestamps"]), (Some(0), &json!(2160)));
        assert!(has_note(&report, NOTE), "{}", report["notes"]);
    }
    // one request of each client arrives 1 ms too early
    for request in &mut requests[1000..1009] {
        request.0 -= 1_000_000;
    }
    folder.write("access.log", json_lines(&requests, true));
    let (output, report) = replay(&folder, &["--fail-if-denied", "0%"]);
    assert_eq!((&report["rules"]["denied"], output.status.code()), (&json!(9), Some(3)));
    assert!(report["whole_second_timestamps"] == 0 && !has_note(&report, NOTE), "{}", report["notes"]);
}

#[test]
fn a_client_over_its_limit_is_denied_as_often_as_its_rate_says() {
    let folder = folder("algorithm: token_bucket, rate: 5/s, burst: 1");
    folder.write("access.log", combined(&paced(100, SECOND / 10, 0, 1)));
    let (output, report) = replay(&folder, &["--fail-if-denied", "49%"]);
    assert_eq!((&report["rules"]["offered"], &report["rules"]["denied"]), (&json!(1000), &json!(500)));
    assert_eq!((&report["denied_at_least"], output.status.code()), (&json!(500), Some(3)));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("at least 50 % of the requests would be denied: more than --fail-if-denied 49%"), "{said}");
    assert_eq!(replay(&folder, &["--fail-if-denied", "50%"]).0.status.code(), Some(0));
}

#[test]
fn denials_that_coarse_timestamps_explain_do_not_fail_the_build() {
    // many requests in a part of each second shift the paced client's requests closer together
    let mut requests = paced(20, 700_000_000, 0, 1);
    let crowd = |second: u64| {
        (0..60_u8).map(move |number| (second * SECOND + 600_000_000 + u64::from(number) * 3_000_000, 2 + number))
    };
    requests.extend((0..20).flat_map(crowd));
    requests.sort_unstable();
    for limit in [
        "algorithm: gcra, rate: 10/7s, burst: 1",
        "algorithm: sliding_log, limit: 1, window: 700ms",
        "algorithm: sliding_log, limit: 1, window: 700ms, count_denied: true",
        "algorithm: concurrency, limit: 1",
    ] {
        let folder = folder(limit);
        folder.write("access.log", combined(&requests));
        let (output, report) = replay(&folder, &["--fail-if-denied", "0%"]);
        assert!(report["rules"]["denied"].as_u64() > Some(0), "{limit}: {report:#}");
        assert_eq!((output.status.code(), &report["denied_at_least"]), (Some(0), &json!(0)), "{limit}");
        assert_eq!(replay(&folder, &["--fail-if-denied", "0%", "--against", "loose.yaml"]).0.status.code(), Some(0));
        folder.write("access.log", json_lines(&requests, true));
        assert_eq!(replay(&folder, &["--fail-if-denied", "0%"]).1["rules"]["denied"], 0, "{limit}");
    }
}

#[test]
fn windows_that_start_with_requests_deny_for_certain_until_the_first_one_ends() {
    let folder = folder("algorithm: quota_reset, limit: 2, window: 2s");
    // the second request comes in the first window, so all four pass
    let requests = [(SECOND / 2, 1), (2 * SECOND + 100_000_000, 1), (2_600_000_000, 1), (2_600_000_000, 1)];
    for (with_fraction, denied) in [(true, 0), (false, 1)] {
        folder.write("access.log", json_lines(&requests, with_fraction));
        let (output, report) = replay(&folder, &["--fail-if-denied", "0%"]);
        assert_eq!((&report["rules"]["denied"], output.status.code()), (&json!(denied), Some(0)));
    }
    folder.write("access.log", combined(&[(0, 1), (0, 1), (SECOND - 1, 1)]));
    let (output, report) = replay(&folder, &["--fail-if-denied", "0%"]);
    assert_eq!((&report["denied_at_least"], output.status.code()), (&json!(1), Some(3)));
}

#[test]
fn a_request_out_of_order_makes_no_denial_certain() {
    let folder = folder("algorithm: gcra, rate: 1/s, burst: 1");
    let requests = [(38 * SECOND, 1), (35 * SECOND, 1), (40 * SECOND, 1)];
    for log in [combined(&requests), json_lines(&requests, false), json_lines(&requests, true)] {
        folder.write("access.log", log);
        let (output, report) = replay(&folder, &["--fail-if-denied", "0%"]);
        assert_eq!((&report["rules"]["denied"], &report["out_of_order"]), (&json!(1), &json!(1)));
        assert_eq!((output.status.code(), &report["denied_at_least"]), (Some(0), &json!(0)));
        let (_, report) = replay(&folder, &["--times", "start"]);
        assert_eq!((&report["rules"]["denied"], &report["out_of_order"]), (&json!(0), &json!(0)));
    }
    // what a late request takes is not certain either
    let folder = self::folder("algorithm: gcra, rate: 1/4s, burst: 2");
    folder.write("access.log", combined(&[(38 * SECOND, 1), (35 * SECOND, 1), (39 * SECOND, 1)]));
    let (_, report) = replay(&folder, &["--fail-if-denied", "0%"]);
    assert_eq!((&report["rules"]["denied"], &report["denied_at_least"]), (&json!(1), &json!(0)));
}

#[test]
fn no_fewer_requests_are_denied_at_any_times_than_for_certain() {
    let mut random = StdRng::seed_from_u64(crate::support::seed());
    let key = "key: client_address, algorithm";
    for (limits, is_certain) in [
        (vec![format!("{key}: sliding_log, limit: 1, window: 1500ms, count_denied: true")], true),
        (vec![format!("{key}: exponential, limit: 3, period: 2s, policy: strict")], true),
        (vec![format!("{key}: token_bucket, rate: 2/s, burst: 2, charge: {{ denied: true }}")], true),
        (vec![format!("{key}: gcra, rate: 10/s, burst: 10, cost: {{ by_method: {{ GET: 1, POST: 10 }} }}")], false),
        (vec![format!("{key}: fixed_window, limit: 2, window: 700ms")], true),
        (vec![format!("{key}: quota_reset, limit: 3, window: 3s")], true),
        (vec![format!("{key}: concurrency, limit: 1")], false),
        (
            vec![
                format!("{key}: gcra, rate: 1/2s, burst: 2"),
                "key: all, algorithm: gcra, rate: 3/s, burst: 1".to_owned(),
                "key: method, algorithm: sliding_log, limit: 4, window: 3s".to_owned(),
            ],
            true,
        ),
    ] {
        let names = ["one", "two", "three"];
        let limits: Vec<String> =
            limits.iter().zip(names).map(|(limit, name)| format!("{name}: {{ {limit} }}")).collect();
        let folder = Folder::new();
        folder.write(
            "tollgate.yaml",
            format!(
                "listeners: [{{ address: \"127.0.0.1:1\" }}]
upstreams: {{ origin: {{ nodes: [\"127.0.0.1:2\"] }} }}
limits: {{ {} }}
routes: [{{ name: all, upstream: origin, limits: [{}] }}]
",
                limits.join(", "),
                names[..limits.len()].join(", ")
            ),
        );
        let mut for_certain = 0;
        for (count, with_duration) in [(20, false), (90, false), (20, true), (90, true)] {
            let mut requests: Vec<(u64, u8)> =
                (0..count).map(|_| (random.random_range(0..8), random.random_range(1..4))).collect();
            requests.sort_by_key(|(second, _)| *second);
            let details = requests.iter().map(|(_, from)| {
                let duration = match with_duration {
                    true => format!(",\"duration\":0.{:03}", random.random_range(0..900)),
                    false => String::new(),
                };
                let method = ["GET", "POST"][random.random_range(0..2)];
                format!("\"client\":\"192.0.2.{from}\",\"method\":\"{method}\",\"path\":\"/\"{duration}")
            });
            let details: Vec<String> = details.collect();
            let line = |(at, details): (String, &String)| format!("{{\"time\":\"{at}\",{details}}}\n");
            let seconds = requests.iter().map(|(second, _)| START + second);
            let coarse = seconds.clone().map(|second| second.to_string()).zip(&details);
            folder.write("access.log", coarse.map(line).collect::<String>());
            let at_least = replay(&folder, &["--fail-if-denied", "100%"]).1["denied_at_least"].as_u64().unwrap();
            for_certain += at_least;
            for _ in 0..4 {
                let exact = seconds.clone().map(|second| format!("{second}.{:09}", random.random_range(0..SECOND)));
                let mut exact: Vec<(String, &String)> = exact.zip(&details).collect();
                exact.sort_unstable();
                folder.write("access.log", exact.into_iter().map(line).collect::<String>());
                let denied = replay(&folder, &[]).1["rules"]["denied"].as_u64().unwrap();
                assert!(denied >= at_least, "{limits:?}: {denied} of at least {at_least}");
            }
        }
        assert_eq!(for_certain > 0, is_certain, "{limits:?}");
    }
}

#[test]
fn logs_of_several_servers_are_spread_side_by_side() {
    let folder = folder("algorithm: gcra, rate: 10/s, burst: 2");
    let requests = paced(30, SECOND / 10, 0, 1);
    let of_server = |server: usize| requests.iter().copied().skip(server).step_by(2).collect::<Vec<_>>();
    folder.write("access.log", combined(&of_server(0)));
    folder.write("other.log", combined(&of_server(1)));
    let (_, report) = replay(&folder, &["other.log"]);
    assert_eq!((&report["rules"]["offered"], &report["rules"]["denied"]), (&json!(300), &json!(0)));
    assert_eq!(report["out_of_order"], 0);
}

#[test]
fn limits_that_a_log_cannot_replay_are_named() {
    for (limit, says) in [
        (
            "algorithm: adaptive_concurrency, min: 1, max: 9",
            "limit `guard` (adaptive_concurrency) cannot be replayed: it would have changed the latencies that the log tells",
        ),
        (
            "algorithm: concurrency, limit: 9",
            "limit `guard` holds each request for as long as the log says that it took",
        ),
    ] {
        let folder = folder(limit);
        folder.write("access.log", combined(&paced(2, SECOND / 4, 0, 1)));
        let (_, report) = replay(&folder, &[]);
        assert!(has_note(&report, says), "{limit}: {}", report["notes"]);
    }
}

#[test]
fn traffic_that_its_limit_admits_is_denied_for_certain_nowhere() {
    let mut random = StdRng::seed_from_u64(crate::support::seed());
    for limit in [
        "algorithm: gcra, rate: 3/s, burst: 1",
        "algorithm: gcra, rate: 7/s, burst: 4, over_limit: { delay: { max_wait: 300ms, max_waiting: 3 } }, delay_after: 1",
        "algorithm: token_bucket, rate: 10/7s, burst: 2",
        "algorithm: leaky_queue, rate: 3/s, capacity: 2, over_limit: { delay: { max_wait: 1s } }",
        "algorithm: fixed_window, limit: 2, window: 700ms",
        "algorithm: sliding_log, limit: 3, window: 1300ms, min_gap: 150ms",
        "algorithm: sliding_log, limit: 3, window: 300ms, count_denied: true",
        "algorithm: sliding_window, limit: 3, window: 1300ms",
        "algorithm: quota_linear, limit: 4, window: 2s",
        "algorithm: quota_reset, limit: 3, window: 2s",
        "algorithm: smooth_warming_up, rate: 4/s, warm_up: 2s, over_limit: { delay: { max_wait: 1s } }",
        "algorithm: exponential, limit: 20, period: 2s, policy: strict",
        "algorithm: cycle, limit: 3, period: 1500ms",
        "algorithm: concurrency, limit: 1",
    ] {
        let folder = folder(limit);
        let mut at = 0;
        let mut requests: Vec<Request> = Vec::new();
        while requests.len() < 1500 {
            at += random.random_range(1..60_000_000);
            requests.push((at, random.random_range(1..4)));
        }
        folder.write("access.log", json_lines(&requests, true));
        folder.replayed(&["--config", "tollgate.yaml", "--decisions", "d.csv", "access.log"]);
        let rows = folder.rows("d.csv");
        let admitted = |row: &&HashMap<String, String>| row["decision"] != "denied";
        let admitted: Vec<Request> =
            rows.iter().filter(admitted).map(|row| requests[row["line"].parse::<usize>().unwrap() - 1]).collect();
        assert!((50..1490).contains(&admitted.len()), "{limit}: {}", admitted.len());
        folder.write("access.log", combined(&admitted));
        let (output, report) = replay(&folder, &["--fail-if-denied", "0%"]);
        assert_eq!(
            (output.status.code(), &report["denied_at_least"]),
            (Some(0), &json!(0)),
            "{limit}: {}",
            report["rules"]["denied"]
        );
    }
}
