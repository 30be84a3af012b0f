//! Identifies the caller: from the credential that a request carries to a customer.
//!
//! The gateway looks at the sources in their order, and the first one that is present is the credential. If several sources
//! read the same bearer token or header, its form decides: a value that is written like a JSON Web Token is one, whatever
//! the order; any other value is left to the other source.

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderName;

use crate::clock::{Clock, WorkerClock};
use crate::customers::jwt::{Token, looks_like_token};
use crate::customers::{Customer, Directory, TokenFault, TokenVerifier, Unavailable};
use crate::fields::Fields;
pub use crate::gateway::identity::Identity;
use crate::gateway::respond::Answer;
use crate::ruleset::key::{Facts, cookies, query_values};
use crate::ruleset::{CredentialSource, CustomerRules, Ruleset, UnknownCredential};
use crate::units::Nanos;

/// The means to identify callers.
#[derive(Clone, Copy)]
pub struct CredentialLookup<'a> {
    /// The directory of customers and their keys.
    pub directory: &'a Directory,
    /// The verifier of tokens; absent if no tokens are accepted.
    pub tokens: Option<&'a TokenVerifier>,
    /// The time, by which credentials expire.
    pub clock: &'a Arc<dyn Clock>,
}

/// Identifies the customer whose credential a request carries.
pub async fn identify(
    ruleset: &Ruleset,
    facts: &Facts<'_>,
    CredentialLookup { directory, tokens, clock }: CredentialLookup<'_>,
) -> Result<Identity, Answer> {
    let Some(rules) = &ruleset.customers else { return Ok(Identity::Anonymous) };
    let found = match credential(rules, facts)? {
        None => return anonymous(rules),
        Some((_, Credential::Key(key))) => {
            let found = directory.find(&key, clock).await.map_err(|Unavailable| Answer::DirectoryUnavailable);
            found.and_then(|customer| in_force(customer, clock.wall()))
        }
        Some((_, Credential::Token(token))) => match tokens {
            None => Err(Answer::CredentialUnknown),
            Some(tokens) => from_verified(tokens.find(&token, clock).await, directory, ruleset, facts),
        },
    };
    apply_unknown_rule(rules, found)
}

/// The result of [`identify`] at `time`, if it is known without a look-up: this asks no server and verifies no signature.
pub fn identify_cached(
    ruleset: &Ruleset,
    facts: &Facts<'_>,
    CredentialLookup { directory, tokens, .. }: CredentialLookup<'_>,
    time: &WorkerClock,
) -> Option<Result<Identity, Answer>> {
    let Some(rules) = &ruleset.customers else { return Some(Ok(Identity::Anonymous)) };
    let wall = time.wall();
    let found = match credential(rules, facts) {
        Err(answer) => return Some(Err(answer)),
        Ok(None) => return Some(anonymous(rules)),
        Ok(Some((_, Credential::Key(key)))) => {
            let found = directory.find_cached(&key, time.now())?.map_err(|Unavailable| Answer::DirectoryUnavailable);
            found.and_then(|customer| in_force(customer, wall))
        }
        Ok(Some((_, Credential::Token(token)))) => match tokens {
            None => Err(Answer::CredentialUnknown),
            Some(tokens) => from_verified(tokens.find_cached(&token, wall)?, directory, ruleset, facts),
        },
    };
    Some(apply_unknown_rule(rules, found))
}

/// The same as [`identify`] for a recorded request, whose time was `now`: this asks no server.
pub fn identify_recorded(
    ruleset: &Ruleset,
    facts: &Facts<'_>,
    directory: &Directory,
    tokens: Option<&TokenVerifier>,
    now: Nanos,
) -> Result<Identity, Answer> {
    let Some(rules) = &ruleset.customers else { return Ok(Identity::Anonymous) };
    let found = match credential(rules, facts)? {
        None => return anonymous(rules),
        Some((_, Credential::Key(key))) => {
            let found = directory.find_in_table(&key).map_err(|Unavailable| Answer::DirectoryUnavailable);
            found.and_then(|customer| in_force(customer, now))
        }
        Some((_, Credential::Token(token))) => match tokens {
            None => Err(Answer::CredentialUnknown),
            Some(tokens) => from_verified(tokens.verify(&token, now), directory, ruleset, facts),
        },
    };
    apply_unknown_rule(rules, found)
}

/// Applies the rule for unknown credentials to the result of a look-up.
pub fn apply_unknown_rule(rules: &CustomerRules, found: Result<Identity, Answer>) -> Result<Identity, Answer> {
    match found {
        // an unknown credential; one that was valid once and has ended stays refused
        Err(Answer::CredentialUnknown | Answer::TokenRefused(TokenFault::Unverified))
            if rules.unknown == UnknownCredential::Anonymous =>
        {
            anonymous(rules)
        }
        found => found,
    }
}

fn anonymous(rules: &CustomerRules) -> Result<Identity, Answer> {
    rules.anonymous.map(|_| Identity::Anonymous).ok_or(Answer::CredentialMissing)
}

/// The customer of a credential, if the directory has one that is not suspended and whose credential has not expired.
fn in_force(customer: Option<Arc<Customer>>, now: Nanos) -> Result<Identity, Answer> {
    let customer = customer.ok_or(Answer::CredentialUnknown)?;
    if !customer.is_valid_at(now) {
        Err(Answer::CredentialExpired(Arc::clone(&customer.name)))
    } else if customer.suspended {
        Err(Answer::Suspended(Arc::clone(&customer.name)))
    } else {
        Ok(Identity::Directory(customer))
    }
}

/// The customer that a token names. If the directory lists this customer, its entry takes precedence over the token.
fn from_verified(
    token: Result<Arc<Token>, TokenFault>,
    directory: &Directory,
    ruleset: &Ruleset,
    facts: &Facts<'_>,
) -> Result<Identity, Answer> {
    let token = token.map_err(|fault| match fault {
        TokenFault::WithoutKeys => Answer::DirectoryUnavailable,
        fault => Answer::TokenRefused(fault),
    })?;
    let listed = directory.named(&token.name).map_err(|Unavailable| Answer::DirectoryUnavailable)?;
    let identity = Identity::of_token(token, listed, || ruleset.proxy_plan(facts));
    let identity = identity.ok_or(Answer::TokenRefused(TokenFault::WithoutPlan))?;
    match identity.customer().filter(|customer| customer.suspended) {
        Some(customer) => Err(Answer::Suspended(Arc::clone(&customer.name))),
        None => Ok(identity),
    }
}

/// The credential that a request carries. No `Debug`: it is a secret.
pub(super) enum Credential<'f> {
    /// A key: the directory knows its customer.
    Key(Cow<'f, [u8]>),
    /// A token: it names its customer itself.
    Token(Cow<'f, [u8]>),
}

/// The first credential that is present, and its source.
pub(super) fn credential<'r, 'f>(
    rules: &'r CustomerRules,
    facts: &Facts<'f>,
) -> Result<Option<(&'r CredentialSource, Credential<'f>)>, Answer> {
    let jwt = rules.jwt();
    let shared = jwt.is_some_and(|jwt| rules.identify.iter().any(|source| jwt.shares_place_with(source)));
    for source in &rules.identify {
        let Some(value) = value(source, facts)? else { continue };
        let credential = match source {
            CredentialSource::Jwt(_) if shared && !looks_like_token(&value) => continue,
            CredentialSource::Jwt(_) => Credential::Token(value),
            other if jwt.is_some_and(|jwt| jwt.shares_place_with(other)) && looks_like_token(&value) => {
                Credential::Token(value)
            }
            _ => Credential::Key(value),
        };
        return Ok(Some((source, credential)));
    }
    Ok(None)
}

/// The value at one source. A repeated value is refused: the upstream might use the other one.
fn value<'f>(source: &CredentialSource, facts: &Facts<'f>) -> Result<Option<Cow<'f, [u8]>>, Answer> {
    match source {
        CredentialSource::Header(name) => header(facts.headers, name),
        CredentialSource::Query(name) => only(query_values(facts.query, name).map(Cow::Owned)),
        CredentialSource::Cookie(name) => only(cookies(facts.headers, name).map(Cow::Borrowed)),
        CredentialSource::Bearer => authorization(facts.headers, b"bearer "),
        CredentialSource::ClientCertificate => Ok(facts.certificate.map(|name| Cow::Borrowed(name.as_bytes()))),
        CredentialSource::Basic => {
            Ok(authorization(facts.headers, b"basic ")?.map(|encoded| Cow::Owned(basic(&encoded))))
        }
        CredentialSource::Jwt(rules) => match &rules.header {
            Some(name) => header(facts.headers, name),
            None => authorization(facts.headers, b"bearer "),
        },
    }
}

fn only<T>(mut values: impl Iterator<Item = T>) -> Result<Option<T>, Answer> {
    match (values.next(), values.next()) {
        (_, Some(_)) => Err(Answer::CredentialRepeated),
        (first, None) => Ok(first),
    }
}

fn header<'f>(headers: &'f Fields, name: &HeaderName) -> Result<Option<Cow<'f, [u8]>>, Answer> {
    only(headers.get_all(name.as_str()).map(Cow::Borrowed))
}

/// The rest of the `authorization` field after `scheme` (in lower case, with its space), if the field has that scheme.
fn authorization<'f>(headers: &'f Fields, scheme: &[u8]) -> Result<Option<Cow<'f, [u8]>>, Answer> {
    let value = only(headers.get_all("authorization"))?;
    Ok(value.and_then(|value| {
        let (named, rest) = value.split_at_checked(scheme.len())?;
        named.eq_ignore_ascii_case(scheme).then(|| Cow::Borrowed(rest.trim_ascii()))
    }))
}

/// `user:password`, or the user alone if there is no password, so that a key can be sent as a user name. Empty, which is no
/// customer's credential, if it cannot be decoded.
fn basic(encoded: &[u8]) -> Vec<u8> {
    let mut decoded = STANDARD.decode(encoded).unwrap_or_default();
    if decoded.iter().position(|byte| *byte == b':') == decoded.len().checked_sub(1) {
        decoded.pop();
    }
    decoded
}
