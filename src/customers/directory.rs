//! The directory: credential to customer, from a file or a database that is read, or from a server that is asked.
//!
//! Credentials are kept as keyed 128-bit hashes, so that no dump of the memory or of a state shows one.

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

pub use credential::{field_of, is_key_id};
pub use edit::{Change, ChangeError, Changed, NewKey, RowText, Terms};
pub use fault::{Fault, Faults};
pub use file::{FileDirectory, WritableFile};
pub(super) use groups::GroupNames;
pub use groups::GroupTable;
pub use index::Changes;
pub use lookup::{CallResult, Contract, HttpService, LookupDirectory, LookupTerms, Observer, Server};
pub use postgres::{DatabaseUrl, MAX_URL, NamedStatement, PostgresDirectory, PostgresTerms, WriteStatements};
pub(super) use row::is_name;
pub use table::{CustomerTable, Format};

/// Who the customers are.
#[derive(Debug, Default)]
pub enum Directory {
    /// Nobody is known.
    #[default]
    Nobody,
    /// They stand in a file, which was read.
    File(FileDirectory),
    /// They stand in a Redis hash, or a service over HTTP knows them. It is asked.
    Asked(LookupDirectory),
    /// They stand in a PostgreSQL database, which is read in the background.
    Postgres(PostgresDirectory),
}

/// Nobody can tell at the moment whose a credential is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nobody can tell at the moment whose the credential is")]
pub struct Unavailable;

impl Directory {
    /// The customers, where they are listed and were read.
    pub fn table(&self) -> Option<&CustomerTable> {
        match self {
            Self::File(file) => Some(&file.table),
            Self::Postgres(database) => database.table(),
            Self::Nobody | Self::Asked(_) => None,
        }
    }

    /// Whether it is known who the customers are, as far as that can be known before they come.
    pub fn is_ready(&self) -> bool {
        !matches!(self, Self::Postgres(database) if database.table().is_none())
    }

    /// What reads it in the background, if anything does.
    pub const fn refresher(&self) -> Option<&Arc<Refresher>> {
        match self {
            Self::Postgres(database) => Some(database.refresher()),
            Self::Nobody | Self::File(_) | Self::Asked(_) => None,
        }
    }

    /// How many credentials there are; `None` where that is not known.
    pub fn credentials(&self) -> Option<usize> {
        match self {
            Self::Nobody => Some(0),
            listed => listed.table().map(CustomerTable::credentials),
        }
    }

    /// How many rows of the database are left out because they are wrong.
    pub fn refused_rows(&self) -> usize {
        match self {
            Self::Postgres(database) => database.refused(),
            Self::Nobody | Self::File(_) | Self::Asked(_) => 0,
        }
    }

    /// Prepares [`Directory::named`] for requests, from here on.
    pub fn index_names(&self) {
        match self {
            Self::File(file) => file.table.index_names(),
            Self::Postgres(database) => database.index_names(),
            Self::Nobody | Self::Asked(_) => {}
        }
    }

    /// Whether its rows may be changed.
    pub fn is_writable(&self) -> bool {
        match self {
            Self::File(file) => file.writable.is_some(),
            Self::Postgres(database) => database.is_writable(),
            Self::Nobody | Self::Asked(_) => false,
        }
    }

    /// The rows of a customer as they stand where they may be changed; none where there is no such customer. `groups` are
    /// those that it may belong to.
    pub async fn rows(&self, customer: &str, groups: &Arc<GroupTable>) -> Result<Vec<RowText>, ChangeError> {
        match self {
            Self::Postgres(database) if database.is_writable() => database.rows_of(customer, groups).await,
            Self::File(FileDirectory { writable: Some(file), .. }) => {
                let (file, customer, groups) = (file.clone(), customer.to_owned(), Arc::clone(groups));
                unblocked(move || file.rows(&customer, &groups)).await
            }
            Self::Nobody | Self::Asked(_) | Self::File(_) | Self::Postgres(_) => Err(ChangeError::NotWritable),
        }
    }

    /// Changes a customer, whose rows may belong to `groups`. Who calls it has one change made at a time, and has the
    /// directory read anew.
    pub async fn change(
        &self,
        customer: &str,
        change: Change,
        groups: &Arc<GroupTable>,
    ) -> Result<Changed, ChangeError> {
        match self {
            Self::Postgres(database) => database.change(customer, &change, groups).await,
            Self::File(FileDirectory { writable: Some(file), .. }) => {
                let (file, customer, groups) = (file.clone(), customer.to_owned(), Arc::clone(groups));
                unblocked(move || file.change(&customer, &change, &groups)).await
            }
            Self::Nobody | Self::Asked(_) | Self::File(_) => Err(ChangeError::NotWritable),
        }
    }

    /// Has rows that were changed in a database read, and waits a while until they are in force; whether they are. `None`
    /// where they stand in a file, which a reload reads.
    pub async fn follow(&self, changed: &Changed, groups: &GroupTable) -> Option<bool> {
        match self {
            Self::Postgres(database) => Some(database.follow(changed, groups).await),
            Self::Nobody | Self::Asked(_) | Self::File(_) => None,
        }
    }

    /// The customer of this name; `None` where there is none, or customers are not known by name.
    ///
    /// Errors: nobody can tell before the customers were read.
    pub fn named(&self, name: &str) -> Result<Option<Arc<Customer>>, Unavailable> {
        match self.is_ready() {
            true => Ok(self.table().and_then(|table| table.named(name))),
            false => Err(Unavailable),
        }
    }

    /// The same as [`Directory::find`], where that is known without asking anybody.
    pub fn remembered(&self, credential: &[u8], now: Nanos) -> Option<Result<Option<Arc<Customer>>, Unavailable>> {
        match self {
            Self::Asked(server) => server.remembered(credential, now),
            Self::Nobody | Self::File(_) | Self::Postgres(_) => Some(self.listed(credential)),
        }
    }

    /// Whose credential this is; `None` if it is nobody's.
    pub async fn find(&self, credential: &[u8], clock: &Arc<dyn Clock>) -> Result<Option<Arc<Customer>>, Unavailable> {
        match self {
            Self::Asked(server) => server.find(credential, clock).await,
            Self::Nobody | Self::File(_) | Self::Postgres(_) => self.listed(credential),
        }
    }

    /// The same where nobody is to be asked.
    pub fn listed(&self, credential: &[u8]) -> Result<Option<Arc<Customer>>, Unavailable> {
        match (self, self.table()) {
            (_, Some(table)) => Ok(table.find(credential)),
            (Self::Nobody, None) => Ok(None),
            (_, None) => Err(Unavailable),
        }
    }
}

/// Has `work` done where it may block.
async fn unblocked<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ChangeError> + Send + 'static,
) -> Result<T, ChangeError> {
    let failed =
        |_| ChangeError::Unavailable("changing the file failed, which is a fault of tollgate's own".to_owned());
    spawn_blocking(work).await.map_err(failed)?
}
