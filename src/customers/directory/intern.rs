//! What many customers have in common is kept once: the same overrides, the same rules.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;
use jiff::tz::TimeZone;

use super::fault::Fault;
use super::row::{Row, text};
use crate::algorithm::Rule;
use crate::ruleset::PlanId;
use crate::ruleset::limit::{OwnTerm, OwnTerms};
use crate::ruleset::own::OwnTermsReader;

/// What holds for a customer, whatever its credential.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Terms {
    pub(super) plan: PlanId,
    pub(super) zone: Option<TimeZone>,
    pub(super) own: Option<Arc<OwnTerms>>,
    pub(super) suspended: bool,
}

/// Reads the terms of customers, and keeps one copy of those that are the same.
#[derive(Debug)]
pub(super) struct Interner {
    reader: Arc<dyn OwnTermsReader>,
    /// By plan, time zone and text of the overrides.
    own: HashMap<(PlanId, Box<str>, Box<str>), Arc<OwnTerms>>,
    rules: HashTable<Arc<Rule>>,
    hasher: RandomState,
    /// How many sets of own terms were in use when it was last looked.
    used: usize,
}

impl Interner {
    pub(super) fn new(reader: Arc<dyn OwnTermsReader>) -> Self {
        Self { reader, own: HashMap::new(), rules: HashTable::new(), hasher: RandomState::new(), used: 0 }
    }

    /// The terms of a row, or everything that is wrong with them.
    pub(super) fn terms(&mut self, row: &Row<'_>) -> Result<Terms, Vec<Fault>> {
        let mut faults = Vec::new();
        let plan = keep(self.plan(row), &mut faults);
        let zone = keep(self.zone(row), &mut faults);
        let suspended = keep(row.suspended(), &mut faults);
        let overrides = keep(text("overrides", row.overrides), &mut faults);
        let (Some(plan), Some(zone), Some(suspended), Some(overrides)) = (plan, zone, suspended, overrides) else {
            return Err(faults);
        };
        let own = self.own(plan, zone.as_ref(), overrides)?;
        Ok(Terms { plan, zone: zone.map(|(_, zone)| zone), own, suspended })
    }

    fn plan(&self, row: &Row<'_>) -> Result<PlanId, Fault> {
        match text("plan", row.plan)? {
            "" => Err(Fault::EmptyField("plan")),
            name => self.reader.plan(name).map_err(Fault::Plan),
        }
    }

    fn zone<'t>(&self, row: &Row<'t>) -> Result<Option<(&'t str, TimeZone)>, Fault> {
        match text("time_zone", row.time_zone)? {
            "" => Ok(None),
            name => self.reader.time_zone(name).map(|zone| Some((name, zone))).map_err(Fault::TimeZone),
        }
    }

    fn own(
        &mut self,
        plan: PlanId,
        zone: Option<&(&str, TimeZone)>,
        overrides: &str,
    ) -> Result<Option<Arc<OwnTerms>>, Vec<Fault>> {
        if zone.is_none() && overrides.is_empty() {
            return Ok(None);
        }
        let key = (plan, zone.map_or("", |(name, _)| name).into(), overrides.into());
        if let Some(known) = self.own.get(&key) {
            return Ok(Some(Arc::clone(known)).filter(|own| !own.0.is_empty()));
        }
        let overrides = Some(overrides).filter(|text| !text.is_empty());
        let read = self.reader.terms(plan, zone.map(|(_, zone)| zone), overrides);
        let OwnTerms(mut own) = read.map_err(|faults| faults.into_iter().map(Fault::Overrides).collect::<Vec<_>>())?;
        for (_, term) in &mut own {
            if let OwnTerm::Rule(rule) = term {
                *rule = self.rule(rule);
            }
        }
        let own = Arc::new(OwnTerms(own));
        self.own.insert(key, Arc::clone(&own));
        Ok(Some(own).filter(|own| !own.0.is_empty()))
    }

    fn rule(&mut self, rule: &Arc<Rule>) -> Arc<Rule> {
        let Self { rules, hasher, .. } = self;
        let hash = |rule: &Arc<Rule>| hasher.hash_one(rule);
        Arc::clone(rules.entry(hash(rule), |known| known == rule, hash).or_insert_with(|| Arc::clone(rule)).get())
    }

    /// Forgets what no customer has any more, if there may be much of it.
    pub(super) fn forget_if_grown(&mut self) {
        /// So few that they need not be looked at.
        const FEW: usize = 1_000;
        if self.own.len() > self.used.saturating_mul(2).max(FEW) {
            self.forget_unused();
        }
    }

    /// Forgets what no customer has any more.
    pub(super) fn forget_unused(&mut self) {
        self.own.retain(|_, own| Arc::strong_count(own) > 1);
        self.rules.retain(|rule| Arc::strong_count(rule) > 1);
        self.used = self.own.len();
    }
}

/// What was read, or one more fault.
fn keep<T>(read: Result<T, Fault>, faults: &mut Vec<Fault>) -> Option<T> {
    read.map_err(|fault| faults.push(fault)).ok()
}
