//! From a request's head to the canonical facts that are matched, counted and forwarded.
//!
//! What is matched is what is forwarded: the target is made canonical once, and a request that cannot be made so is
//! refused. Nothing here reads a body or waits.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::{HeaderMap, HeaderName, HeaderValue, header};
use ipnet::Ipv6Net;
use pingora::http::RequestHeader;

use crate::ruleset::key::Facts;
use crate::ruleset::{ClientAddress, RequestHead, is_dropped, path};

/// A request's head as it came, and where from.
#[derive(Clone, Copy)]
pub struct Head<'a> {
    /// The method, as sent.
    pub method: &'a str,
    /// The request target, as sent.
    pub raw_target: &'a [u8],
    /// The header fields.
    pub headers: &'a HeaderMap,
    /// The other end of the connection.
    pub peer: Option<IpAddr>,
    /// Whether it came over TLS.
    pub secure: bool,
    /// The common name in the certificate that the client showed, if it showed one.
    pub certificate: Option<&'a str>,
}

/// The canonical target of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Lower case, without a port, user or final dot.
    pub host: String,
    /// The host with its port, as upstreams are told.
    pub authority: String,
    /// Resolved: one leading slash, no empty or dot segments, unreserved characters decoded.
    pub path: String,
    /// Without its question mark, as sent.
    pub query: Option<String>,
}

/// Why a request is refused before it is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The target or the host cannot be made canonical.
    #[error("{0}")]
    Malformed(&'static str),
    /// The target is too long.
    #[error("the request target is longer than {0} bytes")]
    TargetTooLong(usize),
    /// There are too many header bytes or lines.
    #[error("{0}")]
    HeadTooLarge(&'static str),
    /// The body is coded in a way that is not understood.
    #[error("the transfer coding of the request is not understood")]
    CodingUnknown,
    /// The method is not served.
    #[error("the method is not served")]
    MethodNotServed,
}

impl Refused {
    /// The target holds what no target may hold.
    pub(super) const TARGET: Self =
        Self::Malformed("the request target holds a character that has to be percent-encoded");
}

impl<'a> Head<'a> {
    /// Its target, canonical.
    pub fn target(&self) -> Result<Target, Refused> {
        Target::new(self)
    }

    /// The client's own address; see [`client_address`].
    pub fn address(&self, rules: &ClientAddress) -> Option<IpAddr> {
        client_address(self.peer, self.headers, rules)
    }

    /// What is matched and counted of a request with this head, its canonical `target` and its client's `address`.
    pub fn facts(&self, rules: &ClientAddress, target: &'a Target, address: Option<IpAddr>) -> Facts<'a> {
        Facts {
            method: self.method,
            host: &target.host,
            path: &target.path,
            query: target.query.as_deref(),
            headers: self.headers,
            client: address.map(|address| network(address, rules.ipv6_prefix)),
            address,
            certificate: self.certificate,
        }
    }
}

/// Writes a head of HTTP/2 as one of HTTP/1.1: the host as a field, and cookies in one (RFC 9113, section 8.2.3).
pub fn spell_as_http1(head: &mut RequestHeader) -> pingora::Result<()> {
    if !head.headers.contains_key(header::HOST)
        && let Some(authority) = head.uri.authority().cloned()
    {
        head.insert_header(header::HOST, authority.as_str())?;
    }
    let crumbs: Vec<&[u8]> = head.headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if crumbs.len() > 1 {
        let whole = crumbs.join(&b"; "[..]);
        head.insert_header(header::COOKIE, whole)?;
    }
    Ok(())
}

/// Drops the fields that nobody is to see; see [`is_dropped`].
pub fn drop_fields(head: &mut RequestHeader) {
    let names: Vec<HeaderName> = head.headers.keys().filter(|name| is_dropped(name)).cloned().collect();
    names.iter().for_each(|name| drop(head.remove_header(name)));
}

/// Checks a head's size.
pub fn check_size(raw_target: &[u8], headers: &HeaderMap, bounds: &RequestHead) -> Result<(), Refused> {
    if raw_target.len() > bounds.max_target {
        return Err(Refused::TargetTooLong(bounds.max_target));
    }
    if headers.len() > bounds.max_headers {
        return Err(Refused::HeadTooLarge("the request has too many header fields"));
    }
    let mut total = 0;
    for (name, value) in headers {
        let length = name.as_str().len() + value.len() + ": \r\n".len();
        if length > bounds.max_header {
            return Err(Refused::HeadTooLarge("a header field of the request is too large"));
        }
        total += length;
    }
    if total > bounds.max_headers_total {
        return Err(Refused::HeadTooLarge("the header fields of the request are too large together"));
    }
    Ok(())
}

/// Refuses methods that are about the way to a server rather than about what it has.
pub fn check_method(method: &str) -> Result<(), Refused> {
    match method {
        "TRACE" | "CONNECT" => Err(Refused::MethodNotServed),
        _ => Ok(()),
    }
}

impl Target {
    /// Makes the target of a request canonical.
    pub fn new(head: &Head<'_>) -> Result<Self, Refused> {
        let mut hosts = head.headers.get_all(header::HOST).iter();
        let (host, None) = (hosts.next(), hosts.next()) else {
            return Err(Refused::Malformed("the request has more than one host header"));
        };
        let host = host.ok_or(Refused::Malformed("the request has no host header"))?;
        let host = host.to_str().map_err(|_| Refused::Malformed("the host header is no host name"))?;
        let (host, port) = canonical_host(host)?;
        let default_port = if head.secure { 443 } else { 80 };
        let authority = match port.filter(|port| *port != default_port) {
            Some(port) => format!("{host}:{port}"),
            None => host.clone(),
        };
        let (path, query) = path_and_query(head.method, head.raw_target, &host)?;
        let (path, query) = (path.into_owned(), query.map(str::to_owned));
        Ok(Self { host, authority, path, query })
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
    // most targets are a path that is canonical as it stands, and perhaps a query
    match raw.split_at_checked(plain) {
        Some((path, "")) if plain > 0 => return Ok((Cow::Borrowed(path), None)),
        Some((path, rest)) if plain > 0 && rest.starts_with('?') => return Ok((Cow::Borrowed(path), rest.get(1..))),
        _ => {}
    }
    let rest = match raw.strip_prefix("http://").or_else(|| raw.strip_prefix("https://")) {
        Some(absolute) => {
            let end = absolute.find(['/', '?']).unwrap_or(absolute.len());
            let (named, rest) = absolute.split_at(end);
            if canonical_host(named)?.0 != host {
                return Err(Refused::Malformed("the host header names another host than the request target"));
            }
            rest
        }
        None if raw == "*" && method == "OPTIONS" => return Ok((Cow::Borrowed(raw), None)),
        None if raw.starts_with('/') => raw,
        None => return Err(Refused::Malformed("the request target must begin with a slash")),
    };
    let (raw_path, query) = match rest.split_once('?') {
        Some((raw_path, query)) => (raw_path, Some(query)),
        None => (rest, None),
    };
    Ok((path::canonical(raw_path).map_err(Refused::Malformed)?, query))
}

/// The target as text. Its first bytes, as many as `plain`, are known to be letters, digits and the like.
fn printable(raw: &[u8], plain: usize) -> Result<&str, Refused> {
    if !raw.get(plain..).unwrap_or_default().iter().all(|byte| is_target_byte(*byte)) {
        return Err(Refused::TARGET);
    }
    str::from_utf8(raw).map_err(|_| Refused::Malformed("the request target is not ASCII"))
}

/// What a target may be made of: printable characters, but for the two that servers read in two ways.
pub const fn is_target_byte(byte: u8) -> bool {
    TARGET_BYTES[byte as usize]
}

/// A table, because every byte of every target is looked up.
const TARGET_BYTES: [bool; 256] = {
    let mut allowed = [false; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        allowed[byte as usize] = byte.is_ascii_graphic() && !matches!(byte, b'#' | b'\\');
        byte += 1;
    }
    allowed
};

/// The host alone, and its port if it names one. Names are letters, digits, `-` and `_` between dots; addresses have their
/// usual spelling.
pub fn canonical_host(raw: &str) -> Result<(String, Option<u16>), Refused> {
    const BAD: Refused = Refused::Malformed("the host header is no host name");
    let (host, port) = match raw.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']').ok_or(BAD)?;
            let address: Ipv6Addr = address.parse().map_err(|_| BAD)?;
            (format!("[{address}]"), port)
        }
        None => {
            let (name, port) = raw.split_at(raw.find(':').unwrap_or(raw.len()));
            let name = name.strip_suffix('.').unwrap_or(name);
            let is_label = |label: &str| {
                !label.is_empty()
                    && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
            };
            if !name.split('.').all(is_label) {
                return Err(BAD);
            }
            (name.to_ascii_lowercase(), port)
        }
    };
    match port.strip_prefix(':') {
        None if port.is_empty() => Ok((host, None)),
        // as RFC 3986 has it, section 3.2.3
        Some("") => Ok((host, None)),
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            Ok((host, Some(digits.parse().map_err(|_| BAD)?)))
        }
        None | Some(_) => Err(BAD),
    }
}

/// The client's own address.
///
/// `X-Forwarded-For` is walked from right to left as long as the hops are trusted; `None` where a trusted proxy wrote
/// something that is no address, and where a `peer` without one is not trusted, so that such requests share one bucket.
pub fn client_address(peer: Option<IpAddr>, headers: &HeaderMap, rules: &ClientAddress) -> Option<IpAddr> {
    let mut client = peer.map(|peer| peer.to_canonical());
    if rules.is_trusted(client) {
        let name = HeaderName::from_static("x-forwarded-for");
        let lines: Vec<&[u8]> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
        for hop in lines.iter().rev().flat_map(|line| line.rsplit(|byte| *byte == b',')) {
            client = Some(read_address(hop.trim_ascii())?.to_canonical());
            if !rules.is_trusted(client) {
                break;
            }
        }
    }
    client
}

/// Reads an address without a port.
pub fn read_address(text: &[u8]) -> Option<IpAddr> {
    match dotted_quad(text) {
        Some(address) => Some(IpAddr::V4(address)),
        None => str::from_utf8(text).ok()?.parse().ok(),
    }
}

/// Reads an IPv4 address, as most are. The library reads any address, which takes it longer.
fn dotted_quad(text: &[u8]) -> Option<Ipv4Addr> {
    let (first, text) = octet(text)?;
    let (second, text) = octet(text.strip_prefix(b".")?)?;
    let (third, text) = octet(text.strip_prefix(b".")?)?;
    let (fourth, text) = octet(text.strip_prefix(b".")?)?;
    text.is_empty().then(|| Ipv4Addr::new(first, second, third, fourth))
}

/// A number up to 255 without needless zeros, and what is behind it.
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

/// The address that a client is counted by: an IPv6 client is its network.
pub fn network(address: IpAddr, ipv6_prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Net::new(v6, ipv6_prefix).map_or(v6, |net| -> Ipv6Addr { net.network() })),
    }
}

#[cfg(test)]
mod tests;
