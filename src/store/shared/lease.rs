//! Tokens that a node takes ahead and spends in memory.
//!
//! How many follows the pace of the key, and what is left of the bucket: each of N nodes takes at most a share of 1/(2N),
//! so that a bucket that runs out is shared out token by token. What is not spent lapses [`LIFETIME`] after it was asked
//! for. A request for which there is not enough waits for the next call, of which there is one at a time for each key.
//!
//! What requests give back is held again only if it was held before, of the tokens that were last taken: these never were
//! more than a node may hold, whoever spends them in the end. All else goes back to Redis, where time may have made it good.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::algorithm::Decision;
use crate::charge::{AllCharged, Charged};
use crate::store::shared::SharedNode;
use crate::store::shared::calls::{ChargeOutcome, Down};
use crate::store::shared::coalescer::Heard;
use crate::store::shared::ewma::EwmaRate;
use crate::store::shared::limit::ChargePart;
use crate::units::{Cost, LimitKey, Nanos};

/// The leases of a node.
pub(super) struct Leases {
    shards: Box<[Mutex<HashMap<LimitKey, Lease>>]>,
    events: Events,
}

/// What became of tokens that were taken ahead.
#[derive(Debug, Default)]
struct Events {
    taken: AtomicU64,
    spent: AtomicU64,
    lapsed: AtomicU64,
}

/// How tokens that were taken ahead have fared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseReport {
    /// Tokens taken ahead so far.
    pub taken: u64,
    /// Tokens of them that requests have spent.
    pub spent: u64,
    /// Tokens of them that lapsed.
    pub lapsed: u64,
    /// Tokens that are held now.
    pub held: u64,
}

/// What a node holds of one key.
struct Lease {
    /// A request for one token.
    part: ChargePart,
    balance: Cost,
    lapses: Nanos,
    pace: EwmaRate,
    /// Whether a call is on its way.
    asking: bool,
    waiting: VecDeque<Waiter>,
    used: Nanos,
}

struct Waiter {
    part: ChargePart,
    sender: oneshot::Sender<Heard>,
}

/// What a request under a lease gets.
pub(super) enum Leased {
    /// At once: from what is held, or a denial that is certain.
    Now {
        charged: Charged,
        /// When it was, on Redis's clock.
        there: Nanos,
        /// When what is held lapses.
        lapses: Nanos,
    },
    /// After a call.
    Soon(oneshot::Receiver<Heard>),
    /// Nothing: there are too many keys, or too many that wait.
    Crowded,
}

/// How far ahead tokens are taken.
const AHEAD: Nanos = Nanos::new(100_000_000);
/// How long they can be spent, from the time they were asked for.
pub(super) const LIFETIME: Nanos = Nanos::new(300_000_000);
/// A key with so few tokens in [`AHEAD`] is asked for each of them.
const WORTH_IT: Cost = 2;
/// A key that was not used for so long is forgotten.
const IDLE: Nanos = Nanos::from_secs(10);
const SHARDS: usize = 64;
const MOST_KEYS_OF_SHARD: usize = 4_000;
const MOST_WAITING: usize = 1_000;

impl Leases {
    pub(super) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), events: Events::default() }
    }

    fn shard(&self, key: LimitKey) -> &Mutex<HashMap<LimitKey, Lease>> {
        let shard = usize::try_from(key.0 % SHARDS as u128).unwrap_or_default();
        &self.shards[shard]
    }

    /// How many tokens of a key can be spent without asking.
    pub(super) fn balance(&self, key: LimitKey, now: Nanos) -> Cost {
        self.shard(key).lock().get(&key).filter(|lease| now < lease.lapses).map_or(0, |lease| lease.balance)
    }

    /// Puts back what a request does not need after all of the tokens that lapse then. Whether it could be put back.
    pub(super) fn give_back(&self, key: LimitKey, cost: Cost, lapses: Nanos, now: Nanos) -> bool {
        let mut shard = self.shard(key).lock();
        let Some(lease) = shard.get_mut(&key).filter(|lease| lease.lapses == lapses && now < lapses) else {
            return false;
        };
        lease.balance = lease.balance.saturating_add(cost);
        self.events.spent.fetch_sub(cost, Ordering::Relaxed);
        true
    }

    /// Takes `cost` more, if it is held.
    pub(super) fn take_more(&self, key: LimitKey, cost: Cost, now: Nanos) -> bool {
        let mut shard = self.shard(key).lock();
        shard.get_mut(&key).is_some_and(|lease| self.events.spend(lease, cost, now))
    }

    /// What became of tokens so far.
    pub(super) fn report(&self) -> LeaseReport {
        let [taken, spent, lapsed] =
            [&self.events.taken, &self.events.spent, &self.events.lapsed].map(|count| count.load(Ordering::Relaxed));
        LeaseReport { taken, spent, lapsed, held: taken.saturating_sub(spent).saturating_sub(lapsed) }
    }

    /// Forgets keys that nobody uses.
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
        if now >= lease.lapses && lease.balance > 0 {
            self.lapsed.fetch_add(lease.balance, Ordering::Relaxed);
            lease.balance = 0;
        }
    }

    fn spend(&self, lease: &mut Lease, cost: Cost, now: Nanos) -> bool {
        self.lapse(lease, now);
        match lease.balance.checked_sub(cost) {
            Some(left) => {
                lease.balance = left;
                self.spent.fetch_add(cost, Ordering::Relaxed);
                true
            }
            None => false,
        }
    }
}

impl SharedNode {
    /// What a request gets that asks for `part` under a lease, and `may_wait` or not. Times are `now` here.
    pub(super) fn lease(self: &Arc<Self>, part: &ChargePart, now: Nanos, may_wait: bool) -> Leased {
        let mut shard = self.leases.shard(part.key).lock();
        if !shard.contains_key(&part.key) && shard.len() >= MOST_KEYS_OF_SHARD {
            return Leased::Crowded;
        }
        let lease = shard.entry(part.key).or_insert_with(|| Lease::new(part, now));
        if lease.part.form.parameters() != part.form.parameters() {
            lease.part = part.for_one();
        }
        lease.used = now;
        lease.pace.add(part.cost, now);
        let taken = if part.enforcement.consumes { part.cost } else { 0 };
        let there = self.theirs(part, now);
        if self.leases.events.spend(lease, taken, now) && (part.enforcement.consumes || lease.balance >= part.cost) {
            let (left, lapses) = (lease.balance, lease.lapses);
            if !lease.asking && !self.is_away() && left < lease.pace.within(self.refill_time(), now) {
                self.ask_ahead(lease);
            }
            drop(shard);
            return Leased::Now { charged: self.spent(part, left, there), there, lapses };
        }
        if let Some(denied) = self.memory.denial(part, there) {
            return Leased::Now { charged: denied, there, lapses: Nanos::ZERO };
        }
        if lease.waiting.len() >= MOST_WAITING || self.is_away() || !may_wait {
            return Leased::Crowded;
        }
        let (sender, receiver) = oneshot::channel();
        lease.waiting.push_back(Waiter { part: part.clone(), sender });
        if !lease.asking {
            self.ask_ahead(lease);
        }
        Leased::Soon(receiver)
    }

    /// What a request hears that was let through from a lease of which so many tokens are `left`.
    fn spent(&self, part: &ChargePart, left: Cost, there: Nanos) -> Charged {
        let mut headroom = self.memory.standing(part, there).headroom;
        let quota = part.rule().policy().quota;
        headroom.remaining = headroom.remaining.map(|remaining| remaining.saturating_add(left).min(quota));
        Charged { decision: Decision::ADMIT, headroom }
    }

    /// New tokens are asked for when so much time is left at the pace of the key: two calls and a half.
    fn refill_time(&self) -> Nanos {
        let call = Nanos::new(self.call_time.load(Ordering::Relaxed));
        Nanos::new(call.get().saturating_mul(5) / 2).min(AHEAD)
    }

    fn ask_ahead(self: &Arc<Self>, lease: &mut Lease) {
        lease.asking = true;
        let asking = Asking { node: Arc::clone(self), key: lease.part.key, ended: false };
        tokio::spawn(asking.run());
    }
}

/// The calls for one key. Nobody may wait for them in vain: they count as ended when this is dropped.
struct Asking {
    node: Arc<SharedNode>,
    key: LimitKey,
    ended: bool,
}

impl Asking {
    async fn run(mut self) {
        let mut first = true;
        while let Some((part, want, waiting)) = self.next(first) {
            if first && !self.node.settle(std::slice::from_ref(&part)).await {
                return;
            }
            first = false;
            let asked = tokio::spawn(Arc::clone(&self.node).take_ahead(part, want, waiting));
            // those who come from now on do not wait for a call that is late
            if !matches!(timeout(self.node.settings.timeout.to_duration(), asked).await, Ok(Ok(true))) {
                return;
            }
        }
        self.ended = true;
    }

    /// What to ask for next, and who waits for it; `None` if nothing.
    fn next(&self, first: bool) -> Option<(ChargePart, Cost, VecDeque<Waiter>)> {
        let node = &self.node;
        let now = node.clock.now();
        let mut shard = node.leases.shard(self.key).lock();
        let lease = shard.get_mut(&self.key)?;
        node.leases.events.lapse(lease, now);
        let waiting = std::mem::take(&mut lease.waiting);
        let owed = waiting.iter().fold(0, |sum: Cost, waiter| sum.saturating_add(waiter.part.cost));
        let wanted = owed.saturating_add(node.worth_taking(lease, now)).saturating_sub(lease.balance);
        if waiting.is_empty() && (wanted == 0 || !first) {
            lease.asking = false;
            return None;
        }
        Some((lease.part.clone(), wanted.max(1), waiting))
    }
}

impl SharedNode {
    /// Takes as much as it can get of `want` tokens. Whether Redis answered.
    async fn take_ahead(self: Arc<Self>, part: ChargePart, want: Cost, waiting: VecDeque<Waiter>) -> bool {
        let sent = self.clock.now();
        let outcome = self.call_partial(std::slice::from_ref(&part), want, 1).await;
        let is_up = outcome.is_ok();
        match outcome {
            Ok(outcome) => self.share_out((&part, want), &outcome, waiting, sent),
            Err(Down) => waiting.into_iter().for_each(|waiter| drop(waiter.sender.send(Err(Down)))),
        }
        is_up
    }

    /// Serves those who wait in their order, and keeps the rest. What was wanted for those who wait may have been spent by
    /// others meanwhile, or have lapsed: where Redis granted all, they wait for the next call.
    fn share_out(
        self: &Arc<Self>,
        (part, want): (&ChargePart, Cost),
        outcome: &ChargeOutcome,
        waiting: VecDeque<Waiter>,
        sent: Nanos,
    ) {
        let now = self.clock.now();
        let there = self.theirs(part, now);
        let mut shard = self.leases.shard(part.key).lock();
        let Some(lease) = shard.get_mut(&part.key) else { return };
        let events = &self.leases.events;
        events.lapse(lease, now);
        events.taken.fetch_add(outcome.granted, Ordering::Relaxed);
        lease.balance = lease.balance.saturating_add(outcome.granted);
        let until_full = outcome.each.first().and_then(|charged| charged.first()).map(|one| one.headroom.until_full);
        let life = match until_full.filter(|_| part.form.is_window()) {
            Some(window) => LIFETIME.min(window),
            None => LIFETIME,
        };
        lease.lapses = sent.saturating_add(life);
        let mut unserved = VecDeque::new();
        for waiter in waiting.into_iter().filter(|waiter| !waiter.sender.is_closed()) {
            if lease.balance < waiter.part.cost {
                match outcome.granted >= want {
                    true => unserved.push_back(waiter),
                    false => drop(waiter.sender.send(Ok((one(self.still_denied(&waiter.part, there)), there)))),
                }
                continue;
            }
            // for those who wait nothing lapses: it is theirs since it was granted
            let taken = if waiter.part.enforcement.consumes { waiter.part.cost } else { 0 };
            let left = lease.balance.saturating_sub(taken);
            if waiter.sender.send(Ok((one(self.spent(&waiter.part, left, there)), there))).is_ok() {
                lease.balance = left;
                events.spent.fetch_add(taken, Ordering::Relaxed);
            }
        }
        unserved.append(&mut lease.waiting);
        lease.waiting = unserved;
        let spare = lease.balance.saturating_sub(self.most_held(part));
        if spare > 0 {
            // of those who do not wait any more
            lease.balance = lease.balance.saturating_sub(spare);
            events.lapsed.fetch_add(spare, Ordering::Relaxed);
            let full_at = outcome.at.saturating_add(until_full.unwrap_or_default());
            self.refund_later(vec![(ChargePart { cost: spare, ..part.clone() }, full_at)]);
        }
    }
}

fn one(charged: Charged) -> AllCharged {
    AllCharged::from_iter([charged])
}

impl Drop for Asking {
    fn drop(&mut self) {
        if !self.ended
            && let Some(lease) = self.node.leases.shard(self.key).lock().get_mut(&self.key)
        {
            // those who wait hear that their senders are gone
            lease.waiting.clear();
            lease.asking = false;
        }
    }
}

impl SharedNode {
    /// How many tokens beyond those that are waited for it is worth to take.
    fn worth_taking(&self, lease: &Lease, now: Nanos) -> Cost {
        let soon = lease.pace.within(AHEAD, now);
        if soon < WORTH_IT {
            return 0;
        }
        let left = self.memory.standing(&lease.part, self.theirs(&lease.part, now)).headroom.remaining;
        soon.min(self.share_of(left.unwrap_or(Cost::MAX))).min(lease.part.most_ahead)
    }

    /// How many tokens this node may hold of the key of `part`.
    fn most_held(&self, part: &ChargePart) -> Cost {
        self.share_of(part.rule().policy().quota).min(part.most_ahead)
    }

    fn share_of(&self, tokens: Cost) -> Cost {
        tokens / self.nodes.load(Ordering::Relaxed).max(1).saturating_mul(2)
    }

    /// What a request hears for which too little was granted.
    fn still_denied(&self, part: &ChargePart, there: Nanos) -> Charged {
        let charged = self.memory.standing(part, there);
        match charged.decision {
            // time went by since
            Decision::Admit { .. } => Charged { decision: Decision::later(Nanos::new(1)), ..charged },
            Decision::Deny(_) => charged,
        }
    }
}

impl Lease {
    fn new(part: &ChargePart, now: Nanos) -> Self {
        Self {
            part: part.for_one(),
            balance: 0,
            lapses: Nanos::ZERO,
            pace: EwmaRate::default(),
            asking: false,
            waiting: VecDeque::new(),
            used: now,
        }
    }
}
