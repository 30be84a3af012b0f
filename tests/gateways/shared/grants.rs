//! Grants of tokens to keys that Redis keeps.

use std::sync::Arc;

use tollgate::algorithm::{AlgorithmName, Value};
use tollgate::charge::{Charge, Consistency, Enforcement, Sharing};
use tollgate::store::Amendment;
use tollgate::units::{LimitKey, Nanos};

use crate::node::{gcra, in_an_hour, one, rule};
use crate::shared::World;
use crate::shared::redis::{Redis, RedisState};
use crate::world::ms;

#[test]
fn a_grant_that_fails_keeps_the_tokens_that_are_not_synced() {
    let sharing = Sharing { consistency: Consistency::Eventual, ..Sharing::default() };
    let mut world = World::new(ms(1), Redis::new(1, (1, 2), vec![Nanos::ZERO]));
    for number in 0..2 {
        world.start(number, 7 + number as u64, ms(20), &[(in_an_hour(AlgorithmName::FixedWindow, 10), sharing)]);
    }
    world.pass(Nanos::SECOND);
    assert!(world.admits(0, 1));
    world.environment.network.serve(0, RedisState::Stopped, world.now);
    let node = Arc::clone(&world.gateway(0).node);
    let granted = world.run_on(0, async move {
        let requests = async {
            for _ in 0..4 {
                assert!(node.admits(0, LimitKey(1)).await);
            }
        };
        let charge = one(0, LimitKey(1));
        let grants = node.store.amend(&node.binding, &charge, Amendment::Grant(1), node.clock.now());
        tokio::join!(grants, requests).0
    });
    assert!(granted.is_err(), "{granted:?}");
    world.environment.network.serve(0, RedisState::Up, world.now);
    world.wait_until_reconciled();
    world.pass(Nanos::SECOND);
    let node = Arc::clone(&world.gateway(1).node);
    assert_eq!(world.run_on(1, async move { node.left(0, LimitKey(1)).await }), 5);
}

#[test]
fn a_grant_to_a_key_in_debt_gives_back_what_was_asked_for() {
    use AlgorithmName::{Cycle, SlidingCounters, SlidingLog, SlidingWindow};
    let hourly = rule(Cycle, &[("limit", Value::Whole(10)), ("period", Value::Duration(Nanos::from_secs(3600)))]);
    let mut rules = vec![gcra(10), hourly];
    rules.extend([SlidingWindow, SlidingCounters, SlidingLog].map(|algorithm| in_an_hour(algorithm, 10)));
    let limits: Vec<_> = rules.into_iter().map(|rule| (rule, Sharing::default())).collect();
    let mut world = World::new(ms(1), Redis::new(1, (1, 2), vec![Nanos::ZERO]));
    world.start(0, 7, ms(50), &limits);
    world.pass(Nanos::SECOND);
    for (limit, (rule, _)) in limits.iter().enumerate() {
        let node = Arc::clone(&world.gateway(0).node);
        let left = world.run_on(0, async move {
            let charge = one(limit, LimitKey(1));
            for cost in [9, 6] {
                let enforcement = Enforcement { counts_denied: true, ..Enforcement::DEFAULT };
                node.charge(&mut [Charge { cost, enforcement, ..charge.clone() }]).await;
            }
            node.store.amend(&node.binding, &charge, Amendment::Grant(8), node.clock.now()).await.unwrap();
            node.left(limit, LimitKey(1)).await
        });
        assert_eq!(left, 3, "{}: 15 of 10 were used", rule.name().as_str());
    }
}
