//! The fields that tell clients their quota, and the responses to denied requests.

use sfv::{BareItem, ListEntry, Parser};

use crate::support::gateway::{ALL_GUARDED, limited};
use crate::support::origin::upstream;
use crate::support::{Gateway, Origin, RefusingNode, Response, now, wait_until};

const TWO_PER_HOUR: &str = "{ algorithm: gcra, rate: 1/h, burst: 2, key: client_address }";

/// The items of a structured-field list: the name of each, and the integers in its parameters.
fn list(response: &Response, field: &str) -> Vec<(String, Vec<(String, i64)>)> {
    let value = response.field(field).unwrap_or_else(|| panic!("no {field}: {response:?}"));
    let list = Parser::parse_list(value.as_bytes()).unwrap();
    let items = list.into_iter().map(|entry| match entry {
        ListEntry::Item(item) => {
            let BareItem::String(name) = item.bare_item else { panic!("{value}") };
            let integer = |value: BareItem| value.as_int().unwrap();
            let parameters = item.params.into_iter().map(|(key, value)| (key, integer(value)));
            (name, parameters.collect())
        }
        ListEntry::InnerList(_) => panic!("{value}"),
    });
    items.collect()
}

fn entry(name: &str, parameters: &[(&str, i64)]) -> (String, Vec<(String, i64)>) {
    (name.to_owned(), parameters.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect())
}

#[test]
fn policies_say_what_they_count_where_that_is_not_requests() {
    let origin = Origin::start();
    let gateway = Gateway::start(&format!(
        "{}limits:
  requests: {{ key: all, algorithm: fixed_window, limit: 90, window: 10s }}
  slots: {{ key: all, algorithm: concurrency, limit: 5 }}
  bytes: {{ key: all, algorithm: gcra, rate: 1000/s, burst: 9000, cost: {{ request_bytes: 1B }} }}
  kibibytes: {{ key: all, algorithm: gcra, rate: 10/s, burst: 80, cost: {{ request_bytes: 1KiB }} }}
  tokens: {{ key: all, algorithm: gcra, rate: 10/s, burst: 70, cost: 2, quota_unit: tokens }}
  said: {{ key: all, algorithm: concurrency, limit: 6, quota_unit: requests }}
routes: [{{ name: all, upstream: origin, limits: [requests, slots, bytes, kibibytes, tokens, said] }}]\n",
        origin.upstream()
    ));
    let expected = [
        "\"requests\";q=90;w=10",
        "\"slots\";q=5;qu=\"concurrent-requests\"",
        "\"bytes\";q=9000;qu=\"content-bytes\";w=9",
        "\"kibibytes\";q=80;w=8",
        "\"tokens\";q=70;qu=\"tokens\";w=7",
        "\"said\";q=6",
    ];
    let answered = gateway.client().post("/echo", &[], b"a body");
    assert_eq!(answered.field("ratelimit-policy"), Some(&*expected.join(", ")));
    assert!(Parser::parse_list(expected.join(", ").as_bytes()).is_ok());
}

#[test]
fn a_client_that_obeys_retry_after_is_admitted() {
    let origin = Origin::start();
    let gateway = Gateway::start(&limited(&origin, "{ algorithm: gcra, rate: 10/25s, burst: 1, key: all }"));
    let mut client = gateway.client();
    assert_eq!(client.get("/").status, 200);
    for _ in 0..2 {
        let denied = client.get("/");
        assert_eq!(denied.status, 429);
        let told = now();
        let seconds = denied.number("retry-after").unwrap();
        assert!((1..=3).contains(&seconds), "{denied:?}");
        wait_until("the retry time to come", || now() - told >= std::time::Duration::from_secs(seconds));
        assert_eq!(client.get("/").status, 200);
    }
}

#[test]
fn a_denial_says_what_happened_and_what_to_do() {
    let origin = Origin::start();
    let gateway = Gateway::start(&limited(&origin, TWO_PER_HOUR));
    let mut client = gateway.client();
    let first = client.get("/");
    assert_eq!(first.status, 200);
    assert_eq!(list(&first, "ratelimit-policy"), [entry("guard", &[("q", 2), ("w", 7200)])]);
    assert_eq!(list(&first, "ratelimit"), [entry("guard", &[("r", 1), ("t", 3600)])]);
    assert_eq!(first.number("x-ratelimit-limit"), Some(2));
    assert_eq!(first.number("x-ratelimit-remaining"), Some(1));
    assert!((3590..=3600).contains(&first.number("x-ratelimit-reset").unwrap()), "{first:?}");
    assert_eq!(first.field("retry-after"), None);
    assert_eq!(client.get("/").number("x-ratelimit-remaining"), Some(0));

    let denied = client.get("/");
    assert_eq!(denied.status, 429);
    assert_eq!(denied.head.first_line, "HTTP/1.1 429 Too Many Requests");
    let retry_after = denied.number("retry-after").unwrap();
    assert!((3580..=3600).contains(&retry_after), "{denied:?}");
    assert_eq!(denied.field("content-type"), Some("application/problem+json"));
    assert_eq!(denied.number("content-length"), Some(denied.body.len() as u64));
    assert_eq!(denied.field("server"), None);
    assert_eq!(denied.field("cache-control"), Some("no-store"));
    let problem = denied.json();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["title"], "Request quota exceeded");
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], serde_json::json!(["guard"]));
    let told = i64::try_from(retry_after).unwrap();
    assert_eq!(list(&denied, "ratelimit"), [entry("guard", &[("r", 0), ("t", told)])]);
    assert_eq!(list(&denied, "ratelimit-policy"), [entry("guard", &[("q", 2), ("w", 7200)])]);
    assert_eq!(denied.number("x-ratelimit-remaining"), Some(0));
    assert_eq!(origin.count(), 2);
}

#[test]
fn all_limits_are_listed_and_the_tightest_is_the_one_reported() {
    let origin = Origin::start();
    let config = format!(
        "{}limits:
  wide: {{ algorithm: gcra, rate: 1/h, burst: 9, key: all }}
  narrow: {{ algorithm: gcra, rate: 1/m, burst: 1, key: all }}
routes: [{{ name: all, upstream: origin, limits: [wide, narrow] }}]
",
        origin.upstream()
    );
    let gateway = Gateway::start(&config);
    let admitted = gateway.get("/", &[]);
    let standing = [entry("wide", &[("r", 8), ("t", 3600)]), entry("narrow", &[("r", 0), ("t", 60)])];
    assert_eq!(list(&admitted, "ratelimit"), standing);
    assert_eq!((admitted.number("x-ratelimit-limit"), admitted.number("x-ratelimit-remaining")), (Some(1), Some(0)));
    let denied = gateway.get("/", &[]);
    assert_eq!(denied.json()["violated-policies"], serde_json::json!(["narrow"]));
    assert!((50..=60).contains(&denied.number("retry-after").unwrap()), "{denied:?}");
}

#[test]
fn responses_to_errors_of_the_upstream_say_where_a_client_stands() {
    let origin = Origin::start();
    let gateway = Gateway::start(&limited(&origin, TWO_PER_HOUR));
    let response = gateway.get("/status/500", &[]);
    assert_eq!((response.status, response.number("x-ratelimit-remaining")), (500, Some(1)));

    let config = limited(&origin, TWO_PER_HOUR).replacen("] }", "], timeouts: { first_byte: 100ms } }", 1);
    let response = Gateway::start(&config).get("/stall", &[]);
    assert_eq!((response.status, response.number("x-ratelimit-remaining")), (504, Some(1)));

    let refusing = RefusingNode::new();
    let dead = upstream(&[refusing.node()], "");
    let gateway = Gateway::start(&format!("{dead}limits: {{ guard: {TWO_PER_HOUR} }}\n{ALL_GUARDED}"));
    let response = gateway.get("/", &[]);
    assert_eq!((response.status, response.number("x-ratelimit-remaining")), (502, Some(1)));
    assert_eq!(list(&response, "ratelimit"), [entry("guard", &[("r", 1), ("t", 3600)])]);
}

#[test]
fn the_configuration_chooses_the_dialects() {
    let origin = Origin::start();
    for (headers, ietf, x_ratelimit) in [
        ("{ ietf: false, x_ratelimit: delta }", false, true),
        ("{ ietf: true, x_ratelimit: \"off\" }", true, false),
        ("{ ietf: false, x_ratelimit: \"off\" }", false, false),
    ] {
        let gateway = Gateway::start(&format!("{}headers: {headers}\n", limited(&origin, TWO_PER_HOUR)));
        for response in [(); 3].map(|()| gateway.get("/", &[])) {
            assert_eq!(response.field("ratelimit").is_some(), ietf, "{headers}: {response:?}");
            assert_eq!(response.field("ratelimit-policy").is_some(), ietf, "{headers}: {response:?}");
            assert_eq!(response.field("x-ratelimit-remaining").is_some(), x_ratelimit, "{headers}: {response:?}");
            assert_eq!(response.field("retry-after").is_some(), response.status == 429, "{headers}: {response:?}");
        }
    }
    let kongs = "headers: { ietf: false, ietf_06: true, x_ratelimit: off }\n";
    let gateway = Gateway::start(&format!("{}{kongs}", limited(&origin, TWO_PER_HOUR)));
    for left in [1, 0, 0] {
        let response = gateway.get("/", &[]);
        let told = ["limit", "remaining", "reset"].map(|end| response.number(&format!("ratelimit-{end}")));
        assert_eq!(told[..2], [Some(2), Some(left)]);
        assert!(told[2].is_some_and(|reset| (3590..=7200).contains(&reset)), "{response:?}");
        assert_eq!([response.field("ratelimit"), response.field("x-ratelimit-limit")], [None, None]);
    }
    // a structured field has no larger integer
    let vast = "{ algorithm: fixed_window, window: 1d, limit: 2000000000000000, key: all }";
    let response = Gateway::start(&format!("{}{kongs}", limited(&origin, vast))).get("/", &[]);
    assert_eq!(
        ["limit", "remaining"].map(|end| response.number(&format!("ratelimit-{end}"))),
        [Some(999_999_999_999_999); 2]
    );
    let gateway = Gateway::start(&format!("{}headers: {{ x_ratelimit: epoch }}\n", limited(&origin, TWO_PER_HOUR)));
    let reset = gateway.get("/", &[]).number("x-ratelimit-reset").unwrap();
    assert!(reset > 1_700_000_000, "{reset}");
}

#[test]
fn an_upstreams_own_word_stays_where_it_is_tighter() {
    let origin = Origin::with(|exchange| {
        let fields = match exchange.path() {
            "/kongs" => "ratelimit-limit: 9\r\nratelimit-remaining: 0\r\nratelimit-reset: 7\r\n",
            "/lines" => "ratelimit: \"a\";r=50;t=1\r\nratelimit: \"b\";r=0;t=60\r\n",
            "/tighter" => "x-ratelimit-limit: 9\r\nx-ratelimit-remaining: 0\r\nx-ratelimit-reset: 7\r\n",
            _ => "x-ratelimit-limit: 9999\r\nx-ratelimit-remaining: 999\r\nx-ratelimit-reset: 7\r\n",
        };
        exchange.reply("200 OK", fields, b"")
    });
    let config = limited(&origin, "{ algorithm: gcra, rate: 1/h, burst: 10, key: all }");
    let gateway = Gateway::start(&format!("{config}headers: {{ ietf_06: true }}\n"));
    let shown = |response: &Response| ["limit", "remaining"].map(|end| response.number(&format!("x-ratelimit-{end}")));
    assert_eq!(shown(&gateway.get("/looser", &[])), [Some(10), Some(9)]);
    let tighter = gateway.get("/tighter", &[]);
    assert_eq!((shown(&tighter), tighter.number("x-ratelimit-reset")), ([Some(9), Some(0)], Some(7)));
    let kongs = gateway.get("/kongs", &[]);
    assert_eq!(
        ["limit", "remaining", "reset"].map(|end| kongs.number(&format!("ratelimit-{end}"))),
        [9, 0, 7].map(Some)
    );
    assert_eq!(shown(&kongs), [Some(10), Some(7)]);
    assert_eq!(gateway.get("/lines", &[]).head.all("ratelimit"), ["\"a\";r=50;t=1", "\"b\";r=0;t=60"]);
}

#[test]
fn a_limit_can_have_its_own_answer() {
    let origin = Origin::start();
    let limit = "{ algorithm: gcra, rate: 1/h, burst: 1, key: all,
        over_limit: { deny: { status: 420, body: \"calm down\\n\", headers: { x-reason: busy } } } }";
    let gateway = Gateway::start(&limited(&origin, limit));
    assert_eq!(gateway.get("/", &[]).status, 200);
    let denied = gateway.get("/", &[]);
    assert_eq!((denied.status, denied.text().as_str()), (420, "calm down\n"));
    assert_eq!(denied.field("x-reason"), Some("busy"));
    assert_eq!(denied.field("content-type"), Some("text/plain; charset=utf-8"));
    assert!(denied.number("retry-after").is_some_and(|seconds| seconds > 3000), "{denied:?}");
}

#[test]
fn the_fields_of_a_limits_own_answer_replace_those_of_the_gateway() {
    let origin = Origin::start();
    let limit =
        "{ algorithm: gcra, rate: 1/h, burst: 1, key: all, over_limit: { deny: { body: { text: no, json: \"{}\" },
        headers: { cache-control: max-age=5, Retry-After: \"7\", x-ratelimit-limit: \"\", vary: x-a } } } }";
    let gateway = Gateway::start(&limited(&origin, limit));
    assert_eq!(gateway.get("/", &[]).status, 200);
    let denied = gateway.get("/", &[]);
    for (name, values) in [
        ("cache-control", vec!["max-age=5"]),
        ("retry-after", vec!["7"]),
        ("x-ratelimit-limit", vec!["1"]),
        ("vary", vec!["x-a", "accept"]),
    ] {
        assert_eq!(denied.head.all(name), values, "{denied:?}");
    }
    let limit = "{ algorithm: gcra, rate: 1/h, burst: 1, key: all, over_limit: { deny: { status: 420, body: no,
        headers: { Content-Type: text/html, retry-after: \"7\", x-status: \"{{ status }}\", grpc-status: \"0\" } } } }";
    let gateway = Gateway::start(&limited(&origin, limit));
    assert_eq!(gateway.get("/", &[]).status, 200);
    let denied = gateway.get("/", &[("content-type", "application/grpc"), ("te", "trailers")]);
    let names = ["content-type", "retry-after", "x-status", "grpc-status"];
    assert_eq!(names.map(|name| denied.head.all(name)), [["application/grpc"], ["7"], ["420"], ["8"]], "{denied:?}");
}

#[test]
fn grpc_clients_are_told_in_their_own_way() {
    let origin = Origin::start();
    let gateway = Gateway::start(&limited(&origin, "{ algorithm: gcra, rate: 1/h, burst: 1, key: all }"));
    let mut client = gateway.client();
    for content_type in ["application/grpc", "application/grpc+proto"] {
        drop(client.get("/"));
        let denied = client.post("/pkg.Service/Method", &[("content-type", content_type), ("te", "trailers")], b"x");
        assert_eq!(denied.status, 200);
        assert_eq!(denied.field("grpc-status"), Some("8"));
        let message = denied.field("grpc-message").unwrap();
        assert!(!message.is_empty() && message.is_ascii(), "{message}");
        assert_eq!(denied.field("content-type"), Some("application/grpc"));
        assert!(denied.body.is_empty());
        assert!(denied.field("retry-after").is_some(), "{denied:?}");
    }
    assert_eq!(origin.count(), 1);
}

#[test]
fn a_denied_head_request_gets_no_body() {
    let origin = Origin::start();
    let gateway = Gateway::start(&limited(&origin, "{ algorithm: gcra, rate: 1/h, burst: 1, key: all }"));
    let mut client = gateway.client();
    assert_eq!(client.round_trip("HEAD", "/", &[]).status, 200);
    let denied = client.round_trip("HEAD", "/", &[]);
    assert_eq!((denied.status, denied.body.len()), (429, 0));
    assert!(denied.number("content-length").is_some_and(|length| length > 0), "{denied:?}");
    assert_eq!(client.get("/").status, 429, "nothing was left on the connection");
}
