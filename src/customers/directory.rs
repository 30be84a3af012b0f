//! The directory, which maps credentials to customers: from a file or a database that is read, or from a server that is
//! asked.
//!
//! It keeps credentials as keyed 128-bit hashes, so that no dump of the memory or of a state shows a credential.

use std::sync::Arc;

use tokio::task::spawn_blocking;

use crate::clock::Clock;
use crate::customers::Customer;
use crate::customers::source::Refresher;
use crate::units::Nanos;

mod builder;
mod credential;
mod csv;
mod edit;
mod fault;
mod file;
mod group_file;
mod groups;
mod index;
mod intern;
mod lookup;
mod postgres;
mod row;
mod table;
#[cfg(test)]
mod testing;
mod yaml;

pub(super) use credential::{Hashes, KeyedHash};
pub use credential::{field_of, is_key_id};
pub use edit::{Change, ChangeError, ChangedRows, NewKey, RowText, Terms};
pub use fault::{Fault, Faults};
pub use file::{FileDirectory, WritableFile};
pub(super) use groups::GroupNames;
pub use groups::GroupTable;
pub use index::Changes;
pub use lookup::{Contract, HttpService, LookupDirectory, LookupObserver, LookupSettings, LookupStatus, Server};
pub use postgres::{DatabaseUrl, MAX_URL, NamedStatement, PostgresDirectory, PostgresSettings, WriteStatements};
pub(super) use row::is_name;
pub use table::{CustomerTable, Format};

/// The directory of customers.
#[derive(Default)]
pub enum Directory {
    /// No directory: there are no customers.
    #[default]
    Empty,
    /// Customers from a file, which was read.
    File(FileDirectory),
    /// Customers from a Redis hash or an HTTP service, which is asked for each credential.
    Lookup(LookupDirectory),
    /// Customers from a PostgreSQL database, which is read in the background.
    Postgres(PostgresDirectory),
}

/// The error that the directory cannot tell now whose a credential is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the credential cannot be looked up at the moment")]
pub struct Unavailable;

impl Directory {
    /// The table of customers, if the directory lists them and has read them.
    pub fn table(&self) -> Option<&CustomerTable> {
        match self {
            Self::File(file) => Some(&file.table),
            Self::Postgres(database) => database.table(),
            Self::Empty | Self::Lookup(_) => None,
        }
    }

    /// Whether the directory asks an HTTP service.
    pub fn is_asked_over_http(&self) -> bool {
        matches!(self, Self::Lookup(server) if server.is_http())
    }

    /// Whether the directory can find customers: a database has been read, the other kinds are always ready.
    pub fn is_ready(&self) -> bool {
        !matches!(self, Self::Postgres(database) if database.table().is_none())
    }

    /// The background refresher of the directory, if it has one.
    pub const fn refresher(&self) -> Option<&Arc<Refresher>> {
        match self {
            Self::Postgres(database) => Some(database.refresher()),
            Self::Empty | Self::File(_) | Self::Lookup(_) => None,
        }
    }

    /// The number of credentials; `None` if it is unknown.
    pub fn credentials(&self) -> Option<usize> {
        match self {
            Self::Empty => Some(0),
            listed => listed.table().map(CustomerTable::credentials),
        }
    }

    /// The number of the database's rows that are left out because they are invalid.
    pub fn refused_rows(&self) -> usize {
        match self {
            Self::Postgres(database) => database.refused(),
            Self::Empty | Self::File(_) | Self::Lookup(_) => 0,
        }
    }

    /// Builds the index that makes [`Directory::named`] fast enough for requests.
    pub fn index_names(&self) {
        match self {
            Self::File(file) => file.table.index_names(),
            Self::Postgres(database) => database.index_names(),
            Self::Empty | Self::Lookup(_) => {}
        }
    }

    /// Whether the gateway may change its rows.
    pub fn is_writable(&self) -> bool {
        match self {
            Self::File(file) => file.writable.is_some(),
            Self::Postgres(database) => database.is_writable(),
            Self::Empty | Self::Lookup(_) => false,
        }
    }

    /// The current rows of a customer in the file or database; empty if there is no such customer. `groups` are the groups
    /// that it may belong to.
    pub async fn rows(&self, customer: &str, groups: &Arc<GroupTable>) -> Result<Vec<RowText>, ChangeError> {
        match self {
            Self::Postgres(database) if database.is_writable() => database.rows_of(customer, groups).await,
            Self::File(FileDirectory { writable: Some(file), .. }) => {
                let (file, customer, groups) = (file.clone(), customer.to_owned(), Arc::clone(groups));
                unblocked(move || file.rows(&customer, &groups)).await
            }
            Self::Empty | Self::Lookup(_) | Self::File(_) | Self::Postgres(_) => Err(ChangeError::NotWritable),
        }
    }

    /// Changes a customer, whose rows may belong to `groups`. The caller makes one change at a time, and has the directory
    /// read again.
    pub async fn change(
        &self,
        customer: &str,
        change: Change,
        groups: &Arc<GroupTable>,
    ) -> Result<ChangedRows, ChangeError> {
        match self {
            Self::Postgres(database) => database.change(customer, &change, groups).await,
            Self::File(FileDirectory { writable: Some(file), .. }) => {
                let (file, customer, groups) = (file.clone(), customer.to_owned(), Arc::clone(groups));
                unblocked(move || file.change(&customer, &change, &groups)).await
            }
            Self::Empty | Self::Lookup(_) | Self::File(_) => Err(ChangeError::NotWritable),
        }
    }

    /// Has changed rows of a database read, and waits for a while until they are in force; returns whether they are. `None`
    /// for a file, which a reload reads.
    pub async fn wait_until_in_force(&self, changed: &ChangedRows, groups: &GroupTable) -> Option<bool> {
        match self {
            Self::Postgres(database) => Some(database.wait_until_in_force(changed, groups).await),
            Self::Empty | Self::Lookup(_) | Self::File(_) => None,
        }
    }

    /// The customer with this name; `None` if there is none, or if the directory does not know names.
    ///
    /// Errors: the customers have not been read yet.
    pub fn named(&self, name: &str) -> Result<Option<Arc<Customer>>, Unavailable> {
        match self.is_ready() {
            true => Ok(self.table().and_then(|table| table.named(name))),
            false => Err(Unavailable),
        }
    }

    /// The result of [`Directory::find`], if it is known without asking a server.
    pub fn find_cached(&self, credential: &[u8], now: Nanos) -> Option<Result<Option<Arc<Customer>>, Unavailable>> {
        match self {
            Self::Lookup(server) => server.find_cached(credential, now),
            Self::Empty | Self::File(_) | Self::Postgres(_) => Some(self.find_in_table(credential)),
        }
    }

    /// The customer with this credential; `None` if no customer has it.
    pub async fn find(&self, credential: &[u8], clock: &Arc<dyn Clock>) -> Result<Option<Arc<Customer>>, Unavailable> {
        match self {
            Self::Lookup(server) => server.find(credential, clock).await,
            Self::Empty | Self::File(_) | Self::Postgres(_) => self.find_in_table(credential),
        }
    }

    /// The same without asking a server.
    pub fn find_in_table(&self, credential: &[u8]) -> Result<Option<Arc<Customer>>, Unavailable> {
        match (self, self.table()) {
            (_, Some(table)) => Ok(table.find(credential)),
            (Self::Empty, None) => Ok(None),
            (_, None) => Err(Unavailable),
        }
    }
}

/// Runs `work` on a thread that may block.
async fn unblocked<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ChangeError> + Send + 'static,
) -> Result<T, ChangeError> {
    let failed = |_| ChangeError::Unavailable("changing the file failed, which is a bug in tollgate".to_owned());
    spawn_blocking(work).await.map_err(failed)?
}
