//! Keys: the values that a limit counts by, or by which an upstream chooses nodes.

use http::HeaderName;
use http::header::HOST;

use crate::config::problem::Problem;
use crate::config::read::{Field, unique_items};
use crate::config::scalar::{InvalidValue, invalid};
use crate::config::settings::NAMED_PART;
use crate::config::words;
use crate::ruleset::is_hop_by_hop;
use crate::ruleset::key::{Key, KeyPart, Repeated};

pub(super) const EXPECTED: &str = "`all`, `customer`, `plan`, `client_address`, `host`, `route`, `route_pattern`, `method`, `upstream_node`, `{header: NAME}`, `{query: NAME}`, \
     `{cookie: NAME}`, `{path_segment: NAME}`, `{jwt_claim: NAME}`, `{group: LEVEL}`, `{request_field: params.name}`, `{descriptor: KEY}`, or a list of these";

const WORDS: [(&str, KeyPart); 8] = [
    ("customer", KeyPart::Customer),
    ("plan", KeyPart::Plan),
    ("client_address", KeyPart::ClientAddress),
    ("host", KeyPart::Host),
    ("route", KeyPart::Route),
    ("route_pattern", KeyPart::RoutePattern),
    ("method", KeyPart::Method),
    ("upstream_node", KeyPart::UpstreamNode),
];

/// Reads a limit's `key`: one part, a list of parts, or `all`.
pub(super) fn read(field: &Field<'_>) -> Option<Key> {
    if !field.is_list() {
        return match field.is_scalar() && &*field.scalar_value(EXPECTED)?.text == "all" {
            true => Some(Key::default()),
            false => Some(Key { parts: vec![part(field)?] }),
        };
    }
    unique_items(&field.nonempty_list(EXPECTED)?, part, KeyPart::describe).map(|parts| Key { parts })
}

/// Reads one part of a key.
pub(super) fn part(field: &Field<'_>) -> Option<KeyPart> {
    if field.is_scalar() {
        return word(field);
    }
    let section = field.section_or(&NAMED_PART, EXPECTED)?;
    let repeated = section.get_or("repeated", Repeated::Deny, |field| {
        match ["path_segment", "jwt_claim", "group", "request_field", "descriptor"].iter().any(|kind| section.has(kind))
        {
            true => field.fail(field.key_error("is for what a request may carry more than once")),
            false => field.choice(&[("deny", Repeated::Deny), ("first", Repeated::First), ("last", Repeated::Last)]),
        }
    })?;
    let mut parts = section.fields().filter_map(|(kind, name)| match kind {
        "header" => Some(header(&name).map(|name| KeyPart::Header(name, repeated))),
        "query" => Some(name.read(named).map(|name| KeyPart::Query(name, repeated))),
        "cookie" => Some(name.read(cookie_name).map(|name| KeyPart::Cookie(name, repeated))),
        "path_segment" => Some(name.read(named).map(KeyPart::PathSegment)),
        "jwt_claim" => Some(name.read(named).map(KeyPart::JwtClaim)),
        "group" => Some(name.read(named).map(KeyPart::Group)),
        "request_field" => Some(name.field_path().map(KeyPart::RequestField)),
        "descriptor" => Some(name.read(named).map(KeyPart::Descriptor)),
        _ => None,
    });
    match (parts.next(), parts.next()) {
        (Some(part), None) => part,
        (None, _) if section.fields().any(|(kind, _)| kind != "repeated") => None,
        _ => field.fail(Problem::error(field.place(), "does not name one part of a key").expected(EXPECTED)),
    }
}

fn word(field: &Field<'_>) -> Option<KeyPart> {
    let word = field.scalar_value(EXPECTED)?;
    let today = field.renamed(&[("path", "route_pattern")]).unwrap_or(&word.text);
    if let Some((_, part)) = WORDS.iter().find(|(known, _)| *known == today) {
        return Some(part.clone());
    }
    let problem = match &*word.text {
        "all" => field.error("means one bucket for everybody, so it cannot be a part of a longer key"),
        name @ ("header" | "query" | "cookie" | "path_segment" | "jwt_claim" | "group" | "request_field"
        | "descriptor") => field.error("needs a name").hint(format!("write `{{{name}: NAME}}`")),
        text => {
            let known = WORDS.iter().map(|(known, _)| *known).chain(["all"]);
            let like_a_header = || text.contains('-').then(|| words::did_you_mean(&format!("{{header: {text}}}")));
            let hint = field.findings().suggest(text, known).or_else(like_a_header);
            field.error("is not a part of a key").hint(hint)
        }
    };
    field.fail(problem.expected(EXPECTED))
}

/// Reads the name of a header field whose value is a part of a key: one that upstreams get, so that clients cannot make it up.
fn header(field: &Field<'_>) -> Option<HeaderName> {
    match field.request_header_name()? {
        name if name == HOST => {
            field.fail(field.error("has several spellings for each host").hint("write `host`, without `header`"))
        }
        name if is_hop_by_hop(name.as_str().as_bytes()) => {
            field.fail(field.error("concerns one connection only: no upstream gets it, and clients can make it up"))
        }
        name => Some(name),
    }
}

pub(super) fn named(text: &str) -> Result<String, InvalidValue> {
    match text.is_empty() {
        true => Err(invalid("is empty")),
        false => Ok(text.to_owned()),
    }
}

pub(super) fn cookie_name(text: &str) -> Result<String, InvalidValue> {
    // names of cookies and of header fields consist of the same characters (RFC 6265, section 4.1.1)
    match HeaderName::from_bytes(text.as_bytes()) {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(invalid("is not the name of a cookie")),
    }
}
