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
            ("suspended", "") => TextValue(Some("false")),
            (_, "") => TextValue(None),
            (_, text) => TextValue(Some(text)),
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
pub(super) struct TextValue<'v>(pub(super) Option<&'v str>);

impl std::fmt::Debug for TextValue<'_> {
    /// Shows no value: it may be the hash of a credential.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TextValue")
    }
}

impl ToSql for TextValue<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        let Some(text) = self.0 else { return Ok(IsNull::Yes) };
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
    fn what_is_empty_is_null_but_a_suspension_is_said() {
        let statement = NamedStatement::parse("$plan $suspended $credential", &KNOWN, &[]).unwrap();
        let row: RowText = [("credential", "a")].into_iter().collect();
        let values: Vec<_> = statement.values(&row).into_iter().map(|value| value.0).collect();
        assert_eq!(values, [None, Some("false"), Some("a")]);
    }
}
