//! What a node admitted of one key by itself, until it is handed in.

use crate::algorithm::State;
use crate::store::shared::limit::Part;
use crate::units::{Cost, Nanos};

/// What a node admitted of one key.
pub(super) struct Owed {
    pub(super) part: Part,
    /// Tells its bucket from those that were handed in before.
    pub(super) round: u64,
    /// The key as if nobody else had been there, on Redis's clock: time makes good what is long ago.
    alone: Option<State>,
    /// The key as if all nodes had admitted as much: time makes good for this one its share only.
    shared: Option<State>,
    /// How many nodes there are then.
    nodes: u64,
    /// All of it.
    pub(super) sum: Cost,
}

/// What is to be handed in of one key.
pub(in crate::store::shared) struct Due {
    /// So many tokens.
    pub(in crate::store::shared) part: Part,
    /// All that was admitted, much of which time has made good.
    sum: Cost,
}

/// When a key was going to be whole again on Redis's clock, as seen right after a charge: alone, and shared.
pub(in crate::store::shared) type MadeGood = [Nanos; 2];

impl Owed {
    pub(super) fn new(part: &Part, round: u64) -> Self {
        Self { part: part.clone(), round, alone: None, shared: None, nodes: 1, sum: 0 }
    }

    /// Notes that `cost` was taken as a share of one of `nodes`.
    pub(super) fn add(&mut self, cost: Cost, nodes: u64, theirs: Nanos) -> MadeGood {
        self.nodes = self.nodes.max(nodes);
        self.sum = self.sum.saturating_add(cost);
        let rule = self.part.rule();
        self.alone = rule.debit(self.alone.take(), cost, theirs);
        self.shared = rule.debit(self.shared.take(), cost.saturating_mul(self.nodes), theirs);
        [&self.alone, &self.shared].map(|state| {
            let headroom = rule.headroom(state.as_ref(), theirs);
            theirs.saturating_add(headroom.until_full)
        })
    }

    /// Notes that `cost` of a charge was not taken after all; the times are those that [`Self::add`] told of it.
    pub(super) fn take_back(&mut self, cost: Cost, [alone, shared]: MadeGood, theirs: Nanos) {
        self.sum = self.sum.saturating_sub(cost);
        let rule = self.part.rule();
        self.alone = self.alone.take().and_then(|state| rule.refund(state, cost, alone, theirs));
        let by_all = cost.saturating_mul(self.nodes);
        self.shared = self.shared.take().and_then(|state| rule.refund(state, by_all, shared, theirs));
    }

    /// What is left of it at `theirs`: never more than a whole bucket, and nothing that time has made good. Time makes good
    /// one bucket only for all nodes together, so that each takes its share of that, unless it admitted more at once.
    pub(super) fn due(&self, theirs: Nanos) -> Option<Due> {
        let rule = self.part.rule();
        let quota = rule.policy().quota;
        let used = |state: &Option<State>| {
            let remaining = rule.headroom(state.as_ref(), theirs).remaining;
            remaining.map_or(quota, |remaining| quota.saturating_sub(remaining))
        };
        let cost = used(&self.alone).max(used(&self.shared).div_ceil(self.nodes.max(1))).min(self.sum);
        let part = Part { cost, ..self.part.clone() };
        (cost > 0 && !rule.holds()).then_some(Due { part, sum: self.sum })
    }

    /// What was admitted since `due` was, which is handed in by now; `None` if nothing.
    pub(super) fn since(&self, due: &Due, theirs: Nanos) -> Option<Self> {
        let since = self.sum.saturating_sub(due.sum);
        let mut rest = Self::new(&self.part, self.round);
        rest.add(since, self.nodes, theirs);
        (since > 0).then_some(rest)
    }
}
