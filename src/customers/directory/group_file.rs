//! Reads the file that lists groups.

use std::collections::HashMap;
use std::sync::Arc;

use super::edit::{RowText, RowTexts};
use super::fault::{Fault, Faults};
use super::groups::{GroupTable, ListedGroup};
use super::intern::Interner;
use super::row::{Row, RowKind, is_name};
use super::table::Format;
use crate::ruleset::groups::{Group, Groups};
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
        let mut read = RowTexts::new(RowKind::Groups, &table.levels);
        format.read(text, &mut read);
        let RowTexts { rows, faults, .. } = read;
        table.listed = Some(table.levels.iter().map(|_| HashMap::new()).collect());
        table.list(&rows, faults, Interner::new(reader)).map(|()| table)
    }

    /// Lists the groups of `texts`; outer groups come before the groups that belong to them.
    fn list(&mut self, texts: &[(u64, RowText)], mut faults: Faults, mut interner: Interner) -> Result<(), Faults> {
        let (mut rows, mut lines) = (Vec::new(), HashMap::new());
        for (line, text) in texts {
            let row = text.row(&self.levels);
            match self.position(&row) {
                Ok(position) => rows.push((position, *line, row)),
                Err(fault) => faults.add(*line, fault),
            }
        }
        rows.sort_by_key(|(position, ..)| *position);
        for (position, line, row) in rows {
            if let Some(first) = lines.insert((position, row.group), line) {
                faults.add(line, Fault::RepeatedGroup(first));
                continue;
            }
            let listed = self.group(position, &row, &mut interner).unwrap_or_else(|found| {
                found.into_iter().for_each(|fault| faults.add(line, fault));
                // list the group in spite of its faults: groups within it must not report an unknown group
                let (level, name) = (row.level.into(), row.group.into());
                let group = Arc::new(Group { level, name, plan: None, own: None, suspended: false });
                ListedGroup { group, outer: Box::default() }
            });
            if let Some(groups) = self.listed.as_mut().and_then(|listed| listed.get_mut(position)) {
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

    /// The position of the level of a row's group.
    fn position(&self, row: &Row<'_>) -> Result<usize, Fault> {
        let position = self.levels.iter().position(|known| **known == *row.level).ok_or(Fault::BadLevel)?;
        if is_name(row.group) { Ok(position) } else { Err(Fault::BadGroupName(row.level.into())) }
    }

    fn group(&self, position: usize, row: &Row<'_>, interner: &mut Interner) -> Result<ListedGroup, Vec<Fault>> {
        let level = self.levels.get(position).ok_or_else(|| vec![Fault::BadLevel])?;
        let outer = self.levels.iter().zip(&row.groups).skip(position);
        if let Some((of, _)) = outer.into_iter().find(|(_, name)| !name.is_empty()) {
            return Err(vec![Fault::NotOuter { level: Arc::clone(level), of: Arc::clone(of) }]);
        }
        let outer = self.resolve(&row.groups, true).map_err(|fault| vec![fault])?;
        let inherited = outer.as_ref().and_then(Groups::plan);
        let terms = interner.terms(row, inherited)?;
        let (level, name) = (Arc::clone(level), row.group.into());
        let (plan, own, suspended) = (terms.plan, terms.own.clone(), terms.suspended);
        let outer = outer.map(|Groups(outer)| outer).unwrap_or_default();
        Ok(ListedGroup { group: Arc::new(Group { level, name, plan, own, suspended }), outer })
    }
}

#[cfg(test)]
mod tests;
