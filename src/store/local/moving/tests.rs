use std::collections::HashSet;
use std::slice;

use super::*;
use crate::charge::{Charged, Manner, RuleRef};
use crate::store::local::snapshot::tests::{at, rule, spec};

/// Keys are hashes: small numbers are spread over all 128 bits.
fn key(number: u128) -> LimitKey {
    LimitKey((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

fn charge(number: u128, cost: u64) -> Charge {
    Charge::new(0, RuleRef::Listed(0), key(number), cost, Manner::USUAL)
}

/// A store with one limit.
struct Place {
    store: LocalStore,
    binding: Binding,
}

impl Place {
    fn new(rules: &[Rule]) -> Self {
        let store = LocalStore::new();
        let binding = store.bind(&[spec(rules)]);
        Self { store, binding }
    }

    fn charge(&self, number: u128, cost: u64, now: Nanos) -> Charged {
        self.store.charge(&self.binding, &mut [charge(number, cost)], now)[0]
    }

    fn knows(&self, number: u128) -> bool {
        self.store.misses(&self.binding, &charge(number, 1)).is_none()
    }

    fn keys(&self) -> u64 {
        self.store.usage(&self.binding)[0].keys
    }

    fn identity(&self) -> Identity {
        let table = &self.binding.limits[0].table;
        Identity { name: table.name.clone(), algorithm: table.algorithm.as_str().to_owned(), key: 9, max_keys: 10 }
    }

    /// All that belongs elsewhere, part by part.
    fn take_moved(&self, to: impl Fn(LimitKey) -> Option<usize>, now: Nanos) -> Vec<(usize, States)> {
        let (mut walk, mut all) = (Walk::default(), Vec::new());
        while !walk.is_over {
            all.extend(self.store.take_moved(&mut walk, &to, now));
        }
        all
    }
}

#[test]
fn a_key_that_moved_goes_on_where_it_was_under_every_algorithm() {
    for algorithm in AlgorithmName::ALL.iter().copied().filter(|algorithm| !algorithm.holds()) {
        let rules = [rule(algorithm)];
        let [stays, from, to] = [(); 3].map(|()| Place::new(&rules));
        for second in 0..7 {
            assert_eq!(from.charge(1, 1, at(second)), stays.charge(1, 1, at(second)));
        }
        let states = from.store.take(&from.identity(), key(1)).unwrap();
        assert!(!from.knows(1));
        assert_eq!(from.keys(), 0);
        assert_eq!(to.store.put(&states), Received { kept: 1, ..Received::default() });
        assert!(to.knows(1));
        for second in 7..100 {
            let (moved, stayed) = (to.charge(1, 1, at(second)), stays.charge(1, 1, at(second)));
            assert_eq!(moved, stayed, "{algorithm:?} after {second} s");
        }
    }
}

#[test]
fn what_is_held_while_requests_run_does_not_move() {
    for algorithm in AlgorithmName::ALL.iter().copied().filter(|algorithm| algorithm.holds()) {
        let place = Place::new(&[rule(algorithm)]);
        place.charge(1, 1, at(0));
        assert_eq!(place.store.take(&place.identity(), key(1)), None);
        assert!(place.take_moved(|_| Some(0), at(0)).is_empty());
        assert_eq!(place.keys(), 1);
    }
}

#[test]
fn only_what_belongs_elsewhere_is_taken_and_all_of_it_in_parts() {
    let rules = [rule(AlgorithmName::Gcra)];
    let (from, to) = (Place::new(&rules), Place::new(&rules));
    let keys = 20_000;
    for number in 0..keys {
        from.charge(number, 2, at(0));
    }
    let place = |key: LimitKey| match key.0 % 4 {
        0 | 1 => None,
        other => usize::try_from(other).ok(),
    };
    let parts = from.take_moved(place, at(0));
    let expected = (0..keys).filter(|number| place(key(*number)).is_some()).count();
    assert_eq!(parts.iter().map(|(_, states)| states.count).sum::<u64>(), expected as u64);
    assert_eq!(from.keys(), (keys - expected as u128) as u64);
    let places: HashSet<usize> = parts.iter().map(|(place, _)| *place).collect();
    assert_eq!(places, HashSet::from([2, 3]));
    for (_, states) in &parts {
        assert!(states.cells.len() <= PART + 100, "{}", states.cells.len());
        assert_eq!(to.store.put(states), Received { kept: states.count, ..Received::default() });
    }
    for number in 0..keys {
        let (here, there) = match place(key(number)) {
            None => (&from, &to),
            Some(_) => (&to, &from),
        };
        assert!(here.knows(number));
        assert!(!there.knows(number));
    }
    assert!(from.take_moved(place, at(0)).is_empty());
}

#[test]
fn a_state_that_is_there_stays() {
    let rules = [rule(AlgorithmName::Gcra)];
    let [from, to, alone] = [(); 3].map(|()| Place::new(&rules));
    from.charge(1, 1, at(0));
    to.charge(1, 4, at(0));
    alone.charge(1, 4, at(0));
    let states = from.store.take(&from.identity(), key(1)).unwrap();
    assert_eq!(to.store.put(&states), Received { known: 1, ..Received::default() });
    assert_eq!(to.charge(1, 1, at(0)), alone.charge(1, 1, at(0)));
}

#[test]
fn what_is_as_good_as_new_is_forgotten_instead() {
    let place = Place::new(&[rule(AlgorithmName::Gcra)]);
    place.charge(1, 1, at(0));
    assert!(place.take_moved(|_| Some(0), at(3600)).is_empty());
    assert_eq!(place.keys(), 0);
}

#[test]
fn the_common_bucket_of_a_full_table_stays_and_a_full_table_takes_what_comes() {
    let rules = [rule(AlgorithmName::Gcra)];
    let bound = |store: LocalStore| {
        let binding = store.bind(&[LimitSpec { max_keys: 2, ..spec(&rules) }]);
        Place { store, binding }
    };
    let (from, to) = (bound(LocalStore::new()), bound(LocalStore::new()));
    for number in 0..4 {
        from.charge(number, 1, at(0));
        to.charge(number + 10, 1, at(0));
    }
    assert_eq!((from.keys(), to.keys()), (3, 3));
    let parts = from.take_moved(|_| Some(0), at(0));
    assert_eq!(from.keys(), 1);
    assert_eq!(parts.iter().map(|(_, states)| to.store.put(states).kept).sum::<u64>(), 2);
    assert_eq!(to.keys(), 5);
}

#[test]
fn a_key_meets_the_parameters_of_where_it_comes_to_with_what_it_has_used() {
    let half = rule(AlgorithmName::Gcra);
    let mut arguments = half.arguments();
    arguments.set("burst", crate::algorithm::Value::Whole(10));
    let wide = AlgorithmName::Gcra.build(&arguments).unwrap();
    let (from, to) = (Place::new(slice::from_ref(&half)), Place::new(slice::from_ref(&wide)));
    let carried = Place::new(slice::from_ref(&half));
    for place in [&from, &carried] {
        place.charge(1, 3, at(0));
    }
    to.store.put(&from.store.take(&from.identity(), key(1)).unwrap());
    let after_reload = carried.store.bind(&[spec(slice::from_ref(&wide))]);
    let expected = carried.store.charge(&after_reload, &mut [charge(1, 0)], at(0))[0];
    assert_eq!(to.charge(1, 0, at(0)), expected);
}

#[test]
fn what_is_not_understood_is_counted_and_changes_nothing() {
    let place = Place::new(&[rule(AlgorithmName::Gcra)]);
    place.charge(1, 1, at(0));
    let states = place.store.take(&place.identity(), key(1)).unwrap();
    let foreign = Identity { algorithm: "future".to_owned(), ..states.limit.clone() };
    let unknown = Received { unknown: 1, ..Received::default() };
    assert_eq!(place.store.put(&States { limit: foreign, ..states.clone() }), unknown);
    assert_eq!(place.store.put(&States { rules: Vec::new(), ..states.clone() }), unknown);
    assert_eq!(place.store.put(&States { cells: states.cells[..9].to_vec(), ..states.clone() }), unknown);
    let too_many = States { count: u64::MAX, ..states };
    assert_eq!(place.store.put(&too_many), Received { kept: 1, unknown: u64::MAX - 1, known: 0 });
}
