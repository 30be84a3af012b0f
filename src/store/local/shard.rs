//! The shards of a store, each behind its lock.

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::held::HeldSlots;
use super::table::Cells;
use crate::charge::Charge;
use crate::units::LimitKey;

/// The number of shards for many threads: large, so that two cores rarely meet and a sweep holds each lock only briefly.
pub(super) const FOR_MANY_THREADS: usize = 1 << 10;
/// The number of shards for one thread: small, since locks and table headers then take fewer lines of the processor's cache.
pub(super) const FOR_ONE_THREAD: usize = 1 << 4;

/// The shards of a store.
pub(super) struct Shards(Box<[LockedShard]>);

/// A shard behind its lock. It is aligned to a line of the processor's cache, so that a charge finds the lock and the
/// first limit's table in one line, which contains no other lock.
#[derive(Default)]
#[repr(align(64))]
pub(super) struct LockedShard(Mutex<Shard>);

/// The data behind one lock: this shard's part of every limit's table, indexed by the tables' positions. The parts of
/// the first limits are next to the lock, without another pointer to follow.
#[derive(Default)]
pub(super) struct Shard {
    pub(super) cells: SmallVec<[Cells; 2]>,
    /// The slots that requests hold, one by one.
    pub(super) held: HeldSlots,
}

impl Shards {
    /// `count` empty shards, rounded up to a power of two.
    pub(super) fn new(count: usize) -> Self {
        Self((0..count.next_power_of_two()).map(|_| LockedShard::default()).collect())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &LockedShard> {
        self.0.iter()
    }

    /// The shard at this position, modulo the number of shards.
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

    /// Reduces a position modulo the number of shards, which is a power of two, so that a bit mask is enough.
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
    /// Locks the shards in ascending order, so that two batches cannot wait for each other.
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
