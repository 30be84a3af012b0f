//! gRPC from end to end: HTTP/2 on both sides, trailers, and denials that its clients understand.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use tokio::net::TcpListener;

use crate::support::Gateway;
use crate::support::http2::{Http2, read, rest};

const LISTENER: &str = "http2: true";
const URL: &str = "http://test/shop.Orders/List";
const FIELDS: &[(&str, &str)] = &[("content-type", "application/grpc"), ("te", "trailers")];

/// A server that answers with what it was sent, and says in trailers how it went.
struct Upstream {
    address: SocketAddr,
    calls: Arc<AtomicUsize>,
}

impl Upstream {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, calls) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&calls);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let counted = Arc::clone(&counted);
                tokio::spawn(async move {
                    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
                    while let Some(Ok((request, respond))) = connection.accept().await {
                        tokio::spawn(answer(request, respond, Arc::clone(&counted)));
                    }
                });
            }
        });
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
    let mut client = Http2::in_the_clear(gateway.address).await;
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
    assert_eq!(denied.field("content-type"), Some("application/grpc"));
    assert_eq!(upstream.calls.load(Ordering::Relaxed), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_go_both_ways_while_a_call_lasts() {
    let upstream = Upstream::start().await;
    let config = upstream.config("{ algorithm: concurrency, limit: 1, key: all }");
    let gateway = tokio::task::block_in_place(|| Gateway::start_listening(LISTENER, &config, &[]));
    let mut client = Http2::in_the_clear(gateway.address).await;
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
    let mut client = Http2::in_the_clear(gateway.address).await;
    let (call, mut calling) = client.begin(Method::POST, URL, FIELDS, false).await.unwrap();
    let (upload, _uploading) = client.begin(Method::POST, URL, &[], false).await.unwrap();
    // the upstream answers at once, and then waits for more
    let cut_off =
        tokio::time::timeout(crate::support::PATIENCE, read(upload)).await.expect("an upload is taken for ever");
    assert!(cut_off.is_err_and(|error| error.is_reset()));
    calling.send_data(Bytes::from_static(b"\0\0\0\0\x02hi"), true).unwrap();
    assert_eq!(&*read(call).await.unwrap().body, b"\0\0\0\0\x02hi");
}
