//! The statements that read the database, made from the operator's own query.

use std::sync::Arc;

use tokio_postgres::types::Type;

use super::super::row::{RowKind, columns};
use crate::ruleset::groups::COLUMNS;

/// The column with the time of a row's last change.
pub(super) const UPDATED_AT: &str = "updated_at";
/// The SQL format of times, in UTC.
const MOMENT: &str = r#"'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'"#;

/// The statements for a query with known columns.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Statements {
    /// The header line of the rows.
    pub(super) header: String,
    /// Selects all rows. Each begins with the time of its last change, in microseconds since 1970, or with nothing.
    pub(super) all: String,
    /// The type of `updated_at`, if the query gives that column.
    updated_at: Option<&'static str>,
}

/// The name and type of a column of the operator's query.
pub(super) type Column<'c> = (&'c str, &'c Type);

impl Statements {
    /// The statements for a `query` with these columns, some of which may be `levels` of groups.
    ///
    /// Errors: the fault of the columns.
    pub(super) fn new(query: &str, given: &[Column<'_>], levels: &[Arc<str>]) -> Result<Self, String> {
        let kind = RowKind::Credentials;
        let (mut names, mut values, mut updated_at) = (Vec::new(), Vec::new(), None);
        for (name, of) in given {
            match *name {
                UPDATED_AT => updated_at = Some(moment_type(of)?),
                name if names.contains(&name) => return Err(format!("the query returns the column `{name}` twice")),
                name if columns(levels).any(|known| known == name) && kind.takes(name) => {
                    names.push(name);
                    values.push(value(name, of)?);
                }
                _ => return Err(unknown(name, levels)),
            }
        }
        if let Some(missing) = COLUMNS.iter().find(|column| kind.requires(column) && !names.contains(column)) {
            return Err(format!("the query returns no column `{missing}`"));
        }
        let newest = updated_at.map_or(
            "NULL",
            // from 1970 to now: an infinite time is no whole number
            |_| "(greatest(least(extract(epoch FROM rows.updated_at), extract(epoch FROM now())), 0) * 1000000)::int8",
        );
        let all = format!("SELECT {newest}, {} FROM (\n{}\n) AS rows", values.join(", "), bare(query));
        // CSV quotes a field as SQL quotes an identifier
        let header = names.iter().map(|name| quoted(name)).collect::<Vec<_>>().join(",") + "\n";
        Ok(Self { header, all, updated_at })
    }

    /// The statement that copies all rows.
    pub(super) fn copy_all(&self) -> String {
        copy(&self.all)
    }

    /// The statement that copies the rows changed after `since`, in microseconds since 1970; `None` if the query does not
    /// give `updated_at`.
    pub(super) fn copy_changed(&self, since: i64) -> Option<String> {
        let of = self.updated_at?;
        let since = format!("'epoch'::{of} + ({since}::int8 * interval '1 microsecond')");
        Some(copy(&format!("{} WHERE rows.updated_at > {since}", self.all)))
    }

    /// Whether the query allows reading changed rows only.
    pub(super) const fn has_changes(&self) -> bool {
        self.updated_at.is_some()
    }
}

/// A quoted SQL identifier.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The SQL expression of a column as text without the white space around it, which counts in no row.
pub(super) fn trimmed(column: &str) -> String {
    format!("btrim({column}::text, E' \\t\\r\\n\\f')")
}

/// The query without semicolons and white space at its end.
pub(super) fn bare(query: &str) -> &str {
    query.trim_end_matches(|last: char| last.is_whitespace() || last == ';')
}

fn copy(select: &str) -> String {
    format!("COPY ({select}) TO STDOUT (FORMAT csv, ENCODING 'UTF8')")
}

fn moment_type(of: &Type) -> Result<&'static str, String> {
    match *of {
        Type::TIMESTAMPTZ => Ok("timestamptz"),
        Type::TIMESTAMP => Ok("timestamp"),
        _ => Err(format!("the column `{UPDATED_AT}` is of type {of}, not timestamptz")),
    }
}

fn unknown(name: &str, levels: &[Arc<str>]) -> String {
    let known = COLUMNS.into_iter().filter(|column| RowKind::Credentials.takes(column));
    let known: Vec<&str> = known.chain([UPDATED_AT]).chain(levels.iter().map(|level| &**level)).collect();
    format!("the query returns a column `{name}`, which is none of {}", known.join(", "))
}

/// The SQL expression of a column as text on one line. Credentials leave the database only as their SHA-256.
fn value(name: &str, of: &Type) -> Result<String, String> {
    let column = format!("rows.{}", quoted(name));
    Ok(match (name, of) {
        ("credential", &Type::BYTEA) => format!("'sha256:' || encode({column}, 'hex')"),
        (_, &Type::BYTEA) => return Err(format!("the column `{name}` is of type bytea, not text")),
        ("credential", _) => {
            let text = trimmed(&column);
            format!(
                "CASE WHEN {text} ~* '^sha256:[0-9a-f]{{64}}$' THEN {text} WHEN {text} ~* '^sha256:' THEN 'sha256:' \
                 WHEN {text} <> '' THEN 'sha256:' || encode(sha256(convert_to({text}, 'UTF8')), 'hex') END"
            )
        }
        ("valid_until", &Type::TIMESTAMPTZ) => moment(&column, &format!("{column} AT TIME ZONE 'UTC'"), MOMENT),
        ("valid_until", &Type::TIMESTAMP) => moment(&column, &column, MOMENT),
        ("valid_until", &Type::DATE) => moment(&column, &column, "'YYYY-MM-DD'"),
        // a line break in JSON becomes a space; elsewhere a control character, which is a fault
        ("overrides", _) => format!("translate({column}::text, E'\\n\\r', '  ')"),
        _ => format!("translate({column}::text, E'\\n\\r', E'\\x01\\x01')"),
    })
}

/// The SQL expression of a time as text; nothing for `infinity`, and 1970 for `-infinity`.
fn moment(column: &str, in_utc: &str, format: &str) -> String {
    format!(
        "CASE WHEN isfinite({column}) THEN to_char({in_utc}, {format}) WHEN {column} < 'epoch' THEN '1970-01-01T00:00:00Z' END"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column<'static>; 3] =
        [("credential", &Type::TEXT), ("customer", &Type::VARCHAR), ("plan", &Type::TEXT)];

    fn with(more: &[Column<'static>]) -> Result<Statements, String> {
        Statements::new("SELECT 1 ;\n", &[&COLUMNS, more].concat(), &["team".into(), "Org \"A\"".into()])
    }

    #[test]
    fn changes_are_asked_for_where_the_query_tells_when_rows_changed() {
        let without = with(&[]).unwrap();
        assert_eq!((without.copy_changed(5), without.has_changes()), (None, false));
        assert!(without.copy_all().starts_with("COPY (SELECT NULL, ") && without.copy_all().contains("(\nSELECT 1\n)"));
        for (of, name) in [(&Type::TIMESTAMP, "timestamp"), (&Type::TIMESTAMPTZ, "timestamptz")] {
            let changed = with(&[("updated_at", of)]).unwrap().copy_changed(-5).unwrap();
            assert!(changed.contains(&format!("rows.updated_at > 'epoch'::{name} + (-5::int8 * ")), "{changed}");
        }
    }

    #[test]
    fn columns_are_those_of_a_file_and_levels() {
        let more = [("Org \"A\"", &Type::TEXT), ("valid_until", &Type::DATE)];
        assert_eq!(
            with(&more).unwrap().header,
            "\"credential\",\"customer\",\"plan\",\"Org \"\"A\"\"\",\"valid_until\"\n"
        );
        assert!(with(&more).unwrap().all.contains("translate(rows.\"Org \"\"A\"\"\"::text"));
        for (bad, says) in [
            (("color", &Type::TEXT), "a column `color`, which is none of credential, customer, plan, overrides"),
            (("level", &Type::TEXT), "a column `level`"),
            (("plan", &Type::TEXT), "`plan` twice"),
            (("updated_at", &Type::INT8), "`updated_at` is of type int8"),
            (("team", &Type::BYTEA), "`team` is of type bytea"),
        ] {
            let fault = with(&[bad]).unwrap_err();
            assert!(fault.contains(says), "{fault}");
        }
        let fault = Statements::new("", &COLUMNS[..2], &[]).unwrap_err();
        assert_eq!(fault, "the query returns no column `plan`");
    }
}
