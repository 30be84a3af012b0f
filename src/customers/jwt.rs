//! Signed tokens (RFC 7519) of customers: verification of the signature and the times, and the customer that a token names.
//!
//! The caller passes the keys and the time; keys come from a file, or from the URL where the issuer publishes them
//! ([`remote`]). Verified tokens are cached until the keys change, because verifying a signature takes far longer than
//! checking the times.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwapOption, Guard};
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{DecodingKey, Validation};
use quick_cache::sync::Cache;
use serde_json::{Map, Value};

use crate::clock::Clock;
use crate::customers::Customer;
use crate::customers::directory::{GroupNames, GroupTable, Hashes, KeyedHash, is_name};
use crate::ruleset::groups::{Groups, MAX_LEVELS};
use crate::ruleset::{JwtRules, PlanId, key};
use crate::units::Nanos;

pub mod keys;
pub mod remote;
mod signature;

use keys::{Key, Keys};
use remote::KeySet;

/// The maximum length of a token, in bytes; longer ones are refused.
const MAX_TOKEN: usize = 8 << 10;

/// The maximum number of cached tokens.
const MAX_CACHED: usize = 4_096;

/// Verifies tokens and finds their customers. Belongs to the configuration whose rules and plans it was made with.
pub struct TokenVerifier {
    rules: Arc<JwtRules>,
    /// The names of the plans.
    plans: Vec<String>,
    groups: Arc<GroupTable>,
    keys: KeySet,
    /// Makes the hashes by which tokens are cached.
    hashes: Hashes,
    /// The keys in the form for verification, made from the latest `keys`.
    verifier: ArcSwapOption<VerificationKeys>,
}

/// Keys in the form for verification, and the tokens that they verified.
struct VerificationKeys {
    /// The keys that this was made from.
    from: Arc<Keys>,
    keys: Vec<TrustedKey>,
    /// The tokens by their keyed hashes, so that no dump of the memory shows one.
    known: Cache<KeyedHash, Arc<Token>>,
}

/// A key, and the rules for tokens that it signs.
struct TrustedKey {
    id: Option<String>,
    key: DecodingKey,
    validation: Validation,
}

/// A token whose signature, issuer and audience are valid.
pub struct Token {
    /// The name of the customer.
    pub name: Arc<str>,
    /// The groups that the token names.
    pub groups: Option<Arc<Groups>>,
    /// The customer by the token alone; absent if neither the token nor its groups nor the rules give a plan.
    pub customer: Option<Arc<Customer>>,
    /// The claims of the token.
    pub claims: Claims,
    times: Times,
}

/// The claims of a token.
pub struct Claims(Map<String, Value>);

/// The start and the end of a token's validity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    not_before: Option<Nanos>,
    expires: Option<Nanos>,
}

/// The reason why a token is refused, worded for the client. Contains nothing from the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenFault {
    /// The text is no token, or no trusted key signed it.
    #[error("the token cannot be verified")]
    Unverified,
    /// The token has expired.
    #[error("the token has expired")]
    Expired,
    /// The token is not valid yet.
    #[error("the token is not valid yet")]
    NotYetValid,
    /// The token has no expiry, and the rules require one.
    #[error("the token does not say when it expires")]
    WithoutExpiry,
    /// The token's times are not numbers.
    #[error("the token's times cannot be read")]
    BadTimes,
    /// Another issuer issued the token.
    #[error("the token is from another issuer")]
    WrongIssuer,
    /// The token is for another audience.
    #[error("the token is meant for another audience")]
    WrongAudience,
    /// The token names no customer.
    #[error("the token does not say who is calling")]
    WithoutCustomer,
    /// The token names groups that do not belong together, or a group name that is not valid.
    #[error("the token names groups that do not fit")]
    BadGroups,
    /// The token names no known plan, and neither its groups nor the rules, the directory or a trusted proxy give one.
    #[error("the token names no plan that is known here")]
    WithoutPlan,
    /// The token cannot be verified now: the issuer's published keys cannot be fetched, or not in time.
    #[error("the keys of the token's issuer cannot be fetched at the moment")]
    WithoutKeys,
}

/// The reason why a token's claims are not accepted.
enum ClaimsError {
    /// The token names an unknown key; or it names none, and no trusted key signed it.
    UnknownKey,
    Fault(TokenFault),
}

// === impl TokenVerifier ===

impl TokenVerifier {
    /// A verifier of tokens that one of `keys` signed, by these `rules`. `plans` are the names of the plans, `groups` the
    /// groups that customers may belong to, and `seed` is the key of the hashes by which tokens are cached.
    pub fn new(rules: Arc<JwtRules>, keys: KeySet, plans: &[String], groups: Arc<GroupTable>, seed: &[u8; 16]) -> Self {
        signature::install();
        let verifier = ArcSwapOption::empty();
        Self { rules, plans: plans.to_vec(), groups, keys, hashes: Hashes::new(seed), verifier }
    }

    /// The keys that tokens are verified with.
    pub fn keys(&self) -> &KeySet {
        &self.keys
    }

    /// The current keys; `None` before they were fetched.
    fn verifier(&self) -> Guard<Option<Arc<VerificationKeys>>> {
        let (keys, made) = (self.keys.keys.load(), self.verifier.load());
        if is_same(keys.as_ref(), made.as_ref().map(|made| &made.from)) {
            return made;
        }
        self.verifier.store(keys.as_ref().map(|keys| {
            let trusted = keys.0.iter().filter_map(|key| TrustedKey::new(key, &self.rules)).collect();
            Arc::new(VerificationKeys { from: Arc::clone(keys), keys: trusted, known: Cache::new(MAX_CACHED) })
        }));
        self.verifier.load()
    }

    /// The result of [`TokenVerifier::verify`] from the cache, without verifying a signature; `None` if the token is not cached.
    pub fn find_cached(&self, token: &[u8], now: Nanos) -> Option<Result<Arc<Token>, TokenFault>> {
        if token.len() > MAX_TOKEN {
            return Some(Err(TokenFault::Unverified));
        }
        let known = self.verifier().as_ref()?.known.get(&self.hashes.of(token))?;
        Some(known.times.check(now, &self.rules).map(|()| known))
    }

    /// The verified token, if it is valid now. If its key is unknown, this function has the keys fetched again, and waits for
    /// them for a tenth of a second at most.
    pub async fn find(&self, token: &[u8], clock: &Arc<dyn Clock>) -> Result<Arc<Token>, TokenFault> {
        let before = self.keys.keys.load_full();
        match self.check(token, clock.wall()) {
            Err(ClaimsError::UnknownKey) => {}
            checked => return checked.map_err(TokenFault::from),
        }
        let are_current = self.keys.wait_for_refresh(clock).await;
        let checked = match is_same(before.as_ref(), self.keys.keys.load().as_ref()) {
            // the same keys would not verify it either
            true => Err(ClaimsError::UnknownKey),
            false => self.check(token, clock.wall()),
        };
        match checked {
            // the issuer may have published this key only now
            Err(ClaimsError::UnknownKey) if !are_current => Err(TokenFault::WithoutKeys),
            checked => checked.map_err(TokenFault::from),
        }
    }

    /// The verified token, if it is valid at `now`, with the keys that are present.
    pub fn verify(&self, token: &[u8], now: Nanos) -> Result<Arc<Token>, TokenFault> {
        self.check(token, now).map_err(TokenFault::from)
    }

    fn check(&self, token: &[u8], now: Nanos) -> Result<Arc<Token>, ClaimsError> {
        if let Some(cached_result) = self.find_cached(token, now) {
            return Ok(cached_result?);
        }
        let verifier = self.verifier();
        let verifier = verifier.as_ref().ok_or(ClaimsError::UnknownKey)?;
        let claims = verifier.verified_claims(token)?;
        let times = Times::of(&claims)?;
        times.check(now, &self.rules)?;
        let (name, groups) = (self.name(&claims)?, self.groups_of(&claims)?);
        let plan = self.plan_of(&claims).or(groups.as_ref().and_then(|groups| groups.plan())).or(self.rules.plan);
        let mut verified = Token { name, groups, customer: None, claims, times };
        verified.customer = plan.map(|plan| verified.customer_on(plan));
        let verified = Arc::new(verified);
        verifier.known.insert(self.hashes.of(token), Arc::clone(&verified));
        Ok(verified)
    }

    fn name(&self, claims: &Claims) -> Result<Arc<str>, TokenFault> {
        let name = claims.find(&self.rules.claim).and_then(|claim| match claim {
            Value::Bool(_) => None,
            other => text(other),
        });
        name.filter(|name| is_name(name)).map(Arc::from).ok_or(TokenFault::WithoutCustomer)
    }

    fn plan_of(&self, claims: &Claims) -> Option<PlanId> {
        let named = claims.find(self.rules.plan_claim.as_deref()?)?.as_str()?;
        self.plans.iter().position(|plan| plan == named).map(PlanId)
    }

    /// The groups that the claims name. A token may name groups that no file lists. Errors: also a claim that is no text.
    fn groups_of(&self, claims: &Claims) -> Result<Option<Arc<Groups>>, TokenFault> {
        let mut texts: [Cow<'_, str>; MAX_LEVELS] = Default::default();
        for (position, claim) in &self.rules.group_claims {
            let named = claims.find(claim).filter(|named| !named.is_null());
            if let (Some(place), Some(named)) = (texts.get_mut(*position), named) {
                *place = text(named).ok_or(TokenFault::BadGroups)?;
            }
        }
        let names: GroupNames<'_> = texts.each_ref().map(|name| &**name);
        self.groups.resolve(&names, false).map(|groups| groups.map(Arc::new)).map_err(|_| TokenFault::BadGroups)
    }
}

impl From<TokenFault> for ClaimsError {
    fn from(fault: TokenFault) -> Self {
        Self::Fault(fault)
    }
}

impl From<ClaimsError> for TokenFault {
    fn from(not: ClaimsError) -> Self {
        match not {
            ClaimsError::UnknownKey => Self::Unverified,
            ClaimsError::Fault(fault) => fault,
        }
    }
}

// === impl VerificationKeys ===

impl VerificationKeys {
    /// The claims of a token that a trusted key signed. If the token names a key, only that key counts.
    fn verified_claims(&self, token: &[u8]) -> Result<Claims, ClaimsError> {
        let header = jsonwebtoken::decode_header(token).map_err(|_| TokenFault::Unverified)?;
        // the verifier has to understand critical header fields (RFC 7515, section 4.1.11), and this one understands none
        if header.crit.is_some() {
            return Err(TokenFault::Unverified.into());
        }
        if header.kid.is_some() && !self.from.0.iter().any(|key| key.id == header.kid) {
            return Err(ClaimsError::UnknownKey);
        }
        let named = |key: &&TrustedKey| header.kid.is_none() || key.id == header.kid;
        let fits = |key: &&TrustedKey| key.validation.algorithms.contains(&header.alg);
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
        match (fault, header.kid) {
            (TokenFault::Unverified, None) => Err(ClaimsError::UnknownKey),
            (fault, _) => Err(fault.into()),
        }
    }
}

/// Whether these are the same keys, or both absent.
fn is_same(one: Option<&Arc<Keys>>, other: Option<&Arc<Keys>>) -> bool {
    one.map(Arc::as_ptr) == other.map(Arc::as_ptr)
}

impl TrustedKey {
    fn new(key: &Key, rules: &JwtRules) -> Option<Self> {
        let algorithms = key.usable_with(&rules.algorithms);
        let mut validation = Validation::new(*algorithms.first()?);
        validation.algorithms = algorithms;
        // the library would use the machine's clock
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
        Some(Self { id: key.id.clone(), key: key.key.clone(), validation })
    }
}

// === impl Token ===

impl Token {
    /// The customer by the token alone, on this plan.
    pub fn customer_on(&self, plan: PlanId) -> Arc<Customer> {
        let suspended = self.groups.as_ref().is_some_and(|groups| groups.suspended());
        let (name, groups) = (Arc::clone(&self.name), self.groups.clone());
        Arc::new(Customer { name, plan, own: None, groups, valid_until: None, suspended })
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

/// The time in a claim, in seconds since 1970, with or without decimals; a time before 1970 counts as 1970.
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
    fn find(&self, path: &str) -> Option<&Value> {
        find(&self.0, path)
    }
}

/// Finds a claim. Its name may contain dots, so the whole name is tried before the path through nested claims.
fn find<'c>(claims: &'c Map<String, Value>, path: &str) -> Option<&'c Value> {
    claims.get(path).or_else(|| {
        let (first, rest) = path.split_once('.')?;
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

    fn number(&self, name: &str) -> Option<Cow<'_, str>> {
        let claim = self.find(name)?;
        // JSON's numbers beyond 64 bits are floats here
        let large = claim.as_f64().filter(|number| claim.is_f64() && number.fract() == 0.0);
        large.map_or_else(|| text(claim), |number| Some(Cow::Owned(format!("{number:.0}"))))
    }
}

/// Whether a credential looks like a token: three parts in base64url, separated by dots, of which only the signature may be
/// empty.
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
