//! Reads the file that lists groups.

use std::collections::HashMap;
use std::sync::Arc;

use super::fault::{Fault, Faults};
use super::groups::{GroupTable, ListedGroup};
use super::intern::Interner;
use super::row::{Row, RowKind, RowSink, is_name, text};
use super::table::Format;
use crate::ruleset::groups::{Group, Groups, MOST_LEVELS};
use crate::ruleset::overrides::OverridesReader;

impl GroupTable {
    /// Reads the groups of a file at these levels; `reader` parses plans, time zones and overrides.
    pub fn read(
        text: &str,
        format: Format,
        levels: &[String],
        reader: Arc<dyn OverridesReader>,
    ) -> Result<Self, Faults> {
        let mut table = Self::unlisted(levels);
        let mut rows = GroupRows { rows: Vec::new(), faults: Faults::default(), levels: &table.levels };
        format.read(text, &mut rows);
        let GroupRows { rows, faults, .. } = rows;
        table.listed = Some(table.levels.iter().map(|_| HashMap::new()).collect());
        table.list(rows, faults, Interner::new(reader)).map(|()| table)
    }

    /// Lists the groups of `rows`; outer groups come before the groups that belong to them.
    fn list(&mut self, mut rows: Vec<GroupRow>, mut faults: Faults, mut interner: Interner) -> Result<(), Faults> {
        let mut lines = HashMap::new();
        rows.sort_by_key(|row| row.position);
        for row in &rows {
            if let Some(first) = lines.insert((row.position, row.name.as_str()), row.line) {
                faults.add(row.line, Fault::RepeatedGroup(first));
                continue;
            }
            let listed = self.group(row, &mut interner).unwrap_or_else(|found| {
                found.into_iter().for_each(|fault| faults.add(row.line, fault));
                // list the group in spite of its faults: groups within it must not report an unknown group
                let level = self.levels.get(row.position).map_or_else(|| "".into(), Arc::clone);
                let name = row.name.as_str().into();
                let group = Arc::new(Group { level, name, plan: None, own: None, suspended: false });
                ListedGroup { group, outer: Box::default() }
            });
            if let Some(groups) = self.listed.as_mut().and_then(|listed| listed.get_mut(row.position)) {
                groups.insert(listed.group.name.clone(), listed);
            }
        }
        match faults.is_empty() {
            true => Ok(()),
            false => {
                faults.sort();
                Err(faults)
            }
        }
    }

    fn group(&self, row: &GroupRow, interner: &mut Interner) -> Result<ListedGroup, Vec<Fault>> {
        let level = self.levels.get(row.position).ok_or_else(|| vec![Fault::BadLevel])?;
        let outer = self.levels.iter().zip(&row.groups).skip(row.position);
        if let Some((of, _)) = outer.into_iter().find(|(_, name)| !name.is_empty()) {
            return Err(vec![Fault::NotOuter { level: Arc::clone(level), of: Arc::clone(of) }]);
        }
        let names = row.groups.each_ref().map(String::as_str);
        let outer = self.resolve(&names, true).map_err(|fault| vec![fault])?;
        let inherited = outer.as_ref().and_then(Groups::plan);
        let terms = interner.terms(&row.row(), Some(level), inherited)?;
        let (level, name) = (Arc::clone(level), row.name.as_str().into());
        let (plan, own, suspended) = (terms.plan, terms.own.clone(), terms.suspended);
        let outer = outer.map(|Groups(outer)| outer).unwrap_or_default();
        Ok(ListedGroup { group: Arc::new(Group { level, name, plan, own, suspended }), outer })
    }
}

/// The rows of a group file while it is read.
struct GroupRows<'r> {
    rows: Vec<GroupRow>,
    faults: Faults,
    levels: &'r [Arc<str>],
}

/// One group of the file, as written there.
struct GroupRow {
    line: u64,
    /// The position of the group's level.
    position: usize,
    name: String,
    plan: String,
    overrides: String,
    time_zone: String,
    suspended: String,
    groups: [String; MOST_LEVELS],
}

impl GroupRow {
    fn read(line: u64, row: &Row<'_>, levels: &[Arc<str>]) -> Result<Self, Fault> {
        let owned = |name, bytes| text(name, bytes).map(str::to_owned);
        let level = text("level", row.level)?;
        let position = levels.iter().position(|known| **known == *level).ok_or(Fault::BadLevel)?;
        let name = owned("group", row.group)?;
        if !is_name(&name) {
            return Err(Fault::BadGroupName(level.into()));
        }
        let mut groups: [String; MOST_LEVELS] = Default::default();
        for (place, group) in groups.iter_mut().zip(row.groups) {
            *place = owned("group", group)?;
        }
        Ok(Self {
            line,
            position,
            name,
            plan: owned("plan", row.plan)?,
            overrides: owned("overrides", row.overrides)?,
            time_zone: owned("time zone", row.time_zone)?,
            suspended: owned("suspended", row.suspended)?,
            groups,
        })
    }

    fn row(&self) -> Row<'_> {
        Row {
            plan: self.plan.as_bytes(),
            overrides: self.overrides.as_bytes(),
            time_zone: self.time_zone.as_bytes(),
            suspended: self.suspended.as_bytes(),
            ..Row::default()
        }
    }
}

impl RowSink for GroupRows<'_> {
    fn content(&self) -> RowKind {
        RowKind::Groups
    }

    fn levels(&self) -> &[Arc<str>] {
        self.levels
    }

    fn add(&mut self, line: u64, row: &Row<'_>) {
        match GroupRow::read(line, row, self.levels) {
            Ok(row) => self.rows.push(row),
            Err(fault) => self.faults.add(line, fault),
        }
    }

    fn faults(&mut self) -> &mut Faults {
        &mut self.faults
    }
}

#[cfg(test)]
mod tests;
