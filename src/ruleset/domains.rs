//! The domains of the rate limit service, and the trees of descriptors, made of entries, that lead to limits.
//!
//! The entries of a descriptor are looked up one after the other, as in envoyproxy/ratelimit: an exact value before a
//! pattern, a pattern (in the order of the file) before any value, without backtracking. A descriptor is under limits only
//! if its last entry leads to some.

use std::collections::HashMap;
use std::sync::Arc;

use crate::algorithm::calendar::Unit;
use crate::algorithm::{Rule, Value};
use crate::charge::{Charge, Enforcement, RuleRef};
use crate::pattern::Pattern;
use crate::ruleset::cost::CostRule;
use crate::ruleset::key::{self, Entries, KeyPart, LimitHashers, SharedKey};
use crate::ruleset::limit::PlanTerms;
use crate::ruleset::matcher::RouteId;
use crate::ruleset::{LimitId, PlanId, Ruleset};
use crate::units::{Cost, Nanos, Rate};

/// A domain.
#[derive(Debug)]
pub struct Domain {
    /// The route that stands for the domain's requests; no other request takes it.
    pub route: RouteId,
    /// The key of the entry whose value names the plan, if configured.
    pub plan: Option<String>,
    /// The root of the tree of descriptors.
    pub descriptors: Node,
}

/// A node in the tree of descriptors.
#[derive(Debug, Default)]
pub struct Node {
    /// The limits of a descriptor that ends here.
    pub limits: Vec<LimitId>,
    /// Whether a descriptor that ends here is denied, whatever its limits decide.
    pub denies: bool,
    /// The next nodes, by the key of the next entry.
    pub next: HashMap<String, Values>,
}

/// The nodes to which the values of an entry lead.
#[derive(Debug, Default)]
pub struct Values {
    /// The nodes for exact values.
    pub exact: HashMap<Vec<u8>, Node>,
    /// The nodes for patterns, in the order of the configuration.
    pub patterns: Vec<(Pattern, Node)>,
    /// The node for any other value.
    pub any: Option<Box<Node>>,
}

impl Domain {
    /// The node at which a descriptor with these `entries` ends; `None` if there is none.
    pub fn find(&self, entries: &Entries<'_>) -> Option<&Node> {
        entries.iter().try_fold(&self.descriptors, |node, (key, value)| node.next.get(*key)?.of(value))
    }
}

impl Values {
    fn of(&self, value: &[u8]) -> Option<&Node> {
        let pattern = || self.patterns.iter().find(|(pattern, _)| pattern.matches(value)).map(|(_, node)| node);
        self.exact.get(value).or_else(pattern).or(self.any.as_deref())
    }
}

impl Ruleset {
    /// The limits that the domains lead to.
    pub fn domain_limits(&self) -> impl Iterator<Item = LimitId> {
        self.domains.values().flat_map(move |domain| &self.matcher.route(domain.route).limits).copied()
    }

    /// The charge of a descriptor with these `entries` under one limit; `None` where the limit does not apply. `rule` is
    /// the rule that the request carries for itself, if any.
    pub fn charge_descriptor(
        &self,
        id: LimitId,
        entries: &Entries<'_>,
        (plan, hits, rule): (Option<PlanId>, Hits, Option<Arc<Rule>>),
        hashers: &LimitHashers,
    ) -> Option<Charge> {
        let limit = self.limits.get(id.0)?;
        let rule = match (rule, limit.terms(plan)) {
            (Some(rule), _) => RuleRef::Own(rule),
            (None, PlanTerms::Rule(rule)) => RuleRef::Listed(rule),
            (None, PlanTerms::Unlimited) => return None,
        };
        let value = |part: &KeyPart| key::entry(part, entries);
        let SharedKey { key, tag } = hashers.key(id, limit.mode, &limit.key, value).ok()?;
        if !self.is_enabled(id, value).ok()? {
            return None;
        }
        let (cost, consumes) = match (hits, &limit.cost) {
            (Hits::Take(hits), CostRule::Fixed(cost)) => (hits.saturating_mul(*cost), true),
            (Hits::Take(hits), _) => (hits, true),
            (Hits::Peek, CostRule::Fixed(cost)) => (*cost, false),
            (Hits::Peek, _) => (1, false),
        };
        let enforcement =
            Enforcement { enforces: limit.enforces(), consumes, counts_denied: consumes && limit.charge.denied };
        Some(Charge { tag, ..Charge::new(id.0, rule, key, cost, enforcement) })
    }
}

/// The hits that a descriptor asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hits {
    /// This many hits, at least one.
    Take(Cost),
    /// No hit: the service only tells whether one more would be admitted.
    Peek,
}

/// The units of the calendar, with their lengths in seconds as the protocol counts them.
const CALENDAR_UNITS: [(Unit, u64); 3] = [(Unit::Day, 86_400), (Unit::Week, 604_800), (Unit::Month, 2_592_000)];

/// `rule` with `tokens` per `per` in place of its own numbers; `None` where its algorithm has no such parameters. Windows
/// that are aligned to the calendar stay so where it has a unit of this length. A rate above the highest of the algorithm
/// becomes that one.
pub fn with_rate(rule: &Rule, tokens: Cost, per: Nanos) -> Option<Rule> {
    let mut arguments = rule.arguments();
    let parameter = |name| rule.name().parameters().iter().find(|parameter| parameter.name == name);
    let has = |name| parameter(name).is_some();
    let rate = Rate::new(tokens, per)?;
    if has("limit") && has("window") {
        let unit = CALENDAR_UNITS.iter().find(|(_, seconds)| Nanos::from_secs(*seconds) == per);
        if let Some((unit, _)) = unit.filter(|_| arguments.has("align")) {
            arguments.set("window", Value::Choice(unit.as_str()));
        } else {
            ["align", "timezone"].iter().for_each(|name| arguments.remove(name));
            arguments.set("window", Value::Duration(per));
        }
    } else if let Some(parameter) = parameter("rate") {
        let highest = parameter.max.and_then(|most| Rate::new(most, Nanos::SECOND));
        arguments.set("rate", Value::Rate(highest.filter(|highest| highest.compare(rate).is_lt()).unwrap_or(rate)));
    } else {
        return None;
    }
    for name in ["limit", "burst", "capacity"].into_iter().filter(|name| has(name)) {
        arguments.set(name, Value::Whole(tokens));
    }
    rule.name().build(&arguments).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::AlgorithmName;

    fn node(limit: usize) -> Node {
        Node { limits: vec![LimitId(limit)], ..Node::default() }
    }

    /// The public cases of envoyproxy/ratelimit's configuration: which limit a descriptor finds.
    #[test]
    fn descriptors_find_limits_as_in_the_service_that_is_known() {
        let mut below = Values { any: Some(Box::new(node(4))), ..Values::default() };
        below.exact.insert("sub1".into(), node(1));
        let mut nested = node(2);
        nested.next.insert("subkey".to_owned(), below);
        let mut values = Values::default();
        values.exact.insert("value1".into(), nested);
        values.patterns.push((Pattern::new("val*").unwrap(), node(3)));
        let mut descriptors = Node::default();
        descriptors.next.insert("key1".to_owned(), values);
        descriptors.next.insert("any".to_owned(), Values { any: Some(Box::new(node(5))), ..Values::default() });
        let domain = Domain { route: RouteId(0), plan: None, descriptors };
        let cases: [(&Entries<'_>, Option<usize>); 11] = [
            (&[("key1", b"value1")], Some(2)),
            (&[("key1", b"value1"), ("subkey", b"sub1")], Some(1)),
            (&[("key1", b"value1"), ("subkey", b"other")], Some(4)),
            (&[("key1", b"value2")], Some(3)),
            (&[("key1", b"val\xff")], Some(3)),
            (&[("key1", b"value2"), ("subkey", b"sub1")], None),
            (&[("key1", b"other")], None),
            (&[("any", b"")], Some(5)),
            (&[("any", b"\xff")], Some(5)),
            (&[("any", b"1"), ("more", b"2")], None),
            (&[("unknown", b"value1")], None),
        ];
        for (entries, limit) in cases {
            assert_eq!(domain.find(entries).and_then(|node| Some(node.limits.first()?.0)), limit, "{entries:?}");
        }
    }

    #[test]
    fn a_limit_that_a_request_brings_takes_the_place_of_the_configured_one() {
        let built = |name: &str, arguments: crate::algorithm::Arguments| {
            AlgorithmName::canonical_of(name).unwrap().build(&arguments).unwrap()
        };
        let whole = Value::Whole;
        let second = Rate::new(5, Nanos::SECOND).unwrap();
        let gcra = built("gcra", [("rate", Value::Rate(second)), ("burst", whole(5))].into());
        let window = built("fixed_window", [("limit", whole(5)), ("window", Value::Duration(Nanos::SECOND))].into());
        for rule in [gcra, window] {
            let policy = with_rate(&rule, 300, Nanos::from_secs(60)).unwrap().policy();
            assert_eq!((policy.quota, policy.window), (300, Some(Nanos::from_secs(60))), "{rule:?}");
        }
        let month = [("limit", whole(5)), ("window", Value::Choice("month")), ("align", Value::Choice("calendar"))];
        let monthly = built("fixed_window", month.into());
        for (days, windows) in [
            (1, "300 in each calendar day (UTC)"),
            (7, "300 in each calendar week (UTC)"),
            (30, "300 in each calendar month (UTC)"),
            (365, "300 in each 365d, counted from the epoch"),
        ] {
            let rule = with_rate(&monthly, 300, Nanos::from_secs(days * 86_400)).unwrap();
            assert_eq!(rule.describe(), windows);
        }
        let burst = ("max_burst", Value::Duration(Nanos::SECOND));
        let smooth = built("smooth_bursty", [("rate", Value::Rate(second)), burst].into());
        for (tokens, seconds, rate) in [(u32::MAX, 1, 1_000_000), (u32::MAX, 60, 1_000_000), (60, 60, 1)] {
            let rule = with_rate(&smooth, tokens.into(), Nanos::from_secs(seconds)).unwrap();
            assert_eq!(rule.policy(), with_rate(&smooth, rate, Nanos::SECOND).unwrap().policy());
        }
        let slots = built("concurrency", [("limit", whole(5))].into());
        assert_eq!(with_rate(&slots, 300, Nanos::SECOND), None);
    }
}
