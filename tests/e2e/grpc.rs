//! gRPC from end to end: HTTP/2 on both sides, trailers, and denials that gRPC clients understand.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use parking_lot::Mutex;
use tokio::net::TcpListener;

use crate::support::http2::{Answer, Http2, http2_upstream, read, rest};
use crate::support::{Gateway, RefusingNode, SilentNode};

const LISTENER: &str = "http2: true";
const URL: &str = "http://test/shop.Orders/List";
const FIELDS: &[(&str, &str)] = &[("content-type", "application/grpc"), ("te", "trailers")];

/// A server that echoes the request's body, and puts the call's status into trailers.
struct Upstream {
    address: SocketAddr,
    calls: Arc<AtomicUsize>,
}

impl Upstream {
    async fn start() -> Self {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&calls);
        let serve = move |request, respond| drop(tokio::spawn(answer(request, respond, Arc::clone(&counted))));
        let address = http2_upstream(serve).await;
        Self { address, calls }
    }

    fn config(&self, limit: &str) -> String {
        format!(
            "upstreams: {{ shop: {{ nodes: [\"{}\"], http2: true }} }}\nlimits: {{ guard: {limit} }}\n\
             routes: [{{ name: all, upstream: shop, limits: [guard] }}]\n",
            self.address
        )
    }
}

async fn answer(
    request: Request<h2::RecvStream>,
    mut respond: h2::server::SendResponse<Bytes>,
    calls: Arc<AtomicUsize>,
) {
    if request.uri().path() == "/healthz" {
        respond.send_response(Response::new(()), true).unwrap();
        return;
    }
    calls.fetch_add(1, Ordering::Relaxed);
    let te = request.headers().get("te").cloned();
    let mut content = request.into_body();
    let head = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
    let mut sending = respond.send_response(head, false).unwrap();
    while let Some(Ok(part)) = content.data().await {
        content.flow_control().release_capacity(part.len()).unwrap();
        sending.send_data(part, false).unwrap();
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    if let Some(te) = te {
        trailers.insert("x-te", te);
    }
    sending.send_trailers(trailers).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_pass_with_their_trailers_and_are_denied_in_trailers_alone() {
    let upstream = Upstream::start().await;
    let gateway = tokio::task::block_in_place(|| {
        Gateway::start_listening(LISTENER, &upstream.config("{ algorithm: gcra, rate: 1/d, burst: 3, key: all }"), &[])
    });
    let mut client = Http2::connect_cleartext(gateway.address).await;
    for _ in 0..3 {
        let answer = client.post(URL, FIELDS, Bytes::from_static(b"\0\0\0\0\x02hi")).await.unwrap();
        assert_eq!((answer.status, &*answer.body), (200, &b"\0\0\0\0\x02hi"[..]));
        let trailers = answer.trailers.expect("trailers");
        assert_eq!(
            (&trailers["grpc-status"], &trailers["x-te"]),
            (&"0".parse().unwrap(), &"trailers".parse().unwrap())
        );
    }
    let denied = client.post(URL, FIELDS, Bytes::from_static(b"\0\0\0\0\x02hi")).await.unwrap();
    assert_eq!((denied.status, denied.field("grpc-status"), denied.body.len()), (200, Some("8"), 0));
    assert_eq!((denied.field("content-type"), denied.is_head_alone), (Some("application/grpc"), true));
    assert_eq!(upstream.calls.load(Ordering::Relaxed), 3);
}

/// Browsers speak gRPC-web, over any version of HTTP, and let scripts read only the fields that are exposed.
#[test]
fn a_script_in_a_browser_can_read_the_status_of_a_denied_call() {
    let refusing = RefusingNode::new();
    let config = format!(
        "upstreams: {{ shop: {{ nodes: [{}] }} }}\ncors: {{ origins: \"*\" }}\n\
         limits: {{ guard: {{ algorithm: gcra, rate: 1/d, burst: 1, key: {{ header: content-type }} }} }}\n\
         routes: [{{ name: all, upstream: shop, limits: [guard] }}]\n",
        refusing.node()
    );
    let gateway = Gateway::start(&config);
    for (asked, answered) in [
        ("application/grpc-web+proto", "application/grpc-web+proto"),
        ("application/grpc-web-text", "application/grpc-web-text"),
        ("application/grpc-web", "application/grpc-web"),
        ("application/grpc+proto", "application/grpc"),
    ] {
        let fields = [("content-type", asked), ("origin", "https://app.example.com")];
        for status in ["14", "8"] {
            let response = gateway.client().post("/shop.Orders/List", &fields, b"");
            assert_eq!((response.status, response.field("grpc-status")), (200, Some(status)), "{response:?}");
            assert_eq!(response.field("content-type"), Some(answered));
            let exposed = response.field("access-control-expose-headers").unwrap();
            assert!(
                exposed.contains("ratelimit-policy, ") && exposed.ends_with("grpc-status, grpc-message"),
                "{exposed}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_go_both_ways_while_a_call_lasts() {
    let upstream = Upstream::start().await;
    let config = upstream.config("{ algorithm: concurrency, limit: 1, key: all }");
    let gateway = tokio::task::block_in_place(|| Gateway::start_listening(LISTENER, &config, &[]));
    let mut client = Http2::connect_cleartext(gateway.address).await;
    let (response, mut sending) = client.begin(Method::POST, URL, FIELDS, false).await.unwrap();
    sending.send_data(Bytes::from_static(b"1"), false).unwrap();
    let mut content = response.await.unwrap().into_body();
    for part in ["1", "2", "3"] {
        let came = content.data().await.unwrap().unwrap();
        assert_eq!(came, part);
        content.flow_control().release_capacity(came.len()).unwrap();
        let (second, _) = client.begin(Method::POST, URL, FIELDS, true).await.unwrap();
        assert_eq!(read(second).await.unwrap().field("grpc-status"), Some("8"), "the slot is held");
        if part != "3" {
            sending.send_data(Bytes::from(if part == "1" { "2" } else { "3" }), false).unwrap();
        }
    }
    sending.send_data(Bytes::new(), true).unwrap();
    let (_, trailers) = rest(&mut content).await.unwrap();
    assert_eq!(trailers.unwrap()["grpc-status"], "0");
    gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
    assert_eq!(client.post(URL, FIELDS, Bytes::new()).await.unwrap().trailers.unwrap()["grpc-status"], "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_speak_http_2_are_checked_in_it() {
    let upstream = Upstream::start().await;
    let config = format!(
        "upstreams: {{ shop: {{ nodes: [\"{}\"], http2: true, health_check: {{ path: /healthz, every: 50ms, healthy_after: 1, unhealthy_after: 1 }} }} }}\n\
         routes: [{{ name: all, upstream: shop }}]\n",
        upstream.address
    );
    let gateway = tokio::task::block_in_place(|| Gateway::start(&config));
    for _ in 0..10 {
        assert_eq!(gateway.metrics().value("tollgate_upstream_nodes_healthy", &[("upstream", "shop")]), Some(1.0));
        assert_eq!(tokio::task::block_in_place(|| gateway.get("/", &[]).status), 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_may_be_silent_for_longer_than_an_upload() {
    let upstream = Upstream::start().await;
    let config = upstream.config("{ algorithm: gcra, rate: 100/s, burst: 100, key: all }");
    let config = format!("request_body: {{ min_rate: 1KiB/s, grace: 300ms }}\n{config}");
    let gateway = tokio::task::block_in_place(|| Gateway::start_listening(LISTENER, &config, &[]));
    let mut client = Http2::connect_cleartext(gateway.address).await;
    let (call, mut calling) = client.begin(Method::POST, URL, FIELDS, false).await.unwrap();
    let (upload, _uploading) = client.begin(Method::POST, URL, &[], false).await.unwrap();
    // the upstream answers at once, and then waits for the rest of the upload
    let cut_off =
        tokio::time::timeout(crate::support::PATIENCE, read(upload)).await.expect("an upload is taken for ever");
    assert!(cut_off.is_err_and(|error| error.is_reset()));
    calling.send_data(Bytes::from_static(b"\0\0\0\0\x02hi"), true).unwrap();
    assert_eq!(&*read(call).await.unwrap().body, b"\0\0\0\0\x02hi");
}

/// The responses to a unary and a streaming call whose upstream is `nodes`; the upstream fails before a response begins.
async fn failing(nodes: &str, more: &str) -> Vec<Result<Answer, h2::Error>> {
    let config = format!(
        "upstreams: {{ shop: {{ nodes: [{nodes}], http2: true{more} }} }}\n\
                          routes: [{{ name: all, upstream: shop }}]\n"
    );
    let gateway = tokio::task::block_in_place(|| Gateway::start_listening(LISTENER, &config, &[]));
    if more.contains("health_check") {
        gateway.wait_for_metric("tollgate_upstream_nodes_healthy", &[("upstream", "shop")], 0.0);
    }
    let mut client = Http2::connect_cleartext(gateway.address).await;
    let unary = client.post(URL, FIELDS, Bytes::from_static(b"\0\0\0\0\x02hi")).await;
    let (response, mut sending) = client.begin(Method::POST, URL, FIELDS, false).await.unwrap();
    // the response may have closed the stream already
    drop(sending.send_data(Bytes::from_static(b"\0\0\0\0\x02hi"), false));
    let streaming = read(response).await;
    vec![unary, streaming]
}

#[track_caller]
fn assert_grpc_status(answers: Vec<Result<Answer, h2::Error>>, status: &str) {
    for answer in answers {
        let answer = answer.unwrap();
        assert_eq!((answer.status, answer.field("grpc-status"), &*answer.body), (200, Some(status), &b""[..]));
        assert_eq!(answer.field("content-type"), Some("application/grpc"));
        assert!(answer.field("grpc-message").is_some_and(|message| !message.is_empty()));
        assert!(answer.is_head_alone, "everything is in the head, which ends the stream");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_whose_upstream_refuses_connections_is_told_unavailable() {
    let refusing = RefusingNode::new();
    assert_grpc_status(failing(&refusing.node(), "").await, "14");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_without_a_healthy_node_is_told_unavailable() {
    let refusing = RefusingNode::new();
    let check = ", health_check: { path: /healthz, every: 10ms, unhealthy_after: 1 }";
    assert_grpc_status(failing(&refusing.node(), check).await, "14");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_whose_upstream_resets_its_stream_is_told_unavailable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut connection) = h2::server::handshake(stream).await else { continue };
            tokio::spawn(async move {
                while let Some(Ok((_request, mut respond))) = connection.accept().await {
                    respond.send_reset(h2::Reason::INTERNAL_ERROR);
                }
            });
        }
    });
    assert_grpc_status(failing(&format!("\"{address}\""), "").await, "14");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_whose_upstream_does_not_accept_in_time_is_told_deadline_exceeded() {
    let silent = tokio::task::block_in_place(SilentNode::new);
    let timeouts = ", timeouts: { connect: 150ms }, retries: { attempts: 0 }";
    assert_grpc_status(failing(&silent.node(), timeouts).await, "4");
    tokio::task::block_in_place(|| drop(silent));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_deadline_passes_is_told_so() {
    let calls = Mutex::new(Vec::new());
    let never_answers = move |request, respond| calls.lock().push((request, respond));
    let node = format!("\"{}\"", http2_upstream(never_answers).await);
    for timeouts in ["first_byte: 200ms, total: 400ms", "total: 200ms"] {
        assert_grpc_status(failing(&node, &format!(", timeouts: {{ {timeouts} }}")).await, "4");
    }
}
