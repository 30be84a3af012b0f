//! CORS: the sites that may read tollgate's own answers, and the preflights that tollgate answers itself.

use std::collections::BTreeSet;

use crate::fields::Fields;
use crate::ruleset::Ruleset;
use crate::ruleset::access::preflight_method;
use crate::ruleset::key::Facts;
use crate::ruleset::matcher::{Route, RouteId};
use crate::units::Nanos;

/// The sites whose scripts may read tollgate's own answers in a browser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cors {
    /// The sites.
    pub origins: Origins,
    /// Whether they may also read answers to requests with cookies or other credentials of the browser.
    pub credentials: bool,
    /// How long browsers may cache the answer to a preflight; `None` for the browser's default.
    pub max_age: Option<Nanos>,
}

/// Sites, by the `Origin` that browsers send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origins {
    /// Every site.
    Any,
    /// These, in lower case.
    These {
        /// `https://app.example.com`
        exact: BTreeSet<String>,
        /// `https://*.example.com`, as the text before the star and the text after it.
        below: Vec<(String, String)>,
    },
}

impl Cors {
    /// Whether scripts of the site `origin` may read the answers.
    pub fn admits(&self, origin: &str) -> bool {
        match &self.origins {
            Origins::Any => true,
            Origins::These { exact, below } => {
                exact.contains(origin) || below.iter().any(|below| is_below(below, origin))
            }
        }
    }
}

/// The site that a request is from, if its scripts may read answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedOrigin(Option<String>);

impl AllowedOrigin {
    /// The site that a request with these `headers` is from, if its scripts may read answers.
    pub fn of(ruleset: &Ruleset, headers: &Fields) -> Self {
        let Some(cors) = &ruleset.cors else { return Self(None) };
        let mut origins = headers.get_all("origin");
        let (Some(origin), None) = (origins.next(), origins.next()) else { return Self(None) };
        let origin = str::from_utf8(origin).ok().filter(|origin| origin.is_ascii() && cors.admits(origin));
        Self(origin.map(str::to_owned))
    }

    /// The site, as the request names it.
    pub fn get(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl Ruleset {
    /// The route of a request. A preflight that tollgate answers itself has the route of the request that it asks about.
    pub fn route_of(&self, facts: &Facts<'_>) -> Option<RouteId> {
        let asked = self.cors.as_ref().and_then(|_| preflight_method(facts));
        let answered = asked.and_then(|method| self.matcher.find(&Facts { method, ..facts.clone() }));
        let answered = answered.filter(|id| self.answers_preflight(self.matcher.route(*id), facts));
        answered.or_else(|| self.matcher.find(facts))
    }

    /// Whether a request for `route` is a preflight that tollgate answers itself.
    pub fn answers_preflight(&self, route: &Route, facts: &Facts<'_>) -> bool {
        self.cors.is_some() && !route.bypass.preflights && preflight_method(facts).is_some()
    }
}

/// Whether `origin` matches a pattern, in which the star stands for one or more whole labels of a host name.
fn is_below((before, after): &(String, String), origin: &str) -> bool {
    let labels = origin.strip_prefix(before.as_str()).and_then(|rest| rest.strip_suffix(after.as_str()));
    labels.is_some_and(|labels| {
        let fine = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_');
        labels.split('.').all(|label| !label.is_empty() && label.bytes().all(fine))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_sites_listed_are_admitted() {
        let cors = Cors {
            origins: Origins::These {
                exact: ["https://app.example.com".to_owned()].into(),
                below: vec![("https://".to_owned(), ".example.org".to_owned())],
            },
            credentials: false,
            max_age: None,
        };
        for fine in ["https://app.example.com", "https://a.example.org", "https://a.b.example.org"] {
            assert!(cors.admits(fine), "{fine}");
        }
        for bad in [
            "null",
            "http://app.example.com",
            "https://app.example.com:8443",
            "https://app.example.com.evil.test",
            "https://example.org",
            "https://.example.org",
            "https://evil.test/.example.org",
            "https://evil.test#.example.org",
            "https://badexample.org",
        ] {
            assert!(!cors.admits(bad), "{bad}");
        }
    }
}
