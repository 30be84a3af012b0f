//! Bodies arrive as the sender sent them: whole, and part by part while the sender still writes.

use std::sync::mpsc::{Receiver, Sender, channel};

use parking_lot::Mutex;

use crate::support::client::request;
use crate::support::gateway::proxied;
use crate::support::wire::{Framing, chunk};
use crate::support::{Client, Exchange, Gateway, Origin, PATIENCE, pattern};

const LARGE: usize = 10 << 20;

/// Sends a request with `body` and reads the response at the same time, because both can be larger than the buffers in
/// between.
fn echo(gateway: &Gateway, head: &str, body: &[u8], in_chunks: bool) -> crate::support::Response {
    let mut client = gateway.client();
    client.send(head);
    let mut writer = client.wire.stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for part in body.chunks(100_000) {
                let bytes = if in_chunks { chunk(part) } else { part.to_vec() };
                std::io::Write::write_all(&mut writer, &bytes).unwrap();
            }
            if in_chunks {
                std::io::Write::write_all(&mut writer, &chunk(b"")).unwrap();
            }
        });
        client.receive()
    })
}

#[test]
fn ten_megabytes_arrive_intact_both_ways_with_a_length() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, ""));
    let body = pattern(LARGE);
    let head = request("POST", "/echo", &[("content-length", &LARGE.to_string())]);
    let response = echo(&gateway, &head, &body, false);
    assert_eq!((response.status, response.whole), (200, true));
    assert_eq!(response.number("content-length"), Some(LARGE as u64));
    assert!(response.body == body);
    let seen = origin.only();
    assert_eq!(seen.head.field("content-length"), Some(LARGE.to_string().as_str()));
    assert!(seen.body == body);
}

#[test]
fn ten_megabytes_arrive_intact_both_ways_in_chunks() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, ""));
    let body = pattern(LARGE);
    let response = echo(&gateway, &request("POST", "/echo", &[("transfer-encoding", "chunked")]), &body, true);
    assert_eq!((response.status, response.whole), (200, true));
    assert_eq!(response.field("transfer-encoding"), Some("chunked"));
    assert!(response.body == body);
    let seen = origin.only();
    assert_eq!(seen.head.field("content-length"), None);
    assert!(seen.body == body);
}

#[test]
fn many_large_responses_at_once_are_not_mixed_up() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, ""));
    crate::support::together(8, |number| {
        let length = 1_000_000 + number;
        let kind = if number % 2 == 0 { "bytes" } else { "chunked" };
        let response = gateway.get(&format!("/{kind}/{length}"), &[]);
        assert!(response.whole && response.body == pattern(length), "{kind} {length}");
    });
}

#[test]
fn a_body_that_ends_with_the_connection_is_whole() {
    let origin = Origin::with(|exchange| {
        exchange.keep = false;
        exchange.send("HTTP/1.1 200 OK\r\n\r\n")?;
        exchange.send(pattern(300_000))
    });
    let gateway = Gateway::start(&proxied(&origin, ""));
    let response = gateway.get("/", &[]);
    assert_eq!(response.status, 200);
    assert!(response.whole && response.body == pattern(300_000));
}

/// An upstream that sends the bytes that the test hands it, and reports the bytes that it read.
fn on_command(head: &'static str, framed: fn(&[u8]) -> Vec<u8>) -> (Origin, Sender<&'static [u8]>) {
    let (command, commands) = channel::<&'static [u8]>();
    let commands = Mutex::new(commands);
    let origin = Origin::with(move |exchange: &mut Exchange<'_>| {
        exchange.send(head)?;
        exchange.keep = false;
        while let Ok(bytes) = commands.lock().recv() {
            exchange.send(framed(bytes))?;
            if bytes.is_empty() {
                break;
            }
        }
        Ok(())
    });
    (origin, command)
}

/// Reads until `wanted` has arrived; nothing else may arrive.
fn expect(client: &mut Client, framing: &mut Framing, wanted: &[u8]) {
    let mut come = Vec::new();
    while come.len() < wanted.len() {
        come.extend(client.wire.part(framing).unwrap().expect("the body is over"));
    }
    assert_eq!(come, wanted);
}

#[test]
fn a_response_in_chunks_arrives_as_it_is_written() {
    let (origin, command) = on_command("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", |bytes| chunk(bytes));
    let gateway = Gateway::start(&proxied(&origin, ""));
    let mut client = gateway.client();
    client.send_request("GET", "/", &[]);
    let head = client.wire.head().unwrap().unwrap();
    let mut framing = Framing::of_response(&head, false);
    assert_eq!(framing, Framing::Chunks);
    // The upstream writes the next part only after the client has read the one before.
    for part in [&b"one"[..], b"two, a little longer", b"3"] {
        command.send(part).unwrap();
        expect(&mut client, &mut framing, part);
    }
    command.send(b"").unwrap();
    assert_eq!(client.wire.part(&mut framing).unwrap(), None);
}

#[test]
fn events_arrive_as_they_are_written() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n\r\n";
    let (origin, command) = on_command(HEAD, <[u8]>::to_vec);
    let gateway = Gateway::start(&proxied(&origin, ""));
    let mut client = gateway.client();
    client.send_request("GET", "/", &[("accept", "text/event-stream")]);
    let head = client.wire.head().unwrap().unwrap();
    assert_eq!(head.field("content-type"), Some("text/event-stream"));
    let mut framing = Framing::of_response(&head, false);
    for event in [&b"data: 1\n\n"[..], b"event: tick\ndata: 2\n\n", b": ping\n\n"] {
        command.send(event).unwrap();
        expect(&mut client, &mut framing, event);
    }
    drop(command);
    assert_eq!(client.wire.part(&mut framing).unwrap(), None);
}

/// An upstream that reports each part of a request's body as it arrives.
fn reporting() -> (Origin, Receiver<Vec<u8>>) {
    let (report, reports) = channel();
    let report = Mutex::new(report);
    let origin = Origin::with(move |exchange: &mut Exchange<'_>| {
        while let Some(part) = exchange.part()? {
            report.lock().send(part).unwrap();
        }
        exchange.reply("200 OK", "", b"thanks\n")
    });
    (origin, reports)
}

#[test]
fn a_request_body_reaches_the_upstream_as_it_is_written() {
    let (origin, reports) = reporting();
    let gateway = Gateway::start(&proxied(&origin, ""));
    let parts = [&b"one"[..], b"two, a little longer", b"3"];
    let length = parts.concat().len().to_string();
    for (framing, in_chunks) in [(("content-length", length.as_str()), false), (("transfer-encoding", "chunked"), true)]
    {
        let mut client = gateway.client();
        client.send(request("POST", "/", &[framing]));
        for part in parts {
            client.send(if in_chunks { chunk(part) } else { part.to_vec() });
            let mut come = Vec::new();
            while come.len() < part.len() {
                come.extend(reports.recv_timeout(PATIENCE).unwrap());
            }
            assert_eq!(come, part);
        }
        if in_chunks {
            client.send(chunk(b""));
        }
        assert_eq!(client.receive().text(), "thanks\n");
    }
    assert_eq!(origin.count(), 2);
}

#[test]
fn a_response_can_begin_before_the_request_is_over() {
    let origin = Origin::with(|exchange| {
        exchange.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
        while let Some(part) = exchange.part()? {
            exchange.send(chunk(part))?;
        }
        exchange.send(chunk(b""))
    });
    let gateway = Gateway::start(&proxied(&origin, ""));
    let mut client = gateway.client();
    client.send(request("POST", "/", &[("transfer-encoding", "chunked")]));
    client.send(chunk("ping"));
    let head = client.wire.head().unwrap().unwrap();
    let mut framing = Framing::of_response(&head, false);
    expect(&mut client, &mut framing, b"ping");
    client.send(chunk("pong"));
    expect(&mut client, &mut framing, b"pong");
    client.send(chunk(b""));
    assert_eq!(client.wire.part(&mut framing).unwrap(), None);
}

#[test]
fn responses_without_a_body_keep_the_connection() {
    let origin = Origin::with(|exchange| match exchange.path() {
        "/none" => exchange.send("HTTP/1.1 204 No Content\r\n\r\n"),
        "/same" => exchange.send("HTTP/1.1 304 Not Modified\r\netag: \"1\"\r\ncontent-length: 77\r\n\r\n"),
        "/empty" => exchange.reply("200 OK", "", b""),
        _ => exchange.reply("200 OK", "", b"something"),
    });
    let gateway = Gateway::start(&proxied(&origin, ""));
    let mut client = gateway.client();
    for _ in 0..2 {
        assert_eq!(client.get("/none").status, 204);
        assert_eq!(client.get("/same").status, 304);
        assert_eq!(client.get("/empty").status, 200);
        let head = client.round_trip("HEAD", "/", &[]);
        assert_eq!((head.status, head.number("content-length")), (200, Some(9)));
        assert_eq!(client.get("/").text(), "something");
    }
}

#[test]
fn hints_before_a_response_are_passed_on() {
    let origin = Origin::with(|exchange| {
        exchange.send("HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\n\r\n")?;
        exchange.reply("200 OK", "", b"ok\n")
    });
    let gateway = Gateway::start(&proxied(&origin, ""));
    let mut client = gateway.client();
    client.send_request("GET", "/", &[]);
    let mut response = client.receive();
    if response.status == 103 {
        assert_eq!(response.field("link"), Some("</a.css>"));
        response = client.receive();
    }
    assert_eq!((response.status, response.text().as_str()), (200, "ok\n"));
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "all"), ("code", "200")], 1.0);
}

#[test]
fn a_client_of_http_1_0_gets_what_it_understands() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, ""));
    for path in ["/chunked/100000", "/bytes/100000"] {
        let response = gateway.round_trip_raw(format!("GET {path} HTTP/1.0\r\nhost: test\r\n\r\n")).unwrap();
        assert_eq!((response.status, response.field("transfer-encoding")), (200, None), "{path}");
        assert!(response.whole && response.body == pattern(100_000), "{path}");
    }
    let limit = "{ algorithm: gcra, rate: 1/h, burst: 1, key: all }";
    let gateway = Gateway::start(&crate::support::gateway::limited(&origin, limit));
    let statuses = [(); 2].map(|()| gateway.round_trip_raw("GET / HTTP/1.0\r\nhost: test\r\n\r\n").unwrap().status);
    assert_eq!(statuses, [200, 429]);
}
