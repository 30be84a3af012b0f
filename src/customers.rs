//! Who is calling: customers, and the directory that knows them by their credentials.

use std::sync::Arc;

use crate::ruleset::PlanId;
use crate::ruleset::charges::KnownCaller;
use crate::ruleset::groups::Groups;
use crate::ruleset::overrides::Overrides;
use crate::units::Nanos;

pub mod directory;
pub mod jwt;
pub mod source;

pub use directory::{Directory, Unavailable};
pub use jwt::{TokenFault, Tokens};

/// Somebody who is known by a credential, or by several.
#[derive(Clone, Debug, PartialEq)]
pub struct Customer {
    /// The name in the directory: what limits count by.
    pub name: Arc<str>,
    /// The customer's plan.
    pub plan: PlanId,
    /// What the customer has in place of what its plan has.
    pub own: Option<Arc<Overrides>>,
    /// The groups that the customer belongs to.
    pub groups: Option<Arc<Groups>>,
    /// From when on, since 1970, the credential is not valid any more.
    pub valid_until: Option<Nanos>,
    /// Whether the customer, or one of its groups, is kept out for now.
    pub suspended: bool,
}

impl Customer {
    /// What limits go by.
    pub fn known(&self) -> KnownCaller<'_> {
        KnownCaller { name: &self.name, plan: self.plan, own: self.own.as_deref(), groups: self.groups.as_deref() }
    }
}
