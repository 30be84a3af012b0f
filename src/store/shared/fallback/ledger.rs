//! Tokens of one key, under one set of parameters, that a gateway admitted without Redis and has not reconciled.

use crate::algorithm::State;
use crate::store::shared::limit::ChargePart;
use crate::units::{Cost, Nanos};

/// The tokens of one key that a gateway admitted without Redis under the parameters of `part`.
pub(super) struct OutageLedger {
    pub(super) part: ChargePart,
    /// The key's state on Redis's clock if only this gateway had charged it since the ledger began, from the usage
    /// known then: time refills old charges.
    alone: Option<State>,
    /// The key's state if all gateways had admitted as much as this one: this gateway gets only its share of the
    /// refill.
    shared: Option<State>,
    /// The highest number of gateways so far.
    nodes: u64,
    /// All tokens that are not yet reconciled.
    pub(super) sum: Cost,
    /// The time on Redis's clock until which the key is denied: its rate has not refilled a request that was admitted, and
    /// its local bucket forgets that sooner.
    pub(super) denied_until: Nanos,
    /// The number of requests that use the local bucket and have not noted their charge yet.
    pub(super) asking: usize,
    /// Whether the local bucket of the key has started.
    pub(super) has_bucket: bool,
}

/// The tokens of one key that have to be reconciled.
pub(in crate::store::shared) struct Due {
    /// The charge to reconcile; its cost is the number of tokens.
    pub(in crate::store::shared) part: ChargePart,
    /// All tokens admitted, of which time may have refilled some.
    sum: Cost,
}

/// When a key was going to be full again on Redis's clock, right after a charge: by `alone`, and by `shared`.
pub(in crate::store::shared) type RefillTimes = [Nanos; 2];

impl OutageLedger {
    /// A ledger of a key of which `used` tokens were used, as far as this gateway knows.
    pub(super) fn new(part: &ChargePart, used: Cost, redis_time: Nanos) -> Self {
        let state = part.rule().debit(None, used, redis_time);
        let (part, denied_until) = (part.clone(), Nanos::ZERO);
        Self { part, alone: state.clone(), shared: state, nodes: 1, sum: 0, denied_until, asking: 0, has_bucket: false }
    }

    /// Records `cost`, which this gateway took as one of `nodes`.
    pub(super) fn add(&mut self, cost: Cost, nodes: u64, redis_time: Nanos) -> RefillTimes {
        self.nodes = self.nodes.max(nodes);
        self.sum = self.sum.saturating_add(cost);
        let rule = self.part.rule();
        self.alone = rule.debit(self.alone.take(), cost, redis_time);
        self.shared = rule.debit(self.shared.take(), cost.saturating_mul(self.nodes), redis_time);
        [&self.alone, &self.shared].map(|state| {
            let headroom = rule.headroom(state.as_ref(), redis_time);
            redis_time.saturating_add(headroom.until_full)
        })
    }

    /// Denies the key until the rate of this gateway's share has refilled `cost`, unless the local bucket, which is full
    /// `until_full` from now, lacks it for as long.
    pub(super) fn deny_until_refilled(&mut self, cost: Cost, until_full: Nanos, redis_time: Nanos) {
        let refill_time = self.refill_time(cost);
        if until_full < refill_time {
            self.denied_until = self.denied_until.max(redis_time).saturating_add(refill_time);
        }
    }

    /// The time in which the rate of this gateway's share refills `cost`.
    fn refill_time(&self, cost: Cost) -> Nanos {
        let policy = self.part.rule().policy();
        let all =
            u128::from(policy.window.unwrap_or_default().get()).saturating_mul(cost.saturating_mul(self.nodes).into());
        Nanos::saturating_from(all.checked_div(policy.quota.into()).unwrap_or_default())
    }

    /// Takes back a `cost` that was recorded; the times are the result of [`Self::add`] for it.
    pub(super) fn take_back(&mut self, cost: Cost, [alone, shared]: RefillTimes, redis_time: Nanos) {
        self.sum = self.sum.saturating_sub(cost);
        self.denied_until = self.denied_until.saturating_sub(self.refill_time(cost));
        let rule = self.part.rule();
        self.alone = self.alone.take().and_then(|state| rule.refund(state, cost, alone, redis_time));
        let by_all = cost.saturating_mul(self.nodes);
        self.shared = self.shared.take().and_then(|state| rule.refund(state, by_all, shared, redis_time));
    }

    /// The tokens that are due at `redis_time`: never more than the key lacks, so none that time has refilled. Time
    /// refills one bucket for all gateways together, so each gateway gets its share of the refill, unless this one
    /// admitted more at once.
    pub(super) fn due(&self, redis_time: Nanos) -> Option<Due> {
        let rule = self.part.rule();
        let quota = rule.policy().quota;
        let used = |state: &Option<State>| {
            let remaining = rule.headroom(state.as_ref(), redis_time).remaining;
            remaining.map_or(quota, |remaining| quota.saturating_sub(remaining))
        };
        let cost = used(&self.alone).max(used(&self.shared).div_ceil(self.nodes.max(1))).min(self.sum);
        let part = ChargePart { cost, ..self.part.clone() };
        (cost > 0 && !rule.holds_slots()).then_some(Due { part, sum: self.sum })
    }

    /// Notes that `due` was reconciled. Returns whether this gateway admitted tokens since.
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
    pub(in crate::store::shared) fn part() -> ChargePart {
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
            enforcement: Enforcement::DEFAULT,
            max_lease: 0,
            may_refund: false,
        }
    }

    /// The due tokens of that bucket, of which `used` were used, after one of three gateways has admitted its third for
    /// `ms` milliseconds.
    fn due_after(used: Cost, ms: u64) -> Cost {
        let at = |ms: u64| Nanos::new((1_000_000 + ms) * 1_000_000);
        let mut owed = OutageLedger::new(&part(), used, at(0));
        for third in 1..=ms / 30 {
            owed.add(1, 3, at(third * 30));
        }
        owed.due(at(ms)).map_or(0, |due| due.part.cost)
    }

    #[test]
    fn the_due_tokens_are_those_that_the_bucket_in_redis_gained_meanwhile() {
        assert_eq!([30, 300, 600].map(|ms| due_after(60, ms)), [1, 10, 20], "all of it, while that fills the bucket");
        assert_eq!([900, 9_000].map(|ms| due_after(60, ms)), [20, 20], "a third of a bucket that has overflowed");
        assert_eq!([300, 9_000].map(|ms| due_after(0, ms)), [1, 1], "it was full, and had no use for the time");
    }
}
