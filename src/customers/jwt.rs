//! Customers who show a signed token (RFC 7519): whether it is genuine and still good, and what it says of them.
//!
//! No I/O and no clock: keys and the time come in. Which tokens were found genuine is remembered, as looking at a
//! signature takes far longer than looking at a clock.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{DecodingKey, Validation};
use serde_json::{Map, Value};

use crate::customers::Customer;
use crate::customers::directory::{GroupNames, GroupTable, is_name};
use crate::ruleset::groups::{Groups, MOST_LEVELS};
use crate::ruleset::{JwtRules, PlanId, key};
use crate::units::Nanos;

pub mod keys;
mod signature;
mod verified;

use keys::{Key, Keys};
use verified::VerifiedTokens;

/// The longest token that is looked at, in bytes.
const MAX_TOKEN: usize = 8 << 10;

/// Tells whose a token is. Belongs to the configuration whose rules and plans it was made with.
pub struct Tokens {
    rules: Arc<JwtRules>,
    /// Their names.
    plans: Vec<String>,
    keys: Vec<Trusted>,
    groups: Arc<GroupTable>,
    known: VerifiedTokens,
}

/// A key, and what it is trusted with.
struct Trusted {
    id: Option<String>,
    key: DecodingKey,
    validation: Validation,
}

/// A token whose signature, issuer and audience are right.
pub struct Token {
    /// Whom it names.
    pub customer: Arc<Customer>,
    /// What it says.
    pub claims: Claims,
    times: Times,
}

/// The claims of a token.
pub struct Claims(Map<String, Value>);

/// From when to when a token is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    not_before: Option<Nanos>,
    expires: Option<Nanos>,
}

/// Why a token is refused, in words for the client. Says nothing that the token holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenFault {
    /// It is none, or no key that is trusted signed it.
    #[error("the token cannot be verified")]
    Unverified,
    /// It is over.
    #[error("the token has expired")]
    Expired,
    /// It has not begun.
    #[error("the token is not valid yet")]
    NotYetValid,
    /// It goes on for ever.
    #[error("the token does not say when it expires")]
    WithoutExpiry,
    /// Its times are no times.
    #[error("the token's times cannot be read")]
    BadTimes,
    /// Somebody else issued it.
    #[error("the token is from another issuer")]
    WrongIssuer,
    /// It is meant for somebody else.
    #[error("the token is meant for another audience")]
    WrongAudience,
    /// It does not say who is calling.
    #[error("the token does not say who is calling")]
    WithoutCustomer,
    /// It names groups that do not belong together, or that have no name.
    #[error("the token names groups that do not fit")]
    BadGroups,
    /// It names no plan that there is.
    #[error("the token names no plan that is known here")]
    WithoutPlan,
}

// === impl Tokens ===

impl Tokens {
    /// What `rules` make of tokens that one of `keys` signed. `plans` are the names of the plans, `groups` those that
    /// customers may belong to, `seed` keys the hashes by which tokens are remembered.
    ///
    /// `None` if the rules accept no algorithm that any of the keys is good for.
    pub fn new(
        rules: Arc<JwtRules>,
        keys: Keys,
        plans: &[String],
        groups: Arc<GroupTable>,
        seed: &[u8; 16],
    ) -> Option<Self> {
        signature::install();
        let keys: Vec<Trusted> = keys.0.into_iter().filter_map(|key| Trusted::new(key, &rules)).collect();
        (!keys.is_empty()).then(|| Self {
            rules,
            plans: plans.to_vec(),
            keys,
            groups,
            known: VerifiedTokens::new(seed),
        })
    }

    /// The same as [`Tokens::verify`], where no signature has to be verified for it.
    pub fn remembered(&self, token: &[u8], now: Nanos) -> Option<Result<Arc<Token>, TokenFault>> {
        if token.len() > MAX_TOKEN {
            return Some(Err(TokenFault::Unverified));
        }
        let known = self.known.get(self.known.hash(token))?;
        Some(known.times.check(now, &self.rules).map(|()| known))
    }

    /// Whose token this is, if it is good at `now`.
    pub fn verify(&self, token: &[u8], now: Nanos) -> Result<Arc<Token>, TokenFault> {
        if let Some(remembered) = self.remembered(token, now) {
            return remembered;
        }
        let claims = self.genuine(token)?;
        let times = Times::of(&claims)?;
        times.check(now, &self.rules)?;
        let customer = Arc::new(self.customer(&claims)?);
        let (named, token) = (token, Arc::new(Token { customer, claims, times }));
        self.known.put(self.known.hash(named), &token);
        Ok(token)
    }

    /// The claims of a token that a trusted key signed. A token that names its key is held to that key.
    fn genuine(&self, token: &[u8]) -> Result<Claims, TokenFault> {
        let header = jsonwebtoken::decode_header(token).map_err(|_| TokenFault::Unverified)?;
        // what is marked as critical has to be understood (RFC 7515, section 4.1.11), and nothing is
        if header.crit.is_some() {
            return Err(TokenFault::Unverified);
        }
        let named = |key: &&Trusted| header.kid.is_none() || key.id == header.kid;
        let fits = |key: &&Trusted| key.validation.algorithms.contains(&header.alg);
        let mut fault = TokenFault::Unverified;
        for key in self.keys.iter().filter(named).filter(fits) {
            match jsonwebtoken::decode::<Map<String, Value>>(token, &key.key, &key.validation) {
                Ok(data) => return Ok(Claims(data.claims)),
                Err(error) => {
                    fault = match error.kind() {
                        ErrorKind::InvalidIssuer => TokenFault::WrongIssuer,
                        ErrorKind::InvalidAudience => TokenFault::WrongAudience,
                        ErrorKind::MissingRequiredClaim(claim) if claim == "iss" => TokenFault::WrongIssuer,
                        ErrorKind::MissingRequiredClaim(_) => TokenFault::WrongAudience,
                        _ => continue,
                    };
                }
            }
        }
        Err(fault)
    }

    fn customer(&self, claims: &Claims) -> Result<Customer, TokenFault> {
        let name = claims.find(&self.rules.claim).and_then(|claim| match claim {
            Value::Bool(_) => None,
            other => text(other),
        });
        let name = name.filter(|name| is_name(name)).ok_or(TokenFault::WithoutCustomer)?;
        let named = self.rules.plan_claim.as_deref().and_then(|claim| claims.find(claim)?.as_str());
        let plan = named.and_then(|named| self.plans.iter().position(|plan| plan == named)).map(PlanId);
        let groups = self.groups_of(claims)?;
        let plan = plan
            .or(groups.as_ref().and_then(|groups| groups.plan()))
            .or(self.rules.plan)
            .ok_or(TokenFault::WithoutPlan)?;
        let suspended = groups.as_ref().is_some_and(|groups| groups.suspended());
        Ok(Customer { name: name.as_ref().into(), plan, own: None, groups, valid_until: None, suspended })
    }

    /// The groups that the claims name. A token may name groups that no file lists.
    fn groups_of(&self, claims: &Claims) -> Result<Option<Arc<Groups>>, TokenFault> {
        let mut texts: [Cow<'_, str>; MOST_LEVELS] = Default::default();
        for (position, claim) in &self.rules.group_claims {
            let named = claims.find(claim).and_then(text);
            if let (Some(place), Some(named)) = (texts.get_mut(*position), named) {
                *place = named;
            }
        }
        let names: GroupNames<'_> = texts.each_ref().map(|name| &**name);
        self.groups.resolve(&names, false).map(|groups| groups.map(Arc::new)).map_err(|_| TokenFault::BadGroups)
    }
}

impl fmt::Debug for Tokens {
    /// Keys may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokens({} keys)", self.keys.len())
    }
}

impl Trusted {
    fn new(Key { id, algorithms, key }: Key, rules: &JwtRules) -> Option<Self> {
        let accepted =
            |algorithm: &jsonwebtoken::Algorithm| rules.algorithms.is_empty() || rules.algorithms.contains(algorithm);
        let algorithms: Vec<_> = algorithms.into_iter().filter(accepted).collect();
        let mut validation = Validation::new(*algorithms.first()?);
        validation.algorithms = algorithms;
        // the library would read the machine's clock
        validation.validate_exp = false;
        validation.validate_nbf = false;
        validation.required_spec_claims.clear();
        validation.validate_aud = !rules.audiences.is_empty();
        if !rules.audiences.is_empty() {
            validation.set_audience(&rules.audiences);
            validation.required_spec_claims.insert("aud".to_owned());
        }
        if !rules.issuers.is_empty() {
            validation.set_issuer(&rules.issuers);
            validation.required_spec_claims.insert("iss".to_owned());
        }
        Some(Self { id, key, validation })
    }
}

// === impl Times ===

impl Times {
    fn of(claims: &Claims) -> Result<Self, TokenFault> {
        Ok(Self { not_before: time(&claims.0, "nbf")?, expires: time(&claims.0, "exp")? })
    }

    fn check(self, now: Nanos, rules: &JwtRules) -> Result<(), TokenFault> {
        match self.expires {
            None if rules.require_exp => return Err(TokenFault::WithoutExpiry),
            Some(expires) if now >= expires.saturating_add(rules.leeway) => return Err(TokenFault::Expired),
            _ => {}
        }
        match self.not_before {
            Some(not_before) if now.saturating_add(rules.leeway) < not_before => Err(TokenFault::NotYetValid),
            _ => Ok(()),
        }
    }
}

/// A point in time: seconds since 1970, decimals allowed.
fn time(claims: &Map<String, Value>, name: &str) -> Result<Option<Nanos>, TokenFault> {
    let Some(value) = claims.get(name) else { return Ok(None) };
    let seconds = value.as_f64().ok_or(TokenFault::BadTimes)?;
    match value.as_u64() {
        Some(seconds) => Ok(Some(Nanos::from_secs(seconds))),
        None if seconds < 0.0 => Ok(Some(Nanos::ZERO)),
        None => Ok(Some(Duration::try_from_secs_f64(seconds).map_or(Nanos::MAX, Nanos::from))),
    }
}

// === impl Claims ===

impl Claims {
    fn find(&self, way: &str) -> Option<&Value> {
        find(&self.0, way)
    }
}

/// A claim may have points in its name, so the whole name goes before a way through nested claims.
fn find<'c>(claims: &'c Map<String, Value>, way: &str) -> Option<&'c Value> {
    claims.get(way).or_else(|| {
        let (first, rest) = way.split_once('.')?;
        find(claims.get(first)?.as_object()?, rest)
    })
}

fn text(claim: &Value) -> Option<Cow<'_, str>> {
    match claim {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Number(number) if !number.is_f64() => Some(Cow::Owned(number.to_string())),
        Value::Bool(flag) => Some(Cow::Borrowed(if *flag { "true" } else { "false" })),
        Value::Number(_) | Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

impl key::Claims for Claims {
    fn text(&self, name: &str) -> Option<Cow<'_, str>> {
        text(self.find(name)?)
    }
}

impl fmt::Debug for Claims {
    /// What a token says of somebody is nobody else's business.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Claims({})", self.0.len())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({:?})", self.claims)
    }
}

/// Whether a credential is written like a token: three parts in base64url with points between them, of which only the
/// signature may be empty.
pub fn looks_like_token(credential: &[u8]) -> bool {
    let fine = |part: &[u8]| part.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'='));
    let mut parts = credential.split(|byte| *byte == b'.');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(header), Some(claims), Some(signature), None) => {
            !header.is_empty() && !claims.is_empty() && [header, claims, signature].into_iter().all(fine)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests;
