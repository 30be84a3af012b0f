//! Sticky limits of several gateways: charges at the owners of keys, and the results that are cached.

use std::sync::Arc;

use quick_cache::sync::Cache;

use crate::algorithm::{Completion, Decision, Rule};
use crate::charge::{AllCharged, Charge, ChargeSource, Charged, Enforcement, Refund, RuleRef, Slot};
use crate::cluster::wire::{ChargeReply, LimitIdentity, StateBatch};
use crate::cluster::{Cluster, Correction, Decider, Outcome, Peer, PeerCharge, PeerReceipt, WireRule};
use crate::store::LimitSpec;
use crate::store::cached_denial::{CachedDenial, SETTLING, denial_holds};
use crate::store::local::is_overflow;
use crate::store::running_slots::{CountedAt, RunningSlots};
use crate::units::{ClockOffset, LimitKey, Nanos};

/// The store's access to the gateways that divide keys.
pub(super) struct Owners {
    pub(super) cluster: Arc<Cluster>,
    /// The last result of each key.
    results: Cache<LimitKey, (u64, CachedDenial)>,
    pub(super) running: RunningSlots,
}

/// How many keys are cached: about 25 MB.
const MAX_CACHED_KEYS: usize = 200_000;
/// How many customers' own parameters of one limit are cached in their wire form.
const MAX_CUSTOMER_RULES: usize = 4_096;

/// A sticky limit as the owners of its keys learn it.
pub(super) struct OwnedLimit {
    identity: Arc<LimitIdentity>,
    forms: Vec<OwnedRule>,
    /// Customers' own parameters by their address in memory, which is stable while they are in this cache.
    own: Cache<usize, OwnedRule>,
}

/// Parameters, and their wire form.
#[derive(Clone, Debug)]
struct OwnedRule {
    rule: Arc<Rule>,
    form: Arc<WireRule>,
}

impl Owners {
    /// Sends requests over `cluster`.
    pub(super) fn new(cluster: Arc<Cluster>) -> Self {
        Self { cluster, results: Cache::new(MAX_CACHED_KEYS), running: RunningSlots::default() }
    }

    /// The gateway that decides about a charge.
    pub(super) fn decider(&self, charge: &Charge) -> Decider {
        self.cluster.decider(charge.key)
    }

    /// The denial of a charge that another gateway decides, if it is certain without a call.
    pub(super) fn denial(&self, limit: &OwnedLimit, charge: &Charge, now: Nanos) -> Option<Charged> {
        let OwnedRule { rule, form } = limit.owned_rule(&charge.rule)?;
        if !denial_holds(&rule, charge.enforcement) {
            return None;
        }
        let known = self.known(&form, charge.key);
        if let Some(largest) = rule.largest_cost().filter(|largest| charge.cost > *largest) {
            let headroom = match known {
                Some(known) => known.predict(&rule, charge.cost, now).headroom,
                None => rule.headroom(None, now),
            };
            return Some(Charged { decision: Decision::never(largest), headroom });
        }
        // the owner may have amended the key since, or refunded tokens that requests did not use
        let known = known.filter(|known| now.saturating_sub(known.at()) < SETTLING)?;
        let charged = known.predict(&rule, charge.cost, now);
        (!charged.decision.is_admitted()).then_some(charged)
    }

    /// The cached result of a charge's key.
    pub(super) fn predict(&self, limit: &OwnedLimit, charge: &Charge, now: Nanos) -> Option<Charged> {
        let OwnedRule { rule, form } = limit.owned_rule(&charge.rule)?;
        Some(self.known(&form, charge.key)?.predict(&rule, charge.cost, now))
    }

    fn known(&self, form: &WireRule, key: LimitKey) -> Option<CachedDenial> {
        // a result under other parameters does not apply
        self.results.get(&key).filter(|(known, _)| *known == form.id()).map(|(_, result)| result)
    }

    /// Charges all of `batch` at `peer` or none, if it answers. `limits` are those of the charges. With `stands_in`, the
    /// peer decides even if it does not own the keys.
    pub(super) async fn charge(
        &self,
        peer: &Arc<Peer>,
        stands_in: bool,
        limits: &[&OwnedLimit],
        batch: &mut [Charge],
        now: Nanos,
    ) -> Result<AllCharged, Outcome> {
        let parts: Vec<PeerCharge> =
            limits.iter().zip(&*batch).filter_map(|(limit, charge)| self.part(limit, charge)).collect();
        if parts.len() < batch.len() {
            return Err(Outcome::UnknownParameters);
        }
        let receipt: PeerReceipt = peer.charge(parts.clone(), stands_in).await?;
        let (replies, owner_time) = receipt.keep();
        let mut all = AllCharged::new();
        for ((charge, part), ChargeReply { charged, common }) in batch.iter_mut().zip(&parts).zip(replies) {
            charge.taken_from = ChargeSource::Owner(peer.number);
            charge.clock_offset = ClockOffset::between(owner_time, now);
            charge.key = common.unwrap_or(charge.key);
            self.results.insert(part.key, (part.rule.id(), CachedDenial::new(&charged, charge.cost, now)));
            all.push(charged);
        }
        Ok(all)
    }

    fn part(&self, limit: &OwnedLimit, charge: &Charge) -> Option<PeerCharge> {
        let OwnedRule { form: rule, .. } = limit.owned_rule(&charge.rule)?;
        let Charge { key, cost, enforcement, slot, .. } = *charge;
        Some(PeerCharge { rule, key, cost, enforcement, slot: slot.map_or(0, |slot| slot.number) })
    }

    /// The slot that a charge will hold while its request runs, if it holds one.
    pub(super) fn slot(&self, limit: &OwnedLimit, charge: &Charge) -> Option<Slot> {
        let OwnedRule { rule, .. } = limit.owned_rule(&charge.rule)?;
        let holds = rule.holds_slots() && charge.enforcement.consumes && charge.cost > 0;
        holds.then(|| Slot { process: self.cluster.process(), number: self.cluster.next_slot() })
    }

    /// Whether `slot` belongs to this process, and a request holds it.
    pub(super) fn holds(&self, slot: Slot) -> bool {
        slot.process == self.cluster.process() && self.running.has(slot.number)
    }

    /// Notes the slot of a charge, and the gateway that counts it.
    pub(super) fn record_slot(&self, limit: &OwnedLimit, charge: &Charge, counted_at: CountedAt, now: Nanos) {
        if charge.slot.is_some()
            && let Some(part) = self.part(limit, charge)
        {
            self.running.begins(part, counted_at, now);
            // the owner changed or could not be reached while the charge was decided
            if CountedAt::at(self.counts(charge.key, counted_at).as_deref()) != counted_at {
                self.cluster.announce();
            }
        }
    }

    /// Ends `slot` at every gateway that may count it. Returns whether a request held it.
    pub(super) fn release_slot(&self, slot: Slot, end: Completion, now: Nanos) -> bool {
        let Some((part, counted_at_all)) = self.running.ends(slot.number, now) else { return false };
        for counted_at in counted_at_all {
            if let CountedAt::Peer(number) = counted_at
                && let Some(peer) = self.cluster.peer(number)
            {
                peer.correct(Correction::Complete(part.clone(), end));
            }
        }
        true
    }

    /// Refunds a charge at the gateway that it was made at, or at the owner of its key if that gateway is no member any
    /// more.
    pub(super) fn refund(&self, limit: &OwnedLimit, Refund { charge, full_at }: &Refund) {
        let ChargeSource::Owner(node) = charge.taken_from else { return };
        let Some(part) = self.part(limit, charge) else { return };
        // a cached denial would deny the tokens that are refunded
        self.results.remove(&charge.key);
        let refund = Correction::Refund { part, full_at: full_at.shifted(charge.clock_offset) };
        match self.cluster.member(node).or_else(|| self.cluster.owner_peer(charge.key)) {
            Some(peer) => peer.correct(refund),
            None => self.cluster.correct_here(refund),
        }
    }

    /// The slots of this process that have not been reported since `since` to the gateways that count them now: see
    /// [`RunningSlots::unreported`]. Also tells those gateways of slots that have ended.
    pub(super) fn unreported(&self, since: Nanos, now: Nanos) -> Vec<(Option<Arc<Peer>>, StateBatch)> {
        for (peer, part) in self.running.unreported_ends(|key| self.cluster.owner_peer(key), now) {
            peer.correct(Correction::Complete(part, Completion::UNMEASURED));
        }
        self.running.unreported(self.cluster.process(), |key, last| self.counts(key, last), since, now)
    }

    /// The gateway that counts a key now, if it is not this one; `last` counted it before.
    fn counts(&self, key: LimitKey, last: CountedAt) -> Option<Arc<Peer>> {
        match last {
            // the common bucket of a full table is not the owner's
            CountedAt::Peer(number) if is_overflow(key) => self.cluster.peer(number),
            CountedAt::Local if is_overflow(key) => None,
            _ => self.cluster.owner_peer(key),
        }
    }

    /// Whether a charge was made to the common bucket of a gateway that is gone.
    pub(super) fn is_lost(&self, charge: &Charge) -> bool {
        let is_gone = |node| self.cluster.member(node).is_none();
        is_overflow(charge.key) && matches!(charge.taken_from, ChargeSource::Owner(node) if is_gone(node))
    }

    /// The gateway that decides about the key of a charge now, if it is not this one. A common bucket stays where it was
    /// charged.
    pub(super) fn elsewhere(&self, charge: &Charge) -> Option<Arc<Peer>> {
        if is_overflow(charge.key) {
            let ChargeSource::Owner(node) = charge.taken_from else { return None };
            return self.cluster.peer(node);
        }
        match self.decider(charge) {
            Decider::Peer { peer, .. } => Some(peer),
            Decider::Local | Decider::Isolated => None,
        }
    }

    /// Whether another gateway may have the state of a charge's key.
    pub(super) fn may_be_elsewhere(&self, charge: &Charge) -> bool {
        self.cluster.is_migrating() || !self.cluster.owns(charge.key)
    }

    /// Debits a charge at `peer`, or here once the state has been fetched.
    pub(super) fn debit(&self, limit: &OwnedLimit, charge: &Charge, peer: Option<&Arc<Peer>>) {
        let charge = Charge { enforcement: Enforcement { consumes: false, ..charge.enforcement }, ..charge.clone() };
        let Some(part) = self.part(limit, &charge) else { return };
        match peer {
            Some(peer) => peer.correct(Correction::Debit(part)),
            None => self.cluster.correct_here(Correction::Debit(part)),
        }
    }

    /// Refunds a charge that was made here, once its state has been fetched back.
    pub(super) fn refund_when_present(&self, limit: &OwnedLimit, refund: &Refund) {
        if let Some(part) = self.part(limit, &refund.charge) {
            let full_at = self.cluster.wall_at(refund.full_at);
            self.cluster.correct_here(Correction::Refund { part, full_at });
        }
    }
}

impl OwnedLimit {
    /// The limit as other gateways learn it.
    pub(super) fn new(spec: &LimitSpec<'_>) -> Self {
        let identity = Arc::new(spec.identity());
        let forms = spec.rules.iter().map(|rule| OwnedRule::new(&identity, Arc::new(rule.clone()))).collect();
        Self { forms, identity, own: Cache::new(MAX_CUSTOMER_RULES) }
    }

    fn owned_rule(&self, rule: &RuleRef) -> Option<OwnedRule> {
        match rule {
            RuleRef::Listed(position) => self.forms.get(*position).cloned(),
            RuleRef::Own(rule) => {
                let rule_address = Arc::as_ptr(rule).addr();
                let known = self.own.get(&rule_address);
                Some(known.unwrap_or_else(|| {
                    let owned_rule = OwnedRule::new(&self.identity, Arc::clone(rule));
                    self.own.insert(rule_address, owned_rule.clone());
                    owned_rule
                }))
            }
        }
    }
}

impl OwnedRule {
    fn new(limit: &Arc<LimitIdentity>, rule: Arc<Rule>) -> Self {
        Self { form: Arc::new(WireRule::new(limit, &rule)), rule }
    }
}
