use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn member(number: u8, weight: u32) -> Member {
    Member { address: SocketAddr::from(([10, 0, 0, number], 7946)), weight }
}

/// Keys as hashing makes them: their fingerprints are evenly distributed.
fn keys(count: u64) -> impl Iterator<Item = LimitKey> {
    (0..count).map(|number| {
        let mut hash = SipHasher13::new();
        hash.write_u64(number);
        LimitKey(hash.finish().into())
    })
}

fn owners(ring: &Ring, count: u64) -> Vec<SocketAddr> {
    keys(count).map(|key| ring.owner(key).unwrap()).collect()
}

fn members() -> impl Strategy<Value = Vec<Member>> {
    prop::collection::btree_map(1_u8..=40, 1_u32..=20, 1..12)
        .prop_map(|members| members.into_iter().map(|(number, weight)| member(number, weight)).collect())
}

proptest! {
    #[test]
    fn nodes_agree_whatever_order_they_know_the_members_in(members in members(), seed in any::<u64>()) {
        let mut shuffled = members.clone();
        shuffled.sort_by_key(|member| {
            let mut hash = SipHasher13::new_with_keys(seed, 0);
            write_address(&mut hash, member.address);
            hash.finish()
        });
        shuffled.push(shuffled[0]);
        let (one, other) = (Ring::new(members), Ring::new(shuffled));
        prop_assert_eq!(one.hash(), other.hash());
        for key in keys(64) {
            prop_assert_eq!(one.order(key), other.order(key));
        }
    }

    #[test]
    fn the_first_in_order_owns_and_everybody_is_in_order_once(members in members()) {
        let ring = Ring::new(members.clone());
        for key in keys(64) {
            let mut order = ring.order(key);
            prop_assert_eq!(ring.owner(key), order.first().copied());
            order.sort_unstable();
            let all: Order = members.iter().map(|member| member.address).collect();
            prop_assert_eq!(order, all);
        }
    }

    #[test]
    fn the_next_member_in_order_stands_in_for_one_that_goes(members in members(), gone in any::<prop::sample::Index>()) {
        let gone = members[gone.index(members.len())].address;
        let before = Ring::new(members.clone());
        let after = Ring::new(members.into_iter().filter(|member| member.address != gone));
        for key in keys(256) {
            let rest: Order = before.order(key).into_iter().filter(|address| *address != gone).collect();
            prop_assert_eq!(after.order(key), rest);
        }
    }

    #[test]
    fn other_members_or_weights_are_another_ring(members in members(), changed in any::<prop::sample::Index>()) {
        let changed = changed.index(members.len());
        let before = Ring::new(members.clone()).hash();
        let mut heavier = members.clone();
        heavier[changed].weight += 1;
        prop_assert_ne!(Ring::new(heavier).hash(), before);
        let fewer = members.iter().enumerate().filter(|(position, _)| *position != changed).map(|(_, member)| *member);
        prop_assert_ne!(Ring::new(fewer).hash(), before);
    }
}

#[test]
fn shares_are_as_the_weights() {
    let ring = Ring::new([member(1, 1), member(2, 2), member(3, 5)]);
    let mut shares: BTreeMap<SocketAddr, u32> = BTreeMap::new();
    for owner in owners(&ring, 80_000) {
        *shares.entry(owner).or_default() += 1;
    }
    let shares: Vec<u32> = shares.into_values().collect();
    // five standard deviations of a share of an eighth are 470 keys
    for (share, expected) in shares.into_iter().zip([10_000, 20_000, 50_000]) {
        assert!(share.abs_diff(expected) < 700, "{share} of {expected}");
    }
}

#[test]
fn a_member_that_joins_takes_its_share_from_all_and_moves_nothing_else() {
    let three = Ring::new((1..=3).map(|number| member(number, 1)));
    let four = Ring::new((1..=4).map(|number| member(number, 1)));
    let new = member(4, 1).address;
    let (before, after) = (owners(&three, 40_000), owners(&four, 40_000));
    let moved: Vec<_> = before.iter().zip(&after).filter(|(before, after)| before != after).collect();
    assert!(moved.iter().all(|(_, after)| **after == new));
    assert!(moved.len().abs_diff(10_000) < 500, "{}", moved.len());
}

#[test]
fn a_member_with_more_weight_only_gains_keys() {
    let before = owners(&Ring::new([member(1, 1), member(2, 1), member(3, 1)]), 20_000);
    let after = owners(&Ring::new([member(1, 1), member(2, 3), member(3, 1)]), 20_000);
    let heavy = member(2, 3).address;
    assert!(before.iter().zip(&after).all(|(before, after)| before == after || *after == heavy));
}

#[test]
fn keys_with_one_home_have_one_owner() {
    let ring = Ring::new((1..=5).map(|number| member(number, 1)));
    let first = keys(100).last().unwrap();
    for low in 0..100 {
        let beside = LimitKey(first.0 >> 48 << 48 | low);
        assert_eq!(ring.order(beside), ring.order(first));
    }
}

#[test]
fn hashes_and_owners_are_the_same_in_every_version() {
    let ring = Ring::new([member(1, 1), member(2, 2), member(3, 1)]);
    assert_eq!(ring.hash().to_string(), "6038ded441c42258");
    let named: Vec<u8> = owners(&ring, 12).iter().map(|owner| owner.to_string().as_bytes()[7]).collect();
    assert_eq!(String::from_utf8(named).unwrap(), "213313331312");
}

#[test]
fn nobody_owns_anything_without_members() {
    let ring = Ring::new([]);
    assert_eq!(ring.owner(LimitKey(1)), None);
    assert!(ring.order(LimitKey(1)).is_empty());
}
