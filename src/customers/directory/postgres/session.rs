//! A connection to a database, and the state that belongs to it.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::StreamExt;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::{AsyncMessage, Client, Config, Error, Notification};

use super::PostgresSettings;
use super::statement::{Column, Statements, bare, quoted};
use super::tls::DatabaseTls;
use super::url::DatabaseUrl;
use super::watermark::{ReadPass, Watermark};
use crate::clock::Clock;
use crate::files;
use crate::units::Nanos;

/// The maximum size of a query's result, in bytes of CSV.
pub(super) const MAX_ROWS: usize = 1 << 30;
/// The payload of a notification that triggers a read of all rows.
const FULL: &str = "full";
/// Makes the server cancel work when its client has disconnected. Servers before version 14 do not support it.
const WATCH_CLIENT: &str = "SET client_connection_check_interval = '2s'";
const READ_ONLY: &str = "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY";

/// Requests for a read before the next one is due.
#[derive(Debug, Default)]
pub(super) struct ReadRequests {
    /// Notified when there may be changes.
    pub(super) hint: Arc<Notify>,
    /// Whether the next read has to read all rows.
    pub(super) full: AtomicBool,
}

/// A connection, which closes when this is dropped.
pub(super) struct Session {
    client: Client,
    _driver: Driver,
    statements: Statements,
    /// The hash of the URL that the connection was opened with.
    url: u128,
    mark: Watermark,
    /// When the next read of all rows is due.
    pub(super) full_due: Nanos,
}

/// The task that receives messages of the server; it ends when this is dropped.
pub(super) struct Driver {
    task: JoinHandle<()>,
    reconnects: Arc<AtomicBool>,
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.reconnects.store(false, Ordering::Relaxed);
        self.task.abort();
    }
}

/// Triggers a read of the database when a connection in use is lost, even by the end of the runtime that it was opened on.
struct ReconnectOnDrop {
    wanted: Arc<ReadRequests>,
    reconnects: Arc<AtomicBool>,
}

impl Drop for ReconnectOnDrop {
    fn drop(&mut self) {
        if self.reconnects.load(Ordering::Relaxed) {
            self.wanted.hint.notify_one();
        }
    }
}

pub(super) struct CopiedRows {
    /// The rows, with the header line.
    pub(super) text: String,
    /// The number of rows.
    pub(super) count: usize,
}

impl Session {
    /// Connects to the first server of the URL that answers. `levels` are the levels of groups.
    pub(super) async fn open(
        settings: &PostgresSettings,
        url: &str,
        levels: &[Arc<str>],
        wanted: &Arc<ReadRequests>,
    ) -> Result<Self, String> {
        let prepare = |config| Self::prepare(settings, config, levels, wanted);
        let (client, driver, statements) = connect_any(settings, url, settings.timeout, prepare).await?;
        Ok(Self {
            client,
            _driver: driver,
            statements,
            url: files::hash(url.as_bytes()),
            mark: Watermark::default(),
            full_due: Nanos::ZERO,
        })
    }

    async fn prepare(
        settings: &PostgresSettings,
        config: Config,
        levels: &[Arc<str>],
        wanted: &Arc<ReadRequests>,
    ) -> Result<(Client, Driver, Statements), String> {
        let reconnects = Arc::<AtomicBool>::default();
        let ended = ReconnectOnDrop { wanted: Arc::clone(wanted), reconnects: Arc::clone(&reconnects) };
        let (client, driver) = connect(settings, &config, Arc::clone(&reconnects), move |notification| {
            ended.wanted.full.fetch_or(notification.payload() == FULL, Ordering::Relaxed);
            ended.wanted.hint.notify_one();
        })
        .await?;
        client.batch_execute(READ_ONLY).await.map_err(|error| described(&error))?;
        if let Some(channel) = &settings.channel
            && let Err(error) = client.batch_execute(&format!("LISTEN {}", quoted(channel))).await
        {
            let reason = described(&error);
            tracing::warn!(reason, "cannot listen for notifications of PostgreSQL; changes are found at the next poll");
        }
        let prepared = client.prepare(bare(&settings.query)).await.map_err(|error| described(&error))?;
        let columns: Vec<Column<'_>> =
            prepared.columns().iter().map(|column| (column.name(), column.type_())).collect();
        let statements = Statements::new(&settings.query, &columns, levels)?;
        // a connection that fails before this is retried after a pause
        reconnects.store(true, Ordering::Relaxed);
        Ok((client, driver, statements))
    }

    /// Whether the connection is open, and was opened with this URL.
    pub(super) fn is_good(&self, url: &str) -> bool {
        !self.client.is_closed() && self.url == files::hash(url.as_bytes())
    }

    /// Whether the query allows reading changed rows only.
    pub(super) const fn has_changes(&self) -> bool {
        self.statements.has_changes()
    }

    /// The header line, with the names of the columns.
    pub(super) fn header(&self) -> &str {
        &self.statements.header
    }

    /// Reads all rows. `patience` is the timeout for each message of the server.
    pub(super) async fn read_all(&mut self, patience: Nanos, clock: &dyn Clock) -> Result<CopiedRows, String> {
        self.mark = Watermark::default();
        self.copy(&self.statements.copy_all(), patience, clock).await
    }

    /// Reads the rows that changed since the last read; `None` if the query or the last read gave no time of change.
    pub(super) async fn read_changed(
        &mut self,
        patience: Nanos,
        clock: &dyn Clock,
    ) -> Result<Option<CopiedRows>, String> {
        match self.mark.since().and_then(|since| self.statements.copy_changed(since)) {
            Some(statement) => self.copy(&statement, patience, clock).await.map(Some),
            None => Ok(None),
        }
    }

    /// Copies the rows that the last read did not give.
    async fn copy(&mut self, statement: &str, patience: Nanos, clock: &dyn Clock) -> Result<CopiedRows, String> {
        let patience_ended = |_| format!("no answer within {patience}");
        let mut copied = CopiedRows { text: self.statements.header.clone(), count: 0 };
        let mut look = self.mark.begin_read(clock.now());
        let rows = timeout(patience.to_duration(), self.client.copy_out(statement)).await.map_err(patience_ended)?;
        let mut rows = pin!(rows.map_err(|error| described(&error))?);
        while let Some(row) = timeout(patience.to_duration(), rows.next()).await.map_err(patience_ended)? {
            copied.take(&row.map_err(|error| described(&error))?, &mut look)?;
        }
        look.end(clock.now());
        Ok(copied)
    }
}

impl CopiedRows {
    /// Takes a row, unless the last read gave the same one.
    fn take(&mut self, row: &[u8], look: &mut ReadPass<'_>) -> Result<(), String> {
        let row = str::from_utf8(row).map_err(|_| "its answer is not in UTF-8")?;
        // one message holds one row, and no row contains a line break
        let (changed, row) =
            row.split_once(',').filter(|(_, row)| row.ends_with('\n')).ok_or("its answer has no rows")?;
        if !look.record_row(changed.parse().ok(), row) {
            return Ok(());
        }
        if self.text.len().saturating_add(row.len()) > MAX_ROWS {
            return Err(format!("the query returns more than {} MiB", MAX_ROWS >> 20));
        }
        self.text.push_str(row);
        self.count = self.count.saturating_add(1);
        Ok(())
    }
}

/// Calls `open` for each server of the `url` until one is open within `patience`.
pub(super) async fn connect_any<T, F: Future<Output = Result<T, String>>>(
    settings: &PostgresSettings,
    url: &str,
    patience: Nanos,
    open: impl Fn(Config) -> F,
) -> Result<T, String> {
    let url = DatabaseUrl::parse(url).map_err(|bad| format!("the file of the URL {bad}"))?;
    let mut failures = Vec::new();
    for server in url.servers(settings.asks_for_tls, settings.timeout.to_duration()) {
        match timeout(patience.to_duration(), open(server)).await {
            Ok(Ok(opened)) => return Ok(opened),
            Ok(Err(failure)) => failures.push(failure),
            Err(_) => failures.push(format!("no answer within {patience}")),
        }
    }
    Err(failures.join("; "))
}

/// Connects to one server, and calls `notified` for its notifications. `reconnects` says whether the loss of the connection
/// triggers a read; dropping the driver sets it to false.
pub(super) async fn connect(
    settings: &PostgresSettings,
    config: &Config,
    reconnects: Arc<AtomicBool>,
    notified: impl Fn(&Notification) + Send + 'static,
) -> Result<(Client, Driver), String> {
    let tls = DatabaseTls::new(settings.tls.as_deref());
    let (client, mut connection) = config.connect(tls).await.map_err(|error| described(&error))?;
    let task = tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|task| connection.poll_message(task)).await {
            if let AsyncMessage::Notification(notification) = message {
                notified(&notification);
            }
        }
    });
    let driver = Driver { task, reconnects };
    drop(client.batch_execute(WATCH_CLIENT).await);
    Ok((client, driver))
}

/// An error as text without any content of rows. Errors in the query, the database name or the user keep the server's
/// message.
pub(super) fn described(error: &Error) -> String {
    match error.as_db_error() {
        Some(told) => {
            let code = told.code().code();
            match code.get(..2) {
                Some("42" | "28" | "3D") => format!("{} ({code})", told.message()),
                _ => format!("the server refuses with SQLSTATE {code}"),
            }
        }
        None => match std::error::Error::source(error) {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_connection_that_cannot_be_opened_triggers_no_read() {
        let settings = PostgresSettings {
            url_file: PathBuf::new(),
            query: "SELECT 1".to_owned(),
            snapshot_file: PathBuf::new(),
            interval: Nanos::SECOND,
            full_every: Nanos::SECOND,
            channel: None,
            timeout: Nanos::from_secs(30),
            tls: None,
            asks_for_tls: false,
            writes: None,
        };
        let wanted = Arc::<ReadRequests>::default();
        // nothing listens on a port that was just closed
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let opened = Session::open(&settings, &format!("postgres://gate@{closed}/customers"), &[], &wanted).await;
        assert!(opened.is_err());
        assert_eq!(wanted.hint.notified().now_or_never(), None);
    }
}
