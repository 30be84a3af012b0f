//! Connections to a server on this machine that are slow, or that lose replies.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::now;

/// A relay to a server that delays all bytes.
pub struct DelayProxy {
    pub port: u16,
    each_way: Arc<AtomicU64>,
}

impl DelayProxy {
    /// A relay to the server on `port`, without a delay until [`DelayProxy::set`] is called.
    pub fn to(port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let way = Self { port: listener.local_addr().unwrap().port(), each_way: Arc::default() };
        let each_way = Arc::clone(&way.each_way);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { continue };
                relay(&client, &server, &each_way);
                relay(&server, &client, &each_way);
            }
        });
        way
    }

    /// Sets the delay in each direction for all bytes from now on.
    pub fn set(&self, each_way: Duration) {
        self.each_way.store(u64::try_from(each_way.as_micros()).unwrap(), Relaxed);
    }
}

/// A relay to a server that cuts a connection before the reply to a request which contains some bytes.
pub struct LossyProxy {
    pub port: u16,
    left: Arc<AtomicU64>,
}

impl LossyProxy {
    /// A relay to the server on `port` that loses `replies` replies to requests with `marker`.
    pub fn to(port: u16, marker: &'static [u8], replies: u64) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let proxy = Self { port: listener.local_addr().unwrap().port(), left: Arc::new(AtomicU64::new(replies)) };
        let left = Arc::clone(&proxy.left);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { continue };
                let [replies_to, requests_to] = [&client, &server].map(|stream| stream.try_clone().unwrap());
                let (is_cut, left) = (Arc::new(AtomicBool::new(false)), Arc::clone(&left));
                let cuts = Arc::clone(&is_cut);
                pass(client, requests_to, move |bytes| {
                    let marked = bytes.windows(marker.len()).any(|part| part == marker);
                    let loses = marked && left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
                    cuts.fetch_or(loses, Relaxed);
                    true
                });
                pass(server, replies_to, move |_| !is_cut.load(Relaxed));
            }
        });
        proxy
    }

    /// How many replies are still to be lost.
    pub fn left(&self) -> u64 {
        self.left.load(Relaxed)
    }
}

/// Forwards the bytes that `may_pass` in one direction, in a thread that ends with the connection.
fn pass(mut from: TcpStream, mut to: TcpStream, may_pass: impl Fn(&[u8]) -> bool + Send + 'static) {
    std::thread::spawn(move || {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(read @ 1..) = from.read(&mut bytes) {
            if !may_pass(&bytes[..read]) || to.write_all(&bytes[..read]).is_err() {
                break;
            }
        }
        [from, to].iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    });
}

/// Forwards bytes in one direction, in threads that end with the connection.
fn relay(from: &TcpStream, to: &TcpStream, delay: &Arc<AtomicU64>) {
    let (mut from, to, delay) = (from.try_clone().unwrap(), to.try_clone().unwrap(), Arc::clone(delay));
    to.set_nodelay(true).unwrap();
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(read @ 1..) = from.read(&mut bytes) {
            let due = now() + Duration::from_micros(delay.load(Relaxed));
            if sender.send((due, bytes[..read].to_vec())).is_err() {
                break;
            }
        }
    });
    std::thread::spawn(move || deliver(to, &receiver));
}

fn deliver(mut to: TcpStream, parts: &Receiver<(Instant, Vec<u8>)>) {
    for (due, bytes) in parts {
        while let Some(left) = due.checked_duration_since(now()).filter(|left| !left.is_zero()) {
            std::thread::park_timeout(left);
        }
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    drop(to.shutdown(Shutdown::Both));
}
