//! The PROXY protocol: a balancer sends the client's address at the start of a connection.

use crate::support::client::request;
use crate::support::gateway::limited;
use crate::support::tls::{Authority, ask};
use crate::support::{Client, Gateway, Origin};

const ONE: &str = "{ algorithm: gcra, rate: 1/d, burst: 1, key: client_address }";

/// A gateway that trusts the PROXY header of 127.0.0.2 only.
fn start(origin: &Origin) -> Gateway {
    let config = format!("request_head: {{ timeout: 500ms }}\n{}", limited(origin, ONE));
    Gateway::start_listening("proxy_protocol: [127.0.0.2]", &config, &[])
}

fn says(client: &mut Client, first: &[u8]) -> Option<u16> {
    client.send([first, request("GET", "/", &[]).as_bytes()].concat());
    client.next().map(|response| response.status)
}

fn line(client: &str) -> Vec<u8> {
    format!("PROXY TCP4 {client} 10.0.0.1 1 2\r\n").into_bytes()
}

#[test]
fn clients_are_told_apart_by_what_a_balancer_says() {
    let origin = Origin::start();
    let gateway = start(&origin);
    let binary = [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c"[..], &[192, 0, 2, 2, 10, 0, 0, 1, 0, 1, 0, 2]].concat();
    for (first, status) in [
        (line("192.0.2.1"), Some(200)),
        (line("192.0.2.1"), Some(429)),
        (binary.clone(), Some(200)),
        (binary, Some(429)),
        // the balancer's own connections
        (b"PROXY UNKNOWN\r\n".to_vec(), Some(200)),
        (b"PROXY UNKNOWN\r\n".to_vec(), Some(429)),
    ] {
        assert_eq!(says(&mut gateway.client_from(2), &first), status, "{first:?}");
    }
    let clients: Vec<String> =
        origin.received().iter().map(|seen| seen.head.field("x-forwarded-for").unwrap().to_owned()).collect();
    assert_eq!(clients, ["192.0.2.1", "192.0.2.2", "127.0.0.2"]);
}

#[test]
fn nobody_else_can_say_so_and_a_balancer_has_to() {
    let origin = Origin::start();
    let gateway = start(&origin);
    assert_eq!(says(&mut gateway.client_from(3), &line("192.0.2.1")), Some(400));
    assert_eq!(says(&mut gateway.client_from(3), b""), Some(200));
    for first in
        [&b""[..], b"PROXY TCP4 nobody 10.0.0.1 1 2\r\n", b"PROXY TCP4", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff"]
    {
        assert_eq!(says(&mut gateway.client_from(2), first), None, "{first:?}");
    }
    // A PROXY header that arrives slowly has the same timeout as a request head.
    let mut slow = gateway.client_from(2);
    slow.send("PROXY TCP4 192.0.2.9");
    assert!(slow.is_ended());
    // The gateway reads a second PROXY header as the beginning of a request.
    assert_eq!(says(&mut gateway.client_from(2), &line("192.0.2.7").repeat(2)), Some(400));
    assert_eq!(origin.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_stands_in_front_of_tls() {
    use tokio::io::AsyncWriteExt;
    let (origin, authority) = (Origin::start(), Authority::new());
    let signed = authority.sign(&["a.test"]);
    let listener = "proxy_protocol: [127.0.0.1], tls: { certificates: [{ cert: a.pem, key: a.key }] }";
    let files = [("a.pem", &*signed.certificate), ("a.key", &*signed.key)];
    let gateway = Gateway::start_listening(listener, &limited(&origin, ONE), &files);
    for (client, status) in [("192.0.2.1", 200), ("192.0.2.1", 429), ("192.0.2.2", 200)] {
        let mut stream = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
        stream.write_all(&line(client)).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(authority.client_config(&[], None)));
        let mut stream = connector.connect("a.test".try_into().unwrap(), stream).await.unwrap();
        let response = ask(&mut stream, "/", "a.test").await.unwrap();
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{client}: {response}");
    }
}
