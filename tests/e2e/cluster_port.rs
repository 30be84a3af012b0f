//! The port for other gateways: a client without the secret gets nothing there, whatever it sends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tollgate::cluster::Secret;
use tollgate::cluster::handshake::{HandshakeError, Hello, Proof, Role, Transcript};
use tollgate::cluster::wire::VERSION;

use crate::support::cluster::{Nodes, SECRET, members, wait_for_members};
use crate::support::{Client, Gateway, Origin, PATIENCE, SetOnDrop, wait_until};

const LIMIT: &str = "algorithm: gcra, rate: 1/h, burst: 3";

/// One connection to a gateway's cluster port, and all bytes that were sent on it.
struct Stranger {
    stream: TcpStream,
    sent: Vec<u8>,
}

impl Stranger {
    fn connect(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream, sent: Vec::new() }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.sent.extend(bytes);
        drop(self.stream.write_all(bytes));
    }

    fn say(&mut self, message: &impl Serialize) {
        let message = postcard::to_stdvec(message).unwrap();
        let length = u16::try_from(message.len()).unwrap().to_le_bytes();
        self.send(&[&length, &*message].concat());
    }

    fn hear<T: DeserializeOwned>(&mut self) -> Option<T> {
        let mut length = [0; 2];
        self.stream.read_exact(&mut length).ok()?;
        let mut message = vec![0; usize::from(u16::from_le_bytes(length))];
        self.stream.read_exact(&mut message).ok()?;
        postcard::from_bytes(&message).ok()
    }

    /// Whether the gateway closes the connection, whatever it sends before.
    fn sees_the_end(mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

fn hello(from: SocketAddr, to: SocketAddr) -> Hello {
    Hello { version: VERSION, nonce: [7; 32], process: 1, from, to }
}

fn still_serves(gateway: &Gateway, key: &str) {
    let statuses: Vec<u16> = (0..4).map(|_| gateway.get("/", &[("x-key", key)]).status).collect();
    assert_eq!(statuses, [200, 200, 200, 429]);
}

#[test]
fn gateways_with_another_secret_do_not_talk_and_both_say_so() {
    let origin = Origin::start();
    let nodes = Nodes::new(2);
    let one = nodes.start(0, &origin, "timeout: 1s", LIMIT);
    let rest = format!(
        "{}limits: {{ guard: {{ key: {{ header: x-key }}, {LIMIT} }} }}
routes: [{{ name: all, upstream: origin, limits: [guard] }}]
",
        origin.upstream(),
    );
    let config = format!("{}{rest}", nodes.section(1, "timeout: 1s"));
    let other = Gateway::start_with(&config, &[("cluster.key", "another secret, as long as the first")], &[]);
    for (gateway, position) in [(&one, 1), (&other, 0)] {
        wait_until("the log", || {
            let log = gateway.process.stdout() + &gateway.process.stderr();
            log.contains("does not know the cluster's secret") && log.contains(&nodes.0[position].to_string())
        });
        let log = gateway.process.stdout() + &gateway.process.stderr();
        assert!(!log.contains(SECRET) && !log.contains("another secret, as long"), "{log}");
        assert_eq!(members(gateway).len(), 1);
        // until the other one listens, the reason is another one
        wait_until("the reason in /status", || {
            let status = gateway.admin_get("/status").json();
            let failure = status["cluster"]["peers"][0]["failure"].as_str().unwrap_or_default();
            failure.contains("does not know the cluster's secret")
        });
        still_serves(gateway, "a");
    }
}

#[test]
fn strangers_are_cut_off_and_the_gateway_goes_on() {
    let origin = Origin::start();
    let nodes = Nodes::new(2);
    let gateways = nodes.start_all(&origin, LIMIT);
    let (at, from) = (nodes.0[0], nodes.0[1]);
    let huge = [&u16::MAX.to_le_bytes()[..], &[0; 1000]].concat();
    for garbage in [&b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"[..], &[0xff; 4096], &huge, &[1, 0, 0]] {
        let mut stranger = Stranger::connect(at);
        stranger.send(garbage);
        assert!(stranger.sees_the_end());
    }
    // the gateway also closes a connection on which nothing arrives
    assert!(Stranger::connect(at).sees_the_end());

    // the gateway accepts a client with the secret; its recorded bytes are useless to a client that replays them
    let secret = Secret::of(SECRET.as_bytes());
    let mut known = Stranger::connect(at);
    known.say(&hello(from, at));
    let owner: Hello = known.hear().unwrap();
    let asker = hello(from, at);
    let transcript = Transcript::new(&secret, &asker, &owner);
    known.say(&transcript.proof(Role::Initiator));
    let proof: Proof = known.hear().unwrap();
    assert_eq!(transcript.check(Role::Acceptor, &proof), Ok(()));

    let mut replays = Stranger::connect(at);
    replays.send(&known.sent);
    let _: Hello = replays.hear().unwrap();
    let answer: Proof = replays.hear().unwrap();
    assert!(matches!(answer, Proof::Refused(HandshakeError::Secret)), "{answer:?}");
    assert!(replays.sees_the_end());

    // and foreign bytes inserted into the session end it
    known.send(&[&32_u32.to_le_bytes()[..], &[0x55; 32]].concat());
    assert!(known.sees_the_end());

    wait_for_members(&gateways, 2);
    still_serves(&gateways[0], "a");
    still_serves(&gateways[1], "b");
}

#[test]
fn a_gateway_that_is_reached_by_another_name_or_reaches_itself_is_refused() {
    let origin = Origin::start();
    let nodes = Nodes::new(2);
    let gateway = nodes.start(0, &origin, "timeout: 1s", LIMIT);
    let (at, from) = (nodes.0[0], nodes.0[1]);
    let secret = Secret::of(SECRET.as_bytes());
    let mut stranger = Stranger::connect(at);
    let asker = hello(from, from);
    stranger.say(&asker);
    let owner: Hello = stranger.hear().unwrap();
    stranger.say(&Transcript::new(&secret, &asker, &owner).proof(Role::Initiator));
    assert!(matches!(stranger.hear(), Some(Proof::Refused(HandshakeError::Address))));
    assert!(stranger.sees_the_end());
    still_serves(&gateway, "a");
}

#[test]
fn strangers_who_hold_every_place_keep_no_gateway_out() {
    let origin = Origin::start();
    let nodes = Nodes::new(2);
    let one = nodes.start(0, &origin, "timeout: 1s", LIMIT);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = SetOnDrop(&over);
        let strangers = scope.spawn(|| {
            let mut held = Vec::new();
            while !over.load(Ordering::Relaxed) {
                // connections come from 127.0.0.9, where no gateway is
                held.push(Client::connect_from(9, nodes.0[0]));
                held.drain(..held.len().saturating_sub(150));
            }
        });
        let gateways = [one, nodes.start(1, &origin, "timeout: 1s", LIMIT)];
        wait_for_members(&gateways, 2);
        over.store(true, Ordering::Relaxed);
        strangers.join().unwrap();
    });
}
