//! Refused requests, byte by byte: the gateway refuses all that two servers could read differently. None of them arrives
//! complete at the upstream, each is counted, and no response names the software.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::client::request;
use crate::support::gateway::{limited, proxied};
use crate::support::http2::Http2;
use crate::support::tls::{Authority, connect};
use crate::support::{Gateway, Origin, Response, wait_until};

/// Requests that no server may accept: a name, the status of the response, and the bytes. The connection ends with the
/// response.
const REFUSED: &[(&str, u16, &[u8])] = &[
    ("no host", 400, b"GET / HTTP/1.1\r\n\r\n"),
    ("two hosts", 400, b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"),
    ("two different hosts", 400, b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
    ("a user in the host", 400, b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n"),
    ("an empty host", 400, b"GET / HTTP/1.1\r\nHost:\r\n\r\n"),
    ("a path in the host", 400, b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n"),
    ("two hosts in a line", 400, b"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n"),
    ("another host in the target", 400, b"GET http://b/x HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("another port in the target", 400, b"GET http://a:81/x HTTP/1.1\r\nHost: a:80\r\n\r\n"),
    ("a user in the target", 400, b"GET http://u@a/x HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a target without a host", 400, b"GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("another scheme", 400, b"GET ftp://a/x HTTP/1.1\r\nHost: a\r\n\r\n"),
    // the end of a body
    (
        "a length and chunks",
        400,
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    (
        "chunks and a length",
        400,
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    ),
    ("the same length twice", 400, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx"),
    ("the same length twice in a line", 400, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\nx"),
    ("two lengths", 400, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx"),
    ("a length with a sign", 400, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\nx"),
    ("an empty length", 400, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\nx"),
    ("a negative length", 400, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\nx"),
    ("a length of 2^64", 400, b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551616\r\n\r\nx"),
    ("an unknown coding", 400, b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    ("the coding identity", 400, b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\nx"),
    ("two codings", 501, b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    ("chunks twice", 400, b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"),
    (
        "chunks in two lines",
        400,
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    ("a coding without a name", 400, b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: ,chunked\r\n\r\n0\r\n\r\n"),
    ("chunks in HTTP/1.0", 400, b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    // connection-specific fields
    (
        "a connection that names a field of ours",
        400,
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: X-Forwarded-For\r\n\r\n",
    ),
    ("a connection that names the host", 400, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close, host\r\n\r\n"),
    (
        "a connection that names ten fields",
        400,
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: a1, a2, a3, a4, a5, a6, a7, a8, a9, a10\r\n\r\n",
    ),
    // the form of a line
    ("a space before the colon", 400, b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
    ("a space before the name", 400, b"GET / HTTP/1.1\r\n Host: a\r\n\r\n"),
    ("a bare CR", 400, b"GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n"),
    ("an empty name", 400, b"GET / HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n"),
    ("a folded line", 400, b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n"),
    ("NUL", 400, b"GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n"),
    ("bare line feeds", 400, b"GET / HTTP/1.1\nHost: a\n\n"),
    ("one bare line feed", 400, b"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n"),
    ("a bare line feed at the end", 400, b"GET / HTTP/1.1\r\nHost: a\r\n\n"),
    ("no colon", 400, b"GET / HTTP/1.1\r\nHost: a\r\nnonsense\r\n\r\n"),
    // the request line
    ("a space in the target", 400, b"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("two spaces", 400, b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a tab", 400, b"GET\t/\tHTTP/1.1\r\nHost: a\r\n\r\n"),
    ("HTTP/1.2", 400, b"GET / HTTP/1.2\r\nHost: a\r\n\r\n"),
    ("HTTP/2.0", 400, b"GET / HTTP/2.0\r\nHost: a\r\n\r\n"),
    ("HTTP/0.9", 400, b"GET /\r\n\r\n"),
    ("the start of HTTP/2", 400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ("TLS", 400, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    ("two empty lines", 400, b"\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("CONNECT", 405, b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n"),
    ("TRACE", 405, b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n"),
    // the target
    ("an encoded NUL", 400, b"GET /a%00 HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("an encoded slash", 400, b"GET /a%2fb HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("an encoded line", 400, b"GET /a%0d%0ab HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a broken encoding", 400, b"GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a path above the root", 400, b"GET /../a HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a path without a slash", 400, b"GET login HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a fragment", 400, b"GET /a#f HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a fragment behind a query", 400, b"GET /a?b#f HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a backslash", 400, b"GET /a\\b HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a raw byte", 400, b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a star for GET", 400, b"GET * HTTP/1.1\r\nHost: a\r\n\r\n"),
];

/// Chunked bodies that no server may accept, with a name for each.
const CHUNKS: &[(&str, &str)] = &[
    ("a chunk in C", "0x1\r\nx\r\n0\r\n\r\n"),
    ("a chunk with a sign", "+1\r\nx\r\n0\r\n\r\n"),
    ("a chunk and a space", "1 \r\nx\r\n0\r\n\r\n"),
    ("a line feed in an extension", "1;a\nb\r\nx\r\n0\r\n\r\n"),
    ("a carriage return in an extension", "1;a\rb\r\nx\r\n0\r\n\r\n"),
    ("17 digits", "00000000000000001\r\nx\r\n0\r\n\r\n"),
    ("a chunk without an end", "1\r\nxyz0\r\n\r\n"),
    ("a chunk with half an end", "1\r\nx\n0\r\n\r\n"),
    ("chunks with bare line feeds", "1\nx\n0\n\n"),
    ("a last chunk with a bare line feed", "1\r\nx\r\n0\n\r\n"),
    ("an end with a bare line feed", "1\r\nx\r\n0\r\n\n"),
    ("nonsense behind the chunks", "1\r\nx\r\n0\r\nnonsense\r\n\r\n"),
    ("no size", "g\r\n"),
];

/// Heads with one part that is too large, and the status of each response.
fn too_large() -> Vec<(&'static str, u16, Vec<u8>)> {
    let fields = |count: usize, length: usize| format!("x-field: {}\r\n", "v".repeat(length)).repeat(count);
    let with = |fields: String| format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n").into_bytes();
    vec![
        ("200 fields", 431, with(fields(200, 1))),
        ("300 fields", 431, with(fields(300, 1))),
        ("5000 fields", 431, with(fields(5000, 1))),
        ("a field of 9 kB", 431, with(fields(1, 9 << 10))),
        ("a field of 1 MB", 431, with(fields(1, 1 << 20))),
        ("40 kB of fields", 431, with(fields(10, 4000))),
        ("a target of 10 kB", 414, format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(10_000)).into_bytes()),
        ("a target of 1 MB", 414, format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "x".repeat(1 << 20)).into_bytes()),
    ]
}

fn chunked(chunks: &str) -> Vec<u8> {
    format!("{}{chunks}", request("POST", "/", &[("transfer-encoding", "chunked")])).into_bytes()
}

/// An upstream that counts complete requests.
fn counting() -> (Origin, Arc<AtomicUsize>) {
    let complete = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&complete);
    let origin = Origin::with(move |exchange| {
        exchange.body()?;
        counted.fetch_add(1, Ordering::Relaxed);
        exchange.reply("200 OK", "", b"ok\n")
    });
    (origin, complete)
}

/// Checks the response to a refused request.
#[track_caller]
fn check_refusal(name: &str, response: &Response, status: u16) {
    assert_eq!((response.status, response.whole), (status, true), "{name}: {response:?}");
    assert_eq!(response.field("server"), None, "{name}: {response:?}");
    assert_eq!(response.field("content-type"), Some("application/problem+json"), "{name}: {response:?}");
    assert!(!response.text().to_ascii_lowercase().contains("pingora"), "{name}: {response:?}");
}

/// The number of requests that were counted with this status.
fn counted(gateway: &Gateway, code: u16) -> f64 {
    let metrics = gateway.metrics();
    let code = code.to_string();
    let all = metrics.all("tollgate_http_requests_total");
    all.iter().filter(|sample| sample.labels["code"] == code).map(|sample| sample.value).sum()
}

#[test]
fn ambiguous_requests_are_refused_and_counted() {
    let (origin, complete) = counting();
    let gateway = Gateway::start(&proxied(&origin, ""));
    let fixed = REFUSED.iter().map(|(name, status, bytes)| (*name, *status, bytes.to_vec()));
    for (name, status, bytes) in fixed.chain(too_large()) {
        let before = counted(&gateway, status);
        let mut client = gateway.client();
        client.send(&bytes);
        let response = client.next().unwrap_or_else(|| panic!("{name}: no answer"));
        check_refusal(name, &response, status);
        if matches!(status, 400 | 405 | 501) {
            assert!(client.is_ended(), "{name}: where the next request would begin is not known");
        }
        wait_until(&format!("{name} to be counted"), || counted(&gateway, status) - before == 1.0);
    }
    assert_eq!((origin.count(), complete.load(Ordering::Relaxed)), (0, 0));
}

#[test]
fn ambiguous_requests_are_refused_in_parts_and_in_pipelines() {
    let (origin, complete) = counting();
    let gateway = Gateway::start(&proxied(&origin, ""));
    for (name, status, bytes) in REFUSED {
        let mut client = gateway.client();
        assert_eq!(client.get("/").status, 200);
        for byte in *bytes {
            if client.wire.send([*byte]).is_err() {
                break;
            }
        }
        let response = client.next().unwrap_or_else(|| panic!("{name}: no answer"));
        check_refusal(name, &response, *status);
        assert!(client.is_ended(), "{name}");
    }
    assert_eq!(complete.load(Ordering::Relaxed), REFUSED.len());
    assert!(origin.received().iter().all(|seen| seen.head.first_line == "GET / HTTP/1.1"));
}

#[test]
fn chunks_that_could_be_read_in_two_ways_are_refused_and_never_complete_at_the_upstream() {
    let (origin, complete) = counting();
    let gateway = Gateway::start(&proxied(&origin, ""));
    for (number, (name, chunks)) in CHUNKS.iter().enumerate() {
        let mut client = gateway.client();
        client.send(chunked(chunks));
        let response = client.next().unwrap_or_else(|| panic!("{name}: no answer"));
        check_refusal(name, &response, 400);
        assert!(client.is_ended(), "{name}");
        wait_until(&format!("{name} to be counted"), || counted(&gateway, 400) == (number + 1) as f64);
    }
    assert_eq!(complete.load(Ordering::Relaxed), 0);
    assert_eq!(counted(&gateway, 200), 0.0);
}

#[test]
fn the_same_is_refused_over_tls() {
    let authority = Authority::new();
    let signed = authority.sign(&["a", "test"]);
    let files = [("a.pem", signed.certificate.as_str()), ("a.key", signed.key.as_str())];
    let (origin, complete) = counting();
    let listener = "tls: { certificates: [{ cert: a.pem, key: a.key }] }";
    let gateway = Gateway::start_listening(listener, &proxied(&origin, ""), &files);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let say = |bytes: &[u8]| {
        runtime.block_on(async {
            let mut stream = connect(gateway.address, authority.client_config(&["http/1.1"], None), "a").await.unwrap();
            stream.write_all(bytes).await.unwrap();
            let mut answer = Vec::new();
            let ended = stream.read_to_end(&mut answer).await;
            (String::from_utf8(answer).unwrap(), ended)
        })
    };
    let fixed = REFUSED.iter().map(|(name, status, bytes)| (*name, *status, bytes.to_vec()));
    let chunks = CHUNKS.iter().map(|(name, chunks)| (*name, 400, chunked(chunks)));
    for (name, status, bytes) in fixed.chain(chunks) {
        let (answer, ended) = say(&bytes);
        assert!(ended.is_ok(), "{name}: {ended:?}");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{name}: {answer}");
        assert!(!answer.to_ascii_lowercase().contains("server:"), "{name}: {answer}");
    }
    assert_eq!(complete.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn ambiguous_requests_over_http_2_are_refused() {
    let (origin, complete) = counting();
    let gateway = Gateway::start_listening("http2: true", &proxied(&origin, ""), &[]);
    let mut client = Http2::connect_cleartext(gateway.address).await;
    for target in ["/a%00", "/%zz", "/../a", "/a%2fb", "/a%0d%0ab"] {
        let answer = client.get(&format!("http://test{target}"), &[]).await.unwrap();
        assert_eq!((answer.status, answer.field("server")), (400, None), "{target}");
    }
    for (method, url) in [(Method::TRACE, "http://test/"), (Method::CONNECT, "test:80")] {
        let (response, _) = client.begin(method.clone(), url, &[], true).await.unwrap();
        let answer = crate::support::http2::read(response).await.unwrap();
        assert_eq!((answer.status, answer.field("server")), (405, None), "{method}");
        assert!(answer.field("allow").is_some_and(|allowed| allowed.starts_with("GET, HEAD, POST")), "{method}");
    }
    let (response, _) = client.begin(Method::from_bytes(b"get").unwrap(), "http://test/", &[], true).await.unwrap();
    assert_eq!(crate::support::http2::read(response).await.unwrap().status, 400);
    let two_hosts = client.get("http://a/", &[("host", "b")]).await;
    assert!(two_hosts.map_or(true, |answer| answer.status == 400));
    for field in [
        ("x-api-key", " k"),
        ("x-api-key", "k\t"),
        ("cookie", "a=1 "),
        ("authorization", "  Bearer k"),
        ("content-length", ""),
    ] {
        let answer = client.get("http://test/", &[field]).await.unwrap();
        assert_eq!(answer.status, 400, "{field:?}");
    }
    let lengths = [("content-length", "3"), ("content-length", "3")];
    let two_lengths = client.post("http://test/", &lengths, Bytes::from_static(b"abc")).await.unwrap();
    assert_eq!(two_lengths.status, 400);
    assert_eq!((origin.count(), complete.load(Ordering::Relaxed)), (0, 0));
    let dropped = client.get("http://test/", &[("x_api_key", "k"), ("x-api-key", "l")]).await.unwrap();
    assert_eq!(dropped.status, 200);
    let head = origin.only().head;
    assert_eq!((head.all("x_api_key").len(), head.field("x-api-key")), (0, Some("l")));
}

#[test]
fn requests_sent_together_are_counted_and_answered_in_order() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, ""));
    let get = |target: &str| request("GET", target, &[]);
    let mut client = gateway.client();
    let post = request("POST", "/echo", &[("content-length", "5")]) + "hello";
    let chunks = request("POST", "/echo", &[("transfer-encoding", "chunked")]) + "5\r\nworld\r\n0\r\n\r\n";
    client.send([get("/bytes/3"), get("/bytes/4"), post, "\r\n".to_owned(), chunks, get("/bytes/5")].concat());
    let lengths = [(); 5].map(|()| client.receive().body.len());
    assert_eq!(lengths, [3, 4, 5, 5, 5]);
    assert_eq!(client.get("/bytes/6").body.len(), 6);
    let targets: Vec<String> = origin.received().iter().map(|seen| seen.target().to_owned()).collect();
    assert_eq!(targets, ["/bytes/3", "/bytes/4", "/echo", "/echo", "/bytes/5", "/bytes/6"]);
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "all"), ("code", "200")], 6.0);
}

#[test]
fn of_requests_sent_together_each_meets_its_limit() {
    let origin = Origin::start();
    let gateway = Gateway::start(&limited(&origin, "{ algorithm: gcra, rate: 1/h, burst: 3, key: all }"));
    let mut client = gateway.client();
    client.send(request("GET", "/", &[]).repeat(8));
    let statuses = [(); 8].map(|()| client.receive().status);
    assert_eq!(statuses, [200, 200, 200, 429, 429, 429, 429, 429]);
    assert_eq!(origin.count(), 3);
}

#[test]
fn pipelined_bytes_reach_the_upstream_only_as_a_request() {
    let (origin, complete) = counting();
    let gateway = Gateway::start(&proxied(&origin, ""));
    let mut client = gateway.client();
    client.send(
        request("POST", "/", &[("content-length", "4")])
            + "0123GET /smuggled HTTP/1.1\r\nhost: test\r\nx: a\nb\r\n\r\n",
    );
    assert_eq!(client.receive().status, 200);
    check_refusal("smuggled", &client.receive(), 400);
    assert_eq!((origin.only().body.as_slice(), complete.load(Ordering::Relaxed)), (&b"0123"[..], 1));
}

#[test]
fn methods_meet_their_limit_and_cannot_be_disguised() {
    let origin = Origin::start();
    let gateway = Gateway::start(&limited(&origin, "{ algorithm: gcra, rate: 1/h, burst: 3, key: all }"));
    for (method, status) in
        [("get", 400), ("PUT", 200), ("FOO", 200), ("Foo", 400), ("OPTIONS", 200), ("HEAD", 429), ("pATCH", 400)]
    {
        let fields = [("x-http-method-override", "TRACE"), ("x-method-override", "OPTIONS")];
        assert_eq!(gateway.client().round_trip(method, "/", &fields).status, status, "{method}");
    }
    let reached: Vec<String> = origin.received().iter().map(|seen| seen.head.word(0).to_owned()).collect();
    assert_eq!(reached, ["PUT", "FOO", "OPTIONS"]);
}

#[test]
fn fields_with_an_underscore_are_dropped() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, ""));
    let fields = [("X_Api_Key", "k"), ("x_forwarded-for", "1.2.3.4"), ("_", "a"), ("x-api-key", "l")];
    assert_eq!(gateway.get("/", &fields).status, 200);
    let head = origin.only().head;
    assert!(head.fields.iter().all(|(name, _)| !name.contains('_')), "{head:?}");
    assert_eq!(head.field("x-api-key"), Some("l"));
}

#[test]
fn requests_that_strict_servers_accept_are_accepted() {
    let (origin, complete) = counting();
    let gateway = Gateway::start(&proxied(&origin, ""));
    let sent: &[&[u8]] = &[
        b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost:a\r\nx-empty:\r\nx-tab:\ta\tb \r\nx-obs: \xe9\xff\r\n\r\n",
        b"GET http://a/x HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET HTTP://a:80/x HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /a%c3%a9,b=c?d=e&f=%20%zz HTTP/1.1\r\nHost: a\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.0\r\nHost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 003\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nHost: a\r\nTRANSFER-ENCODING: Chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n00A;x=\"y z\";q\r\n0123456789\r\n0\r\nSum: 1\r\n\r\n",
    ];
    for bytes in sent {
        let response = gateway.round_trip_raw(bytes).unwrap();
        assert_eq!(response.status, 200, "{}: {response:?}", bytes.escape_ascii());
    }
    assert_eq!(complete.load(Ordering::Relaxed), sent.len());
}
