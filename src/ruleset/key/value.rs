//! What a request has for the parts of a key.

use std::borrow::Cow;
use std::net::IpAddr;

use super::{Caller, Facts, KeyPart, Resolved};

/// What a request has for a part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value<'f> {
    /// An address, or a network.
    Address(IpAddr),
    /// Anything else.
    Bytes(Cow<'f, [u8]>),
}

/// What a request is counted by under `part`; `None` if it lacks that.
pub fn value<'f>(part: &KeyPart, facts: &Facts<'f>, resolved: &Resolved<'f>) -> Option<Value<'f>> {
    let text = match part {
        KeyPart::ClientAddress => return facts.client.map(Value::Address),
        KeyPart::Customer => match resolved.caller {
            Caller::Customer(name) => Some(name),
            Caller::Anonymous => return facts.client.map(Value::Address),
        },
        KeyPart::Plan => resolved.plan.map(|(_, name)| name),
        KeyPart::Host => Some(facts.host),
        KeyPart::Route => Some(resolved.route),
        KeyPart::Path => Some(resolved.path_pattern),
        KeyPart::Method => Some(facts.method),
        KeyPart::UpstreamNode => resolved.upstream_node,
        KeyPart::Header(name) => return header_value(facts.headers, name).map(Value::Bytes),
        KeyPart::Query(name) => {
            return query_values(facts.query, name).next().map(|value| Value::Bytes(Cow::Owned(value)));
        }
        KeyPart::Cookie(name) => {
            return cookies(facts.headers, name).next().map(|value| Value::Bytes(Cow::Borrowed(value)));
        }
        KeyPart::JwtClaim(name) => {
            let claim = resolved.claims.and_then(|claims| claims.text(name))?;
            return Some(Value::Bytes(match claim {
                Cow::Borrowed(claim) => Cow::Borrowed(claim.as_bytes()),
                Cow::Owned(claim) => Cow::Owned(claim.into_bytes()),
            }));
        }
    };
    text.map(|text| Value::Bytes(Cow::Borrowed(text.as_bytes())))
}

/// Several lines are one value, joined by commas.
fn header_value<'f>(headers: &'f http::HeaderMap, name: &http::HeaderName) -> Option<Cow<'f, [u8]>> {
    let mut lines = headers.get_all(name).iter().map(http::HeaderValue::as_bytes);
    match (lines.next(), lines.next()) {
        (only, None) => only.map(Cow::Borrowed),
        (Some(first), Some(second)) => {
            let all: Vec<&[u8]> = [first, second].into_iter().chain(lines).collect();
            Some(Cow::Owned(all.join(&b","[..])))
        }
        (None, Some(_)) => None,
    }
}

/// The values of the query parameter `wanted`, percent-decoded (`+` is a space), in the order of the query.
pub fn query_values(query: Option<&str>, wanted: &str) -> impl Iterator<Item = Vec<u8>> {
    let decode = |text: &str| -> Vec<u8> { percent_encoding::percent_decode_str(&text.replace('+', " ")).collect() };
    query.unwrap_or_default().split('&').filter_map(move |pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (!pair.is_empty() && decode(name) == wanted.as_bytes()).then(|| decode(value))
    })
}

/// The values of the cookies of this name (RFC 6265), in the order of the request.
pub fn cookies<'a>(headers: &'a http::HeaderMap, wanted: &str) -> impl Iterator<Item = &'a [u8]> {
    let lines = headers.get_all(http::header::COOKIE).iter();
    lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';')).filter_map(move |pair| {
        let pair = pair.trim_ascii();
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        let (name, value) = pair.split_at(equals);
        (name == wanted.as_bytes()).then(|| value.split_first().map_or(&[][..], |(_, value)| value))
    })
}
