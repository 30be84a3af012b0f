//! The shards of a store, each behind its lock.

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::held::HeldSlots;
use super::table::Cells;
use crate::charge::Charge;
use crate::units::LimitKey;

/// Shards are many so that two cores seldom meet and a sweep holds a lock for a short time only.
pub(super) const FOR_MANY_THREADS: usize = 1 << 10;
/// Where only one core comes they are few: fewer lines of the processor's cache are locks and beginnings of tables.
pub(super) const FOR_ONE_THREAD: usize = 1 << 4;

/// The shards of a store.
pub(super) struct Shards(Box<[LockedShard]>);

/// A shard behind its lock. It begins with a line of the processor's cache, so that a charge finds the lock and the first
/// limit's table in one, and no other lock lies in it.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct LockedShard(Mutex<Shard>);

/// What is behind one lock: this shard's part of every limit's table, indexed like the slots of the store's tables.
/// Those of few limits lie beside the lock, one step nearer.
#[derive(Default)]
pub(super) struct Shard {
    pub(super) cells: SmallVec<[Cells; 2]>,
    /// What requests hold of them, one by one.
    pub(super) held: HeldSlots,
}

impl Shards {
    /// So many empty ones: a power of two.
    pub(super) fn new(count: usize) -> Self {
        Self((0..count.next_power_of_two()).map(|_| LockedShard::default()).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &LockedShard> {
        self.0.iter()
    }

    /// The shard at this position, counted round and round.
    pub(super) fn at(&self, position: usize) -> &LockedShard {
        &self.0[self.within(position)]
    }

    /// The shard of a key.
    #[inline]
    pub(super) fn of(&self, key: LimitKey) -> &LockedShard {
        &self.0[self.position(key)]
    }

    #[expect(clippy::cast_possible_truncation, reason = "the lowest bits decide")]
    fn position(&self, key: LimitKey) -> usize {
        self.within(key.fingerprint() as usize)
    }

    /// There are as many as a power of two, which divides sooner than other numbers.
    fn within(&self, position: usize) -> usize {
        position & self.len().wrapping_sub(1)
    }
}

impl LockedShard {
    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, Shard> {
        self.0.lock()
    }
}

impl Shard {
    pub(super) fn replace(&mut self, position: usize, cells: Cells) {
        match self.cells.get_mut(position) {
            Some(place) => *place = cells,
            None => self.cells.push(cells),
        }
        self.held.forget(position);
    }
}

/// The shards of one batch, locked.
pub(super) struct Locked<'a> {
    shards: &'a Shards,
    locked: SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>,
}

impl<'a> Locked<'a> {
    /// In ascending order, so that two batches cannot wait for each other.
    pub(super) fn all(shards: &'a Shards, batch: &[Charge]) -> Self {
        let mut wanted: SmallVec<[usize; 4]> = batch.iter().map(|charge| shards.position(charge.key)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        Self { shards, locked: wanted.into_iter().map(|position| (position, shards.at(position).lock())).collect() }
    }

    pub(super) fn cells(&mut self, key: LimitKey, table: usize) -> &mut Cells {
        &mut self.shard(key).cells[table]
    }

    pub(super) fn held(&mut self, key: LimitKey) -> &mut HeldSlots {
        &mut self.shard(key).held
    }

    fn shard(&mut self, key: LimitKey) -> &mut Shard {
        let wanted = self.shards.position(key);
        let mut locked = self.locked.iter_mut();
        &mut locked.find(|(position, _)| *position == wanted).expect("all locked the shard of every charge").1
    }
}
