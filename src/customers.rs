//! Who is calling: customers, and the directory that knows them by their credentials.

use std::sync::Arc;

pub mod directory;

pub use directory::{Directory, Fault, Faults, Format};

/// Somebody who is known by a credential, or by several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Customer {
    /// The name in the directory: what limits count by.
    pub name: Arc<str>,
    /// The customer's plan, as a position in the configuration's list of plans.
    pub plan: usize,
}
