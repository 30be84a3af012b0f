//! The return to Redis when it recovers: this gateway reports its slots, and charges Redis with its own admissions.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::timeout;

use crate::charge::Enforcement;
use crate::store::shared::calls::{CallFailure, Operation};
use crate::store::shared::fallback::Due;
use crate::store::shared::heartbeat::HEARTBEAT;
use crate::store::shared::limit::ChargePart;
use crate::store::shared::{SharedStore, run_bounded};
use crate::units::LimitKey;

/// The number of keys that are reconciled at a time, and the number of keys before the next check of the results.
const RECONCILED_AT_ONCE: usize = 32;
const RECONCILED_IN_TURN: usize = 1_000;
/// The most servers whose slots are announced at a time.
const RESUMED_AT_ONCE: usize = 16;

impl SharedStore {
    /// Resumes calls to servers that have recovered, for as long as it is polled.
    pub(super) async fn keep_resuming(self: &Arc<Self>) {
        loop {
            drop(timeout(HEARTBEAT.to_duration(), self.recovered.notified()).await);
            let servers = self.servers.recovered().into_iter().map(|server| {
                let gateway = Arc::clone(self);
                async move { gateway.resume(server).await }
            });
            run_bounded(RESUMED_AT_ONCE, servers.collect()).await;
        }
    }

    async fn resume(self: &Arc<Self>, server: usize) {
        // before the server decides about other requests
        self.announce_slots(|part| self.server(part) == server).await;
        if self.servers.resume(server) {
            tracing::info!(server = self.link.server_name(server), "Redis answers again");
            self.resumed.notify_one();
        }
    }

    /// Reconciles with the servers that are available, for as long as it is polled.
    pub(super) async fn keep_reconciling(self: &Arc<Self>) {
        loop {
            drop(timeout(HEARTBEAT.to_duration(), self.resumed.notified()).await);
            self.leases.sweep(self.clock.now());
            self.announce_ended_slots(|part| !self.is_unavailable(part)).await;
            self.reconcile().await;
        }
    }

    /// Charges the available servers with what this gateway admitted while they were unavailable.
    async fn reconcile(self: &Arc<Self>) {
        for keys in self.fallback.keys().chunks(RECONCILED_IN_TURN) {
            let calls = keys.iter().filter(|(_, tag)| !self.is_unavailable_for(*tag)).map(|(key, tag)| {
                let (gateway, key, tag) = (Arc::clone(self), *key, *tag);
                async move { !gateway.is_unavailable_for(tag) && gateway.reconcile_key(key).await }
            });
            if run_bounded(RECONCILED_AT_ONCE, calls.collect()).await.contains(&false) {
                return;
            }
        }
    }

    /// Charges Redis with the admissions of one key, down to a debt; counts the tokens that Redis lacked. Returns
    /// whether nothing is due any more.
    async fn reconcile_key(self: &Arc<Self>, key: LimitKey) -> bool {
        let _turn = self.fallback.turn(key).await;
        let now = self.clock.now();
        for due in self.fallback.due(key, |part| self.redis_time(part, now)) {
            if !self.reconcile_due(&due).await {
                return false;
            }
        }
        true
    }

    async fn reconcile_due(self: &Arc<Self>, due: &Due) -> bool {
        let asks = ChargePart { cost: 0, enforcement: Enforcement::DRY_RUN, ..due.part.clone() };
        let owes = ChargePart {
            enforcement: Enforcement { enforces: false, consumes: true, counts_denied: true },
            ..due.part.clone()
        };
        // ask first: without a reply, do not send a charge that might not be made
        let Ok(before) = self.call_charge(Operation::Reconcile, std::slice::from_ref(&asks), 0).await else {
            return false;
        };
        match self.call_charge(Operation::Reconcile, std::slice::from_ref(&owes), 0).await {
            Err(CallFailure::NotRun) => return false,
            // without a reply the tokens count once or not at all: sent again, they could count twice
            Ok(_) | Err(CallFailure::MayHaveRun) => self.fallback.reconciled(due),
        }
        let remaining = before.each.first().and_then(|before| before.first()?.headroom.remaining);
        if let Some(missing) = remaining.and_then(|remaining| owes.cost.checked_sub(remaining)) {
            self.counts.overshoot.fetch_add(missing, Ordering::Relaxed);
        }
        true
    }

    /// Reconciles the keys of `parts`, before they are charged again. Returns whether Redis knows all their admissions.
    pub(super) async fn reconcile_keys_of(self: &Arc<Self>, parts: &[ChargePart]) -> bool {
        if !self.announce_slots_of(parts).await {
            return false;
        }
        if self.fallback.has_unreconciled() {
            for part in parts {
                if !self.reconcile_key(part.key).await {
                    return false;
                }
            }
        }
        true
    }
}
