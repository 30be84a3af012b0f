//! HTTP/2: requests on one connection, each handled as if it were the only one.

use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use http::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::slow_clients::wait_until_stopped;
use crate::support::gateway::{ALL, is_ready, limited, proxied};
use crate::support::http2::{Http2, all, read, rest};
use crate::support::tls::{Authority, connect};
use crate::support::{Gateway, Origin, PATIENCE, wait_until};
use crate::upstream_http2::{Processed, send_without_end, upstream_in_frames};

const PLAIN: &str = "http2: true";
const URL: &str = "http://test/";

fn start(config: &str) -> Gateway {
    Gateway::start_listening(PLAIN, config, &[])
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_on_one_connection_are_limited_one_by_one() {
    let origin = Origin::start();
    let gateway = start(&limited(&origin, "{ algorithm: gcra, rate: 1/d, burst: 10, key: { header: x-key } }"));
    let client = Http2::connect_cleartext(gateway.address).await;
    let asking = (0..80).map(|number| {
        let mut requests = Http2::same_connection(&client);
        let key = ["a", "b"][number % 2];
        async move { requests.get(URL, &[("x-key", key)]).await.unwrap() }
    });
    let answers = all(asking).await;
    let (passed, denied): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 200);
    assert_eq!((passed.len(), denied.len(), origin.count()), (20, 60, 20));
    for answer in denied {
        assert_eq!(answer.status, 429);
        assert!(!answer.body.is_empty() && answer.field("retry-after").is_some(), "{answer:?}");
        assert_eq!(answer.field("connection"), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_versions_are_spoken_in_the_clear_where_that_is_said() {
    let origin = Origin::start();
    let gateway = start(&format!("request_head: {{ timeout: 500ms }}\n{}", proxied(&origin, "")));
    assert_eq!(gateway.get("/", &[]).status, 200);
    assert_eq!(gateway.round_trip_raw("GET / HTTP/1.0\r\nhost: test\r\n\r\n").unwrap().status, 200);
    assert_eq!(
        gateway.round_trip_raw("PRI / HTTP/1.1\r\nhost: test\r\n\r\n").unwrap().status,
        200,
        "a method of its own"
    );
    assert_eq!(Http2::connect_cleartext(gateway.address).await.get(URL, &[]).await.unwrap().status, 200);
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for length in [0, 10, 18, 23] {
        let mut stream = TcpStream::connect(gateway.address).await.unwrap();
        stream.write_all(&preface[..length]).await.unwrap();
        let mut said = Vec::new();
        let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut said)).await;
        assert!(ended.is_ok(), "{length} bytes of the preface hold a connection open");
    }

    let only = Gateway::start(&proxied(&origin, ""));
    let answer = only.round_trip_raw([&preface[..], b"\0\0\0\x04\0\0\0\0\0"].concat());
    assert!(answer.is_none_or(|answer| answer.status == 400));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_forwarded_in_http_1() {
    let origin = Origin::start();
    let gateway = start(&proxied(&origin, ""));
    let mut client = Http2::connect_cleartext(gateway.address).await;
    let fields = [("cookie", "a=1"), ("cookie", "b=2"), ("x-forwarded-for", "9.9.9.9")];
    let answer = client.post("http://Test:80/a/../echo?x=1", &fields, Bytes::from_static(b"hello")).await.unwrap();
    assert_eq!((answer.status, &*answer.body), (200, &b"hello"[..]));
    let seen = origin.only();
    assert_eq!((seen.target(), seen.head.word(2)), ("/echo?x=1", "HTTP/1.1"));
    assert_eq!((seen.head.all("cookie"), seen.head.field("via")), (vec!["a=1; b=2"], Some("2 tollgate")));
    assert_eq!((seen.head.field("host"), seen.head.field("x-forwarded-for")), (Some("test"), Some("127.0.0.1")));
    assert_eq!((seen.head.field("x-forwarded-proto"), seen.body), (Some("http"), b"hello".to_vec()));
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_of_a_reset_request_are_released() {
    let origin = Origin::start();
    let gateway = start(&limited(&origin, "{ algorithm: concurrency, limit: 1, key: all }"));
    let mut client = Http2::connect_cleartext(gateway.address).await;
    for round in 1..=20 {
        let (response, mut sending) = client.begin(Method::POST, "http://test/stall", &[], false).await.unwrap();
        tokio::task::block_in_place(|| origin.wait_for_count(2 * round - 1));
        assert_eq!(client.get(URL, &[]).await.unwrap().status, 429, "the slot is taken");
        sending.send_reset(Reason::CANCEL);
        assert!(response.await.is_err());
        gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
        // The slot is taken and freed once more, on the same connection.
        assert_eq!(tokio::task::block_in_place(|| gateway.get("/status/200", &[]).status), 200);
        gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_upload_gives_back_its_slot_while_the_upstream_takes_nothing() {
    let (end, ends) = std::sync::mpsc::channel::<()>();
    let ends = parking_lot::Mutex::new(ends);
    let origin = Origin::with(move |_| ends.lock().recv().map_err(std::io::Error::other));
    let gateway = start(&limited(&origin, "{ algorithm: concurrency, limit: 1, key: all }"));
    let mut client = Http2::connect_cleartext(gateway.address).await;
    let (response, mut sending) = client.begin(Method::POST, URL, &[], false).await.unwrap();
    // until nothing is taken for a while
    loop {
        sending.reserve_capacity(1 << 16);
        let room = std::future::poll_fn(|task| sending.poll_capacity(task));
        let Ok(room) = tokio::time::timeout(Duration::from_millis(500), room).await else { break };
        sending.send_data(vec![b'x'; room.unwrap().unwrap()].into(), false).unwrap();
    }
    sending.send_reset(Reason::CANCEL);
    assert!(response.await.is_err());
    tokio::task::block_in_place(|| {
        gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
    });
    drop(end);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_request_leaves_its_queue_and_its_charge_is_taken_back() {
    let origin = Origin::start();
    let limit = "{ algorithm: gcra, rate: 1/10s, burst: 10, delay_after: 0, key: all,
                   over_limit: { delay: { max_wait: 15s, max_waiting: 1 } } }";
    let gateway = start(&limited(&origin, limit));
    let mut client = Http2::connect_cleartext(gateway.address).await;
    assert_eq!(client.get(URL, &[]).await.unwrap().status, 200);
    let delayed = [("route", "all"), ("limit", "guard"), ("plan", "none"), ("outcome", "delayed")];
    for round in 1..=3 {
        let (response, mut sending) = client.begin(Method::POST, URL, &[], false).await.unwrap();
        gateway.wait_for_metric("tollgate_limit_requests_total", &delayed, f64::from(round));
        sending.send_reset(Reason::CANCEL);
        assert!(response.await.is_err());
        gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
    }
    assert_eq!(origin.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_takes_all_its_requests_with_it() {
    let origin = Origin::start();
    let gateway = start(&limited(&origin, "{ algorithm: concurrency, limit: 50, key: all }"));
    let mut client = Http2::connect_cleartext(gateway.address).await;
    let mut waiting = Vec::new();
    for _ in 0..50 {
        waiting.push(client.begin(Method::GET, "http://test/stall", &[], true).await.unwrap().0);
    }
    tokio::task::block_in_place(|| origin.wait_for_count(50));
    client.cut().await;
    drop(waiting);
    gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
    assert_eq!(gateway.get("/", &[]).status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_run_are_finished_before_a_connection_ends() {
    let (command, origin) = Origin::on_command();
    let mut gateway = start(&proxied(&origin, ""));
    let mut client = Http2::connect_cleartext(gateway.address).await;
    let (response, _) = client.begin(Method::GET, URL, &[], true).await.unwrap();
    command.send(b"first").unwrap();
    let mut content = response.await.unwrap().into_body();
    assert_eq!(content.data().await.unwrap().unwrap(), "first");
    gateway.process.signal("TERM");
    tokio::task::block_in_place(|| wait_until("the gateway not to be ready", || !is_ready(gateway.admin)));
    for part in [&b"second"[..], b""] {
        command.send(part).unwrap();
    }
    let (body, _) = rest(&mut content).await.unwrap();
    assert_eq!(body, b"second");
    assert_eq!(client.end().await, None);
    assert!(tokio::task::block_in_place(|| gateway.process.wait()).success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_client_gets_its_responses_whole_before_the_gateway_ends() {
    const LENGTH: usize = 60_000;
    let origin = Origin::start();
    let mut gateway = start(&proxied(&origin, ""));
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(8 << 10).unwrap();
    let stream = socket.connect(gateway.address).await.unwrap();
    let mut options = h2::client::Builder::new();
    options.initial_window_size(1 << 20).initial_connection_window_size(1 << 20);
    let (requests, mut driving) = options.handshake(stream).await.unwrap();
    let mut client = Http2 { requests, driver: None };
    let mut responses = Vec::new();
    for _ in 0..10 {
        let url = format!("http://test/bytes/{LENGTH}");
        responses.push(client.begin(Method::GET, &url, &[], true).await.unwrap().0);
    }
    // nobody reads from the socket until the gateway is about to end
    std::future::poll_fn(|task| Poll::Ready(Pin::new(&mut driving).poll(task).is_ready())).await;
    tokio::task::block_in_place(|| {
        gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "all"), ("code", "200")], 10.0);
        gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
        gateway.process.signal("TERM");
        wait_until("the gateway not to be ready", || !is_ready(gateway.admin));
    });
    let driver = tokio::spawn(driving);
    for response in responses {
        assert!(read(response).await.unwrap().body == crate::support::pattern(LENGTH));
    }
    drop(client);
    driver.await.unwrap().unwrap();
    assert!(tokio::task::block_in_place(|| gateway.process.wait()).success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_stops_coming_ends_its_stream_alone() {
    let origin = Origin::start();
    let gateway = start(&proxied(&origin, "timeouts: { idle: 300ms, first_byte: 2s }"));
    let mut client = Http2::connect_cleartext(gateway.address).await;
    let (response, mut sending) = client.begin(Method::POST, "http://test/echo", &[], false).await.unwrap();
    sending.send_data(Bytes::from_static(b"begun"), false).unwrap();
    let (silent, _) = client.begin(Method::GET, "http://test/stall", &[], true).await.unwrap();
    let ended = tokio::time::timeout(PATIENCE, response).await.expect("a slow body holds a stream open");
    assert!(ended.is_err_and(|error| error.is_reset()));
    let silent = tokio::time::timeout(PATIENCE, read(silent)).await.expect("a silent upstream holds a stream open");
    assert!(silent.is_ok_and(|answer| answer.status == 504));
    assert_eq!(client.get(URL, &[]).await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_its_upstream_breaks_off_is_an_error_of_the_server() {
    let origin = Origin::start();
    let gateway = start(&proxied(&origin, ""));
    let mut client = Http2::connect_cleartext(gateway.address).await;
    for path in ["half", "half-chunk"] {
        let broken = client.get(&format!("http://test/{path}"), &[]).await.unwrap_err();
        assert_eq!(broken.reason(), Some(Reason::INTERNAL_ERROR), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn small_parts_of_a_body_wait_without_harm_to_other_requests() {
    // it takes 1 MiB
    let upstream = upstream_in_frames(&Processed::default(), |_, _| None);
    let nodes = [format!("\"{upstream}\"")];
    let gateway = start(&format!("{}{ALL}", crate::support::origin::upstream(&nodes, "http2: true")));
    let mut client = Http2::connect_cleartext(gateway.address).await;
    let (_response, sending) = client.begin(Method::POST, URL, &[], false).await.unwrap();
    let sent = Arc::new(AtomicUsize::new(0));
    tokio::spawn(send_without_end(sending, 20, Arc::clone(&sent)));
    tokio::task::block_in_place(|| {
        // the gateway announces consumed bytes at half a window
        wait_until("half a window to be full", || sent.load(Ordering::Relaxed) >= (1 << 20) + (120 << 10));
        wait_until_stopped(&sent);
    });
    assert_eq!(client.get(URL, &[]).await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_pass_whole_in_both_directions() {
    let origin = Origin::start();
    let gateway = start(&proxied(&origin, ""));
    let client = Http2::connect_cleartext(gateway.address).await;
    let asking = (0..8).map(|number| {
        let mut requests = Http2::same_connection(&client);
        async move {
            let length = 300_000 + number * 10_000;
            let url = format!("http://test/{}/{length}", ["bytes", "chunked"][number % 2]);
            assert_eq!(requests.get(&url, &[]).await.unwrap().body, crate::support::pattern(length));
            let (response, mut sending) = requests.begin(Method::POST, "http://test/echo", &[], false).await.unwrap();
            let sent = crate::support::pattern(length);
            sending.reserve_capacity(length);
            sending.send_data(sent.clone().into(), true).unwrap();
            assert_eq!(read(response).await.unwrap().body, sent);
        }
    });
    all(asking).await;
}

#[test]
fn clients_of_others_are_served() {
    let (origin, authority) = (Origin::start(), Authority::new());
    let signed = authority.sign(&["localhost"]);
    let ca = authority.pem();
    let files = [("a.pem", &*signed.certificate), ("a.key", &*signed.key), ("ca.pem", &*ca)];
    let listener = "tls: { certificates: [{ cert: a.pem, key: a.key }] }";
    let gateway = Gateway::start_listening(listener, &proxied(&origin, ""), &files);
    let port = gateway.address.port();
    let run = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).current_dir(gateway.folder.path()).output().unwrap();
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };
    let to = format!("localhost:{port}:127.0.0.1");
    let url = format!("https://localhost:{port}/");
    for (version, shown) in [("--http1.1", "1.1 200"), ("--http2", "2 200")] {
        let format = "%{http_version} %{http_code}";
        let said = run("curl", &["-s", version, "--cacert", "ca.pem", "--resolve", &to, "-o", "-", "-w", format, &url]);
        assert_eq!(said, format!("ok\n{shown}"));
    }
    let said = run("h2load", &["-n", "2000", "-c", "4", "-m", "50", &format!("https://127.0.0.1:{port}/")]);
    assert!(said.contains("2000 succeeded, 0 failed, 0 errored, 0 timeout"), "{said}");

    let plain = start(&proxied(&origin, ""));
    let said = run("h2load", &["-n", "2000", "-c", "4", "-m", "50", &format!("http://{}/", plain.address)]);
    assert!(said.contains("2000 succeeded, 0 failed, 0 errored, 0 timeout"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_was_not_told_of_it_does_not_get_it() {
    let (origin, authority) = (Origin::start(), Authority::new());
    let signed = authority.sign(&["a.test"]);
    let listener = "http2: false, tls: { certificates: [{ cert: a.pem, key: a.key }] }";
    let files = [("a.pem", &*signed.certificate), ("a.key", &*signed.key)];
    let gateway = Gateway::start_listening(listener, &proxied(&origin, ""), &files);
    let stream = connect(gateway.address, authority.client_config(&["h2", "http/1.1"], None), "a.test").await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
}
