//! `upstreams:`: nodes, TLS, balancing, health checks, timeouts and retries.

use crate::config::key;
use crate::config::names::Names;
use crate::config::problem::{Place, Problem};
use crate::config::read::{Field, Section, all_or_none, unique_items};
use crate::config::scalar::{InvalidValue, invalid};
use crate::config::settings::{EJECT, HEALTH_CHECK, NODE, RETRIES, TIMEOUTS, UPSTREAM, UPSTREAM_TLS};
use crate::config::store::{ClientTls, client_tls};
use crate::config::values::{UNIX, check_ascii, check_socket_path, host_and_port, is_host_name};
use crate::ruleset::key::KeyPart;
use crate::ruleset::upstream::{Balance, Ejection, HealthCheck, Retries, Timeouts, Upstream, UpstreamNode};
use crate::units::Nanos;

/// The TLS settings for connections to the nodes of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamTls {
    /// The authorities that sign the nodes' certificates, and the gateway's own certificate.
    pub files: ClientTls,
    /// The name in the nodes' certificates, if it is not the host of the node.
    pub server_name: Option<String>,
    /// The position of `tls` in the file.
    pub place: Place,
}

/// An upstream, and its TLS settings; `None` for connections in plain text.
type UpstreamWithTls = (Upstream, Option<UpstreamTls>);

const NODES: &str = "a list of nodes, like `[\"10.0.1.1:9000\", {address: \"10.0.1.2:9000\", weight: 2}]`";

/// The number of failures in a row after which a node is ejected.
const EJECT_AFTER: u32 = 5;
const EJECT_FOR: Nanos = Nanos::from_secs(30);
const EJECT_AT_MOST: usize = 50;
/// The time between two health checks of a node.
const CHECK_EVERY: Nanos = Nanos::from_secs(5);

/// How long a node may take to answer a health check.
const CHECK_TIMEOUT: Nanos = Nanos::from_secs(1);

/// Good answers in a row that make a node healthy.
const HEALTHY_AFTER: u32 = 2;

/// Failures in a row that make a node unhealthy.
const UNHEALTHY_AFTER: u32 = 3;

/// Reads `upstreams:`, which may be absent unless it is `needed`. Returns the names, and at their positions the upstreams;
/// `None` for an upstream that could not be read.
pub(super) fn read(top: &Section<'_>, needed: bool) -> (Names, Vec<Option<UpstreamWithTls>>) {
    const WHAT: &str = "an upstream";
    if !needed && !top.has("upstreams") {
        return (Names::empty(WHAT, true), Vec::new());
    }
    let section = top.required("upstreams", "upstreams by their names").and_then(|field| {
        let section = field.mapping("upstreams by their names")?;
        match section.is_empty() {
            true => field.fail(Problem::error(field.place(), "is empty").expected("upstreams by their names")),
            false => Some(section),
        }
    });
    let Some(section) = section else {
        return (Names::empty(WHAT, false), Vec::new());
    };
    let mut names = Names::empty(WHAT, true);
    let mut upstreams = Vec::new();
    for (name, field) in section.fields() {
        if names.define(name, &field, field.key_place()).is_some() {
            upstreams.push(upstream(name, &field));
        }
    }
    (names, upstreams)
}

fn upstream(name: &str, field: &Field<'_>) -> Option<UpstreamWithTls> {
    let section = field.section(&UPSTREAM)?;
    let nodes = section.required("nodes", NODES).and_then(|field| nodes(&field));
    let tls = section.get_with("tls", tls);
    let http2 = section.get_or("http2", false, Field::flag);
    let balance = balance(&section);
    let health_check = section.get_with("health_check", health_check);
    let timeouts = section.get_or("timeouts", Timeouts::default(), timeouts);
    let retries = section.get_or("retries", Retries::default(), retries);
    let slow_start = section.get_or("slow_start", Nanos::ZERO, Field::duration);
    let max_requests = section.get_with("max_requests", Field::whole);
    let max_pending = section.get_or("max_pending", 0, Field::whole);
    if let Some(field) = section.get("max_pending").filter(|_| max_requests == Some(None)) {
        let problem = Problem::error(field.key_place(), "waits for room, and there is room for any number");
        return field.fail(problem.expected("`max_requests` beside it"));
    }
    let ejection = section.get_with("eject", ejection);
    let (nodes, tls) = (nodes?, tls?);
    if let Some(field) = section.get("tls").filter(|_| nodes.iter().any(|node| node.address.starts_with(UNIX))) {
        return field.fail(Problem::error(field.key_place(), "cannot be spoken to a node at a path"));
    }
    let upstream = Upstream {
        name: name.to_owned(),
        nodes,
        http2: http2?,
        balance: balance?,
        health_check: health_check?,
        timeouts: timeouts?,
        retries: retries?,
        slow_start: slow_start?,
        max_requests: max_requests?,
        max_pending: max_pending?,
        ejection: ejection?,
    };
    Some((upstream, tls))
}

fn tls(field: &Field<'_>) -> Option<UpstreamTls> {
    const NAME: &str = "the name in the certificates of the nodes, like `orders.internal`";
    let section = field.section(&UPSTREAM_TLS)?;
    let server_name = section.get_with("server_name", |field| {
        field.parsed(NAME, |text| {
            match check_ascii(text).map(|()| is_host_name(text))? || text.parse::<std::net::IpAddr>().is_ok() {
                true => Ok(text.to_owned()),
                false => Err(invalid("is neither a host name nor an address")),
            }
        })
    });
    let files = client_tls(&section, field);
    Some(UpstreamTls { files: files?, server_name: server_name?, place: field.place() })
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
    let address = section.required("address", EXPECTED).and_then(|field| field.parsed(EXPECTED, place));
    let weight = section.get_or("weight", 1, Field::whole);
    Some(UpstreamNode { address: address?, weight: weight? })
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
    Problem::error(hash_on.key_place(), "means nothing here").hint("write `balance: consistent_hash`, or leave it out")
}

fn health_check(field: &Field<'_>) -> Option<HealthCheck> {
    const PATH: &str = "the path to ask for, like `/healthz`";
    let section = field.section(&HEALTH_CHECK)?;
    let path = section.required("path", PATH).and_then(|field| field.plain_path(PATH));
    let every = section.get_or("every", CHECK_EVERY, Field::duration);
    let timeout = section.get_or("timeout", CHECK_TIMEOUT, Field::duration);
    let healthy_after = section.get_or("healthy_after", HEALTHY_AFTER, Field::whole);
    let unhealthy_after = section.get_or("unhealthy_after", UNHEALTHY_AFTER, Field::whole);
    Some(HealthCheck {
        path: path?,
        every: every?,
        timeout: timeout?,
        healthy_after: healthy_after?,
        unhealthy_after: unhealthy_after?,
    })
}

fn ejection(field: &Field<'_>) -> Option<Ejection> {
    let section = field.section(&EJECT)?;
    let after = section.get_or("after", EJECT_AFTER, Field::whole);
    let time = section.get_or("for", EJECT_FOR, Field::duration);
    let max_percent = section.get_or("max_percent", EJECT_AT_MOST, Field::whole);
    Some(Ejection { after: after?, time: time?, max_percent: max_percent? })
}

fn timeouts(field: &Field<'_>) -> Option<Timeouts> {
    let section = field.section(&TIMEOUTS)?;
    let defaults = Timeouts::default();
    let pending = section.get_or("pending", defaults.pending, Field::duration);
    let connect = section.get_or("connect", defaults.connect, Field::duration);
    let first_byte = section.get_or("first_byte", defaults.first_byte, Field::duration);
    let idle = section.get_or("idle", defaults.idle, Field::duration);
    let total = section.get_with("total", Field::duration);
    let keep_alive = section.get_or("keep_alive", defaults.keep_alive, Field::duration);
    Some(Timeouts {
        pending: pending?,
        connect: connect?,
        first_byte: first_byte?,
        idle: idle?,
        total: total?,
        keep_alive: keep_alive?,
    })
}

/// Reads `retries`. `on` has only one possible word, so that it needs no field in the result.
fn retries(field: &Field<'_>) -> Option<Retries> {
    let section = field.section(&RETRIES)?;
    let defaults = Retries::default();
    let attempts = section.get_or("attempts", defaults.attempts, Field::whole);
    let on = section.get_with("on", |field| {
        let items = field.nonempty_list("a list of `connect_error`")?;
        all_or_none(items.iter().map(|item| item.choice(&[("connect_error", ())])))
    });
    on?;
    Some(Retries { attempts: attempts? })
}
