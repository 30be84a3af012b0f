//! The terms of a limit for each plan: parameters overlaid, and built into rules.

use indexmap::IndexSet;

use crate::algorithm::{AlgorithmName, Rule};
use crate::charge::Mode;
use crate::config::names::Names;
use crate::config::parameters::{Overlay, Parameters, takes};
use crate::config::problem::Problem;
use crate::config::read::{Field, Section};
use crate::config::words;
use crate::ruleset::PlanId;
use crate::ruleset::limit::{PlanTerms, usable_tokens};
use crate::units::Cost;

/// The sections of the file that affect the terms of limits.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum FileScope {
    /// The file holds only limits. They may leave out keys, and parameters for plans that they do not name.
    LimitsOnly,
    /// The file configures a gateway.
    Gateway {
        /// Whether the file has `customers`. Then every request has a plan: the gateway refuses callers without one.
        customers: bool,
        /// Whether callers may have tokens.
        tokens: bool,
        /// Whether the file has trusted proxies.
        proxies: bool,
        /// Whether the file has a `store`.
        store: bool,
        /// The number of gateways, if the file gives it.
        nodes: Option<u64>,
        /// Whether the file has `domains`: most descriptors have no plan.
        domains: bool,
    },
}

impl FileScope {
    /// A gateway whose file has all that a limit may need; for readers that leave errors about missing sections to others.
    pub(super) fn every_section(tokens: bool, nodes: Option<u64>, domains: bool) -> Self {
        let nodes = nodes.or(Some(1));
        Self::Gateway { customers: true, tokens, proxies: true, store: true, nodes, domains }
    }

    /// Whether some requests may have no plan.
    pub(super) const fn has_planless_requests(self) -> bool {
        matches!(self, Self::LimitsOnly | Self::Gateway { customers: false, .. } | Self::Gateway { domains: true, .. })
    }
}

/// Compiles the terms of a limit from its parameters and its plans.
pub(super) struct TermsCompiler<'r, 'a> {
    pub(super) limit: &'r Field<'a>,
    pub(super) algorithm: AlgorithmName,
    pub(super) base: &'r Parameters<'a>,
    /// All plans of the file.
    pub(super) plans: &'r Names,
    pub(super) scope: FileScope,
}

/// A plan that a limit names.
pub(super) struct NamedPlan<'a> {
    pub(super) name: &'a str,
    /// The limit's terms for the plan.
    pub(super) parameters: PlanParameters<'a>,
    field: Field<'a>,
    /// `None` if the file has no such plan, which has a finding already.
    position: Option<usize>,
}

/// The terms of a limit for a plan.
pub(super) enum PlanParameters<'a> {
    /// The plan has no limit.
    Unlimited,
    /// The limit's parameters with these on top.
    Parameters(Parameters<'a>),
    /// The terms could not be read; they have a finding already.
    Broken,
}

impl<'a> PlanParameters<'a> {
    /// Reads `unlimited` or a mapping of parameters of `algorithm`.
    pub(super) fn read(field: &Field<'a>, algorithm: AlgorithmName) -> Self {
        let parameters = match field.as_mapping() {
            Some(section) => {
                let known: Vec<&str> = algorithm.parameters().iter().map(|parameter| parameter.name).collect();
                section.reject_unknown(&known);
                Some(Self::Parameters(Parameters::read(&section, algorithm)))
            }
            None => {
                let expected = format!("`unlimited`, or a mapping: {}", takes(algorithm));
                field.choice_or(&[("unlimited", ())], &expected).map(|()| Self::Unlimited)
            }
        };
        parameters.unwrap_or(Self::Broken)
    }
}

/// The distinct rules of a limit, and the terms of each plan.
pub(super) struct AllTerms {
    pub(super) rules: Vec<Rule>,
    pub(super) plans: Vec<PlanTerms>,
    pub(super) without_plan: Option<PlanTerms>,
}

/// The bounds of a limit on the costs of requests.
pub(super) struct CostBounds<'t> {
    pub(super) terms: &'t AllTerms,
    /// The percents of the room that requests of each plan may use; empty where all may use all of it.
    pub(super) priority: &'t [u8],
    pub(super) mode: Mode,
}

impl CostBounds<'_> {
    /// The largest cost under `rule` that requests of `plan` may have.
    pub(super) fn largest_cost(&self, rule: &Rule, plan: Option<PlanId>) -> Option<Cost> {
        Some(self.mode.admitted(usable_tokens(rule, self.priority, plan)?))
    }

    /// The largest cost that requests of each plan may have; then the largest cost under each rule.
    pub(super) fn largest_costs(&self) -> impl Iterator<Item = (Option<PlanId>, Cost)> {
        let AllTerms { rules, plans, .. } = self.terms;
        let of_plan = move |(plan, terms): (usize, &PlanTerms)| match terms {
            PlanTerms::Rule(position) => Some((Some(PlanId(plan)), rules.get(*position)?)),
            PlanTerms::Unlimited => None,
        };
        let of_plans = plans.iter().enumerate().filter_map(of_plan);
        let all = of_plans.chain(rules.iter().map(|rule| (None, rule)));
        all.filter_map(move |(plan, rule)| Some((plan, self.largest_cost(rule, plan)?)))
    }

    /// The plan with the rule at `position` that may use the least of its room; `None` where each may use all of it.
    pub(super) fn lowest_plan(&self, position: usize) -> Option<PlanId> {
        let plans = self.terms.plans.iter().zip(self.priority).enumerate();
        let plans = plans.filter(|(_, (terms, _))| **terms == PlanTerms::Rule(position));
        plans.min_by_key(|(_, (_, percent))| **percent).map(|(plan, _)| PlanId(plan))
    }
}

/// Whether the limit's own parameters must build a rule.
enum Need {
    /// They must build a rule: requests use it.
    Always,
    /// They may be incomplete.
    Perhaps,
    /// No request uses them.
    Never,
}

impl<'a> TermsCompiler<'_, 'a> {
    /// The plans that the limit names; `None` if they cannot be read.
    pub(super) fn named(&self, section: &Section<'a>) -> Option<Vec<NamedPlan<'a>>> {
        let Some(field) = section.get("plans") else {
            return Some(Vec::new());
        };
        let takes = takes(self.algorithm);
        let expected = format!("plans by their names, each with its parameters or `unlimited` ({takes})");
        let plan = |(name, field): (&'a str, Field<'a>)| {
            let position = self.plans.resolve_key(name, &field);
            NamedPlan { name, parameters: PlanParameters::read(&field, self.algorithm), field, position }
        };
        Some(field.mapping(&expected)?.fields().map(plan).collect())
    }

    /// Builds the rules. Reads every plan, even if another has errors.
    pub(super) fn compile(&self, named: &[NamedPlan<'a>]) -> Option<AllTerms> {
        let mut rules = IndexSet::new();
        let (plans, whole) = self.plan_terms(named, &mut rules);
        let base = self.base_terms(&plans, named, &mut rules)?;
        let plans = plans.into_iter().map(|terms| terms.or(base).unwrap_or(PlanTerms::Unlimited)).collect();
        let without_plan = base.filter(|_| self.scope.has_planless_requests());
        whole.then(|| AllTerms { rules: rules.into_iter().collect(), plans, without_plan })
    }

    /// The terms of each plan of the file, `None` for plans that the limit does not name; and whether the limit's plans have
    /// no errors.
    fn plan_terms(&self, named: &[NamedPlan<'a>], rules: &mut IndexSet<Rule>) -> (Vec<Option<PlanTerms>>, bool) {
        let mut plans = vec![None; self.plans.len()];
        let mut whole = true;
        for plan in named {
            let terms = match &plan.parameters {
                PlanParameters::Unlimited => Some(PlanTerms::Unlimited),
                PlanParameters::Parameters(own) => {
                    let rule = self.overlay(Some((plan.name, own))).build(&plan.field);
                    rule.map(|rule| PlanTerms::Rule(rules.insert_full(rule).0))
                }
                PlanParameters::Broken => None,
            };
            whole &= terms.is_some() && plan.position.is_some();
            if let Some(place) = plan.position.and_then(|position| plans.get_mut(position)) {
                *place = Some(terms.unwrap_or(PlanTerms::Unlimited));
            }
        }
        (plans, whole)
    }

    /// The terms of requests without a plan, or with one that the limit does not name; `Some(None)` if there may be none.
    fn base_terms(
        &self,
        plans: &[Option<PlanTerms>],
        named: &[NamedPlan<'a>],
        rules: &mut IndexSet<Rule>,
    ) -> Option<Option<PlanTerms>> {
        let unnamed = self.plans.all().zip(plans).filter(|(_, terms)| terms.is_none());
        let unnamed: Vec<&str> = unnamed.map(|(name, _)| name).collect();
        let rest = self.overlay(None);
        let is_needed = match self.needs_base(&unnamed, named) {
            Need::Always if !rest.missing().is_empty() && !named.is_empty() => {
                return self.limit.fail(self.incomplete(&rest, &unnamed));
            }
            Need::Always => true,
            Need::Perhaps => rest.missing().is_empty(),
            Need::Never => false,
        };
        match is_needed {
            true => rest.build(self.limit).map(|rule| Some(PlanTerms::Rule(rules.insert_full(rule).0))),
            false => Some(None),
        }
    }

    fn overlay<'p>(&'p self, plan: Option<(&'p str, &'p Parameters<'a>)>) -> Overlay<'p, 'a> {
        Overlay { algorithm: self.algorithm, base: self.base, plan }
    }

    fn needs_base(&self, unnamed: &[&str], named: &[NamedPlan<'a>]) -> Need {
        match self.scope {
            FileScope::LimitsOnly if named.is_empty() => Need::Always,
            FileScope::LimitsOnly => Need::Perhaps,
            FileScope::Gateway { customers: true, domains: true, .. } if unnamed.is_empty() => Need::Perhaps,
            FileScope::Gateway { customers: true, .. } if unnamed.is_empty() => Need::Never,
            FileScope::Gateway { .. } => Need::Always,
        }
    }

    /// The error that the limit's own parameters are needed and incomplete.
    fn incomplete(&self, rest: &Overlay<'_, '_>, unnamed: &[&str]) -> Problem {
        let missing = words::all_of(rest.missing());
        let (who, place, hint) = match unnamed {
            [] => (
                "requests without a plan".to_owned(),
                "under the limit itself",
                "or name `customers`, so that callers have plans".to_owned(),
            ),
            [plan, others @ ..] => {
                let plans = if others.is_empty() { "the plan" } else { "the plans" };
                (
                    format!("{plans} {}", words::all_of(unnamed.iter().copied())),
                    "under the plan or under the limit itself",
                    format!("a plan that is not to be limited is `{plan}: unlimited`"),
                )
            }
        };
        self.limit.key_error(format!("has no parameters for {who}")).expected(format!("{missing}, {place}")).hint(hint)
    }
}
