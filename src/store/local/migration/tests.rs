use std::collections::HashSet;
use std::slice;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::algorithm::{AlgorithmName, Value};
use crate::charge::{Charged, Enforcement, Mode, RuleRef, Sharing, Slot};
use crate::store::local::StateElsewhere;
use crate::store::local::snapshot::tests::{at, rule, spec};

/// A key: hashes small numbers so that they spread over all 128 bits.
fn key(number: u128) -> LimitKey {
    LimitKey((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

fn charge(number: u128, cost: u64) -> Charge {
    Charge::new(0, RuleRef::Listed(0), key(number), cost, Enforcement::DEFAULT)
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

    fn identity(&self) -> LimitIdentity {
        let table = &self.binding.limits[0].table;
        LimitIdentity {
            name: table.name.clone(),
            algorithm: table.algorithm.as_str().to_owned(),
            key_kind: 9,
            max_keys: 10,
        }
    }

    /// All states that belong to other places, part by part.
    fn take_moved(&self, to: impl Fn(LimitKey) -> Option<usize>, now: Nanos) -> Vec<(usize, StateBatch)> {
        let (mut cursor, mut all) = (StoreCursor::default(), Vec::new());
        while !cursor.is_over {
            all.extend(self.store.take_moved(&mut cursor, &to, now));
        }
        all
    }
}

#[test]
fn a_state_that_may_be_elsewhere_does_not_begin_anew() {
    for algorithm in AlgorithmName::ALL.iter().copied() {
        let place = Place::new(&[rule(algorithm)]);
        let unless = |batch: &[Charge], may_have_moved: fn(usize) -> bool| {
            place.store.charge_unless(&place.binding, &mut batch.to_vec(), may_have_moved, at(0)).map(drop)
        };
        let [here, elsewhere] = [charge(1, 1), charge(2, 1)];
        place.charge(1, 1, at(0));
        let before = place.charge(1, 0, at(0));
        assert_eq!(unless(slice::from_ref(&elsewhere), |_| true), Err(StateElsewhere));
        // the other charge of its batch is not made either
        assert_eq!(unless(&[elsewhere.clone(), here.clone()], |position| position == 0), Err(StateElsewhere));
        assert_eq!((place.keys(), place.charge(1, 0, at(0))), (1, before), "{algorithm:?}");
        // of a limit that holds slots, a part of the state may be elsewhere
        let known = if algorithm.holds_slots() { Err(StateElsewhere) } else { Ok(()) };
        assert_eq!(unless(slice::from_ref(&here), |_| true), known, "{algorithm:?}");
        assert_eq!(unless(slice::from_ref(&elsewhere), |_| false), Ok(()));
    }
}

#[test]
fn a_key_that_moved_goes_on_where_it_was_under_every_algorithm() {
    for algorithm in AlgorithmName::ALL.iter().copied().filter(|algorithm| !algorithm.holds_slots()) {
        let rules = [rule(algorithm)];
        let [stays, from, to] = [(); 3].map(|()| Place::new(&rules));
        for second in 0..7 {
            assert_eq!(from.charge(1, 1, at(second)), stays.charge(1, 1, at(second)));
        }
        let states = from.store.take(&from.identity(), key(1), &|| {}).unwrap();
        assert!(!from.knows(1));
        assert_eq!(from.keys(), 0);
        assert_eq!(to.store.put(&states, at(0)), ImportCounts { kept: 1, ..ImportCounts::default() });
        assert!(to.knows(1));
        for second in 7..100 {
            let (moved, stayed) = (to.charge(1, 1, at(second)), stays.charge(1, 1, at(second)));
            assert_eq!(moved, stayed, "{algorithm:?} after {second} s");
        }
    }
}

#[test]
fn a_state_that_is_too_large_to_move_is_lost_and_counted() {
    let mut arguments = rule(AlgorithmName::SlidingLog).arguments();
    arguments.set("limit", Value::Whole(100_000));
    let place = Place::new(&[AlgorithmName::SlidingLog.build(&arguments).unwrap()]);
    for number in 0..100_000 {
        place.charge(1, 1, at(0).saturating_add(Nanos::new(number * 500_000)));
    }
    assert!(place.store.take(&place.identity(), key(1), &|| {}).is_none());
    assert_eq!((place.keys(), place.store.too_large()), (0, 1));
}

/// A rule of each algorithm that holds tokens, with a limit large enough for the tests.
fn holding() -> impl Iterator<Item = Rule> {
    let wide = |algorithm: AlgorithmName| {
        let mut arguments = rule(algorithm).arguments();
        for name in ["limit", "min", "max"] {
            if algorithm.parameters().iter().any(|parameter| parameter.name == name) {
                arguments.set(name, Value::Whole(WIDE));
            }
        }
        algorithm.build(&arguments).unwrap()
    };
    AlgorithmName::ALL.iter().copied().filter(|algorithm| algorithm.holds_slots()).map(wide)
}

const WIDE: u64 = 20_000;

fn slot(number: u64) -> Slot {
    Slot { process: number % 2, number }
}

impl Place {
    /// Begins a request that holds `cost`, if the limit admits it.
    fn begin(&self, number: u128, slot: Slot, cost: u64, now: Nanos) -> bool {
        let charge = Charge { slot: Some(slot), ..charge(number, cost) };
        self.store.charge(&self.binding, &mut [charge], now)[0].decision.is_admitted()
    }

    fn release(&self, number: u128, slot: Slot) -> bool {
        self.store.release_slot(&self.binding, &charge(number, 0), slot, Completion::UNMEASURED, at(0))
    }

    /// The number of tokens that requests hold of a key.
    fn held(&self, number: u128) -> u64 {
        let remaining = self.charge(number, 0, at(0)).headroom.remaining.unwrap();
        WIDE - remaining
    }

    /// Reports that `slot` holds `cost`.
    fn tell(&self, number: u128, slot: Slot, cost: u64, now: Nanos) {
        let rules = vec![Parameters::of(&self.binding.limits[0].rules[0].1)];
        let held = vec![HeldSlot { slot, key: key(number), cost, rule: 0 }];
        let states = StateBatch { limit: self.identity(), rules, count: 0, cells: Bytes::new(), held };
        assert_eq!(self.store.put(&states, now), ImportCounts::default());
    }

    fn give(&self, number: u128, to: &[&Self]) {
        if let Some(states) = self.store.take(&self.identity(), key(number), &|| {}) {
            to.iter().for_each(|to| assert_eq!(to.store.put(&states, at(0)).unknown, 0));
        }
    }
}

#[test]
fn slots_move_with_their_key_and_are_released_where_it_is() {
    for rule in holding() {
        let rules = [rule];
        let [from, to] = [(); 2].map(|()| Place::new(&rules));
        assert!(from.begin(1, slot(1), 3, at(0)) && from.begin(1, slot(2), 4, at(0)));
        from.give(1, &[&to]);
        assert_eq!((from.held(1), to.held(1)), (0, 7));
        assert!(!from.release(1, slot(1)) && to.release(1, slot(1)) && !to.release(1, slot(1)));
        assert_eq!(to.held(1), 4);
        assert!(to.release(1, slot(2)));
        assert_eq!(to.held(1), 0);
    }
}

#[test]
fn a_key_with_very_many_requests_in_flight_moves_with_some_of_them() {
    for rule in holding() {
        let rules = [rule];
        let [from, to] = [(); 2].map(|()| Place::new(&rules));
        let most = u64::try_from(MAX_HELD).unwrap();
        assert!((0..=most).all(|number| from.begin(1, slot(number), 1, at(0))));
        from.give(1, &[&to]);
        assert_eq!((from.held(1), to.held(1)), (0, most));
    }
}

#[test]
fn slots_are_in_the_parts_of_a_store_that_is_given_away() {
    for rule in holding() {
        let rules = [rule];
        let [from, to] = [(); 2].map(|()| Place::new(&rules));
        for number in 0..1000 {
            assert!(from.begin(u128::from(number), slot(number), 1 + number % 3, at(0)));
        }
        for (_, states) in from.take_moved(|_| Some(0), at(0)) {
            to.store.put(&states, at(0));
        }
        for number in 0..1000 {
            assert_eq!(to.held(u128::from(number)), 1 + number % 3);
            assert!(to.release(u128::from(number), slot(number)));
        }
        assert!((0..1000).all(|number| to.held(number) == 0));
    }
}

#[test]
fn the_slots_of_a_process_that_is_gone_or_silent_are_released() {
    for rule in holding() {
        let place = Place::new(&[rule]);
        for number in 0..4 {
            assert!(place.begin(1, slot(number), 1, at(0)));
        }
        place.store.release_process(1, at(1));
        assert_eq!(place.held(1), 2);
        // the process of slot 2 still reports it
        place.tell(1, slot(2), 1, at(10));
        let releases = |until| {
            place.store.release_stale_slots(|slot, reported_at| slot.process == 0 && reported_at <= until, at(20))
        };
        releases(Nanos::ZERO);
        assert_eq!(place.held(1), 2);
        releases(at(9));
        assert_eq!(place.held(1), 1);
        assert!(place.release(1, slot(2)));
        place.tell(1, slot(2), 1, at(15));
        releases(at(15));
        assert_eq!(place.held(1), 0);
    }
}

/// An event of one key.
#[derive(Clone, Debug)]
enum Step {
    /// A request begins at a place.
    Begin { at: usize, cost: u64 },
    /// The state moves from a place to another, and also to a third if `twice`.
    Give { from: usize, to: usize, twice: bool },
    /// A running request is reported to a place.
    Tell { which: usize, at: usize },
    /// A request ends.
    End { which: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let place = || 0_usize..3;
    prop_oneof![
        3 => (place(), 1_u64..4).prop_map(|(at, cost)| Step::Begin { at, cost }),
        3 => (place(), place(), any::<bool>()).prop_map(|(from, to, twice)| Step::Give { from, to, twice }),
        2 => (any::<usize>(), place()).prop_map(|(which, at)| Step::Tell { which, at }),
        2 => any::<usize>().prop_map(|which| Step::End { which }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_slot_counts_once_however_often_it_comes(steps in prop::collection::vec(step(), 1..60)) {
        for rule in holding() {
            let rules = [rule];
            let places = [(); 3].map(|()| Place::new(&rules));
            let mut running: Vec<(Slot, u64)> = Vec::new();
            for (number, step) in (0..).zip(&steps) {
                match *step {
                    Step::Begin { at: place, cost } => {
                        prop_assert!(places[place].begin(1, slot(number), cost, at(0)));
                        running.push((slot(number), cost));
                    }
                    Step::Give { from, to, .. } if from == to => {}
                    Step::Give { from, to, twice } => {
                        let both = [&places[to], &places[3 - from - to]];
                        places[from].give(1, if twice { &both } else { &both[..1] });
                    }
                    Step::Tell { which, at: place } if !running.is_empty() => {
                        let (slot, cost) = running[which % running.len()];
                        places[place].tell(1, slot, cost, at(0));
                    }
                    Step::End { which } if !running.is_empty() => {
                        let (slot, _) = running.swap_remove(which % running.len());
                        let ended = places.iter().filter(|place| place.release(1, slot)).count();
                        prop_assert!(ended >= 1);
                    }
                    Step::Tell { .. } | Step::End { .. } => {}
                }
                let whole: u64 = running.iter().map(|(_, cost)| cost).sum();
                prop_assert!(places.iter().all(|place| place.held(1) <= whole));
            }
            places[1].give(1, &[&places[0]]);
            places[2].give(1, &[&places[0]]);
            prop_assert_eq!(places[0].held(1), running.iter().map(|(_, cost)| cost).sum::<u64>());
            prop_assert_eq!(places[1].held(1) + places[2].held(1), 0);
            prop_assert!(running.iter().all(|(slot, _)| places[0].release(1, *slot)));
            prop_assert_eq!(places[0].keys(), 0);
        }
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
        assert_eq!(to.store.put(states, at(0)), ImportCounts { kept: states.count, ..ImportCounts::default() });
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

/// The order in which the two states came does not matter.
#[test]
fn two_states_of_one_key_become_one_that_admits_no_more_than_either() {
    for algorithm in AlgorithmName::ALL.iter().copied().filter(|algorithm| !algorithm.holds_slots()) {
        let rules = [rule(algorithm)];
        for costs in [[1, 2], [2, 1]] {
            let [from, to, alone] = [(); 3].map(|()| Place::new(&rules));
            from.charge(1, costs[0], at(0));
            to.charge(1, costs[1], at(0));
            alone.charge(1, 2, at(0));
            let states = from.store.take(&from.identity(), key(1), &|| {}).unwrap();
            assert_eq!(to.store.put(&states, at(0)), ImportCounts { merged: 1, ..ImportCounts::default() });
            assert_eq!(to.charge(1, 1, at(0)), alone.charge(1, 1, at(0)), "{algorithm:?}");
        }
    }
}

/// As two plans use one key, one of them at the owner's stand-in. The order in which the two states came does not matter.
#[test]
fn a_state_under_a_shorter_window_ends_no_longer_one() {
    let window = |limit, seconds| {
        let window = Value::Duration(Nanos::from_secs(seconds));
        let arguments = [("limit", Value::Whole(limit)), ("window", window)];
        AlgorithmName::FixedWindow.build(&arguments.into()).unwrap()
    };
    let rules = [window(10, 3_600), window(1_000, 86_400)];
    let spend = |place: &Place, rule, cost| {
        let charge = Charge { rule: RuleRef::Listed(rule), ..charge(1, cost) };
        place.store.charge(&place.binding, &mut [charge], at(0))[0].decision.is_admitted()
    };
    for [from_rule, to_rule] in [[0, 1], [1, 0]] {
        let [from, to] = [(); 2].map(|()| Place::new(&rules));
        for (place, rule) in [(&from, from_rule), (&to, to_rule)] {
            assert!(spend(place, rule, [10, 1][rule]));
        }
        let states = from.store.take(&from.identity(), key(1), &|| {}).unwrap();
        assert_eq!(to.store.put(&states, at(0)).merged, 1);
        assert!(!spend(&to, 0, 1), "the hour's tokens are spent, wherever");
        assert!(spend(&to, 1, 990) && !spend(&to, 1, 1), "the day's limit is left, but for these");
    }
}

#[test]
fn a_state_that_is_as_good_as_new_says_nothing_about_one_that_comes() {
    let rules = [rule(AlgorithmName::QuotaReset)];
    let [from, to] = [(); 2].map(|()| Place::new(&rules));
    to.charge(1, 2, at(0));
    let over = at(0).saturating_add(to.charge(1, 0, at(0)).headroom.until_full);
    from.charge(1, 1, over);
    let states = from.store.take(&from.identity(), key(1), &|| {}).unwrap();
    assert_eq!(to.store.put(&states, over), ImportCounts { kept: 1, ..ImportCounts::default() });
    let left = |place: &Place| place.charge(1, 0, over).headroom.remaining;
    from.charge(1, 1, over);
    assert_eq!(left(&to), left(&from));
}

#[test]
fn a_state_that_is_as_good_as_new_is_forgotten_instead() {
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
    assert_eq!(parts.iter().map(|(_, states)| to.store.put(states, at(0)).kept).sum::<u64>(), 2);
    assert_eq!(to.keys(), 5);
}

#[test]
fn a_key_meets_the_parameters_of_where_it_comes_to_with_what_it_has_used() {
    let half = rule(AlgorithmName::Gcra);
    let mut arguments = half.arguments();
    arguments.set("burst", Value::Whole(10));
    let wide = AlgorithmName::Gcra.build(&arguments).unwrap();
    let (from, to) = (Place::new(slice::from_ref(&half)), Place::new(slice::from_ref(&wide)));
    let carried = Place::new(slice::from_ref(&half));
    for place in [&from, &carried] {
        place.charge(1, 3, at(0));
    }
    to.store.put(&from.store.take(&from.identity(), key(1), &|| {}).unwrap(), at(0));
    let after_reload = carried.store.bind(&[spec(slice::from_ref(&wide))]);
    let expected = carried.store.charge(&after_reload, &mut [charge(1, 0)], at(0))[0];
    assert_eq!(to.charge(1, 0, at(0)), expected);
}

/// While Redis is unavailable each gateway enforces a part of such a limit by itself.
#[test]
fn the_states_of_a_shared_limit_neither_go_nor_come() {
    let rules = [rule(AlgorithmName::Gcra)];
    let shared = LocalStore::new();
    let binding = shared.bind(&[LimitSpec { mode: Mode::Shared(Sharing::default()), ..spec(&rules) }]);
    let (shared, own) = (Place { store: shared, binding }, Place::new(&rules));
    shared.charge(1, 1, at(0));
    assert!(shared.take_moved(|_| Some(0), at(0)).is_empty());
    assert_eq!(shared.store.take(&shared.identity(), key(1), &|| {}), None);
    own.charge(1, 2, at(0));
    let states = own.store.take(&own.identity(), key(1), &|| {}).unwrap();
    let before = shared.charge(1, 0, at(0));
    assert_eq!(shared.store.put(&states, at(0)), ImportCounts { unknown: 1, ..ImportCounts::default() });
    assert_eq!(shared.charge(1, 0, at(0)), before);
}

#[test]
fn states_that_are_not_understood_are_counted_and_change_nothing() {
    let place = Place::new(&[rule(AlgorithmName::Gcra)]);
    place.charge(1, 1, at(0));
    let states = place.store.take(&place.identity(), key(1), &|| {}).unwrap();
    let foreign = LimitIdentity { algorithm: "future".to_owned(), ..states.limit.clone() };
    let unknown = ImportCounts { unknown: 1, ..ImportCounts::default() };
    assert_eq!(place.store.put(&StateBatch { limit: foreign, ..states.clone() }, at(0)), unknown);
    assert_eq!(place.store.put(&StateBatch { rules: Vec::new(), ..states.clone() }, at(0)), unknown);
    assert_eq!(place.store.put(&StateBatch { cells: states.cells.slice(..9), ..states.clone() }, at(0)), unknown);
    let too_many = StateBatch { count: u64::MAX, ..states };
    assert_eq!(place.store.put(&too_many, at(0)), ImportCounts { kept: 1, unknown: u64::MAX - 1, merged: 0 });
}
