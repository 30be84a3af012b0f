//! Protection of upstreams: caps on bodies and requests, failing nodes that get no requests, traffic splits, and paced
//! responses.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::support::gateway::{ALL, ALL_GUARDED};
use crate::support::http2::Http2;
use crate::support::origin::upstream;
use crate::support::wire::chunk;
use crate::support::{Gateway, Origin, now, pattern, together, wait_until};

const KIB: usize = 1 << 10;

fn one_route(origin: &Origin, settings: &str) -> String {
    format!("{}routes: [{{ name: all, upstream: origin, {settings} }}]\n", origin.upstream())
}

fn received(origin: &Origin) -> usize {
    origin.received().iter().map(|seen| seen.body.len()).sum()
}

#[test]
fn a_body_over_the_cap_is_refused_and_its_rest_reaches_no_upstream() {
    let origin = Origin::start();
    let gateway = Gateway::start(&one_route(&origin, "max_request_body: 64KiB"));
    assert_eq!(gateway.client().post("/echo", &[], &pattern(64 * KIB)).status, 200);
    let refused = gateway.client().post("/echo", &[], &pattern(64 * KIB + 1));
    assert_eq!((refused.status, origin.count()), (413, 1), "by its length: {refused:?}");
    assert_eq!(gateway.get("/", &[]).status, 200);

    let before = received(&origin);
    let mut client = gateway.client();
    client.send("POST /upload HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n");
    client.send(chunk([b'x'; 40 * KIB]));
    wait_until("the upload to begin", || received(&origin) == before + 40 * KIB);
    client.send(chunk([b'x'; 40 * KIB]));
    let refused = client.receive();
    assert_eq!(refused.status, 413, "{refused:?}");
    assert!(received(&origin) <= before + 64 * KIB, "{}", received(&origin) - before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_over_the_cap_ends_its_stream_of_http2_and_no_other() {
    let origin = Origin::start();
    let gateway = Gateway::start_listening("http2: true", &one_route(&origin, "max_request_body: 64KiB"), &[]);
    let mut client = Http2::connect_cleartext(gateway.address).await;
    let mut post = async |length| client.post("http://test/echo", &[], pattern(length).into()).await.unwrap();
    assert_eq!(post(64 * KIB).await.body.len(), 64 * KIB);
    let before = received(&origin);
    let refused = post(64 * KIB + 1).await;
    assert_eq!(refused.status, 413, "{refused:?}");
    assert!(received(&origin) <= before + 64 * KIB, "{}", received(&origin) - before);
    assert_eq!(post(1).await.status, 200);
}

#[test]
fn requests_over_the_cap_of_an_upstream_are_answered_503() {
    let (release, held) = mpsc::channel::<()>();
    let held = parking_lot::Mutex::new(held);
    let origin = Origin::with(move |exchange| {
        if exchange.path() == "/held" {
            let _end = held.lock().recv();
        }
        exchange.reply("200 OK", "", b"")
    });
    let gateway = Gateway::start(&format!("{}{ALL}", origin.upstream_with("max_requests: 1")));
    let mut first = gateway.client();
    first.send("GET /held HTTP/1.1\r\nhost: test\r\n\r\n");
    origin.wait_for_count(1);
    let refused = gateway.get("/", &[]);
    assert_eq!(refused.status, 503);
    assert_eq!(refused.json()["type"], "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity");
    gateway.wait_for_metric("tollgate_upstream_requests_refused_total", &[("upstream", "origin")], 1.0);
    assert_eq!(origin.count(), 1);
    release.send(()).unwrap();
    assert_eq!(first.receive().status, 200);
    wait_until("there is room again", || gateway.get("/", &[]).status == 200);
    let statuses = together(20, |_| gateway.get("/", &[]).status);
    assert!(statuses.iter().all(|status| matches!(status, 200 | 503)), "{statuses:?}");
    wait_until("all have given their places back", || gateway.get("/", &[]).status == 200);
}

#[test]
fn an_answer_for_a_full_upstream_tells_the_refunded_quota_and_when_to_retry() {
    let origin = Origin::start();
    let limit = "limits: { guard: { key: all, algorithm: fixed_window, limit: 2, window: 1d } }\n";
    let gateway = Gateway::start(&format!("{}{limit}{ALL_GUARDED}", origin.upstream_with("max_requests: 1")));
    let mut first = gateway.client();
    first.send_request("GET", "/stall", &[]);
    origin.wait_for_count(1);
    for _ in 0..3 {
        let refused = gateway.get("/", &[]);
        assert_eq!((refused.status, refused.field("retry-after")), (503, Some("1")));
        assert_eq!(refused.number("x-ratelimit-remaining"), Some(1), "the charge is refunded: {refused:?}");
        assert!(refused.field("ratelimit").unwrap().starts_with("\"guard\";r=1;t="), "{refused:?}");
    }
}

#[test]
fn requests_wait_in_turn_for_room_at_an_upstream() {
    let (release, held) = mpsc::channel::<()>();
    let held = parking_lot::Mutex::new(held);
    let origin = Origin::with(move |exchange| {
        let _end = held.lock().recv();
        exchange.reply("200 OK", "", b"")
    });
    let upstream = origin.upstream_with("max_requests: 1, max_pending: 2, timeouts: { pending: 10s }");
    let limit = "limits: { guard: { key: all, algorithm: fixed_window, limit: 10, window: 1d } }\n";
    let gateway = Gateway::start(&format!("{upstream}{limit}{}", ALL_GUARDED));
    let waiting = |count: f64| {
        gateway.wait_for_metric("tollgate_upstream_requests_pending", &[("upstream", "origin")], count);
    };
    let mut clients: Vec<_> = (0..3).map(|_| gateway.client()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.send_request("GET", &format!("/{number}"), &[]);
        match number {
            0 => origin.wait_for_count(1),
            number => waiting(f64::from(u32::try_from(number).unwrap())),
        }
    }
    // a request that finds no place to wait costs nothing; a cancelled request frees its place and is not charged
    assert_eq!(gateway.get("/", &[]).status, 503);
    drop(clients.pop());
    waiting(1.0);
    let mut last = gateway.client();
    last.send_request("GET", "/last", &[]);
    waiting(2.0);
    for number in 0..3 {
        release.send(()).unwrap();
        let client = if number < 2 { &mut clients[number] } else { &mut last };
        let response = client.receive();
        assert_eq!((response.status, response.number("x-ratelimit-remaining")), (200, Some([9, 8, 7][number])));
    }
    assert_eq!(
        origin.received().iter().map(|seen| seen.target().to_owned()).collect::<Vec<_>>(),
        ["/0", "/1", "/last"]
    );
    drop(release);
    assert_eq!(gateway.get("/", &[]).number("x-ratelimit-remaining"), Some(6));
    // without a bound no request waits, and there is nothing to count
    gateway.rewrite(&format!("{}{limit}{}", origin.upstream(), ALL_GUARDED));
    assert_eq!(gateway.reload().status, 200);
    assert_eq!(gateway.metrics().all("tollgate_upstream_requests_pending").len(), 0);
}

#[test]
fn a_request_waits_for_room_as_long_as_it_may() {
    let origin = Origin::start();
    let upstream = origin.upstream_with("max_requests: 1, max_pending: 5, timeouts: { pending: 100ms }");
    let gateway = Gateway::start(&format!("{upstream}{ALL}"));
    let mut first = gateway.client();
    first.send_request("GET", "/stall", &[]);
    origin.wait_for_count(1);
    assert!(together(3, |_| gateway.get("/", &[]).status).iter().all(|status| *status == 503));
    gateway.wait_for_metric("tollgate_upstream_requests_refused_total", &[("upstream", "origin")], 3.0);
    // a reload raises the bound
    gateway.rewrite(&format!("{}{ALL}", upstream.replace("max_requests: 1", "max_requests: 2")));
    assert_eq!(gateway.reload().status, 200);
    assert_eq!(together(5, |_| gateway.get("/", &[]).status), [200; 5]);
}

#[test]
fn a_refused_reload_leaves_the_cap_of_an_upstream_as_it_is() {
    let origin = Origin::start();
    let config = |max: u32, more: &str| format!("{}{ALL}{more}", origin.upstream_with(&format!("max_requests: {max}")));
    let gateway = Gateway::start_with(&config(1, ""), &[("url", "postgres://gate@127.0.0.1:1/keys")], &[]);
    let mut first = gateway.client();
    first.send_request("GET", "/stall", &[]);
    origin.wait_for_count(1);
    assert_eq!(gateway.get("/", &[]).status, 503);
    let unreachable = "postgres: { url_file: url, query: \"SELECT * FROM keys\", snapshot_file: keys, timeout: 500ms }";
    let customers = format!(
        "customers: {{ identify: [{{ header: x-api-key }}], directory: {{ {unreachable} }} }}\nplans: [free]\n"
    );
    gateway.rewrite(&config(2, &customers));
    let refused = gateway.reload();
    assert!(refused.status == 422 && refused.text().contains("tollgate tries again"), "{refused:?}");
    assert_eq!(gateway.get("/", &[]).status, 503);
}

#[test]
fn a_node_whose_requests_fail_is_left_alone_for_longer_each_time() {
    let fails = Arc::new(AtomicBool::new(true));
    let failing = Arc::clone(&fails);
    let bad = Origin::with(move |exchange| match failing.load(Ordering::Relaxed) {
        true => exchange.reply("500 Whatever", "", b""),
        false => exchange.reply("200 OK", "", b""),
    });
    let good = Origin::start();
    let nodes = upstream(&[bad.node(), good.node()], "eject: { after: 3, for: 2s, max_percent: 50 }");
    let gateway = Gateway::start(&format!("{nodes}{ALL}"));
    let failures = || (0..20).filter(|_| gateway.get("/", &[]).status == 500).count();
    assert_eq!(failures(), 3);
    gateway.wait_for_metric("tollgate_upstream_ejections_total", &[("upstream", "origin")], 1.0);
    wait_until("it is tried again", || gateway.get("/", &[]).status == 500);
    fails.store(false, Ordering::Relaxed);
    let before = bad.count();
    wait_until("it is back", || gateway.get("/", &[]).status == 200 && bad.count() > before);
}

#[test]
fn ejections_end_with_their_rule() {
    let bad = Origin::with(|exchange| exchange.reply("500 Whatever", "", b""));
    let good = Origin::start();
    let config = |eject: &str| format!("{}{ALL}", upstream(&[bad.node(), good.node()], eject));
    let gateway = Gateway::start(&config("eject: { after: 1, for: 1h, max_percent: 50 }"));
    let is_ejected = || gateway.admin_get("/status").json()["upstreams"][0]["nodes"][0]["ejected"] == true;
    let failures = || (0..4).filter(|_| gateway.get("/", &[]).status == 500).count();
    assert_eq!((failures(), is_ejected()), (1, true));
    for (eject, count) in [("eject: { after: 1, for: 2h, max_percent: 50 }", 1), ("", 2)] {
        gateway.rewrite(&config(eject));
        assert_eq!(gateway.reload().status, 200);
        assert!(!is_ejected());
        assert_eq!(failures(), count, "{eject}");
    }
}

#[test]
fn a_node_without_others_is_not_left_alone() {
    let origin = Origin::start();
    let gateway = Gateway::start(&format!("{}{ALL}", origin.upstream_with("eject: { after: 1, for: 1h }")));
    assert!((0..5).all(|_| gateway.get("/status/503", &[]).text() == "as you wish\n"));
    assert_eq!(gateway.metrics().value("tollgate_upstream_ejections_total", &[("upstream", "origin")]), Some(0.0));
}

#[test]
fn several_upstreams_share_a_route_by_their_weights() {
    let (one, other) = (Origin::start(), Origin::start());
    let upstreams =
        format!("upstreams: {{ one: {{ nodes: [{}] }}, other: {{ nodes: [{}] }} }}\n", one.node(), other.node());
    let split = |by: &str| {
        format!(
            "{upstreams}routes: [{{ name: all, upstream: [{{ name: one, weight: 75 }}, {{ name: other, weight: 25 }}]{by} }}]\n"
        )
    };
    let gateway = Gateway::start(&split(""));
    let mut client = gateway.client();
    (0..400).for_each(|_| assert_eq!(client.round_trip("GET", "/", &[]).status, 200));
    // 100 of 400, with six standard deviations to either side
    assert!((48..=152).contains(&other.count()), "{}", other.count());
    assert_eq!(one.count() + other.count(), 400);

    let sticky = Gateway::start(&split(", split_by: { header: x-user }"));
    let mut client = sticky.client();
    let mut of_user = |user: usize| {
        let before = other.count();
        client.round_trip("GET", "/", &[("x-user", &user.to_string())]);
        other.count() > before
    };
    let first: Vec<bool> = (0..80).map(&mut of_user).collect();
    let second: Vec<bool> = (0..80).map(&mut of_user).collect();
    assert_eq!(first, second, "the same user goes to the same upstream");
    let count = first.iter().filter(|to_other| **to_other).count();
    assert!((2..=45).contains(&count), "{count}");
}

/// Asserts that a paced response takes at least as long as its rate asks for, and not much longer.
fn assert_paced(took: Duration, bytes: usize, rate: usize) {
    let exact = Duration::from_secs_f64(bytes as f64 / rate as f64);
    assert!(took + Duration::from_millis(60) >= exact, "{took:?} for {exact:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_comes_at_the_pace_of_its_route_over_both_protocols() {
    let origin = Origin::start();
    let gateway =
        Gateway::start_listening("http2: true", &one_route(&origin, "response_bytes_per_second: 200KiB/s"), &[]);
    for path in ["/bytes/102400", "/chunked/102400"] {
        let began = now();
        let response = gateway.get(path, &[]);
        assert_paced(began.elapsed(), 102_400, 200 << 10);
        assert!((response.status, response.whole) == (200, true) && response.body == pattern(102_400), "{path}");
    }
    let mut client = Http2::connect_cleartext(gateway.address).await;
    let began = now();
    let response = client.get("http://test/bytes/102400", &[]).await.unwrap();
    assert_paced(began.elapsed(), 102_400, 200 << 10);
    assert!(response.body == pattern(102_400));
}

#[test]
fn a_paced_response_ends_at_its_deadline_and_before_the_process_does() {
    let origin = Origin::start();
    let slow = "response_bytes_per_second: 100KiB/s";
    let config =
        |more: &str| format!("{}routes: [{{ name: all, upstream: origin, {slow} }}]\n", origin.upstream_with(more));
    let gateway = Gateway::start(&config("timeouts: { total: 300ms }"));
    let response = gateway.get("/bytes/1024000", &[]);
    assert!(response.status == 200 && !response.whole, "cut off at the deadline");

    let gateway = Gateway::start(&config(""));
    let mut client = gateway.client();
    client.send("GET /bytes/51200 HTTP/1.1\r\nhost: test\r\n\r\n");
    origin.wait_for_count(2);
    gateway.process.signal("TERM");
    let response = client.receive();
    assert!(response.whole && response.body == pattern(51_200), "a stop waits for it");
}
