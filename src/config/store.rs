//! `store:`: the Redis server.

use std::fmt;

use percent_encoding::percent_decode_str;

use crate::config::later;
use crate::config::problem::{Place, Problem};
use crate::config::read::{Field, Section};
use crate::config::scalar::Misfit;
use crate::config::values::host_and_port;

/// A file that the configuration names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    /// As written: relative to the directory of the configuration.
    pub path: String,
    /// Where it is written.
    pub place: Place,
}

/// Where a Redis server is, and what opens it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisServer {
    /// A name or an address, IPv6 without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The number of the database.
    pub database: u32,
    /// The user, where it is not the default one.
    pub username: Option<String>,
    /// The password, if the configuration holds it.
    pub password: Option<Secret>,
    /// The file that holds the password, if one does.
    pub password_file: Option<NamedFile>,
}

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text, for the one who needs it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

const DEFAULT_PORT: u16 = 6379;
const A_SERVER: &str = "an address like `redis://127.0.0.1:6379/0`";

/// Reads `store:`; the inner `None` if it is absent.
pub(super) fn read(top: &Section<'_>) -> Option<Option<RedisServer>> {
    top.get_with("store", store)
}

fn store(field: &Field<'_>) -> Option<RedisServer> {
    let section = field.section(&["redis", "password_file"], later::STORE)?;
    let server = section.required("redis", A_SERVER).and_then(|field| field.secret().parsed(A_SERVER, server));
    let password_file = section.get_with("password_file", |field| named_file(field, "the name of a file"));
    let (server, password_file) = (server?, password_file?);
    if let (Some(_), Some(file)) = (&server.password, &password_file) {
        let problem = Problem::error(file.place.clone(), "gives a second password");
        return field.fail(problem.expected("one password, in the address or in a file"));
    }
    Some(RedisServer { password_file, ..server })
}

/// The name of a file; `expected` says of which.
pub(super) fn named_file(field: &Field<'_>, expected: &str) -> Option<NamedFile> {
    let word = field.word(expected)?;
    match word.text.is_empty() {
        true => field.fail(Problem::error(field.place(), "is empty").expected(expected)),
        false => Some(NamedFile { path: word.text.into_owned(), place: field.place() }),
    }
}

/// `redis://[user[:password]@]host[:port][/database]`
fn server(text: &str) -> Result<RedisServer, Misfit> {
    if text.starts_with("rediss://") {
        return Err(misfit("asks for TLS, which this version does not speak to Redis"));
    }
    let rest = text.strip_prefix("redis://").ok_or_else(|| misfit("does not begin with `redis://`"))?;
    if rest.contains(['?', '#']) {
        return Err(misfit("has options behind the database, which are not supported"));
    }
    let (user, rest) = rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
    let (username, password) = match user.map(|user| user.split_once(':').unwrap_or((user, ""))) {
        Some((username, password)) => (decoded(username)?, decoded(password)?.map(Secret)),
        None => (None, None),
    };
    let (at, database) = rest.split_once('/').unwrap_or((rest, ""));
    let database = match database {
        "" => 0,
        number => number.parse().map_err(|_| misfit("has no number of a database behind its last `/`"))?,
    };
    let checked = host_and_port(at).or_else(|_| host_and_port(&format!("{at}:{DEFAULT_PORT}")))?;
    let (host, port) = checked.rsplit_once(':').unwrap_or((&checked, ""));
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host).to_owned();
    let port = port.parse().unwrap_or(DEFAULT_PORT);
    Ok(RedisServer { host, port, database, username, password, password_file: None })
}

/// The text of a part of an address; `None` if it is empty.
fn decoded(part: &str) -> Result<Option<String>, Misfit> {
    let text = percent_decode_str(part).decode_utf8().map_err(|_| misfit("has a user or password not in UTF-8"))?;
    Ok(Some(text.into_owned()).filter(|text| !text.is_empty()))
}

fn misfit(message: &str) -> Misfit {
    Misfit { message: message.to_owned(), hint: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_servers_have_many_parts() {
        let full = server("redis://tollgate:p%40ss@redis.internal:7000/3").unwrap();
        assert_eq!((full.host.as_str(), full.port, full.database), ("redis.internal", 7000, 3));
        assert_eq!(full.username.as_deref(), Some("tollgate"));
        assert_eq!(full.password.as_ref().map(Secret::expose), Some("p@ss"));
        assert!(!format!("{full:?}").contains("p@ss"));
        let short = server("redis://[::1]").unwrap();
        assert_eq!((short.host.as_str(), short.port, short.database), ("::1", 6379, 0));
        assert_eq!((short.username, short.password), (None, None));
        let password_only = server("redis://:p@127.0.0.1").unwrap();
        assert_eq!((password_only.username, password_only.password.is_some()), (None, true));
    }

    #[test]
    fn what_is_no_server_is_refused() {
        for text in
            ["", "redis://", "redis:6379", "http://a", "rediss://a", "redis://a:0", "redis://a/x", "redis://a/1?b"]
        {
            assert!(server(text).is_err(), "{text}");
        }
    }
}
