//! The identity of a caller.

use std::sync::Arc;

use crate::customers::Customer;
use crate::customers::jwt::Token;
use crate::ruleset::PlanId;
use crate::ruleset::key::Claims;

/// The identity of a caller.
#[derive(Clone)]
pub enum Identity {
    /// A caller without a credential.
    Anonymous,
    /// A customer whom the directory knows.
    Directory(Arc<Customer>),
    /// A caller with a token.
    Jwt {
        /// The token.
        token: Arc<Token>,
        /// The directory's entry for the name in the token; without one, the customer by the token alone.
        customer: Arc<Customer>,
    },
}

impl Identity {
    /// The caller with `token`; `listed` is the directory's entry for it, if there is one, and takes precedence over the
    /// token. The groups in the token apply unless this entry names groups. `proxy_plan` is the plan that a trusted proxy
    /// names, which a token needs if it has none. `None` if the caller has no plan.
    pub fn of_token(
        token: Arc<Token>,
        listed: Option<Arc<Customer>>,
        proxy_plan: impl FnOnce() -> Option<PlanId>,
    ) -> Option<Self> {
        let customer = match (listed, &token.groups) {
            (None, _) => token.customer.clone().or_else(|| Some(token.customer_on(proxy_plan()?)))?,
            (Some(listed), Some(groups)) if listed.groups.is_none() => {
                let suspended = listed.suspended || groups.suspended();
                Arc::new(Customer { groups: Some(Arc::clone(groups)), suspended, ..(*listed).clone() })
            }
            (Some(listed), _) => listed,
        };
        Some(Self::Jwt { token, customer })
    }

    /// The customer.
    pub fn customer(&self) -> Option<&Arc<Customer>> {
        match self {
            Self::Anonymous => None,
            Self::Directory(customer) | Self::Jwt { customer, .. } => Some(customer),
        }
    }

    /// The claims of the token.
    pub fn claims(&self) -> Option<&dyn Claims> {
        match self {
            Self::Anonymous | Self::Directory(_) => None,
            Self::Jwt { token, .. } => Some(&token.claims),
        }
    }
}
