//! Request bodies of unknown length under limits that count bytes: charged as they pass, and stopped at the limit.

use std::io::ErrorKind;
use std::time::Duration;

use bytes::Bytes;
use h2::{Reason, SendStream};
use http::Method;
use serde_json::json;
use tollgate::algorithm::AlgorithmName;

use crate::admin_api;
use crate::support::client::request;
use crate::support::cluster::Nodes;
use crate::support::gateway::{ALL_GUARDED, limited};
use crate::support::http2::{Answer, Http2, read, rest};
use crate::support::redis::Redis;
use crate::support::wire::{Framing, chunk};
use crate::support::{Client, Gateway, Origin, PATIENCE, Response, now, together, wait_for, wait_until};

const KIB: usize = 1 << 10;
const PART: usize = 5 * KIB;

/// A limit of 100 KiB with this algorithm; `None` for algorithms that limit concurrency, which count no bytes.
fn limit_of(algorithm: AlgorithmName) -> Option<String> {
    let parameters = match algorithm {
        AlgorithmName::TokenBucket | AlgorithmName::Gcra => "rate: 1/h, burst: 100",
        AlgorithmName::LeakyBucket => "rate: 1/h, capacity: 100",
        AlgorithmName::LeakyQueue => "rate: 1/h, capacity: 100, over_limit: { delay: { max_wait: 1s } }",
        AlgorithmName::FixedWindow
        | AlgorithmName::QuotaReset
        | AlgorithmName::QuotaLinear
        | AlgorithmName::SlidingLog
        | AlgorithmName::SlidingWindow
        | AlgorithmName::SlidingCounters => "limit: 100, window: 30d",
        AlgorithmName::Exponential => "limit: 100, period: 30d, policy: leaky",
        AlgorithmName::SmoothBursty => "rate: 1/h",
        AlgorithmName::SmoothWarmingUp => "rate: 1/h, warm_up: 10h",
        AlgorithmName::Cycle => "limit: 100, period: 30d",
        AlgorithmName::Concurrency | AlgorithmName::AdaptiveConcurrency => return None,
    };
    Some(format!("{{ algorithm: {}, {parameters}, key: method, cost: {{ request_bytes: 1KiB }} }}", algorithm.as_str()))
}

fn start(origin: &Origin, limit: &str) -> Gateway {
    Gateway::start_listening("http2: true", &limited(origin, limit), &[])
}

/// Sends `kib` KiB in chunks, even if a response arrives meanwhile; returns the response.
fn upload(gateway: &Gateway, target: &str, kib: usize) -> Response {
    let mut client = gateway.client();
    client.send(format!("POST {target} HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n"));
    let sent = (0..kib * KIB / PART).try_for_each(|_| client.wire.send(chunk([b'x'; PART])));
    drop(sent.and_then(|()| client.wire.send(chunk(b""))));
    client.receive()
}

/// The same as an HTTP/2 stream without `content-length`.
async fn upload_stream(client: &mut Http2, target: &str, kib: usize) -> Answer {
    let url = format!("http://test{target}");
    let (response, mut sending) = client.begin(Method::PUT, &url, &[], false).await.unwrap();
    // an early response closes the stream
    let sent = (0..kib * KIB / PART).try_for_each(|_| sending.send_data(Bytes::from_static(&[b'x'; PART]), false));
    drop(sent.and_then(|()| sending.send_data(Bytes::new(), true)));
    read(response).await.unwrap()
}

/// Sends a body until the gateway resets the stream; returns the reason.
async fn send_until_reset(sending: &mut SendStream<Bytes>) -> Reason {
    let sent = async {
        loop {
            sending.reserve_capacity(PART);
            match std::future::poll_fn(|task| sending.poll_capacity(task)).await {
                // fails if the stream was just reset, which the next poll shows
                Some(Ok(length)) => drop(sending.send_data(Bytes::from(vec![b'x'; length]), false)),
                _ => break std::future::poll_fn(|task| sending.poll_reset(task)).await.unwrap(),
            }
        }
    };
    tokio::time::timeout(PATIENCE, sent).await.expect("the stream is reset")
}

/// The number of body bytes that reached the origin.
fn received(origin: &Origin) -> usize {
    origin.received().iter().map(|seen| seen.body.len()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_stops_where_its_limit_says_in_every_algorithm() {
    let limits: Vec<(&str, String)> =
        AlgorithmName::ALL.iter().filter_map(|algorithm| Some((algorithm.as_str(), limit_of(*algorithm)?))).collect();
    assert_eq!(limits.len(), AlgorithmName::ALL.len() - 2, "all but those that count what runs");
    let lines = |line: &dyn Fn(&str, &str) -> String| -> String {
        limits.iter().map(|(name, limit)| line(name, limit)).collect()
    };
    let origin = Origin::start();
    let config = format!(
        "{}limits:\n{}routes:\n{}",
        origin.upstream(),
        lines(&|name, limit| format!("  {name}: {limit}\n")),
        lines(&|name, _| format!(
            "  - {{ name: {name}, match: {{ path: /{name} }}, upstream: origin, limits: [{name}] }}\n"
        )),
    );
    let gateway = Gateway::start_listening("http2: true", &config, &[]);
    let mut client = Http2::connect_cleartext(gateway.address).await;
    for (name, _) in &limits {
        let target = format!("/{name}");
        let denied = upload(&gateway, &target, 2340);
        assert_eq!(denied.status, 429, "{name}: {denied:?}");
        let url = format!("http://test{target}");
        let (response, mut sending) = client.begin(Method::PUT, &url, &[], false).await.unwrap();
        let answer = tokio::spawn(read(response));
        assert_eq!(send_until_reset(&mut sending).await, Reason::NO_ERROR, "{name}");
        assert_eq!(answer.await.unwrap().unwrap().status, 429, "{name}");
        for method in ["POST", "PUT"] {
            let seen =
                origin.received().into_iter().filter(|seen| seen.target() == target && seen.head.word(0) == method);
            let bytes: usize = seen.map(|seen| seen.body.len()).sum();
            assert!(bytes <= 100 * KIB, "{name}: {method} {bytes}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_costs_its_bytes_and_no_more() {
    let origin = Origin::start();
    let gateway = start(&origin, &limit_of(AlgorithmName::TokenBucket).unwrap());
    let uploaded = upload(&gateway, "/", 40);
    assert_eq!((uploaded.status, uploaded.number("x-ratelimit-remaining")), (200, Some(60)));
    let mut client = Http2::connect_cleartext(gateway.address).await;
    let uploaded = upload_stream(&mut client, "/", 35).await;
    assert_eq!((uploaded.status, uploaded.field("x-ratelimit-remaining")), (200, Some("65")));
    let empty = upload_stream(&mut client, "/", 0).await;
    assert_eq!(empty.field("x-ratelimit-remaining"), Some("64"), "an empty body costs one");
    assert_eq!(upload_stream(&mut client, "/", 70).await.status, 429);
    assert_eq!(client.get("http://test/", &[]).await.unwrap().status, 200, "the connection goes on");
    assert!(received(&origin) <= (40 + 100) * KIB);
}

#[test]
fn a_stopped_upload_is_answered_as_its_limit_says_and_leaves_nothing_behind() {
    let origin = Origin::start();
    let deny = "over_limit: { deny: { status: 413, headers: { x-denied: \"{{ limit }}\" } } }";
    let gateway = Gateway::start(&format!(
        "{}limits:
  bytes: {{ algorithm: fixed_window, limit: 100, window: 30d, key: all, cost: {{ request_bytes: 1KiB }}, {deny} }}
  slots: {{ algorithm: concurrency, limit: 1, key: all }}
routes:
  - {{ name: uploads, match: {{ path: /upload }}, upstream: origin, limits: [bytes, slots] }}
  - {{ name: other, upstream: origin, limits: [slots] }}
access_log: full
",
        origin.upstream()
    ));
    let mut client = gateway.client();
    client.send("POST /upload HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n");
    client.send(chunk([b'x'; 50 * KIB]));
    wait_until("the upload to begin", || received(&origin) == 50 * KIB);
    client.send(chunk([b'x'; 60 * KIB]));
    let denied = client.receive();
    assert!(client.is_ended(), "its connection is closed");
    assert_eq!((denied.status, denied.field("x-denied")), (413, Some("bytes")), "{denied:?}");
    // 110 KiB are more than the limit ever admits
    assert_eq!((denied.number("retry-after"), denied.field("connection")), (None, Some("close")), "{denied:?}");
    let line = gateway.process.wait_for_access("/upload");
    assert_eq!((line["status"].as_u64(), line["decision"].as_str()), (Some(413), Some("denied")), "{line}");
    assert_eq!(line["limit"].as_str(), Some("bytes"), "{line}");

    wait_until("the slot to be free", || gateway.get("/", &[]).status == 200);
    let seen = origin.received();
    assert!(seen.len() == 2 && seen[0].connection != seen[1].connection, "the upstream's connection is not used again");
    let labels = |outcome| [("route", "uploads"), ("limit", "bytes"), ("plan", "none"), ("outcome", outcome)];
    let requests = |outcome| gateway.metrics().value("tollgate_limit_requests_total", &labels(outcome));
    assert_eq!([requests("admitted"), requests("denied")], [Some(1.0), Some(1.0)]);
    let tokens = [("limit", "bytes"), ("plan", "none"), ("outcome", "admitted")];
    let admitted = gateway.metrics().value("tollgate_limit_tokens_total", &tokens).unwrap();
    assert!((50.0..=100.0).contains(&admitted) && received(&origin) <= 100 * KIB, "{admitted}");
}

#[test]
fn a_stopped_upload_is_answered_in_the_form_that_its_client_prefers() {
    let origin = Origin::start();
    let deny = "over_limit: { deny: { body: { html: \"<p>{{ limit }}</p>\", json: '{}' } } }";
    let limit = "algorithm: fixed_window, limit: 10, window: 30d, key: all, cost: { request_bytes: 1KiB }";
    let gateway = start(&origin, &format!("{{ {limit}, {deny} }}"));
    for (accept, content_type) in [("text/html", "text/html; charset=utf-8"), ("application/json", "application/json")]
    {
        let mut client = gateway.client();
        client.send(request("POST", "/", &[("transfer-encoding", "chunked"), ("accept", accept)]));
        client.send(chunk([b'x'; 20 * KIB]));
        let denied = client.receive();
        assert_eq!((denied.status, denied.field("content-type")), (429, Some(content_type)), "{denied:?}");
    }
}

/// Begins an upload with `kib` KiB, of which all are forwarded.
fn begin_upload(gateway: &Gateway, origin: &Origin, kib: usize) -> Client {
    let before = received(origin);
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n");
    client.send(chunk(vec![b'x'; kib * KIB]));
    wait_until("the upload to begin", || received(origin) == before + kib * KIB);
    client
}

#[test]
fn a_stopped_upload_is_told_when_all_of_it_would_pass_and_counts_for_a_ban() {
    let origin = Origin::start();
    let limit = "algorithm: token_bucket, rate: 1/h, burst: 100, key: client_address, cost: { request_bytes: 1KiB }";
    let gateway = start(&origin, &format!("{{ {limit}, ban: {{ after: 2 denials in 1h, for: 1000h }} }}"));
    assert_eq!(upload(&gateway, "/", 50).status, 200);
    let mut client = begin_upload(&gateway, &origin, 45);
    client.send(chunk([b'x'; 10 * KIB]));
    let denied = client.receive();
    let hours = |denied: &Response| denied.number("retry-after").map(|seconds| seconds.div_ceil(3600));
    assert_eq!(denied.status, 429, "{denied:?}");
    // at least 46 KiB have come, and at most 5 tokens are left
    assert!(hours(&denied).is_some_and(|hours| (41..=60).contains(&hours)), "{denied:?}");
    let decisions = Client::connect(gateway.admin).round_trip("GET", "/v1/decisions", &[admin_api::HOST]).json();
    let last = &decisions["decisions"][0];
    assert_eq!((last["outcome"].as_str(), &last["key"][0]["value"]), (Some("denied"), &"127.0.0.1".into()), "{last}");

    assert_eq!(hours(&upload(&gateway, "/", 60)), Some(1000), "the second denial bans");
    assert!(gateway.get("/", &[]).text().contains("Too many requests were denied"));
}

/// A gateway with this limit beside one of 1000 bytes for each `x-key`.
fn beside_bytes(origin: &Origin, other: &str) -> Gateway {
    Gateway::start(&format!(
        "{}limits:
  other: {other}
  bytes: {{ key: {{ header: x-key }}, algorithm: gcra, rate: 10/s, burst: 1000, cost: {{ request_bytes: 1B }} }}
routes:
  - {{ name: used, match: {{ path: /used }}, upstream: origin, limits: [bytes] }}
  - {{ name: all, upstream: origin, limits: [other, bytes] }}
",
        origin.upstream()
    ))
}

/// Uses 650 of the 1000 bytes of this key, and sends a body of 900 of which 300 are forwarded. Returns the denial.
fn upload_in_two_parts(gateway: &Gateway, origin: &Origin, key: &str) -> Response {
    assert_eq!(gateway.client().post("/used", &[("x-key", key)], &[b'x'; 650]).status, 200);
    let before = received(origin);
    let mut client = gateway.client();
    client.send(request("POST", "/", &[("transfer-encoding", "chunked"), ("x-key", key)]));
    client.send(chunk([b'x'; 300]));
    wait_until("the upload to begin", || received(origin) == before + 300);
    client.send(chunk([b'x'; 600]));
    let denied = client.receive();
    assert_eq!((denied.status, &denied.json()["violated-policies"]), (429, &json!(["bytes"])), "{denied:?}");
    denied
}

#[test]
fn a_stopped_upload_is_told_when_all_limits_of_its_route_admit_it() {
    let origin = Origin::start();
    let gateway = beside_bytes(&origin, "{ key: all, algorithm: fixed_window, window: 30d, limit: 2 }");
    // the upstream has a part of each request, so each stays charged
    for (key, is_last) in [("a", false), ("b", true)] {
        let denied = upload_in_two_parts(&gateway, &origin, key);
        assert_eq!(denied.number("retry-after").map(|seconds| seconds > 100), Some(is_last), "{denied:?}");
    }
    assert_eq!(gateway.get("/", &[("x-key", "c")]).json()["violated-policies"], json!(["other"]));

    let hourly = "{ key: all, algorithm: gcra, rate: 100/h, burst: 1100, cost: { request_bytes: 1B } }";
    let denied = upload_in_two_parts(&beside_bytes(&origin, hourly), &origin, "a");
    assert!(denied.field("ratelimit").unwrap().starts_with("\"other\";r=800;"), "{denied:?}");
    assert!(denied.number("retry-after").is_some_and(|seconds| (3_000..=3_600).contains(&seconds)), "{denied:?}");
}

#[test]
fn an_upload_that_is_stopped_before_the_upstream_has_got_anything_is_charged_nothing() {
    let origin = Origin::start();
    let gateway = Gateway::start(&format!(
        "{}limits:
  requests: {{ key: all, algorithm: fixed_window, window: 30d, limit: 5 }}
  denials: {{ key: all, algorithm: fixed_window, window: 30d, limit: 5, charge: {{ denied: true }} }}
  bytes: {{ key: all, algorithm: fixed_window, window: 30d, limit: 10, cost: {{ request_bytes: 1B }} }}
  slots: {{ key: all, algorithm: concurrency, limit: 1 }}
  named: {{ key: {{ request_field: name }}, algorithm: fixed_window, window: 30d, limit: 5 }}
routes:
  - {{ name: held, match: {{ path: /held }}, upstream: origin, limits: [requests, denials, bytes, slots, named] }}
  - {{ name: passing, upstream: origin, limits: [requests, denials, bytes, slots] }}
",
        origin.upstream()
    ));
    for (target, denials) in [("/held", 4), ("/", 3), ("/held", 2), ("/", 1)] {
        let mut client = gateway.client();
        let head = request("POST", target, &[("transfer-encoding", "chunked"), ("content-type", "application/json")]);
        // the first part comes with the head
        client.send([head.into_bytes(), chunk(r#"{"name":   "#)].concat());
        if target == "/held" {
            client.send(chunk(r#" "somebody"}"#));
        } else {
            client.send(chunk(""));
        }
        let denied = client.receive();
        assert_eq!(denied.json()["violated-policies"], json!(["bytes"]), "{denied:?}");
        let told = denied.field("ratelimit").unwrap();
        let left: Vec<&str> = told.split(", ").map(|limit| limit.split(";t=").next().unwrap()).collect();
        let denials = format!("\"denials\";r={denials}");
        let expected = ["\"requests\";r=5", &denials, "\"bytes\";r=10", "\"slots\";r=1", "\"named\";r=5"];
        assert_eq!(left, expected[..left.len()], "{target}");
        assert_eq!(denied.number("retry-after"), None, "no wait helps: {denied:?}");
    }
    assert_eq!(origin.count(), 0);
    let refunded = [("limit", "bytes"), ("plan", "none"), ("outcome", "refunded")];
    gateway.wait_for_metric("tollgate_limit_tokens_total", &refunded, 4.0);
}

#[test]
fn a_stopped_upload_that_can_never_pass_is_told_no_time() {
    let origin = Origin::start();
    let limit = "{ algorithm: token_bucket, rate: 1/h, burst: 10, key: all, cost: { request_bytes: 1KiB } }";
    let gateway = start(&origin, limit);
    let mut client = begin_upload(&gateway, &origin, 2);
    client.send(chunk([b'x'; 9 * KIB]));
    let denied = client.receive();
    assert_eq!((denied.status, denied.number("retry-after")), (429, None), "{denied:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_is_stopped_after_its_response_began_ends_its_connection_or_stream() {
    let origin = Origin::with(|exchange| {
        exchange.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")?;
        exchange.body().map(|_| ())
    });
    let gateway = start(&origin, &limit_of(AlgorithmName::QuotaReset).unwrap());
    let mut client = gateway.client();
    client.send("POST / HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n");
    let head = client.wire.head().unwrap().unwrap();
    assert_eq!(head.word(1), "200");
    for _ in 0..100 {
        if client.wire.send(chunk([b'x'; PART])).is_err() {
            break;
        }
    }
    let mut framing = Framing::of_response(&head, false);
    let cut_off = loop {
        match client.wire.part(&mut framing) {
            Ok(Some(_)) => {}
            end => break end,
        }
    };
    let cut_off = cut_off.expect_err("the response is seen to be cut off").kind();
    assert!(matches!(cut_off, ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset), "{cut_off:?}");

    let gateway = start(&origin, &limit_of(AlgorithmName::QuotaReset).unwrap());
    let mut client = Http2::connect_cleartext(gateway.address).await;
    let (response, mut sending) = client.begin(Method::POST, "http://test/", &[], false).await.unwrap();
    let response = response.await.unwrap();
    assert_eq!(response.status(), 200);
    let reason = send_until_reset(&mut sending).await;
    let cut_off = rest(&mut response.into_body()).await;
    assert!(reason != Reason::NO_ERROR && cut_off.is_err_and(|error| error.is_reset()), "{reason:?}");
    assert!(received(&origin) <= 200 * KIB);
}

#[test]
fn a_limit_that_only_watches_stops_no_upload() {
    let origin = Origin::start();
    let limit =
        "{ algorithm: fixed_window, limit: 100, window: 30d, key: all, cost: { request_bytes: 1KiB }, shadow: true }";
    let gateway = start(&origin, limit);
    assert_eq!(upload(&gateway, "/", 500).status, 200);
    assert_eq!(received(&origin), 500 * KIB);
    let labels = |outcome| [("route", "all"), ("limit", "guard"), ("plan", "none"), ("outcome", outcome)];
    let requests = |outcome| gateway.metrics().value("tollgate_limit_requests_total", &labels(outcome));
    assert_eq!([requests("admitted"), requests("shadow_denied")], [Some(1.0), Some(1.0)]);
}

#[test]
fn an_upload_waits_for_its_turn_where_its_limit_delays() {
    let origin = Origin::start();
    let delay = "over_limit: { delay: { max_wait: 10s } }";
    let limit = format!(
        "{{ algorithm: leaky_queue, rate: 1000/s, capacity: 5000, key: all, cost: {{ request_bytes: 1KiB }}, {delay} }}"
    );
    let gateway = start(&origin, &limit);
    let began = now();
    assert_eq!(upload(&gateway, "/", 500).status, 200);
    assert!(began.elapsed() >= Duration::from_millis(490), "{:?}", began.elapsed());
    assert_eq!(received(&origin), 500 * KIB);
}

/// A limit that delays uploads whose `x-upload` differs apart, for hours after the first part.
const DELAYING: &str = "{ algorithm: leaky_queue, rate: 1/h, capacity: 100, key: { header: x-upload }, \
                        cost: { request_bytes: 1KiB }, over_limit: { delay: { max_wait: 30d } } }";

/// Begins an upload to `path`, with a key of its own, with a part that passes and one that has to wait for hours.
fn begin_delayed_upload(gateway: &Gateway, method: &str, path: &str) -> Client {
    let mut client = gateway.client();
    client.send(request(method, path, &[("transfer-encoding", "chunked"), ("x-upload", path)]));
    client.send([chunk("x"), chunk([b'x'; 6 * KIB])].concat());
    client
}

#[test]
fn an_upload_that_waits_for_its_turn_ends_with_its_client_its_answer_or_its_deadline() {
    let nodes = [(); 2].map(|()| {
        Origin::with(|exchange| match exchange.path() {
            "/early" => exchange.reply("413 Content Too Large", "", b""),
            "/broken" => exchange.part().and(Err(ErrorKind::ConnectionAborted.into())),
            _ => exchange.body().and_then(|_| exchange.reply("200 OK", "", b"")),
        })
    });
    let eject = "eject: { after: 1, for: 1h, max_percent: 50 }";
    let timeouts = "timeouts: { total: 500ms }";
    let gateway = Gateway::start(&format!(
        "upstreams:
  patient: {{ nodes: [{0}, {1}], {eject} }}
  hasty: {{ nodes: [{0}, {1}], {eject}, {timeouts} }}
limits:
  bytes: {DELAYING}
  slots: {{ algorithm: concurrency, limit: 1, key: all }}
routes:
  - {{ name: hasty, match: {{ path: /hasty }}, upstream: hasty, limits: [bytes, slots] }}
  - {{ name: slots, match: {{ path: /slots }}, upstream: patient, limits: [slots] }}
  - {{ name: uploads, upstream: patient, limits: [bytes, slots] }}
",
        nodes[0].node(),
        nodes[1].node()
    ));
    let client = begin_delayed_upload(&gateway, "POST", "/");
    wait_until("a part to arrive", || nodes.iter().map(received).sum::<usize>() == 1);
    drop(client);
    for (path, status) in [("/early", 413), ("/broken", 502), ("/hasty", 504), ("/slots", 200)] {
        let answer = wait_for("the slot to be free", || {
            let answer = match path {
                "/slots" => gateway.get(path, &[]),
                _ => begin_delayed_upload(&gateway, "POST", path).receive(),
            };
            (answer.status != 429).then_some(answer)
        });
        assert_eq!(answer.status, status, "{path}");
    }
    for upstream in ["patient", "hasty"] {
        let ejections = gateway.metrics().value("tollgate_upstream_ejections_total", &[("upstream", upstream)]);
        assert_eq!(ejections, Some(0.0), "{upstream}");
    }
}

#[test]
fn a_delayed_part_waits_also_where_a_kept_connection_breaks() {
    let origin = Origin::with(|exchange| match exchange.path() {
        "/broken" if exchange.connection() == 0 => exchange.part().and(Err(ErrorKind::ConnectionAborted.into())),
        _ => exchange.body().and_then(|_| exchange.reply("200 OK", "", b"")),
    });
    let upstream = origin.upstream_with("timeouts: { total: 1s }");
    let gateway = Gateway::start(&format!("workers: 1\n{upstream}limits: {{ guard: {DELAYING} }}\n{ALL_GUARDED}"));
    assert_eq!(gateway.get("/", &[("x-upload", "none")]).status, 200);
    assert_eq!(begin_delayed_upload(&gateway, "PUT", "/broken").receive().status, 504);
    assert!(received(&origin) < 6 * KIB);
}

#[test]
fn an_upload_under_a_limit_in_redis_asks_it_now_and_then_and_costs_its_bytes() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let config = |limit: &str| {
        let limit = format!("{{ guard: {{ {limit}, mode: shared, key: all, cost: {{ request_bytes: 1KiB }} }} }}");
        format!(
            "{}store: {{ redis: \"{}\", timeout: 1s }}\nlimits: {limit}\nroutes: [{{ name: all, upstream: origin, limits: [guard] }}]\n",
            origin.upstream(),
            redis.url()
        )
    };
    let gateway = Gateway::start(&config("algorithm: token_bucket, rate: 1/30d, burst: 10000"));
    let before = redis.calls("evalsha");
    assert_eq!(upload(&gateway, "/", 8000).status, 200);
    let calls = redis.calls("evalsha") - before;
    assert!(calls < 60, "{calls} calls for 1600 chunks");
    let mut asked = 0;
    wait_until("what was charged ahead to be given back", || {
        asked += 1;
        gateway.get("/", &[]).number("x-ratelimit-remaining") == Some(2000 - asked)
    });

    let gateway = Gateway::start(&config("algorithm: sliding_window, limit: 100, window: 30d"));
    let passed = received(&origin);
    let statuses = together(4, |_| upload(&gateway, "/", 300).status);
    assert_eq!(statuses, [429; 4]);
    assert!(received(&origin) - passed <= 100 * KIB);
}

#[test]
fn uploads_through_several_gateways_share_what_the_owner_of_the_key_counts() {
    let origin = Origin::start();
    let gateways = Nodes::new(2)
        .start_all(&origin, "algorithm: fixed_window, limit: 100, window: 30d, cost: { request_bytes: 1KiB }");
    let statuses = together(4, |number| upload(&gateways[number % 2], "/", 300).status);
    assert_eq!(statuses, [429; 4]);
    assert!(received(&origin) <= 100 * KIB, "{}", received(&origin));
}
