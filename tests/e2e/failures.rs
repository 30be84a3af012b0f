//! Responses for a failing upstream; the connection stays open where the gateway has read the whole request.

use crate::support::client::{Client, request};
use crate::support::http2::Http2;
use crate::support::wire::chunk;
use crate::support::{Gateway, Origin, RefusingNode, wait_until};

const LISTENER: &str = "http2: true";

/// `/dead` refuses connections, `/sick` has no healthy node, `/slow` does not answer in time; all other paths are answered.
fn config(origin: &Origin, sick: &Origin, dead: &RefusingNode) -> String {
    sick.set_healthy(false);
    let (origin, sick, dead) = (origin.node(), sick.node(), dead.node());
    let check = "health_check: { path: /healthz, every: 10ms, unhealthy_after: 1 }";
    format!(
        "upstreams: {{ origin: {{ nodes: [{origin}] }}, dead: {{ nodes: [{dead}] }}, sick: {{ nodes: [{sick}], {check} }}, \
         slow: {{ nodes: [{origin}], timeouts: {{ first_byte: 150ms }} }} }}\n\
         routes: [{{ name: all, upstream: origin }}, {{ name: dead, match: {{ path: /dead }}, upstream: dead }}, \
         {{ name: sick, match: {{ path: /sick }}, upstream: sick }}, {{ name: slow, match: {{ path: /slow }}, \
         upstream: slow, rewrite: {{ strip_prefix: /slow, add_prefix: /stall }} }}]\n"
    )
}

const FAILURES: [(&str, u16); 3] = [("/dead", 502), ("/sick", 503), ("/slow", 504)];

fn start(origin: &Origin, sick: &Origin, dead: &RefusingNode) -> Gateway {
    let gateway = Gateway::start(&config(origin, sick, dead));
    gateway.wait_for_metric("tollgate_upstream_nodes_healthy", &[("upstream", "sick")], 0.0);
    gateway
}

fn goes_on(client: &mut Client, what: &str) {
    assert_eq!(client.post("/echo", &[], b"next").text(), "next", "{what}");
}

#[test]
fn a_request_that_was_read_whole_leaves_its_connection_open() {
    let (origin, sick, dead) = (Origin::start(), Origin::start(), RefusingNode::new());
    let gateway = start(&origin, &sick, &dead);
    for (path, status) in FAILURES {
        let mut client = gateway.client();
        let kept = |response: &crate::support::Response, what: &str| {
            assert_eq!((response.status, response.whole), (status, true), "{path}: {what}");
            assert_ne!(response.field("connection"), Some("close"), "{path}: {what}");
        };
        kept(&client.get(path), "GET");
        goes_on(&mut client, path);
        kept(&client.post(path, &[], b"body"), "POST");
        goes_on(&mut client, path);
        // The gateway does not read a chunked body that it cannot send anywhere.
        if path == "/slow" {
            client.send(request("PUT", path, &[("transfer-encoding", "chunked")]));
            client.send([chunk("body"), chunk("")].concat());
            kept(&client.receive(), "chunks");
            goes_on(&mut client, path);
        }
        // The client sends both requests before the first is answered.
        client.send([request("GET", path, &[]), request("GET", "/behind", &[])].concat());
        kept(&client.receive(), "pipelined");
        assert_eq!(client.receive().status, 200, "{path}");
        let response = client.round_trip("GET", path, &[("connection", "close")]);
        assert_eq!((response.status, response.field("connection")), (status, Some("close")));
        assert!(client.is_ended(), "{path}");
    }
}

#[test]
fn a_failure_is_told_head_without_a_body() {
    let (origin, sick, dead) = (Origin::start(), Origin::start(), RefusingNode::new());
    let gateway = start(&origin, &sick, &dead);
    for (path, status) in FAILURES {
        let mut client = gateway.client();
        let response = client.round_trip("HEAD", path, &[]);
        assert_eq!(response.status, status, "{path}");
        assert!(response.number("content-length").is_some_and(|length| length > 0), "{path}: {response:?}");
        // The client would read a body as the next response.
        goes_on(&mut client, path);
    }
}

#[test]
fn a_request_that_is_not_read_whole_ends_its_connection() {
    let (origin, sick, dead) = (Origin::start(), Origin::start(), RefusingNode::new());
    let gateway = start(&origin, &sick, &dead);
    for (path, status) in [("/dead", 502), ("/sick", 503)] {
        let mut client = gateway.client();
        client.send(request("POST", path, &[("content-length", "3000000")]));
        client.send(vec![b'x'; 1_000_000]);
        let answer = client.receive();
        assert_eq!((answer.status, answer.field("connection")), (status, Some("close")), "{path}");
        client.send(request("GET", "/smuggled", &[]));
        assert!(client.next().is_none(), "{path}");
    }
    assert_eq!(origin.count(), 0);
}

#[test]
fn a_client_of_http_1_0_gets_no_interim_response() {
    let origin = Origin::with(|exchange| {
        exchange.send("HTTP/1.1 100 Continue\r\n\r\n")?;
        exchange.body()?;
        exchange.send("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n")?;
        exchange.send("HTTP/1.1 102 Processing\r\n\r\n")?;
        exchange.reply("200 OK", "", b"ok\n")
    });
    let gateway = Gateway::start(&crate::support::gateway::proxied(&origin, ""));
    for fields in ["", "content-length: 2\r\n", "content-length: 2\r\nexpect: 100-continue\r\n"] {
        let body = if fields.is_empty() { "" } else { "hi" };
        let response = gateway.round_trip_raw(format!("POST / HTTP/1.0\r\nhost: test\r\n{fields}\r\n{body}")).unwrap();
        assert_eq!((response.status, response.text().as_str()), (200, "ok\n"), "{fields}");
    }
    assert_eq!(gateway.get("/", &[]).status, 100, "others get them");
    assert!(origin.received().iter().all(|seen| seen.head.field("expect").is_none()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_requires_an_upgrade_says_which() {
    let origin = Origin::with(|exchange| {
        let fields = "connection: upgrade, x-hop\r\nupgrade: IRC/6.9, TLS/1.3\r\nx-hop: 1\r\n";
        exchange.reply(if exchange.path() == "/other" { "200 OK" } else { "426 Upgrade Required" }, fields, b"other\n")
    });
    let config = crate::support::gateway::proxied(&origin, "");
    let gateway = tokio::task::block_in_place(|| Gateway::start_listening(LISTENER, &config, &[]));
    tokio::task::block_in_place(|| {
        let response = gateway.get("/", &[]);
        assert_eq!((response.status, response.field("upgrade")), (426, Some("IRC/6.9, TLS/1.3")));
        assert_eq!(response.field("x-hop"), None);
        assert_eq!(gateway.get("/other", &[]).field("upgrade"), None);
    });
    let answer = Http2::connect_cleartext(gateway.address).await.get("http://test/", &[]).await.unwrap();
    assert_eq!((answer.status, answer.field("upgrade")), (426, None), "HTTP/2 has no such field");
}

#[tokio::test(flavor = "multi_thread")]

async fn the_date_of_the_upstream_is_passed_on() {
    const DATE: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    let origin = Origin::with(|exchange| match exchange.path() {
        "/without" => exchange.reply("200 OK", "", b"ok\n"),
        _ => exchange.reply("200 OK", &format!("date: {DATE}\r\n"), b"ok\n"),
    });
    let config = crate::support::gateway::proxied(&origin, "");
    let gateway = tokio::task::block_in_place(|| Gateway::start_listening(LISTENER, &config, &[]));
    let mut client = Http2::connect_cleartext(gateway.address).await;
    for (path, expected) in [("/", true), ("/without", false)] {
        let http1 = tokio::task::block_in_place(|| gateway.get(path, &[]));
        let http2 = client.get(&format!("http://test{path}"), &[]).await.unwrap();
        for date in [http1.field("date"), http2.field("date")] {
            assert_eq!(date == Some(DATE), expected, "{path}: {date:?}");
            assert!(date.is_some(), "a response without one gets one");
        }
    }
}

#[test]
fn a_connection_that_goes_on_after_a_failure_is_idle_like_others() {
    let (origin, sick, dead) = (Origin::start(), Origin::start(), RefusingNode::new());
    let config = format!("connections: {{ idle: 300ms }}\n{}", config(&origin, &sick, &dead));
    let gateway = Gateway::start(&config);
    for (path, status) in [("/dead", 502), ("/slow", 504)] {
        let mut client = gateway.client();
        assert_eq!(client.get(path).status, status);
        wait_until("the end of an idle connection", || client.is_ended());
        gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", path.trim_start_matches('/'))], 0.0);
    }
}
