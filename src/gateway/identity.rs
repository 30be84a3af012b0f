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
    Jwt(Arc<Token>),
}

impl Identity {
    /// The customer.
    pub fn customer(&self) -> Option<&Arc<Customer>> {
        match self {
            Self::Anonymous => None,
            Self::Directory(customer) => Some(customer),
            Self::Jwt(token) => Some(&token.customer),
        }
    }

    /// What the token says.
    pub fn claims(&self) -> Option<&dyn Claims> {
        match self {
            Self::Anonymous | Self::Directory(_) => None,
            Self::Jwt(token) => Some(&token.claims),
        }
    }
}
