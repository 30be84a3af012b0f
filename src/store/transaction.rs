//! Charges a request under several limits, all or none. Their states are in this process's memory, in Redis, or with the
//! gateways that own their keys.
//!
//! Limits in memory are decided first, so that a request that they deny costs no call. Charges that were made are kept in an
//! [`Undo`], which gives them back when a later limit denies or the request goes away.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::charge::{Charge, Charged, DecisionSource};
use crate::cluster::{Decider, Outcome, Peer};
use crate::store::local::StateElsewhere;
use crate::store::owners::OwnedLimit;
use crate::store::shared::{SharedLimit, SharedOutcome};
use crate::store::{Authority, Binding, Receipt, Store};
use crate::units::Nanos;

/// A request being charged.
pub(super) struct ChargeTransaction<'a> {
    pub(super) store: &'a Store,
    pub(super) binding: &'a Binding,
    pub(super) now: Nanos,
}

/// The result of each charge so far.
type Decisions = SmallVec<[Option<Charged>; 4]>;

/// Positions in a batch.
type Positions = SmallVec<[usize; 4]>;

/// A place where charges are decided.
enum Site {
    /// In memory.
    ThisNode,
    /// In memory, because no other gateway can be reached.
    Isolated,
    /// By this other gateway.
    Peer(Arc<Peer>, StandsIn),
    /// In Redis, in one call.
    Redis,
}

/// Whether the gateway decides even if it does not own the keys.
type StandsIn = bool;

/// Charges that are decided together.
struct Group {
    site: Site,
    positions: Positions,
    /// How often the transaction tried this without success.
    tried: usize,
    /// How often it did so because a gateway did not answer.
    unanswered: usize,
}

impl Group {
    const fn new(site: Site, positions: Positions) -> Self {
        Self { site, positions, tried: 0, unanswered: 0 }
    }
}

/// How many gateways may fail to answer for one charge, before this gateway decides alone.
const MAX_UNANSWERED: usize = 2;
/// A charge that was tried this often is decided by the next gateway, whoever owns the key.
const OFTEN: usize = 4;

impl<'a> ChargeTransaction<'a> {
    /// See [`Store::charge`].
    pub(super) async fn charge(&self, batch: &mut [Charge]) -> Receipt {
        let mut decisions: Decisions =
            batch.iter().map(|charge| self.authority(charge).denial(charge, self.now)).collect();
        let mut source =
            if decisions.iter().any(Option::is_some) { DecisionSource::DenialCache } else { DecisionSource::Local };
        let mut failed_closed = None;
        let mut undo = Undo { store: self.store, binding: self.binding, taken: Vec::new(), now: self.now };
        let mut groups = self.groups(batch, &decisions);
        let mut waited = Nanos::ZERO;
        while let Some(group) = groups.pop_front() {
            // limits in memory still count a denied request if they are configured to
            if denies(batch, &decisions) && !matches!(group.site, Site::ThisNode) {
                break;
            }
            let asked = match &group.site {
                Site::ThisNode | Site::Isolated => match self.charge_local(batch, &group, &mut decisions).await {
                    Ok(asked) => asked,
                    Err(StateElsewhere) => {
                        let others = self.others(batch, &group, None);
                        others.into_iter().rev().for_each(|group| groups.push_front(group));
                        continue;
                    }
                },
                Site::Redis => match self.charge_shared(batch, &group.positions, &mut decisions, &mut waited).await {
                    Ok(asked) => asked,
                    Err(position) => {
                        failed_closed = Some(position);
                        break;
                    }
                },
                Site::Peer(peer, stands_in) => {
                    match self.charge_owned(batch, &group.positions, &mut decisions, (peer, *stands_in)).await {
                        Ok(()) => DecisionSource::Owner,
                        Err(outcome) => {
                            let others = self.others(batch, &group, Some(outcome));
                            others.into_iter().rev().for_each(|group| groups.push_front(group));
                            continue;
                        }
                    }
                }
            };
            source = source.max(asked);
            undo.note(batch, &decisions, &group.positions);
        }
        let denied = failed_closed.is_some() || denies(batch, &decisions);
        if !denied {
            undo.taken.clear();
        }
        drop(undo);
        let charged = batch
            .iter()
            .zip(decisions)
            .map(|(charge, decisions)| decisions.unwrap_or_else(|| self.not_asked(charge, denied)));
        Receipt { charged: charged.collect(), source, failed_closed }
    }

    fn authority(&self, charge: &Charge) -> Authority<'a> {
        self.store.authority(self.binding, charge)
    }

    /// The charges that are decided together, in this order: those in memory; those of each owner; those of Redis that this
    /// gateway leases or counts by itself, one by one; the others of Redis by hash slot.
    fn groups(&self, batch: &[Charge], decisions: &Decisions) -> VecDeque<Group> {
        let mut here = Positions::new();
        let mut owned: Vec<Group> = Vec::new();
        let mut alone: SmallVec<[Positions; 2]> = SmallVec::new();
        let mut by_slot: SmallVec<[(u16, Positions); 2]> = SmallVec::new();
        for (position, charge) in batch.iter().enumerate().filter(|(position, _)| decisions[*position].is_none()) {
            match self.authority(charge) {
                Authority::Here => here.push(position),
                Authority::Shared(shared, limit) => {
                    let slot = shared.slot(charge.tag);
                    match by_slot.iter_mut().find(|(known, _)| *known == slot) {
                        _ if limit.is_by_itself() => alone.push(SmallVec::from_slice(&[position])),
                        Some((_, positions)) => positions.push(position),
                        None => by_slot.push((slot, SmallVec::from_slice(&[position]))),
                    }
                }
                Authority::Owned(owners, _) => match Site::from(owners.decider(charge)) {
                    Site::ThisNode => here.push(position),
                    site => join(&mut owned, Group::new(site, SmallVec::from_slice(&[position]))),
                },
            }
        }
        let redis = alone.into_iter().chain(by_slot.into_iter().map(|(_, positions)| positions));
        let redis = redis.map(|positions| Group::new(Site::Redis, positions));
        let here = (!here.is_empty()).then(|| Group::new(Site::ThisNode, here));
        here.into_iter().chain(owned).chain(redis).collect()
    }

    /// The groups to try after `group`, whose gateway did not decide, or whose states have moved if there is no `outcome`.
    fn others(&self, batch: &mut [Charge], group: &Group, outcome: Option<Outcome>) -> Vec<Group> {
        let tried = group.tried.saturating_add(1);
        let is_answered = matches!(outcome, None | Some(Outcome::NotOwner(_)));
        let unanswered = group.unanswered.saturating_add(usize::from(!is_answered));
        let mut groups = Vec::new();
        for position in &group.positions {
            let Authority::Owned(owners, limit) = self.authority(&batch[*position]) else { continue };
            // the gateway that did not answer may still charge the old slot, which has ended
            batch[*position].slot = owners.slot(limit, &batch[*position]);
            let decider = match (outcome, &group.site) {
                (Some(Outcome::NotOwner(owner)), Site::Peer(asked, _)) => {
                    owners.cluster.redirected(asked, owner, tried >= OFTEN)
                }
                // a gateway that does not know the parameters does not know them the next time either
                (Some(Outcome::UnknownParameters), _) => owners.cluster.decide_isolated(),
                (Some(_), _) if unanswered >= MAX_UNANSWERED => owners.cluster.decide_isolated(),
                _ => owners.decider(&batch[*position]),
            };
            let site = Site::from(decider);
            join(&mut groups, Group { site, positions: SmallVec::from_slice(&[*position]), tried, unanswered });
        }
        groups
    }

    /// Charges limits in memory, once the states that other gateways may have are here. Of a denied request, charges only
    /// limits that count denied requests.
    async fn charge_local(
        &self,
        batch: &mut [Charge],
        group: &Group,
        decisions: &mut Decisions,
    ) -> Result<DecisionSource, StateElsewhere> {
        let mut some: SmallVec<[Charge; 4]> = group.positions.iter().map(|position| batch[*position].clone()).collect();
        let epoch = self.store.ownership_epoch(&some);
        let cluster = self.store.cluster().filter(|cluster| group.tried > 0 || cluster.is_migrating());
        let _fetches = match cluster {
            Some(cluster) => self.store.fetch_states(cluster, self.binding, &some).await,
            None => Vec::new(),
        };
        let denied = denies(batch, decisions);
        let is_late = self.store.cluster().is_none_or(|cluster| cluster.is_late(self.now));
        let may_have_moved = |position| !is_late && self.store.may_have_moved(&epoch, position);
        let charged = self.store.charge_here(self.binding, &mut some, denied, may_have_moved, self.now)?;
        if let Some(cluster) = cluster {
            cluster.note_charged(some.iter().map(|charge| charge.key));
        }
        for ((position, charge), charged) in group.positions.iter().zip(some).zip(charged) {
            batch[*position] = charge;
            decisions[*position] = Some(charged);
        }
        Ok(if matches!(group.site, Site::Isolated) { DecisionSource::Fallback } else { DecisionSource::Local })
    }

    /// Charges keys that another gateway owns, if it answers.
    async fn charge_owned(
        &self,
        batch: &mut [Charge],
        group: &[usize],
        decisions: &mut Decisions,
        (peer, stands_in): (&Arc<Peer>, StandsIn),
    ) -> Result<(), Outcome> {
        let mut some: SmallVec<[Charge; 4]> = group.iter().map(|position| batch[*position].clone()).collect();
        let limits = some.iter().filter_map(|charge| match self.authority(charge) {
            Authority::Owned(_, limit) => Some(limit),
            Authority::Here | Authority::Shared(..) => None,
        });
        let limits: SmallVec<[&OwnedLimit; 4]> = limits.collect();
        let Some(owners) = &self.store.owners else { return Err(Outcome::Unreachable) };
        let holding = some.iter().filter(|charge| charge.slot.is_some()).cloned();
        let mut unanswered = Unanswered { store: self.store, binding: self.binding, peer, charges: holding.collect() };
        let charged = owners.charge((peer, stands_in), &limits, &mut some, self.now).await;
        if !matches!(charged, Err(Outcome::TimedOut | Outcome::Cut)) {
            unanswered.charges.clear();
        }
        let charged = charged?;
        self.store.record_slots(self.binding, &some, &charged, self.now);
        for ((position, charge), charged) in group.iter().zip(some).zip(charged) {
            batch[*position] = charge;
            decisions[*position] = Some(charged);
        }
        Ok(())
    }

    /// Charges keys of one hash slot in Redis. `waited` is how long the request has waited for Redis. The error is the
    /// position of a limit that denies while Redis is unavailable.
    async fn charge_shared(
        &self,
        batch: &mut [Charge],
        group: &[usize],
        decisions: &mut Decisions,
        waited: &mut Nanos,
    ) -> Result<DecisionSource, usize> {
        let mut some: SmallVec<[Charge; 4]> = group.iter().map(|position| batch[*position].clone()).collect();
        let limits = some.iter().filter_map(|charge| match self.authority(charge) {
            Authority::Shared(_, limit) => Some(limit),
            Authority::Here | Authority::Owned(..) => None,
        });
        let limits: SmallVec<[&SharedLimit; 4]> = limits.collect();
        let tables = self.store.tables_of(self.binding);
        let first = || group.first().copied().unwrap_or_default();
        let shared = self.store.shared.as_ref().ok_or_else(first)?;
        let (charged, source) = match shared.charge(tables, &limits, &mut some, (self.now, waited)).await {
            SharedOutcome::Charged(charged, source) => (charged, source),
            SharedOutcome::Degraded(charged) => (charged, DecisionSource::Fallback),
            SharedOutcome::FailedClosed(failed_closed) => {
                return Err(group.get(failed_closed).copied().unwrap_or_default());
            }
        };
        for ((position, charge), charged) in group.iter().zip(some).zip(charged) {
            batch[*position] = charge;
            decisions[*position] = Some(charged);
        }
        Ok(source)
    }

    /// The result for a limit that was not asked, because another one denied the request.
    fn not_asked(&self, charge: &Charge, denied: bool) -> Charged {
        let authority = self.authority(charge);
        let elsewhere = !matches!(authority, Authority::Here);
        if elsewhere && denied && charge.enforcement.consumes && charge.enforcement.counts_denied {
            self.store.debit(self.binding, std::slice::from_ref(charge), self.now);
        }
        let rule = self.binding.local.rule(charge);
        let fresh = || Charged {
            decision: rule.decide(None, charge.cost, self.now).0,
            headroom: rule.headroom(None, self.now),
        };
        authority.predict(charge, self.now).unwrap_or_else(fresh)
    }
}

impl From<Decider> for Site {
    fn from(decider: Decider) -> Self {
        match decider {
            Decider::ThisNode | Decider::StandIn => Self::ThisNode,
            Decider::Isolated => Self::Isolated,
            Decider::OwnerPeer(peer) => Self::Peer(peer, false),
            Decider::StandInPeer(peer) => Self::Peer(peer, true),
        }
    }
}

/// Adds `group` to the group that is decided at the same site, or as a new one.
fn join(groups: &mut Vec<Group>, group: Group) {
    let alike = groups.iter_mut().find(|known| match (&known.site, &group.site) {
        (Site::Peer(known, _), Site::Peer(peer, _)) => known.number == peer.number,
        (Site::ThisNode, Site::ThisNode) | (Site::Isolated, Site::Isolated) => true,
        _ => false,
    });
    match alike {
        Some(known) => known.positions.extend(group.positions),
        None => groups.push(group),
    }
}

/// Whether an enforcing limit denies.
fn denies(batch: &[Charge], decisions: &Decisions) -> bool {
    let known = batch.iter().zip(decisions).filter(|(charge, _)| charge.enforcement.enforces);
    known.filter_map(|(_, decisions)| *decisions).any(|charged| !charged.decision.is_admitted())
}

/// Charges with slots that another gateway has not answered yet. If it does not answer, or the request goes away, their
/// slots end.
struct Unanswered<'a> {
    store: &'a Store,
    binding: &'a Binding,
    peer: &'a Peer,
    charges: SmallVec<[Charge; 1]>,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        for charge in &self.charges {
            self.store.end_unanswered(self.binding, charge, self.peer);
        }
    }
}

/// The charges of a request so far, which are given back unless it is admitted.
struct Undo<'a> {
    store: &'a Store,
    binding: &'a Binding,
    taken: Vec<(Charge, Nanos)>,
    now: Nanos,
}

impl Undo<'_> {
    /// Notes the charges at `positions`, unless one of them denied the request.
    fn note(&mut self, batch: &[Charge], decisions: &Decisions, positions: &[usize]) {
        if denies(batch, decisions) {
            return;
        }
        for position in positions {
            let (charge, Some(charged)) = (&batch[*position], decisions[*position]) else { continue };
            // a limit that counts denied requests keeps the charge
            if charge.enforcement.consumes && !charge.enforcement.counts_denied && charged.decision.is_admitted() {
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
