//! Corrections of charges: refunds, debits, and slots of requests that have ended. Each is made where the charge was
//! made: in Redis, or on this gateway if Redis was unavailable.

use std::sync::Arc;

use crate::charge::{Charge, ChargeSource, Refund};
use crate::store::redis::CallArgument;
use crate::store::shared::calls::{CallFailure, Change};
use crate::store::shared::limit::ChargePart;
use crate::store::shared::{LocalTables, SharedLimit, SharedStore};
use crate::units::Nanos;

impl SharedStore {
    /// Refunds a charge.
    pub(in crate::store) fn refund(
        self: &Arc<Self>,
        tables: LocalTables<'_>,
        limit: &SharedLimit,
        Refund { charge, full_at }: &Refund,
    ) {
        let Some(part) = limit.part(charge) else { return };
        let now = self.clock.now();
        let redis_time = self.redis_time(&part, now);
        let full_there = full_at.shifted(charge.clock_offset);
        match charge.taken_from {
            ChargeSource::Slot(slot) => self.release_slot(slot),
            ChargeSource::Lease { expires_at } if self.leases.refund(&part, expires_at, now) => {}
            ChargeSource::Counted { sync } if self.counters.refund(&part, sync, full_there, redis_time) => {}
            ChargeSource::Fallback { key, cost_multiplier, refill_times: refill_times @ [alone, _] } => {
                let cost = charge.cost.saturating_mul(cost_multiplier);
                let refund = Refund { charge: Charge { key, cost, ..charge.clone() }, full_at: *full_at };
                tables.store.refund(tables.binding, &[refund], now);
                let is_noted = alone > Nanos::ZERO;
                if is_noted && !self.fallback.take_back(&part, charge.cost, refill_times, redis_time) {
                    // Redis does not count the charge as refilled before it was reconciled
                    self.refund_later(vec![(part, alone)]);
                }
            }
            _ => self.refund_later(vec![(part, full_there)]),
        }
    }

    /// Debits a charge, whatever the limit says.
    pub(in crate::store) fn debit(self: &Arc<Self>, tables: LocalTables<'_>, limit: &SharedLimit, charge: &Charge) {
        let Some(part) = limit.part(charge) else { return };
        let now = self.clock.now();
        let redis_time = self.redis_time(&part, now);
        if let ChargeSource::Fallback { key, cost_multiplier, .. } = charge.taken_from {
            let cost = charge.cost.saturating_mul(cost_multiplier);
            tables.store.debit(tables.binding, &[Charge { key, cost, ..charge.clone() }], now);
            if self.fallback.add(&part, charge.cost, cost_multiplier, redis_time).is_some() {
                return;
            }
        }
        let is_unavailable = self.is_unavailable(&part);
        if limit.is_eventual() && !is_unavailable && self.counters.debit(&part, redis_time) {
            return;
        }
        if limit.is_leased() && self.leases.take_more(&part, now) {
            return;
        }
        if is_unavailable {
            let mut charge = charge.clone();
            let degraded = self.degraded(limit, &part, &mut charge, now);
            self.fallback.debit(tables, &degraded, now);
            return;
        }
        let gateway = Arc::clone(self);
        self.spawn_background(async move {
            let repair = gateway.memory.repair_state(&part);
            let debit = [(&part, CallArgument::repair_state(repair.as_deref()))];
            // a debit that Redis may have run is not sent again: if Redis has not, the limit loses the tokens
            if let Err(CallFailure::NotRun) = gateway.call_change(Change::Debit, &debit).await {
                let redis_time = gateway.redis_time(&part, gateway.clock.now());
                gateway.fallback.owe(&part, gateway.memory.used(&part, redis_time), redis_time);
            }
        });
    }

    /// Releases the slot that a charge holds while its request runs.
    pub(in crate::store) fn complete(self: &Arc<Self>, charge: &Charge) {
        if let ChargeSource::Slot(slot) = charge.taken_from {
            self.release_slot(slot);
        }
    }

    /// Refunds charges in Redis, all of one slot. Each comes with the time at which its key was going to be full, on
    /// Redis's clock.
    pub(super) fn refund_later(self: &Arc<Self>, refunds: Vec<(ChargePart, Nanos)>) {
        if refunds.first().is_none_or(|(part, _)| self.is_unavailable(part)) {
            return;
        }
        let now = self.clock.now();
        let with_repair = refunds.into_iter().map(|(part, full_at)| {
            let repair = self.memory.repair_state(&part);
            // update the memory first: a read repair of a charge sent meanwhile would debit the refunded tokens again
            self.memory.record_refund(&part, full_at, self.redis_time(&part, now));
            (part, full_at, repair)
        });
        let with_repair: Vec<_> = with_repair.collect();
        let gateway = Arc::clone(self);
        self.spawn_background(async move {
            let refunds: Vec<_> = with_repair
                .iter()
                .map(|(part, full_at, repair)| (part, CallArgument::FullAt(*full_at, repair.as_deref())))
                .collect();
            // if the refund fails, the tokens are missing until time refills them
            drop(gateway.call_change(Change::Refund, &refunds).await);
        });
    }
}
