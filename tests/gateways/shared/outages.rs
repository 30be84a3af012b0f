//! What gateways count of a key before, in and after outages of Redis.

use std::sync::Arc;

use tollgate::algorithm::{AlgorithmName, Decision, Denial, Value};
use tollgate::charge::{Charge, Consistency, Enforcement, OnStoreDown, RuleRef, Sharing};
use tollgate::units::{LimitKey, Nanos, Rate};

use super::redis::{Redis, RedisState};
use super::{GATEWAYS, World};
use crate::node::{MANY, in_an_hour, one, rule};
use crate::world::ms;

const EVENTUAL: Sharing = Sharing { consistency: Consistency::Eventual, on_store_down: OnStoreDown::Divide };

/// The used tokens of key 1, as a gateway sees them that asks Redis.
fn used(world: &mut World, gateway: usize, limit: u64) -> u64 {
    let node = Arc::clone(&world.gateway(gateway).node);
    limit - world.run_on(gateway, async move { node.left(0, LimitKey(1)).await })
}

/// Two gateways that count, the first of which admits requests while `fails` disturbs it, and until it is whole again.
/// Returns the numbers of tokens that it admitted and that Redis counts.
fn admitted_and_counted(fails: impl FnOnce(&mut World) -> u64) -> [u64; 2] {
    let mut world = World::new(ms(1), Redis::new(1, (1, 2), vec![Nanos::ZERO]));
    for number in 0..2 {
        world.start(number, 7 + number as u64, ms(50), &[(in_an_hour(AlgorithmName::FixedWindow, MANY), EVENTUAL)]);
    }
    world.pass(Nanos::SECOND);
    let admitted = world.passed(1) + fails(&mut world) + world.passed(1);
    world.wait_until_reconciled();
    world.pass(Nanos::from_secs(2));
    [admitted, used(&mut world, 1, MANY)]
}

#[test]
fn a_redis_that_hangs_counts_each_token_once() {
    for pause in 1..=8 {
        let [admitted, counted] = admitted_and_counted(|world| {
            world.environment.network.serve(0, RedisState::Hanging, world.now);
            let admitted = world.passed(pause);
            world.environment.network.serve(0, RedisState::Up, world.now);
            admitted
        });
        assert_eq!(admitted, counted, "{pause} s");
    }
}

#[test]
fn a_partition_loses_the_tokens_of_one_sync_at_most() {
    // one request comes every 10 ms, and a sync every 100 ms
    for pause in 1..=8 {
        let [admitted, counted] = admitted_and_counted(|world| {
            world.environment.network.part(0);
            let admitted = world.passed(pause);
            world.environment.network.heal(0, world.now);
            admitted
        });
        assert!((admitted - 11..=admitted).contains(&counted), "{admitted} were admitted, {counted} count: {pause} s");
    }
}

#[test]
fn a_redis_that_ends_without_a_reply_to_a_sync_and_starts_empty_gets_the_totals_back() {
    let [admitted, counted] = admitted_and_counted(|world| {
        world.environment.network.serve(0, RedisState::Hanging, world.now);
        let admitted = world.passed(1);
        world.pass(ms(150));
        world.environment.network.serve(0, RedisState::Stopped, world.now);
        world.pass(ms(5));
        world.environment.forget();
        world.environment.network.serve(0, RedisState::Up, world.now);
        admitted
    });
    assert!((admitted - 11..=admitted).contains(&counted), "{admitted} were admitted, {counted} count");
}

#[test]
fn a_key_that_is_spent_stays_spent_when_its_limit_changes_in_an_outage() {
    let minute = Value::Duration(Nanos::from_secs(60));
    for (algorithm, other) in [
        (AlgorithmName::FixedWindow, in_an_hour(AlgorithmName::FixedWindow, 12)),
        (AlgorithmName::SlidingLog, in_an_hour(AlgorithmName::SlidingLog, 12)),
        (
            AlgorithmName::FixedWindow,
            rule(AlgorithmName::FixedWindow, &[("limit", Value::Whole(12)), ("window", minute)]),
        ),
    ] {
        let sharing = Sharing { on_store_down: OnStoreDown::Local, ..Sharing::default() };
        let mut world = World::new(ms(1), Redis::new(1, (1, 2), vec![Nanos::ZERO]));
        world.start(0, 7, ms(50), &[(in_an_hour(algorithm, 10), sharing)]);
        world.pass(Nanos::SECOND);
        assert_eq!((0..12).filter(|_| world.admits(0, 1)).count(), 10);
        world.environment.network.serve(0, RedisState::Stopped, world.now);
        let (node, described) = (Arc::clone(&world.gateway(0).node), other.describe());
        let other = RuleRef::Own(Arc::new(other));
        let admitted = world.run_on(0, async move {
            let mut admitted = 0;
            for _ in 0..12 {
                let mut batch = [Charge { rule: other.clone(), ..one(0, LimitKey(1)) }];
                admitted += usize::from(node.charge(&mut batch).await.charged[0].decision.is_admitted());
            }
            admitted
        });
        assert_eq!(admitted, 2, "{described}");
    }
}

#[test]
fn a_key_takes_one_place_in_memory_however_many_outages_there_are() {
    let mut world = World::new(ms(1), Redis::new(1, (1, 2), vec![Nanos::ZERO]));
    world.start(0, 7, ms(50), &[(in_an_hour(AlgorithmName::FixedWindow, 100), Sharing::default())]);
    world.pass(Nanos::SECOND);
    for outage in 1..=4 {
        world.environment.network.serve(0, RedisState::Stopped, world.now);
        assert!((0..8).all(|_| world.admits(0, 1)));
        assert_eq!(world.gateway(0).node.keys(0), 1);
        world.environment.network.serve(0, RedisState::Up, world.now);
        world.wait_until_reconciled();
        assert_eq!(used(&mut world, 0, 100), outage * 8, "what an outage left is counted once");
    }
}

#[test]
fn a_request_that_is_refused_without_redis_counts_under_no_limit() {
    let hourly = in_an_hour(AlgorithmName::FixedWindow, 100);
    let [denying, dividing] =
        [OnStoreDown::Deny, OnStoreDown::Divide].map(|on_store_down| Sharing { on_store_down, ..Sharing::default() });
    let mut world = World::new(ms(1), Redis::new(1, (1, 2), vec![Nanos::ZERO, Nanos::ZERO]));
    world.start(0, 7, ms(50), &[(hourly.clone(), dividing), (hourly, denying)]);
    world.pass(Nanos::SECOND);
    // the first server, which has the key of the first limit, goes on
    world.environment.network.serve(1, RedisState::Stopped, world.now);
    let enforcement = Enforcement { counts_denied: true, ..Enforcement::DEFAULT };
    for order in [[0, 1], [1, 0]] {
        let node = Arc::clone(&world.gateway(0).node);
        let mut batch = order.map(|limit| Charge { enforcement, ..one(limit, LimitKey(2 + limit as u128)) });
        let receipt = world.run_on(0, async move { node.charge(&mut batch).await });
        assert_eq!(receipt.failed_closed, Some(order[1]));
    }
    world.environment.network.serve(1, RedisState::Up, world.now);
    world.wait_until_reconciled();
    world.pass(Nanos::SECOND);
    let node = Arc::clone(&world.gateway(0).node);
    let left = world.run_on(0, async move { [node.left(0, LimitKey(2)).await, node.left(1, LimitKey(3)).await] });
    assert_eq!(left, [100, 100]);
}

#[test]
fn gateways_with_less_than_a_request_each_admit_no_more_than_the_rate() {
    const SECONDS: u64 = 20;
    let window = Value::Duration(Nanos::from_secs(2));
    let in_two_seconds = |name, limit| rule(name, &[("limit", Value::Whole(limit)), ("window", window.clone())]);
    let rate = Value::Rate(Rate::new(5, Nanos::SECOND).unwrap());
    for (limit, cost) in [
        (in_two_seconds(AlgorithmName::FixedWindow, 2), 1),
        (in_two_seconds(AlgorithmName::FixedWindow, 10), 10),
        (in_two_seconds(AlgorithmName::QuotaReset, 10), 10),
        (in_two_seconds(AlgorithmName::SlidingLog, 10), 10),
        (in_two_seconds(AlgorithmName::SlidingWindow, 10), 10),
        (rule(AlgorithmName::Gcra, &[("rate", rate), ("burst", Value::Whole(10))]), 10),
    ] {
        let mut world = World::new(ms(1), Redis::new(1, (1, 2), vec![Nanos::ZERO]));
        for number in 0..GATEWAYS {
            world.start(number, 7 + number as u64, ms(50), &[(limit.clone(), Sharing::default())]);
        }
        world.pass(Nanos::SECOND);
        world.environment.network.serve(0, RedisState::Stopped, world.now);
        let (end, mut admitted, mut retry_at) =
            (world.now.saturating_add(Nanos::from_secs(SECONDS)), 0, [None; GATEWAYS]);
        while world.now < end {
            for (gateway, retry_at) in retry_at.iter_mut().enumerate() {
                let (node, now) = (Arc::clone(&world.gateway(gateway).node), world.now);
                let mut batch = [Charge { cost, ..one(0, LimitKey(1)) }];
                let decision = world.run_on(gateway, async move { node.charge(&mut batch).await.charged[0].decision });
                match decision {
                    Decision::Admit { .. } => (admitted, *retry_at) = (admitted + 1, None),
                    Decision::Deny(Denial::Later { retry_after }) => {
                        let at = retry_at.get_or_insert(now.saturating_add(retry_after));
                        assert!(now < at.saturating_add(ms(5)), "{}: denied after the retry time", limit.describe());
                    }
                    Decision::Deny(denial) => panic!("{}: {denial:?}", limit.describe()),
                }
            }
            world.pass(ms(20));
        }
        // each gateway has its first request at once
        let by_rate = SECONDS * limit.policy().quota / 2 / cost;
        assert!(admitted <= by_rate + GATEWAYS as u64, "{}: {admitted} of {by_rate}", limit.describe());
        assert!(admitted >= by_rate / 2, "{}: {admitted} of {by_rate}", limit.describe());
    }
}
