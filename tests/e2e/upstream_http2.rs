//! Upstreams that speak HTTP/2: bodies that are sent again, connections that end, and targets that only HTTP/1.1 allows.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{Method, Request, Response};
use parking_lot::Mutex;
use tokio::net::TcpListener;

use crate::http2_abuse::{DATA, END_HEADERS, END_STREAM, HEADERS, SETTINGS, WINDOW_UPDATE, frame};
use crate::slow_clients::wait_until_stopped;
use crate::support::gateway::{ALL, ALL_GUARDED};
use crate::support::http2::{Http2, http2_upstream, rest};
use crate::support::{Gateway, now, pattern, wait_for_time, wait_until};

/// The section `upstreams:` with this HTTP/2 server.
fn upstream(address: SocketAddr, more: &str) -> String {
    format!("upstreams: {{ origin: {{ nodes: [\"{address}\"], http2: true{more} }} }}\n")
}

fn start(config: &str) -> Gateway {
    tokio::task::block_in_place(|| Gateway::start(config))
}

/// Answers with the body of the request.
fn echo(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    tokio::spawn(async move {
        let (body, _) = rest(&mut request.into_body()).await.unwrap();
        let mut sending = respond.send_response(Response::new(()), false).unwrap();
        sending.send_data(body.into(), true).unwrap();
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_sent_again_arrives_once() {
    const WINDOW: u32 = 1000;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let received = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&received);
    tokio::spawn(async move {
        for number in 0.. {
            let (stream, _) = listener.accept().await.unwrap();
            let seen = Arc::clone(&seen);
            tokio::spawn(async move {
                let mut options = h2::server::Builder::new();
                options.initial_window_size(WINDOW);
                let mut connection = options.handshake::<_, Bytes>(stream).await.unwrap();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    let seen = Arc::clone(&seen);
                    tokio::spawn(async move {
                        let is_put = request.method() == "PUT";
                        let mut content = request.into_body();
                        if is_put && number % 2 == 0 {
                            // the gateway still has the part for which there is no room
                            assert!(!content.data().await.unwrap().unwrap().is_empty());
                            return respond.send_reset(Reason::REFUSED_STREAM);
                        }
                        let body = rest(&mut content).await.unwrap().0;
                        if is_put {
                            seen.lock().push(body);
                        }
                        respond.send_response(Response::new(()), true).unwrap();
                    });
                }
            });
        }
    });
    for length in [1500, 10_000, 60_000] {
        received.lock().clear();
        let gateway = start(&format!("{}{ALL}", upstream(address, "")));
        tokio::task::block_in_place(|| {
            let mut client = gateway.client();
            assert_eq!(client.get("/").status, 200, "the connection is kept");
            assert_eq!(client.round_trip_with_body("PUT", "/", &[], &pattern(length)).status, 200);
        });
        let bodies = received.lock();
        assert!(*bodies == [pattern(length)], "{length}: {:?}", bodies.iter().map(Vec::len).collect::<Vec<_>>());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_was_held_back_is_forwarded_to_its_end() {
    let address = http2_upstream(echo).await;
    let limit =
        "{ algorithm: token_bucket, rate: 1/30d, burst: 100, key: all, cost: { request_field: max_tokens, max: 50 } }";
    let config = format!("{}limits: {{ guard: {limit} }}\n{ALL_GUARDED}", upstream(address, ""));
    let gateway = start(&config);
    let body = format!("{{\"prompt\": \"{}\", \"max_tokens\": 10}}", "x".repeat(100_000));
    let response = tokio::task::block_in_place(|| {
        gateway.client().post("/", &[("content-type", "application/json")], body.as_bytes())
    });
    assert_eq!((response.status, response.number("x-ratelimit-remaining")), (200, Some(90)));
    assert!(response.text() == body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_its_server_is_closing_gets_no_further_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (connections, long) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (counted, kept) = (Arc::clone(&connections), Arc::clone(&long));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            let kept = Arc::clone(&kept);
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    if request.uri().path() == "/long" {
                        kept.lock().push(respond);
                        connection.graceful_shutdown();
                    } else {
                        respond.send_response(Response::new(()), true).unwrap();
                    }
                }
            });
        }
    });
    let gateway = start(&format!("workers: 1\n{}{ALL}", upstream(address, "")));
    tokio::task::block_in_place(|| {
        let mut waiting = gateway.client();
        waiting.send_request("GET", "/long", &[]);
        wait_until("the long request", || !long.lock().is_empty());
        for _ in 0..20 {
            assert_eq!(gateway.get("/", &[]).status, 200);
        }
        assert_eq!(connections.load(Ordering::Relaxed), 2, "one connection serves all later requests");
        long.lock().pop().unwrap().send_response(Response::new(()), true).unwrap();
        assert_eq!(waiting.receive().status, 200);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_on_which_nothing_is_answered_gets_no_further_request() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        for number in 0.. {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                let mut silent = Vec::new();
                while let Some(Ok((_, mut respond))) = connection.accept().await {
                    match number {
                        0 => silent.push(respond),
                        _ => drop(respond.send_response(Response::new(()), true)),
                    }
                }
            });
        }
    });
    let timeouts = ", timeouts: { first_byte: 300ms }";
    let gateway = start(&format!("workers: 1\n{}{ALL}", upstream(address, timeouts)));
    tokio::task::block_in_place(|| {
        assert_eq!(gateway.get("/", &[]).status, 504);
        assert_eq!(gateway.get("/", &[]).status, 200);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_with_characters_that_no_uri_holds_is_encoded() {
    let targets = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&targets);
    let serve = move |request: Request<RecvStream>, mut respond: SendResponse<Bytes>| {
        seen.lock().push(request.uri().path_and_query().unwrap().to_string());
        respond.send_response(Response::new(()), true).unwrap();
    };
    let gateway = start(&format!("{}{ALL}", upstream(http2_upstream(serve).await, "")));
    tokio::task::block_in_place(|| {
        for (target, forwarded) in [
            ("/a?q=\"<b>\"", "/a?q=%22%3Cb%3E%22"),
            ("/a?q=%22'`{|}^~[]", "/a?q=%22'`{|}^~[]"),
            ("/a\"<b>`{|}^?", "/a%22%3Cb%3E%60%7B%7C%7D%5E?"),
        ] {
            assert_eq!(gateway.get(target, &[]).status, 200, "{target}");
            assert_eq!(targets.lock().pop().as_deref(), Some(forwarded));
        }
        // every character that a target may hold
        for byte in (b'!'..=b'~').filter(|byte| !matches!(byte, b'#' | b'\\')) {
            let query = gateway.get(&format!("/?{}", char::from(byte)), &[]);
            assert_eq!(query.status, 200, "{}", char::from(byte));
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn content_where_no_response_has_any_is_not_forwarded() {
    const CONTENT: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    let serve = |request: Request<RecvStream>, mut respond: SendResponse<Bytes>| {
        let status = request.uri().path().trim_start_matches('/').parse::<u16>().unwrap();
        let part = if request.method() == "HEAD" { "" } else { CONTENT };
        let head = Response::builder().status(status).body(()).unwrap();
        let mut sending = respond.send_response(head, false).unwrap();
        // the gateway may have reset the stream already
        drop(sending.send_data(Bytes::from_static(part.as_bytes()), true));
    };
    let gateway = start(&format!("{}{ALL}", upstream(http2_upstream(serve).await, "")));
    tokio::task::block_in_place(|| {
        let mut client = gateway.client();
        for (method, status) in [("GET", 204), ("GET", 304), ("HEAD", 200), ("PUT", 204)] {
            for _ in 0..3 {
                let response = client.round_trip(method, &format!("/{status}"), &[("x-number", "1")]);
                assert_eq!(response.status, status);
            }
        }
        let last = client.get("/200");
        assert_eq!((last.status, last.text().as_str()), (200, CONTENT));
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_a_route_sets_is_the_authority() {
    let address = http2_upstream(|request, mut respond| {
        let authority = request.uri().authority().map(ToString::to_string).unwrap_or_default();
        let response = Response::builder().header("x-authority", authority).body(()).unwrap();
        respond.send_response(response, true).unwrap();
    })
    .await;
    let edits = "request_headers: { set: { host: \"internal.example:81\" } }";
    let gateway = start(&format!("{}routes: [{{ name: all, upstream: origin, {edits} }}]\n", upstream(address, "")));
    let answered = tokio::task::block_in_place(|| gateway.get("/", &[]));
    assert_eq!(answered.field("x-authority"), Some("internal.example:81"), "{answered:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_that_are_not_read_hold_up_no_others_of_their_connection() {
    for part in [16_000, 10] {
        let (sent, long) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (sending, kept) = (Arc::clone(&sent), Arc::clone(&long));
        let address = http2_upstream(move |request, mut respond| {
            let mut content = respond.send_response(Response::new(()), false).unwrap();
            match request.uri().path() {
                "/long" => kept.lock().push(content),
                "/unread" => drop(tokio::spawn(send_without_end(content, part, Arc::clone(&sending)))),
                _ => content.send_data("ok".into(), true).unwrap(),
            }
        });
        let config = format!("workers: 1\n{}{ALL}", upstream(address.await, ""));
        let gateway = tokio::task::block_in_place(|| Gateway::start_listening("http2: true", &config, &[]));
        let mut client = Http2::connect_cleartext(gateway.address).await;
        let (whole, _) = client.begin(Method::GET, "http://test/long", &[], true).await.unwrap();
        let whole = whole.await.unwrap();
        let socket = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
        let mut options = h2::client::Builder::new();
        let (requests, connection) = options.initial_window_size(0).handshake(socket).await.unwrap();
        let mut deaf = Http2 { requests, driver: Some(tokio::spawn(connection)) };
        let mut unread = Vec::new();
        for _ in 0..20 {
            unread.push(deaf.begin(Method::GET, "http://test/unread", &[], true).await.unwrap());
        }
        tokio::task::block_in_place(|| {
            wait_until_stopped(&sent);
            assert_eq!(gateway.get("/", &[]).text(), "ok", "parts of {part} bytes");
        });
        long.lock().pop().unwrap().send_data("end".into(), true).unwrap();
        assert_eq!(rest(&mut whole.into_body()).await.expect("the connection goes on").0, b"end");
    }
}

/// Sends parts of this size for as long as the other side takes them, and counts their bytes.
pub async fn send_without_end(mut content: SendStream<Bytes>, part: usize, sent: Arc<AtomicUsize>) {
    loop {
        content.reserve_capacity(part);
        let room = std::future::poll_fn(|task| match content.capacity() {
            0 => content.poll_capacity(task),
            room => Poll::Ready(Some(Ok(room))),
        });
        let Some(Ok(room)) = room.await else { return };
        let part = vec![b'x'; room.min(part)];
        sent.fetch_add(part.len(), Ordering::Relaxed);
        if content.send_data(part.into(), false).is_err() {
            return;
        }
    }
}

/// The requests that an upstream processed: the number of the connection, and the body.
pub type Processed = Arc<Mutex<Vec<(usize, Vec<u8>)>>>;
/// The frame that refuses the request on this stream, of whose body so many bytes have arrived; `None` to process it.
type Refusal = dyn Fn(u32, usize) -> Option<Vec<u8>> + Send + Sync;

/// An upstream that sends and reads single frames.
pub fn upstream_in_frames(
    processed: &Processed,
    refusal: impl Fn(u32, usize) -> Option<Vec<u8>> + Send + Sync + 'static,
) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, processed) = (listener.local_addr().unwrap(), Arc::clone(processed));
    let refusal: Arc<Refusal> = Arc::new(refusal);
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let (refusal, processed) = (Arc::clone(&refusal), Arc::clone(&processed));
            std::thread::spawn(move || serve_frames(stream.unwrap(), number, &*refusal, &processed));
        }
    });
    address
}

/// Serves a connection, one request after the other, until it ends.
fn serve_frames(
    mut stream: std::net::TcpStream,
    number: usize,
    refusal: &Refusal,
    processed: &Processed,
) -> std::io::Result<()> {
    /// For bodies, in INITIAL_WINDOW_SIZE and on the connection.
    const ROOM: [u8; 4] = (1_u32 << 20).to_be_bytes();
    stream.read_exact(&mut [0; 24])?;
    let settings = frame(SETTINGS, 0, 0, &[&[0, 4], &ROOM[..]].concat());
    stream.write_all(&[settings, frame(WINDOW_UPDATE, 0, 0, &ROOM)].concat())?;
    let (mut body, mut refused) = (Vec::new(), 0);
    loop {
        let mut front = [0; 9];
        stream.read_exact(&mut front)?;
        let [a, b, c, kind, flags, id @ ..] = front;
        let (length, id) = (u32::from_be_bytes([0, a, b, c]), u32::from_be_bytes(id));
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut payload)?;
        match kind {
            HEADERS => body.clear(),
            DATA => body.extend(payload),
            _ => continue,
        }
        if let Some(refusal) = refusal(id, body.len()).filter(|_| refused != id) {
            stream.write_all(&refusal)?;
            refused = id;
        } else if flags & END_STREAM != 0 && refused != id {
            processed.lock().push((number, std::mem::take(&mut body)));
            // `:status: 200` in the static table
            stream.write_all(&frame(HEADERS, END_STREAM | END_HEADERS, id, b"\x88"))?;
        }
    }
}

/// A frame that resets this stream.
fn reset(id: u32, reason: Reason) -> Vec<u8> {
    const RST_STREAM: u8 = 3;
    frame(RST_STREAM, 0, id, &u32::from(reason).to_be_bytes())
}

#[test]
fn a_request_that_its_upstream_resets_does_not_go_again() {
    for reason in [Reason::CANCEL, Reason::PROTOCOL_ERROR, Reason::INTERNAL_ERROR] {
        let address = upstream_in_frames(&Processed::default(), move |id, _| (id == 3).then(|| reset(id, reason)));
        let gateway = Gateway::start(&format!("workers: 1\n{}{ALL}", upstream(address, "")));
        let mut client = gateway.client();
        let statuses = [(); 3].map(|()| client.get("/").status);
        assert_eq!(statuses, [200, 502, 200], "{reason:?}");
    }
}

#[test]
fn requests_that_their_upstream_refuses_leave_no_connection_behind() {
    let processed = Processed::default();
    let refuses = |id, _| (id > 1).then(|| reset(id, Reason::REFUSED_STREAM));
    let address = upstream_in_frames(&processed, refuses);
    let gateway = Gateway::start(&format!("workers: 1\n{}{ALL}", upstream(address, ", timeouts: { keep_alive: 1h }")));
    let mut client = gateway.client();
    for _ in 0..10 {
        assert_eq!(client.post("/", &[], b"body").status, 200);
    }
    // each open connection of the upstream refers to the list, and so do its listener and this test
    wait_until("one connection", || Arc::strong_count(&processed) == 3);
    let connections: Vec<usize> = processed.lock().iter().map(|(number, _)| *number).collect();
    assert_eq!(connections, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn a_post_that_its_upstream_did_not_process_goes_again_on_a_new_connection() {
    const GOAWAY: u8 = 7;
    // the first stream is the last one that is processed
    let goes_away = |_: u32| frame(GOAWAY, 0, 0, &[1_u32.to_be_bytes(), 0_u32.to_be_bytes()].concat());
    let refuses = |id: u32| reset(id, Reason::REFUSED_STREAM);
    for refusal in [goes_away as fn(u32) -> Vec<u8>, refuses] {
        // a body whose first part is no longer at hand cannot go again
        for (length, arrives, status) in [(60_000, 0, 200), (60_000, 60_000, 200), (100_000, 70_000, 502)] {
            let processed = Processed::default();
            let nodes = [(); 2].map(|()| {
                let refused = move |id, came| (id > 1 && came >= arrives).then(|| refusal(id));
                format!("\"{}\"", upstream_in_frames(&processed, refused))
            });
            let eject = "http2: true, eject: { after: 1, for: 1h, max_percent: 50 }";
            let gateway =
                Gateway::start(&format!("workers: 1\n{}{ALL}", crate::support::origin::upstream(&nodes, eject)));
            let mut client = gateway.client();
            (0..2).for_each(|_| assert_eq!(client.get("/").status, 200));
            processed.lock().clear();
            assert_eq!(
                client.post("/", &[], &pattern(length)).status,
                status,
                "{length} bytes, {arrives} of which arrive"
            );
            let expected = if status == 200 { vec![(1, pattern(length))] } else { Vec::new() };
            assert!(*processed.lock() == expected);
            let ejections = gateway.metrics().value("tollgate_upstream_ejections_total", &[("upstream", "origin")]);
            assert_eq!(ejections, Some(0.0));
        }
    }
}

#[test]
fn an_idle_connection_is_kept_for_as_long_as_the_setting_says() {
    for (keep_alive, expected) in [("0s", [0, 1, 2]), ("1s", [0, 0, 1]), ("1m", [0, 0, 0])] {
        let processed = Processed::default();
        let address = upstream_in_frames(&processed, |_, _| None);
        let timeouts = format!(", timeouts: {{ keep_alive: {keep_alive} }}");
        let gateway = Gateway::start(&format!("workers: 1\n{}{ALL}", upstream(address, &timeouts)));
        let mut client = gateway.client();
        (0..2).for_each(|_| assert_eq!(client.get("/").status, 200));
        if keep_alive == "1s" {
            wait_for_time(now() + Duration::from_millis(1100));
        }
        assert_eq!(client.get("/").status, 200);
        let connections: Vec<usize> = processed.lock().iter().map(|(number, _)| *number).collect();
        assert_eq!(connections, expected, "{keep_alive}");
    }
}

#[test]
fn a_shorter_time_for_idle_connections_concerns_those_that_are_open() {
    for (keep_alive, expected) in [("0s", [0, 1]), ("100ms", [0, 1]), ("1h", [0, 0])] {
        let processed = Processed::default();
        let address = upstream_in_frames(&processed, |_, _| None);
        let config = |keep_alive| {
            let timeouts = format!(", timeouts: {{ keep_alive: {keep_alive} }}");
            format!("workers: 1\n{}{ALL}", upstream(address, &timeouts))
        };
        let gateway = Gateway::start(&config("1m"));
        let mut client = gateway.client();
        assert_eq!(client.get("/").status, 200);
        gateway.rewrite(&config(keep_alive));
        assert_eq!(gateway.reload().status, 200);
        wait_for_time(now() + Duration::from_millis(200));
        assert_eq!(client.get("/").status, 200);
        let connections: Vec<usize> = processed.lock().iter().map(|(number, _)| *number).collect();
        assert_eq!(connections, expected, "{keep_alive}");
    }
}
