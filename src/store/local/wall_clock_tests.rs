//! Tests that set the wall clock while the store has states.

use std::slice;

use super::*;
use crate::algorithm::Value;
use crate::charge::{Charged, Enforcement, Refund};
use crate::cluster::migration::StoreCursor;
use crate::store::local::snapshot::tests::{at, rule, spec};
use crate::store::{LimitSpec, SnapshotHead};
use crate::units::ClockOffset;

const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;

/// A store with one limit.
struct Place {
    store: LocalStore,
    binding: Binding,
}

impl Place {
    fn new(rule: &Rule) -> Self {
        Self::of(LocalStore::new(), &spec(slice::from_ref(rule)))
    }

    fn of(store: LocalStore, spec: &LimitSpec<'_>) -> Self {
        let binding = store.bind(slice::from_ref(spec));
        Self { store, binding }
    }

    /// Sets the wall clock `ahead` seconds ahead of the store's time.
    fn set(&self, ahead: i64) {
        self.store.wall_offset().set(ClockOffset::new(ahead * 1_000_000_000));
    }

    fn charge(cost: u64) -> Charge {
        let key = LimitKey(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        Charge::new(0, RuleRef::Listed(0), key, cost, Enforcement::DEFAULT)
    }

    fn ask(&self, cost: u64, now: Nanos) -> Charged {
        self.store.charge(&self.binding, &mut [Self::charge(cost)], now)[0]
    }

    fn admits(&self, now: Nanos) -> bool {
        self.ask(1, now).decision.is_admitted()
    }

    /// Sets the wall clock forward and back, further each time. However often, that brings a limit of 3 once.
    fn step_to_and_fro(&self) {
        let mut admitted = 0;
        for ahead in (0..1000).map(|step: i64| [1, -1][(step % 2) as usize] * step * 777) {
            self.set(ahead);
            admitted += (0..10).filter(|_| self.admits(at(1))).count();
        }
        assert!(admitted <= 2 * 3, "{admitted} in a second of a thousand steps");
    }

    /// Spends all tokens.
    fn spend(&self, now: Nanos) {
        for _ in 0..100 {
            if !self.admits(now) {
                return;
            }
        }
        panic!("there is no end");
    }
}

fn fixed_window(window: Value, align: &'static str) -> Rule {
    let arguments = [("limit", Value::Whole(3)), ("window", window), ("align", Value::Choice(align))];
    AlgorithmName::FixedWindow.build(&arguments.into()).unwrap()
}

fn daily() -> Rule {
    fixed_window(Value::Choice("day"), "calendar")
}

fn hourly() -> Rule {
    fixed_window(Value::Duration(Nanos::from_secs(3_600)), "epoch")
}

#[test]
fn limits_that_go_by_the_time_that_has_passed_see_no_step() {
    let by_the_wall_clock = [AlgorithmName::FixedWindow, AlgorithmName::SlidingWindow];
    for algorithm in AlgorithmName::ALL.iter().copied().filter(|name| !by_the_wall_clock.contains(name)) {
        let rule = rule(algorithm);
        let [stepped, other] = [(); 2].map(|()| Place::new(&rule));
        for (second, ahead) in (0..40).zip([0, 100, -100, HOUR, -DAY, 300 * DAY, -300 * DAY].into_iter().cycle()) {
            stepped.set(ahead);
            assert_eq!(stepped.ask(1, at(second)), other.ask(1, at(second)), "{algorithm:?} at {second}");
        }
    }
}

#[test]
fn calendar_windows_follow_the_wall_clock_and_none_is_handed_out_twice() {
    let place = Place::new(&daily());
    let mut admitted = 0;
    for ahead in [0, DAY, 0, DAY, -DAY, 2 * DAY, DAY, 2 * DAY] {
        place.set(ahead);
        admitted += (0..10).filter(|_| place.admits(at(0))).count();
    }
    assert_eq!(admitted, 3 * 3, "three days were shown that are not before one that was");
}

#[test]
fn a_key_that_has_spent_a_day_far_ahead_waits_for_the_end_of_this_one() {
    for touched in [true, false] {
        let place = Place::new(&daily());
        place.set(300 * DAY);
        place.spend(at(0));
        place.set(0);
        assert!(!touched || !place.admits(at(1)), "a step back brings nothing");
        // a sweep corrects the keys that no request uses
        (0..64).for_each(|part| place.store.sweep(part, 64, at(2)));
        let left = place.ask(0, at(3)).headroom.until_full;
        assert!(left <= Nanos::from_secs(86_400), "{left}");
        assert!(!place.admits(at(3)) && place.admits(at(3).saturating_add(left)));
    }
}

#[test]
fn a_charge_is_refunded_after_the_clock_was_set_back_in_its_window() {
    for rule in [hourly(), daily()] {
        let place = Place::new(&rule);
        let refund = Refund::of(Place::charge(1), place.ask(1, at(0)).headroom, at(0));
        place.set(-100);
        place.store.refund(&place.binding, &[refund], at(1));
        assert_eq!(place.ask(0, at(1)).headroom.remaining, Some(3), "{rule:?}");
    }
}

#[test]
fn no_step_brings_more_than_one_sliding_window() {
    let arguments = [("limit", Value::Whole(3)), ("window", Value::Duration(Nanos::from_secs(3_600)))];
    let place = Place::new(&AlgorithmName::SlidingWindow.build(&arguments.into()).unwrap());
    place.step_to_and_fro();
    let waits = place.ask(0, at(1)).headroom.until_full;
    assert!(waits <= Nanos::from_secs(4 * 3_600), "{waits}");
}

#[test]
fn windows_from_the_epoch_begin_at_the_wall_clocks_hours_and_no_step_brings_more_than_one() {
    let place = Place::new(&hourly());
    // at(0) is 800 s after a full hour
    place.set(HOUR / 2);
    place.spend(at(0));
    let left = place.ask(0, at(0)).headroom.until_full;
    assert_eq!(left, Nanos::from_secs(1_000), "the hour of the wall clock");
    place.step_to_and_fro();
    let waits = place.ask(0, at(1)).headroom.until_full;
    assert!(waits <= Nanos::from_secs(3 * 3_600), "{waits}");
}

#[test]
fn a_state_is_the_same_in_a_store_whose_wall_clock_was_set_otherwise() {
    for algorithm in AlgorithmName::ALL.iter().copied().filter(|name| !name.holds_slots()) {
        let rules = [rule(algorithm), hourly(), daily()];
        let rules = if algorithm == AlgorithmName::FixedWindow { &rules[1..] } else { &rules[..1] };
        for rule in rules {
            for (ours, theirs) in [(5 * HOUR + 7, 0), (0, 5 * HOUR + 7), (-3 * DAY, DAY), (11, 11)] {
                // the wall clocks agree, the elapsed times do not
                let here = at(1_000_000);
                let there = here.shifted(ClockOffset::new((ours - theirs) * 1_000_000_000));
                let [one, other] = [(); 2].map(|()| Place::new(rule));
                one.set(ours);
                other.set(theirs);
                one.spend(here);
                let waits = one.ask(0, here).headroom.until_full;
                let mut bytes = Vec::new();
                one.store.write_snapshot(&SnapshotHead { seed: [0; 16], at: here }, &mut bytes).unwrap();
                let mut cursor = StoreCursor::default();
                while !cursor.is_over {
                    for (_, states) in one.store.take_moved(&mut cursor, &|_| Some(0), here) {
                        other.store.put(&states, there);
                    }
                }
                let restored = LocalStore::read_snapshot(&bytes[..], Nanos::MAX).unwrap().store;
                let restored = Place::of(restored, &spec(slice::from_ref(rule)));
                let wall = here.shifted(ClockOffset::new(ours * 1_000_000_000));
                for (place, now) in [(&other, there), (&restored, wall)] {
                    assert!(!place.admits(now), "{algorithm:?} from {ours} to {theirs} s ahead");
                    let waited = place.ask(0, now).headroom.until_full;
                    let more = if algorithm == AlgorithmName::SlidingWindow { 0 } else { 61 };
                    let longest = waits.saturating_add(Nanos::from_secs(more));
                    assert!(waited >= waits && waited <= longest, "{algorithm:?}: {waits} became {waited}");
                }
            }
        }
    }
}
