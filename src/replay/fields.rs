//! The places of a request's fields in a JSON line.

use std::str::FromStr;

use http::{HeaderName, header};

use crate::ruleset::cost::CostRule;
use crate::ruleset::key::KeyPart;
use crate::ruleset::upstream::Balance;
use crate::ruleset::{AddressHeader, CredentialSource, Ruleset};

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
    /// The fields that no rule asks about. The reader skips them.
    pub skipped_fields: Vec<RecordField>,
}

/// A field of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordField {
    /// The time of the line.
    Time,
    /// How long the request took.
    Took(Unit),
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

/// The unit of a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds.
    Seconds,
    /// Nanoseconds.
    Nanoseconds,
}

/// The usual places of each field: first the name that tollgate's own access log uses, then the names of nginx, Caddy and
/// Traefik.
const USUAL: [(RecordField, &[&str]); 18] = [
    (
        RecordField::Time,
        &["timestamp", "time", "ts", "@timestamp", "time_iso8601", "msec", "StartUTC", "datetime", "time_local"],
    ),
    (RecordField::Took(Unit::Seconds), &["duration_seconds", "request_time", "duration"]),
    (RecordField::Took(Unit::Nanoseconds), &["Duration"]),
    (RecordField::Waited, &["wait_seconds"]),
    (
        RecordField::Client,
        &["client", "client_ip", "request.client_ip", "request.remote_ip", "remote_addr", "remote_ip", "ClientHost"],
    ),
    (RecordField::Method, &["method", "request.method", "request_method", "RequestMethod"]),
    (RecordField::Target, &["path", "request.uri", "request_uri", "uri", "RequestPath"]),
    (RecordField::RequestLine, &["request"]),
    (RecordField::Host, &["host", "request.host", "http_host", "RequestHost", "server_name"]),
    (RecordField::Status, &["status", "DownstreamStatus", "status_code"]),
    (RecordField::RequestBytes, &["request_bytes", "bytes_read", "content_length", "RequestContentSize"]),
    (RecordField::ResponseBytes, &["bytes", "body_bytes_sent", "size", "bytes_sent", "DownstreamContentSize"]),
    (RecordField::Customer, &["customer", "user", "user_id", "remote_user", "ClientUsername"]),
    (RecordField::Plan, &["plan"]),
    (RecordField::Node, &["upstream", "upstream_addr", "ServiceAddr"]),
    (RecordField::Answered, &["answered"]),
    (RecordField::Decision, &["decision"]),
    (RecordField::Charges, &["charges"]),
];

/// `NAME=PATH`: the place of a field in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    what: MappedField,
    path: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum MappedField {
    RecordField(RecordField),
    Header(HeaderName),
    ResponseHeader(HeaderName),
}

/// The names that can be mapped.
pub const NAMES: &str = "time, client, method, path, request, host, status, bytes, request_bytes, duration, wait, \
                         customer, plan, upstream, header.NAME or response_header.NAME";

impl FromStr for Mapping {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, path) = text.split_once('=').ok_or("expected NAME=PATH, like customer=request.user.id")?;
        let header =
            |name: &str| HeaderName::from_str(name).map_err(|_| format!("`{name}` is not the name of a header field"));
        let what = match name {
            "time" => MappedField::RecordField(RecordField::Time),
            "client" => MappedField::RecordField(RecordField::Client),
            "method" => MappedField::RecordField(RecordField::Method),
            "path" => MappedField::RecordField(RecordField::Target),
            "request" => MappedField::RecordField(RecordField::RequestLine),
            "host" => MappedField::RecordField(RecordField::Host),
            "status" => MappedField::RecordField(RecordField::Status),
            "bytes" => MappedField::RecordField(RecordField::ResponseBytes),
            "request_bytes" => MappedField::RecordField(RecordField::RequestBytes),
            "duration" => MappedField::RecordField(RecordField::Took(Unit::Seconds)),
            "wait" => MappedField::RecordField(RecordField::Waited),
            "customer" => MappedField::RecordField(RecordField::Customer),
            "plan" => MappedField::RecordField(RecordField::Plan),
            "upstream" => MappedField::RecordField(RecordField::Node),
            name => match (name.strip_prefix("header."), name.strip_prefix("response_header.")) {
                (Some(name), _) => MappedField::Header(header(name)?),
                (_, Some(name)) => MappedField::ResponseHeader(header(name)?),
                (None, None) => return Err(format!("found `{name}`, expected {NAMES}")),
            },
        };
        if path.is_empty() || path.split('.').any(str::is_empty) {
            return Err("expected the names on the way to the field, with dots between them".to_owned());
        }
        Ok(Self { what, path: path.to_owned() })
    }
}

/// A node of the tree of field names: the record fields that a JSON value fills, and the nodes below it.
#[derive(Debug, Default)]
pub(super) struct FieldTree {
    /// The record fields, each with its rank. If several values fill one field, the value of the lowest rank counts.
    pub(super) slots: Vec<(u8, RecordField)>,
    /// The nodes below, by the length of their names.
    below: Vec<Vec<(String, Self)>>,
}

impl FieldTree {
    /// The tree of the usual and the mapped names of all wanted fields.
    pub(super) fn root(mappings: &[Mapping], wanted: &WantedFields) -> Self {
        let mut root = Self::default();
        let is_wanted = |slot: &RecordField| !wanted.skipped_fields.contains(slot);
        for (slot, paths) in USUAL.into_iter().filter(|(slot, _)| is_wanted(slot)) {
            for (rank, path) in (1..).zip(paths) {
                root.add(path, rank, slot);
            }
        }
        for (position, name) in wanted.headers.iter().enumerate() {
            let underscored = format!("http_{}", name.as_str().replace('-', "_"));
            root.add(&underscored, 1, RecordField::Header(position));
            root.add(&format!("request_{name}"), 1, RecordField::Header(position));
            for above in ["request.headers", "headers"] {
                root.add(&format!("{above}.{name}"), 1, RecordField::Header(position));
            }
        }
        for (position, name) in wanted.response_headers.iter().enumerate() {
            root.add(&format!("resp_headers.{name}"), 1, RecordField::ResponseHeader(position));
            root.add(&format!("downstream_{name}"), 1, RecordField::ResponseHeader(position));
        }
        for mapping in mappings {
            let position = |names: &[HeaderName], name| names.iter().position(|wanted| wanted == name);
            let slot = match &mapping.what {
                MappedField::RecordField(slot) => Some(*slot).filter(is_wanted),
                MappedField::Header(name) => position(&wanted.headers, name).map(RecordField::Header),
                MappedField::ResponseHeader(name) => {
                    position(&wanted.response_headers, name).map(RecordField::ResponseHeader)
                }
            };
            if let Some(slot) = slot {
                root.add(&mapping.path, 0, slot);
            }
        }
        root
    }

    fn add(&mut self, path: &str, rank: u8, slot: RecordField) {
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
        wanted.pass_over(&rulesets);
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
    }

    /// Lists the fields that no rule asks about. Only limits that are settled at the end of a request need to know how it
    /// ended, and only customers have plans.
    fn pass_over(&mut self, rulesets: &[&Ruleset]) {
        let limits = || rulesets.iter().flat_map(|ruleset| &ruleset.limits);
        let ends = limits().any(|limit| !limit.is_settled_at_once());
        let lengths = ends || self.headers.contains(&header::CONTENT_LENGTH);
        let nodes = limits().any(|limit| limit.key.counts_by_node());
        let plans = rulesets.iter().any(|ruleset| ruleset.customers.is_some());
        let asked = [
            (RecordField::Waited, ends),
            (RecordField::ResponseBytes, ends),
            (RecordField::RequestBytes, lengths),
            (RecordField::Node, nodes),
            (RecordField::Plan, plans),
        ];
        self.skipped_fields = asked.into_iter().filter(|(_, is_asked)| !is_asked).map(|(slot, _)| slot).collect();
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
        assert_eq!(
            mapping,
            Mapping { what: MappedField::Header("x-api-key".parse().unwrap()), path: "req.key".to_owned() }
        );
        for (bad, says) in [
            ("customer", "NAME=PATH"),
            ("custmer=a", "expected time, client"),
            ("header.=a", "not the name"),
            ("customer=", "names on the way"),
            ("customer=a..b", "names on the way"),
        ] {
            let error = bad.parse::<Mapping>().unwrap_err();
            assert!(error.contains(says), "{bad}: {error}");
        }
    }
}
