//! Changes of one customer in a database: in one transaction the gateway reads the rows with the operator's query, changes
//! them with the operator's statements, and reads them again. It commits only if the query then gives the requested rows.

use std::sync::Arc;

use tokio::time::timeout;
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Error, IsolationLevel, Transaction};

use super::super::edit::{Change, ChangeError, ChangedRows, RowText, csv_of, table_of};
use super::super::groups::GroupTable;
use super::super::table::CustomerTable;
use super::PostgresSettings;
use super::parameters::{NamedStatement, TextValue};
use super::session::{Driver, connect, connect_any, described};
use super::statement::{Column, Statements, bare, trimmed};
use crate::ruleset::overrides::OverridesReader;
use crate::units::Nanos;

/// The longest timeout of a change.
const MAX_TIMEOUT: Nanos = Nanos::from_secs(30);
/// SQLSTATE codes of conflicts with another transaction: serialization failure and deadlock.
const IN_THE_WAY: [&str; 2] = ["40001", "40P01"];

/// The operator's statements that change rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteStatements {
    /// Inserts a row, or replaces the row with the same credential.
    pub put: NamedStatement,
    /// Deletes the row of a credential.
    pub delete: NamedStatement,
}

/// The writer of rows. No `Debug`: its settings include client certificates.
pub(super) struct Writer {
    pub(super) settings: Arc<PostgresSettings>,
    pub(super) reader: Arc<dyn OverridesReader>,
}

impl Writer {
    /// The current rows of a customer, as the query gives them.
    pub(super) async fn rows(&self, customer: &str, groups: &GroupTable) -> Result<Vec<RowText>, ChangeError> {
        let (mut client, _driver) = self.open(TargetSessionAttrs::Any).await?;
        self.in_time(async {
            let transaction = client.build_transaction().read_only(true).start().await.map_err(failed)?;
            CustomerRows::prepare(&transaction, &self.settings.query, groups).await?.read(&transaction, customer).await
        })
        .await
    }

    /// Changes a customer with these statements, in one transaction.
    pub(super) async fn change(
        &self,
        statements: &WriteStatements,
        (customer, change): (&str, &Change),
        groups: &GroupTable,
    ) -> Result<ChangedRows, ChangeError> {
        let (mut client, _driver) = self.open(TargetSessionAttrs::ReadWrite).await?;
        let mut committing = None;
        let done = self.in_time(async {
            let level = IsolationLevel::Serializable;
            let transaction = client.build_transaction().isolation_level(level).start().await.map_err(failed)?;
            let rows = CustomerRows::prepare(&transaction, &self.settings.query, groups).await?;
            let before = rows.read(&transaction, customer).await?;
            let after = change.apply(customer, &before, groups.levels())?;
            let changed = ChangedRows { before, after };
            let wanted = table_of(&changed.after, &self.reader, groups)?;
            for row in changed.deleted() {
                run(&transaction, &statements.delete, row).await?;
            }
            for row in changed.put() {
                run(&transaction, &statements.put, row).await?;
            }
            let written = rows.read(&transaction, customer).await?;
            if !are_those(&written, &wanted, groups) {
                let message = "the database was left as it was: after `put` and `delete` of `customers.directory` the \
                     query does not return the requested rows";
                return Err(ChangeError::Conflict(message.to_owned()));
            }
            committing = Some((changed.clone(), wanted));
            transaction.commit().await.map_err(failed)?;
            Ok(changed)
        });
        match (done.await, committing) {
            // the answer to a commit can get lost: read the rows to find out
            (Err(ChangeError::Unavailable(reason)), Some((changed, wanted))) => {
                match self.rows(customer, groups).await {
                    Ok(rows) if are_those(&rows, &wanted, groups) => Ok(changed),
                    Ok(_) | Err(_) => Err(ChangeError::Unknown(reason)),
                }
            }
            (done, _) => done,
        }
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T, ChangeError>>) -> Result<T, ChangeError> {
        let patience = self.patience();
        let silent = |_| ChangeError::Unavailable(format!("the database does not answer within {patience}"));
        timeout(patience.to_duration(), work).await.map_err(silent)?
    }

    /// The timeout of a connection, and of the work on it.
    fn patience(&self) -> Nanos {
        self.settings.timeout.min(MAX_TIMEOUT)
    }

    /// Connects to the first server of the URL that answers; with `ReadWrite`, to the first that also accepts writes.
    async fn open(&self, target: TargetSessionAttrs) -> Result<(Client, Driver), ChangeError> {
        let unavailable = |reason| ChangeError::Unavailable(format!("cannot query the database: {reason}"));
        let url = self.settings.url().map_err(unavailable)?;
        let open = async |mut config: Config| {
            if target == TargetSessionAttrs::ReadWrite {
                config.target_session_attrs(target);
            }
            connect(&self.settings, &config, Arc::default(), |_| ()).await
        };
        connect_any(&self.settings, &url, self.patience(), open).await.map_err(unavailable)
    }
}

/// Whether these rows are the `wanted` ones.
fn are_those(rows: &[RowText], wanted: &CustomerTable, groups: &GroupTable) -> bool {
    let differences = wanted.update(&csv_of(rows, groups), groups);
    differences.is_ok_and(|differences| differences == super::Changes::default())
}

async fn run(transaction: &Transaction<'_>, statement: &NamedStatement, row: &RowText) -> Result<(), ChangeError> {
    let values = statement.values(row);
    let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|value| value as &(dyn ToSql + Sync)).collect();
    transaction.execute(bare(&statement.sql), &values).await.map_err(failed)?;
    Ok(())
}

/// The query for the rows of one customer.
struct CustomerRows {
    statement: tokio_postgres::Statement,
    names: Vec<String>,
}

impl CustomerRows {
    async fn prepare(transaction: &Transaction<'_>, query: &str, groups: &GroupTable) -> Result<Self, ChangeError> {
        let prepared = transaction.prepare(bare(query)).await.map_err(failed)?;
        let columns: Vec<Column<'_>> =
            prepared.columns().iter().map(|column| (column.name(), column.type_())).collect();
        let statements = Statements::new(query, &columns, groups.levels()).map_err(ChangeError::Conflict)?;
        let statement = format!("{} WHERE {} = $1", statements.all, trimmed("rows.customer"));
        let statement = transaction.prepare(&statement).await.map_err(failed)?;
        let is_column = |name: &&str| *name != super::statement::UPDATED_AT;
        let names = columns.iter().map(|(name, _)| *name).filter(is_column).map(str::to_owned).collect();
        Ok(Self { statement, names })
    }

    async fn read(&self, transaction: &Transaction<'_>, customer: &str) -> Result<Vec<RowText>, ChangeError> {
        let rows = transaction.query(&self.statement, &[&TextValue::of(customer)]).await.map_err(failed)?;
        // the first column is the time of the row's last change
        let text =
            |row: &tokio_postgres::Row, position: usize| row.try_get::<_, Option<String>>(position.saturating_add(1));
        let read = |row: &tokio_postgres::Row| {
            let texts = self.names.iter().enumerate().map(|(position, name)| Ok((name.as_str(), text(row, position)?)));
            let texts: Vec<_> = texts.collect::<Result<_, Error>>().map_err(failed)?;
            Ok(texts.into_iter().map(|(name, text)| (name, text.unwrap_or_default())).collect())
        };
        rows.iter().map(read).collect()
    }
}

fn failed(error: Error) -> ChangeError {
    let code = error.as_db_error().map(|told| told.code().code().to_owned());
    match code.as_deref() {
        Some(code) if IN_THE_WAY.contains(&code) => {
            ChangeError::Conflict("another client is changing the same rows; try again".to_owned())
        }
        // the configuration or the caller's values do not fit the table
        Some(code) if ["22", "23", "42"].iter().any(|class| code.starts_with(class)) => ChangeError::Conflict(format!(
            "the database refuses the query or the statements of `customers.directory`: {}",
            described(&error)
        )),
        _ => ChangeError::Unavailable(format!("cannot query the database: {}", described(&error))),
    }
}
