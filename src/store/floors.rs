//! Charges that leave tokens for others: a charge with a floor passes if one that costs the floor more would pass.
//!
//! A question asks this in the same batch, before the charge and of the same bucket. So the places that keep states
//! know nothing of floors, and decide by the rule of the limit's algorithm as always.

use smallvec::SmallVec;

use crate::algorithm::{Decision, Denial};
use crate::charge::{AllCharged, Charge, Charged, Enforcement};
use crate::store::local::{Binding, LocalStore};
use crate::units::Nanos;

/// [`LocalStore::charge`] of charges with floors or without.
pub fn charge_local(store: &LocalStore, binding: &Binding, batch: &mut [Charge], now: Nanos) -> AllCharged {
    match BatchWithFloors::of(batch) {
        None => store.charge(binding, batch, now),
        Some(mut floors) => {
            let charged = store.charge(binding, floors.charges(), now);
            floors.answer(batch, &charged)
        }
    }
}

/// A batch, with a question before each charge that has a floor.
pub(super) struct BatchWithFloors(SmallVec<[Charge; 4]>);

impl BatchWithFloors {
    /// `batch` with a question before each charge that has a floor; `None` if no charge has one.
    pub(super) fn of(batch: &[Charge]) -> Option<Self> {
        if batch.iter().all(|charge| charge.floor == 0) {
            return None;
        }
        let mut all = SmallVec::with_capacity(batch.len().saturating_mul(2));
        for charge in batch {
            if charge.floor > 0 {
                let enforcement = Enforcement { consumes: false, counts_denied: false, ..charge.enforcement };
                all.push(Charge { cost: charge.cost.saturating_add(charge.floor), enforcement, ..charge.clone() });
            }
            all.push(Charge { floor: 0, ..charge.clone() });
        }
        Some(Self(all))
    }

    /// The charges to make, questions included.
    pub(super) fn charges(&mut self) -> &mut [Charge] {
        &mut self.0
    }

    /// The position in `batch` of the charge or question at `position` in this one.
    pub(super) fn position(&self, batch: &[Charge], position: usize) -> usize {
        let places = batch.iter().enumerate();
        let mut places = places.flat_map(|(place, charge)| [Some(place), (charge.floor > 0).then_some(place)]);
        places.by_ref().flatten().nth(position).unwrap_or_default()
    }

    /// The results for `batch`, given those of the charges here (`charged`). Notes in `batch` where each charge was made.
    pub(super) fn answer(self, batch: &mut [Charge], charged: &[Charged]) -> AllCharged {
        let mut answers = self.0.into_iter().zip(charged);
        let mut all = AllCharged::new();
        for charge in batch {
            let floor = charge.floor;
            let asked = (floor > 0).then(|| answers.next()).flatten().map(|(_, charged)| charged.decision);
            let Some((made, charged)) = answers.next() else { break };
            *charge = Charge { floor, ..made };
            all.push(if floor > 0 { above(*charged, asked, floor) } else { *charged });
        }
        all
    }
}

/// The result of a charge above its `floor`, where its question had the decision `asked`.
fn above(Charged { mut decision, mut headroom }: Charged, asked: Option<Decision>, floor: u64) -> Charged {
    headroom.remaining = headroom.remaining.map(|remaining| remaining.saturating_sub(floor));
    match asked {
        Some(Decision::Deny(Denial::Never { max })) => decision = Decision::never(max.saturating_sub(floor)),
        Some(Decision::Deny(denial)) => {
            decision = Decision::Deny(denial);
            if let (Denial::Later { retry_after }, Some(0)) = (denial, headroom.remaining) {
                headroom.until_more = retry_after;
            }
        }
        Some(Decision::Admit { .. }) | None => {}
    }
    Charged { decision, headroom }
}
