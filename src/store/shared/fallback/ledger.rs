//! Tokens of one key that a node admitted without Redis and has not reconciled.

use crate::algorithm::State;
use crate::store::shared::limit::ChargePart;
use crate::units::{Cost, Nanos};

/// What a node admitted of one key.
pub(super) struct OutageLedger {
    pub(super) part: ChargePart,
    /// Identifies its bucket among those that were reconciled before.
    pub(super) generation: u64,
    /// The key as if nobody else had been there, on Redis's clock, from what was known when it began: time makes good what is
    /// long ago.
    alone: Option<State>,
    /// The key as if all nodes had admitted as much: time makes good for this one its share only.
    shared: Option<State>,
    /// How many nodes there are then.
    nodes: u64,
    /// All tokens that are not reconciled.
    pub(super) sum: Cost,
    /// Requests that have its bucket and have not noted yet what they took from it.
    pub(super) asking: usize,
}

/// The tokens of one key that have to be reconciled.
pub(in crate::store::shared) struct Due {
    /// So many tokens.
    pub(in crate::store::shared) part: ChargePart,
    /// All that was admitted, some of which time may have made good.
    sum: Cost,
}

/// When a key was going to be whole again on Redis's clock, as seen right after a charge: alone, and shared.
pub(in crate::store::shared) type MadeGood = [Nanos; 2];

impl OutageLedger {
    /// Of a key of which so much was `used` when Redis was last heard of.
    pub(super) fn new(part: &ChargePart, generation: u64, used: Cost, theirs: Nanos) -> Self {
        let state = part.rule().debit(None, used, theirs);
        Self { part: part.clone(), generation, alone: state.clone(), shared: state, nodes: 1, sum: 0, asking: 0 }
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

    /// What is left of it at `theirs`: never more than is missing from the key, so nothing that time has made good. Time fills
    /// one bucket only for all nodes together, so that each takes its share of that, unless it admitted more at once.
    pub(super) fn due(&self, theirs: Nanos) -> Option<Due> {
        let rule = self.part.rule();
        let quota = rule.policy().quota;
        let used = |state: &Option<State>| {
            let remaining = rule.headroom(state.as_ref(), theirs).remaining;
            remaining.map_or(quota, |remaining| quota.saturating_sub(remaining))
        };
        let cost = used(&self.alone).max(used(&self.shared).div_ceil(self.nodes.max(1))).min(self.sum);
        let part = ChargePart { cost, ..self.part.clone() };
        (cost > 0 && !rule.holds()).then_some(Due { part, sum: self.sum })
    }

    /// Notes that `due` was reconciled. Whether tokens were admitted since.
    pub(super) fn settle(&mut self, due: &Due) -> bool {
        self.sum = self.sum.saturating_sub(due.sum);
        self.sum > 0
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::algorithm::{AlgorithmName, Arguments, Value};
    use crate::charge::Enforcement;
    use crate::store::redis::SharedRule;
    use crate::units::{LimitKey, Rate};

    /// A token of a bucket of 60 that fills in 600 ms.
    pub(in crate::store::shared::fallback) fn part() -> ChargePart {
        let mut arguments = Arguments::default();
        arguments.set("rate", Value::Rate(Rate::new(100, Nanos::SECOND).unwrap()));
        arguments.set("burst", Value::Whole(60));
        let rule = AlgorithmName::Gcra.build(&arguments).unwrap();
        ChargePart {
            limit: "guard".into(),
            form: Arc::new(SharedRule::new(rule, Nanos::SECOND).unwrap()),
            key: LimitKey(1),
            tag: LimitKey(1),
            cost: 1,
            enforcement: Enforcement::USUAL,
            most_ahead: 0,
            gives_back: false,
        }
    }

    /// What is due of that bucket, from which so much was used, and of which one of three nodes admits its third for so many
    /// milliseconds.
    fn due_after(used: Cost, ms: u64) -> Cost {
        let at = |ms: u64| Nanos::new((1_000_000 + ms) * 1_000_000);
        let mut owed = OutageLedger::new(&part(), 1, used, at(0));
        for third in 1..=ms / 30 {
            owed.add(1, 3, at(third * 30));
        }
        owed.due(at(ms)).map_or(0, |due| due.part.cost)
    }

    #[test]
    fn what_is_handed_in_is_what_the_bucket_in_redis_gained_meanwhile() {
        assert_eq!([30, 300, 600].map(|ms| due_after(60, ms)), [1, 10, 20], "all of it, while that fills the bucket");
        assert_eq!([900, 9_000].map(|ms| due_after(60, ms)), [20, 20], "a third of a bucket that has overflowed");
        assert_eq!([300, 9_000].map(|ms| due_after(0, ms)), [1, 1], "it was full, and had no use for the time");
    }
}
