//! Drops the series of routes, limits, plans and upstreams that no configuration in use names.

use std::collections::{HashMap, HashSet};

use prometheus::core::{Collector, MetricVec, MetricVecBuilder};

use crate::ruleset::Ruleset;
use crate::telemetry::names::{NO_PLAN, NO_ROUTE};

/// The labels of one series.
pub(super) type Labels<'a> = HashMap<&'a str, &'a str>;

/// The names in some rulesets.
pub(super) struct NamedSeries<'r> {
    /// The limits of each route.
    routes: HashMap<&'r str, HashSet<&'r str>>,
    limits: HashSet<&'r str>,
    plans: HashSet<&'r str>,
    upstreams: HashSet<&'r str>,
}

impl<'r> NamedSeries<'r> {
    pub(super) fn of(rulesets: &[&'r Ruleset]) -> Self {
        let mut wanted = Self {
            routes: HashMap::from([(NO_ROUTE, HashSet::new())]),
            limits: HashSet::new(),
            plans: HashSet::from([NO_PLAN]),
            upstreams: HashSet::new(),
        };
        for ruleset in rulesets {
            for route in ruleset.matcher.all() {
                let limits = route.limits.iter().filter_map(|id| ruleset.limits.get(id.0));
                wanted.routes.entry(&route.name).or_default().extend(limits.map(|limit| limit.name.as_str()));
            }
            wanted.limits.extend(ruleset.limits.iter().map(|limit| limit.name.as_str()));
            wanted.plans.extend(ruleset.plans.iter().map(String::as_str));
            wanted.upstreams.extend(ruleset.upstreams.iter().map(|upstream| upstream.name.as_str()));
        }
        wanted
    }

    /// Whether the rulesets contain all names in the labels of a series.
    pub(super) fn has(&self, labels: &Labels<'_>) -> bool {
        let named = |label: &str, names: &HashSet<&str>| labels.get(label).is_none_or(|name| names.contains(name));
        let route = labels.get("route").is_none_or(|route| {
            let limits = self.routes.get(route);
            limits.is_some_and(|limits| named("limit", limits))
        });
        route && named("limit", &self.limits) && named("plan", &self.plans) && named("upstream", &self.upstreams)
    }
}

/// Drops the series of `metric` that `keep` does not keep.
pub(super) fn retain<B: MetricVecBuilder>(metric: &MetricVec<B>, keep: impl Fn(&Labels<'_>) -> bool) {
    for family in metric.collect() {
        for series in family.get_metric() {
            let labels: Labels<'_> = series.get_label().iter().map(|label| (label.name(), label.value())).collect();
            if !keep(&labels) {
                // the series existed a moment ago, and nothing else removes series
                drop(metric.remove(&labels));
            }
        }
    }
}
