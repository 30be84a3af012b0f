//! A request under several limits, some of whose states are in this process's memory, some in Redis and some with the
//! gateways that own their keys: charged by all or by none.
//!
//! What can be decided without asking is decided first, so that a request that is denied anyway costs nobody else
//! anything. What is taken on the way stands in an [`Undo`], which gives it back when a later limit denies, and also when
//! the request goes away meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::charge::{Charge, Charged, Source};
use crate::cluster::migration::OwnershipEpoch;
use crate::cluster::{Decider, Outcome, Peer};
use crate::store::owners::{OwnedLimit, Owners};
use crate::store::shared::{Asked, SharedLimit, SharedStore};
use crate::store::{Binding, Receipt, Store};
use crate::units::Nanos;

/// A request being charged.
pub(super) struct ChargeTransaction<'a> {
    pub(super) store: &'a Store,
    pub(super) binding: &'a Binding,
    /// Before states were brought here.
    pub(super) epoch: OwnershipEpoch,
    pub(super) now: Nanos,
}

/// What is known of each charge so far.
type Decisions = SmallVec<[Option<Charged>; 4]>;

/// Positions in a batch.
type Positions = SmallVec<[usize; 4]>;

/// Where charges are decided.
enum Site {
    /// In memory.
    Here,
    /// In memory, because nobody else can be asked.
    Alone,
    /// By this gateway.
    Peer(Arc<Peer>, AsIs),
    /// In Redis, in one call.
    Redis,
}

/// Whether the one who is asked stands in for the owner.
type AsIs = bool;

/// What is decided in one go, and how many others have been asked for it in vain.
struct Group {
    site: Site,
    positions: Positions,
    tried: usize,
}

/// How many gateways are asked for one charge at most.
const MAX_TRIED: usize = 2;

impl<'a> ChargeTransaction<'a> {
    /// See [`Store::charge`].
    pub(super) async fn charge(&self, batch: &mut [Charge]) -> Receipt {
        let mut decisions: Decisions = batch.iter().map(|charge| self.denial(charge)).collect();
        let mut source = if decisions.iter().any(Option::is_some) { Source::DenialCache } else { Source::Local };
        let mut refused = None;
        let mut undo = Undo { store: self.store, binding: self.binding, taken: Vec::new(), now: self.now };
        let mut groups = self.groups(batch, &decisions);
        let mut waited = Nanos::ZERO;
        while let Some(group) = groups.pop_front() {
            // what is in memory remembers what counts although it is denied
            if denies(batch, &decisions) && !matches!(group.site, Site::Here) {
                break;
            }
            let asked = match &group.site {
                Site::Here => self.charge_local(batch, &group.positions, &mut decisions, Source::Local).await,
                Site::Alone => self.charge_local(batch, &group.positions, &mut decisions, Source::Fallback).await,
                Site::Redis => match self.charge_shared(batch, &group.positions, &mut decisions, &mut waited).await {
                    Ok(asked) => asked,
                    Err(position) => {
                        refused = Some(position);
                        break;
                    }
                },
                Site::Peer(peer, as_is) => {
                    match self.charge_owned(batch, &group.positions, &mut decisions, (peer, *as_is)).await {
                        Ok(()) => Source::Owner,
                        Err(outcome) => {
                            let others = self.others(batch, &group, outcome);
                            others.into_iter().rev().for_each(|group| groups.push_front(group));
                            continue;
                        }
                    }
                }
            };
            source = source.max(asked);
            undo.note(batch, &decisions, &group.positions);
        }
        let denied = refused.is_some() || denies(batch, &decisions);
        if !denied {
            undo.taken.clear();
        }
        drop(undo);
        let charged = batch
            .iter()
            .zip(decisions)
            .map(|(charge, decisions)| decisions.unwrap_or_else(|| self.not_asked(charge, denied)));
        Receipt { charged: charged.collect(), source, refused }
    }

    fn shared(&self, charge: &Charge) -> Option<(&'a SharedStore, &'a SharedLimit)> {
        self.store.shared.as_ref().zip(self.binding.shared.get(charge.limit)?.as_ref())
    }

    fn owned(&self, charge: &Charge) -> Option<(&'a Owners, &'a OwnedLimit)> {
        self.store.owners.as_ref().zip(self.binding.owned.get(charge.limit)?.as_ref())
    }

    /// The denial of a charge, if it is certain without asking.
    fn denial(&self, charge: &Charge) -> Option<Charged> {
        if let Some((shared, limit)) = self.shared(charge) {
            return shared.denial(limit, charge, self.now);
        }
        let (owners, limit) = self.owned(charge)?;
        if owners.cluster.owns(charge.key) { None } else { owners.denial(limit, charge, self.now) }
    }

    /// What is decided in one go, in this order: what is in memory; what others own of each; what this node holds or
    /// counts by itself of what is in Redis, one by one; and there what lies together.
    fn groups(&self, batch: &[Charge], decisions: &Decisions) -> VecDeque<Group> {
        let mut here = Positions::new();
        let mut owned: Vec<Group> = Vec::new();
        let mut alone: SmallVec<[Positions; 2]> = SmallVec::new();
        let mut by_slot: SmallVec<[(u16, Positions); 2]> = SmallVec::new();
        for (position, charge) in batch.iter().enumerate().filter(|(position, _)| decisions[*position].is_none()) {
            match (self.shared(charge), self.owned(charge)) {
                (Some((shared, limit)), _) => {
                    let slot = shared.slot(charge.tag);
                    match by_slot.iter_mut().find(|(known, _)| *known == slot) {
                        _ if limit.is_by_itself() => alone.push(SmallVec::from_slice(&[position])),
                        Some((_, positions)) => positions.push(position),
                        None => by_slot.push((slot, SmallVec::from_slice(&[position]))),
                    }
                }
                (None, Some((owners, _))) => match Site::from(owners.decider(charge)) {
                    Site::Here => here.push(position),
                    site => join(&mut owned, Group { site, positions: SmallVec::from_slice(&[position]), tried: 0 }),
                },
                (None, None) => here.push(position),
            }
        }
        let redis = alone.into_iter().chain(by_slot.into_iter().map(|(_, positions)| positions));
        let redis = redis.map(|positions| Group { site: Site::Redis, positions, tried: 0 });
        let here = (!here.is_empty()).then_some(Group { site: Site::Here, positions: here, tried: 0 });
        here.into_iter().chain(owned).chain(redis).collect()
    }

    /// Who decides about `group`, whose gateway did not.
    fn others(&self, batch: &mut [Charge], group: &Group, outcome: Outcome) -> Vec<Group> {
        let tried = group.tried.saturating_add(1);
        let mut groups = Vec::new();
        for position in &group.positions {
            let Some((owners, limit)) = self.owned(&batch[*position]) else { continue };
            // the gateway that did not answer may still charge the slot that it was asked for, and is told to give it back
            batch[*position].slot = owners.slot(limit, &batch[*position]);
            let site = match owners.decider(&batch[*position]) {
                // who does not understand the limit will not do so when asked again
                _ if tried >= MAX_TRIED || outcome == Outcome::Unknown => Site::from(owners.cluster.alone()),
                decider => Site::from(decider),
            };
            join(&mut groups, Group { site, positions: SmallVec::from_slice(&[*position]), tried });
        }
        groups
    }

    /// Charges what is in memory. Of a request that is denied already, only what counts although it is denied.
    async fn charge_local(
        &self,
        batch: &mut [Charge],
        local: &[usize],
        decisions: &mut Decisions,
        source: Source,
    ) -> Source {
        let denied = denies(batch, decisions);
        let mut some: SmallVec<[Charge; 4]> = local.iter().map(|position| batch[*position].clone()).collect();
        let charged = self.store.charge_here(self.binding, &mut some, self.epoch.only(local), denied, self.now).await;
        for ((position, charge), charged) in local.iter().zip(some).zip(charged) {
            batch[*position] = charge;
            decisions[*position] = Some(charged);
        }
        source
    }

    /// Charges what another gateway owns, if it answers.
    async fn charge_owned(
        &self,
        batch: &mut [Charge],
        group: &[usize],
        decisions: &mut Decisions,
        (peer, as_is): (&Arc<Peer>, AsIs),
    ) -> Result<(), Outcome> {
        let mut some: SmallVec<[Charge; 4]> = group.iter().map(|position| batch[*position].clone()).collect();
        let limits: SmallVec<[&OwnedLimit; 4]> = some.iter().filter_map(|charge| Some(self.owned(charge)?.1)).collect();
        let Some(owners) = &self.store.owners else { return Err(Outcome::Unreachable) };
        let charged = owners.charge(peer, as_is, &limits, &mut some, self.now).await?;
        self.store.note_running(self.binding, &some, &charged, self.now);
        for ((position, charge), charged) in group.iter().zip(some).zip(charged) {
            batch[*position] = charge;
            decisions[*position] = Some(charged);
        }
        Ok(())
    }

    /// Charges what lies together in Redis, for which the request has `waited` so long. The position of a limit that lets
    /// nothing pass without Redis is an error.
    async fn charge_shared(
        &self,
        batch: &mut [Charge],
        group: &[usize],
        decisions: &mut Decisions,
        waited: &mut Nanos,
    ) -> Result<Source, usize> {
        let mut some: SmallVec<[Charge; 4]> = group.iter().map(|position| batch[*position].clone()).collect();
        let limits: SmallVec<[&SharedLimit; 4]> =
            some.iter().filter_map(|charge| Some(self.shared(charge)?.1)).collect();
        let tables = self.store.tables_of(self.binding);
        let first = || group.first().copied().unwrap_or_default();
        let shared = self.store.shared.as_ref().ok_or_else(first)?;
        let (charged, source) = match shared.charge(tables, &limits, &mut some, (self.now, waited)).await {
            Asked::Charged(charged, source) => (charged, source),
            Asked::Alone(charged) => (charged, Source::Fallback),
            Asked::Refused(refused) => return Err(group.get(refused).copied().unwrap_or_default()),
        };
        for ((position, charge), charged) in group.iter().zip(some).zip(charged) {
            batch[*position] = charge;
            decisions[*position] = Some(charged);
        }
        Ok(source)
    }

    /// What a limit would have said that was not asked, because another denied the request.
    fn not_asked(&self, charge: &Charge, denied: bool) -> Charged {
        let elsewhere = self.shared(charge).is_some() || self.owned(charge).is_some();
        if elsewhere && denied && charge.enforcement.consumes && charge.enforcement.counts_denied {
            self.store.debit(self.binding, std::slice::from_ref(charge), self.now);
        }
        let rule = self.binding.local.rule(charge);
        let fresh = || Charged {
            decision: rule.decide(None, charge.cost, self.now).0,
            headroom: rule.headroom(None, self.now),
        };
        let standing = match (self.shared(charge), self.owned(charge)) {
            (Some((shared, limit)), _) => shared.standing(limit, charge, self.now),
            (None, Some((owners, limit))) => owners.standing(limit, charge, self.now),
            (None, None) => None,
        };
        standing.unwrap_or_else(fresh)
    }
}

impl From<Decider> for Site {
    fn from(decider: Decider) -> Self {
        match decider {
            Decider::Here | Decider::StandIn => Self::Here,
            Decider::Alone => Self::Alone,
            Decider::There(peer) => Self::Peer(peer, false),
            Decider::StandInThere(peer) => Self::Peer(peer, true),
        }
    }
}

/// Adds `group` to the one among `groups` that is decided in the same place, if there is one.
fn join(groups: &mut Vec<Group>, group: Group) {
    let alike = groups.iter_mut().find(|known| match (&known.site, &group.site) {
        (Site::Peer(known, _), Site::Peer(peer, _)) => known.number == peer.number,
        (Site::Here, Site::Here) | (Site::Alone, Site::Alone) => true,
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

/// What a request has taken so far, which is given back unless it is let through.
struct Undo<'a> {
    store: &'a Store,
    binding: &'a Binding,
    taken: Vec<(Charge, Nanos)>,
    now: Nanos,
}

impl Undo<'_> {
    /// Notes what was taken at `positions`, which was nothing if one of them denied the request.
    fn note(&mut self, batch: &[Charge], decisions: &Decisions, positions: &[usize]) {
        if denies(batch, decisions) {
            return;
        }
        for position in positions {
            let (charge, Some(charged)) = (&batch[*position], decisions[*position]) else { continue };
            // what counts although it is denied stays taken
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
