//! Upstream connections that are kept for the next request, and upstreams that close them.

use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::support::gateway::{ALL, proxied};
use crate::support::origin::upstream;
use crate::support::servers::{Kind, Server};
use crate::support::wire::{Framing, Wire, chunk};
use crate::support::{Client, Gateway, Origin, PATIENCE, now, pattern, together, wait_until};

/// An upstream that sends this `keep_alive` field. It closes a connection that was idle for at least `idle` when the next
/// request arrives, like a server whose idle timeout expires while the request is on its way.
fn closing_after(idle: Duration, keep_alive: &'static str) -> Origin {
    let answered: Mutex<HashMap<usize, Instant>> = Mutex::default();
    Origin::with(move |exchange| {
        exchange.body()?;
        let since = answered.lock().get(&exchange.connection()).copied();
        if since.is_some_and(|since| now() - since >= idle) {
            exchange.keep = false;
            return Ok(());
        }
        exchange.reply("200 OK", keep_alive, b"ok\n")?;
        answered.lock().insert(exchange.connection(), now());
        Ok(())
    })
}

fn wait_since(began: Instant, time: Duration) {
    wait_until("the moment at which the upstream closes", || now() - began >= time);
}

fn post(client: &mut Client, number: usize) {
    let response = client.post("/", &[], b"once");
    assert_eq!(response.status, 200, "request {number}: {response:?}");
}

/// Posts three times on one connection of the client, waits for `idle`, and posts three times again.
fn post_after(gateway: &Gateway, idle: Duration) {
    let mut client = gateway.client();
    (0..3).for_each(|number| post(&mut client, number));
    let began = now();
    wait_since(began, idle);
    (3..6).for_each(|number| post(&mut client, number));
}

#[test]
fn a_connection_is_kept_for_less_than_the_five_seconds_of_common_servers() {
    let origin = closing_after(Duration::from_secs(5), "");
    let gateway = Gateway::start(&proxied(&origin, ""));
    post_after(&gateway, Duration::from_secs(5));
    assert_eq!(origin.count(), 6);
}

#[test]
fn a_connection_is_kept_for_as_long_as_the_setting_says() {
    let origin = closing_after(Duration::from_millis(400), "");
    let gateway = Gateway::start(&proxied(&origin, "timeouts: { keep_alive: 200ms }"));
    post_after(&gateway, Duration::from_millis(400));
    let long = Gateway::start(&proxied(&origin, "timeouts: { keep_alive: 1m }"));
    let mut client = long.client();
    post(&mut client, 0);
    wait_since(now(), Duration::from_millis(400));
    assert_eq!(client.post("/", &[], b"once").status, 502, "a connection is not kept for a minute");
}

#[test]
fn a_connection_that_is_not_to_be_kept_serves_one_request() {
    let origin = closing_after(Duration::ZERO, "");
    let gateway = Gateway::start(&proxied(&origin, "timeouts: { keep_alive: 0s }"));
    let mut client = gateway.client();
    (0..20).for_each(|number| post(&mut client, number));
    let connections: Vec<usize> = origin.received().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections, (0..20).collect::<Vec<_>>());
}

#[test]
fn an_upstream_that_says_how_long_it_keeps_connections_is_believed() {
    let origin = closing_after(Duration::from_secs(2), "keep-alive: timeout=2, max=100\r\n");
    let gateway = Gateway::start(&proxied(&origin, ""));
    post_after(&gateway, Duration::from_secs(2));
    let seen = origin.received();
    assert_eq!(seen[1].connection, seen[2].connection, "it is kept for a second all the same");
    assert_eq!(seen[3].connection, seen[5].connection);
}

#[test]
fn an_upstream_that_keeps_connections_for_a_second_or_less_gets_one_for_each_request() {
    for said in ["keep-alive: timeout=1\r\n", "Keep-Alive: max=5, Timeout = 0\r\n"] {
        let origin = closing_after(Duration::ZERO, said);
        let gateway = Gateway::start(&proxied(&origin, ""));
        let mut client = gateway.client();
        (0..10).for_each(|number| post(&mut client, number));
        assert_eq!(origin.count(), 10, "{said}");
    }
}

#[test]
fn in_front_of_node_no_request_meets_a_connection_that_is_being_closed() {
    let server = Server::start(Kind::Node, false);
    let gateway = Gateway::start(&format!("{}{ALL}", upstream(&[server.node()], "")));
    let began = now();
    together(48, |number| post(&mut gateway.client(), number));
    // Node closes after 5 s, newer versions after 6 s. A busy Node closes before it reads the bytes that have arrived
    // meanwhile.
    let busy = (now() - began).as_millis() + 2500;
    wait_since(began, Duration::from_millis(4500));
    let mut busy_client = Client::connect(server.address);
    busy_client.send_request("GET", &format!("/busy/{busy}"), &[]);
    let statuses = together(48, |_| {
        let mut client = gateway.client();
        wait_since(began, Duration::from_millis(4600));
        client.post("/", &[], b"once").status
    });
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
}

/// An upstream that, once the flag is set, closes each older connection when a request arrives on it.
fn forgetting() -> (Arc<AtomicBool>, Origin) {
    let forgets = Arc::new(AtomicBool::new(false));
    let (told, known) = (Arc::clone(&forgets), Mutex::new(Vec::new()));
    let origin = Origin::with(move |exchange| {
        exchange.body()?;
        let connection = exchange.connection();
        let mut known = known.lock();
        if told.load(Ordering::Relaxed) && known.contains(&connection) {
            exchange.keep = false;
            return Ok(());
        }
        known.push(connection);
        drop(known);
        if exchange.path() == "/together" {
            wait_until("all of them", || exchange.received_count() >= 8);
        }
        exchange.reply("200 OK", "", b"ok\n")
    });
    (forgets, origin)
}

#[test]
fn a_request_that_met_a_closed_connection_is_tried_again_on_a_new_one_alone() {
    let (forgets, origin) = forgetting();
    let gateway = Gateway::start(&proxied(&origin, ""));
    let clients = together(8, |_| {
        let mut client = gateway.client();
        assert_eq!(client.get("/together").status, 200);
        client
    });
    forgets.store(true, Ordering::Relaxed);
    for (number, mut client) in clients.into_iter().enumerate() {
        assert_eq!(client.get("/").status, 200, "{number}");
    }
    assert!(origin.received().iter().filter(|seen| seen.target() == "/").count() <= 16, "each is tried again once");
}

#[test]
fn a_post_that_meets_a_closed_connection_is_not_sent_again() {
    let (forgets, origin) = forgetting();
    let gateway = Gateway::start(&proxied(&origin, ""));
    let mut client = gateway.client();
    post(&mut client, 0);
    forgets.store(true, Ordering::Relaxed);
    assert_eq!(client.post("/pay", &[], b"5").status, 502);
    assert_eq!(origin.received().iter().filter(|seen| seen.target() == "/pay").count(), 1);
}

#[test]
fn a_connection_that_its_upstream_has_closed_is_not_used() {
    let (closed, closing) = channel();
    let origin = Origin::with(move |exchange| {
        exchange.body()?;
        exchange.keep = false;
        exchange.reply("200 OK", "", b"ok\n")?;
        exchange.wire.close();
        closed.send(()).map_err(std::io::Error::other)
    });
    let gateway = Gateway::start(&proxied(&origin, ""));
    let mut client = gateway.client();
    // neither may be sent twice: the method of one is not idempotent, and the body of the other is too large
    for (method, length) in [("POST", 4), ("PUT", 100_000)] {
        for number in 0..50 {
            let response = client.round_trip_with_body(method, "/", &[], &pattern(length));
            assert_eq!(response.status, 200, "{method} {number}: {response:?}");
            closing.recv_timeout(PATIENCE).unwrap();
        }
    }
}

/// An upstream that answers a first request, takes the head and the first part of a second one, and resets the connection
/// on command. Returns the bytes of the whole next connection.
fn resetting(listener: &TcpListener, first_part: usize, arrived: &Sender<()>, reset: &Receiver<Sender<()>>) -> Vec<u8> {
    let mut wire = Wire::new(listener.accept().unwrap().0);
    wire.head().unwrap().unwrap();
    wire.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
    let mut framing = Framing::of_request(&wire.head().unwrap().unwrap());
    let mut came = 0;
    while came < first_part {
        came += wire.part(&mut framing).unwrap().unwrap().len();
    }
    arrived.send(()).unwrap();
    let done = reset.recv().unwrap();
    socket2::SockRef::from(&wire.stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(wire);
    done.send(()).unwrap();
    let mut wire = Wire::new(listener.accept().unwrap().0);
    let head = wire.head().unwrap().unwrap();
    let (body, is_whole) = wire.content(Framing::of_request(&head));
    assert!(is_whole);
    wire.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
    // until the gateway closes the connection
    [body, wire.content(Framing::UntilClose).0].concat()
}

#[test]
fn a_body_whose_connection_is_reset_in_its_middle_is_sent_again_once() {
    for (first_part, length, is_chunked) in
        [(1, 100, false), (1000, 20_000, true), (1000, 60_000, false), (40_000, 60_000, false), (40_000, 60_000, true)]
    {
        let framed = |part: &[u8]| if is_chunked { chunk(part) } else { part.to_vec() };
        let (listener, body) = (TcpListener::bind("127.0.0.1:0").unwrap(), pattern(length));
        let node = format!("\"{}\"", listener.local_addr().unwrap());
        let mut gateway = Gateway::start(&format!("workers: 1\n{}{ALL}", upstream(&[node], "")));
        let ((arrived, arriving), (reset, resets)) = (channel(), channel());
        let received = std::thread::spawn(move || resetting(&listener, first_part, &arrived, &resets));
        let mut client = gateway.client();
        assert_eq!(client.get("/").status, 200);
        let digits = length.to_string();
        let field = if is_chunked { ("transfer-encoding", "chunked") } else { ("content-length", digits.as_str()) };
        client.send_request("PUT", "/", &[field]);
        client.send(framed(&body[..first_part]));
        arriving.recv_timeout(PATIENCE).unwrap();
        // the gateway then sees the reset and the rest of the body at the same time
        gateway.process.signal("STOP");
        let stat = format!("/proc/{}/stat", gateway.process.id());
        wait_until("the gateway to stop", || std::fs::read_to_string(&stat).unwrap().contains(") T "));
        client.send([framed(&body[first_part..]), framed(b"")].concat());
        let (done, is_done) = channel();
        reset.send(done).unwrap();
        is_done.recv_timeout(PATIENCE).unwrap();
        gateway.process.signal("CONT");
        assert_eq!(client.receive().status, 200);
        gateway.end("TERM");
        let received = received.join().unwrap();
        assert!(received == body, "{} bytes of {length} with {first_part} at first", received.len());
    }
}
