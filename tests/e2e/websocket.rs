//! WebSockets on routes that allow them: a tunnel holds the slots of its request.

use socket2::{Domain, Socket, Type};

use crate::support::client::request;
use crate::support::origin::upstream;
use crate::support::wire::{Framing, Wire};
use crate::support::{Client, Gateway, Origin, pattern, wait_until};

const ASKS: &[(&str, &str)] = &[
    ("connection", "Upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
];
const SWITCHES: &str =
    "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\nx-cost: 7\r\n\r\n";

/// Switches protocols if the request asks for it, and echoes from then on; counts as one request.
fn echo() -> Origin {
    Origin::with(|exchange| {
        exchange.keep = false;
        if exchange.head.field("upgrade").is_none() {
            return exchange.reply("200 OK", "", b"no tunnel");
        }
        exchange.send(SWITCHES)?;
        let mut framing = Framing::UntilClose;
        while let Some(part) = exchange.wire.part(&mut framing)? {
            exchange.send(part)?;
        }
        Ok(())
    })
}

fn start(origin: &Origin, timeouts: &str) -> Gateway {
    let upstream = upstream(&[origin.node()], timeouts);
    Gateway::start(&format!(
        "{upstream}limits: {{ guard: {{ algorithm: concurrency, limit: 1, key: all }} }}
routes:
  - {{ name: tunnels, match: {{ path: /tunnel }}, upstream: origin, limits: [guard], upgrade: [websocket] }}
  - {{ name: all, upstream: origin }}
"
    ))
}

fn open(gateway: &Gateway) -> Client {
    open_on(gateway.client())
}

fn open_on(mut client: Client) -> Client {
    client.send_request("GET", "/tunnel", ASKS);
    let head = client.wire.head().unwrap().unwrap();
    assert_eq!((head.word(1), head.field("upgrade")), ("101", Some("websocket")), "{head:?}");
    client
}

fn echoes(client: &mut Client, text: &str) {
    client.send(text);
    let mut came = Vec::new();
    while came.len() < text.len() {
        came.extend(client.wire.part(&mut Framing::UntilClose).unwrap().expect("an echo"));
    }
    assert_eq!(came, text.as_bytes());
}

#[test]
fn a_tunnel_holds_its_slot_until_it_ends() {
    let origin = echo();
    let gateway = start(&origin, "");
    for _ in 0..5 {
        let mut tunnel = open(&gateway);
        echoes(&mut tunnel, "one");
        assert_eq!(gateway.get("/tunnel", ASKS).status, 429);
        echoes(&mut tunnel, "two, and more");
        drop(tunnel);
        gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "tunnels")], 0.0);
    }
    let switched = gateway.metrics().value("tollgate_http_requests_total", &[("route", "tunnels"), ("code", "101")]);
    assert_eq!(switched, Some(5.0));
}

#[test]
fn an_answer_that_comes_at_once_opens_the_tunnel_every_time() {
    let origin = echo();
    let gateway = start(&origin, "");
    for round in 0..200 {
        let mut tunnel = open(&gateway);
        echoes(&mut tunnel, &format!("round {round}"));
        drop(tunnel);
        gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "tunnels")], 0.0);
    }
}

#[test]
fn where_no_route_allows_it_a_request_stays_a_request() {
    let origin = echo();
    let gateway = start(&origin, "");
    let mut client = gateway.client();
    let response = client.round_trip("GET", "/other", ASKS);
    assert_eq!((response.status, response.text().as_str()), (200, "no tunnel"));
    // the gateway does not forward another upgrade either
    let other = gateway.get("/tunnel", &[("connection", "Upgrade"), ("upgrade", "h2c")]);
    assert_eq!((other.status, other.text().as_str()), (200, "no tunnel"));
    assert!(origin.received().iter().all(|seen| seen.head.field("upgrade").is_none()));
}

#[test]
fn an_upstream_that_switches_to_another_protocol_gets_no_tunnel() {
    for protocol in ["upgrade: foo\r\n", ""] {
        let head = SWITCHES.replace("upgrade: websocket\r\n", protocol);
        let origin = Origin::with(move |exchange| exchange.send(&head));
        let gateway = start(&origin, "");
        assert_eq!(gateway.get("/tunnel", ASKS).status, 502, "{protocol}");
    }
}

#[test]
fn bytes_behind_an_upgrade_are_not_forwarded_before_the_tunnel() {
    // An upstream that does not switch, and would read the following bytes as a request.
    let origin = Origin::with(|exchange| exchange.reply("200 OK", "", b"no"));
    let gateway = start(&origin, "");
    let mut client = gateway.client();
    client.send([request("GET", "/tunnel", ASKS), request("GET", "/smuggled", &[])].concat());
    assert_eq!(client.receive().status, 200);
    // The gateway handles the rest as a request of its own.
    assert_eq!(client.receive().status, 200);
    assert_eq!(origin.count(), 2);
    wait_until("both to be known", || {
        let metrics = gateway.metrics();
        let counted: f64 = metrics.all("tollgate_http_requests_total").iter().map(|sample| sample.value).sum();
        assert!(counted <= 2.0, "{counted}");
        counted == 2.0
    });
}

#[test]
fn bytes_sent_too_early_wait_for_the_tunnel() {
    let origin = echo();
    let gateway = start(&origin, "");
    for round in 0..20 {
        let mut tunnel = gateway.client();
        let early = format!("early {round}");
        tunnel.send(request("GET", "/tunnel", ASKS) + &early);
        assert_eq!(tunnel.wire.head().unwrap().unwrap().word(1), "101");
        let mut came = Vec::new();
        while came.len() < early.len() {
            came.extend(tunnel.wire.part(&mut Framing::UntilClose).unwrap().expect("an echo"));
        }
        assert_eq!(came, early.as_bytes());
        echoes(&mut tunnel, "and late");
        drop(tunnel);
        gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "tunnels")], 0.0);
    }
}

#[test]
fn a_tunnel_in_which_nothing_is_said_ends() {
    let origin = echo();
    let gateway = start(&origin, "timeouts: { idle: 300ms, first_byte: 300ms }");
    let mut tunnel = open(&gateway);
    echoes(&mut tunnel, "one");
    assert!(tunnel.is_ended());
    gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "tunnels")], 0.0);
}

#[test]
fn a_tunnel_is_charged_by_the_response_that_opened_it() {
    let origin = echo();
    let gateway = Gateway::start(&format!(
        "{}limits:
  failures: {{ algorithm: token_bucket, rate: 1/30d, burst: 9, key: all, charge: {{ when: response, if_status: [401] }} }}
  tokens: {{ algorithm: token_bucket, rate: 1/30d, burst: 9, key: all, cost: {{ response_header: x-cost, max: 9 }},
    charge: {{ when: response, reserve: 1 }} }}
routes: [{{ name: tunnels, upstream: origin, limits: [failures, tokens], upgrade: [websocket] }}]
",
        upstream(&[origin.node()], "")
    ));
    let mut tunnel = open(&gateway);
    echoes(&mut tunnel, "x-cost: 9");
    drop(tunnel);
    for (limit, outcome, tokens) in [("failures", "refunded", 1.0), ("tokens", "debited", 6.0)] {
        let labels = [("limit", limit), ("plan", "none"), ("outcome", outcome)];
        gateway.wait_for_metric("tollgate_limit_tokens_total", &labels, tokens);
    }
}

#[test]
fn bytes_that_come_with_the_answer_that_opens_a_tunnel_are_charged_too() {
    let origin = Origin::with(|exchange| {
        exchange.keep = false;
        exchange.send([SWITCHES.as_bytes(), &pattern(3000)].concat())
    });
    let limit = "{ algorithm: token_bucket, rate: 1/30d, burst: 9, key: all, cost: { response_bytes: 1KiB }, charge: { when: response } }";
    let gateway = Gateway::start(&format!(
        "{}limits: {{ bytes: {limit} }}
routes: [{{ name: tunnels, upstream: origin, limits: [bytes], upgrade: [websocket] }}]
",
        upstream(&[origin.node()], "")
    ));
    let mut tunnel = open(&gateway);
    while tunnel.wire.part(&mut Framing::UntilClose).unwrap().is_some() {}
    let labels = [("limit", "bytes"), ("plan", "none"), ("outcome", "debited")];
    gateway.wait_for_metric("tollgate_limit_tokens_total", &labels, 2.0);
}

#[test]
fn the_answer_that_opens_a_tunnel_has_the_quota_and_the_fields_of_its_route() {
    let origin = echo();
    let edits = "response_headers: { remove: [x-cost], set: { x-set: \"1\" } }";
    let gateway = Gateway::start(&format!(
        "{}limits: {{ guard: {{ algorithm: gcra, rate: 1/h, burst: 9, key: all }} }}
routes: [{{ name: tunnels, upstream: origin, limits: [guard], upgrade: [websocket], {edits} }}]
",
        upstream(&[origin.node()], "")
    ));
    let mut client = gateway.client();
    client.send_request("GET", "/tunnel", ASKS);
    let head = client.wire.head().unwrap().unwrap();
    let fields = ["upgrade", "connection", "x-ratelimit-remaining", "x-set", "x-cost"].map(|name| head.field(name));
    assert_eq!(fields, [Some("websocket"), Some("upgrade"), Some("8"), Some("1"), None], "{head:?}");
    echoes(&mut client, "one");
}

#[test]
fn the_end_of_a_tunnel_reaches_a_client_that_still_sends() {
    const LENGTH: usize = 300_000;
    let origin = Origin::with(|exchange| {
        exchange.keep = false;
        exchange.send(SWITCHES)?;
        exchange.send(pattern(LENGTH))
    });
    let gateway = start(&origin, "");
    // when the tunnel ends, a part of the bytes waits in the gateway's socket until the client reads
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(64 << 10).unwrap();
    socket.connect(&gateway.address.into()).unwrap();
    let mut tunnel = open_on(Client { wire: Wire::new(socket.into()) });
    let in_flight = || gateway.metrics().value("tollgate_http_requests_in_flight", &[("route", "tunnels")]);
    let mut came = Vec::new();
    loop {
        if in_flight() == Some(0.0) {
            tunnel.send("ping");
        }
        match tunnel.wire.part(&mut Framing::UntilClose).unwrap() {
            Some(part) => came.extend(part),
            None => break,
        }
    }
    assert!(came == pattern(LENGTH), "{} bytes", came.len());
}
