//! `upstreams:`: nodes, TLS, balancing, health checks, timeouts and retries.

use crate::config::key;
use crate::config::names::Names;
use crate::config::problem::Problem;
use crate::config::read::{Field, Section, all_or_none, unique_items};
use crate::config::scalar::{InvalidValue, invalid};
use crate::config::settings::{EJECT, HEALTH_CHECK, NODE, RETRIES, TIMEOUTS, UPSTREAM, UPSTREAM_TLS};
use crate::config::store::{ClientTls, tls_files};
use crate::config::values::{UNIX, check_ascii, check_socket_path, host_and_port, is_host_name};
use crate::ruleset::key::KeyPart;
use crate::ruleset::upstream::{Balance, Ejection, HealthCheck, Retries, Timeouts, Upstream, UpstreamNode};

/// The TLS settings for connections to the nodes of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamTls {
    /// The authorities that sign the nodes' certificates, and the gateway's own certificate.
    pub files: ClientTls,
    /// The name in the nodes' certificates, if it is not the host of the node.
    pub server_name: Option<String>,
}

/// An upstream, and its TLS settings; `None` for connections in plain text.
type UpstreamWithTls = (Upstream, Option<UpstreamTls>);

const NODES: &str = "a list of nodes, like `[\"10.0.1.1:9000\", {address: \"10.0.1.2:9000\", weight: 2}]`";

/// Reads `upstreams:`, which may be absent unless it is `needed`. Returns the names, and at their positions the upstreams;
/// `None` for an upstream that could not be read.
pub(super) fn read(top: &Section<'_>, needed: bool) -> (Names, Vec<Option<UpstreamWithTls>>) {
    const WHAT: &str = "an upstream";
    if !needed && !top.has("upstreams") {
        return (Names::none(WHAT), Vec::new());
    }
    let section = top.required("upstreams", "upstreams by their names").and_then(|field| {
        let section = field.mapping("upstreams by their names")?;
        match section.is_empty() {
            true => field.fail(Problem::error(field.place(), "is empty").expected("upstreams by their names")),
            false => Some(section),
        }
    });
    let Some(section) = section else {
        return (Names::unreadable(WHAT), Vec::new());
    };
    let mut names = Names::none(WHAT);
    let mut upstreams = Vec::new();
    for (name, field) in section.fields() {
        if names.define(name, &field, field.key_place()).is_some() {
            upstreams.push(upstream(name, &field));
        }
    }
    (names, upstreams)
}

fn upstream(name: &str, field: &Field<'_>) -> Option<UpstreamWithTls> {
    let section = field.section_or(&UPSTREAM, "a mapping with `nodes`, like `{ nodes: [127.0.0.1:9000] }`")?;
    let (nodes, balance) = (section.required("nodes", NODES).and_then(|field| nodes(&field)), balance(&section));
    let tls = section.optional("tls", tls);
    if let Some(field) = section.get("max_pending").filter(|_| !section.has("max_requests")) {
        let problem = field.key_error("waits for room, and there is room for any number");
        field.findings().add(problem.expected("`max_requests` beside it"));
    }
    if let (Some(_), Some(nodes), Some(field)) = (&tls, &nodes, section.get("tls"))
        && nodes.iter().any(|node| node.address.starts_with(UNIX))
    {
        field.findings().add(field.key_error("cannot be spoken to a node at a path"));
    }
    let upstream = Upstream {
        name: name.to_owned(),
        http2: section.flag("http2"),
        health_check: section.optional("health_check", health_check),
        timeouts: timeouts(&section.below("timeouts", &TIMEOUTS)),
        retries: retries(&section.below("retries", &RETRIES)),
        slow_start: section.duration("slow_start"),
        max_requests: section.optional("max_requests", Field::whole),
        max_pending: section.whole("max_pending"),
        ejection: section.optional("eject", ejection),
        nodes: nodes?,
        balance: balance?,
    };
    Some((upstream, tls))
}

fn tls(field: &Field<'_>) -> Option<UpstreamTls> {
    const NAME: &str = "the name in the certificates of the nodes, like `orders.internal`";
    let section = field.section(&UPSTREAM_TLS)?;
    let server_name = section.optional("server_name", |field| {
        field.parsed(NAME, |text| {
            match check_ascii(text).map(|()| is_host_name(text))? || text.parse::<std::net::IpAddr>().is_ok() {
                true => Ok(text.to_owned()),
                false => Err(invalid("is neither a host name nor an address")),
            }
        })
    });
    let files = tls_files(&section, field.place());
    Some(UpstreamTls { files: files?, server_name })
}

fn nodes(field: &Field<'_>) -> Option<Vec<UpstreamNode>> {
    unique_items(&field.nonempty_list(NODES)?, node, |node| node.address.clone())
}

fn node(field: &Field<'_>) -> Option<UpstreamNode> {
    const EXPECTED: &str = "a host and a port, like `10.0.1.1:9000`, or a path, like `unix:/run/orders.sock`";
    if field.as_mapping().is_none() {
        return Some(UpstreamNode { address: field.parsed(EXPECTED, place)?, weight: 1 });
    }
    let section = field.section(&NODE)?;
    let address = section.must("address", |field| field.read(place));
    Some(UpstreamNode { weight: section.whole("weight"), address: address? })
}

/// Parses a host and a port, or a socket path.
fn place(text: &str) -> Result<String, InvalidValue> {
    match text.strip_prefix(UNIX) {
        None => host_and_port(text).map(|_| text.to_owned()),
        Some(path) => check_socket_path(path).map(|()| text.to_owned()),
    }
}

fn balance(section: &Section<'_>) -> Option<Balance> {
    let hash_on = section.get("hash_on");
    let Some(field) = section.get("balance") else {
        return match hash_on {
            Some(hash_on) => hash_on.fail(hash_without_hashing(&hash_on)),
            None => Some(Balance::RoundRobin),
        };
    };
    let words = [("round_robin", 0), ("random", 1), ("least_requests", 2), ("consistent_hash", 3)];
    let balance = match field.choice(&words)? {
        0 => Balance::RoundRobin,
        1 => Balance::Random,
        2 => Balance::LeastRequests,
        _ => {
            let Some(hash_on) = hash_on else {
                return field
                    .fail(field.error("needs `hash_on`").expected("a part of the request, like `hash_on: customer`"));
            };
            return match key::part(&hash_on)? {
                KeyPart::UpstreamNode => {
                    hash_on.fail(hash_on.error("is what the hash is to choose").expected("a part of the request"))
                }
                KeyPart::Group(_) | KeyPart::PathSegment(_) | KeyPart::Descriptor(_) => {
                    hash_on.fail(hash_on.error("is for the keys of limits").expected("another part of the request"))
                }
                KeyPart::RequestField(_) => hash_on
                    .fail(hash_on.error("may come after the node is chosen").expected("a part of the request's head")),
                part => Some(Balance::ConsistentHash(part)),
            };
        }
    };
    match hash_on {
        Some(hash_on) => hash_on.fail(hash_without_hashing(&hash_on)),
        None => Some(balance),
    }
}

fn hash_without_hashing(hash_on: &Field<'_>) -> Problem {
    hash_on.key_error("means nothing here").hint("write `balance: consistent_hash`, or leave it out")
}

fn health_check(field: &Field<'_>) -> Option<HealthCheck> {
    let section = field.section(&HEALTH_CHECK)?;
    let path = section.must("path", Field::plain_path);
    Some(HealthCheck {
        every: section.duration("every"),
        timeout: section.duration("timeout"),
        healthy_after: section.whole("healthy_after"),
        unhealthy_after: section.whole("unhealthy_after"),
        path: path?,
    })
}

fn ejection(field: &Field<'_>) -> Option<Ejection> {
    let section = field.section(&EJECT)?;
    Some(Ejection {
        after: section.whole("after"),
        time: section.duration("for"),
        max_percent: section.whole("max_percent"),
    })
}

fn timeouts(section: &Section<'_>) -> Timeouts {
    Timeouts {
        pending: section.duration("pending"),
        connect: section.duration("connect"),
        first_byte: section.duration("first_byte"),
        idle: section.duration("idle"),
        total: section.optional("total", Field::duration),
        keep_alive: section.duration("keep_alive"),
    }
}

/// Reads `retries`. `on` has only one possible word, so that it needs no field in the result.
fn retries(section: &Section<'_>) -> Retries {
    section.optional("on", |field| {
        let items = field.nonempty_list("a list of `connect_error`")?;
        all_or_none(items.iter().map(|item| item.choice(&[("connect_error", ())])))
    });
    Retries { attempts: section.whole("attempts") }
}
