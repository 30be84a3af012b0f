//! The shards of a store, each behind its lock.

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;

use super::held::Held;
use super::table::Cells;
use crate::charge::Charge;
use crate::units::LimitKey;

/// Shards are many so that two cores seldom meet and a sweep holds a lock for a short time only.
pub(super) const SHARDS: usize = 1024;

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
    pub(super) held: Held,
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
pub(super) struct Locked<'a>(SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>);

impl<'a> Locked<'a> {
    /// In ascending order, so that two batches cannot wait for each other.
    pub(super) fn all(shards: &'a [LockedShard], batch: &[Charge]) -> Self {
        let mut wanted: SmallVec<[usize; 4]> = batch.iter().map(|charge| shard_of(charge.key)).collect();
        wanted.sort_unstable();
        wanted.dedup();
        Self(wanted.into_iter().map(|index| (index, shards[index].lock())).collect())
    }

    pub(super) fn cells(&mut self, key: LimitKey, table: usize) -> &mut Cells {
        &mut self.shard(key).cells[table]
    }

    pub(super) fn held(&mut self, key: LimitKey) -> &mut Held {
        &mut self.shard(key).held
    }

    fn shard(&mut self, key: LimitKey) -> &mut Shard {
        let wanted = shard_of(key);
        let position =
            self.0.iter().position(|(index, _)| *index == wanted).expect("all locked the shard of every charge");
        &mut self.0[position].1
    }
}

/// By the upper half of the key; the lower half is the hash within the shard.
#[expect(clippy::cast_possible_truncation, reason = "the value is below SHARDS")]
pub(super) const fn shard_of(key: LimitKey) -> usize {
    ((key.0 >> 64) % SHARDS as u128) as usize
}
