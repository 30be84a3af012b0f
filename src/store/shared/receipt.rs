//! The results of charges in Redis, on their way to the requests.

use std::sync::Arc;

use crate::algorithm::Headroom;
use crate::charge::AllCharged;
use crate::store::shared::SharedStore;
use crate::store::shared::limit::ChargePart;
use crate::units::Nanos;

/// The result of a request's charge. Dropping it before [`ChargeReceipt::keep`] refunds the charge.
pub(super) struct ChargeReceipt {
    pub(super) gateway: Arc<SharedStore>,
    pub(super) parts: Arc<[ChargePart]>,
    /// The number of the request's slot, if a limit needs one.
    pub(super) slot: u64,
    pub(super) charged: AllCharged,
    /// The time of the charge, on Redis's clock.
    pub(super) redis_time: Nanos,
    /// Whether Redis granted the charge, and the request has not taken it over.
    pub(super) is_refundable: bool,
}

impl ChargeReceipt {
    /// The results, and their time on Redis's clock. From now on the caller refunds the charge.
    pub(super) fn keep(mut self) -> (AllCharged, Nanos) {
        self.is_refundable = false;
        (std::mem::take(&mut self.charged), self.redis_time)
    }
}

impl Drop for ChargeReceipt {
    fn drop(&mut self) {
        if !self.is_refundable {
            return;
        }
        let all = self.parts.iter().zip(&self.charged);
        let taken = all.filter(|(part, charged)| part.enforcement.takes(charged.decision));
        let (slots, tokens): (Vec<_>, Vec<_>) = taken.partition(|(part, _)| part.rule().holds_slots());
        self.gateway.end_slot_later(self.slot, slots.into_iter().map(|(part, _)| part.clone()));
        let full_at = |headroom: Headroom| self.redis_time.saturating_add(headroom.until_full);
        let tokens = tokens.into_iter().map(|(part, charged)| (part.clone(), full_at(charged.headroom)));
        self.gateway.refund_later(tokens.collect());
    }
}
