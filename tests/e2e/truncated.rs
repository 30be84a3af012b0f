//! A response that the upstream aborts is aborted for the client, too, every time.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tollgate::tls::{Certificate, Certificates, ClientTlsTerms, server};

use crate::support::gateway::{ALL, proxied};
use crate::support::http2::Http2;
use crate::support::tls::Authority;
use crate::support::{Gateway, Origin};

/// The number of tries of each case.
const TRIES: usize = 100;

#[test]
fn a_body_that_breaks_off_is_cut_off_at_the_client_too() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, ""));
    for _ in 0..TRIES {
        let half = gateway.get("/half", &[]);
        assert_eq!((half.status, half.whole, half.number("content-length")), (200, false, Some(1000)));
        assert!(half.body.len() <= 500);
        let half_chunk = gateway.get("/half-chunk", &[]);
        assert_eq!((half_chunk.status, half_chunk.whole), (200, false));
    }
    gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_breaks_off_is_cut_off_on_http_2_too() {
    let origin = Origin::start();
    let gateway = Gateway::start_listening("http2: true", &proxied(&origin, ""), &[]);
    let mut client = Http2::connect_cleartext(gateway.address).await;
    for _ in 0..TRIES / 2 {
        for path in ["/half", "/half-chunk"] {
            assert!(client.get(&format!("http://test{path}"), &[]).await.is_err(), "{path}");
        }
    }
}

/// Serves a response by its path over TLS, and then closes the connection: `/whole` with a `close_notify`, `/cut` without
/// one. Only the end of the connection ends their bodies.
async fn ending() -> (SocketAddr, Authority) {
    let authority = Authority::new();
    let signed = authority.sign(&["localhost"]);
    let certificate = Certificate::read(signed.certificate.as_bytes(), signed.key.as_bytes()).unwrap();
    let terms = ClientTlsTerms { clients: None, allows_1_2: true, offers_http2: false };
    let config = server(Certificates::new(vec![certificate]), terms).unwrap().config;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = TlsAcceptor::from(Arc::clone(&config));
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    serve(stream).await;
                }
            });
        }
    });
    (address, authority)
}

async fn serve(mut stream: TlsStream<tokio::net::TcpStream>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let framing = if head.starts_with(b"GET /length") { "content-length: 1000\r\n" } else { "" };
    stream.write_all(format!("HTTP/1.1 200 OK\r\n{framing}\r\n").as_bytes()).await.unwrap();
    stream.write_all(&[b'x'; 1000]).await.unwrap();
    stream.flush().await.unwrap();
    match head.starts_with(b"GET /whole") {
        true => stream.shutdown().await.unwrap(),
        false => stream.get_mut().0.shutdown().await.unwrap(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn where_only_the_end_of_a_connection_of_tls_ends_a_body_it_has_to_be_said() {
    let (address, authority) = ending().await;
    let ca = authority.pem();
    let config = format!(
        "upstreams: {{ origin: {{ nodes: [\"localhost:{}\"], tls: {{ ca: ca.pem }} }} }}\n{ALL}",
        address.port()
    );
    tokio::task::block_in_place(|| {
        let gateway = Gateway::start_with(&config, &[("ca.pem", &ca)], &[]);
        gateway.wait_for_metric("tollgate_upstream_nodes_healthy", &[("upstream", "origin")], 1.0);
        for _ in 0..TRIES {
            let cut = gateway.get("/cut", &[]);
            // the gateway can answer 502 while it has not forwarded anything
            assert!(matches!((cut.status, cut.whole), (200, false) | (502, true)), "{cut:?}");
            let whole = gateway.get("/whole", &[]);
            assert_eq!((whole.status, whole.whole, whole.body.len()), (200, true, 1000));
            // a body with a length ends by its length, however the connection ends
            let length = gateway.get("/length", &[]);
            assert_eq!((length.status, length.whole, length.body.len()), (200, true, 1000));
        }
    });
}
