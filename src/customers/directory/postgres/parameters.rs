//! The operator's own statements that change rows, with named parameters: `$customer` stands for the customer's name.

use std::error::Error;

use bytes::BytesMut;
use tokio_postgres::types::{Format, IsNull, ToSql, Type, to_sql_checked};

use super::super::edit::RowText;

/// A statement in the database's form, and the names of its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedStatement {
    /// The statement with `$1`, `$2` and so on for its parameters.
    pub(super) sql: String,
    /// The columns of the parameters, in their order.
    names: Vec<String>,
}

impl NamedStatement {
    /// Parses a statement with `$name` for the columns in `known`; it must name the columns in `required`. Text in `'...'`,
    /// in `"..."` and in comments stays as it is; `$$...$$`, `E'...\'...'` and nested comments are not supported.
    ///
    /// Errors: the fault of the statement; the message follows its name.
    pub fn parse(text: &str, known: &[&str], required: &[&str]) -> Result<Self, String> {
        let (mut sql, mut names) = (String::new(), Vec::<String>::new());
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let name = rest.strip_prefix('$').map(leading_name).filter(|name| !name.is_empty());
            let Some(name) = name else {
                let (kept, after) = rest.split_at(untouched(rest).max(first.len_utf8()));
                sql.push_str(kept);
                rest = after;
                continue;
            };
            if !known.contains(&name) {
                return Err(format!("names `${name}`; there are: {}", listed(known)));
            }
            let position = names.iter().position(|there| there == name).unwrap_or_else(|| {
                names.push(name.to_owned());
                names.len().saturating_sub(1)
            });
            sql.push_str(&format!("${}", position.saturating_add(1)));
            rest = rest.get(name.len().saturating_add(1)..).unwrap_or_default();
        }
        match required.iter().find(|required| !names.iter().any(|name| name == *required)) {
            Some(missing) => Err(format!("does not name `${missing}`")),
            None => Ok(Self { sql, names }),
        }
    }

    /// The values of the parameters for a row.
    pub(super) fn values<'r>(&self, row: &'r RowText) -> Vec<TextValue<'r>> {
        let value = |name: &String| match (name.as_str(), row.get(name)) {
            ("suspended", "") => TextValue::of("false"),
            (_, "") => TextValue { text: None, moment: None },
            ("valid_until", text) => {
                // the end of the last representable day is no moment: the credential does not expire
                let moment = row.moment(text).map_or_else(|| "infinity".to_owned(), |moment| moment.to_string());
                TextValue { moment: Some(moment), ..TextValue::of(text) }
            }
            (_, text) => TextValue::of(text),
        };
        self.names.iter().map(value).collect()
    }
}

/// The number of bytes at the start that cannot contain a parameter: text in quotes, or a comment.
fn untouched(text: &str) -> usize {
    let to = |start: usize, end: &str| {
        let found = text.get(start..).and_then(|rest| rest.find(end));
        found.map_or(text.len(), |at| start.saturating_add(at).saturating_add(end.len()))
    };
    match text {
        _ if text.starts_with('\'') => to(1, "'"),
        _ if text.starts_with('"') => to(1, "\""),
        _ if text.starts_with("--") => to(2, "\n"),
        _ if text.starts_with("/*") => to(2, "*/"),
        _ => 0,
    }
}

fn leading_name(text: &str) -> &str {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
    text.get(..end).unwrap_or_default()
}

fn listed(names: &[&str]) -> String {
    names.iter().map(|name| format!("`${name}`")).collect::<Vec<_>>().join(", ")
}

/// A value as text, which the database converts to the type that it needs; NULL if absent. `Debug` does not show it.
pub(super) struct TextValue<'v> {
    text: Option<&'v str>,
    /// The moment that the text stands for, in place of the text where the database needs a moment: there it would read a
    /// date as the start of the day.
    moment: Option<String>,
}

impl<'v> TextValue<'v> {
    pub(super) const fn of(text: &'v str) -> Self {
        Self { text: Some(text), moment: None }
    }
}

impl std::fmt::Debug for TextValue<'_> {
    /// Shows no value: it may be the hash of a credential.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TextValue")
    }
}

impl ToSql for TextValue<'_> {
    fn to_sql(&self, of: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        let moment = self.moment.as_deref().filter(|_| matches!(*of, Type::TIMESTAMPTZ | Type::TIMESTAMP));
        let Some(text) = moment.or(self.text) else { return Ok(IsNull::Yes) };
        out.extend_from_slice(text.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }

    to_sql_checked!();
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 4] = ["credential", "customer", "plan", "suspended"];

    fn parse(text: &str) -> Result<(String, Vec<String>), String> {
        NamedStatement::parse(text, &KNOWN, &["credential"]).map(|read| (read.sql, read.names))
    }

    #[test]
    fn parameters_are_numbered_by_their_names() {
        let (sql, names) = parse("INSERT INTO k VALUES ($credential, $plan, $credential::text) -- $5").unwrap();
        assert_eq!(sql, "INSERT INTO k VALUES ($1, $2, $1::text) -- $5");
        assert_eq!(names, ["credential", "plan"]);
        let (sql, names) = parse("a '$plan ''$plan' \"$plan\" /* $plan */ -- $plan é\n $credential 'é").unwrap();
        assert_eq!((sql.as_str(), names.len()), ("a '$plan ''$plan' \"$plan\" /* $plan */ -- $plan é\n $1 'é", 1));
        let unknown = parse("$credential $team").unwrap_err();
        assert_eq!(unknown, "names `$team`; there are: `$credential`, `$customer`, `$plan`, `$suspended`");
        assert!(parse("$credential, $2").unwrap_err().starts_with("names `$2`; "), "numbers are not the user's");
        assert_eq!(parse("$plan").unwrap_err(), "does not name `$credential`");
    }

    #[test]
    fn empty_values_are_null_except_the_suspension() {
        let statement = NamedStatement::parse("$plan $suspended $credential", &KNOWN, &[]).unwrap();
        let row: RowText = [("credential", "a")].into_iter().collect();
        let values: Vec<_> = statement.values(&row).into_iter().map(|value| value.text).collect();
        assert_eq!(values, [None, Some("false"), Some("a")]);
    }

    #[test]
    fn an_expiry_is_a_moment_only_where_the_database_needs_one() {
        let statement = NamedStatement::parse("$valid_until", &["valid_until"], &[]).unwrap();
        let written = |text: &str, of: &Type| {
            let row: RowText = [("valid_until", text), ("time_zone", "Europe/Berlin")].into_iter().collect();
            let mut out = BytesMut::new();
            statement.values(&row)[0].to_sql(of, &mut out).unwrap();
            String::from_utf8(out.to_vec()).unwrap()
        };
        for (text, moment) in [
            ("2027-12-31", "2027-12-31T23:00:00Z"),
            ("2027-12-31T18:00:00.1234567+01:00", "2027-12-31T17:00:00.123456Z"),
            ("9999-12-31", "infinity"),
        ] {
            assert_eq!([Type::TIMESTAMPTZ, Type::TIMESTAMP].map(|of| written(text, &of)), [moment; 2]);
            assert_eq!([Type::DATE, Type::TEXT].map(|of| written(text, &of)), [text; 2]);
        }
    }
}
