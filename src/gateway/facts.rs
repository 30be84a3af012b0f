//! From a request's head to the canonical facts that are matched, counted and forwarded.
//!
//! The gateway matches what it forwards: it makes the target canonical once, and refuses a request whose target cannot be
//! made canonical. Nothing here reads a body or waits.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::fields::{Field, Fields};
use crate::http::body::Framing;
use crate::http::head::{RequestHead, Version};
use crate::http::listener::{Peer, TlsInfo};
pub use crate::http::syntax::{Refused, is_target_byte};
use crate::ruleset::key::Facts;
use crate::ruleset::{AddressHeader, ClientAddress, HeadLimits, Ruleset, host, path};

mod forwarded;

const OTHER_HOST: Refused = Refused::Malformed("the host header names another host than the request target");

/// The head of a request as it was sent, and its sender.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    /// The method, as sent.
    pub method: &'a str,
    /// The request target, as sent.
    pub raw_target: &'a [u8],
    /// The header fields.
    pub headers: &'a Fields,
    /// The other end of the connection.
    pub peer: Option<IpAddr>,
    /// Whether the request came over TLS.
    pub secure: bool,
    /// The details of the TLS connection; `None` also if another proxy terminated it.
    pub tls_info: Option<&'a TlsInfo>,
    /// Whether a body of any length follows: over HTTP/2 no field has to announce it.
    pub streams_body: bool,
}

/// The canonical target of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The host with its port, in the form for upstreams: lower case, without a user or a final dot.
    pub authority: String,
    /// The length of the host, with which the authority begins.
    host_length: usize,
    /// The canonical path, which is forwarded: one leading slash, no empty or dot segments, unreserved characters decoded.
    pub path: String,
    /// The form of the path that is matched and counted, if it is another one.
    matched: Option<String>,
    /// Whether the path has parameters.
    pub has_parameters: bool,
    /// The query as sent, without its question mark.
    pub query: Option<String>,
}

impl<'a> Head<'a> {
    /// The head of a request that this gateway received from `peer`.
    pub fn of(request: &'a RequestHead, peer: &'a Peer) -> Self {
        let tls_info = peer.tls_info.as_ref();
        Self { tls_info, ..Self::of_question(request, peer.address(), tls_info.is_some()) }
    }

    /// The head of a request that another proxy received from `peer`, and that it asks about.
    pub fn of_question(request: &'a RequestHead, peer: Option<IpAddr>, secure: bool) -> Self {
        Self {
            method: &request.method,
            raw_target: &request.target,
            headers: &request.fields,
            peer,
            secure,
            tls_info: None,
            streams_body: request.version == Version::Http2 && request.framing != Framing::Empty,
        }
    }

    /// The canonical target of the request. Refuses a head that exceeds `bounds`, and a method that no server answers.
    pub fn target(&self, bounds: &HeadLimits) -> Result<Target, Refused> {
        check_size(self.raw_target, self.headers, bounds)?;
        check_method(self.method)?;
        Target::new(self)
    }

    /// The client's own address; see [`client_address`].
    pub fn address(&self, rules: &ClientAddress) -> Option<IpAddr> {
        client_address(self.peer, self.headers, rules)
    }

    /// The facts to match and count a request by: it has this head and the canonical `target`.
    pub fn facts(&self, rules: &ClientAddress, target: &'a Target) -> Facts<'a> {
        let address = self.address(rules);
        Facts {
            method: self.method,
            host: target.host(),
            path: target.matched_path(),
            query: target.query.as_deref(),
            headers: self.headers,
            client: address.map(|address| rules.prefixes.network(address)),
            address,
            certificate: self.tls_info.and_then(TlsInfo::client),
            from_trusted_proxy: rules.is_trusted(self.peer),
            streams_body: self.streams_body,
            body: None,
        }
    }
}

/// Removes the fields that only a trusted proxy may send, unless `peer` is one: the client's own statements about earlier
/// hops choose no route or key, and no upstream gets them.
pub fn remove_untrusted(headers: &mut Fields, peer: Option<IpAddr>, ruleset: &Ruleset) {
    let rules = &ruleset.client_address;
    let plan_from = ruleset.customers.as_ref().and_then(|customers| customers.plan_from.as_ref());
    let is_claim = |name: &[u8]| {
        rules.is_hop_field(name)
            || plan_from.is_some_and(|from| name.eq_ignore_ascii_case(from.name.as_str().as_bytes()))
    };
    // few requests have such fields, so whether the sender is trusted comes second
    if headers.names().any(is_claim) && !rules.is_trusted(peer) {
        headers.remove(|_, name| is_claim(name));
    }
}

/// Checks a head's size.
fn check_size(raw_target: &[u8], headers: &Fields, bounds: &HeadLimits) -> Result<(), Refused> {
    if raw_target.len() > bounds.max_target {
        return Err(Refused::TargetTooLong(bounds.max_target));
    }
    if headers.len() > bounds.max_headers {
        return Err(Refused::HeadTooLarge("the request has too many header fields"));
    }
    let length = |field: Field<'_>| field.name.len() + field.value.len() + ": \r\n".len();
    // few heads are longer than one field may be
    let may_be_long = headers.as_bytes().len() > bounds.max_header;
    if may_be_long && headers.iter().any(|field| length(field) > bounds.max_header) {
        return Err(Refused::HeadTooLarge("a header field of the request is too large"));
    }
    if headers.as_bytes().len() > bounds.max_headers_total {
        return Err(Refused::HeadTooLarge("the header fields of the request are too large together"));
    }
    Ok(())
}

/// Refuses methods that concern the way to a server instead of its resources, and methods in lower case: an upstream may
/// take `post` for `POST`, which has other routes and limits.
pub fn check_method(method: &str) -> Result<(), Refused> {
    match method {
        "TRACE" | "CONNECT" => Err(Refused::MethodNotServed),
        _ if method.bytes().any(|byte| byte.is_ascii_lowercase()) => {
            Err(Refused::Malformed("the method of the request is not in capitals"))
        }
        _ => Ok(()),
    }
}

impl Target {
    /// The host alone.
    pub fn host(&self) -> &str {
        self.authority.get(..self.host_length).unwrap_or_default()
    }

    /// The path that is matched and counted: without its parameters, so that an upstream that strips them sees no other, and
    /// with characters that upstreams may read alike in one spelling.
    pub fn matched_path(&self) -> &str {
        self.matched.as_deref().unwrap_or(&self.path)
    }

    /// Makes the target of a request canonical.
    fn new(head: &Head<'_>) -> Result<Self, Refused> {
        let mut hosts = head.headers.get_all("host");
        let (host, None) = (hosts.next(), hosts.next()) else {
            return Err(Refused::Malformed("the request has more than one host header"));
        };
        let host = host.ok_or(Refused::Malformed("the request has no host header"))?;
        let host = str::from_utf8(host).map_err(|_| Refused::Malformed("the host header is no host name"))?;
        let (host, port) = canonical_host(host)?;
        let default_port = if head.secure { 443 } else { 80 };
        let (path, query) = path_and_query(head.method, head.raw_target, &host)?;
        if !head.raw_target.starts_with(b"/") {
            check_port(head.raw_target, port)?;
        }
        // a target that is sent on as it came has a plain path
        let (matched, has_parameters) = match &path {
            Cow::Borrowed(_) => (None, false),
            Cow::Owned(path) => (path::matched_form(path), path::has_parameters(path)),
        };
        let query = query.map(str::to_owned);
        let (host_length, mut authority) = (host.len(), host);
        if let Some(port) = port.filter(|port| *port != default_port) {
            authority.push(':');
            authority.push_str(itoa::Buffer::new().format(port));
        }
        Ok(Self { authority, host_length, path: path.into_owned(), matched, has_parameters, query })
    }
}

/// The canonical path and the query of a request target sent to the canonical `host`.
pub fn path_and_query<'t>(
    method: &str,
    raw_target: &'t [u8],
    host: &str,
) -> Result<(Cow<'t, str>, Option<&'t str>), Refused> {
    let plain = path::plain_length(raw_target);
    let raw = printable(raw_target, plain)?;
    // most targets are a path in canonical form, with or without a query
    match raw.split_at_checked(plain) {
        Some((path, "")) if plain > 0 => return Ok((Cow::Borrowed(path), None)),
        Some((path, rest)) if plain > 0 && rest.starts_with('?') => return Ok((Cow::Borrowed(path), rest.get(1..))),
        _ => {}
    }
    let rest = match absolute_form(raw) {
        _ if raw.starts_with('/') => raw,
        Some((_, authority, _)) if canonical_host(authority)?.0 != host => return Err(OTHER_HOST),
        // a question about the whole server (RFC 9112, section 3.2.4)
        Some((_, _, "")) if method == "OPTIONS" => return Ok((Cow::Borrowed("*"), None)),
        Some((_, _, rest)) => rest,
        None if raw == "*" && method == "OPTIONS" => return Ok((Cow::Borrowed(raw), None)),
        None => return Err(Refused::Malformed("the request target must begin with a slash")),
    };
    let (raw_path, query) = match rest.split_once('?') {
        Some((raw_path, query)) => (raw_path, Some(query)),
        None => (rest, None),
    };
    Ok((path::canonical(raw_path).map_err(Refused::Malformed)?, query))
}

/// The usual port, the authority and the rest of a target that is a whole URL.
pub fn absolute_form(raw: &str) -> Option<(u16, &str, &str)> {
    let (scheme, rest) = raw.split_once("://")?;
    let usual_port = match scheme {
        _ if scheme.eq_ignore_ascii_case("http") => 80,
        _ if scheme.eq_ignore_ascii_case("https") => 443,
        _ => return None,
    };
    let (authority, rest) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    Some((usual_port, authority, rest))
}

/// Refuses a target that names another port than the host header, which has this `port`.
fn check_port(raw_target: &[u8], port: Option<u16>) -> Result<(), Refused> {
    let absolute = str::from_utf8(raw_target).ok().and_then(absolute_form);
    let Some((usual_port, authority, _)) = absolute else { return Ok(()) };
    match canonical_host(authority)?.1.unwrap_or(usual_port) == port.unwrap_or(usual_port) {
        true => Ok(()),
        false => Err(OTHER_HOST),
    }
}

/// The target as text. The caller knows that its first `plain` bytes are letters, digits and similar characters.
fn printable(raw: &[u8], plain: usize) -> Result<&str, Refused> {
    if !raw.get(plain..).unwrap_or_default().iter().all(|byte| is_target_byte(*byte)) {
        return Err(Refused::TARGET);
    }
    str::from_utf8(raw).map_err(|_| Refused::Malformed("the request target is not ASCII"))
}

/// The host, and its port if it has one. Names are letters, digits, `-` and `_` between dots; addresses have their usual
/// spelling.
pub fn canonical_host(raw: &str) -> Result<(String, Option<u16>), Refused> {
    const BAD: Refused = Refused::Malformed("the host header is no host name");
    let (host, port) = match raw.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']').ok_or(BAD)?;
            let address: Ipv6Addr = address.parse().map_err(|_| BAD)?;
            (format!("[{address}]"), port)
        }
        None => {
            let (name, port) = raw.split_at(raw.bytes().position(|byte| byte == b':').unwrap_or(raw.len()));
            let name = name.strip_suffix('.').unwrap_or(name);
            if !host::is_name(name) {
                return Err(BAD);
            }
            (name.to_ascii_lowercase(), port)
        }
    };
    match port.strip_prefix(':') {
        None if port.is_empty() => Ok((host, None)),
        // an empty port is allowed (RFC 3986, section 3.2.3)
        Some("") => Ok((host, None)),
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            Ok((host, Some(digits.parse().map_err(|_| BAD)?)))
        }
        None | Some(_) => Err(BAD),
    }
}

/// The client's own address.
///
/// The gateway believes a header field only from a trusted `peer`. It follows a list of hops from right to left as long as
/// they are trusted, or for as many hops as `rules` say. `None` if a trusted proxy wrote something that is no address, and
/// if a `peer` without an address is not trusted, so that such requests share one bucket.
pub fn client_address(peer: Option<IpAddr>, headers: &Fields, rules: &ClientAddress) -> Option<IpAddr> {
    let client = peer.map(|peer| peer.to_canonical());
    if !rules.is_trusted(client) {
        return client;
    }
    let mut lines = headers.get_all(rules.header.name());
    match rules.header {
        AddressHeader::XForwardedFor => {
            let lines: Vec<&[u8]> = lines.collect();
            let hops = lines.iter().rev().flat_map(|line| line.rsplit(|byte| *byte == b','));
            farthest(client, hops.map(|hop| read_address(hop.trim_ascii())), rules)
        }
        AddressHeader::Forwarded => {
            let hops: Option<Vec<_>> = lines.map(forwarded::hops).collect();
            farthest(client, hops?.into_iter().flatten().rev(), rules)
        }
        AddressHeader::Single(_) => match (lines.next(), lines.next()) {
            (None, _) => client,
            (Some(only), None) => read_address(only.trim_ascii()).map(|address| address.to_canonical()),
            (Some(_), Some(_)) => None,
        },
    }
}

/// The client behind a trusted `peer`; the first of `hops` is the one that the peer wrote.
fn farthest(peer: Option<IpAddr>, hops: impl Iterator<Item = Option<IpAddr>>, rules: &ClientAddress) -> Option<IpAddr> {
    let mut hops = hops.map(|hop| hop.map(|address| address.to_canonical())).peekable();
    if let (Some(depth), Some(_)) = (rules.hops, hops.peek()) {
        return hops.nth(depth.get() - 1).flatten();
    }
    let mut client = peer;
    for hop in hops {
        client = Some(hop?);
        if !rules.is_trusted(client) {
            break;
        }
    }
    client
}

/// Reads an address as proxies write it: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:80`,
/// each with or without quotes. With an invalid port it is no address.
pub fn read_address(text: &[u8]) -> Option<IpAddr> {
    let text = match text {
        [b'"', quoted @ .., b'"'] => quoted,
        plain => plain,
    };
    let (address, port) = match (dotted_quad(text), text) {
        (Some((address, port)), _) => (IpAddr::V4(address), port),
        (None, [b'[', rest @ ..]) => {
            let (address, port) = rest.split_at(rest.iter().position(|byte| *byte == b']')?);
            (IpAddr::V6(str::from_utf8(address).ok()?.parse().ok()?), port.get(1..)?)
        }
        (None, _) => (IpAddr::V6(str::from_utf8(text).ok()?.parse().ok()?), &[][..]),
    };
    (port.is_empty() || is_port(port.strip_prefix(b":")?)).then_some(address)
}

fn is_port(digits: &[u8]) -> bool {
    let number = |digits: &[u8]| str::from_utf8(digits).ok()?.parse::<u16>().ok();
    digits.iter().all(u8::is_ascii_digit) && number(digits).is_some()
}

/// Reads an IPv4 address, which most are, and returns it with the rest of the text. The standard library reads slower.
fn dotted_quad(text: &[u8]) -> Option<(Ipv4Addr, &[u8])> {
    let (first, text) = octet(text)?;
    let (second, text) = octet(text.strip_prefix(b".")?)?;
    let (third, text) = octet(text.strip_prefix(b".")?)?;
    let (fourth, text) = octet(text.strip_prefix(b".")?)?;
    Some((Ipv4Addr::new(first, second, third, fourth), text))
}

/// Reads a number up to 255 without leading zeros, and returns it with the rest of the text.
fn octet(text: &[u8]) -> Option<(u8, &[u8])> {
    match *text {
        [a @ b'1'..=b'2', b @ b'0'..=b'9', c @ b'0'..=b'9', ref rest @ ..] => {
            let tens = (b - b'0') * 10 + (c - b'0');
            Some((((a - b'0') * 100).checked_add(tens)?, rest))
        }
        [a @ b'1'..=b'9', b @ b'0'..=b'9', ref rest @ ..] => Some(((a - b'0') * 10 + (b - b'0'), rest)),
        [a @ b'0'..=b'9', ref rest @ ..] => Some((a - b'0', rest)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
