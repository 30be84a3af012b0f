//! Makes customers of rows, and keeps a single copy of the terms and rules that several customers share.

use std::collections::HashMap;
use std::sync::Arc;

use hashbrown::HashSet;
use jiff::tz::TimeZone;

use super::fault::{Fault, Faults};
use super::groups::GroupTable;
use super::row::Row;
use crate::algorithm::Rule;
use crate::customers::Customer;
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
    /// The name of the last customer: rows of one customer often follow each other.
    last_name: Option<Arc<str>>,
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
            last_name: None,
            used: 0,
            used_groups: 0,
        }
    }

    /// The terms of a customer's row, and the customer if the rest of the row is valid, too. The faults of the row are added
    /// to `faults`.
    pub(super) fn customer(
        &mut self,
        row: &Row<'_>,
        table: &GroupTable,
        faults: &mut Faults,
    ) -> Option<(Arc<CustomerTerms>, Option<Customer>)> {
        let groups = faults.keep(row.line, self.groups(row, table));
        let inherited = groups.as_ref().and_then(|groups| groups.as_ref()?.plan());
        let terms = self.terms(row, inherited, faults);
        if groups.is_some() && terms.as_ref().is_some_and(|terms| terms.plan.is_none()) {
            faults.add(row.line, Fault::EmptyField("plan"));
        }
        let name = faults.keep(row.line, row.name());
        let (terms, name) = (terms?, name?);
        let valid_until = faults.keep(row.line, row.valid_until(terms.zone.as_ref()));
        let customer = groups.zip(valid_until).zip(terms.plan).map(|((groups, valid_until), plan)| {
            let name = match &self.last_name {
                Some(last) if **last == *name => Arc::clone(last),
                _ => Arc::clone(self.last_name.insert(name.into())),
            };
            let suspended = terms.suspended || groups.as_ref().is_some_and(|groups| groups.suspended());
            Customer { name, plan, own: terms.own.clone(), groups, valid_until, suspended }
        });
        Some((terms, customer))
    }

    /// The terms of a row of a customer or of a group; its faults are added to `faults`. A row without a plan gets the
    /// `inherited` plan.
    pub(super) fn terms(
        &mut self,
        row: &Row<'_>,
        inherited: Option<PlanId>,
        faults: &mut Faults,
    ) -> Option<Arc<CustomerTerms>> {
        let key = row.terms_key(inherited);
        if let Some(known) = self.terms.get(key.as_slice()) {
            return Some(Arc::clone(known));
        }
        // a further fault would only be counted, and formatting its message takes long
        if faults.is_full() {
            faults.more = faults.more.saturating_add(1);
            return None;
        }
        let plan = faults.keep(row.line, self.plan(row));
        let zone = faults.keep(row.line, self.zone(row));
        let suspended = faults.keep(row.line, row.suspended());
        let (plan, zone, suspended) = (plan?.or(inherited), zone?, suspended?);
        let own = self.own(row, plan, zone.as_ref(), faults)?;
        let terms = Arc::new(CustomerTerms { plan, zone, own, suspended });
        self.terms.insert(key.into(), Arc::clone(&terms));
        Some(terms)
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
        faults: &mut Faults,
    ) -> Option<Option<Arc<Overrides>>> {
        let level = Some(row.level).filter(|level| !level.is_empty());
        let read = match row.overrides.is_empty() {
            true => Ok(Vec::new()),
            false => self.reader.terms(level, plan, zone, row.overrides),
        };
        let invalid = |all: Vec<_>| all.into_iter().for_each(|one| faults.add(row.line, Fault::Overrides(one)));
        let mut limits = read.map_err(invalid).ok()?;
        for (_, term) in &mut limits {
            if let Override::Rule(rule) = term {
                *rule = Arc::clone(self.rules.get_or_insert_with(&*rule, Arc::clone));
            }
        }
        let zone = zone.and_then(|zone| self.zoned_rules(zone));
        Some((!limits.is_empty() || zone.is_some()).then(|| Arc::new(Overrides { limits, zone })))
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
