//! Gateways that count a limit by themselves and sync their counts, where a gateway admits more than a burst between two
//! syncs.

use tollgate::algorithm::{AlgorithmName, Rule, Value};
use tollgate::charge::{Consistency, Sharing};
use tollgate::units::{Nanos, Rate};

use super::redis::Redis;
use super::{GATEWAYS, World};
use crate::node::rule;
use crate::world::ms;

/// 120 requests per second, but not all that a gateway admits between two syncs at once.
fn twelve_between_syncs() -> [Rule; 2] {
    let rate = Value::Rate(Rate::new(120, Nanos::SECOND).unwrap());
    let window = [("limit", Value::Whole(12)), ("window", Value::Duration(ms(100)))];
    [
        rule(AlgorithmName::Gcra, &[("rate", rate), ("burst", Value::Whole(5))]),
        rule(AlgorithmName::FixedWindow, &window),
    ]
}

#[test]
fn counts_below_the_limit_deny_nothing_where_a_burst_is_smaller_than_a_count() {
    // a sync that reaches Redis in the next window counts there
    for (limit, least) in twelve_between_syncs().into_iter().zip([500, 490]) {
        let mut world = three_gateways(&limit);
        let is_admitted = |_: &u64| {
            world.pass(ms(10));
            world.admits(0, 1)
        };
        let admitted = (0..500).filter(is_admitted).count();
        assert!(admitted >= least, "{}: {admitted} of 500", limit.describe());
    }
}

#[test]
fn time_refills_a_bucket_once_for_all_gateways_that_count() {
    let [bucket, _] = twelve_between_syncs();
    let mut world = three_gateways(&bucket);
    let (began, mut admitted) = (world.now, 0);
    for _ in 0..1_500 {
        admitted += (0..GATEWAYS).filter(|gateway| world.admits(*gateway, 1)).count() as u64;
        world.pass(ms(1));
    }
    let by_rate = world.now.saturating_sub(began).get() * 120 / Nanos::SECOND.get();
    // a burst, and as many tokens as come between two syncs, for each gateway that the others do not know of
    let bound = 5 + by_rate + (GATEWAYS as u64 - 1) * (5 + 13);
    assert!(admitted <= bound, "{admitted} of {bound}");
}

/// Three gateways that count under `limit` and do not sync at the same time.
fn three_gateways(limit: &Rule) -> World {
    let mut world = World::new(ms(1), Redis::new(1, (1, 2), vec![Nanos::ZERO]));
    let sharing = Sharing { consistency: Consistency::Eventual, ..Sharing::default() };
    for number in 0..GATEWAYS {
        world.start(number, 7 + number as u64, ms(50), &[(limit.clone(), sharing)]);
        world.pass(ms(33));
    }
    world.pass(Nanos::SECOND);
    world
}
