//! Ports for the servers of a test.

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

use parking_lot::Mutex;

/// A port on which nothing listens, outside the range of outgoing connections, and a different one for each call and
/// process: the process reserves the port at an address that has no other use.
pub fn free_port() -> u16 {
    const FIRST: u16 = 10_000;
    const COUNT: u16 = 22_000;
    const MARK: [u8; 4] = [127, 255, 0, 1];
    static NEXT: AtomicU16 = AtomicU16::new(0);
    static HELD: Mutex<Vec<TcpListener>> = Mutex::new(Vec::new());
    let start = u16::try_from(std::process::id().wrapping_mul(97) % u32::from(COUNT)).unwrap();
    loop {
        let offset = (u32::from(start) + u32::from(NEXT.fetch_add(1, Ordering::Relaxed))) % u32::from(COUNT);
        let port = FIRST + u16::try_from(offset).unwrap();
        let Ok(held) = TcpListener::bind(SocketAddr::from((MARK, port))) else { continue };
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            HELD.lock().push(held);
            return port;
        }
    }
}
