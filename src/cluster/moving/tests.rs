use super::*;
use crate::cluster::members::{Beat, Founding, Members, Standing};
use crate::cluster::ring::{Member, RingHash};

const NOW: Nanos = Nanos::from_secs(1000);
const LATER: Nanos = NOW.saturating_add(LENT);

fn at(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number], 7946))
}

fn ring(numbers: &[u8]) -> Arc<Ring> {
    Arc::new(Ring::new(numbers.iter().map(|number| Member { address: at(*number), weight: 1 })))
}

/// A key that `owner` owns in `ring`, and `before` in `older`.
fn key(ring: &Ring, owner: u8, older: &Ring, before: u8) -> LimitKey {
    let mut keys = (0_u128..).map(|number| LimitKey(number << 96));
    keys.find(|key| ring.owner(*key) == Some(at(owner)) && older.owner(*key) == Some(at(before))).unwrap()
}

/// Peer 2, which says that it is tidy under `ring`, or not.
fn peer(ring: RingHash, tidy: bool) -> Peer {
    let mut members = Members::new(Member { address: at(1), weight: 1 }, Founding::default(), 1, NOW);
    members.told(&[Member { address: at(1), weight: 1 }, Member { address: at(2), weight: 1 }], NOW);
    members.heard(at(2), Beat { standing: Standing::Member, life: 2, ring, tidy, counts: None }, NOW);
    *members.peers().next().unwrap()
}

#[test]
fn a_state_may_be_with_whom_it_was_lent_to_with_its_owner_and_with_the_owners_before() {
    let (before, now) = (ring(&[2, 3]), ring(&[1, 2, 3]));
    let moving = Moving::default();
    let mine = key(&now, 1, &before, 3);
    assert!(!moving.is_going_on());
    assert!(moving.sources(mine, at(1), &now).is_empty());
    moving.turned(&before, NOW);
    assert!(moving.is_going_on());
    assert_eq!(moving.sources(mine, at(1), &now).as_slice(), [at(3)]);
    assert_eq!(moving.lend(mine, at(2), NOW), None);
    // what is not there is not lent, and is where it was
    let before = moving.lend(mine, at(4), NOW);
    moving.keep(mine, before);
    assert_eq!(moving.sources(mine, at(1), &now).as_slice(), [at(2), at(3)]);
    // as one sees it who does not own the key
    assert_eq!(moving.sources(mine, at(2), &now).as_slice(), [at(1), at(3)]);
}

#[test]
fn nobody_is_asked_any_more_when_all_have_said_that_they_have_nothing() {
    let (before, now) = (ring(&[2]), ring(&[1, 2]));
    let moving = Moving::default();
    moving.turned(&before, NOW);
    assert!(moving.has_just_turned(NOW) && !moving.has_just_turned(LATER));
    for untidy in [peer(now.hash(), false), peer(before.hash(), true)] {
        moving.settle(&now, [untidy].iter(), true, LATER);
        assert!(moving.is_going_on());
    }
    // nor before this node has told whose requests hold what
    moving.settle(&now, [peer(now.hash(), true)].iter(), false, LATER);
    assert!(moving.is_going_on());
    moving.settle(&now, [peer(now.hash(), true)].iter(), true, LATER);
    assert!(!moving.is_going_on() && !moving.has_just_turned(NOW));
    assert!(moving.sources(key(&now, 1, &before, 2), at(1), &now).is_empty());
}

#[test]
fn what_was_lent_is_remembered_until_the_other_side_has_told_of_it() {
    let now = ring(&[1, 2]);
    let moving = Moving::default();
    moving.lend(LimitKey(7), at(2), NOW);
    moving.settle(&now, [peer(now.hash(), true)].iter(), true, NOW);
    assert!(moving.is_going_on());
    moving.settle(&now, [peer(now.hash(), false)].iter(), true, LATER);
    assert!(moving.is_going_on());
    moving.settle(&now, [peer(now.hash(), true)].iter(), true, LATER);
    assert!(!moving.is_going_on());
}

#[tokio::test]
async fn a_state_is_asked_for_by_one_at_a_time() {
    let moving = Moving::default();
    let patience = Nanos::from_secs(3600);
    let coming = moving.comes(LimitKey(1), patience).await;
    assert!(coming.is_some());
    assert!(moving.comes(LimitKey(2), patience).await.is_some());
    let second = async { moving.comes(LimitKey(1), patience).await.is_none() };
    let ends = async {
        tokio::task::yield_now().await;
        drop(coming);
    };
    let (waited, ()) = tokio::join!(second, ends);
    assert!(waited);
}

#[tokio::test]
async fn a_state_that_is_on_its_way_is_waited_for() {
    let moving = Moving::default();
    let patience = Nanos::from_secs(3600);
    moving.leaves(LimitKey(1));
    moving.rests(LimitKey(2), false, patience).await;
    let waits = moving.rests(LimitKey(1), false, patience);
    let ends = async {
        tokio::task::yield_now().await;
        moving.left();
    };
    tokio::join!(waits, ends);
    // of two that ask each other one waits less
    let coming = moving.comes(LimitKey(3), patience).await;
    moving.rests(LimitKey(3), true, Nanos::new(8)).await;
    drop(coming);
}

#[test]
fn who_decides_on_a_state_sees_that_it_went_or_that_the_members_changed_meanwhile() {
    let moving = Moving::default();
    let keys = [LimitKey(1), LimitKey(2)];
    let look = || moving.seen(keys.into_iter());
    let gone = |seen: &Seen| [0, 1].map(|position| moving.has_left(seen, position));
    for goes in [Moving::leaves, Moving::departs] {
        let seen = look();
        assert_eq!(gone(&seen), [false, false]);
        goes(&moving, LimitKey(2));
        assert_eq!((gone(&seen), moving.has_left(&seen.only(&[1]), 0)), ([false, true], true));
    }
    let seen = look();
    moving.turned(&ring(&[1, 2]), NOW);
    assert_eq!(gone(&seen), [true, true]);
    assert_eq!(gone(&look()), [false, false]);
}
