//! The stores of two gateways that divide keys among themselves, in one process: the owner's decisions, the parameters that
//! it uses, and cancelled charges.

mod common_bucket;
mod fleet;
mod handover;
mod histories;
mod network;

use std::net::SocketAddr;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tollgate::algorithm::Completion;
use tollgate::charge::{Charge, Charged, DecisionSource, Enforcement, Refund, RuleRef};
use tollgate::clock::SystemClock;
use tollgate::cluster::OsPlatform;
use tollgate::cluster::ring::{Member, Ring};
use tollgate::store::{Amendment, LimitSpec, Receipt};
use tollgate::units::{LimitKey, Nanos};

use crate::cluster::fleet::World;
use crate::cluster::network::pair;
use crate::node::{BURST, HELD, LOG, MANY, Node, SLOTS, SMALL, Setup, begun, gcra, one, wait_for};
use crate::world::ms;

/// Two gateways that know each other, and a source of keys that the second owns. The first has a burst of `bursts[0]`.
struct Pair {
    nodes: [Node; 2],
    next: AtomicUsize,
    _running: JoinSet<()>,
}

impl Pair {
    async fn start(bursts: [u64; 2]) -> Self {
        Self::with(bursts.map(|burst| Setup::usual(burst, Nanos::SECOND))).await
    }

    async fn with(setups: [Setup; 2]) -> Self {
        let setups = setups.map(Arc::new);
        let mut listeners = Vec::new();
        for _ in 0..2 {
            listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
        }
        let addresses: Vec<SocketAddr> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
        let nodes = [0, 1].map(|node| {
            Node::new(addresses[node], &addresses, &setups[node], Arc::new(SystemClock::new()), Arc::new(OsPlatform))
        });
        let mut running = JoinSet::new();
        for (node, listener) in nodes.iter().zip(listeners) {
            let (sender, accepted) = tokio::sync::mpsc::channel(8);
            running.spawn(async move {
                while let Ok(connection) = listener.accept().await {
                    drop(sender.send(connection).await);
                }
            });
            let store = Arc::clone(&node.store);
            running.spawn(async move {
                let service = Arc::clone(&store) as Arc<dyn tollgate::cluster::state_service::StateService>;
                store.cluster().unwrap().run(service, accepted).await;
            });
        }
        let knows = |node: &Node| node.cluster().report().members.len() == 2 && !node.cluster().is_migrating();
        wait_for("two members", || async { nodes.iter().all(knows) }).await;
        for node in &nodes {
            node.store.connect().await;
        }
        Self { nodes, next: AtomicUsize::new(0), _running: running }
    }

    /// A new key that the second gateway owns.
    fn key(&self) -> LimitKey {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed) as u128;
            let key = LimitKey(number << 48 | number);
            if self.nodes[1].cluster().owns(key) {
                return key;
            }
        }
    }
}

#[tokio::test]
async fn the_owner_counts_whoever_is_asked_and_a_denial_is_repeated_without_asking() {
    let pair = Pair::start([5, 5]).await;
    let [asks, owns] = &pair.nodes;
    let key = pair.key();
    let receipt = asks.charge(&mut [one(BURST, key)]).await;
    assert_eq!((receipt.source, receipt.charged[0].headroom.remaining), (DecisionSource::Owner, Some(4)));
    assert!(owns.admits(BURST, key).await);
    assert_eq!(asks.admitted(BURST, key).await, 3);
    let asked = asks.asked();
    let receipt = asks.charge(&mut [one(BURST, key)]).await;
    assert_eq!((receipt.source, asks.asked()), (DecisionSource::DenialCache, asked));
    // a cost above the burst is denied without a call to the owner
    let large = Charge { cost: 6, ..one(BURST, pair.key()) };
    assert_eq!(asks.charge(&mut [large]).await.source, DecisionSource::DenialCache);
    assert_eq!(asks.asked(), asked);
    // the owner makes no calls for its own keys
    assert_eq!(owns.asked(), 0);
}

#[tokio::test]
async fn a_key_that_is_set_right_at_its_owner_is_not_denied_elsewhere_for_long() {
    let pair = Pair::start([5, 5]).await;
    let [asks, owns] = &pair.nodes;
    for amendment in [Amendment::ResetKey, Amendment::Grant(2)] {
        let key = pair.key();
        assert_eq!(asks.admitted(BURST, key).await, 5);
        assert!(!owns.admits(BURST, key).await);
        owns.store.amend(&owns.binding, &one(BURST, key), amendment, owns.clock.now()).await.unwrap();
        wait_for("the other gateway to ask again", || asks.admits(BURST, key)).await;
    }
}

#[tokio::test]
async fn the_parameters_of_who_asks_hold_at_once_and_so_do_a_customers_own() {
    let pair = Pair::start([9, 3]).await;
    let [asks, _] = &pair.nodes;
    assert_eq!(asks.admitted(BURST, pair.key()).await, 9);
    let own = RuleRef::Own(Arc::new(gcra(2)));
    let key = pair.key();
    let mut passed = 0;
    while asks.charge(&mut [Charge { rule: own.clone(), ..one(BURST, key) }]).await.charged[0].decision.is_admitted() {
        passed += 1;
    }
    assert_eq!(passed, 2);
}

/// With 65,536 sets of parameters a connection ends, and the next one begins.
#[tokio::test]
async fn an_owner_that_has_learned_very_many_parameters_still_decides() {
    const LIMITS: usize = 64;
    let setup = || Setup::new(Nanos::SECOND, 1, vec![(gcra(5), 1000); LIMITS]);
    let pair = Pair::with([setup(), setup()]).await;
    let [asks, _] = &pair.nodes;
    let key = pair.key();
    for number in 0..1100 {
        let own = RuleRef::Own(Arc::new(gcra(number + 1)));
        let charge = |limit| Charge { rule: own.clone(), cost: 0, ..one(limit, key) };
        let mut batch: Vec<Charge> = (0..LIMITS).map(charge).collect();
        assert_eq!(asks.charge(&mut batch).await.source, DecisionSource::Owner, "request {number}");
    }
}

#[tokio::test]
async fn refunds_come_back_once_and_debits_are_taken() {
    let pair = Pair::start([5, 5]).await;
    let [asks, owns] = &pair.nodes;
    for limit in [BURST, LOG] {
        let key = pair.key();
        let whole = asks.admitted(limit, pair.key()).await;
        let mut batch = [one(limit, key)];
        let now = asks.clock.now();
        let Receipt { charged, .. } = asks.store.charge(&asks.binding, &mut batch, now).await;
        let Charged { headroom, .. } = charged[0];
        let [charge] = batch;
        asks.store.refund(&asks.binding, &[Refund::of(charge, headroom, now)], asks.clock.now());
        wait_for("the refund", || async { asks.store.is_settled() }).await;
        assert_eq!(owns.admitted(limit, key).await, whole, "limit {limit}");
    }
    let key = pair.key();
    let mut batch = [one(BURST, key)];
    asks.charge(&mut batch).await;
    let [charge] = batch;
    asks.store.debit(&asks.binding, &[Charge { cost: 2, ..charge }], asks.clock.now());
    wait_for("the debit", || async { asks.store.is_settled() }).await;
    assert_eq!(asks.admitted(BURST, key).await, 2);
}

#[tokio::test]
async fn a_debit_of_another_gateway_counts_under_a_limit_that_has_started_afresh() {
    let pair = Pair::start([5, 5]).await;
    let [asks, owns] = &pair.nodes;
    let mut batch = [one(BURST, pair.key())];
    asks.charge(&mut batch).await;
    let rule = gcra(5);
    let afresh = LimitSpec {
        is_reset: true,
        rules: slice::from_ref(&rule),
        max_keys: 1000,
        ..LimitSpec::bare("limit 0", rule.name(), 1)
    };
    let binding = owns.store.bind(&[afresh]);
    let debt = [Charge { cost: 2, ..batch[0].clone() }];
    asks.store.debit(&asks.binding, &debt, asks.clock.now());
    wait_for("the debit", || async { asks.store.is_settled() }).await;
    let asked = Charge { enforcement: Enforcement::DRY_RUN, ..one(BURST, batch[0].key) };
    let receipt = owns.store.charge(&binding, &mut [asked], owns.clock.now()).await;
    assert_eq!(receipt.charged[0].headroom.remaining, Some(3));
}

#[tokio::test]
async fn a_slot_is_held_until_its_request_ends_or_goes_away() {
    let pair = Pair::start([5, 5]).await;
    let [asks, owns] = &pair.nodes;
    let key = pair.key();
    let mut batch = [one(SLOTS, key)];
    assert!(asks.charge(&mut batch).await.charged[0].decision.is_admitted());
    assert!(!owns.admits(SLOTS, key).await);
    asks.store.complete(&asks.binding, &batch, Completion::UNMEASURED, asks.clock.now());
    wait_for("the slot", || async { owns.admits(SLOTS, key).await }).await;

    // the callers cancelled these charges, so none holds a slot
    let key = pair.key();
    for _ in 0..20 {
        let mut batch = [one(SLOTS, key)];
        begun(asks.charge(&mut batch)).await;
    }
    // the owner answers calls in their order
    assert!(asks.admits(BURST, pair.key()).await);
    wait_for("the slot", || async { asks.store.is_settled() && owns.admits(SLOTS, key).await }).await;
}

#[tokio::test]
async fn a_request_that_goes_away_while_its_owner_is_asked_has_taken_nothing() {
    let pair = Pair::start([5, 5]).await;
    let [asks, owns] = &pair.nodes;
    let key = pair.key();
    for _ in 0..50 {
        let mut batch = [one(BURST, key)];
        begun(asks.charge(&mut batch)).await;
        tokio::task::yield_now().await;
    }
    assert!(asks.admits(BURST, pair.key()).await);
    wait_for("all to come back", || async {
        let ask = Charge { cost: 5, enforcement: Enforcement::DRY_RUN, ..one(BURST, key) };
        asks.store.is_settled() && owns.charge(&mut [ask]).await.charged[0].decision.is_admitted()
    })
    .await;
}

#[tokio::test]
async fn all_limits_of_a_request_are_charged_or_none_wherever_their_keys_are() {
    let pair = Pair::start([5, 5]).await;
    let [asks, owns] = &pair.nodes;
    let (theirs, own) = (pair.key(), LimitKey(7));
    let own = (0_u128..).map(|number| LimitKey(own.0 | number << 48)).find(|key| asks.cluster().owns(*key)).unwrap();
    let fits = |cost, key| Charge { cost, ..one(BURST, key) };
    for (theirs_asks, own_asks) in [(6, 1), (1, 6)] {
        let mut batch = [fits(theirs_asks, theirs), Charge { limit: SMALL, ..fits(own_asks, own) }];
        assert!(!asks.charge(&mut batch).await.charged.iter().all(|charged| charged.decision.is_admitted()));
    }
    wait_for("all to come back", || async {
        let ask = |limit, key| Charge { cost: 5, enforcement: Enforcement::DRY_RUN, ..one(limit, key) };
        let whole =
            async |node: &Node, charge: Charge| node.charge(&mut [charge]).await.charged[0].decision.is_admitted();
        asks.store.is_settled() && whole(owns, ask(BURST, theirs)).await && whole(asks, ask(SMALL, own)).await
    })
    .await;
}

#[tokio::test]
async fn keys_for_which_the_owner_has_no_room_share_its_common_bucket() {
    let pair = Pair::start([5, 5]).await;
    let [asks, owns] = &pair.nodes;
    assert!(asks.admits(SMALL, pair.key()).await);
    let (second, third) = (pair.key(), pair.key());
    assert!(asks.admits(SMALL, second).await);
    assert_eq!(asks.admitted(SMALL, third).await, 4);
    assert!(!owns.admits(SMALL, second).await);
    assert_eq!(owns.store.usage(&owns.binding)[SMALL].keys, 2);
}

/// A charge at the moment when its state moves is counted once, by the gateway that has the state then.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_gateway_that_leaves_while_all_its_keys_are_asked_for_refills_none() {
    const BURSTS: u64 = 1 << 40;
    const KEYS: usize = 900;
    let pair = Arc::new(Pair::start([BURSTS, BURSTS]).await);
    let keys: Arc<Vec<LimitKey>> = Arc::new((0..KEYS).map(|_| pair.key()).collect());
    let over = Arc::new(AtomicBool::new(false));
    let mut asking = JoinSet::new();
    for task in 0..8 {
        let (pair, keys, over) = (Arc::clone(&pair), Arc::clone(&keys), Arc::clone(&over));
        asking.spawn(async move {
            let mut passed = vec![0_u64; KEYS];
            let turns = (0..KEYS).cycle().skip(task * KEYS / 8);
            for turn in turns.take_while(|_| !over.load(Ordering::Relaxed)) {
                assert!(pair.nodes[task % 2].admits(BURST, keys[turn]).await);
                passed[turn] += 1;
                // a local decision never waits
                tokio::task::yield_now().await;
            }
            passed
        });
    }
    let [stays, leaves] = &pair.nodes;
    let known = |node: &Node| node.keys(BURST);
    wait_for("all keys to be known", || async { known(leaves) == KEYS as u64 }).await;
    leaves.cluster().leave();
    wait_for("all keys to have moved", || async { known(stays) == KEYS as u64 && known(leaves) == 0 }).await;
    over.store(true, Ordering::Relaxed);
    let passed = asking.join_all().await;
    for (position, key) in keys.iter().enumerate() {
        let passed: u64 = passed.iter().map(|passed| passed[position]).sum();
        let left = stays.charge(&mut [one(BURST, *key)]).await.charged[0].headroom.remaining.unwrap();
        let reports = || pair.nodes.each_ref().map(|node| node.cluster().report());
        assert_eq!(left + 1 + passed, BURSTS, "key {position}: {:#?}", reports());
    }
}

/// The owner charges a call that its caller has given up, after or before it learns of the slot that the request got
/// elsewhere.
#[test]
fn a_request_that_its_owner_answers_too_late_holds_one_slot() {
    for (seed, stall) in [(1, 150), (2, 400), (3, 800)] {
        let mut world = World::of(seed, 2, (1, 6), Setup::usual(5, ms(100)));
        world.start(0);
        world.start(1);
        assert!(world.wait_until(Nanos::from_secs(10), |world| world.is_quiet()));
        let owns = Arc::clone(&world.gateway(1).node);
        let mut keys = (0_u128..).map(|number| LimitKey(number << 48 | number)).filter(|key| owns.cluster().owns(*key));
        let (key, other) = (keys.next().unwrap(), keys.next().unwrap());

        world.stall(1, ms(stall));
        let asks = Arc::clone(&world.gateway(0).node);
        let node = Arc::clone(&asks);
        let batch = world.run_on(0, async move {
            let mut batch = [one(HELD, key)];
            assert_eq!(node.charge(&mut batch).await.source, DecisionSource::Local);
            batch
        });
        // the owner answers calls in their order
        assert!(world.wait_until(Nanos::from_secs(10), |world| {
            let node = Arc::clone(&asks);
            world.run_on(0, async move { node.charge(&mut [one(BURST, other)]).await.source == DecisionSource::Owner })
        }));
        let held = |world: &mut World| {
            let node = Arc::clone(&owns);
            MANY - world.run_on(1, async move { node.left(HELD, key).await })
        };
        assert!(
            world.wait_until(Nanos::from_secs(10), |world| asks.store.is_settled() && held(world) == 1),
            "stall {stall}"
        );
        let node = Arc::clone(&asks);
        world.run_on(0, async move {
            node.store.complete(&node.binding, &batch, Completion::UNMEASURED, node.clock.now());
        });
        assert!(world.wait_until(Nanos::from_secs(10), |world| held(world) == 0), "stall {stall}");
    }
}

/// A gateway counts another one as a member only after that one has reached it, and so can call it.
#[test]
fn gateways_that_find_each_other_hand_out_each_burst_once() {
    for pause in (1700..2200).step_by(60) {
        let mut setup = Setup::usual(5, ms(100));
        setup.founding.min_members = 2;
        let mut world = World::of(pause, 3, (3, 6), setup);
        world.start(0);
        world.pass(ms(pause));
        world.start(1);
        let keys: Vec<LimitKey> = (0..20_u128).map(|number| LimitKey(number << 48 | number)).collect();
        let mut passed = vec![0; keys.len()];
        let mut waiting = vec![0, 1];
        while !waiting.is_empty() {
            world.step();
            waiting.retain(|number| {
                let is_waiting = world.gateway(*number).node.cluster().waits_for().is_some();
                if !is_waiting {
                    let (node, keys) = (Arc::clone(&world.gateway(*number).node), keys.clone());
                    let admitted = world.run_on(*number, async move {
                        let mut admitted = Vec::new();
                        for key in keys {
                            admitted.push(node.admitted(BURST, key).await);
                        }
                        admitted
                    });
                    passed.iter_mut().zip(admitted).for_each(|(passed, admitted)| *passed += admitted);
                }
                is_waiting
            });
        }
        assert!(passed.iter().all(|passed| *passed == 5), "after {pause} ms: {passed:?}");
    }
}

/// No packet closes the connections of a machine that loses its power.
#[test]
fn a_slot_of_a_gateway_that_falls_silent_comes_back() {
    let mut world = World::of(1, 2, (1, 6), Setup::usual(5, ms(100)));
    world.start(0);
    world.start(1);
    assert!(world.wait_until(Nanos::from_secs(10), |world| world.is_quiet()));
    let owns = Arc::clone(&world.gateway(0).node);
    let key = (0_u128..).map(|number| LimitKey(number << 48 | number)).find(|key| owns.cluster().owns(*key)).unwrap();
    let node = Arc::clone(&world.gateway(1).node);
    assert!(world.run_on(1, async move { node.admits(HELD, key).await }));
    world.end(1, true);
    let left = |world: &mut World| {
        let node = Arc::clone(&owns);
        world.run_on(0, async move { node.left(HELD, key).await })
    };
    assert_eq!(left(&mut world), MANY - 1);
    assert!(world.wait_until(Nanos::from_secs(20), |world| left(world) == MANY));
}

/// A gateway that ends hands its keys over, with the charges of requests that still run through others.
#[test]
fn a_refund_goes_to_the_new_owner_after_the_gateway_that_charged_has_ended() {
    let mut world = World::of(1, 3, (1, 6), Setup::usual(5, ms(100)));
    (0..3).for_each(|number| world.start(number));
    assert!(world.wait_until(Nanos::from_secs(10), |world| world.is_quiet()));
    let (asks, ends) = (Arc::clone(&world.gateway(0).node), Arc::clone(&world.gateway(2).node));
    let keys = (0_u128..).map(|number| LimitKey(number << 48 | number)).filter(|key| ends.cluster().owns(*key));
    let keys: Vec<LimitKey> = keys.take(6).collect();
    let (node, charged) = (Arc::clone(&asks), keys.clone());
    let refunds = world.run_on(0, async move {
        let mut refunds = Vec::new();
        for (limit, key) in charged.into_iter().flat_map(|key| [(BURST, key), (LOG, key)]) {
            let (mut batch, now) = ([one(limit, key)], node.clock.now());
            let receipt = node.store.charge(&node.binding, &mut batch, now).await;
            assert_eq!(receipt.source, DecisionSource::Owner);
            let [charge] = batch;
            refunds.push(Refund::of(charge, receipt.charged[0].headroom, now));
        }
        refunds
    });
    ends.cluster().leave();
    assert!(world.wait_until(Nanos::from_secs(10), |_| ends.store.is_settled()));
    world.end(2, false);
    let node = Arc::clone(&asks);
    world.run_on(0, async move { node.store.refund(&node.binding, &refunds, node.clock.now()) });
    assert!(world.wait_until(Nanos::from_secs(10), |world| world.is_quiet()));
    world.run_on(0, async move {
        for key in keys {
            assert_eq!([asks.admitted(BURST, key).await, asks.admitted(LOG, key).await], [5, 2]);
        }
    });
}

/// A stand-in makes a charge that its caller has given up, and pushes the state with the slot to the owner.
#[test]
fn a_slot_that_a_stand_in_takes_too_late_ends_at_the_owner_too() {
    for seed in 0..8 {
        let mut world = World::of(seed, 3, (1, 6), Setup::usual(5, ms(100)));
        (0..3).for_each(|number| world.start(number));
        assert!(world.wait_until(Nanos::from_secs(10), |world| world.is_quiet()));
        let addresses = world.environment.network.addresses();
        let ring = Ring::new(addresses.iter().map(|address| Member { address: *address, weight: 1 }));
        let order = [addresses[1], addresses[2], addresses[0]];
        let mut keys = (0_u128..).map(|number| LimitKey(number << 48 | number));
        let key = keys.find(|key| ring.order(*key).as_slice() == order).unwrap();
        let [asks, owns] = [0, 1].map(|number| Arc::clone(&world.gateway(number).node));

        world.environment.network.slow(Some((pair(0, 2), 400)));
        world.stall(1, ms(300));
        let node = Arc::clone(&asks);
        let batch = world.run_on(0, async move {
            let mut batch = [one(HELD, key)];
            assert!(node.charge(&mut batch).await.charged[0].decision.is_admitted());
            batch
        });
        world.pass(Nanos::from_secs(2));
        world.environment.network.slow(None);
        assert_eq!(world.gateway(2).node.cluster().report().decisions[0], ("stand_in", 1), "seed {seed}");
        world.run_on(0, async move {
            asks.store.complete(&asks.binding, &batch, Completion::UNMEASURED, asks.clock.now());
        });
        let is_free = |world: &mut World| {
            let node = Arc::clone(&owns);
            world.run_on(1, async move { node.left(HELD, key).await }) == MANY
        };
        assert!(world.wait_until(Nanos::from_secs(8), is_free), "seed {seed}");
    }
}
