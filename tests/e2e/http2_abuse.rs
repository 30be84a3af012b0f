//! HTTP/2 attacks: their cost is bounded, and the gateway serves other clients meanwhile.

use std::io::{Read, Write};
use std::net::TcpStream;

use bytes::Bytes;
use h2::Reason;
use http::Method;

use crate::slow_clients::narrow;
use crate::support::gateway::{limited, proxied};
use crate::support::http2::{Http2, read};
use crate::support::{Gateway, Origin, PATIENCE, now, wait_until};

const URL: &str = "http://test/";

fn start(config: &str) -> Gateway {
    Gateway::start_listening("http2: true", config, &[])
}

/// A frame with its header.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const SETTINGS: u8 = 4;
const PING: u8 = 6;
pub const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// `GET http://test/` in HPACK: entries of the static table, and a literal host.
const GET: &[u8] = b"\x82\x86\x84\x01\x04test";

/// A connection on which the test sends any bytes.
struct Raw(TcpStream);

impl Raw {
    fn new(gateway: &Gateway) -> Self {
        Self::on(TcpStream::connect(gateway.address).unwrap())
    }

    fn on(mut stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &*frame(SETTINGS, 0, 0, b"")].concat()).unwrap();
        Self(stream)
    }

    /// Sends the bytes; returns whether the gateway took all of them.
    fn send(&mut self, bytes: &[u8]) -> bool {
        self.0.write_all(bytes).is_ok()
    }

    /// Reads until the gateway closes the connection.
    fn is_closed(&mut self) -> bool {
        let mut chunk = [0; 4096];
        loop {
            match self.0.read(&mut chunk) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => {
                    return !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
                }
            }
        }
    }
}

/// Asserts that the gateway serves another client.
fn assert_serves(gateway: &Gateway) {
    assert_eq!(gateway.get("/", &[]).status, 200);
}

/// The growth of the gateway in bytes during `attack`.
fn growth(gateway: &Gateway, attack: impl FnOnce()) -> u64 {
    for _ in 0..20 {
        assert_serves(gateway);
    }
    let before = gateway.process.memory();
    attack();
    gateway.process.memory().saturating_sub(before)
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_cancel_request_after_request_are_cut_off() {
    let origin = Origin::start();
    let gateway = start(&proxied(&origin, ""));
    let before = gateway.process.memory();
    let mut client = Http2::connect_cleartext(gateway.address).await;
    let mut sent = 0;
    while sent < 100_000 {
        match client.begin(Method::GET, "http://test/stall", &[], true).await {
            Ok((_, mut sending)) => sending.send_reset(Reason::CANCEL),
            Err(_) => break,
        }
        sent += 1;
        if sent % 64 == 0 {
            tokio::task::yield_now().await;
        }
    }
    assert!(sent < 100_000, "the connection goes on");
    // a client that still writes when the connection closes may see a reset before it has read the reason
    let reason = client.end().await;
    assert!(matches!(reason, Some(Reason::ENHANCE_YOUR_CALM) | None), "{reason:?} after {sent} requests");
    tokio::task::block_in_place(|| {
        gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
        assert_serves(&gateway);
    });
    let growth = gateway.process.memory().saturating_sub(before);
    assert!(growth < 50 << 20, "{sent} requests: {growth} bytes");
}

#[test]
fn a_head_that_never_ends_ends_its_connection() {
    let origin = Origin::start();
    let gateway = start(&proxied(&origin, ""));
    let growth = growth(&gateway, || {
        let mut raw = Raw::new(&gateway);
        raw.send(&frame(HEADERS, END_STREAM, 1, GET));
        // A literal field without indexing, many times: 1 MB in total.
        let field = [&b"\x00\x01a\x7f\x81\x07"[..], &[b'x'; 1024]].concat();
        let more = frame(CONTINUATION, 0, 1, &field);
        let taken = (0..10_000).take_while(|_| raw.send(&more)).count();
        assert!(raw.is_closed() || taken < 10_000);
    });
    assert!(growth < 50 << 20, "{growth} bytes");
    assert_serves(&gateway);
    assert!(origin.received().iter().all(|seen| seen.head.field("a").is_none()));
}

#[test]
fn fields_that_unfold_to_a_multiple_are_refused() {
    let origin = Origin::start();
    let gateway = start(&proxied(&origin, ""));
    let growth = growth(&gateway, || {
        let mut raw = Raw::new(&gateway);
        // A field of 3000 bytes enters the dynamic table; later frames name it with one byte.
        let field = [&b"\x40\x01a\x7f\xb9\x16"[..], &[b'x'; 3000]].concat();
        let mut taken = true;
        for number in 0..100 {
            let head = match number {
                0 => [GET, &field].concat(),
                _ => [GET, &[0xbe; 16_000]].concat(),
            };
            taken = taken && raw.send(&frame(HEADERS, END_STREAM | END_HEADERS, 2 * number + 1, &head));
        }
        assert_serves(&gateway);
    });
    assert!(growth < 100 << 20, "{growth} bytes");
    let most = origin.received().iter().map(|seen| seen.head.all("a").len()).max();
    assert!(most <= Some(1), "{most:?}");
}

#[test]
fn many_small_fields_are_too_many() {
    let origin = Origin::start();
    let gateway = start(&proxied(&origin, ""));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let status = runtime.block_on(async {
        let mut client = Http2::connect_cleartext(gateway.address).await;
        let fields: Vec<(String, &str)> = (0..300).map(|number| (format!("x-{number}"), "1")).collect();
        let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        client.get(URL, &fields).await.unwrap().status
    });
    assert_eq!((status, origin.count()), (431, 0));
}

#[test]
fn frames_that_say_nothing_fill_nothing() {
    let origin = Origin::start();
    let gateway = start(&proxied(&origin, ""));
    let open = frame(HEADERS, END_HEADERS, 1, b"\x83\x86\x84\x01\x04test");
    for (what, many) in [
        ("pings", frame(PING, 0, 0, b"12345678")),
        ("settings", frame(SETTINGS, 0, 0, b"")),
        ("empty data", [frame(DATA, 0, 1, b""), frame(DATA, 0, 1, b"")].concat()),
    ] {
        let growth = growth(&gateway, || {
            let mut raw = Raw::new(&gateway);
            raw.send(&open);
            let flood = many.repeat(1000);
            // The client reads none of the responses.
            raw.0.set_write_timeout(Some(std::time::Duration::from_millis(500))).unwrap();
            let _taken = (0..200).take_while(|_| raw.send(&flood)).count();
            assert_serves(&gateway);
        });
        assert!(growth < 50 << 20, "{what}: {growth} bytes");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_do_not_read_delay_nobody_else() {
    let origin = Origin::start();
    let gateway = start(&proxied(&origin, "timeouts: { idle: 500ms }"));
    let before = gateway.process.memory();
    let stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
    let (mut requests, connection) =
        h2::client::Builder::new().initial_window_size(0).handshake::<_, Bytes>(stream).await.unwrap();
    let driver = tokio::spawn(connection);
    let mut responses = Vec::new();
    for _ in 0..100 {
        std::future::poll_fn(|task| requests.poll_ready(task)).await.unwrap();
        let request = http::Request::get("http://test/bytes/2000000").body(()).unwrap();
        responses.push(requests.send_request(request, true).unwrap().0);
    }
    tokio::task::block_in_place(|| {
        origin.wait_for_count(100);
        assert_serves(&gateway);
        let growth = gateway.process.memory().saturating_sub(before);
        assert!(growth < 100 << 20, "{growth} bytes");
        // The gateway gives up on a client that has not taken a byte for that long.
        gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
        assert_serves(&gateway);
    });
    drop(responses);
    driver.abort();
}

/// A head in HPACK with this method, an entry of the static table, and this path.
fn head(method: u8, path: &str) -> Vec<u8> {
    let length = u8::try_from(path.len()).unwrap();
    [&[method, 0x86, 0x04, length][..], path.as_bytes(), b"\x01\x04test"].concat()
}

#[test]
fn a_client_that_never_reads_its_socket_is_closed_although_a_request_runs() {
    let origin = Origin::start();
    let slow = "connections: { idle: 500ms }\nrequest_body: { min_rate: off }\n";
    let gateway = start(&(proxied(&origin, "timeouts: { idle: 60s, first_byte: 60s }") + slow));
    let mut raw = Raw::on(narrow(gateway.address));
    // windows of 1 MiB a stream and 1 GiB a connection
    raw.send(&frame(SETTINGS, 0, 0, &[0, 4, 0, 16, 0, 0]));
    raw.send(&frame(WINDOW_UPDATE, 0, 0, &(1_u32 << 30).to_be_bytes()));
    raw.send(&frame(HEADERS, END_HEADERS, 1, &head(0x83, "/stall")));
    for number in 1..99 {
        raw.send(&frame(HEADERS, END_STREAM | END_HEADERS, 2 * number + 1, &head(0x82, "/bytes/60000")));
    }
    origin.wait_for_count(99);
    gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
    assert_serves(&gateway);
}

#[test]
fn hints_without_end_fill_nothing() {
    let origin = Origin::with(|exchange| match exchange.path() {
        "/hints" => loop {
            exchange.send(format!("HTTP/1.1 103 Early Hints\r\nlink: </{}>\r\n\r\n", "a".repeat(4000)))?;
        },
        _ => exchange.reply("200 OK", "", b"ok"),
    });
    let gateway = start(&proxied(&origin, "timeouts: { first_byte: 1s }"));
    let growth = growth(&gateway, || {
        let mut raw = Raw::new(&gateway);
        raw.send(&frame(HEADERS, END_STREAM | END_HEADERS, 1, &head(0x82, "/hints")));
        gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "all"), ("code", "504")], 1.0);
    });
    assert!(growth < 20 << 20, "{growth} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_denied_uploads_leave_room_for_the_next_request() {
    let origin = Origin::start();
    let gateway = start(&limited(&origin, "{ algorithm: gcra, rate: 1/d, burst: 1, key: { header: x-key } }"));
    let mut client = Http2::connect_cleartext(gateway.address).await;
    assert_eq!(client.get(URL, &[("x-key", "spent")]).await.unwrap().status, 200);
    let body = Bytes::from(vec![b'x'; 64 << 10]);
    let before = gateway.process.memory();
    for number in 0..1000 {
        let (response, mut sending) = client.begin(Method::POST, URL, &[("x-key", "spent")], false).await.unwrap();
        // The response may arrive before the body is sent.
        drop(sending.send_data(body.clone(), false));
        let answer = read(response).await.unwrap();
        assert_eq!(answer.status, 429, "{number}");
    }
    assert_eq!(client.get(URL, &[("x-key", "fresh")]).await.unwrap().status, 200);
    let growth = gateway.process.memory().saturating_sub(before);
    assert!(growth < 50 << 20, "{growth} bytes");
    assert_eq!(origin.count(), 2);
}

#[test]
fn requests_that_cannot_be_read_end_their_connection_at_some_point() {
    let origin = Origin::start();
    let gateway = start(&proxied(&origin, ""));
    let mut raw = Raw::new(&gateway);
    // a request without a host
    let head = b"\x82\x86\x84";
    let mut number = 1;
    wait_until("the gateway to have enough", || {
        number += 2;
        !raw.send(&frame(HEADERS, END_STREAM | END_HEADERS, number, head))
    });
    assert!(number > 60, "{number}");
    assert_serves(&gateway);
    assert_eq!(origin.count(), 1);
}

#[test]
fn a_connection_without_requests_is_closed_whatever_else_is_said_on_it() {
    let origin = Origin::start();
    let gateway = start(&format!("connections: {{ idle: 500ms }}\n{}", proxied(&origin, "")));
    for what in ["nothing", "pings", "a head that drips"] {
        let mut raw = Raw::new(&gateway);
        raw.send(&frame(HEADERS, END_STREAM | END_HEADERS, 1, GET));
        origin.wait_for_count(1);
        if what == "a head that drips" {
            raw.send(&frame(HEADERS, END_STREAM, 3, GET));
        }
        raw.0.set_read_timeout(Some(std::time::Duration::from_millis(20))).unwrap();
        wait_until(what, || {
            match what {
                "pings" => raw.send(&frame(PING, 0, 0, b"12345678")),
                "a head that drips" => raw.send(&frame(CONTINUATION, 0, 3, b"\x82")),
                _ => true,
            };
            raw.is_closed()
        });
    }
    assert_serves(&gateway);
}

#[test]
fn a_head_that_drips_ends_its_connection_although_a_request_runs_on_it() {
    let origin = Origin::start();
    let haste = "request_head: { timeout: 500ms }\nconnections: { idle: 60s }\n";
    let gateway = start(&(proxied(&origin, "timeouts: { idle: 60s, first_byte: 60s }") + haste));
    for (count, what) in (1_u8..).zip(["its frames", "the front of a frame", "the content of a frame"]) {
        let mut raw = Raw::new(&gateway);
        raw.send(&frame(HEADERS, END_STREAM | END_HEADERS, 1, &head(0x82, "/stall")));
        origin.wait_for_count(usize::from(count));
        let began = now();
        match what {
            "its frames" => raw.send(&frame(HEADERS, END_STREAM, 3, GET)),
            "the front of a frame" => raw.send(&frame(HEADERS, END_STREAM | END_HEADERS, 3, GET)[..5]),
            _ => raw.send(&frame(HEADERS, END_STREAM | END_HEADERS, 3, GET)[..15]),
        };
        // many frames at once would be another kind of attack
        raw.0.set_read_timeout(Some(std::time::Duration::from_millis(200))).unwrap();
        wait_until(what, || {
            if what == "its frames" {
                raw.send(&frame(CONTINUATION, 0, 3, b"\x00\x01b\x01c"));
            }
            raw.is_closed()
        });
        let lasted = now() - began;
        assert!(lasted >= std::time::Duration::from_millis(450), "{what}: {lasted:?} is not the deadline");
        gateway.wait_for_metric(
            "tollgate_http_requests_total",
            &[("route", "none"), ("code", "408")],
            f64::from(count),
        );
        gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
    }
    assert_serves(&gateway);
}

#[test]
fn heads_that_arrive_in_time_keep_their_connection_wherever_they_are_cut() {
    const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(1);
    let origin = Origin::start();
    let gateway = start(&(proxied(&origin, "") + "request_head: { timeout: 1s }\n"));
    let mut raw = Raw::new(&gateway);
    raw.0.set_read_timeout(Some(TIMEOUT / 20)).unwrap();
    let head = |number: usize| {
        let stream = u32::try_from(2 * number + 1).unwrap();
        frame(HEADERS, END_STREAM | END_HEADERS, stream, GET)
    };
    raw.send(&head(0)[..12]);
    let (began, mut ended) = (now(), 0);
    while now() - began < 2 * TIMEOUT {
        raw.send(&[&head(ended)[12..], &head(ended + 1)[..12]].concat());
        ended += 1;
        assert!(!raw.is_closed(), "after {ended} heads");
    }
    origin.wait_for_count(ended);
}

#[test]
fn clients_that_provoke_resets_are_cut_off() {
    let origin = Origin::start();
    let gateway = start(&proxied(&origin, ""));
    let growth = growth(&gateway, || {
        let mut raw = Raw::new(&gateway);
        let taken = (0..50_000).take_while(|number| {
            let stream = 2 * number + 1;
            // a window update of zero is a stream error (RFC 9113, section 6.9)
            let request = frame(HEADERS, END_STREAM | END_HEADERS, stream, GET);
            raw.send(&[request, frame(WINDOW_UPDATE, 0, stream, &[0; 4])].concat())
        });
        let taken = taken.count();
        assert!(taken < 50_000 || raw.is_closed(), "the connection goes on");
        gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
        assert_serves(&gateway);
    });
    assert!(growth < 50 << 20, "{growth} bytes");
}
