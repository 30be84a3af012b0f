//! Limits that nodes share, as the calls to Redis need them.

use std::sync::Arc;

use crate::algorithm::{Rule, Value};
use crate::charge::{Charge, Consistency, Enforcement, Mode, RuleRef, Sharing};
use crate::store::LimitSpec;
use crate::store::cached_denial::denial_holds;
use crate::store::redis::{Bucket, CallArgument, NotShareable, SharedRule};
use crate::units::{Cost, LimitKey, Nanos};

/// How long a slot of `concurrency` is held without being renewed: so long a node that is gone keeps its slots.
pub(super) const SLOT_LIFETIME: Nanos = Nanos::from_secs(15);

/// A limit that nodes share.
#[derive(Debug)]
pub struct SharedLimit {
    pub(super) name: Arc<str>,
    pub(super) sharing: Sharing,
    /// How many nodes the configuration says there are.
    nodes: u64,
    /// Whether tokens come back when requests turn out to cost less.
    gives_back: bool,
    forms: Vec<Form>,
}

/// Parameters as they are enforced in Redis.
#[derive(Clone, Debug)]
struct Form {
    shared: Arc<SharedRule>,
    most_ahead: Cost,
}

/// One limit's part in a call, as something that outlives the request.
#[derive(Clone, Debug)]
pub(super) struct ChargePart {
    pub(super) limit: Arc<str>,
    pub(super) form: Arc<SharedRule>,
    pub(super) key: LimitKey,
    pub(super) tag: LimitKey,
    pub(super) cost: Cost,
    pub(super) enforcement: Enforcement,
    /// How many tokens may be taken ahead.
    pub(super) most_ahead: Cost,
    /// Whether tokens come back when requests turn out to cost less.
    pub(super) gives_back: bool,
}

/// What `cost` takes at once from a bucket where each token is so many. A share of less than a token is rounded up to one.
pub(super) fn scaled(rule: &Rule, cost: Cost, times: u64) -> Cost {
    let most = rule.largest_cost().unwrap_or(Cost::MAX).max(cost);
    cost.saturating_mul(times).min(most)
}

/// Why a rule cannot be shared in this way.
///
/// Errors: what there is no shared form of; and where nodes count by themselves, what does not add up.
pub fn refuse(rule: &Rule, sharing: Sharing) -> Result<(), NotShareable> {
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
    /// The shared side of a limit; `None` where it is sticky. There are so many `nodes`, as far as the configuration says.
    pub(super) fn new(spec: &LimitSpec<'_>, nodes: u64) -> Option<Self> {
        let Mode::Shared(sharing) = spec.mode else { return None };
        let forms = spec.rules.iter().map(|rule| form(rule, sharing, nodes)).collect::<Result<_, _>>().ok()?;
        Some(Self { name: spec.name.into(), sharing, nodes, gives_back: spec.gives_back, forms })
    }

    /// `charge` as a part of a call; `None` for parameters of which there is no shared form.
    pub(super) fn part(&self, charge: &Charge) -> Option<ChargePart> {
        let Form { shared, most_ahead } = match &charge.rule {
            RuleRef::Listed(position) => self.forms.get(*position)?.clone(),
            RuleRef::Own(rule) => form(rule, self.sharing, self.nodes).ok()?,
        };
        let Charge { key, tag, cost, enforcement, .. } = *charge;
        Some(ChargePart {
            limit: Arc::clone(&self.name),
            form: shared,
            key,
            tag,
            cost,
            enforcement,
            most_ahead,
            gives_back: self.gives_back,
        })
    }

    /// Whether nodes decide without asking, as a rule.
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

fn form(rule: &Rule, sharing: Sharing, nodes: u64) -> Result<Form, NotShareable> {
    let whole = || rule.clone();
    let (rule, most_ahead) = match sharing.consistency {
        Consistency::Leased { strict: true } => lowered(rule, nodes).unwrap_or_else(|| (whole(), 0)),
        Consistency::Leased { strict: false } => (whole(), Cost::MAX),
        Consistency::Exact | Consistency::Eventual => (whole(), 0),
    };
    Ok(Form { shared: Arc::new(SharedRule::new(rule, SLOT_LIFETIME)?), most_ahead })
}

/// The rule with as much less at once as `nodes` may hold together, an eighth, and how much each may hold. `None` where
/// that is nothing: then nothing is taken ahead.
fn lowered(rule: &Rule, nodes: u64) -> Option<(Rule, Cost)> {
    const SHARE: u64 = 8;
    let mut arguments = rule.arguments();
    let (name, most) = arguments.iter().find_map(|(name, value)| match value {
        Value::Whole(most) if ["burst", "capacity", "limit"].contains(&name) => Some((name, *most)),
        _ => None,
    })?;
    let each = most.checked_div(nodes.saturating_mul(SHARE))?;
    arguments.set(name, Value::Whole(most.saturating_sub(each.saturating_mul(nodes))));
    let lower = rule.name().build(&arguments).ok()?;
    (each > 0).then_some((lower, each))
}

impl ChargePart {
    pub(super) fn bucket<'a>(&'a self, beside: CallArgument<'a>) -> Bucket<'a> {
        Bucket {
            limit: &self.limit,
            rule: &self.form,
            key: self.key,
            tag: self.tag,
            cost: self.cost,
            enforcement: self.enforcement,
            beside,
        }
    }

    pub(super) fn rule(&self) -> &Rule {
        self.form.rule()
    }

    /// Whether a denial holds until its time has come, whatever else happens, so that it can be repeated without asking.
    pub(super) fn denial_holds(&self) -> bool {
        denial_holds(self.rule(), self.enforcement)
    }
}

/// The name of a slot that no other request of any node has.
pub(super) fn slot_name(node: u64, number: u64) -> String {
    format!("{node:016x}-{number:x}")
}
