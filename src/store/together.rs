//! A request under several limits, some of whose states are in this process's memory and some in Redis: charged by all or
//! by none.
//!
//! What can be decided without asking is decided first, so that a request that is denied anyway costs Redis nothing. What
//! is taken on the way stands in an [`Undo`], which gives it back when a later limit denies, and also when the request
//! goes away meanwhile.

use smallvec::SmallVec;

use crate::charge::{Charge, Charged, Source};
use crate::store::shared::{Asked, SharedLimit, SharedStore, Tables};
use crate::store::{Binding, Receipt, Store};
use crate::units::Nanos;

/// A request being charged.
pub(super) struct Together<'a> {
    pub(super) store: &'a Store,
    pub(super) shared: &'a SharedStore,
    pub(super) binding: &'a Binding,
    pub(super) now: Nanos,
}

/// What is known of each charge so far.
type Told = SmallVec<[Option<Charged>; 4]>;

/// Positions in a batch.
type Positions = SmallVec<[usize; 4]>;

impl<'a> Together<'a> {
    /// See [`Store::charge`].
    pub(super) async fn charge(&self, batch: &mut [Charge]) -> Receipt {
        let mut told: Told = batch.iter().map(|charge| self.denial(charge)).collect();
        let mut source = if told.iter().any(Option::is_some) { Source::DenialCache } else { Source::Local };
        let mut refused = None;
        let mut undo = Undo { store: self.store, binding: self.binding, taken: Vec::new(), now: self.now };
        let local: Positions = (0..batch.len()).filter(|position| self.limit(&batch[*position]).is_none()).collect();
        self.charge_local(batch, &local, &mut told);
        undo.note(batch, &told, &local);
        for group in self.groups(batch, &told) {
            if denies(batch, &told) {
                break;
            }
            match self.charge_shared(batch, &group, &mut told).await {
                Ok(asked) => source = asked,
                Err(position) => {
                    refused = Some(position);
                    break;
                }
            }
            undo.note(batch, &told, &group);
        }
        let denied = refused.is_some() || denies(batch, &told);
        if !denied {
            undo.taken.clear();
        }
        drop(undo);
        let charged =
            batch.iter().zip(told).map(|(charge, told)| told.unwrap_or_else(|| self.not_asked(charge, denied)));
        Receipt { charged: charged.collect(), source, refused }
    }

    fn limit(&self, charge: &Charge) -> Option<&'a SharedLimit> {
        self.binding.shared.get(charge.limit)?.as_ref()
    }

    /// The denial of a charge, if it is certain without asking.
    fn denial(&self, charge: &Charge) -> Option<Charged> {
        self.shared.denial(self.limit(charge)?, charge, self.now)
    }

    /// Charges what is in memory. Of a request that is denied already, only what counts although it is denied.
    fn charge_local(&self, batch: &mut [Charge], local: &[usize], told: &mut Told) {
        let denied = denies(batch, told);
        let mut some: SmallVec<[Charge; 4]> = local.iter().map(|position| batch[*position].clone()).collect();
        let charged = match denied {
            true => self.store.local.charge_denied(&self.binding.local, &mut some, self.now),
            false => self.store.local.charge(&self.binding.local, &mut some, self.now),
        };
        for ((position, charge), charged) in local.iter().zip(some).zip(charged) {
            batch[*position] = charge;
            told[*position] = Some(charged);
        }
    }

    /// What is asked of Redis in one call each: what this node holds or counts by itself, one by one, then what lies
    /// together.
    fn groups(&self, batch: &[Charge], told: &Told) -> SmallVec<[Positions; 2]> {
        let mut alone: SmallVec<[Positions; 2]> = SmallVec::new();
        let mut by_slot: SmallVec<[(u16, Positions); 2]> = SmallVec::new();
        for (position, charge) in batch.iter().enumerate() {
            let Some(limit) = self.limit(charge).filter(|_| told[position].is_none()) else { continue };
            let slot = self.shared.slot(charge.tag);
            match by_slot.iter_mut().find(|(known, _)| *known == slot) {
                _ if limit.is_by_itself() => alone.push(SmallVec::from_slice(&[position])),
                Some((_, positions)) => positions.push(position),
                None => by_slot.push((slot, SmallVec::from_slice(&[position]))),
            }
        }
        alone.into_iter().chain(by_slot.into_iter().map(|(_, positions)| positions)).collect()
    }

    /// Charges what lies together in Redis. The position of a limit that lets nothing pass without Redis is an error.
    async fn charge_shared(&self, batch: &mut [Charge], group: &[usize], told: &mut Told) -> Result<Source, usize> {
        let mut some: SmallVec<[Charge; 4]> = group.iter().map(|position| batch[*position].clone()).collect();
        let limits: SmallVec<[&SharedLimit; 4]> = some.iter().filter_map(|charge| self.limit(charge)).collect();
        let tables = Tables { store: &self.store.local, binding: &self.binding.local };
        let (charged, source) = match self.shared.charge(tables, &limits, &mut some, self.now).await {
            Asked::Charged(charged, source) => (charged, source),
            Asked::Alone(charged) => (charged, Source::Fallback),
            Asked::Refused(refused) => return Err(group.get(refused).copied().unwrap_or_default()),
        };
        for ((position, charge), charged) in group.iter().zip(some).zip(charged) {
            batch[*position] = charge;
            told[*position] = Some(charged);
        }
        Ok(source)
    }

    /// What a limit would have said that was not asked, because another denied the request.
    fn not_asked(&self, charge: &Charge, denied: bool) -> Charged {
        let limit = self.limit(charge);
        if let Some(limit) = limit.filter(|_| denied && charge.manner.takes && charge.manner.counts_denied) {
            self.shared.debit(limit, charge);
        }
        let rule = self.binding.local.rule(charge);
        let fresh = || Charged {
            decision: rule.decide(None, charge.cost, self.now).0,
            headroom: rule.headroom(None, self.now),
        };
        limit.and_then(|limit| self.shared.standing(limit, charge, self.now)).unwrap_or_else(fresh)
    }
}

/// Whether a limit that binds denies.
fn denies(batch: &[Charge], told: &Told) -> bool {
    let known = batch.iter().zip(told).filter(|(charge, _)| charge.manner.binds);
    known.filter_map(|(_, told)| *told).any(|charged| !charged.decision.is_admitted())
}

/// What a request has taken so far, which is given back unless it is let through.
struct Undo<'a> {
    store: &'a Store,
    binding: &'a Binding,
    taken: Vec<(Charge, Nanos)>,
    now: Nanos,
}

impl Undo<'_> {
    /// Notes what was taken at `positions`, which was nothing if one of them denied the request.
    fn note(&mut self, batch: &[Charge], told: &Told, positions: &[usize]) {
        if denies(batch, told) {
            return;
        }
        for position in positions {
            let (charge, Some(charged)) = (&batch[*position], told[*position]) else { continue };
            // what counts although it is denied stays taken
            if charge.manner.takes && !charge.manner.counts_denied && charged.decision.is_admitted() {
                let full_at = self.now.saturating_add(charged.headroom.until_full);
                self.taken.push((charge.clone(), full_at));
            }
        }
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if !self.taken.is_empty() {
            self.store.refund(self.binding, &self.taken, self.now);
        }
    }
}
