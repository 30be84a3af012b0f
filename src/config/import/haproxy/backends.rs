//! Backends and their servers, as upstreams.

use super::Reader;
use super::limits::time;
use super::syntax::{Line, Section};
use crate::config::import::front::{KeyPart, Upstream, node};
use crate::config::import::output::{Settings, scalar};

impl<'l> Reader<'l, '_> {
    /// The name of a backend's upstream, if it has servers, and the backend's section; `None` where there is no such backend.
    pub(super) fn backend(&mut self, from: &Line, name: &str) -> Option<(Option<String>, &'l Section)> {
        let is_it = |section: &Section| matches!(section.kind(), "backend" | "listen") && section.name() == name;
        let Some(section) = self.sections.iter().find(|section| is_it(section)) else {
            self.note(from, &format!("is left out: there is no backend {name}"));
            return None;
        };
        let upstream = self.upstream(section);
        Some((upstream.map(|upstream| self.front.upstream(upstream)), section))
    }

    /// Whether a backend refuses requests: it has no servers, or denies.
    pub(super) fn refuses(&self, name: &str) -> bool {
        let mut all = self.sections.iter().filter(|section| section.kind() == "backend" && section.name() == name);
        all.any(|section| !section.has("server") || section.lines.iter().any(|line| line.name() == "http-request deny"))
    }

    fn upstream(&self, section: &Section) -> Option<Upstream> {
        let shared =
            section.last("default-server").map(|line| line.words.get(1..).unwrap_or_default()).unwrap_or_default();
        let mut upstream = Upstream { name: section.name().to_owned(), ..Upstream::default() };
        let (mut room, mut checks) = (Vec::new(), None);
        for line in section.all("server") {
            let words = line.words.iter().chain(shared).cloned().collect();
            let server = Line { mark: line.mark, words };
            let Some(node) = self.server(&server) else { continue };
            if server.has("ssl") {
                let ca = server.option("ca-file").map(|file| format!(" ca: {} ", scalar(file)));
                if server.option("verify") == Some("none") {
                    self.note(line, "its certificate is checked here");
                }
                upstream.tls = Some(ca.unwrap_or_default());
            }
            checks = checks.or_else(|| server.has("check").then(|| server.clone()));
            room.push(server.option("maxconn").and_then(|max| max.parse::<u64>().ok()).filter(|max| *max > 0));
            upstream.nodes.push(node);
        }
        if upstream.nodes.is_empty() {
            self.note(&section.head, "is left out: it has no servers");
            return None;
        }
        upstream.balance = section.last("balance").and_then(|line| self.balance(line));
        let is_bounded = room.iter().any(Option::is_some);
        upstream.max_requests = room.into_iter().sum();
        match upstream.max_requests {
            Some(_) => {
                self.note(&section.head, "what each server may have at once (maxconn) bounds all of them together");
            }
            None if is_bounded => self.note(&section.head, "maxconn is carried over only where all servers have it"),
            None => {}
        }
        let said = |line: &str| time(section.last(line)?.word(2));
        let pending = upstream.max_requests.and_then(|_| said("timeout queue").or_else(|| said("timeout connect")));
        upstream.timeout("pending", pending);
        upstream.timeout("connect", said("timeout connect"));
        upstream.timeout("first_byte", said("timeout server"));
        upstream.health_check = checks.map(|server| self.health_check(section, &server)).unwrap_or_default();
        Some(upstream)
    }

    /// The address and the weight of a server. `None` for one that gets no requests.
    fn server(&self, server: &Line) -> Option<(String, u64)> {
        let weight = server.option("weight").and_then(|weight| weight.parse().ok()).unwrap_or(1);
        if server.has("backup") || server.has("disabled") || weight == 0 {
            self.note(server, "is left out: it gets no requests while others are up");
            return None;
        }
        let others = server.others(3, &SERVER, &SERVER_WITH_VALUE);
        if !others.is_empty() {
            self.note(server, &format!("is carried over without {}", others.join(", ")));
        }
        let address = server.word(2).trim_start_matches("ipv4@");
        let path = address.strip_prefix("unix@").or_else(|| address.starts_with('/').then_some(address));
        let address = path.map_or_else(|| address.to_owned(), |path| format!("unix:{path}"));
        if !address.contains(':') {
            self.note(server, "has no port: 80 is taken");
        }
        Some((node(&address, 80), weight))
    }

    fn balance(&self, line: &Line) -> Option<String> {
        let header = line.word(1).strip_prefix("hdr(").and_then(|name| name.strip_suffix(')'));
        match (line.word(1), header) {
            ("roundrobin" | "static-rr", _) => None,
            ("leastconn", _) => Some("least_requests".to_owned()),
            ("random", _) => Some("random".to_owned()),
            ("source", _) => Some("consistent_hash, hash_on: client_address".to_owned()),
            (_, Some(header)) => {
                let header = KeyPart::of_header(header.to_ascii_lowercase());
                Some(format!("consistent_hash, hash_on: {header}"))
            }
            _ => {
                self.note(line, "is not carried over: requests go to each server in turn");
                None
            }
        }
    }

    fn health_check(&self, section: &Section, server: &Line) -> Settings {
        let sent = section.last("http-check send").and_then(|line| line.option("uri"));
        let path = section.last("option httpchk").map(|line| {
            let path = line.words.iter().map(String::as_str).find(|word| word.starts_with('/'));
            sent.or(path).unwrap_or("/")
        });
        let Some(path) = path else {
            self.note(
                &section.head,
                "its servers are checked by connections: tollgate checks by `health_check: { path: ... }`",
            );
            return Settings::new();
        };
        let count = |option: &str| server.option(option).map(str::to_owned);
        let settings = [
            ("path", Some(scalar(path))),
            ("every", server.option("inter").and_then(time)),
            ("healthy_after", count("rise")),
            ("unhealthy_after", count("fall")),
        ];
        settings.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// Adds notes about backends with servers to which no route leads.
    pub(super) fn name_unused_backends(&self) {
        for section in self.sections.iter().filter(|section| section.kind() == "backend") {
            if section.has("server") && !self.front.has_upstream(section.name()) {
                self.note(&section.head, "is left out: no frontend leads to it");
            }
        }
    }
}

/// The words of a `server` line that are carried over, or that make no difference.
const SERVER: [&str; 14] = [
    "weight", "check", "inter", "rise", "fall", "ssl", "ca-file", "verify", "resolvers", "init-addr", "resolve-prefer",
    "sni", "check-ssl", "maxconn",
];

const SERVER_WITH_VALUE: [&str; 26] = [
    "weight", "inter", "rise", "fall", "ca-file", "verify", "resolvers", "init-addr", "resolve-prefer", "sni",
    "maxconn", "maxqueue", "cookie", "port", "crt", "alpn", "proto", "fastinter", "downinter", "slowstart", "observe",
    "error-limit", "on-error", "source", "track", "addr",
];
