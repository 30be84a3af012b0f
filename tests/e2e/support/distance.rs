//! A connection to a server on this machine with a delay that the test sets.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
        self.each_way.store(u64::try_from(each_way.as_micros()).unwrap(), Ordering::Relaxed);
    }
}

/// Forwards bytes in one direction, in threads that end with the connection.
fn relay(from: &TcpStream, to: &TcpStream, delay: &Arc<AtomicU64>) {
    let (mut from, to, delay) = (from.try_clone().unwrap(), to.try_clone().unwrap(), Arc::clone(delay));
    to.set_nodelay(true).unwrap();
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(read @ 1..) = from.read(&mut bytes) {
            let due = now() + Duration::from_micros(delay.load(Ordering::Relaxed));
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
