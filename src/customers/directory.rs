//! The directory: credential to customer, from a file, or from a server that is asked.
//!
//! Credentials are kept as keyed 128-bit hashes, so that no dump of the memory or of a state shows one.

use std::sync::Arc;

use crate::clock::Clock;
use crate::customers::Customer;
use crate::units::Nanos;

mod builder;
mod credential;
mod csv;
mod fault;
mod file;
mod group_file;
mod groups;
mod index;
mod intern;
mod lookup;
mod row;
mod yaml;

pub use fault::{Fault, Faults};
pub use file::{FileDirectory, Format};
pub(super) use groups::GroupNames;
pub use groups::GroupTable;
pub use index::Changes;
pub use lookup::{CallResult, Contract, HttpService, LookupDirectory, LookupTerms, Observer, Server};
pub(super) use row::is_name;

/// Who the customers are.
#[derive(Debug, Default)]
pub enum Directory {
    /// Nobody is known.
    #[default]
    Nobody,
    /// They stand in a file, which was read.
    File(Arc<FileDirectory>),
    /// They stand in a Redis hash, or a service over HTTP knows them. It is asked.
    Asked(LookupDirectory),
}

/// Nobody can tell at the moment whose a credential is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nobody can tell at the moment whose the credential is")]
pub struct Unavailable;

impl Directory {
    /// How many credentials there are; `None` where only the server knows.
    pub fn credentials(&self) -> Option<usize> {
        match self {
            Self::Nobody => Some(0),
            Self::File(file) => Some(file.credentials()),
            Self::Asked(_) => None,
        }
    }

    /// Prepares [`Directory::named`] for requests, from here on.
    pub fn index_names(&self) {
        if let Self::File(file) = self {
            file.index_names();
        }
    }

    /// The customer of this name; `None` where there is none, or customers are not known by name.
    pub fn named(&self, name: &str) -> Option<Arc<Customer>> {
        match self {
            Self::File(file) => file.named(name),
            Self::Nobody | Self::Asked(_) => None,
        }
    }

    /// The same as [`Directory::find`], where that is known without asking anybody.
    pub fn remembered(&self, credential: &[u8], now: Nanos) -> Option<Result<Option<Arc<Customer>>, Unavailable>> {
        match self {
            Self::Nobody => Some(Ok(None)),
            Self::File(file) => Some(Ok(file.find(credential))),
            Self::Asked(server) => server.remembered(credential, now),
        }
    }

    /// Whose credential this is; `None` if it is nobody's.
    pub async fn find(&self, credential: &[u8], clock: &Arc<dyn Clock>) -> Result<Option<Arc<Customer>>, Unavailable> {
        match self {
            Self::Nobody => Ok(None),
            Self::File(file) => Ok(file.find(credential)),
            Self::Asked(server) => server.find(credential, clock).await,
        }
    }
}
