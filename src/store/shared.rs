//! The gateway's side of limits that all gateways share: its calls to Redis, their times, and its decisions without
//! Redis.
//!
//! A task of its own calls Redis for a request, so that the call survives a request that goes away: the task then gives
//! back the charges. No request waits for Redis longer than [`StoreSettings::timeout`]; a breaker stops the calls while
//! Redis does not answer.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use crate::charge::{AllCharged, Charge, ChargeSource, Charged, DecisionSource, OnStoreDown};
use crate::clock::Clock;
use crate::store::LimitSpec;
use crate::store::redis::SCRIPT;
use crate::units::{ClockOffset, LimitKey, Nanos};

mod amend;
mod background;
mod breaker;
mod calls;
mod clock;
mod coalescer;
mod corrections;
mod eventual;
mod ewma;
mod fallback;
mod heartbeat;
mod lease;
mod limit;
pub mod link;
mod memory;
mod receipt;
mod reconcile;
mod servers;
mod settings;
mod slots;

pub use breaker::State as BreakerState;
pub use calls::{CallResult, Operation};
pub use lease::LeaseReport;
pub use limit::{SharedLimit, check_shareable};
pub use servers::ServerStatus;
pub use settings::{KeySecret, StoreSettings};

use background::run_bounded;
use breaker::Health;
use calls::{CallFailure, Counts};
use clock::RedisClocks;
use coalescer::{ChargeResult, RequestCoalescer};
use eventual::EventualCounters;
pub(super) use fallback::LocalTables;
use fallback::{DegradedCharge, Fallback};
use heartbeat::NodeCount;
use lease::{LeaseOutcome, Leases};
use limit::ChargePart;
use link::{Link, Script, Scripts};
use memory::StateCache;
use receipt::ChargeReceipt;
use servers::RedisServers;
use slots::Slots;

/// A map by key. Keys are keyed hashes, so no client can choose their places in the map. The hasher is fixed, so that a
/// simulation sees the keys in the same order in each run.
type ByKey<T> = HashMap<LimitKey, T, BuildHasherDefault<DefaultHasher>>;

/// The callback for every call that has ended.
pub type CallObserver = Box<dyn Fn(CallEvent) + Send + Sync>;

/// A call that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallEvent {
    /// What the call was for.
    pub operation: Operation,
    /// The call's result.
    pub result: CallResult,
    /// The call's duration.
    pub took: Nanos,
    /// The number of requests that the call was to charge; `None` for calls that do not charge.
    pub charges: Option<u64>,
}

/// States that all gateways share, in Redis, as this gateway uses them.
pub struct SharedStore {
    /// The number that identifies this process.
    id: u64,
    /// The number by which heartbeats count this gateway: that of the first process, if others took over from it.
    member: u64,
    settings: StoreSettings,
    link: Box<dyn Scripts>,
    heartbeat_link: Box<dyn Scripts>,
    script: Script,
    clock: Arc<dyn Clock>,
    observer: CallObserver,
    redis_clocks: RedisClocks,
    memory: StateCache,
    coalescer: RequestCoalescer,
    leases: Leases,
    counters: EventualCounters,
    /// Notified when the counts have to be synced at once.
    must_sync: Notify,
    /// The mean duration of a call, in nanoseconds.
    call_time: AtomicU64,
    servers: RedisServers,
    /// Notified when the breaker of a server closes.
    recovered: Notify,
    /// Notified when calls to a server are resumed.
    resumed: Notify,
    fallback: Fallback,
    node_count: Mutex<NodeCount>,
    /// The number of gateways, as far as this gateway knows.
    nodes: AtomicU64,
    /// The slots that requests of this gateway hold.
    slots: Slots,
    /// The number of changes that are on their way to Redis.
    pending: AtomicU64,
    counts: Counts,
}

/// The status of the shared store, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedStatus {
    /// The state of the servers' breakers: the worst, if there are several servers.
    pub breaker: BreakerState,
    /// The number of gateways, as far as this gateway knows.
    pub nodes: u64,
    /// Invalid states in Redis that the script repaired or dropped.
    pub healed: u64,
    /// Tokens that this gateway admitted while Redis was unavailable and that Redis's bucket lacked when it recovered.
    pub overshoot: u64,
    /// Tokens that this gateway admitted while Redis was unavailable and has yet to reconcile.
    pub unsynced: u64,
    /// Requests that wait in a queue behind another call.
    pub waiting: u64,
    /// How far Redis's clock is ahead of this gateway's, in nanoseconds; behind if negative.
    pub clock_ahead: i64,
    /// The counts of leased tokens.
    pub leases: LeaseReport,
}

/// The result of the shared part of a request.
pub(super) enum SharedOutcome {
    /// Redis decided, or this gateway did with tokens that Redis had granted or counts that it had synced.
    Charged(AllCharged, DecisionSource),
    /// Redis was unavailable, and this gateway decided.
    Degraded(AllCharged),
    /// Redis was unavailable, and the limit at this position then denies everything; or it has no rule for Redis.
    FailedClosed(usize),
}

impl SharedStore {
    /// A store that connects at its first call. `threads` is the number of threads that call Redis. `member` is the number
    /// of the process that hands over to this one, if one does: both then count as one gateway.
    pub fn new(
        settings: StoreSettings,
        threads: usize,
        member: Option<u64>,
        clock: Arc<dyn Clock>,
        observer: CallObserver,
    ) -> Arc<Self> {
        let link = |threads| Box::new(Link::new(settings.servers.clone(), threads)) as Box<dyn Scripts>;
        let (links, id) = ((link(threads), link(1)), rand::random());
        Self::reached_over(links, (id, member.unwrap_or(id)), settings, clock, observer)
    }

    /// A store of the process `id`, which must be unique, and of the gateway `member`. It calls over the first link and
    /// sends heartbeats over the second.
    pub fn reached_over(
        (link, heartbeat_link): (Box<dyn Scripts>, Box<dyn Scripts>),
        (id, member): (u64, u64),
        settings: StoreSettings,
        clock: Arc<dyn Clock>,
        observer: CallObserver,
    ) -> Arc<Self> {
        let min = settings.nodes.unwrap_or(1);
        Arc::new(Self {
            id,
            member,
            node_count: Mutex::new(NodeCount::at_least(min)),
            nodes: AtomicU64::new(min),
            heartbeat_link,
            settings,
            script: Script::new(&SCRIPT),
            clock,
            observer,
            redis_clocks: RedisClocks::new(link.slots()),
            servers: RedisServers::new(link.servers()),
            link,
            memory: StateCache::new(),
            coalescer: RequestCoalescer::default(),
            leases: Leases::new(),
            counters: EventualCounters::default(),
            must_sync: Notify::new(),
            call_time: AtomicU64::new(0),
            recovered: Notify::new(),
            resumed: Notify::new(),
            fallback: Fallback::new(),
            slots: Slots::default(),
            pending: AtomicU64::new(0),
            counts: Counts::default(),
        })
    }

    /// The status at this time.
    pub fn report(&self) -> SharedStatus {
        SharedStatus {
            breaker: self.servers.states().max().unwrap_or(BreakerState::Closed),
            nodes: self.nodes.load(Ordering::Relaxed),
            healed: self.counts.healed.load(Ordering::Relaxed),
            overshoot: self.counts.overshoot.load(Ordering::Relaxed),
            unsynced: self.fallback.unsynced(),
            waiting: self.coalescer.waiting(),
            clock_ahead: self.redis_clocks.nanoseconds(),
            leases: self.leases.report(),
        }
    }

    /// The status of each Redis server that this gateway knows or has tokens to reconcile with.
    pub fn servers(&self) -> Vec<ServerStatus> {
        let unsynced = self.fallback.unsynced_by(|tag| self.link.server(self.link.slot(tag)));
        let all = self.servers.states().enumerate().map(|(number, breaker)| {
            let unsynced = unsynced.get(&number).copied().unwrap_or_default();
            let (name, failure) = (self.link.server_name(number), self.servers.failure(number));
            ServerStatus { number, name, breaker, failure, unsynced }
        });
        let is_known = |server: &ServerStatus| {
            server.name.is_some() || server.breaker != BreakerState::Closed || server.unsynced > 0
        };
        all.filter(is_known).collect()
    }

    /// Whether the process can end now without losing changes that are on their way to Redis, or counts that Redis does
    /// not know. If it does not, these are synced at once.
    pub fn is_settled(&self) -> bool {
        if self.counters.has_unsynced(|part| !self.is_unavailable(part)) {
            self.must_sync.notify_one();
            return false;
        }
        self.pending.load(Ordering::Relaxed) == 0
    }

    /// Connects the calling thread, if Redis answers quickly, so that its first requests need not wait for a connection.
    pub async fn connect(&self) {
        self.link.open().await;
    }

    /// Runs the background tasks (heartbeat, reconciliation, slots, sync) for as long as it is polled.
    pub async fn run(self: &Arc<Self>) {
        tokio::join!(
            self.keep_heartbeat(),
            self.keep_probing(),
            self.keep_resuming(),
            self.keep_reconciling(),
            self.keep_slots(),
            self.keep_syncing()
        );
    }

    /// The number by which heartbeats count this gateway.
    pub const fn member(&self) -> u64 {
        self.member
    }

    pub(super) fn limit(&self, spec: &LimitSpec<'_>) -> Option<SharedLimit> {
        SharedLimit::new(spec)
    }

    /// The denial of a charge, if it is certain without a call.
    pub(super) fn denial(&self, limit: &SharedLimit, charge: &Charge, now: Nanos) -> Option<Charged> {
        let part = limit.part(charge)?;
        let has_own = limit.is_eventual() || (limit.is_leased() && self.leases.balance(&part, now) >= part.cost);
        if has_own { None } else { self.memory.denial(&part, self.redis_time(&part, now)) }
    }

    /// The result that this gateway expects for a charge, from the key's last known state.
    pub(super) fn predict(&self, limit: &SharedLimit, charge: &Charge, now: Nanos) -> Option<Charged> {
        let part = limit.part(charge)?;
        Some(self.memory.predict(&part, self.redis_time(&part, now)))
    }

    /// Charges the shared limits of one request, all or none. The request came at `now`, and has waited for Redis for
    /// `waited`.
    pub(super) async fn charge(
        self: &Arc<Self>,
        tables: LocalTables<'_>,
        limits: &[&SharedLimit],
        batch: &mut [Charge],
        now: Nanos,
        waited: &mut Nanos,
    ) -> SharedOutcome {
        let mut parts: Vec<ChargePart> = Vec::with_capacity(batch.len());
        for (position, (limit, charge)) in limits.iter().zip(&*batch).enumerate() {
            let Some(part) = limit.part(charge) else { return SharedOutcome::FailedClosed(position) };
            parts.push(part);
        }
        let asked = match (limits, &*parts, &mut *batch) {
            // a lease does not tell Redis of denied requests
            ([limit], [part], [charge]) if limit.is_leased() && !part.enforcement.counts_denied => {
                self.charge_leased(part, charge, now, waited).await
            }
            ([limit], [part], [charge]) if limit.is_eventual() => self.charge_eventual(part, charge, now, waited).await,
            _ => self.charge_exact(&parts, batch, now, waited).await.map(|charged| (charged, DecisionSource::Store)),
        };
        if let Ok((charged, source)) = asked {
            return SharedOutcome::Charged(charged, source);
        }
        let mut degraded: Vec<DegradedCharge<'_>> = limits
            .iter()
            .zip(batch)
            .zip(&parts)
            .map(|((limit, charge), part)| self.degraded(limit, part, charge, now))
            .collect();
        match self.fallback.charge(tables, &self.slots, &mut degraded, now) {
            Ok(charged) => SharedOutcome::Degraded(charged),
            Err(refused) => SharedOutcome::FailedClosed(refused),
        }
    }

    /// The cluster slot of a tag: keys of the same slot can be charged in one call.
    pub(super) fn slot(&self, tag: LimitKey) -> u16 {
        self.link.slot(tag)
    }

    /// The number of the server that has the key of `part`.
    fn server(&self, part: &ChargePart) -> usize {
        self.link.server(self.link.slot(part.tag))
    }

    /// Whether this gateway does not call the server that has the key of `part`.
    fn is_unavailable(&self, part: &ChargePart) -> bool {
        self.is_unavailable_for(part.tag)
    }

    /// Whether this gateway does not call the server that has the keys of `tag`.
    fn is_unavailable_for(&self, tag: LimitKey) -> bool {
        self.servers.is_unavailable(self.link.server(self.link.slot(tag)))
    }

    /// The time at the server that has the key of `part` when it is `now` here.
    fn redis_time(&self, part: &ChargePart, now: Nanos) -> Nanos {
        self.redis_clocks.redis_time(self.link.slot(part.tag), now)
    }

    /// Asks Redis to charge one request, and waits for the reply until the timeout. All keys of `parts` are in one slot.
    async fn charge_exact(
        self: &Arc<Self>,
        parts: &[ChargePart],
        batch: &mut [Charge],
        now: Nanos,
        waited: &mut Nanos,
    ) -> Result<AllCharged, CallFailure> {
        let is_unavailable = parts.first().is_some_and(|part| self.is_unavailable(part));
        if is_unavailable || *waited >= self.settings.timeout {
            return Err(CallFailure::NotRun);
        }
        // with a floor, each request has to be checked after the charge of the one before, so requests cannot be merged
        let is_asked_before = |(at, part): (usize, &ChargePart)| parts.iter().take(at).any(|one| one.key == part.key);
        let asks_first = parts.iter().enumerate().any(is_asked_before);
        let mergeable =
            !asks_first && parts.iter().all(|part| !part.rule().holds_slots() && !part.rule().denials_count());
        let slot = parts.iter().any(|part| part.rule().holds_slots()).then(|| self.slots.next());
        let reply = match mergeable {
            true => self.charge_coalesced(parts.to_vec()),
            false => self.charge_separately(parts.to_vec(), slot.unwrap_or_default()),
        };
        let (charged, redis_time) = self.await_reply(reply, waited).await?;
        for ((part, charge), charged) in parts.iter().zip(batch).zip(&charged) {
            charge.taken_from = ChargeSource::LimitStore;
            charge.clock_offset = ClockOffset::between(redis_time, now);
            let holds = part.rule().holds_slots() && part.enforcement.takes(charged.decision);
            if let Some(slot) = slot.filter(|_| holds) {
                charge.taken_from = ChargeSource::Slot(slot);
                self.slots.hold(slot, part);
            }
        }
        Ok(charged)
    }

    /// Charges one request to the tokens that this gateway leases; the gateway may have to ask for more of them first.
    async fn charge_leased(
        self: &Arc<Self>,
        part: &ChargePart,
        charge: &mut Charge,
        now: Nanos,
        waited: &mut Nanos,
    ) -> Result<(AllCharged, DecisionSource), CallFailure> {
        match self.lease(part, now, *waited < self.settings.timeout) {
            LeaseOutcome::Now { charged, redis_time, expires_at } => {
                charge.taken_from = ChargeSource::Lease { expires_at };
                charge.clock_offset = ClockOffset::between(redis_time, now);
                Ok((AllCharged::from_iter([charged]), DecisionSource::Lease))
            }
            LeaseOutcome::Pending(reply) => {
                let (charged, redis_time) = self.await_reply(reply, waited).await?;
                charge.taken_from = ChargeSource::LimitStore;
                charge.clock_offset = ClockOffset::between(redis_time, now);
                Ok((charged, DecisionSource::Store))
            }
            LeaseOutcome::Rejected => {
                let charged =
                    self.charge_exact(std::slice::from_ref(part), std::slice::from_mut(charge), now, waited).await?;
                Ok((charged, DecisionSource::Store))
            }
        }
    }

    /// A charge that this gateway decides without Redis. It starts from what the gateway knows of the key.
    fn degraded<'a>(
        &self,
        limit: &SharedLimit,
        part: &'a ChargePart,
        charge: &'a mut Charge,
        now: Nanos,
    ) -> DegradedCharge<'a> {
        let (on_down, redis_time) = (limit.sharing.on_store_down, self.redis_time(part, now));
        let (counted, unsynced) = match limit.is_eventual() {
            true => self.counters.take(part, redis_time),
            false => (None, 0),
        };
        let used = counted.unwrap_or_else(|| self.memory.used(part, redis_time));
        let cost_multiplier = match on_down {
            OnStoreDown::Divide => self.nodes.load(Ordering::Relaxed).max(1),
            OnStoreDown::Local | OnStoreDown::Allow | OnStoreDown::Deny => 1,
        };
        DegradedCharge { charge, part, on_down, cost_multiplier, used, unsynced, redis_time }
    }

    /// Decides by the counts of this gateway; asks Redis for a key that is new to it.
    async fn charge_eventual(
        self: &Arc<Self>,
        part: &ChargePart,
        charge: &mut Charge,
        now: Nanos,
        waited: &mut Nanos,
    ) -> Result<(AllCharged, DecisionSource), CallFailure> {
        let redis_time = self.redis_time(part, now);
        if self.is_unavailable(part) {
            return Err(CallFailure::NotRun);
        }
        if let Some((charged, sync)) = self.counters.decide(part, redis_time) {
            charge.taken_from = ChargeSource::Counted { sync };
            charge.clock_offset = ClockOffset::between(redis_time, now);
            return Ok((AllCharged::from_iter([charged]), DecisionSource::Local));
        }
        let asked = self.counters.ask(part);
        let charged = self.charge_exact(std::slice::from_ref(part), std::slice::from_mut(charge), now, waited).await?;
        drop(asked);
        if let Some(known) = self.memory.known(part) {
            self.counters.begin(part, known.state().cloned(), self.redis_time(part, self.clock.now()));
        }
        Ok((charged, DecisionSource::Store))
    }

    /// Waits for a call's result, for as long as the request's timeout allows; adds the wait to `waited`.
    async fn await_reply(
        &self,
        reply: oneshot::Receiver<ChargeResult>,
        waited: &mut Nanos,
    ) -> Result<(AllCharged, Nanos), CallFailure> {
        let (asked, left) = (self.clock.now(), self.settings.timeout.saturating_sub(*waited));
        let reply = timeout(left.to_duration(), reply).await;
        *waited = waited.saturating_add(self.clock.now().saturating_sub(asked));
        reply.ok().and_then(Result::ok).unwrap_or(Err(CallFailure::MayHaveRun)).map(ChargeReceipt::keep)
    }

    /// Notes the health that a call or heartbeat for a key with this hash tag showed, with the reason of a failure; may open
    /// the server's breaker.
    fn record_call(&self, server: usize, tag: impl FnOnce() -> String, result: (Health, Option<String>)) {
        if self.servers.record_call(server, tag, result, self.settings.timeout, self.clock.now()) {
            tracing::warn!(
                server = self.link.server_name(server),
                error = self.servers.failure(server),
                "calls to Redis fail; limits that gateways share are enforced as their `on_store_down` says"
            );
            // no request waits long enough for the replies that are still to come
            self.link.close(server);
            // a probe logs in anew, as the next calls do
            self.heartbeat_link.close(server);
        }
    }
}
