//! Zones: the keys of `limit_req_zone` and `limit_conn_zone`, and the limits that use the zones.

use super::syntax::Directive;
use super::{Limits, Reader};
use crate::config::import::front::{denied_with, key, key_field};
use crate::config::import::matches::{Match, ScopedLimit, network};

/// The zone of one or more limits.
pub(super) struct Zone {
    /// The rate of requests; `None` for a zone of connections.
    rate: Option<(u64, &'static str)>,
    key: ZoneKey,
}

/// The largest burst of a limit.
const LARGEST_BURST: u64 = 999_999;

/// The key that a limit counts by.
#[derive(Clone, Default)]
pub(super) struct ZoneKey {
    /// The parts of the key, in YAML.
    parts: Vec<String>,
    /// The networks for which the key is empty, so that they are not limited.
    exempt: Vec<String>,
    /// Whether the server's name is a part, so that each server counts apart.
    by_server: bool,
    /// Whether text outside of variables is a part, so that the key is never empty.
    has_text: bool,
}

impl ZoneKey {
    /// Whether the key is a field of the request alone. nginx does not limit requests whose key is empty.
    fn is_one_field(&self) -> bool {
        matches!(self.parts.as_slice(), [one] if one.starts_with('{')) && !self.by_server && !self.has_text
    }

    /// Whether the key is the server's name alone.
    fn is_server_name(&self) -> bool {
        self.by_server && self.parts.is_empty() && !self.has_text
    }
}

impl Reader<'_, '_> {
    pub(super) fn zone(&mut self, of: &Directive) {
        let option = |name: &str| of.arguments().iter().find_map(|word| word.strip_prefix(name));
        let Some(name) = option("zone=").and_then(|zone| zone.split(':').next()) else {
            return self.error(of, "names no zone");
        };
        let rate = match (of.name(), option("rate=")) {
            ("limit_req_zone", rate) => {
                let per_second = rate.and_then(|rate| Some((rate.strip_suffix("r/s")?, "s")));
                let number = per_second.or_else(|| rate.and_then(|rate| Some((rate.strip_suffix("r/m")?, "m"))));
                let number =
                    number.and_then(|(number, unit)| Some((number.parse().ok().filter(|rate| *rate > 0)?, unit)));
                let Some(rate) = number else { return self.error(of, "has no rate, like rate=10r/s") };
                Some(rate)
            }
            _ => None,
        };
        match self.key(of.argument()) {
            Ok(key) => {
                if key.is_one_field() {
                    self.note(of, "requests with an empty field share one count: nginx does not limit them");
                } else if key.parts.iter().any(|part| part.starts_with('{')) {
                    let message =
                        "requests without a field of the key share one count: nginx counts them by the rest of the key";
                    self.note(of, message);
                }
                if key.parts.iter().any(|part| part.starts_with("{ query") || part.starts_with("{ cookie")) {
                    self.note(of, "names of parameters and cookies are compared with case");
                }
                if of.argument().contains("http_host") {
                    self.note(of, "counts by the host without its port, in lower case");
                }
                self.zones.insert(name.to_owned(), Zone { rate, key });
            }
            Err(why) => self.note(of, &format!("the limits of this zone are left out: {why}")),
        }
    }

    /// Reads a key that consists of variables. `Err` names the part that cannot be carried over.
    fn key(&self, expression: &str) -> Result<ZoneKey, String> {
        let mut key = ZoneKey::default();
        let parts = &mut key.parts;
        let mut variables = expression.split('$');
        key.has_text = variables.next().is_some_and(|text| !text.is_empty());
        for variable in variables {
            let variable = variable.trim_start_matches('{');
            let end = variable.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(variable.len());
            let (name, text) = variable.split_at_checked(end).unwrap_or_default();
            key.has_text |= !text.trim_start_matches('}').is_empty();
            let field = |prefix: &str| name.strip_prefix(prefix);
            match name {
                "binary_remote_addr" | "remote_addr" => parts.push("client_address".to_owned()),
                "server_name" => key.by_server = true,
                "host" | "http_host" => parts.push("host".to_owned()),
                "request_method" => parts.push("method".to_owned()),
                _ => match (field("http_"), field("arg_"), field("cookie_"), self.variables.get(name)) {
                    (Some(field), ..) => parts.push(key_field("header", &field.replace('_', "-"))),
                    (_, Some(query), ..) => parts.push(key_field("query", query)),
                    (_, _, Some(cookie), _) => parts.push(key_field("cookie", cookie)),
                    (.., Some(map)) => {
                        let of_map = self.mapped(map)?;
                        parts.extend(of_map.parts);
                        key.exempt.extend(of_map.exempt);
                    }
                    _ => return Err(format!("no key has a part like ${name}")),
                },
            }
        }
        if !key.exempt.is_empty() && (key.parts.len() > 1 || key.by_server || key.has_text) {
            return Err("its other parts are never empty, so that its `map` exempts no network".to_owned());
        }
        Ok(key)
    }

    /// The key of a `map` over a `geo`, which is empty for some networks and otherwise the client's address.
    fn mapped(&self, map: &Directive) -> Result<ZoneKey, String> {
        const OTHER: &str = "of `map`, only one of a `geo` is known that makes the key empty for some networks";
        let geo = self.variables.get(map.argument().trim_start_matches('$')).filter(|geo| geo.name() == "geo");
        let is_of_client = |geo: &&&Directive| match geo.arguments() {
            [_] => true,
            [address, _] => address == "$remote_addr",
            _ => false,
        };
        let geo = geo.filter(|_| map.name() == "map").filter(is_of_client).ok_or(OTHER)?;
        // other entries than plain values: regular expressions, and those of a file
        if map.block().iter().any(|entry| entry.name().starts_with('~') || entry.name() == "include") {
            return Err(OTHER.to_owned());
        }
        let default = |of: &Directive| {
            of.block().iter().find(|entry| entry.name() == "default").map(|entry| entry.argument().to_owned())
        };
        let made = |value: &str| {
            let entry = map.block().iter().find(|entry| entry.name() == value);
            entry.map(|entry| entry.argument().to_owned()).or_else(|| default(map)).unwrap_or_default()
        };
        let usual = made(&default(geo).unwrap_or_default());
        let (mut exempt, mut limited) = (Vec::new(), Vec::new());
        for entry in geo.block().iter().filter(|entry| entry.name() != "default") {
            let network = network(entry.name()).ok_or(OTHER)?;
            match made(entry.argument()) {
                empty if empty.is_empty() => exempt.push((network, entry.name().to_owned())),
                key if key == usual => limited.push(network),
                _ => return Err(OTHER.to_owned()),
            }
        }
        if limited.iter().any(|inner| exempt.iter().any(|(outer, _)| outer.contains(inner))) {
            return Err(OTHER.to_owned());
        }
        let exempt = exempt.into_iter().map(|(_, name)| name).collect();
        // other values could refer to a map again, without an end
        if usual.is_empty() || !["$binary_remote_addr", "$remote_addr"].contains(&usual.as_str()) {
            return Err(OTHER.to_owned());
        }
        Ok(ZoneKey { exempt, ..self.key(&usual)? })
    }

    /// Adds the limit for a `limit_req` or `limit_conn` directive.
    pub(super) fn limit(&mut self, use_of: &Directive, limits: &Limits<'_>) -> Option<ScopedLimit> {
        let option = |name: &str| use_of.arguments().iter().find_map(|word| word.strip_prefix(name));
        let is_of_requests = use_of.name() == "limit_req";
        let zone_name = if is_of_requests { option("zone=").unwrap_or_default() } else { use_of.argument() };
        let Some(zone) = self.zones.get(zone_name).filter(|zone| zone.rate.is_some() == is_of_requests) else {
            self.note(use_of, "is left out, as its zone is");
            return None;
        };
        if zone.key.is_server_name() && limits.server_name.is_empty() {
            self.note(
                use_of,
                "is left out: its key is empty in a server without a name, and nginx limits nothing there",
            );
            return None;
        }
        let key = key(&zone.key.parts);
        let number = |name: &str| {
            let text = option(name)?;
            let number = text.parse::<u64>().ok().filter(|number| *number <= LARGEST_BURST);
            if number.is_none() {
                self.note(use_of, &format!("{name}{text} is carried over as {name}{LARGEST_BURST}"));
            }
            number.or(Some(LARGEST_BURST))
        };
        let mut settings = match zone.rate {
            Some((rate, unit)) => {
                let burst = number("burst=").unwrap_or_default();
                let size = burst.saturating_add(1);
                let delay = match use_of.arguments().iter().any(|word| word == "nodelay") || burst == 0 {
                    true => String::new(),
                    false => {
                        let seconds = if unit == "s" { 1_000 } else { 60_000 };
                        let wait = burst.saturating_mul(seconds).div_ceil(rate).saturating_add(1);
                        let from = number("delay=").unwrap_or_default();
                        format!(", delay_after: {from}, over_limit: {{ delay: {{ max_wait: {wait}ms }} }}")
                    }
                };
                format!("algorithm: gcra, rate: {rate}/{unit}, burst: {size}{delay}, key: {key}")
            }
            None => {
                let most = use_of.arguments().get(1).and_then(|text| text.parse::<u64>().ok());
                let Some(most) = most.filter(|most| (1..1_000_000).contains(most)) else {
                    self.error(use_of, "says no number of connections");
                    return None;
                };
                format!("algorithm: concurrency, limit: {most}, key: {key}{}", denied_with(limits.connection_status))
            }
        };
        if zone.key.is_one_field() {
            settings.push_str(", missing_key: skip");
        }
        let is_dry_run = if is_of_requests { limits.request_dry_run } else { limits.connection_dry_run };
        if is_dry_run {
            settings.push_str(", shadow: true");
        }
        let exempt = zone.key.exempt.clone();
        let table =
            if zone.key.by_server { format!("{zone_name} {}", limits.server_name) } else { zone_name.to_owned() };
        let is_used_otherwise =
            self.front.limits.iter().any(|limit| limit.table == table && limit.settings != settings);
        let limit = self.front.limit(zone_name, &table, settings);
        if is_used_otherwise {
            self.note(use_of, "counts apart from the other uses of its zone, which have other settings");
        }
        Some(ScopedLimit { limit, matches: vec![Match::default()], exempt })
    }
}
