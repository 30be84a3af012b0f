//! The pool of upstream connections that one worker keeps for later requests.

use hashbrown::HashMap;

use super::upstream::{Connection, Destination, Http1Connection, Http2Connection, Server};
use crate::units::Nanos;

/// See the module's documentation.
pub(super) struct Pool {
    /// The connections of each server; the most recently used one is the last.
    http1: HashMap<Server, Vec<IdleConnection>>,
    http2: HashMap<Server, Vec<SharedConnection>>,
    count: usize,
    /// The maximum number of HTTP/1.1 connections in the pool.
    max: usize,
}

#[derive(Debug)]
struct IdleConnection {
    connection: Box<Http1Connection>,
    until: Nanos,
}

/// An HTTP/2 connection, which stays in the pool while it has requests.
#[derive(Debug)]
struct SharedConnection {
    connection: Http2Connection,
    /// How long it is kept without a request.
    keep_alive: Nanos,
    last_used: Nanos,
}

impl SharedConnection {
    fn is_usable(&self, now: Nanos) -> bool {
        !self.connection.is_closed()
            && (self.last_used.saturating_add(self.keep_alive) > now || self.connection.running() > 0)
    }

    /// Whether it takes another request now.
    fn has_room(&self) -> bool {
        self.connection.running() < self.connection.max_streams()
    }
}

impl Pool {
    pub(super) fn new(max: usize) -> Self {
        Self { http1: HashMap::new(), http2: HashMap::new(), count: 0, max }
    }

    /// A usable connection to the server. Unless the request `can_be_resent`, this function checks with a system call
    /// that the connection is still open, because the runtime may not know that yet.
    pub(super) fn take(&mut self, destination: &Destination, can_be_resent: bool, now: Nanos) -> Option<Connection> {
        let Destination { server, keep_alive, .. } = destination;
        if server.http2 {
            let kept = self.http2.get_mut(server)?;
            // the setting may have changed since
            kept.iter_mut().for_each(|kept| kept.keep_alive = *keep_alive);
            kept.retain(|kept| kept.is_usable(now));
            let free = kept.iter_mut().find(|kept| *keep_alive > Nanos::ZERO && kept.has_room())?;
            free.last_used = now;
            return Some(Connection::Http2(free.connection.clone()));
        }
        let kept = self.http1.get_mut(server)?;
        while let Some(IdleConnection { mut connection, until }) = kept.pop() {
            self.count = self.count.saturating_sub(1);
            if until > now && connection.channel.socket.is_silent(!can_be_resent) {
                return Some(Connection::Http1(connection));
            }
        }
        None
    }

    /// Keeps an HTTP/1.1 connection for another request to `server`, for as long as `keep_alive`.
    pub(super) fn keep(&mut self, server: &Server, connection: Box<Http1Connection>, keep_alive: Nanos, now: Nanos) {
        if self.count >= self.max || keep_alive == Nanos::ZERO {
            return;
        }
        self.count = self.count.saturating_add(1);
        let kept = IdleConnection { connection, until: now.saturating_add(keep_alive) };
        match self.http1.get_mut(server) {
            Some(others) => others.push(kept),
            None => drop(self.http1.insert(server.clone(), vec![kept])),
        }
    }

    /// If a new connection is HTTP/2, lets other requests to `server` share it, and keeps it without a request for as long
    /// as `keep_alive`. A connection beside one that has room, for a request that the other one refused, serves only that request.
    pub(super) fn share(&mut self, server: &Server, connection: &Connection, keep_alive: Nanos, now: Nanos) {
        if let Connection::Http2(connection) = connection
            && keep_alive > Nanos::ZERO
        {
            let kept = self.http2.entry(server.clone()).or_default();
            if !kept.iter().any(|kept| kept.is_usable(now) && kept.has_room()) {
                kept.push(SharedConnection { connection: connection.clone(), keep_alive, last_used: now });
            }
        }
    }

    /// Closes connections that have been kept for their full time.
    pub(super) fn sweep(&mut self, now: Nanos) {
        for kept in self.http1.values_mut() {
            let before = kept.len();
            kept.retain_mut(|kept| kept.until > now && kept.connection.channel.socket.is_silent(false));
            self.count = self.count.saturating_sub(before.saturating_sub(kept.len()));
        }
        self.http1.retain(|_, kept| !kept.is_empty());
        for kept in self.http2.values_mut() {
            kept.retain_mut(|kept| {
                if kept.connection.running() > 0 {
                    kept.last_used = now;
                }
                kept.is_usable(now)
            });
        }
        self.http2.retain(|_, kept| !kept.is_empty());
    }
}
