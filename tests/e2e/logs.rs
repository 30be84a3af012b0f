//! The log is independent of clients and of its reader: it does not grow with the bytes that clients send, and no request
//! waits for it.

use std::collections::HashMap;

use serde_json::json;

use crate::support::gateway::{is_ready, proxied};
use crate::support::{Client, Gateway, Origin, Process, now, together, wait_for, wait_until};

/// The number of log lines for each kind of event.
fn events(gateway: &Gateway) -> HashMap<String, usize> {
    let mut events = HashMap::new();
    for line in gateway.process.stderr().lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("no event: {line}"));
        *events.entry(line["message"].as_str().unwrap().to_owned()).or_insert(0) += 1;
    }
    events
}

#[test]
fn requests_that_fail_are_told_ten_times_a_second_and_counted_beyond() {
    const FAILING: usize = 600;
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, ""));
    together(3, |_| {
        for _ in 0..FAILING / 3 {
            assert_eq!(gateway.get("/drop", &[]).status, 502);
        }
    });
    let left_out = || gateway.metrics().value("tollgate_log_lines_left_out_total", &[]).unwrap();
    let told = || events(&gateway).get("request to upstream failed").copied().unwrap_or_default();
    wait_until("every failure to be told or counted", || told() + left_out() as usize == FAILING);
    assert!(left_out() > 0.0, "600 requests do not take a minute");
    let log = gateway.process.stderr();
    let line = log.lines().find(|line| line.contains("request to upstream failed")).unwrap();
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!((&line["route"], &line["upstream"]), (&"all".into(), &"origin".into()), "{line}");
}

#[test]
fn invalid_requests_fill_no_log() {
    const EACH: usize = 300;
    /// The number of kinds that get a response; they come first.
    const ANSWERED: usize = 6;
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, ""));
    let nonsense: [&[u8]; 8] = [
        b"GET / HTTP/1.1\r\nhost: a\r\nno colon\r\n\r\n",
        b"GET /%zz HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nnonsense\r\n",
        b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\n\r\n",
        b"G",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ];
    let began = now();
    together(nonsense.len(), |kind| {
        for _ in 0..EACH {
            let mut client = gateway.client();
            client.send(nonsense[kind]);
            if kind < ANSWERED {
                drop(client.next());
            }
        }
    });
    assert_eq!(gateway.get("/", &[]).status, 200);
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap() + 2;
    for (event, count) in events(&gateway) {
        assert!(count <= 10 * seconds, "{event}: {count} times in {seconds} s");
    }
}

#[test]
fn a_log_that_nobody_reads_delays_no_request_and_no_end() {
    // more than a pipe and the queue of lines together can hold
    const REQUESTS: usize = 17_000;
    let origin = Origin::start();
    let config = format!(
        "access_log: full\nlimits: {{ one: {{ algorithm: quota_reset, limit: 1, window: 1d, key: all }} }}
{}routes: [{{ name: all, upstream: origin, limits: [one] }}]\n",
        origin.upstream()
    );
    let mut gateway = Gateway::start(&config);
    gateway.end("TERM");
    let unread = "mkfifo log && exec 3<>log && exec \"$0\" run --config tollgate.yaml >&3 2>&3";
    gateway.process = Process::program("sh", &["-c", unread, env!("CARGO_BIN_EXE_tollgate")], gateway.folder.path());
    wait_until("the gateway to be ready", || is_ready(gateway.admin));
    assert_eq!(gateway.get("/", &[]).status, 200);
    together(4, |_| {
        let mut client = Client::connect(gateway.address);
        for _ in 0..REQUESTS / 4 {
            assert_eq!(client.get("/").status, 429);
        }
    });
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "all"), ("code", "429")], REQUESTS as f64);
    let dropped = dropped(&gateway, "access");
    assert!(dropped > 0.0 && dropped < REQUESTS as f64, "{dropped}");
    gateway.end("TERM");
}

/// The number of dropped lines of a log, from the metric.
fn dropped(gateway: &Gateway, log: &str) -> f64 {
    gateway.metrics().value("tollgate_log_lines_dropped_total", &[("log", log)]).unwrap()
}

#[test]
fn access_log_lines_that_cannot_be_written_are_counted() {
    let origin = Origin::start();
    let mut gateway = Gateway::start(&(String::from("access_log: full\n") + &proxied(&origin, "")));
    assert_eq!(dropped(&gateway, "access"), 0.0);
    gateway.end("TERM");
    let full = "exec \"$0\" run --config tollgate.yaml >/dev/full";
    gateway.process = Process::program("sh", &["-c", full, env!("CARGO_BIN_EXE_tollgate")], gateway.folder.path());
    wait_until("the gateway to be ready", || is_ready(gateway.admin));
    for _ in 0..5 {
        assert_eq!(gateway.get("/", &[]).status, 200);
    }
    wait_until("every line to be counted", || dropped(&gateway, "access") == 5.0);
    assert_eq!(dropped(&gateway, "events"), 0.0);
    assert_eq!(events(&gateway).get("the log cannot be written: lines are lost until it can be"), Some(&1));
}

#[test]
fn a_refused_request_is_logged_with_its_path_and_client() {
    let origin = Origin::start();
    let gateway = Gateway::start(&format!(
        "access_log: full\n{}routes: [{{ name: all, match: {{ path: /here/** }}, upstream: origin }}]\n",
        origin.upstream()
    ));
    for (target, path, status, answered) in [
        ("/nowhere//x?key=canary", Some("/nowhere/x"), 404, "no_route"),
        ("/here/a;b=1", Some("/here/a;b=1"), 400, "malformed"),
        ("/%zz", None, 400, "malformed"),
    ] {
        let mut client = gateway.client();
        assert_eq!(client.get(target).status, status, "{target}");
        let line = wait_for("the line of the request", || {
            let lines = gateway.process.stdout();
            let lines = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
            lines.into_iter().find(|line| line["path"].as_str() == path)
        });
        let found = (&line["status"], &line["client"], line["host"].is_string(), &line["answered"]);
        assert_eq!(found, (&json!(status), &json!("127.0.0.1"), path.is_some(), &json!(answered)), "{line}");
        assert_eq!(line["decision"], "refused", "{line}");
    }
    assert_eq!(gateway.get("/here/passes", &[]).status, 200);
    assert_eq!(gateway.process.wait_for_access("/here/passes")["decision"], "unlimited");
}

#[test]
fn a_wrong_rust_log_is_told_and_the_default_is_used() {
    let origin = Origin::start();
    let gateway = Gateway::start_with(&proxied(&origin, ""), &[], &[("RUST_LOG", "tollgate=loud")]);
    wait_until("the warning and a line of the default", || {
        let told = events(&gateway);
        ["RUST_LOG is wrong; the default is used", "listening for clients"].iter().all(|line| told.contains_key(*line))
    });
}
