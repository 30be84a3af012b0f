//! Limits that depend on JSON fields of the request's body: the gateway finds the fields as the body arrives, forwards the
//! body unchanged, and charges every request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde_json::json;

use crate::support::gateway::{ALL_GUARDED, limited};
use crate::support::http2::{Http2, read};
use crate::support::origin::upstream;
use crate::support::redis::Redis;
use crate::support::wire::chunk;
use crate::support::{Client, Gateway, Origin, RefusingNode, Response, now, together, wait_until};

/// A limit of `burst` tokens that practically never refill, with more settings.
fn budget(burst: u64, more: &str) -> String {
    format!("{{ algorithm: token_bucket, rate: 1/30d, burst: {burst}, {more} }}")
}

/// A limit whose cost is in the body.
fn by_cost(burst: u64) -> String {
    budget(burst, "key: all, cost: { request_field: max_tokens, max: 100, missing: 7 }")
}

/// A limit with a bucket for each tool.
fn by_tool(more: &str) -> String {
    budget(3, &format!("key: {{ request_field: params.name }}, {more}"))
}

#[track_caller]
fn remaining(response: &Response) -> u64 {
    assert_eq!(response.status, 200, "{response:?}");
    response.number("x-ratelimit-remaining").unwrap()
}

fn post(gateway: &Gateway, body: &str) -> Response {
    gateway.client().post("/", &[("content-type", "application/json")], body.as_bytes())
}

fn call(tool: &str) -> String {
    json!({ "method": "tools/call", "params": { "name": tool } }).to_string()
}

/// A body whose prompt has this length, with fields before and behind it.
fn prompt(before: &str, length: usize, behind: &str) -> Vec<u8> {
    format!("{{{before}\"prompt\": \"{}\"{behind}}}", "x".repeat(length)).into_bytes()
}

#[test]
fn a_field_of_the_body_is_a_cost_and_what_cannot_be_believed_costs_the_most() {
    let origin = Origin::start();
    let gateway = Gateway::start(&limited(&origin, &by_cost(10_000)));
    let mut left = 10_000;
    for (body, cost) in [
        (r#"{"max_tokens": 5, "x": 1}"#, 5),
        (r#"{"max_tokens": 4.2}"#, 5),
        (r#"{"max_tokens": 0}"#, 1),
        (r#"{"prompt": "max_tokens", "x": {"max_tokens": 1}}"#, 7),
        (r#"{"max_tokens": null}"#, 7),
        ("", 7),
        (r#"{"max_tokens": -1}"#, 100),
        (r#"{"max_tokens": 101}"#, 100),
        (r#"{"max_tokens": 1e400}"#, 100),
        (r#"{"max_tokens": "1"}"#, 100),
        (r#"{"MAX_TOKENS": 1}"#, 100),
        (r#"[{"max_tokens": 1}]"#, 100),
        ("null", 100),
        (r#"{"max_tokens": 1"#, 100),
        ("max_tokens=1", 100),
        ("{max_tokens: 1}", 100),
    ] {
        left -= cost;
        assert_eq!(remaining(&post(&gateway, body)), left, "{body}");
        assert_eq!(origin.received().last().unwrap().body, body.as_bytes());
    }
    let compressed = gateway.client().post("/", &[("content-encoding", "gzip")], br#"{"max_tokens": 1}"#);
    assert_eq!(remaining(&compressed), left - 100);
    assert_eq!(remaining(&gateway.get("/", &[])), left - 107, "one without a body");
}

#[test]
fn each_tool_has_a_bucket_of_its_own_and_so_has_what_cannot_be_read() {
    let origin = Origin::start();
    let gateway = Gateway::start(&limited(&origin, &by_tool("missing_key: skip")));
    let left = |body: &str| remaining(&post(&gateway, body));
    assert_eq!((left(&call("search")), left(&call("search")), left(&call("fetch"))), (2, 1, 2));
    assert_eq!(left(r#"{"params": {"n\u0061me": "s\u0065arch"}}"#), 0, "however it is spelled");
    assert_eq!(post(&gateway, &call("search")).status, 429);
    assert_eq!(post(&gateway, r#"{"method": "ping"}"#).field("x-ratelimit-remaining"), None, "it is skipped");
    // a request with an unreadable body is not exempt
    assert_eq!((left("no JSON"), left(r#"[{"params": {"name": "search"}}]"#), left("\u{feff}{}")), (2, 1, 0));
    assert_eq!(post(&gateway, "{").status, 429);

    let gateway = Gateway::start(&limited(&origin, &by_tool("missing_key: deny")));
    for body in ["{}", "no JSON", r#"{"params": {"name": {}}}"#] {
        let refused = post(&gateway, body);
        assert_eq!(refused.status, 400, "{body}");
        assert!(refused.json()["detail"].as_str().unwrap().contains("request field params.name"), "{refused:?}");
    }
    assert_eq!(remaining(&post(&gateway, &call("search"))), 2);

    let gateway = Gateway::start(&limited(&origin, &by_tool("missing_key: shared_bucket")));
    let left = |body: &str| remaining(&post(&gateway, body));
    assert_eq!((left("{}"), left("[]"), left("{}"), left("[]")), (2, 2, 1, 1), "one bucket each");
}

#[test]
fn a_body_passes_untouched_however_it_is_framed_and_cut() {
    let origin = Origin::start();
    let gateway = Gateway::start(&limited(&origin, &by_cost(10_000)));
    for (before, length, behind) in
        [("\"max_tokens\": 3, ", 10_000, ""), ("", 300_000, ", \"max_tokens\": 3"), ("", 10, ", \"max_tokens\": 3 ")]
    {
        let body = prompt(before, length, behind);
        let mut client = gateway.client();
        let left = remaining(&client.post("/", &[], &body));
        assert_eq!(origin.received().last().unwrap().body, body);
        client.send("PUT / HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n");
        body.chunks(7_777).for_each(|part| client.send(chunk(part)));
        client.send(chunk(b""));
        assert_eq!(remaining(&client.receive()), left - 3);
        assert_eq!(origin.received().last().unwrap().body, body);
    }
}

#[test]
fn only_what_is_needed_is_held_back() {
    let origin = Origin::start();
    let gateway = Gateway::start(&limited(&origin, &by_cost(10_000)));
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 32\r\n\r\n{\"x\": 1, ");
    client.send("\"max_tokens\": 9 ");
    origin.wait_for_count(1);
    client.send("      }");
    assert_eq!(remaining(&client.receive()), 9_991);
    assert_eq!(origin.only().body, b"{\"x\": 1, \"max_tokens\": 9       }");
}

#[test]
fn a_body_with_a_second_reading_never_arrives_whole() {
    let origin = Origin::start();
    let gateway = Gateway::start(&limited(&origin, &by_cost(10_000)));
    for body in [
        r#"{"max_tokens": 1, "max_tokens": 90}"#,
        r#"{"max_tokens": 1, "Max_Tokens": 90}"#,
        r#"{"max_tokens": 1} {"max_tokens": 90}"#,
        r#"{"max_tokens": 1, // "max_tokens": 90}"#,
    ] {
        let refused = post(&gateway, body);
        assert_eq!(refused.status, 400, "{body}: {refused:?}");
    }
    assert_eq!(origin.count(), 0, "they were here at once");
    let mut client = gateway.client();
    let body = prompt("\"max_tokens\": 1, ", 200_000, ", \"max_tokens\": 90");
    let (first, second) = body.split_at(100);
    client.send(format!("POST / HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n", first.len() + second.len()));
    client.send(first);
    origin.wait_for_count(1);
    drop(client.wire.send(second));
    assert_eq!(client.receive().status, 400);
    assert!(origin.only().body.len() < body.len());
}

#[test]
fn a_field_behind_what_is_held_cannot_be_read() {
    let origin = Origin::start();
    let config = limited(&origin, &by_cost(10_000));
    let gateway = Gateway::start(&format!("{config}request_body: {{ max_held: 4KiB }}\n"));
    let near = prompt("", 4_000, ", \"max_tokens\": 3");
    assert_eq!(remaining(&gateway.client().post("/", &[], &near)), 9_997);
    let far = prompt("", 3_000_000, ", \"max_tokens\": 3");
    assert_eq!(remaining(&gateway.client().post("/", &[], &far)), 9_897, "it costs the most");
    assert_eq!(origin.received()[1].body, far, "and passes");
}

#[test]
fn limits_that_do_not_go_by_the_body_decide_before_it_is_read() {
    let origin = Origin::start();
    let limits = format!(
        "limits: {{ guard: {}, first: {} }}\nroutes: [{{ name: all, upstream: origin, limits: [guard, first] }}]\n",
        by_cost(1_000),
        budget(3, "key: all")
    );
    let gateway = Gateway::start(&format!("{}{limits}", origin.upstream()));
    let ask = "POST / HTTP/1.1\r\nhost: test\r\nexpect: 100-continue\r\ncontent-length: 18\r\n\r\n";
    let mut client = gateway.client();
    client.send(ask);
    assert_eq!(client.receive().status, 100, "tollgate itself asks for the body");
    client.send(r#"{"max_tokens": 60}"#);
    assert_eq!(remaining(&client.receive()), 2);
    let seen = origin.only();
    assert_eq!((seen.head.field("expect"), &*seen.body), (None, &br#"{"max_tokens": 60}"#[..]));
    for _ in 0..2 {
        assert_eq!(post(&gateway, "{}").status, 200);
    }
    let mut client = gateway.client();
    client.send(ask);
    assert_eq!(client.receive().status, 429, "nobody asks for its body");
    assert_eq!(origin.count(), 3);
}

#[test]
fn a_body_that_came_with_its_head_takes_one_call_to_redis() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let gateway = Gateway::start(&format!(
        "{}store: {{ redis: \"redis://127.0.0.1:{}\", timeout: 1s }}
limits:
  guard: {}
  first: {}
routes: [{{ name: all, upstream: origin, limits: [guard, first] }}]
",
        origin.upstream(),
        redis.port,
        budget(1_000, "mode: shared, key: all, cost: { request_field: max_tokens, max: 100, missing: 7 }"),
        budget(3, "mode: shared, key: all"),
    ));
    let calls = |count| {
        gateway.wait_for_metric("tollgate_store_requests_total", &[("op", "charge"), ("result", "ok")], count);
    };
    let (head, body) = ("POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 18\r\n\r\n", r#"{"max_tokens": 60}"#);
    let mut client = gateway.client();
    client.send(format!("{head}{body}"));
    assert_eq!(remaining(&client.receive()), 2);
    calls(1.0);
    client.send(head);
    calls(2.0);
    client.send(body);
    assert_eq!(remaining(&client.receive()), 1);
    calls(3.0);
}

#[test]
fn denials_by_the_body_refund_the_charges_of_the_head() {
    let origin = Origin::start();
    let limits = format!(
        "limits: {{ guard: {}, first: {} }}\nroutes: [{{ name: all, upstream: origin, limits: [guard, first] }}]\n",
        by_cost(50),
        budget(3, "key: all")
    );
    let gateway = Gateway::start(&format!("{}{limits}", origin.upstream()));
    for _ in 0..5 {
        assert_eq!(post(&gateway, r#"{"max_tokens": 60}"#).status, 429);
    }
    let passed = post(&gateway, r#"{"max_tokens": 1}"#);
    assert_eq!(remaining(&passed), 2, "the tightest is the one of three: {passed:?}");
}

#[test]
fn a_body_that_breaks_off_or_does_not_come_is_never_forwarded() {
    let origin = Origin::start();
    let limits = format!(
        "limits: {{ guard: {}, first: {} }}\nroutes: [{{ name: all, upstream: origin, limits: [guard, first] }}]\n",
        by_cost(1_000),
        budget(5, "key: all")
    );
    let body = "request_body: { min_rate: 1KiB/s, grace: 300ms }\n";
    let gateway = Gateway::start(&format!("{}{limits}{body}", origin.upstream()));
    let head = "POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 100\r\n\r\n{\"prompt\": ";
    let mut gone = gateway.client();
    gone.send(head);
    gone.wire.close();
    let mut slow = gateway.client();
    slow.send(head);
    assert_eq!(slow.receive().status, 408);
    let mut malformed = gateway.client();
    malformed.send("POST / HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n");
    assert_eq!(malformed.receive().status, 400);
    assert_eq!(origin.count(), 0);
    assert_eq!(remaining(&post(&gateway, r#"{"max_tokens": 1}"#)), 1, "the head took what it costs each time");
    let admitted = [("limit", "first"), ("plan", "none"), ("outcome", "admitted")];
    gateway.wait_for_metric("tollgate_limit_tokens_total", &admitted, 4.0);
}

#[test]
fn held_bodies_go_to_the_node_that_accepts_them() {
    let (origin, refusing) = (Origin::start(), RefusingNode::new());
    let nodes = upstream(&[refusing.node(), origin.node()], "");
    let limits = format!("limits: {{ guard: {} }}\n", by_cost(10_000));
    let route = "routes: [{ name: all, upstream: origin, limits: [guard] }]\n";
    let gateway = Gateway::start(&format!("{nodes}{limits}{route}"));
    let body = prompt("", 100_000, ", \"max_tokens\": 3");
    for count in 1..=4 {
        assert_eq!(gateway.client().post("/", &[], &body).status, 200);
        assert_eq!((origin.count(), &origin.received()[count - 1].body), (count, &body));
    }
}

#[test]
fn held_bodies_are_sent_again_after_a_closed_connection() {
    let origin = Origin::with(|exchange| {
        exchange.body()?;
        // the upstream closes the connection without a response before the next request
        exchange.keep = exchange.connection() > 0;
        exchange.reply("200 OK", "", b"")
    });
    let gateway = Gateway::start(&limited(&origin, &by_cost(10_000)));
    let body = prompt("", 20_000, ", \"max_tokens\": 3");
    let mut client = gateway.client();
    for _ in 0..3 {
        client.send(format!("PUT / HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n", body.len()));
        client.send(&body);
        assert_eq!(client.receive().status, 200);
    }
    assert!(origin.received().iter().all(|seen| seen.body == body || seen.body.is_empty()));
}

#[test]
fn a_held_body_that_the_upstream_takes_steadily_is_not_late() {
    let origin = Origin::with(|exchange| {
        let began = now();
        while began.elapsed() < Duration::from_secs(3) && exchange.part()?.is_some() {
            std::thread::park_timeout(Duration::from_millis(20));
        }
        exchange.body()?;
        exchange.reply("200 OK", "", b"")
    });
    let gateway = Gateway::start(&format!(
        "{}limits: {{ guard: {} }}\n{ALL_GUARDED}request_body: {{ max_held: 32MiB }}\n",
        origin.upstream_with("timeouts: { idle: 2s }"),
        by_cost(10_000)
    ));
    let body = prompt("", 20 << 20, ", \"max_tokens\": 3");
    assert_eq!(remaining(&gateway.client().post("/", &[], &body)), 9_997);
    assert!(origin.only().body == body);
}

#[tokio::test(flavor = "multi_thread")]
async fn over_http2_it_is_the_same() {
    let origin = Origin::start();
    let gateway = Gateway::start_listening("http2: true", &limited(&origin, &by_cost(10_000)), &[]);
    let mut client = Http2::connect_cleartext(gateway.address).await;
    let left = |answer: &crate::support::http2::Answer| answer.field("x-ratelimit-remaining").unwrap().to_owned();
    let body = prompt("", 30_000, ", \"max_tokens\": 3");
    let answer = client.post("http://test/", &[], Bytes::from(body.clone())).await.unwrap();
    assert_eq!((answer.status, &*left(&answer), &origin.only().body), (200, "9997", &body));
    let answer = client.get("http://test/", &[]).await.unwrap();
    assert_eq!(&*left(&answer), "9990");
    let twice = Bytes::from_static(br#"{"max_tokens": 1, "max_tokens": 2}"#);
    assert_eq!(client.post("http://test/", &[], twice).await.unwrap().status, 400);
    // the gateway forwards the bytes behind the field while the client still sends
    let (response, mut sending) = client.begin(Method::POST, "http://test/", &[], false).await.unwrap();
    sending.send_data(Bytes::from_static(b"{\"max_tokens\": 5 "), false).unwrap();
    origin.wait_for_count(3);
    sending.send_data(Bytes::from_static(b"}"), true).unwrap();
    assert_eq!(&*left(&read(response).await.unwrap()), "9985");
    assert_eq!(origin.received()[2].body, b"{\"max_tokens\": 5 }");
}

#[test]
fn a_reserve_is_as_large_as_the_request_says() {
    let origin = Origin::with(|exchange| {
        exchange.body()?;
        exchange.reply("200 OK", "content-type: application/json\r\n", br#"{"usage": {"total_tokens": 40}}"#)
    });
    let limit = budget(
        1_000,
        "key: all, cost: { response_field: usage.total_tokens }, \
         charge: { when: response, reserve: { request_field: max_tokens, max: 300, missing: 100 } }",
    );
    let gateway = Gateway::start(&limited(&origin, &limit));
    let settled = |outcome: &str, tokens: f64| {
        let labels = [("limit", "guard"), ("plan", "none"), ("outcome", outcome)];
        gateway.wait_for_metric("tollgate_limit_tokens_total", &labels, tokens);
    };
    let left = |body: &str| remaining(&post(&gateway, body));
    assert_eq!(left(r#"{"max_tokens": 50}"#), 950);
    settled("refunded", 10.0);
    assert_eq!(left(r#"{"max_tokens": 10}"#), 950);
    settled("debited", 30.0);
    assert_eq!(left("{}"), 820);
    settled("refunded", 70.0);
    assert_eq!(left("?"), 580);
    settled("refunded", 330.0);
    assert_eq!(left(r#"{"max_tokens": 1}"#), 839);
}

#[test]
fn no_budget_in_money_is_passed_by_more_than_a_reserve_under_parallel_streams() {
    const CLIENTS: usize = 200;
    let denied = Arc::new(AtomicUsize::new(0));
    let decided = Arc::clone(&denied);
    let origin = Origin::with(move |exchange| {
        exchange.body()?;
        exchange.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")?;
        exchange.send(chunk("data: {\"usage\": null}\n\n"))?;
        // waits until all requests have arrived or are decided
        wait_until("everybody is here", || exchange.received_count() + decided.load(Ordering::SeqCst) == CLIENTS);
        exchange.send(chunk("data: {\"usage\": {\"prompt_tokens\": 10, \"completion_tokens\": 1000}}\n\n"))?;
        exchange.send(chunk(""))
    });
    let limit = "{ algorithm: fixed_window, window: 30d, limit: 1000000, key: all, cost: { sum: [{ response_field: \
         usage.prompt_tokens, price: input }, { response_field: usage.completion_tokens, price: output }], model: { request_field: \
         model } }, charge: { when: response, reserve: { request_field: max_tokens, max: 4000, price: output } } }";
    let prices = "prices: { large: { input: 2.50, output: 10 }, small: { input: 0.15, output: 0.6 } }\n";
    let gateway = Gateway::start(&format!("{prices}{}", limited(&origin, limit)));
    let answers = together(CLIENTS, |_| {
        let status = post(&gateway, r#"{"stream": true, "model": "large", "max_tokens": 1000}"#).status;
        denied.fetch_add(usize::from(status == 429), Ordering::SeqCst);
        status
    });
    let passed = answers.iter().filter(|status| **status == 200).count();
    assert_eq!((passed, origin.count()), (100, 100), "a dollar is a hundred times a cent: {answers:?}");
    // each request cost a cent for its completion and 25 millionths of a dollar for its prompt, which was not reserved
    let labels = [("limit", "guard"), ("plan", "none"), ("outcome", "debited")];
    gateway.wait_for_metric("tollgate_limit_tokens_total", &labels, 2_500.0);
    assert_eq!(post(&gateway, r#"{"model": "small", "max_tokens": 1}"#).status, 429);
}

#[test]
fn prices_of_models_are_exact_and_no_model_is_free() {
    let origin = Origin::with(|exchange| {
        exchange.body()?;
        let usage = br#"{"usage": {"prompt_tokens": 3, "completion_tokens": 1}}"#;
        exchange.reply("200 OK", "content-type: application/json\r\n", usage)
    });
    let limit = budget(
        10_000_000,
        "key: all, cost: { sum: [{ response_field: usage.prompt_tokens, price: input }, { response_field: \
         usage.completion_tokens, price: output }], model: { request_field: model } }, charge: { when: response, reserve: 0 }",
    );
    let prices = "prices: { tiny: { input: 0.000001, output: 0 }, small: { input: 0.15, output: 0.6 }, \
                  default: { input: 1, output: 2 }, dear: { input: 100, output: 1000 } }\n";
    let gateway = Gateway::start(&format!("{prices}{}", limited(&origin, &limit)));
    let mut spent = 0.0;
    for (body, cost) in [
        (r#"{"model": "small"}"#, 2.0), // 1.05
        (r#"{"model": "dear"}"#, 1_300.0),
        (r#"{"model": "tiny"}"#, 1.0),
        (r#"{"model": "another"}"#, 5.0),
        (r#"{"model": "Dear"}"#, 5.0),
        ("{}", 5.0),
        (r#"{"model": {}}"#, 1_300.0),
        ("no JSON", 1_300.0),
    ] {
        assert_eq!(post(&gateway, body).status, 200, "{body}");
        spent += cost;
        let labels = [("limit", "guard"), ("plan", "none"), ("outcome", "debited")];
        gateway.wait_for_metric("tollgate_limit_tokens_total", &labels, spent);
    }
}

#[test]
fn explain_tells_what_a_body_comes_to() {
    let origin = Origin::start();
    let limit = budget(
        1_000,
        "key: { request_field: params.api_key }, cost: { request_field: max_tokens, max: 100 }, missing_key: skip",
    );
    let gateway = Gateway::start(&limited(&origin, &limit));
    let explain = |body: serde_json::Value| {
        let question = json!({ "method": "POST", "url": "http://test/", "body": body }).to_string();
        let mut client = Client::connect(gateway.admin);
        client.post("/explain", &[("host", "127.0.0.1")], question.as_bytes()).json()["limits"][0].clone()
    };
    let limit = explain(json!({ "max_tokens": 9, "params": { "api_key": "a-very-long-canary-secret" } }));
    assert_eq!((&limit["cost"], limit["key"][0]["value"].as_str()), (&json!(9), Some("a... (25 bytes)")));
    assert_eq!(explain(json!(null))["applies"], false);
    let limit = explain(json!("no JSON"));
    assert_eq!((&limit["cost"], &limit["key"][0]["value"]), (&json!(100), &json!(null)));
}
