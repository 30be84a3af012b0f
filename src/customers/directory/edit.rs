//! Changes of one customer: from its rows, as text, to its new rows. Independent of where the rows are stored.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value;

use super::credential::key_id;
use super::csv::record;
use super::fault::Faults;
use super::groups::GroupTable;
use super::row::{MAX_COLUMNS, Row, RowKind, columns};
use super::table::{CustomerTable, Format};
use super::yaml;
use crate::ruleset::overrides::OverridesReader;

/// The text of a row by column name; empty columns are left out. No `Debug`: it contains a credential.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowText(BTreeMap<String, String>);

/// A change of a customer.
pub enum Change {
    /// The customer gets these terms and loses its others.
    Put {
        /// The text of the columns.
        terms: Terms,
        /// The first key of a new customer.
        key: NewKey,
        /// Whether the change is refused if the customer exists.
        is_new: bool,
    },
    /// The customer gets these terms and keeps its others.
    Patch(Terms),
    /// The customer gets one more key, whose row copies that of its first key except for these terms.
    AddKey(NewKey, Terms),
    /// The customer gets a new key, and its other keys end at a time, written like `2027-12-31T18:00:00Z`; without a time
    /// they are removed at once.
    Rotate(NewKey, Option<String>),
    /// The key with this id gets these terms and keeps its others.
    PatchKey(String, Terms),
    /// The customer loses the key with this id.
    RemoveKey(String),
    /// The customer is removed with all its keys.
    Remove,
}

/// The new text of columns; `None` clears a column.
pub type Terms = BTreeMap<String, Option<String>>;

/// A newly generated credential.
pub struct NewKey {
    /// The credential as a directory writes it: `sha256:` and 64 digits.
    pub credential: String,
    /// The time when the credential expires, if it does.
    pub valid_until: Option<String>,
}

/// A customer's rows before and after a change.
#[derive(Clone)]
pub struct ChangedRows {
    /// The rows before; empty for a new customer.
    pub before: Vec<RowText>,
    /// The rows after; empty for a removed customer.
    pub after: Vec<RowText>,
}

/// The reason why rows are not changed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The configuration does not allow changes, or does not say how to make them.
    #[error(
        "the customers cannot be changed here: `customers.directory` needs `writable: true` beside `file`, or `put` and \
         `delete` in `postgres`"
    )]
    NotWritable,
    /// There is no such customer.
    #[error("the directory has no customer of this name")]
    NoCustomer,
    /// There is a customer with this name already.
    #[error("there is a customer of this name already")]
    Exists,
    /// The customer has no such key.
    #[error("the customer has no key of this id")]
    NoKey,
    /// The key is the customer's last one, and a customer needs a key.
    #[error("this is the customer's last key: add another one first, or delete the customer")]
    LastKey,
    /// The directory would refuse the rows.
    #[error("{0}")]
    Invalid(String),
    /// The current content of the file or database prevents the change.
    #[error("{0}")]
    Conflict(String),
    /// The file or database cannot be reached or written.
    #[error("{0}")]
    Unavailable(String),
    /// The outcome is unknown: the database became unavailable during the change.
    #[error("it is unknown whether the change was made: {0}")]
    Unknown(String),
}

// === impl RowText ===

impl RowText {
    /// The rows of a text as they are written there, each with the line on which it begins, and the faults of the others.
    pub(super) fn read(text: &str, format: Format, kind: RowKind, levels: &[Arc<str>]) -> (Vec<(u64, Self)>, Faults) {
        let mut rows = Vec::new();
        let take = |row: &Row<'_>, _: &mut Faults| rows.push((row.line, columns(levels).zip(row.fields()).collect()));
        let faults = format.read(text, kind, levels, take);
        (rows, faults)
    }

    /// The row with this text, which begins on `line`.
    pub(super) fn row(&self, line: u64, levels: &[Arc<str>]) -> Row<'_> {
        let mut fields = [""; MAX_COLUMNS];
        for (place, column) in fields.iter_mut().zip(columns(levels)) {
            *place = self.get(column);
        }
        Row::new(line, fields)
    }

    /// The row as a line of CSV with these columns.
    pub(super) fn csv_line(&self, columns: &[impl AsRef<str>]) -> String {
        record(columns.iter().map(|column| self.get(column.as_ref()))) + "\n"
    }

    /// The text of a column; empty if the column is.
    pub fn get(&self, column: &str) -> &str {
        self.0.get(column).map(String::as_str).unwrap_or_default()
    }

    /// Sets the text of a column; an empty text clears it.
    fn set(&mut self, column: &str, text: &str) {
        match text {
            "" => drop(self.0.remove(column)),
            text => drop(self.0.insert(column.to_owned(), text.to_owned())),
        }
    }

    /// The overrides as JSON; null without any.
    pub fn overrides(&self) -> Value {
        yaml::overrides_as_json(self.get("overrides"))
    }

    /// The columns that are not empty, with their text.
    pub fn columns(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(column, text)| (column.as_str(), text.as_str()))
    }

    /// The id of the row's key; it is no use as a credential.
    pub fn key_id(&self) -> String {
        key_id(self.get("credential"))
    }

    /// A copy of the row for another key.
    fn with_key(&self, key: &NewKey) -> Self {
        let mut row = self.clone();
        row.set("credential", &key.credential);
        row.set("valid_until", key.valid_until.as_deref().unwrap_or_default());
        row
    }

    fn change(&mut self, terms: &Terms) {
        terms.iter().for_each(|(column, text)| self.set(column, text.as_deref().unwrap_or_default()));
    }

    /// The moment for which `text` stands as the row's `valid_until`.
    pub(super) fn moment(&self, text: &str) -> Option<Timestamp> {
        let zone = Some(self.get("time_zone")).filter(|zone| !zone.is_empty());
        let zone = zone.and_then(|zone| TimeZone::get(zone).ok());
        Row { valid_until: text, ..Row::default() }.end(zone.as_ref()).ok().flatten()
    }

    /// Makes the key expire at `end`, unless it expires earlier.
    fn end_by(&mut self, end: &str) {
        let own = self.moment(self.get("valid_until"));
        let is_earlier = own.zip(self.moment(end)).is_some_and(|(own, end)| own <= end);
        if !is_earlier {
            self.set("valid_until", end);
        }
    }
}

impl<'t, T: AsRef<str>> FromIterator<(&'t str, T)> for RowText {
    fn from_iter<I: IntoIterator<Item = (&'t str, T)>>(columns: I) -> Self {
        let mut row = Self::default();
        columns.into_iter().for_each(|(column, text)| row.set(column, text.as_ref()));
        row
    }
}

// === impl Change ===

impl Change {
    /// The rows of `customer` after this change, made from the rows `before`; `levels` are the levels of groups.
    pub(super) fn apply(
        &self,
        customer: &str,
        before: &[RowText],
        levels: &[impl AsRef<str>],
    ) -> Result<Vec<RowText>, ChangeError> {
        if before.is_empty() && !matches!(self, Self::Put { .. }) {
            return Err(ChangeError::NoCustomer);
        }
        let mut rows = before.to_vec();
        match self {
            Self::Put { is_new: true, .. } if !rows.is_empty() => return Err(ChangeError::Exists),
            Self::Put { terms, key, .. } => {
                if rows.is_empty() {
                    rows.push(RowText::from_iter([("customer", customer)]).with_key(key));
                }
                let own = ["plan", "overrides", "time_zone", "suspended"].into_iter();
                let cleared = own.chain(levels.iter().map(AsRef::as_ref)).map(|column| (column.to_owned(), None));
                let mut all: Terms = cleared.collect();
                all.extend(terms.clone());
                rows.iter_mut().for_each(|row| row.change(&all));
            }
            Self::Patch(terms) => rows.iter_mut().for_each(|row| row.change(terms)),
            Self::AddKey(key, terms) => {
                let added = rows.first().map(|first| first.with_key(key));
                rows.extend(added.map(|mut row| {
                    row.change(terms);
                    row
                }));
            }
            Self::Rotate(key, keep_until) => {
                let added = rows.first().map(|first| first.with_key(key));
                match keep_until {
                    Some(end) => rows.iter_mut().for_each(|row| row.end_by(end)),
                    None => rows.clear(),
                }
                rows.extend(added);
            }
            Self::PatchKey(id, terms) => {
                let key = rows.iter_mut().find(|row| row.key_id() == *id);
                key.ok_or(ChangeError::NoKey)?.change(terms);
            }
            Self::RemoveKey(id) => {
                rows.retain(|row| row.key_id() != *id);
                match rows.len() {
                    left if left == before.len() => return Err(ChangeError::NoKey),
                    0 => return Err(ChangeError::LastKey),
                    _ => {}
                }
            }
            Self::Remove => rows.clear(),
        }
        Ok(rows)
    }
}

// === impl ChangedRows ===

impl ChangedRows {
    /// The rows that are new or changed.
    pub(super) fn put(&self) -> impl Iterator<Item = &RowText> {
        self.after.iter().filter(|row| !self.before.contains(row))
    }

    /// The rows whose credentials are removed.
    pub(super) fn deleted(&self) -> impl Iterator<Item = &RowText> {
        let stays = |old: &RowText| self.after.iter().any(|row| row.get("credential") == old.get("credential"));
        self.before.iter().filter(move |old| !stays(old))
    }
}

/// A table of a customer's rows, read as a directory reads them. Errors: the directory would refuse the rows.
pub(super) fn table_of(
    rows: &[RowText],
    reader: &Arc<dyn OverridesReader>,
    groups: &GroupTable,
) -> Result<CustomerTable, ChangeError> {
    CustomerTable::load(&csv_of(rows, groups), Format::Csv, &rand::random(), Arc::clone(reader), groups)
        .map_err(|faults| ChangeError::Invalid(faults.reasons()))
}

/// The rows as a directory in CSV.
pub(super) fn csv_of(rows: &[RowText], groups: &GroupTable) -> String {
    let columns: Vec<&str> = columns(groups.levels()).filter(|column| RowKind::Credentials.takes(column)).collect();
    let header = record(columns.iter().copied()) + "\n";
    std::iter::once(header).chain(rows.iter().map(|row| row.csv_line(&columns))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> NewKey {
        NewKey { credential: text.to_owned(), valid_until: None }
    }

    fn row(columns: &[(&str, &str)]) -> RowText {
        columns.iter().copied().collect()
    }

    fn terms(columns: &[(&str, &str)]) -> Terms {
        columns.iter().map(|(column, text)| ((*column).to_owned(), Some((*text).to_owned()))).collect()
    }

    fn after(change: &Change, before: &[RowText]) -> Result<Vec<String>, ChangeError> {
        let shown = |row: RowText| row.columns().map(|(column, text)| format!("{column}={text} ")).collect();
        change.apply("acme", before, &["team"]).map(|rows| rows.into_iter().map(shown).collect())
    }

    #[test]
    fn a_put_leaves_nothing_of_the_old_terms_and_a_patch_what_it_does_not_name() {
        let before = [
            row(&[("credential", "a"), ("customer", "acme"), ("plan", "free"), ("team", "x"), ("suspended", "true")]),
            row(&[("credential", "b"), ("customer", "acme"), ("plan", "free"), ("valid_until", "2027-12-31")]),
        ];
        let put = |is_new| Change::Put { terms: terms(&[("plan", "pro")]), key: key("c"), is_new };
        let expected =
            ["credential=a customer=acme plan=pro ", "credential=b customer=acme plan=pro valid_until=2027-12-31 "];
        assert_eq!(after(&put(false), &before).unwrap(), expected);
        assert_eq!(after(&put(true), &before), Err(ChangeError::Exists));
        assert_eq!(after(&put(true), &[]).unwrap(), ["credential=c customer=acme plan=pro "]);
        let patch = Change::Patch(terms(&[("plan", "pro")]));
        let expected = "credential=a customer=acme plan=pro suspended=true team=x ";
        assert_eq!(after(&patch, &before[..1]).unwrap(), [expected]);
        assert_eq!(after(&patch, &[]), Err(ChangeError::NoCustomer));
    }

    #[test]
    fn a_rotation_ends_old_keys_at_once_or_by_a_moment_and_never_later_than_they_end() {
        let of = |credential, end| {
            row(&[
                ("credential", credential),
                ("customer", "acme"),
                ("valid_until", end),
                ("time_zone", "Europe/Berlin"),
            ])
        };
        let before = [of("a", ""), of("b", "2027-12-31"), of("c", "2028-06-01")];
        let ends = |keep: Option<&str>| {
            let rows = Change::Rotate(key("d"), keep.map(str::to_owned)).apply("acme", &before, &["team"]).unwrap();
            rows.iter().map(|row| format!("{} {}", row.get("credential"), row.get("valid_until"))).collect::<Vec<_>>()
        };
        assert_eq!(ends(None), ["d "]);
        // in Berlin, the last day of the year ends an hour earlier than in UTC
        let end = "2027-12-31T23:00:00Z";
        assert_eq!(ends(Some(end)), [&format!("a {end}"), "b 2027-12-31", &format!("c {end}"), "d "]);
    }

    #[test]
    fn keys_change_and_go_by_their_ids_but_for_the_last_one() {
        let before = [row(&[("credential", "a")]), row(&[("credential", "b")])];
        let remove = |of: &RowText| Change::RemoveKey(of.key_id());
        let end = |of: &RowText| Change::PatchKey(of.key_id(), terms(&[("valid_until", "2027-12-31")]));
        assert_eq!(
            after(&end(&before[1]), &before).unwrap(),
            ["credential=a ", "credential=b valid_until=2027-12-31 "]
        );
        assert_eq!(after(&end(&before[1]), &before[..1]), Err(ChangeError::NoKey));
        assert_eq!(after(&remove(&before[0]), &before).unwrap(), ["credential=b "]);
        assert_eq!(after(&remove(&before[0]), &before[..1]), Err(ChangeError::LastKey));
        assert_eq!(after(&remove(&before[0]), &before[1..]), Err(ChangeError::NoKey));
        assert_eq!(after(&Change::Remove, &before).unwrap(), Vec::<String>::new());
        let hashed = row(&[("credential", &super::super::credential::field_of(b"a"))]);
        assert_eq!((hashed.key_id(), hashed.key_id().len()), (before[0].key_id(), 12), "however it is written");
    }

    #[test]
    fn put_and_deleted_rows_follow_from_before_and_after() {
        let [a, b, c] = ["a", "b", "c"].map(|text| row(&[("credential", text)]));
        let other = row(&[("credential", "b"), ("plan", "pro")]);
        let changed = ChangedRows { before: vec![a.clone(), b], after: vec![other.clone(), c.clone()] };
        assert!(changed.put().eq([&other, &c]) && changed.deleted().eq([&a]));
    }
}
