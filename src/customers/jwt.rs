//! Customers who show a signed token (RFC 7519): whether it is genuine and still good, and what it says of them.
//!
//! Keys and the time come in: from a file, or from where the issuer publishes them ([`remote`]). Which tokens were found
//! genuine is remembered as long as the keys stay the same, as looking at a signature takes far longer than looking at a
//! clock.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwapOption, Guard};
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{DecodingKey, Validation};
use serde_json::{Map, Value};

use crate::clock::Clock;
use crate::customers::Customer;
use crate::customers::directory::{GroupNames, GroupTable, is_name};
use crate::ruleset::groups::{Groups, MOST_LEVELS};
use crate::ruleset::{JwtRules, PlanId, key};
use crate::units::Nanos;

pub mod keys;
pub mod remote;
mod signature;
mod verified;

use keys::{Key, Keys};
use remote::KeySet;
use verified::VerifiedTokens;

/// The longest token that is looked at, in bytes.
const MAX_TOKEN: usize = 8 << 10;

/// Tells whose a token is. Belongs to the configuration whose rules and plans it was made with.
pub struct Tokens {
    rules: Arc<JwtRules>,
    /// Their names.
    plans: Vec<String>,
    groups: Arc<GroupTable>,
    keys: KeySet,
    /// Keys the hashes by which tokens are remembered.
    seed: [u8; 16],
    /// What the keys were made into last.
    verifier: ArcSwapOption<Verifier>,
}

/// Keys, and the tokens that they verified.
struct Verifier {
    /// What it is made of.
    from: Arc<Keys>,
    keys: Vec<Trusted>,
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
    /// Nobody can tell at the moment: the keys that the issuer publishes cannot be fetched, or not in time.
    #[error("the keys of the token's issuer cannot be fetched at the moment")]
    WithoutKeys,
}

/// Why no claims are taken from a token.
enum NotGenuine {
    /// It names a key that is not known.
    UnknownKey,
    Fault(TokenFault),
}

// === impl Tokens ===

impl Tokens {
    /// What `rules` make of tokens that one of `keys` signed. `plans` are the names of the plans, `groups` those that
    /// customers may belong to, `seed` keys the hashes by which tokens are remembered.
    ///
    /// `None` if the rules accept no algorithm that any of the keys is good for, of those that are there.
    pub fn new(
        rules: Arc<JwtRules>,
        keys: KeySet,
        plans: &[String],
        groups: Arc<GroupTable>,
        seed: &[u8; 16],
    ) -> Option<Self> {
        signature::install();
        let verifier = ArcSwapOption::empty();
        let tokens = Self { rules, plans: plans.to_vec(), groups, keys, seed: *seed, verifier };
        let is_of_use = tokens.verifier().as_ref().is_none_or(|verifier| !verifier.keys.is_empty());
        is_of_use.then_some(tokens)
    }

    /// The keys that tokens are verified with.
    pub fn keys(&self) -> &KeySet {
        &self.keys
    }

    /// The keys as they are now; nothing before they were fetched.
    fn verifier(&self) -> Guard<Option<Arc<Verifier>>> {
        let (keys, made) = (self.keys.keys.load(), self.verifier.load());
        if made.as_ref().map(|made| &made.from).map(Arc::as_ptr) == keys.as_ref().map(Arc::as_ptr) {
            return made;
        }
        self.verifier.store(keys.as_ref().map(|keys| {
            let trusted = keys.0.iter().filter_map(|key| Trusted::new(key, &self.rules)).collect();
            Arc::new(Verifier { from: Arc::clone(keys), keys: trusted, known: VerifiedTokens::new(&self.seed) })
        }));
        self.verifier.load()
    }

    /// The same as [`Tokens::verify`], where no signature has to be verified for it.
    pub fn remembered(&self, token: &[u8], now: Nanos) -> Option<Result<Arc<Token>, TokenFault>> {
        if token.len() > MAX_TOKEN {
            return Some(Err(TokenFault::Unverified));
        }
        let known = self.verifier().as_ref()?.known.find(token)?;
        Some(known.times.check(now, &self.rules).map(|()| known))
    }

    /// Whose token this is, if it is good now. Where it names a key that is not known, the keys are fetched anew, and the
    /// token waits for them for a tenth of a second at most.
    pub async fn find(&self, token: &[u8], clock: &Arc<dyn Clock>) -> Result<Arc<Token>, TokenFault> {
        match self.check(token, clock.wall()) {
            Err(NotGenuine::UnknownKey) => {}
            checked => return checked.map_err(TokenFault::from),
        }
        let are_current = self.keys.renewed(clock).await;
        match self.check(token, clock.wall()) {
            // the key may be a new one
            Err(NotGenuine::UnknownKey) if !are_current => Err(TokenFault::WithoutKeys),
            checked => checked.map_err(TokenFault::from),
        }
    }

    /// Whose token this is, if it is good at `now`, going by the keys that are there.
    pub fn verify(&self, token: &[u8], now: Nanos) -> Result<Arc<Token>, TokenFault> {
        self.check(token, now).map_err(TokenFault::from)
    }

    fn check(&self, token: &[u8], now: Nanos) -> Result<Arc<Token>, NotGenuine> {
        if let Some(remembered) = self.remembered(token, now) {
            return Ok(remembered?);
        }
        let verifier = self.verifier();
        let verifier = verifier.as_ref().ok_or(NotGenuine::UnknownKey)?;
        let claims = verifier.genuine(token)?;
        let times = Times::of(&claims)?;
        times.check(now, &self.rules)?;
        let customer = Arc::new(self.customer(&claims)?);
        let (named, token) = (token, Arc::new(Token { customer, claims, times }));
        verifier.known.put(named, &token);
        Ok(token)
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
        write!(f, "Tokens({} keys)", self.keys.keys.load().as_ref().map_or(0, |keys| keys.0.len()))
    }
}

impl From<TokenFault> for NotGenuine {
    fn from(fault: TokenFault) -> Self {
        Self::Fault(fault)
    }
}

impl From<NotGenuine> for TokenFault {
    fn from(not: NotGenuine) -> Self {
        match not {
            NotGenuine::UnknownKey => Self::Unverified,
            NotGenuine::Fault(fault) => fault,
        }
    }
}

// === impl Verifier ===

impl Verifier {
    /// The claims of a token that a trusted key signed. A token that names its key is held to that key.
    fn genuine(&self, token: &[u8]) -> Result<Claims, NotGenuine> {
        let header = jsonwebtoken::decode_header(token).map_err(|_| TokenFault::Unverified)?;
        // what is marked as critical has to be understood (RFC 7515, section 4.1.11), and nothing is
        if header.crit.is_some() {
            return Err(TokenFault::Unverified.into());
        }
        if header.kid.is_some() && !self.from.0.iter().any(|key| key.id == header.kid) {
            return Err(NotGenuine::UnknownKey);
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
        Err(fault.into())
    }
}

impl Trusted {
    fn new(Key { id, algorithms, key }: &Key, rules: &JwtRules) -> Option<Self> {
        let accepted =
            |algorithm: &&jsonwebtoken::Algorithm| rules.algorithms.is_empty() || rules.algorithms.contains(algorithm);
        let algorithms: Vec<_> = algorithms.iter().filter(accepted).copied().collect();
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
        Some(Self { id: id.clone(), key: key.clone(), validation })
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
