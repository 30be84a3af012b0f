//! Where the states of all keys are kept, and how requests are charged: all of a request's limits, or none.
//!
//! Knows nothing of routes, HTTP or metrics: limits are positions, keys are hashes, and outcomes are returned or
//! read off [`Store::usage`].

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

pub use amend::{Amendment, Unamended};
pub use local::LocalStore;
pub use local::snapshot::{Head, Written};
pub use shared::{SharedLimit, SharedStore};

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::algorithm::{AlgorithmName, Completion, Rule};
use crate::charge::{AllCharged, Charge, Charged, DecisionSource, Mode, Taken};
use crate::cluster::Cluster;
use crate::cluster::migration::{Fetch, OwnershipEpoch};
use crate::units::Nanos;
use floors::BatchWithFloors;
use local::StateElsewhere;
use owners::{OwnedLimit, Owners};
use remote_charges::EndedSlots;
use shared::Tables;
use transaction::ChargeTransaction;

/// A limit as a store has to know it. Its states belong to `name`, `algorithm` and `key`: a limit that comes back with
/// other rules finds them again.
#[derive(Clone, Copy, Debug)]
pub struct LimitSpec<'a> {
    /// The limit's name.
    pub name: &'a str,
    /// Its algorithm.
    pub algorithm: AlgorithmName,
    /// Whose its states are.
    pub mode: Mode,
    /// The kind of its keys: a key of another kind means another caller.
    pub key: u64,
    /// Whether states that it left are forgotten.
    pub afresh: bool,
    /// All parameters that charges may refer to.
    pub rules: &'a [Rule],
    /// How many keys may be remembered.
    pub max_keys: u64,
    /// Whether tokens come back when requests turn out to cost less than was taken.
    pub gives_back: bool,
}

impl<'a> LimitSpec<'a> {
    /// The identity of a sticky limit, and nothing else about it.
    pub const fn bare(name: &'a str, algorithm: AlgorithmName, key: u64) -> Self {
        let mode = Mode::Sticky;
        Self { name, algorithm, mode, key, afresh: false, rules: &[], max_keys: 0, gives_back: false }
    }
}

/// The fill level of one limit's table, and its evictions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The limit's name.
    pub name: String,
    /// Keys remembered.
    pub keys: u64,
    /// Keys that may be remembered.
    pub max_keys: u64,
    /// Keys forgotten because they were as good as new.
    pub evicted_expired: u64,
    /// Keys forgotten early because the table was full.
    pub evicted_full: u64,
    /// Charges of new keys that went to the common bucket because the table was full.
    pub overflowed: u64,
}

/// The limits of one ruleset, as the store knows them.
#[derive(Debug)]
pub struct Binding {
    /// All limits; for limits that nodes share, the tables that decide while Redis is unavailable.
    local: local::Binding,
    /// The limits that nodes share, at their positions.
    shared: Vec<Option<SharedLimit>>,
    /// The limits whose keys nodes divide among themselves, at their positions.
    owned: Vec<Option<OwnedLimit>>,
}

/// The outcome of a batch of charges.
#[derive(Clone, Debug, PartialEq)]
pub struct Receipt {
    /// For each charge.
    pub charged: AllCharged,
    /// Where it was decided.
    pub source: DecisionSource,
    /// The position of a charge whose limit lets nothing pass while Redis is unavailable, if that is why nothing was charged.
    pub refused: Option<usize>,
}

/// Where states are kept: in this process's memory, in Redis for limits that nodes share, and in the memory of other gateways
/// for keys that they own.
#[derive(Debug, Default)]
pub struct Store {
    local: LocalStore,
    shared: Option<SharedStore>,
    owners: Option<Owners>,
    ended_slots: EndedSlots,
}

impl Store {
    /// A store with these states. Without a place that nodes share, every limit is this node's own; without a cluster,
    /// every key of a sticky limit.
    pub fn new(local: LocalStore, shared: Option<SharedStore>, cluster: Option<Arc<Cluster>>) -> Self {
        Self { local, shared, owners: cluster.map(Owners::new), ended_slots: EndedSlots::default() }
    }

    /// The gateways among which keys are divided, if they are.
    pub fn cluster(&self) -> Option<&Arc<Cluster>> {
        self.owners.as_ref().map(|owners| &owners.cluster)
    }

    /// The gateway that owns the key of a charge, where keys are divided.
    pub fn owner(&self, binding: &Binding, charge: &Charge) -> Option<SocketAddr> {
        binding.owned(charge)?;
        Some(self.owners.as_ref()?.cluster.owner(charge.key))
    }

    /// Whether nothing is on its way to others that would be lost if the process ended now.
    pub fn is_settled(&self) -> bool {
        self.shared.as_ref().is_none_or(SharedStore::is_settled)
            && self.cluster().is_none_or(|cluster| cluster.is_settled())
    }

    /// Connects the calling thread to Redis and to the other gateways, if that can be done in a moment.
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

    /// The part that keeps states in Redis, if there is one.
    pub const fn shared(&self) -> Option<&SharedStore> {
        self.shared.as_ref()
    }

    /// Makes `limits` known; charges refer to them by their position. States of limits that were known before stay.
    ///
    /// States of limits that no binding knows any more are kept until they are as good as new, in case the limit comes
    /// back. The number of such limits is bounded.
    pub fn bind(&self, limits: &[LimitSpec<'_>]) -> Binding {
        let shared = |spec| self.shared.as_ref().and_then(|shared| shared.limit(spec));
        let owned =
            |spec: &LimitSpec<'_>| (self.owners.is_some() && !spec.mode.is_shared()).then(|| OwnedLimit::new(spec));
        Binding {
            local: self.local.bind(limits),
            shared: limits.iter().map(shared).collect(),
            owned: limits.iter().map(owned).collect(),
        }
    }

    /// Charges every entry of `batch` or none: none if an enforcing limit denies. See [`crate::charge::Enforcement`] for
    /// limits that do not enforce. Answers in the order of `batch`, in which no limit may appear twice, and notes in it
    /// where each was charged: a new key for which there is no room is charged to a common bucket, and has to be
    /// given back there.
    ///
    /// A future that is dropped before it is ready has charged nothing, or gives it back.
    pub async fn charge(&self, binding: &Binding, batch: &mut [Charge], now: Nanos) -> Receipt {
        if let Some(receipt) = self.charge_in_memory(binding, batch, now) {
            return receipt;
        }
        // large, and moved with the futures that it is part of: it has its memory only where it is needed
        Box::pin(self.charge_with_floors(binding, batch, now)).await
    }

    /// [`Store::charge`] where others may have to be asked.
    async fn charge_with_floors(&self, binding: &Binding, batch: &mut [Charge], now: Nanos) -> Receipt {
        let Some(mut floors) = BatchWithFloors::of(batch) else {
            return self.charge_with_others(binding, batch, now).await;
        };
        let receipt = self.charge_with_others(binding, floors.charges(), now).await;
        let refused = receipt.refused.map(|position| floors.position(batch, position));
        Receipt { charged: floors.answer(batch, &receipt.charged), refused, ..receipt }
    }

    /// [`Store::charge`] where all of `batch` is decided in memory, and other gateways have nothing to do with it. `None`,
    /// with nothing charged, where that is not so.
    fn charge_in_memory(&self, binding: &Binding, batch: &mut [Charge], now: Nanos) -> Option<Receipt> {
        let is_alone = self.cluster().is_none() && self.owners.is_none();
        if !is_alone || !batch.iter().all(|charge| self.is_here(binding, charge)) {
            return None;
        }
        let charged = floors::charge_local(&self.local, &binding.local, batch, now);
        Some(Receipt { charged, source: DecisionSource::Local, refused: None })
    }

    /// [`Store::charge`] of charges without floors, where Redis or another gateway may have to be asked. Where a limit appears
    /// twice, all but the last of its charges only ask.
    async fn charge_with_others(&self, binding: &Binding, batch: &mut [Charge], now: Nanos) -> Receipt {
        self.number_slots(binding, batch);
        let epoch = self.ownership_epoch(batch);
        if batch.iter().all(|charge| self.is_here(binding, charge)) && !self.is_migrating() {
            let may_have_moved = |position| self.may_have_moved(&epoch, position);
            if let Ok(charged) = self.charge_here(binding, batch, false, may_have_moved, now) {
                return Receipt { charged, source: DecisionSource::Local, refused: None };
            }
        }
        ChargeTransaction { store: self, binding, now }.charge(batch).await
    }

    /// Makes the charges that are decided in memory; of a request that is `denied` already, only charges that count denials. An
    /// error, with nothing charged, if a state is not here of which `may_have_moved` says that another gateway may have it.
    fn charge_here(
        &self,
        binding: &Binding,
        batch: &mut [Charge],
        denied: bool,
        may_have_moved: impl Fn(usize) -> bool,
        now: Nanos,
    ) -> Result<AllCharged, StateElsewhere> {
        if denied {
            return self.local.charge_denied_unless(&binding.local, batch, may_have_moved, now);
        }
        let charged = self.local.charge_unless(&binding.local, batch, may_have_moved, now)?;
        self.note_running(binding, batch, &charged, now);
        Ok(charged)
    }

    /// Whether another gateway may have states of keys that this one decides about.
    fn is_migrating(&self) -> bool {
        self.cluster().is_some_and(|cluster| cluster.is_migrating())
    }

    /// Whether the state of the charge at this position may have moved since `epoch`.
    fn may_have_moved(&self, epoch: &OwnershipEpoch, position: usize) -> bool {
        self.cluster().is_some_and(|cluster| cluster.may_have_moved(epoch, position))
    }

    /// Where the states of `batch` are.
    fn ownership_epoch(&self, batch: &[Charge]) -> OwnershipEpoch {
        self.cluster().map(|cluster| cluster.ownership_epoch(batch.iter().map(|charge| charge.key))).unwrap_or_default()
    }

    /// Numbers the slots that charges are going to hold, where keys are divided.
    fn number_slots(&self, binding: &Binding, batch: &mut [Charge]) {
        let Some(owners) = &self.owners else { return };
        for charge in batch {
            charge.slot = binding.owned(charge).and_then(|limit| owners.slot(limit, charge));
        }
    }

    /// Notes the slots that the charges of `batch` hold from here on, if they were made.
    fn note_running(&self, binding: &Binding, batch: &[Charge], charged: &[Charged], now: Nanos) {
        let Some(owners) = &self.owners else { return };
        let mut all = batch.iter().zip(charged);
        if !all.all(|(charge, charged)| !charge.enforcement.enforces || charged.decision.is_admitted()) {
            return;
        }
        let admitted = batch.iter().zip(charged).filter(|(_, charged)| charged.decision.is_admitted());
        for (charge, limit) in admitted.filter_map(|(charge, _)| Some((charge, binding.owned(charge)?))) {
            owners.runs(limit, charge, now);
        }
    }

    /// Gives back the slots of a charge, whichever gateway counts them by now. `true` if the charge holds slots where keys are
    /// divided.
    fn end(&self, binding: &Binding, charge: &Charge, end: Completion, now: Nanos) -> bool {
        let Some((owners, slot)) = self.owners.as_ref().zip(charge.slot) else { return false };
        if owners.ends(slot, end, now) {
            self.ended_slots.note_end(slot);
            self.local.end(&binding.local, charge, slot, end, now);
        }
        true
    }

    /// Brings states of `charges` here that others may still have.
    async fn gather(&self, cluster: &Cluster, binding: &Binding, charges: &[Charge]) -> Vec<Fetch> {
        let owned = charges.iter().filter(|charge| binding.owned(charge).is_some());
        let wanted =
            owned.filter_map(|charge| Some((Arc::new(self.local.misses(&binding.local, charge)?), charge.key)));
        let wanted: Vec<_> = wanted.collect();
        if wanted.is_empty() { Vec::new() } else { cluster.gather(wanted).await }
    }

    /// Whether a charge is decided in this process's memory.
    pub fn is_here(&self, binding: &Binding, charge: &Charge) -> bool {
        let owned = self.owners.as_ref().filter(|_| binding.owned(charge).is_some());
        binding.shared(charge).is_none() && owned.is_none_or(|owners| owners.cluster.owns(charge.key))
    }

    /// Takes back charges, as far as the algorithms allow. With each stands when its key was going to be whole again,
    /// as [`crate::algorithm::Headroom::until_full`] told right after the charge.
    pub fn refund(&self, binding: &Binding, batch: &[(Charge, Nanos)], now: Nanos) {
        for (charge, full_at) in batch {
            if self.end(binding, charge, Completion::UNMEASURED, now) {
                continue;
            }
            match self.charged_at(binding, charge) {
                ChargedAt::Local => {
                    let watch = || self.is_owned_here(binding, charge);
                    if self.local.refund_here(&binding.local, charge, *full_at, watch, now).is_err()
                        && let Some((owners, limit)) = self.owners.as_ref().zip(binding.owned(charge))
                    {
                        owners.refund_when_here(limit, charge, *full_at);
                    }
                }
                ChargedAt::Shared(shared, limit) => shared.refund(self.tables_of(binding), limit, charge, *full_at),
                ChargedAt::Owner(owners, limit) => owners.refund(limit, charge, *full_at),
                ChargedAt::FailedOpen => {}
            }
        }
    }

    /// An error if the state of a charge's key may be with another gateway, should it not be here.
    fn is_owned_here(&self, binding: &Binding, charge: &Charge) -> Result<(), StateElsewhere> {
        let cluster = self.cluster().filter(|_| binding.owned(charge).is_some());
        let is_elsewhere = |cluster: &Arc<Cluster>| cluster.is_migrating() || !cluster.owns(charge.key);
        if cluster.is_some_and(is_elsewhere) { Err(StateElsewhere) } else { Ok(()) }
    }

    /// Debits each charge by itself, whatever its limit says: the request was admitted before its cost was known.
    pub fn debit(&self, binding: &Binding, batch: &[Charge], now: Nanos) {
        for charge in batch {
            match self.charged_at(binding, charge) {
                ChargedAt::Local | ChargedAt::Owner(..) => {
                    let owned = self.owners.as_ref().zip(binding.owned(charge));
                    // the gateway that owns the key by now, wherever it was charged
                    let elsewhere = owned.and_then(|(owners, _)| owners.elsewhere(charge));
                    let watch = || self.is_owned_here(binding, charge);
                    let is_here =
                        elsewhere.is_none() && self.local.debit_here(&binding.local, charge, watch, now).is_ok();
                    if let Some((owners, limit)) = owned.filter(|_| !is_here) {
                        owners.debit(limit, charge, elsewhere.as_ref());
                    }
                }
                ChargedAt::Shared(shared, limit) => shared.debit(self.tables_of(binding), limit, charge),
                ChargedAt::FailedOpen => {}
            }
        }
    }

    /// Gives back the slots of a request that was charged with `batch` and has ended.
    pub fn complete(&self, binding: &Binding, batch: &[Charge], end: Completion, now: Nanos) {
        let mut local: SmallVec<[Charge; 4]> = SmallVec::new();
        for charge in batch {
            if self.end(binding, charge, end, now) {
                continue;
            }
            match self.charged_at(binding, charge) {
                ChargedAt::Local => local.push(charge.clone()),
                ChargedAt::Shared(shared, _) => shared.complete(charge),
                // every charge that is held there has a slot
                ChargedAt::Owner(..) | ChargedAt::FailedOpen => {}
            }
        }
        self.local.complete(&binding.local, &local, end, now);
    }

    /// Where a charge was taken.
    fn charged_at<'a>(&'a self, binding: &'a Binding, charge: &Charge) -> ChargedAt<'a> {
        match (charge.taken, &self.shared, binding.shared(charge)) {
            (Taken::FailedOpen, _, _) => ChargedAt::FailedOpen,
            (Taken::Owner { .. }, _, _) => match (&self.owners, binding.owned(charge)) {
                (Some(owners), Some(limit)) => ChargedAt::Owner(owners, limit),
                _ => ChargedAt::FailedOpen,
            },
            (_, Some(shared), Some(limit)) => ChargedAt::Shared(shared, limit),
            _ => ChargedAt::Local,
        }
    }

    const fn tables_of<'a>(&'a self, binding: &'a Binding) -> Tables<'a> {
        Tables { store: &self.local, binding: &binding.local }
    }

    /// Forgets keys that are as good as new, in the `part`-th of `parts` equal parts of the store.
    pub fn sweep(&self, part: usize, parts: usize, now: Nanos) {
        self.local.sweep(part, parts, now);
    }

    /// Writes the states that outlive the process: see [`local::snapshot`].
    pub fn write_snapshot(&self, head: &Head, out: &mut dyn Write) -> io::Result<Written> {
        self.local.write_snapshot(head, out)
    }

    /// Whether the states that there are for a limit are from a process that knew it with other parameters.
    pub fn was_bound_otherwise(&self, spec: &LimitSpec<'_>) -> bool {
        self.local.was_bound_otherwise(spec)
    }

    /// How full the tables of `binding` are, in the order of its limits.
    pub fn usage(&self, binding: &Binding) -> Vec<Usage> {
        self.local.usage(&binding.local)
    }

    /// The number of tables, with the tables of limits that may come back.
    pub fn tables(&self) -> usize {
        self.local.tables()
    }
}

/// See [`Store::charged_at`].
enum ChargedAt<'a> {
    /// In this process's memory.
    Local,
    /// In Redis, or here because Redis was unavailable.
    Shared(&'a SharedStore, &'a SharedLimit),
    /// At the gateway that the charge tells of.
    Owner(&'a Owners, &'a OwnedLimit),
    FailedOpen,
}

impl Binding {
    /// The shared side of a charge's limit, where it has one.
    fn shared(&self, charge: &Charge) -> Option<&SharedLimit> {
        self.shared.get(charge.limit)?.as_ref()
    }

    /// The side of a charge's limit that other gateways see, where keys are divided.
    fn owned(&self, charge: &Charge) -> Option<&OwnedLimit> {
        self.owned.get(charge.limit)?.as_ref()
    }
}
