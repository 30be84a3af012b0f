//! The limits that apply to a request, the keys that it is counted under, and the standings of these keys.

use serde::Serialize;

use super::{AnswerExplanation, Explanation, ResolvedRequest, masked};
use crate::algorithm::{Decision, Denial, Rule};
use crate::charge::{Charge, ChargeSource, Charged, DecisionSource, OnStoreDown, RuleRef};
use crate::gateway::Gateway;
use crate::gateway::active_config::ActiveConfig;
use crate::gateway::queue;
use crate::gateway::respond::Answer;
use crate::gateway::shown_headroom::ShownHeadroom;
use crate::ruleset::charges::{TermsOwner, Uncharged};
use crate::ruleset::key::{self, Facts, KeyFault, KeyPart, LimitHashers, Resolved, ValueFault};
use crate::ruleset::limit::Limit;
use crate::ruleset::matcher::Route;
use crate::ruleset::outcome::OutcomeKind;
use crate::ruleset::verdict::Verdict;
use crate::ruleset::words::LimitTerms;
use crate::ruleset::{LimitId, Ruleset};
use crate::units::Nanos;

/// A limit of the route, and its effect on the request.
#[derive(Clone, Debug, Serialize)]
pub struct LimitExplanation {
    /// Its name.
    pub limit: String,
    /// Its algorithm.
    pub algorithm: &'static str,
    /// Whether the request is charged under it.
    pub applies: bool,
    /// Whether that depends on the request's body, which is not known.
    #[serde(skip)]
    pub awaits_body: bool,
    /// The owner of the parameters, or the reason why the limit does not apply.
    pub why: String,
    /// The plan of the owner of the parameters.
    #[serde(skip)]
    pub plan: Option<String>,
    /// The parameters, in words.
    pub terms: Option<String>,
    /// The parts of the key that the request is counted under; empty if all requests share one bucket.
    pub key: Vec<KeyPartValue>,
    /// The tokens that are taken when the request arrives.
    pub cost: Option<u64>,
    /// The way in which the cost is found, if it is not one token for each request.
    pub cost_rule: Option<String>,
    /// The time of the charge, in words, if it is not when the request arrives.
    pub charged: Option<String>,
    /// The action on the request over the limit.
    pub over_limit: String,
    /// The shares of the quota from which on clients are warned.
    pub warns: Option<String>,
    /// The tokens that the request has to leave for other plans; absent if it may use all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaves: Option<u64>,
    /// The gateway that decides on the key, if several gateways divide the keys; only a running gateway tells it.
    pub owner: Option<String>,
    /// The time for which the running gateway still bans the key; absent if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub banned_for_seconds: Option<f64>,
    /// The standing of the key; only a running gateway tells it.
    pub standing: Option<LimitStanding>,
}

/// A part of a key.
#[derive(Clone, Debug, Serialize)]
pub struct KeyPartValue {
    /// The part, in words.
    pub part: String,
    /// The request's value for it, masked if it may be secret; null if it is missing, repeated or unreadable.
    pub value: Option<String>,
}

/// The standing of a key before the request.
#[derive(Clone, Debug, Serialize)]
pub struct LimitStanding {
    /// `admitted`, `delayed` or `denied`: the decision of this limit, if it were the only one.
    pub decision: &'static str,
    /// The time that the request would wait.
    pub wait_seconds: Option<f64>,
    /// The time after which it would be admitted; null if no wait helps or the time is unknown.
    pub retry_after_seconds: Option<f64>,
    /// The largest cost that would be admitted at once; null if there is no such number.
    pub remaining: Option<u64>,
    /// The time until more tokens are available; 0 if none are missing, null if it is unknown.
    pub more_in_seconds: Option<f64>,
    /// The time until all tokens are available again; null if it is unknown, or if requests in flight have to end first.
    pub full_in_seconds: Option<f64>,
}

/// The outcome of the request if it came now.
#[derive(Clone, Debug, Serialize)]
pub struct CurrentOutcome {
    /// `bypassed`, `unlimited`, `admitted`, `delayed`, `denied` or `banned`.
    pub outcome: &'static str,
    /// The time that it would wait.
    pub wait_seconds: Option<f64>,
    /// The time after which it would be admitted; null if no wait helps or the time is unknown.
    pub retry_after_seconds: Option<f64>,
    /// The tightest limit: the client is told about this one where there is room for only one.
    pub tightest: Option<String>,
    /// The source of the decision: `local`, `denial_cache`, `lease`, `owner` (the gateway that owns the key), `store`
    /// (Redis) or `fallback`, if Redis is unavailable.
    pub decided: &'static str,
    /// The upstream that a limit diverts it to.
    pub diverted_to: Option<String>,
}

/// Describes `limits`, which belong to `route`, for a request that may go to this many `nodes`. Each charge comes with the
/// position of its limit.
pub(super) fn explain_limits(
    ruleset: &Ruleset,
    (route, limits, nodes): (&Route, &[LimitId], usize),
    facts: &Facts<'_>,
    resolved: &Resolved<'_>,
    hashers: &LimitHashers,
) -> (Vec<LimitExplanation>, Vec<(usize, Charge)>) {
    let mut charges = Vec::new();
    let explained = limits.iter().enumerate().map(|(position, id)| {
        let limit = &ruleset.limits[id.0];
        let charge = ruleset.charge(*id, facts, resolved, hashers);
        let charged = charge.as_ref().ok();
        let explained = LimitExplanation {
            limit: limit.name.clone(),
            algorithm: limit.algorithm.as_str(),
            applies: charged.is_some(),
            awaits_body: charge == Err(Uncharged::AwaitsBody),
            why: match &charge {
                Ok(charge) => terms_of(ruleset, limit, charge, resolved),
                Err(uncharged) => uncharged_because(*uncharged, ruleset, limit, resolved),
            },
            plan: ruleset.plan_name(TermsOwner::of(limit, resolved).plan).map(str::to_owned),
            terms: charged.map(|charge| LimitTerms::of(limit, limit.rule(&charge.rule), charge.floor).words),
            key: key_of(limit, ruleset, nodes, facts, resolved),
            cost: charged.map(|charge| charge.cost),
            cost_rule: limit.cost.describe(),
            charged: charge_time(limit, route.early.contains(id)),
            over_limit: over_limit(ruleset, route, limit),
            warns: limit.warns().filter(|_| limit.candidate_of.is_none()),
            leaves: charged.map(|charge| charge.floor).filter(|floor| *floor > 0),
            owner: None,
            banned_for_seconds: None,
            standing: None,
        };
        charges.extend(charge.ok().map(|charge| (position, charge)));
        explained
    });
    (explained.collect(), charges)
}

/// The time of a limit's charge, in words, if it is not when the caller is known and the request arrives.
fn charge_time(limit: &Limit, is_early: bool) -> Option<String> {
    let early = is_early.then(|| "before the credential is looked up".to_owned());
    let words: Vec<String> = early.into_iter().chain(limit.charge.describe()).collect();
    (!words.is_empty()).then(|| words.join("; "))
}

/// The owner of the parameters of a charge, in words.
fn terms_of(ruleset: &Ruleset, limit: &Limit, charge: &Charge, resolved: &Resolved<'_>) -> String {
    let (owner, id) = (TermsOwner::of(limit, resolved), LimitId(charge.limit));
    let of_plan = match ruleset.plan_name(owner.plan) {
        _ if limit.has_same_terms_for_all() => "the parameters of every request".to_owned(),
        Some(plan) => {
            let whose = owner.group.map_or_else(String::new, |group| format!(" of the {}", group.level));
            format!("the parameters of the plan {plan}{whose}")
        }
        None => "the parameters of requests without a plan".to_owned(),
    };
    match &charge.rule {
        RuleRef::Listed(_) => of_plan,
        RuleRef::Own(_) if owner.own.is_some_and(|own| own.of(id).is_some()) => {
            format!("the {}'s own parameters", owner.kind())
        }
        RuleRef::Own(rule) if owner.zoned_rule(id, limit) == Some(rule) => {
            format!("{of_plan}, in the time zone of the {}", owner.kind())
        }
        RuleRef::Own(_) => "the parameters that the request brings along".to_owned(),
    }
}

/// The reason why a limit does not charge a request, in words.
pub(in crate::gateway) fn uncharged_because(
    uncharged: Uncharged<'_>,
    ruleset: &Ruleset,
    limit: &Limit,
    resolved: &Resolved<'_>,
) -> String {
    let owner = TermsOwner::of(limit, resolved);
    match uncharged {
        Uncharged::Unlimited => match ruleset.plan_name(owner.plan) {
            Some(plan) => format!("the plan {plan} is unlimited"),
            None => "requests without a plan are unlimited".to_owned(),
        },
        Uncharged::OwnUnlimited => format!("the {}'s own parameters say that it is unlimited", owner.kind()),
        Uncharged::CandidateSkipped => {
            format!("a candidate is not tried on a {} with parameters of its own", owner.kind())
        }
        Uncharged::Skipped(fault) => format!("the request {fault}, and `missing_key` is `skip`"),
        Uncharged::NoKeyInShadow(fault) => format!("the request {fault}, and the limit only watches"),
        Uncharged::NotEnabled => "the key is not in the share of `enabled_percent`".to_owned(),
        Uncharged::AwaitsBody => "it goes by the request's body, which is not known".to_owned(),
        Uncharged::Refused(fault @ KeyFault { fault: ValueFault::Missing | ValueFault::Unreadable, .. }) => {
            format!("the request {fault}, and `missing_key` is `deny`")
        }
        Uncharged::Refused(fault) => format!("the request {fault}, and the key does not say which one counts"),
    }
}

fn key_of(
    limit: &Limit,
    ruleset: &Ruleset,
    nodes: usize,
    facts: &Facts<'_>,
    resolved: &Resolved<'_>,
) -> Vec<KeyPartValue> {
    let parts = limit.key.parts.iter().map(|part| {
        let value = key::value(part, facts, resolved).ok();
        let value = value.map(|value| masked::masked_value(part, &value, ruleset.customers.as_ref()));
        let others = nodes.saturating_sub(1);
        KeyPartValue {
            part: part.describe(),
            value: match part {
                KeyPart::UpstreamNode if others > 0 => {
                    value.map(|node| format!("{node}, or one of the {others} other nodes"))
                }
                _ => value,
            },
        }
    });
    parts.collect()
}

impl LimitExplanation {
    /// Whether the request shares a bucket with all others that lack a part of the key.
    pub fn uses_shared_bucket(&self) -> bool {
        self.applies && self.key.iter().any(|part| part.value.is_none())
    }
}

/// The action on requests over a limit, also for limits that only watch or are tried out.
fn over_limit(ruleset: &Ruleset, route: &Route, limit: &Limit) -> String {
    if let Some(tried) = limit.candidate_of {
        return format!("nothing: it is tried out beside {}", ruleset.limits[tried.0].name);
    }
    if limit.shadow {
        return "nothing: it only watches".to_owned();
    }
    let set = ruleset.over_the_limit(limit);
    let of_route = || route.denied.describe().map(|words| format!("denied with {words}"));
    set.or_else(of_route).unwrap_or_else(|| format!("denied with status {}", Answer::Limited.status()))
}

impl ResolvedRequest {
    /// Adds the standings of the keys, which hold as long as no other request charges them.
    pub(super) async fn with_standings(self, gateway: &Gateway, active: &ActiveConfig) -> Explanation {
        let Self { mut explanation, charges, .. } = self;
        let now = gateway.clock.now();
        let mut batch: Vec<Charge> = charges.iter().map(|(_, charge)| charge.dry_run()).collect();
        let receipt = gateway.store.charge(&active.binding, &mut batch, now).await;
        let queued =
            charges.iter().zip(&receipt.charged).map(|((_, charge), charged)| match charge.enforcement.enforces {
                true => {
                    let decision = active.queues[charge.limit].decide_without_place(charged.decision, now);
                    Charged { decision, ..*charged }
                }
                false => *charged,
            });
        let queued: Vec<Charged> = queued.collect();
        for (((position, charge), asked), charged) in charges.iter().zip(&batch).zip(&queued) {
            let account = &mut explanation.limits[*position];
            account.owner = gateway.store.owner(&active.binding, charge).map(|owner| owner.to_string());
            account.banned_for_seconds = gateway.bans.remaining(&active.ruleset, charge, now).map(Nanos::as_secs_f64);
            let rule = active.ruleset.rule_of_charge(charge);
            account.standing = Some(LimitStanding::of(charged, asked, rule));
        }
        let is_refused = |((_, charge), asked): (&(usize, Charge), &Charge)| {
            let down = active.ruleset.limits[charge.limit].mode.on_store_down();
            charge.enforcement.enforces
                && down == Some(OnStoreDown::Deny)
                && asked.taken_from == ChargeSource::FailedOpen
        };
        // the store never refuses a charge that only asks, so the check is made here
        if charges.iter().zip(&batch).any(is_refused) {
            explanation.answer.get_or_insert_with(|| AnswerExplanation::of(&Answer::StoreUnavailable));
            return explanation;
        }
        let charges: Vec<Charge> = charges.into_iter().map(|(_, charge)| charge).collect();
        let verdict = match gateway.bans.longest_ban(&active.ruleset, &charges, now) {
            Some(ban) => Verdict::of_banned(&active.ruleset, &charges, ban, now),
            None => match Verdict::new(&active.ruleset, &charges, &receipt.charged) {
                mut denied if denied.is_denied() => {
                    queue::await_places(&active.queues, &mut denied, now);
                    gateway.bans.foresee(&active.ruleset, &charges, &mut denied, now);
                    denied
                }
                // only a request that all limits admit comes to the queues
                _ => Verdict::new(&active.ruleset, &charges, &queued),
            },
        };
        let now = CurrentOutcome::of(&active.ruleset, &verdict, explanation.bypassed.is_some(), receipt.source);
        // a refused caller is denied instead if an early limit denies
        match (&explanation.answer, verdict.outcome) {
            (Some(_), Decision::Admit { .. }) => {}
            _ => (explanation.answer, explanation.now) = (None, Some(now)),
        }
        explanation
    }
}

impl LimitStanding {
    /// The standing of a key after `asked`, the only charge of a batch, under `rule`; without a result, that of a fresh key.
    pub(in crate::gateway) fn of_only_charge(charged: &[Charged], asked: &Charge, rule: &Rule, now: Nanos) -> Self {
        let fresh = || Charged { decision: Decision::ADMIT, headroom: rule.headroom(None, now) };
        Self::of(&charged.first().copied().unwrap_or_else(fresh), asked, rule)
    }

    fn of(Charged { decision, headroom }: &Charged, asked: &Charge, rule: &Rule) -> Self {
        let shown = ShownHeadroom::of(*headroom, asked, rule.policy());
        let (wait_seconds, retry_after_seconds) = waits_of(*decision);
        Self {
            decision: OutcomeKind::of(*decision).as_str(),
            wait_seconds,
            retry_after_seconds,
            remaining: shown.remaining,
            more_in_seconds: shown.more_in_seconds,
            full_in_seconds: shown.full_in_seconds,
        }
    }
}

impl CurrentOutcome {
    fn of(ruleset: &Ruleset, verdict: &Verdict, bypassed: bool, source: DecisionSource) -> Self {
        let outcome = match verdict.standings.is_empty() {
            true if bypassed => OutcomeKind::Bypassed,
            true => OutcomeKind::Unlimited,
            false if verdict.banned => OutcomeKind::Banned,
            false => OutcomeKind::of(verdict.outcome),
        };
        let (wait_seconds, retry_after_seconds) = waits_of(verdict.outcome);
        let name = |position: usize| ruleset.limits[verdict.standings[position].limit.0].name.clone();
        let diverted = verdict.divert_upstream(ruleset);
        Self {
            outcome: outcome.as_str(),
            wait_seconds,
            retry_after_seconds,
            tightest: verdict.tightest.map(name),
            decided: source.as_str(),
            diverted_to: diverted.map(|upstream| ruleset.upstreams[upstream.0].name.clone()),
        }
    }
}

/// The wait of a decision, and the time after which a retry would be admitted, in seconds.
fn waits_of(decision: Decision) -> (Option<f64>, Option<f64>) {
    match decision {
        Decision::Admit { wait } => ((wait > Nanos::ZERO).then(|| wait.as_secs_f64()), None),
        Decision::Deny(Denial::Later { retry_after }) => (None, Some(retry_after.as_secs_f64())),
        Decision::Deny(Denial::Busy | Denial::Never { .. }) => (None, None),
    }
}
