//! Limits that gateways share, in the form that calls to Redis need.

use std::sync::Arc;

use crate::algorithm::{Rule, State, Value};
use crate::charge::{Charge, Consistency, Enforcement, Mode, RuleRef, Sharing};
use crate::store::LimitSpec;
use crate::store::cached_denial::denial_holds;
use crate::store::redis::{Bucket, CallArgument, NotShareable, SharedRule};
use crate::units::{Cost, LimitKey, Nanos};

/// The lifetime of a `concurrency` slot that is not renewed: a gateway that fails keeps its slots for this long.
pub(super) const SLOT_LIFETIME: Nanos = Nanos::from_secs(15);

/// A limit that gateways share.
#[derive(Debug)]
pub struct SharedLimit {
    pub(super) name: Arc<str>,
    pub(super) sharing: Sharing,
    /// See [`LimitSpec::may_refund`].
    may_refund: bool,
    forms: Vec<Form>,
}

/// Parameters in the form that Redis enforces.
#[derive(Clone, Debug)]
struct Form {
    shared: Arc<SharedRule>,
    max_lease: Cost,
}

/// One limit's part in a call, which outlives the request.
#[derive(Clone, Debug)]
pub(super) struct ChargePart {
    pub(super) limit: Arc<str>,
    pub(super) form: Arc<SharedRule>,
    pub(super) key: LimitKey,
    pub(super) tag: LimitKey,
    pub(super) cost: Cost,
    pub(super) enforcement: Enforcement,
    /// The most tokens that this gateway may lease.
    pub(super) max_lease: Cost,
    /// See [`LimitSpec::may_refund`].
    pub(super) may_refund: bool,
}

/// The part of `cost` times `cost_multiplier` that the bucket can take at once. So a share of less than one token admits one.
pub(super) fn scaled(rule: &Rule, cost: Cost, cost_multiplier: u64) -> Cost {
    let max_cost = rule.largest_cost().unwrap_or(Cost::MAX).max(cost);
    cost.saturating_mul(cost_multiplier).min(max_cost)
}

/// Checks whether a rule can be shared in this way.
///
/// Errors: a rule without a shared form; where gateways lease or count, a rule whose charges do not add up.
pub fn check_shareable(rule: &Rule, sharing: Sharing) -> Result<(), NotShareable> {
    let form = SharedRule::new(rule.clone(), SLOT_LIFETIME)?;
    let problem = match sharing.consistency {
        Consistency::Exact => return Ok(()),
        Consistency::Leased { .. } if form.adds_up() => return Ok(()),
        Consistency::Eventual if form.adds_up() && !form.is_log() => return Ok(()),
        Consistency::Leased { .. } => "cannot be taken ahead: its decisions hang on more than how much was taken",
        Consistency::Eventual => "cannot be counted apart and added up afterwards",
    };
    let problem = format!("{problem}; use `consistency: exact`");
    Err(NotShareable { algorithm: rule.name().as_str(), problem })
}

impl SharedLimit {
    /// The shared side of a limit; `None` if it is sticky.
    pub(super) fn new(spec: &LimitSpec<'_>) -> Option<Self> {
        let Mode::Shared(sharing) = spec.mode else { return None };
        let forms = spec.rules.iter().map(|rule| form(rule, sharing)).collect::<Result<_, _>>().ok()?;
        Some(Self { name: spec.name.into(), sharing, may_refund: spec.may_refund, forms })
    }

    /// `charge` as a part of a call; `None` for parameters without a shared form.
    pub(super) fn part(&self, charge: &Charge) -> Option<ChargePart> {
        let Form { shared, max_lease } = match &charge.rule {
            RuleRef::Listed(position) => self.forms.get(*position)?.clone(),
            RuleRef::Own(rule) => form(rule, self.sharing).ok()?,
        };
        let Charge { key, tag, cost, enforcement, .. } = *charge;
        let (limit, may_refund) = (Arc::clone(&self.name), self.may_refund);
        Some(ChargePart { limit, form: shared, key, tag, cost, enforcement, max_lease, may_refund })
    }

    /// Whether gateways usually decide without a call (`leased` and `eventual`).
    pub(in crate::store) fn is_by_itself(&self) -> bool {
        self.sharing.consistency != Consistency::Exact
    }

    pub(super) fn is_leased(&self) -> bool {
        matches!(self.sharing.consistency, Consistency::Leased { .. })
    }

    pub(super) fn is_eventual(&self) -> bool {
        self.sharing.consistency == Consistency::Eventual
    }
}

fn form(rule: &Rule, Sharing { consistency, .. }: Sharing) -> Result<Form, NotShareable> {
    let whole = || rule.clone();
    let (rule, max_lease) = match consistency {
        Consistency::Leased { strict: Some(_) } => lowered(rule, consistency).unwrap_or_else(|| (whole(), 0)),
        Consistency::Leased { strict: None } => (whole(), Cost::MAX),
        Consistency::Exact | Consistency::Eventual => (whole(), 0),
    };
    Ok(Form { shared: Arc::new(SharedRule::new(rule, SLOT_LIFETIME)?), max_lease })
}

/// The rule with its burst lowered by the tokens that all gateways together may lease, and the most that each gateway may
/// lease. `None` if that is zero: then gateways lease nothing.
fn lowered(rule: &Rule, consistency: Consistency) -> Option<(Rule, Cost)> {
    let mut arguments = rule.arguments();
    let (name, burst) = arguments.iter().find_map(|(name, value)| match value {
        Value::Whole(burst) if ["burst", "capacity", "limit"].contains(&name) => Some((name, *burst)),
        _ => None,
    })?;
    let each = consistency.strict_lease(burst);
    arguments.set(name, Value::Whole(consistency.admitted(burst)));
    let lower = rule.name().build(&arguments).ok()?;
    (each > 0).then_some((lower, each))
}

impl ChargePart {
    pub(super) fn bucket<'a>(&'a self, call_argument: CallArgument<'a>) -> Bucket<'a> {
        Bucket {
            limit: &self.limit,
            rule: &self.form,
            key: self.key,
            tag: self.tag,
            cost: self.cost,
            enforcement: self.enforcement,
            call_argument,
        }
    }

    pub(super) fn rule(&self) -> &Rule {
        self.form.rule()
    }

    pub(super) fn has_parameters_of(&self, other: &Self) -> bool {
        self.form.parameters() == other.form.parameters()
    }

    /// The number of used tokens of a key in this `state` at `now`. Where some requests pass only after a wait, a fresh
    /// key has less left than its quota.
    pub(super) fn used_in(&self, state: Option<&State>, now: Nanos) -> Cost {
        let left = |state| self.rule().headroom(state, now).remaining;
        left(None).zip(left(state)).map_or(0, |(fresh, left)| fresh.saturating_sub(left))
    }

    /// Whether a denial holds until its retry time in any case, so that it can be repeated without a call.
    pub(super) fn denial_holds(&self) -> bool {
        denial_holds(self.rule(), self.enforcement)
    }
}

/// The name of a slot, unique among all requests of all gateways.
pub(super) fn slot_name(gateway: u64, number: u64) -> String {
    format!("{gateway:016x}-{number:x}")
}
