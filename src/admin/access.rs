//! Access to the admin listener: changes need a token, and other sites cannot use it through an operator's browser.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use http::{HeaderName, Method, StatusCode, header};
use pingora::http::RequestHeader;
use subtle::ConstantTimeEq;

use super::replays::ReplaySettings;
use super::{PlainResponse, failure};
use crate::gateway::facts;
use crate::ruleset::key::sha256;

/// The configured access rules of the admin listener.
#[derive(Clone, Default)]
pub struct AccessRules {
    /// The token that changes need; if there is none, every change is refused.
    pub token: Option<Token>,
    /// The audit log's file; if there is none, changes are written to the gateway's log.
    pub audit_log: Option<PathBuf>,
    /// Host names that browsers may use for this listener, besides `localhost` and IP addresses. Lower case, no port.
    pub hosts: Vec<String>,
    /// How many of the keys denied most have metrics.
    pub top_denied_metrics: usize,
    /// The logs and settings that `/v1/replay` may use, if any.
    pub replays: Option<Arc<ReplaySettings>>,
}

/// The secret that a caller needs for changes. Kept as a hash.
#[derive(Clone)]
pub struct Token([u8; 32]);

/// The access rules in force.
pub struct Access(ArcSwap<AccessRules>);

impl Token {
    /// The token `text`.
    pub fn of(text: &str) -> Self {
        Self(sha256(text.as_bytes()))
    }

    /// Whether `shown` is this token. The comparison takes constant time.
    fn is(&self, shown: &[u8]) -> bool {
        self.0.ct_eq(&sha256(shown)).into()
    }
}

const NO_TOKEN: &str = "this gateway accepts no changes: it has no token. Put one in a file, at least 16 characters \
     (`openssl rand -hex 32` makes one), and name the file in the configuration: `admin: { token_file: admin.token }`";
const WRONG_TOKEN: &str =
    "changes need the token of this gateway, from the file `admin.token_file`: `Authorization: Bearer TOKEN`";

impl Access {
    /// Puts `rules` in force.
    pub fn new(rules: AccessRules) -> Self {
        Self(ArcSwap::from_pointee(rules))
    }

    /// Replaces the rules in force by `rules`.
    pub fn replace_rules(&self, rules: AccessRules) {
        self.0.store(rules.into());
    }

    /// How many of the keys denied most have metrics.
    pub(super) fn top_denied_metrics(&self) -> usize {
        self.0.load().top_denied_metrics
    }

    /// The audit log's file, if there is one.
    pub(super) fn audit_log(&self) -> Option<PathBuf> {
        self.0.load().audit_log.clone()
    }

    /// The logs and settings that `/v1/replay` may use, if any.
    pub(super) fn replays(&self) -> Option<Arc<ReplaySettings>> {
        self.0.load().replays.clone()
    }

    /// Whether changes are possible at all, that is, whether a token is configured.
    pub(super) fn takes_changes(&self) -> bool {
        self.0.load().token.is_some()
    }

    /// Refuses a request without the token.
    pub(super) fn check_token(&self, head: &RequestHeader) -> Result<(), PlainResponse> {
        let rules = self.0.load();
        let Some(token) = &rules.token else { return Err(failure(StatusCode::FORBIDDEN, NO_TOKEN)) };
        let shown = head.headers.get(header::AUTHORIZATION).map(http::HeaderValue::as_bytes).unwrap_or_default();
        let scheme = shown.get(..BEARER.len()).is_some_and(|scheme| scheme.eq_ignore_ascii_case(BEARER));
        let credential = shown.get(BEARER.len()..).unwrap_or_default().trim_ascii();
        if scheme && token.is(credential) { Ok(()) } else { Err(failure(StatusCode::UNAUTHORIZED, WRONG_TOKEN)) }
    }

    /// Refuses requests that another site makes through an operator's browser. `is_for_browsers`: the request is for the
    /// page or the API; it is also refused under a host name that an attacker can point at this listener (DNS rebinding),
    /// and so is any change that a browser requests.
    pub(super) fn check_site(&self, head: &RequestHeader, is_for_browsers: bool) -> Result<(), PlainResponse> {
        let [host, origin, fetched_by] = [&header::HOST, &header::ORIGIN, &SEC_FETCH_SITE].map(|name| text(head, name));
        let changes = !matches!(head.method, Method::GET | Method::HEAD);
        let is_by_browser = origin.is_some() || fetched_by.is_some();
        if (is_for_browsers || changes && is_by_browser) && !host.is_some_and(|host| self.is_own(host)) {
            let message = "this is served only under `localhost`, IP addresses and the names in `admin.hosts`, so that no web site \
                 can point its own name here; add the name to `admin: { hosts: [NAME] }`, or use the IP address";
            return Err(failure(StatusCode::FORBIDDEN, message));
        }
        if !is_for_browsers && !changes {
            return Ok(());
        }
        let is_foreign = origin.is_some_and(|origin| {
            let site = origin.split_once("://").map(|(_, site)| site);
            !site.zip(host).is_some_and(|(site, host)| site.eq_ignore_ascii_case(host))
        });
        let is_fetched = changes && fetched_by.is_some_and(|by| by != "same-origin" && by != "none");
        if is_foreign || is_fetched {
            return Err(failure(StatusCode::FORBIDDEN, "requests from other web sites are refused"));
        }
        Ok(())
    }

    /// Whether only the operator can make this host name resolve to this listener.
    fn is_own(&self, host: &str) -> bool {
        let Ok((name, _)) = facts::canonical_host(host) else { return false };
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(&name);
        bare == "localhost" || bare.parse::<IpAddr>().is_ok() || self.0.load().hosts.contains(&name)
    }
}

const BEARER: &[u8] = b"Bearer ";
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The only value of a header field; `None` if it is absent, `Some("")` if there are several or the value is not text.
fn text<'h>(head: &'h RequestHeader, name: &HeaderName) -> Option<&'h str> {
    let mut values = head.headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => None,
        (Some(value), None) => Some(value.to_str().unwrap_or_default()),
        (Some(_), Some(_)) => Some(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(method: &str, fields: &[(&'static str, &str)]) -> RequestHeader {
        let mut head = RequestHeader::build(method, b"/v1/status", None).unwrap();
        for (name, value) in fields {
            head.append_header(*name, *value).unwrap();
        }
        head
    }

    fn access() -> Access {
        let hosts = vec!["gate.internal".to_owned()];
        Access::new(AccessRules { token: Some(Token::of("0123456789abcdef")), hosts, ..AccessRules::default() })
    }

    #[test]
    fn names_that_anybody_can_lead_here_are_refused() {
        let allowed = |host: &str| access().check_site(&head("GET", &[("host", host)]), true).is_ok();
        for host in ["localhost", "LOCALHOST:9090", "127.0.0.1:9090", "[::1]:9090", "10.1.2.3", "Gate.Internal:9090"] {
            assert!(allowed(host), "{host}");
        }
        for host in ["", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "a@localhost", "x:y:z"] {
            assert!(!allowed(host), "{host}");
        }
        assert!(access().check_site(&head("GET", &[]), true).is_err(), "no host");
        let scraped = head("GET", &[("host", "gateway:9090")]);
        assert!(access().check_site(&scraped, false).is_ok(), "what is scraped goes by any name");
        // `/explain` and `/-/reload` take any name from programs, and from browsers only their own
        let posted = |host: &str, fields: &[(&'static str, &str)]| {
            access().check_site(&head("POST", &[&[("host", host)], fields].concat()), false).is_ok()
        };
        assert!(posted("gateway:9090", &[]));
        for field in [("origin", "http://evil.example:9090"), ("sec-fetch-site", "same-origin")] {
            assert!(!posted("evil.example:9090", &[field]), "{field:?}");
        }
        assert!(posted("gate.internal:9090", &[("origin", "http://gate.internal:9090")]));
    }

    #[test]
    fn other_sites_are_refused_and_the_own_page_is_not() {
        let check = |method: &str, fields: &[(&'static str, &str)], is_for_browsers| {
            let all = [&[("host", "127.0.0.1:9090")], fields].concat();
            access().check_site(&head(method, &all), is_for_browsers).is_ok()
        };
        assert!(check("POST", &[("origin", "http://127.0.0.1:9090"), ("sec-fetch-site", "same-origin")], true));
        assert!(check("POST", &[], true), "no browser");
        for fields in [
            [("origin", "http://evil.example")],
            [("origin", "null")],
            [("origin", "http://127.0.0.1:9091")],
            [("sec-fetch-site", "cross-site")],
            [("sec-fetch-site", "same-site")],
        ] {
            assert!(!check("POST", &fields, true) && !check("POST", &fields, false), "{fields:?}");
        }
        assert!(check("GET", &[("sec-fetch-site", "cross-site")], true), "a link that leads here");
    }

    #[test]
    fn changes_need_the_token_and_say_what_is_missing() {
        let status = |access: &Access, value: &str| {
            let fields: &[_] = if value.is_empty() { &[] } else { &[("authorization", value)] };
            access.check_token(&head("POST", fields)).err().map(|(status, _, _)| status.as_u16())
        };
        let access = access();
        assert_eq!(status(&access, "Bearer 0123456789abcdef"), None);
        assert_eq!(status(&access, "bearer  0123456789abcdef"), None);
        for wrong in ["", "Bearer", "Bearer ", "Bearer 0123456789abcde", "Basic 0123456789abcdef", "0123456789abcdef"] {
            assert_eq!(status(&access, wrong), Some(401), "{wrong}");
        }
        access.replace_rules(AccessRules::default());
        assert_eq!(status(&access, "Bearer 0123456789abcdef"), Some(403));
    }
}
