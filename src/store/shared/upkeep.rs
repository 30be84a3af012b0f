//! What is done in the background: being counted among the nodes, keeping slots, probing a Redis that was away, and
//! handing in what was admitted meanwhile.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

use crate::charge::Manner;
use crate::store::redis::{Beside, Call, Encoded, Field};
use crate::store::shared::calls::{CallResult, NO_ANSWER};
use crate::store::shared::limit::{Part, SLOT_LIFETIME, slot_name};
use crate::store::shared::link::Script;
use crate::store::shared::{Node, Told};
use crate::units::{LimitKey, Nanos};

/// The slots of `concurrency` that requests of this node hold, so that they can be kept.
#[derive(Default)]
pub(super) struct Slots {
    last: AtomicU64,
    held: Mutex<HashMap<u64, Vec<Part>>>,
}

/// How often a node says that it is there, and how long it counts after it last did.
const HEARTBEAT: Nanos = Nanos::new(500_000_000);
const HEARTBEATS_KEPT_MS: u64 = 2_000;
/// How long a heartbeat or a probe may take.
const PATIENCE: Nanos = Nanos::new(250_000_000);
/// Slots are kept so often, and so many in one call.
const KEEP_EVERY: Nanos = Nanos::new(SLOT_LIFETIME.get() / 3);
const KEPT_AT_ONCE: usize = 100;
/// So many keys are handed in at a time.
const HANDED_AT_ONCE: usize = 32;

/// KEYS: the nodes. ARGV: a node, how long it counts in milliseconds. Answers how many nodes there are.
const HEARTBEAT_SCRIPT: &str = "local t = redis.call('TIME')
local now, life = t[1] * 1000 + math.floor(t[2] / 1000), tonumber(ARGV[2])
if redis.call('TYPE', KEYS[1]).ok ~= 'zset' then redis.call('DEL', KEYS[1]) end
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', now - life))
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', life))
return {redis.call('ZCARD', KEYS[1])}";

impl Slots {
    /// A number that no other slot of this node has.
    pub(super) fn next(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }

    pub(super) fn hold(&self, slot: u64, part: &Part) {
        self.held.lock().entry(slot).or_default().push(part.clone());
    }

    pub(super) fn let_go(&self, slot: u64) {
        self.held.lock().remove(&slot);
    }

    fn all(&self) -> Vec<(u64, Part)> {
        let held = self.held.lock();
        held.iter().flat_map(|(slot, parts)| parts.iter().map(|part| (*slot, part.clone()))).collect()
    }
}

impl Node {
    pub(super) async fn keep_in_touch(self: &Arc<Self>) {
        let heartbeat = Script::new(HEARTBEAT_SCRIPT);
        let mut keep_at = self.clock.now().saturating_add(KEEP_EVERY);
        // the others know of this node as soon as it begins
        self.beat(&heartbeat).await;
        loop {
            let pause = self.breaker.lock().pause(rand::random());
            sleep(pause.unwrap_or(HEARTBEAT).to_duration()).await;
            let good = self.beat(&heartbeat).await;
            if pause.is_some() {
                self.probed(good);
            } else if !good {
                self.failed(self.clock.now());
            }
            self.leases.sweep(self.clock.now());
            if !self.is_away() {
                self.hand_in().await;
                let now = self.clock.now();
                if now >= keep_at {
                    keep_at = now.saturating_add(KEEP_EVERY);
                    self.keep_slots().await;
                }
            }
        }
    }

    /// Says that this node is there, by a write that a server refuses which would refuse charges.
    async fn beat(&self, script: &Script) -> bool {
        let encoded = Encoded {
            keys: vec![format!("{}:{{nodes}}:nodes", self.settings.prefix)],
            arguments: vec![format!("{:016x}", self.id), HEARTBEATS_KEPT_MS.to_string()],
        };
        let sent = self.clock.now();
        let replied = timeout(PATIENCE.to_duration(), self.link.call(script, &encoded)).await;
        let (result, nodes) = match replied {
            Ok(Ok(reply)) => match *reply.fields() {
                [Field::Integer(nodes)] => (CallResult::Ok, u64::try_from(nodes).ok()),
                _ => (CallResult::Nonsense, None),
            },
            Ok(Err(error)) => {
                let result = CallResult::of(&error);
                self.complain(result, &error);
                (result, None)
            }
            Err(_) => {
                self.link.give_up().await;
                self.complain(CallResult::TimedOut, &NO_ANSWER);
                (CallResult::TimedOut, None)
            }
        };
        let took = self.clock.now().saturating_sub(sent);
        (self.observer)(Told { op: "heartbeat", result, took, charges: None });
        if let Some(nodes) = nodes.filter(|nodes| *nodes > 0) {
            self.nodes.store(nodes, Ordering::Relaxed);
        }
        nodes.is_some()
    }

    fn probed(&self, good: bool) {
        let mut breaker = self.breaker.lock();
        if breaker.probed(good) {
            self.is_away.store(false, Ordering::Relaxed);
            tracing::info!("Redis answers again");
        }
    }

    /// Charges Redis with what this node admitted while it was away.
    async fn hand_in(self: &Arc<Self>) {
        while self.fallback.owes() && !self.is_away() {
            let calls = self.fallback.some_keys(HANDED_AT_ONCE).into_iter().map(|key| {
                let node = Arc::clone(self);
                tokio::spawn(async move { node.hand_in_one(key).await })
            });
            let mut all_in = true;
            for call in calls.collect::<Vec<_>>() {
                all_in &= call.await.unwrap_or(false);
            }
            if !all_in {
                return;
            }
        }
    }

    /// Charges Redis with what was admitted of one key, down to a debt; what was not there is counted. Whether nothing
    /// is owed any more.
    async fn hand_in_one(self: &Arc<Self>, key: LimitKey) -> bool {
        let _turn = self.fallback.turn(key).await;
        let Some(due) = self.fallback.due(key, self.ahead.theirs(self.clock.now())) else { return true };
        let part = due.part.clone();
        let asks =
            Part { cost: 0, manner: Manner { binds: false, takes: false, counts_denied: false }, ..part.clone() };
        let owes = Part { manner: Manner { binds: false, takes: true, counts_denied: true }, ..part };
        let before = self.call_charge(std::slice::from_ref(&asks), 0).await;
        if self.call_charge(std::slice::from_ref(&owes), 0).await.is_err() {
            return false;
        }
        self.fallback.handed_in(&due, self.ahead.theirs(self.clock.now()));
        let remaining = before.ok().and_then(|before| before.each.first()?.first()?.headroom.remaining);
        if let Some(missing) = remaining.and_then(|remaining| owes.cost.checked_sub(remaining)) {
            self.counts.overshoot.fetch_add(missing, Ordering::Relaxed);
        }
        true
    }

    /// Hands in what was admitted of the keys of `parts`, before they are charged again.
    pub(super) async fn settle(self: &Arc<Self>, parts: &[Part]) {
        if self.fallback.owes() {
            for part in parts {
                self.hand_in_one(part.key).await;
            }
        }
    }

    /// Keeps the slots of requests that go on.
    async fn keep_slots(&self) {
        for some in self.slots.all().chunks(KEPT_AT_ONCE) {
            for (slot, part) in some {
                let name = slot_name(self.id, *slot);
                drop(self.call_change(("renew", Call::Renew), &[(part.clone(), Beside::Slot(&name))]).await);
            }
        }
    }
}
