//! The listeners: the addresses of all servers that proxy. The options of an address hold for all servers there.

use std::collections::HashMap;

use super::Reader;
use super::syntax::Directive;
use crate::config::import::add_new;
use crate::config::import::front::{Listener, node};

/// Options of `listen` that need no note: requests do not show them.
const UNNEEDED: [&str; 17] = [
    "ssl", "proxy_protocol", "default_server", "default", "http2", "reuseport", "deferred", "bind", "multipath",
    "backlog", "rcvbuf", "sndbuf", "so_keepalive", "fastopen", "setfib", "accept_filter", "ipv6only=on",
];

/// The `listen` directives of a server for TCP, each with its address; the server itself where it has none.
pub(super) fn listens(server: &Directive) -> Vec<(&Directive, String)> {
    if !server.has("listen") {
        return vec![(server, "0.0.0.0:80".to_owned())];
    }
    server.all("listen").filter(|one| !has(one, "quic")).map(|one| (one, node(one.argument(), 80))).collect()
}

/// The position of the default server of each address: the one that says so, else the first.
pub(super) fn defaults(servers: &[&Directive]) -> HashMap<String, usize> {
    let mut defaults = HashMap::new();
    for (position, server) in servers.iter().enumerate() {
        for (listen, address) in listens(server) {
            match has(listen, "default_server") || has(listen, "default") {
                true => _ = defaults.insert(address, position),
                false => _ = defaults.entry(address).or_insert(position),
            }
        }
    }
    defaults
}

fn has(listen: &Directive, option: &str) -> bool {
    listen.name() == "listen" && listen.arguments().iter().skip(1).any(|word| word == option)
}

impl<'d> Reader<'d, '_> {
    /// Adds the listeners of the servers at the positions `carried` of `servers`.
    pub(super) fn listeners(&mut self, http: &[&'d Directive], servers: &[&'d Directive], carried: &[usize]) {
        let mut addresses: HashMap<String, Vec<(usize, &Directive)>> = HashMap::new();
        for (position, server) in servers.iter().enumerate() {
            for (listen, address) in listens(server) {
                addresses.entry(address).or_default().push((position, listen));
            }
        }
        let defaults = defaults(servers);
        for server in carried.iter().filter_map(|position| servers.get(*position)) {
            self.note_options(server);
            for (listen, address) in listens(server) {
                let Some(mut all) = addresses.remove(&address) else { continue };
                let is_tls = all.iter().any(|(_, one)| has(one, "ssl"));
                let proxy_protocol = all.iter().any(|(_, one)| has(one, "proxy_protocol"));
                // clients that name no server get the certificate of the default server
                all.sort_by_key(|(position, _)| defaults.get(&address) != Some(position));
                let mut certificates: Vec<(String, String)> = Vec::new();
                let shown = all.iter().filter(|(position, _)| is_tls && carried.contains(position));
                for server in shown.filter_map(|(position, _)| servers.get(*position)) {
                    let own = certificates_of(server.block().iter());
                    let own = if own.is_empty() { certificates_of(http.iter().copied()) } else { own };
                    add_new(&mut certificates, own);
                }
                if is_tls && certificates.is_empty() {
                    let message = "speaks TLS, and the server names no ssl_certificate and ssl_certificate_key";
                    self.error(listen, message);
                    continue;
                }
                let listener = Listener { certificates, proxy_protocol, ..Listener::at(address) };
                if let Some(why) = self.front.listen(listener) {
                    self.note(listen, &why);
                }
            }
        }
    }

    /// Adds notes about the options of a server's listeners that are not carried over.
    fn note_options(&self, server: &Directive) {
        for listen in server.all("listen") {
            if has(listen, "quic") {
                self.note(listen, "is left out: HTTP/3 is not carried over");
                continue;
            }
            if has(listen, "proxy_protocol") {
                let message = "takes the PROXY protocol from every address: name the balancers in `proxy_protocol`";
                self.note(listen, message);
            }
            let is_known = |option: &str| {
                UNNEEDED.contains(&option) || UNNEEDED.contains(&option.split('=').next().unwrap_or_default())
            };
            for option in listen.arguments().iter().skip(1).filter(|option| !is_known(option)) {
                self.note(listen, &format!("is carried over without {option}"));
            }
        }
    }
}

/// The certificates of a level, each with its key.
fn certificates_of<'d>(block: impl Iterator<Item = &'d Directive> + Clone) -> Vec<(String, String)> {
    let all = |name: &'static str| block.clone().filter(move |one| one.name() == name).map(Directive::argument);
    all("ssl_certificate")
        .zip(all("ssl_certificate_key"))
        .map(|(cert, key)| (cert.to_owned(), key.to_owned()))
        .collect()
}
