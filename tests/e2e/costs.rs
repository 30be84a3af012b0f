//! The costs of requests, and when limits charge them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::support::gateway::limited;
use crate::support::wire::{Framing, chunk};
use crate::support::{Exchange, Gateway, Origin, RefusingNode, Response, together, wait_until};

/// A limit of `burst` tokens that practically never refill, with more settings.
fn budget(burst: u64, more: &str) -> String {
    format!("{{ algorithm: token_bucket, rate: 1/30d, burst: {burst}, key: all, {more} }}")
}

const TOKENS: &str = "tollgate_limit_tokens_total";

fn tokens(gateway: &Gateway, outcome: &str) -> f64 {
    let labels = [("limit", "guard"), ("plan", "none"), ("outcome", outcome)];
    gateway.metrics().value(TOKENS, &labels).unwrap_or_default()
}

fn wait_for_tokens(gateway: &Gateway, outcome: &str, count: f64) {
    gateway.wait_for_metric(TOKENS, &[("limit", "guard"), ("plan", "none"), ("outcome", outcome)], count);
}

fn wait_for_invalid(gateway: &Gateway, count: f64) {
    gateway.wait_for_metric("tollgate_limit_cost_invalid_total", &[("limit", "guard")], count);
}

/// The remaining quota that the response reports.
#[track_caller]
fn remaining(response: &Response) -> u64 {
    response.number("x-ratelimit-remaining").unwrap()
}

#[test]
fn a_fixed_cost_and_one_by_method_are_taken_from_the_quota() {
    let origin = Origin::start();
    let gateway = Gateway::start(&limited(&origin, &budget(10, "cost: 4")));
    assert_eq!(remaining(&gateway.get("/", &[])), 6);
    assert_eq!(remaining(&gateway.get("/", &[])), 2);
    assert_eq!(gateway.get("/", &[]).status, 429);
    assert_eq!((tokens(&gateway, "admitted"), tokens(&gateway, "denied")), (8.0, 4.0));

    let cost = "cost: { by_method: { GET: 0, POST: 5 }, others: 2 }";
    let gateway = Gateway::start(&limited(&origin, &budget(10, cost)));
    assert_eq!(remaining(&gateway.client().post("/", &[], b"")), 5);
    assert_eq!(remaining(&gateway.client().round_trip("DELETE", "/", &[])), 3);
    assert_eq!(remaining(&gateway.get("/", &[])), 3);
    assert_eq!(gateway.client().post("/", &[], b"").status, 429);
}

#[test]
fn a_cost_in_a_request_header_is_believed_up_to_its_most() {
    let origin = Origin::start();
    let limit = budget(100, "cost: { header: x-cost, max: 20, missing: 2 }");
    let gateway = Gateway::start(&limited(&origin, &limit));
    let mut left = 100;
    for (value, cost) in [("7", 7), ("0", 1), ("-5", 20), ("1e9", 20), ("21", 20), ("99999999999999999999", 20)] {
        left -= cost;
        assert_eq!(remaining(&gateway.get("/", &[("x-cost", value)])), left, "{value}");
    }
    assert_eq!(remaining(&gateway.get("/", &[])), left - 2);
}

#[test]
fn a_cost_that_can_never_fit_is_denied_without_a_time_to_retry() {
    let origin = Origin::start();
    let gateway = Gateway::start(&limited(&origin, &budget(10, "cost: { header: x-cost, max: 50 }")));
    let denied = gateway.get("/", &[("x-cost", "11")]);
    assert_eq!((denied.status, denied.field("retry-after")), (429, None));
    assert!(denied.json()["detail"].as_str().unwrap().contains("can ever admit"), "{denied:?}");
    assert_eq!(remaining(&gateway.get("/", &[("x-cost", "10")])), 0);
}

#[test]
fn a_body_costs_a_token_for_each_started_run_of_bytes() {
    let origin = Origin::start();
    let gateway = Gateway::start(&limited(&origin, &budget(100, "cost: { request_bytes: 1KiB }")));
    assert_eq!(remaining(&gateway.client().post("/", &[], &[b'x'; 2049])), 97);
    assert_eq!(remaining(&gateway.get("/", &[])), 96, "one without a body costs 1");
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n");
    for part in [&[b'x'; 5000][..], &[b'y'; 5000], b""] {
        client.send(chunk(part));
    }
    assert_eq!(remaining(&client.receive()), 86, "one of a length that is not known yet is charged as it passes");
    assert_eq!(remaining(&gateway.get("/", &[])), 85);
    assert_eq!((tokens(&gateway, "admitted"), tokens(&gateway, "debited")), (15.0, 0.0));
}

#[test]
fn a_response_costs_what_its_header_or_its_length_says() {
    let origin = Origin::with(|exchange| {
        let cost = exchange.path().trim_start_matches('/').to_owned();
        exchange.reply("200 OK", &format!("x-cost: {cost}\r\n"), &[b'x'; 2500])
    });
    let limit = budget(100, "cost: { response_header: x-cost, max: 50 }, charge: { when: response, reserve: 10 }");
    let gateway = Gateway::start(&limited(&origin, &limit));
    assert_eq!(remaining(&gateway.get("/4", &[])), 90);
    wait_for_tokens(&gateway, "refunded", 6.0);
    assert_eq!(remaining(&gateway.get("/30", &[])), 86);
    wait_for_tokens(&gateway, "debited", 20.0);
    for (invalid, cost) in ["-4", "NaN", "51", "1e400", "four"].iter().zip([1.0, 2.0, 3.0, 4.0, 5.0]) {
        assert_eq!(gateway.get(&format!("/{invalid}"), &[]).status, 200);
        wait_for_invalid(&gateway, cost);
    }
    assert_eq!(remaining(&gateway.get("/0", &[])), 6, "what cannot be read leaves the reserve taken");

    let limit = budget(100, "cost: { response_bytes: 1KiB }, charge: { when: response }");
    let gateway = Gateway::start(&limited(&origin, &limit));
    assert_eq!(remaining(&gateway.get("/", &[])), 99);
    wait_for_tokens(&gateway, "debited", 2.0);
    assert_eq!(remaining(&gateway.client().round_trip("HEAD", "/", &[])), 96);
}

#[test]
fn failed_logins_count_and_successful_ones_do_not() {
    let origin = Origin::with(|exchange| {
        let status = if exchange.path() == "/good" { "200 OK" } else { "401 Unauthorized" };
        exchange.reply(status, "", b"")
    });
    let limit = "{ algorithm: sliding_log, limit: 5, window: 15m, key: client_address, \
                 charge: { when: response, if_status: [401, 403] } }";
    let gateway = Gateway::start(&limited(&origin, limit));
    for successful in 1..=20 {
        assert_eq!(gateway.get("/good", &[]).status, 200);
        wait_for_tokens(&gateway, "refunded", f64::from(successful));
    }
    let statuses = together(100, |_| gateway.get("/bad", &[]).status);
    assert_eq!(statuses.iter().filter(|status| **status == 401).count(), 5);
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 95);
    assert_eq!(origin.count(), 25, "no other reached the upstream");
    assert_eq!(gateway.get("/good", &[]).status, 429);
}

#[test]
fn with_nothing_reserved_only_those_that_owe_are_denied() {
    let origin = Origin::with(|exchange| exchange.reply("200 OK", "x-cost: 7\r\n", b""));
    let limit = budget(10, "cost: { response_header: x-cost }, charge: { when: response, reserve: 0 }");
    let gateway = Gateway::start(&limited(&origin, &limit));
    assert_eq!(remaining(&gateway.get("/", &[])), 10);
    wait_for_tokens(&gateway, "debited", 7.0);
    assert_eq!(remaining(&gateway.get("/", &[])), 3);
    wait_for_tokens(&gateway, "debited", 14.0);
    let denied = gateway.get("/", &[]);
    assert_eq!((denied.status, remaining(&denied)), (429, 0));
    let months = denied.number("retry-after").unwrap().div_ceil(30 * 86_400);
    assert_eq!(months, 5, "four are owed, and one is asked for: {denied:?}");
    assert_eq!(tokens(&gateway, "admitted"), 0.0);
}

#[test]
fn denied_requests_may_count_too() {
    let origin = Origin::start();
    let limit = "{ algorithm: token_bucket, rate: 1/1h, burst: 1, key: all, charge: { denied: true } }";
    let gateway = Gateway::start(&limited(&origin, limit));
    assert_eq!(gateway.get("/", &[]).status, 200);
    let hours = |response: &Response| response.number("retry-after").unwrap().div_ceil(3600);
    // a denied request takes a token itself: its wait is for this one and for its own next try
    for expected in [2, 3, 4] {
        assert_eq!(hours(&gateway.get("/", &[])), expected);
    }
    assert_eq!(tokens(&gateway, "debited"), 3.0);
}

/// A budget of 1000 tokens of a language model with a reserve of 100 for each request.
const LLM: &str = "cost: { response_field: usage.total_tokens, max: 5000 }, charge: { when: response, reserve: 100 }";

fn llm(handler: impl Fn(&mut Exchange<'_>) -> std::io::Result<()> + Send + Sync + 'static) -> (Origin, Gateway) {
    let origin = Origin::with(handler);
    let gateway = Gateway::start(&limited(&origin, &budget(1000, LLM)));
    (origin, gateway)
}

#[test]
fn a_completion_costs_what_its_json_says_wherever_it_is_cut() {
    let (origin, gateway) = llm(|exchange| {
        let step: usize = exchange.path().trim_start_matches('/').parse().unwrap();
        exchange.send("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")?;
        for part in br#"{"choices": [{"text": "\"usage\": {"}], "usage": {"total_tokens": 130}}"#.chunks(step) {
            exchange.send(chunk(part))?;
        }
        exchange.send(chunk(b""))
    });
    for (step, debited) in [(1, 30.0), (2, 60.0), (3, 90.0), (7, 120.0), (1000, 150.0)] {
        let whole = gateway.get(&format!("/{step}"), &[("accept-encoding", "gzip")]);
        assert_eq!(whole.json()["usage"]["total_tokens"], 130);
        wait_for_tokens(&gateway, "debited", debited);
    }
    assert!(origin.received().iter().all(|seen| seen.head.field("accept-encoding").is_none()));
}

#[test]
fn an_event_stream_costs_what_the_last_event_with_the_field_says() {
    const STREAM: &str = "data: {\"delta\": \"a\", \"usage\": null}\n\ndata: {\"usage\": {\"total_tokens\": 3}}\n\n\
                          data: {\"usage\": {\"total_tokens\": 40}}\r\n\r\ndata: [DONE]\n\n";
    let (_origin, gateway) = llm(|exchange| {
        let step: usize = exchange.path().trim_start_matches('/').parse().unwrap();
        let head =
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
        exchange.send(head)?;
        for part in STREAM.as_bytes().chunks(step) {
            exchange.send(chunk(part))?;
        }
        exchange.send(chunk(b""))
    });
    for (step, refunded) in [(1, 60.0), (5, 120.0), (1000, 180.0)] {
        assert_eq!(gateway.get(&format!("/{step}"), &[]).text(), STREAM);
        wait_for_tokens(&gateway, "refunded", refunded);
    }
    assert_eq!(tokens(&gateway, "debited"), 0.0);
}

#[test]
fn a_response_that_tells_no_cost_leaves_the_reserve_taken_and_is_counted() {
    let (_origin, gateway) = llm(|exchange| {
        let (fields, body) = match exchange.path() {
            "/negative" => ("", r#"{"usage": {"total_tokens": -1}}"#),
            "/text" => ("", r#"{"usage": {"total_tokens": "130"}}"#),
            "/huge" => ("", r#"{"usage": {"total_tokens": 1e400}}"#),
            "/absurd" => ("", r#"{"usage": {"total_tokens": 5001}}"#),
            "/none" => ("", r#"{"usage": {}}"#),
            "/html" => ("", "<html>"),
            "/coded" => ("content-encoding: gzip\r\n", r#"{"usage": {"total_tokens": 1}}"#),
            _ => ("", r#"{"usage": {"total_tokens": NaN}}"#),
        };
        exchange.reply("200 OK", fields, body.as_bytes())
    });
    let mut invalid = 0.0;
    for path in ["/negative", "/text", "/huge", "/absurd", "/none", "/html", "/coded", "/nan"] {
        assert_eq!(gateway.get(path, &[]).status, 200);
        invalid += 1.0;
        wait_for_invalid(&gateway, invalid);
    }
    assert_eq!((tokens(&gateway, "refunded"), tokens(&gateway, "debited")), (0.0, 0.0));
    assert_eq!(remaining(&gateway.get("/html", &[])), 100);
}

/// A budget of 1000 in which an output token costs five times as much as an input token.
const WEIGHED: &str = "cost: { sum: [{ response_field: usage.in, times: 2 }, { response_field: usage.out, times: 10 }, \
                       { response_header: x-tools }], max: 5000 }, charge: { when: response, reserve: 100 }";

fn weighed(handler: impl Fn(&mut Exchange<'_>) -> std::io::Result<()> + Send + Sync + 'static) -> (Origin, Gateway) {
    let origin = Origin::with(handler);
    let gateway = Gateway::start(&limited(&origin, &budget(1000, WEIGHED)));
    (origin, gateway)
}

#[test]
fn a_sum_weighs_the_numbers_of_a_response() {
    let (_origin, gateway) = weighed(|exchange| {
        let (fields, body) = match exchange.path() {
            "/json" => ("x-tools: 4\r\n", r#"{"usage": {"in": 13, "out": 12, "out2": 9}}"#),
            "/events" => (
                "content-type: text/event-stream\r\n",
                "data: {\"usage\": null}\n\ndata: {\"usage\": {\"in\": 50}}\n\ndata: {\"usage\": {\"out\": 6}}\n\n\
                 data: {\"usage\": null}\n\ndata: [DONE]\n\n",
            ),
            "/embeddings" => ("", r#"{"usage": {"in": 45, "total": 45}}"#),
            _ => ("x-tools: 20\r\n", ""),
        };
        exchange.reply("200 OK", fields, body.as_bytes())
    });
    gateway.get("/json", &[]);
    wait_for_tokens(&gateway, "debited", 50.0);
    gateway.get("/events", &[]);
    wait_for_tokens(&gateway, "debited", 110.0);
    gateway.get("/embeddings", &[]);
    wait_for_tokens(&gateway, "refunded", 10.0);
    gateway.get("/empty", &[]);
    wait_for_tokens(&gateway, "refunded", 90.0);
    assert_eq!(tokens(&gateway, "debited"), 110.0);
    assert_eq!(gateway.metrics().value("tollgate_limit_cost_invalid_total", &[("limit", "guard")]), Some(0.0));
}

#[test]
fn a_sum_with_a_part_that_is_no_number_leaves_the_reserve_taken_and_is_counted() {
    let (_origin, gateway) = weighed(|exchange| {
        let (fields, body) = match exchange.path() {
            "/negative" => ("", r#"{"usage": {"in": 1, "out": -1}}"#),
            "/text" => ("", r#"{"usage": {"in": "1", "out": 1}}"#),
            "/huge" => ("", r#"{"usage": {"in": 1, "out": 1e400}}"#),
            "/twice" => ("x-tools: 1\r\nx-tools: 1\r\n", r#"{"usage": {"in": 1, "out": 1}}"#),
            "/coded" => ("x-tools: 1\r\ncontent-encoding: gzip\r\n", r#"{"usage": {"in": 1, "out": 1}}"#),
            "/most" => ("", r#"{"usage": {"in": 1, "out": 9007199254740992, "in": 18446744073709551615}}"#),
            _ => ("", r#"{"usage": {}}"#),
        };
        exchange.reply("200 OK", fields, body.as_bytes())
    });
    let mut invalid = 0.0;
    for path in ["/negative", "/text", "/huge", "/twice", "/coded", "/none"] {
        assert_eq!(gateway.get(path, &[]).status, 200);
        invalid += 1.0;
        wait_for_invalid(&gateway, invalid);
    }
    assert_eq!((tokens(&gateway, "refunded"), tokens(&gateway, "debited")), (0.0, 0.0));
    gateway.get("/most", &[]);
    wait_for_tokens(&gateway, "debited", 4900.0);
    wait_for_invalid(&gateway, invalid);
}

#[test]
fn a_sum_of_a_stream_that_breaks_off_costs_at_least_the_reserve() {
    let (_origin, gateway) = weighed(|exchange| {
        let input = exchange.path().trim_start_matches('/').to_owned();
        exchange.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")?;
        // the upstream closes the connection before it sends the other number
        exchange.keep = false;
        exchange.send(chunk(format!("data: {{\"usage\": {{\"in\": {input}}}}}\n\n").as_bytes()))
    });
    let ask = |path: &str| {
        let mut client = gateway.client();
        client.send_request("GET", path, &[]);
        let head = client.wire.head().unwrap().unwrap();
        let mut framing = Framing::of_response(&head, false);
        while matches!(client.wire.part(&mut framing), Ok(Some(_))) {}
    };
    ask("/10");
    ask("/70");
    wait_for_tokens(&gateway, "debited", 40.0);
    gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
    assert_eq!((tokens(&gateway, "admitted"), tokens(&gateway, "refunded")), (200.0, 0.0));
}

#[test]
fn a_response_is_complete_when_its_end_follows_its_last_content() {
    let (command, origin) = Origin::on_command();
    let gateway = Gateway::start(&limited(&origin, &budget(1000, WEIGHED)));
    for content in [&br#"{"usage": {"in": 5}}"#[..], b"{}"] {
        let mut client = gateway.client();
        client.send_request("GET", "/", &[]);
        command.send(content).unwrap();
        let head = client.wire.head().unwrap().unwrap();
        let mut framing = Framing::of_response(&head, false);
        assert_eq!(client.wire.part(&mut framing).unwrap().as_deref(), Some(content));
        command.send(b"").unwrap();
        assert_eq!(client.wire.part(&mut framing).unwrap(), None);
    }
    wait_for_tokens(&gateway, "refunded", 90.0);
    wait_for_invalid(&gateway, 1.0);
}

#[test]
fn a_response_without_a_body_costs_nothing() {
    let (_origin, gateway) = llm(|exchange| match exchange.method() {
        "HEAD" => exchange.send("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n"),
        _ => exchange.send("HTTP/1.1 204 No Content\r\n\r\n"),
    });
    gateway.client().round_trip("HEAD", "/", &[]);
    wait_for_tokens(&gateway, "refunded", 100.0);
    gateway.get("/", &[]);
    wait_for_tokens(&gateway, "refunded", 200.0);
}

#[test]
fn a_client_that_leaves_pays_what_is_known_or_its_reserve() {
    let gone = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&gone);
    let (origin, gateway) = llm(move |exchange| {
        if exchange.path() == "/silent" {
            return exchange.wait_for_end();
        }
        exchange.send("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")?;
        if exchange.path() == "/known" {
            exchange.send(chunk(b"data: {\"usage\": {\"total_tokens\": 250}}\n\n"))?;
        }
        exchange.send(chunk(b"data: {}\n\n"))?;
        // until the gateway does not take it any more
        while exchange.send(chunk(b"data: {}\n\n")).is_ok() {
            std::thread::yield_now();
        }
        seen.store(true, Ordering::Relaxed);
        Ok(())
    });
    let leave = |path: &str| {
        let mut client = gateway.client();
        client.send_request("GET", path, &[]);
        let head = client.wire.head().unwrap().unwrap();
        client.wire.part(&mut Framing::of_response(&head, false)).unwrap();
        client.wire.close();
        wait_until("the upstream to be left", || gone.swap(false, Ordering::Relaxed));
    };
    leave("/known");
    wait_for_tokens(&gateway, "debited", 150.0);
    leave("/unknown");
    let mut client = gateway.client();
    client.send_request("GET", "/silent", &[]);
    origin.wait_for_count(3);
    client.wire.close();
    gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
    assert_eq!((tokens(&gateway, "admitted"), tokens(&gateway, "refunded")), (300.0, 0.0));
    assert_eq!(tokens(&gateway, "debited"), 150.0);
    assert_eq!(gateway.metrics().value("tollgate_limit_cost_invalid_total", &[("limit", "guard")]), Some(0.0));
}

#[test]
fn a_failed_upstream_takes_nothing_and_its_own_500_what_the_limit_says() {
    let refusing = RefusingNode::new();
    let upstream = crate::support::origin::upstream(&[refusing.node()], "");
    let config = |upstream: &str, charge: &str| {
        let limit = budget(1000, &format!("cost: 10, charge: {charge}"));
        format!("{upstream}limits: {{ guard: {limit} }}\n{}", crate::support::gateway::ALL_GUARDED)
    };
    let gateway = Gateway::start(&config(&upstream, "{ when: response }"));
    assert!(gateway.get("/", &[]).status >= 502);
    wait_for_tokens(&gateway, "refunded", 10.0);

    let origin = Origin::start();
    let gateway = Gateway::start(&config(&origin.upstream(), "{ when: response, if_status: [2xx, 400-499] }"));
    assert_eq!(gateway.get("/status/500", &[]).status, 500);
    wait_for_tokens(&gateway, "refunded", 10.0);
    assert_eq!(gateway.get("/drop", &[]).status, 502);
    wait_for_tokens(&gateway, "refunded", 20.0);
    assert_eq!(gateway.get("/status/404", &[]).status, 404);
    assert_eq!(remaining(&gateway.get("/", &[])), 980);
}

#[test]
fn a_request_costs_something_else_under_each_of_its_limits() {
    let sizes = Mutex::new(vec![2048_usize, 10]);
    let origin = Origin::with(move |exchange| {
        exchange.body()?;
        let size = sizes.lock().pop().unwrap_or_default();
        exchange.reply("200 OK", "", &vec![b'x'; size])
    });
    let limits = format!(
        "limits: {{ requests: {}, bytes: {}, traffic: {} }}\n",
        budget(3, ""),
        budget(10, "cost: { request_bytes: 1KiB }"),
        budget(10, "cost: { response_bytes: 1KiB }, charge: { when: response, reserve: 5 }"),
    );
    let route = "routes: [{ name: all, upstream: origin, limits: [requests, bytes, traffic] }]\n";
    let gateway = Gateway::start(&format!("{}{limits}{route}", origin.upstream()));
    let left = |response: &Response| {
        let value = response.field("ratelimit").unwrap().to_owned();
        ["requests", "bytes", "traffic"].map(|limit| {
            let entry = value.split(", ").find(|entry| entry.starts_with(&format!("\"{limit}\""))).unwrap();
            entry.split(';').find_map(|part| part.strip_prefix("r=")).unwrap().parse::<u64>().unwrap()
        })
    };
    let settled = |outcome: &str, count: f64| {
        gateway.wait_for_metric(TOKENS, &[("limit", "traffic"), ("plan", "none"), ("outcome", outcome)], count);
    };
    assert_eq!(left(&gateway.client().post("/", &[], &[b'x'; 3000])), [2, 7, 5]);
    settled("refunded", 4.0);
    // the body is larger than the remaining byte quota: none of the three limits charges it
    assert_eq!(left(&gateway.client().post("/", &[], &[b'x'; 8000])), [2, 7, 9]);
    assert_eq!(left(&gateway.client().post("/", &[], &[b'x'; 1])), [1, 6, 4]);
    settled("refunded", 7.0);
}
