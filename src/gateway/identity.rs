//! The identity of a caller.

use std::sync::Arc;

use crate::customers::Customer;
use crate::customers::jwt::Token;
use crate::ruleset::key::Claims;

/// The identity of a caller.
#[derive(Clone, Debug)]
pub enum Identity {
    /// A caller without a credential.
    Anonymous,
    /// A customer whom the directory knows.
    Directory(Arc<Customer>),
    /// A caller with a token.
    Jwt {
        /// The token.
        token: Arc<Token>,
        /// The directory's entry for the name in the token. It takes precedence over the token.
        listed: Option<Arc<Customer>>,
    },
}

impl Identity {
    /// The caller with `token`; `listed` is the directory's entry for it, if there is one. The groups in the token apply
    /// unless this entry names groups.
    pub fn of_token(token: Arc<Token>, listed: Option<Arc<Customer>>) -> Self {
        let groups = &token.customer.groups;
        let listed = listed.map(|listed| match (&listed.groups, groups) {
            (None, Some(_)) => Arc::new(Customer { groups: groups.clone(), ..(*listed).clone() }),
            _ => listed,
        });
        Self::Jwt { token, listed }
    }

    /// The customer.
    pub fn customer(&self) -> Option<&Arc<Customer>> {
        match self {
            Self::Anonymous => None,
            Self::Directory(customer) => Some(customer),
            Self::Jwt { token, listed } => listed.as_ref().or(Some(&token.customer)),
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
