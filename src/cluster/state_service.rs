//! Who keeps states, as other gateways reach it.

use std::sync::Arc;

use super::migration::{ImportCounts, StoreCursor};
use super::peer::Peer;
use super::wire::{Change, ChargeReply, ChargeRequest, LimitIdentity, StateBatch};
use crate::algorithm::Parameters;
use crate::units::{LimitKey, Nanos};

/// Who keeps states, as other gateways' questions reach it.
pub trait StateService: Send + Sync {
    /// The side of one connection, from the process `process`.
    fn open_session(self: Arc<Self>, process: u64) -> Arc<dyn PeerSession>;

    /// The process `process` is gone: what it held while requests ran comes back.
    fn release(&self, process: u64, now: Nanos);

    /// Takes out the state of a key, if there is one that may be moved.
    fn take(&self, limit: &LimitIdentity, key: LimitKey) -> Option<StateBatch>;

    /// Takes out states that belong elsewhere, where `to` says, in a part of what is kept. Those of one place together.
    /// `to` is asked while the key's place is locked: what it notes is known before anybody misses the state.
    fn take_moved(
        &self,
        cursor: &mut StoreCursor,
        to: &dyn Fn(LimitKey) -> Option<usize>,
        now: Nanos,
    ) -> Vec<(usize, StateBatch)>;

    /// Puts in states that came from elsewhere, and what requests hold. A key that has a state here keeps the merged one.
    fn put(&self, states: &StateBatch, now: Nanos) -> ImportCounts;

    /// What requests of this process hold that those who own the keys now have not been told of at `since` or later, and
    /// to whom that is to be told. What is held of keys that this gateway owns is put in place.
    fn unreported_slots(&self, since: Nanos, now: Nanos) -> Vec<(Arc<Peer>, StateBatch)>;

    /// The gateway of this number was told at `now` of what stands in `states`.
    fn slots_reported(&self, peer: u32, states: &StateBatch, now: Nanos);

    /// Gives back what was not told of since `until`, which says that of each process.
    fn release_stale_slots(&self, until: &dyn Fn(u64) -> Nanos, now: Nanos);
}

/// Why nothing is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeError {
    /// Some parameters are not understood.
    Unknown,
    /// A state is not here, and may be elsewhere.
    StateElsewhere,
}

/// One connection's side of a [`StateService`]. Parameters are known by the order in which they were learnt.
pub trait PeerSession: Send + Sync {
    /// Makes parameters known, be they understood or not.
    fn learn(&self, limit: &LimitIdentity, parameters: &Parameters);

    /// Those of `keys`, each beside its parameters, of which there is no state here.
    fn unknown(&self, keys: &[(u32, LimitKey)]) -> Vec<(Arc<LimitIdentity>, LimitKey)>;

    /// Charges all of `wanted` or none. `may_have_moved` says by its position whether a state that is not here may be elsewhere.
    fn charge(
        &self,
        wanted: &[ChargeRequest],
        may_have_moved: &dyn Fn(usize) -> bool,
        now: Nanos,
    ) -> Result<Vec<ChargeReply>, ChargeError>;

    /// Makes `change`. `may_have_moved` says whether the state may be elsewhere, should it not be here.
    fn change(&self, change: &Change, may_have_moved: &dyn Fn() -> bool, now: Nanos) -> Result<(), ChargeError>;
}
