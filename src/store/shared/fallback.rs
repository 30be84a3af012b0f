//! What is done without Redis: each node enforces its share of a limit in memory, and hands in what it admitted when Redis
//! is back.
//!
//! A share of 1/N is the whole limit with every cost taken N times, which is exact for every algorithm. It starts from
//! what was known to be used, so that an outage is no new burst.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::MutexGuard;

use crate::algorithm::{Decision, State};
use crate::charge::{AllCharged, Charge, Charged, OnStoreDown, Taken};
use crate::store::local::{self, LocalStore};
use crate::store::shared::limit::Part;
use crate::units::{Cost, LimitKey, Nanos};

/// What this node did by itself.
#[derive(Default)]
pub(super) struct Fallback {
    /// What was admitted of each key while Redis was away.
    owed: Mutex<HashMap<LimitKey, Owed>>,
    /// Counts the keys that began to be owed.
    rounds: AtomicU64,
    /// Held while a key is handed in: what is owed is handed in once.
    handing: [Turn; TURNS],
}

/// Keys of one of these are handed in one after the other.
type Turn = tokio::sync::Mutex<()>;
const TURNS: usize = 32;

/// What a node admitted of one key.
struct Owed {
    part: Part,
    /// Tells its bucket from those that were handed in before.
    round: u64,
    /// The key as if nobody else had been there, on Redis's clock: time makes good what is long ago.
    alone: Option<State>,
    /// The key as if all nodes had admitted as much: time makes good for this one its share only.
    shared: Option<State>,
    /// How many nodes there are then.
    nodes: u64,
    /// All of it.
    sum: Cost,
}

/// A request's part that is decided without Redis.
pub(super) struct Stranded<'a> {
    pub(super) charge: &'a mut Charge,
    pub(super) part: &'a Part,
    pub(super) on_down: OnStoreDown,
    /// The tokens that were used when Redis was last heard of.
    pub(super) used: Cost,
}

/// The tables of this node.
#[derive(Clone, Copy)]
pub(in crate::store) struct Tables<'a> {
    pub(in crate::store) store: &'a LocalStore,
    pub(in crate::store) binding: &'a local::Binding,
}

/// The most keys whose admissions are kept for later: about 30 MB.
const MOST_OWED: usize = 100_000;

impl Fallback {
    /// Decides `stranded` by themselves, all or none, with this node as one of `nodes`; in their order. Times are `now`
    /// here and `theirs` at Redis. The position of a limit that wants nothing admitted without Redis is an error.
    pub(super) fn charge(
        &self,
        tables: Tables<'_>,
        stranded: &mut [Stranded<'_>],
        nodes: u64,
        (now, theirs): (Nanos, Nanos),
    ) -> Result<AllCharged, usize> {
        if let Some(refused) = stranded.iter().position(|one| one.on_down == OnStoreDown::Deny && one.part.manner.binds)
        {
            return Err(refused);
        }
        let enforced = |one: &Stranded<'_>| matches!(one.on_down, OnStoreDown::Share | OnStoreDown::Local);
        let mut batch: Vec<Charge> = Vec::with_capacity(stranded.len());
        for one in stranded.iter().filter(|one| enforced(one)) {
            let (round, is_first) = self.round(one.part);
            let charge = scaled(one, nodes, round);
            if is_first {
                let used = [Charge { cost: one.used, ..charge.clone() }];
                tables.store.debit(tables.binding, &used, now);
            }
            batch.push(charge);
        }
        let charged = tables.store.charge(tables.binding, &mut batch, now);
        let mut decided = batch.into_iter().zip(charged);
        let mut all = AllCharged::new();
        for one in stranded.iter_mut() {
            let rule = one.part.rule();
            let Some((charge, mut charged)) = enforced(one).then(|| decided.next()).flatten() else {
                one.charge.taken = Taken::Nowhere;
                all.push(Charged { decision: Decision::ADMIT, headroom: rule.headroom(None, now) });
                continue;
            };
            let nodes = share(one.on_down, nodes);
            charged.headroom.remaining = charged.headroom.remaining.map(|left| left / nodes);
            one.charge.taken = Taken::Fallback { key: charge.key, cost: charge.cost };
            all.push(charged);
        }
        let passes =
            stranded.iter().zip(&all).all(|(one, charged)| !one.part.manner.binds || charged.decision.is_admitted());
        for (one, charged) in stranded.iter().zip(&all) {
            if passes && one.part.manner.takes && charged.decision.is_admitted() {
                self.add(one.part, one.charge.cost, share(one.on_down, nodes), theirs);
                self.take_rest(tables, one, nodes, now);
            }
        }
        Ok(all)
    }

    /// What does not fit into the bucket at once is owed to it, so that the rate is right even where the burst is not.
    fn take_rest(&self, tables: Tables<'_>, one: &Stranded<'_>, nodes: u64, now: Nanos) {
        let Taken::Fallback { key, cost } = one.charge.taken else { return };
        let wanted = one.charge.cost.saturating_mul(share(one.on_down, nodes));
        if wanted > cost {
            let rest = Charge { key, cost: wanted.saturating_sub(cost), ..one.charge.clone() };
            tables.store.debit(tables.binding, &[rest], now);
        }
    }

    /// Which bucket the key of `part` has here, and whether it is a new one. Keys beyond the bound share their rounds.
    fn round(&self, part: &Part) -> (u64, bool) {
        let mut owed = self.owed.lock();
        if let Some(known) = owed.get(&part.key) {
            return (known.round, false);
        }
        if owed.len() >= MOST_OWED {
            return (0, false);
        }
        let round = self.rounds.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        owed.insert(part.key, Owed::new(part, round));
        (round, true)
    }

    /// Notes that a request turned out to owe `cost`.
    pub(super) fn owe(&self, part: &Part, cost: Cost, theirs: Nanos) {
        self.add(part, cost, 1, theirs);
    }

    /// Notes that `cost` was admitted as a share of one of `nodes`.
    fn add(&self, part: &Part, cost: Cost, nodes: u64, theirs: Nanos) {
        if let Some(owed) = self.owed.lock().get_mut(&part.key) {
            owed.nodes = owed.nodes.max(nodes);
            owed.add(cost, theirs);
        }
    }

    /// Waits until nobody else hands `key` in.
    pub(super) async fn turn(&self, key: LimitKey) -> MutexGuard<'_, ()> {
        let turn = usize::try_from(key.0 % TURNS as u128).unwrap_or_default();
        self.handing[turn].lock().await
    }

    /// What is to be handed in of `key`.
    pub(super) fn due(&self, key: LimitKey, theirs: Nanos) -> Option<Due> {
        let mut owed = self.owed.lock();
        match owed.get(&key)?.due(theirs) {
            None => {
                owed.remove(&key);
                None
            }
            due => due,
        }
    }

    /// Some of the keys of which something is to be handed in.
    pub(super) fn some_keys(&self, most: usize) -> Vec<LimitKey> {
        self.owed.lock().keys().take(most).copied().collect()
    }

    /// `due` was handed in; what was admitted since is still owed.
    pub(super) fn handed_in(&self, due: &Due, theirs: Nanos) {
        let mut owed = self.owed.lock();
        let Some(known) = owed.remove(&due.part.key) else { return };
        let since = known.sum.saturating_sub(due.sum);
        if since > 0 {
            let mut rest = Owed { nodes: known.nodes, ..Owed::new(&known.part, known.round) };
            rest.add(since, theirs);
            owed.insert(due.part.key, rest);
        }
    }

    /// All tokens that are to be handed in.
    pub(super) fn unsynced(&self) -> u64 {
        self.owed.lock().values().fold(0, |all, owed| all.saturating_add(owed.sum))
    }

    /// Whether anything is to be handed in.
    pub(super) fn owes(&self) -> bool {
        !self.owed.lock().is_empty()
    }
}

/// What is to be handed in of one key.
pub(super) struct Due {
    /// So many tokens.
    pub(super) part: Part,
    /// All that was admitted, much of which time has made good.
    sum: Cost,
}

impl Owed {
    fn new(part: &Part, round: u64) -> Self {
        Self { part: part.clone(), round, alone: None, shared: None, nodes: 1, sum: 0 }
    }

    fn add(&mut self, cost: Cost, theirs: Nanos) {
        self.sum = self.sum.saturating_add(cost);
        let rule = self.part.rule();
        self.alone = rule.debit(self.alone.take(), cost, theirs);
        self.shared = rule.debit(self.shared.take(), cost.saturating_mul(self.nodes), theirs);
    }

    /// What is left of it at `theirs`: never more than a whole bucket, and nothing that time has made good. Time makes good
    /// one bucket only for all nodes together, so that each takes its share of that, unless it admitted more at once.
    fn due(&self, theirs: Nanos) -> Option<Due> {
        let rule = self.part.rule();
        let quota = rule.policy().quota;
        let used = |state: &Option<State>| {
            let remaining = rule.headroom(state.as_ref(), theirs).remaining;
            remaining.map_or(quota, |remaining| quota.saturating_sub(remaining))
        };
        let cost = used(&self.alone).max(used(&self.shared).div_ceil(self.nodes.max(1))).min(self.sum);
        let part = Part { cost, ..self.part.clone() };
        (cost > 0 && !rule.holds()).then_some(Due { part, sum: self.sum })
    }
}

/// The charge of this node's own bucket. A share of less than a token is rounded up to one.
fn scaled(one: &Stranded<'_>, nodes: u64, round: u64) -> Charge {
    /// An odd number that spreads over the lower half, by which keys are told apart within a shard.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let wanted = one.charge.cost.saturating_mul(share(one.on_down, nodes));
    let most = one.part.rule().largest_cost().unwrap_or(Cost::MAX).max(one.charge.cost);
    let key = LimitKey(one.charge.key.0 ^ u128::from(round.wrapping_mul(SPREAD)));
    Charge { key, cost: wanted.min(most), ..one.charge.clone() }
}

/// By how much costs are multiplied.
const fn share(on_down: OnStoreDown, nodes: u64) -> u64 {
    match on_down {
        OnStoreDown::Share if nodes > 1 => nodes,
        _ => 1,
    }
}
