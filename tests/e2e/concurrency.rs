//! `concurrency` and `adaptive_concurrency`: a slot comes back exactly once, however its request ends.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::RwLock;

use crate::support::client::request;
use crate::support::gateway::ALL_GUARDED;
use crate::support::origin::by_path;
use crate::support::wire::chunk;
use crate::support::{Client, Exchange, Gateway, Origin, RefusingNode, pattern, together, wait_until};

/// A limit of one concurrent request.
const ONE: &str = "{ algorithm: concurrency, limit: 1, key: all }";
/// The signal that asks a process to end.
const SIGTERM: u32 = 15;

/// Answers like [`by_path`]; besides, `/garbage` sends bytes that are not HTTP, `/pause` sends the beginning of a body and
/// no more, `/endless` sends a body without an end.
fn worse_by_path(exchange: &mut Exchange<'_>) -> io::Result<()> {
    match exchange.path() {
        "/garbage" => {
            exchange.keep = false;
            exchange.send("SSH-2.0-OpenSSH_9.2\r\n\r\n")
        }
        "/pause" => {
            exchange.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhalf ")?;
            exchange.wait_for_end()
        }
        "/endless" => {
            exchange.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
            loop {
                exchange.send(chunk(pattern(10_000)))?;
            }
        }
        _ => by_path(exchange),
    }
}

/// A gateway with one upstream and `limit` on all requests. `more` is added to the settings of the upstream.
fn guarded(limit: &str, more: &str) -> (Origin, Gateway) {
    let origin = Origin::with(worse_by_path);
    let config = format!("{}limits: {{ guard: {limit} }}\n{ALL_GUARDED}", origin.upstream_with(more));
    let gateway = Gateway::start(&config);
    (origin, gateway)
}

#[track_caller]
fn assert_busy(gateway: &Gateway, fields: &[(&str, &str)]) {
    let denied = gateway.get("/", fields);
    assert_eq!((denied.status, denied.number("retry-after")), (429, Some(1)), "{denied:?}");
}

/// Waits for a free slot; the gateway frees a slot a moment after the end of its request.
fn wait_for_slot(gateway: &Gateway) {
    wait_until("a slot", || match gateway.get("/", &[]).status {
        200 => true,
        status => {
            assert_eq!(status, 429);
            false
        }
    });
}

fn wait_for_in_flight(gateway: &Gateway, route: &str, count: u32) {
    gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", route)], f64::from(count));
}

/// Sends a request that takes the only slot, and keeps it.
#[track_caller]
fn take(origin: &Origin, gateway: &Gateway, bytes: impl AsRef<[u8]>) -> Client {
    let mut client = gateway.client();
    client.send(bytes);
    origin.wait_for_count(1);
    assert_busy(gateway, &[]);
    client
}

fn get(path: &str) -> String {
    request("GET", path, &[])
}

#[test]
fn while_one_is_in_flight_the_next_is_denied_and_costs_nothing() {
    let origin = Origin::start();
    let config = format!(
        "{}limits: {{ slots: {ONE}, rate: {{ algorithm: gcra, rate: 1/h, burst: 2, key: all }} }}
routes: [{{ name: all, upstream: origin, limits: [rate, slots] }}]\n",
        origin.upstream()
    );
    let gateway = Gateway::start(&config);
    let first = take(&origin, &gateway, get("/stall"));
    for _ in 0..5 {
        assert_busy(&gateway, &[]);
    }
    assert_eq!(origin.count(), 1);
    drop(first);
    wait_for_slot(&gateway);
    wait_for_in_flight(&gateway, "all", 0);
    let denied = gateway.get("/", &[]);
    assert_eq!(denied.status, 429);
    assert!(denied.number("retry-after").unwrap() > 1000, "both tokens went to those that were admitted: {denied:?}");
}

#[test]
fn the_slot_comes_back_after_the_end_and_does_not_wait_for_the_connection() {
    let (_origin, gateway) = guarded(ONE, "");
    for path in ["/", "/bytes/300000", "/chunked/300000", "/status/404", "/status/500"] {
        let mut client = gateway.client();
        assert!(client.get(path).whole, "{path}");
        wait_for_slot(&gateway);
    }
    let mut client = gateway.client();
    for _ in 0..5 {
        wait_until("a slot on the same connection", || client.get("/").status == 200);
    }
}

#[test]
fn the_slot_comes_back_after_head() {
    let (origin, gateway) = guarded(ONE, "");
    let mut client = gateway.client();
    assert_eq!(client.round_trip("HEAD", "/", &[]).status, 200);
    assert_eq!(origin.only().head.word(0), "HEAD");
    wait_for_slot(&gateway);
}

#[test]
fn the_slot_comes_back_when_the_client_leaves_before_an_answer() {
    let (origin, gateway) = guarded(ONE, "");
    drop(take(&origin, &gateway, get("/stall")));
    wait_for_slot(&gateway);
}

#[test]
fn the_slot_comes_back_when_the_client_leaves_while_it_sends() {
    for framing in [("content-length", "1000"), ("transfer-encoding", "chunked")] {
        let (origin, gateway) = guarded(ONE, "");
        drop(take(&origin, &gateway, request("POST", "/echo", &[framing]) + "5\r\nhalf "));
        wait_for_slot(&gateway);
    }
}

#[test]
fn the_slot_comes_back_when_the_client_leaves_while_it_reads() {
    for path in ["/pause", "/endless"] {
        let (origin, gateway) = guarded(ONE, "");
        let mut client = take(&origin, &gateway, get(path));
        assert_eq!(client.wire.head().unwrap().unwrap().word(1), "200");
        drop(client);
        wait_for_slot(&gateway);
    }
}

#[test]
fn the_slot_comes_back_when_the_upstream_refuses() {
    let origin = Origin::start();
    let refusing = RefusingNode::new();
    let config = format!(
        "upstreams: {{ origin: {{ nodes: [{}] }}, dead: {{ nodes: [{}] }} }}
limits: {{ guard: {ONE} }}
routes:
  - {{ name: all, upstream: origin, limits: [guard] }}
  - {{ name: dead, match: {{ path: /dead }}, upstream: dead, limits: [guard] }}\n",
        origin.node(),
        refusing.node()
    );
    let gateway = Gateway::start(&config);
    assert_eq!(gateway.get("/dead", &[]).status, 502);
    wait_for_slot(&gateway);
}

#[test]
fn the_slot_comes_back_after_half_an_answer() {
    let (_origin, gateway) = guarded(ONE, "");
    for path in ["/half", "/half-chunk"] {
        assert!(!gateway.get(path, &[]).whole, "{path}");
        wait_for_slot(&gateway);
        wait_for_in_flight(&gateway, "all", 0);
    }
}

#[test]
fn the_slot_comes_back_after_garbage_and_after_nothing() {
    let (_origin, gateway) = guarded(ONE, "");
    for path in ["/garbage", "/drop"] {
        assert_eq!(gateway.get(path, &[]).status, 502, "{path}");
        wait_for_slot(&gateway);
        wait_for_in_flight(&gateway, "all", 0);
    }
}

#[test]
fn the_slot_comes_back_when_the_answer_does_not_begin_in_time() {
    for timeouts in ["first_byte: 2s", "total: 2s"] {
        let (origin, gateway) = guarded(ONE, &format!("timeouts: {{ {timeouts} }}"));
        let mut client = gateway.client();
        client.send(get("/stall"));
        origin.wait_for_count(1);
        assert_eq!(client.receive().status, 504, "{timeouts}");
        wait_for_slot(&gateway);
    }
}

#[test]
fn the_slot_comes_back_when_a_body_stops_coming() {
    let (_origin, gateway) = guarded(ONE, "timeouts: { idle: 300ms, first_byte: 2s }");
    assert!(!gateway.get("/pause", &[]).whole);
    wait_for_slot(&gateway);

    let (origin, gateway) = guarded(ONE, "timeouts: { idle: 300ms }");
    let mut client = gateway.client();
    client.send(request("POST", "/echo", &[("content-length", "10")]) + "half ");
    origin.wait_for_count(1);
    assert_eq!(client.receive().status, 408);
    wait_for_slot(&gateway);
}

#[test]
fn the_slot_comes_back_when_the_client_stops_reading() {
    let (origin, gateway) = guarded(ONE, "timeouts: { idle: 300ms }");
    let mut client = gateway.client();
    client.send(get("/endless"));
    origin.wait_for_count(1);
    wait_for_slot(&gateway);
    drop(client);
}

/// An upstream that answers nothing while the returned lock is held for writing.
fn gated() -> (Origin, Arc<RwLock<()>>) {
    let gate = Arc::new(RwLock::new(()));
    let opened = Arc::clone(&gate);
    let origin = Origin::with(move |exchange| {
        drop(opened.read());
        exchange.reply("200 OK", "", b"done\n")
    });
    (origin, gate)
}

#[test]
fn the_one_in_flight_finishes_before_the_end() {
    let (origin, gate) = gated();
    let mut gateway = Gateway::start(&crate::support::gateway::limited(&origin, ONE));
    wait_until("the handler", || gateway.process.catches(SIGTERM));
    let closed = gate.write();
    let mut client = take(&origin, &gateway, get("/"));
    gateway.process.signal("TERM");
    wait_until("the end of accepting", || TcpStream::connect(gateway.address).is_err());
    assert!(gateway.process.exit_status().is_none(), "a request is in flight");
    drop(closed);
    let response = client.receive();
    assert_eq!((response.status, response.text().as_str()), (200, "done\n"));
    assert_eq!(gateway.process.wait().code(), Some(0));
}

/// A gateway with hosts under `rate` and slots, in both orders; every other host is under slots alone.
fn rated(origin: &Origin, slots: u32, rate: &str) -> Gateway {
    Gateway::start(&format!(
        "{}limits: {{ slots: {{ algorithm: concurrency, limit: {slots}, key: all }}, rate: {rate} }}
routes:
  - {{ name: both, match: {{ hosts: [both.test] }}, upstream: origin, limits: [slots, rate] }}
  - {{ name: turned, match: {{ hosts: [turned.test] }}, upstream: origin, limits: [rate, slots] }}
  - {{ name: slots, upstream: origin, limits: [slots] }}\n",
        origin.upstream()
    ))
}

const BOTH: [(&str, &str); 1] = [("host", "both.test")];
const TURNED: [(&str, &str); 1] = [("host", "turned.test")];

#[test]
fn requests_that_another_limit_denies_take_no_slot() {
    let origin = Origin::start();
    let gateway = rated(&origin, 1, "{ algorithm: gcra, rate: 1/h, burst: 1, key: all }");
    assert_eq!(gateway.get("/", &BOTH).status, 200);
    wait_for_in_flight(&gateway, "both", 0);
    for host in [BOTH, TURNED] {
        for _ in 0..3 {
            let denied = gateway.get("/", &host);
            assert_eq!(denied.status, 429);
            assert!(denied.number("retry-after").unwrap() > 1000, "{denied:?}");
        }
    }
    assert_eq!(gateway.get("/", &[]).status, 200);
}

#[test]
fn waiting_requests_hold_their_slot_until_the_client_leaves() {
    let origin = Origin::start();
    let rate = "{ algorithm: gcra, rate: 1/100s, burst: 9, delay_after: 0, key: all,
        over_limit: { delay: { max_wait: 1h } } }";
    let gateway = rated(&origin, 1, rate);
    assert_eq!(gateway.get("/", &BOTH).status, 200);
    wait_for_in_flight(&gateway, "both", 0);
    for (host, route) in [(BOTH, "both"), (TURNED, "turned")] {
        let mut waits = gateway.client();
        waits.send_request("GET", "/", &host);
        let labels = [("route", route), ("limit", "rate"), ("plan", "none"), ("outcome", "delayed")];
        gateway.wait_for_metric("tollgate_limit_requests_total", &labels, 1.0);
        assert_busy(&gateway, &[]);
        drop(waits);
        wait_for_slot(&gateway);
        wait_for_in_flight(&gateway, "slots", 0);
    }
}

#[test]
fn requests_at_a_full_queue_take_no_slot() {
    let origin = Origin::start();
    let rate = "{ algorithm: gcra, rate: 1/100s, burst: 9, delay_after: 0, key: all,
        over_limit: { delay: { max_wait: 1h, max_waiting: 1 } } }";
    let gateway = rated(&origin, 2, rate);
    assert_eq!(gateway.get("/", &BOTH).status, 200);
    wait_for_in_flight(&gateway, "both", 0);
    let mut waits = gateway.client();
    waits.send_request("GET", "/", &BOTH);
    let labels = [("route", "both"), ("limit", "rate"), ("plan", "none"), ("outcome", "delayed")];
    gateway.wait_for_metric("tollgate_limit_requests_total", &labels, 1.0);
    for host in [BOTH, TURNED, BOTH] {
        let denied = gateway.get("/", &host);
        assert!(denied.status == 429 && denied.number("retry-after").unwrap() > 1, "{denied:?}");
    }
    let mut second = gateway.client();
    second.send_request("GET", "/stall", &[]);
    origin.wait_for_count(2);
    assert_busy(&gateway, &[]);
    drop(waits);
}

/// With two slots and one of them held, requests end in every way; the other slot is free again exactly once each time.
fn ends_in_every_way_give_back_once(two: &str) {
    let (origin, gateway) = guarded(two, "");
    let mut held = gateway.client();
    held.send_request("GET", "/stall", &[]);
    origin.wait_for_count(1);
    for path in ["/", "/drop", "/garbage", "/half", "/bytes/100000", "/status/503"] {
        gateway.get(path, &[]);
        wait_for_in_flight(&gateway, "all", 1);
    }
    for path in ["/stall", "/pause", "/endless"] {
        let before = origin.count();
        let mut leaves = gateway.client();
        leaves.send_request("GET", path, &[]);
        origin.wait_for_count(before + 1);
        assert_busy(&gateway, &[]);
        drop(leaves);
        wait_for_in_flight(&gateway, "all", 1);
    }
    assert_eq!(gateway.get("/", &[]).status, 200);
    wait_for_in_flight(&gateway, "all", 1);
    drop(held);
    wait_for_in_flight(&gateway, "all", 0);
}

#[test]
fn a_slot_is_given_back_once() {
    ends_in_every_way_give_back_once("{ algorithm: concurrency, limit: 2, key: all }");
}

#[test]
fn a_slot_of_a_limit_that_adapts_is_given_back_once() {
    ends_in_every_way_give_back_once("{ algorithm: adaptive_concurrency, min: 2, max: 2, key: all }");
}

#[test]
fn sixty_four_clients_never_have_more_than_ten_in_flight() {
    const CLIENTS: usize = 64;
    const LIMIT: usize = 10;
    let gate = Arc::new(RwLock::new(()));
    let (in_flight, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (opened, working, peak) = (Arc::clone(&gate), Arc::clone(&in_flight), Arc::clone(&most));
    let origin = Origin::with(move |exchange| {
        peak.fetch_max(working.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        // Takes a while, so that requests overlap.
        std::thread::park_timeout(Duration::from_millis(2));
        drop(opened.read());
        // The client may send its next request as soon as the response is out.
        working.fetch_sub(1, Ordering::SeqCst);
        exchange.reply("200 OK", "", b"done\n")
    });
    let limit = format!("{{ algorithm: concurrency, limit: {LIMIT}, key: all }}");
    let gateway = Gateway::start(&crate::support::gateway::limited(&origin, &limit));

    let mut admitted = 0;
    let mut denied = 0;
    for round in 0..2 {
        // While the upstream answers nothing, the gateway admits as many requests as there are slots: of all clients
        // together, and again after all earlier requests have ended.
        let closed = gate.write();
        let mut clients = together(CLIENTS, |_| {
            let mut client = gateway.client();
            client.send_request("GET", "/", &[]);
            client
        });
        admitted += LIMIT;
        denied += CLIENTS - LIMIT;
        origin.wait_for_count(admitted);
        let labels = [("route", "all"), ("limit", "guard"), ("plan", "none"), ("outcome", "denied")];
        let count = f64::from(u32::try_from(denied).unwrap());
        gateway.wait_for_metric("tollgate_limit_requests_total", &labels, count);
        drop(closed);
        let statuses: Vec<u16> = clients.iter_mut().map(|client| client.receive().status).collect();
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), LIMIT, "{round}: {statuses:?}");
        assert_eq!((origin.count(), most.load(Ordering::SeqCst)), (admitted, LIMIT), "{round}");

        let statuses = together(CLIENTS, |_| {
            let mut client = gateway.client();
            [(); 10].map(|()| client.get("/").status)
        });
        let of = |wanted| statuses.iter().flatten().filter(|status| **status == wanted).count();
        assert_eq!(of(200) + of(429), CLIENTS * 10, "{round}");
        assert!(of(200) > 0);
        (admitted, denied) = (admitted + of(200), denied + of(429));
        assert_eq!((origin.count(), most.load(Ordering::SeqCst)), (admitted, LIMIT), "{round}");
        wait_for_in_flight(&gateway, "all", 0);
    }
}
