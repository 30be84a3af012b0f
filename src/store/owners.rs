//! Sticky limits of several gateways: what is asked of the owners of keys, and what is remembered of their answers.

use std::fmt;
use std::sync::Arc;

use quick_cache::sync::Cache;

use crate::algorithm::{Completion, Decision, Rule};
use crate::charge::{AllCharged, Charge, Charged, Manner, RuleRef, Slot, Taken};
use crate::cluster::wire::{Identity, States, Told as Answered};
use crate::cluster::{Cluster, Correction, Form, Heard, Outcome, Part, Peer, Place};
use crate::store::LimitSpec;
use crate::store::local::is_overflow;
use crate::store::running::{Running, Spot};
use crate::store::told::{SETTLING, Told, denial_holds};
use crate::units::{LimitKey, Nanos};

/// The gateways among which keys are divided, as the store asks them.
pub(super) struct Owners {
    pub(super) cluster: Arc<Cluster>,
    /// What they said of keys last.
    told: Cache<LimitKey, (u64, Told)>,
    pub(super) running: Running,
}

/// How many keys are remembered: about 25 MB.
const MOST_KEYS: usize = 200_000;
/// How many sets of customers' own parameters of one limit have their forms at hand.
const MOST_OWN: usize = 4_096;

/// A sticky limit as the owners of its keys are told of it.
pub(super) struct OwnedLimit {
    identity: Arc<Identity>,
    forms: Vec<Formed>,
    /// Those of customers' own, by where they are in memory, where they stay while they are in here.
    own: Cache<usize, Formed>,
}

/// Parameters, and their form.
#[derive(Clone, Debug)]
struct Formed {
    rule: Arc<Rule>,
    form: Arc<Form>,
}

impl Owners {
    /// Asks over `cluster`.
    pub(super) fn new(cluster: Arc<Cluster>) -> Self {
        Self { cluster, told: Cache::new(MOST_KEYS), running: Running::default() }
    }

    /// Who decides about a charge.
    pub(super) fn place(&self, charge: &Charge) -> Place {
        self.cluster.place(charge.key)
    }

    /// The denial of a charge that another gateway decides, if it is certain without asking.
    pub(super) fn denial(&self, limit: &OwnedLimit, charge: &Charge, now: Nanos) -> Option<Charged> {
        let Formed { rule, form } = limit.formed(&charge.rule)?;
        if !denial_holds(&rule, charge.manner) {
            return None;
        }
        let known = self.known(&form, charge.key);
        if let Some(largest) = rule.largest_cost().filter(|largest| charge.cost > *largest) {
            let headroom = match known {
                Some(known) => known.again(&rule, charge.cost, now).headroom,
                None => rule.headroom(None, now),
            };
            return Some(Charged { decision: Decision::never(largest), headroom });
        }
        // the owner may have been told to set the key right, and gives back what requests did not cost
        let known = known.filter(|known| now.saturating_sub(known.at()) < SETTLING)?;
        let charged = known.again(&rule, charge.cost, now);
        (!charged.decision.is_admitted()).then_some(charged)
    }

    /// Where the key of a charge stands, as far as is known.
    pub(super) fn standing(&self, limit: &OwnedLimit, charge: &Charge, now: Nanos) -> Option<Charged> {
        let Formed { rule, form } = limit.formed(&charge.rule)?;
        Some(self.known(&form, charge.key)?.again(&rule, charge.cost, now))
    }

    fn known(&self, form: &Form, key: LimitKey) -> Option<Told> {
        // under other parameters it says nothing
        self.told.get(&key).filter(|(known, _)| *known == form.id()).map(|(_, told)| told)
    }

    /// Charges all of `batch` at `peer` or none, if it answers. `limits` are those of the charges.
    pub(super) async fn charge(
        &self,
        peer: &Arc<Peer>,
        as_is: bool,
        limits: &[&OwnedLimit],
        batch: &mut [Charge],
        now: Nanos,
    ) -> Result<AllCharged, Outcome> {
        let parts: Vec<Part> =
            limits.iter().zip(&*batch).filter_map(|(limit, charge)| self.part(limit, charge)).collect();
        if parts.len() < batch.len() {
            return Err(Outcome::Unknown);
        }
        let heard: Heard = peer.charge(parts.clone(), as_is).await?;
        let (told, there) = heard.keep();
        let mut all = AllCharged::new();
        for ((charge, part), Answered { charged, common }) in batch.iter_mut().zip(&parts).zip(told) {
            charge.taken = Taken::Owner { node: peer.number, here: now, there };
            charge.key = common.unwrap_or(charge.key);
            self.told.insert(part.key, (part.form.id(), Told::new(&charged, charge.cost, now)));
            all.push(charged);
        }
        Ok(all)
    }

    fn part(&self, limit: &OwnedLimit, charge: &Charge) -> Option<Part> {
        let Formed { form, .. } = limit.formed(&charge.rule)?;
        let Charge { key, cost, manner, slot, .. } = *charge;
        Some(Part { form, key, cost, manner, slot: slot.map_or(0, |slot| slot.number) })
    }

    /// What a charge is going to hold while its request runs, if it holds anything.
    pub(super) fn slot(&self, limit: &OwnedLimit, charge: &Charge) -> Option<Slot> {
        let Formed { rule, .. } = limit.formed(&charge.rule)?;
        let holds = rule.holds() && charge.manner.takes && charge.cost > 0;
        holds.then(|| Slot { process: self.cluster.process(), number: self.cluster.next_slot() })
    }

    /// Whether `slot` is of this process, and held.
    pub(super) fn holds(&self, slot: Slot) -> bool {
        slot.process == self.cluster.process() && self.running.has(slot.number)
    }

    /// Notes where a charge, which was admitted, holds something from here on.
    pub(super) fn runs(&self, limit: &OwnedLimit, charge: &Charge, now: Nanos) {
        if charge.slot.is_some()
            && let Some(part) = self.part(limit, charge)
        {
            let spot = Spot::of(charge);
            self.running.begins(part, spot, now);
            // it was decided while the owner became another, or could not be asked
            if Spot::at(self.counts(charge.key, spot).as_deref()) != spot {
                self.cluster.speak();
            }
        }
    }

    /// Gives back what is held under `slot`, wherever else it may be counted. Whether it was held.
    pub(super) fn ends(&self, slot: Slot, end: Completion, now: Nanos) -> bool {
        let Some((part, spots)) = self.running.ends(slot.number, now) else { return false };
        for spot in spots {
            if let Spot::There(number) = spot
                && let Some(peer) = self.cluster.peer(number)
            {
                peer.correct(Correction::Complete(part.clone(), end));
            }
        }
        true
    }

    /// Takes back what a charge took at the gateway `node`; `full_at` as in [`super::Store::refund`].
    pub(super) fn refund(&self, limit: &OwnedLimit, charge: &Charge, full_at: Nanos) {
        let Taken::Owner { node, here, there } = charge.taken else { return };
        let (Some(peer), Some(part)) = (self.cluster.peer(node), self.part(limit, charge)) else { return };
        // or it would be denied what is given back
        self.told.remove(&charge.key);
        // to the nanosecond: it tells which window the charge was counted in, or which entry of a log it is
        let full_at = there.saturating_add(full_at.saturating_sub(here));
        peer.correct(Correction::Refund { part, full_at });
    }

    /// What requests here hold that whoever counts it now has not been told of since `since`: see [`Running::untold`].
    /// Tells them of what has ended.
    pub(super) fn untold(&self, since: Nanos, now: Nanos) -> (Vec<(Arc<Peer>, States)>, Vec<States>) {
        for (peer, part) in self.running.untold_ends(|key| self.cluster.home(key), now) {
            peer.correct(Correction::Complete(part, Completion::UNMEASURED));
        }
        self.running.untold(self.cluster.process(), |key, last| self.counts(key, last), since, now)
    }

    /// The gateway that counts a key, if it is another one, where `last` did before.
    fn counts(&self, key: LimitKey, last: Spot) -> Option<Arc<Peer>> {
        match last {
            // the common bucket of a full table is not the owner's
            Spot::There(number) if is_overflow(key) => self.cluster.peer(number),
            Spot::Here if is_overflow(key) => None,
            _ => self.cluster.home(key),
        }
    }

    /// The gateway that decides about the key of a charge, if it is another one.
    pub(super) fn elsewhere(&self, charge: &Charge) -> Option<Arc<Peer>> {
        match self.place(charge) {
            Place::There(peer) | Place::StandInThere(peer) => Some(peer),
            Place::Here | Place::StandIn | Place::Alone => None,
        }
    }

    /// Charges whatever the limit says: at `peer`, or here once the state has come.
    pub(super) fn debit(&self, limit: &OwnedLimit, charge: &Charge, peer: Option<&Arc<Peer>>) {
        let charge = Charge { manner: Manner { takes: false, ..charge.manner }, ..charge.clone() };
        let Some(part) = self.part(limit, &charge) else { return };
        match peer {
            Some(peer) => peer.correct(Correction::Debit(part)),
            None => self.cluster.correct_here(Correction::Debit(part)),
        }
    }

    /// Takes back what a charge took here, once the state has come back.
    pub(super) fn refund_when_here(&self, limit: &OwnedLimit, charge: &Charge, full_at: Nanos) {
        if let Some(part) = self.part(limit, charge) {
            self.cluster.correct_here(Correction::Refund { part, full_at });
        }
    }
}

impl OwnedLimit {
    /// The side of a limit that other gateways see.
    pub(super) fn new(spec: &LimitSpec<'_>) -> Self {
        let identity = Arc::new(Identity {
            name: spec.name.to_owned(),
            algorithm: spec.algorithm.as_str().to_owned(),
            key: spec.key,
            max_keys: spec.max_keys,
        });
        let forms = spec.rules.iter().map(|rule| Formed::new(&identity, Arc::new(rule.clone()))).collect();
        Self { forms, identity, own: Cache::new(MOST_OWN) }
    }

    fn formed(&self, rule: &RuleRef) -> Option<Formed> {
        match rule {
            RuleRef::Listed(position) => self.forms.get(*position).cloned(),
            RuleRef::Own(rule) => {
                let place = Arc::as_ptr(rule).addr();
                let known = self.own.get(&place);
                Some(known.unwrap_or_else(|| {
                    let formed = Formed::new(&self.identity, Arc::clone(rule));
                    self.own.insert(place, formed.clone());
                    formed
                }))
            }
        }
    }
}

impl Formed {
    fn new(limit: &Arc<Identity>, rule: Arc<Rule>) -> Self {
        Self { form: Arc::new(Form::new(limit, &rule)), rule }
    }
}

impl fmt::Debug for OwnedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedLimit").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl fmt::Debug for Owners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owners").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}
