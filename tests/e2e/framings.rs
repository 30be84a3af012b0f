//! Every framing of a body followed by every other: each client gets the response to its own request, and the upstream
//! reads each request exactly as it was sent.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, Method};

use crate::support::client::{Response, request};
use crate::support::gateway::ALL;
use crate::support::http2::{Answer, Http2, read};
use crate::support::origin::{ReceivedRequest, by_path, upstream};
use crate::support::servers::{Kind, Server};
use crate::support::wire::chunk;
use crate::support::{Client, Gateway, Origin, together};

/// The framing of a body in HTTP/1.1.
#[derive(Clone, Copy, Debug)]
enum Http1Body {
    None,
    Length,
    EmptyLength,
    Chunks,
    ChunksWithTrailers,
    EmptyChunks,
    /// The client closes its connection in the middle of the body.
    Abandoned,
}

const HTTP1: [Http1Body; 7] = [
    Http1Body::None,
    Http1Body::Length,
    Http1Body::Chunks,
    Http1Body::Abandoned,
    Http1Body::ChunksWithTrailers,
    Http1Body::EmptyLength,
    Http1Body::EmptyChunks,
];

/// The end of a request in HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// END_STREAM on the head.
    Head,
    /// END_STREAM on the last DATA frame with content.
    Data,
    /// END_STREAM on an empty DATA frame.
    EmptyData,
    Trailers,
    Reset,
}

/// The framing of a body in HTTP/2.
#[derive(Clone, Copy, Debug)]
struct Http2Body {
    end: End,
    parts: usize,
    has_length: bool,
    /// Empty DATA frames before each part.
    empty: usize,
}

fn http2_bodies() -> Vec<Http2Body> {
    let mut bodies = Vec::new();
    for has_length in [false, true] {
        for end in [End::Data, End::EmptyData, End::Trailers, End::Reset] {
            bodies.extend([0, 2].map(|empty| Http2Body { end, parts: 3, has_length, empty }));
        }
        bodies.push(Http2Body { end: End::EmptyData, parts: 0, has_length, empty: 0 });
        bodies.push(Http2Body { end: End::EmptyData, parts: 0, has_length, empty: 1 });
        bodies.push(Http2Body { end: End::Trailers, parts: 0, has_length, empty: 0 });
        bodies.push(Http2Body { end: End::Head, parts: 0, has_length, empty: 0 });
    }
    bodies
}

fn part(marker: &str) -> String {
    format!("<{marker}>")
}

/// Sends a request with a body in this framing, and returns the response if the client waits for one.
fn ask_in_http1(client: &mut Client, gateway: SocketAddr, marker: &str, body: Http1Body) -> Option<Response> {
    let (part, whole) = (part(marker), part(marker).repeat(3));
    let length = whole.len().to_string();
    let field: Option<(&str, &str)> = match body {
        Http1Body::None => None,
        Http1Body::Length => Some(("content-length", &length)),
        Http1Body::EmptyLength => Some(("content-length", "0")),
        _ => Some(("transfer-encoding", "chunked")),
    };
    let fields: Vec<(&str, &str)> = field.into_iter().chain([("x-marker", marker)]).collect();
    client.send(request(if field.is_some() { "POST" } else { "GET" }, "/echo", &fields));
    match body {
        Http1Body::None | Http1Body::EmptyLength => {}
        Http1Body::Length => client.send(&whole),
        Http1Body::EmptyChunks => client.send("0\r\n\r\n"),
        Http1Body::Chunks | Http1Body::ChunksWithTrailers | Http1Body::Abandoned => {
            for _ in 0..2 {
                client.send(chunk(&part));
            }
            match body {
                Http1Body::Abandoned => {
                    *client = Client::connect(gateway);
                    return None;
                }
                Http1Body::Chunks => client.send([&chunk(&part)[..], b"0\r\n\r\n"].concat()),
                _ => client.send([&chunk(&part)[..], b"0\r\nx-trailer: 1\r\nx-other: 2\r\n\r\n"].concat()),
            }
        }
    }
    Some(client.receive())
}

async fn ask_in_http2(client: &mut Http2, marker: &str, body: Http2Body) -> Option<Answer> {
    let part = part(marker);
    let length = (part.len() * body.parts).to_string();
    let mut fields = vec![("x-marker", marker)];
    if body.has_length {
        fields.push(("content-length", &length));
    }
    let begun = client.begin(Method::POST, "http://test/echo", &fields, body.end == End::Head);
    let (response, mut sending) = begun.await.unwrap();
    for number in 1..=body.parts.max(body.empty.min(1)) {
        for _ in 0..body.empty {
            sending.send_data(Bytes::new(), false).unwrap();
        }
        if number == 3 && body.end == End::Reset {
            sending.send_reset(Reason::CANCEL);
            return None;
        }
        if number <= body.parts {
            sending.send_data(Bytes::from(part.clone()), body.end == End::Data && number == body.parts).unwrap();
            tokio::task::yield_now().await;
        }
    }
    match body.end {
        End::EmptyData => sending.send_data(Bytes::new(), true).unwrap(),
        End::Trailers => {
            let mut trailers = HeaderMap::new();
            trailers.insert("x-trailer", "1".parse().unwrap());
            sending.send_trailers(trailers).unwrap();
        }
        _ => {}
    }
    Some(read(response).await.unwrap())
}

/// Clients of every kind send requests at once; their requests share the connections to the upstream, and each client gets
/// its own responses.
fn each_gets_its_own_answer(node: &str, more: &str) {
    const ROUNDS: usize = 12;
    let config = format!("{}{ALL}", upstream(&[node.to_owned()], more));
    let gateway = Gateway::start_listening("http2: true", &config, &[]);
    let answered = AtomicUsize::new(0);
    let check = |marker: &str, status: u16, marked: Option<&str>, body: &[u8], parts: usize, framing: &str| {
        let body = String::from_utf8_lossy(body);
        let expected = (200, Some(marker), part(marker).repeat(parts));
        assert_eq!((status, marked, body.into_owned()), expected, "{framing}");
        answered.fetch_add(1, Ordering::Relaxed);
    };
    together(6, |number| {
        if number % 2 == 0 {
            let mut client = gateway.client();
            for (count, body) in (0..ROUNDS).flat_map(|_| HTTP1).enumerate() {
                let marker = format!("one-{number}-{count}");
                let parts = match body {
                    Http1Body::None | Http1Body::EmptyLength | Http1Body::EmptyChunks => 0,
                    _ => 3,
                };
                if let Some(answer) = ask_in_http1(&mut client, gateway.address, &marker, body) {
                    let marked = answer.field("x-marker");
                    check(&marker, answer.status, marked, &answer.body, parts, &format!("{body:?}: {answer:?}"));
                    assert!(answer.whole);
                }
            }
            return;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut client = Http2::connect_cleartext(gateway.address).await;
            for (count, body) in (0..ROUNDS).flat_map(|_| http2_bodies()).enumerate() {
                let marker = format!("two-{number}-{count}");
                if let Some(answer) = ask_in_http2(&mut client, &marker, body).await {
                    let marked = answer.field("x-marker");
                    check(&marker, answer.status, marked, &answer.body, body.parts, &format!("{body:?}: {answer:?}"));
                }
                if count % 40 == 39 {
                    let cut = Http2Body { end: End::Reset, parts: 1, has_length: false, empty: 0 };
                    let (_response, mut sending) =
                        client.begin(Method::POST, "http://test/echo", &[("x-marker", "cut")], false).await.unwrap();
                    sending.send_data(Bytes::from(part(&format!("{cut:?}"))), false).unwrap();
                    std::mem::replace(&mut client, Http2::connect_cleartext(gateway.address).await).cut().await;
                }
            }
        });
    });
    let due = 3 * ROUNDS * (HTTP1.len() - 1) + 3 * ROUNDS * (http2_bodies().len() - 4);
    assert_eq!(answered.into_inner(), due);
}

fn in_front_of(kind: Kind, http2: bool) {
    let server = Server::start(kind, http2);
    each_gets_its_own_answer(&server.node(), if http2 { "http2: true" } else { "" });
}

#[test]
fn in_front_of_nginx_each_client_gets_its_own_answer() {
    in_front_of(Kind::Nginx, false);
}

#[test]
fn in_front_of_haproxy_each_client_gets_its_own_answer() {
    in_front_of(Kind::Haproxy, false);
}

#[test]
fn in_front_of_node_each_client_gets_its_own_answer() {
    in_front_of(Kind::Node, false);
}

#[test]
fn in_front_of_uvicorn_each_client_gets_its_own_answer() {
    in_front_of(Kind::Uvicorn, false);
}

#[test]
fn in_front_of_go_each_client_gets_its_own_answer() {
    in_front_of(Kind::Go, false);
}

#[test]
fn in_front_of_nginx_over_http_2_each_client_gets_its_own_answer() {
    in_front_of(Kind::Nginx, true);
}

#[test]
fn in_front_of_haproxy_over_http_2_each_client_gets_its_own_answer() {
    in_front_of(Kind::Haproxy, true);
}

#[test]
fn in_front_of_node_over_http_2_each_client_gets_its_own_answer() {
    in_front_of(Kind::Node, true);
}

#[test]
fn in_front_of_go_over_http_2_each_client_gets_its_own_answer() {
    in_front_of(Kind::Go, true);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_reads_each_body_exactly_once() {
    let origin = Origin::start();
    let config = format!("{}{ALL}", origin.upstream());
    let gateway = Gateway::start_listening("http2: true", &config, &[]);
    let mut client = Http2::connect_cleartext(gateway.address).await;
    let mut expected = Vec::new();
    for (number, body) in http2_bodies().into_iter().filter(|body| body.end != End::Reset).enumerate() {
        let marker = number.to_string();
        let answer = ask_in_http2(&mut client, &marker, body).await.unwrap();
        assert_eq!((answer.status, answer.body), (200, part(&marker).repeat(body.parts).into_bytes()), "{body:?}");
        expected.push(("/echo".to_owned(), part(&marker).repeat(body.parts)));
    }
    tokio::task::block_in_place(|| {
        let mut client = gateway.client();
        for body in [Http1Body::Chunks, Http1Body::ChunksWithTrailers, Http1Body::Length] {
            let answer = ask_in_http1(&mut client, gateway.address, "http1", body).unwrap();
            assert_eq!(answer.text(), part("http1").repeat(3), "{body:?}");
            expected.push(("/echo".to_owned(), part("http1").repeat(3)));
        }
    });
    // The upstream would read the rest of one request as the next one.
    let seen = origin.received();
    let read = |seen: &ReceivedRequest| (seen.target().to_owned(), String::from_utf8_lossy(&seen.body).into_owned());
    assert_eq!(seen.iter().map(read).collect::<Vec<_>>(), expected);
    assert!(seen.iter().all(|seen| seen.connection < 3), "connections are kept: {seen:?}");
}

/// An upstream that answers `/early` before it has read the body, and then reads the body.
fn early() -> Origin {
    Origin::with(|exchange| {
        if exchange.path() != "/early" {
            return by_path(exchange);
        }
        exchange.reply("200 OK", "", b"early\n")?;
        exchange.body().map(drop)
    })
}

#[test]
fn an_answer_before_the_end_of_the_request_leaves_nothing_to_the_next() {
    let origin = early();
    let gateway = Gateway::start(&format!("{}{ALL}", origin.upstream()));
    for number in 0..30 {
        let mut client = gateway.client();
        let length = ["content-length", "transfer-encoding"][number % 2];
        client.send(request("POST", "/early", &[(length, ["20", "chunked"][number % 2])]));
        client.send("5\r\nhello\r\n");
        let head = client.wire.head().unwrap().unwrap();
        assert_eq!(head.word(1), "200");
        match number % 3 {
            0 => client.send("5\r\nhello\r\n0\r\n\r\n"),
            1 => client.send("GET /smuggled HTTP/1.1\r\nhost: test\r\n\r\n"),
            _ => drop(client),
        }
        let marker = format!("own-{number}");
        assert_eq!(gateway.client().post("/echo", &[], marker.as_bytes()).text(), marker, "{number}");
    }
    let targets: Vec<String> = origin.received().iter().map(|seen| seen.target().to_owned()).collect();
    assert_eq!(targets.len(), 60, "{targets:?}");
    assert!(targets.iter().all(|target| ["/early", "/echo"].contains(&target.as_str())), "{targets:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_before_the_end_of_a_stream_leaves_nothing_to_the_next() {
    let origin = early();
    let gateway = Gateway::start_listening("http2: true", &format!("{}{ALL}", origin.upstream()), &[]);
    let mut client = Http2::connect_cleartext(gateway.address).await;
    for number in 0..30 {
        let (response, mut sending) = client.begin(Method::POST, "http://test/early", &[], false).await.unwrap();
        sending.send_data(Bytes::from_static(b"hello"), false).unwrap();
        let answer = response.await.unwrap();
        assert_eq!(answer.status(), 200);
        match number % 3 {
            0 => drop(sending.send_data(Bytes::new(), true)),
            1 => sending.send_reset(Reason::NO_ERROR),
            _ => drop(sending),
        }
        let marker = format!("own-{number}");
        let own = client.post("http://test/echo", &[], Bytes::from(marker.clone())).await.unwrap();
        assert_eq!((own.status, own.body), (200, marker.into_bytes()), "{number}");
    }
    assert!(
        origin.received().iter().all(|seen| ["/early", "/echo"].contains(&seen.target())),
        "{:?}",
        origin.received()
    );
}
