//! Envoy's gRPC questions about requests that it handles (`serves: ext_authz`).

use std::collections::HashMap;

use bytes::Bytes;
use prost::Message;

use crate::support::Gateway;
use crate::support::http2::{Answer, Http2};

pub const CHECK: &str = "http://test/envoy.service.auth.v3.Authorization/Check";
pub const GRPC: &[(&str, &str)] = &[("content-type", "application/grpc"), ("te", "trailers")];

// === the messages, with the field numbers of the protocol ===

#[derive(Clone, PartialEq, Message)]
struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    attributes: Option<Attributes>,
}

#[derive(Clone, PartialEq, Message)]
struct Attributes {
    #[prost(message, optional, tag = "1")]
    source: Option<Peer>,
    #[prost(message, optional, tag = "4")]
    request: Option<Request>,
}

#[derive(Clone, PartialEq, Message)]
struct Peer {
    #[prost(message, optional, tag = "1")]
    address: Option<Address>,
}

#[derive(Clone, PartialEq, Message)]
struct Address {
    #[prost(message, optional, tag = "1")]
    socket_address: Option<SocketAddress>,
}

#[derive(Clone, PartialEq, Message)]
struct SocketAddress {
    #[prost(string, tag = "2")]
    address: String,
    #[prost(uint32, tag = "3")]
    port_value: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(message, optional, tag = "2")]
    http: Option<HttpRequest>,
}

#[derive(Clone, PartialEq, Message)]
struct HttpRequest {
    #[prost(string, tag = "2")]
    method: String,
    #[prost(map = "string, string", tag = "3")]
    headers: HashMap<String, String>,
    #[prost(string, tag = "4")]
    path: String,
    #[prost(string, tag = "5")]
    host: String,
    #[prost(string, tag = "6")]
    scheme: String,
    #[prost(string, tag = "10")]
    protocol: String,
    #[prost(string, tag = "11")]
    body: String,
    #[prost(bytes = "vec", tag = "12")]
    raw_body: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct CheckResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<Code>,
    #[prost(message, optional, tag = "2")]
    denied: Option<Denied>,
    #[prost(message, optional, tag = "3")]
    ok: Option<Admitted>,
}

#[derive(Clone, PartialEq, Message)]
struct Code {
    #[prost(int32, tag = "1")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Denied {
    #[prost(message, optional, tag = "1")]
    status: Option<Code>,
    #[prost(message, repeated, tag = "2")]
    headers: Vec<HeaderOption>,
    #[prost(string, tag = "3")]
    body: String,
}

#[derive(Clone, PartialEq, Message)]
struct Admitted {
    #[prost(message, repeated, tag = "2")]
    headers: Vec<HeaderOption>,
    #[prost(string, repeated, tag = "5")]
    headers_to_remove: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    response_headers: Vec<HeaderOption>,
}

#[derive(Clone, PartialEq, Message)]
struct HeaderOption {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Header {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

fn field<'h>(headers: &'h [HeaderOption], name: &str) -> Option<&'h str> {
    headers
        .iter()
        .filter_map(|option| option.header.as_ref())
        .find(|header| header.key == name)
        .map(|header| &*header.value)
}

/// A message in its gRPC frame.
pub fn framed(message: &impl Message) -> Bytes {
    let message = message.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0][..], &length, &message].concat().into()
}

/// The message of a successful answer.
#[track_caller]
pub fn message<M: Message + Default>(answer: &Answer) -> M {
    let trailers = answer.trailers.as_ref().unwrap_or_else(|| panic!("no trailers: {answer:?}"));
    assert_eq!((answer.status, trailers["grpc-status"].to_str().unwrap()), (200, "0"));
    assert_eq!(usize::from(answer.body[4]) + 256 * usize::from(answer.body[3]) + 5, answer.body.len());
    M::decode(&answer.body[5..]).unwrap()
}

pub fn start(serves: &str, config: &str) -> Gateway {
    let trusted = "client_address: { trusted_proxies: [127.0.0.1] }\n";
    tokio::task::block_in_place(|| {
        Gateway::start_listening(&format!("serves: {serves}"), &format!("{trusted}{config}"), &[])
    })
}

fn check(method: &str, path: &str, client: &str, headers: &[(&str, &str)]) -> CheckRequest {
    let http = HttpRequest {
        method: method.to_owned(),
        headers: headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        path: path.to_owned(),
        host: "api.example.com:8443".to_owned(),
        scheme: "https".to_owned(),
        protocol: "HTTP/2".to_owned(),
        ..HttpRequest::default()
    };
    let socket_address = Some(SocketAddress { address: client.to_owned(), port_value: 1 });
    let source = Some(Peer { address: Some(Address { socket_address }) });
    CheckRequest { attributes: Some(Attributes { source, request: Some(Request { http: Some(http) }) }) }
}

const CUSTOMERS: &str = "limits:
  writes: { algorithm: gcra, rate: 1/d, burst: 1, key: client_address }
  watched: { algorithm: gcra, rate: 1/d, burst: 1, key: client_address, over_limit: { mark: x-over } }
routes:
  - { name: writes, match: { hosts: [api.example.com], path: /v1/**, methods: [POST] }, limits: [writes] }
  - { name: reads, match: { hosts: [api.example.com], path: /v1/** }, limits: [watched] }
";

#[tokio::test(flavor = "multi_thread")]
async fn a_check_is_answered_as_the_request_would_be() {
    let gateway = start("ext_authz", CUSTOMERS);
    let mut client = Http2::connect_cleartext(gateway.address).await;
    let ask = async |client: &mut Http2, question: CheckRequest| {
        let answer = client.post(CHECK, GRPC, framed(&question)).await.unwrap();
        message::<CheckResponse>(&answer)
    };
    let pseudo = [(":method", "POST"), (":path", "/v1/orders"), ("host", "api.example.com"), ("x-over", "made-up")];
    let admitted = ask(&mut client, check("POST", "/v1/orders?a=b", "192.0.2.1", &pseudo)).await;
    let ok = admitted.ok.unwrap();
    assert_eq!((admitted.status.unwrap().code, field(&ok.response_headers, "x-ratelimit-remaining")), (0, Some("0")));
    assert_eq!(ok.headers_to_remove, ["x-over"], "what a client claims");
    let denied = ask(&mut client, check("POST", "/v1/orders", "192.0.2.1", &[])).await;
    assert_ne!(denied.status.unwrap().code, 0);
    let denied = denied.denied.unwrap();
    assert_eq!((denied.status.unwrap().code, field(&denied.headers, "retry-after")), (429, Some("86400")));
    assert!(denied.body.contains("\"violated-policies\":[\"writes\"]"), "{}", denied.body);
    // another client, which no field can pretend to be: 192.0.2.2 is no trusted proxy
    let forwarded = [("x-forwarded-for", "192.0.2.1")];
    assert!(ask(&mut client, check("POST", "/v1/orders", "192.0.2.2", &forwarded)).await.ok.is_some());
    // a proxy in front of Envoy
    assert!(ask(&mut client, check("POST", "/v1/orders", "127.0.0.1", &forwarded)).await.denied.is_some());
    assert!(ask(&mut client, check("GET", "/v1/orders", "192.0.2.1", &[])).await.ok.unwrap().headers.is_empty());
    let marked = ask(&mut client, check("GET", "/v1/orders", "192.0.2.1", &[])).await.ok.unwrap();
    assert_eq!((field(&marked.headers, "x-over"), marked.headers_to_remove.len()), (Some("watched"), 0));
    // the client gets the status of a request without a route, or of a malformed one
    for (method, path, status) in [("GET", "/v2", 404), ("GET", "/v1/%zz", 400), ("CONNECT", "/v1", 405)] {
        let denied = ask(&mut client, check(method, path, "192.0.2.1", &[])).await.denied.unwrap();
        assert_eq!(denied.status.unwrap().code, status, "{method} {path}");
    }
    // Envoy answers a gRPC caller itself, by the status
    let caller = [("content-type", "application/grpc")];
    let denied = ask(&mut client, check("POST", "/v1/orders", "192.0.2.1", &caller)).await.denied.unwrap();
    assert_eq!(denied.status.unwrap().code, 429);
    for (result, count) in [("admitted", 4.0), ("denied", 3.0), ("refused", 3.0)] {
        gateway.wait_for_metric("tollgate_decisions_total", &[("serves", "ext_authz"), ("result", result)], count);
    }
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "writes"), ("code", "429")], 3.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_fields_that_a_route_edits_are_edited_by_envoy() {
    let edits = "request_headers: { remove: [x-internal, x-over], set: { x-tier: gold } }, \
                 response_headers: { remove: [ratelimit], set: { x-served-by: edge } }";
    let rules = CUSTOMERS.replace("name: reads,", &format!("name: reads, {edits},"));
    let gateway = start("ext_authz", &rules);
    let mut client = Http2::connect_cleartext(gateway.address).await;
    // the second request is marked, but the route removes the mark
    for _ in 0..2 {
        let question = framed(&check("GET", "/v1/orders", "192.0.2.1", &[]));
        let ok = message::<CheckResponse>(&client.post(CHECK, GRPC, question).await.unwrap()).ok.unwrap();
        let set: Vec<_> = ok.headers.iter().filter_map(|option| option.header.as_ref()).collect();
        assert_eq!(set.iter().map(|set| (&*set.key, &*set.value)).collect::<Vec<_>>(), [("x-tier", "gold")]);
        assert!(ok.headers_to_remove.iter().any(|name| name == "x-internal"), "{:?}", ok.headers_to_remove);
        assert!(ok.headers_to_remove.iter().any(|name| name == "x-over"), "{:?}", ok.headers_to_remove);
        assert_eq!(field(&ok.response_headers, "x-served-by"), Some("edge"));
        assert_eq!(field(&ok.response_headers, "ratelimit"), None);
        assert!(field(&ok.response_headers, "ratelimit-policy").is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_counts_that_envoy_sends_along_whole() {
    const CALLS: &str = "limits:
  calls: { algorithm: token_bucket, rate: 1/30d, burst: 1000, key: { request_field: tool }, missing_key: skip, \
          cost: { request_field: max_tokens, max: 100 } }
routes: [{ name: calls, limits: [calls] }]
";
    let gateway = start("ext_authz", CALLS);
    let mut client = Http2::connect_cleartext(gateway.address).await;
    let ask = async |client: &mut Http2, (method, fields): (&str, &[(&str, &str)]), body: &str, raw_body: &str| {
        let mut question = check(method, "/", "192.0.2.1", fields);
        let http = question.attributes.as_mut().and_then(|asked| asked.request.as_mut()?.http.as_mut()).unwrap();
        (http.body, http.raw_body) = (body.to_owned(), raw_body.as_bytes().to_vec());
        let answer = message::<CheckResponse>(&client.post(CHECK, GRPC, framed(&question)).await.unwrap());
        let told = answer.ok.map(|ok| field(&ok.response_headers, "x-ratelimit-remaining").map(str::to_owned));
        told.ok_or_else(|| answer.denied.unwrap().status.unwrap().code)
    };
    let left = async |client: &mut Http2, partial: Option<&str>, body: &str, raw_body: &str| {
        let fields: Vec<_> = partial.map(|partial| ("x-envoy-auth-partial-body", partial)).into_iter().collect();
        ask(client, ("POST", &fields), body, raw_body).await
    };
    let is = |number: &str| Ok(Some(number.to_owned()));
    const BODY: &str = r#"{"tool": "a", "max_tokens": 5}"#;
    assert_eq!(left(&mut client, Some("false"), BODY, "").await, is("995"));
    assert_eq!(left(&mut client, None, "", BODY).await, is("990"));
    assert_eq!(left(&mut client, Some("false"), "", "").await, Ok(None), "it has none");
    // a body that Envoy did not send whole has its own bucket and costs the maximum
    assert_eq!(left(&mut client, Some("true"), BODY, "").await, is("900"));
    // Envoy says nothing about a body that it was not to send, nor about none: the head tells them apart
    for head in [
        ("GET", &[][..]),
        ("HEAD", &[]),
        ("DELETE", &[]),
        ("OPTIONS", &[]),
        ("POST", &[("content-length", "0")]),
        ("GET", &[("content-length", "0")]),
    ] {
        assert_eq!(ask(&mut client, head, "", "").await, Ok(None), "{head:?}");
    }
    for (head, left) in [
        (("POST", &[][..]), "800"),
        (("PATCH", &[]), "700"),
        (("POST", &[("content-length", "5")]), "600"),
        (("GET", &[("content-length", "5")]), "500"),
    ] {
        assert_eq!(ask(&mut client, head, "", "").await, is(left), "{head:?}");
    }
    let form = ("POST", &[("content-type", "application/x-www-form-urlencoded")][..]);
    assert_eq!(ask(&mut client, form, BODY, "").await, is("400"));
    assert_eq!(left(&mut client, None, r#"{"tool": "a", "tool": "b"}"#, "").await, Err(400));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bytes_of_a_body_count_that_envoy_sends_along_without_its_length() {
    const UPLOADS: &str = "limits:
  uploads: { algorithm: token_bucket, rate: 1/30d, burst: 100, key: all, cost: { request_bytes: 1KiB } }
routes: [{ name: uploads, limits: [uploads] }]
";
    let gateway = start("ext_authz", UPLOADS);
    let mut client = Http2::connect_cleartext(gateway.address).await;
    let mut left = async |fields: &[(&str, &str)], kib: usize| {
        let mut question = check("POST", "/", "192.0.2.1", fields);
        let http = question.attributes.as_mut().and_then(|asked| asked.request.as_mut()?.http.as_mut()).unwrap();
        http.raw_body = vec![b'x'; kib << 10];
        let answer = message::<CheckResponse>(&client.post(CHECK, GRPC, framed(&question)).await.unwrap());
        field(&answer.ok.unwrap().response_headers, "x-ratelimit-remaining").map(str::to_owned)
    };
    let whole = ("x-envoy-auth-partial-body", "false");
    assert_eq!(left(&[whole], 9).await.as_deref(), Some("91"));
    assert_eq!(left(&[], 10).await.as_deref(), Some("81"));
    assert_eq!(left(&[whole], 0).await.as_deref(), Some("80"));
    assert_eq!(
        left(&[("x-envoy-auth-partial-body", "true"), ("content-length", "20480")], 9).await.as_deref(),
        Some("60")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_longer_than_its_route_allows_is_refused_and_costs_nothing() {
    let limit = "limits: { one: { algorithm: gcra, rate: 1/d, burst: 1, key: all } }";
    let gateway =
        start("ext_authz", &format!("{limit}\nroutes: [{{ name: all, max_request_body: 10B, limits: [one] }}]\n"));
    let mut client = Http2::connect_cleartext(gateway.address).await;
    let mut denied = async |length: &str| {
        let question = check("POST", "/", "192.0.2.1", &[("content-length", length)]);
        let answer = message::<CheckResponse>(&client.post(CHECK, GRPC, framed(&question)).await.unwrap());
        answer.denied.map(|denied| denied.status.unwrap().code)
    };
    for (length, status) in [("11", Some(413)), ("99999999999", Some(413)), ("10", None), ("10", Some(429))] {
        assert_eq!(denied(length).await, status, "{length}");
    }
}

/// The gRPC status of a call that is answered with trailers only.
#[track_caller]
pub fn refused(answer: &Answer) -> (u16, String) {
    assert_eq!((answer.status, answer.is_head_alone), (200, true), "{answer:?}");
    let message = answer.field("grpc-message").unwrap().to_owned();
    (answer.field("grpc-status").unwrap().parse().unwrap(), message)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_cannot_be_read_is_refused_with_a_status_and_the_next_is_answered() {
    let gateway = start("ext_authz", CUSTOMERS);
    let mut client = Http2::connect_cleartext(gateway.address).await;
    let question = framed(&check("GET", "/v1/orders", "192.0.2.1", &[]));
    let whole = question.to_vec();
    let with = |at: usize, byte: u8| {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        Bytes::from(bytes)
    };
    let spoilt = check("GET", "/v1/orders", "192.0.2.1", &[("x-a", "b\r\nhost: other")]);
    let nowhere = CheckRequest { attributes: Some(Attributes { source: None, ..spoilt.attributes.clone().unwrap() }) };
    let empty = framed(&CheckRequest::default());
    let cases = [
        ("nothing", CHECK, Bytes::new(), 3),
        ("half a prefix", CHECK, Bytes::from_static(b"\0\0\0"), 3),
        ("a shorter frame", CHECK, with(4, whole[4] - 1), 3),
        ("two messages", CHECK, [&whole[..], &whole].concat().into(), 3),
        ("compressed", CHECK, with(0, 1), 3),
        ("garbage", CHECK, Bytes::from_static(b"\0\0\0\0\x04\xff\xff\xff\xff"), 3),
        ("no attributes", CHECK, empty, 3),
        ("a field in a field", CHECK, framed(&spoilt), 3),
        ("no source", CHECK, framed(&nowhere), 3),
        ("too much", CHECK, vec![0; (1 << 20) + 1].into(), 8),
        ("another method", "http://test/envoy.service.auth.v3.Authorization/Other", question.clone(), 12),
    ];
    for (what, url, body, status) in cases {
        let answer = client.post(url, GRPC, body).await.unwrap();
        assert_eq!(refused(&answer).0, status, "{what}: {answer:?}");
    }
    let get = client.get(CHECK, GRPC).await.unwrap();
    assert_eq!(refused(&get).0, 12);
    let answered = client.post(CHECK, GRPC, question.clone()).await.unwrap();
    assert!(message::<CheckResponse>(&answered).ok.is_some());
    // a question that is not gRPC gets an answer that is not gRPC
    let plain = tokio::task::block_in_place(|| {
        gateway.client().post("/envoy.service.auth.v3.Authorization/Check", GRPC, &whole)
    });
    assert_eq!(plain.status, 400);
    gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "reads")], 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_does_not_come_to_its_end_is_given_up() {
    let gateway = start("ext_authz", &format!("request_head: {{ timeout: 300ms }}\n{CUSTOMERS}"));
    let mut client = Http2::connect_cleartext(gateway.address).await;
    let (response, mut sending) = client.begin(http::Method::POST, CHECK, GRPC, false).await.unwrap();
    sending.send_data(Bytes::from_static(b"\0\0\0"), false).unwrap();
    let answer = crate::support::http2::read(response).await.unwrap();
    assert_eq!(refused(&answer).0, 3);
    let question = framed(&check("GET", "/v1/orders", "192.0.2.1", &[]));
    let answered = client.post(CHECK, GRPC, question).await.unwrap();
    assert!(message::<CheckResponse>(&answered).ok.is_some());
}
