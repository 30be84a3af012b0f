//! The Redis servers as this gateway sees them. Each has a breaker of its own, so that a server of a cluster that does
//! not answer keeps no call from the others.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::store::shared::breaker::{Breaker, Health, State};
use crate::units::Nanos;

/// The servers by their numbers ([`super::link::Scripts::server`]).
#[derive(Debug)]
pub(super) struct RedisServers(Box<[RedisServer]>);

#[derive(Debug, Default)]
struct RedisServer {
    watch: Mutex<Watch>,
    /// Whether the breaker keeps this gateway from calling the server.
    is_unavailable: AtomicBool,
}

#[derive(Debug, Default)]
struct Watch {
    breaker: Breaker,
    /// The hash tag of a key that the server had when its breaker opened: probes write to a key with this tag.
    tag: String,
    /// Why the last call or probe failed, if it did.
    failure: Option<String>,
}

/// The status of a Redis server, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerStatus {
    /// The server's number ([`super::link::Scripts::server`]).
    pub number: usize,
    /// The server's address, if it is known.
    pub name: Option<String>,
    /// The state of its breaker.
    pub breaker: State,
    /// Why the last call or probe failed, if it did.
    pub failure: Option<String>,
    /// Tokens of its keys that this gateway admitted while the server was unavailable and has yet to reconcile.
    pub unsynced: u64,
}

impl Watch {
    /// Notes the reason of a failure; that of a late answer is the `timeout`.
    fn set_failure(&mut self, health: Health, failure: Option<String>, timeout: Nanos) {
        self.failure = match health {
            Health::InTime => None,
            Health::Late => Some(format!("no answer in {timeout}")),
            Health::Failed => failure,
        };
    }
}

impl RedisServers {
    /// This many servers, all of them available.
    pub(super) fn new(count: usize) -> Self {
        Self((0..count).map(|_| RedisServer::default()).collect())
    }

    /// Whether this gateway does not call the server.
    pub(super) fn is_unavailable(&self, server: usize) -> bool {
        self.0.get(server).is_some_and(|server| server.is_unavailable.load(Ordering::Relaxed))
    }

    /// The state of each server's breaker; half open until calls are resumed.
    pub(super) fn states(&self) -> impl Iterator<Item = State> {
        self.0.iter().map(|server| match server.watch.lock().breaker.state() {
            State::Closed if server.is_unavailable.load(Ordering::Relaxed) => State::HalfOpen { good: 0 },
            state => state,
        })
    }

    /// Why the last call or probe of the server failed, if it did.
    pub(super) fn failure(&self, server: usize) -> Option<String> {
        self.0.get(server)?.watch.lock().failure.clone()
    }

    /// Records the result of a call to the server for a key with the hash tag `tag`, with the reason of a failure; see
    /// [`Breaker::record_call`].
    pub(super) fn record_call(
        &self,
        server: usize,
        tag: impl FnOnce() -> String,
        (health, failure): (Health, Option<String>),
        timeout: Nanos,
        now: Nanos,
    ) -> bool {
        let Some(server) = self.0.get(server) else { return false };
        let mut watch = server.watch.lock();
        watch.set_failure(health, failure, timeout);
        let opens = watch.breaker.record_call(health, timeout, now);
        if opens {
            watch.tag = tag();
            server.is_unavailable.store(true, Ordering::Relaxed);
        }
        opens
    }

    /// Records the result of a probe of the server, with the reason of a failure; see [`Breaker::record_probe`].
    pub(super) fn record_probe(
        &self,
        server: usize,
        (health, failure): (Health, Option<String>),
        timeout: Nanos,
        now: Nanos,
    ) -> bool {
        let Some(server) = self.0.get(server) else { return false };
        let mut watch = server.watch.lock();
        watch.set_failure(health, failure, timeout);
        watch.breaker.record_probe(health, now)
    }

    /// The servers that need probes, each with the hash tag of one of its keys.
    pub(super) fn probed(&self) -> Vec<(usize, String)> {
        let probed = self.0.iter().enumerate().filter_map(|(number, server)| {
            let watch = server.watch.lock();
            (watch.breaker.state() != State::Closed).then(|| (number, watch.tag.clone()))
        });
        probed.collect()
    }

    /// The pause before the next probe of the server; `None` if it needs none. See [`Breaker::pause`].
    pub(super) fn pause(&self, server: usize, roll: u32) -> Option<Nanos> {
        self.0.get(server)?.watch.lock().breaker.pause(roll)
    }

    /// Whether the breaker of the server is closed: it answers, whether or not calls are resumed.
    pub(super) fn is_closed(&self, server: usize) -> bool {
        self.0.get(server).is_some_and(|server| server.watch.lock().breaker.state() == State::Closed)
    }

    /// The servers that answer again, but that this gateway does not call yet.
    pub(super) fn recovered(&self) -> Vec<usize> {
        (0..self.0.len()).filter(|server| self.is_unavailable(*server) && self.is_closed(*server)).collect()
    }

    /// Resumes calls to the server, unless its breaker has opened meanwhile. Returns whether it has not.
    pub(super) fn resume(&self, server: usize) -> bool {
        let Some(server) = self.0.get(server) else { return false };
        let watch = server.watch.lock();
        let is_closed = watch.breaker.state() == State::Closed;
        if is_closed {
            server.is_unavailable.store(false, Ordering::Relaxed);
        }
        is_closed
    }
}
