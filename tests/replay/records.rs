//! What the lines of a log tell, and what they do not.

use serde_json::Value;

use crate::command::{CONFIG, REPLAY, folder, log, report};
use crate::support::Folder;

#[test]
fn fields_that_a_log_lacks_are_named() {
    let folder = Folder::new();
    folder.write(
        "tollgate.yaml",
        "listeners: [{ address: \"127.0.0.1:1\" }]
upstreams: { origin: { nodes: [\"127.0.0.1:2\"] } }
customers: { identify: [{ header: x-api-key }], directory: { file: customers.csv }, anonymous: { plan: few } }
plans: [few, many]
limits:
  calls: { key: customer, algorithm: gcra, burst: 9, plans: { few: { rate: 1/s }, many: { rate: 9/s } } }
  users: { key: { header: x-user }, algorithm: gcra, rate: 1/h, burst: 1 }
routes: [{ name: all, upstream: origin, limits: [calls, users] }]
",
    );
    folder.write("customers.csv", "credential,customer,plan\nsecret-1,acme,many\n");
    let object =
        |rest: &str| format!("{{\"time\":\"2000-10-10T13:00:00.0Z\",\"method\":\"GET\",\"path\":\"/\",{rest}}}\n");
    folder.write(
        "access.log",
        [
            object("\"client\":\"192.0.2.1\""),
            object("\"client\":\"192.0.2.1\",\"customer\":\"acme\""),
            object("\"client\":\"192.0.2.1\",\"customer\":\"umbrella\""),
            object("\"client\":\"192.0.2.1\",\"req\":{\"key\":\"secret-1\"}"),
        ]
        .concat(),
    );
    let decided = |flags: &[&str]| {
        let report = report(&folder, &[flags, &["--decisions", "d.csv", "access.log"]].concat());
        let rows = folder.rows("d.csv");
        let rows: Vec<String> =
            rows.iter().map(|row| format!("{} {} {}", row["caller"], row["plan"], row["decision"])).collect();
        (
            rows,
            report["notes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|note| note.as_str().unwrap().to_owned())
                .collect::<Vec<_>>(),
        )
    };
    let (rows, notes) = decided(&[]);
    let expected = ["192.0.2.1 few admitted", "acme many denied", "192.0.2.1  denied", "192.0.2.1 few denied"];
    assert_eq!(rows, expected);
    for says in [
        "no line tells the header x-user, which the rules ask for",
        "2 requests tell of no customer and show no credential: they count as anonymous callers",
        "1 request of customers whom the directory does not hold",
        "limit `users`: 3 requests lack its key's header x-user: they share one bucket",
    ] {
        assert!(notes.iter().any(|note| note.contains(says)), "{says}: {notes:#?}");
    }
    let (rows, notes) =
        decided(&["--plan", "few", "--field", "header.x-api-key=req.key", "--field", "header.x-user=client"]);
    assert_eq!(rows[1..], ["acme many denied", "umbrella few denied", "acme many denied"]);
    assert_eq!(notes, [""; 0]);
}

#[test]
fn fields_that_some_rules_need_count_under_these_rules() {
    let callers =
        "customers: { identify: [{ header: x-api-key }], directory: { file: customers.csv } }\nplans: [one]\n";
    for (callers, limit, lines, expected) in [
        (
            "",
            "{ key: upstream_node, algorithm: gcra, rate: 1/h, burst: 1 }",
            ["\"upstream\":\"127.0.0.1:2\"", "\"upstream\":\"127.0.0.1:3\"", "\"upstream\":\"127.0.0.1:2\""],
            ["admitted", "admitted", "denied"],
        ),
        (
            "",
            "{ key: all, algorithm: concurrency, limit: 1 }",
            ["\"duration\":60,\"wait_seconds\":59.5", "\"duration\":60", "\"duration\":60"],
            ["admitted", "admitted", "denied"],
        ),
        (
            "",
            "{ key: all, algorithm: token_bucket, rate: 1/h, burst: 9, cost: { response_bytes: 1KiB }, charge: { when: response } }",
            ["\"bytes\":1024", "\"bytes\":9216", "\"bytes\":1"],
            ["admitted", "admitted", "denied"],
        ),
        (
            "",
            "{ key: all, algorithm: token_bucket, rate: 1/h, burst: 9, cost: { request_bytes: 1KiB } }",
            ["\"request_bytes\":8192", "\"request_bytes\":2048", "\"request_bytes\":1024"],
            ["admitted", "denied", "admitted"],
        ),
        (
            callers,
            "{ key: customer, algorithm: gcra, plans: { one: { rate: 1/h, burst: 1 } } }",
            ["\"user\":\"a\"", "\"user\":\"b\",\"plan\":\"one\"", "\"user\":\"b\",\"plan\":\"one\""],
            ["refused", "admitted", "denied"],
        ),
    ] {
        let folder = Folder::new();
        let config = CONFIG.lines().next().unwrap();
        folder.write(
            "tollgate.yaml",
            format!(
                "{config}\nupstreams: {{ origin: {{ nodes: [\"127.0.0.1:2\", \"127.0.0.1:3\"] }} }}\n{callers}limits: {{ of: {limit} }}\n\
                 routes: [{{ name: all, upstream: origin, limits: [of] }}]\n"
            ),
        );
        folder.write("customers.csv", "credential,customer,plan\n");
        let line = |(second, rest): (usize, &&str)| {
            format!("{{\"time\":{},\"method\":\"POST\",\"path\":\"/\",\"status\":200,{rest}}}\n", 971_182_800 + second)
        };
        folder.write("access.log", lines.iter().enumerate().map(line).collect::<String>());
        folder.replayed(&[&REPLAY[..], &["--times", "start", "--decisions", "d.csv", "access.log"]].concat());
        let decisions: Vec<String> = folder.rows("d.csv").iter().map(|row| row["decision"].clone()).collect();
        assert_eq!(decisions, expected, "{limit}");
    }
}

#[test]
fn lines_that_tell_when_requests_began_are_played_in_that_order() {
    let folder = folder();
    folder.write("tollgate.yaml", CONFIG.replace("quota_reset, limit: 2, window: 1h", "gcra, rate: 1/s, burst: 1"));
    // began, and took this many milliseconds: the lines are written at 38.1, 40.1 and 41
    let requests = [(38, 100), (40, 100), (36, 5000)];
    let envoy = |(began, took): (u32, u32)| {
        format!(
            "{{\"start_time\":\"2000-10-10T13:55:{began}.000Z\",\"duration\":{took},\"client\":\"192.0.2.1\",\"method\":\"GET\",\"path\":\"/\"}}\n"
        )
    };
    let traefik = |(began, took): (u32, u32)| {
        format!(
            "{{\"time\":\"2000-10-10T13:59:59Z\",\"StartUTC\":\"2000-10-10T13:55:{began}.000Z\",\"Duration\":{took}000000,\"ClientHost\":\"192.0.2.1\",\"RequestMethod\":\"GET\",\"RequestPath\":\"/\"}}\n"
        )
    };
    let mapped = ["--times", "start", "--field", "time=start_time", "--field", "duration_ms=duration"];
    for (log, flags) in [
        (requests.map(envoy).concat(), &mapped[..]),
        (requests.map(traefik).concat(), &mapped[..2]),
        (requests.map(traefik).concat(), &[]),
    ] {
        folder.write("access.log", log);
        let report = report(&folder, &[flags, &["--decisions", "d.csv", "access.log"]].concat());
        assert_eq!((&report["rules"]["denied"], &report["out_of_order"]), (&0.into(), &0.into()), "{flags:?}");
        let times: Vec<String> = folder.rows("d.csv").iter().map(|row| row["time"].clone()).collect();
        assert_eq!(times, [36, 38, 40].map(|second| format!("2000-10-10T13:55:{second}Z")), "{flags:?}");
    }
}

#[test]
fn a_sum_of_response_headers_is_charged_and_one_with_a_body_field_stays_reserved() {
    let folder = Folder::new();
    let denied_and_notes = |sum: &str| {
        let guard = format!(
            "{{ key: all, algorithm: token_bucket, rate: 1/30d, burst: 20, cost: {{ sum: [{sum}] }}, \
             charge: {{ when: response, reserve: 1 }} }}"
        );
        let config = "listeners: [{ address: \"127.0.0.1:1\" }]\nupstreams: { origin: { nodes: [\"127.0.0.1:2\"] } }\n";
        let routes = "routes: [{ name: all, upstream: origin, limits: [guard] }]\n";
        folder.write("tollgate.yaml", format!("{config}limits: {{ guard: {guard} }}\n{routes}"));
        let report = report(&folder, &["access.log"]);
        (report["rules"]["denied"].as_u64(), report["notes"].to_string())
    };
    let line = |second: u32| {
        let fields = r#""method":"GET","path":"/","status":200,"client":"192.0.2.1","resp_headers":{"X-In":["3"],"X-Out":["3"]}"#;
        format!("{{\"time\":{},{fields}}}\n", 971_182_800 + second)
    };
    folder.write("access.log", [0, 10, 20].map(line).concat());
    let headers = "{ response_header: x-in, times: 2 }, { response_header: x-out, times: 5 }";
    let (denied, notes) = denied_and_notes(headers);
    assert_eq!(denied, Some(2), "the first costs 21 of the 20 tokens: {notes}");
    assert!(!notes.contains("whose cost only the response told"), "{notes}");
    let (denied, notes) = denied_and_notes(&format!("{headers}, {{ response_field: usage.in }}"));
    assert_eq!(denied, Some(0));
    assert!(notes.contains("3 requests whose cost only the response told"), "{notes}");
}

#[test]
fn a_response_that_has_no_body_costs_no_tokens_of_its_fields() {
    let folder = Folder::new();
    let guard = "{ key: all, algorithm: token_bucket, rate: 1/30d, burst: 1, cost: { response_field: usage.in }, \
                 charge: { when: response, reserve: 1 } }";
    let config = "listeners: [{ address: \"127.0.0.1:1\" }]\nupstreams: { origin: { nodes: [\"127.0.0.1:2\"] } }\n";
    let routes = "routes: [{ name: all, upstream: origin, limits: [guard] }]\n";
    folder.write("tollgate.yaml", format!("{config}limits: {{ guard: {guard} }}\n{routes}"));
    let line = |(second, request): (u32, &str)| {
        format!("{{\"time\":{},\"path\":\"/\",\"client\":\"::1\",{request}}}\n", 971_182_800 + second * 10)
    };
    let of_get = |status| format!("\"method\":\"GET\",\"status\":{status}");
    let requests = [of_get(101), of_get(204), of_get(304), "\"method\":\"HEAD\",\"status\":200".to_owned()];
    folder
        .write("access.log", (0..).zip(&requests).map(|(second, request)| line((second, request))).collect::<String>());
    let report = report(&folder, &["access.log"]);
    assert_eq!(report["rules"]["denied"].as_u64(), Some(0), "{report}");
    let notes = report["notes"].to_string();
    assert!(!notes.contains("whose cost only the response told"), "{notes}");
}

#[test]
fn a_target_that_is_a_whole_url_tells_the_host() {
    let folder = folder();
    folder.write("tollgate.yaml", CONFIG.replace("match: { path: /free }", "match: { hosts: [x.example] }"));
    let line = |target: &str| format!("192.0.2.1 - - [10/Oct/2000:13:00:00 +0000] \"GET {target} HTTP/1.1\" 200 1\n");
    folder.write(
        "access.log",
        ["http://X.example:8080/a", "https://y.example/?b", "/c", "http://a..b/"].map(line).concat(),
    );
    folder.replayed(&[&REPLAY[..], &["--host", "x.example", "--decisions", "d.csv", "access.log"]].concat());
    let routes: Vec<String> = folder.rows("d.csv").iter().map(|row| row["route"].clone()).collect();
    assert_eq!(routes, ["free", "all", "free", ""]);
}

#[test]
fn a_body_over_the_bound_of_its_route_is_refused_before_any_charge() {
    let folder = folder();
    folder.write("tollgate.yaml", CONFIG.replace("name: all,", "name: all, max_request_body: 1KiB,"));
    let line = |bytes: u32| {
        format!(
            "{{\"time\":971182800.5,\"method\":\"POST\",\"path\":\"/\",\"client\":\"::1\",\"request_bytes\":{bytes}}}\n"
        )
    };
    folder.write("access.log", [1024, 1_000_000, 1025, 1].map(line).concat());
    let report = report(&folder, &["access.log"]);
    assert_eq!(report["rules"]["refused"], serde_json::json!({ "body_too_large": 2 }));
    assert_eq!((&report["rules"]["offered"], &report["rules"]["denied"]), (&2.into(), &0.into()));
}

#[test]
fn clients_that_only_a_proxy_knows_are_noted() {
    let folder = folder();
    let trusted = "client_address: { trusted_proxies: [192.0.2.1] }\n";
    folder.write("tollgate.yaml", format!("{trusted}{CONFIG}"));
    folder.write("access.log", log());
    let note = "5 requests come from trusted proxies without the header x-forwarded-for: they count by the addresses of the \
                proxies (--field header.x-forwarded-for=PATH says where it is)";
    let notes = |log: String| {
        folder.write("access.log", log);
        report(&folder, &["access.log"])["notes"].clone()
    };
    assert!(notes(log()).as_array().unwrap().contains(&note.into()), "{}", notes(log()));
    let told = "{\"time\":971182800.5,\"method\":\"GET\",\"path\":\"/\",\"client\":\"192.0.2.1\",\"http_x_forwarded_for\":\"192.0.2.9\"}\n";
    assert_eq!(notes(told.to_owned()), serde_json::json!([]));
}

#[test]
fn callers_that_are_denied_unidentified_count_under_the_parameters_of_every_plan() {
    let folder = Folder::new();
    let callers =
        "customers: { identify: [{ header: x-api-key }], directory: { file: customers.csv } }\nplans: [one, two]\n";
    folder.write("tollgate.yaml", CONFIG.replace("limits: { guard", &format!("{callers}limits: {{ guard")));
    folder.write("customers.csv", "credential,customer,plan\nk,acme,two\n");
    let line = |key: &str| {
        let fields = "\"client\":\"192.0.2.1\",\"method\":\"GET\",\"path\":\"/\"";
        format!("{{\"time\":971182800.5,{fields},\"http_x_api_key\":\"{key}\"}}\n")
    };
    folder.write("access.log", ["k", "guess", "guess", "guess"].map(line).concat());
    let plans = report(&folder, &["access.log"])["rules"]["limits"][0]["plans"].clone();
    let [unidentified, two] = [0, 1].map(|plan| plans[plan].clone());
    assert_eq!((&unidentified["plan"], &unidentified["denied"], &two["denied"]), (&Value::Null, &2.into(), &0.into()));
    assert_eq!((&unidentified["words"], &two["plan"]), (&two["words"], &"two".into()), "{plans}");
}

#[test]
fn keys_that_programs_charge_are_counted_and_named() {
    let folder = folder();
    folder.write("tollgate.yaml", CONFIG.replace("limit: 2", "limit: 1"));
    folder.write("old.yaml", CONFIG);
    let line = |from: u32| {
        let charges =
            format!("[{{\"limit\":\"guard\",\"key\":{{\"client_address\":\"192.0.2.{from}\"}},\"tokens\":2}}]");
        format!("{}\n", serde_json::json!({ "time": 971_182_800.5, "charges": charges, "decision": "denied" }))
    };
    folder.write("access.log", [1, 2, 2].map(line).concat());
    let report = report(&folder, &["--against", "old.yaml", "access.log"]);
    let guard = &report["rules"]["limits"][0];
    assert_eq!((&guard["plans"][0]["denied"], &guard["denied_keys"]), (&3.into(), &2.into()));
    assert_eq!((&guard["top"][0]["who"], &guard["top"][0]["denied"]), (&"192.0.2.2".into(), &2.into()));
    assert_eq!(report["comparison"]["denied_only_here"]["top"][0]["who"], "a program");
}

#[test]
fn lines_without_a_request_are_counted_and_said() {
    let folder = folder();
    let told = "{\"time\":971182800,\"method\":\"GET\",\"path\":\"/\"}\n";
    let untold = "{\"time\":971182800,\"verb\":\"GET\",\"path\":\"/\"}\n";
    folder.write("access.log", format!("{told}{untold}{untold}"));
    let note = "2 lines tell no method or no path: counted as malformed";
    let table = folder.replayed(&[&REPLAY, &["access.log"][..]].concat());
    assert!(table.contains(note), "{table}");
    let table = folder.replayed(&[&REPLAY, &["access.log", "--field", "method=verb"][..]].concat());
    assert!(!table.contains(note), "{table}");
}
