//! The route of a request: the most specific one that matches.
//!
//! Routes are compared by host (a name before `*.name`, a longer `*.name` before a shorter, any host last), then by
//! path (segment by segment: a literal before `*` before `**`), then by method (a list before none), then by the
//! number of conditions on header fields and query parameters (more before fewer), then by their order in the file.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;

use hashbrown::HashMap;
use regex::bytes::Regex;

use crate::fields::Fields;
use crate::ruleset::LimitId;
use crate::ruleset::access::{Access, Bypass};
use crate::ruleset::denied::Denied;
use crate::ruleset::host::HostPattern;
use crate::ruleset::key::{Facts, query_values};
use crate::ruleset::path::{PathPattern, strip_path_prefix};
use crate::ruleset::request_field::FieldPath;
use crate::ruleset::upstream::{Split, UpstreamId};

mod trie;

use trie::Node;

/// Index into [`Matcher::routes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteId(pub usize);

/// A route: the conditions for a match, and the treatment of requests that match. The default matches every request.
#[derive(Clone, Debug, Default)]
pub struct Route {
    /// The name in the configuration.
    pub name: String,
    /// The hosts, of which a request has to have one; any if empty.
    pub hosts: Vec<HostPattern>,
    /// The pattern of the path.
    pub path: PathPattern,
    /// The path as the configuration writes it.
    pub path_pattern: String,
    /// The methods, of which a request has to have one; any if empty. HEAD is among them where GET is, unless another route
    /// with the same hosts and path names HEAD.
    pub methods: Vec<String>,
    /// The conditions on header fields, all of which have to hold.
    pub headers: Vec<HeaderMatch>,
    /// The conditions on query parameters, all of which have to hold.
    pub query: Vec<QueryMatch>,
    /// The upstream of the requests; `None` only where no listener forwards requests.
    pub upstream: Option<UpstreamId>,
    /// The upstreams that share the requests, if there are several; `upstream` is the first of them.
    pub split: Option<Split>,
    /// The limits of the requests, in the order of the configuration; then the candidates tried beside them.
    pub limits: Vec<LimitId>,
    /// The limits among them that are charged before callers are identified; empty where callers are not identified.
    pub early: Vec<LimitId>,
    /// The fields of the body on which the limits depend.
    pub body_fields: Arc<[FieldPath]>,
    /// The longest text in these fields on which the limits depend, in bytes.
    pub longest_text: usize,
    /// The settings of the answer to requests over a limit, as far as the limit has none of its own.
    pub denied: Denied,
    /// The callers that are allowed or denied, in addition to the rules for every route.
    pub access: Access,
    /// The requests that are never charged, the rules for every route included.
    pub bypass: Bypass,
    /// Whether paths may hold path parameters (`;x=1`); requests with such paths are refused otherwise.
    pub path_parameters: bool,
    /// Whether a request may turn its connection into a WebSocket.
    pub upgrades_to_websocket: bool,
    /// The most bytes that the body of a request may have; `None` for any number.
    pub max_request_body: Option<u64>,
    /// The rate at which the body of a response is sent, in bytes per second; `None` for no bound.
    pub response_rate: Option<NonZeroU64>,
    /// The change of the path before the request is forwarded.
    pub rewrite: Option<Rewrite>,
    /// Changes to the request's header fields, after those that tollgate makes itself.
    pub request_headers: HeaderEdits,
    /// Changes to the response's header fields.
    pub response_headers: HeaderEdits,
}

impl Route {
    /// Whether only the order in the file decides which of the two routes takes a request that both match.
    pub fn ties_with(&self, other: &Self) -> bool {
        fn overlap<T: PartialEq>(one: &[T], other: &[T]) -> bool {
            one.is_empty() && other.is_empty() || one.iter().any(|item| other.contains(item))
        }
        self.path == other.path
            && by_specificity(self, other).is_eq()
            && overlap(&self.hosts, &other.hosts)
            && overlap(&self.methods, &other.methods)
    }

    /// Whether it has conditions on header fields or query parameters.
    pub fn has_conditions(&self) -> bool {
        !self.headers.is_empty() || !self.query.is_empty()
    }

    /// Whether a request that matches carries a field or a parameter several times, and not all values meet the conditions:
    /// an upstream may take another value than the one for which the request takes this route.
    pub fn is_contested_by(&self, facts: &Facts<'_>) -> bool {
        let header = |of: &HeaderMatch| facts.headers.get_all(of.name.as_str()).all(|value| of.value.is_met_by(value));
        let parameter = |of: &QueryMatch| query_values(facts.query, &of.name).all(|value| of.value.is_met_by(&value));
        !self.headers.iter().all(header) || !self.query.iter().all(parameter)
    }

    /// The upstreams of the requests: several, if they share the requests.
    pub fn upstreams(&self) -> impl Iterator<Item = UpstreamId> {
        let others = self.split.iter().flat_map(|split| &split.shares).skip(1).map(|(upstream, _)| *upstream);
        self.upstream.into_iter().chain(others)
    }
}

/// A condition on a header field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderMatch {
    /// The field.
    pub name: http::HeaderName,
    /// The condition, which the value of one of the field's lines has to meet.
    pub value: ValueMatch,
}

/// A condition on a query parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryMatch {
    /// The name of the parameter, percent-decoded.
    pub name: String,
    /// The condition, which one of the parameter's values, percent-decoded, has to meet.
    pub value: ValueMatch,
}

/// A condition on a value.
#[derive(Clone, Debug)]
pub enum ValueMatch {
    /// Any value.
    Any,
    /// This value.
    Is(String),
    /// A value that this expression matches as a whole.
    Like(Regex),
}

impl ValueMatch {
    fn is_met_by(&self, value: &[u8]) -> bool {
        match self {
            Self::Any => true,
            Self::Is(wanted) => value == wanted.as_bytes(),
            Self::Like(expression) => expression.is_match(value),
        }
    }
}

impl PartialEq for ValueMatch {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, Self::Any) => true,
            (Self::Is(one), Self::Is(other)) => one == other,
            (Self::Like(one), Self::Like(other)) => one.as_str() == other.as_str(),
            _ => false,
        }
    }
}

impl Eq for ValueMatch {}

/// A change of the path before the request is forwarded; the query is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rewrite {
    /// Removes `strip` if the path begins with these whole segments (with their path parameters), then prepends `add`.
    Prefix {
        /// The prefix to remove, without a final slash.
        strip: String,
        /// The prefix to add, without a final slash.
        add: String,
        /// Whether the prefix is removed in any case of ASCII letters.
        ignores_case: bool,
    },
    /// This path for every request.
    Path(String),
}

impl Rewrite {
    /// The path that is sent to the upstream for the canonical path `path`. `*`, which stands for the whole server, stays.
    pub fn apply(&self, path: &str) -> String {
        match self {
            _ if path == "*" => path.to_owned(),
            Self::Path(fixed) => fixed.clone(),
            Self::Prefix { strip, add, ignores_case } => {
                let new = format!("{add}{}", strip_path_prefix(path, strip, *ignores_case).unwrap_or(path));
                if new.is_empty() { "/".to_owned() } else { new }
            }
        }
    }
}

/// Changes to header fields: first removals, then settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderEdits {
    /// The fields to remove, with all their lines.
    pub remove: Vec<http::HeaderName>,
    /// The fields to set, in place of existing ones.
    pub set: Vec<(http::HeaderName, http::HeaderValue)>,
}

impl HeaderEdits {
    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty()
    }

    /// Whether a field with this name, in upper or lower case, is removed or set.
    pub fn concerns(&self, name: &[u8]) -> bool {
        let mut names = self.remove.iter().chain(self.set.iter().map(|(name, _)| name));
        names.any(|edited| name.eq_ignore_ascii_case(edited.as_str().as_bytes()))
    }
}

/// The routes, indexed by host and by the segments of the path.
#[derive(Debug)]
pub struct Matcher {
    /// The routes of requests, then the routes of domains.
    routes: Vec<Route>,
    /// The number of routes of requests.
    requested: usize,
    /// The routes of requests by specificity, whatever their hosts.
    order: Vec<RouteId>,
    exact_hosts: HashMap<String, Node>,
    /// The routes for `*.name`, by the name with its leading dot.
    wildcard_hosts: HashMap<String, Node>,
    any_host: Node,
    /// Whether routes take paths in any case of ASCII letters; their patterns then are in lower case.
    ignores_case: bool,
}

impl Matcher {
    /// Indexes the first `requested` of `routes`; a [`RouteId`] is a position in this list. The others are the routes of
    /// domains, which no request takes. With `ignores_case`, the routes' patterns are in lower case.
    pub fn new(routes: Vec<Route>, requested: usize, ignores_case: bool) -> Self {
        let mut order: Vec<RouteId> = (0..requested).map(RouteId).collect();
        order.sort_by(|a, b| by_specificity(&routes[a.0], &routes[b.0]));
        let mut exact_hosts: HashMap<String, Node> = HashMap::new();
        let mut wildcard_hosts: HashMap<String, Node> = HashMap::new();
        let mut any_host = Node::default();
        for id in &order {
            let route = &routes[id.0];
            if route.hosts.is_empty() {
                any_host.add(*id, &route.path);
            }
            for host in &route.hosts {
                let node = match host {
                    HostPattern::Exact(name) => exact_hosts.entry_ref(name.as_str()).or_default(),
                    HostPattern::Wildcard(suffix) => wildcard_hosts.entry_ref(suffix.as_str()).or_default(),
                };
                node.add(*id, &route.path);
            }
        }
        Self { routes, requested, order, exact_hosts, wildcard_hosts, any_host, ignores_case }
    }

    /// The routes of requests, in the order of the configuration.
    pub fn routes(&self) -> &[Route] {
        self.routes.get(..self.requested).unwrap_or_default()
    }

    /// The routes of requests, then the routes of domains.
    pub fn all(&self) -> &[Route] {
        &self.routes
    }

    /// The route `id`, which this matcher gave out.
    pub fn route(&self, id: RouteId) -> &Route {
        &self.routes[id.0]
    }

    /// Whether routes take paths in any case of ASCII letters.
    pub fn ignores_case(&self) -> bool {
        self.ignores_case
    }

    /// A request's path as it is compared with patterns.
    fn compared_path<'p>(&self, path: &'p str) -> Cow<'p, str> {
        match self.ignores_case && path.bytes().any(|byte| byte.is_ascii_uppercase()) {
            true => Cow::Owned(path.to_ascii_lowercase()),
            false => Cow::Borrowed(path),
        }
    }

    /// The most specific route that matches: by host first, an exact one before `*.name`, and a longer `*.name` first.
    pub fn find(&self, facts: &Facts<'_>) -> Option<RouteId> {
        let accepts = |id: RouteId| mismatch_except_path(self.route(id), facts).is_none();
        let path = self.compared_path(facts.path);
        let find = |node: &Node| node.find(&path, &accepts);
        let exact = self.exact_hosts.get(facts.host).and_then(find);
        exact.or_else(|| self.below(facts.host).find_map(find)).or_else(|| find(&self.any_host))
    }

    /// The route of a request without header fields and query parameters.
    pub fn find_bare(&self, method: &str, host: &str, path: &str) -> Option<&Route> {
        self.find(&Facts { method, host, path, ..Facts::of(&Fields::default()) }).map(|id| self.route(id))
    }

    /// The routes that are compared with a request, in order: the routes of its host whose patterns allow its first path
    /// segment. A route that names several hosts may come twice. Looks at all routes.
    pub fn compared_routes(&self, facts: &Facts<'_>) -> impl Iterator<Item = RouteId> {
        let path = self.compared_path(facts.path);
        let begins_alike = |id: &RouteId| self.route(*id).path.may_match_first_segment(&path);
        let alike: Vec<RouteId> = self.order.iter().copied().filter(begins_alike).collect();
        let exact = HostPattern::Exact(facts.host.to_owned());
        let below = suffixes(facts.host).map(|suffix| HostPattern::Wildcard(suffix.to_owned()));
        let hosts: Vec<Option<HostPattern>> = std::iter::once(exact).chain(below).map(Some).chain([None]).collect();
        let is_at = |id: &RouteId, host: &Option<HostPattern>| match host {
            Some(host) => self.route(*id).hosts.contains(host),
            None => self.route(*id).hosts.is_empty(),
        };
        let tried: Vec<RouteId> =
            hosts.iter().flat_map(|host| alike.iter().filter(move |id| is_at(id, host))).copied().collect();
        tried.into_iter()
    }

    /// The routes for `*.name` patterns that match `host`, the longest name first.
    fn below(&self, host: &str) -> impl Iterator<Item = &Node> {
        let suffixes = (!self.wildcard_hosts.is_empty()).then(|| suffixes(host)).into_iter().flatten();
        suffixes.filter_map(|suffix| self.wildcard_hosts.get(suffix))
    }

    /// The reason why a request cannot take the route `id`; `None` if it can.
    pub fn mismatch(&self, id: RouteId, facts: &Facts<'_>) -> Option<Mismatch<'_>> {
        let route = self.route(id);
        let beside = match route.path.matches(&self.compared_path(facts.path)) {
            true => mismatch_except_path(route, facts),
            false => Some(Mismatch::Path(&route.path_pattern)),
        };
        match route.hosts.is_empty() || route.hosts.iter().any(|host| host.matches(facts.host)) {
            true => beside,
            false => Some(Mismatch::Host { hosts: &route.hosts, otherwise: beside.is_none() }),
        }
    }
}

/// The parts of a host from each dot on (`.b.c` and `.c` of `a.b.c`), the longest first.
fn suffixes(host: &str) -> impl Iterator<Item = &str> {
    host.match_indices('.').filter(|(at, _)| *at > 0).filter_map(|(at, _)| host.get(at..))
}

/// The first condition of a route that a request does not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch<'r> {
    /// The request has another host than these.
    Host {
        /// The hosts of the route.
        hosts: &'r [HostPattern],
        /// Whether the request meets all other conditions.
        otherwise: bool,
    },
    /// The request's path does not match this pattern.
    Path(&'r str),
    /// The request has another method than these.
    Method(&'r [String]),
    /// The request lacks this header field, or the field has another value.
    Header(&'r HeaderMatch),
    /// The request lacks this query parameter, or the parameter has another value.
    Query(&'r QueryMatch),
}

impl fmt::Display for Mismatch<'_> {
    /// `the method is not GET or POST`; shows no value of a header field or a query parameter.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host { hosts, .. } => {
                let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
                write!(f, "the host is not {}", hosts.join(" or "))
            }
            Self::Path(pattern) => write!(f, "the path is not {pattern}"),
            Self::Method(methods) => write!(f, "the method is not {}", methods.join(" or ")),
            Self::Header(HeaderMatch { name, value }) => write!(f, "the header {name} {}", lacks(value)),
            Self::Query(QueryMatch { name, value }) => write!(f, "the query parameter {name} {}", lacks(value)),
        }
    }
}

fn lacks(value: &ValueMatch) -> &'static str {
    match value {
        ValueMatch::Any => "is not there",
        ValueMatch::Is(_) | ValueMatch::Like(_) => "does not have the value that is asked for",
    }
}

/// The first unmet condition, the host and the path left out: the index has compared those already.
fn mismatch_except_path<'r>(route: &'r Route, facts: &Facts<'_>) -> Option<Mismatch<'r>> {
    if !route.methods.is_empty() && !route.methods.iter().any(|method| method == facts.method) {
        return Some(Mismatch::Method(&route.methods));
    }
    match route.has_conditions() {
        true => unmet(route, facts),
        false => None,
    }
}

/// The first condition on a header field or a query parameter that does not hold.
#[inline(never)] // few routes have such conditions, and without this code the search for routes stays small
fn unmet<'r>(route: &'r Route, facts: &Facts<'_>) -> Option<Mismatch<'r>> {
    let lacks_header =
        |of: &&HeaderMatch| !facts.headers.get_all(of.name.as_str()).any(|value| of.value.is_met_by(value));
    let lacks_parameter =
        |of: &&QueryMatch| !query_values(facts.query, &of.name).any(|value| of.value.is_met_by(&value));
    let header = route.headers.iter().find(lacks_header).map(Mismatch::Header);
    header.or_else(|| route.query.iter().find(lacks_parameter).map(Mismatch::Query))
}

/// The number of conditions on header fields and query parameters.
fn conditions(route: &Route) -> usize {
    route.headers.len().saturating_add(route.query.len())
}

/// The order of routes with the same host.
fn by_specificity(a: &Route, b: &Route) -> Ordering {
    a.path
        .by_specificity(&b.path)
        .then_with(|| a.methods.is_empty().cmp(&b.methods.is_empty()))
        .then_with(|| conditions(b).cmp(&conditions(a)))
}
