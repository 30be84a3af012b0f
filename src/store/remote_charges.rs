//! Charges that other gateways make here, because this gateway owns the keys.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet, VecDeque};
use std::slice;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::algorithm::{Completion, Parameters};
use crate::charge::{Charge, Refund, RuleRef, Slot};
use crate::cluster::Peer;
use crate::cluster::migration::{ImportCounts, StoreCursor};
use crate::cluster::state_service::{ChargeError, PeerSession, StateService};
use crate::cluster::wire::{ChargeReply, ChargeRequest, CorrectionRequest, LimitIdentity, StateBatch};
use crate::store::local::{Binding, StateElsewhere, is_overflow};
use crate::store::{LimitSpec, Store};
use crate::units::{LimitKey, Nanos};

/// Slots that processes have released, so that a charge or a state that arrives late does not take them again.
#[derive(Debug, Default)]
pub(super) struct EndedSlots(Mutex<HashMap<u64, Ended>>);

/// The latest ended slots of one process.
#[derive(Debug, Default)]
struct Ended {
    slots: HashSet<u64>,
    in_order: VecDeque<u64>,
}

/// How many slots are remembered of each process.
const MAX_ENDED: usize = 16_384;

impl EndedSlots {
    /// Records that `slot` is released. Call this before looking the slot up: a later charge of the slot checks here.
    pub(super) fn record_release(&self, slot: Slot) {
        let mut all = self.0.lock();
        let ended = all.entry(slot.process).or_default();
        if ended.slots.insert(slot.number) {
            ended.in_order.push_back(slot.number);
            if ended.in_order.len() > MAX_ENDED
                && let Some(oldest) = ended.in_order.pop_front()
            {
                ended.slots.remove(&oldest);
            }
        }
    }

    /// Whether `slot` was released.
    fn has(&self, slot: Slot) -> bool {
        self.0.lock().get(&slot.process).is_some_and(|ended| ended.slots.contains(&slot.number))
    }
}

/// The limits that one connection has named.
#[derive(Debug)]
struct Limits {
    /// The limits so far; a limit that starts afresh is replaced.
    binding: Binding,
    /// The position in the binding of each set of parameters on this connection; none if this program does not know them.
    positions: Vec<Option<usize>>,
}

/// The store as one connection uses it.
struct RemoteCharges {
    store: Arc<Store>,
    process: u64,
    limits: RwLock<Limits>,
}

impl StateService for Store {
    fn open_session(self: Arc<Self>, process: u64) -> Arc<dyn PeerSession> {
        let limits = RwLock::new(Limits { binding: Binding::empty(), positions: Vec::new() });
        Arc::new(RemoteCharges { store: self, process, limits })
    }

    fn release_process(&self, process: u64, now: Nanos) {
        self.ended_slots.0.lock().remove(&process);
        self.local.release_process(process, now);
    }

    fn take(&self, limit: &LimitIdentity, key: LimitKey, leaves: &dyn Fn()) -> Option<StateBatch> {
        self.local.take(limit, key, leaves)
    }

    fn has_state(&self, limit: &LimitIdentity, key: LimitKey) -> bool {
        self.local.has_state(limit, key)
    }

    fn take_moved(
        &self,
        cursor: &mut StoreCursor,
        to: &dyn Fn(LimitKey) -> Option<usize>,
        now: Nanos,
    ) -> Vec<(usize, StateBatch)> {
        self.local.take_moved(cursor, to, now)
    }

    fn too_large(&self) -> u64 {
        self.local.too_large()
    }

    fn put(&self, states: &StateBatch, now: Nanos) -> ImportCounts {
        let mut states = Cow::Borrowed(states);
        if states.held.iter().any(|held| self.ended_slots.has(held.slot)) {
            states.to_mut().held.retain(|held| !self.ended_slots.has(held.slot));
        }
        self.local.put(&states, now)
    }

    fn unreported_slots(&self, since: Nanos, now: Nanos) -> Vec<(Arc<Peer>, StateBatch)> {
        let Some(owners) = &self.owners else { return Vec::new() };
        let unreported = owners.unreported(since, now).into_iter().filter_map(|(peer, states)| {
            if peer.is_none() {
                self.local.put(&states, now);
            }
            Some((peer?, states))
        });
        unreported.collect()
    }

    fn slots_reported(&self, peer: u32, states: &StateBatch, now: Nanos) {
        if let Some(owners) = &self.owners {
            owners.running.set_reported(peer, states, now);
        }
    }

    fn release_stale_slots(&self, until: &dyn Fn(u64) -> Nanos, now: Nanos) {
        let is_own = |slot| self.owners.as_ref().is_some_and(|owners| owners.holds(slot));
        self.local.release_stale_slots(|slot, reported_at| reported_at <= until(slot.process) && !is_own(slot), now);
    }
}

impl RemoteCharges {
    const fn slot(&self, number: u64) -> Slot {
        Slot { process: self.process, number }
    }

    /// The charge that the other gateway requests. An error if this program does not know its parameters.
    fn charge_of(&self, limits: &Limits, part: &ChargeRequest) -> Result<Charge, ChargeError> {
        let ChargeRequest { rule, key, cost, enforcement, slot } = *part;
        let position = usize::try_from(rule).ok().and_then(|rule| *limits.positions.get(rule)?);
        let limit = position.ok_or(ChargeError::UnknownParameters)?;
        let slot = (slot > 0).then(|| self.slot(slot));
        Ok(Charge { slot, ..Charge::new(limit, RuleRef::Listed(0), key, cost, enforcement) })
    }

    /// The limits; if one of `batch` has started afresh, bound to its new table.
    fn renewed<'a>(&'a self, limits: RwLockReadGuard<'a, Limits>, batch: &[Charge]) -> RwLockReadGuard<'a, Limits> {
        if !limits.binding.is_stale(batch) {
            return limits;
        }
        drop(limits);
        self.store.local.renew(&mut self.limits.write().binding);
        self.limits.read()
    }

    /// Whether the session is this process's own, for corrections that it makes itself.
    fn is_own_process(&self) -> bool {
        self.store.cluster().is_some_and(|cluster| cluster.process() == self.process)
    }
}

impl PeerSession for RemoteCharges {
    fn learn(&self, limit: &LimitIdentity, parameters: &Parameters) {
        let known = LimitSpec::of(limit).and_then(|spec| Some((spec, parameters.rule(spec.algorithm)?)));
        let mut limits = self.limits.write();
        let position = known.map(|(spec, rule)| self.store.local.adopt(&mut limits.binding, &spec, rule));
        limits.positions.push(position);
    }

    fn unknown(&self, parts: &[ChargeRequest]) -> Vec<(Arc<LimitIdentity>, LimitKey)> {
        let limits = self.limits.read();
        let unknown = parts.iter().filter_map(|part| {
            let charge = self.charge_of(&limits, part).ok()?;
            Some((Arc::new(self.store.local.misses(&limits.binding, &charge)?), part.key))
        });
        unknown.collect()
    }

    fn charge(
        &self,
        wanted: &[ChargeRequest],
        may_have_moved: &dyn Fn(usize) -> bool,
        now: Nanos,
    ) -> Result<Vec<ChargeReply>, ChargeError> {
        let limits = self.limits.read();
        let charges = wanted.iter().map(|part| self.charge_of(&limits, part));
        let mut batch = charges.collect::<Result<Vec<Charge>, _>>()?;
        let limits = self.renewed(limits, &batch);
        let charged = self.store.local.charge_unless(&limits.binding, &mut batch, may_have_moved, now);
        let charged = charged.map_err(|StateElsewhere| ChargeError::StateElsewhere)?;
        for (charge, slot) in batch.iter().filter_map(|charge| Some((charge, charge.slot?))) {
            if self.store.ended_slots.has(slot) {
                self.store.local.release_slot(&limits.binding, charge, slot, Completion::UNMEASURED, now);
            }
        }
        let replies = wanted.iter().zip(batch).zip(charged).map(|((wanted, charge), charged)| ChargeReply {
            charged,
            common: (charge.key != wanted.key).then_some(charge.key),
        });
        Ok(replies.collect())
    }

    fn change(
        &self,
        change: &CorrectionRequest,
        may_have_moved: &dyn Fn() -> bool,
        now: Nanos,
    ) -> Result<(), ChargeError> {
        let (local, limits, part) = (&self.store.local, self.limits.read(), change.part());
        let changed = match *change {
            // the common bucket of a gateway that is gone has ended with it
            _ if change.is_transferable() && is_overflow(part.key) && self.is_own_process() => Ok(()),
            CorrectionRequest::Refund { full_at, .. } => {
                let full_at = full_at.shifted(local.wall_offset().get().reversed());
                let refund = Refund { charge: self.charge_of(&limits, part)?, full_at };
                local.refund_if_present(&limits.binding, &refund, may_have_moved, now)
            }
            CorrectionRequest::Debit(_) => {
                let charge = self.charge_of(&limits, part)?;
                let limits = self.renewed(limits, slice::from_ref(&charge));
                local.debit_if_present(&limits.binding, &charge, may_have_moved, now)
            }
            CorrectionRequest::Complete(_, end) => {
                let slot = self.slot(part.slot);
                self.store.ended_slots.record_release(slot);
                local.release_slot(&limits.binding, &self.charge_of(&limits, part)?, slot, end, now);
                Ok(())
            }
        };
        changed.map_err(|StateElsewhere| ChargeError::StateElsewhere)
    }
}
