//! The gateway's side of limits that all nodes share: what is asked of Redis, when, and what is done without it.
//!
//! A request's part in Redis is asked for by a task of its own, so that a request that goes away takes nothing with it:
//! what was taken for it is given back. Nobody waits for Redis longer than [`Settings::timeout`]; a breaker stops asking
//! while it does not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::charge::{AllCharged, Charge, Charged, Taken};
use crate::clock::Clock;
use crate::store::LimitSpec;
use crate::store::redis::{Beside, Call, SCRIPT};
use crate::units::{LimitKey, Nanos};

mod breaker;
mod calls;
mod clock;
mod fallback;
mod limit;
mod line;
pub mod link;
mod memory;
mod settings;
mod upkeep;

pub use breaker::State as BreakerState;
pub use calls::CallResult;
pub use limit::{SharedLimit, refuse};
pub use settings::{KeySecret, Settings};

use breaker::Breaker;
use calls::{Counts, Down};
use clock::Ahead;
pub(super) use fallback::Tables;
use fallback::{Fallback, Stranded};
use limit::{Part, slot_name, slot_of};
use line::Lines;
use link::{Link, Script};
use memory::Memory;

/// Is told of every call: what was asked, what came of it, and how long it took.
pub type Observer = Box<dyn Fn(&'static str, CallResult, Nanos) + Send + Sync>;

/// States that all nodes share, in Redis.
pub struct SharedStore(Arc<Node>);

/// This gateway as one of several.
struct Node {
    /// Tells nodes apart.
    id: u64,
    settings: Settings,
    link: Link,
    script: Script,
    clock: Arc<dyn Clock>,
    observer: Observer,
    ahead: Ahead,
    memory: Memory,
    lines: Lines,
    breaker: Mutex<Breaker>,
    /// Whether the breaker leaves Redis alone.
    is_away: AtomicBool,
    fallback: Fallback,
    /// How many nodes there are, as far as is known.
    nodes: AtomicU64,
    /// The slots that requests of this node hold.
    slots: upkeep::Slots,
    /// Changes that are on their way to Redis.
    pending: AtomicU64,
    counts: Counts,
}

/// How things stand, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Whether Redis is asked.
    pub breaker: BreakerState,
    /// How many nodes there are, as far as is known.
    pub nodes: u64,
    /// States that made no sense and were set right.
    pub healed: u64,
    /// Tokens that this node admitted while Redis was away and that were not there when it came back.
    pub overshoot: u64,
}

/// What came of a part that was asked for.
pub(super) enum Asked {
    /// Redis decided.
    Charged(AllCharged),
    /// Redis could not be asked, and this node decided.
    Alone(AllCharged),
    /// Redis could not be asked, and the limit of this position wants nothing admitted then.
    Refused(usize),
}

impl SharedStore {
    /// Connects when it is first asked. `threads` is how many threads ask.
    pub fn new(settings: Settings, threads: usize, clock: Arc<dyn Clock>, observer: Observer) -> Self {
        let link = Link::new(settings.servers.clone(), threads);
        Self(Arc::new(Node {
            id: rand::random(),
            nodes: AtomicU64::new(settings.nodes.unwrap_or(1)),
            settings,
            link,
            script: Script::new(SCRIPT),
            clock,
            observer,
            ahead: Ahead::default(),
            memory: Memory::new(),
            lines: Lines::default(),
            breaker: Mutex::default(),
            is_away: AtomicBool::new(false),
            fallback: Fallback::default(),
            slots: upkeep::Slots::default(),
            pending: AtomicU64::new(0),
            counts: Counts::default(),
        }))
    }

    /// How things stand.
    pub fn report(&self) -> Report {
        let node = &self.0;
        Report {
            breaker: node.breaker.lock().state(),
            nodes: node.nodes.load(Ordering::Relaxed),
            healed: node.counts.healed.load(Ordering::Relaxed),
            overshoot: node.counts.overshoot.load(Ordering::Relaxed),
        }
    }

    /// Whether nothing is on its way to Redis that would be lost if the process ended now.
    pub fn is_settled(&self) -> bool {
        self.0.pending.load(Ordering::Relaxed) == 0
    }

    /// Keeps in touch with Redis and the other nodes, for as long as it is polled.
    pub async fn run(&self) {
        self.0.keep_in_touch().await;
    }

    pub(super) fn limit(spec: &LimitSpec<'_>) -> Option<SharedLimit> {
        SharedLimit::new(spec)
    }

    /// The denial of a charge, if it is certain without asking.
    pub(super) fn denial(&self, limit: &SharedLimit, charge: &Charge, now: Nanos) -> Option<Charged> {
        let part = limit.part(charge)?;
        self.0.memory.denial(&part, self.0.ahead.theirs(now))
    }

    /// Where the key of a charge stands, as far as is known.
    pub(super) fn standing(&self, limit: &SharedLimit, charge: &Charge, now: Nanos) -> Option<Charged> {
        let part = limit.part(charge)?;
        Some(self.0.memory.standing(&part, self.0.ahead.theirs(now)))
    }

    /// Charges what lies in Redis of one request, all or none.
    pub(super) async fn charge(
        &self,
        tables: Tables<'_>,
        limits: &[&SharedLimit],
        batch: &mut [Charge],
        now: Nanos,
    ) -> Asked {
        let node = &self.0;
        let parts: Vec<Part> = limits.iter().zip(&*batch).filter_map(|(limit, charge)| limit.part(charge)).collect();
        if let Ok(charged) = node.ask(&parts, batch, now).await {
            return Asked::Charged(charged);
        }
        let theirs = node.ahead.theirs(now);
        let mut stranded: Vec<Stranded<'_>> = limits
            .iter()
            .zip(batch)
            .zip(&parts)
            .map(|((limit, charge), part)| Stranded {
                charge,
                part,
                on_down: limit.sharing.on_store_down,
                used: node.memory.used(part, theirs),
            })
            .collect();
        let nodes = node.nodes.load(Ordering::Relaxed);
        match node.fallback.charge(tables, &mut stranded, nodes, (now, theirs)) {
            Ok(charged) => Asked::Alone(charged),
            Err(refused) => Asked::Refused(refused),
        }
    }

    /// What lies in the same slot of a cluster can be charged in one call.
    pub(super) fn slot(&self, tag: LimitKey) -> u16 {
        self.0.link.slot(tag)
    }

    /// Takes back what a charge took in Redis; `full_at` as in [`super::Store::refund`].
    pub(super) fn refund(&self, limit: &SharedLimit, charge: &Charge, full_at: Nanos) {
        let Some(part) = limit.part(charge) else { return };
        match slot_of(charge) {
            Some(slot) => self.0.release(slot, [&part]),
            None => self.0.refund_later(vec![(part, self.0.ahead.theirs(full_at))]),
        }
    }

    /// Charges whatever the limit says.
    pub(super) fn debit(&self, limit: &SharedLimit, charge: &Charge) {
        let Some(part) = limit.part(charge) else { return };
        let node = Arc::clone(&self.0);
        if node.is_away() {
            let theirs = node.ahead.theirs(node.clock.now());
            node.fallback.owe(&part, charge.cost, theirs);
            return;
        }
        self.0.later(async move {
            // what is lost here is lost to the limit: a debit is tried once
            drop(node.call_change(("debit", Call::Debit), &[(part, Beside::Nothing)]).await);
        });
    }

    /// Gives back the slot that a charge took.
    pub(super) fn complete(&self, limit: &SharedLimit, charge: &Charge) {
        if let (Some(part), Some(slot)) = (limit.part(charge), slot_of(charge)) {
            self.0.release(slot, [&part]);
        }
    }
}

impl std::fmt::Debug for SharedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedStore").field("report", &self.report()).finish_non_exhaustive()
    }
}

impl Node {
    fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Relaxed)
    }

    /// What Redis says to one request, if it says so in time.
    async fn ask(self: &Arc<Self>, parts: &[Part], batch: &mut [Charge], now: Nanos) -> Result<AllCharged, Down> {
        if self.is_away() {
            return Err(Down);
        }
        let mergeable = parts.iter().all(|part| !part.rule().holds() && !part.rule().denials_count());
        let slot = parts.iter().any(|part| part.rule().holds()).then(|| self.slots.next());
        let heard = match mergeable {
            true => self.ask_together(parts.to_vec()),
            false => self.ask_alone(parts.to_vec(), slot.unwrap_or_default()),
        };
        let heard = timeout(self.settings.timeout.to_duration(), heard).await;
        let Ok(Ok(Ok(charged))) = heard else {
            self.failed(now);
            return Err(Down);
        };
        self.breaker.lock().succeeded(now);
        if let Some(slot) = slot {
            for ((part, charge), charged) in parts.iter().zip(batch).zip(&charged) {
                if part.rule().holds() && part.manner.takes && charged.decision.is_admitted() {
                    charge.taken = Taken::Slot(slot);
                    self.slots.hold(slot, part);
                }
            }
        }
        Ok(charged)
    }

    /// A request did not hear from Redis in time.
    fn failed(self: &Arc<Self>, now: Nanos) {
        if self.breaker.lock().failed(now) {
            self.is_away.store(true, Ordering::Relaxed);
            self.fallback.begin();
            tracing::warn!("Redis does not answer; limits that nodes share are enforced as their `on_store_down` says");
            let node = Arc::clone(self);
            // answers that are still to come are of use to nobody
            self.later(async move { node.link.give_up().await });
        }
    }

    /// Takes charges back; beside each stands when its key was going to be whole, on Redis's clock.
    fn refund_later(self: &Arc<Self>, back: Vec<(Part, Nanos)>) {
        if back.is_empty() || self.is_away() {
            return;
        }
        let node = Arc::clone(self);
        self.later(async move {
            let back: Vec<_> = back.into_iter().map(|(part, full_at)| (part, Beside::FullAt(full_at))).collect();
            // what cannot be given back is missing until time makes it good
            drop(node.call_change(("refund", Call::Refund), &back).await);
        });
    }

    /// Gives the slot of this number back under each limit.
    fn release<'p>(self: &Arc<Self>, slot: u64, parts: impl IntoIterator<Item = &'p Part>) {
        self.slots.let_go(slot);
        for part in parts {
            if self.is_away() {
                return;
            }
            let (node, name, part) = (Arc::clone(self), slot_name(self.id, slot), part.clone());
            self.later(async move {
                // a slot that cannot be given back lapses
                drop(node.call_change(("complete", Call::Complete), &[(part, Beside::Slot(&name))]).await);
            });
        }
    }

    /// Does something that no request waits for.
    fn later(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let Ok(runtime) = Handle::try_current() else { return };
        self.pending.fetch_add(1, Ordering::Relaxed);
        let pending = Pending(Arc::clone(self));
        runtime.spawn(async move {
            task.await;
            drop(pending);
        });
    }
}

/// Something on its way.
struct Pending(Arc<Node>);

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::Relaxed);
    }
}
