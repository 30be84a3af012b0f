//! Names to which other parts of the file refer.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::config::problem::{Place, Problem};
use crate::config::read::Field;
use crate::config::scalar::InvalidValue;
use crate::config::values::check_name;
use crate::config::words;

/// The largest number of names that a message lists.
const MAX_LISTED: usize = 10;

/// The names of one kind of thing, and whether the file uses them.
///
/// A name whose definition has errors still exists, so that references to it cause no further errors.
pub(super) struct Names {
    /// The kind of thing, with its article: `a limit`.
    what: &'static str,
    positions: HashMap<String, usize>,
    places: Vec<(String, Place)>,
    used: RefCell<Vec<bool>>,
    /// Whether the definitions could be read at all. If not, `find` reports no unknown names.
    is_readable: bool,
}

impl Names {
    /// No names so far.
    pub(super) fn none(what: &'static str) -> Self {
        let used = RefCell::default();
        Self { what, positions: HashMap::new(), places: Vec::new(), used, is_readable: true }
    }

    /// The names of definitions that could not be read.
    pub(super) fn unreadable(what: &'static str) -> Self {
        Self { is_readable: false, ..Self::none(what) }
    }

    /// Adds a name that stands at `place`; returns its position, or `None` (and a finding) if it is invalid or taken.
    pub(super) fn define(&mut self, name: &str, field: &Field<'_>, place: Place) -> Option<usize> {
        if let Err(InvalidValue { message, hint }) = check_name(name) {
            return field.fail(Problem::error(place, message).hint(hint));
        }
        if let Some((_, first)) = self.positions.get(name).and_then(|position| self.places.get(*position)) {
            let found = first.as_first(&place);
            let message = format!("`{name}` is the name of {} already", self.what);
            return field.fail(Problem { found, ..Problem::error(place, message).expected("each name once") });
        }
        let position = self.places.len();
        self.positions.insert(name.to_owned(), position);
        self.places.push((name.to_owned(), place));
        self.used.borrow_mut().push(false);
        Some(position)
    }

    /// The number of names.
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// The names, in the order of their positions.
    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        self.places.iter().map(|(name, _)| name.as_str())
    }

    /// The position of the name in `field`'s value. Marks the name as used.
    pub(super) fn resolve(&self, field: &Field<'_>) -> Option<usize> {
        let word = field.scalar_value(&format!("the name of {}", self.what))?;
        self.find(&word.text, field, || Problem::error(field.place(), "").found(field.describe()))
    }

    /// The position of `name`, which stands inside the value of `field`. Marks the name as used.
    pub(super) fn resolve_name(&self, name: &str, field: &Field<'_>) -> Option<usize> {
        self.find(name, field, || Problem::error(field.place(), "").found(words::shown(name)))
    }

    /// The position of `name`, which is the key of `field`. Marks the name as used.
    pub(super) fn resolve_key(&self, name: &str, field: &Field<'_>) -> Option<usize> {
        self.find(name, field, || field.key_error(""))
    }

    fn find(&self, name: &str, field: &Field<'_>, problem: impl FnOnce() -> Problem) -> Option<usize> {
        if let Some(position) = self.positions.get(name) {
            if let Some(used) = self.used.borrow_mut().get_mut(*position) {
                *used = true;
            }
            return Some(*position);
        }
        if !self.is_readable {
            return None;
        }
        let expected = match self.places.len() {
            0 => format!("the name of {}; none is defined", self.what),
            1..=MAX_LISTED => words::alternatives(self.all()),
            _ => format!("the name of {}", self.what),
        };
        let message = format!("is not the name of {}", self.what);
        let hint = field.findings().suggest(name, self.all());
        field.fail(Problem { message, ..problem() }.expected(expected).hint(hint))
    }

    /// The names to which nothing refers, and their places.
    pub(super) fn unused(&self) -> Vec<(String, Place)> {
        let used = self.used.borrow();
        self.places.iter().zip(used.iter()).filter(|(_, used)| !**used).map(|(name, _)| name.clone()).collect()
    }
}
