//! The table of groups, and the groups that a customer belongs to according to their names.

use std::collections::HashMap;
use std::sync::Arc;

use super::fault::Fault;
use super::row::is_name;
use crate::ruleset::groups::{Group, Groups, MAX_LEVELS};

/// The names of groups, at the positions of their levels; an empty name means no group.
pub(in crate::customers) type GroupNames<'n> = [&'n str; MAX_LEVELS];

/// The levels of groups, and the listed groups. Belongs to the configuration whose plans and limits it was read with.
#[derive(Default)]
pub struct GroupTable {
    /// The levels, the outermost first.
    pub(super) levels: Box<[Arc<str>]>,
    /// The groups by name, at the position of their level; `None` if no file lists groups: then every name is a group.
    pub(super) listed: Option<Vec<HashMap<Box<str>, ListedGroup>>>,
}

/// A listed group, and the groups that it belongs to, the outermost first.
pub(super) struct ListedGroup {
    pub(super) group: Arc<Group>,
    pub(super) outer: Box<[Arc<Group>]>,
}

impl GroupTable {
    /// A table of these levels, the outermost first, with groups of any name.
    pub fn unlisted(levels: &[String]) -> Self {
        Self { levels: levels.iter().map(|level| level.as_str().into()).collect(), listed: None }
    }

    /// The group of this level and name, if the file lists it, with the groups that it belongs to.
    pub fn find(&self, level: &str, name: &str) -> Option<Groups> {
        let position = self.levels.iter().position(|known| **known == *level)?;
        let ListedGroup { group, outer } = self.listed(position, name)?;
        Some(Groups(outer.iter().chain([group]).map(Arc::clone).collect()))
    }

    /// Every group that the file lists.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Group>> {
        self.listed.iter().flatten().flat_map(HashMap::values).map(|listed| &listed.group)
    }

    /// The levels, the outermost first.
    pub const fn levels(&self) -> &[Arc<str>] {
        &self.levels
    }

    fn listed(&self, position: usize, name: &str) -> Option<&ListedGroup> {
        self.listed.as_ref()?.get(position)?.get(name)
    }

    /// The groups with these names and the groups that they belong to; `None` if there are no names. With `must_list`, a
    /// name that the file does not list is a fault; otherwise its group has no terms of its own.
    pub(in crate::customers) fn resolve(
        &self,
        names: &GroupNames<'_>,
        must_list: bool,
    ) -> Result<Option<Groups>, Fault> {
        let mut found: [Option<Arc<Group>>; MAX_LEVELS] = Default::default();
        for (position, (level, name)) in self.levels.iter().zip(names).enumerate() {
            if name.is_empty() {
                continue;
            }
            let group = match self.listed(position, name) {
                Some(ListedGroup { group, outer }) => {
                    self.place_outer(group, outer, names, &mut found)?;
                    Arc::clone(group)
                }
                None if !is_name(name) => return Err(Fault::BadGroupName(Arc::clone(level))),
                None if must_list && self.listed.is_some() => {
                    return Err(Fault::UnknownGroup { level: Arc::clone(level), name: (*name).into() });
                }
                None => {
                    let plan = found.iter().flatten().last().and_then(|outer| outer.plan);
                    let (level, name) = (Arc::clone(level), (*name).into());
                    Arc::new(Group { level, name, plan, own: None, suspended: false })
                }
            };
            if let Some(place) = found.get_mut(position) {
                *place = Some(group);
            }
        }
        let groups: Box<[_]> = found.into_iter().flatten().collect();
        Ok((!groups.is_empty()).then_some(Groups(groups)))
    }

    /// Adds the groups that `inner` belongs to to `found`. Errors: `names` or `found` has another group at that level.
    fn place_outer(
        &self,
        inner: &Group,
        outer: &[Arc<Group>],
        names: &GroupNames<'_>,
        found: &mut [Option<Arc<Group>>],
    ) -> Result<(), Fault> {
        for group in outer {
            let places = self.levels.iter().zip(names).zip(&mut *found);
            for ((level, named), place) in places.filter(|((level, _), _)| **level == group.level) {
                let other = (!named.is_empty() && **named != *group.name)
                    || place.as_ref().is_some_and(|known| known.name != group.name);
                if other {
                    let (inner, name) = (Arc::clone(&inner.level), inner.name.clone());
                    return Err(Fault::Elsewhere { inner, name, outer: Arc::clone(level) });
                }
                *place = Some(Arc::clone(group));
            }
        }
        Ok(())
    }
}
