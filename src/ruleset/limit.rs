//! Limits: the parameters for each plan, the key, and the treatment of requests over the limit.

use crate::algorithm::{AlgorithmName, Rule};
use crate::charge::{Enforcement, Mode, RuleRef};
use crate::ruleset::ban::BanRule;
use crate::ruleset::cost::{
    ChargeRule, ChargeTime, CompletedRequest, CostRule, RealCost, ReportedCost, RequestEnd, Reserve, ResponseCost,
    UpstreamResponse, Weight, started_blocks,
};
use crate::ruleset::denied::Denied;
use crate::ruleset::key::{Facts, Key, KeyPart};
use crate::ruleset::prices::rounded_up;
use crate::ruleset::request_field::{FieldPath, RequestFields};
use crate::ruleset::request_overrides::RequestOverrides;
use crate::ruleset::upstream::UpstreamId;
use crate::ruleset::{LimitId, PlanId};
use crate::units::{Cost, LimitKey, Nanos};

/// The time that a long quota takes to refill, at least.
const A_DAY: Nanos = Nanos::from_secs(86_400);

/// A named rule. Its state belongs to its name and algorithm: routes that name it share it.
#[derive(Clone, Debug)]
pub struct Limit {
    /// The name in the configuration.
    pub name: String,
    /// The algorithm of every plan.
    pub algorithm: AlgorithmName,
    /// The key by which requests are counted.
    pub key: Key,
    /// The innermost level in the key, whose groups own the parameters; `None` where customers own them.
    pub level: Option<String>,
    /// Whether each gateway keeps the limit's states itself or gateways share them.
    pub mode: Mode,
    /// The different parameters that [`Limit::terms`] point to, without repeats.
    pub rules: Vec<Rule>,
    /// The terms of each plan, indexed by [`PlanId`].
    pub plans: Vec<PlanTerms>,
    /// The terms of a request without a plan; `None` only where every request has one.
    pub without_plan: Option<PlanTerms>,
    /// The parameters that requests may carry, in place of those of their plan.
    pub request_overrides: RequestOverrides,
    /// How the limit treats a request that lacks a part of the key.
    pub missing_key: MissingKey,
    /// How the limit treats a request that is over it.
    pub over_limit: OverLimit,
    /// The shares of the quota from which on clients are warned, in percent, ascending.
    pub warn_at: Vec<u8>,
    /// The ban of keys that are denied repeatedly, if configured.
    pub ban: Option<BanRule>,
    /// The percent of the tokens that requests of each plan may use, indexed by [`PlanId`]; empty where all may use all of it.
    pub priority: Vec<u8>,
    /// The most keys whose states are kept; a million small states take about 60 MB.
    pub max_keys: u64,
    /// Whether keys keep their usage when a reload changes the parameters.
    pub on_change: OnChange,
    /// The tokens that a request costs.
    pub cost: CostRule,
    /// When they are taken.
    pub charge: ChargeRule,
    /// Whether the limit only watches: it counts and reports, and never acts on requests.
    pub shadow: bool,
    /// The unit of the quota, where that is not requests: the IETF draft's `qu`.
    pub quota_unit: Option<String>,
    /// Whether no answer names the limit, although it acts.
    pub hidden: bool,
    /// The share of the keys that the limit applies to; the same keys every time.
    pub enabled: Share,
    /// The limit for which this one is a candidate: it tries other parameters on the same keys.
    pub candidate_of: Option<LimitId>,
}

/// A share in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(pub u32);

impl Share {
    /// The whole.
    pub const WHOLE: Self = Self(1_000_000);

    /// Whether a key belongs to this share of all; `stable` is a hash of it that is the same everywhere.
    pub fn contains_key_hash(self, stable: LimitKey) -> bool {
        stable.0 % u128::from(Self::WHOLE.0) < u128::from(self.0)
    }

    /// Whether a random number falls into this share of all.
    pub fn contains_roll(self, roll: u32) -> bool {
        (u64::from(roll).saturating_mul(u64::from(Self::WHOLE.0)) >> u32::BITS) < u64::from(self.0)
    }

    /// This share of `amount`, rounded down.
    pub fn of(self, amount: u64) -> u64 {
        let share = u128::from(amount).saturating_mul(u128::from(self.0)) / u128::from(Self::WHOLE.0);
        u64::try_from(share).unwrap_or(u64::MAX)
    }
}

impl Limit {
    /// The parameters of a charge under this limit.
    pub fn rule<'a>(&'a self, rule: &'a RuleRef) -> &'a Rule {
        match rule {
            RuleRef::Listed(position) => &self.rules[*position],
            RuleRef::Own(rule) => rule,
        }
    }

    /// Whether a denial by this limit denies the request. All other limits watch, mark or divert.
    pub const fn enforces(&self) -> bool {
        self.acts() && matches!(self.over_limit, OverLimit::Deny(_) | OverLimit::Delay { .. })
    }

    /// Whether the limit acts on requests: it neither only watches nor is a candidate.
    pub const fn acts(&self) -> bool {
        !self.shadow && self.candidate_of.is_none()
    }

    /// Whether a spent quota of some plan takes a day or longer to refill: keys are then denied for longer than a restart
    /// takes.
    pub fn has_long_quota(&self) -> bool {
        self.rules.iter().any(|rule| rule.policy().window.is_some_and(|window| window >= A_DAY))
    }

    /// The highest mark of [`Limit::warn_at`] that a key has reached with `used` percent of its quota in use.
    pub fn mark_at(&self, used: u8) -> Option<u8> {
        self.warn_at.iter().rev().copied().find(|at| *at <= used)
    }

    /// Whether answers name this limit.
    pub const fn is_visible(&self) -> bool {
        self.acts() && !self.hidden
    }

    /// The terms of `plan`.
    pub fn terms(&self, plan: Option<PlanId>) -> PlanTerms {
        let terms = match plan {
            Some(PlanId(plan)) => self.plans.get(plan).copied(),
            None => self.without_plan,
        };
        terms.unwrap_or(PlanTerms::Unlimited)
    }

    /// The parameters for `plan`; `None` if the limit does not apply to it.
    pub fn plan_rule(&self, plan: Option<PlanId>) -> Option<&Rule> {
        match self.terms(plan) {
            PlanTerms::Unlimited => None,
            PlanTerms::Rule(position) => self.rules.get(position),
        }
    }

    /// The parameters for each plan that the limit applies to, and for requests without a plan.
    pub fn plan_rules(&self) -> impl Iterator<Item = (Option<PlanId>, &Rule)> {
        let plans = (0..self.plans.len()).map(|plan| Some(PlanId(plan))).chain([None]);
        plans.filter_map(|plan| Some((plan, self.plan_rule(plan)?)))
    }

    /// The fields of the request's body on which the limit depends.
    pub fn body_fields(&self) -> impl Iterator<Item = &FieldPath> {
        let in_key = self.key.parts.iter().filter_map(|part| match part {
            KeyPart::RequestField(path) => Some(path),
            _ => None,
        });
        let of_cost = match &self.cost {
            CostRule::RequestField(field) => Some(&field.path),
            CostRule::GraphQl(rule) => Some(&rule.path),
            CostRule::Response(cost) => cost.model.as_ref().map(|model| &model.path),
            _ => None,
        };
        let of_reserve = match &self.charge.reserve {
            Some(Reserve::FromRequest { tokens, .. }) => Some(&tokens.path),
            Some(Reserve::Fixed(_)) | None => None,
        };
        in_key.chain(of_cost).chain(of_reserve)
    }

    /// Whether the key or the charge depends on the request's body.
    pub fn depends_on_body(&self) -> bool {
        self.body_fields().next().is_some()
    }

    /// How many tokens requests of `plan` have to leave for others under `rule`. Each plan may use at least one token.
    pub fn floor(&self, plan: Option<PlanId>, rule: &Rule) -> Cost {
        floor(rule, &self.priority, plan)
    }

    /// Whether the limit treats the requests of all plans, and those without a plan, alike.
    pub fn has_same_terms_for_all(&self) -> bool {
        let mut all = self.plans.iter().copied().chain(self.without_plan);
        let first = all.next();
        all.all(|terms| Some(terms) == first) && self.priority.is_empty()
    }

    /// Whether requests are charged before their callers are identified: neither the key nor the parameters depend on who
    /// is calling, and the limit does not say otherwise.
    pub fn is_early(&self) -> bool {
        let is_known = |part: &KeyPart| {
            !matches!(
                part,
                KeyPart::Customer | KeyPart::Plan | KeyPart::Group(_) | KeyPart::JwtClaim(_) | KeyPart::UpstreamNode
            )
        };
        self.has_same_terms_for_all()
            && !self.request_overrides.need_token()
            && !self.charge.identified
            && !self.depends_on_body()
            && self.key.parts.iter().all(is_known)
    }

    /// The cost and the enforcement of a request under `rule` on its arrival. Slots are always taken then and come back by
    /// themselves, whatever the limit says about when to charge tokens.
    pub fn charge_on_arrival(&self, rule: &Rule, facts: &Facts<'_>) -> (Cost, Enforcement) {
        let (cost, consumes) = match (&self.charge.when, &self.charge.reserve) {
            _ if rule.holds_slots() => (self.cost.on_request(facts).unwrap_or(1), true),
            // takes nothing, but a key in debt is denied
            (ChargeTime::Response { .. }, Some(Reserve::Fixed(0))) => (1, false),
            (ChargeTime::Response { .. }, Some(Reserve::Fixed(reserve))) => (*reserve, true),
            (ChargeTime::Response { .. }, Some(Reserve::FromRequest { tokens, price })) => {
                let number = tokens.of(facts.body);
                match price.map_or(number, |column| self.priced(number, column, facts.body)) {
                    0 => (1, false),
                    cost => (cost, true),
                }
            }
            _ => (self.cost.on_request(facts).unwrap_or(1), true),
        };
        (
            cost,
            Enforcement {
                enforces: self.enforces(),
                consumes,
                counts_denied: self.charge.denied && !rule.holds_slots(),
            },
        )
    }

    /// The cost of `number` tokens by the price in `column` of the model that a request with this body names.
    pub fn priced(&self, number: Cost, column: usize, body: Option<&RequestFields>) -> Cost {
        let prices = if let CostRule::Response(cost) = &self.cost { cost.prices(body) } else { &[] };
        rounded_up(ResponseCost::price(Weight::Price(column), prices).millionths(number))
    }

    /// Whether the charge of a request under `rule` on its arrival may have to be settled; `known` is the cost that is known
    /// on arrival.
    pub fn settles_later(&self, rule: &Rule, known: Option<Cost>) -> bool {
        !rule.holds_slots() && (known.is_none() || self.charge.when != ChargeTime::Request)
    }

    /// Whether requests may turn out to cost less than they were charged on arrival.
    pub fn may_refund(&self) -> bool {
        use CostRule::{ByMethod, Fixed, GraphQl, Header, RequestField};
        let is_known_on_arrival =
            matches!(self.cost, Fixed(_) | ByMethod { .. } | Header { .. } | RequestField(_) | GraphQl(_));
        self.charge.when != ChargeTime::Request || !is_known_on_arrival
    }

    /// Whether the charge on a request's arrival is final: its end changes nothing.
    pub fn is_settled_at_once(&self) -> bool {
        !self.algorithm.holds_slots() && !self.may_refund()
    }

    /// The real cost of a request whose cost was `known` on its arrival, or whose response `reported` it.
    pub fn real_cost(&self, known: Option<Cost>, exchange: &CompletedRequest, reported: ReportedCost) -> RealCost {
        if let ChargeTime::Response { if_status } = &self.charge.when {
            let is_listed = |status: u16| if_status.iter().any(|(from, to)| (*from..=*to).contains(&status));
            match exchange.end {
                // tollgate's own answers count only if `if_status` lists their status, and report no cost
                RequestEnd::NoResponse { own } if !own.is_some_and(is_listed) => return RealCost::Known(0),
                RequestEnd::NoResponse { .. } if self.cost.is_in_response() => return RealCost::AsTaken,
                RequestEnd::NoResponse { .. } => {}
                RequestEnd::ClientAborted => return RealCost::AsTaken,
                RequestEnd::Answered(UpstreamResponse { status, .. })
                    if !if_status.is_empty() && !is_listed(status) =>
                {
                    return RealCost::Known(0);
                }
                RequestEnd::Answered(_) => {}
            }
        }
        let (has_body, whole) = match exchange.end {
            RequestEnd::Answered(UpstreamResponse { has_body, whole, .. }) => (has_body, whole),
            RequestEnd::NoResponse { .. } | RequestEnd::ClientAborted => (false, false),
        };
        match (&self.cost, known) {
            (_, Some(known)) => RealCost::Known(known),
            (CostRule::RequestBytes(length), None) => RealCost::Known(started_blocks(exchange.request_bytes, *length)),
            (CostRule::ResponseBytes(length), None) => {
                RealCost::Known(started_blocks(exchange.response_bytes, *length))
            }
            (CostRule::Response(ResponseCost { fields, max, is_sum, .. }), None) => match reported {
                ReportedCost::Cost(cost) if cost <= *max || *is_sum => RealCost::Known(cost.min(*max)),
                ReportedCost::Part(cost) if whole => RealCost::Known(cost.min(*max)),
                ReportedCost::Part(cost) => RealCost::AtLeast(cost.min(*max)),
                ReportedCost::Nothing if !fields.is_empty() && !has_body => RealCost::Known(0),
                ReportedCost::Nothing if !fields.is_empty() && !whole => RealCost::AsTaken,
                _ => RealCost::Unreadable,
            },
            (
                CostRule::Fixed(_)
                | CostRule::ByMethod { .. }
                | CostRule::Header { .. }
                | CostRule::RequestField(_)
                | CostRule::GraphQl(_),
                None,
            ) => RealCost::AsTaken,
        }
    }
}

/// The most tokens that requests of `plan` may use at once under `rule`, where plans may use the percents `priority` of
/// its tokens; `None` for any number.
pub fn usable_tokens(rule: &Rule, priority: &[u8], plan: Option<PlanId>) -> Option<Cost> {
    let percent = plan.and_then(|PlanId(plan)| priority.get(plan)).copied().unwrap_or(100);
    let all = rule.largest_cost()?;
    Some(if percent < 100 { Share(u32::from(percent) * 10_000).of(all).max(1) } else { all })
}

/// The tokens under `rule` that requests of `plan` have to leave for others, where plans may use the percents `priority`.
pub fn floor(rule: &Rule, priority: &[u8], plan: Option<PlanId>) -> Cost {
    let usable = usable_tokens(rule, priority, plan);
    rule.largest_cost().zip(usable).map_or(0, |(all, usable)| all.saturating_sub(usable))
}

/// The terms of a limit for one plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanTerms {
    /// The limit does not apply.
    Unlimited,
    /// The parameters at this index of [`Limit::rules`].
    Rule(usize),
}

/// How a limit treats a request that lacks a part of its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingKey {
    /// It is refused with 400 (401 where the part is the customer).
    Deny,
    /// All such requests share one bucket.
    #[default]
    SharedBucket,
    /// The limit does not apply.
    Skip,
}

/// Whether keys keep their usage when a reload changes a limit's parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnChange {
    /// It is carried over by the algorithm's rule: a spent bucket stays spent.
    #[default]
    Carry,
    /// It is forgotten: every key starts afresh.
    Reset,
}

/// How a limit treats a request that is over it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverLimit {
    /// It is denied.
    Deny(Denied),
    /// It waits its turn if that comes soon enough, and is denied otherwise.
    Delay {
        /// The longest wait.
        max_wait: Nanos,
        /// The most requests that may wait at once, over all keys; `None` for any number.
        max_waiting: Option<u64>,
        /// The answer to denied requests.
        denied: Denied,
    },
    /// It goes to this upstream instead of the route's.
    Divert(UpstreamId),
    /// It passes, and this header tells its upstream about the limit.
    Mark(http::HeaderName),
}

impl OverLimit {
    /// The answer to denied requests; `None` where the limit denies none.
    pub const fn denied(&self) -> Option<&Denied> {
        match self {
            Self::Deny(denied) | Self::Delay { denied, .. } => Some(denied),
            Self::Divert(_) | Self::Mark(_) => None,
        }
    }
}

impl Default for OverLimit {
    fn default() -> Self {
        Self::Deny(Denied::default())
    }
}
