use std::borrow::Cow;

use proptest::prelude::*;

use super::*;

/// Often one that other lines have too.
fn text() -> impl Strategy<Value = Option<Cow<'static, str>>> {
    prop::option::of(prop_oneof!["[ab]?", ".{0,20}"].prop_map(Cow::Owned))
}

fn raw() -> impl Strategy<Value = Option<Cow<'static, [u8]>>> {
    prop::option::of(prop::collection::vec(any::<u8>(), 0..20).prop_map(Cow::Owned))
}

fn values() -> impl Strategy<Value = Vec<(usize, Cow<'static, str>)>> {
    prop::collection::vec((0..5_usize, ".{0,9}".prop_map(Cow::Owned)), 0..3)
}

prop_compose! {
    fn record()(
        (logged, took, waited, within) in any::<(u64, Option<u64>, u64, Option<u64>)>(),
        (status, request_bytes, response_bytes) in any::<(Option<u16>, Option<u64>, Option<u64>)>(),
        (client, target, host) in (raw(), raw(), raw()),
        (method, customer, plan) in (text(), text(), text()),
        (node, answered, was_exempt) in (text(), text(), any::<Option<bool>>()),
        (headers, response_headers) in (values(), values()),
    ) -> Record<'static> {
        Record {
            logged: Nanos::new(logged),
            took: took.map(Nanos::new),
            waited: Nanos::new(waited),
            within_second: within.map(Nanos::new),
            client,
            method,
            target,
            host,
            status,
            request_bytes,
            response_bytes,
            customer,
            plan,
            node,
            answered,
            was_exempt,
            headers,
            response_headers,
        }
    }
}

#[test]
fn room_is_given_back_when_lines_are_let_go() {
    let mut held = Held::default();
    let record = Record { client: Some(Cow::Borrowed(b"192.0.2.1")), ..Record::default() };
    let (mut most, mut most_bytes) = (0, 0);
    for line in 0..100_000_u64 {
        held.push(Nanos::new(line * 1_000_000), Spot { log: 0, line }, &record);
        if line >= 1000 {
            held.pop();
        }
        most = most.max(held.coming.len());
        most_bytes = most_bytes.max(held.bytes);
    }
    // a second, of which one stretch is begun and one not yet over
    assert!(most <= 1_000_000_000 / usize::try_from(STRETCH).unwrap() + 1, "{most}");
    assert_eq!(held.count, 1000);
    assert!(most_bytes <= 1200 * 40, "{most_bytes}");
    assert!(held.spare.len() <= 1);
    (0..1000).for_each(|_| held.pop());
    assert!(held.is_empty() && held.bytes == 0 && held.coming.is_empty());
}

#[test]
fn a_line_that_is_far_ahead_of_the_others_does_not_keep_their_room() {
    let mut held = Held::default();
    let ahead = Spot { log: 0, line: 1 };
    held.push(Nanos::new(u64::MAX), ahead, &Record::default());
    let alone = held.bytes;
    for line in 2..10_000_u64 {
        let began = Nanos::new(line * 1_000_000);
        held.push(began, Spot { log: 0, line }, &Record::default());
        assert_eq!(held.first_began(), Some(began));
        held.pop();
        assert_eq!(held.bytes, alone);
    }
    assert_eq!(
        held.first_began().zip(held.first()).map(|(began, (spot, _))| (began, spot)),
        Some((Nanos::new(u64::MAX), ahead))
    );
}

#[test]
fn values_of_header_fields_take_room_however_short_they_are() {
    let mut held = Held::default();
    let record = Record { headers: vec![(0, Cow::Borrowed("")); 200_000], ..Record::default() };
    held.push(Nanos::ZERO, Spot { log: 0, line: 1 }, &record);
    // a position and a length each
    assert!(held.bytes >= 200_000 * 2, "{}", held.bytes);
    assert_eq!(held.first().map(|(.., held)| held), Some(record));
    held.pop();
    assert!(held.is_empty() && held.bytes == 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    /// In the order in which requests began, and in that in which they were held back where they began at once.
    #[test]
    fn what_was_held_back_comes_whole_and_in_order(
        steps in prop::collection::vec((0..3 * STRETCH, record(), any::<bool>()), 1..600),
    ) {
        let (mut held, mut expected) = (Held::default(), Vec::new());
        for (line, (began, record, pops)) in (0..).zip(steps) {
            // few times, so that some are the same
            let (began, spot) = (Nanos::new(began / STRETCH * STRETCH + began % 3), Spot { log: 1, line });
            held.push(began, spot, &record);
            expected.push((began, (spot, record)));
            if pops {
                let (first, _) = expected.iter().enumerate().min_by_key(|(_, (began, _))| *began).unwrap();
                prop_assert_eq!(held.first_began().zip(held.first()), Some(expected.remove(first)));
                held.pop();
            }
        }
        expected.sort_by_key(|(began, _)| *began);
        for expected in expected {
            prop_assert_eq!(held.first_began().zip(held.first()), Some(expected));
            held.pop();
        }
        prop_assert!(held.is_empty());
        prop_assert_eq!(held.first_began(), None);
    }
}
