//! HAProxy's configuration: frontends that lead to backends, and the stick tables whose counters deny requests.
//!
//! Every line is carried over, or describes what tollgate does anyway, or gets a note.

use std::collections::BTreeSet;

use self::limits::Rules;
use self::syntax::{Line, Section};
use super::front::rules::{Effects, Rule};
use super::front::{GUARD, Listener, PASS, ProxyConfig, node};
use super::matches::{Match, joined};
use super::parsed;
use crate::config::findings::Findings;
use crate::config::problem::Problem;

mod backends;
mod conditions;
mod limits;
mod syntax;

pub(super) use self::syntax::is_of_this_format;

/// Lines that need no note: tollgate does the same anyway, or differs only in ways that requests do not show.
const UNNEEDED: [&str; 23] = [
    "log", "log-format", "log-tag", "chroot", "user", "group", "daemon", "pidfile", "nbthread", "cpu-map",
    "stats socket", "stats timeout", "description", "option httplog", "option dontlognull", "option dontlog-normal",
    "option log-health-checks", "option forwardfor", "option http-keep-alive", "option http-server-close",
    "option redispatch", "option http-ignore-probes", "option socket-stats",
];

/// Lines that other functions of this module read.
const READ: [&str; 15] = [
    "mode", "acl", "bind", "use_backend", "default_backend", "server", "default-server", "balance", "stick-table",
    "option httpchk", "timeout connect", "timeout queue", "timeout server", "maxconn", "http-check send",
];

struct Reader<'l, 'f> {
    findings: &'f Findings,
    sections: &'l [Section],
    front: ProxyConfig,
}

pub(super) fn read(text: &str, findings: &Findings) -> Option<ProxyConfig> {
    let sections = parsed(syntax::parse(text), findings)?;
    let mut reader = Reader { findings, sections: &sections, front: ProxyConfig::default() };
    reader.define();
    sections.iter().filter(|section| section.is_frontend()).for_each(|section| reader.frontend(section));
    reader.name_unused_backends();
    reader.front.finish(findings, "frontend that leads to servers")
}

impl<'l> Reader<'l, '_> {
    fn note(&self, of: &Line, message: &str) {
        self.findings.add(Problem::warning(self.findings.place(of.mark, &of.name()), message));
    }

    /// Reads the bounds on connections, and adds notes about the lines that nothing reads.
    fn define(&mut self) {
        for section in self.sections {
            match section.kind() {
                "defaults" if section.head.option("from").is_some() => {
                    self.note(&section.head, "is carried over without the defaults that it names");
                }
                "global" | "defaults" | "frontend" | "backend" | "listen" => {}
                _ => {
                    self.note(&section.head, "is not carried over");
                    continue;
                }
            }
            for line in &section.lines {
                if let Err(why) = self.define_line(section, line) {
                    self.note(line, &why);
                }
            }
        }
    }

    /// Reads a line that other lines refer to. `Err` says that the line, or a part of it, is not carried over.
    fn define_line(&mut self, section: &Section, line: &Line) -> Result<(), String> {
        let is_rule = matches!(line.word(0), "http-request" | "tcp-request");
        let why = match (section.kind(), line.name().as_str()) {
            (_, "stick-table") if line.has("peers") => {
                "is carried over without peers: `mode: shared` counts in the `store` for all"
            }
            // HAProxy takes 0 for a bound that it computes
            ("global", "maxconn") if line.word(1) == "0" => return Ok(()),
            ("global", "maxconn") => return self.bound_connections("max", line.word(1)),
            ("defaults", _) if is_rule => "is not carried over: write it into the sections that use these defaults",
            (_, "maxconn") => "is not carried over: tollgate bounds all connections, or those of a listener",
            (_, name) if name.starts_with("stats") && section.is_frontend() && !section.leads() => return Ok(()),
            (_, "stats enable") if section.last("stats uri").is_some() => return Ok(()),
            (_, "stats enable" | "stats uri") => {
                "is not carried over: requests for the statistics go to upstreams here"
            }
            (_, "stats auth" | "stats http-request") => GUARD,
            (_, "rate-limit") => {
                "is not carried over: it makes new connections wait; a limit with `key: all` counts requests"
            }
            (_, name) if is_rule || READ.contains(&name) || UNNEEDED.contains(&name) => return Ok(()),
            (_, name) if name.starts_with("tune.") || name.starts_with("ssl-default-bind-cipher") => return Ok(()),
            _ => "is not carried over",
        };
        Err(why.to_owned())
    }

    /// Sets a number of `connections:`. `Err` says that it has another value already.
    fn bound_connections(&mut self, name: &'static str, max: &str) -> Result<(), String> {
        match self.front.connections.iter().find(|(known, _)| *known == name) {
            Some((_, known)) if known != max => Err(format!("is left out: `connections.{name}` is {known} already")),
            Some(_) => Ok(()),
            None => {
                self.front.connections.push((name, max.to_owned()));
                Ok(())
            }
        }
    }

    fn frontend(&mut self, section: &'l Section) {
        if section.last("mode").is_none_or(|mode| mode.word(1) != "http") {
            return self.note(&section.head, "is left out: its mode is not http");
        }
        let mut rules = Rules::default();
        self.add_rules(section, &mut rules);
        // its backends read the counters, too
        let is_shared = section.has("use_backend");
        rules.trackers.iter_mut().for_each(|tracker| tracker.is_shared = is_shared);
        let before = self.front.rules.len();
        let own_servers = section.kind() == "listen" && section.has("server");
        let mut leads = false;
        for line in section.all("use_backend") {
            leads |= self.route(section, line, &rules);
        }
        match section.last("default_backend") {
            Some(line) => leads |= self.route(section, line, &rules),
            None if own_servers => {
                leads |= self.route_to(section, &section.head, section.name(), &[Match::default()], &rules);
            }
            None if !leads => self.note(&section.head, "is left out: it leads to no servers"),
            None => self.note(&section.head, "has no default_backend: what no rule takes is answered 404"),
        }
        if !leads {
            return self.front.rules.truncate(before);
        }
        if before > 0 {
            self.note(
                &section.head,
                "has routes that listeners of other frontends take, too: tell them apart by hosts",
            );
        }
        section.all("bind").for_each(|line| self.bind(line));
    }

    fn bind(&mut self, line: &Line) {
        const KNOWN: [&str; 10] =
            ["ssl", "crt", "maxconn", "accept-proxy", "alpn", "v4v6", "name", "interface", "process", "thread"];
        const WITH_VALUE: [&str; 9] =
            ["crt", "maxconn", "alpn", "name", "interface", "process", "thread", "verify", "ca-file"];
        let bare = line.word(1).trim_start_matches("ipv4@").trim_start_matches("ipv6@");
        let pairs = line.words.iter().zip(line.words.iter().skip(1));
        let files = pairs.filter(|(word, _)| *word == "crt").map(|(_, file)| file);
        // the certificate and the key are in one file
        let certificates: Vec<_> = files.filter(|_| line.has("ssl")).map(|file| (file.clone(), file.clone())).collect();
        if line.has("ssl") && certificates.is_empty() {
            return self.note(line, "is left out: it names no `crt`");
        }
        let others = line.others(2, &KNOWN, &WITH_VALUE);
        if !others.is_empty() {
            let is_guard = line.option("verify") == Some("required");
            let passes = if is_guard { PASS } else { "" };
            self.note(line, &format!("is carried over without {}{passes}", others.join(", ")));
        }
        for address in bare.split(',') {
            let address = match address.strip_prefix("unix@").or_else(|| address.starts_with('/').then_some(address)) {
                Some(path) => format!("unix:{path}"),
                None => node(&address.replace(":::", "[::]:"), 80),
            };
            let listener = Listener {
                address,
                certificates: certificates.clone(),
                proxy_protocol: line.has("accept-proxy"),
                max_connections: line.option("maxconn").filter(|max| *max != "0").map(str::to_owned),
            };
            if let Some(why) = self.front.listen(listener) {
                self.note(line, &why);
            }
        }
    }

    /// Reads a `use_backend` or a `default_backend`. Returns whether it leads to servers.
    fn route(&mut self, section: &'l Section, line: &'l Line, rules: &Rules<'l>) -> bool {
        let passes = if self.refuses(line.word(1)) { PASS } else { "" };
        let condition = match conditions::parse_condition(section, line) {
            Ok(condition) => condition,
            Err(what) => {
                self.note(line, &format!("is left out: {what} is not carried over{passes}"));
                return false;
            }
        };
        if condition.iter().any(|one| one.over.is_some() || !one.from.is_empty() || !one.except.is_empty()) {
            let message = "is left out: routes go by host, path, method and header fields only; over a limit, `over_limit: { divert: ... }` goes elsewhere";
            self.note(line, &format!("{message}{passes}"));
            return false;
        }
        condition.iter().flat_map(|one| &one.remarks).for_each(|remark| self.note(line, remark));
        let matches = joined(condition.into_iter().flat_map(|one| one.matches));
        self.route_to(section, line, line.word(1), &matches, rules)
    }

    /// Adds the rules of a line that leads to a backend. Returns whether the backend has servers.
    fn route_to(
        &mut self,
        section: &Section,
        line: &'l Line,
        backend: &str,
        matches: &[Match],
        rules: &Rules<'l>,
    ) -> bool {
        let Some((upstream, of)) = self.backend(line, backend) else { return false };
        let mut rules = rules.clone();
        if upstream.is_none() && line.word(0) != "use_backend" {
            return false;
        }
        if upstream.is_none() {
            self.note(line, "refuses requests with 403 here: its backend has no servers that are carried over");
            rules.effects = Effects::refusal();
        } else if !std::ptr::eq(of, section) {
            self.add_rules(of, &mut rules);
        }
        for matches in matches {
            self.front.rules.push(Rule {
                place: self.findings.place(line.mark, &line.name()),
                listeners: BTreeSet::from([section.name().to_owned()]),
                name: format!("{}.{backend}", section.name()),
                matches: matches.clone(),
                order: Some((section.name().to_owned(), Vec::new())),
                upstreams: upstream.iter().map(|upstream| (upstream.clone(), 1)).collect(),
                effects: rules.effects.clone(),
            });
        }
        upstream.is_some()
    }
}
