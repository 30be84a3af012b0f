//! Panics in every filter and every background task: each ends the request or task in which it happens, and nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::Method;

use crate::support::client::request;
use crate::support::cluster::{Nodes, SECRET, wait_for_members};
use crate::support::gateway::{ALL, ALL_GUARDED};
use crate::support::http2::{Http2, read};
use crate::support::origin::by_path;
use crate::support::wire::chunk;
use crate::support::{Folder, Gateway, Origin, RefusingNode, SetOnDrop, wait_for, wait_until};

/// The failpoints before any byte of a response is sent, each with a target that reaches it.
const ANSWERED: [(&str, &str); 9] = [
    ("decide", "/"),
    ("charged", "/"),
    ("decide_by_body", "/by-body"),
    ("destination", "/"),
    ("connect_failed", "/nobody"),
    ("request_head", "/"),
    ("request_body", "/"),
    ("response_head", "/"),
    ("failed", "/drop"),
];
/// The failpoints after the response has begun, when no other response can be sent.
const CUT_OFF: [(&str, &str); 1] = [("response_body", "/")];

/// The folder in which a test arms failpoints.
struct Points(Folder);

impl Points {
    fn new() -> Self {
        Self(Folder::new())
    }

    fn environment(&self) -> (&'static str, &str) {
        ("TOLLGATE_FAILPOINTS", self.0.path().to_str().unwrap())
    }

    /// Arms a failpoint: the next task that reaches it panics.
    fn order(&self, point: &str) {
        self.0.write(point, "");
    }

    /// Whether the failpoint has panicked.
    fn has_happened(&self, point: &str) -> bool {
        !self.0.path().join(point).exists()
    }

    /// Arms a failpoint of a background task, and waits until the task reaches it.
    fn happens(&self, point: &str) {
        self.order(point);
        wait_until(point, || self.has_happened(point));
    }
}

/// A gateway that runs one request at a time and lets one wait; `/slow` is under no limit, and the upstream of `/nobody`
/// refuses connections.
fn start(points: &Points, origin: &Origin, refusing: &RefusingNode) -> Gateway {
    let config = format!(
        "upstreams:
  origin: {{ nodes: [{}], balance: least_requests }}
  nobody: {{ nodes: [{}] }}
limits:
  slot: {{ algorithm: concurrency, limit: 1, key: all }}
  said: {{ algorithm: token_bucket, rate: 1000000/s, burst: 1000000, key: {{ request_field: a }} }}
  turn: {{ algorithm: leaky_queue, rate: 50/s, capacity: 5, key: all, over_limit: {{ delay: {{ max_wait: 1s, max_waiting: 1 }} }} }}
routes:
  - {{ name: slow, match: {{ path: /slow }}, upstream: origin }}
  - {{ name: nobody, match: {{ path: /nobody }}, upstream: nobody, limits: [slot] }}
  - {{ name: turns, match: {{ path: /turns }}, upstream: origin, limits: [turn, slot] }}
  - {{ name: by-body, match: {{ path: /by-body }}, upstream: origin, limits: [slot, said] }}
  - {{ name: all, upstream: origin, limits: [slot] }}
",
        origin.node(),
        refusing.node(),
    );
    Gateway::start_with_options("http2: true", &config, &[], &[points.environment()])
}

fn nothing_is_left(gateway: &Gateway, panics: usize) {
    for route in ["all", "by-body", "nobody", "turns", "slow"] {
        gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", route)], 0.0);
    }
    gateway.wait_for_metric("tollgate_panics_total", &[], panics as f64);
    wait_until("the slot", || gateway.get("/", &[]).status == 200);
}

#[test]
fn a_thousand_panics_fail_a_thousand_requests_and_leak_nothing() {
    const EACH: usize = 112;
    let (points, origin, refusing) = (Points::new(), Origin::start(), RefusingNode::new());
    let gateway = start(&points, &origin, &refusing);
    // the slot of the request before is freed a moment after its end
    let ask = |target: &str| {
        wait_for("a slot", || {
            let mut client = gateway.client();
            let fields = [("connection", "close"), ("content-length", "4")];
            client.send(request("POST", target, &fields) + "body");
            let response = client.next();
            response.as_ref().is_none_or(|response| response.status != 429).then_some(response)
        })
    };
    for (point, target) in ANSWERED.into_iter().chain(CUT_OFF) {
        for _ in 0..EACH {
            points.order(point);
            let response = ask(target);
            // some failpoints come after the response
            wait_until(point, || points.has_happened(point));
            match ANSWERED.iter().any(|(name, _)| *name == point) {
                true => {
                    let response = response.unwrap();
                    assert_eq!(
                        (response.status, response.field("content-type")),
                        (500, Some("application/problem+json"))
                    );
                }
                false => assert!(response.is_none_or(|response| [200, 500, 502].contains(&response.status)), "{point}"),
            }
        }
        assert_eq!(ask("/").unwrap().status, 200, "{point}");
    }
    nothing_is_left(&gateway, EACH * (ANSWERED.len() + CUT_OFF.len()));
    let answered = gateway.metrics().value("tollgate_http_requests_total", &[("route", "all"), ("code", "500")]);
    // the first failpoint comes before the route is known, and two others are on other routes
    assert!(answered >= Some((EACH * (ANSWERED.len() - 3)) as f64), "{answered:?}");
    let log = gateway.process.stderr();
    assert!(log.contains("tollgate panicked, which is a bug") && log.contains("src/gateway.rs"), "{log}");
}

#[test]
fn requests_that_panic_while_they_wait_release_their_place() {
    let (points, origin, refusing) = (Points::new(), Origin::start(), RefusingNode::new());
    let gateway = start(&points, &origin, &refusing);
    for _ in 0..10 {
        points.order("waiting");
        // the first request need not wait, but one of the others does
        wait_until("a panic of one who waits", || {
            let response = gateway.get("/turns", &[]);
            assert!([200, 429, 500].contains(&response.status), "{response:?}");
            points.has_happened("waiting")
        });
    }
    wait_until("a place", || gateway.get("/turns", &[]).status == 200);
    nothing_is_left(&gateway, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_panics_leaves_the_others_of_its_connection_alone() {
    const EACH: usize = 12;
    let go_on = Arc::new(AtomicBool::new(false));
    let may_go_on = Arc::clone(&go_on);
    let origin = Origin::with(move |exchange| match exchange.path() {
        "/slow" => {
            exchange.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
            exchange.send(chunk(b"begun "))?;
            wait_until("the others", || may_go_on.load(Ordering::Relaxed));
            exchange.send(chunk(b"and ended"))?;
            exchange.send(chunk(b""))
        }
        _ => by_path(exchange),
    });
    let _released = SetOnDrop(&go_on);
    let (points, refusing) = (Points::new(), RefusingNode::new());
    let gateway = start(&points, &origin, &refusing);
    let mut client = Http2::connect_cleartext(gateway.address).await;
    let (slow, _) = client.begin(Method::GET, "http://test/slow", &[], true).await.unwrap();
    let slow = tokio::spawn(read(slow));
    origin.wait_for_count(1);
    for (point, target) in ANSWERED.into_iter().chain(CUT_OFF) {
        let url = format!("http://test{target}");
        for _ in 0..EACH {
            points.order(point);
            let response = loop {
                match client.post(&url, &[], Bytes::from_static(b"body")).await {
                    Ok(answer) if answer.status == 429 => {}
                    response => break response,
                }
            };
            wait_until(point, || points.has_happened(point));
            if ANSWERED.iter().any(|(name, _)| *name == point) {
                assert_eq!(response.unwrap().status, 500, "{point}");
            }
        }
    }
    go_on.store(true, Ordering::Relaxed);
    let slow = slow.await.unwrap().unwrap();
    assert_eq!((slow.status, &*slow.body), (200, &b"begun and ended"[..]));
    nothing_is_left(&gateway, EACH * (ANSWERED.len() + CUT_OFF.len()));
}

#[test]
fn background_tasks_go_on_after_a_panic() {
    let (points, origin) = (Points::new(), Origin::start());
    let config = |limit: u32| {
        let health = "health_check: { path: /healthz, every: 10ms, healthy_after: 1, unhealthy_after: 1 }";
        format!(
            "{}limits: {{ guard: {{ algorithm: quota_reset, limit: {limit}, window: 1d, key: all }} }}
routes: [{{ name: all, upstream: origin, limits: [guard] }}]\n",
            origin.upstream_with(health)
        )
    };
    let gateway = Gateway::start_with(&config(1), &[], &[points.environment()]);
    for point in ["sweep", "health_check", "health_check", "sweep"] {
        points.happens(point);
    }
    origin.set_healthy(false);
    gateway.wait_for_metric("tollgate_upstream_nodes_healthy", &[("upstream", "origin")], 0.0);
    origin.set_healthy(true);
    gateway.wait_for_metric("tollgate_upstream_nodes_healthy", &[("upstream", "origin")], 1.0);
    assert_eq!(gateway.get("/", &[]).status, 200);

    points.order("reload");
    gateway.rewrite(&config(3));
    gateway.wait_for_metric("tollgate_config_reloads_total", &[("result", "failure")], 1.0);
    assert_eq!(gateway.get("/", &[]).status, 429, "what was in force still is");
    points.order("load");
    let failed = gateway.reload();
    assert!(failed.status == 422 && failed.text().contains("panicked"), "what could not be read is said: {failed:?}");
    assert_eq!((gateway.reload().status, gateway.get("/", &[]).status), (200, 200));
    gateway.wait_for_metric("tollgate_panics_total", &[], 6.0);
}

#[test]
fn connections_are_accepted_after_a_panic() {
    let (points, origin) = (Points::new(), Origin::start());
    let gateway = Gateway::start_with(&format!("{}{ALL}", origin.upstream()), &[], &[points.environment()]);
    // every worker thread has its own listening socket
    for _ in 0..6 {
        points.order("accept");
        let mut client = gateway.client();
        client.send_request("GET", "/", &[]);
        assert!(client.next().is_none() && points.has_happened("accept"), "the connection that it happened on is over");
        assert_eq!(gateway.get("/", &[]).status, 200);
    }
    gateway.wait_for_metric("tollgate_panics_total", &[], 6.0);
}

#[test]
fn gateways_keep_in_touch_after_a_panic() {
    let (points, origin, nodes) = (Points::new(), Origin::start(), Nodes::new(2));
    let limit = "algorithm: quota_reset, limit: 5, window: 1d";
    let rest =
        format!("{}limits: {{ guard: {{ key: {{ header: x-key }}, {limit} }} }}\n{}", origin.upstream(), ALL_GUARDED);
    let gateways = [0, 1].map(|position| {
        let config = format!("{}{rest}", nodes.section(position, "timeout: 1s"));
        Gateway::start_with(&config, &[("cluster.key", SECRET)], &[points.environment()])
    });
    wait_for_members(&gateways, 2);
    points.happens("beat");
    points.happens("beat");
    wait_for_members(&gateways, 2);
    let panics =
        || gateways.iter().filter_map(|gateway| gateway.metrics().value("tollgate_panics_total", &[])).sum::<f64>();
    assert!((panics() - 2.0).abs() < 0.1);
    let admitted = (0..20).filter(|number| gateways[number % 2].get("/", &[("x-key", "a")]).status == 200).count();
    assert_eq!(admitted, 5);
}
