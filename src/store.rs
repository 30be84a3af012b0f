//! The store, which keeps the states of all keys and charges requests: under all limits of a request, or none.
//!
//! The store knows nothing of routes, HTTP or metrics: limits are positions, keys are hashes, and callers get outcomes
//! as return values or read them off [`Store::usage`].

pub mod amend;
pub mod local;
pub mod redis;
pub mod shared;

pub mod floors;

mod cached_denial;
mod owners;
mod remote_charges;
mod running_slots;
mod transaction;

pub use amend::{AmendError, Amendment};
pub use local::LocalStore;
pub use local::snapshot::{SnapshotHead, SnapshotSize};
pub use shared::{SharedLimit, SharedStore};

use std::io::{self, Write};
use std::net::SocketAddr;
use std::slice;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::algorithm::{AlgorithmName, Completion, Rule};
use crate::charge::{AllCharged, Charge, ChargeSource, Charged, DecisionSource, Mode, Refund, is_denied};
use crate::cluster::migration::{Fetch, OwnershipEpoch};
use crate::cluster::wire::LimitIdentity;
use crate::cluster::{Cluster, Peer};
use crate::units::Nanos;
use floors::BatchWithFloors;
use local::StateElsewhere;
use owners::{OwnedLimit, Owners};
use remote_charges::EndedSlots;
use running_slots::CountedAt;
use shared::LocalTables;
use transaction::ChargeTransaction;

/// A limit as a store has to know it. Its states belong to `name`, `algorithm` and `key`: a limit that a later
/// configuration adds again with other rules finds them.
#[derive(Clone, Copy, Debug)]
pub struct LimitSpec<'a> {
    /// The limit's name.
    pub name: &'a str,
    /// Its algorithm.
    pub algorithm: AlgorithmName,
    /// Where its states are kept.
    pub mode: Mode,
    /// The hash of the parts of the limit's key (`Key::kind`). Keys of another kind identify other callers.
    pub key_kind: u64,
    /// Whether the store forgets the states that this limit had before.
    pub is_reset: bool,
    /// All parameters that charges may refer to.
    pub rules: &'a [Rule],
    /// The most keys that the limit's table holds.
    pub max_keys: u64,
    /// Whether the real cost can turn out lower than the charge, so that a gateway may refund tokens of requests that have
    /// passed.
    pub may_refund: bool,
}

impl<'a> LimitSpec<'a> {
    /// The limit that another gateway or a snapshot names; `None` if this program does not know its algorithm.
    pub fn of(identity: &'a LimitIdentity) -> Option<Self> {
        let algorithm = AlgorithmName::canonical_of(&identity.algorithm)?;
        Some(Self { max_keys: identity.max_keys, ..Self::bare(&identity.name, algorithm, identity.key_kind) })
    }

    /// The limit as other gateways and snapshots name it.
    pub fn identity(&self) -> LimitIdentity {
        LimitIdentity {
            name: self.name.to_owned(),
            algorithm: self.algorithm.as_str().to_owned(),
            key_kind: self.key_kind,
            max_keys: self.max_keys,
        }
    }

    /// The identity of a sticky limit, and nothing else about it.
    pub const fn bare(name: &'a str, algorithm: AlgorithmName, key_kind: u64) -> Self {
        let mode = Mode::Sticky;
        Self { name, algorithm, mode, key_kind, is_reset: false, rules: &[], max_keys: 0, may_refund: false }
    }
}

/// The fill level of one limit's table, and its evictions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The limit's name.
    pub name: String,
    /// The number of keys in the table.
    pub keys: u64,
    /// The most keys that the table holds.
    pub max_keys: u64,
    /// Keys that the store evicted because their states were fresh again.
    pub evicted_expired: u64,
    /// Keys that the store evicted early because the table was full.
    pub evicted_full: u64,
    /// Charges of new keys that went to the common bucket because the table was full.
    pub overflowed: u64,
}

/// The limits of one ruleset, as the store knows them.
pub struct Binding {
    /// All limits; for limits that gateways share, the tables that decide while Redis is unavailable.
    local: local::Binding,
    /// Where the states of each limit are kept.
    placements: Vec<Placement>,
}

/// Where the states of a limit are kept.
enum Placement {
    /// In this process's memory.
    Local,
    /// In Redis, which gateways share.
    Shared(SharedLimit),
    /// In the memory of gateways, which divide the keys among themselves.
    Owned(OwnedLimit),
}

/// The part of the store that decides about a charge.
#[derive(Clone, Copy)]
enum Authority<'a> {
    /// This process's memory.
    Local,
    /// Redis, or this process while Redis is unavailable.
    Shared(&'a Arc<SharedStore>, &'a SharedLimit),
    /// The memory of the gateway that owns the key, which may be this one.
    Owned(&'a Owners, &'a OwnedLimit),
}

/// The outcome of a batch of charges.
#[derive(Clone, Debug, PartialEq)]
pub struct Receipt {
    /// The outcome of each charge.
    pub charged: AllCharged,
    /// The place that decided.
    pub source: DecisionSource,
    /// The position of the charge whose limit denies everything while Redis is unavailable, if that is why nothing was
    /// charged.
    pub failed_closed: Option<usize>,
}

impl Receipt {
    /// Whether an enforcing limit denied `batch`, which this is the receipt of, or could not be asked.
    pub fn is_denied(&self, batch: &[Charge]) -> bool {
        self.failed_closed.is_some() || is_denied(batch, &self.charged)
    }
}

/// The states of all keys: in this process's memory, in Redis for limits that gateways share, and in the memory of other
/// gateways for keys that they own.
#[derive(Default)]
pub struct Store {
    local: LocalStore,
    shared: Option<Arc<SharedStore>>,
    owners: Option<Owners>,
    ended_slots: EndedSlots,
}

impl Store {
    /// A store with these states. Without `shared`, this gateway keeps the states of every limit; without a cluster, it
    /// owns every key of a sticky limit.
    pub fn new(local: LocalStore, shared: Option<Arc<SharedStore>>, cluster: Option<Arc<Cluster>>) -> Self {
        Self { local, shared, owners: cluster.map(Owners::new), ended_slots: EndedSlots::default() }
    }

    /// The gateways among which keys are divided; `None` without a cluster.
    pub fn cluster(&self) -> Option<&Arc<Cluster>> {
        self.owners.as_ref().map(|owners| &owners.cluster)
    }

    /// The gateway that owns the key of a charge, where keys are divided.
    pub fn owner(&self, binding: &Binding, charge: &Charge) -> Option<SocketAddr> {
        match self.authority(binding, charge) {
            Authority::Owned(owners, _) => Some(owners.cluster.owner(charge.key)),
            Authority::Local | Authority::Shared(..) => None,
        }
    }

    /// Whether the process can end now without losing anything that it still has to send to Redis or to other gateways.
    pub fn is_settled(&self) -> bool {
        self.shared.as_ref().is_none_or(|shared| shared.is_settled())
            && self.cluster().is_none_or(|cluster| cluster.is_settled())
    }

    /// Connects the calling thread to Redis and to the other gateways, if they answer quickly.
    pub async fn connect(&self) {
        let redis = async {
            if let Some(shared) = &self.shared {
                shared.connect().await;
            }
        };
        let cluster = async {
            if let Some(cluster) = self.cluster() {
                cluster.connect().await;
            }
        };
        tokio::join!(redis, cluster);
    }

    /// The part of the store that keeps states in Redis, if there is one.
    pub const fn shared(&self) -> Option<&Arc<SharedStore>> {
        self.shared.as_ref()
    }

    /// Registers `limits`; charges refer to them by their position. Limits that the store knew before keep their states.
    ///
    /// The store keeps the states of limits that no binding knows any more until they are fresh again, in case the
    /// limit comes back. The number of such limits is bounded.
    pub fn bind(&self, limits: &[LimitSpec<'_>]) -> Binding {
        let placement = |spec: &LimitSpec<'_>| match self.shared.as_ref().and_then(|shared| shared.limit(spec)) {
            Some(limit) => Placement::Shared(limit),
            None if self.owners.is_some() && !spec.mode.is_shared() => Placement::Owned(OwnedLimit::new(spec)),
            None => Placement::Local,
        };
        Binding { local: self.local.bind(limits), placements: limits.iter().map(placement).collect() }
    }

    /// The part of the store that decides about a charge.
    fn authority<'a>(&'a self, binding: &'a Binding, charge: &Charge) -> Authority<'a> {
        match (binding.placements.get(charge.limit), &self.shared, &self.owners) {
            (Some(Placement::Shared(limit)), Some(shared), _) => Authority::Shared(shared, limit),
            (Some(Placement::Owned(limit)), _, Some(owners)) => Authority::Owned(owners, limit),
            _ => Authority::Local,
        }
    }

    /// Charges every entry of `batch` or none: none if an enforcing limit denies. See [`crate::charge::Enforcement`]
    /// for limits that do not enforce. Where a key appears twice, the store decides as if it had made the earlier charge
    /// before. Answers in the order of `batch`, and notes in `batch` where each charge was made: the store charges a new
    /// key for which there is no room to a common bucket, and the caller has to refund it there.
    ///
    /// If the caller drops this future before it is ready, it has charged nothing, or refunds the charges.
    pub async fn charge(&self, binding: &Binding, batch: &mut [Charge], now: Nanos) -> Receipt {
        if let Some(receipt) = self.charge_in_memory(binding, batch, now) {
            return receipt;
        }
        // this future is large, and moves with every future that contains it: it is boxed, and only where it is needed
        Box::pin(self.charge_with_floors(binding, batch, now)).await
    }

    /// [`Store::charge`] where the store may have to ask Redis or another gateway.
    async fn charge_with_floors(&self, binding: &Binding, batch: &mut [Charge], now: Nanos) -> Receipt {
        let Some(mut floors) = BatchWithFloors::of(batch) else {
            return self.charge_with_others(binding, batch, now).await;
        };
        let receipt = self.charge_with_others(binding, floors.charges(), now).await;
        let failed_closed = receipt.failed_closed.map(|position| floors.position(batch, position));
        Receipt { charged: floors.answer(batch, &receipt.charged), failed_closed, ..receipt }
    }

    /// [`Store::charge`] where this process decides all of `batch` in memory and has no cluster. `None`, with nothing
    /// charged, in all other cases.
    pub fn charge_in_memory(&self, binding: &Binding, batch: &mut [Charge], now: Nanos) -> Option<Receipt> {
        if self.owners.is_some() || !batch.iter().all(|charge| self.is_decided_locally(binding, charge)) {
            return None;
        }
        let charged = floors::charge_local(&self.local, &binding.local, batch, now);
        Some(Receipt { charged, source: DecisionSource::Local, failed_closed: None })
    }

    /// [`Store::charge`] of charges without floors, where the store may have to ask Redis or another gateway.
    async fn charge_with_others(&self, binding: &Binding, batch: &mut [Charge], now: Nanos) -> Receipt {
        self.number_slots(binding, batch);
        let epoch = self.ownership_epoch(batch);
        if batch.iter().all(|charge| self.is_decided_locally(binding, charge)) && !self.is_migrating() {
            let may_have_moved = |position| self.may_have_moved(&epoch, position);
            if let Ok(charged) = self.charge_local(binding, batch, may_have_moved, now) {
                return Receipt { charged, source: DecisionSource::Local, failed_closed: None };
            }
        }
        ChargeTransaction::new(self, binding, batch, now).charge().await
    }

    /// Makes the charges that this process decides in memory. Returns an error, with nothing charged, if a state is not here
    /// and `may_have_moved` says that another gateway may have it.
    fn charge_local(
        &self,
        binding: &Binding,
        batch: &mut [Charge],
        may_have_moved: impl Fn(usize) -> bool,
        now: Nanos,
    ) -> Result<AllCharged, StateElsewhere> {
        let charged = self.local.charge_unless(&binding.local, batch, may_have_moved, now)?;
        self.record_slots(binding, batch, &charged, now);
        Ok(charged)
    }

    /// Whether another gateway may still have states of keys that this gateway owns.
    fn is_migrating(&self) -> bool {
        self.cluster().is_some_and(|cluster| cluster.is_migrating())
    }

    /// Whether the state of the charge at this position may have moved since `epoch`.
    fn may_have_moved(&self, epoch: &OwnershipEpoch, position: usize) -> bool {
        self.cluster().is_some_and(|cluster| cluster.may_have_moved(epoch, position))
    }

    /// The ownership of the keys of `batch` at this time.
    fn ownership_epoch(&self, batch: &[Charge]) -> OwnershipEpoch {
        self.cluster().map(|cluster| cluster.ownership_epoch(batch.iter().map(|charge| charge.key))).unwrap_or_default()
    }

    /// Numbers the slots that the charges will hold, where keys are divided among gateways.
    fn number_slots(&self, binding: &Binding, batch: &mut [Charge]) {
        for charge in batch {
            if let Authority::Owned(owners, limit) = self.authority(binding, charge) {
                charge.slot = owners.slot(limit, charge);
            }
        }
    }

    /// Records the slots that the charges of `batch` hold from now on, if all enforcing limits admitted.
    fn record_slots(&self, binding: &Binding, batch: &[Charge], charged: &[Charged], now: Nanos) {
        if self.owners.is_none() || is_denied(batch, charged) {
            return;
        }
        let admitted = batch.iter().zip(charged).filter(|(_, charged)| charged.decision.is_admitted());
        for (charge, _) in admitted {
            if let Authority::Owned(owners, limit) = self.authority(binding, charge) {
                owners.record_slot(limit, charge, CountedAt::of(charge), now);
            }
        }
    }

    /// Releases the slots of a charge, whichever gateway counts them now. Returns `true` if the charge holds slots
    /// and keys are divided among gateways.
    fn release_slot(&self, binding: &Binding, charge: &Charge, end: Completion, now: Nanos) -> bool {
        let Some((owners, slot)) = self.owners.as_ref().zip(charge.slot) else { return false };
        if owners.release_slot(slot, end, now) {
            self.ended_slots.record_release(slot);
            self.local.release_slot(&binding.local, charge, slot, end, now);
        }
        true
    }

    /// Releases the slot of a charge that `peer` did not answer. `peer` may have made the charge or may still make it, and the
    /// slot may have moved on with the state of its key.
    fn release_unanswered_slot(&self, binding: &Binding, charge: &Charge, peer: &Peer) {
        if let Authority::Owned(owners, limit) = self.authority(binding, charge) {
            let now = owners.cluster.now();
            owners.record_slot(limit, charge, CountedAt::at(Some(peer)), now);
            self.release_slot(binding, charge, Completion::UNMEASURED, now);
        }
    }

    /// Fetches those states of `charges` that other gateways may still have.
    async fn fetch_states(&self, cluster: &Arc<Cluster>, binding: &Binding, charges: &[Charge]) -> Vec<Fetch> {
        let owned = charges.iter().filter(|charge| matches!(self.authority(binding, charge), Authority::Owned(..)));
        let wanted =
            owned.filter_map(|charge| Some((Arc::new(self.local.misses(&binding.local, charge)?), charge.key)));
        let wanted: Vec<_> = wanted.collect();
        if wanted.is_empty() { Vec::new() } else { Box::pin(cluster.fetch_states(wanted)).await }
    }

    /// Whether this process decides a charge in its memory.
    pub fn is_decided_locally(&self, binding: &Binding, charge: &Charge) -> bool {
        match self.authority(binding, charge) {
            Authority::Local => true,
            Authority::Shared(..) => false,
            Authority::Owned(owners, _) => owners.cluster.owns(charge.key),
        }
    }

    /// Refunds charges, as far as the algorithms allow.
    pub fn refund(&self, binding: &Binding, batch: &[Refund], now: Nanos) {
        for refund in batch {
            let charge = &refund.charge;
            if self.release_slot(binding, charge, Completion::UNMEASURED, now) {
                continue;
            }
            match (self.authority(binding, charge), charge.taken_from) {
                (_, ChargeSource::FailedOpen) => {}
                (Authority::Owned(owners, _), _) if owners.is_lost(charge) => {}
                (Authority::Local, _) => self.local.refund(&binding.local, slice::from_ref(refund), now),
                (Authority::Shared(shared, limit), _) => {
                    shared.refund(self.tables_of(binding), limit, refund);
                }
                (Authority::Owned(owners, limit), ChargeSource::Owner(_)) => owners.refund(limit, refund),
                (Authority::Owned(owners, limit), _) => {
                    let may_have_moved = || owners.may_be_elsewhere(charge);
                    if self.local.refund_if_present(&binding.local, refund, may_have_moved, now).is_err() {
                        owners.refund_when_present(limit, refund);
                    }
                }
            }
        }
    }

    /// Debits each charge by itself, whatever its limit says: the request was admitted before its cost was known.
    pub fn debit(&self, binding: &Binding, batch: &[Charge], now: Nanos) {
        for charge in batch {
            match self.authority(binding, charge) {
                _ if charge.taken_from == ChargeSource::FailedOpen => {}
                Authority::Owned(owners, _) if owners.is_lost(charge) => {}
                Authority::Local => self.local.debit(&binding.local, slice::from_ref(charge), now),
                Authority::Shared(shared, limit) => shared.debit(self.tables_of(binding), limit, charge),
                Authority::Owned(owners, limit) => {
                    // the gateway that owns the key now, wherever the key was charged
                    let elsewhere = owners.elsewhere(charge);
                    let may_have_moved = || owners.may_be_elsewhere(charge);
                    if elsewhere.is_some()
                        || self.local.debit_if_present(&binding.local, charge, may_have_moved, now).is_err()
                    {
                        owners.debit(limit, charge, elsewhere.as_ref());
                    }
                }
            }
        }
    }

    /// Releases the slots of a request that was charged with `batch` and has ended.
    pub fn complete(&self, binding: &Binding, batch: &[Charge], end: Completion, now: Nanos) {
        let mut local: SmallVec<[Charge; 4]> = SmallVec::new();
        for charge in batch {
            if self.release_slot(binding, charge, end, now) {
                continue;
            }
            match (self.authority(binding, charge), charge.taken_from) {
                (Authority::Shared(shared, _), _) => shared.complete(charge),
                // every charge that is held there has a slot, which `release_slot` has released
                (Authority::Owned(..), ChargeSource::Owner(_)) => {}
                (Authority::Local | Authority::Owned(..), _) => local.push(charge.clone()),
            }
        }
        self.local.complete(&binding.local, &local, end, now);
    }

    const fn tables_of<'a>(&'a self, binding: &'a Binding) -> LocalTables<'a> {
        LocalTables { store: &self.local, binding: &binding.local }
    }

    /// Evicts keys whose states are fresh again, in the `part`-th of `parts` equal parts of the store.
    pub fn sweep(&self, part: usize, parts: usize, now: Nanos) {
        self.local.sweep(part, parts, now);
    }

    /// Writes the states that outlive the process: see [`local::snapshot`].
    pub fn write_snapshot(&self, head: &SnapshotHead, out: &mut dyn Write) -> io::Result<SnapshotSize> {
        self.local.write_snapshot(head, out)
    }

    /// Whether a limit's states come from a process that had other parameters for it.
    pub fn was_bound_otherwise(&self, spec: &LimitSpec<'_>) -> bool {
        self.local.was_bound_otherwise(spec)
    }

    /// The fill level of each table of `binding`, in the order of its limits.
    pub fn usage(&self, binding: &Binding) -> Vec<Usage> {
        self.local.usage(&binding.local)
    }

    /// The number of tables, including the tables of limits that may come back.
    pub fn tables(&self) -> usize {
        self.local.tables()
    }
}

impl Authority<'_> {
    /// The denial of a charge, if it is certain without a call.
    fn denial(self, charge: &Charge, now: Nanos) -> Option<Charged> {
        match self {
            Self::Shared(shared, limit) => shared.denial(limit, charge, now),
            Self::Owned(owners, limit) if !owners.cluster.owns(charge.key) => owners.denial(limit, charge, now),
            Self::Local | Self::Owned(..) => None,
        }
    }

    /// The result that this gateway expects for a charge, if it remembers its key.
    fn predict(self, charge: &Charge, now: Nanos) -> Option<Charged> {
        match self {
            Self::Local => None,
            Self::Shared(shared, limit) => shared.predict(limit, charge, now),
            Self::Owned(owners, limit) => owners.predict(limit, charge, now),
        }
    }
}
