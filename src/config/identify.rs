//! `customers.identify`: where requests carry credentials.

use std::sync::Arc;

use http::Uri;
use jsonwebtoken::Algorithm;

use crate::config::key::{cookie_name, named};
use crate::config::names::Names;
use crate::config::problem::Problem;
use crate::config::read::{Field, Section, all_or_none, unique_items};
use crate::config::settings::{IDENTIFY, JWKS, JWT, SIGNATURES};
use crate::config::store::{ClientTls, client_tls};
use crate::config::values::NamedFile;
use crate::ruleset::{CredentialSource, JwtRules, PlanId};
use crate::units::Nanos;

const EXPECTED: &str = "`{header: NAME}`, `{query: NAME}`, `{cookie: NAME}`, `{bearer: true}`, `{basic: true}`, `{client_certificate: true}` or `{jwt: {...}}`";

/// The description of a claim's name in error messages.
pub(super) const CLAIM: &str = "the name of a claim, like `sub`, or a way through nested ones, like `user.id`";

/// The keys that tokens are verified with, and the rules for the tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jwks {
    /// The source of the keys.
    pub source: JwksSource,
    /// The rules that the tokens must follow.
    pub rules: Arc<JwtRules>,
}

/// The source of the keys that tokens are verified with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JwksSource {
    /// A file.
    File(NamedFile),
    /// A URL at which the issuer publishes them.
    Published(Box<PublishedJwks>),
}

/// Keys that the issuer of the tokens publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedJwks {
    /// The address of the keys.
    pub at: JwksAddress,
    /// The TLS settings of the connection.
    pub tls: ClientTls,
    /// How long the gateway uses a key set before it fetches the set again.
    pub refresh: Nanos,
    /// The shortest time between two attempts to fetch the set.
    pub min_interval: Nanos,
}

/// The address at which an issuer publishes its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JwksAddress {
    /// The URL of the key set.
    Url(Uri),
    /// The OpenID issuer whose configuration holds the URL of the key set.
    Issuer(String),
}

/// The settings of `identify`.
pub(super) struct Identify {
    pub(super) sources: Vec<CredentialSource>,
    pub(super) jwks: Option<Jwks>,
}

/// Whether any of the credentials is a token.
pub(super) fn has_tokens(field: &Field<'_>) -> bool {
    field.as_list().iter().flatten().any(|item| item.as_mapping().is_some_and(|source| source.has("jwt")))
}

/// Whether any credential has to be looked up in the directory. Tokens do not; all others do.
pub(super) fn needs_directory(field: &Field<'_>) -> bool {
    let is_token = |item: &Field<'_>| item.as_mapping().is_some_and(|source| source.has("jwt"));
    field.as_list().is_none_or(|items| !items.iter().all(is_token))
}

/// Reads `identify`.
pub(super) fn read(field: &Field<'_>, plans: &Names, levels: &Names) -> Option<Identify> {
    let items = field.nonempty_list(&format!("a list of {EXPECTED}"))?;
    let read = unique_items(&items, |item| source(item, plans, levels), |(source, _)| identity_key(source))?;
    let is_key =
        |source: &CredentialSource| !matches!(source, CredentialSource::Jwt(_) | CredentialSource::ClientCertificate);
    let shows = read.iter().position(|(source, _)| *source == CredentialSource::ClientCertificate);
    if let Some(item) = shows.and_then(|position| items.get(position))
        && read.iter().any(|(source, _)| is_key(source))
    {
        let problem =
            item.error("cannot stand beside keys: whoever sends a common name as a key would be taken for its owner");
        return item.fail(problem.expected("tokens beside it at most"));
    }
    let (sources, jwks): (Vec<_>, Vec<_>) = read.into_iter().unzip();
    Some(Identify { sources, jwks: jwks.into_iter().flatten().next() })
}

/// The values by which two sources count as the same one.
fn identity_key(source: &CredentialSource) -> (&'static str, String) {
    match source {
        CredentialSource::Header(name) => ("header", name.to_string()),
        CredentialSource::Query(name) => ("query", name.clone()),
        CredentialSource::Cookie(name) => ("cookie", name.clone()),
        CredentialSource::Bearer => ("bearer", String::new()),
        CredentialSource::Basic => ("basic", String::new()),
        CredentialSource::ClientCertificate => ("client_certificate", String::new()),
        CredentialSource::Jwt(_) => ("jwt", String::new()),
    }
}

type Source = (CredentialSource, Option<Jwks>);

fn source(field: &Field<'_>, plans: &Names, levels: &Names) -> Option<Source> {
    // the operator may have written credentials here, so findings hide the values
    let secret = field.clone().secret();
    let section = secret.section_or(&IDENTIFY, EXPECTED)?;
    let mut known = section.fields().filter(|(kind, _)| IDENTIFY.find(kind).is_some());
    match (known.next(), known.next()) {
        (Some((kind, value)), None) => one_source(kind, &value, field, plans, levels),
        (None, _) if !section.is_empty() => None,
        _ => field.fail(Problem::error(field.place(), "does not name one place").expected(EXPECTED)),
    }
}

fn one_source(kind: &str, value: &Field<'_>, item: &Field<'_>, plans: &Names, levels: &Names) -> Option<Source> {
    let source = match kind {
        "header" => CredentialSource::Header(value.request_header_name()?),
        "query" => CredentialSource::Query(value.read(named)?),
        "cookie" => CredentialSource::Cookie(value.read(cookie_name)?),
        "bearer" => only_true(value, CredentialSource::Bearer)?,
        "basic" => only_true(value, CredentialSource::Basic)?,
        "client_certificate" => only_true(value, CredentialSource::ClientCertificate)?,
        // the value of `jwt` is a mapping of settings, which findings may show
        _ => return item.as_mapping()?.get("jwt").and_then(|field| jwt(&field, plans, levels)),
    };
    Some((source, None))
}

fn only_true(field: &Field<'_>, source: CredentialSource) -> Option<CredentialSource> {
    match field.flag()? {
        true => Some(source),
        false => field.fail(Problem::error(field.place(), "must be `true`").hint("leave it out otherwise")),
    }
}

fn jwt(field: &Field<'_>, plans: &Names, levels: &Names) -> Option<Source> {
    let section = field.section(&JWT)?;
    let source = jwks_source(&section);
    let claim = |field: &Field<'_>| field.parsed(CLAIM, named);
    let group_claims = section.value_or("group_claims", Vec::new(), |field| {
        let section = field.mapping("claims by the levels of `customers.groups`, like `{organisation: org}`")?;
        all_or_none(section.fields().map(|(level, field)| {
            let (position, claim) = (levels.resolve_key(level, &field), claim(&field));
            Some((position?, claim?))
        }))
    });
    let algorithms = section.value_or("algorithms", Vec::new(), |field| {
        let items = field.nonempty_list("a list of algorithms, like `[RS256]`")?;
        let known: Vec<(&str, Algorithm)> =
            SIGNATURES.iter().filter_map(|name| Some((*name, name.parse().ok()?))).collect();
        unique_items(&items, |item| item.choice(&known), Clone::clone)
    });
    let mut issuers = section.value_or("issuer", Vec::new(), |field| one_or_more(field, "the `iss` of tokens"));
    if let Some(JwksSource::Published(published)) = &source
        && let JwksAddress::Issuer(issuer) = &published.at
        && issuers.is_empty()
    {
        issuers.push(issuer.clone());
    }
    let rules = Arc::new(JwtRules {
        header: section.optional("header", token_header),
        claim: section.text("claim", claim),
        plan_claim: section.optional("plan_claim", claim),
        plan: section.optional("plan", |field| plans.resolve(field).map(PlanId)),
        group_claims,
        algorithms,
        issuers,
        audiences: section.value_or("audience", Vec::new(), |field| one_or_more(field, "the `aud` of tokens")),
        leeway: section.duration("leeway"),
        require_exp: section.flag("require_exp"),
    });
    if !["plan", "plan_claim"].iter().any(|key| section.has(key) || section.is_misspelt(key)) {
        let problem = field.key_error("does not say which plan callers with a token are on");
        return field.fail(problem.expected("`plan_claim`, the claim that names it, or `plan`, or both"));
    }
    Some((CredentialSource::Jwt(Arc::clone(&rules)), Some(Jwks { source: source?, rules })))
}

/// Reads the source of the keys from the settings of `jwt`.
fn jwks_source(section: &Section<'_>) -> Option<JwksSource> {
    const KEYS: &str = "`jwks_file`, the name of a file, or `jwks: {url: ...}` or `jwks: {issuer: ...}`";
    match section.one_of(&["jwks_file", "jwks"], KEYS)? {
        ("jwks_file", file) => file.file().map(JwksSource::File),
        (_, published) => published_jwks(&published).map(Box::new).map(JwksSource::Published),
    }
}

fn published_jwks(field: &Field<'_>) -> Option<PublishedJwks> {
    let section = field.section(&JWKS)?;
    let at = section.one_of(&["url", "issuer"], "`url` or `issuer`").and_then(|(kind, field)| {
        let url = field.url()?;
        Some(if kind == "url" { JwksAddress::Url(url) } else { JwksAddress::Issuer(field.read(named)?) })
    });
    let tls = client_tls(&section);
    let errors = field.findings().error_count();
    let (refresh, min_interval) = (section.duration("refresh"), section.duration("min_interval"));
    if min_interval > refresh && field.findings().error_count() == errors {
        let problem = field.key_error("is fetched again before that may be");
        return field.fail(problem.expected("`refresh` at least as long as `min_interval`"));
    }
    Some(PublishedJwks { at: at?, tls: tls?, refresh, min_interval })
}

fn token_header(field: &Field<'_>) -> Option<http::HeaderName> {
    let name = field.request_header_name()?;
    match name == http::header::AUTHORIZATION {
        true => field.fail(field.error("holds more than the token").hint("leave it out for `Authorization: Bearer`")),
        false => Some(name),
    }
}

fn one_or_more(field: &Field<'_>, what: &str) -> Option<Vec<String>> {
    let one = |field: &Field<'_>| field.parsed(what, named);
    match field.is_list() {
        true => unique_items(&field.nonempty_list(what)?, one, String::clone),
        false => Some(vec![one(field)?]),
    }
}
