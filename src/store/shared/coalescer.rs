//! The merging of identical requests: while one call for them is on its way, later ones wait in a queue, and the next
//! call charges all of them.
//!
//! A call goes on when its requests no longer wait for it: see [`ChargeReceipt`].

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::charge::Enforcement;
use crate::store::shared::SharedStore;
use crate::store::shared::calls::{CallFailure, Operation};
use crate::store::shared::limit::ChargePart;
use crate::store::shared::receipt::ChargeReceipt;
use crate::units::{Cost, LimitKey};

/// The properties that requests must have in common to be charged in one call.
type CoalesceKey = SmallVec<[(LimitKey, Cost, Enforcement, u64); 2]>;

/// The result that a request gets.
pub(super) type ChargeResult = Result<ChargeReceipt, CallFailure>;

/// The queues of waiting requests, each behind a call.
#[derive(Default)]
pub(super) struct RequestCoalescer(Mutex<HashMap<CoalesceKey, Vec<oneshot::Sender<ChargeResult>>>>);

impl RequestCoalescer {
    /// The number of requests in all queues.
    pub(super) fn waiting(&self) -> u64 {
        let waiting: usize = self.0.lock().values().map(Vec::len).sum();
        u64::try_from(waiting).unwrap_or(u64::MAX)
    }
}

/// The longest queue: Redis does not decide about requests beyond it.
const MAX_QUEUE: usize = 1_000;

impl SharedStore {
    /// Asks Redis to charge `parts` for one request, in one call with identical requests.
    pub(super) fn charge_coalesced(self: &Arc<Self>, parts: Vec<ChargePart>) -> oneshot::Receiver<ChargeResult> {
        let (sender, receiver) = oneshot::channel();
        let coalesce_key: CoalesceKey = parts.iter().map(coalesce_key).collect();
        let mut queues = self.coalescer.0.lock();
        match queues.get_mut(&coalesce_key) {
            Some(line) if line.len() < MAX_QUEUE => line.push(sender),
            // the queue is full: the sender is dropped, and the receiver sees that
            Some(_) => {}
            None => {
                queues.insert(coalesce_key.clone(), Vec::new());
                drop(queues);
                let line = CoalescedCalls { gateway: Arc::clone(self), coalesce_key, is_gone: false };
                tokio::spawn(line.serve(parts.into(), vec![sender]));
            }
        }
        receiver
    }

    /// Asks Redis to charge `parts` for one request in a call of its own; `slot` is the number of its slot, if it takes one.
    pub(super) fn charge_separately(
        self: &Arc<Self>,
        parts: Vec<ChargePart>,
        slot: u64,
    ) -> oneshot::Receiver<ChargeResult> {
        let (sender, receiver) = oneshot::channel();
        let gateway = Arc::clone(self);
        tokio::spawn(async move {
            let outcome = match gateway.reconcile_keys_of(&parts).await {
                // Redis may take the slot when it goes on
                true => gateway.call_charge(Operation::Charge, &parts, slot).await.inspect_err(|_| {
                    gateway.end_slot_later(slot, parts.iter().filter(|part| part.rule().holds_slots()).cloned());
                }),
                false => Err(CallFailure::NotRun),
            };
            let receipt = outcome.and_then(|outcome| {
                // the reply to a charge has one result
                let charged = outcome.each.into_iter().next().ok_or(CallFailure::MayHaveRun)?;
                let (redis_time, is_refundable) = (outcome.at, outcome.granted > 0);
                Ok(ChargeReceipt { gateway, parts: parts.into(), slot, charged, redis_time, is_refundable })
            });
            drop(sender.send(receipt));
        });
        receiver
    }

    /// Charges `parts` for each of the `waiting` requests, in one call.
    async fn charge_for(self: Arc<Self>, parts: Arc<[ChargePart]>, waiting: Vec<oneshot::Sender<ChargeResult>>) {
        let outcome = match waiting.len() {
            1 => self.call_charge(Operation::Charge, &parts, 0).await,
            several => {
                let want = u64::try_from(several).unwrap_or(u64::MAX);
                self.call_partial(&parts, want, several).await
            }
        };
        match outcome {
            Ok(outcome) => {
                for (position, (sender, charged)) in (0..).zip(waiting.into_iter().zip(outcome.each)) {
                    drop(sender.send(Ok(ChargeReceipt {
                        gateway: Arc::clone(&self),
                        parts: Arc::clone(&parts),
                        slot: 0,
                        charged,
                        redis_time: outcome.at,
                        is_refundable: position < outcome.granted,
                    })));
                }
            }
            Err(down) => waiting.into_iter().for_each(|sender| drop(sender.send(Err(down)))),
        }
    }
}

/// A queue being served. When this is dropped, it removes the queue, so that no request waits in it for ever.
struct CoalescedCalls {
    gateway: Arc<SharedStore>,
    coalesce_key: CoalesceKey,
    is_gone: bool,
}

impl CoalescedCalls {
    async fn serve(mut self, parts: Arc<[ChargePart]>, mut waiting: Vec<oneshot::Sender<ChargeResult>>) {
        while !waiting.is_empty() {
            // requests that this gateway admitted meanwhile, because they could not wait, are charged first
            if !self.gateway.reconcile_keys_of(&parts).await {
                return;
            }
            let served = tokio::spawn(Arc::clone(&self.gateway).charge_for(Arc::clone(&parts), waiting));
            // requests that come from now on do not wait for a call that is late
            drop(timeout(self.gateway.settings.timeout.to_duration(), served).await);
            let mut queues = self.gateway.coalescer.0.lock();
            match queues.get_mut(&self.coalesce_key).map(std::mem::take) {
                Some(line) => waiting = line,
                None => return,
            }
            if waiting.is_empty() {
                queues.remove(&self.coalesce_key);
                self.is_gone = true;
            }
        }
    }
}

impl Drop for CoalescedCalls {
    fn drop(&mut self) {
        if !self.is_gone {
            self.gateway.coalescer.0.lock().remove(&self.coalesce_key);
        }
    }
}

fn coalesce_key(part: &ChargePart) -> (LimitKey, Cost, Enforcement, u64) {
    let mut parameters = DefaultHasher::new();
    parameters.write(part.form.parameters().as_bytes());
    (part.key, part.cost, part.enforcement, parameters.finish())
}
