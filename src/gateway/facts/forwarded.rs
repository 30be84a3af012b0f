//! The `Forwarded` header field, as RFC 7239 defines it.

use std::net::IpAddr;

use super::read_address;

/// The maximum number of parameters of one hop. The RFC names four.
const MAX_PARAMETERS: usize = 16;

/// The addresses in `for` of all hops in one line, from the left. A hop has no address if its `for` names none (`unknown`,
/// `_hidden`) or is missing. `None`: the line does not follow the RFC.
pub(super) fn hops(mut line: &[u8]) -> Option<Vec<Option<IpAddr>>> {
    let mut hops = Vec::new();
    loop {
        let mut names: Vec<&[u8]> = Vec::new();
        let mut client = None;
        line = line.trim_ascii_start();
        loop {
            let (name, rest) = token(line)?;
            let (value, rest) = value(rest.strip_prefix(b"=")?)?;
            // a hop has each parameter at most once
            if names.len() >= MAX_PARAMETERS || names.iter().any(|other| other.eq_ignore_ascii_case(name)) {
                return None;
            }
            names.push(name);
            if name.eq_ignore_ascii_case(b"for") {
                client = address(value);
            }
            line = rest;
            match line.strip_prefix(b";") {
                Some(rest) => line = rest,
                None => break,
            }
        }
        hops.push(client);
        line = line.trim_ascii_start();
        match line {
            [] => return Some(hops),
            [b',', rest @ ..] => line = rest,
            _ => return None,
        }
    }
}

enum Value<'l> {
    Token(&'l [u8]),
    /// The text between the quotes.
    Quoted(&'l [u8]),
}

fn value(line: &[u8]) -> Option<(Value<'_>, &[u8])> {
    let Some(quoted) = line.strip_prefix(b"\"") else {
        return token(line).map(|(token, rest)| (Value::Token(token), rest));
    };
    let mut escaped = false;
    let end = quoted.iter().position(|byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    })?;
    Some((Value::Quoted(quoted.get(..end)?), quoted.get(end.checked_add(1)?..)?))
}

/// The address of a hop, if it follows the RFC: only IPv4 without a port needs no quotes, and IPv6 has brackets. A text with
/// escapes is no address.
fn address(value: Value<'_>) -> Option<IpAddr> {
    let (text, quoted) = match value {
        Value::Token(text) => (text, false),
        Value::Quoted(text) => (text, true),
    };
    let found = read_address(text).filter(|_| text.first() != Some(&b'"'))?;
    match found {
        IpAddr::V4(_) => (quoted || !text.contains(&b':')).then_some(found),
        IpAddr::V6(_) => (quoted && text.starts_with(b"[")).then_some(found),
    }
}

fn token(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let end = line.iter().position(|byte| !is_part(byte)).unwrap_or(line.len());
    line.split_at_checked(end).filter(|(token, _)| !token.is_empty())
}
