use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn subject(key: u128) -> LimitedKey {
    LimitedKey { limit: "guard".to_owned(), key: vec![("customer".to_owned(), Some(key.to_string()))] }
}

/// A stream in which few keys come often and many seldom.
fn skewed() -> impl Strategy<Value = Vec<u128>> {
    prop::collection::vec(prop_oneof![3 => 0..4_u128, 2 => 4..40_u128, 1 => 40..4000_u128], 0..1200)
}

fn exact(keys: impl IntoIterator<Item = u128>) -> HashMap<u128, u64> {
    let mut counts: HashMap<u128, u64> = HashMap::new();
    for key in keys {
        *counts.entry(key).or_default() += 1;
    }
    counts
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_sketch_is_too_high_by_its_errors_at_most_and_misses_nobody_above_the_bound(
        keys in skewed(),
        counters in 1_usize..60,
    ) {
        let mut sketch = Sketch::new(counters);
        for key in &keys {
            sketch.add(*key, || *key);
        }
        let (truth, events) = (exact(keys.iter().copied()), keys.len() as u64);
        let bound = events / counters as u64;
        prop_assert_eq!(sketch.events(), events);
        prop_assert!(sketch.floor() <= bound);
        let mut kept = HashMap::new();
        for Counter { key, name, count, error } in sketch.counters() {
            prop_assert_eq!(key, *name);
            prop_assert!(error <= bound);
            prop_assert!(count >= truth[&key] && count - error <= truth[&key]);
            prop_assert!(kept.insert(key, count).is_none(), "a key has one counter");
        }
        prop_assert!(kept.len() <= counters);
        for (key, count) in &truth {
            prop_assert!(*count <= sketch.floor() || kept.contains_key(key), "{} of {}", count, events);
        }
    }

    #[test]
    fn both_minutes_together_keep_the_bound_over_all_shards(first in skewed(), second in skewed()) {
        let offenders = Offenders::default();
        let (now, then) = (Nanos::from_secs(6_000), Nanos::from_secs(6_065));
        let spread = |key: u128| LimitKey(key.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for (keys, at) in [(&first, now), (&second, then)] {
            for key in keys {
                offenders.denied(spread(*key), at, || subject(*key));
            }
        }
        let check = |top: TopOffenders, truth: HashMap<u128, u64>| {
            let mut kept = HashMap::new();
            for Offender { subject, denied, error } in &top.offenders {
                let key: u128 = subject.line().parse().unwrap();
                let count = truth[&key];
                prop_assert!(*denied >= count && denied - error <= count);
                kept.insert(key, *denied);
            }
            for (key, count) in &truth {
                prop_assert!(*count <= top.error || kept.contains_key(key));
            }
            prop_assert_eq!(top.denials, truth.values().sum::<u64>());
            prop_assert!(top.offenders.windows(2).all(|two| two[0].denied >= two[1].denied));
            Ok(())
        };
        check(offenders.recent(then), exact(first.iter().chain(&second).copied()))?;
        check(offenders.of_last_minute(then), exact(first))?;
    }
}

#[test]
fn minutes_close_and_are_forgotten() {
    let offenders = Offenders::default();
    let at = |seconds: u64| Nanos::from_secs(600 + seconds);
    for _ in 0..3 {
        offenders.denied(LimitKey(7), at(0), || subject(7));
    }
    let denied = |top: TopOffenders| top.offenders.iter().map(|one| one.denied).sum::<u64>();
    assert_eq!((denied(offenders.recent(at(59))), denied(offenders.of_last_minute(at(59)))), (3, 0));
    assert_eq!((denied(offenders.recent(at(60))), denied(offenders.of_last_minute(at(60)))), (3, 3));
    offenders.denied(LimitKey(7), at(61), || subject(7));
    assert_eq!((denied(offenders.recent(at(62))), denied(offenders.of_last_minute(at(62)))), (4, 3));
    assert_eq!((denied(offenders.recent(at(120))), denied(offenders.of_last_minute(at(120)))), (1, 1));
    assert_eq!(offenders.recent(at(300)), TopOffenders { from: at(240), until: at(300), ..TopOffenders::default() });
    // a clock that is set back closes no minute
    offenders.denied(LimitKey(7), at(310), || subject(7));
    offenders.denied(LimitKey(7), at(200), || subject(7));
    assert_eq!(denied(offenders.recent(at(311))), 2);
}
