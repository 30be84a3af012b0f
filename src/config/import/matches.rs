//! The requests that a route of a proxy takes: the intersection of conditions, and whether one condition contains another.

use std::net::IpAddr;
use std::slice;

use ipnet::IpNet;

use super::add_new;
use super::output::{mapping, quoted, scalar, texts};
use crate::ruleset::path::PathPattern;

/// The largest number of routes into which the limits' conditions may split one route.
const MAX_CELLS: usize = 64;

/// Conditions that a request must all fulfil.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Match {
    /// The hosts, of which the request has one; any host where the list is empty.
    pub(super) hosts: Vec<String>,
    pub(super) path: PathMatch,
    /// The methods, of which the request has one; any method where the list is empty.
    pub(super) methods: Vec<String>,
    /// Header fields by their names, each with the condition on its value.
    pub(super) headers: Vec<(String, HeaderValue)>,
}

/// A condition on the value of a header field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HeaderValue {
    Any,
    Is(String),
    /// A regular expression matches the whole value.
    Like(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PathMatch {
    Exact(String),
    /// A path, and all paths below it.
    Below(Prefix),
}

/// A path without its final slash, as the beginning of others.
#[derive(Clone, Debug, Default)]
pub(super) struct Prefix {
    pub(super) path: String,
    /// Whether it has a final slash in the proxy, where it does not take the path alone.
    has_slash: bool,
}

impl PartialEq for Prefix {
    /// Whether routes take the same paths.
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for Prefix {}

/// A limit, and the requests that it applies to.
#[derive(Clone, Debug)]
pub(super) struct ScopedLimit {
    pub(super) limit: String,
    /// The limit applies to requests that fulfil one of these.
    pub(super) matches: Vec<Match>,
    /// Networks to which the limit does not apply.
    pub(super) exempt: Vec<String>,
}

impl Default for PathMatch {
    fn default() -> Self {
        Self::Below(Prefix::default())
    }
}

impl PathMatch {
    /// The paths at and below `text`. `Err` says that no tollgate route can have this path.
    pub(super) fn prefix(text: &str) -> Result<Self, &'static str> {
        check(text).map(|()| Self::below(text))
    }

    /// The paths at and below `text`, which may be empty.
    pub(super) fn below(text: &str) -> Self {
        let path = text.trim_end_matches('/');
        Self::Below(Prefix { path: path.to_owned(), has_slash: !path.is_empty() && path.len() < text.len() })
    }

    /// The path `text` alone. `Err` says that no tollgate route can have this path.
    pub(super) fn exact(text: &str) -> Result<Self, &'static str> {
        check(text).map(|()| Self::Exact(text.to_owned()))
    }

    /// The paths that both match; `None` if there are none.
    pub(super) fn and(&self, other: &Self) -> Option<Self> {
        let is_below = |text: &str, above: &str| {
            text.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        match (self, other) {
            (Self::Exact(one), Self::Exact(another)) => (one == another).then(|| self.clone()),
            (Self::Exact(text), Self::Below(above)) => is_below(text, &above.path).then(|| self.clone()),
            (Self::Below(above), Self::Exact(text)) => is_below(text, &above.path).then(|| other.clone()),
            (Self::Below(one), Self::Below(another)) if is_below(&one.path, &another.path) => Some(self.clone()),
            (Self::Below(one), Self::Below(another)) => is_below(&another.path, &one.path).then(|| other.clone()),
        }
    }

    /// Whether it is a path alone that the prefix `other` does not take in the proxy, where that has a final slash.
    pub(super) fn is_outside(&self, other: &Self) -> bool {
        matches!((self, other), (Self::Exact(path), Self::Below(other)) if other.has_slash && other.path == *path)
    }

    /// The path of a prefix, if `other` is the same prefix with a final slash.
    pub(super) fn without_slash_of(&self, other: &Self) -> Option<&str> {
        match (self, other) {
            (Self::Below(own), Self::Below(other)) if own == other && !own.has_slash && other.has_slash => {
                Some(&own.path)
            }
            _ => None,
        }
    }
}

impl Match {
    pub(super) fn of_path(path: PathMatch) -> Self {
        Self { path, ..Self::default() }
    }

    pub(super) fn of_header(name: &str, value: HeaderValue) -> Self {
        Self { headers: vec![(name.to_ascii_lowercase(), value)], ..Self::default() }
    }

    /// The requests that both match; `None` if there are none.
    pub(super) fn and(&self, other: &Self) -> Option<Self> {
        let mut headers = self.headers.clone();
        for (name, value) in &other.headers {
            match headers.iter_mut().find(|(known, _)| known == name) {
                None => headers.push((name.clone(), value.clone())),
                Some((_, known)) if *known == HeaderValue::Any => *known = value.clone(),
                Some((_, known)) if *value != HeaderValue::Any && known != value => return None,
                Some(_) => {}
            }
        }
        let equal = |one: &str, another: &str| (one == another).then(|| one.to_owned());
        Some(Self {
            hosts: common(&self.hosts, &other.hosts, common_host)?,
            path: self.path.and(&other.path)?,
            methods: common(&self.methods, &other.methods, equal)?,
            headers,
        })
    }

    /// Whether it matches every request that `other` matches.
    pub(super) fn contains(&self, other: &Self) -> bool {
        other.and(self).as_ref() == Some(other)
    }

    /// Whether `other` matches every request that it matches, and more.
    pub(super) fn is_inside(&self, other: &Self) -> bool {
        self != other && other.contains(self)
    }

    /// The rank of a route with this match among the routes that take requests of `both`, which is its intersection with
    /// another match. See `ruleset::matcher`; the first of several routes that rank alike is the most contained one.
    fn specificity(&self, both: &Self) -> (bool, bool, bool, usize, bool) {
        let names_hosts = both.hosts.iter().all(|host| self.hosts.contains(host));
        (names_hosts, self.path == both.path, !self.methods.is_empty(), self.headers.len(), self == both)
    }

    /// Whether a route with this match takes requests from one with the match `other`, which comes first.
    pub(super) fn wins_over(&self, other: &Self) -> bool {
        let both = self.and(other).filter(|_| !self.path.is_outside(&other.path));
        both.is_some_and(|both| self.specificity(&both) > other.specificity(&both))
    }

    /// The requests with HEAD for its hosts and path, if it takes GET and not HEAD: a route for GET takes them, too, unless
    /// another one names HEAD there.
    pub(super) fn head(&self) -> Option<Self> {
        let takes = |method: &str| self.methods.iter().any(|own| own == method);
        let (methods, headers) = (vec!["HEAD".to_owned()], Vec::new());
        (takes("GET") && !takes("HEAD")).then(|| Self { methods, headers, ..self.clone() })
    }

    pub(super) fn to_yaml(&self) -> Option<String> {
        let path = match &self.path {
            PathMatch::Exact(path) => scalar(path),
            PathMatch::Below(Prefix { path, .. }) => scalar(&format!("{path}/**")),
        };
        let header = |(name, value): &(String, HeaderValue)| match value {
            HeaderValue::Any => (scalar(name), "true".to_owned()),
            HeaderValue::Is(text) => (scalar(name), quoted(text)),
            HeaderValue::Like(expression) => (scalar(name), format!("{{ regex: {} }}", quoted(expression))),
        };
        mapping([
            ("hosts", texts(&self.hosts)),
            ("path", Some(path)),
            ("methods", texts(&self.methods)),
            ("headers", mapping(self.headers.iter().map(header))),
        ])
    }
}

impl ScopedLimit {
    /// A limit that applies to every request, with no networks exempt.
    pub(super) fn always(limit: String) -> Self {
        Self { limit, matches: vec![Match::default()], exempt: Vec::new() }
    }

    /// The same limit for the requests of `matches` only.
    pub(super) fn within(&self, matches: &Match) -> Self {
        Self { matches: all_of(&self.matches, slice::from_ref(matches)), ..self.clone() }
    }

    pub(super) fn holds_for(&self, matches: &Match) -> bool {
        self.matches.iter().any(|of| of.contains(matches))
    }
}

/// A note about a prefix that takes further paths in the proxy.
pub(super) fn open_prefix_note(path: &str) -> Option<String> {
    (!path.ends_with('/')).then(|| format!("{path} and what is below it are taken, and not {path}x"))
}

/// The intersections of each of one list with each of the other.
pub(super) fn all_of(one: &[Match], another: &[Match]) -> Vec<Match> {
    one.iter().flat_map(|one| another.iter().filter_map(|another| one.and(another))).collect()
}

/// Joins matches that differ only in their hosts, or only in their methods.
pub(super) fn joined(all: impl IntoIterator<Item = Match>) -> Vec<Match> {
    let mut joined: Vec<Match> = Vec::new();
    for one in all {
        let hosts_aside = |known: &Match| Match { hosts: known.hosts.clone(), ..one.clone() } == *known;
        let methods_aside = |known: &Match| Match { methods: known.methods.clone(), ..one.clone() } == *known;
        let is_same = |known: &&mut Match| {
            let is_any = |list: fn(&Match) -> &Vec<String>| list(known).is_empty() || list(&one).is_empty();
            (hosts_aside(known) && !is_any(|of| &of.hosts)) || (methods_aside(known) && !is_any(|of| &of.methods))
        };
        match joined.iter_mut().find(is_same) {
            Some(known) => {
                add_new(&mut known.hosts, one.hosts);
                add_new(&mut known.methods, one.methods);
            }
            None => joined.push(one),
        }
    }
    joined
}

/// Sorts items so that a match comes before those with the same path that contain it: routes whose lists of hosts or methods
/// overlap rank alike in tollgate, and the first takes a request.
pub(super) fn contained_first<T>(items: Vec<T>, of: impl Fn(&T) -> &Match) -> Vec<T> {
    let mut sorted: Vec<T> = Vec::new();
    for item in items {
        let own = of(&item);
        let is_whole = |other: &T| of(other).path == own.path && own.is_inside(of(other));
        let at = sorted.iter().position(is_whole).unwrap_or(sorted.len());
        sorted.insert(at, item);
    }
    sorted
}

/// `whole`, and the parts of it to which further conditions apply; `None` where there are too many parts.
pub(super) fn split<'m>(whole: &Match, conditions: impl Iterator<Item = &'m Match>) -> Option<Vec<Match>> {
    let mut cells = vec![whole.clone()];
    for condition in conditions {
        for at in 0..cells.len() {
            let cell = cells.get(at).and_then(|cell| cell.and(condition));
            cells.extend(cell.filter(|cell| !cells.contains(cell)));
        }
        if cells.len() > MAX_CELLS {
            return None;
        }
    }
    Some(cells)
}

/// The intersection of two lists, of which an empty one stands for any value; `None` if they have nothing in common.
pub(super) fn common(
    one: &[String],
    another: &[String],
    of: impl Fn(&str, &str) -> Option<String>,
) -> Option<Vec<String>> {
    if one.is_empty() || another.is_empty() {
        return Some([one, another].concat());
    }
    let mut found = Vec::new();
    add_new(&mut found, one.iter().flat_map(|one| another.iter().filter_map(|another| of(one, another))));
    (!found.is_empty()).then_some(found)
}

/// The smaller of two networks, of which one contains the other.
pub(super) fn common_network(one: &str, another: &str) -> Option<String> {
    let (first, second) = (network(one)?, network(another)?);
    if first.contains(&second) {
        return Some(another.to_owned());
    }
    second.contains(&first).then(|| one.to_owned())
}

/// Reads a network, or an address as a network of its own.
pub(super) fn network(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

fn common_host(one: &str, another: &str) -> Option<String> {
    let is_below = |host: &str, pattern: &str| {
        pattern.strip_prefix('*').is_some_and(|domain| host.len() > domain.len() && host.ends_with(domain))
    };
    if one == another || is_below(one, another) {
        return Some(one.to_owned());
    }
    is_below(another, one).then(|| another.to_owned())
}

fn check(path: &str) -> Result<(), &'static str> {
    let is_plain = !path.contains(['*', '{', '}', '%', ';']) && PathPattern::parse(path).is_ok();
    if is_plain { Ok(()) } else { Err("no path of a route is written so") }
}
