use super::*;
use crate::cluster::members::{Founding, Heartbeat, MemberState, Members};
use crate::cluster::ring::{Member, RingHash};

const NOW: Nanos = Nanos::from_secs(1000);
const LATER: Nanos = NOW.saturating_add(LENT_FOR);

fn at(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number], 7946))
}

fn ring(numbers: &[u8]) -> Arc<Ring> {
    Arc::new(Ring::new(numbers.iter().map(|number| Member { address: at(*number), weight: 1 })))
}

/// A key that `owner` owns in `ring`, and `before` in `older`.
fn key(ring: &Ring, owner: u8, older: &Ring, before: u8) -> LimitKey {
    let mut keys = (0_u128..).map(|number| LimitKey(number << 48));
    keys.find(|key| ring.owner(*key) == Some(at(owner)) && older.owner(*key) == Some(at(before))).unwrap()
}

/// Peer 2, which says that it has drained under `ring`, or not.
fn peer(ring: RingHash, drained: bool) -> PeerRecord {
    let mut members = Members::new(Member { address: at(1), weight: 1 }, Founding::default(), 1, NOW);
    members.set_listed(&[Member { address: at(1), weight: 1 }, Member { address: at(2), weight: 1 }], NOW);
    members.record_heartbeat(
        at(2),
        Heartbeat { member_state: MemberState::Member, incarnation: 2, ring, drained, accepted_incarnation: None },
        NOW,
    );
    *members.peers().next().unwrap()
}

#[test]
fn a_state_may_be_with_whom_it_was_lent_to_with_its_owner_and_with_the_owners_before() {
    let (before, now) = (ring(&[2, 3]), ring(&[1, 2, 3]));
    let migration = MigrationState::default();
    let mine = key(&now, 1, &before, 3);
    assert!(!migration.is_active());
    assert!(migration.sources(mine, at(1), &now).is_empty());
    migration.ring_changed(&before, NOW);
    assert!(migration.is_active());
    assert_eq!(migration.sources(mine, at(1), &now).as_slice(), [at(3)]);
    for to in [2, 4, 2] {
        migration.lend(mine, at(to), NOW);
    }
    assert_eq!(migration.sources(mine, at(1), &now).as_slice(), [at(2), at(4), at(3)]);
    // as a gateway sees it that does not own the key
    assert_eq!(migration.sources(mine, at(2), &now).as_slice(), [at(4), at(1), at(3)]);
}

#[test]
fn nobody_is_asked_any_more_when_all_have_said_that_they_have_nothing() {
    let (before, now) = (ring(&[2]), ring(&[1, 2]));
    let migration = MigrationState::default();
    migration.ring_changed(&before, NOW);
    assert!(migration.has_just_changed(NOW) && !migration.has_just_changed(LATER));
    for untidy in [peer(now.hash(), false), peer(before.hash(), true)] {
        migration.settle(&now, [untidy].iter(), true, LATER);
        assert!(migration.is_active());
    }
    // nor before this gateway has announced the slots of its requests
    migration.settle(&now, [peer(now.hash(), true)].iter(), false, LATER);
    assert!(migration.is_active());
    migration.settle(&now, [peer(now.hash(), true)].iter(), true, LATER);
    assert!(!migration.is_active() && !migration.has_just_changed(NOW));
    assert!(migration.sources(key(&now, 1, &before, 2), at(1), &now).is_empty());
}

#[test]
fn a_lent_state_is_remembered_until_the_other_side_has_told_of_it() {
    let now = ring(&[1, 2]);
    let migration = MigrationState::default();
    migration.lend(LimitKey(7), at(2), NOW);
    migration.settle(&now, [peer(now.hash(), true)].iter(), true, NOW);
    assert!(migration.is_active());
    migration.settle(&now, [peer(now.hash(), false)].iter(), true, LATER);
    assert!(migration.is_active());
    // it is asked about all keys then, and no loan has to be remembered
    assert!(migration.past.lock().lent.is_empty());
    assert_eq!(migration.sources(LimitKey(7), at(1), &now).as_slice(), [at(2)]);
    migration.settle(&now, [peer(now.hash(), true)].iter(), true, LATER);
    assert!(!migration.is_active());
}

#[test]
fn a_gateway_that_asked_and_cannot_be_reached_any_more_is_not_waited_for() {
    let now = ring(&[1]);
    let migration = MigrationState::default();
    let settle = || migration.settle(&now, std::iter::empty(), true, NOW);
    migration.asked_under_other_ring(at(2), NOW);
    settle();
    assert!(migration.differs(at(2)));
    // it started while a connection to it was tried, and has sent a request since
    migration.unreachable(at(2), NOW.saturating_sub(Nanos::SECOND));
    migration.unreachable(at(3), NOW);
    settle();
    assert!(migration.differs(at(2)));
    migration.unreachable(at(2), NOW);
    settle();
    assert!(!migration.differs(at(2)) && !migration.is_active());
}

#[tokio::test]
async fn a_state_is_asked_for_by_one_at_a_time() {
    let migration = Arc::new(MigrationState::default());
    let [first, second, third] = [(); 3].map(|()| migration.begin_fetch(LimitKey(1)));
    assert!(first.has_to_ask().await && migration.begin_fetch(LimitKey(2)).has_to_ask().await);
    let ends = async {
        tokio::task::yield_now().await;
        first.end();
    };
    assert!(!tokio::join!(second.has_to_ask(), ends).0);
    // the state has left again
    assert!(second.has_to_ask().await);
    let goes_away = async move {
        tokio::task::yield_now().await;
        drop(second);
    };
    assert!(tokio::join!(third.has_to_ask(), goes_away).0);
}

/// The new place of the state was asked too early.
#[tokio::test]
async fn a_request_that_waited_for_a_fetch_from_before_the_state_went_fetches_it_again() {
    let stays = |_: &MigrationState| {};
    let goes = |migration: &MigrationState| migration.begin_push(LimitKey(1), NOW);
    let changes = |migration: &MigrationState| migration.ring_changed(&ring(&[1, 2]), NOW);
    let is_said_to_have_gone = |migration: &MigrationState| migration.note_moved(LimitKey(1), &[], NOW);
    let happenings: [&dyn Fn(&MigrationState); 4] = [&stays, &goes, &changes, &is_said_to_have_gone];
    for (happens, again) in happenings.into_iter().zip([false, true, true, true]) {
        let migration = Arc::new(MigrationState::default());
        let fetch = migration.begin_fetch(LimitKey(1));
        assert!(fetch.has_to_ask().await);
        happens(&migration);
        let epoch = migration.ownership_epoch(std::iter::once(LimitKey(1)));
        fetch.end();
        assert_eq!(migration.may_have_moved(&epoch, 0), again);
    }
}

#[tokio::test]
async fn a_fetched_state_is_used_before_it_is_given_away() {
    let migration = Arc::new(MigrationState::default());
    let fetch = migration.begin_fetch(LimitKey(1));
    let gives = migration.wait_until_at_rest(LimitKey(1), false, Nanos::from_secs(3600));
    let mut gives = std::pin::pin!(gives);
    assert!(std::future::poll_fn(|context| std::task::Poll::Ready(gives.as_mut().poll(context))).await.is_pending());
    // but only by requests that needed it before
    let _later = migration.begin_fetch(LimitKey(1));
    drop(fetch);
    gives.await;
}

#[tokio::test]
async fn a_state_that_is_on_its_way_is_waited_for() {
    let migration = Arc::new(MigrationState::default());
    let patience = Nanos::from_secs(3600);
    migration.begin_push(LimitKey(1), NOW);
    migration.wait_until_at_rest(LimitKey(2), false, patience).await;
    let waits = migration.wait_until_at_rest(LimitKey(1), false, patience);
    let ends = async {
        tokio::task::yield_now().await;
        migration.end_push();
    };
    tokio::join!(waits, ends);
    // one of two gateways that ask each other waits for a shorter time
    let _fetch = migration.begin_fetch(LimitKey(3));
    migration.wait_until_at_rest(LimitKey(3), true, Nanos::new(8)).await;
}

#[test]
fn a_decision_sees_that_its_state_went_or_that_the_members_changed_meanwhile() {
    let migration = MigrationState::default();
    let keys = [LimitKey(1), LimitKey(2)];
    let look = || migration.ownership_epoch(keys.into_iter());
    let gone = |epoch: &OwnershipEpoch| [0, 1].map(|position| migration.may_have_moved(epoch, position));
    for goes in [|migration: &MigrationState, key| migration.begin_push(key, NOW), MigrationState::count_departure] {
        let epoch = look();
        assert_eq!(gone(&epoch), [false, false]);
        goes(&migration, LimitKey(2));
        assert_eq!(gone(&epoch), [false, true]);
    }
    let epoch = look();
    migration.ring_changed(&ring(&[1, 2]), NOW);
    assert_eq!(gone(&epoch), [true, true]);
    assert_eq!(gone(&look()), [false, false]);
}
