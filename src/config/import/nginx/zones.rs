//! Zones: the keys of `limit_req_zone` and `limit_conn_zone`, and the limits that use the zones.

use super::syntax::Directive;
use super::{Reader, Scope};
use crate::config::import::front::{KeyPart, LimitSettings, denied_with};
use crate::config::import::matches::{Match, ScopedLimit, network};

/// The zone of one or more limits.
pub(super) struct Zone {
    /// The rate of requests; `None` for a zone of connections.
    rate: Option<(u64, &'static str)>,
    key: ZoneKey,
}

/// The largest burst of a limit.
const MAX_BURST: u64 = 999_999;

/// The key that a limit counts by.
#[derive(Clone, Default)]
pub(super) struct ZoneKey {
    parts: Vec<KeyPart>,
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
        matches!(self.parts.as_slice(), [KeyPart::Field(..)]) && !self.by_server && !self.has_text
    }

    /// Whether the key is the server's name alone.
    fn is_server_name(&self) -> bool {
        self.by_server && self.parts.is_empty() && !self.has_text
    }
}

impl Reader<'_, '_> {
    pub(super) fn zone(&mut self, of: &Directive) {
        let Some(name) = of.option("zone=").and_then(|zone| zone.split(':').next()) else {
            return self.error(of, "names no zone");
        };
        let rate = of.option("rate=").and_then(rate);
        if of.name() == "limit_req_zone" && rate.is_none() {
            return self.error(of, "has no rate, like rate=10r/s");
        }
        match self.key(of.argument()) {
            Ok(key) => {
                if key.is_one_field() {
                    self.note(of, "requests with an empty field share one count: nginx does not limit them");
                } else if key.parts.iter().any(|part| matches!(part, KeyPart::Field(..))) {
                    let message =
                        "requests without a field of the key share one count: nginx counts them by the rest of the key";
                    self.note(of, message);
                }
                if key.parts.iter().any(|part| matches!(part, KeyPart::Field("query" | "cookie", _))) {
                    self.note(of, "names of parameters and cookies are compared with case");
                }
                if of.argument().contains("http_host") {
                    self.note(of, "counts by the host without its port, in lower case");
                }
                self.zones.insert(name.to_owned(), Zone { rate, key });
            }
            Err(why) => self.note(of, &format!("the limits of the zone `{name}` are left out: {why}")),
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
                "binary_remote_addr" | "remote_addr" => parts.push(KeyPart::CLIENT_ADDRESS),
                "server_name" => key.by_server = true,
                "host" | "http_host" => parts.push(KeyPart::Word("host")),
                "request_method" => parts.push(KeyPart::Word("method")),
                _ => match (field("http_"), field("arg_"), field("cookie_"), self.variables.get(name)) {
                    (Some(field), ..) => parts.push(KeyPart::of_header(field.replace('_', "-"))),
                    (_, Some(query), ..) => parts.push(KeyPart::Field("query", query.to_owned())),
                    (_, _, Some(cookie), _) => parts.push(KeyPart::Field("cookie", cookie.to_owned())),
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
        const OTHER: &str = "its key comes from a `map`, of which only one is carried over that makes the key empty for some \
            networks of a `geo`. Instead of a map of API keys write `customers` and `plans`, and instead of one of methods \
            a route with `methods`";
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
        fn first<'d>(of: &'d Directive, name: &str) -> Option<&'d str> {
            of.all(name).next().map(Directive::argument)
        }
        let made = |value: &str| first(map, value).or_else(|| first(map, "default")).unwrap_or_default();
        let usual = made(first(geo, "default").unwrap_or_default());
        let (mut exempt, mut limited) = (Vec::new(), Vec::new());
        for entry in geo.block().iter().filter(|entry| entry.name() != "default") {
            let network = network(entry.name()).ok_or(OTHER)?;
            match made(entry.argument()) {
                "" => exempt.push((network, entry.name().to_owned())),
                key if key == usual => limited.push(network),
                _ => return Err(OTHER.to_owned()),
            }
        }
        if limited.iter().any(|inner| exempt.iter().any(|(outer, _)| outer.contains(inner))) {
            return Err(OTHER.to_owned());
        }
        let exempt = exempt.into_iter().map(|(_, name)| name).collect();
        // other values could refer to a map again, without an end
        if usual.is_empty() || !["$binary_remote_addr", "$remote_addr"].contains(&usual) {
            return Err(OTHER.to_owned());
        }
        Ok(ZoneKey { exempt, ..self.key(usual)? })
    }

    /// Adds the limit for a `limit_req` or `limit_conn` directive.
    pub(super) fn limit(&mut self, use_of: &Directive, scope: &Scope<'_>) -> Option<ScopedLimit> {
        let is_of_requests = use_of.name() == "limit_req";
        let zone_name = if is_of_requests { use_of.option("zone=").unwrap_or_default() } else { use_of.argument() };
        let Some(zone) = self.zones.get(zone_name).filter(|zone| zone.rate.is_some() == is_of_requests) else {
            self.note(use_of, &format!("is left out, as its zone `{zone_name}` is"));
            return None;
        };
        let server_name = scope.all(&["server_name"]).first().map_or("", |one| one.argument());
        if zone.key.is_server_name() && server_name.is_empty() {
            self.note(
                use_of,
                "is left out: its key is empty in a server without a name, and nginx limits nothing there",
            );
            return None;
        }
        let (algorithm, over_limit, dry_run) = match zone.rate {
            Some(rate) => (self.rate_of_requests(use_of, rate), None, "limit_req_dry_run"),
            None => {
                let over_limit = Some(denied_with(scope.status("limit_conn_status")));
                (self.number_of_connections(use_of)?, over_limit, "limit_conn_dry_run")
            }
        };
        let missing_key = zone.key.is_one_field().then(|| ("missing_key", "skip".to_owned()));
        let shadow = scope.is_on(dry_run).then(|| ("shadow", "true".to_owned()));
        let more = [over_limit, missing_key, shadow].into_iter().flatten().collect();
        let settings = LimitSettings { algorithm, key: zone.key.parts.clone(), more };
        let exempt = zone.key.exempt.clone();
        let table = if zone.key.by_server { format!("{zone_name} {server_name}") } else { zone_name.to_owned() };
        let is_used_otherwise =
            self.front.limits.iter().any(|limit| limit.table == table && limit.settings != settings);
        let limit = self.front.limit(zone_name, &table, settings);
        if is_used_otherwise {
            self.note(use_of, "counts apart from the other uses of its zone, which have other settings");
        }
        Some(ScopedLimit { limit, matches: vec![Match::default()], exempt })
    }

    /// The algorithm of a `limit_req` whose zone has this rate.
    fn rate_of_requests(&self, use_of: &Directive, (rate, unit): (u64, &str)) -> String {
        let number = |name: &str| {
            let text = use_of.option(name)?;
            let number = text.parse::<u64>().ok().filter(|number| *number <= MAX_BURST);
            if number.is_none() {
                self.note(use_of, &format!("{name}{text} is carried over as {name}{MAX_BURST}"));
            }
            number.or(Some(MAX_BURST))
        };
        let burst = number("burst=").unwrap_or_default();
        let algorithm = format!("algorithm: gcra, rate: {rate}/{unit}, burst: {}", burst.saturating_add(1));
        if burst == 0 || use_of.arguments().iter().any(|word| word == "nodelay") {
            return algorithm;
        }
        let period = if unit == "s" { 1_000 } else { 60_000 };
        let wait = burst.saturating_mul(period).div_ceil(rate).saturating_add(1);
        let from = number("delay=").unwrap_or_default();
        format!("{algorithm}, delay_after: {from}, over_limit: {{ delay: {{ max_wait: {wait}ms }} }}")
    }

    /// The algorithm of a `limit_conn`; `None` where it says no number.
    fn number_of_connections(&self, use_of: &Directive) -> Option<String> {
        let connections = use_of.arguments().get(1).and_then(|text| text.parse::<u64>().ok());
        let Some(connections) = connections.filter(|connections| (1..1_000_000).contains(connections)) else {
            self.error(use_of, "says no number of connections");
            return None;
        };
        Some(format!("algorithm: concurrency, limit: {connections}"))
    }
}

/// Parses a rate like `10r/s` or `10r/m`.
fn rate(text: &str) -> Option<(u64, &'static str)> {
    let (number, unit) = text.split_once("r/")?;
    let unit = ["s", "m"].into_iter().find(|known| *known == unit)?;
    Some((number.parse().ok().filter(|rate| *rate > 0)?, unit))
}
