//! Corrections of charges to the common bucket of a full table, which does not move.

use std::sync::Arc;

use tollgate::charge::{Charge, Refund};
use tollgate::units::{LimitKey, Nanos};

use super::Pair;
use super::fleet::World;
use crate::node::{Node, SMALL, Setup, one, wait_for};
use crate::world::ms;

/// Keys that this gateway owns.
fn keys(owner: &Node) -> impl Iterator<Item = LimitKey> {
    (0_u128..).map(|number| LimitKey(number << 48 | number)).filter(|key| owner.cluster().owns(*key))
}

#[tokio::test]
async fn a_debit_of_a_common_bucket_is_made_where_the_bucket_was_charged() {
    let pair = Pair::start([5, 5]).await;
    let [asks, other] = &pair.nodes;
    // the ring names one of them for the common bucket
    for owner in [asks, other] {
        let mut keys = keys(owner);
        assert!(asks.admits(SMALL, keys.next().unwrap()).await);
        let mut batch = [one(SMALL, keys.next().unwrap())];
        assert!(asks.charge(&mut batch).await.charged[0].decision.is_admitted());
        let [charge] = batch;
        asks.store.debit(&asks.binding, &[Charge { cost: 2, ..charge }], asks.clock.now());
        wait_for("the debit", || async { asks.store.is_settled() }).await;
        assert_eq!(asks.admitted(SMALL, keys.next().unwrap()).await, 2);
    }
}

#[test]
fn corrections_of_a_common_bucket_end_with_its_gateway() {
    let mut world = World::of(1, 2, (1, 6), Setup::usual(5, ms(100)));
    (0..2).for_each(|number| world.start(number));
    assert!(world.wait_until(Nanos::from_secs(10), |world| world.is_quiet()));
    let [asks, ends] = [0, 1].map(|number| Arc::clone(&world.gateway(number).node));
    let [own, others]: [Vec<LimitKey>; 2] = [&asks, &ends].map(|owner| keys(owner).take(3).collect());
    let (node, own_keys) = (Arc::clone(&asks), own.clone());
    let refund = world.run_on(0, async move {
        for key in [own_keys[0], own_keys[1], others[0]] {
            assert!(node.admits(SMALL, key).await);
        }
        let (mut batch, now) = ([one(SMALL, others[1])], node.clock.now());
        let charged = node.charge(&mut batch).await.charged[0];
        let [charge] = batch;
        Refund::of(charge, charged.headroom, now)
    });
    world.end(1, false);
    assert!(world.wait_until(Nanos::from_secs(10), |world| world.is_quiet()));
    let node = Arc::clone(&asks);
    let left = world.run_on(0, async move {
        let (store, binding, now) = (&node.store, &node.binding, node.clock.now());
        store.debit(binding, &[Charge { cost: 3, ..refund.charge.clone() }], now);
        store.refund(binding, &[refund], now);
        node.admitted(SMALL, own[2]).await
    });
    assert_eq!(left, 4, "of its own common bucket, one token was used");
}
