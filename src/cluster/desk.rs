//! Who keeps states, as other gateways reach it.

use std::sync::Arc;

use super::moving::{Received, Walk};
use super::peer::Peer;
use super::wire::{Change, Identity, States, Told, Wanted};
use crate::algorithm::Parameters;
use crate::units::{LimitKey, Nanos};

/// Who keeps states, as other gateways' questions reach it.
pub trait Desk: Send + Sync {
    /// The side of one connection, from the process `boot`.
    fn receive(self: Arc<Self>, boot: u64) -> Arc<dyn Guest>;

    /// The process `boot` is gone: what it held while requests ran comes back.
    fn release(&self, boot: u64, now: Nanos);

    /// Takes out the state of a key, if there is one that may be moved.
    fn take(&self, limit: &Identity, key: LimitKey) -> Option<States>;

    /// Takes out states that belong elsewhere, where `to` says, in a part of what is kept. Those of one place together.
    /// `to` is asked while the key's place is locked: what it notes is known before anybody misses the state.
    fn take_moved(&self, walk: &mut Walk, to: &dyn Fn(LimitKey) -> Option<usize>, now: Nanos) -> Vec<(usize, States)>;

    /// Puts in states that came from elsewhere, and what requests hold. A key that has a state here keeps the merged one.
    fn put(&self, states: &States, now: Nanos) -> Received;

    /// What requests of this process hold that those who own the keys now have not been told of at `since` or later, and
    /// to whom that is to be told. What is held of keys that this gateway owns is put in place.
    fn running(&self, since: Nanos, now: Nanos) -> Vec<(Arc<Peer>, States)>;

    /// The gateway of this number was told at `now` of what stands in `states`.
    fn told(&self, peer: u32, states: &States, now: Nanos);

    /// Gives back what was not told of since `until`, which says that of each process.
    fn release_unheard(&self, until: &dyn Fn(u64) -> Nanos, now: Nanos);
}

/// Why nothing is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Some parameters are not understood.
    Unknown,
    /// A state is not here, and may be elsewhere.
    Left,
}

/// One connection's side of a [`Desk`]. Parameters are known by the order in which they were learnt.
pub trait Guest: Send + Sync {
    /// Makes parameters known, be they understood or not.
    fn learn(&self, limit: &Identity, parameters: &Parameters);

    /// Those of `keys`, each beside its parameters, of which there is no state here.
    fn unknown(&self, keys: &[(u32, LimitKey)]) -> Vec<(Arc<Identity>, LimitKey)>;

    /// Charges all of `wanted` or none. `has_left` says by its position whether a state that is not here may be elsewhere.
    fn charge(&self, wanted: &[Wanted], has_left: &dyn Fn(usize) -> bool, now: Nanos) -> Result<Vec<Told>, Refusal>;

    /// Makes `change`. `has_left` says whether the state may be elsewhere, should it not be here.
    fn change(&self, change: &Change, has_left: &dyn Fn() -> bool, now: Nanos) -> Result<(), Refusal>;
}
