//! A gateway that hands its state over to another process, while states and refunds are on their way.

use std::sync::Arc;

use tollgate::charge::Refund;
use tollgate::units::{LimitKey, Nanos};

use super::fleet::World;
use super::network::pair;
use crate::node::{BURST, Setup, one};
use crate::world::ms;

/// The gateway that asked does not learn before the connection ends that its refund was made.
#[test]
fn a_refund_that_was_made_before_a_handover_failed_is_not_made_again() {
    let mut world = World::of(1, 2, (20, 20), Setup::usual(5, ms(100)));
    (0..2).for_each(|number| world.start(number));
    assert!(world.wait_until(Nanos::from_secs(10), |world| world.is_quiet()));
    let [asks, owns] = [0, 1].map(|number| Arc::clone(&world.gateway(number).node));
    let key = (0_u128..).map(|number| LimitKey(number << 48 | number)).find(|key| owns.cluster().owns(*key)).unwrap();
    let node = Arc::clone(&asks);
    let refund = world.run_on(0, async move {
        assert!(node.admits(BURST, key).await);
        let (mut batch, now) = ([one(BURST, key)], node.clock.now());
        let receipt = node.store.charge(&node.binding, &mut batch, now).await;
        let [charge] = batch;
        [Refund::of(charge, receipt.charged[0].headroom, now)]
    });
    let node = Arc::clone(&asks);
    world.run_on(0, async move { node.store.refund(&node.binding, &refund, node.clock.now()) });
    // the answers to what is on its way wait
    world.environment.network.part([pair(0, 1)]);
    let left = |world: &mut World| {
        let node = Arc::clone(&owns);
        world.run_on(1, async move { node.left(BURST, key).await })
    };
    assert!(world.wait_until(ms(500), |world| left(world) == 4));
    assert!(!asks.store.is_settled());
    world.take_part(1);
    world.environment.network.heal(world.now);
    assert!(world.wait_until(Nanos::from_secs(10), |world| world.is_quiet()));
    assert_eq!(left(&mut world), 4);
}

#[test]
fn a_handover_waits_for_states_that_are_neither_here_nor_at_their_owner() {
    const KEYS: u64 = 40;
    let mut world = World::of(1, 2, (20, 20), Setup::usual(5, ms(100)));
    let network = Arc::clone(&world.environment.network);
    world.start(0);
    assert!(world.wait_until(Nanos::from_secs(20), |world| world.is_quiet()));
    let node = Arc::clone(&world.gateway(0).node);
    let charging = Arc::clone(&node);
    world.run_on(0, async move {
        for number in 0..u128::from(KEYS) {
            assert!(charging.admits(BURST, LimitKey(number << 48 | number)).await);
        }
    });
    network.hold_work(0);
    world.start(1);
    assert!(world.wait_until(Nanos::from_secs(20), |_| network.has_held_work()));
    let (sender, mut is_held) = tokio::sync::oneshot::channel();
    world.gateway(0).spawn(async move {
        let _pushes = node.cluster().hold_pushes().await;
        sender.send(()).unwrap();
        std::future::pending::<()>().await;
    });
    world.pass(ms(100));
    assert!(is_held.try_recv().is_err(), "the search of the store has begun");
    let work = network.release_work();
    world.run_on(0, async move { work.into_iter().for_each(|work| work()) });
    assert!(world.wait_until(Nanos::from_secs(5), |_| is_held.try_recv().is_ok()));
    world.take_part(0);
    let keys = [0, 1].map(|number| world.gateway(number).node.keys(BURST));
    assert!(keys[1] > 0 && keys[0] + keys[1] == KEYS, "{keys:?}");
}
