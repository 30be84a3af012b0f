//! Host patterns: `api.example.com`, `*.example.com`.

use std::net::Ipv6Addr;

/// A pattern for a canonical host name (lower case, without a port or a final dot).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// This host.
    Exact(String),
    /// Every host below this domain, the domain itself excluded; kept with its leading dot.
    Wildcard(String),
}

impl HostPattern {
    /// Parses a pattern.
    ///
    /// Errors, in words for the configuration: a name that no request can have as its host (see [`is_name`]), a port, `*`
    /// anywhere but as the whole first label.
    pub fn parse(text: &str) -> Result<Self, String> {
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        if let Some(address) = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let address: Ipv6Addr =
                address.parse().map_err(|_| "must hold an IPv6 address in its brackets".to_owned())?;
            return Ok(Self::Exact(format!("[{address}]")));
        }
        if let Some((_, host)) = name.split_once("://") {
            let host = host.split('/').next().unwrap_or_default();
            return Err(format!("must be a host name and no URL; write `{host}`"));
        }
        if name.contains(':') {
            return Err("is matched without its port; leave the port out".to_owned());
        }
        let (name, below) = match name.strip_prefix("*.") {
            Some(domain) => (domain.to_owned(), true),
            None => (name, false),
        };
        if !is_name(&name) {
            return Err("must be a host name, with `*` only for all names below a domain (`*.example.com`)".to_owned());
        }
        Ok(if below { Self::Wildcard(format!(".{name}")) } else { Self::Exact(name) })
    }

    /// Whether the canonical host `host` matches.
    pub fn matches(&self, host: &str) -> bool {
        match self {
            Self::Exact(name) => name == host,
            Self::Wildcard(suffix) => host.len() > suffix.len() && host.ends_with(suffix.as_str()),
        }
    }
}

impl std::fmt::Display for HostPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exact(name) => f.write_str(name),
            Self::Wildcard(suffix) => write!(f, "*{suffix}"),
        }
    }
}

/// Whether a request can have this host name: labels between dots, each of letters, digits, `-` and `_`.
pub fn is_name(name: &str) -> bool {
    let is_label = |label: &[u8]| {
        !label.is_empty() && label.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    name.as_bytes().split(|byte| *byte == b'.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_names_below_a_domain_only() {
        let below = HostPattern::parse("*.Example.com").unwrap();
        assert!(below.matches("a.example.com"));
        assert!(below.matches("a.b.example.com"));
        assert!(!below.matches("example.com"));
        assert!(!below.matches("badexample.com"));
        assert_eq!(below.to_string(), "*.example.com");
    }

    #[test]
    fn ports_and_stray_stars_are_refused() {
        for bad in
            ["", "a:80", "*", "a.*.b", "a..b", "u@a", "a,b", "a;b", "a%2eb", "a#b", "m\u{fc}nchen.de", "*.", "a.."]
        {
            assert!(HostPattern::parse(bad).is_err(), "{bad}");
        }
        for spelling in ["[::1]", "[0::0:1]"] {
            assert!(HostPattern::parse(spelling).unwrap().matches("[::1]"), "{spelling}");
        }
        assert!(HostPattern::parse("[v1.x]").is_err());
        let url = HostPattern::parse("http://a.test/x").unwrap_err();
        assert_eq!(url, "must be a host name and no URL; write `a.test`");
    }
}
