//! `limits:` and `plans:`.

use std::sync::Arc;

use crate::algorithm::{AlgorithmName, Arguments, MAX_WAIT, Rule};
use crate::charge::Mode;
use crate::config::candidate::{self, Candidate};
use crate::config::names::Names;
use crate::config::parameters::Parameters;
use crate::config::prices::{self, PriceTable};
use crate::config::read::{Field, Section};
use crate::config::settings::LIMIT;
use crate::config::terms::{AllTerms, CostBounds, FileScope, NamedPlan, PlanParameters, TermsCompiler};
use crate::config::written_limit::WrittenLimit;
use crate::config::{
    ban, cost, key, over_limit, priority, quota_unit, request_overrides, scalar, sharing, warn_at, words,
};
use crate::ruleset::ban::BanRule;
use crate::ruleset::cost::{ChargeRule, CostRule};
use crate::ruleset::key::{Key, KeyPart};
use crate::ruleset::limit::{Limit, MissingKey, OnChange, OverLimit, Share};
use crate::ruleset::matcher::Route;
use crate::ruleset::request_field::FieldPath;
use crate::ruleset::request_overrides::RequestOverrides;
use crate::ruleset::{LimitId, graphql, request_field};
use crate::units::Cost;

/// The largest number of plans: each limit has terms for each plan.
const MAX_PLANS: usize = 1_000;

/// The largest number of pairs of a limit and a plan.
const MAX_TERMS: usize = 1_000_000;

/// A key's state of more bytes than this causes a warning.
const LARGE_STATE: u64 = 1 << 20;

/// A limit after reading.
pub(super) struct CheckedLimit {
    /// The limit as the file writes it.
    pub(super) spec: Arc<WrittenLimit>,
    /// The compiled limit.
    pub(super) limit: Limit,
    /// The candidate that the gateway tries out beside the limit.
    pub(super) candidate: Option<Candidate>,
    /// The largest cost of a request that is known before the response.
    pub(super) largest_cost: Cost,
}

/// The limits of a file.
pub(super) struct ReadLimits {
    pub(super) names: Names,
    /// The limits at the positions of their names; `None` for a limit with errors.
    pub(super) limits: Vec<Option<CheckedLimit>>,
}

impl ReadLimits {
    /// No limits so far.
    fn none() -> Self {
        Self { names: Names::none("a limit"), limits: Vec::new() }
    }

    /// The limits of a section that could not be read.
    fn unreadable() -> Self {
        Self { names: Names::unreadable("a limit"), limits: Vec::new() }
    }

    /// The limit in `field`'s value; without its settings if they have errors. Marks its name as used.
    pub(super) fn resolve(&self, field: &Field<'_>) -> Option<(LimitId, Option<&CheckedLimit>)> {
        let id = LimitId(self.names.resolve(field)?);
        Some((id, self.get(id)))
    }

    fn get(&self, LimitId(position): LimitId) -> Option<&CheckedLimit> {
        self.limits.get(position)?.as_ref()
    }
}

/// Reads `plans:`. If a file of limits only has no `plans:`, the plans are those that its limits name.
pub(super) fn read_plans(top: &Section<'_>, scope: FileScope) -> Names {
    let Some(field) = top.get("plans") else {
        let mut names = Names::none("a plan");
        if scope == FileScope::LimitsOnly {
            define_plans_of_limits(top, &mut names);
        }
        return names;
    };
    let Some(items) = field.list("a list of names") else {
        return Names::unreadable("a plan");
    };
    let mut names = Names::none("a plan");
    for item in items {
        if let Some(word) = item.scalar_value("the name of a plan") {
            names.define(&word.text, &item, item.place());
        }
    }
    if names.len() > MAX_PLANS {
        field
            .findings()
            .add(field.key_error(format!("has more than {MAX_PLANS} plans")).found(format!("{} plans", names.len())));
        return Names::unreadable("a plan");
    }
    names
}

fn define_plans_of_limits(top: &Section<'_>, names: &mut Names) {
    for limit in top.named("limits").iter().filter_map(|(_, limit)| limit.as_mapping()) {
        for (name, plan) in limit.named("plans") {
            if !names.all().any(|known| known == name) && names.len() < MAX_PLANS {
                names.define(name, &plan, plan.key_place());
            }
        }
    }
}

/// Reads `limits:`.
pub(super) fn read(
    top: &Section<'_>,
    plans: &Names,
    levels: &Names,
    upstreams: Option<&Names>,
    scope: FileScope,
) -> ReadLimits {
    let Some(field) = top.get("limits") else { return ReadLimits::none() };
    let Some(section) = field.mapping("limits by their names") else { return ReadLimits::unreadable() };
    let prices = prices::read(top);
    let mut read = ReadLimits::none();
    for (name, field) in section.fields() {
        if read.limits.len().saturating_mul(plans.len()) > MAX_TERMS {
            let message = format!("has more than {MAX_TERMS} pairs of a limit and a plan");
            section.field.findings().add(section.field.key_error(message));
            return ReadLimits::unreadable();
        }
        if read.names.define(name, &field, field.key_place()).is_some() {
            let reader = LimitReader { name, field: &field, prices: &prices, plans, levels, upstreams, scope };
            read.limits.push(reader.read());
        }
    }
    read
}

/// The limits, followed by their candidates as limits that clients never see. Adds each candidate to the end of every route
/// that has its limit.
pub(super) fn with_candidates(checked: Vec<CheckedLimit>, routes: &mut [Route]) -> Vec<Limit> {
    let (mut limits, mut candidates) = (Vec::with_capacity(checked.len()), Vec::new());
    for (position, CheckedLimit { limit, candidate, .. }) in checked.into_iter().enumerate() {
        candidates.extend(candidate.map(|candidate| candidate::as_limit(&limit, LimitId(position), candidate)));
        limits.push(limit);
    }
    for candidate in candidates {
        let id = LimitId(limits.len());
        let live = candidate.candidate_of;
        let under = routes.iter_mut().filter(|route| route.limits.iter().any(|limit| Some(*limit) == live));
        under.for_each(|route| route.limits.push(id));
        limits.push(candidate);
    }
    limits
}

/// The rules that depend on the customer's time zone, by position in their limits' lists. The limits are numbered as by
/// [`with_candidates`].
pub(super) fn customers_zone_rules(checked: &[Option<CheckedLimit>]) -> Vec<((LimitId, usize), Rule)> {
    let checked = checked.iter().flatten();
    let candidates = checked.clone().filter_map(|checked| checked.candidate.as_ref()).map(|one| &one.terms.rules);
    let rules = checked.map(|checked| &checked.limit.rules).chain(candidates);
    let numbered = rules.enumerate().flat_map(|(limit, rules)| {
        rules.iter().enumerate().map(move |(position, rule)| ((LimitId(limit), position), rule))
    });
    let zoned = numbered.filter(|(_, rule)| rule.arguments().has_customers_zone());
    zoned.map(|(of, rule)| (of, rule.clone())).collect()
}

/// Notes in each route what its limits need. With customers, limits that need no customer are charged early.
pub(super) fn prepare(routes: &mut [Route], limits: &[Limit], has_customers: bool) {
    for route in routes {
        route.body_fields = body_fields(route, limits);
        route.longest_text = longest_text(route, limits);
        if has_customers {
            let is_early = |id: &LimitId| limits.get(id.0).is_some_and(Limit::is_early);
            route.early = route.limits.iter().copied().filter(is_early).collect();
        }
    }
}

/// The fields of the request's JSON body that the limits of `route` read, each once.
fn body_fields(route: &Route, limits: &[Limit]) -> Arc<[FieldPath]> {
    let mut fields: Vec<FieldPath> = Vec::new();
    for field in route.limits.iter().filter_map(|id| limits.get(id.0)).flat_map(Limit::body_fields) {
        if !fields.contains(field) {
            fields.push(field.clone());
        }
    }
    fields.into()
}

/// The longest text in the body that the limits of `route` have to read, in bytes.
fn longest_text(route: &Route, limits: &[Limit]) -> usize {
    let reads_documents = |limit: &Limit| matches!(limit.cost, CostRule::GraphQl(_));
    match route.limits.iter().filter_map(|id| limits.get(id.0)).any(reads_documents) {
        true => graphql::MAX_DOCUMENT_LENGTH,
        false => request_field::MAX_KEY_LENGTH,
    }
}

/// One limit being read.
struct LimitReader<'r, 'a> {
    name: &'r str,
    field: &'r Field<'a>,
    plans: &'r Names,
    levels: &'r Names,
    upstreams: Option<&'r Names>,
    prices: &'r PriceTable,
    scope: FileScope,
}

impl<'a> LimitReader<'_, 'a> {
    fn read(&self) -> Option<CheckedLimit> {
        let section = self.field.mapping("the settings of a limit")?.with(&LIMIT);
        let Some(algorithm) = self.algorithm(&section) else {
            // the parameters of an unknown algorithm are unknown too, but the settings of every limit can be checked
            self.read_common_settings(&section);
            return None;
        };
        let parameters = algorithm.parameters().iter().map(|parameter| parameter.name);
        let known: Vec<&str> = LIMIT.names().into_iter().chain(parameters).collect();
        section.reject_unknown(&known);
        let mut base = Parameters::read(&section, algorithm);
        let others = self.read_common_settings(&section);
        if let Some(max_wait) = others.max_wait.clone() {
            base.take_max_wait(max_wait);
        }
        let mode = others.mode?;
        let compiler =
            TermsCompiler { limit: self.field, algorithm, base: &base, plans: self.plans, scope: self.scope };
        let named = compiler.named(&section)?;
        let terms = compiler.compile(&named)?;
        let bounds = CostBounds { terms: &terms, priority: &others.priority, mode };
        self.check(&section, &bounds, &others)?;
        let largest_cost = others.cost.as_ref().map_or(0, |(cost, charge)| cost::largest(cost, charge));
        let request_overrides = section.get_or("request_overrides", RequestOverrides::default(), |field| {
            let overrides = request_overrides::read(field, algorithm, self.scope)?;
            request_overrides::check(field, &section, &overrides, &bounds, largest_cost)?;
            Some(overrides)
        })?;
        let spec = self.spec((algorithm, mode), &base, &named, &others)?;
        self.warn_of_delay(&spec, &terms.rules);
        self.warn_of_large_states(&terms.rules);
        let scope = (self.plans, self.scope);
        let live = (algorithm, mode);
        let candidate =
            section.optional("candidate", |field| candidate::read(field, live, others.max_wait.as_ref(), scope));
        let level = others.key.as_ref().and_then(|key| self.level(key));
        let limit = others.limit((self.name, algorithm, level), terms, request_overrides)?;
        Some(CheckedLimit { spec: Arc::new(spec), limit, candidate, largest_cost })
    }

    /// Refuses settings that do not suit the limit's rules, and warns of settings without an effect.
    fn check(&self, section: &Section<'a>, bounds: &CostBounds<'_>, others: &CommonSettings<'_>) -> Option<()> {
        let rules = &bounds.terms.rules;
        sharing::check(self.field, bounds.mode, rules)?;
        if let Some(field) = section.get("warn_at") {
            warn_at::check(&field, rules)?;
        }
        ban::check(section, others.shadow)?;
        priority::check(section, (others.shadow, bounds.mode), rules)?;
        if let Some(cost) = &others.cost {
            cost::check(section, cost, bounds, &self.plans.all().collect::<Vec<_>>())?;
            cost::warn_if_never_fits(section, cost, bounds);
        }
        self.warn_of_no_effect(section, bounds.terms, others.enabled);
        Some(())
    }

    fn algorithm(&self, section: &Section<'a>) -> Option<AlgorithmName> {
        let expected = words::alternatives(AlgorithmName::ALL.iter().map(|name| name.as_str()));
        section.required("algorithm", &expected)?.algorithm()
    }

    fn read_common_settings(&self, section: &Section<'a>) -> CommonSettings<'a> {
        let over_limit = section.get("over_limit").map(|field| over_limit::read(&field, self.upstreams));
        let (over_limit, max_wait) = match over_limit {
            Some(read) => (read.over_limit, read.max_wait),
            None => (Some(OverLimit::default()), None),
        };
        let key = self.key(section);
        let mode = sharing::read(section, self.scope);
        CommonSettings {
            enabled: section.value_or("enabled_percent", Share::WHOLE, |field| {
                let share = field.parsed("a share of the keys in percent, like `12.5`", scalar::percent)?;
                if key.as_ref().is_some_and(|key| key.parts.is_empty()) && share != Share::WHOLE {
                    field.warn("is of one bucket for all: every request is under the limit, or none is", None);
                }
                Some(share)
            }),
            shadow: section.flag("shadow"),
            hidden: section.value_or("headers", false, |field| field.choice(&[("shown", false), ("hidden", true)])),
            quota_unit: section.optional("quota_unit", quota_unit::read),
            key,
            cost: cost::read(section, self.prices),
            mode,
            missing_key: section.value_or("missing_key", MissingKey::default(), |field| {
                let words = [
                    ("deny", MissingKey::Deny),
                    ("shared_bucket", MissingKey::SharedBucket),
                    ("skip", MissingKey::Skip),
                ];
                field.choice_renamed(&words)
            }),
            over_limit,
            max_wait,
            warn_at: section.value_or("warn_at", Vec::new(), warn_at::read),
            ban: section.optional("ban", ban::read),
            priority: section.value_or("priority", Vec::new(), |field| priority::read(field, self.plans)),
            max_keys: section.whole("max_keys"),
            on_change: section.value_or("on_change", OnChange::default(), |field| sharing::on_change(field, mode)),
        }
    }

    fn key(&self, section: &Section<'a>) -> Option<Key> {
        let Some(field) = section.get("key") else {
            return match self.scope {
                FileScope::LimitsOnly => Some(Key::default()),
                FileScope::Gateway { .. } => {
                    section.required("key", key::EXPECTED)?;
                    None
                }
            };
        };
        let key = key::read(&field)?;
        if let FileScope::Gateway { customers, tokens, .. } = self.scope {
            for part in &key.parts {
                match part {
                    KeyPart::Group(level) => {
                        self.levels.resolve_name(level, &field)?;
                    }
                    KeyPart::Customer if !customers => {
                        field.warn("counts by address: the file names no `customers`", None);
                    }
                    KeyPart::Plan if !customers => {
                        field.warn("no request has a plan: the file names no `customers`", None);
                    }
                    KeyPart::JwtClaim(_) if !tokens => {
                        field.warn("no request has a token: `customers.identify` has no `jwt`", None);
                    }
                    _ => {}
                }
            }
        }
        Some(key)
    }

    /// The level whose groups have overrides of this limit: the innermost one in the key, unless the key has the customer.
    fn level(&self, key: &Key) -> Option<String> {
        let counts_by = |level: &&str| key.parts.contains(&KeyPart::Group((*level).to_owned()));
        let of_customers = key.parts.contains(&KeyPart::Customer);
        self.levels.all().filter(counts_by).last().filter(|_| !of_customers).map(str::to_owned)
    }

    fn spec(
        &self,
        (algorithm, mode): (AlgorithmName, Mode),
        base: &Parameters<'a>,
        plans: &[NamedPlan<'a>],
        others: &CommonSettings<'_>,
    ) -> Option<WrittenLimit> {
        let plan_spec = |plan: &NamedPlan<'a>| {
            let arguments = match &plan.parameters {
                PlanParameters::Unlimited => None,
                PlanParameters::Parameters(own) => Some(base.arguments.overlaid(&own.arguments)),
                PlanParameters::Broken => return None,
            };
            Some((plan.name.to_owned(), arguments))
        };
        let (max_wait, max_waiting) = match others.over_limit.as_ref()? {
            OverLimit::Delay { max_wait, max_waiting, .. } => (Some(*max_wait), *max_waiting),
            OverLimit::Deny(_) | OverLimit::Divert(_) | OverLimit::Mark(_) => (None, None),
        };
        Some(WrittenLimit {
            name: self.name.to_owned(),
            algorithm,
            mode,
            base: base.arguments.clone(),
            plans: plans.iter().filter_map(plan_spec).collect(),
            max_wait: max_wait.filter(|_| base.arguments.has(MAX_WAIT)),
            max_waiting,
            priority: others.priority.clone(),
            charges_denied: others.cost.as_ref()?.1.denied,
        })
    }

    /// Warns of a limit that applies to no customer or no key.
    fn warn_of_no_effect(&self, section: &Section<'a>, terms: &AllTerms, enabled: Share) {
        if terms.rules.is_empty() && !terms.plans.is_empty() {
            let message = "limits nobody: every plan is unlimited";
            self.field.warn_key(message, None);
        }
        if let (Some(enabled), Share(0)) = (section.get("enabled_percent"), enabled) {
            enabled.warn("applies to no key: the limit does nothing", None);
        }
    }

    /// Warns of a delay under a limit whose rules admit at once or not at all; and of a queue without `max_wait`, which denies
    /// every request that would have to wait. The other algorithms that reserve tokens work well without one.
    fn warn_of_delay(&self, spec: &WrittenLimit, rules: &[Rule]) {
        let delays = |arguments: &Arguments| arguments.has("delay_after");
        let queues = || spec.algorithm.as_str() == "leaky_queue" || spec.all_arguments().any(delays);
        let (message, hint) = match (spec.max_wait, rules.iter().any(Rule::can_delay)) {
            (Some(_), false) => (
                "admits at once or not at all: `over_limit.delay` has no effect",
                "to let requests wait take `gcra` with `delay_after`, or `leaky_queue`",
            ),
            (None, true) if queues() => {
                ("has no `max_wait`: what would have to wait is denied", "write `over_limit: {delay: {max_wait: 1s}}`")
            }
            _ => return,
        };
        self.field.warn_key(message, hint);
    }

    /// Warns of states that take much memory for each key, like a log of all requests.
    fn warn_of_large_states(&self, rules: &[Rule]) {
        let largest = rules.iter().map(Rule::largest_state).max().unwrap_or(0);
        if largest > LARGE_STATE {
            let message = format!("can take up to {} MiB of memory for each key", largest.div_ceil(1 << 20));
            let hint = "`sliding_window`, or `sliding_counters` with few `slots`, counts large limits in little memory";
            self.field.warn_key(message, hint);
        }
    }
}

/// The settings that every limit has, whatever its algorithm; `None` for a setting that could not be read.
struct CommonSettings<'a> {
    key: Option<Key>,
    shadow: bool,
    quota_unit: Option<String>,
    hidden: bool,
    enabled: Share,
    cost: Option<(CostRule, ChargeRule)>,
    mode: Option<Mode>,
    missing_key: MissingKey,
    over_limit: Option<OverLimit>,
    max_wait: Option<Field<'a>>,
    warn_at: Vec<u8>,
    ban: Option<BanRule>,
    priority: Vec<u8>,
    max_keys: u64,
    on_change: OnChange,
}

impl CommonSettings<'_> {
    fn limit(
        self,
        (name, algorithm, level): (&str, AlgorithmName, Option<String>),
        terms: AllTerms,
        request_overrides: RequestOverrides,
    ) -> Option<Limit> {
        let (cost, charge) = self.cost?;
        let quota_unit = self.quota_unit.or_else(|| quota_unit::of(algorithm, &cost).map(str::to_owned));
        Some(Limit {
            name: name.to_owned(),
            algorithm,
            key: self.key?,
            level,
            mode: self.mode?,
            rules: terms.rules,
            plans: terms.plans,
            without_plan: terms.without_plan,
            request_overrides,
            missing_key: self.missing_key,
            over_limit: self.over_limit?,
            warn_at: self.warn_at,
            ban: self.ban,
            priority: self.priority,
            max_keys: self.max_keys,
            on_change: self.on_change,
            cost,
            charge,
            shadow: self.shadow,
            quota_unit: quota_unit.filter(|unit| unit != quota_unit::REQUESTS),
            hidden: self.hidden,
            enabled: self.enabled,
            candidate_of: None,
        })
    }
}
