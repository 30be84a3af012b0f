//! Every framing of a response, for clients of both versions: each response ends where the upstream ends it, and the next
//! response on the connection belongs to the next request.

use bytes::Bytes;
use h2::Reason;
use h2::server::SendResponse;
use http::{HeaderMap, Method, Request, Response};

use crate::support::gateway::{ALL, proxied};
use crate::support::http2::{Http2, http2_upstream};
use crate::support::origin::{by_path, upstream};
use crate::support::wire::chunk;
use crate::support::{Gateway, Origin};

const LISTENER: &str = "http2: true";

/// Paths that select the framing of a response, and the body that the client has to get; `None` if the upstream aborts.
const OF_HTTP2: [(&str, Option<&str>); 10] = [
    ("/data", Some("onetwo")),
    ("/empty-end", Some("onetwo")),
    ("/empty-between", Some("onetwo")),
    ("/trailers", Some("onetwo")),
    ("/length", Some("onetwo")),
    ("/length-empty-end", Some("onetwo")),
    ("/head-alone", Some("")),
    ("/empty-alone", Some("")),
    ("/reset", None),
    ("/length-reset", None),
];

const OF_HTTP1: [(&str, Option<&str>); 13] = [
    ("/length", Some("onetwo")),
    ("/chunks", Some("onetwo")),
    ("/trailers", Some("onetwo")),
    ("/extensions", Some("onetwo")),
    ("/blanks", Some("onetwo")),
    ("/line-feeds", Some("onetwo")),
    ("/until-close", Some("onetwo")),
    ("/no-chunks", Some("")),
    ("/no-content", Some("")),
    ("/no-content-length", Some("")),
    ("/informational", Some("onetwo")),
    ("/more-than-said", Some("onetwo")),
    ("/half", None),
];

fn answer(request: &Request<h2::RecvStream>, mut respond: SendResponse<Bytes>) {
    let path = request.uri().path();
    let head = Response::builder().header("x-marker", &request.headers()["x-marker"]);
    let head = if path.starts_with("/length") { head.header("content-length", "6") } else { head };
    let mut sending = respond.send_response(head.body(()).unwrap(), path == "/head-alone").unwrap();
    let mut send = |part: &'static str, end: bool| sending.send_data(Bytes::from_static(part.as_bytes()), end).unwrap();
    match path {
        "/head-alone" => {}
        "/empty-alone" => send("", true),
        "/empty-between" => {
            for (part, end) in [("", false), ("one", false), ("", false), ("", false), ("two", true)] {
                send(part, end);
            }
        }
        "/data" | "/length" => {
            send("one", false);
            send("two", true);
        }
        _ => {
            send("one", false);
            match path {
                "/reset" | "/length-reset" => return sending.send_reset(Reason::INTERNAL_ERROR),
                _ => send("two", false),
            }
            match path {
                "/trailers" => {
                    let mut trailers = HeaderMap::new();
                    trailers.insert("x-trailer", "1".parse().unwrap());
                    sending.send_trailers(trailers).unwrap();
                }
                _ => send("", true),
            }
        }
    }
}

/// An HTTP/1.1 upstream.
fn http1_upstream() -> Origin {
    Origin::with(|exchange| {
        exchange.body()?;
        let marker = format!("x-marker: {}\r\n", exchange.head.field("x-marker").unwrap_or_default());
        let (one, two) = (chunk("one"), chunk("two"));
        let in_chunks = format!("HTTP/1.1 200 OK\r\n{marker}transfer-encoding: chunked\r\n\r\n");
        let in_chunks = |parts: &[&[u8]]| -> Vec<u8> { [&[in_chunks.as_bytes()], parts].concat().concat() };
        match exchange.path() {
            "/length" => exchange.reply("200 OK", &marker, b"onetwo"),
            "/chunks" => exchange.send(in_chunks(&[&one, &two, b"0\r\n\r\n"])),
            "/trailers" => exchange.send(in_chunks(&[&one, &two, b"0\r\nx-trailer: 1\r\nx-other: 2\r\n\r\n"])),
            "/extensions" => {
                exchange.send(in_chunks(&[b"3;a=1\r\none\r\n", b"0003;b\r\ntwo\r\n", b"000;c=\"d\"\r\n\r\n"]))
            }
            "/blanks" => exchange.send(in_chunks(&[b"3  \r\none\r\n", b"03\t ;b\r\ntwo\r\n", b"0 \r\n\r\n"])),
            "/line-feeds" => {
                let marker = marker.replace(": ", "\t :  ").replace("\r\n", "\n");
                let head = format!("HTTP/1.1 200 OK\n{marker}transfer-encoding: chunked \n\n");
                exchange.send([head.as_bytes(), &one, &two, b"0\r\n\r\n"].concat())
            }
            "/no-chunks" => exchange.send(in_chunks(&[b"0\r\n\r\n"])),
            "/no-content" => exchange.send(format!("HTTP/1.1 204 No Content\r\n{marker}\r\n")),
            "/no-content-length" => {
                exchange.send(format!("HTTP/1.1 204 No Content\r\n{marker}content-length: 5\r\n\r\n"))
            }
            "/informational" => {
                exchange.send("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n")?;
                exchange.reply("200 OK", &marker, b"onetwo")
            }
            "/more-than-said" => {
                let stray = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nstray";
                let head = format!("HTTP/1.1 200 OK\r\n{marker}content-length: 6\r\n\r\nonetwo");
                exchange.send([head.as_bytes(), stray.as_bytes()].concat())
            }
            "/until-close" => {
                exchange.keep = false;
                exchange.send(format!("HTTP/1.1 200 OK\r\n{marker}\r\nonetwo"))
            }
            _ => by_path(exchange),
        }
    })
}

/// Requests every pair of cases in both orders on one connection, and reconnects when it ends.
fn each_ends_where_it_ends_on_http1(gateway: &Gateway, cases: &[(&str, Option<&str>)]) {
    let mut client = gateway.client();
    for (number, pair) in cases.iter().flat_map(|first| cases.iter().map(move |second| [first, second])).enumerate() {
        for (path, expected) in pair {
            let marker = format!("{number}-{path}");
            let response = client.round_trip("GET", path, &[("x-marker", &marker)]);
            let response = if response.status == 103 { client.receive() } else { response };
            match expected {
                Some(expected) => {
                    assert!(matches!(response.status, 200 | 204), "{path}: {response:?}");
                    assert!(
                        response.status == 200 || response.field("content-length").is_none(),
                        "{path}: {response:?}"
                    );
                    assert_eq!((response.field("x-marker"), response.whole), (Some(marker.as_str()), true), "{path}");
                    assert_eq!(response.text(), *expected, "{path}");
                    assert_ne!(response.field("connection"), Some("close"), "{path}");
                }
                None => {
                    // A reset may arrive before the head.
                    assert!(response.status == 502 || !response.whole && client.is_ended(), "{path}: {response:?}");
                    client = gateway.client();
                }
            }
        }
    }
}

async fn each_ends_where_it_ends_on_http2(gateway: &Gateway, cases: &[(&str, Option<&str>)]) {
    let mut client = Http2::connect_cleartext(gateway.address).await;
    for (number, (path, expected)) in cases.iter().cycle().take(3 * cases.len()).enumerate() {
        let marker = format!("{number}-{path}");
        let response = client.get(&format!("http://test{path}"), &[("x-marker", &marker)]).await;
        match expected {
            Some(expected) => {
                let response = response.unwrap();
                assert!(response.status == 200 || response.field("content-length").is_none(), "{path}: {response:?}");
                assert_eq!((response.field("x-marker"), &*response.body), (Some(marker.as_str()), expected.as_bytes()));
            }
            None => assert!(response.is_err() || response.is_ok_and(|response| response.status == 502), "{path}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_response_of_http2_ends_where_its_upstream_ends_it() {
    let address = http2_upstream(|request, respond| answer(&request, respond)).await;
    let config = format!("{}{ALL}", upstream(&[format!("\"{address}\"")], "http2: true"));
    let gateway = tokio::task::block_in_place(|| Gateway::start_listening(LISTENER, &config, &[]));
    tokio::task::block_in_place(|| each_ends_where_it_ends_on_http1(&gateway, &OF_HTTP2));
    each_ends_where_it_ends_on_http2(&gateway, &OF_HTTP2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_response_of_http1_ends_where_its_upstream_ends_it() {
    let origin = http1_upstream();
    let gateway = tokio::task::block_in_place(|| Gateway::start_listening(LISTENER, &proxied(&origin, ""), &[]));
    tokio::task::block_in_place(|| each_ends_where_it_ends_on_http1(&gateway, &OF_HTTP1));
    each_ends_where_it_ends_on_http2(&gateway, &OF_HTTP1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_to_head_have_no_body_whatever_their_framing() {
    let origin = Origin::with(|exchange| match exchange.method() {
        "HEAD" if exchange.path() == "/chunks" => {
            exchange.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        }
        "HEAD" if exchange.path() == "/length" => exchange.send("HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n"),
        "HEAD" => exchange.send("HTTP/1.1 304 Not Modified\r\ncontent-length: 6\r\n\r\n"),
        _ => by_path(exchange),
    });
    let gateway = tokio::task::block_in_place(|| Gateway::start_listening(LISTENER, &proxied(&origin, ""), &[]));
    tokio::task::block_in_place(|| {
        let mut client = gateway.client();
        for path in ["/chunks", "/length", "/not-modified"].repeat(3) {
            let response = client.round_trip("HEAD", path, &[]);
            assert!(matches!(response.status, 200 | 304), "{path}: {response:?}");
            assert_eq!(response.field("content-length"), (path != "/chunks").then_some("6"), "{path}");
            assert_eq!(client.post("/echo", &[], b"next").text(), "next", "{path}");
        }
    });
    let mut client = Http2::connect_cleartext(gateway.address).await;
    for path in ["/chunks", "/length", "/not-modified"].repeat(3) {
        let (response, _) = client.begin(Method::HEAD, &format!("http://test{path}"), &[], true).await.unwrap();
        let answer = crate::support::http2::read(response).await.unwrap();
        assert!(matches!(answer.status, 200 | 304) && answer.body.is_empty(), "{path}: {answer:?}");
        assert_eq!(answer.field("content-length"), (path != "/chunks").then_some("6"), "{path}");
        let next = client.post("http://test/echo", &[], Bytes::from_static(b"next")).await.unwrap();
        assert_eq!(&*next.body, b"next", "{path}");
    }
}
