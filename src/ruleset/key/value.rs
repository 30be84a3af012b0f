//! The values of a request for the parts of a key.

use std::borrow::Cow;
use std::net::IpAddr;

use http::HeaderName;
use http::header::AUTHORIZATION;

use super::{Facts, KeyPart, Repeated, Resolved};
use crate::fields::Fields;
use crate::ruleset::path::named_segment;
use crate::ruleset::request_field::FieldValue;

/// The value of a request for a part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value<'f> {
    /// An address, or a network.
    Address(IpAddr),
    /// Anything else.
    Bytes(Cow<'f, [u8]>),
}

/// Why a request has no value for a part of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueFault {
    /// The request lacks the part.
    Missing,
    /// The request has several values, and the part does not say which one counts.
    Repeated,
    /// The value cannot be part of a key.
    Unreadable,
}

/// The value of a request for `part`.
pub fn value<'f>(part: &KeyPart, facts: &Facts<'f>, resolved: &Resolved<'f>) -> Result<Value<'f>, ValueFault> {
    let of_client = || facts.client.map(Value::Address).ok_or(ValueFault::Missing);
    let text = match part {
        KeyPart::ClientAddress => return of_client(),
        KeyPart::Customer if resolved.customer.is_none() => return of_client(),
        KeyPart::Customer => resolved.customer,
        KeyPart::Plan => resolved.plan.map(|(_, name)| name),
        KeyPart::Group(level) => resolved.groups.and_then(|groups| groups.at(level)).map(|group| &*group.name),
        KeyPart::Host => Some(facts.host),
        KeyPart::Route => Some(resolved.route),
        KeyPart::RoutePattern => Some(resolved.path_pattern),
        KeyPart::Method => Some(facts.method),
        KeyPart::UpstreamNode => resolved.upstream_node,
        KeyPart::PathSegment(name) => named_segment(resolved.path_pattern, facts.path, name),
        KeyPart::Descriptor(_) => None,
        KeyPart::Header(name, repeated) => {
            return one(facts.headers.get_all(name.as_str()).map(|value| header_value(name, value)), *repeated);
        }
        KeyPart::Query(name, repeated) => {
            return one(query_values(facts.query, name).map(Cow::Owned), *repeated);
        }
        KeyPart::Cookie(name, repeated) => {
            return one(cookies(facts.headers, name).map(Cow::Borrowed), *repeated);
        }
        KeyPart::RequestField(path) => {
            let field = facts.body.map_or(&FieldValue::Unreadable, |body| body.get(path));
            let fault = if *field == FieldValue::Missing { ValueFault::Missing } else { ValueFault::Unreadable };
            return field.text().map(|text| Value::Bytes(Cow::Borrowed(text))).ok_or(fault);
        }
        KeyPart::JwtClaim(name) => {
            let claim = resolved.claims.and_then(|claims| claims.text(name)).ok_or(ValueFault::Missing)?;
            return Ok(Value::Bytes(match claim {
                Cow::Borrowed(claim) => Cow::Borrowed(claim.as_bytes()),
                Cow::Owned(claim) => Cow::Owned(claim.into_bytes()),
            }));
        }
    };
    text.map(|text| Value::Bytes(Cow::Borrowed(text.as_bytes()))).ok_or(ValueFault::Missing)
}

/// The value that counts among several.
fn one<'f>(mut values: impl Iterator<Item = Cow<'f, [u8]>>, repeated: Repeated) -> Result<Value<'f>, ValueFault> {
    let first = values.next().ok_or(ValueFault::Missing)?;
    let value = match (repeated, values.next()) {
        (Repeated::First, _) | (_, None) => first,
        (Repeated::Last, Some(second)) => values.last().unwrap_or(second),
        (Repeated::Deny, Some(_)) => return Err(ValueFault::Repeated),
    };
    Ok(Value::Bytes(value))
}

/// The value of a header field in the one spelling that is counted: upstreams take the scheme of a credential in any case,
/// with any white space behind it (RFC 9110, section 11.4).
pub fn header_value<'v>(name: &HeaderName, value: &'v [u8]) -> Cow<'v, [u8]> {
    if *name != AUTHORIZATION {
        return Cow::Borrowed(value);
    }
    match value.iter().position(u8::is_ascii_whitespace).and_then(|end| value.split_at_checked(end)) {
        Some((scheme, credentials)) => {
            Cow::Owned([&scheme.to_ascii_lowercase(), &b" "[..], credentials.trim_ascii()].concat())
        }
        None => Cow::Borrowed(value),
    }
}

/// The values of the query parameter `wanted`, percent-decoded (`+` is a space), in the order of the query.
pub fn query_values(query: Option<&str>, wanted: &str) -> impl Iterator<Item = Vec<u8>> {
    query.unwrap_or_default().split('&').filter_map(move |pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (!pair.is_empty() && decode(name) == wanted.as_bytes()).then(|| decode(value))
    })
}

/// Whether some server may find the parameter `wanted` in the query: servers differ on the case of names, on white space
/// before them, and on whether `;` separates parameters.
pub fn may_have_parameter(query: Option<&str>, wanted: &str) -> bool {
    query.unwrap_or_default().split(['&', ';']).any(|pair| {
        let name = pair.split_once('=').map_or(pair, |(name, _)| name);
        decode(name).trim_ascii().eq_ignore_ascii_case(wanted.as_bytes())
    })
}

fn decode(text: &str) -> Vec<u8> {
    percent_encoding::percent_decode_str(&text.replace('+', " ")).collect()
}

/// The values of the cookies of this name (RFC 6265), in the order of the request, without white space and quotes around
/// them, which many servers do not count in.
pub fn cookies<'a>(headers: &'a Fields, wanted: &str) -> impl Iterator<Item = &'a [u8]> {
    let lines = headers.get_all("cookie");
    lines.flat_map(|line| line.split(|byte| *byte == b';')).filter_map(move |pair| {
        let (name, value) = pair.split_at_checked(pair.iter().position(|byte| *byte == b'=')?)?;
        (name.trim_ascii() == wanted.as_bytes()).then(|| match value.get(1..).unwrap_or_default().trim_ascii() {
            [b'"', quoted @ .., b'"'] => quoted,
            plain => plain,
        })
    })
}
