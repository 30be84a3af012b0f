//! The statements that a database is asked with, made of the user's own query.

use std::sync::Arc;

use tokio_postgres::types::Type;

use crate::ruleset::groups::COLUMNS;

/// The column that says when a row was changed.
pub(super) const UPDATED_AT: &str = "updated_at";
/// The columns that there have to be.
const REQUIRED: [&str; 3] = ["credential", "customer", "plan"];
/// How moments are written, in UTC.
const MOMENT: &str = r#"'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'"#;

/// The statements for one query, whose columns are known.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Statements {
    /// The first line of the rows.
    pub(super) header: String,
    /// Gives all rows. Each begins with when it was changed, in microseconds since 1970, or nothing.
    pub(super) all: String,
    /// The type of `updated_at`, where the query gives that.
    updated_at: Option<&'static str>,
}

/// A column of the user's query: its name and type.
pub(super) type Column<'c> = (&'c str, &'c Type);

impl Statements {
    /// For a `query` that gives these columns, of which some may be `levels` of groups.
    ///
    /// Errors: what is wrong with the columns.
    pub(super) fn new(query: &str, columns: &[Column<'_>], levels: &[Arc<str>]) -> Result<Self, String> {
        let (mut names, mut values, mut updated_at) = (Vec::new(), Vec::new(), None);
        for (name, of) in columns {
            let is_level = levels.iter().any(|level| **level == **name);
            match *name {
                UPDATED_AT => updated_at = Some(moment_type(of)?),
                name if names.contains(&name) => return Err(format!("the query gives the column `{name}` twice")),
                name if is_level || (COLUMNS.contains(&name) && !matches!(name, "level" | "group")) => {
                    names.push(name);
                    values.push(value(name, of)?);
                }
                _ => return Err(unknown(name, levels)),
            }
        }
        if let Some(missing) = REQUIRED.iter().find(|required| !names.contains(required)) {
            return Err(format!("the query gives no column `{missing}`"));
        }
        let newest = updated_at.map_or(
            "NULL",
            |_| "(least(extract(epoch FROM rows.updated_at), extract(epoch FROM now())) * 1000000)::int8",
        );
        let all = format!("SELECT {newest}, {} FROM (\n{}\n) AS rows", values.join(", "), bare(query));
        let header = names.iter().map(|name| csv_field(name)).collect::<Vec<_>>().join(",") + "\n";
        Ok(Self { header, all, updated_at })
    }

    /// Copies all rows.
    pub(super) fn copy_all(&self) -> String {
        copy(&self.all)
    }

    /// Copies the rows that were changed after this moment, in microseconds since 1970; `None` where the query does not give
    /// `updated_at`.
    pub(super) fn copy_changed(&self, since: i64) -> Option<String> {
        let of = self.updated_at?;
        let since = format!("'epoch'::{of} + ({since}::int8 * interval '1 microsecond')");
        Some(copy(&format!("{} WHERE rows.updated_at > {since}", self.all)))
    }

    /// Whether changes can be asked for.
    pub(super) const fn has_changes(&self) -> bool {
        self.updated_at.is_some()
    }
}

/// An identifier as SQL writes it.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The query without what ends it.
pub(super) fn bare(query: &str) -> &str {
    query.trim_end_matches(|last: char| last.is_whitespace() || last == ';')
}

fn copy(select: &str) -> String {
    format!("COPY ({select}) TO STDOUT (FORMAT csv, ENCODING 'UTF8')")
}

fn csv_field(name: &str) -> String {
    quoted(name)
}

fn moment_type(of: &Type) -> Result<&'static str, String> {
    match *of {
        Type::TIMESTAMPTZ => Ok("timestamptz"),
        Type::TIMESTAMP => Ok("timestamp"),
        _ => Err(format!("the column `{UPDATED_AT}` is of type {of}, not timestamptz")),
    }
}

fn unknown(name: &str, levels: &[Arc<str>]) -> String {
    let known = COLUMNS.into_iter().filter(|column| !matches!(*column, "level" | "group"));
    let known: Vec<&str> = known.chain([UPDATED_AT]).chain(levels.iter().map(|level| &**level)).collect();
    format!("the query gives a column `{name}`, which is none of {}", known.join(", "))
}

/// The value of a column as text on one line. Credentials leave the database as their SHA-256 only.
fn value(name: &str, of: &Type) -> Result<String, String> {
    let column = format!("rows.{}", quoted(name));
    Ok(match (name, of) {
        ("credential", &Type::BYTEA) => format!("'sha256:' || encode({column}, 'hex')"),
        (_, &Type::BYTEA) => return Err(format!("the column `{name}` is of type bytea, not text")),
        ("credential", _) => {
            let text = format!("btrim({column}::text, E' \\t\\r\\n\\f')");
            format!(
                "CASE WHEN {text} ~* '^sha256:[0-9a-f]{{64}}$' THEN {text} WHEN {text} ~* '^sha256:' THEN 'sha256:' \
                 WHEN {text} <> '' THEN 'sha256:' || encode(sha256(convert_to({text}, 'UTF8')), 'hex') END"
            )
        }
        ("valid_until", &Type::TIMESTAMPTZ) => moment(&column, &format!("{column} AT TIME ZONE 'UTC'"), MOMENT),
        ("valid_until", &Type::TIMESTAMP) => moment(&column, &column, MOMENT),
        ("valid_until", &Type::DATE) => moment(&column, &column, "'YYYY-MM-DD'"),
        // a line break in JSON is a space; elsewhere it is a fault, as any other control character
        ("overrides", _) => format!("translate({column}::text, E'\\n\\r', '  ')"),
        _ => format!("translate({column}::text, E'\\n\\r', E'\\x01\\x01')"),
    })
}

/// A moment as text; nothing where it never comes, and one long ago where it always was.
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
        assert_eq!(fault, "the query gives no column `plan`");
    }
}
