//! `set_real_ip_from`, `real_ip_header` and `real_ip_recursive`: the proxies that name the client's address.

use std::collections::BTreeSet;

use super::syntax::Directive;
use super::{Reader, Scope};
use crate::config::import::matches::network;
use crate::config::import::output::{scalar, texts};

/// The settings of a location.
pub(super) struct RealIp<'d> {
    /// The `set_real_ip_from` directives.
    from: Vec<&'d Directive>,
    header: &'d str,
    is_recursive: bool,
}

impl<'d> RealIp<'d> {
    pub(super) fn of(scope: &Scope<'d>) -> Self {
        Self {
            from: scope.all(&["set_real_ip_from"]),
            header: scope.find("real_ip_header", Some).unwrap_or("X-Real-IP"),
            is_recursive: scope.is_on("real_ip_recursive"),
        }
    }

    fn is_of_proxy_protocol(&self) -> bool {
        self.header == "proxy_protocol"
    }

    /// The settings of `client_address`, with a comma in front; empty where nginx believes no header field.
    fn written(&self) -> String {
        let proxies: Vec<String> = self.from.iter().filter_map(|of| proxy(of)).collect();
        let Some(proxies) = texts(&proxies).filter(|_| !self.is_of_proxy_protocol()) else { return String::new() };
        let header = self.header.to_ascii_lowercase();
        let hops = if header == "x-forwarded-for" && !self.is_recursive { ", hops: 1" } else { "" };
        format!(", trusted_proxies: {proxies}, header: {}{hops}", scalar(&header))
    }
}

impl Reader<'_, '_> {
    /// Has the gateway believe the proxies that all locations believe.
    pub(super) fn believe_proxies(&mut self) {
        const COUNTED: &str = "limits and access rules take the proxy for the client until `client_address: { trusted_proxies: [...] }` names it";
        let written: BTreeSet<String> = self.real_ips.iter().map(RealIp::written).collect();
        for real_ip in &self.real_ips {
            for of in &real_ip.from {
                if real_ip.is_of_proxy_protocol() {
                    self.note(of, "is carried over as `proxy_protocol` of the listeners: name the proxies there");
                } else if written.len() > 1 {
                    self.note(of, &format!("is not carried over, as it does not hold for all locations: {COUNTED}"));
                } else if proxy(of).is_none() {
                    self.note(of, &format!("is not carried over: {COUNTED}"));
                }
            }
        }
        if let (Some(same), 1) = (written.first(), written.len()) {
            self.front.client_address.clone_from(same);
        }
    }
}

/// The proxies of a `set_real_ip_from`, as tollgate names them; `None` for the name of a host.
fn proxy(of: &Directive) -> Option<String> {
    match of.argument() {
        "unix:" => Some("unix".to_owned()),
        text => network(text).map(|_| text.to_owned()),
    }
}
