//! Keeps a single copy of terms and rules that several customers share.

use std::collections::HashMap;
use std::sync::Arc;

use hashbrown::HashSet;
use jiff::tz::TimeZone;

use super::fault::Fault;
use super::groups::GroupTable;
use super::row::Row;
use crate::algorithm::Rule;
use crate::ruleset::PlanId;
use crate::ruleset::groups::Groups;
use crate::ruleset::overrides::{Override, Overrides, OverridesReader, ZonedRules};

/// The content of a row about its customer or group, without names and the credential's expiry.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CustomerTerms {
    /// The row's own plan, or the inherited plan of its group.
    pub(super) plan: Option<PlanId>,
    pub(super) zone: Option<TimeZone>,
    pub(super) own: Option<Arc<Overrides>>,
    pub(super) suspended: bool,
}

/// Reads the terms of customers, and keeps one copy of equal terms.
pub(super) struct Interner {
    reader: Arc<dyn OverridesReader>,
    /// Terms by [`Row::terms_key`].
    terms: HashMap<Box<[u8]>, Arc<CustomerTerms>>,
    rules: HashSet<Arc<Rule>>,
    /// The rules in each time zone by its name; `None` where no rule depends on the zone.
    zones: HashMap<Arc<str>, Option<Arc<ZonedRules>>>,
    /// Groups by [`Row::groups_key`], for one table of groups.
    groups: HashMap<Box<[u8]>, Arc<Groups>>,
    /// The number of terms that were in use after the last sweep.
    used: usize,
    /// The number of groups that were in use after the last sweep.
    used_groups: usize,
}

impl Interner {
    pub(super) fn new(reader: Arc<dyn OverridesReader>) -> Self {
        Self {
            reader,
            terms: HashMap::new(),
            rules: HashSet::new(),
            zones: HashMap::new(),
            groups: HashMap::new(),
            used: 0,
            used_groups: 0,
        }
    }

    /// The terms of a row, if they were read before.
    pub(super) fn known(&self, row: &Row<'_>, inherited: Option<PlanId>) -> Option<Arc<CustomerTerms>> {
        self.terms.get(row.terms_key(inherited).as_slice()).map(Arc::clone)
    }

    /// The terms of a row of a customer or of a group, or all their faults. A row without a plan gets the `inherited` plan.
    pub(super) fn terms(&mut self, row: &Row<'_>, inherited: Option<PlanId>) -> Result<Arc<CustomerTerms>, Vec<Fault>> {
        if let Some(known) = self.known(row, inherited) {
            return Ok(known);
        }
        let mut faults = Vec::new();
        let plan = keep(self.plan(row).map(|plan| plan.or(inherited)), &mut faults);
        let zone = keep(self.zone(row), &mut faults);
        let suspended = keep(row.suspended(), &mut faults);
        let (Some(plan), Some(zone), Some(suspended)) = (plan, zone, suspended) else {
            return Err(faults);
        };
        let own = self.own(row, plan, zone.as_ref())?;
        let terms = Arc::new(CustomerTerms { plan, zone, own, suspended });
        self.terms.insert(row.terms_key(inherited).into(), Arc::clone(&terms));
        Ok(terms)
    }

    fn plan(&self, row: &Row<'_>) -> Result<Option<PlanId>, Fault> {
        match row.plan {
            "" => Ok(None),
            name => self.reader.plan(name).map(Some).map_err(Fault::Plan),
        }
    }

    fn zone(&self, row: &Row<'_>) -> Result<Option<TimeZone>, Fault> {
        match row.time_zone {
            "" => Ok(None),
            name => self.reader.time_zone(name).map(Some).map_err(Fault::TimeZone),
        }
    }

    fn own(
        &mut self,
        row: &Row<'_>,
        plan: Option<PlanId>,
        zone: Option<&TimeZone>,
    ) -> Result<Option<Arc<Overrides>>, Vec<Fault>> {
        let level = Some(row.level).filter(|level| !level.is_empty());
        let read = match row.overrides.is_empty() {
            true => Ok(Vec::new()),
            false => self.reader.terms(level, plan, zone, row.overrides),
        };
        let mut limits = read.map_err(|faults| faults.into_iter().map(Fault::Overrides).collect::<Vec<_>>())?;
        for (_, term) in &mut limits {
            if let Override::Rule(rule) = term {
                *rule = Arc::clone(self.rules.get_or_insert_with(&*rule, Arc::clone));
            }
        }
        let zone = zone.and_then(|zone| self.zoned_rules(zone));
        Ok((!limits.is_empty() || zone.is_some()).then(|| Arc::new(Overrides { limits, zone })))
    }

    /// The rules in a time zone; `None` where no rule depends on it.
    fn zoned_rules(&mut self, zone: &TimeZone) -> Option<Arc<ZonedRules>> {
        let name = zone.iana_name()?;
        if let Some(known) = self.zones.get(name) {
            return known.clone();
        }
        let (name, rules) = (Arc::<str>::from(name), self.reader.zoned_rules(zone));
        let zoned = (!rules.is_empty()).then(|| Arc::new(ZonedRules { zone: Arc::clone(&name), rules }));
        self.zones.entry(name).or_insert(zoned).clone()
    }

    /// The groups of a row, with the groups of `table` that they belong to.
    pub(super) fn groups(&mut self, row: &Row<'_>, table: &GroupTable) -> Result<Option<Arc<Groups>>, Fault> {
        if row.groups.iter().all(|name| name.is_empty()) {
            return Ok(None);
        }
        let key = row.groups_key();
        if let Some(known) = self.groups.get(key.as_slice()) {
            return Ok(Some(Arc::clone(known)));
        }
        let groups = table.resolve(&row.groups, true)?.map(Arc::new);
        if let Some(groups) = &groups {
            self.groups.insert(key.into(), Arc::clone(groups));
        }
        Ok(groups)
    }

    /// Drops the cached groups, because the table of groups changes or no row is read for now.
    pub(super) fn forget_groups(&mut self) {
        self.groups = HashMap::new();
    }

    /// Drops unused terms and groups, if there may be many.
    pub(super) fn forget_if_grown(&mut self) {
        /// With fewer terms, a sweep is not worth its time.
        const FEW: usize = 1_000;
        if self.terms.len() > self.used.saturating_mul(2).max(FEW) {
            self.forget_unused();
        }
        if self.groups.len() > self.used_groups.saturating_mul(2).max(FEW) {
            self.groups.retain(|_, groups| Arc::strong_count(groups) > 1);
            self.used_groups = self.groups.len();
        }
    }

    /// Drops terms and rules that no customer uses any more.
    pub(super) fn forget_unused(&mut self) {
        let is_used = |terms: &Arc<CustomerTerms>| terms.own.as_ref().is_some_and(|own| Arc::strong_count(own) > 1);
        self.terms.retain(|_, terms| is_used(terms));
        self.rules.retain(|rule| Arc::strong_count(rule) > 1);
        self.used = self.terms.len();
    }
}

/// The value that was read; a fault goes to `faults`.
fn keep<T>(read: Result<T, Fault>, faults: &mut Vec<Fault>) -> Option<T> {
    read.map_err(|fault| faults.push(fault)).ok()
}
