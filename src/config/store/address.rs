//! Addresses of Redis servers: `redis://[user[:password]@]host[:port][/database]`.

use std::fmt;

use percent_encoding::percent_decode_str;

use crate::config::scalar::{InvalidValue, invalid};
use crate::config::values::host_and_port;
use crate::redis_client::Address;

/// A text that no output shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text, for the code that needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The parts of an address.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) scheme: Scheme,
    pub(super) at: Address,
    pub(super) database: Option<u32>,
    pub(super) username: Option<String>,
    pub(super) password: Option<Secret>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    Plain,
    Tls,
}

pub(super) const A_SERVER: &str = "an address like `redis://127.0.0.1:6379/0`, or `rediss://...` for TLS";
const DEFAULT_PORT: u16 = 6379;
const DEFAULT_SENTINEL_PORT: u16 = 26379;

pub(super) fn server(text: &str) -> Result<Server, InvalidValue> {
    let (scheme, rest) = match (text.strip_prefix("redis://"), text.strip_prefix("rediss://")) {
        (Some(rest), _) => (Scheme::Plain, rest),
        (None, Some(rest)) => (Scheme::Tls, rest),
        (None, None) => return Err(invalid("does not begin with `redis://` or `rediss://`")),
    };
    let (user, rest) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
    if user.is_some_and(|user| user.contains(['?', '#'])) {
        // in the message, because the hint of a value that may be a secret is not shown
        return Err(invalid(
            "has a `?` or `#` before its last `@`: write `%3F` or `%23` in a user or a password, or use `password_file`",
        ));
    }
    if rest.contains(['?', '#']) {
        return Err(invalid("has options behind the database, which are not supported"));
    }
    let (username, password) = match user.map(|user| user.split_once(':').unwrap_or((user, ""))) {
        Some((username, password)) => (decoded(username)?, decoded(password)?.map(Secret)),
        None => (None, None),
    };
    let (at, database) = rest.split_once('/').unwrap_or((rest, ""));
    let database = match database {
        "" => None,
        number => Some(number.parse().map_err(|_| invalid("has no number of a database behind its last `/`"))?),
    };
    let at = with_port(at, DEFAULT_PORT)?;
    Ok(Server { scheme, at, database, username, password })
}

pub(super) fn sentinel(text: &str) -> Result<Address, InvalidValue> {
    with_port(text, DEFAULT_SENTINEL_PORT)
}

/// A host and a port; adds `port` if the text has none.
fn with_port(text: &str, port: u16) -> Result<Address, InvalidValue> {
    let address = |text: &str| host_and_port(text).map(|(host, port)| Address { host: host.to_owned(), port });
    let with_default = address(&format!("{text}:{port}"));
    if !text.contains(':') {
        return with_default;
    }
    address(text).or_else(|invalid| with_default.map_err(|_| invalid))
}

/// Decodes a part of an address; `None` if it is empty.
fn decoded(part: &str) -> Result<Option<String>, InvalidValue> {
    let text = percent_decode_str(part).decode_utf8().map_err(|_| invalid("has a user or password not in UTF-8"))?;
    Ok(Some(text.into_owned()).filter(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_servers_have_many_parts() {
        let full = server("rediss://tollgate:p%40ss@redis.internal:7000/3").unwrap();
        assert_eq!(
            (full.scheme, full.at.to_string(), full.database),
            (Scheme::Tls, "redis.internal:7000".to_owned(), Some(3))
        );
        assert_eq!(full.username.as_deref(), Some("tollgate"));
        assert_eq!(full.password.as_ref().map(Secret::expose), Some("p@ss"));
        assert!(!format!("{full:?}").contains("p@ss"));
        let short = server("redis://[::1]").unwrap();
        assert_eq!(
            (short.scheme, short.at.to_string(), short.database),
            (Scheme::Plain, "[::1]:6379".to_owned(), None)
        );
        assert_eq!((short.username, short.password), (None, None));
        let absolute = server("redis://redis.default.svc.cluster.local.").unwrap();
        assert_eq!(absolute.at.to_string(), "redis.default.svc.cluster.local.:6379");
        let password_only = server("redis://:p@127.0.0.1").unwrap();
        assert_eq!((password_only.username, password_only.password.is_some()), (None, true));
    }

    #[test]
    fn invalid_addresses_of_servers_are_refused() {
        for text in ["", "redis://", "redis:6379", "http://a", "redis://a:0", "redis://a/x", "redis://a/1?b"] {
            assert!(server(text).is_err(), "{text}");
        }
        assert_eq!(server("redis://-redis").unwrap_err().message, "is not a host and a port");
    }
}
