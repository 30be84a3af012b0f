use super::*;
use crate::algorithm::{AlgorithmName, Arguments, Value};
use crate::charge::Enforcement;
use crate::store::redis::{Call, CallArgument, Clock, Refused, SharedRule, encode};
use crate::units::{LimitKey, Rate};

fn shared(algorithm: AlgorithmName, set: &[(&'static str, Value)]) -> SharedRule {
    let mut arguments = Arguments::default();
    for (name, value) in set {
        arguments.set(name, value.clone());
    }
    SharedRule::new(algorithm.build(&arguments).unwrap(), Nanos::SECOND).unwrap()
}

fn gcra() -> SharedRule {
    let rate = Value::Rate(Rate::new(10, Nanos::SECOND).unwrap());
    shared(AlgorithmName::Gcra, &[("rate", rate), ("burst", Value::Whole(2))])
}

fn log() -> SharedRule {
    let window = Value::Duration(Nanos::SECOND);
    shared(AlgorithmName::SlidingLog, &[("limit", Value::Whole(3)), ("window", window)])
}

fn bucket(rule: &SharedRule) -> Bucket<'_> {
    Bucket {
        limit: "l",
        rule,
        key: LimitKey(1),
        tag: LimitKey(1),
        cost: 1,
        enforcement: Enforcement::DEFAULT,
        call_argument: CallArgument::Nothing,
    }
}

fn text(text: &str) -> Field<'_> {
    Field::Text(text.as_bytes())
}

#[test]
fn a_denial_is_worked_out_from_the_state_that_was_found() {
    let rule = gcra();
    let buckets = [bucket(&rule)];
    // full again 200 ms after the time of the call
    let reply = [text("5000000000"), text("0"), Field::Integer(0), text("5 200000000 0")];
    let answer = ScriptReply::parse(&reply, &buckets).unwrap();
    let (charged, all) = answer.charged(&buckets);
    assert_eq!(charged[0].decision, Decision::later(Nanos::new(100_000_000)));
    assert_eq!(charged[0].headroom.until_full, Nanos::new(200_000_000));
    let [KeyState::State(Some(state))] = &*all else { panic!("{all:?}") };
    assert_eq!(buckets[0].rule.rule().repair_state(state).as_deref(), Some("5 200000000 0"));
}

#[test]
fn the_granted_charges_are_known_however_few_are_told_of_them() {
    let window = Value::Duration(Nanos::SECOND);
    let rule = shared(AlgorithmName::FixedWindow, &[("limit", Value::Whole(9)), ("window", window)]);
    let buckets = [bucket(&rule)];
    let reply = [text("5000000000"), text("5"), Field::Integer(1), text("")];
    let answer = ScriptReply::parse(&reply, &buckets).unwrap();
    for told in 0..=5 {
        let mut each = answer.each(&buckets);
        each.by_ref().take(told).for_each(drop);
        let [KeyState::State(state)] = &*each.into_seen() else { panic!("a state") };
        assert_eq!(buckets[0].rule.rule().headroom(state.as_ref(), answer.now).remaining, Some(4), "{told}");
    }
}

#[test]
fn fields_that_are_no_reply_are_an_error_that_says_where() {
    let (gcra, log) = (gcra(), log());
    let both = [bucket(&gcra), bucket(&log)];
    let good = [text("5"), text("1"), Field::Integer(1), text(""), Field::Integer(3), text("- 2 0 9 1")];
    assert_eq!(ScriptReply::parse(&good, &both).map(|answer| answer.healed), Ok(1));
    assert_eq!(ScriptReply::parse(&good[..5], &both), Err(BadReply::Length { expected: 6, found: 5 }));
    assert_eq!(ScriptReply::parse(&[], &both), Err(BadReply::Length { expected: 6, found: 0 }));
    let long = "1".repeat(1 << 20);
    let wrong = [
        (0, vec![text(""), text("-1"), text("nan"), text("18446744073709551616"), Field::Integer(5), Field::Other]),
        (1, vec![text("x"), text(&long), Field::Other]),
        (2, vec![text("1"), Field::Integer(8), Field::Integer(-1), Field::Other]),
        (3, vec![text("1 2"), text("1 2 3 4"), text("nan 0 0"), text(&long), Field::Text(b"\xff"), Field::Integer(1)]),
        (5, vec![text(""), text("- 2 0 9"), text("- 2 0 9 1 1"), text("x 2 0 9 1"), text("- -2 0 9 1")]),
    ];
    for (position, fields) in wrong {
        for field in fields {
            let mut reply = good;
            reply[position] = field;
            let found = ScriptReply::parse(&reply, &both);
            assert!(matches!(found, Err(BadReply::Field { position: at, .. }) if at == position), "{found:?}");
        }
    }
}

#[test]
fn a_state_at_the_edge_of_what_can_be_counted_is_none_that_panics() {
    let rule = gcra();
    let buckets = [bucket(&rule)];
    let most = u128::MAX.to_string();
    for state in [format!("{most} 0 0"), format!("0 {most} 0"), format!("0 0 {most}"), format!("{} 0 0", u64::MAX)] {
        let reply = [text("18446744073709551615"), text("1"), Field::Integer(0), text(&state)];
        if let Ok(answer) = ScriptReply::parse(&reply, &buckets) {
            answer.charged(&buckets);
            answer.seen();
            answer.each(&buckets).take(3).for_each(drop);
        }
    }
}

#[test]
fn calls_that_make_no_sense_are_refused() {
    let slots = shared(AlgorithmName::Concurrency, &[("limit", Value::Whole(2))]);
    let gcra = gcra();
    let refused = |call, bucket: Bucket<'_>| encode(call, Clock::Given(Nanos::ZERO), "t", &[bucket]).err();
    assert!(matches!(refused(Call::Charge, bucket(&slots)), Some(Refused::NoSlot { .. })));
    let long = "x".repeat(1000);
    let named = Bucket { call_argument: CallArgument::Slot(&long), ..bucket(&slots) };
    assert!(matches!(refused(Call::Charge, named), Some(Refused::NoSlot { .. })));
    let named = Bucket { call_argument: CallArgument::Slot("a"), ..bucket(&slots) };
    assert!(matches!(refused(Call::Partial(1_001), named.clone()), Some(Refused::TooMany { want: 1_001, .. })));
    assert_eq!(refused(Call::Partial(1_000), named), None);
    assert!(matches!(refused(Call::Refund, bucket(&gcra)), Some(Refused::NoFullAt { .. })));
    assert_eq!(refused(Call::Partial(u64::MAX), bucket(&gcra)), None);
}
