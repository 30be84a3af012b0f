//! Limits that nodes share, as the calls to Redis need them.

use std::sync::Arc;

use crate::algorithm::Rule;
use crate::charge::{Charge, Consistency, Manner, Mode, RuleRef, Sharing, Taken};
use crate::store::LimitSpec;
use crate::store::redis::{Beside, Bucket, Shared, Unshared};
use crate::units::{Cost, LimitKey, Nanos};

/// How long a slot of `concurrency` is held without being renewed: so long a node that is gone keeps its slots.
pub(super) const SLOT_LIFETIME: Nanos = Nanos::from_secs(15);

/// A limit that nodes share.
#[derive(Debug)]
pub struct SharedLimit {
    pub(super) name: Arc<str>,
    pub(super) sharing: Sharing,
    forms: Vec<Arc<Shared>>,
}

/// One limit's part in a call, as something that outlives the request.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) limit: Arc<str>,
    pub(super) form: Arc<Shared>,
    pub(super) key: LimitKey,
    pub(super) tag: LimitKey,
    pub(super) cost: Cost,
    pub(super) manner: Manner,
}

/// Why a rule cannot be shared in this way.
///
/// Errors: what there is no shared form of; and where nodes count by themselves, what does not add up.
pub fn refuse(rule: &Rule, sharing: Sharing) -> Result<(), Unshared> {
    let form = Shared::new(rule.clone(), SLOT_LIFETIME)?;
    let problem = match sharing.consistency {
        Consistency::Exact => return Ok(()),
        Consistency::Leased { .. } if form.adds_up() => return Ok(()),
        Consistency::Eventual if form.adds_up() && !form.is_log() => return Ok(()),
        Consistency::Leased { .. } => "cannot be taken ahead: its decisions hang on more than how much was taken",
        Consistency::Eventual => "cannot be counted apart and added up afterwards",
    };
    let problem = format!("{problem}; use `consistency: exact`");
    Err(Unshared { algorithm: rule.name().as_str(), problem })
}

impl SharedLimit {
    /// The shared side of a limit; `None` where it is sticky.
    pub(super) fn new(spec: &LimitSpec<'_>) -> Option<Self> {
        let Mode::Shared(sharing) = spec.mode else { return None };
        let forms = spec.rules.iter().map(form).collect::<Result<_, _>>().ok()?;
        Some(Self { name: spec.name.into(), sharing, forms })
    }

    /// `charge` as a part of a call; `None` for parameters of which there is no shared form.
    pub(super) fn part(&self, charge: &Charge) -> Option<Part> {
        let form = match &charge.rule {
            RuleRef::Listed(position) => Arc::clone(self.forms.get(*position)?),
            RuleRef::Own(rule) => form(rule).ok()?,
        };
        let Charge { key, tag, cost, manner, .. } = *charge;
        Some(Part { limit: Arc::clone(&self.name), form, key, tag, cost, manner })
    }
}

fn form(rule: &Rule) -> Result<Arc<Shared>, Unshared> {
    Shared::new(rule.clone(), SLOT_LIFETIME).map(Arc::new)
}

impl Part {
    pub(super) fn bucket<'a>(&'a self, beside: Beside<'a>) -> Bucket<'a> {
        Bucket {
            limit: &self.limit,
            rule: &self.form,
            key: self.key,
            tag: self.tag,
            cost: self.cost,
            manner: self.manner,
            beside,
        }
    }

    pub(super) fn rule(&self) -> &Rule {
        self.form.rule()
    }

    /// Whether a denial holds until its time has come, whatever else happens, so that it can be repeated without asking.
    pub(super) fn denial_holds(&self) -> bool {
        !self.rule().holds() && !self.rule().denials_count() && !self.manner.counts_denied
    }
}

/// The name of a slot that no other request of any node has.
pub(super) fn slot_name(node: u64, number: u64) -> String {
    format!("{node:016x}-{number:x}")
}

/// The number of the slot that a charge took.
pub(super) const fn slot_of(charge: &Charge) -> Option<u64> {
    match charge.taken {
        Taken::Slot(number) => Some(number),
        _ => None,
    }
}
