//! What becomes of the tokens that a gateway takes ahead.

use std::sync::Arc;

use tollgate::algorithm::AlgorithmName;
use tollgate::charge::{Charge, Consistency, Sharing};
use tollgate::units::{LimitKey, Nanos};

use super::World;
use super::redis::Redis;
use crate::node::{in_an_hour, one};
use crate::world::ms;

#[test]
fn denied_requests_use_up_no_quota() {
    const LIMIT: u64 = 10_000;
    let sharing = Sharing { consistency: Consistency::Leased { strict: None }, ..Sharing::default() };
    for algorithm in [AlgorithmName::FixedWindow, AlgorithmName::SlidingLog] {
        // a lease is for 100 ms, and the last one lapses
        for (pause, count, lapses) in [(10, 500, 20), (400, 20, 0)] {
            let mut world = World::new(ms(1), Redis::new(1, (1, 2), vec![Nanos::ZERO]));
            world.start(0, 7, ms(50), &[(in_an_hour(algorithm, LIMIT), sharing)]);
            world.pass(Nanos::SECOND);
            world.charge(1);
            for turn in 1..count {
                if turn % (100 / pause + 1) == 0 {
                    let node = Arc::clone(&world.gateway(0).node);
                    let mut batch = [Charge { cost: LIMIT, ..one(0, LimitKey(1)) }];
                    let charged = world.run_on(0, async move { node.charge(&mut batch).await.charged[0] });
                    assert!(!charged.decision.is_admitted());
                    // the tokens that it could not use are on their way back
                    world.pass(ms(10));
                }
                world.charge(1);
                world.pass(ms(pause));
            }
            world.pass(Nanos::SECOND);
            let node = Arc::clone(&world.gateway(0).node);
            let left = world.run_on(0, async move { node.left(0, LimitKey(1)).await });
            let lost = LIMIT - count - left;
            assert!(lost <= lapses, "{algorithm:?}, a request every {pause} ms: {lost} are lost");
        }
    }
}
