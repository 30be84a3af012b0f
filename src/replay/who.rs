//! Describes keys and callers in words, without secrets.

use std::fmt::Write as _;

use http::{HeaderName, header};

use crate::ruleset::key::{self, Caller, Facts, Key, KeyHasher, KeyPart, Resolved, Value};
use crate::ruleset::{CredentialSource, Ruleset};

/// The longest value that is shown whole, in characters.
const LONGEST: usize = 80;

/// The key of a request in words: its parts with commas between them. Where a part may be a credential, a fingerprint
/// stands for it.
pub fn describe(ruleset: &Ruleset, key: &Key, facts: &Facts<'_>, resolved: &Resolved<'_>) -> String {
    let parts: Vec<String> = key.parts.iter().map(|part| describe_part(ruleset, part, facts, resolved)).collect();
    if parts.is_empty() { "everybody".to_owned() } else { parts.join(", ") }
}

/// The caller: a customer's name, or the address of an anonymous caller.
pub fn caller(facts: &Facts<'_>, resolved: &Resolved<'_>) -> String {
    match resolved.caller {
        Caller::Customer(name) => shown(name.as_bytes()),
        Caller::Anonymous => address(facts),
    }
}

fn describe_part(ruleset: &Ruleset, part: &KeyPart, facts: &Facts<'_>, resolved: &Resolved<'_>) -> String {
    let named = |value: Option<Value<'_>>| match value {
        None => format!("no {}", part.describe()),
        Some(_) if is_secret(ruleset, part) => {
            let print = KeyHasher::stable().part(part, facts, resolved).map_or(0, |hash| hash.0 >> 96);
            format!("{} #{print:08x}", part.describe())
        }
        Some(Value::Bytes(value)) => format!("{} {}", part.describe(), shown(&value)),
        Some(Value::Address(address)) => format!("{} {address}", part.describe()),
    };
    match part {
        KeyPart::Customer => caller(facts, resolved),
        KeyPart::ClientAddress => address(facts),
        KeyPart::Plan => resolved.plan.map_or_else(|| "no plan".to_owned(), |(_, plan)| format!("plan {plan}")),
        KeyPart::Host => shown(facts.host.as_bytes()),
        KeyPart::Route => format!("route {}", resolved.route),
        KeyPart::RoutePattern => resolved.path_pattern.to_owned(),
        KeyPart::Method => shown(facts.method.as_bytes()),
        KeyPart::UpstreamNode
        | KeyPart::Group(_)
        | KeyPart::Header(..)
        | KeyPart::Query(..)
        | KeyPart::Cookie(..)
        | KeyPart::PathSegment(_)
        | KeyPart::JwtClaim(_)
        | KeyPart::RequestField(_)
        | KeyPart::Descriptor(_) => named(key::value(part, facts, resolved).ok()),
    }
}

fn address(facts: &Facts<'_>) -> String {
    facts.client.map_or_else(|| "no address".to_owned(), |address| address.to_string())
}

/// Whether the part may hold a credential.
fn is_secret(ruleset: &Ruleset, part: &KeyPart) -> bool {
    let mut sources = ruleset.customers.iter().flat_map(|rules| &rules.identify);
    match part {
        KeyPart::Cookie(..) => true,
        KeyPart::Header(name, _) => {
            const SECRET: [HeaderName; 3] = [header::AUTHORIZATION, header::PROXY_AUTHORIZATION, header::COOKIE];
            let is_source = |source: &CredentialSource| match source {
                CredentialSource::Header(other) => other == name,
                CredentialSource::Jwt(rules) => rules.header.as_ref() == Some(name),
                _ => false,
            };
            SECRET.contains(name)
                || name.as_str().contains("key")
                || name.as_str().contains("token")
                || sources.any(is_source)
        }
        KeyPart::Query(name, _) => {
            name.contains("key")
                || name.contains("token")
                || sources.any(|source| matches!(source, CredentialSource::Query(other) if other == name))
        }
        _ => false,
    }
}

/// The text without control characters, which a terminal would obey, and cut if it is long.
fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut shown = String::with_capacity(text.len());
    for (count, c) in text.chars().enumerate() {
        if count == LONGEST {
            shown.push('…');
            break;
        }
        match c {
            c if c.is_control() => {
                // writing to a string cannot fail
                if write!(shown, "{}", c.escape_default()).is_err() {
                    shown.push('?');
                }
            }
            c => shown.push(c),
        }
    }
    shown
}
