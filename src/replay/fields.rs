//! The places of a request's fields in a JSON line.

use std::str::FromStr;

use http::{HeaderName, header};

use crate::ruleset::cost::CostRule;
use crate::ruleset::key::KeyPart;
use crate::ruleset::upstream::Balance;
use crate::ruleset::{AddressHeader, CredentialSource, Ruleset};
use crate::units::Nanos;

/// The fields that the rules ask about. Only these are read from a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedFields {
    /// Header fields of requests.
    pub headers: Vec<HeaderName>,
    /// Header fields of responses.
    pub response_headers: Vec<HeaderName>,
    /// The position of `referer` among those of requests.
    pub referer: Option<usize>,
    /// The position of `user-agent`.
    pub user_agent: Option<usize>,
    /// The request header fields that limits and routes ask about, without those that only identify callers.
    pub rule_headers: Vec<HeaderName>,
}

/// A field of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordField {
    /// The time of the line.
    Time,
    /// The time at which the request came, in a line that also has a duration.
    Began,
    /// How long the request took, in this unit.
    Took(Nanos),
    /// How long the gateway delayed the request; a part of its duration.
    Waited,
    /// The client's address.
    Client,
    /// The method.
    Method,
    /// The request target.
    Target,
    /// Method and target, as in a request line.
    RequestLine,
    /// nginx's `$uri`: the path without the query and after rewrites, where the line has no target.
    RewrittenPath,
    /// The requested host.
    Host,
    /// The response's status.
    Status,
    /// The length of the request's body.
    RequestBytes,
    /// The length of the response's body.
    ResponseBytes,
    /// The customer's name.
    Customer,
    /// The caller's plan.
    Plan,
    /// The upstream node.
    Node,
    /// The cause of a response that a gateway itself made.
    Answered,
    /// The decision of a gateway.
    Decision,
    /// The charges of a program that is not a proxy.
    Charges,
    /// A request header field, by its position in [`WantedFields::headers`].
    Header(usize),
    /// A response header field, by its position in [`WantedFields::response_headers`].
    ResponseHeader(usize),
}

/// The usual places of each field, with its name in a [`Mapping`]: first the place that tollgate's own access log uses, then
/// those of nginx, Caddy and Traefik. A field without a name cannot be mapped.
const USUAL: [(&str, RecordField, &[&str]); 22] = [
    (
        "time",
        RecordField::Time,
        // `msec` is exact, which nginx's other times are not
        &["timestamp", "time", "ts", "@timestamp", "msec", "time_iso8601", "datetime", "time_local"],
    ),
    ("", RecordField::Began, &["StartUTC"]),
    (
        "client",
        RecordField::Client,
        &["client", "client_ip", "request.client_ip", "request.remote_ip", "remote_addr", "remote_ip", "ClientHost"],
    ),
    ("method", RecordField::Method, &["method", "request.method", "request_method", "RequestMethod"]),
    ("path", RecordField::Target, &["path", "request.uri", "request_uri", "RequestPath"]),
    ("request", RecordField::RequestLine, &["request"]),
    ("", RecordField::RewrittenPath, &["uri"]),
    ("host", RecordField::Host, &["host", "request.host", "http_host", "RequestHost", "server_name"]),
    ("status", RecordField::Status, &["status", "DownstreamStatus", "status_code"]),
    ("bytes", RecordField::ResponseBytes, &["bytes", "body_bytes_sent", "size", "bytes_sent", "DownstreamContentSize"]),
    (
        "request_bytes",
        RecordField::RequestBytes,
        &["request_bytes", "bytes_read", "content_length", "RequestContentSize"],
    ),
    ("duration", RecordField::Took(Nanos::SECOND), &["duration_seconds", "request_time", "duration"]),
    ("duration_ms", RecordField::Took(Nanos::new(1_000_000)), &[]),
    ("duration_us", RecordField::Took(Nanos::new(1_000)), &[]),
    ("duration_ns", RecordField::Took(Nanos::new(1)), &["Duration"]),
    ("wait", RecordField::Waited, &["wait_seconds"]),
    ("customer", RecordField::Customer, &["customer", "user", "user_id", "remote_user", "ClientUsername"]),
    ("plan", RecordField::Plan, &["plan"]),
    ("upstream", RecordField::Node, &["upstream", "upstream_addr", "ServiceAddr"]),
    ("", RecordField::Answered, &["answered"]),
    ("", RecordField::Decision, &["decision"]),
    ("", RecordField::Charges, &["charges"]),
];

/// `NAME=PATH`: the place of a field in a log, in place of the usual ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    name: String,
    path: String,
}

impl FromStr for Mapping {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, path) = text.split_once('=').ok_or("expected NAME=PATH, like customer=request.user.id")?;
        match name.strip_prefix("header.").or_else(|| name.strip_prefix("response_header.")) {
            Some(header) if HeaderName::from_str(header).is_err() => {
                return Err(format!("`{header}` is not the name of a header field"));
            }
            None if name.is_empty() || !USUAL.iter().any(|(known, ..)| *known == name) => {
                let known = USUAL.map(|(known, ..)| known);
                let known: Vec<&str> = known.into_iter().filter(|known| !known.is_empty()).collect();
                let known = known.join(", ");
                return Err(format!("found `{name}`, expected {known}, header.NAME or response_header.NAME"));
            }
            _ => {}
        }
        if path.is_empty() || path.split('.').any(str::is_empty) {
            return Err("expected the names on the way to the field, with dots between them".to_owned());
        }
        Ok(Self { name: name.to_owned(), path: path.to_owned() })
    }
}

impl Mapping {
    /// The field; `None` for a header field that no rule asks about.
    fn field(&self, wanted: &WantedFields) -> Option<RecordField> {
        let position = |names: &[HeaderName], name: &str| names.iter().position(|wanted| wanted == name);
        match (self.name.strip_prefix("header."), self.name.strip_prefix("response_header.")) {
            (Some(name), _) => position(&wanted.headers, name).map(RecordField::Header),
            (_, Some(name)) => position(&wanted.response_headers, name).map(RecordField::ResponseHeader),
            _ => USUAL.iter().find(|(name, ..)| *name == self.name).map(|(_, field, _)| *field),
        }
    }
}

impl RecordField {
    /// Whether both are the same field, perhaps in different units.
    pub(super) fn is_same(self, other: Self) -> bool {
        self == other || matches!((self, other), (Self::Took(_), Self::Took(_)))
    }

    /// Whether a mapping of this field stands in for the usual places of `other`.
    fn replaces(self, other: Self) -> bool {
        self.is_same(other) || matches!((self, other), (Self::Time, Self::Began) | (Self::Target, Self::RewrittenPath))
    }
}

/// A node of the tree of field names: the record fields that a JSON value fills, and the nodes below it.
#[derive(Debug, Default)]
pub(super) struct FieldTree {
    /// The record fields, each with its rank. If several values fill one field, the value of the lowest rank counts.
    pub(super) slots: Vec<(usize, RecordField)>,
    /// The nodes below, by the length of their names.
    below: Vec<Vec<(String, Self)>>,
}

impl FieldTree {
    /// The tree of the places of all wanted fields: those of the mappings of a field, or else its usual ones.
    pub(super) fn root(mappings: &[Mapping], wanted: &WantedFields) -> Self {
        let mapped = mappings.iter().filter_map(|mapping| Some((mapping.field(wanted)?, mapping.path.as_str())));
        let mapped: Vec<(RecordField, &str)> = mapped.collect();
        let mut root = Self::default();
        let mut add_usual = |field: RecordField, paths: &[&str]| {
            if !mapped.iter().any(|(other, _)| other.replaces(field)) {
                (0..).zip(paths).for_each(|(rank, path)| root.add(path, rank, field));
            }
        };
        USUAL.into_iter().for_each(|(_, field, paths)| add_usual(field, paths));
        for (position, name) in wanted.headers.iter().enumerate() {
            let underscored = format!("http_{}", name.as_str().replace('-', "_"));
            let [behind, below, at_top] =
                ["request_", "request.headers.", "headers."].map(|start| format!("{start}{name}"));
            add_usual(RecordField::Header(position), &[&underscored, &behind, &below, &at_top]);
        }
        for (position, name) in wanted.response_headers.iter().enumerate() {
            let [below, behind] = ["resp_headers.", "downstream_"].map(|start| format!("{start}{name}"));
            add_usual(RecordField::ResponseHeader(position), &[&below, &behind]);
        }
        (0..).zip(&mapped).for_each(|(rank, (field, path))| root.add(path, rank, *field));
        root
    }

    fn add(&mut self, path: &str, rank: usize, slot: RecordField) {
        let mut place = self;
        for name in path.split('.') {
            if place.below.len() <= name.len() {
                place.below.resize_with(name.len() + 1, Vec::new);
            }
            let same_length = &mut place.below[name.len()];
            let at = same_length.iter().position(|(known, _)| known == name);
            let at = at.unwrap_or_else(|| {
                same_length.push((name.to_owned(), Self::default()));
                same_length.len() - 1
            });
            place = &mut same_length[at].1;
        }
        place.slots.push((rank, slot));
    }

    /// The node called `name` below this one; if there is none, a node whose name differs in the case of letters only.
    pub(super) fn below(&self, name: &str) -> Option<&Self> {
        let same_length = self.below.get(name.len())?;
        let exact = same_length.iter().find(|(known, _)| known == name);
        let place = exact.or_else(|| same_length.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)));
        place.map(|(_, place)| place)
    }
}

// === impl WantedFields ===

impl WantedFields {
    /// The fields that these rules ask about.
    pub fn of<'r>(rulesets: impl IntoIterator<Item = &'r Ruleset>) -> Self {
        let mut wanted = Self::default();
        let rulesets: Vec<&Ruleset> = rulesets.into_iter().collect();
        rulesets.iter().for_each(|ruleset| wanted.add_rules(ruleset));
        wanted.rule_headers.clone_from(&wanted.headers);
        rulesets.iter().for_each(|ruleset| wanted.add_callers(ruleset));
        let position = |name| wanted.headers.iter().position(|known| known == name);
        (wanted.referer, wanted.user_agent) = (position(header::REFERER), position(header::USER_AGENT));
        wanted
    }

    /// Whether rules ask about the fields that only combined logs have.
    pub(super) const fn needs_combined_format(&self) -> bool {
        self.referer.is_some() || self.user_agent.is_some()
    }

    fn add_rules(&mut self, ruleset: &Ruleset) {
        for limit in &ruleset.limits {
            for part in &limit.key.parts {
                self.want_part(part);
            }
            match &limit.cost {
                CostRule::Header { name, .. } => self.want(name),
                CostRule::RequestBytes(_) => self.want(&header::CONTENT_LENGTH),
                CostRule::Response(cost) => {
                    for (name, _) in &cost.headers {
                        if !self.response_headers.contains(name) {
                            self.response_headers.push(name.clone());
                        }
                    }
                }
                _ => {}
            }
        }
        for upstream in &ruleset.upstreams {
            if let Balance::ConsistentHash(part) = &upstream.balance {
                self.want_part(part);
            }
        }
        for route in ruleset.matcher.routes() {
            route.headers.iter().for_each(|condition| self.want(&condition.name));
        }
    }

    fn want_part(&mut self, part: &KeyPart) {
        match part {
            KeyPart::Header(name, _) => self.want(name),
            KeyPart::Cookie(..) => self.want(&header::COOKIE),
            _ => {}
        }
    }

    fn add_callers(&mut self, ruleset: &Ruleset) {
        for source in ruleset.customers.iter().flat_map(|rules| &rules.identify) {
            match source {
                CredentialSource::Header(name) => self.want(name),
                CredentialSource::Cookie(_) => self.want(&header::COOKIE),
                CredentialSource::Bearer | CredentialSource::Basic => self.want(&header::AUTHORIZATION),
                CredentialSource::Jwt(rules) => self.want(rules.header.as_ref().unwrap_or(&header::AUTHORIZATION)),
                CredentialSource::Query(_) | CredentialSource::ClientCertificate => {}
            }
        }
        if ruleset.cors.is_some() || ruleset.matcher.routes().iter().any(|route| route.bypass.preflights) {
            self.want(&header::ORIGIN);
            self.want(&header::ACCESS_CONTROL_REQUEST_METHOD);
        }
        if !ruleset.client_address.trusted_proxies.is_empty() {
            match &ruleset.client_address.header {
                AddressHeader::Single(name) => self.want(name),
                AddressHeader::XForwardedFor => self.want(&HeaderName::from_static("x-forwarded-for")),
                AddressHeader::Forwarded => self.want(&header::FORWARDED),
            }
        }
        if ruleset.matcher.routes().iter().any(|route| route.max_request_body.is_some()) {
            self.want(&header::CONTENT_LENGTH);
        }
    }

    fn want(&mut self, name: &HeaderName) {
        if !self.headers.contains(name) {
            self.headers.push(name.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_names_something_and_the_way_to_it() {
        let mapping: Mapping = "header.X-Api-Key=req.key".parse().unwrap();
        let wanted = WantedFields { headers: vec!["x-api-key".parse().unwrap()], ..WantedFields::default() };
        assert_eq!((mapping.field(&wanted), mapping.path.as_str()), (Some(RecordField::Header(0)), "req.key"));
        for (bad, says) in [
            ("customer", "NAME=PATH"),
            ("custmer=a", "expected time, client"),
            ("=a", "expected time, client"),
            ("header.=a", "not the name"),
            ("customer=", "names on the way"),
            ("customer=a..b", "names on the way"),
        ] {
            let error = bad.parse::<Mapping>().unwrap_err();
            assert!(error.contains(says), "{bad}: {error}");
        }
    }
}
