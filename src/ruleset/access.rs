//! The callers that are allowed or denied, and the requests that are never charged.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::ruleset::key::Facts;
use crate::ruleset::path::PathPattern;

/// A list of callers, by address and by customer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Callers {
    /// The networks of the callers.
    pub addresses: Vec<IpNet>,
    /// The names of the customers.
    pub customers: BTreeSet<String>,
}

impl Callers {
    fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.customers.is_empty()
    }

    fn hold_address(&self, address: Option<IpAddr>) -> bool {
        address.is_some_and(|address| self.addresses.iter().any(|network| network.contains(&address)))
    }

    fn hold_customer(&self, customer: Option<&str>) -> bool {
        customer.is_some_and(|customer| self.customers.contains(customer))
    }
}

/// The callers whose requests are allowed or denied. A caller on both lists is denied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The only callers that are allowed; `None` allows every caller.
    pub allow: Option<Callers>,
    /// The callers that are denied.
    pub deny: Callers,
}

impl Access {
    /// Whether every caller is allowed.
    pub fn is_open(&self) -> bool {
        self.allow.is_none() && self.deny.is_empty()
    }

    /// Whether a request from `address` is denied, whoever its caller is. An unknown address (`None`: a trusted proxy sent
    /// no usable one) may be a denied one, so any list of denied addresses denies it.
    pub fn denies_address(&self, address: Option<IpAddr>) -> bool {
        let denied = match address {
            Some(_) => self.deny.hold_address(address),
            None => !self.deny.addresses.is_empty(),
        };
        let customers_matter = self.allow.as_ref().is_none_or(|allow| !allow.customers.is_empty());
        denied || (!customers_matter && !self.allows(address, None))
    }

    /// Whether a request of `customer` (`None`: a caller without a credential) from `address` is denied.
    pub fn denies(&self, address: Option<IpAddr>, customer: Option<&str>) -> bool {
        self.denies_address(address) || self.deny.hold_customer(customer) || !self.allows(address, customer)
    }

    fn allows(&self, address: Option<IpAddr>, customer: Option<&str>) -> bool {
        self.allow.as_ref().is_none_or(|allow| allow.hold_address(address) || allow.hold_customer(customer))
    }
}

/// The requests that are never charged: requests of these callers, with these methods, or at these paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bypass {
    /// The callers.
    pub callers: Callers,
    /// The methods, as sent.
    pub methods: Vec<String>,
    /// The patterns of canonical paths.
    pub paths: Vec<PathPattern>,
    /// Whether CORS preflights are forwarded: they are exempt, and need no credential either, as browsers send none with
    /// them.
    pub preflights: bool,
}

/// The reason why a request is exempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exemption {
    /// Its address is on the list.
    #[error("by its address")]
    Address,
    /// Its customer is on the list.
    #[error("by its customer")]
    Customer,
    /// Its method is on the list.
    #[error("by its method")]
    Method,
    /// Its path is on the list.
    #[error("by its path")]
    Path,
    /// It is a CORS preflight, which a browser sends before a request of another site.
    #[error("as a preflight of a browser")]
    Preflight,
}

impl Bypass {
    /// Whether a request of `customer` is exempt from all charges.
    pub fn covers(&self, facts: &Facts<'_>, customer: Option<&str>) -> bool {
        let lists_nobody = self.callers.is_empty() && self.methods.is_empty() && self.paths.is_empty();
        match lists_nobody {
            true => self.covers_preflight(facts),
            false => self.exemption(facts, customer).is_some(),
        }
    }

    /// Whether all requests of `customer` from `address` are exempt, whatever they ask for.
    pub fn covers_caller(&self, address: Option<IpAddr>, customer: Option<&str>) -> bool {
        self.callers.hold_address(address) || self.callers.hold_customer(customer)
    }

    /// The reason why a request of `customer` is exempt; `None` if it is not.
    pub fn exemption(&self, facts: &Facts<'_>, customer: Option<&str>) -> Option<Exemption> {
        if self.callers.hold_address(facts.address) {
            Some(Exemption::Address)
        } else if self.callers.hold_customer(customer) {
            Some(Exemption::Customer)
        } else if self.methods.iter().any(|method| method == facts.method) {
            Some(Exemption::Method)
        } else if self.paths.iter().any(|path| path.matches(facts.path)) {
            Some(Exemption::Path)
        } else if self.covers_preflight(facts) {
            Some(Exemption::Preflight)
        } else {
            None
        }
    }

    /// Whether a request is exempt because it is a CORS preflight.
    pub fn covers_preflight(&self, facts: &Facts<'_>) -> bool {
        self.preflights && preflight_method(facts).is_some()
    }
}

/// The method that a CORS preflight asks about: an `OPTIONS` request without a body, from a page of an origin.
pub fn preflight_method<'f>(facts: &Facts<'f>) -> Option<&'f str> {
    let headers = facts.headers;
    if facts.method != "OPTIONS" || !headers.contains("origin") {
        return None;
    }
    let asked = str::from_utf8(headers.get("access-control-request-method")?).ok()?;
    let has_body = facts.streams_body
        || headers.contains("transfer-encoding")
        || headers.get("content-length").is_some_and(|length| length != b"0");
    (!has_body).then_some(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn callers(addresses: &[&str], customers: &[&str]) -> Callers {
        Callers {
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            customers: customers.iter().map(|customer| (*customer).to_owned()).collect(),
        }
    }

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn a_denied_caller_is_kept_out_even_if_allowed() {
        let access = Access { allow: Some(callers(&["10.0.0.0/8"], &["acme"])), deny: callers(&["10.1.0.0/16"], &[]) };
        assert!(!access.denies(address("10.2.0.1"), None));
        assert!(access.denies(address("10.1.0.1"), None));
        assert!(access.denies(address("10.1.0.1"), Some("acme")));
        assert!(access.denies(address("192.0.2.1"), None));
        assert!(!access.denies(address("192.0.2.1"), Some("acme")));
        assert!(!access.denies_address(address("192.0.2.1")), "it may turn out to be acme");
    }

    #[test]
    fn lists_of_addresses_decide_before_anybody_is_known() {
        let access = Access { allow: Some(callers(&["10.0.0.0/8"], &[])), deny: Callers::default() };
        assert!(access.denies_address(address("192.0.2.1")));
        assert!(!access.denies_address(address("10.0.0.1")));
        assert!(!Access::default().denies(None, None));
    }

    #[test]
    fn an_address_that_nobody_knows_is_not_let_past_a_list_of_addresses() {
        let denied = Access { allow: None, deny: callers(&["192.0.2.0/24"], &[]) };
        assert!(denied.denies_address(None));
        let allowed = Access { allow: Some(callers(&["0.0.0.0/0"], &[])), deny: Callers::default() };
        assert!(allowed.denies_address(None));
        let customers = Access { allow: None, deny: callers(&[], &["acme"]) };
        assert!(!customers.denies(None, Some("globex")));
        assert!(customers.denies(None, Some("acme")));
    }
}
