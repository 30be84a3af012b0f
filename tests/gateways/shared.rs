//! Gateways that share limits in a Redis, in virtual time.

mod corrections;
mod counts;
mod data;
mod grants;
mod histories;
mod leases;
mod outages;
mod redis;

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use tollgate::algorithm::{AlgorithmName, Rule, Value};
use tollgate::charge::{Charge, Consistency, Enforcement, OnStoreDown, Refund, RuleRef, Sharing};
use tollgate::redis_client::{Credentials, Servers};
use tollgate::store::SharedStore;
use tollgate::store::shared::{BreakerState, StoreSettings};
use tollgate::units::{LimitKey, Nanos, Rate};

use crate::node::{Node, begun, in_an_hour, one, rule};
use crate::shared::redis::{Redis, RedisState};
use crate::world::{self, Gateway, ms};

type World = world::World<Redis>;

/// The number of gateways, which each of them has in its settings.
const GATEWAYS: usize = 3;

impl World {
    /// Starts a gateway with its limits in Redis.
    fn start(&mut self, number: usize, id: u64, timeout: Nanos, limits: &[(Rule, Sharing)]) -> &Gateway {
        let settings = StoreSettings {
            servers: Servers::at("redis", 6379),
            credentials: Credentials::default(),
            prefix: "t".to_owned(),
            timeout,
            sync_every: ms(100),
            nodes: Some(GATEWAYS as u64),
            key_secret: None,
        };
        let network = Arc::clone(&self.environment.network);
        let gateway = self.add(number, |clock| {
            let links = (network.link((number, 0), clock), network.link((number, 1), clock));
            let shared = SharedStore::reached_over(links, (id, id), settings, Arc::clone(clock) as _, Box::new(|_| {}));
            Node::with_redis(shared, limits, Arc::clone(clock) as _)
        });
        let node = Arc::clone(&gateway.node);
        gateway.spawn(async move { node.store.shared().unwrap().run().await });
        gateway
    }

    fn admits(&mut self, gateway: usize, key: u128) -> bool {
        let node = Arc::clone(&self.gateway(gateway).node);
        self.run_on(gateway, async move { node.admits(0, LimitKey(key)).await })
    }

    /// The number of requests for key 1 that gateway 0 admits in this time, of one every 10 ms.
    fn passed(&mut self, seconds: u64) -> u64 {
        let until = self.now.saturating_add(Nanos::from_secs(seconds));
        let mut passed = 0;
        while self.now < until {
            passed += u64::from(self.admits(0, 1));
            self.pass(ms(10));
        }
        passed
    }

    /// Waits until gateway 0 uses Redis again, and has reconciled all tokens.
    fn wait_until_reconciled(&mut self) {
        let is_reconciled = |world: &mut Self| {
            let report = world.gateway(0).node.store.shared().unwrap().report();
            report.breaker == BreakerState::Closed && report.unsynced == 0
        };
        assert!(self.wait_until(Nanos::from_secs(60), is_reconciled));
    }
}

/// 10 requests at once, and 10 per second.
fn ten_per_second() -> Rule {
    let rate = Rate::new(10, Nanos::SECOND).unwrap();
    rule(AlgorithmName::Gcra, &[("rate", Value::Rate(rate)), ("burst", Value::Whole(10))])
}

#[test]
fn redis_is_told_of_a_slot_taken_after_a_failed_call_before_it_is_asked_for_another() {
    let slots = rule(AlgorithmName::Concurrency, &[("limit", Value::Whole(1))]);
    let mut world = World::new(ms(1), Redis::new(1, (1, 2), vec![Nanos::ZERO]));
    world.start(0, 7, ms(50), &[(slots, Sharing::default())]);
    world.pass(Nanos::SECOND);
    world.environment.network.serve(0, RedisState::Stopped, world.now);
    assert!(world.admits(0, 1), "the gateway decides by its share");
    world.environment.network.serve(0, RedisState::Up, world.now);
    assert!(!world.admits(0, 1), "the slot is held");
    assert!(world.admits(0, 2), "of another key none is");
}

#[test]
fn a_denial_ends_by_the_clock_of_the_server_that_has_the_key() {
    let rate = Rate::new(1, Nanos::SECOND).unwrap();
    let limit = rule(AlgorithmName::Gcra, &[("rate", Value::Rate(rate)), ("burst", Value::Whole(1))]);
    let ahead = vec![Nanos::ZERO, Nanos::from_secs(60)];
    let mut world = World::new(ms(1), Redis::new(1, (1, 2), ahead));
    world.start(0, 7, ms(50), &[(limit, Sharing::default())]);
    world.pass(Nanos::SECOND);
    // the first server has the even keys, the second one the odd ones
    for (asked, other) in [(1, 2), (4, 3)] {
        assert_eq!([world.admits(0, asked), world.admits(0, asked)], [true, false]);
        assert!(world.admits(0, other));
        assert!(!world.admits(0, asked), "nothing has come back yet");
        world.pass(Nanos::SECOND);
        assert!(world.admits(0, asked), "a token has come back");
    }
}

#[test]
fn a_server_of_a_cluster_that_hangs_keeps_no_call_from_the_others() {
    let limit = in_an_hour(AlgorithmName::FixedWindow, 12);
    let mut world = World::new(ms(1), Redis::new(1, (1, 2), vec![Nanos::ZERO; 3]));
    for number in 0..2 {
        world.start(number, 7 + number as u64, ms(50), &[(limit.clone(), Sharing::default())]);
    }
    world.pass(Nanos::SECOND);
    assert!((0..3).all(|key| world.admits(0, key) && world.admits(1, key)));
    world.environment.network.serve(1, RedisState::Hanging, world.now);
    let took = |world: &mut World, key| {
        let began = world.now;
        let admits = world.admits(0, key);
        (admits, world.now.saturating_sub(began) < ms(20))
    };
    // five late calls open the breaker of the server
    let waited = (0..10).filter(|_| !took(&mut world, 1).1).count();
    assert_eq!(waited, 5, "requests for its keys wait no longer");
    assert_eq!(world.gateway(0).node.store.shared().unwrap().report().breaker, BreakerState::Open { pause: ms(250) });
    for key in [0, 2] {
        let granted = (0..10).filter(|_| took(&mut world, key) == (true, true)).count();
        assert_eq!(granted, 10, "of 12, and each gateway has had one");
        assert!(!world.admits(0, key) && !world.admits(1, key), "no share of it: Redis decides");
    }
    world.environment.network.serve(1, RedisState::Up, world.now);
    world.wait_until_reconciled();
    // its share without Redis, of which the usage that it knew was taken, is charged; a late call may have been, too
    let left = (0..12).filter(|_| world.admits(1, 1)).count();
    assert!((1..=12 - 2 - 3).contains(&left), "{left}");
}

#[test]
fn shares_are_enforced_where_only_counts_are_synced_and_the_server_hangs() {
    let sharing = Sharing { consistency: Consistency::Eventual, on_store_down: OnStoreDown::Divide };
    let mut world = World::new(ms(1), Redis::new(1, (1, 2), vec![Nanos::ZERO; 3]));
    world.start(0, 7, ms(50), &[(ten_per_second(), sharing)]);
    world.pass(Nanos::SECOND);
    assert!(world.passed(3) >= 30);
    world.environment.network.serve(1, RedisState::Hanging, world.now);
    // five calls in turn, each given up after a second
    world.passed(6);
    let alone = world.passed(6);
    assert!((18..=22).contains(&alone), "{alone} passed in 6 s, of 60 for three gateways");
}

#[test]
fn tokens_counted_in_an_outage_do_not_lock_the_key_out_afterwards() {
    for (on_store_down, share) in [(OnStoreDown::Local, 90_u64), (OnStoreDown::Divide, 30)] {
        for state in [RedisState::Stopped, RedisState::OutOfMemory] {
            let mut world = World::new(ms(1), Redis::new(1, (1, 2), vec![Nanos::ZERO]));
            let sharing = Sharing { consistency: Consistency::Eventual, on_store_down };
            world.start(0, 7, ms(50), &[(ten_per_second(), sharing)]);
            world.pass(Nanos::SECOND);
            world.passed(1);
            world.environment.network.serve(0, state, world.now);
            world.passed(6);
            let alone = world.passed(9);
            assert!(alone.abs_diff(share) <= 3, "{alone} passed in 9 s: {on_store_down:?}, {state:?}");
            world.environment.network.serve(0, RedisState::Up, world.now);
            world.wait_until_reconciled();
            let after = world.passed(3);
            assert!((27..=41).contains(&after), "{after} passed in 3 s: {on_store_down:?}, {state:?}");
        }
    }
}

#[test]
fn a_sync_that_is_late_does_not_open_the_breaker() {
    let mut world = World::new(ms(1), Redis::new(1, (1, 2), vec![Nanos::ZERO]));
    let sharing = Sharing { consistency: Consistency::Eventual, ..Sharing::default() };
    world.start(0, 7, ms(20), &[(ten_per_second(), sharing)]);
    world.pass(Nanos::SECOND);
    world.passed(1);
    world.environment.network.slow(60);
    let later = world.passed(5);
    assert!((45..=52).contains(&later), "{later} passed in 5 s");
    assert_eq!(world.gateway(0).node.store.shared().unwrap().report().breaker, BreakerState::Closed);
}

/// The numbers of requests of two plans that a limit admits under one key: 660 of a plan that admits 2000 per second, and
/// 30 between them of one that admits 10 per hour and 5 at once.
fn admitted_of_two_plans(consistency: Consistency) -> [u64; 2] {
    let plan = |rate, burst| rule(AlgorithmName::Gcra, &[("rate", Value::Rate(rate)), ("burst", Value::Whole(burst))]);
    let pro = plan(Rate::new(2000, Nanos::SECOND).unwrap(), 2000);
    let free = Arc::new(plan(Rate::new(10, Nanos::from_secs(3_600)).unwrap(), 5));
    let mut world = World::new(ms(1), Redis::new(1, (1, 2), vec![Nanos::ZERO]));
    world.start(0, 7, ms(50), &[(pro, Sharing { consistency, ..Sharing::default() })]);
    world.pass(Nanos::SECOND);
    let mut admitted = [0, 0];
    for request in 0..690 {
        let is_free = request % 23 == 22;
        let listed = one(0, LimitKey(1));
        let rule = if is_free { RuleRef::Own(Arc::clone(&free)) } else { listed.rule.clone() };
        let node = Arc::clone(&world.gateway(0).node);
        let is_admitted = world.run_on(0, async move {
            node.charge(&mut [Charge { rule, ..listed }]).await.charged[0].decision.is_admitted()
        });
        admitted[usize::from(is_free)] += u64::from(is_admitted);
    }
    admitted
}

#[test]
fn each_plan_is_held_to_its_own_limit_where_plans_share_a_key() {
    let [pro, free] = admitted_of_two_plans(Consistency::Exact);
    for consistency in [Consistency::Leased { strict: None }, Consistency::Eventual] {
        let admitted = admitted_of_two_plans(consistency);
        assert!(admitted[1] <= free + 5, "{consistency:?}: {admitted:?}, {pro} and {free} if exact");
        assert!(consistency == Consistency::Eventual || admitted[0] + 6 >= pro, "{admitted:?}, {pro} if exact");
    }
}

#[test]
fn tokens_of_an_outage_are_reconciled_under_the_parameters_that_admitted_them() {
    let free = Arc::new(in_an_hour(AlgorithmName::QuotaReset, 5));
    let second = Value::Duration(Nanos::SECOND);
    let pro = rule(AlgorithmName::QuotaReset, &[("limit", Value::Whole(2000)), ("window", second)]);
    let sharing = Sharing { on_store_down: OnStoreDown::Local, ..Sharing::default() };
    let mut world = World::new(ms(1), Redis::new(1, (1, 2), vec![Nanos::ZERO]));
    world.start(0, 7, ms(50), &[(pro, sharing)]);
    world.pass(Nanos::SECOND);
    let admitted_free = |world: &mut World| {
        let (node, rule) = (Arc::clone(&world.gateway(0).node), RuleRef::Own(Arc::clone(&free)));
        world.run_on(0, async move {
            let mut admitted = 0;
            for _ in 0..10 {
                let mut batch = [Charge { rule: rule.clone(), ..one(0, LimitKey(1)) }];
                admitted += usize::from(node.charge(&mut batch).await.charged[0].decision.is_admitted());
            }
            admitted
        })
    };
    world.environment.network.serve(0, RedisState::Stopped, world.now);
    assert!(world.admits(0, 1));
    let alone = admitted_free(&mut world);
    assert!((4..=5).contains(&alone), "{alone}");
    world.pass(Nanos::from_secs(2));
    world.environment.network.serve(0, RedisState::Up, world.now);
    world.wait_until_reconciled();
    let later = admitted_free(&mut world);
    assert!(alone + later <= 5, "{alone} in the outage and {later} after it");
}

#[test]
fn a_denied_request_keeps_no_leased_tokens_from_later_ones() {
    let rate = Rate::new(1, Nanos::SECOND).unwrap();
    let limit = rule(AlgorithmName::Gcra, &[("rate", Value::Rate(rate)), ("burst", Value::Whole(20))]);
    let sharing = Sharing { consistency: Consistency::Leased { strict: None }, ..Sharing::default() };
    let mut world = World::new(ms(1), Redis::new(1, (1, 2), vec![Nanos::ZERO]));
    world.start(0, 7, ms(50), &[(limit, sharing)]);
    world.pass(Nanos::SECOND);
    let asks_every_three_seconds = |_: &u64| {
        world.pass(Nanos::from_secs(3));
        let node = Arc::clone(&world.gateway(0).node);
        let mut batch = [Charge { cost: 10, ..one(0, LimitKey(1)) }];
        world.run_on(0, async move { node.charge(&mut batch).await.charged[0].decision.is_admitted() })
    };
    let admitted = (0..20).filter(asks_every_three_seconds).count();
    assert!((7..=8).contains(&admitted), "{admitted}: two at once, and one in 10 s of a minute");
}

#[test]
fn denied_requests_count_where_they_are_to_and_tokens_are_leased() {
    let rate = Rate::new(1, Nanos::SECOND).unwrap();
    let limit = rule(AlgorithmName::Gcra, &[("rate", Value::Rate(rate)), ("burst", Value::Whole(10))]);
    let sharing = Sharing { consistency: Consistency::Leased { strict: None }, ..Sharing::default() };
    let mut world = World::new(ms(1), Redis::new(1, (1, 2), vec![Nanos::ZERO]));
    world.start(0, 7, ms(50), &[(limit, sharing)]);
    world.pass(Nanos::SECOND);
    let enforcement = Enforcement { counts_denied: true, ..Enforcement::DEFAULT };
    let asks_twice_a_second = |_: &u64| {
        world.pass(ms(500));
        let node = Arc::clone(&world.gateway(0).node);
        let mut batch = [Charge { enforcement, ..one(0, LimitKey(1)) }];
        world.run_on(0, async move { node.charge(&mut batch).await.charged[0].decision.is_admitted() })
    };
    let admitted: Vec<u64> = (0..80).filter(asks_twice_a_second).collect();
    assert!((10..=21).contains(&admitted.len()), "{admitted:?}: no more once the bucket is spent");
}

#[test]
fn a_charge_whose_request_ends_unheard_is_given_back() {
    let slots = rule(AlgorithmName::Concurrency, &[("limit", Value::Whole(1))]);
    let leased = Sharing { consistency: Consistency::Leased { strict: None }, ..Sharing::default() };
    let hourly = in_an_hour(AlgorithmName::FixedWindow, 10);
    let exact = Sharing::default();
    for (limit, sharing, all) in [(hourly.clone(), exact, 10), (hourly, leased, 10), (slots, exact, 1)] {
        let mut world = World::new(ms(1), Redis::new(1, (1, 2), vec![Nanos::ZERO]));
        world.start(0, 7, ms(50), &[(limit.clone(), sharing)]);
        world.pass(Nanos::SECOND);
        let node = Arc::clone(&world.gateway(0).node);
        world.run_on(0, async move {
            let mut batch = [one(0, LimitKey(1))];
            let mut charging = Box::pin(node.charge(&mut batch));
            begun(&mut charging).await;
            // the reply comes, and the request ends before it is polled again
            sleep(ms(100).to_duration()).await;
        });
        world.pass(ms(500));
        let node = Arc::clone(&world.gateway(0).node);
        let admitted = world.run_on(0, async move { node.admitted(0, LimitKey(1)).await });
        assert_eq!(admitted, all, "{} {sharing:?}", limit.describe());
    }
}

#[test]
fn questions_under_other_parameters_leave_a_cycle_as_it_is() {
    let day = Value::Duration(Nanos::from_secs(86_400));
    let cycle = |limit| rule(AlgorithmName::Cycle, &[("limit", Value::Whole(limit)), ("period", day.clone())]);
    let mut world = World::new(ms(1), Redis::new(1, (1, 2), vec![Nanos::ZERO]));
    world.start(0, 7, ms(50), &[(cycle(100), Sharing::default())]);
    world.pass(Nanos::SECOND);
    assert!(world.admits(0, 1));
    let listed = one(0, LimitKey(1));
    for _ in 0..20 {
        for (rule, left) in [(RuleRef::Own(Arc::new(cycle(99))), 98), (listed.rule.clone(), 99)] {
            let node = Arc::clone(&world.gateway(0).node);
            let mut batch = [Charge { rule, enforcement: Enforcement::DRY_RUN, ..listed.clone() }];
            let told = world.run_on(0, async move { node.charge(&mut batch).await.charged[0].headroom.remaining });
            assert_eq!(told, Some(left));
        }
    }
}

#[test]
fn a_rule_that_redis_cannot_keep_admits_nothing() {
    let mut world = World::new(ms(1), Redis::new(1, (1, 2), vec![Nanos::ZERO]));
    world.start(0, 7, ms(50), &[(ten_per_second(), Sharing::default())]);
    world.pass(Nanos::SECOND);
    let most = Value::Whole(100);
    let own = rule(AlgorithmName::AdaptiveConcurrency, &[("min", Value::Whole(1)), ("max", most)]);
    let node = Arc::clone(&world.gateway(0).node);
    let mut batch = [Charge { rule: RuleRef::Own(Arc::new(own)), ..one(0, LimitKey(1)) }];
    let receipt = world.run_on(0, async move { node.charge(&mut batch).await });
    assert_eq!(receipt.failed_closed, Some(0));
}

#[test]
fn first_requests_of_a_key_that_ask_redis_at_the_same_time_are_all_counted() {
    let sharing = Sharing { consistency: Consistency::Eventual, ..Sharing::default() };
    for seed in 0..10 {
        let mut world = World::new(ms(1), Redis::new(seed, (5, 19), vec![Nanos::ZERO]));
        world.start(0, 7, ms(200), &[(in_an_hour(AlgorithmName::FixedWindow, 10), sharing)]);
        world.pass(Nanos::SECOND);
        let node = Arc::clone(&world.gateway(0).node);
        let admitted = world.run_on(0, async move {
            let mut requests = JoinSet::new();
            for _ in 0..100 {
                let node = Arc::clone(&node);
                requests.spawn(async move { node.charge(&mut [one(0, LimitKey(1))]).await });
                sleep(Duration::from_millis(1)).await;
            }
            let receipts = requests.join_all().await;
            receipts.iter().filter(|receipt| receipt.charged[0].decision.is_admitted()).count()
        });
        assert_eq!(admitted, 10, "seed {seed}");
    }
}

#[test]
fn a_refund_of_a_synced_charge_leaves_later_charges_to_be_synced() {
    let minute = Value::Duration(Nanos::from_secs(60));
    let limit = rule(AlgorithmName::FixedWindow, &[("limit", Value::Whole(100)), ("window", minute)]);
    let sharing = Sharing { consistency: Consistency::Eventual, ..Sharing::default() };
    let mut world = World::new(ms(1), Redis::new(1, (1, 2), vec![Nanos::ZERO]));
    for number in 0..2 {
        world.start(number, 7 + number as u64, ms(50), &[(limit.clone(), sharing)]);
    }
    let take = |world: &mut World, cost| {
        let node = Arc::clone(&world.gateway(0).node);
        world.run_on(0, async move {
            let (mut batch, now) = ([Charge { cost, ..one(0, LimitKey(1)) }], node.clock.now());
            let charged = node.charge(&mut batch).await.charged[0];
            assert!(charged.decision.is_admitted());
            let [charge] = batch;
            Refund::of(charge, charged.headroom, now)
        })
    };
    world.pass(Nanos::from_secs(59));
    // of a new key Redis is asked, then the gateway counts
    take(&mut world, 1);
    let early = take(&mut world, 80);
    world.pass(Nanos::from_secs(2));
    take(&mut world, 1);
    take(&mut world, 99);
    let node = Arc::clone(&world.gateway(0).node);
    world.run_on(0, async move { node.store.refund(&node.binding, &[early], node.clock.now()) });
    world.pass(Nanos::SECOND);
    let node = Arc::clone(&world.gateway(1).node);
    assert_eq!(world.run_on(1, async move { node.left(0, LimitKey(1)).await }), 0, "the window before has ended");
}

#[test]
fn a_late_reply_does_not_reconcile_a_key_twice() {
    for seed in 0..10 {
        let mut world = World::new(ms(1), Redis::new(seed, (1, 2), vec![Nanos::ZERO]));
        world.start(0, 7, ms(20), &[(in_an_hour(AlgorithmName::FixedWindow, 100), Sharing::default())]);
        world.pass(Nanos::SECOND);
        world.environment.network.serve(0, RedisState::Stopped, world.now);
        assert!((0..8).all(|_| world.admits(0, 1)));
        world.environment.network.slow(16);
        world.environment.network.serve(0, RedisState::Up, world.now);
        world.wait_until_reconciled();
        world.environment.network.slow(0);
        world.pass(Nanos::SECOND);
        let node = Arc::clone(&world.gateway(0).node);
        assert_eq!(world.run_on(0, async move { node.left(0, LimitKey(1)).await }), 100 - 8, "seed {seed}");
    }
}

#[test]
fn a_redis_that_forgets_gets_its_totals_back_from_those_who_count() {
    let rate = Rate::new(1, Nanos::from_secs(3_600)).unwrap();
    let sharing = Sharing { consistency: Consistency::Eventual, on_store_down: OnStoreDown::Divide };
    for limit in [
        rule(AlgorithmName::Gcra, &[("rate", Value::Rate(rate)), ("burst", Value::Whole(10))]),
        in_an_hour(AlgorithmName::FixedWindow, 10),
        in_an_hour(AlgorithmName::QuotaReset, 10),
        in_an_hour(AlgorithmName::SlidingWindow, 10),
    ] {
        let mut world = World::new(ms(1), Redis::new(1, (1, 2), vec![Nanos::ZERO]));
        for number in 0..2 {
            world.start(number, 7 + number as u64, ms(50), &[(limit.clone(), sharing)]);
        }
        world.pass(Nanos::SECOND);
        let passed = |world: &mut World| {
            let mut passed = 0;
            for _ in 0..100 {
                passed += u64::from(world.admits(0, 1)) + u64::from(world.admits(1, 1));
                world.pass(ms(10));
            }
            passed
        };
        assert!(passed(&mut world) >= 10, "{}", limit.describe());
        world.environment.forget();
        assert_eq!(passed(&mut world), 0, "{}", limit.describe());
        world.start(2, 9, ms(50), &[(limit.clone(), sharing)]);
        world.pass(Nanos::SECOND);
        assert!(!world.admits(2, 1), "a gateway that is new is told the total: {}", limit.describe());
    }
}

#[test]
fn a_busy_key_is_reconciled_before_it_is_charged_again() {
    const LEFT: u64 = 90;
    // Redis hangs at another time of the half second after which a gateway reconciles all keys
    for at in (700..1_200).step_by(100) {
        let limit = at / 2 + LEFT;
        let mut world = World::new(ms(1), Redis::new(1, (20, 20), vec![Nanos::ZERO]));
        world.start(0, 7, ms(100), &[(in_an_hour(AlgorithmName::FixedWindow, limit), Sharing::default())]);
        world.pass(Nanos::SECOND);
        let mut asked = Vec::new();
        for time in 0..at + 1_000 {
            if time == at {
                world.environment.network.serve(0, RedisState::Hanging, world.now);
            } else if time == at + 350 {
                world.environment.network.serve(0, RedisState::Up, world.now);
            }
            if time % 2 == 0 {
                let node = Arc::clone(&world.gateway(0).node);
                asked.push(world.gateway(0).spawn(async move { node.admits(0, LimitKey(1)).await }));
            }
            world.pass(ms(1));
        }
        let answers: Vec<bool> = asked.into_iter().map(|one| world.run_on(0, async { one.await.unwrap() })).collect();
        let admitted = answers.into_iter().filter(|admitted| *admitted).count() as u64;
        assert!(admitted <= limit, "{admitted} of {limit} when Redis hangs at {at} ms");
    }
}
