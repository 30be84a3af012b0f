//! `domains:`, for listeners that serve as a rate limit service.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::algorithm::Rule;
use crate::config::key::named;
use crate::config::limits::{CheckedLimit, ReadLimits};
use crate::config::names::Names;
use crate::config::problem::Problem;
use crate::config::read::{Field, Section, all_or_none, unique_items};
use crate::config::settings::{DESCRIPTOR, DOMAIN};
use crate::config::words;
use crate::pattern::Pattern;
use crate::ruleset::cost::{ChargeTime, CostRule};
use crate::ruleset::domains::{Node, Values};
use crate::ruleset::key::KeyPart;
use crate::ruleset::limit::{Limit, OverLimit};
use crate::ruleset::matcher::{Matcher, Route, RouteId};
use crate::ruleset::{Domain, LimitId};

const DESCRIPTORS: &str = "a list of descriptors, like `[{key: remote_address, limits: [per-address]}]`";
/// The largest number of entries of a descriptor.
const MAX_DEPTH: usize = 32;

/// A domain as the file writes it.
pub(super) struct ParsedDomain {
    name: String,
    plan: Option<String>,
    descriptors: Node,
}

/// Reads `domains:`.
pub(super) fn read(
    top: &Section<'_>,
    limits: &ReadLimits,
    routes: &[Route],
    needed: bool,
) -> Option<Vec<ParsedDomain>> {
    const EXPECTED: &str = "domains by their names, each with its descriptors";
    let field = match needed {
        true => top.required("domains", EXPECTED)?,
        false => match top.get("domains") {
            Some(field) => field,
            None => return Some(Vec::new()),
        },
    };
    let section = field.mapping(EXPECTED)?;
    let mut known = Names::none("a domain");
    let reader = Reader { limits };
    all_or_none(section.fields().map(|(name, field)| {
        known.define(name, &field, field.key_place())?;
        if routes.iter().any(|route| route.name == name) {
            return field.fail(field.key_error("is the name of a route, which counts under this name"));
        }
        let section = field.section(&DOMAIN)?;
        let plan = section.optional("plan", |field| field.parsed("the key of the entry that names the plan", named));
        let descriptors = section.required("descriptors", DESCRIPTORS);
        let descriptors = descriptors.and_then(|field| reader.descriptors(&field, &mut Vec::new()));
        Some(ParsedDomain { name: name.to_owned(), plan, descriptors: Node { next: descriptors?, ..Node::default() } })
    }))
}

/// A route for each domain, under which metrics count its requests. They stand behind the other routes.
pub(super) fn routes(domains: &[ParsedDomain]) -> impl Iterator<Item = Route> {
    domains.iter().map(|domain| {
        let mut limits = Vec::new();
        each_node(&domain.descriptors, &mut |node| limits.extend_from_slice(&node.limits));
        limits.sort_unstable();
        limits.dedup();
        Route { name: domain.name.clone(), limits, ..Route::default() }
    })
}

/// The domains with the positions of their routes, which follow those in `matcher`. Adds the candidates of their limits.
pub(super) fn finish(domains: Vec<ParsedDomain>, matcher: &Matcher, limits: &[Limit]) -> HashMap<String, Domain> {
    let first = matcher.routes().len();
    let finished = domains.into_iter().enumerate().map(|(position, mut domain)| {
        add_candidates(&mut domain.descriptors, limits);
        let route = RouteId(first.saturating_add(position));
        (domain.name, Domain { route, plan: domain.plan, descriptors: domain.descriptors })
    });
    finished.collect()
}

fn each_node(node: &Node, each: &mut impl FnMut(&Node)) {
    each(node);
    for values in node.next.values() {
        let patterns = values.patterns.iter().map(|(_, node)| node);
        values.exact.values().chain(patterns).chain(values.any.as_deref()).for_each(|node| each_node(node, each));
    }
}

fn add_candidates(node: &mut Node, limits: &[Limit]) {
    let tried =
        limits.iter().enumerate().filter(|(_, limit)| limit.candidate_of.is_some_and(|of| node.limits.contains(&of)));
    let tried: Vec<LimitId> = tried.map(|(position, _)| LimitId(position)).collect();
    node.limits.extend(tried);
    for values in node.next.values_mut() {
        let patterns = values.patterns.iter_mut().map(|(_, node)| node);
        let all = values.exact.values_mut().chain(patterns).chain(values.any.as_deref_mut());
        all.for_each(|node| add_candidates(node, limits));
    }
}

struct Reader<'r> {
    limits: &'r ReadLimits,
}

impl Reader<'_> {
    /// Reads the entries that may follow the keys `before`.
    fn descriptors(&self, field: &Field<'_>, before: &mut Vec<String>) -> Option<HashMap<String, Values>> {
        if before.len() >= MAX_DEPTH {
            return field.fail(field.key_error(format!("is deeper than {MAX_DEPTH} entries")));
        }
        let mut next: HashMap<String, Values> = HashMap::new();
        let items = field.nonempty_list(DESCRIPTORS)?;
        all_or_none(items.iter().map(|item| {
            let section = item.section(&DESCRIPTOR)?;
            let key = section.must("key", |field| field.read(named));
            let value = section
                .get_with("value", |field| Some(field.scalar_value("a value, in which `*` stands for anything")?.text));
            let (key, value) = (key?, value?);
            before.push(key.clone());
            let node = self.node(&section, before);
            before.pop();
            let (values, node) = (next.entry(key).or_default(), node?);
            let is_new = match value.as_deref().map(|value| (value, Pattern::new(value))) {
                Some((value, None)) => match values.exact.entry(value.into()) {
                    Entry::Occupied(_) => false,
                    Entry::Vacant(vacant) => {
                        vacant.insert(node);
                        true
                    }
                },
                Some((_, Some(pattern))) if !pattern.is_any() => {
                    let is_new = values.patterns.iter().all(|(known, _)| *known != pattern);
                    values.patterns.push((pattern, node));
                    is_new
                }
                _ => values.any.replace(Box::new(node)).is_none(),
            };
            match is_new {
                true => Some(()),
                false => item.fail(Problem::error(item.place(), "has the key and the value of another one before")),
            }
        }))?;
        Some(next)
    }

    /// Reads the node that is reached by entries with the keys `keys`.
    fn node(&self, section: &Section<'_>, keys: &mut Vec<String>) -> Option<Node> {
        let limits = section.get_or("limits", Vec::new(), |field| {
            unique_items(&field.list("a list of names of limits")?, |item| self.limit(item, keys), LimitId::clone)
        });
        let next = section.get_or("descriptors", HashMap::new(), |field| self.descriptors(field, keys));
        let denies = section.flag("deny");
        if !["limits", "descriptors", "deny"].iter().any(|name| section.has(name)) {
            let problem = Problem::error(section.field.place(), "leads nowhere");
            return section.field.fail(problem.expected("`limits`, `descriptors` or both, or `deny: true`"));
        }
        let (limits, next) = (limits?, next?);
        if denies && !limits.is_empty() {
            let problem = Problem::error(section.field.place(), "has limits, and denies whatever they say");
            return section.field.fail(problem.expected("`limits` or `deny: true`"));
        }
        Some(Node { limits, denies, next })
    }

    /// Reads a limit for descriptors whose entries have the keys `keys`; refuses limits that cannot apply to descriptors.
    fn limit(&self, item: &Field<'_>, keys: &[String]) -> Option<LimitId> {
        let (id, read) = self.limits.resolve(item)?;
        // a limit that could not be read has its own findings
        let Some(CheckedLimit { limit, candidate, .. }) = read else { return Some(id) };
        let tries_slots = candidate.iter().flat_map(|candidate| &candidate.terms.rules).any(Rule::holds_slots);
        let misfit = match limit {
            limit if limit.algorithm.holds_slots() => {
                Some("counts what runs, and nobody tells when a request has ended")
            }
            _ if tries_slots => {
                Some("has a candidate that counts what runs, and nobody tells when a request has ended")
            }
            limit if limit.charge.when != ChargeTime::Request => Some("goes by responses, which nobody tells here"),
            limit if !matches!(limit.cost, CostRule::Fixed(_)) => {
                Some("has a cost that is told by a request: here the hits are the cost")
            }
            limit if matches!(limit.over_limit, OverLimit::Divert(_)) => {
                Some("diverts requests, which do not pass here")
            }
            limit if !limit.priority.is_empty() => Some("has a priority of plans, which is for requests"),
            limit if limit.without_plan.is_none() => {
                Some("asks nothing of descriptors without a plan: it has parameters for plans only")
            }
            _ => None,
        };
        if let Some(misfit) = misfit {
            return item.fail(item.error(misfit));
        }
        if limit.over_limit.denied().is_some_and(|denied| denied.status.is_some()) {
            item.warn(
                "denies with a status of its own, and this protocol carries none: here its denials are 429",
                None,
            );
        }
        for part in &limit.key.parts {
            let name = match part {
                KeyPart::Descriptor(name) => name,
                other => {
                    let problem = item.error(format!("counts by {}, which no descriptor has", other.describe()));
                    return item.fail(problem.expected("`key: all`, or a key of `{descriptor: KEY}`"));
                }
            };
            let (says, expected) = match keys.iter().filter(|key| *key == name).count() {
                1 => continue,
                0 => ("is not an entry here", words::alternatives(keys.iter().map(String::as_str))),
                _ => ("is an entry twice here", "entries with different keys".to_owned()),
            };
            let problem = item.error(format!("counts by {}, which {says}", part.describe()));
            return item.fail(problem.expected(expected));
        }
        Some(id)
    }
}
