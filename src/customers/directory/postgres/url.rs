//! The URL of a database: its servers, and tollgate's user there.

use std::str::FromStr;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

/// The default application name.
const APPLICATION: &str = "tollgate";

/// The URL of a database, which may name several servers. No `Debug`: it holds a password.
pub struct DatabaseUrl(Config);

/// The error for text that is no URL of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("holds no URL of a database")]
pub struct BadDatabaseUrl;

impl DatabaseUrl {
    /// Parses `postgres://user:password@host:5432/database`, or `host=... user=...`. Certificates are always verified, so
    /// `sslmode=verify-full` and `verify-ca` are the same as `require`.
    pub fn parse(text: &str) -> Result<Self, BadDatabaseUrl> {
        let text = text.trim().replace("sslmode=verify-full", "sslmode=require");
        let text = text.replace("sslmode=verify-ca", "sslmode=require");
        let config = Config::from_str(&text).map_err(|_| BadDatabaseUrl)?;
        match config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            true => Err(BadDatabaseUrl),
            false => Ok(Self(config)),
        }
    }

    /// Whether any of the servers needs TLS. `is_asked` says whether the configuration asks for TLS.
    pub fn needs_tls(&self, is_asked: bool) -> bool {
        self.servers(is_asked, Duration::ZERO).iter().any(|server| server.get_ssl_mode() == SslMode::Require)
    }

    /// The configuration for each of the servers, in their order. Connecting to one of a server's addresses takes at most
    /// `timeout`, unless the URL sets another.
    ///
    /// A server gets TLS if the URL or the configuration asks for it; a remote server also by default, unless the URL
    /// forbids it.
    pub(super) fn servers(&self, is_asked: bool, timeout: Duration) -> Vec<Config> {
        let whole = &self.0;
        let count = whole.get_hosts().len().max(whole.get_hostaddrs().len());
        let server = |position: usize| {
            let mut one = Config::new();
            let host = whole.get_hosts().get(position);
            match host {
                Some(Host::Tcp(name)) => drop(one.host(name)),
                Some(Host::Unix(path)) => drop(one.host_path(path)),
                None => {}
            }
            whole.get_hostaddrs().get(position).map(|address| one.hostaddr(*address));
            let port = whole.get_ports().get(position).or(whole.get_ports().first());
            port.map(|port| one.port(*port));
            whole.get_user().map(|user| one.user(user));
            whole.get_password().map(|password| one.password(password));
            whole.get_dbname().map(|name| one.dbname(name));
            whole.get_options().map(|options| one.options(options));
            one.application_name(whole.get_application_name().unwrap_or(APPLICATION));
            let is_here = whole.get_hostaddrs().get(position).is_some_and(|address| address.is_loopback())
                || host.is_some_and(is_here);
            one.ssl_mode(match whole.get_ssl_mode() {
                SslMode::Prefer if is_here && !is_asked => SslMode::Disable,
                SslMode::Prefer => SslMode::Require,
                said => said,
            });
            one.ssl_negotiation(whole.get_ssl_negotiation());
            one.channel_binding(whole.get_channel_binding());
            one.target_session_attrs(whole.get_target_session_attrs());
            one.connect_timeout(whole.get_connect_timeout().copied().unwrap_or(timeout));
            one
        };
        (0..count).map(server).collect()
    }
}

/// Whether a server is on this machine.
fn is_here(host: &Host) -> bool {
    match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost" || name.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(url: &str) -> Vec<Config> {
        DatabaseUrl::parse(url).ok().unwrap().servers(false, Duration::from_secs(3))
    }

    fn modes(url: &str) -> Vec<SslMode> {
        servers(url).iter().map(Config::get_ssl_mode).collect()
    }

    #[test]
    fn several_servers_are_each_connected_to_as_the_url_says() {
        let both = servers("postgres://gate:pass%20word@one:5433,127.0.0.2/customers?options=-csearch_path%3Da\n");
        for (server, (host, port)) in both.iter().zip([("one", 5433), ("127.0.0.2", 5432)]) {
            assert_eq!((server.get_hosts(), server.get_ports()), (&[Host::Tcp(host.to_owned())][..], &[port][..]));
            assert_eq!((server.get_user(), server.get_password()), (Some("gate"), Some(&b"pass word"[..])));
            assert_eq!((server.get_dbname(), server.get_options()), (Some("customers"), Some("-csearch_path=a")));
            assert_eq!(server.get_application_name(), Some("tollgate"));
        }
        assert_eq!(both.len(), 2);
        assert_eq!(servers("host=a,b port=6000 user=u").len(), 2);
        for bad in ["", "canary", "mysql://a/b", "postgres:///customers", "postgres://a:port/b", "postgres://a/?x=y"] {
            assert!(DatabaseUrl::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn tls_is_spoken_to_servers_elsewhere() {
        use SslMode::{Disable, Require};
        assert_eq!(modes("postgres://db.example.com/c"), [Require]);
        assert_eq!(
            modes("postgres://db.example.com,localhost,127.0.0.1,%2Fvar%2Frun/c"),
            [Require, Disable, Disable, Disable]
        );
        assert_eq!(modes("postgres://db.example.com/c?sslmode=disable"), [Disable]);
        for mode in ["require", "verify-full", "verify-ca"] {
            assert_eq!(modes(&format!("postgres://localhost/c?sslmode={mode}")), [Require]);
        }
        let url = DatabaseUrl::parse("postgres://localhost/c").ok().unwrap();
        assert!(url.needs_tls(true) && !url.needs_tls(false));
    }
}
