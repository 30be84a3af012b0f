//! TLS to upstreams, and upstreams on Unix sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::Response;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tollgate::tls::{Certificate, Certificates, ClientCertificates, ClientTlsTerms, server};

use crate::support::gateway::ALL;
use crate::support::tls::{Authority, Signed};
use crate::support::{Gateway, PATIENCE};

/// A server for TLS, HTTP/1.1 and HTTP/2.
struct Upstream {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Upstream {
    async fn start(signed: &Signed, clients: Option<&Authority>, http2: bool) -> Self {
        let certificate = Certificate::read(signed.certificate.as_bytes(), signed.key.as_bytes()).unwrap();
        let ca = clients.map(Authority::pem);
        let clients = ca.as_ref().map(|ca| ClientCertificates { authorities: ca.as_bytes(), required: true });
        let terms = ClientTlsTerms { clients, allows_1_2: true, offers_http2: http2 };
        let config = server(Certificates::new(vec![certificate]), terms).unwrap().config;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, connections) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, counted) = (TlsAcceptor::from(Arc::clone(&config)), Arc::clone(&counted));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    counted.fetch_add(1, Ordering::Relaxed);
                    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                        http_2(stream).await
                    } else {
                        http_1(stream).await
                    }
                });
            }
        });
        Self { address, connections }
    }

    fn config(&self, host: &str, tls: &str) -> String {
        let port = self.address.port();
        format!("upstreams: {{ origin: {{ nodes: [\"{host}:{port}\"], {tls}, timeouts: {{ connect: 5s }} }} }}\n{ALL}")
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

async fn http_1(mut stream: TlsStream<tokio::net::TcpStream>) {
    let mut head = Vec::new();
    while let Ok(byte) = stream.read_u8().await {
        head.push(byte);
        if head.ends_with(b"\r\n\r\n") {
            head.clear();
            let body = [b'x'; 100_000];
            let answer = [&b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n"[..], &body].concat();
            if stream.write_all(&answer).await.is_err() || stream.flush().await.is_err() {
                return;
            }
        }
    }
}

async fn http_2(stream: TlsStream<tokio::net::TcpStream>) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((_, mut respond))) = connection.accept().await {
        respond.send_response(Response::new(()), false).unwrap().send_data(Bytes::from_static(b"h2"), true).unwrap();
    }
}

/// Starts a gateway, and waits until the name of the node is resolved.
fn start(config: &str, files: &[(&str, &str)]) -> Gateway {
    tokio::task::block_in_place(|| {
        let gateway = Gateway::start_with(config, files, &[]);
        gateway.wait_for_metric("tollgate_upstream_nodes_healthy", &[("upstream", "origin")], 1.0);
        gateway
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_verified_and_kept() {
    let authority = Authority::new();
    let upstream = Upstream::start(&authority.sign(&["localhost", "127.0.0.1"]), None, false).await;
    let ca = authority.pem();
    let gateway = start(&upstream.config("localhost", "tls: { ca: ca.pem }"), &[("ca.pem", &ca)]);
    tokio::task::block_in_place(|| {
        let mut client = gateway.client();
        for _ in 0..20 {
            let response = client.get("/");
            assert_eq!((response.status, response.body.len(), response.whole), (200, 100_000, true));
        }
    });
    assert_eq!(upstream.connections(), 1, "kept between requests");
    for tls in ["tls: { ca: ca.pem }", "tls: { ca: ca.pem, server_name: localhost. }"] {
        let by_address = start(&upstream.config("127.0.0.1", tls), &[("ca.pem", &ca)]);
        assert_eq!(by_address.get("/", &[]).status, 200, "{tls}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http_2_is_spoken_where_that_is_said() {
    let authority = Authority::new();
    let upstream = Upstream::start(&authority.sign(&["localhost"]), None, true).await;
    let ca = authority.pem();
    let gateway = start(&upstream.config("localhost", "tls: { ca: ca.pem }, http2: true"), &[("ca.pem", &ca)]);
    for _ in 0..3 {
        assert_eq!(gateway.get("/", &[]).text(), "h2");
    }
    let only_1 = Upstream::start(&authority.sign(&["localhost"]), None, false).await;
    let gateway = start(&only_1.config("localhost", "tls: { ca: ca.pem }, http2: true"), &[("ca.pem", &ca)]);
    assert_eq!(gateway.get("/", &[]).status, 502);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_with_a_wrong_certificate_get_no_request() {
    let (authority, strangers) = (Authority::new(), Authority::new());
    let upstream = Upstream::start(&authority.sign(&["orders.internal"]), None, false).await;
    let (ca, other) = (authority.pem(), strangers.pem());
    let files = [("ca.pem", &*ca), ("other.pem", &*other)];
    for (tls, status) in [
        ("tls: { ca: ca.pem, server_name: orders.internal }", 200),
        ("tls: { ca: ca.pem }", 502),
        ("tls: { ca: other.pem, server_name: orders.internal }", 502),
    ] {
        let gateway = start(&upstream.config("localhost", tls), &files);
        assert_eq!(gateway.get("/", &[]).status, status, "{tls}");
        if status == 200 {
            // Another authority also applies to kept connections.
            gateway.folder.write("ca.pem", &other);
            assert_eq!(tokio::task::block_in_place(|| gateway.reload()).status, 200);
            assert_eq!(gateway.get("/", &[]).status, 502);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_is_shown_a_certificate_where_one_is_named() {
    let authority = Authority::new();
    let upstream = Upstream::start(&authority.sign(&["localhost"]), Some(&authority), false).await;
    let (ca, signed) = (authority.pem(), authority.sign_client("tollgate"));
    let files = [("ca.pem", &*ca), ("own.pem", &*signed.certificate), ("own.key", &*signed.key)];
    for (tls, status) in [("tls: { ca: ca.pem, cert: own.pem, key: own.key }", 200), ("tls: { ca: ca.pem }", 502)] {
        assert_eq!(start(&upstream.config("localhost", tls), &files).get("/", &[]).status, status, "{tls}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upstream_may_listen_at_a_path() {
    let folder = crate::support::Folder::new();
    let path = folder.path().join("origin.sock");
    let listener = UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut head = Vec::new();
                while let Ok(byte) = stream.read_u8().await {
                    head.push(byte);
                    if head.ends_with(b"\r\n\r\n") {
                        head.clear();
                        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\npath").await.unwrap();
                    }
                }
            });
        }
    });
    let check = "health_check: { path: /, every: 50ms, healthy_after: 1, unhealthy_after: 1 }";
    let config = format!("upstreams: {{ origin: {{ nodes: [\"unix:{}\"], {check} }} }}\n{ALL}", path.display());
    let gateway = start(&config, &[]);
    tokio::task::block_in_place(|| {
        let mut client = gateway.client();
        for _ in 0..3 {
            assert_eq!(client.get("/").text(), "path");
        }
        std::fs::remove_file(&path).unwrap();
        gateway.wait_for_metric("tollgate_upstream_nodes_healthy", &[("upstream", "origin")], 0.0);
        assert_eq!(gateway.get("/", &[]).status, 503);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_burst_reaches_a_slow_upstream_while_the_client_pauses() {
    const LENGTH: usize = 8 << 20;
    let authority = Authority::new();
    let signed = authority.sign(&["localhost"]);
    let certificate = Certificate::read(signed.certificate.as_bytes(), signed.key.as_bytes()).unwrap();
    let terms = ClientTlsTerms { clients: None, allows_1_2: true, offers_http2: false };
    let acceptor = TlsAcceptor::from(server(Certificates::new(vec![certificate]), terms).unwrap().config);
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 << 10).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(8).unwrap();
    let node = format!("nodes: [\"localhost:{}\"], tls: {{ ca: ca.pem }}", listener.local_addr().unwrap().port());
    let route = "routes: [{ name: all, upstream: origin, upgrade: [websocket] }]\n";
    let gateway = start(&format!("upstreams: {{ origin: {{ {node} }} }}\n{route}"), &[("ca.pem", &authority.pem())]);
    let length = (LENGTH + 1).to_string();
    let upload = [("content-length", length.as_str())];
    let tunnel = [("connection", "upgrade"), ("upgrade", "websocket")];
    for (method, fields) in [("POST", &upload[..]), ("GET", &tunnel[..])] {
        let mut client = gateway.client();
        client.send_request(method, "/", fields);
        let mut stream = acceptor.accept(listener.accept().await.unwrap().0).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        if method == "GET" {
            let switches = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
            stream.write_all(switches).await.unwrap();
            stream.flush().await.unwrap();
            assert_eq!(tokio::task::block_in_place(|| client.wire.head()).unwrap().unwrap().word(1), "101");
        }
        let sending = std::thread::spawn(move || {
            client.send(vec![b'x'; LENGTH]);
            client
        });
        let (mut received, mut part) = (0, vec![0; 16 << 10]);
        while received < LENGTH {
            let reading = tokio::time::timeout(PATIENCE, stream.read(&mut part)).await;
            let length = reading.unwrap_or_else(|_| panic!("{method}: the gateway keeps the end from {received} on"));
            received += length.unwrap();
        }
        drop(sending.join().unwrap());
    }
}
