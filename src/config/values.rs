//! Values that several sections hold: numbers within bounds, header fields, addresses, files.

use std::borrow::Cow;
use std::collections::HashSet;
use std::net::IpAddr;

use http::{HeaderName, HeaderValue, Uri};

use crate::algorithm::AlgorithmName;
use crate::config::key::named;
use crate::config::problem::{Place, Problem};
use crate::config::read::{Field, all_or_none};
use crate::config::scalar::{self, InvalidValue, invalid};
use crate::config::settings::{HEADER_EDITS, Kind};
use crate::config::words;
use crate::ruleset::matcher::HeaderEdits;
use crate::ruleset::path::{self, PathPattern};
use crate::ruleset::request_field::FieldPath;
use crate::ruleset::{SocketPath, is_dropped};
use crate::units::Nanos;

/// The description of a duration in error messages.
pub(super) const A_DURATION: &str = "a length of time, like `250ms`, `30s` or `15m`";

/// The description of a path to a field in error messages.
pub(super) const A_FIELD_PATH: &str = "the names on the way to a field in JSON, like `usage.total_tokens`";

/// The prefix of an address that is the path of a socket.
pub(super) const UNIX: &str = "unix:";

/// A file that the configuration names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    /// The path as written; relative to the directory of the configuration.
    pub path: String,
    /// The position of the name in the configuration.
    pub place: Place,
}

/// Header fields that frame a message or belong to one connection. tollgate sets them itself.
const FRAMING: [HeaderName; 7] = [
    http::header::CONNECTION,
    http::header::CONTENT_LENGTH,
    http::header::TE,
    http::header::TRAILER,
    http::header::TRANSFER_ENCODING,
    http::header::UPGRADE,
    HeaderName::from_static("keep-alive"),
];

impl<'a> Field<'a> {
    /// Reads a length of time within the setting's range.
    pub(super) fn duration(&self) -> Option<Nanos> {
        let range = self.kind().and_then(Kind::duration_range).unwrap_or(Nanos::ZERO..=Nanos::MAX);
        let (min, max) = (*range.start(), *range.end());
        let example = self.default().unwrap_or("250ms");
        let expected = match (min, max) {
            (min, Nanos::MAX) if min <= Nanos::new(1) => Cow::Borrowed(A_DURATION),
            (min, Nanos::MAX) => format!("a length of time, at least {min}, like `{example}`").into(),
            (min, max) => format!("a length of time from {min} to {max}, like `{example}`").into(),
        };
        self.parsed(&expected, |text| match scalar::duration(text)? {
            Nanos::ZERO if min == Nanos::new(1) => Err(invalid("must be longer than nothing")),
            duration if duration < min => Err(invalid("is too short")),
            duration if duration > max => Err(invalid("is too long")),
            duration => Ok(duration),
        })
    }

    /// Reads a whole number within the setting's range. A number that does not fit into `T` is an error.
    pub(super) fn whole<T: TryFrom<u64>>(&self) -> Option<T> {
        let range = self.kind().and_then(Kind::whole_range).unwrap_or(0..=u64::MAX);
        let (min, max) = (range.start(), range.end());
        let expected = match *max {
            u64::MAX if *min == 0 => Cow::Borrowed("a whole number"),
            u64::MAX => format!("a whole number, at least {min}").into(),
            _ => format!("a whole number from {min} to {max}").into(),
        };
        self.parsed(&expected, |text| match scalar::whole(text)? {
            number if number < *min => Err(invalid("is too small")),
            number if number > *max => Err(invalid("is too large")),
            number => T::try_from(number).map_err(|_| invalid("is too large")),
        })
    }

    /// Reads a number of bytes within the setting's range.
    pub(super) fn size(&self) -> Option<usize> {
        let range = self.kind().and_then(Kind::size_range).unwrap_or(0..=u64::MAX);
        let expected = format!("a size from {}B to {}KiB, like `8KiB`", range.start(), range.end() >> 10);
        self.parsed(&expected, |text| match scalar::size(text)? {
            bytes if bytes < *range.start() => Err(invalid("is too small")),
            bytes if bytes > *range.end() => Err(invalid("is too large")),
            bytes => usize::try_from(bytes).map_err(|_| invalid("is too large")),
        })
    }

    /// Reads a number of bytes above zero.
    pub(super) fn bytes(&self) -> Option<u64> {
        self.parsed("a number of bytes, like `1KiB`", |text| match scalar::size(text)? {
            0 => Err(invalid("must be more than nothing")),
            bytes => Ok(bytes),
        })
    }

    /// Reads `true` or `false`.
    pub(super) fn flag(&self) -> Option<bool> {
        self.parsed("`true` or `false`", scalar::flag)
    }

    /// Reads the name of a file.
    pub(super) fn file(&self) -> Option<NamedFile> {
        self.read(named).map(|path| NamedFile { path, place: self.place() })
    }

    /// Reads the path to a field in JSON.
    pub(super) fn field_path(&self) -> Option<FieldPath> {
        self.parsed(A_FIELD_PATH, |text| {
            let path: Vec<String> = text.split('.').map(str::to_owned).collect();
            match path.len() {
                _ if path.iter().any(String::is_empty) => Err(invalid("has an empty name")),
                0..=FieldPath::MAX_NAMES => Ok(FieldPath(path)),
                _ => Err(invalid("has more than 16 names")),
            }
        })
    }

    /// Reads the name of an algorithm.
    pub(super) fn algorithm(&self) -> Option<AlgorithmName> {
        let words: Vec<(&str, AlgorithmName)> = AlgorithmName::ALL.iter().map(|name| (name.as_str(), *name)).collect();
        self.choice(&words)
    }

    /// Reads the URL of an HTTP service. Warns of `http://` to other machines: anybody on the way could answer instead.
    pub(super) fn url(&self) -> Option<Uri> {
        let url: Uri = self.read(|text| {
            let url: Uri = text.parse().map_err(|_| invalid("is no URL"))?;
            match (url.scheme_str(), url.host()) {
                (Some("http" | "https"), Some(host)) if !host.is_empty() => {}
                _ => return Err(invalid("is no URL that begins with `https://` or `http://`")),
            }
            match url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
                true => Err(invalid("holds a user name or a password")),
                false => Ok(url),
            }
        })?;
        let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
        let is_near = host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
        if url.scheme_str() == Some("http") && !is_near {
            self.warn("is asked for without TLS: everybody on the way can answer in its place", "use `https://`");
        }
        Some(url)
    }

    /// Reads the name of a header field, in lower case.
    pub(super) fn header_name(&self) -> Option<HeaderName> {
        self.parsed("the name of a header field, like `x-api-key`", parse_header_name)
    }

    /// Reads the name of a request's header field, in lower case.
    pub(super) fn request_header_name(&self) -> Option<HeaderName> {
        match self.header_name()? {
            name if is_dropped(&name) => self.fail(dropped_problem(self.place(), &name)),
            name => Some(name),
        }
    }

    /// Reads a mapping from header names to values; `read` reads each value.
    pub(super) fn by_header<T>(
        &self,
        expected: &str,
        read: impl Fn(&HeaderName, &Self) -> Option<T>,
    ) -> Option<Vec<(HeaderName, T)>> {
        let mut seen = HashSet::new();
        all_or_none(self.mapping(expected)?.fields().map(|(key, field)| {
            let name = match parse_header_name(key) {
                Ok(name) if seen.insert(name.clone()) => Some(name),
                Ok(_) => {
                    let message = "is given twice: case does not count in header names";
                    field.fail(field.key_error(message))
                }
                Err(invalid) => field.fail(field.key_error(invalid.message)),
            };
            let name = name?;
            let value = read(&name, &field)?;
            Some((name, value))
        }))
    }

    /// Reads the name of a header field that the file may set.
    pub(super) fn header_name_to_set(&self) -> Option<HeaderName> {
        match self.header_name()? {
            name if FRAMING.contains(&name) => self.fail(framing_problem(self)),
            name => Some(name),
        }
    }

    /// Reads header fields to set. Findings never show their values.
    pub(super) fn headers_to_set(&self) -> Option<Vec<(HeaderName, HeaderValue)>> {
        self.headers_with(|field| {
            field.clone().secret().parsed("the value of a header field", |text| {
                HeaderValue::from_str(text).map_err(|_| invalid("holds characters that no header field may hold"))
            })
        })
    }

    /// Reads header fields to set; `read` reads their values.
    pub(super) fn headers_with<T>(&self, read: impl Fn(&Self) -> Option<T>) -> Option<Vec<(HeaderName, T)>> {
        self.by_header("header fields and their values", |name, field| match FRAMING.contains(name) {
            true => field.fail(framing_problem(field)),
            false => read(field),
        })
    }

    /// Reads `{set: {...}, remove: [...]}`.
    pub(super) fn header_edits(&self) -> Option<HeaderEdits> {
        let section = self.section(&HEADER_EDITS)?;
        let set = section.value_or("set", Vec::new(), Field::headers_to_set);
        let remove = section.value_or("remove", Vec::new(), Field::headers_to_remove);
        Some(HeaderEdits { set, remove })
    }

    fn headers_to_remove(&self) -> Option<Vec<HeaderName>> {
        let items = self.list("a list of names of header fields")?;
        all_or_none(items.iter().map(|item| match item.header_name_to_set()? {
            name if name == http::header::HOST => item.fail(item.error("is in every request: it can only be set")),
            name => Some(name),
        }))
    }

    /// Reads a path or the beginning of one: it begins with `/`, holds no query, and is spelt like the paths that the
    /// gateway matches and forwards.
    pub(super) fn plain_path(&self) -> Option<String> {
        self.read(|text| {
            if !text.starts_with('/') {
                return Err(invalid("must begin with `/`"));
            }
            if text.chars().any(|c| matches!(c, '?' | '#' | '\\' | '*') || c.is_whitespace() || c.is_control()) {
                return Err(invalid("holds a character that a path cannot hold"));
            }
            match path::canonical_spelling(text).map_err(invalid)? {
                canonical if canonical == text => Ok(canonical),
                canonical => {
                    Err(invalid("is not spelt as paths are matched and forwarded")
                        .hint(words::did_you_mean(&canonical)))
                }
            }
        })
    }
}

/// Checks the path of a socket, which stands behind [`UNIX`].
pub(super) fn check_socket_path(path: &str) -> Result<(), InvalidValue> {
    match path {
        path if !path.starts_with('/') => Err(invalid("does not begin with a slash after `unix:`")),
        path if path.ends_with('/') => Err(invalid("is the path of a folder")),
        path if path.len() > SocketPath::MAX_LENGTH => {
            Err(invalid("is longer than the path of a socket may be (107 bytes)"))
        }
        path if path.contains('\0') => Err(invalid("holds a zero byte")),
        _ => Ok(()),
    }
}

/// Refuses a host name that is not ASCII: requests, certificates and look-ups have such names in punycode (RFC 5891).
pub(super) fn check_ascii(host: &str) -> Result<(), InvalidValue> {
    if host.is_ascii() {
        return Ok(());
    }
    let punycode = idna::domain_to_ascii(host).ok().filter(|name| name.is_ascii());
    Err(invalid("is not ASCII: on the wire such a host name is in punycode (`xn--...`)")
        .hint(punycode.map(|name| format!("write `{name}`"))))
}

fn framing_problem(field: &Field<'_>) -> Problem {
    field.key_error("names a header field that tollgate sets itself")
}

/// The error about a header field at `place` that no request can have, because the gateway drops it.
pub(super) fn dropped_problem(place: Place, name: &HeaderName) -> Problem {
    Problem::error(place, "is in no request: header fields with an underscore in their names are dropped")
        .hint(format!("write `{}`", name.as_str().replace('_', "-")))
}

fn parse_header_name(text: &str) -> Result<HeaderName, InvalidValue> {
    HeaderName::from_bytes(text.as_bytes()).map_err(|_| invalid("is not the name of a header field"))
}

/// Whether `name` may name a limit, route, upstream or plan: such names become labels and parts of header fields.
pub(crate) fn check_name(name: &str) -> Result<(), InvalidValue> {
    let fine = name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.:/".contains(c));
    match fine {
        true => Ok(()),
        false => Err(invalid("is not a name: names have up to 64 letters, digits and `-`, `_`, `.`, `:`, `/`")),
    }
}

/// The host, without brackets, and the port of a text `host:port`; the host is a name or an address.
pub(super) fn host_and_port(text: &str) -> Result<(&str, u16), InvalidValue> {
    if let Some((_, rest)) = text.split_once("://") {
        let hint = Some(format!("leave the scheme out: `{}`", rest.trim_end_matches('/')));
        return Err(invalid("has a scheme").hint(hint.filter(|_| !rest.contains('@'))));
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return Err(invalid("has no port").hint(format!("did you mean `{text}:80`?")));
    };
    let number = match port.parse() {
        Ok(number) if number > 0 && port.bytes().all(|byte| byte.is_ascii_digit()) => number,
        _ => return Err(invalid("has no port from 1 to 65535")),
    };
    check_ascii(host)?;
    let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let fine = match address {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => is_host_name(host) || host.parse::<std::net::Ipv4Addr>().is_ok(),
    };
    if !fine && host.parse::<std::net::Ipv6Addr>().is_ok() {
        return Err(invalid("needs brackets").hint(format!("did you mean `[{host}]:{port}`?")));
    }
    match fine {
        true => Ok((address.unwrap_or(host), number)),
        false => Err(invalid("is not a host and a port")),
    }
}

/// Whether the host is a name: labels of letters, digits, `-` and `_`, joined by dots, perhaps with a final dot. Four
/// numbers are an address.
pub(super) fn is_host_name(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let numeric = host.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
    host.len() <= 253 && host.split('.').all(label) && !numeric
}

/// Reads a pattern for paths; returns it with its text.
pub(super) fn path(field: &Field<'_>) -> Option<(PathPattern, String)> {
    field.parsed("a path, like `/v1/orders/*` or `/v1/**`", |text| {
        PathPattern::parse(text).map(|path| (path, text.to_owned())).map_err(invalid)
    })
}

/// Reads a method in capitals.
pub(super) fn method(field: &Field<'_>) -> Option<String> {
    field.parsed("a method, like `GET`", parse_method)
}

/// Refuses a method in lower case: methods are case-sensitive, so it would match no request of a browser.
pub(super) fn parse_method(text: &str) -> Result<String, InvalidValue> {
    if http::Method::from_bytes(text.as_bytes()).is_err() {
        return Err(invalid("is not a method"));
    }
    match text.to_ascii_uppercase() {
        upper if upper == text => Ok(upper),
        upper => Err(invalid("is not in capitals, and case counts in methods").hint(words::did_you_mean(&upper))),
    }
}
