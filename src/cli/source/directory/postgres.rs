//! Customers from a database, as the configuration and the files that it names say.

use std::path::Path;
use std::sync::Arc;

use super::{OpenDirectory, Origin, beside, bytes, keep};
use crate::cli::source::store::client;
use crate::cli::source::{decode, name, refuse};
use crate::config::{ConfiguredOverrides, DirectorySource, Place, PostgresQuery, Problem, Problems, Warning};
use crate::customers::Directory;
use crate::customers::directory::{DatabaseUrl, GroupTable, MAX_URL, PostgresDirectory, PostgresTerms};
use crate::files::FileVersion;

/// The directory that `query` names in the configuration at `path`, or the one that was `kept`, if it is made of the same.
/// Nobody is asked here: it begins with its snapshot.
pub(super) fn open(
    path: &Path,
    query: &PostgresQuery,
    (overrides, groups): (&ConfiguredOverrides, &Arc<GroupTable>),
    kept: &mut Option<OpenDirectory>,
    seen: &mut Vec<FileVersion>,
) -> Result<Arc<Directory>, Problems> {
    let url_file = beside(path, &query.url_file);
    let (text, _) = bytes(&query.url_file, &url_file, MAX_URL, seen)?;
    let url = DatabaseUrl::parse(&decode(text, &url_file)?).map_err(|bad| {
        let problem = Problem::error(query.url_file.place.clone(), format!("names a file that {bad}"));
        refuse(problem.found(name(&url_file)).expected("`postgres://user:password@host:5432/database`"))
    })?;
    let place = Place { path: format!("{}.tls", query.place.path), ..query.place.clone() };
    let tls = match &query.tls {
        Some(tls) => Some(client(path, tls, &place, seen)?),
        None if url.needs_tls(false) => Some(client(path, &Default::default(), &place, seen)?),
        None => None,
    };
    let (tls, tls_files) = tls.map(|(client, files)| (Arc::new(client), files)).unzip();
    let from = Origin::Postgres(Box::new(query.clone()), tls_files);
    if let Some(OpenDirectory { from: before, overrides: same, groups: known, directory }) = kept
        && *before == from
        && same == overrides
        && let Directory::Postgres(database) = &**directory
    {
        if !Arc::ptr_eq(known, groups) {
            database.update(Arc::clone(groups));
            *known = Arc::clone(groups);
        }
        return Ok(Arc::clone(directory));
    }
    let terms = PostgresTerms {
        url_file,
        query: query.query.clone(),
        snapshot_file: beside(path, &query.snapshot_file),
        interval: query.interval,
        full_every: query.full_every,
        channel: query.channel.clone(),
        timeout: query.timeout,
        tls,
        asks_for_tls: query.tls.is_some(),
    };
    let database = PostgresDirectory::open(terms, &rand::random(), Arc::new(overrides.clone()), Arc::clone(groups));
    if let Some(OpenDirectory { directory, .. }) = kept
        && let Directory::Postgres(before) = &**directory
        && before.refused() < database.refused()
    {
        let problem =
            Problem::error(query.place.clone(), "gives more rows that are wrong than before, as the snapshot tells");
        return Err(refuse(
            problem
                .found(format!(
                    "{} rows, and {} under the configuration in force",
                    database.refused(),
                    before.refused()
                ))
                .hint(
                    "their customers would be unknown: is a plan, a limit or a group missing here? The log names them",
                ),
        ));
    }
    Ok(keep(kept, from, (overrides, groups), Directory::Postgres(database)))
}

/// What is suspicious about the snapshot of a `directory`, which is that of `source`.
pub(in crate::cli::source) fn warnings(source: Option<&DirectorySource>, directory: &Directory) -> Option<Warning> {
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
