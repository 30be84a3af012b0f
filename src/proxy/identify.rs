//! Who is calling: from the credential that a request carries to a customer.

use std::sync::Arc;

use http::{HeaderMap, header};

use crate::clock::Clock;
use crate::customers::{Customer, Directory, Unavailable};
use crate::proxy::respond::Answer;
use crate::ruleset::key::Facts;
use crate::ruleset::{CredentialSource, CustomerRules, UnknownCredential};

/// The customer whose credential a request carries; `None` for a caller without one.
pub async fn identify(
    rules: &CustomerRules,
    facts: &Facts<'_>,
    directory: &Directory,
    clock: &Arc<dyn Clock>,
) -> Result<Option<Arc<Customer>>, Answer> {
    let credential = rules.identify.iter().find_map(|source| credential(source, facts));
    let customer = match credential {
        Some(credential) => directory.find(credential, clock).await.map_err(|Unavailable| Answer::DirectoryAway)?,
        None => None,
    };
    match (credential, customer, rules.unknown, rules.anonymous) {
        (_, Some(customer), _, _) => admissible(customer, clock).map(Some),
        (Some(_), None, UnknownCredential::Deny, _) => Err(Answer::CredentialUnknown),
        (_, None, _, Some(_)) => Ok(None),
        (_, None, _, None) => Err(Answer::CredentialMissing),
    }
}

/// Refuses a customer whose credential has expired, or who is suspended.
fn admissible(customer: Arc<Customer>, clock: &Arc<dyn Clock>) -> Result<Arc<Customer>, Answer> {
    match customer.valid_until {
        Some(end) if end <= clock.now() => Err(Answer::CredentialExpired),
        _ if customer.suspended => Err(Answer::Suspended),
        _ => Ok(customer),
    }
}

fn credential<'f>(source: &CredentialSource, facts: &Facts<'f>) -> Option<&'f [u8]> {
    match source {
        CredentialSource::Header(name) => facts.headers.get(name).map(http::HeaderValue::as_bytes),
        CredentialSource::Bearer => bearer(facts.headers),
    }
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}
