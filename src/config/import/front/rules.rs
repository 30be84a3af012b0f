//! The rules of a proxy, and the routes that they become.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::ProxyConfig;
use crate::config::findings::Findings;
use crate::config::import::add_new;
use crate::config::import::matches::{
    Match, PathMatch, ScopedLimit, all_of, common, common_network, contained_first, split,
};
use crate::config::import::output::{Settings, item, lines, list, mapping, scalar, texts};
use crate::config::problem::{Place, Problem};
use crate::ruleset::host::HostPattern;

/// A rule that leads requests to upstreams.
#[derive(Clone, Debug)]
pub(in crate::config::import) struct Rule {
    /// The place of notes about the rule.
    pub(in crate::config::import) place: Place,
    /// The listeners whose requests the rule takes, as the proxy names them; empty for all. Routes of tollgate take the
    /// requests of all listeners.
    pub(in crate::config::import) listeners: BTreeSet<String>,
    pub(in crate::config::import) name: String,
    pub(in crate::config::import) matches: Match,
    /// The place of the rule in a sequence; `None` where the proxy takes the most specific rule.
    pub(in crate::config::import) order: Option<Order>,
    /// Names of upstreams, each with its share of the requests; empty where the rule refuses all requests.
    pub(in crate::config::import) upstreams: Vec<(String, u64)>,
    pub(in crate::config::import) effects: Effects,
}

/// The name of a sequence of rules and a rule's rank in it. Of the rules that match a request, the proxy takes the one of the
/// highest rank, and the first of several.
pub(in crate::config::import) type Order = (String, Vec<i64>);

/// A rule, its effects, and the matches of the routes that it becomes.
type RuleParts<'r> = (&'r Rule, Effects, Vec<Match>);

/// A server of a proxy that takes all requests for its hosts. It refuses those that no rule of it takes.
#[derive(Debug)]
pub(in crate::config::import) struct VirtualHost {
    /// The place of notes about the server.
    pub(in crate::config::import) place: Place,
    pub(in crate::config::import) name: String,
    pub(in crate::config::import) listeners: BTreeSet<String>,
    pub(in crate::config::import) hosts: Vec<String>,
    /// Whether its rules take the requests for any host.
    pub(in crate::config::import) takes_any: bool,
}

/// What holds for the requests of a rule.
#[derive(Clone, Debug, Default)]
pub(in crate::config::import) struct Effects {
    pub(in crate::config::import) limits: Vec<ScopedLimit>,
    pub(in crate::config::import) access: Vec<ScopedAccess>,
    /// The prefix that is removed from the path, and the one that is added then.
    pub(in crate::config::import) rewrite: (String, String),
    /// Further settings of the route.
    pub(in crate::config::import) more: Settings,
}

/// The networks that are let in and kept out, and the requests to which this applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::config::import) struct ScopedAccess {
    pub(in crate::config::import) access: Access,
    /// It applies to requests that fulfil one of these.
    pub(in crate::config::import) matches: Vec<Match>,
}

/// The networks that a route lets in and keeps out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::config::import) struct Access {
    /// The networks that the route lets in; all where the list is empty.
    pub(in crate::config::import) allow: Vec<String>,
    pub(in crate::config::import) deny: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Route {
    name: String,
    matches: Match,
    upstreams: Vec<(String, u64)>,
    limits: Vec<String>,
    /// Networks whose requests are not limited.
    exempt: Vec<String>,
    access: Access,
    rewrite: (String, String),
    more: Settings,
}

impl ProxyConfig {
    /// Adds a rule that refuses what no rule of a virtual host takes: without it, another server's route would take these
    /// requests.
    pub(super) fn close_virtual_hosts(&mut self, findings: &Findings) {
        let takes_all = |host: &VirtualHost| {
            let all = |rule: &Rule| rule.matches == Match { hosts: rule.matches.hosts.clone(), ..Match::default() };
            self.rules.iter().any(|rule| rule.is_of(host) && all(rule))
        };
        let mut closing = Vec::new();
        for host in self.virtual_hosts.iter().filter(|host| !takes_all(host)) {
            let shares_listener =
                |other: &VirtualHost| self.leads(other) && !other.listeners.is_disjoint(&host.listeners);
            if (host.takes_any && self.leads(host)) || !self.virtual_hosts.iter().any(shares_listener) {
                continue;
            }
            let is_open =
                |name: &String| self.virtual_hosts.iter().any(|other| other.hosts.contains(name) && takes_all(other));
            let hosts: Vec<String> = host.hosts.iter().filter(|name| !is_open(name)).cloned().collect();
            if hosts.is_empty() {
                continue;
            }
            let message = "requests for its hosts that no rule takes are refused with 403 here";
            findings.add(Problem::warning(host.place.clone(), message));
            closing.push(Rule {
                place: host.place.clone(),
                listeners: host.listeners.clone(),
                name: host.name.clone(),
                matches: Match { hosts, ..Match::default() },
                order: None,
                upstreams: Vec::new(),
                effects: Effects::default(),
            });
        }
        self.rules.extend(closing);
    }

    /// Adds the rules of each virtual host once more for the hosts that it shares with a later one at other listeners, which may
    /// have routes for these hosts alone: here the first leads.
    pub(super) fn repeat_shared_hosts(&mut self) {
        let mut repeated = Vec::new();
        for (position, host) in self.virtual_hosts.iter().enumerate() {
            let later = || self.virtual_hosts.iter().skip(position.saturating_add(1)).filter(|other| self.leads(other));
            let is_shared = |name: &&String| later().any(|other| !other.takes_any && other.hosts.contains(name));
            let hosts: Vec<String> = host.hosts.iter().filter(is_shared).cloned().collect();
            let own =
                self.rules.iter().filter(|rule| rule.is_of(host) && rule.matches.hosts != hosts && !hosts.is_empty());
            let of = |rule: &Rule| Match { hosts: hosts.clone(), ..rule.matches.clone() };
            repeated.extend(own.map(|rule| Rule { matches: of(rule), ..rule.clone() }));
        }
        self.rules.splice(0..0, repeated);
    }

    /// Whether a rule of a virtual host leads to an upstream.
    fn leads(&self, host: &VirtualHost) -> bool {
        self.rules.iter().any(|rule| rule.is_of(host) && !rule.upstreams.is_empty())
    }

    /// Makes routes of the rules. As no route belongs to a listener, requests get the limits of the rules that take them at
    /// any listener.
    pub(super) fn add_routes(&mut self, findings: &Findings) {
        let note = |rule: &Rule, message: &str| findings.add(Problem::warning(rule.place.clone(), message));
        let mut all = std::mem::take(&mut self.rules);
        all.sort_by_cached_key(|rule| Reverse(rule.order.clone().map(|(_, rank)| rank)));
        let beside = |(position, rule): (usize, &Rule)| {
            let (before, behind) = all.split_at(position);
            // where the order means nothing, the rules behind count as well
            let mut others = before.iter().chain(behind.iter().filter(|_| rule.order.is_none()));
            others.find_map(|other| rule.path_beside(other)).map(str::to_owned)
        };
        let alone: Vec<Option<String>> = all.iter().enumerate().map(beside).collect();
        for (rule, path) in all.iter_mut().zip(alone) {
            let Some(path) = path else { continue };
            note(rule, &format!("takes {path} alone: another rule takes what is below {path}/"));
            rule.matches.path = PathMatch::Exact(path);
        }
        let mut rules: Vec<Rule> = Vec::new();
        for rule in all {
            match rules.iter().any(|first| first.takes_before(&rule, &rule.matches)) {
                true => note(&rule, "is never reached: a rule before it takes all that it would"),
                false => rules.push(rule),
            }
        }
        // the parts of each rule, those of the last rule first: a rule takes requests before more specific parts of later ones
        let mut parts: Vec<RuleParts<'_>> = Vec::new();
        for (position, rule) in rules.iter().enumerate().rev() {
            let (before, _) = rules.split_at(position);
            if let Some(first) = before.iter().find(|other| other.matches == rule.matches) {
                let why = match rule.has_effects_beyond(&first.effects) {
                    true => {
                        "is left out: a rule before it takes the same requests, and gets its limits and access rules as well"
                    }
                    false => "is never reached: a rule before it takes the same requests",
                };
                note(rule, why);
                continue;
            }
            let effects = match rule.upstreams.is_empty() {
                true => rule.effects.clone(),
                false => merged_effects(rule, before, &rules, |message| note(rule, message)),
            };
            let later = parts.iter().filter(|(other, ..)| rule.is_in_sequence_with(other)).flat_map(|(.., of)| of);
            let winning = later.filter(|later| later.wins_over(&rule.matches));
            let mut own = split(&rule.matches, effects.conditions().chain(winning)).unwrap_or_else(|| {
                note(rule, "has more combinations of conditions than are carried over");
                split(&rule.matches, effects.conditions()).unwrap_or_else(|| vec![rule.matches.clone()])
            });
            own.retain(|part| !before.iter().any(|first| first.matches == *part || first.takes_before(rule, part)));
            parts.push((rule, effects, own));
        }
        parts.reverse();
        let refusals = separate_head(&mut parts, note);
        parts.extend(refusals.iter().map(|rule| (rule, Effects::default(), vec![rule.matches.clone()])));
        let mut routes = Vec::new();
        for (rule, effects, own) in parts {
            let made =
                own.into_iter().filter_map(|part| self.route(rule, &effects, part, |message| note(rule, message)));
            routes.extend(made);
        }
        self.routes = contained_first(routes, |route| &route.matches);
    }

    /// The route for a part of a rule. `None` if no host of it can be a route's. Adds notes about hosts that are left out, and
    /// about limits that exempt different networks.
    fn route(&mut self, rule: &Rule, effects: &Effects, mut matches: Match, note: impl Fn(&str)) -> Option<Route> {
        let Effects { limits: scoped, access, rewrite, more } = effects;
        for (header, _) in &matches.headers {
            self.unbelieved(header).iter().for_each(|why| note(&format!("a condition {why}")));
        }
        let holding: Vec<&ScopedLimit> = scoped.iter().filter(|limit| limit.holds_for(&matches)).collect();
        let mut exempt = holding.first().map(|limit| limit.exempt.clone()).unwrap_or_default();
        if holding.iter().any(|limit| limit.exempt != exempt) {
            note("its limits exempt different networks: here they exempt none");
            exempt.clear();
        }
        let mut limits = Vec::new();
        add_new(&mut limits, holding.iter().map(|holding| holding.limit.clone()));
        let mut own_access = Access::default();
        let applies = |access: &&ScopedAccess| access.matches.iter().any(|of| of.contains(&matches));
        access.iter().filter(applies).for_each(|access| own_access.narrow(&access.access));
        if rule.upstreams.is_empty() {
            own_access = Access::of_nobody();
        }
        let is_host = |host: &String| HostPattern::parse(host).is_ok();
        let (hosts, others): (Vec<String>, Vec<String>) = matches.hosts.drain(..).partition(is_host);
        others.iter().for_each(|host| note(&format!("the host {host} is left out: no route has a host like it")));
        if hosts.is_empty() && !others.is_empty() {
            return None;
        }
        matches.hosts.clear();
        add_new(&mut matches.hosts, hosts.iter().map(|host| host.to_ascii_lowercase()));
        let any_upstream = || self.upstreams.iter().take(1).map(|(name, _)| (name.clone(), 1)).collect();
        Some(Route {
            name: self.names.of(&rule.name, std::iter::empty()),
            matches,
            // a route has to have an upstream, also where it refuses all requests
            upstreams: if rule.upstreams.is_empty() { any_upstream() } else { rule.upstreams.clone() },
            limits,
            exempt,
            access: own_access,
            rewrite: rewrite.clone(),
            more: more.clone(),
        })
    }
}

impl Rule {
    fn is_of(&self, host: &VirtualHost) -> bool {
        let hosts: &[String] = if host.takes_any { &[] } else { &host.hosts };
        self.listeners == host.listeners && self.matches.hosts == hosts
    }

    /// Whether the rule has limits or access rules that are not among `effects`.
    fn has_effects_beyond(&self, effects: &Effects) -> bool {
        let has_limit = |own: &ScopedLimit| {
            let holds = |limit: &ScopedLimit| own.matches.iter().all(|matches| limit.holds_for(matches));
            effects.limits.iter().any(|limit| limit.limit == own.limit && holds(limit))
        };
        !self.effects.limits.iter().all(has_limit)
            || !self.effects.access.iter().all(|access| effects.access.contains(access))
    }

    /// Whether the proxy tries this rule and `other` one behind the other.
    fn is_in_sequence_with(&self, other: &Self) -> bool {
        self.order.as_ref().zip(other.order.as_ref()).is_some_and(|((one, _), (another, _))| one == another)
    }

    /// Whether the rule, which comes before `other`, takes all these requests at the listeners of `other`.
    fn takes_before(&self, other: &Self, requests: &Match) -> bool {
        self.is_in_sequence_with(other)
            && self.listens_where(other)
            && self.matches.contains(requests)
            && !requests.path.is_outside(&self.matches.path)
    }

    /// The path alone that a prefix takes, where `other`, which comes before it if there is an order, takes the paths below.
    fn path_beside(&self, other: &Self) -> Option<&str> {
        let is_between = match self.order {
            None => other.order.is_none() && other.listeners == self.listeners,
            Some(_) => other.is_in_sequence_with(self) && other.listens_where(self),
        };
        let path = self.matches.path.without_slash_of(&other.matches.path);
        path.filter(|_| is_between && other.matches.contains(&self.matches))
    }

    /// Whether the rule takes the requests of all listeners of `other`.
    fn listens_where(&self, other: &Self) -> bool {
        self.listeners.is_empty() || (!other.listeners.is_empty() && other.listeners.is_subset(&self.listeners))
    }

    /// Whether this rule's route takes requests that `other` takes in the proxy, at these listeners or others. If several
    /// rules of other listeners contain this one, only the most specific of them takes its requests there.
    fn shares_requests_with(&self, other: &Self, rules: &[Self]) -> bool {
        let takes_them_there = |nearer: &Self| {
            nearer.listens_where(other)
                && nearer.matches.contains(&self.matches)
                && nearer.matches.is_inside(&other.matches)
        };
        let overlaps = || self.matches.and(&other.matches).is_some() && !other.matches.is_inside(&self.matches);
        let is_elsewhere = || !self.listens_where(other) && !rules.iter().any(takes_them_there);
        self.matches == other.matches || (overlaps() && is_elsewhere())
    }
}

impl Effects {
    /// Keeps out all requests.
    pub(in crate::config::import) fn refusal() -> Self {
        Self { access: vec![ScopedAccess::always(Access::of_nobody())], ..Self::default() }
    }

    /// The conditions of limits and access rules.
    fn conditions(&self) -> impl Iterator<Item = &Match> {
        let of_limits = self.limits.iter().flat_map(|limit| &limit.matches);
        of_limits.chain(self.access.iter().flat_map(|access| &access.matches))
    }

    /// Adds the settings whose names are new.
    fn add_settings(&mut self, more: &Settings) {
        for (name, value) in more {
            if !self.more.iter().any(|(known, _)| known == name) {
                self.more.push((name, value.clone()));
            }
        }
    }
}

impl ScopedAccess {
    pub(in crate::config::import) fn always(access: Access) -> Self {
        Self { access, matches: vec![Match::default()] }
    }

    /// The same for the requests of `matches` only.
    fn within(&self, matches: &Match) -> Self {
        Self { matches: all_of(&self.matches, std::slice::from_ref(matches)), access: self.access.clone() }
    }
}

impl Access {
    /// Lets nobody in.
    pub(in crate::config::import) fn of_nobody() -> Self {
        Self { allow: Vec::new(), deny: vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()] }
    }

    /// Lets in only the addresses that `other` lets in, too.
    fn narrow(&mut self, other: &Self) {
        match common(&self.allow, &other.allow, common_network) {
            Some(allow) => self.allow = allow,
            None => *self = Self::of_nobody(),
        }
        add_new(&mut self.deny, other.deny.iter().cloned());
    }

    fn to_yaml(&self) -> Option<String> {
        let of = |networks| mapping([("addresses", texts(networks))]);
        mapping([("allow", of(&self.allow)), ("deny", of(&self.deny))])
    }
}

impl Route {
    pub(super) fn lines(&self) -> Vec<String> {
        let share = |(name, weight): &(String, u64)| format!("{{ name: {}, weight: {weight} }}", scalar(name));
        let upstream = match self.upstreams.as_slice() {
            [(one, _)] => scalar(one),
            several => list(several.iter().map(share)),
        };
        let (strip, add) = &self.rewrite;
        let prefix = |prefix: &String| (!prefix.is_empty()).then(|| scalar(prefix));
        let settings = lines([
            ("name", Some(scalar(&self.name))),
            ("match", self.matches.to_yaml()),
            ("upstream", Some(upstream)),
            ("limits", texts(&self.limits)),
            ("bypass", mapping([("addresses", texts(&self.exempt))])),
            ("rewrite", mapping([("strip_prefix", prefix(strip)), ("add_prefix", prefix(add))])),
            ("access", self.access.to_yaml()),
        ]);
        item(settings.chain(lines(self.more.clone())))
    }
}

/// The effects of a rule and of those that take its requests at other listeners. Adds a note about each of these.
fn merged_effects(rule: &Rule, before: &[Rule], rules: &[Rule], note: impl Fn(&str)) -> Effects {
    let mut effects = rule.effects.clone();
    let takes_them =
        |other: &Rule| rule.matches.and(&other.matches).is_some_and(|both| other.takes_before(rule, &both));
    for other in rules.iter().filter(|other| rule.shares_requests_with(other, rules)) {
        let is_before = before.iter().any(|one| std::ptr::eq(one, other)) && takes_them(other);
        if is_before || !other.has_effects_beyond(&effects) {
            continue;
        }
        effects.limits.extend(other.effects.limits.iter().map(|limit| limit.within(&other.matches)));
        effects.access.extend(other.effects.access.iter().map(|access| access.within(&other.matches)));
        if other.matches.contains(&rule.matches) {
            effects.add_settings(&other.effects.more);
        }
        if other.matches != rule.matches {
            note(&format!("its requests have the limits of {}, too, which takes them at other listeners", other.name));
        }
    }
    effects
}

/// Adds parts for HEAD to the rules that take it where a part takes GET alone. Returns rules that refuse HEAD where no rule
/// takes it. Adds notes about these, and about HEAD that goes with GET.
fn separate_head(parts: &mut [RuleParts<'_>], note: impl Fn(&Rule, &str)) -> Vec<Rule> {
    let heads = parts.iter().flat_map(|(rule, _, own)| own.iter().filter_map(Match::head).map(|head| (*rule, head)));
    let heads: Vec<(&Rule, Match)> = heads.collect();
    let mut refusals: Vec<Rule> = Vec::new();
    for (of_get, head) in heads {
        let is_elsewhere = |rule: &Rule| rule.matches.and(&head).is_some() && !rule.listens_where(of_get);
        if parts.iter().any(|(rule, ..)| is_elsewhere(rule)) {
            note(of_get, "requests with HEAD go with GET here: rules of other listeners take them");
            continue;
        }
        let mut is_taken = false;
        for (rule, _, own) in parts.iter_mut().filter(|(rule, ..)| rule.is_in_sequence_with(of_get)) {
            let added: Vec<Match> =
                own.iter().filter(|part| head.wins_over(part)).filter_map(|part| part.and(&head)).collect();
            add_new(own, added);
            is_taken = rule.takes_before(of_get, &head);
            if is_taken {
                break;
            }
        }
        if !is_taken && refusals.iter().all(|refusal| refusal.matches != head) {
            note(of_get, "requests with HEAD that no rule takes are refused with 403 here");
            refusals.push(Rule { matches: head, upstreams: Vec::new(), ..of_get.clone() });
        }
    }
    refusals
}
