//! Charges a request under several limits, all or none. Their states are in this process's memory, in Redis, or with the
//! gateways that own their keys.
//!
//! Limits in memory are decided first, so that a request that they deny costs no call. The [`ChargeTransaction`] refunds
//! the charges that were made when a later limit denies or the request goes away.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::algorithm::{Decision, Headroom};
use crate::charge::{AllCharged, Charge, Charged, DecisionSource, Refund};
use crate::cluster::{Decider, Outcome, Peer};
use crate::store::local::StateElsewhere;
use crate::store::owners::OwnedLimit;
use crate::store::shared::{SharedLimit, SharedOutcome};
use crate::store::{Authority, Binding, Receipt, Store};
use crate::units::Nanos;

/// A request being charged. Dropping it refunds the charges so far.
pub(super) struct ChargeTransaction<'a> {
    store: &'a Store,
    binding: &'a Binding,
    batch: &'a mut [Charge],
    now: Nanos,
    decisions: Decisions,
    /// The place furthest from this process that has decided a charge.
    source: DecisionSource,
    /// The time that the request has waited for Redis.
    waited: Nanos,
    /// The charges so far, to be refunded if the request is denied.
    taken: Vec<Refund>,
}

/// The result of each charge so far.
type Decisions = SmallVec<[Option<Charged>; 4]>;

/// Positions in a batch.
type Positions = SmallVec<[usize; 4]>;

/// A place where charges are decided.
enum Site {
    /// In the memory of a gateway: this one or another.
    Memory(Decider),
    /// In Redis, in one call.
    Redis,
}

/// Charges that are decided together.
struct Group {
    site: Site,
    positions: Positions,
    /// How many attempts to charge the group have failed.
    tried: usize,
    /// How many of these failed because a gateway did not answer.
    unanswered: usize,
}

impl Group {
    const fn new(site: Site, positions: Positions) -> Self {
        Self { site, positions, tried: 0, unanswered: 0 }
    }
}

/// How many gateways may fail to answer for one charge, before this gateway decides alone.
const MAX_UNANSWERED: usize = 2;

/// The reason why a group is not charged.
enum NotCharged {
    /// The outcome of the call to a gateway that did not decide; `None` if this gateway would have decided, and the states have
    /// moved.
    Elsewhere(Option<Outcome>),
    /// Redis is unavailable, and the limit at this position of the batch then denies everything.
    FailedClosed(usize),
}

impl<'a> ChargeTransaction<'a> {
    /// A transaction that has charged nothing yet.
    pub(super) fn new(store: &'a Store, binding: &'a Binding, batch: &'a mut [Charge], now: Nanos) -> Self {
        let denial = |charge: &Charge| store.authority(binding, charge).denial(charge, now);
        let decisions: Decisions = batch.iter().map(denial).collect();
        let source =
            if decisions.iter().any(Option::is_some) { DecisionSource::DenialCache } else { DecisionSource::Local };
        Self { store, binding, batch, now, decisions, source, waited: Nanos::ZERO, taken: Vec::new() }
    }

    /// See [`Store::charge`].
    pub(super) async fn charge(mut self) -> Receipt {
        let mut groups = self.groups();
        let mut failed_closed = None;
        while let Some(group) = groups.pop_front() {
            // limits in memory still count a denied request if they are configured to
            if self.is_denied() && !matches!(group.site, Site::Memory(Decider::Local)) {
                break;
            }
            match self.decide(&group).await {
                Ok(()) => {}
                Err(NotCharged::Elsewhere(outcome)) => {
                    self.others(&group, outcome).into_iter().rev().for_each(|group| groups.push_front(group));
                }
                Err(NotCharged::FailedClosed(position)) => {
                    failed_closed = Some(position);
                    break;
                }
            }
        }
        // a limit that cannot be checked denies nothing, so that limits that count denials get their charges back, too
        let is_counted = failed_closed.is_none() && self.is_denied();
        if is_counted || failed_closed.is_some() {
            self.refund_taken(is_counted);
        }
        self.taken.clear();
        let all = self.batch.iter().zip(&self.decisions);
        let charged = all.map(|(charge, charged)| charged.unwrap_or_else(|| self.not_asked(charge, is_counted)));
        let charged = charged.collect();
        Receipt { charged, source: self.source, failed_closed }
    }

    fn authority(&self, charge: &Charge) -> Authority<'a> {
        self.store.authority(self.binding, charge)
    }

    /// The charges that are decided together, in this order: those in memory; those of each owner; those of Redis that this
    /// gateway leases or counts by itself, one by one; the others of Redis by hash slot, where no charge follows one that
    /// takes tokens of the same key.
    fn groups(&self) -> VecDeque<Group> {
        let mut here = Positions::new();
        let mut owned: Vec<Group> = Vec::new();
        let mut alone: SmallVec<[Positions; 2]> = SmallVec::new();
        let mut by_slot: SmallVec<[(u16, Positions); 2]> = SmallVec::new();
        let undecided = |(position, _): &(usize, &Charge)| self.decisions[*position].is_none();
        for (position, charge) in self.batch.iter().enumerate().filter(undecided) {
            match self.authority(charge) {
                Authority::Local => here.push(position),
                Authority::Shared(shared, limit) => {
                    let slot = shared.slot(charge.tag);
                    let takes_before = |other: &usize| {
                        let other = &self.batch[*other];
                        other.enforcement.consumes && other.is_same_key(charge)
                    };
                    let is_free = |positions: &Positions| !positions.iter().any(takes_before);
                    match by_slot.iter_mut().find(|(known, positions)| *known == slot && is_free(positions)) {
                        _ if limit.is_by_itself() => alone.push(SmallVec::from_slice(&[position])),
                        Some((_, positions)) => positions.push(position),
                        None => by_slot.push((slot, SmallVec::from_slice(&[position]))),
                    }
                }
                Authority::Owned(owners, _) => match owners.decider(charge) {
                    Decider::Local => here.push(position),
                    decider => join(&mut owned, Group::new(Site::Memory(decider), SmallVec::from_slice(&[position]))),
                },
            }
        }
        let redis = alone.into_iter().chain(by_slot.into_iter().map(|(_, positions)| positions));
        let redis = redis.map(|positions| Group::new(Site::Redis, positions));
        let here = (!here.is_empty()).then(|| Group::new(Site::Memory(Decider::Local), here));
        here.into_iter().chain(owned).chain(redis).collect()
    }

    /// The groups to try after `group`, which was not decided: see [`NotCharged::Elsewhere`].
    fn others(&mut self, group: &Group, outcome: Option<Outcome>) -> Vec<Group> {
        let tried = group.tried.saturating_add(1);
        let is_answered = matches!(outcome, None | Some(Outcome::NotOwner(_)));
        let unanswered = group.unanswered.saturating_add(usize::from(!is_answered));
        let mut groups = Vec::new();
        for position in &group.positions {
            let Authority::Owned(owners, limit) = self.authority(&self.batch[*position]) else { continue };
            let charge = &mut self.batch[*position];
            // the gateway that did not answer may still charge the old slot, which has ended
            charge.slot = owners.slot(limit, charge);
            let decider = match (outcome, &group.site) {
                (Some(Outcome::NotOwner(owner)), Site::Memory(Decider::Peer { peer: asked, .. })) => {
                    owners.cluster.redirected(asked, owner, tried)
                }
                // a gateway that does not know the parameters does not know them the next time either
                (Some(Outcome::UnknownParameters), _) => owners.cluster.decide_isolated(),
                (Some(_), _) if unanswered >= MAX_UNANSWERED => owners.cluster.decide_isolated(),
                _ => owners.decider(charge),
            };
            let site = Site::Memory(decider);
            join(&mut groups, Group { site, positions: SmallVec::from_slice(&[*position]), tried, unanswered });
        }
        groups
    }

    /// Has the charges of `group` decided, and notes the results.
    async fn decide(&mut self, group: &Group) -> Result<(), NotCharged> {
        let charges = group.positions.iter().map(|position| self.batch[*position].clone());
        let mut charges: SmallVec<[Charge; 4]> = charges.collect();
        let (charged, source) = match &group.site {
            Site::Memory(Decider::Local) => {
                (self.charge_local(&mut charges, group.tried).await?, DecisionSource::Local)
            }
            Site::Memory(Decider::Isolated) => {
                (self.charge_local(&mut charges, group.tried).await?, DecisionSource::Fallback)
            }
            Site::Memory(Decider::Peer { peer, stands_in }) => {
                (self.charge_owned(&mut charges, peer, *stands_in).await?, DecisionSource::Owner)
            }
            Site::Redis => {
                let charged = self.charge_shared(&mut charges).await;
                charged.map_err(|position| NotCharged::FailedClosed(group.positions[position]))?
            }
        };
        self.source = self.source.max(source);
        for ((position, charge), charged) in group.positions.iter().zip(charges).zip(charged) {
            self.batch[*position] = charge;
            self.decisions[*position] = Some(charged);
        }
        if !self.is_denied() {
            for position in &group.positions {
                let (charge, Some(charged)) = (&self.batch[*position], self.decisions[*position]) else { continue };
                if charge.enforcement.takes(charged.decision) {
                    self.taken.push(Refund::of(charge.clone(), charged.headroom, self.now));
                }
            }
        }
        Ok(())
    }

    /// Charges limits in memory, after it has fetched the states that other gateways may have. If another limit denies the
    /// request, it charges only limits that count denied requests. `tried` is the number of failed attempts so far.
    async fn charge_local(&self, charges: &mut [Charge], tried: usize) -> Result<AllCharged, NotCharged> {
        let epoch = self.store.ownership_epoch(charges);
        let cluster = self.store.cluster().filter(|cluster| tried > 0 || cluster.is_migrating());
        let _fetches = match cluster {
            Some(cluster) => self.store.fetch_states(cluster, self.binding, charges).await,
            None => Vec::new(),
        };
        let is_late = self.store.cluster().is_none_or(|cluster| cluster.is_late(self.now));
        let may_have_moved = |position| !is_late && self.store.may_have_moved(&epoch, position);
        let charged = match self.is_denied() {
            true => self.store.local.charge_denied_unless(&self.binding.local, charges, may_have_moved, self.now),
            false => self.store.charge_local(self.binding, charges, may_have_moved, self.now),
        };
        let charged = charged.map_err(|StateElsewhere| NotCharged::Elsewhere(None))?;
        if let Some(cluster) = cluster {
            cluster.note_charged(charges.iter().map(|charge| charge.key));
        }
        Ok(charged)
    }

    /// Charges keys that another gateway owns, if it answers.
    async fn charge_owned(
        &self,
        charges: &mut [Charge],
        peer: &Arc<Peer>,
        stands_in: bool,
    ) -> Result<AllCharged, NotCharged> {
        let Some(owners) = &self.store.owners else { return Err(NotCharged::Elsewhere(Some(Outcome::Unreachable))) };
        let limits = charges.iter().filter_map(|charge| match self.authority(charge) {
            Authority::Owned(_, limit) => Some(limit),
            Authority::Local | Authority::Shared(..) => None,
        });
        let limits: SmallVec<[&OwnedLimit; 4]> = limits.collect();
        let holding = charges.iter().filter(|charge| charge.slot.is_some()).cloned();
        let mut unanswered = Unanswered { store: self.store, binding: self.binding, peer, charges: holding.collect() };
        let charged = owners.charge(peer, stands_in, &limits, charges, self.now).await;
        if !matches!(charged, Err(Outcome::TimedOut | Outcome::Cut)) {
            unanswered.charges.clear();
        }
        let charged = charged.map_err(|outcome| NotCharged::Elsewhere(Some(outcome)))?;
        self.store.record_slots(self.binding, charges, &charged, self.now);
        Ok(charged)
    }

    /// Charges keys of one hash slot in Redis. The error is the position of a charge whose limit denies everything while Redis
    /// is unavailable.
    async fn charge_shared(&mut self, charges: &mut [Charge]) -> Result<(AllCharged, DecisionSource), usize> {
        let shared = self.store.shared.as_ref().ok_or(0_usize)?;
        let limits = charges.iter().filter_map(|charge| match self.authority(charge) {
            Authority::Shared(_, limit) => Some(limit),
            Authority::Local | Authority::Owned(..) => None,
        });
        let limits: SmallVec<[&SharedLimit; 4]> = limits.collect();
        let tables = self.store.tables_of(self.binding);
        match shared.charge(tables, &limits, charges, self.now, &mut self.waited).await {
            SharedOutcome::Charged(charged, source) => Ok((charged, source)),
            SharedOutcome::Degraded(charged) => Ok((charged, DecisionSource::Fallback)),
            SharedOutcome::FailedClosed(position) => Err(position),
        }
    }

    /// Whether an enforcing limit denies.
    fn is_denied(&self) -> bool {
        let mut all = self.batch.iter().zip(&self.decisions);
        all.any(|(charge, charged)| charged.is_some_and(|charged| charge.enforcement.denies(charged.decision)))
    }

    /// Refunds the charges so far. Those of limits that count denied requests stay, if the request is `denied`.
    fn refund_taken(&mut self, denied: bool) {
        self.taken.retain(|Refund { charge, .. }| !denied || !charge.enforcement.counts_denied);
        self.store.refund(self.binding, &self.taken, self.now);
    }

    /// The result for a limit that was not asked, because the request is refused without it.
    fn not_asked(&self, charge: &Charge, is_counted: bool) -> Charged {
        let authority = self.authority(charge);
        let elsewhere = !matches!(authority, Authority::Local);
        if elsewhere && is_counted && charge.enforcement.consumes && charge.enforcement.counts_denied {
            self.store.debit(self.binding, std::slice::from_ref(charge), self.now);
        }
        let rule = self.binding.local.rule(charge);
        let fresh = || Charged {
            decision: rule.decide(None, charge.cost, self.now).0,
            headroom: rule.headroom(None, self.now),
        };
        let predicted = authority.predict(charge, self.now).unwrap_or_else(fresh);
        let Headroom { remaining, until_more, .. } = predicted.headroom;
        let is_spent = remaining.is_some_and(|remaining| remaining < charge.cost) && until_more > Nanos::ZERO;
        if is_spent && predicted.decision.is_admitted() {
            // the last result admitted a request, and left too few tokens for this one
            return Charged { decision: Decision::later(until_more), ..predicted };
        }
        predicted
    }
}

impl Drop for ChargeTransaction<'_> {
    fn drop(&mut self) {
        self.refund_taken(true);
    }
}

/// Adds `group` to the group that is decided at the same site, or as a new one.
fn join(groups: &mut Vec<Group>, group: Group) {
    let alike = groups.iter_mut().find(|known| match (&known.site, &group.site) {
        (Site::Memory(known), Site::Memory(decider)) => match (known, decider) {
            (Decider::Peer { peer: known, .. }, Decider::Peer { peer, .. }) => known.number == peer.number,
            (Decider::Local, Decider::Local) | (Decider::Isolated, Decider::Isolated) => true,
            _ => false,
        },
        _ => false,
    });
    match alike {
        Some(known) => known.positions.extend(group.positions),
        None => groups.push(group),
    }
}

/// Charges with slots that another gateway has not answered yet. If it does not answer, or the request goes away, their
/// slots are released.
struct Unanswered<'a> {
    store: &'a Store,
    binding: &'a Binding,
    peer: &'a Peer,
    charges: SmallVec<[Charge; 1]>,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        for charge in &self.charges {
            self.store.release_unanswered_slot(self.binding, charge, self.peer);
        }
    }
}
