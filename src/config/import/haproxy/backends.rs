//! Backends and their servers, as upstreams.

use super::Reader;
use super::conditions;
use super::limits::{Rules, time};
use super::syntax::{Line, Section};
use crate::config::import::front::{Upstream, node, upstream_name};
use crate::config::import::scalar;

impl<'l> Reader<'l, '_> {
    /// The rules of a backend, which this function adds as an upstream; `None` where the backend is left out.
    pub(super) fn backend(&mut self, from: &Line, name: &str) -> Option<Rules> {
        let is_it = |section: &Section| matches!(section.kind(), "backend" | "listen") && section.name() == name;
        let Some((position, section)) = self.sections.iter().enumerate().find(|(_, section)| is_it(section)) else {
            self.note(from, &format!("is left out: there is no backend {name}"));
            return None;
        };
        let lines = self.lines(position, section);
        let upstream = upstream_name(name);
        if !self.front.upstreams.iter().any(|known| known.name == upstream) {
            let made = self.upstream(upstream, section, &lines)?;
            self.front.upstreams.push(made);
        }
        Some(self.rules(section, &conditions::acls(section.lines.iter())))
    }

    fn upstream(&self, name: String, section: &Section, lines: &[&Line]) -> Option<Upstream> {
        let last = |name: &str| lines.iter().rfind(|line| line.name() == name);
        let shared = last("default-server").map(|line| line.words.get(1..).unwrap_or_default()).unwrap_or_default();
        let (mut nodes, mut room, mut more, mut checks) = (Vec::new(), Vec::new(), String::new(), None);
        for line in section.lines.iter().filter(|line| line.word(0) == "server") {
            let words = line.words.iter().chain(shared).cloned().collect();
            let server = Line { mark: line.mark, words };
            let weight = server.option("weight").and_then(|weight| weight.parse().ok()).unwrap_or(1);
            if server.has("backup") || server.has("disabled") || weight == 0 {
                self.note(line, "is left out: it gets no requests while others are up");
                continue;
            }
            let others = server.others(3, &SERVER, &SERVER_WITH_VALUE);
            if !others.is_empty() {
                self.note(line, &format!("is carried over without {}", others.join(", ")));
            }
            let address = server.word(2).trim_start_matches("ipv4@");
            let path = address.strip_prefix("unix@").or_else(|| address.starts_with('/').then_some(address));
            let address = path.map_or_else(|| address.to_owned(), |path| format!("unix:{path}"));
            if !address.contains(':') {
                self.note(line, "has no port: 80 is taken");
            }
            if server.has("ssl") {
                let ca = server.option("ca-file").map(|file| format!(" ca: {} ", scalar(file)));
                if server.option("verify") == Some("none") {
                    self.note(line, "its certificate is checked here");
                }
                more = format!(", tls: {{{}}}", ca.unwrap_or_default());
            }
            checks = checks.or_else(|| server.has("check").then_some(server.words.clone()));
            room.push(server.option("maxconn").and_then(|most| most.parse::<u64>().ok()).filter(|most| *most > 0));
            nodes.push((node(&address, 80), weight));
        }
        if nodes.is_empty() {
            self.note(&section.head, "is left out: it has no servers");
            return None;
        }
        if let Some(line) = last("balance") {
            match (line.word(1), line.word(1).strip_prefix("hdr(").and_then(|name| name.strip_suffix(')'))) {
                ("roundrobin" | "static-rr", _) => {}
                ("leastconn", _) => more.push_str(", balance: least_requests"),
                ("random", _) => more.push_str(", balance: random"),
                ("source", _) => more.push_str(", balance: consistent_hash, hash_on: client_address"),
                (_, Some(header)) => {
                    more.push_str(&format!(", balance: consistent_hash, hash_on: {{ header: {} }}", scalar(header)));
                }
                _ => self.note(line, "is not carried over: requests go to each server in turn"),
            }
        }
        let is_bounded = room.iter().any(Option::is_some);
        let room: Option<u64> = room.into_iter().sum();
        match room {
            Some(most) => {
                self.note(&section.head, "what each server may have at once (maxconn) bounds all of them together");
                more.push_str(&format!(", max_requests: {most}, max_pending: {ANY_NUMBER}"));
            }
            None if is_bounded => self.note(&section.head, "maxconn is carried over only where all servers have it"),
            None => {}
        }
        let said = |line: &str| time(last(line)?.word(2));
        let pending = room.and_then(|_| said("timeout queue").or_else(|| said("timeout connect")));
        let times =
            [("pending", pending), ("connect", said("timeout connect")), ("first_byte", said("timeout server"))];
        let times = times.into_iter().filter_map(|(name, time)| Some(format!("{name}: {}", time?)));
        let times: Vec<String> = times.collect();
        if !times.is_empty() {
            more.push_str(&format!(", timeouts: {{ {} }}", times.join(", ")));
        }
        if let Some(words) = checks {
            more.push_str(&self.health_check(&section.head, Line { mark: section.head.mark, words }, lines));
        }
        Some(Upstream { name, nodes, more })
    }

    fn health_check(&self, of: &Line, server: Line, lines: &[&Line]) -> String {
        let last = |name: &str| lines.iter().rfind(|line| line.name() == name);
        let sent = last("http-check send").and_then(|line| line.option("uri"));
        let path = last("option httpchk").map(|line| {
            let path = line.words.iter().map(String::as_str).find(|word| word.starts_with('/'));
            sent.or(path).unwrap_or("/")
        });
        let Some(path) = path else {
            self.note(of, "its servers are checked by connections: tollgate checks by `health_check: { path: ... }`");
            return String::new();
        };
        let every = server.option("inter").and_then(time).map(|every| format!(", every: {every}"));
        let count = |option: &str, name: &str| server.option(option).map(|count| format!(", {name}: {count}"));
        let parts = [every, count("rise", "healthy_after"), count("fall", "unhealthy_after")];
        let parts: String = parts.into_iter().flatten().collect();
        format!(", health_check: {{ path: {}{parts} }}", scalar(path))
    }

    /// Adds notes about backends with servers to which no route leads.
    pub(super) fn name_unused_backends(&self) {
        for section in self.sections.iter().filter(|section| section.kind() == "backend") {
            let name = upstream_name(section.name());
            let has_servers = section.lines.iter().any(|line| line.word(0) == "server");
            if has_servers && !self.front.upstreams.iter().any(|known| known.name == name) {
                self.note(&section.head, "is left out: no frontend leads to it");
            }
        }
    }
}

/// A number of waiting requests that is never reached.
const ANY_NUMBER: u64 = 1_000_000;

/// The words of a `server` line that are carried over, or that make no difference.
const SERVER: [&str; 14] = [
    "weight",
    "check",
    "inter",
    "rise",
    "fall",
    "ssl",
    "ca-file",
    "verify",
    "resolvers",
    "init-addr",
    "resolve-prefer",
    "sni",
    "check-ssl",
    "maxconn",
];

const SERVER_WITH_VALUE: [&str; 26] = [
    "weight",
    "inter",
    "rise",
    "fall",
    "ca-file",
    "verify",
    "resolvers",
    "init-addr",
    "resolve-prefer",
    "sni",
    "maxconn",
    "maxqueue",
    "cookie",
    "port",
    "crt",
    "alpn",
    "proto",
    "fastinter",
    "downinter",
    "slowstart",
    "observe",
    "error-limit",
    "on-error",
    "source",
    "track",
    "addr",
];
