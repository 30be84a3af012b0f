//! Corrections of charges: refunds, debits, and slots of requests that have ended. Each is made where the charge was made: in
//! Redis, or here if Redis was unavailable.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::charge::{Charge, Taken};
use crate::store::redis::{Call, CallArgument};
use crate::store::shared::fallback::DegradedCharge;
use crate::store::shared::limit::ChargePart;
use crate::store::shared::{SharedLimit, SharedNode, SharedStore, Tables};
use crate::units::Nanos;

impl SharedStore {
    /// Takes back what a charge took; `full_at` as in [`super::super::Store::refund`].
    pub(in crate::store) fn refund(&self, tables: Tables<'_>, limit: &SharedLimit, charge: &Charge, full_at: Nanos) {
        let Some(part) = limit.part(charge) else { return };
        let node = &self.0;
        let now = node.clock.now();
        let theirs = node.theirs(&part, now);
        let full_at = match charge.taken {
            Taken::Fallback { key, times, made_good: made_good @ [alone, _] } => {
                let cost = charge.cost.saturating_mul(times);
                tables.store.refund(tables.binding, &[(Charge { key, cost, ..charge.clone() }, full_at)], now);
                let is_noted = alone > Nanos::ZERO;
                if !is_noted || node.fallback.take_back(&part, charge.cost, made_good, theirs) {
                    return;
                }
                // Redis refills it no sooner than it was reconciled
                alone
            }
            // to the nanosecond: it tells which window the charge was counted in, or which entry of a log it is
            Taken::Elsewhere { here, there }
            | Taken::Counted { here, there, .. }
            | Taken::Lease { here, there, .. } => there.saturating_add(full_at.saturating_sub(here)),
            _ => node.theirs(&part, full_at),
        };
        match charge.taken {
            Taken::Slot(slot) => node.release(slot),
            Taken::Lease { lapses, .. } if node.leases.give_back(part.key, part.cost, lapses, now) => {}
            Taken::Counted { times, .. }
                // a share that has been told since is counted like any other
                if node.counters.refund(&part, full_at, times.min(node.times(limit)), theirs) => {}
            Taken::Elsewhere { .. } if limit.is_eventual() && node.counters.refund(&part, full_at, 1, theirs) => {}
            _ => node.refund_later(vec![(part, full_at)]),
        }
    }

    /// Charges whatever the limit says.
    pub(in crate::store) fn debit(&self, tables: Tables<'_>, limit: &SharedLimit, charge: &Charge) {
        let Some(part) = limit.part(charge) else { return };
        let node = Arc::clone(&self.0);
        let now = node.clock.now();
        let theirs = node.theirs(&part, now);
        if let Taken::Fallback { key, times, .. } = charge.taken {
            let cost = charge.cost.saturating_mul(times);
            tables.store.debit(tables.binding, &[Charge { key, cost, ..charge.clone() }], now);
            if node.fallback.add(&part, charge.cost, times, theirs).is_some() {
                return;
            }
        }
        if limit.is_eventual() && node.counters.debit(&part, node.times(limit), theirs) {
            return;
        }
        if limit.is_leased() && node.leases.take_more(part.key, part.cost, now) {
            return;
        }
        if node.is_away() {
            let (on_down, used) = (limit.sharing.on_store_down, node.memory.used(&part, theirs));
            let degraded = DegradedCharge { charge: &mut charge.clone(), part: &part, on_down, used, there: theirs };
            node.fallback.debit(tables, &degraded, node.nodes.load(Ordering::Relaxed), now);
            return;
        }
        self.0.later(async move {
            // what is lost here is lost to the limit: a debit is tried once
            drop(node.call_change(("debit", Call::Debit), &[(part, CallArgument::Nothing)]).await);
        });
    }

    /// Gives back what a charge holds while its request runs.
    pub(in crate::store) fn complete(&self, charge: &Charge) {
        if let Taken::Slot(slot) = charge.taken {
            self.0.release(slot);
        }
    }
}

impl SharedNode {
    /// Takes charges back; beside each stands when its key was going to be whole, on Redis's clock.
    pub(super) fn refund_later(self: &Arc<Self>, back: Vec<(ChargePart, Nanos)>) {
        if back.is_empty() || self.is_away() {
            return;
        }
        // or a charge that is sent meanwhile would read_repair Redis of what is given back
        let now = self.clock.now();
        back.iter().for_each(|(part, full_at)| self.memory.give_back(part, *full_at, self.theirs(part, now)));
        let node = Arc::clone(self);
        self.later(async move {
            let back: Vec<_> = back.into_iter().map(|(part, full_at)| (part, CallArgument::FullAt(full_at))).collect();
            // what cannot be given back is missing until time makes it good
            drop(node.call_change(("refund", Call::Refund), &back).await);
        });
    }
}
