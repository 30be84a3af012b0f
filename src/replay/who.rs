//! Describes keys and callers in words, without secrets.

use super::replayer::KeySource;
use crate::gateway::explain::masked::may_be_secret;
use crate::ruleset::Ruleset;
use crate::ruleset::key::{self, Facts, KeyHasher, KeyPart, Resolved, Value};
use crate::ruleset::limit::Limit;

/// The longest value that is shown whole, in characters.
const MAX_VALUE_LENGTH: usize = 80;

/// The key of a charge under `limit` in words: its parts with commas between them. Where a part may be a credential, a
/// fingerprint stands for it.
pub fn describe(ruleset: &Ruleset, limit: &Limit, source: KeySource<'_>) -> String {
    let parts: Vec<String> = match source {
        KeySource::Request(facts, resolved) => {
            limit.key.parts.iter().map(|part| describe_part(ruleset, part, facts, resolved)).collect()
        }
        KeySource::Program(question) => {
            let words = |(part, value): &(String, String)| match part.as_str() {
                "customer" | "client_address" => shown(value.as_bytes()),
                part => shown(format!("{part} {value}").as_bytes()),
            };
            question.named_parts(&limit.name).iter().map(words).collect()
        }
    };
    if parts.is_empty() { "everybody".to_owned() } else { parts.join(", ") }
}

/// The caller: a customer's name, or the address of an anonymous caller.
pub fn caller(source: KeySource<'_>) -> String {
    match source {
        KeySource::Request(facts, resolved) => caller_of(facts, resolved),
        KeySource::Program(_) => "a program".to_owned(),
    }
}

fn caller_of(facts: &Facts<'_>, resolved: &Resolved<'_>) -> String {
    resolved.customer.map_or_else(|| address(facts), |name| shown(name.as_bytes()))
}

fn describe_part(ruleset: &Ruleset, part: &KeyPart, facts: &Facts<'_>, resolved: &Resolved<'_>) -> String {
    match part {
        KeyPart::Customer => caller_of(facts, resolved),
        KeyPart::ClientAddress => address(facts),
        KeyPart::Host => shown(facts.host.as_bytes()),
        KeyPart::RoutePattern => resolved.path_pattern.to_owned(),
        KeyPart::Method => shown(facts.method.as_bytes()),
        part => match key::value(part, facts, resolved) {
            Err(_) => format!("no {}", part.describe()),
            Ok(_) if may_be_secret(part, ruleset.customers.as_ref()) => {
                let print = KeyHasher::stable().part(part, facts, resolved).map_or(0, |hash| hash.0 >> 96);
                format!("{} #{print:08x}", part.describe())
            }
            Ok(Value::Bytes(value)) => format!("{} {}", part.describe(), shown(&value)),
            Ok(Value::Address(address)) => format!("{} {address}", part.describe()),
        },
    }
}

fn address(facts: &Facts<'_>) -> String {
    facts.client.map_or_else(|| "no address".to_owned(), |address| address.to_string())
}

/// The text without control characters, which a terminal would obey, and cut if it is long.
fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut shown = String::with_capacity(text.len());
    for (count, c) in text.chars().enumerate() {
        match c {
            _ if count == MAX_VALUE_LENGTH => {
                shown.push('…');
                break;
            }
            c if c.is_control() => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown
}
