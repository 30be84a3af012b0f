//! A client with one connection that sees the bytes of responses.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};

use super::wire::{Framing, Head, Wire};

/// A response.
#[derive(Clone, Debug)]
pub struct Response {
    pub head: Head,
    pub status: u16,
    pub body: Vec<u8>,
    /// Whether the body is complete.
    pub whole: bool,
}

impl Response {
    /// The value of the only field of this name.
    #[track_caller]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.field(name)
    }

    /// The value of a field that is a number.
    #[track_caller]
    pub fn number(&self, name: &str) -> Option<u64> {
        self.field(name).map(|value| value.parse().unwrap())
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A client with one connection.
#[derive(Debug)]
pub struct Client {
    pub wire: Wire,
}

impl Client {
    pub fn connect(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).unwrap_or_else(|error| panic!("cannot connect to {to}: {error}"));
        Self { wire: Wire::new(stream) }
    }

    /// Connects from 127.0.0.`last`.
    pub fn connect_from(last: u8, to: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let stream = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)), 0)).unwrap();
            socket.connect(to).await.unwrap().into_std().unwrap()
        });
        stream.set_nonblocking(false).unwrap();
        Self { wire: Wire::new(stream) }
    }

    /// Sends bytes; errors are ignored, because the response shows them.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        drop(self.wire.send(bytes));
    }

    /// The next response, to a request that was not HEAD; `None` if the connection ends before one.
    pub fn next(&mut self) -> Option<Response> {
        self.next_to("GET")
    }

    /// The next response, to a request with this method.
    pub fn next_to(&mut self, method: &str) -> Option<Response> {
        let head = self.wire.head().ok()??;
        let status = head.word(1).parse().unwrap_or_else(|_| panic!("no status: {head:?}"));
        let (body, whole) = self.wire.content(Framing::of_response(&head, method == "HEAD"));
        Some(Response { head, status, body, whole })
    }

    /// The next response; fails if there is none.
    #[track_caller]
    pub fn receive(&mut self) -> Response {
        self.next().expect("the connection ended without a response")
    }

    /// Sends a request without a body.
    pub fn send_request(&mut self, method: &str, target: &str, fields: &[(&str, &str)]) {
        self.send(request(method, target, fields));
    }

    /// Sends a request without a body, and returns the response.
    #[track_caller]
    pub fn round_trip(&mut self, method: &str, target: &str, fields: &[(&str, &str)]) -> Response {
        self.send_request(method, target, fields);
        self.next_to(method).expect("the connection ended without a response")
    }

    #[track_caller]
    pub fn get(&mut self, target: &str) -> Response {
        self.round_trip("GET", target, &[])
    }

    #[track_caller]
    pub fn post(&mut self, target: &str, fields: &[(&str, &str)], body: &[u8]) -> Response {
        self.round_trip_with_body("POST", target, fields, body)
    }

    /// Sends a request with a body, and returns the response.
    #[track_caller]
    pub fn round_trip_with_body(
        &mut self,
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
        body: &[u8],
    ) -> Response {
        let length = body.len().to_string();
        let fields = [&[("content-length", length.as_str())], fields].concat();
        self.send(request(method, target, &fields));
        self.send(body);
        self.receive()
    }

    /// Whether the other side closed the connection.
    pub fn is_ended(&mut self) -> bool {
        self.wire.is_ended()
    }
}

/// The head of a request, to the host `test` by default.
pub fn request(method: &str, target: &str, fields: &[(&str, &str)]) -> String {
    let mut text = format!("{method} {target} HTTP/1.1\r\n");
    if !fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        text.push_str("host: test\r\n");
    }
    for (name, value) in fields {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text + "\r\n"
}
