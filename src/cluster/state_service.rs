//! The interface through which other gateways' requests reach the store.

use std::sync::Arc;

use super::migration::{ImportCounts, StoreCursor};
use super::peer::Peer;
use super::wire::{ChargeReply, ChargeRequest, CorrectionRequest, LimitIdentity, StateBatch};
use crate::algorithm::Parameters;
use crate::units::{LimitKey, Nanos};

/// The store of the states.
pub trait StateService: Send + Sync {
    /// Opens a session for a connection from `process`.
    fn open_session(self: Arc<Self>, process: u64) -> Arc<dyn PeerSession>;

    /// Releases all slots of `process`, which is gone.
    fn release_process(&self, process: u64, now: Nanos);

    /// Takes out the state of a key, if there is one that can be moved. `leaves` is called while the key's shard is
    /// locked, so that other threads see its effect before they miss the state.
    fn take(&self, limit: &LimitIdentity, key: LimitKey, leaves: &dyn Fn()) -> Option<StateBatch>;

    /// Whether the store has a state of the key.
    fn has_state(&self, limit: &LimitIdentity, key: LimitKey) -> bool;

    /// Takes states that other gateways own out of a part of the store, grouped by destination. `to` returns the
    /// destination of a key; it is called while the key's shard is locked, so that other threads see its effect before
    /// they miss the state.
    fn take_moved(
        &self,
        cursor: &mut StoreCursor,
        to: &dyn Fn(LimitKey) -> Option<usize>,
        now: Nanos,
    ) -> Vec<(usize, StateBatch)>;

    /// How many states this process lost because they were too large to move.
    fn too_large(&self) -> u64;

    /// Stores states and slots that another gateway sent. A state whose key has one here is merged with it.
    fn put(&self, states: &StateBatch, now: Nanos) -> ImportCounts;

    /// The slots of this process that were not reported to the current owners of their keys at `since` or later, each
    /// with the owner. Slots of keys that this gateway owns are put into the store.
    fn unreported_slots(&self, since: Nanos, now: Nanos) -> Vec<(Arc<Peer>, StateBatch)>;

    /// Notes that the slots in `states` were reported at `now` to the gateway with this number.
    fn slots_reported(&self, peer: u32, states: &StateBatch, now: Nanos);

    /// Releases slots that were last reported before the time that `until` gives for their process.
    fn release_stale_slots(&self, until: &dyn Fn(u64) -> Nanos, now: Nanos);
}

/// The reason why nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeError {
    /// This program does not know some of the parameters.
    UnknownParameters,
    /// A state is not here, and another gateway may have it.
    StateElsewhere,
}

/// A connection's session with the [`StateService`]. Parameters are numbered in the order in which they were learned.
pub trait PeerSession: Send + Sync {
    /// Learns parameters, even if this program does not know them.
    fn learn(&self, limit: &LimitIdentity, parameters: &Parameters);

    /// The keys of `parts` that have no state here.
    fn unknown(&self, parts: &[ChargeRequest]) -> Vec<(Arc<LimitIdentity>, LimitKey)>;

    /// Charges all of `wanted` or none. `may_have_moved` says by position whether another gateway may have
    /// a missing state.
    fn charge(
        &self,
        wanted: &[ChargeRequest],
        may_have_moved: &dyn Fn(usize) -> bool,
        now: Nanos,
    ) -> Result<Vec<ChargeReply>, ChargeError>;

    /// Makes `change`. `may_have_moved` says whether another gateway may have the state if it is missing.
    fn change(
        &self,
        change: &CorrectionRequest,
        may_have_moved: &dyn Fn() -> bool,
        now: Nanos,
    ) -> Result<(), ChargeError>;
}
