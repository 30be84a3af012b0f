//! Leases: tokens that a gateway takes from Redis ahead of requests and spends in memory.
//!
//! The size of a lease follows the rate of the key and the rest of the bucket: each of N gateways takes at most a share
//! of 1/(2N), so that gateways share the last tokens of a bucket one by one. Unspent tokens lapse [`LIFETIME`] after
//! the call.
//!
//! The lease of a key is idle, or asking: then a task, [`LeaseCalls`], makes calls to Redis for it, one at a time.
//!
//! 1. A request comes ([`SharedStore::lease`]). It has its result at once if the balance covers it, or if Redis would
//!    certainly deny it; otherwise it waits in the lease's queue. An idle lease begins to ask when a request waits, or
//!    when the balance lasts no longer than two and a half calls.
//! 2. The task takes the waiting requests out of the queue ([`LeaseCalls::next`]). It asks for their tokens and for some
//!    ahead; only its first call may be for tokens ahead alone. If there is nothing to ask for, the lease is idle again.
//! 3. The task calls Redis ([`SharedStore::make_lease_call`]). If the call fails or is late, the lease is idle again and
//!    the requests in its queue get no result. A late reply still serves the requests of its call.
//! 4. The granted tokens serve the requests of the call in their order, and the rest joins the balance
//!    ([`SharedStore::share_out`]). A request for which they do not suffice is denied if Redis granted fewer tokens than
//!    the gateway asked for. Otherwise other requests have spent them meanwhile, and it returns to the front of the
//!    queue. Step 2 follows.
//!
//! A lease is of one set of parameters. While it has tokens, requests of the same key under other parameters (of another
//! plan, of overrides) are decided by Redis.
//!
//! A refund goes back into a lease only if its tokens came from that lease, the latest one: a gateway never took more
//! of them than it may hold. All other refunds go to Redis, where the bucket may have refilled meanwhile.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::algorithm::Decision;
use crate::charge::{AllCharged, Charged};
use crate::store::shared::SharedStore;
use crate::store::shared::calls::ChargeOutcome;
use crate::store::shared::coalescer::ChargeResult;
use crate::store::shared::ewma::EwmaRate;
use crate::store::shared::limit::ChargePart;
use crate::store::shared::receipt::ChargeReceipt;
use crate::units::{Cost, LimitKey, Nanos};

mod grants;

use grants::{Grant, Grants};

/// The leases of a gateway.
pub(super) struct Leases {
    shards: Box<[Mutex<HashMap<LimitKey, Lease>>]>,
    events: Events,
}

/// The counters of leased tokens.
#[derive(Debug, Default)]
struct Events {
    taken: AtomicU64,
    spent: AtomicU64,
    returned: AtomicU64,
    lapsed: AtomicU64,
}

/// The counts of leased tokens, for reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseReport {
    /// Tokens leased so far.
    pub taken: u64,
    /// Leased tokens that requests have spent.
    pub spent: u64,
    /// Spent tokens that requests refunded to the lease.
    pub returned: u64,
    /// Leased tokens that lapsed.
    pub lapsed: u64,
    /// Leased tokens that this gateway holds now.
    pub held: u64,
}

/// A gateway's lease of one key.
struct Lease {
    /// A request for one token.
    part: ChargePart,
    grants: Grants,
    expires_at: Nanos,
    /// The rate of the requests that were admitted.
    request_rate: EwmaRate,
    /// Whether a task makes calls for it.
    asking: bool,
    waiting: VecDeque<Waiter>,
    used: Nanos,
}

struct Waiter {
    part: ChargePart,
    sender: oneshot::Sender<ChargeResult>,
}

/// The calls for one key. Dropping it makes the lease idle, so that no request waits for ever.
struct LeaseCalls {
    gateway: Arc<SharedStore>,
    key: LimitKey,
    /// Whether the lease is idle already: another task may make calls for it by now.
    ended: bool,
}

/// A call for more tokens of a key.
struct LeaseCall {
    part: ChargePart,
    want: Cost,
    /// The requests that wait for the tokens.
    waiting: VecDeque<Waiter>,
}

/// The answer to a request under a lease.
pub(super) enum LeaseOutcome {
    /// An immediate result: from the lease, or a denial that is certain.
    Now {
        charged: Charged,
        /// The time of the result, on Redis's clock.
        redis_time: Nanos,
        /// When the lease lapses.
        expires_at: Nanos,
    },
    /// The result follows after a call.
    Pending(oneshot::Receiver<ChargeResult>),
    /// No result: there are too many keys or waiting requests, this one may not wait or is a question, or the lease is
    /// of other parameters.
    Rejected,
}

/// The time whose tokens a lease covers.
const AHEAD: Nanos = Nanos::new(100_000_000);
/// The lifetime of a lease, from the call on.
pub(super) const LIFETIME: Nanos = Nanos::new(300_000_000);
/// A key with fewer requests than this in [`AHEAD`] gets no lease: the gateway asks only for tokens that requests wait
/// for.
const WORTH_IT: u64 = 2;
/// How long an unused key stays.
const IDLE: Nanos = Nanos::from_secs(10);
const SHARDS: usize = 64;
const MAX_KEYS_OF_SHARD: usize = 4_000;
const MAX_WAITING: usize = 1_000;

impl Leases {
    pub(super) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), events: Events::default() }
    }

    fn shard(&self, key: LimitKey) -> &Mutex<HashMap<LimitKey, Lease>> {
        let shard = usize::try_from(key.0 % SHARDS as u128).unwrap_or_default();
        &self.shards[shard]
    }

    /// The number of tokens that this gateway can spend for requests like `part` without a call.
    pub(super) fn balance(&self, part: &ChargePart, now: Nanos) -> Cost {
        let shard = self.shard(part.key).lock();
        let lease = shard.get(&part.key).filter(|lease| lease.serves(part) && now < lease.expires_at);
        lease.map_or(0, |lease| lease.grants.balance())
    }

    /// Puts tokens back that `part` did not need, if the lease that lapses at `expires_at` is the current one. Returns
    /// whether it is.
    pub(super) fn refund(&self, part: &ChargePart, expires_at: Nanos, now: Nanos) -> bool {
        let mut shard = self.shard(part.key).lock();
        let is_current = |lease: &&mut Lease| lease.serves(part) && lease.expires_at == expires_at && now < expires_at;
        let lease = shard.get_mut(&part.key).filter(is_current);
        let is_back = lease.is_some_and(|lease| lease.grants.put_back(part.cost));
        if is_back {
            self.events.returned.fetch_add(part.cost, Ordering::Relaxed);
        }
        is_back
    }

    /// Spends the tokens of `part`, if the lease has them. Returns whether it has.
    pub(super) fn take_more(&self, part: &ChargePart, now: Nanos) -> bool {
        let mut shard = self.shard(part.key).lock();
        let lease = shard.get_mut(&part.key).filter(|lease| lease.serves(part));
        lease.is_some_and(|lease| self.events.spend(lease, part.cost, now))
    }

    /// The counts of leased tokens so far.
    pub(super) fn report(&self) -> LeaseReport {
        let Events { taken, spent, returned, lapsed } = &self.events;
        let [taken, spent, returned, lapsed] =
            [taken, spent, returned, lapsed].map(|count| count.load(Ordering::Relaxed));
        let held = taken.saturating_add(returned).saturating_sub(spent).saturating_sub(lapsed);
        LeaseReport { taken, spent, returned, lapsed, held }
    }

    /// Drops keys that no request uses.
    pub(super) fn sweep(&self, now: Nanos) {
        for shard in &self.shards {
            shard.lock().retain(|_, lease| {
                self.events.lapse(lease, now);
                lease.asking || !lease.waiting.is_empty() || now.saturating_sub(lease.used) < IDLE
            });
        }
    }
}

impl Events {
    fn lapse(&self, lease: &mut Lease, now: Nanos) {
        if now >= lease.expires_at {
            self.lapsed.fetch_add(lease.grants.lapse(), Ordering::Relaxed);
        }
    }

    fn spend(&self, lease: &mut Lease, cost: Cost, now: Nanos) -> bool {
        self.lapse(lease, now);
        let is_spent = lease.grants.spend(cost);
        if is_spent {
            self.spent.fetch_add(cost, Ordering::Relaxed);
        }
        is_spent
    }
}

impl Lease {
    fn new(part: &ChargePart, now: Nanos) -> Self {
        Self {
            part: part.for_one(),
            grants: Grants::default(),
            expires_at: Nanos::ZERO,
            request_rate: EwmaRate::default(),
            asking: false,
            waiting: VecDeque::new(),
            used: now,
        }
    }

    /// Whether the tokens are for requests like `part`: Redis granted them under the same parameters.
    fn serves(&self, part: &ChargePart) -> bool {
        self.part.has_parameters_of(part)
    }
}

impl SharedStore {
    /// Decides a request for `part` under a lease; `may_wait` says whether it may wait for a call. `now` is this
    /// gateway's time.
    pub(super) fn lease(self: &Arc<Self>, part: &ChargePart, now: Nanos, may_wait: bool) -> LeaseOutcome {
        if !part.enforcement.consumes {
            return self.answer_from_lease(part, now);
        }
        let mut shard = self.leases.shard(part.key).lock();
        if !shard.contains_key(&part.key) && shard.len() >= MAX_KEYS_OF_SHARD {
            return LeaseOutcome::Rejected;
        }
        let lease = shard.entry(part.key).or_insert_with(|| Lease::new(part, now));
        if !lease.serves(part) {
            self.leases.events.lapse(lease, now);
            if lease.asking || lease.grants.balance() > 0 {
                return LeaseOutcome::Rejected;
            }
            *lease = Lease::new(part, now);
        }
        lease.used = now;
        let redis_time = self.redis_time(part, now);
        if self.leases.events.spend(lease, part.cost, now) {
            lease.request_rate.add(part.cost, now);
            let (left, expires_at) = (lease.grants.balance(), lease.expires_at);
            if !lease.asking && left < lease.request_rate.within(self.refill_time(), now) && !self.is_unavailable(part)
            {
                self.spawn_lease_calls(lease);
            }
            drop(shard);
            return LeaseOutcome::Now { charged: self.spent(part, left, redis_time), redis_time, expires_at };
        }
        if let Some(denied) = self.memory.denial(part, redis_time) {
            return LeaseOutcome::Now { charged: denied, redis_time, expires_at: Nanos::ZERO };
        }
        if lease.waiting.len() >= MAX_WAITING || !may_wait || self.is_unavailable(part) {
            return LeaseOutcome::Rejected;
        }
        let (sender, receiver) = oneshot::channel();
        lease.waiting.push_back(Waiter { part: part.clone(), sender });
        if !lease.asking {
            self.spawn_lease_calls(lease);
        }
        LeaseOutcome::Pending(receiver)
    }

    /// Answers a question for `part`, which takes no tokens, if the lease has them. Redis answers all others, so that a
    /// question leases nothing. A lease knows nothing of a key that is asked for 0 tokens.
    fn answer_from_lease(&self, part: &ChargePart, now: Nanos) -> LeaseOutcome {
        let left = self.leases.balance(part, now);
        if !(1..=left).contains(&part.cost) {
            return LeaseOutcome::Rejected;
        }
        let redis_time = self.redis_time(part, now);
        LeaseOutcome::Now { charged: self.spent(part, left, redis_time), redis_time, expires_at: Nanos::ZERO }
    }

    fn spawn_lease_calls(self: &Arc<Self>, lease: &mut Lease) {
        lease.asking = true;
        let calls = LeaseCalls { gateway: Arc::clone(self), key: lease.part.key, ended: false };
        tokio::spawn(calls.run());
    }

    /// Leases as many tokens as Redis grants. Returns whether Redis answered.
    async fn make_lease_call(self: Arc<Self>, call: LeaseCall) -> bool {
        let sent = self.clock.now();
        let outcome = self.call_partial(std::slice::from_ref(&call.part), call.want, 1).await;
        let is_up = outcome.is_ok();
        match outcome {
            Ok(outcome) => self.share_out(call, &outcome, sent),
            Err(failure) => call.waiting.into_iter().for_each(|waiter| drop(waiter.sender.send(Err(failure)))),
        }
        is_up
    }

    /// Serves the waiting requests in their order, and keeps the rest of the tokens. Other requests may have spent their
    /// tokens meanwhile, or these have lapsed: if Redis granted all tokens, the unserved requests wait for the next
    /// call. Else they are denied, and the rest of the tokens goes back to Redis, where it adds up for a later request.
    fn share_out(self: &Arc<Self>, call: LeaseCall, outcome: &ChargeOutcome, sent: Nanos) {
        let LeaseCall { part, want, waiting } = call;
        let now = self.clock.now();
        let redis_time = self.redis_time(&part, now);
        let mut shard = self.leases.shard(part.key).lock();
        let Some(lease) = shard.get_mut(&part.key).filter(|lease| lease.serves(&part)) else { return };
        let events = &self.leases.events;
        events.lapse(lease, now);
        events.taken.fetch_add(outcome.granted, Ordering::Relaxed);
        // after all granted tokens
        let until_full = self.memory.predict(&part, outcome.at).headroom.until_full;
        lease.grants.push(Grant { left: outcome.granted, full_at: outcome.at.saturating_add(until_full) });
        let life = if part.form.is_window() { LIFETIME.min(until_full) } else { LIFETIME };
        lease.expires_at = sent.saturating_add(life);
        let (mut unserved, mut denied) = (VecDeque::new(), Vec::new());
        for waiter in waiting.into_iter().filter(|waiter| !waiter.sender.is_closed()) {
            // for waiting requests, tokens do not lapse: they belong to the requests since Redis granted them
            if !lease.grants.spend(waiter.part.cost) {
                match outcome.granted >= want {
                    true => unserved.push_back(waiter),
                    false => denied.push(waiter),
                }
                continue;
            }
            lease.request_rate.add(waiter.part.cost, now);
            events.spent.fetch_add(waiter.part.cost, Ordering::Relaxed);
            let charged = self.spent(&waiter.part, lease.grants.balance(), redis_time);
            self.answer(waiter, charged, redis_time);
        }
        unserved.append(&mut lease.waiting);
        lease.waiting = unserved;
        // the lease is larger where requests have gone
        let kept = if denied.is_empty() { self.max_held(&part) } else { 0 };
        for Grant { left, full_at } in lease.grants.take_beyond(kept) {
            events.lapsed.fetch_add(left, Ordering::Relaxed);
            self.refund_later(vec![(ChargePart { cost: left, ..part.clone() }, full_at)]);
        }
        for waiter in denied {
            let charged = self.still_denied(&waiter.part, redis_time);
            self.answer(waiter, charged, redis_time);
        }
    }

    fn answer(self: &Arc<Self>, Waiter { part, sender }: Waiter, charged: Charged, redis_time: Nanos) {
        drop(sender.send(Ok(ChargeReceipt {
            gateway: Arc::clone(self),
            parts: Arc::new([part]),
            slot: 0,
            charged: AllCharged::from_iter([charged]),
            redis_time,
            is_refundable: true,
        })));
    }

    /// The result of a request that spent leased tokens; `left` of them remain.
    fn spent(&self, part: &ChargePart, left: Cost, redis_time: Nanos) -> Charged {
        let mut headroom = self.memory.predict(part, redis_time).headroom;
        let quota = part.rule().policy().quota;
        headroom.remaining = headroom.remaining.map(|remaining| remaining.saturating_add(left).min(quota));
        Charged { decision: Decision::ADMIT, headroom }
    }

    /// The denial of a request for which Redis granted too few tokens.
    fn still_denied(&self, part: &ChargePart, redis_time: Nanos) -> Charged {
        let charged = self.memory.predict(part, redis_time);
        match charged.decision {
            // time has passed since the call
            Decision::Admit { .. } => Charged { decision: Decision::later(Nanos::new(1)), ..charged },
            Decision::Deny(_) => charged,
        }
    }

    /// The gateway asks for a new lease when the rest lasts no longer than this at the key's rate: two and a half
    /// calls.
    fn refill_time(&self) -> Nanos {
        let call = Nanos::new(self.call_time.load(Ordering::Relaxed));
        Nanos::new(call.get().saturating_mul(5) / 2).min(AHEAD)
    }

    /// The number of tokens to lease in addition to those that requests wait for, each for up to `cost` tokens.
    fn worth_taking(&self, lease: &Lease, cost: Cost, now: Nanos) -> Cost {
        let soon = lease.request_rate.within(AHEAD, now);
        if soon < WORTH_IT.saturating_mul(cost) {
            return 0;
        }
        let left = self.memory.predict(&lease.part, self.redis_time(&lease.part, now)).headroom.remaining;
        soon.min(self.share_of(left.unwrap_or(Cost::MAX))).min(lease.part.max_lease)
    }

    /// The most tokens that this gateway may hold of the key of `part`.
    fn max_held(&self, part: &ChargePart) -> Cost {
        self.share_of(part.rule().policy().quota).min(part.max_lease)
    }

    fn share_of(&self, tokens: Cost) -> Cost {
        tokens / self.nodes.load(Ordering::Relaxed).max(1).saturating_mul(2)
    }
}

impl LeaseCalls {
    async fn run(mut self) {
        let mut is_first = true;
        while let Some(call) = self.next(is_first) {
            if is_first && !self.gateway.reconcile_keys_of(std::slice::from_ref(&call.part)).await {
                return;
            }
            is_first = false;
            let asked = tokio::spawn(Arc::clone(&self.gateway).make_lease_call(call));
            // requests that come from now on do not wait for a call that is late
            if !matches!(timeout(self.gateway.settings.timeout.to_duration(), asked).await, Ok(Ok(true))) {
                return;
            }
        }
        self.ended = true;
    }

    /// The next call; `None` if there is nothing to ask for, and the lease is idle from now on. Only the first call may
    /// be for tokens that no request waits for.
    fn next(&self, is_first: bool) -> Option<LeaseCall> {
        let gateway = &self.gateway;
        let now = gateway.clock.now();
        let mut shard = gateway.leases.shard(self.key).lock();
        let lease = shard.get_mut(&self.key)?;
        gateway.leases.events.lapse(lease, now);
        let waiting = std::mem::take(&mut lease.waiting);
        let owed = waiting.iter().fold(0, |sum: Cost, waiter| sum.saturating_add(waiter.part.cost));
        let cost = waiting.iter().map(|waiter| waiter.part.cost).max().unwrap_or(1);
        let wanted = owed.saturating_add(gateway.worth_taking(lease, cost, now)).saturating_sub(lease.grants.balance());
        if waiting.is_empty() && (wanted == 0 || !is_first) {
            lease.asking = false;
            return None;
        }
        Some(LeaseCall { part: lease.part.clone(), want: wanted.max(1), waiting })
    }
}

impl Drop for LeaseCalls {
    fn drop(&mut self) {
        if !self.ended
            && let Some(lease) = self.gateway.leases.shard(self.key).lock().get_mut(&self.key)
        {
            // the waiting requests see that their senders are dropped
            lease.waiting.clear();
            lease.asking = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::shared::fallback::test_part;

    #[test]
    fn returned_tokens_stay_in_the_count_of_spent_ones() {
        let (leases, part) = (Leases::new(), test_part());
        let mut lease = Lease { expires_at: Nanos::SECOND, ..Lease::new(&part, Nanos::ZERO) };
        lease.grants.push(Grant { left: 5, full_at: Nanos::SECOND });
        leases.shard(part.key).lock().insert(part.key, lease);
        leases.events.taken.store(5, Ordering::Relaxed);
        assert!(leases.take_more(&part, Nanos::ZERO) && leases.refund(&part, Nanos::SECOND, Nanos::ZERO));
        assert_eq!(leases.report(), LeaseReport { taken: 5, spent: 1, returned: 1, lapsed: 0, held: 5 });
    }
}
