//! Customers and their groups, from the sources that the configuration names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::Uri;

use super::named_files::{Files, Refused};
use super::{ReloadCache, name, problem};
use crate::config::{
    ConfiguredOverrides, CustomerSources, DirectorySource, NamedFile, PostgresQuery, Problem, Problems, Warning,
};
use crate::customers::Directory;
use crate::customers::directory::{
    CustomerTable, Fault, Faults, FileDirectory, Format, GroupTable, LookupDirectory, LookupSettings,
    PostgresDirectory, PostgresSettings, Server, WritableFile,
};
use crate::files::{self, Fingerprint};
use crate::ruleset::overrides::InvalidOverride;

/// The largest directory of customers that is read, in bytes: CSV has room for millions; YAML, which takes many times its
/// size in memory while it is read, has room for a file that is written by hand.
pub(super) const fn max_bytes(format: Format) -> usize {
    match format {
        Format::Csv => 256 << 20,
        Format::Yaml => 1 << 20,
    }
}

/// The largest directory that tollgate changes row by row, in bytes: a change takes many times that in memory.
const MAX_WRITABLE: usize = 16 << 20;

/// The settings to which the rows of a directory refer.
#[derive(Clone, Copy)]
pub struct RowContext<'a> {
    /// The reader of the overrides in the rows.
    pub overrides: &'a ConfiguredOverrides,
    /// The groups that customers may belong to.
    pub groups: &'a Arc<GroupTable>,
}

/// A directory, and the source and settings that it was made from.
#[derive(Clone)]
pub(super) struct OpenDirectory {
    from: Origin,
    overrides: ConfiguredOverrides,
    groups: Arc<GroupTable>,
    directory: Arc<Directory>,
}

impl OpenDirectory {
    /// Whether the directory was made with the settings and the groups of `context`.
    fn has(&self, context: RowContext<'_>) -> bool {
        self.overrides == *context.overrides && Arc::ptr_eq(&self.groups, context.groups)
    }
}

/// A server that the gateway asks for customers, and the settings of lookups.
pub(super) struct LookupSource {
    pub(super) identity: ServerIdentity,
    pub(super) server: Server,
    pub(super) settings: LookupSettings,
}

/// A database that the gateway reads customers from, and the settings of reading.
pub(super) struct DatabaseSource {
    pub(super) query: PostgresQuery,
    /// A hash of the TLS files, if the connection uses TLS.
    pub(super) tls_files: Option<u128>,
    pub(super) settings: PostgresSettings,
}

/// The identity of a server, which decides whether its answers can be reused.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ServerIdentity {
    /// The name of a Redis hash in the store, which cannot change.
    Redis(String),
    /// An HTTP service: its URL, and a hash of its contract, its token and its TLS files.
    Http(Uri, u128),
}

#[derive(Clone, Debug, PartialEq)]
enum Origin {
    File {
        path: PathBuf,
        print: Fingerprint,
        is_writable: bool,
    },
    /// A server that the gateway asks.
    Server(ServerIdentity),
    /// The query for a database, and a hash of the TLS files, if the connection uses TLS.
    Postgres(Box<PostgresQuery>, Option<u128>),
}

/// Opens the directory in the file `named`. The directory that was `kept` is reused if its source and settings are the same;
/// it takes over changed rows and groups.
pub(super) fn open_in_file(
    named: &NamedFile,
    is_writable: bool,
    context @ RowContext { overrides, groups }: RowContext<'_>,
    kept: &mut Option<OpenDirectory>,
    files: &mut Files<'_>,
) -> Result<Arc<Directory>, Refused> {
    let file = files.path(named);
    let (format, max_bytes) = (format(&name(&file)), max_bytes(format(&name(&file))));
    let (bytes, print) = files.bytes(named, max_bytes)?;
    if let Some(open) = kept
        && let OpenDirectory { from, overrides: same, directory, .. } = open
        && let Origin::File { path, print: before, is_writable: was_writable } = from
        && (&*path, *was_writable) == (&file, is_writable)
        && same == overrides
        && let Directory::File(FileDirectory { table: rows, .. }) = &**directory
    {
        if *before != print || !Arc::ptr_eq(&open.groups, groups) {
            let changes = rows.update(&files.decode(bytes, &file)?, groups);
            let changes = changes.map_err(|faults| files.refuse(explain_all(&name(&file), faults)))?;
            tracing::info!(changes.added, changes.changed, changes.removed, "directory of customers updated");
            *before = print;
            open.groups = Arc::clone(groups);
        }
        return Ok(Arc::clone(directory));
    }
    let table = load(&files.decode(bytes, &file)?, &name(&file), context).map_err(|problems| files.refuse(problems))?;
    let table = Arc::new(table);
    let reader = Arc::new(overrides.clone());
    let max_bytes = max_bytes.min(MAX_WRITABLE);
    let writable = is_writable.then(|| WritableFile { path: file.clone(), format, max_bytes, reader });
    let from = Origin::File { path: file, print, is_writable };
    Ok(keep(kept, from, context, Directory::File(FileDirectory { table, writable })))
}

/// Opens the directory of a server that is asked, as [`open_in_file`].
pub(super) fn open_lookup(
    source: LookupSource,
    context @ RowContext { overrides, groups }: RowContext<'_>,
    kept: &mut Option<OpenDirectory>,
) -> Arc<Directory> {
    let from = Origin::Server(source.identity.clone());
    let open = kept.as_ref().filter(|open| open.from == from);
    let known = open.and_then(|open| match &*open.directory {
        Directory::Lookup(known) => Some(known),
        Directory::Empty | Directory::File(_) | Directory::Postgres(_) => None,
    });
    if let (Some(open), Some(known)) = (open, known)
        && open.has(context)
        && known.settings() == source.settings
    {
        return Arc::clone(&open.directory);
    }
    // after a change of limits, groups or settings, too, customers stay known while their server is unavailable
    let server = (source.server, source.settings);
    let opened = LookupDirectory::new(server, known, Arc::new(overrides.clone()), Arc::clone(groups));
    keep(kept, from, context, Directory::Lookup(opened))
}

/// Opens the directory of a database, which starts with the rows of its snapshot, as [`open_in_file`].
pub(super) fn open_database(
    DatabaseSource { query, tls_files, settings }: DatabaseSource,
    context @ RowContext { overrides, groups }: RowContext<'_>,
    kept: &mut Option<OpenDirectory>,
    files: &mut Files<'_>,
) -> Result<Arc<Directory>, Refused> {
    let place = query.place.clone();
    let from = Origin::Postgres(Box::new(query), tls_files);
    if let Some(open) = kept.as_ref().filter(|open| open.from == from && open.has(context)) {
        return Ok(Arc::clone(&open.directory));
    }
    let before = kept.as_ref().and_then(|open| match &*open.directory {
        Directory::Postgres(before) => Some(before),
        Directory::Empty | Directory::File(_) | Directory::Lookup(_) => None,
    });
    let reader = Arc::new(overrides.clone());
    let database = PostgresDirectory::open(settings, &rand::random(), reader, Arc::clone(groups), before);
    if let Some(before) = before
        && before.refused() < database.refused()
    {
        let problem = Problem::error(place, "gives more rows that are wrong than before, as the snapshot tells");
        let found = format!("{} rows, and {} under the configuration in force", database.refused(), before.refused());
        let hint = "their customers would be unknown: is a plan, a limit or a group missing here? The log names them";
        return Err(files.refuse(problem.found(found).hint(hint)));
    }
    if let Some(before) = before.filter(|_| kept.as_ref().is_some_and(|open| open.from == from)) {
        database.refresher().succeed(before.refresher());
    }
    Ok(keep(kept, from, context, Directory::Postgres(database)))
}

/// A hash of the files that list the customers of `directory` and their groups, the same at every gateway with the same
/// files; `None` if they are in no file. The cache has what was read just now.
pub(super) fn hash(
    directory: &Arc<Directory>,
    ReloadCache { directory: kept, groups, .. }: &ReloadCache,
) -> Option<String> {
    let open = kept.as_ref().filter(|open| Arc::ptr_eq(&open.directory, directory))?;
    let Origin::File { print, .. } = &open.from else { return None };
    let of_groups = groups.as_ref().and_then(|groups| Some(&groups.from.as_ref()?.1));
    let hashes: Vec<u8> = [Some(print), of_groups]
        .into_iter()
        .flatten()
        .filter_map(|print| match print {
            Fingerprint::Bytes(hash) => Some(hash.to_le_bytes()),
            Fingerprint::Unreadable(_) | Fingerprint::Unknown => None,
        })
        .flatten()
        .collect();
    Some(format!("{:032x}", files::hash(&hashes)))
}

/// A warning about a file without customers; a file that tollgate may write can begin so.
pub(super) fn warnings(source: Option<&DirectorySource>, directory: &Directory) -> Option<Warning> {
    let Some(DirectorySource::File { file, is_writable: false }) = source else { return None };
    let Directory::File(FileDirectory { table, .. }) = directory else { return None };
    let problem = Problem::warning(file.place.clone(), "names a file without customers");
    (table.credentials() == 0).then(|| problem.hint("the key of each caller is unknown; is the file complete?"))
}

/// Keeps a directory for the next reading.
fn keep(
    kept: &mut Option<OpenDirectory>,
    from: Origin,
    RowContext { overrides, groups }: RowContext<'_>,
    directory: Directory,
) -> Arc<Directory> {
    let directory = Arc::new(directory);
    let (overrides, groups) = (overrides.clone(), Arc::clone(groups));
    *kept = Some(OpenDirectory { from, overrides, groups, directory: Arc::clone(&directory) });
    directory
}

/// Reads the directory in the file `named`.
pub(super) fn open_file(
    named: &NamedFile,
    context: RowContext<'_>,
    files: &mut Files<'_>,
) -> Result<CustomerTable, Refused> {
    let file = name(&files.path(named));
    let text = files.text(named, max_bytes(format(&file)))?;
    load(&text, &file, context).map_err(|problems| files.refuse(problems))
}

/// Parses a directory from the text of the file with the name `file`.
pub fn load(
    text: &str,
    file: &str,
    RowContext { overrides, groups }: RowContext<'_>,
) -> Result<CustomerTable, Problems> {
    CustomerTable::load(text, format(file), &rand::random(), Arc::new(overrides.clone()), groups)
        .map_err(|faults| explain_all(file, faults))
}

/// The format of the directory `file`, by the extension of its name.
pub(super) fn format(file: &str) -> Format {
    match Path::new(file).extension().and_then(|extension| extension.to_str()) {
        Some("yaml" | "yml") => Format::Yaml,
        _ => Format::Csv,
    }
}

pub(super) fn explain_all(file: &str, Faults { faults, more }: Faults) -> Problems {
    let errors: Vec<Problem> = faults.into_iter().map(|(line, fault)| explain(file, line, fault)).collect();
    Problems { more, ..errors.into() }
}

fn explain(file: &str, line: u64, fault: Fault) -> Problem {
    let says = problem(file, usize::try_from(line).ok(), fault.to_string());
    match fault {
        Fault::Empty | Fault::MissingColumn(_) | Fault::UnknownColumn(_) => says.expected(
            "a first line `credential,customer,plan` and perhaps `overrides,time_zone,valid_until,suspended`, or \
             `level,group` and perhaps `plan,overrides,time_zone,suspended` for groups, in any order, with the names \
             of `levels`",
        ),
        Fault::Plan(misread) => in_field(says, "plan", misread),
        Fault::TimeZone(misread) => in_field(says, "time_zone", misread),
        Fault::Overrides(misread) => in_field(says, "overrides", misread),
        Fault::FieldCount { found, expected } if found < expected => {
            says.hint("is a comma missing, or the quote that closes a field?")
        }
        Fault::Comment => says.hint("CSV has no comments: remove the line"),
        Fault::FieldCount { .. } => says.hint("a field that holds a comma has to be in quotes"),
        Fault::LineBreak => says.hint("is a quote missing?"),
        Fault::Disagrees { what, .. } => says.expected(format!("the same {what} on all lines of a customer")),
        Fault::GroupsDisagree { .. } => says.hint("a customer has one plan: name it on all of its lines"),
        Fault::RepeatedColumn(_)
        | Fault::EmptyField(_)
        | Fault::BadName
        | Fault::BadHash
        | Fault::BadValidUntil
        | Fault::BadSuspended
        | Fault::RepeatedCredential(_)
        | Fault::BadLevel
        | Fault::UnknownLevel
        | Fault::BadGroupName(_)
        | Fault::NotOuter { .. }
        | Fault::RepeatedGroup(_)
        | Fault::MalformedYaml(_) => says,
        Fault::UnknownGroup { .. } => says.expected("a group that `customers.groups.file` lists"),
        Fault::Elsewhere { .. } => says.hint("leave the outer group out: it follows from the inner one"),
    }
}

/// A problem with the value of a field, at the place of `problem`.
fn in_field(mut problem: Problem, field: &str, misread: InvalidOverride) -> Problem {
    let InvalidOverride { path, message, found, expected, hint } = misread;
    problem.place.path = if path.is_empty() { field.to_owned() } else { format!("{field}.{path}") };
    Problem { message, found, expected, hint, ..problem }
}

/// Groups, and the file and settings that they were made from.
#[derive(Clone)]
pub(super) struct OpenGroups {
    /// The file that lists them; `None` if there is none.
    from: Option<(PathBuf, Fingerprint)>,
    overrides: ConfiguredOverrides,
    groups: Arc<GroupTable>,
}

/// Opens the groups of the file that the configuration names, if it names one. The groups that were `kept` are reused if the
/// file and the settings are the same.
pub(super) fn open_groups(
    CustomerSources { groups: named, overrides, .. }: &CustomerSources,
    kept: &mut Option<OpenGroups>,
    files: &mut Files<'_>,
) -> Result<Arc<GroupTable>, Refused> {
    let read = named.as_ref().map(|named| {
        let file = files.path(named);
        let (bytes, print) = files.bytes(named, max_bytes(format(&name(&file))))?;
        Ok((bytes, (file, print)))
    });
    let (bytes, from) = read.transpose()?.unzip();
    if let Some(open) = kept.as_ref().filter(|open| open.from == from && open.overrides == *overrides) {
        return Ok(Arc::clone(&open.groups));
    }
    let groups = match (bytes, &from) {
        (Some(bytes), Some((file, _))) => {
            let text = files.decode(bytes, file)?;
            let reader = Arc::new(overrides.clone());
            let read = GroupTable::read(&text, format(&name(file)), overrides.levels(), reader);
            read.map_err(|faults| files.refuse(explain_all(&name(file), faults)))?
        }
        _ => GroupTable::unlisted(overrides.levels()),
    };
    let groups = Arc::new(groups);
    *kept = Some(OpenGroups { from, overrides: overrides.clone(), groups: Arc::clone(&groups) });
    Ok(groups)
}
