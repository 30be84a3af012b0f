//! Costs that responses tell, while Redis loses keys or refuses calls.

use std::sync::Arc;

use tollgate::algorithm::{AlgorithmName, Value};
use tollgate::charge::{Charge, Consistency, OnStoreDown, Refund, Sharing};
use tollgate::units::{Cost, LimitKey, Nanos};

use super::World;
use super::redis::{Redis, RedisState};
use crate::node::{gcra, in_an_hour, one, rule};
use crate::world::ms;

const LIMIT: u64 = 1_000;
const USED: Cost = 400;
const RESERVE: Cost = 10;

/// What turns out when a response comes: the request costs less than its reserve, or more.
#[derive(Clone, Copy, Debug)]
enum Correction {
    Refund(Cost),
    Debit(Cost),
}

impl World {
    /// Charges `cost` at gateway 0, which has to admit it; returns the charge as one to refund.
    pub(super) fn charge(&mut self, cost: Cost) -> Refund {
        let node = Arc::clone(&self.gateway(0).node);
        self.run_on(0, async move {
            let (mut batch, now) = ([Charge { cost, ..one(0, LimitKey(1)) }], node.clock.now());
            let charged = node.charge(&mut batch).await.charged[0];
            assert!(charged.decision.is_admitted());
            let [charge] = batch;
            Refund::of(charge, charged.headroom, now)
        })
    }

    fn correct(&mut self, Refund { charge, full_at }: Refund, correction: Correction) {
        let node = Arc::clone(&self.gateway(0).node);
        self.run_on(0, async move {
            let (store, binding, now) = (&node.store, &node.binding, node.clock.now());
            match correction {
                Correction::Refund(cost) => {
                    store.refund(binding, &[Refund { charge: Charge { cost, ..charge }, full_at }], now)
                }
                Correction::Debit(cost) => store.debit(binding, &[Charge { cost, ..charge }], now),
            }
        });
    }
}

#[test]
fn a_correction_that_comes_first_after_a_loss_forgets_no_usage() {
    use AlgorithmName::{Cycle, FixedWindow, QuotaReset, SlidingCounters, SlidingLog, SlidingWindow};
    let hour = Value::Duration(Nanos::from_secs(3600));
    let cycle = rule(Cycle, &[("limit", Value::Whole(LIMIT)), ("period", hour)]);
    let mut rules = vec![gcra(LIMIT), cycle];
    rules.extend(
        [FixedWindow, QuotaReset, SlidingWindow, SlidingLog, SlidingCounters].map(|name| in_an_hour(name, LIMIT)),
    );
    for consistency in [Consistency::Exact, Consistency::Eventual] {
        let sharing = Sharing { consistency, ..Sharing::default() };
        let counts =
            |name| [Cycle, SlidingLog, SlidingCounters].contains(&name) && consistency == Consistency::Eventual;
        for limit in rules.iter().filter(|rule| !counts(rule.name())) {
            for (correction, told) in [(Correction::Refund(7), 3), (Correction::Debit(50), 60)] {
                let mut world = World::new(ms(1), Redis::new(1, (1, 2), vec![Nanos::ZERO]));
                world.start(0, 7, ms(50), &[(limit.clone(), sharing)]);
                world.pass(Nanos::SECOND);
                world.charge(USED);
                let running = world.charge(RESERVE);
                world.pass(Nanos::SECOND);
                world.environment.forget();
                world.correct(running, correction);
                world.pass(Nanos::SECOND);
                // a log is restored after the next charge
                world.charge(1);
                world.pass(Nanos::SECOND);
                let node = Arc::clone(&world.gateway(0).node);
                let left = world.run_on(0, async move { node.left(0, LimitKey(1)).await });
                let described = (limit.describe(), consistency, correction);
                assert_eq!(left, LIMIT - USED - told - 1, "{described:?}");
            }
        }
    }
}

#[test]
fn a_debit_that_redis_refuses_is_reconciled() {
    const LIMIT: u64 = 100;
    let sharing = Sharing { on_store_down: OnStoreDown::Local, ..Sharing::default() };
    for is_outage in [false, true] {
        let mut world = World::new(ms(1), Redis::new(1, (1, 2), vec![Nanos::ZERO]));
        world.start(0, 7, ms(50), &[(in_an_hour(AlgorithmName::FixedWindow, LIMIT), sharing)]);
        world.pass(Nanos::SECOND);
        let running = world.charge(RESERVE);
        world.environment.network.serve(0, RedisState::OutOfMemory, world.now);
        world.correct(running, Correction::Debit(50));
        world.pass(ms(10));
        let meanwhile = if is_outage { (0..LIMIT).filter(|_| world.admits(0, 1)).count() as u64 } else { 0 };
        assert!(!is_outage || meanwhile == LIMIT - RESERVE - 50, "{meanwhile} in the outage");
        world.environment.network.serve(0, RedisState::Up, world.now);
        world.pass(Nanos::SECOND);
        world.wait_until_reconciled();
        let node = Arc::clone(&world.gateway(0).node);
        let left = world.run_on(0, async move { node.left(0, LimitKey(1)).await });
        assert_eq!(left, LIMIT - RESERVE - 50 - meanwhile);
    }
}
