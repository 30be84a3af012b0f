//! Reads the file that lists groups.

use std::collections::HashMap;
use std::sync::Arc;

use super::edit::RowText;
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
        let (rows, faults) = RowText::read(text, format, RowKind::Groups, &table.levels);
        table.listed = Some(table.levels.iter().map(|_| HashMap::new()).collect());
        table.list(&rows, faults, Interner::new(reader)).map(|()| table)
    }

    /// Lists the groups of `texts`; outer groups come before the groups that belong to them.
    fn list(&mut self, texts: &[(u64, RowText)], mut faults: Faults, mut interner: Interner) -> Result<(), Faults> {
        let (mut rows, mut lines) = (Vec::new(), HashMap::new());
        for (line, text) in texts {
            let row = text.row(*line, &self.levels);
            rows.extend(faults.keep(*line, self.position(&row)).map(|position| (position, row)));
        }
        rows.sort_by_key(|(position, _)| *position);
        for (position, row) in rows {
            if let Some(first) = lines.insert((position, row.group), row.line) {
                faults.add(row.line, Fault::RepeatedGroup(first));
                continue;
            }
            let listed = self.group(position, &row, &mut interner, &mut faults).unwrap_or_else(|| {
                // list the group in spite of its faults: groups within it must not report an unknown group
                let (level, name) = (row.level.into(), row.group.into());
                let group = Arc::new(Group { level, name, plan: None, own: None, suspended: false });
                ListedGroup { group, outer: Box::default() }
            });
            if let Some(groups) = self.listed.as_mut().and_then(|listed| listed.get_mut(position)) {
                groups.insert(listed.group.name.clone(), listed);
            }
        }
        faults.into_result()
    }

    /// The position of the level of a row's group.
    fn position(&self, row: &Row<'_>) -> Result<usize, Fault> {
        let position = self.levels.iter().position(|known| **known == *row.level).ok_or(Fault::BadLevel)?;
        if is_name(row.group) { Ok(position) } else { Err(Fault::BadGroupName(row.level.into())) }
    }

    /// The group of a row at the level with this position; its faults are added to `faults`.
    fn group(
        &self,
        position: usize,
        row: &Row<'_>,
        interner: &mut Interner,
        faults: &mut Faults,
    ) -> Option<ListedGroup> {
        let outer = faults.keep(row.line, self.outer(position, row))?;
        let terms = interner.terms(row, outer.as_ref().and_then(Groups::plan), faults)?;
        let (level, name) = (row.level.into(), row.group.into());
        let (plan, own, suspended) = (terms.plan, terms.own.clone(), terms.suspended);
        let outer = outer.map(|Groups(outer)| outer).unwrap_or_default();
        Some(ListedGroup { group: Arc::new(Group { level, name, plan, own, suspended }), outer })
    }

    /// The groups that a row's group, at the level with this position, belongs to.
    fn outer(&self, position: usize, row: &Row<'_>) -> Result<Option<Groups>, Fault> {
        let levels = self.levels.iter().zip(&row.groups).skip(position);
        if let Some((of, _)) = levels.into_iter().find(|(_, name)| !name.is_empty()) {
            return Err(Fault::NotOuter { level: row.level.into(), of: Arc::clone(of) });
        }
        self.resolve(&row.groups, true)
    }
}

#[cfg(test)]
mod tests;
