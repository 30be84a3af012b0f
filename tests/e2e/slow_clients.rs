//! Slow clients: in sending a body, in reading, or idle. The gateway closes each at its deadline, on the first request of a
//! connection and on later ones; it serves a client that is only somewhat slow.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use parking_lot::Mutex;
use socket2::{Domain, Socket, Type};
use tokio::io::AsyncReadExt;
use tokio::time::{MissedTickBehavior, interval};

use crate::support::client::request;
use crate::support::gateway::{ALL_GUARDED, proxied};
use crate::support::http2::Http2;
use crate::support::tls::{Authority, connect};
use crate::support::wire::{Wire, chunk};
use crate::support::{Client, Gateway, Origin, PATIENCE, SetOnDrop, now, wait_until};

/// A body has to arrive at a KiB per second, and may fall behind by half a second.
const HASTE: &str = "request_body: { min_rate: 1KiB/s, grace: 500ms }\n";
const HASTE_ENDS: Duration = Duration::from_millis(450);
const A_MOMENT: Duration = Duration::from_millis(20);

/// Sends a piece every moment until the gateway answers or closes the connection.
fn drip(client: &mut Client, piece: &[u8]) {
    let began = now();
    client.wire.stream.set_read_timeout(Some(A_MOMENT)).unwrap();
    while !client.wire.has_more() {
        assert!(now() - began < PATIENCE, "a dripping body is taken for ever");
        client.send(piece);
    }
    client.wire.stream.set_read_timeout(Some(PATIENCE)).unwrap();
}

fn requests(gateway: &Gateway, code: &str) -> f64 {
    gateway.metrics().value("tollgate_http_requests_total", &[("route", "all"), ("code", code)]).unwrap_or_default()
}

#[test]
fn a_body_that_drips_is_ended_on_the_first_and_on_later_requests_of_a_connection() {
    let origin = Origin::start();
    let gateway = Gateway::start(&(proxied(&origin, "") + HASTE));
    let framings = [(("content-length", "100000"), b"x".to_vec()), (("transfer-encoding", "chunked"), chunk("x"))];
    for (framing, piece) in framings {
        for earlier in 0..3 {
            let mut client = gateway.client();
            for _ in 0..earlier {
                assert_eq!(client.post("/echo", &[], b"whole").text(), "whole");
            }
            let began = now();
            client.send(request("POST", "/echo", &[framing]));
            drip(&mut client, &piece);
            assert!(now() - began >= HASTE_ENDS);
            assert_eq!(client.receive().status, 408, "{framing:?}, after {earlier}");
            assert!(client.is_ended());
        }
    }
    wait_until("the requests to be counted", || requests(&gateway, "408") == 6.0);
    assert_eq!(gateway.get("/", &[]).status, 200);
}

#[test]
fn a_body_that_drips_after_its_answer_is_not_taken_for_ever() {
    let origin = Origin::with(|exchange| {
        exchange.reply("200 OK", "", b"early")?;
        exchange.body().map(drop)
    });
    let gateway = Gateway::start(&(proxied(&origin, "") + HASTE));
    let mut client = gateway.client();
    client.send(request("POST", "/", &[("content-length", "100000")]));
    assert_eq!(client.receive().text(), "early");
    drip(&mut client, b"x");
    assert!(client.is_ended());
    gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
}

#[test]
fn a_client_that_asks_before_it_sends_has_to_send_once_it_may() {
    let origin = Origin::start();
    let gateway = Gateway::start(&(proxied(&origin, "") + HASTE));
    let mut client = gateway.client();
    client.send(request("POST", "/echo", &[("content-length", "10"), ("expect", "100-continue")]));
    assert_eq!(client.receive().status, 100);
    assert_eq!(client.receive().status, 408);
    assert!(client.is_ended());
}

#[test]
fn slow_upstreams_are_not_blamed_on_clients() {
    const LENGTH: usize = 30 << 20;
    let (go_on, told) = channel::<()>();
    let told = Mutex::new(told);
    let origin = Origin::with(move |exchange| {
        told.lock().recv().unwrap();
        let length = exchange.body()?.len().to_string();
        exchange.reply("200 OK", "", length.as_bytes())
    });
    let gateway = Gateway::start(&(proxied(&origin, "") + "request_body: { min_rate: 1KiB/s, grace: 2s }\n"));
    let mut client = gateway.client();
    let mut writing = Wire::new(client.wire.stream.try_clone().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let head = request("POST", "/", &[("content-length", &LENGTH.to_string())]);
            writing.send(head).unwrap();
            writing.send(vec![b'x'; LENGTH]).unwrap();
        });
        let began = now();
        wait_until("more than the client has", || now() - began > Duration::from_millis(3500));
        go_on.send(()).unwrap();
        assert_eq!(client.receive().text(), LENGTH.to_string());
    });
}

#[test]
fn any_pace_will_do_where_that_is_said() {
    let origin = Origin::start();
    let gateway = Gateway::start(&(proxied(&origin, "timeouts: { idle: 1s }") + "request_body: { min_rate: off }\n"));
    let mut client = gateway.client();
    client.send(request("POST", "/echo", &[("content-length", "100000")]));
    drip(&mut client, b"");
    assert_eq!(client.receive().status, 408, "nothing at all is too little");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_body_drips_is_reset_and_others_go_on() {
    let origin = Origin::start();
    let gateway = Gateway::start_listening("http2: true", &(proxied(&origin, "") + HASTE), &[]);
    let mut client = Http2::connect_cleartext(gateway.address).await;
    for _ in 0..2 {
        let (response, mut sending) = client.begin(Method::POST, "http://test/echo", &[], false).await.unwrap();
        let began = now();
        let dripping = tokio::spawn(async move {
            let mut moments = interval(A_MOMENT);
            moments.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while sending.send_data(Bytes::from_static(b"x"), false).is_ok() {
                moments.tick().await;
            }
        });
        let ended = tokio::time::timeout(PATIENCE, response).await.expect("a dripping body is taken for ever");
        assert!(ended.is_err_and(|error| error.is_reset()));
        assert!(now() - began >= HASTE_ENDS);
        dripping.await.unwrap();
        assert_eq!(client.get("http://test/", &[]).await.unwrap().status, 200);
    }
    tokio::task::block_in_place(|| wait_until("the requests to be counted", || requests(&gateway, "408") == 2.0));
}

/// A connection with a tiny receive buffer.
pub fn narrow(to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(256).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.into()
}

/// Runs `read` until the gateway has no request in flight any more.
fn is_let_go(gateway: &Gateway, read: impl FnOnce(&AtomicBool) + Send) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| read(&over));
        let _over = SetOnDrop(&over);
        gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 1.0);
        gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
    });
}

#[test]
fn a_client_that_reads_almost_nothing_is_let_go() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, "timeouts: { idle: 500ms }"));
    for earlier in 0..2 {
        is_let_go(&gateway, |over| {
            let mut client = Client { wire: Wire::new(narrow(gateway.address)) };
            for _ in 0..earlier {
                assert_eq!(client.get("/").status, 200);
            }
            client.send_request("GET", "/bytes/10000000", &[]);
            while !over.load(Ordering::Relaxed) {
                let mut byte = [0];
                drop(std::io::Read::read(&mut client.wire.stream, &mut byte));
                std::thread::park_timeout(A_MOMENT);
            }
        });
    }
    assert_eq!(gateway.get("/", &[]).status, 200);
}

/// A client that sends requests and reads none of the denials, until its connection ends.
fn deaf(idle: &str) -> (Gateway, JoinHandle<()>) {
    let origin = Origin::start();
    let limit = "limits: { guard: { key: all, algorithm: fixed_window, limit: 1, window: 1d } }\n";
    let patience = format!("connections: {{ idle: {idle} }}\nrequest_head: {{ timeout: 1m }}\n");
    let gateway = Gateway::start(&format!("{patience}{limit}{}{ALL_GUARDED}", origin.upstream_with("")));
    assert_eq!(gateway.get("/", &[]).status, 200);
    let mut stream = narrow(gateway.address);
    let asking = std::thread::spawn(move || {
        let many = request("GET", "/", &[]).repeat(100);
        while stream.write_all(many.as_bytes()).is_ok() {}
    });
    (gateway, asking)
}

#[test]
fn a_client_that_reads_none_of_its_denials_is_let_go() {
    let (_patient, first) = deaf("1m");
    let (gateway, second) = deaf("500ms");
    wait_until("the gateway to end the connection", || second.is_finished());
    assert!(!first.is_finished(), "the time for an answer ended it, and not that for what is not taken");
    assert_eq!(gateway.get("/", &[]).status, 429);
}

/// Sends the same text on `count` narrow connections.
fn many(to: SocketAddr, count: usize, text: &str) -> Vec<TcpStream> {
    let sending = |_| {
        let mut stream = narrow(to);
        stream.write_all(text.as_bytes()).unwrap();
        stream
    };
    (0..count).map(sending).collect()
}

/// Waits until the upstream has sent something, `sent`, and no longer can.
pub fn wait_until_stopped(sent: &AtomicUsize) {
    wait_until("the upstream to be stopped", || {
        let before = sent.load(Ordering::Relaxed);
        std::thread::park_timeout(10 * A_MOMENT);
        before > 0 && before == sent.load(Ordering::Relaxed)
    });
}

#[test]
fn hints_without_end_are_read_no_faster_than_the_client_reads() {
    let sent = Arc::new(AtomicUsize::new(0));
    let parts = Arc::clone(&sent);
    let origin = Origin::with(move |exchange| {
        loop {
            exchange.send(format!("HTTP/1.1 103 Early Hints\r\nlink: </{}>\r\n\r\n", "a".repeat(8000)))?;
            parts.fetch_add(1, Ordering::Relaxed);
        }
    });
    let gateway = Gateway::start(&proxied(&origin, ""));
    let mut client = gateway.client();
    client.send_request("GET", "/", &[]);
    wait_until_stopped(&sent);
    let before = sent.load(Ordering::Relaxed);
    wait_until("the upstream to go on", || {
        assert_eq!(client.receive().status, 103);
        sent.load(Ordering::Relaxed) > before
    });
}

#[test]
fn little_is_read_ahead_for_those_who_do_not_read() {
    const READERS: usize = 100;
    let sent = Arc::new(AtomicUsize::new(0));
    let parts = Arc::clone(&sent);
    let origin = Origin::with(move |exchange| {
        let part = [b'x'; 64 << 10];
        exchange.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", 200 * part.len()))?;
        for _ in 0..200 {
            exchange.send(part)?;
            parts.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    });
    let gateway = Gateway::start(&proxied(&origin, ""));
    let before = gateway.process.memory();
    let _readers = many(gateway.address, READERS, &request("GET", "/", &[]));
    origin.wait_for_count(READERS);
    wait_until("all of them to get something", || sent.load(Ordering::Relaxed) >= READERS);
    wait_until_stopped(&sent);
    let grown = gateway.process.memory().saturating_sub(before) >> 10;
    assert!(grown < 400 * READERS as u64, "{grown} KiB for {READERS} who do not read");
}

#[test]
fn a_head_that_is_not_here_takes_little() {
    const HEADS: usize = 400;
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, ""));
    assert_eq!(gateway.get("/", &[]).status, 200);
    let before = gateway.process.memory();
    let _heads = many(gateway.address, HEADS, "GET / HTTP/1.1\r\nhost: test\r\nx-drip: ");
    wait_until("all of them to be let in", || gateway.process.descriptors() > HEADS);
    assert_eq!(gateway.get("/", &[]).status, 200);
    let grown = gateway.process.memory().saturating_sub(before) >> 10;
    assert!(grown < 16 * HEADS as u64, "{grown} KiB for {HEADS} heads that are not here");
}

#[test]
fn over_tls_too() {
    let (origin, authority) = (Origin::start(), Authority::new());
    let signed = authority.sign(&["a.test"]);
    let gateway = Gateway::start_listening(
        "tls: { certificates: [{ cert: a.pem, key: a.key }] }",
        &format!("connections: {{ max: 1 }}\n{}", proxied(&origin, "timeouts: { idle: 500ms }")),
        &[("a.pem", &signed.certificate), ("a.key", &signed.key)],
    );
    let runtime = tokio::runtime::Runtime::new().unwrap();
    is_let_go(&gateway, |over| {
        runtime.block_on(async {
            let mut stream = connect(gateway.address, authority.client_config(&[], None), "a.test").await.unwrap();
            let ask = request("GET", "/bytes/30000000", &[("host", "a.test")]);
            tokio::io::AsyncWriteExt::write_all(&mut stream, ask.as_bytes()).await.unwrap();
            let (mut byte, mut moments) = ([0], interval(A_MOMENT));
            moments.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while !over.load(Ordering::Relaxed) {
                drop(stream.read(&mut byte).await);
                moments.tick().await;
            }
            // a client that does not read the end of its connection does not keep the place either
            let served = || async {
                let mut other = connect(gateway.address, authority.client_config(&[], None), "a.test").await.ok()?;
                crate::support::tls::ask(&mut other, "/", "a.test").await.ok()
            };
            let began = now();
            while served().await.is_none() {
                assert!(now() - began < PATIENCE, "who does not read keeps its place");
                moments.tick().await;
            }
        });
    });
}

#[test]
fn a_connection_without_a_further_request_is_closed() {
    let origin = Origin::start();
    let gateway = Gateway::start(&format!("connections: {{ idle: 300ms }}\n{}", proxied(&origin, "")));
    let mut client = gateway.client();
    for _ in 0..2 {
        assert_eq!(client.get("/").status, 200);
    }
    assert!(client.is_ended());
}

#[test]
fn connections_that_name_no_version_of_http_are_closed() {
    let origin = Origin::start();
    let haste = "request_head: { timeout: 500ms }\nconnections: { idle: 500ms }\n";
    let gateway = Gateway::start_listening("http2: true", &(proxied(&origin, "") + haste), &[]);
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let mut silent: Vec<Client> = [0, 10, 18, 23, 24]
        .into_iter()
        .map(|length| {
            let mut client = gateway.client();
            client.send(&preface[..length]);
            client
        })
        .collect();
    let mut old = gateway.client();
    old.send("GET / HTTP/1.0\r\nhost: test\r\n\r\n");
    assert_eq!(old.receive().status, 200);
    for client in &mut silent {
        // an HTTP/2 server sends its settings before
        let ended = std::io::Read::read_to_end(&mut client.wire.stream, &mut Vec::new());
        assert!(ended.is_ok_and(|length| length < 1000), "a connection outlives its deadline");
    }
}

#[test]
fn preambles_of_connections_have_deadlines() {
    let (origin, authority) = (Origin::start(), Authority::new());
    let signed = authority.sign(&["a.test"]);
    let files = [("a.pem", &*signed.certificate), ("a.key", &*signed.key)];
    let tls = "tls: { certificates: [{ cert: a.pem, key: a.key }] }";
    // a TLS record of 512 bytes, and the signature of version 2 of the PROXY protocol
    let hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    for (listener, beginning) in [
        (tls, &hello[..]),
        ("proxy_protocol: [127.0.0.1]", b"PROXY TCP4 "),
        ("proxy_protocol: [127.0.0.1]", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x02\x00"),
    ] {
        let haste = format!("request_head: {{ timeout: 500ms }}\n{}", proxied(&origin, ""));
        let gateway = Gateway::start_listening(listener, &haste, &files);
        let began = now();
        let mut client = gateway.client();
        client.send(beginning);
        drip(&mut client, b"1");
        assert!(now() - began >= HASTE_ENDS, "{listener}: it is not the deadline that ends it");
        assert!(client.is_ended(), "{listener}");
    }
    assert_eq!(origin.count(), 0);
}
