//! The database of customers, from the configuration and the files that it names.

use std::sync::Arc;

use super::directory::DatabaseSource;
use super::named_files::{Files, Refused};
use crate::config::{DirectorySource, PostgresQuery, PostgresStatement, Problem, Warning};
use crate::customers::Directory;
use crate::customers::directory::{DatabaseUrl, MAX_URL, NamedStatement, PostgresSettings, WriteStatements};
use crate::ruleset::groups::COLUMNS;

/// The settings for the database. This function does not connect to it.
pub(super) fn database(
    query: &PostgresQuery,
    levels: &[String],
    files: &mut Files<'_>,
) -> Result<DatabaseSource, Refused> {
    let url = DatabaseUrl::parse(&files.text(&query.url_file, MAX_URL)?);
    let url = url.map_err(|bad| {
        let problem = files.unfit(&query.url_file, bad);
        files.refuse(problem.expected("`postgres://user:password@host:5432/database`"))
    })?;
    let uses_tls = query.asks_for_tls || url.needs_tls(false);
    let tls = uses_tls.then(|| files.tls_client(&query.tls)).transpose()?;
    let (tls, tls_files) = tls.map(|(client, files)| (Arc::new(client), files)).unzip();
    let settings = PostgresSettings {
        url_file: files.path(&query.url_file),
        query: query.query.clone(),
        snapshot_file: files.path(&query.snapshot_file),
        interval: query.interval,
        full_every: query.full_every,
        channel: query.channel.clone(),
        timeout: query.timeout,
        tls,
        asks_for_tls: query.asks_for_tls,
        writes: query.writes.as_ref().map(|statements| writes(statements, levels, files)).transpose()?,
    };
    Ok(DatabaseSource { query: query.clone(), tls_files, settings })
}

/// The statements that change rows. Their parameters are columns of a directory file and `levels` of groups.
fn writes(
    (put, delete): &(PostgresStatement, PostgresStatement),
    levels: &[String],
    files: &mut Files<'_>,
) -> Result<WriteStatements, Refused> {
    let own = COLUMNS.into_iter().filter(|column| !matches!(*column, "level" | "group"));
    let known: Vec<&str> = own.chain(levels.iter().map(String::as_str)).collect();
    let mut parse = |statement: &PostgresStatement, known: &[&str], required: &[&str]| {
        let parsed = NamedStatement::parse(&statement.text, known, required);
        parsed.map_err(|wrong| files.refuse(Problem::error(statement.place.clone(), wrong)))
    };
    Ok(WriteStatements {
        put: parse(put, &known, &["credential", "customer", "plan"])?,
        delete: parse(delete, &["credential", "customer"], &["credential"])?,
    })
}

/// A warning about the snapshot of `directory`, which reads from `source`.
pub(super) fn warnings(source: Option<&DirectorySource>, directory: &Directory) -> Option<Warning> {
    let (Some(DirectorySource::Postgres(query)), Directory::Postgres(database)) = (source, directory) else {
        return None;
    };
    let place = query.snapshot_file.place.clone();
    match (database.table(), database.refused()) {
        (None, _) => {
            let problem = Problem::warning(place, "is no snapshot of customers yet");
            Some(problem.hint("until PostgreSQL was read for the first time, tollgate is not ready and answers 503"))
        }
        (Some(_), 0) => None,
        (Some(_), refused) => {
            let problem = Problem::warning(place, "holds rows that are wrong, and left out");
            Some(problem.found(format!("{refused} rows")).hint("the log names their customers"))
        }
    }
}
