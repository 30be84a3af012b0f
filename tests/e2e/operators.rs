//! Operators see metrics, health, status and log lines; none of them may show a secret.

use std::collections::BTreeSet;

use crate::support::gateway::{ALL_GUARDED, limited};
use crate::support::{Client, Gateway, Origin, Process, Response, wait_for, wait_until};

const TWO: &str = "{ algorithm: gcra, rate: 1/h, burst: 2, key: client_address }";

#[test]
fn metrics_are_valid_and_show_what_happened() {
    let origin = Origin::start();
    let gateway = Gateway::start(&limited(&origin, TWO));
    let mut client = gateway.client();
    let statuses = ["/", "/status/500", "/", "/"].map(|path| client.get(path).status);
    assert_eq!(statuses, [200, 500, 429, 429]);
    let requests = "tollgate_http_requests_total";
    gateway.wait_for_metric(requests, &[("route", "all"), ("code", "429")], 2.0);
    gateway.wait_for_metric(requests, &[("route", "all"), ("code", "200")], 1.0);
    gateway.wait_for_metric(requests, &[("route", "all"), ("code", "500")], 1.0);
    gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);

    let response = gateway.admin_get("/metrics");
    assert_eq!(response.field("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let metrics = gateway.metrics();
    let value = |name: &str, labels: &[(&str, &str)]| metrics.value(name, labels);
    let tokens =
        |outcome| value("tollgate_limit_tokens_total", &[("limit", "guard"), ("plan", "none"), ("outcome", outcome)]);
    assert_eq!((tokens("admitted"), tokens("denied")), (Some(2.0), Some(2.0)));
    assert_eq!(value("tollgate_limit_keys", &[("limit", "guard")]), Some(1.0));
    assert_eq!(value("tollgate_limit_keys_max", &[("limit", "guard")]), Some(1_000_000.0));
    assert_eq!(value("tollgate_limit_retry_after_seconds_count", &[("limit", "guard")]), Some(2.0));
    assert_eq!(value("tollgate_limit_decision_duration_seconds_count", &[("source", "local")]), Some(4.0));
    assert_eq!(value("tollgate_http_upstream_duration_seconds_count", &[("upstream", "origin")]), Some(2.0));
    let class =
        |class| value("tollgate_http_request_duration_seconds_count", &[("route", "all"), ("code_class", class)]);
    assert_eq!((class("2xx"), class("4xx"), class("5xx")), (Some(1.0), Some(2.0), Some(1.0)));
    assert_eq!(value("tollgate_config_last_reload_successful", &[]), Some(1.0));
    assert!(value("process_resident_memory_bytes", &[]).is_some_and(|bytes| bytes > 1e6));
    assert_eq!(metrics.all("tollgate_build_info").len(), 1);
}

#[test]
fn metrics_keep_the_conventions_of_their_kinds() {
    let origin = Origin::start();
    let gateway = Gateway::start(&limited(&origin, TWO));
    drop(gateway.get("/", &[]));
    let metrics = gateway.metrics();
    for (name, kind) in &metrics.types {
        assert!(name.starts_with("tollgate_") || name.starts_with("process_"), "{name}");
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
        if kind == "histogram" {
            for count in metrics.all(&format!("{name}_count")) {
                let mut buckets: Vec<(f64, f64)> = metrics
                    .all(&format!("{name}_bucket"))
                    .iter()
                    .filter(|bucket| count.labels.iter().all(|(key, value)| bucket.labels.get(key) == Some(value)))
                    .map(|bucket| (bucket.labels["le"].replace("+Inf", "inf").parse().unwrap(), bucket.value))
                    .collect();
                buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
                assert!(buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{name} {buckets:?}");
                assert_eq!(buckets.last(), Some(&(f64::INFINITY, count.value)), "{name}");
            }
        }
    }
}

#[test]
fn the_series_do_not_depend_on_what_clients_send() {
    let origin = Origin::start();
    let gateway = Gateway::start(&limited(&origin, "{ algorithm: gcra, rate: 1/h, burst: 1, key: { header: x-key } }"));
    let series = || {
        let metrics = gateway.metrics();
        let of = |name: &str| metrics.all(name).iter().map(|sample| format!("{:?}", sample.labels)).collect::<Vec<_>>();
        metrics.names().map(|name| (name.to_owned(), of(name))).collect::<BTreeSet<_>>()
    };
    let mut client = gateway.client();
    let mut spend = |from: usize| {
        for number in from..from + 30 {
            let (path, key, host) = (format!("/p{number}?q={number}"), format!("k{number}"), format!("h{number}"));
            let fields = [("x-key", key.as_str()), ("host", host.as_str())];
            assert_eq!(client.round_trip("GET", &path, &fields).status, 200);
            assert_eq!(client.round_trip("GET", &path, &fields).status, 429);
        }
    };
    spend(0);
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "all"), ("code", "429")], 30.0);
    let before = series();
    spend(30);
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "all"), ("code", "429")], 60.0);
    assert_eq!(series(), before);
}

#[test]
fn metrics_of_configured_limits_follow_a_reload() {
    let origin = Origin::start();
    let config = |limits: &str| {
        format!(
            "{}customers:
  identify: [{{ header: x-api-key }}]
  directory: {{ file: customers.csv }}
  anonymous: {{ plan: free }}
plans: [free, pro]
limits:
{limits}{ALL_GUARDED}",
            origin.upstream()
        )
    };
    let slots = "  slots: { algorithm: concurrency, limit: 3, key: all }\n";
    let guard = |free: &str| {
        format!("  guard: {{ algorithm: gcra, key: customer, plans: {{ free: {{ {free} }}, pro: unlimited }} }}\n")
    };
    let customers = [("customers.csv", "credential,customer,plan\npro-key,acme,pro\n")];
    let gateway = Gateway::start_with(&config(&(guard("rate: 10/s, burst: 20") + slots)), &customers, &[]);
    let told = || {
        let metrics = gateway.metrics();
        let mut told = Vec::new();
        for (name, short) in [("rate_tokens_per_second", "rate"), ("burst_tokens", "burst"), ("mode", "mode")] {
            for sample in metrics.all(&format!("tollgate_limit_{name}")) {
                let labels: Vec<&str> = sample.labels.values().map(String::as_str).collect();
                told.push(format!("{short} {} {}", labels.join(" "), sample.value));
            }
        }
        told.sort();
        told
    };
    let of_slots = ["burst slots free 3", "burst slots pro 3", "mode slots sticky 1"];
    let of_guard = ["burst guard free 20", "mode guard sticky 1", "rate guard free 10"];
    let mut both = [of_slots, of_guard].concat();
    both.sort_unstable();
    assert_eq!(told(), both);
    gateway.rewrite(&config(&guard("rate: 30/m, burst: 2")));
    assert_eq!(gateway.reload().status, 200);
    assert_eq!(told(), ["burst guard free 2", "mode guard sticky 1", "rate guard free 0.5"]);
}

#[test]
fn health_readiness_and_status_are_told() {
    let origin = Origin::start();
    let gateway = Gateway::start(&limited(&origin, TWO));
    for (path, text) in [("/healthz", "ok\n"), ("/readyz", "ready\n")] {
        let response = gateway.admin_get(path);
        assert_eq!((response.status, response.text().as_str()), (200, text));
    }
    assert_eq!(gateway.get("/", &[]).status, 200);
    let status = gateway.admin_get("/status").json();
    assert_eq!(status["routes"], serde_json::json!(["all"]));
    assert_eq!(status["limits"][0]["name"], "guard");
    assert_eq!(status["limits"][0]["algorithm"], "gcra");
    assert_eq!(status["limits"][0]["keys"], 1);
    assert_eq!(status["upstreams"][0]["nodes"][0]["address"], origin.address.to_string());
    assert_eq!(status["upstreams"][0]["nodes"][0]["healthy"], true);
    assert_eq!(status["stopping"], false);
    assert!(status["config_hash"].as_str().is_some_and(|hash| hash.len() == 32));

    assert_eq!(gateway.admin_get("/nothing").status, 404);
    let mut client = Client::connect(gateway.admin);
    assert_eq!(client.round_trip("DELETE", "/status", &[]).status, 405);
    assert_eq!(client.round_trip("HEAD", "/metrics", &[]).body.len(), 0);
}

/// The secret that no output may contain.
const CANARY: &str = "canary-7f3a9b2e5d";

fn log_lines(gateway: &Gateway, count: usize) -> Vec<serde_json::Value> {
    wait_for(&format!("{count} lines in the access log"), || {
        let text = gateway.process.stdout();
        let lines: Vec<serde_json::Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        (lines.len() >= count).then_some(lines)
    })
}

fn with_log(origin: &Origin, log: &str) -> Gateway {
    let config = format!(
        "{}access_log: {log}
customers:
  identify: [{{ header: x-api-key }}, {{ bearer: true }}]
  directory: {{ file: customers.csv }}
  anonymous: {{ plan: free }}
plans: [free]
limits: {{ guard: {{ algorithm: gcra, rate: 1/h, burst: 2, key: customer }} }}
{ALL_GUARDED}",
        origin.upstream()
    );
    let customers = format!("credential,customer,plan\n{CANARY},acme,free\n");
    Gateway::start_with(&config, &[("customers.csv", &customers)], &[("RUST_LOG", "debug,tollgate=trace")])
}

fn of_acme(gateway: &Gateway, target: &str) -> Response {
    gateway.get(target, &[("x-api-key", CANARY), ("host", "api.test")])
}

#[test]
fn each_request_is_a_line_of_the_access_log_with_its_decision() {
    let origin = Origin::start();
    let gateway = with_log(&origin, "full");
    for status in [200, 200, 429] {
        assert_eq!(of_acme(&gateway, "/a/./b?token=1").status, status);
    }
    assert_eq!(gateway.get("/x", &[("x-api-key", "nobodys")]).status, 401);
    assert_eq!(gateway.round_trip_raw("GET /%zz HTTP/1.1\r\nhost: test\r\n\r\n").unwrap().status, 400);
    let lines = log_lines(&gateway, 5);
    let find = |status: u64| {
        let of_status = lines.iter().filter(|line| line["status"] == status).collect::<Vec<_>>();
        (of_status.len(), of_status[0].clone())
    };
    let (count, admitted) = find(200);
    assert_eq!(count, 2);
    for (field, value) in [
        ("method", "GET"),
        ("host", "api.test"),
        ("path", "/a/b"),
        ("route", "all"),
        ("client", "127.0.0.1"),
        ("customer", "acme"),
        ("plan", "free"),
        ("decision", "admitted"),
        ("limit", "guard"),
        ("upstream", &origin.address.to_string()),
    ] {
        assert_eq!(admitted[field], value, "{field}: {admitted}");
    }
    assert!(admitted["duration_seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{admitted}");
    assert!(admitted["timestamp"].is_string(), "{admitted}");
    let (_, denied) = find(429);
    assert_eq!((&denied["decision"], &denied["answered"]), (&"denied".into(), &"limited".into()), "{denied}");
    assert_eq!(denied["upstream"], serde_json::Value::Null);
    assert_eq!(find(401).1["answered"], "credential_unknown");
    let (_, malformed) = find(400);
    assert_eq!((&malformed["answered"], &malformed["route"]), (&"malformed".into(), &serde_json::Value::Null));
}

#[test]
fn a_trace_is_passed_on_and_named_in_the_access_log() {
    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    let origin = Origin::start();
    let gateway = Gateway::start(&format!("{}access_log: full\n", limited(&origin, TWO)));
    let whole = format!("00-{TRACE}-00f067aa0ba902b7-01");
    let made_up = format!("00-{}-00f067aa0ba902b7-01", "nonsense".repeat(4));
    assert_eq!(gateway.get("/whole", &[("traceparent", &whole), ("tracestate", "vendor=1")]).status, 200);
    assert_eq!(gateway.get("/made-up", &[("traceparent", &made_up)]).status, 200);
    assert_eq!(gateway.get("/denied", &[("traceparent", &whole)]).status, 429);
    let seen = origin.received();
    assert_eq!(seen[0].head.field("traceparent"), Some(whole.as_str()));
    assert_eq!(seen[0].head.field("tracestate"), Some("vendor=1"));
    assert_eq!(seen[1].head.field("traceparent"), Some(made_up.as_str()), "what is in it is for others to judge");
    assert_eq!(gateway.process.wait_for_access("/whole")["trace_id"], TRACE);
    assert_eq!(gateway.process.wait_for_access("/made-up")["trace_id"], serde_json::Value::Null);
    assert_eq!(gateway.process.wait_for_access("\"status\":429")["trace_id"], TRACE);
}

#[test]
fn a_sampled_access_log_holds_every_failure() {
    let origin = Origin::start();
    let gateway = with_log(&origin, "{ one_in: 1000000 }");
    for status in [200, 200, 429, 429, 429] {
        assert_eq!(of_acme(&gateway, "/").status, status);
    }
    let lines = log_lines(&gateway, 3);
    assert!(lines.iter().filter(|line| line["status"] == 429).count() == 3, "{lines:?}");
    assert!(lines.len() <= 5);
}

#[test]
fn without_an_access_log_nothing_is_written_of_requests() {
    let origin = Origin::start();
    let gateway = with_log(&origin, "off");
    assert_eq!(of_acme(&gateway, "/").status, 200);
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "all"), ("code", "200")], 1.0);
    assert_eq!(gateway.process.stdout(), "");
}

#[test]
fn secrets_of_requests_are_nowhere() {
    let origin = Origin::with(|exchange| match exchange.path() {
        "/drop" => Err(std::io::ErrorKind::ConnectionAborted.into()),
        "/nonsense" => exchange.send(format!("nonsense\r\nset-cookie: {CANARY}\r\n\r\n")),
        _ => exchange.reply("200 OK", "", b""),
    });
    let mut gateway = with_log(&origin, "full");
    let bearer = format!("Bearer {CANARY}-unknown");
    let cookie = format!("session={CANARY}");
    let mut answers = Vec::new();
    for path in ["/", "/drop", "/nonsense", "/%zz", "/limited"] {
        let target = format!("{path}?token={CANARY}");
        answers.push(of_acme(&gateway, &target));
        answers.push(gateway.get(&target, &[("x-api-key", &format!("{CANARY}-unknown")), ("cookie", &cookie)]));
        answers.push(gateway.get(&target, &[("authorization", &bearer)]));
        answers.push(gateway.get(&target, &[("cookie", &cookie), ("x-other", CANARY)]));
    }
    answers.push(gateway.round_trip_raw(format!("GET /{CANARY} nonsense\r\nx: {CANARY}\r\n\r\n")).unwrap());
    answers.push(gateway.get("/", &[("x-huge", &CANARY.repeat(1000))]));
    answers.push(gateway.admin_get("/metrics"));
    answers.push(gateway.admin_get("/status"));
    assert!(origin.count() > 3);
    for answer in &answers {
        let text = String::from_utf8_lossy(&answer.head.raw).into_owned() + &answer.text();
        assert!(!text.contains(CANARY), "{text}");
    }
    log_lines(&gateway, 20);
    wait_until("the handler", || gateway.process.catches(15));
    gateway.process.signal("TERM");
    gateway.process.wait();
    for (name, text) in [("stdout", gateway.process.stdout()), ("stderr", gateway.process.stderr())] {
        let line = text.lines().find(|line| line.contains(CANARY));
        assert_eq!(line, None, "{name} at debug level");
    }
}

#[test]
fn a_container_asks_whether_the_gateway_in_it_serves() {
    let origin = Origin::start();
    let mut gateway = Gateway::start(&limited(&origin, TWO));
    let admin = gateway.admin.to_string();
    let ask = |admin: &str| {
        let mut asked = Process::tollgate(&["health", "--admin", admin], std::path::Path::new("."), &[]);
        (asked.wait().code(), asked.stderr())
    };
    for form in [admin.clone(), format!("http://{admin}/"), format!("http://localhost:{}", gateway.admin.port())] {
        assert_eq!(ask(&form), (Some(0), String::new()), "{form}");
    }
    let (code, said) = ask(&format!("https://{admin}"));
    assert!(code == Some(2) && said.contains("the admin port speaks plain HTTP"), "{said}");
    let (code, said) = ask(&gateway.address.to_string());
    assert!(code == Some(1) && said.contains("is not an admin port"), "an upstream answers with 200: {said}");
    for status in [200, 429] {
        assert_eq!(gateway.get("/", &[]).status, status);
    }
    let (code, said) = ask(&gateway.address.to_string());
    assert!(code == Some(1) && said.contains("is not an admin port") && said.contains("status 429"), "{said}");
    assert!(!said.contains('\\'), "{said}");
    gateway.end("KILL");
    let (code, said) = ask(&admin);
    assert_eq!(code, Some(1));
    assert!(said.starts_with(&format!("no gateway answers at http://{admin}: ")), "{said}");
    let (code, said) = ask("http://127.0.0.1");
    assert!(code == Some(1) && !said.contains("invalid socket address"), "{said}");
    let answering = Origin::with(|exchange| {
        exchange.keep = false;
        exchange.reply("503 Service Unavailable", "", b"stopping\n")
    });
    let mut asked =
        Process::tollgate(&["health", "--admin", &answering.address.to_string()], std::path::Path::new("."), &[]);
    assert_eq!(asked.wait().code(), Some(1));
    assert!(asked.stderr().ends_with("does not serve: stopping\n"), "{}", asked.stderr());
}
