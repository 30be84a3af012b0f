//! The interface of the store that other gateways' requests reach.

use std::sync::Arc;

use super::migration::{ImportCounts, StoreCursor};
use super::peer::Peer;
use super::wire::{Change, ChargeReply, ChargeRequest, LimitIdentity, StateBatch};
use crate::algorithm::Parameters;
use crate::units::{LimitKey, Nanos};

/// Keeps the states. Implemented by the store.
pub trait StateService: Send + Sync {
    /// Opens the session of a connection from the process `process`.
    fn open_session(self: Arc<Self>, process: u64) -> Arc<dyn PeerSession>;

    /// Gives back all slots of the process `process`, which is gone.
    fn release(&self, process: u64, now: Nanos);

    /// Takes out the state of a key, if there is one that may be moved. `leaves` is called while the key's shard is locked: what
    /// it notes is visible before the state is missed.
    fn take(&self, limit: &LimitIdentity, key: LimitKey, leaves: &dyn Fn()) -> Option<StateBatch>;

    /// Whether there is a state of a key.
    fn knows(&self, limit: &LimitIdentity, key: LimitKey) -> bool;

    /// Takes states that other gateways own out of a part of the store, grouped by destination. `to` returns the destination of
    /// a key. It is called while the key's shard is locked: what it notes is visible before the state is missed.
    fn take_moved(
        &self,
        cursor: &mut StoreCursor,
        to: &dyn Fn(LimitKey) -> Option<usize>,
        now: Nanos,
    ) -> Vec<(usize, StateBatch)>;

    /// Puts in states and slots that another gateway sent. A state whose key has one here is merged with it.
    fn put(&self, states: &StateBatch, now: Nanos) -> ImportCounts;

    /// The slots of this process that the current owners of their keys have not been told of at `since` or later, each with the
    /// owner to tell. Slots of keys that this gateway owns are put into the store.
    fn unreported_slots(&self, since: Nanos, now: Nanos) -> Vec<(Arc<Peer>, StateBatch)>;

    /// Notes that the slots in `states` were reported at `now` to the gateway of this number.
    fn slots_reported(&self, peer: u32, states: &StateBatch, now: Nanos);

    /// Gives back slots that were not reported since `until`, which returns that time for each process.
    fn release_stale_slots(&self, until: &dyn Fn(u64) -> Nanos, now: Nanos);
}

/// Why nothing is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeError {
    /// This program does not know some of the parameters.
    Unknown,
    /// A state is not here, and another gateway may have it.
    StateElsewhere,
}

/// A [`StateService`] as one connection uses it. Parameters are numbered in the order in which they were learnt.
pub trait PeerSession: Send + Sync {
    /// Learns parameters, whether this program knows them or not.
    fn learn(&self, limit: &LimitIdentity, parameters: &Parameters);

    /// Those of `keys`, each with the number of its parameters, that have no state here.
    fn unknown(&self, keys: &[(u32, LimitKey)]) -> Vec<(Arc<LimitIdentity>, LimitKey)>;

    /// Charges all of `wanted` or none. `may_have_moved` returns by position whether another gateway may have a missing state.
    fn charge(
        &self,
        wanted: &[ChargeRequest],
        may_have_moved: &dyn Fn(usize) -> bool,
        now: Nanos,
    ) -> Result<Vec<ChargeReply>, ChargeError>;

    /// Makes `change`. `may_have_moved` returns whether another gateway may have the state if it is missing.
    fn change(&self, change: &Change, may_have_moved: &dyn Fn() -> bool, now: Nanos) -> Result<(), ChargeError>;
}
