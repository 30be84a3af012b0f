//! Overrides in a directory's rows, which are written with the plans, limits and parameters of this configuration.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::tz::TimeZone;

use crate::algorithm::Rule;
use crate::config::findings::Findings;
use crate::config::limits::CheckedLimit;
use crate::config::names::Names;
use crate::config::parameters::{Overlay, Parameters};
use crate::config::problem::Problem;
use crate::config::read::{Field, ReadContext};
use crate::config::scalar::{self, InvalidValue};
use crate::config::terms::PlanParameters;
use crate::config::written_limit::WrittenLimit;
use crate::config::{cost, document, environment, limits, sharing, warn_at, words};
use crate::ruleset::limit::usable_tokens;
use crate::ruleset::overrides::{InvalidOverride, Override, OverridesReader};
use crate::ruleset::{LimitId, PlanId};
use crate::units::Cost;

/// The plans and limits of a configuration, to which a directory's rows refer. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfiguredOverrides(Arc<OverrideSchema>);

#[derive(Debug, PartialEq)]
struct OverrideSchema {
    plans: Vec<String>,
    /// The positions of plans by their names, for fast lookups: a directory may have a million rows.
    plan_ids: HashMap<String, PlanId>,
    /// The levels of groups, the outermost first.
    levels: Vec<String>,
    /// `None` where the configuration's limits have errors; the overrides are then not read.
    limits: Option<KnownLimits>,
}

#[derive(Debug, PartialEq)]
struct KnownLimits {
    /// The limits, at their positions in the configuration.
    limits: Vec<KnownLimit>,
    /// The positions of limits by their names.
    positions: HashMap<String, usize>,
    /// The rules that depend on the customer's time zone, by limit and position in its list; candidates included.
    zoned: Vec<((LimitId, usize), Rule)>,
}

#[derive(Debug, PartialEq)]
struct KnownLimit {
    spec: Arc<WrittenLimit>,
    /// The largest cost of a request that is known before the response.
    largest_cost: Cost,
    /// Whether the limit has `warn_at`.
    warns: bool,
    /// The level whose groups can override the limit; `None` where customers can.
    level: Option<String>,
}

const OVERRIDES: &str = "limits by their names, each with its parameters or `unlimited`";

impl ConfiguredOverrides {
    /// The overrides for these plans and levels, and these limits at their positions.
    pub(super) fn new(plans: &Names, levels: &Names, limits: &[Option<CheckedLimit>]) -> Self {
        let known = |limit: &Option<CheckedLimit>| {
            let CheckedLimit { spec, largest_cost, limit, .. } = limit.as_ref()?;
            let (warns, level) = (!limit.warn_at.is_empty(), limit.level.clone());
            Some(KnownLimit { spec: Arc::clone(spec), largest_cost: *largest_cost, warns, level })
        };
        let known: Option<Vec<KnownLimit>> = limits.iter().map(known).collect();
        let known = known.map(|known| {
            let positions = known.iter().enumerate().map(|(position, limit)| (limit.spec.name.clone(), position));
            KnownLimits { positions: positions.collect(), limits: known, zoned: limits::customers_zone_rules(limits) }
        });
        Self::with(plans, levels, known)
    }

    /// The overrides for these plans and levels, without knowledge of the limits.
    pub(super) fn without_limits(plans: &Names, levels: &Names) -> Self {
        Self::with(plans, levels, None)
    }

    fn with(plans: &Names, levels: &Names, limits: Option<KnownLimits>) -> Self {
        let plan_ids = plans.all().enumerate().map(|(position, name)| (name.to_owned(), PlanId(position)));
        let names = |names: &Names| names.all().map(str::to_owned).collect();
        Self(Arc::new(OverrideSchema {
            plan_ids: plan_ids.collect(),
            plans: names(plans),
            levels: names(levels),
            limits,
        }))
    }

    /// The names of the plans.
    pub fn plans(&self) -> &[String] {
        &self.0.plans
    }

    /// The levels of groups, the outermost first.
    pub fn levels(&self) -> &[String] {
        &self.0.levels
    }

    /// The limit's arguments for `plan`; the limit's own where the plan is unlimited.
    fn inherited(&self, limit: &WrittenLimit, plan: Option<PlanId>) -> Parameters<'static> {
        Parameters::known(limit.arguments(self.name(plan)).unwrap_or(&limit.base).clone())
    }

    fn name(&self, plan: Option<PlanId>) -> Option<&str> {
        self.0.plans.get(plan?.0).map(String::as_str)
    }

    /// Reads an override of `known` from `field`, for a customer or a group of this level on `plan`.
    fn term(
        &self,
        known: &KnownLimit,
        level: Option<&str>,
        plan: Option<PlanId>,
        zone: Option<&TimeZone>,
        field: &Field<'_>,
    ) -> Option<Override> {
        let KnownLimit { spec: limit, largest_cost, warns, level: counted } = known;
        if counted.as_deref() != level {
            let (message, hint) = match counted {
                Some(counted) => (format!("counts by {counted}"), format!("its overrides stand with the {counted}")),
                None => ("does not count by groups".to_owned(), "its overrides stand with the customer".to_owned()),
            };
            return field.fail(field.key_error(message).hint(hint));
        }
        let own = match PlanParameters::read(field, limit.algorithm) {
            PlanParameters::Unlimited => return Some(Override::Unlimited),
            PlanParameters::Parameters(own) => own,
            PlanParameters::Broken => return None,
        };
        let base = self.inherited(limit, plan);
        let overlay = Overlay { algorithm: limit.algorithm, base: &base, plan: Some((&limit.name, &own)) };
        let rule = overlay.build(field)?;
        sharing::check(field, limit.mode, [&rule])?;
        if *warns {
            warn_at::check(field, [&rule])?;
        }
        let usable = usable_tokens(&rule, &limit.priority, plan).map(|room| limit.mode.admitted(room));
        cost::check_room(field, usable, *largest_cost)?;
        Some(Override::Rule(Arc::new(zone.and_then(|zone| rule.in_zone(zone)).unwrap_or(rule))))
    }
}

impl OverridesReader for ConfiguredOverrides {
    fn plan(&self, name: &str) -> Result<PlanId, InvalidOverride> {
        self.0.plan_ids.get(name).copied().ok_or_else(|| {
            let near = words::nearest(name, self.0.plans.iter().map(String::as_str));
            InvalidOverride {
                path: String::new(),
                message: "is not the name of a plan".to_owned(),
                found: Some(words::shown(name)),
                expected: Some("one of the `plans` of the configuration".to_owned()),
                hint: near.map(words::did_you_mean),
            }
        })
    }

    fn time_zone(&self, name: &str) -> Result<TimeZone, InvalidOverride> {
        scalar::time_zone(name).map_err(|InvalidValue { message, hint }| InvalidOverride {
            path: String::new(),
            message,
            found: Some(words::shown(name)),
            expected: Some("a name like `Europe/Berlin`".to_owned()),
            hint,
        })
    }

    fn terms(
        &self,
        level: Option<&str>,
        plan: Option<PlanId>,
        zone: Option<&TimeZone>,
        overrides: &str,
    ) -> Result<Vec<(LimitId, Override)>, Vec<InvalidOverride>> {
        let Some(known) = &self.0.limits else { return Ok(Vec::new()) };
        let findings = Findings::new("");
        let mut own = Vec::new();
        known.read(overrides, &findings, |position, limit, field| {
            own.extend(self.term(limit, level, plan, zone, field).map(|term| (LimitId(position), term)));
        });
        own.sort_unstable_by_key(|(limit, _)| *limit);
        match findings.finish(Some(own)) {
            Ok((own, _)) => Ok(own),
            Err(problems) => Err(problems.errors.into_iter().map(InvalidOverride::from).collect()),
        }
    }

    fn zoned_rules(&self, zone: &TimeZone) -> Vec<((LimitId, usize), Arc<Rule>)> {
        let rules = self.0.limits.iter().flat_map(|known| &known.zoned);
        rules.filter_map(|(of, rule)| Some((*of, Arc::new(rule.in_zone(zone)?)))).collect()
    }
}

impl KnownLimits {
    /// Calls `take` for each limit that `text` names, with its position, the limit and its field.
    fn read(&self, text: &str, findings: &Findings, mut take: impl FnMut(usize, &KnownLimit, &Field<'_>)) {
        let Some(root) = document::parse(text, 0, findings) else { return };
        let context = ReadContext { findings, environment: &|_| None };
        let root = Field::root(&context, &root);
        if environment::is_used(text) {
            let message = "takes an environment variable, which a directory cannot";
            return findings.add(Problem::error(root.place(), message));
        }
        let Some(section) = root.mapping(OVERRIDES) else { return };
        for (name, field) in section.fields() {
            let position = self.positions.get(name).copied();
            match position.and_then(|position| Some((position, self.limits.get(position)?))) {
                Some((position, limit)) => take(position, limit, &field),
                None => {
                    let mut place = field.key_place();
                    if words::may_be_secret(name) {
                        // a credential may stand in the wrong column, so the finding hides the name
                        "*".clone_into(&mut place.path);
                    }
                    let known = || self.limits.iter().map(|limit| limit.spec.name.as_str());
                    let is_window = |of: &&str| of.strip_prefix(name).is_some_and(|window| window.starts_with('/'));
                    let windows: Vec<&str> = known().filter(is_window).collect();
                    let hint = match windows.is_empty() {
                        true => findings.suggest(name, known()),
                        false => Some(format!("`{name}` has windows: name {}", words::alternatives(windows))),
                    };
                    findings.add(
                        Problem::error(place, "is not the name of a limit")
                            .expected("one of the `limits` of the configuration")
                            .hint(hint),
                    );
                }
            }
        }
    }
}

impl From<Problem> for InvalidOverride {
    fn from(problem: Problem) -> Self {
        let Problem { place, message, found, expected, hint, .. } = problem;
        Self { path: place.path, message, found, expected, hint }
    }
}
