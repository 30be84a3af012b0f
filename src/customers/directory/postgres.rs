//! Customers from a PostgreSQL query, which is read in the background and served from memory.
//!
//! The gateway reads all rows after it connects and at a fixed interval. In between it reads the changed rows, if the query
//! gives `updated_at`; a notification triggers that at once. Invalid rows are left out and logged.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::spawn_blocking;

use super::builder::MergeError;
use super::csv::fields;
use super::edit::{Change, ChangeError, ChangedRows, RowText, table_of};
use super::fault::{Fault, Faults};
use super::groups::GroupTable;
use super::index::Changes;
use super::row::{RowSet, is_name};
use super::table::{CustomerTable, Format};
use crate::clock::Clock;
use crate::customers::source::{RefreshLimits, Refreshed, Refresher, Source};
use crate::files;
use crate::ruleset::overrides::OverridesReader;
use crate::tls::TlsClient;
use crate::units::Nanos;

mod parameters;
mod session;
mod snapshot;
mod statement;
mod tls;
mod url;
mod watermark;
mod writer;

pub use parameters::NamedStatement;
use session::{CopiedRows, ReadRequests, Session};
use snapshot::{Snapshot, SnapshotContent};
pub use url::DatabaseUrl;
pub use writer::WriteStatements;
use writer::Writer;

/// The maximum length of the URL's file, in bytes.
pub const MAX_URL: usize = 4 << 10;
/// The least time between two reads of the database.
const MIN_INTERVAL: Nanos = Nanos::new(100_000_000);
/// The deadline for reading all rows.
const DEADLINE: Nanos = Nanos::from_secs(600);
/// How long a change waits until its rows are in force.
const PATIENCE: Nanos = Nanos::from_secs(5);
/// The maximum number of invalid rows that are logged individually.
const MAX_REPORTED_FAULTS: usize = 10;

/// The settings of the database directory. No `Debug`: they include client certificates.
pub struct PostgresSettings {
    /// The file with the URL, which is read again before each read of the database.
    pub url_file: PathBuf,
    /// The query for the rows.
    pub query: String,
    /// The file that keeps the rows while the process does not run.
    pub snapshot_file: PathBuf,
    /// The interval between reads of changed rows.
    pub interval: Nanos,
    /// The interval between reads of all rows.
    pub full_every: Nanos,
    /// The channel on which the database notifies of changes, if it does.
    pub channel: Option<String>,
    /// The timeout for each answer of the database.
    pub timeout: Nanos,
    /// The TLS settings; absent if no server needed TLS when the URL was read.
    pub tls: Option<Arc<TlsClient>>,
    /// Whether the configuration asks for TLS.
    pub asks_for_tls: bool,
    /// The statements that change rows, if changes are allowed.
    pub writes: Option<WriteStatements>,
}

/// The directory of the customers in a database.
pub struct PostgresDirectory {
    rows: Arc<KnownRows>,
    wanted: Arc<ReadRequests>,
    refresher: Arc<Refresher>,
    writer: Writer,
}

/// The rows that this process knows.
struct KnownRows {
    table: CustomerTable,
    groups: Arc<GroupTable>,
    /// Locked while rows are merged and written to the snapshot. Shared with the directory before, if it has the same file.
    snapshot: Arc<Mutex<Snapshot>>,
    /// A hash of the last log messages about invalid rows.
    reported_faults_hash: Mutex<u128>,
}

// === impl PostgresSettings ===

impl PostgresSettings {
    /// The current content of the URL's file.
    fn url(&self) -> Result<String, String> {
        let (bytes, _) = files::read(&self.url_file, MAX_URL);
        let bytes = bytes.map_err(|unreadable| format!("the file of the URL {unreadable}"))?;
        String::from_utf8(bytes).map_err(|_| "the file of the URL is not in UTF-8".to_owned())
    }
}

// === impl PostgresDirectory ===

impl PostgresDirectory {
    /// Starts with the snapshot, if there is one that has all rows that the directory `before` knows. `seed` is the key of
    /// the hashes of credentials, `reader` parses plans, time zones and overrides, and `groups` are the groups that customers
    /// may belong to.
    pub fn open(
        settings: PostgresSettings,
        seed: &[u8; 16],
        reader: Arc<dyn OverridesReader>,
        groups: Arc<GroupTable>,
        before: Option<&Self>,
    ) -> Self {
        let settings = Arc::new(settings);
        let snapshot = before.map(|before| &before.rows.snapshot);
        let snapshot = snapshot.filter(|snapshot| snapshot.lock().is_at(&settings.snapshot_file)).cloned();
        let writer = Writer { settings: Arc::clone(&settings), reader: Arc::clone(&reader) };
        let rows = Arc::new(KnownRows {
            table: CustomerTable::new(Format::Csv, seed, reader),
            groups,
            snapshot: snapshot.unwrap_or_else(|| Arc::new(Mutex::new(Snapshot::new(settings.snapshot_file.clone())))),
            reported_faults_hash: Mutex::default(),
        });
        let restored = rows.restore();
        let wanted = Arc::<ReadRequests>::default();
        let hint = Arc::clone(&wanted.hint);
        let source =
            Database { settings, rows: Arc::clone(&rows), wanted: Arc::clone(&wanted), session: AsyncMutex::default() };
        let refresher = Refresher::new(source, hint);
        if let Some(at) = restored {
            refresher.resume(rows.table.credentials(), at);
        }
        Self { rows, wanted, refresher: Arc::new(refresher), writer }
    }

    /// The customers; `None` until they are read for the first time.
    pub fn table(&self) -> Option<&CustomerTable> {
        self.refresher.status().fresh_at.map(|_| &self.rows.table)
    }

    /// The background reader of the rows.
    pub const fn refresher(&self) -> &Arc<Refresher> {
        &self.refresher
    }

    /// Builds the index that makes [`CustomerTable::named`] fast enough for requests.
    pub(super) fn index_names(&self) {
        self.rows.table.index_names();
    }

    /// The number of rows that are left out because they are invalid.
    pub fn refused(&self) -> usize {
        self.rows.table.refused()
    }

    /// Whether the configuration allows changes of the rows.
    pub(super) fn is_writable(&self) -> bool {
        self.writer.settings.writes.is_some()
    }

    /// The current rows of a customer in the database.
    pub(super) async fn rows_of(&self, customer: &str, groups: &GroupTable) -> Result<Vec<RowText>, ChangeError> {
        self.writer.rows(customer, groups).await
    }

    /// Changes a customer in the database, whose rows may belong to `groups`.
    pub(super) async fn change(
        &self,
        customer: &str,
        change: &Change,
        groups: &GroupTable,
    ) -> Result<ChangedRows, ChangeError> {
        let statements = self.writer.settings.writes.as_ref().ok_or(ChangeError::NotWritable)?;
        self.writer.change(statements, (customer, change), groups).await
    }

    /// Has the rows read again, and waits for a while until the changed ones are in force here. Returns whether they are.
    pub(super) async fn wait_until_in_force(&self, changed: &ChangedRows, groups: &GroupTable) -> bool {
        let Ok(wanted) = table_of(&changed.after, &self.writer.reader, groups) else { return false };
        let gone: Vec<&RowText> = changed.deleted().collect();
        // only a read of all rows finds removed rows
        self.wanted.full.fetch_or(!gone.is_empty(), Ordering::Relaxed);
        let table = &self.rows.table;
        let is_in_force = || {
            let is_same = |row: &RowText| table.written(row.get("credential")) == wanted.written(row.get("credential"));
            changed.after.iter().all(is_same) && gone.iter().all(|row| table.written(row.get("credential")).is_none())
        };
        self.refresher.refresh_until(PATIENCE.min(self.writer.settings.timeout), is_in_force).await
    }
}

// === impl KnownRows ===

impl KnownRows {
    /// Merges the rows of the snapshot. Returns when it was written; `None` if no snapshot can be used.
    fn restore(&self) -> Option<Nanos> {
        let snapshot = self.snapshot.lock();
        let restored = snapshot.read().and_then(|kept| {
            let Some(SnapshotContent { text, at }) = kept else { return Ok(None) };
            Ok(self.merge(&text, RowSet::Log)?.map(|_| at))
        });
        restored.unwrap_or_else(|reason| {
            let file = snapshot.path();
            tracing::error!(file, reason, "cannot use the snapshot of customers; waiting for PostgreSQL");
            None
        })
    }

    /// Merges rows of the database, and writes them to the snapshot. `None` if all rows have to be read instead.
    fn take(&self, copied: &CopiedRows, header: usize, rows: RowSet) -> Result<Option<Changes>, String> {
        let mut snapshot = self.snapshot.lock();
        let changes = self.merge(&copied.text, rows)?;
        match (changes, rows) {
            (None, _) => {}
            (Some(_), RowSet::Changed) => snapshot.add(copied.text.get(header..).unwrap_or_default()),
            (Some(_), RowSet::All | RowSet::Log) => snapshot.replace(&copied.text),
        }
        Ok(changes)
    }

    fn merge(&self, text: &str, rows: RowSet) -> Result<Option<Changes>, String> {
        let (changes, faults) = match self.table.merge(text, rows, &self.groups) {
            Ok(merged) => merged,
            Err(MergeError::Contradiction) => return Ok(None),
            Err(MergeError::Header(Faults { faults, .. })) => {
                return Err(faults.first().map(|(_, fault)| fault.to_string()).unwrap_or_default());
            }
        };
        let lines: BTreeSet<u64> = faults.faults.iter().map(|(line, _)| *line).collect();
        self.log_invalid_rows(text, &faults, lines.len().saturating_add(faults.more));
        Ok(Some(changes))
    }

    /// Logs the customers of invalid rows, unless the last log messages were the same.
    fn log_invalid_rows(&self, text: &str, faults: &Faults, count: usize) {
        let reported = faults.faults.iter().take(MAX_REPORTED_FAULTS);
        let reported: Vec<_> = reported.map(|(line, fault)| (customer_on(text, *line), described(fault))).collect();
        let hash = files::hash(format!("{count} {reported:?}").as_bytes());
        if count == 0 || std::mem::replace(&mut *self.reported_faults_hash.lock(), hash) == hash {
            return;
        }
        for (customer, reason) in reported {
            tracing::warn!(
                customer,
                reason,
                "an invalid row of the directory is ignored; the former row of its credential stays in force"
            );
        }
        tracing::warn!(rows = count, "invalid rows of the directory are ignored");
    }
}

/// The name of the customer on a line that is not the header.
fn customer_on(text: &str, line: u64) -> String {
    let position = usize::try_from(line).unwrap_or(usize::MAX).saturating_sub(1);
    let [header, row] = [0, position].map(|position| fields(text.lines().nth(position).unwrap_or_default()));
    let column = header.iter().position(|name| name == "customer");
    let name = column.and_then(|column| row.get(column)).unwrap_or_default();
    if is_name(name) { name.to_owned() } else { format!("(in row {position})") }
}

/// The message of a row's fault, without line numbers, which mean nothing for a database.
fn described(fault: &Fault) -> String {
    match fault {
        Fault::RepeatedCredential(_) => "the credential stands in another row, too".to_owned(),
        Fault::Disagrees { what, .. } => format!("the customer has another {what} in another row"),
        Fault::GroupsDisagree { .. } => {
            "the customer has another plan in another row, because a row without a plan has that of its groups"
                .to_owned()
        }
        fault => fault.to_string(),
    }
}

// === the source ===

struct Database {
    settings: Arc<PostgresSettings>,
    rows: Arc<KnownRows>,
    wanted: Arc<ReadRequests>,
    session: AsyncMutex<Option<Session>>,
}

#[async_trait]
impl Source for Database {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn limits(&self) -> RefreshLimits {
        RefreshLimits { min_interval: MIN_INTERVAL, deadline: DEADLINE }
    }

    async fn refresh(&self, clock: &Arc<dyn Clock>) -> Result<Refreshed, String> {
        let url = self.settings.url()?;
        let mut kept = self.session.lock().await;
        let mut session = match kept.take().filter(|session| session.is_good(&url)) {
            Some(session) => session,
            None => Session::open(&self.settings, &url, self.rows.groups.levels(), &self.wanted).await?,
        };
        let began = clock.now();
        let wants_all = self.wanted.full.swap(false, Ordering::Relaxed) || session.full_due <= began;
        let changed = if wants_all { None } else { session.read_changed(self.settings.timeout, &**clock).await? };
        let is_taken = match changed {
            Some(changed) => changed.count == 0 || self.take(changed, &session, RowSet::Changed).await?,
            None => false,
        };
        if !is_taken {
            let all = session.read_all(self.settings.timeout, &**clock).await?;
            self.take(all, &session, RowSet::All).await?;
            session.full_due = began.saturating_add(self.settings.full_every);
        }
        let until_full = session.full_due.saturating_sub(clock.now());
        let next = if session.has_changes() { self.settings.interval.min(until_full) } else { until_full };
        *kept = Some(session);
        Ok(Refreshed { entries: self.rows.table.credentials(), next })
    }
}

impl Database {
    /// Merges rows. Returns false if all rows have to be read instead.
    async fn take(&self, copied: CopiedRows, session: &Session, rows: RowSet) -> Result<bool, String> {
        let (known, header) = (Arc::clone(&self.rows), session.header().len());
        let taken = spawn_blocking(move || known.take(&copied, header, rows)).await;
        let Some(Changes { added, changed, removed }) = taken.map_err(|_| "its rows cannot be read")?? else {
            return Ok(false);
        };
        if added.saturating_add(changed).saturating_add(removed) > 0 {
            tracing::info!(added, changed, removed, "directory of customers updated");
        }
        Ok(true)
    }
}
