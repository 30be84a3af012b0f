//! Who was identified.

use std::sync::Arc;

use crate::customers::Customer;
use crate::customers::jwt::Token;
use crate::ruleset::key::Claims;

/// Who is calling.
#[derive(Clone, Debug)]
pub enum Identity {
    /// Somebody without a credential.
    Anonymous,
    /// Somebody whom the directory knows.
    Directory(Arc<Customer>),
    /// Somebody with a token.
    Jwt {
        /// The token.
        token: Arc<Token>,
        /// What the directory has for the name in the token. It goes before what the token says.
        listed: Option<Arc<Customer>>,
    },
}

impl Identity {
    /// Somebody with a token, whom the directory has as `listed` if it lists them. Groups of the token stay where the
    /// directory names none.
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

    /// What the token says.
    pub fn claims(&self) -> Option<&dyn Claims> {
        match self {
            Self::Anonymous | Self::Directory(_) => None,
            Self::Jwt { token, .. } => Some(&token.claims),
        }
    }
}
