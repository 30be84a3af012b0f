//! Heartbeats: the gateways count each other by them, and find out whether Redis takes writes.
//!
//! They have connections and a loop of their own, so that no other call to Redis delays them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{sleep, timeout};

use crate::store::redis::{Encoded, Field};
use crate::store::shared::breaker::Health;
use crate::store::shared::calls::{CallResult, Operation};
use crate::store::shared::link::{CallError, Link, Script, Scripts};
use crate::store::shared::{CallEvent, SharedStore, run_bounded};
use crate::units::Nanos;

/// The interval between a gateway's heartbeats, and how long each one counts.
pub(super) const HEARTBEAT: Nanos = Nanos::new(500_000_000);
const HEARTBEATS_KEPT_MS: u64 = 2_000;
/// The hash tag of the heartbeats that count the gateways.
const NODES: &str = "nodes";
/// The most servers that are probed at a time.
const PROBED_AT_ONCE: usize = 16;
/// How long a heartbeat may take.
const PATIENCE: Nanos = Nanos::new(250_000_000);
/// The number of consecutive heartbeats that must count fewer gateways before this gateway believes it: 30 s.
const BEATS_UNTIL_FEWER: u32 = 60;

/// KEYS: the gateways. ARGV: a gateway, how long it counts in milliseconds. Returns the number of gateways. The script
/// adds before it removes: when Redis is out of memory, it refuses a script only until the script's first write.
const HEARTBEAT_SCRIPT: &str = "local t = redis.call('TIME')
local now, life = t[1] * 1000 + math.floor(t[2] / 1000), tonumber(ARGV[2])
local kind = redis.call('TYPE', KEYS[1]).ok
if kind ~= 'zset' and kind ~= 'none' then redis.call('DEL', KEYS[1]) end
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', now - life))
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', life))
redis.call('SET', KEYS[2], redis.call('GET', KEYS[2]) or '', 'PX', string.format('%.0f', life))
return {redis.call('ZCARD', KEYS[1])}";

/// KEYS: the gateways. ARGV: a gateway that ends.
const LEAVING_SCRIPT: &str = "return {redis.call('ZREM', KEYS[1], ARGV[1])}";

/// The number of gateways, by heartbeats. A higher number counts at once; a lower one only after [`BEATS_UNTIL_FEWER`]
/// in a row: after an outage the first gateway is alone for a moment, and would take the whole limit as its share in
/// the next one.
#[derive(Debug)]
pub(super) struct NodeCount {
    min: u64,
    count: u64,
    /// The highest number since it seems lower, and the number of heartbeats since then.
    fewer: (u64, u32),
}

impl NodeCount {
    /// A count that is never below `min`.
    pub(super) const fn at_least(min: u64) -> Self {
        Self { min, count: min, fewer: (0, 0) }
    }

    /// Records the number of gateways that a heartbeat found; `None` if it failed. Returns the number of gateways.
    fn heard(&mut self, seen: Option<u64>) -> u64 {
        let (max_seen, beats) = self.fewer;
        self.fewer = match seen {
            Some(seen) if seen < self.count => (max_seen.max(seen), beats.saturating_add(1)),
            _ => (0, 0),
        };
        self.count = self.count.max(seen.unwrap_or_default());
        if self.fewer.1 >= BEATS_UNTIL_FEWER {
            self.count = self.fewer.0.max(self.min);
            self.fewer = (0, 0);
        }
        self.count
    }
}

impl SharedStore {
    /// Sends the heartbeats that count the gateways, for as long as it is polled. They show whether their server
    /// answers.
    pub(super) async fn keep_heartbeat(self: &Arc<Self>) {
        let script = Script::new(HEARTBEAT_SCRIPT);
        // each gateway has its own seed, so that their pauses differ
        let mut random = SmallRng::seed_from_u64(self.id);
        loop {
            let server = self.counts_nodes();
            let (nodes, health) = self.heartbeat(&script, server, NODES).await;
            self.nodes.store(self.node_count.lock().heard(nodes.as_ref().ok().copied()), Ordering::Relaxed);
            self.record_probe(server, (health, nodes.clone().err()));
            if health == Health::Failed {
                self.record_call(server, || NODES.to_owned(), (health, nodes.err()));
            }
            let pause = self.servers.pause(server, random.random());
            sleep(pause.unwrap_or(HEARTBEAT).to_duration()).await;
        }
    }

    /// Probes the other servers of a cluster that are unavailable, for as long as it is polled.
    pub(super) async fn keep_probing(self: &Arc<Self>) {
        let script = Arc::new(Script::new(HEARTBEAT_SCRIPT));
        let mut random = SmallRng::seed_from_u64(self.id);
        loop {
            let own = self.counts_nodes();
            let probed: Vec<_> = self.servers.probed().into_iter().filter(|(server, _)| *server != own).collect();
            let roll = random.random();
            let probes = probed.iter().cloned().map(|(server, tag)| {
                let (gateway, script) = (Arc::clone(self), Arc::clone(&script));
                async move {
                    let (nodes, health) = gateway.heartbeat(&script, server, &tag).await;
                    gateway.record_probe(server, (health, nodes.err()));
                }
            });
            run_bounded(PROBED_AT_ONCE, probes.collect()).await;
            let pause = probed.iter().filter_map(|(server, _)| self.servers.pause(*server, roll)).min();
            sleep(pause.unwrap_or(HEARTBEAT).to_duration()).await;
        }
    }

    /// Removes this gateway from those that heartbeats count, if Redis answers: a process that starts in its place is then
    /// not one more. It is the last call of a process without a successor, over a connection of its own.
    pub async fn leave(&self) {
        if !self.servers.is_closed(self.counts_nodes()) {
            return;
        }
        let encoded = Encoded { keys: vec![self.heartbeat_key(NODES, "nodes")], arguments: vec![self.member_name()] };
        let link = Link::new(self.settings.servers.clone(), 1);
        drop(timeout(PATIENCE.to_duration(), link.call(&Script::new(LEAVING_SCRIPT), &encoded)).await);
    }

    fn heartbeat_key(&self, tag: &str, name: &str) -> String {
        format!("{}:{{{tag}}}:{name}", self.settings.prefix)
    }

    fn member_name(&self) -> String {
        format!("{:016x}", self.member)
    }

    /// The number of the server that counts the gateways.
    fn counts_nodes(&self) -> usize {
        self.heartbeat_link.server(self.heartbeat_link.slot_of(NODES))
    }

    /// Sends a heartbeat to the server that has the keys with this hash tag. It reads and writes a string as charges do, so
    /// that a server that refuses charges refuses it too. Returns the number of gateways that have sent heartbeats with
    /// this tag, or the reason of a failure.
    async fn heartbeat(&self, script: &Script, server: usize, tag: &str) -> (Result<u64, String>, Health) {
        let encoded = Encoded {
            keys: ["nodes", "probe"].map(|name| self.heartbeat_key(tag, name)).to_vec(),
            arguments: vec![self.member_name(), HEARTBEATS_KEPT_MS.to_string()],
        };
        let sent = self.clock.now();
        let replied = timeout(PATIENCE.to_duration(), self.heartbeat_link.call(script, &encoded)).await;
        let replied = replied.unwrap_or(Err(CallError::TimedOut));
        let (result, nodes) = match replied {
            Ok(reply) => match *reply.fields() {
                [Field::Integer(nodes @ 0..)] => (CallResult::Ok, Ok(nodes.unsigned_abs())),
                _ => (CallResult::Invalid, Err("the answer is no number of gateways".to_owned())),
            },
            Err(error) => {
                if error == CallError::TimedOut {
                    self.heartbeat_link.close(server);
                }
                (CallResult::of(&error), Err(error.to_string()))
            }
        };
        if let Err(error) = &nodes {
            self.log_failure(server, result, error);
        }
        let took = self.clock.now().saturating_sub(sent);
        (self.observer)(CallEvent { operation: Operation::Heartbeat, result, took, charges: None });
        let health = match nodes {
            Err(_) => Health::Failed,
            Ok(_) if took > self.settings.timeout => Health::Late,
            Ok(_) => Health::InTime,
        };
        (nodes, health)
    }

    fn record_probe(&self, server: usize, result: (Health, Option<String>)) {
        if self.servers.record_probe(server, result, self.settings.timeout, self.clock.now()) {
            self.recovered.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_nodes_count_at_once_and_fewer_after_half_a_minute() {
        let mut nodes = NodeCount::at_least(2);
        assert_eq!(nodes.heard(Some(1)), 2);
        assert_eq!(nodes.heard(Some(5)), 5);
        (1..BEATS_UNTIL_FEWER).for_each(|beat| assert_eq!(nodes.heard(Some(1 + u64::from(beat % 3))), 5, "{beat}"));
        // an outage in between says nothing about the number of gateways
        assert_eq!(nodes.heard(None), 5);
        (1..BEATS_UNTIL_FEWER).for_each(|beat| assert_eq!(nodes.heard(Some(1 + u64::from(beat % 3))), 5, "{beat}"));
        assert_eq!(nodes.heard(Some(1)), 3, "the most that were seen meanwhile");
        (0..BEATS_UNTIL_FEWER).for_each(|_| assert!(nodes.heard(Some(1)) >= 2));
        assert_eq!(nodes.heard(Some(1)), 2, "as the configuration says");
    }
}
