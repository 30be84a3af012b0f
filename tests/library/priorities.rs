//! Charges that leave tokens for others, under every algorithm with a headroom: compared step by step with the limit alone.

use proptest::prelude::*;
use tollgate::algorithm::{Decision, Denial, Rule};
use tollgate::charge::{Charge, Charged, Enforcement, Mode, RuleRef};
use tollgate::config;
use tollgate::store::floors::charge_local;
use tollgate::store::local::Binding;
use tollgate::store::{LimitSpec, LocalStore};
use tollgate::units::{LimitKey, Nanos};

/// Rules that admit ten requests at once.
const RULES: [&str; 11] = [
    "algorithm: token_bucket, rate: 3/s, burst: 10",
    "algorithm: leaky_bucket, rate: 3/s, capacity: 10",
    "algorithm: gcra, rate: 7/s, burst: 10",
    "algorithm: fixed_window, limit: 10, window: 1s",
    "algorithm: quota_reset, limit: 10, window: 1s",
    "algorithm: quota_linear, limit: 10, window: 1s",
    "algorithm: sliding_log, limit: 10, window: 1s",
    "algorithm: sliding_window, limit: 10, window: 1s",
    "algorithm: sliding_counters, limit: 10, window: 1s, slots: 4",
    "algorithm: cycle, limit: 10, period: 1s",
    "algorithm: concurrency, limit: 10",
];
const ROOM: u64 = 10;
const START: Nanos = Nanos::from_secs(1_000_000);
const ASKS: Enforcement = Enforcement { consumes: false, ..Enforcement::DEFAULT };

fn rule(text: &str) -> Rule {
    let text = format!("limits: {{ l: {{ {text} }} }}");
    config::load_limits(&text, "f", &|_| None).unwrap().limits[0].rule(None).unwrap().unwrap()
}

/// A store with one key under one rule.
struct OneKey {
    store: LocalStore,
    binding: Binding,
}

impl OneKey {
    fn new(rule: &Rule) -> Self {
        let rules = [rule.clone()];
        let store = LocalStore::new();
        let spec = LimitSpec {
            name: "l",
            algorithm: rule.name(),
            mode: Mode::Sticky,
            key_kind: 0,
            is_reset: false,
            rules: &rules,
            max_keys: 10,
            may_refund: false,
        };
        let binding = store.bind(&[spec]);
        Self { store, binding }
    }

    fn charge(&self, cost: u64, floor: u64, enforcement: Enforcement, now: Nanos) -> Charged {
        let charge = Charge { floor, ..Charge::new(0, RuleRef::Listed(0), LimitKey(7 << 64 | 9), cost, enforcement) };
        let mut batch = [charge];
        let charged = charge_local(&self.store, &self.binding, &mut batch, now);
        assert_eq!(batch[0].floor, floor);
        charged[0]
    }

    fn admits(&self, cost: u64, floor: u64, now: Nanos) -> bool {
        self.charge(cost, floor, ASKS, now).decision.is_admitted()
    }
}

proptest! {
    #[test]
    fn a_floor_denies_what_would_leave_less_and_nothing_else(
        which in 0..RULES.len(),
        floor in 1..ROOM,
        steps in prop::collection::vec((any::<bool>(), 1..4u64, 0..300_000_000u64), 1..60),
    ) {
        let rule = rule(RULES[which]);
        let (shared, plain) = (OneKey::new(&rule), OneKey::new(&rule));
        let mut now = START;
        for (is_low, cost, pause) in steps {
            now = now.saturating_add(Nanos::new(pause));
            let floor = if is_low { floor } else { 0 };
            let (alone, with_floor) = (shared.admits(cost, 0, now), shared.admits(cost + floor, 0, now));
            let left = shared.charge(1, 0, ASKS, now).headroom.remaining.unwrap();
            let charged = shared.charge(cost, floor, Enforcement::DEFAULT, now);
            prop_assert_eq!(charged.decision.is_admitted(), with_floor);
            prop_assert!(alone || !with_floor, "nobody gets more than without a floor");
            match charged.decision {
                Decision::Admit { .. } => {
                    prop_assert!(left >= cost + floor, "{left} {cost} {floor}");
                    let taken = plain.charge(cost, 0, Enforcement::DEFAULT, now);
                    prop_assert!(taken.decision.is_admitted(), "the limit alone admits all that passes");
                    let left = taken.headroom.remaining.map(|left| left.saturating_sub(floor));
                    prop_assert_eq!(charged.headroom.remaining, left, "the floor takes nothing");
                }
                Decision::Deny(Denial::Later { retry_after }) => {
                    let then = now.saturating_add(retry_after);
                    prop_assert!(shared.admits(cost, floor, then));
                    prop_assert!(!shared.admits(cost, floor, then.saturating_sub(Nanos::new(1))));
                }
                Decision::Deny(Denial::Never { max }) => prop_assert!(cost > max && max + floor == ROOM),
                Decision::Deny(Denial::Busy) => {}
            }
        }
    }

    #[test]
    fn a_plan_without_a_floor_gets_the_tokens_that_a_flood_leaves(
        which in 0..RULES.len(),
        floor in 1..ROOM,
        flood in prop::collection::vec((1..4u64, 0..100_000_000u64), 1..60),
    ) {
        let shared = OneKey::new(&rule(RULES[which]));
        let mut now = START;
        for (cost, pause) in flood {
            now = now.saturating_add(Nanos::new(pause));
            shared.charge(cost, floor, Enforcement::DEFAULT, now);
            prop_assert!(shared.admits(floor, 0, now), "the room above the share of the flood is free");
        }
        prop_assert!(shared.charge(floor, 0, Enforcement::DEFAULT, now).decision.is_admitted());
    }
}

#[test]
fn all_limits_of_a_request_are_charged_or_none_with_a_floor_too() {
    let rules = [rule("algorithm: fixed_window, limit: 10, window: 1s")];
    let store = LocalStore::new();
    let spec = |name| LimitSpec {
        name,
        algorithm: rules[0].name(),
        mode: Mode::Sticky,
        key_kind: 0,
        is_reset: false,
        rules: &rules,
        max_keys: 10,
        may_refund: false,
    };
    let binding = store.bind(&[spec("capacity"), spec("customer")]);
    let batch = |floor| {
        [floor, 0].into_iter().enumerate().map(move |(limit, floor)| Charge {
            floor,
            ..Charge::new(limit, RuleRef::Listed(0), LimitKey(7 << 64 | 9), 1, Enforcement::DEFAULT)
        })
    };
    let pass = |floor| {
        let mut batch: Vec<Charge> = batch(floor).collect();
        let charged = charge_local(&store, &binding, &mut batch, START);
        assert_eq!(charged.len(), 2);
        charged.iter().all(|charged| charged.decision.is_admitted())
    };
    assert_eq!((0..9).filter(|_| pass(6)).count(), 4);
    assert_eq!((0..9).filter(|_| pass(0)).count(), 6, "the denied ones took nothing from the other limit");
}
