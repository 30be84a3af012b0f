//! Customers, and the directory that maps credentials to them.

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
pub use jwt::{TokenFault, TokenVerifier};

/// A customer, identified by one or more credentials.
#[derive(Clone, Debug, PartialEq)]
pub struct Customer {
    /// The name in the directory, which is the key of limits per customer.
    pub name: Arc<str>,
    /// The customer's plan.
    pub plan: PlanId,
    /// The customer's own settings, which take precedence over those of its plan.
    pub own: Option<Arc<Overrides>>,
    /// The groups that the customer belongs to.
    pub groups: Option<Arc<Groups>>,
    /// The time, since 1970, at which the credential expires.
    pub valid_until: Option<Nanos>,
    /// Whether the customer, or one of its groups, is suspended.
    pub suspended: bool,
}

impl Customer {
    /// Whether the credential has not expired at `now`, a time since 1970.
    pub fn is_valid_at(&self, now: Nanos) -> bool {
        self.valid_until.is_none_or(|end| end > now)
    }

    /// The parts of the customer that limits use.
    pub fn known(&self) -> KnownCaller<'_> {
        KnownCaller { name: &self.name, plan: self.plan, own: self.own.as_deref(), groups: self.groups.as_deref() }
    }
}
